/* sdpa_kernels.h - a fast body of sdpa: attention of many rows over tensors.  The keys and
 * values of a head are packed once as panels; then SD_ROWS queries at a time are multiplied with
 * the keys (product_kernels.h), masked, exponentiated, and multiplied with the values.
 *
 * Arithmetic of one query: scores are chains of FMAs; the largest is found; exponentials are
 * those of vec_math.h; their sum is in double, lane s mod 16 in rising s, then as vd_sum does;
 * values are added in rising s by FMA, and the result divided by the sum.  Positions that a
 * query does not see have weight zero, so its bits do not depend on the queries that are
 * computed with it.
 *
 * For each block of SD_ROWS queries:
 *
 *   load_queries   q * scale                      [rows][K]
 *   score_keys     queries x key panels           [rows][S]     only panels that some row sees
 *   mask_row       mask, causal, window: -inf
 *   weigh_scores   exp(score - largest), sum      [rows][S]
 *   sum_values     weights x value panels         [rows][Kv]
 *   store_rows     / sum
 *
 * All S scores of a row are kept, where flash attention would go block by block: S is that of a
 * prompt or a picture, some thousand floats a row.
 */
#ifndef CPU_SDPA_KERNELS_H
#define CPU_SDPA_KERNELS_H

#include "cpu/product_kernels.h"

/* Inputs and attributes, by index. */
enum { SD_Q, SD_KEYS, SD_VALUES, SD_MASK };
enum { SD_SCALE, SD_CAUSAL, SD_WINDOW, SD_BY_ROWS };
/* Queries of a block. */
enum { SD_ROWS = 4 * V_TILE_ROWS };

/* Scratch of a task, with the head and rows that are being computed. */
typedef struct sdpa_task {
    const op_call *call;
    int64_t size, values, s;         /* K, Kv, S */
    int64_t padded_s, padded_values; /* rounded up to whole vectors */
    float *keys, *value_panels;      /* panels: [K][columns], [S][columns] */
    float *queries, *scores, *sums;  /* [SD_ROWS] of K, padded S, padded Kv */
    int64_t batch, head, row, n;     /* rows [row, row + n) of q */
    /* positions that any of them sees; `from` is rounded down to a whole vector */
    int64_t from, end;
    double total[SD_ROWS]; /* of each row, the sum of its exponentials */
} sdpa_task;

/* Accepts any strides, and masks of bool or floats; not by_rows, where the result lies token by
 * token. */
static bool sdpa_accepts(const op_call *call)
{
    for (uint32_t i = SD_Q; i <= SD_VALUES; i++)
        if (!row_is_float(call->in[i].dtype))
            return false;
    const op_view *mask = &call->in[SD_MASK];
    return row_is_float(call->out[0].dtype) && !call->attributes[SD_BY_ROWS].i &&
           (call->n_in <= SD_MASK || !mask->data || mask->dtype == IR_BOOL ||
            row_is_float(mask->dtype));
}

/* Where the parts of scratch begin; returns their bytes.  scratch NULL: the bytes alone. */
static size_t sdpa_lay_out(const op_call *call, float *scratch, sdpa_task *t)
{
    t->call = call;
    t->size = call->in[SD_Q].dims[3];
    t->values = call->in[SD_VALUES].dims[3];
    t->s = call->in[SD_KEYS].dims[2];
    t->padded_s = (t->s + 15) / 16 * 16;
    t->padded_values = (t->values + 15) / 16 * 16;
    t->keys = scratch;
    int64_t values = t->size * t->padded_s, queries = values + t->s * t->padded_values;
    int64_t scores = queries + SD_ROWS * t->size, sums = scores + SD_ROWS * t->padded_s;
    if (scratch) {
        t->value_panels = scratch + values;
        t->queries = scratch + queries;
        t->scores = scratch + scores;
        t->sums = scratch + sums;
    }
    return (size_t)(sums + SD_ROWS * t->padded_values) * sizeof(float);
}

static size_t sdpa_scratch_bytes(const op_call *call, const ir_box *box)
{
    (void)box;
    sdpa_task t = {0};
    return sdpa_lay_out(call, NULL, &t);
}

/* ---- layout ---- */

/* Pack all columns of an operand as panels. */
static void pack_panels(const op_view *v, int64_t offset, int64_t k_stride, int64_t column_stride,
                        int64_t depth, int64_t columns, float *to)
{
    for (int64_t p = 0; p < panel_count(columns); p++) {
        int64_t first = panel_first(columns, p), nv = panel_first(columns, p + 1) - first;
        pack_panel(v, offset + 16 * first * column_stride, k_stride, column_stride, depth,
                   columns - 16 * first, (int)nv, to + 16 * first * depth);
    }
}

