/* rotate.h - rotary position embedding with tables in memory; the same bits in every operator
 * that contains it (rotate.c, attention_cache.c).
 *
 * y = x * cos + half_turn(x) * sin over the first n entries of a row, where half_turn(x) is their
 * second half negated, then their first half; the rest is copied.  Both halves of the tables are
 * read, whether or not they are equal.
 *
 *   row (a, b), cos (c1, c2), sin (s1, s2)  ->  (a c1 - b s1, b c2 + a s2)
 */
#ifndef OP_ROTATE_H
#define OP_ROTATE_H

#include "op/walk.h"

/* Rotate the first n entries of a row in place.  Both products and their sum are rounded to
 * dtype, as single operators would do. */
static inline void rotate_row(ir_dtype dtype, float *row, const float *cosine, const float *sine,
                              int64_t n)
{
    int64_t half = n / 2;
    for (int64_t i = 0; i < half; i++) {
        float a = row[i], b = row[half + i];
        float low[2] = {a * cosine[i], -b * sine[i]},
              high[2] = {b * cosine[half + i], a * sine[half + i]};
        if (dtype != IR_F32)
            for (int k = 0; k < 2; k++) {
                low[k] = walk_round(dtype, low[k]);
                high[k] = walk_round(dtype, high[k]);
            }
        row[i] = low[0] + low[1];
        row[half + i] = high[0] + high[1];
    }
    for (int64_t i = 0; i < n && dtype != IR_F32; i++)
        row[i] = walk_round(dtype, row[i]);
}

#endif
