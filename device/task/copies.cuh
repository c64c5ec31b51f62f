/* copies.cuh - operators that move elements and compute nothing: copy, concat, gather,
 * embedding, and a reshape that strides cannot say.  Any plain dtype and strides, bit for bit.
 *
 * Input and output: views; the box is of the output.  A thread takes items thread, thread +
 * MPK_THREADS, ... of the box in row-major order, so that neighbouring threads write
 * neighbouring entries.  An item is an element, or 16 bytes where rows of both tensors allow it.
 * Threads share nothing: no scratch and no barriers.  Files for other operators that move
 * elements (index.cuh, sort.cuh, ...) use copies_move too. Generic bodies; embedding_rows.cuh is
 * the fast one for rows of 16-bit entries. Cost: memory.
 */
#ifndef TASK_COPIES_CUH
#define TASK_COPIES_CUH

#include "tile/view.cuh"

/* Move one element of this dtype; offsets in elements; g_from NULL: zeros.  It is moved as an
 * unsigned number of its width: as a float a NaN might lose its payload. */
MPK_FN void copies_move(int dtype, char *g_to, rt_i64 to, const char *g_from, rt_i64 from)
{
    switch (mpk_dtype_bytes(dtype)) {
    case 1:
        g_to[to] = g_from ? g_from[from] : 0;
        break;
    case 2:
        ((rt_u16 *)g_to)[to] = g_from ? ((const rt_u16 *)g_from)[from] : 0;
        break;
    case 4:
        ((rt_u32 *)g_to)[to] = g_from ? ((const rt_u32 *)g_from)[from] : 0;
        break;
    default:
        ((rt_u64 *)g_to)[to] = g_from ? ((const rt_u64 *)g_from)[from] : 0;
        break;
    }
}

/* ---- sixteen bytes at once ----
 *
 * Where rows of both tensors are neighbours and everything is aligned, an item is a lot: a piece of
 * 16 bytes of the last axis.  Otherwise it is an element.  Which of both is a constant of the
 * instance but for the addresses and the box, which are looked at once for each task. */

/* 16 bytes as one load and one store, of whatever dtype. */
struct alignas(16) copies_quad {
    rt_u64 at[2];
};

/* How a box is moved: in items of `unit` entries.  box: that of the output with its last axis
 * counted in items from 0; first: the place on that axis of item 0, in elements. */
struct copies_lots {
    mpk_box box;
    int unit;     /* entries of an item */
    rt_i64 first; /* in elements */
};
/* Are both tensors at multiples of 16 bytes? */
MPK_FN bool copies_aligned(const char *g_x, const char *g_y)
{
    return (((rt_u64)g_x | (rt_u64)g_y) & 15) == 0;
}
/* The items of a box that is copied from x to y; aligned: both begin at multiples of 16 bytes.
 * All of x, y and the box has to consist of whole lots, so that no lot is cut at the end of a
 * row; else items are elements. */
MPK_FN copies_lots copies_by_lots(const mpk_view &x, const mpk_view &y, bool aligned,
                                  const mpk_box &box)
{
    const int most = 16 / mpk_dtype_bytes(y.dtype); /* entries of 16 bytes */
    copies_lots l = {box, 1, 0};                    /* single entries unless all is whole */
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == y.rank - 1) {
            if (aligned && mpk_has_pieces(x, most) && mpk_has_pieces(y, most) &&
                box.lo[i] % most == 0 && box.hi[i] % most == 0)
                l.unit = most;
            l.first = box.lo[i];
            l.box.hi[i] = box.lo[i] < box.hi[i] ? (box.hi[i] - box.lo[i]) / (rt_u32)l.unit : 0;
            l.box.lo[i] = 0;
        }
    return l;
}
/* The place, in elements of the output, of the first entry of item i. */
MPK_FN void copies_place(const copies_lots &l, int rank, rt_u64 i, rt_i64 *at)
{
    mpk_place(l.box, rank, i, at);
#pragma unroll
    for (int k = 0; k < RT_MAX_RANK; k++)
        if (k == rank - 1)
            at[k] = l.first + at[k] * l.unit;
}
/* Move one item; offsets in elements. */
MPK_FN void copies_move_lot(const copies_lots &l, int dtype, char *g_to, rt_i64 to,
                            const char *g_from, rt_i64 from)
{
    const int bytes = mpk_dtype_bytes(dtype); /* of an entry */
    if (l.unit > 1)
        *(copies_quad *)(g_to + to * bytes) = *(const copies_quad *)(g_from + from * bytes);
    else
        copies_move(dtype, g_to, to, g_from, from);
}

/* The body of copy: y = x, of one shape but each of any strides, so x may be a transposed view. */
MPK_FN void copy_run(const mpk_task &t, const mpk_view &x, const mpk_view &y)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    const copies_lots lots = copies_by_lots(x, y, copies_aligned(g_x, g_y), mpk_box_of(t, y.rank));
    rt_u64 n = mpk_count(lots.box, y.rank);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        copies_place(lots, y.rank, i, at);
        copies_move_lot(lots, y.dtype, g_y, mpk_offset(y, at), g_x, mpk_offset(x, at));
    }
}

/* The body of reshape.  Elements of the result by their number in row-major order: a place of y
 * becomes a number, and the number a place of x.  A lot of y is one of x, since the rows of both
 * are whole lots. */
