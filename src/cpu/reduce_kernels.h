/* reduce_kernels.h - fast bodies of operators that reduce: reduce, softmax, log_softmax,
 * layer_norm and group_norm.
 *
 * Sums of a row: parts of SUM_PART elements in fp32, lane i mod 16 of four vectors in turn; the
 * parts' sums are added in double, lane by lane, then the lanes as vd_sum does.  So the order
 * depends on the row's length alone.
 *
 * Sums over other axes than the last are computed element by element of the result: RD_ROWS
 * entries in fp32, then in double. fp32 adds so few numbers that a sum is nearer to the exact
 * one than that of PyTorch's eager mode.
 *
 * A row is summed in parts of 512, each in fp32,
 *
 *   part 0: lanes 0-15 of four vectors  ->  one vector  ->  doubles  \
 *   part 1:                             ->  one vector  ->  doubles   + lane by lane  -> vd_sum
 *   ..                                                               /
 *
 * so an fp32 accumulator adds about eight numbers, and rounding errors stay near one unit of the
 * last place however long the row is.  Used by the isa_*_general.c files.
 */
#ifndef CPU_REDUCE_KERNELS_H
#define CPU_REDUCE_KERNELS_H

#include "cpu/vec_math.h"
#include "op/walk.h"

/* The address of the element at `offset`, which counts elements. */
static void *reduce_pointer(const op_view *v, int64_t offset)
{
    return (char *)v->data + offset * (v->dtype == IR_F32 ? 4 : 2);
}

/* Are the rows of a tensor floats, contiguous along the last axis? */
static bool reduce_takes(const op_view *v)
{
    return row_is_float(v->dtype) && v->rank &&
           (v->stride[v->rank - 1] == 1 || v->dims[v->rank - 1] == 1);
}

/* The same for an optional row of weights. */
static bool reduce_takes_weight(const op_call *call, uint32_t input)
{
    return input >= call->n_in || !call->in[input].data || reduce_takes(&call->in[input]);
}

/* ---- sums ---- */

/* elements that are summed in fp32, eight or so by each lane, before double takes over */
enum { SUM_PART = 512 };

/* Add x, or the square of x - mean, to a sum. */
V_INLINE vf sum_vector(vf sum, vf x, vf mean, bool squares)
{
    vf away = squares ? v_sub(x, mean) : x;
    return squares ? v_fma(away, away, sum) : v_add(sum, away);
}

/* The sum over a part of a row: four vectors in turn, the rest to the first. */
V_INLINE vf sum_part(const void *row, ir_dtype dtype, int64_t n, vf mean, bool squares)
{
    vf sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++)
            sum[v] = sum_vector(sum[v], row_load(row, dtype, i + 16 * v, 16), mean, squares);
    for (; i + 16 <= n; i += 16)
        sum[0] = sum_vector(sum[0], row_load(row, dtype, i, 16), mean, squares);
    if (i < n)
        sum[0] = v_keep(sum_vector(sum[0], row_load(row, dtype, i, n - i), mean, squares), 0, n - i,
                        sum[0]);
    return v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3]));
}

/* The sum of a row, whose dtype is a constant after inlining. */
V_INLINE double sum_row_as(const void *row, ir_dtype dtype, int64_t n)
{
    vd sum = vd_set(0);
    for (int64_t i = 0; i < n; i += SUM_PART)
        sum = vd_add(sum, vd_wide(sum_part(row_at(row, dtype, i), dtype,
                                           n - i < SUM_PART ? n - i : SUM_PART, v_zero(), false)));
    return vd_sum(sum);
}

/* Compiled for f32, the common case, and for any. */
static double sum_row(const void *row, ir_dtype dtype, int64_t n)
{
    return dtype == IR_F32 ? sum_row_as(row, IR_F32, n) : sum_row_as(row, dtype, n);
}
/* The mean of a row, and the mean square of the distance to it.  Computed part by part, each
 * about its own mean while it is in the first cache, and joined in double (Chan's formula): the
 * mean of squares minus the square of the mean would cancel where the mean is large. */
