/* reduce.c - sum, mean, largest, smallest, product, logarithm of the sum of exponentials, any or
 * all over any axes.
 *
 * x [..] -> the axes that are not reduced (keep: reduced axes stay, with one entry), in x's
 * dtype or the one that is named; any and all are bool.  [2, 3, 4] with axes = [0, 2] gives [3],
 * with keep [1, 3, 1].
 *
 * Floats are accumulated in double, in row-major order of the reduced axes, and rounded once;
 * integers exactly (modulo the width of the result), bool as 0 and 1.  NaN wins max and min.  Of
 * an axis 0 that is partly alive only the live entries count: of none the sum is 0, the mean
 * NaN, max and logsumexp -inf.  logsumexp is for floats: the largest entry first, then the
 * exponentials of the differences to it, so that none overflows.
 *
 * Idea: up to 64 entries of a row of the result are computed at once, so that memory is read
 * along rows.  Cost: one pass over x, two for logsumexp.  Only axes that stay may be cut, so
 * every reduction has one order and its bits do not depend on the cut.
 */
#include <math.h>

#include "op/fill.h"
#include "op/walk.h"

/* Attributes, by index. */
enum { AXES, KEEP, KIND, DTYPE };
typedef enum reduce_kind { SUM, MEAN, MAX, MIN, PROD, LOGSUMEXP, ANY, ALL, KINDS } reduce_kind;
/* Entries of the result that are accumulated at once. */
enum { STRIP = 64 };

/* The kind that the attribute names; KINDS if it names none, which infer refuses. */
static reduce_kind kind_of(const ir_op *op)
{
    static const char *const names[KINDS] = {"sum",  "mean",      "max", "min",
                                             "prod", "logsumexp", "any", "all"};
    int kind = 0;
    while (kind < KINDS && !str_is(op->attributes[KIND].s, names[kind]))
        kind++;
    return (reduce_kind)kind;
}

/* The reduced axes as a set of bits, by axis of x; infer has checked them. */
static uint32_t reduced_axes(const ir_op *op)
{
    uint32_t set = 0;
    for (uint32_t i = 0; i < op->attributes[AXES].ints.n; i++)
        set |= 1u << op->attributes[AXES].ints.at[i];
    return set;
}

/* The dtype of the result: x's, or bool, or the one that is named.  Combinations that would lose
 * what they say are refused. A sum of integers may be a float; a sum of floats cannot be an
 * integer, since nothing says whether the terms or the sum would be rounded. */
static mpk_status infer_dtype(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_dtype *dtype)
{
    reduce_kind kind = kind_of(op);
    str name = op->attributes[DTYPE].s;
    CHECK(cx, kind < KINDS, MPK_EUNSUPPORTED,
          "reduce: kind \"%.*s\" is not one of sum, mean, max, min, prod, logsumexp, any, all",
          STR_ARG(op->attributes[KIND].s));
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_PLAIN));
    *dtype = kind >= ANY ? IR_BOOL : shape_input(g, op, 0)->dtype;
    if (name.n)
        CHECK(cx, ir_dtype_from_name(name, dtype) && SHAPE_PLAIN >> *dtype & 1, MPK_EUNSUPPORTED,
              "reduce: dtype \"%.*s\" is not a plain dtype", STR_ARG(name));
    CHECK(cx, kind != MEAN || SHAPE_REAL_NUMBER >> *dtype & 1, MPK_ESHAPE,
          "reduce: the mean of %s needs a dtype for its result, f32 say",
          ir_dtype_table[*dtype].name);
    CHECK(cx, kind != LOGSUMEXP || !walk_is_exact(shape_input(g, op, 0)->dtype), MPK_ESHAPE,
          "reduce: exponentials are of floats, not of %s: cast first",
          ir_dtype_table[shape_input(g, op, 0)->dtype].name);
    CHECK(cx,
          SHAPE_REAL_NUMBER >> *dtype & 1 || kind >= ANY ||
              walk_is_exact(shape_input(g, op, 0)->dtype),
          MPK_ESHAPE, "reduce: floats cannot be reduced to %s: cast first",
          ir_dtype_table[*dtype].name);
    return MPK_OK;
}

