/* attention_split_heads.cuh - heads of the step's own tokens, for attention_split_stream.cuh:
 * loaded from qkv, normed and rotated, and put into scratch and into the caches.
 *
 * A piece (what one split does of one token for one KV head) needs the token's query heads, and a
 * key and a value for each token of the step that it sees.  attention_ask_ahead issues the loads of
 * a piece while the one before is still worked on; attention_prepare waits for them, turns the
 * rows and stores them, a warp a row.
 *
 * Relies on a barrier of all body warps between attention_prepare and the reads of scratch, and on
 * the division of work (attention_split_work.cuh).  In a warp lane i holds the dims 2 i, 2 i + 1
 * and those K / 2 higher, so that a rotation needs no other lane; with K = 64 half of the lanes
 * hold nothing.
 */
#ifndef TASK_ATTENTION_SPLIT_HEADS_CUH
#define TASK_ATTENTION_SPLIT_HEADS_CUH

#include "task/attention_split_work.cuh"
#include "tile/kv.cuh"

/* Scratch of a task: offsets in bytes (shape/attention_split_shape.h).  Rows are 16 bytes longer
 * than K entries, so that the eight rows of a fragment lie apart in banks. */
template <int K, int GROUP, int TOKENS = ATTENTION_FEW_TOKENS> struct attention_scratch {
    enum {
        ROW = ATTENTION_SCRATCH_ROW(K),
        QUERY = ATTENTION_SCRATCH_QUERY(K),
        MOST = ATTENTION_SCRATCH_MOST(K),
        SUM = ATTENTION_SCRATCH_SUM(K),
        OUT = ATTENTION_SCRATCH_OUT(K),
        KEY = ATTENTION_SCRATCH_KEY(K, GROUP),
        VALUE = ATTENTION_SCRATCH_VALUE(K, GROUP, TOKENS),
    };
};

/* The pairs of a head that this lane holds: dims 2 lane, 2 lane + 1 and those K / 2 higher; K / 4
 * lanes hold any. */
struct attention_row {
    rt_u32 low, high; /* two bf16 each */
};

/* What a head is turned with: the norm's weight and the angles at these dims.  Nothing of it comes
 * from this layer, so it is requested before qkv. cosine and sine are of the pairs (dim, dim + K /
 * 2), low and high the norm's weights of these. */
struct attention_turn {
    float2 low, high, cosine, sine; /* two neighbouring dims each */
};

/* Two neighbouring weights of a norm, bf16 or f32. */
MPK_FN float2 attention_norm_at(const attention_shape &s, const rt_entry *e, int operand, int dim)
{
    if (s.norm_type == 1)
        return *(const float2 *)((const float *)e->at[operand] + dim);
    rt_u32 v = *(const rt_u32 *)((const rt_u16 *)e->at[operand] + dim);
    return make_float2(ptx_low_bf16(v), ptx_high_bf16(v));
}

/* Requests what row `norm` of a token t is turned with; norm: AT_Q_NORM or AT_K_NORM. The table
 * holds K / 2 cosines, then K / 2 sines for each token. Lanes beyond K / 4 leave *turn as it is: it
 * must have been set. */
