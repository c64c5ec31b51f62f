/* rt_worker.h - the worker's loop (paper §5): JIT tasks first, then the next AOT task if its event
 * is activated.
 *
 * A worker waits only when no task is ready for it: neither in its JIT queue, nor at the head of
 * its AOT list, nor, where workers help each other, in the queues and lists of its group.
 *
 * The cursor of an AOT list.  It holds the epoch and the number of the next entry.  Claiming an
 * entry is one compare and swap of the cursor, by the list's own worker or by a helper, so each
 * entry runs once in a step.  Lists need no reset: a cursor whose epoch is not the current one
 * stands for "nothing claimed in this step".
 *
 * On a CPU worker i also polls scheduler i; on a GPU the schedulers are warps of their own, and
 * device/role has another loop over the same protocol.  The target that includes this header
 * defines rt_run_body and rt_preload.
 */
#ifndef RT_WORKER_H
#define RT_WORKER_H

#include "rt/rt_event.h"
#include "rt/rt_page.h"
#include "rt/rt_step.h"

/* Run the code of operator m->ops[op] on the task's box, whose axis 0 ends at hi0 <= task->hi[0],
 * with scratch from the worker's pages `page` on. */
RT_FN void rt_run_body(rt_machine *m, rt_worker *w, const rt_task *task, rt_u32 op, rt_u32 hi0,
                       rt_u32 page);

/* Prefetch piece number `piece` of the constant operands of a task (an index into m->tasks),
 * without waiting for it.
 *  0: it has no such piece. */
RT_FN int rt_preload(rt_machine *m, rt_worker *w, rt_u32 task, rt_u32 piece);

/* Read the step word.  While a worker runs a task, the step cannot end: the task has not triggered
 * yet. */
RT_FN void rt_worker_enter(rt_machine *m, rt_worker *w)
{
    rt_u64 step = rt_load_wide_acquire_device(&m->control->step); /* partner: rt_step_publish */
    w->step = step;
    w->graph = rt_word_graph(step);
    w->epoch = rt_word_epoch(step);
}

/* Run a task on the part of its box that is alive in this step.  If nothing of it is, the body does
 * not run, but the caller still triggers: counters grow by the same number in every step. */
RT_FN void rt_run_clipped(rt_machine *m, rt_worker *w, const rt_task *task)
{
    rt_u32 at = m->graphs[w->graph].first_op + task->op;
    const rt_op *op = &m->ops[at];
    rt_u32 live = rt_word_live(w->step, op->live), hi0 = task->hi[0];
    rt_hold hold;
    if (op->live != RT_ALL && hi0 > live)
        hi0 = live;
    if (op->rank && task->lo[0] >= hi0)
        return;
    if (!rt_pages_acquire(&w->pages, op->pages, &hold)) {
        rt_raise(m, w->index, RT_OVERFLOW, rt_load_relaxed_device(&w->task), RT_NONE);
        return;
    }
    rt_store_relaxed_device(&w->at, RT_AT_BODY);
    rt_run_body(m, w, task, at, hi0, hold.first);
    rt_store_relaxed_device(&w->at, RT_AT_WAIT);
    rt_pages_release(&w->pages, &hold);
}

/* One task whose event is activated, from the note of it to its trigger. `task` and `beats` are
 * for whoever looks for a stall.
 */
RT_FN void rt_run_task(rt_machine *m, rt_worker *w, rt_u32 t)
{
    const rt_task *task = &m->tasks[m->graphs[w->graph].first_task + t];
    rt_worker_awake(m, w);
    rt_store_relaxed_device(&w->task, t);
    rt_point(m, w->index);
    if (task->op != RT_NONE)
        rt_run_clipped(m, w, task);
    rt_store_relaxed_device(&w->beats, rt_load_relaxed_device(&w->beats) + 1);
    rt_event_trigger(m, w, task->triggers);
}

/* A JIT task from the queue of worker `from`; it is of the step that runs now, which the worker may
 * not have seen yet.
 */
RT_FN int rt_take_jit(rt_machine *m, rt_worker *w, rt_u32 from)
{
    rt_u32 t;
    if (!rt_queue_pop(&m->jit[from], m->jit_slots + (rt_u64)from * (m->jit_mask + 1), m->jit_mask,
                      &t))
        return 0;
    rt_worker_enter(m, w);
    rt_run_task(m, w, t);
    return 1;
}

/* Claim and run the next entry of worker `from`'s AOT list, if its event is activated.  1: it ran
 * one.
 *
 * A cursor of another epoch may be older than this step (nothing is claimed yet) or newer (this
 * worker is late).  The step word, read after the cursor, decides: if it still names the worker's
 * own step, the cursor was older.  If the step changes after that, the compare and swap fails,
 * since the cursor has moved on. */
