/* batch_matmul.c - matrix products over broadcast batch axes.  a [.., M, N], b [.., N, Q] ->
 * [.., M, Q]; transpose_b: b [.., Q, N].
 *
 *   a [3, 1, 5, 16], b [4, 7, 16] transposed -> [3, 4, 5, 7]
 *
 * Sums run from 0 to N - 1 in double and are rounded once to a's dtype, or, of floats, to the
 * dtype that is named; of integers they are exact (modulo the width).  Any strides will do.
 *
 * For graphs from elsewhere; projections by weights are linear.  Idea: tiles of 64 columns; as
 * much of b as a tile needs is unpacked 128 rows at a time, and used for eight rows of a.  Cost:
 * 2 N flops an element.
 */
#include "op/fill.h"
#include "op/shape.h"
#include "op/walk.h"

enum { A, B };
enum { TRANSPOSE_B, DTYPE };

/* The axis of b that holds N, and the one that holds Q. */
static uint32_t inner_axis(const ir_op *op, uint32_t rank)
{
    return op->attributes[TRANSPOSE_B].i ? rank - 1 : rank - 2;
}
static uint32_t outer_axis(const ir_op *op, uint32_t rank)
{
    return op->attributes[TRANSPOSE_B].i ? rank - 2 : rank - 1;
}

/* Only an axis that is axis 0 of the result as well may be partly alive, never one that is
 * summed over: dead entries would get into live sums. */
static mpk_status infer_live(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    for (uint32_t i = 0; i < 2; i++) {
        const ir_tensor *t = shape_input(g, op, i);
        if (t->live == IR_ALL)
            continue;
        CHECK(cx, t->rank == out->rank && t->dims[0] == out->dims[0] && (i == A || t->rank > 2),
              MPK_ESHAPE,
              "batch_matmul: axis 0 of %%%.*s is partly alive and is not axis 0 of the result",
              STR_ARG(t->name));
        CHECK(cx, out->live == IR_ALL || out->live == t->live, MPK_ESHAPE,
              "batch_matmul: axis 0 of a and of b do not count the same");
        out->live = t->live;
    }
    return MPK_OK;
}

/* Batch axes broadcast from the right, as numpy's matmul does. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *a = shape_input(g, op, A), *b = shape_input(g, op, B);
    TRY(shape_expect_dtype(cx, g, op, A, SHAPE_NUMBER));
    uint32_t same = 1u << a->dtype;
    TRY(shape_expect_dtype(cx, g, op, B, SHAPE_FLOAT & same ? SHAPE_FLOAT : same));
    CHECK(cx, a->rank >= 2 && b->rank >= 2, MPK_ESHAPE,
          "batch_matmul: a has rank %u and b rank %u, expected 2 or more", a->rank, b->rank);
    CHECK(cx, a->dims[a->rank - 1] == b->dims[inner_axis(op, b->rank)], MPK_ESHAPE,
          "batch_matmul: rows of a have %lld entries, columns of b %lld",
          (long long)a->dims[a->rank - 1], (long long)b->dims[inner_axis(op, b->rank)]);
    const str name = op->attributes[DTYPE].s;
    out->dtype = a->dtype;
    CHECK(cx,
          !name.n || (ir_dtype_from_name(name, &out->dtype) &&
                      SHAPE_FLOAT >> out->dtype & SHAPE_FLOAT >> a->dtype & 1),
          MPK_EUNSUPPORTED,
          "batch_matmul: dtype \"%.*s\" is not one of f32, f16, bf16 for a product of such",
          STR_ARG(name));
    out->rank = a->rank > b->rank ? a->rank : b->rank;
    for (uint32_t i = 0; i + 2 < out->rank; i++) {
        /* axes count from the right; one that an operand lacks has one entry */
        int64_t m = i + a->rank >= out->rank ? a->dims[i + a->rank - out->rank] : 1;
        int64_t n = i + b->rank >= out->rank ? b->dims[i + b->rank - out->rank] : 1;
        CHECK(cx, m == n || m == 1 || n == 1, MPK_ESHAPE,
              "batch_matmul: batch axis %u is %lld in a and %lld in b", i, (long long)m,
              (long long)n);
        out->dims[i] = m > n ? m : n;
    }
    out->dims[out->rank - 2] = a->dims[a->rank - 2];
    out->dims[out->rank - 1] = b->dims[outer_axis(op, b->rank)];
    return infer_live(cx, g, op, out);
}

