/* fake_cuda.c - the stand-in for libcuda of fake_cuda.h: the entry points that cuda/driver.c asks for, on host memory.
 *
 * Every entry point begins with ENTER, which counts the call and fails it if MPK_FAKE_CUDA says so.  Handles are real
 * allocations, so that a sanitizer sees a use after release; what is alive is counted by kind.
 */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    INVALID = 1,
    NO_MEMORY = 2,
    NO_CONTEXT = 201,
    BAD_PTX = 218,
    NO_PEER = 217,
    NOT_FOUND = 500,
    BAD_ADDRESS = 700,
    PEER_ALREADY = 704,
    TOO_LARGE = 720
};

typedef enum kind {
    CONTEXT,
    MEMORY,
    PINNED,
    REGISTERED,
    STREAM,
    EVENT,
    MODULE,
    GRAPH,
    READY_GRAPH,
    ACCESS,
    N_KINDS
} kind;
static const char *const kind_names[N_KINDS] = {"context", "memory", "pinned", "registered",  "stream",
                                                "event",   "module", "graph",  "ready graph", "peer access"};

/* Ranges of memory that the driver knows. */
typedef struct range {
    struct range *next;
    kind kind;
    int device;
    uint64_t at, n;
} range;

typedef struct function {
    struct function *next;
    char name[128];
    int dynamic_shared;
} function;
typedef struct module {
    const char *ptx; /* a copy; NULL: machine code, which has every name but those that begin with "missing" */
    function *functions;
    char variables[256];
} module;
/* A launch, or a copy to the host. */
typedef struct node {
    fake_launch launch;
    uint64_t to, from;
    size_t n_bytes; /* 0: a launch */
} node;
typedef struct graph {
    node *nodes;
    size_t n;
} graph;
typedef struct stream {
    graph *recording; /* NULL: runs */
} stream;

enum { MAX_ENTRIES = 96, MAX_DEVICES = 16 };

/* A device is its own context; the thread's current one is `current`. */
typedef struct gpu {
    bool reaches[MAX_DEVICES];
    uint64_t used_bytes;
} gpu;

static struct {
    pthread_mutex_t lock;
    int live[N_KINDS];
    gpu devices[MAX_DEVICES];
    range *ranges;
    const char *entries[MAX_ENTRIES];
    unsigned calls[MAX_ENTRIES], n_launches;
    fake_launch last;
    fake_kernel *run;
    void *user;
    const void *variables; /* of the module loaded last */
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER};
static _Thread_local gpu *current;

/* The device of the thread; the first where none is current. */
static int here(void)
{
    return current ? (int)(current - fake.devices) : 0;
}

/* The number after `word:` in MPK_FAKE_CUDA, else `otherwise`. */
static uint64_t setting(const char *word, uint64_t otherwise)
{
    const char *words = getenv("MPK_FAKE_CUDA");
    size_t n = strlen(word);
    while (words && *words) {
        if (strncmp(words, word, n) == 0 && words[n] == ':')
            return strtoull(words + n + 1, NULL, 10);
        words = strchr(words, ',');
        words = words ? words + 1 : NULL;
    }
    return otherwise;
}

/* The error of call number `call` of an entry point, 0 if it is not to fail. */
static int injected(const char *entry, unsigned call)
{
    const char *words = getenv("MPK_FAKE_CUDA");
    while (words && *words) {
        char name[64];
        unsigned at = 0;
        int code = 999;
        if (sscanf(words, "fail:%63[^:]:%u:%d", name, &at, &code) >= 2 && at == call && strcmp(name, entry) == 0)
            return code;
        words = strchr(words, ',');
        words = words ? words + 1 : NULL;
    }
    return 0;
}

static int enter(const char *entry)
{
    pthread_mutex_lock(&fake.lock);
    int i = 0;
    while (i < MAX_ENTRIES - 1 && fake.entries[i] && strcmp(fake.entries[i], entry) != 0)
        i++;
    fake.entries[i] = entry;
    unsigned call = ++fake.calls[i];
    pthread_mutex_unlock(&fake.lock);
    return injected(entry, call);
}

