/* attention_split_stream.cuh - attention of a few tokens over bf16 pages that stream through the page ring.
 *
 * The operator attention_split: see src/op/attention_split.c for what belongs to which split.  One task is some splits
 * of some KV heads; the query heads of a KV head (at most 8) are the rows of one tensor-core operand.
 *
 * A pair of KV pages (64 tokens each) is worked at a time: a warp takes 16 tokens.  Keys and values lie in fragment
 * order (tile/kv.cuh), so that the products' operands are single shared loads and the scores of q k^T are already the
 * operand of p v.  Tokens of the step itself come from qkv, one warp a query head, in f32.  The partial results of the
 * warps meet in shared memory and are folded in the order of warps: the same bits on every run.
 * The caches are filled after the results have gone out, unless this is the worker's last task.
 */
#ifndef TASK_ATTENTION_SPLIT_STREAM_CUH
#define TASK_ATTENTION_SPLIT_STREAM_CUH

#include "tile/kv.cuh"
#include "tile/ring.cuh"

enum {
    ATTENTION_PAGE = 64,    /* tokens of a KV page */
    ATTENTION_ROWS = 8,     /* query heads of a KV head, at most */
    ATTENTION_TOKENS = 16,  /* T, at most */
    ATTENTION_PARTIALS = 9, /* of 8 warps, and of the tokens of the step */
};

struct attention_shape {
    int heads, kv_heads, head_size, group; /* group: query heads of a KV head */
    int splits, unit, window;
    int slots, slot_pages, n_pages;
    int norm_type; /* of q_norm and k_norm: 0 bf16, 1 f32, -1 absent */
    float eps, scale;
    int part; /* operand of the first output */
};

/* Operands in rt_entry.at. */
enum { AT_QKV, AT_TABLE, AT_POSITIONS, AT_SLOTS, AT_PAGES, AT_K_CACHE, AT_V_CACHE, AT_Q_NORM, AT_K_NORM };

/* ---- who does what: the same in every lane of every warp that asks ---- */

/* Lane t holds what belongs to token t. */
struct attention_plan {
    int position, slot, first, cached, units, before; /* first: token of its slot; before: units of earlier tokens */
    int all;                                          /* units of all tokens; the same in each lane */
};

MPK_FN void attention_plan_step(const rt_entry *e, int live, const attention_shape &s, attention_plan *p)
{
    const int lane = threadIdx.x % 32;
    const bool alive = lane < live;
    p->position = alive ? ((const int *)e->at[AT_POSITIONS])[lane] : 0;
    p->slot = alive ? ((const int *)e->at[AT_SLOTS])[lane] : -1;
    int left = __shfl_up_sync(0xffffffffu, p->slot, 1);
    rt_u32 starts = __ballot_sync(0xffffffffu, lane == 0 || left != p->slot);
    p->first = 31 - __clz((int)(starts & (0xffffffffu >> (31 - lane))));
    int cached = __shfl_sync(0xffffffffu, p->position, p->first), room = s.slot_pages * ATTENTION_PAGE;
    p->cached = cached < 0 ? 0 : cached < room ? cached : room;
    p->units = !alive ? 0 : p->cached > s.unit ? (p->cached + s.unit - 1) / s.unit : 1;
    int sum = p->units;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d)
            sum += other;
    }
    p->before = sum - p->units;
    p->all = __shfl_sync(0xffffffffu, sum, 31);
}

/* Token t's piece of one split: units, pages, what of the step. */
struct attention_piece {
    int slot, position, cached, first;
    int lo, hi, units;         /* units lo <= u < hi of this token */
    int first_page, last_page; /* first <= p < last */
    int from;                  /* positions below are outside the window */
};

