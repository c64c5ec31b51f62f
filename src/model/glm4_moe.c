/* glm4_moe.c - GLM-4.5, 4.6, 4.7 and their Air models: attention as in Qwen3, with norms of heads
 * in the larger ones alone, biases, and a part of each head that is rotated; and DeepSeek-V3's
 * experts (deepseek_v3.c) in all but the first layers.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    x = decoder_attend(d, x, d->c->attention_bias, false, d->c->head_norms);
    return decoder_expert_or_mlp(d, x);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {{"post_attention_norm", "post_attention_layernorm"},
                                       {"exp_probs_b", "mlp.gate.e_score_correction"},
                                       {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
                                       {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
                                       {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
                                       {NULL, NULL}};

const model_def model_glm4_moe = {
    .family = "glm4_moe",
    .gguf = "glm4moe",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .rotated = 0.5,
    .biases = MODEL_BIASES_APART,
    .head_norms_said = true,
    .guesses = true,
    .is_mixture = true,
    .routing = MODEL_ROUTES_BIASED,
    .expert_ffn = "moe_intermediate_size",
    .gguf_unnormalized = true,
    .gguf_names = names,
    .build = build,
};
