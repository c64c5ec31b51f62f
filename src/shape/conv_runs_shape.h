/* conv_runs_shape.h - short convolutions of columns over the tokens of a step, as host and device
 * see them (gen/body_conv_runs.c, device/task/conv_runs.cuh): the fields of an instance, its
 * operands. */
#ifndef SHAPE_CONV_RUNS_SHAPE_H
#define SHAPE_CONV_RUNS_SHAPE_H

#include "shape/fields.h"

/* Weights of a column: each number from 2 on has a routine. */
enum { CONV_RUNS_MOST_WEIGHTS = 5 };

/* Operands in rt_entry.at; the state is read and written in place. */
enum { CONV_RUNS_X, CONV_RUNS_WEIGHT, CONV_RUNS_POSITIONS, CONV_RUNS_SLOTS, CONV_RUNS_STATE };

/*   x_stride, y_stride  elements from a token's row to the next, of x and of y
 *   y                   operand of the first output
 *   columns             of a row of the state
 *   slots               that the state has
 *   silu                1: of the sums */
/* clang-format off */
#define CONV_RUNS_SHAPE_FIELDS(INT)                              \
    INT(x_stride) INT(y_stride) INT(y) INT(columns)            \
    INT(slots) INT(silu)
/* clang-format on */

typedef struct conv_runs_shape {
    CONV_RUNS_SHAPE_FIELDS(FIELD_INT)
} conv_runs_shape;
SHAPE_ASSERT(conv_runs_shape_has_no_padding, sizeof(conv_runs_shape) == 6 * 4);

#endif
