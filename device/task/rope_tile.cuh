/* rope_tile.cuh - many tokens' query and key heads normalised and rotated, keys and values put
 * into bf16 pages.
 *
 * The operator rope_kv; a task is some tokens, some query heads, and the KV heads whose first
 * query head is among them.  Called by the generated switch over bodies for many tokens, once
 * the task's event is activated.  src/gen/body_rope_tile.c chooses it; heads.cuh has the generic
 * body.  Scratch: a map of ROTATE_PLACES bits, places of the cache modulo that, and a flag.
 *
 * Query and key heads: K / 8 lanes have a token (rotate_lanes), each 4 dims of a head's low half
 * and the 4 that are rotated with them; eight of its heads at a time, so that their loads overlap,
 * and its angles and its place are read once:
 *
 *   dims        0-3     4-7   ...  K/2-4..K/2-1 | K/2..K/2+3  ...
 *   lane        0       1          K/8 - 1      | 0           ...     of a token's K / 8 lanes
 *
 * Values: 16 neighbours of a slot that fill 16 places of a page are one block of 32-byte rows
 * (tile/kv.cuh), and a warp writes it at once; tokens that stand otherwise are written one by
 * one. Of two tokens of the step at one place the later stays, and the earlier is not written:
 * whether there are any is found out with a map of bits first. Cost: qkv is read and written
 * once; the places of all tokens of the step for each task.
 */
#ifndef TASK_ROPE_TILE_CUH
#define TASK_ROPE_TILE_CUH

#include "ptx/ptx.cuh"
#include "shape/rope_tile_shape.h"
#include "tile/kv.cuh"
#include "tile/worker.cuh"

enum {
    ROTATE_AT_ONCE = 4, /* places, or values that are written one by one */
    ROTATE_HEADS = 8,   /* heads of a token whose loads are in flight together */
    ROTATE_TOKENS = 16, /* that all threads have at once, at most */
};

/* A token's lanes are a power of two, for sums by butterflies: of 96 entries 16, the last four of
 * which hold no dims. */
template <int K> struct rotate_lanes {
    enum {
        N = K == 96 ? 16 : K / 8,
        /* tokens that all threads have at once */
        TOKENS = ROTATE_TOKENS < MPK_THREADS / N ? ROTATE_TOKENS : MPK_THREADS / N,
        PARTS = MPK_THREADS / N / TOKENS, /* of a token's heads */
    };
    static_assert(N >= K / 8 && (N & (N - 1)) == 0 && N <= 32, "a token's lanes are of one warp");
};

/* Tokens of the step: first to last - 1 are the task's and alive; all of the step's are looked at
 * for shared places. */
struct rotate_tokens {
    int first, last, all; /* last: one after */
};

/* ---- places ---- */

/* Places of N tokens in the cache, as numbers: page * 64 + place in the page; -1: it has none, or
 * token[i] is negative.  Positions, slots and entries of the page table are data and count only in
 * range.  No branches, so that all loads of a kind are in flight together: positions and slots,
 * then entries of the page table.  mpk_caches has the sizes that the host writes when the kernel is
 * loaded. */
template <int N>
MPK_FN void rotate_places(const mpk_task &t, const rotate_shape &s, const int *token, int *place)
{
    const mpk_cache &c = mpk_caches[s.cache];
    int position[N], slot[N], page[N]; /* data of the step */
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int at = token[i] < 0 ? 0 : token[i]; /* so that the load is valid */
        position[i] = mpk_at<const int>(t, ROTATE_POSITIONS)[at];
        slot[i] = mpk_at<const int>(t, ROTATE_SLOTS)[at];
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const bool there = token[i] >= 0 && position[i] >= 0 &&
                           position[i] / ROTATE_PAGE < c.slot_pages &&
                           (rt_u32)slot[i] < (rt_u32)c.slots;
        const int at = there ? slot[i] * c.slot_pages + position[i] / ROTATE_PAGE : 0;
        place[i] = there ? position[i] % ROTATE_PAGE : -1; /* in its page */
        page[i] = mpk_at<const int>(t, ROTATE_PAGES)[at];
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (place[i] >= 0)
            place[i] = (rt_u32)page[i] < (rt_u32)c.n_pages ? page[i] * ROTATE_PAGE + place[i] : -1;
}
/* The place of one token. */
MPK_FN int rotate_place(const mpk_task &t, const rotate_shape &s, int token)
{
    int place;
    rotate_places<1>(t, s, &token, &place);
    return place;
}

