/* reduce_kernels.h - fast bodies of operators that reduce: reduce, softmax, log_softmax, layer_norm and group_norm.
 *
 * Sums of a row: lane i mod 16 adds in double in rising i, in two sets of lanes that take turns; the sets are added,
 * then the lanes as vd_sum does, then what is left of the row after its last whole vector.  So the order depends on the
 * row's length alone.  Sums over other axes than the last run entry by entry, each element of the result for itself.
 */
#ifndef CPU_REDUCE_KERNELS_H
#define CPU_REDUCE_KERNELS_H

#include "cpu/vec_math.h"
#include "op/walk.h"

static void *reduce_pointer(const op_view *v, int64_t offset)
{
    return (char *)v->data + offset * (v->dtype == IR_F32 ? 4 : 2);
}

/* A row of floats whose elements lie side by side. */
static bool reduce_takes(const op_view *v)
{
    return row_is_float(v->dtype) && v->rank && (v->stride[v->rank - 1] == 1 || v->dims[v->rank - 1] == 1);
}

/* An optional row of weights. */
static bool reduce_takes_weight(const op_call *call, uint32_t input)
{
    return input >= call->n_in || !call->in[input].data || reduce_takes(&call->in[input]);
}

/* ---- sums ---- */

/* Sum of x - mean, or of its squares, over a row. */
V_INLINE double sum_row_as(const void *row, ir_dtype dtype, int64_t n, double mean, bool squares)
{
    vd sums[2] = {vd_set(0), vd_set(0)}, middle = vd_set(mean);
    int64_t whole = n / 16 * 16;
    for (int64_t i = 0; i < whole; i += 16) {
        vd *sum = &sums[i >> 4 & 1], away = vd_wide(row_load(row, dtype, i, 16));
        if (squares)
            away = vd_sub(away, middle);
        *sum = squares ? vd_fma(away, away, *sum) : vd_add(away, *sum);
    }
    double sum = vd_sum(vd_add(sums[0], sums[1]));
    for (int64_t i = whole; i < n; i++) {
        double away = (double)row_element(row, dtype, i) - (squares ? mean : 0);
        sum += squares ? away * away : away;
    }
    return sum;
}

/* Compiled for f32, the common case, and for any. */
static double sum_row(const void *row, ir_dtype dtype, int64_t n)
{
    return dtype == IR_F32 ? sum_row_as(row, IR_F32, n, 0, false) : sum_row_as(row, dtype, n, 0, false);
}
static double sum_squares(const void *row, ir_dtype dtype, int64_t n, double mean)
{
    return dtype == IR_F32 ? sum_row_as(row, IR_F32, n, mean, true) : sum_row_as(row, dtype, n, mean, true);
}

/* ---- layer_norm and group_norm ---- */

enum { LN_X, LN_WEIGHT, LN_BIAS };

static bool layer_norm_accepts(const op_call *call)
{
    return reduce_takes(&call->in[LN_X]) && reduce_takes(&call->out[0]) && reduce_takes_weight(call, LN_WEIGHT) &&
           reduce_takes_weight(call, LN_BIAS);
}

/* (x - mean) * factor in double, rounded; then times weight and plus bias in fp32. */
V_INLINE void normalise_as(const void *x, ir_dtype dtype, int64_t n, double mean, double factor, const op_view *weight,
                           const op_view *bias, void *y)
{
    vd middle = vd_set(mean), scale = vd_set(factor), zero = vd_set(0);
    for (int64_t i = 0; i < n; i += 16) {
        vd away = vd_sub(vd_wide(row_load(x, dtype, i, n - i)), middle);
        vf v = vd_narrow(vd_fma(away, scale, zero));
        if (weight->data)
            v = v_mul(v, row_load(weight->data, weight->dtype, i, n - i));
        if (bias->data)
            v = v_add(v, row_load(bias->data, bias->dtype, i, n - i));
        row_store(y, dtype, i, n - i, v);
    }
}

static void layer_norm_run(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[LN_X], *y = &call->out[0], *weight = &call->in[LN_WEIGHT], *bias = &call->in[LN_BIAS];
    uint32_t last = x->rank - 1;
    int64_t at[IR_MAX_RANK], n = x->dims[last];
    memcpy(at, box->lo, sizeof at);
    do {
        at[last] = 0;
        const void *row = reduce_pointer(x, walk_offset(x, at));
        void *to = reduce_pointer(y, walk_offset(y, at));
        double mean = sum_row(row, x->dtype, n) / (double)n;
        double factor = 1 / sqrt(sum_squares(row, x->dtype, n, mean) / (double)n + call->attributes[0].f);
        if (x->dtype == IR_F32)
            normalise_as(row, IR_F32, n, mean, factor, weight, bias, to);
        else
            normalise_as(row, x->dtype, n, mean, factor, weight, bias, to);
    } while (walk_next(box, last, at));
}

