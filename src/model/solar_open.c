/* solar_open.c - Solar Open: Llama's attention and, in every layer, DeepSeek-V3's experts.  GGUF
 * files are those of GLM-4.5 (glm4_moe.c).
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    return decoder_expert_or_mlp(d, decoder_attend(d, x, d->c->attention_bias, false, false));
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_solar_open = {
    .family = "solar_open",
    .gguf_written = "glm4moe",
    .norm_eps = 1e-5,
    .rope_theta = 1000000,
    .sizes = {.head_size = 128, .ffn_size = 10240}, /* no layer has such a feed-forward */
    .biases = MODEL_BIASES_APART_IF_SAID,
    .is_mixture = true,
    .routing = MODEL_ROUTES_BIASED,
    .expert_ffn = "moe_intermediate_size",
    .build = build,
};
