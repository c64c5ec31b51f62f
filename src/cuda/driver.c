/* driver.c - libcuda opened at run time: what each failure means in words, GPUs and their links,
 * memory, streams and events.  Code, launches and graphs are in driver_code.c.
 *
 * Nothing is linked against CUDA: each entry is looked up by name, so one library runs with any
 * driver from CUDA 11.8 on and on machines without one.  MPK_LIBCUDA names another library, which
 * is how the tests put a stand-in there (tests/fake_cuda.c).  A failed call is reported as
 * cuda_driver_fail has it: what was being done, the driver's words, and what a user can do.
 * Called by all of src/cuda; a thread makes a GPU current (cuda_gpu_use) before it calls anything
 * on it.
 */
#include "cuda/driver_entries.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- failures ---- */

/* Our status for a range of CUresult, and what a user can do about it.  Codes without a row get
 * `other`.  The numbers are the driver's interface and do not change; their names in cuda.h, in the
 * order of the rows, without CUDA_ERROR_:
 *
 *   2 OUT_OF_MEMORY              34 STUB_LIBRARY          46 DEVICE_UNAVAILABLE
 *   100 NO_DEVICE                101 INVALID_DEVICE       200 INVALID_IMAGE
 *   209 NO_BINARY_FOR_GPU        214 ECC_UNCORRECTABLE    218 INVALID_PTX
 *   222 UNSUPPORTED_PTX_VERSION  500 NOT_FOUND            700 ILLEGAL_ADDRESS
 *   701 LAUNCH_OUT_OF_RESOURCES  217 PEER_ACCESS_UNSUPPORTED
 *   702 LAUNCH_TIMEOUT           709 CONTEXT_IS_DESTROYED, 710 ASSERT
 *   712 HOST_MEMORY_ALREADY_REGISTERED
 *   714 to 719 faults of a kernel, from HARDWARE_STACK_ERROR to LAUNCH_FAILED
 *   720 COOPERATIVE_LAUNCH_TOO_LARGE                      801 NOT_SUPPORTED
 *   802 SYSTEM_NOT_READY         803 SYSTEM_DRIVER_MISMATCH, 804 COMPAT_NOT_SUPPORTED_ON_DEVICE
 */
static const struct meaning {
    int first, last;
    mpk_status status;
    const char *advice;
} meanings[] = {
    {2, 2, MPK_ENOMEM, "end other programs that use the GPU, or lower --context and --max-batch"},
    {34, 34, MPK_EUNSUPPORTED,
     "this libcuda.so is the toolkit's stand-in: install the NVIDIA driver"},
    {46, 46, MPK_EDEVICE,
     "another process has the GPU for itself (nvidia-smi shows its compute mode)"},
    {100, 100, MPK_EUNSUPPORTED,
     "no GPU is visible: nvidia-smi and CUDA_VISIBLE_DEVICES say which there are"},
    {101, 101, MPK_EARG, "there is no such GPU"},
    {200, 200, MPK_EFORMAT, "the code is damaged: compile again"},
    {209, 209, MPK_EUNSUPPORTED,
     "the code was compiled for another GPU: compile again for this one"},
    {214, 214, MPK_EDEVICE, "the GPU's memory has failed: see nvidia-smi -q"},
    {218, 218, MPK_EFORMAT,
     "the code is damaged or was made by a compiler that this driver does not know"},
    {222, 222, MPK_EUNSUPPORTED, "the code was made by a newer compiler: update the NVIDIA driver"},
    {500, 500, MPK_EFORMAT, "the code does not have it: compile again"},
    {700, 700, MPK_EDEVICE,
     "a kernel touched memory that is not its own; the GPU is lost to this process: end it"},
    {701, 701, MPK_ELIMIT, "the kernel needs more registers or threads than the GPU has"},
    {217, 217, MPK_EUNSUPPORTED,
     "the GPUs cannot reach each other's memory: mpk doctor shows the links"},
    {702, 702, MPK_EDEVICE, "the display's time limit ended a kernel: use a GPU without a display"},
    {709, 710, MPK_EDEVICE, "a kernel failed; the GPU is lost to this process: end it"},
    {712, 712, MPK_EDEVICE, "it is pinned already"},
    {714, 719, MPK_EDEVICE, "a kernel failed; the GPU is lost to this process: end it"},
    {720, 720, MPK_ELIMIT,
     "the GPU cannot hold all blocks at the same time: other programs may be using it"},
    {801, 801, MPK_EUNSUPPORTED, "this GPU or its driver cannot do it"},
    {802, 802, MPK_EDEVICE, "the GPUs' fabric manager is not running yet"},
    {803, 804, MPK_EUNSUPPORTED,
     "libcuda and the kernel's driver do not fit together: reboot after an update"},
};

