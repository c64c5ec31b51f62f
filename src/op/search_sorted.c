/* search_sorted.c - where values would be inserted into sorted lines so that the order stays.
 *
 * sorted [.., N] rising, or [N] for all lines, values [.., M] of the same dtype -> i64 of
 * values' shape: before equal entries, or (right) after them.
 *
 *   sorted 1, 3, 3, 5: value 3 gives 1, with right 3; value 9 gives 4
 *
 * NaN goes to the end.  Lines that are not sorted give some index in 0 .. N.  Cost: log N
 * comparisons a value.
 */
#include "op/line.h"

/* Inputs, by index. */
enum { SORTED, VALUES };

/* One sorted line for all values, or one for each line of them. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *sorted = shape_input(g, op, SORTED), *values = shape_input(g, op, VALUES);
    TRY(shape_expect_dtype(cx, g, op, SORTED, SHAPE_PLAIN));
    TRY(shape_expect_dtype(cx, g, op, VALUES, 1u << sorted->dtype));
    TRY(shape_expect_whole(cx, g, op, SORTED));
    CHECK(cx, sorted->rank == 1 || (sorted->rank > 1 && sorted->rank == values->rank), MPK_ESHAPE,
          "search_sorted: sorted has rank %u, values %u", sorted->rank, values->rank);
    for (uint32_t i = 0; i + 1 < sorted->rank; i++)
        CHECK(cx, sorted->dims[i] == values->dims[i], MPK_ESHAPE,
              "search_sorted: axis %u of sorted has %lld entries, of values %lld", i,
              (long long)sorted->dims[i], (long long)values->dims[i]);
    shape_like(values, out);
    out->dtype = IR_I64;
    return MPK_OK;
}

/* Whole sorted lines, of the box's own lines if each has its own. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *t = shape_input(g, op, input);
    *read = *box;
    if (input == VALUES)
        return;
    *read = ir_box_whole(t);
    for (uint32_t i = 0; i + 1 < t->rank; i++) {
        read->lo[i] = box->lo[i];
        read->hi[i] = box->hi[i];
    }
}

/* Binary search for one value; offset: of the sorted line.  Comparisons with NaN are false, so a
 * NaN is after every entry and goes to the end. */
static int64_t search(const op_view *sorted, int64_t offset, line_key value, bool right)
{
    bool exact = walk_is_exact(sorted->dtype);
    uint32_t last = sorted->rank - 1;
    int64_t lo = 0, hi = sorted->dims[last];
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        line_key k = line_load(sorted, offset + mid * sorted->stride[last]);
        bool after = exact ? k.i > value.i : k.f > value.f;
        bool equal = exact ? k.i == value.i : k.f == value.f;
        if (after || (equal && !right))
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* Value by value; `line` is the offset of the sorted line that belongs to it. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *sorted = &call->in[SORTED], *values = &call->in[VALUES], *y = &call->out[0];
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do {
        int64_t line = 0;
        for (uint32_t i = 0; i + 1 < sorted->rank; i++)
            line += at[i] * sorted->stride[i];
        line_key value = line_load(values, walk_offset(values, at));
        ((int64_t *)y->data)[walk_offset(y, at)] =
            search(sorted, line, value, call->attributes[0].i);
    } while (walk_next(box, y->rank, at));
}

static const op_operand in[] = {{"sorted", 0}, {"values", 0}}, out[] = {{"index", 0}};
static const op_attribute attributes[] = {SHAPE_INT("right", 0)};
static const op_case cases[] = {
    {"input %s : f32[20]\ninput %v : f32[7, 3] live=tokens\n%i = search_sorted(%s, %v)\n"},
    {"input %s : i64[3, 4]\ninput %v : i64[3, 2]\n%i = search_sorted(%s, %v) {right = 1}\n"},
    {"input %s : bf16[1]\ninput %v : bf16[]\n%i = search_sorted(%s, %v)\n"},
};

const op_def op_search_sorted = {
    .name = "search_sorted",
    .summary = "where values would be inserted into sorted lines",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
};
