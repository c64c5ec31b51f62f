/* attention_split_heads.cuh - the heads of a step's tokens, from qkv: rows of queries, keys and
 * values are normalised, rotated, and put into scratch, keys and values into the caches too.  For
 * attention_split_stream.cuh alone.
 *
 * Rows of qkv may be carried (tile/worker.cuh): they are asked for early, while the piece before is
 * worked on, and waited for late.  Of a row a piece goes through these, a warp a row:
 *
 *   attention_ask_rotation   weights of the norm and angles, which no task of this layer writes
 *   attention_ask_row        the row, as it is now: words that are not yet written hold RT_EMPTY
 *   attention_await_row      until no word is empty
 *   attention_rotate_row     norm and rotation, in f32, rounded after each
 *   attention_keep_row       into scratch; the token's own key and value into the caches
 *
 * Names: K entries of a head, GROUP query heads of a KV head, TOKENS the most of the graph, TEAM
 * warps that do a piece together (attention_split_work.cuh).
 */
#ifndef TASK_ATTENTION_SPLIT_HEADS_CUH
#define TASK_ATTENTION_SPLIT_HEADS_CUH

#include "task/attention_split_work.cuh"
#include "tile/products.cuh"

/* ---- rows ---- */

/* How the lanes of a warp hold a head.  A lane has PIECES times two neighbouring dims and their
 * partners, K / 2 higher: piece i of lane l is dims 64 i + 2 l and + 1.  So a load of a warp is 128
 * bytes in a row, and a pair that is rotated together is in one lane.  Of heads of less than 128
 * dims lanes beyond K / 4 hold none.
 *
 *            lanes with dims   pieces   partner of dim d
 *   K 64     0 - 15            1        d + 32
 *   K 96     0 - 23            1        d + 48
 *   K 128    all               1        d + 64
 *   K 256    all               2        d + 128 */
template <int K> struct attention_lanes {
    enum { PIECES = K > 128 ? 2 : 1, LAST = PIECES - 1 };
    static_assert(K <= 128 || K == 256, "two pieces are all lanes full");
};

/* The pairs of a head that this lane holds. */
template <int K> struct attention_row {
    rt_u32 low[attention_lanes<K>::PIECES], high[attention_lanes<K>::PIECES]; /* two bf16 each */
};

/* What a head is rotated with: the norm's weight and the angles at these dims.  Nothing of it comes
 * from this layer, so it is asked for before qkv. cosine and sine are of the pairs (dim, dim + K /
 * 2), low and high the norm's weights of these. */
struct attention_angles {
    float2 low, high, cosine, sine; /* two neighbouring dims each */
};
template <int K> struct attention_rotation {
    attention_angles at[attention_lanes<K>::PIECES];
};

/* Two neighbouring weights of a norm, bf16 or f32, as floats.  Only with a norm: a norm_type of -1
 * has all bits set, this one too.  dim is even, so the pair is aligned. */
MPK_FN float2 attention_norm_at(const attention_shape &s, const rt_entry *e, int operand, int dim)
{
    if (s.norm_type & ATTENTION_NORM_F32)
        return *(const float2 *)((const float *)e->at[operand] + dim);
    rt_u32 v = *(const rt_u32 *)((const rt_u16 *)e->at[operand] + dim);
    return make_float2(ptx_low_bf16(v), ptx_high_bf16(v));
}

/* Asks for what row `norm` of a token t is rotated with; norm: AT_Q_NORM or AT_K_NORM. The table
 * holds K / 2 cosines, then K / 2 sines for each token. Lanes beyond K / 4 leave *rotation as it
 * is: it must have been set. */
template <int K, int PIECE = 0>
MPK_FN void attention_ask_rotation(const rt_entry *e, const attention_shape &s, int t, int norm,
                                   attention_rotation<K> *rotation)
{
    const int i = 64 * PIECE + 2 * (mpk_thread() % 32);          /* this lane's first dim */
    const float *table = (const float *)e->at[AT_TABLE] + t * K; /* cosines, then sines */
    if (i >= K / 2)
        return;
    rotation->at[PIECE].cosine = *(const float2 *)(table + i);
    rotation->at[PIECE].sine = *(const float2 *)(table + K / 2 + i);
    if (s.norm_type >= 0) {
        rotation->at[PIECE].low = attention_norm_at(s, e, norm, i);
        rotation->at[PIECE].high = attention_norm_at(s, e, norm, i + K / 2);
    }
    if (PIECE < attention_lanes<K>::LAST)
        attention_ask_rotation<K, attention_lanes<K>::LAST>(e, s, t, norm, rotation);
}

