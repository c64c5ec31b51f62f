/* argmax.c - the index of the largest entry of each row.  x [R, V] -> i32[R]; ties: the lowest;
 * a row of NaN: 0.
 *
 *   [3, 7, 7, 1] -> 1
 *
 * A row is one task, which is slow for a large vocabulary; argmax_partial and argmax_reduce
 * share a row among workers.  Cost: one pass over the row.
 */
#include "op/largest.h"
#include "op/shape.h"

/* The index is an i32, as token ids are everywhere. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    TRY(shape_expect(cx, g, op, 0, SHAPE_FLOAT, 2, (int64_t[]){SHAPE_FREE, SHAPE_FREE}));
    const ir_tensor *x = shape_input(g, op, 0);
    CHECK(cx, x->dims[1] <= INT32_MAX, MPK_ESHAPE, "argmax: %lld columns are too many for an i32",
          (long long)x->dims[1]);
    out->dtype = IR_I32;
    out->live = x->live;
    out->rank = 1;
    out->dims[0] = x->dims[0];
    return MPK_OK;
}

/* largest_in_row gives -1 for a row that has nothing but NaN. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *out = &call->out[0];
    for (int64_t r = box->lo[0]; r < box->hi[0]; r++) {
        int64_t best = largest_in_row(x, r * x->stride[0], 0, x->dims[1]);
        ((int32_t *)out->data)[r * out->stride[0]] = (int32_t)(best < 0 ? 0 : best);
    }
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"index", 0}};
static const op_case cases[] = {
    {"input %x : f32[1, 1003] live=rows\n%i = argmax(%x)\n"},
    {"input %x : bf16[7, 1003] live=rows\n%i = argmax(%x)\n"},
};

const op_def op_argmax = {
    .name = "argmax",
    .summary = "index of the largest entry of each row, the lowest of equal ones",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .infer = infer,
    .axes = shape_axes_first,
    .reads = shape_reads_rows,
    .ref = ref,
    OP_CASES(cases),
};
