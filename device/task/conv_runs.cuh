/* conv_runs.cuh - causal_conv by tokens and columns: rows of 16 bits whose columns are whole eights
 * (src/op/causal_conv.c).
 *
 * Input: x [T, C], weight [C, W], positions and slots [T], and the state of each slot, f32 [W - 1,
 * C], the rows before its next token, the oldest first.  Output: the task's columns of y for all
 * tokens, and of the state.  Tokens of a slot are neighbours, a run (src/op/recurrent.h).
 *
 * A thread has eight neighbouring columns of a strip of neighbouring tokens, so that a row of x or
 * y is one access of 16 bytes.  Strips are as long as it takes to give each thread one, from a
 * token on.  Of 16 columns and 2,048 tokens:
 *
 *   thread     0        1        2         3               254        255
 *   columns    0-7      8-15     0-7       8-15     ...    0-7        8-15
 *   tokens     0-15     0-15     16-31     16-31           2032-2047  2032-2047
 *
 * A row before a token is the row of x of a token before it in its run.  What is before the run's
 * first token lies in the state, or is zero where the run begins a text.  The thread finds the W -
 * 1 rows before its strip so, and keeps the last W - 1 rows in registers while it walks the strip,
 * with the next tokens under way.  Sums are in fp32 from the oldest row on, so that neither strips
 * nor steps change bits.
 *
 * The state is written where it was read.  So all threads meet between the two: only then each
 * writes what the runs leave that end in its strip.  A run of fewer than W - 1 tokens leaves some
 * rows that it found, which no other thread has written, since those columns of that slot are
 * written by one.
 *
 * body_conv_runs.c prints the shapes.  Cost: x and y once, x of W - 1 tokens more for each strip;
 * two waits for memory, and one for each run that begins within a strip.
 */
#ifndef TASK_CONV_RUNS_CUH
#define TASK_CONV_RUNS_CUH

#include "shape/conv_runs_shape.h"
#include "task/activate.cuh"
#include "task/eights.cuh"

enum { RUNS_LOT = 2 }; /* tokens that are asked for together */

/* A task as a thread of eight columns sees it.  g_x, g_y and g_state are those of its columns, of
 * the first token and of slot 0. */
template <int W> struct runs_part {
    const char *g_x;
    char *g_y;
    float *g_state;
    const rt_i32 *g_positions, *g_slots;
    int tokens;           /* of the step */
    int x_bytes, y_bytes; /* from a token's row to the next */
    conv_runs_shape shape;
    float weight[W][EIGHT];
};

/* Position and slot of a token, as loaded: in flight until someone asks.  A token may be before the
 * step's first or after its last: such have no slot. */
struct runs_place {
    int position, slot;
};
template <int W> MPK_FN runs_place runs_find(const runs_part<W> &p, int token)
{
    runs_place at = {-1, -1};
    if (token >= 0 && token < p.tokens)
        at = {p.g_positions[token], p.g_slots[token]};
    return at;
}
/* The slot that exists; -1: none. */
template <int W> MPK_FN int runs_slot(const runs_part<W> &p, runs_place at)
{
    return at.position >= 0 && (rt_u32)at.slot < (rt_u32)p.shape.slots ? at.slot : -1;
}
/* x of a token. */
template <int DTYPE, int W> MPK_FN eight runs_load(const runs_part<W> &p, int token)
{
    constexpr mpk_view v = {0, DTYPE};
    return eight_load(v, p.g_x + (rt_i64)token * p.x_bytes, 0);
}
/* Row `row` of the state of a slot. */
template <int W> MPK_FN char *runs_state(const runs_part<W> &p, int slot, int row)
{
    return (char *)(p.g_state + ((rt_i64)slot * (W - 1) + row) * p.shape.columns);
}

/* Row w, by number, of those that a run finds when it begins: zeros, or the state of its slot. */
template <int W>
MPK_FN void runs_found(const runs_part<W> &p, const char *g, int w, bool zeros, float (&row)[EIGHT])
{
    constexpr mpk_view v = {0, MPK_F32};
    eight e = {};
    if (!zeros)
        e = eight_load(v, g, (rt_i64)w * p.shape.columns);
    eight_floats(MPK_F32, e, row);
}

