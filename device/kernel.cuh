/* kernel.cuh - the mega-kernel: what each warp of a worker does (paper §5).
 *
 * Input: rt_kernel in device memory.  One block is one worker; the grid is all workers, all resident at once (the host
 * checks).  The generated source defines, before it includes this file, mpk_dispatch_body, mpk_dispatch_waiting (of
 * bodies that wait and trigger themselves), mpk_dispatch_load, mpk_body_waits, mpk_body_many and mpk_body_loads.
 *
 *   0 .. MPK_WARPS - 1  bodies: follow the step word, run the worker's AOT list in order, JIT tasks in between
 *
 *   MPK_WARPS           loader of AOT tasks: descriptors and constant operands, ahead of events, across tasks,
 *                       operators, layers and steps
 *
 *   MPK_WARPS + 1       the clerk: polls the event of the task that comes, triggers for the task that is done, so that
 *                       no body's warp waits for memory on their account; in steps with JIT tasks it loads for these
 *                       instead, and the bodies' side looks after events itself
 *
 *   MPK_WARPS + 2       worker 0: the step task; workers 1 .. n_schedulers: a scheduler
 *
 *   MPK_WARPS + 3       worker 0: the courier between the machine's rings and the host's; others: the watcher, which
 *                       brings the machine's abort word to the worker
 *
 * The loader assumes that the next step runs the same graph as the last and goes on with its first tasks.  If another
 * comes, the bodies' side asks it to stop (resync), throws away what it has loaded for the step that does not come, and
 * both begin the new list together.
 *
 * A call (rt_call; MPK_CALLS: each launch is one) is one step: nobody waits for another, and each warp leaves when its
 * part of it is done.
 *
 * Where an operator is a kernel (RT_ONE_OP, src/cuda/baseline.c) the loader runs ahead of the end of the kernel before
 * as it runs ahead of events; all that bodies do comes after that end.
 */
#ifndef KERNEL_CUH
#define KERNEL_CUH

#include "rt/rt_step.h"
#include "tile/ring.cuh"

enum { MPK_AHEAD = 4, MPK_STOP = 1u << 31 };

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

/* ---- loaders ---- */

#if MPK_BULK

/* The descriptor ring, as the loader sees it. */
struct mpk_descriptors {
    rt_range list;
    rt_u32 asked;        /* entries of this list that have been asked for */
    rt_u32 slot, parity; /* where the next one goes */
    rt_u32 ahead;
};

/* Ask for descriptors up to `ahead` behind entry i. */
MPK_FN int descriptors_ask(mpk_descriptors *d, mpk_load *l, rt_u32 i)
{
    rt_u32 n = d->list.last - d->list.first;
    while (d->asked < n && d->asked <= i + d->ahead) {
        rt_u64 *empty = &mpk_w.entry_empty[d->slot];
        if (!load_wait(l, empty, d->parity ^ 1))
            return 0;
        if (threadIdx.x % 32 == 0) {
            ptx_barrier_expect(&mpk_w.entry_full[d->slot], sizeof(rt_entry));
            ptx_copy_bulk(&mpk_w.entries[d->slot], mpk_w.k->entries + d->list.first + d->asked, sizeof(rt_entry),
                          &mpk_w.entry_full[d->slot]);
        }
        __syncwarp();
        d->asked++;
        if (++d->slot == MPK_ENTRIES) {
            d->slot = 0;
            d->parity ^= 1;
        }
    }
    return 1;
}

/* Stop loading for a step that does not come: tell how much there is to throw away. */
MPK_FN void loader_answer(mpk_load *l, const mpk_descriptors *d)
{
    if (threadIdx.x % 32 == 0) {
        mpk_w.ahead_pages = l->pages;
        mpk_w.ahead_entries = d->asked;
        ptx_store_flag(&mpk_w.resync, RESYNC_ANSWERED);
    }
    __syncwarp();
}

/* Ablation: until all warps that run bodies have turned to entry number `next`.  0: they will not. */
MPK_FN int loader_await_turn(const mpk_load *l, rt_u32 next)
{
    const rt_u32 lane = threadIdx.x % 32;
    while (!__all_sync(0xffffffffu, lane >= MPK_WARPS || ptx_load_flag(&mpk_w.sides[lane].next) == next))
        if (load_is_over(l))
            return 0;
    return 1;
}

