/* body_sum_pairs.c - sums over the experts of a token: bf16 by rows
 * (device/task/sum_pairs.cuh), and any dtype and strides.
 *
 * Of 8 experts a token, 2,048 columns and a residual: sum_pairs(t, 8, 2048, 2, 3); the last two are
 * places of operands in the task. */
#include "gen/body_print.h"

enum { X, SCALE, RESIDUAL };

/* x is [tokens, experts of a token, columns]; its size is bounded, as offsets have 32 bits. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *y = gen_output(c, 0);
    return gen_is_dense(gen_input(c, X), IR_BF16) &&
           gen_is_dense(gen_input(c, RESIDUAL), IR_BF16) && gen_is_dense(y, IR_BF16) &&
           gen_is_dense(gen_input(c, SCALE), IR_F32) && y->dims[1] % 8 == 0 &&
           ir_elements(gen_input(c, X)) < INT32_MAX;
}

/* Experts of a token, columns, and where the residual and the result lie in the task. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    text_print(
        out,
        "MPK_FN void body_%u(const mpk_task &t)\n{\n    sum_pairs(t, %lld, %lld, %d, %u);\n}\n", n,
        (long long)gen_input(c, X)->dims[1], (long long)gen_output(c, 0)->dims[1],
        gen_input(c, RESIDUAL) ? RESIDUAL : -1, gen_operand_of_output(c->op, 0));
    return MPK_OK;
}

GEN_PRINTER(any, "sum_pairs_any", "")

const gen_body gen_body_sum_pairs_any = GEN_BODY("sum_pairs", "sum_pairs_any", print_any, NULL);
const gen_body gen_body_sum_pairs = {
    .op = "sum_pairs", .name = "sum_pairs", .rank = 10, .accepts = accepts, .print = print};
