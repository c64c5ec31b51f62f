/* fuse_latent.c - the rules for latent attention (see fuse_ops.c).
 *
 *   heads      expert_linear(x, each token's ids are 0 .. H - 1, w [H, F, D])
 *                  -> head_linear(x, w), relaxed
 *   latent     attention(concat(p, rope(q)), latent_write(concat(rms_norm(l, n), rope(k)), ...), _)
 *                  -> q', c = latent_rope(p, q, l, k, table, n, ...); attention(q', c, _), relaxed
 *
 * Models say products of heads by experts, for which a CPU has fast bodies.  As head_linear they
 * need neither ids nor a sort, and tasks are cut between heads.
 *
 * DeepSeek's layers join a rotated part to queries and to the latents that they cache.  Five of the
 * six operators have generic bodies on a GPU, one after the other; of the one that takes their
 * place each task does whole rows.  Relaxed only: a CPU has fast bodies for the single operators.
 * Called by fuse_ops.c, before attention is cut.
 */
#include "op/attend.h"
#include "pass/fuse.h"

/* Operands of latent_rope and latent_write, by index. */
enum { T_PLAIN, T_Q, T_LATENT, T_KEY, T_TABLE, T_NORM, T_POSITIONS, T_SLOTS, T_PAGES, T_CACHE };
enum { W_K, W_POSITIONS };
/* Operands of expert_linear, by index. */
enum { E_X, E_IDS, E_W0, E_W1 };

/* The two parts of a row of heads, which only its reader sees: what is joined, and what a rope
 * makes of *rotated by *table.  False: t is made otherwise, or by another table than *table, unless
 * that is IR_NONE. */
static bool match_row(const rewrite *w, ir_tensor_id t, ir_tensor_id *joined, ir_tensor_id *rotated,
                      ir_tensor_id *table)
{
    enum { LAST = 2 };
    const ir_op *concat = rewrite_producer(w, t, "concat");
    if (!concat || concat->n_in != 2 || rewrite_attribute(concat, "axis")->i != LAST ||
        !is_private(w, concat, 1))
        return false;
    const ir_op *rope = rewrite_producer(w, rewrite_input(w, concat, 1), "rope");
    if (!rope || !is_private(w, rope, 1) ||
        (*table != IR_NONE && *table != rewrite_input(w, rope, 1)))
        return false;
    *joined = rewrite_input(w, concat, 0);
    *rotated = rewrite_input(w, rope, 0);
    *table = rewrite_input(w, rope, 1);
    return true;
}

/* The norm of [T, L] whose result, as heads [T, 1, L] that only their reader sees, is t. */
static const ir_op *find_latent_norm(const rewrite *w, ir_tensor_id t)
{
    const ir_op *heads = rewrite_producer(w, t, "reshape");
    const ir_op *norm =
        heads && is_private(w, heads, 1) ? find_plain_norm(w, rewrite_input(w, heads, 0)) : NULL;
    return norm && is_private(w, norm, 1) && tensor_of(w, norm->out[0])->rank == 2 &&
                   rewrite_input(w, norm, NORM_WEIGHT) != IR_NONE
               ? norm
               : NULL;
}

/* The operands of latent_rope before the attention `id`, and the epsilon of its norm. */
static bool match_latent(const rewrite *w, ir_op_id id, ir_tensor_id *in, double *eps)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "attention") != 0 || rewrite_input(w, op, ATTEND_V) != IR_NONE)
        return false;
    const ir_op *write = rewrite_producer(w, rewrite_input(w, op, ATTEND_K), "latent_write");
    ir_tensor_id latent;
    in[T_TABLE] = IR_NONE;
    if (!write || !is_private(w, write, 1) ||
        !match_row(w, rewrite_input(w, op, ATTEND_Q), &in[T_PLAIN], &in[T_Q], &in[T_TABLE]) ||
        !match_row(w, rewrite_input(w, write, W_K), &latent, &in[T_KEY], &in[T_TABLE]))
        return false;
    const ir_op *norm = find_latent_norm(w, latent);
    if (!norm || tensor_of(w, in[T_KEY])->dims[1] != 1)
        return false;
    in[T_LATENT] = rewrite_input(w, norm, X);
    in[T_NORM] = rewrite_input(w, norm, NORM_WEIGHT);
    *eps = rewrite_attribute(norm, "eps")->f;
    for (uint32_t i = T_POSITIONS; i <= T_CACHE; i++)
        in[i] = rewrite_input(w, write, W_POSITIONS + i - T_POSITIONS);
    return rewrite_are_current(w, in, T_CACHE, w->keys.at[id]);
}

/* The new operator stands just before the attention, which reads its results. */
static mpk_status apply_latent(rewrite *w, ir_op_id id)
{
    ir_tensor_id in[T_CACHE + 1], out[IR_MAX_OUTPUTS];
    double eps;
    if (!match_latent(w, id, in, &eps))
        return MPK_OK;
    const ir_op *op = &w->g->ops.at[id];
    const ir_tensor_id q = rewrite_input(w, op, ATTEND_Q), k = rewrite_input(w, op, ATTEND_K);
    TRY(rewrite_add(w, w->keys.at[id] - 1, "latent_rope", T_CACHE + 1, in,
                    (ir_set[]){{.name = "eps", .f = eps}, {0}}, out));
    rewrite_replace(w, q, out[0]);
    rewrite_replace(w, k, out[1]);
    return MPK_OK;
}

/* Are these the numbers 0 .. n - 1 for each token, as model_ends.c makes them? */
static bool are_all_in_order(const rewrite *w, ir_tensor_id ids, int64_t n)
{
    const ir_op *made = rewrite_producer(w, ids, "map");
    if (!made || made->n_in != 2 || !str_is(rewrite_attribute(made, "expr")->s, "x0 * 0 + x1"))
        return false;
    const ir_tensor *t = tensor_of(w, ids);
    const ir_op *iota = rewrite_producer(w, rewrite_input(w, made, 1), "iota");
    return iota && t->rank == 2 && t->dims[1] == n && rewrite_attribute(iota, "n")->i == n &&
           rewrite_attribute(iota, "start")->f == 0 && rewrite_attribute(iota, "step")->f == 1;
}

/* Rule heads for one expert_linear: plain, of rows for each pair. */
static mpk_status apply_heads(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "expert_linear") != 0 || !w->uses.at[op->out[0]] ||
        rewrite_attribute(op, "glu")->s.n)
        return MPK_OK;
    for (uint32_t i = E_W1; i < op->n_in; i++)
        if (rewrite_input(w, op, i) != IR_NONE)
            return MPK_OK;
    const ir_tensor_id in[2] = {rewrite_input(w, op, E_X), rewrite_input(w, op, E_W0)};
    const ir_tensor *x = tensor_of(w, in[0]), *weight = tensor_of(w, in[1]);
    const ir_tensor_id old = op->out[0];
    ir_tensor_id out;
    if (x->rank != 3 || !is_small_float(weight->dtype) || weight->dims[0] != x->dims[1] ||
        !are_all_in_order(w, rewrite_input(w, op, E_IDS), x->dims[1]))
        return MPK_OK;
    TRY(rewrite_add(w, w->keys.at[id], "head_linear", 2, in, NULL, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

mpk_status fuse_latents(rewrite *w)
{
    const uint32_t n = (uint32_t)w->g->ops.n;
    const pass_options *o = w->s->options;
    for (ir_op_id i = 0; i < n && o->relaxed && o->fusion == PASS_FUSE_FULL; i++) {
        TRY(apply_heads(w, i));
        TRY(apply_latent(w, i));
    }
    return MPK_OK;
}
