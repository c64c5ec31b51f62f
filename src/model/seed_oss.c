/* seed_oss.c - Seed-OSS: Llama with biases on q, k and v.
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

static const char *const names[][2] = {{"post_attention_norm", "post_attention_layernorm"},
                                       {NULL, NULL}};

const model_def model_seed_oss = {
    .family = "seed_oss",
    .gguf = "seed_oss",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_APART,
    .mlp_bias = true,
    .sizes = {.head_size = 128},
    .gguf_names = names,
    .build = build,
};
