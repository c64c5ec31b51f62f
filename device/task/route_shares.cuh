/* route_shares.cuh - the experts of tokens where they are chosen by more than the order of logits:
 * route with sigmoids, biases, groups or a factor (DeepSeek, GLM-4.5), a warp for each token.
 *
 * Input: logits [T, experts] of bf16 or f32, which may be carried (rt_lane.h), and a bias of each
 * expert or none; output: ids and weights [T, of_token], which may be carried too.  Called by the
 * generated switch over bodies that wait.
 *
 * A lane has the experts that it has in route_warp.cuh.  What an expert is chosen by becomes a key
 * that compares as it does; the next expert is found by two reductions over the warp, the largest
 * key and of equal ones the lowest id.  With groups:
 *
 *   rate of a group     its largest choice, or the sum of its two largest; lane g has group g's
 *   open groups         those that fewer than `kept` exceed, as a ballot; the keys of the others
 *                       become 0, which stands for an expert that has been taken
 *
 * Sums are over lanes, in an order that the number of experts decides. Cost: two reductions and E /
 * 32 comparisons for each expert that is chosen and for each of a group's best.
 */
#ifndef TASK_ROUTE_SHARES_CUH
#define TASK_ROUTE_SHARES_CUH

#include "task/route_warp.cuh"

enum { ROUTE_BIAS = 1 };

/* A use of the body, a constant of the instance; the words are those of src/op/route.c.
 *
 *    of_token     experts that a token gets, 64 at most
 *    normalize    weights are divided by the sum of the chosen shares
 *    round        weights are rounded to bf16, if the logits are
 *    sigmoid      a share is 1 / (1 + e^-logit), else its part of the softmax
 *    groups       of neighbours, 32 at most; kept: from how many are experts chosen; best: whose
 *                 shares are a group's rate, 1 or 2
 *    factor       of all weights */
struct route_rules {
    int experts, of_token;
    bool normalize, round, sigmoid;
    int bias; /* 0: none; bits: 16 or 32 */
    int groups, kept, best;
    float factor;
};

