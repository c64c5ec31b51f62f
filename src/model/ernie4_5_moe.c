/* ernie4_5_moe.c - ERNIE 4.5 with experts: ERNIE 4.5 (ernie4_5.c) without biases, in most layers
 * with experts, chosen by a softmax and a bias, beside experts for every token.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    return decoder_expert_or_mlp(d, decoder_attend(d, x, false, false, false));
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_ernie4_5_moe = {
    .family = "ernie4_5_moe",
    .gguf = "ernie4_5-moe",
    .norm_eps = 1e-5,
    .rope_theta = 500000,
    .sizes = {.n_kv_heads = 4},
    .tied = true,
    .gguf_neighbours = true,
    .neighbours = true,
    .is_mixture = true,
    .routing = MODEL_ROUTES_SHIFTED,
    .expert_ffn = "moe_intermediate_size",
    .expert_count = "moe_num_experts",
    .expert_choice = "moe_k",
    .gguf_names = decoder_routed_names,
    .build = build,
};
