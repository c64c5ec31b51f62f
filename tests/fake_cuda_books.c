/* fake_cuda_books.c - the books of the stand-in for libcuda, and what tests ask of them.
 *
 * Called by the entry points (fake_cuda.c, fake_cuda_streams.c) through fake_cuda_books.h, and by
 * tests through the table `fake_cuda` of fake_cuda.h.
 */
#include "fake_cuda_books.h"

#include <sys/mman.h>
#include <time.h>

static const char *const kind_names[N_KINDS] = {
    "context", "memory",      "pinned",      "registered", "stream",   "event", "module",
    "graph",   "ready graph", "peer access", "shared",     "reserved", "mapped"};

fake_books fake = {.lock = PTHREAD_MUTEX_INITIALIZER};
_Thread_local gpu *fake_current;

int fake_usable(void)
{
    if (!fake_current)
        return NO_CONTEXT;
    return __atomic_load_n(&fake_current->retained, __ATOMIC_ACQUIRE) ? 0 : CONTEXT_DESTROYED;
}

int fake_here(void)
{
    return fake_current ? (int)(fake_current - fake.devices) : 0;
}

bool fake_is_held(void)
{
    pthread_mutex_lock(&fake.lock);
    bool held = fake.held[fake_here()] > 0;
    pthread_mutex_unlock(&fake.lock);
    return held;
}

void fake_await_kernels(void)
{
    while (fake_is_held())
        nanosleep(&(struct timespec){0, 100000}, NULL);
}

uint64_t fake_setting(const char *word, uint64_t otherwise)
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
        if (sscanf(words, "fail:%63[^:]:%u:%d", name, &at, &code) >= 2 && at == call &&
            strcmp(name, entry) == 0)
            return code;
        words = strchr(words, ',');
        words = words ? words + 1 : NULL;
    }
    return 0;
}

int fake_enter(const char *entry)
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

void fake_count(kind k, int change)
{
    pthread_mutex_lock(&fake.lock);
    fake.live[k] += change;
    pthread_mutex_unlock(&fake.lock);
}

void *fake_new_handle(kind k, size_t bytes)
{
    fake_count(k, 1);
    return calloc(1, bytes);
}

int fake_end_handle(kind k, void *handle)
{
    if (!handle)
        return INVALID;
    fake_count(k, -1);
    free(handle);
    return 0;
}

void fake_add_range(kind k, uint64_t at, uint64_t n)
{
    range *r = calloc(1, sizeof *r);
    *r = (range){.kind = k, .device = fake_here(), .at = at, .n = n};
    pthread_mutex_lock(&fake.lock);
    r->next = fake.ranges;
    fake.ranges = r;
    fake.live[k]++;
    fake.devices[r->device].used_bytes += k == MEMORY ? n : 0;
    pthread_mutex_unlock(&fake.lock);
}

bool fake_remove_range(kind k, uint64_t at)
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

void fake_add_mapping(uint64_t at, uint64_t n, int device)
{
    range *r = calloc(1, sizeof *r);
    *r = (range){.kind = MAPPED, .device = device, .at = at, .n = n};
    pthread_mutex_lock(&fake.lock);
    r->next = fake.ranges;
    fake.ranges = r;
    fake.live[MAPPED]++;
    pthread_mutex_unlock(&fake.lock);
}

int fake_let_touch(uint64_t at, uint64_t n, int device)
{
    int code = INVALID;
    pthread_mutex_lock(&fake.lock);
    for (range *r = fake.ranges; r; r = r->next)
        if (r->kind == MAPPED && r->at == at && r->n == n) {
            code = r->device == device || fake_has_link(device, r->device) ? 0 : NO_PEER;
            r->touched_by |= code ? 0 : 1u << device;
        }
    pthread_mutex_unlock(&fake.lock);
    if (!code && mprotect((void *)(uintptr_t)at, n, PROT_READ | PROT_WRITE))
        code = INVALID;
    return code;
}

uint64_t fake_used_bytes(void)
{
    pthread_mutex_lock(&fake.lock);
    uint64_t n = fake.devices[fake_here()].used_bytes;
    pthread_mutex_unlock(&fake.lock);
    return n;
}

bool fake_is_known(uint64_t at, uint64_t n)
{
    bool known = false;
    pthread_mutex_lock(&fake.lock);
    for (const range *r = fake.ranges; r && !known; r = r->next)
        known =
            r->kind != REGISTERED && at >= r->at && at - r->at <= r->n && n <= r->n - (at - r->at);
    pthread_mutex_unlock(&fake.lock);
    return known;
}

int fake_may_touch(int device, uint64_t at, uint64_t n)
{
    int known = 0;
    pthread_mutex_lock(&fake.lock);
    for (const range *r = fake.ranges; r && !known; r = r->next)
        known = r->kind != REGISTERED && at >= r->at && at - r->at <= r->n &&
                n <= r->n - (at - r->at) &&
                (r->kind == PINNED || (r->kind == MAPPED && r->touched_by >> device & 1) ||
                 (r->kind != MAPPED &&
                  (r->device == device || fake.devices[device].reaches[r->device])));
    pthread_mutex_unlock(&fake.lock);
    return known;
}

int fake_device_of(uint64_t at)
{
    int device = -1;
    pthread_mutex_lock(&fake.lock);
    for (const range *r = fake.ranges; r && device < 0; r = r->next)
        if ((r->kind == MEMORY || r->kind == MAPPED) && at >= r->at && at - r->at < r->n)
            device = r->device;
    pthread_mutex_unlock(&fake.lock);
    return device;
}

/* ---- what tests ask ---- */

static void reset(void)
{
    fake_current = NULL;
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
            at += (size_t)snprintf(words + at, n - at, "%s%d %s", at ? ", " : "", fake.live[k],
                                   kind_names[k]);
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
    unsigned n = 0;
    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < MAX_ENTRIES && fake.entries[i]; i++)
        if (strcmp(fake.entries[i], entry) == 0)
            n = fake.calls[i];
    pthread_mutex_unlock(&fake.lock);
    return n;
}

static void hold(int device, int change)
{
    pthread_mutex_lock(&fake.lock);
    fake.held[device] += change;
    pthread_mutex_unlock(&fake.lock);
}

static const void *variables(void)
{
    return fake.variables;
}

EXPORT extern const fake_cuda_face fake_cuda;
const fake_cuda_face fake_cuda = {reset,          leaks,          launches, last,
                                  set_kernel,     entry_name,     calls,    variables,
                                  fake_may_touch, fake_device_of, hold};
