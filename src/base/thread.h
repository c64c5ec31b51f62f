/* thread.h - what we need of the operating system's threads and clocks. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/status.h"

/* Monotonic time. */
uint64_t clock_ns(void);
/* The time `milliseconds` (0 or more) after `from`, as pthread_cond_timedwait takes it: 0 <=
 * tv_nsec < 1e9. */
struct timespec clock_after(struct timespec from, int64_t milliseconds);
/* Monotonic time, for clock_after. */
struct timespec clock_now(void);
/* Processors this process may run on (affinity mask and cgroup quota counted), at least 1. */
unsigned thread_processors(void);
/* Cores among them: processors that share one count once, at least 1 and at most
 * thread_processors. */
unsigned thread_cores(void);
/* The same of a set of processors, as the folder `root` tells it (/sys/devices/system/cpu); where
 * that is silent each processor is a core. */
unsigned thread_count_cores(const char *root, const bool *may_run, unsigned n);
/* As pthread_cond_init, but what pthread_cond_timedwait takes is a time of the monotonic clock, so
 * that setting the system's time neither ends nor prolongs a wait.  0, or an error of pthreads. */
int thread_make_condition(pthread_cond_t *condition);
/* Start a thread; join with pthread_join.  MPK_ELIMIT with the system's reason. */
mpk_status thread_start(mpk_context *cx, pthread_t *thread, void *(*run)(void *), void *argument);

/* f(cx, user, i) for every i below n, the last first, on at most as many threads as there are
 * processors, this one among them; each thread has a context of its own.  After a failure no new
 * ones begin; of those that failed, the lowest i's message is in cx. */
mpk_status thread_each(mpk_context *cx, uint32_t n,
                       mpk_status (*f)(mpk_context *cx, void *user, uint32_t i), void *user);

/* Sleep while *word == value, at most timeout_ns (UINT64_MAX: no limit); may wake early. */
void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns);
/* Wake every thread that sleeps on word. */
void futex_wake(_Atomic uint32_t *word);

#endif
