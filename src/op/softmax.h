/* softmax.h - softmax and its logarithm along an axis: what softmax.c and log_softmax.c share.
 *
 * x real [..] -> the same.  The largest entry is subtracted first, so that no exponential
 * overflows; the sum runs in double from the first entry on.  Exponentials are fp32, those of
 * f64 fp64.  The axis is not cut, so the bits do not depend on the cut.
 */
#ifndef OP_SOFTMAX_H
#define OP_SOFTMAX_H

#include <math.h>

#include "op/shape.h"
#include "op/walk.h"

/* The axis that is summed over; a negative one counts from the last. */
static inline uint32_t softmax_axis(const ir_op *op, uint32_t rank)
{
    int64_t axis = op->attributes[0].i;
    return (uint32_t)(axis < 0 ? axis + rank : axis);
}

/* The result is like x; the axis must exist. */
static inline mpk_status softmax_infer(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                       ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    int64_t axis = op->attributes[0].i;
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_REAL_NUMBER));
    CHECK(cx, axis >= -(int64_t)x->rank && axis < x->rank, MPK_ESHAPE,
          "%s: axis is %lld, x has rank %u", op->def->name, (long long)axis, x->rank);
    shape_like(x, out);
    return MPK_OK;
}

/* Every axis may be cut but the one that is summed over. */
static inline void softmax_axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    shape_axes_all(g, op, axes);
    axes[softmax_axis(op, shape_input(g, op, 0)->rank)].grain = 0;
}

/* The box is whole along the axis (softmax_axes), so it names whole lines. */
static inline void softmax_reads(const ir_graph *g, const ir_op *op, uint32_t input,
                                 const ir_box *box, ir_box *read)
{
    (void)g, (void)op, (void)input;
    *read = *box;
}

/* Scratch: a line as f32, of f64 as double. */
static inline size_t softmax_scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    const ir_tensor *x = shape_input(g, op, 0);
    uint32_t axis = softmax_axis(op, x->rank);
    return (size_t)(box->hi[axis] - box->lo[axis]) *
           (x->dtype == IR_F64 ? sizeof(double) : sizeof(float));
}

/* In place on a line of n entries.  The sum is kept in double, so that a long line loses
 * nothing.  A line of -inf only becomes NaN, as in PyTorch, since -inf - -inf is NaN. */
static inline void softmax_in_f32(float *line, int64_t n, bool logarithm)
{
    float largest = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmaxf(largest, line[i]);
    for (int64_t i = 0; i < n; i++) {
        float less = line[i] - largest, e = expf(less);
        line[i] = logarithm ? less : e;
        sum += (double)e;
    }
    for (int64_t i = 0; i < n; i++)
        line[i] = (float)(logarithm ? (double)line[i] - log(sum) : (double)line[i] / sum);
}

/* As softmax_in_f32, but every exponential is computed twice instead of kept. */
static inline void softmax_in_f64(double *line, int64_t n, bool logarithm)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, line[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp(line[i] - largest);
    for (int64_t i = 0; i < n; i++)
        line[i] = logarithm ? line[i] - largest - log(sum) : exp(line[i] - largest) / sum;
}

/* One line after the other.  Along a partly alive axis 0 the box ends with the last live entry, so
 * n counts live entries only. Scratch holds a line, in the type that it is computed in. */
static inline void softmax_box(const op_call *call, const ir_box *box, void *scratch,
                               bool logarithm)
{
    const op_view *x = &call->in[0], *y = &call->out[0];
    uint32_t axis = softmax_axis(call->op, x->rank);
    ir_box lines = *box;
    lines.hi[axis] = lines.lo[axis] + 1;
    float *floats = scratch;
    double *doubles = scratch;
    int64_t at[IR_MAX_RANK], n = box->hi[axis] - box->lo[axis];
    memcpy(at, lines.lo, sizeof at);
    do {
        int64_t from = walk_offset(x, at), to = walk_offset(y, at);
        if (x->dtype == IR_F64) {
            walk_load_doubles(x, from, x->stride[axis], n, doubles);
            softmax_in_f64(doubles, n, logarithm);
            for (int64_t i = 0; i < n; i++)
                ((double *)y->data)[to + i * y->stride[axis]] = doubles[i];
            continue;
        }
        for (int64_t i = 0; i < n; i++)
            floats[i] = op_load(x, from + i * x->stride[axis]);
        softmax_in_f32(floats, n, logarithm);
        for (int64_t i = 0; i < n; i++)
            op_store(y, to + i * y->stride[axis], floats[i]);
    } while (walk_next(&lines, y->rank, at));
}

static const op_operand softmax_in[] = {{"x", 0}}, softmax_out[] = {{"y", 0}};
static const op_attribute softmax_attributes[] = {SHAPE_INT("axis", -1)};
#define SOFTMAX_CASES(op_name)                                                       \
    {                                                                                \
        {"input %x : f32[7, 1003] live=tokens\n%y = " op_name "(%x)\n"},             \
            {"input %x : bf16[3, 5, 4]\n%y = " op_name "(%x) {axis = 1}\n"},         \
            {"input %x : f32[7, 3] live=tokens\n%y = " op_name "(%x) {axis = 0}\n"}, \
            {"input %x : f64[3, 9]\n%y = " op_name "(%x)\n"},                        \
            {"input %x : bf16[2571, 24]\n%y = " op_name "(%x)\n"},                   \
            {"input %x : f32[35, 264]\n%y = " op_name "(%x)\n"},                     \
            {"input %x : f16[3, 2, 4104]\n%y = " op_name "(%x)\n"},                  \
            {"input %x : f32[2, 2051] live=tokens\n%y = " op_name "(%x)\n"},         \
    }

/* What the records have in common. */
#define SOFTMAX_RECORD                                                                 \
    OP_INPUTS(softmax_in), OP_OUTPUTS(softmax_out), OP_ATTRIBUTES(softmax_attributes), \
        .infer = softmax_infer, .axes = softmax_axes, .reads = softmax_reads,          \
        .scratch_bytes = softmax_scratch_bytes

#endif
