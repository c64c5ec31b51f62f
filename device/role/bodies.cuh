/* bodies.cuh - the warps that run bodies: follow the step word, run the worker's AOT list in order,
 * JIT tasks in between.
 *
 * kernel.cuh starts body_loop in warps 0 ... MPK_WARPS - 1 of every worker.  The generated source
 * defines the mpk_dispatch_... and mpk_body_... functions that are called here.
 *
 *   - Each warp goes through the list by itself.  Where it stands (mpk_side) is the same in all
 *     warps at the same ordinal; it lies in shared memory while a body runs and in registers
 *     otherwise.
 *   - A step begins in begin_step: thread 0 reads the step word, writes down what the step is
 *     (graph, epoch, live), and counts `begun` (release) after all warps have their lists.  Loader
 *     and clerk acquire `begun` before they read any of it.  Thread 0 changes it for the next step
 *     only after the clerk has finished the last one (`clerked`); the loader reads nothing of it
 *     but the graph, in a resync, when thread 0 waits for its answer.
 *   - `direct` says who looks after events: 0 the clerk, 1 thread 0 of the bodies (steps with JIT
 *     tasks, RT_ONE_OP). It changes between steps only.
 *   - A call's step is known when its kernel begins, and no step word is waited for (calls.cuh).
 *   - Every wait ends when `abort` is raised.  The warps then leave in any order, and nothing that
 *     they leave half done is read again: the host reads the fault record, not the results.
 */
#ifndef ROLE_BODIES_CUH
#define ROLE_BODIES_CUH

#include "role/jit.cuh"
#include "role/regime.cuh"

enum { MPK_STOP = 1u << 31 };

/* This warp's place in the ring of pages of JIT tasks. */
MPK_FN mpk_jit_side *jit_side_of_warp(void)
{
    return &mpk_w.jit_sides[mpk_thread() / 32];
}
/* All body threads: run the task of entry `slot`, wherever its code is.  Each body is called
 * from one place, so that its code exists once.
 *
 *   body                       who waits for the event    who triggers
 *   waits (few tokens)         the body                   the body
 *   of another unit, of_list   that unit, task by task    that unit
 *   some (17 to 64 tokens)     the body                   the body
 *   many, waits by itself      the body                   the body, in a unit its caller
 *   any other                  run_entry                  run_entry
 *
 * A body that waits or loads is called even if nothing of its box is alive.  of_list: the task
 * is the next of the list and the clerk looks after its event, so a unit may go on with the
 * tasks after it by itself.  Returns false if it did: the side in shared memory has then moved
 * on. */
MPK_FN bool run_entry(rt_u32 slot, mpk_ring *ring, bool of_list)
{
    mpk_task t = task_of_entry(slot, ring);
    const rt_u32 body = t.e->body;
    if (mpk_body_waits(body)) {
        mpk_dispatch_waiting(body, t);
        return true;
    }
#if MPK_RING && MPK_UNIT == MPK_UNIT_KERNEL
    const rt_u32 unit = unit_of_entry(t.e);
    if (of_list && unit) {
        mpk_run_unit(unit, 0);
        return false;
    }
#else
    (void)of_list;
#endif
    if (mpk_body_some(body)) {
        mpk_dispatch_some(body, t);
        return true;
    }
    const bool by_itself = mpk_body_many_waits(body);
    t.hi0 = mpk_end(t);
    if (!by_itself)
        mpk_wait(t);
    if (by_itself || task_has_work(t))
        mpk_dispatch_body(body, t);
    if (!by_itself || MPK_UNIT) /* bodies for many tokens leave counting to their caller */
        mpk_trigger(t);
    return true;
}

/* All body threads: run the next task of the step, of the list or, in a step with JIT tasks, of
 * the worker's queue.  0: there is none.  side: equal to what lies in shared memory, on entry
 * and on return; it is kept in registers between tasks only.  On return the entry is given back,
 * and the page ring stands after the last page that the body took. */