/* Load one step's list.  0: the step does not come. */
MPK_FN int loader_run_list(mpk_load *l, mpk_descriptors *d, rt_u32 *slot, rt_u32 *parity)
{
    rt_u32 n = d->list.last - d->list.first;
    l->pages = d->asked = 0;
    for (rt_u32 i = 0; i < n; i++) {
        if (!descriptors_ask(d, l, i))
            return 0;
        mpk_barrier_wait(&mpk_w.entry_full[*slot], *parity);
        l->e = &mpk_w.entries[*slot];
        if (l->e->body != RT_NONE && mpk_body_loads(l->e->body)) {
            if (!mpk_w.k->tuning.preload && !loader_await_turn(l, d->list.first + i))
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

static __device__ void loader_loop(void)
{
    const rt_kernel *k = mpk_w.k;
    mpk_load l;
    mpk_descriptors d = {};
    rt_u32 slot = 0, parity = 0, graph = k->start_step == RT_NO_STEP ? 0 : rt_word_graph(k->start_step);
    load_begin(&l, 0, MPK_PAGES - MPK_JIT_PAGES);
    l.in_flight = mpk_smaller(k->tuning.in_flight, l.ring.n);
    l.aot = 1;
    d.ahead = k->tuning.descriptor_ahead < MPK_AHEAD ? k->tuning.descriptor_ahead : MPK_AHEAD;
    for (;;) {
        d.list = mpk_list(graph);
        int done = loader_run_list(&l, &d, &slot, &parity);
        if (done && threadIdx.x % 32 == 0)
            ptx_store_flag(&mpk_w.loaded, l.step + 1); /* partner: clerk_run_list */
        __syncwarp();
        if (ptx_load_flag(&mpk_w.abort) || k->mode != RT_SERVE || k->call.is_one)
            return;
        if (done) {
            l.step++;
            /* The next step's first loads need no more than memory; but no further than one step ahead. */
            while (l.step > ptx_load_flag(&mpk_w.begun) && !ptx_load_flag(&mpk_w.abort) &&
                   ptx_load_flag(&mpk_w.resync) != RESYNC_ASKED)
                __nanosleep(100);
            if (ptx_load_flag(&mpk_w.resync) != RESYNC_ASKED)
                continue;
            /* The list that is done was that of the step which has ended, or that of the one that does not come. */
            if (l.step == mpk_w.begun)
                l.pages = d.asked = 0;
        }
        /* Entries that were asked for but not looked at stand in the ring all the same. */
        while (ptx_load_flag(&mpk_w.resync) != RESYNC_ASKED)
            if (ptx_load_flag(&mpk_w.abort))
                return;
        ptx_acquire_flag(&mpk_w.resync); /* partner: drop_ahead; the new step's graph */
        graph = mpk_w.graph;
        l.step = mpk_w.begun; /* that of the step which is about to begin; behind the answer it may begin */
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            ptx_store_flag(&mpk_w.loaded, l.step); /* what was loaded ahead is of no step */
        loader_answer(&l, &d);
        slot = d.slot;
        parity = d.parity;
        l.cancelled = 0;
    }
}

/* ---- the clerk ---- */

MPK_FN void clerk_empty(char *to, rt_u32 bytes)
{
    if (bytes == 16)
        ptx_store_words(to, {RT_EMPTY, RT_EMPTY, RT_EMPTY, RT_EMPTY});
    else
        ptx_store_word(to, RT_EMPTY);
}

/* Make `alive` rows of `units` empty, `stride` bytes from one to the next: the lanes share out rows, and what lanes are
 * left over the units of a row. */
MPK_FN void clerk_empty_rows(char *at, rt_u32 alive, rt_u32 stride, rt_u32 units, rt_u32 bytes)
{
    const rt_u32 lane = threadIdx.x % 32;
    const rt_u32 shift = alive > 16 ? 0 : alive > 8 ? 1 : alive > 4 ? 2 : alive > 2 ? 3 : alive == 2 ? 4 : 5;
    const rt_u32 first = lane & ((1u << shift) - 1), rows = 32 >> shift, lanes = 1u << shift;
#pragma unroll 1
    for (rt_u32 row = lane >> shift; row < alive; row += rows)
#pragma unroll 1
        for (rt_u32 u = first; u < units; u += lanes)
            clerk_empty(at + (rt_u64)row * stride + u * bytes, bytes);
}

/* A box that the clerk empties, the same in all lanes but for `word`. */
struct clerk_box {
    char *at;
    rt_u32 alive, stride, units, bytes;
    bool looks;  /* of long rows few are written (parts of attention): look first */
    rt_u32 word; /* then: the first one of row `lane`; it is on its way */
};

/* That of lane i. */
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
    b.looks = b.units >= 16 && b.alive <= 32;
    b.word = b.looks && lane < b.alive ? ptx_load_word(b.at + lane * (rt_u64)b.stride) : RT_EMPTY;
    return b;
}

MPK_FN void clerk_empty_box(const clerk_box &b)
{
    if (!b.looks)
        clerk_empty_rows(b.at, b.alive, b.stride, b.units, b.bytes);
    rt_u32 left = __ballot_sync(0xffffffffu, b.word != RT_EMPTY); /* none, if it does not look */
#pragma unroll 1
    for (; left; left &= left - 1)
        clerk_empty_rows(b.at + (rt_u64)(__ffs((int)left) - 1) * b.stride, 1, 0, b.units, b.bytes);
}

/* Words that this worker has written and that carried their own readiness, for the next step: nobody reads them any
 * more.  The worker's next trigger releases the stores.  All lanes.  A look for the box that comes next goes out before
 * a box is emptied. */
MPK_FN void clerk_clear(void)
{
    const rt_kernel *k = mpk_w.k;
    const rt_u32 *first = k->first_clear + (rt_u64)mpk_w.graph * k->machine.n_workers + mpk_w.index;
    const rt_u32 lane = threadIdx.x % 32, last = first[1];
#pragma unroll 1
    for (rt_u32 from = first[0]; from < last; from += 32) {
        const rt_u32 n = mpk_smaller(last - from, 32);
        rt_clear own = {};
        if (lane < n)
            own = k->clears[from + lane]; /* 32 at a time: one wait for memory */
        clerk_box box = clerk_box_of(own, 0);
#pragma unroll 1
        for (rt_u32 i = 1; i < n; i++) {
            const clerk_box next = clerk_box_of(own, i);
            clerk_empty_box(box);
            box = next;
        }
        clerk_empty_box(box);
    }
    __syncwarp();
}

/* Number `step` since the kernel began, whose tasks are all AOT: task after task, in the order of the bodies' side.
 * All lanes; lane 0 polls and counts.  turn: tasks so far.  The list's last task counts when the loader is through with
 * the list: a task that needs no pages does not wait for it, and it must not find the next step's data. */
MPK_FN void clerk_run_list(rt_range list, rt_u32 step, rt_u32 *turn)
{
    const rt_u32 lane = threadIdx.x % 32;
    rt_u32 slot = mpk_w.slot, parity = mpk_w.parity;
#pragma unroll 1
    for (rt_u32 i = list.first; i < list.last && !ptx_load_flag(&mpk_w.abort); i++) {
        mpk_barrier_wait(&mpk_w.entry_full[slot], parity);
        const rt_entry *e = &mpk_w.entries[slot];
        const rt_u32 triggers = e->triggers, kind = e->trigger_kind, clears = e->clears;
        if (lane == 0) {
            if (!e->quiet)
                mpk_poll(e->depends, e->needed);
            ptx_store_flag(&mpk_w.ready, *turn + 1); /* hands on what the poll has acquired */
        }
        __syncwarp();
        if (clears)
            clerk_clear();
        if (lane == 0) {
            mpk_await_written(*turn);
            ptx_barrier_arrive(&mpk_w.entry_empty[slot]); /* not before: `written` counts no further than the entries */
            while (i + 1 == list.last && (rt_i32)(ptx_load_flag(&mpk_w.loaded) - step) <= 0 &&
                   !ptx_load_flag(&mpk_w.abort))
                ;
            mpk_count(triggers, kind); /* releases what the bodies' warps have written */
            if (mpk_timed)
                mpk_w.all_times[i].end = ptx_cycles();
        }
        ++*turn;
        __syncwarp();
        if (++slot == MPK_ENTRIES) {
            slot = 0;
            parity ^= 1;
        }
    }
}

#if MPK_JIT_PAGES
/* A step with JIT tasks: they come one at a time; load what the bodies' side has put into the mail. */
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
        ptx_fence_bulk();
        mpk_dispatch_load(l->e->body, *l);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            ptx_store_flag(&mpk_w.jit_mail, 0);
        __syncwarp();
    }
}
#endif

