/* host_port.c - the operating system under the runtime: what rt_port.h asks of code that runs on the host. */
#include <sched.h>

#include "base/rng.h"
#include "base/thread.h"
#include "rt/rt.h"

rt_u64 rt_clock_ns(void)
{
    return clock_ns();
}

void rt_yield(void)
{
    sched_yield();
}

/* The futex compares the word itself, so that a wake before the sleep is not lost. */
void rt_sleep(rt_word *word, rt_u32 value, rt_u64 timeout_ns)
{
    futex_wait((_Atomic uint32_t *)&word->value, value, timeout_ns);
}

void rt_wake(rt_word *word)
{
    futex_wake((_Atomic uint32_t *)&word->value);
}

/* Mostly nothing, sometimes a yield, rarely a long sleep: what an unlucky thread meets. */
void rt_delay(rt_u64 seed, rt_u32 who)
{
    uint64_t r = rng_u64(seed + who, clock_ns());
    if (r % 16 == 0)
        sched_yield();
    else if (r % 256 == 1)
        nanosleep(&(struct timespec){0, (long)(r >> 32) % 50000}, NULL);
}
