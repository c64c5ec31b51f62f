/* index.cuh - operators that choose where elements come from or go to: flip, pad, triangle,
 * strided, slice_scatter, take_along, index; and full and iota, which come from nowhere.
 *
 * Input: views of any plain dtype and strides; output: the task's box.  All of them work from the
 * result: a thread takes an entry of the box (pad: some neighbours), finds out which entry of x it
 * is, and moves it bit for bit.  So every entry is written once, by one thread, and there are no
 * barriers and no scratch.  Those that combine what several indices name (index_put, scatter) are
 * in scatter.cuh.
 *
 * Axes, extents and strides are constants of the instance, so loops over axes run to RT_MAX_RANK,
 * unrolled, with a test inside: an array of places that had an index at run time would lie on the
 * stack.
 *
 * Numbers in index tensors are data and believed only in range: one that names no entry gives 0.
 * Cost: memory. */
#ifndef TASK_INDEX_CUH
#define TASK_INDEX_CUH

#include "task/copies.cuh"

/* The statement after it runs for each of the thread's entries of the box of y, whose place is
 * `at`; that may change it.  Declares box, index_n and at in the scope that it stands in, so a
 * function has it once. */
#define INDEX_LOOP(t, y)                        \
    mpk_box box = mpk_box_of(t, y.rank);        \
    rt_u64 index_n = mpk_count(box, y.rank);    \
    rt_i64 at[RT_MAX_RANK];                     \
    for (rt_u64 index_i = (rt_u64)mpk_thread(); \
         index_i < index_n && (mpk_place(box, y.rank, index_i, at), true); index_i += MPK_THREADS)

/* The box with one entry, number 0, along an axis: an entry is a line, which a task has whole.  For
 * operators that look at all of a line (lines.cuh). */
MPK_FN mpk_box index_lines(const mpk_task &t, int rank, int axis)
{
    mpk_box lines = mpk_box_of(t, rank);
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == axis) {
            lines.lo[i] = 0;
            lines.hi[i] = 1;
        }
    return lines;
}

/* An element as what is combined: doubles, or integers modulo 2^64.  The type of *value chooses,
 * for code that is a template of it (scatter.cuh). */
MPK_FN void index_get(const mpk_view &x, const char *g_x, rt_i64 at, double *value)
{
    *value = mpk_get_double(x, g_x, at);
}
MPK_FN void index_get(const mpk_view &x, const char *g_x, rt_i64 at, rt_i64 *value)
{
    *value = mpk_get_int(x, g_x, at);
}
/* The counterpart: rounded, or the low bits. */
MPK_FN void index_set(const mpk_view &y, char *g_y, rt_i64 at, double value)
{
    mpk_put_double(y, g_y, at, value);
}
MPK_FN void index_set(const mpk_view &y, char *g_y, rt_i64 at, rt_i64 value)
{
    mpk_put_int(y, g_y, at, value);
}

/* ---- from nowhere ---- */

/* Every entry of the box becomes one value.  As double: an i64 beyond 2^53 is rounded. */
MPK_FN void full_run(const mpk_task &t, const mpk_view &y, double value)
{
    char *g_y = mpk_data(t, y);
    INDEX_LOOP(t, y) mpk_put_double(y, g_y, mpk_offset(y, at), value);
}

/* Entry i of axis 0 becomes start + i step, computed again for each, so no error adds up. */
MPK_FN void iota_run(const mpk_task &t, const mpk_view &y, double start, double step)
{
    char *g_y = mpk_data(t, y);
    INDEX_LOOP(t, y) mpk_put_double(y, g_y, mpk_offset(y, at), start + (double)at[0] * step);
}

/* ---- by the place alone ---- */

/* y is x with some axes backwards; set: these axes, a bit each.  A constant, so an axis that is
 * turned costs one subtraction and the others nothing. */
MPK_FN void flip_run(const mpk_task &t, const mpk_view &x, const mpk_view &y, int set)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    INDEX_LOOP(t, y)
    {
        rt_i64 from = 0; /* offset of the entry in x */
#pragma unroll
        for (int i = 0; i < RT_MAX_RANK; i++)
            if (i < x.rank)
                from += (set >> i & 1 ? x.dims[i] - 1 - at[i] : at[i]) * x.stride[i];
        copies_move(y.dtype, g_y, mpk_offset(y, at), g_x, from);
    }
}

