/* copies.cuh - operators that move elements and compute nothing: copy, concat, gather, embedding,
 * and a reshape that strides cannot say.  Any plain dtype and strides, bit for bit.
 *
 * Input and output: views; the box is of the output.  A thread takes items thread, thread +
 * MPK_THREADS, ... of the box in row-major order, so that neighbouring threads write neighbouring
 * entries.  An item is an element, or several bytes where rows of both tensors allow it.  Threads
 * share nothing: no scratch and no barriers.  Files for other operators that move elements
 * (index.cuh, sort.cuh, ...) use copies_move too.  Generic bodies; embedding_rows.cuh is the fast
 * one for rows of 16-bit entries, copies_turned.cuh the one for rows that become columns.  Cost:
 * memory.
 *
 * An operator gives copies_all a walk of its items and a function `find`, from a place of y to a
 * place of the input; the loop, the widths and what is under way at once are the same for all of
 * them.
 */
#ifndef TASK_COPIES_CUH
#define TASK_COPIES_CUH

#include "task/eights.cuh"

/* 16 bytes, of whatever dtype.  Aligned, or a compiler would load it by halves. */
struct alignas(16) copies_quad {
    rt_u64 at[2];
};

/* 1, 2, 4, 8 or 16 bytes at g, a multiple of as many, as the first of the result; and the
 * counterpart. bytes is a constant of the caller, so one load is left. */
MPK_FN copies_quad copies_load(const char *g, int bytes)
{
    switch (bytes) {
    case 1:
        return {{(unsigned char)*g, 0}};
    case 2:
        return {{*(const rt_u16 *)g, 0}};
    case 4:
        return {{*(const rt_u32 *)g, 0}};
    case 8:
        return {{*(const rt_u64 *)g, 0}};
    default:
        return *(const copies_quad *)g;
    }
}
MPK_FN void copies_store(char *g, const copies_quad &item, int bytes)
{
    const rt_u32 words[4] = {(rt_u32)item.at[0], (rt_u32)(item.at[0] >> 32), (rt_u32)item.at[1],
                             (rt_u32)(item.at[1] >> 32)};
    switch (bytes) {
    case 1:
        *g = (char)item.at[0];
        break;
    case 2:
        *(rt_u16 *)g = (rt_u16)item.at[0];
        break;
    case 4:
        *(rt_u32 *)g = (rt_u32)item.at[0];
        break;
    case 8:
        *(rt_u64 *)g = item.at[0];
        break;
    default:
        ptx_store_quad(g, words);
        break;
    }
}

/* Move one element of this dtype; offsets in elements; g_from NULL: zeros.  It is moved as an
 * unsigned number of its width: as a float a NaN might lose its payload. */
MPK_FN void copies_move(int dtype, char *g_to, rt_i64 to, const char *g_from, rt_i64 from)
{
    const int bytes = mpk_dtype_bytes(dtype);
    const copies_quad zeros = {{0, 0}};
    copies_store(g_to + to * bytes, g_from ? copies_load(g_from + from * bytes, bytes) : zeros,
                 bytes);
}

/* ---- several bytes at once ----
 *
 * Where rows of both tensors are neighbours and everything is aligned, an item is a lot: a piece of
 * 16, 8 or 4 bytes of the last axis, the widest of which the rows of both consist.  Otherwise it is
 * an element.  How wide a lot is follows from the instance; whether items are lots follows from the
 * addresses and the box, which are looked at once for each task. */

/* How a box is moved: by a walk of items of `unit` entries of the last axis, one or a lot's.  The
 * walk's box counts items along that axis, not entries. */
struct copies_lots {
    eight_walk walk;
    int unit;
};
/* Are both addresses multiples of so many bytes, a power of two? */
MPK_FN bool copies_aligned(const char *g_x, const char *g_y, int bytes)
{
    return (((rt_u64)g_x | (rt_u64)g_y) & (rt_u64)(bytes - 1)) == 0;
}
/* Bytes of a lot between x and y, a constant of the instance; those of an entry: there are none.
 * The widest first: rows of 12 entries of 16 bits have lots of 8 bytes, not of 16. */
