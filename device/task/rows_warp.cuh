/* rows_warp.cuh - norms and softmax of rows of floats whose entries are neighbours: a warp a
 * row, in fp32.
 *
 * Input: x, and of norms weight and bias; output: the task's box, which has whole rows.  A row
 * of at most ROWS_MOST entries is loaded once, by pieces of eight entries, and stays in
 * registers.  What is added up, and in which order, follows from the row's length alone.
 *
 * PIECES, how many pieces a lane has, is the row's length rounded up to 256 entries; piece c of
 * lane l begins at (32 c + l) * 8, so that a warp reads 32 neighbouring pieces at once:
 *
 *   entries   0-7     8-15    ...  248-255 | 256-263 ...
 *   lane      0       1            31      | 0
 *   piece     0       0            0       | 1
 *
 * Everything over PIECES is unrolled, or the arrays would lie on the stack.  The generic forms
 * are in rows.cuh; src/gen/body_rows_warp.c chooses and prints the calls. Cost: one load of the
 * row, two sums over a warp.
 */
#ifndef TASK_ROWS_WARP_CUH
#define TASK_ROWS_WARP_CUH

#include "task/pieces.cuh"
#include "task/rows.cuh"

/* Eight entries of a row of n from entry `first` on, as floats: in one or two loads of 16 bytes
 * where they are whole and aligned, else one by one, with `rest` beyond the row.  rest is 0 for
 * sums and -inf for maxima, which change neither. */
MPK_FN void rows_read(int dtype, const char *g_row, rt_i64 first, rt_i64 n, float rest,
                      float (&r)[ROWS_PIECE])
{
    const char *g = g_row + first * mpk_dtype_bytes(dtype); /* of the piece */
    const mpk_view v = {0, dtype};
    if (first + ROWS_PIECE > n || ((rt_u64)g & 15)) {
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i++)
            r[i] = first + i < n ? mpk_get(v, g, i) : rest;
    } else {
        rows_raw raw;
        rows_fetch(dtype, g, raw);
        rows_floats(dtype, raw, r);
    }
}

/* The counterpart: round and store eight entries; nothing is written beyond the row. */
MPK_FN void rows_write(int dtype, char *g_row, rt_i64 first, rt_i64 n, const float (&r)[ROWS_PIECE])
{
    char *g = g_row + first * mpk_dtype_bytes(dtype); /* of the piece */
    const mpk_view v = {0, dtype};
    if (first + ROWS_PIECE > n || ((rt_u64)g & 15)) {
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i++)
            if (first + i < n)
                mpk_put(v, g, i, r[i]);
    } else {
        rows_store(dtype, g, r);
    }
}

/* The first entry of this lane's piece c of a row; it may lie beyond the row. */
MPK_FN rt_i64 rows_first(int c)
{
    return (rt_i64)(c * 32 + mpk_thread() % 32) * ROWS_PIECE;
}

/* The sum over all lanes.  A butterfly: every lane adds the same pairs in the same order and
 * ends with the same bits, so no lane has to tell the others. */
MPK_FN float rows_lanes_sum(float x)
{
#pragma unroll
    for (int apart = 16; apart; apart /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}
/* NaN wins: a row with a NaN has it as its largest, and all of its softmax is NaN, as in the
 * reference. */
MPK_FN float rows_larger(float a, float b)
{
    return b > a || b != b ? b : a;
}
/* The largest over all lanes, in each of them; a NaN in any lane is the answer. */
MPK_FN float rows_lanes_largest(float x)
{
#pragma unroll
    for (int apart = 16; apart; apart /= 2)
        x = rows_larger(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
}

/* A row of x, of which each lane has its pieces, its length n, and where its result goes. */
template <int PIECES> struct rows_row {
    float r[PIECES][ROWS_PIECE];
    rt_i64 n;
    char *g_y;
};

/* Load line number `line` of the box and find where its result goes.  rest: what entries beyond
 * the row count as, chosen so that they change no sum or maximum. */
template <int PIECES>
MPK_FN void rows_open(const mpk_task &t, const mpk_view &x, const mpk_view &y, const mpk_box &box,
                      rt_u64 line, float rest, rows_row<PIECES> *row)
{
    const int last = x.rank - 1; /* the row's axis */
    rt_i64 at[RT_MAX_RANK];
    mpk_place(box, last, line, at);
    const char *g_x = mpk_data(t, x) + mpk_offset(x, at) * mpk_dtype_bytes(x.dtype);
    row->g_y = mpk_data(t, y) + mpk_offset(y, at) * mpk_dtype_bytes(y.dtype);
    row->n = x.dims[last];
#pragma unroll
    for (int c = 0; c < PIECES; c++)
        rows_read(x.dtype, g_x, rows_first(c), row->n, rest, row->r[c]);
}

/* The sum of (entry - mean)^2 over a row, in each lane.  Entries beyond the row are left out by
 * their place: they are 0, and (0 - mean)^2 is not. */
template <int PIECES> MPK_FN float rows_squares(const rows_row<PIECES> &row, float mean)
{
    float sum = 0; /* of this lane's entries */
#pragma unroll
    for (int c = 0; c < PIECES; c++)
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i++) {
            const float away = rows_first(c) + i < row.n ? row.r[c][i] - mean : 0.0f;
            sum += away * away;
        }
    return rows_lanes_sum(sum);
}
/* The sum of a row, in each lane.  Entries beyond the row have been loaded as 0 and count for
 * nothing. */
template <int PIECES> MPK_FN float rows_total(const rows_row<PIECES> &row)
{
    float sum = 0;
#pragma unroll
    for (int c = 0; c < PIECES; c++)
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i++)
            sum += row.r[c][i];
    return rows_lanes_sum(sum);
}

