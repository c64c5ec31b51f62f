/* rt_wait.h - waiting, waking and giving up: every wait is bounded, which paper §5 leaves open.
 *
 * A worker that finds nothing to do polls, then yields its core, then sleeps on its bell.  A thread
 * that changes something a sleeper may wait for checks `sleepers` and rings the bells of the
 * workers concerned.
 *
 * Invariant: no wake is lost.  The sleeper announces itself (sleepers, bell), polls once more, and
 * only then sleeps; the waker makes its change, then checks.  Both use atomic read-modify-writes of
 * the same word, so one of them comes second and sees the other (docs/runtime.md, "No lost wake";
 * tests/ has the model that checks it).
 *
 * A worker that waits also watches: if no worker anywhere has ended a task for longer than the
 * limit, it writes a fault record that names the task and the event at which the step is stuck, and
 * the machine stops.
 */
#ifndef RT_WAIT_H
#define RT_WAIT_H

#include "rt/rt.h"

#define RT_SLICE_NS 100000000ull /* a sleeper looks around this often while a step runs */

/* Wake worker i if it sleeps or is about to; 1 if it did.  The exchange takes the bell back: of
 * several wakers one calls rt_wake. */
RT_FN rt_u32 rt_wake_worker(rt_machine *m, rt_u32 i)
{
    if (rt_exchange_acq_rel_device(&m->workers[i].bell, 0) == 0)
        return 0;
    rt_wake(&m->workers[i].bell);
    return 1;
}

/* How many sleepers may be woken.  If all workers take each other's tasks, those awake will run
 * everything, so no more of them need be awake than there are processors.  Otherwise each worker,
 * or each group, must run its own tasks: wake all, also more than sleep here.  A worker that
 * announces itself after this look would else be woken in the place of one that sleeps. */
RT_FN rt_u32 rt_wake_budget(rt_machine *m)
{
    rt_u32 sleepers = RT_SLEEPS ? rt_add_acq_rel_device(&m->control->sleepers, 0) : 0;
    rt_u32 awake = m->n_workers - sleepers;
    if (!sleepers)
        return 0;
    if (m->steal < m->n_workers)
        return m->n_workers;
    return awake < m->limits.processors ? m->limits.processors - awake : 0;
}

/* A step begins: wake as many workers as can run. */
RT_FN void rt_wake_all(rt_machine *m)
{
    rt_u32 budget = rt_wake_budget(m);
    for (rt_u32 i = 0; budget && i < m->n_workers; i++)
        budget -= rt_wake_worker(m, i);
}

/* Tell the host that there is something to read. */
RT_FN void rt_ring_host(rt_machine *m)
{
    rt_add_acq_rel_system(&m->control->host_bell, 1);
    rt_wake(&m->control->host_bell);
}

/* Wake every worker, the step task and the host, so that all of them see the abort word. */
RT_FN void rt_rouse(rt_machine *m)
{
    for (rt_u32 i = 0; i < m->n_workers; i++)
        rt_wake_worker(m, i);
    rt_add_acq_rel_system(&m->control->doorbell, 1);
    rt_wake(&m->control->doorbell);
    rt_ring_host(m);
}

/* Write the fault record and stop the machine.  The compare and swap admits one writer: a later
 * fault, or one after the host has asked to stop, is dropped. */
RT_LARGE_FN void rt_raise(rt_machine *m, rt_u32 worker, rt_u32 kind, rt_u32 task, rt_u32 event)
{
    rt_fault *f = &m->control->fault;
    if (!rt_replace_acq_rel_device(&m->control->abort, RT_RUNNING, RT_FAULTING))
        return;
    rt_u64 step = rt_load_wide_acquire_device(&m->control->step);
    f->kind = kind;
    f->worker = worker;
    f->graph = step == RT_NO_STEP ? 0 : rt_word_graph(step);
    f->epoch = rt_word_epoch(step);
    f->task = task;
    f->event = event;
    f->seen = f->needed = 0;
    if (event != RT_NONE) {
        rt_u32 at = m->graphs[f->graph].first_event + event;
        f->needed = m->events[at].needed;
        f->seen = rt_load_acquire_device(&m->counters[at]) - f->needed * (f->epoch - 1);
    }
    rt_store_release_system(&m->control->abort, RT_FAULTED); /* publishes the record to the host */
    rt_rouse(m);
}

/* Raise RT_STALL with the first task, in topological order, whose event is not activated: there the
 * step is stuck, as everything before it has run. */
