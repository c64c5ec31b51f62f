/* minimax_m2.c - MiniMax-M2: norms over all heads of q and of k, a part of each head that is
 * rotated, and in every layer experts, chosen by a sigmoid and a bias.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    h = decoder_self_attention(d, h, false, false, DECODER_WIDE_NORMS);
    x = decoder_add(d, x, h, "attention_add");
    return decoder_experts(d, decoder_norm(d, x, "post_attention_layernorm"), x, false);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    CHECK(cx, c->n_experts, MPK_EFORMAT, "a minimax_m2 model without experts");
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {{"exp_probs_b", "mlp.gate.e_score_correction"},
                                       {NULL, NULL}};

const model_def model_minimax_m2 = {
    .family = "minimax_m2",
    .gguf = "minimax-m2",
    .norm_eps = 1e-6,
    .rope_theta = 5000000,
    .sizes = {.head_size = 128},
    .is_mixture = true,
    .only_experts = true,
    .sigmoid_routers = true,
    .score_bias = true,
    .expert_ffn = "intermediate_size",
    .gguf_names = names,
    .build = build,
};
