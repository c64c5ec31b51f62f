/* rewrite.h - a working copy of a tensor program, for the passes that rewrite operators.
 *
 * A pass adds operators to the copy, substitutes their results for older tensors, and extracts
 * the finished program: operators in the order of their keys, without dead ones.
 *
 *   rewrite_begin(s, *g, &w);
 *   for each operator o: if a pattern ends in o
 *       rewrite_add(&w, w.keys.at[o], "linear", ..., &out);      the replacement, at o's place
 *       rewrite_replace(&w, o's result, out);                    its readers read `out`; o is dead
 *   rewrite_end(&w, g);
 *
 * Invariants: an operator of the copy is never changed or removed; its operands must be read
 * through rewrite_input, which follows replacements.  Views keep the strides they had before the
 * pass, so a rule that follows views must run before the rules that move the viewed tensors.
 * Pointers to operators and tensors are valid until the next rewrite_add, which may move the
 * arrays.
 */
#ifndef PASS_REWRITE_H
#define PASS_REWRITE_H

#include "ir/op.h"
#include "pass/pass.h"

/* The working copy.  Everything lies in the scratch arena of `s`; the source is borrowed and not
 * changed. */
typedef struct rewrite {
    pass_state *s;
    ir_graph *g;                  /* the copy; operators at the end are new */
    VEC(uint32_t) keys;           /* [ops] the order; operators of the source have 8, 16, 24 ... */
    VEC(ir_tensor_id) stands_for; /* [tensors] the substitute for this tensor; initially itself */
    VEC(uint32_t) uses;           /* [tensors] operands and outputs of the graph that read it */
    VEC(str) names;               /* [tensors] its new name; empty: it keeps its own */
    bool *is_output;              /* [tensors of the source] */
    uint32_t n_source;            /* tensors of the source */
    uint32_t n_made;              /* operators added so far, for their names */
} rewrite;

/* Begin a copy of `from`, which must outlive it.  MPK_ENOMEM, as of all functions here that
 * return a status. */
mpk_status rewrite_begin(pass_state *s, const ir_graph *from, rewrite *out);
/* The tensor that operand `input` of an operator reads now; IR_NONE if it is absent. */
ir_tensor_id rewrite_input(const rewrite *w, const ir_op *op, uint32_t input);
/* The operator that makes a tensor; NULL: none does, or it is absent. */
const ir_op *rewrite_maker(const rewrite *w, ir_tensor_id tensor);
/* The same if it is of this kind; NULL otherwise. */
const ir_op *rewrite_producer(const rewrite *w, ir_tensor_id tensor, const char *kind);
/* Follow views back to the tensor whose producer computed the elements. */
ir_tensor_id rewrite_before_views(const rewrite *w, ir_tensor_id tensor);
/* The value of an attribute by name, which the operator's record must have. */
const ir_attribute *rewrite_attribute(const ir_op *op, const char *name);
/* Add an operator at place `key`; attributes as for ir_add_op.  It stands after all operators of
 * the same key that are there already.  Failures are those of ir_add_op: a replacement that its
 * record refuses is a defect of the rule. */
mpk_status rewrite_add(rewrite *w, uint32_t key, const char *kind, uint32_t n_in,
                       const ir_tensor_id *in, const ir_set *attributes, ir_tensor_id *out);
/* Does an operator between two keys write the storage of a tensor in place? */
bool rewrite_is_written(const rewrite *w, ir_tensor_id tensor, uint32_t first, uint32_t last);
/* May an operator at place `key` read these tensors, or has the storage of one been written again
 * since the tensor was made?  A rule must ask when its replacement stands where the last operator
 * of its pattern stood, and so reads later what earlier ones read.  IR_NONE may be read.  Cost:
 * linear in the program for each tensor. */
bool rewrite_are_current(const rewrite *w, const ir_tensor_id *tensors, uint32_t n, uint32_t key);
/* Add the reshape of a tensor. */
mpk_status rewrite_reshape(rewrite *w, uint32_t key, ir_tensor_id t, uint32_t rank,
                           const int64_t *dims, ir_tensor_id *out);
/* The attributes of an operator for rewrite_add; sets[IR_MAX_ATTRIBUTES + 1]. */
mpk_status rewrite_copy_attributes(rewrite *w, const ir_op *op, ir_set *sets);
/* Substitute `by` for `old` in all readers, of the graph's outputs too: if `old` is an output,
 * `by` takes its name.  Both must hold the same elements; only rule `result` of recognise.c lets
 * their shapes differ. */
void rewrite_replace(rewrite *w, ir_tensor_id old, ir_tensor_id by);
/* The finished program, in the result arena.  The copy must not be used any more. */
mpk_status rewrite_end(rewrite *w, ir_graph **out);

#endif
