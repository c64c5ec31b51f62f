/* rotate.c - rotary position embedding with given tables.  x [.., K], cos and sin [.., R], R
 * even and at most K -> x's shape.
 *
 * y = x * cos + (-x2, x1) * sin, where x1 and x2 are the halves of the first R entries of a row;
 * entries from R on are copied.  Axes of the tables before the last are broadcast to those of x.
 * Products and their sum are rounded as the single operators would round them.  It stands for
 * the `rotate_half` of imported models, whose tables are computed by other operators, where
 * rope.c computes its own.  Cost: four multiplications a pair.
 */
#include "op/rotate.h"
#include "op/shape.h"

/* Inputs, by index. */
enum { X, COSINE, SINE };

/* A table broadcasts like any operand, except for the last axis, where it may be shorter than x. */
static mpk_status expect_table(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input)
{
    const ir_tensor *x = shape_input(g, op, X), *t = shape_input(g, op, input);
    TRY(shape_expect_dtype(cx, g, op, input, SHAPE_FLOAT));
    TRY(shape_expect_whole(cx, g, op, input));
    CHECK(cx, t->rank > 0 && t->rank <= x->rank, MPK_ESHAPE,
          "rotate: the table %%%.*s has rank %u, x has %u", STR_ARG(t->name), t->rank, x->rank);
    int64_t n = t->dims[t->rank - 1];
    CHECK(cx,
          n % 2 == 0 && n <= x->dims[x->rank - 1] &&
              n == shape_input(g, op, COSINE)->dims[t->rank - 1],
          MPK_ESHAPE,
          "rotate: the table %%%.*s has rows of %lld, an even number and at most %lld is possible, "
          "the same for both",
          STR_ARG(t->name), (long long)n, (long long)x->dims[x->rank - 1]);
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        CHECK(cx, t->dims[i] == 1 || t->dims[i] == x->dims[i + x->rank - t->rank], MPK_ESHAPE,
              "rotate: axis %u of the table %%%.*s has %lld entries, x has %lld", i,
              STR_ARG(t->name), (long long)t->dims[i], (long long)x->dims[i + x->rank - t->rank]);
    return MPK_OK;
}

/* Both tables have one shape.  x must be whole, since given tables do not say which of their
 * rows are alive. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X);
    TRY(shape_expect_dtype(cx, g, op, X, SHAPE_FLOAT));
    TRY(shape_expect_whole(cx, g, op, X));
    CHECK(cx, x->rank > 0, MPK_ESHAPE, "rotate: input x (%%%.*s) is a scalar", STR_ARG(x->name));
    CHECK(cx, shape_input(g, op, COSINE)->rank == shape_input(g, op, SINE)->rank, MPK_ESHAPE,
          "rotate: cos has rank %u, sin has %u", shape_input(g, op, COSINE)->rank,
          shape_input(g, op, SINE)->rank);
    TRY(expect_table(cx, g, op, COSINE));
    TRY(expect_table(cx, g, op, SINE));
    shape_like(x, out);
    return MPK_OK;
}

/* Of a table, whole rows: those that the box's rows are broadcast from. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *t = shape_input(g, op, input), *x = shape_input(g, op, X);
    *read = *box;
    if (input == X)
        return;
    ir_box rows = *box;
    rows.lo[x->rank - 1] = 0;
    rows.hi[x->rank - 1] = t->dims[t->rank - 1];
    shape_broadcast_box(t, x->rank, &rows, read);
}

/* Scratch: a row of x, and a row of each table. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    const ir_tensor *x = shape_input(g, op, X), *t = shape_input(g, op, COSINE);
    return (size_t)(x->dims[x->rank - 1] + 2 * t->dims[t->rank - 1]) * sizeof(float);
}

/* A row at a time: the two halves exchange entries, so a row is never cut. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *x = &call->in[X], *y = &call->out[0], *cosine = &call->in[COSINE],
                  *sine = &call->in[SINE];
    int64_t at[IR_MAX_RANK], size = x->dims[x->rank - 1], n = cosine->dims[cosine->rank - 1];
    float *row = scratch;
    memcpy(at, box->lo, sizeof at);
    do {
        at[x->rank - 1] = 0;
        walk_load_row(x, walk_offset(x, at), 0, size, row);
        walk_load_row(cosine, walk_broadcast(cosine, x->rank, at), 0, n, row + size);
        walk_load_row(sine, walk_broadcast(sine, x->rank, at), 0, n, row + size + n);
        rotate_row(x->dtype, row, row + size, row + size + n, n);
        walk_store_row(y, walk_offset(y, at), 0, size, row);
    } while (walk_next(box, x->rank - 1, at));
}

static const op_operand in[] = {{"x", 0}, {"cos", 0}, {"sin", 0}}, out[] = {{"y", 0}};

#define CASE(x, table)                                                                            \
    {                                                                                             \
        "input %x : " x "\ninput %c : " table "\ninput %s : " table "\n%y = rotate(%x, %c, %s)\n" \
    }
static const op_case cases[] = {
    CASE("f32[2, 3, 5, 16]", "f32[2, 1, 5, 16]"),
    CASE("bf16[1, 4, 7, 48]", "bf16[7, 32]"),
    CASE("f16[9, 10]", "f32[2]"),
    CASE("bf16[2, 3, 5, 64]", "bf16[5, 64]"),
    CASE("f16[3, 4, 32]", "f32[4, 32]"),
    {"input %w : bf16[5, 256]\ninput %c : bf16[1, 5, 64]\ninput %s : bf16[1, 5, 64]\n"
     "%l = slice(%w) {starts = [0, 128], stops = [5, 256]}\n"
     "%h = reshape(%l) {shape = [1, 5, 2, 64]}\n"
     "%x = transpose(%h) {perm = [0, 2, 1, 3]}\n%y = rotate(%x, %c, %s)\n"},
};

const op_def op_rotate = {
    .name = "rotate",
    .summary = "rotate the halves of each row by tables of cosines and sines",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .infer = infer,
    .axes = shape_axes_rows,
    .reads = reads,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
