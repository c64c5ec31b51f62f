/* linear_team.cuh - products of 17 to 64 tokens with weights that stream through the page ring
 * (paper §5.3).
 *
 * y[t, n] = epilogue(sum over k of x[t, k] w[n, k]) as linear_stream.cuh, whose ends these
 * products share.
 *
 * Idea: the eight warps are two or four teams.  A team has 16 tokens, and its warps share the
 * columns of a pass, 256 each: so x takes the registers that it takes of 16 tokens in
 * linear_stream.cuh, and 64 tokens have as many partial sums as 16.  A weight comes from memory
 * once, and each team reads it from shared memory.  A tile of up to TEAM_TILE groups of 8 rows
 * goes through the columns pass by pass; what the passes before have summed lies in shared
 * memory.  Then the sums of a team's warps are added in their order.  All of x is loaded for
 * each tile, so tiles are large.
 *
 *                  two teams (17 to 32 tokens)     four teams (33 to 64)
 *   warps          0-3 | 4-7                       0-1 | 2-3 | 4-5 | 6-7
 *   tokens         0-15 | 16-31                    0-15 | 16-31 | 32-47 | 48-63
 *   a pass         1,024 columns (at_once 4)       512 columns (at_once 2)
 *   a page         that of one group               that of two groups, one after the other
 *
 * Cost of 8 rows and 256 columns for 16 tokens: 8 shared loads of 16 bytes a lane, 16 products.
 * Relies on: linear_stream.cuh (x in registers, ends), the ring.  Called by: the generated
 * switch over bodies that wait themselves; the loader calls linear_team_load.
 */
#ifndef TASK_LINEAR_TEAM_CUH
#define TASK_LINEAR_TEAM_CUH

#include "task/linear_stream.cuh"

enum { TEAM_TILE = TEAM_TILE_OF(MPK_BULK), TEAM_PEAKS = TEAM_PEAKS_OF(TEAM_TILE) };

/* Pieces of 256 columns of a pass, one for each warp of a team: 8 / teams.  From the box, not
 * from what is alive: the loader, which runs before the step, must come to the same. */
MPK_FN int team_at_once(const rt_entry *e)
{
    return e->hi[0] - e->lo[0] > TEAM_TWO_TOKENS ? 2 : 4;
}
/* Binary logarithm of at_once, which is 2 or 4: no division. */
MPK_FN int team_shift(int at_once)
{
    return at_once >> 1;
}
/* Teams: 2 or 4. */
MPK_FN int team_count(int at_once)
{
    return MPK_WARPS >> team_shift(at_once);
}

/* Pieces of 256 columns of a group: 4 a page, but for the last page, which has s.last. */
MPK_FN int team_pieces(const stream_shape &s)
{
    return (s.pages - 1) * STREAM_PAGE_UNITS + s.last;
}

/* ---- the loader's part ---- */

/* All lanes: one page with one pass of `groups` neighbouring groups, n_bytes of each.  In memory
 * they lie group_bytes apart, in the page `stride`. */
MPK_FN void team_load_page(mpk_load &l, const char *from, rt_u32 group_bytes, rt_u32 groups,
                           rt_u32 stride, rt_u32 n_bytes)
{
    const rt_u32 page = load_page(&l); /* empty by now */
    if (page == LOAD_OVER || !load_leads())
        return;
    load_expect(page, groups * n_bytes);
#pragma unroll 1
    for (rt_u32 i = 0; i < groups; i++)
        load_copy(&l, page, i * stride, from + (rt_u64)i * group_bytes, n_bytes);
    load_end(page);
}

/* All lanes: the task's pages in the order of use: tile by tile, in a tile pass by pass.  A page
 * is loaded for each `together` groups, whatever is alive. */
