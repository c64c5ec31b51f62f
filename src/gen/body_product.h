/* body_product.h - what the records of streamed products share: linear and logits, of few tokens
 * (body_linear_stream.c), of some more (body_linear_team.c) and of many (body_linear_tile.c, and
 * body_linear_blocks.c of weights in blocks).  All pack weights in the same way, so the graphs of a
 * program share them. */
#ifndef GEN_BODY_PRODUCT_H
#define GEN_BODY_PRODUCT_H

#include "gen/body_print.h"
#include "gen/packed_form.h"
#include "rt/rt_lane.h"
#include "shape/linear_tile_shape.h"

/* Operands and attributes of linear, of which sum_linear has those up to NORM and LINEAR_GLU; of
 * logits.  TERM: of sum_linear, the first term after x. */
enum {
    X,
    W0,
    B0 = 4,
    NORM = 7,
    RESIDUAL,
    NORM_BIAS,
    TERM = STREAM_FIRST_TERM,
    LINEAR_EPS = 0,
    LINEAR_GLU,
    LINEAR_ACT = 3,
    LINEAR_FACTOR,
    LINEAR_CENTRED
};
enum { L_X, L_W, L_NORM, L_ROWS, LOGITS_EPS = 0, LOGITS_FACTOR, LOGITS_CAP };

static inline bool is_logits(const gen_call *c)
{
    return strcmp(c->op->def->name, "logits") == 0;
}

/* Is x the sum of terms, which the product adds itself? */
static inline bool is_of_terms(const gen_call *c)
{
    return strcmp(c->op->def->name, "sum_linear") == 0;
}

static inline bool is_linear(const gen_call *c)
{
    return strcmp(c->op->def->name, "linear") == 0;
}

/* Which gate multiplies; empty: none. */
static inline str glu_of(const gen_call *c)
{
    return is_logits(c) ? (str){0} : c->op->attributes[LINEAR_GLU].s;
}

static inline bool is_gated(const gen_call *c)
{
    return glu_of(c).n;
}

/* An activation of what is not gated. */
static inline str act_of(const gen_call *c)
{
    return is_linear(c) ? c->op->attributes[LINEAR_ACT].s : (str){0};
}

/* An input that linear has and logits has not: NULL if it is absent, and of logits; of sum_linear
 * too where terms of x are in its place. */
static inline const ir_tensor *linear_input(const gen_call *c, uint32_t i)
{
    return is_logits(c) || (is_of_terms(c) && i >= TERM) ? NULL : gen_input(c, i);
}

static inline bool has_norm(const gen_call *c)
{
    return gen_input(c, is_logits(c) ? L_NORM : NORM);
}

/* Is the norm a layer_norm?  Of those that stream weights, bodies for many tokens alone take it. */
static inline bool is_centred(const gen_call *c)
{
    return is_linear(c) && c->op->attributes[LINEAR_CENTRED].i;
}

/* Of the sums. */
static inline float factor_of(const gen_call *c)
{
    return is_linear(c) ? (float)c->op->attributes[LINEAR_FACTOR].f : 1;
}

/* What shapes have as eps: that of the norm, or without one the factor of the sums. */
static inline float eps_or_factor(const gen_call *c)
{
    return has_norm(c) ? (float)c->op->attributes[is_logits(c) ? LOGITS_EPS : LINEAR_EPS].f
                       : factor_of(c);
}

/* The cap of logits, 0: none, and their rate (device/task/peaks.cuh): a factor, or with a cap 2
 * log2(e) / cap times that factor. */
static inline float cap_of(const gen_call *c)
{
    return is_logits(c) ? (float)c->op->attributes[LOGITS_CAP].f : 0;
}

static inline float rate_of(const gen_call *c)
{
    const double factor = is_logits(c) ? c->op->attributes[LOGITS_FACTOR].f : 1, cap = cap_of(c);
    return (float)(cap > 0 ? factor * 2 * 1.4426950408889634 / cap : factor);
}

