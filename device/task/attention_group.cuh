/* attention_group.cuh - attention of many tokens over the paged bf16 cache (paper §6.1) by
 * products of warpgroups: steps of prompts.
 *
 * The operator attention.  Chunks are those of attention_tile.cuh: neighbours of one slot with
 * their query heads that share a KV head, up to 128 rows, 64 for each warpgroup.  The rows'
 * queries lie in scratch, in rows of 64 dims; keys and values are read from the ring by both
 * warpgroups as they lie in a page (tile/kv.cuh), 64 positions at a time.  Softmax is online in
 * f32, in powers of 2, of scores less a zero that follows the largest one loosely; its weights
 * go from the registers of q k^T to those of p v, where two neighbouring lanes exchange a word.
 * Tokens that stand alone, each of another slot, take the way of attention_lone.cuh.
 *
 *   page i of keys:    score = q k^T              products of page i - 1's values run beside
 *                      mask, zero, weights        softmax, under these products
 *                      pack weights as operand p
 *   page i of values:  out += p v                 given after the keys of page i + 1
 *
 * Pages come through the page ring.  The loader goes through the same chunks, and waits for the
 * task's event before the first page, since the step itself writes keys and values; one of its
 * lanes asks.  The note of a page of values says whether the table names a page of the cache.
 * Called by the generated switch over bodies for many tokens; the worker waits for the event and
 * counts the task. Cost of 128 rows and 64 positions: 2 x 8 wgmma of 64 x 64 x 16 and 2 x 4 of
 * 64 x K x 16.
 */
#ifndef TASK_ATTENTION_GROUP_CUH
#define TASK_ATTENTION_GROUP_CUH

#include "ptx/matrix.cuh"
#include "task/attention_tile.cuh"
#include "task/linear_box.cuh"

#if MPK_WGMMA

enum { GROUP_ROWS = 64 };

/* How keys and values of 64 positions lie in the ring: in one page of 16 KB if K is 64, else in
 * two, keys first. */
template <int K> struct group_pages {
    enum {
        BYTES = ATTEND_PAGE * K * 2,             /* of keys, and of values */
        N = 2 * BYTES <= MPK_PAGE_BYTES ? 1 : 2, /* pages of the ring for both */
    };
};

/* ---- chunks, the same for loader and body ---- */

/* The chunks of the task's tokens from `first` on, which are of one slot: for each KV head in
 * turn, as many tokens at a time as make 128 rows with its query heads (with 4 query heads a KV
 * head 32 tokens make a chunk).  Loader and body walk in the same order, which is the order of
 * pages in the ring. */
struct group_walk {
    int first, end, heads_end, group; /* tokens; of the task; query heads of a KV head */
    attend_chunk c;
};

/* Stands before the first chunk: n_heads is 0 and first = last = end, so that group_next begins
 * with the task's first head. */
MPK_FN group_walk group_begin(const mpk_task &t, const attend_shape &s, int size, int first,
                              int end)
{
    group_walk w; /* of one run of tokens */
    w.first = first;
    w.end = first + attend_run(t, first, end);
    w.group = s.heads / s.kv_heads;
    w.heads_end = (int)t.e->hi[1] / size;
    w.c.slot = mpk_at<const int>(t, ATTEND_SLOTS)[first];
    w.c.head = (int)t.e->lo[1] / size;
    w.c.n_heads = 0;
    w.c.first = w.c.last = w.end;
    return w;
}

/* Step to the next chunk, all of it but its pages (attend_find); false: there is none.  The outer
 * loop is over KV heads, the inner one over tokens. */
MPK_FN bool group_next(const mpk_task &t, const attend_shape &s, group_walk *w)
{
    attend_chunk *c = &w->c;
    c->first = c->last;
    if (c->first >= w->end) {
        c->head += c->n_heads;
        if (c->head >= w->heads_end)
            return false;
        c->kv_head = c->head / w->group;
        const int last = (c->kv_head + 1) * w->group;
        c->n_heads = (last < w->heads_end ? last : w->heads_end) - c->head;
        c->first = w->first;
    }
    c->last = c->first + ATTEND_ROWS / c->n_heads;
    c->last = c->last < w->end ? c->last : w->end;
    return true;
}

