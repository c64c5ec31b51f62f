/* roll.h - steps of a loop that a frontend has unrolled: are two tensors the same of two
 * neighbouring steps, and what all steps make of it together.  For roll.c.
 *
 * Tensors a and b match if equal operators make them of operands that match, down to operands that
 * are one tensor (the same in all steps) and to entries i and i + 1 of one tensor along an axis:
 *
 *   %a = mul(slice(%x) {starts = [0, 4], stops = [9, 5]}, %w)
 *   %b = mul(slice(%x) {starts = [0, 5], stops = [9, 6]}, %w)
 *
 * Of two states of a recurrence the operand in b that is a itself ends the search, too.  How a pair
 * matches is written down as a pattern; that of all pairs of a loop is one and the same. */
#ifndef PASS_ROLL_H
#define PASS_ROLL_H

#include "pass/fuse.h"

enum { ROLL_PAIRS = 96, ROLL_PATTERN = 4 * ROLL_PAIRS };

/* What of a pair depends on the step. */
typedef enum roll_kind {
    ROLL_NONE,  /* it does not match */
    ROLL_SAME,  /* nothing: one tensor */
    ROLL_STEP,  /* the number of the step alone */
    ROLL_STATE, /* the state before, too */
} roll_kind;

/* Two tensors that match. */
typedef struct roll_pair {
    ir_tensor_id a, b;
    roll_kind kind;
    ir_tensor_id lifted; /* what all steps make of a; IR_NONE: it has not been lifted yet */
} roll_pair;

/* A match: begin with zeros but for the first three. */
typedef struct roll_match {
    const rewrite *w;
    const bool *is_written; /* [tensors] of roots: an operator writes it in place */
    ir_tensor_id state;     /* of b, where the search ends; IR_NONE: of results, not of states */
    bool from_zero;         /* a is of the first step, whose state before is a number 0 in texts */
    bool reads_recur;       /* an entry is of the result of a recur */
    ir_tensor_id before;    /* of a, in the place of b's state; IR_NONE: not found yet */
    uint32_t n_pairs, n_pattern, n_members;
    roll_pair pairs[ROLL_PAIRS];
    uint32_t pattern[ROLL_PATTERN];
    ir_op_id members[ROLL_PAIRS]; /* operators of a that need the state, producers first */
} roll_match;

/* Match two tensors and fill *m. */
roll_kind roll_compare(roll_match *m, ir_tensor_id a, ir_tensor_id b);
/* Have two matches one pattern? */
bool roll_is_alike(const roll_match *m, const roll_match *other);
/* Add at place `key` what n steps make of a, which is that of step number `before`: [n, as a].  Of
 * a tensor that is the same in all steps that tensor.  Of one match always with the same key,
 * before and n. */
mpk_status roll_lift(rewrite *w, roll_match *m, uint32_t key, ir_tensor_id a, int64_t before,
                     int64_t n, ir_tensor_id *out);
/* The same as one operand of an operator whose result has n steps of rank `rank`. */
mpk_status roll_lift_operand(rewrite *w, roll_match *m, uint32_t key, ir_tensor_id a,
                             int64_t before, int64_t n, uint32_t rank, ir_tensor_id *out);

#endif