/* Where tiles are whole, rows share what is read of b: as many as fill the matrix hardware a few
 * times. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const uint32_t rank = g->tensors.at[op->out[0]].rank;
    shape_axes_all(g, op, axes);
    axes[rank - 2].tile = 32;
    axes[rank - 1].tile = 16;
}

/* Whole rows of a, whole columns of b, of the batches of the box. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *t = shape_input(g, op, input);
    uint32_t rank = g->tensors.at[op->out[0]].rank;
    shape_broadcast_box(t, rank, box, read);
    uint32_t inner = input == A ? t->rank - 1 : inner_axis(op, t->rank);
    uint32_t outer = input == A ? t->rank - 2 : outer_axis(op, t->rank);
    uint32_t of = input == A ? rank - 2 : rank - 1;
    read->lo[inner] = 0;
    read->hi[inner] = t->dims[inner];
    read->lo[outer] = box->lo[of];
    read->hi[outer] = box->hi[of];
}

/* The tile: columns and rows of the result, and how much of N is unpacked at a time. */
enum { COLUMNS = 64, ROWS = 8, DEPTH = 128 };

/* An entry of the sums and factors: doubles for floats, integers themselves. */
typedef union cell {
    double f;
    uint64_t i;
} cell;

/* A tile of the result and what it is made of at the moment: 8 rows by 64 columns of sums, 128 x
 * 64 cells of b, 8 x 128 of a, 76 KB. */
typedef struct tile {
    cell sum[ROWS][COLUMNS], b[DEPTH][COLUMNS], a[ROWS][DEPTH];
} tile;

static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)g, (void)op, (void)box;
    return sizeof(tile);
}

/* Offset of the matrix of v that belongs to a batch of the result. */
static int64_t matrix_offset(const op_view *v, uint32_t rank, const int64_t *at)
{
    int64_t offset = 0;
    for (uint32_t i = 0; i + 2 < rank; i++)
        offset += at[i] * walk_stride(v, rank, i);
    return offset;
}

/* Unpack n entries, `stride` apart, to cells that are `step` apart. */
static void load_cells(const op_view *v, int64_t offset, int64_t stride, int64_t n, cell *to,
                       int64_t step)
{
    if (v->dtype == IR_F32)
        for (int64_t i = 0; i < n; i++)
            to[i * step].f = (double)((const float *)v->data)[offset + i * stride];
    else if (v->dtype == IR_BF16)
        for (int64_t i = 0; i < n; i++)
            to[i * step].f = (double)num_from_bf16(((const bf16 *)v->data)[offset + i * stride]);
    else if (walk_is_exact(v->dtype))
        for (int64_t i = 0; i < n; i++)
            to[i * step].i = (uint64_t)walk_load_int(v, offset + i * stride);
    else
        for (int64_t i = 0; i < n; i++)
            to[i * step].f = walk_load_double(v, offset + i * stride);
}

/* Unpack rows e .. e + depth - 1 of a tile of b, along whichever axis is denser in memory. */
static void load_b(tile *t, const op_view *b, int64_t offset, int64_t step_e, int64_t step_q,
                   int64_t depth, int64_t n)
{
    if (step_q <= step_e)
        for (int64_t e = 0; e < depth; e++)
            load_cells(b, offset + e * step_e, step_q, n, t->b[e], 1);
    else
        for (int64_t q = 0; q < n; q++)
            load_cells(b, offset + q * step_q, step_e, depth, &t->b[0][q], COLUMNS);
}

/* Add products, four rows of b for each pass over the sums, in rising order of e as a plain loop
 * would; depth: a multiple of four (see pad). */
static void multiply_floats(tile *t, int64_t rows, int64_t depth, int64_t n)
{
    for (int64_t m = 0; m < rows; m++)
        for (int64_t e = 0; e < depth; e += 4) {
            const cell *a = &t->a[m][e];
            for (int64_t q = 0; q < n; q++) {
                double sum = t->sum[m][q].f + a[0].f * t->b[e][q].f;
                sum += a[1].f * t->b[e + 1][q].f;
                sum += a[2].f * t->b[e + 2][q].f;
                t->sum[m][q].f = sum + a[3].f * t->b[e + 3][q].f;
            }
        }
}

/* Modulo 2^64, so the order does not matter. */
static void multiply_integers(tile *t, int64_t rows, int64_t depth, int64_t n)
{
    for (int64_t m = 0; m < rows; m++)
        for (int64_t e = 0; e < depth; e++)
            for (int64_t q = 0; q < n; q++)
                t->sum[m][q].i += t->a[m][e].i * t->b[e][q].i;
}

/* Fill up with zeros from `depth` to the next multiple of four; products with zero change no
 * sum. */
static void pad(tile *t, int64_t depth, int64_t padded)
{
    for (int64_t e = depth; e < padded; e++) {
        memset(t->b[e], 0, sizeof t->b[e]);
        for (int64_t r = 0; r < ROWS; r++)
            t->a[r][e].i = 0;
    }
}