/* Where this lane's dims of head `head` of a row of qkv lie: [heads + 2 kv_heads][K], queries,
 * then keys, then values. */
template <int K>
MPK_FN const char *attention_row_at(const mpk_task &t, const attention_shape &s, int token,
                                    int head)
{
    const int i = 2 * (mpk_thread() % 32), columns = (s.heads + 2 * s.kv_heads) * K;
    return mpk_at<const char>(t, AT_QKV) + (token * columns + head * K + i) * 2;
}

/* Ask for this lane's dims.  Nothing waits here: a carried word may come back empty.  Offsets in
 * bytes: K from a dim to its partner, 128 from a piece to the next. */
template <int K> MPK_FN attention_row<K> attention_ask_row(const char *from)
{
    constexpr int LAST = attention_lanes<K>::LAST;
    attention_row<K> row = {}; /* lanes beyond K / 4 hold zeros */
    if (2 * (mpk_thread() % 32) < K / 2) {
        row.low[0] = ptx_load_word(from);
        row.high[0] = ptx_load_word(from + K);
        if (LAST) {
            row.low[LAST] = ptx_load_word(from + 128);
            row.high[LAST] = ptx_load_word(from + 128 + K);
        }
    }
    return row;
}

/* Wait until what was asked for is there: a carried word is loaded again as long as it is empty.
 * All lanes meet afterwards. */
template <int K>
MPK_FN void attention_await_row(const mpk_task &t, const char *from, attention_row<K> *row)
{
    if (mpk_carries(t, AT_QKV) && 2 * (mpk_thread() % 32) < K / 2)
#pragma unroll
        for (int p = 0; p < attention_lanes<K>::PIECES; p++) {
            row->low[p] = mpk_carried_word(from + 128 * p, row->low[p]);
            row->high[p] = mpk_carried_word(from + 128 * p + K, row->high[p]);
        }
    __syncwarp();
}

/* Do the norms of heads follow the rotation?  A comparison and no test of the bit, since without a
 * norm norm_type is -1; the bit is the highest that a norm has. */
MPK_FN bool attention_norm_is_last(const attention_shape &s)
{
    return s.norm_type >= ATTENTION_NORM_LAST;
}

/* The sum of the squares of a piece, four dims, in one order of roundings (tile/products.cuh). */
MPK_FN float attention_square(rt_u32 low, rt_u32 high)
{
    const float a = ptx_low_bf16(low), b = ptx_high_bf16(low), c = ptx_low_bf16(high),
                d = ptx_high_bf16(high);
    return fmaf(d, d, fmaf(c, c, mpk_two_products(b, b, a, a)));
}
/* The pairs (a, c) and (b, d) turned by their angles: a cos - c sin, c cos + a sin.  Rounded to
 * bf16, as rope_kv stores them. */
MPK_FN void attention_rotate_pairs(const attention_angles &angles, rt_u32 *low, rt_u32 *high)
{
    const float a = ptx_low_bf16(*low), b = ptx_high_bf16(*low);   /* dims 2 lane, + 1 */
    const float c = ptx_low_bf16(*high), d = ptx_high_bf16(*high); /* their partners */
    *low = ptx_pack_bf16(mpk_two_products(a, angles.cosine.x, -c, angles.sine.x),
                         mpk_two_products(b, angles.cosine.y, -d, angles.sine.y));
    *high = ptx_pack_bf16(mpk_two_products(c, angles.cosine.x, a, angles.sine.x),
                          mpk_two_products(d, angles.cosine.y, b, angles.sine.y));
}
/* A piece normalised by `scale`, 1 / the root of the mean square, then turned; where the norm is
 * last the caller has turned it before it took the squares.  The norm's result is rounded to bf16
 * in between. */
