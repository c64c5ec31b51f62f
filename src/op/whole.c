/* whole.c - a tensor whose readers wait for all of it.
 *
 * x [..] of any dtype -> the same as a view.  No work: what reads a part of the result is said to
 * read all of x, and so is ordered after every task that makes x.  Where several tasks read parts
 * together, each depends on what the others read; and where any two of many producers and many
 * consumers meet, one event for all is cheaper than one for each pair.
 *
 *   %u = unpack(%w)
 *   %v = whole(%u)
 *   %y = linear(%x, %v)     a task of some columns waits for all rows of %u
 */
#include "op/shape.h"

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    (void)cx;
    shape_like(shape_input(g, op, 0), out);
    return MPK_OK;
}

static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    (void)box;
    *read = ir_box_whole(shape_input(g, op, input));
}

/* Always a view. */
static bool view(const ir_graph *g, const ir_op *op, const int64_t *in_stride, int64_t *stride,
                 int64_t *offset)
{
    *offset = 0;
    memcpy(stride, in_stride, shape_input(g, op, 0)->rank * sizeof *stride);
    return true;
}

static const op_operand in[] = {{"x", 0}}, out[] = {{"y", 0}};
static const op_case cases[] = {
    {"input %x : f32[7, 320] live=tokens\n%y = whole(%x)\n"},
    {"input %x : i64[5, 4, 3]\n%y = whole(%x)\n"},
    {"const %x : q8_0[9, 96]\n%y = whole(%x)\n"},
};

const op_def op_whole = {
    .name = "whole",
    .summary = "a tensor whose readers wait for all of it, as a view",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .flags = OP_VIEW,
    .infer = infer,
    .reads = reads,
    .view = view,
    OP_CASES(cases),
};
