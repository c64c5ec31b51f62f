/* sum_linear.c - products of activations that several peers have made a term of each (paper §6.5):
 * add_parts and the linear after it, as one operator.
 *
 * x, terms ... [T, D], of one dtype; w0 [F0, D], w1, w2, biases, norm [D] -> y [T, F], sum [T, D].
 * sum is what add_parts gives of x and the terms, in their order; y is what linear gives of sum
 * with the same weights, biases, norm and gate.  So a product of few tokens reads the terms as they
 * arrive from the peers, and nothing stands between two products but one trip over the link; the
 * sum, which later operators need, is written beside it.
 *
 *   %y, %sum = sum_linear(%term0, %gate, %up, _, _, _, _, %norm, %term1, %residual) {glu = "silu"}
 *
 * Every task adds all of the rows of its box; of sum it writes the columns that stand to those of
 * sum as the columns of its box to those of y, in pieces of eight.  Made by pass fuse_ops (rule
 * terms).  Cost: 2 D operations an element of y, and a row's terms for every task.
 */
#include "op/activate.h"
#include "op/dot.h"
#include "op/linear.h"
#include "op/norm.h"
#include "op/walk.h"
#include "shape/linear_stream_shape.h"

/* Inputs (as op/linear.h), results and attributes, by index; columns of y that a task has at
 * least. */
enum { X, W0, W1, W2, B0, B1, B2, NORM, TERMS };
enum { Y, SUM };
enum { EPS, GLU };
enum { TILE = 8 };

/* Terms agree in everything but the peer that holds them. */
static mpk_status check_terms(mpk_context *cx, const ir_graph *g, const ir_op *op)
{
    const ir_tensor *x = shape_input(g, op, X);
    for (uint32_t i = TERMS; i < op->n_in; i++) {
        TRY(shape_expect(cx, g, op, i, 1u << x->dtype, 2, x->dims));
        TRY(shape_expect_live(cx, g, op, i, x->live));
    }
    return MPK_OK;
}

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X);
    int64_t columns = 0;
    TRY(linear_infer(cx, g, op, &columns));
    shape_like(x, &out[Y]);
    shape_like(x, &out[SUM]);
    out[Y].dims[1] = columns;
    TRY(shape_expect(cx, g, op, NORM, SHAPE_FLOAT, 1, &x->dims[1]));
    return check_terms(cx, g, op);
}

/* As those of linear, of few tokens. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g, (void)op;
    axes[0] = (op_axis){.grain = 1, .tile = 128, .together = 128};
    axes[1] = (op_axis){.grain = 1, .fastest = TILE, .tile = TILE};
}

static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == X || input >= TERMS) {
        read->lo[0] = box->lo[0];
        read->hi[0] = box->hi[0];
    } else if (input != NORM) {
        linear_weight_rows(g, op, input < B0 ? input - W0 : input - B0, box, &read->lo[0],
                           &read->hi[0]);
    }
}

static void writes(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written)
{
    const int64_t columns = g->tensors.at[op->out[Y]].dims[1],
                  width = g->tensors.at[op->out[output]].dims[1];
    *written = *box;
    written->lo[1] = SUM_COLUMN(box->lo[1], columns, width);
    written->hi[1] = SUM_COLUMN(box->hi[1], columns, width);
}

/* Scratch: a row of a weight, a row of x, and a row of a term. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    return (size_t)shape_input(g, op, X)->dims[1] * 3 * sizeof(float);
}

/* The sum of row `row`, rounded as it is stored. */
static void load_sum(const op_call *call, int64_t row, float *sum, float *term)
{
    const int64_t width = call->in[X].dims[1];
    walk_load_row(&call->in[X], row * call->in[X].stride[0], 0, width, sum);
    for (uint32_t k = TERMS; k < call->n_in; k++) {
        walk_load_row(&call->in[k], row * call->in[k].stride[0], 0, width, term);
        for (int64_t i = 0; i < width; i++)
            sum[i] += term[i];
    }
    for (int64_t i = 0; i < width; i++)
        sum[i] = walk_round(call->out[SUM].dtype, sum[i]);
}

/* x . w[row] + b[row] of weight i; unpacked: room for a row of w. */
static float multiply(const op_call *call, uint32_t i, int64_t row, const float *x, float *unpacked)
{
    const op_view *w = &call->in[W0 + i], *b = &call->in[B0 + i];
    walk_load_row(w, row * w->stride[0], 0, w->dims[1], unpacked);
    return dot_rows(x, unpacked, w->dims[1]) + (b->data ? op_load(b, row * b->stride[0]) : 0);
}

