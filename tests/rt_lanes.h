/* rt_lanes.h - who runs the lanes of a step task in a test: coroutines, one after the other
 * (rt_lanes_model.h), or where there is one lane just a call.  Relies on RT_LANES_HEADER, which
 * rt_lanes.h's includer has set before rt_step.h; rt_step_test.c and rt_sched_test.c include it.
 */
#ifndef RT_LANES_H
#define RT_LANES_H

#include <ucontext.h>

#include "base/rng.h"
#include "check.h"
#include "rt/rt_step.h"

#ifdef RT_LANES_HEADER

static struct lanes {
    ucontext_t main, at[MOST_LANES];
    char stacks[MOST_LANES][64 * 1024];
    int (*what)(void *user);
    void *user;
    /* kind of the meeting that each waits for; -1: it has ended */
    int kind[MOST_LANES], result[MOST_LANES];
    rt_u32 there, current, said, heard, words[MOST_LANES];
    uint64_t draws;
} lanes;

rt_u32 lanes_there(void)
{
    return lanes.there;
}

rt_u32 lanes_current(void)
{
    return lanes.current;
}

rt_u32 lanes_meet(int kind, int says)
{
    rt_u32 self = lanes.current;
    lanes.kind[self] = kind;
    lanes.said |= says ? 1u << self : 0;
    swapcontext(&lanes.at[self], &lanes.main);
    return lanes.heard;
}

rt_u32 *lanes_word(rt_u32 lane)
{
    return &lanes.words[lane];
}

static void lane_main(void)
{
    lanes.result[lanes.current] = lanes.what(lanes.user);
    lanes.kind[lanes.current] = -1;
}

/* Lane lanes.current: getcontext may return twice, so what it needs is in memory. */
static void begin_lane(void)
{
    getcontext(&lanes.at[lanes.current]);
    lanes.at[lanes.current].uc_stack = (stack_t){.ss_sp = lanes.stacks[lanes.current],
                                                 .ss_size = sizeof lanes.stacks[lanes.current]};
    lanes.at[lanes.current].uc_link = &lanes.main;
    makecontext(&lanes.at[lanes.current], lane_main, 0);
}

/* Let so many lanes do it, 1 or MOST_LANES; what each says. */
static int by_lanes(rt_u32 there, int (*what)(void *user), void *user)
{
    lanes.there = there;
    lanes.what = what;
    lanes.user = user;
    for (lanes.current = 0; lanes.current < RT_LANES; lanes.current++)
        begin_lane();
    do {
        rt_u32 order = (rt_u32)rng_u64(1, lanes.draws++);
        lanes.heard = lanes.said;
        lanes.said = 0;
        for (rt_u32 i = 0; i < RT_LANES; i++) {
            lanes.current = (i * (order | 1) + (order >> 8)) % RT_LANES;
            swapcontext(&lanes.main, &lanes.at[lanes.current]);
        }
        for (rt_u32 i = 1; i < RT_LANES; i++)
            if (lanes.kind[i] != lanes.kind[0])
                fail_msg("lane %u waits for another meeting than lane 0", i);
    } while (lanes.kind[0] >= 0);
    for (rt_u32 i = 1; i < RT_LANES; i++)
        assert_int_equal(lanes.result[i], lanes.result[0]);
    return lanes.result[0];
}

#else

enum { MOST_LANES = 1 };

static int by_lanes(rt_u32 there, int (*what)(void *user), void *user)
{
    (void)there;
    return what(user);
}

#endif

#endif
