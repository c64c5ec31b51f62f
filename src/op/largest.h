/* largest.h - the largest entry of a row: ties go to the lowest index, NaN never wins. */
#ifndef OP_LARGEST_H
#define OP_LARGEST_H

#include <math.h>

#include "op/walk.h"

/* Index of the largest of the columns lo .. hi - 1 of a row that starts at offset, or -1 if all are
 * NaN. */
static inline int64_t largest_in_row(const op_view *x, int64_t offset, int64_t lo, int64_t hi)
{
    int64_t best = -1;
    float value = 0;
    for (int64_t i = lo; i < hi; i++) {
        float v = op_load(x, offset + i * x->stride[1]);
        if (v > value || (best < 0 && !isnan(v))) {
            best = i;
            value = v;
        }
    }
    return best;
}

#endif
