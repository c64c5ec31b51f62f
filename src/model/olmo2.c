/* olmo2.c - OLMo 2: Llama whose norms come after attention and MLP instead of before, and with
 * norms over all heads of q, and of k, together.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    const bool bias = d->c->attention_bias;
    ir_tensor_id h = decoder_self_attention(d, x, bias, bias, DECODER_WIDE_NORMS);
    x = decoder_add(d, x, decoder_norm(d, h, "post_attention_layernorm"), "attention_add");
    h = decoder_norm(d, decoder_mlp(d, x), "post_feedforward_layernorm");
    return decoder_add(d, x, h, "mlp_add");
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {{"post_attention_norm", "post_attention_layernorm"},
                                       {"post_ffw_norm", "post_feedforward_layernorm"},
                                       {NULL, NULL}};

const model_def model_olmo2 = {
    .family = "olmo2",
    .gguf = "olmo2",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_SAID,
    .gguf_names = names,
    .build = build,
};
