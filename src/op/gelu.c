/* gelu.c - the Gaussian error linear unit, element by element.  x float [..] -> the same.
 *
 * tanh = 1 chooses the approximation by tanh that older checkpoints were trained with.  Computed
 * in fp32 and rounded once, when stored (activate.h has the formulas).  Cost: an error function
 * or a tanh an element.
 */
#include "op/activate.h"
#include "op/elementwise.h"
#include "op/runs.h"

/* The attribute chooses between two functions, once for a box. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    elementwise_unary(call, box, call->attributes[0].i ? activate_gelu_tanh : activate_gelu);
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_INT("tanh", 0)};
static const op_case cases[] = {
    {"input %x : f32[7, 320] live=tokens\n%y = gelu(%x)\n"},
    {"input %x : bf16[3, 5, 17]\n%y = gelu(%x) {tanh = 1}\n"},
    {"input %x : f16[1]\n%y = gelu(%x)\n"},
};

const op_def op_gelu = {
    .name = "gelu",
    .summary = "x times the normal distribution function, or its tanh approximation",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_ELEMENTWISE,
    .infer = elementwise_infer_unary,
    .axes = runs_axes,
    .reads = shape_reads_broadcast,
    .ref = ref,
    OP_CASES(cases),
};
