/* expert_linear.c - products of activations with the weights of the experts that each token goes
 * to.
 *
 * x [T, D] or [T, N, D], ids i32[T, N], w0 [E, F, D], w1 as w0, scale f32[T, N], residual [T, F],
 * norm [D], b0, b1 [E, F].  Pair (t, j) is activation(w0[e] x + b0[e]) * (w1[e] x + b1[e]) with e =
 * ids[t, j], or without glu w0[e] x + b0[e]; x is row t, or with three axes row (t, j).  The glu
 * "swiglu_oai" has the form of activate_swiglu_oai, with the attribute limit. norm: each row of x
 * is first normalised as rms_norm does.  Without scale the result is the pairs, [T, N, F]; with it
 * [T, F]: the pairs of a token times their scales, added in rising j, and the residual.  A pair
 * whose id names no expert is zeros. activations: "i8" multiplies weights in block formats by x in
 * 8-bit blocks (narrow.h).
 *
 *   %h = expert_linear(%x, %ids, %gate, %up) {glu = "silu"}              [T, N, F], one row a pair
 *   %y = expert_linear(%h, %ids, %down, _, %scale, %residual)            [T, D], pairs summed up
 *
 * Which expert a pair needs is known only when ids are there.  Tasks are static all the same: a
 * task is some columns of the result for all pairs of its tokens, so that it has the same share
 * of every expert, whichever are active; or, where a target's body shares the work at run time,
 * that share of all (OP_SHARES).  Reference code takes pair by pair.  Cost: 2 D operations a
 * pair and column, twice that with glu.
 */
#include <math.h>

#include "op/activate.h"
#include "op/dot.h"
#include "op/experts.h"
#include "op/fill.h"
#include "op/narrow.h"
#include "op/norm.h"

/* Inputs and attributes, by index. */
enum { X, IDS, W0, W1, SCALE, RESIDUAL, NORM, B0, B1 };
enum { GLU, EPS, ACTIVATIONS, LIMIT };

/* Inputs and attributes that only make sense together. */
static mpk_status check_glu(mpk_context *cx, const ir_graph *g, const ir_op *op)
{
    str glu = op->attributes[GLU].s;
    bool limited = str_is(glu, "swiglu_oai");
    CHECK(cx,
          !glu.n || str_is(glu, "silu") || str_is(glu, "gelu") || str_is(glu, "gelu_tanh") ||
              limited,
          MPK_EUNSUPPORTED,
          "expert_linear: glu \"%.*s\" is not one of \"\", silu, gelu, gelu_tanh, swiglu_oai",
          STR_ARG(glu));
    CHECK(cx, limited == (op->attributes[LIMIT].f > 0), MPK_EARG,
          "expert_linear: limit is %g; swiglu_oai needs one above 0, others have none",
          op->attributes[LIMIT].f);
    CHECK(cx, !glu.n == !shape_input(g, op, W1), MPK_ESHAPE,
          "expert_linear: glu and the input w1 need each other");
    CHECK(cx, shape_input(g, op, W1) || !shape_input(g, op, B1), MPK_ESHAPE,
          "expert_linear: the bias b1 is added to products with the input w1, which is missing");
    CHECK(cx, shape_input(g, op, SCALE) || !shape_input(g, op, RESIDUAL), MPK_ESHAPE,
          "expert_linear: a residual is added to a sum, which needs the input scale");
    return narrow_check(cx, g, op, op->attributes[ACTIVATIONS].s, W0, W1);
}

