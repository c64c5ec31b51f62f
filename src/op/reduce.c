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
 * Of sum, mean, max, min and prod x may be an expression of the operator map, `expr`, over the
 * first `inputs` operands, broadcast to each other; its values are fp32.  And an expression may
 * follow, `then`: its x0 is the result, rounded to its dtype, x1 and up are the operands after
 * those of expr, floats that are broadcast to the result.  With either all operands are alive:
 *
 *   max(sum(a * b along axis 1) + c, 0) is
 *   reduce(a, b, c) {axes = [1], expr = "x0 * x1", inputs = 2, then = "max(x0 + x1, 0)"}
 *
 * Idea: up to 64 entries of a row of the result are computed at once, so that memory is read
 * along rows.  Cost: one pass over x, two for logsumexp.  Only axes that stay may be cut, so
 * every reduction has one order and its bits do not depend on the cut.
 */
#include <math.h>

#include "op/fill.h"
#include "op/map_program.h"
#include "op/walk.h"

/* Attributes, by index. */
enum { AXES, KEEP, KIND, DTYPE, EXPR, INPUTS, THEN };
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

/* Is what is reduced, or what comes out, an expression? */
static bool has_expression(const ir_op *op)
{
    return op->attributes[EXPR].s.n || op->attributes[THEN].s.n;
}

/* Operands from which entries to reduce are made; the others are those of `then`. */
static uint32_t count_inputs(const ir_op *op)
{
    return op->attributes[EXPR].s.n ? (uint32_t)op->attributes[INPUTS].i : 1;
}

/* What is reduced, as if it were a tensor: operand 0, or the values of expr. */
static mpk_status describe_x(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *x)
{
    if (!op->attributes[EXPR].s.n) {
        *x = *shape_input(g, op, 0);
        return MPK_OK;
    }
    ir_op of = *op;
    of.n_in = count_inputs(op);
    *x = (ir_tensor){.dtype = IR_F32};
    return shape_broadcast(cx, g, &of, x);
}

/* Compiling is also the check: a program that compiles can run.  `first` is the dtype of its x0, or
 * IR_DTYPES, and then operand `from` is. */
static mpk_status check_expression(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                   uint32_t which, ir_dtype first, uint32_t from, uint32_t to)
{
    map_program program;
    ir_dtype dtypes[1 + IR_MAX_INPUTS] = {first};
    uint32_t n = first != IR_DTYPES;
    for (uint32_t i = from; i < to; i++)
        dtypes[n++] = shape_input(g, op, i)->dtype;
    TRY(map_compile(cx, op->attributes[which].s, n, dtypes, &program));
    CHECK(cx, program.steps[program.result].type == MAP_F, MPK_EARG,
          "reduce: the value of an expression is not a float of 32 bits");
    return MPK_OK;
}

/* expr and then, and which operands each has; y is what infer has found. */
static mpk_status check_expressions(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                    const ir_tensor *y)
{
    const bool expr = op->attributes[EXPR].s.n, then = op->attributes[THEN].s.n;
    const uint32_t n = count_inputs(op);
    CHECK(cx, then || n == op->n_in, MPK_ESHAPE, "reduce: %u operands, of which nothing reads %u",
          op->n_in, op->n_in - n);
    CHECK(cx, !has_expression(op) || SHAPE_FLOAT >> y->dtype & 1, MPK_EUNSUPPORTED,
          "reduce: expressions are for a result of f32, f16 or bf16");
    CHECK(cx, !expr || kind_of(op) < LOGSUMEXP, MPK_EUNSUPPORTED,
          "reduce: expr is for sum, mean, max, min and prod");
    for (uint32_t i = 0; i < op->n_in && has_expression(op); i++) {
        const ir_tensor *t = shape_input(g, op, i);
        TRY(shape_expect_dtype(cx, g, op, i, i < n ? SHAPE_PLAIN : SHAPE_FLOAT));
        CHECK(cx, t->live == IR_ALL, MPK_ESHAPE, "reduce: operand %u is partly alive", i);
        CHECK(cx, i < n || t->rank <= y->rank, MPK_ESHAPE,
              "reduce: operand %u has rank %u, the result %u", i, t->rank, y->rank);
        for (uint32_t k = 1; i >= n && k <= t->rank; k++)
            CHECK(cx, t->dims[t->rank - k] == 1 || t->dims[t->rank - k] == y->dims[y->rank - k],
                  MPK_ESHAPE, "reduce: operand %u has %lld entries where the result has %lld", i,
                  (long long)t->dims[t->rank - k], (long long)y->dims[y->rank - k]);
    }
    if (expr)
        TRY(check_expression(cx, g, op, EXPR, IR_DTYPES, 0, n));
    return then ? check_expression(cx, g, op, THEN, y->dtype, n, op->n_in) : MPK_OK;
}

