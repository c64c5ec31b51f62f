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
 * are in rows.cuh; src/gen/body_rows_warp.c chooses and prints the calls.
 *
 * A row alone is a chain: its load, its sums, the loads of weight and bias, its store.  So the next
 * rows are loaded while these are made, weight and bias are loaded once, and where a task has many
 * short rows a warp makes N of them at a time.  Cost: one load of the row, two sums over a warp.
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

/* Rows of up to ROWS_SHORT pieces a lane are loaded one turn ahead; up to ROWS_KEPT, weight and
 * bias stay in registers for all rows of a task. */
enum { ROWS_SHORT = 4, ROWS_KEPT = 3 };

/* The row that comes next: where it lies, and its pieces as they are on the way. */
template <int PIECES> struct rows_next {
    const char *g_x;
    char *g_y;
    rows_raw raw[PIECES];
};

/* Whole pieces of the row or vector at g, for all lanes: raw; a lane's pieces beyond n are not
 * loaded. */
template <int PIECES>
MPK_FN void rows_ask(int dtype, const char *g, rt_i64 n, rows_raw (&raw)[PIECES])
{
#pragma unroll
    for (int c = 0; c < PIECES; c++)
        if (rows_first(c) < n)
            rows_fetch(dtype, g + rows_first(c) * mpk_dtype_bytes(dtype), raw[c]);
}

/* Are all rows of x whole pieces, and aligned? */
MPK_FN bool rows_are_whole(const mpk_task &t, const mpk_view &x, int last)
{
    bool whole = x.dims[last] % ROWS_PIECE == 0;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i < last)
            whole = whole && x.stride[i] * mpk_dtype_bytes(x.dtype) % 16 == 0;
    return whole && ((rt_u64)mpk_data(t, x) & 15) == 0;
}

/* Find line number `line` of the box and where its result goes; asked: request its pieces too. */
template <int PIECES>
MPK_FN void rows_seek(const mpk_task &t, const mpk_view &x, int last, const mpk_view &y,
                      const mpk_box &box, rt_u64 line, bool asked, rows_next<PIECES> *next)
{
    rt_i64 at[RT_MAX_RANK];
    mpk_place(box, last, line, at);
    next->g_x = mpk_data(t, x) + mpk_offset(x, at) * mpk_dtype_bytes(x.dtype);
    next->g_y = mpk_data(t, y) + mpk_offset(y, at) * mpk_dtype_bytes(y.dtype);
    if (asked)
        rows_ask(x.dtype, next->g_x, x.dims[last], next->raw);
}

/* The row that rows_seek found, as floats.  rest: what entries beyond the row count as, chosen so
 * that they change no sum or maximum. */
template <int PIECES>
MPK_FN void rows_open(const mpk_view &x, int last, const rows_next<PIECES> &next, float rest,
                      bool asked, rows_row<PIECES> *row)
{
    row->g_y = next.g_y;
    row->n = x.dims[last];
#pragma unroll
    for (int c = 0; c < PIECES; c++)
        if (!asked) {
            rows_read(x.dtype, next.g_x, rows_first(c), row->n, rest, row->r[c]);
        } else if (rows_first(c) < row->n) {
            rows_floats(x.dtype, next.raw[c], row->r[c]);
        } else {
#pragma unroll
            for (int i = 0; i < ROWS_PIECE; i++)
                row->r[c][i] = rest;
        }
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

/* Weight or bias of a norm, of which each lane has its pieces, where they are kept. */
template <int PIECES> struct rows_vector {
    rows_raw raw[PIECES];
    bool kept;
};
template <int PIECES>
MPK_FN void rows_keep(const mpk_task &t, const mpk_view &v, rows_vector<PIECES> *to)
{
    to->kept = PIECES <= ROWS_KEPT && mpk_is_there(v) && v.dims[0] % ROWS_PIECE == 0 &&
               ((rt_u64)mpk_data(t, v) & 15) == 0;
    if (to->kept)
        rows_ask(v.dtype, mpk_data(t, v), v.dims[0], to->raw);
}
/* Its piece c as floats. */
template <int PIECES>
MPK_FN void rows_vector_piece(const mpk_task &t, const mpk_view &v, const rows_vector<PIECES> &of,
                              int c, float (&r)[ROWS_PIECE])
{
    if (of.kept)
        rows_floats(v.dtype, of.raw[c], r);
    else
        rows_read(v.dtype, mpk_data(t, v), rows_first(c), v.dims[0], 0, r);
}

/* (entry - mean) factor weight + bias of N rows; weight and bias may be absent. */
template <int PIECES, int N>
MPK_FN void rows_scale(const mpk_task &t, rows_row<PIECES> (&row)[N], const float (&mean)[N],
                       const float (&factor)[N], const mpk_view &weight,
                       const rows_vector<PIECES> &by, const mpk_view &bias,
                       const rows_vector<PIECES> &plus)
{
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        float w[ROWS_PIECE], b[ROWS_PIECE];
        if (mpk_is_there(weight))
            rows_vector_piece(t, weight, by, c, w);
        if (mpk_is_there(bias))
            rows_vector_piece(t, bias, plus, c, b);
#pragma unroll
        for (int k = 0; k < N; k++)
#pragma unroll
            for (int i = 0; i < ROWS_PIECE; i++) {
                float value = (row[k].r[c][i] - mean[k]) * factor[k];
                value = mpk_is_there(weight) ? value * w[i] : value;
                row[k].r[c][i] = mpk_is_there(bias) ? value + b[i] : value;
            }
    }
}

