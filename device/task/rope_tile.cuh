/* rope_tile.cuh - many tokens' query and key heads normalised and rotated, keys and values put
 * into bf16 pages.
 *
 * The operator rope_kv; a task is some tokens, some query heads, and the KV heads whose first
 * query head is among them.  Called by the generated switch over bodies for many tokens, once
 * the task's event is activated.  src/gen/body_rope_tile.c chooses it; heads.cuh has the generic
 * body.  Scratch: rotate_scratch.
 *
 * A small task waits for memory most of its time, so its loads are in flight together: positions
 * and slots, the weights of the norms, the first four heads of each thread, the angles.  Entries of
 * the page table are loaded while the query heads are rotated, and values are copied to scratch
 * meanwhile.
 *
 * Query and key heads: K / 16 lanes have a token (rotate_lanes), each 8 dims of a head's low half
 * and the 8 that are rotated with them.  All threads have 16 tokens; lanes that are left over share
 * the heads of these (PARTS):
 *
 *   dims        0-7     8-15  ...  K/2-8..K/2-1 | K/2..K/2+7  ...
 *   lane        0       1          K/16 - 1     | 0           ...     of a token's K / 16 lanes
 *
 * A thread takes its query heads, then its key heads, two at a time, with the next two in flight.
 *
 * Values: 16 tokens that fill 16 neighbouring places of a page are one block of 32-byte rows
 * (tile/kv.cuh), which a warp writes at once, 64 dims of it; tokens that stand otherwise are
 * written one by one.  Of two tokens of the step at one place the later stays, and the earlier is
 * not written: each task compares the places of all later tokens with those of its own
 * (rotate_settle).  Cost: qkv is read and written once; the places of all later tokens for each
 * task that has KV heads.
 */
#ifndef TASK_ROPE_TILE_CUH
#define TASK_ROPE_TILE_CUH

#include "ptx/ptx.cuh"
#include "shape/rope_tile_shape.h"
#include "tile/kv.cuh"
#include "tile/products.cuh"
#include "tile/worker.cuh"

enum {
    ROTATE_TOKENS = 16, /* that all threads have at once; a block of values */
    ROTATE_HEADS = 2,   /* heads that a thread rotates together */
    ROTATE_LOOKS = 8,   /* places that a thread looks up together */
};

/* A token's lanes are a power of two, for sums by butterflies: of 96 entries 8, the last two of
 * which hold no dims.  A warp is of one part. */
template <int K> struct rotate_lanes {
    enum {
        N = K == 96 ? 8 : K / 16,
        PARTS = MPK_THREADS / N / ROTATE_TOKENS, /* of a token's heads */
    };
    static_assert(N * 16 >= K && N <= 32 && N * ROTATE_TOKENS * PARTS == MPK_THREADS &&
                      N * ROTATE_TOKENS % 32 == 0,
                  "all threads have a token, those of a warp the same part of its heads");
};

/* What is rotated together: tokens first to last - 1, at most ROTATE_OWN, all of them alive; query
 * heads lo to hi - 1 and KV heads kv_lo to kv_hi - 1.  Of the step's tokens `all` are alive. */
struct rotate_box {
    int first, last, all;
    int lo, hi, kv_lo, kv_hi;
};

/* Scratch: the places that the tokens go to (-1: they are not written), a map of bits in which
 * these are marked, the weights of the norms, and what `cp.async` brings. */
struct __align__(16) rotate_scratch
{
    int place[ROTATE_OWN]; /* page * ROTATE_PAGE + place in the page */
    rt_u32 map[ROTATE_PLACES / 32];
    float norm[2 * ROTATE_MOST_DIMS]; /* of queries, then of keys, K each */
    /* values of 16 tokens, 64 dims of each, for each warp */
    rt_u32 word[MPK_WARPS][ROTATE_TOKENS * 32];
    int look[ROTATE_LOOKS * MPK_THREADS]; /* positions, entries of the page table, then places */
    rt_u32 slot[ROTATE_LOOKS * MPK_THREADS];
};
static_assert(sizeof(rotate_scratch) == ROTATE_SCRATCH, "the host reserves the scratch");

MPK_FN rotate_scratch *rotate_scratch_of(const mpk_task &t)
{
    return (rotate_scratch *)t.s_scratch;
}

/* ---- places ---- */

