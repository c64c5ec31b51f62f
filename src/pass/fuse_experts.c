/* fuse_experts.c - the rules for sums over a token's experts (see fuse_ops.c).
 *
 *   weights    r + expert_linear(x, ids, w, _, scale) * f, relaxed
 *                  -> expert_linear(x, ids, w, _, scale f, r), where a route makes scale
 *   pairs      expert_linear(x, ids, w, _, scale, r, _, b)
 *                  -> sum_pairs(expert_linear(x, ids, w, _, _, _, _, b), scale, r)
 *
 * The factor of what a layer adds (Granite) becomes one of route, whose weights nothing else reads.
 * The products are not rounded: a rounding to the dtype of the logits is of the weights alone.
 *
 * The left form of `pairs` multiplies a token's row by each of its experts and adds the products,
 * weighted, plus a residual; a task needs all experts of its tokens.  In graphs of more than
 * options->share_tokens tokens the products are written, a row for each pair of token and expert,
 * and added by an operator of their own: then the products can be shared among the workers whatever
 * the experts are.  The price is that the rows are written, rounded to their dtype, and read again.
 * Called by fuse_ops.c.
 */
#include "pass/fuse.h"

/* Outputs of route, by index. */
enum { R_IDS, R_WEIGHTS };
/* Operands of expert_linear, by index, and the most experts that the shared bodies take. */
enum { E_X, E_IDS, E_W0, E_W1, E_SCALE, E_RESIDUAL, E_NORM, E_B0, MOST_EXPERTS = 256 };

/* Is operand `input` of an operator there? */
static bool has(const rewrite *w, const ir_op *op, uint32_t input)
{
    return op->n_in > input && rewrite_input(w, op, input) != IR_NONE;
}

/* The sum over experts that a map scales by `factor` and adds to r, if it can become one operator
 * with r as its residual: nothing else reads it or its weights. */
static const ir_op *find_scaled(const rewrite *w, ir_op_id id, double *factor)
{
    const ir_op *op = &w->g->ops.at[id];
    *factor = w->s->options->relaxed ? fuse_number_of_map(op, "x0 + x1 * ") : 0;
    const ir_op *sum =
        *factor > 0 ? rewrite_producer(w, rewrite_input(w, op, 1), "expert_linear") : NULL;
    if (!sum || !is_private(w, sum, 1) || !has(w, sum, E_SCALE) || has(w, sum, E_RESIDUAL))
        return NULL;
    const ir_tensor *y = tensor_of(w, op->out[0]);
    const ir_tensor_id weights = rewrite_input(w, sum, E_SCALE);
    ir_tensor_id in[IR_MAX_INPUTS];
    for (uint32_t i = 0; i < sum->n_in; i++)
        in[i] = rewrite_input(w, sum, i);
    bool fits = rewrite_producer(w, weights, "route") && w->uses.at[weights] == 1 &&
                same_dims(tensor_of(w, sum->out[0]), y) &&
                same_dims(tensor_of(w, rewrite_input(w, op, 0)), y);
    return fits && rewrite_are_current(w, in, sum->n_in, w->keys.at[id]) ? sum : NULL;
}

/* Add a route again, with a factor more and without rounding, in its own place. */
static mpk_status scale_route(rewrite *w, const ir_op *route, double factor)
{
    ir_tensor_id in[IR_MAX_INPUTS], old[] = {route->out[R_IDS], route->out[R_WEIGHTS]},
                                    made[IR_MAX_OUTPUTS];
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    for (uint32_t i = 0; i < route->n_in; i++)
        in[i] = rewrite_input(w, route, i);
    TRY(rewrite_copy_attributes(w, route, sets));
    for (uint32_t i = 0; sets[i].name; i++)
        if (strcmp(sets[i].name, "factor") == 0)
            sets[i].f *= factor;
        else if (strcmp(sets[i].name, "round") == 0)
            sets[i].i = 0;
    TRY(rewrite_add(w, w->keys.at[route - w->g->ops.at], "route", route->n_in, in, sets, made));
    rewrite_replace(w, old[R_IDS], made[R_IDS]);
    rewrite_replace(w, old[R_WEIGHTS], made[R_WEIGHTS]);
    return MPK_OK;
}

/* Rule weights for one map. */
static mpk_status apply_weights(rewrite *w, ir_op_id id)
{
    double factor;
    const ir_op *sum = find_scaled(w, id, &factor);
    if (!sum)
        return MPK_OK;
    const ir_tensor_id old = w->g->ops.at[id].out[0], r = rewrite_input(w, &w->g->ops.at[id], 0);
    const ir_op_id of_sum = (ir_op_id)(sum - w->g->ops.at);
    ir_tensor_id in[IR_MAX_INPUTS], out;
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    TRY(scale_route(w, rewrite_producer(w, rewrite_input(w, sum, E_SCALE), "route"), factor));
    sum = &w->g->ops.at[of_sum]; /* which may have moved */
    for (uint32_t i = 0; i < sum->n_in || i <= E_RESIDUAL; i++)
        in[i] = i < sum->n_in ? rewrite_input(w, sum, i) : IR_NONE;
    in[E_RESIDUAL] = r;
    TRY(rewrite_copy_attributes(w, sum, sets));
    TRY(rewrite_add(w, w->keys.at[id], "expert_linear",
                    sum->n_in > E_RESIDUAL ? sum->n_in : E_RESIDUAL + 1, in, sets, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* May the operator be shared?  It must sum pairs (it has a scale), have no second weight and no
 * norm, and have the dtypes and sizes that the shared bodies take
 * (gen/body_expert_tile.c, gen/body_expert_unpack.c).  MOST_EXPERTS and the multiples of 8 are
 * theirs. */
static bool is_shared(const rewrite *w, const ir_op *op)
{
    const pass_options *o = w->s->options;
    if (!o->share_tokens || !may_skip_rounding(w, op) || !has(w, op, E_SCALE) || has(w, op, E_W1) ||
        has(w, op, E_NORM))
        return false;
    const ir_tensor *x = tensor_of(w, rewrite_input(w, op, E_X)),
                    *weight = tensor_of(w, rewrite_input(w, op, E_W0));
    return x->rank == 3 && x->dtype == IR_BF16 &&
           (weight->dtype == IR_BF16 || (is_in_blocks(weight) && shares_blocks(w, x))) &&
           x->dims[0] > o->share_tokens && weight->dims[0] <= MOST_EXPERTS &&
           weight->dims[1] % 8 == 0 && weight->dims[2] % 8 == 0;
}

/* Rule pairs for one expert_linear. */
static mpk_status apply_pairs(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "expert_linear") != 0 || !w->uses.at[op->out[0]] || !is_shared(w, op))
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
    const bool full = w->s->options->fusion == PASS_FUSE_FULL;
    for (ir_op_id o = 0, n = (ir_op_id)w->g->ops.n; o < n && full; o++)
        TRY(apply_weights(w, o));
    for (ir_op_id o = 0, n = (ir_op_id)w->g->ops.n; o < n && full; o++)
        TRY(apply_pairs(w, o));
    return MPK_OK;
}
