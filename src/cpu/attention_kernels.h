/* attention_kernels.h - attention over the paged cache, over the vectors of vec_*.h: attention, q
 * [T, H, K] -> [T, H K], attention_parts, whose tasks do some parts of contexts, and
 * attention_fold, which puts these together; as op/ defines them.
 *
 * Neighbouring tokens of a slot and the query heads of a KV head are computed together, up to
 * MAX_QUERIES of them: sixteen positions of the cache are found once and used by all.  A few
 * queries read the rows in place, whatever their dtype; for many the rows are first widened to
 * f32.
 *
 * The arithmetic of a query does not depend on the other queries of the call: blocks of sixteen
 * positions, cut at multiples of sixteen, in rising order; a score is the sum of q k by FMA,
 * lane k mod 16 in rising k, the lanes added in the tree of v_sum; after each block the largest
 * score so far scales what was summed before (online softmax); values are added position by
 * position by FMA.  Where a part of the context ends (op/context.h) the sums begin anew, and the
 * part's mean is folded into the total of the parts before it by attend_fold_part, or is a result.
 * The other operator of the two then folds it by the same function, so attention and parts with
 * their fold give the same bits.  Cost: 4 K flops for a query and position; few queries are bound
 * by the bytes of the cache.
 *
 * A call goes through these levels, each of which fixes one more thing:
 *
 *   attend_run       the box: KV head after KV head
 *   attend_heads     one KV head: runs of neighbouring tokens of one slot
 *   attend_together  one run: its queries are begun, then the cache is read once, block by block
 *   attend_load_block  sixteen positions: their rows are found, and widened if that pays
 *   attend_few       up to V_QUERIES queries against the loaded block: scores, weights, values
 *   attend_close     the end of a part: acc / sum to the total, or to the results
 *   attend_finish    the total to the result
 *
 * Used by isa_avx2.c, isa_avx512.c and isa_neon.c, which list attend_run, attend_parts_run and
 * attend_fold_run as the bodies of the operators for their instruction set.
 */
#ifndef CPU_ATTENTION_KERNELS_H
#define CPU_ATTENTION_KERNELS_H

#include "cpu/vec_math.h"
#include "op/attend.h"

/* MAX_QUERIES: most queries of a run, by which scratch is sized.  BLOCK: positions of a block,
 * one for each lane.  AHEAD: blocks between the prefetch of a block and its use. */
enum { MAX_QUERIES = 64, BLOCK = 16, AHEAD = 2 };

/* What has been folded of parts: relative to exp(largest), the sum of their weights, and of their
 * means times weights. */
typedef struct attend_total {
    float largest, sum;
    float *mean; /* [padded] */
} attend_total;

/* What one query has summed so far.  With m = largest, the invariant after each block is
 *
 *   sum over lanes = sum of exp(score - m)       over the positions taken so far
 *   acc            = sum of exp(score - m) value
 *
 * so that acc / sum is the mean whenever a part ends; a larger score only changes m, and both are
 * scaled by exp(old m - new m). */
typedef struct attend_query {
    int64_t first, last; /* the positions that it sees in this task, both included */
    int64_t block;       /* the block of the first position that it sees at all */
    int blocks, parts;   /* of all of its context */
    int part;            /* the part at hand */
    int64_t end;         /* the position at which that part ends, a multiple of 16 */
    int64_t token, head; /* its place in q and in the result */
    float largest;       /* the largest score so far; -infinity: none yet */
    /* Lane j holds the weights of positions that are j modulo 16; the lanes are added at the
     * end. */
    float sum[16];
    float *q, *acc; /* [padded] each; q is scaled */
    attend_total total;
} attend_query;

/* The keys or the values of a block: a row of `dtype` for each position, whole vectors of it. */
typedef struct attend_rows {
    const void *at[BLOCK];
    ir_dtype dtype;
} attend_rows;

/* One call, with the run and the block that are being computed.  All pointers are into the
 * task's scratch; nothing is allocated. */
typedef struct attend_task {
    const op_call *call;
    /* size: K; padded: K rounded up to 16; window: 0, or how many positions a token sees */
    int64_t size, padded, window;
    float scale;       /* of the scores */
    float cap;         /* a score s becomes cap tanh(s / cap); 0: it stays */
    float *widened[2]; /* keys and values [16, padded] */
    float *zeros;      /* [padded]: the row of a position that has no place */
    attend_rows keys, values;
    uint32_t absent;     /* bit j: position j of the block has no place in the cache */
    attend_query *query; /* [MAX_QUERIES], of which the run has n */
    int64_t n;
    /* attention_parts: the places [place0, place1) are done, and parts are results; else all are,
     * and parts are folded */
    bool in_parts;
    int place0, place1;
} attend_task;