MPK_FN int copies_lot_bytes(const mpk_view &x, const mpk_view &y)
{
    const int entry = mpk_dtype_bytes(y.dtype);
#pragma unroll
    for (int bytes = 16; bytes >= 4; bytes /= 2)
        if (bytes > entry && mpk_has_pieces(x, bytes / entry) && mpk_has_pieces(y, bytes / entry))
            return bytes;
    return entry;
}
/* The items of a box that is copied from g_x, where x's entry at place 0 of y lies, to g_y.  The
 * box has to consist of whole lots, so that no lot is cut at the end of a row, which another task
 * may write; else items are elements. */
MPK_FN copies_lots copies_by_lots(const mpk_view &x, const mpk_view &y, const char *g_x,
                                  const char *g_y, const mpk_box &box)
{
    const int bytes = copies_lot_bytes(x, y), most = bytes / mpk_dtype_bytes(y.dtype);
    mpk_box items = box; /* single entries unless all is whole */
    int unit = 1;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        /* Both ends of the box's last axis at once: their or has a factor of `most`, a power of
         * two, only if both have. */
        if (i == y.rank - 1 && copies_aligned(g_x, g_y, bytes) &&
            (box.lo[i] | box.hi[i]) % most == 0) {
            unit = most;
            items.lo[i] /= most;
            items.hi[i] /= most;
        }
    return {eight_walk_of(y, items, unit), unit};
}

/* Move all items of l, each of `bytes`, to y.  find(at, g) sets *g and returns where, in elements
 * from there on, the entry at place `at` of y is; it may change `at`, whose offset in y has been
 * taken before.  A thread has several items under way, since each is a trip to memory.  IN_ORDER:
 * the walk's, which spares the divisions by the box's extents (eight_at). */
template <bool IN_ORDER, class FIND>
MPK_FN void copies_items(const mpk_view &y, char *g_y, const eight_walk &walk, int bytes,
                         const FIND &find)
{
    enum { TOGETHER = 4, MOST = 1 << 30 };
    const int entry = mpk_dtype_bytes(y.dtype);
    const rt_u64 n = mpk_count(walk.box, y.rank);
    /* r, to: of what is under way, by slot; indexed by constants alone, they are registers. */
    copies_quad r[TOGETHER];
    char *to[TOGETHER];
    /* eight_rounds counts by int. */
#pragma unroll 1
    for (rt_u64 first = 0; first < n; first += MOST) /* once, but for numbers that no int holds */
        eight_rounds<TOGETHER>(
            mpk_thread(), MPK_THREADS, (int)(n - first < MOST ? n - first : MOST),
            [&](int j, int item) MPK_INLINED {
                rt_i64 at[RT_MAX_RANK];
                const char *g_from = 0;
                eight_at<IN_ORDER>(walk, y, first + (rt_u32)item, bytes / entry, at);
                to[j] = g_y + mpk_offset(y, at) * entry;
                const rt_i64 from = find(at, &g_from);
                r[j] = copies_load(g_from + from * entry, bytes);
            },
            [&](int j, int) MPK_INLINED { copies_store(to[j], r[j], bytes); });
}
/* The same by what l's items are; bytes: of a lot.  Three loops are compiled: `unit` and `in_order`
 * are the task's, and each loop wants its width and its divisions as constants. */
template <class FIND>
MPK_FN void copies_all(const mpk_view &y, char *g_y, const copies_lots &l, int bytes,
                       const FIND &find)
{
    if (l.unit == 1)
        copies_items<false>(y, g_y, l.walk, mpk_dtype_bytes(y.dtype), find);
    else if (l.walk.in_order)
        copies_items<true>(y, g_y, l.walk, bytes, find);
    else
        copies_items<false>(y, g_y, l.walk, bytes, find);
}

/* The body of copy, and of transfer, whose x lies in another peer's memory: y = x, of one shape but
 * each of any strides, so x may be a transposed view. */
MPK_FN void copy_run(const mpk_task &t, const mpk_view &x, const mpk_view &y)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    copies_all(y, g_y, copies_by_lots(x, y, g_x, g_y, mpk_box_of(t, y.rank)),
               copies_lot_bytes(x, y), [&](const rt_i64 *at, const char **g) {
                   *g = g_x;
                   return mpk_offset(x, at);
               });
}

