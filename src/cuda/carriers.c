/* carriers.c - which results carry their own readiness, instead of a counter (paper §5.1 leaves the
 * carrier of an event open).
 *
 * Input: the image and the code of its operators.  Output: for each tensor whether it is carried,
 * and where it lies; for each task whether it is quiet; for each worker what it clears.
 *
 * A carried tensor has memory of its own in a step, all of it RT_EMPTY when the step begins.
 * A reader that needs a word of it polls the word until it is something else; no counter and no
 * fence stands between writer and reader.  So a result reaches the other side of the GPU in the
 * time of one store and one load.  Why that is sound (docs/gpu.md, "Carriers"):
 *
 *   gate    tasks that poll (quiet ones) read otherwise only what was there before some event, and
 *           every worker waits for that event by its counter before its first quiet task
 *
 *   order   what a quiet task writes besides is memory that no task before it touches; operators in
 *           between that do not poll wait for nothing but the start: so nothing relies on an order
 *           that goes through a task which waits for no event
 *
 *   words   a word is written once in a step, by a store that is not torn; what it holds says that
 *           it was written
 *
 *   clear   from some operator on, all tasks wait by counters for an event that follows every task
 *           before; once a worker has seen it, no carried word is read any more, so it makes
 *           those that it wrote empty again, and its own counted task publishes that before the
 *           step can end
 *
 *   step    the next step's word is released after that, and acquired by the next poll
 *
 * Where several GPUs share the program, each has a gate and an end of its own, and a term that
 * others add crosses: its writer stores each word into the memory of every GPU that polls it, at
 * the same offset of the block, and each of these clears its own copy (docs/gpus.md, "Carried
 * words").  sent.c has those that cross and are not carried.
 *
 * Graphs in which there is no such event, and graphs with JIT tasks, use counters alone.  With JIT
 * tasks it would not be sound: a worker that polls for a word cannot run the JIT task in its own
 * queue that makes this word, and no list says which worker has to empty what a JIT task wrote.
 * Cost: a pass over the tasks of a graph for each event that is tried.
 */
#include "base/thread.h"
#include "cuda/cuda_machine.h"
#include "gen/body_print.h"
#include "ir/op.h"

/* Rows that the clerk examines together, one in each lane; only then does it clear long ones
 * (device/role/clerk.cuh). */
enum { CLEAR_ROWS = 32 };

/* The analysis of one graph. */
typedef struct flow {
    const cuda_machine *m;
    uint32_t index;
    const ir_graph *ir;
    const rt_graph *g;
    const rt_task *tasks;
    const rt_range *ranges; /* of the workers of all peers */
    const rt_u32 *lists;
    bool *can; /* [tensors] may be carried, as far as its writer and its readers go */
    ir_op_id ends[IR_MAX_PEERS];
    ir_tensor_id *root;    /* [tensors] */
    uint32_t *torn;        /* [ops] bit o: see mark_torn */
    uint32_t *event_of;    /* [ops] see find_events */
    bool *is_late;         /* [ops] scratch of can_begin */
    bool *before;          /* [tasks] see mark_before */
    bool *event_is_before; /* [events] */
    bool has_range;        /* find_range has found one */
    cuda_flow *out;
} flow;

/* The body of an operator; NULL: it is a view, or has no tasks for another reason. */
static const gen_body *body_of(const flow *f, ir_op_id op)
{
    return f->m->source.uses[f->index][op].body;
}

static bool has_tasks(const flow *f, ir_op_id op)
{
    return body_of(f, op) != NULL;
}

/* Note for each operator the one event on which all its tasks depend; RT_NONE: there are several,
 * or no task. */
static void find_events(flow *f)
{
    const uint32_t unknown = RT_NONE - 1; /* no task was seen yet; no event has this number */
    for (ir_op_id op = 0; op < f->ir->ops.n; op++)
        f->event_of[op] = unknown;
    for (uint32_t t = 0; t < f->g->n_tasks; t++) {
        const rt_task *task = &f->tasks[t];
        if (task->op == RT_NONE)
            continue;
        uint32_t *event = &f->event_of[task->op];
        *event = *event == unknown || *event == task->depends ? task->depends : RT_NONE;
    }
    for (ir_op_id op = 0; op < f->ir->ops.n; op++)
        if (f->event_of[op] == unknown)
            f->event_of[op] = RT_NONE;
}

