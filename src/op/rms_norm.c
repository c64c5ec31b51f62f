/* rms_norm.c - root-mean-square normalisation over the last axis, and a residual added to it or a
 * gate that multiplies it.
 * x [.., N], weight [N] or absent, residual or gate like x or absent -> x's shape and dtype.
 *
 * y[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i] + residual[i].  With a gate, which linear
 * attention ends with, y[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i] * silu(gate[i]); there is a
 * residual or a gate, not both.  The sum of squares is one reduction over the row, in double and
 * from the first entry to the last (norm.h), so a row is never cut.  Residual and gate are applied
 * in fp32, before the one rounding.  Cost: two passes over the row.
 */
#include "op/activate.h"
#include "op/norm.h"
#include "op/shape.h"
#include "op/walk.h"

/* Inputs, by index. */
enum { X, WEIGHT, RESIDUAL, GATE };

/* The axis of a vector is the one that is summed, so it cannot be partly alive. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X);
    TRY(shape_expect_dtype(cx, g, op, X, SHAPE_FLOAT));
    CHECK(cx, x->rank > 0, MPK_ESHAPE, "rms_norm: input x (%%%.*s) is a scalar", STR_ARG(x->name));
    TRY(shape_expect(cx, g, op, WEIGHT, SHAPE_FLOAT, 1, &x->dims[x->rank - 1]));
    CHECK(cx, op->attributes[0].f >= 0, MPK_EARG, "rms_norm: eps is %g, expected 0 or more",
          op->attributes[0].f);
    CHECK(cx, x->rank > 1 || x->live == IR_ALL, MPK_ESHAPE,
          "rms_norm: the normalised axis may not be partly alive");
    CHECK(cx, !shape_input(g, op, RESIDUAL) || !shape_input(g, op, GATE), MPK_ESHAPE,
          "rms_norm: there is a residual and a gate, and only one of them is possible");
    for (uint32_t i = RESIDUAL; i <= GATE; i++) {
        TRY(shape_expect(cx, g, op, i, 1U << x->dtype, x->rank, x->dims));
        TRY(shape_expect_live(cx, g, op, i, x->live));
    }
    shape_like(x, out);
    return MPK_OK;
}

/* The axes between the first and the last, such as heads: their rows are independent of each
 * other. */
static bool split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    out->in[X] = out->in[RESIDUAL] = out->in[GATE] = out->out[0] = (int)way + 1;
    return way + 2 < shape_input(g, op, X)->rank;
}

/* Rows of x give rows of y, and so do rows of the residual and of the gate. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    shape_reads_rows(g, op, input == WEIGHT ? WEIGHT : X, box, read);
}

/* Add the residual's row at this place to a row, or multiply it by the activated gate's. */
static void end_row(const op_call *call, const int64_t *at, int64_t n, float *row)
{
    const bool gated = call->in[GATE].data != NULL;
    const op_view *v = &call->in[gated ? GATE : RESIDUAL];
    const int64_t first = v->data ? walk_offset(v, at) : 0;
    for (int64_t i = 0; v->data && i < n; i++) {
        const float beside = op_load(v, first + i * v->stride[v->rank - 1]);
        row[i] = gated ? row[i] * activate_silu(beside) : row[i] + beside;
    }
}

/* A row is loaded as f32, normalised in place, and rounded when stored. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *x = &call->in[X], *y = &call->out[0];
    float *row = scratch;
    int64_t at[IR_MAX_RANK], n = x->dims[x->rank - 1];
    memcpy(at, box->lo, sizeof at);
    do {
        at[x->rank - 1] = 0;
        walk_load_row(x, walk_offset(x, at), 0, n, row);
        norm_row(row, n, &call->in[WEIGHT], call->attributes[0].f, row);
        end_row(call, at, n, row);
        walk_store_row(y, walk_offset(y, at), 0, n, row);
    } while (walk_next(box, x->rank - 1, at));
}

static const op_operand in[] = {{"x", 0},
                                {"weight", OP_OPTIONAL},
                                {"residual", OP_OPTIONAL},
                                {"gate", OP_OPTIONAL}},
                        out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_REAL("eps", 1e-6)};
static const op_case cases[] = {
    {"input %x : f32[1, 576] live=tokens\nconst %w : f32[576]\n%y = rms_norm(%x, %w) {eps = "
     "1e-05}\n"},
    {"input %x : f32[7, 320] live=tokens\nconst %w : bf16[320]\n%y = rms_norm(%x, %w)\n"},
    {"input %x : bf16[7, 5, 48] live=tokens\nconst %w : f16[48]\n%y = rms_norm(%x, %w)\n"},
    {"input %x : f32[3, 1003]\n%y = rms_norm(%x, _)\n"},
    {"input %x : bf16[41, 520]\nconst %w : bf16[520]\n%y = rms_norm(%x, %w)\n"},
    {"input %x : f32[7, 320] live=tokens\nconst %w : f32[320]\ninput %r : f32[7, 320] "
     "live=tokens\n%y = rms_norm(%x, %w, %r)\n"},
    {"input %x : bf16[5, 2304] live=tokens\nconst %w : bf16[2304]\ninput %r : bf16[5, 2304] "
     "live=tokens\n%y = rms_norm(%x, %w, %r)\n"},
    {"input %x : f16[3, 2, 41]\ninput %r : f16[3, 2, 41]\n%y = rms_norm(%x, _, %r)\n"},
    {"input %x : bf16[9, 5120] live=tokens\nconst %w : f32[5120]\n%y = rms_norm(%x, %w)\n"},
    {"input %x : bf16[5, 3, 128] live=tokens\nconst %w : bf16[128]\ninput %z : bf16[5, 520] "
     "live=tokens\n%s = slice(%z) {starts = [0, 72], stops = [5, 456]}\n"
     "%g = reshape(%s) {shape = [5, 3, 128]}\n%y = rms_norm(%x, %w, _, %g)\n"},
    {"input %x : f32[3, 2, 41]\ninput %z : f32[3, 87]\n%s = slice(%z) {starts = [0, 3], stops = "
     "[3, 85]}\n%g = reshape(%s) {shape = [3, 2, 41]}\n%y = rms_norm(%x, _, _, %g)\n"},
    {"input %x : f16[4, 2048]\nconst %w : f16[2048]\ninput %g : f16[4, 2048]\n%y = rms_norm(%x, "
     "%w, _, %g)\n"},
};

const op_def op_rms_norm = {
    .name = "rms_norm",
    .summary = "x / sqrt(mean(x^2) + eps) * weight over the last axis, plus a residual or times "
               "silu(gate)",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_rows,
    .reads = reads,
    .split = split,
    .scratch_bytes = shape_scratch_row,
    .ref = ref,
    OP_CASES(cases),
};
