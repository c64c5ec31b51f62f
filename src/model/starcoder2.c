/* starcoder2.c - StarCoder2: Llama with layer norms, biases everywhere, and an MLP without a gate.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    const bool bias = d->c->attention_bias;
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    h = decoder_self_attention(d, h, bias, d->c->attention_out_bias, DECODER_NO_NORMS);
    x = decoder_add(d, x, h, "attention_add");
    h = decoder_norm(d, x, "post_attention_layernorm");
    return decoder_add(d, x, decoder_plain_mlp(d, h, "mlp.c_fc", "mlp.c_proj"), "mlp_add");
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {
    {"ffn_up", "mlp.c_fc"}, {"ffn_down", "mlp.c_proj"}, {NULL, NULL}};

const model_def model_starcoder2 = {
    .family = "starcoder2",
    .gguf = "starcoder2",
    .layer_norms = true,
    .norm_bias = true,
    .eps = "norm_epsilon",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .sizes = {.n_kv_heads = 2},
    .tied = true,
    .activation = "gelu_tanh",
    .biases = MODEL_BIASES_USED_UNLESS_SAID,
    .windows = MODEL_WINDOW_ALWAYS,
    .gguf_window = true,
    .gguf_names = names,
    .build = build,
};