/* Which tasks end before the event is activated (before, event_is_before)?  Tasks are numbered in
 * topological order, so one pass from the last to the first finds all: a task whose trigger leads
 * to the event comes before it, and so does whatever it depends on. */
static void mark_before(flow *f, uint32_t event)
{
    memset(f->before, 0, f->g->n_tasks * sizeof *f->before);
    memset(f->event_is_before, 0, f->g->n_events * sizeof *f->event_is_before);
    f->event_is_before[event] = true;
    for (uint32_t t = f->g->n_tasks; t-- > 0;)
        if (f->event_is_before[f->tasks[t].triggers]) {
            f->before[t] = true;
            f->event_is_before[f->tasks[t].depends] = true;
        }
}

/* ---- tensors ---- */

/* What a task writes of output number `output`, or what counts as that (gen_own_words); its own box
 * is of the first one. */
static void box_of_output(const flow *f, const rt_task *task, uint32_t output, ir_box *box)
{
    const ir_op *op = &f->ir->ops.at[task->op];
    ir_box first = {0};
    for (uint32_t i = 0; i < RT_MAX_RANK; i++) {
        first.lo[i] = task->lo[i];
        first.hi[i] = task->hi[i];
    }
    *box = first;
    if (output && op->def->writes)
        op->def->writes(f->ir, op, output, &first, box);
    if (!output)
        gen_own_words(body_of(f, task->op), &f->ir->tensors.at[op->out[0]], box);
}

/* Does a word hold two entries?  A body that rounds never stores a half whose bits are those of
 * RT_EMPTY: it makes another NaN. */
static bool has_halves(const ir_tensor *t)
{
    return t->dtype == IR_BF16 || t->dtype == IR_F16;
}

/* Mark the outputs whose tasks do not have boxes of whole words.  All other outputs are written by
 * whole words, and read by whole words together with what lies beside them. */
static void mark_torn(flow *f)
{
    for (uint32_t i = 0; i < f->g->n_tasks; i++) {
        const rt_task *task = &f->tasks[i];
        for (uint32_t o = 0; task->op != RT_NONE && o < f->ir->ops.at[task->op].n_out; o++) {
            const ir_tensor *t = &f->ir->tensors.at[f->ir->ops.at[task->op].out[o]];
            ir_box box;
            if (!has_halves(t) || !t->rank)
                continue;
            box_of_output(f, task, o, &box);
            if (box.lo[t->rank - 1] % 2 || box.hi[t->rank - 1] % 2)
                f->torn[task->op] |= 1u << o;
        }
    }
}

/* Does the operator read this root only by inputs that its body polls? */
static bool polls(const flow *f, ir_op_id op, ir_tensor_id root)
{
    const ir_op *o = &f->ir->ops.at[op];
    const gen_body *body = body_of(f, op);
    for (uint32_t i = 0; i < o->n_in; i++)
        if (o->in[i] != IR_NONE && f->root[o->in[i]] == root &&
            (o->in[i] != root || !(body->carries >> i & 1)))
            return false;
    return true;
}

/* By any input, or by a view of the root. */
static bool reads_root(const flow *f, ir_op_id op, ir_tensor_id root)
{
    const ir_op *o = &f->ir->ops.at[op];
    for (uint32_t i = 0; i < o->n_in; i++)
        if (o->in[i] != IR_NONE && f->root[o->in[i]] == root)
            return true;
    return false;
}

static uint32_t peer_of(const flow *f, ir_op_id op)
{
    return f->ir->ops.at[op].peer;
}

/* The end is an operator of the peer's own: from it on its workers clear. */
static bool is_before_end(const flow *f, ir_op_id op)
{
    return op < f->ends[peer_of(f, op)];
}

/* Do other peers than its own poll a carried tensor? */
static bool crosses(const flow *f, ir_tensor_id id)
{
    return (f->out->readers[id] & ~(1u << f->ir->tensors.at[id].peer)) != 0;
}

/* Does a task whose own box this is read of an input all columns of its own rows, or what its own
 * box is?  Along axis 0 it must be the same, so that rows which are not alive are no task's. */
