/* attend.h - attention of one query head over the paged cache, the same bits wherever an operator has it built in.
 *
 * Online softmax: one pass over the positions in rising order, keeping the largest score, the sum of exponentials and
 * the weighted sum of values, all fp32.  The order depends on the position alone.  Cost: 4 K flops a position.
 */
#ifndef OP_ATTEND_H
#define OP_ATTEND_H

#include <math.h>

#include "op/dot.h"
#include "op/pages.h"

typedef struct attend_view {
    const op_view *k_cache, *v_cache, *pages;
    float scale;
    int64_t window; /* positions back that are seen, itself counted; 0: all */
} attend_view;

/* The scale of the scores: the attribute, or 1 / sqrt(K) if that is 0. */
static inline float attend_scale(double attribute, int64_t head_size)
{
    return attribute != 0 ? (float)attribute : (float)(1.0 / sqrt((double)head_size));
}

/* out[K] = softmax(scale q . k) v over the positions that the token at `position` of `slot` sees; zeros if it sees
 * none. row: K floats of scratch. */
static inline void attend_head(const attend_view *view, int64_t slot, int64_t position, int64_t kv_head, const float *q,
                               float *row, float *out)
{
    int64_t size = view->k_cache->dims[3], room = view->pages->dims[1] * view->k_cache->dims[2];
    int64_t last = position < room ? position : room - 1;
    int64_t first = view->window > 0 && position - view->window >= 0 ? position - view->window + 1 : 0;
    float largest = -INFINITY, sum = 0;
    memset(out, 0, (size_t)size * sizeof *out);
    for (int64_t p = first; p <= last; p++) {
        int64_t k = pages_find(view->pages, view->k_cache, slot, p),
                v = pages_find(view->pages, view->v_cache, slot, p);
        if (k < 0 || v < 0)
            continue;
        walk_load_row(view->k_cache, k + kv_head * view->k_cache->stride[1], 0, size, row);
        float score = view->scale * dot_rows(q, row, size), kept = 1, weight = 1;
        if (score > largest) {
            kept = expf(largest - score);
            largest = score;
        } else {
            weight = expf(score - largest);
        }
        sum = sum * kept + weight;
        walk_load_row(view->v_cache, v + kv_head * view->v_cache->stride[1], 0, size, row);
        for (int64_t i = 0; i < size; i++)
            out[i] = out[i] * kept + weight * row[i];
    }
    for (int64_t i = 0; sum > 0 && i < size; i++)
        out[i] /= sum;
}

#endif
