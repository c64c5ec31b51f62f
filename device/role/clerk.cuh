/* clerk.cuh - the warp that polls and counts events, so that no body warp waits for global memory
 * on their account.
 *
 * It goes through the worker's list beside the bodies.  In a step with JIT tasks the body warps
 * look after events themselves and the clerk loads for JIT tasks instead.  kernel.cuh starts
 * clerk_loop in warp MPK_WARPS + 1 of every worker that has a ring.
 *
 * A task's ordinal is its number since the kernel began, modulo 2^32; the clerk and every body warp
 * count it alike.
 *   - Before: the clerk polls the task's event (acquire at device scope), then sets `ready` to
 *     ordinal + 1 (release in the block).  A body warp reads what other workers have written only
 *     after it has seen ready > ordinal (mpk_wait).
 *   - After: each body warp arrives at written[ordinal % MPK_ENTRIES] once it has written its part
 *     and no longer uses the scratch.  The clerk waits for all of them and then adds to the event's
 *     counter with release at device scope: by cumulativity the stores of all body warps are
 *     published by that one addition.
 *   - The clerk gives the entry's slot back (entry_empty) only after it has seen `written`.  The
 *     loader cannot refill the slot before that, so no body warp is more than MPK_ENTRIES tasks
 *     ahead of the clerk, and a barrier of `written` is never two phases ahead of its reader.
 *   - The last task of a list is counted only after the loader has finished the list (`loaded`):
 *     otherwise the step could end, and the next one overwrite data by which the loader decides
 *     what else to load for this one.
 *   - `clerked` counts steps that the clerk has finished.  The bodies' thread 0 waits for it before
 *     it changes what the clerk reads of a step (await_step).
 *
 * Carried words (rt_entry.carried) are set back to RT_EMPTY by the worker that wrote them, at its
 * first task that depends on the end of every reader.  The worker's count of that task publishes
 * the stores, before the step ends; the step word then orders them before every poll of the next
 * step.
 *
 *   step n       stored -> polled by readers -> their tasks counted -> emptied -> counted
 *                -> the end event
 *   step n + 1   the step word, after that event -> the first poll
 *
 * JIT mail: one entry at a time.  take_jit (jit.cuh) fills the JIT entry and sets jit_mail; the
 * clerk loads for it and clears jit_mail; end_jit waits for that.  So the entry never changes while
 * it is read.
 */
#ifndef ROLE_CLERK_CUH
#define ROLE_CLERK_CUH

#include "role/list.cuh"

#if MPK_RING

/* Units that a lane empties by itself: of rows that are looked at first (clerk_box), of others. */
enum { CLERK_LONG_ROW = 16, CLERK_FEW_OF_LONG = 64, CLERK_FEW_UNITS = 128 };

/* bytes: 16 or 4, as the body that wrote them stores its words. */
MPK_FN void clerk_empty(char *to, rt_u32 bytes)
{
    if (bytes == 16)
        ptx_store_words(to, {RT_EMPTY, RT_EMPTY, RT_EMPTY, RT_EMPTY});
    else
        ptx_store_word(to, RT_EMPTY);
}

/* All lanes, with the same arguments: make `alive` rows of `units` units empty, `stride` bytes
 * from one row to the next.  Lanes take different rows; with fewer than 32 rows, 2^shift lanes
 * share the units of one, so that all lanes have something to store. */
MPK_FN void clerk_empty_rows(char *at, rt_u32 alive, rt_u32 stride, rt_u32 units, rt_u32 bytes)
{
    const rt_u32 lane = threadIdx.x % 32;
    const rt_u32 shift = alive > 16   ? 0
                         : alive > 8  ? 1
                         : alive > 4  ? 2
                         : alive > 2  ? 3
                         : alive == 2 ? 4
                                      : 5;
    const rt_u32 first = lane & ((1u << shift) - 1), rows = 32 >> shift, lanes = 1u << shift;
#pragma unroll 1
    for (rt_u32 row = lane >> shift; row < alive; row += rows)
#pragma unroll 1
        for (rt_u32 u = first; u < units; u += lanes)
            clerk_empty(at + (rt_u64)row * stride + u * bytes, bytes);
}

/* A box of carried words to be emptied, clipped to the live rows; the same in all lanes, except
 * `word`. */
struct clerk_box {
    char *at;
    rt_u32 alive, stride, units, bytes;
    bool looks; /* rows are long and few of them were written (parts of attention): load the first
                  * word of each row, and empty only rows where it is not RT_EMPTY */
    rt_u32
        word; /* if `looks`: the first word of row `lane`, loaded ahead: first used a box later */
};

/* All lanes: the box that lane i has read, handed to all by shuffles.  Issues the load of
 * `word`, which is not waited for here. */
