/* shard.h - what the two files of the pass shard share: where the axes of tensors are cut among
 * peers.
 *
 * shard_cuts.c fills the classes once for a program; shard.c reads from them, for each operator,
 * whether a way to split it is possible, and for each tensor which entries a peer has.
 */
#ifndef PASS_SHARD_H
#define PASS_SHARD_H

#include "ir/op.h"
#include "pass/pass.h"

/* Axes that operators can only cut together, at the same fractions, are one class: q_proj's
 * rows, heads, o_proj's columns.  A node is an axis of a tensor; a class is a tree of nodes, and
 * its data stand in the root. */
typedef struct shard_node {
    uint32_t parent;  /* itself: a root, and what follows is the class's */
    uint32_t follows; /* IR_NONE, or the node whose parts say which of the `groups` a peer has */
    int64_t units;    /* the axis can be cut at multiples of 1 / units of it */
    int64_t groups;   /* equal groups that a part holds whole or lies within; 0: none */
    bool broken;      /* two rules contradict each other: it is not cut */
} shard_node;

/* Each tensor has a node for each axis, and one for the axis of others that its entries number
 * (OP_IDS). */
enum { SHARD_NUMBERED = IR_MAX_RANK, SHARD_NODES };

/* The nodes of a program: node tensor * SHARD_NODES + axis. */
typedef struct shard_cuts {
    const ir_graph *g;
    uint32_t n_peers;
    shard_node *nodes; /* [tensors * SHARD_NODES] */
} shard_cuts;

/* Find the classes of a program; everything lies in `a`, the graph is borrowed.  Cost: operators
 * times their ways. */
mpk_status shard_fill_cuts(mpk_context *cx, arena *a, const ir_graph *g, uint32_t n_peers,
                           shard_cuts *out);
/* The entries lo <= i < hi of an axis that a peer has; false: the axis cannot be cut into that many
 * parts. */
bool shard_find_part(const shard_cuts *c, ir_tensor_id tensor, uint32_t axis, uint32_t peer,
                     int64_t *lo, int64_t *hi);
/* Can an operator go this way: can every axis that it names be cut among all peers? */
bool shard_can_split(const shard_cuts *c, const ir_op *op, const op_split *way);

#endif
