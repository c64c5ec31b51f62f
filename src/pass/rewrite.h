/* rewrite.h - rebuild a tensor program, replacing what a rule matches.
 *
 * A rule is asked at every operator in order.  It either declines, and the operator is copied with its inputs mapped,
 * or adds operators to the copy and says what stands for the old outputs (rewrite_map).  What a rule makes useless is
 * dropped by pass_simplify afterwards.  Rules see only the old graph: one rule, one sweep, O(operators).
 */
#ifndef PASS_REWRITE_H
#define PASS_REWRITE_H

#include "ir/op.h"
#include "pass/pass.h"

typedef struct rewrite {
    mpk_context *cx;
    const pass_options *options;
    const ir_graph *from;
    ir_graph *to;
    ir_tensor_id *map; /* [from->tensors.n] the tensor in `to`, IR_NONE: not there yet */
    bool *done;        /* [from->ops.n] an operator that an earlier match has replaced: not copied */
    uint32_t *n_users; /* [from->tensors.n] inputs of operators and graph outputs that are this tensor */
    ir_op_id *user;    /* [from->tensors.n] the last operator that reads it, IR_NONE */
} rewrite;

/* True if the rule has replaced operator `op`. */
typedef mpk_status rewrite_rule(rewrite *r, ir_op_id op, bool *matched);

/* Copy *g through a rule into the result arena; *g is then the copy.  NULL: a plain copy. */
mpk_status rewrite_graph(pass_state *s, ir_graph **g, rewrite_rule *rule);

/* ---- for rules ---- */

/* The operator's record is this one. */
bool rewrite_is(const ir_op *op, const char *name);
/* The operator of that name that makes tensor t, or NULL. */
const ir_op *rewrite_producer(const rewrite *r, ir_tensor_id t, const char *name);
/* The same if nothing else reads t. */
const ir_op *rewrite_sole_producer(const rewrite *r, ir_tensor_id t, const char *name);
/* Input i of op, IR_NONE if absent. */
ir_tensor_id rewrite_in(const ir_op *op, uint32_t i);
/* An attribute by name; it must exist. */
const ir_attribute *rewrite_attribute(const ir_op *op, const char *name);

/* Add an operator to the copy; inputs are tensors of the old graph.  Named attributes replace the defaults. */
mpk_status rewrite_add(rewrite *r, const char *op, const char *name, uint32_t n_in, const ir_tensor_id *in,
                       const ir_set *attributes, ir_tensor_id *out);
/* The same with the record and the attributes of an old operator, but for the named ones. */
mpk_status rewrite_add_like(rewrite *r, const ir_op *like, ir_tensor_id name_of, uint32_t n_in, const ir_tensor_id *in,
                            const ir_set *attributes, ir_tensor_id *out);
/* From now on old tensor t is tensor n of the copy. */
void rewrite_map(rewrite *r, ir_tensor_id t, ir_tensor_id n);

#endif
