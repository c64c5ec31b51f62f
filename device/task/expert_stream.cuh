/* expert_stream.cuh - products of tokens with the weights of their experts, which stream through
 * the page ring.
 *
 * The operator expert_linear, as the first product of a layer (gated, a row for each pair of a
 * token and an expert), as its last (the pairs of a token times their scales, summed, and the
 * residual), or with a row for each pair and no gate, as products of heads are (DeepSeek).  A task
 * of the last one is some columns of the result for all pairs of its tokens, so it has the same
 * share of every active expert.  In the first one, where tokens have an even number of experts,
 * chunks take two rounds or four (OP_SHARES): a task has some groups of every other chunk, or of
 * every fourth.  So its share may be three groups of two chunks, where columns alone leave one or
 * two of each.
 *
 * Idea: the pairs are sorted by expert, and cut into chunks of one expert and at most 8 pairs
 * (WIDE: 16), which are the rows of an operand as in linear_stream.cuh.  A chunk is worked a page
 * of 1024 columns at a time, or two pages, which may belong to two chunks, so that the products of
 * one do not wait for those of the other; the next pieces of x are in flight meanwhile.  Chunks
 * of a tile end together, while the products of the next tile begin.  The order of sums is that of
 * columns, warps and experts, so a token's bits do not depend on what else is in the step.
 *
 * Where a row of w has few columns, two groups of 8 rows stand side by side in a page, a strip, and
 * four warps have the columns of each (sides): as many pages as for rows of twice the columns, half
 * as many of each.
 *
 * The loader needs to know how many pairs each expert has, and nothing else: it waits for the ids,
 * not for x, so that the weights of the last product arrive while the first one is made
 * (expert_stream_load.cuh).
 *
 * Cost: an active expert's bytes once for each 8 (16) of its pairs; x of a chunk once for each
 * block of columns.
 */
#ifndef TASK_EXPERT_STREAM_CUH
#define TASK_EXPERT_STREAM_CUH

#include "task/activate.cuh"
#include "task/expert_blocks.cuh"

/* ---- products ---- */

/* Multiply one piece with N groups, whose pages are next in the ring.  Add the sums to those of the
 * chunk's earlier pages, in slots `slot` to slot + N - 1: of each warp its own columns' sums, so no
 * warp waits for another.  blocks: of 32 columns of a warp in the page, 4 but for the last. */
template <int N, int WIDE>
MPK_FN void expert_multiply(mpk_ring *ring, const stream_x<1, WIDE> &x, char *s_parts, int slot,
                            int page, int blocks, int thread)
{
    const mpk_words(*of[N])[1 + WIDE]; /* the same piece of x for each group */
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

/* A piece of a tile: where its sums begin, and its page.  Pieces come chunk by chunk, in a chunk
 * page by page, as the loader has them (expert_load_chunk). */
struct expert_place_of {
    int slot, page; /* of the tile's sums; of the chunk */
};
MPK_FN expert_place_of expert_next(const expert_shape &s, const expert_place_of &at, int groups)
{
    if (at.page + 1 == s.of.pages) /* the last of its chunk */
        return {at.slot + groups, 0};
    return {at.slot, at.page + 1};
}

/* The piece at `at` and the next one, of two strips each: their products do not wait for one
 * another.  Four pages of the ring: both strips of the first piece, then both of the second. */
template <int KIND>
MPK_FN void expert_two_pieces(const mpk_task &t, const expert_shape &s, expert_work<0> *w,
                              mpk_ring *ring, char *s_parts, const expert_place_of &at,
                              expert_ahead<0> *a, expert_ahead<0> *b)
{
    const expert_place_of further = expert_next(s, at, 2);                 /* the second piece */
    const int thread = mpk_thread(), slot = at.slot, other = further.slot; /* of the sums */
    /* Wait, take copies, and request the pieces after the next before the products begin. */
    expert_await<0>(t, s, *w, at.page, a);
    expert_await<0>(t, s, *w, further.page, b);
    stream_x<1, 0> x = a->x, z = b->x; /* copies: a and b take the next pieces */
    stream_order_x<1, 0>(1, x);
    stream_order_x<1, 0>(1, z);
    expert_ask<0, KIND>(t, s, w, a);
    expert_ask<0, KIND>(t, s, w, b);
    const mpk_words(*const of[4])[1] = {x.at[0], x.at[0], z.at[0], z.at[0]};
    float sums[4][4]; /* of the strips of each piece */
    stream_pages<4, 0>(ring, of, s.of.last, thread, sums);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float *before = stream_sums<0>(s_parts, slot + i, thread);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            sums[i][e] = at.page ? before[e] + sums[i][e] : sums[i][e];
            sums[2 + i][e] = other == slot ? sums[i][e] + sums[2 + i][e] : sums[2 + i][e];
        }
        /* of two pages of one chunk the sums are one; of two chunks each has its own */
        if (other != slot)
            stream_put<0>(s_parts, slot + i, thread, sums[i]);
        stream_put<0>(s_parts, other + i, thread, sums[2 + i]);
    }
}

