/* model_decoder.c - the operators of decoders, in their plain form (model_decoder.h).
 *
 * Each function adds one or two operators of the text form, such as
 *
 *   %layers.0.q_proj = linear(%input_layernorm, %model.layers.0.self_attn.q_proj.weight, ..)
 *
 * Fusing is left to src/pass.  Called by the families' files.
 */
#include "model/model_decoder.h"

#include <math.h>
#include <stdio.h>

#include "op/rules.h"

enum { NAME_BYTES = 128 };

/* The name of a tensor that a layer computes, such as "layers.3.q_proj". */
static const char *layer_name(const decoder *d, char name[NAME_BYTES], const char *what)
{
    snprintf(name, NAME_BYTES, "layers.%u.%s", d->layer, what);
    return name;
}

/* Add an operator; returns its first output. */
static ir_tensor_id add_op(decoder *d, const char *op, const char *name, uint32_t n_in,
                           const ir_tensor_id *in, const ir_set *attributes)
{
    ir_tensor_id out[IR_MAX_OUTPUTS] = {IR_NONE, IR_NONE, IR_NONE, IR_NONE};
    if (d->status == MPK_OK)
        d->status = ir_add_op(d->cx, d->g, op, name, n_in, in, attributes, out);
    return d->status == MPK_OK ? out[0] : IR_NONE;
}

/* Add an input, a constant or state under its full name; a draft model's weights and state get
 * its prefix. */
static ir_tensor_id add_tensor(decoder *d, ir_kind kind, ir_live live, const char *name,
                               ir_dtype dtype, uint32_t rank, const int64_t *dims)
{
    ir_tensor_id out = IR_NONE;
    char own[2 * NAME_BYTES];
    if (d->s->drafts && (kind == IR_CONST || kind == IR_STATE)) {
        snprintf(own, sizeof own, MODEL_DRAFT "%s", name);
        name = own;
    }
    if (d->status == MPK_OK)
        d->status = ir_add_tensor(d->cx, d->g, kind, live, name, dtype, rank, dims, &out);
    return d->status == MPK_OK ? out : IR_NONE;
}

/* Add a weight of any rank; its dtype is that of the file. */
static ir_tensor_id add_shaped_weight(decoder *d, const char *name, uint32_t rank,
                                      const int64_t *dims)
{
    ir_dtype dtype = IR_F32;
    if (d->status == MPK_OK)
        d->status = d->w->dtype(d->cx, d->w->self, name, rank, dims, &dtype);
    return add_tensor(d, IR_CONST, IR_ALL, name, dtype, rank, dims);
}

/* Add a weight of the whole model: [rows, columns], or with rank 1 [rows]. */
static ir_tensor_id add_weight(decoder *d, const char *name, uint32_t rank, int64_t rows,
                               int64_t columns)
{
    return add_shaped_weight(d, name, rank, (int64_t[]){rows, columns});
}

/* Add a weight of the current layer: model.layers.LAYER.what.part. */
static ir_tensor_id add_layer_weight(decoder *d, const char *what, const char *part, uint32_t rank,
                                     int64_t rows, int64_t columns)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "model.layers.%u.%s.%s", d->layer, what, part);
    return add_weight(d, name, rank, rows, columns);
}

/* The last part of a weight's name, after which its product is named. */
static const char *result_name(const char *what)
{
    const char *dot = strrchr(what, '.');
    return dot ? dot + 1 : what;
}

/* Add a norm of rows of n entries, whose weights' names begin with `of`. */
static ir_tensor_id add_norm(decoder *d, ir_tensor_id x, const char *of, const char *name,
                             int64_t n)
{
    char weight[NAME_BYTES + 8];
    ir_tensor_id in[3] = {x, IR_NONE, IR_NONE};
    snprintf(weight, sizeof weight, "%s.weight", of);
    in[1] = add_weight(d, weight, 1, n, 0);
    snprintf(weight, sizeof weight, "%s.bias", of);
    const char *op = d->c->layer_norms ? "layer_norm" : "rms_norm";
    uint32_t n_in = 2;
    if (d->c->norm_bias)
        in[n_in++] = add_weight(d, weight, 1, n, 0);
    return add_op(d, op, name, n_in, in, (ir_set[]){{.name = "eps", .f = d->c->norm_eps}, {0}});
}

/* Errors are kept in d->status: after one every call returns IR_NONE, so that forward passes
 * read without checks. */
