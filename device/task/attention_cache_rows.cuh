/* attention_cache_rows.cuh - sdpa_split and attention_cache by warps: K and V by loads of 16 bytes;
 * rows of 8 to 256 entries, of f32 to 128.
 *
 * A split's blocks of 64 positions go by warps, 8 neighbours each; LANES lanes share a position, 8
 * entries a lane, so that a load of a warp is 32 / LANES whole rows.  ROWS query rows are done at
 * once; every group of lanes keeps a softmax of its own, which are put together at the end: lanes
 * of a warp, then warps in rising order.
 *
 * The mask comes first, and a warp whose 8 positions no query sees reads nothing of the cache: what
 * lies past a context costs only its mask.  K and V of the first block are requested before the
 * queries are normalised and rotated, unless rows are so long that registers do not suffice.  Keys
 * and values of the step are kept in scratch, and stand in for what the cache has at their
 * positions.
 *
 * A row is one query head of one token of the step; rows of a KV head are numbered by token, then
 * head.  Split i of n has blocks i, i + n, ... of the positions.
 * Input: qkv as it is (it may be carried), caches of any strides but that of an entry; output: for
 * each split the normalised sum of values, and the natural logarithm of its sum of weights.
 *
 * Template arguments: ROWS 1, 2 or 4, so that 8 positions of all rows fit the 32 lanes of a mask;
 * LANES the power of 2 from K / 8 on, at least 4, of which those beyond K / 8 hold zeros; WORDS 4
 * or 8, of 32 bits, for eight entries of 16 or of 32 bits.
 */
#ifndef TASK_ATTENTION_CACHE_ROWS_CUH
#define TASK_ATTENTION_CACHE_ROWS_CUH

#include "ptx/ptx.cuh"
#include "task/attention_cache.cuh"
#include "tile/worker.cuh"

enum { ROWS_POSITIONS = CACHE_UNIT / 8 }; /* of a warp in a block */

#define ROWS_LOG2_E 1.4426950408889634f

/* Scratch, in bytes from its start:
 *
 *   0          float[ROWS][K]             queries, rotated and scaled
 *   partial    float[warps][ROWS][K]      sums of each warp; a row of K for each while rows are
 *                                         rotated
 *   largest    float2[warps][ROWS]        largest score, sum of weights
 *   keys       [2][tokens][K]             keys, then values of the step, in the dtype of the cache
 */
template <int ROWS> struct rows_scratch {
    static constexpr int partial(int size) { return ROWS * size * 4; }
    static constexpr int largest(int size) { return partial(size) + MPK_WARPS * ROWS * size * 4; }
    static constexpr int keys(int size) { return largest(size) + MPK_WARPS * ROWS * 8; }
};

/* 8 positions of a warp, as registers of a lane.
 *
 *   added    what the mask adds for position lane % 8 and row lane / 8; -infinity: not seen
 *   token    by which position lane % 8 was written in this step; -1: none
 *   seen     some row sees some position; the same in all lanes
 *   k, v     of STEPS positions, s * (32 / LANES) + lane / LANES each, eight entries from
 *            lane % LANES * 8 on
 */
template <int STEPS, int WORDS> struct rows_block {
    float added; /* -infinity: not seen */
    int token;   /* of this step */
    bool seen;
    rt_u32 k[STEPS][WORDS], v[STEPS][WORDS];
};

/* What a task works on, and where its caches' rows begin: position 0 of the entry and KV head. */
struct rows_work {
    int entry, kv_head, split; /* of the batch; of the cache; of the context */
    const char *g_keys, *g_values;
};

/* Eight entries: 4 words of 16-bit numbers, or 8 of 32-bit ones; aligned to 16 bytes: K is a
 * multiple of 8, and the record demands it of the other strides. */
