/* worker.cuh - a worker's shared memory, and waiting in it: every wait ends (abort word, clock).
 *
 * A worker is one block on one SM (paper §5.1): warps 0 ... MPK_WARPS - 1 run bodies, the next one is the loader of AOT
 * tasks, then the loader of JIT tasks, then a scheduler or (worker 0) the step task, then (worker 0) the courier.
 */
#ifndef TILE_WORKER_CUH
#define TILE_WORKER_CUH

#include "ptx/ptx.cuh"
#include "rt/rt_event.h"

enum { MPK_ENTRIES = 16, MPK_JIT_ENTRY = MPK_ENTRIES }; /* descriptors that a worker holds: ahead and in use */

struct mpk_worker {
    rt_u64 full[MPK_PAGES], empty[MPK_PAGES]; /* of each page: filled; released by all warps that run bodies */
    rt_u32 note[MPK_PAGES];                   /* a word that the load phase sends along with a page */
    rt_u64 entry_full[MPK_ENTRIES], entry_empty[MPK_ENTRIES];
    __align__(128) rt_entry entries[MPK_ENTRIES + 1]; /* the last one: the JIT task that runs */
    rt_u32 live[RT_LIVES];
    rt_u32 graph, epoch;     /* of the step that runs; written by thread 0 between barriers */
    rt_u32 hybrid;           /* 1: the step has JIT tasks */
    rt_u32 choice, taken;    /* of a hybrid step: what runs next, which JIT task */
    rt_u32 abort;            /* flag: 1 everyone leaves */
    rt_u32 begun;            /* flag: steps that have begun since the kernel started */
    rt_u32 resync;           /* flag: RESYNC_* */
    rt_u32 ahead_pages, ahead_entries; /* loaded for a step that will not come */
    rt_u32 jit_mail;         /* flag: 1 the JIT entry waits for its loader */
    rt_u32 index;            /* of the worker */
    rt_u32 mode;
    const rt_kernel *k;      /* in device memory */
    rt_word *counters;
    rt_control *control;
    rt_u64 stall_ns;
    rt_times *times; /* of the entry that runs, or NULL */
};

enum { RESYNC_NONE, RESYNC_ASKED, RESYNC_ANSWERED };

__shared__ mpk_worker mpk_w;
extern __shared__ __align__(1024) char mpk_s[]; /* pages, then scratch */

/* ---- bounded waiting ----
 *
 * A wait looks at the worker's abort flag, in shared memory, and at nothing else: it calls no function, so that a body's
 * registers stay where they are.  The flag is raised by the worker's watcher (kernel.cuh) once the machine's abort word
 * says so; a step that takes too long is noticed by the step task.
 */

/* Raise a fault and let this block leave; the others see the abort word. */
static __device__ __noinline__ void mpk_raise(rt_u32 kind, rt_u32 task, rt_u32 event)
{
    rt_machine *m = (rt_machine *)&mpk_w.k->machine;
    rt_raise(m, mpk_w.index, kind, task, event);
    ptx_store_flag(&mpk_w.abort, 1);
}

#if MPK_BULK
/* Wait for a phase of a barrier in shared memory; returns early if the machine aborts. */
MPK_FN void mpk_barrier_wait(rt_u64 *b, rt_u32 parity)
{
    while (!ptx_barrier_try(b, parity))
        if (ptx_load_flag(&mpk_w.abort))
            break;
}
#endif

/* ---- events, as bodies use them ---- */

/* Thread 0 polls the task's event, the others wait for thread 0; then everything the task reads is there. */
MPK_FN void mpk_wait(const mpk_task &t)
{
    if (mpk_thread() == 0 && mpk_w.mode == RT_SERVE) {
        const rt_word *counter = mpk_w.counters + t.e->depends;
        rt_u32 wanted = t.e->needed * mpk_w.epoch, n = 0;
        while ((rt_i32)(rt_load_acquire_device(counter) - wanted) < 0)
            if (++n % 64 == 0 && ptx_load_flag(&mpk_w.abort))
                break;
        if (mpk_w.times)
            mpk_w.times->ready = ptx_cycles();
    }
    mpk_sync();
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

/* All threads have written their part: count the task. */
MPK_FN void mpk_trigger(const mpk_task &t)
{
    mpk_sync();
    if (mpk_thread() != 0 || mpk_w.mode != RT_SERVE)
        return;
    if (mpk_w.times)
        mpk_w.times->done = ptx_cycles();
    if (t.e->trigger_kind == RT_TRIGGER_COUNT)
        ptx_add_release(mpk_w.counters + t.e->triggers, 1); /* partner: mpk_wait */
    else
        mpk_trigger_launch(t.e->triggers);
    if (mpk_w.times)
        mpk_w.times->end = ptx_cycles();
}

#endif