/* The W - 1 rows before a token of this slot, of which the last `reach` are x.  zeros: all are
 * zero, because the token begins its text; or it has no slot, and its y does not depend on
 * them. */
template <int DTYPE, int W>
MPK_FN void runs_before(const runs_part<W> &p, int token, int slot, bool zeros,
                        float (&row)[W - 1][EIGHT])
{
    eight x[W - 1]; /* asked for before it is known which count */
    runs_place at[W - 1];
    int reach = 0;
#pragma unroll
    for (int i = 0; i < W - 1; i++) {
        const int k = token - (W - 1) + i;
        at[i] = runs_find(p, k);
        x[i] = runs_load<DTYPE>(p, k < 0 ? 0 : k);
    }
#pragma unroll
    for (int i = W - 2; i >= 0; i--)
        if (!zeros && runs_slot(p, at[i]) == slot) {
            reach++;
            zeros = at[i].position == 0;
        }
    const char *g = runs_state(p, slot, reach);
#pragma unroll
    for (int w = 0; w < W - 1; w++)
        if (w >= W - 1 - reach)
            eight_floats(DTYPE, x[w], row[w]);
        else
            runs_found(p, g, w, zeros, row[w]);
}

/* One token: y from its row of x and those before it, which then move on. */
template <int DTYPE, int W>
MPK_FN eight runs_take(const runs_part<W> &p, const eight &x, float (&row)[W - 1][EIGHT])
{
    float y[EIGHT], last[EIGHT];
    eight_floats(DTYPE, x, last);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < W - 1; w++)
            sum += p.weight[w][i] * row[w][i];
        sum += p.weight[W - 1][i] * last[i];
        y[i] = sum;
#pragma unroll
        for (int w = 0; w < W - 2; w++)
            row[w][i] = row[w + 1][i];
        row[W - 2][i] = last[i];
    }
    if (p.shape.silu) /* one branch for all eight, whose latencies overlap */
#pragma unroll
        for (int i = 0; i < EIGHT; i++)
            y[i] = activate_silu(y[i]);
    return eight_of(DTYPE, y);
}

/* Tokens that are under way. */
struct runs_lot {
    eight x[RUNS_LOT];
    runs_place place[RUNS_LOT];
};
/* Ask for those from `token` on: of x up to `end`, where the strip ends, of places also those after
 * it. */
template <int DTYPE, int W>
MPK_FN void runs_ask(const runs_part<W> &p, int token, int end, runs_lot &lot)
{
#pragma unroll
    for (int i = 0; i < RUNS_LOT; i++) {
        if (token + i < end)
            lot.x[i] = runs_load<DTYPE>(p, token + i);
        lot.place[i] = runs_find(p, token + i);
    }
}

/* The tokens of a strip with which runs end lie in [first, end); end is 0 if there are none. */
struct runs_ends {
    int first, end;
};

/* y of the tokens [token, end), a strip. */
template <int DTYPE, int W> MPK_FN runs_ends runs_strip(const runs_part<W> &p, int token, int end)
{
    constexpr mpk_view v = {0, DTYPE};
    runs_lot lot, next;
    runs_ends ends = {end, 0};
    float row[W - 1][EIGHT];
    runs_ask<DTYPE>(p, token, end, next);
    int slot = runs_slot(p, next.place[0]), before = slot;
    runs_before<DTYPE>(p, token, slot, slot < 0 || next.place[0].position == 0, row);
#pragma unroll 1
    for (; token < end; token += RUNS_LOT) {
        lot = next;
        if (token + RUNS_LOT <= end)
            runs_ask<DTYPE>(p, token + RUNS_LOT, end, next);
#pragma unroll
        for (int i = 0; i < RUNS_LOT; i++) {
            if (token + i >= end)
                break;
            const bool has = slot >= 0;
            if (has && slot != before) /* a run begins */
#pragma unroll
                for (int w = 0; w < W - 1; w++)
                    runs_found(p, runs_state(p, slot, 0), w, lot.place[i].position == 0, row[w]);
            eight y = runs_take<DTYPE>(p, lot.x[i], row);
#pragma unroll
            for (int k = 0; k < 4; k++)
                y.at[0].at[k] = has ? y.at[0].at[k] : 0;
            eight_store(v, p.g_y + (rt_i64)(token + i) * p.y_bytes, 0, y);
            before = slot;
            slot = runs_slot(p, i + 1 < RUNS_LOT ? lot.place[(i + 1) % RUNS_LOT] : next.place[0]);
            if (has && before != slot)
                ends = {ends.end ? ends.first : token + i, token + i + 1};
        }
    }
    return ends;
}