template <int WORDS> MPK_FN void rows_load(rt_u32 *to, const char *from)
{
#pragma unroll
    for (int i = 0; i < WORDS; i += 4) {
        const mpk_words w = *(const mpk_words *)(from + 4 * i);
        to[i] = w.x;
        to[i + 1] = w.y;
        to[i + 2] = w.z;
        to[i + 3] = w.w;
    }
}

/* Entry i of eight, as float. */
template <int WORDS> MPK_FN float rows_entry(int dtype, const rt_u32 *words, int i)
{
    if (WORDS == 8)
        return __uint_as_float(words[i]);
    if (dtype == MPK_BF16)
        return i % 2 ? ptx_high_bf16(words[i / 2]) : ptx_low_bf16(words[i / 2]);
    return mpk_from_f16((rt_u16)(words[i / 2] >> (i % 2 ? 16 : 0)));
}

/* What the mask adds to the score of position p for row number `row` of the entry and KV head;
 * -infinity: it is not seen, or there is no such position or row.  Row r is query head r % group of
 * token r / group. */
MPK_FN float rows_mask(const mpk_task &t, const cache_operands &o, const cache_how &h,
                       const rows_work &w, int row, rt_i64 p)
{
    const int group = (int)(h.heads / h.kv_heads); /* query heads of a KV head */
    float added = -MPK_INFINITY;                   /* not seen */
    if (row < group * (int)o.index.dims[0] && p < o.k_cache.dims[2]) {
        const rt_i64 at[RT_MAX_RANK] = {w.entry, w.kv_head * group + row % group, row / group, p};
        if (!cache_sees(t, o, at, &added))
            added = -MPK_INFINITY;
    }
    return added;
}

/* Request a warp's positions from p0 on, of which lane l asks the mask for position l % 8 and row l
 * / 8.  A position past the end is masked; its loads go to the last one, so that they stay inside
 * the cache and need no branch.  Nothing waits for k and v here: the first use of them does. */
template <int ROWS, int LANES, int STEPS, int WORDS>
MPK_FN void rows_fetch(const mpk_task &t, const cache_operands &o, const cache_how &h,
                       const rows_work &w, int row0, int p0, rows_block<STEPS, WORDS> *b)
{
    const int lane = mpk_thread() % 32, row = lane / ROWS_POSITIONS;
    const int p = p0 + lane % ROWS_POSITIONS, length = (int)o.k_cache.dims[2];
    b->added = row < ROWS ? rows_mask(t, o, h, w, row0 + row, p) : -MPK_INFINITY;
    b->token = (int)cache_token(t, o, p);
    b->seen = __any_sync(0xffffffffu, b->added != -MPK_INFINITY);
    /* What lies after a context costs its mask alone: neither keys nor values are read. */
    if (!b->seen)
        return;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        int at = p0 + s * (32 / LANES) + lane / LANES; /* the position of this group of lanes */
        /* the last position again, which the mask hides */
        at = at < length ? at : length - 1;
        const int entry = lane % LANES * 8, bytes = WORDS / 2; /* the lane's first; of an entry */
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            b->k[s][i] = b->v[s][i] = 0;
        if (lane % LANES * 8 < h.size) {
            rows_load<WORDS>(b->k[s], w.g_keys + (at * (int)o.k_cache.stride[2] + entry) * bytes);
            rows_load<WORDS>(b->v[s], w.g_values + (at * (int)o.v_cache.stride[2] + entry) * bytes);
        }
    }
}

/* Request element `at` of qkv: of a carried tensor (rt_lane.h) the word that it is in, since words
 * are what is empty or there, else the element alone. */