enum { PAD_CONSTANT, PAD_REFLECT, PAD_REPLICATE, PAD_CIRCULAR };

/* The entry of x along an axis of n entries that entry i of the padded axis takes, both counted
 * from x's first; of PAD_CONSTANT it may lie outside.
 *
 *   i            -2  -1 |  0   1   2   3 |  4   5     n = 4
 *   REFLECT       2   1 |                |  2   1
 *   REPLICATE     0   0 |                |  3   3
 *   CIRCULAR      2   3 |                |  0   1
 *
 * The padding reaches no further than the axis is long (circular) or one less (reflect): one
 * step brings it inside. */
MPK_FN rt_i64 pad_source(int mode, rt_i64 i, rt_i64 n)
{
    if (mode == PAD_CIRCULAR)
        return (i + n) % n;
    if (mode == PAD_CONSTANT || (i >= 0 && i < n))
        return i;
    if (mode == PAD_REFLECT)
        return i < 0 ? -i : 2 * (n - 1) - i;
    return i < 0 ? 0 : n - 1;
}

/* Entries of pad by lots: a thread finds the place of up to 16 bytes of neighbours along the last
 * axis at once, asks for all that x has of them, and stores them together if they lie so.  Places
 * take divisions, and one search serves a lot.  T: an unsigned number of an entry's width. */
template <typename T> struct pad_lot {
    enum { ENTRIES = 16 / sizeof(T) };
    T at[ENTRIES];
};

/* The first `left` entries of a lot, `step` apart; as one word of 16 bytes where they are one:
 * neighbours, all there, at a multiple of 16. */
template <typename T> MPK_FN void pad_store(const pad_lot<T> &lot, T *g, rt_i64 step, rt_i64 left)
{
    const int n = pad_lot<T>::ENTRIES;
    if (step == 1 && left >= n && ((rt_u64)g & 15) == 0) {
        copies_quad all = {{0, 0}};
#pragma unroll
        for (int j = 0; j < n; j++)
            /* In registers: n / 2 entries a word of 64 bits, the first in the low bits. */
            all.at[j / (n / 2)] |= (rt_u64)lot.at[j] << j % (n / 2) * 8 * sizeof(T);
        *(copies_quad *)g = all;
        return;
    }
#pragma unroll
    for (int j = 0; j < n; j++)
        if (j < left)
            g[j * step] = lot.at[j];
}

/* The body of pad for one width.  before: entries in front of x, of each axis, 0 or more.  Lots are
 * counted from the box's own first column, so a box need not begin at a lot; what sticks out of it
 * is not stored. */
template <typename T>
MPK_FN void pad_lots(const mpk_task &t, const mpk_view &x, const mpk_view &y,
                     const mpk_numbers &before, int mode, T value)
{
    const int n = pad_lot<T>::ENTRIES;
    const T *g_x = (const T *)mpk_data(t, x);
    T *g_y = (T *)mpk_data(t, y);
    mpk_box lots = mpk_box_of(t, y.rank);
    rt_i64 lo = 0, hi = 1, in = 1, shift = 0, step_x = 0, step_y = 0; /* along the last axis */
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == y.rank - 1) {
            lo = lots.lo[i], hi = lots.hi[i], in = x.dims[i], shift = before.at[i];
            step_x = x.stride[i], step_y = y.stride[i];
            lots.lo[i] = 0;
            lots.hi[i] = (rt_u32)((hi - lo + n - 1) / n);
        }
    const rt_u64 all = mpk_count(lots, y.rank);
    for (rt_u64 lot = (rt_u64)mpk_thread(); lot < all; lot += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK], from = 0, to = 0, first = lo;
        bool inside = true; /* else the whole lot is padding */
        /* from, to: offsets without the last axis; first: the lot's first column of y. */
        mpk_place(lots, y.rank, lot, at);
