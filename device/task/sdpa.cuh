/* sdpa.cuh - attention over tensors: softmax(scale q k^T + mask) v with grouped
 * heads.
 *
 * Input: q [B, H, L, K], k [B, G, S, K], v [B, G, S, Kv], a mask that is broadcast to [B, H, L,
 * S]; output: y [B, H, L, Kv], or with by_rows [B, L, H, Kv].  The generic bodies: any dtype and
 * strides; sdpa of f16 and bf16 is otherwise a block program (block.cuh).
 *
 * All threads do one row of one head; keys go by chunks of 256 in rising order, as in
 * attention.cuh.  Sums in double.  A key is one thread's, so threads read far from each other:
 * by pieces of 16 bytes where keys allow it.
 *
 * Scratch after the reductions', in doubles:
 *
 *   weights of a chunk [256] | the query [K] | the weighted values [Kv]
 *
 * Entry e of the values belongs to thread e mod MPK_THREADS from beginning to end, so no barrier
 * guards them. Cost: 2 S (K + Kv) flops a row.
 */
#ifndef TASK_SDPA_CUH
#define TASK_SDPA_CUH

#include "task/lines.cuh"

/* Keys of a chunk; pieces of a key that a thread requests at once. */
enum { SDPA_CHUNK = 256, SDPA_AHEAD = 8 };

/* Attributes.  window: keys back that are seen, the row's own counted; 0: all.  causal: none
 * after its own. */
struct sdpa_how {
    double scale; /* of q k, in double as the sums */
    bool causal;  /* a row sees no key after itself */
    rt_i64 window;
    bool by_rows; /* y is [batch, rows, heads, values] */
};

/* The mask of (row, key) on its score; false: it is not seen.  at: batch entry, head, row, key.  A
 * mask of bool says which keys are seen, any other is added. */
MPK_FN bool sdpa_mask(const mpk_task &t, const mpk_view &mask, const sdpa_how &how,
                      const rt_i64 *at, double *score)
{
    if ((how.causal && at[3] > at[2]) || (how.window && at[3] <= at[2] - how.window))
        return false;
    if (!mpk_is_there(mask))
        return true;
    rt_i64 from = mpk_spread(mask, 4, at); /* in the mask */
    if (mask.dtype == MPK_BOOL)
        return mpk_get_int(mask, mpk_data(t, mask), from) != 0;
    *score += mpk_get_double(mask, mpk_data(t, mask), from);
    return true;
}

/* Does each key begin at a multiple of 16 bytes and end at one, if the first does?  per: entries
 * of 16 bytes. */
MPK_FN bool sdpa_has_pieces(const mpk_view &k, int per)
{
    return lines_is_short_float(k.dtype) && k.stride[3] == 1 && k.dims[3] % per == 0 &&
           k.stride[0] % per == 0 && k.stride[1] % per == 0 && k.stride[2] % per == 0;
}

/* One thread: the query times the key that begins at `from`, terms in rising order in either
 * way, so that the bits do not depend on alignment.  By pieces, eight are requested before the
 * first is used; past the end the first of them is read again, and not counted. */
MPK_FN double sdpa_score(const mpk_view &k, const char *g_k, rt_i64 from, const double *s_query)
{
    const int per = k.dtype == MPK_F32 ? 4 : 8; /* entries of 16 bytes */
    double score = 0;                           /* of terms in rising order */
    if (!sdpa_has_pieces(k, per) || ((rt_u64)g_k & 15)) {
        for (rt_i64 e = 0; e < k.dims[3]; e++)
            score += s_query[e] * mpk_get_double(k, g_k, from + e * k.stride[3]);
        return score;
    }
    const lines_piece *g = (const lines_piece *)(g_k + from * mpk_dtype_bytes(k.dtype));
    const rt_i64 pieces = k.dims[3] / per;
    for (rt_i64 first = 0; first < pieces; first += SDPA_AHEAD) {
        lines_piece p[SDPA_AHEAD]; /* in flight together */
#pragma unroll
        for (int i = 0; i < SDPA_AHEAD; i++)
            p[i] = g[first + i < pieces ? first + i : first];
#pragma unroll
        for (int i = 0; i < SDPA_AHEAD * per; i++)
            if (first + i / per < pieces)
                score +=
                    s_query[first * per + i] * (double)lines_entry(k.dtype, p[i / per], i % per);
    }
    return score;
}

/* One row: at = batch entry, head, row; at[3] becomes the key.
 *
 * Barriers: the first, the row before has been read from scratch; at the head of each chunk, the
 * query is there, and the weights of the chunk before have been used.  Those of mpk_sum show the
 * weights to all threads.  Each thread makes a weight of the score that it has made.
 * A chunk of which nothing is seen changes nothing.  Where the largest score stays, `kept` is 1
 * without being worked out: two infinities have no difference.  A row that sees no key is 0.
 */
