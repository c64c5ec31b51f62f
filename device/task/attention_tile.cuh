/* attention_tile.cuh - attention of many tokens over the paged bf16 cache (paper §6.1), keys and
 * values read once for as many queries as possible.
 *
 * The operator attention.  Tokens of a task that are neighbours and of one slot are taken together;
 * the rows of the tensor-core operand are their query heads that share a KV head, up to 128 rows,
 * 16 for each warp.  All warps walk along the pages that any of the rows sees, which come by
 * cp.async while the page before is worked on, 32 positions at a time. Up to 64 rows, pairs of
 * warps share rows: one takes the first 32 positions of a page, the other the rest, and they are
 * put together at the end in that order.  Tokens that stand alone, each of another slot, take the
 * way of attention_lone.cuh where there is room for its parts.
 *
 * Keys and values lie in fragment order (tile/kv.cuh): operands are single shared loads, and the
 * scores of q k^T are already the operand of p v.  Softmax is online in f32, in powers of 2.  HOW
 * says what scores have besides (attend.cuh): a cap, a sink.
 *
 * Who has what.  Lane 4 g + c of a warp (g 0 ... 7, c 0 ... 3) has two of the warp's 16 rows, g and
 * g + 8, in all fragments: [m] is the row g + 8 m.  Of scores it has the positions 8 i + 2c and + 1
 * of each block of 8, of results the dims 8 n + 2c and + 1; element e of a fragment of four is
 * place e % 2 of row e / 2.  So the largest score and the sum of a row are put together over the
 * four lanes of a g, by shuffles over 1 and 2.
 *
 * Scratch: ATTEND_BUFFERS stages, pages of 64 positions or halves of them (attend_areas), keys then
 * values; where warps share rows their scores.  Once the last
 * of a chunk has been read, the same bytes take the parts of pairs of warps.
 *
 * Relies on: ptx_multiply_bf16 (mma.m16n8k16), K 64, 96, 128 or 256, KV pages of 64 positions.  The
 * task's event has come when the body begins, so what this step wrote to the cache may be read.
 * Cost of 16 rows and 16 positions: 4 K / 16 products, 64 K bytes of shared memory read.
 */
#ifndef TASK_ATTENTION_TILE_CUH
#define TASK_ATTENTION_TILE_CUH

#include "ptx/matrix.cuh"
#include "task/attend.cuh"
#include "task/attention_lone.cuh"

/* Positions that a warp works at a time; rows of a chunk (16 for each of 8 warps); pages in
 * scratch. GPUs with 99 KB for a block have room for one page beside the ring. */
enum { ATTEND_UNIT = 32, ATTEND_ROWS = 128, ATTEND_BUFFERS = MPK_ROOM ? 2 : 1 };

/* Heads of more than 128 entries do not fit the registers of a warp.  Two warps then share the
 * rows, an area of the dims each: they add up the scores of both (attend_exchange), and each has
 * the results of its dims.  Half a page is loaded at a time, so that scratch stays as it is. */
template <int K> struct attend_areas {
    enum {
        N = K > 128 ? 2 : 1,
        DIMS = K / N,                    /* of a warp */
        ROWS = ATTEND_ROWS / N,          /* of a chunk */
        POSITIONS = ATTEND_PAGE / N,     /* that are loaded at a time: a stage */
        BYTES = POSITIONS * K * 2,       /* of a stage's keys, and of its values */
        UNITS = POSITIONS / ATTEND_UNIT, /* of a stage */
        EXCHANGE = (N - 1) * 8 * 2048,   /* bytes of scratch after the stages: scores of a unit,
                                            * of each warp */
    };
};

/* Tokens first to last - 1 of one slot, query heads head to head + n_heads - 1 of one KV head:
 * what all warps work on together.  The same in all threads. */
