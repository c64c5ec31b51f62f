/* granite.c - Granite 3: Llama with factors of the embedding, of attention scores, of what a layer
 * adds and of the logits.
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

const model_def model_granite = {
    .family = "granite",
    .gguf = "granite",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .multipliers = true,
    .biases = MODEL_BIASES_SAID,
    .mlp_bias = true,
    .gguf_neighbours = true,
    .build = build,
};
