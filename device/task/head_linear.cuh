/* head_linear.cuh - products of heads with a weight each, for any shape: a thread has whole
 * elements of the result.
 *
 * Input: views x [T, H, D] and w [H, F, D] of any plain dtype and strides; output: the task's box
 * of y [T, H, F].  This is the body of rank 0, which head_stream and head_tile are compared with.
 * A sum runs from 0 to D - 1 in double.  Threads share nothing.
 * Cost: 2 D flops an element, and its two rows from the cache.
 */
#ifndef TASK_HEAD_LINEAR_CUH
#define TASK_HEAD_LINEAR_CUH

#include "tile/view.cuh"

MPK_FN void head_linear_run(const mpk_task &t, const mpk_view &x, const mpk_view &w,
                            const mpk_view &y)
{
    const char *g_x = mpk_data(t, x), *g_w = mpk_data(t, w);
    char *g_y = mpk_data(t, y);
    const mpk_box box = mpk_box_of(t, y.rank);
    const rt_u64 n = mpk_count(box, y.rank);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK]; /* token, head, row of its weight */
        mpk_place(box, y.rank, i, at);
        const rt_i64 of_x = at[0] * x.stride[0] + at[1] * x.stride[1],
                     of_w = at[1] * w.stride[0] + at[2] * w.stride[1];
        double sum = 0;
        for (rt_i64 k = 0; k < x.dims[2]; k++)
            sum += (double)mpk_get(x, g_x, of_x + k * x.stride[2]) *
                   (double)mpk_get(w, g_w, of_w + k * w.stride[2]);
        mpk_put(y, g_y, mpk_offset(y, at), (float)sum);
    }
}

#endif