MPK_FN void reshape_run(const mpk_task &t, const mpk_view &x, const mpk_view &y)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    const copies_lots lots = copies_by_lots(x, y, copies_aligned(g_x, g_y), mpk_box_of(t, y.rank));
    rt_u64 n = mpk_count(lots.box, y.rank);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK], number = 0, from = 0;
        copies_place(lots, y.rank, i, at);
#pragma unroll
        for (int axis = 0; axis < RT_MAX_RANK; axis++)
            if (axis < y.rank)
                number = number * y.dims[axis] + at[axis];
#pragma unroll
        for (int axis = RT_MAX_RANK - 1; axis >= 0; axis--)
            if (axis < x.rank) {
                from += number % x.dims[axis] * x.stride[axis];
                number /= x.dims[axis];
            }
        copies_move_lot(lots, y.dtype, g_y, mpk_offset(y, at), g_x, from);
    }
}

/* The part of the box that comes from x, whose entry 0 along the axis is entry `first` of y.  An
 * instance calls this once for each input; where the box has nothing of it, n is 0.
 *
 * Places are those of y, and `before` takes x back to its own.  Where the axis is the last one that
 * shift has to be whole lots too. */
MPK_FN void concat_part(const mpk_task &t, const mpk_view &x, const mpk_view &y, int axis,
                        rt_i64 first)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    mpk_box box = mpk_box_of(t, y.rank);
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == axis) {
            rt_i64 end = first + x.dims[i]; /* of x's part of y */
            box.lo[i] = box.lo[i] > first ? box.lo[i] : (rt_u32)first;
            box.hi[i] = box.hi[i] < end ? box.hi[i] : (rt_u32)end;
        }
    /* entry 0 of x along the axis lies where entry `first` of y would */
    rt_i64 before = 0;
#pragma unroll
    for (int k = 0; k < RT_MAX_RANK; k++)
        if (k == axis)
            before = first * x.stride[k];
    const bool even = before * mpk_dtype_bytes(x.dtype) % 16 == 0; /* lots stay aligned */
    const copies_lots lots = copies_by_lots(x, y, even && copies_aligned(g_x, g_y), box);
    rt_u64 n = mpk_count(lots.box, y.rank);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        copies_place(lots, y.rank, i, at);
        copies_move_lot(lots, y.dtype, g_y, mpk_offset(y, at), g_x, mpk_offset(x, at) - before);
    }
}

/* The body of concat where an input has few neighbours in a row of y.  find(at, g): in elements,
 * from *g on, where entry `at` of y is; `at` is changed.  A thread has several entries under way,
 * since each is a trip to memory. */
template <class FIND>
MPK_FN void concat_slivers(const mpk_task &t, const mpk_view &y, const FIND &find)
{
    char *g_y = mpk_data(t, y);
    const mpk_box box = mpk_box_of(t, y.rank);
    const rt_u64 n = mpk_count(box, y.rank);
    enum { TOGETHER = 4 };
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += TOGETHER * MPK_THREADS) {
        const char *g_from[TOGETHER];
        rt_i64 from[TOGETHER], to[TOGETHER];
        rt_u64 r_value[TOGETHER] = {};
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            rt_i64 at[RT_MAX_RANK];
            const rt_u64 item = i + (rt_u64)(j * MPK_THREADS);
            mpk_place(box, y.rank, item < n ? item : i, at);
            to[j] = mpk_offset(y, at);
            from[j] = find(at, &g_from[j]);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            copies_move(y.dtype, (char *)&r_value[j], 0, g_from[j], from[j]);
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            if (i + (rt_u64)(j * MPK_THREADS) < n)
                copies_move(y.dtype, g_y, to[j], (const char *)&r_value[j], 0);
    }
}

/* The body of gather: y[i, ..] = x[index[i], ..]; zeros for a number that names no live row.
 * The id is read again for each element, from the cache. */
MPK_FN void gather_run(const mpk_task &t, const mpk_view &x, const mpk_view &index,
                       const mpk_view &y)
{
    const char *g_x = mpk_data(t, x), *g_index = mpk_data(t, index);
    char *g_y = mpk_data(t, y);
    mpk_box box = mpk_box_of(t, y.rank);
    rt_u64 n = mpk_count(box, y.rank);
    rt_i64 alive = mpk_live(t, x); /* rows that may be named */
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(box, y.rank, i, at);
        rt_i64 to = mpk_offset(y, at), id = mpk_get_int(index, g_index, at[0] * index.stride[0]);
        bool there = id >= 0 && id < alive; /* ids are data */
        at[0] = there ? id : 0;
        copies_move(y.dtype, g_y, to, there ? g_x : (const char *)0, mpk_offset(x, at));
    }
}

/* The body of embedding: x[t, :] = table[tokens[t], :] * factor; zeros for an id that the table
 * has not.  By float, since the table may have another dtype than x. */
MPK_FN void embedding_run(const mpk_task &t, const mpk_view &tokens, const mpk_view &table,
                          const mpk_view &x, float factor)
{
    const char *g_tokens = mpk_data(t, tokens), *g_table = mpk_data(t, table);
    char *g_x = mpk_data(t, x);
    mpk_box box = mpk_box_of(t, 2);
    rt_u64 n = mpk_count(box, 2);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(box, 2, i, at);
        rt_i64 id = mpk_get_int(tokens, g_tokens, at[0] * tokens.stride[0]);
        float value = 0; /* an id that the table has not */
        if (id >= 0 && id < table.dims[0])
            value = mpk_get(table, g_table, id * table.stride[0] + at[1] * table.stride[1]);
        mpk_put(x, g_x, mpk_offset(x, at), value * factor);
    }
}

#endif