/* Rows are in the order in which they were needed, so all are looked at: it is an error's path. */
static const struct meaning *find_meaning(int code)
{
    static const struct meaning other = {0, 0, MPK_EDEVICE,
                                         "mpk doctor says what it finds; nvidia-smi, too"};
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].first <= code && code <= meanings[i].last)
            return &meanings[i];
    return &other;
}

/* The status of a failed call, with its words in cx: what was being done, what the driver calls the
 * error, and what a user can do.  `doing` continues "cannot ...". */
mpk_status cuda_driver_fail(mpk_context *cx, const cuda_driver *d, int code, const char *entry,
                            const char *doing, ...)
{
    char deed[512], number[32];
    const char *name = NULL, *sentence = NULL;
    const struct meaning *m = find_meaning(code);
    /* After some errors the driver cannot even name them: then the number has to do. */
    va_list values;
    va_start(values, doing);
    vsnprintf(deed, sizeof deed, doing, values);
    va_end(values);
    snprintf(number, sizeof number, "error %d", code);
    if (d->cuGetErrorName(code, &name) != CUDA_SUCCESS || !name)
        name = number;
    if (d->cuGetErrorString(code, &sentence) != CUDA_SUCCESS || !sentence)
        sentence = "the GPU's driver failed";
    FAIL(cx, m->status, "cannot %s: %s (%s of %s); %s", deed, sentence, name, entry, m->advice);
}

/* ---- the driver ---- */

/* MPK_EUNSUPPORTED, by name: the driver is too old to have an entry. */
static mpk_status find_entries(mpk_context *cx, cuda_driver *d, const char *path)
{
    /* a pointer to data becomes a pointer to a function through memory: C has no cast for it */
#define ENTRY_FIND(name, symbol, parameters)                                                     \
    {                                                                                            \
        void *at = dlsym(d->library, symbol);                                                    \
        CHECK(cx, at, MPK_EUNSUPPORTED, "%s has no %s: update the NVIDIA driver (520 or newer)", \
              path, symbol);                                                                     \
        memcpy(&d->name, &at, sizeof at);                                                        \
    }
    ENTRIES(ENTRY_FIND)
#undef ENTRY_FIND
    return MPK_OK;
}

/* Versions are 1000 * major + 10 * minor. */
static mpk_status start_driver(mpk_context *cx, cuda_driver *d, const char *path)
{
    int version = 0, n = 0;
    TRY(find_entries(cx, d, path));
    CALL(cx, d, cuDriverGetVersion, (&version), "ask for the version of the GPU's driver");
    CHECK(cx, version >= OLDEST_DRIVER, MPK_EUNSUPPORTED,
          "the NVIDIA driver is for CUDA %d.%d, too old: update it (11.8 or newer)", version / 1000,
          version % 1000 / 10);
    /* Before cuInit only the version may be asked for.  cuInit is harmless when the process
     * (PyTorch, another machine) has called it already. */
    CALL(cx, d, cuInit, (0), "start the GPU's driver");
    CALL(cx, d, cuDeviceGetCount, (&n), "count the GPUs");
    CHECK(cx, n > 0, MPK_EUNSUPPORTED, "the driver shows no GPU; %s",
          find_meaning(CUDA_NO_DEVICE)->advice);
    d->version = (uint32_t)version;
    d->n_gpus = (uint32_t)n;
    return MPK_OK;
}

/* As cuda_driver_open looks. */
static const char *find_path(void)
{
    const char *named = getenv("MPK_LIBCUDA");
    return named && *named ? named : "libcuda.so.1";
}

