/* sort.h - the order of entries along a line: by value, then by place; NaN is the largest.  What
 * sort.c and topk.c share: x [.., n, ..] -> values in x's dtype and indices i64, with the first
 * k entries of each line in order.
 *
 * The values are copied from x by their index, so they keep all their bits.
 */
#ifndef OP_SORT_H
#define OP_SORT_H

#include "op/fill.h"
#include "op/line.h"

/* An entry of a line while it is sorted: its value, and its place in the line. */
typedef struct sort_entry {
    line_key key;
    int64_t index;
} sort_entry;

/* How entries are compared. */
typedef struct sort_order {
    bool exact; /* keys are integers */
    bool falling;
} sort_order;

/* Must a stand before b, by value alone? */
static inline bool sort_before(sort_order o, sort_entry a, sort_entry b)
{
    return o.falling ? line_less(o.exact, b.key, a.key) : line_less(o.exact, a.key, b.key);
}

/* Both results are like x, with k entries along the axis; the second holds indices. */
static inline void sort_infer(const ir_tensor *x, const ir_op *op, int64_t k, ir_tensor *out)
{
    shape_like(x, &out[0]);
    out[0].dims[line_axis(op)] = k;
    shape_like(&out[0], &out[1]);
    out[1].dtype = IR_I64;
}

/* Entry i of both results, on the line at at[], is entry `index` of that line of x. */
static inline void sort_store(const op_call *call, const int64_t *at, int64_t i, int64_t index)
{
    const op_view *x = &call->in[0], *values = &call->out[0], *indices = &call->out[1];
    uint32_t axis = line_axis(call->op);
    walk_copy(values, walk_offset(values, at) + i * values->stride[axis], 1, x,
              walk_offset(x, at) + index * x->stride[axis], 1, 1);
    ((int64_t *)indices->data)[walk_offset(indices, at) + i * indices->stride[axis]] = index;
}

/* A way to order: the first k of the n entries of a line of x that begins at `offset`; the
 * result lies in scratch. */
typedef const sort_entry *sort_line(sort_order order, const op_view *x, int64_t offset,
                                    int64_t stride, int64_t n, int64_t k, sort_entry *scratch);

/* All lines of the box, one after the other, by the given way to order; as many entries of each
 * as the results have. */
static inline void sort_box(const op_call *call, const ir_box *box, bool falling, sort_line *line,
                            void *scratch)
{
    const op_view *x = &call->in[0];
    uint32_t axis = line_axis(call->op);
    sort_order order = {walk_is_exact(x->dtype), falling};
    ir_box lines = *box;
    lines.hi[axis] = 1;
    int64_t at[IR_MAX_RANK], k = call->out[0].dims[axis];
    memcpy(at, lines.lo, sizeof at);
    do {
        const sort_entry *sorted =
            line(order, x, walk_offset(x, at), x->stride[axis], x->dims[axis], k, scratch);
        for (int64_t i = 0; i < k; i++)
            sort_store(call, at, i, sorted[i].index);
    } while (walk_next(&lines, x->rank, at));
}

static const op_operand sort_in[] = {{"x", 0}}, sort_out[] = {{"values", 0}, {"indices", 0}};

/* What the records have in common. */
#define SORT_RECORD                                                                   \
    OP_INPUTS(sort_in), OP_OUTPUTS(sort_out), .axes = line_axes, .reads = line_reads, \
                                              .fill = fill_wide_integers

#endif
