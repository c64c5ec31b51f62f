/* qwen3_vl_moe.c - the text model of Qwen3-VL with experts: Qwen3-MoE, whose checkpoints hold the
 * weights of all experts of a layer by columns.  Positions in images, which its rotation can take,
 * are one number for text.
 */
#include "model/model_decoder.h"

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, decoder_qwen3_expert_layer);
}

static const model_holder holders[] = {{"qwen3_vl_moe", "qwen3_vl_moe_text", false},
                                       {NULL, NULL, false}};

const model_def model_qwen3_vl_moe = {
    .family = "qwen3_vl_moe_text",
    .holders = holders,
    .gguf = "qwen3vlmoe",
    .gguf_written = "qwen3moe",
    .norm_eps = 1e-6,
    .rope_theta = 500000,
    .biases = MODEL_BIASES_SAID,
    .is_mixture = true,
    .normalized = true,
    .expert_ffn = "moe_intermediate_size",
    .expert_layout = MODEL_EXPERTS_EITHER,
    .build = build,
};
