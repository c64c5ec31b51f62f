/* block_put.cuh - a fragment of a block program to memory whose rows are the tile's rows: the end
 * of attention, whose sums leave no room in shared memory for an end by rows (block.cuh).
 *
 * block.cuh ends with this file; src/gen/block_print.c prints the call, which all threads of the
 * warps that have the sum make.
 */
#ifndef TASK_BLOCK_PUT_CUH
#define TASK_BLOCK_PUT_CUH

/* The entries of a tile that are inside of the box, to rows of the result whose entries are
 * neighbours.  at: the offset of the tile's first entry; stride: from a row to the next; *_left: of
 * the box, from the tile's first row and column on.  A thread's two neighbours go as one word if
 * all rows begin at whole words.  A store of a warp is 16 bytes of each of eight rows: the price of
 * no room for whole rows. */
template <int A, int B>
MPK_FN void block_put(const float (&r)[A][B][4], const block_warps &w, int rows, int columns,
                      const mpk_view &v, char *g, rt_i64 at, rt_i64 stride, rt_i64 rows_left,
                      rt_i64 columns_left)
{
    const int row = block_row(w, rows, 0, 0), column = block_column(w, columns, 0, 0);
    const int down = (int)(rows_left < rows ? rows_left : rows) - row;
    const int right = (int)(columns_left < columns ? columns_left : columns) - column;
    const int bytes = mpk_dtype_bytes(v.dtype);
    const bool is_pair = bytes == 2 && (rt_u64)(g + at * 2) % 4 == 0 && stride % 2 == 0;
    char *g_row = g + (at + row * stride + column) * bytes;
#pragma unroll
    for (int i = 0; i < A * 2; i++) {
        if (i)
            g_row += 8 * stride * bytes;
        /* Rows rise with i, so none of the others is there. */
        if (i * 8 >= down)
            break;
#pragma unroll
        for (int b = 0; b < B; b++) {
            const float *two = r[i / 2][b] + i % 2 * 2;
            const int n = b * BLOCK_MMA_COLUMNS;
            /* The pair is there as a whole. */
            if (is_pair && n + 1 < right) {
                *(rt_u32 *)(g_row + n * 2) = rows_pair(v.dtype, two[0], two[1]);
                continue;
            }
            if (n < right)
                mpk_put(v, g_row, n, two[0]);
            if (n + 1 < right)
                mpk_put(v, g_row, n + 1, two[1]);
        }
    }
}

#endif