/* The dtype of the result: x's, or bool, or the one that is named.  Combinations that would lose
 * what they say are refused. A sum of integers may be a float; a sum of floats cannot be an
 * integer, since nothing says whether the terms or the sum would be rounded. */
static mpk_status infer_dtype(mpk_context *cx, const ir_op *op, ir_dtype from, ir_dtype *dtype)
{
    reduce_kind kind = kind_of(op);
    str name = op->attributes[DTYPE].s;
    CHECK(cx, kind < KINDS, MPK_EUNSUPPORTED,
          "reduce: kind \"%.*s\" is not one of sum, mean, max, min, prod, logsumexp, any, all",
          STR_ARG(op->attributes[KIND].s));
    *dtype = kind >= ANY ? IR_BOOL : from;
    if (name.n)
        CHECK(cx, ir_dtype_from_name(name, dtype) && SHAPE_PLAIN >> *dtype & 1, MPK_EUNSUPPORTED,
              "reduce: dtype \"%.*s\" is not a plain dtype", STR_ARG(name));
    CHECK(cx, kind != MEAN || SHAPE_REAL_NUMBER >> *dtype & 1, MPK_ESHAPE,
          "reduce: the mean of %s needs a dtype for its result, f32 say",
          ir_dtype_table[*dtype].name);
    CHECK(cx, kind != LOGSUMEXP || !walk_is_exact(from), MPK_ESHAPE,
          "reduce: exponentials are of floats, not of %s: cast first", ir_dtype_table[from].name);
    CHECK(cx, SHAPE_REAL_NUMBER >> *dtype & 1 || kind >= ANY || walk_is_exact(from), MPK_ESHAPE,
          "reduce: floats cannot be reduced to %s: cast first", ir_dtype_table[*dtype].name);
    return MPK_OK;
}

/* `set` has a bit for each reduced axis.  If axis 0 is reduced, the result is whole: only live
 * entries were counted. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_attribute *a = op->attributes;
    ir_tensor of, *x = &of;
    uint32_t set = 0;
    CHECK(cx, !a[EXPR].s.n || (a[INPUTS].i >= 1 && a[INPUTS].i <= (int64_t)op->n_in), MPK_EARG,
          "reduce: inputs is %lld, expected 1 to %u", (long long)a[INPUTS].i, op->n_in);
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_PLAIN));
    TRY(describe_x(cx, g, op, x));
    TRY(infer_dtype(cx, op, x->dtype, &out->dtype));
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
    return check_expressions(cx, g, op, out);
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

/* Anywhere; with whole tiles the axis whose entries are neighbours in x, if it stays, into runs,
 * which a task reads by lines. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    enum { RUN = 16, SHORT_RUN = 8 };
    const ir_tensor *x = shape_input(g, op, 0);
    const uint32_t set = reduced_axes(op);
    uint32_t o = 0;
    shape_axes_all(g, op, axes);
    for (uint32_t i = 0; i < x->rank && set && !has_expression(op); i++) {
        const bool reduced = set >> i & 1;
        if (!reduced && x->stride[i] == 1 && x->dims[i] % SHORT_RUN == 0)
            axes[o].tile = x->dims[i] % RUN ? SHORT_RUN : RUN;
        o += !reduced || op->attributes[KEEP].i;
    }
}

/* The other way around from infer: from a box of the result to its entries in x, and in what x is
 * made of.  infer has seen that describe_x works. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *t = shape_input(g, op, input);
    ir_tensor x;
    ir_box part;
    if (input >= count_inputs(op)) {
        shape_broadcast_box(t, g->tensors.at[op->out[0]].rank, box, read);
        return;
    }
    if (describe_x(NULL, g, op, &x) != MPK_OK)
        return;
    spread_box(x.rank, x.dims, reduced_axes(op), op->attributes[KEEP].i != 0, box, &part);
    shape_broadcast_box(t, x.rank, &part, read);
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

/* What is reduced: x, or the values of an expression. */
typedef struct terms {
    op_view x; /* of an expression its dims alone */
    const op_call *call;
    const map_program *program; /* NULL: x */
    map_lane *lanes;            /* of the program: its slots */
} terms;

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

