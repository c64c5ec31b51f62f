/* attention_lone.cuh - attention of tokens that stand alone, each of another slot: decode steps
 * of many streams.
 *
 * Part of attention_tile.cuh and attention_group.cuh.  The contexts of up to 32 such tokens, for
 * all KV heads of the task, are one row of units of 16 positions; each warp takes an eighth of
 * it, whatever the lengths are:
 *
 *   head 0: token 0 | token 1 |    token 2     | head 1: token 0 | ...
 *   ---- warp 0 ----|---- warp 1 ----|---- warp 2 ----|---- ...
 *                            ^ token 2 is cut: warp 1 has its beginning, warp 2 its end
 *
 * Keys and values go straight from L2 to registers, for they lie in fragment order (tile/kv.cuh)
 * and no other warp needs them: while a warp multiplies the keys of a unit its values are in
 * flight, and the other way round, so that about 64 KB are in flight on an SM.  The query heads
 * of a KV head, at most 8, are the rows of the products.
 *
 * A context that lies with one warp ends there.  Of one that is cut the warps put their parts in
 * shared memory, where they are folded in the order of positions.
 *
 * Units are numbered by KV head, then token, then position.  Each warp finds its share from the
 * lengths of all contexts by itself (lone_plan), with shuffles alone, so that warps meet only
 * once, when their parts are there.
 *
 * Lane 4 g + c of a warp (g 0 to 7, c 0 to 3): of scores it has row (query head) g and the
 * positions 8 i + 2c and + 1; of results dims g and g + 8 of each 16 and the rows 2c and 2c + 1,
 * since the second product is v^T p^T.  What belongs to a row (largest score, factor) therefore
 * has to be fetched from the lanes of that row when results are scaled.
 *
 * Relies on: LONE_ROWS query heads of a KV head at most, K 64, 96 or 128, and the task's
 * event, which has come.  Scratch: lone_part<K>::BYTES from its start. Cost of a unit: 3 K / 16
 * products and 4 K / 32 + 2 K / 16 loads of a warp, 64 K bytes from L2.
 */
#ifndef TASK_ATTENTION_LONE_CUH
#define TASK_ATTENTION_LONE_CUH

#include "ptx/ptx.cuh"
#include "task/attend.cuh"
#include "tile/prefix.cuh"
#include "tile/worker.cuh"

/* Positions of a unit, as many as one mma has along the axis that v^T p^T sums; query heads of a
 * KV head, the columns of that product; tokens at a time, a lane each. */
enum { LONE_UNIT = 16, LONE_ROWS = 8, LONE_TOKENS = 32 };

/* A part in shared memory: of each row K sums, its largest score and its sum of weights.  Each warp
 * has one part for the context in which its share ends, or for one that is whole, and all but the
 * first one for that in which it begins.  A context that spans a warp's whole share and began
 * before it has the second of them.  No other warp writes these two.
 */
template <int K> struct lone_part {
    enum {
        ROW = K + 4, /* floats: rows 2c of four lanes lie apart in banks */
        MOST = LONE_ROWS * ROW,
        SUM = MOST + LONE_ROWS,
        FLOATS = SUM + LONE_ROWS,
        BEGINNINGS = MPK_WARPS - 1, /* part of warp w: this and w */
        PARTS = 2 * MPK_WARPS - 1,
        BYTES = PARTS * FLOATS * 4,
    };
};

/* Tokens first, first + 1 ... and KV heads from kv_head on.  Lane i holds what belongs to token
 * first + i. */
struct lone_tokens {
    int first, kv_head;
    int slot, from, end;    /* positions that it sees: from <= p < end */
    int first_unit;         /* the unit of its slot's context that `from` lies in */
    int units, before, all; /* units of the token, of the tokens before it, of all tokens of one
                             * head; a token has at least one */
    int total;              /* units of all tokens of all heads: the row that the warps share */
};

/* How many tokens from `first` on are each of another slot than their neighbours in the task: at
 * most 32. */
