/* qwen3_5_moe.c - Qwen3.5 with a mixture of experts in every layer, and beside it a feed-forward
 * for every token with a gate of its own, as Qwen3-Next has.
 */
#include "model/model_decoder.h"

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, decoder_delta_layer);
}

static const model_holder holders[] = {{"qwen3_5_moe", "qwen3_5_moe_text", false},
                                       {NULL, NULL, false}};

static const char *const names[][2] = {{"post_attention_norm", "post_attention_layernorm"},
                                       {"attn_qkv", "linear_attn.in_proj_qkv"},
                                       {"attn_gate", "linear_attn.in_proj_z"},
                                       {"ssm_alpha", "linear_attn.in_proj_a"},
                                       {"ssm_beta", "linear_attn.in_proj_b"},
                                       {"ssm_conv1d", "linear_attn.conv1d"},
                                       {"ssm_dt", "linear_attn.dt"},
                                       {"ssm_norm", "linear_attn.norm"},
                                       {"ssm_out", "linear_attn.out_proj"},
                                       {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
                                       {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
                                       {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
                                       {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
                                       {NULL, NULL}};

const model_def model_qwen3_5_moe = {
    .family = "qwen3_5_moe_text",
    .holders = holders,
    .gguf = "qwen35moe",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .rotated = 0.25,
    .sizes =
        {.n_heads = 16, .n_kv_heads = 2, .head_size = 256, .vocab_size = 248320, .ffn_size = 512},
    .biases = MODEL_BIASES_SAID,
    .unit_norms = true,
    .delta = true,
    .gguf_names = names,
    .gguf_tiled = true,
    .guesses = true,
    .is_mixture = true,
    .only_experts = true,
    .expert_ffn = "moe_intermediate_size",
    .shared_expert = true,
    .build = build,
};
