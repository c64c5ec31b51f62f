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

#include "shape/attention_split_shape.h"
#include "tile/kv.cuh"
#include "tile/ring.cuh"
#include "tile/split.cuh"

/* ---- who does what: the same in every lane of every warp that asks ---- */

/* Of a lot of 32 tokens: lane t holds what belongs to token lot + t. */
struct attention_plan {
    int position, slot, first, cached, units, before; /* first: token of its slot; before: units of earlier tokens, */
    int all;                                          /* with `own` splits; all: of all tokens, the same in each lane */
    int lot, behind;                                  /* behind: units of all tokens to the end of the lot */
};

/* Tokens lot .. lot + 31 of the `live` ones; earlier: units of those before. */
MPK_FN void attention_plan_lot(const rt_entry *e, int live, const attention_shape &s, int lot, int earlier,
                               attention_plan *p)
{
    const int *positions = (const int *)e->at[AT_POSITIONS], *slots = (const int *)e->at[AT_SLOTS];
    const int lane = mpk_thread() % 32, token = lot + lane;
    const bool alive = token < live;
    p->lot = lot;
    p->position = alive ? positions[token] : 0;
    p->slot = alive ? slots[token] : -1;
    int left = __shfl_up_sync(0xffffffffu, p->slot, 1);
    rt_u32 starts = __ballot_sync(0xffffffffu, lane == 0 || left != p->slot);
    const int start = 31 - __clz((int)(starts & (0xffffffffu >> (31 - lane))));
    int cached = __shfl_sync(0xffffffffu, p->position, start), room = s.slot_pages * ATTENTION_PAGE;
    p->first = lot + start;
    if (lot) { /* the first ones may go on with the slot that the lot before ends with */
        const int other = slots[token - 32], further = __shfl_up_sync(0xffffffffu, other, 1);
        starts = __ballot_sync(0xffffffffu, lane == 0 || further != other);
        const int last = lot - 32 + 31 - __clz((int)starts), ends_with = __shfl_sync(0xffffffffu, other, 31);
        if (start == 0 && p->slot == ends_with) {
            p->first = last;
            cached = positions[last];
        }
    }
    p->cached = cached < 0 ? 0 : cached < room ? cached : room;
    p->units = !alive ? 0 : p->cached > s.unit ? (p->cached + s.unit - 1) / s.unit : 1;
    const int count = alive && s.own ? split_own_parts(p->units, s.splits, s.own) : p->units;
    int sum = count;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d)
            sum += other;
    }
    p->before = earlier + sum - count;
    p->behind = earlier + __shfl_sync(0xffffffffu, sum, 31);
}

/* The first lot, once the units of all are known.  TOKENS: of a graph, at most; up to 32 are one
 * lot. */
template <int TOKENS>
MPK_FN void attention_plan_step(const rt_entry *e, int live, const attention_shape &s, attention_plan *p)
{
    int all = 0;
#pragma unroll 1
    for (int lot = TOKENS > 32 && live > 32 ? 32 : 0; lot >= 0; lot -= 32) {
        attention_plan_lot(e, live, s, lot, 0, p);
        all += p->behind;
    }
    p->all = all;
}

/* The lot behind, if one is alive. */
template <int TOKENS>
MPK_FN bool attention_next_lot(const rt_entry *e, int live, const attention_shape &s, attention_plan *p)
{
    if (TOKENS <= 32 || p->lot + 32 >= live)
        return false;
    attention_plan_lot(e, live, s, p->lot + 32, p->behind, p);
    return true;
}

/* A token's piece of one split: units, pages, what of the step. */
struct attention_piece {
    int slot, position, cached, first;
    int lo, hi, units;         /* units lo <= u < hi of this token */
    int first_page, last_page; /* first <= p < last */
    int from;                  /* positions below are outside the window */
};

/* What a split does of each token of a lot: lane t, units *lo <= u < *hi of token lot + t.  Those of which it does any.
 */