/* Wait for two pieces of one page each: one look at both, if they are there. */
MPK_FN void expert_await_two(const mpk_task &t, const expert_shape &s, const expert_work<0> &w,
                             expert_ahead<0> *a, expert_ahead<0> *b)
{
    rt_u32 most = 0; /* of all words: RT_EMPTY if any is */
#pragma unroll
    for (int j = 0; j < 4; j++)
        most = mpk_larger(most, mpk_larger(mpk_largest_word(a->x.at[0][j][0]),
                                           mpk_largest_word(b->x.at[0][j][0])));
    if (__any_sync(0xffffffffu, most == RT_EMPTY)) {
        expert_await<0>(t, s, w, 0, a);
        expert_await<0>(t, s, w, 0, b);
    }
}

/* Issue the loads of a piece of one page, whose row lies at `row` (expert_listed); all of a->x is
 * set. */
MPK_FN void expert_ask_row(const expert_work<0> &w, rt_u32 row, expert_ahead<0> *a)
{
    stream_from<0> from = w.from;
    a->at[0] = from.at[0] = row;
    stream_clear_x<1, 0>(a->x);
    stream_ask_page<0, false, false>(from, 0, true, a->x.at[0]);
}

/* Multiply the pieces of n chunks with one strip of two groups, two at a time; one may be left.  A
 * warp takes some five cycles for each of its instructions, so there are few: what a chunk needs is
 * in a list (expert_rows), and is read while the products of the chunks before are computed. */
MPK_FN void expert_strips(const mpk_task &t, const expert_shape &s, expert_work<0> *w,
                          mpk_ring *ring, char *s_parts, int n, expert_ahead<0> *even,
                          expert_ahead<0> *odd)
{
    const int thread = mpk_thread(), last = s.of.last;
    const bool carried = mpk_carries(t, s.of.x);
    const rt_u32 mine = expert_lane_bytes(thread % (MPK_THREADS / 2));
    const rt_u32 *rows = expert_lane_rows(t, s) + (w->chunk + 2) * EXPERT_FEW_ROWS;
    rt_u32 after = expert_listed(rows[-EXPERT_FEW_ROWS], mine); /* of the piece after w->chunk's */
#pragma unroll 1
    for (int i = 0; i + 1 < n; i += 2) {
        if (carried)
            expert_await_two(t, s, *w, even, odd);
        stream_x<1, 0> x = even->x, z = odd->x; /* copies: these take the next pieces */
        stream_order_x<1, 0>(1, x);
        stream_order_x<1, 0>(1, z);
        expert_ask_row(*w, w->from.at[0], even);
        expert_ask_row(*w, after, odd);
        const rt_u32 next = rows[0], further = rows[EXPERT_FEW_ROWS];
        rows += 2 * EXPERT_FEW_ROWS;
        const mpk_words(*const of[2])[1] = {x.at[0], z.at[0]};
        float sums[2][4];
        stream_pages<2, 0>(ring, of, last, thread, sums);
        w->from.at[0] = expert_listed(next, mine);
        after = expert_listed(further, mine);
        stream_put<0>(s_parts, i, thread, sums[0]);
        stream_put<0>(s_parts, i + 1, thread, sums[1]);
    }
    w->chunk += n / 2 * 2;
}

/* Are pieces of n strips worked by twos?  Not where the last page of a chunk is shorter than those
 * before, in a ring of fewer than four pages, or where lanes copy them (more values went to the
 * stack there). */
MPK_FN bool expert_pairs_up(const expert_shape &s, int n, const mpk_ring &ring)
{
    return MPK_BULK && n == 2 && (s.of.pages == 1 || s.of.last == 4) && ring.n >= 4;
}

