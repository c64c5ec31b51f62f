/* delta_warp.cuh - delta_rule by warps: eight lanes have a row of the state, in registers.
 *
 * Input: as of the generic body (recurrent.cuh), with rows of q, k and the state that are whole
 * pieces of eight neighbours.  A warp makes four columns of y at a time, all warps 32, and walks
 * the tokens by itself: no barrier.  Of a row of K entries lane l has pieces l, l + 8 .. of eight
 * each; PIECES of them, as many as K asks for, those beyond K being zeros:
 *
 *   entries   0-7   8-15  ..  56-63 | 64-71 ..        K = 128: PIECES = 2
 *   lane       0     1    ..    7   |   0   ..
 *
 * The state stays in registers as long as tokens of one slot follow each other, and is loaded and
 * stored where the slot changes.  What a token needs besides (q, k, v, a, b) does not depend on the
 * state: it is requested a token ahead.  Sums over a row are butterflies over its eight lanes, so
 * all have the same bits.
 *
 * Cost: the chain of a token, two sums over lanes one after the other and two more beside them;
 * where there are many slots, a read and a write of each one's state.  Used by
 * src/gen/body_recurrent.c.
 */
#ifndef TASK_DELTA_WARP_CUH
#define TASK_DELTA_WARP_CUH

#include "task/recurrent.cuh"
#include "task/rows_warp.cuh"

enum { DELTA_LANES = 8 };

/* A lane's share of a row as floats. */
template <int PIECES> struct delta_row {
    float at[PIECES][ROWS_PIECE];
};
/* Of a token: the lane's shares of q and k as they lie in memory, and the numbers of its head. */
template <int PIECES> struct delta_token {
    rows_raw q[PIECES], k[PIECES];
    float v, decay, step;
    recurrent_place place;
};

/* The entry with which the lane's piece p begins. */
MPK_FN int delta_first(int p)
{
    return (p * DELTA_LANES + mpk_thread() % DELTA_LANES) * ROWS_PIECE;
}

/* Request the lane's share of a row of n entries at g. */
template <int PIECES>
MPK_FN void delta_fetch(int dtype, const char *g, int n, rows_raw (&raw)[PIECES])
{
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        raw[p] = {};
        if (delta_first(p) < n)
            rows_fetch(dtype, g + delta_first(p) * mpk_dtype_bytes(dtype), raw[p]);
    }
}
template <int PIECES>
MPK_FN void delta_floats(int dtype, const rows_raw (&raw)[PIECES], delta_row<PIECES> &r)
{
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        rows_floats(dtype, raw[p], r.at[p]);
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

/* Request what token `token` needs for column c, of head `head` that takes q and k of `group`. */
template <int PIECES>
MPK_FN void delta_request(const mpk_task &t, const delta_operands &o, rt_i64 token, rt_i64 c,
                          rt_i64 head, rt_i64 group, delta_token<PIECES> &d)
{
    const int n = (int)o.state.dims[2];
    const rt_i64 from = group * n;
    d.place = recurrent_find(t, o.positions, o.slots, o.state, token);
    delta_fetch(o.q.dtype,
                mpk_data(t, o.q) + (token * o.q.stride[0] + from) * mpk_dtype_bytes(o.q.dtype), n,
                d.q);
    delta_fetch(o.k.dtype,
                mpk_data(t, o.k) + (token * o.k.stride[0] + from) * mpk_dtype_bytes(o.k.dtype), n,
                d.k);
    d.v = mpk_get(o.v, mpk_data(t, o.v), token * o.v.stride[0] + c * o.v.stride[1]);
    d.decay = delta_decay(t, o, token, head);
    d.step = delta_step(t, o, token, head);
}

/* The lane's share of the state of column c: from the slot to registers, or back. */
template <int PIECES>
MPK_FN void delta_move(const mpk_task &t, const mpk_view &state, rt_i64 c, int slot, bool store,
                       delta_row<PIECES> &s)
{
    const int n = (int)state.dims[2];
    char *g = mpk_data(t, state) + (slot * state.stride[0] + c * state.stride[1]) * sizeof(float);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        if (delta_first(p) >= n)
            continue;
        rows_raw raw;
        if (store) {
            rows_store(MPK_F32, g + delta_first(p) * sizeof(float), s.at[p]);
        } else {
            rows_fetch(MPK_F32, g + delta_first(p) * sizeof(float), raw);
            rows_floats(MPK_F32, raw, s.at[p]);
        }
    }
}

/* A token changes the state s; returns its entry of y. */
template <int PIECES>
MPK_FN float delta_apply(const delta_operands &o, const delta_token<PIECES> &d,
                         delta_row<PIECES> &s)
{
    delta_row<PIECES> q, k;
    delta_floats(o.q.dtype, d.q, q);
    delta_floats(o.k.dtype, d.k, k);
    const float of_q = rsqrtf(delta_dot(q, q) + o.eps) * rsqrtf((float)o.state.dims[2]),
                of_k = rsqrtf(delta_dot(k, k) + o.eps);
    const float step = d.step * (d.v - d.decay * of_k * delta_dot(s, k)) * of_k;
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i++)
            s.at[p][i] = d.decay * s.at[p][i] + step * k.at[p][i];
    return of_q * delta_dot(s, q);
}

/* Column c of all tokens.  Lanes of no column (`mine` false) go along for the butterflies' sake,
 * with column c of another, and store nothing. */
template <int PIECES>
MPK_FN void delta_column(const mpk_task &t, const delta_operands &o, rt_i64 c, bool mine)
{
    const rt_i64 head = c / (o.v.dims[1] / o.a.dims[1]), group = delta_group(o, head),
                 tokens = (rt_i64)mpk_hi(t, 0);
    char *g_y = mpk_data(t, o.y);
    delta_row<PIECES> s = {};
    delta_token<PIECES> next;
    int slot = -1;
    delta_request(t, o, 0, c, head, group, next);
    for (rt_i64 token = 0; token < tokens; token++) {
        const delta_token<PIECES> now = next;
        delta_request(t, o, token + 1 < tokens ? token + 1 : token, c, head, group, next);
        const int to = now.place.slot;
        if (to != slot && slot >= 0 && mine)
            delta_move(t, o.state, c, slot, true, s);
        if (to != slot && to >= 0 && !now.place.begins)
            delta_move(t, o.state, c, to, false, s);
        if (now.place.begins)
            s = {};
        slot = to;
        const float y = slot < 0 ? 0.0f : delta_apply(o, now, s);
        if (mine && mpk_thread() % DELTA_LANES == 0)
            mpk_put(o.y, g_y, token * o.y.stride[0] + c * o.y.stride[1], y);
    }
    if (slot >= 0 && mine)
        delta_move(t, o.state, c, slot, true, s);
}

/* The body. */
template <int PIECES> MPK_FN void delta_warp_run(const mpk_task &t, const delta_operands &o)
{
    const rt_i64 end = (rt_i64)mpk_hi(t, 1);
    for (rt_i64 first = (rt_i64)mpk_lo(t, 1); first < end; first += MPK_THREADS / DELTA_LANES) {
        const rt_i64 c = first + mpk_thread() / DELTA_LANES;
        delta_column<PIECES>(t, o, c < end ? c : first, c < end);
    }
}

#endif
