/* deepseek_v3.c - DeepSeek-V3, V3.1 and R1, and models of the same form: Moonlight, Kimi K2.  They
 * are DeepSeek-V2 (deepseek.c, as which GGUF files are read) with experts chosen by a sigmoid and a
 * bias, in groups.
 */
#include "model/model_decoder.h"

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, decoder_latent_layer);
}

static const model_holder holders[] = {{"kimi_k2", "deepseek_v3", true}, {0}};

const model_def model_deepseek_v3 = {
    .family = "deepseek_v3",
    .holders = holders,
    .gguf_written = "deepseek2",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_SAID,
    .latent = true,
    .neighbours = true,
    .guesses = true,
    .is_mixture = true,
    .routing = MODEL_ROUTES_BIASED,
    .expert_ffn = "moe_intermediate_size",
    .build = build,
};
