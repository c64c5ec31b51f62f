/* attention_cache.cuh - attention of a few tokens over keys and values in one piece, for any shape:
 * sdpa_split and attention_cache (see src/op for the division of work).
 *
 * All threads compute one query head of one token together, 64 positions at a time: first each
 * thread computes the scores of whole positions, then each adds up the values of some entries of
 * the head.  A key of the step is rotated by the thread that needs it.  Cost: 4 K flops and 2 K
 * elements of cache for each position, token and head.  Several splits share a context by blocks:
 * split s has blocks s, s + splits, ...  It writes the mean of the values that it saw and the
 * logarithm of the sum of its weights; attention_fold combines the splits.
 *
 * Keys and values of the step's own tokens are taken from qkv, never from the cache, since another
 * task may be about to write them there.  The cache itself is filled at the end, by the tasks of
 * the last split alone: so each entry has one writer, and no task of this step reads what it
 * writes.
 */
#ifndef TASK_ATTENTION_CACHE_CUH
#define TASK_ATTENTION_CACHE_CUH

#include "tile/view.cuh"

/* Positions of a block: what a split takes at a time, and what threads keep weights of in
 * scratch. */
enum { CACHE_UNIT = 64 };

/* The operands, as the generated instance fills them in.
 *
 *   qkv       [B, heads, T, K]: queries first, then keys and values of the step if there are any
 *   caches    [B, kv_heads, L, K]
 *   index     [T] positions that the step's keys and values take; absent if there are none (but it
 *             has T entries even then)
 *   mask      broadcast to [B, heads, T, L]; cosine, sine: to [B, T, entries that are rotated]
 *   norms     [K], of queries and of keys
 *   part, lse the results, for each token and split
 */
struct cache_operands {
    mpk_view qkv, k_cache, v_cache, index, mask, cosine, sine, q_norm, k_norm, part, lse;
};
/* heads and kv_heads: of the query and of the cache, the first a multiple of the second; size:
 * entries of a head (K). */
struct cache_how {
    rt_i64 heads, kv_heads, size, splits;
    float scale;
    double eps;
};

/* A row of qkv that is to be normalised and rotated: offsets, in elements, of its first entry and
 * of its angles, and the factor of its norm (1 without one). */
struct cache_row {
    rt_i64 from, cosine, sine;
    float factor;
};

/* Offset in elements of head `head` of a token of a batch entry in qkv. */
MPK_FN rt_i64 cache_from(const cache_operands &o, rt_i64 entry, rt_i64 token, rt_i64 head)
{
    return entry * o.qkv.stride[0] + head * o.qkv.stride[1] + token * o.qkv.stride[2];
}

/* Finds the row of head `head` of a token of batch entry `entry`. The sum of squares is in fp64 and
 * in order, by each thread for itself: all threads get the same factor without a barrier. */
MPK_FN cache_row cache_find(const mpk_task &t, const cache_operands &o, const cache_how &h,
                            const mpk_view &norm, rt_i64 entry, rt_i64 token, rt_i64 head)
{
    const rt_i64 at[RT_MAX_RANK] = {entry, token, 0};
    const char *g_qkv = mpk_data(t, o.qkv);
    cache_row r = {cache_from(o, entry, token, head), mpk_spread(o.cosine, 3, at),
                   mpk_spread(o.sine, 3, at), 1};
    double sum = 0; /* of squares */
    /* Each thread adds the whole row: 256 entries at most, from the cache. */
    for (rt_i64 e = 0; mpk_is_there(norm) && e < h.size; e++) {
        double x = (double)mpk_get(o.qkv, g_qkv, r.from + e * o.qkv.stride[3]);
        sum += x * x;
    }
    if (mpk_is_there(norm))
        r.factor = (float)(1.0 / sqrt(sum / (double)h.size + h.eps));
    return r;
}