/* Inputs, by index. */
enum { AT_Q, AT_K_CACHE, AT_V_CACHE, AT_POSITIONS, AT_SLOTS, AT_PAGES, AT_SINKS };

/* Dtypes of a cache whose rows attend_load can read. */
static bool attend_can_load(ir_dtype dtype)
{
    return row_is_float(dtype) || dtype == IR_Q8_0;
}

/* Heads must be contiguous in q, in both caches and in the result; only then are vectors loaded. */
static bool attend_accepts(const op_call *call)
{
    const op_view *q = &call->in[AT_Q], *k = &call->in[AT_K_CACHE],
                  *v = attend_value_cache(call->in, AT_V_CACHE);
    return row_is_float(q->dtype) && attend_can_load(k->dtype) && attend_can_load(v->dtype) &&
           row_is_float(call->out[0].dtype) && q->stride[2] == 1 && k->stride[3] == 1 &&
           v->stride[3] == 1 && call->out[0].stride[call->out[0].rank - 1] == 1;
}

/* Rows are padded to whole vectors in scratch, so that no loop over a head's entries has a tail:
 * the padding of q is zero, so what the padding of a key holds does not matter as long as it is
 * finite; rows that are read in place therefore must need no padding. */
static int64_t attend_padded(const op_call *call)
{
    return (call->in[AT_Q].dims[2] + 15) / 16 * 16;
}

/* The layout that attend_lay_out deals out, in floats of `padded`:
 *
 *   keys [16] | values [16] | zeros [1] | q, acc, total of each query [64][3] | the records [64]
 *
 * It does not depend on the box, so fewer tokens never need more. */
static size_t attend_scratch_bytes(const op_call *call, const ir_box *box)
{
    (void)box;
    size_t padded = (size_t)attend_padded(call);
    return (2 * BLOCK + 1 + 3 * MAX_QUERIES) * padded * sizeof(float) +
           MAX_QUERIES * sizeof(attend_query);
}

/* Fills in all of *task but the block and the queries at hand. */
static void attend_lay_out(attend_task *task, const op_call *call, void *scratch)
{
    task->call = call;
    task->size = call->in[AT_Q].dims[2];
    task->padded = attend_padded(call);
    task->scale = attend_scale(call->attributes[0].f, task->size);
    task->window = call->attributes[1].i;
    task->cap = (float)call->attributes[2].f;
    task->widened[0] = scratch;
    task->widened[1] = task->widened[0] + BLOCK * task->padded;
    task->zeros = task->widened[1] + BLOCK * task->padded;
    memset(task->zeros, 0, (size_t)task->padded * sizeof *task->zeros);
    float *rows = task->zeros + task->padded;
    task->query = (attend_query *)(void *)(rows + 3 * MAX_QUERIES * task->padded);
    for (int64_t i = 0; i < MAX_QUERIES; i++) {
        task->query[i].q = rows + 3 * i * task->padded;
        task->query[i].acc = task->query[i].q + task->padded;
        task->query[i].total.mean = task->query[i].acc + task->padded;
    }
    task->in_parts = false;
    task->place0 = 0;
    task->place1 = CONTEXT_PARTS;
}

/* ---- a block of the cache ---- */

/* Find sixteen positions.  offset[j]: of position p0 + j in elements, for KV head 0; -1 if it
 * has no place or lies after `last`.  A page table is read once a page, not once a position: the
 * positions of a page lie stride[2] apart. */
static void attend_find(const attend_task *task, const op_view *cache, int64_t slot, int64_t p0,
                        int64_t last, int64_t offset[BLOCK])
{
    int64_t per_page = cache->dims[2], left = 0, at = -1;
    for (int64_t j = 0; j < BLOCK; j++, left--) {
        if (left == 0) {
            at = pages_find(&task->call->in[AT_PAGES], cache, slot, p0 + j);
            left = per_page - (p0 + j) % per_page;
        } else if (at >= 0) {
            at += cache->stride[2];
        }
        offset[j] = p0 + j <= last ? at : -1;
    }
}

