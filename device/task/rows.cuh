/* rows.cuh - operators that reduce along axes: rms_norm, rms_norm_parts, layer_norm, softmax,
 * argmax and its parts; and how two entries become one, for reduce.cuh.
 *
 * Input: views of any dtype and strides; output: the task's box.  These are the generic bodies;
 * what they are too general for has a fast body beside them (rows_warp.cuh for norms and softmax).
 *
 *   rms_norm_run, rms_norm_parts_run, layer_norm_run    rows along the last axis
 *   softmax_run                                         lines along any axis, also log_softmax
 *   argmax_run, argmax_partial_run, argmax_reduce_run   rows of rank 2
 *   reduce_pair, reduce_group                           one kind of reduction, for reduce.cuh
 *
 * A line, which is what one result is made of, is shared by a group: a team of threads, or all of
 * them if the line is long (mpk_group).  Which of both depends on its length alone, so a line has
 * the same bits however the operator is cut.  A round has a line for each group; thread number i
 * of a group takes entries i, i + group, ...
 *
 * The reductions (MPK_REDUCTION in tile/view.cuh) have barriers for all threads of the worker.  So
 * every thread goes through every round.  A group that has no line in the last one (`mine` is
 * false) reduces values that are dropped, and stores nothing.
 * Relies on the first MPK_REDUCE_BYTES of scratch, and on nothing else there.
 * Cost: a pass over the line for each reduction, from the cache after the first.
 */
#ifndef TASK_ROWS_CUH
#define TASK_ROWS_CUH

#include "task/activate.cuh"
#include "tile/view.cuh"

/* This thread's line of the round that begins with line `first` of n; false: none is left for its
 * group, which then only comes to the barriers; *line is then no line of the box.  Threads that are
 * left over by teams of 32 belong to no group. */
MPK_FN bool rows_line(int group, rt_u64 first, rt_u64 n, rt_u64 *line)
{
    int number = mpk_thread() / group; /* of the group in the round */
    *line = first + (rt_u64)number;
    return number < MPK_THREADS / group && *line < n;
}

/* 1 / sqrt(mean of squares + eps) of n entries of a line, `step` elements apart from offset `from`
 * on; called by all threads, mine: this thread's group has a line.  Squares are summed in double,
 * so that only the final factor is rounded to fp32.  Each thread of the group gets the factor, by
 * two barriers or more (MPK_REDUCTION).  heads.cuh and latent_rope.cuh call it, too. */
MPK_FN float rows_factor(const mpk_task &t, int group, bool mine, const mpk_view &x,
                         const char *g_x, rt_i64 from, rt_i64 step, rt_i64 n, double eps)
{
    double sum = 0; /* of squares */
    /* without a line no loads, and a sum of 0 for the barriers' sake */
    for (rt_i64 i = mpk_thread() % group; mine && i < n; i += group) {
        double value = (double)mpk_get(x, g_x, from + i * step);
        sum += value * value;
    }
    return (float)(1.0 / sqrt(mpk_sum(t, group, sum) / (double)n + eps));
}

/* y = x * factor * weight + residual, or times silu(gate), over columns [first, first + n) of each
 * line of the box, which has whole lines: only its other axes are counted.  In fp32, rounded when
 * it is stored.  The columns are read twice, for the factor and to scale them.  weight is counted
 * from its own first entry, residual and gate, of which one at most is there, as x is. */
MPK_FN void rms_norm_columns(const mpk_task &t, const mpk_view &x, rt_i64 first, rt_i64 n,
                             const mpk_view &weight, const mpk_view &residual, const mpk_view &gate,
                             const mpk_view &y, double eps)
{
    const bool gated = mpk_is_there(gate);
    const mpk_view &other = gated ? gate : residual;
    const char *g_x = mpk_data(t, x), *g_weight = mpk_data(t, weight),
               *g_other = mpk_data(t, other);
    char *g_y = mpk_data(t, y);
    int last = x.rank - 1, group = mpk_group(n), lane = mpk_thread() % group;
    mpk_box box = mpk_box_of(t, last);
    rt_u64 lines = mpk_count(box, last), line;
    for (rt_u64 from_line = 0; from_line < lines; from_line += MPK_THREADS / group) {
        rt_i64 at[RT_MAX_RANK], from = 0, beside = 0, to = 0;
        bool mine = rows_line(group, from_line, lines, &line);
        if (mine) {
            mpk_place(box, last, line, at);
            /* mpk_place counts the axes before it alone */
            at[last] = first;
            from = mpk_offset(x, at);
            beside = mpk_is_there(other) ? mpk_offset(other, at) : 0;
            to = mpk_offset(y, at);
        }
        /* The barriers inside are for all threads of the worker, so a group without a line calls
         * it too. */
        float factor = rows_factor(t, group, mine, x, g_x, from, x.stride[last], n, eps);
        for (rt_i64 i = lane; mine && i < n; i += group) {
            float value = mpk_get(x, g_x, from + i * x.stride[last]) * factor;
            if (mpk_is_there(weight))
                value *= mpk_get(weight, g_weight, i * weight.stride[0]);
            if (mpk_is_there(other)) {
                const float v = mpk_get(other, g_other, beside + i * other.stride[last]);
                value = gated ? value * activate_silu(v) : value + v;
            }
            mpk_put(y, g_y, to + i * y.stride[last], value);
        }
    }
}

