/* unfold.cuh - unfold: windows of images as rows, side by side.
 *
 * Input: x [N, C, H, W] of any strides; output: the task's box of y [N, lines, places, entries].  A
 * row of y has the entries of a window one after the other, and of each all channels; zeros follow,
 * up to `entries`.  src/op/unfold.c says what this is for: a convolution of few channels becomes
 * one whose rows are whole words.  The generic body: an entry a thread, any plain dtype; 16 bits
 * take unfold_lines.cuh where scratch has room.  Cost: a read and a write of each entry of y.
 */
#ifndef TASK_UNFOLD_CUH
#define TASK_UNFOLD_CUH

#include "task/copies.cuh"

/* The attributes; of each the lines come first. */
struct unfold_how {
    mpk_numbers kernel, stride, padding;
};

/* The body of unfold, entry by entry.  Neighbouring threads write neighbours and read channels,
 * which are neighbours in x if channels are last. */
MPK_FN void unfold_run(const mpk_task &t, const mpk_view &x, const mpk_view &y, const unfold_how &h)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    const mpk_box box = mpk_box_of(t, 4);
    const rt_u64 n = mpk_count(box, 4);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(box, 4, i, at);
        const rt_i64 k = at[3] / x.dims[1], /* of the window, and then the channel */
            line = at[1] * h.stride.at[0] - h.padding.at[0] + k / h.kernel.at[1],
                     column = at[2] * h.stride.at[1] - h.padding.at[1] + k % h.kernel.at[1];
        /* In the padding, or beyond the window, the offset below is no place of x, and is not
         * used. */
        const bool there = k < h.kernel.at[0] * h.kernel.at[1] && line >= 0 && line < x.dims[2] &&
                           column >= 0 && column < x.dims[3];
        copies_move(y.dtype, g_y, mpk_offset(y, at), there ? g_x : (const char *)0,
                    at[0] * x.stride[0] + at[3] % x.dims[1] * x.stride[1] + line * x.stride[2] +
                        column * x.stride[3]);
    }
}

#endif