/* Pack keys as panels whose columns are positions, and values as panels whose columns are
 * entries.  Query heads that share a KV head come one after the other and find it packed. */
static void pack_head(const sdpa_task *t, int64_t kv_head)
{
    const op_view *k = &t->call->in[SD_KEYS], *v = &t->call->in[SD_VALUES];
    pack_panels(k, t->batch * k->stride[0] + kv_head * k->stride[1], k->stride[3], k->stride[2],
                t->size, t->s, t->keys);
    pack_panels(v, t->batch * v->stride[0] + kv_head * v->stride[1], v->stride[2], v->stride[3],
                t->s, t->values, t->value_panels);
}

/* Load rows of q times the scale, as f32: then products need not be scaled. */
static void load_queries(const sdpa_task *t)
{
    const op_view *q = &t->call->in[SD_Q];
    double given = t->call->attributes[SD_SCALE].f;
    vf scale = v_set((float)(given != 0 ? given : 1 / sqrt((double)t->size)));
    for (int64_t r = 0; r < t->n; r++) {
        float *row = t->queries + r * t->size;
        load_floats(q,
                    t->batch * q->stride[0] + t->head * q->stride[1] + (t->row + r) * q->stride[2],
                    q->stride[3], t->size, row);
        for (int64_t i = 0; i < t->size; i += 16)
            v_store_n(row + i, t->size - i, v_mul(v_load_n(row + i, t->size - i), scale));
    }
}

/* ---- one block of rows ---- */

/* The positions that some query of the block may see by causality and window; masks are not
 * looked at. */
static void find_seen(sdpa_task *t)
{
    int64_t window = t->call->attributes[SD_WINDOW].i, after = t->row + t->n;
    t->end = t->call->attributes[SD_CAUSAL].i && after < t->s ? after : t->s;
    t->from = window && t->row >= window ? t->row - window + 1 : 0;
    t->from = (t->from < t->end ? t->from : t->end) / 16 * 16;
}

/* Scores of the block's rows with the panels of keys that one of them sees. */
static void score_keys(const sdpa_task *t)
{
    for (int64_t p = 0; p < panel_count(t->s); p++) {
        int64_t first = panel_first(t->s, p), end = panel_first(t->s, p + 1);
        if (16 * first < t->end && 16 * end > t->from)
            product_rows(t->queries, t->size, t->n, t->keys + 16 * first * t->size,
                         (int)(end - first), t->size,
                         (product_sums){t->scores + 16 * first, t->padded_s, 16 * (end - first),
                                        false, NULL});
    }
}

/* Apply the mask to sixteen scores from position s on, of which n exist. */
V_INLINE vf mask_scores(const op_view *mask, int64_t offset, int64_t stride, int64_t n, vf score)
{
    float lanes[16];
    if (mask->dtype == IR_BOOL) {
        for (int64_t i = 0; i < 16; i++)
            lanes[i] = i < n && ((const uint8_t *)mask->data)[offset + i * stride] ? 1 : 0;
        return v_select_less(v_zero(), v_load(lanes), score, v_set(-INFINITY));
    }
    if (stride == 1)
        return v_add(score, row_load(mask->data, mask->dtype, offset, n));
    for (int64_t i = 0; i < 16; i++)
        lanes[i] = i < n ? op_load(mask, offset + i * stride) : 0;
    return v_add(score, v_load(lanes));
}

/* Row r of the block: scores of positions that it may not see become -infinity, and so do those
 * that pad the last vector. */
static void mask_row(const sdpa_task *t, int64_t r, float *scores)
{
    const op_view *mask = &t->call->in[SD_MASK];
    int64_t row = t->row + r, window = t->call->attributes[SD_WINDOW].i;
    int64_t at[4] = {t->batch, t->head, row, 0}, stride = 0, offset = 0;
    if (t->call->n_in > SD_MASK && mask->data) {
        stride = walk_stride(mask, 4, 3);
        offset = walk_broadcast(mask, 4, at);
        for (int64_t s = t->from; s < t->end; s += 16)
            v_store(scores + s,
                    mask_scores(mask, offset + s * stride, stride, t->end - s, v_load(scores + s)));
    }
    for (int64_t s = row + 1; s < t->end && t->call->attributes[SD_CAUSAL].i; s++)
        scores[s] = -INFINITY;
    for (int64_t s = t->from; window && s < t->end && s <= row - window; s++)
        scores[s] = -INFINITY;
    for (int64_t s = t->end; s % 16; s++)
        scores[s] = -INFINITY;
}