/* `set` has a bit for each reduced axis.  If axis 0 is reduced, the result is whole: only live
 * entries were counted. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const ir_attribute *a = op->attributes;
    TRY(infer_dtype(cx, g, op, &out->dtype));
    uint32_t set = 0;
    for (uint32_t i = 0; i < a[AXES].ints.n; i++) {
        int64_t axis = a[AXES].ints.at[i];
        CHECK(cx, axis >= 0 && axis < x->rank && !(set >> axis & 1), MPK_ESHAPE,
              "reduce: axes names %lld, expected each at most once and below the rank %u",
              (long long)axis, x->rank);
        set |= 1u << axis;
    }
    out->live = set & 1 ? IR_ALL : x->live;
    for (uint32_t i = 0; i < x->rank; i++)
        if (!(set >> i & 1))
            out->dims[out->rank++] = x->dims[i];
        else if (a[KEEP].i)
            out->dims[out->rank++] = 1;
    return MPK_OK;
}

/* The box of x (with these dims) that the box of the result is made of: all of a reduced axis,
 * and the same range of the others.  keep: the reduced axes are in the result too. */
static void spread_box(uint32_t rank, const int64_t *dims, uint32_t set, bool keep,
                       const ir_box *box, ir_box *read)
{
    uint32_t o = 0;
    *read = (ir_box){0};
    for (uint32_t i = 0; i < rank; i++) {
        bool reduced = set >> i & 1;
        read->lo[i] = reduced ? 0 : box->lo[o];
        read->hi[i] = reduced ? dims[i] : box->hi[o];
        o += !reduced || keep;
    }
}

/* The other way around from infer: from a box of the result to its entries in x. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, input);
    spread_box(x->rank, x->dims, reduced_axes(op), op->attributes[KEEP].i != 0, box, read);
}

/* One more value.  `kind` is a constant wherever this is called, so the switch is gone after
 * inlining. */
static inline double fold_float(reduce_kind kind, double sum, double value)
{
    switch (kind) {
    case MAX:
        return value > sum || isnan(value) ? value : sum;
    case MIN:
        return value < sum || isnan(value) ? value : sum;
    case PROD:
        return sum * value;
    default:
        return sum + value;
    }
}

/* One more integer.  Sums and products are unsigned, because signed overflow is undefined and
 * integers wrap here. */
static inline int64_t fold_integer(reduce_kind kind, int64_t sum, int64_t value)
{
    switch (kind) {
    case MAX:
        return value > sum ? value : sum;
    case MIN:
        return value < sum ? value : sum;
    case PROD:
        return (int64_t)((uint64_t)sum * (uint64_t)value);
    default:
        return (int64_t)((uint64_t)sum + (uint64_t)value);
    }
}

/* Up to STRIP entries of the result while they are accumulated. */
typedef struct strip {
    reduce_kind kind;
    bool exact; /* exact: integers, in i; else floats, in f */
    /* base: for LOGSUMEXP, the largest entry, which is subtracted from each */
    double f[STRIP], base[STRIP];
    int64_t i[STRIP], n_folded; /* n_folded: values per entry, for the mean */
} strip;

/* Every kind begins with its neutral element: the value that leaves the other operand as it is. */
static void begin(strip *s, reduce_kind kind, bool exact)
{
    static const double floats[KINDS] = {[MAX] = -INFINITY, [MIN] = INFINITY, [PROD] = 1};
    static const int64_t integers[KINDS] = {
        [MAX] = INT64_MIN, [MIN] = INT64_MAX, [PROD] = 1, [ALL] = 1};
    s->kind = kind;
    s->exact = exact || kind >= ANY;
    s->n_folded = 0;
    for (int i = 0; i < STRIP; i++) {
        s->f[i] = floats[kind];
        s->i[i] = integers[kind];
    }
}

