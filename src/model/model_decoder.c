/* model_decoder.c - the operators of decoders, in their plain form (model_decoder.h).
 *
 * Each function adds one or two operators of the text form, such as
 *
 *   %layers.0.q_proj = linear(%input_layernorm, %model.layers.0.self_attn.q_proj.weight, ..)
 *
 * Fusing is left to src/pass.  Called by the families' files.
 */
#include "model/model_parts.h"

#include <math.h>
#include <stdio.h>

/* The name of a tensor that a layer computes, such as "layers.3.q_proj". */
const char *decoder_name(const decoder *d, char name[DECODER_NAME_BYTES], const char *what)
{
    snprintf(name, DECODER_NAME_BYTES, "layers.%u.%s", d->layer, what);
    return name;
}

/* Add an operator; returns its first output. */
ir_tensor_id decoder_op(decoder *d, const char *op, const char *name, uint32_t n_in,
                        const ir_tensor_id *in, const ir_set *attributes)
{
    ir_tensor_id out[IR_MAX_OUTPUTS] = {IR_NONE, IR_NONE, IR_NONE, IR_NONE};
    if (d->status == MPK_OK)
        d->status = ir_add_op(d->cx, d->g, op, name, n_in, in, attributes, out);
    return d->status == MPK_OK ? out[0] : IR_NONE;
}

/* Add an input, a constant or state under its full name; a draft model's weights and state get
 * its prefix. */
ir_tensor_id decoder_tensor(decoder *d, ir_kind kind, ir_live live, const char *name,
                            ir_dtype dtype, uint32_t rank, const int64_t *dims)
{
    ir_tensor_id out = IR_NONE;
    char own[2 * DECODER_NAME_BYTES];
    if (d->s->drafts && (kind == IR_CONST || kind == IR_STATE)) {
        snprintf(own, sizeof own, MODEL_DRAFT "%s", name);
        name = own;
    }
    if (d->status == MPK_OK)
        d->status = ir_add_tensor(d->cx, d->g, kind, live, name, dtype, rank, dims, &out);
    return d->status == MPK_OK ? out : IR_NONE;
}

/* Add a weight of any rank; its dtype is that of the file. */
ir_tensor_id decoder_shaped_weight(decoder *d, const char *name, uint32_t rank, const int64_t *dims)
{
    ir_dtype dtype = IR_F32;
    if (d->status == MPK_OK)
        d->status = d->w->dtype(d->cx, d->w->self, name, rank, dims, &dtype);
    return decoder_tensor(d, IR_CONST, IR_ALL, name, dtype, rank, dims);
}

/* Add a weight of the whole model: [rows, columns], or with rank 1 [rows]. */
ir_tensor_id decoder_weight(decoder *d, const char *name, uint32_t rank, int64_t rows,
                            int64_t columns)
{
    return decoder_shaped_weight(d, name, rank, (int64_t[]){rows, columns});
}

/* Add a weight of the current layer: model.layers.LAYER.what.part. */
ir_tensor_id decoder_layer_weight(decoder *d, const char *what, const char *part, uint32_t rank,
                                  int64_t rows, int64_t columns)
{
    char name[DECODER_NAME_BYTES];
    snprintf(name, sizeof name, "model.layers.%u.%s.%s", d->layer, what, part);
    return decoder_weight(d, name, rank, rows, columns);
}

/* The last part of a weight's name, after which its product is named. */
const char *decoder_result_name(const char *what)
{
    const char *dot = strrchr(what, '.');
    return dot ? dot + 1 : what;
}

/* Add a norm of rows of n entries, whose weights' names begin with `of`. */
ir_tensor_id decoder_add_norm(decoder *d, ir_tensor_id x, const char *of, const char *name,
                              int64_t n)
{
    char weight[DECODER_NAME_BYTES + 8];
    ir_tensor_id in[3] = {x, IR_NONE, IR_NONE};
    snprintf(weight, sizeof weight, "%s.weight", of);
    if (!d->c->bare_norms)
        in[1] = decoder_weight(d, weight, 1, n, 0);
    snprintf(weight, sizeof weight, "%s.bias", of);
    const char *op = d->c->layer_norms ? "layer_norm" : "rms_norm";
    uint32_t n_in = 2;
    if (d->c->norm_bias)
        in[n_in++] = decoder_weight(d, weight, 1, n, 0);
    return decoder_op(d, op, name, n_in, in, (ir_set[]){{.name = "eps", .f = d->c->norm_eps}, {0}});
}