enum { GN_GROUPS, GN_EPS };

/* Do the axes from channels on lie in row-major order? */
static bool channels_are_dense(const op_view *v)
{
    int64_t n = 1;
    for (uint32_t i = v->rank; i-- > 1; n *= v->dims[i])
        if (v->dims[i] != 1 && v->stride[i] != n)
            return false;
    return row_is_float(v->dtype);
}

static bool group_norm_accepts(const op_call *call)
{
    return channels_are_dense(&call->in[LN_X]) && channels_are_dense(&call->out[0]) &&
           reduce_takes_weight(call, LN_WEIGHT) && reduce_takes_weight(call, LN_BIAS);
}

/* x * scale + shift over n elements of a channel, in double, rounded once. */
V_INLINE void scale_row_as(const void *x, ir_dtype dtype, int64_t n, double mean, double scale, double shift, void *y)
{
    vd middle = vd_set(mean), times = vd_set(scale), plus = vd_set(shift);
    for (int64_t i = 0; i < n; i += 16) {
        vd away = vd_sub(vd_wide(row_load(x, dtype, i, n - i)), middle);
        row_store(y, dtype, i, n - i, vd_narrow(vd_fma(away, times, plus)));
    }
}

static void normalise_group(const op_call *call, int64_t batch, int64_t channel, int64_t channels, int64_t places)
{
    const op_view *x = &call->in[LN_X], *y = &call->out[0], *weight = &call->in[LN_WEIGHT], *bias = &call->in[LN_BIAS];
    const void *row = reduce_pointer(x, batch * x->stride[0] + channel * places);
    int64_t n = channels * places;
    double mean = sum_row(row, x->dtype, n) / (double)n;
    double factor = 1 / sqrt(sum_squares(row, x->dtype, n, mean) / (double)n + call->attributes[GN_EPS].f);
    for (int64_t c = channel; c < channel + channels; c++) {
        const void *from = reduce_pointer(x, batch * x->stride[0] + c * places);
        void *to = reduce_pointer(y, batch * y->stride[0] + c * places);
        double scale = weight->data ? factor * (double)row_element(weight->data, weight->dtype, c) : factor;
        double shift = bias->data ? (double)row_element(bias->data, bias->dtype, c) : 0;
        if (x->dtype == IR_F32)
            scale_row_as(from, IR_F32, places, mean, scale, shift, to);
        else
            scale_row_as(from, x->dtype, places, mean, scale, shift, to);
    }
}

static void group_norm_run(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[LN_X];
    int64_t channels = x->dims[1] / call->attributes[GN_GROUPS].i, places = 1;
    for (uint32_t i = 2; i < x->rank; i++)
        places *= x->dims[i];
    for (int64_t n = box->lo[0]; n < box->hi[0]; n++)
        for (int64_t c = box->lo[1]; c < box->hi[1]; c += channels)
            normalise_group(call, n, c, channels, places);
}

/* ---- softmax ---- */

/* Along the last axis. */
static bool softmax_accepts(const op_call *call)
{
    int64_t axis = call->attributes[0].i, last = (int64_t)call->in[0].rank - 1;
    return (axis == -1 || axis == last) && reduce_takes(&call->in[0]) && reduce_takes(&call->out[0]);
}

/* A row as f32, and its largest entry. */
V_INLINE float load_softmax_row(const void *x, ir_dtype dtype, int64_t n, float *line)
{
    vf most = v_set(-INFINITY);
    for (int64_t i = 0; i < n; i += 16) {
        vf v = row_load(x, dtype, i, n - i);
        most = v_max(most, n - i < 16 ? v_keep(v, 0, n - i, v_set(-INFINITY)) : v);
        if (dtype != IR_F32)
            v_store_n(line + i, n - i, v);
    }
    return v_greatest(most);
}

/* The sum of e^(x - largest), which also go to `line`. */
V_INLINE double exponentials(const float *x, int64_t n, float largest, float *line)
{
    vd sum = vd_set(0);
    vf most = v_set(largest);
    for (int64_t i = 0; i < n; i += 16) {
        vf e = v_exp(v_sub(v_load_n(x + i, n - i), most));
        sum = vd_add(sum, vd_wide(n - i < 16 ? v_keep(e, 0, n - i, v_zero()) : e));
        v_store_n(line + i, n - i, e);
    }
    return vd_sum(sum);
}

