/* expert_stream.cuh - products of tokens with the weights of their experts, which stream through the page ring.
 *
 * The operator expert_linear, as the first product of a layer (gated, a row for each pair of a token and an expert) or
 * as its last (the pairs of a token times their scales, summed, and the residual).  A task is some columns of the
 * result for all pairs of its tokens, so it has the same share of every active expert.
 *
 * Idea: the pairs are sorted by expert, and cut into chunks of one expert and at most 8 pairs (WIDE: 16), which are the
 * rows of an operand as in linear_stream.cuh.  A chunk is worked a page of 1024 columns at a time; the next piece of x
 * is on its way meanwhile.  Chunks of a tile end together.  The order of sums is that of columns, warps and experts,
 * so a token's bits do not depend on what else is in the step.
 *
 * The loader needs to know how many pairs each expert has, and nothing else: it waits for the ids, not for x, so that
 * the weights of the last product arrive while the first one is made.
 *
 * Cost: an active expert's bytes once for each 8 (16) of its pairs; x of a chunk once for each block of columns.
 */
#ifndef TASK_EXPERT_STREAM_CUH
#define TASK_EXPERT_STREAM_CUH

#include "task/linear_stream.cuh"

enum {
    EXPERT_MOST = MPK_THREADS, /* experts: a thread each sorts the pairs */
    EXPERT_NOBODY = 0xffff,    /* a pair without an expert */
};

struct expert_shape {
    stream_shape of; /* columns, pages, norm, operands: as those of a product */
    int ids, scale;  /* operands; scale -1: a row for each pair */
    int experts, of_token;
    int range; /* tokens whose pairs are sorted together, at most */
    int block; /* groups of columns that are worked together, at most STREAM_TILE */
    int split; /* 1: x has a row for each pair */
};

/* ---- the loader's part ---- */

/* Pairs of each expert; lane l: of experts l, l + 32 ..., 16 bits each. */
struct expert_counts {
    rt_u64 low, high;
};

MPK_FN rt_u32 expert_count(const expert_counts &counts, int slot)
{
    return (rt_u32)((slot < 4 ? counts.low : counts.high) >> slot % 4 * 16) & 0xffff;
}

/* Until ids may be read; 0: there is nothing to load for any more.  Carried, they say so themselves. */
MPK_FN int expert_load_waits(mpk_load &l, const expert_shape &s)
{
    if (!load_needs_step(&l))
        return 0;
    if (mpk_w.mode != RT_SERVE || l.e->quiet || l.e->carried >> s.ids & 1)
        return 1;
    const rt_word *counter = mpk_w.counters + l.e->depends;
    const rt_u32 wanted = l.e->needed * mpk_w.epoch;
    while ((rt_i32)(rt_load_acquire_device(counter) - wanted) < 0)
        if (load_is_over(&l)) {
            l.cancelled = 1;
            return 0;
        }
    __syncwarp();
    return 1;
}

/* The ids of 32 pairs, a lane each; of n.  RT_EMPTY in a lane that has none. */
MPK_FN rt_u32 expert_load_ids(mpk_load &l, const expert_shape &s, const rt_u32 *from, int n)
{
    const int lane = mpk_thread() % 32;
    const bool carried = l.e->carried >> s.ids & 1;
    rt_u32 id = lane < n ? ptx_load_word(from + lane) : RT_EMPTY;
    while (carried && lane < n && id == RT_EMPTY && !load_is_over(&l))
        id = ptx_load_word(from + lane);
    __syncwarp();
    return id;
}

MPK_FN void expert_load_counts(mpk_load &l, const expert_shape &s, rt_u32 first, rt_u32 tokens, expert_counts *counts)
{
    const int lane = mpk_thread() % 32, pairs = (int)tokens * s.of_token;
    const rt_u32 *from = (const rt_u32 *)l.e->at[s.ids] + first * s.of_token;
    counts->low = counts->high = 0;
#pragma unroll 1
    for (int p = 0; p < pairs; p += 32) {
        const int n = pairs - p < 32 ? pairs - p : 32;
        const rt_u32 mine = expert_load_ids(l, s, from + p, n);
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            const rt_u32 id = __shfl_sync(0xffffffffu, mine, i), slot = id / 32;
            const rt_u64 one = id % 32 == lane && id < (rt_u32)s.experts ? (rt_u64)1 << slot % 4 * 16 : 0;
            counts->low += slot < 4 ? one : 0;
            counts->high += slot < 4 ? 0 : one;
        }
    }
}

