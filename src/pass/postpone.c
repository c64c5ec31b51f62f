/* postpone.c - move tasks that nothing waits for to the end of the step, where they would make
 * many others fork.
 *
 * Input: TG_FUSED.  Output: TG_FUSED.  Some state is read throughout a step and then updated by
 * one small task, such as the counter of a static cache in PyTorch's decode steps.  Each of its
 * readers then triggers two events: one for the work that follows it, one for the update.
 * Normalisation would add two empty tasks for each reader, in the path of the work that follows.
 * But nothing in the step needs the update, so it may run last.
 *
 *   event 2 <- 0 1 2 -> 3           0 1 2 read the counter, 4 updates it, 9 is the last task
 *   event 3 <- 0 1 2 -> 4           event 8 <- 7 -> 9
 *   ->  event 2 <- 0 1 2 -> 3       event 8 <- 7 -> 4 9     (7 follows 0, 1 and 2 anyway)
 *
 * Rule: among the tasks that trigger only the end event, the target is the one that follows the
 * most tasks.  Consider an event all of whose out-tasks trigger only the end, and which has more
 * forks among its in-tasks than it has out-tasks.  Its out-tasks wait for the target's event
 * instead, to which its in-tasks are added unless the target follows them already.  Only the end
 * waits for the out-tasks of either event, so no cycle between tasks can arise; a cycle between
 * whole operators can, and compile.c therefore leaves the pass out with coarse events.
 *
 * Called by compile.c after fuse_events.  Cost: linear in the edges, plus exact reachability if
 * anything can move.
 */
#include "pass/pass.h"

/* The pass under way. */
typedef struct postponer {
    pass_state *s;
    tg_graph *g;
    tg_links links;
    tg_reach reach;
    bool *is_last;       /* [n_tasks] it triggers the end and nothing else */
    tg_event_id target;  /* the event that tasks are moved to */
    tg_task_id follower; /* one of its out-tasks */
    bool *moves;         /* [n_events] its out-tasks are moved */
    bool *waits, *runs;  /* [n_tasks] is among the in-tasks, the out-tasks of the target */
} postponer;

/* The number of tasks that must end before a task begins: the members of its set, prefix and
 * bits together. */
static uint32_t count_before(const tg_set *set)
{
    uint32_t n = set->prefix;
    for (uint32_t i = 0; i < set->n_words; i++)
        for (uint64_t word = set->bits[i]; word; word &= word - 1)
            n++;
    return n;
}

/* Do all out-tasks of an event trigger only the end?  The end itself has no out-tasks and does
 * not count. */
static bool all_are_last(const postponer *p, tg_event_id e)
{
    const tg_event *event = &p->g->events[e];
    for (uint32_t i = 0; i < event->n_out; i++)
        if (!p->is_last[tg_out_task(p->g, event, i)])
            return false;
    return event->n_out > 0;
}

/* Find the event that tasks are moved to, and one of its out-tasks; false if there is none.  It
 * is the event of the task that follows the most others, since whatever is moved there waits for
 * all of these: the later the target, the fewer in-tasks have to be added to it.  The target's
 * task must wait for this event alone. */
static bool find_target(postponer *p)
{
    uint32_t most = 0;
    for (tg_task_id t = 0; t < p->g->n_tasks; t++) {
        uint32_t first = p->links.first_depends[t],
                 n = p->is_last[t] ? count_before(p->reach.before[t]) : 0;
        if (n <= most || p->links.first_depends[t + 1] - first != 1 ||
            !all_are_last(p, p->links.depends[first]))
            continue;
        most = n;
        p->target = p->links.depends[first];
        p->follower = t;
    }
    return most > 0;
}

/* Would normalisation need more empty tasks for an event's in-tasks than the event has
 * out-tasks?  All out-tasks must wait for this event alone, because only this wait is moved. */
static bool pays(const postponer *p, tg_event_id e)
{
    const tg_event *event = &p->g->events[e];
    uint32_t forks = 0;
    for (uint32_t i = 0; i < event->n_in; i++) {
        tg_task_id t = p->g->in_tasks[event->first_in + i];
        forks += p->links.first_triggers[t + 1] - p->links.first_triggers[t] > 1;
    }
    for (uint32_t i = 0; i < event->n_out; i++) {
        tg_task_id t = tg_out_task(p->g, event, i);
        if (p->links.first_depends[t + 1] - p->links.first_depends[t] != 1)
            return false;
    }
    return forks > event->n_out;
}

