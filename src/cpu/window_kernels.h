/* window_kernels.h - fast bodies of operators over windows and neighbours: max_pool, avg_pool
 * and upsample.
 *
 * A pool goes over runs of the last axis of the result.  A row of x is copied once for all
 * windows of a run, its columns sorted by their remainder modulo the stride, so that neighbours
 * in the result read neighbours in the copy; then each entry of the windows is one loop over the
 * run.  The order of a window's entries is row-major, whatever the cut.
 *
 * A row for a run of four with stride 2, kernel 3 and padding 1 (p), as r->row holds it:
 *
 *   columns of x:  p 0 1 2 3 4 5 6 7
 *   part 0:        p 1 3 5 7            used by kernel entry 0, and from 1 on by entry 2
 *   part 1:        0 2 4 6              used by kernel entry 1
 *
 * upsample first blends whole rows of x, over all axes but the last, and then columns of the
 * blend.  Windows are those of op/pool.h, taps those of op/upsample.h.  Used by the
 * isa_*_general.c files.
 */
#ifndef CPU_WINDOW_KERNELS_H
#define CPU_WINDOW_KERNELS_H

#include "cpu/product_kernels.h"
#include "op/pool.h"
#include "op/upsample.h"

/* Columns of a run; most spatial axes. */
enum { WN_RUN = 256, WN_SPACE = 3 };

/* ---- pools ---- */

/* A run of the last axis of the result, columns [first, first + n), with its partial results. */
typedef struct pool_run {
    const op_call *call;
    /* of the last axis; left: the first column of x that the run reads, maybe below 0 */
    int64_t first, n, kernel, stride, dilation, left;
    int64_t length; /* columns of one part of `row` */
    double sum[WN_RUN];
    float best[WN_RUN];
    int32_t at[WN_RUN]; /* the place of the best; -1: none yet */
    float *row;         /* scratch [stride][length], a row of x */
} pool_run;

/* Accepts windows of one size, of floats, if the places of a plane fit 32 bits. */
static bool pool_accepts(const op_call *call)
{
    const op_view *x = &call->in[0];
    int64_t places = 1;
    for (uint32_t i = 2; i < x->rank; i++)
        places *= x->dims[i];
    return row_is_float(x->dtype) && row_is_float(call->out[0].dtype) &&
           call->attributes[POOL_KERNEL].ints.n && !call->attributes[POOL_OUTPUT].ints.n &&
           places < INT32_MAX;
}

/* Set what is the same for all runs of a call. */
static void pool_describe(const op_call *call, pool_run *r)
{
    uint32_t last = call->in[0].rank - 3;
    r->call = call;
    r->kernel = call->attributes[POOL_KERNEL].ints.at[last];
    r->stride = pool_number(call->op, POOL_STRIDE, last, r->kernel);
    r->dilation = pool_number(call->op, POOL_DILATION, last, 1);
    r->length = WN_RUN + (r->kernel - 1) * r->dilation / r->stride + 1;
}

static size_t pool_scratch_bytes(const op_call *call, const ir_box *box)
{
    (void)box;
    pool_run r;
    pool_describe(call, &r);
    return sizeof r + (size_t)(r.stride * r.length) * sizeof(float);
}

/* a / b rounded up; 0 for negative a. */
static int64_t pool_divide_up(int64_t a, int64_t b)
{
    return a > 0 ? (a + b - 1) / b : 0;
}

/* Copy the columns of a row of x that the run reads, as far as they exist. */
static void pool_load_row(const pool_run *r, int64_t offset)
{
    const op_view *x = &r->call->in[0];
    int64_t n = x->dims[x->rank - 1], step = x->stride[x->rank - 1];
    int64_t columns = (r->n - 1) * r->stride + (r->kernel - 1) * r->dilation + 1;
    for (int64_t part = 0; part < r->stride && part < columns; part++) {
        int64_t from = r->left + part, end = pool_divide_up(columns - part, r->stride);
        int64_t lo = pool_divide_up(-from, r->stride), hi = pool_divide_up(n - from, r->stride);
        hi = hi < end ? hi : end;
        if (lo < hi)
            load_floats(x, offset + (from + lo * r->stride) * step, r->stride * step, hi - lo,
                        r->row + part * r->length + lo);
    }
}

