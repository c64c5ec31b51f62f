/* worker.cuh - the shared memory of a worker: all that its roles tell each other, and how they wait
 * for it.
 *
 * A worker is one block on one SM (paper §5.1); kernel.cuh lists its warps and the file of each
 * role.  Roles and bodies include this file.  Words marked `flag` are stored with release and
 * polled without order; who then reads what was written before the store acquires it first
 * (ptx_acquire_flag).  The file that is named beside a word states its protocol at its top.  Every
 * wait ends when `abort` is raised.
 *
 *   word                written by           read by            says
 *   begun               thread 0 of bodies   loader, clerk      what the step is, is written down
 *   loaded              loader               clerk              the step's list has been loaded
 *   clerked             clerk                thread 0           the step's list has been counted
 *   ready               clerk                bodies             the event of a task is activated
 *   written[]           bodies               clerk, bodies      a task's results are stored
 *   resync, ahead_...   thread 0, loader     both               a step that does not come
 *   jit_mail            thread 0, clerk      both               the JIT entry has a load phase
 *   plans[]             bodies, loader       both               tiles that only the body knows
 *   choice, taken       thread 0             bodies             between two barriers of bodies
 *   abort               any role             all                leave
 */
#ifndef TILE_WORKER_CUH
#define TILE_WORKER_CUH

#include "ptx/ptx.cuh"
#include "rt/rt_event.h"
#include "rt/rt_peers.h"

/* Descriptors that a worker holds, ahead and in use: 16 of 256 bytes each, and one more for the
 * JIT task that runs.  16 also bounds how far body warps may be ahead of the clerk
 * (role/clerk.cuh). */
enum { MPK_ENTRIES = 16, MPK_JIT_ENTRY = MPK_ENTRIES };
/* Worker 0's room for mpk_stepper and copies of the slots (role/step.cuh).  It is what
 * RT_OWN_BYTES leaves: a static_assert there checks the sum. */
enum { MPK_STEP_TASK_BYTES = 2432 };
/* stages of x of a warpgroup (task/linear_box.cuh) */
enum { MPK_BOXES = 4 };

/* Where a warp that runs bodies stands in the two rings and in its list.  Each warp has one of
 * its own, and writes no other; at the same ordinal all of them hold the same numbers, because all
 * warps go through the same list.  A side lies in shared memory while a body runs: there are no
 * registers to spare, and what the compiler would put on the stack is lost to the L1 cache with
 * every acquire.
 *
 * A position in a ring is an index and a parity.  The index steps through 0 .. n - 1; the parity
 * flips when it wraps, and is the parity of the barrier's phase that the position waits for.
 */
struct __align__(16) mpk_side
{
    rt_u32 at, parity;        /* of the page ring */
    rt_u32 slot, slot_parity; /* of the descriptor ring */
    rt_u32 ordinal;           /* tasks so far, modulo 2^32 */
    rt_u32 next, last;        /* entries of the list */
    rt_u32 reserved;
};
/* The same for the ring of JIT tasks, which moves only when a JIT task runs. */
struct mpk_jit_side {
    rt_u32 at, parity; /* of the page ring for JIT tasks */
};

/* The last task that waited for the ids of experts (task/expert_tile.cuh).  The next product of
 * the same layer has the same ids: if address, epoch and tokens agree and its ordinal follows, it
 * need not wait for them again. */
struct mpk_routed {
    rt_u64 ids;
    rt_u32 ordinal, epoch, lo, hi;
};

/* Where a loader's leading thread has got to, for its other lanes (load_follow in ring.cuh). */
struct __align__(8) mpk_led
{
    /* of mpk_load, from the lowest bit on: ring.at, tail.at, flying, 8 bits each; ring.parity,
     * tail.parity, cancelled */
    rt_u32 place, pages;
};

/* A call's one step, which is known when its kernel begins (role/calls.cuh): its word, and this
 * worker's list.  Zeros in other kernels. */
struct mpk_call_step {
    rt_u64 step;
    rt_range list;
};

/* The worker's state in shared memory; one object, mpk_w.  worker_begin (kernel.cuh) fills it.
 * Its size is a multiple of 1024 bytes, because when units are linked mpk_s begins right after
 * it, whatever alignment mpk_s requests, and swizzled pages need 1024.
 *
 * Shared memory of a block:
 *
 *   mpk_w            8 KB at most (RT_OWN_BYTES)
 *   mpk_s            MPK_PAGES pages of 16 KB: the ring of AOT tasks, then that of JIT tasks
 *                    MPK_SCRATCH_BYTES of scratch: the body that runs
 */
