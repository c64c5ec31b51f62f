/* attention.cuh - attention over the paged cache, for any shape: attention, attention_qkv,
 * attention_split.
 *
 * All threads do one query head of one token.  Positions go by chunks of 256 from the first one
 * seen: a thread takes the scores of whole positions, then all add the values, an entry of the head
 * each.  The order of sums depends on positions alone.
 *
 * The generic bodies: any dtype, page and head size, any number of threads.  attention_tile.cuh,
 * attention_group.cuh and attention_split_stream.cuh do the usual shapes and are compared with
 * these.  Input: q, or qkv whose heads are still to be normalised and rotated (heads.cuh), and the
 * paged cache; output: y, or for attention_split a part and its logarithm for each split.
 *
 * Softmax is online: attend_sum holds the largest score so far and the sum of weights relative to
 * it, the same in all threads.  In scratch lie the weighted values.  Entry k of these belongs to
 * thread k mod MPK_THREADS everywhere in this file, so no barrier guards them; scores and the query
 * are read by all, and barriers stand around them.
 * Cost: 4 K flops and 2 K elements of cache for each position, token and head.
 */
#ifndef TASK_ATTENTION_CUH
#define TASK_ATTENTION_CUH

#include "task/heads.cuh"
#include "tile/split.cuh"

enum { ATTEND_CHUNK = 256 };

/* What has been seen: the largest score and the sum of weights; the weighted values are in
 * scratch. */
struct attend_sum {
    float largest, sum;
};

/* How scores are made and which positions are seen; an attribute of the operator. */
struct attend_how {
    float scale;
    rt_i64 window; /* positions back that are seen, itself counted; 0: all */
    float cap = 0; /* a score s becomes cap tanh(s / cap); 0: it stays */
};

/* Scratch after the angles, which take a head's entries at most.  In entries of 4 bytes:
 *
 *   angles [size] | weights [256] | pages [256] | query [size] | values [size]
 */
MPK_FN float *attend_weights(const mpk_task &t, int size)
{
    return (float *)(t.s_scratch + HEADS_ANGLES) + size;
}
MPK_FN int *attend_pages(const mpk_task &t, int size)
{
    return (int *)(attend_weights(t, size) + ATTEND_CHUNK);
}
MPK_FN float *attend_query(const mpk_task &t, int size)
{
    return (float *)(attend_pages(t, size) + ATTEND_CHUNK);
}
MPK_FN float *attend_values(const mpk_task &t, int size)
{
    return attend_query(t, size) + size;
}

/* The first position that the token at `position` sees.  The window counts the token itself; 0 is
 * no window. */
