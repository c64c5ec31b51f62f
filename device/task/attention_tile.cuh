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
 * scores of q k^T are already the operand of p v.  Softmax is online in f32, in powers of 2.
 *
 * Who has what.  Lane 4 g + c of a warp (g 0 ... 7, c 0 ... 3) has two of the warp's 16 rows, g and
 * g + 8, in all fragments: [m] is the row g + 8 m.  Of scores it has the positions 8 i + 2c and + 1
 * of each block of 8, of results the dims 8 n + 2c and + 1; element e of a fragment of four is
 * place e % 2 of row e / 2.  So the largest score and the sum of a row are put together over the
 * four lanes of a g, by shuffles over 1 and 2.
 *
 * Scratch: ATTEND_BUFFERS pages of 64 positions, keys then values, 2 x 64 x K bf16.  Once the last
 * of a chunk has been read, the same bytes take the parts of pairs of warps.
 *
 * Relies on: ptx_multiply_bf16 (mma.m16n8k16), K a multiple of 64, KV pages of 64 positions.  The
 * task's event has come when the body begins, so what this step wrote to the cache may be read.
 * Cost of 16 rows and 16 positions: 4 K / 16 products, 64 K bytes of shared memory read.
 */
#ifndef TASK_ATTENTION_TILE_CUH
#define TASK_ATTENTION_TILE_CUH

#include "ptx/matrix.cuh"
#include "task/attend.cuh"
#include "task/attention_lone.cuh"
#include "tile/inverse.cuh"

/* Positions that a warp works at a time; rows of a chunk (16 for each of 8 warps); pages in
 * scratch. GPUs with 99 KB for a block have room for one page beside the ring. */
