/* hunyuan_moe.c - Hunyuan-A13B and Large: Hunyuan (hunyuan.c) with experts in every layer, beside
 * one for every token.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    const bool bias = d->c->attention_bias;
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    h = decoder_self_attention(d, h, bias, d->c->attention_out_bias, DECODER_ROTATED_NORMS);
    return decoder_expert_or_mlp(d, decoder_add(d, x, h, "attention_add"));
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {{"attn_q_norm", "self_attn.query_layernorm"},
                                       {"attn_k_norm", "self_attn.key_layernorm"},
                                       {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
                                       {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
                                       {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
                                       {NULL, NULL}};
static const char *const renames[][2] = {{".mlp.shared_mlp.", ".mlp.shared_experts."},
                                         {NULL, NULL}};

const model_def model_hunyuan_moe = {
    .family = "hunyuan_v1_moe",
    .gguf = "hunyuan-moe",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .rope_alpha = true,
    .biases = MODEL_BIASES_SAID,
    .is_mixture = true,
    .only_experts = true,
    .shared_one = true,
    .expert_ffn = "intermediate_size",
    .expert_choice = "moe_topk",
    .gguf_names = names,
    .hf_names = renames,
    .build = build,
};