MPK_FN rt_i64 attend_first(rt_i64 window, rt_i64 position)
{
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* Nothing seen yet but a sink, a score whose value is zero (-inf: none); clears the values.  The
 * caller puts the query into scratch, and reads it after the next barrier. */
MPK_FN attend_sum attend_begin(const mpk_task &t, int size, float sink = -MPK_INFINITY)
{
    float *s_values = attend_values(t, size); /* this thread's entries */
    attend_sum a = {sink, sink != -MPK_INFINITY ? 1.0f : 0.0f};
    for (int k = mpk_thread(); k < size; k += MPK_THREADS)
        s_values[k] = 0;
    return a;
}

/* The largest score of what comes next is given: if it exceeds the largest so far, sums are
 * relative to it from now on.  Returns the factor for what was summed before.  The first time
 * that is exp(-inf) = 0, of sums that are 0.  A NaN raises nothing: it comes in by the weights. */
MPK_FN float attend_rescale(attend_sum *a, float largest)
{
    float kept = 1; /* the largest stays */
    if (largest > a->largest) {
        kept = expf(a->largest - largest);
        a->largest = largest;
    }
    return kept;
}

/* A score under its cap.  By tanhf: the fast bodies' form (tile/cap.cuh) errs by 2^-23 of the
 * cap. */
MPK_FN float attend_capped(const attend_how &how, float score)
{
    return how.cap > 0 ? how.cap * tanhf(score / how.cap) : score;
}

/* The scores of n positions from p0 on, scaled and capped, into scratch; the largest, as mpk_key
 * over 1 (0: no position has a page).  The 1 tells scores that are all NaN, of key 0, from no
 * score.  The pages are kept in scratch for the values.  The reduction's barriers make both
 * visible. */
MPK_FN rt_u64 attend_scores(const mpk_task &t, const heads_place &p, rt_i64 slot, rt_i64 p0, int n,
                            rt_i64 kv_head, const attend_how &how)
{
    int size = (int)p.k_cache.dims[3], *s_page = attend_pages(t, size);
    float *s_weight = attend_weights(t, size);
    const float *s_query = attend_query(t, size);
    const char *g_keys = mpk_data(t, p.k_cache);
    rt_u64 best = 0; /* no position with a page */
    for (int i = mpk_thread(); i < n; i += MPK_THREADS) {
        int page = kv_page(t, p, slot, p0 + i); /* kept for the values */
        float score = 0;
        s_page[i] = page;
        for (int k = 0; page >= 0 && k < size; k++)
            score += s_query[k] *
                     mpk_get(p.k_cache, g_keys, kv_key_offset(p.k_cache, page, kv_head, p0 + i, k));
        score = attend_capped(how, score * how.scale);
        s_weight[i] = score;
        if (page >= 0)
            best = mpk_max_pair(best, (rt_u64)mpk_key(score) << 32 | 1);
    }
    return mpk_max(t, MPK_THREADS, best);
}

/* Entry k of the value of a position; without a cache of values, of its key. */
MPK_FN float attend_value(const mpk_task &t, const heads_place &p, int page, rt_i64 kv_head,
                          rt_i64 position, int k)
{
    if (!mpk_is_there(p.v_cache))
        return mpk_get(p.k_cache, mpk_data(t, p.k_cache),
                       kv_key_offset(p.k_cache, page, kv_head, position, k));
    return mpk_get(p.v_cache, mpk_data(t, p.v_cache),
                   kv_value_offset(p.v_cache, page, kv_head, position, k));
}

/* Add the positions first .. last of a slot that have a page.
 *
 * The barrier at the head of a chunk: the weights of the chunk before have been used, and, in the
 * first chunk, the query is there.  A weight is made of a score by the thread that made the score;
 * the barriers of mpk_sum then show all weights to all threads.
 */
MPK_FN void attend_cached(const mpk_task &t, const heads_place &p, rt_i64 slot, rt_i64 first,
                          rt_i64 last, rt_i64 kv_head, const attend_how &how, attend_sum *a)
{
    int size = (int)p.k_cache.dims[3], *s_page = attend_pages(t, size);
    float *s_weight = attend_weights(t, size), *s_values = attend_values(t, size);
    for (rt_i64 p0 = first; p0 <= last; p0 += ATTEND_CHUNK) {
        int n = (int)(last - p0 + 1 < ATTEND_CHUNK ? last - p0 + 1 : ATTEND_CHUNK);
        mpk_sync();
        rt_u64 best = attend_scores(t, p, slot, p0, n, kv_head, how);
        if (!best) /* the same in all threads */
            continue;
        float kept = attend_rescale(a, best >> 32 ? mpk_from_key((rt_u32)(best >> 32)) : MPK_NAN);
        double sum = 0; /* of this thread's weights */
        for (int i = mpk_thread(); i < n; i += MPK_THREADS) {
            s_weight[i] = s_page[i] >= 0 ? expf(s_weight[i] - a->largest) : 0;
            sum += (double)s_weight[i];
        }
        a->sum = a->sum * kept + (float)mpk_sum(t, MPK_THREADS, sum);
        for (int k = mpk_thread(); k < size; k += MPK_THREADS) {
            float value = s_values[k] * kept; /* of the positions before */
            for (int i = 0; i < n; i++)
                if (s_page[i] >= 0)
                    value += s_weight[i] * attend_value(t, p, s_page[i], kv_head, p0 + i, k);
            s_values[k] = value;
        }
    }
}

/* Entry k of the answer; this thread has added it, so no barrier is needed.  A token that sees
 * no position with a page gets the zeros that it began with. */
MPK_FN float attend_answer(const mpk_task &t, int size, const attend_sum *a, int k)
{
    float value = attend_values(t, size)[k];
    return a->sum > 0 ? value / a->sum : value;
}

/* The positions that a token sees, and its answer into y [T, H K]; the query is being written to
 * scratch, and is read after the first barrier of attend_cached.  Positions past the slot's pages
 * are left out.  sink: the head's, -inf: none. */
MPK_FN void attend_head(const mpk_task &t, const heads_place &p, const attend_how &how,
                        rt_i64 token, rt_i64 head, rt_i64 kv_head, float sink, const mpk_view &y)
{
    int size = (int)p.k_cache.dims[3];
    rt_i64 position = heads_integer(t, p.positions, token), slot = heads_integer(t, p.slots, token);
    rt_i64 room = p.pages.dims[1] * p.k_cache.dims[2]; /* positions of a slot */
    attend_sum a = attend_begin(t, size, sink);
    char *g_y = mpk_data(t, y);
    attend_cached(t, p, slot, attend_first(how.window, position),
                  position < room ? position : room - 1, kv_head, how, &a);
    for (int k = mpk_thread(); k < size; k += MPK_THREADS)
        mpk_put(y, g_y, token * y.stride[0] + (head * size + k) * y.stride[1],
                attend_answer(t, size, &a, k));
}

/* All threads: a query head of q [T, H, K] into scratch.  The barrier: the head before has been
 * read from there. */
MPK_FN void attend_take_query(const mpk_task &t, const mpk_view &q, rt_i64 token, rt_i64 head)
{
    int size = (int)q.dims[2];
    const char *g_q = mpk_data(t, q);
    float *s_query = attend_query(t, size);
    mpk_sync();
    for (int k = mpk_thread(); k < size; k += MPK_THREADS)
        s_query[k] = mpk_get(q, g_q, token * q.stride[0] + head * q.stride[1] + k * q.stride[2]);
}

/* The body of attention: tokens and query heads of the box, one after the other. */
MPK_FN void attention_run(const mpk_task &t, const mpk_view &q, const heads_place &p,
                          const attend_how &how, const mpk_view &sinks, const mpk_view &y)
{
    const char *g_sinks = mpk_data(t, sinks);
    int size = (int)q.dims[2];
    rt_i64 group = q.dims[1] / p.k_cache.dims[1]; /* query heads of a KV head */
    for (rt_i64 token = mpk_lo(t, 0); token < (rt_i64)mpk_hi(t, 0); token++)
        for (rt_i64 head = mpk_lo(t, 1) / size; head < (rt_i64)mpk_hi(t, 1) / size; head++) {
            const float sink = mpk_is_there(sinks) ? mpk_get(sinks, g_sinks, head * sinks.stride[0])
                                                   : -MPK_INFINITY;
            attend_take_query(t, q, token, head);
            attend_head(t, p, how, token, head, head / group, sink, y);
        }
}

/* All threads: a query head, normalised and rotated, into scratch; the angles are there.  The
 * barrier in the middle: the query before has been used. */
MPK_FN void attend_load_query(const mpk_task &t, const heads_source &h, const mpk_view &q_norm,
                              rt_i64 token, rt_i64 head)
{
    float *s_query = attend_query(t, h.size);
    rt_i64 from = heads_offset(h, token, head); /* of the head, in qkv */
    float factor = heads_factor(t, h, MPK_THREADS, true, q_norm, from);
    mpk_sync();
    for (int k = mpk_thread(); k < h.size; k += MPK_THREADS)
        s_query[k] = heads_entry(t, h, q_norm, from, k, factor);
}

/* attention_qkv: first the cache of these KV heads for all tokens, then attention for each.  A task
 * waits for no other: what its tokens see of the step it stores itself, and tasks of one KV head
 * store the same bits.  The barriers of heads_angles stand between stores and reads. */
MPK_FN void attention_qkv_run(const mpk_task &t, const heads_source &h, const heads_place &p,
                              const attend_how &how, const mpk_view &q_norm, const mpk_view &k_norm,
                              const mpk_view &y, const float *frequency, float amplitude)
{
    rt_i64 lo = mpk_lo(t, 1) / h.size, hi = mpk_hi(t, 1) / h.size, group = h.heads / h.kv_heads;
    rt_i64 alive = mpk_live(t, h.qkv);
    for (rt_i64 token = 0; token < alive; token++) {
        heads_angles(t, h, token, heads_integer(t, p.positions, token), frequency, amplitude);
        heads_store(t, h, p, k_norm, token, lo / group, hi / group);
    }
    for (rt_i64 token = mpk_lo(t, 0); token < (rt_i64)mpk_hi(t, 0); token++) {
        heads_angles(t, h, token, heads_integer(t, p.positions, token), frequency, amplitude);
        for (rt_i64 head = lo; head < hi; head++) {
            attend_load_query(t, h, q_norm, token, head);
            attend_head(t, p, how, token, head, head / group, -MPK_INFINITY, y);
        }
    }
}

/* ---- attention_split: see src/op/attention_split.c for the division of work ----
 *
 * A context is units of `unit` positions that were cached before this step.  All units of the step,
 * token after token, are shared evenly by the splits, or with `own` each token's by itself.  What
 * the step itself adds belongs to the split that has a token's last unit; it comes from qkv, since
 * nothing is in the cache yet.
 *
 * With `own` the context is all that comes before the token, in the order in which it comes, and
 * the token alone is added from qkv.  So a task stores the keys and values of its KV heads first,
 * as attention_qkv does: it waits for no other, and tasks of one KV head store the same bits. */

struct split_how {
    attend_how how;
    rt_i64 splits, unit, own;
};

/* A token: where its slot begins in this step, positions that are in the cache (with `own` all
 * before its own), units that they make. */
struct split_token {
    rt_i64 first, slot, position, cached, units;
};

/* Token number `token`, where `before` is the one in front of it: neighbours of one slot have the
 * same first token, whose position is how much is cached for all of them. */
MPK_FN split_token split_next(const mpk_task &t, const heads_place &p, const split_how &s,
                              rt_i64 token, const split_token &before)
{
    split_token k; /* this token's */
    rt_i64 room = p.pages.dims[1] * p.k_cache.dims[2];
    k.slot = heads_integer(t, p.slots, token);
    k.position = heads_integer(t, p.positions, token);
    k.first = token > 0 && before.slot == k.slot ? before.first : token;
    k.cached = s.own ? k.position : heads_integer(t, p.positions, k.first);
    k.cached = k.cached < 0 ? 0 : k.cached < room ? k.cached : room;
    k.units = k.cached > s.unit ? (k.cached + s.unit - 1) / s.unit : 1;
    return k;
}

/* Add the tokens of the step itself that token t sees, from qkv, in rising order, one at a time:
 * the angles in scratch are one token's.  A token sees itself whatever the window. */
MPK_FN void split_step(const mpk_task &t, const heads_source &h, const heads_place &p,
                       const split_how &s, const mpk_view &k_norm, rt_i64 token,
                       const split_token &k, rt_i64 kv_head, attend_sum *a)
{
    const float *s_query = attend_query(t, h.size);
    float *s_values = attend_values(t, h.size);
    const char *g_qkv = mpk_data(t, h.qkv);
    for (rt_i64 i = s.own ? token : k.first; i <= token; i++) {
        /* The window of the token at hand, not of token i. */
        if (i < token && heads_integer(t, p.positions, i) < attend_first(s.how.window, k.position))
            continue;
        rt_i64 from = heads_offset(h, i, h.heads + kv_head),
               values = heads_offset(h, i, h.heads + h.kv_heads + kv_head);
        /* angles of this token instead of the query's, which has been rotated */
        heads_angles(t, h, i, 0, (const float *)0, 1);
        float factor = heads_factor(t, h, MPK_THREADS, true, k_norm, from);
        double dot = 0; /* this thread's entries */
        for (int e = mpk_thread(); e < h.size; e += MPK_THREADS)
            dot += (double)(s_query[e] * heads_entry(t, h, k_norm, from, e, factor));
        const float product = s.how.scale * (float)mpk_sum(t, MPK_THREADS, dot);
        const float score = attend_capped(s.how, product);
        float kept = attend_rescale(a, score), weight = expf(score - a->largest);
        a->sum = a->sum * kept + weight;
        for (int e = mpk_thread(); e < h.size; e += MPK_THREADS)
            s_values[e] =
                s_values[e] * kept + weight * mpk_get(h.qkv, g_qkv, values + e * h.qkv.stride[1]);
    }
}

/* Units lo .. hi - 1 of a token for one query head; none: zeros and -inf.  The first barrier: the
 * head before has been read from scratch. */
MPK_FN void split_units(const mpk_task &t, const heads_source &h, const heads_place &p,
                        const split_how &s, const mpk_view &q_norm, const mpk_view &k_norm,
                        const mpk_view &part, const mpk_view &lse, rt_i64 token,
                        const split_token &k, rt_i64 lo, rt_i64 hi, rt_i64 split, rt_i64 head)
{
    char *g_part = mpk_data(t, part), *g_lse = mpk_data(t, lse);
    rt_i64 kv_head = head / (h.heads / h.kv_heads); /* that the head reads */
    mpk_sync();
    attend_sum a = attend_begin(t, h.size);
    if (lo < hi) {
        rt_i64 first = attend_first(s.how.window, k.position),
               end = hi * s.unit < k.cached ? hi * s.unit : k.cached;
        heads_angles(t, h, token, 0, (const float *)0, 1);
        attend_load_query(t, h, q_norm, token, head);
        attend_cached(t, p, k.slot, first > lo * s.unit ? first : lo * s.unit, end - 1, kv_head,
                      s.how, &a);
        /* the piece with the token's last unit has the step's own tokens */
        if (hi == k.units)
            split_step(t, h, p, s, k_norm, token, k, kv_head, &a);
    }
    rt_i64 to = token * part.stride[0] + split * part.stride[1] + head * h.size * part.stride[2];
    for (int e = mpk_thread(); e < h.size; e += MPK_THREADS)
        mpk_put(part, g_part, to + e * part.stride[2], attend_answer(t, h.size, &a, e));
    if (mpk_thread() == 0)
        mpk_put(lse, g_lse, token * lse.stride[0] + split * lse.stride[1] + head * lse.stride[2],
                a.sum == 0 ? -MPK_INFINITY : a.largest + logf(a.sum));
}

/* x, held between 0 and hi.  A split's share of all units may lie before or after a token's. */
MPK_FN rt_i64 split_clamp(rt_i64 x, rt_i64 hi)
{
    return x < 0 ? 0 : x < hi ? x : hi;
}

/* What a token counts for in the sum over the tokens before another. */
MPK_FN rt_i64 split_count(const split_how &s, rt_i64 units)
{
    return s.own ? split_own_parts((int)units, (int)s.splits, (int)s.own) : units;
}

/* The units *lo <= u < *hi of a token that a split does, where tokens before it count for `before`
 * and all for `all`. */
MPK_FN void split_find(const split_how &s, rt_i64 split, rt_i64 before, rt_i64 all, rt_i64 units,
                       rt_i64 *lo, rt_i64 *hi)
{
    int from, to; /* units */
    *lo = split_clamp(split * all / s.splits - before, units);
    *hi = split_clamp((split + 1) * all / s.splits - before, units);
    if (s.own) {
        split_own_units((int)split, (int)s.splits, (int)s.own, (int)(before % s.splits), (int)units,
                        &from, &to);
        *lo = from;
        *hi = to;
    }
}

/* Keys and values of a token into the cache, KV heads lo to hi - 1.  From qkv, normalised and
 * rotated again: nothing of it is in scratch but the angles. */
MPK_FN void split_store(const mpk_task &t, const heads_source &h, const heads_place &p,
                        const mpk_view &k_norm, rt_i64 token, rt_i64 lo, rt_i64 hi)
{
    mpk_sync(); /* the angles' place in scratch is free */
    heads_angles(t, h, token, 0, (const float *)0, 1);
    heads_store(t, h, p, k_norm, token, lo, hi);
}

/* The body.  Two walks over the tokens: one counts the units of all, and with `own` stores them,
 * one does the pieces, with the units of those before.  Without `own` the piece with a token's last
 * unit puts its key and value into the cache, which no piece of this step reads at that position.
 * The barriers of split_units stand between stores and reads. */
MPK_FN void attention_split_run(const mpk_task &t, const heads_source &h, const heads_place &p,
                                const split_how &s, const mpk_view &q_norm, const mpk_view &k_norm,
                                const mpk_view &part, const mpk_view &lse)
{
    rt_i64 all = 0, before = 0, alive = mpk_live(t, h.qkv), group = h.heads / h.kv_heads, from, to;
    rt_i64 lo = mpk_lo(t, 2) / h.size, hi = mpk_hi(t, 2) / h.size;
    split_token k = {}; /* of the token before, in turn */
    for (rt_i64 token = 0; token < alive; token++) {
        k = split_next(t, p, s, token, k);
        all += k.units;
        if (s.own)
            split_store(t, h, p, k_norm, token, lo / group, hi / group);
    }
    for (rt_i64 token = 0; token < (rt_i64)mpk_hi(t, 0); token++) {
        k = split_next(t, p, s, token, k);
        for (rt_i64 split = mpk_lo(t, 1);
             token >= (rt_i64)mpk_lo(t, 0) && split < (rt_i64)mpk_hi(t, 1); split++) {
            split_find(s, split, before, all, k.units, &from, &to);
            for (rt_i64 head = lo; head < hi; head++)
                split_units(t, h, p, s, q_norm, k_norm, part, lse, token, k, from, to, split, head);
            /* this split has the token's last piece */
            if (!s.own && from < to && to == k.units)
                split_store(t, h, p, k_norm, token, lo / group, hi / group);
        }
        before += split_count(s, k.units);
    }
}

#endif
