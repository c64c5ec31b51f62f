/* list.cuh - a worker's list of entries, as the warps that run bodies see it: what both units of a kernel need of it.
 *
 * Entries come into a ring of MPK_ENTRIES slots (the loader's, kernel.cuh); each warp goes through them by itself.
 */
#ifndef LIST_CUH
#define LIST_CUH

#include "tile/ring.cuh"

/* This warp's place; every lane reads it, lane 0 writes it. */
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

/* The task of entry `slot`; hi0 is left to whoever wants to know. */
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

/* Is its body to be called?  One that loads is, though nothing of its box is alive: its pages must be released. */
MPK_FN bool task_has_work(const mpk_task &t)
{
    return t.e->body != RT_NONE && (!t.e->rank || t.e->lo[0] < t.hi0 || mpk_body_loads(t.e->body));
}

/* The next entry of the list is in the slot. */
MPK_FN void take_entry(const mpk_side *s)
{
#if MPK_BULK
    mpk_barrier_wait(&mpk_w.entry_full[s->slot], s->slot_parity);
#else
    /* Without bulk copies the threads fetch it themselves. */
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
#if MPK_BULK
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
