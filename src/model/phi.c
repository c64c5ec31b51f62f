/* phi.c - Phi-1, 1.5 and 2: attention and an MLP without a gate read one layer norm, a part of each
 * head is rotated, and all products have biases, the head's too.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    x = decoder_add(d, x, decoder_self_attention(d, h, true, true, DECODER_NO_NORMS),
                    "attention_add");
    return decoder_add(d, x, decoder_plain_mlp(d, h, "mlp.up_proj", "mlp.down_proj"), "mlp_add");
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const renames[][2] = {{".self_attn.dense.", ".self_attn.o_proj."},
                                         {".mlp.fc1.", ".mlp.up_proj."},
                                         {".mlp.fc2.", ".mlp.down_proj."},
                                         {"model.final_layernorm.", "model.norm."},
                                         {NULL, NULL}};

const model_def model_phi = {
    .family = "phi",
    .gguf = "phi2",
    .layer_norms = true,
    .norm_bias = true,
    .eps = "layer_norm_eps",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .rotated = 0.5,
    .activation = "gelu_tanh",
    .biases = MODEL_BIASES_UNLESS_SAID,
    .mlp_biased = true,
    .head_bias = true,
    .hf_names = renames,
    .build = build,
};