/* The pieces of one matrix product: offsets of its three matrices, and strides. */
typedef struct product {
    const op_view *a, *b, *y;
    int64_t a_at, b_at, y_at, step_a, step_m, step_e, step_q, n;
} product;

/* Compute rows m .. m + rows - 1 and columns q .. q + n - 1 of the result. Depth is padded with
 * zeros to a multiple of 4, so the inner loop takes four steps at a time and has no rest to
 * handle. */
static void compute_tile(tile *t, const product *p, int64_t m, int64_t rows, int64_t q, int64_t n)
{
    bool exact = walk_is_exact(p->y->dtype);
    memset(t->sum, 0, sizeof t->sum);
    for (int64_t e = 0; e < p->n; e += DEPTH) {
        int64_t depth = p->n - e < DEPTH ? p->n - e : DEPTH;
        load_b(t, p->b, p->b_at + e * p->step_e + q * p->step_q, p->step_e, p->step_q, depth, n);
        for (int64_t r = 0; r < rows; r++)
            load_cells(p->a, p->a_at + (m + r) * p->step_m + e * p->step_a, p->step_a, depth,
                       t->a[r], 1);
        pad(t, depth, (depth + 3) / 4 * 4);
        (exact ? multiply_integers : multiply_floats)(t, rows, (depth + 3) / 4 * 4, n);
    }
    uint32_t last = p->y->rank - 1;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            int64_t to = p->y_at + (m + r) * p->y->stride[last - 1] + (q + i) * p->y->stride[last];
            if (exact)
                walk_store_int(p->y, to, (int64_t)t->sum[r][i].i);
            else
                walk_store_double(p->y, to, t->sum[r][i].f);
        }
}

/* Batch by batch; within a matrix columns come first, so that the tile of b just unpacked serves
 * all rows. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *a = &call->in[A], *b = &call->in[B], *y = &call->out[0];
    uint32_t rows = y->rank - 2, columns = y->rank - 1;
    product p = {.a = a, .b = b, .y = y, .n = a->dims[a->rank - 1]};
    p.step_a = a->stride[a->rank - 1];
    p.step_m = a->stride[a->rank - 2];
    p.step_e = b->stride[inner_axis(call->op, b->rank)];
    p.step_q = b->stride[outer_axis(call->op, b->rank)];
    int64_t at[IR_MAX_RANK] = {0};
    memcpy(at, box->lo, rows * sizeof *at);
    do {
        p.a_at = matrix_offset(a, y->rank, at);
        p.b_at = matrix_offset(b, y->rank, at);
        p.y_at = walk_offset(y, at);
        for (int64_t q = box->lo[columns]; q < box->hi[columns]; q += COLUMNS) {
            int64_t n_columns = op_clamp(box->hi[columns] - q, 1, COLUMNS);
            for (int64_t m = box->lo[rows]; m < box->hi[rows]; m += ROWS)
                compute_tile(scratch, &p, m, op_clamp(box->hi[rows] - m, 1, ROWS), q, n_columns);
        }
    } while (walk_next(box, rows, at));
}

static const op_operand in[] = {{"a", 0}, {"b", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_INT("transpose_b", 0), SHAPE_WORD("dtype", "")};
/* Broadcast batches, either factor transposed, live rows, sizes beyond one tile, integers, a
 * named dtype. */
static const op_case cases[] = {
    {"input %a : f32[7, 48] live=tokens\nconst %b : f32[48, 17]\n%y = batch_matmul(%a, %b)\n"},
    {"input %a : f32[3, 1, 5, 16]\ninput %b : bf16[4, 7, 16]\n%y = batch_matmul(%a, %b) "
     "{transpose_b = 1}\n"},
    {"input %a : bf16[7, 2, 8] live=tokens\ninput %b : bf16[7, 8, 3] live=tokens\n%y = "
     "batch_matmul(%a, %b)\n"},
    {"input %a : f64[3, 130]\ninput %b : f64[130, 70]\n%y = batch_matmul(%a, %b)\n"},
    {"input %a : i32[10, 3]\ninput %b : i32[4, 3]\n%y = batch_matmul(%a, %b) {transpose_b = 1}\n"},
    {"input %a : f32[2, 3]\ninput %b : f32[5, 3, 4]\n%y = batch_matmul(%a, %b)\n"},
    {"input %a : bf16[19, 70]\ninput %b : bf16[70, 33]\n%y = batch_matmul(%a, %b) {dtype = "
     "\"f32\"}\n"},
};

const op_def op_batch_matmul = {
    .name = "batch_matmul",
    .summary = "matrix products over broadcast batch axes",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill_wide_integers,
};
