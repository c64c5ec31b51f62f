/* carried_range.h - does the plan of a graph carry as much as the rules at the top of carriers.c
 * allow?  The latest end of each GPU, then every result that may be carried, then the earliest
 * gate, each asked of the tasks anew and without haste.  carried_check.h asks whether a plan is
 * sound.
 *
 * For carriers_test.c. */
#ifndef TESTS_CARRIED_RANGE_H
#define TESTS_CARRIED_RANGE_H

#include "check.h"

#include "cuda/cuda_machine.h"
#include "gen/body_print.h"
#include "ir/op.h"

typedef struct ranged {
    const cuda_machine *first;
    uint32_t graph;
    const ir_graph *ir;
    const rt_graph *g;
    const rt_task *tasks;
    const rt_range *ranges;
    const rt_u32 *lists;
    bool *before; /* [tasks] scratch of ranged_mark */
    bool *can;    /* [tensors] */
    ir_op_id ends[IR_MAX_PEERS];
} ranged;

static inline const gen_body *ranged_body(const ranged *r, ir_op_id op)
{
    return r->first->source.uses[r->graph][op].body;
}

static inline const ir_op *ranged_op(const ranged *r, ir_op_id op)
{
    return &r->ir->ops.at[op];
}

static inline bool ranged_reads(const ranged *r, ir_op_id op, ir_tensor_id root)
{
    const ir_op *o = ranged_op(r, op);
    for (uint32_t i = 0; i < o->n_in; i++)
        if (o->in[i] != IR_NONE && tg_root(r->ir, o->in[i]) == root)
            return true;
    return false;
}

static inline bool ranged_writes(const ranged *r, ir_op_id op, ir_tensor_id root)
{
    const ir_op *o = ranged_op(r, op);
    for (uint32_t i = 0; i < o->n_out; i++)
        if (tg_root(r->ir, o->out[i]) == root)
            return true;
    return false;
}

/* Does any operator of this GPU, or (by != peer) of another one than `peer`, read the root? */
static inline bool ranged_is_read_on(const ranged *r, ir_tensor_id root, uint32_t peer, bool others)
{
    for (ir_op_id op = 0; op < r->ir->ops.n; op++)
        if ((ranged_op(r, op)->peer == peer) != others && ranged_reads(r, op, root))
            return true;
    return false;
}

/* The one event that all tasks of an operator wait for, or RT_NONE. */
static inline uint32_t ranged_event(const ranged *r, ir_op_id op)
{
    uint32_t event = RT_NONE;
    for (uint32_t t = 0; t < r->g->n_tasks; t++)
        if (r->tasks[t].op == op) {
            if (event != RT_NONE && event != r->tasks[t].depends)
                return RT_NONE;
            event = r->tasks[t].depends;
        }
    return event;
}

/* Which tasks end before the event?  Those that trigger it, and those that trigger what one of
 * these waits for, and so on. */
static inline void ranged_mark(ranged *r, uint32_t event)
{
    const uint32_t n = r->g->n_tasks;
    bool *is_before = calloc(r->g->n_events, sizeof *is_before);
    is_before[event] = true;
    memset(r->before, 0, n * sizeof *r->before);
    for (bool more = true; more;) {
        more = false;
        for (uint32_t t = 0; t < n; t++)
            if (!r->before[t] && is_before[r->tasks[t].triggers])
                more = r->before[t] = is_before[r->tasks[t].depends] = true;
    }
    free(is_before);
}

/* Has the operator a task that need not end before the marked event? */
static inline bool ranged_is_late(const ranged *r, ir_op_id op)
{
    for (uint32_t t = 0; t < r->g->n_tasks; t++)
        if (r->tasks[t].op == op && !r->before[t])
            return true;
    return false;
}

/* ---- the end ---- */

/* May the operator touch carried words in the memory of the GPU? */
static inline bool ranged_touches(const ranged *r, ir_op_id op, uint32_t peer)
{
    const ir_op *o = ranged_op(r, op);
    bool is_read = o->peer == peer;
    for (uint32_t i = 0; i < o->n_out; i++)
        is_read = is_read || ranged_is_read_on(r, tg_root(r->ir, o->out[i]), peer, false);
    return ranged_body(r, op) && ranged_body(r, op)->carries && is_read;
}

/* Does a list hold a task of an operator before `end` that touches words which that GPU carries? */
static inline bool ranged_list_touches(const ranged *r, const rt_range *list, ir_op_id end)
{
    for (uint32_t k = list->first; k < list->last; k++) {
        const uint32_t op = r->tasks[r->lists[k]].op;
        if (op != RT_NONE && op < end && ranged_touches(r, op, ranged_op(r, end)->peer))
            return true;
    }
    return false;
}

static inline uint32_t ranged_first_from(const ranged *r, const rt_range *list, ir_op_id end)
{
    for (uint32_t k = list->first; k < list->last; k++)
        if (r->tasks[r->lists[k]].op != RT_NONE && r->tasks[r->lists[k]].op >= end)
            return r->tasks[r->lists[k]].op;
    return RT_NONE;
}