static bool reads_rows(const flow *f, const ir_op *o, uint32_t input, const ir_box *own)
{
    const ir_tensor *t = &f->ir->tensors.at[o->in[input]], *y = &f->ir->tensors.at[o->out[0]];
    ir_box box = {0};
    o->def->reads(f->ir, o, input, own, &box);
    for (uint32_t a = 0; a < t->rank; a++) {
        const bool whole = a && !box.lo[a] && box.hi[a] == t->dims[a],
                   same = t->dims[a] == y->dims[a] && box.lo[a] == own->lo[a] &&
                          box.hi[a] == own->hi[a];
        if (!whole && !same)
            return false;
    }
    return true;
}

/* Do all tasks of the operator together read every word of this root that is alive?  Then no word
 * is in flight any more when they are done. */
static bool reads_all(const flow *f, ir_op_id op, ir_tensor_id root)
{
    const ir_op *o = &f->ir->ops.at[op];
    const ir_tensor *t = &f->ir->tensors.at[root], *y = &f->ir->tensors.at[o->out[0]];
    if (t->rank != y->rank || t->live != y->live)
        return false;
    for (uint32_t k = 0; k < f->g->n_tasks; k++) {
        ir_box own;
        if (f->tasks[k].op != op)
            continue;
        box_of_output(f, &f->tasks[k], 0, &own);
        for (uint32_t i = 0; i < o->n_in; i++)
            if (o->in[i] == root && !reads_rows(f, o, i, &own))
                return false;
    }
    return true;
}

/* May the readers of a tensor poll it where they are? */
static bool may_cross(const flow *f, ir_tensor_id id)
{
    if (!body_of(f, f->ir->tensors.at[id].producer)->sends)
        return false;
    for (ir_op_id op = 0; op < f->ir->ops.n; op++)
        if (reads_root(f, op, id) && !reads_all(f, op, id))
            return false;
    return true;
}

/* Which output of its producer this tensor is, if it may be carried; else -1.  It must be written
 * by a body that carries, in boxes of whole words; have no views and no live rows; be no output of
 * the program; and be read by operators before their peer's end alone, all of which poll.  A tensor
 * that shares another's storage is read as a view of that one, so by none. */
static int output_to_carry(const flow *f, ir_tensor_id id)
{
    const ir_tensor *t = &f->ir->tensors.at[id];
    bool is_read = false;
    int output = -1;
    if (t->producer == IR_NONE || !is_before_end(f, t->producer) || !has_tasks(f, t->producer) ||
        !body_of(f, t->producer)->carries || t->live == IR_ROWS)
        return -1;
    for (ir_tensor_id other = 0; other < f->ir->tensors.n; other++)
        if (other != id && f->root[other] == id)
            return -1;
    for (ir_op_id op = 0; op < f->ir->ops.n; op++)
        if (reads_root(f, op, id)) {
            if (!is_before_end(f, op) || !polls(f, op, id) || f->torn[op] & 1)
                return -1;
            is_read = true;
        }
    if (crosses(f, id) && !may_cross(f, id))
        return -1;
    for (ir_tensor_id k = 0; k < f->ir->outputs.n; k++)
        if (f->ir->outputs.at[k] == id)
            return -1;
    for (uint32_t i = 0; i < f->ir->ops.at[t->producer].n_out; i++)
        if (f->ir->ops.at[t->producer].out[i] == id)
            output = (int)i;
    return is_read && output >= 0 && !(f->torn[t->producer] >> output & 1) ? output : -1;
}

/* ---- where polling begins and ends ---- */

/* May tasks of this operator, which has some, touch words that are carried? */
static bool may_carry(const flow *f, ir_op_id op)
{
    return body_of(f, op)->carries;
}

/* Does the peer poll what this operator of another peer makes? */
static bool feeds(const flow *f, ir_op_id op, uint32_t peer)
{
    const ir_op *o = &f->ir->ops.at[op];
    uint32_t readers = 0;
    for (uint32_t i = 0; i < o->n_out; i++)
        readers |= f->out->readers[f->root[o->out[i]]];
    return readers >> peer & 1;
}

/* May tasks of this operator touch carried words in the memory of the peer that ends with `end`?
 * RT_NONE, the operator of tasks that have none, is no number before it. */
static bool touches(const flow *f, ir_op_id op, ir_op_id end)
{
    return op < end && may_carry(f, op) &&
           (peer_of(f, op) == peer_of(f, end) || feeds(f, op, peer_of(f, end)));
}

