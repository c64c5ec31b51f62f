/* attention_split_stream.cuh - attention of a few tokens over bf16 pages that stream through the
 * page ring: the body, the tokens of the step, the caches (attention_split_pages.cuh: the pages).
 *
 * The operator attention_split: see src/op/attention_split.c for what belongs to which split.  One
 * task is some splits of some KV heads; the query heads of a KV head (at most 8) are the rows of
 * one tensor-core operand.
 *
 * A pair of KV pages (64 tokens each) is worked at a time: a warp takes 16 tokens.  Keys and values
 * lie in fragment order (tile/kv.cuh), so that the products' operands are single shared loads and
 * the scores of q k^T are already the operand of p v.  Tokens of the step itself come from qkv, one
 * warp a query head, in f32.  The partial results of the warps meet in shared memory and are folded
 * in the order of warps: the same bits on every run.
 * A token's key and value go into the caches with the piece that holds the end of its context, of
 * few tokens after the results have gone out, unless this is the worker's last task.
 *
 * With `own` a token has the same bits whatever else of its slot is in the step (drafts that stand
 * are tokens like others): only the token itself is taken in f32.  Earlier ones of the step belong
 * to the pages: each warp writes those of its 16 positions into the page in the ring, where the
 * cache would have them (attention_patch), before it reads that.
 *
 * A piece is what one split does of one token for one KV head.  Two barriers divide it: between
 * attention_prepare and the products (queries, and keys and values of the step, are in scratch),
 * and between these and the fold (all partials are there).  A third is not needed: what the next
 * piece prepares (QUERY, KEY, VALUE) was read before the second barrier, and the partials that the
 * fold reads are written again only after the next piece's first.
 *
 * Lane 4 g + c of a warp: of scores row (query head) g and positions 2c, 2c + 1 of each 8; of
 * results dims g and heads 2c, 2c + 1, for v^T p^T is transposed.
 */
#ifndef TASK_ATTENTION_SPLIT_STREAM_CUH
#define TASK_ATTENTION_SPLIT_STREAM_CUH

#include "task/attention_split_pages.cuh"
#include "tile/inverse.cuh"
#include "tile/products.cuh"

/* ---- heads of the step ---- */

/* How the lanes of a warp hold a head.  A lane has PIECES times two neighbouring dims and their
 * partners, K / 2 higher: piece i of lane l is dims 64 i + 2 l and + 1.  Of heads of less than 128
 * dims lanes beyond K / 4 hold none. */
template <int K> struct attention_lanes {
    enum { PIECES = K > 128 ? 2 : 1, LAST = PIECES - 1 };
    static_assert(K <= 128 || K == 256, "two pieces are all lanes full");
};

/* The pairs of a head that this lane holds. */
template <int K> struct attention_row {
    rt_u32 low[attention_lanes<K>::PIECES], high[attention_lanes<K>::PIECES]; /* two bf16 each */
};

/* What a head is turned with: the norm's weight and the angles at these dims.  Nothing of it comes
 * from this layer, so it is asked for before qkv. cosine and sine are of the pairs (dim, dim + K /
 * 2), low and high the norm's weights of these. */
struct attention_angles {
    float2 low, high, cosine, sine; /* two neighbouring dims each */
};
template <int K> struct attention_turn {
    attention_angles at[attention_lanes<K>::PIECES];
};

/* Two neighbouring weights of a norm, bf16 or f32. */
MPK_FN float2 attention_norm_at(const attention_shape &s, const rt_entry *e, int operand, int dim)
{
    if (s.norm_type == 1)
        return *(const float2 *)((const float *)e->at[operand] + dim);
    rt_u32 v = *(const rt_u32 *)((const rt_u16 *)e->at[operand] + dim);
    return make_float2(ptx_low_bf16(v), ptx_high_bf16(v));
}

/* Asks for what row `norm` of a token t is turned with; norm: AT_Q_NORM or AT_K_NORM. The table
 * holds K / 2 cosines, then K / 2 sines for each token. Lanes beyond K / 4 leave *turn as it is: it
 * must have been set. */
