/* loader.cuh - the warp that loads descriptors and constant operands of AOT tasks, ahead of their
 * events (paper §5.3).
 *
 * It goes through the same list as the bodies and never waits for an event: it runs ahead of them
 * across tasks, operators, layers and steps, as far as the descriptor ring and the page ring have
 * room.  kernel.cuh starts loader_loop in warp MPK_WARPS of every worker that has a ring.
 *
 * Descriptor ring: entries[MPK_ENTRIES], one slot for each entry of the list, in order, modulo its
 * length.
 *   - Slot s is filled only after MPK_WARPS + 1 arrivals at entry_empty[s]: one of each body warp
 *     and one of the clerk.  So no warp reads an entry while the copy of the next one overwrites
 *     it.
 *   - A reader waits for entry_full[s] before it reads.  The copy itself completes that barrier: a
 *     bulk copy by its bytes, copies of all lanes each by an arrival (load_end_at).
 *   - Loader, bodies and clerk each count slot and parity by themselves, and the three counts agree
 *     because all of them go through the same list.
 *
 * Steps: the loader is at most one step ahead.  `begun` counts steps that have begun, `loaded`
 * those whose list it has finished; it starts on the list of step n + 1 only after step n has
 * begun.  What a step writes (token positions, page tables, the KV cache) is loaded only after that
 * step has begun (load_needs_step in tile/ring.cuh).
 *
 * Resync: the loader assumes that the next step runs the same graph as the last.  If another graph
 * is published:
 *   1. the bodies' thread 0 raises RESYNC_ASKED;
 *   2. the loader leaves its list, writes down how many pages and entries it has requested on
 *      behalf of the step that does not come (ahead_pages, ahead_entries), and raises
 *      RESYNC_ANSWERED;
 *   3. the body warps take exactly these pages and entries, release them when all have been taken,
 *      since the barrier of one page may tell of copies to those before it (drop_ahead in
 *      bodies.cuh), and set RESYNC_NONE;
 *   4. both begin the new list, at the same place of both rings.
 * Between 2 and the next list the loader requests nothing, so the numbers that it wrote down are
 * exact: every page that was requested is released once, and no barrier is left in the wrong phase.
 */
#ifndef ROLE_LOADER_CUH
#define ROLE_LOADER_CUH

#include "role/list.cuh"

#if MPK_RING

enum { MPK_AHEAD = 4 }; /* entries that the loader requests before it needs them, at most */

/* The descriptor ring, as the loader sees it.  Owned by the loader's lanes, all of which hold
 * the same numbers. */
struct mpk_descriptors {
    rt_range list;
    rt_u32 asked;        /* entries of this list that have been requested */
    rt_u32 slot, parity; /* where the next one goes */
    rt_u32 ahead;
};

/* All lanes: request descriptors up to number i + ahead of the list, in order.  The copies are
 * in flight on return.  0: there is nothing to load for any more (abort or resync), and what was
 * not requested stays so. */
MPK_FN int descriptors_ask(mpk_descriptors *d, mpk_load *l, rt_u32 i)
{
    rt_u32 n = d->list.last - d->list.first; /* entries of the list */
    while (d->asked < n && d->asked <= i + d->ahead) {
        rt_u64 *empty = &mpk_w.entry_empty[d->slot];
        /* The other parity: the phase in which the slot was last given back.  In the first round
         * a new barrier counts that phase as completed. */
        if (!load_wait(l, empty, d->parity ^ 1))
            return 0;
#if MPK_BULK
        if (ptx_elect()) {
            ptx_barrier_expect(&mpk_w.entry_full[d->slot], sizeof(rt_entry));
            ptx_copy_bulk(&mpk_w.entries[d->slot], mpk_w.k->entries + d->list.first + d->asked,
                          sizeof(rt_entry), &mpk_w.entry_full[d->slot]);
        }
#else
        /* 16 lanes, 16 bytes each: an entry is 256 bytes. */
        const rt_u32 mine = threadIdx.x % 32 * 16;
        if (mine < sizeof(rt_entry))
            ptx_copy_piece(ptx_shared(&mpk_w.entries[d->slot]) + mine,
                           (const char *)(mpk_w.k->entries + d->list.first + d->asked) + mine);
        load_end_at(&mpk_w.entry_full[d->slot]);
#endif
        __syncwarp();
        d->asked++;
        if (++d->slot == MPK_ENTRIES) {
            d->slot = 0;
            d->parity ^= 1;
        }
    }
    return 1;
}

/* Answer a resync: say how many pages and entries were requested on behalf of the step that does
 * not come.  The counts are stored before the flag (release); drop_ahead acquires it. */
MPK_FN void loader_answer(mpk_load *l, const mpk_descriptors *d)
{
    if (threadIdx.x % 32 == 0) {
        mpk_w.ahead_pages = l->pages;
        mpk_w.ahead_entries = d->asked;
        ptx_store_flag(&mpk_w.resync, RESYNC_ANSWERED);
    }
    __syncwarp();
}

/* Ablation (tuning.preload is 0): wait until all body warps have come to entry number `next`,
 * so that nothing is loaded ahead of its task.  A lane watches a warp.  0: they will not come
 * there. */
MPK_FN int loader_await_bodies(const mpk_load *l, rt_u32 next)
{
    const rt_u32 lane = threadIdx.x % 32;
    while (!__all_sync(0xffffffffu,
                       lane >= MPK_WARPS || ptx_load_flag(&mpk_w.sides[lane].next) == next))
        if (load_is_over(l))
            return 0;
    return 1;
}

