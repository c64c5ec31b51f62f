/* list.cuh - a worker's list of entries: where it stands in memory, and how body warps go through
 * it.
 *
 * The loader fills a ring of MPK_ENTRIES slots with entries (role/loader.cuh has the protocol);
 * each body warp goes through them by itself.  Units of a kernel include this file
 * through role/bodies.cuh and units.cuh.
 */
#ifndef ROLE_LIST_CUH
#define ROLE_LIST_CUH

#include "tile/ring.cuh"

/* This worker's AOT list in a graph. */
MPK_FN const rt_range mpk_list(rt_u32 graph)
{
    const rt_kernel *k = mpk_w.k;
    rt_range r;
    if (k->mode == RT_ONE_OP)
        return k->one[mpk_w.index];
    const rt_u32 *first = k->first_entry + (rt_u64)graph * k->machine.n_workers + mpk_w.index;
    r.first = first[0];
    r.last = first[1];
    return r;
}

/* This warp's place in the list; every lane reads it, lane 0 writes it. */
MPK_FN mpk_side *side_of_warp(void)
{
    return &mpk_w.sides[mpk_thread() / 32];
}
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

/* Must its body be called?  A body that loads must, even if nothing of its box is alive: it
 * releases its pages. */
MPK_FN bool task_has_work(const mpk_task &t)
{
    return t.e->body != RT_NONE && (!t.e->rank || t.e->lo[0] < t.hi0 || mpk_body_loads(t.e->body));
}

/* The next entry of the list is in the slot. */
MPK_FN void take_entry(const mpk_side *s)
{
#if MPK_RING
    mpk_barrier_wait(&mpk_w.entry_full[s->slot], s->slot_parity);
#else
    /* Without a ring the threads fetch it themselves. */
    mpk_sync();
    const rt_u32 *from = (const rt_u32 *)(mpk_w.k->entries + s->next);
    for (int i = mpk_thread(); i < (int)(sizeof(rt_entry) / 4); i += MPK_THREADS)
        ((rt_u32 *)&mpk_w.entries[s->slot])[i] = from[i];
    mpk_sync();
#endif
}

/* for_clerk: the clerk does not look at this entry, so its part is done here. */
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
