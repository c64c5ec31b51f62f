/* linear.c - products of activations with up to three weight matrices (paper §4.1: the operator
 * that costs time).
 *
 * x [T, D], w0 [F0, D], w1, w2, biases, norm [D], residual [T, F], norm_bias [D] -> y [T, F].
 * Without glu the columns of y are those of the weights one after the other, after the activation
 * `act` if there is one (relu, silu, gelu, gelu_tanh, quick_gelu: x sigmoid(1.702 x)); with glu
 * (silu, gelu, gelu_tanh) w0 is the gate and w1 what it gates.  norm: x is first normalised as
 * rms_norm does, or with `centred` as layer_norm does, of which norm_bias is the bias. factor: of
 * the product, where there is no gate.  activations: "i8" multiplies weights in block formats by x
 * in 8-bit blocks (narrow.h).
 *
 *   %y = linear(%x, %q, %k, %v, _, _, _, %norm)        columns of y: q, then k, then v
 *   %y = linear(%x, %gate, %up) {glu = "silu"}         silu(x gate^T) * (x up^T)
 *   %y = linear(%x, %o, _, _, _, _, _, _, %residual)   x o^T + residual
 *
 * Order: norm, product, factor, bias, act or glu, residual; one rounding, when stored.  Reference
 * code takes eight tokens at a time: a weight row is unpacked once for them.  Cost: 2 D operations
 * an element of the product.
 */
#include "op/activate.h"
#include "op/dot.h"
#include "op/linear.h"
#include "op/narrow.h"
#include "op/norm.h"
#include "op/shape.h"
#include "op/walk.h"
#include "shape/linear_stream_shape.h"

/* Inputs and attributes, by index. */
enum { X, W0, W1, W2, B0, B1, B2, NORM, RESIDUAL, NORM_BIAS }; /* as op/linear.h */
enum { EPS, GLU, ACTIVATIONS, ACT, FACTOR, CENTRED };
/* TOKENS_AT_ONCE: tokens for which the reference code unpacks a row once, and which fast bodies
 * take together.  LOT: rows of x that a task keeps together.  The others say which products are cut
 * finer (axes): those with more than FEW_ROWS and at most SMALL_ROWS rows of x; those with at most
 * NARROW_COLUMNS columns of y; those with fewer than FEW_TASKS tasks of BOX_COLUMNS columns. */
enum {
    TOKENS_AT_ONCE = 8,
    LOT = 128,
    FEW_ROWS = 64,
    SMALL_ROWS = 256,
    NARROW_COLUMNS = 256,
    BOX_COLUMNS = 64,
    FEW_TASKS = 64
};

/* An activation after the product; glu has its own. */
static mpk_status check_act(mpk_context *cx, const ir_op *op)
{
    const str act = op->attributes[ACT].s;
    CHECK(cx,
          !act.n || str_is(act, "relu") || str_is(act, "silu") || str_is(act, "gelu") ||
              str_is(act, "gelu_tanh") || str_is(act, "quick_gelu"),
          MPK_EUNSUPPORTED,
          "linear: act \"%.*s\" is not one of \"\", relu, silu, gelu, gelu_tanh, quick_gelu",
          STR_ARG(act));
    CHECK(cx, !act.n || !linear_has_glu(op), MPK_EARG, "linear: act and glu are both given");
    return MPK_OK;
}

/* A factor of a product that is gated would be one of both. */
static mpk_status check_factor(mpk_context *cx, const ir_op *op)
{
    const double factor = op->attributes[FACTOR].f;
    CHECK(cx, factor > 0 && factor < 1e30, MPK_EARG, "linear: factor is %g, expected more than 0",
          factor);
    CHECK(cx, factor == 1 || !linear_has_glu(op), MPK_EARG,
          "linear: factor and glu are both given");
    return MPK_OK;
}

