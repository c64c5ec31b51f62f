/* route_warp.cuh - the experts of tokens: route of bf16 or f32 logits, a warp for each token.
 *
 * Input: logits [T, experts], which may be carried (rt_lane.h); output: ids and weights [T,
 * of_token], which may be carried too: no word of them is RT_EMPTY.  Called by the generated
 * switch over bodies that wait.
 *
 * A lane has every 32nd word of a token's logits in registers, and of each logit a key that
 * compares as it does.  The low half of a bf16's key tells the expert, so one reduction over the
 * warp finds the next one; f32 takes two:
 *
 *   key of a bf16     logit, as an integer that compares alike (16 bits) | 0xffff - expert
 *   key of an f32     logit, as an integer that compares alike (32 bits)
 *
 * An id is stored as soon as it is known: the experts' products wait for it.  Then exponentials
 * are summed, in the same order whatever the step has, and weights are stored. Cost: a reduction
 * and E / 32 comparisons for each expert that is chosen.
 */
#ifndef TASK_ROUTE_WARP_CUH
#define TASK_ROUTE_WARP_CUH

#include "tile/view.cuh"
#include "tile/worker.cuh"

/* Operands, of which the second, a bias, is absent; the key of NaN: below those of numbers, above
 * 0, which stands for an expert that has been taken. */
enum { ROUTE_LOGITS, ROUTE_IDS = 2, ROUTE_WEIGHTS, ROUTE_NAN = 0x10000 };

/* Logit `i` of this lane's; route_id says which expert's it is.  A word of bf16 holds two
 * neighbours, so lane l has experts 2 l, 2 l + 1, 64 + 2 l, ... */
template <bool IS_BF16> MPK_FN float route_logit(const rt_u32 *word, int i)
{
    if (!IS_BF16)
        return __uint_as_float(word[i]);
    return i % 2 ? ptx_high_bf16(word[i / 2]) : ptx_low_bf16(word[i / 2]);
}
template <bool IS_BF16> MPK_FN int route_id(int i, int lane)
{
    return IS_BF16 ? (i / 2 * 32 + lane) * 2 + i % 2 : i * 32 + lane;
}

/* The logit that a key stands for. The low half of a bf16's key, which held the expert, is masked
 * out. */
template <bool IS_BF16> MPK_FN float route_value(rt_u32 key)
{
    return __uint_as_float(__float_as_uint(mpk_from_key(key)) &
                           (IS_BF16 ? 0xffff0000u : 0xffffffffu));
}

/* This lane's words of a row, once they are there; what lies beyond the row is 0.  A lane asks
 * again only for words that have not come. */
template <int WORDS>
MPK_FN void route_await(const char *from, int n_words, int lane, bool carried, rt_u32 *word)
{
    rt_u32 most; /* RT_EMPTY as long as a word is missing */
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        word[i] = i * 32 + lane < n_words ? RT_EMPTY : 0;
    do {
        most = 0;
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            if (word[i] == RT_EMPTY)
                word[i] = ptx_load_word(from + (i * 32 + lane) * 4);
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            most = mpk_larger(most, word[i]);
    } while (carried && __any_sync(0xffffffffu, most == RT_EMPTY) && !ptx_load_flag(&mpk_w.abort));
}

/* The lane's keys.  Those of lanes beyond the experts are 0, below every key; NaN has a key
 * above that and below all numbers, so it is chosen last. */
template <int LOGITS, bool IS_BF16>
MPK_FN void route_keys(const rt_u32 *word, int experts, int lane, rt_u32 *key)
{
#pragma unroll
    for (int i = 0; i < LOGITS; i++) {
        const int id = route_id<IS_BF16>(i, lane); /* the expert */
        const rt_u32 k = mpk_larger(mpk_key(route_logit<IS_BF16>(word, i)), ROUTE_NAN);
        key[i] = id >= experts ? 0 : IS_BF16 ? (k & 0xffff0000u) | (0xffffu - (rt_u32)id) : k;
    }
}

/* All lanes: the largest key of the warp, of equal logits that of the lowest id; its expert in
 * *id, in all lanes.  The lane that holds it sets it to 0, so it is not found again. */
template <int LOGITS, bool IS_BF16> MPK_FN rt_u32 route_take(rt_u32 *key, int lane, rt_u32 *id)
{
    rt_u32 best = 0, lowest = 0xffffffffu; /* key; of equal f32 logits the lowest id */
#pragma unroll
    for (int i = 0; i < LOGITS; i++)
        best = mpk_larger(best, key[i]);
    best = __reduce_max_sync(0xffffffffu, best);
#pragma unroll
    for (int i = 0; i < LOGITS && !IS_BF16; i++)
        lowest = key[i] == best ? mpk_smaller(lowest, (rt_u32)route_id<IS_BF16>(i, lane)) : lowest;
    *id = IS_BF16 ? 0xffffu - (best & 0xffffu) : __reduce_min_sync(0xffffffffu, lowest);
#pragma unroll
    for (int i = 0; i < LOGITS; i++)
        key[i] = (rt_u32)route_id<IS_BF16>(i, lane) == *id ? 0 : key[i];
    return best;
}