struct __align__(1024) mpk_worker
{
    /* Page ring (ring.cuh), barriers of page i.  full: its bytes have arrived (1 arrival of the
     * loader, and the bytes that it announces).  empty: all MPK_WARPS body warps have released
     * it. */
    rt_u64 full[MPK_PAGES], empty[MPK_PAGES];
    /* A word that the load phase sends along with a page: written before the loader arrives at
     * full[i], read by body warps after it.  What it means is between a body and its load phase. */
    rt_u32 note[MPK_PAGES];
    /* stages of x that products of many tokens copy by boxes (task/linear_box.cuh), of each
     * warpgroup */
    rt_u64 box_full[2][MPK_BOXES]; /* barriers: the stage is filled */
    rt_u32 box_fills[2];           /* stages filled so far, modulo 2^32; changed between tasks */
    /* descriptor ring (role/loader.cuh): barriers of slot i, which become full by a copy and
     * empty by an arrival of each body warp and the clerk */
    rt_u64 entry_full[MPK_ENTRIES], entry_empty[MPK_ENTRIES];
    __align__(128) rt_entry entries[MPK_ENTRIES + 1]; /* the last one: the JIT task that runs */
    mpk_side sides[MPK_WARPS];
    mpk_jit_side jit_sides[MPK_WARPS];
    /* the step that runs (role/bodies.cuh); thread 0 writes it between barriers */
    rt_u64 step; /* its word */
    mpk_call_step call;
    rt_u32 live[RT_LIVES];
    rt_u32 graph, epoch;
    /* Tasks in order (role/clerk.cuh): barriers, of task `ordinal` at ordinal % MPK_ENTRIES: all
     * body warps have written their part of the task and no longer use its scratch.  The clerk then
     * counts the task, and the next task may use the scratch. */
    rt_u64 written[MPK_ENTRIES];
    /* Flag from the clerk: tasks whose event is activated, modulo 2^32.  Task `ordinal` may read
     * what other workers wrote once ready > ordinal. */
    rt_u32 ready;
    /* 1: thread 0 looks after events instead: steps with JIT tasks, RT_ONE_OP */
    rt_u32 direct;
    rt_u32 slot, parity; /* of the step's first entry, for the clerk */
    rt_u32 hybrid;       /* 1: the step has JIT tasks */
    /* in a hybrid step: what runs next, which JIT task (role/jit.cuh) */
    rt_u32 choice, taken;
    rt_u32 abort; /* flag: 1 everyone leaves (role/watcher.cuh) */
    /* The three counts by which the roles follow each other from step to step: `begun` by thread
     * 0 of the bodies, `loaded` and `clerked` by the two warps that work for it.  Only their
     * owners write them.  `begun` and `clerked` only grow; a resync sets `loaded` back to
     * `begun`. */
    rt_u32 begun;                      /* flag: steps that have begun since the kernel started */
    rt_u32 loaded, clerked;            /* flags: steps that the loader, the clerk have finished */
    rt_u32 resync;                     /* flag: RESYNC_* (role/loader.cuh) */
    rt_u32 ahead_pages, ahead_entries; /* loaded for a step that does not come */
    /* flag: 1 the JIT entry waits for its loader (role/clerk.cuh) */
    rt_u32 jit_mail;
    /* Flags from a body to its own loader (task/expert_tile.cuh), [0] of the AOT list and [1] of
     * a JIT task: the plan of the tiles to load is in scratch. */
    rt_u32 plans[2];
    mpk_routed routed;  /* thread 0's; read when the task after it has begun */
    mpk_led led[2];     /* of the loader of the AOT list, of that of JIT tasks */
    rt_u32 first_graph; /* that the loader begins with */
    rt_u32 is_late;     /* 1: the machine had stopped before this kernel began */
    rt_u32 index;       /* of the worker */
    rt_u32 mode;
    const rt_kernel *k; /* in device memory */
    rt_word *counters;
    rt_control *control;
    rt_u64 stall_ns;
    /* of all entries, of the one that runs; if mpk_timed */
    rt_times *all_times, *times;
#if MPK_PEERS > 1
    rt_u64 away[MPK_PEERS]; /* rt_peer.away */
#endif
    __align__(8) char step_task[MPK_STEP_TASK_BYTES]; /* worker 0: mpk_stepper (role/step.cuh) */
};