/* The AOT list of a worker by its number on its peer. */
static const rt_range *list_of(const flow *f, uint32_t peer, uint32_t worker)
{
    return &f->ranges[peer * cuda_workers(f->m) + worker];
}

/* May the worker, or the one of its number on another peer, store anything that it clears? */
static bool has_cleared(const flow *f, uint32_t worker, ir_op_id end)
{
    for (uint32_t p = 0; p < f->m->n_peers; p++)
        for (uint32_t k = list_of(f, p, worker)->first; k < list_of(f, p, worker)->last; k++)
            if (touches(f, f->tasks[f->lists[k]].op, end))
                return true;
    return false;
}

/* Is its first task from `end` on one of `end`? */
static bool has_end(const flow *f, uint32_t worker, ir_op_id end)
{
    const rt_range *list = list_of(f, peer_of(f, end), worker);
    for (uint32_t k = list->first; k < list->last; k++) {
        const uint32_t op = f->tasks[f->lists[k]].op;
        if (op != RT_NONE && op >= end)
            return op == end;
    }
    return false;
}

/* May clearing begin, on its peer, with operator `end`?  One event, on which all its tasks wait by
 * counters, must follow everything before it that may touch words carried there; and each worker
 * that clears must have a task of `end` after it, with which it does. */
static bool can_end(flow *f, ir_op_id end)
{
    uint32_t event = has_tasks(f, end) ? f->event_of[end] : RT_NONE;
    if (event == RT_NONE)
        return false;
    mark_before(f, event);
    for (uint32_t t = 0; t < f->g->n_tasks; t++)
        if (touches(f, f->tasks[t].op, end) && !f->before[t])
            return false;
    for (uint32_t w = 0; w < cuda_workers(f->m); w++)
        if (has_cleared(f, w, end) && !has_end(f, w, end))
            return false;
    return true;
}

/* Reads or writes the storage that `root` owns, through views too. */
static bool touches_root(const flow *f, ir_op_id op, ir_tensor_id root)
{
    const ir_op *o = &f->ir->ops.at[op];
    for (uint32_t i = 0; i < o->n_out; i++)
        if (f->root[o->out[i]] == root)
            return true;
    return reads_root(f, op, root);
}

/* May tasks of this operator run without their event, as far as what they write goes?  No operator
 * before touches it, and no other tensor lies there: temporaries get memory of their own
 * (place_tensors). */
static bool writes_apart(const flow *f, ir_op_id op)
{
    const ir_op *o = &f->ir->ops.at[op];
    for (uint32_t i = 0; i < o->n_out; i++)
        for (ir_op_id before = 0; before < op; before++)
            if (has_tasks(f, before) && touches_root(f, before, f->root[o->out[i]]))
                return false;
    return true;
}

/* Operators between gate and end that the gate's event does not follow either poll, or wait for the
 * start alone: no order of theirs goes through a task that polls. */
static bool stands_apart(flow *f, ir_op_id op)
{
    return may_carry(f, op) ? writes_apart(f, op) : f->event_of[op] == TG_START;
}

/* Has an operator a result that is polled, and another that is read but not polled?  That its tasks
 * come before those readers may be implied by what polls the first one: but words that are polled
 * do not order other stores. */
static bool has_hidden_result(const flow *f, ir_op_id op)
{
    const ir_op *o = &f->ir->ops.at[op];
    bool polled = false, hidden = false;
    for (uint32_t i = 0; i < o->n_out; i++) {
        const ir_tensor_id root = f->root[o->out[i]];
        polled = polled || f->can[o->out[i]];
        hidden = hidden || (!f->can[o->out[i]] && f->ir->tensors.at[root].kind == IR_TEMP &&
                            f->out->readers[root]);
    }
    return polled && hidden;
}

/* May polling begin, on its peer, after operator `gate`?  No task that polls may come before the
 * gate's event, for which it waits.  Whatever the peer's operators between the two read and that is
 * not carried must be written before that event; and those that it does not follow must stand
 * apart.  A task that is not before the event makes its whole operator late. */