typedef struct row_moments {
    double mean, square;
} row_moments;

V_INLINE row_moments find_moments_as(const void *row, ir_dtype dtype, int64_t n)
{
    row_moments m = {0};
    for (int64_t i = 0; i < n; i += SUM_PART) {
        const void *part = row_at(row, dtype, i);
        int64_t length = n - i < SUM_PART ? n - i : SUM_PART;
        double mean =
            vd_sum(vd_wide(sum_part(part, dtype, length, v_zero(), false))) / (double)length;
        double square = vd_sum(vd_wide(sum_part(part, dtype, length, v_set((float)mean), true)));
        double away = mean - m.mean, share = (double)length / (double)(i + length);
        m.mean += away * share;
        m.square += square + away * away * share * (double)i;
    }
    m.square /= (double)n;
    return m;
}

static row_moments find_moments(const void *row, ir_dtype dtype, int64_t n)
{
    return dtype == IR_F32 ? find_moments_as(row, IR_F32, n) : find_moments_as(row, dtype, n);
}

/* ---- layer_norm and group_norm ---- */

/* Inputs, by index; of group_norm too. */
enum { LN_X, LN_WEIGHT, LN_BIAS };

/* Accepts rows, weights and biases that are contiguous. */
static bool layer_norm_accepts(const op_call *call)
{
    return reduce_takes(&call->in[LN_X]) && reduce_takes(&call->out[0]) &&
           reduce_takes_weight(call, LN_WEIGHT) && reduce_takes_weight(call, LN_BIAS);
}

/* A row to normalise, and where its result goes. */
typedef struct norm_row {
    const void *x, *weight, *bias; /* weight, bias: NULL if there is none */
    ir_dtype dtype, weight_dtype, bias_dtype;
    void *y;
    int64_t n;
} norm_row;

/* The mean as the sum of two floats, so that subtracting it is as exact as in double. */
typedef struct norm_mean {
    vf high, low;
} norm_mean;

V_INLINE norm_mean norm_split(double mean)
{
    float high = (float)mean;
    return (norm_mean){v_set(high), v_set(isfinite(high) ? (float)(mean - (double)high) : 0)};
}
/* x minus the mean. */
V_INLINE vf norm_away(vf x, norm_mean mean)
{
    return v_sub(v_sub(x, mean.high), mean.low);
}

/* (x - mean) * factor, then times weight and plus bias, if there are any. */
V_INLINE void normalise_as(const norm_row *r, ir_dtype dtype, ir_dtype weight, ir_dtype bias,
                           double mean, double factor)
{
    norm_mean middle = norm_split(mean);
    vf scale = v_set((float)factor);
    const void *w = r->weight, *b = r->bias;
    for (int64_t i = 0, n = r->n; i < n; i += 16) {
        vf v = v_mul(norm_away(row_load(r->x, dtype, i, n - i), middle), scale);
        if (w)
            v = v_mul(v, row_load(w, weight, i, n - i));
        if (b)
            v = v_add(v, row_load(b, bias, i, n - i));
        row_store(r->y, dtype, i, n - i, v);
    }
}

/* Compiled for rows of f32, the common case, and for any. */
static void normalise_row(const norm_row *r, double eps)
{
    row_moments m = find_moments(r->x, r->dtype, r->n);
    double factor = 1 / sqrt(m.square + eps);
    if (r->dtype == IR_F32 && r->weight_dtype == IR_F32 && r->bias_dtype == IR_F32)
        normalise_as(r, IR_F32, IR_F32, IR_F32, m.mean, factor);
    else
        normalise_as(r, r->dtype, r->weight_dtype, r->bias_dtype, m.mean, factor);
}

