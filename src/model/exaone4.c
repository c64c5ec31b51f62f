/* exaone4.c - EXAONE 4: Olmo 2 with norms of each head of q and k.  In the larger model three of
 * four layers have a sliding window, and the others do not rotate.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    return decoder_normed_layer(d, x, DECODER_HEAD_NORMS);
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

static const char *const names[][2] = {{"post_attention_norm", "post_attention_layernorm"},
                                       {"post_ffw_norm", "post_feedforward_layernorm"},
                                       {NULL, NULL}};

const model_def model_exaone4 = {
    .family = "exaone4",
    .gguf = "exaone4",
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .windows = MODEL_WINDOW_PATTERN,
    .window = 4096,
    .window_every = 4,
    .gguf_window = true,
    .unrotated_full = true,
    .gguf_names = names,
    .build = build,
};