/* Groups of a task's box, and bytes of one. */
struct expert_groups {
    rt_u32 first, n, of_expert, bytes, last_bytes;
};

MPK_FN expert_groups expert_groups_of(const rt_entry *e, const stream_shape &s)
{
    const rt_u32 axis = e->rank - 1, shift = s.glu != GLU_NONE ? 2 : 3;
    expert_groups g;
    g.first = e->lo[axis] >> shift;
    g.n = ((e->hi[axis] + (1u << shift) - 1) >> shift) - g.first;
    g.of_expert = (rt_u32)s.rows >> shift;
    g.last_bytes = s.last * 4096;
    g.bytes = (s.pages - 1) * 16384 + g.last_bytes;
    return g;
}

/* The pages of one chunk: page by page, in a page group by group. */
MPK_FN void expert_load_chunk(mpk_load &l, const expert_groups &g, const char *from, int pages, rt_u32 n)
{
#pragma unroll 1
    for (int p = 0; p < pages; p++)
#pragma unroll 1
        for (rt_u32 i = 0; i < n; i++)
            load_from(&l, from + i * g.bytes + p * 16384, p + 1 == pages ? g.last_bytes : 16384);
}

template <int WIDE> MPK_FN void expert_stream_load(mpk_load &l, const expert_shape &s)
{
    if (!expert_load_waits(l, s))
        return;
    const expert_groups g = expert_groups_of(l.e, s.of);
    const rt_u32 end = mpk_smaller(l.e->hi[0], mpk_w.live[l.e->live]), rows = WIDE ? 16 : 8;
#pragma unroll 1
    for (rt_u32 first = l.e->lo[0]; first < end; first += s.range) {
        expert_counts counts;
        expert_load_counts(l, s, first, mpk_smaller(end - first, s.range), &counts);
#pragma unroll 1
        for (rt_u32 q = 0; q < g.n; q += s.block)
#pragma unroll 1
            for (int slot = 0; slot * 32 < s.experts && !l.cancelled; slot++) {
                const rt_u32 mine = expert_count(counts, slot);
#pragma unroll 1
                for (rt_u32 left = __ballot_sync(0xffffffffu, mine); left; left &= left - 1) {
                    const int lane = __ffs((int)left) - 1;
                    const rt_u32 n = __shfl_sync(0xffffffffu, mine, lane);
                    const rt_u64 group = (rt_u64)(slot * 32 + lane) * g.of_expert + g.first + q;
#pragma unroll 1
                    for (rt_u32 pair = 0; pair < n; pair += rows)
                        expert_load_chunk(l, g, (const char *)l.e->at[RT_PACKED] + group * g.bytes, s.of.pages,
                                          mpk_smaller(g.n - q, s.block));
                }
            }
    }
}

/* ---- pairs, sorted by expert ---- */

/* Scratch behind that of the products' sums; P: pairs of a range. */
struct expert_scratch {
    rt_u16 *ids, *order; /* [P] a pair's expert; the pairs by expert */
    rt_u32 *chunks;      /* [P] first place in `order`, and pairs << 16 */
    float *weights;      /* [P] scales */
    float *norms;        /* [tokens of a range] 1 / rms of x */
    rt_u32 *counts;      /* [8 warps] pairs and chunks << 16; n: chunks of all */
    float *sums;         /* [tokens][8 block] */
};

template <int WIDE> MPK_FN expert_scratch expert_scratch_of(const mpk_task &t, const expert_shape &s)
{
    const int pairs = s.range * s.of_token;
    char *at = t.s_scratch + STREAM_TILE * 8 * 32 * (WIDE ? 16 : 8);
    expert_scratch c;
    c.counts = (rt_u32 *)at;
    c.norms = (float *)(at + 64);
    c.weights = c.norms + s.range;
    c.chunks = (rt_u32 *)(c.weights + pairs);
    c.sums = (float *)(c.chunks + pairs);
    c.ids = (rt_u16 *)(c.sums + (s.scale < 0 ? 0 : s.range * s.block * 8));
    c.order = c.ids + pairs;
    return c;
}

