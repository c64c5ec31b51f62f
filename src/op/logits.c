/* logits.c - the end of a step: rows are chosen, normalised, and multiplied with the vocabulary.
 *
 * x [T, D], w [V, D], norm [D], rows i32[R] -> logits f32[R, V], peaks f32[R, ceil(V / 64), 2].
 * Row r of logits belongs to token rows[r] (zeros if there is no such token alive), or without
 * rows to token r.  The numbers are those of gather, rms_norm and linear one after the other in
 * f32; nothing is rounded in between.
 *
 * factor: of the products.  cap: not 0: a logit z, after the factor, becomes cap tanh(z / cap), so
 * that none is larger (Gemma 2).
 *
 * peaks are the largest logit of each 64 neighbouring columns and its column as a float (ties:
 * the lowest column; exact below 2^24); a block with nothing but NaN has -inf and column -1.  So
 * a greedy `sample` reads V / 32 numbers of a row and not V:
 *
 *   V = 151,936: 2,374 blocks, 4,748 numbers
 *
 * Reference code takes eight rows at a time: a row of w is unpacked once for them.  Cost: 2 D
 * operations a logit.
 */
#include <math.h>

#include "op/dot.h"
#include "op/fill.h"
#include "op/norm.h"
#include "op/peaks.h"
#include "op/walk.h"

/* Inputs and results, by index; rows for which a weight row is unpacked once. */
enum { X, W, NORM, ROWS };
enum { LOGITS, PEAKS };
enum { EPS, FACTOR, CAP }; /* attributes */
enum { ROWS_AT_ONCE = 8 };

/* A factor above 0 and a cap keep the order of logits. */
static mpk_status check_bend(mpk_context *cx, const ir_op *op)
{
    const double factor = op->attributes[FACTOR].f, cap = op->attributes[CAP].f;
    CHECK(cx, factor > 0 && factor < 1e30, MPK_EARG, "logits: factor is %g, expected more than 0",
          factor);
    CHECK(cx, cap >= 0 && cap < 1e30, MPK_EARG, "logits: cap is %g, expected 0 or more", cap);
    return MPK_OK;
}

/* Peaks name a column as a float, which bounds how many columns there may be. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *w = shape_input(g, op, W),
                    *rows = shape_input(g, op, ROWS);
    TRY(shape_expect(cx, g, op, X, SHAPE_FLOAT, 2, (int64_t[]){SHAPE_FREE, SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, W, SHAPE_WEIGHT, 2, (int64_t[]){SHAPE_FREE, x->dims[1]}));
    TRY(shape_expect(cx, g, op, NORM, SHAPE_FLOAT, 1, &x->dims[1]));
    TRY(shape_expect(cx, g, op, ROWS, SHAPE_I32, 1, (int64_t[]){SHAPE_FREE}));
    CHECK(cx, w->dims[0] <= PEAKS_MOST_COLUMNS, MPK_ESHAPE,
          "logits: %lld columns, at most %d can be numbered", (long long)w->dims[0],
          PEAKS_MOST_COLUMNS);
    TRY(check_bend(cx, op));
    for (uint32_t i = LOGITS; i <= PEAKS; i++) {
        out[i].dtype = IR_F32;
        out[i].live = rows ? rows->live : x->live;
        out[i].dims[0] = rows ? rows->dims[0] : x->dims[0];
    }
    out[LOGITS].rank = 2;
    out[LOGITS].dims[1] = w->dims[0];
    out[PEAKS].rank = 3;
    out[PEAKS].dims[1] = peaks_count(w->dims[0]);
    out[PEAKS].dims[2] = 2;
    return MPK_OK;
}

/* Columns are cut at blocks of peaks, so that each block has one task.  Where tiles are whole, up
 * to 128 rows stay together, so that the weight is read once for them. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g, (void)op;
    axes[0] = (op_axis){.grain = 1, .tile = 128};
    axes[1] = (op_axis){.grain = PEAKS_COLUMNS, .fastest = PEAKS_COLUMNS};
}

/* Which tokens are read is known only at run time: with `rows` all of them. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == ROWS || (input == X && !shape_input(g, op, ROWS))) {
        read->lo[0] = box->lo[0];
        read->hi[0] = box->hi[0];
    } else if (input == W) {
        read->lo[0] = box->lo[1];
        read->hi[0] = box->hi[1];
    }
}

/* A task covers whole blocks of columns (the grain of axis 1), so each peak has one writer. */
static void writes(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written)
{
    *written = ir_box_whole(&g->tensors.at[op->out[output]]);
    written->lo[0] = box->lo[0];
    written->hi[0] = box->hi[0];
    written->lo[1] = box->lo[1] / PEAKS_COLUMNS;
    written->hi[1] = peaks_count(box->hi[1]);
}

/* Scratch: a row of w, and up to eight rows of x. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    int64_t rows = box->hi[0] - box->lo[0];
    rows = rows < ROWS_AT_ONCE ? rows : ROWS_AT_ONCE;
    return (size_t)((rows + 1) * shape_input(g, op, X)->dims[1]) * sizeof(float);
}

/* Load the row of x from which row r of logits is made, as f32; zeros if there is none. */
static void load_x(const op_call *call, int64_t r, float *row)
{
    const op_view *x = &call->in[X], *rows = &call->in[ROWS];
    int64_t width = x->dims[1], t = rows->data ? walk_load_int(rows, r * rows->stride[0]) : r;
    if (t >= 0 && t < op_live_entries(call, x))
        walk_load_row(x, t * x->stride[0], 0, width, row);
    else
        memset(row, 0, (size_t)width * sizeof *row);
    if (call->in[NORM].data)
        norm_row(row, width, &call->in[NORM], call->attributes[EPS].f, row);
}