/* ROTATE_LOOKS tokens of a thread, every MPK_THREADS-th from a first one.  What is loaded of them
 * goes to scratch and takes no registers; each thread reads its own there. */

/* Their places in their pages, a byte each; 255: it has none. */
struct rotate_bytes {
    rt_u32 word[ROTATE_LOOKS / 4];
};

/* Has no thread a token among its i-th and the following ones?  Short steps skip half of the
 * looks. */
MPK_FN bool rotate_looks_end(int first, int all, int i)
{
    return i == ROTATE_LOOKS / 2 && first + i * MPK_THREADS >= all;
}
/* Positions and slots of tokens first + the thread's number and so on are in flight. */
MPK_FN void rotate_look(const mpk_task &t, int first, int all)
{
    rotate_scratch *s_own = rotate_scratch_of(t);
    const int thread = mpk_thread();
#pragma unroll
    for (int i = 0; i < ROTATE_LOOKS && !rotate_looks_end(first, all, i); i++) {
        /* after the last token that one again, so that the load is valid */
        const int s_at = thread + i * MPK_THREADS,
                  at = (int)mpk_smaller((rt_u32)(first + s_at), all - 1);
        mpk_fetch_word((rt_u32 *)s_own->look + s_at,
                       mpk_at<const rt_u32>(t, ROTATE_POSITIONS) + at);
        mpk_fetch_word(s_own->slot + s_at, mpk_at<const rt_u32>(t, ROTATE_SLOTS) + at);
    }
    mpk_fetch_close();
}
/* Then their entries of the page table are, which take the positions' place.  LATER: groups of
 * fetches closed since.  Positions, slots and entries are data and count only in range.  mpk_caches
 * has the sizes that the host writes when the kernel is loaded. */
template <int LATER>
MPK_FN rotate_bytes rotate_look_up(const mpk_task &t, const rotate_shape &s, int first, int all)
{
    const mpk_cache &c = mpk_caches[s.cache];
    const rt_u32 room = (rt_u32)c.slot_pages * ROTATE_PAGE, slots = (rt_u32)c.slots;
    const int thread = mpk_thread();
    rt_u32 *s_look = (rt_u32 *)rotate_scratch_of(t)->look + thread,
           *s_slot = rotate_scratch_of(t)->slot + thread;
    rotate_bytes places = {0xffffffffu, 0xffffffffu};
    mpk_fetch_wait<LATER>();
#pragma unroll
    for (int i = 0; i < ROTATE_LOOKS && !rotate_looks_end(first, all, i); i++) {
        const rt_u32 position = s_look[i * MPK_THREADS], slot = s_slot[i * MPK_THREADS];
        const bool there =
            (first + thread + i * MPK_THREADS < all) & (position < room) & (slot < slots);
        /* What is not there loads some entry: were the address chosen by `there`, it would be kept
         * in a predicate, of which there are too few. */
        const rt_u32 at = mpk_smaller(slot, slots - 1) * (rt_u32)c.slot_pages +
                          mpk_smaller(position / ROTATE_PAGE, (rt_u32)c.slot_pages - 1);
        places.word[i / 4] ^= (there ? position % ROTATE_PAGE ^ 255 : 0) << i % 4 * 8;
        mpk_fetch_word(s_look + i * MPK_THREADS, mpk_at<const rt_u32>(t, ROTATE_PAGES) + at);
    }
    mpk_fetch_close();
    return places;
}
/* The places take the entries' place in scratch: page * ROTATE_PAGE + place in the page; -1: it has
 * none. */
MPK_FN void rotate_end_looks(const rotate_shape &s, int first, int all, const rotate_bytes &places,
                             int *s_look)
{
    const rt_u32 pages = mpk_caches[s.cache].n_pages;
    mpk_fetch_wait<0>();
#pragma unroll
    for (int i = 0; i < ROTATE_LOOKS && !rotate_looks_end(first, all, i); i++) {
        const rt_u32 in_page = places.word[i / 4] >> i % 4 * 8 & 255,
                     page = (rt_u32)s_look[i * MPK_THREADS];
        const bool there = (in_page < ROTATE_PAGE) & (page < pages);
        s_look[i * MPK_THREADS] = there ? (int)(page * ROTATE_PAGE + in_page) : -1;
    }
}

/* Token number `token` after the box's first goes to `place`.  Of it and the box's tokens that have
 * this place the last keeps it. */