/* How many tokens of the task from `first` on stand alone; 0 if the box has parts of KV heads or
 * too many query heads for attention_lone.cuh.  The same in loader, which skips them, and body:
 * those tokens read the cache without the ring. */
MPK_FN int group_alone(const mpk_task &t, const attend_shape &s, int size, int first, int end)
{
    const int group = s.heads / s.kv_heads;
    const rt_u32 columns = (rt_u32)(group * size); /* of a KV head */
    const bool whole = t.e->lo[1] % columns == 0 && t.e->hi[1] % columns == 0;
    return group <= LONE_ROWS && whole ? lone_count(t, first, end) : 0;
}

/* ---- the loader's part ---- */

/* The requesting lane: copy `bytes` from `from` to `offset` in page `page` of the ring; they
 * complete barrier `full`. */
MPK_FN void group_copy(rt_u32 page, rt_u32 offset, const char *from, rt_u32 bytes, rt_u32 full)
{
    ptx_copy_bulk(mpk_s + page * MPK_PAGE_BYTES + offset, from, bytes, &mpk_w.full[full]);
}

/* The asking lane: keys and values of 64 positions.  page -1: pages of the ring with nothing in
 * them, so that loader and body count alike.  Where keys and values have a page each, the second
 * one's barrier tells of both, and the first one's of nothing: a body waits once.  The note is
 * stored before load_expect arrives (release).  Nothing is requested before all pages are empty;
 * a->over: the step was withdrawn. */
template <int K>
MPK_FN void group_ask(const mpk_load &l, const attend_source &from, int page, box_asker *a)
{
    typedef group_pages<K> at;
    const rt_u64 offset = (rt_u64)(rt_u32)page * from.page_bytes;
    mpk_ring ring = a->ring;
    const rt_u32 keys = ring.first + ring.at;
    a->over = !box_await(l, ring.at, ring.parity);
    if (at::N == 2)
        ring_next(&ring);
    const rt_u32 values = ring.first + ring.at;
    if (a->over || (at::N == 2 && !box_await(l, ring.at, ring.parity))) {
        a->over = true;
        return;
    }
    ring_next(&ring);
    a->ring = ring;
    a->asked += at::N;
    if (at::N == 2)
        load_expect(keys, 0);
    mpk_w.note[values] = page >= 0;
    load_expect(values, page < 0 ? 0 : 2 * at::BYTES);
    if (page < 0)
        return;
    group_copy(keys, 0, from.keys + offset, at::BYTES, values);
    group_copy(values, at::N == 2 ? 0 : at::BYTES, from.values + offset, at::BYTES, values);
}

/* Called by the one lane of the loader that requests pages: request all pages of a chunk, from
 * number `page` on.  Each next number is loaded while a page is requested, and looked at (as in
 * attend_page) after that. */
template <int K>
MPK_FN void group_ask_pages(const mpk_load &l, const attend_source &from, const attend_chunk &c,
                            int page, box_asker *a)
{
#pragma unroll 1
    for (int step = c.step + 1; step <= c.step + c.n_steps && !a->over; step++) {
        const int next = step < from.slot_pages ? from.pages[step] : -1;
        group_ask<K>(l, from, page, a);
        page = (rt_u32)next < (rt_u32)from.n_pages ? next : -1;
    }
}

/* All lanes: request the pages of a chunk.  *came: the task's event has been seen, after which
 * what the step writes (keys, values) may be copied; where the first page lies is known before. */
template <int K>
MPK_FN void group_load_chunk(mpk_load &l, const mpk_task &t, const attend_shape &s, attend_chunk *c,
                             bool *came)
{
    attend_find(t, s, c);
    const attend_source from = attend_source_of<K>(t, s, *c);
    const int page = c->n_steps ? attend_page(from, c->step) : -1;
    if (!*came && !load_needs_event(&l))
        return;
    *came = true;
    box_asker a = {l.ring, 0, false};
    const bool asks = ptx_elect();
    if (asks)
        group_ask_pages<K>(l, from, *c, page, &a);
    box_have_asked(l, a, asks);
}

