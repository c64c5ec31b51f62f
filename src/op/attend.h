/* attend.h - attention of one query head over the paged cache, with the same bits in every
 * operator that computes it.
 *
 * Online softmax: one pass over the positions in rising order, keeping the largest score, the
 * sum of exponentials and the weighted sum of values, all fp32.  The order depends on the
 * position alone.  Cost: 4 K flops a position.
 *
 * One query head, position by position; s is a score, m the largest so far:
 *
 *   s > m    everything so far is scaled by exp(m - s), and s counts 1
 *   s <= m   s counts exp(s - m)
 *
 * so no exponential overflows, and out / sum is right after each position:
 *
 *   scores 1, 3, 2:  m = 1, sum = 1;  m = 3, sum = e^-2 + 1;  sum = e^-2 + 1 + e^-1
 *
 * Used by attention, attention_qkv, attention_split and attention_cache.
 */
#ifndef OP_ATTEND_H
#define OP_ATTEND_H

#include <math.h>

#include "op/dot.h"
#include "op/pages.h"

/* The cache as an operator sees it, and what its attributes say.  Borrowed from an op_call. */
typedef struct attend_view {
    /* attend_scale: the factor of query times key */
    const op_view *k_cache, *v_cache, *pages;
    /* what query times key is multiplied by, attend_scale */
    float scale;
    int64_t window; /* positions back that are seen, itself counted; 0: all */
    float cap;      /* a score s becomes cap tanh(s / cap); 0: it stays */
} attend_view;

/* A score under its cap. */
static inline float attend_capped(float score, float cap)
{
    return cap > 0 ? cap * tanhf(score / cap) : score;
}

/* The scale of the scores: the attribute, or 1 / sqrt(K) if that is 0. */
static inline float attend_scale(double attribute, int64_t head_size)
{
    return attribute != 0 ? (float)attribute : (float)(1.0 / sqrt((double)head_size));
}

/* What the mask adds to the score at at[4] = entry, head, token, position; the mask is broadcast
 * to the scores.  False: the position is not seen.  Without a mask all positions are seen. */
static inline bool attend_sees(const op_view *mask, const int64_t *at, float *added)
{
    *added = 0;
    if (!mask->data)
        return true;
    int64_t offset = walk_broadcast(mask, 4, at);
    if (mask->dtype == IR_BOOL)
        return walk_load_int(mask, offset) != 0;
    *added = (float)walk_load_double(mask, offset);
    return *added != -INFINITY;
}

/* What has been seen so far.  Invariant: sum and out[size] are relative to exp(largest). */
typedef struct attend_sum {
    float largest, sum, *out;
    int64_t size;
} attend_sum;

/* Begin with nothing seen: a largest score of -inf.  out[size] is the caller's and holds the
 * sums meanwhile. */
static inline attend_sum attend_begin(int64_t size, float *out)
{
    memset(out, 0, (size_t)size * sizeof *out);
    return (attend_sum){-INFINITY, 0, out, size};
}

/* Take in one more score; returns the weight of its value, which attend_add adds next.  A score
 * of -inf after one of -inf would give NaN (-inf - -inf); callers that mask skip such positions
 * (attend_sees). */
static inline float attend_weigh(attend_sum *a, float score)
{
    float kept = 1, weight = 1;
    if (score > a->largest) {
        kept = expf(a->largest - score);
        a->largest = score;
    } else {
        weight = expf(score - a->largest);
    }
    a->sum = a->sum * kept + weight;
    for (int64_t i = 0; kept != 1 && i < a->size; i++)
        a->out[i] *= kept;
    return weight;
}

/* Add the value of the position that attend_weigh was just asked about. */
static inline void attend_add(attend_sum *a, float weight, const float *value)
{
    for (int64_t i = 0; i < a->size; i++)
        a->out[i] += weight * value[i];
}

/* Divide: out becomes the mean of the values; zeros if nothing was seen. */
static inline void attend_end(attend_sum *a)
{
    for (int64_t i = 0; a->sum > 0 && i < a->size; i++)
        a->out[i] /= a->sum;
}

/* Add the positions first .. last of a slot, in rising order; those without a page are skipped.
 * row: K floats of scratch. */
static inline void attend_cached(const attend_view *view, int64_t slot, int64_t first, int64_t last,
                                 int64_t kv_head, const float *q, float *row, attend_sum *a)
{
    for (int64_t p = first; p <= last; p++) {
        int64_t k = pages_find(view->pages, view->k_cache, slot, p),
                v = pages_find(view->pages, view->v_cache, slot, p);
        if (k < 0 || v < 0)
            continue;
        walk_load_row(view->k_cache, k + kv_head * view->k_cache->stride[1], 0, a->size, row);
        float score = attend_capped(view->scale * dot_rows(q, row, a->size), view->cap);
        float weight = attend_weigh(a, score);
        walk_load_row(view->v_cache, v + kv_head * view->v_cache->stride[1], 0, a->size, row);
        attend_add(a, weight, row);
    }
}

/* The first position that the token at `position` sees: all of the past, or the last `window`
 * positions. */
static inline int64_t attend_first(int64_t window, int64_t position)
{
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* out[K] = softmax(scale q . k) v over the positions that the token at `position` of `slot`
 * sees, itself included; zeros if it sees none.  row: K floats of scratch. */
static inline void attend_head(const attend_view *view, int64_t slot, int64_t position,
                               int64_t kv_head, const float *q, float *row, float *out)
{
    int64_t room = view->pages->dims[1] * view->k_cache->dims[2];
    attend_sum a = attend_begin(view->k_cache->dims[3], out);
    attend_cached(view, slot, attend_first(view->window, position),
                  position < room ? position : room - 1, kv_head, q, row, &a);
    attend_end(&a);
}

#endif