MPK_FN int run_task(bool hybrid, mpk_side *side)
{
    mpk_side s = *side;
    const bool more = s.next < s.last; /* the list is not done */
    if (!hybrid && !more)
        return 0;
    if (more)
        take_entry(&s);
    const rt_u32 choice = hybrid ? agree(&s, more) : CHOICE_AOT;
    if (choice == CHOICE_END)
        return 0;
    const bool jit = choice == CHOICE_JIT; /* else the next of the list */
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
    /* Read the side from shared memory again: kept across the body, it would cost the body
     * registers.  Only the ring's place is kept, because the body has advanced it. */
    const int thread = mpk_thread();
    s = mpk_w.sides[thread / 32];
    s.ordinal += !hybrid; /* as the clerk counts, which rests in a hybrid step */
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

#if MPK_RING
/* All body threads, between two steps, when the step that has come runs another graph than the
 * last: the loader has gone ahead into the list of the old graph.  Ask it to stop, then take
 * what it has loaded and drop it, as a step would: every barrier goes through its phases, and the
 * rings need no reset.  After it both sides stand at the same place.  s moves on; role/loader.cuh
 * has the protocol. */
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
    mpk_ring ring = {0, MPK_PAGES - MPK_JIT_PAGES, s->at, s->parity}, held = ring;
    rt_u32 page;
    /* Requested pages may still be in flight, and one page's barrier may count the copies of
     * several.  So take all of them, at most a ring, before releasing any: a released page may be
     * filled again, which must not happen while a copy into it is under way. */
    for (rt_u32 i = 0; i < pages && !ptx_load_flag(&mpk_w.abort); i++)
        ring_take(&ring, &page);
    for (rt_u32 i = 0; i < pages; i++) {
        ring_release(held.first + held.at);
        ring_next(&held);
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

/* Thread 0: write down what the step is, by its word. */
MPK_FN void note_step(rt_u64 step)
{
    mpk_w.step = step;
    mpk_w.choice = rt_word_graph(step) != mpk_w.graph;
    mpk_w.graph = rt_word_graph(step);
    mpk_w.epoch = rt_word_epoch(step);
    if (mpk_w.choice)
        mpk_w.hybrid = mpk_w.k->machine.graphs[mpk_w.graph].n_jit != 0;
    for (rt_u32 i = 0; i < RT_LIVES; i++)
        mpk_w.live[i] = rt_word_live(step, i);
}

/* Thread 0, between two steps: wait for a step word other than the last and write down what the
 * step is (step, graph, epoch, live, hybrid).  mpk_w.choice tells the other threads, after a
 * barrier: 0 a step of the same graph, 1 of another, MPK_STOP none comes.  No other thread reads
 * what it writes until then: the bodies wait at the barrier, loader and clerk for `begun`. */
static __device__ __noinline__ void await_step(void)
{
    rt_control *c = mpk_w.control;
    rt_u64 step, last = mpk_w.step; /* the word that is published; the one that has ended */
    rt_u32 n = 0;
    if (MPK_CALLS && mpk_w.begun) {
        mpk_w.choice = MPK_STOP;
        return;
    }
    if (MPK_CALLS && !mpk_w.hybrid) {
        note_step(mpk_w.call.step);
        return;
    }
    /* Acquire at device scope (of several GPUs, system): partner of the step task's release,
     * after which all results of the step before and all inputs of this one are visible. */
    while ((step = mpk_load_step(c)) == last)
        if (++n % 64 == 0 && ptx_load_flag(&mpk_w.abort))
            break;
    if (ptx_load_flag(&mpk_w.abort)) {
        mpk_w.choice = MPK_STOP;
        return;
    }
#if MPK_RING
    /* A clerk that has nothing to do in a step may still be in it: no barrier has waited for it. */
    while (ptx_load_flag(&mpk_w.clerked) != mpk_w.begun && !ptx_load_flag(&mpk_w.abort))
        ;
    ptx_acquire_flag(&mpk_w.clerked);
#endif
    if (rt_word_graph(step) != mpk_w.graph && regime_is_other(mpk_w.k, step)) {
        mpk_w.choice = MPK_STOP;
        /* worker 0's step task, if it has one, raises it when all is written back */
        if (mpk_w.index != 0 || (MPK_PEERS > 1 && mpk_w.k->peer))
            ptx_store_flag(&mpk_w.abort, 1);
        return;
    }
    note_step(step);
    if (MPK_CALLS) /* with JIT tasks: the word is cleared only when every worker has seen it */
        mpk_call_arrive();
}

/* All body threads: begin the next step, or (not serving) the one operator that this kernel
 * runs. 0: none comes.  On return every warp's side stands at the first entry of its list, and
 * `begun` has told loader and clerk. */
static __device__ __noinline__ int begin_step(bool serve)
{
    mpk_side s = *side_of_warp();
    if (serve) {
        if (mpk_thread() == 0)
            await_step();
        mpk_sync();
        /* All threads read `choice` between these two barriers; in a hybrid step agree() writes
         * it again. */
        if (mpk_w.choice & MPK_STOP)
            return 0;
#if MPK_RING
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
        /* What the clerk needs of the step.  It waits for `begun`, so it reads none of these too
         * early. */
        mpk_w.direct = mpk_w.hybrid;
        mpk_w.slot = s.slot;
        mpk_w.parity = s.slot_parity;
        ptx_store_flag(&mpk_w.begun, mpk_w.begun + 1); /* partners: the loader, the clerk */
    }
    mpk_sync();
    return 1;
}

/* Does the kernel serve steps, rather than run one operator?  Read again each time (volatile):
 * kept, it would hold a register for the life of the kernel. */
MPK_FN bool mpk_serves(void)
{
    return *(volatile rt_u32 *)&mpk_w.mode == RT_SERVE;
}

/* All threads of warps 0 to MPK_WARPS - 1, for the life of the kernel: step after step, and in
 * each step task after task.  It returns when the machine stops, when the next step is another
 * kernel's, or, if the kernel runs one operator, after that. */
MPK_FN void body_loop(void)
{
    if (!mpk_serves())
        ptx_grid_wait();
    while (begin_step(mpk_serves())) {
        /* no code for JIT tasks where there are none */
        const bool hybrid = MPK_HYBRID && mpk_serves() && mpk_w.hybrid;
        mpk_side side = *side_of_warp(); /* in registers between tasks */
        while (!ptx_load_flag(&mpk_w.abort) && run_task(hybrid, &side))
            ;
        /* Thread 0 may not change what the step is while a slower warp still runs its last task. */
        mpk_sync();
        if (!mpk_serves())
            return;
    }
    if (mpk_thread() == 0 && (!MPK_RING || mpk_w.direct))
        ptx_store_flag(&mpk_w.abort, 1); /* of a call; where there is a clerk, it raises the flag */
}

#endif