MPK_FN rt_u32 rows_ask(const mpk_task &t, const cache_operands &o, int at)
{
    const char *g = mpk_data(t, o.qkv) + at * mpk_dtype_bytes(o.qkv.dtype); /* of the element */
    if (mpk_carries(t, o.qkv.operand))
        return ptx_load_word((const char *)((rt_u64)g & ~(rt_u64)3));
    return o.qkv.dtype == MPK_F32 ? *(const rt_u32 *)g : *(const rt_u16 *)g;
}
/* The element, once it is there. */
MPK_FN float rows_answer(const mpk_task &t, const cache_operands &o, int at, rt_u32 word)
{
    const char *g = mpk_data(t, o.qkv) + at * mpk_dtype_bytes(o.qkv.dtype);
    if (mpk_carries(t, o.qkv.operand)) {
        word = mpk_carried_word((const char *)((rt_u64)g & ~(rt_u64)3), word);
        word = o.qkv.dtype == MPK_F32 ? word : word >> ((rt_u64)g & 2) * 8 & 0xffff;
    }
    /* a whole word, or the 16 bits that were picked */
    if (o.qkv.dtype == MPK_F32)
        return __uint_as_float(word);
    return o.qkv.dtype == MPK_BF16 ? mpk_from_bf16((rt_u16)word) : mpk_from_f16((rt_u16)word);
}

/* Rounded as mpk_round does; for bf16 by one conversion. */
MPK_FN float rows_round(int dtype, float x)
{
    return dtype == MPK_BF16 ? ptx_low_bf16(ptx_pack_bf16(x, 0)) : mpk_round(dtype, x);
}

/* Entry e of a norm's weight, 1 if there is no norm: then it is multiplied by nothing, and loaded
 * from nowhere. */
MPK_FN float rows_weight(const mpk_task &t, const mpk_view &norm, int e)
{
    return mpk_is_there(norm) ? mpk_get(norm, mpk_data(t, norm), e * norm.stride[0]) : 1;
}

/* A warp rotates a row of qkv, that of a query or of a key: to[e] = its entries as floats; stage: a
 * row of scratch of its own, may be `to`.
 *
 * A lane has entries lane, lane + 32, ...  Its partner in the rotation, half a row on, may be
 * another lane's: entries meet in `stage`.  The first __syncwarp makes them visible; the second
 * keeps them until all have been read, since `to` may be the same row; the third makes the result
 * visible to the warp.  All loads are requested before the first is used, and qkv, which may be
 * carried, is the only one that is polled.
 */