/* All lanes of a warp: take their places in the map, one each (-1: none); the flag is raised if
 * a bit was taken before.  32 neighbours that fill a word of the map, as those of a prompt do,
 * cost one atomic operation instead of 32 that wait for each other. */
MPK_FN void rotate_mark(rt_u32 *s_map, rt_u32 *s_flag, int place)
{
    const int lane = mpk_thread() % 32, first = __shfl_sync(0xffffffffu, place, 0);
    const bool whole = __all_sync(0xffffffffu, place >= 0 && place == first + lane);
    rt_u32 bits = 1u << (place & 31); /* of a word of the map */
    /* the warp's places are one word of the map: lane 0 takes all of its bits */
    if (whole && first % 32 == 0) {
        bits = 0xffffffffu;
        place = lane == 0 ? place : -1;
    }
    /* Not whole: lanes of one word meet at it one after the other.  A bit that was taken already,
     * also by a lane of this warp, is a place that was met twice. */
    if (place >= 0 && atomicOr(&s_map[place % ROTATE_PLACES / 32], bits) & bits)
        *s_flag = 1;
}

/* May two tokens of the step have one place?  All threads, the same answer in each.  The map has
 * fewer bits than the cache has places, so two places may share a bit: true may be wrong, and
 * then each token is looked at (rotate_is_lost); false is certain. */
MPK_FN bool rotate_any_twice(const mpk_task &t, const rotate_shape &s, int all)
{
    rt_u32 *s_map = (rt_u32 *)t.s_scratch, *s_flag = (rt_u32 *)(t.s_scratch + ROTATE_FLAG);
    const uint4 none = make_uint4(0, 0, 0, 0); /* no place taken */
    for (int i = mpk_thread() * 16; i < ROTATE_SCRATCH; i += MPK_THREADS * 16)
        *(uint4 *)(t.s_scratch + i) = none;
    /* The map is empty before the first bit is taken. */
    mpk_sync();
    for (int base = 0; base < all; base += MPK_THREADS * ROTATE_AT_ONCE) {
        int token[ROTATE_AT_ONCE], place[ROTATE_AT_ONCE];
#pragma unroll
        for (int i = 0; i < ROTATE_AT_ONCE; i++) {
            token[i] = base + mpk_thread() + i * MPK_THREADS;
            token[i] = token[i] < all ? token[i] : -1;
        }
        rotate_places<ROTATE_AT_ONCE>(t, s, token, place);
#pragma unroll
        for (int i = 0; i < ROTATE_AT_ONCE; i++)
            rotate_mark(s_map, s_flag, place[i]);
    }
    mpk_sync();
    return *s_flag != 0;
}

/* Is there a later token at this one's place?  Linear in the tokens, and asked only if
 * rotate_any_twice says that it may be. */
MPK_FN bool rotate_is_lost(const mpk_task &t, const rotate_shape &s, int token, int place, int all)
{
#pragma unroll 1
    for (int i = token + 1; i < all; i++)
        if (rotate_place(t, s, i) == place)
            return true;
    return false;
}

/* The place that a token is to be written to, or -1: it has none, or loses it to a later token. */
MPK_FN int rotate_target(const mpk_task &t, const rotate_shape &s, int token, bool twice, int all)
{
    const int place = rotate_place(t, s, token);
    return place >= 0 && twice && rotate_is_lost(t, s, token, place, all) ? -1 : place;
}

/* ---- queries and keys ---- */

/* A weight of a norm; type 1: f32, 0: bf16. */
MPK_FN float rotate_weight(const mpk_task &t, int operand, int type, int dim)
{
    if (type == 1)
        return mpk_at<const float>(t, operand)[dim];
    return __uint_as_float((rt_u32)mpk_at<const rt_u16>(t, operand)[dim] << 16);
}

/* Four dims times scale and weight, rounded to bf16 as the single operator does: what follows
 * begins with rounded numbers. */
MPK_FN uint2 rotate_norm(const float *weight, float scale, uint2 v)
{
    v.x = ptx_pack_bf16(ptx_low_bf16(v.x) * scale * weight[0],
                        ptx_high_bf16(v.x) * scale * weight[1]);
    v.y = ptx_pack_bf16(ptx_low_bf16(v.y) * scale * weight[2],
                        ptx_high_bf16(v.y) * scale * weight[3]);
    return v;
}

