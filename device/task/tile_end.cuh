/* tile_end.cuh - the end of a tile of a product of many tokens: sums in registers become columns of y.
 *
 * Sums of a warp go through scratch, 16 tokens x 64 columns at a time, so that a row is stored together; on the way they
 * are scaled by an rms_norm, get biases and residual, become the columns of a gate, or logits with their peaks.
 * linear_tile.cuh calls it.
 */
#ifndef TASK_TILE_END_CUH
#define TASK_TILE_END_CUH

#include "ptx/ptx.cuh"
#include "task/activate.cuh"
#include "task/peaks.cuh"
#include "tile/inverse.cuh"
#include "tile/task.cuh"

enum { TILE_ROW = 72 }; /* floats from a row of sums in scratch to the next: apart in banks */

/* Where the operands stand in rt_entry.at, and what surrounds the product. */
struct tile_shape {
    int columns, blocks; /* of x; blocks of 32 columns in a packed group */
    int rows;            /* of w, or with an activation half of them: columns of y */
    int norm;            /* 1: rms_norm of x */
    float eps;
    int activation;                          /* ACTIVATE_*: not NONE: groups hold pairs of rows */
    int x, y, residual;                      /* operands; -1: absent */
    int bias[3], bias_rows[3], bias_type[3]; /* operand, rows of that weight, 0: bf16, 1: f32 */
    int gathered, tokens;                    /* operand rows i32[R]: row r is token rows[r] below T, if alive; -1: r */
    int peaks;                               /* operand of the peaks: y is f32; -1: y is bf16 */
};

/* ---- the end of a tile ---- */

MPK_FN float tile_bias(const mpk_task &t, const tile_shape &s, int i, int row)
{
    if (s.bias[i] < 0)
        return 0;
    if (s.bias_type[i])
        return mpk_at<const float>(t, s.bias[i])[row];
    return __uint_as_float((rt_u32)mpk_at<const rt_u16>(t, s.bias[i])[row] << 16);
}

/* Of a column of y, where the weights stand one after the other. */
MPK_FN float tile_bias_of(const mpk_task &t, const tile_shape &s, int column)
{
    if (column >= s.rows)
        return 0;
    if (column < s.bias_rows[0])
        return tile_bias(t, s, 0, column);
    column -= s.bias_rows[0];
    return column < s.bias_rows[1] ? tile_bias(t, s, 1, column) : tile_bias(t, s, 2, column - s.bias_rows[1]);
}

/* As activate(), without its division, which is a call: beside one, ptxas waits after every product (C7509). */
MPK_FN float tile_activate(int activation, float x)
{
    if (activation == ACTIVATE_GELU)
        return activate_gelu(x);
    const float u = activation == ACTIVATE_SILU ? x : 1.59576912160573072f * (x + 0.044715f * x * x * x);
    return __fdividef(x, 1 + __expf(-u));
}

/* Where a tile goes; read before the first store, or it would be read again behind each. */
struct tile_end {
    rt_u16 *y;
    const rt_u16 *residual; /* NULL: none */
    int rows, lo, hi;       /* columns of y, and those of the task */
    int tokens;             /* end of the task's that are alive */
    int norm, columns;      /* of x */
    float eps;
};

MPK_FN tile_end tile_end_of(const mpk_task &t, const tile_shape &s)
{
    tile_end e;
    e.y = mpk_at<rt_u16>(t, s.y);
    e.residual = s.residual >= 0 ? mpk_at<const rt_u16>(t, s.residual) : 0;
    e.rows = s.rows;
    e.lo = (int)t.e->lo[1];
    e.hi = (int)t.e->hi[1];
    e.tokens = (int)t.hi0;
    e.norm = s.norm;
    e.columns = s.columns;
    e.eps = s.eps;
    return e;
}

/* 1 / root mean square; 1 without a norm. */
MPK_FN float tile_scale(const tile_end &e, float square)
{
    return e.norm ? rsqrtf(square * mpk_inverse((float)e.columns) + e.eps) : 1;
}

/* A lane finishes 8 columns of y of every fourth token (a gate: of every eighth), from its warp's sums in scratch: N
 * of them, 8 or with a gate 16, at s_sum.  Where it may, it stores them as 16 bytes. */
