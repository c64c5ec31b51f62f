/* line.h - operators that work on lines along one axis: x [.., n, ..], each line on its own.
 *
 * The results have the lines' shape with n, or another number of, entries along the axis, or
 * lack the axis.  Cuts go between lines alone.  Used by extreme, scan, scan_extreme, sort, topk
 * and their like.
 */
#ifndef OP_LINE_H
#define OP_LINE_H

#include "op/shape.h"
#include "op/walk.h"

/* The axis: attribute 0 of such a record. */
static inline uint32_t line_axis(const ir_op *op)
{
    return (uint32_t)op->attributes[0].i;
}

/* MPK_ESHAPE unless the axis is one of input 0, and is not a partly alive axis 0, whose lines
 * would not be whole. */
static inline mpk_status line_infer(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                    uint32_t dtypes)
{
    TRY(shape_expect_dtype(cx, g, op, 0, dtypes));
    TRY(shape_expect_axis(cx, g, op, 0, op->attributes[0].i));
    return op->attributes[0].i == 0 ? shape_expect_whole(cx, g, op, 0) : MPK_OK;
}

/* Every axis may be cut but that of the lines. */
static inline void line_axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    shape_axes_all(g, op, axes);
    axes[line_axis(op)].grain = 0;
}

/* Whole lines are read, whatever part of the result is asked for. */
static inline void line_reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                              ir_box *read)
{
    *read = *box;
    read->lo[line_axis(op)] = 0;
    read->hi[line_axis(op)] = shape_input(g, op, input)->dims[line_axis(op)];
}

/* What entries are compared by: integers exactly, floats as double.  walk_is_exact of the dtype
 * says which. */
typedef union line_key {
    double f;
    int64_t i;
} line_key;

/* An entry as a key. */
static inline line_key line_load(const op_view *x, int64_t offset)
{
    line_key key;
    if (walk_is_exact(x->dtype))
        key.i = walk_load_int(x, offset);
    else
        key.f = walk_load_double(x, offset);
    return key;
}

/* Does a come before b in rising order?  NaN is larger than all numbers. */
static inline bool line_less(bool exact, line_key a, line_key b)
{
    if (exact)
        return a.i < b.i;
    return a.f < b.f || (b.f != b.f && a.f == a.f);
}

/* Integers have no NaN; their bits read as a double might look like one. */
static inline bool line_is_nan(bool exact, line_key a)
{
    return !exact && a.f != a.f;
}

#endif