struct attend_chunk {
    int slot, first, last, head, n_heads, kv_head;
    int step, n_steps; /* pages of the slot: those that any row sees, from number `step` on */
    int row_warps;     /* 1, 2, 4, 8: warps that have rows of their own */
};

/* Where the chunk's keys and values lie in the paged cache. */
struct attend_source {
    const int *pages; /* of the slot */
    int n_pages, slot_pages;
    const char *keys, *values; /* of the KV head in page 0 */
    rt_u32 page_bytes;
};

/* What a lane has of its two rows, 16 warp + g and + 8.  sum is the lane's own positions until the
 * rows are stored; most is the same in the four lanes of a row.
 *
 * query: the lane loads dims 32 d + 8 c ... + 7 as one piece of 16 bytes, and uses them where the
 * product expects dims 2c, 2c + 1, 2c + 8, 2c + 9 of 16.  A dot product may take its terms in any
 * order as long as both operands agree, and the pieces of keys are cut the same way. */
template <int D> struct attend_rows {
    int position[2], from[2];   /* the positions that they see; -1: none */
    rt_u32 query[D / 32][2][4]; /* dims 32 d + 8 c ... of each, of the warp's D dims */
    float most[2], sum[2];
    float out[D / 8][4]; /* dims 8 n + 2c, + 1 of each */
};

/* All lanes of a warp: how many tokens from `first` on are of the same slot; the same in all
 * threads. Four loads of 32 slots are in flight before the first is looked at.  A place past the
 * end counts as another slot, so the loop ends. */
MPK_FN int attend_run(const mpk_task &t, int first, int end)
{
    constexpr int AT_ONCE = 4;
    const int *slots = mpk_at<const int>(t, ATTEND_SLOTS), slot = slots[first],
              lane = mpk_thread() % 32;
    int n = 0; /* tokens that are known to be of the slot */
    for (;; n += 32 * AT_ONCE) {
        int found[AT_ONCE]; /* slots of 128 tokens, four a lane */
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = first + n + 32 * k + lane;
            found[k] = i < end ? slots[i] : ~slot;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const rt_u32 other = __ballot_sync(0xffffffffu, found[k] != slot);
            if (other)
                return n + 32 * k + __ffs((int)other) - 1;
        }
    }
}

/* Which positions the chunk's rows see: the same in all threads.  Each warp goes through all tokens
 * and its lanes agree by shuffles, which takes no barrier.  Padding has a negative position and
 * sees nothing.  A slot that the cache does not have gives no pages, and so results of 0. */
MPK_FN void attend_find(const mpk_task &t, const attend_shape &s, attend_chunk *c)
{
    const int *positions = mpk_at<const int>(t, ATTEND_POSITIONS),
              room = mpk_caches[s.cache].slot_pages * ATTEND_PAGE;
    int least = room, most = -1; /* of the positions that rows see */
    for (int i = c->first + mpk_thread() % 32; i < c->last; i += 32) {
        const int position = positions[i], from = attend_from(s, position);
        if (position < 0)
            continue;
        least = from < least ? from : least;
        most = position > most ? position : most;
    }
#pragma unroll
    for (int d = 16; d; d /= 2) {
        const int a = __shfl_xor_sync(0xffffffffu, least, d),
                  b = __shfl_xor_sync(0xffffffffu, most, d);
        least = a < least ? a : least;
        most = b > most ? b : most;
    }
    /* a position beyond the slot's pages sees what they have */
    most = most < room ? most : room - 1;
    const int last =
        (rt_u32)c->slot < (rt_u32)mpk_caches[s.cache].slots ? most / ATTEND_PAGE + 1 : 0;
    c->step = least / ATTEND_PAGE;
    c->n_steps = most >= 0 && last > c->step ? last - c->step : 0;
    const int rows = (c->last - c->first) * c->n_heads;
    c->row_warps = rows <= 16 ? 1 : rows <= 32 ? 2 : rows <= 64 ? 4 : 8;
}

