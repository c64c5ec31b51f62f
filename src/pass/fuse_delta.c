/* fuse_delta.c - linear attention by chunks (see fuse_ops.c).
 *
 *   chunks  delta_rule(...)  ->  delta_rule(...) {chunks = 1}
 *
 * lets a target take neighbouring tokens together, whose last bits then follow from how a text is
 * cut into steps.  Not with options->own_units, with which a token's bits follow from those before
 * it alone.  Called by fuse_ops.c.
 */
#include "pass/fuse.h"

enum { INPUTS = 10, OUTPUTS = 2, CHUNKS = 2 }; /* of delta_rule; the attribute by index */

static mpk_status apply_chunks(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    ir_tensor_id in[INPUTS], old[OUTPUTS], made[IR_MAX_OUTPUTS];
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    if (strcmp(op->def->name, "delta_rule") != 0 || op->attributes[CHUNKS].i ||
        tensor_of(w, op->out[0])->dtype != IR_BF16)
        return MPK_OK;
    for (uint32_t i = 0; i < INPUTS; i++)
        in[i] = rewrite_input(w, op, i);
    memcpy(old, op->out, sizeof old);
    TRY(rewrite_copy_attributes(w, op, sets));
    sets[CHUNKS].i = 1;
    TRY(rewrite_add(w, w->keys.at[id], "delta_rule", INPUTS, in, sets, made));
    for (uint32_t i = 0; i < OUTPUTS; i++)
        rewrite_replace(w, old[i], made[i]);
    return MPK_OK;
}

mpk_status fuse_deltas(rewrite *w)
{
    const pass_options *o = w->s->options;
    const bool may = o->relaxed && !o->own_units && o->fusion == PASS_FUSE_FULL;
    for (ir_op_id id = 0, n = (ir_op_id)w->g->ops.n; id < n && may; id++)
        TRY(apply_chunks(w, id));
    return MPK_OK;
}
