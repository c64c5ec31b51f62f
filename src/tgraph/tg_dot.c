/* tg_dot.c - draw a part of a task graph for graphviz: tasks as boxes, one colour for each
 * operator, events as circles (as in the paper's figures).
 *
 * Input: a graph at any level that tg_verify accepts.  Output: one digraph as text, for `mpk
 * inspect --dot`.  A whole graph has tens of thousands of tasks, which no layout program can
 * draw, so the caller names a few operators, and everything outside is one dotted node on each
 * side with the number of edges that lead there.
 */
#include <stdio.h>

#include "ir/op.h"
#include "tgraph/tgraph.h"

/* Light enough for black text on them; neighbouring operators differ, and the seventh repeats the
 * first. */
static const char *const colours[] = {"#cfe2f3", "#fce5cd", "#d9ead3",
                                      "#ead1dc", "#fff2cc", "#d9d2e9"};
enum { COLOURS = sizeof colours / sizeof *colours };

/* What is drawn, and where to. */
typedef struct drawing {
    const tg_graph *g;
    text *out;
    bool *drawn; /* [n_tasks] */
} drawing;

/* Choose the tasks to draw: those of operators first_op ... first_op + n_ops - 1, counted
 * without views, and empty tasks that such a task leads to. */
static mpk_status choose(drawing *d, mpk_context *cx, arena *a, uint32_t first_op, uint32_t n_ops)
{
    const tg_graph *g = d->g;
    bool *chosen;
    uint32_t at = 0;
    NEW(cx, a, chosen, g->ir->ops.n);
    NEW(cx, a, d->drawn, g->n_tasks);
    for (ir_op_id o = 0; o < g->ir->ops.n; o++)
        if (tg_op_has_tasks(g->ir, &g->ir->ops.at[o])) {
            chosen[o] = at >= first_op && at - first_op < n_ops;
            at++;
        }
    for (tg_task_id t = 0; t < g->n_tasks; t++)
        d->drawn[t] = g->tasks[t].op != IR_NONE && chosen[g->tasks[t].op];
    for (tg_event_id e = 0; e < g->n_events; e++) {
        bool touched = false;
        for (uint32_t i = 0; i < g->events[e].n_in; i++)
            touched = touched || d->drawn[g->in_tasks[g->events[e].first_in + i]];
        for (uint32_t i = 0; touched && i < g->events[e].n_out; i++)
            if (g->tasks[tg_out_task(g, &g->events[e], i)].op == IR_NONE)
                d->drawn[tg_out_task(g, &g->events[e], i)] = true;
    }
    return MPK_OK;
}

/* Print a name inside quotes. */
static void print_escaped(str s, text *out)
{
    for (size_t i = 0; i < s.n; i++) {
        if (s.at[i] == '"' || s.at[i] == '\\')
            text_add(out, "\\", 1);
        text_add(out, s.at + i, 1);
    }
}

/* Tasks of one operator share a colour; `index` is the task's number among them, as in messages. */
static void draw_task(const drawing *d, tg_task_id t, uint32_t index)
{
    const tg_task *task = &d->g->tasks[t];
    if (task->op == IR_NONE) {
        text_print(d->out, "  t%u [label=\"empty\", style=dashed];\n", t);
        return;
    }
    const ir_op *op = &d->g->ir->ops.at[task->op];
    text_print(d->out, "  t%u [label=\"", t);
    print_escaped(op->name, d->out);
    text_print(d->out, "/%u\\n%s%s", index, op->def->name, task->launch == TG_JIT ? ", JIT" : "");
    if (task->worker != TG_NONE)
        text_print(d->out, ", worker %u", task->worker);
    text_print(d->out, "\", fillcolor=\"%s\"];\n", colours[task->op % COLOURS]);
}

/* Draw an event that touches the part, with the number of its triggers inside.  Edges that leave
 * the part are counted on one dotted edge to the node that stands for the rest. */
static void draw_event(const drawing *d, tg_event_id e)
{
    const tg_event *event = &d->g->events[e];
    uint32_t before = 0, after = 0, ins = 0, outs = 0;
    for (uint32_t i = 0; i < event->n_in; i++)
        ins += d->drawn[d->g->in_tasks[event->first_in + i]];
    for (uint32_t i = 0; i < event->n_out; i++)
        outs += d->drawn[tg_out_task(d->g, event, i)];
    if (!ins && !outs)
        return;
    before = event->n_in - ins;
    after = event->n_out - outs;
    text_print(d->out, "  e%u [label=\"e%u\\n%u\", shape=circle, fillcolor=\"#b6d7a8\"];\n", e, e,
               event->n_in);
    for (uint32_t i = 0; i < event->n_in; i++)
        if (d->drawn[d->g->in_tasks[event->first_in + i]])
            text_print(d->out, "  t%u -> e%u;\n", d->g->in_tasks[event->first_in + i], e);
    for (uint32_t i = 0; i < event->n_out; i++)
        if (d->drawn[tg_out_task(d->g, event, i)])
            text_print(d->out, "  e%u -> t%u;\n", e, tg_out_task(d->g, event, i));
    if (before)
        text_print(d->out, "  before -> e%u [style=dotted, label=\"%u\"];\n", e, before);
    if (after)
        text_print(d->out, "  e%u -> after [style=dotted, label=\"%u\"];\n", e, after);
}

/* A task's number counts within its operator, whether tasks before it are drawn or not, so that
 * it is the same in every drawing.
 */
mpk_status tg_dot(mpk_context *cx, arena *scratch, const tg_graph *g, uint32_t first_op,
                  uint32_t n_ops, text *out)
{
    drawing d = {.g = g, .out = out};
    uint32_t *index;
    NEW(cx, scratch, index, g->ir->ops.n);
    TRY(choose(&d, cx, scratch, first_op, n_ops));
    text_print(out,
               "digraph tgraph {\n  rankdir=TB;\n  node [shape=box, style=filled, fillcolor=white, "
               "fontname=\"Helvetica\", fontsize=10];\n");
    text_print(out,
               "  before [label=\"...\", style=dotted];\n  after [label=\"...\", style=dotted];\n");
    for (tg_task_id t = 0; t < g->n_tasks; t++) {
        uint32_t number = g->tasks[t].op == IR_NONE ? 0 : index[g->tasks[t].op]++;
        if (d.drawn[t])
            draw_task(&d, t, number);
    }
    for (tg_event_id e = 0; e < g->n_events; e++)
        draw_event(&d, e);
    text_print(out, "}\n");
    return out->failed ? status_fail(cx, MPK_ENOMEM, "out of memory for a drawing") : MPK_OK;
}