MPK_FN void attention_rotate_piece(const attention_shape &s, float scale,
                                   const attention_angles &angles, rt_u32 *low, rt_u32 *high)
{
    if (s.norm_type >= 0) {
        const float a = ptx_low_bf16(*low), b = ptx_high_bf16(*low);
        const float c = ptx_low_bf16(*high), d = ptx_high_bf16(*high);
        *low = ptx_pack_bf16(a * scale * angles.low.x, b * scale * angles.low.y);
        *high = ptx_pack_bf16(c * scale * angles.high.x, d * scale * angles.high.y);
    }
    if (!attention_norm_is_last(s))
        attention_rotate_pairs(angles, low, high);
}

/* Normalise and rotate N rows of the warp, rounding to bf16 after each as the single operators do.
 * rotation: of each row; row: as it came, then the result.
 *
 * The same bits in every instance: a key that one step reads from scratch another reads from the
 * cache, where another graph's instance has put it.  A warp has the rows; a lane has both entries
 * of its pairs, K / 2 apart, so rotation takes no shuffle.  Lanes beyond K / 4 hold zeros and take
 * part in the sum of squares.  Sums of all rows go through their shuffles together. */
template <int K, int N>
MPK_FN void attention_rotate_rows(const attention_shape &s, const attention_rotation<K> *rotation,
                                  attention_row<K> *row)
{
    constexpr int LAST = attention_lanes<K>::LAST;
    /* The squares are of what is normalised: of rows as they came, or if the norm is last of turned
     * ones. */
    float square[N];
    if (attention_norm_is_last(s))
#pragma unroll
        for (int a = 0; a < N; a++) {
            attention_rotate_pairs(rotation[a].at[0], &row[a].low[0], &row[a].high[0]);
            if (LAST)
                attention_rotate_pairs(rotation[a].at[LAST], &row[a].low[LAST], &row[a].high[LAST]);
        }
    if (s.norm_type >= 0) {
#pragma unroll
        for (int a = 0; a < N; a++) {
            square[a] = attention_square(row[a].low[0], row[a].high[0]);
            if (LAST)
                square[a] += attention_square(row[a].low[LAST], row[a].high[LAST]);
        }
        /* Row after row in the inner loop: N shuffles are under way at a time. */
#pragma unroll
        for (int i = 16; i; i /= 2)
#pragma unroll
            for (int a = 0; a < N; a++)
                square[a] += __shfl_xor_sync(0xffffffffu, square[a], i);
    }
#pragma unroll
    for (int a = 0; a < N; a++) {
        const float scale = s.norm_type >= 0 ? rsqrtf(fmaf(square[a], 1.0f / K, s.eps)) : 1;
        attention_rotate_piece(s, scale, rotation[a].at[0], &row[a].low[0], &row[a].high[0]);
        if (LAST)
            attention_rotate_piece(s, scale, rotation[a].at[LAST], &row[a].low[LAST],
                                   &row[a].high[LAST]);
    }
}
template <int K>
MPK_FN void attention_rotate_row(const attention_shape &s, const attention_rotation<K> &rotation,
                                 attention_row<K> *row)
{
    attention_rotate_rows<K, 1>(s, &rotation, row);
}

/* A row into scratch, bf16, dims in order, as the products read queries and attention_add_alone
 * keys: a store of a warp is 128 bytes in a row, all banks. */
template <int K> MPK_FN void attention_put_row(char *s_row, const attention_row<K> &row)
{
    int i = 2 * (mpk_thread() % 32);
    if (i < K / 2)
#pragma unroll
        for (int p = 0; p < attention_lanes<K>::PIECES; p++, i += 64) {
            *(rt_u32 *)(s_row + i * 2) = row.low[p];
            *(rt_u32 *)(s_row + i * 2 + K) = row.high[p];
        }
}

/* A key, or a value, of KV head `head` into place `place` of a page of the cache.  Two neighbouring
 * dims of a key are one word there; of a value they lie 32 bytes apart. */