/* Looks for the file alone: a library that is there may still have no GPU, or be too old. For `mpk
 * doctor`, which has other advice for each. */
bool cuda_driver_is_there(void)
{
    void *library = dlopen(find_path(), RTLD_LAZY | RTLD_LOCAL);
    if (library)
        dlclose(library);
    return library != NULL;
}

/* The library is opened again for every machine; the system shares it and counts the opens. *out is
 * the caller's to close, after the last GPU that was opened through it. */
mpk_status cuda_driver_open(mpk_context *cx, cuda_driver **out)
{
    const char *path = find_path();
    cuda_driver *d = calloc(1, sizeof *d);
    CHECK(cx, d, MPK_ENOMEM, "out of memory for the GPU's driver");
    d->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!d->library) {
        free(d);
        FAIL(cx, MPK_EUNSUPPORTED, "no NVIDIA driver: %s; install it, or use the cpu target",
             dlerror());
    }
    mpk_status status = start_driver(cx, d, path);
    if (status != MPK_OK) {
        cuda_driver_close(d);
        return status;
    }
    *out = d;
    return MPK_OK;
}

/* Statuses keep their words: nothing of the library is pointed to afterwards. */
void cuda_driver_close(cuda_driver *d)
{
    if (!d)
        return;
    dlclose(d->library);
    free(d);
}

uint32_t cuda_driver_version(const cuda_driver *d)
{
    return d->version;
}

uint32_t cuda_driver_gpus(const cuda_driver *d)
{
    return d->n_gpus;
}

/* Fill in what the driver answers by number (CUdevice_attribute).  97 is the shared memory of a
 * block that asks for it by cuda_function_allow_shared, not the 48 KB that each has.  The bandwidth
 * is the nominal one: two transfers in each cycle of the memory's clock. */
static mpk_status read_attributes(mpk_context *cx, const cuda_driver *d, int device, cuda_facts *f)
{
    uint32_t maps_host, cooperative, memory_khz, bus_bits;
    const struct {
        int id;
        uint32_t *out;
        const char *name;
    } wanted[] = {
        {75, &f->major, "compute capability"},
        {76, &f->minor, "compute capability"},
        {16, &f->n_sms, "SMs"},
        {97, &f->shared_bytes, "shared memory of a block"},
        {81, &f->shared_sm_bytes, "shared memory of an SM"},
        {82, &f->registers_sm, "registers of an SM"},
        {39, &f->threads_sm, "threads of an SM"},
        {38, &f->l2_bytes, "L2 cache"},
        {13, &f->clock_khz, "clock"},
        {36, &memory_khz, "memory's clock"},
        {37, &bus_bits, "memory's bus"},
        {19, &maps_host, "mapped host memory"},
        {95, &cooperative, "cooperative launches"},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        int value = 0;
        CALL(cx, d, cuDeviceGetAttribute, (&value, wanted[i].id, device), "ask the GPU for its %s",
             wanted[i].name);
        *wanted[i].out = (uint32_t)value;
    }
    f->memory_bytes_s = (uint64_t)memory_khz * 1000 * 2 * bus_bits / 8; /* two transfers a clock */
    f->maps_host = maps_host != 0;
    f->cooperative = cooperative != 0;
    return MPK_OK;
}

/* The driver's handle of a GPU, which is a number, too: both count the GPUs that
 * CUDA_VISIBLE_DEVICES leaves. */
static mpk_status find_device(mpk_context *cx, const cuda_driver *d, uint32_t index, int *device)
{
    CHECK(cx, index < d->n_gpus, MPK_EARG,
          "there is no GPU %u: the driver shows %u, counted from 0", index, d->n_gpus);
    CALL(cx, d, cuDeviceGet, (device, (int)index), "find GPU %u", index);
    return MPK_OK;
}

