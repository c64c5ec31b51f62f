/* block_group.cuh - block programs whose products are those of warpgroups: attention (block.cuh,
 * which ends with this file; printed by src/gen/block_print.c).
 *
 * Each of the two warpgroups has 64 rows, 16 a warp: a fragment of 64 columns is float[1][8][4], as
 * of a program of eight warps along rows.  Shared factors are tiles of 64 or more rows that begin
 * 128 bytes apart, BLOCK_SWIZZLED, which is the 128-byte swizzle of matrix.cuh; products read the
 * tile's columns alone.  Products run in the background until a wait (block_group_arrive), at most
 * to the iteration's end.  Called by the instances that src/gen/body_block_attention.c prints.
 *
 *   block_turn             copies have arrived; the other warpgroup has passed
 *   block_group_multiply   this iteration's scores, 32 a lane
 *   block_group_add        the last iteration's weights times its values
 *   block_turn_pass        the other warpgroup's turn
 *   block_group_copy       keys of a later iteration
 *   block_group_arrive     scores are there
 *   weights, totals        under the product of the last ones
 *   block_group_copy       values of a later iteration
 *   block_exceeds          seldom: weights and totals relative to a larger score
 *   block_group_arrive     sums are there; seldom: these too
 *   block_group_keep       weights for the next iteration
 *
 * No product may be in flight where the loop goes back: in a kernel that also has the products of
 * linear_box.cuh ptxas then finds no registers, and waits after each product of both (C7512).
 * ptxas moves a wait for products to the start of its basic block.  block_exceeds branches, so the
 * wait after it starts a block of its own, after the exponentials.  All warps of a warpgroup must
 * wait, so no wait stands in that branch, which a warp takes by itself.  There is no other branch
 * but that of the rescaled sums: one that is taken costs a warp some 30 cycles, and a warp's own
 * chain of instructions is what an iteration waits for.
 * Cost of an iteration with heads of 64 entries: 8 wgmma of 64 x 64 x 16 a warpgroup, 512 cycles of
 * the tensor cores for both (of 40: 3 of 64 columns and 4 of 40, 352); 32 exponentials a lane, 512
 * cycles of theirs; some 220 instructions a warp.
 */
#ifndef TASK_BLOCK_GROUP_CUH
#define TASK_BLOCK_GROUP_CUH

#if MPK_WGMMA

/* Does an entry of a line exceed a number, in any lane of this warp?  The same answer in all lanes.
 * What is no number exceeds nothing. */
MPK_FN bool block_exceeds(const float (&r_line)[1][2], float number)
{
    const bool any = r_line[0][0] > number || r_line[0][1] > number;
    return __builtin_expect(__any_sync(0xffffffffu, any) != 0, 0);
}

/* A lane's copies of 16 bytes for a tile whose rows the loop goes over: one piece of each of its
 * rows.  No iteration branches: its rows follow those of the one before, and copies of rows that
 * are not there bring zeros. */
struct block_group_copies {
    const char *next; /* of the next iteration: this lane's piece of its first row */
    rt_u32 to;        /* the same in the tile's first copy */
    int row, left;    /* that row; how many rows are left */
};

/* A row that is never there: of lanes whose piece lies beyond the columns. */
enum { BLOCK_GROUP_NO_ROW = 1 << 30 };

/* s_tile: the first copy of the tile; g: its first row of `rows`, with this many columns, whole
 * pieces that begin at multiples of 16. */
MPK_FN void block_group_find(block_group_copies &r, const block_tile &tile, const char *s_tile,
                             const char *g, rt_i64 row_step, rt_i64 rows, rt_i64 columns)
{
    const int bytes = mpk_dtype_bytes(tile.dtype), row = block_copy_row(tile, 0);
    const int piece = mpk_kept_thread() % BLOCK_PIECES(tile) * 16; /* of its row, in bytes */
    r.next = g + row * row_step * bytes + piece;
    r.to = ptx_own(ptx_shared(s_tile) + (rt_u32)block_copy_to(tile, 0));
    r.row = piece < columns * bytes ? row : BLOCK_GROUP_NO_ROW;
    r.left = (int)rows;
}

/* The next iteration, into copy `copy`.  After the last one nothing is left, and zeros come to a
 * copy that no product reads. */
MPK_FN void block_group_copy(const block_tile &tile, int copy, block_group_copies &r,
                             rt_i64 row_step)
{
    const rt_i64 row_bytes = row_step * mpk_dtype_bytes(tile.dtype);
    const rt_u32 to = r.to + (rt_u32)(copy * tile.copy_bytes);
#pragma unroll
    for (int j = 0; j < BLOCK_COPIES(tile); j++) {
        const int apart = j * BLOCK_ROWS_APART(tile);
        ptx_copy_async_at(to + (rt_u32)(apart * BLOCK_PITCH(tile.row_bytes, tile.layout)),
                          r.next + apart * row_bytes, r.row < r.left - apart);
    }
    r.next += tile.rows * row_bytes;
    r.left -= tile.rows;
}

/* All but the last N groups of loads have arrived, and both warpgroups' products see them. */
template <int N> MPK_FN void block_group_wait(void)
{
    ptx_copy_async_wait<N>();
    ptx_fence_shared();
    mpk_sync();
}

/* Copy number `copy`, below 2 n, of a tile that has n in turn. */
MPK_FN int block_group_copy_of(int copy, int n)
{
    return copy < n ? copy : copy - n;
}

/* Turns of the two warpgroups: barrier 2 is the first's, 3 the second's.  A warpgroup waits at its
 * own, at which the other arrives when it passes, so that the products of one are issued when those
 * of the other are, and run under its exponentials.  In its turn a warpgroup sees what the other
 * had waited for when it passed, and the other reads nothing any more that it read before that
 * turn. */