template <int K, int PIECE = 0>
MPK_FN void attention_ask_turn(const rt_entry *e, const attention_shape &s, int t, int norm,
                               attention_turn<K> *turn)
{
    const int i = 64 * PIECE + 2 * (mpk_thread() % 32);          /* this lane's first dim */
    const float *table = (const float *)e->at[AT_TABLE] + t * K; /* cosines, then sines */
    if (i >= K / 2)
        return;
    turn->at[PIECE].cosine = *(const float2 *)(table + i);
    turn->at[PIECE].sine = *(const float2 *)(table + K / 2 + i);
    if (s.norm_type >= 0) {
        turn->at[PIECE].low = attention_norm_at(s, e, norm, i);
        turn->at[PIECE].high = attention_norm_at(s, e, norm, i + K / 2);
    }
    if (PIECE < attention_lanes<K>::LAST)
        attention_ask_turn<K, attention_lanes<K>::LAST>(e, s, t, norm, turn);
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

/* Ask for this lane's dims. */
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

/* The squares of a piece; its dims normalised by `scale` and rotated. */
MPK_FN float attention_square(rt_u32 low, rt_u32 high)
{
    const float a = ptx_low_bf16(low), b = ptx_high_bf16(low), c = ptx_low_bf16(high),
                d = ptx_high_bf16(high);
    return fmaf(d, d, fmaf(c, c, mpk_two_products(b, b, a, a)));
}
MPK_FN void attention_turn_piece(const attention_shape &s, float scale,
                                 const attention_angles &turn, rt_u32 *low, rt_u32 *high)
{
    float a = ptx_low_bf16(*low), b = ptx_high_bf16(*low);   /* dims 2 lane, + 1 */
    float c = ptx_low_bf16(*high), d = ptx_high_bf16(*high); /* their partners */
    if (s.norm_type >= 0) {
        rt_u32 x = ptx_pack_bf16(a * scale * turn.low.x, b * scale * turn.low.y);
        rt_u32 y = ptx_pack_bf16(c * scale * turn.high.x, d * scale * turn.high.y);
        a = ptx_low_bf16(x);
        b = ptx_high_bf16(x);
        c = ptx_low_bf16(y);
        d = ptx_high_bf16(y);
    }
    *low = ptx_pack_bf16(mpk_two_products(a, turn.cosine.x, -c, turn.sine.x),
                         mpk_two_products(b, turn.cosine.y, -d, turn.sine.y));
    *high = ptx_pack_bf16(mpk_two_products(c, turn.cosine.x, a, turn.sine.x),
                          mpk_two_products(d, turn.cosine.y, b, turn.sine.y));
}

/* Normalise and rotate, rounding to bf16 after each as the single operators do.  The same bits in
 * every instance: a key that one step reads from scratch another reads from the cache, where
 * another graph's instance has put it.  A warp has the
 * row; a lane has both entries of its pairs, K / 2 apart, so rotation takes no shuffle.  Lanes
 * beyond K / 4 hold zeros and take part in the sum of squares. */
template <int K>
MPK_FN void attention_turn_row(const attention_shape &s, const attention_turn<K> &turn,
                               attention_row<K> *row)
{
    constexpr int LAST = attention_lanes<K>::LAST;
    float scale = 1;
    if (s.norm_type >= 0) {
        float square = attention_square(row->low[0], row->high[0]);
        if (LAST)
            square += attention_square(row->low[LAST], row->high[LAST]);
#pragma unroll
        for (int i = 16; i; i /= 2)
            square += __shfl_xor_sync(0xffffffffu, square, i);
        scale = rsqrtf(fmaf(square, 1.0f / K, s.eps));
    }
    attention_turn_piece(s, scale, turn.at[0], &row->low[0], &row->high[0]);
    if (LAST)
        attention_turn_piece(s, scale, turn.at[LAST], &row->low[LAST], &row->high[LAST]);
}

/* A row into scratch, bf16, dims in order. */
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

/* Row r of what a piece needs of the step: queries, then keys, then values, both of the newest
 * token first. With 4 query heads and 2 tokens of the step: rows 0-3 are queries, 4 and 5 the keys
 * of the piece's token and of the one before it, 6 and 7 their values. */
struct attention_need {
    bool is_query, is_key; /* neither: a value */
    int back, head;        /* tokens before the piece's; of qkv */
};

/* n: tokens of the step that the piece sees. */
template <int GROUP>
MPK_FN attention_need attention_need_at(const attention_shape &s, int r, int head, int n)
{
    attention_need k; /* which head of which token */
    k.is_query = r < GROUP;
    k.is_key = !k.is_query && r < GROUP + n;
    k.back = k.is_query ? 0 : k.is_key ? r - GROUP : r - GROUP - n;
    k.head = k.is_query ? head * GROUP + r : s.heads + (k.is_key ? 0 : s.kv_heads) + head;
    return k;
}

/* Row `warp` of a piece and what it is turned with: each warp's first, asked for ahead.  page: of
 * the cache, for the piece's token; -1: there is none, or the piece does not put it there. */
template <int K> struct attention_ahead {
    attention_row<K> row;   /* perhaps not there yet */
    attention_turn<K> turn; /* of the piece's token */
    int page;
};

/* Asks for row `warp` of piece *k, and finds the page that its token's key goes to. n: tokens of
 * the step that the piece sees; no more than ATTENTION_STEP_ROWS of them lie in scratch
 * (attention_step_row brings the others). The caller has asked for the turn already. */
template <int K, int GROUP, int TOKENS>
MPK_FN void attention_ask_ahead(const mpk_task &t, const attention_shape &s,
                                const attention_piece *k, int token, int head, int n,
                                attention_ahead<K> *ahead)
{
    const int warp = mpk_thread() / 32; /* a row of the piece each */
    if (attention_puts_as_it_goes(TOKENS))
        ahead->page = k->hi == k->units && k->position >= 0
                          ? attention_page(t.e, s, k->slot, k->position / ATTENTION_PAGE)
                          : -1;
    n = TOKENS > ATTENTION_STEP_ROWS && n > ATTENTION_STEP_ROWS ? ATTENTION_STEP_ROWS : n;
    if (warp < GROUP + 2 * n) {
        const attention_need need = attention_need_at<GROUP>(s, warp, head, n); /* a head of qkv */
        ahead->row = attention_ask_row<K>(attention_row_at<K>(t, s, token - need.back, need.head));
    }
}

/* The rows of a piece into scratch, turned, a warp a row; `ahead` has been asked for, its turn for
 * the piece's token. With more rows than warps a warp comes round again and asks anew. The token's
 * own key and value go into the cache too, where pieces put them as they go: from registers, so
 * without a second load. */
template <int K, int GROUP, int TOKENS>
MPK_FN void attention_prepare(const mpk_task &t, const attention_shape &s, const attention_piece *k,
                              int token, int head, int n, attention_ahead<K> *ahead)
{
    typedef attention_scratch<K, GROUP, TOKENS> at;
    const int warp = mpk_thread() / 32;
    n = TOKENS > ATTENTION_STEP_ROWS && n > ATTENTION_STEP_ROWS ? ATTENTION_STEP_ROWS : n;
#pragma unroll 1
    for (int r = warp; r < GROUP + 2 * n; r += MPK_WARPS) {
        const attention_need need = attention_need_at<GROUP>(s, r, head, n);
        const char *from = attention_row_at<K>(t, s, token - need.back, need.head);
        if (r != warp)
            ahead->row = attention_ask_row<K>(from);
        attention_await_row<K>(t, from, &ahead->row);
        if (need.is_query || need.is_key) {
            if (r != warp || need.back)
                attention_ask_turn<K>(t.e, s, token - need.back,
                                      need.is_key ? AT_K_NORM : AT_Q_NORM, &ahead->turn);
            attention_turn_row<K>(s, ahead->turn, &ahead->row);
        }
        const int to = need.is_query ? at::QUERY + r * at::ROW /* row of scratch */
                                     : (need.is_key ? at::KEY : at::VALUE) + need.back * at::ROW;
        attention_put_row<K>(t.s_scratch + to, ahead->row);
        if (!attention_puts_as_it_goes(TOKENS) || need.is_query || need.back || ahead->page < 0)
            continue;
        const int place = k->position % ATTENTION_PAGE; /* in the page */
        if (need.is_key)
            attention_store_key<K>(t, s, ahead->page, place, head, ahead->row);
        else
            attention_store_value<K>(t, s, ahead->page, place, head, ahead->row);
    }
}

/* ---- the tokens of the step ---- */

/* Where key and value of token `token` of the step lie in scratch, which is `back` tokens before
 * the piece's.  Those beyond ATTENTION_STEP_ROWS, of which serving has none, each warp brings for
 * itself. */
template <int K, int GROUP, int TOKENS>
MPK_FN int attention_step_row(const mpk_task &t, const attention_shape &s, int token, int back,
                              int head)
{
    typedef attention_scratch<K, GROUP, TOKENS> at;
    if (TOKENS <= ATTENTION_STEP_ROWS || back < ATTENTION_STEP_ROWS)
        return back * at::ROW;
    const int own = (ATTENTION_STEP_ROWS + mpk_thread() / 32) * at::ROW; /* a row a warp */
    const char *from = attention_row_at<K>(t, s, token, s.heads + head),
               *value = from + s.kv_heads * K * 2;
    attention_turn<K> turn = {}; /* of the token that is brought */
    attention_row<K> row = attention_ask_row<K>(from);
    attention_ask_turn<K>(t.e, s, token, AT_K_NORM, &turn);
    attention_await_row<K>(t, from, &row); /* and all lanes have done with the row before */
    attention_turn_row<K>(s, turn, &row);
    attention_put_row<K>(t.s_scratch + at::KEY + own, row);
    row = attention_ask_row<K>(value);
    attention_await_row<K>(t, value, &row);
    attention_put_row<K>(t.s_scratch + at::VALUE + own, row);
    __syncwarp();
    return own;
}

/* The n tokens of the step, in f32, newest first: partial 8.  Query head 0 by the last warp, and so
 * on: of a context of one page the first warps have the page.  A lane has dims 2 lane and + 1 of
 * each 64; scores are the same in all lanes.  Rows of no query head (GROUP < 8) leave at once. */
template <int K, int GROUP, int TOKENS>
MPK_FN void attention_step(const mpk_task &t, const attention_shape &s, int token, int head, int n,
                           int from)
{
    typedef attention_scratch<K, GROUP, TOKENS> at;
    const int thread = mpk_thread(), row = MPK_WARPS - 1 - thread / 32, lane = thread % 32;
    const float none = -__int_as_float(0x7f800000);
    if (row >= GROUP) /* fewer query heads than warps */
        return;
    constexpr int WORDS = (K + 63) / 64; /* of a lane, of two dims */
    float most = none, sum = 0, out[2 * WORDS],
          query[2 * WORDS]; /* in every lane; dims of a lane */
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const bool there = K % 64 == 0 || lane + 32 * i < K / 2;
        rt_u32 q =
            there ? *(const rt_u32 *)(t.s_scratch + at::QUERY + row * at::ROW + (lane + 32 * i) * 4)
                  : 0;
        query[2 * i] = ptx_low_bf16(q);
        query[2 * i + 1] = ptx_high_bf16(q);
        out[2 * i] = out[2 * i + 1] = 0;
    }
#pragma unroll 1
    for (int back = 0; back < n; back++) {
        if (back && s.window && mpk_at<const int>(t, AT_POSITIONS)[token - back] < from)
            continue;
        const int at_row = attention_step_row<K, GROUP, TOKENS>(t, s, token - back, back, head);
        const char *key = t.s_scratch + at::KEY + at_row, *value = t.s_scratch + at::VALUE + at_row;
        float score = 0; /* a lane's dims, then all */
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            if (K % 64 && lane + 32 * i >= K / 2)
                continue;
            rt_u32 v = *(const rt_u32 *)(key + (lane + 32 * i) * 4);
            score = fmaf(query[2 * i], ptx_low_bf16(v),
                         fmaf(query[2 * i + 1], ptx_high_bf16(v), score));
        }
#pragma unroll
        for (int d = 16; d; d /= 2)
            score += __shfl_xor_sync(0xffffffffu, score, d);
        score = attention_score_of(s, score);
        float next = fmaxf(most, score), correction = ptx_exp2(most - next),
              p = ptx_exp2(score - next);
        sum = sum * correction + p; /* relative to the new largest score */
        most = next;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            if (K % 64 && lane + 32 * i >= K / 2)
                continue;
            rt_u32 v = *(const rt_u32 *)(value + (lane + 32 * i) * 4);
            out[2 * i] = out[2 * i] * correction + p * ptx_low_bf16(v);
            out[2 * i + 1] = out[2 * i + 1] * correction + p * ptx_high_bf16(v);
        }
    }
    if (lane == 0) {
        ((float *)(t.s_scratch + at::MOST))[8 * 8 + row] = most;
        ((float *)(t.s_scratch + at::SUM))[8 * 8 + row] = sum;
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        if (K % 64 == 0 || lane + 32 * i < K / 2)
            *(float2 *)(t.s_scratch + at::OUT + ((8 * GROUP + row) * K + 2 * (lane + 32 * i)) * 4) =
                make_float2(out[2 * i], out[2 * i + 1]);
}

