/* head_tile.cuh - products of heads with a weight each, of many tokens: tiles of 128 tokens by 128
 * rows of a head's weight.
 *
 * The operator, its operands and the packed weights are those of head_stream.cuh.  A task is some
 * tokens, heads and rows; it goes through their tiles, head by head, of a head 128 rows at a time,
 * of these 128 tokens at a time.  A step is 64 columns:
 *
 *   x   a stage of scratch, [128 tokens][64 columns] as two halves of 32 columns in the 64-byte
 *       swizzle, brought by cp.async two steps ahead, across tiles
 *   w   of every other step a page for 64 rows, or two for 128: 8 groups of 8 rows, of each the
 *       unit of the chunk's 128 columns, brought ahead of the task's event
 *
 * A warp multiplies 32 tokens (warp % 4) by 64 rows (warp / 4; where a tile has one page, by 32),
 * two operands of 16 tokens each, by mma.sync: 12 ldmatrix for 32 products.  Which row of w is
 * which column of a product is free, and chosen so that a lane ends up with eight neighbouring
 * columns of y, which it stores at once, and the eight rows of a matrix lie in different banks:
 *
 *   product j of 32 rows   column 0 1 2  3  4  5  6  7      lane c of four has columns 2c, 2c + 1:
 *                   j = 0  row    0 1 10 11 20 21 30 31     rows 8c + 2 (j ^ c), + 1
 *                   j = 1         2 3 8  9  22 23 28 29
 *
 * Sums are added in the order of columns, so a token's bits depend on its row alone.
 *
 * Cost of a step: 2.1 MFLOP, 98 KB of shared memory read, 16 KB of x and 16 KB of w from L2; a
 * barrier of all threads.
 */
#ifndef TASK_HEAD_TILE_CUH
#define TASK_HEAD_TILE_CUH

#include "task/head_stream.cuh"

enum {
    HEAD_PAGE_GROUPS = HEAD_UNITS,           /* of a page */
    HEAD_TILE_GROUPS = 2 * HEAD_PAGE_GROUPS, /* of a tile */
    HEAD_HALF_BYTES = HEAD_STAGE_BYTES / 2,  /* 32 columns of a stage */
    HEAD_AHEAD = HEAD_STAGES - 1,            /* stages of x under way */
};

/* A task's tiles in their order: heads, of a head tiles of rows, of these lots of tokens. */
struct head_tile_at {
    int head, group, lot; /* group: the tile's first */
};
MPK_FN void head_tile_next(const head_groups &g, int lots, head_tile_at *at)
{
    if (++at->lot < lots)
        return;
    at->lot = 0;
    at->group += HEAD_TILE_GROUPS;
    if (at->group < g.end)
        return;
    at->group = g.first;
    at->head++;
}
/* Lots of HEAD_TOKENS tokens from a token to another. */
MPK_FN int head_lots(int first, int end)
{
    return (end - first + HEAD_TOKENS - 1) / HEAD_TOKENS;
}
/* Groups of a tile, and pages of a chunk of it. */
MPK_FN int head_tile_groups(const head_groups &g, const head_tile_at &at)
{
    return g.end - at.group < HEAD_TILE_GROUPS ? g.end - at.group : HEAD_TILE_GROUPS;
}
MPK_FN int head_tile_pages(const head_groups &g, const head_tile_at &at)
{
    return head_tile_groups(g, at) > HEAD_PAGE_GROUPS ? 2 : 1;
}

/* All lanes of the loader: a page of n groups from `group` on, of one chunk. */
MPK_FN void head_tile_load_page(mpk_load &l, const head_shape &s, int head, int group, int n,
                                int chunk)
{
    const rt_u32 page = load_page(&l);
    if (page == LOAD_OVER || !load_leads())
        return;
    const char *from = head_unit_at(l.e, s, head, group) + chunk * HEAD_UNIT_BYTES;
    load_expect(page, (rt_u32)n * HEAD_UNIT_BYTES);
    if (s.chunks == 1)
        load_copy(&l, page, 0, from, (rt_u32)n * HEAD_UNIT_BYTES);
    else
#pragma unroll 1
        for (int i = 0; i < n; i++)
            load_copy(&l, page, (rt_u32)i * HEAD_UNIT_BYTES, from + i * s.chunks * HEAD_UNIT_BYTES,
                      HEAD_UNIT_BYTES);
    load_end(page);
}

/* The loader: tile by tile as the body takes them, chunk by chunk; for all tokens of the box,
 * whichever are alive. */
MPK_FN void head_tile_load(mpk_load &l, const head_shape &s)
{
    const head_groups g = head_groups_of(l.e);
    const int lots = head_lots((int)l.e->lo[0], (int)l.e->hi[0]);
    head_tile_at at = {(int)l.e->lo[1], g.first, 0};
#pragma unroll 1
    for (; at.head < (int)l.e->hi[1]; head_tile_next(g, lots, &at))
#pragma unroll 1
        for (int chunk = 0; chunk < s.chunks; chunk++) {
            const int n = head_tile_groups(g, at);
            head_tile_load_page(l, s, at.head, at.group,
                                n < HEAD_PAGE_GROUPS ? n : HEAD_PAGE_GROUPS, chunk);
            if (n > HEAD_PAGE_GROUPS)
                head_tile_load_page(l, s, at.head, at.group + HEAD_PAGE_GROUPS,
                                    n - HEAD_PAGE_GROUPS, chunk);
        }
}

