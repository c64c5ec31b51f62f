/* attention_kernels.h - attention over the paged cache, over the vectors of vec_*.h.  q [T, H,
 * K] -> [T, H K], as op/attention.c defines it.
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
 * position by FMA.  Cost: 4 K flops for a query and position; few queries are bound by the bytes
 * of the cache.
 *
 * A call goes through these levels, each of which fixes one more thing:
 *
 *   attend_run       the box: KV head after KV head
 *   attend_heads     one KV head: runs of neighbouring tokens of one slot
 *   attend_together  one run: its queries are begun, then the cache is read once, block by block
 *   attend_load_block  sixteen positions: their rows are found, and widened if that pays
 *   attend_few       up to V_QUERIES queries against the loaded block: scores, weights, values
 *   attend_finish    acc / sum to the result
 *
 * Used by isa_avx2_general.c, isa_avx512_general.c and isa_neon_general.c, which list attend_run
 * as the body of the operator for their instruction set.
 */
#ifndef CPU_ATTENTION_KERNELS_H
#define CPU_ATTENTION_KERNELS_H

#include "cpu/vec_math.h"
#include "op/attend.h"

/* MAX_QUERIES: most queries of a run, by which scratch is sized.  BLOCK: positions of a block,
 * one for each lane.  AHEAD: blocks between the prefetch of a block and its use. */
enum { MAX_QUERIES = 64, BLOCK = 16, AHEAD = 2 };

/* What one query has summed so far.  With m = largest, the invariant after each block is
 *
 *   sum over lanes = sum of exp(score - m)       over the positions taken so far
 *   acc            = sum of exp(score - m) value
 *
 * so that acc / sum is the result whenever the blocks end; a larger score only changes m, and both
 * are scaled by exp(old m - new m). */
typedef struct attend_query {
    int64_t first, last; /* the positions that it sees, both included */
    int64_t token, head; /* its place in q and in the result */
    float largest;       /* the largest score so far; -infinity: none yet */
    /* Lane j holds the weights of positions that are j modulo 16; the lanes are added at the
     * end. */
    float sum[16];
    float *q, *acc; /* [padded] each; q is scaled */
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
} attend_task;

/* Inputs, by index. */
enum { AT_Q, AT_K_CACHE, AT_V_CACHE, AT_POSITIONS, AT_SLOTS, AT_PAGES };

/* Dtypes of a cache whose rows attend_load can read. */
static bool attend_reads(ir_dtype dtype)
{
    return row_is_float(dtype) || dtype == IR_Q8_0;
}

