/* layer_norm.c - (x - mean) / sqrt(variance + eps) * weight + bias over the last axis.  x real
 * [.., N], weight, bias [N] real or absent.
 *
 * Mean and variance are sums in double from the first entry to the last, the variance around the
 * mean (two passes, so that a large mean costs no digits); the rest is fp32, for f64 fp64.  A
 * row is never cut.  Cost: three passes over the row.
 */
#include <math.h>

#include "op/shape.h"
#include "op/walk.h"

/* Inputs, by index. */
enum { X, WEIGHT, BIAS };

/* Weight and bias have the last axis of x, each may be absent. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X);
    TRY(shape_expect_dtype(cx, g, op, X, SHAPE_REAL_NUMBER));
    CHECK(cx, x->rank > 0, MPK_ESHAPE, "layer_norm: input x (%%%.*s) is a scalar",
          STR_ARG(x->name));
    CHECK(cx, x->rank > 1 || x->live == IR_ALL, MPK_ESHAPE,
          "layer_norm: the normalised axis may not be partly alive");
    TRY(shape_expect(cx, g, op, WEIGHT, SHAPE_REAL_NUMBER, 1, &x->dims[x->rank - 1]));
    TRY(shape_expect(cx, g, op, BIAS, SHAPE_REAL_NUMBER, 1, &x->dims[x->rank - 1]));
    shape_like(x, out);
    return MPK_OK;
}

/* Element i of a row, normalised: `away` is x - mean; fp32 once the factor is applied. */
static double finish_f32(double away, double factor, const op_view *weight, const op_view *bias,
                         int64_t i)
{
    float y = (float)(away * factor);
    if (weight->data)
        y *= op_load(weight, i * weight->stride[0]);
    if (bias->data)
        y += op_load(bias, i * bias->stride[0]);
    return (double)y;
}
/* The same as for f32, with every step in double. */
static double finish_f64(double away, double factor, const op_view *weight, const op_view *bias,
                         int64_t i)
{
    double y = away * factor;
    if (weight->data)
        y *= walk_load_double(weight, i * weight->stride[0]);
    if (bias->data)
        y += walk_load_double(bias, i * bias->stride[0]);
    return y;
}

/* Normalise a row of n and store it from offset `to` on; sums run in double from 0 to n - 1. */
static void normalise(const op_call *call, const double *row, int64_t n, int64_t to)
{
    const op_view *weight = &call->in[WEIGHT], *bias = &call->in[BIAS], *y = &call->out[0];
    bool wide = y->dtype == IR_F64;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += row[i];
    double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += (row[i] - mean) * (row[i] - mean);
    double factor = 1 / sqrt(squares / (double)n + call->attributes[0].f);
    for (int64_t i = 0; i < n; i++)
        walk_store_double(y, to + i * y->stride[y->rank - 1],
                          (wide ? finish_f64 : finish_f32)(row[i] - mean, factor, weight, bias, i));
}

/* Scratch: a row as doubles, since it is read three times. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    const ir_tensor *x = shape_input(g, op, X);
    return (size_t)x->dims[x->rank - 1] * sizeof(double);
}

/* Row by row of the box. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *x = &call->in[X], *y = &call->out[0];
    int64_t at[IR_MAX_RANK], n = x->dims[x->rank - 1];
    memcpy(at, box->lo, sizeof at);
    do {
        walk_load_doubles(x, walk_offset(x, at), x->stride[x->rank - 1], n, scratch);
        normalise(call, scratch, n, walk_offset(y, at));
    } while (walk_next(box, x->rank - 1, at));
}

static const op_operand in[] = {{"x", 0}, {"weight", OP_OPTIONAL}, {"bias", OP_OPTIONAL}},
                        out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_REAL("eps", 1e-5)};
static const op_case cases[] = {
    {"input %x : f32[7, 320] live=tokens\nconst %w : f32[320]\nconst %b : bf16[320]\n%y = "
     "layer_norm(%x, %w, %b)\n"},
    {"input %x : bf16[3, 5, 48]\n%y = layer_norm(%x, _, _) {eps = 0.001}\n"},
    {"input %x : f64[3, 1000]\nconst %w : f64[1000]\nconst %b : f64[1000]\n%y = layer_norm(%x, %w, "
     "%b)\n"},
    {"input %x : bf16[2, 37, 264]\nconst %w : f32[264]\nconst %b : bf16[264]\n%y = layer_norm(%x, "
     "%w, %b)\n"},
    {"input %x : f16[2603, 40] live=tokens\nconst %w : f16[40]\nconst %b : f16[40]\n%y = "
     "layer_norm(%x, %w, %b)\n"},
    {"input %x : bf16[5, 3072] live=tokens\nconst %w : bf16[3072]\n%y = layer_norm(%x, %w, _)\n"},
    {"input %x : f32[2, 3, 2051]\nconst %w : f32[2051]\nconst %b : f32[2051]\n%y = layer_norm(%x, "
     "%w, %b)\n"},
};

const op_def op_layer_norm = {
    .name = "layer_norm",
    .summary = "(x - mean) / sqrt(variance + eps) * weight + bias over the last axis",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_rows,
    .reads = shape_reads_rows,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
