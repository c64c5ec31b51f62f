/* shape.h - what the infer, axes and reads of many records share: sets of dtypes, constructors
 * for tables of attributes, checks of inputs, and ready-made functions for the fields of op_def.
 *
 * Included by nearly every record.  A check returns MPK_ESHAPE with a message that names
 * operator, input and tensor, and passes absent inputs; infer returns that status with TRY.
 */
#ifndef OP_SHAPE_H
#define OP_SHAPE_H

#include "ir/op.h"

/* Sets of dtypes for shape_expect, one bit each, by ir_dtype. */
_Static_assert(IR_DTYPES <= 32, "a set of dtypes is 32 bits");
enum {
    SHAPE_FLOAT = 1 << IR_F32 | 1 << IR_F16 | 1 << IR_BF16,
    SHAPE_I32 = 1 << IR_I32,
    SHAPE_I64 = 1 << IR_I64,
    SHAPE_INTEGER = SHAPE_I32 | SHAPE_I64 | 1 << IR_U8 | 1 << IR_I8 | 1 << IR_I16,
    SHAPE_REAL_NUMBER = SHAPE_FLOAT | 1 << IR_F64,
    SHAPE_NUMBER = SHAPE_REAL_NUMBER | SHAPE_INTEGER,
    SHAPE_PLAIN = SHAPE_NUMBER | 1 << IR_BOOL,
    SHAPE_INDEX = SHAPE_I32 | SHAPE_I64,
    SHAPE_ANY = -1, /* every dtype, block dtypes too: all 32 bits */
    SHAPE_WEIGHT = SHAPE_ANY & ~(1 << IR_F64 | SHAPE_INTEGER | 1 << IR_BOOL)
};

/* A dimension that may be anything, for shape_expect. */
enum { SHAPE_FREE = -1 };

/* Constructors of a record's table of attributes: an integer, a float or a word with the value
 * that it has if it is not given; one that must be given; a list of integers, empty if it is not
 * given. */
#define SHAPE_INT(attribute_name, value)                                               \
    {                                                                                  \
        .name = attribute_name, .type = IR_ATTRIBUTE_INT, .otherwise = {.i = (value) } \
    }
#define SHAPE_REAL(attribute_name, value)                                                \
    {                                                                                    \
        .name = attribute_name, .type = IR_ATTRIBUTE_FLOAT, .otherwise = {.f = (value) } \
    }
#define SHAPE_WORD(attribute_name, value)                                \
    {                                                                    \
        .name = attribute_name, .type = IR_ATTRIBUTE_STR, .otherwise = { \
            .s = {value, sizeof(value) - 1}                              \
        }                                                                \
    }
#define SHAPE_NEEDED(attribute_name, kind)                                    \
    {                                                                         \
        .name = attribute_name, .type = IR_ATTRIBUTE_##kind, .required = true \
    }
#define SHAPE_LIST(attribute_name)                        \
    {                                                     \
        .name = attribute_name, .type = IR_ATTRIBUTE_INTS \
    }

/* The tensor of an input, or NULL if it is absent. */
const ir_tensor *shape_input(const ir_graph *g, const ir_op *op, uint32_t input);

/* MPK_ESHAPE unless the input has one of these dtypes and this shape (dims[rank]: SHAPE_FREE
 * matches all). */
mpk_status shape_expect(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input,
                        uint32_t dtypes, uint32_t rank, const int64_t *dims);
/* MPK_ESHAPE unless the input has one of these dtypes, whatever its shape. */
mpk_status shape_expect_dtype(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input,
                              uint32_t dtypes);
/* MPK_ESHAPE unless 0 <= axis < rank of the input. */
mpk_status shape_expect_axis(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input,
                             int64_t axis);
/* MPK_ESHAPE if axis 0 of the input may be partly alive: for operators that mix the entries of
 * axis 0. */
mpk_status shape_expect_whole(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input);
/* MPK_ESHAPE unless the input is a mask, of truth values or real numbers, that broadcasts to
 * scores[4]. */
mpk_status shape_expect_mask(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input,
                             const int64_t *scores);
/* MPK_ESHAPE unless axis 0 of the input counts `live`. */
mpk_status shape_expect_live(mpk_context *cx, const ir_graph *g, const ir_op *op, uint32_t input,
                             ir_live live);

/* Give the result the dtype, live, rank and dims of a tensor; its name and storage are left
 * alone. */
void shape_like(const ir_tensor *from, ir_tensor *out);
/* The numpy broadcast of all inputs, none of which may be absent: rank, dims and live of out,
 * not its dtype. */
mpk_status shape_broadcast(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out);
/* What a box of the broadcast result, of rank out_rank, reads of a tensor. */
void shape_broadcast_box(const ir_tensor *in, uint32_t out_rank, const ir_box *box, ir_box *read);

/* Records' `axes`: every axis may be cut anywhere; every axis but the last; only axis 0. */
void shape_axes_all(const ir_graph *g, const ir_op *op, op_axis *axes);
void shape_axes_rows(const ir_graph *g, const ir_op *op, op_axis *axes);
void shape_axes_first(const ir_graph *g, const ir_op *op, op_axis *axes);
/* Records' `reads` of element-wise operators. */
void shape_reads_broadcast(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                           ir_box *read);
/* Records' `reads` of operators on rows: of input 0 the box's rows, each whole; every other
 * input whole. */
void shape_reads_rows(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                      ir_box *read);
/* Records' `scratch_bytes`: a row of input 0 as f32. */
size_t shape_scratch_row(const ir_graph *g, const ir_op *op, const ir_box *box);

#endif