template <int LANES>
MPK_FN void rows_rotate(const mpk_task &t, const cache_operands &o, const cache_how &h,
                        bool is_query, rt_i64 entry, rt_i64 token, rt_i64 head, float scale,
                        float *stage, float *to)
{
    constexpr int PER = LANES / 4; /* entries of a lane */
    const int lane = mpk_thread() % 32, size = (int)h.size, dtype = o.qkv.dtype;
    const rt_i64 at[RT_MAX_RANK] = {entry, token, 0};
    const int n = mpk_is_there(o.cosine) ? (int)o.cosine.dims[2] : 0,
              half = n / 2; /* that are rotated */
    const int from = (int)cache_from(o, entry, token, head), step = (int)o.qkv.stride[3];
    rt_u32 word[PER]; /* requested, perhaps not there yet */
    /* only qkv is written by tasks of this step; load the others before polling for it */
    float x[PER], weight[PER], cosine[PER], sine[PER], sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int e = lane + 32 * i;
        const bool there = e < size, rotates = there && e < n; /* lanes beyond the row have zeros */
        word[i] = there ? rows_ask(t, o, from + e * step) : 0;
        weight[i] = !there     ? 1
                    : is_query ? rows_weight(t, o.q_norm, e)
                               : rows_weight(t, o.k_norm, e);
        cosine[i] = rotates ? mpk_get(o.cosine, mpk_data(t, o.cosine),
                                      mpk_spread(o.cosine, 3, at) + e * o.cosine.stride[2])
                            : 1;
        sine[i] = rotates ? mpk_get(o.sine, mpk_data(t, o.sine),
                                    mpk_spread(o.sine, 3, at) + e * o.sine.stride[2])
                          : 0;
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
        x[i] = lane + 32 * i < size ? rows_answer(t, o, from + (lane + 32 * i) * step, word[i]) : 0;
        sum += x[i] * x[i];
    }
    if (is_query ? mpk_is_there(o.q_norm) : mpk_is_there(o.k_norm)) {
        for (int mask = 16; mask > 0; mask /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, mask);
        const float factor = rsqrtf(sum / (float)size + (float)h.eps); /* the same in all lanes */
#pragma unroll
        for (int i = 0; i < PER; i++)
            x[i] = rows_round(dtype, x[i] * factor * weight[i]);
    }
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (lane + 32 * i < size)
            stage[lane + 32 * i] = x[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int e = lane + 32 * i;
        /* Each product is rounded, as cache_rotated does: the operators that this stands for would
         * store it. */
        if (e < n) {
            const float other = e < half ? -stage[e + half] : stage[e - half];
            x[i] = rows_round(dtype, rows_round(dtype, x[i] * cosine[i]) +
                                         rows_round(dtype, other * sine[i]));
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (lane + 32 * i < size)
            to[lane + 32 * i] = x[i] * scale;
    __syncwarp();
}

/* The position that a token of the step takes, a negative one counted from the end; -1: none, or a
 * later token takes it. */
MPK_FN rt_i64 rows_target(const mpk_task &t, const cache_operands &o, rt_i64 token)
{
    rt_i64 p = mpk_get_int(o.index, mpk_data(t, o.index), token * o.index.stride[0]); /* data */
    p += p < 0 ? o.k_cache.dims[2] : 0;
    return p >= 0 && p < o.k_cache.dims[2] && cache_token(t, o, p) == token ? p : -1;
}

/* Where the new key (which 0) or value (1) of a token lies in scratch; keys: the offset of the
 * first. Rows of h.size entries without gaps, in the dtype of the cache, as rows_load and rows_fill
 * read them. */
MPK_FN char *rows_new(const mpk_task &t, const cache_operands &o, const cache_how &h, int keys,
                      int which, rt_i64 token)
{
    const rt_i64 bytes = mpk_dtype_bytes(o.k_cache.dtype);
    return t.s_scratch + keys + (which * o.index.dims[0] + token) * h.size * bytes;
}

/* Entry e of a row of scratch in the dtype of a cache. */
MPK_FN void rows_set(const mpk_view &cache, char *s_row, int e, float x)
{
    if (cache.dtype == MPK_BF16)
        ((rt_u16 *)s_row)[e] = (rt_u16)ptx_pack_bf16(x, 0);
    else
        mpk_put(cache, s_row, e, x);
}

/* A warp keeps a token's new key, already rotated, and its value in scratch.  rotated: floats, as
 * rows_rotate has left them with a scale of 1. */
MPK_FN void rows_make(const mpk_task &t, const cache_operands &o, const cache_how &h,
                      const rows_work &w, rt_i64 token, const float *rotated, int keys)
{
    const int from = (int)cache_from(o, w.entry, token, h.heads + h.kv_heads + w.kv_head),
              step = (int)o.qkv.stride[3];
    for (int e = mpk_thread() % 32; e < (int)h.size; e += 32) {
        rows_set(o.k_cache, rows_new(t, o, h, keys, 0, token), e, rotated[e]);
        rows_set(o.v_cache, rows_new(t, o, h, keys, 1, token), e,
                 rows_answer(t, o, from + e * step, rows_ask(t, o, from + e * step)));
    }
    __syncwarp();
}

/* The softmax of a group of lanes, of scores in powers of 2.  largest and total are the same in all
 * lanes of the group; value has the lane's eight entries.  Groups see different positions, so their
 * largest differ until rows_keep. */
template <int ROWS> struct rows_sum {
    float largest[ROWS], total[ROWS], value[ROWS][8]; /* relative to exp2(largest) */
};

/* Take in the positions of a block.
 *
 * Positions that this step writes are replaced first by their keys and values in scratch: the task
 * of the last split fills the cache, and the others do not wait for it, so what they have read
 * there may be old, or half new.  A dot product is summed over the group by shuffles, so all its
 * lanes have it.  Scores are in powers of 2, hence the factor of what the mask adds.
 */
template <int ROWS, int LANES, int STEPS, int WORDS>
MPK_FN void rows_attend(const mpk_task &t, const cache_operands &o, const cache_how &h, int keys,
                        rows_block<STEPS, WORDS> *b, rows_sum<ROWS> *a)
{
    /* A lane with no entry of the row reads entry 0 of the query, so that no load goes past the
     * query's end.  Its words of k are zeros, and add nothing. */
    const int lane = mpk_thread() % 32,
              entry = lane % LANES * 8 < (int)h.size ? lane % LANES * 8 : 0;
    float score[STEPS][ROWS]; /* of the group's positions */
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int token = __shfl_sync(0xffffffffu, b->token, s * (32 / LANES) + lane / LANES);
        /* written in this step: what the cache has there is old, or half new */
        if (token >= 0 && lane % LANES * 8 < (int)h.size) {
            rows_load<WORDS>(b->k[s], rows_new(t, o, h, keys, 0, token) + entry * (WORDS / 2));
            rows_load<WORDS>(b->v[s], rows_new(t, o, h, keys, 1, token) + entry * (WORDS / 2));
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float4 *s_query =
            (const float4 *)((const float *)t.s_scratch + r * (int)h.size + entry);
        const float4 low = s_query[0], high = s_query[1];
        const float q[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            float dot = 0; /* of the lane's eight entries, then of all */
#pragma unroll
            for (int i = 0; i < 8; i++)
                dot += q[i] * rows_entry<WORDS>(o.k_cache.dtype, b->k[s], i);
#pragma unroll
            for (int mask = LANES / 2; mask > 0; mask /= 2)
                dot += __shfl_xor_sync(0xffffffffu, dot, mask);
            const int place = s * (32 / LANES) + lane / LANES;
            const float added = __shfl_sync(0xffffffffu, b->added, place + r * ROWS_POSITIONS);
            score[s][r] = added == -MPK_INFINITY ? added : dot + added * ROWS_LOG2_E;
        }
    }
    /* Softmax: one scaling for all positions of the block; none if no position is seen yet. */
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float largest = a->largest[r]; /* so far, then with this block */
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            largest = score[s][r] > largest ? score[s][r] : largest;
        /* no row of this group sees anything yet: -inf less -inf would be NaN */
        if (largest == -MPK_INFINITY)
            continue;
        const float kept = ptx_exp2(a->largest[r] - largest); /* of what was summed before */
        a->largest[r] = largest;
        a->total[r] *= kept;
#pragma unroll
        for (int i = 0; i < 8; i++)
            a->value[r][i] *= kept;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (score[s][r] == -MPK_INFINITY)
                continue; /* its value may be anything */
            const float weight = ptx_exp2(score[s][r] - largest);
            a->total[r] += weight;
#pragma unroll
            for (int i = 0; i < 8; i++)
                a->value[r][i] += weight * rows_entry<WORDS>(o.v_cache.dtype, b->v[s], i);
        }
    }
}

