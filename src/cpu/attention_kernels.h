/* attention_kernels.h - attention over the paged cache, over the vectors of vec_*.h.
 *
 * q [T, H, K] -> [T, H K], as op/attention.c defines it.  Neighbouring tokens of a slot and the query heads of a KV
 * head are taken together, up to MAX_QUERIES of them: sixteen positions of the cache are laid out once, keys by
 * columns, and used for all.
 *
 * Arithmetic of one query, whatever stands beside it: blocks of sixteen positions, cut at multiples of sixteen, in
 * rising order; a score is the sum of q k over rising k by FMA; after each block the largest score so far scales what
 * was summed before (online softmax); values are added position by position by FMA.
 * Cost: 4 K flops for a query and position; a block of keys is transposed once for all its queries.
 */
#ifndef CPU_ATTENTION_KERNELS_H
#define CPU_ATTENTION_KERNELS_H

#include "cpu/vec_math.h"
#include "op/attend.h"

enum { MAX_QUERIES = 64, BLOCK = 16, AHEAD = 2 };

/* What one query has summed so far. */
typedef struct attend_query {
    int64_t first, last; /* positions seen */
    int64_t token, head;
    float largest;
    float sum[16];
    float *q, *acc; /* [padded] each; q is scaled */
} attend_query;

typedef struct attend_task {
    const op_call *call;
    int64_t size, padded, window;
    float scale;
    float *keys;   /* [padded, 16] */
    float *values; /* [16, padded] */
    const float *value[BLOCK];
    uint32_t absent; /* bit j: position j of the block has no place in the cache */
    attend_query *query;
    int64_t n;
} attend_task;

enum { AT_Q, AT_K_CACHE, AT_V_CACHE, AT_POSITIONS, AT_SLOTS, AT_PAGES };

static bool attend_accepts(const op_call *call)
{
    const op_view *q = &call->in[AT_Q], *k = &call->in[AT_K_CACHE], *v = &call->in[AT_V_CACHE];
    return row_is_float(q->dtype) && row_is_float(k->dtype) && row_is_float(v->dtype) &&
           row_is_float(call->out[0].dtype) && q->stride[2] == 1 && k->stride[3] == 1 && v->stride[3] == 1 &&
           call->out[0].stride[1] == 1;
}

static int64_t attend_padded(const op_call *call)
{
    return (call->in[AT_Q].dims[2] + 15) / 16 * 16;
}

static size_t attend_scratch_bytes(const op_call *call, const ir_box *box)
{
    (void)box;
    size_t padded = (size_t)attend_padded(call);
    return (2 * BLOCK * padded + 2 * MAX_QUERIES * padded) * sizeof(float) + MAX_QUERIES * sizeof(attend_query);
}

static void attend_lay_out(attend_task *task, const op_call *call, void *scratch)
{
    task->call = call;
    task->size = call->in[AT_Q].dims[2];
    task->padded = attend_padded(call);
    task->scale = attend_scale(call->attributes[0].f, task->size);
    task->window = call->attributes[1].i;
    task->keys = scratch;
    task->values = task->keys + BLOCK * task->padded;
    float *rows = task->values + BLOCK * task->padded;
    task->query = (attend_query *)(void *)(rows + 2 * MAX_QUERIES * task->padded);
    for (int64_t i = 0; i < MAX_QUERIES; i++) {
        task->query[i].q = rows + 2 * i * task->padded;
        task->query[i].acc = task->query[i].q + task->padded;
    }
}

/* ---- a block of the cache ---- */

/* offset[j]: of position p0 + j in elements for KV head 0, or -1: no place, or after `last`.  The caches lie alike. */
static void attend_find(const attend_task *task, const op_view *cache, int64_t slot, int64_t p0, int64_t last,
                        int64_t offset[BLOCK])
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

V_INLINE vf attend_load(const op_view *cache, int64_t offset, int64_t i, int64_t n)
{
    return offset < 0 ? v_zero() : row_load(cache->data, cache->dtype, offset + i, n);
}

/* keys[i][j] = element i of the key of position j. */
static void attend_load_keys(attend_task *task, const int64_t offset[BLOCK])
{
    const op_view *cache = &task->call->in[AT_K_CACHE];
    vf rows[16], columns[16];
    for (int64_t i = 0; i < task->size; i += 16) {
        for (int j = 0; j < BLOCK; j++)
            rows[j] = attend_load(cache, offset[j], i, task->size - i);
        v_transpose(rows, columns);
        for (int j = 0; j < 16; j++)
            v_store(task->keys + (i + j) * 16, columns[j]);
    }
}

