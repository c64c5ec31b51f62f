/* units.cuh - where the text is cut when it is compiled as units side by side (MPK_UNIT, the
 * generated constants; src/cuda/tools.c).
 *
 *   KERNEL    the kernel, with the bodies that wait: those of few tokens.  One function.
 *   ROLES     mpk_run_role: all warps that run no bodies (kernel.cuh), but for
 *   STEP      mpk_run_step: the step task, and that of calls.
 *   PLAIN     mpk_run_body: bodies that are called when what they read is there.
 *   SOME      mpk_run_some: the bodies for some tokens, 17 to 64, which wait themselves.  In the
 *             kernel they would take registers from those for few.
 *   EXPERTS, HEADS, ROWS, PRODUCTS, PARTS, SHORT
 *             mpk_run_experts and so on: the bodies for many tokens, some of which wait themselves:
 *             products with experts; rotation, attention split and folded, and sums of parts;
 *             attention as a whole; products; tasks of these that share a tile (linear_parts.cuh);
 *             tasks of these of at most 64 tokens, which are all products of a step of 33 to 64.
 *
 * Units without bodies are not there (MPK_UNITS).  The compiler takes longer than linearly for a
 * large function, so units are also faster one after the other.
 *
 * Calls between units.  By the usual convention a function saves some 80 registers that its caller
 * may use: 80 KB a worker, 3 us.  The caller here has few values that outlive a call, so functions
 * of units are declared to preserve 16 registers (MPK_PRESERVED; CUDA 13 and newer).  With older
 * compilers they save what is usual.  Each goes on through the worker's list as long as there are
 * tasks for it, so that a call takes as many of them as possible.  wgmma waits after every product
 * in a function that calls another, so bodies for many tokens call none.  What all units see is
 * defined in KERNEL (MPK_ELSEWHERE).
 */
#ifndef UNITS_CUH
#define UNITS_CUH

#include "role/list.cuh"

#if MPK_UNIT

#if __CUDACC_VER_MAJOR__ >= 13
#define MPK_PRESERVED _Pragma("nv_abi preserve_n_data(16) preserve_n_control(8)")
#else
#define MPK_PRESERVED
#endif

extern "C" __device__ void mpk_run_role(rt_kernel *k);
extern "C" __device__ void mpk_run_step(rt_kernel *k);
MPK_PRESERVED extern "C" __device__ void mpk_run_body(rt_u32 body, const mpk_task &t);
/* What a unit runs; called by all body threads, from run_entry in the unit KERNEL.  one: a task
 * whose time has come, or whose body waits; its ring is moved on.  NULL: the tasks of this
 * warp's list, from the next one on, up to the first that is of another unit, as run_task in
 * role/bodies.cuh does; the next one is of this unit, and its entry is there. */
MPK_PRESERVED extern "C" __device__ void mpk_run_some(const mpk_task *one);
MPK_PRESERVED extern "C" __device__ void mpk_run_experts(const mpk_task *one);
MPK_PRESERVED extern "C" __device__ void mpk_run_heads(const mpk_task *one);
MPK_PRESERVED extern "C" __device__ void mpk_run_rows(const mpk_task *one);
MPK_PRESERVED extern "C" __device__ void mpk_run_products(const mpk_task *one);
MPK_PRESERVED extern "C" __device__ void mpk_run_parts(const mpk_task *one);
MPK_PRESERVED extern "C" __device__ void mpk_run_short(const mpk_task *one);

/* The host sets a bit of MPK_UNITS for each unit that has bodies: a call of any other would not
 * link. */
MPK_FN constexpr bool units_have(int unit)
{
    return MPK_UNITS >> unit & 1;
}

/* The unit in which the code of a task is; 0: it is waited for or plain. */
MPK_FN rt_u32 unit_of_entry(const rt_entry *e)
{
    const rt_u32 unit = mpk_unit_of(e->body);
    if (unit != MPK_UNIT_PRODUCTS)
        return unit;
    if (units_have(MPK_UNIT_SHORT) && e->hi[0] - e->lo[0] <= RT_SHORT_TOKENS)
        return MPK_UNIT_SHORT;
    return units_have(MPK_UNIT_PARTS) && e->parts ? MPK_UNIT_PARTS : unit;
}

#if MPK_UNIT == MPK_UNIT_KERNEL

/* Run one task of a body for some or many tokens, or, with 0, those of the list.  Comparisons
 * with constants: for a unit that is not there nothing is left, not even a name to link. */
MPK_FN void mpk_run_unit(rt_u32 unit, const mpk_task *one)
{
    if (units_have(MPK_UNIT_PRODUCTS) && unit == MPK_UNIT_PRODUCTS)
        mpk_run_products(one);
    if (units_have(MPK_UNIT_PARTS) && unit == MPK_UNIT_PARTS)
        mpk_run_parts(one);
    if (units_have(MPK_UNIT_SHORT) && unit == MPK_UNIT_SHORT)
        mpk_run_short(one);
    if (units_have(MPK_UNIT_ROWS) && unit == MPK_UNIT_ROWS)
        mpk_run_rows(one);
    if (units_have(MPK_UNIT_HEADS) && unit == MPK_UNIT_HEADS)
        mpk_run_heads(one);
    if (units_have(MPK_UNIT_EXPERTS) && unit == MPK_UNIT_EXPERTS)
        mpk_run_experts(one);
    if (units_have(MPK_UNIT_SOME) && unit == MPK_UNIT_SOME)
        mpk_run_some(one);
}

/* Run a body of another unit.  The address of a task crosses the call, so it and its ring must
 * lie in memory: copies do, while the worker's own stay in registers.  The ring is taken back
 * afterwards, since the body has moved it over its pages. */