/* One column of y: columns of several weights follow each other; with glu, column c is row c of
 * both. */
static float compute_column(const op_call *call, int64_t column, const float *x, float *unpacked)
{
    const str glu = call->attributes[GLU].s;
    uint32_t i = 0;
    if (glu.n)
        return activate_named(glu, multiply(call, 0, column, x, unpacked)) *
               multiply(call, 1, column, x, unpacked);
    for (; column >= call->in[W0 + i].dims[0]; i++)
        column -= call->in[W0 + i].dims[0];
    return multiply(call, i, column, x, unpacked);
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *y = &call->out[Y], *sum = &call->out[SUM];
    const int64_t width = call->in[X].dims[1], lo = SUM_COLUMN(box->lo[1], y->dims[1], width),
                  hi = SUM_COLUMN(box->hi[1], y->dims[1], width);
    float *unpacked = scratch, *x = unpacked + width, *term = x + width;
    for (int64_t row = box->lo[0]; row < box->hi[0]; row++) {
        load_sum(call, row, x, term);
        walk_store_row(sum, row * sum->stride[0] + lo * sum->stride[1], 0, hi - lo, x + lo);
        if (call->in[NORM].data)
            norm_row(x, width, &call->in[NORM], call->attributes[EPS].f, x);
        for (int64_t column = box->lo[1]; column < box->hi[1]; column++)
            op_store(y, row * y->stride[0] + column * y->stride[1],
                     compute_column(call, column, x, unpacked));
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
                                {"terms", OP_VARIADIC}};
static const op_operand out[] = {{"y", 0}, {"sum", 0}};
static const op_attribute attributes[] = {SHAPE_REAL("eps", 1e-6), SHAPE_WORD("glu", "")};

#define TWO(dtype, tokens, width)                                                           \
    "input %a : " dtype "[" tokens ", " width "] live=tokens\ninput %b : " dtype "[" tokens \
    ", " width "] live=tokens\n"
#define THREE(dtype, tokens, width) \
    TWO(dtype, tokens, width) "input %r : " dtype "[" tokens ", " width "] live=tokens\n"
/* One weight and several, a gate, a norm, biases; fewer pieces of the sum than columns of y and
 * more; widths that are no multiple of a page of weights, of a block, of a piece. */
/* clang-format off */
static const op_case cases[] = {
    {TWO("bf16", "1", "1024") "const %w : bf16[96, 1024]\nconst %n : bf16[1024]\n"
     "%y, %sum = sum_linear(%a, %w, _, _, _, _, _, %n, %b)\n"},
    {THREE("bf16", "1", "4096") "const %g : bf16[40, 4096]\nconst %u : bf16[40, 4096]\n"
     "const %n : bf16[4096]\n"
     "%y, %sum = sum_linear(%a, %g, %u, _, _, _, _, %n, %b, %r) {glu = \"silu\"}\n"},
    {THREE("bf16", "2", "2304") "const %q : bf16[72, 2304]\nconst %k : bf16[24, 2304]\n"
     "const %v : bf16[24, 2304]\nconst %bq : bf16[72]\nconst %bv : f32[24]\n"
     "const %n : f32[2304]\n"
     "%y, %sum = sum_linear(%a, %q, %k, %v, %bq, _, %bv, %n, %b, %r) {eps = 1e-05}\n"},
    {THREE("bf16", "8", "200") "const %w : bf16[1000, 200]\n"
     "%y, %sum = sum_linear(%a, %w, _, _, _, _, _, _, %b, %r)\n"},
    {THREE("f16", "3", "72") "input %s : f16[3, 72] live=tokens\nconst %g : f16[33, 72]\n"
     "const %u : f16[33, 72]\n"
     "%y, %sum = sum_linear(%a, %g, %u, _, _, _, _, _, %b, %r, %s) {glu = \"gelu\"}\n"},
    {TWO("f32", "17", "65") "const %w : f32[9, 65]\nconst %n : f32[65]\n"
     "%y, %sum = sum_linear(%a, %w, _, _, _, _, _, %n, %b)\n"},
    {TWO("bf16", "4", "512") "const %w : q4_k[33, 512]\nconst %n : f32[512]\n"
     "%y, %sum = sum_linear(%a, %w, _, _, _, _, _, %n, %b)\n"},
};
/* clang-format on */

const op_def op_sum_linear = {
    .name = "sum_linear",
    .summary = "the sum of what peers have computed of one tensor, and a product with up to three "
               "matrices",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_GATHERS,
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .writes = writes,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