/* What the run leaves that ends with a token, if one does. */
template <int DTYPE, int W> MPK_FN void runs_leave(const runs_part<W> &p, int token)
{
    constexpr mpk_view v = {0, MPK_F32};
    const runs_place at = runs_find(p, token), after = runs_find(p, token + 1);
    const int slot = runs_slot(p, at);
    float row[W - 1][EIGHT];
    if (slot < 0 || slot == runs_slot(p, after))
        return;
    runs_before<DTYPE>(p, token + 1, slot, false, row);
#pragma unroll
    for (int w = 0; w < W - 1; w++)
        eight_store(v, runs_state(p, slot, w), 0, eight_of(MPK_F32, row[w]));
}

/* Eight number `e` of the task's columns. */
template <int DTYPE, int W>
MPK_FN runs_part<W> runs_part_of(const mpk_task &t, const conv_runs_shape &shape, rt_u32 e)
{
    constexpr mpk_view v = {0, DTYPE};
    const rt_i64 column = (rt_i64)mpk_lo(t, 1) + e * EIGHT, bytes = mpk_dtype_bytes(DTYPE);
    runs_part<W> p = {mpk_at<char>(t, CONV_RUNS_X) + column * bytes,
                      mpk_at<char>(t, shape.y) + column * bytes,
                      mpk_at<float>(t, CONV_RUNS_STATE) + column,
                      mpk_at<rt_i32>(t, CONV_RUNS_POSITIONS),
                      mpk_at<rt_i32>(t, CONV_RUNS_SLOTS),
                      (int)mpk_hi(t, 0),
                      shape.x_stride * mpk_dtype_bytes(DTYPE),
                      shape.y_stride * mpk_dtype_bytes(DTYPE),
                      shape};
    float weight[W][EIGHT]; /* as they lie: W of a column, then those of the next */
#pragma unroll
    for (int w = 0; w < W; w++)
        eight_floats(DTYPE,
                     eight_load(v, mpk_at<char>(t, CONV_RUNS_WEIGHT), column * W + w * EIGHT),
                     weight[w]);
#pragma unroll
    for (int i = 0; i < EIGHT * W; i++)
        p.weight[i % W][i / W] = weight[i / EIGHT][i % EIGHT];
    return p;
}

/* The body.  DTYPE: of x, weight and y, MPK_BF16 or MPK_F16; W: weights of a column. */
template <int DTYPE, int W> MPK_FN void conv_runs(const mpk_task &t, const conv_runs_shape &shape)
{
    const rt_u32 thread = (rt_u32)mpk_thread(), tokens = mpk_hi(t, 0),
                 eights = (mpk_hi(t, 1) - mpk_lo(t, 1)) / EIGHT;
    /* threads side by side, and strips one below the other; threads that are left over have none */
    const rt_u32 across = mpk_smaller(eights, MPK_THREADS), down = MPK_THREADS / across;
    const rt_u32 strip = (tokens + down - 1) / down, line = thread / across;
    const rt_u32 token = line * strip, end = mpk_smaller(token + strip, tokens);
    const rt_u32 column = thread - line * across; /* of eights */
    runs_ends ends = {0, 0};
#pragma unroll 1
    for (rt_u32 e = column; token < end && e < eights; e += across)
        ends = runs_strip<DTYPE>(runs_part_of<DTYPE, W>(t, shape, e), (int)token, (int)end);
    mpk_sync(); /* all have read the state */
#pragma unroll 1
    for (rt_u32 e = column; ends.end && e < eights; e += across)
#pragma unroll 1
        for (int k = ends.first; k < ends.end; k++)
            runs_leave<DTYPE>(runs_part_of<DTYPE, W>(t, shape, e), k);
}

#endif
