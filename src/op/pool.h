/* pool.h - windows over the spatial axes of x [N, C, ..]: what max_pool.c and avg_pool.c share.
 *
 * One to three spatial axes.  Window o of an axis starts at o * stride - padding and has
 * `kernel` entries, `dilation` apart.  If `output` is given instead, window o of n entries is
 * the part from o n / output to (o + 1) n / output, rounded outwards.
 *
 * Kernel 3, stride 2, padding 1 over n = 5 entries: windows start at -1, 1 and 3,
 *
 *   p 0 1 2 3 4 p
 *   [---]             window 0: entries -1 (padding), 0, 1
 *       [---]         window 1
 *           [---]     window 2
 *
 * With `output` 3 over n = 5: 0 to 2, 1 to 4, 3 to 5; neighbours may share an entry.  The
 * kernels of the CPU (cpu/window_kernels.h) and the generator of GPU code use the same windows.
 */
#ifndef OP_POOL_H
#define OP_POOL_H

#include "op/shape.h"
#include "op/walk.h"

/* The attributes that both records begin with, by index. */
enum {
    POOL_KERNEL,
    POOL_STRIDE,
    POOL_PADDING,
    POOL_DILATION,
    POOL_CEIL,
    POOL_OUTPUT,
    POOL_ATTRIBUTES
};
#define POOL_RECORD                                                                            \
    SHAPE_LIST("kernel"), SHAPE_LIST("stride"), SHAPE_LIST("padding"), SHAPE_LIST("dilation"), \
        SHAPE_INT("ceil", 0), SHAPE_LIST("output")

/* A window along one axis: the entries start, start + step, .. below end.  Before pool_clip
 * start and end may lie in the padding. */
typedef struct pool_window {
    int64_t start, end, step;
} pool_window;

/* Number i of a list attribute, or `otherwise` if the list is shorter: an empty list stands for
 * the default. */
static inline int64_t pool_number(const ir_op *op, uint32_t list, uint32_t i, int64_t otherwise)
{
    return i < op->attributes[list].ints.n ? op->attributes[list].ints.at[i] : otherwise;
}

/* Window o of spatial axis i (0 is axis 2 of x), which has n entries; not clipped. */
static inline pool_window pool_find(const ir_op *op, uint32_t i, int64_t n, int64_t o)
{
    if (op->attributes[POOL_OUTPUT].ints.n) {
        int64_t parts = op->attributes[POOL_OUTPUT].ints.at[i];
        return (pool_window){o * n / parts, ((o + 1) * n + parts - 1) / parts, 1};
    }
    int64_t kernel = op->attributes[POOL_KERNEL].ints.at[i],
            padding = pool_number(op, POOL_PADDING, i, 0);
    int64_t step = pool_number(op, POOL_DILATION, i, 1);
    int64_t start = o * pool_number(op, POOL_STRIDE, i, kernel) - padding,
            end = start + (kernel - 1) * step + 1;
    return (pool_window){start, end < n + padding ? end : n + padding, step};
}

/* The part of a window that lies in 0 .. n - 1.  start moves by whole steps, so the entries are
 * still those of the window. */
static inline pool_window pool_clip(pool_window w, int64_t n)
{
    if (w.start < 0)
        w.start += (-w.start + w.step - 1) / w.step * w.step;
    w.end = w.end < n ? w.end : n;
    return w;
}

/* The number of windows along spatial axis i, which has n entries.  By PyTorch's rule `ceil`
 * allows a last window that ends beyond the padding, but not one that starts in the padding
 * after the axis: that window would hold no entry of x. */
static inline mpk_status pool_infer_axis(mpk_context *cx, const ir_op *op, uint32_t i, int64_t n,
                                         int64_t *out)
{
    const ir_attribute *a = op->attributes;
    if (a[POOL_OUTPUT].ints.n) {
        *out = a[POOL_OUTPUT].ints.at[i];
        CHECK(cx, *out >= 1 && *out < INT32_MAX && n < INT32_MAX, MPK_ESHAPE,
              "%s: output %lld of axis %u is not possible", op->def->name, (long long)*out, i);
        return MPK_OK;
    }
    int64_t kernel = a[POOL_KERNEL].ints.at[i], padding = pool_number(op, POOL_PADDING, i, 0);
    int64_t stride = pool_number(op, POOL_STRIDE, i, kernel),
            dilation = pool_number(op, POOL_DILATION, i, 1);
    CHECK(cx,
          kernel >= 1 && kernel < INT32_MAX && stride >= 1 && stride < INT32_MAX && dilation >= 1 &&
              dilation < INT32_MAX && padding >= 0 && padding <= kernel / 2,
          MPK_ESHAPE,
          "%s: kernel %lld, stride %lld, padding %lld or dilation %lld of axis %u is not possible",
          op->def->name, (long long)kernel, (long long)stride, (long long)padding,
          (long long)dilation, i);
    int64_t room = n + 2 * padding - dilation * (kernel - 1) - 1;
    *out = room < 0 ? 0 : room / stride + 1;
    if (a[POOL_CEIL].i && room >= 0)
        *out = (room + stride - 1) / stride + 1;
    if (a[POOL_CEIL].i && (*out - 1) * stride >= n + padding)
        --*out;
    CHECK(cx, *out >= 1, MPK_ESHAPE, "%s: no window fits into axis %u, which has %lld entries",
          op->def->name, i, (long long)n);
    return MPK_OK;
}

