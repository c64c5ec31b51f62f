/* exaone_moe.c - K-EXAONE: Qwen3's attention, in three of four layers with a sliding window, the
 * others of which do not rotate; and DeepSeek-V3's experts (deepseek_v3.c).
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    return decoder_expert_or_mlp(d, decoder_attend(d, x, false, false, true));
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_exaone_moe = {
    .family = "exaone_moe",
    .gguf = "exaone-moe",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .windows = MODEL_WINDOW_PATTERN,
    .window = 4096,
    .window_every = 4,
    .gguf_window = true,
    .unrotated_full = true,
    .guesses = true,
    .is_mixture = true,
    .routing = MODEL_ROUTES_BIASED,
    .dense_first = 1,
    .expert_ffn = "moe_intermediate_size",
    .gguf_unnormalized = true,
    .gguf_names = decoder_routed_names,
    .build = build,
};
