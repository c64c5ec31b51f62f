/* rope.c - rotate heads by their positions.  x [T, H, K], table f32[T, 2, Kr/2] -> x's shape;
 * entries from Kr on are copied.
 *
 * Entries i and i + Kr/2 of a head are a pair, rotated by the angle that the table has for its
 * token: y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin.  The angles come from rope_table, which is
 * computed once a step for all layers.
 *
 * Idea of the cut: a head of a token is independent of all others.  Cost: four multiplications a
 * pair.  pass/ may fuse it with its neighbours into rope_kv.
 */
#include "op/rope.h"
#include "op/walk.h"

/* Inputs, by index. */
enum { X, TABLE };

/* The table may rotate fewer entries than a head has, and has a row for each token. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *table = shape_input(g, op, TABLE);
    TRY(shape_expect(cx, g, op, X, SHAPE_FLOAT, 3,
                     (int64_t[]){SHAPE_FREE, SHAPE_FREE, SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, TABLE, 1 << IR_F32, 3, (int64_t[]){x->dims[0], 2, SHAPE_FREE}));
    TRY(shape_expect_live(cx, g, op, TABLE, x->live));
    CHECK(cx, 2 * table->dims[2] <= x->dims[2], MPK_ESHAPE,
          "rope: the table rotates %lld entries, heads have %lld", (long long)(2 * table->dims[2]),
          (long long)x->dims[2]);
    shape_like(x, out);
    return MPK_OK;
}

/* Tokens and heads may be cut; the halves of a head exchange entries, so a head stays whole. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g, (void)op;
    axes[0].grain = axes[1].grain = 1;
}

/* Of x the box itself; of the table the rows of the box's tokens. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = *box;
    if (input == TABLE) {
        *read = ir_box_whole(shape_input(g, op, TABLE));
        read->lo[0] = box->lo[0];
        read->hi[0] = box->hi[0];
    }
}

/* One way: over the heads. */
static bool split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    (void)g, (void)op;
    out->in[X] = out->out[0] = 1;
    return way == 0;
}

/* Scratch: a head, and a row of the table (cosines, then sines). */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    return (size_t)(shape_input(g, op, X)->dims[2] + 2 * shape_input(g, op, TABLE)->dims[2]) *
           sizeof(float);
}

/* The angles of a token are loaded once for its heads. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *x = &call->in[X], *table = &call->in[TABLE], *out = &call->out[0];
    int64_t size = x->dims[2], half = table->dims[2];
    float *row = scratch, *cosine = row + size, *sine = cosine + half;
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
        walk_load_row(table, t * table->stride[0], 0, half, cosine);
        walk_load_row(table, t * table->stride[0] + table->stride[1], 0, half, sine);
        for (int64_t h = box->lo[1]; h < box->hi[1]; h++) {
            walk_load_row(x, t * x->stride[0] + h * x->stride[1], 0, size, row);
            rope_rotate(row, cosine, sine, half);
            walk_store_row(out, t * out->stride[0] + h * out->stride[1], 0, size, row);
        }
    }
}

static const op_operand in[] = {{"x", 0}, {"table", 0}}, out[] = {{"y", 0}};

#define CASE(x, table)                                                                             \
    {                                                                                              \
        "input %x : " x " live=tokens\ninput %t : f32[" table "] live=tokens\n%y = rope(%x, %t)\n" \
    }
static const op_case cases[] = {
    CASE("f32[1, 9, 64]", "1, 2, 32"),
    CASE("f32[7, 5, 48]", "7, 2, 24"),
    CASE("bf16[7, 1, 80]", "7, 2, 16"),
    CASE("f32[7, 3, 128]", "7, 2, 64"),
};

const op_def op_rope = {
    .name = "rope",
    .summary = "rotate pairs of each head by the angles of a rope_table",
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