/* A warp's partial of the pages into scratch; what was summed by lanes is added up here. */
template <int K, int GROUP> MPK_FN void attention_put(const mpk_task &t, attention_state<K> *a)
{
    typedef attention_scratch<K, GROUP> at;
    const int thread = mpk_thread(), warp = thread / 32, lane = thread % 32, g = lane / 4,
              c = lane % 4;
    a->sum += __shfl_xor_sync(0xffffffffu, a->sum, 1); /* the four lanes of row g */
    a->sum += __shfl_xor_sync(0xffffffffu, a->sum, 2);
    if (c == 0 && g < GROUP) {
        ((float *)(t.s_scratch + at::MOST))[warp * 8 + g] = a->most;
        ((float *)(t.s_scratch + at::SUM))[warp * 8 + g] = a->sum;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float *to = (float *)(t.s_scratch + at::OUT) + (warp * GROUP + 2 * c + e) * K + g;
        if (2 * c + e < GROUP)
#pragma unroll
            for (int n = 0; n < K / 16; n++) {
                to[16 * n] = a->out[n][e];
                to[16 * n + 8] = a->out[n][2 + e];
            }
    }
}

/* Fold the partials in order and store the piece: the result as bf16, and the natural logarithm of
 * its sum of weights, by which the splits are folded later.  A thread has two dims of a head and
 * finds the head's largest score itself, so no barrier is needed for it.  pairs: there were pages
 * for warps 4 to 7.
 *
 * What warps 4 to 7 have left in scratch without a page is of an earlier piece, so it is skipped,
 * not weighed by 0.
 */
