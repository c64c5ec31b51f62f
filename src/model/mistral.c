/* mistral.c - Mistral 7B and models like it: Llama without biases.  The attention of every layer
 * has a sliding window (v0.1) or none (later versions).  Its GGUF files name the architecture
 * "llama".  Mistral Small 3.1 and 3.2 hold one as "text_config".
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

static const model_holder holders[] = {{"mistral3", "mistral", false}, {NULL, NULL, false}};

const model_def model_mistral = {
    .family = "mistral",
    .holders = holders,
    .gguf_written = "llama",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .windows = MODEL_WINDOW_ALWAYS,
    .build = build,
};
