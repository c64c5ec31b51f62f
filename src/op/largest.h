/* largest.h - the largest entry of a row: ties go to the lowest index, NaN never wins.
 *
 * Rows of logits are long and dense: blocks of 64 are compared by their largest first, which
 * compilers vectorise, and only the winning block is searched entry by entry.  Used by argmax,
 * argmax_partial, argmax_reduce, logits and sample.
 */
#ifndef OP_LARGEST_H
#define OP_LARGEST_H

#include <math.h>

#include "op/walk.h"

enum { LARGEST_BLOCK = 64 };

/* The largest of LARGEST_BLOCK floats; -INFINITY if none is above it.  Eight lanes, which become
 * a vector. */
static inline float largest_of_block(const float *x)
{
    enum { LANES = 8 };
    float lane[LANES];
    for (int j = 0; j < LANES; j++)
        lane[j] = -INFINITY;
    for (int i = 0; i < LARGEST_BLOCK; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (int j = 1; j < LANES; j++)
        lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
    return lane[0];
}

/* The first of n / LARGEST_BLOCK blocks that holds their largest entry; -1: none is above
 * -INFINITY. */
static inline int64_t largest_find_block(const float *x, int64_t n)
{
    int64_t best = -1;
    float value = -INFINITY;
    for (int64_t i = 0; i < n / LARGEST_BLOCK; i++) {
        float v = largest_of_block(x + i * LARGEST_BLOCK);
        best = v > value ? i : best;
        value = v > value ? v : value;
    }
    return best;
}

/* Compare *best (-1: none yet) and its *value with the columns lo .. hi - 1, which come after
 * *best. */
static inline void largest_compare(const op_view *x, int64_t offset, int64_t lo, int64_t hi,
                                   int64_t *best, float *value)
{
    for (int64_t i = lo; i < hi; i++) {
        float v = op_load(x, offset + i * x->stride[1]);
        if (v > *value || (*best < 0 && !isnan(v))) {
            *best = i;
            *value = v;
        }
    }
}

/* The index of the largest of the columns lo .. hi - 1 of a row that starts at `offset`; -1: all
 * are NaN.  Of dense floats only one block is searched, and the columns after the last whole
 * block. */
static inline int64_t largest_in_row(const op_view *x, int64_t offset, int64_t lo, int64_t hi)
{
    int64_t best = -1, block = -1;
    float value = 0;
    if (x->dtype == IR_F32 && x->stride[1] == 1 && hi > lo)
        block = largest_find_block((const float *)x->data + offset + lo, hi - lo);
    if (block >= 0) {
        int64_t first = lo + block * LARGEST_BLOCK;
        largest_compare(x, offset, first, first + LARGEST_BLOCK, &best, &value);
        lo += (hi - lo) / LARGEST_BLOCK * LARGEST_BLOCK;
    }
    largest_compare(x, offset, lo, hi, &best, &value);
    return best;
}

#endif