static inline bool ranged_may_end(ranged *r, ir_op_id end)
{
    const uint32_t peer = ranged_op(r, end)->peer, n = cuda_workers(r->first);
    if (!ranged_body(r, end) || ranged_event(r, end) == RT_NONE)
        return false;
    ranged_mark(r, ranged_event(r, end));
    for (ir_op_id op = 0; op < end; op++)
        if (ranged_touches(r, op, peer) && ranged_is_late(r, op))
            return false;
    for (uint32_t w = 0; w < n; w++)
        for (uint32_t p = 0; p < r->first->n_peers; p++)
            if (ranged_list_touches(r, &r->ranges[p * n + w], end) &&
                ranged_first_from(r, &r->ranges[peer * n + w], end) != end)
                return false;
    return true;
}

/* ---- what is carried ---- */

/* What a task writes, and what its reads depend on, is whole words? */
static inline bool ranged_is_torn(const ranged *r, ir_op_id op, uint32_t output)
{
    const ir_op *o = ranged_op(r, op);
    const ir_tensor *y = &r->ir->tensors.at[o->out[output]];
    for (uint32_t t = 0; t < r->g->n_tasks; t++) {
        ir_box own = {0}, box;
        if (r->tasks[t].op != op || !y->rank || (y->dtype != IR_BF16 && y->dtype != IR_F16))
            continue;
        for (uint32_t i = 0; i < RT_MAX_RANK; i++) {
            own.lo[i] = r->tasks[t].lo[i];
            own.hi[i] = r->tasks[t].hi[i];
        }
        box = own;
        if (output && o->def->writes)
            o->def->writes(r->ir, o, output, &own, &box);
        else if (!output)
            gen_own_words(ranged_body(r, op), y, &box);
        if ((box.lo[y->rank - 1] | box.hi[y->rank - 1]) % 2)
            return true;
    }
    return false;
}

/* Do the tasks of a reader read of the root what they write, so that all of it has arrived when
 * they are done? */
static inline bool ranged_reads_own(const ranged *r, ir_op_id op, ir_tensor_id root)
{
    const ir_op *o = ranged_op(r, op);
    const ir_tensor *x = &r->ir->tensors.at[root], *y = &r->ir->tensors.at[o->out[0]];
    bool is_own =
        x->rank == y->rank && x->live == y->live && memcmp(x->dims, y->dims, sizeof x->dims) == 0;
    for (uint32_t t = 0; t < r->g->n_tasks; t++)
        for (uint32_t i = 0; i < o->n_in && r->tasks[t].op == op && is_own; i++) {
            ir_box own = {0}, box = {0};
            for (uint32_t a = 0; a < y->rank; a++) {
                own.lo[a] = r->tasks[t].lo[a];
                own.hi[a] = r->tasks[t].hi[a];
            }
            gen_own_words(ranged_body(r, op), y, &own);
            if (o->in[i] != root)
                continue;
            o->def->reads(r->ir, o, i, &own, &box);
            is_own = memcmp(&own, &box, sizeof own) == 0;
        }
    return is_own;
}

static inline bool ranged_may_read(const ranged *r, ir_op_id op, ir_tensor_id id)
{
    const ir_op *o = ranged_op(r, op);
    if (op >= r->ends[o->peer] || !ranged_body(r, op) || ranged_is_torn(r, op, 0))
        return false;
    for (uint32_t i = 0; i < o->n_in; i++)
        if (o->in[i] == id && !(ranged_body(r, op)->carries >> i & 1))
            return false;
    return true;
}

static inline bool ranged_may_carry(const ranged *r, ir_tensor_id id)
{
    const ir_tensor *t = &r->ir->tensors.at[id];
    bool is_read = false;
    if (t->producer == IR_NONE || t->kind != IR_TEMP || t->shares != IR_NONE ||
        t->live == IR_ROWS || t->producer >= r->ends[ranged_op(r, t->producer)->peer])
        return false;
    const ir_op *by = ranged_op(r, t->producer);
    const gen_body *body = ranged_body(r, t->producer);
    if (!body || !body->carries)
        return false;
    for (ir_tensor_id i = 0; i < r->ir->tensors.n; i++)
        if (i != id && tg_root(r->ir, i) == id)
            return false;
    for (uint32_t o = 0; o < by->n_out; o++)
        if (by->out[o] == id && ranged_is_torn(r, t->producer, o))
            return false;
    for (size_t i = 0; i < r->ir->outputs.n; i++)
        if (r->ir->outputs.at[i] == id)
            return false;
    const bool crosses = ranged_is_read_on(r, id, t->peer, true);
    for (ir_op_id op = 0; op < r->ir->ops.n; op++)
        if (ranged_reads(r, op, id)) {
            if (!ranged_may_read(r, op, id) ||
                (crosses && !(body->sends && ranged_reads_own(r, op, id))))
                return false;
            is_read = true;
        }
    return is_read;
}