/* Bytes from the start of the cache to entry n, a multiple of a block's entries. */
V_INLINE int64_t attend_bytes(ir_dtype dtype, int64_t n)
{
    return dtype == IR_Q8_0 ? n / PAGES_BLOCK * PAGES_BLOCK_BYTES : n * (dtype == IR_F32 ? 4 : 2);
}

/* Sixteen entries of a row from entry i, a multiple of 16, or the n that are left.  Exact: a scale
 * of q8_0 has 11 bits, its entries have 7. */
V_INLINE vf attend_load(const void *row, ir_dtype dtype, int64_t i, int64_t n)
{
    if (dtype != IR_Q8_0)
        return row_load(row, dtype, i, n);
    const char *block = (const char *)row + i / PAGES_BLOCK * PAGES_BLOCK_BYTES;
    return v_mul(v_set(v_f16(block)), vi_float(vi_load_i8(block + 2 + i % PAGES_BLOCK)));
}

/* The rows at these offsets, in place in the cache or widened to `to`.  Reading in place costs a
 * conversion for each query, widening one for each block: so few queries take the rows in place.
 * A position without a place reads `zeros`, so that the loops need no branch; its weight becomes
 * zero by its score. */
static void attend_load_rows(const attend_task *task, const op_view *cache,
                             const int64_t offset[BLOCK], float *to, attend_rows *rows)
{
    bool in_place =
        task->size == task->padded && (cache->dtype == IR_F32 || task->n <= V_FEW_QUERIES);
    rows->dtype = in_place ? cache->dtype : IR_F32;
    for (int j = 0; j < BLOCK; j++, to += task->padded) {
        const char *row = (const char *)cache->data + attend_bytes(cache->dtype, offset[j]);
        rows->at[j] = offset[j] < 0 ? (const void *)task->zeros
                      : in_place    ? (const void *)row
                                    : (const void *)to;
        for (int64_t i = 0; rows->at[j] == to && i < task->size; i += 16)
            v_store(to + i, attend_load(row, cache->dtype, i, task->size - i));
    }
}

/* Prefetch the rows of a block: they are read once, from memory.  Inlined, since the compiler
 * drops calls of a function that has no other effect.  Two blocks ahead (AHEAD), because the
 * scores of one block take less time than memory's latency. */
V_INLINE void attend_ask(const attend_task *task, const op_view *cache, int64_t slot,
                         int64_t kv_head, int64_t p0)
{
    int64_t at = pages_find(&task->call->in[AT_PAGES], cache, slot, p0);
    if (at < 0)
        return;
    int64_t bytes = attend_bytes(cache->dtype, cache->stride[2]),
            left = cache->dims[2] - p0 % cache->dims[2];
    const char *row =
        (const char *)cache->data + attend_bytes(cache->dtype, at + kv_head * cache->stride[1]);
    for (int64_t i = 0; i < (left < BLOCK ? left : BLOCK) * bytes; i += 64)
        _mm_prefetch(row + i, _MM_HINT_T1);
}

/* Positions [p0, p0 + 16) of one slot and KV head become task->keys and task->values, which are the
 * same rows if there is one cache.  A position counts as absent if either cache has no place for
 * it. */
static void attend_load_block(attend_task *task, int64_t slot, int64_t kv_head, int64_t p0,
                              int64_t last)
{
    const op_view *k = &task->call->in[AT_K_CACHE],
                  *v = attend_value_cache(task->call->in, AT_V_CACHE);
    int64_t at_k[BLOCK], at_v[BLOCK];
    attend_find(task, k, slot, p0, last, at_k);
    attend_find(task, v, slot, p0, last, at_v);
    if (p0 + AHEAD * BLOCK <= last) {
        attend_ask(task, k, slot, kv_head, p0 + AHEAD * BLOCK);
        if (v != k)
            attend_ask(task, v, slot, kv_head, p0 + AHEAD * BLOCK);
    }
    task->absent = 0;
    for (int j = 0; j < BLOCK; j++) {
        bool absent = at_k[j] < 0 || at_v[j] < 0;
        task->absent |= (uint32_t)absent << j;
        at_k[j] = absent ? -1 : at_k[j] + kv_head * k->stride[1];
        at_v[j] = absent ? -1 : at_v[j] + kv_head * v->stride[1];
    }
    attend_load_rows(task, k, at_k, task->widened[0], &task->keys);
    if (v == k)
        task->values = task->keys;
    else
        attend_load_rows(task, v, at_v, task->widened[1], &task->values);
}

