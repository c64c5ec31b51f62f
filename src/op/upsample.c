/* upsample.c - the spatial axes of x [N, C, ..] in another size, by nearest entries or
 * interpolation.
 *
 * mode "nearest": entry floor(o r); "nearest_exact": floor((o + 0.5) r); "linear": between two
 * entries an axis; "cubic": among four (two axes at most, a = -0.75).  r is 1 / scale_i, or if
 * that is 0 the ratio of the sizes; with align_corners the ratio of the sizes less one.
 * Positions and weights are fp32 (fp64 for f64), as PyTorch's; sums are in double.
 *
 *   a b to size 4:  nearest a a b b     linear a, (3a + b) / 4, (a + 3b) / 4, b
 *
 * Cost: 2^axes or 4^axes multiplications an entry of the result.  The weights are in upsample.h.
 */
#include "op/shape.h"
#include "op/upsample.h"
#include "op/walk.h"

/* A scale may disagree with the sizes, as in PyTorch: the sizes give the shape, the scale the
 * positions. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const ir_attribute *a = op->attributes;
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_REAL_NUMBER));
    CHECK(cx, x->rank >= 3 && x->rank <= 5 && a[UPSAMPLE_SIZE].ints.n == x->rank - 2, MPK_ESHAPE,
          "upsample: x has rank %u and size %u numbers, expected rank 3, 4 or 5 and a number for "
          "each spatial axis",
          x->rank, a[UPSAMPLE_SIZE].ints.n);
    CHECK(cx,
          upsample_mode_of(op) < UPSAMPLE_MODES &&
              (upsample_mode_of(op) != UPSAMPLE_CUBIC || x->rank <= 4),
          MPK_EUNSUPPORTED,
          "upsample: mode \"%.*s\" is not one of nearest, nearest_exact, linear, cubic (cubic: two "
          "axes at most)",
          STR_ARG(a[UPSAMPLE_MODE].s));
    shape_like(x, out);
    for (uint32_t i = 0; i < a[UPSAMPLE_SIZE].ints.n; i++) {
        CHECK(cx,
              a[UPSAMPLE_SIZE].ints.at[i] < INT32_MAX && x->dims[i + 2] < INT32_MAX &&
                  a[UPSAMPLE_SCALE + i].f >= 0,
              MPK_ESHAPE, "upsample: size or scale of axis %u is not possible", i);
        out->dims[i + 2] = a[UPSAMPLE_SIZE].ints.at[i];
    }
    return MPK_OK;
}

/* Positions rise with o, so the first and the last entry of the box give the range. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, input);
    *read = *box;
    for (uint32_t i = 2; i < x->rank; i++) {
        taps first = upsample_find_taps(op, i - 2, x->dims[i], box->lo[i], x->dtype == IR_F64);
        taps last = upsample_find_taps(op, i - 2, x->dims[i], box->hi[i] - 1, x->dtype == IR_F64);
        read->lo[i] = first.at[0];
        read->hi[i] = last.at[last.n - 1] + 1;
    }
}

/* One entry of the result.  The taps of all axes form a box; the weight of an entry is the
 * product of its weights along each axis. */
static double interpolate(const op_view *x, const taps *t, int64_t offset)
{
    ir_box taken = {0};
    int64_t k[IR_MAX_RANK] = {0};
    double sum = 0;
    for (uint32_t i = 0; i + 2 < x->rank; i++)
        taken.hi[i] = t[i].n;
    do {
        int64_t at = offset;
        double weight = 1;
        for (uint32_t i = 0; i + 2 < x->rank; i++) {
            at += t[i].at[k[i]] * x->stride[i + 2];
            weight *= t[i].weight[k[i]];
        }
        sum += weight * walk_load_double(x, at);
    } while (walk_next(&taken, x->rank - 2, k));
    return sum;
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *y = &call->out[0];
    int64_t at[IR_MAX_RANK];
    taps t[3];
    memcpy(at, box->lo, sizeof at);
    do {
        for (uint32_t i = 2; i < x->rank; i++)
            t[i - 2] = upsample_find_taps(call->op, i - 2, x->dims[i], at[i], x->dtype == IR_F64);
        walk_store_double(y, walk_offset(y, at),
                          interpolate(x, t, at[0] * x->stride[0] + at[1] * x->stride[1]));
    } while (walk_next(box, y->rank, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {
    SHAPE_NEEDED("size", INTS), SHAPE_WORD("mode", "nearest"), SHAPE_INT("align_corners", 0),
    SHAPE_REAL("scale_0", 0),   SHAPE_REAL("scale_1", 0),      SHAPE_REAL("scale_2", 0)};
static const op_case cases[] = {
    {"input %x : f32[3, 2, 4, 5] live=tokens\n%y = upsample(%x) {size = [7, 3]}\n"},
    {"input %x : bf16[2, 3, 14]\n%y = upsample(%x) {size = [35], mode = \"nearest_exact\", scale_0 "
     "= 2.5}\n"},
    {"input %x : f32[1, 2, 3, 4, 2]\n%y = upsample(%x) {size = [4, 7, 3], mode = \"linear\"}\n"},
    {"input %x : f64[1, 2, 3, 4]\n%y = upsample(%x) {size = [7, 9], mode = \"cubic\", "
     "align_corners = 1}\n"},
};

const op_def op_upsample = {
    .name = "upsample",
    .summary = "spatial axes in another size, by nearest entries, linear or cubic interpolation",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
};
