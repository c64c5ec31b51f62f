/* units.cuh - where the text is cut in three when it is compiled as units side by side (MPK_UNIT,
 * the generated constants; src/cuda/tools.c).
 *
 *   1  the kernel, with the bodies that wait: those of few tokens.  One function, and slow to
 *      compile.
 *   2  mpk_run_many: the bodies for many tokens, some of which wait themselves.  mpk_run_body: all
 *      others.  Called when what they read is there.
 *   3  mpk_run_some: the bodies for some tokens, 17 to 64, which wait themselves.  In the kernel
 *      they would take registers from those for few.
 *
 * A function of units 2 and 3 does not know its caller and gets registers of its own, as many as a
 * thread of the kernel has: it saves some 80 that the caller may use, 80 KB a worker, which is
 * nothing for a rare operator, but 3 us for each task of a prompt.  So mpk_run_many and
 * mpk_run_some go on through the list as long as there are tasks for them.  wgmma waits after every
 * product in a function that calls another, so that mpk_run_many calls none.  What all units see is
 * defined in unit 1 (MPK_ELSEWHERE).
 */
#ifndef UNITS_CUH
#define UNITS_CUH

#include "role/list.cuh"

#if MPK_UNIT

extern "C" __device__ void mpk_run_body(rt_u32 body, const mpk_task &t);
/* one: a task whose time has come.  NULL: the tasks of this warp's list, from the next one on, up
 * to the first that is not for many tokens, as run_task in role/bodies.cuh does; the next one is,
 * and its entry is there. */
extern "C" __device__ void mpk_run_many(const mpk_task *one);
/* The same for some tokens; one: its body waits. */
extern "C" __device__ void mpk_run_some(const mpk_task *one);

#if MPK_UNIT == 1

/* The ring of the worker stays in registers: the body gets a copy of it. */
MPK_FN void mpk_dispatch_body(rt_u32 body, const mpk_task &t)
{
    mpk_ring ring = *t.ring;
    mpk_task apart = t;
    apart.ring = &ring;
    if (mpk_body_many(body))
        mpk_run_many(&apart);
    else
        mpk_run_body(body, apart);
    *t.ring = ring;
}
/* As above: passing the worker's own ring would force it into memory. */
MPK_FN void mpk_dispatch_some(rt_u32, const mpk_task &t)
{
    mpk_ring ring = *t.ring;
    mpk_task apart = t;
    apart.ring = &ring;
    mpk_run_some(&apart);
    *t.ring = ring;
}

#else

#if MPK_RING

/* The next task of the list, if it is one of those: its entry is there.  Where this warp stands
 * lies in shared memory while a body runs. */
template <bool SOME> MPK_FN bool list_next(mpk_ring *ring, mpk_task *t)
{
    const mpk_side s = *side_of_warp();
    if (s.next == s.last || ptx_load_flag(&mpk_w.abort))
        return false;
    take_entry(&s);
    const rt_u32 body = mpk_w.entries[s.slot].body;
    if (SOME ? !mpk_body_some(body) : !mpk_body_many(body))
        return false;
    if (mpk_timed && mpk_thread() == 0) {
        mpk_w.times = mpk_w.all_times + s.next;
        mpk_w.times->begin = ptx_cycles();
    }
    *ring = {0, MPK_PAGES - MPK_JIT_PAGES, s.at, s.parity};
    *t = task_of_entry(s.slot, ring);
    return true;
}

/* This warp is through with it. */
MPK_FN void list_end(const mpk_ring &ring, int thread)
{
    mpk_side s = mpk_w.sides[thread / 32];
    s.turn++;
    s.at = ring.at;
    s.parity = ring.parity;
    end_entry(&s, thread, false);
    side_put(s, thread);
}

#endif

#if MPK_UNIT == 3

/* Bodies here wait and trigger themselves, so the loop only moves along the list. */
extern "C" __device__ __noinline__ void mpk_run_some(const mpk_task *one)
{
    mpk_ring ring = {};
    mpk_task t = {};
    if (one) {
        ring = *one->ring;
        t = *one;
        t.ring = &ring;
    }
#if MPK_RING
#pragma unroll 1
    while (one || list_next<true>(&ring, &t)) {
        mpk_dispatch_some(t.e->body, t);
        if (one)
            break;
        list_end(ring, mpk_thread());
    }
#endif
    if (one)
        *one->ring = ring;
}

#else

extern "C" __device__ __noinline__ void mpk_run_body(rt_u32 body, const mpk_task &t)
{
    mpk_dispatch_plain(body, t);
}

#if MPK_RING

/* The next task of the list, when its event is activated or its body waits itself; false: it is
 * not for many tokens, or there is none. */
MPK_FN bool many_next(mpk_ring *ring, mpk_task *t)
{
    if (!list_next<false>(ring, t))
        return false;
    t->hi0 = mpk_end(*t);
    if (!mpk_body_many_waits(t->e->body))
        mpk_wait(*t);
    return true;
}

/* Written first, since only then may the clerk count the task; then the slot.  `triggered`: the
 * body has said so itself. */
MPK_FN void many_end(const mpk_ring &ring, bool triggered)
{
    const int thread = mpk_thread();
    if (!triggered)
        mpk_written(thread);
    list_end(ring, thread);
}

extern "C" __device__ __noinline__ void mpk_run_many(const mpk_task *one)
{
    mpk_ring ring = {};
    mpk_task t = {};
    if (one) {
        ring = *one->ring;
        t = *one;
        t.ring = &ring;
    }
#pragma unroll 1
    while (one || many_next(&ring, &t)) {
        const bool waits = mpk_body_many_waits(t.e->body);
        if (one || waits || task_has_work(t))
            mpk_dispatch_many(t.e->body, t);
        if (one) {
            *one->ring = ring;
            return;
        }
        many_end(ring, waits);
    }
}

#else

extern "C" __device__ __noinline__ void mpk_run_many(const mpk_task *one)
{
    const mpk_task t = *one;
    mpk_dispatch_many(t.e->body, t);
}

#endif

#endif

#endif

#endif

#endif
