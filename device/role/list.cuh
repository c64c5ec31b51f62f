/* list.cuh - a worker's list of entries: where it stands in memory, and how body warps go
 * through it.
 *
 * Input: rt_kernel.entries, which the host has laid out by graph and worker (rt/rt_lane.h), in
 * the order in which the worker runs them.  The loader copies them into a ring of MPK_ENTRIES
 * slots in shared memory (role/loader.cuh has the protocol); each body warp goes through that
 * ring by itself, and keeps its place in mpk_w.sides.  Units of a kernel include this file
 * through role/bodies.cuh and units.cuh; the loader and the clerk use mpk_list.
 *
 *   take_entry     wait until the next slot is full
 *   task_of_entry  what a body gets of it
 *   end_entry      give the slot back and step on
 */
#ifndef ROLE_LIST_CUH
#define ROLE_LIST_CUH

#include "tile/ring.cuh"

/* This worker's AOT list in a graph: entries first to last - 1.  The two ends are neighbours in
 * memory, because the list of worker w ends where that of worker w + 1 begins. */
MPK_FN const rt_range mpk_list(rt_u32 graph)
{
    const rt_kernel *k = mpk_w.k;
    rt_range r;
    if (mpk_w.mode == RT_ONE_OP)
        return k->one[mpk_w.index];
    if (MPK_CALLS)
        return mpk_w.call.list;
    const rt_u32 *first = k->first_entry + (rt_u64)graph * k->machine.n_workers + mpk_w.index;
    r.first = first[0];
    r.last = first[1];
    return r;
}

/* This warp's place in the list and the rings.  Every lane reads it, lane 0 writes it
 * (side_put).  Of other warps only the loader reads it: in an ablation it looks at `next`. */
MPK_FN mpk_side *side_of_warp(void)
{
    return &mpk_w.sides[mpk_thread() / 32];
}
/* All lanes, with the same s.  The first meeting lets every lane finish reading the old side
 * before lane 0 overwrites it, the second lets none read it before it is there. */
MPK_FN void side_put(const mpk_side &s, int thread)
{
    __syncwarp();
    if (thread % 32 == 0)
        mpk_w.sides[thread / 32] = s;
    __syncwarp();
}

/* The task of entry `slot`; the caller sets hi0 if it needs it. */
MPK_FN mpk_task task_of_entry(rt_u32 slot, mpk_ring *ring)
{
    mpk_task t;
    t.e = &mpk_w.entries[slot];
    t.live = mpk_w.live;
    t.s_scratch = mpk_s + MPK_PAGES * MPK_PAGE_BYTES;
    t.ring = ring;
    t.hi0 = 0;
    return t;
}

/* A copy of a task that another unit has passed, whose addresses are formed here again.  The
 * compiler cannot tell that a pointer which has crossed a call points to shared memory.  Every
 * access through it, or through a variable that may hold it, would then be a generic one with a
 * 64-bit address. */
MPK_FN mpk_task task_of_other(const mpk_task &other, mpk_ring *ring)
{
    const rt_u32 from = ptx_shared(mpk_w.entries);
    mpk_task t = task_of_entry((ptx_shared(other.e) - from) / (rt_u32)sizeof(rt_entry), ring);
    t.hi0 = other.hi0;
    return t;
}

/* Must its body be called?  Not if the task is empty, or if nothing of its box is alive in this
 * step.  A body that loads must be called even then: the loader, which knew nothing of the step,
 * has filled pages for it, and only the body releases them. */
MPK_FN bool task_has_work(const mpk_task &t)
{
    return t.e->body != RT_NONE && (!t.e->rank || t.e->lo[0] < t.hi0 || mpk_body_loads(t.e->body));
}

/* All lanes of a body warp: wait until the next entry of the list is in its slot. */
MPK_FN void take_entry(const mpk_side *s)
{
#if MPK_RING
    mpk_barrier_wait(&mpk_w.entry_full[s->slot], s->slot_parity);
#else
    /* Without a ring the threads fetch it themselves, once the last task's body no longer reads the
     * slot. */
    mpk_sync();
    const rt_u32 *from = (const rt_u32 *)(mpk_w.k->entries + s->next);
    for (int i = mpk_thread(); i < (int)(sizeof(rt_entry) / 4); i += MPK_THREADS)
        ((rt_u32 *)&mpk_w.entries[s->slot])[i] = from[i];
    mpk_sync();
#endif
}

/* This warp no longer reads the entry: give its slot back, and step to the next.  All lanes.
 * The slot is refilled after MPK_WARPS + 1 arrivals; for_clerk: the clerk does not look at this
 * entry (a `direct` step, or one that is dropped), so thread 0 arrives for it. */
MPK_FN void end_entry(mpk_side *s, int thread, bool for_clerk)
{
#if MPK_RING
    __syncwarp();
    if (thread % 32 == 0)
        ptx_barrier_arrive(&mpk_w.entry_empty[s->slot]);
    if (for_clerk && thread == 0)
        ptx_barrier_arrive(&mpk_w.entry_empty[s->slot]);
    if (++s->slot == MPK_ENTRIES) {
        s->slot = 0;
        s->slot_parity ^= 1;
    }
#endif
    s->next++;
}

#endif
