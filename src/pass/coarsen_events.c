/* coarsen_events.c - events between whole operators, like kernel boundaries: the ablation of the
 * paper's Fig. 1c.
 *
 * Input: TG_FUSED.  Output: TG_FUSED in which every task of an operator waits for all tasks of
 * each operator that any of its tasks waited for.
 *
 *   tiles:     A0 -> B0, A1 -> B1             two events, B0 may start while A1 still runs
 *   operators: A0 A1 -> B0 B1                 one event, a barrier
 *
 * It makes no program faster; it measures what tile-sized events gain (`--coarse-events`).
 * Called by compile.c in place of postpone and after merge_forks, if pass_options.coarse_events
 * asks for it.  Cost: linear in the edges before and after.
 */
#include <stdlib.h>

#include "pass/pass.h"

/* The pass under way.  All arrays lie in the scratch arena; the graph's old lists are read until
 * the end. */
typedef struct coarsener {
    pass_state *s;
    tg_graph *g;
    tg_op_tasks by_op;
    /* [ops] the last consumer, plus 1, whose list was given this operator's tasks; 0: none yet */
    ir_op_id *stamp;
    /* [ops] some operator waits for it, so its tasks need not trigger the end */
    bool *consumed;
    /* the new events and their lists, which replace the graph's */
    VEC(tg_event) events;
    VEC(tg_task_id) in_tasks, out_tasks;
} coarsener;

/* Append all tasks of an operator to the out-tasks (out) or to the in-tasks of the event under
 * construction, which is always the last one of its list. */
static mpk_status push_tasks(coarsener *c, ir_op_id op, bool out)
{
    for (uint32_t i = c->by_op.first[op]; i < c->by_op.first[op + 1]; i++) {
        if (out)
            PUSH(c->s->cx, c->s->scratch, &c->out_tasks, c->by_op.tasks[i]);
        else
            PUSH(c->s->cx, c->s->scratch, &c->in_tasks, c->by_op.tasks[i]);
    }
    return MPK_OK;
}

/* Append to the in-tasks all tasks of the operators that the tasks of `op` wait for, each
 * operator once: the stamp of an operator says for which consumer it was last appended, so
 * nothing has to be cleared between consumers. */
static mpk_status push_producers(coarsener *c, const tg_links *links, ir_op_id op)
{
    const tg_graph *g = c->g;
    for (uint32_t i = c->by_op.first[op]; i < c->by_op.first[op + 1]; i++)
        for (uint32_t k = links->first_depends[c->by_op.tasks[i]];
             k < links->first_depends[c->by_op.tasks[i] + 1]; k++) {
            const tg_event *event = &g->events[links->depends[k]];
            for (uint32_t m = 0; m < event->n_in; m++) {
                ir_op_id from = g->tasks[g->in_tasks[event->first_in + m]].op;
                if (c->stamp[from] == op + 1)
                    continue;
                c->stamp[from] = op + 1;
                c->consumed[from] = true;
                TRY(push_tasks(c, from, false));
            }
        }
    return MPK_OK;
}

static int compare_ids(const void *a, const void *b)
{
    tg_task_id x = *(const tg_task_id *)a, y = *(const tg_task_id *)b;
    return x < y ? -1 : x > y;
}

/* Make one event for each operator that waits for others: in-tasks are all tasks of those,
 * out-tasks all of its own.  Operators that wait for none become out-tasks of the start event,
 * and operators that no other waits for become in-tasks of the end; both lists are appended
 * last, since a list must be contiguous. */
static mpk_status make_events(coarsener *c, const tg_links *links)
{
    bool *starts;
    NEW(c->s->cx, c->s->scratch, starts, c->g->ir->ops.n);
    for (int i = 0; i < 2; i++)
        PUSH(c->s->cx, c->s->scratch, &c->events, (tg_event){0});
    for (ir_op_id op = 0; op < c->g->ir->ops.n; op++) {
        tg_event e = {.first_in = (uint32_t)c->in_tasks.n, .first_out = (uint32_t)c->out_tasks.n};
        TRY(push_producers(c, links, op));
        e.n_in = (uint32_t)c->in_tasks.n - e.first_in;
        starts[op] = e.n_in == 0;
        if (starts[op])
            continue;
        qsort(c->in_tasks.at + e.first_in, e.n_in, sizeof *c->in_tasks.at, compare_ids);
        TRY(push_tasks(c, op, true));
        e.n_out = (uint32_t)c->out_tasks.n - e.first_out;
        PUSH(c->s->cx, c->s->scratch, &c->events, e);
    }
    c->events.at[TG_START].first_out = (uint32_t)c->out_tasks.n;
    c->events.at[TG_END].first_in = (uint32_t)c->in_tasks.n;
    for (ir_op_id op = 0; op < c->g->ir->ops.n; op++) {
        if (starts[op])
            TRY(push_tasks(c, op, true));
        if (!c->consumed[op])
            TRY(push_tasks(c, op, false));
    }
    /* Lists are sorted: operators come in program order, but a parsed graph may number their tasks
     * differently. */
    c->events.at[TG_START].n_out = (uint32_t)c->out_tasks.n - c->events.at[TG_START].first_out;
    c->events.at[TG_END].n_in = (uint32_t)c->in_tasks.n - c->events.at[TG_END].first_in;
    qsort(c->out_tasks.at + c->events.at[TG_START].first_out, c->events.at[TG_START].n_out,
          sizeof *c->out_tasks.at, compare_ids);
    qsort(c->in_tasks.at + c->events.at[TG_END].first_in, c->events.at[TG_END].n_in,
          sizeof *c->in_tasks.at, compare_ids);
    return MPK_OK;
}

/* The edges are replaced as a whole.  Operators that waited for the same operators now have equal
 * events, so the end is fuse_events again, which also restores what TG_FUSED promises. */
mpk_status pass_coarsen_events(pass_state *s, tg_graph *g)
{
    coarsener c = {.s = s, .g = g};
    tg_links links;
    CHECK(s->cx, g->level == TG_FUSED, MPK_EARG,
          "coarsen_events works on a fused task graph, this one is %s", tg_level_names[g->level]);
    TRY(tg_fill_op_tasks(s->cx, s->scratch, g, &c.by_op));
    TRY(tg_fill_links(s->cx, s->scratch, g, &links));
    NEW(s->cx, s->scratch, c.stamp, g->ir->ops.n);
    NEW(s->cx, s->scratch, c.consumed, g->ir->ops.n);
    TRY(make_events(&c, &links));
    g->events = c.events.at;
    g->in_tasks = c.in_tasks.at;
    g->out_tasks = c.out_tasks.at;
    g->n_events = (uint32_t)c.events.n;
    g->n_in_tasks = (uint32_t)c.in_tasks.n;
    g->n_out_tasks = (uint32_t)c.out_tasks.n;
    return pass_fuse_events(s, g);
}
