/* qwen3_5.c - Qwen3.5 and Qwen3.6, the models of text: Qwen3-Next with a feed-forward for every
 * token instead of experts.  Models that also read images hold them as "text_config".
 */
#include "model/model_decoder.h"

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, decoder_delta_layer);
}

static const model_holder holders[] = {{"qwen3_5", "qwen3_5_text", false}, {NULL, NULL, false}};

const model_def model_qwen3_5 = {
    .family = "qwen3_5_text",
    .holders = holders,
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .rotated = 0.25,
    .sizes = {.n_heads = 16, .n_kv_heads = 4, .head_size = 256, .vocab_size = 248320},
    .biases = MODEL_BIASES_SAID,
    .unit_norms = true,
    .delta = true,
    .guesses = true,
    .build = build,
};