template <int K, int GROUP>
MPK_FN void attention_fold_partials(const mpk_task &t, const attention_shape &s, int token,
                                    int split, int head, bool pairs)
{
    typedef attention_scratch<K, GROUP> at;
    const float *s_most = (const float *)(t.s_scratch + at::MOST),
                *s_sum = (const float *)(t.s_scratch + at::SUM);
    const float *s_out = (const float *)(t.s_scratch + at::OUT);
    const float none = -__int_as_float(0x7f800000);
    char *part = mpk_at<char>(t, s.part) +
                 ((rt_u64)(token * s.splits + split) * s.heads + head * GROUP) * K * 2;
    float *lse =
        mpk_at<float>(t, s.part + 1) + (rt_u64)(token * s.splits + split) * s.heads + head * GROUP;
#pragma unroll 1
    for (int i = mpk_thread(); i < GROUP * K / 2; i += MPK_THREADS) {
        int row = 2 * i / K, dim = 2 * i % K;     /* query head of the group; its two dims */
        float most = none, sum = 0, a = 0, b = 0; /* over the partials */
#pragma unroll
        for (int w = 0; w < ATTENTION_PARTIALS; w++)
            most = fmaxf(most, s_most[w * 8 + row]);
        float zero = most == none ? 0 : most; /* -inf less -inf would be NaN */
#pragma unroll
        for (int w = 0; w < ATTENTION_PARTIALS; w++) {
            if (w >= 4 && w < 8 && !pairs)
                continue;
            float f = ptx_exp2(s_most[w * 8 + row] - zero); /* factor of the partial */
            float2 v = *(const float2 *)(s_out + (w * GROUP + row) * K + dim);
            sum += f * s_sum[w * 8 + row]; /* partials in the order of warps */
            a += f * v.x;
            b += f * v.y;
        }
        float scale = sum > 0 ? mpk_inverse(sum) : 0; /* nothing was seen: zeros */
        ptx_store_word(part + (row * K + dim) * 2, ptx_pack_bf16(a * scale, b * scale));
        if (dim == 0)
            ptx_store_word(lse + row,
                           __float_as_uint(sum > 0 ? (most + ptx_log2(sum)) * 0.69314718f : none));
    }
}