struct tile_lane {
    int row, column; /* of y: the first token, the first column */
    bool whole;      /* all 8 columns are the task's, and they are aligned */
    float *sum;      /* of the first token */
};

template <int N> MPK_FN tile_lane tile_lane_of(const tile_end &e, int row, int group, float *s_sum)
{
    const int per_row = 64 / N, lane = mpk_thread() % 32;
    tile_lane l;
    l.row = row + lane / per_row;
    l.column = group * (N == 8 ? 8 : 4) + lane % per_row * 8;
    l.sum = s_sum + lane / per_row * TILE_ROW + lane % per_row * N;
    l.whole =
        l.column >= e.lo && l.column + 8 <= e.hi && e.rows % 8 == 0 && (((rt_u64)e.y | (rt_u64)e.residual) & 15) == 0;
    return l;
}

/* Sums of a token become scaled ones with their biases; then there is no scale left. */
template <int N>
MPK_FN void tile_add_biases(const mpk_task &t, const tile_shape &s, const tile_end &e, const tile_lane &l, float *sum,
                            float scale)
{
#pragma unroll 1
    for (int k = 0; k < N; k++) {
        const int column = l.column + (N == 8 ? k : k / 2);
        const float bias = column >= e.rows ? 0 : N == 8 ? tile_bias_of(t, s, column) : tile_bias(t, s, k % 2, column);
        sum[k] = sum[k] * scale + bias;
    }
}

/* Column k of 8, of a gate without its up. */
template <int N> MPK_FN float tile_value(const tile_shape &s, const float *sum, int k, float scale)
{
    return N == 8 ? sum[k] * scale : tile_activate(s.activation, sum[2 * k] * scale) * (sum[2 * k + 1] * scale);
}

/* 8 columns one by one: those that are the task's. */
template <int N>
MPK_FN void tile_store_parts(const tile_shape &s, const tile_end &e, int row, int column, const float *sum, float scale)
{
#pragma unroll 1
    for (int k = 0; k < 8; k++) {
        if (column + k < e.lo || column + k >= e.hi)
            continue;
        const rt_u64 at = (rt_u64)row * e.rows + column + k;
        const float more = e.residual ? __uint_as_float((rt_u32)e.residual[at] << 16) : 0;
        e.y[at] = (rt_u16)ptx_pack_bf16(tile_value<N>(s, sum, k, scale) + more, 0);
    }
}