/* The sum over all lanes, in each of them, in one order. */
MPK_FN float route_add(float x)
{
#pragma unroll
    for (int d = 16; d; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* All lanes: the largest key of those that are not 0, of equal keys that of the lowest id; its
 * expert in *id.  Key and id do not fit one word of 32 bits, of which a reduction takes one: hence
 * two reductions. */
template <int LOGITS, bool IS_BF16>
MPK_FN rt_u32 route_best(const rt_u32 *key, int lane, rt_u32 *id)
{
    rt_u32 best = 0, lowest = 0xffffffffu;
#pragma unroll
    for (int i = 0; i < LOGITS; i++)
        best = mpk_larger(best, key[i]);
    best = __reduce_max_sync(0xffffffffu, best);
#pragma unroll
    for (int i = 0; i < LOGITS; i++)
        lowest = key[i] == best ? mpk_smaller(lowest, (rt_u32)route_id<IS_BF16>(i, lane)) : lowest;
    *id = __reduce_min_sync(0xffffffffu, lowest);
    return best;
}

/* What experts have in common of a token: the largest logit, and 1 / the sum of exponentials; not
 * read with sigmoids.  With the largest taken off, no exponential is infinite. */
struct route_row_facts {
    float largest, inverse;
};

/* An expert's share, by its logit: what its weight is made of, and, with the bias, what it is
 * chosen by where there is one. */
MPK_FN float route_share_of(const route_rules &u, const route_row_facts &r, float logit)
{
    return u.sigmoid ? __fdividef(1, 1 + route_exp(-logit))
                     : route_exp(logit - r.largest) * r.inverse;
}

/* A NaN is in the sum of all, as in route_warp, and so in all weights; the largest is found by
 * keys, among which NaN is 0. */
template <int LOGITS, bool IS_BF16>
MPK_FN route_row_facts route_facts(const route_rules &u, const rt_u32 *word, int lane)
{
    rt_u32 key = 0; /* of the largest logit */
    float sum = 0;
    if (u.sigmoid)
        return {0, 0};
#pragma unroll
    for (int i = 0; i < LOGITS; i++)
        if (route_id<IS_BF16>(i, lane) < u.experts)
            key = mpk_larger(key, mpk_key(route_logit<IS_BF16>(word, i)));
    const float largest = mpk_from_key(__reduce_max_sync(0xffffffffu, key));
#pragma unroll
    for (int i = 0; i < LOGITS; i++)
        if (route_id<IS_BF16>(i, lane) < u.experts)
            sum += route_exp(route_logit<IS_BF16>(word, i) - largest);
    return {largest, __fdividef(1, route_add(sum))};
}

/* The lane's keys, of what experts are chosen by: logits, or, where more than their order counts,
 * shares and biases.  By logits alone the choice depends on no target's exp.  Keys of experts are
 * ROUTE_NAN at least, of places beyond the experts 0. */
template <int LOGITS, bool IS_BF16>
MPK_FN void route_choices(const route_rules &u, const route_row_facts &r, const rt_u32 *word,
                          const float *bias, int lane, rt_u32 *key)
{
#pragma unroll
    for (int i = 0; i < LOGITS; i++) {
        float x = route_logit<IS_BF16>(word, i);
        if (u.bias || u.best > 1)
            x = route_share_of(u, r, x) + bias[i];
        key[i] =
            route_id<IS_BF16>(i, lane) < u.experts ? mpk_larger(mpk_key(x), (rt_u32)ROUTE_NAN) : 0;
    }
}

/* The key of a group's rate, in all lanes.  The key of a NaN stands for a NaN, so a rate with one
 * is the lowest. */
template <int LOGITS, bool IS_BF16>
MPK_FN rt_u32 route_rate_of(const route_rules &u, const rt_u32 *key, int group, int lane)
{
    rt_u32 own[LOGITS], id; /* keys of the group alone */
    const int size = u.experts / u.groups;
#pragma unroll
    for (int i = 0; i < LOGITS; i++)
        own[i] = route_id<IS_BF16>(i, lane) / size == group ? key[i] : 0;
    const rt_u32 first = route_best<LOGITS, IS_BF16>(own, lane, &id);
    if (u.best == 1)
        return first;
#pragma unroll
    for (int i = 0; i < LOGITS; i++)
        own[i] = (rt_u32)route_id<IS_BF16>(i, lane) == id ? 0 : own[i];
    const rt_u32 second = route_best<LOGITS, IS_BF16>(own, lane, &id);
    return mpk_larger(mpk_key(mpk_from_key(first) + mpk_from_key(second)), (rt_u32)ROUTE_NAN);
}

/* The keys of experts whose groups are not among the best become 0.  Of groups with equal rates the
 * one of lower number counts as better. */
template <int LOGITS, bool IS_BF16>
MPK_FN void route_keep(const route_rules &u, int lane, rt_u32 *key)
{
    rt_u32 rate = 0; /* of the group whose number is the lane's */
    int above = 0;
#pragma unroll 1
    for (int g = 0; g < u.groups; g++) {
        const rt_u32 of_group = route_rate_of<LOGITS, IS_BF16>(u, key, g, lane);
        rate = g == lane ? of_group : rate;
    }
#pragma unroll 1
    for (int g = 0; g < u.groups; g++) {
        /* how many groups stand before this lane's */
        const rt_u32 other = __shfl_sync(0xffffffffu, rate, g);
        above += other > rate || (other == rate && g < lane);
    }
    const rt_u32 open = __ballot_sync(0xffffffffu, lane < u.groups && above < u.kept);
#pragma unroll
    for (int i = 0; i < LOGITS; i++) {
        const int id = route_id<IS_BF16>(i, lane);
        if (id < u.experts && !(open >> id / (u.experts / u.groups) & 1))
            key[i] = 0;
    }
}

/* Choose the next expert: its id, and its logit in all lanes.  Its key becomes 0. */
template <int LOGITS, bool IS_BF16>
MPK_FN float route_choose(const rt_u32 *word, rt_u32 *key, int lane, rt_u32 *id)
{
    float logit = 0; /* in the lane that has the expert */
    route_best<LOGITS, IS_BF16>(key, lane, id);
#pragma unroll
    for (int i = 0; i < LOGITS; i++)
        if ((rt_u32)route_id<IS_BF16>(i, lane) == *id) {
            logit = route_logit<IS_BF16>(word, i);
            key[i] = 0;
        }
    /* route_id the other way round: the lane that has the expert */
    return __shfl_sync(0xffffffffu, logit, (int)(IS_BF16 ? *id / 2 : *id) % 32);
}

/* Store the token's weights; share: of the lane's two places, 0 beyond the last.  No word of them
 * is RT_EMPTY, which readers poll for. */
template <bool IS_BF16>
MPK_FN void route_put_weights(const route_rules &u, const float *share, int lane, char *weights)
{
    const float chosen = route_add(share[0] + share[1]) + 1e-20f; /* sigmoids may all be 0 */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float weight = (u.normalize ? __fdividef(share[h], chosen) : share[h]) * u.factor;
        const rt_u32 bits =
            IS_BF16 && u.round ? ptx_pack_bf16(0, weight) & 0xffff0000u : __float_as_uint(weight);
        if (h * 32 + lane < u.of_token)
            ptx_store_word(weights + (h * 32 + lane) * 4, mpk_smaller(bits, RT_EMPTY - 1));
    }
}

/* One token, by a warp: a row of logits -> its ids and weights.  The weights need all shares of the
 * chosen experts, so they come last; until then lane j keeps the share of the token's expert j, and
 * of j + 32. */
template <int WORDS, bool IS_BF16>
MPK_FN void route_by_shares(const route_rules &u, const char *logits, const float *bias, char *ids,
                            char *weights, bool carried)
{
    enum { LOGITS = WORDS * (IS_BF16 ? 2 : 1) };
    const int lane = mpk_thread() % 32;
    rt_u32 word[WORDS], key[LOGITS], id;
    float share[2] = {};
    route_await<WORDS>(logits, IS_BF16 ? u.experts / 2 : u.experts, lane, carried, word);
    const route_row_facts r = route_facts<LOGITS, IS_BF16>(u, word, lane);
    route_choices<LOGITS, IS_BF16>(u, r, word, bias, lane, key);
    if (u.groups > 1)
        route_keep<LOGITS, IS_BF16>(u, lane, key);
#pragma unroll 1
    for (int j = 0; j < u.of_token; j++) {
        const float x = route_choose<LOGITS, IS_BF16>(word, key, lane, &id);
        /* At once: the loader of the experts' products polls the ids. */
        if (lane == 0)
            ptx_store_word(ids + j * 4, id);
        share[0] = j == lane ? route_share_of(u, r, x) : share[0];
        share[1] = j == lane + 32 ? route_share_of(u, r, x) : share[1];
    }
    route_put_weights<IS_BF16>(u, share, lane, weights);
}

/* The body; it waits and triggers itself.  WORDS: of a row, for each lane.  Warps take tokens in
 * turn and never meet; there is no scratch.  Biases are constants, so they are loaded before the
 * wait, once for all of the warp's tokens. */
template <int WORDS, bool IS_BF16> MPK_FN void route_shares(const mpk_task &t, const route_rules &u)
{
    enum { LOGITS = WORDS * (IS_BF16 ? 2 : 1) };
    const int end = (int)mpk_end(t), row_bytes = u.experts * (IS_BF16 ? 2 : 4), /* of logits */
        lane = mpk_thread() % 32;
    int token = (int)mpk_lo(t, 0) + mpk_thread() / 32;
    float bias[LOGITS];
#pragma unroll
    for (int i = 0; i < LOGITS; i++) {
        const int id = route_id<IS_BF16>(i, lane);
        bias[i] = 0;
        if (u.bias == 32 && id < u.experts)
            bias[i] = mpk_at<const float>(t, ROUTE_BIAS)[id];
        if (u.bias == 16 && id < u.experts)
            bias[i] = ptx_low_bf16(mpk_at<const rt_u16>(t, ROUTE_BIAS)[id]);
    }
    mpk_wait(t);
#pragma unroll 1
    for (; token < end; token += MPK_WARPS)
        route_by_shares<WORDS, IS_BF16>(u, mpk_at<const char>(t, ROUTE_LOGITS) + token * row_bytes,
                                        bias, mpk_at<char>(t, ROUTE_IDS) + token * u.of_token * 4,
                                        mpk_at<char>(t, ROUTE_WEIGHTS) + token * u.of_token * 4,
                                        mpk_carries(t, ROUTE_LOGITS));
    mpk_trigger(t);
}

#endif