/* The bit of MPK_FORMS that says that there is one of these. */
static inline uint64_t form_of_bend(const gen_call *c)
{
    return cap_of(c) > 0 || rate_of(c) != 1 ? UINT64_C(1) << TILE_FORM_BEND : 0;
}

/* The input that names the rows of x that logits are of; -1: each row of x has its own. */
static inline int gathered_rows(const gen_call *c)
{
    return is_logits(c) && gen_input(c, L_ROWS) ? L_ROWS : -1;
}

/* Are all weights of 16 bits and dense? */
static inline bool takes_weights(const gen_call *c)
{
    bool all = true;
    for (uint32_t i = 0; i < (is_logits(c) ? 1u : 3u); i++)
        all = all && gen_is_streamed(gen_input(c, W0 + i), c->halves);
    return all;
}

/* Do all operands but x and the weights have dtypes and strides that the streamed products take? */
static inline bool takes_others(const gen_call *c)
{
    const ir_tensor *y = gen_output(c, 0);
    if (is_logits(c))
        return gen_is_vector(gen_input(c, L_NORM), c->halves) && gen_is_dense(y, IR_F32);
    for (uint32_t i = 0; i < 3; i++)
        if (!gen_is_vector(gen_input(c, B0 + i), c->halves))
            return false;
    return gen_is_vector(gen_input(c, NORM), c->halves) &&
           gen_is_vector(linear_input(c, NORM_BIAS), c->halves) &&
           gen_is_dense(linear_input(c, RESIDUAL), c->halves) && gen_is_dense(y, c->halves) &&
           !(is_gated(c) && linear_input(c, RESIDUAL)) && !(has_norm(c) && factor_of(c) != 1);
}

/* The same of the weights too. */
static inline bool takes_operands(const gen_call *c)
{
    return takes_weights(c) && takes_others(c);
}

/* Rows of the result that a step may have. */
static inline int64_t rows_of_step(const gen_call *c)
{
    return gen_output(c, 0)->dims[0];
}

/* Rows of x or of the result, whichever are more: those of logits may be gathered from more tokens,
 * and a body must hold all of x. */
static inline int64_t most_tokens(const gen_call *c)
{
    const int64_t n = gen_input(c, X)->dims[0];
    return n > rows_of_step(c) ? n : rows_of_step(c);
}

static inline int64_t columns_of(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X);
    return x->dims[x->rank - 1];
}

/* Do products of few tokens apply the activation of the result, if there is one?  Those that are
 * also gates; calls of more rows run block programs, or the body for many rows. */
static inline bool takes_act(const gen_call *c)
{
    const str act = act_of(c);
    const bool few = gen_output(c, 0)->live != IR_ALL || rows_of_step(c) <= STREAM_MOST_TOKENS;
    return !act.n ||
           (few && (str_is(act, "silu") || str_is(act, "gelu") || str_is(act, "gelu_tanh")));
}

/* Of x in registers, whatever the number of tokens, but for the weights.  Rows of whole 16 bytes
 * let a lane load 8 columns at once. */
static inline bool is_product_of_streams(const gen_call *c)
{
    return gen_is_dense(gen_input(c, X), c->halves) && columns_of(c) % 8 == 0 &&
           c->op->n_in + c->op->n_out <= RT_PACKED && takes_act(c) && takes_others(c) &&
           !is_centred(c);
}

/* The same with weights of 16 bits through the ring. */
static inline bool is_streamed_product(const gen_call *c)
{
    return is_product_of_streams(c) && takes_weights(c);
}

/* The form of weights that stay in the blocks of their file (rt/rt_blocks.h), and what is taken off
 * their integers; RT_BLOCKS_NONE: they do not. */
static inline uint32_t form_of(const gen_call *c, int *zero)
{
    const uint32_t form = gen_form_of_weights(c, W0, is_logits(c) ? 1 : 3, zero);
    return form == RT_BLOCKS_MX4 ? (uint32_t)RT_BLOCKS_NONE : form; /* of experts alone */
}

/* Weights in blocks: dense, so that a row's blocks follow each other, and x in bf16, in which their
 * integers are multiplied. The norm's weight is read as it is, 16 bytes at a time. */