/* The groups of a warp become one, which goes to scratch.  In each round a lane and its partner, in
 * another group and with the same entries, scale to the larger of their maxima, then add: both have
 * the same sum, whatever their order.  Lanes 0 to LANES - 1 store: all groups hold the same at the
 * end. */
template <int ROWS, int LANES>
MPK_FN void rows_keep(const mpk_task &t, const cache_how &h, rows_sum<ROWS> *a)
{
    const int thread = mpk_thread(), lane = thread % 32, warp = thread / 32, size = (int)h.size;
    float *s_partial = (float *)(t.s_scratch + rows_scratch<ROWS>::partial(size));
    float2 *s_largest = (float2 *)(t.s_scratch + rows_scratch<ROWS>::largest(size));
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int mask = LANES; mask < 32; mask *= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, a->largest[r], mask);
            const float largest = other > a->largest[r] ? other : a->largest[r];
            const float kept = largest == -MPK_INFINITY ? 0 : ptx_exp2(a->largest[r] - largest);
            a->largest[r] = largest;
            a->total[r] *= kept;
            a->total[r] += __shfl_xor_sync(0xffffffffu, a->total[r], mask);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                a->value[r][i] *= kept;
                a->value[r][i] += __shfl_xor_sync(0xffffffffu, a->value[r][i], mask);
            }
        }
        if (lane < LANES && lane * 8 < size) {
            float4 *to = (float4 *)(s_partial + (warp * ROWS + r) * size + lane * 8);
            to[0] = make_float4(a->value[r][0], a->value[r][1], a->value[r][2], a->value[r][3]);
            to[1] = make_float4(a->value[r][4], a->value[r][5], a->value[r][6], a->value[r][7]);
        }
        if (lane == 0)
            s_largest[warp * ROWS + r] = make_float2(a->largest[r], a->total[r]);
    }
}

