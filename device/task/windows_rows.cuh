/* windows_rows.cuh - depthwise convolutions of images whose channels lie last, of two spatial axes.
 *
 * A thread takes eight neighbouring channels (rows_read, rows_write) of one place or of some places
 * next to each other, so that a warp reads and writes whole lines and a column of x serves all
 * windows that hold it.  Sums are in fp32, in row-major order of the window.
 * Cost: a load of x for each column of each row of a window, from the cache.
 */
#ifndef TASK_WINDOWS_ROWS_CUH
#define TASK_WINDOWS_ROWS_CUH

#include "task/rows_warp.cuh"
#include "task/windows.cuh"

/* The box as pieces of eight channels, its last axis, and as runs of `places` along the axis before
 * that: items of a loop. */
MPK_FN mpk_box windows_items(const mpk_box &box, int rank, int places)
{
    mpk_box items = box;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == rank - 1 || i == rank - 2) {
            const int unit = i == rank - 1 ? ROWS_PIECE : places;
            items.lo[i] = 0;
            items.hi[i] = (box.hi[i] - box.lo[i] + unit - 1) / unit;
        }
    return items;
}

/* sum[p] += the row of the window, for PLACES windows: entry k of window p is column p * STRIDE + k
 * * APART of the run.  g_x: channels of the image's row; first: the run's first column. */
template <int PLACES, int KERNEL, int STRIDE, int APART>
MPK_FN void windows_add_row(float (&r_sum)[PLACES][ROWS_PIECE], const mpk_view &x, const char *g_x,
                            const mpk_view &w, const char *g_w, rt_i64 first, rt_i64 channel,
                            rt_i64 channels)
{
    float r_w[KERNEL][ROWS_PIECE];
#pragma unroll
    for (int k = 0; k < KERNEL; k++)
        rows_read(w.dtype, g_w + k * w.stride[3] * mpk_dtype_bytes(w.dtype), channel, channels, 0,
                  r_w[k]);
#pragma unroll
    for (int j = 0; j < (PLACES - 1) * STRIDE + (KERNEL - 1) * APART + 1; j++) {
        const rt_i64 column = first + j;
        if ((rt_u64)column >= (rt_u64)x.dims[3])
            continue;
        float r_x[ROWS_PIECE];
        rows_read(x.dtype, g_x + column * x.stride[3] * mpk_dtype_bytes(x.dtype), channel, channels,
                  0, r_x);
#pragma unroll
        for (int p = 0; p < PLACES; p++)
#pragma unroll
            for (int k = 0; k < KERNEL; k++)
#pragma unroll
                for (int i = 0; i < ROWS_PIECE; i++)
                    if (p * STRIDE + k * APART == j)
                        r_sum[p][i] += r_w[k][i] * r_x[i];
    }
}

/* x [N, C, H, W] with channels last, w [C, 1, h, KERNEL] with its filters last, y [N, .., C]. */
template <int PLACES, int KERNEL, int STRIDE, int APART>
MPK_FN void conv_rows(const mpk_task &t, const mpk_view &x, const mpk_view &w, const mpk_view &bias,
                      const mpk_view &y, const conv_how &h)
{
    const char *g_x = mpk_data(t, x), *g_w = mpk_data(t, w), *g_bias = mpk_data(t, bias);
    char *g_y = mpk_data(t, y);
    const mpk_box box = mpk_box_of(t, 4), items = windows_items(box, 4, PLACES);
    const rt_i64 channels = box.hi[3];
    for (rt_u64 i = (rt_u64)mpk_thread(); i < mpk_count(items, 4); i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(items, 4, i, at);
        const rt_i64 channel = (rt_i64)box.lo[3] + at[3] * ROWS_PIECE,
                     place = (rt_i64)box.lo[2] + at[2] * PLACES;
        const rt_i64 top = at[1] * h.stride.at[0] - h.padding.at[0],
                     left = place * h.stride.at[1] - h.padding.at[1];
        float r_sum[PLACES][ROWS_PIECE], r_bias[ROWS_PIECE] = {};
#pragma unroll
        for (int p = 0; p < PLACES * ROWS_PIECE; p++)
            r_sum[p / ROWS_PIECE][p % ROWS_PIECE] = 0;
#pragma unroll 1
        for (int k = 0; k < (int)w.dims[2]; k++) {
            const rt_i64 row = top + k * h.dilation.at[0];
            if ((rt_u64)row < (rt_u64)x.dims[2])
                windows_add_row<PLACES, KERNEL, STRIDE, APART>(
                    r_sum, x,
                    g_x + (at[0] * x.stride[0] + row * x.stride[2]) * mpk_dtype_bytes(x.dtype), w,
                    g_w + k * w.stride[2] * mpk_dtype_bytes(w.dtype), left, channel, channels);
        }
        if (mpk_is_there(bias))
            rows_read(bias.dtype, g_bias, channel, channels, 0, r_bias);
#pragma unroll
        for (int p = 0; p < PLACES; p++) {
#pragma unroll
            for (int e = 0; e < ROWS_PIECE; e++)
                r_sum[p][e] += r_bias[e];
            const rt_i64 to = at[0] * y.stride[0] + at[1] * y.stride[1] + (place + p) * y.stride[2];
            if (place + p < (rt_i64)box.hi[2])
                rows_write(y.dtype, g_y + to * mpk_dtype_bytes(y.dtype), channel, channels,
                           r_sum[p]);
        }
    }
}

#endif