MPK_FN rt_u32 attention_share(const attention_plan *p, const attention_shape &s, int split, int *lo, int *hi)
{
    const int from = (int)((long long)split * p->all / s.splits) - p->before,
              to = (int)((long long)(split + 1) * p->all / s.splits) - p->before;
    *lo = from < 0 ? 0 : from < p->units ? from : p->units;
    *hi = to < 0 ? 0 : to < p->units ? to : p->units;
    if (s.own)
        split_own_units(split, s.splits, s.own, p->before, p->units, lo, hi);
    return __ballot_sync(0xffffffffu, *lo < *hi);
}

/* Of token lot + t. */
MPK_FN void attention_find(const attention_plan *p, const attention_shape &s, int lo, int hi, int t, attention_piece *k)
{
    k->units = __shfl_sync(0xffffffffu, p->units, t);
    k->slot = __shfl_sync(0xffffffffu, p->slot, t);
    k->position = __shfl_sync(0xffffffffu, p->position, t);
    k->cached = __shfl_sync(0xffffffffu, p->cached, t);
    k->first = __shfl_sync(0xffffffffu, p->first, t);
    k->lo = __shfl_sync(0xffffffffu, lo, t);
    k->hi = __shfl_sync(0xffffffffu, hi, t);
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

/* The next page of the ring for n_bytes of a KV page, if that is there; its note says so. */
MPK_FN rt_u32 attention_make_room(mpk_load &l, int page, rt_u32 n_bytes, bool *leads)
{
    const rt_u32 to = load_page(&l);
    *leads = to != LOAD_OVER && ptx_elect();
    if (*leads) {
        mpk_w.note[to] = page >= 0;
        load_expect(to, page < 0 ? 0 : n_bytes);
    }
    *leads = *leads && page >= 0;
    return to;
}

template <int K> MPK_FN void attention_load_page(mpk_load &l, const attention_shape &s, int page, int head)
{
    constexpr int BYTES = ATTENTION_PAGE * K * 2;
    constexpr bool TOGETHER = 2 * BYTES <= MPK_PAGE_BYTES;
    const rt_u64 at = ((rt_u64)(page < 0 ? 0 : page) * s.kv_heads + head) * BYTES;
    const char *key = (const char *)l.e->at[AT_K_CACHE] + at, *value = (const char *)l.e->at[AT_V_CACHE] + at;
    bool leads;
    rt_u32 to = attention_make_room(l, page, TOGETHER ? 2 * BYTES : BYTES, &leads);
    if (leads)
        load_copy(&l, to, 0, key, BYTES);
    if (!TOGETHER)
        to = attention_make_room(l, page, BYTES, &leads);
    if (leads)
        load_copy(&l, to, TOGETHER ? BYTES : 0, value, BYTES);
}

/* Where a split has this many units and more, attention's bytes decide, and more pages than the tuned number may be
 * under way: with fewer they would only be in the way of what the workers tell one another. */
enum { ATTENTION_LONG = 8, ATTENTION_MORE_IN_FLIGHT = 2 };

/* A lot of the tokens. */
template <int K> MPK_FN void attention_load_lot(mpk_load &l, const attention_shape &s, const attention_plan &plan)
{
    const int columns = s.group * K, lane = mpk_thread() % 32;
#pragma unroll 1
    for (int head = (int)l.e->lo[2] / columns; head < (int)l.e->hi[2] / columns; head++)
#pragma unroll 1
        for (int split = (int)l.e->lo[1]; split < (int)l.e->hi[1]; split++) {
            int lo, hi;
#pragma unroll 1
            for (rt_u32 tokens = attention_share(&plan, s, split, &lo, &hi); tokens; tokens &= tokens - 1) {
                attention_piece k;
                attention_find(&plan, s, lo, hi, __ffs((int)tokens) - 1, &k);
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
}

template <int K, int TOKENS> MPK_FN void attention_split_load(mpk_load &l, const attention_shape &s)
{
    attention_plan plan;
    if (!load_needs_step(&l))
        return;
    const int live = (int)mpk_smaller(mpk_w.live[RT_TOKENS], l.e->hi[0]); /* a task has all tokens */
    attention_plan_step<TOKENS>(l.e, live, s, &plan);
    const rt_u32 in_flight = l.in_flight;
    if (plan.all >= ATTENTION_LONG * s.splits)
        l.in_flight = mpk_smaller(in_flight + ATTENTION_MORE_IN_FLIGHT, l.ring.n);
    do
        attention_load_lot<K>(l, s, plan);
    while (attention_next_lot<TOKENS>(l.e, live, s, &plan));
    l.in_flight = in_flight;
}

/* ---- heads of the step ---- */

/* Scratch of a task. */
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

/* The pairs of a head that this lane holds: dims 2 lane, 2 lane + 1 and those K / 2 higher; K / 4 lanes hold any. */
struct attention_row {
    rt_u32 low, high;
};

/* What a head is turned with: the norm's weight and the angles at these dims.  Nothing of it comes from this layer, so
 * it is asked for before qkv. */
struct attention_turn {
    float2 low, high, cosine, sine;
};

MPK_FN float2 attention_norm_at(const attention_shape &s, const rt_entry *e, int operand, int dim)
{
    if (s.norm_type == 1)
        return *(const float2 *)((const float *)e->at[operand] + dim);
    rt_u32 v = *(const rt_u32 *)((const rt_u16 *)e->at[operand] + dim);
    return make_float2(ptx_low_bf16(v), ptx_high_bf16(v));
}

template <int K>
MPK_FN void attention_ask_turn(const rt_entry *e, const attention_shape &s, int t, int norm, attention_turn *turn)
{
    const int i = 2 * (mpk_thread() % 32);
    const float *table = (const float *)e->at[AT_TABLE] + t * K;
    if (i >= K / 2)
        return;
    turn->cosine = *(const float2 *)(table + i);
    turn->sine = *(const float2 *)(table + K / 2 + i);
    if (s.norm_type >= 0) {
        turn->low = attention_norm_at(s, e, norm, i);
        turn->high = attention_norm_at(s, e, norm, i + K / 2);
    }
}

/* Where this lane's dims of head `head` of a row of qkv lie (keys and values follow the queries). */
template <int K> MPK_FN const char *attention_row_at(const mpk_task &t, const attention_shape &s, int token, int head)
{
    const int i = 2 * (mpk_thread() % 32), columns = (s.heads + 2 * s.kv_heads) * K;
    return mpk_at<const char>(t, AT_QKV) + (token * columns + head * K + i) * 2;
}

/* Ask for this lane's dims. */
template <int K> MPK_FN attention_row attention_ask_row(const char *from)
{
    attention_row row = {0, 0};
    if (2 * (mpk_thread() % 32) < K / 2) {
        row.low = ptx_load_word(from);
        row.high = ptx_load_word(from + K);
    }
    return row;
}

/* Until what was asked for is there. */
template <int K> MPK_FN void attention_await_row(const mpk_task &t, const char *from, attention_row *row)
{
    if (mpk_carries(t, AT_QKV) && 2 * (mpk_thread() % 32) < K / 2) {
        row->low = mpk_carried_word(from, row->low);
        row->high = mpk_carried_word(from + K, row->high);
    }
    __syncwarp();
}

/* Normalise and rotate, rounding to bf16 after each as the single operators do. */
template <int K>
MPK_FN void attention_turn_row(const attention_shape &s, const attention_turn &turn, attention_row *row)
{
    float a = ptx_low_bf16(row->low), b = ptx_high_bf16(row->low);
    float c = ptx_low_bf16(row->high), d = ptx_high_bf16(row->high);
    if (s.norm_type >= 0) {
        float square = a * a + b * b + c * c + d * d;
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
    row->low = ptx_pack_bf16(a * turn.cosine.x - c * turn.sine.x, b * turn.cosine.y - d * turn.sine.y);
    row->high = ptx_pack_bf16(c * turn.cosine.x + a * turn.sine.x, d * turn.cosine.y + b * turn.sine.y);
}

template <int K> MPK_FN void attention_put_row(char *s_row, const attention_row &row)
{
    const int i = 2 * (mpk_thread() % 32);
    if (i < K / 2) {
        *(rt_u32 *)(s_row + i * 2) = row.low;
        *(rt_u32 *)(s_row + i * 2 + K) = row.high;
    }
}

/* Row r of what a piece needs of the step: queries, then keys, then values, both of the newest token first. */
struct attention_need {
    bool is_query, is_key;
    int back, head; /* tokens before the piece's; of qkv */
};

/* n: tokens of the step that the piece sees. */
template <int GROUP> MPK_FN attention_need attention_need_at(const attention_shape &s, int r, int head, int n)
{
    attention_need k;
    k.is_query = r < GROUP;
    k.is_key = !k.is_query && r < GROUP + n;
    k.back = k.is_query ? 0 : k.is_key ? r - GROUP : r - GROUP - n;
    k.head = k.is_query ? head * GROUP + r : s.heads + (k.is_key ? 0 : s.kv_heads) + head;
    return k;
}

/* Row `warp` of a piece and what it is turned with: each warp's first, asked for ahead. */
struct attention_ahead {
    attention_row row;
    attention_turn turn;
};

template <int K, int GROUP>
MPK_FN void attention_ask_ahead(const mpk_task &t, const attention_shape &s, int token, int head, int n,
                                attention_ahead *ahead)
{
    const int warp = mpk_thread() / 32;
    if (warp < GROUP + 2 * n) {
        const attention_need need = attention_need_at<GROUP>(s, warp, head, n);
        ahead->row = attention_ask_row<K>(attention_row_at<K>(t, s, token - need.back, need.head));
    }
}

/* Into shared memory; `ahead` has been asked for, its turn for the piece's token. */
template <int K, int GROUP, int TOKENS>
MPK_FN void attention_prepare(const mpk_task &t, const attention_shape &s, int token, int head, int n,
                              attention_ahead *ahead)
{
    typedef attention_scratch<K, GROUP, TOKENS> at;
    const int warp = mpk_thread() / 32;
#pragma unroll 1
    for (int r = warp; r < GROUP + 2 * n; r += MPK_WARPS) {
        const attention_need need = attention_need_at<GROUP>(s, r, head, n);
        const char *from = attention_row_at<K>(t, s, token - need.back, need.head);
        if (r != warp)
            ahead->row = attention_ask_row<K>(from);
        attention_await_row<K>(t, from, &ahead->row);
        if (need.is_query || need.is_key) {
            if (r != warp || need.back)
                attention_ask_turn<K>(t.e, s, token - need.back, need.is_key ? AT_K_NORM : AT_Q_NORM, &ahead->turn);
            attention_turn_row<K>(s, ahead->turn, &ahead->row);
        }
        const int to =
            need.is_query ? at::QUERY + r * at::ROW : (need.is_key ? at::KEY : at::VALUE) + need.back * at::ROW;
        attention_put_row<K>(t.s_scratch + to, ahead->row);
    }
}

/* ---- the pages ---- */

template <int K> struct attention_state {
    float most, sum;      /* of row g, this warp's tokens; scores in powers of 2 */
    float out[K / 16][4]; /* dims 16 n + g (0, 1) and + 8 (2, 3) of heads 2c (0, 2) and 2c + 1 (1, 3) */
};

/* 16 tokens of one page: s_key, s_value the page's first bytes, `base` the position of the page's first token. */
template <int K>
MPK_FN void attention_tokens(const rt_u32 (*query)[4], const char *s_key, const char *s_value, int base,
                             const attention_piece *k, float scale, attention_state<K> *a)
{
    const int thread = mpk_thread(), lane = thread % 32, g = lane / 4, c = lane % 4, quarter = thread / 32 % 4;
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
    /* The scores of k^T are the operand of v^T p^T as they are; only what was summed before belongs to other lanes. */
    rt_u32 first = ptx_pack_bf16(p[0][0], p[0][1]), second = ptx_pack_bf16(p[1][0], p[1][1]);
    float even = __shfl_sync(0xffffffffu, correction, 8 * c), odd = __shfl_sync(0xffffffffu, correction, 8 * c + 4);
#pragma unroll
    for (int n = 0; n < K / 16; n++) {
        const char *from = s_value + (quarter * (K / 8) + 2 * n) * 256 + lane * 8;
        uint2 v = *(const uint2 *)from, w = *(const uint2 *)(from + 256);
        a->out[n][0] *= even;
        a->out[n][1] *= odd;
        a->out[n][2] *= even;
        a->out[n][3] *= odd;
        ptx_multiply_bf16(a->out[n], v.x, w.x, v.y, w.y, first, second);
    }
}

/* All pages of a piece, in pairs: warps 0 .. 3 the first, 4 .. 7 the second. */
template <int K, int GROUP>
MPK_FN void attention_pages(const mpk_task &t, const attention_shape &s, const attention_piece *k, mpk_ring *ring,
                            attention_state<K> *a)
{
    typedef attention_scratch<K, GROUP> at;
    constexpr int BYTES = ATTENTION_PAGE * K * 2;
    const int thread = mpk_thread(), lane = thread % 32, g = lane / 4, c = lane % 4, half = thread / 128;
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
        constexpr int EACH = 2 * BYTES <= MPK_PAGE_BYTES ? 1 : 2; /* pages of the ring for one of the cache */
        const bool second = p + 1 < k->last_page;
        const char *key, *value, *other_key = 0, *other_value = 0;
        rt_u32 taken[4] = {0, 0, 0, 0}, there;
        value = (key = ring_take(ring, &taken[0])) + BYTES;
        there = mpk_w.note[taken[0]];
        if (EACH == 2)
            value = ring_take(ring, &taken[1]);
        if (second) {
            other_value = (other_key = ring_take(ring, &taken[2])) + BYTES;
            if (EACH == 2)
                other_value = ring_take(ring, &taken[3]);
        }
        if (half) {
            there = second ? mpk_w.note[taken[2]] : 0;
            key = other_key;
            value = other_value;
        }
        if (there)
            attention_tokens<K>(query, key, value, (p + half) * ATTENTION_PAGE, k, s.scale, a);
        __syncwarp();
        if (lane == 0) {
            ptx_barrier_arrive(&mpk_w.empty[taken[0]]);
            if (EACH == 2)
                ptx_barrier_arrive(&mpk_w.empty[taken[1]]);
            if (second)
                ptx_barrier_arrive(&mpk_w.empty[taken[2]]);
            if (EACH == 2 && second)
                ptx_barrier_arrive(&mpk_w.empty[taken[3]]);
        }
    }
}

/* The n tokens of the step, in f32, newest first: partial 8.  Query head 0 by the last warp, and so on: the first warps
 * have pages to see to. */
template <int K, int GROUP, int TOKENS>
MPK_FN void attention_step(const mpk_task &t, const attention_shape &s, int token, int n, int from)
{
    typedef attention_scratch<K, GROUP, TOKENS> at;
    const int thread = mpk_thread(), row = MPK_WARPS - 1 - thread / 32, lane = thread % 32;
    const float none = -__int_as_float(0x7f800000);
    if (row >= GROUP)
        return;
    float most = none, sum = 0, out[K / 32], query[K / 32];
#pragma unroll
    for (int i = 0; i < K / 64; i++) {
        rt_u32 q = *(const rt_u32 *)(t.s_scratch + at::QUERY + row * at::ROW + (lane + 32 * i) * 4);
        query[2 * i] = ptx_low_bf16(q);
        query[2 * i + 1] = ptx_high_bf16(q);
        out[2 * i] = out[2 * i + 1] = 0;
    }
#pragma unroll 1
    for (int back = 0; back < n; back++) {
        if (back && s.window && mpk_at<const int>(t, AT_POSITIONS)[token - back] < from)
            continue;
        const char *key = t.s_scratch + at::KEY + back * at::ROW, *value = t.s_scratch + at::VALUE + back * at::ROW;
        float score = 0;
#pragma unroll
        for (int i = 0; i < K / 64; i++) {
            rt_u32 v = *(const rt_u32 *)(key + (lane + 32 * i) * 4);
            score = fmaf(query[2 * i], ptx_low_bf16(v), fmaf(query[2 * i + 1], ptx_high_bf16(v), score));
        }
#pragma unroll
        for (int d = 16; d; d /= 2)
            score += __shfl_xor_sync(0xffffffffu, score, d);
        score *= s.scale;
        float next = fmaxf(most, score), correction = ptx_exp2(most - next), p = ptx_exp2(score - next);
        sum = sum * correction + p;
        most = next;
#pragma unroll
        for (int i = 0; i < K / 64; i++) {
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
    for (int i = 0; i < K / 64; i++)
        *(float2 *)(t.s_scratch + at::OUT + ((8 * GROUP + row) * K + 2 * (lane + 32 * i)) * 4) =
            make_float2(out[2 * i], out[2 * i + 1]);
}

template <int K, int GROUP> MPK_FN void attention_put(const mpk_task &t, attention_state<K> *a)
{
    typedef attention_scratch<K, GROUP> at;
    const int thread = mpk_thread(), warp = thread / 32, lane = thread % 32, g = lane / 4, c = lane % 4;
    a->sum += __shfl_xor_sync(0xffffffffu, a->sum, 1);
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

/* Fold the partials in order and store the piece.  pairs: there were pages for warps 4 to 7. */
template <int K, int GROUP>
MPK_FN void attention_fold_partials(const mpk_task &t, const attention_shape &s, int token, int split, int head,
                                    bool pairs)
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
            if (w >= 4 && w < 8 && !pairs)
                continue;
            float f = ptx_exp2(s_most[w * 8 + row] - zero);
            float2 v = *(const float2 *)(s_out + (w * GROUP + row) * K + dim);
            sum += f * s_sum[w * 8 + row];
            a += f * v.x;
            b += f * v.y;
        }
        float scale = sum > 0 ? 1 / sum : 0;
        ptx_store_word(part + (row * K + dim) * 2, ptx_pack_bf16(a * scale, b * scale));
        if (dim == 0)
            ptx_store_word(lse + row, __float_as_uint(sum > 0 ? (most + ptx_log2(sum)) * 0.69314718f : none));
    }
}

/* ---- the caches ---- */

/* Tokens first + warp and + 8 of the plan's lot: everything is asked for before any of it is used. */
template <int K>
MPK_FN void attention_fill_cache(const mpk_task &t, const attention_shape &s, const attention_plan *plan, int head,
                                 int first, int live)
{
    const int thread = mpk_thread(), warp = thread / 32, lane = thread % 32, i = 2 * lane;
    attention_row key[2], value[2];
    attention_turn turn[2] = {};
    int page[2], position[2];
    if (first + warp >= live)
        return;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const int token = first + warp + u * MPK_WARPS, known = token < live ? token : first;
        position[u] = __shfl_sync(0xffffffffu, plan->position, known - plan->lot);
        const int slot = __shfl_sync(0xffffffffu, plan->slot, known - plan->lot);
        page[u] = token < live && position[u] >= 0 ? attention_page(t.e, s, slot, position[u] / ATTENTION_PAGE) : -1;
        key[u] = attention_ask_row<K>(attention_row_at<K>(t, s, known, s.heads + head));
        value[u] = attention_ask_row<K>(attention_row_at<K>(t, s, known, s.heads + s.kv_heads + head));
        attention_ask_turn<K>(t.e, s, known, AT_K_NORM, &turn[u]);
    }
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const int token = first + warp + u * MPK_WARPS, known = token < live ? token : first;
        attention_await_row<K>(t, attention_row_at<K>(t, s, known, s.heads + head), &key[u]);
        attention_await_row<K>(t, attention_row_at<K>(t, s, known, s.heads + s.kv_heads + head), &value[u]);
        attention_turn_row<K>(s, turn[u], &key[u]);
        if (page[u] < 0 || i >= K / 2)
            continue;
        const rt_u64 at = ((rt_u64)page[u] * s.kv_heads + head) * ATTENTION_PAGE * K;
        rt_u16 *keys = mpk_at<rt_u16>(t, AT_K_CACHE) + at, *values = mpk_at<rt_u16>(t, AT_V_CACHE) + at;
        const int place = position[u] % ATTENTION_PAGE;
        *(rt_u32 *)(keys + kv_key_at(place, i, ATTENTION_PAGE, K, 2)) = key[u].low;
        *(rt_u32 *)(keys + kv_key_at(place, i + K / 2, ATTENTION_PAGE, K, 2)) = key[u].high;
        values += kv_value_at(place, i, ATTENTION_PAGE, K, 2); /* dims are 16 elements apart, blocks of 8 dims 128 */
        values[0] = (rt_u16)value[u].low;
        values[16] = (rt_u16)(value[u].low >> 16);
        values += K / 16 * 128;
        values[0] = (rt_u16)value[u].high;
        values[16] = (rt_u16)(value[u].high >> 16);
    }
}

/* ---- the body ---- */

/* Tokens of the step that a piece of token `token` sees. */
MPK_FN int attention_of_step(const attention_piece *k, int token)
{
    return k->hi == k->units ? token - k->first + 1 : 0;
}

/* A split of a KV head: units lo <= u < hi of token lot + t in lane t. */
struct attention_work {
    int split, head, lo, hi;
};

/* The piece of token `token`; then *k is that of token `next`, if that is not -1, and what it begins with has been
 * asked for: one wait less for each piece but the first. */
template <int K, int GROUP, int TOKENS>
MPK_FN void attention_split_piece(const mpk_task &t, const attention_shape &s, const attention_plan *plan,
                                  const attention_work &w, int token, int next, attention_piece *k,
                                  attention_ahead *ahead, mpk_ring *ring)
{
    const int n = attention_of_step(k, token), from = k->from;
    const bool pairs = k->last_page - k->first_page > 1;
    attention_state<K> a;
    a.most = -__int_as_float(0x7f800000);
    a.sum = 0;
#pragma unroll
    for (int n = 0; n < K / 16; n++)
        a.out[n][0] = a.out[n][1] = a.out[n][2] = a.out[n][3] = 0;
    attention_prepare<K, GROUP, TOKENS>(t, s, token, w.head, n, ahead);
    mpk_sync();
    attention_pages<K, GROUP>(t, s, k, ring, &a);
    if (next >= 0) {
        attention_find(plan, s, w.lo, w.hi, next - plan->lot, k);
        attention_ask_turn<K>(t.e, s, next, mpk_thread() / 32 < GROUP ? AT_Q_NORM : AT_K_NORM, &ahead->turn);
        attention_ask_ahead<K, GROUP>(t, s, next, w.head, attention_of_step(k, next), ahead);
    }
    attention_step<K, GROUP, TOKENS>(t, s, token, n, from);
    attention_put<K, GROUP>(t, &a);
    mpk_sync();
    attention_fold_partials<K, GROUP>(t, s, token, w.split, w.head, pairs);
}

/* All lots, from the last one on, which the plan is of. */
template <int K, int GROUP, int TOKENS>
MPK_FN void attention_fill_caches(const mpk_task &t, const attention_shape &s, attention_plan *plan, int live)
{
    enum { TOGETHER = 2 * MPK_WARPS };
    if ((int)t.e->hi[1] != s.splits)
        return;
#pragma unroll 1
    for (int lot = TOKENS > 32 ? plan->lot : 0; lot >= 0; lot -= 32) {
        if (TOKENS > 32 && lot != plan->lot)
            attention_plan_lot(t.e, live, s, lot, 0, plan);
#pragma unroll 1
        for (int head = (int)t.e->lo[2] / (GROUP * K); head < (int)t.e->hi[2] / (GROUP * K); head++)
#pragma unroll 1
            for (int first = lot; first < lot + (TOKENS > TOGETHER ? 32 : TOGETHER) && first < live; first += TOGETHER)
                attention_fill_cache<K>(t, s, plan, head, first, live);
    }
}

/* Of the lot's tokens that this split does nothing of: nothing. */
template <int GROUP>
MPK_FN void attention_put_none(const mpk_task &t, const attention_shape &s, int lot, int live, rt_u32 tokens, int split,
                               int head)
{
    const int thread = mpk_thread(), token = lot + thread % 32, row = thread / 32;
    if (row < GROUP && token < live && !(tokens >> thread % 32 & 1))
        ptx_store_word(mpk_at<float>(t, s.part + 1) + (token * s.splits + split) * s.heads + head * GROUP + row,
                       __float_as_uint(-__int_as_float(0x7f800000)));
}

/* A split of a KV head, of the tokens of a lot.  *waited: for the task's event; what can be asked for ahead, is. */
template <int K, int GROUP, int TOKENS>
MPK_FN void attention_split_lot(const mpk_task &t, const attention_shape &s, const attention_plan *plan, int live,
                                int split, int head, bool *waited, mpk_ring *ring)
{
    attention_work w = {split, head, 0, 0};
    attention_piece k = {};
    attention_ahead ahead = {}; /* what is set on some ways only keeps its registers for ever */
    rt_u32 left = attention_share(plan, s, split, &w.lo, &w.hi);
    const rt_u32 tokens = left;
    const int lot = plan->lot, first = lot + __ffs((int)left) - 1;
    if (left) { /* of row `warp`: a query, or the newest key */
        attention_find(plan, s, w.lo, w.hi, first - lot, &k);
        attention_ask_turn<K>(t.e, s, first, mpk_thread() / 32 < GROUP ? AT_Q_NORM : AT_K_NORM, &ahead.turn);
    }
    if (!*waited)
        mpk_wait(t);
    *waited = true;
    if (left)
        attention_ask_ahead<K, GROUP>(t, s, first, head, attention_of_step(&k, first), &ahead);
    attention_put_none<GROUP>(t, s, lot, live, tokens, split, head);
#pragma unroll 1
    while (left) {
        const int token = lot + __ffs((int)left) - 1;
        left &= left - 1;
        attention_split_piece<K, GROUP, TOKENS>(t, s, plan, w, token, left ? lot + __ffs((int)left) - 1 : -1, &k,
                                                &ahead, ring);
    }
}

template <int K, int GROUP, int TOKENS> MPK_FN void attention_split_stream(const mpk_task &t, const attention_shape &s)
{
    const int live = (int)mpk_smaller(t.live[RT_TOKENS], t.e->hi[0]);
    mpk_ring ring = *t.ring;
    attention_plan plan;
    attention_plan_step<TOKENS>(t.e, live, s, &plan);
    bool waited = !t.e->quiet;
    if (waited) /* the angles are of this step */
        mpk_wait(t);
    do
#pragma unroll 1
        for (int head = (int)t.e->lo[2] / (GROUP * K); head < (int)t.e->hi[2] / (GROUP * K); head++)
#pragma unroll 1
            for (int split = (int)t.e->lo[1]; split < (int)t.e->hi[1]; split++)
                attention_split_lot<K, GROUP, TOKENS>(t, s, &plan, live, split, head, &waited, &ring);
    while (attention_next_lot<TOKENS>(t.e, live, s, &plan));
    if (!waited)
        mpk_wait(t);
    *t.ring = ring;
    /* Nobody reads the caches in this step, and the worker's next trigger releases these writes too.  But what is not
     * carried gives its memory away once the event has come, and filling reads qkv. */
    const bool late = t.e->is_last || !mpk_carries(t, AT_QKV);
    if (!late)
        mpk_trigger(t);
    attention_fill_caches<K, GROUP, TOKENS>(t, s, &plan, live);
    if (late)
        mpk_trigger(t);
}

#endif