template <int K, int PIECE = 0>
MPK_FN void attention_store_key(const mpk_task &t, const attention_shape &s, int page, int place,
                                int head, const attention_row<K> &row)
{
    const int i = 64 * PIECE + 2 * (mpk_thread() % 32);
    rt_u16 *keys = /* of the page and head */
        mpk_at<rt_u16>(t, AT_K_CACHE) + ((rt_u64)page * s.kv_heads + head) * ATTENTION_PAGE * K;
    if (i < K / 2) {
        *(rt_u32 *)(keys + kv_key_at(place, i, ATTENTION_PAGE, K, 2)) = row.low[PIECE];
        *(rt_u32 *)(keys + kv_key_at(place, i + K / 2, ATTENTION_PAGE, K, 2)) = row.high[PIECE];
    }
    if (PIECE < attention_lanes<K>::LAST)
        attention_store_key<K, attention_lanes<K>::LAST>(t, s, page, place, head, row);
}

template <int K, int PIECE = 0>
MPK_FN void attention_store_value(const mpk_task &t, const attention_shape &s, int page, int place,
                                  int head, const attention_row<K> &row)
{
    const int i = 64 * PIECE + 2 * (mpk_thread() % 32);
    rt_u16 *values = /* of the page and head */
        mpk_at<rt_u16>(t, AT_V_CACHE) + ((rt_u64)page * s.kv_heads + head) * ATTENTION_PAGE * K;
    if (i < K / 2) {
        /* dims are 16 elements apart, blocks of 8 dims 128 */
        values += kv_value_at(place, i, ATTENTION_PAGE, K, 2);
        values[0] = (rt_u16)row.low[PIECE];
        values[16] = (rt_u16)(row.low[PIECE] >> 16);
        values += K / 16 * 128;
        values[0] = (rt_u16)row.high[PIECE];
        values[16] = (rt_u16)(row.high[PIECE] >> 16);
    }
    if (PIECE < attention_lanes<K>::LAST)
        attention_store_value<K, attention_lanes<K>::LAST>(t, s, page, place, head, row);
}

/* ---- the rows of a piece ---- */

/* Row r of what a piece needs of the step: GROUP queries of the piece's token, then n keys, then n
 * values, both of the newest token first. With 4 query heads and 2 tokens of the step: rows 0-3 are
 * queries, 4 and 5 the keys of the piece's token and of the one before it, 6 and 7 their values. */
struct attention_need {
    bool is_query, is_key; /* neither: a value */
    int back, head;        /* tokens before the piece's; of qkv */
};

/* n: tokens of the step that the piece sees.  head: of the KV heads.  r may be past the rows, at
 * GROUP + 2 n or more: callers test that before they load by the result. */
template <int GROUP>
MPK_FN attention_need attention_need_at(const attention_shape &s, int r, int head, int n)
{
    attention_need k; /* which head of which token */
    k.is_query = r < GROUP;
    k.is_key = !k.is_query && r < GROUP + n;
    k.back = k.is_query ? 0 : k.is_key ? r - GROUP : r - GROUP - n;
    /* A row of qkv is [heads | kv_heads | kv_heads][K]. */
    k.head = k.is_query ? head * GROUP + r : s.heads + (k.is_key ? 0 : s.kv_heads) + head;
    return k;
}

/* Rows that each warp of a team asks for ahead, the first ones of every TEAM.  Of half a team's
 * warps as many as the usual piece has, GROUP queries, a key and a value; of a
 * whole team, which has twice the warps for the same rows, one. */
template <int GROUP, int TEAM> struct attention_rows_ahead {
    enum { N = TEAM == MPK_WARPS ? 1 : (GROUP + 2 + TEAM - 1) / TEAM };
};

/* Rows `warp`, `warp` + TEAM ... of a piece and what they are rotated with, asked for ahead.  In
 * registers from the piece before until attention_prepare, so it is set whole once: see "Registers"
 * in docs/gpu.md. */
template <int K, int GROUP, int TEAM> struct attention_ahead {
    enum { N = attention_rows_ahead<GROUP, TEAM>::N, KINDS = N > 1 ? 2 : 1 };
    attention_row<K> row[N]; /* perhaps not there yet */
    /* of the piece's token: for queries, and for keys; of a warp with one row for that */
    attention_rotation<K> rotation[KINDS];
    int page; /* of the cache, for the piece's token; -1: there is none, or the piece does not put
               * it there.  Not set where a task fills the caches after its results */
};

/* Asks for what the rows are rotated with, of token `token`.  A warp with one row knows by its
 * number which of the two weights it needs; one with several may have queries and keys. */
