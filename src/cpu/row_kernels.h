/* row_kernels.h - fast bodies of operators that go over rows once: rms_norm, rms_norm_parts,
 * rope_kv, argmax and argmax_partial.  Their cost is small, but a decode step runs each of them
 * thirty times or more.
 *
 * argmax and the rotation give the bits of the reference code; norms are those of
 * norm_kernels.h.  Called once for a task, over all rows of its box.  rope_kv writes keys and
 * values to the paged cache; several tasks may write one page, but never the same row of it: a
 * token and a KV head are in one box.
 */
#ifndef CPU_ROW_KERNELS_H
#define CPU_ROW_KERNELS_H

#include "cpu/norm_kernels.h"
#include "op/heads.h"
#include "op/largest.h"

/* Rows of f32, f16 or bf16, contiguous along the last axis; rows may be any distance apart. */
static bool rows_are_dense(const op_view *v)
{
    return row_is_float(v->dtype) && v->stride[v->rank - 1] == 1;
}

/* The address of the element at `offset`, which counts elements. */
static void *row_pointer(const op_view *v, int64_t offset)
{
    return (char *)v->data + offset * (v->dtype == IR_F32 ? 4 : 2);
}

/* ---- rms_norm ---- */

static bool rms_norm_accepts(const op_call *call)
{
    bool dense = rows_are_dense(&call->out[0]);
    for (uint32_t i = 0; i < call->n_in; i++)
        dense = dense && (!call->in[i].data || rows_are_dense(&call->in[i]));
    return dense;
}

/* Row after row; at[] counts over all axes but the last. */
static void rms_norm_run(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const bool gated = call->in[3].data != NULL;
    const op_view *x = &call->in[0], *w = &call->in[1], *beside = &call->in[gated ? 3 : 2],
                  *y = &call->out[0];
    uint32_t last = x->rank - 1;
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do {
        at[last] = 0;
        norm_rms_row(row_pointer(x, walk_offset(x, at)), x->dtype, x->dims[last], w->data, w->dtype,
                     beside->data ? row_pointer(beside, walk_offset(beside, at)) : NULL, gated,
                     (float)call->attributes[0].f, row_pointer(y, walk_offset(y, at)), y->dtype);
    } while (walk_next(box, last, at));
}

/* ---- rms_norm_parts ---- */

static bool rms_norm_parts_accepts(const op_call *call)
{
    return rows_are_dense(&call->in[0]) && rows_are_dense(&call->out[0]) &&
           rows_are_dense(&call->in[1]) && rows_are_dense(&call->in[2]);
}

/* Row after row: both parts, and the columns after them. */
static void rms_norm_parts_run(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *y = &call->out[0];
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
        int64_t at = t * x->stride[0], to = t * y->stride[0], rest = x->dims[1];
        for (uint32_t i = 1; i <= 2; i++) {
            const op_view *w = &call->in[i];
            norm_rms_row(row_pointer(x, at), x->dtype, w->dims[0], w->data, w->dtype, NULL, false,
                         (float)call->attributes[0].f, row_pointer(y, to), y->dtype);
            at += w->dims[0];
            to += w->dims[0];
            rest -= w->dims[0];
        }
        memcpy(row_pointer(y, to), row_pointer(x, at), (size_t)ir_row_bytes(x->dtype, rest));
    }
}

/* ---- rope_kv ---- */

/* Inputs and attributes, by index, as in op/rotated.h. */
enum {
    RK_QKV,
    RK_TABLE,
    RK_POSITIONS,
    RK_SLOTS,
    RK_PAGES,
    RK_K_CACHE,
    RK_V_CACHE,
    RK_Q_NORM,
    RK_K_NORM
};
enum { RK_HEADS, RK_KV_HEADS, RK_HEAD_SIZE, RK_EPS, RK_NORM_LAST };

/* q8_0 is contiguous by definition: it has no stride along a head. */
static bool caches_are_dense(const op_view *v)
{
    return v->dtype == IR_Q8_0 || rows_are_dense(v);
}

