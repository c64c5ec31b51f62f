/* silu_mul.c - silu(gate) * up, the end of a gated feed-forward.  gate, up [..] of one dtype,
 * broadcast to each other.
 *
 * Computed in fp32 and rounded once.  Models whose gate and up projections are separate linear
 * operators have it; fuse_ops moves it into a linear with glu.  Cost: an exponential an element.
 */
#include "op/activate.h"
#include "op/elementwise.h"
#include "op/runs.h"

/* Floats only: there is no silu of integers. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_FLOAT));
    return elementwise_infer_binary(cx, g, op, out);
}

static float gated(float gate, float up)
{
    return activate_silu(gate) * up;
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    elementwise_binary(call, box, gated, NULL, NULL);
}

static const op_operand in[] = {{"gate", 0}, {"up", 0}}, out[] = {{"y", 0}};
static const op_case cases[] = {
    {"input %g : f32[1, 1536] live=tokens\ninput %u : f32[1, 1536] live=tokens\n%y = silu_mul(%g, "
     "%u)\n"},
    {"input %g : bf16[7, 320] live=tokens\ninput %u : bf16[7, 320] live=tokens\n%y = silu_mul(%g, "
     "%u)\n"},
    {"input %g : f16[7, 1]\ninput %u : f16[3]\n%y = silu_mul(%g, %u)\n"},
};

const op_def op_silu_mul = {
    .name = "silu_mul",
    .summary = "silu(gate) * up",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .flags = OP_ELEMENTWISE,
    .infer = infer,
    .axes = runs_axes,
    .reads = shape_reads_broadcast,
    .ref = ref,
    OP_CASES(cases),
};