#pragma unroll
        for (int i = 0; i < RT_MAX_RANK; i++)
            if (i == y.rank - 1) {
                first = lo + at[i] * n;
            } else if (i < y.rank) {
                const rt_i64 k = pad_source(mode, at[i] - before.at[i], x.dims[i]); /* of x */
                inside = inside && k >= 0 && k < x.dims[i];
                from += k * x.stride[i];
                to += at[i] * y.stride[i];
            }
        pad_lot<T> r;
#pragma unroll
        for (int j = 0; j < n; j++) {
            /* A lot may lie on both sides of x's end, so each entry is asked for by itself;
             * neighbours come from one line. */
            const rt_i64 k = pad_source(mode, first + j - shift, in);
            const bool there = inside && first + j < hi && k >= 0 && k < in;
            r.at[j] = there ? g_x[from + k * step_x] : value;
        }
        pad_store(r, g_y + to + first * step_y, step_y, hi - first);
    }
}

/* The body of pad: entries are moved by their bits, and the value as it is stored in y's dtype. */
template <typename T>
MPK_FN void pad_run_as(const mpk_task &t, const mpk_view &x, const mpk_view &y,
                       const mpk_numbers &before, int mode, double value)
{
    T bits = 0;
    mpk_put_double(y, (char *)&bits, 0, value);
    pad_lots<T>(t, x, y, before, mode, bits);
}
MPK_FN void pad_run(const mpk_task &t, const mpk_view &x, const mpk_view &y,
                    const mpk_numbers &before, int mode, double value)
{
    switch (mpk_dtype_bytes(y.dtype)) {
    case 1:
        pad_run_as<unsigned char>(t, x, y, before, mode, value);
        break;
    case 2:
        pad_run_as<rt_u16>(t, x, y, before, mode, value);
        break;
    case 4:
        pad_run_as<rt_u32>(t, x, y, before, mode, value);
        break;
    default:
        pad_run_as<rt_u64>(t, x, y, before, mode, value);
        break;
    }
}

/* The part of the last two axes on one side of a diagonal is kept; diagonal 0 is the main one, and
 * higher numbers lie above it.  A null source makes copies_move write zeros: entries that are
 * dropped are not read. */
MPK_FN void triangle_run(const mpk_task &t, const mpk_view &x, const mpk_view &y, rt_i64 diagonal,
                         bool upper)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    INDEX_LOOP(t, y)
    {
        rt_i64 above = at[y.rank - 1] - at[y.rank - 2]; /* diagonal of the entry */
        bool kept = upper ? above >= diagonal : above <= diagonal;
        copies_move(y.dtype, g_y, mpk_offset(y, at), kept ? g_x : (const char *)0,
                    mpk_offset(x, at));
    }
}

/* Elements of x by their number in row-major order: offset + sum of at * strides.  The number is
 * taken apart by the shape of x, since x itself may have any strides; of a dense x the operator is
 * a view and has no body. */
MPK_FN void strided_run(const mpk_task &t, const mpk_view &x, const mpk_view &y,
                        const mpk_numbers &strides, rt_i64 offset)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    INDEX_LOOP(t, y)
    {
        rt_i64 number = offset, from = 0; /* in row-major order of x */
#pragma unroll
        for (int i = 0; i < RT_MAX_RANK; i++)
            if (i < y.rank)
                number += at[i] * strides.at[i];
#pragma unroll
        for (int i = RT_MAX_RANK - 1; i >= 0; i--)
            if (i < x.rank) {
                /* Divisions by constants, from the last axis on, whose entries are the lowest
                 * digits. */
                from += number % x.dims[i] * x.stride[i];
                number /= x.dims[i];
            }
        copies_move(y.dtype, g_y, mpk_offset(y, at), g_x, from);
    }
}

/* The body of slice_scatter: y is x, but for the entries starts + k * steps of each axis, which are
 * those of src.  Each thread asks of its entry whether src names it, so no entry is written twice.
 * in_place: y is x's own memory, and its other entries are there already: a cache of which one row
 * changes costs that row's stores, though all threads still look. */