/* Turn scores into weights, in place; returns their sum, 0 for a row that sees nothing. */
static double weigh_scores(const sdpa_task *t, float *scores)
{
    vf most = v_set(-INFINITY);
    vd sum = vd_set(0);
    for (int64_t s = t->from; s < t->end; s += 16)
        most = v_max(most, v_load(scores + s));
    float largest = v_greatest(most);
    most = v_set(largest == -INFINITY ? 0 : largest);
    for (int64_t s = t->from; s < t->end; s += 16) {
        vf e = v_exp(v_sub(v_load(scores + s), most));
        v_store(scores + s, e);
        sum = vd_add(sum, vd_wide(e));
    }
    return vd_sum(sum);
}

/* The values of one row again, without those that it does not see.  Zero times infinity is NaN:
 * an infinite or undefined value that a row must not see would spoil the fast product, and only
 * then is this slow loop used. */
static void sum_seen(const sdpa_task *t, const float *weights, float *sums)
{
    const op_view *v = &t->call->in[SD_VALUES];
    int64_t share = t->call->in[SD_Q].dims[1] / v->dims[1];
    int64_t offset = t->batch * v->stride[0] + t->head / share * v->stride[1];
    memset(sums, 0, (size_t)t->values * sizeof *sums);
    for (int64_t s = t->from; s < t->end; s++)
        for (int64_t c = 0; c < t->values && weights[s] != 0; c++)
            sums[c] =
                fmaf(weights[s], op_load(v, offset + s * v->stride[2] + c * v->stride[3]), sums[c]);
}

/* Whether all n numbers are finite: x times 0 is 0 except for NaN and infinity. */
static bool all_finite(const float *x, int64_t n)
{
    vf sum = v_zero();
    for (int64_t i = 0; i < n; i += 16)
        sum = v_add(sum, v_mul(v_load_n(x + i, n - i), v_zero()));
    return v_sum(sum) == 0;
}

/* Weights times the panels of values. */
static void sum_values(const sdpa_task *t)
{
    for (int64_t p = 0; p < panel_count(t->values); p++) {
        int64_t first = 16 * panel_first(t->values, p),
                width = 16 * panel_first(t->values, p + 1) - first;
        product_rows(t->scores + t->from, t->padded_s, t->n,
                     t->value_panels + first * t->s + t->from * width, (int)(width / 16),
                     t->end - t->from,
                     (product_sums){t->sums + first, t->padded_values, width, false, NULL});
    }
}

/* Divide by the sums of weights and store; a row that saw nothing is zeros. */
static void store_rows(const sdpa_task *t)
{
    const op_view *y = &t->call->out[0];
    for (int64_t r = 0; r < t->n; r++) {
        float *sums = t->sums + r * t->padded_values;
        if (!all_finite(sums, t->values))
            sum_seen(t, t->scores + r * t->padded_s, sums);
        vf total = v_set(t->total[r] == 0 ? 1 : (float)t->total[r]);
        for (int64_t i = 0; i < t->values; i += 16)
            v_store_n(sums + i, t->values - i, v_div(v_load_n(sums + i, t->values - i), total));
        store_floats(y,
                     t->batch * y->stride[0] + t->head * y->stride[1] + (t->row + r) * y->stride[2],
                     y->stride[3], t->values, sums);
    }
}

/* Rows [t->row, t->row + t->n) of one head, from queries to the result. */
static void attend_rows(sdpa_task *t)
{
    find_seen(t);
    load_queries(t);
    score_keys(t);
    for (int64_t r = 0; r < t->n; r++) {
        float *scores = t->scores + r * t->padded_s;
        mask_row(t, r, scores);
        t->total[r] = weigh_scores(t, scores);
    }
    sum_values(t);
    store_rows(t);
}

/* Head after head; a KV head is packed when its first query head comes. */
static void sdpa_run(const op_call *call, const ir_box *box, void *scratch)
{
    sdpa_task t = {0};
    int64_t share = call->in[SD_Q].dims[1] / call->in[SD_KEYS].dims[1];
    sdpa_lay_out(call, scratch, &t);
    for (t.batch = box->lo[0]; t.batch < box->hi[0]; t.batch++)
        for (t.head = box->lo[1]; t.head < box->hi[1]; t.head++) {
            if (t.head == box->lo[1] || t.head % share == 0)
                pack_head(&t, t.head / share);
            for (t.row = box->lo[2]; t.row < box->hi[2]; t.row += SD_ROWS) {
                t.n = box->hi[2] - t.row < SD_ROWS ? box->hi[2] - t.row : SD_ROWS;
                attend_rows(&t);
            }
        }
}

#endif