/* Multiply a piece that has been requested with all strips of the block; sums from `slot` on. */
template <int WIDE, int KIND>
MPK_FN void expert_piece(const mpk_task &t, const expert_shape &s, expert_work<WIDE> *w,
                         mpk_ring *ring, char *s_parts, int slot, int page, expert_ahead<WIDE> *a)
{
    const int thread = mpk_thread(), blocks = page + 1 == s.of.pages ? s.of.last : 4;
    expert_await<WIDE>(t, s, *w, page, a);
    stream_x<1, WIDE> x = a->x; /* a copy: a takes the next piece */
    stream_order_x<1, WIDE>(1, x);
    expert_ask<WIDE, KIND>(t, s, w, a);
    int i = 0;                                /* strip of the block */
    if (!WIDE && w->n == 3 && ring->n >= 3) { /* nearly always, where tasks have three */
        expert_multiply<3, WIDE>(ring, x, s_parts, slot, page, blocks, thread);
        return;
    }
    /* x in registers serves all strips of the block, so it is loaded once for up to 8 of them. */
#pragma unroll 1
    for (; i + 1 < w->n; i += 2)
        expert_multiply<2, WIDE>(ring, x, s_parts, slot + i, page, blocks, thread);
    if (i < w->n)
        expert_multiply<1, WIDE>(ring, x, s_parts, slot + i, page, blocks, thread);
}

/* ---- ends ----
 *
 * KIND: experts have biases, or a gate with a limit (EXPERT_KIND_ENDS); a pair's products are its
 * row of y as they are, neither gated nor summed (EXPERT_KIND_ROWS); else that code is not
 * there. */

/* The biases of a group, for a lane: of gate and up of one column, or of two columns; zeros where
 * there are none.  All pairs of a chunk have one expert, so all rows have the same. */
struct expert_biases {
    float first, second;
};

/* Bias i, 0 of w0 and 1 of w1, of column `column` of expert e; bf16, or f32 where bias_type is not
 * 0. */
MPK_FN float expert_bias_at(const mpk_task &t, const expert_shape &s, int i, rt_u32 e, int column)
{
    const rt_u32 at = e * (rt_u32)s.of.rows + (rt_u32)column;
    if (s.of.bias[i] < 0)
        return 0;
    if (s.of.bias_type[i])
        return mpk_at<const float>(t, s.of.bias[i])[at];
    return ptx_low_bf16(mpk_at<const rt_u16>(t, s.of.bias[i])[at]);
}

/* Biases of the group that this warp ends, of a tile of n chunks from `chunk` on: requested before
 * the tile's products and used after them, so that their latency is hidden.  Warp i ends group i %
 * groups of chunk i / groups, as expert_end_tile has it; a warp without a group asks for
 * nothing. */
template <int WIDE>
MPK_FN expert_biases expert_ask_biases(const mpk_task &t, const expert_shape &s,
                                       const expert_work<WIDE> &w, int chunk, int n)
{
    const int warp = mpk_thread() / 32, c = mpk_thread() % 4, groups = expert_groups_in(s, w),
              group = expert_first_group(s, w) + warp % groups;
    if (warp >= n * groups)
        return {0, 0};
    const rt_u32 place = expert_chunk_in(t, s, w, chunk + warp / groups) & 0xffff,
                 e = expert_at<const rt_u16>(t, s.at.ids)[expert_pair(t, s, place)];
    if (s.scale < 0)
        return {expert_bias_at(t, s, 0, e, group * 4 + c),
                expert_bias_at(t, s, 1, e, group * 4 + c)};
    return {expert_bias_at(t, s, 0, e, group * 8 + 2 * c),
            expert_bias_at(t, s, 0, e, group * 8 + 2 * c + 1)};
}

/* Gate and up of a column become the column.  s: that of an expert_ends_shape.  The branch is on
 * the shape, the same in all threads. */
MPK_FN float expert_activate(const expert_shape &s, float gate, float up)
{
    if (s.of.glu == GLU_SWIGLU_OAI)
        return activate_limited(gate, up, ((const expert_ends_shape &)s).limit);
    return stream_activate(s.of.glu, gate) * up;
}

/* Store two neighbouring columns of a row of y; of sums over pairs, those that lie in the box. */
MPK_FN void expert_store(const mpk_task &t, const expert_shape &s, rt_u64 row, int column, float a,
                         float b)
{
    const rt_u32 axis = t.e->rank - 1; /* of the columns */
    int lo = (int)t.e->lo[axis], hi = (int)t.e->hi[axis];
    if (s.scale < 0) { /* gated: its task has whole groups */
        lo = 0;
        hi = s.of.rows;
    }
    stream_store_two(t, mpk_at<rt_u16>(t, s.of.y) + row * s.of.rows + column, column, lo, hi, true,
                     a, b);
}

