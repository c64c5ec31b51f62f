/* sum_pairs.c - the weighted sum of the rows that a token's experts computed.
 *
 * x [T, N, F], scale f32[T, N], residual [T, F] or absent -> y [T, F]: y[t] = sum over j of
 * scale[t, j] x[t, j], in rising j, plus residual[t].  It ends an expert_linear that leaves one
 * row for each pair of token and expert (fuse_experts.c).
 *
 * Added in fp32 from the first row on and rounded once; any cut gives the same bits.  Cost: 2
 * operations an element of x.
 */
#include "op/shape.h"
#include "op/walk.h"

/* Inputs, by index. */
enum { X, SCALE, RESIDUAL };

/* The result has x's dtype and counts the same tokens. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X);
    TRY(shape_expect(cx, g, op, X, SHAPE_FLOAT, 3,
                     (int64_t[]){SHAPE_FREE, SHAPE_FREE, SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, SCALE, 1 << IR_F32, 2, x->dims));
    TRY(shape_expect_live(cx, g, op, SCALE, x->live));
    out->dtype = x->dtype;
    out->live = x->live;
    out->rank = 2;
    out->dims[0] = x->dims[0];
    out->dims[1] = x->dims[2];
    TRY(shape_expect(cx, g, op, RESIDUAL, SHAPE_FLOAT, 2, out->dims));
    return shape_expect_live(cx, g, op, RESIDUAL, x->live);
}

/* Any cut; multiples of eight columns are fastest, as eight floats are one vector on most
 * machines. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    shape_axes_all(g, op, axes);
    axes[1].fastest = 8;
}

/* Of the box's tokens all pairs, and of these the box's columns; of scale no columns. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    read->lo[0] = box->lo[0];
    read->hi[0] = box->hi[0];
    if (input == SCALE)
        return;
    const uint32_t columns = input == X ? 2 : 1;
    read->lo[columns] = box->lo[1];
    read->hi[columns] = box->hi[1];
}

/* Way 0: over the columns.  Way 1: over the pairs; every peer sums its own part of N, and the
 * first one adds the residual. */
static bool split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    (void)g, (void)op;
    if (way == 0) {
        out->in[X] = 2;
        out->in[SCALE] = OP_WHOLE;
        out->in[RESIDUAL] = out->out[0] = 1;
        return true;
    }
    out->in[X] = out->in[SCALE] = 1;
    out->in[RESIDUAL] = OP_FIRST;
    out->out[0] = OP_SUM;
    return way == 1;
}

/* Scratch: the sum of a row, and the row that is added. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)g, (void)op;
    return 2 * sizeof(float) * (size_t)(box->hi[1] - box->lo[1]);
}

/* One token: its rows in the order of pairs, the residual last, in fp32; one rounding at the
 * end. */
static void sum_token(const op_call *call, const ir_box *box, int64_t t, float *sums, float *row)
{
    const op_view *x = &call->in[X], *scale = &call->in[SCALE], *residual = &call->in[RESIDUAL],
                  *y = &call->out[0];
    const int64_t lo = box->lo[1], n = box->hi[1] - lo;
    memset(sums, 0, (size_t)n * sizeof *sums);
    for (int64_t j = 0; j < x->dims[1]; j++) {
        const float share = op_load(scale, t * scale->stride[0] + j * scale->stride[1]);
        walk_load_row(x, t * x->stride[0] + j * x->stride[1] + lo * x->stride[2], 0, n, row);
        for (int64_t i = 0; i < n; i++)
            sums[i] += share * row[i];
    }
    if (residual->data) {
        walk_load_row(residual, t * residual->stride[0] + lo * residual->stride[1], 0, n, row);
        for (int64_t i = 0; i < n; i++)
            sums[i] += row[i];
    }
    walk_store_row(y, t * y->stride[0] + lo * y->stride[1], 0, n, sums);
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    float *sums = scratch;
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++)
        sum_token(call, box, t, sums, sums + (box->hi[1] - box->lo[1]));
}

static const op_operand in[] = {{"x", 0}, {"scale", 0}, {"residual", OP_OPTIONAL}},
                        out[] = {{"y", 0}};

#define PAIRS(tokens, dtype, n, columns)                                                       \
    "input %x : " dtype "[" tokens ", " n ", " columns "] live=tokens\ninput %s : f32[" tokens \
    ", " n "] live=tokens\n"
#define PLAIN(tokens, dtype, n, columns)                            \
    {                                                               \
        PAIRS(tokens, dtype, n, columns) "%y = sum_pairs(%x, %s)\n" \
    }
#define ADDED(tokens, dtype, n, columns)                                                 \
    {                                                                                    \
        PAIRS(tokens, dtype, n, columns)                                                 \
        "input %r : " dtype "[" tokens ", " columns "] live=tokens\n%y = sum_pairs(%x, " \
        "%s, %r)\n"                                                                      \
    }
static const op_case cases[] = {
    ADDED("1", "f32", "8", "24"),     PLAIN("7", "f32", "1", "33"),   PLAIN("33", "f16", "3", "70"),
    ADDED("33", "bf16", "2", "65"),   ADDED("17", "bf16", "8", "72"), PLAIN("9", "bf16", "5", "40"),
    ADDED("130", "bf16", "4", "256"),
};

const op_def op_sum_pairs = {
    .name = "sum_pairs",
    .summary = "the rows of each token times their scales, added, and a residual",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .split = split,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
