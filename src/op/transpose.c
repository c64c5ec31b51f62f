/* transpose.c - axes in another order, as a view.  x [..] -> axis i of the result is axis
 * perm[i] of x.
 *
 * [2, 3, 4] with perm = [2, 0, 1] gives [4, 2, 3].  No work: the result has the strides of x in
 * another order.  A tensor of a block dtype keeps its last axis last, because a block is a run
 * along it.
 */
#include "op/shape.h"

/* perm must name each axis once; a partly alive axis 0 stays first. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const int64_t *perm = op->attributes[0].ints.at;
    CHECK(cx, op->attributes[0].ints.n == x->rank, MPK_ESHAPE,
          "transpose: perm has %u entries for rank %u", op->attributes[0].ints.n, x->rank);
    shape_like(x, out);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < x->rank; i++) {
        CHECK(cx, perm[i] >= 0 && perm[i] < x->rank && !(seen >> perm[i] & 1), MPK_ESHAPE,
              "transpose: perm does not name each axis of %%%.*s once", STR_ARG(x->name));
        seen |= 1u << perm[i];
        out->dims[i] = x->dims[perm[i]];
    }
    CHECK(cx, x->live == IR_ALL || perm[0] == 0, MPK_ESHAPE,
          "transpose: axis 0 of %%%.*s is partly alive and must stay first", STR_ARG(x->name));
    return MPK_OK;
}

/* The box with its axes put back in x's order. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = (ir_box){0};
    for (uint32_t i = 0; i < shape_input(g, op, input)->rank; i++) {
        read->lo[op->attributes[0].ints.at[i]] = box->lo[i];
        read->hi[op->attributes[0].ints.at[i]] = box->hi[i];
    }
}

/* Always a view: a permutation of axes is one of strides. */
static bool view(const ir_graph *g, const ir_op *op, const int64_t *in_stride, int64_t *stride,
                 int64_t *offset)
{
    for (uint32_t i = 0; i < shape_input(g, op, 0)->rank; i++)
        stride[i] = in_stride[op->attributes[0].ints.at[i]];
    *offset = 0;
    return true;
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("perm", INTS)};
static const op_case cases[] = {
    {"input %x : f32[7, 5, 48] live=tokens\n%y = transpose(%x) {perm = [0, 2, 1]}\n"},
    {"input %x : i64[3, 4]\n%y = transpose(%x) {perm = [1, 0]}\n"},
};

const op_def op_transpose = {
    .name = "transpose",
    .summary = "axes in another order, as a view",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_VIEW,
    .infer = infer,
    .reads = reads,
    .view = view,
    OP_CASES(cases),
};
