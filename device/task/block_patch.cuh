/* block_patch.cuh - windows that are kept in shared memory while the kernel goes over them: a
 * convolution's first factor, of images with channels last.
 *
 * A patch has what the windows of a tile's places need of some channels: pixels of whole lines,
 * zeros in the padding (shape/block_shape.h).  Its rows are read where they lie: ldmatrix takes the
 * address of a row from each lane, so row r of the factor at an entry of the kernel is the pixel
 * where the windows of place r begin, and a shift that is the same for all places.  A tile of
 * places and an entry of the kernel, brought by itself, would come as often as the kernel has
 * entries.
 *
 *   patch of 4 lines of 16 pixels, 3 x 3:   place 15 of 14 x 14 begins at pixel 17, and its entry
 *                                           (1, 2) is pixel 17 + 16 + 2
 *
 * block.cuh ends with this file; src/gen/block_print.c prints the calls, which all threads make.
 */
#ifndef TASK_BLOCK_PATCH_CUH
#define TASK_BLOCK_PATCH_CUH

/* Rows of a tile: places first, first + 1 ..., of which those before `end` are there, `most` at
 * most: the tile's rows, for which a patch has room. */
struct block_rows {
    rt_i64 first, end;
    int most;
};

/* The offset of a pixel of the patch in the tensor, of channel 0; BLOCK_AWAY: in the padding, or
 * after the last line that a place needs. */
MPK_FN int block_pixel_at(const block_window &w, const block_rows &r, int pixel)
{
    const int width = BLOCK_PATCH_WIDTH(w), line = pixel / width;
    const rt_u32 first = (rt_u32)r.first / (rt_u32)w.out[2]; /* line of places */
    const rt_i64 end = r.first + r.most < r.end ? r.first + r.most : r.end;
    const int lines = (int)((rt_u32)(end - 1) / (rt_u32)w.out[2] - first) + 1;
    const int y = (int)first * w.stride[1] - w.padding[1] + line, x = pixel % width - w.padding[2];
    const bool inside = line < BLOCK_SPAN(w, 1, lines) && (rt_u32)y < (rt_u32)w.in[1] &&
                        (rt_u32)x < (rt_u32)w.in[2];
    return inside ? y * w.step[1] + x * w.step[2] : BLOCK_AWAY;
}

/* Where a thread's copies of 16 bytes come from, the same for all channels: entries from the
 * image's first, BLOCK_AWAY where there is nothing.  Found once for a tile of places. */
template <int N> struct block_patch {
    int at[N];
};
template <int N>
MPK_FN void block_find_patch(block_patch<N> &p, const block_tile &tile, const block_window &w,
                             const block_rows &r)
{
    const int bytes = mpk_dtype_bytes(tile.dtype);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int at = block_pixel_at(w, r, block_copy_row(tile, j));
        p.at[j] =
            at == BLOCK_AWAY ? at : at + mpk_kept_thread() % BLOCK_PIECES(tile) * (16 / bytes);
    }
}

/* For a tensor that does not begin at a multiple of 16: a short loop that seldom runs. */
MPK_FN void block_patch_unaligned(const block_tile &tile, char *s_tile, const block_window &w,
                                  const block_rows &r, const char *g, int channel)
{
#pragma unroll 1
    for (int i = mpk_kept_thread(); i < tile.rows * tile.columns; i += MPK_THREADS) {
        const int row = i / tile.columns, column = i % tile.columns, at = block_pixel_at(w, r, row);
        block_put(tile, s_tile, row, column, tile.dtype, g, at + channel + column,
                  at != BLOCK_AWAY);
    }
}
/* The patch of the channels from `channel` on, in the background. */
template <int N>
MPK_FN void block_copy_patch(const block_tile &tile, char *s_tile, const block_patch<N> &p,
                             const block_window &w, const block_rows &r, const char *g, int channel)
{
    const int bytes = mpk_dtype_bytes(tile.dtype);
    if ((rt_u64)g & 15) {
        block_patch_unaligned(tile, s_tile, w, r, g, channel);
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        /* A copy of no bytes is of g itself, an address that is valid, and writes zeros: the
         * padding. */
        const bool inside = p.at[j] != BLOCK_AWAY;
        if (block_has_copy(tile, j))
            ptx_copy_async_part(s_tile + block_copy_to(tile, j),
                                inside ? g + (rt_i64)(p.at[j] + channel) * bytes : g,
                                inside ? 16 : 0);
    }
}

/* The pixels where the windows of this lane's rows begin, one of each of the warp's A fields; of
 * rows that are not there, the first, so that products read the patch and not past it.  The results
 * of those rows are not stored. */
template <int A>
MPK_FN void block_find_pixels(int (&pixel)[A], const block_warps &w, const block_window &window,
                              const block_rows &r)
{
    const rt_u32 width = (rt_u32)window.out[2], first = (rt_u32)r.first / width;
    const int thread = mpk_kept_thread();
#pragma unroll
    for (int i = 0; i < A; i++) {
        const rt_u32 row = (rt_u32)((thread / 32 % w.along[0] * A + i) * BLOCK_MMA_ROWS +
                                    thread % 16),
                     place = (rt_u32)r.first + row;
        const int at = (int)(place / width - first) * window.stride[1] * BLOCK_PATCH_WIDTH(window) +
                       (int)(place % width) * window.stride[2];
        pixel[i] = r.first + row < r.end ? at : 0;
    }
}
/* From there to entry `entry` of the kernel, in pixels of the patch.  It has its padding in it, so
 * the shift is the same for all places. */
MPK_FN int block_shift(const block_window &w, int entry)
{
    return entry / w.kernel[2] * w.dilation[1] * BLOCK_PATCH_WIDTH(w) +
           entry % w.kernel[2] * w.dilation[2];
}

/* As block_multiply_planned, with a first factor whose rows are pixels of the patch at `at_a`.  A
 * shift moves a row to another line of the swizzle, so addresses are found anew for each entry of
 * the kernel. */
template <int A, int B>
MPK_FN void block_multiply_patch(float (&r_sum)[A][B][4], const block_warps &w, const block_tile &a,
                                 rt_u32 at_a, const int (&pixel)[A], int shift, const block_tile &b,
                                 rt_u32 at_b, bool b_transposed)
{
    const int further = (block_part(w) * BLOCK_MMA_DEPTH + mpk_kept_thread() % 32 / 16 * 8) * 2;
    rt_u32 at[A]; /* the lane's rows */
#pragma unroll
    for (int i = 0; i < A; i++)
        at[i] = at_a + (rt_u32)BLOCK_AT(a.row_bytes, a.layout, pixel[i] + shift, further);
#pragma unroll
    for (int k = 0; k < a.columns; k += BLOCK_MMA_DEPTH * w.along[2]) {
        rt_u32 r_a[A][4], r_b[B / 2][4];
#pragma unroll
        for (int i = 0; i < A; i++)
            ptx_load_matrices_at(r_a[i], block_beside(a, at[i], 0, k));
        block_read_second(r_b, b, at_b, b_transposed, k);
        block_multiply_fields(r_sum, b.dtype, r_a, r_b);
    }
}

#endif
