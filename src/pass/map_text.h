/* map_text.h - the text of an expression of the operator map that stands for several element-wise
 * operators.  For the passes that write such: fuse_map and roll.
 *
 *   map_writer to = {.w = w};
 *   for each operator, producers first: map_text_add(&to, op, is_last);
 *   to.out is the text, to.in[to.n_in] are the tensors that it calls x0 and up
 *   text_free(&to.out)
 */
#ifndef PASS_MAP_TEXT_H
#define PASS_MAP_TEXT_H

#include "op/map_program.h"
#include "pass/rewrite.h"
#include "rt/rt_lane.h"

/* Limits of what one expression stands for: operators, steps of the compiled text, temporaries,
 * bytes of text.  FUSE_INPUTS: with the result, as many operands as a GPU body takes; more would
 * leave the operator without a body. */
enum {
    FUSE_MEMBERS = 24,
    FUSE_STEPS = 200,
    FUSE_TEMPS = 32,
    FUSE_TEXT = 4096,
    FUSE_INPUTS = RT_PACKED - 1
};

/* The expression, as the record of map takes it, that has the bits of an operator; empty if
 * there is none.  Operands are x0, x1 ...; a map has an expression already, which may use
 * temporaries t0, t1 ... of its own. */
str map_text_of(const ir_op *op);

/* The token of an expression at `at`: a number (with the sign of its exponent), a word, or one
 * other character. */
str map_text_token(str s, size_t at);
/* Is the token the letter and a number below 100, such as "x12" or "t3"?  *number is written
 * only if its form fits. */
bool map_text_is_numbered(str token, char letter, uint32_t *number);
/* Temporaries of an operator's expression, and one more for its result. */
uint32_t map_text_count_temps(const ir_op *op);

/* The text under construction and what its names stand for. */
typedef struct map_writer {
    const rewrite *w;
    text out;
    /* in[n_in]: the tensor that xK is.  made[n_made]: results of operators written so far, and
     * temp_of: the temporary that holds each. */
    ir_tensor_id in[IR_MAX_INPUTS], made[FUSE_MEMBERS];
    /* n_temps: temporaries named so far */
    uint32_t n_in, n_made, temp_of[FUSE_MEMBERS], n_temps;
} map_writer;

/* Write the statements of an operator, whose operands from outside become operands of the text.
 * Its value is rounded to the result's dtype and goes to a temporary; that of the last operator is
 * the text's value.  The caller keeps all operators within FUSE_MEMBERS and their operands within
 * IR_MAX_INPUTS. */
void map_text_add(map_writer *to, const ir_op *op, bool is_last);
/* Will the record of map take the text and its operands? */
bool map_text_fits(const map_writer *to);

#endif
