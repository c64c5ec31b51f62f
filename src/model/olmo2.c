/* olmo2.c - OLMo 2: Llama whose norms come after attention and MLP instead of before, and with
 * norms over all heads of q, and of k, together.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    return decoder_normed_layer(d, x, DECODER_WIDE_NORMS);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {{"post_attention_norm", "post_attention_layernorm"},
                                       {"post_ffw_norm", "post_feedforward_layernorm"},
                                       {NULL, NULL}};

const model_def model_olmo2 = {
    .family = "olmo2",
    .gguf = "olmo2",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .local_unscaled = true, /* this and windows: of OLMo 3, in GGUF files */
    .biases = MODEL_BIASES_SAID,
    .windows = MODEL_WINDOW_PATTERN,
    .window_every = 4,
    .gguf_window = true,
    .gguf_names = names,
    .build = build,
};
