/* scatter.c - entries of src go to the entries of x that an index tensor names along an axis,
 * place by place.
 *
 * x [..], index i32 or i64 and src [..] of the same rank -> y like x: y[.., index[.., i, ..],
 * ..] = src[.., i, ..].  index is no longer than src in any axis, and no longer than x except
 * along the axis.  kind "set": of several the last stays; sum, prod, mean, max, min: all are
 * combined in order, with x's own value (include_self) or without.  An index that names no entry
 * is skipped; a negative one counts from the end.  in_place: y is x's storage.
 *
 *   x = 1, 1, 1, index = 2, 0, 2, src = 5, 6, 7
 *   set: 6, 1, 7     sum: 7, 1, 13     sum without include_self: 6, 1, 12
 *
 * Idea: values are combined in scratch, as doubles or 64-bit integers, 4096 entries of a line at
 * a time.  Cost: a copy of x, and one pass over index and src for each 4096 entries along the
 * axis.
 */
#include <math.h>

#include "op/index.h"
#include "op/line.h"
#include "op/update.h"

/* Inputs and attributes, by index. */
enum { X, INDEX, SRC };
enum { AXIS, KIND, INCLUDE_SELF, IN_PLACE };
typedef enum scatter_kind { SET, SUM, PROD, MEAN, MAX, MIN, KINDS } scatter_kind;
/* Entries of a line of y that are combined at once; bounds the scratch. */
enum { PART = 4096 };

/* The kind that the attribute names; KINDS if it names none, which infer refuses. */
static scatter_kind kind_of(const ir_op *op)
{
    static const char *const names[KINDS] = {"set", "sum", "prod", "mean", "max", "min"};
    int kind = 0;
    while (kind < KINDS && !str_is(op->attributes[KIND].s, names[kind]))
        kind++;
    return (scatter_kind)kind;
}

/* Along the axis index may be longer than x, since its numbers only name entries there. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *index = shape_input(g, op, INDEX),
                    *src = shape_input(g, op, SRC);
    TRY(line_infer(cx, g, op, SHAPE_PLAIN));
    TRY(shape_expect_dtype(cx, g, op, INDEX, SHAPE_INDEX));
    TRY(shape_expect_dtype(cx, g, op, SRC, 1u << x->dtype));
    for (uint32_t i = 0; i < 3; i++)
        TRY(shape_expect_whole(cx, g, op, i));
    CHECK(cx, kind_of(op) < KINDS, MPK_EUNSUPPORTED,
          "scatter: kind \"%.*s\" is not one of set, sum, prod, mean, max, min",
          STR_ARG(op->attributes[KIND].s));
    CHECK(cx, index->rank == x->rank && src->rank == x->rank, MPK_ESHAPE,
          "scatter: x has rank %u, index %u and src %u, expected the same", x->rank, index->rank,
          src->rank);
    for (uint32_t i = 0; i < x->rank; i++)
        CHECK(cx,
              index->dims[i] <= src->dims[i] &&
                  (i == line_axis(op) || index->dims[i] <= x->dims[i]),
              MPK_ESHAPE,
              "scatter: axis %u of index has %lld entries, more than src with %lld or x with %lld",
              i, (long long)index->dims[i], (long long)src->dims[i], (long long)x->dims[i]);
    update_infer(g, op, op->attributes[IN_PLACE].i, out);
    return MPK_OK;
}

/* Of index and src the box's lines, as far as index has them, each whole; of x what update.h
 * says. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *index = shape_input(g, op, INDEX);
    if (input == X) {
        update_reads(op->attributes[IN_PLACE].i,
                     kind_of(op) != SET && op->attributes[INCLUDE_SELF].i, box, read);
        return;
    }
    *read = *box;
    for (uint32_t i = 0; i < index->rank; i++)
        read->hi[i] = box->hi[i] < index->dims[i] ? box->hi[i] : index->dims[i];
    read->lo[line_axis(op)] = 0;
    read->hi[line_axis(op)] = index->dims[line_axis(op)];
    if (ir_box_is_empty(read, index->rank))
        *read = (ir_box){0};
}

/* The entries lo .. hi - 1 of one line of y, while src's values are combined into them. */
typedef struct line {
    const op_call *call;
    scatter_kind kind;
    int64_t lo, hi, n_index; /* n_index: entries of the line of index */
    int64_t y, index, src;   /* offsets in elements of entry 0 of the line */
    line_key *sum;           /* [hi - lo] */
    int64_t *count;          /* [hi - lo] values combined so far */
} line;