/* The sum of the squares of four bf16. */
MPK_FN float rotate_square(uint2 v)
{
    const float a = ptx_low_bf16(v.x), b = ptx_high_bf16(v.x), c = ptx_low_bf16(v.y),
                d = ptx_high_bf16(v.y);
    return a * a + b * b + c * c + d * d;
}

/* Rotate four pairs: low cos - high sin, high cos + low sin, rounded to bf16. */
MPK_FN void rotate_dims(uint2 *low, uint2 *high, float4 cosine, float4 sine)
{
    const float a = ptx_low_bf16(low->x), b = ptx_high_bf16(low->x), c = ptx_low_bf16(low->y),
                d = ptx_high_bf16(low->y);
    const float e = ptx_low_bf16(high->x), f = ptx_high_bf16(high->x), g = ptx_low_bf16(high->y),
                h = ptx_high_bf16(high->y);
    low->x = ptx_pack_bf16(a * cosine.x - e * sine.x, b * cosine.y - f * sine.y);
    low->y = ptx_pack_bf16(c * cosine.z - g * sine.z, d * cosine.w - h * sine.w);
    high->x = ptx_pack_bf16(e * cosine.x + a * sine.x, f * cosine.y + b * sine.y);
    high->y = ptx_pack_bf16(g * cosine.z + c * sine.z, h * cosine.w + d * sine.w);
}

/* What a lane rotates: 4 dims of a head's low half and the 4 of its high half.  Both are 8 bytes of
 * a row, so that the lanes of a token load 64 bytes or more together. */
struct rotate_pair {
    uint2 low, high; /* four bf16 each */
};

/* The norm's weights of a lane's dims; ones without a norm. */
struct rotate_weights {
    float low[4], high[4]; /* f32, whatever they are stored as */
};

/* Read once for all heads of a task, which share them. */
template <int K>
MPK_FN rotate_weights rotate_weights_of(const mpk_task &t, int operand, int type, int dim)
{
    rotate_weights w;
    if (K % 64 && dim >= K / 2) /* a lane without dims */
        type = -1;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w.low[i] = type >= 0 ? rotate_weight(t, operand, type, dim + i) : 1;
        w.high[i] = type >= 0 ? rotate_weight(t, operand, type, dim + i + K / 2) : 1;
    }
    return w;
}

/* A head, normalised if `norm`, and rotated; LAST: rotated first.  All lanes of the token take part
 * in the sum of squares: neighbours, by a butterfly, so that each has the same bits.  Lanes without
 * dims bring zeros. */
template <int K, bool LAST>
MPK_FN void rotate_head(const rotate_weights &w, bool norm, float eps, float4 cosine, float4 sine,
                        rotate_pair *v)
{
    if (LAST)
        rotate_dims(&v->low, &v->high, cosine, sine);
    float square =
        rotate_square(v->low) + rotate_square(v->high); /* of eight dims, then of the head */
#pragma unroll
    for (int d = 1; d < rotate_lanes<K>::N; d *= 2)
        square += __shfl_xor_sync(0xffffffffu, square, d);
    if (norm) {
        const float scale = rsqrtf(square / K + eps);
        v->low = rotate_norm(w.low, scale, v->low);
        v->high = rotate_norm(w.high, scale, v->high);
    }
    if (!LAST)
        rotate_dims(&v->low, &v->high, cosine, sine);
}

/* All threads: query heads lo to hi - 1, or keys of these KV heads.  What does not change is read
 * first: after a store it would be read again and again.  A group of lanes has a token; groups that
 * are left over share the token's heads: PARTS of them, each with every PARTS-th head.  The token's
 * target is looked up for keys alone: queries go to [T, H, K] in order. */