RT_LARGE_FN void rt_raise_stall(rt_machine *m, rt_u32 worker)
{
    rt_u64 step = rt_load_wide_acquire_device(&m->control->step);
    const rt_graph *g = &m->graphs[step == RT_NO_STEP ? 0 : rt_word_graph(step)];
    for (rt_u32 t = 0; t < g->n_tasks; t++) {
        rt_u32 event = m->tasks[g->first_task + t].depends, at = g->first_event + event;
        if ((rt_i32)(rt_load_acquire_device(&m->counters[at]) -
                     m->events[at].needed * rt_word_epoch(step)) < 0) {
            rt_raise(m, worker, RT_STALL, t, event);
            return;
        }
    }
    rt_raise(m, worker, RT_STALL, RT_NONE, RT_END);
}

/* Called now and then by a worker that waits: raise RT_STALL if no worker has ended a task for too
 * long.  `beats` of all workers are summed; any change restarts the clock.  While some worker is
 * inside a body, the longer limit holds. */
RT_LARGE_FN void rt_watch(rt_machine *m, rt_worker *w)
{
    rt_u64 now = rt_clock_ns(), elapsed = now - w->looked_ns, limit = m->limits.stall_ns;
    rt_u32 beats = 0, fresh = w->looked_ns == 0;
    for (rt_u32 i = 0; i < m->n_workers; i++) {
        beats += rt_load_relaxed_device(&m->workers[i].beats);
        if (rt_load_relaxed_device(&m->workers[i].at) != RT_AT_WAIT)
            limit = m->limits.body_ns;
    }
    w->looked_ns = now;
    if (fresh || beats != w->beats_seen || rt_load_relaxed_device(&m->control->idle)) {
        w->beats_seen = beats;
        w->still_ns = 0;
        return;
    }
    /* After a stopped process continues, much time has passed at once: it counts as one look. */
    w->still_ns += elapsed < 2 * RT_SLICE_NS ? elapsed : 2 * RT_SLICE_NS;
    if (w->still_ns < limit)
        return;
    rt_raise_stall(m, w->index);
}

/* The worker has found something to do: withdraw the announcement that it is about to sleep, if it
 * made one. */
RT_FN void rt_worker_awake(rt_machine *m, rt_worker *w)
{
    if (w->announced) {
        rt_exchange_acq_rel_device(&w->bell, 0);
        rt_add_acq_rel_device(&m->control->sleepers, (rt_u32)-1);
        w->announced = 0;
    }
    w->spins = 0;
    w->looked_ns = 0;
}

/* Where threads cannot sleep (a GPU): poll with a pause, and look at the clock every 1024 polls. */
RT_FN void rt_worker_poll_on(rt_machine *m, rt_worker *w)
{
    rt_pause();
    if (w->spins % 1024 == 0)
        rt_watch(m, w);
}

/* The step task waits for the host: no step runs and no worker has work, so `idle` stops the stall
 * clock.  rt_step_look read the doorbell before it looked, so a bell that rang meanwhile ends the
 * sleep at once.  The abort word may have changed between the worker's look at it and that read of
 * the doorbell, whose value then includes rt_rouse's ring; so it is looked at again. */
RT_FN void rt_owner_sleep(rt_machine *m, rt_worker *w)
{
    if (rt_load_acquire_system(&m->control->abort) != RT_RUNNING)
        return;
    rt_store_relaxed_device(&m->control->idle, 1);
    rt_sleep(&m->control->doorbell, w->doorbell, RT_FOREVER);
}

/* The first call announces the sleep and returns, so that the caller polls once more; the second
 * sleeps.  A change in between is either seen by that poll or rings the bell. */
RT_FN void rt_worker_sleep(rt_machine *m, rt_worker *w)
{
    if (!w->announced) {
        w->announced = 1;
        rt_add_acq_rel_device(&m->control->sleepers, 1);
        rt_exchange_acq_rel_device(&w->bell, 1);
        return;
    }
    int idle = rt_load_relaxed_device(&m->control->idle) != 0;
    rt_sleep(&w->bell, 1, idle ? RT_FOREVER : RT_SLICE_NS);
    rt_exchange_acq_rel_device(&w->bell, 0);
    rt_add_acq_rel_device(&m->control->sleepers, (rt_u32)-1);
    w->announced = 0;
    if (!idle)
        rt_watch(m, w);
}

/* Called after a poll that found nothing: spin, then yield, then sleep. */
RT_FN void rt_worker_wait(rt_machine *m, rt_worker *w)
{
    rt_u64 polls = w->spins++;
    if (polls < m->limits.spin_polls)
        rt_pause();
    else if (polls < m->limits.spin_polls + m->limits.yield_polls)
        rt_yield();
    else if (!RT_SLEEPS)
        rt_worker_poll_on(m, w);
    else if (w->owner)
        rt_owner_sleep(m, w);
    else
        rt_worker_sleep(m, w);
}

#endif
