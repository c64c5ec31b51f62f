/* matmul.cuh - batch_matmul: each thread computes whole elements of the result.  A sum runs from 0
 * to N - 1, in double; of integers it is exact (modulo 2^64).
 *
 * The generic body, for f64, integers and whatever else the block programs (block.cuh) do not take.
 * Input: a [.., M, N], b [.., N, Q] or [.., Q, N], batches broadcast; output: the task's box of y
 * [.., M, Q].  Threads share nothing: no scratch, no barriers, and an element's bits depend on
 * nothing but its row and column.
 * Cost: 2 N flops an element, and its row and column from the cache. */
#ifndef TASK_MATMUL_CUH
#define TASK_MATMUL_CUH

#include "tile/view.cuh"

/* Offset of the matrix of v, without its last two axes, that belongs to a batch of the result of
 * `rank` axes: axes are matched from the last, and those of one entry are broadcast. */
MPK_FN rt_i64 batch_matmul_matrix(const mpk_view &v, int rank, const rt_i64 *at)
{
    rt_i64 offset = 0;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++) {
        int axis = i - (rank - v.rank);
        if (i + 2 < rank && axis >= 0 && v.dims[axis] != 1)
            offset += at[i] * v.stride[axis];
    }
    return offset;
}

/* The body.  transposed: b is [.., Q, N].  outer: the step of b from one column of the result to
 * the next; step_a and step_b: along the sum.  Neighbouring threads have neighbouring columns,
 * so they share the row of a and read b side by side unless it is transposed. */
MPK_FN void batch_matmul_run(const mpk_task &t, const mpk_view &a, const mpk_view &b,
                             const mpk_view &y, bool transposed)
{
    const char *g_a = mpk_data(t, a), *g_b = mpk_data(t, b);
    char *g_y = mpk_data(t, y);
    rt_i64 step_a = a.stride[a.rank - 1], step_b = b.stride[transposed ? b.rank - 1 : b.rank - 2];
    rt_i64 outer = b.stride[transposed ? b.rank - 2 : b.rank - 1];
    mpk_box box = mpk_box_of(t, y.rank);
    rt_u64 n = mpk_count(box, y.rank);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(box, y.rank, i, at);
        rt_i64 row = batch_matmul_matrix(a, y.rank, at) + at[y.rank - 2] * a.stride[a.rank - 2];
        rt_i64 column = batch_matmul_matrix(b, y.rank, at) + at[y.rank - 1] * outer;
        double sum = 0;   /* of floats */
        rt_u64 whole = 0; /* of integers, modulo 2^64 */
        for (rt_i64 k = 0; k < a.dims[a.rank - 1]; k++)
            if (mpk_is_exact(y.dtype))
                whole += (rt_u64)mpk_get_int(a, g_a, row + k * step_a) *
                         (rt_u64)mpk_get_int(b, g_b, column + k * step_b);
            else
                sum += mpk_get_double(a, g_a, row + k * step_a) *
                       mpk_get_double(b, g_b, column + k * step_b);
        if (mpk_is_exact(y.dtype))
            mpk_put_int(y, g_y, mpk_offset(y, at), (rt_i64)whole);
        else
            mpk_put_double(y, g_y, mpk_offset(y, at), sum);
    }
}

#endif