/* (entry - mean) factor weight + bias, stored; weight and bias may be absent. */
template <int PIECES>
MPK_FN void rows_scale(const mpk_task &t, rows_row<PIECES> *row, float mean, float factor,
                       const mpk_view &weight, const mpk_view &bias, const mpk_view &y)
{
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        float by[ROWS_PIECE], plus[ROWS_PIECE]; /* weight and bias */
        if (mpk_is_there(weight))
            rows_read(weight.dtype, mpk_data(t, weight), rows_first(c), row->n, 0, by);
        if (mpk_is_there(bias))
            rows_read(bias.dtype, mpk_data(t, bias), rows_first(c), row->n, 0, plus);
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i++) {
            float value = (row->r[c][i] - mean) * factor;
            value = mpk_is_there(weight) ? value * by[i] : value;
            row->r[c][i] = mpk_is_there(bias) ? value + plus[i] : value;
        }
        rows_write(y.dtype, row->g_y, rows_first(c), row->n, row->r[c]);
    }
}

/* The statement after it runs for each line of the box that is this warp's.  Lines are dealt to
 * the eight warps in turn; a warp never waits for another, so there is no barrier in this file.
 * Declares box and lines in the scope that it stands in. */
#define ROWS_EACH_LINE(t, x)                         \
    const mpk_box box = mpk_box_of(t, x.rank - 1);   \
    const rt_u64 lines = mpk_count(box, x.rank - 1); \
    for (rt_u64 line = (rt_u64)(mpk_thread() / 32); line < lines; line += MPK_THREADS / 32)

/* layer_norm.  The variance is taken around the mean, in a second sum over registers: no digits
 * are lost to a large mean. */
template <int PIECES>
MPK_FN void layer_norm_warp(const mpk_task &t, const mpk_view &x, const mpk_view &weight,
                            const mpk_view &bias, const mpk_view &y, double eps)
{
    ROWS_EACH_LINE(t, x)
    {
        rows_row<PIECES> row;
        rows_open(t, x, y, box, line, 0, &row);
        const float n = (float)row.n, mean = rows_total(row) / n;
        rows_scale(t, &row, mean, rsqrtf(rows_squares(row, mean) / n + (float)eps), weight, bias,
                   y);
    }
}

/* rms_norm: a layer norm whose mean is 0 and that has no bias. */
template <int PIECES>
MPK_FN void rms_norm_warp(const mpk_task &t, const mpk_view &x, const mpk_view &weight,
                          const mpk_view &y, double eps)
{
    constexpr mpk_view nothing = {-1}; /* an absent bias */
    ROWS_EACH_LINE(t, x)
    {
        rows_row<PIECES> row;
        rows_open(t, x, y, box, line, 0, &row);
        rows_scale(t, &row, 0, rsqrtf(rows_squares(row, 0) / (float)row.n + (float)eps), weight,
                   nothing, y);
    }
}

/* softmax, or log_softmax (logarithm).  Entries beyond the row are -inf for the maximum, and are
 * left out of the sum by their place: in a row of -inf alone, expf(-inf + inf) would be NaN
 * there too. */
template <int PIECES>
MPK_FN void softmax_warp(const mpk_task &t, const mpk_view &x, const mpk_view &y, bool logarithm)
{
    ROWS_EACH_LINE(t, x)
    {
        rows_row<PIECES> row;
        rows_open(t, x, y, box, line, -MPK_INFINITY, &row);
        float most = -MPK_INFINITY, sum = 0; /* of this lane, then of the row */
#pragma unroll
        for (int i = 0; i < PIECES * ROWS_PIECE; i++)
            most = rows_larger(most, row.r[i / ROWS_PIECE][i % ROWS_PIECE]);
        most = rows_lanes_largest(most);
#pragma unroll
        for (int i = 0; i < PIECES * ROWS_PIECE; i++) {
            float *r = &row.r[i / ROWS_PIECE][i % ROWS_PIECE];
            const float weight =
                rows_first(i / ROWS_PIECE) + i % ROWS_PIECE < row.n ? expf(*r - most) : 0.0f;
            sum += weight;
            *r = logarithm ? *r - most : weight;
        }
        sum = rows_lanes_sum(sum);
        const float factor = logarithm ? 1.0f : 1 / sum, less = logarithm ? logf(sum) : 0.0f;
#pragma unroll
        for (int c = 0; c < PIECES; c++) {
#pragma unroll
            for (int i = 0; i < ROWS_PIECE; i++)
                row.r[c][i] = row.r[c][i] * factor - less;
            rows_write(y.dtype, row.g_y, rows_first(c), row.n, row.r[c]);
        }
    }
}

#endif
