/* qwen2_moe.c - Qwen1.5-MoE and Qwen2-MoE: Qwen2 with a mixture of experts in most layers, and
 * beside it a feed-forward for every token, with a gate of its own.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    x = decoder_attend(d, x, d->c->attention_bias, false, false);
    ir_tensor_id h = decoder_norm(d, x, "post_attention_layernorm");
    if (model_has_experts(d->c, d->layer))
        return decoder_shared_expert(d, h, decoder_experts(d, h, x, true));
    return decoder_add(d, x, decoder_mlp(d, h), "mlp_add");
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {{"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
                                       {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
                                       {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
                                       {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
                                       {NULL, NULL}};

const model_def model_qwen2_moe = {
    .family = "qwen2_moe",
    .gguf = "qwen2moe",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_QKV,
    .windows = MODEL_WINDOW_UPPER_LAYERS,
    .is_mixture = true,
    .expert_ffn = "moe_intermediate_size",
    .shared_expert = true,
    .gguf_unnormalized = true,
    .gguf_names = names,
    .build = build,
};