MPK_FN void rotate_take(rotate_scratch *s_own, int own, int token, int place)
{
#pragma unroll 1
    for (int i = 0; i < own; i++)
        if (i != token && s_own->place[i] == place)
            s_own->place[i < token ? i : token] = -1;
}

/* All threads: find the places of the box's tokens and which of them lose theirs to a later token
 * of the step; s_own->place is final on return.  places: what rotate_look_up has returned for the
 * box's first; s_own->map is empty.  A bit of the map stands for several places, so a token whose
 * bit was marked before is only then compared with the box's own. */
MPK_FN void rotate_settle(const mpk_task &t, const rotate_shape &s, const rotate_box &b,
                          const rotate_bytes &places)
{
    rotate_scratch *s_own = rotate_scratch_of(t);
    const int thread = mpk_thread(), own = b.last - b.first;
    int *s_look = s_own->look + thread;
    rt_u32 hits = 0; /* bit i: the i-th token of this thread may stand where another does */
    rotate_end_looks(s, b.first, b.all, places, s_look);
#pragma unroll
    for (int i = 0; i < ROTATE_OWN / MPK_THREADS; i++) {
        const int token = thread + i * MPK_THREADS;
        if (token >= own)
            break;
        const int place = s_look[i * MPK_THREADS];
        const rt_u32 bit = 1u << (place & 31);
        s_own->place[token] = place;
        if (place >= 0 && atomicOr(&s_own->map[place % ROTATE_PLACES / 32], bit) & bit)
            hits |= 1u << i;
    }
    /* all of the box's tokens are marked, before others are compared with them */
    mpk_sync();
#pragma unroll 1
    for (int from = 0;;) { /* tokens after the box's first */
#pragma unroll
        for (int i = 0; i < ROTATE_LOOKS && !rotate_looks_end(b.first + from, b.all, i); i++) {
            const int place = s_look[i * MPK_THREADS];
            if (from + thread + i * MPK_THREADS >= own && place >= 0)
                hits |= (s_own->map[place % ROTATE_PLACES / 32] >> (place & 31) & 1) << i;
        }
#pragma unroll 1
        for (; hits; hits &= hits - 1) {
            const int i = __ffs((int)hits) - 1;
            rotate_take(s_own, own, from + thread + i * MPK_THREADS, s_look[i * MPK_THREADS]);
        }
        from += ROTATE_LOOKS * MPK_THREADS;
        const int next = b.first + from;
        if (next >= b.all)
            break;
        rotate_look(t, next, b.all);
        rotate_end_looks(s, next, b.all, rotate_look_up<0>(t, s, next, b.all), s_look);
    }
    mpk_sync();
}

/* ---- queries and keys ---- */

/* Two bf16 times scale and weights, rounded to bf16 as the single operator does: what follows
 * begins with rounded numbers. */
MPK_FN rt_u32 rotate_norm(const float *weight, float scale, rt_u32 v)
{
    return ptx_pack_bf16(ptx_low_bf16(v) * scale * weight[0], ptx_high_bf16(v) * scale * weight[1]);
}

/* The sum of the squares of four bf16, in one order of roundings (tile/products.cuh). */
MPK_FN float rotate_square(rt_u32 v, rt_u32 w)
{
    const float a = ptx_low_bf16(v), b = ptx_high_bf16(v), c = ptx_low_bf16(w),
                d = ptx_high_bf16(w);
    return fmaf(d, d, fmaf(c, c, mpk_two_products(a, a, b, b)));
}

/* Rotate two pairs: low cos - high sin, high cos + low sin, rounded to bf16. */
MPK_FN void rotate_dims(rt_u32 *low, rt_u32 *high, const float *cosine, const float *sine)
{
    const float a = ptx_low_bf16(*low), b = ptx_high_bf16(*low);
    const float c = ptx_low_bf16(*high), d = ptx_high_bf16(*high);
    *low = ptx_pack_bf16(mpk_two_products(a, cosine[0], -c, sine[0]),
                         mpk_two_products(b, cosine[1], -d, sine[1]));
    *high = ptx_pack_bf16(mpk_two_products(a, sine[0], c, cosine[0]),
                          mpk_two_products(b, sine[1], d, cosine[1]));
}

/* What a lane has of a head: 8 dims of its low half and the 8 of its high half. */
struct rotate_pair {
    mpk_words low, high; /* eight bf16 each */
};

