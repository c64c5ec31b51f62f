/* thread.c - threads, processors, clocks, and the Linux futex.
 *
 * Everything here is what POSIX and Linux give, with this project's statuses.  thread_each is how
 * graphs are compiled and images read side by side; the futex is how workers of the CPU target and
 * the host sleep.
 */
#include "base/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Monotonic, so differences are right over changes of the system's time. */
struct timespec clock_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t;
}

uint64_t clock_ns(void)
{
    const struct timespec t = clock_now();
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* milliseconds is not negative. */
struct timespec clock_after(struct timespec from, int64_t milliseconds)
{
    const int64_t ns = from.tv_nsec + milliseconds % 1000 * 1000000;
    return (struct timespec){.tv_sec = from.tv_sec + milliseconds / 1000 + ns / 1000000000,
                             .tv_nsec = ns % 1000000000};
}

/* Processors that the cgroup (version 2) lets us use, rounded up; UINT_MAX if it sets no limit. */
static unsigned cgroup_processors(void)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!f)
        return UINT_MAX;
    unsigned long quota = 0, period = 0;
    int n = fscanf(f, "%lu %lu", &quota, &period);
    fclose(f);
    return n == 2 && quota && period ? (unsigned)((quota + period - 1) / period) : UINT_MAX;
}

/* The processors this process may use: its affinity, limited by the quota of its control group. */
unsigned thread_processors(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    unsigned n = 1, limit = cgroup_processors();
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = (unsigned)CPU_COUNT(&set);
    else if (sysconf(_SC_NPROCESSORS_ONLN) > 0)
        n = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    n = n < limit ? n : limit;
    return n ? n : 1;
}

/* Does a lower processor of the set share the core of processor i?  The file lists a core's, as
 * "0,64" or "2-3". */
static bool shares_core(const char *root, const bool *may_run, unsigned i)
{
    char path[256];
    unsigned from, to;
    bool shares = false;
    snprintf(path, sizeof path, "%s/cpu%u/topology/thread_siblings_list", root, i);
    FILE *f = fopen(path, "re");
    while (f && fscanf(f, "%u", &from) == 1) {
        int next = fgetc(f);
        if (next != '-' || fscanf(f, "%u", &to) != 1)
            to = from;
        else
            next = fgetc(f);
        for (unsigned k = from; k <= to && k < i; k++)
            shares = shares || may_run[k];
        if (next != ',')
            break;
    }
    if (f)
        fclose(f);
    return shares;
}

unsigned thread_count_cores(const char *root, const bool *may_run, unsigned n)
{
    unsigned cores = 0;
    for (unsigned i = 0; i < n; i++)
        cores += may_run[i] && !shares_core(root, may_run, i);
    return cores;
}

/* Cores, not hyper-threads, that this process may run on and that its control group's quota pays
 * for. */
unsigned thread_cores(void)
{
    bool may_run[CPU_SETSIZE];
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return thread_processors();
    for (int i = 0; i < CPU_SETSIZE; i++)
        may_run[i] = CPU_ISSET(i, &set);
    unsigned n = thread_count_cores("/sys/devices/system/cpu", may_run, CPU_SETSIZE),
             limit = thread_processors();
    return n >= 1 && n < limit ? n : limit;
}

/* Its timeouts count by the monotonic clock, as clock_ns does. By the wall clock, which is the
 * default, a wait would change when somebody sets the time.
 */
int thread_make_condition(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;
    int error = pthread_condattr_init(&monotonic);
    if (error)
        return error;
    error = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    if (!error)
        error = pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return error;
}

/* The system's limit on threads is the usual reason of a failure, hence MPK_ELIMIT. */
mpk_status thread_start(mpk_context *cx, pthread_t *thread, void *(*run)(void *), void *argument)
{
    int error = pthread_create(thread, NULL, run, argument);
    CHECK(cx, !error, MPK_ELIMIT, "cannot start a thread: %s", strerror(error));
    return MPK_OK;
}

/* ---- many calls ---- */

enum { MAX_EACH = 64 };
/* What the threads of one thread_each share.  An item is taken by one atomic add; `failed` is a
 * hint to stop early and orders nothing, for statuses are read after the threads were joined. */
typedef struct each {
    mpk_status (*f)(mpk_context *cx, void *user, uint32_t i);
    void *user;
    uint32_t n;
    _Atomic uint32_t begun;
    _Atomic bool failed;
} each;
/* A thread's own context: messages of several failures do not mix. */
typedef struct each_thread {
    each *all;
    mpk_context cx;
    mpk_status status;
    uint32_t failed; /* i */
    pthread_t thread;
} each_thread;

/* Items are taken from the last to the first, so that the largest graph, which is the last, begins
 * first. */
static void *run_each(void *argument)
{
    each_thread *t = argument;
    while (!t->all->failed) {
        uint32_t k = atomic_fetch_add(&t->all->begun, 1);
        if (k >= t->all->n)
            break;
        t->failed = t->all->n - 1 - k;
        t->status = t->all->f(&t->cx, t->all->user, t->failed);
        if (t->status != MPK_OK) {
            t->all->failed = true;
            break;
        }
    }
    return NULL;
}

/* The calling thread works too, so all is done even if no other thread can be started.  The first
 * failure ends the rest; of several that of the lowest item is reported. */
mpk_status thread_each(mpk_context *cx, uint32_t n,
                       mpk_status (*f)(mpk_context *cx, void *user, uint32_t i), void *user)
{
    each all = {.f = f, .user = user, .n = n};
    uint32_t most = thread_processors() < MAX_EACH ? thread_processors() : MAX_EACH, started = 1;
    most = n < most ? n : most;
    each_thread *threads = calloc(most + 1, sizeof *threads), *first = NULL;
    CHECK(cx, threads, MPK_ENOMEM, "out of memory for %u threads", most);
    for (uint32_t i = 0; i < most; i++) {
        threads[i].all = &all;
        threads[i].cx.log = cx ? cx->log : NULL;
        threads[i].cx.log_user = cx ? cx->log_user : NULL;
    }
    while (started < most &&
           pthread_create(&threads[started].thread, NULL, run_each, &threads[started]) == 0)
        started++;
    if (n)
        run_each(&threads[0]);
    for (uint32_t i = 0; i < started && i < most; i++) {
        if (i)
            pthread_join(threads[i].thread, NULL);
        if (threads[i].status != MPK_OK && (!first || threads[i].failed < first->failed))
            first = &threads[i];
    }
    mpk_status status = first ? status_fail(cx, first->status, "%s", first->cx.text) : MPK_OK;
    free(threads);
    return status;
}

/* ---- sleeping ---- */

/* Returns if the word is not `value`, on a wake, after the timeout, or for no reason: the caller
 * looks again.  timeout_ns UINT64_MAX: none. */
void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    struct timespec t = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT, value, timeout_ns == UINT64_MAX ? NULL : &t, NULL, 0);
}

/* All waiters; with none it costs a system call. */
void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
