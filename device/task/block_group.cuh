/* block_group.cuh - block programs whose products are those of warpgroups: attention (block.cuh,
 * which ends with this file; printed by src/gen/block_print.c).
 *
 * Each of the two warpgroups has 64 rows, 16 a warp: a fragment of 64 columns is float[1][8][4], as
 * of a program of eight warps along rows.  Shared factors are tiles of 64 or more rows that begin
 * 128 bytes apart, BLOCK_SWIZZLED, which is the 128-byte swizzle of matrix.cuh; products read the
 * tile's columns alone.  Products run in the background until the iteration's end
 * (block_group_end).  Called by the instances that src/gen/body_block_attention.c prints.
 *
 *   block_group_wait       copies have arrived; all threads meet
 *   block_copy             tiles of a later iteration
 *   largest, powers        of this iteration's scores, 32 a lane
 *   block_group_multiply   the next iteration's scores, in the same registers
 *   exponentials, totals   under these products
 *   block_group_add        weights times values, the first half under exponentials of the second
 *   block_group_end
 *
 * No product may be in flight where the loop goes back: in a kernel that also has the products of
 * linear_box.cuh ptxas then finds no registers, and waits after each product of both (C7512).
 * Cost of an iteration with heads of 64 entries: 8 wgmma of 64 x 64 x 16 a warpgroup, 512 cycles of
 * the tensor cores for both (of 40: 3 of 64 columns and 4 of 40, 352); 32 exponentials a lane, 512
 * cycles of theirs.
 */
#ifndef TASK_BLOCK_GROUP_CUH
#define TASK_BLOCK_GROUP_CUH

#if MPK_WGMMA

/* exp2 of this is exp(x); block_power_of: exp(a c - b). */
MPK_FN float block_power(float x)
{
    return x * 1.44269504f;
}
MPK_FN float block_power_of(float a, float c, float b)
{
    return fmaf(a, c * 1.44269504f, b * -1.44269504f);
}

/* Does an entry of a row of this warp exceed the row's number by more than `room`?  The same answer
 * in all lanes.  What is no number exceeds nothing. */
template <int B>
MPK_FN bool block_exceeds(const float (&r_x)[1][B][4], const float (&r_line)[1][2], float room)
{
    bool any = false;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float most[B]; /* of pairs, then of pairs of those: few wait for one before */
#pragma unroll
        for (int j = 0; j < B; j++)
            most[j] = block_larger(r_x[0][j][i * 2], r_x[0][j][i * 2 + 1]);
#pragma unroll
        for (int d = B / 2; d; d /= 2)
#pragma unroll
            for (int j = 0; j < d; j++)
                most[j] = block_larger(most[j], most[j + d]);
        any = any || most[0] > r_line[0][i] + room;
    }
    return __any_sync(0xffffffffu, any) != 0;
}

/* block_copy of a tile whose rows the loop goes over.  Each iteration's but the last's are all
 * there, so that copies of these ask for nothing. */
template <int N>
MPK_FN void block_group_copy(const block_tile &tile, char *s_tile, const block_copies<N> &r,
                             rt_i64 row_step, rt_i64 ahead, rt_i64 left)
{
    if (left < tile.rows || (rt_u64)r.g & 15) {
        block_copy(tile, s_tile, r, true, false, row_step, ahead, left);
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        ptx_copy_async_part(s_tile + block_copy_to(tile, j), r.at[j] + ahead, r.n_bytes[j]);
}

/* All but the last N groups of loads have arrived, and both warpgroups' products see them. */
template <int N> MPK_FN void block_group_wait(void)
{
    ptx_copy_async_wait<N>();
    ptx_fence_shared();
    mpk_sync();
}
/* All products have ended. */
MPK_FN void block_group_end(void)
{
    ptx_group_wait<0>();
}

/* Columns of the sum 16 k and on are 32 k bytes further in the swizzled rows (matrix.cuh), rows of
 * 128 bytes 2,048 a field of 16: as units of 16 bytes of a descriptor. */
MPK_FN rt_u64 block_group_further(rt_u64 matrix, int bytes)
{
    return (matrix & 0xffffffff00000000u) | ((rt_u32)matrix + (rt_u32)(bytes / 16));
}

/* One product of 16 entries of the sum; N is a constant, so one call is left. */
MPK_FN void block_group_one(int dtype, float *sum, rt_u64 a, rt_u64 b)
{
    if (dtype == MPK_BF16)
        ptx_group_multiply_bf16_64(sum, a, b);
    else
        ptx_group_multiply_f16_64(sum, a, b);
}
/* B: eights of the sums' columns. */
template <int B> MPK_FN void block_group_one_kept(int dtype, float *sum, const rt_u32 *a, rt_u64 b)
{
#define BLOCK_KEPT(columns)                                \
    if (B * 8 == columns && dtype == MPK_BF16)             \
        ptx_group_multiply_kept_bf16_##columns(sum, a, b); \
    else if (B * 8 == columns)                             \
        ptx_group_multiply_kept_f16_##columns(sum, a, b);
    BLOCK_KEPT(32)
    BLOCK_KEPT(40)
    BLOCK_KEPT(48)
    BLOCK_KEPT(56)
    BLOCK_KEPT(64)
#undef BLOCK_KEPT
}

/* Issue r_sum += a b: rows of tile a are the sums', rows of tile b their columns.  The descriptor
 * of a warpgroup's rows is the same in all lanes; the shuffle tells the compiler so. */
MPK_FN void block_group_multiply(float (&r_sum)[1][8][4], const block_tile &a, const char *s_a,
                                 const block_tile &b, const char *s_b)
{
    const char *s_own = s_a + mpk_kept_thread() / 128 * (BLOCK_GROUP_ROWS * BLOCK_GROUP_BYTES);
    const rt_u64 own = ptx_matrix_of_rows(s_own), columns = ptx_matrix_of_rows(s_b);
    const rt_u64 rows =
        (own & 0xffffffff00000000u) | __shfl_sync(0xffffffffu, (rt_u32)own, 0); /* uniform */
    ptx_group_begin();
#pragma unroll
    for (int k = 0; k < a.columns * 2; k += 32)
        block_group_one(b.dtype, &r_sum[0][0][0], block_group_further(rows, k),
                        block_group_further(columns, k));
    ptx_group_commit();
}

/* Issue r_sum += a b of a in registers, which are rounded: rows of tile b are entries of the sum.
 * In two halves, so that the first can begin while the second's entries are made. */
template <int B>
MPK_FN void block_group_add(float (&r_sum)[1][B][4], const float (&r_a)[1][8][4],
                            const block_tile &b, const char *s_b)
{
    const rt_u64 values = ptx_matrix_of_rows(s_b);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rt_u32 r_pairs[2][4]; /* operands of 16 entries of the sum each */
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float *r = &r_a[0][half * 4 + i / 4 * 2 + i % 4 / 2][i % 2 * 2];
            r_pairs[i / 4][i % 4] = rows_pair(b.dtype, r[0], r[1]);
        }
        ptx_group_begin();
#pragma unroll
        for (int k = 0; k < 2; k++)
            block_group_one_kept<B>(
                b.dtype, &r_sum[0][0][0], r_pairs[k],
                block_group_further(values, (half * 2 + k) * 16 * BLOCK_GROUP_BYTES));
        ptx_group_commit();
    }
}

#endif

#endif