MPK_FN void attention_find(const attention_plan *p, const attention_shape &s, int split, int t, attention_piece *k)
{
    int before = __shfl_sync(0xffffffffu, p->before, t), all = p->all;
    k->units = __shfl_sync(0xffffffffu, p->units, t);
    k->slot = __shfl_sync(0xffffffffu, p->slot, t);
    k->position = __shfl_sync(0xffffffffu, p->position, t);
    k->cached = __shfl_sync(0xffffffffu, p->cached, t);
    k->first = __shfl_sync(0xffffffffu, p->first, t);
    int lo = (int)((long long)split * all / s.splits) - before, hi = (int)((long long)(split + 1) * all / s.splits) - before;
    k->lo = lo < 0 ? 0 : lo < k->units ? lo : k->units;
    k->hi = hi < 0 ? 0 : hi < k->units ? hi : k->units;
    int from = s.window ? k->position - s.window + 1 : 0, end = k->hi * s.unit < k->cached ? k->hi * s.unit : k->cached;
    k->from = from < 0 ? 0 : from;
    k->first_page = k->lo * s.unit / ATTENTION_PAGE;
    if (k->from / ATTENTION_PAGE > k->first_page)
        k->first_page = k->from / ATTENTION_PAGE;
    k->last_page = k->lo < k->hi ? (end + ATTENTION_PAGE - 1) / ATTENTION_PAGE : 0;
}

/* Page of positions 64 i ... of a slot, or -1. */
MPK_FN int attention_page(const rt_entry *e, const attention_shape &s, int slot, int i)
{
    if ((rt_u32)slot >= (rt_u32)s.slots || (rt_u32)i >= (rt_u32)s.slot_pages)
        return -1;
    int page = ((const int *)e->at[AT_PAGES])[slot * s.slot_pages + i];
    return (rt_u32)page < (rt_u32)s.n_pages ? page : -1;
}

/* ---- the loader's part: pairs of pages, keys before values ---- */

template <int K>
MPK_FN void attention_load_page(mpk_load &l, const attention_shape &s, int page, int head)
{
    constexpr int BYTES = ATTENTION_PAGE * K * 2;
    const rt_u64 at = ((rt_u64)(page < 0 ? 0 : page) * s.kv_heads + head) * BYTES;
    const char *key = (const char *)l.e->at[AT_K_CACHE] + at, *value = (const char *)l.e->at[AT_V_CACHE] + at;
    if (2 * BYTES <= MPK_PAGE_BYTES) {
        char *to = load_page(&l, page < 0 ? 0 : 2 * BYTES, page >= 0);
        if (to && page >= 0) {
            load_copy(&l, to, 0, key, BYTES);
            load_copy(&l, to, BYTES, value, BYTES);
        }
        return;
    }
    char *to = load_page(&l, page < 0 ? 0 : BYTES, page >= 0);
    if (to && page >= 0)
        load_copy(&l, to, 0, key, BYTES);
    to = load_page(&l, page < 0 ? 0 : BYTES, page >= 0);
    if (to && page >= 0)
        load_copy(&l, to, 0, value, BYTES);
}

template <int K> MPK_FN void attention_split_load(mpk_load &l, const attention_shape &s)
{
    attention_plan plan;
    const int columns = s.group * K, lane = threadIdx.x % 32;
    if (!load_needs_step(&l))
        return;
    const int live = (int)mpk_w.live[RT_TOKENS] < ATTENTION_TOKENS ? (int)mpk_w.live[RT_TOKENS] : ATTENTION_TOKENS;
    attention_plan_step(l.e, live, s, &plan);
#pragma unroll 1
    for (int head = (int)l.e->lo[2] / columns; head < (int)l.e->hi[2] / columns; head++)
#pragma unroll 1
        for (int split = (int)l.e->lo[1]; split < (int)l.e->hi[1]; split++)
#pragma unroll 1
            for (int t = 0; t < live; t++) {
                attention_piece k;
                attention_find(&plan, s, split, t, &k);
#pragma unroll 1
                for (int p = k.first_page; p < k.last_page; p += 32) {
                    /* The lanes look 32 pages up at once. */
                    int mine = p + lane < k.last_page ? attention_page(l.e, s, k.slot, p + lane) : -1;
#pragma unroll 1
                    for (int i = 0; i < 32 && p + i < k.last_page; i++)
                        attention_load_page<K>(l, s, __shfl_sync(0xffffffffu, mine, i), head);
                }
            }
}

/* ---- heads of the step ---- */

