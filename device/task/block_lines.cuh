/* block_lines.cuh - block programs with a softmax: rows of a fragment as lines, a number for each.
 *
 * The largest and the total of a warp's own columns, exponentials as weights, lines that warps
 * bring together.  A lane has two rows of each field, float[A][2]: of lane 4 g + c the rows g and g
 * + 8, which it shares with the three other lanes of its g.  Part of block.cuh, which includes it:
 * the end of a program that shares the sum among warps needs block_part and block_row of there.
 */
#ifndef TASK_BLOCK_LINES_CUH
#define TASK_BLOCK_LINES_CUH

/* One instruction; what is no number is dropped here, and its weight is no number either. */
MPK_FN float block_larger(float a, float b)
{
    return fmaxf(a, b);
}
/* exp(x) of a score's distance to the largest, as a weight: 2 to the power of x log2(e), exact to
 * about 2^-22 near 0 and to |x| 2^-24 further off, where weights are small. */
MPK_FN float block_weight(float x)
{
    return ptx_exp2(x * 1.44269504f);
}
/* exp(a c - b), b: the row's largest score times c.  One instruction where exp(a c - b) as it
 * stands has three, and exact to |b| 2^-23 of a weight: rows' scores are told apart by less only
 * where they exceed thousands. */
MPK_FN float block_weight_of(float a, float c, float b)
{
    return ptx_exp2(fmaf(a, c * 1.44269504f, b * -1.44269504f));
}
/* Has the largest score of a row of this warp grown?  Its sums are multiplied only then.  All lanes
 * get one answer, so the products after it are given by whole warps. */
template <int A> MPK_FN bool block_has_grown(const float (&r_rescale)[A][2])
{
    bool grown = false;
#pragma unroll
    for (int i = 0; i < A * 2; i++)
        grown = grown || r_rescale[i / 2][i % 2] != 1.0f;
    return __ballot_sync(0xffffffffu, grown) != 0;
}
/* Over the columns of a warp: a lane's own first, then the four lanes that have the same row (two
 * exchanges, over 1 and 2). */
template <int A, int B> MPK_FN void block_largest(float (&r_y)[A][2], const float (&r_x)[A][B][4])
{
#pragma unroll
    for (int i = 0; i < A * 2; i++) {
        float most = -MPK_INFINITY;
#pragma unroll
        for (int j = 0; j < B; j++)
            most = block_larger(
                most, block_larger(r_x[i / 2][j][i % 2 * 2], r_x[i / 2][j][i % 2 * 2 + 1]));
        most = block_larger(most, __shfl_xor_sync(0xffffffffu, most, 1));
        r_y[i / 2][i % 2] = block_larger(most, __shfl_xor_sync(0xffffffffu, most, 2));
    }
}
/* The sum of a lane's own columns; its order is fixed by the fragment's layout.  A program that
 * adds up over iterations leaves it so, and brings the four lanes together once, at the end
 * (block_total_of_lanes). */
template <int A, int B>
MPK_FN void block_total_by_lane(float (&r_y)[A][2], const float (&r_x)[A][B][4])
{
#pragma unroll
    for (int i = 0; i < A * 2; i++) {
        float sum = r_x[i / 2][0][i % 2 * 2] + r_x[i / 2][0][i % 2 * 2 + 1];
#pragma unroll
        for (int j = 1; j < B; j++)
            sum += r_x[i / 2][j][i % 2 * 2] + r_x[i / 2][j][i % 2 * 2 + 1];
        r_y[i / 2][i % 2] = sum;
    }
}
/* The sum of the four lanes of each row, which all of them get. */
template <int A> MPK_FN void block_total_of_lanes(float (&r_y)[A][2], const float (&r_x)[A][2])
{
#pragma unroll
    for (int i = 0; i < A * 2; i++) {
        float sum = r_x[i / 2][i % 2];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        r_y[i / 2][i % 2] = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
    }
}
/* The sum over the columns of a warp, in block_largest's order: where a program wants it whole in
 * each iteration. */
template <int A, int B> MPK_FN void block_total(float (&r_y)[A][2], const float (&r_x)[A][B][4])
{
    block_total_by_lane(r_y, r_x);
    block_total_of_lanes(r_y, r_y);
}

/* A line's parts, their largest or their sum, in the order of parts; every warp has the result.  s:
 * [parts][rows], of scratch that was read before the first barrier.  Each warp adds all parts for
 * itself, so no third barrier hands the result on. */
template <int A>
MPK_FN void block_join(float (&r_y)[A][2], const float (&r_x)[A][2], bool add, const block_warps &w,
                       int rows, char *s)
{
    float *s_line = (float *)s;
    mpk_sync();
#pragma unroll
    for (int i = 0; i < A * 2; i++)
        /* One of the four lanes that have the same. */
        if (mpk_kept_thread() % 4 == 0)
            s_line[block_part(w) * rows + block_row(w, rows, i / 2, i % 2 * 2)] = r_x[i / 2][i % 2];
    mpk_sync();
#pragma unroll
    for (int i = 0; i < A * 2; i++) {
        const int row = block_row(w, rows, i / 2, i % 2 * 2); /* of the tile */
        float all = s_line[row];
        for (int p = 1; p < w.along[2]; p++)
            all = add ? all + s_line[p * rows + row] : block_larger(all, s_line[p * rows + row]);
        r_y[i / 2][i % 2] = all;
    }
}

#endif