/* 8 columns at once: of a plain product. */
MPK_FN void tile_store_whole(const tile_end &e, int row, int column, const float *s_sum, float scale,
                             const mpk_words &residual)
{
    const mpk_words low = ptx_load_shared_words(s_sum), high = ptx_load_shared_words(s_sum + 4);
    const rt_u32 sum[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const rt_u32 more[4] = {residual.x, residual.y, residual.z, residual.w};
    rt_u32 y[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        y[k] = ptx_pack_bf16(fmaf(__uint_as_float(sum[2 * k]), scale, ptx_low_bf16(more[k])),
                             fmaf(__uint_as_float(sum[2 * k + 1]), scale, ptx_high_bf16(more[k])));
    ptx_store_words(e.y + (rt_u64)row * e.rows + column, {y[0], y[1], y[2], y[3]});
}

/* Of a gate; in a loop, since activations are long.  Each pair of columns takes the place of sums that are used. */
MPK_FN void tile_store_gated(const tile_shape &s, const tile_end &e, int row, int column, float *s_sum, float scale)
{
#pragma unroll 1
    for (int k = 0; k < 4; k++) {
        const float a = tile_value<16>(s, s_sum, 2 * k, scale), b = tile_value<16>(s, s_sum, 2 * k + 1, scale);
        s_sum[k] = __uint_as_float(ptx_pack_bf16(a, b));
    }
    ptx_store_words(e.y + (rt_u64)row * e.rows + column, ptx_load_shared_words(s_sum));
}

/* A warp's 16 tokens from `row` on and 64 packed rows from group `group` on; s_sum f32[16][TILE_ROW], s_square of the
 * tokens. */
MPK_FN void tile_finish(const mpk_task &t, const tile_shape &s, int row, int group, float *s_sum, const float *s_square)
{
    const tile_end e = tile_end_of(t, s);
    const tile_lane l = tile_lane_of<8>(e, row, group, s_sum);
    const bool biased = s.bias[0] >= 0 || s.bias[1] >= 0 || s.bias[2] >= 0;
    mpk_words residual[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        residual[i] = {0, 0, 0, 0};
        ptx_load_words_if(e.residual + (rt_u64)(l.row + 4 * i) * e.rows + l.column,
                          e.residual && l.whole && l.row + 4 * i < e.tokens, &residual[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int token = l.row + 4 * i;
        float *sum = l.sum + 4 * i * TILE_ROW, scale = tile_scale(e, s_square[token - row]);
        if (token < e.tokens && biased) {
            tile_add_biases<8>(t, s, e, l, sum, scale);
            scale = 1;
        }
        if (token < e.tokens && l.whole)
            tile_store_whole(e, token, l.column, sum, scale, residual[i]);
        else if (token < e.tokens)
            tile_store_parts<8>(s, e, token, l.column, sum, scale);
    }
}

/* The same of a gate: pairs of columns are one column of y. */
MPK_FN void tile_finish_gated(const mpk_task &t, const tile_shape &s, int row, int group, float *s_sum,
                              const float *s_square)
{
    const tile_end e = tile_end_of(t, s);
    const tile_lane l = tile_lane_of<16>(e, row, group, s_sum);
#pragma unroll 1
    for (int token = l.row; token < row + 16 && token < e.tokens; token += 8) {
        float *sum = l.sum + (token - l.row) * TILE_ROW, scale = tile_scale(e, s_square[token - row]);
        if (s.bias[0] >= 0 || s.bias[1] >= 0) {
            tile_add_biases<16>(t, s, e, l, sum, scale);
            scale = 1;
        }
        if (l.whole)
            tile_store_gated(s, e, token, l.column, sum, scale);
        else
            tile_store_parts<16>(s, e, token, l.column, sum, scale);
    }
}

/* The same for logits: f32, and the largest of the 64 columns. */
MPK_FN void tile_finish_logits(const mpk_task &t, const tile_shape &s, int row, int group, const float *s_sum,
                               const float *s_square)
{
    const int lane = mpk_thread() % 32, column = group * 8 + 2 * lane;
    const tile_end e = tile_end_of(t, s);
    const bool has_a = column < e.rows, has_b = column + 1 < e.rows;
    for (int i = 0; i < 16 && row + i < e.tokens; i++) {
        const float2 v = *(const float2 *)(s_sum + i * TILE_ROW + 2 * lane);
        const float scale = tile_scale(e, s_square[i]), a = v.x * scale, b = v.y * scale;
        float *y = (float *)e.y + (rt_u64)(row + i) * e.rows + column;
        if (has_a)
            y[0] = a;
        if (has_b)
            y[1] = b;
        const peak p = peak_of_lanes<32>(peak_of_pair(a, b, column, has_a, has_b));
        if (lane == 0) {
            float *to = mpk_at<float>(t, s.peaks) + ((rt_u64)(row + i) * ((e.rows + 63) / 64) + group / 8) * 2;
            to[0] = p.best;
            to[1] = (float)p.at;
        }
    }
}

/* Sums of this warp's 16 x 64 from registers to shared memory, where a row lies together. */
MPK_FN void tile_put(const float *sum, float *s_sum)
{
    const int thread = mpk_thread(), g = thread % 32 / 4, c = thread % 4;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        ptx_store_shared_pair(s_sum + g * TILE_ROW + 8 * n + 2 * c, sum[4 * n], sum[4 * n + 1]);
        ptx_store_shared_pair(s_sum + (g + 8) * TILE_ROW + 8 * n + 2 * c, sum[4 * n + 2], sum[4 * n + 3]);
    }
}

/* Those of 64 columns of N; which, is known at run time, so that what comes after them is there once. */
template <int N> MPK_FN void tile_put_unit(const float *sum, int unit, float *s_sum)
{
#pragma unroll
    for (int u = 0; u < N / 64; u++)
        if (u == unit)
            tile_put(sum + 32 * u, s_sum);
}

#endif
