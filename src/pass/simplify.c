/* simplify.c - drop dead operators, merge equal ones, and remove views that change nothing.
 *
 * Input and output: a tensor program.  An operator is live if it writes state or if an output of
 * the graph depends on it.  Two operators are equal if their kinds, inputs and attributes are.
 * Operators that read state are never merged, since the state may have changed in between.
 *
 *   %a = linear(%x, %w)   %b = linear(%x, %w)   %c = add(%a, %b)   %d = silu(%a)   output %c
 *   ->  %a = linear(%x, %w)   %c = add(%a, %a)                      %b is %a, %d is dead
 *
 * Called by compile.c first, so that no later rule has to expect twins.  Cost: linear, one hash
 * per operator.
 */
#include "pass/rewrite.h"

/* Does an operator read or write state?  Such an operator is neither removed nor merged: it may
 * be where the state changes, or may read it at another moment than its twin. */
static bool touches_state(const rewrite *w, const ir_op *op)
{
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        ir_tensor_id t = i < op->n_in ? rewrite_input(w, op, i) : op->out[i - op->n_in];
        if (t == IR_NONE)
            continue;
        bool in_place =
            i >= op->n_in && !(op->def->flags & OP_VIEW) && w->g->tensors.at[t].shares != IR_NONE;
        if (in_place || w->g->tensors.at[tg_root(w->g, t)].kind == IR_STATE)
            return true;
    }
    return false;
}

/* The host finds an output by its name, so the operator that makes it is not merged away. */
static bool has_output(const rewrite *w, const ir_op *op)
{
    for (uint32_t i = 0; i < op->n_out; i++)
        if (w->is_output[op->out[i]])
            return true;
    return false;
}

/* Is the operator a view with the shape, strides and offset of its input? */
static bool changes_nothing(const rewrite *w, const ir_op *op)
{
    const ir_tensor *out = &w->g->tensors.at[op->out[0]], *in = &w->g->tensors.at[op->in[0]];
    return op->def->flags & OP_VIEW && out->shares != IR_NONE && out->rank == in->rank &&
           out->offset == in->offset && out->live == in->live &&
           memcmp(out->dims, in->dims, out->rank * sizeof *out->dims) == 0 &&
           memcmp(out->stride, in->stride, out->rank * sizeof *out->stride) == 0;
}

/* Print what makes an operator what it is, as bytes: two operators are equal if their keys are.
 * The lengths of strings and lists are part of the key, so that neighbouring fields cannot run
 * into each other.  The peer is part of it too: the same product on two GPUs is two operators. */
static void print_key(const rewrite *w, const ir_op *op, text *key)
{
    text_add(key, (const char *)&op->def, sizeof op->def);
    text_add(key, (const char *)&op->peer, sizeof op->peer);
    for (uint32_t i = 0; i < op->n_in; i++) {
        ir_tensor_id in = rewrite_input(w, op, i);
        text_add(key, (const char *)&in, sizeof in);
    }
    for (uint32_t i = 0; i < op->def->n_attributes; i++) {
        const ir_attribute *a = &op->attributes[i];
        text_add(key, (const char *)&a->i, sizeof a->i);
        text_add(key, (const char *)&a->f, sizeof a->f);
        text_add(key, (const char *)&a->s.n, sizeof a->s.n);
        text_add(key, a->s.at, a->s.n);
        text_add(key, (const char *)&a->ints.n, sizeof a->ints.n);
        text_add(key, (const char *)a->ints.at, a->ints.n * sizeof *a->ints.at);
    }
}

/* Substitute the results of the first operator with this key for those of the others. */
static mpk_status merge_equal(rewrite *w, map *seen, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    text key = {0};
    uint64_t first;
    print_key(w, op, &key);
    char *copy = key.failed ? NULL : arena_copy(w->s->scratch, key.at, key.n);
    str borrowed = {copy, key.n};
    text_free(&key);
    CHECK(w->s->cx, copy, MPK_ENOMEM, "out of memory for the key of an operator");
    if (!map_get(seen, borrowed, &first))
        return map_put(w->s->cx, w->s->scratch, seen, borrowed, id);
    for (uint32_t i = 0; i < op->n_out; i++)
        rewrite_replace(w, op->out[i], w->g->ops.at[first].out[i]);
    return MPK_OK;
}

/* One walk in program order is enough: inputs are replaced before their readers are looked at, so
 * chains of equal operators collapse as it goes.  Dead operators are dropped by rewrite_end. */
mpk_status pass_simplify(pass_state *s, ir_graph **g)
{
    rewrite w;
    map seen = {0};
    TRY(rewrite_begin(s, *g, &w));
    for (ir_op_id o = 0; o < w.g->ops.n; o++) {
        const ir_op *op = &w.g->ops.at[o];
        if (has_output(&w, op) || touches_state(&w, op))
            continue;
        if (changes_nothing(&w, op))
            rewrite_replace(&w, op->out[0], rewrite_input(&w, op, 0));
        else
            TRY(merge_equal(&w, &seen, o));
    }
    return rewrite_end(&w, g);
}
