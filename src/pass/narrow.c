/* narrow.c - products with weights in block formats take x in 8-bit blocks (op/narrow.h).
 *
 * Input and output: a tensor program, changed in place.  An operator whose record has the
 * attribute `activations` gets the value "i8" if one of its inputs is a weight in a block
 * format:
 *
 *   %y = linear(%x, %w)                         %w : q4_0[4096, 4096]
 *   %y = linear(%x, %w) {activations = "i8"}
 *
 * Called by compile.c for a CPU target unless --activations=f32 is given (pass_options.narrow),
 * last on the program, so that no rule has to tell the two kinds of products apart.  Cost:
 * linear in the operators.
 */
#include "op/narrow.h"
#include "pass/pass.h"

/* The index of the attribute `activations`, or -1: the operator multiplies nothing. */
static int find_attribute(const ir_op *op)
{
    for (uint32_t i = 0; i < op->def->n_attributes; i++)
        if (str_is(str_from(op->def->attributes[i].name), "activations"))
            return (int)i;
    return -1;
}

/* Is an operand in a block format that has 8-bit products? */
static bool has_blocks(const ir_graph *g, const ir_op *op)
{
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] != IR_NONE && narrow_block(g->tensors.at[op->in[i]].dtype))
            return true;
    return false;
}

mpk_status pass_narrow(pass_state *s, ir_graph **g)
{
    (void)s;
    for (ir_op_id o = 0; o < (*g)->ops.n; o++) {
        ir_op *op = &(*g)->ops.at[o];
        int at = find_attribute(op);
        if (at >= 0 && has_blocks(*g, op))
            op->attributes[at].s = STR("i8");
    }
    return MPK_OK;
}
