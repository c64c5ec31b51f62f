/* attention_group.cuh - attention of many tokens over the paged bf16 cache (paper §6.1) by
 * products of warpgroups: steps of prompts.
 *
 * The operator attention.  Chunks are those of attention_tile.cuh: neighbours of one slot with
 * their query heads that share a KV head, up to 128 rows, 64 for each warpgroup; or up to 64 rows
 * and half of the columns for each, if heads have 256 (group_areas).  The rows'
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
 * Pages come through the page ring (attention_group_load.cuh).  Called by the generated switch over
 * bodies for many tokens; the worker waits for the event and counts the task.  Cost of 128 rows and
 * 64 positions: 2 x K / 16 wgmma of 64 x 64 x 16 and 2 x 4 of 64 x K x 16.  With K 256 that of 64
 * rows is 2 x 16 of 64 x 64 x 16 and 2 x 4 of 64 x 128 x 16.
 */
#ifndef TASK_ATTENTION_GROUP_CUH
#define TASK_ATTENTION_GROUP_CUH

#include "task/attention_group_load.cuh"

#if MPK_WGMMA

enum { GROUP_ROWS = 64 };

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
    float out[group_areas<K>::COLUMNS / 2]; /* as ptx_group_multiply leaves it */
};

/* Queries of a warpgroup's rows in scratch: for each 64 dims a block of 64 rows x 128 bytes. */
enum { GROUP_QUERY = GROUP_ROWS * 64 * 2 };
/* Where this warpgroup's queries lie in scratch: K / 64 matrices of 64 rows each. */
template <int K> MPK_FN char *group_queries(void)
{
    const int own = group_areas<K>::N == 1 ? mpk_thread() / 128 : 0; /* or both warpgroups' */
    return mpk_s + MPK_PAGES * MPK_PAGE_BYTES + own * (K / 64 * GROUP_QUERY);
}
/* Which columns are this warpgroup's, of group_areas. */
template <int K> MPK_FN int group_area(void)
{
    return group_areas<K>::N > 1 ? mpk_thread() / 128 : 0;
}

/* The four warps of this warpgroup meet; barriers 0 and 1 belong to the task.  Warpgroups meet each
 * other nowhere in a chunk, so that one's softmax runs beside the other's products. */
MPK_FN void group_meet(void)
{
    ptx_meet(2 + mpk_thread() / 128, 128);
}
/* All warps that have the rows of this one: where a chunk begins and where it ends. */
template <int K> MPK_FN void group_meet_rows(void)
{
    if (group_areas<K>::N > 1)
        mpk_sync();
    else
        group_meet();
}

/* Row lane % 16 of this warp: its token, and its number in q and y; -1: there is none. A lane finds
 * one row and gets the others by shuffles, since a division takes some thirty instructions. */
template <int K> MPK_FN int group_row(const attend_shape &s, const attend_chunk &c, int *token)
{
    int head;
    const int warp = group_areas<K>::N > 1 ? mpk_thread() / 32 % 4 : mpk_thread() / 32;
    const bool there = attend_row(c, warp * 16 + mpk_thread() % 16, token, &head);
    return there ? *token * s.heads + head : -1;
}

/* How a warp moves its 16 rows, of all dims or those of its area, in pieces of 16 bytes: in a pass
 * the lanes have whole rows next to each other, so that loads and stores of global memory are of
 * whole lines. */
template <int K> struct group_piece {
    enum {
        OF_ROW = group_areas<K>::COLUMNS / 8, /* pieces */
        PASSES = OF_ROW / 2,
        ROWS = 32 / OF_ROW, /* of a pass */
    };
    int row, column; /* of the first pass; a piece is 8 columns */
};
/* The lane's row and column in the first pass; each pass is group_piece::ROWS rows on. */
template <int K> MPK_FN group_piece<K> group_piece_of_lane(void)
{
    const int lane = mpk_thread() % 32;
    typedef group_piece<K> piece;
    return {lane / piece::OF_ROW, lane % piece::OF_ROW + group_area<K>() * piece::OF_ROW};
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
    const int number = group_row<K>(s, *c, &token);
    mpk_words q[group_piece<K>::PASSES]; /* in flight while pages are found */
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
    group_meet_rows<K>(); /* no warp still reads the rows before */
    group_put_queries<K>(q);
    ptx_fence_shared();
    group_meet_rows<K>();
#pragma unroll
    for (int i = 0; i < group_areas<K>::COLUMNS / 2; i++)
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
        for (int n = 0; n < group_piece<K>::OF_ROW; n++)
            *(rt_u32 *)(group_piece_at<K>(lane / 4 + 8 * m,
                                          group_area<K>() * group_piece<K>::OF_ROW + n) +
                        lane % 4 * 4) =
                ptx_pack_bf16(r.out[4 * n + 2 * m] * scale, r.out[4 * n + 2 * m + 1] * scale);
    }
}

/* Store the rows, each as a whole: words straight from the registers would be 16 bytes of eight
 * rows at a time.  The queries have been read when all who have them meet, so results may take
 * their place; after that a warp reads only what it has put there itself, hence __syncwarp. */