/* Row after row; at[] counts over all axes but the last. */
static void layer_norm_run(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[LN_X], *y = &call->out[0], *weight = &call->in[LN_WEIGHT],
                  *bias = &call->in[LN_BIAS];
    uint32_t last = x->rank - 1;
    norm_row r = {
        .weight = weight->data, .bias = bias->data, .dtype = x->dtype, .n = x->dims[last]};
    r.weight_dtype = r.weight ? weight->dtype : IR_F32;
    r.bias_dtype = r.bias ? bias->dtype : IR_F32;
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do {
        at[last] = 0;
        r.x = reduce_pointer(x, walk_offset(x, at));
        r.y = reduce_pointer(y, walk_offset(y, at));
        normalise_row(&r, call->attributes[0].f);
    } while (walk_next(box, last, at));
}

/* Attributes of group_norm, by index. */
enum { GN_GROUPS, GN_EPS, GN_LAST };

/* Are the axes from channels on contiguous in row-major order, so that a group is one row? */
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
    return !call->attributes[GN_LAST].i && channels_are_dense(&call->in[LN_X]) &&
           channels_are_dense(&call->out[0]) && reduce_takes_weight(call, LN_WEIGHT) &&
           reduce_takes_weight(call, LN_BIAS);
}

/* (x - mean) * scale + shift over n elements of a channel. */
V_INLINE void scale_row_as(const void *x, ir_dtype dtype, int64_t n, double mean, double scale,
                           double shift, void *y)
{
    norm_mean middle = norm_split(mean);
    vf times = v_set((float)scale), plus = v_set((float)shift);
    for (int64_t i = 0; i < n; i += 16)
        row_store(y, dtype, i, n - i,
                  v_fma(norm_away(row_load(x, dtype, i, n - i), middle), times, plus));
}

/* Channels [channel, channel + channels) of one batch entry, which are contiguous and so are one
 * row of channels * places elements; then each channel with its own weight and bias. */
static void normalise_group(const op_call *call, int64_t batch, int64_t channel, int64_t channels,
                            int64_t places)
{
    const op_view *x = &call->in[LN_X], *y = &call->out[0], *weight = &call->in[LN_WEIGHT],
                  *bias = &call->in[LN_BIAS];
    const void *row = reduce_pointer(x, batch * x->stride[0] + channel * places);
    int64_t n = channels * places;
    row_moments m = find_moments(row, x->dtype, n);
    double factor = 1 / sqrt(m.square + call->attributes[GN_EPS].f);
    for (int64_t c = channel; c < channel + channels; c++) {
        const void *from = reduce_pointer(x, batch * x->stride[0] + c * places);
        void *to = reduce_pointer(y, batch * y->stride[0] + c * places);
        double scale =
            weight->data ? factor * (double)row_element(weight->data, weight->dtype, c) : factor;
        double shift = bias->data ? (double)row_element(bias->data, bias->dtype, c) : 0;
        if (x->dtype == IR_F32)
            scale_row_as(from, IR_F32, places, m.mean, scale, shift, to);
        else
            scale_row_as(from, x->dtype, places, m.mean, scale, shift, to);
    }
}

/* Group after group: the operator's cut is by groups, so a box begins and ends with one. */
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

/* Accepts the last axis only, contiguous. */
static bool softmax_accepts(const op_call *call)
{
    int64_t axis = call->attributes[0].i, last = (int64_t)call->in[0].rank - 1;
    return (axis == -1 || axis == last) && reduce_takes(&call->in[0]) &&
           reduce_takes(&call->out[0]);
}

/* Load a row as f32 into `line`, unless it is f32 already; returns its largest entry. */
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

/* The sum of e^(x - largest); the exponentials go to `line`. */
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

/* Three passes: the largest, the exponentials and their sum, then the result.  With the
 * logarithm x is needed again in the third pass, so the exponentials go to a second line and are
 * not used. */
