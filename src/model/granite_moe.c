/* granite_moe.c - Granite 3, the mixtures: Granite with experts in every layer, whose weights add
 * up to 1.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    x = decoder_attend(d, x, d->c->attention_bias, d->c->attention_out_bias, false);
    return decoder_experts(d, decoder_norm(d, x, "post_attention_layernorm"), x, true);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_granite_moe = {
    .family = "granitemoe",
    .gguf = "granitemoe",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .multipliers = true,
    .biases = MODEL_BIASES_SAID,
    .gguf_neighbours = true,
    .is_mixture = true,
    .only_experts = true,
    .expert_ffn = "intermediate_size",
    .build = build,
};
