/* label_launch.c - which tasks are launched just in time, which ahead of time (paper §5.2).
 *
 * Input: TG_FUSED.  Output: the same with `launch` set, the same for all tasks of an operator.
 *
 * Policy PAPER: an operator is JIT if its time depends on data, or if it is downstream of a JIT
 * operator without a global barrier in between: one of its tasks waits, directly or through
 * others, for some tasks of the JIT operator but not for all of them, so the imbalance still
 * exists when the task starts.
 *
 *   attention      JIT: its time depends on the lengths of contexts
 *   o_proj         each task waits for the attention of all heads: a barrier, so AOT
 *
 * Policy AUTO: the same, but an operator whose time depends on data counts only if a scheduler
 * could balance it: it has more tasks than there are workers, its work is not cut evenly at run
 * time (OP_EVEN), and its tasks do not just rise in length (op_axis.rises), in which case assign
 * pairs them.  Otherwise AOT saves the trip through the scheduler.  Policies AOT and JIT: every
 * operator.
 *
 * An event launches either JIT tasks or AOT tasks: an operator that shares an event with a JIT
 * operator becomes JIT as well.  Relies on exact reachability.  Called by compile.c once all
 * events are final.  Cost: operators x JIT operators, in a few rounds.
 */
#include "ir/op.h"
#include "pass/pass.h"

/* The marks so far, and what the questions about the graph need. */
typedef struct labeller {
    pass_state *s;
    tg_graph *g;
    tg_op_tasks by_op;
    tg_links links;
    tg_reach reach;
    bool *jit;                /* [ops] marked */
    bool *event_jit;          /* [n_events] it launches a task of a JIT operator */
    uint32_t *lowest, *above; /* [ops] positions of the operator's tasks: lowest <= p < above */
} labeller;

/* Does JIT launch begin at this operator?  For PAPER wherever the record says that time depends
 * on data; for AUTO only if a scheduler could do better than a fixed assignment. */
static bool is_uneven(const labeller *l, ir_op_id op)
{
    const ir_op *o = &l->g->ir->ops.at[op];
    const pass_options *options = l->s->options;
    uint32_t n = l->by_op.first[op + 1] - l->by_op.first[op], flags = o->def->flags;
    if (!n || !(flags & OP_DATA_DEPENDENT))
        return false;
    return options->launch == PASS_LAUNCH_PAPER ||
           (!(flags & OP_EVEN) && n > options->n_workers && !pass_tiles_rise(options, l->g->ir, o));
}

/* Does the set of tasks that come before a task hold some tasks of a JIT operator, but not all?
 * Most questions are answered by the range of the operator's positions: below the prefix it is
 * all, beyond the last bit it is none. */
static bool is_within(const labeller *l, const tg_set *set, ir_op_id op)
{
    uint32_t end = (set->first_word + set->n_words) * 64, n = 0;
    if (l->above[op] <= set->prefix || (l->lowest[op] >= set->prefix && l->lowest[op] >= end))
        return false; /* all; none */
    for (uint32_t i = l->by_op.first[op]; i < l->by_op.first[op + 1]; i++)
        n += tg_set_has(set, l->reach.position[l->by_op.tasks[i]]);
    return n && n < l->by_op.first[op + 1] - l->by_op.first[op];
}

/* Is one of the operator's tasks launched by an event that launches JIT tasks, or after part of
 * a JIT operator? Neighbouring tasks often share their set of predecessors, and a shared set is
 * looked at once. */
static bool must_be_jit(const labeller *l, ir_op_id op)
{
    const tg_set *last = NULL;
    for (uint32_t i = l->by_op.first[op]; i < l->by_op.first[op + 1]; i++) {
        tg_task_id t = l->by_op.tasks[i];
        for (uint32_t k = l->links.first_depends[t]; k < l->links.first_depends[t + 1]; k++)
            if (l->event_jit[l->links.depends[k]])
                return true;
        const tg_set *set = l->reach.before[t];
        for (ir_op_id from = 0; set != last && from < l->g->ir->ops.n; from++)
            if (l->jit[from] && is_within(l, set, from))
                return true;
        last = set;
    }
    return false;
}

/* Make an operator JIT, and every event that launches one of its tasks, so that must_be_jit finds
 * the operators that share these events. */
static void mark(labeller *l, ir_op_id op)
{
    l->jit[op] = true;
    for (uint32_t i = l->by_op.first[op]; i < l->by_op.first[op + 1]; i++)
        for (uint32_t k = l->links.first_depends[l->by_op.tasks[i]];
             k < l->links.first_depends[l->by_op.tasks[i] + 1]; k++)
            l->event_jit[l->links.depends[k]] = true;
}

/* Fill the edges and reachability, and for each operator the range of positions that its tasks
 * have in the topological order: lowest <= position < above.  is_within counts a set's members
 * in that range. */
static mpk_status start(labeller *l)
{
    mpk_context *cx = l->s->cx;
    arena *a = l->s->scratch;
    uint32_t n_ops = (uint32_t)l->g->ir->ops.n;
    TRY(tg_fill_op_tasks(cx, a, l->g, &l->by_op));
    TRY(tg_fill_links(cx, a, l->g, &l->links));
    TRY(tg_fill_reach(cx, a, l->g, &l->links, &l->reach));
    NEW(cx, a, l->jit, n_ops);
    NEW(cx, a, l->event_jit, l->g->n_events);
    NEW(cx, a, l->lowest, n_ops);
    NEW(cx, a, l->above, n_ops);
    memset(l->lowest, 0xff, n_ops * sizeof *l->lowest);
    for (tg_task_id t = 0; t < l->g->n_tasks; t++) {
        ir_op_id op = l->g->tasks[t].op;
        uint32_t p = l->reach.position[t];
        l->lowest[op] = p < l->lowest[op] ? p : l->lowest[op];
        l->above[op] = p + 1 > l->above[op] ? p + 1 : l->above[op];
    }
    return MPK_OK;
}

/* Propagate the marks to a fixed point: an operator can share an event with an earlier one, so
 * one walk is not enough. */
static void spread(labeller *l)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (ir_op_id op = 0; op < l->g->ir->ops.n; op++)
            if (!l->jit[op] && must_be_jit(l, op)) {
                mark(l, op);
                changed = true;
            }
    }
}

/* Uneven operators start the marking, spread does the rest.  AOT and JIT need neither. */
mpk_status pass_label_launch(pass_state *s, tg_graph *g)
{
    labeller l = {.s = s, .g = g};
    pass_launch policy = s->options->launch;
    CHECK(s->cx, g->level == TG_FUSED, MPK_EARG,
          "label_launch works on a fused task graph, this one is %s", tg_level_names[g->level]);
    if (policy == PASS_LAUNCH_AUTO || policy == PASS_LAUNCH_PAPER) {
        TRY(start(&l));
        for (ir_op_id op = 0; op < g->ir->ops.n; op++)
            if (is_uneven(&l, op))
                mark(&l, op);
        spread(&l);
    }
    for (tg_task_id t = 0; t < g->n_tasks; t++) {
        bool jit = l.jit ? l.jit[g->tasks[t].op] : policy == PASS_LAUNCH_JIT;
        g->tasks[t].launch = jit ? TG_JIT : TG_AOT;
    }
    return MPK_OK;
}