/* With scale the experts' results of a token are summed, and the axis of pairs goes. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *ids = shape_input(g, op, IDS),
                    *w = shape_input(g, op, W0);
    TRY(shape_expect_dtype(cx, g, op, X, SHAPE_FLOAT));
    CHECK(cx, x->rank == 2 || x->rank == 3, MPK_ESHAPE,
          "expert_linear: input x (%%%.*s) has %u axes, expected 2 or 3", STR_ARG(x->name),
          x->rank);
    TRY(shape_expect(cx, g, op, IDS, SHAPE_I32, 2,
                     (int64_t[]){x->dims[0], x->rank == 3 ? x->dims[1] : SHAPE_FREE}));
    TRY(shape_expect_live(cx, g, op, IDS, x->live));
    const bool plain = !op->attributes[GLU].s.n && !shape_input(g, op, SCALE);
    const int most = plain ? EXPERTS_MOST_PLAIN : EXPERTS_MOST_PER_TOKEN;
    CHECK(cx, ids->dims[1] <= most, MPK_ESHAPE, "expert_linear: %lld experts a token, at most %d",
          (long long)ids->dims[1], most);
    TRY(shape_expect(cx, g, op, W0, SHAPE_WEIGHT, 3,
                     (int64_t[]){SHAPE_FREE, SHAPE_FREE, x->dims[x->rank - 1]}));
    TRY(shape_expect(cx, g, op, W1, SHAPE_WEIGHT, 3, w->dims));
    TRY(shape_expect(cx, g, op, SCALE, 1 << IR_F32, 2, ids->dims));
    TRY(shape_expect_live(cx, g, op, SCALE, x->live));
    TRY(shape_expect(cx, g, op, NORM, SHAPE_FLOAT, 1, &x->dims[x->rank - 1]));
    TRY(shape_expect(cx, g, op, B0, SHAPE_FLOAT, 2, w->dims));
    TRY(shape_expect(cx, g, op, B1, SHAPE_FLOAT, 2, w->dims));
    TRY(check_glu(cx, g, op));
    bool sums = shape_input(g, op, SCALE);
    out->dtype = x->dtype;
    out->live = x->live;
    out->rank = sums ? 2 : 3;
    out->dims[0] = x->dims[0];
    out->dims[1] = sums ? w->dims[1] : ids->dims[1];
    out->dims[2] = sums ? 0 : w->dims[1];
    TRY(shape_expect(cx, g, op, RESIDUAL, SHAPE_FLOAT, 2, out->dims));
    return shape_expect_live(cx, g, op, RESIDUAL, x->live);
}

/* Columns are cut as those of linear.  The pairs of a token stay together, and with whole tiles so
 * do all tokens, since an expert's weights are read once for them.  A tile is 8 packed rows: 8
 * columns, or 4 of a gated product; of short rows 16 (experts_sides).  Where tokens have an even
 * number of experts, 2 columns of the box stand for the 4 columns of 8 packed rows in every other
 * chunk of pairs, or 1 for those in every fourth (experts_rounds; docs/gpu.md, "Experts"). */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const int64_t *w = shape_input(g, op, W0)->dims;
    int64_t tile = 8 * experts_sides(w[1], w[2]);
    if (shape_input(g, op, W1))
        tile = 4 / experts_rounds(shape_input(g, op, IDS)->dims[1], w[1]);
    axes[0] = (op_axis){.grain = 1, .tile = g->tensors.at[op->out[0]].dims[0]};
    axes[g->tensors.at[op->out[0]].rank - 1] = (op_axis){.grain = 1, .fastest = 8, .tile = tile};
}

/* The rows that the box's columns need, of every expert, since any of them may be active. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    uint32_t columns = g->tensors.at[op->out[0]].rank - 1;
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == NORM)
        return;
    if (input == W0 || input == W1 || input == B0 || input == B1) {
        read->lo[1] = box->lo[columns];
        read->hi[1] = box->hi[columns];
        return;
    }
    read->lo[0] = box->lo[0];
    read->hi[0] = box->hi[0];
    if (input == RESIDUAL) {
        read->lo[1] = box->lo[columns];
        read->hi[1] = box->hi[columns];
    }
}

/* Is x what an expert_linear with the same ids has left for each pair?  Then the peer that owns a
 * pair's expert has the pair's row, and the others have zeros. */
static bool follows_pairs(const ir_graph *g, const ir_op *op)
{
    const ir_op_id producer = shape_input(g, op, X)->producer;
    return producer != IR_NONE && g->ops.at[producer].def == op->def &&
           !shape_input(g, &g->ops.at[producer], SCALE) &&
           g->ops.at[producer].in[IDS] == op->in[IDS];
}