/* ---- queries ---- */

/* Products of nq queries, the first of them a[0], with V_POSITIONS keys from j on: the sixteen
 * sums of each, folded to eight.  V_QUERIES x V_POSITIONS accumulators stay in registers: each
 * load of a key serves all queries, and each load of a query all positions. */
V_INLINE void attend_multiply(const attend_task *task, ir_dtype dtype, int nq,
                              const attend_query *a, int64_t j, __m256 sums[V_QUERIES][BLOCK])
{
    vf s[V_QUERIES][V_POSITIONS];
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 4
        for (int p = 0; p < V_POSITIONS; p++)
            s[q][p] = v_zero();
    for (int64_t i = 0; i < task->padded; i += 16)
#pragma GCC unroll 4
        for (int p = 0; p < V_POSITIONS; p++) {
            vf key = attend_load(task->keys.at[j + p], dtype, i, 16);
#pragma GCC unroll 4
            for (int q = 0; q < nq; q++)
                s[q][p] = v_fma(v_load(a[q].q + i), key, s[q][p]);
        }
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 4
        for (int p = 0; p < V_POSITIONS; p++)
            sums[q][j + p] = v_half(s[q][p]);
}

/* score[q][j]: the score of query q at position j of the block, without mask. */
V_INLINE void attend_score(const attend_task *task, ir_dtype dtype, int nq, const attend_query *a,
                           float score[V_QUERIES][BLOCK])
{
    __m256 sums[V_QUERIES][BLOCK];
    for (int64_t j = 0; j < BLOCK; j += V_POSITIONS)
        attend_multiply(task, dtype, nq, a, j, sums);
    for (int q = 0; q < nq; q++) {
        v_sum_halves(sums[q], score[q]);
        v_sum_halves(sums[q] + 8, score[q] + 8);
        if (task->cap > 0)
            v_store(score[q],
                    v_mul(v_set(task->cap), v_tanh(v_div(v_load(score[q]), v_set(task->cap)))));
    }
}

/* The positions of the block at p0 that a query sees: [*j0, *j1), counted from p0; false if it
 * sees none.  The causal limit and the sliding window both become this range. */
static bool attend_range(const attend_query *a, int64_t p0, int64_t *j0, int64_t *j1)
{
    *j0 = a->first > p0 ? a->first - p0 : 0;
    *j1 = a->last - p0 < BLOCK ? a->last - p0 + 1 : BLOCK;
    return *j0 < *j1;
}

/* Turn the scores of one query into weights, in place, and move its largest score and sum of
 * weights on; *kept: the factor for what was summed before.  False if the query sees nothing of
 * the block, and then nothing changes.
 *
 * When the first score arrives, a->largest is -infinity and exp(-infinity - m) = 0 clears acc
 * and sum, so the first block needs no special case.  If all scores are -infinity nothing may be
 * added: -infinity - -infinity would be NaN. */
static bool attend_weigh_keys(const attend_task *task, attend_query *a, int64_t p0,
                              float weight[BLOCK], float *kept)
{
    int64_t j0, j1;
    if (!attend_range(a, p0, &j0, &j1))
        return false;
    for (int j = 0; task->absent >> j; j++)
        if (task->absent >> j & 1)
            weight[j] = -INFINITY;
    vf score = v_keep(v_load(weight), j0, j1, v_set(-INFINITY)), change = v_set(1);
    float largest = v_greatest(score);
    if (largest <= a->largest)
        largest = a->largest;
    else
        change = v_exp(v_set(a->largest - largest));
    if (largest == -INFINITY)
        return false;
    vf w = v_exp(v_sub(score, v_set(largest)));
    a->largest = largest;
    v_store(weight, w);
    v_store(a->sum, v_fma(v_load(a->sum), change, w));
    *kept = v_first(change);
    return true;
}

/* acc = acc * kept + sum of weight[j] value[j] over [j0, j1), for nq queries and nv vectors from
 * element i. */
