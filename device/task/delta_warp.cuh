/* delta_warp.cuh - delta_rule token by token: eight lanes have a row of the state, in registers.
 *
 * Input: q, k and v whose rows are whole pieces of eight neighbours, as are the heads of q and k;
 * a state of fp32; the tokens of a slot are neighbours (src/op/recurrent.h).  A warp makes four
 * columns of y at a time, all warps 32, and walks the tokens by itself: no barrier.  Of a row of
 * K entries lane l has pieces l, l + 8 .. of eight each; PIECES of them, as many as K asks for,
 * those beyond K being zeros:
 *
 *   entries   0-7   8-15  ..  56-63 | 64-71 ..        K = 128: PIECES = 2
 *   lane       0     1    ..    7   |   0   ..
 *
 * The state stays in registers as long as tokens of one slot follow each other, and is loaded and
 * stored where the slot changes.  What a token needs besides (q, k, v, a, b) is requested a token
 * ahead, and so is the state of the next slot: where every token has a slot of its own, memory
 * works while the token before is computed.  For that positions and slots are read two tokens
 * ahead.  Sums over a row are butterflies over its eight lanes, so all have the same bits.
 *
 * Cost: the chain of a token, two sums over lanes one after the other and two more beside them;
 * where there are many slots, a read and a write of each one's state.  Long runs of one slot go
 * faster by chunks (delta_chunk.cuh).  Printed by src/gen/body_delta.c, which chooses.
 */
#ifndef TASK_DELTA_WARP_CUH
#define TASK_DELTA_WARP_CUH

#include "shape/delta_shape.h"
#include "task/recurrent.cuh"
#include "task/rows_warp.cuh"
#include "tile/inverse.cuh"

enum { DELTA_COLUMNS = MPK_THREADS / DELTA_LANES };

/* A use of the operator.  Rows of q .. y: elements from a token to the next. */
struct delta_shape {
    int keys, values, heads, groups; /* entries of a head of q and of v; heads of v and of q */
    int slots;
    int q_row, k_row, v_row, a_row, b_row, y_row;
    int tiled;             /* head h of v takes q and k of group h % groups */
    int f32_log, f32_bias; /* a_log and dt_bias are fp32, else of the dtype of q */
    float eps;
};

/* What all tokens of a head share. */
struct delta_head {
    int head, group;
    float rate, bias; /* -exp(a_log) log2(e), dt_bias */
};

/* A lane's share of a row as floats. */
template <int PIECES> struct delta_row {
    float at[PIECES][ROWS_PIECE];
};
/* Of a token: the lane's shares of q and k as they lie in memory, its entries of v, a and b. */
template <int PIECES> struct delta_token {
    rows_raw q[PIECES], k[PIECES];
    float v, a, b;
};

/* Element i of a matrix of 16 or 32 bits. */
template <int D> MPK_FN float delta_get(const mpk_task &t, int operand, rt_i64 i)
{
    const mpk_view v = {0, D};
    return mpk_get(v, mpk_at<const char>(t, operand), i);
}

template <int D>
MPK_FN delta_head delta_head_of(const mpk_task &t, const delta_shape &s, int column)
{
    delta_head h;
    h.head = column / s.values;
    h.group = s.tiled ? h.head % s.groups : h.head / (s.heads / s.groups);
    const float log =
        s.f32_log ? delta_get<MPK_F32>(t, DELTA_LOG, h.head) : delta_get<D>(t, DELTA_LOG, h.head);
    h.rate = -expf(log) * 1.44269504f;
    h.bias = s.f32_bias ? delta_get<MPK_F32>(t, DELTA_BIAS, h.head)
                        : delta_get<D>(t, DELTA_BIAS, h.head);
    return h;
}

/* What stays of the state after a token, as a power of 2. */
MPK_FN float delta_fade(const delta_head &h, float a)
{
    const float x = a + h.bias;
    return h.rate * (x > 20.0f ? x : log1pf(expf(x)));
}
/* How far a token moves the state: the sigmoid of b.  Where there are products of warpgroups it is
 * one without the call that a division is: in the function that has it they would wait for each
 * other. */
MPK_FN float delta_reach(float b)
{
    const float power = expf(-b), most = 0x1p100f; /* a limit that keeps NaN */
    if (!MPK_WGMMA)
        return 1.0f / (1.0f + power);
    return mpk_inverse(1.0f + (power > most ? most : power));
}

/* Where the state of a token lies. */
MPK_FN recurrent_place delta_find(const mpk_task &t, const delta_shape &s, int token)
{
    const int position = mpk_at<const int>(t, DELTA_POSITIONS)[token],
              slot = mpk_at<const int>(t, DELTA_SLOTS)[token];
    return {position >= 0 && (rt_u32)slot < (rt_u32)s.slots ? slot : -1, position == 0};
}

/* The entry with which the lane's piece p begins. */
MPK_FN int delta_first(int p)
{
    return (p * DELTA_LANES + mpk_thread() % DELTA_LANES) * ROWS_PIECE;
}

/* Request the lane's share of a row of n entries at g. */
template <int D, int PIECES> MPK_FN void delta_fetch(const char *g, int n, rows_raw (&raw)[PIECES])
{
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        raw[p] = {};
        if (delta_first(p) < n)
            rows_fetch(D, g + delta_first(p) * mpk_dtype_bytes(D), raw[p]);
    }
}
template <int D, int PIECES>
MPK_FN void delta_floats(const rows_raw (&raw)[PIECES], delta_row<PIECES> &r)
{
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        rows_floats(D, raw[p], r.at[p]);
}

