/* head_linear.c - products of the heads of activations with a weight for each head.
 *
 * x [T, H, D], w [H, F, D] -> y [T, H, F]: head h of token t is w[h] x[t, h].
 *
 *   %q = head_linear(%plain, %k_b)        [T, 16, 128], [16, 512, 128] -> [T, 16, 512]
 *
 * It is expert_linear where every token goes to all experts in order, so that no ids are needed and
 * heads are an axis that may be cut.  pass/ builds it of such (fuse_latent.c).  Sums are in fp32,
 * in dot.h's order.  Cost: 2 D operations an element; a task reads the weights of its box.
 */
#include "op/dot.h"
#include "op/shape.h"
#include "op/walk.h"

enum { X, W };
/* FEW_TOKENS: up to so many a task has all of them, so that weights are read once; LOT: of more, it
 * has lots of so many, and rows by BOX_ROWS. */
enum { FEW_TOKENS = 256, LOT = 128, BOX_ROWS = 64, GROUP_ROWS = 8 };

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *w = shape_input(g, op, W);
    TRY(shape_expect(cx, g, op, X, SHAPE_FLOAT, 3,
                     (int64_t[]){SHAPE_FREE, SHAPE_FREE, SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, W, SHAPE_FLOAT, 3,
                     (int64_t[]){x->dims[1], SHAPE_FREE, x->dims[2]}));
    shape_like(x, out);
    out->dims[2] = w->dims[1];
    return MPK_OK;
}

/* Rows of a weight come in groups of 8, as they are packed for GPUs. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const int64_t tokens = g->tensors.at[op->out[0]].dims[0];
    const bool few = tokens <= FEW_TOKENS;
    axes[0] = (op_axis){.grain = 1, .tile = few ? tokens : LOT};
    axes[1].grain = 1;
    axes[2] = (op_axis){.grain = 1, .fastest = GROUP_ROWS, .tile = few ? GROUP_ROWS : BOX_ROWS};
}

static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    const uint32_t heads = input == X ? 1 : 0;
    read->lo[heads] = box->lo[1];
    read->hi[heads] = box->hi[1];
    /* tokens of x, rows of w */
    read->lo[1 - heads] = box->lo[input == X ? 0 : 2];
    read->hi[1 - heads] = box->hi[input == X ? 0 : 2];
}

/* Each peer has some heads, or some columns of all. */
static bool split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    (void)g, (void)op;
    out->in[X] = way ? OP_WHOLE : 1;
    out->in[W] = way ? 1 : 0;
    out->out[0] = way ? 2 : 1;
    return way < 2;
}

/* Scratch: a row of a weight, and one of x. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    return (size_t)(2 * shape_input(g, op, X)->dims[2]) * sizeof(float);
}

/* A row of a weight is unpacked once for all tokens of the box. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *x = &call->in[X], *w = &call->in[W], *y = &call->out[0];
    const int64_t width = x->dims[2];
    float *row = scratch, *weight = row + width;
    for (int64_t h = box->lo[1]; h < box->hi[1]; h++)
        for (int64_t f = box->lo[2]; f < box->hi[2]; f++) {
            walk_load_row(w, h * w->stride[0] + f * w->stride[1], 0, width, weight);
            for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
                walk_load_row(x, t * x->stride[0] + h * x->stride[1], 0, width, row);
                op_store(y, t * y->stride[0] + h * y->stride[1] + f * y->stride[2],
                         dot_rows(row, weight, width));
            }
        }
}

static const op_operand in[] = {{"x", 0}, {"w", 0}};
static const op_operand out[] = {{"y", 0}};

#define CASE(dtype, tokens, heads, width, rows, weights)                                          \
    {                                                                                             \
        "input %x : " dtype "[" tokens ", " heads ", " width "] live=tokens\nconst %w : " weights \
        "[" heads ", " rows ", " width "]\n%y = head_linear(%x, %w)\n"                            \
    }
/* One token; odd sizes; dtypes that differ; more tokens than a lot, and than FEW_TOKENS; x in wider
 * rows. */
static const op_case cases[] = {
    CASE("f32", "1", "3", "40", "24", "bf16"),
    CASE("f32", "7", "2", "33", "19", "f32"),
    CASE("bf16", "5", "16", "128", "72", "bf16"),
    CASE("f16", "20", "3", "200", "40", "f16"),
    CASE("bf16", "9", "2", "30", "21", "f32"),
    CASE("bf16", "131", "2", "64", "80", "bf16"),
    CASE("bf16", "300", "3", "136", "200", "bf16"),
    {"input %a : bf16[6, 5, 96] live=tokens\nconst %w : bf16[5, 48, 64]\n"
     "%x = slice(%a) {starts = [0, 0, 16], stops = [6, 5, 80]}\n%y = head_linear(%x, %w)\n"},
};

const op_def op_head_linear = {
    .name = "head_linear",
    .summary = "x W^T for each head of x, with a weight of its own",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .split = split,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