enum { RESYNC_NONE, RESYNC_ASKED, RESYNC_ANSWERED };

/* 1: the host wants to know when tasks run.  A constant, so that the question costs one
 * comparison. */
extern "C" {
MPK_ELSEWHERE __constant__ rt_u32 mpk_timed;
}

MPK_ELSEWHERE __shared__ mpk_worker mpk_w;
extern __shared__ __align__(1024) char mpk_s[]; /* pages, then scratch */

/* ---- bounded waiting ----
 *
 * A wait looks at the worker's abort flag, in shared memory, and at nothing else: it calls no
 * function, so that a body's registers stay where they are.  The flag is raised by the worker's
 * watcher (role/watcher.cuh) once the machine's abort word says so; a step that takes too long is
 * noticed by the step task.
 */

/* Called by one thread that has found a fault: writes the machine's fault record, if no other
 * fault was first, and raises this worker's flag.  The other workers see the abort word through
 * their watchers.  Not inlined: it runs once at most, and its registers would be taken from
 * bodies. */
static __device__ __noinline__ void mpk_raise(rt_u32 kind, rt_u32 task, rt_u32 event)
{
    rt_machine *m = (rt_machine *)&mpk_w.k->machine;
    rt_raise(m, mpk_w.index, kind, task, event);
    ptx_store_flag(&mpk_w.abort, 1);
}

#if MPK_RING
/* Wait until the phase of this parity has completed; called by any number of threads.  It also
 * returns when the machine aborts: the caller then works on garbage, which does no harm because
 * nothing of an aborted step is read.  So bodies need no second way out. */
MPK_FN void mpk_barrier_wait(rt_u64 *b, rt_u32 parity)
{
    /* The first look stands before the loop, where the compiler puts a YIELD: with lanes that wait
     * elsewhere, each of these costs 60 cycles. */
    if (!ptx_barrier_try(b, parity))
        do
            if (ptx_load_flag(&mpk_w.abort))
                break;
        while (!ptx_barrier_try(b, parity));
}

/* Tasks that the warp of this thread has run before, modulo 2^32: the task's ordinal, by which the
 * clerk and the barriers `written` know it. */
MPK_FN rt_u32 mpk_ordinal(int thread)
{
    return mpk_w.sides[thread / 32].ordinal;
}

/* Until all body warps have written task `ordinal` (acquire, block).  Barrier ordinal % MPK_ENTRIES
 * completes a phase every MPK_ENTRIES tasks, hence the parity.  For ordinal 2^32 - 1, before the
 * first task, the parity is 1, for which a new barrier counts as completed: the first task waits
 * for none. */
MPK_FN void mpk_await_written(rt_u32 ordinal)
{
    mpk_barrier_wait(&mpk_w.written[ordinal % MPK_ENTRIES], ordinal / MPK_ENTRIES & 1);
}
#endif

/* One thread, in a call: this worker has read all that the call before has left, and has seen the
 * step word if it waits for one. */
MPK_FN void mpk_call_arrive(void)
{
    rt_add_acq_rel_device((rt_word *)&mpk_w.k->call.arrived, 1); /* partner: call_loop */
}

/* ---- words that other GPUs may write ---- */

/* An event's counter, with acquire: what its tasks wrote before they counted is seen after it.
 * The scope is the whole system only where tasks of another GPU may count there, since that
 * costs more. */
MPK_FN rt_u32 mpk_load_counter(const rt_word *counter)
{
    return MPK_PEERS > 1 ? rt_load_acquire_system(counter) : rt_load_acquire_device(counter);
}
/* The step word, with acquire: the step's inputs, page tables and live counts are seen after it. */
MPK_FN rt_u64 mpk_load_step(const rt_control *control)
{
    return MPK_PEERS > 1 ? rt_load_wide_acquire_system(&control->step)
                         : rt_load_wide_acquire_device(&control->step);
}

/* ---- events, as bodies use them ---- */

/* A thread, or a warp, polls until the event is activated in this run of its graph; 0: the machine
 * aborts.  A counter never resets: in run number `epoch` it reaches needed * epoch, and the
 * difference is compared as a signed number, so that it may wrap.  The abort flag is looked at in
 * every 64th round only: a look costs as much as a good part of a round. */
