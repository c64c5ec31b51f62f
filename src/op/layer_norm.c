/* layer_norm.c - (x - mean) / sqrt(variance + eps) * weight + bias over the last axis.  x [.., N], weight, bias [N] or
 * absent.
 *
 * Mean and variance are sums in double from the first entry to the last, the variance around the mean (two passes, so
 * that a large mean costs no digits). A row is never cut. Cost: three passes over the row.
 */
#include <math.h>

#include "op/shape.h"
#include "op/walk.h"

enum { X, WEIGHT, BIAS };

/* Weight and bias have the last axis of x, each may be absent. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X);
    TRY(shape_expect_dtype(cx, g, op, X, SHAPE_FLOAT));
    CHECK(cx, x->rank > 0, MPK_ESHAPE, "layer_norm: input x (%%%.*s) is a scalar", STR_ARG(x->name));
    CHECK(cx, x->rank > 1 || x->live == IR_ALL, MPK_ESHAPE, "layer_norm: the normalised axis may not be partly alive");
    TRY(shape_expect(cx, g, op, WEIGHT, SHAPE_FLOAT, 1, &x->dims[x->rank - 1]));
    TRY(shape_expect(cx, g, op, BIAS, SHAPE_FLOAT, 1, &x->dims[x->rank - 1]));
    CHECK(cx, op->attributes[0].f >= 0, MPK_EARG, "layer_norm: eps is %g, expected 0 or more", op->attributes[0].f);
    shape_like(x, out);
    return MPK_OK;
}

/* In place; sums in double from 0 to n - 1. */
static void normalise(float *row, int64_t n, const op_view *weight, const op_view *bias, double eps)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)row[i];
    double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += ((double)row[i] - mean) * ((double)row[i] - mean);
    double factor = 1 / sqrt(squares / (double)n + eps);
    for (int64_t i = 0; i < n; i++) {
        row[i] = (float)(((double)row[i] - mean) * factor);
        if (weight->data)
            row[i] *= op_load(weight, i * weight->stride[0]);
        if (bias->data)
            row[i] += op_load(bias, i * bias->stride[0]);
    }
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *x = &call->in[X], *y = &call->out[0];
    int64_t at[IR_MAX_RANK], n = x->dims[x->rank - 1];
    memcpy(at, box->lo, sizeof at);
    do {
        walk_load_row(x, walk_offset(x, at), 0, n, scratch);
        normalise(scratch, n, &call->in[WEIGHT], &call->in[BIAS], call->attributes[0].f);
        walk_store_row(y, walk_offset(y, at), 0, n, scratch);
    } while (walk_next(box, x->rank - 1, at));
}

static const op_operand in[] = {{"x", 0}, {"weight", OP_OPTIONAL}, {"bias", OP_OPTIONAL}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_REAL("eps", 1e-5)};
static const op_case cases[] = {
    {"input %x : f32[7, 320] live=tokens\nconst %w : f32[320]\nconst %b : bf16[320]\n%y = layer_norm(%x, %w, %b)\n"},
    {"input %x : bf16[3, 5, 48]\n%y = layer_norm(%x, _, _) {eps = 0.001}\n"},
};

const op_def op_layer_norm = {
    .name = "layer_norm",
    .summary = "(x - mean) / sqrt(variance + eps) * weight + bias over the last axis",
    .in = in,
    .out = out,
    .n_in = SHAPE_COUNT(in),
    .n_out = SHAPE_COUNT(out),
    .attributes = attributes,
    .n_attributes = SHAPE_COUNT(attributes),
    .infer = infer,
    .axes = shape_axes_rows,
    .reads = shape_reads_rows,
    .scratch_bytes = shape_scratch_row,
    .ref = ref,
    .cases = cases,
    .n_cases = SHAPE_COUNT(cases),
};
