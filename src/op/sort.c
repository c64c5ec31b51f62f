/* sort.c - entries in order along an axis, and where each was.
 *
 * x [.., n, ..] -> values in x's dtype and indices i64, both of x's shape; rising, or falling if `descending`.  NaN is
 * the largest; equal entries keep their order.
 *
 * Idea: merge sort from the bottom, in scratch. Cost: n log n comparisons a line, 32 bytes of scratch an entry.
 */
#include "op/fill.h"
#include "op/sort.h"

enum { AXIS, DESCENDING };

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    TRY(line_infer(cx, g, op, SHAPE_PLAIN));
    shape_like(shape_input(g, op, 0), &out[0]);
    shape_like(shape_input(g, op, 0), &out[1]);
    out[1].dtype = IR_I64;
    return MPK_OK;
}

static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)g;
    return (size_t)(box->hi[line_axis(op)] - box->lo[line_axis(op)]) * 2 * sizeof(sort_entry);
}

/* Merge the runs [lo, mid) and [mid, hi). */
static void merge(sort_order order, const sort_entry *from, int64_t lo, int64_t mid, int64_t hi, sort_entry *to)
{
    int64_t a = lo, b = mid;
    for (int64_t i = lo; i < hi; i++) {
        bool second = a == mid || (b < hi && sort_before(order, from[b], from[a]));
        to[i] = from[second ? b++ : a++];
    }
}

/* Returns the half of the scratch that holds the sorted entries. */
static const sort_entry *sort_line(sort_order order, sort_entry *from, int64_t n)
{
    sort_entry *to = from + n;
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t lo = 0; lo < n; lo += 2 * width) {
            int64_t mid = lo + width < n ? lo + width : n, hi = mid + width < n ? mid + width : n;
            merge(order, from, lo, mid, hi, to);
        }
        sort_entry *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *x = &call->in[0];
    uint32_t axis = line_axis(call->op);
    sort_order order = {walk_is_exact(x->dtype), call->attributes[DESCENDING].i != 0};
    sort_entry *entries = scratch;
    ir_box lines = *box;
    lines.hi[axis] = 1;
    int64_t at[IR_MAX_RANK], n = x->dims[axis];
    memcpy(at, lines.lo, sizeof at);
    do {
        int64_t offset = walk_offset(x, at);
        for (int64_t i = 0; i < n; i++)
            entries[i] = (sort_entry){line_load(x, offset + i * x->stride[axis]), i};
        const sort_entry *sorted = sort_line(order, entries, n);
        for (int64_t i = 0; i < n; i++)
            sort_store(call, at, i, sorted[i].index);
    } while (walk_next(&lines, x->rank, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"values", 0}, {"indices", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("axis", INT), SHAPE_INT("descending", 0)};
static const op_case cases[] = {
    {"input %x : f32[7, 33] live=tokens\n%v, %i = sort(%x) {axis = 1}\n"},
    {"input %x : bf16[9, 3, 2]\n%v, %i = sort(%x) {axis = 0, descending = 1}\n"},
    {"input %x : i64[10]\n%v, %i = sort(%x) {axis = 0}\n"},
    {"input %x : bf16[1500, 2]\n%v, %i = sort(%x) {axis = 0}\n"},
    {"input %x : bool[3, 5]\n%v, %i = sort(%x) {axis = 1, descending = 1}\n"},
};

const op_def op_sort = {
    .name = "sort",
    .summary = "entries in order along an axis, and where each was; stable",
    .in = in,
    .out = out,
    .n_in = SHAPE_COUNT(in),
    .n_out = SHAPE_COUNT(out),
    .attributes = attributes,
    .n_attributes = SHAPE_COUNT(attributes),
    .infer = infer,
    .axes = line_axes,
    .reads = line_reads,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    .cases = cases,
    .n_cases = SHAPE_COUNT(cases),
    .fill = fill_wide_integers,
};