/* Two entries of a part, as a whole word where they lie so: a carried result must not be torn. */
MPK_FN void rows_put(const mpk_view &part, char *g, rt_i64 at, float low, float high)
{
    char *to = g + at * mpk_dtype_bytes(part.dtype);
    if (part.dtype == MPK_BF16 && ((rt_u64)to & 3) == 0) {
        ptx_store_word(to, ptx_pack_bf16(low, high));
    } else if (part.dtype == MPK_F32) {
        ptx_store_word(to, __float_as_uint(low));
        ptx_store_word(to + 4, __float_as_uint(high));
    } else {
        mpk_put(part, g, at, low);
        mpk_put(part, g, at + 1, high);
    }
}

/* All warps' sums of the rows from row0 on become the results, a thread two entries of a row.
 * Every thread adds the warps' sums of weights again for itself: that needs no other barrier.  A
 * row that saw nothing gives zeros and -infinity, which gives the split no weight in the fold. */
template <int ROWS>
MPK_FN void rows_store(const mpk_task &t, const cache_operands &o, const cache_how &h,
                       const rows_work &w, int row0)
{
    const int size = (int)h.size, group = (int)(h.heads / h.kv_heads),
              tokens = (int)o.index.dims[0];
    const float *s_partial = (const float *)(t.s_scratch + rows_scratch<ROWS>::partial(size));
    const float2 *s_largest = (const float2 *)(t.s_scratch + rows_scratch<ROWS>::largest(size));
    for (int i = mpk_thread() * 2; i < ROWS * size; i += MPK_THREADS * 2) {
        const int r = i / size, e = i % size, row = row0 + r;
        /* rows are taken ROWS at a time, and the last ones may not exist */
        if (row >= group * tokens)
            break;
        float largest = -MPK_INFINITY, total = 0, low = 0, high = 0; /* over the warps */
#pragma unroll
        for (int k = 0; k < MPK_WARPS; k++)
            largest = s_largest[k * ROWS + r].x > largest ? s_largest[k * ROWS + r].x : largest;
#pragma unroll
        for (int k = 0; k < MPK_WARPS; k++) {
            const float2 of = s_largest[k * ROWS + r];
            const float weight = of.x == -MPK_INFINITY ? 0 : ptx_exp2(of.x - largest);
            total += weight * of.y;
            low += weight * s_partial[(k * ROWS + r) * size + e];
            high += weight * s_partial[(k * ROWS + r) * size + e + 1];
        }
        const int head = w.kv_head * group + row % group, to = w.entry * tokens + row / group;
        const float factor = total == 0 ? 0 : 1 / total; /* a row that saw nothing is zeros */
        rows_put(o.part, mpk_data(t, o.part),
                 to * o.part.stride[0] + w.split * o.part.stride[1] + head * size + e, low * factor,
                 high * factor);
        if (e == 0)
            ptx_store_word(mpk_at<float>(t, o.lse.operand) + to * o.lse.stride[0] +
                               w.split * o.lse.stride[1] + head,
                           __float_as_uint(total == 0 ? -MPK_INFINITY
                                                      : (largest + ptx_log2(total)) / ROWS_LOG2_E));
    }
}

