/* lines.cuh - operators on lines along an axis: extreme, scan, scan_extreme, sort, topk, search_sorted.
 *
 * A thread does an entry of the result, or a line.  sort and topk count for each entry how many stand before it: n^2
 * comparisons a line, no scratch, no order between threads.
 */
#ifndef TASK_LINES_CUH
#define TASK_LINES_CUH

#include "task/index.cuh"

/* What entries are ordered by: integers exactly, floats as double. */
struct lines_key {
    double f;
    rt_i64 i;
};

MPK_FN lines_key lines_get(const mpk_view &x, const char *g_x, rt_i64 at)
{
    lines_key k = {0, 0};
    if (mpk_is_exact(x.dtype))
        k.i = mpk_get_int(x, g_x, at);
    else
        k.f = mpk_get_double(x, g_x, at);
    return k;
}
/* a before b in rising order; NaN is larger than all numbers. */
MPK_FN bool lines_less(bool exact, const lines_key &a, const lines_key &b)
{
    return exact ? a.i < b.i : a.f < b.f || (b.f != b.f && a.f == a.f);
}
MPK_FN bool lines_is_nan(bool exact, const lines_key &a)
{
    return !exact && a.f != a.f;
}

/* The first of the best entries of each line. */
MPK_FN void extreme_run(const mpk_task &t, const mpk_view &x, const mpk_view &value, const mpk_view &index, int axis,
                        bool keep, bool largest)
{
    const char *g_x = mpk_data(t, x);
    char *g_value = mpk_data(t, value), *g_index = mpk_data(t, index);
    bool exact = mpk_is_exact(x.dtype);
    INDEX_LOOP(t, value)
    {
        rt_i64 from = 0, best = 0;
        int o = 0;
#pragma unroll
        for (int i = 0; i < RT_MAX_RANK; i++) {
            if (i < x.rank && i != axis && o < RT_MAX_RANK)
                from += at[o] * x.stride[i];
            o += i != axis || keep;
        }
        lines_key most = lines_get(x, g_x, from);
        for (rt_i64 i = 1; i < x.dims[axis] && !lines_is_nan(exact, most); i++) {
            lines_key k = lines_get(x, g_x, from + i * x.stride[axis]);
            if (lines_is_nan(exact, k) || (largest ? lines_less(exact, most, k) : lines_less(exact, k, most))) {
                most = k;
                best = i;
            }
        }
        copies_move(value.dtype, g_value, mpk_offset(value, at), g_x, from + best * x.stride[axis]);
        ((rt_i64 *)g_index)[mpk_offset(index, at)] = best;
    }
}

/* The box of lines: one entry along the axis. */
#define LINES_LOOP(t, y, axis)                                                                                      \
    mpk_box lines = mpk_box_of(t, y.rank);                                                                          \
    for (int lines_axis = 0; lines_axis < RT_MAX_RANK; lines_axis++)                                                \
        if (lines_axis == axis) {                                                                                   \
            lines.lo[lines_axis] = 0;                                                                               \
            lines.hi[lines_axis] = 1;                                                                               \
        }                                                                                                           \
    rt_u64 lines_n = mpk_count(lines, y.rank);                                                                      \
    rt_i64 at[RT_MAX_RANK];                                                                                         \
    for (rt_u64 lines_i = (rt_u64)mpk_thread(); lines_i < lines_n && (mpk_place(lines, y.rank, lines_i, at), true); \
         lines_i += MPK_THREADS)

enum { SCAN_SUM, SCAN_PROD, SCAN_LOGSUMEXP };

MPK_FN double scan_pair(int kind, double a, double b)
{
    if (kind == SCAN_PROD)
        return a * b;
    if (kind == SCAN_SUM)
        return a + b;
    double most = a > b || a != a ? a : b;
    return a == b && fabs(a) == (double)MPK_INFINITY ? a : most + log1p(exp(-fabs(a - b)));
}

MPK_FN void scan_run(const mpk_task &t, const mpk_view &x, const mpk_view &y, int axis, int kind)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    bool exact = mpk_is_exact(x.dtype) && mpk_is_exact(y.dtype);
    LINES_LOOP(t, y, axis)
    {
        rt_i64 from = mpk_offset(x, at), to = mpk_offset(y, at);
        double sum = kind == SCAN_PROD ? 1 : kind == SCAN_SUM ? 0 : (double)-MPK_INFINITY;
        rt_u64 whole = kind == SCAN_PROD;
        for (rt_i64 i = 0; i < x.dims[axis]; i++) {
            if (exact) {
                rt_u64 value = (rt_u64)mpk_get_int(x, g_x, from + i * x.stride[axis]);
                whole = kind == SCAN_PROD ? whole * value : whole + value;
                mpk_put_int(y, g_y, to + i * y.stride[axis], (rt_i64)whole);
            } else {
                sum = scan_pair(kind, sum, mpk_get_double(x, g_x, from + i * x.stride[axis]));
                mpk_put_double(y, g_y, to + i * y.stride[axis], sum);
            }
        }
    }
}