/* The entry of y that number i of the line of index names; -1: none. */
static int64_t named(const line *l, int64_t i)
{
    const op_view *index = &l->call->in[INDEX];
    uint32_t axis = line_axis(l->call->op);
    return index_resolve(walk_load_int(index, l->index + i * index->stride[axis]),
                         l->call->out[0].dims[axis]);
}

/* kind "set": in the order of index, so that of several the last stays. */
static void set_entries(const line *l)
{
    const op_view *src = &l->call->in[SRC], *y = &l->call->out[0];
    uint32_t axis = line_axis(l->call->op);
    for (int64_t i = 0; i < l->n_index; i++) {
        int64_t to = named(l, i);
        if (to >= l->lo && to < l->hi)
            walk_copy(y, l->y + to * y->stride[axis], 1, src, l->src + i * src->stride[axis], 1, 1);
    }
}

/* a with one more value b.  NaN replaces what is there, and stays. */
static line_key combine(scatter_kind kind, bool exact, line_key a, line_key b)
{
    if (kind == MAX || kind == MIN) {
        bool better = kind == MAX ? line_less(exact, a, b) : line_less(exact, b, a);
        return line_is_nan(exact, b) || (better && !line_is_nan(exact, a)) ? b : a;
    }
    if (exact)
        a.i =
            (int64_t)(kind == PROD ? (uint64_t)a.i * (uint64_t)b.i : (uint64_t)a.i + (uint64_t)b.i);
    else
        a.f = kind == PROD ? a.f * b.f : a.f + b.f;
    return a;
}

/* The mean of n values.  Integers round down, as PyTorch's do. */
static line_key mean(bool exact, line_key sum, int64_t n)
{
    if (exact)
        sum.i = sum.i / n - (sum.i % n < 0);
    else
        sum.f /= (double)n;
    return sum;
}

/* The other kinds.  count: values that an entry has so far, x's own included if it counts.
 * Entries that no index names keep x's bits. */
static void combine_entries(const line *l)
{
    const op_view *src = &l->call->in[SRC], *y = &l->call->out[0];
    uint32_t axis = line_axis(l->call->op);
    bool exact = walk_is_exact(y->dtype), include = l->call->attributes[INCLUDE_SELF].i;
    for (int64_t i = l->lo; i < l->hi; i++) {
        /* with include_self x's own value is the first of an entry's values */
        l->count[i - l->lo] = include;
        if (include)
            l->sum[i - l->lo] = line_load(y, l->y + i * y->stride[axis]);
    }
    for (int64_t i = 0; i < l->n_index; i++) {
        int64_t to = named(l, i) - l->lo;
        if (to < 0 || to >= l->hi - l->lo)
            continue;
        line_key value = line_load(src, l->src + i * src->stride[axis]);
        l->sum[to] = l->count[to] ? combine(l->kind, exact, l->sum[to], value) : value;
        l->count[to]++;
    }
    for (int64_t i = 0; i < l->hi - l->lo; i++) {
        int64_t to = l->y + (l->lo + i) * y->stride[axis];
        /* named by no index: keeps the bits that update_begin copied */
        if (l->count[i] <= include)
            continue;
        line_key value = l->kind == MEAN ? mean(exact, l->sum[i], l->count[i]) : l->sum[i];
        if (exact)
            walk_store_int(y, to, value.i);
        else
            walk_store_double(y, to, value.f);
    }
}