/* End group i of a chunk whose pairs are rows of y: norm, biases, gate, and a store of 4 columns.
 * total[2 m] is a gate and total[2 m + 1] what it lets through, of one column: packed rows take
 * turns (GEN_PAIRED).  Even lanes take the next lane's column too, for a store of a whole word. */
template <int WIDE, int KIND>
MPK_FN void expert_end_pairs(const mpk_task &t, const expert_shape &s, const expert_work<WIDE> &w,
                             rt_u32 chunk, int i, const float *total, const expert_biases &bias)
{
    const int thread = mpk_thread(), g = thread % 32 / 4, c = thread % 4;
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const rt_u32 row = g + 8 * m, n = chunk >> 16,
                     pair = row < n ? expert_pair(t, s, (chunk & 0xffff) + row) : 0;
        const float scale =
            s.of.norm ? expert_at<const float>(t, s.at.norms)[expert_token(s, pair)] : 1;
        float a;
        if (KIND == EXPERT_KIND_ENDS)
            a = expert_activate(s, total[2 * m] * scale + bias.first,
                                total[2 * m + 1] * scale + bias.second);
        else
            a = stream_activate(s.of.glu, total[2 * m] * scale) * (total[2 * m + 1] * scale);
        const float b = __shfl_down_sync(0xffffffffu, a, 1);
        if (row < n && c % 2 == 0)
            expert_store(t, s, (rt_u64)w.first * s.of_token + pair, (w.group + i) * 4 + c, a, b);
    }
}

/* The same without a gate or a norm: 8 columns. */
template <int WIDE>
MPK_FN void expert_end_rows(const mpk_task &t, const expert_shape &s, const expert_work<WIDE> &w,
                            rt_u32 chunk, int i, const float *total)
{
    const int thread = mpk_thread(), g = thread % 32 / 4,
              column = (expert_first_group(s, w) + i) * 8 + thread % 4 * 2;
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const rt_u32 row = g + 8 * m;
        if (row < chunk >> 16)
            stream_store_two(
                t,
                mpk_at<rt_u16>(t, s.of.y) +
                    ((rt_u64)w.first * s.of_token + expert_pair(t, s, (chunk & 0xffff) + row)) *
                        s.of.rows +
                    column,
                column, (int)t.e->lo[2], (int)t.e->hi[2], true, total[2 * m], total[2 * m + 1]);
    }
}

/* End group i of a chunk whose pairs are summed: its sums times the pairs' weights go to s_totals,
 * for expert_add_totals: [place of the tile][group][8 columns].  base: the tile's first place.  A
 * lane has two columns of a pair, so no other lane writes there. */
template <int WIDE, int KIND>
MPK_FN void expert_put_totals(const mpk_task &t, const expert_shape &s, const expert_work<WIDE> &w,
                              rt_u32 chunk, int i, rt_u32 base, float *s_totals, const float *total,
                              const expert_biases &bias)
{
    const int lane = mpk_thread() % 32, g = lane / 4, c = lane % 4, groups = expert_groups_in(s, w);
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const rt_u32 row = g + 8 * m, place = (chunk & 0xffff) + row;
        if (row >= chunk >> 16) /* no pair */
            continue;
        const float weight = expert_at<const float>(t, s.at.weights)[expert_pair(t, s, place)];
        float *to = s_totals + ((place - base) * groups + i) * 8 + 2 * c;
        to[0] = weight * (KIND == EXPERT_KIND_ENDS ? total[2 * m] + bias.first : total[2 * m]);
        to[1] =
            weight * (KIND == EXPERT_KIND_ENDS ? total[2 * m + 1] + bias.second : total[2 * m + 1]);
    }
}

/* Add what a tile has stored for places first to end - 1 to the sums of their tokens.
 *
 * Of few tokens each thread has two columns of a token's sums, those that it stores in
 * expert_put_sums.  It adds the places in their order, which rises with the expert's number, so the
 * bits of a sum do not depend on how threads run; no other thread reads or writes these sums, and
 * no barrier guards them.
 */