static __device__ void clerk_loop(void)
{
    rt_u32 turn = 0;
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
        const bool direct = mpk_w.direct;
        if (!direct)
            clerk_run_list(mpk_list(mpk_w.graph), step, &turn);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            ptx_store_flag(&mpk_w.clerked, step + 1); /* partner: await_step */
        if (!direct && mpk_w.k->call.is_one) {
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

/* ---- bodies ---- */

MPK_FN mpk_jit_side *jit_side_of_warp(void)
{
    return &mpk_w.jit_sides[mpk_thread() / 32];
}
/* Run the task of entry `slot`.  A body that waits or loads is called though nothing of its box is alive.  Each body is
 * called from one place, so that its code is there once.  of_list: the task is the next of the list; false: unit 2 has
 * run it, and gone on from there. */
MPK_FN bool run_entry(rt_u32 slot, mpk_ring *ring, bool of_list)
{
    mpk_task t = task_of_entry(slot, ring);
    const rt_u32 body = t.e->body;
    if (mpk_body_waits(body)) {
        mpk_dispatch_waiting(body, t);
        return true;
    }
#if MPK_BULK && MPK_UNIT == 1
    if (of_list && mpk_body_many(body)) {
        mpk_run_many(0);
        return false;
    }
#else
    (void)of_list;
#endif
    t.hi0 = mpk_end(t);
    mpk_wait(t);
    if (task_has_work(t))
        mpk_dispatch_body(body, t);
    mpk_trigger(t);
    return true;
}

/* ---- steps with JIT tasks ---- */

enum { CHOICE_AOT, CHOICE_JIT, CHOICE_END };

/* Thread 0: JIT tasks first, then the next AOT task (slot; RT_NONE: the list is done) if its event is activated
 * (paper §5.2). */
static __device__ __noinline__ rt_u32 choose(rt_u64 step, rt_u32 slot)
{
    rt_machine *m = (rt_machine *)&mpk_w.k->machine;
    rt_u32 me = mpk_w.index, n = 0;
    for (;;) {
        if (rt_queue_pop(&m->jit[me], m->jit_slots + (rt_u64)me * (m->jit_mask + 1), m->jit_mask, &mpk_w.taken))
            return CHOICE_JIT;
        if (slot != RT_NONE) {
            const rt_entry *e = &mpk_w.entries[slot];
            if ((rt_i32)(rt_load_acquire_device(mpk_w.counters + e->depends) - e->needed * mpk_w.epoch) >= 0)
                return CHOICE_AOT;
        } else if (rt_load_wide_acquire_device(&mpk_w.control->step) != step) {
            return CHOICE_END;
        }
        if (++n % 64 == 0 && ptx_load_flag(&mpk_w.abort))
            return CHOICE_END;
    }
}

/* All threads: what runs next. */
MPK_FN rt_u32 agree(const mpk_side *s, bool more)
{
    if (mpk_thread() == 0)
        mpk_w.choice = choose(mpk_w.step, more ? s->slot : RT_NONE);
    mpk_sync();
    rt_u32 choice = mpk_w.choice;
    mpk_sync();
    return choice;
}

/* Fetch the entry of the JIT task that was taken, and send it to its loader.  Its index. */
MPK_FN rt_u32 take_jit(void)
{
    const rt_kernel *k = mpk_w.k;
    rt_u32 at = k->jit_entry[k->machine.graphs[mpk_w.graph].first_task + mpk_w.taken];
    const rt_u32 *from = (const rt_u32 *)(k->entries + at);
    for (int i = mpk_thread(); i < (int)(sizeof(rt_entry) / 4); i += MPK_THREADS)
        ((rt_u32 *)&mpk_w.entries[MPK_JIT_ENTRY])[i] = from[i];
    mpk_sync();
#if MPK_JIT_PAGES
    rt_u32 body = mpk_w.entries[MPK_JIT_ENTRY].body;
    if (body != RT_NONE && mpk_body_loads(body) && mpk_thread() == 0)
        ptx_store_flag(&mpk_w.jit_mail, 1);
#endif
    return at;
}

MPK_FN void end_jit(void)
{
#if MPK_JIT_PAGES
    if (mpk_thread() == 0)
        while (ptx_load_flag(&mpk_w.jit_mail) && !ptx_load_flag(&mpk_w.abort))
            ;
#endif
    mpk_sync();
}

/* The next task of the step.  0: there is none.  side: as it lies in shared memory too. */
MPK_FN int run_task(bool hybrid, mpk_side *side)
{
    mpk_side s = *side;
    const bool more = s.next < s.last;
    if (!hybrid && !more)
        return 0;
    if (more)
        take_entry(&s);
    const rt_u32 choice = hybrid ? agree(&s, more) : CHOICE_AOT;
    if (choice == CHOICE_END)
        return 0;
    const bool jit = choice == CHOICE_JIT;
    const rt_u32 at = jit ? take_jit() : s.next;
    if (mpk_timed && mpk_thread() == 0) {
        mpk_w.times = mpk_w.all_times + at;
        mpk_w.times->begin = ptx_cycles();
    }
    mpk_jit_side *j = jit_side_of_warp();
    mpk_ring ring = {jit ? (rt_u32)(MPK_PAGES - MPK_JIT_PAGES) : 0u,
                     (rt_u32)(jit ? MPK_JIT_PAGES : MPK_PAGES - MPK_JIT_PAGES), jit ? j->at : s.at,
                     jit ? j->parity : s.parity};
    if (!run_entry(jit ? MPK_JIT_ENTRY : s.slot, &ring, !hybrid && !mpk_w.direct)) {
        *side = *side_of_warp();
        return 1;
    }
    const int thread = mpk_thread();
    s = mpk_w.sides[thread / 32];
    s.turn += !hybrid; /* as the clerk, who rests in a hybrid step */
    if (jit) {
        __syncwarp();
        if (mpk_thread() % 32 == 0)
            *j = {ring.at, ring.parity};
        end_jit();
    } else {
        s.at = ring.at;
        s.parity = ring.parity;
        end_entry(&s, thread, mpk_w.direct);
    }
    side_put(s, thread);
    *side = s;
    return 1;
}

/* ---- following the step word ---- */

#if MPK_BULK
/* The loader has gone ahead into a step that does not come: take what it has loaded and drop it. */
MPK_FN void drop_ahead(mpk_side *s)
{
    if (mpk_thread() == 0) {
        ptx_store_flag(&mpk_w.resync, RESYNC_ASKED);
        while (ptx_load_flag(&mpk_w.resync) != RESYNC_ANSWERED && !ptx_load_flag(&mpk_w.abort))
            ;
        ptx_acquire_flag(&mpk_w.resync); /* partner: loader_answer */
    }
    mpk_sync();
    rt_u32 pages = mpk_w.ahead_pages, entries = mpk_w.ahead_entries;
    mpk_ring ring = {0, MPK_PAGES - MPK_JIT_PAGES, s->at, s->parity};
    for (rt_u32 i = 0; i < pages && !ptx_load_flag(&mpk_w.abort); i++) {
        rt_u32 page;
        ring_take(&ring, &page);
        ring_release(page);
    }
    s->at = ring.at;
    s->parity = ring.parity;
    for (rt_u32 i = 0; i < entries && !ptx_load_flag(&mpk_w.abort); i++) {
        mpk_barrier_wait(&mpk_w.entry_full[s->slot], s->slot_parity);
        end_entry(s, mpk_thread(), true);
    }
    mpk_sync();
    if (mpk_thread() == 0)
        ptx_store_flag(&mpk_w.resync, RESYNC_NONE);
}
#endif

/* Thread 0 waits for a step after the last and writes down what it is; MPK_STOP: none comes. */
static __device__ __noinline__ void await_step(void)
{
    rt_control *c = mpk_w.control;
    rt_u64 step, last = mpk_w.step;
    rt_u32 n = 0;
    rt_call *call = (rt_call *)&mpk_w.k->call;
    if (call->is_one && mpk_w.begun) {
        mpk_w.choice = MPK_STOP;
        return;
    }
    while ((step = rt_load_wide_acquire_device(&c->step)) == last)
        if (++n % 64 == 0 && ptx_load_flag(&mpk_w.abort))
            break;
    if (ptx_load_flag(&mpk_w.abort)) {
        mpk_w.choice = MPK_STOP;
        return;
    }
#if MPK_BULK
    /* A clerk that has nothing to do in a step may be late for it: nobody waits for what it counts. */
    while (ptx_load_flag(&mpk_w.clerked) != mpk_w.begun && !ptx_load_flag(&mpk_w.abort))
        ;
    ptx_acquire_flag(&mpk_w.clerked);
#endif
    mpk_w.step = step;
    mpk_w.choice = rt_word_graph(step) != mpk_w.graph;
    mpk_w.graph = rt_word_graph(step);
    mpk_w.epoch = rt_word_epoch(step);
    if (mpk_w.choice)
        mpk_w.hybrid = mpk_w.k->machine.graphs[mpk_w.graph].n_jit != 0;
    for (rt_u32 i = 0; i < RT_LIVES; i++)
        mpk_w.live[i] = rt_word_live(step, i);
    if (call->is_one)
        rt_add_acq_rel_device(&call->arrived, 1); /* partner: call_loop */
}

/* All threads: the next step, or (not serving) the one operator that this kernel runs.  0: none comes. */
static __device__ __noinline__ int begin_step(bool serve)
{
    mpk_side s = *side_of_warp();
    if (serve) {
        if (mpk_thread() == 0)
            await_step();
        mpk_sync();
        if (mpk_w.choice & MPK_STOP)
            return 0;
#if MPK_BULK
        if (mpk_w.choice)
            drop_ahead(&s);
#endif
        mpk_sync();
    }
    const rt_range list = mpk_list(mpk_w.graph);
    s.next = list.first;
    s.last = list.last;
    side_put(s, mpk_thread());
    if (serve && mpk_thread() == 0) {
        mpk_w.direct = mpk_w.hybrid;
        mpk_w.slot = s.slot;
        mpk_w.parity = s.slot_parity;
        ptx_store_flag(&mpk_w.begun, mpk_w.begun + 1); /* partners: the loader, the clerk */
    }
    mpk_sync();
    return 1;
}

/* Asked anew each time: it would hold a register for the life of the kernel. */
MPK_FN bool mpk_serves(void)
{
    return *(volatile rt_u32 *)&mpk_w.mode == RT_SERVE;
}

MPK_FN void body_loop(void)
{
    if (!mpk_serves())
        ptx_grid_wait();
    while (begin_step(mpk_serves())) {
        /* no code for JIT tasks where there are none */
        const bool hybrid = MPK_HYBRID && mpk_serves() && mpk_w.hybrid;
        mpk_side side = *side_of_warp();
        while (!ptx_load_flag(&mpk_w.abort) && run_task(hybrid, &side))
            ;
        mpk_sync();
        if (!mpk_serves())
            return;
    }
    if (mpk_thread() == 0 && (!MPK_BULK || mpk_w.direct))
        ptx_store_flag(&mpk_w.abort, 1); /* of a call; where there is a clerk it has the last word */
}

/* ---- the step task ---- */

/* What the step task looks at in every step, brought near for the life of the kernel; of worker 0.  Slots as far as
 * shared memory reaches; where a program has more, they stay where they are. */
struct mpk_stepper {
    rt_machine machine; /* the kernel's, but for the addresses of what lies here */
    rt_serving serving;
    rt_u32 epochs[RT_MAX_GRAPHS];
    rt_u64 ended_ns; /* with a profile: when the step task saw the end of the last step */
};
enum { MPK_SLOTS = (MPK_STEP_TASK_BYTES - sizeof(mpk_stepper)) / sizeof(rt_slot) };
static_assert(sizeof(mpk_worker) <= MPK_OWN_BYTES, "a worker's own is as much as the host leaves to it");
/* In the worker's own memory. */
#define mpk_step (*(mpk_stepper *)mpk_w.step_task)
#define mpk_slots ((rt_slot *)(mpk_w.step_task + sizeof(mpk_stepper)))

MPK_FN void step_copy(void *to, const void *from, rt_u32 n_bytes)
{
    for (rt_u32 i = rt_lane(); i < n_bytes / 4; i += RT_LANES)
        ((rt_u32 *)to)[i] = ((const rt_u32 *)from)[i];
}

MPK_FN rt_machine *step_begin(rt_kernel *k)
{
    rt_machine *m = &mpk_step.machine;
    rt_u32 n_slots = k->machine.serving->n_slots;
    step_copy(m, &k->machine, sizeof *m);
    step_copy(&mpk_step.serving, k->machine.serving, sizeof mpk_step.serving);
    step_copy(mpk_step.epochs, k->machine.epochs, k->machine.n_graphs * sizeof(rt_u32));
    if (n_slots <= MPK_SLOTS)
        step_copy(mpk_slots, k->machine.slots, n_slots * sizeof(rt_slot));
    rt_meet();
    if (rt_lane() == 0) {
        m->serving = &mpk_step.serving;
        m->epochs = mpk_step.epochs;
        if (n_slots <= MPK_SLOTS)
            m->slots = mpk_slots;
    }
    rt_meet();
    return m;
}

/* For the next kernel. */
MPK_FN void step_end(rt_kernel *k, rt_u64 step)
{
    rt_u32 n_slots = mpk_step.serving.n_slots;
    rt_meet();
    step_copy(k->machine.serving, &mpk_step.serving, sizeof mpk_step.serving);
    step_copy(k->machine.epochs, mpk_step.epochs, k->machine.n_graphs * sizeof(rt_u32));
    if (n_slots <= MPK_SLOTS)
        step_copy(k->machine.slots, mpk_slots, n_slots * sizeof(rt_slot));
    if (rt_lane() == 0)
        k->start_step = step;
}

/* The end event of the step that runs. */
struct mpk_ending {
    const rt_word *counter;
    rt_u32 graph, needed, wanted;
};

MPK_FN void ending_follow(mpk_ending *e, const rt_machine *m, rt_u64 step)
{
    if (e->graph != rt_word_graph(step)) {
        e->graph = rt_word_graph(step);
        rt_u32 at = m->graphs[e->graph].first_event + RT_END;
        e->counter = m->counters + at;
        e->needed = m->events[at].needed;
    }
    e->wanted = e->needed * rt_word_epoch(step);
}

/* Every lane acquires by itself: each reads results of the step. */
MPK_FN int step_has_ended(const mpk_ending *e)
{
    return rt_every((rt_i32)(rt_load_acquire_device(e->counter) - e->wanted) >= 0);
}

/* Has the step lasted too long?  A stopped process does not age: only times at which it was looked at count. */
MPK_FN int step_is_stuck(const rt_machine *m, rt_u64 *since, rt_u32 *n)
{
    if (++*n % 1024)
        return 0;
    rt_u64 now = rt_clock_ns();
    if (!*since)
        *since = now;
    return rt_every(now - *since > m->limits.stall_ns);
}

/* Nothing to do: shall the kernel end? */
MPK_FN int step_rests(const rt_kernel *k, rt_machine *m, rt_u64 *idle_since)
{
    rt_u64 now = rt_clock_ns();
    int ends = 0;
    if (!*idle_since)
        *idle_since = now;
    if (rt_lane() == 0) {
        rt_store_relaxed_device(&m->control->idle, 1);
        ends = k->idle_ns && now - *idle_since > k->idle_ns &&
               rt_replace_acq_rel_device(&m->control->abort, RT_RUNNING, RT_STOPPING);
    }
    return !rt_every(!ends);
}

/* A warp of worker 0.  It alone writes the step word. */
static __device__ __noinline__ void step_loop(rt_kernel *k)
{
    rt_machine *m = step_begin(k);
    rt_u64 step = k->start_step, since = 0, idle_since = 0;
    rt_u32 n = 0;
    int runs = 0;
    mpk_ending ending = {0, RT_NONE, 0, 0};
    while (rt_every(!ptx_load_flag(&mpk_w.abort))) {
        if (runs && !step_has_ended(&ending)) {
            if (!step_is_stuck(m, &since, &n))
                continue;
            if (rt_lane() == 0)
                rt_raise_stall(m, 0);
            break;
        }
        if (mpk_timed && runs && rt_lane() == 0)
            *(volatile rt_u64 *)&mpk_step.ended_ns = rt_clock_ns();
        runs = rt_step_poll(m, &m->workers[0]);
        if (runs) {
            step = m->serving->step;
            ending_follow(&ending, m, step);
            since = idle_since = 0;
        } else if (step_rests(k, m, &idle_since)) {
            break;
        } else {
            __nanosleep(200);
        }
    }
    step_end(k, step); /* over, if the kernel ends by itself */
    ptx_store_flag(&mpk_w.abort, 1);
}

/* One thread of every other worker: bring it the machine's abort word. */
static __device__ __noinline__ void watch_loop(void)
{
    const rt_u32 rest_ns = mpk_w.k->call.is_one ? 500 : 5000; /* a call ends only when everyone has left */
    while (!ptx_load_flag(&mpk_w.abort)) {
        if (rt_load_relaxed_device(&mpk_w.control->abort) != RT_RUNNING)
            ptx_store_flag(&mpk_w.abort, 1);
        __nanosleep(rest_ns);
    }
}

/* One thread, once no worker changes it any more: how the machine stands, and what has failed, to the host. */
static __device__ __noinline__ void tell_end(rt_kernel *k)
{
    rt_machine *m = &k->machine;
    while (rt_load_relaxed_device(&m->control->abort) == RT_FAULTING)
        __nanosleep(100);
    rt_u32 state = rt_load_acquire_system(&m->control->abort);
    if (state == RT_FAULTED)
        for (rt_u32 i = 0; i < sizeof(rt_fault) / 4; i++)
            ((volatile rt_u32 *)k->host_fault)[i] = ((const rt_u32 *)&m->control->fault)[i];
    __threadfence_system();
    rt_store_release_system(k->host_state, state == RT_RUNNING ? RT_STOPPING : state);
}

/* ---- calls ---- */

MPK_FN void call_move_list(const rt_kernel *k, rt_u32 list)
{
    const rt_call *c = &k->call;
    for (rt_u32 i = c->first_use[list] + threadIdx.x; i < c->first_use[list + 1]; i += blockDim.x)
        ((rt_u64 *)k->entries)[c->uses[i].word] = c->addresses[1 + c->uses[i].slot] + c->uses[i].offset;
}

/* All threads, before any of them reads an entry: new addresses into the worker's own list; worker 0 also into JIT
 * tasks, which others read once it has published the step. */
static __device__ __noinline__ void call_begin(const rt_kernel *k)
{
    const rt_u64 set = k->call.addresses[0];
    if (k->call.held[blockIdx.x] == set)
        return;
    call_move_list(k, blockIdx.x);
    if (blockIdx.x == 0)
        call_move_list(k, k->machine.n_workers);
    __threadfence();
#if MPK_BULK
    ptx_fence_bulk();
#endif
    __syncthreads();
    if (threadIdx.x == 0)
        k->call.held[blockIdx.x] = set;
}

/* A warp of worker 0, in the place of step_loop: publish the step, see its end.  The step word is cleared for the next
 * call only when every worker has seen it. */
static __device__ __noinline__ void call_loop(rt_kernel *k)
{
    rt_machine *m = step_begin(k);
    rt_u64 since = 0;
    rt_u32 n = 0, aborted = 0;
    mpk_ending ending = {0, RT_NONE, 0, 0};
    if (rt_lane() == 0)
        rt_step_publish(m, &m->workers[0], 0, RT_NONE, RT_NONE);
    rt_meet();
    rt_u64 step = m->serving->step;
    ending_follow(&ending, m, step);
    const rt_u32 everyone = m->n_workers * rt_word_epoch(step);
    while (!aborted && !(step_has_ended(&ending) && rt_every(rt_load_acquire_device(&k->call.arrived) == everyone))) {
        if (step_is_stuck(m, &since, &n) && rt_lane() == 0)
            rt_raise_stall(m, 0);
        aborted = !rt_every(rt_load_relaxed_device(&m->control->abort) == RT_RUNNING);
    }
    step_end(k, RT_NO_STEP);
    rt_meet();
    if (rt_lane() != 0)
        return;
    if (aborted)
        tell_end(k);
    else
        rt_store_wide_release_device(&m->control->step, RT_NO_STEP);
}

/* ---- the courier ---- */

/* A look over the bus takes more than a microsecond, so the courier asks for all words of the host at once, a lane
 * each, and knows by heart what only it writes. */
enum { COURIER_COMMANDS, COURIER_REQUESTS, COURIER_WANTED, COURIER_ABORT, COURIER_TAKEN, COURIER_WORDS };

/* The word of this lane. */
MPK_FN const rt_word *courier_word(const rt_kernel *k)
{
    switch (threadIdx.x % 32) {
    case COURIER_COMMANDS:
        return &k->host_command_ring->written;
    case COURIER_REQUESTS:
        return &k->host_request_ring->written;
    case COURIER_WANTED:
        return k->host_once_wanted;
    case COURIER_ABORT:
        return k->host_abort;
    default:
        return &k->host_token_ring->read;
    }
}

/* From one ring to another: entries of `size` bytes (a multiple of 4), rings of mask + 1. */
struct courier_way {
    rt_ring *from, *to;
    const char *source;
    char *target;
    rt_u32 mask, size;
    rt_u32 read, written; /* from->read and to->written, the courier's */
};

MPK_FN courier_way courier_begin(rt_ring *from, const void *source, rt_ring *to, void *target, rt_u32 mask, rt_u32 size)
{
    return {from, to, (const char *)source, (char *)target, mask, size, from->read.value, to->written.value};
}

/* Move the entries before number `end`, as far as there is room; all lanes.  taken: to->read, or what it was.  How
 * many. */
MPK_FN rt_u32 courier_move(courier_way *w, rt_u32 end, rt_u32 taken)
{
    const rt_u32 lane = threadIdx.x % 32, words = w->size / 4, all = end - w->read,
                 space = w->mask + 1 - (w->written - taken), n = __shfl_sync(0xffffffffu, mpk_smaller(all, space), 0);
    for (rt_u32 at = lane; at < n * words; at += 32)
        ((volatile rt_u32 *)(w->target + (rt_u64)((w->written + at / words) & w->mask) * w->size))[at % words] =
            ((const volatile rt_u32 *)(w->source + (rt_u64)((w->read + at / words) & w->mask) * w->size))[at % words];
    __syncwarp();
    w->written += n;
    w->read += n;
    if (n && lane == 0) {
        __threadfence_system();
        rt_store_release_system(&w->to->written, w->written);
        rt_store_release_system(&w->from->read, w->read);
    }
    __syncwarp();
    return n;
}

/* Lane 0.  Host-driven steps and stopping: a few words each way. */
MPK_FN void courier_words(rt_kernel *k, rt_u32 wanted, rt_u32 abort, rt_u32 *asked, rt_u32 *done)
{
    rt_control *c = k->machine.control;
    if (wanted != *asked) {
        c->once_graph = ((const volatile rt_u32 *)k->host_once)[0];
        c->once_tokens = ((const volatile rt_u32 *)k->host_once)[1];
        c->once_rows = ((const volatile rt_u32 *)k->host_once)[2];
        *asked = wanted;
        rt_store_release_system(&c->once_wanted, wanted);
    }
    const rt_u32 now = rt_load_acquire_system(&c->once_done);
    if (now != *done)
        rt_store_release_system(k->host_once_done, now);
    *done = now;
    if (abort)
        rt_replace_acq_rel_device(&c->abort, RT_RUNNING, RT_STOPPING);
}

/* Tokens that the host has not taken yet: one burst at a time is followed. */
struct courier_burst {
    rt_u32 is_out, end; /* end: of the host's ring when it was sent */
    rt_u64 since;
};

/* With a profile, one lane: has the host taken them? */
MPK_FN void courier_note(rt_kernel *k, courier_burst *b, rt_u32 sent, rt_u32 written, rt_u32 taken)
{
    if (!b->is_out && sent) {
        b->is_out = 1;
        b->end = written;
        b->since = *(volatile rt_u64 *)&mpk_step.ended_ns;
    }
    if (b->is_out && (rt_i32)(taken - b->end) >= 0) {
        b->is_out = 0;
        k->delays->ns[k->delays->n++ % RT_DELAYS] = (rt_u32)(rt_clock_ns() - b->since);
    }
}

static __device__ __noinline__ void courier_loop(rt_kernel *k)
{
    rt_machine *m = &k->machine;
    const rt_word *word = courier_word(k);
    courier_way tokens =
        courier_begin(m->token_ring, m->tokens, k->host_token_ring, k->host_tokens, m->token_mask, sizeof(rt_token));
    courier_way requests = courier_begin(k->host_request_ring, k->host_requests, m->request_ring, m->requests,
                                         m->request_mask, sizeof(rt_request));
    courier_way commands = courier_begin(k->host_command_ring, k->host_commands, m->command_ring, m->commands,
                                         m->command_mask, sizeof(rt_command));
    rt_u32 lane = threadIdx.x % 32, asked = m->control->once_wanted.value, done = k->host_once_done->value, last = 0, n;
    rt_u32 ordered = commands.read; /* as the look before has seen them: the requests before them are seen by now */
    courier_burst burst = {0, 0, 0};
    do {
        const rt_u32 mine = lane < COURIER_WORDS ? rt_load_acquire_system(word) : 0;
        rt_u32 host[COURIER_WORDS];
        __syncwarp(); /* what one lane has acquired, all have */
        for (int i = 0; i < COURIER_WORDS; i++)
            host[i] = __shfl_sync(0xffffffffu, mine, i);
        const rt_u32 sent = courier_move(&tokens, rt_load_acquire_system(&m->token_ring->written), host[COURIER_TAKEN]);
        n = sent;
        if (!last && requests.read != host[COURIER_REQUESTS])
            n += courier_move(&requests, host[COURIER_REQUESTS], rt_load_acquire_system(&m->request_ring->read));
        if (!last && commands.read != ordered && requests.read == host[COURIER_REQUESTS])
            n += courier_move(&commands, ordered, rt_load_acquire_system(&m->command_ring->read));
        ordered = host[COURIER_COMMANDS];
        if (lane == 0) {
            if (k->delays)
                courier_note(k, &burst, sent, tokens.written, host[COURIER_TAKEN]);
            courier_words(k, host[COURIER_WANTED], host[COURIER_ABORT], &asked, &done);
            if (rt_load_relaxed_device(&m->control->abort) != RT_RUNNING)
                ptx_store_flag(&mpk_w.abort, 1);
        }
        __syncwarp();
        last = __shfl_sync(0xffffffffu, ptx_load_flag(&mpk_w.abort), 0);
        if (!n && !last)
            __nanosleep(500);
    } while (!last || n); /* what was written before the end still goes out */
    if (lane == 0)
        tell_end(k);
}

/* ---- the kernel ---- */

MPK_FN void worker_begin(const rt_kernel *k)
{
    if (threadIdx.x == 0) {
        mpk_w.k = k;
        mpk_w.counters = k->machine.counters;
        mpk_w.control = k->machine.control;
        mpk_w.stall_ns = k->machine.limits.stall_ns;
        mpk_w.index = blockIdx.x;
        mpk_w.mode = k->mode;
        mpk_w.times = 0;
        mpk_w.step = k->start_step;
        for (int i = 0; i < MPK_WARPS; i++) {
            mpk_w.sides[i] = {};
            mpk_w.jit_sides[i] = {};
        }
        mpk_w.all_times = k->times;
        mpk_w.direct = k->mode != RT_SERVE;
        mpk_w.graph = k->mode == RT_ONE_OP ? k->graph : k->start_step == RT_NO_STEP ? 0 : rt_word_graph(k->start_step);
        mpk_w.hybrid = k->machine.graphs[mpk_w.graph].n_jit != 0;
        mpk_w.abort = mpk_w.begun = mpk_w.loaded = mpk_w.clerked = mpk_w.resync = mpk_w.jit_mail = mpk_w.ready = 0;
        for (int i = 0; i < RT_LIVES; i++)
            mpk_w.live[i] = k->machine.control->live[i];
#if MPK_BULK
#pragma unroll 1
        for (int i = 0; i < MPK_PAGES; i++) {
            ptx_barrier_init(&mpk_w.full[i], 1);
            ptx_barrier_init(&mpk_w.empty[i], MPK_WARPS);
        }
#pragma unroll 1
        for (int i = 0; i < MPK_ENTRIES; i++) {
            ptx_barrier_init(&mpk_w.entry_full[i], 1);
            ptx_barrier_init(&mpk_w.entry_empty[i], MPK_WARPS + 1); /* bodies and clerk */
            ptx_barrier_init(&mpk_w.written[i], MPK_WARPS);
        }
        ptx_fence_barrier_init();
#endif
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(MPK_WORKER_THREADS, 1) mpk_kernel(rt_kernel *k)
{
    rt_u32 warp = threadIdx.x / 32;
    if (k->call.is_one)
        call_begin(k);
    if (k->mode == RT_ONE_OP)
        ptx_grid_let_next();
    worker_begin(k);
#if !MPK_CALLS
    if (k->mode == RT_ONE_STEP) {
        ptx_grid_wait();
        if (blockIdx.x == 0 && warp == 0) {
            k->machine.workers[0].owner = 1;
            rt_step_poll(&k->machine, &k->machine.workers[0]);
        }
        return;
    }
#endif
    if (warp < MPK_WARPS)
        body_loop();
#if MPK_BULK
    else if (warp == MPK_WARPS)
        loader_loop();
    else if (warp == MPK_WARPS + 1) {
        if (k->mode == RT_SERVE)
            clerk_loop();
    }
#endif
    else if (k->mode != RT_SERVE)
        return;
    else if (warp == MPK_WARPS + 2 && blockIdx.x == 0 && k->call.is_one)
        call_loop(k);
#if !MPK_CALLS
    else if (warp == MPK_WARPS + 2 && blockIdx.x == 0)
        step_loop(k);
#endif
    else if (warp == MPK_WARPS + 2 && blockIdx.x <= k->machine.n_schedulers) {
        while (rt_every(!ptx_load_flag(&mpk_w.abort)))
            if (!rt_sched_poll(&k->machine, &k->machine.schedulers[blockIdx.x - 1]))
                __nanosleep(50);
    }
#if !MPK_CALLS
    else if (warp == MPK_WARPS + 3 && blockIdx.x == 0 && !k->call.is_one)
        courier_loop(k);
#endif
    else if (warp == MPK_WARPS + 3 && threadIdx.x % 32 == 0)
        watch_loop();
}

#endif
