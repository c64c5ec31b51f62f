/* hunyuan.c - Hunyuan, the dense models: Llama in which each head of q and k is normalised after
 * the rotation.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    const bool bias = d->c->attention_bias;
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    h = decoder_self_attention(d, h, bias, d->c->attention_out_bias, DECODER_ROTATED_NORMS);
    x = decoder_add(d, x, h, "attention_add");
    h = decoder_norm(d, x, "post_attention_layernorm");
    return decoder_add(d, x, decoder_mlp(d, h), "mlp_add");
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {{"attn_q_norm", "self_attn.query_layernorm"},
                                       {"attn_k_norm", "self_attn.key_layernorm"},
                                       {NULL, NULL}};

const model_def model_hunyuan = {
    .family = "hunyuan_v1_dense",
    .gguf = "hunyuan-dense",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .rope_alpha = true,
    .biases = MODEL_BIASES_SAID,
    .gguf_names = names,
    .build = build,
};
