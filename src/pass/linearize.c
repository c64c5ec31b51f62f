/* linearize.c - the tasks that an event launches become one range of numbers (paper §4.1, Algorithm 1).
 *
 * Input: TG_NORMAL.  Output: TG_LINEAR in the result arena: tasks and events renumbered, out-tasks as ranges.
 *
 * Algorithm 1 walks events breadth first and appends the tasks that depend on each; it scans all tasks for every event.
 * Here the tasks of an event are at hand, and a counter for each event tells when all that trigger it are placed:
 * linear time.  Every event is activated after the tasks before it, so numbers are a topological order.
 */
#include "pass/pass.h"

typedef struct order {
    tg_event_id *events;    /* in the order of activation */
    uint32_t *event_number; /* [n_events] its new number */
    tg_task_id *tasks;      /* [n_tasks] old numbers in the new order */
    uint32_t n_events, n_tasks, next_number;
} order;

static void enqueue(order *o, tg_event_id e)
{
    o->events[o->n_events++] = e;
    o->event_number[e] = e == TG_START || e == TG_END ? e : o->next_number++;
}

static mpk_status walk(pass_state *s, const tg_graph *g, order *o)
{
    uint32_t *missing;
    NEW(s->cx, s->scratch, missing, g->n_events);
    NEW(s->cx, s->scratch, o->events, g->n_events);
    NEW(s->cx, s->scratch, o->event_number, g->n_events);
    NEW(s->cx, s->scratch, o->tasks, g->n_tasks);
    o->next_number = 2;
    for (tg_event_id e = 0; e < g->n_events; e++) {
        missing[e] = g->events[e].n_in;
        if (!missing[e])
            enqueue(o, e);
    }
    for (uint32_t at = 0; at < o->n_events; at++) {
        const tg_event *event = &g->events[o->events[at]];
        for (uint32_t i = 0; i < event->n_out; i++) {
            tg_task_id t = g->out_tasks[event->first_out + i];
            o->tasks[o->n_tasks++] = t;
            if (--missing[g->tasks[t].triggers] == 0)
                enqueue(o, g->tasks[t].triggers);
        }
    }
    CHECK(s->cx, o->n_tasks == g->n_tasks && o->n_events == g->n_events, MPK_EVERIFY,
          "%u of %u tasks and %u of %u events can be reached from the start: there is a cycle", o->n_tasks, g->n_tasks,
          o->n_events, g->n_events);
    return MPK_OK;
}

static mpk_status renumber(pass_state *s, tg_graph *g, const order *o)
{
    tg_task *tasks;
    NEW(s->cx, s->result, tasks, g->n_tasks);
    for (uint32_t i = 0; i < g->n_tasks; i++) {
        tasks[i] = g->tasks[o->tasks[i]];
        tasks[i].depends = o->event_number[tasks[i].depends];
        tasks[i].triggers = o->event_number[tasks[i].triggers];
    }
    g->tasks = tasks;
    g->arena = s->result;
    NEW(s->cx, s->result, g->events, g->n_events);
    TRY(tg_fill_events(s->cx, g));
    for (tg_event_id e = 0; e < g->n_events; e++)
        if (g->events[e].n_out)
            g->events[e].first_out = g->out_tasks[g->events[e].first_out];
    g->out_tasks = NULL;
    g->n_out_tasks = 0;
    return MPK_OK;
}

mpk_status pass_linearize(pass_state *s, tg_graph *g)
{
    order o = {0};
    CHECK(s->cx, g->level == TG_NORMAL, MPK_EARG, "linearize works on a normal task graph, this one is %s",
          tg_level_names[g->level]);
    TRY(walk(s, g, &o));
    TRY(renumber(s, g, &o));
    g->level = TG_LINEAR;
    return MPK_OK;
}