/* Queries of the rows from row0 on; with the first of them the new keys and values that this split
 * needs: those whose positions are in its blocks, and for the last split all, since it fills the
 * cache.  They stay in scratch for the rows after.  A warp takes every eighth row of the list: ROWS
 * queries, then tokens. */
template <int ROWS, int LANES>
MPK_FN void rows_prepare(const mpk_task &t, const cache_operands &o, const cache_how &h,
                         const rows_work &w, int row0)
{
    const int warp = mpk_thread() / 32, size = (int)h.size, group = (int)(h.heads / h.kv_heads);
    const int tokens = (int)o.index.dims[0];
    float *s_query = (float *)t.s_scratch;
    float *stage = (float *)(t.s_scratch + rows_scratch<ROWS>::partial(size)) + warp * size;
#pragma unroll 1
    for (int i = warp; i < ROWS + (row0 || !mpk_is_there(o.index) ? 0 : tokens); i += MPK_WARPS) {
        const bool is_query = i < ROWS; /* then come the tokens' keys */
        const int row = row0 + i, token = is_query ? row / group : i - ROWS;
        /* the last lot has fewer rows */
        if (is_query && row >= group * tokens)
            continue;
        /* of two tokens at one position rows_target leaves the later */
        const rt_i64 target = is_query ? 0 : rows_target(t, o, token);
        if (!is_query &&
            (target < 0 || (w.split != h.splits - 1 && target / CACHE_UNIT % h.splits != w.split)))
            continue;
        const int head = is_query ? w.kv_head * group + row % group : (int)h.heads + w.kv_head;
        /* A query takes the scale and log2(e) with it, once, instead of each of its scores. */
        rows_rotate<LANES>(t, o, h, is_query, w.entry, token, head,
                           is_query ? h.scale * ROWS_LOG2_E : 1, stage,
                           is_query ? s_query + i * size : stage);
        if (!is_query)
            rows_make(t, o, h, w, token, stage, rows_scratch<ROWS>::keys(size));
    }
}

/* ROWS rows of a split, from row0 on.
 *
 * Barriers.  The first: nothing of the rows before, of which scratch is full, is being read any
 * longer.  The one after rows_prepare: queries and new keys are there, and no row is being rotated
 * in what is going to be partial sums.  The last: all partial sums are there.
 * With AHEAD the second stands inside the loop, after the first loads; a warp without positions
 * goes through the loop once for its sake, as every warp has to come to it.
 */
template <int ROWS, int LANES, int WORDS>
MPK_FN void rows_split(const mpk_task &t, const cache_operands &o, const cache_how &h,
                       const rows_work &w, int row0)
{
    constexpr int STEPS = ROWS_POSITIONS * LANES / 32;
    constexpr bool AHEAD = LANES < 32; /* longer rows leave no registers for it */
    const int warp = mpk_thread() / 32, size = (int)h.size, length = (int)o.k_cache.dims[2];
    /* this warp's eighth of the split's first block */
    int p0 = w.split * CACHE_UNIT + warp * ROWS_POSITIONS;
    rows_block<STEPS, WORDS> block = {}; /* 8 positions, in registers */
    rows_sum<ROWS> a;                    /* what this group of lanes has seen */
    bool is_prepared = !AHEAD;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        a.largest[r] = -MPK_INFINITY;
        a.total[r] = 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            a.value[r][i] = 0;
    }
    /* The scratch of the rows before, or of the split before, has been read by all warps. */
    mpk_sync();
    if (!AHEAD) {
        rows_prepare<ROWS, LANES>(t, o, h, w, row0);
        mpk_sync();
    }
