/* heads.cuh - packed q, k, v: heads normalised and rotated, and the paged cache that keys and
 * values go to: kv_write, latent_write, rope_kv, and what attention over them needs.
 *
 * Generic: any dtype, head and page size.  attention.cuh builds on it; rope_tile.cuh is the fast
 * body of rope_kv.
 *
 *   a row of qkv    q heads | k heads of the KV heads | v heads      each of `size` entries
 *   a head          pair i is entries i and i + half, for i < half; the rest is not rotated
 *
 * An entry of a rotated head is computed from two entries of qkv, wherever it is needed: nothing
 * is staged but the angles of the token.  Integers of the data are believed only in range: a
 * token without a place is not stored.
 */
#ifndef TASK_HEADS_CUH
#define TASK_HEADS_CUH

#include "tile/kv.cuh"
#include "task/rope.cuh"
#include "task/rows.cuh"

/* Where tokens of the step lie. positions and slots are by token, pages is the table [slots, pages
 * of a slot]; a slot of -1, a position or a page out of range mean that the token has no place in
 * the cache.  v_cache absent: the keys are the values too. */
struct heads_place {
    mpk_view positions, slots, pages, k_cache, v_cache;
};

/* size: entries of a head; half: how many pairs of them are rotated, so that 2 * half <= size. qkv
 * is [T, (heads + 2 kv_heads) * size]: queries, keys, values. */
struct heads_source {
    mpk_view qkv, table;             /* table absent: the angles are made from frequencies */
    int heads, kv_heads, size, half; /* half: pairs that are rotated */
    double eps;                      /* of the norm of heads */
    bool norm_last;                  /* which follows the rotation */
};

/* Scratch after that of the reductions: cos and sin of the token at hand, half entries each. */
enum { HEADS_ANGLES = MPK_REDUCE_BYTES };

/* What an integer operand of the step (positions, slots) says of a token. */
MPK_FN rt_i64 heads_integer(const mpk_task &t, const mpk_view &v, rt_i64 token)
{
    return mpk_get_int(v, mpk_data(t, v), token * v.stride[0]);
}

/* ---- the cache ---- */

/* The page of the cache that holds a position of a slot, or -1: a slot, a position or a page
 * number is out of range. */
MPK_FN int kv_page(const mpk_task &t, const heads_place &p, rt_i64 slot, rt_i64 position)
{
    rt_i64 per_page = p.k_cache.dims[2]; /* positions */
    if (slot < 0 || slot >= p.pages.dims[0] || position < 0 ||
        position / per_page >= p.pages.dims[1])
        return -1;
    rt_i64 page = mpk_get_int(p.pages, mpk_data(t, p.pages),
                              slot * p.pages.stride[0] + position / per_page * p.pages.stride[1]);
    return page < 0 || page >= p.k_cache.dims[0] ? -1 : (int)page;
}

/* Offset in elements of entry k of a key of a KV head at a position; the next function, of a
 * value.  Both lie in an order of their own within a page (tile/kv.cuh), which makes them
 * operands of tensor cores as they are. */
MPK_FN rt_i64 kv_key_offset(const mpk_view &cache, int page, rt_i64 head, rt_i64 position, int k)
{
    int per_page = (int)cache.dims[2], size = (int)cache.dims[3];
    return page * cache.stride[0] + head * cache.stride[1] +
           kv_key_at((int)(position % per_page), k, per_page, size, mpk_dtype_bytes(cache.dtype));
}
/* The element of the cache that holds dim k of a value; `position` counts from the sequence's
 * start. */
MPK_FN rt_i64 kv_value_offset(const mpk_view &cache, int page, rt_i64 head, rt_i64 position, int k)
{
    int per_page = (int)cache.dims[2], size = (int)cache.dims[3];
    return page * cache.stride[0] + head * cache.stride[1] +
           kv_value_at((int)(position % per_page), k, per_page, size, mpk_dtype_bytes(cache.dtype));
}

/* The bodies of kv_write and of latent_write, which has no values.  Tokens in order, entries
 * spread over the threads the same way for each: a thread writes the same entries of every
 * token, so of two tokens at one place the later stays, without a barrier. */
MPK_FN void kv_write_run(const mpk_task &t, const mpk_view &k, const mpk_view &v,
                         const heads_place &p)
{
    const char *g_k = mpk_data(t, k), *g_v = mpk_data(t, v);
    char *g_keys = mpk_data(t, p.k_cache), *g_values = mpk_data(t, p.v_cache);
    rt_i64 lo = mpk_lo(t, 1), n = ((rt_i64)mpk_hi(t, 1) - lo) * k.dims[2], alive = mpk_live(t, k);
    for (rt_i64 token = 0; token < alive; token++) {
        rt_i64 position = heads_integer(t, p.positions, token);               /* data */
        int page = kv_page(t, p, heads_integer(t, p.slots, token), position); /* -1: not stored */
        for (rt_i64 i = mpk_thread(); page >= 0 && i < n; i += MPK_THREADS) {
            rt_i64 head = lo + i / k.dims[2];
            int e = (int)(i % k.dims[2]); /* entry of the head */
            mpk_put(p.k_cache, g_keys, kv_key_offset(p.k_cache, page, head, position, e),
                    mpk_get(k, g_k, token * k.stride[0] + head * k.stride[1] + e * k.stride[2]));
            if (mpk_is_there(v))
                mpk_put(
                    p.v_cache, g_values, kv_value_offset(p.v_cache, page, head, position, e),
                    mpk_get(v, g_v, token * v.stride[0] + head * v.stride[1] + e * v.stride[2]));
        }
    }
}

