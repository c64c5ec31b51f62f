/* fail_allocation.c - preloaded into mpk: make one allocation of a run fail (tests/test_faults.py).
 *
 * MPK_FAIL_AT=N    the Nth allocation (from 1) returns NULL; 0 or unset: none
 * MPK_FAIL_LOG=F   at exit, write "ALLOCATIONS LIVE" to F: how many were made, how many were not
 *                  freed
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);
void __libc_free(void *p);

static _Atomic long made, live;
static long fail_at;
static const char *log_path;

static int fails(void)
{
    if (atomic_fetch_add(&made, 1) + 1 != fail_at)
        return 0;
    errno = ENOMEM;
    return 1;
}

static void *counted(void *p)
{
    if (p)
        atomic_fetch_add(&live, 1);
    return p;
}

void *malloc(size_t n)
{
    return fails() ? NULL : counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : counted(__libc_calloc(n, bytes));
}

void *realloc(void *p, size_t n)
{
    if (fails())
        return NULL;
    void *q = __libc_realloc(p, n);
    if (!p)
        counted(q);
    return q;
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return fails() ? NULL : counted(__libc_memalign(alignment, n));
}

int posix_memalign(void **out, size_t alignment, size_t n)
{
    void *p = fails() ? NULL : counted(__libc_memalign(alignment, n));
    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}

void free(void *p)
{
    if (p)
        atomic_fetch_sub(&live, 1);
    __libc_free(p);
}

/* Counting begins when main does: what the loader and libc allocate for themselves is not ours. */
__attribute__((constructor)) static void start(void)
{
    const char *at = getenv("MPK_FAIL_AT");
    fail_at = at ? atol(at) : 0;
    log_path = getenv("MPK_FAIL_LOG");
    atomic_store(&made, 0);
    atomic_store(&live, 0);
}

__attribute__((destructor)) static void stop(void)
{
    if (!log_path)
        return;
    long count = atomic_load(&made), left = atomic_load(&live);
    fail_at = 0;
    FILE *f = fopen(log_path, "w");
    if (f) {
        fprintf(f, "%ld %ld\n", count, left);
        fclose(f);
    }
}