MPK_FN void expert_add_few(const mpk_task &t, const expert_shape &s, const expert_work<0> &w,
                           rt_u32 first, rt_u32 end, const float *s_totals)
{
    const int words = expert_groups_in(s, w) * 4; /* of a token */
#pragma unroll 1
    for (int i = mpk_thread(); i < w.tokens * words; i += MPK_THREADS) {
        const rt_u32 token = (rt_u32)i / (rt_u32)words;
        const float2 *from = (const float2 *)s_totals + (rt_u32)i % (rt_u32)words;
        float2 *to = (float2 *)expert_at<float>(t, s.at.sums) + i, sum = *to;
#pragma unroll 4
        for (rt_u32 place = first; place < end; place++, from += words)
            if (expert_token(s, expert_pair(t, s, place)) == token) {
                const float2 v = *from;
                sum.x += v.x;
                sum.y += v.y;
            }
        *to = sum;
    }
}
/* Of many tokens a warp takes a group, four places at a time, eight lanes each; two places of one
 * token take turns, in their order. */
template <int WIDE>
MPK_FN void expert_add_totals(const mpk_task &t, const expert_shape &s, const expert_work<WIDE> &w,
                              rt_u32 first, rt_u32 end, const float *s_totals)
{
    const int warp = mpk_thread() / 32, lane = mpk_thread() % 32, column = lane % 8,
              groups = expert_groups_in(s, w);
    if constexpr (WIDE == 0) {
        expert_add_few(t, s, w, first, end, s_totals);
        return;
    }
#pragma unroll 1
    for (rt_u32 base = first; base < end && warp < groups; base += 4) {
        const rt_u32 place = base + lane / 8; /* four places at a time */
        const bool there = place < end;       /* lanes without a place take part in votes */
        const rt_u32 token = there ? expert_token(s, expert_pair(t, s, place)) : 0;
        const float v = there ? s_totals[((place - first) * groups + warp) * 8 + column] : 0;
        const rt_u32 same = __match_any_sync(0xffffffffu, there ? token : ~place); /* one token */
        /* how many of the four places before this one have the same token */
        const int order = __popc(same & 0x01010101u << column & ((1u << lane) - 1));
        float *to = expert_at<float>(t, s.at.sums) + (token * groups + warp) * 8 + column;
#pragma unroll 1
        for (int k = 0; __any_sync(0xffffffffu, order >= k); k++) {
            if (order == k && there)
                *to += v;
            __syncwarp();
        }
    }
}

/* Two neighbouring columns of y among those of the block's tokens. */
struct expert_two {
    rt_u32 token; /* of the step */
    int column;
};
/* Two neighbouring columns of a token's result: the unit in which sums by weight are added and
 * stored.  i: their number in the block, token by token. */
template <int WIDE>
MPK_FN expert_two expert_two_of(const expert_shape &s, const expert_work<WIDE> &w, int i)
{
    const int words = expert_groups_in(s, w) * 4; /* of a token's columns of the block */
    return {w.first + i / words, expert_first_group(s, w) * 8 + i % words * 2};
}
MPK_FN const rt_u32 *expert_residual(const mpk_task &t, const expert_shape &s, const expert_two &at)
{
    return mpk_at<const rt_u32>(t, s.of.residual) + ((rt_u64)at.token * s.of.rows + at.column) / 2;
}

/* Word i of the residual, as loaded; if it is carried, it may still be empty.  0: there is none. */
template <int WIDE>
MPK_FN rt_u32 expert_ask_residual(const mpk_task &t, const expert_shape &s,
                                  const expert_work<WIDE> &w, int i)
{
    return s.of.residual >= 0 && i < w.tokens * expert_groups_in(s, w) * 4
               ? ptx_load_word(expert_residual(t, s, expert_two_of<WIDE>(s, w, i)))
               : 0;
}

/* Store the finished sums of a block of columns, plus the residual, in y.  residual: the thread's
 * first word of it, requested ahead; the next one is requested while a word is stored. */
template <int WIDE>
MPK_FN void expert_put_sums(const mpk_task &t, const expert_shape &s, const expert_work<WIDE> &w,
                            rt_u32 residual)
{
    const float *s_sums = expert_at<const float>(t, s.at.sums); /* [token][columns of the block] */
#pragma unroll 1
    for (int i = mpk_thread(); i < w.tokens * expert_groups_in(s, w) * 4; i += MPK_THREADS) {
        const expert_two at = expert_two_of<WIDE>(s, w, i);
        if (s.of.residual >= 0 && mpk_carries(t, s.of.residual))
            residual = mpk_carried_word(expert_residual(t, s, at), residual);
        expert_store(t, s, at.token, at.column, s_sums[i * 2] + ptx_low_bf16(residual),
                     s_sums[i * 2 + 1] + ptx_high_bf16(residual));
        residual = expert_ask_residual<WIDE>(t, s, w, i + MPK_THREADS);
    }
}

