/* olmo3.c - OLMo 3: OLMo 2 in which three of four layers have a sliding window, and angles that are
 * not scaled.  Its GGUF files name the architecture "olmo2".
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    return decoder_normed_layer(d, x, DECODER_WIDE_NORMS);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_olmo3 = {
    .family = "olmo3",
    .gguf_written = "olmo2",
    .norm_eps = 1e-5,
    .rope_theta = 500000,
    .local_unscaled = true,
    .biases = MODEL_BIASES_SAID,
    .windows = MODEL_WINDOW_PATTERN,
    .window = 4096,
    .window_every = 4,
    .build = build,
};