MPK_FN int lone_count(const mpk_task &t, int first, int end)
{
    const int *slots = mpk_at<const int>(t, ATTEND_SLOTS), token = first + mpk_thread() % 32;
    bool alone = token < end; /* and neither neighbour has its slot */
    if (alone) {
        const int slot = slots[token];
        alone = (token == (int)t.e->lo[0] || slots[token - 1] != slot) &&
                (token + 1 == end || slots[token + 1] != slot);
    }
    const rt_u32 others = ~__ballot_sync(0xffffffffu, alone);
    return others ? __ffs((int)others) - 1 : LONE_TOKENS;
}

/* The contexts of n tokens, a lane each, in units: from the unit of the first position that is seen
 * to that of the last.  A token that sees nothing has one unit all the same, without a page: by it
 * its result of zeros is written. */
MPK_FN lone_tokens lone_plan(const mpk_task &t, const attend_shape &s, int first, int n,
                             int kv_head, int kv_heads)
{
    const int lane = mpk_thread() % 32, room = mpk_caches[s.cache].slot_pages * ATTEND_PAGE;
    lone_tokens k; /* a token a lane */
    k.first = first;
    k.kv_head = kv_head;
    const int position = lane < n ? mpk_at<const int>(t, ATTEND_POSITIONS)[first + lane] : -1;
    k.slot = lane < n ? mpk_at<const int>(t, ATTEND_SLOTS)[first + lane] : -1;
    k.from = attend_from(s, position);
    k.end = position < room ? position + 1 : room;
    k.first_unit = k.from / LONE_UNIT;
    const int units = (k.end + LONE_UNIT - 1) / LONE_UNIT - k.first_unit;
    k.units = lane >= n ? 0 : units > 1 ? units : 1;
    const int sum = mpk_prefix_lanes(k.units, lane); /* up to this lane, itself included */
    k.before = sum - k.units;
    k.all = __shfl_sync(0xffffffffu, sum, 31);
    k.total = k.all * kv_heads;
    return k;
}

/* Where the share of warp w begins; that of warp MPK_WARPS is the end.  With fewer units than
 * warps the first warps have one each: no share is empty that lies before one that is not, which
 * lone_join relies on. */
MPK_FN int lone_bound(int w, int total)
{
    return total >= MPK_WARPS ? w * total / MPK_WARPS : w < total ? w : total;
}

/* A unit: number `unit` of `units` of a token for a KV head, both counted from the task's first. */
struct lone_unit {
    int token, head;
    int unit, units;
};

/* Unit number `at` of the row, the same in all lanes: its token is the last one whose units begin
 * at or before it. */
MPK_FN lone_unit lone_find(const lone_tokens &k, int at)
{
    lone_unit u;
    u.head = at / k.all;
    at -= u.head * k.all;
    u.token = 31 - __clz((int)__ballot_sync(0xffffffffu, k.units > 0 && k.before <= at));
    u.unit = at - __shfl_sync(0xffffffffu, k.before, u.token);
    u.units = __shfl_sync(0xffffffffu, k.units, u.token);
    return u;
}

/* A unit with what it takes to load it.  Lane i holds page first_page + i of the slot, so the
 * page table is read once for 32 pages, which are 128 units. */
struct lone_at {
    lone_unit u;               /* the same in all lanes */
    int slot, from, end, base; /* of the token; the unit's first position */
    int pages, first_page;
    int page; /* the unit's, -1: there is none */
};

/* The page of the unit, the same in all lanes; begins: another context, so nothing that the lanes
 * hold is of use.  -1 for pages that the slot has not and units of which nothing is seen. */
MPK_FN void lone_find_page(const mpk_task &t, const attend_shape &s, bool begins, lone_at *a)
{
    const mpk_cache &cache = mpk_caches[s.cache]; /* how large it is */
    const int page = a->base / ATTEND_PAGE;
    /* A new context, or the 32 pages that the lanes hold are used up. */
    if (begins || page - a->first_page >= 32) {
        const int mine = page + mpk_thread() % 32;
        const bool there = (rt_u32)a->slot < (rt_u32)cache.slots && mine < cache.slot_pages;
        a->first_page = page;
        a->pages =
            there ? mpk_at<const int>(t, ATTEND_PAGES)[a->slot * cache.slot_pages + mine] : -1;
    }
    a->page = __shfl_sync(0xffffffffu, a->pages, page - a->first_page);
    if ((rt_u32)a->page >= (rt_u32)cache.n_pages || a->end <= a->from || a->end <= a->base)
        a->page = -1;
}