/* ---- the caches ---- */

/* Those of `tokens`, a bit each, that are number `warp` and + 8: everything is asked for before any
 * of it is used.  Of a warp with one token both turns are that token, so that the loads stand
 * without branches; the second has page -1 and stores nothing. For graphs of at most 16 tokens,
 * hence two for each of the eight warps. */
template <int K>
MPK_FN void attention_fill_cache(const mpk_task &t, const attention_shape &s,
                                 const attention_plan *plan, int head, rt_u32 tokens)
{
    const int warp = mpk_thread() / 32;
    attention_row<K> key[2], value[2]; /* of the warp's two tokens */
    attention_turn<K> turn[2] = {};    /* of the two tokens' keys */
    int page[2], position[2];
    const rt_u32 mine = tokens >> warp & (1u | 1u << MPK_WARPS);
    if (!mine) /* the warp has no token */
        return;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const bool there = mine >> u * MPK_WARPS & 1; /* has the warp a token u? */
        const int known = warp + (there ? u : !u) * MPK_WARPS;
        position[u] = __shfl_sync(0xffffffffu, plan->position, known);
        const int slot = __shfl_sync(0xffffffffu, plan->slot, known);
        page[u] = there && position[u] >= 0
                      ? attention_page(t.e, s, slot, position[u] / ATTENTION_PAGE)
                      : -1;
        key[u] = attention_ask_row<K>(attention_row_at<K>(t, s, known, s.heads + head));
        value[u] =
            attention_ask_row<K>(attention_row_at<K>(t, s, known, s.heads + s.kv_heads + head));
        attention_ask_turn<K>(t.e, s, known, AT_K_NORM, &turn[u]);
    }
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const int known = warp + (mine >> u * MPK_WARPS & 1 ? u : !u) * MPK_WARPS;
        attention_await_row<K>(t, attention_row_at<K>(t, s, known, s.heads + head), &key[u]);
        attention_await_row<K>(t, attention_row_at<K>(t, s, known, s.heads + s.kv_heads + head),
                               &value[u]);
        attention_turn_row<K>(s, turn[u], &key[u]);
        if (page[u] < 0)
            continue;
        const int place = position[u] % ATTENTION_PAGE; /* in the page */
        attention_store_key<K>(t, s, page[u], place, head, key[u]);
        attention_store_value<K>(t, s, page[u], place, head, value[u]);
    }
}

