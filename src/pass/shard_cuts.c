/* shard_cuts.c - where the axes of a program's tensors are cut among peers (see shard.h).
 *
 * Input: a tensor program; the records say which axes an operator cuts together (op_split).
 * Output: classes of axes, by union of what any way of any operator joins.  A class is cut at
 * multiples of what all its axes allow: whole blocks of a weight in a block format, whole heads.
 *
 * Where each part must hold whole groups, or lie within one (the query heads that share a KV
 * head), more peers than groups share them: peer p is of group p * groups / peers, and the peers
 * of one group divide it; so KV heads are replicated and nothing else is.
 *
 *   32 query heads, 8 KV heads, 4 peers:   peer 1 has query heads 8 to 15 and KV heads 2, 3
 *   32 query heads, 8 KV heads, 16 peers:  peer 2 has query heads 4, 5 and KV head 1;
 *                                          peer 3 has query heads 6, 7 and KV head 1 too
 *
 * Called by shard.c.  Cost: operators times their ways; union-find without path compression,
 * since classes are shallow.
 */
#include "pass/shard.h"

/* Cuts fall on multiples of COARSE units if that gives each peer ENOUGH of them: rows of weights
 * stay aligned, and tiles whole. */
enum { COARSE = 64, ENOUGH = 16 };

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The node of an axis of a tensor; tensor and axis are recovered by division (shard_can_split). */
static uint32_t node_of(ir_tensor_id tensor, uint32_t axis)
{
    return tensor * SHARD_NODES + axis;
}

/* The class of a node. */
static uint32_t root_of(const shard_cuts *c, uint32_t node)
{
    while (c->nodes[node].parent != node)
        node = c->nodes[node].parent;
    return node;
}

/* Unite two classes.  The united class can be cut only where both could: at multiples of the gcd;
 * two different numbers of groups contradict each other and break it. */
static void join(shard_cuts *c, uint32_t x, uint32_t y)
{
    uint32_t into = root_of(c, x), from = root_of(c, y);
    if (into == from)
        return;
    shard_node *a = &c->nodes[into], *b = &c->nodes[from];
    b->parent = into;
    a->units = gcd(a->units, b->units);
    a->broken = a->broken || b->broken || (a->groups && b->groups && a->groups != b->groups);
    a->groups = a->groups ? a->groups : b->groups;
    a->follows = a->follows != IR_NONE ? a->follows : b->follows;
}

/* ---- the ways of an operator ---- */

/* The node of operand i (inputs first, then outputs) that a way cuts; IR_NONE: the operand is
 * absent or not cut. */
static uint32_t cut_of(const ir_op *op, const op_split *way, uint32_t i)
{
    bool is_input = i < op->n_in;
    ir_tensor_id t = is_input ? op->in[i] : op->out[i - op->n_in];
    int axis = is_input ? way->in[i] : way->out[i - op->n_in];
    if (t != IR_NONE && axis == OP_IDS)
        return node_of(t, SHARD_NUMBERED);
    return t == IR_NONE || axis < 0 ? IR_NONE : node_of(t, (uint32_t)axis);
}

/* Is operand i one whose part must cover the groups that the others' parts touch, as KV heads
 * must cover query heads? */
static bool is_covered(const ir_op *op, const op_split *way, uint32_t i)
{
    return i < op->n_in && way->covers >> i & 1;
}

/* How many entries the cut axis has that ids number: of the first operand that is cut. */
static int64_t count_numbered(const shard_cuts *c, const ir_op *op, const op_split *way)
{
    uint32_t i = 0;
    while (i + 1 < op->n_in && (op->in[i] == IR_NONE || way->in[i] < 0))
        i++;
    return c->g->tensors.at[op->in[i]].dims[way->in[i]];
}

/* Ids number the same entries for every operator that reads them, one by one: groups of one. */
static void join_ids(shard_cuts *c, const ir_op *op, const op_split *way)
{
    for (uint32_t i = 0; i < op->n_in; i++) {
        if (op->in[i] == IR_NONE || way->in[i] != OP_IDS)
            continue;
        shard_node *k = &c->nodes[root_of(c, node_of(op->in[i], SHARD_NUMBERED))];
        const int64_t n = count_numbered(c, op, way);
        k->broken = k->broken || (k->groups && k->groups != n);
        k->groups = n;
    }
}

/* Join the axes that a way cuts: the covered ones are one class, all others another, which the
 * first one follows. */
static void join_way(shard_cuts *c, const ir_op *op, const op_split *way)
{
    uint32_t first[2] = {IR_NONE, IR_NONE};
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        uint32_t node = cut_of(op, way, i), *of = &first[is_covered(op, way, i)];
        if (node == IR_NONE)
            continue;
        if (*of == IR_NONE)
            *of = node;
        join(c, *of, node);
    }
    join_ids(c, op, way);
    if (first[1] == IR_NONE)
        return; /* nothing is covered; what is follows an axis that is not */
    shard_node *leader = &c->nodes[root_of(c, first[0])],
               *follower = &c->nodes[root_of(c, first[1])];
    leader->broken = leader->broken || (leader->groups && leader->groups != way->groups);
    leader->groups = way->groups;
    follower->follows = first[0];
}