/* Entry e of the row, normalised if there is a norm, and rounded as the single operator would. */
MPK_FN float cache_scaled(const mpk_task &t, const cache_operands &o, const mpk_view &norm,
                          const cache_row &r, rt_i64 e)
{
    float x = mpk_get(o.qkv, mpk_data(t, o.qkv), r.from + e * o.qkv.stride[3]); /* as it came */
    if (!mpk_is_there(norm))
        return x;
    return mpk_round(o.qkv.dtype,
                     x * r.factor * mpk_get(norm, mpk_data(t, norm), e * norm.stride[0]));
}

/* Entry e normalised and rotated. The first n entries of a head are rotated, in pairs (e, e + n /
 * 2) as Llama's rotate_half pairs them; the rest pass as they are. Every product is rounded to the
 * tensor's dtype, as separate operators of the reference would store it. */
MPK_FN float cache_rotated(const mpk_task &t, const cache_operands &o, const mpk_view &norm,
                           const cache_row &r, rt_i64 e)
{
    const int dtype = o.qkv.dtype;
    const rt_i64 n = mpk_is_there(o.cosine) ? o.cosine.dims[2] : 0, half = n / 2;
    float x = cache_scaled(t, o, norm, r, e); /* before it is rotated */
    if (e >= n)
        return x;
    float other = cache_scaled(t, o, norm, r, e < half ? e + half : e - half);
    float cosine = mpk_get(o.cosine, mpk_data(t, o.cosine), r.cosine + e * o.cosine.stride[2]),
          sine = mpk_get(o.sine, mpk_data(t, o.sine), r.sine + e * o.sine.stride[2]);
    return mpk_round(dtype, mpk_round(dtype, x * cosine) +
                                mpk_round(dtype, (e < half ? -other : other) * sine));
}

/* The token that is written to position p in this step; -1: none. From the last token down, so that
 * of two tokens at one position the later one counts, as in cache_fill. A negative index counts
 * from the end of the cache. */
MPK_FN rt_i64 cache_token(const mpk_task &t, const cache_operands &o, rt_i64 p)
{
    for (rt_i64 i = mpk_is_there(o.index) ? o.index.dims[0] : 0; i-- > 0;) {
        rt_i64 at = mpk_get_int(o.index, mpk_data(t, o.index), i * o.index.stride[0]);
        if ((at < 0 ? at + o.k_cache.dims[2] : at) == p)
            return i;
    }
    return -1;
}

/* What the mask adds to a score; false: the position is not seen. A mask of bool says which
 * positions are seen; one of floats is added, and its -inf means not seen. */
MPK_FN bool cache_sees(const mpk_task &t, const cache_operands &o, const rt_i64 *at, float *added)
{
    *added = 0; /* nothing, or what the mask has */
    if (!mpk_is_there(o.mask))
        return true;
    rt_i64 from = mpk_spread(o.mask, 4, at);
    if (o.mask.dtype == MPK_BOOL)
        return mpk_get_int(o.mask, mpk_data(t, o.mask), from) != 0;
    *added = (float)mpk_get_double(o.mask, mpk_data(t, o.mask), from);
    return *added != -MPK_INFINITY;
}

/* Scratch after that of the reductions; tokens are those of cache_token, kept so that each is
 * looked up once for score and value:
 *
 *   float weights[64] | int tokens[64] | float query[K] | float values[K]
 */
MPK_FN float *cache_weights(const mpk_task &t)
{
    return (float *)(t.s_scratch + MPK_REDUCE_BYTES);
}
MPK_FN int *cache_tokens(const mpk_task &t)
{
    return (int *)(cache_weights(t) + CACHE_UNIT);
}
MPK_FN float *cache_query(const mpk_task &t)
{
    return (float *)(cache_tokens(t) + CACHE_UNIT);
}

/* The scores of the n positions from p0 on; what is not seen: -infinity. Called by all threads; a
 * thread takes whole positions. */
