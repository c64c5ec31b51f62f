/* qwen3.c - Qwen3, dense: Llama with an RMS norm over each head of q and k before the rotation,
 * and a head size of its own; biases only if the configuration says so, sliding windows as in
 * Qwen2.
 */
#include "model/model_decoder.h"

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, decoder_qwen3_layer);
}

const model_def model_qwen3 = {
    .family = "qwen3",
    .gguf = "qwen3",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_SAID,
    .windows = MODEL_WINDOW_UPPER_LAYERS,
    .build = build,
};
