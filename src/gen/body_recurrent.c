/* body_recurrent.c - bodies of operators whose tokens leave state for those after them, in any
 * shape (device/task/recurrent.cuh).  An instance of causal_conv with four weights a column, after
 * its head:
 *
 *   causal_conv_run<4>(t, in_x, in_weight, in_positions, in_slots, in_state, out_y, true);
 *
 * and one of delta_rule:
 *
 *   static constexpr delta_operands o = {in_q, in_k, in_v, in_a, in_b, in_a_log, in_dt_bias,
 *                                        in_positions, in_slots, in_state, out_y, 1e-06f, false};
 *   delta_rule_run(t, o);
 *
 * The number of slots is in the views, so programs for other numbers of requests have other code.
 */
#include "gen/body_print.h"
#include "gen/map_print.h"

/* Inputs of delta_rule, by index. */
enum { STATE = 9 };

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

static mpk_status print_delta_rule(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    text_print(out,
               "    static constexpr delta_operands o = {in_q, in_k, in_v, in_a, in_b, in_a_log, "
               "in_dt_bias, in_positions, in_slots, in_state, out_y, ");
    gen_print_float((float)c->op->attributes[0].f, out);
    text_print(out, ", %s};\n    delta_rule_run(t, o);\n}\n",
               c->op->attributes[1].i ? "true" : "false");
    return MPK_OK;
}

/* A head of q and of k, after what the reductions use. */
static uint32_t scratch_of_delta(const gen_call *c)
{
    return GEN_REDUCE_BYTES + 2 * (uint32_t)gen_input(c, STATE)->dims[2] * sizeof(float);
}

const gen_body gen_body_causal_conv = GEN_BODY("causal_conv", "recurrent", print_causal_conv, NULL);
const gen_body gen_body_delta_rule =
    GEN_BODY("delta_rule", "recurrent", print_delta_rule, scratch_of_delta);
