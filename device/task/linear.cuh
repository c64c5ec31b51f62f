/* linear.cuh - products of activations with rows of weights, for any shape: linear, sum_linear and
 * logits.
 *
 * Input: x, up to three weights, a norm's vectors, biases, residual, of any dtype and strides;
 * output: the task's box of y, and of logits the peaks.  This is the body of rank 0, what the
 * streamed products (linear_stream, linear_team, linear_tile) are compared with.
 *
 * A team of threads takes four rows of a weight and up to TOKENS rows of x.  x comes through
 * shared memory, a tile of columns at a time, gathered and normalised on the way; lane l of the
 * team adds columns l, l + team, ... in rising order, then the lanes are added in rising order:
 * the bits of a token depend on its row alone.
 *
 *   linear_factors   factors of the norm for some rows, into scratch
 *   linear_group     for each tile of columns: linear_stage, a barrier, products; then the lanes
 *   linear_write     bias, gate or activation, residual, into y
 *
 * Cost: 2 D flops a token and row; weights are read once for TOKENS tokens.
 */
#ifndef TASK_LINEAR_CUH
#define TASK_LINEAR_CUH

#include "shape/linear_stream_shape.h"
#include "task/activate.cuh"
#include "tile/view.cuh"

/* Columns of x in a tile, rows of a weight that a team does at a time, tokens at most: sums of 4
 * x 8 are 32 registers.  Terms that are added to x: what sum_linear's other operands leave of
 * RT_PACKED. */
enum { LINEAR_TILE = 256, LINEAR_ROWS = 4, LINEAR_TOKENS = 8, LINEAR_MOST_TERMS = 5 };
/* Scratch after that of the reductions: factors of the norm, results of a group twice, tile or
 * partial sums. Eight is the largest number of teams (256 threads / 32). The buffer is the tile of
 * x while a group is multiplied, and the lanes' partial sums when it is added up: never both. */
enum {
    /* float[2][LINEAR_TOKENS] factors and means; then, twice, float[rows of all
     * teams][LINEAR_TOKENS] */
    LINEAR_FACTORS = MPK_REDUCE_BYTES,
    LINEAR_RESULTS = LINEAR_FACTORS + 64,
    LINEAR_SECOND = LINEAR_RESULTS + 8 * LINEAR_ROWS * LINEAR_TOKENS * 4,
    LINEAR_BUFFER = LINEAR_SECOND + 8 * LINEAR_ROWS * LINEAR_TOKENS * 4
};

/* Where rows of x come from: x itself, the weight and the bias of a norm before the product (or
 * absent), and the ids of the rows that are taken (or absent: all, in order).  A constant of the
 * instance (src/gen/body_linear.c). */
struct linear_source {
    mpk_view x, norm, norm_bias, rows; /* [T, D], [D], [D], [R] */
    double eps;
    bool centred; /* the norm is a layer_norm */
    /* x is a sum: what is added to x, of x's dtype and shape */
    mpk_view terms[LINEAR_MOST_TERMS];
    int n_terms;
};

/* An element of x, whose data is g_x; a sum is rounded as it would be stored, since the operator
 * that adds the terms by itself stores it.  Terms are added in their order, in fp32. */
MPK_FN float linear_x(const mpk_task &t, const linear_source &s, const char *g_x, rt_i64 row,
                      rt_i64 k)
{
    float x = mpk_get(s.x, g_x, row * s.x.stride[0] + k * s.x.stride[1]);
    if (!s.n_terms)
        return x;
    for (int i = 0; i < s.n_terms; i++)
        x += mpk_get(s.terms[i], mpk_data(t, s.terms[i]),
                     row * s.terms[i].stride[0] + k * s.terms[i].stride[1]);
    return mpk_round(s.x.dtype, x);
}

/* The row of x of which row r of the result is made; -1 where the index names no live row: such
 * a row of the result is made of zeros, and nothing outside of x is read. */
MPK_FN rt_i64 linear_row(const mpk_task &t, const linear_source &s, rt_i64 r)
{
    if (!mpk_is_there(s.rows))
        return r;
    rt_i64 token = mpk_get_int(s.rows, mpk_data(t, s.rows), r * s.rows.stride[0]); /* data */
    return token >= 0 && token < mpk_live(t, s.x) ? token : -1;
}