template <int K, bool LAST>
MPK_FN void rotate_heads(const mpk_task &t, const rotate_shape &s, const rotate_tokens &k,
                         bool keys, int lo, int hi, bool twice)
{
    constexpr int LANES = rotate_lanes<K>::N, PARTS = rotate_lanes<K>::PARTS,
                  TOKENS = rotate_lanes<K>::TOKENS;
    const int thread = mpk_thread(), dim = thread % LANES * 4, group = thread / LANES;
    const int heads = s.heads, kv_heads = s.kv_heads, columns = (heads + 2 * kv_heads) * K;
    const int type = keys ? s.k_norm_type : s.q_norm_type;
    const float eps = s.eps;
    const rt_u16 *qkv = mpk_at<const rt_u16>(t, ROTATE_QKV) + (keys ? heads : 0) * K + dim;
    const float *table = mpk_at<const float>(t, ROTATE_TABLE) + dim;
    rt_u16 *q = mpk_at<rt_u16>(t, s.q) + dim, *cache = mpk_at<rt_u16>(t, ROTATE_K_CACHE);
    const rotate_weights w =
        rotate_weights_of<K>(t, keys ? ROTATE_K_NORM : ROTATE_Q_NORM, type, dim);
    const bool holds = K % 64 == 0 || dim < K / 2; /* dims of a head: of K 96 not all do */
    for (int base = k.first; base < k.last; base += TOKENS) {
        const int token = base + group % TOKENS;
        const bool there = token < k.last; /* groups without a token take part in shuffles */
        const rt_u64 at = there ? (rt_u64)token : (rt_u64)base; /* a token that is there */
        float4 cosine = {0, 0, 0, 0}, sine = cosine;
        if (holds) {
            cosine = *(const float4 *)(table + at * K);
            sine = *(const float4 *)(table + at * K + K / 2);
        }
        const int place = keys && there ? rotate_target(t, s, token, twice, k.all) : 0;
        rt_u16 *to = q + at * heads * K, *to_high = to + K / 2; /* of the token's head 0 */
        rt_u32 further = K;                                     /* from a head to the next */
        /* places of a page are 64; from a KV head to the next are 64 x K entries */
        if (keys) {
            to = cache + (rt_u64)((rt_u32)place / ROTATE_PAGE) * kv_heads * ROTATE_PAGE * K;
            to_high = to + kv_key_at(place % ROTATE_PAGE, dim + K / 2, ROTATE_PAGE, K, 2);
            to += kv_key_at(place % ROTATE_PAGE, dim, ROTATE_PAGE, K, 2);
            further = ROTATE_PAGE * K;
        }
        for (int head = lo + group / TOKENS; head < hi; head += PARTS * ROTATE_HEADS) {
            rotate_pair v[ROTATE_HEADS]; /* of eight heads, in flight together */
#pragma unroll
            for (int i = 0; i < ROTATE_HEADS; i++) {
                /* after the last head the first again: loaded, not stored */
                const int own = head + i * PARTS < hi ? head + i * PARTS : head;
                const rt_u16 *from = qkv + at * columns + own * K;
                v[i].low = v[i].high = make_uint2(0, 0);
                if (holds) {
                    v[i].low = *(const uint2 *)from;
                    v[i].high = *(const uint2 *)(from + K / 2);
                }
            }
#pragma unroll
            for (int i = 0; i < ROTATE_HEADS; i++) {
                rotate_head<K, LAST>(w, type >= 0, eps, cosine, sine, &v[i]);
                const int own = head + i * PARTS;
                if (!there || !holds || place < 0 || own >= hi)
                    continue;
                *(uint2 *)(to + (rt_u64)((rt_u32)own * further)) = v[i].low;
                *(uint2 *)(to_high + (rt_u64)((rt_u32)own * further)) = v[i].high;
            }
        }
    }
}

/* ---- values ---- */

/* All lanes alike: which tokens from t0 - 16 (bit 0) to t0 + 15 begin a full block of 16 places
 * whose tokens are all the task's.  own: the place of token t0 + i in lane i and in i + 16.  64
 * tokens are looked at, two by each lane: those before t0 may begin a block that reaches into the
 * 16 of this warp, those after t0 + 15 end one. */
