/* copies_turned.cuh - copies of 16-bit entries whose neighbours lie along another axis in x than in
 * y, as of images [N, C, ..] that become [N, .., C], by tiles through shared memory.
 *
 * Input: x, whose axis AXIS has neighbours; output: the task's box of y, whose last axis has.  A
 * tile is 64 entries of both axes: 64 rows of 128 bytes in scratch, one for each entry of the last
 * axis, as x has them.  Pieces of 16 bytes are loaded along AXIS, eight threads a line of 128
 * bytes, and stored along the last axis, four threads 64 bytes:
 *
 *   row j of scratch   | entries of AXIS 0-7 | 8-15 | ... | 56-63 |   piece p at p ^ turned_swap(j)
 *   piece q of y's row a = entry a of rows 8 q .. 8 q + 7
 *
 * A warp turns 32 rows of eight entries at once, as four matrices of 8 x 8: a lane gets two
 * neighbours of each, and matrix i has those rows of which the lane needs its two as number 2 i and
 * 2 i + 1.  turned_swap leaves no two rows of a matrix, and no two lanes that load a line, in the
 * same banks.  Scratch has two stages of TURNED_TILES tiles: the next ones are on their way, by
 * copies that need no registers, while those at hand are stored.  Boxes without whole pieces and
 * addresses that are not aligned go entry by entry (copy_run).  Barriers: two for each round of
 * tiles.  Cost: memory.
 */
#ifndef TASK_COPIES_TURNED_CUH
#define TASK_COPIES_TURNED_CUH

#include "ptx/matrix.cuh"
#include "shape/copies_turned_shape.h"
#include "task/copies.cuh"

/* TURNED_PIECES: of a tile; TURNED_OWN: those of a thread. */
enum {
    TURNED_PIECES = TURNED_SIDE * TURNED_SIDE / TURNED_PIECE,
    TURNED_ROW_BYTES = TURNED_SIDE * 2,
    TURNED_TILE_BYTES = TURNED_SIDE * TURNED_ROW_BYTES,
    TURNED_OWN = (TURNED_PIECES + MPK_THREADS - 1) / MPK_THREADS
};

/* A tile: where it begins in x and y, in entries, and how far the box goes from there.  Both
 * extents are multiples of TURNED_PIECE, so a piece is there whole or not at all. */
struct turned_tile {
    rt_i64 from, to;
    int along, last; /* entries of AXIS and of the last axis, TURNED_SIDE at most */
};

/* An entry of an array of axes by a number that is a constant of the instance. */
template <int AXIS, typename T> MPK_FN T turned_at(const T *of)
{
    T value = 0;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == AXIS)
            value = of[i];
    return value;
}

/* Tile number i of n; one after the last is empty.  AXIS and LAST of `tiles` count tiles, the other
 * axes entries, so a tile is a plane of the box. */
template <int AXIS, int LAST>
MPK_FN turned_tile turned_find(const mpk_view &x, const mpk_view &y, const mpk_box &box,
                               const mpk_box &tiles, rt_u64 i, rt_u64 n)
{
    rt_i64 at[RT_MAX_RANK];
    mpk_place(tiles, y.rank, mpk_number(y, i < n ? i : 0), at);
    turned_tile tile = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < RT_MAX_RANK; k++)
        if (k == AXIS || k == LAST) {
            const rt_u32 begin = box.lo[k] + (rt_u32)at[k] * TURNED_SIDE;
            const rt_u32 left = i < n ? box.hi[k] - begin : 0;
            const int side = left < TURNED_SIDE ? (int)left : TURNED_SIDE;
            at[k] = begin;
            if (k == AXIS)
                tile.along = side;
            else
                tile.last = side;
        }
    tile.from = mpk_offset(x, at);
    tile.to = mpk_offset(y, at);
    return tile;
}

/* What the numbers of pieces of row j of scratch are combined with: rows 2 i, 2 i + 1 of four
 * neighbouring eights differ in it, and these are the eight rows that turned_store reads as a
 * matrix. */
MPK_FN int turned_swap(int j)
{
    return j / TURNED_PIECE % 4 * 2 + j % 2;
}

/* Request this thread's pieces of a tile, to scratch.  What is not there becomes zeros, which
 * are not stored.  Piece q is of row q / 8, so that eight threads ask for a line of 128 bytes. */