/* Check the attributes of POOL_RECORD and give the first result its shape; the dtype is x's. A pool
 * that adapts gives the sizes of the result (POOL_OUTPUT) in place of a kernel. */
static inline mpk_status pool_infer(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                    uint32_t dtypes, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const ir_attribute *a = op->attributes;
    TRY(shape_expect_dtype(cx, g, op, 0, dtypes));
    CHECK(cx, x->rank >= 3 && x->rank <= 5, MPK_ESHAPE, "%s: x has rank %u, expected 3, 4 or 5",
          op->def->name, x->rank);
    uint32_t space = x->rank - 2, sizes = a[POOL_OUTPUT].ints.n ? POOL_OUTPUT : POOL_KERNEL;
    CHECK(cx, a[sizes].ints.n == space, MPK_ESHAPE, "%s: %s has %u numbers for %u axes",
          op->def->name, op->def->attributes[sizes].name, a[sizes].ints.n, space);
    for (uint32_t i = POOL_STRIDE; i <= POOL_DILATION; i++)
        CHECK(cx, a[i].ints.n == 0 || a[i].ints.n == space, MPK_ESHAPE,
              "%s: %s has %u numbers for %u axes", op->def->name, op->def->attributes[i].name,
              a[i].ints.n, space);
    shape_like(x, out);
    for (uint32_t i = 0; i < space; i++)
        TRY(pool_infer_axis(cx, op, i, x->dims[i + 2], &out->dims[i + 2]));
    return MPK_OK;
}

/* Along each spatial axis, from the first entry of the box's first window to the last entry of
 * its last; empty if that is padding only. */
static inline void pool_reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                              ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, input);
    *read = *box;
    for (uint32_t i = 2; i < x->rank; i++) {
        read->lo[i] = pool_clip(pool_find(op, i - 2, x->dims[i], box->lo[i]), x->dims[i]).start;
        read->hi[i] = pool_clip(pool_find(op, i - 2, x->dims[i], box->hi[i] - 1), x->dims[i]).end;
    }
    if (ir_box_is_empty(read, x->rank))
        *read = (ir_box){0};
}

/* The window of entry at[] of the result, clipped, as a box of steps: step e along an axis is
 * entry start + e * step of x.  Returns the number of entries with the padding, which avg_pool
 * may divide by. */
static inline int64_t pool_windows(const op_call *call, const int64_t *at, pool_window *windows,
                                   ir_box *steps)
{
    const op_view *x = &call->in[0];
    int64_t padded = 1;
    *steps = (ir_box){0};
    for (uint32_t i = 2; i < x->rank; i++) {
        pool_window whole = pool_find(call->op, i - 2, x->dims[i], at[i]),
                    w = pool_clip(whole, x->dims[i]);
        windows[i - 2] = w;
        steps->hi[i - 2] = w.start < w.end ? (w.end - w.start - 1) / w.step + 1 : 0;
        padded *= (whole.end - whole.start - 1) / whole.step + 1;
    }
    return padded;
}

/* The offset of entry step[] of the window from the first entry of its plane (one n, c).
 * *number is its number in row-major order of the plane, which max_pool gives as the index. */
static inline int64_t pool_offset(const op_view *x, const pool_window *windows, const int64_t *step,
                                  int64_t *number)
{
    int64_t offset = 0;
    *number = 0;
    for (uint32_t i = 2; i < x->rank; i++) {
        int64_t entry = windows[i - 2].start + step[i - 2] * windows[i - 2].step;
        offset += entry * x->stride[i];
        *number = *number * x->dims[i] + entry;
    }
    return offset;
}

#endif