/* The body of rms_norm: along the last axis, in full. */
MPK_FN void rms_norm_run(const mpk_task &t, const mpk_view &x, const mpk_view &weight,
                         const mpk_view &residual, const mpk_view &gate, const mpk_view &y,
                         double eps)
{
    rms_norm_columns(t, x, 0, x.dims[x.rank - 1], weight, residual, gate, y, eps);
}

/* Copy the columns of x [T, N] from `first` on to y, all threads together. */
MPK_FN void rows_copy_columns(const mpk_task &t, const mpk_view &x, rt_i64 first, const mpk_view &y)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    const mpk_box box = mpk_box_of(t, 1);
    const rt_i64 n = x.dims[1] - first;
    for (rt_i64 line = box.lo[0]; line < box.hi[0]; line++)
        for (rt_i64 i = first + mpk_thread(); i < first + n; i += MPK_THREADS)
            mpk_put(y, g_y, line * y.stride[0] + i * y.stride[1],
                    mpk_get(x, g_x, line * x.stride[0] + i * x.stride[1]));
}

/* The body of rms_norm_parts: two parts of each row of x [T, N] are normalised each by itself, and
 * the columns after them are copied.  Each of the three writes columns of its own, so no barrier
 * stands between them but those of the reductions. */
MPK_FN void rms_norm_parts_run(const mpk_task &t, const mpk_view &x, const mpk_view &weight0,
                               const mpk_view &weight1, const mpk_view &y, double eps)
{
    constexpr mpk_view nothing = {-1}; /* an absent residual, or gate */
    rms_norm_columns(t, x, 0, weight0.dims[0], weight0, nothing, nothing, y, eps);
    rms_norm_columns(t, x, weight0.dims[0], weight1.dims[0], weight1, nothing, nothing, y, eps);
    rows_copy_columns(t, x, weight0.dims[0] + weight1.dims[0], y);
}

/* The body of layer_norm: y = (x - mean) / sqrt(variance + eps) * weight + bias along the last
 * axis.
 *
 * Two passes come before the one that stores: the variance is a sum around the mean, since the
 * difference of the mean square and the squared mean cancels where the mean is large.  A result
 * of f64 stays in double; any other is rounded to fp32 when it is normalised, and again by
 * weight and by bias. */