/* Each peer has some experts whole.  A pair is computed by the owner of its expert, and is zeros
 * with all others: that adds up. */
static void split_experts(const ir_graph *g, const ir_op *op, op_split *out)
{
    out->in[X] = follows_pairs(g, op) ? OP_SUM : OP_WHOLE;
    out->in[IDS] = OP_IDS;
    out->in[W0] = out->in[W1] = out->in[B0] = out->in[B1] = 0;
    out->in[RESIDUAL] = OP_FIRST;
    out->out[0] = OP_SUM;
}

/* As linear: cut columns, which every expert has; or, if there is a sum over experts to add to,
 * elements of the rows.  Else deal out the experts. */
static bool split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    int last = (int)g->tensors.at[op->out[0]].rank - 1;
    bool inner = shape_input(g, op, SCALE) && !op->attributes[GLU].s.n && !shape_input(g, op, NORM);
    if (way == 0) {
        out->in[W0] = out->in[W1] = out->in[B0] = out->in[B1] = 1;
        out->in[RESIDUAL] = out->out[0] = last;
        return true;
    }
    if (way == 1 && inner) {
        out->in[X] = (int)shape_input(g, op, X)->rank - 1;
        out->in[W0] = 2;
        out->in[RESIDUAL] = out->in[B0] = OP_FIRST;
        out->out[0] = OP_SUM;
        return true;
    }
    split_experts(g, op, out);
    return way == 1u + inner;
}

/* Scratch: a row of x, the same in 8-bit blocks, a row of a weight, the columns of a token. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    uint32_t columns = g->tensors.at[op->out[0]].rank - 1;
    return (size_t)(3 * shape_input(g, op, W0)->dims[2] + box->hi[columns] - box->lo[columns]) *
           sizeof(float);
}

/* w[expert, row] . x.  room: two rows, of x in 8-bit blocks and of w unpacked. */
static float multiply_row(const op_call *call, const op_view *w, int64_t expert, int64_t row,
                          const float *x, float *room)
{
    int64_t width = w->dims[2],
            block = narrow_is_asked(call->attributes[ACTIVATIONS].s) ? narrow_block(w->dtype) : 0;
    float *unpacked = room + width;
    walk_load_row(w, expert * w->stride[0] + row * w->stride[1], 0, width, unpacked);
    if (block)
        narrow_row(x, width, block, room);
    return dot_rows(block ? room : x, unpacked, width);
}

/* An expert's bias of a column; 0: the operator has none. */
static float bias_of(const op_view *b, int64_t expert, int64_t column)
{
    return b->data ? op_load(b, expert * b->stride[0] + column * b->stride[1]) : 0;
}

/* One column of a pair; zero for no expert. */
static float compute_pair(const op_call *call, int64_t expert, int64_t column, const float *x,
                          float *room)
{
    str glu = call->attributes[GLU].s;
    if (expert < 0)
        return 0;
    float y = multiply_row(call, &call->in[W0], expert, column, x, room) +
              bias_of(&call->in[B0], expert, column);
    if (!glu.n)
        return y;
    float up = multiply_row(call, &call->in[W1], expert, column, x, room) +
               bias_of(&call->in[B1], expert, column);
    return str_is(glu, "swiglu_oai") ? activate_swiglu_oai(y, up, (float)call->attributes[LIMIT].f)
                                     : activate_named(glu, y) * up;
}

/* The row of x of pair (t, j) as f32, normalised. */
static void load_x(const op_call *call, int64_t t, int64_t j, float *row)
{
    const op_view *x = &call->in[X];
    int64_t width = call->in[W0].dims[2];
    walk_load_row(x, t * x->stride[0] + (x->rank == 3 ? j * x->stride[1] : 0), 0, width, row);
    if (call->in[NORM].data)
        norm_row(row, width, &call->in[NORM], call->attributes[EPS].f, row);
}