/* The second pass of LOGSUMEXP: f holds the largest entries.  An infinite one is not subtracted,
 * since inf - inf is NaN. */
static void begin_exponentials(strip *s)
{
    s->kind = LOGSUMEXP;
    s->n_folded = 0;
    for (int i = 0; i < STRIP; i++) {
        s->base[i] = isinf(s->f[i]) ? 0 : s->f[i];
        s->f[i] = 0;
    }
}

/* Entry i of the row goes to entry i * step of the strip: with step 0 the whole row goes to
 * entry 0.  The branches are outside of the loops, so that these vectorize. */
static void fold_floats(strip *s, const double *row, int64_t n, int step)
{
    if (s->kind == MAX)
        for (int64_t i = 0; i < n; i++)
            s->f[i * step] = fold_float(MAX, s->f[i * step], row[i]);
    else if (s->kind == MIN)
        for (int64_t i = 0; i < n; i++)
            s->f[i * step] = fold_float(MIN, s->f[i * step], row[i]);
    else if (s->kind == PROD)
        for (int64_t i = 0; i < n; i++)
            s->f[i * step] = fold_float(PROD, s->f[i * step], row[i]);
    else if (s->kind == LOGSUMEXP)
        for (int64_t i = 0; i < n; i++)
            s->f[i * step] += exp(row[i] - s->base[i * step]);
    else
        for (int64_t i = 0; i < n; i++)
            s->f[i * step] = fold_float(SUM, s->f[i * step], row[i]);
}

/* As fold_floats, for integers and truth values. */
static void fold_integers(strip *s, const int64_t *row, int64_t n, int step)
{
    for (int64_t i = 0; i < n; i++)
        if (s->kind == ANY)
            s->i[i * step] |= row[i] != 0;
        else if (s->kind == ALL)
            s->i[i * step] &= row[i] != 0;
        else
            s->i[i * step] = fold_integer(s->kind, s->i[i * step], row[i]);
}

/* Load n <= STRIP entries of x as the accumulator wants them and fold them.  any and all of
 * floats ask whether each entry is other than 0. */
