/* ernie4_5.c - ERNIE 4.5, the dense models: Llama whose checkpoints rotate neighbours, and in which
 * all products have biases or none.
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

const model_def model_ernie4_5 = {
    .family = "ernie4_5",
    .gguf = "ernie4_5",
    .norm_eps = 1e-5,
    .rope_theta = 500000,
    .sizes = {.n_kv_heads = 2, .head_size = 128},
    .tied = true,
    .biases = MODEL_BIASES_USED,
    .gguf_neighbours = true,
    .neighbours = true,
    .build = build,
};