/* Compute pair (t, j), columns lo .. hi - 1: stored in the result, or times its scale added to
 * sums. */
static void run_pair(const op_call *call, int64_t t, int64_t j, int64_t lo, int64_t hi,
                     float *scratch, float *sums)
{
    const op_view *w = &call->in[W0], *scale = &call->in[SCALE], *out = &call->out[0];
    int64_t expert = experts_of_pair(&call->in[IDS], t, j, w->dims[0]);
    load_x(call, t, j, scratch);
    for (int64_t column = lo; column < hi; column++) {
        float y = compute_pair(call, expert, column, scratch, scratch + w->dims[2]);
        if (!scale->data)
            op_store(out, t * out->stride[0] + j * out->stride[1] + column * out->stride[2], y);
        else if (expert >= 0)
            sums[column - lo] += op_load(scale, t * scale->stride[0] + j * scale->stride[1]) * y;
    }
}

/* Sums are kept in fp32 until all experts of a token have been added. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *residual = &call->in[RESIDUAL], *out = &call->out[0];
    int64_t lo = box->lo[out->rank - 1], hi = box->hi[out->rank - 1];
    float *sums = (float *)scratch + 3 * call->in[W0].dims[2];
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
        memset(sums, 0, (size_t)(hi - lo) * sizeof *sums);
        for (int64_t j = 0; j < call->in[IDS].dims[1]; j++)
            run_pair(call, t, j, lo, hi, scratch, sums);
        for (int64_t column = lo; call->in[SCALE].data && column < hi; column++) {
            int64_t at[2] = {t, column};
            float rest = residual->data ? op_load(residual, walk_offset(residual, at)) : 0;
            op_store(out, walk_offset(out, at), sums[column - lo] + rest);
        }
    }
}

/* Ids, some of which name no expert.  A token's scales have one sign: several of one expert would
 * else cancel, and leave a result of nothing but rounding. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    const ir_tensor *t = shape_input(g, op, input);
    float *scale = data;
    if (input == IDS)
        fill_indices(t, shape_input(g, op, W0)->dims[0], seed, data);
    for (int64_t i = 0; input == SCALE && i < ir_elements(t); i++)
        scale[i] = copysignf(scale[i], scale[i / t->dims[1] * t->dims[1]]);
}

static const op_operand in[] = {{"x", 0},
                                {"ids", 0},
                                {"w0", 0},
                                {"w1", OP_OPTIONAL},
                                {"scale", OP_OPTIONAL},
                                {"residual", OP_OPTIONAL},
                                {"norm", OP_OPTIONAL},
                                {"b0", OP_OPTIONAL},
                                {"b1", OP_OPTIONAL}};
static const op_operand out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_WORD("glu", ""), SHAPE_REAL("eps", 1e-6),
                                          SHAPE_WORD("activations", "f32"), SHAPE_REAL("limit", 0)};

#define X_AND_IDS(tokens, dtype, n, width)                                                   \
    "input %x : " dtype "[" tokens ", " width "] live=tokens\ninput %i : i32[" tokens ", " n \
    "] live=tokens\n"
#define GATED(tokens, dtype, n, experts, rows, width, weights)                          \
    {                                                                                   \
        X_AND_IDS(tokens, dtype, n, width)                                              \
        "const %g : " weights "[" experts ", " rows ", " width "]\nconst %u : " weights \
        "[" experts ", " rows ", " width                                                \
        "]\n%y = expert_linear(%x, %i, %g, %u) {glu = \"silu\"}\n"                      \
    }
#define SUMMED(tokens, dtype, n, experts, rows, width, weights)                                    \
    {                                                                                              \
        "input %x : " dtype "[" tokens ", " n ", " width "] live=tokens\ninput %i : i32[" tokens   \
        ", " n "] live=tokens\nconst %w : " weights "[" experts ", " rows ", " width               \
        "]\ninput %s : f32[" tokens ", " n "] live=tokens\ninput %r : " dtype "[" tokens ", " rows \
        "] live=tokens\n%y = expert_linear(%x, %i, %w, _, %s, %r)\n"                               \
    }
#define NORMED(tokens, dtype, n, experts, rows, width, weights, norm)                     \
    {                                                                                     \
        X_AND_IDS(tokens, dtype, n, width)                                                \
        "const %g : " weights "[" experts ", " rows ", " width "]\nconst %u : " weights   \
        "[" experts ", " rows ", " width "]\nconst %n : " norm "[" width                  \
        "]\n%y = expert_linear(%x, %i, %g, %u, _, _, %n) {glu = \"silu\", eps = 1e-05}\n" \
    }
#define BIASED(tokens, dtype, n, experts, rows, width, weights, bias)                              \
    {                                                                                              \
        X_AND_IDS(tokens, dtype, n, width)                                                         \
        "const %g : " weights "[" experts ", " rows ", " width "]\nconst %u : " weights            \
        "[" experts ", " rows ", " width "]\nconst %bg : " bias "[" experts ", " rows              \
        "]\nconst %bu : " bias "[" experts ", " rows                                               \
        "]\n%y = expert_linear(%x, %i, %g, %u, _, _, _, %bg, %bu) {glu = \"swiglu_oai\", limit = " \
        "1.5}\n"                                                                                   \
    }
#define BIASED_SUM(tokens, dtype, n, experts, rows, width, weights, bias)                          \
    {                                                                                              \
        "input %x : " dtype "[" tokens ", " n ", " width "] live=tokens\ninput %i : i32[" tokens   \
        ", " n "] live=tokens\nconst %w : " weights "[" experts ", " rows ", " width               \
        "]\ninput %s : f32[" tokens ", " n "] live=tokens\ninput %r : " dtype "[" tokens ", " rows \
        "] live=tokens\nconst %b : " bias "[" experts ", " rows                                    \
        "]\n%y = expert_linear(%x, %i, %w, _, %s, %r, _, %b)\n"                                    \
    }
/* Gated and summed forms, with norms; one token to more than a body sorts at once; experts
 * without tokens; every kind of weight, mixed ones too. */
