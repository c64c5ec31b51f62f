/* fake_cuda.c - entry points of the stand-in for libcuda: driver, links, memory, on host memory.
 *
 * The names and signatures are those that cuda/driver.c asks for; fake_cuda_streams.c has the rest
 * of them, fake_cuda_books.h what they share.
 */
#include "fake_cuda_books.h"

/* ---- the driver ---- */

ENTRY cuInit(unsigned flags);
ENTRY cuInit(unsigned flags)
{
    ENTER("cuInit");
    return flags ? INVALID : 0;
}

ENTRY cuDriverGetVersion(int *version);
ENTRY cuDriverGetVersion(int *version)
{
    ENTER("cuDriverGetVersion");
    *version = (int)fake_setting("version", 13000);
    return 0;
}

ENTRY cuGetErrorName(int code, const char **name);
ENTRY cuGetErrorName(int code, const char **name)
{
    *name = code == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == 999     ? "CUDA_ERROR_UNKNOWN"
                              : NULL;
    return *name ? 0 : INVALID;
}

ENTRY cuGetErrorString(int code, const char **words);
ENTRY cuGetErrorString(int code, const char **words)
{
    *words = code == NO_MEMORY ? "out of memory" : NULL;
    return *words ? 0 : INVALID;
}

ENTRY cuDeviceGetCount(int *n);
ENTRY cuDeviceGetCount(int *n)
{
    ENTER("cuDeviceGetCount");
    *n = (int)fake_setting("gpus", 1);
    return *n > MAX_DEVICES ? INVALID : 0;
}

/* ---- links ---- */

/* "island:2": GPUs 0 and 1 reach each other, 2 and 3, and so on. */
bool fake_has_link(int from, int to)
{
    int island = (int)fake_setting("island", MAX_DEVICES);
    return from != to && fake_setting("links", 1) && from / island == to / island;
}

ENTRY cuDeviceCanAccessPeer(int *can, int from, int to);
ENTRY cuDeviceCanAccessPeer(int *can, int from, int to)
{
    ENTER("cuDeviceCanAccessPeer");
    *can = fake_has_link(from, to);
    return 0;
}

ENTRY cuDeviceGetP2PAttribute(int *value, int id, int from, int to);
ENTRY cuDeviceGetP2PAttribute(int *value, int id, int from, int to)
{
    ENTER("cuDeviceGetP2PAttribute");
    *value = id == 1 ? 0 : (int)fake_setting("atomics", 1);
    return from == to || (id != 1 && id != 3) ? INVALID : 0;
}

ENTRY cuCtxEnablePeerAccess(gpu *to, unsigned flags);
ENTRY cuCtxEnablePeerAccess(gpu *to, unsigned flags)
{
    ENTER_CURRENT("cuCtxEnablePeerAccess");
    bool *reaches = &fake_current->reaches[to - fake.devices];
    if (flags || to == fake_current || !fake_setting("links", 1))
        return NO_PEER;
    if (*reaches)
        return PEER_ALREADY;
    *reaches = true;
    fake_count(ACCESS, 1);
    return 0;
}

ENTRY cuCtxDisablePeerAccess(gpu *to);
ENTRY cuCtxDisablePeerAccess(gpu *to)
{
    int code = fake_enter("cuCtxDisablePeerAccess");
    bool *reaches = &fake_current->reaches[to - fake.devices];
    if (!*reaches)
        return INVALID;
    *reaches = false;
    fake_count(ACCESS, -1);
    return code;
}

ENTRY cuDeviceGet(int *device, int index);
ENTRY cuDeviceGet(int *device, int index)
{
    ENTER("cuDeviceGet");
    *device = index;
    return 0;
}

ENTRY cuDeviceGetName(char *name, int n, int device);
ENTRY cuDeviceGetName(char *name, int n, int device)
{
    ENTER("cuDeviceGetName");
    snprintf(name, (size_t)n, "Fake GPU %d", device);
    return 0;
}