RT_FN int rt_take_aot(rt_machine *m, rt_worker *w, rt_u32 from)
{
    const rt_graph *g = &m->graphs[w->graph];
    const rt_range *r = &m->ranges[g->first_range + from];
    rt_wide *cursor = &m->workers[from].cursor;
    if (r->first == r->last)
        return 0;
    rt_u64 seen = rt_load_wide_acquire_device(cursor);
    rt_u32 next = (rt_u32)seen;
    if ((rt_u32)(seen >> 32) != w->epoch || next <= r->first || next > r->last) {
        if (rt_load_wide_acquire_device(&m->control->step) != w->step)
            return 0;
        next = r->first;
    }
    if (next == r->last)
        return 0;
    rt_u32 t = m->lists[next];
    if (!rt_event_active(m, g->first_event + m->tasks[g->first_task + t].depends, w->epoch))
        return 0;
    rt_point(m, w->index);
    if (!rt_replace_wide_acq_rel_device(cursor, seen, (rt_u64)w->epoch << 32 | (next + 1)))
        return 0;
    rt_run_task(m, w, t);
    return 1;
}

/* Instead of waiting any longer, run a task of another worker of the group, which may be behind or
 * without a processor. */
RT_FN int rt_steal(rt_machine *m, rt_worker *w)
{
    if (!m->steal || w->spins < m->limits.steal_polls)
        return 0;
    rt_u32 first = w->index - w->index % m->steal, end = first + m->steal;
    for (rt_u32 i = w->index + 1; i < w->index + m->steal; i++) {
        rt_u32 from = i < end ? i : i - m->steal;
        if (rt_take_jit(m, w, from) || rt_take_aot(m, w, from))
            return 1;
    }
    return 0;
}

/* As owner: prepare and publish the next step. */
RT_FN int rt_own_step(rt_machine *m, rt_worker *w)
{
    rt_store_relaxed_device(&w->at, RT_AT_STEP);
    int published = rt_step_poll(m, w);
    rt_store_relaxed_device(&w->beats, rt_load_relaxed_device(&w->beats) + 1);
    rt_store_relaxed_device(&w->at, RT_AT_WAIT);
    if (published)
        rt_worker_awake(m, w);
    return published;
}

/* Where the step task stays with worker 0: has another worker ended the step?  That one rings
 * worker 0's bell after it has counted the end event (rt_event_trigger). */
RT_FN int rt_take_owner(rt_machine *m, rt_worker *w)
{
    if (!m->owner_stays || w->index ||
        !rt_event_active(m, m->graphs[w->graph].first_event + RT_END, w->epoch))
        return 0;
    w->owner = 1;
    return 1;
}

/* One round of a worker.  1: it did something. */
RT_LARGE_FN int rt_worker_poll(rt_machine *m, rt_worker *w)
{
    if (w->owner)
        return rt_own_step(m, w);
    rt_worker_enter(m, w);
    if (w->step == RT_NO_STEP)
        return 0;
    if (rt_take_owner(m, w))
        return rt_own_step(m, w);
    return rt_take_jit(m, w, w->index) || rt_take_aot(m, w, w->index) || rt_steal(m, w);
}

/* Nothing is ready: use the wait to prefetch, one piece a call, the weights that the worker's next
 * tasks will read (paper §5.3).  It looks up to preload_tasks ahead, across operators. After the
 * last task of the list it starts again at the first, as the next step usually runs the same
 * graph. */
RT_FN void rt_preload_ahead(rt_machine *m, rt_worker *w)
{
    if (w->step == RT_NO_STEP || m->limits.preload_tasks == 0)
        return;
    const rt_graph *g = &m->graphs[w->graph];
    const rt_range *r = &m->ranges[g->first_range + w->index];
    rt_u64 seen = rt_load_wide_acquire_device(&w->cursor);
    rt_u32 next =
        (rt_u32)(seen >> 32) == w->epoch && (rt_u32)seen > r->first && (rt_u32)seen < r->last
            ? (rt_u32)seen
            : r->first;
    if (w->ahead != next) {
        w->ahead = next;
        w->ahead_task = w->ahead_piece = 0;
    }
    if (w->ahead_task == m->limits.preload_tasks || next + w->ahead_task >= r->last)
        return;
    if (rt_preload(m, w, g->first_task + m->lists[next + w->ahead_task], w->ahead_piece)) {
        w->ahead_piece++;
        return;
    }
    w->ahead_task++;
    w->ahead_piece = 0;
}

/* One round of a thread that is worker w and, unless s is NULL, scheduler s.  1: it did something;
 * otherwise it may rest. */
RT_FN int rt_worker_round(rt_machine *m, rt_worker *w, rt_scheduler *s)
{
    int did = s && rt_sched_poll(m, s);
    return rt_worker_poll(m, w) || did;
}

/* Nothing is ready: look ahead, then wait. */
RT_FN void rt_worker_rest(rt_machine *m, rt_worker *w)
{
    rt_preload_ahead(m, w);
    rt_worker_wait(m, w);
}

/* Run tasks until the machine stops.  s: the scheduler that shares the thread, or NULL. */
RT_LARGE_FN void rt_worker_loop(rt_machine *m, rt_worker *w, rt_scheduler *s)
{
    while (rt_load_acquire_system(&m->control->abort) == RT_RUNNING)
        if (!rt_worker_round(m, w, s))
            rt_worker_rest(m, w);
    rt_worker_awake(m, w);
}

/* A scheduler with a thread (a warp) of its own. */
RT_LARGE_FN void rt_sched_loop(rt_machine *m, rt_scheduler *s)
{
    while (rt_load_acquire_system(&m->control->abort) == RT_RUNNING)
        if (!rt_sched_poll(m, s))
            rt_pause();
}

#endif