template <int K, int HOW>
MPK_FN void group_store(const mpk_task &t, const attend_shape &s, const attend_chunk &c,
                        const group_rows<K> &r)
{
    const group_piece<K> at = group_piece_of_lane<K>();
    char *to = mpk_at<char>(t, ATTEND_Y) + at.column * 16;
    int token;
    const int number = group_row<K>(s, c, &token);
    group_meet_rows<K>();
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
    for (int i = 0; i < group_areas<K>::COLUMNS / 2; i++)
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
        if (group_areas<K>::COLUMNS == 128)
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

/* Keys, or values, have been read. */
template <int K> MPK_FN void group_release(rt_u32 page)
{
    ring_release(page);
    if (group_pages<K>::EACH == 2)
        ring_release(page + 1);
}
/* Keys have been read.  Where values share their page it goes back with these; else now, so that
 * the loader may fill it while softmax runs. */
template <int K> MPK_FN void group_release_keys(rt_u32 keys)
{
    if (group_pages<K>::N > 1)
        group_release<K>(keys);
}

/* This warpgroup: zeros in place of values that are not there.  Weights of 0 do not suffice: 0
 * times what happens to lie there may be NaN. */
template <int K> MPK_FN void group_clear_values(rt_u32 page)
{
    char *s_values =
        mpk_s + page * MPK_PAGE_BYTES + (group_pages<K>::N > 1 ? 0 : group_pages<K>::BYTES);
    for (int i = mpk_thread() % 128; i < group_pages<K>::BYTES / 16; i += 128)
        ((uint4 *)s_values)[i] = make_uint4(0, 0, 0, 0);
    ptx_fence_shared();
    group_meet();
}

/* Are the next keys and values there, or where values have a barrier of their own the keys?  Does
 * not wait. */
template <int K> MPK_FN bool group_look(const group_place<K> &p)
{
    mpk_ring next = p.ring;
    if (group_pages<K>::N == 2)
        ring_next(&next);
    return ptx_barrier_look(&mpk_w.full[next.first + next.at], next.parity) != 0;
}

/* Take the next keys, of two pages, and step over the values after them, which are waited for when
 * they are multiplied. */
template <int K> MPK_FN void group_take_keys(group_place<K> *p, bool seen)
{
    p->keys = p->ring.first + p->ring.at;
    if (!seen)
        mpk_barrier_wait(&mpk_w.full[p->keys], p->ring.parity);
    p->there = mpk_w.note[p->keys];
    ring_skip_pair(&p->ring);
    p->values = p->ring.first + p->ring.at;
    ring_skip_pair(&p->ring);
    __syncwarp(); /* the note is read before any lane releases the page */
}
/* Wait for values that have a barrier of their own: the last that p has stepped over, or those of
 * the page before.  around: the ring has begun anew between them and the last. */
template <int K> MPK_FN void group_take_values(const group_place<K> &p, rt_u32 values, bool around)
{
    if (group_pages<K>::EACH == 1)
        return;
    const bool ended = p.ring.at == 0; /* they were the last of the ring */
    mpk_barrier_wait(&mpk_w.full[values], p.ring.parity ^ (rt_u32)ended ^ (rt_u32)around);
    if (!mpk_w.note[values])
        group_clear_values<K>(values);
    __syncwarp();
}

/* Take the next keys and values, waited for by the barrier that tells of both, unless they have
 * been seen: in one page of the ring, or in two.  The note must be read before any lane releases
 * the page, hence the meeting of the warp.  Values that the cache does not have are cleared; both
 * warpgroups write the same zeros, so they need not agree. */
template <int K> MPK_FN void group_take(group_place<K> *p, bool seen)
{
    if (group_pages<K>::EACH == 2) {
        group_take_keys<K>(p, seen);
        return;
    }
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
    const char *s_values = mpk_s + (group_pages<K>::N > 1 ? 0 : group_pages<K>::BYTES) +
                           group_area<K>() * (group_areas<K>::COLUMNS / 8 * 256);
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
 * a tenth of the page's work.  A ring of four pages has no room for it then.  With K 256 keys alone
 * are taken then, for which there is room from eight pages on. */
template <int K, int HOW>
MPK_FN void group_steps(const attend_chunk &c, const attend_factor &f, group_place<K> *at,
                        group_rows<K> *r)
{
    const float scale = group_scale<HOW>(f);
    const attend_sight sight = attend_sight_of(r->position, r->from);
    const group_matrices first = group_matrices_of<K>();
    /* Taking the next page early means to hold two pages' values and the keys of one at once. */
    const bool early =
        group_pages<K>::EACH == 2 ? at->ring.n >= 8 : at->ring.n > 2 * group_pages<K>::N;
    if (group_pages<K>::EACH == 2 && at->ring.at % 2)
        ring_drop(&at->ring, 1);
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
        group_take_values<K>(*at, before, at->values <= before);
        if (group_pages<K>::EACH == 2)
            ptx_group_begin(); /* that wait is a loop, over which products do not go on */
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
        group_release<K>(before);
        group_finish<K>(grown, scale, score, kept, p, r);
    }
    group_take_values<K>(*at, values, false);
    ptx_group_begin();
    group_add<K>(group_matrix(first.values, values), p, r->out);
    ptx_group_commit();
    ptx_group_wait<0>();
    group_release<K>(values);
}

/* ---- the body ---- */

/* All body threads.  Runs of tokens that stand alone and chunks of neighbours alternate as they
 * come in the task.  The place in the ring is kept in registers and put back at the end, for the
 * next task. */
template <int K, int HOW = 0> MPK_FN void attention_group(const mpk_task &t, const attend_shape &s)
{
    static_assert(group_pages<K>::EACH == 1 || (MPK_PAGES % 2 == 0 && MPK_LEAST_PAGES % 2 == 0),
                  "pages in pairs need an even ring");
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
            lone_run<attend_has_lone(K) ? K : 64, HOW>(
                t, s, first, alone, kv_head,
                (int)t.e->hi[1] / (s.heads / s.kv_heads * K) - kv_head);
            mpk_sync();
            first += alone;
            continue;
        }
        group_walk w = group_begin(t, s, K, first, end);
        while (group_next<K>(t, s, &w)) {
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