template <int K, int GROUP, int TEAM>
MPK_FN void attention_ask_rotations(const mpk_task &t, const attention_shape &s, int token,
                                    attention_ahead<K, GROUP, TEAM> *ahead)
{
    if (attention_ahead<K, GROUP, TEAM>::KINDS == 1) {
        attention_ask_rotation<K>(t.e, s, token,
                                  attention_warp<TEAM>() < GROUP ? AT_Q_NORM : AT_K_NORM,
                                  &ahead->rotation[0]);
        return;
    }
    attention_ask_rotation<K>(t.e, s, token, AT_Q_NORM, &ahead->rotation[0]);
    attention_ask_rotation<K>(t.e, s, token, AT_K_NORM,
                              &ahead->rotation[attention_ahead<K, GROUP, TEAM>::KINDS - 1]);
}

/* Asks for the rows of piece *k, and finds the page that its token's key goes to. n: tokens of the
 * step that the piece sees; scratch holds at::ROWS of them at a time.  The caller has asked for the
 * rotations already. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_ask_ahead(const mpk_task &t, const attention_shape &s,
                                const attention_piece *k, int token, int head, int n,
                                attention_ahead<K, GROUP, TEAM> *ahead)
{
    typedef attention_scratch<K, GROUP, TOKENS, TEAM> at;
    if (attention_puts_as_it_goes(TOKENS))
        ahead->page = k->hi == k->units && k->position >= 0
                          ? attention_page(t.e, s, k->slot, k->position / ATTENTION_PAGE)
                          : -1;
    /* Rows beyond what scratch holds come later, by attention_prepare_more. */
    n = TOKENS > at::ROWS && n > at::ROWS ? at::ROWS : n;
#pragma unroll
    for (int a = 0; a < attention_ahead<K, GROUP, TEAM>::N; a++) {
        const int r = attention_warp<TEAM>() + a * TEAM;
        if (r < GROUP + 2 * n) {
            const attention_need need = attention_need_at<GROUP>(s, r, head, n);
            ahead->row[a] =
                attention_ask_row<K>(attention_row_at<K>(t, s, token - need.back, need.head));
        }
    }
}

/* A row of a piece, rotated, into scratch.  The token's own key and value go into the cache too,
 * where pieces put them as they go: from registers, so without a second load: to `place` of page
 * `page`, unless that is -1.  first: how far back the token is whose row comes first in scratch.
 * Earlier tokens of the step (need.back) are put into the cache by the pieces that end with
 * them. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_keep_row(const mpk_task &t, const attention_shape &s, int head,
                               const attention_need &need, int first, int page, int place,
                               const attention_row<K> &row)
{
    typedef attention_scratch<K, GROUP, TOKENS, TEAM> at;
    const int to = need.is_query
                       ? at::QUERY + (need.head - head * GROUP) * at::ROW /* row of scratch */
                       : (need.is_key ? at::KEY : at::VALUE) + (need.back - first) * at::ROW;
    attention_put_row<K>(attention_scratch_of<K, GROUP, TOKENS, TEAM>(t) + to, row);
    if (!attention_puts_as_it_goes(TOKENS) || need.is_query || need.back || page < 0)
        return;
    if (need.is_key)
        attention_store_key<K>(t, s, page, place, head, row);
    else
        attention_store_value<K>(t, s, page, place, head, row);
}

/* Rows `warp` + TEAM a of a piece, which have been asked for ahead: they are waited for, then
 * rotated together, then kept. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_prepare_ahead(const mpk_task &t, const attention_shape &s, int token,
                                    int head, int n, int place,
                                    attention_ahead<K, GROUP, TEAM> *ahead)
{
    constexpr int N = attention_ahead<K, GROUP, TEAM>::N;
    const int warp = attention_warp<TEAM>();
    attention_row<K> rotated[N];
    attention_rotation<K> rotation[N]; /* of each row */