template <int LAST>
MPK_FN void turned_ask(const mpk_view &x, const char *g_x, const turned_tile &tile, char *s_tile)
{
#pragma unroll
    for (int k = 0; k < TURNED_OWN; k++) {
        const int q = mpk_thread() + k * MPK_THREADS, p = q % TURNED_PIECE, j = q / TURNED_PIECE;
        const bool there = j < tile.last && p * TURNED_PIECE < tile.along;
        const rt_i64 further = p * TURNED_PIECE + j * turned_at<LAST>(x.stride);
        /* a tile's first entry is an address in any case */
        ptx_copy_async(s_tile + j * TURNED_ROW_BYTES + (p ^ turned_swap(j)) * TURNED_PIECE * 2,
                       g_x + (tile.from + (there ? further : 0)) * 2, there);
    }
}

/* Store pieces of y: a warp those of eight rows and 32 entries of the last axis. */
template <int AXIS>
MPK_FN void turned_store(const mpk_view &y, char *g_y, const turned_tile &tile, const char *s_tile)
{
    const int lane = mpk_thread() % 32;
    /* the row of scratch whose address this lane gives, of the first 32 */
    const int row = lane % 8 / 2 * TURNED_PIECE + lane / 8 * 2 + lane % 2;
#pragma unroll
    for (int k = 0; k < TURNED_OWN; k++) {
        const int unit = mpk_thread() / 32 + k * (MPK_THREADS / 32); /* of the tile's 16 */
        const int p = unit % (TURNED_SIDE / TURNED_PIECE),
                  first = unit / (TURNED_SIDE / TURNED_PIECE) * 32;
        const int a = p * TURNED_PIECE + lane / 4, j = first + lane % 4 * TURNED_PIECE;
        rt_u32 words[4];
        ptx_load_matrices_transposed(words, s_tile + (first + row) * TURNED_ROW_BYTES +
                                                (p ^ turned_swap(row)) * TURNED_PIECE * 2);
        if (a < tile.along && j < tile.last)
            ptx_store_quad(g_y + (tile.to + j + a * turned_at<AXIS>(y.stride)) * 2, words);
    }
}

/* The body of copy where x's neighbours lie along AXIS and y's along LAST, its last axis. */
template <int AXIS, int LAST>
MPK_FN void copy_turned(const mpk_task &t, const mpk_view &x, const mpk_view &y)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y), *s_tiles = t.s_scratch;
    const mpk_box box = mpk_box_of(t, y.rank);
    mpk_box tiles = box; /* both axes counted in tiles */
    bool whole = copies_aligned(g_x, g_y, TURNED_PIECE * 2);
#pragma unroll
    for (int k = 0; k < RT_MAX_RANK; k++)
        if (k == AXIS || k == LAST) {
            whole = whole && box.lo[k] % TURNED_PIECE == 0 && box.hi[k] % TURNED_PIECE == 0;
            tiles.lo[k] = 0;
            tiles.hi[k] =
                box.hi[k] > box.lo[k] ? (box.hi[k] - box.lo[k] + TURNED_SIDE - 1) / TURNED_SIDE : 0;
        }
    if (!whole) {
        copy_run(t, x, y);
        return;
    }
    const rt_u64 n = mpk_count(tiles, y.rank);
    turned_tile tile[TURNED_TILES];
    int stage = 0; /* of scratch, for the tiles that are requested */
    mpk_sync();    /* the task before has read its scratch */
    /* Round i asks for the tiles from i on, to one stage, and stores those of the round before from
     * the other; the last round asks for tiles that are empty.  Each round closes one group, so
     * that waiting for all but one is waiting for the round before. */
#pragma unroll 1
    for (rt_u64 i = 0; i < n + TURNED_TILES; i += TURNED_TILES, stage ^= TURNED_BYTES / 2) {
        turned_tile next[TURNED_TILES];
#pragma unroll
        for (int k = 0; k < TURNED_TILES; k++) {
            next[k] = turned_find<AXIS, LAST>(x, y, box, tiles, i + k, n);
            turned_ask<LAST>(x, g_x, next[k], s_tiles + stage + k * TURNED_TILE_BYTES);
        }
        ptx_copy_async_commit();
        if (i) {
            ptx_copy_async_wait<1>();
            mpk_sync(); /* all pieces of the tiles before are there */
#pragma unroll
            for (int k = 0; k < TURNED_TILES; k++)
                turned_store<AXIS>(y, g_y, tile[k],
                                   s_tiles + (stage ^ TURNED_BYTES / 2) + k * TURNED_TILE_BYTES);
            mpk_sync(); /* and all have been read */
        }
#pragma unroll
        for (int k = 0; k < TURNED_TILES; k++)
            tile[k] = next[k];
    }
    ptx_copy_async_wait<0>(); /* copies of nothing write zeros */
}

#endif
