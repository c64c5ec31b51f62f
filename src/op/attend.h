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
 * A context is cut into parts (context.h).  Each part is attended by itself, and its mean is taken
 * in like a value, with the logarithm of its sum of weights as the score.
 *
 * A sink is a score without a position: its value is zero, so the weights of the values add up to
 * less than 1.  It is taken in before all parts.
 *
 * Used by the attention operators; fold.h folds parts that lie in tensors.
 */
#ifndef OP_ATTEND_H
#define OP_ATTEND_H

#include <math.h>

#include "op/context.h"
#include "op/dot.h"
#include "op/pages.h"

/* The cache as an operator sees it, and what its attributes say.  Borrowed from an op_call. */
typedef struct attend_view {
    /* v_cache: k_cache if the operator has none */
    const op_view *k_cache, *v_cache, *pages;
    /* what query times key is multiplied by, attend_scale */
    float scale;
    int64_t window; /* positions back that are seen, itself counted; 0: all */
    float cap;      /* a score s becomes cap tanh(s / cap); 0: it stays */
} attend_view;

/* The cache of values, input number v: without one the keys are the values too. */
static inline const op_view *attend_value_cache(const op_view *in, uint32_t v)
{
    return in[v].rank ? &in[v] : &in[v - 1];
}

/* The sink of a query head, of sinks [H]; -inf, which changes nothing, without sinks. */
static inline float attend_sink(const op_view *sinks, int64_t head)
{
    return sinks->data ? op_load(sinks, head * sinks->stride[0]) : -INFINITY;
}

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

/* Begin with a sink: its weight, and nothing of its value, which is zero. */
static inline attend_sum attend_begin_sink(int64_t size, float sink, float *out)
{
    attend_sum a = attend_begin(size, out);
    a.largest = sink;
    a.sum = sink != -INFINITY;
    return a;
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

/* The logarithm of the sum of exp(score), which is the part's score when parts are folded; -inf if
 * nothing was seen. */
static inline float attend_log(const attend_sum *a)
{
    return a->sum == 0 ? -INFINITY : a->largest + logf(a->sum);
}

/* Take in a part: its mean, and the logarithm of its sum of weights; nothing if it saw nothing. */
static inline void attend_fold(attend_sum *a, float log, const float *mean)
{
    if (log != -INFINITY)
        attend_add(a, attend_weigh(a, log), mean);
}

/* The positions that a token sees, and its parts. */
typedef struct attend_context {
    int64_t first, last;
    int blocks, parts;
} attend_context;

/* Of the token at `position`, itself included; a position beyond the page table sees what the table
 * has. */
static inline attend_context attend_see(const attend_view *view, int64_t position)
{
    int64_t room = view->pages->dims[1] * view->k_cache->dims[2];
    attend_context c = {attend_first(view->window, position), position < room ? position : room - 1,
                        0, 1};
    c.blocks = context_blocks(c.first, c.last);
    c.parts = context_parts(c.blocks);
    return c;
}

/* One part of the context of a token of `slot`: the mean of its values in out[K], and the logarithm
 * of the sum of weights, which is returned.  row: K floats of scratch. */
static inline float attend_part(const attend_view *view, const attend_context *c, int part,
                                int64_t slot, int64_t kv_head, const float *q, float *row,
                                float *out)
{
    int64_t block = c->first / CONTEXT_BLOCK,
            lo = (block + context_begin(c->blocks, c->parts, part)) * CONTEXT_BLOCK,
            hi = (block + context_begin(c->blocks, c->parts, part + 1)) * CONTEXT_BLOCK - 1;
    attend_sum a = attend_begin(view->k_cache->dims[3], out);
    lo = lo > c->first ? lo : c->first;
    hi = hi < c->last ? hi : c->last;
    attend_cached(view, slot, lo, hi, kv_head, q, row, &a);
    attend_end(&a);
    return attend_log(&a);
}

/* out[K] = softmax(scale q . k) v over the positions that the token at `position` of `slot`
 * sees, itself included, and a sink (-inf: none); zeros if it sees none.  row: 2 K floats of
 * scratch. */
static inline void attend_head(const attend_view *view, int64_t slot, int64_t position,
                               int64_t kv_head, float sink, const float *q, float *row, float *out)
{
    attend_context c = attend_see(view, position);
    attend_sum a = attend_begin_sink(view->k_cache->dims[3], sink, out);
    for (int part = 0; part < c.parts; part++) {
        float log = attend_part(view, &c, part, slot, kv_head, q, row, row + a.size);
        attend_fold(&a, log, row + a.size);
    }
    attend_end(&a);
}

/* ---- operands of attention and attention_parts ---- */

/* Their first inputs; positions, slots and pages follow. */
enum { ATTEND_Q, ATTEND_K, ATTEND_V, ATTEND_POSITIONS, ATTEND_SLOTS, ATTEND_PAGES };

/* MPK_ESHAPE unless q is [T, H, K] with caches of heads that divide H, and the integers fit them;
 * MPK_EARG for a window or a cap that cannot be. */
static inline mpk_status attend_expect(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                       int64_t window, double cap)
{
    const ir_tensor *q = shape_input(g, op, ATTEND_Q), *k = shape_input(g, op, ATTEND_K);
    TRY(shape_expect(cx, g, op, ATTEND_Q, SHAPE_FLOAT, 3,
                     (int64_t[]){SHAPE_FREE, SHAPE_FREE, SHAPE_FREE}));
    TRY(pages_expect_caches(cx, g, op, ATTEND_K, SHAPE_FREE, q->dims[2]));
    CHECK(cx, q->dims[1] % k->dims[1] == 0, MPK_ESHAPE,
          "%s: %lld query heads are not a multiple of %lld KV heads", op->def->name,
          (long long)q->dims[1], (long long)k->dims[1]);
    TRY(pages_expect(cx, g, op, ATTEND_POSITIONS, q->dims[0], q->live));
    CHECK(cx, window >= 0, MPK_EARG, "%s: window is %lld, expected 0 (none) or more", op->def->name,
          (long long)window);
    CHECK(cx, cap >= 0 && cap < 1e30, MPK_EARG, "%s: cap is %g, expected 0 (none) or more",
          op->def->name, cap);
    return MPK_OK;
}

/* What a box reads whose axis number `axis` has the columns of the heads.  A token may see any page
 * of its slot, and any page may belong to its slot: all pages of the KV heads. */
static inline void attend_reads(const ir_graph *g, const ir_op *op, uint32_t input,
                                const ir_box *box, uint32_t axis, ir_box *read)
{
    const ir_tensor *q = shape_input(g, op, ATTEND_Q), *k = shape_input(g, op, ATTEND_K);
    int64_t lo = box->lo[axis] / q->dims[2], hi = (box->hi[axis] + q->dims[2] - 1) / q->dims[2],
            group = q->dims[1] / k->dims[1];
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == ATTEND_K || input == ATTEND_V) {
        *read = pages_box(k, lo / group, (hi + group - 1) / group);
    } else if (input != ATTEND_PAGES) {
        read->lo[0] = box->lo[0];
        read->hi[0] = box->hi[0];
    }
    if (input == ATTEND_Q) {
        read->lo[1] = lo;
        read->hi[1] = hi;
    }
}

#endif
