/* copy.c - a dense copy, bit for bit.  x [..] of any dtype -> the same.
 *
 * It makes a view dense, for readers that need the strides of a fresh tensor: above all a result
 * that the caller reads.  Block dtypes are copied block by block.  Rule `result` of pass
 * recognise removes it where the copied tensor can be the output itself.  Cost: one copy.
 */
#include "op/move.h"
#include "op/runs.h"
#include "op/shape.h"

/* A fresh tensor of x's shape and dtype, dense. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    (void)cx;
    shape_like(shape_input(g, op, 0), out);
    return MPK_OK;
}

/* Rows of blocks are cut at blocks.  An axis along which x has neighbours is cut as the last axis,
 * along which the copy has them. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    const ir_tensor *x = shape_input(g, op, 0);
    const int64_t grain = ir_dtype_table[x->dtype].block_elements;
    if (grain == 1)
        runs_axes(g, op, axes);
    for (uint32_t i = 0; grain == 1 && i + 1 < x->rank; i++)
        if (x->stride[i] == 1 && x->dims[i] > 1 && x->stride[x->rank - 1] != 1)
            axes[i].tile = runs_of(x->dims[i]);
    if (grain != 1)
        shape_axes_all(g, op, axes);
    if (x->rank)
        axes[x->rank - 1].grain = grain;
}

/* One box moved, bit for bit. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    move_part(&call->out[0], box, &call->in[0], (int64_t[IR_MAX_RANK]){0});
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_case cases[] = {
    {"input %x : f32[7, 320] live=tokens\n%y = copy(%x)\n"},
    {"input %x : bool[3, 4]\n%y = copy(%x)\n"},
    {"const %x : q6_k[3, 512]\n%y = copy(%x)\n"},
    {"input %z : bf16[2, 72, 3, 88]\n%x = transpose(%z) {perm = [0, 2, 3, 1]}\n%y = copy(%x)\n"},
    {"input %z : f16[3, 136, 72]\n%x = transpose(%z) {perm = [0, 2, 1]}\n%y = copy(%x)\n"},
};

const op_def op_copy = {
    .name = "copy",
    .summary = "a dense copy",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .flags = OP_ELEMENTWISE,
    .infer = infer,
    .axes = axes,
    .reads = shape_reads_broadcast,
    .ref = ref,
    OP_CASES(cases),
};
