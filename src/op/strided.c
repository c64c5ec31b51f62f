/* strided.c - entries of a tensor by strides: diagonals, sliding windows, any as_strided.
 *
 * x [..] -> shape: entry (i ..) is element number offset + sum of i * strides of x in row-major
 * order.
 *
 *   x [3, 3], shape [3], strides [4]:        the diagonal, elements 0 4 8
 *   x [4],    shape [3, 2], strides [1, 1]:  windows 0 1, 1 2, 2 3
 *
 * A view if x is dense, else a copy.  An element may appear more than once, so nothing may be
 * written through the result in place.
 */
#include "op/shape.h"
#include "op/walk.h"

/* Attributes, by index. */
enum { SHAPE, STRIDES, OFFSET };

/* The number of the last element that a box of the result names; that of the whole shape if box
 * is NULL. */
static int64_t last_element(const ir_op *op, const ir_box *box)
{
    int64_t last = op->attributes[OFFSET].i;
    for (uint32_t i = 0; i < op->attributes[SHAPE].ints.n; i++)
        last += ((box ? box->hi[i] : op->attributes[SHAPE].ints.at[i]) - 1) *
                op->attributes[STRIDES].ints.at[i];
    return last;
}

/* `last` is the largest element number so far.  Each axis is checked by division against the
 * room that is left, so no product overflows. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const ir_attribute *a = op->attributes;
    int64_t n = ir_elements(x), last = a[OFFSET].i;
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_PLAIN));
    TRY(shape_expect_whole(cx, g, op, 0));
    CHECK(cx, a[SHAPE].ints.n == a[STRIDES].ints.n && a[SHAPE].ints.n <= IR_MAX_RANK, MPK_ESHAPE,
          "strided: %u dimensions and %u strides, expected as many of both, at most %d",
          a[SHAPE].ints.n, a[STRIDES].ints.n, IR_MAX_RANK);
    CHECK(cx, last >= 0 && last < n, MPK_ESHAPE, "strided: offset %lld of %lld elements",
          (long long)last, (long long)n);
    out->dtype = x->dtype;
    out->rank = a[SHAPE].ints.n;
    for (uint32_t i = 0; i < out->rank; i++) {
        int64_t dim = a[SHAPE].ints.at[i], stride = a[STRIDES].ints.at[i];
        CHECK(cx, dim >= 1 && stride >= 0 && (dim == 1 || stride <= (n - 1 - last) / (dim - 1)),
              MPK_ESHAPE,
              "strided: axis %u has %lld entries %lld apart, which do not fit into %%%.*s", i,
              (long long)dim, (long long)stride, STR_ARG(x->name));
        /* entries of a view may coincide, so the sum over axes is the largest number that it
         * reaches */
        last += (dim - 1) * stride;
        out->dims[i] = dim;
    }
    return MPK_OK;
}

/* The smallest box of x, as far as rows tell, that holds the elements from the box's first to
 * its last. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, input);
    int64_t first = op->attributes[OFFSET].i, last = last_element(op, box), step = ir_elements(x);
    /* As long as all outer axes have a range of one entry, this axis runs from the first
     * element's place to the last one's; after that it is whole. */
    bool same = true;
    for (uint32_t i = 0; i < op->attributes[SHAPE].ints.n; i++)
        first += box->lo[i] * op->attributes[STRIDES].ints.at[i];
    *read = ir_box_whole(x);
    for (uint32_t i = 0; i < x->rank && same; i++) {
        step /= x->dims[i];
        read->lo[i] = first / step % x->dims[i];
        read->hi[i] = last / step % x->dims[i] + 1;
        same = read->hi[i] == read->lo[i] + 1;
    }
}

/* Element numbers count in row-major order, so they are addresses only if x is dense; strides of
 * axes of one entry do not matter. */
static bool view(const ir_graph *g, const ir_op *op, const int64_t *in_stride, int64_t *stride,
                 int64_t *offset)
{
    const ir_tensor *x = shape_input(g, op, 0);
    int64_t dense[IR_MAX_RANK];
    ir_dense_strides(x->rank, x->dims, dense);
    for (uint32_t i = 0; i < x->rank; i++)
        if (x->dims[i] > 1 && in_stride[i] != dense[i])
            return false;
    for (uint32_t i = 0; i < op->attributes[SHAPE].ints.n; i++)
        stride[i] = op->attributes[STRIDES].ints.at[i];
    *offset = op->attributes[OFFSET].i;
    return true;
}

/* The offset of element `number` of x.  *steps: how many elements, `stride` apart, can be read
 * from there with a constant step in memory: those that stay within the same `even` elements. */
static int64_t find_element(const op_view *x, int64_t number, int64_t stride, int64_t even,
                            int64_t *steps)
{
    int64_t offset = 0, left = even - 1 - number % even;
    for (uint32_t i = x->rank; i-- > 0; number /= x->dims[i])
        offset += number % x->dims[i] * x->stride[i];
    *steps = stride ? left / stride + 1 : INT64_MAX;
    return offset;
}

/* The number of elements of the innermost axes of x that lie in memory like one axis: even if x
 * is not dense, its rows may be. */
static int64_t even_elements(const op_view *x)
{
    int64_t n = 1;
    for (uint32_t i = x->rank; i-- > 0; n *= x->dims[i])
        if (x->dims[i] > 1 && x->stride[i] != n * x->stride[x->rank - 1])
            break;
    return n;
}

/* Only for an x that is not dense: a row of the result is cut into runs that have a constant
 * step in x. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *y = &call->out[0];
    const int64_t *strides = call->attributes[STRIDES].ints.at;
    uint32_t last = y->rank ? y->rank - 1 : 0;
    int64_t at[IR_MAX_RANK], even = even_elements(x), step = y->rank ? strides[last] : 0, steps;
    int64_t n = walk_run(box, y->rank), y_step = walk_step(y);
    int64_t x_step = x->rank ? x->stride[x->rank - 1] : 0;
    memcpy(at, box->lo, sizeof at);
    do {
        int64_t number = call->attributes[OFFSET].i, to = walk_offset(y, at);
        for (uint32_t i = 0; i < y->rank; i++)
            number += at[i] * strides[i];
        for (int64_t i = 0; i < n; i += steps) {
            int64_t from = find_element(x, number + i * step, step, even, &steps);
            steps = steps < n - i ? steps : n - i;
            walk_copy(y, to + i * y_step, y_step, x, from, step * x_step, steps);
        }
    } while (walk_next(box, last, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("shape", INTS),
                                          SHAPE_NEEDED("strides", INTS), SHAPE_INT("offset", 0)};
static const op_case cases[] = {
    {"input %x : f32[7, 9]\n%y = strided(%x) {shape = [6], strides = [10], offset = 2}\n"},
    {"input %x : i32[2, 12]\n%y = strided(%x) {shape = [2, 4, 3], strides = [12, 3, 1]}\n"},
    {"input %x : bf16[5, 8]\n%t = transpose(%x) {perm = [1, 0]}\n%y = strided(%t) {shape = [6, 3], "
     "strides = [5, 1], "
     "offset = 3}\n"},
    {"input %x : f64[]\n%y = strided(%x) {shape = [2], strides = [0]}\n"},
};

const op_def op_strided = {
    .name = "strided",
    .summary = "entries of a dense tensor by strides and an offset, as a view",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_VIEW,
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .view = view,
    .ref = ref,
    OP_CASES(cases),
};