MPK_FN void linear_team_load(mpk_load &l, const stream_shape &s)
{
    const rt_u32 first = stream_first(l.e, s), n = stream_groups(l.e, s),
                 pieces = (rt_u32)team_pieces(s);
    /* of a page's four pieces, those of one group are at_once */
    const rt_u32 at_once = (rt_u32)team_at_once(l.e),
                 together = STREAM_PAGE_UNITS >> team_shift((int)at_once);
    const rt_u32 group_bytes = pieces * TEAM_PIECE_BYTES; /* of a packed group */
    const char *base = (const char *)l.e->at[RT_PACKED] + (rt_u64)first * group_bytes;
    /* All loops stay loops: the loader's code is to be small, since it is fetched by one warp. */
#pragma unroll 1
    for (rt_u32 q = 0; q < n; q += TEAM_TILE)
#pragma unroll 1
        for (rt_u32 pass = 0; pass < pieces; pass += at_once) {
            const rt_u32 here = n - q < TEAM_TILE ? n - q : TEAM_TILE;
            const rt_u32 of_pass = pieces - pass < at_once ? pieces - pass : at_once;
            const char *from = base + (rt_u64)q * group_bytes + pass * TEAM_PIECE_BYTES;
#pragma unroll 1
            for (rt_u32 i = 0; i < here; i += together) {
                team_load_page(l, from, group_bytes, here - i < together ? here - i : together,
                               at_once * TEAM_PIECE_BYTES, of_pass * TEAM_PIECE_BYTES);
                from += together * group_bytes;
            }
        }
}

/* ---- who does what ---- */

/* What a warp does in every pass. */
struct team_place {
    int first_row; /* of the team's tokens */
    int slice;     /* of a pass: the warp's piece */
};
/* The first token of the warp's team, and the warp's number in it: which of the columns of a
 * pass are its own. */
MPK_FN team_place team_place_of(int warp, int at_once)
{
    return {(warp >> team_shift(at_once)) * 16, warp & (at_once - 1)};
}

/* Where this lane's columns of tokens g and g + 8 of its team lie. */
struct team_from {
    const char *x;
    rt_u32 at[2]; /* bytes from x to pass 0; STREAM_NONE: no such token */
    int left;     /* columns from this lane's first one of pass 0 on */
};
/* Where this lane's pieces begin.  A row without a token, or gathered from none, has
 * STREAM_NONE: its registers stay 0. */
MPK_FN void team_find_x(const mpk_task &t, const stream_shape &s, const team_place &place, int rows,
                        int lane, team_from *from)
{
    const int g = lane / 4, first = place.slice * STREAM_UNIT_COLUMNS + lane % 4 * 8; /* column */
    from->x = mpk_at<const char>(t, s.x);
    from->left = s.columns - first;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int token = stream_row(t, s, place.first_row + g + 8 * m, rows);
        from->at[m] = token < 0 ? STREAM_NONE : (rt_u32)(token * s.columns + first) * 2;
    }
}

/* ---- x into registers ---- */

/* Issue the loads of this warp's 256 columns of the pass from piece `pass` on, block 4 i + j as
 * x.at[i][j], without waiting; AGAIN: of those that were still empty. */
template <bool AGAIN> MPK_FN void team_ask_x(const team_from &from, int pass, stream_x<2, 1> &x)
{
    const int left = from.left - pass * STREAM_UNIT_COLUMNS; /* columns from the lane's first on */
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const char *at = from.x + (from.at[m] + (rt_u32)(pass * STREAM_UNIT_COLUMNS * 2));
        const bool there = from.at[m] != STREAM_NONE;
#pragma unroll
        for (int k = 0; k < 8; k++)
            ptx_load_words_if(at + k * 64,
                              AGAIN ? mpk_is_empty(x.at[k / 4][k % 4][m]) : there && k * 32 < left,
                              &x.at[k / 4][k % 4][m]);
    }
}

/* Carried x: until all that was requested is there.  Meanwhile each lane polls one piece only,
 * as in stream_await_x. */
