/* join_peaks.c - the peaks of rows of logits whose columns several peers have made.  x0, x1, ...
 * f32[R, B, 2], the peaks of the parts (op/peaks.h), of each part but the last of whole blocks
 * -> f32[R, sum of B, 2].
 *
 * The peaks of a part number its own columns, those of the whole row all columns: a column of
 * part i moves by PEAKS_COLUMNS for each block of the parts before.  -1, a block without a
 * number, stays.  Parts may lie on other peers.
 *
 *   two parts of 2 blocks: column 3 of part 1 becomes column 3 + 2 * 64 = 131
 *
 * Cost: one copy.
 */
#include "op/peaks.h"
#include "op/shape.h"

/* Columns must stay exact as floats, so their number is bounded. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *first = shape_input(g, op, 0);
    TRY(shape_expect(cx, g, op, 0, 1u << IR_F32, 3, (int64_t[]){SHAPE_FREE, SHAPE_FREE, 2}));
    shape_like(first, out);
    for (uint32_t i = 1; i < op->n_in; i++) {
        TRY(shape_expect(cx, g, op, i, 1u << IR_F32, 3,
                         (int64_t[]){first->dims[0], SHAPE_FREE, 2}));
        TRY(shape_expect_live(cx, g, op, i, first->live));
        out->dims[1] += shape_input(g, op, i)->dims[1];
    }
    CHECK(cx, out->dims[1] <= PEAKS_MOST_COLUMNS / PEAKS_COLUMNS, MPK_ESHAPE,
          "join_peaks: %lld blocks, whose columns cannot be numbered", (long long)out->dims[1]);
    return MPK_OK;
}

/* A value and its column belong to one task. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    shape_axes_all(g, op, axes);
    axes[2] = (op_axis){0};
}

/* The blocks of the box that lie in this input, counted from its own first one. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    int64_t first = 0, n = shape_input(g, op, input)->dims[1];
    for (uint32_t i = 0; i < input; i++)
        first += shape_input(g, op, i)->dims[1];
    *read = *box;
    read->lo[1] = box->lo[1] > first ? box->lo[1] - first : 0;
    read->hi[1] = box->hi[1] - first < n ? box->hi[1] - first : n;
}

/* Copy block b of row r of a part to block `to` of the whole row. */
static void join(const op_view *y, const op_view *x, int64_t r, int64_t b, int64_t to)
{
    const int64_t from = r * x->stride[0] + b * x->stride[1],
                  at = r * y->stride[0] + to * y->stride[1];
    const float column = op_load(x, from + x->stride[2]);
    op_store(y, at, op_load(x, from));
    op_store(y, at + y->stride[2],
             column >= 0 ? column + (float)((to - b) * PEAKS_COLUMNS) : column);
}

/* `first` is the number that block 0 of input i has in the result. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    int64_t first = 0;
    for (uint32_t i = 0; i < call->n_in; first += call->in[i++].dims[1])
        for (int64_t r = box->lo[0]; r < box->hi[0]; r++)
            for (int64_t b = 0; b < call->in[i].dims[1]; b++)
                if (first + b >= box->lo[1] && first + b < box->hi[1])
                    join(&call->out[0], &call->in[i], r, b, first + b);
}

static const op_operand in[] = {{"x", OP_VARIADIC}}, out[] = {{"y", 0}};
/* Parts of unequal size; three parts; one. */
static const op_case cases[] = {
    {"input %a : f32[3, 40, 2] live=rows\ninput %b : f32[3, 17, 2] live=rows\n"
     "%y = join_peaks(%a, %b)\n"},
    {"input %a : f32[2, 3, 2]\ninput %b : f32[2, 1, 2]\ninput %c : f32[2, 5, 2]\n"
     "%y = join_peaks(%a, %b, %c)\n"},
    {"input %a : f32[5, 2, 2]\n%y = join_peaks(%a)\n"},
};

const op_def op_join_peaks = {
    .name = "join_peaks",
    .summary = "the peaks of logits of which each peer has made some columns",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .flags = OP_GATHERS,
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
};