/* value[j]: the values of position j as f32, zeros after the end of the row; where they lie if that will do. */
static void attend_load_values(attend_task *task, const int64_t offset[BLOCK])
{
    const op_view *cache = &task->call->in[AT_V_CACHE];
    bool in_place = cache->dtype == IR_F32 && task->size == task->padded;
    for (int j = 0; j < BLOCK; j++) {
        float *to = task->values + j * task->padded;
        task->value[j] = to;
        if (in_place && offset[j] >= 0)
            task->value[j] = (const float *)cache->data + offset[j];
        else
            for (int64_t i = 0; i < task->size; i += 16)
                v_store(to + i, attend_load(cache, offset[j], i, task->size - i));
    }
}

/* Ask for the rows of a block before they are needed: they are read once, from memory.  Inlined, since the compiler
 * drops calls of a function that only asks. */
V_INLINE void attend_ask(const attend_task *task, const op_view *cache, int64_t slot, int64_t kv_head, int64_t p0)
{
    int64_t at = pages_find(&task->call->in[AT_PAGES], cache, slot, p0);
    if (at < 0)
        return;
    int64_t bytes = cache->dtype == IR_F32 ? 4 : 2, left = cache->dims[2] - p0 % cache->dims[2];
    const char *row = (const char *)cache->data + (at + kv_head * cache->stride[1]) * bytes;
    for (int64_t j = 0; j < BLOCK && j < left; j++, row += cache->stride[2] * bytes)
        for (int64_t i = 0; i < task->size * bytes; i += 64)
            _mm_prefetch(row + i, _MM_HINT_T1);
}

static void attend_load_block(attend_task *task, int64_t slot, int64_t kv_head, int64_t p0, int64_t last)
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
    attend_load_keys(task, at_k);
    attend_load_values(task, at_v);
}

/* ---- queries ---- */

