/* deepseek.c - DeepSeek-V2, V2-Lite and V2.5: latent attention, whose cache has one row for all
 * heads, and in all but the first layers experts, chosen by a softmax, beside experts for every
 * token.
 *
 * GGUF has one architecture for these and for DeepSeek-V3 (deepseek_v3.c), and its files say how
 * experts are chosen: they are read as models of this family.
 */
#include "model/model_decoder.h"

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, decoder_latent_layer);
}

static const char *const names[][2] = {{"attn_q_a", "self_attn.q_a_proj"},
                                       {"attn_q_a_norm", "self_attn.q_a_layernorm"},
                                       {"attn_q_b", "self_attn.q_b_proj"},
                                       {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
                                       {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
                                       {"attn_kv_b", "self_attn.kv_b_proj"},
                                       {"attn_k_b", "self_attn.k_b_proj"},
                                       {"attn_v_b", "self_attn.v_b_proj"},
                                       {"exp_probs_b", "mlp.gate.e_score_correction"},
                                       {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
                                       {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
                                       {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
                                       {NULL, NULL}};

const model_def model_deepseek = {
    .family = "deepseek_v2",
    .gguf = "deepseek2",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_SAID,
    .latent = true,
    .neighbours = true,
    .gguf_neighbours = true,
    .guesses = true,
    .is_mixture = true,
    .routing = MODEL_ROUTES_GREEDY,
    .expert_ffn = "moe_intermediate_size",
    .gguf_unnormalized = true,
    .gguf_names = names,
    .build = build,
};