static bool can_begin(flow *f, ir_op_id gate, ir_op_id end)
{
    const uint32_t peer = peer_of(f, end);
    uint32_t event = has_tasks(f, gate) ? f->event_of[gate] : RT_NONE;
    if (event == RT_NONE)
        return false;
    mark_before(f, event);
    memset(f->is_late, 0, f->ir->ops.n * sizeof *f->is_late);
    for (uint32_t t = 0; t < f->g->n_tasks; t++) {
        const ir_op_id op = f->tasks[t].op;
        if (op == RT_NONE)
            continue;
        if (f->before[t] && op > gate && op < end && peer_of(f, op) == peer && may_carry(f, op))
            return false;
        f->is_late[op] = f->is_late[op] || !f->before[t];
    }
    for (ir_op_id late = 0; late < end; late++) {
        const ir_op *o = &f->ir->ops.at[late];
        for (uint32_t i = 0; i < o->n_out && f->is_late[late]; i++)
            for (ir_op_id op = gate + 1; op < end && !f->can[o->out[i]]; op++)
                if (op != late && peer_of(f, op) == peer && has_tasks(f, op) &&
                    reads_root(f, op, f->root[o->out[i]]))
                    return false;
    }
    for (ir_op_id op = gate; op < end; op++)
        if (f->is_late[op] && peer_of(f, op) == peer &&
            ((op > gate && !stands_apart(f, op)) || has_hidden_result(f, op)))
            return false;
    return true;
}

/* ---- the plan ---- */

/* Everything about a graph that does not depend on the range; scratch is freed after the plan, what
 * *out points to stays. */
static mpk_status begin_flow(mpk_context *cx, arena *scratch, cuda_machine *m, uint32_t graph,
                             flow *f)
{
    const rt_header *h = m->machine.image.block;
    const rt_graph *g = (const rt_graph *)image_table(h, RT_GRAPHS) + graph;
    *f = (flow){.m = m,
                .index = graph,
                .ir = m->machine.image.ir[graph],
                .g = g,
                .tasks = (const rt_task *)image_table(h, RT_TASKS) + g->first_task,
                .ranges = (const rt_range *)image_table(h, RT_RANGES) + g->first_range,
                .lists = image_table(h, RT_LISTS),
                .out = &m->carriers.flows[graph]};
    NEW(cx, scratch, f->can, f->ir->tensors.n);
    NEW(cx, scratch, f->root, f->ir->tensors.n);
    NEW(cx, &m->arena, f->out->readers, f->ir->tensors.n);
    NEW(cx, scratch, f->torn, f->ir->ops.n);
    NEW(cx, scratch, f->event_of, f->ir->ops.n);
    NEW(cx, scratch, f->is_late, f->ir->ops.n);
    NEW(cx, scratch, f->before, g->n_tasks);
    NEW(cx, scratch, f->event_is_before, g->n_events);
    NEW(cx, &m->arena, f->out->at, f->ir->tensors.n);
    NEW(cx, &m->arena, f->out->is_carried, f->ir->tensors.n);
    NEW(cx, &m->arena, f->out->sends, f->ir->tensors.n);
    for (ir_tensor_id i = 0; i < f->ir->tensors.n; i++) {
        f->root[i] = tg_root(f->ir, i);
        f->out->at[i] = CUDA_IN_AREA;
    }
    for (ir_op_id op = 0; op < f->ir->ops.n; op++)
        for (uint32_t i = 0; i < f->ir->ops.at[op].n_in; i++)
            if (f->ir->ops.at[op].in[i] != IR_NONE)
                f->out->readers[f->root[f->ir->ops.at[op].in[i]]] |= 1u << peer_of(f, op);
    f->out->gate = f->out->end = RT_NONE;
    mark_torn(f);
    find_events(f);
    return MPK_OK;
}

/* The latest end of a peer: an earlier one would leave more to counters.  RT_NONE: there is
 * none. */
static ir_op_id find_end(flow *f, uint32_t peer)
{
    for (ir_op_id end = (ir_op_id)f->ir->ops.n; end-- > 2;)
        if (peer_of(f, end) == peer && can_end(f, end))
            return end;
    return RT_NONE;
}

/* The earliest gate before a peer's end; RT_NONE: there is none. */
static ir_op_id find_gate(flow *f, uint32_t peer)
{
    for (ir_op_id gate = 0; gate + 1 < f->ends[peer]; gate++)
        if (peer_of(f, gate) == peer && can_begin(f, gate, f->ends[peer]))
            return gate;
    return RT_NONE;
}

/* The latest end of each peer, and with these the earliest gates.  False: a peer has none; then
 * nothing of the graph is carried on any of them, since what one sends another must poll. */