ENTRY cuDeviceGetPCIBusId(char *name, int n, int device);
ENTRY cuDeviceGetPCIBusId(char *name, int n, int device)
{
    ENTER("cuDeviceGetPCIBusId");
    snprintf(name, (size_t)n, "0000:%02x:00.0",
             (unsigned)device + 1 + (unsigned)fake_setting("bus", 0));
    return 0;
}

ENTRY cuDeviceTotalMem_v2(size_t *n, int device);
ENTRY cuDeviceTotalMem_v2(size_t *n, int device)
{
    ENTER("cuDeviceTotalMem");
    *n = fake_setting("memory", 1 << 30) + (device ? fake_setting("more", 0) : 0);
    return 0;
}

ENTRY cuDeviceGetAttribute(int *value, int id, int device);
ENTRY cuDeviceGetAttribute(int *value, int id, int device)
{
    (void)device;
    ENTER("cuDeviceGetAttribute");
    uint64_t capability = fake_setting("capability", 90), shared = fake_setting("shared", 232448);
    switch (id) {
    case 75:
        *value = (int)(capability / 10);
        return 0;
    case 76:
        *value = (int)(capability % 10);
        return 0;
    case 16:
        *value = (int)fake_setting("sms", 8);
        return 0;
    case 97:
        *value = (int)shared;
        return 0;
    case 81:
        *value = (int)shared + 1024;
        return 0;
    case 82:
        *value = 65536;
        return 0;
    case 39:
        *value = 2048;
        return 0;
    case 38:
        *value = 50 << 20;
        return 0;
    case 13:
        *value = 1980000;
        return 0;
    case 36:
        *value = (int)fake_setting("memory_khz", 2619000);
        return 0;
    case 37:
        *value = (int)fake_setting("bus_bits", 5120);
        return 0;
    case 19:
    case 95:
        *value = 1;
        return 0;
    default:
        return INVALID;
    }
}

ENTRY cuDevicePrimaryCtxRetain(gpu **context, int index);
ENTRY cuDevicePrimaryCtxRetain(gpu **context, int index)
{
    ENTER("cuDevicePrimaryCtxRetain");
    fake_count(CONTEXT, 1);
    __atomic_add_fetch(&fake.devices[index].retained, 1, __ATOMIC_ACQ_REL);
    *context = &fake.devices[index];
    return 0;
}

ENTRY cuDevicePrimaryCtxRelease_v2(int device);
ENTRY cuDevicePrimaryCtxRelease_v2(int device)
{
    fake_count(CONTEXT, -1);
    __atomic_sub_fetch(&fake.devices[device].retained, 1, __ATOMIC_ACQ_REL);
    return fake_enter("cuDevicePrimaryCtxRelease");
}

ENTRY cuCtxSetCurrent(gpu *context);
ENTRY cuCtxSetCurrent(gpu *context)
{
    ENTER("cuCtxSetCurrent");
    fake_current = context;
    return 0;
}

ENTRY cuCtxGetCurrent(gpu **context);
ENTRY cuCtxGetCurrent(gpu **context)
{
    ENTER("cuCtxGetCurrent");
    *context = fake_current;
    return 0;
}

ENTRY cuCtxSynchronize(void);
ENTRY cuCtxSynchronize(void)
{
    ENTER_CURRENT("cuCtxSynchronize");
    return 0;
}

/* ---- memory ---- */

ENTRY cuMemGetInfo_v2(size_t *available, size_t *total);
ENTRY cuMemGetInfo_v2(size_t *available, size_t *total)
{
    ENTER_CURRENT("cuMemGetInfo");
    *total = fake_setting("memory", 1 << 30);
    *available = *total - fake_used_bytes();
    return 0;
}

ENTRY cuMemAlloc_v2(uint64_t *at, size_t n);
ENTRY cuMemAlloc_v2(uint64_t *at, size_t n)
{
    ENTER_CURRENT("cuMemAlloc");
    if (!n)
        return INVALID;
    if (n > fake_setting("memory", 1 << 30) - fake_used_bytes())
        return NO_MEMORY;
    void *p = aligned_alloc(256, (n + 255) / 256 * 256);
    if (!p)
        return NO_MEMORY;
    memset(p, 0xa5, n);
    *at = (uintptr_t)p;
    fake_add_range(MEMORY, *at, n);
    return 0;
}

