/* windows.cuh - operators over windows of the spatial axes of x [N, C, ..]: conv, max_pool,
 * avg_pool, upsample.
 *
 * Input: x, and of conv the filters; output: the task's box.  What follows a convolution is printed
 * after it, in functions of map.cuh (gen/body_windows.c).  These are the generic bodies;
 * depthwise convolutions and max pools with channels last have faster ones in windows_rows.cuh.
 *
 * A thread does an entry of the result; sums run in row-major order of the window, in double, of
 * integers exactly.  Threads share nothing, so there are no barriers and no scratch, and the bits
 * of an entry do not depend on how the operator is cut.
 *
 * x has up to three spatial axes, axes 2 ... of it; number i of them is axis i + 2.  Loops over
 * axes run to a constant and test the rank inside: unrolled, every array they index stays in
 * registers.  Cost: a window's entries for each entry of the result, from the cache.
 */
#ifndef TASK_WINDOWS_CUH
#define TASK_WINDOWS_CUH

#include "task/index.cuh"
#include "task/map.cuh"
#include "task/order.cuh"

/* Attributes of conv: of up to three spatial axes a number each.  groups: channels of x and filters
 * are divided into that many, and each filter sees the channels of its own group. */
struct conv_how {
    mpk_numbers stride, padding, dilation;
    rt_i64 groups;         /* channels and filters are divided into these */
    bool transposed, last; /* last: the result has its channels last; x has them on axis 1 */
};

/* A place of the result with its axes in the order [N, F, ..]: if the channels come last, they move
 * to axis 1 and the spatial axes one up.  From the last axis down, so that none is overwritten
 * before it has moved. */
MPK_FN void conv_order(const conv_how &h, int rank, rt_i64 *at)
{
    rt_i64 filter = 0; /* the last axis' entry */
#pragma unroll
    for (int i = RT_MAX_RANK - 1; i > 1 && h.last; i--)
        if (i < rank) {
            filter = i == rank - 1 ? at[i] : filter;
            at[i] = at[i - 1];
        }
    if (h.last)
        at[1] = filter;
}
/* Filters of a group, which are the channels of y that see the same channels of x. */
MPK_FN rt_i64 conv_filters(const conv_how &h, const mpk_view &y)
{
    return (h.last ? y.dims[y.rank - 1] : y.dims[1]) / h.groups;
}

/* The entry of x along spatial axis i, of n, that entry `at` of the result takes for entry k of the
 * kernel; -1: none.  A transposed convolution has the equation from * stride - padding + k *
 * dilation = at, which some k alone can meet: with dilation 1 one in `stride`. */
MPK_FN rt_i64 conv_source(const conv_how &h, int i, rt_i64 at, rt_i64 k, rt_i64 n)
{
    rt_i64 from = at * h.stride.at[i] - h.padding.at[i] + k * h.dilation.at[i];
    if (h.transposed) {
        from = at + h.padding.at[i] - k * h.dilation.at[i];
        if (from < 0 || from % h.stride.at[i])
            return -1;
        from /= h.stride.at[i];
    }
    return from >= 0 && from < n ? from : -1;
}

/* The body of conv: any convolution.  w is [F, C / groups, ..], or, transposed, [C, F / groups,
 * ..].
 *
 * `kernel` is a box of the kernel's entries, through which e counts.  Integers are summed modulo
 * 2^64, floats in double, channel by channel.  Entries in the padding are left out rather than
 * multiplied as zeros: a weight that is infinite would make them NaN.  Offsets of entries in the
 * padding are not used, whatever they are. */
