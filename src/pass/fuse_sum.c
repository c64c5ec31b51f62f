/* fuse_sum.c - the rule for sums over peers (see fuse_ops.c).
 *
 *   sum        add_parts(a, b, ...) + r                      -> add_parts(a, b, ..., r)
 *
 * add_parts adds the terms that several peers have made (pass shard).  A residual added in the
 * same place saves one operator and one event between two products.  Called by fuse_ops.c.
 */
#include "pass/fuse.h"

/* On GPUs an operator has 15 operands at most (RT_PACKED). */
enum { MOST_PARTS = 14 };

/* Rule sum, whichever side of the addition the sum is on.  The terms must not be overwritten
 * before the addition. */
static mpk_status apply_sum(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "add") != 0)
        return MPK_OK;
    for (uint32_t side = 0; side < 2; side++) {
        const ir_op *sum = rewrite_producer(w, rewrite_input(w, op, side), "add_parts");
        ir_tensor_id in[MOST_PARTS], r = rewrite_input(w, op, !side), old = op->out[0], out;
        if (!sum || !is_private(w, sum, 1) || !may_skip_rounding(w, sum) ||
            sum->n_in >= MOST_PARTS || !same_dims(tensor_of(w, r), tensor_of(w, sum->out[0])))
            continue;
        for (uint32_t i = 0; i < sum->n_in; i++)
            in[i] = rewrite_input(w, sum, i);
        if (!rewrite_are_current(w, in, sum->n_in, w->keys.at[id]))
            continue;
        in[sum->n_in] = r;
        TRY(rewrite_add(w, w->keys.at[id], "add_parts", sum->n_in + 1, in, NULL, &out));
        rewrite_replace(w, old, out);
        return MPK_OK;
    }
    return MPK_OK;
}

mpk_status fuse_sums(rewrite *w)
{
    const uint32_t n = (uint32_t)w->g->ops.n;
    for (ir_op_id o = 0; o < n && w->s->options->fusion == PASS_FUSE_FULL; o++)
        TRY(apply_sum(w, o));
    return MPK_OK;
}