/* The best so far; of equal entries the last; NaN stays. */
MPK_FN void scan_extreme_run(const mpk_task &t, const mpk_view &x, const mpk_view &value, const mpk_view &index,
                             int axis, bool largest)
{
    const char *g_x = mpk_data(t, x);
    char *g_value = mpk_data(t, value), *g_index = mpk_data(t, index);
    bool exact = mpk_is_exact(x.dtype);
    LINES_LOOP(t, value, axis)
    {
        rt_i64 from = mpk_offset(x, at), to = mpk_offset(value, at), to_index = mpk_offset(index, at), best = 0;
        lines_key most = lines_get(x, g_x, from);
        for (rt_i64 i = 0; i < x.dims[axis]; i++) {
            lines_key k = lines_get(x, g_x, from + i * x.stride[axis]);
            bool worse = largest ? lines_less(exact, k, most) : lines_less(exact, most, k);
            if (lines_is_nan(exact, k) || (!lines_is_nan(exact, most) && !worse)) {
                most = k;
                best = i;
            }
            copies_move(value.dtype, g_value, to + i * value.stride[axis], g_x, from + best * x.stride[axis]);
            ((rt_i64 *)g_index)[to_index + i * index.stride[axis]] = best;
        }
    }
}

/* Every entry of the lines finds its place: the number of entries before it.  The first k places are kept. */
MPK_FN void sort_run(const mpk_task &t, const mpk_view &x, const mpk_view &values, const mpk_view &indices, int axis,
                     bool falling, rt_i64 k)
{
    const char *g_x = mpk_data(t, x);
    char *g_values = mpk_data(t, values), *g_indices = mpk_data(t, indices);
    bool exact = mpk_is_exact(x.dtype);
    mpk_box box = mpk_box_of(t, x.rank);
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == axis) {
            box.lo[i] = 0;
            box.hi[i] = (rt_u32)x.dims[i];
        }
    rt_u64 n = mpk_count(box, x.rank);
    for (rt_u64 e = (rt_u64)mpk_thread(); e < n; e += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK], self = 0, place = 0;
        mpk_place(box, x.rank, e, at);
#pragma unroll
        for (int i = 0; i < RT_MAX_RANK; i++)
            if (i == axis) {
                self = at[i];
                at[i] = 0;
            }
        rt_i64 from = mpk_offset(x, at);
        lines_key mine = lines_get(x, g_x, from + self * x.stride[axis]);
        for (rt_i64 i = 0; i < x.dims[axis]; i++) {
            lines_key other = lines_get(x, g_x, from + i * x.stride[axis]);
            bool before = falling ? lines_less(exact, mine, other) : lines_less(exact, other, mine);
            bool behind = falling ? lines_less(exact, other, mine) : lines_less(exact, mine, other);
            place += before || (!behind && i < self);
        }
        if (place >= k)
            continue;
        copies_move(values.dtype, g_values, mpk_offset(values, at) + place * values.stride[axis], g_x,
                    from + self * x.stride[axis]);
        ((rt_i64 *)g_indices)[mpk_offset(indices, at) + place * indices.stride[axis]] = self;
    }
}

MPK_FN void search_sorted_run(const mpk_task &t, const mpk_view &sorted, const mpk_view &values, const mpk_view &index,
                              bool right)
{
    const char *g_sorted = mpk_data(t, sorted), *g_values = mpk_data(t, values);
    char *g_index = mpk_data(t, index);
    bool exact = mpk_is_exact(sorted.dtype);
    INDEX_LOOP(t, index)
    {
        rt_i64 line = 0, lo = 0, hi = sorted.dims[sorted.rank - 1];
#pragma unroll
        for (int i = 0; i < RT_MAX_RANK; i++)
            if (i + 1 < sorted.rank)
                line += at[i] * sorted.stride[i];
        lines_key value = lines_get(values, g_values, mpk_offset(values, at));
        while (lo < hi) {
            rt_i64 middle = lo + (hi - lo) / 2;
            lines_key k = lines_get(sorted, g_sorted, line + middle * sorted.stride[sorted.rank - 1]);
            bool found = exact ? (right ? k.i > value.i : k.i >= value.i) : (right ? k.f > value.f : k.f >= value.f);
            lo = found ? lo : middle + 1;
            hi = found ? middle : hi;
        }
        ((rt_i64 *)g_index)[mpk_offset(index, at)] = lo;
    }
}

#endif
