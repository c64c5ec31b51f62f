/* gemma.c - Gemma (1): Llama with a scaled embedding, which is the head too, norms that multiply by
 * 1 + weight, and GELU by tanh.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    return decoder_layer(d, x, d->c->attention_bias, d->c->attention_out_bias);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_gemma = {
    .family = "gemma",
    .gguf = "gemma",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_SAID,
    .tied = true,
    .activation = "gelu_tanh",
    .loose_gelu = true,
    .unit_norms = true,
    .root_embedding = true,
    .build = build,
};
