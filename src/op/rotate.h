/* rotate.h - rotary position embedding with tables that lie in memory, the same bits wherever an
 * operator has it built in.
 *
 * y = x * cos + turned(x) * sin over the first n entries of a row, turned(x) being the second half
 * of them negated, then the first; the rest passes.  Both halves of the tables are read, whether or
 * not they are equal.
 */
#ifndef OP_ROTATE_H
#define OP_ROTATE_H

#include "op/walk.h"

/* Rotate a row in place; both products and their sum are rounded to dtype, as operators of their
 * own would do. */
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
