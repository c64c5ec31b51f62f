/* rt_event.h - events and schedulers (paper §5.1, §5.2): tasks trigger, events are activated,
 * schedulers launch.
 *
 * A task that ends adds 1 to the counter of the event that it triggers.  Counters never reset: in
 * run `epoch` of its graph an event is activated when its counter has reached needed * epoch,
 * compared modulo 2^32, so that a machine can run for ever.
 *
 * AOT tasks poll the counter of their event (rt_event_active).  JIT tasks are pushed: the one
 * worker whose add completes the event hands it to a scheduler, which deals its tasks to the queues
 * of workers.  The same worker wakes sleepers whose tasks are released, and if the event is the end
 * of the step it becomes the owner of the step task.
 *
 * Invariant: exactly one worker completes an event in a step, since the add returns each value
 * once; so an event is submitted once, and a step has one owner.  Memory order: every add is
 * acquire-release, so the adds on one counter form a release sequence, and a thread that sees the
 * full count sees all that the triggering tasks wrote.
 */
#ifndef RT_EVENT_H
#define RT_EVENT_H

#include "rt/rt_queue.h"
#include "rt/rt_wait.h"

/* True once every trigger of this run has arrived; everything those tasks wrote is then visible
 * (acquire; partner: the adds in rt_event_trigger, which form one release sequence). */
RT_FN int rt_event_active(const rt_machine *m, rt_u32 event, rt_u32 epoch)
{
    return (rt_i32)(rt_load_acquire_device(&m->counters[event]) -
                    m->events[event].needed * epoch) >= 0;
}

/* Hand an activated event with JIT tasks to a scheduler.  Worker i always uses scheduler i modulo
 * their number, so that no choice needs shared state. */
RT_FN void rt_event_submit(rt_machine *m, rt_worker *w, rt_u32 event)
{
    rt_u32 s = w->index % m->n_schedulers, mask = m->event_mask;
    if (!rt_queue_push(&m->event[s], m->event_slots + (rt_u64)s * (mask + 1), mask, event))
        rt_raise(m, w->index, RT_OVERFLOW, RT_NONE, event - m->graphs[w->graph].first_event);
}

/* Wake the workers whose AOT tasks depend on the event, if they sleep; rt_wake_budget limits how
 * many. */
RT_FN void rt_event_ring(rt_machine *m, const rt_graph *g, const rt_event *e)
{
    rt_u32 budget = e->jit == e->last - e->first ? 0 : rt_wake_budget(m);
    for (rt_u32 t = e->first; budget && t < e->last; t++) {
        rt_u32 worker = m->tasks[g->first_task + t].worker;
        if (worker != RT_NONE)
            budget -= rt_wake_worker(m, worker);
    }
}

/* A task of the worker's step has ended: count it, and if that completes the event, activate it. */
RT_FN void rt_event_trigger(rt_machine *m, rt_worker *w, rt_u32 event)
{
    const rt_graph *g = &m->graphs[w->graph];
    rt_u32 at = g->first_event + event;
    const rt_event *e = &m->events[at];
    rt_u32 count = rt_add_acq_rel_device(&m->counters[at], 1) + 1;
    if (count != e->needed * w->epoch)
        return;
    rt_point(m, w->index);
    if (event == RT_END) {
        if (m->owner_stays && w->index)
            rt_wake_worker(m, 0);
        else
            w->owner = 1;
        return;
    }
    if (e->jit)
        rt_event_submit(m, w, at);
    rt_event_ring(m, g, e);
}

/* Deal the JIT tasks of an event to the workers in turn (round robin, paper §5.2), one task for
 * each lane at a time.  Turns matter: rt_jit_bound relies on a worker getting at most ceil(n / W)
 * of an event's n tasks. */
RT_FN void rt_sched_deal(rt_machine *m, rt_scheduler *s, const rt_graph *g, const rt_event *e)
{
    rt_u32 next = rt_first(s->next_worker), n;
    for (rt_u32 first = e->first; first < e->last; first += RT_LANES) {
        rt_u32 t = first + rt_lane();
        int jit = t < e->last && m->tasks[g->first_task + t].worker == RT_NONE;
        rt_u32 to = (next + rt_before(jit, &n)) % m->n_workers;
        next = (next + n) % m->n_workers;
        if (!jit)
            continue;
        rt_point(m, s->index);
        if (!rt_queue_push(&m->jit[to], m->jit_slots + (rt_u64)to * (m->jit_mask + 1), m->jit_mask,
                           t))
            rt_raise(m, to, RT_OVERFLOW, t, RT_NONE);
        if (rt_wake_budget(m))
            rt_wake_worker(m, to);
    }
    rt_meet();
    if (rt_lane() == 0)
        s->next_worker = next;
    rt_meet();
}

/* One round of a scheduler, all lanes: take an activated event and deal its JIT tasks.  1: there
 * was one.  The step cannot end before these tasks have run, so the step word still names their
 * graph. */
RT_FN int rt_sched_poll(rt_machine *m, rt_scheduler *s)
{
    rt_u32 at = RT_NONE, mask = m->event_mask;
    if (rt_lane() == 0)
        rt_queue_pop(&m->event[s->index], m->event_slots + (rt_u64)s->index * (mask + 1), mask,
                     &at);
    at = rt_first(at);
    if (at == RT_NONE)
        return 0;
    rt_meet(); /* the first lane's acquire now holds for all lanes */
    rt_sched_deal(m, s, &m->graphs[rt_word_graph(rt_load_wide_acquire_device(&m->control->step))],
                  &m->events[at]);
    return 1;
}

#endif