/* Accepts qkv of f32 and contiguous rows; others are left to the reference code. */
static bool rope_kv_accepts(const op_call *call)
{
    for (uint32_t i = RK_Q_NORM; i <= RK_K_NORM && i < call->n_in; i++)
        if (call->in[i].data && !rows_are_dense(&call->in[i]))
            return false;
    return call->in[RK_QKV].dtype == IR_F32 && call->in[RK_QKV].stride[1] == 1 &&
           call->in[RK_TABLE].stride[2] == 1 && rows_are_dense(&call->out[0]) &&
           caches_are_dense(&call->out[1]) && caches_are_dense(&call->out[2]);
}

/* Scratch: a place in the cache for each token of the step, and one head. */
static size_t rope_kv_scratch_bytes(const op_call *call, const ir_box *box)
{
    (void)box;
    return (size_t)call->in[RK_TABLE].dims[0] * sizeof(int64_t) +
           (size_t)call->attributes[RK_HEAD_SIZE].i * sizeof(float);
}

/* As rope_rotate of op/rope.h: each product and each sum is rounded, none fused. */
V_INLINE void rotate(const float *x, float *y, const float *cosine, const float *sine, int64_t half)
{
    for (int64_t i = 0; i < half; i += 16) {
        int64_t n = half - i;
        vf a = v_load_n(x + i, n), b = v_load_n(x + half + i, n);
        vf c = v_load_n(cosine + i, n), s = v_load_n(sine + i, n);
        v_store_n(y + i, n, v_sub(v_mul(a, c), v_mul(b, s)));
        v_store_n(y + half + i, n, v_add(v_mul(b, c), v_mul(a, s)));
    }
}

/* One head: normalised if there is a weight, then rotated by row t of the table, or rotated first;
 * the result is in `row`. */
static void rotate_head(const op_call *call, const float *x, int64_t t, const op_view *norm,
                        float *row)
{
    const op_view *table = &call->in[RK_TABLE];
    int64_t size = call->attributes[RK_HEAD_SIZE].i, half = table->dims[2];
    const float *cosine = (const float *)table->data + t * table->stride[0];
    const bool last = norm->data && call->attributes[RK_NORM_LAST].i;
    const float eps = (float)call->attributes[RK_EPS].f;
    if (norm->data && !last)
        norm_rms_row(x, IR_F32, size, norm->data, norm->dtype, NULL, false, eps, row, IR_F32);
    else
        memcpy(row, x, (size_t)size * sizeof *row);
    rotate(row, row, cosine, cosine + table->stride[1], half);
    if (last)
        norm_rms_row(row, IR_F32, size, norm->data, norm->dtype, NULL, false, eps, row, IR_F32);
}

/* Store n floats as a row in the dtype of `to`, a cache or q. */
static void put_row(const op_view *to, int64_t offset, int64_t n, const float *from)
{
    if (to->dtype == IR_Q8_0) {
        pages_put_row(to, offset, n, from);
        return;
    }
    void *row = row_pointer(to, offset);
    for (int64_t i = 0; i < n; i += 16)
        row_store(row, to->dtype, i, n - i, v_load_n(from + i, n - i));
}

/* Keys and values of token t for KV heads [lo, hi) into the cache, if they have a place.  A v
 * head is copied as it is: only q and k are normalised and rotated. */
static void put_keys(const op_call *call, int64_t t, const float *x, int64_t lo, int64_t hi,
                     float *row)
{
    const ir_attribute *a = call->attributes;
    const op_view *in = call->in, *k = &call->out[1], *v = &call->out[2];
    int64_t size = a[RK_HEAD_SIZE].i,
            position = walk_load_int(&in[RK_POSITIONS], t * in[RK_POSITIONS].stride[0]);
    int64_t slot = walk_load_int(&in[RK_SLOTS], t * in[RK_SLOTS].stride[0]);
    int64_t at_k = pages_find(&in[RK_PAGES], k, slot, position),
            at_v = pages_find(&in[RK_PAGES], v, slot, position);
    for (int64_t g = lo; g < hi; g++) {
        const float *key = x + (a[RK_HEADS].i + g) * size, *value = key + a[RK_KV_HEADS].i * size;
        if (at_k >= 0) {
            rotate_head(call, key, t, &in[RK_K_NORM], row);
            put_row(k, at_k + g * k->stride[1], size, row);
        }
        if (at_v >= 0)
            put_row(v, at_v + g * v->stride[1], size, value);
    }
}

