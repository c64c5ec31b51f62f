/* argmax_partial.c - the largest entry of each of several parts of a row, so that many workers
 * share a row of logits.
 *
 * x [R, V] -> value f32[R, parts], index i32[R, parts]; part p is the columns from V p / parts
 * on.  A part of NaN has the value NaN.  argmax_reduce finishes the work; the two together give
 * what argmax gives.
 *
 *   [3, 7 | 7, 1], parts 2 -> value [7, 7], index [1, 2]; argmax_reduce gives 1, the first
 *
 * Cost: one pass over the row.
 */
#include "op/largest.h"
#include "op/shape.h"

/* Both outputs have the same shape, so one box serves for both. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    TRY(shape_expect(cx, g, op, 0, SHAPE_FLOAT, 2, (int64_t[]){SHAPE_FREE, SHAPE_FREE}));
    const ir_tensor *x = shape_input(g, op, 0);
    int64_t parts = op->attributes[0].i;
    CHECK(cx, x->dims[1] <= INT32_MAX, MPK_ESHAPE,
          "argmax_partial: %lld columns are too many for an i32", (long long)x->dims[1]);
    CHECK(cx, parts >= 1 && parts <= x->dims[1], MPK_EARG,
          "argmax_partial: parts is %lld, expected 1 to %lld", (long long)parts,
          (long long)x->dims[1]);
    for (int i = 0; i < 2; i++) {
        out[i].dtype = i ? IR_I32 : IR_F32;
        out[i].live = x->live;
        out[i].rank = 2;
        out[i].dims[0] = x->dims[0];
        out[i].dims[1] = parts;
    }
    return MPK_OK;
}

/* The columns of the parts of the box.  Parts of neighbouring tasks share no column. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    int64_t columns = shape_input(g, op, input)->dims[1], parts = op->attributes[0].i;
    *read = *box;
    read->lo[1] = columns * box->lo[1] / parts;
    read->hi[1] = columns * box->hi[1] / parts;
}

/* NaN marks a part that has no candidate, so that argmax_reduce skips it. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *value = &call->out[0], *index = &call->out[1];
    int64_t parts = call->attributes[0].i, columns = x->dims[1], at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do {
        int64_t first = columns * at[1] / parts, row = at[0] * x->stride[0];
        int64_t best = largest_in_row(x, row, first, columns * (at[1] + 1) / parts);
        op_store(value, walk_offset(value, at),
                 best < 0 ? NAN : op_load(x, row + best * x->stride[1]));
        ((int32_t *)index->data)[walk_offset(index, at)] = (int32_t)(best < 0 ? first : best);
    } while (walk_next(box, 2, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"value", 0}, {"index", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("parts", INT)};
/* Row lengths that the parts do not divide. */
static const op_case cases[] = {
    {"input %x : f32[1, 1003] live=rows\n%v, %i = argmax_partial(%x) {parts = 16}\n"},
    {"input %x : bf16[7, 49] live=rows\n%v, %i = argmax_partial(%x) {parts = 5}\n"},
};

const op_def op_argmax_partial = {
    .name = "argmax_partial",
    .summary = "largest entry, and its index, of each of several parts of a row",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
};
