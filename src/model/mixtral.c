/* mixtral.c - Mixtral: Mistral's attention, and in every layer a mixture of experts.  The
 * weights of a token's experts add up to 1 and stay in fp32, hence `round` false. */
#include "model/model_decoder.h"

/* Every layer has experts, and attention has no biases. */
static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    x = decoder_attend(d, x, false, false, false);
    return decoder_experts(d, decoder_norm(d, x, "post_attention_layernorm"), x, false);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    CHECK(cx, c->n_experts, MPK_EFORMAT, "a mixtral model without experts");
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_mixtral = {
    .family = "mixtral",
    .gguf = "llama",
    .norm_eps = 1e-5,
    .rope_theta = 1000000,
    .windows = MODEL_WINDOW_ALWAYS,
    .gguf_window = true,
    .gguf_neighbours = true,
    .is_mixture = true,
    .only_experts = true,
    .expert_ffn = "intermediate_size",
    .build = build,
};