/* ---- the body ---- */

/* Add the warps' sums of group i of a tile, in their order: those of all, or of one side of a
 * strip.  A warp's sums are of its own columns of the page; total[0] and [1] become rows 2 c and 2
 * c + 1 of pair g. */
template <int WIDE, int FORM>
MPK_FN void expert_total(const expert_shape &s, const char *s_parts, int i, float *total)
{
    const int lane = mpk_thread() % 32;
    if (FORM)
        blocks_total<WIDE>(s_parts, i, lane, total);
    else if (expert_has_sides(s))
        stream_total<WIDE, 4>(s_parts, i, lane, total);
    else
        stream_total<WIDE, 8>(s_parts, i, lane, total);
}

/* Chunks of a tile: their groups are ended by a warp each.  Of strips of two groups a warp ends two
 * unless it holds biases of one: the parts of a strip have room for both. */
template <int WIDE, int KIND>
MPK_FN int expert_of_tile(const expert_shape &s, const expert_work<WIDE> &w)
{
    if (expert_has_sides(s) && !WIDE && KIND != EXPERT_KIND_ENDS)
        return expert_sizes<WIDE>::SLOTS / w.n;
    return expert_sizes<WIDE>::SLOTS / expert_groups_in(s, w);
}

/* End group i of a tile of chunks from `chunk` on, whose parts are complete: one of three ends, by
 * the shape. */
template <int WIDE, int KIND, int FORM>
MPK_FN void expert_end_group(const mpk_task &t, const expert_shape &s, const expert_work<WIDE> &w,
                             int chunk, int i, int tile, const expert_biases &bias)
{
    const int groups = expert_groups_in(s, w), group = i % groups; /* of its chunk */
    const rt_u32 mine = expert_chunk_in(t, s, w, chunk + i / groups);
    float total[4]; /* of one group of one chunk */
    expert_total<WIDE, FORM>(s, expert_parts<WIDE>(t, tile), i, total);
    if (KIND == EXPERT_KIND_ROWS)
        expert_end_rows<WIDE>(t, s, w, mine, group, total);
    else if (s.scale < 0)
        expert_end_pairs<WIDE, KIND>(t, s, w, mine, group, total, bias);
    else
        expert_put_totals<WIDE, KIND>(t, s, w, mine, group,
                                      expert_chunk_in(t, s, w, chunk) & 0xffff,
                                      expert_totals(t, s, tile), total, bias);
}

/* End a tile of n chunks: each warp ends one group of one chunk, or two. */
template <int WIDE, int KIND, int FORM>
MPK_FN void expert_end_tile(const mpk_task &t, const expert_shape &s, const expert_work<WIDE> &w,
                            int chunk, int n, int tile, const expert_biases &bias)
{
    const int warp = mpk_thread() / 32, all = n * expert_groups_in(s, w);
    if (warp < all) /* else there are fewer groups than warps */
        expert_end_group<WIDE, KIND, FORM>(t, s, w, chunk, warp, tile, bias);
    if (expert_has_sides(s) && warp + MPK_WARPS < all)
        expert_end_group<WIDE, KIND, FORM>(t, s, w, chunk, warp + MPK_WARPS, tile, bias);
}

/* First place of a chunk; for the number after the last chunk's, the end.  Only of sums, which have
 * one round, so that places go on from chunk to chunk. */
template <int WIDE>
MPK_FN rt_u32 expert_place(const mpk_task &t, const expert_shape &s, const expert_work<WIDE> &w,
                           int chunk)
{
    const rt_u32 last =
        expert_chunk_in(t, s, w, chunk < w.chunks ? chunk : w.chunks - 1); /* to add to */
    return (last & 0xffff) + (chunk < w.chunks ? 0 : last >> 16);
}

/* Multiply all pieces of a tile of n chunks.  even, odd: x of the next piece and of the one after
 * it.  Which loop runs is the same in all warps: it follows from the shape, the block and the ring,
 * not from data. */