/* What a lane's dims are rotated with. */
struct rotate_angles {
    float cosine[8], sine[8];
};
/* Eight floats, at a multiple of 16 bytes. */
MPK_FN void rotate_load(const float *from, float *to)
{
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const float4 v = *(const float4 *)(from + i);
        to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
}

/* Word i of four: two dims. */
MPK_FN rt_u32 &rotate_word(mpk_words *v, int i)
{
    return (&v->x)[i];
}

MPK_FN void rotate_all_dims(const rotate_angles &a, rotate_pair *v)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        rotate_dims(&rotate_word(&v->low, i), &rotate_word(&v->high, i), a.cosine + 2 * i,
                    a.sine + 2 * i);
}

/* Heads, normalised if `norm`, and rotated; LAST: rotated first.  All lanes of the token take part
 * in the sum of squares: four dims of each half, then eight, then neighbours, by a butterfly, so
 * that each has the same bits.  Lanes without dims bring zeros. */
template <int K, bool LAST>
MPK_FN void rotate_heads(const float *s_norm, bool norm, float eps, const rotate_angles &a,
                         rotate_pair (&v)[ROTATE_HEADS])
{
    if (LAST)
#pragma unroll
        for (int i = 0; i < ROTATE_HEADS; i++)
            rotate_all_dims(a, &v[i]);
    if (norm) { /* of the shape: all lanes alike */
        float square[ROTATE_HEADS];
#pragma unroll
        for (int i = 0; i < ROTATE_HEADS; i++) {
            const mpk_words l = v[i].low, h = v[i].high;
            square[i] = (rotate_square(l.x, l.y) + rotate_square(h.x, h.y)) +
                        (rotate_square(l.z, l.w) + rotate_square(h.z, h.w));
        }
#pragma unroll
        for (int d = 1; d < rotate_lanes<K>::N; d *= 2)
#pragma unroll
            for (int i = 0; i < ROTATE_HEADS; i++)
                square[i] += __shfl_xor_sync(0xffffffffu, square[i], d);
        float low_weight[8], high_weight[8];
        rotate_load(s_norm, low_weight);
        rotate_load(s_norm + K / 2, high_weight);
#pragma unroll
        for (int i = 0; i < ROTATE_HEADS; i++) {
            const float scale = rsqrtf(square[i] / K + eps);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                rt_u32 &low = rotate_word(&v[i].low, k), &high = rotate_word(&v[i].high, k);
                low = rotate_norm(low_weight + 2 * k, scale, low);
                high = rotate_norm(high_weight + 2 * k, scale, high);
            }
        }
    }
    if (!LAST)
#pragma unroll
        for (int i = 0; i < ROTATE_HEADS; i++)
            rotate_all_dims(a, &v[i]);
}

/* The heads of a thread's token in the order in which it takes them.  Both kinds end with a pair of
 * heads, whose second may not be there. */
template <int K> struct rotate_order {
    const rt_u16 *row;        /* the token's, at the lane's dims; head 0 */
    int query, queries, step; /* the next, the end, from one to the next */
    int key, keys;            /* columns of heads, as queries */
};

/* Ask for the next two heads; what is not there stays zero. */
template <int K>
MPK_FN void rotate_ask(rotate_order<K> *o, bool holds, rotate_pair (&v)[ROTATE_HEADS])
{
    const bool queries = o->query < o->queries;
    const int end = queries ? o->queries : o->keys;
    int head = queries ? o->query : o->key;
#pragma unroll
    for (int i = 0; i < ROTATE_HEADS; i++, head += o->step) {
        const rt_u16 *from = o->row + head * K;
        v[i].low = v[i].high = {0, 0, 0, 0};
        ptx_load_words_if(from, holds && head < end, &v[i].low);
        ptx_load_words_if(from + K / 2, holds && head < end, &v[i].high);
    }
    if (queries)
        o->query = head;
    else
        o->key = head;
}

/* Weights of both norms, as they are stored: of a thread number thread + i * MPK_THREADS of the two
 * rows. */