V_INLINE void softmax_row(const void *x, ir_dtype dtype, int64_t n, float *line, bool logarithm, void *y)
{
    float largest = load_softmax_row(x, dtype, n, line);
    const float *from = dtype == IR_F32 ? (const float *)x : line;
    float *e = dtype == IR_F32 && !logarithm ? (float *)y : logarithm ? line + n : line;
    double sum = exponentials(from, n, largest, e);
    vf most = v_set(largest), less = v_set((float)log(sum)), scale = v_set((float)(1 / sum));
    for (int64_t i = 0; i < n; i += 16) {
        vf v = logarithm ? v_sub(v_sub(v_load_n(from + i, n - i), most), less) : v_mul(v_load_n(e + i, n - i), scale);
        row_store(y, dtype, i, n - i, v);
    }
}

/* Two lines. */
static size_t softmax_scratch(const op_call *call, const ir_box *box)
{
    (void)box;
    return 2 * (size_t)call->in[0].dims[call->in[0].rank - 1] * sizeof(float);
}

V_INLINE void softmax_rows(const op_call *call, const ir_box *box, float *line, bool logarithm)
{
    const op_view *x = &call->in[0], *y = &call->out[0];
    uint32_t last = x->rank - 1;
    int64_t at[IR_MAX_RANK], n = box->hi[last] - box->lo[last];
    memcpy(at, box->lo, sizeof at);
    do {
        at[last] = 0;
        const void *row = reduce_pointer(x, walk_offset(x, at));
        void *to = reduce_pointer(y, walk_offset(y, at));
        if (x->dtype == IR_F32)
            softmax_row(row, IR_F32, n, line, logarithm, to);
        else
            softmax_row(row, x->dtype, n, line, logarithm, to);
    } while (walk_next(box, last, at));
}

static void softmax_run(const op_call *call, const ir_box *box, void *scratch)
{
    softmax_rows(call, box, scratch, false);
}
static void log_softmax_run(const op_call *call, const ir_box *box, void *scratch)
{
    softmax_rows(call, box, scratch, true);
}

/* ---- reduce ---- */

enum { RD_AXES, RD_KEEP, RD_KIND, RD_DTYPE };
enum { RD_STRIP = 64 };
typedef enum reduce_fast { FAST_SUM, FAST_MEAN, FAST_MAX, FAST_MIN, FAST_NONE } reduce_fast;

static reduce_fast reduce_kind_of(const op_call *call)
{
    static const char *const names[] = {"sum", "mean", "max", "min"};
    int kind = 0;
    while (kind < FAST_NONE && !str_is(call->attributes[RD_KIND].s, names[kind]))
        kind++;
    return (reduce_fast)kind;
}

static bool is_reduced(const op_call *call, uint32_t axis)
{
    for (uint32_t i = 0; i < call->attributes[RD_AXES].ints.n; i++)
        if (call->attributes[RD_AXES].ints.at[i] == axis)
            return true;
    return false;
}

/* Axes that are alive as a whole. */
static bool reduce_accepts(const op_call *call)
{
    const op_view *x = &call->in[0];
    return reduce_kind_of(call) < FAST_NONE && reduce_takes(x) && row_is_float(call->out[0].dtype) &&
           (x->live == IR_ALL || !is_reduced(call, 0));
}

/* The first of the last axes that are all reduced and lie in row-major order, or all stay and do. */
static uint32_t first_of_row(const op_call *call)
{
    const op_view *x = &call->in[0];
    uint32_t axis = x->rank - 1;
    int64_t n = x->dims[axis];
    while (axis > 0 && is_reduced(call, axis) && is_reduced(call, axis - 1) && x->stride[axis - 1] == n)
        n *= x->dims[--axis];
    return axis;
}

/* The largest or smallest of a row; NaN wins. */
V_INLINE float extreme_row_as(const void *row, ir_dtype dtype, int64_t n, float most, bool largest)
{
    float lanes[16], v[16];
    for (int l = 0; l < 16; l++)
        lanes[l] = most;
    for (int64_t i = 0; i < n; i += 16) {
        v_store(v, n - i < 16 ? v_keep(row_load(row, dtype, i, n - i), 0, n - i, v_set(most))
                              : row_load(row, dtype, i, n - i));
        for (int l = 0; l < 16; l++)
            lanes[l] = (largest ? v[l] > lanes[l] : v[l] < lanes[l]) || v[l] != v[l] ? v[l] : lanes[l];
    }
    for (int l = 0; l < 16; l++)
        most = (largest ? lanes[l] > most : lanes[l] < most) || lanes[l] != lanes[l] ? lanes[l] : most;
    return most;
}