MPK_FN int mpk_poll(rt_u32 event, rt_u32 needed)
{
    const rt_word *counter = mpk_w.counters + event;
    rt_u32 wanted = needed * mpk_w.epoch, n = 0;
    while ((rt_i32)(mpk_load_counter(counter) - wanted) < 0)
        if (++n % 64 == 0 && ptx_load_flag(&mpk_w.abort))
            return 0;
    return 1;
}

#if MPK_RING
/* The scratch belongs to one task at a time.  Wait until no warp works on the task before task
 * `ordinal`, which has it from then on.  Warps run ahead of each other, so a fast one would
 * overwrite what a slow one still reads in the task before. */
MPK_FN void mpk_await_scratch(rt_u32 ordinal)
{
    mpk_await_written(ordinal - 1);
#ifdef MPK_CHECKED
    /* a barrier that racecheck follows, beside the one that it does not (docs/gpu.md) */
    mpk_sync();
#endif
}
#endif

/* A body may take its scratch before it calls mpk_wait, to be ready when the event comes. */
MPK_FN void mpk_take_scratch(void)
{
#if MPK_RING
    if (!mpk_w.direct)
        mpk_await_scratch(mpk_ordinal(mpk_thread()));
#endif
}

/* Wait until the task may begin.  Every body, or its caller, calls this in all threads before it
 * touches its scratch or reads an operand that is not carried.  After it, what the event's tasks
 * wrote is visible to the calling thread (unless the task is quiet, and reads carried operands
 * only), and the scratch is the task's.
 *
 *   clerk                                each body thread
 *   poll counter (acquire, device)       poll ready (no order)
 *   ready = ordinal + 1 (release, block) -> acquire ready (block)
 *
 * By causality the thread then sees what the clerk has seen.  Where there is no clerk, or in a
 * step that it leaves alone (`direct`), thread 0 polls and a barrier hands it on. */
MPK_FN void mpk_wait(const mpk_task &t)
{
#if MPK_RING
    if (!mpk_w.direct) {
        const rt_u32 ordinal = mpk_ordinal(mpk_thread());
        /* `ready` also counts quiet tasks, in order, so comparing it with the ordinal is enough. */
        if (!t.e->quiet) {
            while ((rt_i32)(ptx_load_flag(&mpk_w.ready) - ordinal) <= 0 &&
                   !ptx_load_flag(&mpk_w.abort))
                ;
            ptx_acquire_flag(&mpk_w.ready); /* partner: clerk_run_list */
        }
        mpk_await_scratch(ordinal);
        if (mpk_timed && mpk_thread() == 0)
            mpk_w.times->ready = ptx_cycles();
        return;
    }
#endif
    if (mpk_thread() == 0 && mpk_w.mode == RT_SERVE) {
        mpk_poll(t.e->depends, t.e->needed);
        if (mpk_timed)
            mpk_w.times->ready = ptx_cycles();
    }
    mpk_sync();
}

/* ---- carried operands ---- */

/* Does input `operand` tell by itself what of it has been written? */
MPK_FN bool mpk_carries(const mpk_task &t, int operand)
{
    return t.e->carried >> operand & 1;
}
/* RT_EMPTY is the largest word: one comparison tells of many. */
MPK_FN rt_u32 mpk_largest_word(const mpk_words &v)
{
    return mpk_larger(mpk_larger(v.x, v.y), mpk_larger(v.z, v.w));
}
MPK_FN bool mpk_is_empty(const mpk_words &v)
{
    return mpk_largest_word(v) == RT_EMPTY;
}
/* A word of a carried operand, once it is there.  v: what a first load, issued earlier, has
 * brought; only if that was too early is the word loaded again.  Relaxed: the word is all that
 * is read. */
MPK_FN rt_u32 mpk_carried_word(const void *from, rt_u32 v)
{
    while (v == RT_EMPTY && !ptx_load_flag(&mpk_w.abort))
        v = ptx_load_word(from);
    return v;
}

/* Words of carried operands of which other GPUs may have stored some. */
MPK_FN mpk_words mpk_load_terms(const void *from)
{
    return MPK_PEERS > 1 ? ptx_load_words_system(from) : ptx_load_words(from);
}

/* Store a word of a result that may be carried; v is not RT_EMPTY.  Where other GPUs poll it
 * (rt_entry.sends), it goes into the memory of each of them, at the same distance from the word
 * here, so that readers always poll their own memory. */