/* The part of the run, [*lo, *hi), for which entry k of the window lies in x; returns where in
 * `row` the entry is, for column 0 of the run. */
static const float *pool_entries(const pool_run *r, int64_t k, int64_t *lo, int64_t *hi)
{
    int64_t n = r->call->in[0].dims[r->call->in[0].rank - 1], column = k * r->dilation,
            from = r->left + column;
    *lo = pool_divide_up(-from, r->stride);
    *hi = pool_divide_up(n - from, r->stride);
    *hi = *hi < r->n ? *hi : r->n;
    return r->row + column % r->stride * r->length + column / r->stride;
}

/* Fold a row of x into the best of the run; place: the number in its plane of the row's first
 * entry.  A NaN always wins. */
static void pool_fold_largest(pool_run *r, int64_t place)
{
    int64_t lo, hi;
    for (int64_t k = 0; k < r->kernel; k++) {
        const float *x = pool_entries(r, k, &lo, &hi);
        int32_t first = (int32_t)(place + r->left + k * r->dilation), step = (int32_t)r->stride;
        for (int64_t i = lo; i < hi; i++) {
            bool better = (x[i] > r->best[i]) | (x[i] != x[i]) | (r->at[i] < 0);
            r->best[i] = better ? x[i] : r->best[i];
            r->at[i] = better ? first + (int32_t)i * step : r->at[i];
        }
    }
}

/* Fold a row of x into the sums of the run. */
static void pool_fold_sum(pool_run *r)
{
    int64_t lo, hi;
    for (int64_t k = 0; k < r->kernel; k++) {
        const float *x = pool_entries(r, k, &lo, &hi);
        for (int64_t i = lo; i < hi; i++)
            r->sum[i] += (double)x[i];
    }
}

/* Fold all rows of the windows of a run, which begins at entry at[] of the result.  Windows of
 * the outer axes are clipped to x first, so rows in the padding are never visited. */
static void pool_fold(pool_run *r, const int64_t *at, bool largest)
{
    const op_view *x = &r->call->in[0];
    uint32_t last = x->rank - 1, outer = x->rank - 3;
    pool_window windows[WN_SPACE];
    ir_box steps = {0};
    int64_t step[IR_MAX_RANK] = {0}, offset = at[0] * x->stride[0] + at[1] * x->stride[1];
    for (uint32_t i = 0; i < outer; i++) {
        windows[i] =
            pool_clip(pool_find(r->call->op, i, x->dims[i + 2], at[i + 2]), x->dims[i + 2]);
        steps.hi[i] = pool_divide_up(windows[i].end - windows[i].start, windows[i].step);
        if (steps.hi[i] <= 0)
            return;
    }
    do {
        int64_t from = offset, place = 0;
        for (uint32_t i = 0; i < outer; i++) {
            int64_t entry = windows[i].start + step[i] * windows[i].step;
            from += entry * x->stride[i + 2];
            place = place * x->dims[i + 2] + entry;
        }
        pool_load_row(r, from);
        if (largest)
            pool_fold_largest(r, place * x->dims[last]);
        else
            pool_fold_sum(r);
    } while (walk_next(&steps, outer, step));
}

/* Begin the run at at[]. */
static void pool_begin(pool_run *r, const ir_box *box, const int64_t *at)
{
    uint32_t last = r->call->in[0].rank - 1;
    r->first = at[last];
    r->n = box->hi[last] - r->first < WN_RUN ? box->hi[last] - r->first : WN_RUN;
    r->left = r->first * r->stride - pool_number(r->call->op, POOL_PADDING, last - 2, 0);
    for (int64_t i = 0; i < r->n; i++) {
        r->best[i] = -INFINITY;
        r->at[i] = -1;
        r->sum[i] = 0;
    }
}

/* Store values and their places, which count in the plane as PyTorch does.  A window that lies
 * wholly in the padding gives place 0. */
