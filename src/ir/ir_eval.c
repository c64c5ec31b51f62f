/* ir_eval.c - the reference interpreter: run each operator whole, in order, with its reference
 * code (see ir.h).
 *
 * Input: a verified program and its inputs' bytes.  Output: the bytes of every tensor.  Every
 * other way of running a program is compared with this one, so it is kept free of everything
 * that could be wrong elsewhere: tasks, events, memory plans, fast bodies.  Called by tests
 * alone.  Memory: storage for every root; cost: the sum of the operators'.
 */
#include "ir/op.h"

/* Tensors that the caller has given addresses keep them, so that several graphs can share one
 * state. */
mpk_status ir_eval_allocate(mpk_context *cx, arena *a, const ir_graph *g, ir_values *values)
{
    if (!values->data)
        NEW(cx, a, values->data, g->tensors.n);
    for (ir_tensor_id i = 0; i < g->tensors.n; i++) {
        const ir_tensor *t = &g->tensors.at[i];
        if (t->shares == IR_NONE && !values->data[i]) {
            values->data[i] = arena_alloc(a, (size_t)ir_bytes(t), 1);
            CHECK(cx, values->data[i], MPK_ENOMEM, "out of memory for %lld bytes of %%%.*s",
                  (long long)ir_bytes(t), STR_ARG(t->name));
        }
    }
    /* A shared tensor comes after the one that it shares, whose offset counts from the same
     * root. */
    for (ir_tensor_id i = 0; i < g->tensors.n; i++) {
        const ir_tensor *t = &g->tensors.at[i];
        if (t->shares == IR_NONE)
            continue;
        int64_t step = t->offset - g->tensors.at[t->shares].offset;
        values->data[i] = (char *)values->data[t->shares] + ir_row_bytes(t->dtype, step);
    }
    return MPK_OK;
}

/* Call the reference once, for the part of the result that is alive.  Views that share storage
 * have no work. */
static mpk_status eval_op(mpk_context *cx, arena *scratch, const ir_graph *g, const ir_op *op,
                          ir_values *values)
{
    const ir_tensor *out = &g->tensors.at[op->out[0]];
    if (op->def->flags & OP_VIEW && out->shares != IR_NONE)
        return MPK_OK;
    op_call call;
    op_bind(g, op, values->data, values->live, &call);
    ir_box box = ir_box_whole(out);
    if (out->rank)
        box.hi[0] = op_live_entries(&call, &call.out[0]);
    if (ir_box_is_empty(&box, out->rank))
        return MPK_OK;
    arena_mark mark = arena_get_mark(scratch);
    size_t bytes = op->def->scratch_bytes ? op->def->scratch_bytes(g, op, &box) : 0;
    void *room = arena_alloc(scratch, bytes < 64 ? 64 : bytes, 1);
    CHECK(cx, room, MPK_ENOMEM, "out of memory for %zu bytes of scratch of %s", bytes,
          op->def->name);
    op->def->ref(&call, &box, room);
    arena_reset(scratch, mark);
    return MPK_OK;
}

/* Sequential, in program order.  Scratch of an operator is given back before the next one runs. */
mpk_status ir_eval(mpk_context *cx, arena *scratch, const ir_graph *g, ir_values *values)
{
    for (size_t i = 0; i < g->ops.n; i++)
        TRY(eval_op(cx, scratch, g, &g->ops.at[i], values));
    return MPK_OK;
}