/* Add the tasks of an event to the target's: out-tasks run there, in-tasks are waited for there
 * unless they come before the target's task anyway. */
static void take(postponer *p, tg_event_id e)
{
    const tg_event *event = &p->g->events[e];
    for (uint32_t i = 0; i < event->n_in; i++) {
        tg_task_id t = p->g->in_tasks[event->first_in + i];
        p->waits[t] = p->waits[t] || e == p->target || !tg_comes_before(&p->reach, t, p->follower);
    }
    for (uint32_t i = 0; i < event->n_out; i++)
        p->runs[tg_out_task(p->g, event, i)] = true;
}

/* Append the tasks of a set, set[n_tasks], to a list of *n entries.  Returns how many were
 * appended. */
static uint32_t append(const bool *set, uint32_t n_tasks, tg_task_id *list, uint32_t *n)
{
    uint32_t first = *n;
    for (tg_task_id t = 0; t < n_tasks; t++)
        if (set[t])
            list[(*n)++] = t;
    return *n - first;
}

/* Rebuild the lists and restore what TG_FUSED promises: the target's lists come last, and events
 * whose tasks have moved are removed. */
static mpk_status rebuild(postponer *p)
{
    tg_graph *g = p->g;
    tg_task_id *in, *out;
    NEW(p->s->cx, g->arena, in, (size_t)g->n_in_tasks + g->n_tasks);
    NEW(p->s->cx, g->arena, out, (size_t)g->n_out_tasks + g->n_tasks);
    memcpy(in, g->in_tasks, g->n_in_tasks * sizeof *in);
    memcpy(out, g->out_tasks, g->n_out_tasks * sizeof *out);
    tg_event *target = &g->events[p->target];
    target->first_in = g->n_in_tasks;
    target->first_out = g->n_out_tasks;
    target->n_in = append(p->waits, g->n_tasks, in, &g->n_in_tasks);
    target->n_out = append(p->runs, g->n_tasks, out, &g->n_out_tasks);
    g->in_tasks = in;
    g->out_tasks = out;
    uint32_t n = 0;
    for (tg_event_id e = 0; e < g->n_events; e++)
        if (!p->moves[e])
            g->events[n++] = g->events[e];
    g->n_events = n;
    return pass_fuse_events(p->s, g);
}

/* Fill the edges, and find the tasks that trigger the end and nothing else: no task of the step
 * waits for these. */
static mpk_status start(postponer *p)
{
    mpk_context *cx = p->s->cx;
    arena *a = p->s->scratch;
    tg_graph *g = p->g;
    TRY(tg_fill_links(cx, a, g, &p->links));
    NEW(cx, a, p->is_last, g->n_tasks);
    NEW(cx, a, p->waits, g->n_tasks);
    NEW(cx, a, p->runs, g->n_tasks);
    NEW(cx, a, p->moves, g->n_events);
    for (tg_task_id t = 0; t < g->n_tasks; t++) {
        uint32_t first = p->links.first_triggers[t];
        p->is_last[t] =
            p->links.first_triggers[t + 1] == first + 1 && p->links.triggers[first] == TG_END;
    }
    return MPK_OK;
}

/* Mark the events whose tasks might move.  Returns whether there are any; most graphs have none. */
static bool mark_candidates(postponer *p)
{
    bool any = false;
    for (tg_event_id e = TG_END + 1; e < p->g->n_events; e++) {
        p->moves[e] = all_are_last(p, e) && pays(p, e);
        any = any || p->moves[e];
    }
    return any;
}

/* Reachability is the costly part, and is computed only if an event could move at all. */
mpk_status pass_postpone(pass_state *s, tg_graph *g)
{
    postponer p = {.s = s, .g = g};
    bool any = false;
    CHECK(s->cx, g->level == TG_FUSED, MPK_EARG,
          "postpone works on a fused task graph, this one is %s", tg_level_names[g->level]);
    TRY(start(&p));
    if (!mark_candidates(&p))
        return MPK_OK;
    TRY(tg_fill_reach(s->cx, s->scratch, g, &p.links, &p.reach));
    if (!find_target(&p))
        return MPK_OK;
    p.moves[p.target] = false;
    for (tg_event_id e = 0; e < g->n_events; e++)
        if (p.moves[e] || e == p.target) {
            take(&p, e);
            any = any || p.moves[e];
        }
    return any ? rebuild(&p) : MPK_OK;
}