/* The bias of a norm is that of a layer_norm. */
static mpk_status check_norm(mpk_context *cx, const ir_graph *g, const ir_op *op, int64_t width)
{
    const bool centred = op->attributes[CENTRED].i;
    CHECK(cx, !centred || shape_input(g, op, NORM), MPK_ESHAPE,
          "linear: centred is given without norm");
    CHECK(cx, centred || !shape_input(g, op, NORM_BIAS), MPK_ESHAPE,
          "linear: norm_bias is given without centred");
    TRY(shape_expect(cx, g, op, NORM, SHAPE_FLOAT, 1, &width));
    return shape_expect(cx, g, op, NORM_BIAS, SHAPE_FLOAT, 1, &width);
}

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X);
    TRY(linear_infer(cx, g, op, &out->dims[1]));
    out->dtype = x->dtype;
    out->live = x->live;
    out->rank = 2;
    out->dims[0] = x->dims[0];
    TRY(check_act(cx, op));
    TRY(check_factor(cx, op));
    TRY(narrow_check(cx, g, op, op->attributes[ACTIVATIONS].s, W0, W2));
    TRY(check_norm(cx, g, op, x->dims[1]));
    TRY(shape_expect(cx, g, op, RESIDUAL, SHAPE_FLOAT, 2, out->dims));
    return shape_expect_live(cx, g, op, RESIDUAL, x->live);
}

/* In a program that serves no requests, of some rows: then x may be most of what a task reads.  Few
 * rows are cut only where the weight lies by columns: bodies that stream rows of a weight want the
 * tokens together. */
static bool is_small(const ir_tensor *y, const ir_tensor *w)
{
    const int64_t fewest = w->dims[1] > 1 && w->stride[1] != 1 ? 0 : FEW_ROWS;
    return y->live == IR_ALL && y->dims[0] > fewest && y->dims[0] <= SMALL_ROWS;
}

/* Of more than one lot of tokens, and of few columns beside those of x, as a router of experts: cut
 * between lots, its tasks would be few, and each read all of a lot's x for eight columns. */
static bool is_narrow(const ir_tensor *y, const ir_tensor *x)
{
    return y->live != IR_ALL && y->dims[0] > LOT && y->dims[1] <= NARROW_COLUMNS &&
           y->dims[1] * 8 <= x->dims[1];
}

/* Do teams of warps take the product, in a step of more tokens than two teams have (device/task/
 * linear_team.cuh)? */
static bool is_for_four_teams(const ir_tensor *y, const ir_tensor *w)
{
    const int64_t side = y->dims[1] < w->dims[1] ? y->dims[1] : w->dims[1];
    return y->dims[0] > TEAM_TWO_TOKENS && y->dims[0] <= TEAM_MOST_TOKENS && side <= TEAM_MOST_SIDE;
}

/* Is it a product that GPUs take by boxes of 128 tokens and 64 or 128 rows of a weight
 * (device/task/linear_box.cuh), in a program that serves no requests?  Tasks that are cut anywhere
 * would use a part of their boxes. */
static bool is_for_boxes(const ir_tensor *y, const ir_tensor *x, const ir_tensor *w)
{
    return y->live == IR_ALL && y->dims[0] > SMALL_ROWS && w->kind == IR_CONST &&
           (x->dtype == IR_BF16 || x->dtype == IR_F16) && w->dtype == x->dtype &&
           w->stride[1] == 1 && x->dims[1] % 8 == 0 && y->dims[1] % 8 == 0;
}

/* Columns of y between which such a product is cut: those of half a box.  Where there are few such
 * tasks they have half of that, and as many as one tile's share it (src/gen/sharing.c). */
static int64_t columns_of_boxes(const ir_tensor *y, bool glu)
{
    const int64_t tasks = (y->dims[0] + LOT - 1) / LOT * (y->dims[1] / BOX_COLUMNS),
                  columns = tasks < FEW_TASKS ? BOX_COLUMNS / 2 : BOX_COLUMNS;
    return glu ? columns / 2 : columns;
}