/* The box is over tokens and query heads.  A KV head belongs to the task that has the first
 * query head of its group: with heads [lo, hi) these are [lo / group rounded up, hi / group
 * rounded up), so each is written by one task whatever the cut. */
static void rope_kv_run(const op_call *call, const ir_box *box, void *scratch)
{
    const ir_attribute *a = call->attributes;
    const op_view *in = call->in, *qkv = &in[RK_QKV], *q = &call->out[0];
    int64_t size = a[RK_HEAD_SIZE].i, group = a[RK_HEADS].i / a[RK_KV_HEADS].i, *place = scratch;
    float *row = (float *)(void *)(place + in[RK_TABLE].dims[0]);
    pages_find_tokens(&in[RK_POSITIONS], &in[RK_SLOTS], &in[RK_PAGES], &call->out[1],
                      op_live_entries(call, qkv), box->lo[0], box->hi[0], place);
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
        const float *x = (const float *)qkv->data + t * qkv->stride[0];
        for (int64_t h = box->lo[1]; h < box->hi[1]; h++) {
            rotate_head(call, x + h * size, t, &in[RK_Q_NORM], row);
            put_row(q, t * q->stride[0] + h * q->stride[1], size, row);
        }
        if (place[t] >= 0)
            put_keys(call, t, x, (box->lo[1] + group - 1) / group, (box->hi[1] + group - 1) / group,
                     row);
    }
}

/* ---- argmax ---- */

static bool argmax_accepts(const op_call *call)
{
    return call->in[0].dtype == IR_F32 && call->in[0].stride[1] == 1;
}

/* The place of the largest entry of x[lo .. hi), as largest_in_row finds it: of equal ones the
 * first, NaN never; -1 if there is no number.  Two passes are cheaper than one that carries an
 * index in each lane: the second mostly ends early. */
static int64_t largest(const op_view *x, int64_t row, int64_t lo, int64_t hi)
{
    const float *at = (const float *)x->data + row;
    vf best = v_set(-INFINITY);
    int64_t whole = lo + (hi - lo) / 16 * 16, i;
    for (i = lo; i < whole; i += 16)
        best = v_max(v_load(at + i), best);
    float most = v_greatest(best);
    for (; i < hi; i++)
        most = at[i] > most ? at[i] : most;
    for (i = lo; i < whole; i += 16) {
        uint32_t equal = v_equal(v_load(at + i), v_set(most));
        if (equal)
            return i + __builtin_ctz(equal);
    }
    for (; i < hi; i++)
        if (at[i] == most)
            return i;
    return -1;
}

/* A row without numbers gives 0, as the reference does. */
static void argmax_run(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *out = &call->out[0];
    for (int64_t r = box->lo[0]; r < box->hi[0]; r++) {
        int64_t best = largest(x, r * x->stride[0], 0, x->dims[1]);
        ((int32_t *)out->data)[r * out->stride[0]] = (int32_t)(best < 0 ? 0 : best);
    }
}

/* Part p of a row: columns [columns p / parts, columns (p + 1) / parts).  A part of NaNs only
 * gives NaN and its first column, which loses to every number when the parts are combined. */
static void argmax_partial_run(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *value = &call->out[0], *index = &call->out[1];
    int64_t parts = call->attributes[0].i, columns = x->dims[1];
    for (int64_t r = box->lo[0]; r < box->hi[0]; r++)
        for (int64_t p = box->lo[1]; p < box->hi[1]; p++) {
            int64_t first = columns * p / parts;
            int64_t best = largest(x, r * x->stride[0], first, columns * (p + 1) / parts);
            ((float *)value->data)[r * value->stride[0] + p * value->stride[1]] =
                best < 0 ? NAN : ((const float *)x->data)[r * x->stride[0] + best];
            ((int32_t *)index->data)[r * index->stride[0] + p * index->stride[1]] =
                (int32_t)(best < 0 ? first : best);
        }
}

#endif