#define ENTER(entry)              \
    do {                          \
        int code_ = enter(entry); \
        if (code_)                \
            return code_;         \
    } while (0)
#define ENTER_CURRENT(entry)   \
    do {                       \
        ENTER(entry);          \
        if (!current)          \
            return NO_CONTEXT; \
    } while (0)

static void count(kind k, int change)
{
    pthread_mutex_lock(&fake.lock);
    fake.live[k] += change;
    pthread_mutex_unlock(&fake.lock);
}

static void *new_handle(kind k, size_t bytes)
{
    count(k, 1);
    return calloc(1, bytes);
}

static int end_handle(kind k, void *handle)
{
    if (!handle)
        return INVALID;
    count(k, -1);
    free(handle);
    return 0;
}

static void add_range(kind k, uint64_t at, uint64_t n)
{
    range *r = calloc(1, sizeof *r);
    *r = (range){NULL, k, here(), at, n};
    pthread_mutex_lock(&fake.lock);
    r->next = fake.ranges;
    fake.ranges = r;
    fake.live[k]++;
    fake.devices[r->device].used_bytes += k == MEMORY ? n : 0;
    pthread_mutex_unlock(&fake.lock);
}

/* True if there was one that begins there. */
static bool remove_range(kind k, uint64_t at)
{
    range *found = NULL;
    pthread_mutex_lock(&fake.lock);
    for (range **r = &fake.ranges; *r; r = &(*r)->next)
        if ((*r)->kind == k && (*r)->at == at) {
            found = *r;
            *r = found->next;
            fake.live[k]--;
            fake.devices[found->device].used_bytes -= k == MEMORY ? found->n : 0;
            break;
        }
    pthread_mutex_unlock(&fake.lock);
    bool is_there = found != NULL;
    free(found);
    return is_there;
}

static uint64_t used_bytes(void)
{
    pthread_mutex_lock(&fake.lock);
    uint64_t n = fake.devices[here()].used_bytes;
    pthread_mutex_unlock(&fake.lock);
    return n;
}

/* All of [at, at + n) is memory of the GPU or pinned. */
static bool is_known(uint64_t at, uint64_t n)
{
    bool known = false;
    pthread_mutex_lock(&fake.lock);
    for (const range *r = fake.ranges; r && !known; r = r->next)
        known = r->kind != REGISTERED && at >= r->at && at - r->at <= r->n && n <= r->n - (at - r->at);
    pthread_mutex_unlock(&fake.lock);
    return known;
}

/* May a kernel of this device touch all of [at, at + n)?  Pinned memory, its own, that of devices that it reaches. */
static int may_touch(int device, uint64_t at, uint64_t n)
{
    int known = 0;
    pthread_mutex_lock(&fake.lock);
    for (const range *r = fake.ranges; r && !known; r = r->next)
        known = r->kind != REGISTERED && at >= r->at && at - r->at <= r->n && n <= r->n - (at - r->at) &&
                (r->kind == PINNED || r->device == device || fake.devices[device].reaches[r->device]);
    pthread_mutex_unlock(&fake.lock);
    return known;
}

static int device_of(uint64_t at)
{
    int device = -1;
    pthread_mutex_lock(&fake.lock);
    for (const range *r = fake.ranges; r && device < 0; r = r->next)
        if (r->kind == MEMORY && at >= r->at && at - r->at < r->n)
            device = r->device;
    pthread_mutex_unlock(&fake.lock);
    return device;
}

/* ---- what tests ask ---- */

static void reset(void)
{
    pthread_mutex_lock(&fake.lock);
    memset(fake.calls, 0, sizeof fake.calls);
    fake.n_launches = 0;
    fake.last = (fake_launch){0};
    fake.run = NULL;
    pthread_mutex_unlock(&fake.lock);
}