/* The loader's part of the task.  Positions, slots and page tables belong to the step, so it
 * waits for the step's word first.  While it works here the whole ring may be in flight, since
 * bytes, not latency, decide; it settles to the usual number at the end. */
template <int K> MPK_FN void attention_group_load(mpk_load &l, const attend_shape &s)
{
    bool came = false; /* the event, which is waited for once */
    if (!load_needs_step(&l))
        return;
    mpk_task t = {};
    t.e = l.e;
    t.live = mpk_w.live;
    const int end = (int)mpk_end(t);
    const rt_u32 in_flight = l.in_flight;
    l.in_flight = l.ring.n;
    for (int first = (int)l.e->lo[0]; first < end && !l.cancelled;) {
        const int alone = group_alone(t, s, K, first, end);
        if (alone) {
            first += alone;
            continue;
        }
        group_walk w = group_begin(t, s, K, first, end);
        while (!l.cancelled && group_next(t, s, &w))
            group_load_chunk<K>(l, t, s, &w.c, &came);
        first = w.end;
    }
    load_settle(l, in_flight);
}

/* ---- rows ---- */

/* The zero of a row that has seen nothing: any score exceeds it, and -inf less it is -inf.  It is
 * finite, so that a row that stays so has no NaN. */
constexpr float GROUP_LEAST = -3e38f;
/* A score may exceed the zero by this much, so a weight is at most 2^8: bf16 and f32 keep as many
 * digits of a large weight as of a small one. */
constexpr float GROUP_HEADROOM = 8;

/* What a lane has of its two rows of the chunk, 16 warp + g and + 8 (lane 4 g + c).  Of K 128 these
 * are 64 registers of results, beside which group_steps has 32 of scores and 16 of weights. */
template <int K> struct group_rows {
    int position[2], from[2]; /* the positions that they see; -1: none */
    float zero[2], sum[2];    /* a weight is 2^(score * scale - zero); the sum of the lane's own */
    float out[K / 2];         /* as ptx_group_multiply leaves it */
};

/* Queries of a warpgroup's rows in scratch: for each 64 dims a block of 64 rows x 128 bytes. */
enum { GROUP_QUERY = GROUP_ROWS * 64 * 2 };
/* Where this warpgroup's queries lie in scratch: K / 64 matrices of 64 rows each. */
template <int K> MPK_FN char *group_queries(void)
{
    return mpk_s + MPK_PAGES * MPK_PAGE_BYTES + mpk_thread() / 128 * (K / 64 * GROUP_QUERY);
}

/* The four warps of this warpgroup meet; barriers 0 and 1 belong to the task.  Warpgroups meet each
 * other nowhere in a chunk, so that one's softmax runs beside the other's products. */
MPK_FN void group_meet(void)
{
    ptx_meet(2 + mpk_thread() / 128, 128);
}

/* Row lane % 16 of this warp: its token, and its number in q and y; -1: there is none. A lane finds
 * one row and gets the others by shuffles, since a division takes some thirty instructions. */
MPK_FN int group_row(const attend_shape &s, const attend_chunk &c, int *token)
{
    int head;
    const bool there = attend_row(c, mpk_thread() / 32 * 16 + mpk_thread() % 16, token, &head);
    return there ? *token * s.heads + head : -1;
}

/* How a warp moves its 16 rows of K dims in pieces of 16 bytes, K / 16 for each lane: in a pass
 * the lanes have whole rows next to each other, so that loads and stores of global memory are of
 * whole lines. */
template <int K> struct group_piece {
    enum { PASSES = K / 16, ROWS = 256 / K /* of a pass */ };
    int row, column; /* of the first pass; a piece is 8 columns */
};
/* The lane's row and column in the first pass; each pass is group_piece::ROWS rows on. */
template <int K> MPK_FN group_piece<K> group_piece_of_lane(void)
{
    const int lane = mpk_thread() % 32;
    return {lane / (K / 8), lane % (K / 8)};
}
/* Where piece `column` of row `row` of this warp lies in scratch: rows of 64 dims, 128 bytes each,
 * in the 128-byte swizzle: piece c of row r lies at c ^ r (mod 8), as the matrix descriptor of
 * wgmma expects. */
