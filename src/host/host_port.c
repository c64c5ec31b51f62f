/* host_port.c - the host's implementation of rt_port.h: sleeping, waking and test delays by calls
 * of the operating system; and its random bits. */
#include <sched.h>
#include <sys/random.h>

#include "base/rng.h"
#include "base/thread.h"
#include "host/books.h"
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

/* Where the system has no bits, the time and an address do: then keys can be guessed by who
 * tries. */
uint64_t host_random(void)
{
    uint64_t bits;
    if (getrandom(&bits, sizeof bits, 0) != sizeof bits)
        bits = rng_u64(clock_ns(), (uint64_t)(uintptr_t)&bits);
    return bits;
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
