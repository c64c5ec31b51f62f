/* fold.h - put the parts of an attention that was cut over its context together; the same bits
 * in every operator that does it.
 *
 * part [T, S, H K] holds the answer of each split, lse f32[T, S, H] the logarithm of the sum of
 * its weights.  Splits are taken in rising order; a split whose lse is -inf has seen nothing,
 * and its part is not read.
 *
 * Why this is exact: split s has part_s = sum of e^(score - m_s) v / sum_s and lse_s = m_s + log
 * sum_s; so exp(lse_s) part_s is the split's sum of e^score v, and the exp(lse_s) add up to the
 * whole sum of e^score.  The largest lse, M, is subtracted from all only to keep the
 * exponentials in range.
 *
 * Used by attention_fold.
 */
#ifndef OP_FOLD_H
#define OP_FOLD_H

#include <math.h>

#include "op/walk.h"

/* Columns lo .. hi - 1 (whole heads) of token t: y = sum of exp(lse - M) part / sum of exp(lse -
 * M), M the largest lse; zeros if no split has seen anything.  row: K floats of scratch. */
static inline void fold_columns(const op_view *part, const op_view *lse, int64_t t, int64_t lo,
                                int64_t hi, float *row, float *y)
{
    int64_t splits = part->dims[1], size = part->dims[2] / lse->dims[2];
    memset(y, 0, (size_t)(hi - lo) * sizeof *y);
    for (int64_t head = lo / size; head * size < hi; head++) {
        float *to = y + head * size - lo, largest = -INFINITY, sum = 0;
        int64_t at = t * lse->stride[0] + head * lse->stride[2];
        for (int64_t s = 0; s < splits; s++)
            largest = fmaxf(largest, op_load(lse, at + s * lse->stride[1]));
        for (int64_t s = 0; s < splits; s++) {
            float l = op_load(lse, at + s * lse->stride[1]);
            if (l == -INFINITY)
                continue;
            float weight = expf(l - largest);
            sum += weight;
            walk_load_row(part, t * part->stride[0] + s * part->stride[1], head * size, size, row);
            for (int64_t i = 0; i < size; i++)
                to[i] += weight * row[i];
        }
        for (int64_t i = 0; sum != 0 && i < size; i++)
            to[i] /= sum;
    }
}

/* MPK_ESHAPE unless input `part` is [T, S, H K] and input `lse` the f32[T, S, H] that belongs to
 * it. */
static inline mpk_status fold_expect(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                     uint32_t part, uint32_t lse)
{
    const ir_tensor *p = &g->tensors.at[op->in[part]], *l = &g->tensors.at[op->in[lse]];
    CHECK(cx,
          p->rank == 3 && l->rank == 3 && l->dtype == IR_F32 && l->live == p->live &&
              l->dims[0] == p->dims[0] && l->dims[1] == p->dims[1] && p->dims[2] % l->dims[2] == 0,
          MPK_ESHAPE,
          "%s: parts (%%%.*s) must be [T, S, H K] and their lse (%%%.*s) f32[T, S, H] with the "
          "same axis 0",
          op->def->name, STR_ARG(p->name), STR_ARG(l->name));
    return MPK_OK;
}

#endif
