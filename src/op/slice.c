/* slice.c - a box of a tensor, or every n-th entry of it, as a view.
 *
 * x [..] -> dims (stops[i] - starts[i]) / steps[i], rounded up.  [10] with starts 2, stops 9,
 * steps 3 has the entries 2, 5 and 8.  No work: the result has the strides of x times the steps,
 * and an offset.  Bounds are whole numbers in range, known when the graph is built; the front
 * ends resolve negative ones.
 */
#include "op/shape.h"

/* Attributes, by index. */
enum { STARTS, STOPS, STEPS };

/* The step along an axis of n entries: 1 if none are given.  A step beyond n takes the first
 * entry only, as n does; so it is limited, against overflow. */
static int64_t step_of(const ir_op *op, uint32_t axis, int64_t n)
{
    int64_t step = axis < op->attributes[STEPS].ints.n ? op->attributes[STEPS].ints.at[axis] : 1;
    return step < n ? step : n;
}

/* A partly alive axis 0 cannot be cut: which entries are alive is not known when the graph is
 * built. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const ir_attribute *a = op->attributes;
    CHECK(cx, a[STARTS].ints.n == x->rank && a[STOPS].ints.n == x->rank, MPK_ESHAPE,
          "slice: %u starts and %u stops, expected %u of each, the rank of x", a[STARTS].ints.n,
          a[STOPS].ints.n, x->rank);
    CHECK(cx, a[STEPS].ints.n == 0 || a[STEPS].ints.n == x->rank, MPK_ESHAPE,
          "slice: %u steps for rank %u", a[STEPS].ints.n, x->rank);
    shape_like(x, out);
    for (uint32_t i = 0; i < x->rank; i++) {
        int64_t start = a[STARTS].ints.at[i], stop = a[STOPS].ints.at[i],
                step = step_of(op, i, x->dims[i]);
        CHECK(cx, step > 0, MPK_ESHAPE, "slice: step %lld along axis %u, expected 1 or more",
              (long long)step, i);
        CHECK(cx, 0 <= start && start < stop && stop <= x->dims[i], MPK_ESHAPE,
              "slice: %lld to %lld along axis %u, which has %lld entries", (long long)start,
              (long long)stop, i, (long long)x->dims[i]);
        out->dims[i] = (stop - start - 1) / step + 1;
    }
    CHECK(cx, x->live == IR_ALL || out->dims[0] == x->dims[0], MPK_ESHAPE,
          "slice: axis 0 of %%%.*s is partly alive and can only be taken whole", STR_ARG(x->name));
    return MPK_OK;
}

/* The box, stretched by the steps and moved by the starts. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = *box;
    for (uint32_t i = 0; i < shape_input(g, op, input)->rank; i++) {
        int64_t start = op->attributes[STARTS].ints.at[i],
                step = step_of(op, i, shape_input(g, op, input)->dims[i]);
        read->lo[i] = start + box->lo[i] * step;
        read->hi[i] = start + (box->hi[i] - 1) * step + 1;
    }
}

/* Always a view: the steps multiply the strides, the starts add up to the offset. */
static bool view(const ir_graph *g, const ir_op *op, const int64_t *in_stride, int64_t *stride,
                 int64_t *offset)
{
    *offset = 0;
    for (uint32_t i = 0; i < shape_input(g, op, 0)->rank; i++) {
        stride[i] = in_stride[i] * step_of(op, i, shape_input(g, op, 0)->dims[i]);
        *offset += op->attributes[STARTS].ints.at[i] * in_stride[i];
    }
    return true;
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("starts", INTS), SHAPE_NEEDED("stops", INTS),
                                          SHAPE_LIST("steps")};
static const op_case cases[] = {
    {"input %x : f32[7, 320] live=tokens\n%y = slice(%x) {starts = [0, 64], stops = [7, 80]}\n"},
    {"input %x : i32[5, 4, 3]\n%y = slice(%x) {starts = [1, 0, 2], stops = [4, 4, 3]}\n"},
    {"input %x : f32[9, 10]\n%y = slice(%x) {starts = [1, 0], stops = [8, 10], steps = [2, 3]}\n"},
    {"const %x : q8_0[9, 96]\n%y = slice(%x) {starts = [2, 32], stops = [5, 96]}\n"},
};

const op_def op_slice = {
    .name = "slice",
    .summary = "a box of a tensor, as a view",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_VIEW,
    .infer = infer,
    .reads = reads,
    .view = view,
    OP_CASES(cases),
};
