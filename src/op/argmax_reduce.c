/* argmax_reduce.c - from the parts of argmax_partial to the index.  value f32[R, parts], index
 * i32[R, parts] -> i32[R].
 *
 * The parts stand in the order of their columns, so the first of equal values has the lowest
 * index, as in argmax.  Cost: one pass over the parts, which is short enough for one task a row.
 */
#include "op/fill.h"
#include "op/largest.h"

enum { VALUE, INDEX };

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *value = shape_input(g, op, VALUE);
    TRY(shape_expect(cx, g, op, VALUE, 1 << IR_F32, 2, (int64_t[]){SHAPE_FREE, SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, INDEX, SHAPE_I32, 2, value->dims));
    TRY(shape_expect_live(cx, g, op, INDEX, value->live));
    out->dtype = IR_I32;
    out->live = value->live;
    out->rank = 1;
    out->dims[0] = value->dims[0];
    return MPK_OK;
}

/* All parts of the rows: the winner may be in any of them. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    read->lo[0] = box->lo[0];
    read->hi[0] = box->hi[0];
}

/* The winner's index is looked up; if all values are NaN, that of the first part. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *value = &call->in[VALUE], *index = &call->in[INDEX], *out = &call->out[0];
    for (int64_t r = box->lo[0]; r < box->hi[0]; r++) {
        int64_t part = largest_in_row(value, r * value->stride[0], 0, value->dims[1]);
        int64_t at = r * index->stride[0] + (part < 0 ? 0 : part) * index->stride[1];
        ((int32_t *)out->data)[r * out->stride[0]] = (int32_t)walk_load_int(index, at);
    }
}

/* Indices in the range of the row that argmax_partial's case has. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    if (input == INDEX)
        fill_indices(shape_input(g, op, INDEX), 1003, seed, data);
}

static const op_operand in[] = {{"value", 0}, {"index", 0}}, out[] = {{"index", 0}};
static const op_case cases[] = {
    {"input %v : f32[1, 16] live=rows\ninput %i : i32[1, 16] live=rows\n%y = argmax_reduce(%v, "
     "%i)\n"},
    {"input %v : f32[7, 5] live=rows\ninput %i : i32[7, 5] live=rows\n%y = argmax_reduce(%v, "
     "%i)\n"},
};

const op_def op_argmax_reduce = {
    .name = "argmax_reduce",
    .summary = "index of the largest entry from the parts of argmax_partial",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .infer = infer,
    .axes = shape_axes_first,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
