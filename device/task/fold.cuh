/* fold.cuh - the parts of an attention that was cut over its context, put together: attention_fold,
 * for any shape (src/op/fold.h is the definition; fold_rows.cuh is the fast body).
 *
 * Split s of a token has left the mean of the values it saw, part[t, s, :], and for each head the
 * logarithm of the sum of its weights, lse[t, s, head]; -inf where it saw nothing. The whole is the
 * mean of the parts by exp(lse), taken relative to the largest so that it cannot overflow.  The
 * sink of a head is one more lse, of a part that is zero.
 */
#ifndef TASK_FOLD_CUH
#define TASK_FOLD_CUH

#include "tile/view.cuh"

/* Column k of token t, which belongs to head k / size; 0 if no split has seen anything.  A split
 * with lse = -inf is left out, not multiplied by 0: its part may hold anything, NaN included.
 * Splits come in rising order, so the bits are fixed.  sink: the head's, or -inf. */
MPK_FN float fold_value(const mpk_view &part, const char *g_part, const mpk_view &lse,
                        const char *g_lse, float sink, rt_i64 t, rt_i64 k)
{
    rt_i64 size = part.dims[2] / lse.dims[2], at = t * lse.stride[0] + k / size * lse.stride[2];
    float largest = sink, sum = 0, value = 0;
    for (rt_i64 s = 0; s < part.dims[1]; s++)
        largest = fmaxf(largest, mpk_get(lse, g_lse, at + s * lse.stride[1]));
    if (sink != -MPK_INFINITY)
        sum = expf(sink - largest);
    for (rt_i64 s = 0; s < part.dims[1]; s++) {
        float l = mpk_get(lse, g_lse, at + s * lse.stride[1]);
        if (l == -MPK_INFINITY)
            continue;
        float weight = expf(l - largest);
        sum += weight;
        value += weight * mpk_get(part, g_part,
                                  t * part.stride[0] + s * part.stride[1] + k * part.stride[2]);
    }
    return sum != 0 ? value / sum : 0;
}

/* The body.  A thread has an entry of y, and reads the weights of all splits again for it: they are
 * few, and its neighbours' of the same head come from the cache.  Threads share nothing, so there
 * is no barrier. */
MPK_FN void attention_fold_run(const mpk_task &t, const mpk_view &part, const mpk_view &lse,
                               const mpk_view &sinks, const mpk_view &y)
{
    const char *g_part = mpk_data(t, part), *g_lse = mpk_data(t, lse),
               *g_sinks = mpk_data(t, sinks);
    rt_i64 size = part.dims[2] / lse.dims[2]; /* of a head */
    char *g_y = mpk_data(t, y);
    mpk_box box = mpk_box_of(t, 2);
    rt_u64 n = mpk_count(box, 2);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(box, 2, i, at);
        const float sink = mpk_is_there(sinks)
                               ? mpk_get(sinks, g_sinks, at[1] / size * sinks.stride[0])
                               : -MPK_INFINITY;
        mpk_put(y, g_y, mpk_offset(y, at),
                fold_value(part, g_part, lse, g_lse, sink, at[0], at[1]));
    }
}

#endif
