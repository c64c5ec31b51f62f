/* fuse_ops.c - fewer, larger operators: each rule is a pattern, its conditions and its replacement.
 *
 * Input and output: a tensor program.  A fused operator gives the same bits as the operators it
 * replaces.  Therefore rules that would skip a rounding apply to f32 only, unless options->relaxed
 * is set; with it, fused results are computed in f32 and rounded once.  (The exception is split
 * attention, whose sums run in a different order.)
 *
 *   fuse_linear.c      glu and act (full), siblings (full, paper), residual (full, paper), norm
 *                      (full, few elements)
 *   fuse_sum.c         sum (full)
 *   fuse_experts.c     pairs (options->share_tokens, more tokens)
 *   fuse_cache.c       cache, split (full, with options->split_tokens), views
 *   fuse_attention.c   attention (paper); split and fold (full, with options->splits, few tokens),
 *                      else rope_kv (full); rows
 *   fuse_logits.c      logits (full, with options->logits)
 *
 * Rules that follow views run on the program that the rules before them left, and look through its
 * slices.
 */
#include "pass/fuse.h"

mpk_status pass_fuse_ops(pass_state *s, ir_graph **g)
{
    static mpk_status (*const groups[])(rewrite * w) = {fuse_linears, fuse_sums,  fuse_experts,
                                                        fuse_caches,  fuse_views, fuse_attentions,
                                                        fuse_logits};
    for (size_t i = 0; i < sizeof groups / sizeof *groups && s->options->fusion != PASS_FUSE_NONE;
         i++) {
        rewrite w;
        TRY(rewrite_begin(s, *g, &w));
        TRY(groups[i](&w));
        TRY(rewrite_end(&w, g));
    }
    return MPK_OK;
}