MPK_FN void cache_scores(const mpk_task &t, const cache_operands &o, const cache_how &h,
                         rt_i64 kv_head, rt_i64 p0, int n, const rt_i64 *row)
{
    const char *g_keys = mpk_data(t, o.k_cache);
    const float *s_query = cache_query(t);
    for (int i = mpk_thread(); i < n; i += MPK_THREADS) {
        const rt_i64 p = p0 + i, at[RT_MAX_RANK] = {row[0], row[1], row[2], p};
        const rt_i64 keys =
            at[0] * o.k_cache.stride[0] + kv_head * o.k_cache.stride[1] + p * o.k_cache.stride[2];
        float added, score = 0;
        bool seen = cache_sees(t, o, at, &added); /* by the mask */
        rt_i64 token = seen ? cache_token(t, o, p) : -1;
        cache_tokens(t)[i] = (int)token;
        if (token >= 0) {
            cache_row r = cache_find(t, o, h, o.k_norm, at[0], token, h.heads + kv_head);
            for (rt_i64 e = 0; e < h.size; e++)
                score +=
                    s_query[e] * mpk_round(o.k_cache.dtype, cache_rotated(t, o, o.k_norm, r, e));
        } else if (seen) {
            for (rt_i64 e = 0; e < h.size; e++)
                score += s_query[e] * mpk_get(o.k_cache, g_keys, keys + e * o.k_cache.stride[3]);
        }
        cache_weights(t)[i] = seen ? score * h.scale + added : -MPK_INFINITY;
    }
}

/* Entry e of the value at position p, which `token` of this step has written (-1: none).  It is
 * rounded to the cache's dtype, as it will be read from there in later steps. */
MPK_FN float cache_value(const mpk_task &t, const cache_operands &o, const cache_how &h,
                         rt_i64 entry, rt_i64 kv_head, rt_i64 p, rt_i64 token, rt_i64 e)
{
    const mpk_view &v = o.v_cache;
    if (token < 0)
        return mpk_get(v, mpk_data(t, v),
                       entry * v.stride[0] + kv_head * v.stride[1] + p * v.stride[2] +
                           e * v.stride[3]);
    return mpk_round(v.dtype, mpk_get(o.qkv, mpk_data(t, o.qkv),
                                      cache_from(o, entry, token, h.heads + h.kv_heads + kv_head) +
                                          e * o.qkv.stride[3]));
}

/* One split of a row: batch entry, head, token. Softmax is online: `largest` and `total` describe
 * the blocks so far, and what s_values holds is relative to exp(largest); a block with a larger
 * score scales both by `kept`. Every thread computes largest and total for itself, from the same
 * weights in the same order, so they agree without another exchange. The first barrier keeps the
 * row before from being overwritten while a slow thread still reads it. */
MPK_FN void cache_split(const mpk_task &t, const cache_operands &o, const cache_how &h,
                        const rt_i64 *row, rt_i64 split)
{
    const rt_i64 kv_head = row[1] / (h.heads / h.kv_heads), length = o.k_cache.dims[2];
    float *s_weight = cache_weights(t), *s_query = cache_query(t), *s_values = s_query + h.size;
    float largest = -MPK_INFINITY, total = 0; /* the same in all threads */
    mpk_sync();
    cache_row r = cache_find(t, o, h, o.q_norm, row[0], row[2], row[1]);
    for (rt_i64 e = mpk_thread(); e < h.size; e += MPK_THREADS) {
        s_query[e] = cache_rotated(t, o, o.q_norm, r, e);
        s_values[e] = 0;
    }
    for (rt_i64 p0 = split * CACHE_UNIT; p0 < length; p0 += h.splits * CACHE_UNIT) {
        const int n = (int)(length - p0 < CACHE_UNIT ? length - p0 : CACHE_UNIT);
        float most = largest, kept = 1; /* with this block; factor of what was summed */
        mpk_sync();
        cache_scores(t, o, h, kv_head, p0, n, row);
        mpk_sync();
        for (int i = 0; i < n; i++)
            most = s_weight[i] > most ? s_weight[i] : most;
        /* nothing is seen yet; every thread skips alike */
        if (most == -MPK_INFINITY)
            continue;
        kept = expf(largest - most);
        largest = most;
        total *= kept;
        for (int i = 0; i < n; i++)
            total += expf(s_weight[i] - largest);
        for (rt_i64 e = mpk_thread(); e < h.size; e += MPK_THREADS) {
            float value = s_values[e] * kept;
            for (int i = 0; i < n; i++)
                if (s_weight[i] != -MPK_INFINITY)
                    value += expf(s_weight[i] - largest) *
                             cache_value(t, o, h, row[0], kv_head, p0 + i, cache_tokens(t)[i], e);
            s_values[e] = value;
        }
    }
    const rt_i64 to = row[0] * o.index.dims[0] + row[2]; /* row of the result */
    for (rt_i64 e = mpk_thread(); e < h.size; e += MPK_THREADS)
        mpk_put(o.part, mpk_data(t, o.part),
                to * o.part.stride[0] + split * o.part.stride[1] +
                    (row[1] * h.size + e) * o.part.stride[2],
                total == 0 ? 0 : s_values[e] / total);
    if (mpk_thread() == 0)
        mpk_put(o.lse, mpk_data(t, o.lse),
                to * o.lse.stride[0] + split * o.lse.stride[1] + row[1] * o.lse.stride[2],
                total == 0 ? -MPK_INFINITY : largest + logf(total));
}

