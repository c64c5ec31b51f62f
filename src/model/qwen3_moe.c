/* qwen3_moe.c - Qwen3 with a mixture of experts, such as Qwen3-30B-A3B: in most layers (all,
 * unless the configuration says otherwise) a router sends each token to a few of many small
 * feed-forwards, whose weighted results are added.
 */
#include "model/model_decoder.h"

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, decoder_qwen3_expert_layer);
}

const model_def model_qwen3_moe = {
    .family = "qwen3_moe",
    .gguf = "qwen3moe",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_SAID,
    .windows = MODEL_WINDOW_IF_USED,
    .is_mixture = true,
    .expert_ffn = "moe_intermediate_size",
    .build = build,
};
