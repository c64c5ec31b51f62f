/* tile_bodies.h - batch_matmul, sdpa and conv of BF16 operands by instructions that multiply tiles
 * (AMX).  The operators are those of product_kernels.h, sdpa_kernels.h and conv_kernels.h; here
 * products go to tile_amx (tile_fast.h), which sums a row of the left side with a column of the
 * right one in steps of 32 elements, wherever they lie.  So bits depend on no cut, and differ from
 * those of other instruction sets.
 *
 * BF16 operands are multiplied exactly and summed in fp32.  The weights of attention, exponentials
 * in fp32, have two bf16 parts: what is lost is 2^-17 of a weight.
 *
 * Included by isa_avx512_general.c after the three.
 */
#ifndef CPU_TILE_BODIES_H
#define CPU_TILE_BODIES_H

#include "cpu/conv_kernels.h"
#include "cpu/sdpa_kernels.h"
#include "cpu/tile_fast.h"

enum {
    /* of rows, and of columns, as tiles, which stay in the second cache */
    TILE_BLOCK_BYTES = 1 << 19,
    TILE_PANELS = 4, /* most panels of columns that are made at once */
    TILE_QUERIES = 2 * TILE_ROWS,
    TILE_WEIGHT_PARTS = 2 /* of a weight of attention */
};

static bool is_bf16(const op_view *v)
{
    return v->dtype == IR_BF16;
}

