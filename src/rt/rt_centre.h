/* rt_centre.h - how a row of weights is centred and rounded, so that a product with a layer_norm
 * before it needs no mean of x: the loading kernel packs with it (device/pack.cuh), and the
 * emulator's tests.
 *
 *   y = sum_k (x_k - mean) / std g_k w_k = 1 / std (sum_k x_k v_k - mean sum_k v_k)
 *
 * for v_k = g_k w_k - c, whatever c is, since sum_k (x_k - mean) = 0.  With c the mean of the row
 * g w the second sum is 0, and y is 1 / std sum_k x_k v_k, as that of an rms_norm.  Once v is
 * rounded to 16 bits its sum is not 0 any more: rounded to nearest it is about sqrt(n) / 3 units of
 * the last place, and where g w had 16 bits already, whole octaves of entries are rounded the same
 * way, so it may be a thousand.  That sum times mean / std would be y's error.  So what rounding
 * has lost is carried along the row, and entries that are nearly half way between two neighbours go
 * to the one that makes the loss less; all do while the loss is large, and the last few take what
 * is left.
 *
 * Error of y: that of rounding v, 1.2 times what rounding to nearest costs in the median of rows
 * and 2.4 times at most (src/gen/centred_test.c), which is what rounding the normalised x would
 * cost; and mean / std times less than a unit of the last place of v, where rounding v costs
 * sqrt(n) / 4 units.  With a mean of ten deviations both are about the same.
 *
 * Use, entry by entry from 0 on: v = rt_centre_next(&c, k, n, g w), then rt_centre_take with what v
 * was rounded to.  Before: unit, and mean and largest |g w - mean| of the row.
 */
#ifndef RT_CENTRE_H
#define RT_CENTRE_H

#include "rt/rt_port.h"

/* RT_CENTRE_LAST: entries at the end of a row that take all that was lost. */
enum { RT_CENTRE_LAST = 8 };
/* How far two neighbours of 16 bits are apart at least, as a part of them. */
#define RT_CENTRE_BF16 (1.0f / 256)
#define RT_CENTRE_F16 (1.0f / 2048)

typedef struct rt_centre {
    float unit;          /* RT_CENTRE_* */
    float mean, largest; /* of the row; of its distances from that */
    float lost;          /* by rounding, so far */
    float own;           /* the current entry less the mean */
} rt_centre;

/* What is to be rounded in place of entry k of n, which is `entry`.  A quarter of a unit moves it
 * to another neighbour only where it is nearly half way. */
RT_FN float rt_centre_next(rt_centre *c, rt_u64 k, rt_u64 n, float entry)
{
    c->own = entry - c->mean;
    if (k + RT_CENTRE_LAST >= n)
        return c->own + c->lost;
    const float size = c->own < 0 ? -c->own : c->own;
    float moved = c->lost < 0 ? -c->lost : c->lost;
    const float most = size * c->unit * (moved > 2 * c->unit * c->largest ? 1 : 0.25f);
    moved = moved < most ? moved : most;
    return c->own + (c->lost < 0 ? -moved : moved);
}

/* It was rounded to this. */
RT_FN void rt_centre_take(rt_centre *c, float rounded)
{
    c->lost += c->own - rounded;
}

#endif