/* ---- the gate ---- */

/* Is something that the operator reads, and that is not carried, written by a late task of
 * another? */
static inline bool ranged_reads_late(const ranged *r, ir_op_id op, ir_op_id end)
{
    for (ir_op_id late = 0; late < end; late++)
        for (uint32_t i = 0; i < ranged_op(r, late)->n_out && late != op; i++) {
            const ir_tensor_id made = ranged_op(r, late)->out[i];
            if (!r->can[made] && ranged_reads(r, op, tg_root(r->ir, made)) &&
                ranged_is_late(r, late))
                return true;
        }
    return false;
}

/* May the operator's tasks run before those of operators before it? */
static inline bool ranged_stands_apart(const ranged *r, ir_op_id op)
{
    const ir_op *o = ranged_op(r, op);
    if (!ranged_body(r, op)->carries)
        return ranged_event(r, op) == TG_START;
    for (uint32_t i = 0; i < o->n_out; i++) {
        const ir_tensor_id root = tg_root(r->ir, o->out[i]);
        for (ir_op_id before = 0; before < op; before++)
            if (ranged_body(r, before) &&
                (ranged_reads(r, before, root) || ranged_writes(r, before, root)))
                return false;
    }
    return true;
}

static inline bool ranged_may_begin(ranged *r, ir_op_id gate, ir_op_id end)
{
    if (!ranged_body(r, gate) || ranged_event(r, gate) == RT_NONE)
        return false;
    ranged_mark(r, ranged_event(r, gate));
    for (ir_op_id op = gate + 1; op < end; op++) {
        if (ranged_op(r, op)->peer != ranged_op(r, end)->peer || !ranged_body(r, op))
            continue;
        for (uint32_t t = 0; t < r->g->n_tasks; t++)
            if (r->tasks[t].op == op && r->before[t] && ranged_body(r, op)->carries)
                return false;
        if (ranged_reads_late(r, op, end) || (ranged_is_late(r, op) && !ranged_stands_apart(r, op)))
            return false;
    }
    return true;
}

/* ---- all ---- */

/* False: some GPU has no end or no gate, so none carries anything. */
static inline bool ranged_find(ranged *r, ir_op_id *gates)
{
    const ir_op_id n = (ir_op_id)r->ir->ops.n;
    for (uint32_t p = 0; p < r->first->n_peers; p++) {
        r->ends[p] = RT_NONE;
        for (ir_op_id op = 2; op < n; op++)
            if (ranged_op(r, op)->peer == p && ranged_may_end(r, op))
                r->ends[p] = op;
        if (r->ends[p] == RT_NONE)
            return false;
    }
    for (ir_tensor_id i = 0; i < r->ir->tensors.n; i++)
        r->can[i] = ranged_may_carry(r, i);
    for (uint32_t p = 0; p < r->first->n_peers; p++) {
        gates[p] = RT_NONE;
        for (ir_op_id op = r->ends[p]; op-- > 0;)
            if (op + 1 < r->ends[p] && ranged_op(r, op)->peer == p &&
                ranged_may_begin(r, op, r->ends[p]))
                gates[p] = op;
        if (gates[p] == RT_NONE)
            return false;
    }
    return true;
}

/* Of a graph without JIT tasks, on a machine whose kernel runs whole steps. */
static inline void carried_check_range(const cuda_machine *first, uint32_t graph)
{
    const rt_header *h = first->machine.image.block;
    const rt_graph *g = (const rt_graph *)image_table(h, RT_GRAPHS) + graph;
    ranged r = {.first = first,
                .graph = graph,
                .ir = first->machine.image.ir[graph],
                .g = g,
                .tasks = (const rt_task *)image_table(h, RT_TASKS) + g->first_task,
                .ranges = (const rt_range *)image_table(h, RT_RANGES) + g->first_range,
                .lists = image_table(h, RT_LISTS),
                .before = calloc(g->n_tasks, sizeof(bool))};
    ir_op_id gates[IR_MAX_PEERS];
    r.can = calloc(r.ir->tensors.n, sizeof *r.can);
    const bool found = ranged_find(&r, gates);
    for (uint32_t p = 0; p < first->n_peers; p++) {
        const cuda_flow *flow = &first->peers[p]->carriers.flows[graph];
        assert_int_equal(flow->end, found ? r.ends[p] : RT_NONE);
        assert_int_equal(flow->gate, found ? gates[p] : RT_NONE);
        for (ir_tensor_id i = 0; i < r.ir->tensors.n; i++) {
            const uint32_t peer = r.ir->tensors.at[i].peer;
            const bool here =
                found && r.can[i] && (peer == p || ranged_is_read_on(&r, i, peer, true));
            if (flow->is_carried[i] != here)
                fail_msg("graph %u: GPU %u carries %s: %d", graph, p, r.ir->tensors.at[i].name.at,
                         flow->is_carried[i]);
        }
    }
    free(r.before);
    free(r.can);
}

#endif
