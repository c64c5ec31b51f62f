/* step.cuh - the warp of worker 0 that ends and begins steps (paper §6.1): it calls rt_step_poll
 * (rt/rt_step.h).
 *
 * kernel.cuh starts step_loop in warp MPK_WARPS + 2 of worker 0.  For a launch that is one step,
 * calls.cuh takes its place and uses the same beginning and end.
 *
 *   - This warp alone writes the step word, and only after the end event of the step before: its
 *     acquire of that event's counter sees every result of the step, and its release of the step
 *     word hands them, with the new requests, to all workers.
 *   - Its state (rt_serving, epochs, slots) is copied into shared memory for the life of the kernel
 *     (step_begin) and back when the kernel ends (step_end).  No other warp reads the originals
 *     meanwhile.
 *     step n: all tasks -> end event -> rt_step_poll: collect, admit, build -> step word n + 1
 *             (release each)   (acquire, every lane)                (release)   (acquire, workers)
 *
 *   - A step for the kernel of another regime ends this one (role/regime.cuh).
 *   - A step that takes longer than limits.stall_ns becomes a fault record.  The clock is read at
 *     every 1,024th look.
 */
#ifndef ROLE_STEP_CUH
#define ROLE_STEP_CUH

#include "role/regime.cuh"
#include "rt/rt_step.h"
#include "tile/worker.cuh"

/* What the step task reads in every step, in worker 0's shared memory for the life of the
 * kernel.  The slots follow it there, if all of them fit; otherwise they stay in device memory.
 * A load from L2 costs hundreds of cycles, and between two steps the whole GPU waits for this
 * warp. */
struct mpk_stepper {
    rt_machine machine; /* the kernel's, with the addresses of the copies below */
    rt_serving serving;
    rt_u32 epochs[RT_MAX_GRAPHS];
    /* With a profile: when the step task saw the end of the last step and published the one that
     * runs, and that step's note, which note_end completes. */
    rt_u64 ended_ns, begun_ns;
    rt_u32 begun_cycles;
    rt_step_note note;
};
enum { MPK_SLOTS = (MPK_STEP_TASK_BYTES - sizeof(mpk_stepper)) / sizeof(rt_slot) };
static_assert(sizeof(mpk_worker) <= RT_OWN_BYTES,
              "a worker's own memory fits what the host leaves to it");
/* In the worker's own memory. */
#define mpk_step (*(mpk_stepper *)mpk_w.step_task)
#define mpk_slots ((rt_slot *)(mpk_w.step_task + sizeof(mpk_stepper)))

/* All lanes: n_bytes, a multiple of 4.  The caller meets before another lane reads them. */
MPK_FN void step_copy(void *to, const void *from, rt_u32 n_bytes)
{
    for (rt_u32 i = rt_lane(); i < n_bytes / 4; i += RT_LANES)
        ((rt_u32 *)to)[i] = ((const rt_u32 *)from)[i];
}

/* All lanes, once, before the first step: copy the machine's struct, its counts, its epochs and,
 * if MPK_SLOTS hold them, its slots into shared memory.  Returns the copied struct, whose
 * addresses are those of the copies.  step_end writes them back. */
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
        mpk_step.begun_ns = 0;
        m->serving = &mpk_step.serving;
        m->epochs = mpk_step.epochs;
        if (n_slots <= MPK_SLOTS)
            m->slots = mpk_slots;
    }
    rt_meet();
    return m;
}

/* All lanes, once: write back what the next kernel goes on with.  step: the word of the last
 * step that has ended; a next kernel that finds another word published runs that step first
 * (role/regime.cuh). */
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

/* The end event of the step that runs: its counter, and the value at which it is activated in
 * this run of the graph (needed times the epoch). */
struct mpk_ending {
    const rt_word *counter;
    rt_u32 graph, needed, wanted;
};

/* Counters only grow: the end event of a graph is activated once its counter is needed times the
 * epoch in the step word.  The graph's own numbers are looked up only when it changes. */
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

/* Every lane acquires by itself, since each reads results of the step. */
MPK_FN int step_has_ended(const mpk_ending *e)
{
    return rt_every((rt_i32)(mpk_load_counter(e->counter) - e->wanted) >= 0);
}

/* Has the step lasted too long?  n: looks so far; *since: 0 before the step's first look at the
 * clock, from which the time counts.  The clock is read at every 1,024th look only, so that it
 * does not lengthen the poll. */
MPK_FN int step_is_stuck(const rt_machine *m, rt_u64 *since, rt_u32 *n)
{
    if (++*n % 1024)
        return 0;
    rt_u64 now = rt_clock_ns();
    if (!*since)
        *since = now;
    return rt_every(now - *since > m->limits.stall_ns);
}

