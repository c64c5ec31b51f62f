/* norm_carried.cuh - norms of rows of bf16 between products of few or some tokens: rms_norm and
 * layer_norm, with a residual or without, and rms_norm_parts.
 *
 * Input: x[T, N] and of rms_norm a residual[T, N], both of which may be carried (rt_lane.h);
 * weight[N] and bias[N] in bf16 or f32, or none.  Output: y[T, N], which may be carried.  Called by
 * the generated switch over bodies that wait.  Such a norm stands after the output and the last
 * product of each layer of Gemma 2 and 3, GLM-4, EXAONE 4 and OLMo 2.  If its body did not poll, no
 * operator of the step could: the order of what it reads would go through tasks that wait for no
 * event (cuda/carriers.c).
 *
 * All MPK_THREADS threads share a row, in pieces of 8 entries as in rows_warp.cuh, and keep it in
 * registers: piece c of a thread begins at entry (256 c + thread) * 8, so that N is at most
 * ROWS_CARRIED with four pieces.  Weight and bias are constants and are requested before the wait.
 * Of a row all pieces of x and of the residual are requested before one is waited for.  A thread
 * waits for its own pieces alone; the barriers of the sums then hold all until the last has come.
 *
 * What is added up, and in which order, follows from the row's length alone, so a token has the
 * same bits in any step.  Scratch: the floats of a rows_meeting.  src/gen/body_norm_carried.c
 * chooses and prints the calls; from 257 tokens on it is rows_warp.cuh's.  Cost: one trip to L2,
 * and a barrier of all warps for each sum.
 */
#ifndef TASK_NORM_CARRIED_CUH
#define TASK_NORM_CARRIED_CUH

#include "task/rows_warp.cuh"
#include "tile/worker.cuh"

/* A vector along the rows: its operand, -1 if there is none, and its dtype. */
struct norm_vector {
    int operand, dtype;
};

/* Request this thread's pieces of such a vector of n entries.  Ordinary loads, since vectors are
 * constants; without the vector raw stays unset, and nothing reads it. */
template <int PIECES>
MPK_FN void norm_ask_vector(const mpk_task &t, const norm_vector &v, int n, rows_raw (&raw)[PIECES])
{
    if (v.operand >= 0)
        rows_ask<true, MPK_THREADS>(v.dtype, mpk_at<const char>(t, v.operand), n, 0, raw);
}

/* Request this thread's pieces of n entries of bf16 at g; pieces beyond them are 0.  Loads go to L2
 * (relaxed): L1 would answer a poll with what it held before.  They have predicates instead of
 * branches, so that all are under way at once. */
template <int PIECES> MPK_FN void norm_ask(const char *g, int n, rows_raw (&raw)[PIECES])
{
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        mpk_words v = {0, 0, 0, 0};
        ptx_load_words_if(g + rows_first<MPK_THREADS>(c) * 2, rows_first<MPK_THREADS>(c) < n, &v);
        raw[c].at[0] = {v.x, v.y, v.z, v.w};
    }
}

/* Load those again that were not yet written, until all are; what lies beyond n entries is 0, not
 * empty.  operand: that they are of.  Where it is not carried the event has ordered it (mpk_wait),
 * and the first loads have brought it. */
template <int PIECES>
MPK_FN void norm_await(const mpk_task &t, int operand, const char *g, rows_raw (&raw)[PIECES])
{
    if (!mpk_carries(t, operand))
        return;
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        mpk_words v = {raw[c].at[0].x, raw[c].at[0].y, raw[c].at[0].z, raw[c].at[0].w};
        /* Four words arrive one by one, in any order: any empty one sends for all four again. */
        while (mpk_is_empty(v) && !ptx_load_flag(&mpk_w.abort))
            v = ptx_load_words(g + rows_first<MPK_THREADS>(c) * 2);
        raw[c].at[0] = {v.x, v.y, v.z, v.w};
    }
}

/* Over all n entries: the sum, or of (entry - mean)^2.  In each thread, by a barrier of all: every
 * thread calls it equally often, or the rows_meeting would mix up two sums. */
template <int PIECES>
MPK_FN float norm_sum(const rows_raw (&raw)[PIECES], int n, bool squares, float mean,
                      rows_meeting &meeting)
{
    float sum = 0; /* of this thread's entries */
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        const bool there = rows_first<MPK_THREADS>(c) < n;
        float r[ROWS_PIECE];
        rows_floats(MPK_BF16, raw[c], r);
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i++) {
            const float away = there ? r[i] - mean : 0.0f; /* pieces beyond n are 0, not mean */
            sum += squares ? away * away : away;
        }
    }
    return rows_total_of<MPK_THREADS>(meeting, sum);
}

/* y = (entry - mean) factor weight + bias + residual, rounded once; the last three may be absent.
 * by, plus, more: the pieces of weight, bias and residual, as they were loaded.  A NaN is rounded
 * to 0x7fff, so no word that is stored is RT_EMPTY. */