MPK_FN void mpk_dispatch_body(rt_u32 body, const mpk_task &t)
{
    mpk_ring ring = *t.ring;
    mpk_task apart = t;
    apart.ring = &ring;
    if (mpk_body_many(body))
        mpk_run_unit(unit_of_entry(t.e), &apart);
    else
        mpk_run_body(body, apart);
    *t.ring = ring;
}
/* As above: passing the worker's own ring would force it into memory. */
MPK_FN void mpk_dispatch_some(rt_u32 body, const mpk_task &t)
{
    mpk_ring ring = *t.ring;
    mpk_task apart = t;
    apart.ring = &ring;
    mpk_run_unit(mpk_unit_of(body), &apart);
    *t.ring = ring;
}

#elif MPK_UNIT == MPK_UNIT_PLAIN

MPK_PRESERVED extern "C" __device__ __noinline__ void mpk_run_body(rt_u32 body, const mpk_task &t)
{
    mpk_dispatch_plain(body, task_of_other(t, t.ring));
}

#elif MPK_UNIT > MPK_UNIT_STEP

#if MPK_RING

/* The next task of the list, if it is one of this unit; its entry is then there, and *ring
 * stands at its first page.  false: it is another unit's, the list is done, or the machine
 * aborts; nothing has moved.  Where this warp stands lies in shared memory while a body runs, so
 * unit and kernel go on from one another's place. */
MPK_FN bool list_next(mpk_ring *ring, mpk_task *t)
{
    const mpk_side s = *side_of_warp();
    /* the list of this step is done */
    if (s.next == s.last || ptx_load_flag(&mpk_w.abort))
        return false;
    /* The entry is in shared memory; a peek at its unit does not give it back. */
    take_entry(&s);
    if (unit_of_entry(&mpk_w.entries[s.slot]) != MPK_UNIT)
        return false;
    if (mpk_timed && mpk_thread() == 0) {
        mpk_w.times = mpk_w.all_times + s.next;
        mpk_w.times->begin = ptx_cycles();
    }
    /* the ring of AOT tasks, where this warp stands in it */
    *ring = {0, MPK_PAGES - MPK_JIT_PAGES, s.at, s.parity};
    *t = task_of_entry(s.slot, ring);
    return true;
}

/* This warp has done with the task: its ordinal, the ring after its pages, the entry given back. */
MPK_FN void list_end(const mpk_ring &ring, int thread)
{
    mpk_side s = mpk_w.sides[thread / 32];
    s.ordinal++;
    s.at = ring.at;
    s.parity = ring.parity;
    end_entry(&s, thread, false);
    side_put(s, thread);
}

#endif

#if MPK_UNIT == MPK_UNIT_SOME

/* Bodies here wait and trigger themselves, so the loop only moves along the list.  Without a
 * ring there are none of the list: `one` is all. */
MPK_PRESERVED extern "C" __device__ __noinline__ void mpk_run_some(const mpk_task *one)
{
    mpk_ring ring = {};
    mpk_task t = {};
    if (one) {
        ring = *one->ring;
        t = task_of_other(*one, &ring);
    }
#if MPK_RING
#pragma unroll 1
    while (one || list_next(&ring, &t)) {
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

#if MPK_RING

/* The next task of the list, when its event is activated or its body waits itself; false: it is
 * of another unit, or there is none. */
MPK_FN bool many_next(mpk_ring *ring, mpk_task *t)
{
    if (!list_next(ring, t))
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

/* As mpk_run_some; here the tasks of bodies that do not wait are waited for and counted.  What
 * is counted for `one` its caller counts (run_entry). */
MPK_FN void many_run(const mpk_task *one)
{
    mpk_ring ring = {};
    mpk_task t = {};
#if MPK_UNIT == MPK_UNIT_HEADS
    /* Its bodies leave fewer registers: `one` and `waits`, which are asked for after a body, would
     * lie on the stack and come from L2 after each acquire. */
    const rt_u32 single = ptx_keep(one != 0);
#else
    const mpk_task *const single = one;
#endif
    if (one) {
        ring = *one->ring;
        t = task_of_other(*one, &ring);
    }
#pragma unroll 1
    while (single || many_next(&ring, &t)) {
        bool waits = mpk_body_many_waits(t.e->body);
        /* a body that waits must be called even for nothing: it triggers */
        if (single || waits || task_has_work(t))
            mpk_dispatch_many(t.e->body, t);
        if (single) {
            *one->ring = ring;
            return;
        }
#if MPK_UNIT == MPK_UNIT_HEADS
        waits = mpk_body_many_waits(t.e->body);
#endif
        many_end(ring, waits);
    }
}

#else

MPK_FN void many_run(const mpk_task *one)
{
    const mpk_task t = task_of_other(*one, one->ring);
    mpk_dispatch_many(t.e->body, t);
}

#endif

/* The one function of this unit, by the name that the kernel calls. */
#if MPK_UNIT == MPK_UNIT_EXPERTS
#define UNITS_RUN_MANY mpk_run_experts
#elif MPK_UNIT == MPK_UNIT_HEADS
#define UNITS_RUN_MANY mpk_run_heads
#elif MPK_UNIT == MPK_UNIT_ROWS
#define UNITS_RUN_MANY mpk_run_rows
#elif MPK_UNIT == MPK_UNIT_PRODUCTS
#define UNITS_RUN_MANY mpk_run_products
#elif MPK_UNIT == MPK_UNIT_PARTS
#define UNITS_RUN_MANY mpk_run_parts
#elif MPK_UNIT == MPK_UNIT_SHORT
#define UNITS_RUN_MANY mpk_run_short
#endif
MPK_PRESERVED extern "C" __device__ __noinline__ void UNITS_RUN_MANY(const mpk_task *one)
{
    many_run(one);
}

#endif

#endif

#endif

#endif
