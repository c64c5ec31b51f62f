/* reduce.c - sum, mean, largest, smallest or product over any axes.
 *
 * x [..] -> the other axes (keep: reduced axes stay with one entry).  Floats are accumulated in double in row-major
 * order of the reduced axes and rounded once; integers exactly (modulo 2^64; no mean).  Of an axis 0 that is partly
 * alive only the living entries count: of none the sum is 0, the mean NaN, the largest -inf.
 *
 * Cost: one pass over x. Only axes that stay may be cut, so every reduction has one order.
 */
#include <math.h>

#include "op/fill.h"
#include "op/walk.h"

enum { AXES, KEEP, KIND };

/* The axes that go, as a set of bits. */
static uint32_t reduced_axes(const ir_op *op)
{
    uint32_t set = 0;
    for (uint32_t i = 0; i < op->attributes[AXES].ints.n; i++)
        set |= 1u << op->attributes[AXES].ints.at[i];
    return set;
}

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const ir_attribute *a = op->attributes;
    str kind = a[KIND].s;
    CHECK(cx,
          str_is(kind, "sum") || str_is(kind, "mean") || str_is(kind, "max") || str_is(kind, "min") ||
              str_is(kind, "prod"),
          MPK_EUNSUPPORTED, "reduce: kind \"%.*s\" is not one of sum, mean, max, min, prod", STR_ARG(kind));
    TRY(shape_expect_dtype(cx, g, op, 0, str_is(kind, "mean") ? SHAPE_FLOAT : SHAPE_FLOAT | SHAPE_I32 | SHAPE_I64));
    uint32_t set = 0;
    for (uint32_t i = 0; i < a[AXES].ints.n; i++) {
        int64_t axis = a[AXES].ints.at[i];
        CHECK(cx, axis >= 0 && axis < x->rank && !(set >> axis & 1), MPK_ESHAPE,
              "reduce: axes names %lld, expected each at most once and below the rank %u", (long long)axis, x->rank);
        set |= 1u << axis;
    }
    out->dtype = x->dtype;
    out->live = set & 1 ? IR_ALL : x->live;
    for (uint32_t i = 0; i < x->rank; i++)
        if (!(set >> i & 1))
            out->dims[out->rank++] = x->dims[i];
        else if (a[KEEP].i)
            out->dims[out->rank++] = 1;
    return MPK_OK;
}

/* The box of x that the box of the result is made of. */
static void spread_box(uint32_t rank, const int64_t *dims, uint32_t set, bool keep, const ir_box *box, ir_box *read)
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

static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box, ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, input);
    spread_box(x->rank, x->dims, reduced_axes(op), op->attributes[KEEP].i != 0, box, read);
}

/* Accumulate one box of x as double; *n entries. */
static double reduce_floats(const op_view *x, const ir_box *box, str kind, int64_t *n)
{
    bool largest = str_is(kind, "max"), smallest = str_is(kind, "min"), product = str_is(kind, "prod");
    double result = largest ? -INFINITY : smallest ? INFINITY : product ? 1 : 0;
    int64_t at[IR_MAX_RANK];
    *n = 0;
    if (ir_box_is_empty(box, x->rank))
        return result;
    memcpy(at, box->lo, sizeof at);
    do {
        double value = (double)op_load(x, walk_offset(x, at));
        if (largest || smallest)
            result = isnan(value) || (largest ? value > result : value < result) ? value : result;
        else
            result = product ? result * value : result + value;
        ++*n;
    } while (walk_next(box, x->rank, at));
    return result;
}

/* The same for integers: sums and products wrap around, as their dtype does when stored. */
static int64_t reduce_integers(const op_view *x, const ir_box *box, str kind)
{
    bool largest = str_is(kind, "max"), smallest = str_is(kind, "min"), product = str_is(kind, "prod");
    int64_t least = x->dtype == IR_I32 ? INT32_MIN : INT64_MIN, at[IR_MAX_RANK];
    int64_t result = largest ? least : smallest ? ~least : product;
    if (ir_box_is_empty(box, x->rank))
        return result;
    memcpy(at, box->lo, sizeof at);
    do {
        int64_t value = walk_load_int(x, walk_offset(x, at));
        if (largest || smallest)
            result = (largest ? value > result : value < result) ? value : result;
        else
            result = (int64_t)(product ? (uint64_t)result * (uint64_t)value : (uint64_t)result + (uint64_t)value);
    } while (walk_next(box, x->rank, at));
    return result;
}

/* Reduce one part of x to the entry of the result at this offset. */
static void store_entry(const op_call *call, const ir_box *part, int64_t offset)
{
    const op_view *x = &call->in[0], *y = &call->out[0];
    str kind = call->attributes[KIND].s;
    int64_t n;
    if (x->dtype == IR_I32) {
        ((uint32_t *)y->data)[offset] = (uint32_t)(uint64_t)reduce_integers(x, part, kind);
    } else if (x->dtype == IR_I64) {
        ((int64_t *)y->data)[offset] = reduce_integers(x, part, kind);
    } else {
        double result = reduce_floats(x, part, kind, &n);
        op_store(y, offset, (float)(str_is(kind, "mean") ? result / (double)n : result));
    }
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *y = &call->out[0];
    uint32_t set = reduced_axes(call->op);
    int64_t at[IR_MAX_RANK], alive = op_live_entries(call, x);
    memcpy(at, box->lo, sizeof at);
    do {
        ir_box one = {0}, part;
        for (uint32_t i = 0; i < y->rank; i++) {
            one.lo[i] = at[i];
            one.hi[i] = at[i] + 1;
        }
        spread_box(x->rank, x->dims, set, call->attributes[KEEP].i != 0, &one, &part);
        if (set & 1 && part.hi[0] > alive)
            part.hi[0] = alive;
        store_entry(call, &part, walk_offset(y, at));
    } while (walk_next(box, y->rank, at));
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    const ir_tensor *t = shape_input(g, op, input);
    for (int64_t i = 0; t->dtype != IR_F32 && i < ir_elements(t); i++)
        fill_store(t, i, (int64_t)rng_u64(seed, (uint64_t)i), data);
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("axes", INTS), SHAPE_INT("keep", 0), SHAPE_WORD("kind", "sum")};

#define CASE(x, rest)                                    \
    {                                                    \
        "input %x : " x "\n%y = reduce(%x) {" rest "}\n" \
    }
static const op_case cases[] = {
    CASE("f32[7, 320] live=tokens", "axes = [1]"),
    CASE("f32[7, 5] live=tokens", "axes = [0], kind = \"mean\""),
    CASE("bf16[3, 4, 5]", "axes = [0, 2], keep = 1, kind = \"max\""),
    CASE("f32[7, 4, 5] live=tokens", "axes = [1], kind = \"min\""),
    CASE("i32[3, 4]", "axes = [1], kind = \"prod\""),
    CASE("i64[3, 4, 2]", "axes = [2, 0]"),
    CASE("i32[3, 4]", "axes = [0, 1], kind = \"max\""),
    CASE("f16[3, 4]", "axes = [], kind = \"sum\""),
};

const op_def op_reduce = {
    .name = "reduce",
    .summary = "sum, mean, max, min or prod over any axes",
    .in = in,
    .out = out,
    .n_in = SHAPE_COUNT(in),
    .n_out = SHAPE_COUNT(out),
    .attributes = attributes,
    .n_attributes = SHAPE_COUNT(attributes),
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .ref = ref,
    .cases = cases,
    .n_cases = SHAPE_COUNT(cases),
    .fill = fill,
};