MPK_FN rt_u32 rotate_full_blocks(const mpk_task &t, const rotate_shape &s, const rotate_tokens &k,
                                 int t0, int *own)
{
    const int lane = mpk_thread() % 32;
    int token[2], place[2]; /* of 32 tokens around t0 */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        token[half] = t0 - 16 + half * 32 + lane;
        token[half] = token[half] >= k.first && token[half] < k.last ? token[half] : -1;
    }
    rotate_places<2>(t, s, token, place);
    *own = __shfl_sync(0xffffffffu, place[0], lane | 16);
    /* bit i, but for the first: token t0 - 16 + i stands one place after the one before it, in the
     * same page */
    const int before = __shfl_up_sync(0xffffffffu, place[0], 1),
              last = __shfl_sync(0xffffffffu, place[0], 31),
              behind = __shfl_up_sync(0xffffffffu, place[1], 1);
    const rt_u32 begins = __ballot_sync(0xffffffffu, place[0] >= 0 && place[0] % 16 == 0);
    rt_u64 follows = __ballot_sync(0xffffffffu, before >= 0 && place[0] == before + 1);
    const int to = lane ? behind : last; /* the place of the token before */
    follows |= (rt_u64)__ballot_sync(0xffffffffu, to >= 0 && place[1] == to + 1) << 32;
    /* Bit i: the next 1, then 2, 4, 8, 15 tokens follow token i place by place. */
    follows >>= 1;           /* the next 1 follows */
    follows &= follows >> 1; /* 2 */
    follows &= follows >> 2; /* 4 */
    follows &= follows >> 4; /* 8 */
    follows &= follows >> 7; /* 15 */
    return begins & (rt_u32)follows;
}

/* A warp: values of 16 tokens from `token` on into places `place` ..., a multiple of 16, which
 * are a whole block of the page; its rows are 32 bytes of one dim and 16 positions
 * (tile/kv.cuh).  A lane takes two dims: it loads their words of all 16 tokens, and stores two
 * full rows of the block. */
template <int K>
MPK_FN void rotate_store_block(const mpk_task &t, const rotate_shape &s, int token, int place,
                               int head)
{
    const int columns = (s.heads + 2 * s.kv_heads) * K;
    const rt_u16 *from = mpk_at<const rt_u16>(t, ROTATE_QKV) + (rt_u64)token * columns +
                         (s.heads + s.kv_heads + head) * K;
    rt_u16 *to = mpk_at<rt_u16>(t, ROTATE_V_CACHE) +
                 ((rt_u64)(place / ROTATE_PAGE) * s.kv_heads + head) * ROTATE_PAGE * K;
    for (int dim = mpk_thread() % 32 * 2; dim < K; dim += 64) {
        rt_u32 v[16], row[2][8]; /* two dims of 16 tokens; two rows of the block */
#pragma unroll
        for (int i = 0; i < 16; i++)
            v[i] = ptx_load_word(from + (rt_u64)i * columns + dim);
            /* Word h of piece c of a dim, at 2 c + h: tokens 2c + 8 h and the next. */
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const rt_u32 a = v[2 * c + 8 * h], b = v[2 * c + 8 * h + 1];
                row[0][2 * c + h] = (a & 0xffff) | b << 16;
                row[1][2 * c + h] = a >> 16 | (b & 0xffff0000u);
            }
#pragma unroll
        for (int d = 0; d < 2; d++) {
            /* pieces 0 and 2 lie side by side, and 1 and 3 */
            rt_u16 *even = to + kv_value_at(place % ROTATE_PAGE, dim + d, ROTATE_PAGE, K, 2),
                   *odd = to + kv_value_at(place % ROTATE_PAGE + 2, dim + d, ROTATE_PAGE, K, 2);
            *(uint4 *)even = make_uint4(row[d][0], row[d][1], row[d][4], row[d][5]);
            *(uint4 *)odd = make_uint4(row[d][2], row[d][3], row[d][6], row[d][7]);
        }
    }
}

/* A warp: values of up to 16 tokens from t0 on that are written one by one: lane i holds where that
 * of token t0 + i goes, or -1.  Four at a time, so that their loads overlap.  A value is K stores
 * of 2 bytes, 32 bytes apart: what a full block saves. */
