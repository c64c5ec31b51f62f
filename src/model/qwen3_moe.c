/* qwen3_moe.c - Qwen3 with a mixture of experts, such as Qwen3-30B-A3B: in most layers (all,
 * unless the configuration says otherwise) a router sends each token to a few of many small
 * feed-forwards, whose weighted results are added.
 */
#include "model/model_decoder.h"

/* As Qwen3; layers without experts have the plain feed-forward part. */
static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    x = decoder_attend(d, x, d->c->attention_bias, d->c->attention_out_bias, true);
    ir_tensor_id h = decoder_norm(d, x, "post_attention_layernorm");
    if (model_has_experts(d->c, d->layer))
        return decoder_experts(d, h, x, true);
    return decoder_add(d, x, decoder_mlp(d, h), "mlp_add");
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s,
                        const model_weights *w, ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_qwen3_moe = {
    .family = "qwen3_moe",
    .gguf = "qwen3moe",
    .norm_eps = 1e-6,
    .rope_theta = 10000,
    .biases = MODEL_BIASES_SAID,
    .windows = MODEL_WINDOW_IF_USED,
    .is_mixture = true,
    .expert_ffn = "moe_intermediate_size",
    .build = build,
};
