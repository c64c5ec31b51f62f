/* cohere.c - Command-R: attention and MLP read one layer norm without a bias, and both are added to
 * x.  Checkpoints rotate neighbours; the logits have a factor.
 */
#include "model/model_decoder.h"

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, decoder_parallel_layer);
}

const model_def model_cohere = {
    .family = "cohere",
    .gguf = "command-r",
    .layer_norms = true,
    .eps = "layer_norm_eps",
    .norm_eps = 1e-5,
    .logit_scale = 0.0625,
    .rope_theta = 10000,
    .tied = true,
    .biases = MODEL_BIASES_SAID,
    .gguf_neighbours = true,
    .neighbours = true,
    .build = build,
};