template <int K>
MPK_FN void rotate_store_values(const mpk_task &t, const rotate_shape &s, int t0, int place,
                                int head)
{
    const int columns = (s.heads + 2 * s.kv_heads) * K, kv_heads = s.kv_heads;
    const rt_u16 *from = mpk_at<const rt_u16>(t, ROTATE_QKV) + (rt_u64)t0 * columns +
                         (s.heads + kv_heads + head) * K;
    rt_u16 *cache = mpk_at<rt_u16>(t, ROTATE_V_CACHE) + head * ROTATE_PAGE * K;
    const int pair = 2 * (mpk_thread() % 32); /* this lane's dims of each 64 */
    for (rt_u32 left = __ballot_sync(0xffffffffu, place >= 0); left;) {
        int token[ROTATE_AT_ONCE];           /* from t0; negative: none is left */
        constexpr int WORDS = (K + 63) / 64; /* of a lane, of two dims */
        rt_u32 v[ROTATE_AT_ONCE][WORDS];
#pragma unroll
        for (int i = 0; i < ROTATE_AT_ONCE; i++) {
            token[i] = __ffs((int)left) - 1;
            left &= left - 1;
#pragma unroll
            for (int d = 0; d < WORDS; d++)
                v[i][d] = token[i] < 0 || (K % 64 && 64 * d + pair >= K)
                              ? 0
                              : ptx_load_word(from + (rt_u64)token[i] * columns + 64 * d + pair);
        }
#pragma unroll
        for (int i = 0; i < ROTATE_AT_ONCE; i++) {
            const int at = __shfl_sync(0xffffffffu, place, token[i] & 31);
            if (token[i] < 0)
                break;
            rt_u16 *to = cache + (rt_u64)(at / ROTATE_PAGE) * kv_heads * ROTATE_PAGE * K;
#pragma unroll
            for (int d = 0; d < WORDS; d++) {
                const int dim = 64 * d + pair;
                if (K % 64 && dim >= K)
                    continue;
                to[kv_value_at(at % ROTATE_PAGE, dim, ROTATE_PAGE, K, 2)] = (rt_u16)v[i][d];
                to[kv_value_at(at % ROTATE_PAGE, dim + 1, ROTATE_PAGE, K, 2)] =
                    (rt_u16)(v[i][d] >> 16);
            }
        }
    }
}

/* All threads: values of KV heads kv_lo to kv_hi - 1.  Warps take 16 tokens of a head at a time; a
 * block is written by the warp in whose 16 it begins.  `covered` spreads the first bit of each full
 * block over its 16 tokens, which are left out of the single stores: also those of a block that
 * begins before t0, which another warp writes. */
template <int K>
MPK_FN void rotate_values(const mpk_task &t, const rotate_shape &s, const rotate_tokens &k,
                          int kv_lo, int kv_hi, bool twice)
{
    const int heads = kv_hi - kv_lo, n = (k.last - k.first + 15) / 16 * heads,
              lane = mpk_thread() % 32;
    for (int item = mpk_thread() / 32; item < n; item += MPK_WARPS) {
        const int t0 = k.first + item / heads * 16, head = kv_lo + item % heads;
        int place = -1;
        rt_u32 full = 0; /* first tokens of full blocks, bit 16 is t0 */
        if (!twice)
            /* only where no two tokens share a place, so that nothing of a block is lost to a
             * later token */
            full = rotate_full_blocks(t, s, k, t0, &place);
        else if (t0 + lane % 16 < k.last)
            place = rotate_target(t, s, t0 + lane % 16, twice, k.all);
        if (lane >= 16)
            place = -1;
        rt_u32 covered = full;
        covered |= covered << 1;
        covered |= covered << 2;
        covered |= covered << 4;
        covered |= covered << 8;
        rotate_store_values<K>(t, s, t0, covered >> 16 >> (lane & 15) & 1 ? -1 : place, head);
        for (rt_u32 begins = full >> 16; begins; begins &= begins - 1) {
            const int i = __ffs((int)begins) - 1;
            rotate_store_block<K>(t, s, t0 + i, __shfl_sync(0xffffffffu, place, i), head);
        }
    }
}

/* ---- the body ---- */

/* The body; LAST: norms follow the rotation.  The search for tokens that share a place is left out
 * by tasks without KV heads, which store none. */
template <int K, bool LAST = false> MPK_FN void rope_tile(const mpk_task &t, const rotate_shape &s)
{
    const rotate_tokens k = {(int)t.e->lo[0], (int)t.hi0,
                             (int)mpk_smaller(t.live[RT_TOKENS], (rt_u32)s.tokens)};
    const int lo = (int)t.e->lo[1], hi = (int)t.e->hi[1], group = s.heads / s.kv_heads;
    /* The KV heads whose first query head is in the box: each is one task's. */
    const int kv_lo = (lo + group - 1) / group, kv_hi = (hi + group - 1) / group;
    const bool twice = kv_lo < kv_hi && rotate_any_twice(t, s, k.all);
#pragma unroll 1
    for (int keys = 0; keys < 2; keys++)
        rotate_heads<K, LAST>(t, s, k, keys, keys ? kv_lo : lo, keys ? kv_hi : hi, twice);
    if (kv_lo < kv_hi)
        rotate_values<K>(t, s, k, kv_lo, kv_hi, twice);
}

#endif