/* The caches are [page][KV head][64 positions x K]: a page of one head is head_bytes. */
template <int K>
MPK_FN attend_source attend_source_of(const mpk_task &t, const attend_shape &s,
                                      const attend_chunk &c)
{
    const rt_u32 head_bytes = ATTEND_PAGE * K * 2; /* keys, or values, of a page and head */
    const mpk_cache &cache = mpk_caches[s.cache];
    attend_source from; /* of the chunk's KV head */
    from.pages = mpk_at<const int>(t, ATTEND_PAGES) + c.slot * cache.slot_pages;
    from.n_pages = cache.n_pages;
    from.slot_pages = cache.slot_pages;
    from.keys = mpk_at<const char>(t, ATTEND_K) + c.kv_head * head_bytes;
    from.values = mpk_at<const char>(t, ATTEND_V) + c.kv_head * head_bytes;
    from.page_bytes = s.kv_heads * head_bytes;
    return from;
}

/* Page of the cache that holds positions 64 step ... of the slot, or -1.  The table is data: a
 * number outside the cache counts as none, so bad data reads no bad address. */
MPK_FN int attend_page(const attend_source &from, int step)
{
    const int page = step < from.slot_pages ? from.pages[step] : -1;
    return (rt_u32)page < (rt_u32)from.n_pages ? page : -1;
}

/* All threads: request keys and values of stage `stage` of the slot, which is of this page, 16
 * bytes each at a time, so that a warp asks for 512 bytes in a row.  to: keys, then values.
 * Without a page the buffer keeps what it held, and attend_steps leaves it alone; an empty group
 * is committed all the same, so that counts agree. */
template <int K> MPK_FN void attend_copy(const attend_source &from, int page, int stage, char *to)
{
    constexpr int BYTES = attend_areas<K>::BYTES, N = attend_areas<K>::N;
    static_assert(BYTES % (MPK_THREADS * 16) == 0, "each thread copies as much as any other");
    if (page >= 0) {
        const rt_u64 at =
            (rt_u64)page * from.page_bytes + (N > 1 ? stage % N * BYTES : 0) + mpk_thread() * 16;
        to += mpk_thread() * 16;
#pragma unroll
        for (int i = 0; i < BYTES; i += MPK_THREADS * 16) {
            ptx_copy_async(to + i, from.keys + at + i, true);
            ptx_copy_async(to + BYTES + i, from.values + at + i, true);
        }
    }
    ptx_copy_async_commit();
}

/* The token and head of a row; false: there is none.  Rows are numbered by token, then head, so
 * that a warp's 16 rows are few tokens and see nearly the same positions. */
MPK_FN bool attend_row(const attend_chunk &c, int row, int *token, int *head)
{
    *token = c.first + row / c.n_heads;
    *head = c.head + row % c.n_heads;
    return *token < c.last;
}

/* Load the queries of the warp's rows and clear their sums.  Rows that do not exist are zeros that
 * see no position; first_row beyond all rows makes a warp without work. */