MPK_FN void conv_run(const mpk_task &t, const mpk_view &x, const mpk_view &w, const mpk_view &bias,
                     const mpk_view &y, const conv_how &h)
{
    const char *g_x = mpk_data(t, x), *g_w = mpk_data(t, w), *g_bias = mpk_data(t, bias);
    char *g_y = mpk_data(t, y);
    bool exact = mpk_is_exact(y.dtype); /* integers: summed modulo 2^64 */
    rt_i64 channels = x.dims[1] / h.groups, filters = conv_filters(h, y); /* of a group */
    mpk_box kernel = {};
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        kernel.hi[i] = i + 2 < x.rank ? (rt_u32)w.dims[i + 2 < RT_MAX_RANK ? i + 2 : 0] : 1;
    rt_u64 entries = mpk_count(kernel, x.rank - 2); /* of the kernel, for each channel */
    INDEX_LOOP(t, y)
    {
        /* the place of the result, before conv_order puts y's indices into the filter's order */
        const rt_i64 to = mpk_offset(y, at);
        conv_order(h, y.rank, at);
        rt_i64 group = at[1] / filters; /* whose channels the filter sees */
        double sum = 0;
        rt_u64 whole = 0;
        for (rt_i64 c = 0; c < channels; c++)
            for (rt_u64 e = 0; e < entries; e++) {
                rt_i64 k[RT_MAX_RANK],
                    from = at[0] * x.stride[0] + (group * channels + c) * x.stride[1];
                rt_i64 weight = h.transposed ? (group * channels + c) * w.stride[0] +
                                                   at[1] % filters * w.stride[1]
                                             : at[1] * w.stride[0] + c * w.stride[1];
                bool inside = true; /* else the entry is padding */
                mpk_place(kernel, x.rank - 2, e, k);
#pragma unroll
                for (int i = 0; i < 3; i++)
                    if (i + 2 < x.rank) {
                        rt_i64 entry = conv_source(h, i, at[i + 2], k[i], x.dims[i + 2]);
                        inside = inside && entry >= 0;
                        from += entry * x.stride[i + 2];
                        weight += k[i] * w.stride[i + 2];
                    }
                if (!inside)
                    continue;
                if (exact)
                    whole +=
                        (rt_u64)mpk_get_int(w, g_w, weight) * (rt_u64)mpk_get_int(x, g_x, from);
                else
                    sum += mpk_get_double(w, g_w, weight) * mpk_get_double(x, g_x, from);
            }
        if (mpk_is_there(bias) && exact)
            whole += (rt_u64)mpk_get_int(bias, g_bias, at[1] * bias.stride[0]);
        else if (mpk_is_there(bias))
            sum += mpk_get_double(bias, g_bias, at[1] * bias.stride[0]);
        if (exact)
            mpk_put_int(y, g_y, to, (rt_i64)whole);
        else
            mpk_put_double(y, g_y, to, sum);
    }
}

/* The same for groups of one channel of floats of at most 32 bits, with few entries, and not
 * transposed: in fp32, and with offsets of 32 bits inside a plane of x and a filter.  The kernel's
 * dimensions are constants, so its loops are unrolled: all loads of a window may be under way.
 *
 * For each spatial axis: first, the entry of x under entry 0 of the kernel, which may be negative;
 * n, how many there are; step and apart, the strides of x and of w.  An axis that x has not is one
 * of one entry.  One unsigned comparison tests both ends of an axis. */
