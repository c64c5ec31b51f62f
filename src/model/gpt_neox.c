/* gpt_neox.c - GPT-NeoX and Pythia: layer norms, biases, a part of each head that is rotated, and
 * an MLP without a gate.  In most models attention and MLP read the same x, each over its own norm.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    const bool bias = d->c->attention_bias;
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm"), read = x;
    h = decoder_self_attention(d, h, bias, d->c->attention_out_bias, DECODER_NO_NORMS);
    x = decoder_add(d, x, h, "attention_add");
    h = decoder_norm(d, d->c->parallel ? read : x, "post_attention_layernorm");
    return decoder_add(d, x, decoder_plain_mlp(d, h, "mlp.up_proj", "mlp.down_proj"), "mlp_add");
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {{"attn_qkv", "self_attn.qkv_proj"}, {NULL, NULL}};
static const char *const renames[][2] = {{"gpt_neox.layers.", "model.layers."},
                                         {"gpt_neox.embed_in.", "model.embed_tokens."},
                                         {"gpt_neox.final_layer_norm.", "model.norm."},
                                         {"embed_out.", "lm_head."},
                                         {".attention.", ".self_attn."},
                                         {".self_attn.query_key_value.", ".self_attn.qkv_proj."},
                                         {".self_attn.dense.", ".self_attn.o_proj."},
                                         {".mlp.dense_h_to_4h.", ".mlp.up_proj."},
                                         {".mlp.dense_4h_to_h.", ".mlp.down_proj."},
                                         {NULL, NULL}};

const model_def model_gpt_neox = {
    .family = "gpt_neox",
    .gguf = "gptneox",
    .layer_norms = true,
    .norm_bias = true,
    .eps = "layer_norm_eps",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .rotated = 0.25,
    .parallel_said = true,
    .parallel = true,
    .activation = "gelu",
    .biases = MODEL_BIASES_UNLESS_SAID,
    .mlp_biased = true,
    .joints = MODEL_JOINS_QKV,
    .heads_joined = true,
    .gguf_names = names,
    .hf_names = renames,
    .build = build,
};