template <int K>
MPK_FN void attend_begin_rows(const mpk_task &t, const attend_shape &s, const attend_chunk &c,
                              int first_row, int area, attend_rows<attend_areas<K>::DIMS> *r)
{
    constexpr int DIMS = attend_areas<K>::DIMS;
    const int lane = mpk_thread() % 32, g = lane / 4, dim = area * DIMS + lane % 4 * 8;
    const mpk_words none = {0, 0, 0, 0};
#pragma unroll
    for (int m = 0; m < 2; m++) {
        int token, head; /* of row g + 8 m */
        const bool there = attend_row(c, first_row + g + 8 * m, &token, &head);
        r->position[m] = there ? mpk_at<const int>(t, ATTEND_POSITIONS)[token] : -1;
        r->from[m] = attend_from(s, r->position[m]);
        r->most[m] = -__int_as_float(0x7f800000);
        r->sum[m] = 0;
        const char *from =
            mpk_at<const char>(t, ATTEND_Q) + (((rt_u64)token * s.heads + head) * K + dim) * 2;
#pragma unroll
        for (int d = 0; d < DIMS / 32; d++) {
            const mpk_words w = there ? ptx_load_words(from + d * 64) : none;
            r->query[d][m][0] = w.x;
            r->query[d][m][1] = w.y;
            r->query[d][m][2] = w.z;
            r->query[d][m][3] = w.w;
        }
    }
#pragma unroll
    for (int n = 0; n < DIMS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            r->out[n][e] = 0;
}

/* Scores of 32 positions, of the warp's dims: s_keys the first byte of these.  A block of 8
 * positions x 32 dims is 512 bytes; lane 4 g + c reads piece c of position g, which lies at c ^ g
 * / 2 of its row.  Eight lanes read 128 bytes in a row, which are all banks.  One read serves two
 * products. */
template <int K>
MPK_FN void attend_score(const char *s_keys, const attend_rows<attend_areas<K>::DIMS> &r,
                         float (*score)[4])
{
    const int lane = mpk_thread() % 32, c = lane % 4, g = lane / 4,
              lane_at = g * 64 + (c ^ g / 2) * 16;
#pragma unroll
    for (int i = 0; i < ATTEND_UNIT / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            score[i][e] = 0;
#pragma unroll
    for (int d = 0; d < attend_areas<K>::DIMS / 32; d++)
#pragma unroll
        for (int i = 0; i < ATTEND_UNIT / 8; i++) {
            const mpk_words w = *(const mpk_words *)(s_keys + (i * (K / 32) + d) * 512 + lane_at);
            const rt_u32(*q)[4] = r.query[d];
            /* words 0, 1 of both rows by words 0, 1 of the position: four of the lane's eight
             * dims */
            ptx_multiply_bf16(score[i], q[0][0], q[1][0], q[0][1], q[1][1], w.x, w.y);
            ptx_multiply_bf16(score[i], q[0][2], q[1][2], q[0][3], q[1][3], w.z, w.w);
        }
}

/* Two warps have the same rows and an area of the dims each: the scores of both are added.  The two
 * sums have the same bits, since they are of two terms.  Between this reading of the other's and
 * the next writing lies the barrier of a stage.  pair: of the task's four at most. */
MPK_FN void attend_exchange(char *s_exchange, int pair, int area, float (*score)[4])
{
    const int lane = mpk_thread() % 32;
    float4 *s_pair = (float4 *)(s_exchange + pair * 4096) + lane;
#pragma unroll
    for (int i = 0; i < ATTEND_UNIT / 8; i++)
        s_pair[(area * 4 + i) * 32] =
            make_float4(score[i][0], score[i][1], score[i][2], score[i][3]);
    ptx_meet(2 + pair, 64);
#pragma unroll
    for (int i = 0; i < ATTEND_UNIT / 8; i++) {
        const float4 other = s_pair[((area ^ 1) * 4 + i) * 32];
        score[i][0] += other.x;
        score[i][1] += other.y;
        score[i][2] += other.z;
        score[i][3] += other.w;
    }
}

/* Scores become weights, in powers of 2; what was there before is brought to the new maximum.  all:
 * every row sees all positions, so nothing is masked.
 *
 * A row that has seen nothing has the maximum -infinity; `zero` stands in for it, since -inf - -inf
 * would be NaN, while 2^(-inf - 0) is the 0 that is meant.  Results are scaled only if the maximum
 * of some row of the warp has risen, which becomes rare after the first pages.
 */
template <int HOW, int D>
MPK_FN void attend_weigh(int base, const attend_factor &f, bool all, float (*score)[4],
                         attend_rows<D> *r)
{
    const int c = mpk_thread() % 4;
    const float none = -__int_as_float(0x7f800000);
    float most[2] = {none, none}, kept[2], zero[2]; /* of rows g and g + 8 */
#pragma unroll
    for (int i = 0; i < ATTEND_UNIT / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int position = base + 8 * i + 2 * c + e % 2, m = e / 2;
            const bool seen = all || (position <= r->position[m] && position >= r->from[m]);
            score[i][e] = seen ? attend_score_of<HOW>(f, score[i][e]) : none;
            most[m] = fmaxf(most[m], score[i][e]);
        }
#pragma unroll
    for (int m = 0; m < 2; m++) {
        most[m] = fmaxf(most[m], __shfl_xor_sync(0xffffffffu, most[m], 1));
        most[m] = fmaxf(most[m], __shfl_xor_sync(0xffffffffu, most[m], 2));
        most[m] = fmaxf(r->most[m], most[m]);
        zero[m] = most[m] == none ? 0 : most[m];
        kept[m] = ptx_exp2(r->most[m] - zero[m]);
        r->most[m] = most[m];
        /* sums are relative to the largest score so far */
        r->sum[m] *= kept[m];
    }
#pragma unroll
    for (int i = 0; i < ATTEND_UNIT / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            score[i][e] = ptx_exp2(score[i][e] - zero[e / 2]);
            r->sum[e / 2] += score[i][e];
        }
    if (__any_sync(0xffffffffu, kept[0] != 1 || kept[1] != 1))
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                r->out[n][e] *= kept[e / 2];
}

/* Where a warp stands among those of its chunk. */
struct attend_warp {
    int row, area, part; /* number of 16 rows; of the dims; of each page, -1: all of it */
    int pair;            /* of the warps that share rows and part */
};

/* 32 positions from `base` on: s_keys, s_values their first bytes.
 *
 * Scores of blocks 2 half and 2 half + 1 are, rounded to bf16, the left operand of a product over
 * 16 positions: the accumulator's layout is the operand's, so no lane needs another's.  `all` is
 * written out in two calls so that each is compiled with a constant. */
template <int K, int HOW>
MPK_FN void attend_unit(const char *s_keys, const char *s_values, char *s_exchange, int base,
                        const attend_factor &f, bool all, const attend_warp &w,
                        attend_rows<attend_areas<K>::DIMS> *r)
{
    constexpr int DIMS = attend_areas<K>::DIMS;
    const int at = kv_values_of_lane(mpk_thread() % 32);
    float score[ATTEND_UNIT / 8][4]; /* of 32 positions */
    if (attend_areas<K>::N > 1) {
        s_keys += w.area * (DIMS / 32) * 512;
        s_values += w.area * (DIMS / 8) * 256;
    }
    attend_score<K>(s_keys, *r, score);
    if (attend_areas<K>::N > 1)
        attend_exchange(s_exchange, w.pair, w.area, score);
    if (all)
        attend_weigh<HOW>(base, f, true, score, r);
    else
        attend_weigh<HOW>(base, f, false, score, r);
#pragma unroll
    for (int half = 0; half < ATTEND_UNIT / 16; half++) {
        const float(*p)[4] = score + 2 * half; /* of 16 positions */
        const rt_u32 a0 = ptx_pack_bf16(p[0][0], p[0][1]), a1 = ptx_pack_bf16(p[0][2], p[0][3]),
                     a2 = ptx_pack_bf16(p[1][0], p[1][1]), a3 = ptx_pack_bf16(p[1][2], p[1][3]);
#pragma unroll
        for (int n = 0; n < DIMS / 8; n++) {
            const uint2 v = *(const uint2 *)(s_values + half * 32 * K + n * 256 + at);
            ptx_multiply_bf16(r->out[n], a0, a1, a2, a3, v.x, v.y);
        }
    }
}

/* Warps of the second half of each page hand their results to those of the first: D / 2 + 4 floats
 * a lane, number i of lane l at i * 32 + l, which is a row of all banks.  The reader has the same
 * lane number and so the same rows and dims.  A barrier stands between put and add. */
template <int D> MPK_FN void attend_put(attend_rows<D> *r, float *s_part)
{
    const int lane = mpk_thread() % 32;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s_part[(4 * n + e) * 32 + lane] = r->out[n][e];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        s_part[(D / 2 + m) * 32 + lane] = r->most[m];
        s_part[(D / 2 + 2 + m) * 32 + lane] = r->sum[m];
    }
}
/* Both parts are brought to the larger of their maxima and added, first half first: a fixed
 * order, so that the bits do not depend on which warp was faster. */
template <int D> MPK_FN void attend_add(attend_rows<D> *r, const float *s_part)
{
    const int lane = mpk_thread() % 32;
    float mine[2], other[2]; /* factors of the two parts */
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const float second = s_part[(D / 2 + m) * 32 + lane], most = fmaxf(r->most[m], second);
        const float zero = most == -__int_as_float(0x7f800000) ? 0 : most;
        mine[m] = ptx_exp2(r->most[m] - zero);
        other[m] = ptx_exp2(second - zero);
        r->sum[m] = r->sum[m] * mine[m] + s_part[(D / 2 + 2 + m) * 32 + lane] * other[m];
        r->most[m] = most;
    }
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            r->out[n][e] =
                r->out[n][e] * mine[e / 2] + s_part[(4 * n + e) * 32 + lane] * other[e / 2];
}