MPK_FN clerk_box clerk_box_of(const rt_clear &own, rt_u32 i)
{
    const rt_u32 lane = threadIdx.x % 32, live = mpk_w.live[__shfl_sync(0xffffffffu, own.live, i)];
    const rt_u32 first_row = __shfl_sync(0xffffffffu, own.first_row, i);
    const rt_u32 n_rows = __shfl_sync(0xffffffffu, own.n_rows, i);
    clerk_box b;
    b.at = (char *)__shfl_sync(0xffffffffu, own.at, i);
    b.alive = first_row >= live ? 0 : n_rows < live - first_row ? n_rows : live - first_row;
    b.stride = __shfl_sync(0xffffffffu, own.stride_bytes, i);
    b.units = __shfl_sync(0xffffffffu, own.n_units, i);
    b.bytes = __shfl_sync(0xffffffffu, own.unit_bytes, i);
    b.looks = b.units >= CLERK_LONG_ROW && b.alive <= 32;
    b.word = b.looks && lane < b.alive ? ptx_load_word(b.at + lane * (rt_u64)b.stride) : RT_EMPTY;
    return b;
}

/* Of a box that is looked at, a row is emptied only if its first word has been written: of parts of
 * attention most rows have not, since a token's context lies with few splits. */
MPK_FN void clerk_empty_box(const clerk_box &b)
{
    if (!b.looks)
        clerk_empty_rows(b.at, b.alive, b.stride, b.units, b.bytes);
    rt_u32 left = __ballot_sync(0xffffffffu, b.word != RT_EMPTY); /* 0 if it does not look */
#pragma unroll 1
    for (; left; left &= left - 1)
        clerk_empty_rows(b.at + (rt_u64)(__ffs((int)left) - 1) * b.stride, 1, 0, b.units, b.bytes);
}

/* A lane empties its own box if that has few units; true: it has more, and all lanes will empty
 * it together.  A worker has hundreds of boxes, 14 a layer in steps of 64 tokens, and one box at
 * a time costs the whole warp some 300 instructions whatever the box holds: longer than the
 * product beside which they are emptied (docs/attempts.md). */
MPK_FN bool clerk_empty_own(const rt_clear &own)
{
    const rt_u32 live = mpk_w.live[own.live];
    const rt_u32 alive = own.first_row >= live ? 0 : mpk_smaller(own.n_rows, live - own.first_row);
    if (alive * own.n_units > (own.n_units < CLERK_LONG_ROW ? CLERK_FEW_UNITS : CLERK_FEW_OF_LONG))
        return true;
#pragma unroll 1
    for (rt_u32 row = 0; row < alive; row++)
#pragma unroll 1
        for (rt_u32 u = 0; u < own.n_units; u++)
            clerk_empty((char *)own.at + (rt_u64)row * own.stride_bytes + u * own.unit_bytes,
                        own.unit_bytes);
    return false;
}

/* The boxes of the lanes in `left`, one after the other; the load for the next one is issued before
 * a box is emptied. */
MPK_FN void clerk_empty_left(const rt_clear &own, rt_u32 left)
{
    if (!left)
        return;
    clerk_box box = clerk_box_of(own, (rt_u32)__ffs((int)left) - 1);
#pragma unroll 1
    for (left &= left - 1; left; left &= left - 1) {
        const clerk_box next = clerk_box_of(own, (rt_u32)__ffs((int)left) - 1);
        clerk_empty_box(box);
        box = next;
    }
    clerk_empty_box(box);
}

/* All lanes: set the carried words that this worker wrote in this step back to RT_EMPTY, for the
 * next step.
 *
 * Before: the clerk has seen the event of the first task that follows every reader of a carried
 * word (rt_entry.clears), so no reader polls any more.  After: the worker's next count releases
 * the stores; the end event follows that count, the next step word follows the end event, and
 * every poll of the next step follows its acquire of that word.  So no poll can see a value of
 * this step. */
MPK_FN void clerk_clear(void)
{
    const rt_kernel *k = mpk_w.k;
    const rt_u32 *first = k->first_clear + (rt_u64)mpk_w.graph * k->machine.n_workers + mpk_w.index;
    const rt_u32 lane = threadIdx.x % 32, last = first[1];
    /* A lane reads the description of a box and empties it if it is small; what is left is
     * emptied by all lanes together. */
#pragma unroll 1
    for (rt_u32 from = first[0]; from < last; from += 32) {
        const rt_u32 n = mpk_smaller(last - from, 32);
        rt_clear own = {};
        if (lane < n)
            own = k->clears[from + lane]; /* 32 at a time: one round trip */
        clerk_empty_left(own, __ballot_sync(0xffffffffu, lane < n && clerk_empty_own(own)));
    }
    __syncwarp();
}

/* All lanes: count a task for other GPUs too, lane p on peer p.  A release at system scope waits
 * for all earlier stores; by lanes side by side that wait is paid once, not once a peer.  Lane 0
 * has seen `written`; the lanes meet here, so the release of each covers it. */
MPK_FN void clerk_count_peers(rt_u32 event, rt_u32 kind)
{
    const rt_u32 lane = threadIdx.x % 32;
    __syncwarp();
    if (lane < MPK_PEERS)
        rt_peers_count(mpk_w.k, lane, event, kind);
}