/* Lane 0: write the fault record of a stall, with the first task whose event is not activated.
 * Counters lie where their tasks are, so of several GPUs it is the host that finds that task. */
MPK_FN void step_raise_stall(rt_machine *m)
{
    if (MPK_PEERS > 1)
        rt_raise(m, 0, RT_STALL, RT_NONE, RT_END);
    else
        rt_raise_stall(m, 0);
}

/* All lanes, while no request runs: should the kernel end?  After k->idle_ns of that it does,
 * unless a fault or the host was first: the compare-exchange of `abort` decides, and only its
 * winner ends the kernel for this reason.  *idle_since: 0 when idling begins. */
MPK_FN int step_rests(const rt_kernel *k, rt_machine *m, rt_u64 *idle_since)
{
    rt_u64 now = rt_clock_ns();
    int ends = 0;
    if (!*idle_since)
        *idle_since = now;
    if (rt_lane() == 0) {
        rt_store_relaxed_device(&m->control->idle, 1);
        /* Only from RT_RUNNING: a fault, or the host's wish to stop, keeps its own word. */
        ends = k->idle_ns && now - *idle_since > k->idle_ns &&
               rt_replace_acq_rel_device(&m->control->abort, RT_RUNNING, RT_STOPPING);
    }
    return !rt_every(!ends);
}

/* Lane 0, with a profile: `step` has just been published; follows: a step ran right before it. */
MPK_FN void note_begin(rt_u64 step, int follows)
{
    const rt_u64 now = rt_clock_ns();
    mpk_step.begun_ns = now;
    mpk_step.begun_cycles = ptx_cycles();
    mpk_step.note.graph = rt_word_graph(step);
    mpk_step.note.between_ns = follows ? (rt_u32)(now - mpk_step.ended_ns) : 0;
}

/* Lane 0, with a profile: the end of the step that note_begin has begun.  A step that the kernel
 * of another regime has published has no note. */
MPK_FN void note_end(const rt_kernel *k)
{
    const rt_u64 now = rt_clock_ns();
    *(volatile rt_u64 *)&mpk_step.ended_ns = now; /* courier_note reads it */
    if (!mpk_step.begun_ns)
        return;
    mpk_step.note.ns = (rt_u32)(now - mpk_step.begun_ns);
    mpk_step.note.cycles = ptx_cycles() - mpk_step.begun_cycles;
    k->steps->of[k->steps->n++ % RT_STEP_NOTES] = mpk_step.note;
    mpk_step.begun_ns = 0;
}

/* One warp of worker 0, for the life of the kernel.  In a round either the running step is looked
 * at, or, when it has ended, rt_step_poll (rt/rt_step.h) collects it, admits requests and
 * publishes the next.  A step that is another regime's is published too, but this kernel ends
 * instead of running it. */
static __device__ __noinline__ void step_loop(rt_kernel *k)
{
    rt_machine *m = step_begin(k);
    rt_u64 ended = k->start_step, since = 0, idle_since = 0;
    rt_u64 step = MPK_REGIMES > 1 ? rt_load_wide_acquire_device(&m->control->step) : ended;
    rt_u32 n = 0;
    /* `runs` is true at once if the kernel of another regime has published the step that this
     * one begins with. */
    int runs = step != ended, hands_over = 0;
    mpk_ending ending = {0, RT_NONE, 0, 0}; /* of no graph yet */
    if (runs)
        ending_follow(&ending, m, step);
    while (rt_every(!ptx_load_flag(&mpk_w.abort))) {
        if (runs && !step_has_ended(&ending)) {
            if (!step_is_stuck(m, &since, &n))
                continue;
            if (rt_lane() == 0)
                step_raise_stall(m);
            break;
        }
        if (mpk_timed && runs && rt_lane() == 0)
            note_end(k);
        const int follows = runs;
        runs = rt_step_poll(m, &m->workers[0]);
        ended = step;
        if (runs) {
            step = m->serving->step;
            if (MPK_PEERS > 1)
                rt_peers_publish(k, step);
            hands_over = regime_is_other(k, step);
            if (hands_over)
                break;
            ending_follow(&ending, m, step);
            if (mpk_timed && rt_lane() == 0)
                note_begin(step, follows);
            since = idle_since = 0;
        } else if (step_rests(k, m, &idle_since)) {
            break;
        } else {
            __nanosleep(200);
        }
    }
    step_end(k, hands_over ? ended : step); /* ended, if the kernel ends by itself */
    /* After step_end, so that the state is written back before this worker's courier, which
     * waits for the flag, tells the host or counts the hand-over. */
    ptx_store_flag(&mpk_w.abort, 1);
}

#endif
