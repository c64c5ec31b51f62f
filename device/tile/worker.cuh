/* worker.cuh - the shared memory of a worker: all that its roles tell each other, and how they wait
 * for it.
 *
 * A worker is one block on one SM (paper §5.1); kernel.cuh lists its warps and the file of each
 * role.  Roles and bodies include this file.  Words marked `flag` are stored with release and
 * polled without order; who then reads what was written before the store acquires it first
 * (ptx_acquire_flag).  The file that is named beside a word states its protocol at its top.  Every
 * wait ends when `abort` is raised.
 */
#ifndef TILE_WORKER_CUH
#define TILE_WORKER_CUH

#include "ptx/ptx.cuh"
#include "rt/rt_event.h"
#include "rt/rt_peers.h"

/* descriptors that a worker holds, ahead and in use */
enum { MPK_ENTRIES = 16, MPK_JIT_ENTRY = MPK_ENTRIES };
enum { MPK_STEP_TASK_BYTES = 2432 }; /* room for mpk_stepper (role/step.cuh) */
/* stages of x of a warpgroup (task/linear_box.cuh) */
enum { MPK_BOXES = 4 };

/* Where a warp that runs bodies stands; the same in all of them.  It lies in shared memory while a
 * body runs: there are no registers to spare, and what the compiler would put on the stack is lost
 * to the L1 cache with every acquire. */
struct __align__(16) mpk_side
{
    rt_u32 at, parity;        /* of the page ring */
    rt_u32 slot, slot_parity; /* of the descriptor ring */
    rt_u32 turn;              /* tasks so far, modulo 2^32 */
    rt_u32 next, last;        /* entries of the list */
    rt_u32 reserved;
};
struct mpk_jit_side {
    rt_u32 at, parity; /* of the page ring for JIT tasks */
};

/* The last task that waited for the ids of experts (task/expert_tile.cuh): their address, its turn,
 * its step's epoch, its tokens. */
struct mpk_routed {
    rt_u64 ids;
    rt_u32 turn, epoch, lo, hi;
};

/* A multiple of 1024 bytes: when units are linked, mpk_s begins right after it, whatever its
 * alignment. */