V_INLINE void attend_add_part(const attend_task *task, ir_dtype dtype, int nq, attend_query *a,
                              float weight[][BLOCK], const float *kept, int64_t j0, int64_t j1,
                              int64_t i, int nv)
{
    vf acc[V_QUERIES][V_VALUES];
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[q][v] = v_mul(v_load(a[q].acc + i + 16 * v), v_set(kept[q]));
    for (int64_t j = j0; j < j1; j++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            vf value = attend_load(task->values.at[j], dtype, i + 16 * v, 16);
#pragma GCC unroll 4
            for (int q = 0; q < nq; q++)
                acc[q][v] = v_fma(v_set(weight[q][j]), value, acc[q][v]);
        }
#pragma GCC unroll 4
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            v_store(a[q].acc + i + 16 * v, acc[q][v]);
}

/* All of a head's entries for nq queries that see the same positions of the block: V_VALUES
 * vectors at a time while there are that many, then one by one. */
V_INLINE void attend_add_values(const attend_task *task, ir_dtype dtype, int nq, attend_query *a,
                                float weight[][BLOCK], const float *kept, int64_t p0)
{
    int64_t j0, j1, i = 0;
    attend_range(a, p0, &j0, &j1);
    for (; i + 16 * V_VALUES <= task->padded; i += 16 * V_VALUES)
        attend_add_part(task, dtype, nq, a, weight, kept, j0, j1, i, V_VALUES);
    for (; i < task->padded; i += 16)
        attend_add_part(task, dtype, nq, a, weight, kept, j0, j1, i, 1);
}

/* ---- for any dtype and up to V_QUERIES queries: code is compiled for each pair of both ---- */

/* attend_score with nq as a constant, so that its accumulators are registers. */
V_INLINE void attend_score_dtype(const attend_task *task, ir_dtype dtype, int64_t nq,
                                 const attend_query *a, float score[V_QUERIES][BLOCK])
{
    if (nq == 1)
        attend_score(task, dtype, 1, a, score);
    else if (nq == 2)
        attend_score(task, dtype, 2, a, score);
    else if (nq == 3)
        attend_score(task, dtype, 3, a, score);
    else
        attend_score(task, dtype, 4, a, score);
}

/* attend_score_dtype with the dtype as a constant, so that attend_load has no branch. */
static void attend_score_any(const attend_task *task, int64_t nq, const attend_query *a,
                             float score[V_QUERIES][BLOCK])
{
    if (task->keys.dtype == IR_F32)
        attend_score_dtype(task, IR_F32, nq, a, score);
    else if (task->keys.dtype == IR_F16)
        attend_score_dtype(task, IR_F16, nq, a, score);
    else if (task->keys.dtype == IR_Q8_0)
        attend_score_dtype(task, IR_Q8_0, nq, a, score);
    else
        attend_score_dtype(task, IR_BF16, nq, a, score);
}

/* attend_add_values with nq as a constant. */
V_INLINE void attend_add_dtype(const attend_task *task, ir_dtype dtype, int64_t nq, attend_query *a,
                               float weight[][BLOCK], const float *kept, int64_t p0)
{
    if (nq == 1)
        attend_add_values(task, dtype, 1, a, weight, kept, p0);
    else if (nq == 2)
        attend_add_values(task, dtype, 2, a, weight, kept, p0);
    else if (nq == 3)
        attend_add_values(task, dtype, 3, a, weight, kept, p0);
    else
        attend_add_values(task, dtype, 4, a, weight, kept, p0);
}

/* attend_add_dtype with the dtype as a constant. */
static void attend_add_any(const attend_task *task, int64_t nq, attend_query *a,
                           float weight[][BLOCK], const float *kept, int64_t p0)
{
    if (task->values.dtype == IR_F32)
        attend_add_dtype(task, IR_F32, nq, a, weight, kept, p0);
    else if (task->values.dtype == IR_F16)
        attend_add_dtype(task, IR_F16, nq, a, weight, kept, p0);
    else if (task->values.dtype == IR_Q8_0)
        attend_add_dtype(task, IR_Q8_0, nq, a, weight, kept, p0);
    else
        attend_add_dtype(task, IR_BF16, nq, a, weight, kept, p0);
}

/* Do two queries see the same positions of the block?  Only then can they share the loop over
 * positions in attend_add_part; in the last block of a prompt neighbours differ. */
static bool attend_same_range(const attend_query *a, const attend_query *b, int64_t p0)
{
    int64_t a0, a1, b0, b1;
    attend_range(a, p0, &a0, &a1);
    attend_range(b, p0, &b0, &b1);
    return a0 == b0 && a1 == b1;
}

