/* silu.c - the sigmoid-weighted activation, x / (1 + exp(-x)), element by element.  x float [..]
 * -> the same.
 *
 * Computed in fp32 and rounded once, when stored.  Any cut of any axis gives the same bits.
 * Cost: an exponential an element.
 */
#include "op/activate.h"
#include "op/elementwise.h"
#include "op/runs.h"

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    elementwise_unary(call, box, activate_silu);
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_case cases[] = {
    {"input %x : f32[7, 320] live=tokens\n%y = silu(%x)\n"},
    {"input %x : bf16[3, 5, 17]\n%y = silu(%x)\n"},
    {"input %x : f16[1]\n%y = silu(%x)\n"},
    {"input %x : bf16[3, 5, 24]\n%y = silu(%x)\n"},
};

const op_def op_silu = {
    .name = "silu",
    .summary = "x / (1 + exp(-x))",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .flags = OP_ELEMENTWISE,
    .infer = elementwise_infer_unary,
    .axes = runs_axes,
    .reads = shape_reads_broadcast,
    .ref = ref,
    OP_CASES(cases),
};
