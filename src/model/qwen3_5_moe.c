/* qwen3_5_moe.c - Qwen3.5 with a mixture of experts in every layer, and beside it a feed-forward for
 * every token with a gate of its own, as Qwen3-Next has.
 */
#include "model/model_decoder.h"

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, decoder_delta_layer);
}

static const model_holder holders[] = {{"qwen3_5_moe", "qwen3_5_moe_text", false},
                                       {NULL, NULL, false}};

const model_def model_qwen3_5_moe = {
    .family = "qwen3_5_moe_text",
    .holders = holders,
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .rotated = 0.25,
    .sizes =
        {.n_heads = 16, .n_kv_heads = 2, .head_size = 256, .vocab_size = 248320, .ffn_size = 512},
    .biases = MODEL_BIASES_SAID,
    .unit_norms = true,
    .delta = true,
    .guesses = true,
    .is_mixture = true,
    .only_experts = true,
    .expert_ffn = "moe_intermediate_size",
    .shared_expert = true,
    .build = build,
};