/* A column of y is a row of a weight: eight of them make a task worth its while.  Where tiles
 * are whole, a lot of tokens stays together, so that a weight is read once for it; fewer where x is
 * most of what a task reads.  Four teams go through the columns in twice as many passes as two, one
 * after the other, as if they worked on two teams' tokens at a time. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const ir_tensor *y = &g->tensors.at[op->out[0]], *w = shape_input(g, op, W0);
    axes[0] = (op_axis){.grain = 1, .tile = is_small(y, w) ? 32 : LOT, .together = LOT};
    if (is_narrow(y, shape_input(g, op, X)))
        axes[0] = (op_axis){.grain = 1, .tile = 16, .together = 64};
    const bool teams = y->live != IR_ALL && is_for_four_teams(y, w);
    /* products of few tokens share tiles by boxes alone, and weights in blocks take none */
    const bool shares =
        !teams && (y->dims[0] > FEW_ROWS || ir_dtype_table[w->dtype].block_elements == 1);
    axes[1] = (op_axis){.grain = 1, .fastest = 8, .tile = 8, .even = shares};
    if (is_for_boxes(y, shape_input(g, op, X), w))
        axes[1].tile = columns_of_boxes(y, linear_has_glu(op));
    if (teams)
        axes[0].tile = axes[0].together = TEAM_TWO_TOKENS;
}

/* Of each weight and bias the rows that belong to the box's columns; none if another weight
 * makes them. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == X) {
        read->lo[0] = box->lo[0];
        read->hi[0] = box->hi[0];
    } else if (input == RESIDUAL) {
        *read = *box;
    } else if (input != NORM && input != NORM_BIAS) {
        linear_weight_rows(g, op, input < B0 ? input - W0 : input - B0, box, &read->lo[0],
                           &read->hi[0]);
    }
}

/* Way 0: cut columns of y, which are rows of the weights: of one weight, or of gate and up
 * alike.  The other way: cut the elements of the rows, so that each peer has a term of every sum;
 * norm, glu and act need the whole sum and forbid it.  Of several weights without glu columns are
 * not cut: a part of y's columns is not the same part of each weight.  Where elements are cut,
 * bias and residual are added by the first peer alone (OP_FIRST), or the sum would have them once
 * for each peer.
 */
static bool split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    bool columns = linear_has_glu(op) || !shape_input(g, op, W1),
         inner = !linear_has_glu(op) && !op->attributes[ACT].s.n && !shape_input(g, op, NORM);
    if (way == 0 && columns) {
        out->in[W0] = out->in[W1] = out->in[B0] = out->in[B1] = 0;
        out->in[RESIDUAL] = out->out[0] = 1;
        return true;
    }
    if (way > 1 || !inner || (way == 1 && !columns))
        return false;
    out->in[X] = out->in[W0] = out->in[W1] = out->in[W2] = 1;
    out->in[B0] = out->in[B1] = out->in[B2] = out->in[RESIDUAL] = OP_FIRST;
    out->out[0] = OP_SUM;
    return true;
}

/* The forms in which weights need rows of x: as they are, or in 8-bit blocks of 32 or 256
 * elements. */
enum { WHOLE, IN_32, IN_256, ROW_KINDS };

/* The form that a weight of this dtype needs. */
static int row_kind(const op_call *call, ir_dtype weight)
{
    int64_t block = narrow_is_asked(call->attributes[ACTIVATIONS].s) ? narrow_block(weight) : 0;
    if (!block)
        return WHOLE;
    return block == 32 ? IN_32 : IN_256;
}

/* Scratch: a row of a weight, and up to eight rows of x in every form. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    int64_t tokens = box->hi[0] - box->lo[0],
            kinds = narrow_is_asked(op->attributes[ACTIVATIONS].s) ? ROW_KINDS : 1;
    tokens = tokens < TOKENS_AT_ONCE ? tokens : TOKENS_AT_ONCE;
    return (size_t)((tokens * kinds + 1) * shape_input(g, op, W0)->dims[1]) * sizeof(float);
}

/* n rows of x; the same rows in form `kind` are kind * n rows further on. */
typedef struct x_rows {
    float *at;
    int64_t n;
} x_rows;

/* y[t] = x[t] . w[row] factor + b[row] for all rows; unpacked: room for a row of w. */
static void multiply_row(const op_call *call, uint32_t i, int64_t row, const x_rows *x,
                         float *unpacked, float *y)
{
    const op_view *w = &call->in[W0 + i], *b = &call->in[B0 + i];
    int64_t width = w->dims[1], first = row_kind(call, w->dtype) * x->n;
    float bias = b->data ? op_load(b, row * b->stride[0]) : 0,
          factor = (float)call->attributes[FACTOR].f;
    walk_load_row(w, row * w->stride[0], 0, width, unpacked);
    for (int64_t t = 0; t < x->n; t++)
        y[t] = dot_rows(x->at + (first + t) * width, unpacked, width) * factor + bias;
}

