/* product_kernels.h - products of matrices of floats that are computed in each call: the
 * register block that conv, sdpa and batch_matmul share, how its right operand is laid out, and
 * batch_matmul.
 *
 * The left operand is rows of f32 in place.  Of the right one, columns are packed into panels:
 * [depth][16 nv] f32, one row for each entry that is summed over, zeros past the last column.  A
 * register block is V_TILE_ROWS rows of the left times the columns of a panel.  Each element of
 * the result is one chain of FMAs in rising order of what is summed over, wherever it lies, so
 * its bits depend on neither the cut nor the instruction set.
 *
 * A register block, for V_TILE_ROWS = 4 and nv = 2 (an accumulator for each cell, sixteen
 * columns wide):
 *
 *               panel row k:   [ column 0-15 ][ column 16-31 ]
 *   a[0][k] broadcast     ->    acc 0          acc 1
 *   a[1][k]               ->    acc 2          acc 3
 *   a[2][k]               ->    acc 4          acc 5
 *   a[3][k]               ->    acc 6          acc 7
 *
 * Each step loads nv vectors and broadcasts V_TILE_ROWS scalars for V_TILE_ROWS * nv FMAs.
 */
#ifndef CPU_PRODUCT_KERNELS_H
#define CPU_PRODUCT_KERNELS_H

#include "cpu/vec_math.h"
#include "op/walk.h"

enum {
    PRODUCT_COLUMNS = 16 * V_TILE_VECTORS, /* of the widest panel */
    /* entries that are summed over at once: a panel of them stays in the second cache */
    PRODUCT_DEPTH = 1024,
    /* rows whose sums are kept; a multiple of every V_TILE_ROWS */
    PRODUCT_ROWS = 240
};

/* ---- register block ---- */

/* Where the sums of a panel go: those of row r to `at` + r stride, `width` columns of them, in
 * scratch or in the result itself. */
typedef struct product_sums {
    float *at;
    int64_t stride, width;
    bool add;          /* they hold the sums of earlier entries */
    const float *bias; /* one for each row, added last; NULL: none */
} product_sums;

/* Rows a[0 .. V_TILE_ROWS) times one panel of nv vectors, over `depth` entries; row 0 is row
 * `first` of the sums.  Only the first `rows` rows are stored; the others are repetitions, so that
 * the loop needs no branch. */
V_INLINE void product_block(int nv, const float *const *a, const float *b, int64_t depth,
                            int64_t first, int64_t rows, const product_sums *to)
{
    vf acc[V_TILE_ROWS * V_TILE_VECTORS];
    float *c = to->at + first * to->stride;
    const int64_t ld = to->stride, last = nv - 1, left = to->width - 16 * last;
    for (int r = 0; r < V_TILE_ROWS * nv; r++)
        acc[r] = v_zero();
    if (to->add)
#pragma GCC unroll 8
        for (int r = 0; r < V_TILE_ROWS; r++)
#pragma GCC unroll 3
            for (int v = 0; v < nv; v++) {
                const float *from = c + (r < rows ? r : 0) * ld + 16 * v;
                acc[r * nv + v] = v < last ? v_load(from) : v_load_n(from, left);
            }
    for (int64_t k = 0; k < depth; k++) {
        vf column[V_TILE_VECTORS];
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++)
            column[v] = v_load(b + (k * nv + v) * 16);
#pragma GCC unroll 8
        for (int r = 0; r < V_TILE_ROWS; r++) {
            vf x = v_set(a[r][k]);
#pragma GCC unroll 3
            for (int v = 0; v < nv; v++)
                acc[r * nv + v] = v_fma(x, column[v], acc[r * nv + v]);
        }
    }
    if (to->bias)
#pragma GCC unroll 8
        for (int r = 0; r < V_TILE_ROWS; r++)
#pragma GCC unroll 3
            for (int v = 0; v < nv; v++)
                acc[r * nv + v] =
                    v_add(acc[r * nv + v], v_set(to->bias[first + (r < rows ? r : 0)]));
#pragma GCC unroll 8
    for (int r = 0; r < V_TILE_ROWS; r++)
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++) {
            if (r < rows && v < last)
                v_store(c + r * ld + 16 * v, acc[r * nv + v]);
            else if (r < rows)
                v_store_n(c + r * ld + 16 * v, left, acc[r * nv + v]);
        }
}

/* Sums over k of a[r][k] b[k][j] for n rows of a, a_stride apart, and a panel of nv vectors.  Past
 * the last row it is repeated. */
static void product_rows(const float *a, int64_t a_stride, int64_t n, const float *b, int nv,
                         int64_t depth, product_sums to)
{
    const float *row[V_TILE_ROWS];
    for (int64_t r0 = 0; r0 < n; r0 += V_TILE_ROWS) {
        for (int64_t r = 0; r < V_TILE_ROWS; r++)
            row[r] = a + (r0 + r < n ? r0 + r : n - 1) * a_stride;
        if (nv == 1)
            product_block(1, row, b, depth, r0, n - r0, &to);
        else if (nv == 2 && V_TILE_VECTORS >= 2)
            product_block(V_TILE_VECTORS >= 2 ? 2 : 1, row, b, depth, r0, n - r0, &to);
        else
            product_block(V_TILE_VECTORS, row, b, depth, r0, n - r0, &to);
    }
}