MPK_FN void conv_planes_run(const mpk_task &t, const mpk_view &x, const mpk_view &w,
                            const mpk_view &bias, const mpk_view &y, const conv_how &h)
{
    const char *g_x = mpk_data(t, x), *g_w = mpk_data(t, w), *g_bias = mpk_data(t, bias);
    char *g_y = mpk_data(t, y);
    const rt_i64 filters = conv_filters(h, y);
    INDEX_LOOP(t, y)
    {
        const rt_i64 to = mpk_offset(y, at);
        conv_order(h, y.rank, at);
        const rt_i64 plane = at[0] * x.stride[0] + at[1] / filters * x.stride[1],
                     filter = at[1] * w.stride[0];
        int first[3], n[3], kernel[3], step[3], apart[3], k[3]; /* by spatial axis */
#pragma unroll
        for (int i = 0; i < 3; i++) {
            const int axis = i + 2 < x.rank ? i + 2 : 0;
            kernel[i] = axis ? (int)w.dims[axis] : 1;
            n[i] = axis ? (int)x.dims[axis] : 1;
            first[i] = axis ? (int)(at[axis] * h.stride.at[i] - h.padding.at[i]) : 0;
            step[i] = axis ? (int)x.stride[axis] : 0;
            apart[i] = axis ? (int)w.stride[axis] : 0;
        }
        float sum = 0;
#pragma unroll
        for (k[0] = 0; k[0] < kernel[0]; k[0]++)
#pragma unroll
            for (k[1] = 0; k[1] < kernel[1]; k[1]++)
#pragma unroll
                for (k[2] = 0; k[2] < kernel[2]; k[2]++) {
                    bool inside = true;
                    int from = 0, weight = 0;
#pragma unroll
                    for (int i = 0; i < 3; i++) {
                        const int entry = first[i] + k[i] * (int)h.dilation.at[i];
                        inside = inside && (unsigned)entry < (unsigned)n[i];
                        from += entry * step[i];
                        weight += k[i] * apart[i];
                    }
                    if (inside)
                        sum += mpk_get(w, g_w, filter + weight) * mpk_get(x, g_x, plane + from);
                }
        if (mpk_is_there(bias))
            sum += mpk_get(bias, g_bias, at[1] * bias.stride[0]);
        mpk_put(y, g_y, to, sum);
    }
}

/* ---- pooling ---- */

/* Attributes of the pools, as in src/op/pool.h.  parts: adaptive pooling, into `output` parts of
 * each axis instead of by kernel and stride. */
struct pool_how {
    mpk_numbers kernel, stride, padding, dilation, output;
    bool parts; /* adaptive */
};

/* One window, clipped to x: on each spatial axis the first entry that lies inside, and how many.
 * The entries count on by the dilation; in adaptive pooling by 1. */
struct pool_window {
    rt_i64 start[3]; /* in x, clipped */
    mpk_box steps;   /* how many entries of each axis lie in x */
    rt_i64 padded;   /* entries with the padding */
};

/* Where a window begins and how many steps of it lie inside x, on each axis.  padded: its entries
 * with those in the padding, but not beyond it, as PyTorch counts them.  parts: adaptive pooling,
 * whose windows are fractions of the axis, rounded outwards: neighbours may share an entry.
 *
 * A start in the padding moves up by whole steps, so that a dilated window keeps its grid. */
MPK_FN pool_window pool_find(const mpk_view &x, const pool_how &h, const rt_i64 *at)
{
    pool_window w;
    w.padded = 1;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++) {
        w.steps.lo[i] = 0;
        w.steps.hi[i] = 1;
        if (i >= 3 || i + 2 >= x.rank)
            continue;
        rt_i64 n = x.dims[i + 2], o = at[i + 2], step = h.parts ? 1 : h.dilation.at[i];
        rt_i64 start = h.parts ? o * n / h.output.at[i] : o * h.stride.at[i] - h.padding.at[i];
        rt_i64 end = h.parts ? ((o + 1) * n + h.output.at[i] - 1) / h.output.at[i]
                             : start + (h.kernel.at[i] - 1) * step + 1;
        if (!h.parts && end > n + h.padding.at[i])
            end = n + h.padding.at[i];
        /* counted from the unclipped start, whose padding belongs to the window */
        w.padded *= (end - start - 1) / step + 1;
        if (start < 0)
            start += (-start + step - 1) / step * step;
        end = end < n ? end : n;
        w.start[i] = start;
        w.steps.hi[i] = start < end ? (rt_u32)((end - start - 1) / step + 1) : 0;
    }
    return w;
}

/* Offset of entry e of a window in its plane, and its number in row-major order of the plane, which
 * is what max_pool gives as index, whatever x's strides are. */
MPK_FN rt_i64 pool_entry(const mpk_view &x, const pool_how &h, const pool_window &w, rt_u64 e,
                         rt_i64 *number)
{
    rt_i64 step[RT_MAX_RANK], offset = 0;
    *number = 0;
    mpk_place(w.steps, x.rank - 2, e, step);
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (i + 2 < x.rank) {
            rt_i64 entry = w.start[i] + step[i] * (h.parts ? 1 : h.dilation.at[i]);
            offset += entry * x.stride[i + 2];
            *number = *number * x.dims[i + 2] + entry;
        }
    return offset;
}