/* Compute one column of y for the tokens from t0 on. Columns of several weights follow each other,
 * so the weight and its row are found by taking widths off the column's number; with glu, column c
 * is row c of both. */
static void compute_column(const op_call *call, int64_t column, int64_t t0, const x_rows *x,
                           float *unpacked)
{
    const op_view *residual = &call->in[RESIDUAL], *out = &call->out[0];
    float y[TOKENS_AT_ONCE], up[TOKENS_AT_ONCE];
    const str glu = call->attributes[GLU].s, act = call->attributes[ACT].s;
    if (glu.n) {
        multiply_row(call, 0, column, x, unpacked, y);
        multiply_row(call, 1, column, x, unpacked, up);
        for (int64_t t = 0; t < x->n; t++)
            y[t] = activate_named(glu, y[t]) * up[t];
    } else {
        uint32_t i = 0;
        int64_t row = column;
        for (; row >= call->in[W0 + i].dims[0]; i++)
            row -= call->in[W0 + i].dims[0];
        multiply_row(call, i, row, x, unpacked, y);
        for (int64_t t = 0; act.n && t < x->n; t++)
            y[t] = activate_named(act, y[t]);
    }
    for (int64_t t = 0; t < x->n; t++) {
        int64_t at[2] = {t0 + t, column};
        if (residual->data)
            y[t] += op_load(residual, walk_offset(residual, at));
        op_store(out, walk_offset(out, at), y[t]);
    }
}

/* Load rows of x from t0 on as f32, normalised, and in the forms that some weight needs. */
static void load_x(const op_call *call, int64_t t0, const x_rows *rows)
{
    const op_view *x = &call->in[X];
    int64_t width = call->in[W0].dims[1], n = rows->n * width;
    for (int64_t t = 0; t < rows->n; t++) {
        float *row = rows->at + t * width;
        walk_load_row(x, (t0 + t) * x->stride[0], 0, width, row);
        if (call->attributes[CENTRED].i)
            norm_row_centred(row, width, &call->in[NORM], &call->in[NORM_BIAS],
                             call->attributes[EPS].f, row);
        else if (call->in[NORM].data)
            norm_row(row, width, &call->in[NORM], call->attributes[EPS].f, row);
    }
    for (uint32_t i = W0; i <= W2; i++) {
        int kind = call->in[i].data ? row_kind(call, call->in[i].dtype) : WHOLE;
        if (kind != WHOLE)
            narrow_row(rows->at, n, narrow_block(call->in[i].dtype), rows->at + kind * n);
    }
}

