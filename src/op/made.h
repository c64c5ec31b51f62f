/* made.h - operators that have no input and make their result from attributes: what full.c and
 * iota.c share.
 *
 * A box of the result depends on nothing, and their tasks wait for no other.
 */
#ifndef OP_MADE_H
#define OP_MADE_H

#include "op/shape.h"
#include "op/walk.h"

/* The result's dtype is that of attribute `number`, which must name a plain one. */
static inline mpk_status made_dtype(mpk_context *cx, const ir_op *op, uint32_t number,
                                    ir_tensor *out)
{
    str name = op->attributes[number].s;
    CHECK(cx, ir_dtype_from_name(name, &out->dtype) && SHAPE_PLAIN >> out->dtype & 1,
          MPK_EUNSUPPORTED, "%s: dtype \"%.*s\" is not a plain dtype", op->def->name,
          STR_ARG(name));
    return MPK_OK;
}

/* A record must have `reads`, although it is never asked about inputs that are not there. */
static inline void made_reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                              ir_box *read)
{
    (void)g, (void)op, (void)input, (void)box;
    *read = (ir_box){0};
}

static const op_operand made_out[] = {{"y", 0}};

/* What the records have in common. */
#define MADE_RECORD OP_OUTPUTS(made_out), .axes = shape_axes_all, .reads = made_reads

#endif
