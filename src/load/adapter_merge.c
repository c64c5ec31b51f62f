/* adapter_merge.c - a weight with the updates of adapters added.
 *
 * Input: a tensor of a model, of numbers or of blocks, and its changes.  Output: a tensor of
 * numbers in the model's arena.
 *
 *   row n of W --f32--> + sum over changes of factor left[n] right --rounded once--> row n
 *
 * Blocks become numbers and stay so: packing them again would be a second quantisation, which no
 * adapter was trained for.  Factors are multiplied into left, which is small.  The sum of an update
 * is made apart from W, four ranks at a time, and added once, so it loses nothing to W's size.  Its
 * order is fixed, so the bits do not depend on the number of threads.
 *
 * Cost: N K r multiplications by all processors, a tile of rows each; memory: the result, and left
 * and right in f32.  Called by adapter.c, for each tensor that adapters change.
 */
#include <math.h>
#include <stdlib.h>

#include "base/num.h"
#include "base/thread.h"
#include "load/adapter.h"

/* Rows that a thread merges at a time; columns of right that stay in its first cache meanwhile. */
enum { TILE = 16, PANEL = 512 };

/* An update in f32. */
typedef struct update {
    int64_t first, rows, rank; /* rows of the tensor, those of all entries counted together */
    const float *left;         /* [rows, rank], times the factor */
    const float *right;        /* [rank, columns] */
    const float *magnitude;    /* [rows], or NULL */
} update;

/* A tensor that threads merge, a tile of rows each. */
typedef struct job {
    const load_tensor *from; /* the model's, or what takes its place */
    int64_t rows, columns;
    const update *updates;
    size_t n_updates;
    load_tensor *to;
    char *bytes; /* of *to */
} job;

/* ---- factors ---- */

/* A matrix [rows, columns] as f32, or its transpose if it is stored turned. */
static mpk_status unpack(mpk_context *cx, arena *a, const load_tensor *t, bool turned, double times,
                         const float **out)
{
    const int64_t rows = t->rank > 1 ? t->dims[0] : 1, columns = t->dims[t->rank - 1];
    float *to, *row;
    NEW(cx, a, to, (size_t)(rows * columns));
    NEW(cx, a, row, (size_t)columns);
    for (int64_t i = 0; i < rows; i++) {
        CHECK(cx, load_unpack(t->dtype, load_row_at(t, rows, i), columns, row), MPK_EUNSUPPORTED,
              "tensor %.*s of an adapter cannot be unpacked", LOAD_NAME(t->name));
        for (int64_t k = 0; k < columns; k++)
            to[turned ? k * rows + i : i * columns + k] = (float)(row[k] * times);
    }
    *out = to;
    return MPK_OK;
}

/* n_rows: of the tensor, or of one entry. */
static mpk_status take_update(mpk_context *cx, arena *a, const adapter_change *c, int64_t n_rows,
                              update *out)
{
    *out = (update){
        .first = c->entry < 0 ? 0 : c->entry * n_rows, .rows = n_rows, .rank = adapter_rank(c)};
    TRY(unpack(cx, a, &c->left, c->left_turned, c->factor, &out->left));
    TRY(unpack(cx, a, &c->right, c->right_turned, 1, &out->right));
    return c->magnitude.rank ? unpack(cx, a, &c->magnitude, false, 1, &out->magnitude) : MPK_OK;
}

/* ---- rows ---- */

/* to[k] += sum over j of left[j] right[j, k], for n columns of rows that are `stride` long. */
static void add_product(const float *left, const float *right, int64_t rank, int64_t stride,
                        int64_t n, float *restrict to)
{
    int64_t j = 0;
    for (; j + 4 <= rank; j += 4, left += 4, right += 4 * stride) {
        const float *restrict a = right, *restrict b = a + stride, *restrict c = b + stride,
                              *restrict d = c + stride;
        for (int64_t k = 0; k < n; k++)
            to[k] += (left[0] * a[k] + left[1] * b[k]) + (left[2] * c[k] + left[3] * d[k]);
    }
    for (; j < rank; j++, left++, right += stride)
        for (int64_t k = 0; k < n; k++)
            to[k] += left[0] * right[k];
}

/* The rows of a tile that an update changes, into sums [TILE, columns]. */
static void add_update(const job *j, const update *u, int64_t first, int64_t n, float *sums)
{
    const int64_t after = u->first + u->rows, begin = first > u->first ? first : u->first;
    const int64_t ends = first + n < after ? first + n : after;
    for (int64_t k = 0; k < j->columns; k += PANEL)
        for (int64_t row = begin; row < ends; row++)
            add_product(u->left + (row - u->first) * u->rank, u->right + k, u->rank, j->columns,
                        j->columns - k < PANEL ? j->columns - k : PANEL,
                        sums + (row - first) * j->columns + k);
}

