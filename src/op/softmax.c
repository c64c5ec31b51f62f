/* softmax.c - exp(x - max) / sum along an axis.  x float [..] -> the same; the sum runs in double from the first entry
 * on.
 *
 * Idea: the largest entry is subtracted first, so that no exponential overflows. The axis itself is never cut. Cost:
 * three passes, two exponentials an entry.
 */
#include <math.h>

#include "op/shape.h"
#include "op/walk.h"

/* Negative axes count from the last. */
static uint32_t axis_of(const ir_op *op, uint32_t rank)
{
    int64_t axis = op->attributes[0].i;
    return (uint32_t)(axis < 0 ? axis + rank : axis);
}

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    int64_t axis = op->attributes[0].i;
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_FLOAT));
    CHECK(cx, axis >= -(int64_t)x->rank && axis < x->rank, MPK_ESHAPE, "softmax: axis is %lld, x has rank %u",
          (long long)axis, x->rank);
    shape_like(x, out);
    return MPK_OK;
}

/* Every axis but the one that is summed over. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    shape_axes_all(g, op, axes);
    axes[axis_of(op, shape_input(g, op, 0)->rank)].grain = 0;
}

static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box, ir_box *read)
{
    (void)g, (void)op, (void)input;
    *read = *box;
}

/* One line of n entries. */
static void softmax_line(const op_view *x, int64_t from, int64_t from_step, const op_view *y, int64_t to,
                         int64_t to_step, int64_t n)
{
    float largest = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmaxf(largest, op_load(x, from + i * from_step));
    for (int64_t i = 0; i < n; i++)
        sum += (double)expf(op_load(x, from + i * from_step) - largest);
    for (int64_t i = 0; i < n; i++)
        op_store(y, to + i * to_step, (float)((double)expf(op_load(x, from + i * from_step) - largest) / sum));
}

/* One line after the other; along a partly alive axis 0 the box ends where life does. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *y = &call->out[0];
    uint32_t axis = axis_of(call->op, x->rank);
    ir_box lines = *box;
    lines.hi[axis] = lines.lo[axis] + 1;
    int64_t at[IR_MAX_RANK], n = box->hi[axis] - box->lo[axis];
    memcpy(at, lines.lo, sizeof at);
    do
        softmax_line(x, walk_offset(x, at), x->stride[axis], y, walk_offset(y, at), y->stride[axis], n);
    while (walk_next(&lines, y->rank, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_INT("axis", -1)};
static const op_case cases[] = {
    {"input %x : f32[7, 1003] live=tokens\n%y = softmax(%x)\n"},
    {"input %x : bf16[3, 5, 4]\n%y = softmax(%x) {axis = 1}\n"},
    {"input %x : f32[7, 3] live=tokens\n%y = softmax(%x) {axis = 0}\n"},
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
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .ref = ref,
    .cases = cases,
    .n_cases = SHAPE_COUNT(cases),
};