template <int K> MPK_FN char *group_piece_at(int row, int column)
{
    return group_queries<K>() + (mpk_thread() / 32 % 4 * 16 + row) * 128 +
           column / 8 * GROUP_QUERY + (column ^ row) % 8 * 16;
}

/* Issue the loads of the warp's queries.  number: group_row's, of row lane % 16. */
template <int K> MPK_FN void group_get_queries(const mpk_task &t, int number, mpk_words *q)
{
    const group_piece<K> at = group_piece_of_lane<K>(); /* of this lane */
    const mpk_words none = {0, 0, 0, 0};                /* rows that do not exist */
    const char *from = mpk_at<const char>(t, ATTEND_Q) + at.column * 16;
#pragma unroll
    for (int i = 0; i < at.PASSES; i++) {
        const int n = __shfl_sync(0xffffffffu, number, at.row + i * at.ROWS);
        q[i] = n >= 0 ? ptx_load_words(from + (rt_u64)n * (K * 2)) : none;
    }
}
/* The queries into scratch; a fence and a meeting must follow before products read them. */
template <int K> MPK_FN void group_put_queries(const mpk_words *q)
{
    const group_piece<K> at = group_piece_of_lane<K>();
#pragma unroll
    for (int i = 0; i < at.PASSES; i++)
        *(mpk_words *)group_piece_at<K>(at.row + i * at.ROWS, at.column) = q[i];
}

/* What a chunk begins with: queries into scratch, rows' positions into registers, pages found.
 * All loads (queries, positions, page table) are in flight before the first one is waited for;
 * they cost one latency together. */
template <int K>
MPK_FN void group_begin_rows(const mpk_task &t, const attend_shape &s, attend_chunk *c,
                             group_rows<K> *r)
{
    int token;
    const int number = group_row(s, *c, &token);
    mpk_words q[K / 16]; /* in flight while pages are found */
    const int position = number >= 0 ? mpk_at<const int>(t, ATTEND_POSITIONS)[token] : -1;
    group_get_queries<K>(t, number, q);
    attend_find(t, s, c);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        r->position[m] = __shfl_sync(0xffffffffu, position, mpk_thread() % 32 / 4 + 8 * m);
        r->from[m] = attend_from(s, r->position[m]);
        r->zero[m] = GROUP_LEAST;
        r->sum[m] = 0;
    }
    group_meet(); /* no warp still reads the rows before */
    group_put_queries<K>(q);
    ptx_fence_shared();
    group_meet();
#pragma unroll
    for (int i = 0; i < K / 2; i++)
        r->out[i] = 0;
}

/* Divide the results by the sums of the weights, of which four neighbouring lanes have a part
 * each, and put them where the queries were.  A row that saw no position (a token without a
 * place) is zeros.  number: group_row's, of row lane % 16. */
template <int K, int HOW>
MPK_FN void group_put_rows(const mpk_task &t, const attend_shape &s, int number,
                           const group_rows<K> &r)
{
    const int lane = mpk_thread() % 32;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        float sum = r.sum[m];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        int head = 0;
        if (HOW & ATTEND_SINK) { /* a row that does not exist has any head's */
            const int row = __shfl_sync(0xffffffffu, number, lane / 4 + 8 * m);
            head = row > 0 ? row % s.heads : 0;
        }
        const float scale = attend_last<HOW>(t, s, head, r.zero[m], sum);
#pragma unroll
        for (int n = 0; n < K / 8; n++)
            *(rt_u32 *)(group_piece_at<K>(lane / 4 + 8 * m, n) + lane % 4 * 4) =
                ptx_pack_bf16(r.out[4 * n + 2 * m] * scale, r.out[4 * n + 2 * m + 1] * scale);
    }
}

/* Store the rows, each as a whole: words straight from the registers would be 16 bytes of eight
 * rows at a time.  The queries have been read when the warpgroup meets, so results may take
 * their place; after that a warp reads only what it has put there itself, hence __syncwarp. */
