/* qwen3_vl.c - the text model of Qwen3-VL: Qwen3.  Positions in images, which its rotation can
 * take, are one number for text.
 */
#include "model/model_decoder.h"

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, decoder_qwen3_layer);
}

static const model_holder holders[] = {{"qwen3_vl", "qwen3_vl_text", false}, {NULL, NULL, false}};

const model_def model_qwen3_vl = {
    .family = "qwen3_vl_text",
    .holders = holders,
    .gguf = "qwen3vl",
    .gguf_written = "qwen3",
    .norm_eps = 1e-6,
    .rope_theta = 5000000,
    .biases = MODEL_BIASES_SAID,
    .build = build,
};