/* ---- heads ---- */

/* cos and sin of a token into scratch, from the table or, without one, from frequencies; called
 * by all threads, which meet before (the angles of the token before have been used) and after. */
MPK_FN void heads_angles(const mpk_task &t, const heads_source &h, rt_i64 token, rt_i64 position,
                         const float *frequency, float amplitude)
{
    float *s_cosine = (float *)(t.s_scratch + HEADS_ANGLES), *s_sine = s_cosine + h.half;
    const char *g_table = mpk_data(t, h.table);
    mpk_sync();
    for (int i = mpk_thread(); i < h.half; i += MPK_THREADS) {
        if (mpk_is_there(h.table)) {
            rt_i64 at = token * h.table.stride[0] + i * h.table.stride[2];
            s_cosine[i] = mpk_get(h.table, g_table, at);
            s_sine[i] = mpk_get(h.table, g_table, at + h.table.stride[1]);
        } else {
            rope_angle(frequency[i], amplitude, position, &s_cosine[i], &s_sine[i]);
        }
    }
    mpk_sync();
}

/* Offset in elements of a head of a token in qkv; heads are counted over queries, keys and
 * values. */
MPK_FN rt_i64 heads_offset(const heads_source &h, rt_i64 token, rt_i64 head)
{
    return token * h.qkv.stride[0] + head * h.size * h.qkv.stride[1];
}

/* Entry k of a head, normalised, and rounded to the dtype of qkv, as if the norm were an
 * operator of its own. */
MPK_FN float heads_normed(const mpk_task &t, const heads_source &h, const mpk_view &norm,
                          rt_i64 from, int k, float factor)
{
    float value = mpk_get(h.qkv, mpk_data(t, h.qkv), from + k * h.qkv.stride[1]);
    if (!mpk_is_there(norm))
        return value;
    return mpk_round(h.qkv.dtype,
                     value * factor * mpk_get(norm, mpk_data(t, norm), k * norm.stride[0]));
}

/* Entry k of a head that begins at `from`, normalised and rotated by the angles in scratch. */
MPK_FN float heads_rotated(const mpk_task &t, const heads_source &h, const mpk_view &norm,
                           rt_i64 from, int k, float factor)
{
    const float *s_cosine = (const float *)(t.s_scratch + HEADS_ANGLES),
                *s_sine = s_cosine + h.half;
    int partner, pair;
    bool is_first;
    float value = heads_normed(t, h, norm, from, k, factor); /* before it is rotated */
    if (rope_pair(k, h.half, &partner, &pair, &is_first))
        value = rope_rotate(value, heads_normed(t, h, norm, from, partner, factor), is_first,
                            s_cosine[pair], s_sine[pair]);
    return mpk_round(h.qkv.dtype, value);
}

/* The factor of the norm of the head that begins at `from`, in each thread of a group; 1 without
 * a norm.  Called by all threads, since it meets at barriers; mine: this thread's group has a
 * head.  The angles are in scratch. */
MPK_FN float heads_factor(const mpk_task &t, const heads_source &h, int group, bool mine,
                          const mpk_view &norm, rt_i64 from)
{
    if (!mpk_is_there(norm))
        return 1;
    if (!h.norm_last)
        return rows_factor(t, group, mine, h.qkv, mpk_data(t, h.qkv), from, h.qkv.stride[1], h.size,
                           h.eps);
    double sum = 0; /* as in rows_factor, of what the rotation leaves */
    for (int k = mpk_thread() % group; mine && k < h.size; k += group) {
        const double value = (double)heads_rotated(t, h, {-1}, from, k, 1);
        sum += value * value;
    }
    return (float)(1.0 / sqrt(mpk_sum(t, group, sum) / (double)h.size + h.eps));
}

/* Entry k as it is scored and cached: normalised and rotated, in the order that h says. */
MPK_FN float heads_entry(const mpk_task &t, const heads_source &h, const mpk_view &norm,
                         rt_i64 from, int k, float factor)
{
    if (!h.norm_last || !mpk_is_there(norm))
        return heads_rotated(t, h, norm, from, k, factor);
    return mpk_round(h.qkv.dtype, heads_rotated(t, h, {-1}, from, k, 1) * factor *
                                      mpk_get(norm, mpk_data(t, norm), k * norm.stride[0]));
}

