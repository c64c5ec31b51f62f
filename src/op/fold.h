/* fold.h - put the parts of an attention that was cut over its context together; the same bits
 * in every operator that does it.
 *
 * part [T, S, H K] holds the answer of each split, lse f32[T, S, H] the logarithm of the sum of
 * its weights.  Splits are taken in rising order; a split whose lse is -inf has seen nothing,
 * and its part is not read.
 *
 * Why this is exact: split s has part_s = sum of e^(score - m_s) v / sum_s and lse_s = m_s + log
 * sum_s; so exp(lse_s) part_s is the split's sum of e^score v, and the exp(lse_s) add up to the
 * whole sum of e^score.  So a split is taken in as attend.h takes in a value, with lse_s as its
 * score; the largest lse so far, M, is subtracted only to keep the exponentials in range.
 *
 * Used by attention_fold.
 */
#ifndef OP_FOLD_H
#define OP_FOLD_H

#include "op/attend.h"

/* Columns lo .. hi - 1 (whole heads) of token t: y = sum of exp(lse - M) part / sum of exp(lse -
 * M), M the largest lse; zeros if no split has seen anything.  sinks [H], may be absent, are taken
 * in first (attend.h).  row: K floats of scratch. */
static inline void fold_columns(const op_view *part, const op_view *lse, const op_view *sinks,
                                int64_t t, int64_t lo, int64_t hi, float *row, float *y)
{
    int64_t splits = part->dims[1], size = part->dims[2] / lse->dims[2];
    for (int64_t head = lo / size; head * size < hi; head++) {
        attend_sum a = attend_begin_sink(size, attend_sink(sinks, head), y + head * size - lo);
        for (int64_t s = 0; s < splits; s++) {
            float l = op_load(lse, t * lse->stride[0] + s * lse->stride[1] + head * lse->stride[2]);
            if (l == -INFINITY)
                continue;
            walk_load_row(part, t * part->stride[0] + s * part->stride[1], head * size, size, row);
            attend_fold(&a, l, row);
        }
        attend_end(&a);
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