/* Give the row the length that DoRA says, if the tensor's update does. */
static void set_length(const job *j, int64_t row, float *x)
{
    const float *magnitude = j->n_updates ? j->updates[0].magnitude : NULL;
    double sum = 0;
    if (!magnitude)
        return;
    for (int64_t k = 0; k < j->columns; k++)
        sum += (double)x[k] * x[k];
    const double times = magnitude[row] / sqrt(sum);
    for (int64_t k = 0; k < j->columns; k++)
        x[k] = (float)(x[k] * times);
}

/* Round a row.  False: a number is beyond the dtype, or was not finite. */
static bool put_row(ir_dtype dtype, const float *x, int64_t n, char *to)
{
    bool finite = true;
    if (dtype == IR_F32) {
        memcpy(to, x, (size_t)n * sizeof *x);
        for (int64_t k = 0; k < n; k++)
            finite &= isfinite(x[k]) != 0;
        return finite;
    }
    const uint16_t exponent = dtype == IR_BF16 ? 0x7f80 : 0x7c00;
    for (int64_t k = 0; k < n; k++) {
        const uint16_t half = dtype == IR_BF16 ? num_to_bf16(x[k]) : num_to_f16(x[k]);
        finite &= (half & exponent) != exponent;
        memcpy(to + 2 * k, &half, sizeof half);
    }
    return finite;
}

/* sums: [TILE, columns] zeros; row: [columns]. */
static mpk_status merge_rows(mpk_context *cx, const job *j, int64_t first, float *sums, float *row)
{
    const int64_t n = j->rows - first < TILE ? j->rows - first : TILE, K = j->columns;
    const size_t row_bytes = (size_t)(j->to->n_bytes / (uint64_t)j->rows);
    for (size_t i = 0; i < j->n_updates; i++)
        add_update(j, &j->updates[i], first, n, sums);
    for (int64_t r = 0; r < n; r++) {
        CHECK(cx, load_unpack(j->from->dtype, load_row_at(j->from, j->rows, first + r), K, row),
              MPK_EUNSUPPORTED, "the weight %.*s is %s, which no adapter can be merged into",
              LOAD_NAME(j->to->name), ir_dtype_table[j->from->dtype].name);
        for (int64_t k = 0; k < K; k++)
            row[k] += sums[r * K + k];
        set_length(j, first + r, row);
        CHECK(cx, put_row(j->to->dtype, row, K, j->bytes + (size_t)(first + r) * row_bytes),
              MPK_ELIMIT, "the weight %.*s, row %lld, is not finite in %s once it is merged",
              LOAD_NAME(j->to->name), (long long)(first + r), ir_dtype_table[j->to->dtype].name);
    }
    return MPK_OK;
}

static mpk_status merge_tile(mpk_context *cx, void *user, uint32_t tile)
{
    const job *j = user;
    float *sums = calloc((size_t)((TILE + 1) * j->columns), sizeof *sums);
    CHECK(cx, sums, MPK_ENOMEM, "out of memory for %d rows of %lld numbers", TILE,
          (long long)j->columns);
    const mpk_status status =
        merge_rows(cx, j, (int64_t)tile * TILE, sums, sums + TILE * j->columns);
    free(sums);
    return status;
}

/* ---- a tensor ---- */

/* Factors lie in `scratch`. */
static mpk_status take_updates(mpk_context *cx, arena *scratch, const adapter_change *first, job *j)
{
    const int64_t entries = j->to->rank > 2 ? j->to->dims[0] : 1;
    update *updates;
    size_t n = 0;
    for (const adapter_change *c = first; c; c = c->next)
        n += c->left.rank != 0;
    NEW(cx, scratch, updates, n);
    j->updates = updates;
    for (const adapter_change *c = first; c; c = c->next)
        if (c->left.rank)
            TRY(take_update(cx, scratch, c, j->rows / entries, &updates[j->n_updates++]));
    return MPK_OK;
}

mpk_status adapter_merge(mpk_context *cx, arena *a, const adapter_change *first, ir_dtype plain,
                         load_tensor *t)
{
    arena scratch = {0};
    load_tensor to = *t;
    job j = {.from = first->whole.rank ? &first->whole : t,
             .rows = 1,
             .columns = t->dims[t->rank - 1],
             .to = &to};
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        j.rows *= t->dims[i];
    if (ir_dtype_table[t->dtype].block_elements > 1)
        to.dtype = plain;
    to.parts = NULL;
    TRY(load_tensor_bytes(cx, &to, &to.n_bytes));
    to.data = j.bytes = arena_alloc(a, (size_t)to.n_bytes, 1);
    CHECK(cx, j.bytes, MPK_ENOMEM, "out of memory for %.*s, %llu bytes", LOAD_NAME(t->name),
          (unsigned long long)to.n_bytes);
    mpk_status status = take_updates(cx, &scratch, first, &j);
    if (status == MPK_OK)
        status = thread_each(cx, (uint32_t)((j.rows + TILE - 1) / TILE), merge_tile, &j);
    arena_free(&scratch);
    TRY(status);
    *t = to;
    return MPK_OK;
}
