/* ministral3.c - Ministral 3: Mistral with yarn's rotation, in which queries beyond the original
 * context grow with the logarithm of the position.  Models that also read images hold one as
 * "text_config".  GGUF has the architecture for Mistral Small 3 too, whose queries do not grow.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    return decoder_layer(d, x, false, false);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const model_holder holders[] = {{"mistral3", "ministral3", false}, {NULL, NULL, false}};

const model_def model_ministral3 = {
    .family = "ministral3",
    .holders = holders,
    .gguf = "mistral3",
    .norm_eps = 1e-5,
    .rope_theta = 1000000,
    .sizes = {.n_kv_heads = 8, .head_size = 128},
    .scaled_queries = true,
    .windows = MODEL_WINDOW_ALWAYS,
    .gguf_window = true,
    .gguf_neighbours = true,
    .build = build,
};