/* What is carried in a word, once it is there. */
MPK_FN rt_u32 expert_word(const mpk_task &t, int operand, rt_u64 at)
{
    const rt_u32 *from = mpk_at<const rt_u32>(t, operand) + at;
    const rt_u32 v = ptx_load_word(from);
    return mpk_carries(t, operand) ? mpk_carried_word(from, v) : v;
}

/* A pair without an expert is zeros. */
MPK_FN void expert_put_zeros(const mpk_task &t, const expert_shape &s, rt_u64 pair)
{
    rt_u16 *y = mpk_at<rt_u16>(t, s.of.y) + pair * s.of.rows;
    for (rt_u32 c = t.e->lo[2]; c < t.e->hi[2]; c++)
        y[c] = 0;
}

/* Their experts and scales. */
MPK_FN void expert_take_pairs(const mpk_task &t, const expert_shape &s, const expert_scratch &c, rt_u32 first,
                              int pairs)
{
#pragma unroll 1
    for (int p = mpk_thread(); p < pairs; p += MPK_THREADS) {
        const rt_u64 at = (rt_u64)first * s.of_token + p;
        const rt_u32 id = expert_word(t, s.ids, at);
        c.ids[p] = id < (rt_u32)s.experts ? (rt_u16)id : EXPERT_NOBODY;
        if (s.scale >= 0)
            c.weights[p] = __uint_as_float(expert_word(t, s.scale, at));
        else if (id >= (rt_u32)s.experts)
            expert_put_zeros(t, s, at);
    }
}

/* Sum over the threads before this one, and over all, of two counts of 16 bits. */
MPK_FN rt_u32 expert_add_up(const expert_scratch &c, rt_u32 mine, rt_u32 *all)
{
    const int thread = mpk_thread(), lane = thread % 32;
    rt_u32 sum = mine, before = 0;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const rt_u32 other = __shfl_up_sync(0xffffffffu, sum, d);
        sum += lane >= d ? other : 0;
    }
    if (lane == 31)
        c.counts[thread / 32] = sum;
    mpk_sync();
    *all = 0;
#pragma unroll
    for (int w = 0; w < MPK_WARPS; w++) {
        before += w < thread / 32 ? c.counts[w] : 0;
        *all += c.counts[w];
    }
    return before + sum - mine;
}

/* Thread e takes expert e: its pairs in their order, and its chunks.  How many chunks there are. */
template <int WIDE> MPK_FN int expert_sort(const expert_scratch &c, int pairs)
{
    const rt_u32 rows = WIDE ? 16 : 8, e = (rt_u32)mpk_thread();
    rt_u32 n = 0, all;
    mpk_sync();
#pragma unroll 8
    for (int p = 0; p < pairs; p++)
        n += c.ids[p] == e;
    const rt_u32 before = expert_add_up(c, n | (n + rows - 1) / rows << 16, &all);
    rt_u32 place = before & 0xffff, chunk = before >> 16;
    for (rt_u32 i = 0; i < n; i += rows)
        c.chunks[chunk++] = (place + i) | mpk_smaller(n - i, rows) << 16;
#pragma unroll 8
    for (int p = 0; n && p < pairs; p++)
        if (c.ids[p] == e)
            c.order[place++] = (rt_u16)p;
    mpk_sync();
    return (int)(all >> 16);
}

/* ---- norms ---- */