/* Scratch of a task. */
template <int K, int GROUP> struct attention_scratch {
    enum {
        ROW = K * 2 + 16,                     /* bytes of a row of bf16, apart from the next in banks */
        QUERY = 0,                            /* bf16[8][K] */
        KEY = QUERY + ATTENTION_ROWS * ROW,   /* bf16[16][K]: keys of the step */
        VALUE = KEY + ATTENTION_TOKENS * ROW, /* bf16[16][K] */
        MOST = VALUE + ATTENTION_TOKENS * ROW, /* float[9][8]: largest score */
        SUM = MOST + ATTENTION_PARTIALS * 32,
        OUT = SUM + ATTENTION_PARTIALS * 32,   /* float[9][GROUP][K] */
        BYTES = OUT + ATTENTION_PARTIALS * GROUP * K * 4,
    };
};

MPK_FN float attention_norm_at(const attention_shape &s, const rt_entry *e, int operand, int dim)
{
    if (s.norm_type == 1)
        return ((const float *)e->at[operand])[dim];
    return __uint_as_float((rt_u32)((const rt_u16 *)e->at[operand])[dim] << 16);
}

/* The pairs of a head that this lane holds: dims 2 lane + 64 n, + 1, and those K / 2 higher. */
template <int K> struct attention_row {
    rt_u32 low[(K + 127) / 128], high[(K + 127) / 128];
};

/* Load, normalise and rotate a head of token t, rounding to bf16 after each as the single operators do. */
template <int K>
MPK_FN void attention_turn(const rt_entry *e, const attention_shape &s, int t, int head, int norm,
                           attention_row<K> *row)
{
    const int lane = threadIdx.x % 32, columns = (s.heads + 2 * s.kv_heads) * K;
    const char *from = (const char *)e->at[AT_QKV] + ((rt_u64)t * columns + head * K) * 2;
    const float *table = (const float *)e->at[AT_TABLE] + (rt_u64)t * K;
    float square = 0, scale = 1;
    float2 cosine[(K + 127) / 128], sine[(K + 127) / 128];
#pragma unroll
    for (int n = 0; n < (K + 127) / 128; n++) {
        int i = 2 * lane + 64 * n;
        row->low[n] = row->high[n] = 0;
        if (i < K / 2) {
            row->low[n] = ptx_load_word(from + i * 2);
            row->high[n] = ptx_load_word(from + (i + K / 2) * 2);
            cosine[n] = *(const float2 *)(table + i);
            sine[n] = *(const float2 *)(table + K / 2 + i);
        }
        float a = ptx_low_bf16(row->low[n]), b = ptx_high_bf16(row->low[n]);
        float c = ptx_low_bf16(row->high[n]), d = ptx_high_bf16(row->high[n]);
        square += a * a + b * b + c * c + d * d;
    }
    if (s.norm_type >= 0) {
#pragma unroll
        for (int d = 16; d; d /= 2)
            square += __shfl_xor_sync(0xffffffffu, square, d);
        scale = rsqrtf(square / K + s.eps);
    }
#pragma unroll
    for (int n = 0; n < (K + 127) / 128; n++) {
        int i = 2 * lane + 64 * n;
        if (i >= K / 2)
            continue;
        if (s.norm_type >= 0) {
            row->low[n] = ptx_pack_bf16(ptx_low_bf16(row->low[n]) * scale * attention_norm_at(s, e, norm, i),
                                        ptx_high_bf16(row->low[n]) * scale * attention_norm_at(s, e, norm, i + 1));
            row->high[n] =
                ptx_pack_bf16(ptx_low_bf16(row->high[n]) * scale * attention_norm_at(s, e, norm, i + K / 2),
                              ptx_high_bf16(row->high[n]) * scale * attention_norm_at(s, e, norm, i + K / 2 + 1));
        }
        float a = ptx_low_bf16(row->low[n]), b = ptx_high_bf16(row->low[n]);
        float c = ptx_low_bf16(row->high[n]), d = ptx_high_bf16(row->high[n]);
        row->low[n] = ptx_pack_bf16(a * cosine[n].x - c * sine[n].x, b * cosine[n].y - d * sine[n].y);
        row->high[n] = ptx_pack_bf16(c * cosine[n].x + a * sine[n].x, d * cosine[n].y + b * sine[n].y);
    }
}