/* The body of avg_pool: the mean over each window.  The divisor is `divisor`, if that is not 0,
 * else the entries of the window, with those in the padding if `include`.  A window without
 * entries divides by 1 and gives 0. */
MPK_FN void avg_pool_run(const mpk_task &t, const mpk_view &x, const mpk_view &y, const pool_how &h,
                         bool include, rt_i64 divisor)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    INDEX_LOOP(t, y)
    {
        pool_window w = pool_find(x, h, at);
        rt_u64 inside = mpk_count(w.steps, x.rank - 2); /* entries of the window in x */
        rt_i64 number, plane = at[0] * x.stride[0] + at[1] * x.stride[1],
                       n = include ? w.padded : (rt_i64)inside;
        const rt_i64 by = divisor ? divisor : n; /* 0 where the window has no entry */
        double sum = 0;
        for (rt_u64 e = 0; e < inside; e++)
            sum += mpk_get_double(x, g_x, plane + pool_entry(x, h, w, e, &number));
        mpk_put_double(y, g_y, mpk_offset(y, at), sum / (double)(by ? by : 1));
    }
}

/* The body of max_pool: the largest entry of each window, bit for bit, and its number in the
 * plane. Entries are compared by their ranks (order_rising), which serves all dtypes; of equal
 * ones the first stays.  NaN has the highest rank and wins, and the last NaN of several, as in
 * the reference.  A window without entries gives -infinity and number 0. */
MPK_FN void max_pool_run(const mpk_task &t, const mpk_view &x, const mpk_view &values,
                         const mpk_view &indices, const pool_how &h)
{
    const char *g_x = mpk_data(t, x);
    char *g_values = mpk_data(t, values), *g_indices = mpk_data(t, indices);
    bool exact = mpk_is_exact(x.dtype);
    INDEX_LOOP(t, values)
    {
        pool_window w = pool_find(x, h, at);
        rt_u64 inside = mpk_count(w.steps, x.rank - 2);
        rt_i64 number, best = 0, from = -1, plane = at[0] * x.stride[0] + at[1] * x.stride[1];
        rt_u64 most = 0; /* rank of the best entry */
        for (rt_u64 e = 0; e < inside; e++) {
            rt_i64 offset = plane + pool_entry(x, h, w, e, &number);
            rt_u64 rank = order_rising(x, g_x, offset);
            /* A NaN has the last rank of floats and replaces another NaN; integers have no such
             * rank. */
            if (from >= 0 && rank <= most && (exact || rank < order_last(x.dtype)))
                continue;
            most = rank;
            best = number;
            from = offset;
        }
        if (from >= 0)
            copies_move(values.dtype, g_values, mpk_offset(values, at), g_x, from);
        else
            mpk_put_double(values, g_values, mpk_offset(values, at), (double)-MPK_INFINITY);
        ((rt_i64 *)g_indices)[mpk_offset(indices, at)] = best;
    }
}

/* ---- upsampling ---- */

/* Modes, in an order that comparisons use: from LINEAR on an entry of the result lies between
 * entries of x. */
enum { UPSAMPLE_NEAREST, UPSAMPLE_NEAREST_EXACT, UPSAMPLE_LINEAR, UPSAMPLE_CUBIC };

/* Entries of x that one entry of the result takes along an axis, and their weights, upsample_count
 * of them: 1, 2 or 4. */
struct upsample_taps {
    rt_i64 at[4];     /* entries of x along the axis */
    double weight[4]; /* theirs; they sum to 1 */
};

/* Entry i of an axis of n; one beyond an end is the one at that end. */
MPK_FN rt_i64 upsample_hold(rt_i64 i, rt_i64 n)
{
    if (i < 0)
        return 0;
    return i < n ? i : n - 1;
}

/* How many taps an entry of the result has along an axis. */
MPK_FN int upsample_count(int mode)
{
    if (mode == UPSAMPLE_CUBIC)
        return 4;
    return mode == UPSAMPLE_LINEAR ? 2 : 1;
}

