/* linearize.c - give the tasks that an event launches consecutive numbers (paper §4.1, Algorithm
 * 1).
 *
 * Input: TG_NORMAL.  Output: TG_LINEAR in the result arena: tasks and events renumbered,
 * out-tasks as ranges.
 *
 *   event 2 <- 0 -> 1 4                 event 2 <- 0 -> 1-2
 *   event 3 <- 1 4 -> 2 3         ->    event 3 <- 1-2 -> 3-4
 *
 * An event's successors are then two numbers instead of a list, and a worker that takes its
 * tasks by rising number cannot deadlock.  Algorithm 1 walks the events breadth first and
 * appends the tasks that depend on each; for every event it scans all tasks.  Here each event
 * lists its tasks, and a counter per event tells when all tasks that trigger it are placed, so
 * the walk takes linear time.
 *
 * Breadth first is a good order where all branches are equally deep.  Where a branch of many
 * small operators runs beside one of few large operators (the rotation tables beside the first
 * product of PyTorch's decode steps), it would queue each small operator after the large one at
 * the same depth, on the same workers.  So events are ordered by their distance from the end,
 * longest first; ties go to the operator with fewer tasks, then to the breadth-first order.  An
 * event is farther from the end than its successors, so the numbers are a topological order.
 *
 * Called by compile.c between normalize and assign.  Cost: linear, and a sort of the events.
 */
#include <stdlib.h>

#include "pass/pass.h"

/* The two permutations that the pass computes; the graph is rewritten from them at the end. */
typedef struct order {
    tg_event_id *events;        /* [n_events] old numbers in the order of the walk */
    uint32_t *event_number;     /* [n_events] its new number */
    tg_task_id *tasks;          /* [n_tasks] old numbers in the new order */
    uint32_t n_events, n_tasks; /* listed so far */
} order;

/* Walk breadth first from the start event: an event is listed when the last task that triggers
 * it is.  MPK_EVERIFY: what a cycle holds back is never listed, so fewer tasks or events than
 * there are means that there is a cycle. */
static mpk_status walk(pass_state *s, const tg_graph *g, order *o)
{
    uint32_t *missing;
    NEW(s->cx, s->scratch, missing, g->n_events);
    NEW(s->cx, s->scratch, o->events, g->n_events);
    for (tg_event_id e = 0; e < g->n_events; e++) {
        missing[e] = g->events[e].n_in;
        if (!missing[e])
            o->events[o->n_events++] = e;
    }
    for (uint32_t at = 0; at < o->n_events; at++) {
        const tg_event *event = &g->events[o->events[at]];
        o->n_tasks += event->n_out;
        for (uint32_t i = 0; i < event->n_out; i++) {
            tg_event_id next = g->tasks[g->out_tasks[event->first_out + i]].triggers;
            if (--missing[next] == 0)
                o->events[o->n_events++] = next;
        }
    }
    CHECK(s->cx, o->n_tasks == g->n_tasks && o->n_events == g->n_events, MPK_EVERIFY,
          "%u of %u tasks and %u of %u events can be reached from the start: there is a cycle",
          o->n_tasks, g->n_tasks, o->n_events, g->n_events);
    return MPK_OK;
}

/* An event and what it is sorted by. */
typedef struct place {
    uint32_t height; /* events on the longest way to the end */
    /* tasks of the operator that it launches; 0: an empty task, or none */
    uint32_t n_alike;
    uint32_t walked; /* its place in the walk */
    tg_event_id event;
} place;

/* Longest way to the end first, then the operator with fewer tasks, then the walk's order: a total
 * order, so the result does not depend on qsort. */
static int compare_places(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->height != y->height)
        return x->height > y->height ? -1 : 1;
    if (x->n_alike != y->n_alike)
        return x->n_alike < y->n_alike ? -1 : 1;
    return x->walked < y->walked ? -1 : x->walked > y->walked;
}

/* Sort the events and list their tasks.  An event's height is the number of events on the
 * longest way to the end.  Heights are filled from the last event of the walk to the first, so
 * all successors of an event are done before it.  The start event and the end event keep their
 * numbers, 0 and 1. */
static mpk_status sort(pass_state *s, const tg_graph *g, order *o)
{
    place *places;
    tg_op_tasks by_op;
    uint32_t *height, next = TG_END + 1;
    NEW(s->cx, s->scratch, places, g->n_events);
    NEW(s->cx, s->scratch, height, g->n_events);
    TRY(tg_fill_op_tasks(s->cx, s->scratch, g, &by_op));
    for (uint32_t at = o->n_events; at-- > 0;) {
        tg_event_id e = o->events[at];
        const tg_event *event = &g->events[e];
        for (uint32_t i = 0; i < event->n_out; i++) {
            uint32_t below = 1 + height[g->tasks[g->out_tasks[event->first_out + i]].triggers];
            height[e] = below > height[e] ? below : height[e];
        }
        places[at] = (place){height[e], 0, at, e};
        ir_op_id op = event->n_out ? g->tasks[g->out_tasks[event->first_out]].op : IR_NONE;
        if (op != IR_NONE)
            places[at].n_alike = by_op.first[op + 1] - by_op.first[op];
    }
    qsort(places, o->n_events, sizeof *places, compare_places);
    NEW(s->cx, s->scratch, o->event_number, g->n_events);
    NEW(s->cx, s->scratch, o->tasks, g->n_tasks);
    o->n_tasks = 0;
    for (uint32_t at = 0; at < o->n_events; at++) {
        tg_event_id e = places[at].event;
        o->event_number[e] = e == TG_START || e == TG_END ? e : next++;
        for (uint32_t i = 0; i < g->events[e].n_out; i++)
            o->tasks[o->n_tasks++] = g->out_tasks[g->events[e].first_out + i];
    }
    return MPK_OK;
}

/* Write the graph in its new order into the result arena; task i of the new order was
 * o->tasks[i].  tg_fill_events lists the tasks of an event by rising number, and these are now
 * one range: only its beginning is kept. */
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
    CHECK(s->cx, g->level == TG_NORMAL, MPK_EARG,
          "linearize works on a normal task graph, this one is %s", tg_level_names[g->level]);
    TRY(walk(s, g, &o));
    TRY(sort(s, g, &o));
    TRY(renumber(s, g, &o));
    g->level = TG_LINEAR;
    return MPK_OK;
}