/* The same for n <= STRIP values of an expression, from entry `at` on along the last axis. */
static void fold_values(strip *s, const terms *of, const int64_t *at, int64_t n, int step)
{
    const map_program *p = of->program;
    double row[STRIP];
    map_evaluate(p, of->call->in, of->x.rank, at, n, of->lanes);
    for (int64_t i = 0; i < n; i++)
        row[i] = (double)of->lanes[p->steps[p->result].slot].f[i];
    fold_floats(s, row, n, step);
}

/* Fold a box of x, row by row.  into_one: the last axis is reduced too, so a row goes to one
 * entry of the strip; otherwise the strip lies along the last axis. */
static void fold_part(strip *s, const terms *of, const ir_box *part, bool into_one)
{
    const op_view *x = &of->x;
    uint32_t last = x->rank ? x->rank - 1 : 0;
    int64_t at[IR_MAX_RANK], end = x->rank ? part->hi[last] : 1;
    int64_t stride = x->rank ? x->stride[last] : 0;
    if (ir_box_is_empty(part, x->rank))
        return;
    memcpy(at, part->lo, sizeof at);
    do {
        for (int64_t i = part->lo[last]; i < end; i += STRIP) {
            const int64_t n = end - i < STRIP ? end - i : STRIP;
            at[last] = i;
            if (of->program)
                fold_values(s, of, at, n, !into_one);
            else
                fold_row(s, x, walk_offset(x, at), stride, n, !into_one);
        }
        at[last] = part->lo[last];
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

/* What the call reduces.  scratch has room for the program and its lanes. */
static terms terms_of(const op_call *call, void *scratch)
{
    map_program *program = scratch;
    terms of = {.x = call->in[0], .call = call};
    ir_dtype dtypes[IR_MAX_INPUTS];
    if (!call->attributes[EXPR].s.n)
        return of;
    const uint32_t n = count_inputs(call->op);
    of.x = (op_view){.dtype = IR_F32};
    for (uint32_t i = 0; i < n; i++) {
        dtypes[i] = call->in[i].dtype;
        of.x.rank = call->in[i].rank > of.x.rank ? call->in[i].rank : of.x.rank;
    }
    for (uint32_t k = 0; k < of.x.rank; k++)
        of.x.dims[k] = 1;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < call->in[i].rank; k++)
            if (call->in[i].dims[k] != 1)
                of.x.dims[k + of.x.rank - call->in[i].rank] = call->in[i].dims[k];
    (void)map_compile(NULL, call->attributes[EXPR].s, n, dtypes, program); /* infer has tried it */
    of.program = program;
    of.lanes = (void *)(program + 1);
    return of;
}

/* Apply `then` in place: the operator map, whose first operand is the result so far. */
static void run_then(const op_call *call, const ir_box *box, void *scratch)
{
    op_call end = *call;
    const ir_attribute of_map[] = {call->attributes[THEN], {0}};
    const uint32_t n = count_inputs(call->op);
    end.attributes = of_map;
    end.in[0] = call->out[0];
    for (end.n_in = 1; n + end.n_in <= call->n_in; end.n_in++)
        end.in[end.n_in] = call->in[n + end.n_in - 1];
    op_map.ref(&end, box, scratch);
}

/* Up to STRIP entries of the result, from `at` on along its last axis, of which box has `left`;
 * returns how many. */
static int64_t reduce_strip(const terms *of, const int64_t *at, int64_t left)
{
    const op_call *call = of->call;
    const op_view *x = &of->x, *y = &call->out[0];
    const uint32_t set = reduced_axes(call->op), last = y->rank ? y->rank - 1 : 0;
    const bool into_one = !x->rank || set >> (x->rank - 1) & 1;
    const bool exact = walk_is_exact(x->dtype) && walk_is_exact(y->dtype);
    const int64_t n = into_one ? 1 : op_clamp(left, 1, STRIP);
    const reduce_kind kind = kind_of(call->op);
    ir_box one = {0}, part;
    strip s;
    for (uint32_t i = 0; i < y->rank; i++) {
        one.lo[i] = at[i];
        one.hi[i] = at[i] + 1;
    }
    if (y->rank)
        one.hi[last] = at[last] + n;
    spread_box(x->rank, x->dims, set, call->attributes[KEEP].i != 0, &one, &part);
    if (set & 1 && part.hi[0] > op_live_entries(call, x))
        part.hi[0] = op_live_entries(call, x);
    begin(&s, kind == LOGSUMEXP ? MAX : kind, exact);
    fold_part(&s, of, &part, into_one);
    if (kind == LOGSUMEXP) {
        begin_exponentials(&s);
        fold_part(&s, of, &part, into_one);
    }
    store_strip(&s, y, walk_offset(y, at), y->rank ? y->stride[last] : 1, n);
    return n;
}

/* For the program of expr and then that of then. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    return has_expression(op) ? op_map.scratch_bytes(g, op, box) : 0;
}

/* The strip lies along the last axis of the result if that is the last axis of x; else entries
 * are made one by one, each from whole rows of x. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *y = &call->out[0];
    const terms of = terms_of(call, scratch);
    uint32_t last = y->rank ? y->rank - 1 : 0;
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do
        at[last] += reduce_strip(&of, at, box->hi[last] - at[last]) - 1;
    while (walk_next(box, y->rank, at));
    if (call->attributes[THEN].s.n)
        run_then(call, box, scratch);
}

static const op_operand in[] = {{"x", OP_VARIADIC}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("axes", INTS), SHAPE_INT("keep", 0),
                                          SHAPE_WORD("kind", "sum"),  SHAPE_WORD("dtype", ""),
                                          SHAPE_WORD("expr", ""),     SHAPE_INT("inputs", 1),
                                          SHAPE_WORD("then", "")};

#define CASE(x, rest)                                    \
    {                                                    \
        "input %x : " x "\n%y = reduce(%x) {" rest "}\n" \
    }
/* Of a tensor whose axes are permuted. */
#define ACROSS(x, perm, rest)                                                                  \
    {                                                                                          \
        "input %x : " x "\n%t = transpose(%x) {perm = " perm "}\n%y = reduce(%t) {" rest "}\n" \
    }
/* Each kind, axes in any order, live axes kept and reduced, results wider than x, scalars;
 * expressions: of short and of long rows, by eights and not, across, broadcast along each axis;
 * neighbours along an axis that stays, first, last and between, by few threads and by many. */
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
    CASE("bf16[3, 40, 9]", "axes = [1], then = \"bf16(x0 / (1 + exp(-x0)))\""),
    {"input %x : bf16[2, 70, 16]\ninput %w : bf16[2, 1, 16]\n%y = reduce(%x, %w) {axes = [2], "
     "dtype "
     "= \"bf16\", expr = \"bf16(x0 * x1)\", inputs = 2}\n"},
    {"input %x : bf16[2, 70, 4]\nconst %w : bf16[70, 4]\nconst %b : bf16[70]\n%y = reduce(%x, %w, "
     "%b) {axes = [2], dtype = \"bf16\", expr = \"bf16(x0 * x1)\", inputs = 2, then = \"t0 = "
     "bf16(x0 "
     "+ x1); bf16(t0 / (1 + exp(-t0)))\"}\n"},
    {"input %x : f32[5, 24]\ninput %s : f32[5, 1]\ninput %r : bf16[1]\n%y = reduce(%x, %s, %r, %s) "
     "{axes = [1], kind = \"mean\", keep = 1, expr = \"x0 - x1\", inputs = 2, then = \"x0 * x2 + "
     "x1\"}\n"},
    {"input %x : f16[3, 5, 40]\ninput %w : f32[5, 1]\n%y = reduce(%x, %w) {axes = [1, 0], kind = "
     "\"max\", dtype = \"f16\", expr = \"f16(x0 * x1)\", inputs = 2}\n"},
    ACROSS("bf16[3, 7, 5, 40]", "[0, 3, 1, 2]", "axes = [2, 3], keep = 1, kind = \"mean\""),
    ACROSS("f16[2, 90, 24]", "[0, 1, 2]", "axes = [1], dtype = \"f32\""),
    ACROSS("bf16[130, 2, 8]", "[2, 0, 1]", "axes = [1], kind = \"max\""),
    ACROSS("f16[9, 2, 3, 16]", "[1, 3, 0, 2]", "axes = [2, 0], kind = \"min\""),
    ACROSS("bf16[3, 5, 72]", "[0, 1, 2]", "axes = [1], kind = \"prod\""),
    {"input %x : f32[3, 600]\n%y = reduce(%x) {axes = [1], expr = \"x0 * x0\", then = "
     "\"sqrt(x0)\"}\n"},
};

const op_def op_reduce = {
    .name = "reduce",
    .summary =
        "sum, mean, max, min, prod, logsumexp, any or all over any axes, of x or an expression",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill_wide_integers,
};