MPK_FN void team_await_x(const team_from &from, int pass, stream_x<2, 1> &x)
{
#pragma unroll 1
    for (;;) {
        rt_u32 most = 0; /* of all words of the piece */
#pragma unroll
        for (int k = 0; k < 16; k++)
            most = mpk_larger(most, mpk_largest_word(x.at[k / 8][k / 2 % 4][k % 2]));
        if (!__any_sync(0xffffffffu, most == RT_EMPTY) || ptx_load_flag(&mpk_w.abort))
            return;
        const char *first = from.x + (from.at[0] + (rt_u32)(pass * STREAM_UNIT_COLUMNS * 2));
        while (mpk_is_empty(x.at[0][0][0]) && !ptx_load_flag(&mpk_w.abort))
            x.at[0][0][0] = ptx_load_words(first);
        __syncwarp();
        team_ask_x<true>(from, pass, x);
    }
}

/* Wait for the warp's piece of a pass and order it as products take it; with `squares`, in the
 * first tile, its squares are added to `square`. */
MPK_FN void team_bring_x(const mpk_task &t, const stream_shape &s, const team_from &from, int pass,
                         bool squares, int thread, stream_x<2, 1> &x, float *square)
{
    if (mpk_carries(t, s.x))
        team_await_x(from, pass, x);
    stream_order_x<2, 1>(2, x);
    if (squares)
        stream_add_squares<2, 1>(x, 2, thread, square);
}

/* A warp's sums of squares for stream_scale, which adds eight of them a token: a team has fewer
 * warps, so each of these also writes the zeros of the places that no warp has. */
MPK_FN void team_put_squares(const mpk_task &t, const team_place &place, int at_once, int lane,
                             const float *square)
{
    const int g = lane / 4; /* the token of the diagonal's entry */
    if (lane % 4 != g / 2)
        return;
#pragma unroll
    for (int m = 0; m < 2; m++)
        for (int i = place.slice; i < 8; i += at_once)
            ((float *)(t.s_scratch + STREAM_SQUARES))[(place.first_row + g + 8 * m) * 8 + i] =
                i == place.slice ? square[m] : 0;
}

/* ---- products ---- */

/* A warp's 256 columns of two groups by x: sums[k] of group k, of tokens g (0, 1) and g + 8 (2,
 * 3), columns 2c and 2c + 1.  Two groups at a time: products of one need not wait for the
 * other's. */
MPK_FN void team_multiply(const char *const *at, const stream_x<2, 1> &x, float (*sums)[4])
{
    float first[2][4] = {}, second[2][4] = {}; /* sums that do not wait for each other */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const char *const both[2] = {at[0] + i * 2048, at[1] + i * 2048};
        const mpk_words(*const same[2])[2] = {x.at[i], x.at[i]};
#pragma unroll
        for (int j = 0; j < 4; j++)
            stream_multiply<2, 1>(both, same, j, first, second);
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sums[k][e] = first[k][e] + second[k][e];
}

/* A warp's sums of a group; `adds`: to those of the passes before, which this lane has written. */
MPK_FN void team_put(float4 *to, bool adds, const float *sums)
{
    float4 v = make_float4(sums[0], sums[1], sums[2], sums[3]); /* tokens g, then g + 8 */
    if (adds) {
        const float4 before = *to;
        v = make_float4(before.x + v.x, before.y + v.y, before.z + v.z, before.w + v.w);
    }
    *to = v;
}

/* The groups of a tile over one pass, two at a time.  works: the warp has columns of this pass,
 * and its team tokens.  A warp that does not work still takes and releases each page, and in the
 * first pass writes zeros, which team_total adds. */