template <int K, int HOW>
MPK_FN void group_store(const mpk_task &t, const attend_shape &s, const attend_chunk &c,
                        const group_rows<K> &r)
{
    const group_piece<K> at = group_piece_of_lane<K>();
    char *to = mpk_at<char>(t, ATTEND_Y) + at.column * 16;
    int token;
    const int number = group_row(s, c, &token);
    group_meet();
    group_put_rows<K, HOW>(t, s, number, r);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < at.PASSES; i++) {
        const int row = at.row + i * at.ROWS, n = __shfl_sync(0xffffffffu, number, row);
        if (n >= 0)
            ptx_store_words(to + (rt_u64)n * (K * 2),
                            ptx_load_shared_words(group_piece_at<K>(row, at.column)));
    }
}

/* ---- 64 positions ---- */

/* The descriptor of a matrix that begins in page `page` of the ring, as `first` does in page 0. */
MPK_FN rt_u64 group_matrix(rt_u64 first, rt_u32 page)
{
    return tile_uniform(first, page * (MPK_PAGE_BYTES / 16));
}

/* Issue q k^T of 64 positions, which takes the place of score[32]: 16 dims a product, of queries 32
 * bytes on in a block of 64 dims, of keys as tile_in_w.  Sums are cleared and not overwritten,
 * since the product always adds (ptx/matrix.cuh). */
template <int K> MPK_FN void group_score(rt_u64 queries, rt_u64 keys, float *score)
{
#pragma unroll
    for (int e = 0; e < 32; e++)
        score[e] = 0;
        /* Descriptors count units of 16 bytes: 64 dims of queries are a block of GROUP_QUERY bytes,
         * 16 dims of them 32 bytes. */
#pragma unroll
    for (int k = 0; k < K / 16; k++)
        ptx_group_multiply_bf16_64(
            score, tile_further(queries, (rt_u32)(k / 4 * (GROUP_QUERY / 16) + k % 4 * 2)),
            tile_further(keys, tile_in_w(k)));
}

/* Scores that a row does not see become -inf: later positions, those before the window, and a
 * page that is not there.  Called only for pages in which some row of the warp does not see all.
 * score[i] is position base + i / 4 * 8 + 2c + i % 2 of row i / 2 % 2. */
template <int K> MPK_FN void group_mask(int base, bool there, const group_rows<K> &r, float *score)
{
    const int first = base + mpk_thread() % 4 * 2; /* the lane's first position */
    int from[2], last[2]; /* places of the page, counted from the lane's first */
#pragma unroll
    for (int m = 0; m < 2; m++) {
        from[m] = r.from[m] - first;
        last[m] = there && r.position[m] >= first ? r.position[m] - first : -1;
    }
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int place = i / 4 * 8 + i % 2, m = i / 2 % 2;
        if (place > last[m] || place < from[m])
            score[i] = -__int_as_float(0x7f800000);
    }
}

/* The largest of a lane's 16 scores of row m, which are score[4 i + 2 m] and the next: pairs first,
 * then a tree, so that few comparisons wait for one before. */
MPK_FN float group_largest(const float *score, int m)
{
    float most[8]; /* of pairs */
#pragma unroll
    for (int i = 0; i < 8; i++)
        most[i] = fmaxf(score[4 * i + 2 * m], score[4 * i + 2 * m + 1]);
#pragma unroll
    for (int d = 4; d; d /= 2)
#pragma unroll
        for (int i = 0; i < d; i++)
            most[i] = fmaxf(most[i], most[i + d]);
    return most[0];
}

/* Move the zero of a row to the row's largest score if that exceeds it by more than
 * GROUP_HEADROOM; the sum and, by `kept`, the results follow.  Whether it moves depends on the
 * row alone, so that its bits do.  All lanes: `most` becomes that of the row's four lanes. */
MPK_FN void group_move_zero(float most, float *zero, float *sum, float *kept)
{
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float to = most - *zero > GROUP_HEADROOM ? most : *zero; /* the new zero */
    *kept = ptx_exp2(*zero - to);
    *sum *= *kept;
    *zero = to;
}

/* Do zeros of this warp move?  Mostly none does, and then no lane asks another for its largest
 * score, and nothing is multiplied.  The same answer in all lanes. */