template <int PIECES>
MPK_FN void norm_store(const rows_raw (&raw)[PIECES], int n, float mean, float factor,
                       const norm_vector &weight, const rows_raw (&by)[PIECES],
                       const norm_vector &bias, const rows_raw (&plus)[PIECES], bool adds,
                       const rows_raw (&more)[PIECES], char *g_y)
{
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        float r[ROWS_PIECE], w[ROWS_PIECE], b[ROWS_PIECE], s[ROWS_PIECE];
        rows_floats(MPK_BF16, raw[c], r);
        if (weight.operand >= 0)
            rows_floats(weight.dtype, by[c], w);
        if (bias.operand >= 0)
            rows_floats(bias.dtype, plus[c], b);
        if (adds)
            rows_floats(MPK_BF16, more[c], s);
#pragma unroll
        for (int i = 0; i < ROWS_PIECE; i++) {
            r[i] = (r[i] - mean) * factor;
            r[i] = weight.operand >= 0 ? r[i] * w[i] : r[i];
            r[i] = bias.operand >= 0 ? r[i] + b[i] : r[i];
            r[i] = adds ? r[i] + s[i] : r[i];
        }
        /* N is a multiple of 8, so a piece is all inside the row or all outside. */
        if (rows_first<MPK_THREADS>(c) < n)
            ptx_store_words(g_y + rows_first<MPK_THREADS>(c) * 2,
                            {ptx_pack_bf16(r[0], r[1]), ptx_pack_bf16(r[2], r[3]),
                             ptx_pack_bf16(r[4], r[5]), ptx_pack_bf16(r[6], r[7])});
    }
}

/* The body of rms_norm and of layer_norm (CENTRED); it waits and triggers itself.  n: entries of a
 * row, at most PIECES pieces for each thread; residual: its operand, -1: none; y: the result's. */
template <int PIECES, bool CENTRED>
MPK_FN void norm_carried(const mpk_task &t, int n, const norm_vector &weight,
                         const norm_vector &bias, int residual, int y, float eps)
{
    const int end = (int)mpk_end(t);
    /* once, before the wait: a division in the loop would be on the way of every token */
    const float each = 1.0f / (float)n;
    rows_raw by[PIECES], plus[PIECES];
    norm_ask_vector(t, weight, n, by);
    norm_ask_vector(t, bias, n, plus);
    mpk_wait(t);
    rows_meeting meeting = {(float *)t.s_scratch, 0};
#pragma unroll 1
    for (int token = (int)mpk_lo(t, 0); token < end; token++) {
        const rt_u64 at = (rt_u64)token * (rt_u32)n * 2; /* bytes */
        const char *g_x = mpk_at<const char>(t, 0) + at,
                   *g_more = residual >= 0 ? mpk_at<const char>(t, residual) + at : 0;
        rows_raw raw[PIECES], more[PIECES];
        float mean = 0;
        /* Both loads before either wait: the residual arrives while the squares are added. */
        norm_ask(g_x, n, raw);
        if (residual >= 0)
            norm_ask(g_more, n, more);
        norm_await(t, 0, g_x, raw);
        /* The variance is summed around the mean: a difference of squares would cancel. */
        if (CENTRED)
            mean = norm_sum(raw, n, false, 0, meeting) * each;
        const float factor = rsqrtf(norm_sum(raw, n, true, mean, meeting) * each + eps);
        if (residual >= 0)
            norm_await(t, residual, g_more, more);
        norm_store(raw, n, mean, factor, weight, by, bias, plus, residual >= 0, more,
                   mpk_at<char>(t, y) + at);
    }
    mpk_trigger(t);
}

/* The body of rms_norm_parts: two parts of each row of `columns` entries, of weight0's n0 entries
 * and of weight1's n1, normalised each by itself, and the entries after them as they are.  These
 * are q, k and v of OLMo.  P0, P1 and REST: pieces of each for every thread, each at least 1.
 * Inputs are 0 to 2, the result is operand 3.  All of a row is requested together. */
template <int P0, int P1, int REST>
MPK_FN void norm_parts_carried(const mpk_task &t, int columns, int n0, int n1,
                               const norm_vector &weight0, const norm_vector &weight1, float eps)
{
    const norm_vector nothing = {-1, 0};
    const int end = (int)mpk_end(t), n2 = columns - n0 - n1;
    const float each0 = 1.0f / (float)n0, each1 = 1.0f / (float)n1;
    rows_raw by0[P0], by1[P1];
    norm_ask_vector(t, weight0, n0, by0);
    norm_ask_vector(t, weight1, n1, by1);
    mpk_wait(t);
    rows_meeting meeting = {(float *)t.s_scratch, 0};
#pragma unroll 1
    for (int token = (int)mpk_lo(t, 0); token < end; token++) {
        const rt_u64 at = (rt_u64)token * (rt_u32)columns * 2; /* bytes */
        const char *g_0 = mpk_at<const char>(t, 0) + at, *g_1 = g_0 + n0 * 2, *g_2 = g_1 + n1 * 2;
        char *g_y = mpk_at<char>(t, 3) + at;
        rows_raw raw0[P0], raw1[P1], raw2[REST];
        norm_ask(g_0, n0, raw0);
        norm_ask(g_1, n1, raw1);
        norm_ask(g_2, n2, raw2);
        norm_await(t, 0, g_0, raw0);
        norm_await(t, 0, g_1, raw1);
        const float factor0 = rsqrtf(norm_sum(raw0, n0, true, 0, meeting) * each0 + eps),
                    factor1 = rsqrtf(norm_sum(raw1, n1, true, 0, meeting) * each1 + eps);
        norm_store(raw0, n0, 0, factor0, weight0, by0, nothing, by0, false, raw0, g_y);
        norm_store(raw1, n1, 0, factor1, weight1, by1, nothing, by1, false, raw1, g_y + n0 * 2);
        /* Last, since no sum needs it.  Words are stored as they came, and none of them is
         * empty. */
        norm_await(t, 0, g_2, raw2);
#pragma unroll
        for (int c = 0; c < REST; c++)
            if (rows_first<MPK_THREADS>(c) < n2)
                ptx_store_words(
                    g_y + (n0 + n1) * 2 + rows_first<MPK_THREADS>(c) * 2,
                    {raw2[c].at[0].x, raw2[c].at[0].y, raw2[c].at[0].z, raw2[c].at[0].w});
    }
    mpk_trigger(t);
}

#endif