static void leaks(char *words, size_t n)
{
    size_t at = 0;
    words[0] = 0;
    for (int k = 0; k < N_KINDS && at < n; k++)
        if (fake.live[k])
            at += (size_t)snprintf(words + at, n - at, "%s%d %s", at ? ", " : "", fake.live[k], kind_names[k]);
}

static unsigned launches(void)
{
    return fake.n_launches;
}

static void last(fake_launch *out)
{
    *out = fake.last;
}

static void set_kernel(fake_kernel *run, void *user)
{
    pthread_mutex_lock(&fake.lock);
    fake.run = run;
    fake.user = user;
    pthread_mutex_unlock(&fake.lock);
}

static const char *entry_name(unsigned i)
{
    return i < MAX_ENTRIES ? fake.entries[i] : NULL;
}

static unsigned calls(const char *entry)
{
    for (int i = 0; i < MAX_ENTRIES && fake.entries[i]; i++)
        if (strcmp(fake.entries[i], entry) == 0)
            return fake.calls[i];
    return 0;
}

static const void *variables(void)
{
    return fake.variables;
}

EXPORT extern const fake_cuda_face fake_cuda;
const fake_cuda_face fake_cuda = {reset,      leaks, launches,  last,      set_kernel,
                                  entry_name, calls, variables, may_touch, device_of};

/* ---- the driver ---- */

#define ENTRY EXPORT int
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
    *version = (int)setting("version", 13000);
    return 0;
}

ENTRY cuGetErrorName(int code, const char **name);
ENTRY cuGetErrorName(int code, const char **name)
{
    *name = code == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 999 ? "CUDA_ERROR_UNKNOWN" : NULL;
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
    *n = (int)setting("gpus", 1);
    return *n > MAX_DEVICES ? INVALID : 0;
}

/* ---- links ---- */

ENTRY cuDeviceCanAccessPeer(int *can, int from, int to);
ENTRY cuDeviceCanAccessPeer(int *can, int from, int to)
{
    ENTER("cuDeviceCanAccessPeer");
    *can = from != to && setting("links", 1);
    return 0;
}

ENTRY cuDeviceGetP2PAttribute(int *value, int id, int from, int to);
ENTRY cuDeviceGetP2PAttribute(int *value, int id, int from, int to)
{
    ENTER("cuDeviceGetP2PAttribute");
    *value = id == 1 ? 0 : (int)setting("atomics", 1);
    return from == to || (id != 1 && id != 3) ? INVALID : 0;
}

ENTRY cuCtxEnablePeerAccess(gpu *to, unsigned flags);
ENTRY cuCtxEnablePeerAccess(gpu *to, unsigned flags)
{
    ENTER_CURRENT("cuCtxEnablePeerAccess");
    bool *reaches = &current->reaches[to - fake.devices];
    if (flags || to == current || !setting("links", 1))
        return NO_PEER;
    if (*reaches)
        return PEER_ALREADY;
    *reaches = true;
    count(ACCESS, 1);
    return 0;
}

ENTRY cuCtxDisablePeerAccess(gpu *to);
ENTRY cuCtxDisablePeerAccess(gpu *to)
{
    int code = enter("cuCtxDisablePeerAccess");
    bool *reaches = &current->reaches[to - fake.devices];
    if (!*reaches)
        return INVALID;
    *reaches = false;
    count(ACCESS, -1);
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
    snprintf(name, (size_t)n, "0000:%02x:00.0", (unsigned)device + 1);
    return 0;
}

ENTRY cuDeviceTotalMem_v2(size_t *n, int device);
ENTRY cuDeviceTotalMem_v2(size_t *n, int device)
{
    ENTER("cuDeviceTotalMem");
    *n = setting("memory", 1 << 30) + (device ? setting("more", 0) : 0);
    return 0;
}

