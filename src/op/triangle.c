/* triangle.c - the lower or upper triangle of matrices, zeros elsewhere.  x [.., M, N] -> the
 * same shape.
 *
 * Lower: entries (i, k) with k - i <= diagonal stay; upper: those with k - i >= diagonal.
 *
 *   lower, diagonal 0    upper, diagonal 1
 *   a 0 0                0 b c
 *   d e 0                0 0 f
 *   g h i                0 0 0
 *
 * Cost: one copy.
 */
#include "op/move.h"
#include "op/shape.h"

/* Attributes, by index. */
enum { DIAGONAL, UPPER };

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, 0);
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_PLAIN));
    CHECK(cx, x->rank >= 2, MPK_ESHAPE,
          "triangle: input x (%%%.*s) has rank %u, expected 2 or more", STR_ARG(x->name), x->rank);
    shape_like(x, out);
    return MPK_OK;
}

/* Row by row: one run is copied and one is zeros, after it (lower) or before it (upper). */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *y = &call->out[0];
    uint32_t last = y->rank - 1;
    bool upper = call->attributes[UPPER].i;
    int64_t at[IR_MAX_RANK];
    /* A diagonal beyond the corners is as good as one at the corner; limited, so that sums with
     * an index cannot overflow. */
    int64_t diagonal = op_clamp(call->attributes[DIAGONAL].i, -y->dims[last - 1], y->dims[last]);
    memcpy(at, box->lo, sizeof at);
    do {
        ir_box row = {0}, zeros;
        for (uint32_t i = 0; i < last; i++)
            row.lo[i] = at[i], row.hi[i] = at[i] + 1;
        /* the first column of the upper part */
        int64_t first = at[last - 1] + diagonal + !upper;
        first = op_clamp(first, box->lo[last], box->hi[last]);
        row.lo[last] = upper ? first : box->lo[last];
        row.hi[last] = upper ? box->hi[last] : first;
        zeros = row;
        zeros.lo[last] = upper ? box->lo[last] : first;
        zeros.hi[last] = upper ? first : box->hi[last];
        move_part(y, &row, &call->in[0], (int64_t[IR_MAX_RANK]){0});
        move_fill(y, &zeros, 0);
    } while (walk_next(box, last, at));
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