/* The taps of entry o of the result along an axis of x of n entries.  ratio: entries of x for one
 * of the result.
 *
 * NEAREST takes the place where entry o begins, NEAREST_EXACT that of its middle.  The others count
 * from middle to middle (half a place is added, scaled, and taken away), or, with `align`, from the
 * first entry to the last.  The place is rounded to fp32 unless x is f64 (`wide`), since floor of
 * it must fall where the reference's does.
 * Cubic weights are Keys' kernel with a = -0.75, for distances s + 1, s, 1 - s and 2 - s from the
 * four taps.
 */
MPK_FN upsample_taps upsample_find(int mode, bool align, double ratio, rt_i64 n, rt_i64 o,
                                   bool wide)
{
    const double a = -0.75; /* PyTorch's coefficient of the cubic kernel */
    upsample_taps taps;     /* of this axis */
    double place =
        ratio *
        ((double)o + (mode == UPSAMPLE_NEAREST || (align && mode >= UPSAMPLE_LINEAR) ? 0 : 0.5));
    if (mode >= UPSAMPLE_LINEAR && !align)
        place -= 0.5;
    if (mode == UPSAMPLE_LINEAR && place < 0)
        place = 0;
    place = wide ? place : (double)(float)place;
    rt_i64 first = (rt_i64)floor(place); /* the entry at or before the place */
    double s = place - (double)first, u = 1 - s;
    taps.at[0] = upsample_hold(mode == UPSAMPLE_CUBIC ? first - 1 : first, n);
    taps.weight[0] = 1;
    if (mode == UPSAMPLE_LINEAR) {
        taps.at[1] = upsample_hold(first + 1, n);
        taps.weight[0] = u;
        taps.weight[1] = s;
    }
    if (mode == UPSAMPLE_CUBIC) {
        for (int k = 1; k < 4; k++)
            taps.at[k] = upsample_hold(first - 1 + k, n);
        taps.weight[0] = ((a * (s + 1) - 5 * a) * (s + 1) + 8 * a) * (s + 1) - 4 * a;
        taps.weight[1] = ((a + 2) * s - (a + 3)) * s * s + 1;
        taps.weight[2] = ((a + 2) * u - (a + 3)) * u * u + 1;
        taps.weight[3] = ((a * (u + 1) - 5 * a) * (u + 1) + 8 * a) * (u + 1) - 4 * a;
    }
    return taps;
}

/* The body of upsample.  Each entry of the result is the sum over all combinations of the axes'
 * taps, count^axes of them, at most 16, at the product of their weights: `rest` counts through
 * them, the last axis fastest.  In double, rounded once. */
MPK_FN void upsample_run(const mpk_task &t, const mpk_view &x, const mpk_view &y, int mode,
                         bool align, double ratio0, double ratio1, double ratio2)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    const double ratio[] = {ratio0, ratio1, ratio2}; /* by spatial axis */
    int count = upsample_count(mode), all = 1;
    for (int i = 2; i < x.rank; i++)
        all *= count;
    INDEX_LOOP(t, y)
    {
        upsample_taps taps[3]; /* by spatial axis */
        double sum = 0;
#pragma unroll
        for (int i = 0; i < 3; i++)
            if (i + 2 < x.rank)
                taps[i] = upsample_find(mode, align, ratio[i], x.dims[i + 2], at[i + 2],
                                        x.dtype == MPK_F64);
        for (int e = 0; e < all; e++) {
            rt_i64 from = at[0] * x.stride[0] + at[1] * x.stride[1];
            double weight = 1;
            int rest = e; /* digits: a tap of each axis */
#pragma unroll
            for (int i = 2; i >= 0; i--)
                if (i + 2 < x.rank) {
                    from += taps[i].at[rest % count] * x.stride[i + 2];
                    weight *= taps[i].weight[rest % count];
                    rest /= count;
                }
            sum += weight * mpk_get_double(x, g_x, from);
        }
        mpk_put_double(y, g_y, mpk_offset(y, at), sum);
    }
}

#endif