ENTRY cuDeviceGetAttribute(int *value, int id, int device);
ENTRY cuDeviceGetAttribute(int *value, int id, int device)
{
    (void)device;
    ENTER("cuDeviceGetAttribute");
    uint64_t capability = setting("capability", 90), shared = setting("shared", 232448);
    switch (id) {
    case 75:
        *value = (int)(capability / 10);
        return 0;
    case 76:
        *value = (int)(capability % 10);
        return 0;
    case 16:
        *value = (int)setting("sms", 8);
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
        *value = (int)setting("memory_khz", 2619000);
        return 0;
    case 37:
        *value = (int)setting("bus_bits", 5120);
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
    count(CONTEXT, 1);
    *context = &fake.devices[index];
    return 0;
}

ENTRY cuDevicePrimaryCtxRelease_v2(int device);
ENTRY cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    count(CONTEXT, -1);
    return enter("cuDevicePrimaryCtxRelease");
}

ENTRY cuCtxSetCurrent(gpu *context);
ENTRY cuCtxSetCurrent(gpu *context)
{
    ENTER("cuCtxSetCurrent");
    current = context;
    return 0;
}

ENTRY cuCtxGetCurrent(gpu **context);
ENTRY cuCtxGetCurrent(gpu **context)
{
    ENTER("cuCtxGetCurrent");
    *context = current;
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
    *total = setting("memory", 1 << 30);
    *available = *total - used_bytes();
    return 0;
}

ENTRY cuMemAlloc_v2(uint64_t *at, size_t n);
ENTRY cuMemAlloc_v2(uint64_t *at, size_t n)
{
    ENTER_CURRENT("cuMemAlloc");
    if (!n)
        return INVALID;
    if (n > setting("memory", 1 << 30) - used_bytes())
        return NO_MEMORY;
    void *p = aligned_alloc(256, (n + 255) / 256 * 256);
    if (!p)
        return NO_MEMORY;
    memset(p, 0xa5, n);
    *at = (uintptr_t)p;
    add_range(MEMORY, *at, n);
    return 0;
}

ENTRY cuMemFree_v2(uint64_t at);
ENTRY cuMemFree_v2(uint64_t at)
{
    int code = enter("cuMemFree");
    if (!remove_range(MEMORY, at))
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
    add_range(PINNED, (uintptr_t)*at, n);
    return 0;
}

ENTRY cuMemHostGetDevicePointer_v2(uint64_t *device, void *host, unsigned flags);
ENTRY cuMemHostGetDevicePointer_v2(uint64_t *device, void *host, unsigned flags)
{
    ENTER_CURRENT("cuMemHostGetDevicePointer");
    *device = (uintptr_t)host;
    return flags || !is_known(*device, 1) ? INVALID : 0;
}

ENTRY cuMemFreeHost(void *at);
ENTRY cuMemFreeHost(void *at)
{
    int code = enter("cuMemFreeHost");
    if (!remove_range(PINNED, (uintptr_t)at))
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
    add_range(REGISTERED, (uintptr_t)at, n);
    return 0;
}

ENTRY cuMemHostUnregister(void *at);
ENTRY cuMemHostUnregister(void *at)
{
    int code = enter("cuMemHostUnregister");
    return remove_range(REGISTERED, (uintptr_t)at) ? code : INVALID;
}

static int copy(uint64_t to, bool check_to, uint64_t from, bool check_from, size_t n)
{
    if ((check_to && !is_known(to, n)) || (check_from && !is_known(from, n)))
        return BAD_ADDRESS;
    if (n == sizeof(uint32_t) && to % n == 0) { /* at once, and after the copies before it: a kernel may poll it */
        uint32_t word;
        memcpy(&word, (const void *)(uintptr_t)from, n);
        __atomic_store_n((uint32_t *)(uintptr_t)to, word, __ATOMIC_RELEASE);
        return 0;
    }
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, n);
    return 0;
}

static void record(graph *g, const node *n)
{
    g->nodes = realloc(g->nodes, (g->n + 1) * sizeof *n);
    g->nodes[g->n] = *n;
    g->nodes[g->n++].launch.from_graph = 1;
}

ENTRY cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n);
ENTRY cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n)
{
    ENTER_CURRENT("cuMemcpyHtoD");
    return copy(to, true, (uintptr_t)from, false, n);
}

