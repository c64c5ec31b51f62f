/* norm_rows.cuh - rms_norm of the rows of many tokens, bf16: x [T, D], weight [D] or absent -> y [T, D].
 *
 * A warp takes a row, 16 bytes a lane.  Of a row of up to 4,096 columns all pieces are asked for at once and stay in
 * registers; what is longer is read again for the result.  Cost: the bytes of x and y through L2.
 */
#ifndef TASK_NORM_ROWS_CUH
#define TASK_NORM_ROWS_CUH

#include "ptx/ptx.cuh"
#include "tile/inverse.cuh"
#include "tile/task.cuh"

enum { NORM_X, NORM_WEIGHT, NORM_AT_ONCE = 16 };

struct norm_shape {
    int columns;     /* a multiple of 8 */
    int weight_type; /* -1: absent, 0: bf16, 1: f32 */
    int y;           /* operand */
    float eps;
};

/* 8 neighbours of the row from `column` on; zeros behind its end. */
MPK_FN mpk_words norm_piece(const norm_shape &s, const rt_u16 *row, int column)
{
    mpk_words v = {0, 0, 0, 0};
    ptx_load_words_if(row + column, column < s.columns, &v);
    return v;
}

MPK_FN float norm_add_squares(const mpk_words &v, float sum)
{
    const rt_u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float a = ptx_low_bf16(words[e]), b = ptx_high_bf16(words[e]);
        sum = fmaf(b, b, fmaf(a, a, sum));
    }
    return sum;
}

MPK_FN float norm_weight(const mpk_task &t, const norm_shape &s, int column)
{
    if (s.weight_type < 0)
        return 1;
    if (s.weight_type)
        return mpk_at<const float>(t, NORM_WEIGHT)[column];
    return __uint_as_float((rt_u32)mpk_at<const rt_u16>(t, NORM_WEIGHT)[column] << 16);
}

MPK_FN rt_u32 norm_pair(const mpk_task &t, const norm_shape &s, rt_u32 v, float factor, int column)
{
    float a = ptx_low_bf16(v) * factor, b = ptx_high_bf16(v) * factor;
    if (s.weight_type >= 0) {
        a *= norm_weight(t, s, column);
        b *= norm_weight(t, s, column + 1);
    }
    return ptx_pack_bf16(a, b);
}

/* 8 columns of y; behind the row's end none. */
MPK_FN void norm_store(const mpk_task &t, const norm_shape &s, rt_u16 *y, int column, const mpk_words &v, float factor)
{
    if (column < s.columns)
        ptx_store_words(y + column,
                        {norm_pair(t, s, v.x, factor, column), norm_pair(t, s, v.y, factor, column + 2),
                         norm_pair(t, s, v.z, factor, column + 4), norm_pair(t, s, v.w, factor, column + 6)});
}

MPK_FN void norm_rows(const mpk_task &t, const norm_shape &s)
{
    const int warp = mpk_thread() / 32, lane = mpk_thread() % 32;
    for (int row = (int)t.e->lo[0] + warp; row < (int)t.hi0; row += MPK_WARPS) {
        const rt_u16 *x = mpk_at<const rt_u16>(t, NORM_X) + (rt_u64)row * (rt_u32)s.columns;
        rt_u16 *y = mpk_at<rt_u16>(t, s.y) + (rt_u64)row * (rt_u32)s.columns;
        mpk_words v[NORM_AT_ONCE];
        float sum = 0;
        for (int first = lane * 8; first < s.columns; first += 256 * NORM_AT_ONCE) {
#pragma unroll
            for (int i = 0; i < NORM_AT_ONCE; i++)
                v[i] = norm_piece(s, x, first + 256 * i);
#pragma unroll
            for (int i = 0; i < NORM_AT_ONCE; i++)
                sum = norm_add_squares(v[i], sum);
        }
#pragma unroll
        for (int d = 1; d < 32; d *= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, d);
        const float factor = rsqrtf(sum * mpk_inverse((float)s.columns) + s.eps);
        if (s.columns <= 256 * NORM_AT_ONCE) {
#pragma unroll
            for (int i = 0; i < NORM_AT_ONCE; i++)
                norm_store(t, s, y, lane * 8 + 256 * i, v[i], factor);
            continue;
        }
#pragma unroll 1
        for (int column = lane * 8; column < s.columns; column += 256)
            norm_store(t, s, y, column, norm_piece(s, x, column), factor);
    }
}

#endif
