/* stablelm.c - StableLM: Llama with layer norms and a quarter of each head that is rotated; in some
 * models attention and MLP read one norm.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    if (d->c->parallel)
        return decoder_parallel_layer(d, x);
    return decoder_layer(d, x, d->c->attention_bias, false);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_stablelm = {
    .family = "stablelm",
    .gguf = "stablelm",
    .layer_norms = true,
    .norm_bias = true,
    .eps = "layer_norm_eps",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .sizes = {.n_kv_heads = 32},
    .rotated = 0.25,
    .parallel_said = true,
    .biases = MODEL_BIASES_QKV_IF_USED,
    .build = build,
};