MPK_FN void slice_scatter_run(const mpk_task &t, const mpk_view &x, const mpk_view &src,
                              const mpk_view &y, const mpk_numbers &starts,
                              const mpk_numbers &steps, bool in_place)
{
    const char *g_x = mpk_data(t, x), *g_src = mpk_data(t, src);
    char *g_y = mpk_data(t, y);
    INDEX_LOOP(t, y)
    {
        rt_i64 from = 0;
        bool inside = true;
#pragma unroll
        for (int i = 0; i < RT_MAX_RANK; i++)
            if (i < y.rank) {
                rt_i64 away = at[i] - starts.at[i], k = away / steps.at[i]; /* entry of src */
                inside = inside && away >= 0 && away % steps.at[i] == 0 && k < src.dims[i];
                from += k * src.stride[i];
            }
        if (inside)
            copies_move(y.dtype, g_y, mpk_offset(y, at), g_src, from);
        else if (!in_place)
            copies_move(y.dtype, g_y, mpk_offset(y, at), g_x, mpk_offset(x, at));
    }
}

/* ---- by data ---- */

/* A number of an index tensor as an entry of an axis of n, or -1.  Negative ones count from the
 * end, as Python's do; -n is the first. */
MPK_FN rt_i64 index_resolve(rt_i64 number, rt_i64 n)
{
    number += number < 0 ? n : 0;
    return number >= 0 && number < n ? number : -1;
}

/* y[.., i, ..] = x[.., index[.., i, ..], ..] along an axis; zeros for a number that names no entry.
 * The axis is found in a loop over constants, since an array in registers cannot be indexed by a
 * variable. */
MPK_FN void take_along_run(const mpk_task &t, const mpk_view &x, const mpk_view &index,
                           const mpk_view &y, int axis)
{
    const char *g_x = mpk_data(t, x), *g_index = mpk_data(t, index);
    char *g_y = mpk_data(t, y);
    INDEX_LOOP(t, y)
    {
        rt_i64 to = mpk_offset(y, at),
               k = index_resolve(mpk_get_int(index, g_index, mpk_offset(index, at)), x.dims[axis]);
#pragma unroll
        for (int i = 0; i < RT_MAX_RANK; i++)
            if (i == axis)
                at[i] = k < 0 ? 0 : k;
        copies_move(y.dtype, g_y, to, k < 0 ? (const char *)0 : g_x, mpk_offset(x, at));
    }
}

/* Operands of index and index_put: n index tensors on the leading axes of x, broadcast among
 * themselves to `rank` axes.  The result has these axes first, then the axes of x that have no
 * index. */
struct index_views {
    mpk_view x, index[RT_OPERANDS];
    int n, rank; /* index tensors; axes that they are broadcast to */
};

/* The entry of leading axis k of x that is named at position `at`, or -1.  Of axis 0 only what is
 * alive has a number: rows after it hold what an earlier step left. */
MPK_FN rt_i64 index_named(const mpk_task &t, const index_views &v, int k, const rt_i64 *at)
{
    rt_i64 n = k == 0 ? mpk_live(t, v.x) : v.x.dims[k]; /* entries that may be named */
    return index_resolve(
        mpk_get_int(v.index[k], mpk_data(t, v.index[k]), mpk_spread(v.index[k], v.rank, at)), n);
}

/* The body of index.  Leading axes come from the indices, the others from the place itself; one
 * index that names nothing makes the entry zero.  Indices are read again for each entry, from the
 * cache: neighbours along the last axes share them. */
MPK_FN void index_run(const mpk_task &t, const index_views &v, const mpk_view &y)
{
    const char *g_x = mpk_data(t, v.x);
    char *g_y = mpk_data(t, y);
    INDEX_LOOP(t, y)
    {
        rt_i64 from = 0;
        bool there = true; /* until an index names nothing */
#pragma unroll
        for (int k = 0; k < RT_MAX_RANK; k++) {
            if (k >= v.x.rank)
                continue;
            rt_i64 entry = k < v.n ? index_named(t, v, k, at) : at[k - v.n + v.rank];
            there = there && entry >= 0;
            from += entry * v.x.stride[k];
        }
        copies_move(y.dtype, g_y, mpk_offset(y, at), there ? g_x : (const char *)0,
                    there ? from : 0);
    }
}

#endif
