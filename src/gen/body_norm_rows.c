/* body_norm_rows.c - rms_norm of the rows of many tokens (device/task/norm_rows.cuh). */
#include "gen/body_print.h"

enum { X, WEIGHT };
enum { FEWEST_TOKENS = 17 };

static bool accepts(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X);
    return x->rank == 2 && x->dims[0] >= FEWEST_TOKENS && x->dims[1] % 8 == 0 && x->dims[1] < INT32_MAX / 2 &&
           gen_is_dense(x, IR_BF16) && gen_is_dense(gen_output(c, 0), IR_BF16) && gen_is_vector(gen_input(c, WEIGHT));
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx, (void)n;
    const ir_tensor *weight = gen_input(c, WEIGHT);
    text_print(out, "{%lld, %d, %u, ", (long long)gen_input(c, X)->dims[1], weight ? weight->dtype == IR_F32 : -1,
               gen_operand_of_output(c->op, 0));
    gen_print_float((float)c->op->attributes[0].f, out);
    text_print(out, "}");
    return MPK_OK;
}

static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine all = {"norm_shape", "norm_rows", NULL};
    (void)c;
    return &all;
}

const gen_body gen_body_norm_rows = {.op = "rms_norm",
                                     .name = "norm_rows",
                                     .needs = 0,
                                     .rank = 10,
                                     .many = true,
                                     .accepts = accepts,
                                     .print = print,
                                     .routine = routine};
