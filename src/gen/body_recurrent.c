/* body_recurrent.c - bodies of operators whose tokens leave state for those after them
 * (device/task/recurrent.cuh, delta_warp.cuh).  An instance of causal_conv with four weights a
 * column, after its head:
 *
 *   causal_conv_run<4>(t, in_x, in_weight, in_positions, in_slots, in_state, out_y, true);
 *
 * and one of delta_rule whose keys have 128 entries:
 *
 *   static constexpr delta_operands o = {in_q, in_k, in_v, in_a, in_b, in_a_log, in_dt_bias,
 *                                        in_positions, in_slots, in_state, out_y, 1e-06f, false};
 *   delta_warp_run<2>(t, o);
 *
 * The number of slots is in the views, so programs for other numbers of requests have other code.
 */
#include <stdio.h>

#include "gen/body_print.h"
#include "gen/map_print.h"

#include "shape/rows_shape.h"

/* Inputs of delta_rule, by index. */
enum { Q, KEYS, STATE = 9 };

static mpk_status print_causal_conv(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    text_print(out,
               "    causal_conv_run<%d>(t, in_x, in_weight, in_positions, in_slots, in_state, "
               "out_y, %s);\n}\n",
               (int)gen_input(c, 1)->dims[1],
               str_is(c->op->attributes[0].s, "silu") ? "true" : "false");
    return MPK_OK;
}

/* The operands, then a call of `function`. */
static void print_delta(const gen_call *c, uint32_t n, const char *function, text *out)
{
    gen_print_head(c, n, out);
    text_print(out,
               "    static constexpr delta_operands o = {in_q, in_k, in_v, in_a, in_b, in_a_log, "
               "in_dt_bias, in_positions, in_slots, in_state, out_y, ");
    gen_print_float((float)c->op->attributes[0].f, out);
    text_print(out, ", %s};\n    %s(t, o);\n}\n", c->op->attributes[1].i ? "true" : "false",
               function);
}

static mpk_status print_delta_rule(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_delta(c, n, "delta_rule_run", out);
    return MPK_OK;
}

/* A head of q and of k, after what the reductions use. */
static uint32_t scratch_of_delta(const gen_call *c)
{
    return GEN_REDUCE_BYTES + 2 * (uint32_t)gen_input(c, STATE)->dims[2] * sizeof(float);
}

/* Pieces that a lane of eight has of a row. */
static int pieces_of(const gen_call *c)
{
    const int64_t lanes = 8, n = gen_input(c, STATE)->dims[2];
    return (int)((n + lanes * ROWS_PIECE - 1) / (lanes * ROWS_PIECE));
}

/* Rows of q and k whose heads are pieces of eight neighbours. */
static bool accepts_warp(const gen_call *c)
{
    bool fit = gen_accepts_plain(c) && gen_input(c, STATE)->dims[2] % ROWS_PIECE == 0;
    for (uint32_t i = Q; i <= KEYS; i++) {
        const ir_tensor *x = gen_input(c, i);
        fit = fit && gen_is_short_float(x) && gen_is_whole_of_eights(x, x->dims[1]);
    }
    return fit;
}

static mpk_status print_delta_warp(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    char function[32];
    (void)cx;
    snprintf(function, sizeof function, "delta_warp_run<%d>", pieces_of(c));
    print_delta(c, n, function, out);
    return MPK_OK;
}

const gen_body gen_body_causal_conv = GEN_BODY("causal_conv", "recurrent", print_causal_conv, NULL);
const gen_body gen_body_delta_rule =
    GEN_BODY("delta_rule", "recurrent", print_delta_rule, scratch_of_delta);
const gen_body gen_body_delta_warp = {.op = "delta_rule",
                                      .name = "delta_warp",
                                      .rank = 1,
                                      .accepts = accepts_warp,
                                      .print = print_delta_warp};
