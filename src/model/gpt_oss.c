/* gpt_oss.c - gpt-oss: attention with sinks and biases, a sliding window in every other layer, and
 * in every layer a mixture of experts with biases, whose gate has a limit.
 */
#include "model/model_decoder.h"

/* As Mixtral, with biases on all products.  The weights of a token's experts are rounded. */
static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    x = decoder_attend(d, x, d->c->attention_bias, d->c->attention_out_bias, false);
    return decoder_experts(d, decoder_norm(d, x, "post_attention_layernorm"), x, true);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    CHECK(cx, c->n_experts, MPK_EFORMAT, "a gpt_oss model without experts");
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {{"attn_sinks", "self_attn.sinks"},
                                       {"post_attention_norm", "post_attention_layernorm"},
                                       {NULL, NULL}};

const model_def model_gpt_oss = {
    .family = "gpt_oss",
    .gguf = "gpt-oss",
    .gguf_names = names,
    .norm_eps = 1e-5,
    .rope_theta = 150000,
    .sizes = {.n_heads = 64, .n_kv_heads = 8, .head_size = 64, .max_positions = 131072},
    .biases = MODEL_BIASES_UNLESS_SAID,
    .sinks = true,
    .windows = MODEL_WINDOW_PATTERN,
    .window = 128,
    .window_every = 2,
    .rope_unrounded = true,
    .is_mixture = true,
    .only_experts = true,
    .expert_ffn = "intermediate_size",
    .expert_bias = true,
    .expert_layout = MODEL_EXPERTS_INTERLEAVED,
    .swiglu_limit = 7,
    .build = build,
};