/* All lines of the box that are this warp's: make(rows) turns some of them, side by side, into
 * their results.  Lines are dealt to the eight warps in turn; a warp never waits for another, so
 * there is no barrier in this file.  While lines are made the next ones are on the way, in
 * `next`.  Where too few are left the last line stands for those that are not there, and is stored
 * once. */
template <int PIECES, int N, typename maker>
MPK_FN void rows_each(const mpk_task &t, const mpk_view &x, int last, const mpk_view &y, float rest,
                      const maker &make)
{
    constexpr rt_u64 TURN = MPK_THREADS / 32 * N; /* lines of all warps */
    const mpk_box box = mpk_box_of(t, last);
    const rt_u64 lines = mpk_count(box, last);
    const bool asked = PIECES <= ROWS_SHORT && rows_are_whole(t, x, last);
    rt_u64 line = (rt_u64)(mpk_thread() / 32 * N);
    rows_next<PIECES> next[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        if (line < lines)
            rows_seek(t, x, last, y, box, line + k < lines ? line + k : lines - 1, asked, &next[k]);
#pragma unroll 1
    for (; line < lines; line += TURN) {
        const rt_u64 after = line + TURN;
        rows_row<PIECES> row[N];
#pragma unroll
        for (int k = 0; k < N; k++)
            rows_open(x, last, next[k], rest, asked, &row[k]);
#pragma unroll
        for (int k = 0; k < N; k++)
            if (after < lines)
                rows_seek(t, x, last, y, box, after + k < lines ? after + k : lines - 1, asked,
                          &next[k]);
        make(row);
#pragma unroll
        for (int k = 0; k < N; k++)
#pragma unroll
            for (int c = 0; c < PIECES; c++)
                if (line + k < lines)
                    rows_write(y.dtype, row[k].g_y, rows_first(c), row[k].n, row[k].r[c]);
    }
}

/* layer_norm.  The variance is taken around the mean, in a second sum over registers: no digits
 * are lost to a large mean. */
template <int PIECES, int N>
MPK_FN void layer_norm_warp(const mpk_task &t, const mpk_view &x, const mpk_view &weight,
                            const mpk_view &bias, const mpk_view &y, double eps)
{
    const int last = x.rank - 1; /* here, where it is a constant for the compiler */
    rows_vector<PIECES> by, plus;
    rows_keep(t, weight, &by);
    rows_keep(t, bias, &plus);
    rows_each<PIECES, N>(t, x, last, y, 0, [&](rows_row<PIECES>(&row)[N]) {
        float mean[N], factor[N];
#pragma unroll
        for (int k = 0; k < N; k++)
            mean[k] = rows_total(row[k]) / (float)row[k].n;
#pragma unroll
        for (int k = 0; k < N; k++)
            factor[k] = rsqrtf(rows_squares(row[k], mean[k]) / (float)row[k].n + (float)eps);
        rows_scale(t, row, mean, factor, weight, by, bias, plus);
    });
}

/* rms_norm: a layer norm whose mean is 0 and that has no bias. */
template <int PIECES, int N>
MPK_FN void rms_norm_warp(const mpk_task &t, const mpk_view &x, const mpk_view &weight,
                          const mpk_view &y, double eps)
{
    const int last = x.rank - 1;
    constexpr mpk_view nothing = {-1}; /* an absent bias */
    rows_vector<PIECES> by, plus = {};
    rows_keep(t, weight, &by);
    rows_each<PIECES, N>(t, x, last, y, 0, [&](rows_row<PIECES>(&row)[N]) {
        float mean[N] = {}, factor[N];
#pragma unroll
        for (int k = 0; k < N; k++)
            factor[k] = rsqrtf(rows_squares(row[k], 0) / (float)row[k].n + (float)eps);
        rows_scale(t, row, mean, factor, weight, by, nothing, plus);
    });
}

/* Softmax, or its logarithm, of one row.  Entries beyond the row are -inf for the maximum, and are
 * left out of the sum by their place: in a row of -inf alone, expf(-inf + inf) would be NaN
 * there too. */
template <int PIECES> MPK_FN void rows_softmax(rows_row<PIECES> *row, bool logarithm)
{
    float most = -MPK_INFINITY, sum = 0; /* of this lane, then of the row */
#pragma unroll
    for (int i = 0; i < PIECES * ROWS_PIECE; i++)
        most = rows_larger(most, row->r[i / ROWS_PIECE][i % ROWS_PIECE]);
    most = rows_lanes_largest(most);
#pragma unroll
    for (int i = 0; i < PIECES * ROWS_PIECE; i++) {
        float *r = &row->r[i / ROWS_PIECE][i % ROWS_PIECE];
        const float weight =
            rows_first(i / ROWS_PIECE) + i % ROWS_PIECE < row->n ? expf(*r - most) : 0.0f;
        sum += weight;
        *r = logarithm ? *r - most : weight;
    }
    sum = rows_lanes_sum(sum);
    const float factor = logarithm ? 1.0f : 1 / sum, less = logarithm ? logf(sum) : 0.0f;
#pragma unroll
    for (int i = 0; i < PIECES * ROWS_PIECE; i++)
        row->r[i / ROWS_PIECE][i % ROWS_PIECE] =
            row->r[i / ROWS_PIECE][i % ROWS_PIECE] * factor - less;
}

/* softmax, or log_softmax (logarithm). */
template <int PIECES, int N>
MPK_FN void softmax_warp(const mpk_task &t, const mpk_view &x, const mpk_view &y, bool logarithm)
{
    const int last = x.rank - 1;
    rows_each<PIECES, N>(t, x, last, y, -MPK_INFINITY, [&](rows_row<PIECES>(&row)[N]) {
#pragma unroll
        for (int k = 0; k < N; k++)
            rows_softmax(&row[k], logarithm);
    });
}

#endif