/* 1 / rms of the rows of x of n tokens from `first` on: a warp each, its lanes' pieces of 8 columns in their order. */
MPK_FN void expert_put_norms(const mpk_task &t, const expert_shape &s, const expert_scratch &c, rt_u32 first, int n)
{
    const int warp = mpk_thread() / 32, lane = mpk_thread() % 32, pieces = s.of.columns / 8;
    const bool carried = mpk_carries(t, s.of.x);
#pragma unroll 1
    for (int token = warp; token < n; token += MPK_WARPS) {
        const char *from = mpk_at<const char>(t, s.of.x) + (rt_u64)(first + token) * s.of.columns * 2;
        float sum = 0;
#pragma unroll 1
        for (int i = lane; i < pieces; i += 128) {
            mpk_words v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                v[k] = {0, 0, 0, 0};
                ptx_load_words_if(from + (i + k * 32) * 16, i + k * 32 < pieces, &v[k]);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                while (carried && mpk_is_empty(v[k]) && !ptx_load_flag(&mpk_w.abort))
                    v[k] = ptx_load_words(from + (i + k * 32) * 16);
                const rt_u32 words[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    const float a = ptx_low_bf16(words[w]), b = ptx_high_bf16(words[w]);
                    sum = fmaf(b, b, fmaf(a, a, sum));
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int d = 16; d; d /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (lane == 0)
            c.norms[token] = rsqrtf(sum * s.of.columns_inverse + s.of.eps);
    }
}

/* ---- products ---- */

/* A range of tokens, being worked. */
struct expert_work {
    expert_scratch c;
    rt_u32 first;       /* token */
    int tokens, chunks; /* of the range */
    int group, n;       /* first group of the block, of an expert; groups */
};

/* A piece of x that has been asked for: page `page` of chunk `chunk`; chunk -1: none. */
template <int WIDE> struct expert_ahead {
    stream_from<WIDE> from;
    stream_x<1, WIDE> x;
    int chunk, page;
};

template <int WIDE>
MPK_FN void expert_ask(const mpk_task &t, const expert_shape &s, const expert_work &w, expert_ahead<WIDE> *a)
{
    const int thread = mpk_thread(), warp = thread / 32, g = thread % 32 / 4, c = thread % 4;
    const rt_u32 chunk = w.c.chunks[a->chunk], first = chunk & 0xffff, n = chunk >> 16;
    stream_find_last<WIDE>(s.of, thread, &a->from);
    a->from.x = mpk_at<const char>(t, s.of.x) + (rt_u64)w.first * (s.split ? s.of_token : 1) * s.of.columns * 2;
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const rt_u32 row = g + 8 * m, pair = row < n ? w.c.order[first + row] : 0;
        const rt_u32 at = (s.split ? pair : pair / s.of_token) * s.of.columns + warp * 128 + c * 8;
        a->from.at[m] = row < n ? at * 2 : STREAM_NONE;
    }
    stream_clear_x<1, WIDE>(a->x);
    stream_ask_page<WIDE, false, false>(a->from, a->page, a->page + 1 == s.of.pages, a->x.at[0]);
}

/* The one that comes after it, if there is one. */
template <int WIDE>
MPK_FN void expert_ask_next(const mpk_task &t, const expert_shape &s, const expert_work &w, expert_ahead<WIDE> *a)
{
    if (++a->page == s.of.pages) {
        a->page = 0;
        a->chunk++;
    }
    if (a->chunk < w.chunks)
        expert_ask<WIDE>(t, s, w, a);
}

/* Sums of one piece and groups i .. i + N - 1 of the block, added to those of the pieces before. */
template <int N, int WIDE>
MPK_FN void expert_multiply(mpk_ring *ring, const stream_x<1, WIDE> &x, char *s_parts, int slot, int page, int blocks,
                            int thread)
{
    const mpk_words(*of[N])[1 + WIDE];
    float sums[N][4];
#pragma unroll
    for (int i = 0; i < N; i++)
        of[i] = x.at[0];
    stream_pages<N, WIDE>(ring, of, blocks, thread, sums);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float *before = stream_sums<WIDE>(s_parts, slot + i, thread);
#pragma unroll
        for (int e = 0; e < (WIDE ? 4 : 2); e++)
            sums[i][e] = page ? before[e] + sums[i][e] : sums[i][e];
        stream_put<WIDE>(s_parts, slot + i, thread, sums[i]);
    }
}