ENTRY cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n);
ENTRY cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n)
{
    ENTER_CURRENT("cuMemcpyDtoH");
    return copy((uintptr_t)to, false, from, true, n);
}

ENTRY cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, stream *s);
ENTRY cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, stream *s)
{
    (void)s;
    ENTER_CURRENT("cuMemcpyHtoDAsync");
    return copy(to, true, (uintptr_t)from, false, n);
}

ENTRY cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, stream *s);
ENTRY cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, stream *s)
{
    ENTER_CURRENT("cuMemcpyDtoHAsync");
    if (!s || !s->recording)
        return copy((uintptr_t)to, false, from, true, n);
    record(s->recording, &(node){.to = (uintptr_t)to, .from = from, .n_bytes = n});
    return 0;
}

ENTRY cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, stream *s);
ENTRY cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, stream *s)
{
    (void)s;
    ENTER_CURRENT("cuMemcpyDtoDAsync");
    return copy(to, true, from, true, n);
}

ENTRY cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, stream *s);
ENTRY cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, stream *s)
{
    (void)s;
    ENTER_CURRENT("cuMemsetD8Async");
    if (!is_known(to, n))
        return BAD_ADDRESS;
    memset((void *)(uintptr_t)to, value, n);
    return 0;
}

/* ---- streams, events ---- */

ENTRY cuStreamCreate(stream **out, unsigned flags);
ENTRY cuStreamCreate(stream **out, unsigned flags)
{
    (void)flags;
    ENTER_CURRENT("cuStreamCreate");
    *out = new_handle(STREAM, sizeof **out);
    return 0;
}

ENTRY cuStreamDestroy_v2(stream *s);
ENTRY cuStreamDestroy_v2(stream *s)
{
    int code = enter("cuStreamDestroy");
    return end_handle(STREAM, s) ? INVALID : code;
}

ENTRY cuStreamSynchronize(stream *s);
ENTRY cuStreamSynchronize(stream *s)
{
    (void)s;
    ENTER_CURRENT("cuStreamSynchronize");
    return 0;
}

ENTRY cuStreamQuery(stream *s);
ENTRY cuStreamQuery(stream *s)
{
    (void)s;
    ENTER_CURRENT("cuStreamQuery");
    return 0;
}

ENTRY cuStreamWaitEvent(stream *s, uint64_t *event, unsigned flags);
ENTRY cuStreamWaitEvent(stream *s, uint64_t *event, unsigned flags)
{
    (void)s;
    ENTER_CURRENT("cuStreamWaitEvent");
    return event && !flags ? 0 : INVALID;
}

ENTRY cuEventCreate(uint64_t **event, unsigned flags);
ENTRY cuEventCreate(uint64_t **event, unsigned flags)
{
    (void)flags;
    ENTER_CURRENT("cuEventCreate");
    *event = new_handle(EVENT, sizeof **event);
    return 0;
}

ENTRY cuEventDestroy_v2(uint64_t *event);
ENTRY cuEventDestroy_v2(uint64_t *event)
{
    int code = enter("cuEventDestroy");
    return end_handle(EVENT, event) ? INVALID : code;
}

