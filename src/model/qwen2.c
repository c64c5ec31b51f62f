/* qwen2.c - Qwen2 and Qwen2.5: Llama with biases on q, k and v and never on the output
 * projection; the upper layers may have a sliding window. */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    return decoder_layer(d, x, true, false);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_qwen2 = {
    .family = "qwen2",
    .gguf = "qwen2",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_QKV,
    .windows = MODEL_WINDOW_UPPER_LAYERS,
    .build = build,
};
