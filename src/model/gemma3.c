/* gemma3.c - Gemma 3, the model of text: Gemma 2 with norms of each head of q and k instead of
 * caps.  Five of six layers have a sliding window, and a rope theta of their own.  Models that also
 * read images hold it as "text_config".
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    return decoder_wrapped_layer(d, x, DECODER_HEAD_NORMS);
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

static const model_holder holders[] = {{"gemma3", "gemma3_text", false}, {NULL, NULL, false}};

const model_def model_gemma3 = {
    .family = "gemma3_text",
    .holders = holders,
    .gguf = "gemma3",
    .norm_eps = 1e-6,
    .rope_theta = 1000000,
    .local_theta = 10000,
    .sizes = {.n_heads = 8,
              .n_kv_heads = 4,
              .head_size = 256,
              .vocab_size = 262208,
              .max_positions = 131072},
    .biases = MODEL_BIASES_SAID,
    .tied = true,
    .activation = "gelu_tanh",
    .loose_gelu = true,
    .unit_norms = true,
    .root_embedding = true,
    .query_scalar = 256,
    .gguf_wide_layers = 62,
    .caps = true,
    .windows = MODEL_WINDOW_PATTERN,
    .window = 4096,
    .window_every = 6,
    .gguf_names = names,
    .build = build,
};