/* Keys and values of a token, KV heads lo to hi - 1, into the cache; the angles are in scratch.
 * A team does a head.  Called by all threads. */
MPK_FN void heads_store(const mpk_task &t, const heads_source &h, const heads_place &p,
                        const mpk_view &k_norm, rt_i64 token, rt_i64 lo, rt_i64 hi)
{
    const char *g_qkv = mpk_data(t, h.qkv);
    char *g_keys = mpk_data(t, p.k_cache), *g_values = mpk_data(t, p.v_cache);
    rt_i64 position = heads_integer(t, p.positions, token); /* data */
    int page = kv_page(t, p, heads_integer(t, p.slots, token), position);
    int thread = mpk_thread(), team = thread / MPK_TEAM, lane = thread % MPK_TEAM;
    for (rt_i64 first = lo; first < hi; first += MPK_TEAMS) {
        rt_i64 head = first + team, from = heads_offset(h, token, h.heads + head);
        rt_i64 values = heads_offset(h, token, h.heads + h.kv_heads + head);
        bool mine = team < MPK_TEAMS && head < hi;
        float factor = heads_factor(t, h, MPK_TEAM, mine, k_norm, from);
        for (int k = lane; mine && page >= 0 && k < h.size; k += MPK_TEAM) {
            mpk_put(p.k_cache, g_keys, kv_key_offset(p.k_cache, page, head, position, k),
                    heads_entry(t, h, k_norm, from, k, factor));
            mpk_put(p.v_cache, g_values, kv_value_offset(p.v_cache, page, head, position, k),
                    mpk_get(h.qkv, g_qkv, values + k * h.qkv.stride[1]));
        }
    }
}

/* Query heads lo .. hi - 1 of a token into q [T, H, K]; the angles are there. A team of 32 threads
 * does a head. */
MPK_FN void heads_query(const mpk_task &t, const heads_source &h, const mpk_view &q_norm,
                        const mpk_view &q, rt_i64 token, rt_i64 lo, rt_i64 hi)
{
    char *g_q = mpk_data(t, q);
    int thread = mpk_thread(), team = thread / MPK_TEAM, lane = thread % MPK_TEAM;
    for (rt_i64 first = lo; first < hi; first += MPK_TEAMS) {
        rt_i64 head = first + team, from = heads_offset(h, token, head);
        bool mine = team < MPK_TEAMS && head < hi;
        float factor = heads_factor(t, h, MPK_TEAM, mine, q_norm, from);
        for (int k = lane; mine && k < h.size; k += MPK_TEAM)
            mpk_put(q, g_q, token * q.stride[0] + head * q.stride[1] + k * q.stride[2],
                    heads_entry(t, h, q_norm, from, k, factor));
    }
}

/* Has a later token of the step the place of this one, so that it alone is stored?  Called by
 * all threads, the same answer in each.  Compared by page and place in the page, not by slot:
 * two slots may share pages. */
MPK_FN bool heads_is_lost(const mpk_task &t, const heads_place &p, rt_i64 token, rt_i64 alive)
{
    rt_i64 position = heads_integer(t, p.positions, token), per_page = p.k_cache.dims[2];
    int page = kv_page(t, p, heads_integer(t, p.slots, token), position);
    rt_u64 lost = 0; /* until a later token is found */
    for (rt_i64 i = token + 1 + mpk_thread(); page >= 0 && i < alive; i += MPK_THREADS) {
        rt_i64 later = heads_integer(t, p.positions, i); /* of the later token */
        lost |= later >= 0 && later % per_page == position % per_page &&
                kv_page(t, p, heads_integer(t, p.slots, i), later) == page;
    }
    return mpk_max(t, MPK_THREADS, lost) != 0;
}

/* The body of rope_kv.  A task has the KV heads whose first query head is in its box, so each is
 * stored by one task.  A token that lost its place to a later one is rotated, for its query, and
 * not stored. */
MPK_FN void rope_kv_run(const mpk_task &t, const heads_source &h, const heads_place &p,
                        const mpk_view &q_norm, const mpk_view &k_norm, const mpk_view &q)
{
    rt_i64 lo = mpk_lo(t, 1), hi = mpk_hi(t, 1), alive = mpk_live(t, h.qkv),
           group = h.heads / h.kv_heads;
    for (rt_i64 token = mpk_lo(t, 0); token < mpk_hi(t, 0); token++) {
        const bool lost = heads_is_lost(t, p, token, alive); /* the same in all threads */
        heads_angles(t, h, token, 0, (const float *)0, 1);
        heads_query(t, h, q_norm, q, token, lo, hi);
        if (!lost)
            heads_store(t, h, p, k_norm, token, (lo + group - 1) / group, (hi + group - 1) / group);
    }
}

#endif
