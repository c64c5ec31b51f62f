/* sum_rows.cuh - add_parts of bf16 by rows: 8 columns of all parts at a time, added in fp32 in the
 * order of the parts.
 *
 * Parts are carried to where they are added (docs/gpus.md), or lie in other GPUs' memory.  A thread
 * asks for all parts of its piece before it waits for one or adds any, so that a sum takes one trip
 * to L2, or over the link.  Cost: the bytes of the parts.
 */
#ifndef TASK_SUM_ROWS_CUH
#define TASK_SUM_ROWS_CUH

#include "tile/worker.cuh"

/* The sum of one word of each part, two elements: in fp32, in the order of the parts, rounded
 * once. */
template <int N> MPK_FN rt_u32 sum_word(const rt_u32 *words)
{
    float low = ptx_low_bf16(words[0]), high = ptx_high_bf16(words[0]); /* part 0's */
#pragma unroll
    for (int k = 1; k < N; k++) {
        low += ptx_low_bf16(words[k]);
        high += ptx_high_bf16(words[k]);
    }
    return ptx_pack_bf16(low, high);
}

/* The 8 columns at `at`, an offset in elements, of each part: all loads are issued, then each
 * part is loaded again until none of its words is empty. */
template <int N> MPK_FN void sum_bring(const mpk_task &t, rt_u64 at, mpk_words *v)
{
#pragma unroll
    for (int k = 0; k < N; k++)
        v[k] = mpk_load_terms(mpk_at<const rt_u16>(t, k) + at);
#pragma unroll
    for (int k = 0; k < N; k++)
        if (mpk_carries(t, k))
            while (mpk_is_empty(v[k]) && !ptx_load_flag(&mpk_w.abort))
                v[k] = mpk_load_terms(mpk_at<const rt_u16>(t, k) + at);
}

/* Add and store 8 columns.  Words are turned into arrays by place, x of all parts and so on, so
 * that all indices are constants and the parts stay in registers. */
template <int N> MPK_FN void sum_piece(const mpk_task &t, rt_u64 at)
{
    mpk_words v[N], sum;
    sum_bring<N>(t, at, v);
    rt_u32 x[N], y[N], z[N], w[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        x[k] = v[k].x;
        y[k] = v[k].y;
        z[k] = v[k].z;
        w[k] = v[k].w;
    }
    sum.x = sum_word<N>(x);
    sum.y = sum_word<N>(y);
    sum.z = sum_word<N>(z);
    sum.w = sum_word<N>(w);
    ptx_store_words(mpk_at<rt_u16>(t, N) + at, sum);
}

/* N parts, inputs 0 to N - 1, of rows of `columns`, a multiple of 8 as the bounds of all boxes; the
 * result is operand N. */
template <int N> MPK_FN void sum_rows(const mpk_task &t, rt_u32 columns)
{
    mpk_wait(t);
    const rt_u32 end = mpk_end(t), lo = mpk_lo(t, 1), pieces = (mpk_hi(t, 1) - lo) / 8;
    const rt_u32 n = (end - mpk_lo(t, 0)) * pieces; /* pieces of the box */
#pragma unroll 1
    for (rt_u32 i = (rt_u32)mpk_thread(); i < n; i += MPK_THREADS)
        sum_piece<N>(t, (rt_u64)(mpk_lo(t, 0) + i / pieces) * columns + lo + i % pieces * 8);
    mpk_trigger(t);
}

#endif