ENTRY cuEventRecord(uint64_t *event, stream *s);
ENTRY cuEventRecord(uint64_t *event, stream *s)
{
    (void)s;
    static uint64_t now;
    ENTER_CURRENT("cuEventRecord");
    pthread_mutex_lock(&fake.lock);
    *event = ++now;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

ENTRY cuEventSynchronize(uint64_t *event);
ENTRY cuEventSynchronize(uint64_t *event)
{
    ENTER_CURRENT("cuEventSynchronize");
    return event ? 0 : INVALID;
}

ENTRY cuEventElapsedTime(float *ms, uint64_t *from, uint64_t *to);
ENTRY cuEventElapsedTime(float *ms, uint64_t *from, uint64_t *to)
{
    ENTER_CURRENT("cuEventElapsedTime");
    *ms = (float)(*to - *from);
    return *from && *to ? 0 : INVALID;
}

/* ---- code ---- */

ENTRY cuModuleLoadDataEx(module **out, const char *code, unsigned n, int *options, void **values);
ENTRY cuModuleLoadDataEx(module **out, const char *code, unsigned n, int *options, void **values)
{
    ENTER_CURRENT("cuModuleLoadDataEx");
    bool machine_code = memcmp(code, "\177ELF", 4) == 0;
    if (!machine_code && strstr(code, "bad")) {
        for (unsigned i = 0; i < n; i++)
            if (options[i] == 5)
                strcpy(values[i], "line 7: syntax error near 'bad'");
        return BAD_PTX;
    }
    module *m = new_handle(MODULE, sizeof *m);
    m->ptx = machine_code ? NULL : strdup(code);
    add_range(MEMORY, (uintptr_t)m->variables, sizeof m->variables);
    fake.variables = m->variables;
    *out = m;
    return 0;
}

ENTRY cuModuleUnload(module *m);
ENTRY cuModuleUnload(module *m)
{
    int code = enter("cuModuleUnload");
    while (m && m->functions) {
        function *f = m->functions;
        m->functions = f->next;
        free(f);
    }
    if (m) {
        remove_range(MEMORY, (uintptr_t)m->variables);
        free((void *)(uintptr_t)m->ptx);
    }
    return end_handle(MODULE, m) ? INVALID : code;
}

static bool has_name(const module *m, const char *name)
{
    return m->ptx ? strstr(m->ptx, name) != NULL : strncmp(name, "missing", 7) != 0;
}

ENTRY cuModuleGetFunction(function **out, module *m, const char *name);
ENTRY cuModuleGetFunction(function **out, module *m, const char *name)
{
    ENTER_CURRENT("cuModuleGetFunction");
    if (!has_name(m, name))
        return NOT_FOUND;
    function *f = calloc(1, sizeof *f);
    snprintf(f->name, sizeof f->name, "%s", name);
    f->next = m->functions;
    *out = m->functions = f;
    return 0;
}

ENTRY cuModuleGetGlobal_v2(uint64_t *at, size_t *n, module *m, const char *name);
ENTRY cuModuleGetGlobal_v2(uint64_t *at, size_t *n, module *m, const char *name)
{
    ENTER_CURRENT("cuModuleGetGlobal");
    *at = (uintptr_t)m->variables;
    *n = sizeof m->variables;
    return has_name(m, name) ? 0 : NOT_FOUND;
}

ENTRY cuFuncGetAttribute(int *value, int id, function *f);
ENTRY cuFuncGetAttribute(int *value, int id, function *f)
{
    static const int values[] = {1024, 512, 0, 0, 168, 90, 90, 0};
    ENTER_CURRENT("cuFuncGetAttribute");
    if (id < 0 || id > 8)
        return INVALID;
    *value = id == 8 ? f->dynamic_shared : values[id];
    return 0;
}

ENTRY cuFuncSetAttribute(function *f, int id, int value);
ENTRY cuFuncSetAttribute(function *f, int id, int value)
{
    ENTER_CURRENT("cuFuncSetAttribute");
    if (id != 8)
        return INVALID;
    f->dynamic_shared = value;
    return 0;
}

ENTRY cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, function *f, int n_threads, size_t shared);
ENTRY cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, function *f, int n_threads, size_t shared)
{
    ENTER_CURRENT("cuOccupancyMaxActiveBlocksPerMultiprocessor");
    *n = n_threads > 1024 || (int)shared > f->dynamic_shared ? 0 : (int)setting("blocks", 1);
    return 0;
}

/* The driver's layouts, as in cuda/driver.c. */
typedef struct attribute {
    int id, padding, on;
    char rest[60];
} attribute;
typedef struct config {
    unsigned grid[3], block[3], shared_bytes;
    stream *stream;
    attribute *attributes;
    unsigned n_attributes;
} config;

static void launch(const fake_launch *l)
{
    pthread_mutex_lock(&fake.lock);
    fake.n_launches++;
    fake.last = *l;
    fake_kernel *run = fake.run;
    void *user = fake.user;
    pthread_mutex_unlock(&fake.lock);
    if (run)
        run(user, l);
}