template <int K> struct rotate_stored_norms {
    enum { N = (2 * K + MPK_THREADS - 1) / MPK_THREADS };
    rt_u32 word[N];
};
/* The type of weight number `at`, as rotate_shape has it. */
template <int K> MPK_FN int rotate_norm_type(const rotate_shape &s, int at)
{
    return at < K ? s.q_norm_type : s.k_norm_type;
}
/* Ask for them; nothing is done with them yet, so that the loads after these do not wait. */
template <int K>
MPK_FN void rotate_ask_norms(const mpk_task &t, const rotate_shape &s, rotate_stored_norms<K> *w)
{
#pragma unroll
    for (int i = 0; i < rotate_stored_norms<K>::N; i++) {
        const int at = mpk_thread() + i * MPK_THREADS, type = rotate_norm_type<K>(s, at),
                  operand = at < K ? ROTATE_Q_NORM : ROTATE_K_NORM, dim = at < K ? at : at - K;
        w->word[i] = 0;
        if (at < 2 * K && type == 0)
            w->word[i] = mpk_at<const rt_u16>(t, operand)[dim];
        if (at < 2 * K && type == 1)
            w->word[i] = mpk_at<const rt_u32>(t, operand)[dim];
    }
}
/* All threads: convert the weights to f32 and store them in scratch; clear the map.  Both may be
 * read after a barrier.  The places of an absent norm's weights are written too, but not read. */
template <int K>
MPK_FN void rotate_put_norms(const rotate_shape &s, const rotate_stored_norms<K> &w,
                             rotate_scratch *s_own)
{
    const int thread = mpk_thread();
    if (thread < ROTATE_PLACES / 128)
        *(uint4 *)(s_own->map + thread * 4) = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < rotate_stored_norms<K>::N; i++) {
        const int at = thread + i * MPK_THREADS, type = rotate_norm_type<K>(s, at);
        if (at < 2 * K)
            s_own->norm[at] = __uint_as_float(type ? w.word[i] : w.word[i] << 16);
    }
}

/* Where a lane's part of a token's heads goes: 16 bytes of each half. */
struct rotate_target {
    rt_u16 *low, *high; /* of head 0 */
    rt_u32 further;     /* elements from a head to the next */
    bool there;
};

/* Queries go to [T, H, K] in order, keys to their place of the cache: places of a page are 64; from
 * a KV head to the next are 64 x K entries. */
template <int K>
MPK_FN rotate_target rotate_target_of(const mpk_task &t, const rotate_shape &s, bool keys,
                                      int token, int place, int dim)
{
    rotate_target to;
    to.low = mpk_at<rt_u16>(t, s.q) + (rt_u64)token * s.heads * K + dim;
    to.high = to.low + K / 2;
    to.further = K;
    to.there = !keys || place >= 0;
    if (keys) {
        rt_u16 *page = mpk_at<rt_u16>(t, ROTATE_K_CACHE) +
                       (rt_u64)((rt_u32)place / ROTATE_PAGE) * s.kv_heads * ROTATE_PAGE * K;
        to.low = page + kv_key_at(place % ROTATE_PAGE, dim, ROTATE_PAGE, K, 2);
        to.high = page + kv_key_at(place % ROTATE_PAGE, dim + K / 2, ROTATE_PAGE, K, 2);
        to.further = ROTATE_PAGE * K;
    }
    return to;
}

/* A thread's query heads, or key heads, of its token.  o has the two heads after the first four,
 * which v holds or has asked for; it and v move on. */
template <int K, bool LAST>
MPK_FN void rotate_rows(const rotate_shape &s, bool keys, const float *s_norm,
                        const rotate_angles &angles, const rotate_target &to, bool holds, int head,
                        int end, rotate_order<K> *o, rotate_pair (&v)[2][ROTATE_HEADS])
{
    const bool norm = (keys ? s.k_norm_type : s.q_norm_type) >= 0;
#pragma unroll 1
    for (; head < end; head += ROTATE_HEADS * o->step) {
        rotate_pair now[ROTATE_HEADS];
#pragma unroll
        for (int i = 0; i < ROTATE_HEADS; i++)
            now[i] = v[0][i], v[0][i] = v[1][i];
        rotate_ask<K>(o, holds, v[1]);
        rotate_heads<K, LAST>(s_norm, norm, s.eps, angles, now);
#pragma unroll
        for (int i = 0; i < ROTATE_HEADS; i++) {
            const int own = head + i * o->step;
            if (!to.there || !holds || own >= end)
                continue;
            const rt_u64 at = (rt_u32)own * to.further;
            *(uint4 *)(to.low + at) =
                make_uint4(now[i].low.x, now[i].low.y, now[i].low.z, now[i].low.w);
            *(uint4 *)(to.high + at) =
                make_uint4(now[i].high.x, now[i].high.y, now[i].high.z, now[i].high.w);
        }
    }
}

