/* qwen2_vl.c - the text model of Qwen2-VL and Qwen2.5-VL: Qwen2.  Positions in images, which its
 * rotation can take, are one number for text.
 */
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

static const model_holder holders[] = {{"qwen2_vl", "qwen2_vl_text", true},
                                       {"qwen2_5_vl", "qwen2_5_vl_text", true},
                                       {NULL, NULL, false}};

const model_def model_qwen2_vl = {
    .family = "qwen2_vl_text",
    .holders = holders,
    .gguf = "qwen2vl",
    .gguf_written = "qwen2",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_QKV,
    .windows = MODEL_WINDOW_UPPER_LAYERS,
    .build = build,
};
