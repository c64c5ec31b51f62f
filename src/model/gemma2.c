/* gemma2.c - Gemma 2: Gemma with norms before and after each half of a layer, caps of attention
 * scores and logits, and a sliding window in every other layer.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    return decoder_wrapped_layer(d, x, DECODER_NO_NORMS);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {{"ffn_norm", "pre_feedforward_layernorm"},
                                       {"post_attention_norm", "post_attention_layernorm"},
                                       {"post_ffw_norm", "post_feedforward_layernorm"},
                                       {NULL, NULL}};

const model_def model_gemma2 = {
    .family = "gemma2",
    .gguf = "gemma2",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_SAID,
    .tied = true,
    .activation = "gelu_tanh",
    .loose_gelu = true,
    .unit_norms = true,
    .root_embedding = true,
    .query_scalar = 256,
    .gguf_wide_layers = 46,
    .caps = true,
    .attention_cap = 50,
    .logits_cap = 30,
    .windows = MODEL_WINDOW_PATTERN,
    .window = 4096,
    .window_every = 2,
    .gguf_names = names,
    .build = build,
};