/* To unit number `at`, wherever it is: by shuffles, which all lanes of the warp take part in. */
MPK_FN void lone_begin(const mpk_task &t, const attend_shape &s, const lone_tokens &k, int at,
                       lone_at *a)
{
    a->u = lone_find(k, at);
    a->slot = __shfl_sync(0xffffffffu, k.slot, a->u.token);
    a->from = __shfl_sync(0xffffffffu, k.from, a->u.token);
    a->end = __shfl_sync(0xffffffffu, k.end, a->u.token);
    a->base = (__shfl_sync(0xffffffffu, k.first_unit, a->u.token) + a->u.unit) * LONE_UNIT;
    lone_find_page(t, s, true, a);
}

/* To unit number `at`, the next one. */
MPK_FN void lone_next(const mpk_task &t, const attend_shape &s, const lone_tokens &k, int at,
                      lone_at *a)
{
    if (a->u.unit + 1 == a->u.units) {
        lone_begin(t, s, k, at, a);
        return;
    }
    a->u.unit++;
    a->base += LONE_UNIT;
    lone_find_page(t, s, false, a);
}

/* ---- keys, values and queries into registers ----
 *
 * Loads are requested here and awaited where a register is first used.  Without a page registers
 * keep what they held; a unit without a page is not multiplied. */

/* Bytes from a cache's start to the unit's 16 positions, which lie together in keys and in
 * values. */
template <int K>
MPK_FN rt_u64 lone_offset(const attend_shape &s, const lone_tokens &k, const lone_at &a)
{
    const int in_page = a.base % ATTEND_PAGE * K * 2; /* bytes to the unit */
    return ((rt_u64)a.page * s.kv_heads + k.kv_head + a.u.head) * (ATTEND_PAGE * K * 2) + in_page;
}

/* key[i]: block i of the unit's K / 16 blocks of 8 positions x 32 dims, 512 bytes each: those of
 * the first 8 positions, then of the others.  A warp reads a block whole. */
template <int K>
MPK_FN void lone_ask_keys(const mpk_task &t, const attend_shape &s, const lone_tokens &k,
                          const lone_at &a, mpk_words *key)
{
    const int lane = mpk_thread() % 32, c = lane % 4, g = lane / 4;
    if (a.page < 0)
        return;
    const char *from =
        mpk_at<const char>(t, ATTEND_K) + lone_offset<K>(s, k, a) + g * 64 + (c ^ g / 2) * 16;
#pragma unroll
    for (int i = 0; i < K / 16; i++)
        key[i] = ptx_load_words(from + i * 512);
}

/* value[i]: dims 8 i ... 8 i + 7 of all 16 positions, a block of 256 bytes. */
template <int K>
MPK_FN void lone_ask_values(const mpk_task &t, const attend_shape &s, const lone_tokens &k,
                            const lone_at &a, uint2 *value)
{
    if (a.page < 0)
        return;
    const char *from = mpk_at<const char>(t, ATTEND_V) + lone_offset<K>(s, k, a) +
                       kv_values_of_lane(mpk_thread() % 32);
#pragma unroll
    for (int i = 0; i < K / 8; i++)
        value[i] = ptx_load_two_words(from + i * 256);
}

/* A lane loads dims 32 d + 8 c ... + 7 of row g.  Rows 8 to 15 of the operand hold the other half
 * of each block's dims, so four registers serve both products of a block (lone_score). */
template <int K>
MPK_FN void lone_load_query(const mpk_task &t, const attend_shape &s, const lone_tokens &k,
                            const lone_at &a, rt_u32 (*query)[4])
{
    const int lane = mpk_thread() % 32, g = lane / 4, group = s.heads / s.kv_heads;
    const rt_u64 head =
        (rt_u64)(k.first + a.u.token) * s.heads + (k.kv_head + a.u.head) * group + g;
    const char *from = mpk_at<const char>(t, ATTEND_Q) + (head * K + lane % 4 * 8) * 2;
#pragma unroll
    for (int d = 0; d < K / 32; d++) {
        mpk_words w = {0, 0, 0, 0}; /* rows beyond the group */
        if (g < group)
            w = ptx_load_words(from + d * 64);
        query[d][0] = w.x;
        query[d][1] = w.z;
        query[d][2] = w.y;
        query[d][3] = w.w;
    }
}

