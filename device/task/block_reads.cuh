/* block_reads.cuh - products of a block program's loop whose reads of shared memory are planned
 * before it.
 *
 * An iteration has few products, and warps meet before them, so what stands between two iterations
 * is waited for.  What the address of a lane's row of 16 bytes has in common in all iterations is
 * found once: of the 310 instructions of an iteration of 64 x 128 and 64 entries, 32 of which
 * multiply, 50 were such arithmetic.  A field further down a tile is a constant further on, which
 * the load itself adds; 16 entries further along move by an exclusive or where the tile is
 * swizzled.
 *
 *   reads_a = block_find_rows(tile_a, ...);                 before the loop
 *   block_multiply_planned(r_sum, warps, tile_a,
 *                          reads_a + copy of the iteration, false, ...);    in it
 *
 * block.cuh ends with this file; src/gen/block_print.c prints the calls, which all threads make.
 */
#ifndef TASK_BLOCK_READS_CUH
#define TASK_BLOCK_READS_CUH

/* The copy that follows copy `i` of n. */
MPK_FN int block_copy_after(int i, int n)
{
    return i + 1 == n ? 0 : i + 1;
}

/* The first factor: the lane's row of the warp's first field, as block_read_rows reads it, of
 * `fields` rows for each warp: an address in the shared window, of copy 0.  Kept in a register
 * (ptx_keep), or the compiler would work it out again in each iteration. */
MPK_FN rt_u32 block_find_rows(const block_tile &tile, const char *s_tile, const block_warps &w,
                              bool transposed, int fields)
{
    const int lane = mpk_kept_thread() % 32, near = lane % 8, low = lane / 8 % 2 * 8,
              high = lane / 16 * 8;
    const int row = mpk_kept_thread() / 32 % w.along[0] * fields,
              k = block_part(w) * BLOCK_MMA_DEPTH;
    return ptx_keep(ptx_shared(transposed ? block_piece(tile, s_tile, k, near + high, row, low)
                                          : block_piece(tile, s_tile, row, near + low, k, high)));
}
/* The second factor, as block_read_columns reads it. */
MPK_FN rt_u32 block_find_columns(const block_tile &tile, const char *s_tile, const block_warps &w,
                                 bool transposed, int fields)
{
    const int lane = mpk_kept_thread() % 32, near = lane % 8, low = lane / 8 % 2 * 8,
              high = lane / 16 * 8;
    const int column = mpk_kept_thread() / 32 / w.along[0] % w.along[1] * fields,
              k = block_part(w) * BLOCK_MMA_DEPTH;
    return ptx_keep(ptx_shared(transposed
                                   ? block_piece(tile, s_tile, column, near + high, k, low)
                                   : block_piece(tile, s_tile, k, near + low, column, high)));
}

/* From there `rows` rows down and `columns` entries along, multiples of 16.  Entries along are
 * bits that the place has not: a warp's fields, and 16 for each warp along the sum, are powers of
 * two.  A swizzle stays within 128 bytes, at whose multiples tiles begin. */
MPK_FN rt_u32 block_beside(const block_tile &tile, rt_u32 at, int rows, int columns)
{
    const rt_u32 along = (rt_u32)columns * 2,
                 down = (rt_u32)(rows * BLOCK_PITCH(tile.row_bytes, tile.layout));
    return (tile.layout == BLOCK_SWIZZLED ? (at ^ along % 128) + along / 128 * 128 : at + along) +
           down;
}
MPK_FN void block_read_planned(rt_u32 *r, bool transposed, rt_u32 at)
{
    if (transposed)
        ptx_load_matrices_transposed_at(r, at);
    else
        ptx_load_matrices_at(r, at);
}

/* The second factor's fields of 16 columns, at entries k of the sum. */
template <int N>
MPK_FN void block_read_second(rt_u32 (&r_b)[N][4], const block_tile &b, rt_u32 at_b,
                              bool b_transposed, int k)
{
#pragma unroll
    for (int j = 0; j < N; j++)
        block_read_planned(r_b[j], !b_transposed,
                           b_transposed ? block_beside(b, at_b, j * 16, k)
                                        : block_beside(b, at_b, k, j * 16));
}

/* 16 entries of the sum, of all fields: A B products, none of which adds to what one before has
 * added to. */
template <int A, int B>
MPK_FN void block_multiply_fields(float (&r_sum)[A][B][4], int dtype, const rt_u32 (&r_a)[A][4],
                                  const rt_u32 (&r_b)[B / 2][4])
{
#pragma unroll
    for (int i = 0; i < A; i++)
#pragma unroll
        for (int j = 0; j < B; j++)
            block_multiply_one(dtype, r_sum[i][j], r_a[i], r_b[j / 2] + j % 2 * 2);
}

/* As block_multiply_mma, from where reads of both tiles begin in the iteration's copies. */
template <int A, int B>
MPK_FN void block_multiply_planned(float (&r_sum)[A][B][4], const block_warps &w,
                                   const block_tile &a, rt_u32 at_a, bool a_transposed,
                                   const block_tile &b, rt_u32 at_b, bool b_transposed)
{
    const int depth = a_transposed ? a.rows : a.columns;
#pragma unroll
    for (int k = 0; k < depth; k += BLOCK_MMA_DEPTH * w.along[2]) {
        rt_u32 r_a[A][4], r_b[B / 2][4];
#pragma unroll
        for (int i = 0; i < A; i++)
            block_read_planned(r_a[i], a_transposed,
                               a_transposed ? block_beside(a, at_a, k, i * BLOCK_MMA_ROWS)
                                            : block_beside(a, at_a, i * BLOCK_MMA_ROWS, k));
        block_read_second(r_b, b, at_b, b_transposed, k);
        block_multiply_fields(r_sum, b.dtype, r_a, r_b);
    }
}

#endif