/* Divide by the sums and store the rows; the sums of a row's four lanes are added only here.  All
 * lanes take part in the shuffles, also those whose row does not exist.  A row that saw nothing is
 * stored as zeros. */
template <int K, int HOW>
MPK_FN void attend_store(const mpk_task &t, const attend_shape &s, const attend_chunk &c,
                         int first_row, int area, attend_rows<attend_areas<K>::DIMS> *r)
{
    constexpr int DIMS = attend_areas<K>::DIMS;
    const int lane = mpk_thread() % 32, g = lane / 4, dim = area * DIMS + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        int token, head;
        const bool there = attend_row(c, first_row + g + 8 * m, &token, &head);
        float sum = r->sum[m]; /* the lane's positions, then all */
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        /* after the shuffles, which need all lanes */
        if (!there)
            continue;
        const float scale = attend_last<HOW>(t, s, head, r->most[m], sum);
        char *y = mpk_at<char>(t, ATTEND_Y) + (((rt_u64)token * s.heads + head) * K + dim) * 2;
#pragma unroll
        for (int n = 0; n < DIMS / 8; n++)
            ptx_store_word(y + n * 16,
                           ptx_pack_bf16(r->out[n][2 * m] * scale, r->out[n][2 * m + 1] * scale));
    }
}

