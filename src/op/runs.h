/* runs.h - where operators that go entry by entry may be cut: anywhere, but on GPUs, where tiles
 * are whole, the last axis into runs of neighbours only, which a task reads and writes by lines.
 * For the records of such operators. */
#ifndef OP_RUNS_H
#define OP_RUNS_H

#include "op/shape.h"

/* Neighbours that stay together on an axis of n entries: of a long one 64, of others the most that
 * it is a multiple of, or all. */
static inline int64_t runs_of(int64_t n)
{
    enum { LONG = 1024, MOST = 64, LEAST = 8 };
    int64_t run = MOST;
    while (n <= LONG && run >= LEAST && n % run)
        run /= 2;
    return run >= LEAST ? run : n;
}

/* A record's `axes`. */
static inline void runs_axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const ir_tensor *y = &g->tensors.at[op->out[0]];
    shape_axes_all(g, op, axes);
    if (y->rank > 1)
        axes[y->rank - 1].tile = runs_of(y->dims[y->rank - 1]);
}

#endif