V_INLINE void softmax_row(const void *x, ir_dtype dtype, int64_t n, float *line, bool logarithm,
                          void *y)
{
    float largest = load_softmax_row(x, dtype, n, line);
    const float *from = dtype == IR_F32 ? (const float *)x : line;
    float *e = dtype == IR_F32 && !logarithm ? (float *)y : logarithm ? line + n : line;
    double sum = exponentials(from, n, largest, e);
    vf most = v_set(largest), less = v_set((float)log(sum)), scale = v_set((float)(1 / sum));
    for (int64_t i = 0; i < n; i += 16) {
        vf v = logarithm ? v_sub(v_sub(v_load_n(from + i, n - i), most), less)
                         : v_mul(v_load_n(e + i, n - i), scale);
        row_store(y, dtype, i, n - i, v);
    }
}

/* Scratch: two rows of floats. */
static size_t softmax_scratch(const op_call *call, const ir_box *box)
{
    (void)box;
    return 2 * (size_t)call->in[0].dims[call->in[0].rank - 1] * sizeof(float);
}

/* All rows of the box; line: scratch. */
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

/* Attributes of reduce, by index. */
enum { RD_AXES, RD_KEEP, RD_KIND, RD_DTYPE, RD_EXPR, RD_INPUTS, RD_THEN };
/* entries of the result that are computed together; rows that are summed in fp32 */
enum { RD_STRIP = 512, RD_ROWS = 8 };
typedef enum reduce_fast { FAST_SUM, FAST_MEAN, FAST_MAX, FAST_MIN, FAST_NONE } reduce_fast;

/* The kind that the attribute names; FAST_NONE: one that is left to the reference code. */
static reduce_fast reduce_kind_of(const op_call *call)
{
    static const char *const names[] = {"sum", "mean", "max", "min"};
    int kind = 0;
    while (kind < FAST_NONE && !str_is(call->attributes[RD_KIND].s, names[kind]))
        kind++;
    return (reduce_fast)kind;
}

/* Is the axis of x one of those that are reduced? */
static bool is_reduced(const op_call *call, uint32_t axis)
{
    for (uint32_t i = 0; i < call->attributes[RD_AXES].ints.n; i++)
        if (call->attributes[RD_AXES].ints.at[i] == axis)
            return true;
    return false;
}

/* Accepts sums, means and extremes of contiguous rows; not reductions of a partly alive axis 0, nor
 * expressions. */
static bool reduce_accepts(const op_call *call)
{
    const op_view *x = &call->in[0];
    const bool plain = !call->attributes[RD_EXPR].s.n && !call->attributes[RD_THEN].s.n;
    return plain && reduce_kind_of(call) < FAST_NONE && reduce_takes(x) &&
           row_is_float(call->out[0].dtype) && (x->live == IR_ALL || !is_reduced(call, 0));
}

/* The first of the last axes of x that form one row: all of them reduced and contiguous.  x.rank
 * - 1 if the last axis stays. */
static uint32_t first_of_row(const op_call *call)
{
    const op_view *x = &call->in[0];
    uint32_t axis = x->rank - 1;
    int64_t n = x->dims[axis];
    while (axis > 0 && is_reduced(call, axis) && is_reduced(call, axis - 1) &&
           x->stride[axis - 1] == n)
        n *= x->dims[--axis];
    return axis;
}

/* The largest or smallest of a row and `most`; NaN wins, so it is tested for apart: v_max does
 * not keep it. */
V_INLINE float extreme_row_as(const void *row, ir_dtype dtype, int64_t n, float most, bool largest)
{
    vf best = v_set(most);
    uint32_t numbers = v_equal(best, best);
    for (int64_t i = 0; i < n; i += 16) {
        vf x = row_load(row, dtype, i, n - i);
        x = n - i < 16 ? v_keep(x, 0, n - i, v_set(most)) : x;
        numbers &= v_equal(x, x);
        best = largest ? v_max(x, best) : v_min(x, best);
    }
    if (numbers != 0xffff)
        return NAN;
    return largest ? v_greatest(best) : -v_greatest(v_sub(v_zero(), best));
}