/* Rows of x are loaded once for all columns of the box. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    float *unpacked = scratch;
    for (int64_t t0 = box->lo[0]; t0 < box->hi[0]; t0 += TOKENS_AT_ONCE) {
        x_rows rows = {unpacked + call->in[W0].dims[1], box->hi[0] - t0};
        rows.n = rows.n < TOKENS_AT_ONCE ? rows.n : TOKENS_AT_ONCE;
        load_x(call, t0, &rows);
        for (int64_t column = box->lo[1]; column < box->hi[1]; column++)
            compute_column(call, column, t0, &rows, unpacked);
    }
}

static const op_operand in[] = {{"x", 0},
                                {"w0", 0},
                                {"w1", OP_OPTIONAL},
                                {"w2", OP_OPTIONAL},
                                {"b0", OP_OPTIONAL},
                                {"b1", OP_OPTIONAL},
                                {"b2", OP_OPTIONAL},
                                {"norm", OP_OPTIONAL},
                                {"residual", OP_OPTIONAL},
                                {"norm_bias", OP_OPTIONAL}};
static const op_operand out[] = {{"y", 0}};
static const op_attribute attributes[] = {
    SHAPE_REAL("eps", 1e-6), SHAPE_WORD("glu", ""),   SHAPE_WORD("activations", "f32"),
    SHAPE_WORD("act", ""),   SHAPE_REAL("factor", 1), SHAPE_INT("centred", 0)};

#define NARROW(tokens, dtype, rows, width)                                                         \
    {                                                                                              \
        "input %x : f32[" tokens ", " width "] live=tokens\nconst %w : " dtype "[" rows ", " width \
        "]\n%y = linear(%x, %w) {activations = \"i8\"}\n"                                          \
    }
#define PLAIN(tokens, dtype, rows, width)                                                          \
    {                                                                                              \
        "input %x : f32[" tokens ", " width "] live=tokens\nconst %w : " dtype "[" rows ", " width \
        "]\n%y = linear(%x, %w)\n"                                                                 \
    }
#define ACTIVATED(dtype, tokens, name)                                                     \
    {                                                                                      \
        "input %x : " dtype "[" tokens ", 72]\ninput %r : " dtype "[" tokens               \
        ", 45]\nconst %w : " dtype                                                         \
        "[45, 72]\nconst %b : f32[45]\n%y = linear(%x, %w, _, _, %b, _, _, _, %r) {act = " \
        "\"" name "\"}\n"                                                                  \
    }
/* Every dtype of a weight, with rows and tokens that are not whole vectors or tiles; then every
 * combination of operands. */