/* ---- values ---- */

/* All lanes alike: which tokens from t0 - 16 (bit 0) to t0 + 15 begin a full block of 16 places
 * whose tokens are all the box's; t0 counts from its first.  64 tokens are looked at, two by each
 * lane: those before t0 may begin a block that reaches into the 16 of this warp, those after t0 +
 * 15 end one. */
MPK_FN rt_u32 rotate_full_blocks(const rotate_scratch *s_own, int own, int t0)
{
    const int lane = mpk_thread() % 32;
    int place[2]; /* of 32 tokens around t0 */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int token = t0 - 16 + half * 32 + lane;
        place[half] = token >= 0 && token < own ? s_own->place[token] : -1;
    }
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

/* 64 dims of a KV head's values, as a lane of a warp has them: where they are in the row of the
 * step's token 0, and the head's part of the cache's page 0. */
struct rotate_value {
    const rt_u16 *from;
    rt_u16 *to;
    rt_u32 *s_word;    /* the warp's scratch: two dims of each lane, of 16 tokens */
    int columns, page; /* from a token to the next, from a page to the next */
    int dim, dims;     /* the first, and how many are left: of K 96 perhaps 32 */
};

/* unit: counted from the first 64 dims of KV head kv_lo. */
template <int K>
MPK_FN rotate_value rotate_value_of(const mpk_task &t, const rotate_shape &s, int kv_lo, int warp,
                                    int unit)
{
    constexpr int SLICES = (K + 63) / 64;
    const int head = kv_lo + unit / SLICES;
    rotate_value v;
    v.dim = unit % SLICES * 64;
    v.dims = K - v.dim;
    v.columns = (s.heads + 2 * s.kv_heads) * K;
    v.page = s.kv_heads * ROTATE_PAGE * K;
    v.from = mpk_at<const rt_u16>(t, ROTATE_QKV) + (s.heads + s.kv_heads + head) * K + v.dim;
    v.to = mpk_at<rt_u16>(t, ROTATE_V_CACHE) + head * ROTATE_PAGE * K;
    v.s_word = rotate_scratch_of(t)->word[warp];
    return v;
}

/* A warp: values of 16 tokens from `token` on are in flight to its scratch, which all lanes have
 * read before.  After token last - 1 that one again. */
template <int K> MPK_FN void rotate_fetch_values(const rotate_value &v, int token, int last)
{
    const int lane = mpk_thread() % 32, dim = lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < ROTATE_TOKENS; i += 4) {
        const int at = (int)mpk_smaller((rt_u32)(token + lane / 8 + i), last - 1);
        if (K % 64 == 0 || dim < v.dims)
            mpk_fetch((rt_u16 *)v.s_word + (lane / 8 + i) * 64 + dim,
                      v.from + (rt_u64)((rt_u32)at) * v.columns + dim);
    }
}
/* All of them are there, for all lanes. */
MPK_FN void rotate_await_values(void)
{
    mpk_fetch_close();
    mpk_fetch_wait<0>();
    __syncwarp();
}

/* A warp: the values in its scratch into places `place` ..., a multiple of 16, which are a whole
 * block of the page; its rows are 32 bytes of one dim and 16 positions (tile/kv.cuh).  A lane takes
 * two dims and stores two full rows of the block. */