/* Fold a row into one value: the largest, the smallest, or the sum. */
static double fold_into_one(const void *row, ir_dtype dtype, int64_t n, reduce_fast kind,
                            double value)
{
    if (kind == FAST_MAX)
        return (double)extreme_row_as(row, dtype, n, (float)value, true);
    if (kind == FAST_MIN)
        return (double)extreme_row_as(row, dtype, n, (float)value, false);
    return value + sum_row(row, dtype, n);
}

/* Fold n entries of a row, each into its own value of `to`. */
static void fold_apart(const void *row, ir_dtype dtype, int64_t n, reduce_fast kind, float *to)
{
    float wide[RD_STRIP];
    const float *v = dtype == IR_F32 ? row : wide;
    for (int64_t i = 0; i < n && dtype != IR_F32; i += 16)
        v_store(wide + i, row_load(row, dtype, i, n - i));
    if (kind == FAST_MAX)
        for (int64_t i = 0; i < n; i++)
            to[i] = v[i] > to[i] || v[i] != v[i] ? v[i] : to[i];
    else if (kind == FAST_MIN)
        for (int64_t i = 0; i < n; i++)
            to[i] = v[i] < to[i] || v[i] != v[i] ? v[i] : to[i];
    else
        for (int64_t i = 0; i < n; i++)
            to[i] += v[i];
}

/* What is the same for all entries of the result. */
typedef struct reduce_task {
    const op_call *call;
    reduce_fast kind;
    uint32_t reduced;  /* axes of x, as bits */
    uint32_t row_axis; /* axes of x from here on are a row */
    bool into_one;     /* rows are reduced */
    int64_t length;    /* of such a row, in elements */
    /* entries of x for each entry of the result if that is their mean; else 1 */
    double count;
} reduce_task;

/* All about the call that does not depend on the box. */
static reduce_task reduce_describe(const op_call *call)
{
    const op_view *x = &call->in[0];
    reduce_task t = {.call = call,
                     .kind = reduce_kind_of(call),
                     .row_axis = first_of_row(call),
                     .length = 1,
                     .count = 1};
    t.into_one = is_reduced(call, x->rank - 1);
    for (uint32_t i = 0; i < x->rank; i++) {
        t.length *= i >= t.row_axis ? x->dims[i] : 1;
        if (!is_reduced(call, i))
            continue;
        t.reduced |= 1u << i;
        t.count *= t.kind == FAST_MEAN ? (double)x->dims[i] : 1;
    }
    return t;
}

/* The result for no entries, and where folding begins. */
static float reduce_nothing(reduce_fast kind)
{
    return kind == FAST_MAX ? -INFINITY : kind == FAST_MIN ? INFINITY : 0;
}

/* n entries of the result, each made of whole rows: the first from `part` of x, each next one
 * from `step` elements further on. */
static void reduce_rows(const reduce_task *t, const ir_box *part, int64_t n, int64_t step,
                        double *sums)
{
    const op_view *x = &t->call->in[0];
    int64_t at[IR_MAX_RANK];
    memcpy(at, part->lo, sizeof at);
    for (int64_t i = 0; i < n; i++) {
        sums[i] = (double)reduce_nothing(t->kind);
        do
            sums[i] = fold_into_one(reduce_pointer(x, walk_offset(x, at) + i * step), x->dtype,
                                    t->length, t->kind, sums[i]);
        while (walk_next(part, t->row_axis, at));
    }
}

/* n neighbouring entries of the result, each made of one element of every row; the first is made
 * of `part` of x. */