/* ---- x ---- */

/* Ask for 64 columns of a lot's tokens, steps 64 columns each; those that are not there are zeros.
 * Thread i has tokens i / 4 and i / 4 + 64, of each half of the stage piece i % 4. */
MPK_FN void head_copy(const mpk_task &t, const head_shape &s, const head_tile_at &at, int step,
                      int end, char *s_stage)
{
    const int row = mpk_thread() / 4, piece = mpk_thread() % 4, column = step * 64 + piece * 8,
              token = (int)t.e->lo[0] + at.lot * HEAD_TOKENS + row;
    const char *g_x = mpk_at<const char>(t, HEAD_X);
    char *to = s_stage + row / 8 * 512 + row % 8 * 64 + (piece ^ row % 8 / 2) * 16;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const char *from =
            g_x + ((rt_i64)(token + 64 * m) * s.x_token + (rt_i64)at.head * s.x_head + column) * 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const bool there = token + 64 * m < end && column + 32 * half < s.columns;
            ptx_copy_async(to + half * HEAD_HALF_BYTES + m * (64 / 8 * 512),
                           there ? from + half * 64 : g_x, there);
        }
    }
}

/* Steps of x of all tiles, one after the other, for tokens that are alive. */
struct head_ahead {
    head_tile_at at;
    int step, stage; /* of the tile's columns; of scratch */
};
/* Ask for the next one, if there is one, and close its group of copies in any case, so that each
 * step has one to wait for. */
MPK_FN void head_copy_next(const mpk_task &t, const head_shape &s, const head_groups &g, int lots,
                           int end, head_ahead *a)
{
    if (a->at.head < (int)t.e->hi[1]) {
        head_copy(t, s, a->at, a->step, end, t.s_scratch + a->stage * HEAD_STAGE_BYTES);
        if (++a->step == 2 * s.chunks) {
            a->step = 0;
            head_tile_next(g, lots, &a->at);
        }
    }
    ptx_copy_async_commit();
    a->stage = a->stage + 1 < HEAD_STAGES ? a->stage + 1 : 0;
}

/* ---- products ---- */

/* A warp's part of a tile.  sum[m][k][j]: tokens 16 m + g and + 8, the product j of 32 rows number
 * k. */
struct head_sums {
    float at[2][2][4][4];
};

/* 32 tokens times 32 `KINDS` rows and 32 columns.  s_x, s_w: what this lane's addresses for
 * ldmatrix are made of (head_lane_of), of the block.  h: which 16 of the columns. */
template <int KINDS> MPK_FN void head_block(rt_u32 s_x, rt_u32 s_w, head_sums *sums)
{
    rt_u32 x[2][2][4]; /* of 16 tokens and 16 columns each */
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            ptx_load_matrices_at(x[m][h], (s_x ^ h * 32) + m * 1024);
#pragma unroll
    for (int k = 0; k < KINDS; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            rt_u32 w[4]; /* of 8 rows and 32 columns */
            ptx_load_matrices_at(w, (s_w ^ j * (128 + 16)) + k * 4 * HEAD_UNIT_BYTES);
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int m = 0; m < 2; m++)
                    halves_multiply(sums->at[m][k][j], x[m][h][0], x[m][h][1], x[m][h][2],
                                    x[m][h][3], w[2 * h], w[2 * h + 1]);
        }
}

/* Bytes from a stage and from a page to the row that this lane names for ldmatrix, of matrix l / 8
 * row l % 8.  Unit u of row r stands at u ^ r / 2 % 4.
 *
 *   x   token 32 (warp % 4) + 8 (l / 8 % 2) + l % 8, unit l / 16; two units on: bit 5 is turned
 *   w   of product 0 rows 2c and 2c + 1 of group c = l % 8 / 2, unit l / 8; of product j rows
 *       2 (j ^ c) and + 1: bits 7 and 8 are turned by j, and so are bits 4 and 5 of the unit */
struct head_lane {
    int x, w;
};
MPK_FN head_lane head_lane_of(void)
{
    const int warp = mpk_thread() / 32 % 4, lane = mpk_thread() % 32, row = lane % 8, c = row / 2;
    return {(warp * 4 + lane / 8 % 2) * 512 + row * 64 + (lane / 16 ^ row / 2) * 16,
            c * (HEAD_UNIT_BYTES + 128) + row % 2 * 64 + (lane / 8 ^ c) * 16};
}

