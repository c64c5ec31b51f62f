/* blocks_buffer.cuh - one warpgroup unpacks weights in GGUF blocks or MXFP4 to bf16 in shared
 * memory, for another one that multiplies them.
 *
 * Input: pages of weights as they are packed (rt/rt_blocks.h), brought by boxes of a tensor map.
 * Output: buffers of 128 rows and 128 columns in the 64-byte swizzle (blocks_unpack.cuh).  The two
 * warpgroups meet at the buffers alone, so integer units and tensor cores work at the same time.
 * Called by linear_blocks.cuh and expert_unpack.cuh.
 *
 *   page    some pieces of 128 columns of up to 8 groups of 8 rows; a pass of more groups has two
 *           pages a load
 *   buffer  128 x 128 weights in bf16: the columns of a group together; two, which are the last
 *           four pages of the ring
 *
 * Between the warpgroups, for buffer b, by barriers that one arrives at and the other meets at:
 *
 *   BLOCKS_FULL + b    the unpackers have filled it
 *   BLOCKS_EMPTY + b   the products that have read it have ended
 *
 * The unpackers alone take pages, and release each for two warps.
 *
 * The kept pages, those that are buffers, are not scratch, so that other bodies of the kernel have
 * them as pages.  The loader opens them for nothing whenever it comes by, and last at the end of
 * the task.  Before the first step they are free: the scratch is the task's, so no warp reads them
 * any more, and each unpacking warp has waited for all that was copied there before.  After the
 * last step all warps meet, and only then release what the loader has opened last: so nothing is
 * copied there while they are buffers.
 *
 * Cost of a buffer: some 550 instructions of each of four warps with nibbles of K, 690 with bytes
 * of K, 360 of MXFP4.
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
    BLOCKS_KEPT = BLOCKS_BUFFERS * BLOCKS_BUFFER / MPK_PAGE_BYTES, /* pages */
    /* barriers; the warpgroups' own are 2 and 3 */
    BLOCKS_FULL = 4,
    BLOCKS_EMPTY = BLOCKS_FULL + BLOCKS_BUFFERS
};

/* A pass: groups, and what its loads are. */
struct blocks_pass {
    int groups; /* of it */
    int shift;  /* log2 of the pieces of a page and group, where linear_blocks.cuh chooses them */
    int loads;  /* of all columns, of `pages` pages */
    int pages;
};

static_assert(MPK_LEAST_PAGES >= BLOCKS_KEPT + 2, "a load takes two pages besides the kept ones");

/* Is the next page a kept one? */
MPK_FN bool blocks_is_kept(const mpk_ring &r)
{
    return r.at >= r.n - BLOCKS_KEPT;
}
/* The buffers. */
MPK_FN char *blocks_buffers(const mpk_ring &r)
{
    return mpk_s + (r.first + r.n - BLOCKS_KEPT) * MPK_PAGE_BYTES;
}

/* ---- the loader's part ---- */

/* The leading thread: open pages for nothing up to the end of the ring; false: there is nothing to
 * load for any more. */
MPK_FN bool blocks_open_rest(mpk_load &l)
{
    do {
        const rt_u32 page = load_alone(&l);
        if (page == LOAD_OVER)
            return false;
        load_expect(page, 0);
    } while (l.ring.at);
    return true;
}
/* The leading thread: the next page for n_bytes, after the kept ones if these are next, or
 * LOAD_OVER. */
MPK_FN rt_u32 blocks_next_page(mpk_load &l, rt_u32 n_bytes)
{
    if (blocks_is_kept(l.ring) && !blocks_open_rest(l))
        return LOAD_OVER;
    const rt_u32 page = load_alone(&l);
    if (page != LOAD_OVER)
        load_expect(page, n_bytes);
    return page;
}

/* ---- the unpackers ---- */

/* A warp: this page has been read, by it and by one of those that multiply. */
MPK_FN void blocks_release(rt_u32 page)
{
    ring_release(page);
    ring_release(page);
}

/* An unpacking warp: the next page, after the kept ones if these are next. */
MPK_FN const char *blocks_take_page(mpk_ring *ring, rt_u32 *page)
{
    while (blocks_is_kept(*ring)) {
        ring_take(ring, page);
        blocks_release(*page);
    }
    return ring_take(ring, page);
}
/* A multiplying warp: step over n pages, as the unpackers take them. */
MPK_FN void blocks_pass_by(mpk_ring *ring, int n)
{
    const rt_u32 lap = ring->n - BLOCKS_KEPT;
    if (n <= 0)
        return;
    if (blocks_is_kept(*ring)) {
        ring->at = 0;
        ring->parity ^= 1;
    }
    const rt_u32 to = ring->at + (rt_u32)n, laps = (to - 1) / lap;
    ring->at = to - laps * lap;
    ring->parity ^= laps & 1;
}