MPK_FN void layer_norm_run(const mpk_task &t, const mpk_view &x, const mpk_view &weight,
                           const mpk_view &bias, const mpk_view &y, double eps)
{
    const char *g_x = mpk_data(t, x), *g_weight = mpk_data(t, weight), *g_bias = mpk_data(t, bias);
    char *g_y = mpk_data(t, y);
    int last = x.rank - 1, group = mpk_group(x.dims[last]), lane = mpk_thread() % group;
    rt_i64 width = x.dims[last], step = x.stride[last];
    mpk_box box = mpk_box_of(t, last);
    rt_u64 n = mpk_count(box, last), line;
    for (rt_u64 first = 0; first < n; first += MPK_THREADS / group) {
        rt_i64 at[RT_MAX_RANK], from = 0, to = 0;
        bool mine = rows_line(group, first, n, &line);
        if (mine) {
            mpk_place(box, last, line, at);
            from = mpk_offset(x, at);
            to = mpk_offset(y, at);
        }
        double sum = 0, squares = 0; /* the second around the mean */
        for (rt_i64 i = lane; mine && i < width; i += group)
            sum += mpk_get_double(x, g_x, from + i * step);
        /* In each thread of the group, by the same additions. */
        double mean = mpk_sum(t, group, sum) / (double)width; /* the same in the group */
        for (rt_i64 i = lane; mine && i < width; i += group) {
            double away = mpk_get_double(x, g_x, from + i * step) - mean; /* from the mean */
            squares += away * away;
        }
        double factor = 1.0 / sqrt(mpk_sum(t, group, squares) / (double)width + eps);
        /* The third pass over the line stores; x comes from the cache by now. */
        for (rt_i64 i = lane; mine && i < width; i += group) {
            double value = (mpk_get_double(x, g_x, from + i * step) - mean) * factor;
            bool wide = y.dtype == MPK_F64; /* nothing is rounded on the way */
            value = wide ? value : (double)(float)value;
            if (mpk_is_there(weight)) {
                double by = mpk_get_double(weight, g_weight, i * weight.stride[0]);
                value = wide ? value * by : (double)((float)value * (float)by);
            }
            if (mpk_is_there(bias)) {
                double plus = mpk_get_double(bias, g_bias, i * bias.stride[0]);
                value = wide ? value + plus : (double)((float)value + (float)plus);
            }
            mpk_put_double(y, g_y, to + i * y.stride[last], value);
        }
    }
}

/* Kinds of `reduce`, by the names that body_reduce.c prints.  ANY and ALL stand at the end: from
 * REDUCE_ANY on entries count only as zero or not zero, and the result is an integer whatever x
 * is. */
enum {
    REDUCE_SUM,
    REDUCE_MEAN,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_PROD,
    REDUCE_LOGSUMEXP,
    REDUCE_ANY,
    REDUCE_ALL
};

/* NaN wins, as in the reference: as b by the second test, and as a because no comparison with it is
 * true. */
MPK_FN double reduce_larger(double a, double b)
{
    return b > a || b != b ? b : a;
}
MPK_FN double reduce_smaller(double a, double b)
{
    return b < a || b != b ? b : a;
}
/* A name for the macro below; sums have one already (mpk_sum). */
MPK_FN double reduce_times(double a, double b)
{
    return a * b;
}
/* reduce_group_...(t, group, x): the combination over a group, in each thread of it. */
MPK_REDUCTION(reduce_group_max, double, reduce_larger)
MPK_REDUCTION(reduce_group_min, double, reduce_smaller)
MPK_REDUCTION(reduce_group_prod, double, reduce_times)

/* Two values become one; SUM, MEAN and LOGSUMEXP add.  `kind` is a constant of the instance, so
 * one case of each switch is left. */
MPK_FN double reduce_pair(int kind, double a, double b)
{
    switch (kind) {
    case REDUCE_MAX:
        return reduce_larger(a, b);
    case REDUCE_MIN:
        return reduce_smaller(a, b);
    case REDUCE_PROD:
        return reduce_times(a, b);
    default:
        return a + b;
    }
}
/* The same over a group: every thread of it gets the result, in one order (MPK_REDUCTION).  Called
 * by all threads. */
MPK_FN double reduce_group(const mpk_task &t, int kind, int group, double a)
{
    switch (kind) {
    case REDUCE_MAX:
        return reduce_group_max(t, group, a);
    case REDUCE_MIN:
        return reduce_group_min(t, group, a);
    case REDUCE_PROD:
        return reduce_group_prod(t, group, a);
    default:
        return mpk_sum(t, group, a);
    }
}

/* The same of integers, exactly: sums and products wrap around, computed as unsigned numbers since
 * signed overflow is undefined; "any" and "all" are the largest and the smallest of 0 and 1. */
MPK_FN rt_i64 reduce_whole_larger(rt_i64 a, rt_i64 b)
{
    return b > a ? b : a;
}
MPK_FN rt_i64 reduce_whole_smaller(rt_i64 a, rt_i64 b)
{
    return b < a ? b : a;
}
MPK_FN rt_i64 reduce_whole_times(rt_i64 a, rt_i64 b)
{
    return (rt_i64)((rt_u64)a * (rt_u64)b);
}
MPK_FN rt_i64 reduce_whole_plus(rt_i64 a, rt_i64 b)
{
    return (rt_i64)((rt_u64)a + (rt_u64)b);
}
MPK_REDUCTION(reduce_group_whole_max, rt_i64, reduce_whole_larger)
MPK_REDUCTION(reduce_group_whole_min, rt_i64, reduce_whole_smaller)
MPK_REDUCTION(reduce_group_whole_prod, rt_i64, reduce_whole_times)
MPK_REDUCTION(reduce_group_whole_sum, rt_i64, reduce_whole_plus)

