/* peaks.h - the largest entry of each 64 neighbouring columns of a row of logits: what `logits`
 * writes besides the logits and `sample` reads instead of them.
 *
 * peaks f32[R, ceil(V / 64), 2]: value and column, the column as a float; -1: the columns are
 * all NaN.  A greedy row of `sample` then reads V / 32 numbers instead of V.  Floats name
 * columns up to 2^24 exactly, hence PEAKS_MOST_COLUMNS.
 *
 * Written by logits.c and join_peaks.c, planned by pass/fuse_logits.c.
 */
#ifndef OP_PEAKS_H
#define OP_PEAKS_H

#include "op/largest.h"

enum { PEAKS_COLUMNS = 64, PEAKS_MOST_COLUMNS = 1 << 24 };

/* Blocks of a row with this many columns; the last may be short. */
static inline int64_t peaks_count(int64_t columns)
{
    return (columns + PEAKS_COLUMNS - 1) / PEAKS_COLUMNS;
}

/* The column of the largest entry of row r, by the rule of largest_in_row: of equal ones the
 * first, NaN never; -1 if all are NaN.  Blocks come in the order of columns, so the first of
 * equal peaks has the lower column. */
static inline int64_t peaks_largest(const op_view *peaks, int64_t r)
{
    int64_t best = -1;
    float value = 0;
    for (int64_t i = 0; i < peaks->dims[1]; i++) {
        int64_t at = r * peaks->stride[0] + i * peaks->stride[1];
        float v = op_load(peaks, at), column = op_load(peaks, at + peaks->stride[2]);
        if (column >= 0 && (best < 0 || v > value)) {
            best = (int64_t)column;
            value = v;
        }
    }
    return best;
}

#endif