static void max_pool_finish(const pool_run *r, const int64_t *at)
{
    const op_view *values = &r->call->out[0], *indices = &r->call->out[1];
    uint32_t last = values->rank - 1;
    int64_t *to = (int64_t *)indices->data + walk_offset(indices, at);
    store_floats(values, walk_offset(values, at), values->stride[last], r->n, r->best);
    for (int64_t i = 0; i < r->n; i++)
        to[i * indices->stride[last]] = r->at[i] < 0 ? 0 : r->at[i];
}

enum { AP_INCLUDE = POOL_ATTRIBUTES, AP_DIVISOR };

/* How many entries the window of entry `at` along spatial axis i has, with those in the padding
 * or without. */
static int64_t pool_count(const op_call *call, uint32_t i, int64_t at)
{
    int64_t n = call->in[0].dims[i + 2];
    pool_window w = pool_find(call->op, i, n, at);
    if (!call->attributes[AP_INCLUDE].i)
        w = pool_clip(w, n);
    return pool_divide_up(w.end - w.start, w.step);
}

/* Divide the sums: by a number that the call gives, or by the entries of the window, with or
 * without padding. */
static void avg_pool_finish(const pool_run *r, const int64_t *at)
{
    const op_view *y = &r->call->out[0];
    uint32_t last = y->rank - 1;
    int64_t others = 1, divisor = r->call->attributes[AP_DIVISOR].i;
    float mean[WN_RUN];
    for (uint32_t i = 2; i < last; i++)
        others *= pool_count(r->call, i - 2, at[i]);
    for (int64_t i = 0; i < r->n; i++) {
        int64_t n = divisor ? divisor : others * pool_count(r->call, last - 2, r->first + i);
        mean[i] = (float)(r->sum[i] / (double)(n ? n : 1));
    }
    store_floats(y, walk_offset(y, at), y->stride[last], r->n, mean);
}

/* The box in runs; the pool_run and its row lie in scratch. */
static void pool_run_box(const op_call *call, const ir_box *box, pool_run *r, bool largest)
{
    uint32_t last = call->in[0].rank - 1;
    int64_t at[IR_MAX_RANK];
    r->row = (float *)(void *)(r + 1);
    pool_describe(call, r);
    memcpy(at, box->lo, sizeof at);
    do {
        for (at[last] = box->lo[last]; at[last] < box->hi[last]; at[last] += WN_RUN) {
            pool_begin(r, box, at);
            pool_fold(r, at, largest);
            if (largest)
                max_pool_finish(r, at);
            else
                avg_pool_finish(r, at);
        }
        at[last] = box->lo[last];
    } while (walk_next(box, last, at));
}

static void max_pool_run(const op_call *call, const ir_box *box, void *scratch)
{
    pool_run_box(call, box, scratch, true);
}
static void avg_pool_run(const op_call *call, const ir_box *box, void *scratch)
{
    pool_run_box(call, box, scratch, false);
}

/* ---- upsample ---- */

/* What the columns of a box read: column i is the sum of weight[k][i] x[at[k][i]] over n taps. */
typedef struct upsample_task {
    const op_call *call;
    int n;
    /* columns of the result; the columns of x that they read begin at `first`, `width` of them */
    int64_t columns, first, width;
    float *weight, *row, *blend, *out; /* [n][columns], [width], [width], [columns] */
    int32_t *at;                       /* [n][columns], from `first` on */
} upsample_task;

static bool upsample_accepts(const op_call *call)
{
    return all_are_floats(call) && call->in[0].dims[call->in[0].rank - 1] < INT32_MAX;
}

/* Find the columns of x between those that the first and the last column of the box read, and
 * lay out scratch if it is given; returns its bytes. */
