/* latent_rope.cuh - the queries of latent attention joined and rotated, its latents normalised and
 * put into the cache with their rotated keys.
 *
 * Input: the parts of each token, as src/op/latent_rope.c draws them; output: the box of query [T,
 * H, L + R], and rows of the cache from tasks that have head token % H.  Any plain dtype and
 * strides.  latent_rows.cuh is compared with it.
 *
 *    plain [T, H, L] -----------> query, entries 0 to L - 1 of a head
 *    q     [T, H, R] -> rope ---> query, entries L to L + R - 1
 *    latent [T, L]   -> norm ---> cache, entries 0 to L - 1 of the token's row
 *    key   [T, 1, R] -> rope ---> cache, entries L to L + R - 1
 *
 * A team of 32 threads does a head, so that a row is read and written in whole lines; all threads
 * do a row of the cache.  Of scratch the first MPK_REDUCE_BYTES are the reductions'; the angles of
 * the token at hand are behind them (HEADS_ANGLES), so that a norm does not overwrite them.  Which
 * tokens are put into the cache is the same in all threads, since there are barriers on the way.
 * Called by the generated switch over bodies.  Cost: memory, and per token the barriers of its
 * angles and of the search for a later token at its place.
 */
#ifndef TASK_LATENT_ROPE_CUH
#define TASK_LATENT_ROPE_CUH

#include "task/heads.cuh"

/* Entry k of a row whose entries from offset `from` on are rotated by the angles in scratch: of q
 * or of key.  Entries from 2 h.half on stay as they are.  Rounded to the dtype of x, as the
 * operator rope would store it. */
MPK_FN float latent_rotated(const mpk_task &t, const heads_source &h, const mpk_view &x,
                            rt_i64 from, int k)
{
    const float *s_cosine = (const float *)(t.s_scratch + HEADS_ANGLES),
                *s_sine = s_cosine + h.half;
    const char *g_x = mpk_data(t, x);
    int partner, pair;
    bool is_first;
    float value = mpk_get(x, g_x, from + k * x.stride[2]); /* before it is rotated */
    if (rope_pair(k, h.half, &partner, &pair, &is_first))
        value = rope_rotate(value, mpk_get(x, g_x, from + partner * x.stride[2]), is_first,
                            s_cosine[pair], s_sine[pair]);
    return mpk_round(x.dtype, value);
}

/* Heads lo to hi - 1 of a token: what is joined, then what is rotated.  heads_angles has been
 * called, and met.  Threads of no team do nothing here, where there is no barrier. */
MPK_FN void latent_queries(const mpk_task &t, const heads_source &h, const mpk_view &plain,
                           const mpk_view &q, const mpk_view &query, rt_i64 token, rt_i64 lo,
                           rt_i64 hi)
{
    const char *g_plain = mpk_data(t, plain);
    char *g_query = mpk_data(t, query);
    const int team = mpk_thread() / MPK_TEAM, lane = mpk_thread() % MPK_TEAM,
              latent = (int)plain.dims[2];
    for (rt_i64 head = lo + team; team < MPK_TEAMS && head < hi; head += MPK_TEAMS) {
        const rt_i64 from = token * plain.stride[0] + head * plain.stride[1],
                     to = token * query.stride[0] + head * query.stride[1],
                     rotated = token * q.stride[0] + head * q.stride[1];
        for (int k = lane; k < (int)query.dims[2]; k += MPK_TEAM)
            mpk_put(query, g_query, to + k * query.stride[2],
                    k < latent ? mpk_get(plain, g_plain, from + k * plain.stride[2])
                               : latent_rotated(t, h, q, rotated, k - latent));
    }
}

/* A token into the cache, by all threads.  A token without a page (its slot, position or page is
 * out of range) is normalised all the same, for the barriers of rows_factor, and not stored. */
MPK_FN void latent_store(const mpk_task &t, const heads_source &h, const heads_place &p,
                         const mpk_view &latent, const mpk_view &key, const mpk_view &norm,
                         rt_i64 token)
{
    const char *g_latent = mpk_data(t, latent);
    char *g_cache = mpk_data(t, p.k_cache);
    const int n = (int)latent.dims[1];
    const rt_i64 position = heads_integer(t, p.positions, token), from = token * latent.stride[0];
    const int page = kv_page(t, p, heads_integer(t, p.slots, token), position);
    /* Of the whole latent; x is read again below, from the cache. */
    const float factor =
        rows_factor(t, MPK_THREADS, true, latent, g_latent, from, latent.stride[1], n, h.eps);
    for (int k = mpk_thread(); page >= 0 && k < (int)p.k_cache.dims[3]; k += MPK_THREADS) {
        float value;
        if (k < n)
            value = mpk_round(latent.dtype,
                              mpk_get(latent, g_latent, from + k * latent.stride[1]) * factor *
                                  mpk_get(norm, mpk_data(t, norm), k * norm.stride[0]));
        else
            /* the one key that all heads share */
            value = latent_rotated(t, h, key, token * key.stride[0], k - n);
        /* KV head 0 is the only one: this row is keys and values of all heads. */
        mpk_put(p.k_cache, g_cache, kv_key_offset(p.k_cache, page, 0, position, k), value);
    }
}

/* The body of latent_rope; of h the table, its pairs and eps count.  Tasks share the box of the
 * cache, but no row of it: a token is put there by the task with its head number token % H, and
 * only if no later token of the step has its place. */
MPK_FN void latent_rope_run(const mpk_task &t, const heads_source &h, const heads_place &p,
                            const mpk_view &plain, const mpk_view &q, const mpk_view &latent,
                            const mpk_view &key, const mpk_view &norm, const mpk_view &query)
{
    const rt_i64 lo = mpk_lo(t, 1), hi = mpk_hi(t, 1), alive = mpk_live(t, plain),
                 heads = plain.dims[1];
    for (rt_i64 token = mpk_lo(t, 0); token < (rt_i64)mpk_hi(t, 0); token++) {
        /* The same in all threads.  All tokens of the step are searched, not those of the box: a
         * later token may be another task's. */
        const bool puts =
            token % heads >= lo && token % heads < hi && !heads_is_lost(t, p, token, alive);
        heads_angles(t, h, token, 0, (const float *)0, 1);
        latent_queries(t, h, plain, q, query, token, lo, hi);
        if (puts)
            latent_store(t, h, p, latent, key, norm, token);
    }
}

#endif
