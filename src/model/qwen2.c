/* qwen2.c - Qwen2 and Qwen2.5.
 *
 * As Llama, with biases on q, k and v and never on the output projection; the layers from
 * first_window_layer on may look at a sliding window only.
 */
#include "model/model_decoder.h"

static ir_tensor_id layer(decoder *d, ir_tensor_id x)
{
    const model_config *c = d->c;
    int64_t D = c->hidden_size, H = c->n_heads, G = c->n_kv_heads, K = c->head_size;

    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    ir_tensor_id q = decoder_linear(d, h, "self_attn.q_proj", H * K, D, true);
    ir_tensor_id k = decoder_linear(d, h, "self_attn.k_proj", G * K, D, true);
    ir_tensor_id v = decoder_linear(d, h, "self_attn.v_proj", G * K, D, true);
    q = decoder_rope(d, decoder_heads(d, q, H, "q"), "q_rope");
    k = decoder_rope(d, decoder_heads(d, k, G, "k"), "k_rope");
    h = decoder_attention(d, q, k, decoder_heads(d, v, G, "v"));
    h = decoder_linear(d, h, "self_attn.o_proj", D, H * K, false);
    x = decoder_add(d, x, h, "attention_add");

    h = decoder_norm(d, x, "post_attention_layernorm");
    return decoder_add(d, x, decoder_mlp(d, h), "mlp_add");
}

static mpk_status build(mpk_context *cx, const model_config *c, const model_shape *s, const model_weights *w,
                        ir_graph *g)
{
    return decoder_build(cx, c, s, w, g, layer);
}

const model_def model_qwen2 = {.family = "qwen2", .build = build};