/* All threads: what a team's rows are centred about, the sum of their columns. */
MPK_FN double linear_mean(const mpk_task &t, const linear_source &s, rt_i64 row)
{
    const char *g_x = mpk_data(t, s.x);
    double sum = 0; /* this lane's columns */
    if (!s.centred)
        return 0;
    for (rt_i64 k = mpk_thread() % MPK_TEAM; row >= 0 && k < s.x.dims[1]; k += MPK_TEAM)
        sum += (double)linear_x(t, s, g_x, row, k);
    return mpk_sum(t, MPK_TEAM, sum) / (double)s.x.dims[1];
}

/* All threads: 1 / root mean square of n rows from r0 on, centred if the norm says so, and their
 * means; one team a row, into scratch.  Threads without a row call mpk_sum too, since it meets at
 * barriers.  fp64, so that the generic body's norm has no error of its own. */
MPK_FN void linear_factors(const mpk_task &t, const linear_source &s, rt_i64 r0, int n)
{
    float *s_factor = (float *)(t.s_scratch + LINEAR_FACTORS);
    const char *g_x = mpk_data(t, s.x);
    int thread = mpk_thread(), team = thread / MPK_TEAM, lane = thread % MPK_TEAM;
    rt_i64 width = s.x.dims[1];
    for (int first = 0; first < n; first += MPK_TEAMS) {
        bool mine = team < MPK_TEAMS && first + team < n; /* else only the barriers */
        rt_i64 row = mine ? linear_row(t, s, r0 + first + team) : -1;
        const double mean = linear_mean(t, s, row);
        double sum = 0; /* this lane's columns */
        for (rt_i64 k = lane; row >= 0 && k < width; k += MPK_TEAM) {
            double value = (double)linear_x(t, s, g_x, row, k) - mean;
            sum += value * value;
        }
        sum = mpk_sum(t, MPK_TEAM, sum);
        if (mine && lane == 0) {
            s_factor[first + team] = (float)(1.0 / sqrt(sum / (double)width + s.eps));
            s_factor[LINEAR_TOKENS + first + team] = (float)mean;
        }
    }
    mpk_sync();
}

/* All threads: columns k0 ... of n rows into s_x[row][LINEAR_TILE], normalised; zeros after the
 * last column, so that the product needs no bound on x.  Neighbouring threads have neighbouring
 * columns.  The caller meets before, since the tile before is overwritten, and after. */
MPK_FN void linear_stage(const mpk_task &t, const linear_source &s, rt_i64 r0, int n, rt_i64 k0,
                         rt_i64 width)
{
    float *s_x = (float *)(t.s_scratch + LINEAR_BUFFER);
    const float *s_factor = (const float *)(t.s_scratch + LINEAR_FACTORS);
    const char *g_x = mpk_data(t, s.x), *g_norm = mpk_data(t, s.norm),
               *g_norm_bias = mpk_data(t, s.norm_bias);
    for (int i = mpk_thread(); i < n * LINEAR_TILE; i += MPK_THREADS) {
        int j = i / LINEAR_TILE;
        rt_i64 k = k0 + i % LINEAR_TILE, row = linear_row(t, s, r0 + j);
        float value = 0; /* after the last column, or no row */
        if (k < width && row >= 0) {
            value = linear_x(t, s, g_x, row, k);
            if (s.centred)
                value -= s_factor[LINEAR_TOKENS + j];
            if (mpk_is_there(s.norm))
                value = value * s_factor[j] * mpk_get(s.norm, g_norm, k * s.norm.stride[0]);
            if (mpk_is_there(s.norm_bias))
                value += mpk_get(s.norm_bias, g_norm_bias, k * s.norm_bias.stride[0]);
        }
        s_x[i] = value;
    }
}

/* s_result[i][token] = w[first + i] . x[r0 + token] for the LINEAR_ROWS * MPK_TEAMS rows from
 * `first` on that are below `end`, and n <= TOKENS tokens.  Row first + c * MPK_TEAMS + team
 * belongs to team `team`: neighbouring teams have neighbouring rows, and result i is row first + i.
 * All threads call it; mpk_add_lanes ends it with a barrier, so s_result may be read. */