/* Up to V_QUERIES queries against the loaded block; neighbours that see the same positions share
 * the loads of the values. */
static void attend_few(const attend_task *task, attend_query *a, int64_t n, int64_t p0)
{
    float weight[V_QUERIES][BLOCK], kept[V_QUERIES];
    bool sees[V_QUERIES];
    attend_score_any(task, n, a, weight);
    for (int64_t i = 0; i < n; i++)
        sees[i] = attend_weigh_keys(task, &a[i], p0, weight[i], &kept[i]);
    for (int64_t i = 0, end; i < n; i = end) {
        for (end = i + 1; sees[i] && end < n && sees[end] && attend_same_range(&a[i], &a[end], p0);)
            end++;
        if (sees[i])
            attend_add_any(task, end - i, &a[i], &weight[i], &kept[i], p0);
    }
}

/* ---- parts ---- */

/* Take in a part: the mean of its values, and the logarithm of its sum of weights as the score; it
 * has seen something. */
V_INLINE void attend_fold_part(attend_total *to, float log, const float *mean, int64_t padded)
{
    const float largest = log > to->largest ? log : to->largest;
    const float kept = v_first(v_exp(v_set(to->largest - largest))),
                weight = v_first(v_exp(v_set(log - largest)));
    to->largest = largest;
    to->sum = to->sum * kept + weight;
    for (int64_t i = 0; i < padded; i += 16)
        v_store(to->mean + i,
                v_fma(v_set(weight), v_load(mean + i), v_mul(v_set(kept), v_load(to->mean + i))));
}

/* Nothing taken in yet but a sink, whose value is zero.  Without one (-infinity) the first part
 * clears sum and mean, since exp(-infinity) is zero. */
static void attend_begin_total(attend_total *t, float sink, int64_t padded)
{
    t->largest = sink;
    t->sum = sink != -INFINITY;
    for (int64_t i = 0; i < padded; i += 16)
        v_store(t->mean + i, v_zero());
}

/* Store a total's mean; nothing taken in: zeros. */
static void attend_put_total(const attend_total *t, void *row, ir_dtype dtype, int64_t size)
{
    for (int64_t i = 0; i < size; i += 16) {
        vf y = t->sum > 0 ? v_div(v_load(t->mean + i), v_set(t->sum)) : v_zero();
        row_store(row, dtype, i, size - i, y);
    }
}

/* The part at hand is a result: its mean in acc, and its logarithm. */
static void attend_put_part(const attend_task *task, const attend_query *a, float log)
{
    const op_view *part = &task->call->out[0], *lse = &task->call->out[1];
    const int64_t place = context_place(a->parts, a->part);
    void *row = (char *)part->data +
                (a->token * part->stride[0] + place * part->stride[1] + a->head * task->size) *
                    (part->dtype == IR_F32 ? 4 : 2);
    for (int64_t i = 0; i < task->size; i += 16)
        row_store(row, part->dtype, i, task->size - i, v_load(a->acc + i));
    op_store(lse, a->token * lse->stride[0] + place * lse->stride[1] + a->head * lse->stride[2],
             log);
}

/* Begin a part: nothing is summed yet. */
static void attend_begin_part(const attend_task *task, attend_query *a, int part)
{
    a->part = part;
    a->end = (a->block + context_begin(a->blocks, a->parts, part + 1)) * BLOCK;
    a->largest = -INFINITY;
    v_store(a->sum, v_zero());
    for (int64_t i = 0; i < task->padded; i += 16)
        v_store(a->acc + i, v_zero());
}

/* A query's part ends: acc becomes its mean, which is folded or stored, and the next part begins.
 * A part that saw nothing, because all of its positions are absent, is left out. */
static void attend_close(const attend_task *task, attend_query *a)
{
    const float sum = v_sum(v_load(a->sum));
    if (sum > 0) {
        const float log = a->largest + logf(sum);
        for (int64_t i = 0; i < task->padded; i += 16)
            v_store(a->acc + i, v_div(v_load(a->acc + i), v_set(sum)));
        if (task->in_parts)
            attend_put_part(task, a, log);
        else
            attend_fold_part(&a->total, log, a->acc, task->padded);
    }
    attend_begin_part(task, a, a->part + 1);
}