/* Two values become one, and over a group, as above; MEAN, whose result is a float, does not come
 * here, nor LOGSUMEXP. */
MPK_FN rt_i64 reduce_pair(int kind, rt_i64 a, rt_i64 b)
{
    switch (kind) {
    case REDUCE_MAX:
    case REDUCE_ANY:
        return reduce_whole_larger(a, b);
    case REDUCE_MIN:
    case REDUCE_ALL:
        return reduce_whole_smaller(a, b);
    case REDUCE_PROD:
        return reduce_whole_times(a, b);
    default:
        return reduce_whole_plus(a, b);
    }
}
/* The same over a group, of integers: exact, so the order does not matter.  Called by all
 * threads.
 */
MPK_FN rt_i64 reduce_group(const mpk_task &t, int kind, int group, rt_i64 a)
{
    switch (kind) {
    case REDUCE_MAX:
    case REDUCE_ANY:
        return reduce_group_whole_max(t, group, a);
    case REDUCE_MIN:
    case REDUCE_ALL:
        return reduce_group_whole_min(t, group, a);
    case REDUCE_PROD:
        return reduce_group_whole_prod(t, group, a);
    default:
        return reduce_group_whole_sum(t, group, a);
    }
}

/* exp(x - largest), at most 1, so it cannot overflow: in fp32, or in fp64 if x is f64. */
MPK_FN double softmax_weight(int dtype, double x, double largest)
{
    return dtype == MPK_F64 ? exp(x - largest) : (double)expf((float)x - (float)largest);
}

/* The body of softmax: exp(x - max) / sum along an axis, of which the box holds what is alive;
 * or its logarithm.
 *
 * Lines are the box with its extent along `axis` reduced to one entry; lo and hi keep that
 * extent. The axis is found in a loop over constants, since an array in registers cannot be
 * indexed by a variable.  Offsets count from entry lo of the axis, where mpk_place puts a line.
 * Three passes: the maximum, the sum of weights, and the results; weights are computed twice,
 * since a line may be too long to keep them. */
MPK_FN void softmax_run(const mpk_task &t, const mpk_view &x, const mpk_view &y, int axis,
                        bool logarithm)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    int group = mpk_group(x.dims[axis]), lane = mpk_thread() % group;
    mpk_box box = mpk_box_of(t, y.rank);
    rt_i64 lo = 0, hi = 0, from_step = x.stride[axis], to_step = y.stride[axis]; /* along it */
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == axis) {
            lo = (rt_i64)box.lo[i];
            hi = (rt_i64)box.hi[i];
            box.hi[i] = box.lo[i] + 1;
        }
    rt_u64 n = hi > lo ? mpk_count(box, y.rank) : 0, line;
    for (rt_u64 first = 0; first < n; first += MPK_THREADS / group) {
        rt_i64 at[RT_MAX_RANK], from = 0, to = 0;
        bool mine = rows_line(group, first, n, &line);
        if (mine) {
            mpk_place(box, y.rank, line, at);
            from = mpk_offset(x, at);
            to = mpk_offset(y, at);
        }
        /* Three passes; a group without a line has -inf and 0 in the first two, and stores nothing.
         * A line with a NaN has it as its largest, and all its results are NaN. */
        double largest = (double)-MPK_INFINITY, sum = 0;
        for (rt_i64 i = lane; mine && i < hi - lo; i += group)
            largest = reduce_larger(largest, mpk_get_double(x, g_x, from + i * from_step));
        largest = reduce_group_max(t, group, largest);
        for (rt_i64 i = lane; mine && i < hi - lo; i += group)
            sum += softmax_weight(x.dtype, mpk_get_double(x, g_x, from + i * from_step), largest);
        sum = mpk_sum(t, group, sum);
        for (rt_i64 i = lane; mine && i < hi - lo; i += group) {
            double value = mpk_get_double(x, g_x, from + i * from_step);
            mpk_put_double(y, g_y, to + i * to_step,
                           logarithm ? value - largest - log(sum)
                                     : softmax_weight(x.dtype, value, largest) / sum);
        }
    }
}

/* mpk_largest gives value and column as one integer, which is 0 if there are no entries or all are
 * NaN; a maximum of such integers does not depend on the order in which threads are combined.  So
 * both ways give the same column, the lowest of equal ones.  Parts rise with their columns, and
 * among equal values argmax_reduce takes the lowest part. */