/* The piece that has been asked for: all groups of the block, sums from `slot` on. */
template <int WIDE>
MPK_FN void expert_piece(const mpk_task &t, const expert_shape &s, const expert_work &w, mpk_ring *ring, int slot,
                         expert_ahead<WIDE> *a)
{
    const int thread = mpk_thread(), page = a->page, blocks = page + 1 == s.of.pages ? s.of.last : 4;
    if (mpk_carries(t, s.of.x))
        stream_await_x<1, WIDE>(a->from, page, 1, s.of.pages, false, a->x);
    stream_x<1, WIDE> x = a->x;
    stream_order_x<1, WIDE>(1, x);
    expert_ask_next<WIDE>(t, s, w, a);
    int i = 0;
#pragma unroll 1
    for (; i + 1 < w.n; i += 2)
        expert_multiply<2, WIDE>(ring, x, t.s_scratch, slot + i, page, blocks, thread);
    if (i < w.n)
        expert_multiply<1, WIDE>(ring, x, t.s_scratch, slot + i, page, blocks, thread);
}

/* ---- ends ---- */

/* Two neighbouring columns of a row of y that lie in the box. */
MPK_FN void expert_store(const mpk_task &t, const expert_shape &s, rt_u64 row, int column, float a, float b)
{
    const rt_u32 axis = t.e->rank - 1;
    const int lo = (int)t.e->lo[axis], hi = (int)t.e->hi[axis];
    rt_u16 *y = mpk_at<rt_u16>(t, s.of.y) + row * s.of.rows + column;
    const rt_u32 v = ptx_pack_bf16(a, b);
    if (column >= lo && column + 1 < hi) {
        ptx_store_word(y, v);
        return;
    }
    if (column >= lo && column < hi)
        y[0] = (rt_u16)v;
    if (column + 1 >= lo && column + 1 < hi)
        y[1] = (rt_u16)(v >> 16);
}

/* A group of a chunk whose pairs are rows of y. */
template <int WIDE>
MPK_FN void expert_end_pairs(const mpk_task &t, const expert_shape &s, const expert_work &w, int chunk, int i, int slot)
{
    const int thread = mpk_thread(), g = thread % 32 / 4, c = thread % 4;
    const rt_u32 first = w.c.chunks[chunk] & 0xffff, n = w.c.chunks[chunk] >> 16;
    float total[4];
    stream_total<WIDE>(t.s_scratch, slot, thread % 32, total);
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const rt_u32 row = g + 8 * m, pair = row < n ? w.c.order[first + row] : 0;
        const float scale = s.of.norm ? w.c.norms[pair / s.of_token] : 1;
        const float a = stream_activate(s.of.glu, total[2 * m] * scale) * (total[2 * m + 1] * scale);
        const float b = __shfl_down_sync(0xffffffffu, a, 1);
        if (row < n && c % 2 == 0)
            expert_store(t, s, (rt_u64)w.first * s.of_token + pair, (w.group + i) * 4 + c, a, b);
    }
}

/* Add a group of a chunk to its tokens' sums.  A token that names an expert twice has two rows, one after the other. */
template <int WIDE>
MPK_FN void expert_end_sums(const mpk_task &t, const expert_shape &s, const expert_work &w, int chunk, int i, int slot)
{
    const int lane = mpk_thread() % 32, g = lane / 4, c = lane % 4;
    const rt_u32 first = w.c.chunks[chunk] & 0xffff, n = w.c.chunks[chunk] >> 16;
    float total[4];
    stream_total<WIDE>(t.s_scratch, slot, lane, total);
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const rt_u32 row = g + 8 * m, pair = row < n ? w.c.order[first + row] : 0, token = pair / s.of_token;
        const rt_u32 same = __match_any_sync(0xffffffffu, row < n ? token : ~row);
        const int turn = __popc(same & 0x11111111u << c & ((1u << lane) - 1));
        float *to = w.c.sums + (token * w.n + i) * 8 + 2 * c;
#pragma unroll 1
        for (int k = 0; __any_sync(0xffffffffu, turn >= k); k++) {
            if (turn == k && row < n) {
                const float weight = w.c.weights[pair];
                to[0] = fmaf(weight, total[2 * m], to[0]);
                to[1] = fmaf(weight, total[2 * m + 1], to[1]);
            }
            __syncwarp();
        }
    }
}

