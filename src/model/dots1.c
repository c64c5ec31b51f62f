/* dots1.c - dots.llm1: Qwen3's attention and DeepSeek-V3's experts (deepseek_v3.c). */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    x = decoder_attend(d, x, d->c->attention_bias, d->c->attention_out_bias, true);
    return decoder_expert_or_mlp(d, x);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_dots1 = {
    .family = "dots1",
    .gguf = "dots1",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_SAID,
    .windows = MODEL_WINDOW_LAST_LAYERS,
    .window = 4096,
    .window_every = 62,
    .is_mixture = true,
    .routing = MODEL_ROUTES_BIASED,
    .unnormalized = true,
    .expert_ffn = "moe_intermediate_size",
    .gguf_unnormalized = true,
    .gguf_names = decoder_routed_names,
    .build = build,
};
