/* body_conv_runs.c - short convolutions of columns over the tokens of a step, by tokens and columns
 * (device/task/conv_runs.cuh).
 *
 * For 16-bit rows of whole eights, and up to CONV_RUNS_MOST_WEIGHTS weights a column, with whose
 * rows a thread has enough registers; others, and steps of one or two tokens, which are faster so,
 * have the generic body (body_recurrent.c).  An instance is a function, the same in graphs of any
 * number of tokens; of 2,048 columns of rows of 8,192, for 16 slots:
 *
 *   static constexpr conv_runs_shape shape = {8192, 2048, 5, 2048, 16, 1};
 *   conv_runs<MPK_BF16, 4>(t, shape);
 *
 * (each number with its field's name as a comment before it).  It is no routine: the worker has the
 * code of those of this unit within its own function, which then saves as many registers as this
 * body needs, around every task of any operator: 0.6 us each, measured. */
#include "gen/body_print.h"
#include "gen/map_print.h"

#include "shape/conv_runs_shape.h"

/* Rows of eights of this dtype, which are less than 2^31 bytes apart. */
static bool has_rows(const ir_tensor *t, ir_dtype dtype)
{
    return t->dtype == dtype && gen_is_whole_of_eights(t, t->dims[1]) && t->stride[0] >= 0 &&
           t->stride[0] <= INT32_MAX / 2;
}

enum { FEW_TOKENS = 2 };

static bool accepts(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, CONV_RUNS_X);
    return x->dims[0] > FEW_TOKENS && (x->dtype == IR_BF16 || x->dtype == IR_F16) &&
           x->dims[0] <= INT32_MAX / 2 &&
           gen_input(c, CONV_RUNS_WEIGHT)->dims[1] <= CONV_RUNS_MOST_WEIGHTS &&
           has_rows(x, x->dtype) && has_rows(gen_output(c, 0), x->dtype) &&
           gen_is_dense(gen_input(c, CONV_RUNS_WEIGHT), x->dtype) &&
           gen_is_dense(gen_input(c, CONV_RUNS_POSITIONS), IR_I32) &&
           gen_is_dense(gen_input(c, CONV_RUNS_SLOTS), IR_I32) &&
           gen_is_dense(gen_input(c, CONV_RUNS_STATE), IR_F32) &&
           gen_input(c, CONV_RUNS_STATE)->dims[0] <= INT32_MAX;
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const ir_tensor *state = gen_input(c, CONV_RUNS_STATE), *x = gen_input(c, CONV_RUNS_X);
    (void)cx;
    const conv_runs_shape s = {
        .x_stride = (int)x->stride[0],
        .y_stride = (int)gen_output(c, 0)->stride[0],
        .y = (int)gen_operand_of_output(c->op, 0),
        .columns = (int)state->dims[2],
        .slots = (int)state->dims[0],
        .silu = str_is(c->op->attributes[0].s, "silu"),
    };
#define PRINT_INT(name) gen_print_field(#name, &s.name, 1, out);
    text_print(
        out,
        "MPK_FN void body_%u(const mpk_task &t)\n{\n    static constexpr conv_runs_shape shape "
        "= {",
        n);
    CONV_RUNS_SHAPE_FIELDS(PRINT_INT)
    text_print(out, "};\n    conv_runs<%s, %d>(t, shape);\n}\n", gen_dtype_name(x->dtype),
               (int)gen_input(c, CONV_RUNS_WEIGHT)->dims[1]);
    return MPK_OK;
}

const gen_body gen_body_conv_runs = {
    .op = "causal_conv", .name = "conv_runs", .rank = 10, .accepts = accepts, .print = print};
