/* fuse_experts.c - the rule for sums over a token's experts (see fuse_ops.c).
 *
 *   pairs      expert_linear(x, ids, w, _, scale, r, _, b)
 *                  -> sum_pairs(expert_linear(x, ids, w, _, _, _, _, b), scale, r)
 *
 * The left form multiplies a token's row by each of its experts and adds the products, weighted,
 * plus a residual; a task needs all experts of its tokens.  In graphs of more than
 * options->share_tokens tokens the products are written, a row for each pair of token and
 * expert, and added by an operator of their own: then the products can be shared among the
 * workers whatever the experts are.  The price is that the rows are written, rounded to their
 * dtype, and read again.  Called by fuse_ops.c.
 */
#include "pass/fuse.h"

/* Operands of expert_linear, by index, and the most experts that the shared bodies take. */
enum { E_X, E_IDS, E_W0, E_W1, E_SCALE, E_RESIDUAL, E_NORM, E_B0, MOST_EXPERTS = 256 };

/* May the operator be shared?  It must sum pairs (it has a scale), have no second weight and no
 * norm, and have the dtypes and sizes that the shared bodies take
 * (gen/body_expert_tile.c).  MOST_EXPERTS and the multiples of 8 are theirs. */
static bool is_shared(const rewrite *w, const ir_op *op)
{
    const pass_options *o = w->s->options;
    if (!o->share_tokens || !may_skip_rounding(w, op) || op->n_in <= E_SCALE ||
        rewrite_input(w, op, E_SCALE) == IR_NONE || rewrite_input(w, op, E_W1) != IR_NONE ||
        (op->n_in > E_NORM && rewrite_input(w, op, E_NORM) != IR_NONE))
        return false;
    const ir_tensor *x = tensor_of(w, rewrite_input(w, op, E_X)),
                    *weight = tensor_of(w, rewrite_input(w, op, E_W0));
    return x->rank == 3 && x->dtype == IR_BF16 && weight->dtype == IR_BF16 &&
           x->dims[0] > o->share_tokens && weight->dims[0] <= MOST_EXPERTS &&
           weight->dims[1] % 8 == 0 && weight->dims[2] % 8 == 0;
}

/* Rule pairs for one expert_linear. */
static mpk_status apply_pairs(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "expert_linear") != 0 || !is_shared(w, op))
        return MPK_OK;
    const uint32_t key = w->keys.at[id];
    ir_tensor_id old = op->out[0], pairs, out,
                 factors[] = {rewrite_input(w, op, E_X),
                              rewrite_input(w, op, E_IDS),
                              rewrite_input(w, op, E_W0),
                              IR_NONE,
                              IR_NONE,
                              IR_NONE,
                              IR_NONE,
                              op->n_in > E_B0 ? rewrite_input(w, op, E_B0) : IR_NONE},
                 terms[] = {IR_NONE, rewrite_input(w, op, E_SCALE),
                            op->n_in > E_RESIDUAL ? rewrite_input(w, op, E_RESIDUAL) : IR_NONE};
    ir_set attributes[IR_MAX_ATTRIBUTES + 1];
    TRY(rewrite_copy_attributes(w, op, attributes));
    TRY(rewrite_add(w, key, "expert_linear", factors[E_B0] == IR_NONE ? 3 : E_B0 + 1, factors,
                    attributes, &pairs));
    terms[0] = pairs;
    TRY(rewrite_add(w, key, "sum_pairs", 3, terms, NULL, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

mpk_status fuse_experts(rewrite *w)
{
    const uint32_t n = (uint32_t)w->g->ops.n;
    for (ir_op_id o = 0; o < n && w->s->options->fusion == PASS_FUSE_FULL; o++)
        TRY(apply_pairs(w, o));
    return MPK_OK;
}