/* What all rows of a warp see: positions from .. last, where no mask is needed; what any of them
 * sees ends at `most`, after which a unit is left out. */
struct attend_sight {
    int from, last, most;
};

/* position, from: of a lane's two rows.  Shuffles over 4, 8, 16 put the eight g together; the four
 * lanes of a g have the same rows. */
MPK_FN attend_sight attend_sight_of(const int *position, const int *from)
{
    attend_sight a; /* of the warp's 16 rows */
    a.from = from[0] > from[1] ? from[0] : from[1];
    a.last = position[0] < position[1] ? position[0] : position[1];
    a.most = position[0] > position[1] ? position[0] : position[1];
#pragma unroll
    for (int d = 4; d < 32; d *= 2) {
        const int begin = __shfl_xor_sync(0xffffffffu, a.from, d),
                  last = __shfl_xor_sync(0xffffffffu, a.last, d),
                  most = __shfl_xor_sync(0xffffffffu, a.most, d);
        a.from = begin > a.from ? begin : a.from;
        a.last = last < a.last ? last : a.last;
        a.most = most > a.most ? most : a.most;
    }
    return a;
}

/* The pages of a chunk, a stage after the other: scratch holds two of them, one being read and one
 * in flight, or where there is no room one, which is requested when the one before has been read.
 *
 * The barrier of a stage says two things: each thread has waited for its own copies, so the stage
 * is there as a whole; and all warps have left the one before, so its buffer may be filled.  That
 * is why the next stage is requested right after it, not before. Numbers of pages come from memory
 * that may be far: that of the stage after the next is loaded a stage before it is needed, so that
 * no copy waits for its address. All warps go through all stages, those without rows too: they
 * copy, and have the barriers. */
