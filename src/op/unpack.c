/* unpack.c - weights in a block format as one matrix of bf16.
 *
 * w0 [R0, C], w1, w2 in block formats, after -> y bf16[R, C]: the rows of w0, then those of w1 and
 * w2; with `paired` the rows of w0 and w1, which have one shape, in turn.  Nothing of `after` is
 * read: y is made once all of `after` has been, so that it may take memory that was read before.
 *
 *   %u = unpack(%q, %k, %v)                      rows of q, of k, of v
 *   %u = unpack(%gate, %up, _, %h) {paired = 1}  rows gate 0, up 0, gate 1, up 1 ...; after %h
 *
 * Products of many tokens read such a matrix instead of blocks, which they would unpack again for
 * each lot of tokens (pass/unpack_weights.c).  A weight is computed in fp32 and rounded once.
 * Cost: C weights read and written a row.
 */
#include "op/shape.h"
#include "op/walk.h"

/* Inputs, by index, and the attribute. */
enum { W0, W1, W2, AFTER, WEIGHTS = 3 };
enum { PAIRED };
enum { GROUP = 8 /* rows that lie together where weights are packed (rt/rt_blocks.h) */ };

/* Those of a pair have one shape; others have rows of one length. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    int64_t dims[2] = {SHAPE_FREE, SHAPE_FREE};
    out->dtype = IR_BF16;
    out->live = IR_ALL;
    out->rank = 2;
    out->dims[0] = 0;
    CHECK(cx, shape_input(g, op, W1) || !shape_input(g, op, W2), MPK_ESHAPE,
          "unpack: input w2 is given without w1");
    CHECK(cx, !op->attributes[PAIRED].i || (shape_input(g, op, W1) && !shape_input(g, op, W2)),
          MPK_ESHAPE, "unpack: a pair is w0 and w1");
    for (uint32_t i = W0; i < WEIGHTS && shape_input(g, op, i); i++) {
        const ir_tensor *w = shape_input(g, op, i);
        TRY(shape_expect(cx, g, op, i, SHAPE_WEIGHT & ~SHAPE_FLOAT, 2, dims));
        out->dims[0] += w->dims[0];
        out->dims[1] = dims[1] = w->dims[1];
        dims[0] = op->attributes[PAIRED].i ? w->dims[0] : SHAPE_FREE;
    }
    return MPK_OK;
}

/* Whole groups of rows. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g, (void)op;
    axes[0] = (op_axis){.grain = GROUP, .fastest = GROUP, .tile = GROUP};
}

/* Of each weight the rows that belong to the box; all of what it waits for. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == AFTER)
        return;
    int64_t lo = box->lo[0], hi = box->hi[0];
    if (op->attributes[PAIRED].i) {
        lo = (lo + 1 - input) / 2;
        hi = (hi + 1 - input) / 2;
    }
    for (uint32_t i = W0; i < input && !op->attributes[PAIRED].i; i++) {
        lo -= shape_input(g, op, i)->dims[0];
        hi -= shape_input(g, op, i)->dims[0];
    }
    read->lo[0] = op_clamp(lo, 0, read->hi[0]);
    read->hi[0] = op_clamp(hi, 0, read->hi[0]);
}

/* Scratch: a row. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    return (size_t)shape_input(g, op, W0)->dims[1] * sizeof(float);
}

/* The weight that makes row *row of the result, and in *row its row. */
static uint32_t find_weight(const op_call *call, int64_t *row)
{
    uint32_t i = W0;
    if (call->attributes[PAIRED].i) {
        i = (uint32_t)(*row % 2);
        *row /= 2;
        return i;
    }
    for (; *row >= call->in[i].dims[0]; i++)
        *row -= call->in[i].dims[0];
    return i;
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *y = &call->out[0];
    for (int64_t r = box->lo[0]; r < box->hi[0]; r++) {
        int64_t row = r;
        const op_view *w = &call->in[find_weight(call, &row)];
        walk_load_row(w, row * w->stride[0], 0, w->dims[1], scratch);
        walk_store_row(y, r * y->stride[0], 0, y->dims[1], scratch);
    }
}

static const op_operand in[] = {
    {"w0", 0}, {"w1", OP_OPTIONAL}, {"w2", OP_OPTIONAL}, {"after", OP_OPTIONAL}};
static const op_operand out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_INT("paired", 0)};

#define ONE(dtype, rows, columns)                                        \
    {                                                                    \
        "const %w : " dtype "[" rows ", " columns "]\n%y = unpack(%w)\n" \
    }
/* Each form in which GPUs keep blocks (rt/rt_blocks.h), with rows that end within a piece; weights
 * of several formats; pairs; something to wait for. */
static const op_case cases[] = {
    ONE("q4_0", "24", "320"),
    ONE("q4_1", "72", "96"),
    ONE("q5_0", "8", "1184"),
    ONE("q5_1", "40", "288"),
    ONE("q8_0", "77", "1056"),
    ONE("q4_k", "203", "512"),
    ONE("q5_k", "16", "256"),
    ONE("q6_k", "32", "1280"),
    ONE("iq4_nl", "5", "64"),
    {"const %q : q4_k[72, 512]\nconst %k : q5_k[24, 512]\nconst %v : q6_k[24, 512]\n"
     "%y = unpack(%q, %k, %v)\n"},
    {"const %q : q4_1[33, 96]\nconst %k : q5_0[31, 96]\nconst %v : q5_1[33, 96]\n"
     "%y = unpack(%q, %k, %v)\n"},
    {"const %q : q4_0[24, 1344]\nconst %k : q4_0[16, 1344]\ninput %a : bf16[7, 40] live=tokens\n"
     "%y = unpack(%q, %k, _, %a)\n"},
    {"const %g : q4_k[100, 768]\nconst %u : q4_k[100, 768]\n%y = unpack(%g, %u) {paired = 1}\n"},
    {"const %g : q4_k[61, 512]\nconst %u : q6_k[61, 512]\ninput %a : f32[3]\n"
     "%y = unpack(%g, %u, _, %a) {paired = 1}\n"},
    {"const %g : q8_0[20, 160]\nconst %u : q4_1[20, 160]\n%y = unpack(%g, %u) {paired = 1}\n"},
};

const op_def op_unpack = {
    .name = "unpack",
    .summary = "one to three weights in block formats as one matrix of bf16",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