template <int KIND>
MPK_FN void expert_tile_pieces(const mpk_task &t, const expert_shape &s, expert_work<0> *w,
                               mpk_ring *ring, char *s_parts, int n, expert_ahead<0> *even,
                               expert_ahead<0> *odd)
{
    expert_place_of at = {0, 0};                        /* first slot, first page */
    int left = n * s.of.pages;                          /* pieces of the tile */
    if (MPK_BULK && expert_has_sides(s) && w->n == 1) { /* a page each */
        expert_strips(t, s, w, ring, s_parts, n, even, odd);
        at.slot = n / 2 * 2;
        left = n % 2;
    } else if (expert_pairs_up(s, w->n, *ring)) {
#pragma unroll 1
        for (; left > 1; left -= 2) {
            expert_two_pieces<KIND>(t, s, w, ring, s_parts, at, even, odd);
            at = expert_next(s, expert_next(s, at, 2), 2);
        }
    }
#pragma unroll 1
    for (; left; left--) {
        expert_piece<0, KIND>(t, s, w, ring, s_parts, at.slot, at.page, even);
        at = expert_next(s, at, w->n);
        const expert_ahead<0> next = *odd; /* they change places */
        *odd = *even;
        *even = next;
    }
}
template <int KIND>
MPK_FN void expert_tile_pieces(const mpk_task &t, const expert_shape &s, expert_work<1> *w,
                               mpk_ring *ring, char *s_parts, int n, expert_ahead<1> *even,
                               expert_ahead<1> *)
{
#pragma unroll 1
    for (int slot = 0; slot < n * w->n; slot += w->n)
#pragma unroll 1
        for (int p = 0; p < s.of.pages; p++)
            expert_piece<1, KIND>(t, s, w, ring, s_parts, slot, p, even);
}

/* All threads: compute one block of columns for all chunks of a round, a tile of them at a time.
 * The totals of tile i are added after the products of tile i + 1 and the barrier that those need
 * anyway.  Even and odd tiles have parts and totals of their own, so a tile needs no other
 * barrier. */
template <int WIDE, int KIND, int FORM>
MPK_FN void expert_block(const mpk_task &t, const expert_shape &s, expert_work<WIDE> *w,
                         mpk_ring *ring)
{
    const int groups = expert_groups_in(s, *w), at_once = expert_of_tile<WIDE, KIND>(s, *w);
    const bool sums = s.scale >= 0; /* pairs are summed */
    expert_ahead<WIDE> even, odd;   /* pieces of x in flight, taken in turn */
    int before = 0;                 /* first chunk of the tile before */
    if (sums)
    /* No barrier yet: nothing is added before that of the first tile. */
#pragma unroll 1
        for (int i = mpk_thread(); i < w->tokens * groups * 8; i += MPK_THREADS)
            expert_at<float>(t, s.at.sums)[i] = 0;
    w->chunk = w->page = 0;
    /* The first pieces are requested before anything is multiplied. */
    expert_find<WIDE, KIND>(t, s, w);
    expert_ask<WIDE, KIND>(t, s, w, &even);
    if (expert_sizes<WIDE>::DEPTH > 1 && !FORM)
        expert_ask<WIDE, KIND>(t, s, w, &odd);
#pragma unroll 1
    for (int chunk = 0, tile = 0; chunk < w->chunks; chunk += at_once, tile++) {
        const int n = w->chunks - chunk < at_once ? w->chunks - chunk : at_once; /* of the tile */
        const expert_biases bias = KIND == EXPERT_KIND_ENDS
                                       ? expert_ask_biases<WIDE>(t, s, *w, chunk, n)
                                       : expert_biases{0, 0};
        if constexpr (FORM != RT_BLOCKS_NONE)
            expert_tile_blocks<WIDE, KIND, FORM>(t, s, w, ring, expert_parts<WIDE>(t, tile), n,
                                                 &even);
        else
            expert_tile_pieces<KIND>(t, s, w, ring, expert_parts<WIDE>(t, tile), n, &even, &odd);
        /* all warps have put their parts of the tile */
        mpk_sync();
        if (sums && tile)
            expert_add_totals<WIDE>(t, s, *w, expert_place(t, s, *w, before),
                                    expert_place(t, s, *w, chunk), expert_totals(t, s, tile - 1));
        expert_end_tile<WIDE, KIND, FORM>(t, s, *w, chunk, n, tile, bias);
        before = chunk;
    }
    /* requested before the last barriers, used after them */
    const rt_u32 residual = sums ? expert_ask_residual<WIDE>(t, s, *w, mpk_thread()) : 0;
    mpk_sync();
    if (!sums)
        return;
    if (w->chunks)
        expert_add_totals<WIDE>(t, s, *w, expert_place(t, s, *w, before),
                                expert_place(t, s, *w, w->chunks),
                                expert_totals(t, s, before / at_once));
    if (WIDE) /* else a thread has added what it stores */
        mpk_sync();
    expert_put_sums<WIDE>(t, s, *w, residual);
    mpk_sync();
}