template <int TOKENS>
MPK_FN void linear_group(const mpk_task &t, const linear_source &s, const mpk_view &w, rt_i64 first,
                         rt_i64 end, rt_i64 r0, int n, float *s_result)
{
    const float *s_x = (const float *)(t.s_scratch + LINEAR_BUFFER);
    const char *g_w = mpk_data(t, w);
    int thread = mpk_thread(), team = thread / MPK_TEAM, lane = thread % MPK_TEAM;
    float r_sum[LINEAR_ROWS][TOKENS] = {}; /* of this lane's columns */
    for (rt_i64 k0 = 0; k0 < w.dims[1]; k0 += LINEAR_TILE) {
        /* the tile before has been multiplied by all */
        mpk_sync();
        linear_stage(t, s, r0, n, k0, w.dims[1]);
        mpk_sync();
        int columns = (int)(w.dims[1] - k0 < LINEAR_TILE ? w.dims[1] - k0 : LINEAR_TILE);
        for (int k = lane; team < MPK_TEAMS && k < columns; k += MPK_TEAM) {
            float r_w[LINEAR_ROWS]; /* read once for all tokens */
#pragma unroll
            for (int c = 0; c < LINEAR_ROWS; c++) {
                rt_i64 row = first + c * MPK_TEAMS + team;
                r_w[c] =
                    row < end ? mpk_get(w, g_w, row * w.stride[0] + (k0 + k) * w.stride[1]) : 0;
            }
#pragma unroll
            for (int j = 0; j < TOKENS; j++) {
                float x = j < n ? s_x[j * LINEAR_TILE + k] : 0;
#pragma unroll
                for (int c = 0; c < LINEAR_ROWS; c++)
                    r_sum[c][j] += r_w[c] * x;
            }
        }
    }
    mpk_add_lanes<TOKENS>(r_sum, (float *)(t.s_scratch + LINEAR_BUFFER), s_result);
}

/* What becomes of a product's sums, and where they go. */
struct linear_end {
    mpk_view b0, b1, residual, y; /* b1: of the second weight of a gated product */
    int activation;               /* ACTIVATE_NONE: no gate */
    int after;                    /* ACTIVATE_* of what is not gated */
    float factor;                 /* of the sums */
    float cap;                    /* of logits: cap tanh(value / cap); 0: none */
};

/* Write a group: factor, bias, gate or activation, cap, residual, in this order.  column: of the
 * result's, that weight row `first` makes. y's columns are the rows of all weights one after the
 * other, so a weight row's number and its column differ by where its weight begins. */
template <int TOKENS>
MPK_FN void linear_write(const mpk_task &t, const linear_end &e, rt_i64 first, rt_i64 end,
                         rt_i64 column, rt_i64 r0, int n)
{
    const float *s_result = (const float *)(t.s_scratch + LINEAR_RESULTS),
                *s_second = (const float *)(t.s_scratch + LINEAR_SECOND);
    const char *g_b0 = mpk_data(t, e.b0), *g_b1 = mpk_data(t, e.b1),
               *g_residual = mpk_data(t, e.residual);
    char *g_y = mpk_data(t, e.y);
    int rows = (int)(end - first < LINEAR_ROWS * MPK_TEAMS ? end - first : LINEAR_ROWS * MPK_TEAMS);
    for (int i = mpk_thread(); i < rows * n; i += MPK_THREADS) {
        int j = i / rows, c = i % rows;
        rt_i64 at[2] = {r0 + j, column + c}; /* in y */
        float value = s_result[c * TOKENS + j] * e.factor;
        if (mpk_is_there(e.b0))
            value += mpk_get(e.b0, g_b0, (first + c) * e.b0.stride[0]);
        if (e.activation != ACTIVATE_NONE) {
            float up = s_second[c * TOKENS + j];
            if (mpk_is_there(e.b1))
                up += mpk_get(e.b1, g_b1, (first + c) * e.b1.stride[0]);
            value = activate(e.activation, value) * up;
        }
        if (e.after != ACTIVATE_NONE)
            value = activate(e.after, value);
        if (e.cap != 0)
            value = e.cap * tanhf(value / e.cap);
        if (mpk_is_there(e.residual))
            value += mpk_get(e.residual, g_residual,
                             at[0] * e.residual.stride[0] + at[1] * e.residual.stride[1]);
        mpk_put(e.y, g_y, at[0] * e.y.stride[0] + at[1] * e.y.stride[1], value);
    }
}

/* The columns of the box that weight w makes: its rows are the columns from `column` on. w1: with
 * an activation the second factor (up), row by row beside w (gate): y = activation(x w) * (x
 * w1). */