struct __align__(1024) mpk_worker
{
    /* page ring (ring.cuh) */
    /* barriers: the page is filled; all body warps have released it */
    rt_u64 full[MPK_PAGES], empty[MPK_PAGES];
    /* a word that the load phase sends along with a page */
    rt_u32 note[MPK_PAGES];
    /* stages of x that products of many tokens copy by boxes (task/linear_box.cuh), of each
     * warpgroup */
    rt_u64 box_full[2][MPK_BOXES]; /* barriers: the stage is filled */
    rt_u32 box_turn[2];            /* stages filled so far, modulo 2^32; changed between tasks */
    /* descriptor ring (role/loader.cuh) */
    rt_u64 entry_full[MPK_ENTRIES], entry_empty[MPK_ENTRIES];
    __align__(128) rt_entry entries[MPK_ENTRIES + 1]; /* the last one: the JIT task that runs */
    mpk_side sides[MPK_WARPS];
    mpk_jit_side jit_sides[MPK_WARPS];
    /* the step that runs (role/bodies.cuh); thread 0 writes it between barriers */
    rt_u64 step; /* its word */
    rt_u32 live[RT_LIVES];
    rt_u32 graph, epoch;
    /* turns (role/clerk.cuh) */
    /* barriers, of task `turn` at turn % MPK_ENTRIES: all body warps have written their part and no
     * longer use its scratch */
    rt_u64 written[MPK_ENTRIES];
    rt_u32 ready; /* flag from the clerk: tasks whose event is activated */
    /* 1: thread 0 looks after events instead: steps with JIT tasks, RT_ONE_OP */
    rt_u32 direct;
    rt_u32 slot, parity; /* of the step's first entry, for the clerk */
    rt_u32 hybrid;       /* 1: the step has JIT tasks */
    /* in a hybrid step: what runs next, which JIT task (role/jit.cuh) */
    rt_u32 choice, taken;
    rt_u32 abort;                      /* flag: 1 everyone leaves (role/watcher.cuh) */
    rt_u32 begun;                      /* flag: steps that have begun since the kernel started */
    rt_u32 loaded, clerked;            /* flags: steps that the loader, the clerk have finished */
    rt_u32 resync;                     /* flag: RESYNC_* (role/loader.cuh) */
    rt_u32 ahead_pages, ahead_entries; /* loaded for a step that does not come */
    /* flag: 1 the JIT entry waits for its loader (role/clerk.cuh) */
    rt_u32 jit_mail;
    /* flags: what a body tells its loader (task/expert_tile.cuh), of the AOT list and of a JIT
     * task */
    rt_u32 plans[2];
    mpk_routed routed;  /* thread 0's; read when the task after it has begun */
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

/* Raise a fault and let this block leave; the others see the abort word. */
static __device__ __noinline__ void mpk_raise(rt_u32 kind, rt_u32 task, rt_u32 event)
{
    rt_machine *m = (rt_machine *)&mpk_w.k->machine;
    rt_raise(m, mpk_w.index, kind, task, event);
    ptx_store_flag(&mpk_w.abort, 1);
}

#if MPK_RING
/* Wait for a phase of a barrier in shared memory; returns early if the machine aborts. */
MPK_FN void mpk_barrier_wait(rt_u64 *b, rt_u32 parity)
{
    while (!ptx_barrier_try(b, parity))
        if (ptx_load_flag(&mpk_w.abort))
            break;
}

/* Tasks that the warp of this thread has run before, modulo 2^32. */
MPK_FN rt_u32 mpk_turn(int thread)
{
    return mpk_w.sides[thread / 32].turn;
}

/* Until all warps have written task `turn`; of the one before the first, none had to. */
MPK_FN void mpk_await_written(rt_u32 turn)
{
    mpk_barrier_wait(&mpk_w.written[turn % MPK_ENTRIES], turn / MPK_ENTRIES & 1);
}
#endif

/* ---- words that other GPUs may write ---- */

/* A counter; what its tasks wrote is seen after it. */
MPK_FN rt_u32 mpk_load_counter(const rt_word *counter)
{
    return MPK_PEERS > 1 ? rt_load_acquire_system(counter) : rt_load_acquire_device(counter);
}
MPK_FN rt_u64 mpk_load_step(const rt_control *control)
{
    return MPK_PEERS > 1 ? rt_load_wide_acquire_system(&control->step)
                         : rt_load_wide_acquire_device(&control->step);
}

/* ---- events, as bodies use them ---- */

/* One thread: until the event is activated; 0: the machine aborts. */
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
/* Until no warp works on the task before task `turn` any more, which has the scratch then. */
MPK_FN void mpk_await_scratch(rt_u32 turn)
{
    mpk_await_written(turn - 1);
#ifdef MPK_CHECKED
    /* a barrier that racecheck follows, beside the one that it does not (docs/gpu.md) */
    mpk_sync();
#endif
}
#endif

/* Wait until the task may begin: its event is activated, unless the task is quiet, and no warp
 * works on the task before it.  Every body calls this before it touches its scratch or reads an
 * operand that is not carried.  The clerk polls the event; where there is none, thread 0 does.
 */
MPK_FN void mpk_wait(const mpk_task &t)
{
#if MPK_RING
    if (!mpk_w.direct) {
        const rt_u32 turn = mpk_turn(mpk_thread());
        if (!t.e->quiet) {
            while ((rt_i32)(ptx_load_flag(&mpk_w.ready) - turn) <= 0 &&
                   !ptx_load_flag(&mpk_w.abort))
                ;
            ptx_acquire_flag(&mpk_w.ready); /* partner: clerk_run_list */
        }
        mpk_await_scratch(turn);
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
/* A word of a carried operand, once it is there. */
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

/* A word of a result; where other GPUs poll it (rt_entry.sends), into the memory of each. */
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

/* The one who completes an event with JIT dependents hands it to a scheduler. */
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

/* One thread: count the task. */
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
/* This warp has written its part of the task that it runs, where there is a clerk. */
MPK_FN void mpk_written(int thread)
{
    __syncwarp();
    if (thread % 32 == 0) {
        if (mpk_timed && thread == 0)
            mpk_w.times->done = ptx_cycles();
        ptx_barrier_arrive(
            &mpk_w.written[mpk_turn(thread) %
                           MPK_ENTRIES]); /* partners: clerk_run_list, the next task */
    }
}
#endif

/* This thread has written its part and needs the scratch no more.  The task counts when all are:
 * the clerk sees to it, and no warp waits; where there is no clerk, thread 0 does. */
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