/* The tile of n chunks from `chunk` on.  Sums of one group are added by one warp, chunk after chunk. */
template <int WIDE>
MPK_FN void expert_end_tile(const mpk_task &t, const expert_shape &s, const expert_work &w, int chunk, int n)
{
    const int warp = mpk_thread() / 32;
    if (s.scale < 0) {
        if (warp < n * w.n)
            expert_end_pairs<WIDE>(t, s, w, chunk + warp / w.n, warp % w.n, warp);
        return;
    }
#pragma unroll 1
    for (int k = 0; k < n && warp < w.n; k++)
        expert_end_sums<WIDE>(t, s, w, chunk + k, warp, k * w.n + warp);
}

/* The finished sums of a block of columns, with the residual, into y. */
MPK_FN void expert_put_sums(const mpk_task &t, const expert_shape &s, const expert_work &w)
{
    const int words = w.n * 4;
#pragma unroll 1
    for (int i = mpk_thread(); i < w.tokens * words; i += MPK_THREADS) {
        const rt_u32 token = w.first + i / words;
        const int column = w.group * 8 + i % words * 2;
        float a = w.c.sums[i * 2], b = w.c.sums[i * 2 + 1];
        if (s.of.residual >= 0) {
            const rt_u32 r = expert_word(t, s.of.residual, ((rt_u64)token * s.of.rows + column) / 2);
            a += ptx_low_bf16(r);
            b += ptx_high_bf16(r);
        }
        expert_store(t, s, token, column, a, b);
    }
}

/* ---- the body ---- */

/* One block of columns of a range: all chunks, a tile of them at a time. */
template <int WIDE>
MPK_FN void expert_block(const mpk_task &t, const expert_shape &s, const expert_work &w, mpk_ring *ring,
                         expert_ahead<WIDE> *a)
{
    const int at_once = STREAM_TILE / w.n;
    if (s.scale >= 0) /* the products' barrier stands between this and the sums */
#pragma unroll 1
        for (int i = mpk_thread(); i < w.tokens * w.n * 8; i += MPK_THREADS)
            w.c.sums[i] = 0;
    a->chunk = a->page = 0;
    if (w.chunks)
        expert_ask<WIDE>(t, s, w, a);
#pragma unroll 1
    for (int chunk = 0; chunk < w.chunks; chunk += at_once) {
        const int n = w.chunks - chunk < at_once ? w.chunks - chunk : at_once;
#pragma unroll 1
        for (int k = 0; k < n; k++)
#pragma unroll 1
            for (int p = 0; p < s.of.pages; p++)
                expert_piece<WIDE>(t, s, w, ring, k * w.n, a);
        mpk_sync();
        expert_end_tile<WIDE>(t, s, w, chunk, n);
        mpk_sync();
    }
    if (s.scale >= 0) {
        if (!w.chunks)
            mpk_sync();
        expert_put_sums(t, s, w);
        mpk_sync();
    }
}

template <int WIDE> MPK_FN void expert_stream(const mpk_task &t, const expert_shape &s)
{
    mpk_ring ring = *t.ring;
    expert_ahead<WIDE> a;
    expert_work w;
    const expert_groups g = expert_groups_of(t.e, s.of);
    mpk_wait(t);
    w.c = expert_scratch_of<WIDE>(t, s);
    const rt_u32 end = mpk_end(t);
#pragma unroll 1
    for (w.first = t.e->lo[0]; w.first < end; w.first += s.range) {
        w.tokens = (int)mpk_smaller(end - w.first, s.range);
        if (s.of.norm)
            expert_put_norms(t, s, w.c, w.first, w.tokens);
        expert_take_pairs(t, s, w.c, w.first, w.tokens * s.of_token);
        w.chunks = expert_sort<WIDE>(w.c, w.tokens * s.of_token);
#pragma unroll 1
        for (rt_u32 q = 0; q < g.n; q += s.block) {
            w.group = (int)(g.first + q);
            w.n = (int)mpk_smaller(g.n - q, s.block);
            expert_block<WIDE>(t, s, w, &ring, &a);
        }
        mpk_sync(); /* the next range sorts anew */
    }
    *t.ring = ring;
    mpk_trigger(t);
}

#endif
