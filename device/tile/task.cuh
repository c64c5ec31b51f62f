/* task.cuh - what a body is given, and the few things that it may ask of the worker that runs
 * it.
 *
 * A body is called by all MPK_THREADS threads of a worker (warps 0 to MPK_WARPS - 1), with the
 * same task in each.  It computes the task's box of output 0 and whatever belongs to it in other
 * outputs.  Generic bodies use nothing but this file, tile/view.cuh and ptx/thread.cuh: they
 * work for any number of threads, one included, and are tested so on the CPU.  gen/device_body.h
 * says what a body owes its caller.
 *
 *   t.e->at[]       addresses: inputs, outputs, at RT_PACKED the packed weights
 *   t.e->lo, hi     the box that the compiler cut
 *   t.live          how much of axis 0 is alive in this step: rows after it are not computed
 *   t.s_scratch     shared memory of this task alone, once mpk_wait has returned
 *   t.ring          weights and KV pages that the loader has brought
 */
#ifndef TILE_TASK_CUH
#define TILE_TASK_CUH

#include "ptx/thread.cuh"
#include "rt/rt_lane.h"

struct mpk_ring;

/* A task as its body sees it.  It lies in registers; the entry that it points to does not change
 * until the body has returned. */
struct mpk_task {
    const rt_entry *e; /* in shared memory */
    /* mpk_end, but for bodies that wait: they ask themselves, if they want to know */
    rt_u32 hi0;
    const rt_u32 *live; /* [RT_LIVES], in shared memory */
    /* MPK_SCRATCH_BYTES of shared memory, 1024-byte aligned, this task's until it ends */
    char *s_scratch;
    mpk_ring *ring; /* the pages that its load phase fills (tile/ring.cuh) */
};

MPK_FN rt_u32 mpk_smaller(rt_u32 a, rt_u32 b)
{
    return a < b ? a : b;
}
MPK_FN rt_u32 mpk_larger(rt_u32 a, rt_u32 b)
{
    return a > b ? a : b;
}
/* The task's box in output 0: lo <= i < hi on each axis. */
MPK_FN rt_u32 mpk_lo(const mpk_task &t, int axis)
{
    return t.e->lo[axis];
}
/* End of the box on an axis.  Axis 0 ends where the living entries do, once the caller has
 * filled hi0: a body that waits must ask mpk_end instead. */
MPK_FN rt_u32 mpk_hi(const mpk_task &t, int axis)
{
    return axis == 0 ? t.hi0 : t.e->hi[axis];
}
/* End of axis 0 of the box, clipped to what is alive in this step, and never below its begin: an
 * empty box has mpk_end == mpk_lo. */
MPK_FN rt_u32 mpk_end(const mpk_task &t)
{
    return mpk_larger(t.e->lo[0], mpk_smaller(t.e->hi[0], t.live[t.e->live]));
}
/* First element of an operand: inputs, then outputs (rt_entry.at). */
template <typename type> MPK_FN type *mpk_at(const mpk_task &t, int operand)
{
    return mpk_global((type *)t.e->at[operand]);
}

/* A copy for code that is called by its address: if the worker's own task were passed, it would
 * have to lie in memory instead of registers.  The copy has no ring, so such code takes no
 * pages. */
MPK_FN mpk_task mpk_apart(const mpk_task &t)
{
    mpk_task copy = t;
    copy.ring = 0;
    return copy;
}

#endif