MPK_FN void sdpa_row(const mpk_task &t, const mpk_view &q, const mpk_view &k, const mpk_view &v,
                     const mpk_view &mask, const mpk_view &y, const sdpa_how &how, rt_i64 *at)
{
    double *s_weight = (double *)(t.s_scratch + MPK_REDUCE_BYTES), *s_query = s_weight + SDPA_CHUNK,
           *s_values = s_query + q.dims[3];
    const char *g_q = mpk_data(t, q), *g_k = mpk_data(t, k), *g_v = mpk_data(t, v);
    char *g_y = mpk_data(t, y);
    rt_i64 head = at[1] / (q.dims[1] / k.dims[1]), keys = at[0] * k.stride[0] + head * k.stride[1];
    rt_i64 values = at[0] * v.stride[0] + head * v.stride[1];
    rt_i64 end = how.causal && at[2] + 1 < k.dims[2] ? at[2] + 1 : k.dims[2];
    rt_i64 begin = how.window && at[2] >= how.window ? at[2] - how.window + 1 : 0;
    double largest = (double)-MPK_INFINITY, total = 0;
    mpk_sync();
    at[3] = 0;
    for (rt_i64 e = mpk_thread(); e < q.dims[3]; e += MPK_THREADS)
        s_query[e] = mpk_get_double(q, g_q, mpk_offset(q, at) + e * q.stride[3]) * how.scale;
    for (rt_i64 e = mpk_thread(); e < v.dims[3]; e += MPK_THREADS)
        s_values[e] = 0;
    for (rt_i64 s0 = begin; s0 < end; s0 += SDPA_CHUNK) {
        int n = (int)(end - s0 < SDPA_CHUNK ? end - s0 : SDPA_CHUNK);
        double most = largest, sum = 0;
        mpk_sync();
        for (int i = mpk_thread(); i < n; i += MPK_THREADS) {
            double score = sdpa_score(k, g_k, keys + (s0 + i) * k.stride[2], s_query);
            at[3] = s0 + i;
            s_weight[i] = sdpa_mask(t, mask, how, at, &score) ? score : (double)-MPK_INFINITY;
            most = reduce_larger(most, s_weight[i]);
        }
        most = reduce_group_max(t, MPK_THREADS, most);
        if (most == (double)-MPK_INFINITY)
            continue;
        double kept = largest == most ? 1 : softmax_weight(q.dtype, largest, most);
        largest = most;
        for (int i = mpk_thread(); i < n; i += MPK_THREADS) {
            s_weight[i] = s_weight[i] == (double)-MPK_INFINITY
                              ? 0
                              : softmax_weight(q.dtype, s_weight[i] - largest, 0);
            sum += s_weight[i];
        }
        total = total * kept + mpk_sum(t, MPK_THREADS, sum);
        for (rt_i64 e = mpk_thread(); e < v.dims[3]; e += MPK_THREADS) {
            double value = s_values[e] * kept;
            /* read before it is known whether it counts: so eight are in flight */
#pragma unroll 8
            for (int i = 0; i < n; i++) {
                double x =
                    mpk_get_double(v, g_v, values + (s0 + i) * v.stride[2] + e * v.stride[3]);
                value = s_weight[i] != 0 ? value + s_weight[i] * x : value;
            }
            s_values[e] = value;
        }
    }
    const rt_i64 row_step = how.by_rows ? y.stride[1] : y.stride[2];
    const rt_i64 head_step = how.by_rows ? y.stride[2] : y.stride[1];
    const rt_i64 to = at[0] * y.stride[0] + at[1] * head_step + at[2] * row_step;
    for (rt_i64 e = mpk_thread(); e < v.dims[3]; e += MPK_THREADS)
        mpk_put_double(y, g_y, to + e * y.stride[3], total == 0 ? 0 : s_values[e] / total);
}

/* Rows of the box, one after the other.  With by_rows the box has rows before heads: its axes are
 * swapped, so that places are always batch entry, head, row. */
MPK_FN void sdpa_run(const mpk_task &t, const mpk_view &q, const mpk_view &k, const mpk_view &v,
                     const mpk_view &mask, const mpk_view &y, const sdpa_how &how)
{
    const mpk_box whole = mpk_box_of(t, 3), box = how.by_rows ? mpk_swapped(whole, 1, 2) : whole;
    rt_u64 n = mpk_count(box, 3);
    for (rt_u64 i = 0; i < n; i++) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(box, 3, i, at);
        sdpa_row(t, q, k, v, mask, y, how, at);
    }
}

#endif