/* The scores of nq queries from `from` on (the last one stands in for those past the end), lane j for position j. */
V_INLINE void attend_scores_of(const attend_task *task, int nq, int64_t from, vf score[V_QUERIES])
{
    const float *q[V_QUERIES];
    vf s[V_QUERIES];
#pragma GCC unroll 8
    for (int i = 0; i < nq; i++) {
        q[i] = task->query[from + i < task->n ? from + i : task->n - 1].q;
        s[i] = v_zero();
    }
    for (int64_t k = 0; k < task->size; k++) {
        vf key = v_load(task->keys + 16 * k);
#pragma GCC unroll 8
        for (int i = 0; i < nq; i++)
            s[i] = v_fma(v_set(q[i][k]), key, s[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < nq; i++)
        score[i] = s[i];
}

/* The same for up to V_QUERIES queries: while one token is generated there are only those of one KV head. */
static void attend_scores(const attend_task *task, int64_t from, vf score[V_QUERIES])
{
    int64_t n = task->n - from;
    if (n == 1)
        attend_scores_of(task, 1, from, score);
    else if (n == 2)
        attend_scores_of(task, 2, from, score);
    else if (n <= 4)
        attend_scores_of(task, 4, from, score);
    else
        attend_scores_of(task, V_QUERIES, from, score);
}

/* The positions of the block at p0 that a query sees: [*j0, *j1); false: none. */
static bool attend_range(const attend_query *a, int64_t p0, int64_t *j0, int64_t *j1)
{
    *j0 = a->first > p0 ? a->first - p0 : 0;
    *j1 = a->last - p0 < BLOCK ? a->last - p0 + 1 : BLOCK;
    return *j0 < *j1;
}

/* Scores to weights: the largest score and the sum of weights move on; *kept: what earlier sums are multiplied by.
 * False if the query sees nothing of the block. */
static bool attend_weigh_keys(const attend_task *task, attend_query *a, int64_t p0, vf score, float weight[16],
                              float *kept)
{
    int64_t j0, j1;
    if (!attend_range(a, p0, &j0, &j1))
        return false;
    score = v_keep(score, j0, j1, v_set(-INFINITY));
    if (task->absent) {
        v_store(weight, score);
        for (int j = 0; j < BLOCK; j++)
            weight[j] = task->absent >> j & 1 ? -INFINITY : weight[j];
        score = v_load(weight);
    }
    float block = v_greatest(score), largest = block > a->largest ? block : a->largest;
    if (largest == -INFINITY)
        return false;
    vf change = v_exp(v_set(a->largest - largest)), w = v_exp(v_sub(score, v_set(largest)));
    a->largest = largest;
    v_store(weight, w);
    v_store(a->sum, v_fma(v_load(a->sum), change, w));
    *kept = v_first(change);
    return true;
}

/* acc = acc * kept + sum of weight[j] value[j] over [j0, j1), for nq queries and four vectors from element i. */
V_INLINE void attend_add_part(const attend_task *task, int nq, attend_query *a, float weight[][16], const float *kept,
                              int64_t j0, int64_t j1, int64_t i, int nv)
{
    vf acc[2][4];
#pragma GCC unroll 2
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[q][v] = v_mul(v_load(a[q].acc + i + 16 * v), v_set(kept[q]));
    for (int64_t j = j0; j < j1; j++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            vf value = v_load(task->value[j] + i + 16 * v);
#pragma GCC unroll 2
            for (int q = 0; q < nq; q++)
                acc[q][v] = v_fma(v_set(weight[q][j]), value, acc[q][v]);
        }
#pragma GCC unroll 2
    for (int q = 0; q < nq; q++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            v_store(a[q].acc + i + 16 * v, acc[q][v]);
}

V_INLINE void attend_add_values(const attend_task *task, int nq, attend_query *a, float weight[][16], const float *kept,
                                int64_t p0)
{
    int64_t j0, j1, i = 0;
    attend_range(a, p0, &j0, &j1);
    for (; i + 64 <= task->padded; i += 64)
        attend_add_part(task, nq, a, weight, kept, j0, j1, i, 4);
    for (; i < task->padded; i += 16)
        attend_add_part(task, nq, a, weight, kept, j0, j1, i, 1);
}

static bool attend_same_range(const attend_query *a, const attend_query *b, int64_t p0)
{
    int64_t a0, a1, b0, b1;
    attend_range(a, p0, &a0, &a1);
    attend_range(b, p0, &b0, &b1);
    return a0 == b0 && a1 == b1;
}

/* All queries against the block that was loaded; two that see the same positions share the loads of the values. */
static void attend_block(attend_task *task, int64_t p0)
{
    for (int64_t from = 0; from < task->n; from += V_QUERIES) {
        vf score[V_QUERIES];
        float weight[V_QUERIES + 1][16], kept[V_QUERIES];
        bool sees[V_QUERIES + 1] = {false};
        attend_query *a = &task->query[from];
        int64_t n = task->n - from < V_QUERIES ? task->n - from : V_QUERIES;
        attend_scores(task, from, score);
        for (int64_t i = 0; i < n; i++)
            sees[i] = attend_weigh_keys(task, &a[i], p0, score[i], weight[i], &kept[i]);
        for (int64_t i = 0; i < n; i++) {
            if (!sees[i])
                continue;
            if (sees[i + 1] && attend_same_range(&a[i], &a[i + 1], p0)) {
                attend_add_values(task, 2, &a[i], &weight[i], &kept[i], p0);
                i++;
            } else {
                attend_add_values(task, 1, &a[i], &weight[i], &kept[i], p0);
            }
        }
    }
}

static int64_t attend_integer(const attend_task *task, int input, int64_t token)
{
    const op_view *v = &task->call->in[input];
    return walk_load_int(v, token * v->stride[0]);
}

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
        vf x = row_load(q->data, q->dtype, token * q->stride[0] + head * q->stride[1] + i, task->size - i);
        v_store(a->q + i, v_mul(x, v_set(task->scale)));
        v_store(a->acc + i, v_zero());
    }
}

static void attend_finish(const attend_task *task, const attend_query *a)
{
    const op_view *out = &task->call->out[0];
    float sum = v_sum(v_load(a->sum));
    void *row = (char *)out->data + (a->token * out->stride[0] + a->head * task->size) * (out->dtype == IR_F32 ? 4 : 2);
    for (int64_t i = 0; i < task->size; i += 16) {
        vf y = sum > 0 ? v_div(v_load(a->acc + i), v_set(sum)) : v_zero();
        row_store(row, out->dtype, i, task->size - i, y);
    }
}

/* Tokens [t0, t1) of one slot, query heads [h0, h1) of one KV head. */
static void attend_together(attend_task *task, int64_t t0, int64_t t1, int64_t h0, int64_t h1, int64_t kv_head)
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

/* Query heads [h0, h1) of one KV head, all tokens of the box: runs of the same slot, as many as there is room for. */
static void attend_heads(attend_task *task, const ir_box *box, int64_t h0, int64_t h1, int64_t kv_head)
{
    int64_t most = MAX_QUERIES / (h1 - h0);
    for (int64_t t0 = box->lo[0], t1; t0 < box->hi[0]; t0 = t1) {
        int64_t slot = attend_integer(task, AT_SLOTS, t0);
        for (t1 = t0 + 1; t1 < box->hi[0] && t1 - t0 < most && attend_integer(task, AT_SLOTS, t1) == slot;)
            t1++;
        attend_together(task, t0, t1, h0, h1, kv_head);
    }
}

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
