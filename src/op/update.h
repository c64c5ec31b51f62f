/* update.h - operators that change a part of a tensor: the result is a copy of x, or x's own
 * storage (in_place).  Shared by scatter, slice_scatter and their like.
 *
 * In place, x must be state, or a temporary that nothing reads afterwards; the verifier checks
 * that.  Entries that are not written keep their value and are not touched.
 */
#ifndef OP_UPDATE_H
#define OP_UPDATE_H

#include "op/shape.h"
#include "op/walk.h"

/* The result is like x, which is input 0; in place it shares x's storage. */
static inline void update_infer(const ir_graph *g, const ir_op *op, bool in_place, ir_tensor *out)
{
    shape_like(shape_input(g, op, 0), out);
    if (in_place)
        out->shares = op->in[0];
}

/* The box of x that computing `box` reads: itself, because it is copied.  In place nothing,
 * unless old values enter the result (`old`). */
static inline void update_reads(bool in_place, bool old, const ir_box *box, ir_box *read)
{
    *read = *box;
    if (in_place && !old)
        *read = (ir_box){0};
}

/* First step of the reference: copy the box of x to the result, unless they share their storage. */
static inline void update_begin(const op_call *call, const ir_box *box, bool in_place)
{
    const op_view *x = &call->in[0], *y = &call->out[0];
    uint32_t last = y->rank ? y->rank - 1 : 0;
    int64_t at[IR_MAX_RANK], n = y->rank ? box->hi[last] - box->lo[last] : 1;
    if (in_place)
        return;
    memcpy(at, box->lo, sizeof at);
    do
        walk_copy(y, walk_offset(y, at), y->stride[last], x, walk_offset(x, at), x->stride[last],
                  n);
    while (walk_next(box, last, at));
}

/* y[to] += from[at] in y's arithmetic: integers modulo their width, bool is "or", floats in
 * double, rounded once. */
static inline void update_add(const op_view *y, int64_t to, const op_view *from, int64_t at)
{
    if (y->dtype == IR_BOOL)
        walk_store_int(y, to, walk_load_int(y, to) | walk_load_int(from, at));
    else if (walk_is_exact(y->dtype))
        walk_store_int(
            y, to, (int64_t)((uint64_t)walk_load_int(y, to) + (uint64_t)walk_load_int(from, at)));
    else
        walk_store_double(y, to, walk_load_double(y, to) + walk_load_double(from, at));
}

#endif