/* All lanes: the clerk's part of a step whose tasks are all AOT, task after task in the order of
 * the list.  Lane 0 counts.  step: number of the step since the kernel began; ordinal: tasks so
 * far, moved on.  The list's last task is counted once the loader has finished the list: a task
 * that needs no pages does not wait for the loader, which must not read the next step's data for
 * this step. */
MPK_FN void clerk_run_list(rt_range list, rt_u32 step, rt_u32 *ordinal)
{
    const rt_u32 lane = threadIdx.x % 32;
    rt_u32 slot = mpk_w.slot, parity = mpk_w.parity;
#pragma unroll 1
    for (rt_u32 i = list.first; i < list.last && !ptx_load_flag(&mpk_w.abort); i++) {
        mpk_barrier_wait(&mpk_w.entry_full[slot], parity);
        const rt_entry *e = &mpk_w.entries[slot];
        /* read before the slot is given back */
        const rt_u32 triggers = e->triggers, kind = e->trigger_kind, clears = e->clears;
        /* All lanes wait together: those that waited for one would slow its looks down. */
        if (!e->quiet)
            mpk_poll(e->depends, e->needed);
        if (lane == 0) /* releases to the body warps what the poll has acquired */
            ptx_store_flag(&mpk_w.ready, *ordinal + 1);
        __syncwarp();
        /* This task's event follows all readers of this worker's carried words. */
        if (clears)
            clerk_clear();
        mpk_await_written(*ordinal);
        if (lane == 0) {
            /* not before: `written` counts no further than the entries */
            ptx_barrier_arrive(&mpk_w.entry_empty[slot]);
            while (i + 1 == list.last && (rt_i32)(ptx_load_flag(&mpk_w.loaded) - step) <= 0 &&
                   !ptx_load_flag(&mpk_w.abort))
                ;
            if (MPK_PEERS == 1 || !(kind & RT_TRIGGER_PEERS))
                mpk_count(triggers, kind); /* releases what the bodies' warps have written */
            if (mpk_timed)
                mpk_w.all_times[i].end = ptx_cycles();
        }
        if (MPK_PEERS > 1 && kind & RT_TRIGGER_PEERS) {
            clerk_count_peers(triggers, kind);
            if (mpk_timed && lane == 0)
                mpk_w.all_times[i].end = ptx_cycles();
        }
        ++*ordinal;
        __syncwarp();
        if (++slot == MPK_ENTRIES) {
            slot = 0;
            parity ^= 1;
        }
    }
}

#if MPK_JIT_PAGES
/* All lanes, in a step with JIT tasks: run the load phase of each JIT task whose entry the
 * bodies have mailed, until the next step begins.  The pages are those kept for JIT tasks, so
 * they never wait for pages that AOT tasks hold. */
MPK_FN void clerk_load(mpk_load *l, rt_u32 step)
{
    while (!ptx_load_flag(&mpk_w.abort) && ptx_load_flag(&mpk_w.begun) == step + 1) {
        if (!ptx_load_flag(&mpk_w.jit_mail)) {
            __nanosleep(50);
            continue;
        }
        ptx_acquire_flag(&mpk_w.jit_mail); /* partner: take_jit */
        l->step = step;
        l->cancelled = 0;
        /* What steps wrote (KV pages) was acquired by thread 0 before its mail; copies need the
         * proxy fence besides. */
        ptx_fence_bulk();
        mpk_dispatch_load(l->e->body, *l);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            ptx_store_flag(&mpk_w.jit_mail, 0);
        __syncwarp();
    }
}
#endif

/* Whole warp, for the life of the kernel.  ordinal goes on through all steps, as the bodies count
 * it; step counts those that have begun.  A step with JIT tasks is `direct`: the bodies poll and
 * count for themselves, and this warp loads for JIT tasks until the next step begins. */
static __device__ void clerk_loop(void)
{
    rt_u32 ordinal = 0; /* tasks counted so far */
#if MPK_JIT_PAGES
    mpk_load l;
    load_begin(&l, MPK_PAGES - MPK_JIT_PAGES, MPK_JIT_PAGES);
    l.e = &mpk_w.entries[MPK_JIT_ENTRY];
#endif
    for (rt_u32 step = 0;; step++) {
        while (ptx_load_flag(&mpk_w.begun) == step)
            if (ptx_load_flag(&mpk_w.abort))
                return;
        ptx_acquire_flag(&mpk_w.begun);
        /* once `clerked` is stored, the bodies may change it */
        const bool direct = mpk_w.direct;
        if (!direct)
            clerk_run_list(mpk_list(mpk_w.graph), step, &ordinal);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            ptx_store_flag(&mpk_w.clerked, step + 1); /* partner: await_step */
        if (!direct && MPK_CALLS) {
            ptx_store_flag(&mpk_w.abort, 1); /* all is counted: the worker leaves */
            return;
        }
#if MPK_JIT_PAGES
        if (direct)
            clerk_load(&l, step);
#endif
    }
}

#endif

#endif