#pragma unroll 1
    for (; p0 < length || !is_prepared; p0 += (int)h.splits * CACHE_UNIT) {
        if (p0 < length)
            rows_fetch<ROWS, LANES>(t, o, h, w, row0, p0, &block);
        if (!is_prepared) {
            rows_prepare<ROWS, LANES>(t, o, h, w, row0);
            mpk_sync();
            is_prepared = true;
        }
        if (p0 < length && block.seen)
            rows_attend<ROWS, LANES>(t, o, h, rows_scratch<ROWS>::keys(size), &block, &a);
    }
    rows_keep<ROWS, LANES>(t, h, &a);
    mpk_sync();
    rows_store<ROWS>(t, o, h, w, row0);
}

/* The keys and values that are in scratch go to their positions, a word (two of 16 bits, or one of
 * 32) a thread at a time.  Caches are dense here.  Tasks that need these positions in this step
 * take them from qkv, so none waits for it.  Called after the last rows_split, whose last meeting
 * but one has shown the rows of scratch to all threads. */
MPK_FN void rows_fill(const mpk_task &t, const cache_operands &o, const cache_how &h,
                      const rows_work &w, int keys)
{
    const rt_i64 bytes = mpk_dtype_bytes(o.k_cache.dtype),
                 rows = (w.entry * h.kv_heads + w.kv_head) * o.k_cache.dims[2];
    for (rt_i64 token = 0; token < o.index.dims[0]; token++) {
        const rt_i64 p = rows_target(t, o, token), words = h.size * bytes / 4;
        for (rt_i64 i = mpk_thread(); p >= 0 && i < 2 * words; i += MPK_THREADS) {
            const int which = i >= words; /* 0 keys, 1 values */
            char *g = mpk_data(t, which ? o.v_cache : o.k_cache) + (rows + p) * h.size * bytes;
            const rt_u16 *from =
                (const rt_u16 *)rows_new(t, o, h, keys, which, token) + (i - which * words) * 2;
            ((rt_u16 *)g)[(i - which * words) * 2] = from[0];
            ((rt_u16 *)g)[(i - which * words) * 2 + 1] = from[1];
        }
    }
}

/* The body; it waits for its event itself.  Batch entries, KV heads and splits of the task's
 * box, one after the other, and of each ROWS rows at a time; so a block of the cache is read
 * again for each ROWS rows.  The last split of an entry and KV head fills the cache. */
template <int ROWS, int LANES, int WORDS>
MPK_FN void attention_cache_rows(const mpk_task &t, const cache_operands &o, const cache_how &h)
{
    const int tokens = (int)o.index.dims[0], group = (int)(h.heads / h.kv_heads),
              columns = group * (int)h.size;
    rows_work w; /* what is worked on now */
    mpk_wait(t);
    /* A task's box has whole batch entries and whole KV heads (units of the
     * operator's axes). */
    for (w.entry = (int)mpk_lo(t, 0) / tokens; w.entry < (int)mpk_end(t) / tokens; w.entry++)
        for (w.kv_head = (int)mpk_lo(t, 2) / columns; w.kv_head < (int)mpk_hi(t, 2) / columns;
             w.kv_head++) {
            w.g_keys =
                mpk_data(t, o.k_cache) +
                (w.entry * o.k_cache.stride[0] + w.kv_head * o.k_cache.stride[1]) * (WORDS / 2);
            w.g_values =
                mpk_data(t, o.v_cache) +
                (w.entry * o.v_cache.stride[0] + w.kv_head * o.v_cache.stride[1]) * (WORDS / 2);
            for (w.split = (int)mpk_lo(t, 1); w.split < (int)mpk_hi(t, 1); w.split++) {
                for (int row0 = 0; row0 < group * tokens; row0 += ROWS)
                    rows_split<ROWS, LANES, WORDS>(t, o, h, w, row0);
                if (mpk_is_there(o.index) && w.split == h.splits - 1)
                    rows_fill(t, o, h, w, rows_scratch<ROWS>::keys((int)h.size));
            }
        }
    mpk_trigger(t);
}

#endif