/* ---- panels ---- */

/* The first vector of panel `panel`.  Columns are dealt evenly to panels: 64 columns become 32
 * and 32, not 48 and 16, since a narrow last panel would keep few accumulators and wait for each
 * FMA. */
static int64_t panel_first(int64_t columns, int64_t panel)
{
    int64_t vectors = (columns + 15) / 16, panels = (vectors + V_TILE_VECTORS - 1) / V_TILE_VECTORS;
    return vectors * panel / panels;
}
/* How many panels this many columns need; 0 columns need none. */
static int64_t panel_count(int64_t columns)
{
    return ((columns + 15) / 16 + V_TILE_VECTORS - 1) / V_TILE_VECTORS;
}

/* Pack columns that are contiguous in memory: a row of the panel is one contiguous load. */
static void pack_rows(const op_view *v, int64_t offset, int64_t k_stride, int64_t depth, int64_t n,
                      int nv, float *to)
{
    for (int64_t k = 0; k < depth; k++, offset += k_stride, to += 16 * nv)
        for (int64_t i = 0; i < 16 * nv; i += 16)
            v_store(to + i, i < n ? row_load(v->data, v->dtype, offset + i, n - i) : v_zero());
}

/* Pack sixteen columns each of which is contiguous along k, as when b is given transposed:
 * blocks of 16 x 16 are transposed in registers. */
static void pack_columns(const op_view *v, int64_t offset, int64_t column_stride, int64_t depth,
                         int64_t n, int nv, float *to)
{
    vf in[16], out[16];
    for (int64_t k = 0; k < depth; k += 16) {
        for (int64_t i = 0; i < 16; i++)
            in[i] = i < n ? row_load(v->data, v->dtype, offset + i * column_stride + k, depth - k)
                          : v_zero();
        v_transpose(in, out);
        for (int64_t i = 0; i < 16 && k + i < depth; i++)
            v_store(to + (k + i) * 16 * nv, out[i]);
    }
}

/* Pack n columns into a panel: entry k of column j is that at offset + k k_stride + j
 * column_stride.  Tensors that are contiguous neither way are packed element by element; they
 * are rare and small. */
static void pack_panel(const op_view *v, int64_t offset, int64_t k_stride, int64_t column_stride,
                       int64_t depth, int64_t n, int nv, float *to)
{
    if (column_stride == 1) {
        pack_rows(v, offset, k_stride, depth, n, nv, to);
        return;
    }
    for (int64_t i = 0; i < 16 * nv && k_stride == 1; i += 16)
        pack_columns(v, offset + i * column_stride, column_stride, depth, n - i, nv, to + i);
    for (int64_t k = 0; k < depth && k_stride != 1; k++)
        for (int64_t j = 0; j < 16 * nv; j++)
            to[k * 16 * nv + j] = j < n ? op_load(v, offset + k * k_stride + j * column_stride) : 0;
}

/* Load n elements, `stride` apart, as f32.  Stride 2 has a loop of its own, since the compiler
 * vectorizes it: convolutions with stride 2 need it. */
static void load_floats(const op_view *v, int64_t offset, int64_t stride, int64_t n, float *to)
{
    const float *at = (const float *)v->data + offset;
    if (stride == 1)
        for (int64_t i = 0; i < n; i += 16)
            v_store_n(to + i, n - i, row_load(v->data, v->dtype, offset + i, n - i));
    else if (v->dtype != IR_F32)
        for (int64_t i = 0; i < n; i++)
            to[i] = op_load(v, offset + i * stride);
    else if (stride == 2)
        for (int64_t i = 0; i < n; i++)
            to[i] = at[2 * i];
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = at[i * stride];
}

/* Store n floats, `stride` apart, rounded to the dtype of v. */
static void store_floats(const op_view *v, int64_t offset, int64_t stride, int64_t n,
                         const float *from)
{
    char *at = (char *)v->data + offset * (v->dtype == IR_F32 ? 4 : 2);
    for (int64_t i = 0; i < n && stride == 1; i += 16)
        row_store(at, v->dtype, i, n - i, v_load_n(from + i, n - i));
    for (int64_t i = 0; i < n && stride != 1; i++)
        op_store(v, offset + i * stride, from[i]);
}

/* Do all tensors of the call that are present hold f32, f16 or bf16? */
static bool all_are_floats(const op_call *call)
{
    bool all = row_is_float(call->out[0].dtype);
    for (uint32_t i = 0; i < call->n_in; i++)
        all = all && (!call->in[i].data || row_is_float(call->in[i].dtype));
    return all;
}

/* ---- batch_matmul ---- */

/* Inputs, by index. */
enum { BM_A, BM_B };

/* The product of one batch entry, and its scratch: PRODUCT_DEPTH x PRODUCT_COLUMNS of b as a
 * panel, PRODUCT_ROWS rows of sums, and rows of a as f32 unless they are in place. */