/* A node for every axis of every tensor, then one walk over all operators and all the ways in
 * which each may be cut: axes that are cut together become one class (union by root_of).  The
 * units of a class are the greatest common divisor of those of its axes: it is cut at their
 * multiples.
 */
mpk_status shard_fill_cuts(mpk_context *cx, arena *a, const ir_graph *g, uint32_t n_peers,
                           shard_cuts *out)
{
    *out = (shard_cuts){.g = g, .n_peers = n_peers};
    NEW(cx, a, out->nodes, g->tensors.n * SHARD_NODES);
    for (ir_tensor_id t = 0; t < g->tensors.n; t++) {
        const ir_tensor *tensor = &g->tensors.at[t];
        int64_t block = ir_dtype_table[tensor->dtype].block_elements;
        for (uint32_t i = 0; i < SHARD_NODES; i++) { /* with no units it allows all cuts */
            uint32_t node = node_of(t, i);
            out->nodes[node] = (shard_node){.parent = node, .follows = IR_NONE};
        }
        for (uint32_t i = 0; i < tensor->rank; i++)
            out->nodes[node_of(t, i)].units = tensor->dims[i] / (i + 1 == tensor->rank ? block : 1);
    }
    op_split way;
    for (size_t o = 0; o < g->ops.n; o++)
        for (uint32_t k = 0; op_find_split(g, &g->ops.at[o], k, &way); k++)
            join_way(out, &g->ops.at[o], &way);
    return MPK_OK;
}

/* ---- parts ---- */

/* The largest power of two up to COARSE such that cuts at its multiples leave parts nearly even:
 * it divides the units, and either each peer gets ENOUGH multiples or all peers get equally
 * many. */
static int64_t coarse_units(int64_t units, int64_t n)
{
    int64_t coarse = COARSE;
    while (coarse > 1 && (units % coarse || (units / coarse < ENOUGH * n && units / coarse % n)))
        coarse /= 2;
    return coarse;
}

/* The part of a peer where there are fewer groups than peers: an equal share of one group.  The
 * peers first ... end - 1 divide the group.  False if groups have no equal size or the part
 * would be empty. */
static bool find_nested(const shard_node *k, int64_t n, int64_t peer, int64_t *lo, int64_t *hi)
{
    int64_t each = k->units / k->groups, group = peer * k->groups / n;
    int64_t first = (group * n + k->groups - 1) / k->groups,
            end = ((group + 1) * n + k->groups - 1) / k->groups;
    *lo = group * each + each * (peer - first) / (end - first);
    *hi = group * each + each * (peer + 1 - first) / (end - first);
    return k->units % k->groups == 0 && *hi > *lo;
}

/* The units *lo <= i < *hi of its class that a peer has; false: some peer would have none. */
static bool find_units(const shard_node *k, int64_t n, int64_t peer, int64_t *lo, int64_t *hi)
{
    int64_t whole = k->groups ? gcd(k->units, k->groups) : k->units / coarse_units(k->units, n);
    if (k->groups && whole < n)
        return find_nested(k, n, peer, lo, hi);
    *lo = whole * peer / n * (k->units / whole);
    *hi = whole * (peer + 1) / n * (k->units / whole);
    return whole >= n;
}

/* The part of a class that follows another: the groups that the leader's part touches, as units
 * of its own.  False also if the leader itself follows a third class, a chain that no operator
 * makes. */
static bool find_covered(const shard_cuts *c, const shard_node *k, int64_t n, int64_t peer,
                         int64_t *lo, int64_t *hi)
{
    const shard_node *leader = &c->nodes[root_of(c, k->follows)];
    int64_t first, end, groups = leader->groups;
    if (leader->broken || leader->follows != IR_NONE || k->units % groups ||
        !find_units(leader, n, peer, &first, &end))
        return false;
    *lo = first * groups / leader->units * (k->units / groups);
    *hi = (end * groups + leader->units - 1) / leader->units * (k->units / groups);
    return true;
}

/* The entries *lo <= i < *hi of an axis that a peer has, from its class's units.  False: the axis
 * cannot be cut among so many peers.
 */
bool shard_find_part(const shard_cuts *c, ir_tensor_id tensor, uint32_t axis, uint32_t peer,
                     int64_t *lo, int64_t *hi)
{
    const shard_node *k = &c->nodes[root_of(c, node_of(tensor, axis))];
    int64_t size = c->g->tensors.at[tensor].dims[axis];
    if (k->broken)
        return false;
    if (k->follows != IR_NONE ? !find_covered(c, k, c->n_peers, peer, lo, hi)
                              : !find_units(k, c->n_peers, peer, lo, hi))
        return false;
    *lo *= size / k->units;
    *hi *= size / k->units;
    return true;
}

/* Has every peer a part of every axis that the way cuts?  Axes that number entries of others are
 * not cut themselves.
 */
bool shard_can_split(const shard_cuts *c, const ir_op *op, const op_split *way)
{
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        uint32_t node = cut_of(op, way, i);
        int64_t lo, hi;
        if (node == IR_NONE || node % SHARD_NODES == SHARD_NUMBERED)
            continue;
        for (uint32_t p = 0; p < c->n_peers; p++)
            if (!shard_find_part(c, node / SHARD_NODES, node % SHARD_NODES, p, &lo, &hi))
                return false;
    }
    return true;
}
