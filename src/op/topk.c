/* topk.c - the k largest, or smallest, entries along an axis in order, and where each was.
 *
 * x [.., n, ..] -> values in x's dtype and indices i64, with k entries along the axis.  NaN is
 * the largest; of equal entries the first comes first.
 *
 *   k = 2 of 3, 7, 5, 7  ->  values 7, 7; indices 1, 3
 *
 * Idea: a heap of the k best so far, with the worst of them on top.  Cost: n log k comparisons a
 * line at most.
 */
#include "op/sort.h"

/* Attributes, by index. */
enum { AXIS, COUNT, LARGEST };

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    int64_t k = op->attributes[COUNT].i;
    TRY(line_infer(cx, g, op, SHAPE_PLAIN));
    CHECK(cx, k >= 1 && k <= x->dims[line_axis(op)], MPK_ESHAPE, "topk: %lld of %lld entries",
          (long long)k, (long long)x->dims[line_axis(op)]);
    sort_infer(x, op, k, out);
    return MPK_OK;
}

/* Scratch: the heap. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)g, (void)box;
    return (size_t)op->attributes[COUNT].i * sizeof(sort_entry);
}

/* Is a better than b: before it, or equal and at a lower place?  No two entries are equally
 * good. */
static bool is_better(sort_order o, sort_entry a, sort_entry b)
{
    return sort_before(o, a, b) || (!sort_before(o, b, a) && a.index < b.index);
}

/* Move the entry at i down until no child is worse: the top is the worst entry. */
static void sink(sort_order o, sort_entry *heap, int64_t n, int64_t i)
{
    for (int64_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && is_better(o, heap[child], heap[child + 1]))
            child++;
        if (!is_better(o, heap[i], heap[child]))
            return;
        sort_entry swap = heap[i];
        heap[i] = heap[child];
        heap[child] = swap;
        i = child;
    }
}

/* The k best of a line, best first.  The first k entries make the heap, each later one replaces
 * the worst if it is better; then the heap is taken apart from its end, the worst last. */
static const sort_entry *select_line(sort_order o, const op_view *x, int64_t offset, int64_t stride,
                                     int64_t n, int64_t k, sort_entry *heap)
{
    for (int64_t i = 0; i < k; i++)
        heap[i] = (sort_entry){line_load(x, offset + i * stride), i};
    for (int64_t i = k / 2; i-- > 0;)
        sink(o, heap, k, i);
    for (int64_t i = k; i < n; i++) {
        sort_entry entry = {line_load(x, offset + i * stride), i};
        if (!is_better(o, entry, heap[0]))
            continue;
        heap[0] = entry;
        sink(o, heap, k, 0);
    }
    for (int64_t left = k; left-- > 1;) {
        sort_entry worst = heap[0];
        heap[0] = heap[left];
        heap[left] = worst;
        sink(o, heap, left, 0);
    }
    return heap;
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    sort_box(call, box, call->attributes[LARGEST].i != 0, select_line, scratch);
}

static const op_attribute attributes[] = {SHAPE_NEEDED("axis", INT), SHAPE_NEEDED("k", INT),
                                          SHAPE_INT("largest", 1)};
static const op_case cases[] = {
    {"input %x : f32[7, 33] live=tokens\n%v, %i = topk(%x) {axis = 1, k = 5}\n"},
    {"input %x : bf16[9, 3, 2]\n%v, %i = topk(%x) {axis = 0, k = 9, largest = 0}\n"},
    {"input %x : f64[2, 1500]\n%v, %i = topk(%x) {axis = 1, k = 40}\n"},
    {"input %x : i32[10]\n%v, %i = topk(%x) {axis = 0, k = 1}\n"},
    {"input %x : bool[3, 5]\n%v, %i = topk(%x) {axis = 1, k = 3}\n"},
};

const op_def op_topk = {
    .name = "topk",
    .summary = "the k largest or smallest entries along an axis in order, and where each was",
    SORT_RECORD,
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