/* ---- the body ---- */

/* Tokens of the step that a piece of token `token` needs: those of its slot up to itself, if the
 * piece has the end of the context or, with `own`, a position of the step; else none. */
MPK_FN int attention_of_step(const attention_piece *k, const attention_shape &s, int token)
{
    const int back = token - k->first; /* the step begins with position k->position - back */
    if (s.own && k->position - back < k->hi * s.unit)
        return back + 1;
    return k->hi == k->units ? back + 1 : 0;
}

/* A split of a KV head: units lo <= u < hi of token lot + t in lane t. */
struct attention_work {
    int split, head, lo, hi; /* head: of the KV heads */
};

/* The piece of token `token`; then *k is that of token `next`, if that is not -1, and what it
 * begins with has been asked for: one wait less for each piece but the first. */
template <int K, int GROUP, int TOKENS>
MPK_FN void attention_split_piece(const mpk_task &t, const attention_shape &s,
                                  const attention_plan *plan, const attention_work &w, int token,
                                  int next, attention_piece *k, attention_ahead<K> *ahead,
                                  mpk_ring *ring)
{
    const int n = attention_of_step(k, s, token), from = k->from;
    /* of these in f32: with `own` the token alone, and by the piece that ends with it */
    const int n_alone = !s.own ? n : k->hi == k->units ? 1 : 0;
    const bool pairs = k->last_page - k->first_page > 1; /* warps 4 to 7 have partials */
    attention_state<K> a;
    a.most = -__int_as_float(0x7f800000);
    a.sum = 0; /* nothing seen yet */
#pragma unroll
    for (int n = 0; n < K / 16; n++)
        a.out[n][0] = a.out[n][1] = a.out[n][2] = a.out[n][3] = 0;
    attention_prepare<K, GROUP, TOKENS>(t, s, k, token, w.head, n, ahead);
    mpk_sync();
    attention_pages<K, GROUP, TOKENS>(t, s, k, n, ring, &a);
    if (K > 128) /* set anew, so that the registers are not kept through the pages */
        *ahead = {};
    /* *k is not needed any more (n_alone and from have been kept): it becomes the next piece's,
     * whose loads are under way during the tokens of the step and the fold. */
    if (next >= 0) {
        attention_find(plan, s, w.lo, w.hi, next - plan->lot, k);
        attention_ask_turn<K>(t.e, s, next, mpk_thread() / 32 < GROUP ? AT_Q_NORM : AT_K_NORM,
                              &ahead->turn);
        attention_ask_ahead<K, GROUP, TOKENS>(t, s, k, next, w.head, attention_of_step(k, s, next),
                                              ahead);
    }
    attention_step<K, GROUP, TOKENS>(t, s, token, w.head, n_alone, from);
    attention_put<K, GROUP>(t, &a);
    mpk_sync();
    attention_fold_partials<K, GROUP>(t, s, token, w.split, w.head, pairs);
}