/* Makes no context, so it costs no memory on the GPU. */
mpk_status cuda_driver_describe(mpk_context *cx, const cuda_driver *d, uint32_t index,
                                cuda_facts *out)
{
    cuda_facts f = {0};
    size_t memory = 0;
    int device = 0;
    TRY(find_device(cx, d, index, &device));
    CALL(cx, d, cuDeviceGetName, (f.name, sizeof f.name, device), "ask GPU %u for its name", index);
    CALL(cx, d, cuDeviceGetPCIBusId, (f.pci, sizeof f.pci, device), "ask GPU %u for its place",
         index);
    CALL(cx, d, cuDeviceTotalMem, (&memory, device), "ask GPU %u for its memory", index);
    TRY(read_attributes(cx, d, device, &f));
    f.memory_bytes = memory;
    *out = f;
    return MPK_OK;
}

/* ---- a GPU ---- */

/* Everything of cuda_gpu_open but the struct.  The primary context is the one that PyTorch uses:
 * tensors of both share an address space.  It is released if the GPU cannot be made current. */
static mpk_status open_gpu(mpk_context *cx, cuda_gpu *g, uint32_t index)
{
    TRY(cuda_driver_describe(cx, g->d, index, &g->facts));
    TRY(find_device(cx, g->d, index, &g->device));
    CALL(cx, g->d, cuDevicePrimaryCtxRetain, (&g->context, g->device), "open GPU %u", index);
    mpk_status status = cuda_gpu_use(cx, g);
    if (status != MPK_OK)
        g->d->cuDevicePrimaryCtxRelease(g->device);
    return status;
}

/* d must stay open until the GPU is closed.  The first holder of a GPU waits here for its context
 * to be made, a tenth of a second or more; *out is written on success alone. */
mpk_status cuda_gpu_open(mpk_context *cx, cuda_driver *d, uint32_t index, cuda_gpu **out)
{
    cuda_gpu *g = calloc(1, sizeof *g);
    CHECK(cx, g, MPK_ENOMEM, "out of memory for GPU %u", index);
    g->d = d;
    mpk_status status = open_gpu(cx, g, index);
    if (status != MPK_OK) {
        free(g);
        return status;
    }
    *out = g;
    return MPK_OK;
}

/* The driver counts the holders of a primary context (PyTorch in this process is another one) and
 * may destroy it, with the memory, streams and modules in it, when the last one releases it. */
void cuda_gpu_close(cuda_gpu *g)
{
    if (!g)
        return;
    g->d->cuDevicePrimaryCtxRelease(g->device);
    free(g);
}

const cuda_facts *cuda_gpu_facts(const cuda_gpu *g)
{
    return &g->facts;
}

mpk_status cuda_gpu_use(mpk_context *cx, cuda_gpu *g)
{
    CALL(cx, g->d, cuCtxSetCurrent, (g->context), "make the GPU current on this thread");
    return MPK_OK;
}

/* An error counts as none: the question is asked to put things back later, and there is nothing to
 * put back. */
cuda_context cuda_driver_current(const cuda_driver *d)
{
    cuda_context now = NULL;
    return d->cuCtxGetCurrent(&now) == CUDA_SUCCESS ? now : NULL;
}

/* Current already is the common case in calls: then only the question is asked.  *before is set on
 * success alone; after a failure there is nothing to leave. */
mpk_status cuda_gpu_enter(mpk_context *cx, cuda_gpu *g, cuda_context *before)
{
    cuda_context now = cuda_driver_current(g->d);
    if (now != g->context)
        TRY(cuda_gpu_use(cx, g));
    *before = now;
    return MPK_OK;
}

/* The thread may have been on a third GPU meanwhile, so what is current is asked for again. */
void cuda_driver_leave(const cuda_driver *d, cuda_context before)
{
    if (cuda_driver_current(d) != before)
        d->cuCtxSetCurrent(before);
}

void cuda_gpu_leave(cuda_gpu *g, cuda_context before)
{
    cuda_driver_leave(g->d, before);
}

/* The context that is current on the thread, which must be that of g: the entry takes no
 * argument. */
mpk_status cuda_gpu_wait(mpk_context *cx, cuda_gpu *g)
{
    CALL(cx, g->d, cuCtxSynchronize, (), "wait for the GPU");
    return MPK_OK;
}

/* ---- links ---- */