MPK_FN void team_pass(mpk_ring *ring, const stream_x<2, 1> &x, char *s_parts, int groups,
                      int at_once, bool adds, bool works, int thread)
{
    const int warp = thread / 32, lane = thread % 32, g = lane / 4, c = lane % 4;
    const rt_u32 offset =
        (rt_u32)((warp & (at_once - 1)) * TEAM_PIECE_BYTES + g * 64 + (c ^ g / 2) * 16);
    float4 *parts = (float4 *)s_parts + warp * 32 + lane;
#pragma unroll 1
    for (int i = 0; i < groups; i += 2, parts += 2 * 8 * 32) {
        /* a page for each */
        const bool second = i + 1 < groups, apart = at_once == STREAM_PAGE_UNITS && second;
        rt_u32 page[2];        /* of the ring */
        float sums[2][4] = {}; /* of two groups */
        const char *at[2];
        at[0] = at[1] = ring_take(ring, &page[0]) + offset;
        /* with two teams a page holds one group, with four it holds two */
        if (apart)
            at[1] = ring_take(ring, &page[1]) + offset;
        else if (second)
            at[1] += at_once * TEAM_PIECE_BYTES;
        if (works)
            team_multiply(at, x, sums);
        __syncwarp();
        if (lane == 0) {
            ptx_barrier_arrive(&mpk_w.empty[page[0]]);
            if (apart)
                ptx_barrier_arrive(&mpk_w.empty[page[1]]);
        }
        /* the first pass initialises the sums of every warp, also of those without columns or
         * tokens */
        if (works || !adds)
            team_put(parts, adds, sums[0]);
        if ((works || !adds) && second)
            team_put(parts + 8 * 32, adds, sums[1]);
    }
}

/* ---- the end of a tile ---- */

/* Sixteen tokens of a group: a team's. */
struct team_unit {
    int group, first_row; /* of the tile */
    int first_warp;
};
/* Unit i of a tile: teams of a group follow each other, then the next group. */
MPK_FN team_unit team_unit_at(int i, int at_once)
{
    const int team = i & (team_count(at_once) - 1); /* units of a group follow each other */
    return {i >> (3 - team_shift(at_once)), team * 16, team * at_once};
}

/* Issue the loads of a unit's residual: of its tokens g and g + 8, two columns a lane. */
MPK_FN void team_ask_residual(const mpk_task &t, const stream_shape &s, const team_unit &u,
                              int first_group, int lane, int rows, rt_u32 *residual)
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int row = u.first_row + lane / 4 + 8 * m;
        residual[m] =
            row < rows ? stream_residual(t, s, row, (first_group + u.group) * 8 + lane % 4 * 2) : 0;
    }
}

/* Add the sums of a team's warps, in their order, so that the bits follow from the columns alone.
 * Warps of the team that had no column have left zeros (team_pass). */
