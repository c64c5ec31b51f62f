/* qwen3_next.c - Qwen3-Next: three of four layers have linear attention by the gated delta rule, the
 * others attention whose result is gated; each has a mixture of experts, and beside it a
 * feed-forward for every token with a gate of its own.
 */
#include "model/model_decoder.h"

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, decoder_delta_layer);
}

const model_def model_qwen3_next = {
    .family = "qwen3_next",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .rotated = 0.25,
    .sizes = {.n_heads = 16, .n_kv_heads = 2, .head_size = 256},
    .biases = MODEL_BIASES_SAID,
    .unit_norms = true,
    .delta = true,
    .delta_by_heads = true,
    .guesses = true,
    .is_mixture = true,
    .expert_ffn = "moe_intermediate_size",
    .shared_expert = true,
    .build = build,
};
