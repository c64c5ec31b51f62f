/* upsample.h - which entries a resized axis takes, and with what weights: what the record
 * upsample.c and the fast bodies share, so that all of them read the same entries. */
#ifndef OP_UPSAMPLE_H
#define OP_UPSAMPLE_H

#include <math.h>

#include "ir/op.h"

/* Attributes, by index; the scales of the axes follow UPSAMPLE_SCALE, one attribute each. */
enum { UPSAMPLE_SIZE, UPSAMPLE_MODE, UPSAMPLE_ALIGN, UPSAMPLE_SCALE };
typedef enum upsample_mode {
    UPSAMPLE_NEAREST,
    UPSAMPLE_NEAREST_EXACT,
    UPSAMPLE_LINEAR,
    UPSAMPLE_CUBIC,
    UPSAMPLE_MODES
} upsample_mode;

/* The mode that the attribute names; UPSAMPLE_MODES if it names none, which infer refuses. */
static inline upsample_mode upsample_mode_of(const ir_op *op)
{
    static const char *const names[UPSAMPLE_MODES] = {"nearest", "nearest_exact", "linear",
                                                      "cubic"};
    int mode = 0;
    while (mode < UPSAMPLE_MODES && !str_is(op->attributes[UPSAMPLE_MODE].s, names[mode]))
        mode++;
    return (upsample_mode)mode;
}

/* The entries of x that one entry of the result takes along an axis, in rising order, and their
 * weights; n is 1, 2 or 4. */
typedef struct taps {
    int64_t at[4];
    double weight[4];
    int n;
} taps;

/* Entries of x for one of the result, along spatial axis i with n entries: 1 / scale if a scale
 * is given, else the ratio of the sizes.  With align_corners the first and last entries of both
 * coincide. */
static inline double upsample_ratio(const ir_op *op, uint32_t i, int64_t n)
{
    double scale = op->attributes[UPSAMPLE_SCALE + i].f,
           size = (double)op->attributes[UPSAMPLE_SIZE].ints.at[i];
    if (op->attributes[UPSAMPLE_ALIGN].i && upsample_mode_of(op) >= UPSAMPLE_LINEAR)
        return size > 1 ? (double)(n - 1) / (size - 1) : 0;
    return scale > 0 ? 1 / scale : (double)n / size;
}

/* The weights of four neighbours for a position at distance t from the second: cubic convolution
 * with a = -0.75, 1 in all. */
static inline void upsample_cubic_weights(double t, double weight[4])
{
    const double a = -0.75;
    double u = 1 - t;
    weight[0] = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a;
    weight[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
    weight[2] = ((a + 2) * u - (a + 3)) * u * u + 1;
    weight[3] = ((a * (u + 1) - 5 * a) * (u + 1) + 8 * a) * (u + 1) - 4 * a;
}

/* Neighbours outside of x are replaced by its first or last entry. */
static inline int64_t upsample_hold(int64_t i, int64_t n)
{
    return op_clamp(i, 0, n - 1);
}

/* What entry o of the result takes along spatial axis i of n entries, as PyTorch defines it.
 * Positions are computed in fp32, for f64 (`wide`) in fp64, because a position just below a
 * whole number decides which entry is taken. */
static inline taps upsample_find_taps(const ir_op *op, uint32_t i, int64_t n, int64_t o, bool wide)
{
    upsample_mode mode = upsample_mode_of(op);
    double r = wide ? upsample_ratio(op, i, n) : (double)(float)upsample_ratio(op, i, n);
    double half = mode == UPSAMPLE_NEAREST ? 0 : 0.5;
    double place = mode <= UPSAMPLE_NEAREST_EXACT || !op->attributes[UPSAMPLE_ALIGN].i
                       ? r * ((double)o + half)
                       : r * (double)o;
    if (mode >= UPSAMPLE_LINEAR && !op->attributes[UPSAMPLE_ALIGN].i)
        place -= 0.5;
    if (mode == UPSAMPLE_LINEAR && place < 0)
        place = 0;
    place = wide ? place : (double)(float)place;
    place = place < (double)n ? place : (double)n; /* a tiny scale gives a huge ratio */
    int64_t first = (int64_t)floor(place);
    taps t = {.n = 1, .weight = {1}};
    t.at[0] = upsample_hold(first, n);
    if (mode == UPSAMPLE_LINEAR) {
        t.n = 2;
        t.at[1] = upsample_hold(first + 1, n);
        t.weight[1] = place - (double)first;
        t.weight[0] = 1 - t.weight[1];
    } else if (mode == UPSAMPLE_CUBIC) {
        t.n = 4;
        upsample_cubic_weights(place - (double)first, t.weight);
        for (int k = 0; k < 4; k++)
            t.at[k] = upsample_hold(first - 1 + k, n);
    }
    return t;
}

#endif
