/* thread.h - what we need of the operating system's threads and clocks. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"

/* Monotonic time. */
uint64_t clock_ns(void);
/* Processors this process may run on (affinity mask and cgroup quota counted), at least 1. */
unsigned thread_processors(void);
/* Start a thread; join with pthread_join.  MPK_ELIMIT with the system's reason. */
mpk_status thread_start(mpk_context *cx, pthread_t *thread, void *(*run)(void *), void *argument);

/* Sleep while *word == value, at most timeout_ns (UINT64_MAX: no limit); may wake early. */
void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns);
/* Wake every thread that sleeps on word. */
void futex_wake(_Atomic uint32_t *word);

#endif