/* ---- a unit ---- */

/* What a warp has summed up of a context so far; weights are relative to exp2(most). */
template <int K> struct lone_sums {
    float most, sum; /* of row g; this lane's positions; scores in powers of 2 */
    /* dims 16 n + g (0, 1) and + 8 (2, 3) of rows 2c (0, 2) and 2c + 1 (1, 3) */
    float out[K / 16][4];
};

/* Nothing seen yet. */
template <int K> MPK_FN void lone_clear(lone_sums<K> *r)
{
    r->most = -__int_as_float(0x7f800000);
    r->sum = 0;
#pragma unroll
    for (int n = 0; n < K / 16; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            r->out[n][e] = 0;
}

/* p[i][e]: score of row g and position 8 i + 2 c + e of the unit; where it sees nothing, -inf.  Of
 * the first product rows 0 to 7 are meant, of the second rows 8 to 15; the others multiply dims
 * that do not belong together and are dropped. */
template <int K, int HOW>
MPK_FN void lone_score(const rt_u32 (*query)[4], const mpk_words *key, const lone_at &a,
                       const attend_factor &f, float (*p)[2])
{
    const int c = mpk_thread() % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float first[4] = {0, 0, 0, 0}, second[4] = {0, 0, 0, 0}; /* rows 0-7; rows 8-15 */
#pragma unroll
        for (int d = 0; d < K / 32; d++) {
            const mpk_words w = key[i * (K / 32) + d];
            const rt_u32 *q = query[d];
            ptx_multiply_bf16(first, q[0], q[1], q[2], q[3], w.x, w.y);
            ptx_multiply_bf16(second, q[0], q[1], q[2], q[3], w.z, w.w);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int position = a.base + 8 * i + 2 * c + e;
            const bool seen = position >= a.from && position < a.end;
            p[i][e] = seen ? attend_score_of<HOW>(f, first[e] + second[2 + e])
                           : -__int_as_float(0x7f800000);
        }
    }
}

/* Scores become weights; what was summed before is brought to the new largest score.  The factors
 * of rows 2c and 2c + 1 come from lanes 8 c and 8 c + 4, the first ones of these rows.  `zero`
 * stands in for a largest score of -inf, as -inf - -inf would be NaN. */
template <int K> MPK_FN void lone_weigh(float (*p)[2], lone_sums<K> *r)
{
    const int c = mpk_thread() % 4;
    const float none = -__int_as_float(0x7f800000);
    float most = fmaxf(fmaxf(p[0][0], p[0][1]), fmaxf(p[1][0], p[1][1])); /* of the lane's */
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    most = fmaxf(r->most, most);
    const float zero = most == none ? 0 : most, kept = ptx_exp2(r->most - zero);
    r->most = most;
    r->sum *= kept;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            p[i][e] = ptx_exp2(p[i][e] - zero);
            r->sum += p[i][e];
        }
    const float even = __shfl_sync(0xffffffffu, kept, 8 * c),
                odd = __shfl_sync(0xffffffffu, kept, 8 * c + 4);
#pragma unroll
    for (int n = 0; n < K / 16; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            r->out[n][e] *= e % 2 ? odd : even;
}

/* Add v^T p^T.  The scores of q k^T, rounded to bf16, are the operand p^T as they are: lane (g,
 * c) has positions 2c, 2c + 1 and 2c + 8, 2c + 9 of row g, which is column g. */
template <int K> MPK_FN void lone_add(const float (*p)[2], const uint2 *value, lone_sums<K> *r)
{
    const rt_u32 first = ptx_pack_bf16(p[0][0], p[0][1]), second = ptx_pack_bf16(p[1][0], p[1][1]);
#pragma unroll
    for (int n = 0; n < K / 16; n++) {
        const uint2 v = value[2 * n], w = value[2 * n + 1];
        ptx_multiply_bf16(r->out[n], v.x, w.x, v.y, w.y, first, second);
    }
}

/* ---- parts ---- */

