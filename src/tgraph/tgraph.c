/* tgraph.c - build a task graph, list the events of tasks and the tasks of operators, name tasks
 * (see tgraph.h).
 *
 * Input and output are arrays of numbers.  Every list is built by counting and then filling:
 * linear time, and rising numbers without a sort.  Used by all passes on a graph and by the
 * verifier.
 */
#include "tgraph/tgraph.h"

#include <stdio.h>

#include "ir/op.h"

const char *const tg_level_names[TG_LEVELS] = {"tasks", "raw", "fused", "normal", "linear"};

/* The lists get arrays even though they are empty: a NULL out_tasks means TG_LINEAR to every
 * reader. */
mpk_status tg_create(mpk_context *cx, arena *a, const ir_graph *ir, uint32_t n_workers,
                     tg_graph **out)
{
    tg_graph *g;
    NEW(cx, a, g, 1);
    *g = (tg_graph){.arena = a, .ir = ir, .level = TG_TASKS, .n_events = 2, .n_workers = n_workers};
    NEW(cx, a, g->tasks, 0);
    NEW(cx, a, g->events, 2);
    NEW(cx, a, g->in_tasks, 0);
    NEW(cx, a, g->out_tasks, 0);
    *out = g;
    return MPK_OK;
}

/* See tgraph.h: a view whose result has storage of its own is a copy, and a copy is work. */
bool tg_op_has_tasks(const ir_graph *ir, const ir_op *op)
{
    return !(op->def->flags & OP_VIEW) || ir->tensors.at[op->out[0]].shares == IR_NONE;
}

/* Views of views and in-place results of in-place results form chains; they are short. */
ir_tensor_id tg_root(const ir_graph *ir, ir_tensor_id tensor)
{
    while (ir->tensors.at[tensor].shares != IR_NONE)
        tensor = ir->tensors.at[tensor].shares;
    return tensor;
}

/* Prefix sums: turn counts[i + 1], the number of entries of i, into the index of the first entry of
 * i + 1. */
static void add_up(uint32_t *counts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        counts[i + 1] += counts[i];
}

/* Two passes over the lists of the events, one to count and one to fill.  Events are visited by
 * rising number, so the events of each task rise, as tgraph.h promises. */
mpk_status tg_fill_links(mpk_context *cx, arena *a, const tg_graph *g, tg_links *out)
{
    uint32_t n = g->n_tasks, *next_depends, *next_triggers;
    NEW(cx, a, out->first_depends, (size_t)n + 1);
    NEW(cx, a, out->first_triggers, (size_t)n + 1);
    for (uint32_t e = 0; e < g->n_events; e++) {
        const tg_event *event = &g->events[e];
        for (uint32_t i = 0; i < event->n_in; i++)
            out->first_triggers[g->in_tasks[event->first_in + i] + 1]++;
        for (uint32_t i = 0; i < event->n_out; i++)
            out->first_depends[tg_out_task(g, event, i) + 1]++;
    }
    add_up(out->first_depends, n);
    add_up(out->first_triggers, n);
    NEW(cx, a, out->depends, out->first_depends[n]);
    NEW(cx, a, out->triggers, out->first_triggers[n]);
    NEW(cx, a, next_depends, n);
    NEW(cx, a, next_triggers, n);
    memcpy(next_depends, out->first_depends, n * sizeof *next_depends);
    memcpy(next_triggers, out->first_triggers, n * sizeof *next_triggers);
    for (uint32_t e = 0; e < g->n_events; e++) {
        const tg_event *event = &g->events[e];
        for (uint32_t i = 0; i < event->n_in; i++)
            out->triggers[next_triggers[g->in_tasks[event->first_in + i]]++] = e;
        for (uint32_t i = 0; i < event->n_out; i++)
            out->depends[next_depends[tg_out_task(g, event, i)]++] = e;
    }
    return MPK_OK;
}

/* Tasks are visited by rising number, so every list rises.  Sizes are counted, turned into first
 * indices, and counted again while the lists are filled. */
mpk_status tg_fill_events(mpk_context *cx, tg_graph *g)
{
    NEW(cx, g->arena, g->in_tasks, g->n_tasks);
    NEW(cx, g->arena, g->out_tasks, g->n_tasks);
    memset(g->events, 0, g->n_events * sizeof *g->events);
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        g->events[g->tasks[t].triggers].n_in++;
        g->events[g->tasks[t].depends].n_out++;
    }
    uint32_t in = 0, out = 0;
    for (uint32_t e = 0; e < g->n_events; e++) {
        g->events[e].first_in = in;
        g->events[e].first_out = out;
        in += g->events[e].n_in;
        out += g->events[e].n_out;
        g->events[e].n_in = g->events[e].n_out = 0;
    }
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        tg_event *triggers = &g->events[g->tasks[t].triggers],
                 *depends = &g->events[g->tasks[t].depends];
        g->in_tasks[triggers->first_in + triggers->n_in++] = t;
        g->out_tasks[depends->first_out + depends->n_out++] = t;
    }
    g->n_in_tasks = g->n_out_tasks = g->n_tasks;
    return MPK_OK;
}

/* Tasks without an operator (empty ones) are in no list. */
mpk_status tg_fill_op_tasks(mpk_context *cx, arena *a, const tg_graph *g, tg_op_tasks *out)
{
    uint32_t n_ops = (uint32_t)g->ir->ops.n, *next;
    NEW(cx, a, out->first, (size_t)n_ops + 1);
    NEW(cx, a, out->tasks, g->n_tasks);
    for (uint32_t t = 0; t < g->n_tasks; t++)
        if (g->tasks[t].op != IR_NONE)
            out->first[g->tasks[t].op + 1]++;
    add_up(out->first, n_ops);
    NEW(cx, a, next, n_ops);
    memcpy(next, out->first, n_ops * sizeof *next);
    for (uint32_t t = 0; t < g->n_tasks; t++)
        if (g->tasks[t].op != IR_NONE)
            out->tasks[next[g->tasks[t].op]++] = t;
    return MPK_OK;
}

/* A name longer than 140 bytes is cut, so that name, slash and ordinal always fit. */
const char *tg_name_task(const tg_graph *g, tg_task_id task, char name[TG_NAME_BYTES])
{
    uint32_t index = 0;
    for (tg_task_id t = 0; t < task; t++)
        index += g->tasks[t].op == g->tasks[task].op;
    ir_op_id op = g->tasks[task].op;
    if (op == IR_NONE)
        snprintf(name, TG_NAME_BYTES, "empty/%u", index);
    else
        snprintf(name, TG_NAME_BYTES, "%.*s/%u",
                 (int)(g->ir->ops.at[op].name.n < 140 ? g->ir->ops.at[op].name.n : 140),
                 g->ir->ops.at[op].name.at, index);
    return name;
}