typedef struct matmul_task {
    const op_call *call;
    int64_t depth, a, b, y;    /* offsets of the batch entry */
    int64_t b_depth, b_column; /* strides of b */
    float *rows, *panel, *sums;
} matmul_task;

static bool batch_matmul_accepts(const op_call *call)
{
    return all_are_floats(call);
}

/* Can product_rows read a in place? */
static bool rows_in_place(const op_view *a)
{
    return a->dtype == IR_F32 && a->stride[a->rank - 1] == 1;
}

static size_t batch_matmul_scratch_bytes(const op_call *call, const ir_box *box)
{
    (void)box;
    const op_view *a = &call->in[BM_A];
    size_t depth = rows_in_place(a) ? 0 : (size_t)a->dims[a->rank - 1];
    return (PRODUCT_ROWS * (depth + PRODUCT_COLUMNS) + PRODUCT_DEPTH * PRODUCT_COLUMNS) *
           sizeof(float);
}

/* The offset in an operand of batch entry at[] of the result, whose rank is `rank`; batch axes
 * are broadcast. */
static int64_t batch_offset(const op_view *v, uint32_t rank, const int64_t *at)
{
    int64_t offset = 0;
    for (uint32_t i = 0; i + 2 < rank; i++)
        offset += at[i] * walk_stride(v, rank, i);
    return offset;
}

/* Rows [m, m + n) times all columns of the box.  Depth is cut to PRODUCT_DEPTH; between the cuts
 * the sums lie in the result, or in t->sums if that has no rows of f32.  With a depth of 0 the loop
 * runs once and stores zeros. */
static void multiply_rows(const matmul_task *t, const ir_box *box, int64_t m, int64_t n)
{
    const op_view *a = &t->call->in[BM_A], *b = &t->call->in[BM_B], *y = &t->call->out[0];
    int64_t row_stride = a->stride[a->rank - 2], column_stride = a->stride[a->rank - 1],
            stride = t->depth;
    uint32_t last = y->rank - 1;
    int64_t columns = box->hi[last] - box->lo[last];
    const float *rows = t->rows;
    if (rows_in_place(a))
        rows = (const float *)a->data + t->a + m * row_stride, stride = row_stride;
    else
        for (int64_t r = 0; r < n; r++)
            load_floats(a, t->a + (m + r) * row_stride, column_stride, t->depth,
                        t->rows + r * t->depth);
    for (int64_t p = 0; p < panel_count(columns); p++) {
        int64_t first = panel_first(columns, p), nv = panel_first(columns, p + 1) - first,
                at = box->lo[last] + 16 * first;
        int64_t width = columns - 16 * first < 16 * nv ? columns - 16 * first : 16 * nv;
        product_sums to = {t->sums, PRODUCT_COLUMNS, 16 * nv, false, NULL};
        if (y->dtype == IR_F32 && y->stride[last] == 1) {
            to.at = (float *)y->data + t->y + m * y->stride[last - 1] + at;
            to.stride = y->stride[last - 1];
            to.width = width;
        }
        for (int64_t k = 0; k < t->depth || k == 0; k += PRODUCT_DEPTH) {
            int64_t depth = t->depth - k < PRODUCT_DEPTH ? t->depth - k : PRODUCT_DEPTH;
            pack_panel(b, t->b + k * t->b_depth + at * t->b_column, t->b_depth, t->b_column, depth,
                       width, (int)nv, t->panel);
            to.add = k > 0;
            product_rows(rows + k, stride, n, t->panel, (int)nv, depth, to);
        }
        for (int64_t r = 0; r < n && to.at == t->sums; r++)
            store_floats(y, t->y + (m + r) * y->stride[last - 1] + at * y->stride[last],
                         y->stride[last], width, t->sums + r * PRODUCT_COLUMNS);
    }
}

/* The box is cut into batch entries, and those into PRODUCT_ROWS rows; b is packed again for
 * each of them, which is 1 / 240 of the products' work. */
static void batch_matmul_run(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *a = &call->in[BM_A], *b = &call->in[BM_B], *y = &call->out[0];
    uint32_t rows = y->rank - 2;
    bool transposed = call->attributes[0].i;
    matmul_task t = {.call = call, .depth = a->dims[a->rank - 1]};
    t.b_depth = b->stride[b->rank - (transposed ? 1 : 2)];
    t.b_column = b->stride[b->rank - (transposed ? 2 : 1)];
    t.panel = scratch;
    t.sums = t.panel + PRODUCT_DEPTH * PRODUCT_COLUMNS;
    t.rows = t.sums + PRODUCT_ROWS * PRODUCT_COLUMNS;
    int64_t at[IR_MAX_RANK];
    memcpy(at, box->lo, sizeof at);
    do {
        t.a = batch_offset(a, y->rank, at);
        t.b = batch_offset(b, y->rank, at);
        t.y = batch_offset(y, y->rank, at);
        for (int64_t m = box->lo[rows]; m < box->hi[rows]; m += PRODUCT_ROWS)
            multiply_rows(&t, box, m,
                          box->hi[rows] - m < PRODUCT_ROWS ? box->hi[rows] - m : PRODUCT_ROWS);
    } while (walk_next(box, rows, at));
}

#endif
