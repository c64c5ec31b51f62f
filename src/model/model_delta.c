/* model_delta.c - a layer with linear attention by the gated delta rule (op/delta_rule.c), as
 * Qwen3-Next and Qwen3.5 have in three of four layers.
 *
 * q, k and v pass a short convolution over the last tokens before they meet the state, and the
 * result is normalised head by head and gated by another product of the layer's input, z:
 *
 *   q, k, v = silu(conv(h Wq)), silu(conv(h Wk)), silu(conv(h Wv))
 *   y = delta_rule(q, k, v, h Wa, h Wb)
 *   out = (norm(y) silu(h Wz)) Wout
 *
 * Checkpoints join some of these weights (load/delta.c).  Weights are apart here, since peers cut
 * each by its heads; passes join the products again.
 */
#include <stdio.h>

#include "model/model_parts.h"

/* An operator of the layer, named "layers.LAYER.name"; returns its first output. */
static ir_tensor_id add_op(decoder *d, const char *op, const char *name, uint32_t n_in,
                           const ir_tensor_id *in, const ir_set *attributes)
{
    char full[DECODER_NAME_BYTES];
    return decoder_op(d, op, decoder_name(d, full, name), n_in, in, attributes);
}

/* A vector of the layer, "model.layers.LAYER.linear_attn.what". */
static ir_tensor_id add_vector(decoder *d, const char *what, int64_t n)
{
    return decoder_layer_weight(d, "linear_attn", what, 1, n, 0);
}

/* State of the layer in f32, "what.LAYER". */
static ir_tensor_id add_state(decoder *d, const char *what, uint32_t rank, const int64_t *dims)
{
    char name[DECODER_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%u", what, d->layer);
    return decoder_tensor(d, IR_STATE, IR_ALL, name, IR_F32, rank, dims);
}

/* h times the weight of `what` (q, k or v), n columns, which then pass the convolution. */
static ir_tensor_id add_convolved(decoder *d, ir_tensor_id h, const char *what, int64_t n)
{
    const int64_t W = d->c->delta_conv;
    char product[32], conv[32], state[32];
    snprintf(product, sizeof product, "linear_attn.%s_proj", what);
    snprintf(conv, sizeof conv, "linear_attn.%s_conv", what);
    snprintf(state, sizeof state, "%s_conv_state", what);
    h = decoder_linear(d, h, product, n, d->c->hidden_size, false);
    const ir_tensor_id in[] = {h, decoder_layer_weight(d, conv, "weight", 2, n, W), d->positions,
                               d->slots,
                               add_state(d, state, 3, (int64_t[]){d->s->n_slots, W - 1, n})};
    snprintf(product, sizeof product, "%s_conv", what);
    return add_op(d, "causal_conv", product, 5, in,
                  (ir_set[]){{.name = "activation", .s = "silu"}, {0}});
}

/* x [T, H V] by heads, or back again. */
static ir_tensor_id add_shape(decoder *d, ir_tensor_id x, uint32_t rank, const char *name)
{
    const int64_t T = d->s->n_tokens, H = d->c->delta_heads, V = d->c->delta_value_size;
    const int64_t by_heads[] = {T, H, V}, flat[] = {T, H * V};
    return add_op(
        d, "reshape", name, 1, &x,
        (ir_set[]){{.name = "shape", .ints = rank == 3 ? by_heads : flat, .n_ints = rank}, {0}});
}

ir_tensor_id decoder_delta_attention(decoder *d, ir_tensor_id h)
{
    const model_config *c = d->c;
    const int64_t D = c->hidden_size, H = c->delta_heads, G = c->delta_key_heads,
                  K = c->delta_key_size, N = H * c->delta_value_size;
    ir_tensor_id q = add_convolved(d, h, "q", G * K), k = add_convolved(d, h, "k", G * K),
                 v = add_convolved(d, h, "v", N);
    ir_tensor_id z = decoder_linear(d, h, "linear_attn.z_proj", N, D, false);
    const ir_tensor_id in[] = {q,
                               k,
                               v,
                               decoder_linear(d, h, "linear_attn.a_proj", H, D, false),
                               decoder_linear(d, h, "linear_attn.b_proj", H, D, false),
                               add_vector(d, "A_log", H),
                               add_vector(d, "dt_bias", H),
                               d->positions,
                               d->slots,
                               add_state(d, "delta_state", 3, (int64_t[]){d->s->n_slots, N, K})};
    h = add_op(d, "delta_rule", "delta_rule", sizeof in / sizeof *in, in,
               (ir_set[]){{.name = "tiled", .i = c->delta_tiled}, {0}});
    h = decoder_norm(d, add_shape(d, h, 3, "delta_heads"), "linear_attn.norm");
    h = add_op(d, "silu_mul", "delta_gated", 2,
               (ir_tensor_id[]){z, add_shape(d, h, 2, "delta_flat")}, NULL);
    return decoder_linear(d, h, "linear_attn.out_proj", D, N, false);
}

ir_tensor_id decoder_delta_layer(decoder *d, ir_tensor_id x)
{
    const model_config *c = d->c;
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    if (model_has_layer(c->delta_layers, d->layer))
        h = decoder_delta_attention(d, h);
    else
        h = decoder_self_attention(d, h, c->attention_bias, c->attention_out_bias,
                                   DECODER_HEAD_NORMS);
    x = decoder_add(d, x, h, "attention_add");
    h = decoder_norm(d, x, "post_attention_layernorm");
    if (model_has_experts(c, d->layer))
        return decoder_shared_expert(d, h, decoder_experts(d, h, x, true));
    return decoder_add(d, x, decoder_mlp(d, h), "mlp_add");
}