ir_tensor_id decoder_norm(decoder *d, ir_tensor_id x, const char *what)
{
    if (d->status != MPK_OK)
        return IR_NONE;
    const ir_tensor *t = &d->g->tensors.at[x];
    char name[NAME_BYTES], of[NAME_BYTES];
    snprintf(of, sizeof of, "model.layers.%u.%s", d->layer, what);
    return add_norm(d, x, of, layer_name(d, name, result_name(what)), t->dims[t->rank - 1]);
}

/* One weight and one bias, although the operator has room for three: a pass joins q, k, v and
 * gate, up. */
ir_tensor_id decoder_linear(decoder *d, ir_tensor_id x, const char *what, int64_t n_out,
                            int64_t n_in, bool bias)
{
    char name[NAME_BYTES];
    ir_tensor_id in[5] = {x, add_layer_weight(d, what, "weight", 2, n_out, n_in), IR_NONE, IR_NONE,
                          IR_NONE};
    if (bias)
        in[4] = add_layer_weight(d, what, "bias", 1, n_out, 0);
    return add_op(d, "linear", layer_name(d, name, result_name(what)), bias ? 5 : 2, in, NULL);
}

/* A view: no work. */
ir_tensor_id decoder_heads(decoder *d, ir_tensor_id x, int64_t n, const char *name)
{
    char full[NAME_BYTES];
    int64_t shape[3] = {d->s->n_tokens, n, d->c->head_size};
    return add_op(d, "reshape", layer_name(d, full, name), 1, &x,
                  (ir_set[]){{.name = "shape", .ints = shape, .n_ints = 3}, {0}});
}

ir_tensor_id decoder_rope(decoder *d, ir_tensor_id x, const char *name)
{
    char full[NAME_BYTES];
    const bool local = d->c->local_theta != 0 && model_layer_window(d->c, d->layer);
    ir_tensor_id table = local ? d->local_rope : d->rope;
    if (model_has_layer(d->c->unrotated_layers, d->layer))
        table = d->no_rope;
    return add_op(d, "rope", layer_name(d, full, name), 2, (ir_tensor_id[]){x, table}, NULL);
}

/* The expression `before` and a number after it, over n_in tensors. */
static ir_tensor_id add_map(decoder *d, const char *name, uint32_t n_in, const ir_tensor_id *in,
                            const char *before, double number)
{
    char expr[NAME_BYTES];
    snprintf(expr, sizeof expr, "%s%.17g", before, number);
    return add_op(d, "map", name, n_in, in, (ir_set[]){{.name = "expr", .s = expr}, {0}});
}

ir_tensor_id decoder_add(decoder *d, ir_tensor_id a, ir_tensor_id b, const char *name)
{
    char full[NAME_BYTES];
    const ir_tensor_id in[] = {a, b};
    layer_name(d, full, name);
    if (d->c->residual_scale != 0)
        return add_map(d, full, 2, in, "x0 + x1 * ", d->c->residual_scale);
    return add_op(d, "add", full, 2, in, NULL);
}

/* A cache as state [pages, G, P, K]: for each head the tokens of a page are neighbours, so
 * attention reads rows in order. */
static ir_tensor_id add_cache(decoder *d, const char *which)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.%u", which, d->layer);
    int64_t dims[4] = {d->s->n_pages, model_kv_heads(d->c), d->s->page_tokens,
                       model_cache_size(d->c)};
    return add_tensor(d, IR_STATE, IR_ALL, name, d->s->kv_dtype, 4, dims);
}

/* Attention reads kv_write's results, not the state itself, so that the program's order puts
 * this step's k and v first; the storage is the same. */
ir_tensor_id decoder_attention(decoder *d, ir_tensor_id q, ir_tensor_id k, ir_tensor_id v)
{
    char name[NAME_BYTES];
    ir_tensor_id k_cache = add_cache(d, "k_cache"), v_cache = add_cache(d, "v_cache");
    ir_tensor_id written[IR_MAX_OUTPUTS] = {IR_NONE, IR_NONE, IR_NONE, IR_NONE};
    if (d->status == MPK_OK)
        d->status =
            ir_add_op(d->cx, d->g, "kv_write", layer_name(d, name, "kv_write"), 7,
                      (ir_tensor_id[]){k, v, d->positions, d->slots, d->pages, k_cache, v_cache},
                      NULL, written);
    ir_tensor_id sinks = d->c->sinks
                             ? add_layer_weight(d, "self_attn.sinks", "weight", 1, d->c->n_heads, 0)
                             : IR_NONE;
    return add_op(
        d, "attention", layer_name(d, name, "attention"), d->c->sinks ? 7 : 6,
        (ir_tensor_id[]){q, written[0], written[1], d->positions, d->slots, d->pages, sinks},
        (ir_set[]){{.name = "scale", .f = model_attention_scale(d->c)},
                   {.name = "window", .i = model_layer_window(d->c, d->layer)},
                   {.name = "cap", .f = d->c->attention_cap},
                   {0}});
}

