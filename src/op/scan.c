/* scan.c - running sums, products, or log-sum-exps along an axis.  x [.., n, ..] -> the same
 * shape.
 *
 *   sum of 1, 2, 3, 4 is 1, 3, 6, 10; prod is 1, 2, 6, 24
 *
 * Entry i is made of the entries 0 .. i, in that order: floats in double and rounded when
 * stored, integers exactly (modulo the width of the result).  The result has x's dtype or the
 * one that is named.  The axis is never cut, so the bits do not depend on the cut.  Cost: one
 * pass over x.
 */
#include <math.h>

#include "op/fill.h"
#include "op/line.h"

/* Attributes, by index. */
enum { AXIS, KIND, DTYPE };

/* An integer sum of floats would depend on when they are rounded, so it is refused. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    str kind = op->attributes[KIND].s, name = op->attributes[DTYPE].s;
    bool logs = str_is(kind, "logsumexp");
    TRY(line_infer(cx, g, op, logs ? SHAPE_REAL_NUMBER : SHAPE_PLAIN));
    CHECK(cx, logs || str_is(kind, "sum") || str_is(kind, "prod"), MPK_EUNSUPPORTED,
          "scan: kind \"%.*s\" is not one of sum, prod, logsumexp", STR_ARG(kind));
    shape_like(shape_input(g, op, 0), out);
    CHECK(cx, !name.n || (ir_dtype_from_name(name, &out->dtype) && SHAPE_PLAIN >> out->dtype & 1),
          MPK_EUNSUPPORTED, "scan: dtype \"%.*s\" is not a plain dtype", STR_ARG(name));
    CHECK(cx, SHAPE_REAL_NUMBER >> out->dtype & 1 || walk_is_exact(shape_input(g, op, 0)->dtype),
          MPK_ESHAPE, "scan: floats cannot become %s: cast first", ir_dtype_table[out->dtype].name);
    return MPK_OK;
}

/* log(e^a + e^b) without overflow; equal infinities stay themselves, since their difference is
 * NaN. */
static double log_add(double a, double b)
{
    double most = a > b || isnan(a) ? a : b;
    return isinf(a) && a == b ? a : most + log1p(exp(-fabs(a - b)));
}

/* Entries that are loaded, summed and stored together. */
enum { RUN = 64 };

/* One line; kind is the first letter of its name.  Runs make loading and storing loops of their
 * own, which vectorize; the sum itself is a chain of dependent additions. */
static void scan_floats(const op_view *x, int64_t from, int64_t step, const op_view *y, int64_t to,
                        int64_t to_step, int64_t n, char kind)
{
    double sum = kind == 'p', value[RUN]; /* the neutral element: 0, or 1 of a product */
    if (kind == 'l')
        sum = -INFINITY;
    for (int64_t first = 0; first < n; first += RUN) {
        int64_t run = n - first < RUN ? n - first : RUN;
        walk_load_doubles(x, from + first * step, step, run, value);
        for (int64_t i = 0; i < run && kind == 's'; i++)
            value[i] = sum += value[i];
        for (int64_t i = 0; i < run && kind != 's'; i++)
            value[i] = sum = kind == 'p' ? sum * value[i] : log_add(sum, value[i]);
        for (int64_t i = 0; i < run; i++)
            walk_store_double(y, to + (first + i) * to_step, value[i]);
    }
}

/* As scan_floats.  Modulo 2^64 and truncated when stored, which is the same as modulo the width
 * of the result. */
static void scan_integers(const op_view *x, int64_t from, int64_t step, const op_view *y,
                          int64_t to, int64_t to_step, int64_t n, char kind)
{
    uint64_t sum = kind == 'p';
    for (int64_t i = 0; i < n; i++) {
        uint64_t value = (uint64_t)walk_load_int(x, from + i * step);
        sum = kind == 'p' ? sum * value : sum + value;
        walk_store_int(y, to + i * to_step, (int64_t)sum);
    }
}

/* Line by line: the axis is not cut (line_axes), so a box holds whole lines. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *y = &call->out[0];
    uint32_t axis = line_axis(call->op);
    bool exact = walk_is_exact(x->dtype) && walk_is_exact(y->dtype);
    ir_box lines = *box;
    lines.hi[axis] = 1;
    int64_t at[IR_MAX_RANK];
    memcpy(at, lines.lo, sizeof at);
    do
        (exact ? scan_integers : scan_floats)(x, walk_offset(x, at), x->stride[axis], y,
                                              walk_offset(y, at), y->stride[axis], x->dims[axis],
                                              call->attributes[KIND].s.at[0]);
    while (walk_next(&lines, y->rank, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("axis", INT), SHAPE_WORD("kind", "sum"),
                                          SHAPE_WORD("dtype", "")};
static const op_case cases[] = {
    {"input %x : f32[7, 320] live=tokens\n%y = scan(%x) {axis = 1}\n"},
    {"input %x : bf16[5, 3, 4]\n%y = scan(%x) {axis = 0, kind = \"prod\"}\n"},
    {"input %x : i32[3, 9]\n%y = scan(%x) {axis = 1, kind = \"prod\"}\n"},
    {"input %x : bool[9, 2]\n%y = scan(%x) {axis = 0, dtype = \"i64\"}\n"},
    {"input %x : f64[9, 2]\n%y = scan(%x) {axis = 0, kind = \"logsumexp\"}\n"},
};

const op_def op_scan = {
    .name = "scan",
    .summary = "running sums, products or log-sum-exps along an axis",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = line_axes,
    .reads = line_reads,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill_wide_integers,
};