ENTRY cuMemFree_v2(uint64_t at);
ENTRY cuMemFree_v2(uint64_t at)
{
    int code = fake_enter("cuMemFree");
    if (fake_usable())
        return fake_usable();
    if (!fake_remove_range(MEMORY, at))
        return INVALID;
    free((void *)(uintptr_t)at);
    return code;
}

ENTRY cuMemHostAlloc(void **at, size_t n, unsigned flags);
ENTRY cuMemHostAlloc(void **at, size_t n, unsigned flags)
{
    ENTER_CURRENT("cuMemHostAlloc");
    if (flags & ~7u)
        return INVALID;
    *at = malloc(n);
    if (!*at)
        return NO_MEMORY;
    fake_add_range(PINNED, (uintptr_t)*at, n);
    return 0;
}

ENTRY cuMemHostGetDevicePointer_v2(uint64_t *device, void *host, unsigned flags);
ENTRY cuMemHostGetDevicePointer_v2(uint64_t *device, void *host, unsigned flags)
{
    ENTER_CURRENT("cuMemHostGetDevicePointer");
    *device = (uintptr_t)host;
    return flags || !fake_is_known(*device, 1) ? INVALID : 0;
}

ENTRY cuMemFreeHost(void *at);
ENTRY cuMemFreeHost(void *at)
{
    int code = fake_enter("cuMemFreeHost");
    if (fake_usable())
        return fake_usable();
    if (!fake_remove_range(PINNED, (uintptr_t)at))
        return INVALID;
    free(at);
    return code;
}

ENTRY cuMemHostRegister_v2(void *at, size_t n, unsigned flags);
ENTRY cuMemHostRegister_v2(void *at, size_t n, unsigned flags)
{
    ENTER_CURRENT("cuMemHostRegister");
    if (!n || flags & ~15u)
        return INVALID;
    fake_add_range(flags & 2 ? PINNED : REGISTERED, (uintptr_t)at, n);
    return 0;
}

ENTRY cuMemHostUnregister(void *at);
ENTRY cuMemHostUnregister(void *at)
{
    int code = fake_enter("cuMemHostUnregister");
    return fake_remove_range(REGISTERED, (uintptr_t)at) || fake_remove_range(PINNED, (uintptr_t)at)
               ? code
               : INVALID;
}

enum { WORDS_AT_ONCE = 32 }; /* copies of so many 4-byte words are atomic word by word */

int fake_copy(uint64_t to, bool check_to, uint64_t from, bool check_from, size_t n)
{
    if ((check_to && !fake_is_known(to, n)) || (check_from && !fake_is_known(from, n)))
        return BAD_ADDRESS;
    /* whole words, and after the copies before it: a kernel may poll or write what is copied */
    if (n <= WORDS_AT_ONCE * sizeof(uint32_t) && (n | to | from) % sizeof(uint32_t) == 0) {
        for (size_t i = 0; i < n; i += sizeof(uint32_t))
            __atomic_store_n(
                (uint32_t *)(uintptr_t)(to + i),
                __atomic_load_n((const uint32_t *)(uintptr_t)(from + i), __ATOMIC_RELAXED),
                __ATOMIC_RELEASE);
        return 0;
    }
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, n);
    return 0;
}

void fake_record(graph *g, const node *n)
{
    g->nodes = realloc(g->nodes, (g->n + 1) * sizeof *n);
    g->nodes[g->n] = *n;
    g->nodes[g->n++].launch.from_graph = 1;
}

ENTRY cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n);
ENTRY cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n)
{
    ENTER_CURRENT("cuMemcpyHtoD");
    return fake_copy(to, true, (uintptr_t)from, false, n);
}

ENTRY cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n);
ENTRY cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n)
{
    ENTER_CURRENT("cuMemcpyDtoH");
    return fake_copy((uintptr_t)to, false, from, true, n);
}