/* Part number `part` in scratch (lone_part says whose it is). */
template <int K> MPK_FN float *lone_part_at(const mpk_task &t, int part)
{
    return (float *)t.s_scratch + part * lone_part<K>::FLOATS;
}

/* A warp's sums into a part, [row][dim].  The sum of weights, until now of the lane's own
 * positions, is added up over the four lanes of a row.  A meeting must follow before they are
 * read. */
template <int K> MPK_FN void lone_put(const lone_sums<K> &r, float *s_part)
{
    const int lane = mpk_thread() % 32, g = lane / 4, c = lane % 4;
    float sum = r.sum; /* of the lane's positions */
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (c == 0) {
        s_part[lone_part<K>::MOST + g] = r.most;
        s_part[lone_part<K>::SUM + g] = sum;
    }
#pragma unroll
    for (int n = 0; n < K / 16; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s_part[(2 * c + e % 2) * lone_part<K>::ROW + 16 * n + 8 * (e / 2) + g] = r.out[n][e];
}

/* One row of a context of which warp `warp` and those after it hold n parts, to y: a warp, of which
 * a lane has dims 2 lane and + 1 of each 64.  The first part is the one in which the share of
 * `warp` ends; of the warps after it those in which theirs begin. */
template <int K, int HOW>
MPK_FN void lone_fold(const mpk_task &t, const attend_shape &s, const lone_tokens &k,
                      const lone_unit &u, int row, int warp, int n)
{
    typedef lone_part<K> part;
    const int lane = mpk_thread() % 32, group = s.heads / s.kv_heads;
    constexpr int WORDS = (K + 63) / 64;                               /* of a lane, of two dims */
    float most = -__int_as_float(0x7f800000), sum = 0, out[2 * WORDS]; /* of the whole context */
    for (int i = 0; i < n; i++)
        most = fmaxf(most,
                     lone_part_at<K>(t, i ? part::BEGINNINGS + warp + i : warp)[part::MOST + row]);
    const float zero = most == -__int_as_float(0x7f800000) ? 0 : most;
#pragma unroll
    for (int d = 0; d < 2 * WORDS; d++)
        out[d] = 0;
    for (int i = 0; i < n; i++) {
        const float *s_part = lone_part_at<K>(t, i ? part::BEGINNINGS + warp + i : warp);
        const float weight = ptx_exp2(s_part[part::MOST + row] - zero);
        sum = fmaf(weight, s_part[part::SUM + row], sum);
#pragma unroll
        for (int d = 0; d < WORDS; d++) {
            if (K % 64 && 64 * d + 2 * lane >= K)
                continue;
            const float2 v = *(const float2 *)(s_part + row * part::ROW + 64 * d + 2 * lane);
            out[2 * d] = fmaf(weight, v.x, out[2 * d]);
            out[2 * d + 1] = fmaf(weight, v.y, out[2 * d + 1]);
        }
    }
    const int of_token = (k.kv_head + u.head) * group + row;
    const float scale = attend_last<HOW>(t, s, of_token, zero, sum);
    const rt_u64 head = (rt_u64)(k.first + u.token) * s.heads + of_token;
    char *y = mpk_at<char>(t, ATTEND_Y) + (head * K + 2 * lane) * 2;
#pragma unroll
    for (int d = 0; d < WORDS; d++)
        if (K % 64 == 0 || 64 * d + 2 * lane < K)
            ptx_store_word(y + d * 128, ptx_pack_bf16(out[2 * d] * scale, out[2 * d + 1] * scale));
}

/* The units lo .. hi - 1 of warp `warp`.
 *
 * The order of a round: multiply keys, request the next keys, softmax and values, request the next
 * values.  Each set of registers is requested again right after its last use, so keys are in flight
 * while values are multiplied and values while keys are.
 * At the end of a context, or of the share, sums go to a part.  A context that lies wholly in this
 * share is folded at once by this warp, whose own stores __syncwarp has made visible; the second
 * __syncwarp keeps the part until all lanes have read it.  The others are left to lone_join.
 */
template <int K, int HOW>
MPK_FN void lone_run_warp(const mpk_task &t, const attend_shape &s, const lone_tokens &k, int warp,
                          int lo, int hi)
{
    const int group = s.heads / s.kv_heads;
    const attend_factor factor = attend_factor_of<HOW>(s);
    lone_at next;   /* the unit whose keys are in flight */
    lone_sums<K> r; /* of the context that is worked on */
    rt_u32 query[K / 32][4] = {};
    mpk_words key[K / 16];
    uint2 value[K / 8];
#pragma unroll
    for (int i = 0; i < K / 16; i++)
        key[i] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < K / 8; i++)
        value[i] = make_uint2(0, 0);
    lone_clear<K>(&r);
    lone_begin(t, s, k, lo, &next);
    lone_ask_keys<K>(t, s, k, next, key);
    lone_ask_values<K>(t, s, k, next, value);
    lone_load_query<K>(t, s, k, next, query);
#pragma unroll 1
    for (int at = lo; at < hi; at++) {
        const lone_unit u = next.u; /* the unit of this round */
        const bool there = next.page >= 0, ends = u.unit + 1 == u.units, more = at + 1 < hi;
        float p[2][2] = {}; /* its scores, then weights */
        if (there)
            lone_score<K, HOW>(query, key, next, factor, p);
        if (more) { /* keys and queries of this unit have been used: `next` moves on */
            lone_next(t, s, k, at + 1, &next);
            lone_ask_keys<K>(t, s, k, next, key);
            if (ends)
                lone_load_query<K>(t, s, k, next, query);
        }
        if (there) {
            lone_weigh<K>(p, &r);
            lone_add<K>(p, value, &r);
        }
        if (more)
            lone_ask_values<K>(t, s, k, next, value);
        /* the context goes on in this share */
        if (!ends && more)
            continue;
        const bool began = at - lo < u.unit; /* in the share of a warp before */
        lone_put<K>(r, lone_part_at<K>(t, began ? lone_part<K>::BEGINNINGS + warp : warp));
        __syncwarp();
        if (!began && ends)
            for (int row = 0; row < group; row++)
                lone_fold<K, HOW>(t, s, k, u, row, warp, 1);
        __syncwarp();
        lone_clear<K>(&r);
    }
}

