/* blocks_buffer.cuh - one warpgroup unpacks weights in GGUF blocks or MXFP4 to bf16 in shared
 * memory, for another one that multiplies them.
 *
 * Input: pages of weights as they are packed (rt/rt_blocks.h), brought by boxes of a tensor map.
 * Output: buffers of 128 rows and 128 columns in the 64-byte swizzle (blocks_unpack.cuh).  The two
 * warpgroups meet at the buffers alone, so integer units and tensor cores work at the same time.
 * Called by linear_blocks.cuh and expert_unpack.cuh.
 *
 *   page    up to 8 groups of 8 rows, 128 columns in bytes or 256 in nibbles, or of up to 4 groups
 *           twice as many; a pass of more groups has two pages a load
 *   buffer  128 x 128 weights in bf16: the columns of a group together; two
 *
 * Between the warpgroups, for buffer b, by barriers that one arrives at and the other meets at:
 *
 *   BLOCKS_FULL + b    the unpackers have filled it
 *   BLOCKS_EMPTY + b   the products that have read it have ended
 *
 * The unpackers alone take pages, and release each for two warps.
 *
 * Cost of a buffer: some 560 instructions of each of four warps.
 */
#ifndef TASK_BLOCKS_BUFFER_CUH
#define TASK_BLOCKS_BUFFER_CUH

#include "task/blocks_unpack.cuh"
#include "task/linear_tile.cuh"

#if MPK_WGMMA

enum {
    BLOCKS_STAGE = 16384, /* of x: two boxes of 64 tokens or pairs and 64 columns */
    BLOCKS_BUFFERS = 2,
    BLOCKS_BUFFER = 32768,
    BLOCKS_GROUP = RT_PIECE_COLUMNS * 16, /* of a buffer: bytes of 8 rows */
    /* barriers; the warpgroups' own are 2 and 3 */
    BLOCKS_FULL = 4,
    BLOCKS_EMPTY = BLOCKS_FULL + BLOCKS_BUFFERS
};

/* A pass: what its lots load.  A box of w has TILE_BLOCKS_TOGETHER(form) pieces of each of its
 * groups. */
struct blocks_pass {
    int groups; /* of it */
    int shift;  /* log2 of the pieces of a page and group */
    int loads;  /* of all columns, of `pages` pages */
    int pages;
};
static_assert(TILE_GROUPS * RT_PIECE_BYTES(RT_BLOCKS_8) <= MPK_PAGE_BYTES &&
                  TILE_GROUPS * 2 * RT_PIECE_BYTES(RT_BLOCKS_4) <= MPK_PAGE_BYTES,
              "a page holds the boxes of 8 groups");

/* ---- the loader's part ---- */

/* All lanes: a page of `groups` groups from `group` on, pieces from `piece` on; with times = 2, of
 * up to four groups, the next pieces, too, half a page on.  Whole boxes have 8 groups, others two
 * (rt_entry.maps). */
MPK_FN void blocks_load_page(mpk_load &l, int form, int groups, int group, int piece, int times)
{
    const int together = TILE_BLOCKS_TOGETHER(form), words = RT_PIECE_BYTES(form) / 8,
              boxes = (groups + 1) / 2;
    const bool whole = groups > TILE_GROUPS - 2;
    const rt_u32 box = (rt_u32)(2 * together * RT_PIECE_BYTES(form)), /* bytes, of two groups */
        page = l.ring.first + l.ring.at;
    const rt_map *maps = (const rt_map *)l.e->maps;
    if (!load_open(&l, (rt_u32)(whole ? TILE_GROUPS / 2 : times * boxes) * box))
        return;
    if (ptx_elect()) {
        const rt_u32 to = l.s_pages + page * MPK_PAGE_BYTES;
        if (whole)
            ptx_copy_box(to, &maps[1], piece * words, group, &mpk_w.full[page]);
        for (int i = 0; i < times * boxes && !whole; i++) {
            const int k = i >= boxes; /* the next pieces */
            ptx_copy_box(to + (rt_u32)(i - k * boxes + k * (TILE_GROUPS / 4)) * box, &maps[2],
                         (piece + k * together) * words, group + (i - k * boxes) * 2,
                         &mpk_w.full[page]);
        }
    }
    __syncwarp();
}

/* ---- the unpackers ---- */

/* A warp: this page has been read, by it and by one of those that multiply. */
MPK_FN void blocks_release(rt_u32 page)
{
    ring_release(page);
    ring_release(page);
}

/* A load as an unpacking warp sees it: its pages, and where the groups of each begin. */
struct blocks_loaded {
    rt_u32 page[2];
    const char *at[2];
};
MPK_FN void blocks_take_load(const blocks_pass &q, mpk_ring *ring, blocks_loaded *l)
{
    l->at[0] = l->at[1] = ring_take(ring, &l->page[0]);
    if (q.pages > 1)
        l->at[1] = ring_take(ring, &l->page[1]);
    __syncwarp();
}
MPK_FN void blocks_give_back(const blocks_pass &q, const blocks_loaded &l)
{
    blocks_release(l.page[0]);
    if (q.pages > 1)
        blocks_release(l.page[1]);
}

