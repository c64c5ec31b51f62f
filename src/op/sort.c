/* sort.c - entries in order along an axis, and where each was.
 *
 * x [.., n, ..] -> values in x's dtype and indices i64, both of x's shape; rising, or falling if
 * `descending`.  NaN is the largest; equal entries keep their order.
 *
 *   3, 1, NaN, 1  ->  values 1, 1, 3, NaN; indices 1, 3, 0, 2
 *
 * Idea: bottom-up merge sort in scratch.  Cost: n log n comparisons a line, 32 bytes of scratch
 * an entry.
 */
#include "op/sort.h"

/* Attributes, by index. */
enum { AXIS, DESCENDING };

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    TRY(line_infer(cx, g, op, SHAPE_PLAIN));
    sort_infer(shape_input(g, op, 0), op, shape_input(g, op, 0)->dims[line_axis(op)], out);
    return MPK_OK;
}

/* Scratch: two halves of n entries, between which the runs are merged. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)g;
    return (size_t)(box->hi[line_axis(op)] - box->lo[line_axis(op)]) * 2 * sizeof(sort_entry);
}

/* Merge the sorted runs [lo, mid) and [mid, hi).  Of equal entries the first run's come first,
 * which keeps the sort stable. */
static void merge(sort_order order, const sort_entry *from, int64_t lo, int64_t mid, int64_t hi,
                  sort_entry *to)
{
    int64_t a = lo, b = mid;
    for (int64_t i = lo; i < hi; i++) {
        bool second = a == mid || (b < hi && sort_before(order, from[b], from[a]));
        to[i] = from[second ? b++ : a++];
    }
}

/* Sort a line of n.  Runs of `width` are merged to runs of twice that, from one half of scratch
 * to the other and back; returns the half that holds the result. */
static const sort_entry *order_line(sort_order order, const op_view *x, int64_t offset,
                                    int64_t stride, int64_t n, int64_t k, sort_entry *scratch)
{
    (void)k;
    sort_entry *from = scratch, *to = scratch + n;
    for (int64_t i = 0; i < n; i++)
        from[i] = (sort_entry){line_load(x, offset + i * stride), i};
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t lo = 0; lo < n; lo += 2 * width) {
            int64_t mid = op_clamp(lo + width, 0, n), hi = op_clamp(mid + width, 0, n);
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
    sort_box(call, box, call->attributes[DESCENDING].i != 0, order_line, scratch);
}

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
    SORT_RECORD,
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