/* All threads, after a barrier: contexts that are cut.  Each begins in the share of some warp,
 * where it is the last one; rows are folded in turn by the warps.  All warps go through the same
 * list, so `dealt` is the same in all.  A share whose last context ends with it, or began before
 * it, has no such context. */
template <int K, int HOW>
MPK_FN void lone_join(const mpk_task &t, const attend_shape &s, const lone_tokens &k)
{
    const int group = s.heads / s.kv_heads, mine = mpk_thread() / 32;
    int dealt = 0; /* to the warps: rows of contexts that are cut */
    for (int w = 0; w + 1 < MPK_WARPS; w++) {
        const int lo = lone_bound(w, k.total), hi = lone_bound(w + 1, k.total);
        if (hi == k.total || lo == hi)
            break;
        const lone_unit u = lone_find(k, hi - 1);
        /* one past the context's last unit; its first is hi - 1 - u.unit */
        const int end = hi - 1 - u.unit + u.units;
        /* it ends with this share, or began before it: another w folds it, or none has to */
        if (end == hi || hi - 1 - u.unit < lo)
            continue;
        int n = 1; /* warps that have a part of it */
        while (lone_bound(w + n, k.total) < end)
            n++;
        for (int row = 0; row < group; row++, dealt++)
            if (dealt % MPK_WARPS == mine)
                lone_fold<K, HOW>(t, s, k, u, row, w, n);
    }
}

/* All threads: n tokens (lone_count) from `first` on, for KV heads kv_head to kv_head + kv_heads
 * - 1. */
template <int K, int HOW>
MPK_FN void lone_run(const mpk_task &t, const attend_shape &s, int first, int n, int kv_head,
                     int kv_heads)
{
    const lone_tokens k = lone_plan(t, s, first, n, kv_head, kv_heads);
    const int warp = mpk_thread() / 32, lo = lone_bound(warp, k.total),
              hi = lone_bound(warp + 1, k.total);
    if (lo < hi)
        lone_run_warp<K, HOW>(t, s, k, warp, lo, hi);
    mpk_sync(); /* all parts are there */
    lone_join<K, HOW>(t, s, k);
    mpk_sync(); /* they give way to what comes next */
}

#endif
