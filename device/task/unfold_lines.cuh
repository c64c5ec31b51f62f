/* unfold_lines.cuh - unfold of 16 bits, by lines of the image in scratch.
 *
 * Input: x [N, C, H, W] of any strides; output: the task's box of y [N, lines, places, entries],
 * which has whole lines.  The lines of x that some lines of y see are kept in scratch with zeros
 * around them, so that nothing asks where a window ends; then a thread makes 16 bytes of a row,
 * always the same ones, whose places in the window it has found before.
 *
 * A row of y is a window: its entries in the order of the kernel, and of each the channels, which
 * are neighbours.  Zeros follow where y has more entries than that.  In scratch:
 *
 *    [channel][line][column]   PITCH columns: zeros, the image from column `left` on, zeros
 *
 * PITCH and left are multiples of eight, so that pieces of x and of scratch match
 * (src/shape/unfold_shape.h, which src/gen/body_unfold.c reads, too, and chooses LINES so that
 * UNFOLD_MOST_BYTES hold all).  The generic body is unfold_run.  Cost: x once, from memory, and y.
 * Windows read scratch two bytes at a time: eight loads for 16 bytes of y.
 */
#ifndef TASK_UNFOLD_LINES_CUH
#define TASK_UNFOLD_LINES_CUH

#include "shape/unfold_shape.h"
#include "task/unfold.cuh"

/* Eight entries of a line of x from `column` on, which may be negative, zeros where there are none;
 * aligned: pieces of x are whole words.  g_line: the line, NULL outside of the image. */
MPK_FN copies_quad unfold_piece(const mpk_view &x, const rt_u16 *g_line, int column, bool aligned)
{
    const int n = (int)x.dims[3];
    copies_quad piece = {{0, 0}};
    if (!g_line)
        return piece;
    if (aligned && column >= 0 && column + UNFOLD_PIECE <= n)
        return *(const copies_quad *)(g_line + column);
#pragma unroll
    for (int j = 0; j < UNFOLD_PIECE; j++)
        /* As an unsigned number a column before the image is larger than any in it. */
        if ((rt_u32)(column + j) < (rt_u32)n)
            piece.at[j / 4] |= (rt_u64)g_line[(column + j) * x.stride[3]] << j % 4 * 16;
    return piece;
}

/* All threads: bring ROWS lines of all channels of an image, from line `top` on, which may lie
 * outside, to s [C, ROWS, PITCH].  An item is a piece; its number is also its place in s, so that
 * stores need no address of their own and the threads of a warp store neighbours.  A barrier must
 * follow. */
template <int ROWS, int PITCH>
MPK_FN void unfold_keep(rt_u16 *s, const mpk_view &x, const rt_u16 *g_image, int top, int left,
                        bool aligned)
{
    enum { PIECES = PITCH / UNFOLD_PIECE, TOGETHER = 4 /* loads under way */ };
    const int n = (int)x.dims[1] * ROWS * PIECES;
#pragma unroll 1
    for (int i = mpk_thread(); i < n; i += TOGETHER * MPK_THREADS) {
        /* All loads are requested before one is stored: the store waits for its load. */
        copies_quad r[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const int item = i + j * MPK_THREADS, piece = item % PIECES, row = item / PIECES % ROWS,
                      channel = item / PIECES / ROWS;
            const bool there = item < n && (rt_u32)(top + row) < (rt_u32)x.dims[2];
            r[j] = unfold_piece(
                x, there ? g_image + channel * x.stride[1] + (top + row) * x.stride[2] : 0,
                piece * UNFOLD_PIECE - left, aligned);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            if (i + j * MPK_THREADS < n)
                ((copies_quad *)s)[i + j * MPK_THREADS] = r[j];
    }
}

/* The body of unfold of 16 bits, LINES lines of y at a time, which see ROWS of x, of PITCH entries
 * each.  ENTRIES / 8 divides the number of threads: in each round a thread then has the same word
 * of its row. */
template <int LINES, int ROWS, int PITCH, int ENTRIES>
MPK_FN void unfold_lines(const mpk_task &t, const mpk_view &x, const mpk_view &y,
                         const unfold_how &h)
{
    /* 16-byte words of a row of y, each made by a thread of its own */
    enum { WORDS = ENTRIES / UNFOLD_PIECE };
    const rt_u16 *g_x = (const rt_u16 *)mpk_data(t, x);
    rt_u16 *g_y = (rt_u16 *)mpk_data(t, y), *s = (rt_u16 *)t.s_scratch;
    /* Do all lines begin at multiples of 16 bytes?  A constant but for the address. */
    const bool aligned = x.stride[3] == 1 && x.stride[2] % UNFOLD_PIECE == 0 &&
                         x.stride[1] % UNFOLD_PIECE == 0 && x.stride[0] % UNFOLD_PIECE == 0 &&
                         ((rt_u64)g_x & 15) == 0;
    const int channels = (int)x.dims[1], columns = (int)h.kernel.at[1], places = (int)y.dims[2],
              left = unfold_left((int)h.padding.at[1]), word = mpk_thread() % WORDS;
    int r_from[UNFOLD_PIECE]; /* where this thread's entries of a window lie; -1: zero */
#pragma unroll
    for (int j = 0; j < UNFOLD_PIECE; j++) {
        /* e: entry of the row; k: of the kernel.  A window begins padding columns before the image,
         * which begins at `left`. */
        const int e = word * UNFOLD_PIECE + j, k = e / channels;
        r_from[j] = k < (int)h.kernel.at[0] * columns
                        ? (e % channels * ROWS + k / columns) * PITCH + k % columns + left -
                              (int)h.padding.at[1]
                        : -1;
    }
    const mpk_box box = mpk_box_of(t, 4);
#pragma unroll 1
    for (rt_u32 image = box.lo[0]; image < box.hi[0]; image++)
#pragma unroll 1
        for (rt_u32 first = box.lo[1]; first < box.hi[1]; first += LINES) {
            const int lines = box.hi[1] - first < LINES ? (int)(box.hi[1] - first) : LINES;
            mpk_sync(); /* the lines before have been read by all */
            unfold_keep<ROWS, PITCH>(s, x, g_x + image * x.stride[0],
                                     (int)first * (int)h.stride.at[0] - (int)h.padding.at[0], left,
                                     aligned);
            mpk_sync();
            /* A row of y is a place of a line; its window begins stride lines of scratch below that
             * of the line before.  Neighbouring threads store neighbouring words of y. */
#pragma unroll 2
            for (int i = mpk_thread() / WORDS; i < lines * places; i += MPK_THREADS / WORDS) {
                const int line = i / places, place = i - line * places;
                const rt_u16 *s_window =
                    s + line * (int)h.stride.at[0] * PITCH + place * (int)h.stride.at[1];
                copies_quad r = {{0, 0}};
#pragma unroll
                for (int j = 0; j < UNFOLD_PIECE; j++)
                    r.at[j / 4] |= (rt_u64)(r_from[j] < 0 ? 0 : s_window[r_from[j]]) << j % 4 * 16;
                /* y is dense, so the words of a row follow those of the row before. */
                ((copies_quad *)
                     g_y)[((rt_i64)(image * (rt_u32)y.dims[1] + first + line) * places + place) *
                              WORDS +
                          word] = r;
            }
        }
}

#endif