/* The body of reshape.  Elements of the result by their number in row-major order: a place of y
 * becomes a number, and the number a place of x.  A lot of y is one of x, since the rows of both
 * are whole lots: the first entry's place is found, and the others are its neighbours in both. */
MPK_FN void reshape_run(const mpk_task &t, const mpk_view &x, const mpk_view &y)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    copies_all(y, g_y, copies_by_lots(x, y, g_x, g_y, mpk_box_of(t, y.rank)),
               copies_lot_bytes(x, y), [&](const rt_i64 *at, const char **g) {
                   rt_i64 number = 0, from = 0;
#pragma unroll
                   for (int axis = 0; axis < RT_MAX_RANK; axis++)
                       if (axis < y.rank)
                           number = number * y.dims[axis] + at[axis];
#pragma unroll
                   for (int axis = RT_MAX_RANK - 1; axis >= 0; axis--)
                       if (axis < x.rank) {
                           /* Divisions by constants, of 32 bits where x has fewer than 2^32
                            * entries. */
                           const rt_i64 size = x.dims[axis],
                                        above = mpk_is_small(x) ? (rt_u32)number / (rt_u32)size
                                                                : number / size;
                           from += (number - above * size) * x.stride[axis];
                           number = above;
                       }
                   *g = g_x;
                   return from;
               });
}

/* The part of the box that comes from x, whose entry 0 along the axis is entry `first` of y.  An
 * instance calls this once for each input; where the box has nothing of it, it is empty.
 *
 * Places are those of x, and y's entries for it a tensor of x's shape, `part`, with y's strides:
 * lots, walks and alignment follow from the two as in a copy. */
MPK_FN void concat_part(const mpk_task &t, const mpk_view &x, const mpk_view &y, int axis,
                        rt_i64 first)
{
    const char *g_x = mpk_data(t, x);
    char *g_part = mpk_data(t, y);
    mpk_view part = y;
    mpk_box box = mpk_box_of(t, y.rank);
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == axis) {
            /* The box of y, cut to lo .. hi and moved to begin at x's 0; where they do not meet, lo
             * is at least hi and the count 0. */
            const rt_u32 lo = (rt_u32)first, hi = lo + (rt_u32)x.dims[i];
            box.lo[i] = (box.lo[i] > lo ? box.lo[i] : lo) - lo;
            box.hi[i] = box.hi[i] < hi ? box.hi[i] : hi;
            box.hi[i] = box.hi[i] > lo ? box.hi[i] - lo : 0;
            part.dims[i] = x.dims[i];
            g_part += first * y.stride[i] * mpk_dtype_bytes(y.dtype);
        }
    copies_all(part, g_part, copies_by_lots(x, part, g_x, g_part, box), copies_lot_bytes(x, part),
               [&](const rt_i64 *at, const char **g) {
                   *g = g_x;
                   return mpk_offset(x, at);
               });
}

/* The body of concat where an input has few neighbours in a row of y: find as in copies_all,
 * printed by print_slivers (src/gen/body_copies.c), looks which input an entry is of.  Input by
 * input each thread would wait for the loads of one before it asks for those of the next. */
template <class FIND>
MPK_FN void concat_slivers(const mpk_task &t, const mpk_view &y, const FIND &find)
{
    copies_all(y, mpk_data(t, y), copies_lots{eight_walk_of(y, mpk_box_of(t, y.rank), 1), 1},
               mpk_dtype_bytes(y.dtype), find);
}

/* The body of gather: y[i, ..] = x[index[i], ..]; zeros for a number that names no live row, since
 * rows after the live ones hold what an earlier step left.  The id is read again for each element,
 * from the cache. */
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
        /* Row 0 of a number that is none: its address is formed, and not read. */
        at[0] = there ? id : 0;
        copies_move(y.dtype, g_y, to, there ? g_x : (const char *)0, mpk_offset(x, at));
    }
}

/* The body of embedding: x[t, :] = table[tokens[t], :] * factor; zeros for an id that the table has
 * not. By float, since the table may have another dtype than x: of one dtype and with a factor of 1
 * the bits of a number come through, those of a NaN perhaps not. */
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