/* Scratch: sum and count of up to PART entries. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)g;
    int64_t n = box->hi[line_axis(op)] - box->lo[line_axis(op)];
    return (size_t)(n < PART ? n : PART) * (sizeof(line_key) + sizeof(int64_t));
}

/* Line by line, as far as index has lines; each line in parts, of which every one reads all of
 * index. Parts keep the sums and counts within scratch; SET needs neither and does a line at
 * once. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *index = &call->in[INDEX], *src = &call->in[SRC], *y = &call->out[0];
    uint32_t axis = line_axis(call->op);
    line l = {
        .call = call, .kind = kind_of(call->op), .n_index = index->dims[axis], .sum = scratch};
    ir_box lines = *box;
    int64_t at[IR_MAX_RANK], end = box->hi[axis];
    update_begin(call, box, call->attributes[IN_PLACE].i);
    for (uint32_t i = 0; i < y->rank; i++)
        /* lines that index does not have are only copied */
        lines.hi[i] = lines.hi[i] < index->dims[i] ? lines.hi[i] : index->dims[i];
    lines.lo[axis] = 0;
    lines.hi[axis] = 1;
    if (ir_box_is_empty(&lines, y->rank))
        return;
    memcpy(at, lines.lo, sizeof at);
    do {
        l.y = walk_offset(y, at);
        l.index = walk_offset(index, at);
        l.src = walk_offset(src, at);
        for (l.lo = box->lo[axis]; l.lo < end; l.lo = l.hi) {
            l.hi = end - l.lo < PART || l.kind == SET ? end : l.lo + PART;
            l.count = (int64_t *)(l.sum + (l.hi - l.lo));
            if (l.kind == SET)
                set_entries(&l);
            else
                combine_entries(&l);
        }
    } while (walk_next(&lines, y->rank, at));
}

/* Test data: most indices exist, or the test would compare untouched copies. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    if (input == INDEX)
        fill_indices(shape_input(g, op, INDEX), shape_input(g, op, X)->dims[line_axis(op)], seed,
                     data);
    else
        fill_wide_integers(g, op, input, seed, data);
}

static const op_operand in[] = {{"x", 0}, {"index", 0}, {"src", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("axis", INT), SHAPE_WORD("kind", "set"),
                                          SHAPE_INT("include_self", 1), SHAPE_INT("in_place", 0)};

#define CASE(kind_of_x, x, index, src, rest)                           \
    {                                                                  \
        kind_of_x " %x : " x "\ninput %i : " index "\ninput %s : " src \
                  "\n%y = scatter(%x, %i, %s) {axis = " rest "}\n"     \
    }
static const op_case cases[] = {
    CASE("input", "f32[5, 33]", "i64[4, 5]", "f32[5, 7]", "1"),
    CASE("state", "bf16[5, 3, 4]", "i32[9, 3, 2]", "bf16[9, 3, 4]", "0, in_place = 1"),
    CASE("input", "f32[3, 6]", "i64[3, 9]", "f32[3, 9]", "1, kind = \"sum\""),
    CASE("state", "i64[3, 6]", "i64[2, 9]", "i64[3, 9]", "1, kind = \"mean\", in_place = 1"),
    CASE("input", "f16[6, 2]", "i64[9, 2]", "f16[9, 2]", "0, kind = \"prod\", include_self = 0"),
    CASE("state", "f64[6]", "i32[9]", "f64[9]",
         "0, kind = \"max\", include_self = 0, in_place = 1"),
    CASE("input", "u8[6]", "i32[9]", "u8[9]", "0, kind = \"min\""),
};

const op_def op_scatter = {
    .name = "scatter",
    .summary = "x with entries of src set, or combined, where an index tensor says along an axis",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
