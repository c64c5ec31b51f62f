/* index.h - index tensors on the leading axes of x: what index.c and index_put.c share.
 *
 * x [N0 .. Nk-1, rest], k index tensors of i32 or i64, broadcast among themselves to [I ..]:
 * together they name entries [rest] of x.  A negative number counts from the end, so -1 is the
 * last entry; of a partly alive axis 0 the last live one.
 */
#ifndef OP_INDEX_H
#define OP_INDEX_H

#include "op/fill.h"
#include "op/walk.h"

/* The shape that the inputs first .. n_in - 1 broadcast to.  MPK_ESHAPE: they are not integers,
 * or more than x has axes. */
static inline mpk_status index_shape(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                     uint32_t first, ir_tensor *shape)
{
    ir_op indices = *op;
    CHECK(cx, op->n_in - first <= shape_input(g, op, 0)->rank, MPK_ESHAPE,
          "%s: %u index tensors for rank %u", op->def->name, op->n_in - first,
          shape_input(g, op, 0)->rank);
    indices.n_in = op->n_in - first;
    for (uint32_t i = first; i < op->n_in; i++) {
        TRY(shape_expect_dtype(cx, g, op, i, SHAPE_INDEX));
        indices.in[i - first] = op->in[i];
    }
    return shape_broadcast(cx, g, &indices, shape);
}

/* The entry of an axis of n that a number of an index tensor names; -1: there is none. */
static inline int64_t index_resolve(int64_t number, int64_t n)
{
    number += number < 0 ? n : 0;
    return number >= 0 && number < n ? number : -1;
}

/* Fill to[k] with the entries of x's leading axes that position `at` of the broadcast indices
 * (rank `rank`) names; false if one does not exist. */
static inline bool index_load(const op_call *call, uint32_t first, uint32_t rank, const int64_t *at,
                              int64_t *to)
{
    const op_view *x = &call->in[0];
    for (uint32_t k = 0; k + first < call->n_in; k++) {
        const op_view *index = &call->in[k + first];
        int64_t n = k == 0 ? op_live_entries(call, x) : x->dims[k];
        to[k] = index_resolve(walk_load_int(index, walk_broadcast(index, rank, at)), n);
        if (to[k] < 0)
            return false;
    }
    return true;
}

/* The `fill` of index tensors from input `first` on: negative numbers too, and some that name
 * nothing. */
static inline void index_fill(const ir_graph *g, const ir_op *op, uint32_t input, uint32_t first,
                              uint64_t seed, void *data)
{
    const ir_tensor *t = shape_input(g, op, input);
    int64_t n = input < first ? 0 : shape_input(g, op, 0)->dims[input - first];
    for (int64_t i = 0; n && i < ir_elements(t); i++)
        fill_store(t, i, fill_choose(seed, (uint64_t)i, 2 * n) - n, data);
}

#endif