/* What GPU `from` could do with the memory of GPU `to`; access is not switched on. */
mpk_status cuda_driver_link(mpk_context *cx, const cuda_driver *d, uint32_t from, uint32_t to,
                            cuda_link *out)
{
    int a, b, reaches = 0, atomics = 0, rank = 0;
    TRY(find_device(cx, d, from, &a));
    TRY(find_device(cx, d, to, &b));
    CALL(cx, d, cuDeviceCanAccessPeer, (&reaches, a, b), "ask for the link from GPU %u to GPU %u",
         from, to);
    if (reaches) {
        CALL(cx, d, cuDeviceGetP2PAttribute, (&atomics, LINK_ATOMICS, a, b),
             "ask what GPU %u may do on GPU %u", from, to);
        CALL(cx, d, cuDeviceGetP2PAttribute, (&rank, LINK_RANK, a, b),
             "ask how fast GPU %u reaches GPU %u", from, to);
    }
    *out = (cuda_link){.reaches = reaches != 0, .atomics = atomics != 0, .rank = (uint32_t)rank};
    return MPK_OK;
}

/* The entry acts on the current context, so g must be it.  Access that others in the process have
 * switched on is as good; only one's own may be switched off again, hence *made. */
mpk_status cuda_gpu_reach(mpk_context *cx, cuda_gpu *g, cuda_gpu *to, bool *made)
{
    int code = g->d->cuCtxEnablePeerAccess(to->context, 0);
    *made = code == CUDA_SUCCESS;
    if (code != CUDA_SUCCESS && code != CUDA_PEER_ALREADY)
        return cuda_driver_fail(cx, g->d, code, "cuCtxEnablePeerAccess",
                                "let GPU %d reach the memory of GPU %d", g->device, to->device);
    return MPK_OK;
}

/* Makes g current on the thread and leaves it so.  Called when a machine ends, whatever state the
 * GPU is in: a failure is not told. */
void cuda_gpu_unreach(cuda_gpu *g, cuda_gpu *to)
{
    mpk_context late = {0};
    if (cuda_gpu_use(&late, g) == MPK_OK)
        g->d->cuCtxDisablePeerAccess(to->context);
}

/* ---- memory ---- */

/* What other processes leave: a figure of this moment, which may be less when memory is asked
 * for. */
mpk_status cuda_memory_available(mpk_context *cx, cuda_gpu *g, uint64_t *free_bytes,
                                 uint64_t *total_bytes)
{
    size_t available = 0, total = 0;
    CALL(cx, g->d, cuMemGetInfo, (&available, &total), "ask for the GPU's free memory");
    *free_bytes = available;
    *total_bytes = total;
    return MPK_OK;
}

/* 0 bytes are neither memory nor an error. */
mpk_status cuda_memory_alloc(mpk_context *cx, cuda_gpu *g, const char *what, uint64_t n,
                             cuda_address *out)
{
    cuda_address at = 0;
    int code = n ? g->d->cuMemAlloc(&at, n) : CUDA_SUCCESS;
    if (code != CUDA_SUCCESS) {
        size_t available = 0, total = 0;
        const double gib = 1 << 30;
        g->d->cuMemGetInfo(&available, &total); /* for the words only: zeros if that fails too */
        return cuda_driver_fail(cx, g->d, code, "cuMemAlloc",
                                "get %.3f GiB of %s's memory for %s (%.3f GiB are free)",
                                (double)n / gib, g->facts.name, what, (double)available / gib);
    }
    *out = at;
    return MPK_OK;
}

/* The driver waits here for all kernels of the GPU, whichever stream they are on: with a persistent
 * kernel that is for ever, so machines release only after cuda_end_kernels. */
void cuda_memory_release(cuda_gpu *g, cuda_address at)
{
    if (at)
        g->d->cuMemFree(at);
}

/* Portable, so that the memory counts as pinned for every GPU of the process, and mapped, so that
 * kernels reach it at *device.  The driver does not zero it: that is done here. */
