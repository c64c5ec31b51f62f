/* mul.c - the product, element by element, with numpy broadcasting.  a, b of one dtype -> the
 * broadcast shape; integers wrap around.
 *
 *   a [7, 320], b [320] -> [7, 320]
 *
 * The arithmetic is that of the dtype: fp32 for f32, f16 and bf16 (rounded once, when stored),
 * fp64 for f64.  Any cut of any axis gives the same bits.  Cost: one operation and three memory
 * accesses an element.
 */
#include "op/elementwise.h"
#include "op/fill.h"
#include "op/runs.h"

static float in_f32(float a, float b)
{
    return a * b;
}
static double in_f64(double a, double b)
{
    return a * b;
}
static uint64_t in_integers(uint64_t a, uint64_t b)
{
    return a * b;
}

/* The three functions above are the product in the three kinds of arithmetic. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    elementwise_binary(call, box, in_f32, in_f64, in_integers);
}

static const op_operand in[] = {{"a", 0}, {"b", 0}}, out[] = {{"y", 0}};
static const op_case cases[] = {ELEMENTWISE_BINARY_CASES("mul")};

const op_def op_mul = {
    .name = "mul",
    .summary = "a * b with broadcasting",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .flags = OP_ELEMENTWISE,
    .infer = elementwise_infer_binary,
    .axes = runs_axes,
    .reads = shape_reads_broadcast,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill_wide_integers,
};