/* All lanes: load one step's list, entry after entry.  slot and parity: of the entry that is
 * read next, moved on.  The load phase of a body (mpk_dispatch_load) fills the pages that the
 * body will take, in the same order and number.  0: the step does not come; l->pages and
 * d->asked then say what was requested. */
MPK_FN int loader_run_list(mpk_load *l, mpk_descriptors *d, rt_u32 *slot, rt_u32 *parity)
{
    rt_u32 n = d->list.last - d->list.first;
    l->pages = d->asked = 0;
    for (rt_u32 i = 0; i < n; i++) {
        if (!descriptors_ask(d, l, i))
            return 0;
        /* No look at a resync here: an entry that was requested always arrives, and must be
         * stepped over. */
        if (!ptx_barrier_try(&mpk_w.entry_full[*slot], *parity))
            while (!ptx_barrier_try(&mpk_w.entry_full[*slot], *parity))
                if (ptx_load_flag(&mpk_w.abort))
                    return 0; /* the entry may not be there */
        l->e = &mpk_w.entries[*slot];
        if (l->e->body != RT_NONE && mpk_body_loads(l->e->body)) {
            if (!mpk_w.k->tuning.preload && !loader_await_bodies(l, d->list.first + i))
                return 0;
            mpk_dispatch_load(l->e->body, *l);
        }
        if (l->cancelled)
            return 0;
        if (++*slot == MPK_ENTRIES) {
            *slot = 0;
            *parity ^= 1;
        }
    }
    return 1;
}

/* Before this warp leaves for the kernel of another regime: wait until all that it has requested
 * has arrived.  A copy that is in flight when the block ends would write into shared memory that
 * the next kernel's block has by then.  Looks are counted instead of `abort` being watched,
 * since that is raised already; copies end by themselves, so the limit is only against a broken
 * device. */
MPK_FN void loader_await_copies(mpk_load *l, const mpk_descriptors *d, rt_u32 slot, rt_u32 parity)
{
    rt_u32 looks = 1 << 16; /* at most, over all copies */
    /* pages first, then descriptors: both may be in flight */
    for (; l->flying; l->flying--) {
        while (!ptx_barrier_try(&mpk_w.full[l->tail.first + l->tail.at], l->tail.parity) && --looks)
            ;
        ring_next(&l->tail);
    }
    while (slot != d->slot || parity != d->parity) {
        while (!ptx_barrier_try(&mpk_w.entry_full[slot], parity) && --looks)
            ;
        if (++slot == MPK_ENTRIES) {
            slot = 0;
            parity ^= 1;
        }
    }
}

/* Whole warp.  slot and parity: the descriptor that is read next, where d has those that are asked
 * for next; what lies between the two is in flight.
 *
 * After a list there are three ways on.  The kernel serves no further step: the warp leaves, with
 * regimes only once nothing is in flight.  The next step runs the same graph, as was assumed: its
 * list follows.  Another graph was published: what was requested ahead is counted for the bodies,
 * which drop it, and that graph's list follows.  A list that is left before its end always goes on
 * in the third way, or ends with the machine.
 */
static __device__ void loader_loop(void)
{
    const rt_kernel *k = mpk_w.k;
    mpk_load l;
    mpk_descriptors d = {};
    rt_u32 slot = 0, parity = 0, graph = mpk_w.first_graph;
    load_begin(&l, 0, MPK_PAGES - MPK_JIT_PAGES);
    l.in_flight = mpk_smaller(k->tuning.in_flight, l.ring.n);
    l.aot = 1;
    d.ahead = k->tuning.descriptor_ahead < MPK_AHEAD ? k->tuning.descriptor_ahead : MPK_AHEAD;
    for (;;) {
        d.list = mpk_list(graph);
        /* 0: it was left before its end, by a resync or by the end of the machine */
        int done = loader_run_list(&l, &d, &slot, &parity);
        if (done && threadIdx.x % 32 == 0)
            ptx_store_flag(&mpk_w.loaded, l.step + 1); /* partner: clerk_run_list */
        __syncwarp();
        if (ptx_load_flag(&mpk_w.abort) || k->mode != RT_SERVE || MPK_CALLS) {
            if (MPK_REGIMES > 1)
                loader_await_copies(&l, &d, slot, parity);
            return;
        }
        if (done) {
            l.step++;
            /* Constants of the next step may be loaded while this one runs, but not those of the
             * one after it: a list that is finished before its step has begun is one step ahead. */
            while (l.step > ptx_load_flag(&mpk_w.begun) && !ptx_load_flag(&mpk_w.abort) &&
                   ptx_load_flag(&mpk_w.resync) != RESYNC_ASKED)
                __nanosleep(100);
            if (ptx_load_flag(&mpk_w.resync) != RESYNC_ASKED)
                continue;
            /* If the list that is done belongs to the step that has ended, nothing was requested
             * ahead. */
            if (l.step == mpk_w.begun)
                l.pages = d.asked = 0;
        }
        /* Stopped within a list.  Entries that it has requested and not read count as requested. */
        while (ptx_load_flag(&mpk_w.resync) != RESYNC_ASKED)
            if (ptx_load_flag(&mpk_w.abort))
                return;
        ptx_acquire_flag(&mpk_w.resync); /* partner: drop_ahead; the new step's graph */
        graph = mpk_w.graph;
        /* the step that is about to begin: it may begin once this is answered */
        l.step = mpk_w.begun;
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            ptx_store_flag(&mpk_w.loaded, l.step); /* what was loaded ahead belongs to no step */
        loader_answer(&l, &d);
        slot = d.slot;
        parity = d.parity;
        l.cancelled = 0;
    }
}

#endif

#endif