template <int K> MPK_FN void attention_put_row(char *s_row, const attention_row<K> *row)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < (K + 127) / 128; n++) {
        int i = 2 * lane + 64 * n;
        if (i < K / 2) {
            *(rt_u32 *)(s_row + i * 2) = row->low[n];
            *(rt_u32 *)(s_row + (i + K / 2) * 2) = row->high[n];
        }
    }
}

/* Queries of a KV head, and the keys and values of the step that it sees, into shared memory. */
template <int K, int GROUP>
MPK_FN void attention_prepare(const mpk_task &t, const attention_shape &s, int token, int head,
                              const attention_piece *k)
{
    typedef attention_scratch<K, GROUP> at;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, columns = (s.heads + 2 * s.kv_heads) * K;
    const int n = k->hi == k->units ? token - k->first + 1 : 0;
    attention_row<K> row;
#pragma unroll 1
    for (int i = warp; i < ATTENTION_ROWS + n; i += MPK_WARPS) {
        if (i >= GROUP && i < ATTENTION_ROWS)
            continue;
        bool is_key = i >= ATTENTION_ROWS; /* rows of keys follow those of queries */
        int other = is_key ? k->first + i - ATTENTION_ROWS : token;
        attention_turn<K>(t.e, s, other, is_key ? s.heads + head : head * GROUP + i, is_key ? AT_K_NORM : AT_Q_NORM,
                          &row);
        attention_put_row<K>(t.s_scratch + at::QUERY + i * at::ROW, &row);
        if (is_key) {
            const char *value = (const char *)t.e->at[AT_QKV] +
                                ((rt_u64)other * columns + (s.heads + s.kv_heads + head) * K) * 2;
            for (int c = lane; c < K / 8; c += 32)
                *(mpk_words *)(t.s_scratch + at::VALUE + (i - ATTENTION_ROWS) * at::ROW + c * 16) =
                    ptx_load_words(value + c * 16);
        }
    }
}

/* ---- the pages ---- */

template <int K> struct attention_state {
    float most, sum;         /* of row g, this warp's tokens; scores in powers of 2 */
    float out[K / 8][4];     /* row g (0, 1), dims 8 n + 2c, + 1 */
};

/* 16 tokens of one page: s_key, s_value the page's first bytes, `base` the position of the page's first token. */
template <int K>
MPK_FN void attention_tokens(const rt_u32 (*query)[4], const char *s_key, const char *s_value, int base,
                             const attention_piece *k, float scale, attention_state<K> *a)
{
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, quarter = threadIdx.x / 32 % 4;
    const int lane_at = g * 64 + (c ^ g / 2) * 16;
    const float none = -__int_as_float(0x7f800000);
    float score[2][2][4], p[2][2], most = none;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            score[i][0][e] = score[i][1][e] = 0;
#pragma unroll
    for (int d = 0; d < K / 32; d++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            mpk_words w = *(const mpk_words *)(s_key + ((2 * quarter + i) * (K / 32) + d) * 512 + lane_at);
            ptx_multiply_bf16(score[i][0], query[d][0], query[d][1], query[d][2], query[d][3], w.x, w.y);
            ptx_multiply_bf16(score[i][1], query[d][0], query[d][1], query[d][2], query[d][3], w.z, w.w);
        }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int position = base + quarter * 16 + 8 * i + 2 * c + e;
            bool there = position < k->cached && position >= k->from;
            p[i][e] = there ? (score[i][0][e] + score[i][1][2 + e]) * scale : none;
            most = fmaxf(most, p[i][e]);
        }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    most = fmaxf(a->most, most);
    float zero = most == none ? 0 : most, correction = ptx_exp2(a->most - zero);
    a->most = most;
    a->sum *= correction;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            p[i][e] = ptx_exp2(p[i][e] - zero);
            a->sum += p[i][e];
        }
    rt_u32 first = ptx_pack_bf16(p[0][0], p[0][1]), second = ptx_pack_bf16(p[1][0], p[1][1]);
