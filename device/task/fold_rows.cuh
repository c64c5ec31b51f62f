/* fold_rows.cuh - the parts of an attention of few tokens put together: attention_fold of bf16
 * parts.
 *
 * Input: part[T, splits, heads * size], the mean of the values that a split saw, and lse[T, splits,
 * heads], the logarithm of the sum of its weights, -inf where it saw nothing; both may be carried
 * (rt_lane.h); sinks[heads] in f32 or bf16, or none.  Output: y[T, heads * size].  attention_split
 * leaves such parts, attention_parts over latents (attention_latent.cuh), sdpa_split and
 * attention_cache do too.  Called by the generated switch over bodies that wait.
 *
 * A warp does one head of one token, or of larger heads a piece of 256 columns.  Lane k knows the
 * weights of splits k, k + 32 ...: there are LOTS lots of 32; a lane adds 8 columns, splits in
 * rising order.  First it is known which splits hold anything, then their parts are requested,
 * FOLD_AT_ONCE at a time: a part whose lse is -inf was never written, so it is neither read nor
 * polled.  Where many tokens share a step most have one split that does, which is the result.  The
 * order of splits is fixed, so the bits do not depend on which arrive first.  Cost: the bytes of
 * the parts that hold anything, and two waits for memory.
 */
#ifndef TASK_FOLD_ROWS_CUH
#define TASK_FOLD_ROWS_CUH

#include "shape/fold_rows_shape.h"
#include "tile/worker.cuh"

enum { FOLD_AT_ONCE = 8 }; /* parts that are requested together */

/* All lanes: what the splits of one head of one token say, once they do; lane k: splits k, k +
 * 32 ... -inf: the split holds nothing.  One that does not exist is -inf from the start, so it
 * is never waited for. */
template <int LOTS>
MPK_FN void fold_lse(const char *from, int splits, int heads, bool carried, float *e)
{
    const int lane = mpk_thread() % 32; /* a split a lane */
    rt_u32 word[LOTS], most;
#pragma unroll
    for (int i = 0; i < LOTS; i++)
        word[i] = 0xff800000u; /* -inf */
    do {
        most = 0;
#pragma unroll
        for (int i = 0; i < LOTS; i++)
            /* Words that have come are loaded again with the others: they do not change any
             * more. */
            if (i * 32 + lane < splits)
                word[i] = ptx_load_word(from + (i * 32 + lane) * heads * 4);
#pragma unroll
        for (int i = 0; i < LOTS; i++)
            most = mpk_larger(most, word[i]);
    } while (carried && __any_sync(0xffffffffu, most == RT_EMPTY) && !ptx_load_flag(&mpk_w.abort));
#pragma unroll
    for (int i = 0; i < LOTS; i++)
        e[i] = __uint_as_float(word[i]);
}

/* Poll 16 carried bytes of a part until they are written, and return them.  v: what a first load
 * has brought; where it is complete nothing is loaded.  mine: this lane uses them; the others
 * return v and do not poll. */
MPK_FN mpk_words fold_await(const char *from, bool mine, bool carried, mpk_words v)
{
    while (carried && mine && mpk_is_empty(v) && !ptx_load_flag(&mpk_w.abort))
        v = ptx_load_words(from);
    return v;
}

/* The parts of the splits of `full`, of one lot, times their weights are added to sum[8], the
 * weights to *total: one after the other, so it does not matter which lots they are of. full: bit k
 * is set if split k of the lot holds something; every loop takes its lowest bits, so splits come in
 * rising order and empty ones cost nothing. */
MPK_FN void fold_sum(const char *from, rt_u32 row_bytes, bool mine, bool carried, rt_u32 full,
                     float weight, float *total, float *sum)
{
    const mpk_words none = {0, 0, 0, 0}; /* of lanes beyond the head */
    while (full) {
        mpk_words v[FOLD_AT_ONCE]; /* in flight together */
        rt_u32 left = full;        /* splits that are requested in this round */
#pragma unroll
        for (int i = 0; i < FOLD_AT_ONCE; i++) {
            v[i] = left && mine ? ptx_load_words(from + (rt_u32)(__ffs((int)left) - 1) * row_bytes)
                                : none;
            left &= left - 1;
        }
#pragma unroll
        for (int i = 0; i < FOLD_AT_ONCE; i++) {
            const int split = __ffs((int)full) - 1;
            if (!full)
                break;
            const mpk_words part =
                fold_await(from + (rt_u32)split * row_bytes, mine, carried, v[i]);
            const float w = __shfl_sync(0xffffffffu, weight, split); /* its lane knows it */
            const rt_u32 words[4] = {part.x, part.y, part.z, part.w};
            *total += w;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                sum[2 * k] = fmaf(w, ptx_low_bf16(words[k]), sum[2 * k]);
                sum[2 * k + 1] = fmaf(w, ptx_high_bf16(words[k]), sum[2 * k + 1]);
            }
            full &= full - 1;
        }
    }
}

/* of[i], of an array in registers, which cannot be indexed by a variable: all are compared. */
template <int LOTS, typename type> MPK_FN type fold_lot(const type *of, int i)
{
    type v = of[0]; /* a chain of selections */
#pragma unroll
    for (int k = 1; k < LOTS; k++)
        v = i == k ? of[k] : v;
    return v;
}

