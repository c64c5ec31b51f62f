/* rewrite.h - a working copy of a tensor program, for the passes that rewrite operators.
 *
 * A pass adds operators to the copy, lets their results stand for older ones, and takes the finished program out:
 * operators in the order of their keys, dead ones dropped.  Strides of views are those before the pass; a rule that
 * follows views runs on the program as it was before the rules that move what is viewed.
 */
#ifndef PASS_REWRITE_H
#define PASS_REWRITE_H

#include "ir/op.h"
#include "pass/pass.h"

typedef struct rewrite {
    pass_state *s;
    ir_graph *g;                  /* the copy; operators at the end are new */
    VEC(uint32_t) keys;           /* [ops] where they stand: those of the source 8, 16, 24 ... */
    VEC(ir_tensor_id) stands_for; /* [tensors] the tensor that is to be read in place of this one; itself */
    VEC(uint32_t) uses;           /* [tensors] operands and outputs of the graph that read it */
    VEC(str) names;               /* [tensors] the name that it gets; empty: its own */
    bool *is_output;              /* [tensors of the source] */
    uint32_t n_source;            /* tensors of the source */
    uint32_t n_made;
} rewrite;

mpk_status rewrite_begin(pass_state *s, const ir_graph *from, rewrite *out);
/* The tensor that operand `input` of an operator reads now; IR_NONE if it is absent. */
ir_tensor_id rewrite_input(const rewrite *w, const ir_op *op, uint32_t input);
/* The operator that makes a tensor, if it is of this kind; NULL otherwise. */
const ir_op *rewrite_producer(const rewrite *w, ir_tensor_id tensor, const char *kind);
/* Through views to the tensor whose producer made the elements. */
ir_tensor_id rewrite_before_views(const rewrite *w, ir_tensor_id tensor);
/* The value of an attribute by name; the operator's record has it. */
const ir_attribute *rewrite_attribute(const ir_op *op, const char *name);
/* Add an operator that stands at `key`; attributes as for ir_add_op. */
mpk_status rewrite_add(rewrite *w, uint32_t key, const char *kind, uint32_t n_in, const ir_tensor_id *in,
                       const ir_set *attributes, ir_tensor_id *out);
/* Is the storage of a tensor written in place by an operator between two keys?  Then it is not what it was. */
bool rewrite_is_written(const rewrite *w, ir_tensor_id tensor, uint32_t first, uint32_t last);
/* Add the reshape of a tensor. */
mpk_status rewrite_reshape(rewrite *w, uint32_t key, ir_tensor_id t, uint32_t rank, const int64_t *dims,
                           ir_tensor_id *out);
/* The attributes of an operator for rewrite_add; sets[IR_MAX_ATTRIBUTES + 1]. */
mpk_status rewrite_copy_attributes(rewrite *w, const ir_op *op, ir_set *sets);
/* From now on `by` is read instead of `old`, whose name it takes if old is an output of the graph. */
void rewrite_replace(rewrite *w, ir_tensor_id old, ir_tensor_id by);
/* The finished program, in the result arena. */
mpk_status rewrite_end(rewrite *w, ir_graph **out);

#endif