static const op_case cases[] = {
    PLAIN("1", "f32", "33", "320"),
    PLAIN("7", "f16", "33", "320"),
    PLAIN("17", "bf16", "33", "320"),
    PLAIN("1", "bf16", "1003", "65"),
    PLAIN("7", "q4_0", "33", "320"),
    PLAIN("1", "q4_1", "33", "576"),
    PLAIN("3", "q5_0", "33", "320"),
    PLAIN("3", "q5_1", "33", "320"),
    PLAIN("9", "q8_0", "33", "320"),
    PLAIN("3", "q2_k", "19", "768"),
    PLAIN("3", "q3_k", "19", "768"),
    PLAIN("3", "q4_k", "19", "768"),
    PLAIN("3", "q5_k", "19", "768"),
    PLAIN("7", "q6_k", "19", "768"),
    PLAIN("3", "iq4_nl", "33", "320"),
    PLAIN("7", "mxfp4", "33", "320"),
    PLAIN("5", "iq1_s", "19", "768"),
    PLAIN("7", "iq1_m", "19", "768"),
    PLAIN("9", "iq2_xxs", "19", "768"),
    PLAIN("17", "iq2_xs", "19", "768"),
    PLAIN("4", "iq2_s", "19", "768"),
    PLAIN("1", "iq3_xxs", "19", "768"),
    PLAIN("6", "iq3_s", "19", "768"),
    PLAIN("1", "iq4_xs", "19", "768"),
    PLAIN("2", "tq1_0", "19", "768"),
    PLAIN("3", "tq2_0", "19", "768"),
    {"input %x : f32[7, 320] live=tokens\ninput %r : f32[7, 320] live=tokens\nconst %w : q4_1[320, "
     "320]\nconst %b : "
     "f32[320]\n"
     "%y = linear(%x, %w, _, _, %b, _, _, _, %r)\n"},
    {"input %x : f32[5, 320] live=tokens\nconst %q : bf16[80, 320]\nconst %k : q8_0[16, "
     "320]\nconst %v : f32[16, 320]\n"
     "const %bq : bf16[80]\nconst %bk : f32[16]\nconst %bv : f16[16]\nconst %n : f32[320]\n"
     "%y = linear(%x, %q, %k, %v, %bq, %bk, %bv, %n) {eps = 1e-05}\n"},
    {"input %x : f32[7, 64] live=tokens\nconst %g : q4_0[48, 64]\nconst %u : q8_0[48, 64]\nconst "
     "%n : bf16[64]\n"
     "%y = linear(%x, %g, %u, _, _, _, _, %n) {glu = \"silu\"}\n"},
    {"input %x : bf16[4, 64] live=tokens\nconst %g : bf16[48, 64]\nconst %u : bf16[48, 64]\nconst "
     "%b : f32[48]\nconst "
     "%c : f32[48]\n"
     "%y = linear(%x, %g, %u, _, %b, %c) {glu = \"gelu\"}\n"},
    /* Many tokens: few rows and many, a residual, biases, a gate, columns that are a multiple of 8
     * alone. */
    {"input %x : bf16[33, 1000] live=tokens\ninput %r : bf16[33, 101] live=tokens\nconst %w : "
     "bf16[101, 1000]\n"
     "%y = linear(%x, %w, _, _, _, _, _, _, %r)\n"},
    {"input %x : bf16[100, 320] live=tokens\nconst %q : bf16[320, 320]\nconst %k : bf16[64, "
     "320]\nconst %v : bf16[64, "
     "320]\nconst %bq : bf16[320]\nconst %bv : f32[64]\nconst %n : bf16[320]\n"
     "%y = linear(%x, %q, %k, %v, %bq, _, %bv, %n) {eps = 1e-05}\n"},
    {"input %x : bf16[64, 192] live=tokens\nconst %g : bf16[1028, 192]\nconst %u : bf16[1028, "
     "192]\nconst %n : "
     "f32[192]\n%y = linear(%x, %g, %u, _, _, _, _, %n) {glu = \"silu\"}\n"},
    {"input %x : bf16[130, 8] live=tokens\nconst %w : bf16[19001, 8]\n%y = linear(%x, %w)\n"},
    ACTIVATED("bf16", "33", "relu"),
    ACTIVATED("bf16", "70", "gelu"),
    ACTIVATED("f32", "5", "silu"),
    ACTIVATED("f16", "21", "gelu_tanh"),
    ACTIVATED("bf16", "77", "quick_gelu"),
    {"input %x : bf16[70, 2056] live=tokens\nconst %w : bf16[60, 2056]\n%y = linear(%x, %w)\n"},
    {"input %x : bf16[130, 40] live=tokens\nconst %g : bf16[2500, 40]\nconst %u : bf16[2500, "
     "40]\nconst %b : "
     "f32[2500]\n%y = linear(%x, %g, %u, _, _, %b) {glu = \"gelu_tanh\"}\n"},
    /* Blocks that a GPU keeps: few tokens and many, each number of bits and kind of scales, several
     * formats, a gate, a norm. */
    {"input %x : bf16[1, 2304] live=tokens\ninput %r : bf16[1, 203] live=tokens\nconst %w : "
     "q4_k[203, 2304]\n%y = linear(%x, %w, _, _, _, _, _, _, %r)\n"},
    {"input %x : bf16[5, 512] live=tokens\nconst %q : q4_k[72, 512]\nconst %k : q5_k[24, "
     "512]\nconst %v : q6_k[24, 512]\nconst %bk : f32[24]\nconst %n : f32[512]\n"
     "%y = linear(%x, %q, %k, %v, _, %bk, _, %n)\n"},
    {"input %x : bf16[50, 288] live=tokens\nconst %g : q4_0[61, 288]\nconst %u : q4_0[61, "
     "288]\nconst %n : bf16[288]\n%y = linear(%x, %g, %u, _, _, _, _, %n) {glu = \"silu\"}\n"},
    {"input %x : bf16[16, 5152] live=tokens\nconst %w : q8_0[77, 5152]\n%y = linear(%x, %w)\n"},
    {"input %x : bf16[9, 96] live=tokens\nconst %q : q4_1[33, 96]\nconst %k : q5_0[33, "
     "96]\nconst %v : q5_1[33, 96]\n%y = linear(%x, %q, %k, %v)\n"},
    NARROW("1", "q4_0", "33", "320"),
    NARROW("3", "q4_1", "33", "576"),
    NARROW("17", "q5_0", "33", "320"),
    NARROW("2", "q5_1", "33", "320"),
    NARROW("9", "q8_0", "33", "320"),
    NARROW("1", "q2_k", "19", "768"),
    NARROW("7", "q3_k", "19", "768"),
    NARROW("3", "q4_k", "19", "768"),
    NARROW("5", "q5_k", "19", "768"),
    NARROW("7", "q6_k", "19", "768"),
    NARROW("1", "iq4_nl", "33", "320"),
    NARROW("9", "mxfp4", "33", "320"),
    NARROW("1", "iq1_s", "19", "768"),
    NARROW("2", "iq1_m", "19", "768"),
    NARROW("3", "iq2_xxs", "19", "768"),
    NARROW("5", "iq2_xs", "19", "768"),
    NARROW("7", "iq2_s", "19", "768"),
    NARROW("9", "iq3_xxs", "19", "768"),
    NARROW("17", "iq3_s", "19", "768"),
    NARROW("4", "iq4_xs", "19", "768"),
    NARROW("1", "tq1_0", "19", "768"),
    NARROW("6", "tq2_0", "19", "768"),
    {"input %x : bf16[5, 256] live=tokens\nconst %q : bf16[80, 256]\nconst %k : q8_0[16, "
     "256]\nconst %v : q6_k[16, "
     "256]\nconst %bk : f32[16]\nconst %n : f32[256]\n"
     "%y = linear(%x, %q, %k, %v, _, %bk, _, %n) {eps = 1e-05, activations = \"i8\"}\n"},
    {"input %x : f32[7, 512] live=tokens\nconst %g : q4_k[48, 512]\nconst %u : q6_k[48, "
     "512]\nconst %n : f32[512]\n"
     "%y = linear(%x, %g, %u, _, _, _, _, %n) {glu = \"silu\", activations = \"i8\"}\n"},
    {"input %x : f32[2, 64] live=rows\nconst %g : f16[48, 64]\nconst %u : f16[48, 64]\n%y = "
     "linear(%x, %g, %u) {glu = "
     "\"gelu_tanh\"}\n"},
    /* a factor: of few tokens and many, with what else may surround a product */
    {"input %x : bf16[3, 320] live=tokens\ninput %r : bf16[3, 101] live=tokens\nconst %w : "
     "bf16[101, "
     "320]\n%y = linear(%x, %w, _, _, _, _, _, _, %r) {factor = 0.22}\n"},
    {"input %x : f32[70, 72] live=tokens\nconst %w : f32[45, 72]\nconst %b : f32[45]\nconst %n : "
     "f32[72]\n%y = linear(%x, %w, _, _, %b, _, _, %n) {act = \"silu\", factor = 3.5}\n"},
    /* a layer_norm before it, of few rows and many, with what else may surround a product */
    {"input %x : f32[5, 72]\nconst %w : f32[45, 72]\nconst %n : f32[72]\nconst %m : f32[72]\n"
     "%y = linear(%x, %w, _, _, _, _, _, %n, _, %m) {centred = 1}\n"},
    {"input %x : bf16[33, 200]\nconst %w : bf16[64, 200]\nconst %b : bf16[64]\nconst %n : "
     "bf16[200]\nconst %m : bf16[200]\n%y = linear(%x, %w, _, _, %b, _, _, %n, _, %m) {eps = "
     "1e-05, act = \"gelu\", centred = 1}\n"},
    {"input %x : bf16[70, 72]\ninput %r : bf16[70, 45]\nconst %w : bf16[45, 72]\nconst %n : "
     "f32[72]\n%y = linear(%x, %w, _, _, _, _, _, %n, %r) {centred = 1}\n"},
    {"input %x : bf16[200, 264] live=tokens\nconst %q : bf16[64, 264]\nconst %k : bf16[64, "
     "264]\nconst %v : bf16[72, 264]\nconst %b : f32[64]\nconst %n : bf16[264]\nconst %m : "
     "bf16[264]\n%y = linear(%x, %q, %k, %v, _, %b, _, %n, _, %m) {centred = 1}\n"},
    {"input %x : bf16[150, 128]\nconst %g : bf16[100, 128]\nconst %u : bf16[100, 128]\nconst %b "
     ": bf16[100]\nconst %n : bf16[128]\nconst %m : f32[128]\n%y = linear(%x, %g, %u, _, %b, _, "
     "_, %n, _, %m) {glu = \"gelu\", centred = 1}\n"},
};

const op_def op_linear = {
    .name = "linear",
    .summary = "x W^T + b for one to three weights, with optional norm before, gating and "
               "residual after",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .split = split,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
