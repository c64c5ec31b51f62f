/* body_rows.c - generic bodies of operators that reduce along axes (device/task/rows.cuh), and of
 * batch_matmul (matmul.cuh).
 *
 * GEN_PRINTER makes the printers that need the head and a call with attributes alone; "d0" is
 * attribute 0 as a double:
 *
 *   rms_norm_run(t, in_x, in_weight, in_residual, in_gate, out_y, 1.0000000000000001e-05); */
#include "gen/body_print.h"

GEN_PRINTER(rms_norm, "rms_norm_run", "d0")
GEN_PRINTER(rms_norm_parts, "rms_norm_parts_run", "d0")
GEN_PRINTER(layer_norm, "layer_norm_run", "d0")
GEN_PRINTER(argmax, "argmax_run", "")
GEN_PRINTER(argmax_partial, "argmax_partial_run", "i0")
GEN_PRINTER(argmax_reduce, "argmax_reduce_run", "")
GEN_PRINTER(batch_matmul, "batch_matmul_run", "b0")

/* softmax and its logarithm are one function of the device, told apart by its last argument. */
static void print_along_axis(const gen_call *c, uint32_t n, bool logarithm, text *out)
{
    const int64_t given = c->op->attributes[0].i; /* from the end, if it is negative */
    const int64_t axis = given < 0 ? given + gen_input(c, 0)->rank : given;
    gen_print_head(c, n, out);
    gen_print_call(c, "softmax_run", out);
    text_print(out, ", %lld, %s);\n}\n", (long long)axis, str_bool(logarithm));
}

static mpk_status print_softmax(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_along_axis(c, n, false, out);
    return MPK_OK;
}

static mpk_status print_log_softmax(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_along_axis(c, n, true, out);
    return MPK_OK;
}

const gen_body gen_body_rms_norm = GEN_BODY("rms_norm", "rows", print_rms_norm, gen_scratch_reduce);
const gen_body gen_body_rms_norm_parts =
    GEN_BODY("rms_norm_parts", "rows", print_rms_norm_parts, gen_scratch_reduce);
const gen_body gen_body_layer_norm =
    GEN_BODY("layer_norm", "rows", print_layer_norm, gen_scratch_reduce);
const gen_body gen_body_softmax = GEN_BODY("softmax", "rows", print_softmax, gen_scratch_reduce);
const gen_body gen_body_log_softmax =
    GEN_BODY("log_softmax", "rows", print_log_softmax, gen_scratch_reduce);
const gen_body gen_body_argmax = GEN_BODY("argmax", "rows", print_argmax, gen_scratch_reduce);
const gen_body gen_body_argmax_partial =
    GEN_BODY("argmax_partial", "rows", print_argmax_partial, gen_scratch_reduce);
const gen_body gen_body_argmax_reduce =
    GEN_BODY("argmax_reduce", "rows", print_argmax_reduce, gen_scratch_reduce);
const gen_body gen_body_batch_matmul = GEN_BODY("batch_matmul", "matmul", print_batch_matmul, NULL);