/* The activation of what is not gated by silu. */
static ir_tensor_id add_gelu(decoder *d, ir_tensor_id x)
{
    char name[NAME_BYTES];
    return add_op(d, "gelu", layer_name(d, name, "gelu"), 1, &x,
                  (ir_set[]){{.name = "tanh", .i = str_is(d->c->activation, "gelu_tanh")}, {0}});
}

ir_tensor_id decoder_plain_mlp(decoder *d, ir_tensor_id h, const char *up, const char *down)
{
    const model_config *c = d->c;
    char name[NAME_BYTES];
    h = decoder_linear(d, h, up, c->ffn_size, c->hidden_size, c->mlp_bias);
    h = str_is(c->activation, "silu") ? add_op(d, "silu", layer_name(d, name, "silu"), 1, &h, NULL)
                                      : add_gelu(d, h);
    return decoder_linear(d, h, down, c->hidden_size, c->ffn_size, c->mlp_bias);
}

/* The MLP whose weights begin with `of`, of F inner entries.  gate and up [T, F] are separate
 * products; a pass fuses them with the activation. */
static ir_tensor_id add_mlp(decoder *d, ir_tensor_id h, const char *of, int64_t F)
{
    const model_config *c = d->c;
    char name[NAME_BYTES], what[3][NAME_BYTES];
    snprintf(what[0], NAME_BYTES, "%s.gate_proj", of);
    snprintf(what[1], NAME_BYTES, "%s.up_proj", of);
    snprintf(what[2], NAME_BYTES, "%s.down_proj", of);
    ir_tensor_id gate = decoder_linear(d, h, what[0], F, c->hidden_size, c->mlp_bias);
    ir_tensor_id up = decoder_linear(d, h, what[1], F, c->hidden_size, c->mlp_bias);
    if (str_is(c->activation, "silu"))
        h = add_op(d, "silu_mul", layer_name(d, name, "silu_mul"), 2, (ir_tensor_id[]){gate, up},
                   NULL);
    else {
        gate = add_gelu(d, gate);
        h = add_op(d, "mul", layer_name(d, name, "gelu_mul"), 2, (ir_tensor_id[]){gate, up}, NULL);
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
    char name[NAME_BYTES];
    ir_tensor_id gate = decoder_linear(d, h, "mlp.shared_expert_gate", 1, d->c->hidden_size, false);
    ir_tensor_id shared = add_mlp(d, h, "mlp.shared_expert", d->c->shared_ffn_size);
    return add_op(d, "map", layer_name(d, name, "shared_add"), 3, (ir_tensor_id[]){x, shared, gate},
                  (ir_set[]){{.name = "expr", .s = "x0 + x1 * sigmoid(x2)"}, {0}});
}

ir_tensor_id decoder_shared_experts(decoder *d, ir_tensor_id h, ir_tensor_id x)
{
    if (!d->c->shared_ffn_size)
        return x;
    return decoder_add(d, x, add_mlp(d, h, "mlp.shared_experts", d->c->shared_ffn_size),
                       "shared_add");
}

/* Add the layer's weights of all experts as one tensor [E, rows, columns]. */
static ir_tensor_id add_stack(decoder *d, const char *what, int64_t rows, int64_t columns)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s.weight", d->layer, what);
    return add_shaped_weight(d, name, 3, (int64_t[]){d->c->n_experts, rows, columns});
}

/* Likewise the biases of their products, [E, rows]; IR_NONE: there are none. */
static ir_tensor_id add_biases(decoder *d, const char *what, int64_t rows)
{
    char name[NAME_BYTES];
    if (!d->c->expert_bias)
        return IR_NONE;
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s.bias", d->layer, what);
    return add_weight(d, name, 2, d->c->n_experts, rows);
}