/* Errors are kept in d->status: after one every call returns IR_NONE, so that forward passes
 * read without checks. */
ir_tensor_id decoder_norm(decoder *d, ir_tensor_id x, const char *what)
{
    if (d->status != MPK_OK)
        return IR_NONE;
    const ir_tensor *t = &d->g->tensors.at[x];
    char name[DECODER_NAME_BYTES], of[DECODER_NAME_BYTES];
    snprintf(of, sizeof of, "model.layers.%u.%s", d->layer, what);
    return decoder_add_norm(d, x, of, decoder_name(d, name, decoder_result_name(what)),
                            t->dims[t->rank - 1]);
}

/* One weight and one bias, although the operator has room for three: a pass joins q, k, v and
 * gate, up. */
ir_tensor_id decoder_linear(decoder *d, ir_tensor_id x, const char *what, int64_t n_out,
                            int64_t n_in, bool bias)
{
    char name[DECODER_NAME_BYTES];
    ir_tensor_id in[5] = {x, decoder_layer_weight(d, what, "weight", 2, n_out, n_in), IR_NONE,
                          IR_NONE, IR_NONE};
    if (bias)
        in[4] = decoder_layer_weight(d, what, "bias", 1, n_out, 0);
    return decoder_op(d, "linear", decoder_name(d, name, decoder_result_name(what)), bias ? 5 : 2,
                      in, NULL);
}

/* A view: no work. */
ir_tensor_id decoder_heads(decoder *d, ir_tensor_id x, int64_t n, const char *name)
{
    char full[DECODER_NAME_BYTES];
    int64_t shape[3] = {d->s->n_tokens, n, d->c->head_size};
    return decoder_op(d, "reshape", decoder_name(d, full, name), 1, &x,
                      (ir_set[]){{.name = "shape", .ints = shape, .n_ints = 3}, {0}});
}

ir_tensor_id decoder_rope(decoder *d, ir_tensor_id x, const char *name)
{
    char full[DECODER_NAME_BYTES];
    const bool local = d->c->local_theta != 0 && model_layer_window(d->c, d->layer);
    ir_tensor_id table = local ? d->local_rope : d->rope;
    if (model_has_layer(d->c->unrotated_layers, d->layer))
        table = d->no_rope;
    return decoder_op(d, "rope", decoder_name(d, full, name), 2, (ir_tensor_id[]){x, table}, NULL);
}

/* The expression `before` and a number after it, over n_in tensors. */
ir_tensor_id decoder_map(decoder *d, const char *name, uint32_t n_in, const ir_tensor_id *in,
                         const char *before, double number)
{
    char expr[DECODER_NAME_BYTES];
    snprintf(expr, sizeof expr, "%s%.17g", before, number);
    return decoder_op(d, "map", name, n_in, in, (ir_set[]){{.name = "expr", .s = expr}, {0}});
}

ir_tensor_id decoder_add(decoder *d, ir_tensor_id a, ir_tensor_id b, const char *name)
{
    char full[DECODER_NAME_BYTES];
    const ir_tensor_id in[] = {a, b};
    decoder_name(d, full, name);
    if (d->c->residual_scale != 0)
        return decoder_map(d, full, 2, in, "x0 + x1 * ", d->c->residual_scale);
    return decoder_op(d, "add", full, 2, in, NULL);
}

/* A cache as state [pages, G, P, K]: for each head the tokens of a page are neighbours, so
 * attention reads rows in order. */