/* Of a few tokens those whose last units the task does. The task with a token's last unit is the
 * one that has its key and value in its hands, and the only one: so each place of the cache has one
 * writer. */
template <int K, int GROUP>
MPK_FN void attention_fill_caches(const mpk_task &t, const attention_shape &s,
                                  const attention_plan *plan)
{
#pragma unroll 1
    for (int split = (int)t.e->lo[1]; split < (int)t.e->hi[1]; split++) {
        int lo, hi; /* units of this lane's token */
        attention_share(plan, s, split, &lo, &hi);
        const rt_u32 tokens = __ballot_sync(0xffffffffu, lo < hi && hi == plan->units);
        const int first = (int)t.e->lo[2] / (GROUP * K), last = (int)t.e->hi[2] / (GROUP * K);
#pragma unroll 1
        for (int head = first; tokens && head < last; head++)
            attention_fill_cache<K>(t, s, plan, head, tokens);
    }
}

/* Of the lot's tokens that this split does nothing of: -infinity as the logarithm of the sum, which
 * gives it no weight; its row of results is not written, and not read. */
template <int GROUP>
MPK_FN void attention_put_none(const mpk_task &t, const attention_shape &s, int lot, int live,
                               rt_u32 tokens, int split, int head)
{
    const int thread = mpk_thread(), token = lot + thread % 32, row = thread / 32;
    if (row < GROUP && token < live && !(tokens >> thread % 32 & 1))
        ptx_store_word(mpk_at<float>(t, s.part + 1) + (token * s.splits + split) * s.heads +
                           head * GROUP + row,
                       __float_as_uint(-__int_as_float(0x7f800000)));
}

