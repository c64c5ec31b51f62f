/* fold_rows.cuh - the parts of an attention of few tokens put together: attention_fold of bf16 parts.
 *
 * A warp does one head of one token.  Lane k knows the weight of split k; a lane adds 8 columns, splits in rising
 * order.  Parts are asked for before it is known which splits hold anything: of those that do not, the tasks have
 * mostly said so before (attention_split_stream.cuh); if not, those that do are asked for again.  Parts and lse may be
 * carried (rt_lane.h).  Cost: the bytes of the parts that hold anything, a wait for memory for each FOLD_AT_ONCE.
 */
#ifndef TASK_FOLD_ROWS_CUH
#define TASK_FOLD_ROWS_CUH

#include "tile/worker.cuh"

enum { FOLD_PART, FOLD_LSE, FOLD_Y, FOLD_AT_ONCE = 8 };

/* What the splits of one head of one token say; lane k: split k.  -inf: it holds nothing. */
MPK_FN float fold_ask_lse(const char *from, int splits, int heads)
{
    const int lane = mpk_thread() % 32;
    return lane < splits ? __uint_as_float(ptx_load_word(from + lane * heads * 4)) : -__int_as_float(0x7f800000);
}

/* The next splits of `left`, at most FOLD_AT_ONCE: their 8 columns.  The splits that remain. */
MPK_FN rt_u32 fold_ask_parts(const char *from, rt_u32 row_bytes, bool mine, rt_u32 left, mpk_words *v)
{
    const mpk_words none = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < FOLD_AT_ONCE; i++) {
        v[i] = left && mine ? ptx_load_words(from + (rt_u32)(__ffs((int)left) - 1) * row_bytes) : none;
        left &= left - 1;
    }
    return left;
}

/* Until those of the splits that were asked for which hold anything are there: what is missing is asked for at once. */
MPK_FN void fold_await_parts(const char *from, rt_u32 row_bytes, bool mine, rt_u32 asked, rt_u32 full, mpk_words *v)
{
    bool missing = mine;
    while (__any_sync(0xffffffffu, missing) && !ptx_load_flag(&mpk_w.abort)) {
        rt_u32 left = asked;
        missing = false;
#pragma unroll
        for (int i = 0; i < FOLD_AT_ONCE; i++) {
            const int split = left ? __ffs((int)left) - 1 : 0;
            if (left && full >> split & 1 && mine && mpk_is_empty(v[i])) {
                v[i] = ptx_load_words(from + (rt_u32)split * row_bytes);
                missing = true;
            }
            left &= left - 1;
        }
    }
}

MPK_FN void fold_head(const mpk_task &t, const char *part, const char *lse, char *y, int splits, int heads, int size)
{
    const int lane = mpk_thread() % 32;
    const rt_u32 row_bytes = (rt_u32)(heads * size) * 2;
    const bool carried = mpk_carries(t, FOLD_LSE), mine = lane * 8 < size;
    const float none = -__int_as_float(0x7f800000);
    mpk_words v[FOLD_AT_ONCE];
    float e = fold_ask_lse(lse, splits, heads), sum[8];
    rt_u32 asked = __ballot_sync(0xffffffffu, e != none), left = fold_ask_parts(part, row_bytes, mine, asked, v);
    while (carried && __any_sync(0xffffffffu, __float_as_uint(e) == RT_EMPTY) && !ptx_load_flag(&mpk_w.abort))
        e = fold_ask_lse(lse, splits, heads);
    const rt_u32 full = __ballot_sync(0xffffffffu, e != none);
    if (full != asked)
        left = fold_ask_parts(part, row_bytes, mine, asked = full, v);
    float most = e, total = 0;
#pragma unroll
    for (int d = 16; d; d /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
    e = full >> lane & 1 ? ptx_exp2((e - most) * 1.44269504f) : 0;
#pragma unroll
    for (int k = 0; k < 8; k++)
        sum[k] = 0;
    for (;;) {
        if (carried)
            fold_await_parts(part, row_bytes, mine, asked, full, v);
#pragma unroll
        for (int i = 0; i < FOLD_AT_ONCE; i++) {
            const int split = asked ? __ffs((int)asked) - 1 : 0;
            const float weight = __shfl_sync(0xffffffffu, e, split);
            if (asked && full >> split & 1) {
                total += weight; /* in rising order too: which splits hold the parts does not matter */
                const rt_u32 words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    sum[2 * k] = fmaf(weight, ptx_low_bf16(words[k]), sum[2 * k]);
                    sum[2 * k + 1] = fmaf(weight, ptx_high_bf16(words[k]), sum[2 * k + 1]);
                }
            }
            asked &= asked - 1;
        }
        if (!left)
            break;
        asked = left;
        left = fold_ask_parts(part, row_bytes, mine, left, v);
    }
    total = full ? __fdividef(1, total) : 0;
#pragma unroll
    for (int k = 0; k < 8; k++)
        sum[k] *= total;
    if (mine)
        ptx_store_words(y, {ptx_pack_bf16(sum[0], sum[1]), ptx_pack_bf16(sum[2], sum[3]), ptx_pack_bf16(sum[4], sum[5]),
                            ptx_pack_bf16(sum[6], sum[7])});
}

/* part bf16[T, splits, heads * size], lse f32[T, splits, heads] -> y bf16[T, heads * size]; splits at most 32, size a
 * multiple of 8 and at most 256. */
MPK_FN void fold_rows(const mpk_task &t, int splits, int heads, int size)
{
    const int lane = mpk_thread() % 32, head0 = (int)mpk_lo(t, 1) / size, n_heads = (int)mpk_hi(t, 1) / size - head0;
    const int token0 = (int)mpk_lo(t, 0), items = ((int)mpk_hi(t, 0) - token0) * n_heads;
    mpk_wait(t);
#pragma unroll 1
    for (int i = mpk_thread() / 32; i < items; i += MPK_WARPS) {
        const int token = token0 + i / n_heads, head = head0 + i % n_heads, column = head * size + lane * 8;
        fold_head(t, mpk_at<const char>(t, FOLD_PART) + ((rt_u64)token * splits * heads * size + column) * 2,
                  mpk_at<const char>(t, FOLD_LSE) + ((rt_u64)token * splits * heads + head) * 4,
                  mpk_at<char>(t, FOLD_Y) + ((rt_u64)token * heads * size + column) * 2, splits, heads, size);
    }
    mpk_trigger(t);
}

#endif