#pragma unroll
    for (int n = 0; n < K / 8; n++) {
        uint2 w = *(const uint2 *)(s_value + (quarter * (K / 8) + n) * 256 + lane * 8);
        a->out[n][0] *= correction;
        a->out[n][1] *= correction;
        ptx_multiply_bf16(a->out[n], first, 0, second, 0, w.x, w.y);
    }
}

/* All pages of a piece, in pairs: warps 0 .. 3 the first, 4 .. 7 the second. */
template <int K, int GROUP>
MPK_FN void attention_pages(const mpk_task &t, const attention_shape &s, const attention_piece *k, mpk_ring *ring,
                            attention_state<K> *a)
{
    typedef attention_scratch<K, GROUP> at;
    constexpr int BYTES = ATTENTION_PAGE * K * 2;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, half = threadIdx.x / 128;
    rt_u32 query[K / 32][4];
#pragma unroll
    for (int d = 0; d < K / 32; d++) {
        mpk_words w = {0, 0, 0, 0};
        if (g < GROUP)
            w = *(const mpk_words *)(t.s_scratch + at::QUERY + g * at::ROW + (d * 32 + c * 8) * 2);
        query[d][0] = w.x;
        query[d][1] = w.z;
        query[d][2] = w.y;
        query[d][3] = w.w;
    }
#pragma unroll 1
    for (int p = k->first_page; p < k->last_page; p += 2) {
        const int n = p + 1 < k->last_page ? 2 : 1;
        const char *key = 0, *value = 0;
        rt_u32 taken[4], pages = 0, there = 0;
        for (int i = 0; i < n; i++) {
            const char *first = ring_take(ring, &taken[pages]), *second = first + BYTES;
            rt_u32 note = mpk_w.note[taken[pages]];
            pages++;
            if (2 * BYTES > MPK_PAGE_BYTES)
                second = ring_take(ring, &taken[pages++]);
            if (i == half) {
                key = first;
                value = second;
                there = note;
            }
        }
        if (there)
            attention_tokens<K>(query, key, value, (p + half) * ATTENTION_PAGE, k, s.scale, a);
        __syncwarp();
        if (lane == 0)
            for (rt_u32 i = 0; i < pages; i++)
                ptx_barrier_arrive(&mpk_w.empty[taken[i]]);
    }
}

/* The tokens of the step for query head `warp`, in f32: partial 8. */
template <int K, int GROUP>
MPK_FN void attention_step(const mpk_task &t, const attention_shape &s, int token, const attention_piece *k)
{
    typedef attention_scratch<K, GROUP> at;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float none = -__int_as_float(0x7f800000);
    if (warp >= GROUP)
        return;
    float most = none, sum = 0, out[K / 32], query[K / 32];
#pragma unroll
    for (int n = 0; n < K / 32; n++) {
        out[n] = 0;
        query[n] = __uint_as_float((rt_u32)*(const rt_u16 *)(t.s_scratch + at::QUERY + warp * at::ROW + (lane + 32 * n) * 2)
                                   << 16);
    }
#pragma unroll 1
    for (int i = k->first; i <= token && k->hi == k->units; i++) {
        const char *key = t.s_scratch + at::KEY + (i - k->first) * at::ROW;
        const char *value = t.s_scratch + at::VALUE + (i - k->first) * at::ROW;
        if (i < token && ((const int *)t.e->at[AT_POSITIONS])[i] < k->from)
            continue;
        float score = 0;
#pragma unroll
        for (int n = 0; n < K / 32; n++)
            score = fmaf(query[n], __uint_as_float((rt_u32)*(const rt_u16 *)(key + (lane + 32 * n) * 2) << 16), score);
#pragma unroll
        for (int d = 16; d; d /= 2)
            score += __shfl_xor_sync(0xffffffffu, score, d);
        score *= s.scale;
        float next = fmaxf(most, score), correction = ptx_exp2(most - next), p = ptx_exp2(score - next);
        sum = sum * correction + p;
        most = next;
#pragma unroll
        for (int n = 0; n < K / 32; n++)
            out[n] = out[n] * correction +
                     p * __uint_as_float((rt_u32)*(const rt_u16 *)(value + (lane + 32 * n) * 2) << 16);
    }
    if (lane == 0) {
        ((float *)(t.s_scratch + at::MOST))[8 * 8 + warp] = most;
        ((float *)(t.s_scratch + at::SUM))[8 * 8 + warp] = sum;
    }
#pragma unroll
    for (int n = 0; n < K / 32; n++)
        ((float *)(t.s_scratch + at::OUT))[(8 * GROUP + warp) * K + lane + 32 * n] = out[n];
}

