/* qwen3.c - Qwen3, dense.
 *
 * As Llama, with an RMS norm over each head of q and k before the rotation and a head size of its own; biases only if
 * the configuration says so, sliding windows as in Qwen2.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    const model_config *c = d->c;
    int64_t D = c->hidden_size, H = c->n_heads, G = c->n_kv_heads, K = c->head_size;

    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    ir_tensor_id q = decoder_linear(d, h, "self_attn.q_proj", H * K, D, c->attention_bias);
    ir_tensor_id k = decoder_linear(d, h, "self_attn.k_proj", G * K, D, c->attention_bias);
    ir_tensor_id v = decoder_linear(d, h, "self_attn.v_proj", G * K, D, c->attention_bias);
    q = decoder_norm(d, decoder_heads(d, q, H, "q"), "self_attn.q_norm");
    k = decoder_norm(d, decoder_heads(d, k, G, "k"), "self_attn.k_norm");
    q = decoder_rope(d, q, "q_rope");
    k = decoder_rope(d, k, "k_rope");
    h = decoder_attention(d, q, k, decoder_heads(d, v, G, "v"));
    h = decoder_linear(d, h, "self_attn.o_proj", D, H * K, c->attention_out_bias);
    x = decoder_add(d, x, h, "attention_add");

    h = decoder_norm(d, x, "post_attention_layernorm");
    return decoder_add(d, x, decoder_mlp(d, h), "mlp_add");
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s, const model_weights *w,
                        ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_qwen3 = {.family = "qwen3", .build = build};
