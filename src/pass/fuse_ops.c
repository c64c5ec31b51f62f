/* fuse_ops.c - fewer, larger operators: each rule is a pattern, its conditions and its
 * replacement (paper §6.6).
 *
 * Input and output: a tensor program.  A fused operator gives the same bits as the operators it
 * replaces.  Therefore rules that would skip a rounding apply to f32 only, unless
 * options->relaxed is set; with it, fused results are computed in f32 and rounded once.  (The
 * exception is split attention, whose sums run in a different order.)
 *
 *   fuse_linear.c      glu and act (full), siblings (full, paper), residual (full, paper), scaled
 *                      (full, relaxed), norm (full, few elements), post norm (full), gated norm
 *                      (full)
 *   fuse_sum.c         sum (full), terms (full, options->sum_terms)
 *   fuse_experts.c     weights (full, relaxed), pairs (options->share_tokens, more tokens)
 *   fuse_delta.c       chunks (full, relaxed, without options->own_units)
 *   fuse_cache.c       cache, split (full, with options->split_tokens), views
 *   fuse_latent.c      heads, latent (full, relaxed)
 *   fuse_attention.c   attention (paper); split and fold (full, with options->splits, few tokens),
 *                      else rope_kv (full); parts (options->context_tasks); rows
 *   fuse_logits.c      logits (full, with options->logits)
 *
 * One layer of a decoder, level FULL for a GPU, from 18 operators to 6:
 *
 *   rms_norm linear linear linear        -> linear {norm; q, k, v}
 *   norms ropes kv_write attention       -> attention_split, attention_fold
 *   linear add                           -> linear {residual}
 *   rms_norm linear linear silu_mul      -> linear {norm; gate, up; glu}
 *   linear add                           -> linear {residual}
 *
 * Each group of rules works on a copy of its own: rules that follow views (attentions, logits)
 * look through the slices that the groups before them have made, and strides are known only
 * after rewrite_end has built these.  Called by compile.c after recognise.
 */
#include "pass/fuse.h"

/* The groups in their order, each from a fresh working copy.  PASS_FUSE_NONE leaves the program
 * as it is. */
mpk_status pass_fuse_ops(pass_state *s, ir_graph **g)
{
    static mpk_status (*const groups[])(rewrite * w) = {fuse_linears, fuse_sums,       fuse_experts,
                                                        fuse_deltas,  fuse_caches,     fuse_views,
                                                        fuse_latents, fuse_attentions, fuse_logits};
    for (size_t i = 0; i < sizeof groups / sizeof *groups && s->options->fusion != PASS_FUSE_NONE;
         i++) {
        rewrite w;
        TRY(rewrite_begin(s, *g, &w));
        TRY(groups[i](&w));
        TRY(rewrite_end(&w, g));
    }
    return MPK_OK;
}
