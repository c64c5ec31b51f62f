/* thread.c - pthreads and the Linux futex. */
#include "base/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
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

mpk_status thread_start(mpk_context *cx, pthread_t *thread, void *(*run)(void *), void *argument)
{
    int error = pthread_create(thread, NULL, run, argument);
    CHECK(cx, !error, MPK_ELIMIT, "cannot start a thread: %s", strerror(error));
    return MPK_OK;
}

void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    struct timespec t = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_ns == UINT64_MAX ? NULL : &t, NULL, 0);
}

void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
