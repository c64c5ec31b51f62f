/* softmax.c - exp(x - max) / sum along an axis.  x real [..] -> the same; the sum runs in double from the first entry
 * on.
 *
 * Idea: the largest entry is subtracted first, so that no exponential overflows (softmax.h). The axis itself is never
 * cut. Cost: three passes, an exponential an entry.
 */
#include "op/softmax.h"

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    softmax_box(call, box, scratch, false);
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_INT("axis", -1)};
static const op_case cases[] = {
    {"input %x : f32[7, 1003] live=tokens\n%y = softmax(%x)\n"},
    {"input %x : bf16[3, 5, 4]\n%y = softmax(%x) {axis = 1}\n"},
    {"input %x : f32[7, 3] live=tokens\n%y = softmax(%x) {axis = 0}\n"},
    {"input %x : f64[3, 9]\n%y = softmax(%x)\n"},
};

const op_def op_softmax = {
    .name = "softmax",
    .summary = "exp(x - max) / sum along an axis",
    .in = in,
    .out = out,
    .n_in = SHAPE_COUNT(in),
    .n_out = SHAPE_COUNT(out),
    .attributes = attributes,
    .n_attributes = SHAPE_COUNT(attributes),
    .infer = softmax_infer,
    .axes = softmax_axes,
    .reads = softmax_reads,
    .scratch_bytes = softmax_scratch_bytes,
    .ref = ref,
    .cases = cases,
    .n_cases = SHAPE_COUNT(cases),
};