/* All warps, when a task has taken its pages: step to the end of the ring, as blocks_open_rest has
 * opened it, meet, and release the kept pages.  Of a task that has taken none the ring may stand
 * among these: then those before are an earlier task's, which has released them. */
MPK_FN void blocks_end_task(const mpk_task &t)
{
    mpk_ring ring = *t.ring;
    rt_u32 page;
    const rt_u32 from = mpk_larger(ring.at, ring.n - BLOCKS_KEPT);
    if (mpk_thread() >= 128) { /* the unpackers */
        while (!blocks_is_kept(ring)) {
            ring_take(&ring, &page);
            blocks_release(page);
        }
        while (ring.at)
            ring_take(&ring, &page);
    } else {
        ring.at = 0;
        ring.parity ^= 1;
    }
    mpk_sync(); /* all have read what lies in scratch and in buffers */
    for (rt_u32 i = from; i < ring.n; i++)
        ring_release(ring.first + i);
    *t.ring = ring;
}

/* A load as an unpacking warp sees it: its pages, and where the groups of each begin. */
struct blocks_loaded {
    rt_u32 page[2];
    const char *at[2];
};
MPK_FN void blocks_take_load(const blocks_pass &q, mpk_ring *ring, blocks_loaded *l)
{
    l->at[0] = l->at[1] = blocks_take_page(ring, &l->page[0]);
    if (q.pages > 1)
        l->at[1] = blocks_take_page(ring, &l->page[1]);
    __syncwarp();
}
MPK_FN void blocks_give_back(const blocks_pass &q, const blocks_loaded &l)
{
    blocks_release(l.page[0]);
    if (q.pages > 1)
        blocks_release(l.page[1]);
}

/* Piece `piece` of a load of group `group` of the pass.  A box has TOGETHER pieces of each of its
 * groups; the page of a pass of few groups has several boxes (blocks_load_page). */
template <int FORM, int TOGETHER>
MPK_FN const char *blocks_piece_at(const blocks_pass &q, const blocks_loaded &l, int group,
                                   int piece)
{
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
template <int FORM, int TOGETHER>
MPK_FN void blocks_gather(const blocks_pass &q, const blocks_loaded &l, int group, int piece,
                          int lane, const blocks_numbers &n, float zero, blocks_part<FORM> *to)
{
    to->group = group;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const char *s_piece =
            blocks_piece_at<FORM, TOGETHER>(q, l, mpk_smaller(group + i, q.groups - 1), piece);
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

/* What an unpacking warp does between reading a step's parts and writing them: it gives the pages
 * back, if these were the load's last pieces and `early`, and waits for the buffer. */
MPK_FN void blocks_turn(const blocks_pass &q, const blocks_loaded &l, bool early, bool again,
                        int buffer)
{
    if (early)
        blocks_give_back(q, l);
    blocks_await_empty(again, buffer);
}

/* An unpacking warp: its parts of a step, groups from 2 warp and from 8 on.  What is read is read
 * before the buffer is waited for.  early: the pages go back as soon as they have been read. */
template <int FORM, int TOGETHER>
MPK_FN void blocks_unpack(const blocks_pass &q, const blocks_loaded &l, int piece, bool early,
                          char *s_buffer, bool again, int buffer, const blocks_numbers &n,
                          float zero)
{
    const int lane = mpk_thread() % 32, first = mpk_thread() / 32 % 4 * 2;
    blocks_part<FORM> part, other;
    if (first + TILE_GROUPS < q.groups) {
        blocks_gather<FORM, TOGETHER>(q, l, first, piece, lane, n, zero, &part);
        blocks_gather<FORM, TOGETHER>(q, l, first + TILE_GROUPS, piece, lane, n, zero, &other);
        blocks_turn(q, l, early, again, buffer);
        blocks_spread<FORM>(part, s_buffer, lane, n);
        blocks_spread<FORM>(other, s_buffer, lane, n);
    } else if (first < q.groups) {
        blocks_gather<FORM, TOGETHER>(q, l, first, piece, lane, n, zero, &part);
        blocks_turn(q, l, early, again, buffer);
        blocks_spread<FORM>(part, s_buffer, lane, n);
    } else {
        blocks_turn(q, l, early, again, buffer);
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