mpk_status cuda_host_alloc(mpk_context *cx, cuda_gpu *g, uint64_t n, void **host,
                           cuda_address *device)
{
    void *at = NULL;
    cuda_address there = 0;
    CHECK(cx, n, MPK_EARG, "no bytes of pinned memory were asked for");
    CALL(cx, g->d, cuMemHostAlloc, (&at, n, HOST_PORTABLE | HOST_MAPPED),
         "pin %llu bytes of memory", U64(n));
    int code = g->d->cuMemHostGetDevicePointer(&there, at, 0);
    if (code != CUDA_SUCCESS) {
        g->d->cuMemFreeHost(at);
        return cuda_driver_fail(cx, g->d, code, "cuMemHostGetDevicePointer",
                                "map %llu bytes of memory to the GPU", U64(n));
    }
    memset(at, 0, n);
    *host = at;
    *device = there;
    return MPK_OK;
}

void cuda_host_release(cuda_gpu *g, void *host)
{
    if (host)
        g->d->cuMemFreeHost(host);
}

/* The owner unregisters the memory before freeing or unmapping it.  read_only: without it the
 * driver refuses pages that may not be written. */
mpk_status cuda_host_register(mpk_context *cx, cuda_gpu *g, void *host, uint64_t n, bool read_only)
{
    CALL(cx, g->d, cuMemHostRegister,
         (host, n, HOST_PORTABLE | (read_only ? REGISTER_READ_ONLY : 0u)),
         "pin %llu bytes of memory", U64(n));
    return MPK_OK;
}

mpk_status cuda_host_map(mpk_context *cx, cuda_gpu *g, void *host, uint64_t n, cuda_address *device)
{
    cuda_address there = 0;
    CALL(cx, g->d, cuMemHostRegister, (host, n, HOST_PORTABLE | HOST_MAPPED),
         "pin %llu bytes of memory", U64(n));
    int code = g->d->cuMemHostGetDevicePointer(&there, host, 0);
    if (code != CUDA_SUCCESS) {
        g->d->cuMemHostUnregister(host);
        return cuda_driver_fail(cx, g->d, code, "cuMemHostGetDevicePointer",
                                "map %llu bytes of memory to the GPU", U64(n));
    }
    *device = there;
    return MPK_OK;
}

void cuda_host_unregister(cuda_gpu *g, void *host)
{
    g->d->cuMemHostUnregister(host);
}

/* Copies of 0 bytes do not call the driver, so that callers need no case for areas without
 * memory (address 0).
 *
 * The two without a stream go through the default stream.  They do not wait for kernels of a
 * machine, whose streams are made so that the default one passes them (cuda_stream_create). */
mpk_status cuda_upload(mpk_context *cx, cuda_gpu *g, cuda_address to, const void *from, uint64_t n)
{
    if (n)
        CALL(cx, g->d, cuMemcpyHtoD, (to, from, n), "copy %llu bytes to the GPU", U64(n));
    return MPK_OK;
}

mpk_status cuda_download(mpk_context *cx, cuda_gpu *g, void *to, cuda_address from, uint64_t n)
{
    if (n)
        CALL(cx, g->d, cuMemcpyDtoH, (to, from, n), "copy %llu bytes from the GPU", U64(n));
    return MPK_OK;
}

/* From memory that is not pinned the driver takes the bytes before it returns (calls.c relies on
 * that); pinned memory must stay as it is until the stream has come so far. */
mpk_status cuda_upload_on(mpk_context *cx, cuda_gpu *g, cuda_stream s, cuda_address to,
                          const void *from, uint64_t n)
{
    if (n)
        CALL(cx, g->d, cuMemcpyHtoDAsync, (to, from, n, s), "copy %llu bytes to the GPU", U64(n));
    return MPK_OK;
}

mpk_status cuda_download_on(mpk_context *cx, cuda_gpu *g, cuda_stream s, void *to,
                            cuda_address from, uint64_t n)
{
    if (n)
        CALL(cx, g->d, cuMemcpyDtoHAsync, (to, from, n, s), "copy %llu bytes from the GPU", U64(n));
    return MPK_OK;
}

mpk_status cuda_copy_on(mpk_context *cx, cuda_gpu *g, cuda_stream s, cuda_address to,
                        cuda_address from, uint64_t n)
{
    if (n)
        CALL(cx, g->d, cuMemcpyDtoDAsync, (to, from, n, s), "copy %llu bytes on the GPU", U64(n));
    return MPK_OK;
}