MPK_FN void mpk_put_word(const mpk_task &t, void *to, rt_u32 v)
{
#if MPK_PEERS > 1
    const rt_u32 sends = t.e->sends;
    if (sends) {
#pragma unroll
        for (int p = 0; p < MPK_PEERS; p++)
            if (sends >> p & 1)
                ptx_store_word_system((char *)to + mpk_w.away[p], v);
        return;
    }
#else
    (void)t;
#endif
    ptx_store_word(to, v);
}

/* What has been stored of a result that is not polled, at a multiple of its size, goes to the other
 * GPUs that read it, too (bits of rt_entry.sends), at the same distance from the place here.  The
 * task's count says when all of it is there: it has system scope, since tasks of those GPUs wait
 * for it. */
template <class T> MPK_FN void mpk_send(rt_u32 sends, T *to, T v)
{
#if MPK_PEERS > 1
#pragma unroll
    for (int p = 0; p < MPK_PEERS; p++)
        if (sends >> p & 1)
            *(T *)((char *)to + mpk_w.away[p]) = v;
#else
    (void)sends, (void)to, (void)v;
#endif
}

MPK_FN void mpk_send_two_words(rt_u32 sends, void *to, rt_u32 low, rt_u32 high)
{
    mpk_send(sends, (rt_u64 *)to, (rt_u64)high << 32 | low);
}

/* Count a task of an event on which JIT tasks depend.  The one who completes the event, and only
 * that one, hands it to its scheduler (paper §5.2).  acq_rel: the scheduler must see what all
 * tasks of the event wrote, not only the last. */
static __device__ __noinline__ void mpk_trigger_launch(rt_u32 triggers)
{
    rt_machine *m = (rt_machine *)&mpk_w.k->machine;
    const rt_event *event = &m->events[triggers];
    if (rt_add_acq_rel_device(&mpk_w.counters[triggers], 1) + 1 != event->needed * mpk_w.epoch)
        return;
    rt_u32 s = mpk_w.index % m->n_schedulers, mask = m->event_mask;
    if (!rt_queue_push(&m->event[s], m->event_slots + (rt_u64)s * (mask + 1), mask, triggers))
        mpk_raise(RT_OVERFLOW, RT_NONE, triggers - m->graphs[mpk_w.graph].first_event);
}

/* Count a finished task at its event, in one thread that has seen all of its results (a barrier
 * of the warps came before): the release publishes them for every warp. */
MPK_FN void mpk_count(rt_u32 event, rt_u32 kind)
{
    if (kind == RT_TRIGGER_COUNT)
        ptx_add_release(mpk_w.counters + event, 1); /* partner: mpk_poll */
    else if (MPK_PEERS > 1 && kind & RT_TRIGGER_PEERS)
        for (rt_u32 p = 0; p < MPK_PEERS; p++)
            rt_peers_count(mpk_w.k, p, event, kind);
    else
        mpk_trigger_launch(event);
}

#if MPK_RING
/* This warp has written its part of the task that it runs and no longer uses the scratch; called
 * once a task by every warp, where there is a clerk.  __syncwarp orders the stores of all lanes
 * before the arrival of lane 0, which releases them to the clerk. */
MPK_FN void mpk_written(int thread)
{
    __syncwarp();
    if (thread % 32 == 0) {
        if (mpk_timed && thread == 0)
            mpk_w.times->done = ptx_cycles();
        ptx_barrier_arrive(
            &mpk_w.written[mpk_ordinal(thread) %
                           MPK_ENTRIES]); /* partners: clerk_run_list, the next task */
    }
}
#endif

/* The calling thread has written its part and needs the scratch no more; all threads call it
 * once a task.  The task counts when all warps have: the clerk sees to that, and no warp waits.
 * Where there is no clerk, thread 0 counts after a barrier. */
MPK_FN void mpk_trigger(const mpk_task &t)
{
#if MPK_RING
    if (!mpk_w.direct) {
        mpk_written(mpk_thread());
        return;
    }
#endif
#if MPK_UNIT >= MPK_UNIT_EXPERTS
    return; /* it must not call: who called it counts the task */
#endif
    mpk_sync();
    if (mpk_thread() != 0 || mpk_w.mode != RT_SERVE)
        return;
    if (mpk_timed)
        mpk_w.times->done = ptx_cycles();
    mpk_count(t.e->triggers, t.e->trigger_kind);
    if (mpk_timed)
        mpk_w.times->end = ptx_cycles();
}

#endif
