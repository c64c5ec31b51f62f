/* concat.c - tensors one after the other along an axis.  x0, x1, ... of one dtype, equal but for
 * that axis -> their union.
 *
 *   a [7, 320], b [7, 17], axis 1 -> [7, 337]
 *
 * Idea: each input is copied into its part of the box; a task reads only inputs that its box
 * touches.  The inputs may lie on other peers: this is how a peer gathers what all have.  Cost:
 * one copy.
 */
#include "op/move.h"
#include "op/runs.h"
#include "op/shape.h"

/* The axis, which infer has checked to be one of x0. */
static uint32_t axis_of(const ir_op *op)
{
    return (uint32_t)op->attributes[0].i;
}

/* Along axis 0 nothing may be partly alive: live counts are of the first entries, and there
 * would be gaps. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *first = shape_input(g, op, 0);
    int64_t axis = op->attributes[0].i;
    CHECK(cx, axis >= 0 && axis < first->rank, MPK_ESHAPE, "concat: axis is %lld, x0 has rank %u",
          (long long)axis, first->rank);
    CHECK(cx, axis != 0 || first->live == IR_ALL, MPK_ESHAPE,
          "concat: axis 0 of %%%.*s is partly alive", STR_ARG(first->name));
    shape_like(first, out);
    for (uint32_t i = 1; i < op->n_in; i++) {
        int64_t dims[IR_MAX_RANK];
        memcpy(dims, first->dims, sizeof dims);
        dims[axis] = SHAPE_FREE;
        TRY(shape_expect(cx, g, op, i, 1u << first->dtype, first->rank, dims));
        TRY(shape_expect_live(cx, g, op, i, first->live));
        out->dims[axis] += shape_input(g, op, i)->dims[axis];
    }
    return MPK_OK;
}

/* Any cut, but rows of blocks at blocks. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const int64_t grain = ir_dtype_table[x->dtype].block_elements;
    if (grain == 1)
        runs_axes(g, op, axes);
    else
        shape_axes_all(g, op, axes);
    axes[x->rank - 1].grain = grain;
}

/* The part of the box that lies in this input, moved to where it starts there; empty if there is
 * none. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    uint32_t axis = axis_of(op);
    int64_t first = 0, n = shape_input(g, op, input)->dims[axis];
    for (uint32_t i = 0; i < input; i++)
        first += shape_input(g, op, i)->dims[axis];
    *read = *box;
    read->lo[axis] = box->lo[axis] > first ? box->lo[axis] - first : 0;
    read->hi[axis] = box->hi[axis] - first < n ? box->hi[axis] - first : n;
}

/* Copy the part of a box that comes from x, whose entry 0 along the axis is entry `first` of y. */
static void copy_part(const op_view *y, const op_view *x, uint32_t axis, int64_t first,
                      const ir_box *box)
{
    ir_box part = *box;
    int64_t before[IR_MAX_RANK] = {0};
    before[axis] = first;
    part.lo[axis] = box->lo[axis] > first ? box->lo[axis] : first;
    part.hi[axis] = box->hi[axis] < first + x->dims[axis] ? box->hi[axis] : first + x->dims[axis];
    move_part(y, &part, x, before);
}

/* The inputs in order; each fills its part of the box. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    uint32_t axis = axis_of(call->op);
    int64_t first = 0;
    for (uint32_t i = 0; i < call->n_in; first += call->in[i++].dims[axis])
        copy_part(&call->out[0], &call->in[i], axis, first, box);
}

static const op_operand in[] = {{"x", OP_VARIADIC}}, out[] = {{"y", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("axis", INT)};
/* Unequal widths; along axis 0; blocks; a single input; few neighbours. */
static const op_case cases[] = {
    {"input %a : f32[7, 320] live=tokens\ninput %b : f32[7, 17] live=tokens\n%y = concat(%a, %b) "
     "{axis = 1}\n"},
    {"input %a : i32[2, 3]\ninput %b : i32[1, 3]\ninput %c : i32[4, 3]\n%y = concat(%a, %b, %c) "
     "{axis = 0}\n"},
    {"const %a : q4_0[2, 64]\nconst %b : q4_0[2, 32]\n%y = concat(%a, %b) {axis = 1}\n"},
    {"input %a : f16[2, 3]\n%y = concat(%a) {axis = 1}\n"},
    {"input %a : bf16[70, 3]\ninput %b : bf16[70, 1]\ninput %c : bf16[70, 2]\n%y = concat(%a, %b, "
     "%c, %b) {axis = 1}\n"},
    {"input %a : u8[5, 40, 1]\ninput %b : u8[5, 40, 2]\n%y = concat(%a, %b) {axis = 2}\n"},
};

const op_def op_concat = {
    .name = "concat",
    .summary = "tensors one after the other along an axis",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_GATHERS,
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
};