/* e^x by the hardware's exp2. */
MPK_FN float route_exp(float x)
{
    return ptx_exp2(x * 1.44269504f);
}

/* Weights of a token from all its logits and those of its experts: of expert `lane` and of the one
 * 32 places on.  A NaN anywhere is in the sum of all, and so in all weights.  own: the logits that
 * this lane's two places got.  A weight with the bits of RT_EMPTY, which is a NaN, is stored as the
 * NaN before it, since readers poll for RT_EMPTY. */
template <int LOGITS, bool IS_BF16>
MPK_FN void route_weigh(const rt_u32 *word, int experts, int of_token, bool normalize, bool round,
                        int lane, float largest, const float *own, char *weights)
{
    float share[2], sum = 0, chosen = 0; /* of two places; over all; over the chosen */
#pragma unroll
    for (int i = 0; i < LOGITS; i++)
        if (route_id<IS_BF16>(i, lane) < experts)
            sum += route_exp(route_logit<IS_BF16>(word, i) - largest);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        share[h] = h * 32 + lane < of_token ? route_exp(own[h] - largest) : 0;
        chosen += share[h];
    }
#pragma unroll
    for (int d = 16; d; d /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
        chosen += __shfl_xor_sync(0xffffffffu, chosen, d);
    }
    const float total = normalize && sum == sum ? chosen : sum; /* a NaN shows in all weights */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float weight = __fdividef(share[h], total);
        const rt_u32 bits =
            IS_BF16 && round ? ptx_pack_bf16(0, weight) & 0xffff0000u : __float_as_uint(weight);
        if (h * 32 + lane < of_token)
            ptx_store_word(weights + (h * 32 + lane) * 4, mpk_smaller(bits, RT_EMPTY - 1));
    }
}

/* One token, by a warp: a row of logits -> its ids and weights.  own: the logits of the experts
 * that this lane divides, number `lane` and number `lane` + 32 of the token's. */
template <int WORDS, bool IS_BF16>
MPK_FN void route_row(const char *logits, char *ids, char *weights, int experts, int of_token,
                      bool normalize, bool round, bool carried)
{
    enum { LOGITS = WORDS * (IS_BF16 ? 2 : 1) };
    const int lane = mpk_thread() % 32;
    rt_u32 word[WORDS], key[LOGITS], id; /* a row of logits, 32nd parts */
    float own[2] = {}, largest = 0;      /* logits of the lane's two places; of the row */
    route_await<WORDS>(logits, IS_BF16 ? experts / 2 : experts, lane, carried, word);
    route_keys<LOGITS, IS_BF16>(word, experts, lane, key);
#pragma unroll 1
    for (int j = 0; j < of_token; j++) {
        const float x = route_value<IS_BF16>(route_take<LOGITS, IS_BF16>(key, lane, &id));
        if (lane == 0)
            ptx_store_word(ids + j * 4, id);
        largest = j ? largest : x;
        own[0] = j == lane ? x : own[0];
        own[1] = j == lane + 32 ? x : own[1];
    }
    route_weigh<LOGITS, IS_BF16>(word, experts, of_token, normalize, round, lane, largest, own,
                                 weights);
}

/* The body; it waits and triggers itself.  WORDS: of a row, for each lane; bf16: an even number
 * of experts; of_token at most 64, two for each lane. */
template <int WORDS, bool IS_BF16>
MPK_FN void route_warp(const mpk_task &t, int experts, int of_token, bool normalize, bool round)
{
    const int end = (int)mpk_end(t), row_bytes = experts * (IS_BF16 ? 2 : 4); /* of logits */
    int token = (int)mpk_lo(t, 0) + mpk_thread() / 32;
    mpk_wait(t);
#pragma unroll 1
    for (; token < end; token += MPK_WARPS)
        route_row<WORDS, IS_BF16>(mpk_at<const char>(t, ROUTE_LOGITS) + token * row_bytes,
                                  mpk_at<char>(t, ROUTE_IDS) + token * of_token * 4,
                                  mpk_at<char>(t, ROUTE_WEIGHTS) + token * of_token * 4, experts,
                                  of_token, normalize, round, mpk_carries(t, ROUTE_LOGITS));
    mpk_trigger(t);
}

#endif
