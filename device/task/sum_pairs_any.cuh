/* sum_pairs_any.cuh - the weighted sums over the experts of a token, of any dtype and strides: the
 * generic body of sum_pairs, what sum_pairs.cuh is compared with.
 *
 * y[t, c] = residual[t, c] + sum over j of scale[t, j] x[t, j, c]. A thread has an entry of y and
 * adds the pairs in rising j, the residual last, so the bits do not depend on how the operator is
 * cut. Cost: x is read once, by neighbouring threads at neighbouring columns.
 */
#ifndef TASK_SUM_PAIRS_ANY_CUH
#define TASK_SUM_PAIRS_ANY_CUH

#include "tile/view.cuh"

/* The body: the box's entries are spread over the threads in row-major order.  x [T, J, C],
 * scale [T, J], residual [T, C] or absent. */
MPK_FN void sum_pairs_any(const mpk_task &t, const mpk_view &x, const mpk_view &scale,
                          const mpk_view &residual, const mpk_view &y)
{
    const char *g_x = mpk_data(t, x), *g_scale = mpk_data(t, scale),
               *g_residual = mpk_data(t, residual);
    const mpk_box box = mpk_box_of(t, 2);
    const rt_u64 n = mpk_count(box, 2);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(box, 2, i, at);
        float sum = 0;
        for (rt_i64 j = 0; j < x.dims[1]; j++)
            sum += mpk_get(scale, g_scale, at[0] * scale.stride[0] + j * scale.stride[1]) *
                   mpk_get(x, g_x, at[0] * x.stride[0] + j * x.stride[1] + at[1] * x.stride[2]);
        if (mpk_is_there(residual))
            sum += mpk_get(residual, g_residual, mpk_offset(residual, at));
        mpk_put(y, mpk_data(t, y), mpk_offset(y, at), sum);
    }
}

#endif