enum { ATTEND_UNIT = 32, ATTEND_ROWS = 128, ATTEND_BUFFERS = MPK_ROOM ? 2 : 1 };

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
template <int K> struct attend_rows {
    int position[2], from[2];   /* the positions that they see; -1: none */
    rt_u32 query[K / 32][2][4]; /* dims 32 d + 8 c ... of each */
    float most[2], sum[2];
    float out[K / 8][4]; /* dims 8 n + 2c, + 1 of each */
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

/* All threads: request keys and values of a page, 16 bytes each at a time, so that a warp asks
 * for 512 bytes in a row.  to: keys, then values.  Without a page the buffer keeps what it held,
 * and attend_steps leaves it alone; an empty group is committed all the same, so that counts
 * agree. */
template <int K> MPK_FN void attend_copy(const attend_source &from, int page, char *to)
{
    constexpr int BYTES = ATTEND_PAGE * K * 2; /* of keys, and of values */
    if (page >= 0) {
        const rt_u64 at = (rt_u64)page * from.page_bytes + mpk_thread() * 16;
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
                              int first_row, attend_rows<K> *r)
{
    const int lane = mpk_thread() % 32, g = lane / 4, dim = lane % 4 * 8;
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
        for (int d = 0; d < K / 32; d++) {
            const mpk_words w = there ? ptx_load_words(from + d * 64) : none;
            r->query[d][m][0] = w.x;
            r->query[d][m][1] = w.y;
            r->query[d][m][2] = w.z;
            r->query[d][m][3] = w.w;
        }
    }
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            r->out[n][e] = 0;
}

/* Scores of 32 positions: s_keys their first byte.  A block of 8 positions x 32 dims is 512 bytes;
 * lane 4 g + c reads piece c of position g, which lies at c ^ g / 2 of its row.  Eight lanes read
 * 128 bytes in a row, which are all banks.  One read serves two products. */
template <int K>
MPK_FN void attend_score(const char *s_keys, const attend_rows<K> &r, float (*score)[4])
{
    const int lane = mpk_thread() % 32, c = lane % 4, g = lane / 4,
              lane_at = g * 64 + (c ^ g / 2) * 16;
#pragma unroll
    for (int i = 0; i < ATTEND_UNIT / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            score[i][e] = 0;
#pragma unroll
    for (int d = 0; d < K / 32; d++)
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

/* Scores become weights, in powers of 2; what was there before is brought to the new maximum.  all:
 * every row sees all positions, so nothing is masked.
 *
 * A row that has seen nothing has the maximum -infinity; `zero` stands in for it, since -inf - -inf
 * would be NaN, while 2^(-inf - 0) is the 0 that is meant.  Results are scaled only if the maximum
 * of some row of the warp has risen, which becomes rare after the first pages.
 */
template <int K>
MPK_FN void attend_weigh(int base, float scale, bool all, float (*score)[4], attend_rows<K> *r)
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
            score[i][e] = seen ? score[i][e] * scale : none;
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
        for (int n = 0; n < K / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                r->out[n][e] *= kept[e / 2];
}

/* 32 positions from `base` on: s_keys, s_values their first bytes.
 *
 * Scores of blocks 2 half and 2 half + 1 are, rounded to bf16, the left operand of a product over
 * 16 positions: the accumulator's layout is the operand's, so no lane needs another's.  `all` is
 * written out in two calls so that each is compiled with a constant. */
template <int K>
MPK_FN void attend_unit(const char *s_keys, const char *s_values, int base, float scale, bool all,
                        attend_rows<K> *r)
{
    const int at = kv_values_of_lane(mpk_thread() % 32);
    float score[ATTEND_UNIT / 8][4]; /* of 32 positions */
    attend_score<K>(s_keys, *r, score);
    if (all)
        attend_weigh<K>(base, scale, true, score, r);
    else
        attend_weigh<K>(base, scale, false, score, r);
#pragma unroll
    for (int half = 0; half < ATTEND_UNIT / 16; half++) {
        const float(*p)[4] = score + 2 * half; /* of 16 positions */
        const rt_u32 a0 = ptx_pack_bf16(p[0][0], p[0][1]), a1 = ptx_pack_bf16(p[0][2], p[0][3]),
                     a2 = ptx_pack_bf16(p[1][0], p[1][1]), a3 = ptx_pack_bf16(p[1][2], p[1][3]);
#pragma unroll
        for (int n = 0; n < K / 8; n++) {
            const uint2 w = *(const uint2 *)(s_values + half * 32 * K + n * 256 + at);
            ptx_multiply_bf16(r->out[n], a0, a1, a2, a3, w.x, w.y);
        }
    }
}

/* Warps of the second half of each page hand their results to those of the first: K / 2 + 4 floats
 * a lane, number i of lane l at i * 32 + l, which is a row of all banks.  The reader has the same
 * lane number and so the same rows and dims.  A barrier stands between put and add. */
template <int K> MPK_FN void attend_put(attend_rows<K> *r, float *s_part)
{
    const int lane = mpk_thread() % 32;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s_part[(4 * n + e) * 32 + lane] = r->out[n][e];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        s_part[(K / 2 + m) * 32 + lane] = r->most[m];
        s_part[(K / 2 + 2 + m) * 32 + lane] = r->sum[m];
    }
}
/* Both parts are brought to the larger of their maxima and added, first half first: a fixed
 * order, so that the bits do not depend on which warp was faster. */
template <int K> MPK_FN void attend_add(attend_rows<K> *r, const float *s_part)
{
    const int lane = mpk_thread() % 32;
    float mine[2], other[2]; /* factors of the two parts */
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const float second = s_part[(K / 2 + m) * 32 + lane], most = fmaxf(r->most[m], second);
        const float zero = most == -__int_as_float(0x7f800000) ? 0 : most;
        mine[m] = ptx_exp2(r->most[m] - zero);
        other[m] = ptx_exp2(second - zero);
        r->sum[m] = r->sum[m] * mine[m] + s_part[(K / 2 + 2 + m) * 32 + lane] * other[m];
    }
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            r->out[n][e] =
                r->out[n][e] * mine[e / 2] + s_part[(4 * n + e) * 32 + lane] * other[e / 2];
}

/* Divide by the sums and store the rows; the sums of a row's four lanes are added only here.  All
 * lanes take part in the shuffles, also those whose row does not exist.  A row that saw nothing is
 * stored as zeros. */
template <int K>
MPK_FN void attend_store(const mpk_task &t, const attend_shape &s, const attend_chunk &c,
                         int first_row, attend_rows<K> *r)
{
    const int lane = mpk_thread() % 32, g = lane / 4, dim = lane % 4 * 2;
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
        const float scale = sum > 0 ? mpk_inverse(sum) : 0;
        char *y = mpk_at<char>(t, ATTEND_Y) + (((rt_u64)token * s.heads + head) * K + dim) * 2;
#pragma unroll
        for (int n = 0; n < K / 8; n++)
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

/* The pages of a chunk: scratch holds two of them, one being read and one in flight, or where
 * there is no room one, which is requested when the one before has been read.  part: of each page;
 * -1: all.
 *
 * The barrier of a step says two things: each thread has waited for its own copies, so the page is
 * there as a whole; and all warps have left the page before, so its buffer may be filled.  That is
 * why the next page is requested right after it, not before.
 * Numbers of pages come from memory that may be far: the one after the next is loaded a step before
 * it is needed, so that no copy waits for its address.
 * All warps go through all steps, those without rows too: they copy, and have the barriers.
 */
template <int K>
MPK_FN void attend_steps(const mpk_task &t, const attend_shape &s, const attend_chunk &c, int part,
                         attend_rows<K> *r)
{
    constexpr int BYTES = 2 * ATTEND_PAGE * K * 2;
    const attend_source from = attend_source_of<K>(t, s, c);
    const attend_sight sight = attend_sight_of(r->position, r->from);
    const float scale = s.scale;
    char *s_pages = t.s_scratch;
    const int end = c.step + c.n_steps; /* of the slot's pages */
    int page = c.step < end ? attend_page(from, c.step) : -1;
    if (ATTEND_BUFFERS > 1)
        attend_copy<K>(from, page, s_pages);
    /* Its number is loaded a step before its copies are requested. */
    int next = c.step + 1 < end ? attend_page(from, c.step + 1) : -1;
    for (int step = c.step; step < end; step++) {
        const int odd = (step - c.step) % ATTEND_BUFFERS; /* the buffer that is read */
        if (ATTEND_BUFFERS == 1) {
            mpk_sync(); /* all warps have read the one before */
            attend_copy<K>(from, page, s_pages);
        }
        ptx_copy_async_wait<0>();
        mpk_sync(); /* the page is there, and all warps have read the one before */
        if (ATTEND_BUFFERS > 1)
            attend_copy<K>(from, next, s_pages + (odd ^ 1) * BYTES);
        const int after = step + 2 < end ? attend_page(from, step + 2) : -1;
        const char *s_page = s_pages + odd * BYTES;
        /* both halves, or this warp's; of parts from 2 on none */
#pragma unroll 1
        for (int u = part < 0 ? 0 : part; u < ATTEND_PAGE / ATTEND_UNIT; u += part < 0 ? 1 : 2) {
            const int base = step * ATTEND_PAGE + u * ATTEND_UNIT;
            const char *s_keys = s_page + u * ATTEND_UNIT * K * 2;
            if (page >= 0 && base <= sight.most)
                attend_unit<K>(s_keys, s_keys + BYTES / 2, base, scale,
                               base >= sight.from && base + ATTEND_UNIT - 1 <= sight.last, r);
        }
        page = next;
        next = after; /* its load has had this step's products to come back */
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
 * Part 0 has the first 32 positions of each page and part 1 the others. */
template <int K>
MPK_FN void attend_run_chunk(const mpk_task &t, const attend_shape &s, const attend_chunk &c)
{
    const int warp = mpk_thread() / 32, row_warp = warp % c.row_warps,
              parts = c.row_warps < 8 ? 2 : 1;
    const int part = warp / c.row_warps, first_row = row_warp * 16;
    const bool works = part < parts;
    attend_rows<K> r; /* this lane's, of the chunk */
    attend_begin_rows<K>(t, s, c, works ? first_row : ATTEND_ROWS * ATTEND_ROWS, &r);
    attend_steps<K>(t, s, c, parts > 1 ? part : -1, &r);
    mpk_sync(); /* pages give way to parts, or to the next chunk's */
    if (parts > 1) {
        float *s_part = (float *)t.s_scratch + row_warp * (K / 2 + 4) * 32;
        if (part == 1)
            attend_put<K>(&r, s_part);
        mpk_sync();
        if (part == 0)
            attend_add<K>(&r, s_part);
        mpk_sync();
    }
    if (part == 0)
        attend_store<K>(t, s, c, first_row, &r);
}

/* ---- the body ---- */

/* The task's box is tokens (axis 0) by columns (axis 1, whole query heads of K).  It is divided
 * into runs of tokens of one slot, by KV heads, into chunks of up to 128 rows; each chunk reads
 * its own pages.  Runs of tokens that stand alone go to lone_run, if the box has whole KV heads
 * of at most LONE_ROWS query heads.
 * A chunk is of one KV head: c.head goes from its first query head in the box to the next one's,
 * and has ATTEND_ROWS / n_heads tokens.
 */
template <int K> MPK_FN void attention_tile(const mpk_task &t, const attend_shape &s)
{
    const int group = s.heads / s.kv_heads, end = (int)t.hi0, heads_end = (int)t.e->hi[1] / K;
    const int kv_head = (int)t.e->lo[1] / (group * K),
              kv_heads = (int)t.e->hi[1] / (group * K) - kv_head;
    const bool whole = group <= LONE_ROWS && (int)t.e->lo[1] == kv_head * group * K &&
                       (int)t.e->hi[1] == (kv_head + kv_heads) * group * K;
    attend_chunk c; /* what is worked on now */
    for (int first = (int)t.e->lo[0]; first < end;) {
        const int alone = whole && MPK_ROOM ? lone_count(t, first, end) : 0;
        if (alone) {
            lone_run<K>(t, s, first, alone, kv_head, kv_heads);
            first += alone;
            continue;
        }
        const int run_end = first + attend_run(t, first, end);
        c.slot = mpk_at<const int>(t, ATTEND_SLOTS)[first];
        for (c.head = (int)t.e->lo[1] / K; c.head < heads_end; c.head += c.n_heads) {
            c.kv_head = c.head / group;
            c.n_heads = (c.kv_head + 1) * group < heads_end ? (c.kv_head + 1) * group - c.head
                                                            : heads_end - c.head;
            const int tokens = ATTEND_ROWS / c.n_heads;
            for (c.first = first; c.first < run_end; c.first += tokens) {
                c.last = c.first + tokens < run_end ? c.first + tokens : run_end;
                attend_find(t, s, &c);
                attend_run_chunk<K>(t, s, c);
            }
        }
        first = run_end;
    }
}

#endif
