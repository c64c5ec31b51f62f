/* llama.c - Llama 2, 3, 3.1, 3.2 (and SmolLM2, TinyLlama and others that share the architecture).
 *
 * Grouped attention with rotary positions (default, linear, llama3, yarn), a gated MLP, RMS norms before both; biases
 * on all four attention products and on the MLP if the configuration says so.
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
    q = decoder_rope(d, decoder_heads(d, q, H, "q"), "q_rope");
    k = decoder_rope(d, decoder_heads(d, k, G, "k"), "k_rope");
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

const model_def model_llama = {.family = "llama", .build = build};