/* Eight columns of a token that a lane has: of product j the pair j ^ c of them, c = lane % 4. */
MPK_FN void head_store_eight(const mpk_task &t, const head_shape &s, int token, int head,
                             int column, const float (*v)[4], int m)
{
    const int c = mpk_thread() % 4, lo = (int)t.e->lo[2], hi = (int)t.e->hi[2];
    rt_u32 pair[4], turned[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        pair[j] = halves_pack(v[j][2 * m], v[j][2 * m + 1]);
#pragma unroll
    for (int j = 0; j < 4; j++)
        turned[j] = c % 2 ? pair[j ^ 1] : pair[j];
#pragma unroll
    for (int j = 0; j < 4; j++)
        pair[j] = c / 2 ? turned[j ^ 2] : turned[j];
    if (column >= lo && column + 8 <= hi) {
        const mpk_words all = {pair[0], pair[1], pair[2], pair[3]};
        *(mpk_words *)head_y(t, s, token, head, column) = all;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        head_store_two(t, s, token, head, column + 2 * j, pair[j]);
}

/* The warp's sums of a tile become y, and zeros.  row: its first; kinds: so many times 32 rows. */
MPK_FN void head_tile_end(const mpk_task &t, const head_shape &s, const head_tile_at &at, int row,
                          int kinds, int end, head_sums *sums)
{
    const int lane = mpk_thread() % 32, column = row + lane % 4 * 8,
              token =
                  (int)t.e->lo[0] + at.lot * HEAD_TOKENS + mpk_thread() / 32 % 4 * 32 + lane / 4;
#pragma unroll
    for (int m = 0; m < 4; m++) /* of four times 8 tokens */
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (k < kinds && token + 8 * m < end)
                head_store_eight(t, s, token + 8 * m, at.head, column + 32 * k, sums->at[m / 2][k],
                                 m % 2);
    *sums = {};
}

/* All threads: a tile.  ahead: the steps whose x is next to be asked for. */
MPK_FN void head_tile_run(const mpk_task &t, const head_shape &s, const head_groups &g,
                          const head_tile_at &at, int lots, int end, mpk_ring *ring, int *stage,
                          head_ahead *ahead, head_sums *sums)
{
    const int half = mpk_thread() / 128, pages = head_tile_pages(g, at);
    const head_lane lane = head_lane_of();
    /* groups of the page that are this warp's: all, or half of them */
    const int in_w = lane.w + (pages == 2 ? 0 : half * 4 * HEAD_UNIT_BYTES);
    const rt_u32 s_stages = ptx_shared(t.s_scratch) + lane.x;
    rt_u32 s_w = 0, page[2] = {0, 0};
#pragma unroll 1
    for (int step = 0; step < 2 * s.chunks; step++) {
        if (step % 2 == 0) {
            const char *first = ring_take(ring, &page[0]);
            const char *own = pages == 2 ? ring_take(ring, &page[1]) : first;
            s_w = ptx_shared(half ? own : first) + in_w;
        }
        ptx_copy_async_wait<HEAD_AHEAD - 1>();
        mpk_sync(); /* the stage is there, and all warps have read the one before */
        head_copy_next(t, s, g, lots, end, ahead);
        const rt_u32 s_x = s_stages + *stage * HEAD_STAGE_BYTES;
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const rt_u32 s_block = s_w + (step % 2 * 2 + b) * 512;
            if (pages == 2)
                head_block<2>(s_x + b * HEAD_HALF_BYTES, s_block, sums);
            else
                head_block<1>(s_x + b * HEAD_HALF_BYTES, s_block, sums);
        }
        *stage = *stage + 1 < HEAD_STAGES ? *stage + 1 : 0;
        if (step % 2) {
            ring_release(page[0]);
            if (pages == 2)
                ring_release(page[1]);
        }
    }
    head_tile_end(t, s, at, at.group * 8 + (pages == 2 ? half * 64 : half * 32), pages, end, sums);
}

/* The body, which waits for its event and triggers its own. */
MPK_FN void head_tile(const mpk_task &t, const head_shape &s)
{
    mpk_ring ring = *t.ring;
    const head_groups g = head_groups_of(t.e);
    head_sums sums = {};
    int stage = 0;
    mpk_wait(t);
    const int first = (int)t.e->lo[0], end = (int)mpk_end(t), lots = head_lots(first, end),
              dead = head_lots(first, (int)t.e->hi[0]) - lots; /* lots of the box without tokens */
    head_tile_at at = {(int)t.e->lo[1], g.first, 0};
    head_ahead ahead = {at, 0, 0};
    for (int i = 0; lots && i < HEAD_AHEAD; i++)
        head_copy_next(t, s, g, lots, end, &ahead);
#pragma unroll 1
    while (at.head < (int)t.e->hi[1]) {
        if (lots)
            head_tile_run(t, s, g, at, lots, end, &ring, &stage, &ahead, &sums);
        if (at.lot + 1 >= lots)
            ring_drop(&ring, dead * head_tile_pages(g, at) * s.chunks);
        head_tile_next(g, lots, &at);
    }
    ptx_copy_async_wait<0>(); /* what is under way is empty */
    *t.ring = ring;
    mpk_trigger(t);
}

#endif