template <int K>
MPK_FN void attention_ask_turn(const rt_entry *e, const attention_shape &s, int t, int norm,
                               attention_turn *turn)
{
    const int i = 2 * (mpk_thread() % 32);                       /* this lane's first dim */
    const float *table = (const float *)e->at[AT_TABLE] + t * K; /* cosines, then sines */
    if (i >= K / 2)
        return;
    turn->cosine = *(const float2 *)(table + i);
    turn->sine = *(const float2 *)(table + K / 2 + i);
    if (s.norm_type >= 0) {
        turn->low = attention_norm_at(s, e, norm, i);
        turn->high = attention_norm_at(s, e, norm, i + K / 2);
    }
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

/* Request this lane's dims. */
template <int K> MPK_FN attention_row attention_ask_row(const char *from)
{
    attention_row row = {0, 0}; /* lanes beyond K / 4 hold zeros */
    if (2 * (mpk_thread() % 32) < K / 2) {
        row.low = ptx_load_word(from);
        row.high = ptx_load_word(from + K);
    }
    return row;
}

/* Wait until what was requested is there: a carried word is loaded again as long as it is empty.
 * All lanes meet afterwards. */
template <int K>
MPK_FN void attention_await_row(const mpk_task &t, const char *from, attention_row *row)
{
    if (mpk_carries(t, AT_QKV) && 2 * (mpk_thread() % 32) < K / 2) {
        row->low = mpk_carried_word(from, row->low);
        row->high = mpk_carried_word(from + K, row->high);
    }
    __syncwarp();
}

/* Normalise and rotate, rounding to bf16 after each as the single operators do.  A warp has the
 * row; a lane has both entries of its two pairs, K / 2 apart, so rotation takes no shuffle.  Lanes
 * beyond K / 4 hold zeros and take part in the sum of squares. */
template <int K>
MPK_FN void attention_turn_row(const attention_shape &s, const attention_turn &turn,
                               attention_row *row)
{
    float a = ptx_low_bf16(row->low), b = ptx_high_bf16(row->low);   /* dims 2 lane, + 1 */
    float c = ptx_low_bf16(row->high), d = ptx_high_bf16(row->high); /* their partners */
    if (s.norm_type >= 0) {
        float square = a * a + b * b + c * c + d * d; /* of the whole head, after the shuffles */
#pragma unroll
        for (int i = 16; i; i /= 2)
            square += __shfl_xor_sync(0xffffffffu, square, i);
        float scale = rsqrtf(square * (1.0f / K) + s.eps);
        rt_u32 low = ptx_pack_bf16(a * scale * turn.low.x, b * scale * turn.low.y);
        rt_u32 high = ptx_pack_bf16(c * scale * turn.high.x, d * scale * turn.high.y);
        a = ptx_low_bf16(low);
        b = ptx_high_bf16(low);
        c = ptx_low_bf16(high);
        d = ptx_high_bf16(high);
    }
    row->low =
        ptx_pack_bf16(a * turn.cosine.x - c * turn.sine.x, b * turn.cosine.y - d * turn.sine.y);
    row->high =
        ptx_pack_bf16(c * turn.cosine.x + a * turn.sine.x, d * turn.cosine.y + b * turn.sine.y);
}

/* A row into scratch, bf16, dims in order. */
template <int K> MPK_FN void attention_put_row(char *s_row, const attention_row &row)
{
    const int i = 2 * (mpk_thread() % 32);
    if (i < K / 2) {
        *(rt_u32 *)(s_row + i * 2) = row.low;
        *(rt_u32 *)(s_row + i * 2 + K) = row.high;
    }
}

/* A key, or a value, of KV head `head` into place `place` of a page of the cache.  Two neighbouring
 * dims of a key are one word there; of a value they lie 32 bytes apart. */
template <int K>
MPK_FN void attention_store_key(const mpk_task &t, const attention_shape &s, int page, int place,
                                int head, const attention_row &row)
{
    const int i = 2 * (mpk_thread() % 32);
    rt_u16 *keys = /* of the page and head */
        mpk_at<rt_u16>(t, AT_K_CACHE) + ((rt_u64)page * s.kv_heads + head) * ATTENTION_PAGE * K;
    if (i < K / 2) {
        *(rt_u32 *)(keys + kv_key_at(place, i, ATTENTION_PAGE, K, 2)) = row.low;
        *(rt_u32 *)(keys + kv_key_at(place, i + K / 2, ATTENTION_PAGE, K, 2)) = row.high;
    }
}

/* A value's dims lie 32 bytes apart in its block, so each is a store of its own (tile/kv.cuh). */
template <int K>
MPK_FN void attention_store_value(const mpk_task &t, const attention_shape &s, int page, int place,
                                  int head, const attention_row &row)
{
    const int i = 2 * (mpk_thread() % 32);
    rt_u16 *values = /* of the page and head */
        mpk_at<rt_u16>(t, AT_V_CACHE) + ((rt_u64)page * s.kv_heads + head) * ATTENTION_PAGE * K;
    if (i < K / 2) {
        /* dims are 16 elements apart, blocks of 8 dims 128 */
        values += kv_value_at(place, i, ATTENTION_PAGE, K, 2);
        values[0] = (rt_u16)row.low;
        values[16] = (rt_u16)(row.low >> 16);
        values += K / 16 * 128;
        values[0] = (rt_u16)row.high;
        values[16] = (rt_u16)(row.high >> 16);
    }
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

/* Row `warp` of a piece and what it is turned with: each warp's first, requested ahead.  page: of
 * the cache, for the piece's token; -1: there is none, or the piece does not put it there. */
struct attention_ahead {
    attention_row row;   /* perhaps not there yet */
    attention_turn turn; /* of the piece's token */
    int page;
};

/* Requests row `warp` of piece *k, and finds the page that its token's key goes to. n: tokens of
 * the step that the piece sees; no more than ATTENTION_STEP_ROWS of them lie in scratch
 * (attention_step_row brings the others). The caller has requested the turn already. */
template <int K, int GROUP, int TOKENS>
MPK_FN void attention_ask_ahead(const mpk_task &t, const attention_shape &s,
                                const attention_piece *k, int token, int head, int n,
                                attention_ahead *ahead)
{
    const int warp = mpk_thread() / 32; /* a row of the piece each */
    if (attention_puts_as_it_goes(TOKENS))
        ahead->page = n && k->position >= 0
                          ? attention_page(t.e, s, k->slot, k->position / ATTENTION_PAGE)
                          : -1;
    n = TOKENS > ATTENTION_STEP_ROWS && n > ATTENTION_STEP_ROWS ? ATTENTION_STEP_ROWS : n;
    if (warp < GROUP + 2 * n) {
        const attention_need need = attention_need_at<GROUP>(s, warp, head, n); /* a head of qkv */
        ahead->row = attention_ask_row<K>(attention_row_at<K>(t, s, token - need.back, need.head));
    }
}

/* The rows of a piece into scratch, turned, a warp a row; `ahead` has been requested, its turn for
 * the piece's token. With more rows than warps a warp comes round again and asks again. The token's
 * own key and value go into the cache too, where pieces put them as they go: from registers, so
 * without a second load. */
template <int K, int GROUP, int TOKENS>
MPK_FN void attention_prepare(const mpk_task &t, const attention_shape &s, const attention_piece *k,
                              int token, int head, int n, attention_ahead *ahead)
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

#endif