static double fold_into_one(const void *row, ir_dtype dtype, int64_t n, reduce_fast kind, double value)
{
    if (kind == FAST_MAX)
        return (double)extreme_row_as(row, dtype, n, (float)value, true);
    if (kind == FAST_MIN)
        return (double)extreme_row_as(row, dtype, n, (float)value, false);
    return value + sum_row(row, dtype, n);
}

/* n entries of a row, each onto its own. */
static void fold_apart(const void *row, ir_dtype dtype, int64_t n, reduce_fast kind, double *to)
{
    float v[RD_STRIP];
    for (int64_t i = 0; i < n; i += 16)
        v_store(v + i, row_load(row, dtype, i, n - i));
    if (kind == FAST_MAX)
        for (int64_t i = 0; i < n; i++)
            to[i] = (double)v[i] > to[i] || v[i] != v[i] ? (double)v[i] : to[i];
    else if (kind == FAST_MIN)
        for (int64_t i = 0; i < n; i++)
            to[i] = (double)v[i] < to[i] || v[i] != v[i] ? (double)v[i] : to[i];
    else
        for (int64_t i = 0; i < n; i++)
            to[i] += (double)v[i];
}

/* n entries of the result, whose first is made of `part` of x but for the axes from `row_axis` on; into_one: those are
 * reduced, and n is 1. */
static void reduce_strip(const op_call *call, const ir_box *part, uint32_t row_axis, bool into_one, int64_t n,
                         double *sums)
{
    const op_view *x = &call->in[0];
    reduce_fast kind = reduce_kind_of(call);
    int64_t at[IR_MAX_RANK], length = n;
    for (uint32_t i = row_axis; i < x->rank && into_one; i++)
        length = i == row_axis ? x->dims[i] : length * x->dims[i];
    for (int64_t i = 0; i < n; i++)
        sums[i] = kind == FAST_MAX ? -INFINITY : kind == FAST_MIN ? INFINITY : 0;
    memcpy(at, part->lo, sizeof at);
    if (ir_box_is_empty(part, x->rank))
        return;
    do {
        const void *row = reduce_pointer(x, walk_offset(x, at));
        if (into_one)
            sums[0] = fold_into_one(row, x->dtype, length, kind, sums[0]);
        else
            fold_apart(row, x->dtype, n, kind, sums);
    } while (walk_next(part, row_axis, at));
}

static double count_reduced(const op_call *call)
{
    double n = 1;
    for (uint32_t i = 0; i < call->in[0].rank; i++)
        n *= is_reduced(call, i) ? (double)call->in[0].dims[i] : 1;
    return n;
}

/* What of x entry `at` of the result is made of. */
static void reduce_part(const op_call *call, const int64_t *at, ir_box *part)
{
    uint32_t o = 0;
    *part = (ir_box){0};
    for (uint32_t i = 0; i < call->in[0].rank; i++) {
        bool reduced = is_reduced(call, i);
        part->lo[i] = reduced ? 0 : at[o];
        part->hi[i] = reduced ? call->in[0].dims[i] : at[o] + 1;
        o += !reduced || call->attributes[RD_KEEP].i;
    }
}

static void reduce_run(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *y = &call->out[0];
    uint32_t row_axis = first_of_row(call), last = y->rank ? y->rank - 1 : 0;
    bool into_one = is_reduced(call, call->in[0].rank - 1);
    double sums[RD_STRIP], count = reduce_kind_of(call) == FAST_MEAN ? count_reduced(call) : 1;
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do {
        ir_box part;
        int64_t left = into_one ? 1 : box->hi[last] - at[last], n = left < RD_STRIP ? left : RD_STRIP;
        reduce_part(call, at, &part);
        reduce_strip(call, &part, row_axis, into_one, n, sums);
        for (int64_t i = 0; i < n; i++)
            op_store(y, walk_offset(y, at) + i * (into_one ? 0 : y->stride[last]), (float)(sums[i] / count));
        at[last] += n - 1;
    } while (walk_next(box, y->rank, at));
}

#endif