MPK_FN int block_turn_of(void)
{
    return mpk_kept_thread() / 128;
}
/* In front of the first turn: all but the last N groups of loads have arrived, and both see them;
 * the first warpgroup may begin. */
template <int N> MPK_FN void block_turns_begin(void)
{
    block_group_wait<N>();
    if (block_turn_of())
        ptx_arrive(2, MPK_THREADS);
}
template <int N> MPK_FN void block_turn(void)
{
    ptx_copy_async_wait<N>();
    ptx_fence_shared();
    ptx_meet(2 + block_turn_of(), MPK_THREADS);
}
MPK_FN void block_turn_pass(void)
{
    ptx_arrive(3 - block_turn_of(), MPK_THREADS);
}
/* After the last turn, both warpgroups: all loads have arrived and are visible to both, and the
 * first has taken the last arrival at its barrier. */
MPK_FN void block_turns_end(void)
{
    if (!block_turn_of())
        ptx_meet(2, MPK_THREADS); /* what the second passed last */
    block_group_wait<0>();
}

/* All products but the N that were issued last have ended, and the sums are theirs: no code that
 * reads them goes before this. */
template <int N, int B> MPK_FN void block_group_arrive(float (&r_sum)[1][B][4])
{
    ptx_group_wait<N>();
#pragma unroll
    for (int i = 0; i < B * 4; i++)
        ptx_hold(r_sum[0][i / 4][i % 4]);
}

/* Columns of the sum 16 k and on are 32 k bytes further in the swizzled rows (matrix.cuh), rows of
 * 128 bytes 2,048 a field of 16: a descriptor counts pieces of 16 bytes, also from a tile's copy to
 * the next.  Only its low word changes: what 64-bit arithmetic adds would stand between two
 * products. */
MPK_FN rt_u64 block_group_at(rt_u64 matrix, int pieces)
{
    return ptx_words((rt_u32)matrix + (rt_u32)pieces, (rt_u32)(matrix >> 32));
}

/* One product of 16 entries of the sum; N is a constant, so one call is left. */
MPK_FN void block_group_one(int dtype, float *sum, rt_u64 a, rt_u64 b)
{
    if (dtype == MPK_BF16)
        ptx_group_multiply_bf16_64(sum, a, b);
    else
        ptx_group_multiply_f16_64(sum, a, b);
}
/* B: eights of the sums' columns.  more: the product is added to them, else it replaces them. */
template <int B>
MPK_FN void block_group_one_kept(int dtype, float *sum, const rt_u32 *a, rt_u64 b, bool more)
{
#define BLOCK_KEPT(columns)                                      \
    if (B * 8 == columns && dtype == MPK_BF16)                   \
        ptx_group_multiply_kept_bf16_##columns(sum, a, b, more); \
    else if (B * 8 == columns)                                   \
        ptx_group_multiply_kept_f16_##columns(sum, a, b, more);
    BLOCK_KEPT(32)
    BLOCK_KEPT(40)
    BLOCK_KEPT(48)
    BLOCK_KEPT(56)
    BLOCK_KEPT(64)
#undef BLOCK_KEPT
}

/* In front of a loop: the descriptor of this warpgroup's rows of a first factor, which is the same
 * in all lanes; the shuffle tells the compiler so. */
MPK_FN rt_u64 block_group_rows(const char *s_a)
{
    const rt_u64 own =
        ptx_matrix_of_rows(s_a + mpk_kept_thread() / 128 * (BLOCK_GROUP_ROWS * BLOCK_GROUP_BYTES));
    return ptx_words(__shfl_sync(0xffffffffu, (rt_u32)own, 0), (rt_u32)(own >> 32));
}

/* Issue r_sum += a b: rows of tile a are the sums', rows of tile b their columns.  rows: a's, as
 * block_group_rows has them. */
MPK_FN void block_group_multiply(float (&r_sum)[1][8][4], const block_tile &a, rt_u64 rows,
                                 const block_tile &b, rt_u64 columns)
{
    ptx_group_begin();
#pragma unroll
    for (int k = 0; k < a.columns * 2; k += 32)
        block_group_one(b.dtype, &r_sum[0][0][0], block_group_at(rows, k / 16),
                        block_group_at(columns, k / 16));
    ptx_group_commit();
}

/* Weights of an iteration for the product in the next, rounded: operands of 16 entries of the sum
 * each. */
MPK_FN void block_group_keep(rt_u32 (&r_kept)[4][4], int dtype, const float (&r_a)[1][8][4])
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float *r = &r_a[0][i / 4 * 2 + i % 4 / 2][i % 2 * 2];
        r_kept[i / 4][i % 4] = rows_pair(dtype, r[0], r[1]);
    }
}
/* In front of the first iteration. */
MPK_FN void block_group_keep_none(rt_u32 (&r_kept)[4][4])
{
#pragma unroll
    for (int i = 0; i < 16; i++)
        r_kept[i / 4][i % 4] = 0;
}
/* Issue r_sum += a b of a that was kept: rows of tile b are entries of the sum.  more: else the
 * sums are the product alone. */
template <int B>
MPK_FN void block_group_add(float (&r_sum)[1][B][4], const rt_u32 (&r_kept)[4][4],
                            const block_tile &b, rt_u64 values, bool more)
{
    ptx_group_begin();
#pragma unroll
    for (int k = 0; k < 4; k++)
        block_group_one_kept<B>(b.dtype, &r_sum[0][0][0], r_kept[k],
                                block_group_at(values, k * BLOCK_GROUP_BYTES), more || k);
    ptx_group_commit();
}

#endif

#endif
