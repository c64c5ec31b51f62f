/* phi3.c - Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama without biases, whose files hold q, k and v
 * as one tensor, and gate and up.  Contexts are stretched by "longrope", some models rotate a part
 * of each head, and every layer may have a sliding window.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    return decoder_layer(d, x, false, false);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {
    {"attn_qkv", "self_attn.qkv_proj"}, {"ffn_up", "mlp.gate_up_proj"}, {NULL, NULL}};

const model_def model_phi3 = {
    .family = "phi3",
    .gguf = "phi3",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .windows = MODEL_WINDOW_ALWAYS,
    .gguf_window = true,
    .joints = MODEL_JOINS_QKV | MODEL_JOINS_GATE_UP,
    .gguf_names = names,
    .build = build,
};
