/* fuse_latent.c - the rule for what stands before a latent attention (see fuse_ops.c).
 *
 *   latent     attention(concat(p, rope(q)), latent_write(concat(rms_norm(l, n), rope(k)), ...), _)
 *                  -> q', c = latent_rope(p, q, l, k, table, n, ...); attention(q', c, _), relaxed
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

mpk_status fuse_latents(rewrite *w)
{
    const uint32_t n = (uint32_t)w->g->ops.n;
    const pass_options *o = w->s->options;
    for (ir_op_id i = 0; i < n && o->relaxed && o->fusion == PASS_FUSE_FULL; i++)
        TRY(apply_latent(w, i));
    return MPK_OK;
}