static bool find_range(flow *f)
{
    ir_op_id gates[IR_MAX_PEERS];
    for (uint32_t p = 0; p < f->m->n_peers; p++) {
        f->ends[p] = find_end(f, p);
        if (f->ends[p] == RT_NONE)
            return false;
    }
    for (ir_tensor_id i = 0; i < f->ir->tensors.n; i++)
        f->can[i] = output_to_carry(f, i) >= 0;
    for (uint32_t p = 0; p < f->m->n_peers; p++) {
        gates[p] = find_gate(f, p);
        if (gates[p] == RT_NONE)
            return false;
    }
    f->out->gate = gates[f->m->peer];
    f->out->end = f->ends[f->m->peer];
    f->out->event = f->event_of[f->out->gate];
    return true;
}

/* Do the tasks of this operator, which has some, poll?  Those between the gate and the end whose
 * body can.  A graph that carries nothing has neither: its gate, RT_NONE, is after every
 * operator. */
static bool is_quiet(const cuda_flow *plan, const gen_body *body, ir_op_id op)
{
    return op > plan->gate && op < plan->end && body->carries;
}

/* Is this a temporary of this peer that quiet tasks write?  They wait for no event, so the memory
 * that temporaries share in turn may still be read for another one. */
static bool needs_own_place(const flow *f, ir_tensor_id id)
{
    const ir_op_id by = f->ir->tensors.at[id].producer;
    return f->root[id] == id && by != IR_NONE && peer_of(f, by) == f->m->peer &&
           is_quiet(f->out, body_of(f, by), by) &&
           f->m->machine.image.places[f->index][id].area == TG_TEMPS;
}

/* The next place of its part of the block, *n bytes from where the carried part begins. */
static void place_at(flow *f, ir_tensor_id id, uint64_t *n)
{
    f->out->at[id] = f->m->carriers.n_sent + *n;
    *n += ((uint64_t)ir_bytes(&f->ir->tensors.at[id]) + CUDA_CARRY_ALIGN - 1) / CUDA_CARRY_ALIGN *
          CUDA_CARRY_ALIGN;
}

/* Places in the block that all graphs share: what crosses, at the same place on every peer, then
 * what this one carries to itself, all of it empty when a step begins; and after that of all graphs
 * the rest (move_rest). */
static void place_tensors(flow *f, cuda_carriers *to)
{
    uint64_t carried = 0, rest = 0;
    for (ir_tensor_id i = 0; i < f->ir->tensors.n; i++)
        if (f->can[i] && crosses(f, i)) {
            f->out->is_carried[i] = true;
            f->out->sends[i] = f->out->readers[i];
            place_at(f, i, &carried);
        }
    for (ir_tensor_id i = 0; i < f->ir->tensors.n; i++)
        if (f->can[i] && !crosses(f, i) && f->ir->tensors.at[i].peer == f->m->peer) {
            f->out->is_carried[i] = true;
            place_at(f, i, &carried);
        } else if (!f->can[i] && needs_own_place(f, i)) {
            place_at(f, i, &rest);
        }
    to->n_carried = carried > to->n_carried ? carried : to->n_carried;
    to->n_rest = rest > to->n_rest ? rest : to->n_rest;
}

/* Offsets of what is not carried are known when the carried part of the largest graph is. */
static void move_rest(const cuda_machine *m, cuda_carriers *c)
{
    for (uint32_t i = 0; i < m->machine.image.n_graphs; i++)
        for (ir_tensor_id t = 0; t < m->machine.image.ir[i]->tensors.n; t++)
            if (c->flows[i].at[t] != CUDA_IN_AREA && !c->flows[i].is_carried[t] &&
                !c->flows[i].sends[t])
                c->flows[i].at[t] += c->n_carried;
    c->n_bytes = c->n_sent + c->n_carried + c->n_rest;
}

/* One box, in lots of rows. */
static mpk_status add_clear(mpk_context *cx, cuda_machine *m, rt_clear whole)
{
    for (uint32_t row = 0; row < whole.n_rows; row += CLEAR_ROWS) {
        rt_clear c = whole;
        c.at += (uint64_t)row * whole.stride_bytes;
        c.first_row += row;
        c.n_rows = whole.n_rows - row < CLEAR_ROWS ? whole.n_rows - row : CLEAR_ROWS;
        PUSH(cx, &m->arena, &m->carriers.clears, c);
    }
    return MPK_OK;
}