/* The sum of x y over a row, in each of its lanes. */
template <int PIECES> MPK_FN float delta_dot(const delta_row<PIECES> &x, const delta_row<PIECES> &y)
{
    float sum = 0;
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i++)
            sum += x.at[p][i] * y.at[p][i];
    return rows_lanes_sum<DELTA_LANES>(sum);
}

/* Request what token `token` needs for column c. */
template <int D, int PIECES>
MPK_FN void delta_request(const mpk_task &t, const delta_shape &s, const delta_head &h, int token,
                          int c, delta_token<PIECES> &d)
{
    const rt_i64 from = h.group * s.keys, at = token;
    delta_fetch<D>(mpk_at<const char>(t, DELTA_Q) + (at * s.q_row + from) * mpk_dtype_bytes(D),
                   s.keys, d.q);
    delta_fetch<D>(mpk_at<const char>(t, DELTA_K) + (at * s.k_row + from) * mpk_dtype_bytes(D),
                   s.keys, d.k);
    d.v = delta_get<D>(t, DELTA_V, at * s.v_row + c);
    d.a = delta_get<D>(t, DELTA_A, at * s.a_row + h.head);
    d.b = delta_get<D>(t, DELTA_B, at * s.b_row + h.head);
}

/* The row of the state of column c, of this slot. */
MPK_FN char *delta_state(const mpk_task &t, const delta_shape &s, int slot, int c)
{
    return mpk_at<char>(t, DELTA_STATE) +
           ((rt_i64)slot * s.heads * s.values + c) * s.keys * (rt_i64)sizeof(float);
}

template <int PIECES>
MPK_FN void delta_keep(const mpk_task &t, const delta_shape &s, int slot, int c,
                       const delta_row<PIECES> &r)
{
    char *g = delta_state(t, s, slot, c);
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (delta_first(p) < s.keys)
            rows_store(MPK_F32, g + delta_first(p) * sizeof(float), r.at[p]);
}

/* A token changes the state r; returns its entry of y. */
template <int D, int PIECES>
MPK_FN float delta_apply(const delta_shape &s, const delta_head &h, const delta_token<PIECES> &d,
                         delta_row<PIECES> &r)
{
    delta_row<PIECES> q, k;
    delta_floats<D>(d.q, q);
    delta_floats<D>(d.k, k);
    const float of_q = rsqrtf(delta_dot(q, q) + s.eps) * rsqrtf((float)s.keys),
                of_k = rsqrtf(delta_dot(k, k) + s.eps), decay = ptx_exp2(delta_fade(h, d.a));
    const float step = delta_reach(d.b) * (d.v - decay * of_k * delta_dot(r, k)) * of_k;
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i++)
            r.at[p][i] = decay * r.at[p][i] + step * k.at[p][i];
    return of_q * delta_dot(r, q);
}

/* Column c of tokens first to end - 1.  Lanes of no column (`mine` false) go along for the
 * butterflies' sake, with column c of another, and store nothing.  The loop begins a token early,
 * with none at hand, so that the code that requests is there once: a task of one token waits for
 * its instructions more than for anything else. */
template <int D, int PIECES>
MPK_FN void delta_column(const mpk_task &t, const delta_shape &s, int c, bool mine, int first,
                         int end)
{
    const delta_head h = delta_head_of<D>(t, s, c);
    const mpk_view of_y = {0, D};
    delta_row<PIECES> r = {};
    delta_token<PIECES> next = {};
    rows_raw ahead[PIECES] = {};
    recurrent_place to = {-1, false}, after = delta_find(t, s, first);
#pragma unroll 1
    for (int token = first - 1; token < end; token++) {
        const delta_token<PIECES> now = next;
        const bool last = token + 1 == end, leaves = last || after.slot != to.slot;
        const recurrent_place then = delta_find(t, s, token + 2 < end ? token + 2 : end - 1);
        if (!last) {
            delta_request<D>(t, s, h, token + 1, c, next);
            if (leaves && after.slot >= 0 && !after.begins)
                delta_fetch<MPK_F32>(delta_state(t, s, after.slot, c), s.keys, ahead);
        }
        if (token >= first) {
            const float y = to.slot < 0 ? 0.0f : delta_apply<D>(s, h, now, r);
            if (mine && mpk_thread() % DELTA_LANES == 0)
                mpk_put(of_y, mpk_at<char>(t, DELTA_Y), (rt_i64)token * s.y_row + c, y);
            if (leaves && to.slot >= 0 && mine)
                delta_keep(t, s, to.slot, c, r);
        }
        if (after.begins)
            r = {};
        else if (leaves)
            delta_floats<MPK_F32>(ahead, r);
        to = after;
        after = then;
    }
}

/* Columns lo to hi - 1 of tokens first to end - 1. */
template <int D, int PIECES>
MPK_FN void delta_columns(const mpk_task &t, const delta_shape &s, int lo, int hi, int first,
                          int end)
{
    for (; lo < hi; lo += DELTA_COLUMNS) {
        const int c = lo + mpk_thread() / DELTA_LANES;
        delta_column<D, PIECES>(t, s, c < hi ? c : lo, c < hi, first, end);
    }
}

/* The body.  D: the dtype of q, k, v, a, b and y. */
template <int D, int PIECES> MPK_FN void delta_warp(const mpk_task &t, const delta_shape &s)
{
    const int tokens = (int)mpk_hi(t, 0);
    if (tokens)
        delta_columns<D, PIECES>(t, s, (int)mpk_lo(t, 1), (int)mpk_hi(t, 1), 0, tokens);
}

#endif
