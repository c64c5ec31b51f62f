/* sum_pairs.cuh - the weighted sum of the rows that a token's experts computed: bf16, 8 columns
 * of a token at a time.
 *
 * Input: x [T, of_token, columns], scale f32[T, of_token], a residual or none; output: the
 * task's box of y [T, columns].  Rows begin at multiples of 16 bytes and have a multiple of 8
 * columns (src/gen accepts no others).  The short example of a fast body (docs/gpu.md); the
 * worker waits for its event and counts it.
 *
 * A thread requests eight pairs before it adds any: with a load in flight at a time the latency
 * of L2, not its bandwidth, would set the time.  The sum, in fp32, is in the order of the pairs,
 * the residual last, as in sum_pairs_any.cuh, with fma. Cost: the bytes of x.
 */
#ifndef TASK_SUM_PAIRS_CUH
#define TASK_SUM_PAIRS_CUH

#include "ptx/ptx.cuh"
#include "tile/task.cuh"

/* Loads of 16 bytes that a thread has in flight; their words are 32 registers. */
enum { SUM_PAIRS_AHEAD = 8 };

/* Sums of eight columns. */
struct pair_sums {
    float at[8];
};

/* Add eight columns of a row times its scale.  Adding the residual with a scale of 1 gives the
 * same bits as a plain addition: fma rounds once. */
MPK_FN void sum_pairs_add(pair_sums *sums, float scale, const mpk_words &v)
{
    const rt_u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sums->at[2 * i] = fmaf(scale, ptx_low_bf16(words[i]), sums->at[2 * i]);
        sums->at[2 * i + 1] = fmaf(scale, ptx_high_bf16(words[i]), sums->at[2 * i + 1]);
    }
}

/* Eight columns from x on, of `of_token` rows that lie `columns` entries apart, by their scales.
 * Rows beyond the last are set to zero and not loaded: an array that is loaded on some paths only
 * would be alive everywhere (docs/gpu.md, "Registers"). */
MPK_FN pair_sums sum_pairs_piece(const rt_u16 *x, const float *scale, rt_u32 of_token,
                                 rt_u32 columns)
{
    pair_sums sums = {};
#pragma unroll 1
    for (rt_u32 j = 0; j < of_token; j += SUM_PAIRS_AHEAD) {
        mpk_words v[SUM_PAIRS_AHEAD];
        float share[SUM_PAIRS_AHEAD];
#pragma unroll
        for (rt_u32 k = 0; k < SUM_PAIRS_AHEAD; k++) {
            v[k] = {0, 0, 0, 0};
            ptx_load_words_if(x + (rt_u64)(j + k) * columns, j + k < of_token, &v[k]);
            share[k] = j + k < of_token ? scale[j + k] : 0;
        }
#pragma unroll
        for (rt_u32 k = 0; k < SUM_PAIRS_AHEAD; k++)
            if (j + k < of_token)
                sum_pairs_add(&sums, share[k], v[k]);
    }
    return sums;
}

/* Operands: x 0, scale 1, the residual's (-1: none) and that of y; rows of `columns`, a multiple of
 * 8. The box may begin or end within a piece of eight: the piece is computed whole and only the
 * columns of the box are stored, since its other columns are another task's. */
MPK_FN void sum_pairs(const mpk_task &t, rt_u32 of_token, rt_u32 columns, int residual, int y)
{
    const rt_u32 lo = mpk_lo(t, 1), hi = mpk_hi(t, 1), first = lo / 8,
                 pieces = (hi + 7) / 8 - first, n = (t.hi0 - mpk_lo(t, 0)) * pieces;
#pragma unroll 1
    for (rt_u32 i = (rt_u32)mpk_thread(); i < n; i += MPK_THREADS) {
        const rt_u32 token = mpk_lo(t, 0) + i / pieces, column = (first + i % pieces) * 8;
        const rt_u64 at = (rt_u64)token * columns + column;
        mpk_words r = {0, 0, 0, 0}; /* requested before the pairs, added after them */
        ptx_load_words_if(mpk_at<const rt_u16>(t, residual < 0 ? 0 : residual) + at, residual >= 0,
                          &r);
        pair_sums sums = sum_pairs_piece(
            mpk_at<const rt_u16>(t, 0) + (rt_u64)token * of_token * columns + column,
            mpk_at<const float>(t, 1) + (rt_u64)token * of_token, of_token, columns);
        if (residual >= 0)
            sum_pairs_add(&sums, 1, r);
        rt_u16 *to = mpk_at<rt_u16>(t, y) + at;
        rt_u32 words[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            words[k] = ptx_pack_bf16(sums.at[2 * k], sums.at[2 * k + 1]);
        if (column >= lo && column + 8 <= hi)
            ptx_store_words(to, {words[0], words[1], words[2], words[3]});
        else
#pragma unroll
            for (rt_u32 k = 0; k < 8; k++)
                if (column + k >= lo && column + k < hi)
                    to[k] = (rt_u16)(words[k / 2] >> k % 2 * 16);
    }
}

#endif
