/* olmoe.c - OLMoE: every layer has a mixture of experts, and norms over all heads of q, and of k,
 * together.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    const bool bias = d->c->attention_bias;
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    h = decoder_self_attention(d, h, bias, bias, DECODER_WIDE_NORMS);
    x = decoder_add(d, x, h, "attention_add");
    return decoder_experts(d, decoder_norm(d, x, "post_attention_layernorm"), x, true);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_olmoe = {
    .family = "olmoe",
    .gguf = "olmoe",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_SAID,
    .is_mixture = true,
    .expert_ffn = "intermediate_size",
    .gguf_unnormalized = true,
    .build = build,
};