static inline bool takes_blocks(const gen_call *c)
{
    const ir_tensor *norm = gen_input(c, is_logits(c) ? L_NORM : NORM);
    int zero;
    bool dense = form_of(c, &zero) != RT_BLOCKS_NONE && c->halves == IR_BF16;
    for (uint32_t i = 0; dense && i < (is_logits(c) ? 1u : 3u); i++) {
        const ir_tensor *w = gen_input(c, W0 + i);
        dense = !w || (w->kind == IR_CONST && w->stride[1] == 1 && w->stride[0] == w->dims[1]);
    }
    return dense && (!norm || gen_is_dense(norm, norm->dtype)) && is_product_of_streams(c);
}

/* Is something added to the columns of the result?  What the bias of a layer_norm adds to a column
 * is packed with the weights (gen_pack). */
static inline bool has_bias(const gen_call *c)
{
    return is_centred(c) || linear_input(c, B0) || linear_input(c, B0 + 1) ||
           linear_input(c, B0 + 2);
}

/* What is done with the sums: peaks, pairs of gate and up, or none of these. */
static inline int end_of(const gen_call *c)
{
    if (is_logits(c))
        return TILE_END_LOGITS;
    return is_gated(c) ? TILE_END_PAIRS : TILE_END_PLAIN;
}

/* Up to TEAM_TWO_TOKENS always; beyond that only where one side of the weight is short, since
 * four teams read shared memory four times as often as one, and not in calls: a worker reads all of
 * x for a few columns of y, where tasks that share a tile by boxes read a part of both. */
static inline bool is_for_teams(const gen_call *c)
{
    const int64_t n = most_tokens(c), rows = gen_output(c, 0)->dims[1], columns = columns_of(c);
    if (n <= STREAM_MOST_TOKENS || n > TEAM_MOST_TOKENS)
        return false;
    return n <= TEAM_TWO_TOKENS || (gen_output(c, 0)->live != IR_ALL && !is_logits(c) &&
                                    (rows < columns ? rows : columns) <= TEAM_MOST_SIDE);
}

/* What surrounds a product of many tokens, as the last fields of its shape: "TILE_NORM_RMS, 1e-6f,
 * ACTIVATE_SILU, ACTIVATE_NONE, x, y, residual, {biases}, {their rows}, {their dtypes}, gathered,
 * tokens".  Operands are numbers in the task, -1 where absent; a dtype is 1 for f32 and 0 for
 * bf16. */
static inline void print_ends(const gen_call *c, text *out)
{
    int bias[3];
    long long rows[3];
    for (uint32_t i = 0; i < 3; i++) {
        const ir_tensor *w = linear_input(c, W0 + i);
        bias[i] = linear_input(c, B0 + i) ? (int)(B0 + i) : -1;
        rows[i] = w ? (long long)w->dims[0] : 0;
    }
    static const char *const norms[] = {"NONE", "RMS", "LAYER"};
    text_print(out, "TILE_NORM_%s, ", norms[has_norm(c) + is_centred(c)]);
    gen_print_float(eps_or_factor(c), out);
    text_print(out, ", ACTIVATE_%s, ACTIVATE_%s, %d, %u, %d, {", gen_glu_name(glu_of(c)),
               gen_glu_name(act_of(c)), X, gen_operand_of_output(c->op, 0),
               linear_input(c, RESIDUAL) ? RESIDUAL : -1);
    text_print(out, "%d, %d, %d}, {%lld, %lld, %lld}, {", bias[0], bias[1], bias[2], rows[0],
               rows[1], rows[2]);
    for (uint32_t i = 0; i < 3; i++)
        text_print(out, "%s%d", i ? ", " : "",
                   bias[i] >= 0 && gen_input(c, B0 + i)->dtype == IR_F32);
    text_print(out, "}, %d, %lld", gathered_rows(c),
               is_logits(c) ? (long long)gen_input(c, L_X)->dims[0] : 0ll);
}

#endif