#pragma unroll
    for (int a = 0; a < N; a++) {
        const int r = warp + a * TEAM;
        const attention_need need = attention_need_at<GROUP>(s, r, head, n);
        if (r < GROUP + 2 * n)
            attention_await_row<K>(t, attention_row_at<K>(t, s, token - need.back, need.head),
                                   &ahead->row[a]);
        rotated[a] = ahead->row[a];
        /* A value is turned with the others, and the result dropped below: no branch parts the
         * rows, so the shuffles of all are under way together.  A key of an earlier token has other
         * angles. */
        rotation[a] = ahead->rotation[0];
        if (r >= GROUP)
            rotation[a] = ahead->rotation[1];
        if (need.is_key && need.back && r < GROUP + 2 * n)
            attention_ask_rotation<K>(t.e, s, token - need.back, AT_K_NORM, &rotation[a]);
    }
    attention_rotate_rows<K, N>(s, rotation, rotated);
#pragma unroll
    for (int a = 0; a < N; a++) {
        const int r = warp + a * TEAM;
        const attention_need need = attention_need_at<GROUP>(s, r, head, n);
        if (!need.is_query && !need.is_key)
            rotated[a] = ahead->row[a];
        if (r < GROUP + 2 * n)
            attention_keep_row<K, GROUP, TOKENS, TEAM>(t, s, head, need, 0, ahead->page, place,
                                                       rotated[a]);
    }
}

/* The rows of a piece into scratch, a warp a row; `ahead` has been asked for.  With more rows than
 * warps a warp comes round again; for what has not been asked for ahead it asks then.  The caller's
 * meeting follows: only after it may warps read each other's rows. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_prepare(const mpk_task &t, const attention_shape &s, const attention_piece *k,
                              int token, int head, int n, attention_ahead<K, GROUP, TEAM> *ahead)
{
    typedef attention_scratch<K, GROUP, TOKENS, TEAM> at;
    constexpr int N = attention_ahead<K, GROUP, TEAM>::N;
    const int warp = attention_warp<TEAM>();
    const int place = k->position % ATTENTION_PAGE; /* in its page */
    n = TOKENS > at::ROWS && n > at::ROWS ? at::ROWS : n;
    if (N > 1)
        attention_prepare_ahead<K, GROUP, TOKENS, TEAM>(t, s, token, head, n, place, ahead);
#pragma unroll 1
    for (int r = N > 1 ? warp + N * TEAM : warp; r < GROUP + 2 * n; r += TEAM) {
        const attention_need need = attention_need_at<GROUP>(s, r, head, n);
        const char *from = attention_row_at<K>(t, s, token - need.back, need.head);
        if (N > 1 || r != warp)
            ahead->row[0] = attention_ask_row<K>(from);
        attention_await_row<K>(t, from, &ahead->row[0]);
        if (need.is_query || need.is_key) {
            /* The rotation that was asked for ahead is of the piece's own token. */
            if (N > 1 || r != warp || need.back)
                attention_ask_rotation<K>(t.e, s, token - need.back,
                                          need.is_key ? AT_K_NORM : AT_Q_NORM, &ahead->rotation[0]);
            attention_rotate_row<K>(s, ahead->rotation[0], &ahead->row[0]);
        }
        attention_keep_row<K, GROUP, TOKENS, TEAM>(t, s, head, need, 0, ahead->page, place,
                                                   ahead->row[0]);
    }
}

/* Keys and values of n more tokens of the step, from the one `first` tokens before the piece's on,
 * into scratch: a warp a row.  They take the places of the rows before, which all warps have left
 * (a meeting comes before and one after).  Nothing of them has been asked for ahead, so
 * each round of a warp waits for memory. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN void attention_prepare_more(const mpk_task &t, const attention_shape &s, int token, int head,
                                   int first, int n)
{
#pragma unroll 1
    for (int r = attention_warp<TEAM>(); r < 2 * n; r += TEAM) {
        attention_need need = attention_need_at<GROUP>(s, GROUP + r, head, n);
        need.back += first;
        const char *from = attention_row_at<K>(t, s, token - need.back, need.head);
        attention_rotation<K> rotation = {};
        attention_row<K> row = attention_ask_row<K>(from);
        if (need.is_key)
            attention_ask_rotation<K>(t.e, s, token - need.back, AT_K_NORM, &rotation);
        attention_await_row<K>(t, from, &row);
        if (need.is_key)
            attention_rotate_row<K>(s, rotation, &row);
        attention_keep_row<K, GROUP, TOKENS, TEAM>(t, s, head, need, first, -1, 0, row);
    }
}

#endif