/* Copy the shape to shared memory: the first load of each word of constant memory is slow, and the
 * loop over pieces needs ten words.  Shapes of other kinds begin with an expert_shape, which is
 * what all code reads; the rest is found by a cast where KIND says that it is there. */
template <typename shape>
MPK_FN const expert_shape *expert_copy_shape(const mpk_task &t, const shape &s)
{
    rt_u32 *s_shape = expert_at<rt_u32>(t, EXPERT_SHAPE); /* after the parts */
    for (rt_u32 i = (rt_u32)mpk_thread(); i < sizeof s / 4; i += MPK_THREADS)
        s_shape[i] = ((const rt_u32 *)&s)[i];
    mpk_sync();
    return (const expert_shape *)s_shape;
}

/* The whole task, which waits for its event and triggers its own.  Loops, from the outside: ranges
 * of tokens whose pairs are sorted together, rounds of chunks, blocks of strips; the loader goes
 * the same way. */
template <int WIDE, int KIND, int FORM, typename kind>
MPK_FN void expert_work_off(const mpk_task &t, const kind &shape)
{
    mpk_ring ring = *t.ring;
    expert_work<WIDE> w; /* its progress */
    mpk_wait(t);
    const expert_shape &s = *expert_copy_shape(t, shape);
    const expert_groups g = expert_groups_of<FORM>(t.e, s);
    const int of_strip = expert_strip_groups<FORM>(s);
    stream_find_last<WIDE>(s.of, expert_thread(s), &w.from);
    if (FORM && s.of.norm)
        expert_keep_norm(t, s);
    const rt_u32 end = mpk_end(t); /* of the tokens that are alive */
#pragma unroll 1
    for (w.first = t.e->lo[0]; w.first < end; w.first += s.range) {
        w.tokens = (int)mpk_smaller(end - w.first, s.range);
        w.from.x = mpk_at<const char>(t, s.of.x) + expert_bytes_before<KIND>(s, w.first);
        if (s.of.norm)
            expert_put_norms(t, s, w.first, w.tokens);
        expert_take_pairs(t, s, w.first, w.tokens * s.of_token);
        const int chunks = expert_sort<WIDE, KIND>(t, s, w.tokens * s.of_token); /* of all rounds */
#pragma unroll 1
        for (w.round = 0; w.round < s.rounds; w.round++) {
            rt_u32 n; /* strips in the round */
            const rt_u32 group = expert_in_round(g, (rt_u32)w.round, &n);
            w.chunks = (chunks - w.round + s.rounds - 1) / s.rounds;
#pragma unroll 1
            for (rt_u32 q = 0; q < n; q += s.block) {
                w.group = (int)(group + q) * of_strip;
                w.n = (int)mpk_smaller(n - q, s.block) * of_strip;
                expert_block<WIDE, KIND, FORM>(t, s, &w, &ring);
            }
        }
        mpk_sync(); /* the next range sorts again */
    }
    *t.ring = ring;
    mpk_trigger(t);
}

/* The bodies; the type of the shape tells the kind.  FORM: that of the weights, RT_BLOCKS_*;
 * RT_BLOCKS_NONE: 16 bits. */
template <int WIDE, int FORM = RT_BLOCKS_NONE>
MPK_FN void expert_stream(const mpk_task &t, const expert_shape &s)
{
    expert_work_off<WIDE, EXPERT_KIND_PLAIN, FORM>(t, s);
}
template <int WIDE, int FORM = RT_BLOCKS_NONE>
MPK_FN void expert_stream(const mpk_task &t, const expert_ends_shape &s)
{
    expert_work_off<WIDE, EXPERT_KIND_ENDS, FORM>(t, s);
}
template <int WIDE> MPK_FN void expert_stream(const mpk_task &t, const expert_rows_shape &s)
{
    expert_work_off<WIDE, EXPERT_KIND_ROWS, RT_BLOCKS_NONE>(t, s);
}

#endif