/* The body of argmax: the column of the largest entry of a row, of equal ones the first; 0 if all
 * are NaN.  A group without a row passes an empty range: so it still takes part in the barriers. */
MPK_FN void argmax_run(const mpk_task &t, const mpk_view &x, const mpk_view &index)
{
    const char *g_x = mpk_data(t, x);
    char *g_index = mpk_data(t, index);
    int group = mpk_group(x.dims[1]);
    rt_u64 lo = mpk_lo(t, 0), n = mpk_hi(t, 0) - lo, line;
    for (rt_u64 first = 0; first < n; first += MPK_THREADS / group) {
        bool mine = rows_line(group, first, n, &line);
        /* without a line it is a row after the last, of which nothing is read */
        rt_i64 row = (rt_i64)(lo + line);
        rt_u64 best =
            mpk_largest(t, group, x, g_x, row * x.stride[0], x.stride[1], 0, mine ? x.dims[1] : 0);
        if (mine && mpk_thread() % group == 0)
            /* an index is i32 whatever x is */
            ((rt_i32 *)g_index)[row * index.stride[0]] = best ? (rt_i32)mpk_index_of(best) : 0;
    }
}

/* The body of argmax_partial: value and column of the largest entry of each part of a row; NaN, and
 * the part's first column, for a part of NaN.  A part is what one task can have, so a long row is
 * spread over workers.  Part p of `parts` is columns n p / parts to n (p + 1) / parts, so that
 * parts differ by at most one column; the group fits their mean length. */
MPK_FN void argmax_partial_run(const mpk_task &t, const mpk_view &x, const mpk_view &value,
                               const mpk_view &index, rt_i64 parts)
{
    const char *g_x = mpk_data(t, x);
    char *g_value = mpk_data(t, value), *g_index = mpk_data(t, index);
    int group = mpk_group(x.dims[1] / parts);
    mpk_box box = mpk_box_of(t, 2);
    rt_u64 n = mpk_count(box, 2), line;
    for (rt_u64 first = 0; first < n; first += MPK_THREADS / group) {
        rt_i64 at[RT_MAX_RANK];
        bool mine = rows_line(group, first, n, &line);
        mpk_place(box, 2, mine ? line : 0, at);
        rt_i64 lo = x.dims[1] * at[1] / parts, hi = mine ? x.dims[1] * (at[1] + 1) / parts : lo;
        rt_u64 best = mpk_largest(t, group, x, g_x, at[0] * x.stride[0], x.stride[1], lo, hi);
        if (mine && mpk_thread() % group == 0) {
            /* counted over the row, not the part */
            rt_i64 column = best ? (rt_i64)mpk_index_of(best) : lo;
            mpk_put(value, g_value, mpk_offset(value, at),
                    best ? mpk_get(x, g_x, at[0] * x.stride[0] + column * x.stride[1]) : MPK_NAN);
            ((rt_i32 *)g_index)[mpk_offset(index, at)] = (rt_i32)column;
        }
    }
}

/* The body of argmax_reduce: from the parts of a row to the column of its largest entry; that of
 * part 0 if all are NaN.  index has columns of the row, so the part's number alone is looked
 * for. */
MPK_FN void argmax_reduce_run(const mpk_task &t, const mpk_view &value, const mpk_view &index,
                              const mpk_view &y)
{
    const char *g_value = mpk_data(t, value), *g_index = mpk_data(t, index);
    char *g_y = mpk_data(t, y);
    int group = mpk_group(value.dims[1]); /* by the number of parts */
    rt_u64 lo = mpk_lo(t, 0), n = mpk_hi(t, 0) - lo, line;
    for (rt_u64 first = 0; first < n; first += MPK_THREADS / group) {
        bool mine = rows_line(group, first, n, &line);
        rt_i64 row = (rt_i64)(lo + line);
        rt_u64 best = mpk_largest(t, group, value, g_value, row * value.stride[0], value.stride[1],
                                  0, mine ? value.dims[1] : 0);
        if (mine && mpk_thread() % group == 0)
            ((rt_i32 *)g_y)[row * y.stride[0]] = (rt_i32)mpk_get_int(
                index, g_index,
                row * index.stride[0] + (best ? (rt_i64)mpk_index_of(best) : 0) * index.stride[1]);
    }
}

#endif