template <int K> MPK_FN void rotate_put_block(const rotate_value &v, int place)
{
    const int lane = mpk_thread() % 32, dim = v.dim + 2 * lane;
    rt_u16 *to = v.to + (rt_u64)(place / ROTATE_PAGE) * v.page;
    rt_u32 row[2][8];
    if (K % 64 && 2 * lane >= v.dims)
        return;
        /* Word h of piece c of a dim, at 2 c + h: tokens 2c + 8 h and the next. */
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const rt_u32 a = v.s_word[(2 * c + 8 * h) * 32 + lane],
                         b = v.s_word[(2 * c + 8 * h + 1) * 32 + lane];
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

/* A warp: the values in its scratch that are written one by one: lane i holds where that of the
 * i-th token goes, or -1.  A lane's part of a value is 2 stores of 2 bytes, 32 bytes apart: what a
 * full block saves. */
template <int K> MPK_FN void rotate_put_single(const rotate_value &v, int place)
{
    const int lane = mpk_thread() % 32, dim = v.dim + 2 * lane;
#pragma unroll 1
    for (rt_u32 left = __ballot_sync(0xffffffffu, place >= 0); left; left &= left - 1) {
        const int i = __ffs((int)left) - 1, at = __shfl_sync(0xffffffffu, place, i);
        const rt_u32 word = v.s_word[i * 32 + lane];
        rt_u16 *to = v.to + (rt_u64)(at / ROTATE_PAGE) * v.page +
                     kv_value_at(at % ROTATE_PAGE, dim, ROTATE_PAGE, K, 2);
        if (K % 64 == 0 || 2 * lane < v.dims) {
            to[0] = (rt_u16)word;
            to[16] = (rt_u16)(word >> 16); /* the next dim's row */
        }
    }
}

/* A warp: the values of 16 tokens, number t0 of the box and so on, are in its scratch; write those
 * that are of no full block.  Returns which of the 16 begin a full block, bit 0 for t0; a block is
 * written by the warp in whose 16 it begins.  `covered` spreads the first bit of each full block
 * over its 16 tokens, which are left out here: also those of a block that begins before t0. */
template <int K>
MPK_FN rt_u32 rotate_put_loose(const rotate_value &v, const rotate_scratch *s_own, int own, int t0,
                               int place)
{
    const rt_u32 full = rotate_full_blocks(s_own, own, t0); /* bit 16 is t0 */
    rt_u32 covered = full;
    const int lane = mpk_thread() % 32;
    covered |= covered << 1;
    covered |= covered << 2;
    covered |= covered << 4;
    covered |= covered << 8;
    const bool loose = lane < ROTATE_TOKENS && !(covered >> 16 >> (lane & 15) & 1);
    rotate_put_single<K>(v, loose ? place : -1);
    return full >> 16;
}

/* Units of values that a warp writes: its first one and every MPK_WARPS-th after it.  The last
 * warps come first: keys are the first ones'. */
struct rotate_units {
    int first, end;
};
template <int K> MPK_FN rotate_units rotate_units_of(const rotate_box &b, int warp)
{
    return {MPK_WARPS - 1 - warp, (b.kv_hi - b.kv_lo) * ((K + 63) / 64)};
}

/* All threads: values of 16 tokens of the box from `base` on.  Those of the warp's first unit are
 * in flight to its scratch. */
template <int K>
MPK_FN void rotate_values(const mpk_task &t, const rotate_shape &s, const rotate_box &b, int base,
                          int warp)
{
    const rotate_units u = rotate_units_of<K>(b, warp);
    const int lane = mpk_thread() % ROTATE_TOKENS, t0 = base - b.first;
    const int place = base + lane < b.last ? rotate_scratch_of(t)->place[t0 + lane] : -1;
    const int first = __shfl_sync(0xffffffffu, place, 0);
    const bool whole =
        __all_sync(0xffffffffu, first >= 0 && first % ROTATE_TOKENS == 0 && place == first + lane);
#pragma unroll 1
    for (int unit = u.first; unit < u.end; unit += MPK_WARPS) {
        const rotate_value v = rotate_value_of<K>(t, s, b.kv_lo, warp, unit);
        if (unit != u.first)
            rotate_fetch_values<K>(v, base, b.last);
        rotate_await_values();
        rt_u32 full = 1; /* tokens that begin a block */
        if (!whole)
            full = rotate_put_loose<K>(v, rotate_scratch_of(t), b.last - b.first, t0, place);
#pragma unroll 1
        for (; full; full &= full - 1) {
            const int i = __ffs((int)full) - 1;
            if (i) {          /* then no block begins with t0: fetch those of this one */
                __syncwarp(); /* all lanes have read their words */
                rotate_fetch_values<K>(v, base + i, b.last);
                rotate_await_values();
            }
            rotate_put_block<K>(v, __shfl_sync(0xffffffffu, place, i));
        }
        __syncwarp(); /* the scratch is filled again */
    }
}

/* ---- the body ---- */

/* All threads: 16 tokens of the box from `base` on.  With the box's first ones come the weights of
 * the norms and the places of all of its tokens; *places is theirs in between. */
template <int K, bool LAST>
MPK_FN void rotate_tokens(const mpk_task &t, const rotate_shape &s, const rotate_box &b, int base,
                          rotate_bytes *places)
{
    constexpr int N = rotate_lanes<K>::N, PARTS = rotate_lanes<K>::PARTS;
    rotate_scratch *s_own = rotate_scratch_of(t);
    const int thread = mpk_thread(), heads = s.heads, kv_heads = s.kv_heads;
    /* the same in all lanes of a warp, as the compiler sees by these shuffles */
    const int warp = __shfl_sync(0xffffffffu, thread / 32, 0),
              part = (int)((rt_u32)warp / (N * ROTATE_TOKENS / 32));
    const int token = base + thread / N % ROTATE_TOKENS;
    const bool there = token < b.last, holds = K % 64 == 0 || thread % N * 8 < K / 2;
    const int at = there ? token : base, dim = holds ? thread % N * 8 : 0; /* that are there */
    const bool stores = b.kv_lo < b.kv_hi, begins = base == b.first;
    /* keys go on in turn where queries end */
    const int key = b.kv_lo + ((part - (b.hi - b.lo)) & (PARTS - 1));
    rotate_order<K> o = {mpk_at<const rt_u16>(t, ROTATE_QKV) +
                             (rt_u64)at * ((heads + 2 * kv_heads) * K) + dim,
                         b.lo + part,
                         b.hi,
                         PARTS,
                         heads + key,
                         heads + b.kv_hi};
    rotate_stored_norms<K> norms = {};
    rotate_pair v[2][ROTATE_HEADS];
    rotate_angles angles;
    if (begins && stores)
        rotate_look(t, b.first, b.all);
    if (begins)
        rotate_ask_norms<K>(t, s, &norms);
    rotate_ask<K>(&o, holds, v[0]);
    rotate_ask<K>(&o, holds, v[1]);
    const rotate_units u = rotate_units_of<K>(b, warp);
    if (u.first < u.end)
        rotate_fetch_values<K>(rotate_value_of<K>(t, s, b.kv_lo, warp, u.first), base, b.last);
    mpk_fetch_close();
    const float *table = mpk_at<const float>(t, ROTATE_TABLE) + (rt_u64)at * K + dim;
    rotate_load(table, angles.cosine);
    rotate_load(table + K / 2, angles.sine);
    if (begins) {
        rotate_put_norms<K>(s, norms, s_own);
        if (stores)
            *places = rotate_look_up<1>(t, s, b.first, b.all); /* values were closed since */
        mpk_sync();
    }
#pragma unroll 1
    for (int keys = 0; keys < 1 + stores; keys++) {
        if (keys && begins)
            rotate_settle(t, s, b, *places);
        const int place = keys ? s_own->place[at - b.first] : 0;
        rotate_target to = rotate_target_of<K>(t, s, keys, at, place, dim);
        to.there &= there;
        rotate_rows<K, LAST>(s, keys, s_own->norm + keys * K + dim, angles, to, holds,
                             keys ? key : b.lo + part, keys ? b.kv_hi : b.hi, &o, v);
    }
    if (stores)
        rotate_values<K>(t, s, b, base, warp);
}

/* The first KV head whose query heads begin with `head` or later: a division by the group, rounded
 * up. */
MPK_FN int rotate_kv_from(const rotate_shape &s, int head)
{
    return (int)((rt_u64)(rt_u32)(head + s.group - 1) * (rt_u32)s.inverse >> ROTATE_INVERSE);
}

/* The body; LAST: norms follow the rotation.  Places are left out by tasks without KV heads, which
 * store none. */
template <int K, bool LAST = false> MPK_FN void rope_tile(const mpk_task &t, const rotate_shape &s)
{
    const int last = (int)t.hi0;
    rotate_box b;
    b.first = (int)t.e->lo[0];
    b.all = (int)mpk_smaller(t.live[RT_TOKENS], (rt_u32)s.tokens);
    b.lo = (int)t.e->lo[1];
    b.hi = (int)t.e->hi[1];
    /* The KV heads whose first query head is in the box: each is one task's. */
    b.kv_lo = rotate_kv_from(s, b.lo);
    b.kv_hi = rotate_kv_from(s, b.hi);
#pragma unroll 1
    while (b.first < last) {
        rotate_bytes places = {0, 0};
        b.last = (int)mpk_smaller((rt_u32)last, (rt_u32)(b.first + ROTATE_OWN));
#pragma unroll 1
        for (int base = b.first; base < b.last; base += ROTATE_TOKENS)
            rotate_tokens<K, LAST>(t, s, b, base, &places);
        b.first = b.last;
        if (b.first < last)
            mpk_sync(); /* the scratch is used again */
    }
}

#endif