/* A split of a KV head, of the tokens of a lot.  *waited: for the task's event; what can be asked
 * for ahead, is. Order matters to `waited`: before the event come the plan, the piece and the turn,
 * which no task of this step writes; after it qkv. */
template <int K, int GROUP, int TOKENS>
MPK_FN void attention_split_lot(const mpk_task &t, const attention_shape &s,
                                const attention_plan *plan, int live, int split, int head,
                                bool *waited, mpk_ring *ring)
{
    attention_work w = {split, head, 0, 0}; /* units are filled in next */
    attention_piece k = {};                 /* of the token that is worked on */
    attention_ahead<K> ahead = {}; /* what is set on some ways only keeps its registers for ever */
    rt_u32 left = attention_share(plan, s, split, &w.lo, &w.hi);
    const rt_u32 tokens = left; /* bits of the lot's tokens of which the split has a piece */
    const int lot = plan->lot, first = lot + __ffs((int)left) - 1;
    if (left) { /* of row `warp`: a query, or the newest key */
        attention_find(plan, s, w.lo, w.hi, first - lot, &k);
        attention_ask_turn<K>(t.e, s, first, mpk_thread() / 32 < GROUP ? AT_Q_NORM : AT_K_NORM,
                              &ahead.turn);
    }
    if (!*waited)
        mpk_wait(t);
    *waited = true;
    if (left)
        attention_ask_ahead<K, GROUP, TOKENS>(t, s, &k, first, head,
                                              attention_of_step(&k, s, first), &ahead);
    attention_put_none<GROUP>(t, s, lot, live, tokens, split, head);
#pragma unroll 1
    while (left) {
        const int token = lot + __ffs((int)left) - 1;
        left &= left - 1;
        attention_split_piece<K, GROUP, TOKENS>(
            t, s, plan, w, token, left ? lot + __ffs((int)left) - 1 : -1, &k, &ahead, ring);
    }
}

/* The body.  Lots of 32 tokens, KV heads, splits: in this order the loader has asked for the pages,
 * so neither may change alone.  The position in the ring is kept in a copy, in registers. */
template <int K, int GROUP, int TOKENS>
MPK_FN void attention_split_stream(const mpk_task &t, const attention_shape &s)
{
    const int live = (int)mpk_smaller(t.live[RT_TOKENS], t.e->hi[0]);
    mpk_ring ring = *t.ring; /* in registers for the life of the task */
    attention_plan plan;     /* of the lot, a token a lane */
    attention_plan_step<TOKENS>(t.e, live, s, &plan);
    bool waited = !t.e->quiet; /* for the event, by all threads alike */
    if (waited)                /* the angles are of this step */
        mpk_wait(t);
    do
#pragma unroll 1
        for (int head = (int)t.e->lo[2] / (GROUP * K); head < (int)t.e->hi[2] / (GROUP * K); head++)
#pragma unroll 1
            for (int split = (int)t.e->lo[1]; split < (int)t.e->hi[1]; split++)
                attention_split_lot<K, GROUP, TOKENS>(t, s, &plan, live, split, head, &waited,
                                                      &ring);
    while (attention_next_lot<TOKENS>(t.e, live, s, &plan));
    if (!waited)
        mpk_wait(t);
    *t.ring = ring;
    if (attention_puts_as_it_goes(TOKENS)) {
        mpk_trigger(t);
        return;
    }
    /* No task reads these positions in this step, and the worker's next trigger releases the writes
     * too.  But what is not carried gives its memory away once the event has come, and filling
     * reads qkv. */
    const bool late = t.e->is_last || !mpk_carries(t, AT_QKV);
    if (!late)
        mpk_trigger(t);
    attention_fill_caches<K, GROUP>(t, s, &plan);
    if (late)
        mpk_trigger(t);
}

#endif
