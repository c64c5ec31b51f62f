/* flip.c - a tensor with some axes backwards.  x [..] -> the same shape.
 *
 *   [[1, 2, 3], [4, 5, 6]], axes [1] -> [[3, 2, 1], [6, 5, 4]]
 *
 * It is a copy, because views have no negative strides.  Cost: one copy.
 */
#include "op/shape.h"
#include "op/walk.h"

/* Does this axis run backwards? */
static bool is_flipped(const ir_op *op, uint32_t axis)
{
    for (uint32_t i = 0; i < op->attributes[0].ints.n; i++)
        if (op->attributes[0].ints.at[i] == axis)
            return true;
    return false;
}

/* Flipping axis 0 would put the live entries last, so all of it must be alive. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    TRY(shape_expect_dtype(cx, g, op, 0, SHAPE_PLAIN));
    for (uint32_t i = 0; i < op->attributes[0].ints.n; i++)
        TRY(shape_expect_axis(cx, g, op, 0, op->attributes[0].ints.at[i]));
    if (is_flipped(op, 0))
        TRY(shape_expect_whole(cx, g, op, 0));
    shape_like(shape_input(g, op, 0), out);
    return MPK_OK;
}

/* The mirror image of the box. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const ir_tensor *x = shape_input(g, op, input);
    *read = *box;
    for (uint32_t i = 0; i < x->rank; i++)
        if (is_flipped(op, i)) {
            read->lo[i] = x->dims[i] - box->hi[i];
            read->hi[i] = x->dims[i] - box->lo[i];
        }
}

/* Runs along the last axis, backwards in x if it is flipped. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *x = &call->in[0], *y = &call->out[0];
    int64_t at[IR_MAX_RANK], from[IR_MAX_RANK];
    uint32_t last = y->rank ? y->rank - 1 : 0;
    int64_t n = walk_run(box, y->rank), step = walk_step(x);
    memcpy(at, box->lo, sizeof at);
    do {
        for (uint32_t i = 0; i < x->rank; i++)
            from[i] = is_flipped(call->op, i) ? x->dims[i] - 1 - at[i] : at[i];
        walk_copy(y, walk_offset(y, at), walk_step(y), x, walk_offset(x, from),
                  is_flipped(call->op, last) ? -step : step, n);
    } while (walk_next(box, last, at));
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("axes", INTS)};
/* One axis beside live tokens; two axes; none. */
static const op_case cases[] = {
    {"input %x : f32[7, 20] live=tokens\n%y = flip(%x) {axes = [1]}\n"},
    {"input %x : i64[3, 5, 2]\n%y = flip(%x) {axes = [2, 0]}\n"},
    {"input %x : bool[3]\n%y = flip(%x) {axes = []}\n"},
};

const op_def op_flip = {
    .name = "flip",
    .summary = "a tensor with some axes backwards",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = shape_axes_all,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
};
