/* model_latent.c - latent attention (DeepSeek's MLA), in its plain operators (model_decoder.h). */
#include <stdio.h>
#include <string.h>

#include "model/model_parts.h"

/* Entries first .. first + n - 1 of the last axis of x, as a view. */
static ir_tensor_id add_columns(decoder *d, ir_tensor_id x, int64_t first, int64_t n,
                                const char *name)
{
    char full[DECODER_NAME_BYTES];
    int64_t starts[IR_MAX_RANK] = {0}, stops[IR_MAX_RANK];
    if (d->status != MPK_OK)
        return IR_NONE;
    const ir_tensor *t = &d->g->tensors.at[x];
    memcpy(stops, t->dims, sizeof stops);
    starts[t->rank - 1] = first;
    stops[t->rank - 1] = first + n;
    return decoder_op(d, "slice", decoder_name(d, full, name), 1, &x,
                      (ir_set[]){{.name = "starts", .ints = starts, .n_ints = t->rank},
                                 {.name = "stops", .ints = stops, .n_ints = t->rank},
                                 {0}});
}

/* x[T, n * size] as a view [T, n, size]; n = 0: back again, x[T, .., size] as [T, ..]. */
static ir_tensor_id add_shape(decoder *d, ir_tensor_id x, int64_t n, int64_t size, const char *name)
{
    char full[DECODER_NAME_BYTES];
    int64_t shape[3] = {d->s->n_tokens, n ? n : size, size};
    return decoder_op(d, "reshape", decoder_name(d, full, name), 1, &x,
                      (ir_set[]){{.name = "shape", .ints = shape, .n_ints = n ? 3 : 2}, {0}});
}

/* One tensor after the other along the last axis of [T, n, K]. */
static ir_tensor_id add_joined(decoder *d, ir_tensor_id a, ir_tensor_id b, const char *name)
{
    char full[DECODER_NAME_BYTES];
    return decoder_op(d, "concat", decoder_name(d, full, name), 2, (ir_tensor_id[]){a, b},
                      (ir_set[]){{.name = "axis", .i = 2}, {0}});
}

/* x[T, H, n_in] times each head's own weight, `what`.weight [H, n_out, n_in]: [T, H, n_out].  To
 * the operator heads are experts, and every token goes to all of them. */
static ir_tensor_id add_head_products(decoder *d, ir_tensor_id x, const char *what, int64_t n_out,
                                      int64_t n_in)
{
    char full[DECODER_NAME_BYTES], weight[DECODER_NAME_BYTES];
    snprintf(weight, sizeof weight, "model.layers.%u.%s.weight", d->layer, what);
    ir_tensor_id w = decoder_shaped_weight(d, weight, 3, (int64_t[]){d->c->n_heads, n_out, n_in});
    return decoder_op(d, "expert_linear", decoder_name(d, full, decoder_result_name(what)), 3,
                      (ir_tensor_id[]){x, d->head_ids, w}, NULL);
}

/* What is cached of a token, [T, 1, L + R]: its normed latent, and its rotated key. */
static ir_tensor_id add_latent(decoder *d, ir_tensor_id h)
{
    const model_config *c = d->c;
    const int64_t L = c->latent_size, R = c->rope_size;
    h = decoder_linear(d, h, "self_attn.kv_a_proj_with_mqa", L + R, c->hidden_size,
                       c->attention_bias);
    ir_tensor_id latent = add_columns(d, h, 0, L, "latent_part");
    ir_tensor_id key = add_columns(d, h, L, R, "key_part");
    latent = decoder_norm(d, latent, "self_attn.kv_a_layernorm");
    key = decoder_rope(d, add_shape(d, key, 1, R, "key"), "k_rope");
    return add_joined(d, add_shape(d, latent, 1, L, "latent"), key, "latent_key");
}

/* Queries that meet what is cached, [T, H, L + R]: of each head the part that is not rotated, times
 * the weight that would make keys of latents; and the rotated part. */
static ir_tensor_id add_latent_queries(decoder *d, ir_tensor_id h)
{
    const model_config *c = d->c;
    const int64_t H = c->n_heads, K = c->head_size, R = c->rope_size, D = c->hidden_size;
    if (c->query_latent_size) {
        h = decoder_linear(d, h, "self_attn.q_a_proj", c->query_latent_size, D, c->attention_bias);
        h = decoder_norm(d, h, "self_attn.q_a_layernorm");
        h = decoder_linear(d, h, "self_attn.q_b_proj", H * K, c->query_latent_size, false);
    } else {
        h = decoder_linear(d, h, "self_attn.q_proj", H * K, D, false);
    }
    h = add_shape(d, h, H, K, "q");
    ir_tensor_id plain = add_columns(d, h, 0, K - R, "q_plain");
    ir_tensor_id rotated = decoder_rope(d, add_columns(d, h, K - R, R, "q_part"), "q_rope");
    plain = add_head_products(d, plain, "self_attn.k_b_proj", c->latent_size, K - R);
    return add_joined(d, plain, rotated, "latent_query");
}

/* Scores and means are over the cached rows themselves; of the means the latents are taken, and
 * each head's weight makes its values of them. */
ir_tensor_id decoder_latent_attention(decoder *d, ir_tensor_id h)
{
    const model_config *c = d->c;
    const int64_t H = c->n_heads, L = c->latent_size, V = c->value_size;
    char name[DECODER_NAME_BYTES];
    ir_tensor_id q = add_latent_queries(d, h), k = add_latent(d, h);
    ir_tensor_id cache = decoder_op(
        d, "latent_write", decoder_name(d, name, "latent_write"), 5,
        (ir_tensor_id[]){k, d->positions, d->slots, d->pages, decoder_cache(d, "k_cache")}, NULL);
    h = decoder_op(d, "attention", decoder_name(d, name, "attention"), 6,
                   (ir_tensor_id[]){q, cache, IR_NONE, d->positions, d->slots, d->pages},
                   (ir_set[]){{.name = "scale", .f = model_attention_scale(c)}, {0}});
    h = add_shape(d, h, H, L + c->rope_size, "means");
    h = add_head_products(d, add_columns(d, h, 0, L, "latent_means"), "self_attn.v_b_proj", V, L);
    h = add_shape(d, h, 0, H * V, "values");
    return decoder_linear(d, h, "self_attn.o_proj", c->hidden_size, H * V, c->attention_out_bias);
}