/* The sink of a head, a lse whose part is zero; -inf: none. */
template <int SINKS> MPK_FN float fold_sink(const mpk_task &t, int head)
{
    if (SINKS == FOLD_NO_SINKS)
        return -__int_as_float(0x7f800000);
    if (SINKS == FOLD_F32_SINKS)
        return mpk_at<const float>(t, FOLD_SINKS)[head];
    return __uint_as_float((rt_u32)mpk_at<const rt_u16>(t, FOLD_SINKS)[head] << 16);
}

/* One head of one token, by a warp.  Weights are relative to the largest lse, so no exponential
 * overflows; a token that saw nothing in any split gives zeros.  A lane has columns first + lane *
 * 8 to + 7 of the head, where part and y point; lanes beyond its size only help with the weights.
 * sink: fold_sink.
 *
 * All lanes go through the same splits, whose bits are in `full`, and hand weights on by shuffles;
 * so the loop has no branch that parts them but the loads. */
template <int LOTS, int SINKS>
MPK_FN void fold_head(const mpk_task &t, const char *part, const char *lse, char *y, int splits,
                      int heads, int size, int first, float sink)
{
    const int lane = mpk_thread() % 32;
    const rt_u32 row_bytes = (rt_u32)(heads * size) * 2;
    const bool carried = mpk_carries(t, FOLD_LSE), mine = first + lane * 8 < size;
    const float none = -__int_as_float(0x7f800000);
    float e[LOTS], most = none, sum[8] = {}, total = 0;
    rt_u32 full[LOTS], n_full = 0, any = 0; /* splits that hold something; one of them */
    fold_lse<LOTS>(lse, splits, heads, carried, e);
#pragma unroll
    for (int i = 0; i < LOTS; i++) {
        full[i] = __ballot_sync(0xffffffffu, e[i] != none);
        n_full += (rt_u32)__popc(full[i]);
        any = full[i] ? (rt_u32)(i * 32 + __ffs((int)full[i]) - 1) : any;
        most = fmaxf(most, e[i]);
    }
    if (!SINKS && n_full == 1) { /* its weight is 1 */
        const char *from = part + any * row_bytes;
        if (mine)
            ptx_store_words(y, fold_await(from, mine, carried, ptx_load_words(from)));
        return;
    }
#pragma unroll
    for (int d = 16; d; d /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
    if (SINKS && sink != none) {
        most = fmaxf(most, sink);
        total = ptx_exp2((sink - most) * 1.44269504f);
    }
#pragma unroll 1
    for (int i = 0; i < LOTS; i++)
        fold_sum(part + (rt_u32)(i * 32) * row_bytes, row_bytes, mine, carried,
                 fold_lot<LOTS>(full, i), ptx_exp2((fold_lot<LOTS>(e, i) - most) * 1.44269504f),
                 &total, sum);
    total = n_full ? __fdividef(1, total) : 0;
#pragma unroll
    for (int k = 0; k < 8; k++)
        sum[k] *= total;
    if (mine)
        ptx_store_words(y, {ptx_pack_bf16(sum[0], sum[1]), ptx_pack_bf16(sum[2], sum[3]),
                            ptx_pack_bf16(sum[4], sum[5]), ptx_pack_bf16(sum[6], sum[7])});
}

/* The body; it waits and triggers itself.  splits at most LOTS * 32, size a multiple of 8.
 * mpk_wait waits for no event if the task is quiet: each warp then polls the words of its own
 * tokens and heads. */
template <int LOTS, int SINKS = FOLD_NO_SINKS>
MPK_FN void fold_rows(const mpk_task &t, int splits, int heads, int size)
{
    static_assert(LOTS * FOLD_LANES <= FOLD_MOST_SPLITS, "the host keeps to what it accepts");
    const int thread = mpk_thread(), lane = thread % 32, end = (int)mpk_end(t);
    const int pieces = (size + FOLD_PIECE - 1) / FOLD_PIECE; /* of a head */
    const int first = (int)mpk_lo(t, 1) / size * pieces,
              n_heads = (int)mpk_hi(t, 1) / size * pieces - first; /* pieces of them */
    /* the warps share out tokens and heads; no division */
    int token = (int)mpk_lo(t, 0), head = thread / 32;
    mpk_wait(t);
#pragma unroll 1
    for (; token < end; head += MPK_WARPS) {
        while (head >= n_heads) {
            head -= n_heads;
            token++;
        }
        if (token >= end)
            break;
        const int at = (first + head) / pieces, piece = (first + head) % pieces * FOLD_PIECE,
                  column = at * size + piece + lane * 8; /* the lane's first */
        fold_head<LOTS, SINKS>(
            t,
            mpk_at<const char>(t, FOLD_PART) + ((rt_u64)token * splits * heads * size + column) * 2,
            mpk_at<const char>(t, FOLD_LSE) + ((rt_u64)token * splits * heads + at) * 4,
            mpk_at<char>(t, FOLD_Y) + ((rt_u64)token * heads * size + column) * 2, splits, heads,
            size, piece, fold_sink<SINKS>(t, at));
    }
    mpk_trigger(t);
}

#endif
