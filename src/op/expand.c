/* expand.c - repeat a tensor along axes, as a view (stride 0).  x [..] -> shape, by the rules of
 * numpy's broadcast.
 *
 *   x [3, 1] -> [2, 3, 4] with strides [0, 1, 0]
 *
 * No work: a repeated axis has stride 0.  Nothing may be written in place through it, which the
 * verifier checks.
 */
#include "op/shape.h"

/* Axes are matched from the last; new ones come in front, as in numpy. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const int64_t *shape = op->attributes[0].ints.at;
    uint32_t rank = op->attributes[0].ints.n;
    CHECK(cx, rank >= x->rank && rank <= IR_MAX_RANK, MPK_ESHAPE,
          "expand: shape has %u axes, expected %u to %d", rank, x->rank, IR_MAX_RANK);
    shape_like(x, out);
    out->rank = rank;
    for (uint32_t i = 0; i < rank; i++) {
        int64_t dim = i + x->rank >= rank ? x->dims[i + x->rank - rank] : 1;
        CHECK(cx, dim == 1 || dim == shape[i], MPK_ESHAPE,
              "expand: axis %u of the result is %lld, x has %lld there", i, (long long)shape[i],
              (long long)dim);
        out->dims[i] = shape[i];
    }
    CHECK(cx, x->live == IR_ALL || (rank == x->rank && shape[0] == x->dims[0]), MPK_ESHAPE,
          "expand: axis 0 of %%%.*s is partly alive and must stay as it is", STR_ARG(x->name));
    return MPK_OK;
}

/* Axes that repeat, and axes that are new, have stride 0. */
static bool view(const ir_graph *g, const ir_op *op, const int64_t *in_stride, int64_t *stride,
                 int64_t *offset)
{
    const ir_tensor *x = shape_input(g, op, 0);
    uint32_t added = op->attributes[0].ints.n - x->rank;
    for (uint32_t i = 0; i < op->attributes[0].ints.n; i++)
        stride[i] = i < added || x->dims[i - added] != op->attributes[0].ints.at[i]
                        ? 0
                        : in_stride[i - added];
    *offset = 0;
    return true;
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("shape", INTS)};
static const op_case cases[] = {
    {"input %x : f32[7, 1, 48] live=tokens\n%y = expand(%x) {shape = [7, 5, 48]}\n"},
    {"input %x : i32[3, 1]\n%y = expand(%x) {shape = [2, 3, 4]}\n"},
    {"input %x : f32[]\n%y = expand(%x) {shape = [2, 3]}\n"},
};

const op_def op_expand = {
    .name = "expand",
    .summary = "repeat along axes of one entry, as a view",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_VIEW,
    .infer = infer,
    .reads = shape_reads_broadcast,
    .view = view,
    OP_CASES(cases),
};
