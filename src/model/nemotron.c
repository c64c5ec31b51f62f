/* nemotron.c - Nemotron-3, -4 and Minitron: layer norms of 1 + weight, a part of each head that is
 * rotated, and an MLP without a gate, whose activation is the square of relu.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    x = decoder_attend(d, x, d->c->attention_bias, d->c->attention_out_bias, false);
    ir_tensor_id h = decoder_norm(d, x, "post_attention_layernorm");
    return decoder_add(d, x, decoder_plain_mlp(d, h, "mlp.up_proj", "mlp.down_proj"), "mlp_add");
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_nemotron = {
    .family = "nemotron",
    .gguf = "nemotron",
    .layer_norms = true,
    .norm_bias = true,
    .eps = "norm_eps",
    .norm_eps = 1e-5,
    .unit_norms = true,
    .rope_theta = 10000,
    .rotated = 0.5,
    .activation = "relu2",
    .biases = MODEL_BIASES_SAID,
    .mlp_bias = true,
    .build = build,
};