static void reduce_strip(const reduce_task *t, const ir_box *part, int64_t n, double *sums)
{
    const op_view *x = &t->call->in[0];
    bool adds = t->kind == FAST_SUM || t->kind == FAST_MEAN, more = true;
    int64_t at[IR_MAX_RANK];
    float fold[RD_STRIP];
    memcpy(at, part->lo, sizeof at);
    for (int64_t i = 0; i < n; i++)
        sums[i] = 0;
    while (more) {
        for (int64_t i = 0; i < n; i++)
            fold[i] = reduce_nothing(t->kind);
        for (int rows = 0; more && (rows < RD_ROWS || !adds); rows++) {
            fold_apart(reduce_pointer(x, walk_offset(x, at)), x->dtype, n, t->kind, fold);
            more = walk_next(part, t->row_axis, at);
        }
        for (int64_t i = 0; i < n; i++)
            sums[i] += (double)fold[i];
    }
}

/* The box of x that entry at[] of the result is made of. */
static void reduce_part(const reduce_task *t, const int64_t *at, ir_box *part)
{
    const op_view *x = &t->call->in[0];
    uint32_t o = 0;
    for (uint32_t i = 0; i < x->rank; i++) {
        bool reduced = t->reduced >> i & 1;
        part->lo[i] = reduced ? 0 : at[o];
        part->hi[i] = reduced ? x->dims[i] : at[o] + 1;
        o += !reduced || t->call->attributes[RD_KEEP].i;
    }
}

/* The axis of the result along which entries are computed together: if rows are reduced, the
 * last one that is longer than 1; otherwise the last one. */
static uint32_t reduce_run_axis(const reduce_task *t, const ir_box *box)
{
    uint32_t rank = t->call->out[0].rank, axis = rank ? rank - 1 : 0;
    while (t->into_one && axis > 0 && box->hi[axis] - box->lo[axis] == 1)
        axis--;
    return axis;
}

/* The axis of x that an axis of the result stands for. */
static uint32_t reduce_axis_of_x(const reduce_task *t, uint32_t axis)
{
    uint32_t i = 0;
    for (uint32_t kept = 0; !t->call->attributes[RD_KEEP].i && i < t->call->in[0].rank; i++)
        if (!(t->reduced >> i & 1) && kept++ == axis)
            return i;
    return axis;
}

/* n entries of the result from at[] on, along its axis `run`. */
static void reduce_entries(const reduce_task *t, const int64_t *at, uint32_t run, int64_t n)
{
    const op_view *x = &t->call->in[0], *y = &t->call->out[0];
    double sums[RD_STRIP];
    ir_box part = {0};
    int64_t to = walk_offset(y, at), step = y->rank ? y->stride[run] : 0;
    reduce_part(t, at, &part);
    if (ir_box_is_empty(&part, x->rank))
        for (int64_t i = 0; i < n; i++)
            sums[i] = (double)reduce_nothing(t->kind);
    else if (t->into_one)
        reduce_rows(t, &part, n, y->rank ? x->stride[reduce_axis_of_x(t, run)] : 0, sums);
    else
        reduce_strip(t, &part, n, sums);
    for (int64_t i = 0; i < n; i++)
        op_store(y, to + i * step, (float)(sums[i] / t->count));
}

/* Entries of the result in strips of RD_STRIP along one axis, whose sums are kept as doubles. */
static void reduce_run(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *y = &call->out[0];
    reduce_task t = reduce_describe(call);
    uint32_t run = reduce_run_axis(&t, box);
    ir_box runs = *box;
    int64_t at[IR_MAX_RANK], end = y->rank ? box->hi[run] : 1;
    runs.hi[run] = runs.lo[run] + 1;
    memcpy(at, box->lo, sizeof at);
    do {
        for (; at[run] < end; at[run] += RD_STRIP)
            reduce_entries(&t, at, run, end - at[run] < RD_STRIP ? end - at[run] : RD_STRIP);
        at[run] = box->lo[run];
    } while (walk_next(&runs, y->rank, at));
}

#endif