template <int K, int HOW>
MPK_FN void attend_steps(const mpk_task &t, const attend_shape &s, const attend_chunk &c,
                         const attend_warp &w, attend_rows<attend_areas<K>::DIMS> *r)
{
    typedef attend_areas<K> areas;
    constexpr int N = areas::N, BYTES = 2 * areas::BYTES; /* of a stage */
    const attend_source from = attend_source_of<K>(t, s, c);
    const attend_sight sight = attend_sight_of(r->position, r->from);
    const attend_factor factor = attend_factor_of<HOW>(s);
    char *s_pages = t.s_scratch;
    const int first = c.step * N, end = first + c.n_steps * N; /* stages of the slot */
    int page = first < end ? attend_page(from, first / N) : -1;
    if (ATTEND_BUFFERS > 1)
        attend_copy<K>(from, page, first, s_pages);
    /* Its number is loaded a stage before its copies are requested. */
    int next = first + 1 < end ? attend_page(from, (first + 1) / N) : -1;
    for (int stage = first; stage < end; stage++) {
        const int odd = (stage - first) % ATTEND_BUFFERS; /* the buffer that is read */
        if (ATTEND_BUFFERS == 1) {
            mpk_sync(); /* all warps have read the one before */
            attend_copy<K>(from, page, stage, s_pages);
        }
        ptx_copy_async_wait<0>();
        mpk_sync(); /* the stage is there, and all warps have read the one before */
        if (ATTEND_BUFFERS > 1)
            attend_copy<K>(from, next, stage + 1, s_pages + (odd ^ 1) * BYTES);
        const int after = stage + 2 < end ? attend_page(from, (stage + 2) / N) : -1;
        const char *s_page = s_pages + odd * BYTES;
        /* all units, or this warp's; of parts from 2 on none */
        const int own = N > 1 ? (w.part ^ stage) % 2 + w.part / 2 : w.part;
        const int begin = w.part < 0 ? 0 : own;
#pragma unroll 1
        for (int u = begin; u < areas::UNITS; u += w.part < 0 ? 1 : 2) {
            const int base = stage * areas::POSITIONS + u * ATTEND_UNIT;
            const char *s_keys = s_page + u * ATTEND_UNIT * K * 2;
            if (page >= 0 && base <= sight.most)
                attend_unit<K, HOW>(
                    s_keys, s_keys + BYTES / 2, s_pages + ATTEND_BUFFERS * BYTES, base, factor,
                    base >= sight.from && base + ATTEND_UNIT - 1 <= sight.last, w, r);
        }
        page = next;
        next = after; /* its load has had this stage's products to come back */
    }
}

/* All threads: a chunk.
 *
 *   rows    row warps   part 0        part 1        the others
 *   to 16   1           warp 0        warp 1        help to copy
 *   to 32   2           warps 0, 1    2, 3          help to copy
 *   to 64   4           warps 0-3     4-7
 *   to 128  8           all, both halves of each page
 *
 * Part 0 has the first 32 positions of each page and part 1 the others.  Where two warps share rows
 * it is twice as many warps: up to 32 rows have two parts, up to 64 one. */