static const op_case cases[] = {
    GATED("1", "f32", "8", "13", "24", "64", "bf16"),
    GATED("7", "f32", "2", "5", "33", "65", "f32"),
    GATED("33", "bf16", "2", "5", "17", "96", "bf16"),
    GATED("33", "f32", "8", "9", "16", "320", "f16"),
    GATED("150", "bf16", "3", "5", "24", "72", "bf16"),
    GATED("3", "f32", "2", "3", "9", "64", "q4_0"),
    GATED("7", "f32", "2", "3", "9", "64", "q8_0"),
    GATED("7", "f32", "2", "3", "9", "256", "q6_k"),
    SUMMED("1", "f32", "8", "13", "64", "24", "bf16"),
    SUMMED("7", "f32", "1", "5", "33", "65", "f32"),
    SUMMED("33", "bf16", "8", "11", "70", "40", "bf16"),
    /* a GPU's part of experts that several share: rounds of four, two groups a page */
    GATED("2", "bf16", "4", "9", "320", "64", "bf16"),
    SUMMED("3", "bf16", "4", "5", "2048", "384", "bf16"),
    SUMMED("7", "f32", "2", "3", "33", "64", "q4_1"),
    SUMMED("3", "f32", "2", "3", "9", "256", "q4_k"),
    SUMMED("3", "f32", "2", "3", "9", "256", "q5_k"),
    SUMMED("3", "f32", "2", "3", "9", "64", "mxfp4"),
    SUMMED("3", "f32", "2", "3", "9", "256", "iq3_s"),
    {"input %x : f32[3, 128, 40] live=tokens\ninput %i : i32[3, 128] live=tokens\n"
     "const %w : bf16[128, 24, 40]\n%y = expert_linear(%x, %i, %w)\n"},
    {X_AND_IDS("7", "f32", "3",
               "48") "const %w : f16[4, 50, 48]\n%y = expert_linear(%x, %i, %w)\n"},
    {X_AND_IDS(
        "5", "bf16", "3",
        "100") "const %g : bf16[4, 21, 100]\nconst %u : f32[4, 21, 100]\ninput %s : f32[5, 3] "
               "live=tokens\n%y = expert_linear(%x, %i, %g, %u, %s) {glu = \"gelu_tanh\"}\n"},
    {X_AND_IDS(
        "5", "f32", "3",
        "32") "const %g : q8_0[4, 21, 32]\nconst %u : bf16[4, 21, 32]\n%y = expert_linear(%x, "
              "%i, %g, %u) {glu = \"gelu\"}\n"},
    BIASED("1", "f32", "4", "13", "24", "64", "mxfp4", "f32"),
    BIASED("7", "bf16", "4", "5", "33", "96", "bf16", "bf16"),
    BIASED("40", "f32", "2", "5", "33", "65", "f32", "f32"),
    BIASED_SUM("1", "f32", "4", "13", "24", "64", "mxfp4", "f32"),
    BIASED_SUM("7", "bf16", "4", "5", "33", "96", "bf16", "bf16"),
    BIASED_SUM("40", "f32", "2", "5", "70", "65", "f32", "f32"),
    BIASED("16", "bf16", "4", "5", "40", "96", "bf16", "bf16"),
    BIASED_SUM("16", "bf16", "4", "5", "40", "96", "bf16", "f32"),
    {X_AND_IDS("150", "bf16", "4", "96") "const %g : bf16[5, 40, 96]\nconst %u : bf16[5, 40, 96]\n"
                                         "const %n : bf16[96]\nconst %bg : bf16[5, 40]\nconst %bu "
                                         ": bf16[5, 40]\n%y = expert_linear(%x, %i, %g, %u, _, _, "
                                         "%n, %bg, %bu) {glu = \"swiglu_oai\", limit = 5}\n"},
    {X_AND_IDS("5", "f32", "2", "48") "const %w : f16[4, 21, 48]\nconst %b : f16[4, 21]\n"
                                      "%y = expert_linear(%x, %i, %w, _, _, _, _, %b)\n"},
    NORMED("1", "bf16", "8", "13", "24", "64", "bf16", "bf16"),
    NORMED("7", "f32", "2", "5", "33", "65", "f32", "f32"),
    NORMED("7", "bf16", "8", "9", "16", "320", "bf16", "f32"),
    NORMED("33", "f32", "8", "9", "17", "96", "bf16", "bf16"),
    NORMED("33", "bf16", "2", "5", "16", "256", "q8_0", "bf16"),
    {X_AND_IDS(
        "7", "f32", "2",
        "256") "const %g : q4_k[3, 9, 256]\nconst %u : q8_0[3, 9, 256]\nconst %n : f32[256]\n"
               "%y = expert_linear(%x, %i, %g, %u, _, _, %n) {glu = \"silu\", eps = 1e-05, "
               "activations = \"i8\"}\n"},
    {"input %x : f32[9, 2, 64] live=tokens\ninput %i : i32[9, 2] live=tokens\nconst %w : q4_1[3, "
     "33, 64]\ninput %s : "
     "f32[9, 2] live=tokens\ninput %r : f32[9, 33] live=tokens\n"
     "%y = expert_linear(%x, %i, %w, _, %s, %r) {activations = \"i8\"}\n"},
    {"input %x : f32[5, 3, 48] live=tokens\ninput %i : i32[5, 3] live=tokens\nconst %w : f16[4, "
     "21, 48]\ninput %s : "
     "f32[5, 3] live=tokens\ninput %r : f32[5, 21] live=tokens\nconst %n : f32[48]\n"
     "%y = expert_linear(%x, %i, %w, _, %s, %r, %n)\n"},
};

const op_def op_expert_linear = {
    .name = "expert_linear",
    .summary = "x W^T for the experts that each token goes to, with optional rms_norm before, "
               "gating or weighted sum",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_SHARES,
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .split = split,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
