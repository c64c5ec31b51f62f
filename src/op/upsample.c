/* upsample.c - the spatial axes of x [N, C, ..] in another size, by nearest entries or interpolation.
 *
 * mode "nearest": entry floor(o r); "nearest_exact": floor((o + 0.5) r); "linear": between two entries an axis,
 * "cubic": among four (two axes at most, a = -0.75).  r is 1 / scale_i, or if that is 0 the ratio of the sizes;
 * align_corners: of the sizes less one.  Positions and weights are fp32 (of f64 fp64), as PyTorch's; sums are in
 * double.
 *
 * Cost: 2^axes or 4^axes multiplications an entry of the result.
 */
#include <math.h>

#include "op/shape.h"
#include "op/walk.h"

enum { SIZE, MODE, ALIGN, SCALE };
typedef enum upsample_mode { NEAREST, NEAREST_EXACT, LINEAR, CUBIC, MODES } upsample_mode;

static upsample_mode mode_of(const ir_op *op)
{
    static const char *const names[MODES] = {"nearest", "nearest_exact", "linear", "cubic"};
    int mode = 0;
    while (mode < MODES && !str_is(op->attributes[MODE].s, names[mode]))
        mode++;
    return (upsample_mode)mode;
}

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const ir_attribute *a = op->attributes;
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_REAL_NUMBER));
    CHECK(cx, x->rank >= 3 && x->rank <= 5 && a[SIZE].ints.n == x->rank - 2, MPK_ESHAPE,
          "upsample: x has rank %u and size %u numbers, expected rank 3, 4 or 5 and a number for each spatial axis",
          x->rank, a[SIZE].ints.n);
    CHECK(cx, mode_of(op) < MODES && (mode_of(op) != CUBIC || x->rank <= 4), MPK_EUNSUPPORTED,
          "upsample: mode \"%.*s\" is not one of nearest, nearest_exact, linear, cubic (cubic: two axes at most)",
          STR_ARG(a[MODE].s));
    shape_like(x, out);
    for (uint32_t i = 0; i < a[SIZE].ints.n; i++) {
        CHECK(cx, a[SIZE].ints.at[i] < INT32_MAX && x->dims[i + 2] < INT32_MAX && a[SCALE + i].f >= 0, MPK_ESHAPE,
              "upsample: size or scale of axis %u is not possible", i);
        out->dims[i + 2] = a[SIZE].ints.at[i];
    }
    return MPK_OK;
}

/* Entries that one entry of the result takes along an axis, and their weights. */
typedef struct taps {
    int64_t at[4];
    double weight[4];
    int n;
} taps;

static double ratio(const ir_op *op, uint32_t i, int64_t n)
{
    double scale = op->attributes[SCALE + i].f, size = (double)op->attributes[SIZE].ints.at[i];
    if (op->attributes[ALIGN].i && mode_of(op) >= LINEAR)
        return size > 1 ? (double)(n - 1) / (size - 1) : 0;
    return scale > 0 ? 1 / scale : (double)n / size;
}

/* The weights of four neighbours at distance t from the second. */
static void cubic_weights(double t, double weight[4])
{
    const double a = -0.75;
    double u = 1 - t;
    weight[0] = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a;
    weight[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
    weight[2] = ((a + 2) * u - (a + 3)) * u * u + 1;
    weight[3] = ((a * (u + 1) - 5 * a) * (u + 1) + 8 * a) * (u + 1) - 4 * a;
}

static int64_t hold(int64_t i, int64_t n)
{
    return i < 0 ? 0 : i >= n ? n - 1 : i;
}

static taps find_taps(const ir_op *op, uint32_t i, int64_t n, int64_t o, bool wide)
{
    upsample_mode mode = mode_of(op);
    double r = wide ? ratio(op, i, n) : (double)(float)ratio(op, i, n);
    double half = mode == NEAREST ? 0 : 0.5;
    double place = mode <= NEAREST_EXACT || !op->attributes[ALIGN].i ? r * ((double)o + half) : r * (double)o;
    if (mode >= LINEAR && !op->attributes[ALIGN].i)
        place -= 0.5;
    if (mode == LINEAR && place < 0)
        place = 0;
    place = wide ? place : (double)(float)place;
    place = place < (double)n ? place : (double)n; /* scales may be as small as they like */
    int64_t first = (int64_t)floor(place);
    taps t = {.n = 1, .weight = {1}};
    t.at[0] = hold(first, n);
    if (mode == LINEAR) {
        t.n = 2;
        t.at[1] = hold(first + 1, n);
        t.weight[1] = place - (double)first;
        t.weight[0] = 1 - t.weight[1];
    } else if (mode == CUBIC) {
        t.n = 4;
        cubic_weights(place - (double)first, t.weight);
        for (int k = 0; k < 4; k++)
            t.at[k] = hold(first - 1 + k, n);
    }
    return t;
}

/* Positions rise with o, so the first and the last entry of the box tell the range. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box, ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, input);
    *read = *box;
    for (uint32_t i = 2; i < x->rank; i++) {
        taps first = find_taps(op, i - 2, x->dims[i], box->lo[i], x->dtype == IR_F64);
        taps last = find_taps(op, i - 2, x->dims[i], box->hi[i] - 1, x->dtype == IR_F64);
        read->lo[i] = first.at[0];
        read->hi[i] = last.at[last.n - 1] + 1;
    }
}

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
            t[i - 2] = find_taps(call->op, i - 2, x->dims[i], at[i], x->dtype == IR_F64);
        walk_store_double(y, walk_offset(y, at), interpolate(x, t, at[0] * x->stride[0] + at[1] * x->stride[1]));
    } while (walk_next(box, y->rank, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("size", INTS),    SHAPE_WORD("mode", "nearest"),
                                          SHAPE_INT("align_corners", 0), SHAPE_REAL("scale_0", 0),
                                          SHAPE_REAL("scale_1", 0),      SHAPE_REAL("scale_2", 0)};
static const op_case cases[] = {
    {"input %x : f32[3, 2, 4, 5] live=tokens\n%y = upsample(%x) {size = [7, 3]}\n"},
    {"input %x : bf16[2, 3, 14]\n%y = upsample(%x) {size = [35], mode = \"nearest_exact\", scale_0 = 2.5}\n"},
    {"input %x : f32[1, 2, 3, 4, 2]\n%y = upsample(%x) {size = [4, 7, 3], mode = \"linear\"}\n"},
    {"input %x : f64[1, 2, 3, 4]\n%y = upsample(%x) {size = [7, 9], mode = \"cubic\", align_corners = 1}\n"},
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
