/* glm4_moe_lite.c - GLM-4.7-Flash: DeepSeek-V3 (deepseek_v3.c), of which a configuration lists the
 * layers with experts.  GGUF files are those of DeepSeek (deepseek.c).
 */
#include "model/model_decoder.h"

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, decoder_latent_layer);
}

const model_def model_glm4_moe_lite = {
    .family = "glm4_moe_lite",
    .gguf_written = "deepseek2",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_SAID,
    .latent = true,
    .neighbours = true,
    .guesses = true,
    .is_mixture = true,
    .routing = MODEL_ROUTES_BIASED,
    .dense_first = 1,
    .expert_ffn = "moe_intermediate_size",
    .build = build,
};