template <int K>
MPK_FN bool group_has_grown(float scale, const float *score, float *kept, group_rows<K> *r)
{
    const float first = group_largest(score, 0) * scale, second = group_largest(score, 1) * scale;
    const bool grown = first - r->zero[0] > GROUP_HEADROOM || second - r->zero[1] > GROUP_HEADROOM;
    /* The lanes of a row need not agree by shuffles: the vote is over the whole warp. */
    if (!__any_sync(0xffffffffu, grown))
        return false;
    group_move_zero(first, r->zero, r->sum, kept);
    group_move_zero(second, r->zero + 1, r->sum + 1, kept + 1);
    return true;
}

/* Scores FROM to TO - 1 become weights, 2^(score * scale - zero); scale holds log2(e).  In two
 * halves: the first under the products of values, the second when these have ended
 * (group_steps). */
template <int FROM, int TO, int K>
MPK_FN void group_weigh(float scale, float *score, group_rows<K> *r)
{
#pragma unroll
    for (int i = FROM; i < TO; i++) {
        score[i] = ptx_exp2(fmaf(score[i], scale, -r->zero[i / 2 % 2]));
        r->sum[i / 2 % 2] += score[i];
    }
}

/* Results follow a zero that has moved: out[i] belongs to row i / 2 % 2.  Only when no product adds
 * to out. */
template <int K> MPK_FN void group_keep(const float *kept, float *out)
{
#pragma unroll
    for (int i = 0; i < K / 2; i++)
        out[i] *= kept[i / 2 % 2];
}

/* Weights become the operand p of p v: p[k] is the left operand for positions 16 k ..., words 0 and
 * 2 of row g, 1 and 3 of row g + 8.  Of 16 positions a lane c has 2c, 2c + 1, 2c + 8, 2c + 9, but a
 * block of values lies in pieces in the order 0, 2, 1, 3 (tile/kv.cuh), so the operand's columns
 * are taken in that order too: neighbouring lanes exchange one word of each row. */
MPK_FN void group_pack(const float *weight, rt_u32 (*p)[4])
{
    const bool odd = mpk_thread() % 2;
#pragma unroll
    for (int i = 0; i < ATTEND_PAGE / 8; i++, weight += i % 2 ? 2 : 6) {
        const rt_u32 low = ptx_pack_bf16(weight[0], weight[1]),
                     high = ptx_pack_bf16(weight[4], weight[5]),
                     other = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
        p[i / 2][i % 2] = odd ? other : low;
        p[i / 2][i % 2 + 2] = odd ? high : other;
    }
}

/* Issue p v, which is added to the results: 16 positions a product, whose blocks are K / 8 x
 * 256 bytes further on. */
template <int K> MPK_FN void group_add(rt_u64 values, const rt_u32 (*p)[4], float *out)
{
#pragma unroll
    for (int k = 0; k < ATTEND_PAGE / 16; k++) {
        const rt_u64 b = tile_further(values, (rt_u32)(k * (K / 8) * 16));
        if (K == 128)
            ptx_group_multiply_own_128(out, p[k], b);
        else
            ptx_group_multiply_own_64(out, p[k], b);
    }
}

/* ---- a chunk ---- */

/* Where a warp stands in the ring and what it holds of it.  Each warp takes and releases for
 * itself; those of a warpgroup do not meet for it.  A copy of the task's ring, in registers, put
 * back at the end. */
template <int K> struct group_place {
    mpk_ring ring;
    rt_u32 keys, values; /* pages of the ring that it has taken; of one number where N is 1 */
    bool there;          /* a page of the cache lies there */
};

/* Keys have been read.  Where values share their page it goes back with these; else now, so that
 * the loader may fill it while softmax runs. */
template <int K> MPK_FN void group_release_keys(rt_u32 keys)
{
    if (group_pages<K>::N == 2)
        ring_release(keys);
}

/* This warpgroup: zeros in place of values that are not there.  Weights of 0 do not suffice: 0
 * times what happens to lie there may be NaN. */
template <int K> MPK_FN void group_clear_values(rt_u32 page)
{
    char *s_values =
        mpk_s + page * MPK_PAGE_BYTES + (group_pages<K>::N == 2 ? 0 : group_pages<K>::BYTES);
    for (int i = mpk_thread() % 128; i < group_pages<K>::BYTES / 16; i += 128)
        ((uint4 *)s_values)[i] = make_uint4(0, 0, 0, 0);
    ptx_fence_shared();
    group_meet();
}