static size_t upsample_lay_out(const op_call *call, const ir_box *box, float *scratch,
                               upsample_task *t)
{
    const op_view *x = &call->in[0];
    uint32_t last = x->rank - 1;
    taps low = upsample_find_taps(call->op, last - 2, x->dims[last], box->lo[last], false);
    taps high = upsample_find_taps(call->op, last - 2, x->dims[last], box->hi[last] - 1, false);
    *t = (upsample_task){
        .call = call, .n = low.n, .columns = box->hi[last] - box->lo[last], .first = low.at[0]};
    t->width = high.at[high.n - 1] + 1 - t->first;
    if (scratch) {
        t->weight = scratch;
        t->out = t->weight + t->n * t->columns;
        t->row = t->out + t->columns;
        t->blend = t->row + t->width;
        t->at = (int32_t *)(void *)(t->blend + t->width);
    }
    return (size_t)((2 * t->n + 1) * t->columns + 2 * t->width) * sizeof(float);
}

static size_t upsample_scratch_bytes(const op_call *call, const ir_box *box)
{
    upsample_task t;
    return upsample_lay_out(call, box, NULL, &t);
}

/* Columns and weights for each column of the box, tap by tap: [k][i], so that blend_columns
 * reads them in order. */
static void fill_taps(const upsample_task *t, const ir_box *box)
{
    const op_view *x = &t->call->in[0];
    uint32_t last = x->rank - 1;
    for (int64_t i = 0; i < t->columns; i++) {
        taps one =
            upsample_find_taps(t->call->op, last - 2, x->dims[last], box->lo[last] + i, false);
        for (int k = 0; k < t->n; k++) {
            t->weight[k * t->columns + i] = (float)one.weight[k];
            t->at[k * t->columns + i] = (int32_t)(one.at[k] - t->first);
        }
    }
}

/* The weighted sum of the rows of x that entry at[] of the result reads. */
static void blend_rows(const upsample_task *t, const int64_t *at)
{
    const op_view *x = &t->call->in[0];
    uint32_t last = x->rank - 1, outer = last - 2;
    taps of[WN_SPACE];
    ir_box taken = {0};
    int64_t k[IR_MAX_RANK] = {0};
    for (uint32_t i = 0; i < outer; i++) {
        of[i] = upsample_find_taps(t->call->op, i, x->dims[i + 2], at[i + 2], false);
        taken.hi[i] = of[i].n;
    }
    memset(t->blend, 0, (size_t)t->width * sizeof *t->blend);
    do {
        int64_t offset = at[0] * x->stride[0] + at[1] * x->stride[1] + t->first * x->stride[last];
        double weight = 1;
        for (uint32_t i = 0; i < outer; i++) {
            offset += of[i].at[k[i]] * x->stride[i + 2];
            weight *= of[i].weight[k[i]];
        }
        const float *row = t->row;
        if (x->dtype == IR_F32 && x->stride[last] == 1)
            row = (const float *)x->data + offset;
        else
            load_floats(x, offset, x->stride[last], t->width, t->row);
        for (int64_t i = 0; i < t->width; i += 16)
            v_store_n(t->blend + i, t->width - i,
                      v_fma(v_set((float)weight), v_load_n(row + i, t->width - i),
                            v_load_n(t->blend + i, t->width - i)));
    } while (walk_next(&taken, outer, k));
}

/* The last axis: each column from the blend of the others. */
static void blend_columns(const upsample_task *t)
{
    const float *restrict from = t->blend;
    float *restrict to = t->out;
    for (int k = 0; k < t->n; k++) {
        const float *restrict weight = t->weight + k * t->columns;
        const int32_t *restrict at = t->at + k * t->columns;
        for (int64_t i = 0; i < t->columns; i++)
            to[i] = (k ? to[i] : 0) + weight[i] * from[at[i]];
    }
}

/* Columns and their weights are the same for all rows of a box, so they are found once. */
static void upsample_run(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *y = &call->out[0];
    uint32_t last = y->rank - 1;
    upsample_task t;
    int64_t at[IR_MAX_RANK];
    upsample_lay_out(call, box, scratch, &t);
    fill_taps(&t, box);
    memcpy(at, box->lo, sizeof at);
    do {
        at[last] = box->lo[last];
        blend_rows(&t, at);
        blend_columns(&t);
        store_floats(y, walk_offset(y, at), y->stride[last], t.columns, t.out);
    } while (walk_next(box, last, at));
}

#endif
