/* simplify.c - drop what nobody reads, compute equal things once (before §4.1).
 *
 * in, out: a tensor program.  An operator is needed if an output of it is an output of the graph, is read by a needed
 * operator, or is written in place into state that the graph keeps.  Two operators are equal if they have the same
 * record, inputs and attributes and write nothing in place.  Weights and state that no operator reads are dropped; step
 * inputs stay.  O(operators).
 */
#include "pass/rewrite.h"

static bool writes_in_place(const ir_graph *g, const ir_op *op)
{
    for (uint32_t i = 0; i < op->n_out; i++)
        if (g->tensors.at[op->out[i]].shares != IR_NONE && !(op->def->flags & OP_VIEW))
            return true;
    return false;
}

/* Which operators, and which tensors, a result or the state depends on. */
static void mark_needed(const ir_graph *g, bool *needed, bool *read)
{
    for (size_t i = 0; i < g->outputs.n; i++)
        read[g->outputs.at[i]] = true;
    for (size_t i = g->ops.n; i-- > 0;) {
        const ir_op *op = &g->ops.at[i];
        needed[i] = writes_in_place(g, op);
        for (uint32_t k = 0; k < op->n_out; k++)
            needed[i] |= read[op->out[k]];
        for (uint32_t k = 0; needed[i] && k < op->n_in; k++)
            if (op->in[k] != IR_NONE)
                read[op->in[k]] = true;
    }
}

static bool same_attribute(const ir_attribute *a, const ir_attribute *b)
{
    return a->i == b->i && memcmp(&a->f, &b->f, sizeof a->f) == 0 && str_equal(a->s, b->s) && a->ints.n == b->ints.n &&
           (a->ints.n == 0 || memcmp(a->ints.at, b->ints.at, a->ints.n * sizeof a->ints.at[0]) == 0);
}

/* Operator a with mapped inputs would compute what the copied operator b does. */
static bool is_equal(const ir_op *a, const ir_tensor_id *in, const ir_op *b)
{
    if (a->def != b->def || a->n_in != b->n_in || memcmp(in, b->in, a->n_in * sizeof *in) != 0)
        return false;
    for (uint32_t i = 0; i < a->def->n_attributes; i++)
        if (!same_attribute(&a->attributes[i], &b->attributes[i]))
            return false;
    return true;
}

/* What a sweep carries: the copy, and its operators by hash of record and inputs. */
typedef struct sweep {
    pass_state *s;
    const ir_graph *from;
    ir_graph *to;
    ir_tensor_id *map;
    ir_op_id *buckets; /* heads of chains of operators of the copy */
    ir_op_id *next;    /* [operators of the copy] */
    size_t mask;
} sweep;

static mpk_status copy_op(sweep *w, const ir_op *op)
{
    ir_tensor_id in[IR_MAX_INPUTS], out[IR_MAX_OUTPUTS];
    str names[IR_MAX_OUTPUTS];
    for (uint32_t i = 0; i < op->n_in; i++)
        in[i] = op->in[i] == IR_NONE ? IR_NONE : w->map[op->in[i]];
    uint64_t hash = hash_bytes(in, op->n_in * sizeof *in, (uintptr_t)op->def);
    bool unique = writes_in_place(w->from, op);
    for (ir_op_id i = w->buckets[hash & w->mask]; i != IR_NONE && !unique; i = w->next[i])
        if (is_equal(op, in, &w->to->ops.at[i])) {
            for (uint32_t k = 0; k < op->n_out; k++)
                w->map[op->out[k]] = w->to->ops.at[i].out[k];
            return MPK_OK;
        }
    for (uint32_t i = 0; i < op->n_out; i++)
        names[i] = w->from->tensors.at[op->out[i]].name;
    TRY(ir_add_op_as(w->s->cx, w->to, op->def, names, op->n_in, in, op->attributes, out));
    for (uint32_t k = 0; k < op->n_out; k++)
        w->map[op->out[k]] = out[k];
    ir_op_id made = (ir_op_id)(w->to->ops.n - 1);
    w->next[made] = unique ? IR_NONE : w->buckets[hash & w->mask];
    if (!unique)
        w->buckets[hash & w->mask] = made;
    return MPK_OK;
}

static mpk_status copy_leaf(sweep *w, ir_tensor_id t)
{
    const ir_tensor *old = &w->from->tensors.at[t];
    char *name = arena_copy(w->to->arena, old->name.at, old->name.n);
    CHECK(w->s->cx, name, MPK_ENOMEM, "out of memory for a name");
    return ir_add_tensor(w->s->cx, w->to, old->kind, old->live, name, old->dtype, old->rank, old->dims, &w->map[t]);
}

mpk_status pass_simplify(pass_state *s, ir_graph **g)
{
    sweep w = {.s = s, .from = *g, .mask = 63};
    bool *needed, *read;
    while (w.mask < w.from->ops.n)
        w.mask = w.mask * 2 + 1;
    NEW(s->cx, s->scratch, needed, w.from->ops.n);
    NEW(s->cx, s->scratch, read, w.from->tensors.n);
    NEW(s->cx, s->scratch, w.map, w.from->tensors.n);
    NEW(s->cx, s->scratch, w.buckets, w.mask + 1);
    NEW(s->cx, s->scratch, w.next, w.from->ops.n);
    memset(w.buckets, 0xff, (w.mask + 1) * sizeof *w.buckets);
    mark_needed(w.from, needed, read);
    TRY(ir_create(s->cx, s->result, "", &w.to));
    w.to->name = w.from->name;
    for (size_t t = 0; t < w.from->tensors.n; t++)
        if (w.from->tensors.at[t].kind != IR_TEMP && (read[t] || w.from->tensors.at[t].kind == IR_INPUT))
            TRY(copy_leaf(&w, (ir_tensor_id)t));
    for (size_t i = 0; i < w.from->ops.n; i++)
        if (needed[i])
            TRY(copy_op(&w, &w.from->ops.at[i]));
    for (size_t i = 0; i < w.from->outputs.n; i++)
        TRY(ir_add_output(s->cx, w.to, w.map[w.from->outputs.at[i]]));
    *g = w.to;
    return MPK_OK;
}