/* Are the next keys and values there?  Does not wait. */
template <int K> MPK_FN bool group_look(const group_place<K> &p)
{
    mpk_ring next = p.ring;
    if (group_pages<K>::N == 2)
        ring_next(&next);
    return ptx_barrier_look(&mpk_w.full[next.first + next.at], next.parity) != 0;
}

/* Take the next keys and values, waited for by the barrier that tells of both, unless they have
 * been seen: in one page of the ring, or in two.  The note must be read before any lane releases
 * the page, hence the meeting of the warp.  Values that the cache does not have are cleared; both
 * warpgroups write the same zeros, so they need not agree. */
template <int K> MPK_FN void group_take(group_place<K> *p, bool seen)
{
    p->keys = p->ring.first + p->ring.at;
    if (group_pages<K>::N == 2)
        ring_next(&p->ring);
    p->values = p->ring.first + p->ring.at;
    if (!seen)
        mpk_barrier_wait(&mpk_w.full[p->values], p->ring.parity);
    ring_next(&p->ring);
    p->there = mpk_w.note[p->values];
    if (!p->there)
        group_clear_values<K>(p->values);
    __syncwarp();
}

/* Descriptors of keys and values as they begin in page 0 of the ring, and of the rows' queries. */
struct group_matrices {
    rt_u64 queries, keys, values;
};
/* Descriptors of the first page's matrices, from which those of other pages follow by adding; if
 * the ring holds only two pages for a chunk, the values' pages come first. */
template <int K> MPK_FN group_matrices group_matrices_of(void)
{
    const char *s_values = mpk_s + (group_pages<K>::N == 2 ? 0 : group_pages<K>::BYTES);
    return {ptx_matrix_of_rows(group_queries<K>()), ptx_matrix(mpk_s, K / 32 * 512),
            ptx_matrix_of_values(s_values)};
}

/* What scores are multiplied by as they become weights: under a cap they have been before. */
template <int HOW> MPK_FN float group_scale(const attend_factor &f)
{
    return HOW & ATTEND_CAP ? 1 : f.scale;
}

/* Mask the scores of a page and make weights of the first half; true: the zero of some row has
 * moved, by kept[].  Products of values may be in flight, so results are not touched here. */
template <int K, int HOW>
MPK_FN bool group_soften(int base, bool there, const attend_factor &f, const attend_sight &sight,
                         float *score, float *kept, group_rows<K> *r)
{
    const float scale = group_scale<HOW>(f);
    if (HOW & ATTEND_CAP)
#pragma unroll
        for (int i = 0; i < 32; i++)
            score[i] = attend_score_of<HOW>(f, score[i]);
    if (!there || base < sight.from || base + ATTEND_PAGE - 1 > sight.last)
        group_mask<K>(base, there, *r, score);
    const bool grown = group_has_grown<K>(scale, score, kept, r);
    group_weigh<0, 16>(scale, score, r);
    return grown;
}

/* The other half, when no product is in flight: results follow the zeros, weights become operand
 * p. */
template <int K>
MPK_FN void group_finish(bool grown, float scale, float *score, const float *kept, rt_u32 (*p)[4],
                         group_rows<K> *r)
{
    if (grown)
        group_keep<K>(kept, r->out);
    group_weigh<16, 32>(scale, score, r);
    group_pack(score, p);
}

/* All pages, at least one.  A warpgroup gives the products of a page's keys and then those of the
 * values of the page before; its softmax runs under the latter, and under all of the other
 * warpgroup's, which goes through the same pages at its own pace.
 *
 * All products are waited for before results are multiplied, which ptxas wants, and before the
 * weights that they read give way to new ones: under half of the softmax they come to their end.
 * The next page is taken before that wait, since ptxas moves a wait up, but over no loop; whether
 * it is there is asked between the products, because an answer that is waited for takes as long as
 * a tenth of the page's work.  A ring of four pages has no room for it then. */