/* Every query of the run against the loaded block. */
static void attend_block(attend_task *task, int64_t p0)
{
    for (int64_t from = 0; from < task->n; from += V_QUERIES)
        attend_few(task, &task->query[from],
                   task->n - from < V_QUERIES ? task->n - from : V_QUERIES, p0);
    for (int64_t i = 0; i < task->n; i++)
        if (task->query[i].end == p0 + BLOCK && task->query[i].first <= task->query[i].last)
            attend_close(task, &task->query[i]);
}

/* Entry `token` of an input of integers: positions or slots. */
static int64_t attend_integer(const attend_task *task, int input, int64_t token)
{
    const op_view *v = &task->call->in[input];
    return walk_load_int(v, token * v->stride[0]);
}

/* What a query sees in this task: the parts of the task's places, of a context that ends at its
 * position, or with the page table.  No part: first is larger than last. */
static void attend_find_parts(attend_task *task, attend_query *a, int64_t position)
{
    const op_view *pages = &task->call->in[AT_PAGES];
    const int64_t room = pages->dims[1] * task->call->in[AT_K_CACHE].dims[2],
                  last = position < room ? position : room - 1;
    a->first = attend_first(task->window, position);
    a->block = a->first / BLOCK;
    a->blocks = context_blocks(a->first, last);
    a->parts = context_parts(a->blocks);
    const int lo = context_from(a->parts, task->place0), hi = context_from(a->parts, task->place1);
    const int64_t from = (a->block + context_begin(a->blocks, a->parts, lo)) * BLOCK,
                  to = (a->block + context_begin(a->blocks, a->parts, hi)) * BLOCK - 1;
    a->first = from > a->first ? from : a->first;
    a->last = to < last ? to : last;
    attend_begin_part(task, a, lo);
}

/* Begin a query: load its row times the scale as f32, with nothing summed yet. */
static void attend_add_query(attend_task *task, int64_t token, int64_t head)
{
    const op_view *q = &task->call->in[AT_Q];
    attend_query *a = &task->query[task->n++];
    a->token = token;
    a->head = head;
    attend_find_parts(task, a, attend_integer(task, AT_POSITIONS, token));
    /* only attention folds, and so has sinks */
    attend_begin_total(&a->total,
                       task->in_parts ? -INFINITY : attend_sink(&task->call->in[AT_SINKS], head),
                       task->padded);
    for (int64_t i = 0; i < task->padded; i += 16) {
        vf x = row_load(q->data, q->dtype, token * q->stride[0] + head * q->stride[1] + i,
                        task->size - i);
        v_store(a->q + i, v_mul(x, v_set(task->scale)));
    }
}

/* Store the total.  A query that saw nothing, because all of its positions are absent, gives
 * zeros, as the reference does. */
static void attend_finish(const attend_task *task, const attend_query *a)
{
    const op_view *out = &task->call->out[0];
    void *row = (char *)out->data +
                (a->token * out->stride[0] + a->head * task->size) * (out->dtype == IR_F32 ? 4 : 2);
    attend_put_total(&a->total, row, out->dtype, task->size);
}

/* One run: tokens [t0, t1) of one slot, query heads [h0, h1) of one KV head.  The cache is read
 * from the first position that any of them sees to the last. */
static void attend_together(attend_task *task, int64_t t0, int64_t t1, int64_t h0, int64_t h1,
                            int64_t kv_head)
{
    int64_t first = INT64_MAX, last = -1, slot = attend_integer(task, AT_SLOTS, t0);
    task->n = 0;
    for (int64_t t = t0; t < t1; t++)
        for (int64_t h = h0; h < h1; h++) {
            attend_add_query(task, t, h);
            const attend_query *a = &task->query[task->n - 1];
            if (a->first > a->last)
                continue;
            first = a->first < first ? a->first : first;
            last = a->last > last ? a->last : last;
        }
    for (int64_t p0 = first / BLOCK * BLOCK; p0 <= last; p0 += BLOCK) {
        attend_load_block(task, slot, kv_head, p0, last);
        attend_block(task, p0);
    }
    for (int64_t i = 0; i < task->n && !task->in_parts; i++)
        attend_finish(task, &task->query[i]);
}

/* Query heads [h0, h1) of one KV head, all tokens of the box, as runs of neighbouring tokens of
 * one slot that fit MAX_QUERIES. */