ir_tensor_id decoder_cache(decoder *d, const char *which)
{
    char name[DECODER_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%u", which, d->layer);
    int64_t dims[4] = {d->s->n_pages, model_kv_heads(d->c), d->s->page_tokens,
                       model_cache_size(d->c)};
    return decoder_tensor(d, IR_STATE, IR_ALL, name, d->s->kv_dtype, 4, dims);
}

/* Attention reads kv_write's results, not the state itself, so that the program's order puts
 * this step's k and v first; the storage is the same. */
ir_tensor_id decoder_attention(decoder *d, ir_tensor_id q, ir_tensor_id k, ir_tensor_id v)
{
    char name[DECODER_NAME_BYTES];
    ir_tensor_id k_cache = decoder_cache(d, "k_cache"), v_cache = decoder_cache(d, "v_cache");
    ir_tensor_id written[IR_MAX_OUTPUTS] = {IR_NONE, IR_NONE, IR_NONE, IR_NONE};
    if (d->status == MPK_OK)
        d->status =
            ir_add_op(d->cx, d->g, "kv_write", decoder_name(d, name, "kv_write"), 7,
                      (ir_tensor_id[]){k, v, d->positions, d->slots, d->pages, k_cache, v_cache},
                      NULL, written);
    ir_tensor_id sinks =
        d->c->sinks ? decoder_layer_weight(d, "self_attn.sinks", "weight", 1, d->c->n_heads, 0)
                    : IR_NONE;
    return decoder_op(
        d, "attention", decoder_name(d, name, "attention"), d->c->sinks ? 7 : 6,
        (ir_tensor_id[]){q, written[0], written[1], d->positions, d->slots, d->pages, sinks},
        (ir_set[]){{.name = "scale", .f = model_attention_scale(d->c)},
                   {.name = "window", .i = model_layer_window(d->c, d->layer)},
                   {.name = "cap", .f = d->c->attention_cap},
                   {0}});
}

/* The activation of what is not gated by silu. */
static ir_tensor_id add_gelu(decoder *d, ir_tensor_id x)
{
    char name[DECODER_NAME_BYTES];
    return decoder_op(
        d, "gelu", decoder_name(d, name, "gelu"), 1, &x,
        (ir_set[]){{.name = "tanh", .i = str_is(d->c->activation, "gelu_tanh")}, {0}});
}

ir_tensor_id decoder_plain_mlp(decoder *d, ir_tensor_id h, const char *up, const char *down)
{
    const model_config *c = d->c;
    char name[DECODER_NAME_BYTES];
    h = decoder_linear(d, h, up, c->ffn_size, c->hidden_size, c->mlp_bias);
    if (str_is(c->activation, "silu"))
        h = decoder_op(d, "silu", decoder_name(d, name, "silu"), 1, &h, NULL);
    else if (str_is(c->activation, "relu2"))
        h = decoder_op(d, "map", decoder_name(d, name, "relu2"), 1, &h,
                       (ir_set[]){{.name = "expr", .s = "square(max(x0, 0))"}, {0}});
    else
        h = add_gelu(d, h);
    return decoder_linear(d, h, down, c->hidden_size, c->ffn_size, c->mlp_bias);
}

/* The MLP whose weights begin with `of`, of F inner entries.  gate and up [T, F] are separate
 * products; a pass fuses them with the activation. */
static ir_tensor_id add_mlp(decoder *d, ir_tensor_id h, const char *of, int64_t F)
{
    const model_config *c = d->c;
    char name[DECODER_NAME_BYTES], what[3][DECODER_NAME_BYTES];
    snprintf(what[0], DECODER_NAME_BYTES, "%s.gate_proj", of);
    snprintf(what[1], DECODER_NAME_BYTES, "%s.up_proj", of);
    snprintf(what[2], DECODER_NAME_BYTES, "%s.down_proj", of);
    ir_tensor_id gate = decoder_linear(d, h, what[0], F, c->hidden_size, c->mlp_bias);
    ir_tensor_id up = decoder_linear(d, h, what[1], F, c->hidden_size, c->mlp_bias);
    if (str_is(c->activation, "silu"))
        h = decoder_op(d, "silu_mul", decoder_name(d, name, "silu_mul"), 2,
                       (ir_tensor_id[]){gate, up}, NULL);
    else {
        gate = add_gelu(d, gate);
        h = decoder_op(d, "mul", decoder_name(d, name, "gelu_mul"), 2, (ir_tensor_id[]){gate, up},
                       NULL);
    }
    return decoder_linear(d, h, what[2], c->hidden_size, F, c->mlp_bias);
}

ir_tensor_id decoder_mlp(decoder *d, ir_tensor_id h)
{
    return add_mlp(d, h, "mlp", d->c->ffn_size);
}

/* The gate is a number for each token. */
ir_tensor_id decoder_shared_expert(decoder *d, ir_tensor_id h, ir_tensor_id x)
{
    char name[DECODER_NAME_BYTES];
    ir_tensor_id gate = decoder_linear(d, h, "mlp.shared_expert_gate", 1, d->c->hidden_size, false);
    ir_tensor_id shared = add_mlp(d, h, "mlp.shared_expert", d->c->shared_ffn_size);
    return decoder_op(d, "map", decoder_name(d, name, "shared_add"), 3,
                      (ir_tensor_id[]){x, shared, gate},
                      (ir_set[]){{.name = "expr", .s = "x0 + x1 * sigmoid(x2)"}, {0}});
}

ir_tensor_id decoder_shared_experts(decoder *d, ir_tensor_id h, ir_tensor_id x)
{
    if (!d->c->shared_ffn_size)
        return x;
    return decoder_add(d, x, add_mlp(d, h, "mlp.shared_experts", d->c->shared_ffn_size),
                       "shared_add");
}

/* An RMS norm of each head without weights, in layers that rotate. */
static ir_tensor_id add_bare_norm(decoder *d, ir_tensor_id x, const char *name)
{
    char full[DECODER_NAME_BYTES];
    if (model_has_layer(d->c->unrotated_layers, d->layer))
        return x;
    return decoder_op(d, "rms_norm", decoder_name(d, full, name), 1, &x,
                      (ir_set[]){{.name = "eps", .f = d->c->norm_eps}, {0}});
}

/* Queries grow with the position: op/map, since few contexts are so long. */
static ir_tensor_id scale_queries(decoder *d, ir_tensor_id q)
{
    char name[DECODER_NAME_BYTES];
    const bool unrotated = model_has_layer(d->c->unrotated_layers, d->layer);
    if (d->status != MPK_OK || d->query_scales == IR_NONE || (d->c->query_unrotated && !unrotated))
        return q;
    return decoder_op(d, "map", decoder_name(d, name, "q_scaled"), 2,
                      (ir_tensor_id[]){q, d->query_scales},
                      (ir_set[]){{.name = "expr", .s = "x0 * x1"}, {0}});
}

/* What attention gives, each entry gated by another product of its input. */
static ir_tensor_id add_gated(decoder *d, ir_tensor_id h, ir_tensor_id gate)
{
    char name[DECODER_NAME_BYTES];
    return decoder_op(d, "map", decoder_name(d, name, "attention_gated"), 2,
                      (ir_tensor_id[]){h, gate},
                      (ir_set[]){{.name = "expr", .s = "x0 * sigmoid(x1)"}, {0}});
}

/* One operator for each line of the paper's formula; passes fuse them (fuse_linear.c,
 * fuse_attention.c). */
ir_tensor_id decoder_self_attention(decoder *d, ir_tensor_id h, bool qkv_bias, bool out_bias,
                                    decoder_qk_norms norms)
{
    const model_config *c = d->c;
    int64_t D = c->hidden_size, H = c->n_heads, G = model_kv_heads(c), K = c->head_size;

    ir_tensor_id q = decoder_linear(d, h, "self_attn.q_proj", H * K, D, qkv_bias);
    ir_tensor_id k = decoder_linear(d, h, "self_attn.k_proj", G * K, D, qkv_bias);
    ir_tensor_id v = decoder_linear(d, h, "self_attn.v_proj", G * K, D, qkv_bias);
    if (norms == DECODER_WIDE_NORMS) {
        q = decoder_norm(d, q, "self_attn.q_norm");
        k = decoder_norm(d, k, "self_attn.k_norm");
    }
    q = decoder_heads(d, q, H, "q");
    k = decoder_heads(d, k, G, "k");
    if (norms == DECODER_HEAD_NORMS) {
        q = decoder_norm(d, q, "self_attn.q_norm");
        k = decoder_norm(d, k, "self_attn.k_norm");
    }
    q = decoder_rope(d, q, "q_rope");
    k = decoder_rope(d, k, "k_rope");
    if (norms == DECODER_ROTATED_NORMS) {
        q = decoder_norm(d, q, "self_attn.query_layernorm");
        k = decoder_norm(d, k, "self_attn.key_layernorm");
    }
    if (norms == DECODER_BARE_NORMS) {
        q = add_bare_norm(d, q, "q_norm");
        k = add_bare_norm(d, k, "k_norm");
    }
    const ir_tensor_id gate = c->attention_gate
                                  ? decoder_linear(d, h, "self_attn.out_gate", H * K, D, qkv_bias)
                                  : IR_NONE;
    h = decoder_attention(d, scale_queries(d, q), k, decoder_heads(d, v, G, "v"));
    if (c->attention_gate)
        h = add_gated(d, h, gate);
    return decoder_linear(d, h, "self_attn.o_proj", D, H * K, out_bias);
}

ir_tensor_id decoder_expert_or_mlp(decoder *d, ir_tensor_id x)
{
    ir_tensor_id h = decoder_norm(d, x, "post_attention_layernorm");
    if (!model_has_experts(d->c, d->layer))
        return decoder_add(d, x, decoder_mlp(d, h), "mlp_add");
    return decoder_shared_experts(d, h, decoder_experts(d, h, x, false));
}

ir_tensor_id decoder_latent_layer(decoder *d, ir_tensor_id x)
{
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    x = decoder_add(d, x, decoder_latent_attention(d, h), "attention_add");
    return decoder_expert_or_mlp(d, x);
}

ir_tensor_id decoder_attend(decoder *d, ir_tensor_id x, bool qkv_bias, bool out_bias,
                            bool head_norms)
{
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    h = decoder_self_attention(d, h, qkv_bias, out_bias,
                               head_norms ? DECODER_HEAD_NORMS : DECODER_NO_NORMS);
    return decoder_add(d, x, h, "attention_add");
}

/* x + the MLP of its norm. */
static ir_tensor_id add_normed_mlp(decoder *d, ir_tensor_id x)
{
    ir_tensor_id h = decoder_norm(d, x, "post_attention_layernorm");
    return decoder_add(d, x, decoder_mlp(d, h), "mlp_add");
}

ir_tensor_id decoder_layer(decoder *d, ir_tensor_id x, bool qkv_bias, bool out_bias)
{
    return add_normed_mlp(d, decoder_attend(d, x, qkv_bias, out_bias, false));
}

ir_tensor_id decoder_qwen3_layer(decoder *d, ir_tensor_id x)
{
    const model_config *c = d->c;
    return add_normed_mlp(d, decoder_attend(d, x, c->attention_bias, c->attention_out_bias, true));
}

ir_tensor_id decoder_parallel_layer(decoder *d, ir_tensor_id x)
{
    const bool bias = d->c->attention_bias;
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    ir_tensor_id attended =
        decoder_self_attention(d, h, bias, d->c->attention_out_bias, DECODER_NO_NORMS);
    x = decoder_add(d, x, attended, "attention_add");
    return decoder_add(d, x, decoder_mlp(d, h), "mlp_add");
}

ir_tensor_id decoder_normed_layer(decoder *d, ir_tensor_id x, decoder_qk_norms norms)
{
    const bool bias = d->c->attention_bias;
    ir_tensor_id h = decoder_self_attention(d, x, bias, bias, norms);
    x = decoder_add(d, x, decoder_norm(d, h, "post_attention_layernorm"), "attention_add");
    h = decoder_norm(d, decoder_mlp(d, x), "post_feedforward_layernorm");
    return decoder_add(d, x, h, "mlp_add");
}

ir_tensor_id decoder_wrapped_layer(decoder *d, ir_tensor_id x, decoder_qk_norms norms)
{
    const bool bias = d->c->attention_bias;
    ir_tensor_id h = decoder_norm(d, x, "input_layernorm");
    h = decoder_self_attention(d, h, bias, bias, norms);
    h = decoder_norm(d, h, "post_attention_layernorm");
    x = decoder_add(d, x, h, "attention_add");
    h = decoder_mlp(d, decoder_norm(d, x, "pre_feedforward_layernorm"));
    h = decoder_norm(d, h, "post_feedforward_layernorm");
    return decoder_add(d, x, h, "mlp_add");
}