MPK_FN void team_total(const char *s_parts, const team_unit &u, int at_once, int lane, float *total)
{
    const float4 *from = (const float4 *)s_parts + (u.group * 8 + u.first_warp) * 32 + lane;
    float4 sum = from[0];
#pragma unroll 1
    for (int i = 1; i < at_once; i++) {
        const float4 v = from[i * 32];
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
    total[0] = sum.x;
    total[1] = sum.y;
    total[2] = sum.z;
    total[3] = sum.w;
}

/* All warps: the end of a tile of `here` groups from first_group on; they share out its units.
 * residual: of the warp's first unit; that of the next one is requested while one is finished. */
MPK_FN void team_finish(const mpk_task &t, const stream_shape &s, int first_group, int here,
                        int thread, rt_u32 *residual)
{
    const int at_once = team_at_once(t.e), units = here * team_count(at_once), lane = thread % 32,
              rows = stream_rows(t);
    const bool is_logits = ((const stream_end *)(t.s_scratch + STREAM_END))->modes & END_LOGITS;
#pragma unroll 1
    for (int i = thread / 32; i < units; i += 8) {
        const team_unit u = team_unit_at(i, at_once);
        rt_u32 next[2] = {0, 0};
        float total[4];
        /* none of the team's tokens is alive */
        if (u.first_row >= rows)
            continue;
        if (s.residual >= 0 && i + 8 < units)
            team_ask_residual(t, s, team_unit_at(i + 8, at_once), first_group, lane, rows, next);
        team_total(t.s_scratch + TEAM_PARTS, u, at_once, lane, total);
        if (is_logits)
            stream_finish_logits<1>(t, first_group + u.group, u.first_row, thread, total,
                                    (float *)(t.s_scratch + TEAM_PEAKS) +
                                        u.group * TEAM_MOST_TOKENS * 2);
        else
            stream_finish<1>(t, s, first_group + u.group, u.first_row, thread, total, residual);
        residual[0] = next[0];
        residual[1] = next[1];
    }
}

/* All threads, after a barrier: the largest of each 64 columns of the tile, for each token. */
MPK_FN void team_peaks(const mpk_task &t, const stream_shape &s, int first_group, int here)
{
#pragma unroll 1
    for (int i = 0; i < here; i += 8)
        stream_peaks(t, s, (const float *)(t.s_scratch + TEAM_PEAKS) + i * TEAM_MOST_TOKENS * 2,
                     TEAM_MOST_TOKENS * 2, first_group + i, here - i < 8 ? here - i : 8);
}

/* ---- the body ---- */

/* The body; all threads.  Per tile: pass by pass x and products; a barrier; the warps end units; a
 * barrier before the next tile overwrites sums and peaks.  at_once: pieces of 256 columns of a
 * pass, one for each warp of a team: 4 with two teams, 2 with four. */
MPK_FN void linear_team(const mpk_task &t, const stream_shape &s)
{
    const int thread = mpk_thread(), lane = thread % 32, at_once = team_at_once(t.e),
              pieces = team_pieces(s);
    const int first = (int)stream_first(t.e, s), n = (int)stream_groups(t.e, s);
    const team_place place = team_place_of(thread / 32, at_once); /* of this warp */
    char *s_parts = t.s_scratch + TEAM_PARTS;
    mpk_ring ring = *t.ring; /* in registers for the life of the task */
    team_from from;          /* where this lane's x lies */
    stream_x<2, 1> x;
    stream_clear_x<2, 1>(x);
    float square[2] = {}; /* of tokens g and g + 8, this warp's columns */
    mpk_wait(t);
    const int rows = stream_rows(t);
    team_find_x(t, s, place, rows, lane, &from);
#pragma unroll 1
    for (int q = 0; q < n; q += TEAM_TILE) {
        const int here = n - q < TEAM_TILE ? n - q : TEAM_TILE;
        rt_u32 residual[2] = {0, 0}; /* requested before the products, used after them */
#pragma unroll 1
        for (int pass = 0; pass < pieces; pass += at_once) {
            const bool works = place.first_row < rows && pass + place.slice < pieces;
            const bool asks = works && (q == 0 || pieces > at_once);
            /* The pass before has left something where nothing is loaded now: after the last
             * column, and in rows without a token. */
            if (asks && (s.columns % STREAM_UNIT_COLUMNS || s.gathered >= 0))
                stream_clear_x<2, 1>(x);
            if (asks)
                team_ask_x<false>(from, pass, x);
            if (pass == 0 && s.residual >= 0 && thread / 32 < here * team_count(at_once))
                team_ask_residual(t, s, team_unit_at(thread / 32, at_once), first + q, lane, rows,
                                  residual);
            if (pass == 0 && q == 0 && thread == MPK_THREADS - 32) /* while x is in flight */
                stream_put_end(t, s);
            if (asks)
                team_bring_x(t, s, from, pass, s.norm && q == 0, thread, x, square);
            team_pass(&ring, x, s_parts, here, at_once, pass > 0, works, thread);
        }
        if (s.norm && q == 0)
            team_put_squares(t, place, at_once, lane, square);
        /* all warps have put their sums of the tile */
        mpk_sync();
        team_finish(t, s, first + q, here, thread, residual);
        mpk_sync(); /* the sums have been read, the peaks are there */
        if (s.output == TO_LOGITS)
            team_peaks(t, s, first + q, here);
    }
    *t.ring = ring;
    mpk_trigger(t);
}

#endif