ENTRY cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, stream *s);
ENTRY cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, stream *s)
{
    (void)s;
    ENTER_CURRENT("cuMemcpyHtoDAsync");
    return fake_copy(to, true, (uintptr_t)from, false, n);
}

ENTRY cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, stream *s);
ENTRY cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, stream *s)
{
    ENTER_CURRENT("cuMemcpyDtoHAsync");
    if (!s || !s->recording)
        return fake_copy((uintptr_t)to, false, from, true, n);
    fake_record(s->recording, &(node){.to = (uintptr_t)to, .from = from, .n_bytes = n});
    return 0;
}

ENTRY cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, stream *s);
ENTRY cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, stream *s)
{
    (void)s;
    ENTER_CURRENT("cuMemcpyDtoDAsync");
    return fake_copy(to, true, from, true, n);
}

ENTRY cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, stream *s);
ENTRY cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, stream *s)
{
    (void)s;
    ENTER_CURRENT("cuMemsetD8Async");
    fake_await_kernels(); /* it needs an SM */
    if (!fake_is_known(to, n))
        return BAD_ADDRESS;
    memset((void *)(uintptr_t)to, value, n);
    return 0;
}

/* A map holds here what it is of: the address, sizes of the matrix and of the box; no kernel of the
 * stand-in copies by it. */
/* Notes address, sizes, corners, and what a box is. */
ENTRY cuTensorMapEncodeIm2col(void *map, int dtype, unsigned rank, uint64_t at,
                              const uint64_t *dims, const uint64_t *strides, const int *first,
                              const int *last, uint32_t channels, uint32_t places,
                              const uint32_t *steps, int interleave, int swizzle, int promotion,
                              int fill);
ENTRY cuTensorMapEncodeIm2col(void *map, int dtype, unsigned rank, uint64_t at,
                              const uint64_t *dims, const uint64_t *strides, const int *first,
                              const int *last, uint32_t channels, uint32_t places,
                              const uint32_t *steps, int interleave, int swizzle, int promotion,
                              int fill)
{
    (void)dtype, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    ENTER("cuTensorMapEncodeIm2col");
    bool wrong = rank != 4 || at % 16 || steps[0] != 1 || steps[3] != 1 || channels > 64 ||
                 places > 1024 || strides[1] != strides[0] * dims[1] ||
                 strides[2] != strides[1] * dims[2];
    for (unsigned i = 0; i < 2 && !wrong; i++)
        wrong = steps[1 + i] > 8 || first[i] < -128 || first[i] > 127 || last[i] < -128 ||
                last[i] > 127 || strides[i] % 16;
    if (wrong)
        return INVALID;
    const uint64_t words[16] = {at,
                                dims[0],
                                dims[1],
                                dims[2],
                                dims[3],
                                channels,
                                places,
                                (uint64_t)(int64_t)first[0],
                                (uint64_t)(int64_t)first[1],
                                (uint64_t)(int64_t)last[0],
                                (uint64_t)(int64_t)last[1],
                                steps[1],
                                steps[2]};
    memcpy(map, words, sizeof words);
    return 0;
}

ENTRY cuTensorMapEncodeTiled(void *map, int dtype, unsigned rank, uint64_t at, const uint64_t *dims,
                             const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                             int interleave, int swizzle, int promotion, int fill);
ENTRY cuTensorMapEncodeTiled(void *map, int dtype, unsigned rank, uint64_t at, const uint64_t *dims,
                             const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                             int interleave, int swizzle, int promotion, int fill)
{
    (void)dtype, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    ENTER("cuTensorMapEncodeTiled");
    if (rank != 2 || at % 16 || strides[0] % 16 || steps[0] != 1 || steps[1] != 1 || box[0] > 256 ||
        box[1] > 256)
        return INVALID;
    const uint64_t words[16] = {at, dims[0], dims[1], box[0], box[1]};
    memcpy(map, words, sizeof words);
    return 0;
}
