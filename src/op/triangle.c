/* triangle.c - the lower or upper triangle of matrices, zeros elsewhere.  x [.., M, N] -> the same shape.
 *
 * Lower: entries (i, k) with k - i <= diagonal stay; upper: those with k - i >= diagonal.  Cost: one copy.
 */
#include "op/shape.h"
#include "op/walk.h"

enum { DIAGONAL, UPPER };

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_PLAIN));
    CHECK(cx, x->rank >= 2, MPK_ESHAPE, "triangle: input x (%%%.*s) has rank %u, expected 2 or more", STR_ARG(x->name),
          x->rank);
    shape_like(x, out);
    return MPK_OK;
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *y = &call->out[0];
    int64_t at[IR_MAX_RANK], diagonal = call->attributes[DIAGONAL].i;
    memcpy(at, box->lo, sizeof at);
    do {
        int64_t above = at[y->rank - 1] - at[y->rank - 2];
        if (call->attributes[UPPER].i ? above >= diagonal : above <= diagonal)
            walk_copy(y, walk_offset(y, at), 1, x, walk_offset(x, at), 1, 1);
        else
            walk_store_int(y, walk_offset(y, at), 0);
    } while (walk_next(box, y->rank, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_INT("diagonal", 0), SHAPE_INT("upper", 0)};
static const op_case cases[] = {
    {"input %x : f32[7, 20] live=tokens\n%y = triangle(%x) {diagonal = 2}\n"},
    {"input %x : bf16[2, 5, 4]\n%y = triangle(%x) {diagonal = -1, upper = 1}\n"},
    {"input %x : bool[3, 3]\n%y = triangle(%x)\n"},
};

const op_def op_triangle = {
    .name = "triangle",
    .summary = "the lower or upper triangle of matrices, zeros elsewhere",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_all,
    .reads = shape_reads_broadcast,
    .ref = ref,
    OP_CASES(cases),
};