static void attend_heads(attend_task *task, const ir_box *box, int64_t h0, int64_t h1,
                         int64_t kv_head)
{
    int64_t most = MAX_QUERIES / (h1 - h0);
    for (int64_t t0 = box->lo[0], t1; t0 < box->hi[0]; t0 = t1) {
        int64_t slot = attend_integer(task, AT_SLOTS, t0);
        for (t1 = t0 + 1;
             t1 < box->hi[0] && t1 - t0 < most && attend_integer(task, AT_SLOTS, t1) == slot;)
            t1++;
        attend_together(task, t0, t1, h0, h1, kv_head);
    }
}

/* Query heads [h0, end) of the box's tokens.  Those of one KV head are taken together, at most
 * MAX_QUERIES of them: a model with more query heads on one KV head has its group cut, and reads
 * the cache twice. */
static void attend_box(attend_task *task, const ir_box *box, int64_t h0, int64_t end)
{
    int64_t group = task->call->in[AT_Q].dims[1] / task->call->in[AT_K_CACHE].dims[1];
    for (int64_t h1; h0 < end; h0 = h1) {
        int64_t kv_head = h0 / group;
        h1 = (kv_head + 1) * group < end ? (kv_head + 1) * group : end;
        h1 = h1 - h0 > MAX_QUERIES ? h0 + MAX_QUERIES : h1;
        attend_heads(task, box, h0, h1, kv_head);
    }
}

/* The body of attention. */
static void attend_run(const op_call *call, const ir_box *box, void *scratch)
{
    attend_task task;
    attend_lay_out(&task, call, scratch);
    attend_box(&task, box, box->lo[1] / task.size, box->hi[1] / task.size);
}

/* The body of attention_parts: places without a part say so by their logarithm. */
static void attend_parts_run(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *lse = &call->out[1];
    attend_task task;
    attend_lay_out(&task, call, scratch);
    task.in_parts = true;
    task.place0 = (int)box->lo[1];
    task.place1 = (int)box->hi[1];
    const int64_t h0 = box->lo[2] / task.size, h1 = box->hi[2] / task.size;
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++)
        for (int64_t place = box->lo[1]; place < box->hi[1]; place++)
            for (int64_t h = h0; h < h1; h++)
                op_store(lse, t * lse->stride[0] + place * lse->stride[1] + h * lse->stride[2],
                         -INFINITY);
    attend_box(&task, box, h0, h1);
}

/* ---- attention_fold ---- */

/* Parts in f32, without gaps between the entries of a head. */
static bool attend_fold_accepts(const op_call *call)
{
    const op_view *part = &call->in[0], *y = &call->out[0];
    return part->dtype == IR_F32 && part->stride[2] == 1 && y->stride[1] == 1;
}

/* A total, and a part whose last vector may be short. */
static size_t attend_fold_scratch(const op_call *call, const ir_box *box)
{
    const int64_t size = call->in[0].dims[2] / call->in[1].dims[2];
    (void)box;
    return 2 * (size_t)((size + 15) / 16 * 16) * sizeof(float);
}

/* One head of one token: its parts in rising order. */
static void attend_fold_head(const op_call *call, int64_t token, int64_t head, int64_t size,
                             attend_total *total)
{
    const op_view *part = &call->in[0], *lse = &call->in[1], *y = &call->out[0];
    const int64_t padded = (size + 15) / 16 * 16;
    attend_begin_total(total, attend_sink(&call->in[2], head), padded);
    for (int64_t place = 0; place < part->dims[1]; place++) {
        const float log =
            op_load(lse, token * lse->stride[0] + place * lse->stride[1] + head * lse->stride[2]);
        const float *row = (const float *)part->data + token * part->stride[0] +
                           place * part->stride[1] + head * size;
        if (log == -INFINITY)
            continue;
        if (size != padded)
            for (int64_t i = 0; i < size; i += 16)
                v_store(total->mean + padded + i, row_load(row, IR_F32, i, size - i));
        attend_fold_part(total, log, size == padded ? row : total->mean + padded, padded);
    }
    attend_put_total(total, (float *)y->data + token * y->stride[0] + head * size, IR_F32, size);
}

/* The body of attention_fold: tokens and heads one by one. */
static void attend_fold_run(const op_call *call, const ir_box *box, void *scratch)
{
    const int64_t size = call->in[0].dims[2] / call->in[1].dims[2];
    attend_total total = {.mean = scratch};
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++)
        for (int64_t head = box->lo[1] / size; head < box->hi[1] / size; head++)
            attend_fold_head(call, t, head, size, &total);
}

#endif