ENTRY cuLaunchKernelEx(const config *c, function *f, void **arguments, void **extra);
ENTRY cuLaunchKernelEx(const config *c, function *f, void **arguments, void **extra)
{
    ENTER_CURRENT("cuLaunchKernelEx");
    fake_launch l = {.function = f->name,
                     .n_blocks = c->grid[0],
                     .n_threads = c->block[0],
                     .shared_bytes = c->shared_bytes,
                     .device = here()};
    for (unsigned i = 0; i < c->n_attributes; i++) {
        l.cooperative |= c->attributes[i].id == 2 && c->attributes[i].on;
        l.early |= c->attributes[i].id == 6 && c->attributes[i].on;
    }
    if (extra || (int)c->shared_bytes > f->dynamic_shared + 49152 || c->block[0] > 1024 || !c->grid[0])
        return INVALID;
    if (l.cooperative && c->grid[0] > setting("blocks", 1) * setting("sms", 8))
        return TOO_LARGE;
    if (arguments && arguments[0])
        memcpy(&l.argument, arguments[0], sizeof l.argument);
    if (c->stream && c->stream->recording)
        record(c->stream->recording, &(node){.launch = l});
    else
        launch(&l);
    return 0;
}

/* ---- graphs ---- */

static void end_graph(kind k, graph *g)
{
    free(g->nodes);
    end_handle(k, g);
}

ENTRY cuStreamIsCapturing(const stream *s, int *state);
ENTRY cuStreamIsCapturing(const stream *s, int *state)
{
    ENTER_CURRENT("cuStreamIsCapturing");
    *state = s && s->recording;
    return 0;
}

ENTRY cuStreamBeginCapture_v2(stream *s, int mode);
ENTRY cuStreamBeginCapture_v2(stream *s, int mode)
{
    ENTER_CURRENT("cuStreamBeginCapture");
    if (!s || s->recording || mode != 1)
        return INVALID;
    s->recording = new_handle(GRAPH, sizeof *s->recording);
    return 0;
}

ENTRY cuStreamEndCapture(stream *s, graph **out);
ENTRY cuStreamEndCapture(stream *s, graph **out)
{
    int code = enter("cuStreamEndCapture");
    graph *g = s->recording;
    s->recording = NULL;
    if (!g)
        return INVALID;
    if (code)
        end_graph(GRAPH, g);
    else
        *out = g;
    return code;
}

ENTRY cuGraphInstantiateWithFlags(graph **out, const graph *recorded, unsigned long long flags);
ENTRY cuGraphInstantiateWithFlags(graph **out, const graph *recorded, unsigned long long flags)
{
    ENTER_CURRENT("cuGraphInstantiateWithFlags");
    if (flags)
        return INVALID;
    graph *g = new_handle(READY_GRAPH, sizeof *g);
    for (size_t i = 0; i < recorded->n; i++)
        record(g, &recorded->nodes[i]);
    *out = g;
    return 0;
}

ENTRY cuGraphDestroy(graph *g);
ENTRY cuGraphDestroy(graph *g)
{
    int code = enter("cuGraphDestroy");
    end_graph(GRAPH, g);
    return code;
}

ENTRY cuGraphLaunch(const graph *g, stream *s);
ENTRY cuGraphLaunch(const graph *g, stream *s)
{
    (void)s;
    ENTER_CURRENT("cuGraphLaunch");
    for (size_t i = 0; i < g->n; i++)
        if (g->nodes[i].n_bytes)
            copy(g->nodes[i].to, false, g->nodes[i].from, true, g->nodes[i].n_bytes);
        else
            launch(&g->nodes[i].launch);
    return 0;
}

ENTRY cuGraphExecDestroy(graph *g);
ENTRY cuGraphExecDestroy(graph *g)
{
    int code = enter("cuGraphExecDestroy");
    end_graph(READY_GRAPH, g);
    return code;
}