template <int K, int HOW>
MPK_FN void attend_run_chunk(const mpk_task &t, const attend_shape &s, const attend_chunk &c)
{
    typedef attend_areas<K> areas;
    constexpr int DIMS = areas::DIMS, N = areas::N;
    const int warp = mpk_thread() / 32, parts = c.row_warps * N < 8 ? 2 : 1;
    attend_warp w; /* this one */
    w.row = warp % c.row_warps;
    w.area = N > 1 ? warp / c.row_warps % N : 0;
    const int part = warp / (c.row_warps * N), first_row = w.row * 16;
    w.part = parts > 1 ? part : -1;
    w.pair = w.row + part * c.row_warps;
    const bool works = part < parts;
    attend_rows<DIMS> r; /* this lane's, of the chunk */
    attend_begin_rows<K>(t, s, c, works ? first_row : ATTEND_ROWS * ATTEND_ROWS, w.area, &r);
    attend_steps<K, HOW>(t, s, c, w, &r);
    mpk_sync(); /* pages give way to parts, or to the next chunk's */
    if (parts > 1) {
        float *s_part = (float *)t.s_scratch + (w.row + w.area * c.row_warps) * (DIMS / 2 + 4) * 32;
        if (part == 1)
            attend_put(&r, s_part);
        mpk_sync();
        if (part == 0)
            attend_add(&r, s_part);
        mpk_sync();
    }
    if (part == 0)
        attend_store<K, HOW>(t, s, c, first_row, w.area, &r);
}

/* ---- the body ---- */

/* Do tokens that stand alone take attention_lone.cuh's way?  It takes room for parts, and registers
 * for keys and values of a unit, which heads of 256 entries do not leave. */
MPK_FN constexpr bool attend_has_lone(int size)
{
    return MPK_ROOM && size <= 128;
}

/* The task's box is tokens (axis 0) by columns (axis 1, whole query heads of K).  It is divided
 * into runs of tokens of one slot, by KV heads, into chunks of up to 128 rows; each chunk reads
 * its own pages.  Runs of tokens that stand alone go to lone_run, if the box has whole KV heads
 * of at most LONE_ROWS query heads.
 * A chunk is of one KV head: c.head goes from its first query head in the box to the next one's,
 * and has ATTEND_ROWS / n_heads tokens.
 */
template <int K, int HOW = 0> MPK_FN void attention_tile(const mpk_task &t, const attend_shape &s)
{
    const int group = s.heads / s.kv_heads, end = (int)t.hi0, heads_end = (int)t.e->hi[1] / K;
    const int kv_head = (int)t.e->lo[1] / (group * K),
              kv_heads = (int)t.e->hi[1] / (group * K) - kv_head;
    const bool whole = group <= LONE_ROWS && (int)t.e->lo[1] == kv_head * group * K &&
                       (int)t.e->hi[1] == (kv_head + kv_heads) * group * K;
    attend_chunk c; /* what is worked on now */
    for (int first = (int)t.e->lo[0]; first < end;) {
        const int alone = whole && attend_has_lone(K) ? lone_count(t, first, end) : 0;
        if (alone) {
            lone_run<attend_has_lone(K) ? K : 64, HOW>(t, s, first, alone, kv_head, kv_heads);
            first += alone;
            continue;
        }
        const int run_end = first + attend_run(t, first, end);
        c.slot = mpk_at<const int>(t, ATTEND_SLOTS)[first];
        for (c.head = (int)t.e->lo[1] / K; c.head < heads_end; c.head += c.n_heads) {
            c.kv_head = c.head / group;
            c.n_heads = (c.kv_head + 1) * group < heads_end ? (c.kv_head + 1) * group - c.head
                                                            : heads_end - c.head;
            const int tokens = attend_areas<K>::ROWS / c.n_heads;
            for (c.first = first; c.first < run_end; c.first += tokens) {
                c.last = c.first + tokens < run_end ? c.first + tokens : run_end;
                attend_find(t, s, &c);
                attend_run_chunk<K, HOW>(t, s, c);
            }
        }
        first = run_end;
    }
}

#endif