/* What one task writes of one output: rows along the first axis, once for each place along those in
 * between.  Example, bf16 [tokens, 4096], box [0..16) x [512..1024): one clear of 16 rows of 1,024
 * bytes, 8,192 apart, in units of 16 bytes, of which only the rows of live tokens are cleared. */
static mpk_status add_clears(mpk_context *cx, cuda_machine *m, const flow *f, const rt_task *task,
                             uint32_t output)
{
    ir_tensor_id id = f->ir->ops.at[task->op].out[output];
    const ir_tensor *t = &f->ir->tensors.at[id];
    const uint32_t last = t->rank - 1, word = has_halves(t) ? 2 : 1;
    ir_box box;
    box_of_output(f, task, output, &box);
    int64_t middle = 1, live = t->live == IR_TOKENS ? RT_TOKENS : RT_ALL;
    for (uint32_t i = 1; i < last; i++)
        middle *= box.hi[i] - box.lo[i];
    for (int64_t k = 0; k < middle; k++) {
        int64_t offset = last ? box.lo[0] * t->stride[0] : 0, rest = k;
        for (uint32_t i = last; i-- > 1; rest /= box.hi[i] - box.lo[i])
            offset += (box.lo[i] + rest % (box.hi[i] - box.lo[i])) * t->stride[i];
        const uint64_t at = f->out->at[id] + (uint64_t)(offset + box.lo[last]) * (4 / word);
        const uint32_t row = (uint32_t)(box.hi[last] - box.lo[last]) * (4 / word);
        const uint32_t stride = last ? (uint32_t)t->stride[0] * (4 / word) : 0;
        const uint32_t unit = at % 16 || row % 16 || stride % 16 ? 4 : 16;
        rt_clear c = {.at = at,
                      .n_rows = 1,
                      .n_units = row / unit,
                      .stride_bytes = stride,
                      .unit_bytes = unit,
                      .live = RT_ALL};
        if (last) { /* else the one axis is that of a row, which counts whole */
            c.first_row = (rt_u32)box.lo[0];
            c.n_rows = (rt_u32)(box.hi[0] - box.lo[0]);
            c.live = (rt_u32)live;
        }
        TRY(add_clear(cx, m, c));
    }
    return MPK_OK;
}

/* Does this machine's memory hold what output `output` of an operator stores? */
static bool clears_here(const flow *f, ir_op_id op, uint32_t output)
{
    const ir_tensor_id id = f->ir->ops.at[op].out[output];
    const uint32_t sends = f->out->sends[id];
    return f->out->is_carried[id] &&
           (sends ? sends >> f->m->peer & 1 : peer_of(f, op) == f->m->peer);
}

/* The clears of a worker, none if the graph carries nothing: of what its own list writes, then of
 * what workers of its number on other peers have sent.  A list's are in its order. */
static mpk_status add_worker(mpk_context *cx, cuda_machine *m, const flow *f, uint32_t worker)
{
    for (uint32_t i = 0; i < m->n_peers && f->out->end != RT_NONE; i++) {
        const rt_range *list = list_of(f, (m->peer + i) % m->n_peers, worker);
        for (uint32_t k = list->first; k < list->last; k++) {
            const rt_task *task = &f->tasks[f->lists[k]];
            for (uint32_t o = 0; task->op != RT_NONE && o < f->ir->ops.at[task->op].n_out; o++)
                if (clears_here(f, task->op, o))
                    TRY(add_clears(cx, m, f, task, o));
        }
    }
    return MPK_OK;
}

/* May graphs of this machine carry at all?  Kernels that end between operators count. */
static bool may_carry_any(const cuda_machine *m)
{
    const bool runs_whole_steps =
        m->options.mode == CUDA_PERSISTENT || m->options.mode == CUDA_CALLS;
    return runs_whole_steps && !m->options.no_carriers;
}

/* parallel: the range of graph i, which costs most and allocates nothing. */
static mpk_status find_one(mpk_context *cx, void *user, uint32_t i)
{
    flow *f = (flow *)user + i;
    (void)cx;
    f->has_range = may_carry_any(f->m) && !f->g->n_jit && find_range(f);
    return MPK_OK;
}

