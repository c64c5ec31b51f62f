/* conv_flat.cuh - conv_flat: convolution of images with channels last, a row of the result for each
 * place.
 *
 * The generic body, for dtypes and shapes that the products of boxes (linear_tile.cuh) do not take,
 * and what these are compared with.  Input: x [N, H, W, C], filters [F, K], what surrounds the
 * product; output: the task's box of y [N H' W', F].  A thread does an entry of the result; its sum
 * runs in row-major order of the window, in double.  Threads share nothing.  Cost: a window for
 * each entry, from the cache.
 */
#ifndef TASK_CONV_FLAT_CUH
#define TASK_CONV_FLAT_CUH

#include "tile/view.cuh"

/* Attributes: a number for each axis of places, [0] down and [1] right; places of the result along
 * these. */
struct conv_flat_how {
    mpk_numbers kernel, stride, padding, dilation, places;
    bool relu;
};

/* Number k of a filter's entries, whatever axes they have: their row-major order is that of the
 * window, kernel down, kernel right, channel. */
MPK_FN rt_i64 conv_flat_entry(const mpk_view &w, rt_i64 filter, rt_i64 k)
{
    rt_i64 offset = filter * w.stride[0];
#pragma unroll
    for (int i = RT_MAX_RANK - 1; i > 0; i--)
        if (i < w.rank) {
            offset += k % w.dims[i] * w.stride[i];
            k /= w.dims[i];
        }
    return offset;
}

/* The sum of a row's window times a filter.  A row of y is a place: rows go right first, then down,
 * then through the images. */
MPK_FN double conv_flat_sum(const mpk_view &x, const char *g_x, const mpk_view &w, const char *g_w,
                            const conv_flat_how &h, rt_i64 row, rt_i64 filter)
{
    const rt_i64 right = row % h.places.at[1] * h.stride.at[1] - h.padding.at[1],
                 down = row / h.places.at[1] % h.places.at[0] * h.stride.at[0] - h.padding.at[0],
                 image = row / h.places.at[1] / h.places.at[0];
    double sum = 0;
    rt_i64 k = 0; /* of the filter's entries */
    for (rt_i64 a = 0; a < h.kernel.at[0]; a++)
        /* k moves on with b also where the entry lies in the padding and is left out. */
        for (rt_i64 b = 0; b < h.kernel.at[1]; b++, k += x.dims[3]) {
            /* Of the image, -padding at the least: what lies outside counts as 0, so it is left
             * out. */
            const rt_i64 line = down + a * h.dilation.at[0], place = right + b * h.dilation.at[1];
            if (line < 0 || line >= x.dims[1] || place < 0 || place >= x.dims[2])
                continue;
            const rt_i64 from = image * x.stride[0] + line * x.stride[1] + place * x.stride[2];
            for (rt_i64 c = 0; c < x.dims[3]; c++)
                sum += mpk_get_double(x, g_x, from + c * x.stride[3]) *
                       mpk_get_double(w, g_w, conv_flat_entry(w, filter, k + c));
        }
    return sum;
}

/* An entry of a vector of filters, or `otherwise`, that which changes nothing, where it is
 * absent. */
MPK_FN double conv_flat_of_filter(const mpk_task &t, const mpk_view &v, rt_i64 filter,
                                  double otherwise)
{
    return mpk_is_there(v) ? mpk_get_double(v, mpk_data(t, v), filter * v.stride[0]) : otherwise;
}

/* The body: y = relu(sum * scale + bias + shift + residual), in double, rounded once; scale and
 * shift are a batch norm's, whatever of these is absent is left out. */
MPK_FN void conv_flat_run(const mpk_task &t, const mpk_view &x, const mpk_view &w,
                          const mpk_view &scale, const mpk_view &bias, const mpk_view &shift,
                          const mpk_view &residual, const mpk_view &y, const conv_flat_how &h)
{
    const char *g_x = mpk_data(t, x), *g_w = mpk_data(t, w);
    char *g_y = mpk_data(t, y);
    const mpk_box box = mpk_box_of(t, y.rank);
    const rt_u64 n = mpk_count(box, y.rank);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(box, y.rank, i, at);
        double v = conv_flat_sum(x, g_x, w, g_w, h, at[0], at[1]);
        v = v * conv_flat_of_filter(t, scale, at[1], 1) + conv_flat_of_filter(t, bias, at[1], 0) +
            conv_flat_of_filter(t, shift, at[1], 0);
        if (mpk_is_there(residual))
            v += mpk_get_double(residual, mpk_data(t, residual), mpk_offset(residual, at));
        mpk_put_double(y, g_y, mpk_offset(y, at), h.relu && v < 0 ? 0 : v);
    }
}

#endif