template <int K, int GROUP> MPK_FN void attention_put(const mpk_task &t, attention_state<K> *a)
{
    typedef attention_scratch<K, GROUP> at;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    a->sum += __shfl_xor_sync(0xffffffffu, a->sum, 1);
    a->sum += __shfl_xor_sync(0xffffffffu, a->sum, 2);
    if (g >= GROUP)
        return;
    if (c == 0) {
        ((float *)(t.s_scratch + at::MOST))[warp * 8 + g] = a->most;
        ((float *)(t.s_scratch + at::SUM))[warp * 8 + g] = a->sum;
    }
    float *to = (float *)(t.s_scratch + at::OUT) + (warp * GROUP + g) * K + 2 * c;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
        *(float2 *)(to + 8 * n) = make_float2(a->out[n][0], a->out[n][1]);
}

/* Fold the partials in order and store the piece. */
template <int K, int GROUP>
MPK_FN void attention_fold_partials(const mpk_task &t, const attention_shape &s, int token, int split, int head)
{
    typedef attention_scratch<K, GROUP> at;
    const float *s_most = (const float *)(t.s_scratch + at::MOST), *s_sum = (const float *)(t.s_scratch + at::SUM);
    const float *s_out = (const float *)(t.s_scratch + at::OUT);
    const float none = -__int_as_float(0x7f800000);
    char *part = mpk_at<char>(t, s.part) + ((rt_u64)(token * s.splits + split) * s.heads + head * GROUP) * K * 2;
    float *lse = mpk_at<float>(t, s.part + 1) + (rt_u64)(token * s.splits + split) * s.heads + head * GROUP;
#pragma unroll 1
    for (int i = mpk_thread(); i < GROUP * K / 2; i += MPK_THREADS) {
        int row = 2 * i / K, dim = 2 * i % K;
        float most = none, sum = 0, a = 0, b = 0;
#pragma unroll
        for (int w = 0; w < ATTENTION_PARTIALS; w++)
            most = fmaxf(most, s_most[w * 8 + row]);
        float zero = most == none ? 0 : most;
#pragma unroll
        for (int w = 0; w < ATTENTION_PARTIALS; w++) {
            float f = ptx_exp2(s_most[w * 8 + row] - zero);
            float2 v = *(const float2 *)(s_out + (w * GROUP + row) * K + dim);
            sum += f * s_sum[w * 8 + row];
            a += f * v.x;
            b += f * v.y;
        }
        float scale = sum > 0 ? 1 / sum : 0;
        ptx_store_word(part + (row * K + dim) * 2, ptx_pack_bf16(a * scale, b * scale));
        if (dim == 0)
            lse[row] = sum > 0 ? (most + ptx_log2(sum)) * 0.69314718f : none;
    }
}

/* ---- the caches ---- */

