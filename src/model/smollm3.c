/* smollm3.c - SmolLM3: Llama in which some layers, every fourth as a rule, do not rotate q and k.
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

const model_def model_smollm3 = {
    .family = "smollm3",
    .gguf = "smollm3",
    .norm_eps = 1e-6,
    .rope_theta = 2000000,
    .tied = true,
    .unrotated_every = 4,
    .biases = MODEL_BIASES_SAID,
    .mlp_bias = true,
    .gguf_neighbours = true,
    .build = build,
};
