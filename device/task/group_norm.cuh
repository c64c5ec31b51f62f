/* group_norm.cuh - channels in groups, each normalised over its channels and all places: (x - mean)
 * / sqrt(variance + eps) * weight + bias.
 *
 * Input: x [N, C, ..], or with `last` [N, .., C], of any float dtype and strides; weight, bias [C]
 * or absent.  All threads do a group of a batch entry at a time.  As in layer_norm_run the variance
 * is a sum around the mean, so x is read three times, from memory and then from caches; a thread
 * has eight loads in flight.  Sums are in double: a thread's own entries, then mpk_sum, whose
 * barriers are the only ones.  Scratch: that of mpk_sum.  Generic body.  Cost: latency of loads.
 *
 * A task has whole groups, so with channels last its rows are pieces of a few channels, and there
 * are no more tasks than groups.  For images of many places torch.compile therefore takes
 * group_moments and group_scale (python/mpk/lowering_math.py, group_split.cuh).
 */
#ifndef TASK_GROUP_NORM_CUH
#define TASK_GROUP_NORM_CUH

#include "tile/view.cuh"

/* The group that is normalised: channels [channel, channel + channels) of batch entry `entry`.  n:
 * entries of the group, channels times places; the same for all groups. */
struct group_norm_part {
    rt_i64 entry, channel;
    rt_u32 channels;
    int axis; /* of the channels */
    rt_u64 n; /* entries */
};
enum { GROUP_NORM_LOADS = 8 }; /* of a thread at a time */

/* Place `at` of entry i of a group, in row-major order of x; but for channels, all of each axis
 * belongs to it, so that divisions are by constants of the instance.  So neighbouring threads read
 * neighbours, whether places or channels are the last axis. */
MPK_FN void group_norm_place(const mpk_view &x, const group_norm_part &p, rt_u64 i, rt_i64 *at)
{
#pragma unroll
    for (int axis = RT_MAX_RANK - 1; axis > 0; axis--) {
        at[axis] = 0;
        if (axis >= x.rank)
            continue;
        const rt_u32 n = axis == p.axis ? p.channels : (rt_u32)x.dims[axis];
        const rt_u64 rest = mpk_divide(i, n);
        at[axis] = (rt_i64)(i - rest * n) + (axis == p.axis ? p.channel : 0);
        i = rest;
    }
    at[0] = p.entry;
}

/* The thread's entries from i on, every MPK_THREADS-th, GROUP_NORM_LOADS at most, as doubles; those
 * after the end of the group become `rest`.  They are loaded from the group's first entry, without
 * a branch, so that all loads are under way before the first is used. */
MPK_FN void group_norm_read(const mpk_view &x, const char *g_x, const group_norm_part &p, rt_u64 i,
                            double rest, double (&r)[GROUP_NORM_LOADS])
{
#pragma unroll
    for (int k = 0; k < GROUP_NORM_LOADS; k++) {
        rt_i64 at[RT_MAX_RANK];
        const rt_u64 mine = i + (rt_u64)k * MPK_THREADS;
        group_norm_place(x, p, mine < p.n ? mine : 0, at);
        const double value = mpk_get_double(x, g_x, mpk_offset(x, at));
        r[k] = mine < p.n ? value : rest;
    }
}

/* The sum of (x - mean)^power over the group, power 1 or 2; all threads get it.  `rest` is the
 * mean, whose distance is 0: entries after the end add nothing. */
MPK_FN double group_norm_sum(const mpk_task &t, const mpk_view &x, const char *g_x,
                             const group_norm_part &p, double mean, int power)
{
    double sum = 0;
    for (rt_u64 i = (rt_u64)mpk_thread(); i < p.n; i += GROUP_NORM_LOADS * MPK_THREADS) {
        double r[GROUP_NORM_LOADS];
        group_norm_read(x, g_x, p, i, mean, r);
#pragma unroll
        for (int k = 0; k < GROUP_NORM_LOADS; k++)
            sum += power == 2 ? (r[k] - mean) * (r[k] - mean) : r[k] - mean;
    }
    return mpk_sum(t, MPK_THREADS, sum);
}

/* Normalise a group, in double, rounded once.  All threads have come to the barriers of both sums
 * before the loop, in which they share nothing. */
MPK_FN void group_norm_group(const mpk_task &t, const mpk_view &x, const mpk_view &weight,
                             const mpk_view &bias, const mpk_view &y, const group_norm_part &p,
                             double eps)
{
    const char *g_x = mpk_data(t, x), *g_weight = mpk_data(t, weight), *g_bias = mpk_data(t, bias);
    char *g_y = mpk_data(t, y);
    const double mean = group_norm_sum(t, x, g_x, p, 0, 1) / (double)p.n;
    /* The variance of a group is over all its entries, n and not n - 1. */
    const double factor = 1.0 / sqrt(group_norm_sum(t, x, g_x, p, mean, 2) / (double)p.n + eps);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < p.n; i += GROUP_NORM_LOADS * MPK_THREADS) {
        double r[GROUP_NORM_LOADS];
        group_norm_read(x, g_x, p, i, mean, r);
#pragma unroll
        for (int k = 0; k < GROUP_NORM_LOADS; k++) {
            rt_i64 at[RT_MAX_RANK];
            const rt_u64 mine = i + (rt_u64)k * MPK_THREADS;
            /* Stored from here on; the loads above were of a valid place in any case. */
            if (mine >= p.n)
                break;
            group_norm_place(x, p, mine, at);
            double value = (r[k] - mean) * factor;
            if (mpk_is_there(weight))
                value *= mpk_get_double(weight, g_weight, at[p.axis] * weight.stride[0]);
            if (mpk_is_there(bias))
                value += mpk_get_double(bias, g_bias, at[p.axis] * bias.stride[0]);
            mpk_put_double(y, g_y, mpk_offset(y, at), value);
        }
    }
}

/* The body of group_norm.  The box has whole groups, so p.channel is always a group's first.  With
 * channels second or last the code is one: `axis` is a constant of the instance. */
MPK_FN void group_norm_run(const mpk_task &t, const mpk_view &x, const mpk_view &weight,
                           const mpk_view &bias, const mpk_view &y, rt_i64 groups, double eps,
                           rt_i64 last)
{
    const int axis = last ? x.rank - 1 : 1;
    const mpk_box box = mpk_box_of(t, x.rank);
    group_norm_part p = {0, 0, (rt_u32)(x.dims[axis] / groups), axis, 1};
    /* Entries of a group: its channels times all places. */
#pragma unroll
    for (int i = 1; i < RT_MAX_RANK; i++)
        if (i < x.rank)
            p.n *= i == axis ? p.channels : (rt_u64)x.dims[i];
    for (p.entry = box.lo[0]; p.entry < box.hi[0]; p.entry++)
        for (p.channel = box.lo[axis]; p.channel < box.hi[axis]; p.channel += p.channels)
            group_norm_group(t, x, weight, bias, y, p, eps);
}

#endif