/* The bytes that are left of n when they are rounded up for what follows. */
static size_t tile_aligned(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* ---- batch_matmul ---- */

/* Scratch: a block of rows of a, some panels of columns of b, their sums. */
typedef struct tile_matmul {
    matmul_task t;
    int64_t block, width; /* rows, columns */
    char *rows, *columns;
    float *sums;
} tile_matmul;

static bool tile_matmul_accepts(const op_call *call)
{
    return batch_matmul_accepts(call) && is_bf16(&call->in[BM_A]) && is_bf16(&call->in[BM_B]) &&
           call->in[BM_A].dims[call->in[BM_A].rank - 1] > 0;
}

/* Blocks are as long as stays in the second cache, but never so short that a panel of b is used
 * less often than it is worth; and at least two panels, where there are, are made at once, as
 * columns that are neighbours in memory come together. */
static size_t tile_matmul_lay_out(const op_call *call, const ir_box *box, char *scratch,
                                  tile_matmul *m)
{
    const op_view *a = &call->in[BM_A];
    uint32_t rows = call->out[0].rank - 2;
    const int64_t depth = a->dims[a->rank - 1], row_bytes = tile_steps(depth) * TILE_STEP * 2,
                  n = tile_lines(box->hi[rows] - box->lo[rows]);
    m->block = TILE_BLOCK_BYTES / row_bytes / TILE_ROWS * TILE_ROWS;
    m->block = m->block < 8 * TILE_ROWS ? 8 * TILE_ROWS : m->block;
    m->block = m->block < n ? m->block : n;
    int64_t panels = TILE_BLOCK_BYTES / (TILE_COLUMNS * row_bytes);
    panels = panels < TILE_PANELS ? panels : TILE_PANELS;
    panels = panels < 2 ? 2 : panels;
    m->width = tile_lines(box->hi[rows + 1] - box->lo[rows + 1]);
    m->width = m->width < panels * TILE_COLUMNS ? m->width : panels * TILE_COLUMNS;
    const size_t rows_bytes = (size_t)(m->block * row_bytes),
                 columns_bytes = (size_t)(m->width * row_bytes);
    m->rows = scratch;
    if (scratch) {
        m->columns = scratch + rows_bytes;
        m->sums = (float *)(void *)(m->columns + columns_bytes);
    }
    return rows_bytes + columns_bytes + (size_t)(m->block * m->width) * sizeof(float);
}

static size_t tile_matmul_scratch_bytes(const op_call *call, const ir_box *box)
{
    tile_matmul m;
    return tile_matmul_lay_out(call, box, NULL, &m);
}

/* Rows [row, row + n) times all columns of the box, some panels of b at a time. */
static void tile_multiply_rows(const tile_matmul *m, const ir_box *box, int64_t row, int64_t n)
{
    const matmul_task *t = &m->t;
    const op_view *a = &t->call->in[BM_A], *b = &t->call->in[BM_B], *y = &t->call->out[0];
    const uint32_t last = y->rank - 1;
    const int64_t line = a->stride[a->rank - 2], steps = tile_steps(t->depth);
    tile_amx.rows(&(tile_operand){(const uint16_t *)a->data + t->a + row * line, line,
                                  a->stride[a->rank - 1], n, t->depth},
                  m->rows);
    for (int64_t c = box->lo[last]; c < box->hi[last]; c += m->width) {
        const int64_t width = box->hi[last] - c < m->width ? box->hi[last] - c : m->width;
        tile_amx.columns(&(tile_operand){(const uint16_t *)b->data + t->b + c * t->b_column,
                                         t->b_column, t->b_depth, width, t->depth},
                         m->columns);
        tile_amx.multiply(
            &(tile_sides){m->rows, m->columns, n, width, steps, 0, steps, 0, width, 1}, m->sums,
            m->width);
        for (int64_t r = 0; r < n; r++)
            store_floats(y, t->y + (row + r) * y->stride[last - 1] + c * y->stride[last],
                         y->stride[last], width, m->sums + r * m->width);
    }
}

static void tile_matmul_run(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *a = &call->in[BM_A], *b = &call->in[BM_B], *y = &call->out[0];
    const uint32_t rows = y->rank - 2;
    const bool transposed = call->attributes[0].i;
    tile_matmul m = {.t = {.call = call, .depth = a->dims[a->rank - 1]}};
    int64_t at[IR_MAX_RANK];
    tile_matmul_lay_out(call, box, scratch, &m);
    m.t.b_depth = b->stride[b->rank - (transposed ? 1 : 2)];
    m.t.b_column = b->stride[b->rank - (transposed ? 2 : 1)];
    memcpy(at, box->lo, sizeof at);
    tile_amx.begin();
    do {
        m.t.a = batch_offset(a, y->rank, at);
        m.t.b = batch_offset(b, y->rank, at);
        m.t.y = batch_offset(y, y->rank, at);
        for (int64_t r = box->lo[rows]; r < box->hi[rows]; r += m.block)
            tile_multiply_rows(&m, box, r,
                               box->hi[rows] - r < m.block ? box->hi[rows] - r : m.block);
    } while (walk_next(box, rows, at));
    tile_amx.end();
}

/* ---- sdpa ---- */

/* A task of sdpa_kernels.h, whose scores and sums have rows of whole tiles; keys and values of a
 * head, queries and weights of a block as tiles. */
typedef struct tile_sdpa {
    sdpa_task t;
    char *keys, *values, *queries, *weights;
} tile_sdpa;

static bool tile_sdpa_accepts(const op_call *call)
{
    return sdpa_accepts(call) && is_bf16(&call->in[SD_Q]) && is_bf16(&call->in[SD_KEYS]) &&
           is_bf16(&call->in[SD_VALUES]) && call->in[SD_Q].dims[3] > 0;
}

static size_t tile_sdpa_lay_out(const op_call *call, char *scratch, tile_sdpa *d)
{
    sdpa_task *t = &d->t;
    t->call = call;
    t->size = call->in[SD_Q].dims[3];
    t->values = call->in[SD_VALUES].dims[3];
    t->s = call->in[SD_KEYS].dims[2];
    t->padded_s = tile_steps(t->s) * TILE_STEP;
    t->padded_values = tile_lines(t->values);
    const size_t keys = (size_t)tile_side_bytes(t->s, t->size),
                 values = (size_t)tile_side_bytes(t->values, t->s),
                 queries = (size_t)tile_side_bytes(TILE_QUERIES, t->size),
                 weights = (size_t)tile_side_bytes(TILE_QUERIES, t->s) * TILE_WEIGHT_PARTS,
                 scores = (size_t)(TILE_QUERIES * t->padded_s) * sizeof(float);
    if (scratch) {
        d->keys = scratch;
        d->values = d->keys + keys;
        d->queries = d->values + values;
        d->weights = d->queries + queries;
        t->scores = (float *)(void *)(d->weights + weights);
        t->sums = t->scores + TILE_QUERIES * t->padded_s;
    }
    return keys + values + queries + weights + scores +
           (size_t)(TILE_QUERIES * t->padded_values) * sizeof(float);
}

static size_t tile_sdpa_scratch_bytes(const op_call *call, const ir_box *box)
{
    (void)box;
    tile_sdpa d;
    return tile_sdpa_lay_out(call, NULL, &d);
}

/* One head of an operand: its rows, from `row` on, are lines of the entries, or the other way. */
static tile_operand tile_head(const op_view *v, int64_t batch, int64_t head, int64_t row, int64_t n)
{
    return (tile_operand){(const uint16_t *)v->data + batch * v->stride[0] + head * v->stride[1] +
                              row * v->stride[2],
                          v->stride[2], v->stride[3], n, v->dims[3]};
}
static tile_operand tile_transposed(tile_operand o)
{
    return (tile_operand){o.at, o.step, o.line, o.k, o.n};
}

static void tile_pack_head(const tile_sdpa *d, int64_t kv_head)
{
    const op_call *call = d->t.call;
    const tile_operand keys = tile_head(&call->in[SD_KEYS], d->t.batch, kv_head, 0, d->t.s),
                       values = tile_transposed(
                           tile_head(&call->in[SD_VALUES], d->t.batch, kv_head, 0, d->t.s));
    tile_amx.columns(&keys, d->keys);
    tile_amx.columns(&values, d->values);
}

/* Scores of the block's rows, not scaled yet. */
static void tile_score(const tile_sdpa *d)
{
    const sdpa_task *t = &d->t;
    const int64_t steps = tile_steps(t->size);
    const tile_operand queries = tile_head(&t->call->in[SD_Q], t->batch, t->head, t->row, t->n);
    tile_amx.rows(&queries, d->queries);
    tile_amx.multiply(
        &(tile_sides){d->queries, d->keys, t->n, t->s, steps, 0, steps, t->from, t->end, 1},
        t->scores, t->padded_s);
}

static void tile_scale(const sdpa_task *t, float *scores)
{
    const double given = t->call->attributes[SD_SCALE].f;
    const vf scale = v_set((float)(given != 0 ? given : 1 / sqrt((double)t->size)));
    for (int64_t s = t->from; s < t->end; s += 16)
        v_store(scores + s, v_mul(v_load(scores + s), scale));
}

/* Weights of row r as parts, steps [from, end) of positions; no row: zeros. */
static void tile_split_weights(const tile_sdpa *d, int64_t r, int64_t from, int64_t end)
{
    const sdpa_task *t = &d->t;
    const int64_t steps = tile_steps(t->s), first = r / TILE_ROWS * steps;
    for (int64_t s = from / TILE_STEP; s < tile_steps(end); s++)
        for (int64_t i = 0; i < 2; i++) {
            const int64_t p = s * TILE_STEP + 16 * i;
            const vf w = r < t->n && p < end ? v_load(t->scores + r * t->padded_s + p) : v_zero(),
                     top = v_top_bf16(w);
            char *to = d->weights + (first + s) * TILE_WEIGHT_PARTS * TILE_ROWS * 64 +
                       r % TILE_ROWS * 64 + 32 * i;
            v_store_bf16(to, top);
            v_store_bf16(to + TILE_ROWS * 64, v_sub(w, top));
        }
}

/* Weights times values. */
static void tile_sum_values(const tile_sdpa *d)
{
    const sdpa_task *t = &d->t;
    tile_amx.multiply(&(tile_sides){d->weights, d->values, t->n, t->values, tile_steps(t->s),
                                    t->from / TILE_STEP, tile_steps(t->end), 0, t->values,
                                    TILE_WEIGHT_PARTS},
                      t->sums, t->padded_values);
}

/* Rows [t->row, t->row + t->n) of one head.  If none of them sees a position, their sums are
 * zero. */
static void tile_attend_rows(tile_sdpa *d)
{
    sdpa_task *t = &d->t;
    find_seen(t);
    t->from = t->from / TILE_STEP * TILE_STEP;
    tile_score(d);
    for (int64_t r = 0; r < tile_lines(t->n); r++) {
        float *scores = t->scores + r * t->padded_s;
        if (r < t->n) {
            tile_scale(t, scores);
            mask_row(t, r, scores);
            t->total[r] = weigh_scores(t, scores);
        }
        tile_split_weights(d, r, t->from, t->end);
    }
    memset(t->sums, 0, (size_t)(TILE_QUERIES * t->padded_values) * sizeof(float));
    tile_sum_values(d);
    store_rows(t);
}

static void tile_sdpa_run(const op_call *call, const ir_box *box, void *scratch)
{
    tile_sdpa d = {0};
    sdpa_task *t = &d.t;
    const int64_t share = call->in[SD_Q].dims[1] / call->in[SD_KEYS].dims[1];
    tile_sdpa_lay_out(call, scratch, &d);
    tile_amx.begin();
    for (t->batch = box->lo[0]; t->batch < box->hi[0]; t->batch++)
        for (t->head = box->lo[1]; t->head < box->hi[1]; t->head++) {
            if (t->head == box->lo[1] || t->head % share == 0)
                tile_pack_head(&d, t->head / share);
            for (t->row = box->lo[2]; t->row < box->hi[2]; t->row += TILE_QUERIES) {
                t->n = box->hi[2] - t->row < TILE_QUERIES ? box->hi[2] - t->row : TILE_QUERIES;
                tile_attend_rows(&d);
            }
        }
    tile_amx.end();
}

/* ---- conv ---- */

/* A task of conv_kernels.h: filters of the box as rows, group by group; the windows of a panel of
 * places, [channels * kernel][TILE_COLUMNS] of BF16, and the same as columns. */
typedef struct tile_conv {
    conv_task t;
    char *filters, *columns;
    uint16_t *windows;
    int64_t depth; /* channels * kernel */
} tile_conv;

/* Not where a group has one channel: planes need no product. */
static bool tile_conv_accepts(const op_call *call)
{
    conv_task t = {0};
    if (!conv_accepts(call) || !is_bf16(&call->in[CV_X]) || !is_bf16(&call->in[CV_W]))
        return false;
    describe_axes(call, &(ir_box){0}, &t);
    return !goes_by_planes(&t) && t.channels > 0;
}

static size_t tile_conv_lay_out(const op_call *call, const ir_box *box, char *scratch, tile_conv *c)
{
    conv_task *t = &c->t;
    t->call = call;
    t->first = box->lo[1];
    describe_axes(call, box, t);
    c->depth = t->channels * t->kernel;
    int64_t most = box->hi[1] - box->lo[1];
    most = most < t->filters ? most : t->filters;
    const size_t filters = (size_t)tile_side_bytes(most, c->depth),
                 columns = (size_t)tile_side_bytes(TILE_COLUMNS, c->depth),
                 windows = tile_aligned((size_t)(c->depth * TILE_COLUMNS) * sizeof(uint16_t));
    if (scratch) {
        c->filters = scratch;
        c->columns = scratch + filters;
        c->windows = (uint16_t *)(void *)(c->columns + columns);
        t->sums = (float *)(void *)(c->columns + columns + windows);
    }
    return filters + columns + windows + (size_t)(tile_lines(most) * TILE_COLUMNS) * sizeof(float);
}

static size_t tile_conv_scratch_bytes(const op_call *call, const ir_box *box)
{
    tile_conv c = {0};
    return tile_conv_lay_out(call, box, NULL, &c);
}

/* A row of windows from one channel; as fill_row, of 16 bits. */
static void tile_fill_row(const uint16_t *x, int64_t step, const conv_piece *pieces, int n,
                          uint16_t *row)
{
    for (int i = 0; i < n; i++) {
        const conv_piece *p = &pieces[i];
        const uint16_t *from = x + p->offset;
        for (int64_t j = 0; j < p->n && p->zero; j += 32)
            v_store_halves(row + p->at + j, p->n - j, v_zero());
        for (int64_t j = 0; j < p->n && !p->zero && step == 1; j += 32)
            v_store_halves(row + p->at + j, p->n - j, v_load_halves(from + j, p->n - j));
        for (int64_t j = 0; j < p->n && !p->zero && step == 2; j += 32)
            v_store_halves(row + p->at + j, p->n - j, v_load_every_second(from + 2 * j, p->n - j));
        for (int64_t j = 0; j < p->n && !p->zero && step != 1 && step != 2; j++)
            row[p->at + j] = from[j * step];
    }
}

/* The windows of places [p, p + n) over all channels of a group, the first of which begins at
 * x_offset. */
static void tile_fill_windows(const tile_conv *c, int64_t x_offset, int64_t p, int64_t n)
{
    const conv_task *t = &c->t;
    const op_view *x = &t->call->in[CV_X];
    const conv_axis *a = t->axis;
    const uint16_t *from = (const uint16_t *)x->data + x_offset;
    const ir_box kernel = {.hi = {a[0].k, a[1].k, a[2].k}};
    conv_piece pieces[CV_PIECES];
    int64_t k[IR_MAX_RANK] = {0};
    uint16_t *row = c->windows;
    do {
        const int count = find_pieces(t, p, n, n, k, pieces);
        for (int64_t i = 0; i < t->channels; i++)
            tile_fill_row(from + i * x->stride[1], a[2].stride * a[2].x_stride, pieces, count,
                          row + i * t->kernel * TILE_COLUMNS);
        row += TILE_COLUMNS;
    } while (walk_next(&kernel, CV_SPACE, k));
}

/* All places of the box for filters [f, end) of one group. */
static void tile_convolve_group(const tile_conv *c, int64_t f, int64_t end)
{
    const conv_task *t = &c->t;
    const op_view *x = &t->call->in[CV_X], *w = &t->call->in[CV_W];
    const int64_t steps = tile_steps(c->depth);
    tile_amx.rows(&(tile_operand){(const uint16_t *)w->data + f * w->stride[0], w->stride[0], 1,
                                  end - f, c->depth},
                  c->filters);
    for (int64_t p = 0; p < t->places; p += TILE_COLUMNS) {
        const int64_t n = t->places - p < TILE_COLUMNS ? t->places - p : TILE_COLUMNS;
        tile_fill_windows(c, t->n * x->stride[0] + f / t->filters * t->channels * x->stride[1], p,
                          n);
        tile_amx.columns(&(tile_operand){c->windows, 1, TILE_COLUMNS, n, c->depth}, c->columns);
        tile_amx.multiply(
            &(tile_sides){c->filters, c->columns, end - f, n, steps, 0, steps, 0, n, 1}, t->sums,
            TILE_COLUMNS);
        store_places(t, f, end - f, p, n);
    }
}

static void tile_conv_run(const op_call *call, const ir_box *box, void *scratch)
{
    tile_conv c = {0};
    conv_task *t = &c.t;
    tile_conv_lay_out(call, box, scratch, &c);
    join_axes(t);
    tile_amx.begin();
    for (t->n = box->lo[0]; t->n < box->hi[0]; t->n++)
        for (int64_t f = box->lo[1], end; f < box->hi[1]; f = end) {
            end = (f / t->filters + 1) * t->filters;
            end = end < box->hi[1] ? end : box->hi[1];
            tile_convolve_group(&c, f, end);
        }
    tile_amx.end();
}

#endif
