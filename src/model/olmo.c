/* olmo.c - OLMo, the first: Llama with layer norms that have neither weights nor biases. */
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

const model_def model_olmo = {
    .family = "olmo",
    .gguf = "olmo",
    .layer_norms = true,
    .bare_norms = true,
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_SAID,
    .gguf_neighbours = true,
    .build = build,
};