/* A graph that carries nothing has its ranges of first_clear all the same, which are empty. */
static mpk_status plan_graph(mpk_context *cx, cuda_machine *m, flow *f)
{
    const uint32_t workers = cuda_workers(m);
    if (f->has_range)
        place_tensors(f, &m->carriers);
    for (uint32_t w = 0; w < workers; w++) {
        m->carriers.first_clear[f->index * workers + w] = (rt_u32)m->carriers.clears.n;
        TRY(add_worker(cx, m, f, w));
    }
    return MPK_OK;
}

/* The ranges of graphs are found side by side, all that is allocated in this thread. */
static mpk_status plan_graphs(mpk_context *cx, arena *scratch, cuda_machine *m)
{
    const uint32_t n = m->machine.image.n_graphs;
    flow *flows;
    NEW(cx, scratch, flows, n);
    for (uint32_t i = 0; i < n; i++)
        TRY(begin_flow(cx, scratch, m, i, &flows[i]));
    TRY(cuda_plan_sent(cx, m));
    TRY(thread_each(cx, n, find_one, flows));
    for (uint32_t i = 0; i < n; i++)
        TRY(plan_graph(cx, m, &flows[i]));
    return MPK_OK;
}

/* Fill in m->carriers from the image and the bodies in m->source; no GPU is needed.  What stays is
 * in m's arena. */
mpk_status cuda_plan_carriers(mpk_context *cx, cuda_machine *m)
{
    const uint32_t workers = cuda_workers(m), n = m->machine.image.n_graphs;
    arena scratch = {0};
    NEW(cx, &m->arena, m->carriers.flows, n);
    NEW(cx, &m->arena, m->carriers.first_clear, n * workers + 1);
    mpk_status status = plan_graphs(cx, &scratch, m);
    arena_free(&scratch);
    TRY(status);
    m->carriers.first_clear[n * workers] = (rt_u32)m->carriers.clears.n;
    move_rest(m, &m->carriers);
    return MPK_OK;
}

/* ---- entries ---- */

/* For the tables: such a task has no event to wait for. */
bool cuda_is_quiet(const cuda_machine *m, uint32_t graph, uint32_t op)
{
    return is_quiet(&m->carriers.flows[graph], m->source.uses[graph][op].body, op);
}

/* What all entries of an operator have of this plan: which inputs are polled, to which peers its
 * words go, whether it waits for no counter, whether it is the one that ends polling.
 * cuda_carry_list corrects this for a worker's list as a whole. */
void cuda_carry_pattern(const cuda_machine *m, uint32_t graph, uint32_t at, rt_entry *e)
{
    const cuda_flow *plan = &m->carriers.flows[graph];
    const ir_op *op = &m->machine.image.ir[graph]->ops.at[at];
    const gen_body *body = m->source.uses[graph][at].body;
    if (!body)
        return;
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] != IR_NONE && plan->is_carried[op->in[i]])
            e->carried |= 1u << i;
    e->sends = plan->sends[op->out[0]];
    e->quiet = is_quiet(plan, body, at);
    e->clears = at == plan->end;
}

/* The first quiet entry of a list waits for the gate by its counter, unless a counted task before
 * it has waited for that already; then it is not quiet itself.  Of the tasks of operator `end` the
 * first clears.  The entry before it gets is_last, so that it triggers only when the worker has
 * done all that came before: what those tasks still read must not be cleared. */
void cuda_carry_list(const cuda_machine *m, uint32_t graph, rt_entry *entries, uint32_t n)
{
    const cuda_flow *plan = &m->carriers.flows[graph];
    const rt_graph *g = (const rt_graph *)image_table(m->machine.image.block, RT_GRAPHS) + graph;
    const rt_event *events =
        (const rt_event *)image_table(m->machine.image.block, RT_EVENTS) + g->first_event;
    bool is_through = false, clears = true;
    for (uint32_t i = 0; i < n; i++) {
        rt_entry *e = &entries[i];
        is_through = is_through || (plan->end != RT_NONE && !e->quiet &&
                                    e->depends == g->first_event + plan->event);
        if (e->quiet && !is_through) {
            e->quiet = 0;
            e->depends = g->first_event + plan->event;
            e->needed = events[plan->event].needed;
            is_through = true;
        }
        e->clears = e->clears && clears;
        clears = clears && !e->clears;
        if (e->clears && i)
            entries[i - 1].is_last = 1; /* what it still reads must not be cleared */
    }
}