/* Output a copy of the ids that stays after the step: on a GPU, ids that tasks hand on are
 * cleared. */
static void add_record(decoder *d, ir_tensor_id ids)
{
    char name[NAME_BYTES];
    ir_tensor_id record = add_op(d, "copy", layer_name(d, name, "experts"), 1, &ids, NULL);
    if (d->status == MPK_OK)
        d->status = ir_add_output(d->cx, d->g, record);
}

/* The experts of each token: ids and weights. */
static void add_route(decoder *d, ir_tensor_id router, bool round, ir_tensor_id *routed)
{
    const model_config *c = d->c;
    char name[NAME_BYTES];
    const ir_set how[] = {{.name = "experts", .i = c->experts_per_token},
                          {.name = "normalize", .i = c->normalize_experts},
                          {.name = "round", .i = round},
                          {.name = "sigmoid", .i = c->expert_sigmoid},
                          {.name = "groups", .i = c->expert_groups ? c->expert_groups : 1},
                          {.name = "kept", .i = c->kept_groups ? c->kept_groups : 1},
                          {.name = "best", .i = c->group_best ? c->group_best : 1},
                          {.name = "factor", .f = c->expert_scale != 0 ? c->expert_scale : 1},
                          {0}};
    ir_tensor_id in[] = {router, IR_NONE};
    if (c->expert_score_bias)
        in[1] = add_layer_weight(d, "mlp.gate.e_score_correction", "bias", 1, c->n_experts, 0);
    if (d->status == MPK_OK)
        d->status = ir_add_op(d->cx, d->g, "route", layer_name(d, name, "route"),
                              c->expert_score_bias ? 2 : 1, in, how, routed);
}

/* The weights of all experts are operands of one operator: which of them a token needs is known
 * only after routing. */
ir_tensor_id decoder_experts(decoder *d, ir_tensor_id h, ir_tensor_id x, bool round)
{
    const model_config *c = d->c;
    char name[NAME_BYTES], activation[16];
    int64_t D = c->hidden_size, F = c->expert_ffn_size;
    ir_tensor_id router = decoder_linear(d, h, "mlp.gate", c->n_experts, D, c->router_bias);
    ir_tensor_id routed[IR_MAX_OUTPUTS] = {IR_NONE, IR_NONE, IR_NONE, IR_NONE};
    add_route(d, router, round, routed);
    if (d->s->counts_experts)
        add_record(d, routed[0]);
    snprintf(activation, sizeof activation, "%.*s", STR_ARG(c->activation));
    ir_tensor_id gate = add_stack(d, "gate_proj", F, D), up = add_stack(d, "up_proj", F, D);
    ir_tensor_id gate_bias = add_biases(d, "gate_proj", F), up_bias = add_biases(d, "up_proj", F);
    h = add_op(
        d, "expert_linear", layer_name(d, name, "experts_up"), c->expert_bias ? 9 : 4,
        (ir_tensor_id[]){h, routed[0], gate, up, IR_NONE, IR_NONE, IR_NONE, gate_bias, up_bias},
        (ir_set[]){{.name = "glu", .s = activation}, {.name = "limit", .f = c->swiglu_limit}, {0}});
    ir_tensor_id down = add_stack(d, "down_proj", D, F), bias = add_biases(d, "down_proj", D);
    const bool apart = c->residual_scale != 0; /* the sum is scaled before x is added */
    ir_tensor_id in[] = {h,         routed[0],           down,    IR_NONE,
                         routed[1], apart ? IR_NONE : x, IR_NONE, bias};
    const uint32_t n = apart ? 5 : 6;
    h = add_op(d, "expert_linear", layer_name(d, name, "experts_down"), c->expert_bias ? 8 : n, in,
               NULL);
    return apart ? decoder_add(d, x, h, "experts_add") : h;
}