template <int TOKENS>
MPK_FN void linear_weight(const mpk_task &t, const linear_source &s, const mpk_view &w,
                          const mpk_view &w1, const linear_end &e, rt_i64 column)
{
    rt_i64 lo = (rt_i64)mpk_lo(t, 1) - column, hi = (rt_i64)mpk_hi(t, 1) - column; /* rows of w */
    lo = lo > 0 ? lo : 0;
    hi = hi < w.dims[0] ? hi : w.dims[0];
    if (lo >= hi)
        return;
    for (rt_i64 r0 = mpk_lo(t, 0); r0 < (rt_i64)mpk_hi(t, 0); r0 += TOKENS) {
        int n = (int)((rt_i64)mpk_hi(t, 0) - r0 < TOKENS ? (rt_i64)mpk_hi(t, 0) - r0 : TOKENS);
        if (mpk_is_there(s.norm))
            linear_factors(t, s, r0, n);
        for (rt_i64 first = lo; first < hi; first += LINEAR_ROWS * MPK_TEAMS) {
            linear_group<TOKENS>(t, s, w, first, hi, r0, n,
                                 (float *)(t.s_scratch + LINEAR_RESULTS));
            if (e.activation != ACTIVATE_NONE)
                linear_group<TOKENS>(t, s, w1, first, hi, r0, n,
                                     (float *)(t.s_scratch + LINEAR_SECOND));
            linear_write<TOKENS>(t, e, first, hi, column + first, r0, n);
        }
    }
}

/* The part of the sum of x and its terms that belongs to the task's box (op/sum_linear.c).
 * columns: of y. */
MPK_FN void linear_put_sum(const mpk_task &t, const linear_source &s, const mpk_view &sum,
                           rt_i64 columns)
{
    const rt_i64 width = sum.dims[1], lo = SUM_COLUMN((rt_i64)mpk_lo(t, 1), columns, width),
                 hi = SUM_COLUMN((rt_i64)mpk_hi(t, 1), columns, width);
    const char *g_x = mpk_data(t, s.x);
    const rt_i64 n = hi - lo, rows = (rt_i64)mpk_hi(t, 0) - mpk_lo(t, 0);
    for (rt_i64 i = mpk_thread(); i < n * rows; i += MPK_THREADS) {
        const rt_i64 row = mpk_lo(t, 0) + i / n, k = lo + i % n;
        mpk_put(sum, mpk_data(t, sum), row * sum.stride[0] + k * sum.stride[1],
                linear_x(t, s, g_x, row, k));
    }
}

/* The peaks of the columns of the box: for each 64 columns of a row the largest logit and its
 * column, as two floats. `sample` then reads V / 32 numbers of a row instead of V. Blocks of 64
 * count from column 0, so a box must begin and end at multiples of 64 or the row's end. All NaN:
 * -inf and column -1. */
MPK_FN void logits_peaks(const mpk_task &t, const mpk_view &logits, const mpk_view &peaks)
{
    const char *g_logits = mpk_data(t, logits);
    char *g_peaks = mpk_data(t, peaks);
    rt_i64 block0 = mpk_lo(t, 1) / 64, blocks = ((rt_i64)mpk_hi(t, 1) + 63) / 64 - block0,
           row0 = mpk_lo(t, 0);
    rt_i64 n = blocks * ((rt_i64)mpk_hi(t, 0) - row0);
    int thread = mpk_thread(), team = thread / MPK_TEAM, lane = thread % MPK_TEAM;
    for (rt_i64 first = 0; first < n; first += MPK_TEAMS) {
        rt_i64 i = first + team;
        bool mine = team < MPK_TEAMS && i < n;
        rt_i64 row = row0 + i / blocks, block = block0 + i % blocks, lo = block * 64;
        rt_i64 hi = lo + 64 < (rt_i64)mpk_hi(t, 1) ? lo + 64 : (rt_i64)mpk_hi(t, 1);
        rt_u64 best = mpk_largest(t, MPK_TEAM, logits, g_logits, row * logits.stride[0],
                                  logits.stride[1], lo, mine ? hi : lo);
        if (!mine || lane)
            continue;
        rt_i64 at = row * peaks.stride[0] + block * peaks.stride[1];
        rt_i64 column = best ? (rt_i64)mpk_index_of(best) : -1; /* -1: all are NaN */
        mpk_put(peaks, g_peaks, at,
                best ? mpk_get(logits, g_logits, row * logits.stride[0] + column * logits.stride[1])
                     : -MPK_INFINITY);
        mpk_put(peaks, g_peaks, at + peaks.stride[2], (float)column);
    }
}

#endif