static void fold_row(strip *s, const op_view *x, int64_t offset, int64_t stride, int64_t n,
                     int step)
{
    double row[STRIP];
    int64_t integers[STRIP];
    if (s->exact && walk_is_exact(x->dtype)) {
        walk_load_ints(x, offset, stride, n, integers);
        fold_integers(s, integers, n, step);
        return;
    }
    walk_load_doubles(x, offset, stride, n, row);
    if (!s->exact) {
        fold_floats(s, row, n, step);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        integers[i] = row[i] != 0;
    fold_integers(s, integers, n, step);
}

/* Fold a box of x, row by row.  into_one: the last axis is reduced too, so a row goes to one
 * entry of the strip; otherwise the strip lies along the last axis. */
static void fold_part(strip *s, const op_view *x, const ir_box *part, bool into_one)
{
    uint32_t last = x->rank ? x->rank - 1 : 0;
    int64_t at[IR_MAX_RANK], end = x->rank ? part->hi[last] : 1;
    int64_t stride = x->rank ? x->stride[last] : 0;
    if (ir_box_is_empty(part, x->rank))
        return;
    memcpy(at, part->lo, sizeof at);
    do {
        int64_t offset = walk_offset(x, at) - part->lo[last] * stride;
        for (int64_t i = part->lo[last]; i < end; i += STRIP)
            fold_row(s, x, offset + i * stride, stride, end - i < STRIP ? end - i : STRIP,
                     !into_one);
        s->n_folded += into_one ? end - part->lo[last] : 1;
    } while (walk_next(part, last, at));
}

/* The value of a finished entry of the strip. */
static double float_of(const strip *s, int64_t i)
{
    if (s->kind == MEAN)
        return s->f[i] / (double)s->n_folded;
    return s->kind == LOGSUMEXP ? s->base[i] + log(s->f[i]) : s->f[i];
}

/* Store the first n entries of the strip to the result. */
static void store_strip(const strip *s, const op_view *y, int64_t offset, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (s->exact)
            walk_store_int(y, offset + i * stride, s->i[i]);
        else
            walk_store_double(y, offset + i * stride, float_of(s, i));
}

/* The strip lies along the last axis of the result if that is the last axis of x; else entries
 * are made one by one, each from whole rows of x. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *y = &call->out[0];
    uint32_t set = reduced_axes(call->op), last = y->rank ? y->rank - 1 : 0;
    bool into_one = !x->rank || set >> (x->rank - 1) & 1;
    bool exact = walk_is_exact(x->dtype) && walk_is_exact(y->dtype);
    int64_t at[IR_MAX_RANK], alive = op_live_entries(call, x), n;
    memcpy(at, box->lo, sizeof at);
    do {
        ir_box one = {0}, part;
        strip s;
        for (uint32_t i = 0; i < y->rank; i++) {
            one.lo[i] = at[i];
            one.hi[i] = at[i] + 1;
        }
        n = into_one ? 1 : op_clamp(box->hi[last] - at[last], 1, STRIP);
        if (y->rank)
            one.hi[last] = at[last] + n;
        spread_box(x->rank, x->dims, set, call->attributes[KEEP].i != 0, &one, &part);
        if (set & 1 && part.hi[0] > alive)
            part.hi[0] = alive;
        reduce_kind kind = kind_of(call->op);
        begin(&s, kind == LOGSUMEXP ? MAX : kind, exact);
        fold_part(&s, x, &part, into_one);
        if (kind == LOGSUMEXP) {
            begin_exponentials(&s);
            fold_part(&s, x, &part, into_one);
        }
        store_strip(&s, y, walk_offset(y, at), y->rank ? y->stride[last] : 1, n);
        at[last] += n - 1;
    } while (walk_next(box, y->rank, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("axes", INTS), SHAPE_INT("keep", 0),
                                          SHAPE_WORD("kind", "sum"), SHAPE_WORD("dtype", "")};

#define CASE(x, rest)                                    \
    {                                                    \
        "input %x : " x "\n%y = reduce(%x) {" rest "}\n" \
    }
/* Each kind, axes in any order, live axes kept and reduced, results wider than x, scalars. */
static const op_case cases[] = {
    CASE("f32[7, 320] live=tokens", "axes = [1]"),
    CASE("f32[7, 5] live=tokens", "axes = [0], kind = \"mean\""),
    CASE("bf16[3, 4, 5]", "axes = [0, 2], keep = 1, kind = \"max\""),
    CASE("f32[7, 4, 5] live=tokens", "axes = [1], kind = \"min\""),
    CASE("i32[3, 4]", "axes = [1], kind = \"prod\""),
    CASE("i64[3, 4, 2]", "axes = [2, 0]"),
    CASE("i32[3, 4]", "axes = [0, 1], kind = \"max\""),
    CASE("f16[3, 4]", "axes = [], kind = \"sum\""),
    CASE("f64[3, 4, 150]", "axes = [0], kind = \"mean\""),
    CASE("bool[5, 70]", "axes = [0], dtype = \"i64\""),
    CASE("f32[5, 3, 2]", "axes = [1], kind = \"any\""),
    CASE("bool[5, 3, 2]", "axes = [0, 2], kind = \"all\""),
    CASE("u8[5, 3]", "axes = [1], kind = \"mean\", dtype = \"f32\""),
    CASE("f32[]", "axes = [], kind = \"max\""),
    CASE("f32[7, 320] live=tokens", "axes = [1], kind = \"logsumexp\""),
    CASE("bf16[7, 4, 70] live=tokens", "axes = [0, 1], keep = 1, kind = \"logsumexp\""),
    CASE("f64[3, 4, 5]", "axes = [1], kind = \"logsumexp\""),
};

const op_def op_reduce = {
    .name = "reduce",
    .summary = "sum, mean, max, min, prod, logsumexp, any or all over any axes",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill_wide_integers,
};
