/* peaks.cuh - the end of logits: their factor and cap, and the largest logit and its column, as
 * logits leaves it for the choice of a token: of equal ones the first, and NaN is none.
 *
 * Choosing the first of equal logits makes the result independent of the order in which lanes
 * meet. Used by the ends of streamed products (linear_stream, linear_tile and others), which
 * leave a peak for each 64 columns; `sample` and argmax_reduce go on from these.
 */
#ifndef TASK_PEAKS_CUH
#define TASK_PEAKS_CUH

#include "ptx/ptx.cuh"
#include "shape/linear_tile_shape.h"
#include "tile/cap.cuh"

/* Have some logits of this kernel a factor or a cap?  Else its code is left out. */
#define LOGITS_BEND (MPK_FORMS >> TILE_FORM_BEND & 1)

/* A logit from its sum of products.  cap 0: rate is a factor; else the logit is cap tanh(factor sum
 * / cap), and rate is what mpk_capped takes, times that factor. */
MPK_FN float logits_bent(float sum, float cap, float rate)
{
    if (!LOGITS_BEND)
        return sum;
    return cap != 0 ? mpk_capped(sum, cap, rate) : sum * rate;
}

/* The largest logit of some columns, and which column it is; in memory two floats, so a column is
 * exact below 2^24. */
struct peak {
    float best;
    int at; /* -1: none */
};

/* The larger of the logits of columns `column` and `column` + 1; has_a, has_b: whether the column
 * is one of the vocabulary and of the task.  No column, or only NaN: at is -1, and best is -inf. */
MPK_FN peak peak_of_pair(float a, float b, int column, bool has_a, bool has_b)
{
    peak p = {-__int_as_float(0x7f800000), -1};
    if (has_a && a == a) {
        p.best = a;
        p.at = column;
    }
    if (has_b && b == b && (p.at < 0 || b > p.best)) {
        p.best = b;
        p.at = column + 1;
    }
    return p;
}

/* Of LANES neighbouring lanes, a power of 2: each gets the largest.  All 32 lanes call it, those
 * without a column with -1.  Equal peaks are compared by their columns, since a lane may meet a
 * lower one later. */
template <int LANES> MPK_FN peak peak_of_lanes(peak p)
{
#pragma unroll
    for (int d = 1; d < LANES; d *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, p.best, d);
        const int other_at = __shfl_xor_sync(0xffffffffu, p.at, d);
        if (other_at >= 0 && (p.at < 0 || other > p.best || (other == p.best && other_at < p.at))) {
            p.best = other;
            p.at = other_at;
        }
    }
    return p;
}

#endif
