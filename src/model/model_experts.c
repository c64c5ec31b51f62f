/* model_experts.c - mixtures of experts, in their plain operators (model_decoder.h). */
#include <stdio.h>

#include "model/model_parts.h"

/* Add the layer's weights of all experts as one tensor [E, rows, columns]. */
static ir_tensor_id add_stack(decoder *d, const char *what, int64_t rows, int64_t columns)
{
    char name[DECODER_NAME_BYTES];
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s.weight", d->layer, what);
    return decoder_shaped_weight(d, name, 3, (int64_t[]){d->c->n_experts, rows, columns});
}

/* Likewise the biases of their products, [E, rows]; IR_NONE: there are none. */
static ir_tensor_id add_biases(decoder *d, const char *what, int64_t rows)
{
    char name[DECODER_NAME_BYTES];
    if (!d->c->expert_bias)
        return IR_NONE;
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s.bias", d->layer, what);
    return decoder_weight(d, name, 2, d->c->n_experts, rows);
}

/* Output a copy of the ids that stays after the step: on a GPU, ids that tasks hand on are
 * cleared. */
static void add_record(decoder *d, ir_tensor_id ids)
{
    char name[DECODER_NAME_BYTES];
    ir_tensor_id record = decoder_op(d, "copy", decoder_name(d, name, "experts"), 1, &ids, NULL);
    if (d->status == MPK_OK)
        d->status = ir_add_output(d->cx, d->g, record);
}

/* The experts of each token: ids and weights. */
static void add_route(decoder *d, ir_tensor_id router, bool round, ir_tensor_id *routed)
{
    const model_config *c = d->c;
    char name[DECODER_NAME_BYTES];
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
        in[1] = decoder_layer_weight(d, "mlp.gate.e_score_correction", "bias", 1, c->n_experts, 0);
    if (d->status == MPK_OK)
        d->status = ir_add_op(d->cx, d->g, "route", decoder_name(d, name, "route"),
                              c->expert_score_bias ? 2 : 1, in, how, routed);
}

/* h[T, D] times each token's share, [T, 1]; results of experts then have the weight 1. */
static ir_tensor_id scale_inputs(decoder *d, ir_tensor_id h, ir_tensor_id *shares)
{
    char name[DECODER_NAME_BYTES];
    h = decoder_op(d, "map", decoder_name(d, name, "scaled"), 2, (ir_tensor_id[]){h, *shares},
                   (ir_set[]){{.name = "expr", .s = "x0 * x1"}, {0}});
    *shares = decoder_op(d, "map", decoder_name(d, name, "ones"), 1, shares,
                         (ir_set[]){{.name = "expr", .s = "x0 * 0 + 1"}, {0}});
    return h;
}

/* The weights of all experts are operands of one operator: which of them a token needs is known
 * only after routing. */
ir_tensor_id decoder_experts(decoder *d, ir_tensor_id h, ir_tensor_id x, bool round)
{
    const model_config *c = d->c;
    char name[DECODER_NAME_BYTES], activation[16];
    int64_t D = c->hidden_size, F = c->expert_ffn_size;
    ir_tensor_id router = decoder_linear(d, h, "mlp.gate", c->n_experts, D, c->router_bias);
    ir_tensor_id routed[IR_MAX_OUTPUTS] = {IR_NONE, IR_NONE, IR_NONE, IR_NONE};
    add_route(d, router, round, routed);
    if (d->s->counts_experts)
        add_record(d, routed[0]);
    if (c->experts_scaled)
        h = scale_inputs(d, h, &routed[1]);
    snprintf(activation, sizeof activation, "%.*s", STR_ARG(c->activation));
    ir_tensor_id gate = add_stack(d, "gate_proj", F, D), up = add_stack(d, "up_proj", F, D);
    ir_tensor_id gate_bias = add_biases(d, "gate_proj", F), up_bias = add_biases(d, "up_proj", F);
    h = decoder_op(
        d, "expert_linear", decoder_name(d, name, "experts_up"), c->expert_bias ? 9 : 4,
        (ir_tensor_id[]){h, routed[0], gate, up, IR_NONE, IR_NONE, IR_NONE, gate_bias, up_bias},
        (ir_set[]){{.name = "glu", .s = activation}, {.name = "limit", .f = c->swiglu_limit}, {0}});
    ir_tensor_id down = add_stack(d, "down_proj", D, F), bias = add_biases(d, "down_proj", D);
    const bool apart = c->residual_scale != 0; /* the sum is scaled before x is added */
    ir_tensor_id in[] = {h,         routed[0],           down,    IR_NONE,
                         routed[1], apart ? IR_NONE : x, IR_NONE, bias};
    const uint32_t n = apart ? 5 : 6;
    h = decoder_op(d, "expert_linear", decoder_name(d, name, "experts_down"),
                   c->expert_bias ? 8 : n, in, NULL);
    return apart ? decoder_add(d, x, h, "experts_add") : h;
}

const char *const decoder_routed_names[][2] = {{"exp_probs_b", "mlp.gate.e_score_correction"},
                                               {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
                                               {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
                                               {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
                                               {NULL, NULL}};

ir_tensor_id decoder_qwen3_expert_layer(decoder *d, ir_tensor_id x)
{
    x = decoder_attend(d, x, d->c->attention_bias, d->c->attention_out_bias, true);
    ir_tensor_id h = decoder_norm(d, x, "post_attention_layernorm");
    if (model_has_experts(d->c, d->layer))
        return decoder_experts(d, h, x, true);
    return decoder_add(d, x, decoder_mlp(d, h), "mlp_add");
}
