/* host_port.c - the host's implementation of rt_port.h: sleeping, waking and test delays by calls of the operating
 * system. */
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

/* The kernel compares the word before it sleeps, so a wake that comes first is not lost. */
void rt_sleep(rt_word *word, rt_u32 value, rt_u64 timeout_ns)
{
    futex_wait((_Atomic uint32_t *)&word->value, value, timeout_ns);
}

void rt_wake(rt_word *word)
{
    futex_wake((_Atomic uint32_t *)&word->value);
}

/* Simulate an unlucky thread: usually no delay, sometimes a yield, rarely a long sleep. */
void rt_delay(rt_u64 seed, rt_u32 who)
{
    uint64_t r = rng_u64(seed + who, clock_ns());
    if (r % 16 == 0)
        sched_yield();
    else if (r % 256 == 1)
        nanosleep(&(struct timespec){0, (long)(r >> 32) % 50000}, NULL);
}
