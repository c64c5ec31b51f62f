/* join_peaks.cuh - the peaks of rows of logits whose columns several peers have made
 * (src/op/join_peaks.c): copied, their columns moved on.
 *
 * A body calls join_peaks_part for each part, in all threads.  Each part but the last has whole
 * blocks of 64 columns, so blocks are never cut; a column of -1 (a block of NaN) stays. Cost:
 * memory.
 */
#ifndef TASK_JOIN_PEAKS_CUH
#define TASK_JOIN_PEAKS_CUH

#include "tile/view.cuh"

enum { JOIN_PEAKS_COLUMNS = 64 }; /* of a block */

/* The blocks of the task's box that come from x, whose block 0 is block `first` of y.  An entry
 * of axis 2 is the peak (0) and its column (1), as floats. */
MPK_FN void join_peaks_part(const mpk_task &t, const mpk_view &x, const mpk_view &y, rt_i64 first)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    mpk_box box = mpk_box_of(t, 2);
    const rt_i64 end = first + x.dims[1];
    box.lo[1] = box.lo[1] > first ? box.lo[1] : (rt_u32)first;
    box.hi[1] = box.hi[1] < end ? box.hi[1] : (rt_u32)end;
    const rt_u64 n = mpk_count(box, 2);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(box, 2, i, at);
        const rt_i64 from = at[0] * x.stride[0] + (at[1] - first) * x.stride[1],
                     to = at[0] * y.stride[0] + at[1] * y.stride[1];
        const float column = mpk_get(x, g_x, from + x.stride[2]);
        mpk_put(y, g_y, to, mpk_get(x, g_x, from));
        mpk_put(y, g_y, to + y.stride[2],
                column >= 0 ? column + (float)(first * JOIN_PEAKS_COLUMNS) : column);
    }
}

#endif