/* Factor and cap. */
static float bend(const op_call *call, float product)
{
    const float cap = (float)call->attributes[CAP].f,
                logit = product * (float)call->attributes[FACTOR].f;
    return cap > 0 ? cap * tanhf(logit / cap) : logit;
}

/* Store the peaks of row r for the columns lo .. hi - 1. */
static void find_peaks(const op_call *call, int64_t r, int64_t lo, int64_t hi)
{
    const op_view *logits = &call->out[LOGITS], *peaks = &call->out[PEAKS];
    for (int64_t first = lo; first < hi; first += PEAKS_COLUMNS) {
        int64_t end = first + PEAKS_COLUMNS < hi ? first + PEAKS_COLUMNS : hi,
                row = r * logits->stride[0];
        int64_t best = largest_in_row(logits, row, first, end);
        int64_t at = r * peaks->stride[0] + first / PEAKS_COLUMNS * peaks->stride[1];
        op_store(peaks, at, best < 0 ? -INFINITY : op_load(logits, row + best * logits->stride[1]));
        op_store(peaks, at + peaks->stride[2], (float)best);
    }
}

/* Peaks are found from the stored logits at the end, so they agree with them bit for bit. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *w = &call->in[W], *out = &call->out[LOGITS];
    int64_t width = w->dims[1];
    float *unpacked = scratch, *rows = unpacked + width;
    for (int64_t r0 = box->lo[0]; r0 < box->hi[0]; r0 += ROWS_AT_ONCE) {
        int64_t n = box->hi[0] - r0 < ROWS_AT_ONCE ? box->hi[0] - r0 : ROWS_AT_ONCE;
        for (int64_t r = 0; r < n; r++)
            load_x(call, r0 + r, rows + r * width);
        for (int64_t column = box->lo[1]; column < box->hi[1]; column++) {
            walk_load_row(w, column * w->stride[0], 0, width, unpacked);
            for (int64_t r = 0; r < n; r++)
                op_store(out, (r0 + r) * out->stride[0] + column * out->stride[1],
                         bend(call, dot_rows(rows + r * width, unpacked, width)));
        }
    }
    for (int64_t r = box->lo[0]; r < box->hi[0]; r++)
        find_peaks(call, r, box->lo[1], box->hi[1]);
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    if (input == ROWS)
        fill_indices(shape_input(g, op, ROWS), shape_input(g, op, X)->dims[0], seed, data);
}

static const op_operand in[] = {{"x", 0}, {"w", 0}, {"norm", OP_OPTIONAL}, {"rows", OP_OPTIONAL}};
static const op_operand out[] = {{"logits", 0}, {"peaks", 0}};
static const op_attribute attributes[] = {SHAPE_REAL("eps", 1e-6), SHAPE_REAL("factor", 1),
                                          SHAPE_REAL("cap", 0)};
/* One row; gathered rows beside all tokens; blocks; more rows and columns than a tile; columns
 * that end inside a block; factors and caps. */
static const op_case cases[] = {
    {"input %x : f32[1, 65] live=tokens\nconst %w : bf16[1003, 65]\n%l, %p = logits(%x, %w)\n"},
    {"input %x : bf16[7, 64] live=tokens\nconst %w : bf16[257, 64]\nconst %n : f32[64]\ninput %r : "
     "i32[3] live=rows\n"
     "%l, %p = logits(%x, %w, %n, %r) {eps = 1e-05}\n"},
    {"input %x : f32[12, 64] live=tokens\nconst %w : q8_0[128, 64]\nconst %n : bf16[64]\n%l, %p = "
     "logits(%x, %w, "
     "%n)\n"},
    {"input %x : bf16[40, 64] live=tokens\nconst %w : bf16[2051, 64]\nconst %n : bf16[64]\ninput "
     "%r : i32[20] "
     "live=rows\n"
     "%l, %p = logits(%x, %w, %n, %r)\n"},
    {"input %x : bf16[70, 24] live=tokens\nconst %w : bf16[4100, 24]\n%l, %p = logits(%x, %w)\n"},
    {"input %x : bf16[40, 512] live=tokens\nconst %w : q6_k[331, 512]\nconst %n : f32[512]\ninput "
     "%r : i32[24] live=rows\n%l, %p = logits(%x, %w, %n, %r)\n"},
    {"input %x : f32[3, 64]\nconst %w : f16[49, 64]\ninput %r : i32[17] live=rows\n%l, %p = "
     "logits(%x, %w, _, %r)\n"},
    {"input %x : bf16[5, 64] live=tokens\nconst %w : bf16[131, 64]\nconst %n : f32[64]\n%l, %p = "
     "logits(%x, %w, %n) {factor = 0.0625}\n"},
    {"input %x : bf16[33, 136] live=tokens\nconst %w : bf16[200, 136]\nconst %n : bf16[136]\ninput "
     "%r : i32[21] live=rows\n%l, %p = logits(%x, %w, %n, %r) {factor = 0.25, cap = 5.0}\n"},
    {"input %x : f32[2, 32] live=tokens\nconst %w : q4_0[70, 32]\n%l, %p = logits(%x, %w) {cap = "
     "9.0}\n"},
};

const op_def op_logits = {
    .name = "logits",
    .summary = "chosen rows, normalised, times the vocabulary, and the largest of each 64 columns",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .writes = writes,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
