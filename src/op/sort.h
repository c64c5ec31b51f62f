/* sort.h - the order of entries along a line, for sort and topk: by value, then by place; NaN is the largest. */
#ifndef OP_SORT_H
#define OP_SORT_H

#include "op/line.h"

typedef struct sort_entry {
    line_key key;
    int64_t index;
} sort_entry;

typedef struct sort_order {
    bool exact; /* keys are integers */
    bool falling;
} sort_order;

/* True if a must stand before b, by value alone. */
static inline bool sort_before(sort_order o, sort_entry a, sort_entry b)
{
    return o.falling ? line_less(o.exact, b.key, a.key) : line_less(o.exact, a.key, b.key);
}

/* Entry i of both results is entry `index` of the line of x. */
static inline void sort_store(const op_call *call, const int64_t *at, int64_t i, int64_t index)
{
    const op_view *x = &call->in[0], *values = &call->out[0], *indices = &call->out[1];
    uint32_t axis = line_axis(call->op);
    walk_copy(values, walk_offset(values, at) + i * values->stride[axis], 1, x,
              walk_offset(x, at) + index * x->stride[axis], 1, 1);
    ((int64_t *)indices->data)[walk_offset(indices, at) + i * indices->stride[axis]] = index;
}

#endif