/* What attention gives, each entry gated by another product of its input. */
static ir_tensor_id add_gated(decoder *d, ir_tensor_id h, ir_tensor_id gate)
{
    char name[NAME_BYTES];
    return add_op(d, "map", layer_name(d, name, "attention_gated"), 2, (ir_tensor_id[]){h, gate},
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
    const ir_tensor_id gate = c->attention_gate
                                  ? decoder_linear(d, h, "self_attn.out_gate", H * K, D, qkv_bias)
                                  : IR_NONE;
    h = decoder_attention(d, q, k, decoder_heads(d, v, G, "v"));
    if (c->attention_gate)
        h = add_gated(d, h, gate);
    return decoder_linear(d, h, "self_attn.o_proj", D, H * K, out_bias);
}

/* ---- latent attention ---- */

/* Entries first .. first + n - 1 of the last axis of x, as a view. */
static ir_tensor_id add_columns(decoder *d, ir_tensor_id x, int64_t first, int64_t n,
                                const char *name)
{
    char full[NAME_BYTES];
    int64_t starts[IR_MAX_RANK] = {0}, stops[IR_MAX_RANK];
    if (d->status != MPK_OK)
        return IR_NONE;
    const ir_tensor *t = &d->g->tensors.at[x];
    memcpy(stops, t->dims, sizeof stops);
    starts[t->rank - 1] = first;
    stops[t->rank - 1] = first + n;
    return add_op(d, "slice", layer_name(d, full, name), 1, &x,
                  (ir_set[]){{.name = "starts", .ints = starts, .n_ints = t->rank},
                             {.name = "stops", .ints = stops, .n_ints = t->rank},
                             {0}});
}

/* x[T, n * size] as a view [T, n, size]; n = 0: back again, x[T, .., size] as [T, ..]. */
static ir_tensor_id add_shape(decoder *d, ir_tensor_id x, int64_t n, int64_t size, const char *name)
{
    char full[NAME_BYTES];
    int64_t shape[3] = {d->s->n_tokens, n ? n : size, size};
    return add_op(d, "reshape", layer_name(d, full, name), 1, &x,
                  (ir_set[]){{.name = "shape", .ints = shape, .n_ints = n ? 3 : 2}, {0}});
}

/* One tensor after the other along the last axis of [T, n, K]. */
static ir_tensor_id add_joined(decoder *d, ir_tensor_id a, ir_tensor_id b, const char *name)
{
    char full[NAME_BYTES];
    return add_op(d, "concat", layer_name(d, full, name), 2, (ir_tensor_id[]){a, b},
                  (ir_set[]){{.name = "axis", .i = 2}, {0}});
}

/* x[T, H, n_in] times each head's own weight, `what`.weight [H, n_out, n_in]: [T, H, n_out].  To
 * the operator heads are experts, and every token goes to all of them. */
static ir_tensor_id add_head_products(decoder *d, ir_tensor_id x, const char *what, int64_t n_out,
                                      int64_t n_in)
{
    char full[NAME_BYTES], weight[NAME_BYTES];
    snprintf(weight, sizeof weight, "model.layers.%u.%s.weight", d->layer, what);
    ir_tensor_id w = add_shaped_weight(d, weight, 3, (int64_t[]){d->c->n_heads, n_out, n_in});
    return add_op(d, "expert_linear", layer_name(d, full, result_name(what)), 3,
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
    char name[NAME_BYTES];
    ir_tensor_id q = add_latent_queries(d, h), k = add_latent(d, h);
    ir_tensor_id cache = add_op(
        d, "latent_write", layer_name(d, name, "latent_write"), 5,
        (ir_tensor_id[]){k, d->positions, d->slots, d->pages, add_cache(d, "k_cache")}, NULL);
    h = add_op(d, "attention", layer_name(d, name, "attention"), 6,
               (ir_tensor_id[]){q, cache, IR_NONE, d->positions, d->slots, d->pages},
               (ir_set[]){{.name = "scale", .f = model_attention_scale(c)}, {0}});
    h = add_shape(d, h, H, L + c->rope_size, "means");
    h = add_head_products(d, add_columns(d, h, 0, L, "latent_means"), "self_attn.v_b_proj", V, L);
    h = add_shape(d, h, 0, H * V, "values");
    return decoder_linear(d, h, "self_attn.o_proj", c->hidden_size, H * V, c->attention_out_bias);
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

/* The divisors of longrope as the operator's text: those of long contexts if a slot has more pages
 * than the original positions fill, since all keys of a cache must be rotated by the same angles.
 * */
static const char *print_divisors(decoder *d)
{
    const model_config *c = d->c;
    const uint32_t P = d->s->page_tokens, originals = (c->rope_original_positions + P - 1) / P;
    const float *divisors = d->s->max_pages_per_slot > originals ? c->rope_long : c->rope_short;
    text t = {0};
    for (uint32_t i = 0; i < c->rope_size / 2; i++)
        text_print(&t, "%s%.9g", i ? " " : "", (double)divisors[i]);
    const char *copy = text_copy(&t, d->g->arena);
    text_free(&t);
    if (!copy && d->status == MPK_OK)
        d->status = status_fail(d->cx, MPK_ENOMEM, "out of memory for the rope factors");
    return copy;
}

/* Only the attributes of the kind of scaling are set; the others keep the operator's defaults. */
static ir_tensor_id add_rope_table(decoder *d)
{
    const model_config *c = d->c;
    static const char *const names[] = {"default", "linear", "llama3", "yarn", "longrope"};
    ir_set set[IR_MAX_ATTRIBUTES + 1] = {
        {.name = "size", .i = c->rope_size},
        {.name = "plain", .i = model_plain_pairs(c)},
        {.name = "theta", .f = c->rope_theta},
        {.name = "scaling", .s = names[c->rope_scaling]},
    };
    uint32_t n = 4;
    if (c->rope_scaling != MODEL_ROPE_DEFAULT)
        set[n++] = (ir_set){.name = "factor", .f = c->rope_factor};
    if (c->rope_scaling == MODEL_ROPE_LLAMA3) {
        set[n++] = (ir_set){.name = "low_freq_factor", .f = c->rope_low_freq_factor};
        set[n++] = (ir_set){.name = "high_freq_factor", .f = c->rope_high_freq_factor};
        set[n++] = (ir_set){.name = "original_positions", .i = c->rope_original_positions};
    }
    if (c->rope_scaling == MODEL_ROPE_YARN) {
        set[n++] = (ir_set){.name = "beta_fast", .f = c->rope_beta_fast};
        set[n++] = (ir_set){.name = "beta_slow", .f = c->rope_beta_slow};
        set[n++] = (ir_set){.name = "attention_factor", .f = c->rope_attention_factor};
        set[n++] = (ir_set){.name = "mscale", .f = c->rope_mscale};
        set[n++] = (ir_set){.name = "mscale_all_dim", .f = c->rope_mscale_all_dim};
        set[n++] = (ir_set){.name = "original_positions", .i = c->rope_original_positions};
        set[n++] = (ir_set){.name = "truncate", .i = c->rope_truncate};
    }
    if (c->rope_scaling == MODEL_ROPE_LONG) {
        set[n++] = (ir_set){.name = "attention_factor", .f = c->rope_attention_factor};
        set[n++] = (ir_set){.name = "original_positions", .i = c->rope_original_positions};
        set[n++] = (ir_set){.name = "divisors", .s = print_divisors(d)};
    }
    return add_op(d, "rope_table", "rope_table", 1, &d->positions, set);
}

/* The tables of layers whose rotation is another than that of most. */
static void add_other_tables(decoder *d)
{
    const model_config *c = d->c;
    const ir_set size = {.name = "size", .i = c->rope_size},
                 plain = {.name = "plain", .i = model_plain_pairs(c)};
    if (c->local_theta != 0 && c->window)
        d->local_rope =
            add_op(d, "rope_table", "local_rope_table", 1, &d->positions,
                   (ir_set[]){size, plain, {.name = "theta", .f = c->local_theta}, {0}});
    uint64_t any = 0;
    for (uint32_t i = 0; i < MODEL_MAX_LAYERS / 64; i++)
        any |= c->unrotated_layers[i];
    if (any) /* angles of 0: the same operators and bodies as in other layers, and the same bits */
        d->no_rope = add_op(d, "rope_table", "no_rope_table", 1, &d->positions,
                            (ir_set[]){size, plain, {.name = "scaling", .s = "none"}, {0}});
}

/* The numbers of all heads, for each token. */
static void add_head_ids(decoder *d)
{
    const int64_t shape[2] = {d->s->n_tokens, 1};
    ir_tensor_id in[2] = {
        add_op(d, "reshape", "token_column", 1, &d->positions,
               (ir_set[]){{.name = "shape", .ints = shape, .n_ints = 2}, {0}}),
        add_op(d, "iota", "heads", 0, NULL,
               (ir_set[]){{.name = "n", .i = d->c->n_heads}, {.name = "dtype", .s = "i32"}, {0}})};
    d->head_ids = add_op(
        d, "map", "head_ids", 2, in,
        (ir_set[]){{.name = "expr", .s = "x0 * 0 + x1"}, {.name = "dtype", .s = "i32"}, {0}});
}

/* A row for each slot, its masks, and those of drafts after each mask. */
static int64_t rows_of_rules(const model_shape *s)
{
    return (int64_t)s->n_slots * (1 + MODEL_MASKS * (1 + (int64_t)s->n_guesses));
}

/* Add the step inputs of model.h; returns x[T, D], the rows of the embedding that the tokens
 * name. */
static ir_tensor_id add_begin(decoder *d)
{
    const model_shape *s = d->s;
    const int64_t tokens[1] = {s->n_tokens}, rows[1] = {s->n_rows}, four[2] = {s->n_rows, 4};
    const int64_t pages[2] = {s->n_slots, s->max_pages_per_slot};
    d->tokens = add_tensor(d, IR_INPUT, IR_TOKENS, "tokens", IR_I32, 1, tokens);
    d->positions = add_tensor(d, IR_INPUT, IR_TOKENS, "positions", IR_I32, 1, tokens);
    d->slots = add_tensor(d, IR_INPUT, IR_TOKENS, "slots", IR_I32, 1, tokens);
    d->pages = add_tensor(d, IR_INPUT, IR_ALL, "pages", IR_I32, 2, pages);
    d->rows = add_tensor(d, IR_INPUT, IR_ROWS, "rows", IR_I32, 1, rows);
    d->sampling = add_tensor(d, IR_INPUT, IR_ROWS, "sampling", IR_F32, 2, four);
    d->seeds = add_tensor(d, IR_INPUT, IR_ROWS, "seeds", IR_I64, 1, rows);
    d->draws = add_tensor(d, IR_INPUT, IR_ROWS, "draws", IR_I32, 1, rows);
    if (!s->greedy_only) {
        d->asks = add_tensor(d, IR_INPUT, IR_ROWS, "asks", IR_I32, 2, (int64_t[]){s->n_rows, ASKS});
        const uint32_t V = d->c->vocab_size;
        int64_t mask = rules_mask_words(V > s->rule_vocab ? V : s->rule_vocab),
                words = mask > RULES_WORDS ? mask : RULES_WORDS;
        d->rules = add_tensor(d, IR_INPUT, IR_ALL, "rules", IR_I32, 2,
                              (int64_t[]){rows_of_rules(s), words});
        d->history =
            add_tensor(d, IR_INPUT, IR_ALL, "history", IR_I32, 1,
                       (int64_t[]){(int64_t)s->n_slots * s->max_pages_per_slot * s->page_tokens});
    }
    d->embedding =
        add_weight(d, "model.embed_tokens.weight", 2, d->c->vocab_size, d->c->hidden_size);
    const double factor = d->c->embedding_scale != 0 ? d->c->embedding_scale : 1;
    ir_tensor_id x =
        add_op(d, "embedding", "embedding", 2, (ir_tensor_id[]){d->tokens, d->embedding},
               (ir_set[]){{.name = "dtype", .s = ir_dtype_table[s->activation_dtype].name},
                          {.name = "factor", .f = factor},
                          {0}});
    d->rope = add_rope_table(d);
    add_other_tables(d);
    if (d->c->latent_size)
        add_head_ids(d);
    return x;
}

/* Columns of the logits, or of the norm in their place. */
static int64_t end_columns(const decoder *d)
{
    return d->s->no_head ? d->c->hidden_size : d->c->vocab_size;
}

/* Greedy choice in two stages (paper §6.1's tail), with enough parts for every worker of a large
 * GPU. */
static ir_tensor_id add_argmax(decoder *d, ir_tensor_id logits)
{
    ir_tensor_id part[IR_MAX_OUTPUTS] = {IR_NONE, IR_NONE, IR_NONE, IR_NONE};
    int64_t parts = end_columns(d) < 128 ? end_columns(d) : 128;
    if (d->status == MPK_OK)
        d->status = ir_add_op(d->cx, d->g, "argmax_partial", "argmax_partial", 1, &logits,
                              (ir_set[]){{.name = "parts", .i = parts}, {0}}, part);
    return add_op(d, "argmax_reduce", "next", 2, (ir_tensor_id[]){part[0], part[1]}, NULL);
}

/* Draw the token as the request asks; outputs: next, logprobs. */
static mpk_status add_sample(decoder *d, ir_tensor_id logits)
{
    const int64_t n = d->s->n_choices > d->s->n_slots ? d->s->n_choices : d->s->n_slots;
    const int64_t choice_dims[2] = {n, end_columns(d)};
    ir_tensor_id out[IR_MAX_OUTPUTS],
        choice = add_tensor(d, IR_STATE, IR_ALL, "choice", IR_F32, 2, choice_dims);
    TRY(d->status);
    ir_tensor_id in[] = {logits,  d->sampling, d->seeds,   d->draws,
                         d->asks, d->rules,    d->history, choice};
    TRY(ir_add_op_as(d->cx, d->g, op_find(STR("sample")),
                     (str[]){STR("next"), STR("chosen"), STR("logprobs")}, sizeof in / sizeof *in,
                     in, NULL, out));
    TRY(ir_add_output(d->cx, d->g, out[0]));
    return ir_add_output(d->cx, d->g, out[2]);
}

/* Does anything follow the head's product, but a cast? */
static bool bends_logits(const decoder *d)
{
    return !d->s->no_head && (d->c->logits_scale != 0 || d->c->logits_cap != 0);
}

/* Factor and cap of the logits f32[R, V]; the last result is named "logits". */
static ir_tensor_id bend_logits(decoder *d, ir_tensor_id x)
{
    const model_config *c = d->c;
    if (c->logits_scale != 0)
        x = add_map(d, c->logits_cap != 0 ? "logits_scaled" : "logits", 1, &x, "x0 * ",
                    c->logits_scale);
    if (c->logits_cap == 0)
        return x;
    char expr[NAME_BYTES];
    snprintf(expr, sizeof expr, "tanh(x0 / %.17g) * %.17g", c->logits_cap, c->logits_cap);
    return add_op(d, "map", "logits", 1, &x, (ir_set[]){{.name = "expr", .s = expr}, {0}});
}

/* In f32 the product is the result itself; otherwise a cast follows, so the name `logits` is
 * left for that. */
static ir_tensor_id add_head(decoder *d, ir_tensor_id x)
{
    const model_config *c = d->c;
    ir_tensor_id head = c->tied_embeddings
                            ? d->embedding
                            : add_weight(d, "lm_head.weight", 2, c->vocab_size, c->hidden_size);
    bool last = d->s->activation_dtype == IR_F32 && !bends_logits(d);
    const char *name = last ? "logits" : "lm_head";
    return add_op(d, "linear", name, 2, (ir_tensor_id[]){x, head}, NULL);
}

/* x[T, D] -> the wanted rows [R, D] -> logits f32[R, V] -> next i32[R].  Rows are chosen before
 * the norm: in a chunk of a prompt most tokens need no logits, and the head is the largest
 * product. */
static mpk_status add_end(decoder *d, ir_tensor_id x)
{
    const model_config *c = d->c;
    const model_shape *s = d->s;
    bool f32 = s->activation_dtype == IR_F32;
    if (!(s->greedy_only && s->n_rows == s->n_tokens))
        x = add_op(d, "gather", "last", 2, (ir_tensor_id[]){x, d->rows}, NULL);
    x = add_norm(d, x, "model.norm", s->no_head && f32 ? "logits" : "norm", c->hidden_size);
    ir_tensor_id logits = s->no_head ? x : add_head(d, x);
    if (!f32)
        logits = add_op(d, "cast", bends_logits(d) ? "lm_head_f32" : "logits", 1, &logits,
                        (ir_set[]){{.name = "dtype", .s = "f32"}, {0}});
    if (bends_logits(d))
        logits = bend_logits(d, logits);
    TRY(d->status);
    TRY(ir_add_output(d->cx, d->g, logits));
    if (!s->greedy_only)
        return add_sample(d, logits);
    ir_tensor_id next = add_argmax(d, logits);
    TRY(d->status);
    return ir_add_output(d->cx, d->g, next);
}

/* Embedding, layers, final norm and head; `layer` is the family's. */
mpk_status decoder_build(mpk_context *cx, const model_config *c, const model_shape *s,
                         const model_weights *w, ir_graph *g,
                         ir_tensor_id (*layer)(decoder *d, ir_tensor_id x))
{
    decoder d = {.cx = cx, .c = c, .s = s, .w = w, .g = g};
    ir_tensor_id x = add_begin(&d);
    for (d.layer = 0; d.layer < c->n_layers && d.status == MPK_OK; d.layer++)
        x = layer(&d, x);
    return add_end(&d, x);
}