/* Piece `piece` of a load of group `group` of the pass (blocks_load_page). */
template <int FORM>
MPK_FN const char *blocks_piece_at(const blocks_pass &q, const blocks_loaded &l, int group,
                                   int piece)
{
    constexpr int TOGETHER = TILE_BLOCKS_TOGETHER(FORM);
    const char *page = group < TILE_GROUPS ? l.at[0] : l.at[1];
    return page + (piece / TOGETHER * (TILE_GROUPS / 2) * TOGETHER +
                   group % TILE_GROUPS * TOGETHER + piece % TOGETHER) *
                      RT_PIECE_BYTES(FORM);
}

/* A part of a step is the weights of two groups of 8 rows, as four items of 64 columns.  A group
 * that the pass has not got is its last one again: what becomes of its rows is not stored. */
template <int FORM> struct blocks_part {
    int group;              /* the first */
    blocks_eights items[4]; /* integers: both halves of the first group, then of the other */
    blocks_factors<FORM> factors[2]; /* of a group, a block in each of a row's four lanes */
};

/* Read what a part needs of the pages. */
template <int FORM>
MPK_FN void blocks_gather(const blocks_pass &q, const blocks_loaded &l, int group, int piece,
                          int lane, const blocks_numbers &n, float zero, blocks_part<FORM> *to)
{
    to->group = group;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const char *s_piece =
            blocks_piece_at<FORM>(q, l, mpk_smaller(group + i, q.groups - 1), piece);
        to->items[2 * i] = blocks_read<FORM>(s_piece, 0, lane);
        to->items[2 * i + 1] = blocks_read<FORM>(s_piece, 1, lane);
        blocks_find_factors<FORM>(s_piece, (rt_u32)lane % 4, lane / 4, n, zero, &to->factors[i]);
    }
}
/* Its weights, to a buffer. */
template <int FORM>
MPK_FN void blocks_spread(const blocks_part<FORM> &part, char *s_buffer, int lane,
                          const blocks_numbers &n)
{
    char *to = s_buffer + part.group * BLOCKS_GROUP;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) /* blocks of 32 columns */
            blocks_put_block<FORM>(part.items[2 * i + j / 2].at[j % 2],
                                   blocks_scales_of<FORM>(part.factors[i], j, lane),
                                   to + i * BLOCKS_GROUP + j * 512, lane, n);
}

/* Until the products that have read the buffer have ended, if it has been filled before. */
MPK_FN void blocks_await_empty(bool again, int buffer)
{
    if (again)
        ptx_meet(BLOCKS_EMPTY + buffer, MPK_THREADS);
}

/* An unpacking warp: its parts of a step, groups from 2 warp and from 8 on.  What is read is read
 * before the buffer is waited for. */
template <int FORM>
MPK_FN void blocks_unpack(const blocks_pass &q, const blocks_loaded &l, int piece, char *s_buffer,
                          bool again, int buffer, const blocks_numbers &n, float zero)
{
    const int lane = mpk_thread() % 32, first = mpk_thread() / 32 % 4 * 2;
    blocks_part<FORM> part, other;
    if (first + TILE_GROUPS < q.groups) {
        blocks_gather<FORM>(q, l, first, piece, lane, n, zero, &part);
        blocks_gather<FORM>(q, l, first + TILE_GROUPS, piece, lane, n, zero, &other);
        blocks_await_empty(again, buffer);
        blocks_spread<FORM>(part, s_buffer, lane, n);
        blocks_spread<FORM>(other, s_buffer, lane, n);
    } else if (first < q.groups) {
        blocks_gather<FORM>(q, l, first, piece, lane, n, zero, &part);
        blocks_await_empty(again, buffer);
        blocks_spread<FORM>(part, s_buffer, lane, n);
    } else {
        blocks_await_empty(again, buffer);
    }
}

/* ---- products ---- */

/* Issue the products of 32 of 64 columns, k = 0 or 2 in 16 of them: sum[m][...] of tokens 64 m ...,
 * as ptx_group_multiply has them.  The boxes of 128 tokens lie one after the other. */
template <int T, int N> MPK_FN void blocks_multiply(rt_u64 x, rt_u64 w, int k, float (*sum)[N / 2])
{
    tile_begin_products();
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int m = 0; m < T / 64; m++)
            halves_group_multiply<N>(
                sum[m], tile_further(x, (rt_u32)(m * (BLOCKS_STAGE / 2) / 16 + (k + i) * 2)),
                tile_further(w, tile_in_w(k + i)));
    tile_end_products();
}

#endif

#endif