/* A kernel of the driver: it needs an SM, and none is free while a persistent kernel runs. */
mpk_status cuda_fill_on(mpk_context *cx, cuda_gpu *g, cuda_stream s, cuda_address to, uint8_t value,
                        uint64_t n)
{
    if (n)
        CALL(cx, g->d, cuMemsetD8Async, (to, value, n, s), "fill %llu bytes on the GPU", U64(n));
    return MPK_OK;
}

/* ---- streams and events ---- */

/* Non-blocking: a blocking stream and the default one wait for each other, so that a persistent
 * kernel would stop all that the caller (PyTorch) does on the default stream. */
mpk_status cuda_stream_create(mpk_context *cx, cuda_gpu *g, cuda_stream *out)
{
    CALL(cx, g->d, cuStreamCreate, (out, STREAM_NON_BLOCKING), "make a stream");
    return MPK_OK;
}

void cuda_stream_release(cuda_gpu *g, cuda_stream s)
{
    if (s)
        g->d->cuStreamDestroy(s);
}

/* The first to hear of a kernel that failed is often a thread that waits here. */
mpk_status cuda_stream_wait(mpk_context *cx, cuda_gpu *g, cuda_stream s)
{
    CALL(cx, g->d, cuStreamSynchronize, (s), "wait for what runs on the GPU");
    return MPK_OK;
}

/* A kernel that died makes this fail with its own error, and every later call too. */
mpk_status cuda_stream_poll(mpk_context *cx, cuda_gpu *g, cuda_stream s, bool *done)
{
    int code = g->d->cuStreamQuery(s);
    if (code != CUDA_SUCCESS && code != CUDA_NOT_READY)
        return cuda_driver_fail(cx, g->d, code, "cuStreamQuery", "look at what runs on the GPU");
    *done = code == CUDA_SUCCESS;
    return MPK_OK;
}

/* States are none, active and invalidated; the last is a capture, too, whose owner has to end
 * it. */
mpk_status cuda_stream_is_captured(mpk_context *cx, cuda_gpu *g, cuda_stream s, bool *yes)
{
    int state = 0;
    CALL(cx, g->d, cuStreamIsCapturing, (s, &state), "ask whether a stream is being captured");
    *yes = state != 0;
    return MPK_OK;
}

/* The order is made on the GPU: the thread does not wait.  An event that was never recorded counts
 * as one that has come. */
mpk_status cuda_stream_after(mpk_context *cx, cuda_gpu *g, cuda_stream s, cuda_event e)
{
    CALL(cx, g->d, cuStreamWaitEvent, (s, e, 0), "let a stream wait for an event");
    return MPK_OK;
}

/* An event without time is cheaper to record; cuda_event_elapsed refuses it. */
mpk_status cuda_event_create(mpk_context *cx, cuda_gpu *g, bool timed, cuda_event *out)
{
    CALL(cx, g->d, cuEventCreate, (out, timed ? 0 : EVENT_UNTIMED), "make an event");
    return MPK_OK;
}

void cuda_event_release(cuda_gpu *g, cuda_event e)
{
    if (e)
        g->d->cuEventDestroy(e);
}

/* The event comes when all that is on s by now has ended; recorded again, it means the later
 * place. */
mpk_status cuda_event_record(mpk_context *cx, cuda_gpu *g, cuda_event e, cuda_stream s)
{
    CALL(cx, g->d, cuEventRecord, (e, s), "record an event");
    return MPK_OK;
}

/* For an event that was never recorded nothing is waited for. */
mpk_status cuda_event_wait(mpk_context *cx, cuda_gpu *g, cuda_event e)
{
    CALL(cx, g->d, cuEventSynchronize, (e), "wait for an event on the GPU");
    return MPK_OK;
}

/* Not a wait: two events that have not both come are an error of the driver. */
mpk_status cuda_event_elapsed(mpk_context *cx, cuda_gpu *g, cuda_event from, cuda_event to,
                              float *ms)
{
    CALL(cx, g->d, cuEventElapsedTime, (ms, from, to), "take the time between two events");
    return MPK_OK;
}
