/* cohere2.c - Command-R7B and Command-A: Command-R in which three of four layers have a sliding
 * window, and the others do not rotate.
 */
#include "model/model_decoder.h"

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, decoder_parallel_layer);
}

const model_def model_cohere2 = {
    .family = "cohere2",
    .gguf = "cohere2",
    .layer_norms = true,
    .eps = "layer_norm_eps",
    .norm_eps = 1e-5,
    .logit_scale = 0.0625,
    .rope_theta = 10000,
    .tied = true,
    .biases = MODEL_BIASES_SAID,
    .gguf_neighbours = true,
    .neighbours = true,
    .windows = MODEL_WINDOW_PATTERN,
    .window = 4096,
    .window_every = 4,
    .unrotated_full = true,
    .build = build,
};