template <int K, int HOW>
MPK_FN void group_steps(const attend_chunk &c, const attend_factor &f, group_place<K> *at,
                        group_rows<K> *r)
{
    const float scale = group_scale<HOW>(f);
    const attend_sight sight = attend_sight_of(r->position, r->from);
    const group_matrices first = group_matrices_of<K>();
    /* Taking the next page early means to hold two pages' values and the keys of one at once. */
    const bool early = at->ring.n > 2 * group_pages<K>::N;
    float score[32], kept[2];      /* of 64 positions; by what results are multiplied */
    rt_u32 p[ATTEND_PAGE / 16][4]; /* weights, the operand of p v */
    group_take<K>(at, false);
    rt_u32 values = at->values;
    ptx_group_begin();
    group_score<K>(group_matrix(first.queries, 0), group_matrix(first.keys, at->keys), score);
    ptx_group_commit();
    /* The first page has no values before it, so its products stand alone. */
    ptx_group_wait<0>();
    group_release_keys<K>(at->keys);
    int base = c.step * ATTEND_PAGE; /* the page's first position */
    bool grown = group_soften<K, HOW>(base, at->there, f, sight, score, kept, r);
    if (early && c.n_steps > 1)
        group_take<K>(at, false);
    group_finish<K>(grown, scale, score, kept, p, r);
#pragma unroll 1
    for (int left = c.n_steps - 1; left; left--) {
        const rt_u32 before = values; /* of the page before */
        const rt_u64 matrix = group_matrix(first.values, before);
        base += ATTEND_PAGE;
        if (!early)
            group_take<K>(at, false);
        values = at->values;
        const rt_u64 queries = group_matrix(first.queries, 0),
                     keys = group_matrix(first.keys, at->keys);
        ptx_group_begin();
        group_score<K>(queries, keys, score);
        ptx_group_commit();
        const bool seen = group_look<K>(*at); /* read after these products are given */
        group_add<K>(matrix, p, r->out);
        ptx_group_commit();
        /* scores are there; values of the page before may still be multiplied */
        ptx_group_wait<1>();
        group_release_keys<K>(at->keys);
        grown = group_soften<K, HOW>(base, at->there, f, sight, score, kept, r);
        if (early && left > 1)
            group_take<K>(at, seen);
        ptx_group_wait<0>();
        /* its products have ended: the wait above was for all */
        ring_release(before);
        group_finish<K>(grown, scale, score, kept, p, r);
    }
    ptx_group_begin();
    group_add<K>(group_matrix(first.values, values), p, r->out);
    ptx_group_commit();
    ptx_group_wait<0>();
    ring_release(values);
}

/* ---- the body ---- */

/* All body threads.  Runs of tokens that stand alone and chunks of neighbours alternate as they
 * come in the task.  The place in the ring is kept in registers and put back at the end, for the
 * next task. */
template <int K, int HOW = 0> MPK_FN void attention_group(const mpk_task &t, const attend_shape &s)
{
    const int end = (int)t.hi0;
    group_place<K> at; /* in the ring */
    at.ring = *t.ring;
    if (MPK_REGIMES > 1) { /* no JIT tasks, one ring: constants take no registers */
        at.ring.first = 0;
        at.ring.n = MPK_PAGES;
    }
    for (int first = (int)t.e->lo[0]; first < end;) {
        const int alone = group_alone(t, s, K, first, end);
        if (alone) {
            const int kv_head = (int)t.e->lo[1] / (s.heads / s.kv_heads * K);
            mpk_sync(); /* queries give way to parts */
            lone_run<K, HOW>(t, s, first, alone, kv_head,
                             (int)t.e->hi[1] / (s.heads / s.kv_heads * K) - kv_head);
            mpk_sync();
            first += alone;
            continue;
        }
        group_walk w = group_begin(t, s, K, first, end);
        while (group_next(t, s, &w)) {
            group_rows<K> r;
            group_begin_rows<K>(t, s, &w.c, &r);
            if (w.c.n_steps)
                group_steps<K, HOW>(w.c, attend_factor_of<HOW>(s), &at, &r);
            group_store<K, HOW>(t, s, w.c, r);
        }
        first = w.end;
    }
    *t.ring = at.ring;
}

#endif

#endif