template <int K> MPK_FN void attention_fill_cache(const mpk_task &t, const attention_shape &s, int head, int live)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, columns = (s.heads + 2 * s.kv_heads) * K;
#pragma unroll 1
    for (int token = warp; token < live; token += MPK_WARPS) {
        int position = mpk_at<const int>(t, AT_POSITIONS)[token], slot = mpk_at<const int>(t, AT_SLOTS)[token];
        int page = position < 0 ? -1 : attention_page(t.e, s, slot, position / ATTENTION_PAGE);
        attention_row<K> row;
        attention_turn<K>(t.e, s, token, s.heads + head, AT_K_NORM, &row);
        if (page < 0)
            continue;
        rt_u64 at = ((rt_u64)page * s.kv_heads + head) * ATTENTION_PAGE * K;
        rt_u16 *key = mpk_at<rt_u16>(t, AT_K_CACHE) + at, *value = mpk_at<rt_u16>(t, AT_V_CACHE) + at;
        const char *from = mpk_at<const char>(t, AT_QKV) +
                           ((rt_u64)token * columns + (s.heads + s.kv_heads + head) * K) * 2;
        position %= ATTENTION_PAGE;
#pragma unroll
        for (int n = 0; n < (K + 127) / 128; n++) {
            int i = 2 * lane + 64 * n;
            if (i >= K / 2)
                continue;
            *(rt_u32 *)(key + kv_key_at(position, i, ATTENTION_PAGE, K, 2)) = row.low[n];
            *(rt_u32 *)(key + kv_key_at(position, i + K / 2, ATTENTION_PAGE, K, 2)) = row.high[n];
            rt_u32 low = ptx_load_word(from + i * 2), high = ptx_load_word(from + (i + K / 2) * 2);
            value[kv_value_at(position, i, ATTENTION_PAGE, K, 2)] = (rt_u16)low;
            value[kv_value_at(position, i + 1, ATTENTION_PAGE, K, 2)] = (rt_u16)(low >> 16);
            value[kv_value_at(position, i + K / 2, ATTENTION_PAGE, K, 2)] = (rt_u16)high;
            value[kv_value_at(position, i + K / 2 + 1, ATTENTION_PAGE, K, 2)] = (rt_u16)(high >> 16);
        }
    }
}

/* ---- the body ---- */

template <int K, int GROUP>
MPK_FN void attention_split_piece(const mpk_task &t, const attention_shape &s, int token, int split, int head,
                                  const attention_piece *k, mpk_ring *ring)
{
    attention_state<K> a;
    a.most = -__int_as_float(0x7f800000);
    a.sum = 0;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
        a.out[n][0] = a.out[n][1] = a.out[n][2] = a.out[n][3] = 0;
    attention_prepare<K, GROUP>(t, s, token, head, k);
    mpk_sync();
    attention_pages<K, GROUP>(t, s, k, ring, &a);
    attention_step<K, GROUP>(t, s, token, k);
    attention_put<K, GROUP>(t, &a);
    mpk_sync();
    attention_fold_partials<K, GROUP>(t, s, token, split, head);
}

template <int K, int GROUP> MPK_FN void attention_fill_caches(const mpk_task &t, const attention_shape &s, int live)
{
    if ((int)t.e->hi[1] == s.splits)
#pragma unroll 1
        for (int head = (int)t.e->lo[2] / (GROUP * K); head < (int)t.e->hi[2] / (GROUP * K); head++)
            attention_fill_cache<K>(t, s, head, live);
}

template <int K, int GROUP> MPK_FN void attention_split_stream(const mpk_task &t, const attention_shape &s)
{
    const int live = (int)t.live[RT_TOKENS] < ATTENTION_TOKENS ? (int)t.live[RT_TOKENS] : ATTENTION_TOKENS;
    const float none = -__int_as_float(0x7f800000);
    mpk_ring ring = *t.ring;
    attention_plan plan;
    attention_plan_step(t.e, live, s, &plan);
    mpk_wait(t);
#pragma unroll 1
    for (int head = (int)t.e->lo[2] / (GROUP * K); head < (int)t.e->hi[2] / (GROUP * K); head++)
#pragma unroll 1
        for (int split = (int)t.e->lo[1]; split < (int)t.e->hi[1]; split++)
#pragma unroll 1
            for (int token = 0; token < live; token++) {
                attention_piece k;
                attention_find(&plan, s, split, token, &k);
                if (k.lo < k.hi)
                    attention_split_piece<K, GROUP>(t, s, token, split, head, &k, &ring);
                else if (mpk_thread() < GROUP)
                    mpk_at<float>(t, s.part + 1)[(rt_u64)(token * s.splits + split) * s.heads + head * GROUP +
                                                 mpk_thread()] = none;
            }
    *t.ring = ring;
    /* Nobody reads the caches in this step, and the worker's next trigger releases these writes too. */
    const bool last = t.e->is_last;
    if (!last)
        mpk_trigger(t);
    attention_fill_caches<K, GROUP>(t, s, live);
    if (last)
        mpk_trigger(t);
}

#endif