/* The new keys and values of an entry and a KV head go to their positions; of two at one position
 * the later stays.  Threads write different entries, and the keys are made anew from qkv: scratch
 * has none. */
MPK_FN void cache_fill(const mpk_task &t, const cache_operands &o, const cache_how &h, rt_i64 entry,
                       rt_i64 kv_head)
{
    const mpk_view &k = o.k_cache, &v = o.v_cache;
    for (rt_i64 token = 0; token < o.index.dims[0]; token++) {
        rt_i64 p = mpk_get_int(o.index, mpk_data(t, o.index), token * o.index.stride[0]);
        p += p < 0 ? k.dims[2] : 0; /* counted from the end */
        /* out of range, or a later token has this position */
        if (p < 0 || p >= k.dims[2] || cache_token(t, o, p) != token)
            continue;
        cache_row r = cache_find(t, o, h, o.k_norm, entry, token, h.heads + kv_head);
        for (rt_i64 e = mpk_thread(); e < h.size; e += MPK_THREADS) {
            mpk_put(k, mpk_data(t, k),
                    entry * k.stride[0] + kv_head * k.stride[1] + p * k.stride[2] + e * k.stride[3],
                    cache_rotated(t, o, o.k_norm, r, e));
            mpk_put(v, mpk_data(t, v),
                    entry * v.stride[0] + kv_head * v.stride[1] + p * v.stride[2] + e * v.stride[3],
                    cache_value(t, o, h, entry, kv_head, p, token, e));
        }
    }
}

/* The body, once the task's event is activated: rows of the box, one after the other, for each
 * split of it; then, if the box has the last split, the caches of its entries and KV heads. */
MPK_FN void attention_cache_run(const mpk_task &t, const cache_operands &o, const cache_how &h)
{
    const rt_i64 tokens = o.index.dims[0], group = h.heads / h.kv_heads; /* of a batch entry */
    const rt_i64 lo = mpk_lo(t, 2) / h.size, hi = mpk_hi(t, 2) / h.size;
    for (rt_i64 i = mpk_lo(t, 0); i < (rt_i64)mpk_hi(t, 0); i++)
        for (rt_i64 head = lo; head < hi; head++)
            for (rt_i64 split = mpk_lo(t, 1); split < (rt_i64)mpk_hi(t, 1); split++) {
                const rt_i64 row[RT_MAX_RANK] = {i / tokens, head, i % tokens};
                cache_split(t, o, h, row, split);
            }
    if (!mpk_is_there(o.index) || (rt_i64)mpk_hi(t, 1) != h.splits)
        return;
    for (rt_i64 entry = mpk_lo(t, 0) / tokens; entry < mpk_hi(t, 0) / tokens; entry++)
        for (rt_i64 kv_head = lo / group; kv_head < hi / group; kv_head++)
            cache_fill(t, o, h, entry, kv_head);
}

#endif