/* Heads must be contiguous in q, in both caches and in the result; only then are vectors loaded. */
static bool attend_accepts(const op_call *call)
{
    const op_view *q = &call->in[AT_Q], *k = &call->in[AT_K_CACHE], *v = &call->in[AT_V_CACHE];
    return row_is_float(q->dtype) && attend_reads(k->dtype) && attend_reads(v->dtype) &&
           row_is_float(call->out[0].dtype) && q->stride[2] == 1 && k->stride[3] == 1 &&
           v->stride[3] == 1 && call->out[0].stride[1] == 1;
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
 *   keys [16] | values [16] | zeros [1] | q and acc of each query [64][2] | the records [64]
 *
 * It does not depend on the box, so fewer tokens never need more. */
static size_t attend_scratch_bytes(const op_call *call, const ir_box *box)
{
    (void)box;
    size_t padded = (size_t)attend_padded(call);
    return (2 * BLOCK + 1 + 2 * MAX_QUERIES) * padded * sizeof(float) +
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
    task->query = (attend_query *)(void *)(rows + 2 * MAX_QUERIES * task->padded);
    for (int64_t i = 0; i < MAX_QUERIES; i++) {
        task->query[i].q = rows + 2 * i * task->padded;
        task->query[i].acc = task->query[i].q + task->padded;
    }
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

/* Positions [p0, p0 + 16) of one slot and KV head become task->keys and task->values.  A position
 * counts as absent if either cache has no place for it. */
static void attend_load_block(attend_task *task, int64_t slot, int64_t kv_head, int64_t p0,
                              int64_t last)
{
    const op_view *k = &task->call->in[AT_K_CACHE], *v = &task->call->in[AT_V_CACHE];
    int64_t at_k[BLOCK], at_v[BLOCK];
    attend_find(task, k, slot, p0, last, at_k);
    attend_find(task, v, slot, p0, last, at_v);
    if (p0 + AHEAD * BLOCK <= last) {
        attend_ask(task, k, slot, kv_head, p0 + AHEAD * BLOCK);
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

/* Every query of the run against the loaded block. */
static void attend_block(attend_task *task, int64_t p0)
{
    for (int64_t from = 0; from < task->n; from += V_QUERIES)
        attend_few(task, &task->query[from],
                   task->n - from < V_QUERIES ? task->n - from : V_QUERIES, p0);
}

/* Entry `token` of an input of integers: positions or slots. */
static int64_t attend_integer(const attend_task *task, int input, int64_t token)
{
    const op_view *v = &task->call->in[input];
    return walk_load_int(v, token * v->stride[0]);
}

/* Begin a query: load its row times the scale as f32, with nothing summed yet.  A position
 * beyond the page table sees the positions that the table has. */
static void attend_add_query(attend_task *task, int64_t token, int64_t head)
{
    const op_view *q = &task->call->in[AT_Q], *pages = &task->call->in[AT_PAGES];
    attend_query *a = &task->query[task->n++];
    int64_t room = pages->dims[1] * task->call->in[AT_K_CACHE].dims[2];
    int64_t position = attend_integer(task, AT_POSITIONS, token);
    a->token = token;
    a->head = head;
    a->last = position < room ? position : room - 1;
    a->first = task->window > 0 && position >= task->window ? position - task->window + 1 : 0;
    a->largest = -INFINITY;
    v_store(a->sum, v_zero());
    for (int64_t i = 0; i < task->padded; i += 16) {
        vf x = row_load(q->data, q->dtype, token * q->stride[0] + head * q->stride[1] + i,
                        task->size - i);
        v_store(a->q + i, v_mul(x, v_set(task->scale)));
        v_store(a->acc + i, v_zero());
    }
}

/* Store acc / sum.  A query that saw nothing, because all of its positions are absent, gives
 * zeros, as the reference does. */
static void attend_finish(const attend_task *task, const attend_query *a)
{
    const op_view *out = &task->call->out[0];
    float sum = v_sum(v_load(a->sum));
    void *row = (char *)out->data +
                (a->token * out->stride[0] + a->head * task->size) * (out->dtype == IR_F32 ? 4 : 2);
    for (int64_t i = 0; i < task->size; i += 16) {
        vf y = sum > 0 ? v_div(v_load(a->acc + i), v_set(sum)) : v_zero();
        row_store(row, out->dtype, i, task->size - i, y);
    }
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
            first = a->first < first ? a->first : first;
            last = a->last > last ? a->last : last;
        }
    for (int64_t p0 = first / BLOCK * BLOCK; p0 <= last; p0 += BLOCK) {
        attend_load_block(task, slot, kv_head, p0, last);
        attend_block(task, p0);
    }
    for (int64_t i = 0; i < task->n; i++)
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

/* The body.  The query heads of one KV head are taken together, at most MAX_QUERIES of them: a
 * model with more query heads on one KV head has its group cut, and reads the cache twice. */
static void attend_run(const op_call *call, const ir_box *box, void *scratch)
{
    attend_task task;
    attend_lay_out(&task, call, scratch);
    int64_t group = call->in[AT_Q].dims[1] / call->in[AT_K_CACHE].dims[1];
    int64_t end = box->hi[1] / task.size;
    for (int64_t h0 = box->lo[1] / task.size, h1; h0 < end; h0 = h1) {
        int64_t kv_head = h0 / group;
        h1 = (kv_head + 1) * group < end ? (kv_head + 1) * group : end;
        h1 = h1 - h0 > MAX_QUERIES ? h0 + MAX_QUERIES : h1;
        attend_heads(&task, box, h0, h1, kv_head);
    }
}

#endif
