/* glm4.c - GLM-4-0414: Llama with biases on q, k and v, norms before and after attention and
 * MLP, and checkpoints that rotate neighbours, half of each head, and join gate and up.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    h = decoder_self_attention(d, h, d->c->attention_bias, false, DECODER_NO_NORMS);
    x = decoder_add(d, x, decoder_norm(d, h, "post_self_attn_layernorm"), "attention_add");
    h = decoder_mlp(d, decoder_norm(d, x, "post_attention_layernorm"));
    return decoder_add(d, x, decoder_norm(d, h, "post_mlp_layernorm"), "mlp_add");
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {{"post_attention_norm", "post_self_attn_layernorm"},
                                       {"post_ffw_norm", "post_mlp_layernorm"},
                                       {"ffn_up", "mlp.gate_up_proj"},
                                       {NULL, NULL}};

const model_def model_glm4 = {
    .family = "glm4",
    .gguf = "glm4",
    .norm_eps = 1.5625e-7,
    .rope_theta = 10000,
    .rotated = 0.5,
    .sizes = {.n_kv_heads = 2, .head_size = 128},
    .biases = MODEL_BIASES_APART,
    .gguf_neighbours = true,
    .neighbours = true,
    .joints = MODEL_JOINS_GATE_UP,
    .gguf_names = names,
    .build = build,
};
