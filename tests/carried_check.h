/* carried_check.h - is what carriers.c has planned for a graph sound?  Each pair of tasks is asked,
 * from entries and clears alone, by the rules at the top of carriers.c and not by its ways:
 *
 *   order   tasks that touch the same entries of what is not carried stay in order, though a quiet
 *           task waits for the gate's event alone, and for the words that it polls
 *   words   what is carried is read by polls alone, in whole words
 *   clear   all tasks that touch carried words come before the event with which a worker clears,
 *           and workers clear what the lists of their number write, no more and no less
 *
 * For carriers_test.c and cuda_peers_test.c. */
#ifndef TESTS_CARRIED_CHECK_H
#define TESTS_CARRIED_CHECK_H

#include "check.h"

#include "cuda/cuda_machine.h"
#include "gen/body_print.h"
#include "ir/op.h"

/* One task's use of a root. */
typedef struct carried_use {
    uint32_t task, operand; /* inputs, then outputs */
    ir_tensor_id root;
    ir_box box; /* of the root */
    bool writes;
    uint32_t same_root; /* 1 + the index of the use of this root before; 0: none */
} carried_use;

typedef struct carried_graph {
    const cuda_machine *first;
    uint32_t graph;
    const ir_graph *ir;
    const rt_graph *g;
    const rt_task *tasks;
    uint32_t *depends, *worker, *carried; /* [tasks] as entries say */
    bool *quiet;
    uint8_t *before, *done; /* [events][tasks] see carried_before, carried_done */
    uint8_t *known;         /* [events] of `before`: 1: being found, 2: found */
    bool *is_done_known;    /* [events] */
    carried_use *use;       /* of all tasks that have a body, in their order */
    uint32_t *first_use;    /* [tasks + 1] */
    uint32_t *last_use;     /* [tensors] of a root, 1 + its index; 0: none */
    uint32_t n_uses, n_quiet;
} carried_graph;

static inline const cuda_flow *carried_flow(const carried_graph *c, uint32_t peer)
{
    return &c->first->peers[peer]->carriers.flows[c->graph];
}

static inline uint32_t carried_peer(const carried_graph *c, uint32_t task)
{
    return c->ir->ops.at[c->tasks[task].op].peer;
}

static inline const void *carried_table(const cuda_machine *m, uint64_t offset)
{
    return (const void *)(uintptr_t)(m->table_block + offset);
}

/* A worker's entries: n of them. */
static inline const rt_entry *carried_list(const carried_graph *c, uint32_t peer, uint32_t worker,
                                           uint32_t *n)
{
    const cuda_machine *m = c->first->peers[peer];
    const rt_u32 *first = (const rt_u32 *)carried_table(m, m->layout.first_entry) +
                          c->graph * cuda_workers(m) + worker;
    *n = first[1] - first[0];
    return (const rt_entry *)carried_table(m, m->layout.entries) + first[0];
}

/* What each task waits for: its entry's event, or the gate's, which its worker has waited for. */
static inline void carried_read_entries(carried_graph *c)
{
    for (uint32_t p = 0; p < c->first->n_peers; p++)
        for (uint32_t w = 0; w < cuda_workers(c->first); w++) {
            uint32_t n;
            const rt_entry *e = carried_list(c, p, w, &n);
            bool waited = false;
            for (uint32_t i = 0; i < n; i++) {
                const uint32_t event = e[i].depends - c->g->first_event;
                waited = waited || (!e[i].quiet && event == carried_flow(c, p)->event);
                assert_true(!e[i].quiet || waited);
                c->depends[e[i].task] = e[i].quiet ? carried_flow(c, p)->event : event;
                c->quiet[e[i].task] = e[i].quiet;
                c->carried[e[i].task] = e[i].carried;
                c->worker[e[i].task] = w;
                c->n_quiet += e[i].quiet;
            }
        }
}

/* ---- what tasks touch ---- */

/* On the peers that have it, or on its own. */
static inline bool carried_is(const carried_graph *c, ir_tensor_id root)
{
    const uint32_t peer = c->ir->tensors.at[root].peer; /* or everywhere */
    return peer < c->first->n_peers && carried_flow(c, peer)->is_carried[root];
}

static inline void carried_add_use(carried_graph *c, uint32_t task, uint32_t operand)
{
    const ir_op *op = &c->ir->ops.at[c->tasks[task].op];
    const bool writes = operand >= op->n_in;
    const ir_tensor_id t = writes ? op->out[operand - op->n_in] : op->in[operand];
    ir_box own = {0}, box = {0};
    carried_use *u = &c->use[c->n_uses];
    if (t == IR_NONE)
        return;
    for (uint32_t i = 0; i < RT_MAX_RANK; i++) {
        own.lo[i] = c->tasks[task].lo[i];
        own.hi[i] = c->tasks[task].hi[i];
    }
    if (!writes)
        op->def->reads(c->ir, op, operand, &own, &box);
    else if (operand > op->n_in && op->def->writes)
        op->def->writes(c->ir, op, operand - op->n_in, &own, &box);
    else
        box = own;
    if (operand == op->n_in && carried_is(c, t))
        gen_own_words(c->first->source.uses[c->graph][c->tasks[task].op].body,
                      &c->ir->tensors.at[t], &box);
    *u = (carried_use){.task = task, .operand = operand, .writes = writes};
    ir_root(c->ir, t, &box, &u->root, &u->box);
    if (ir_box_is_empty(&u->box, c->ir->tensors.at[u->root].rank))
        return;
    u->same_root = c->last_use[u->root];
    c->last_use[u->root] = ++c->n_uses;
}

static inline bool carried_overlap(const carried_graph *c, const carried_use *a,
                                   const carried_use *b)
{
    for (uint32_t i = 0; i < c->ir->tensors.at[a->root].rank; i++)
        if (a->box.lo[i] >= b->box.hi[i] || b->box.lo[i] >= a->box.hi[i])
            return false;
    return true;
}

/* ---- order ---- */

/* Which tasks end before an event. */
static inline const uint8_t *carried_before(carried_graph *c, uint32_t event)
{
    const uint32_t n = c->g->n_tasks;
    uint8_t *of = c->before + (size_t)event * n;
    if (c->known[event] == 1)
        fail_msg("graph %u: event %u waits for itself", c->graph, event);
    if (c->known[event])
        return of;
    c->known[event] = 1;
    for (uint32_t t = 0; t < n; t++)
        if (c->tasks[t].triggers == event) {
            const uint8_t *more = carried_before(c, c->depends[t]);
            of[t] = 1;
            for (uint32_t k = 0; k < n; k++)
                of[k] |= more[k];
        }
    c->known[event] = 2;
    return of;
}

/* The place of element number k of a box, in elements from the root's first. */
static inline int64_t carried_element(const ir_tensor *t, const ir_box *box, int64_t k)
{
    int64_t at = 0;
    for (uint32_t a = t->rank; a-- > 0; k /= box->hi[a] - box->lo[a])
        at += (box->lo[a] + k % (box->hi[a] - box->lo[a])) * t->stride[a];
    return at;
}

/* Have all words of a written box been polled by tasks that are done? */
static inline bool carried_is_polled(const carried_graph *c, const carried_use *u,
                                     const uint8_t *done)
{
    const ir_tensor *t = &c->ir->tensors.at[u->root];
    uint8_t *seen = calloc((size_t)ir_elements(t), 1);
    int64_t n = 0;
    for (uint32_t i = c->last_use[u->root]; i; i = c->use[i - 1].same_root) {
        const carried_use *r = &c->use[i - 1];
        if (r->writes || !done[r->task] || !carried_overlap(c, u, r))
            continue;
        ir_box both = u->box;
        for (uint32_t a = 0; a < t->rank; a++) {
            both.lo[a] = r->box.lo[a] > both.lo[a] ? r->box.lo[a] : both.lo[a];
            both.hi[a] = r->box.hi[a] < both.hi[a] ? r->box.hi[a] : both.hi[a];
        }
        for (int64_t k = ir_box_elements(&both, t->rank); k-- > 0;) {
            uint8_t *element = &seen[carried_element(t, &both, k)];
            n += !*element;
            *element = 1;
        }
    }
    free(seen);
    return n == ir_box_elements(&u->box, t->rank);
}

static inline bool carried_is_read(const carried_graph *c, ir_tensor_id root)
{
    for (uint32_t i = c->last_use[root]; i; i = c->use[i - 1].same_root)
        if (!c->use[i - 1].writes)
            return true;
    return false;
}

/* Is all that a task stores in temporaries carried, and polled by tasks that are done?  What nobody
 * reads does not count. */
static inline bool carried_is_followed(const carried_graph *c, uint32_t task, const uint8_t *done)
{
    uint32_t n_writes = 0;
    for (uint32_t i = c->first_use[task]; i < c->first_use[task + 1]; i++) {
        const carried_use *u = &c->use[i];
        if (!u->writes || c->ir->tensors.at[u->root].kind == IR_STATE ||
            !carried_is_read(c, u->root))
            continue;
        if (!carried_is(c, u->root) || !carried_is_polled(c, u, done))
            return false;
        n_writes++;
    }
    return n_writes > 0;
}

/* Which tasks are through, and all their words have arrived, once a worker has seen the event?
 * Those that end before it, and those whose words such tasks have polled. */
static inline const uint8_t *carried_done(carried_graph *c, uint32_t event)
{
    const uint32_t n = c->g->n_tasks;
    uint8_t *done = c->done + (size_t)event * n;
    if (c->is_done_known[event])
        return done;
    c->is_done_known[event] = true;
    memcpy(done, carried_before(c, event), n);
    for (bool more = true; more;) {
        more = false;
        for (uint32_t t = n; t-- > 0;) {
            if (done[t] || !carried_is_followed(c, t, done))
                continue;
            const uint8_t *before = carried_before(c, c->depends[t]);
            for (uint32_t k = 0; k < n; k++)
                done[k] |= before[k] || k == t;
            more = true;
        }
    }
    return done;
}

/* Where a root lies that is not carried: an area, or IR_NONE for the block of its peer.  What is
 * sent lies in the block as in the area of temporaries. */
static inline uint32_t carried_place(const carried_graph *c, ir_tensor_id root, uint64_t *at)
{
    const ir_tensor *t = &c->ir->tensors.at[root];
    const cuda_flow *flow =
        carried_flow(c, t->producer == IR_NONE ? 0 : c->ir->ops.at[t->producer].peer);
    const tg_place *place = &c->first->machine.image.places[c->graph][root];
    const bool as_in_area =
        flow->at[root] == CUDA_IN_AREA || (flow->sends[root] && !flow->is_carried[root]);
    *at = as_in_area ? place->offset : flow->at[root];
    return as_in_area ? (uint32_t)place->area : IR_NONE;
}

static inline bool carried_share_memory(const carried_graph *c, ir_tensor_id a, ir_tensor_id b)
{
    uint64_t at, other;
    const uint32_t area = carried_place(c, a, &at);
    return area == TG_TEMPS && carried_place(c, b, &other) == area &&
           at < other + (uint64_t)ir_bytes(&c->ir->tensors.at[b]) &&
           other < at + (uint64_t)ir_bytes(&c->ir->tensors.at[a]);
}

/* Two uses of what is not carried. */
static inline void carried_check_order(carried_graph *c, const carried_use *a, const carried_use *b)
{
    const uint32_t first = c->tasks[a->task].op, second = c->tasks[b->task].op;
    if (first >= second || (!a->writes && !b->writes) || carried_is(c, a->root) ||
        carried_is(c, b->root))
        return;
    if (a->root == b->root ? !carried_overlap(c, a, b) : !carried_share_memory(c, a->root, b->root))
        return;
    const uint32_t event = c->depends[b->task];
    if (!carried_before(c, event)[a->task] && !carried_done(c, event)[a->task])
        fail_msg("graph %u: task %u (operator %u%s) and task %u (operator %u%s) touch the same "
                 "bytes of %s and %s in no order",
                 c->graph, a->task, first, c->quiet[a->task] ? ", quiet" : "", b->task, second,
                 c->quiet[b->task] ? ", quiet" : "", c->ir->tensors.at[a->root].name.at,
                 c->ir->tensors.at[b->root].name.at);
}

/* ---- what is carried ---- */

static inline void carried_check_tensor(const carried_graph *c, ir_tensor_id id)
{
    const ir_tensor *t = &c->ir->tensors.at[id];
    const gen_use made = c->first->source.uses[c->graph][t->producer];
    assert_true(t->producer != IR_NONE && made.body && made.body->carries);
    assert_true(t->offset == 0 && gen_is_dense(t, t->dtype) && t->live != IR_ROWS);
    for (ir_tensor_id i = 0; i < c->ir->tensors.n; i++)
        assert_true(i == id || tg_root(c->ir, i) != id);
    for (size_t i = 0; i < c->ir->outputs.n; i++)
        assert_int_not_equal(c->ir->outputs.at[i], id);
}

/* Whole words, and inputs that the body polls. */
static inline void carried_check_use(const carried_graph *c, const carried_use *u)
{
    const ir_tensor *t = &c->ir->tensors.at[u->root];
    const uint32_t last = t->rank - 1, op = c->tasks[u->task].op, peer = carried_peer(c, u->task);
    const gen_body *body = c->first->source.uses[c->graph][op].body;
    if (t->dtype == IR_BF16 || t->dtype == IR_F16)
        assert_int_equal((u->box.lo[last] | u->box.hi[last]) % 2, 0);
    if (u->writes)
        return;
    assert_true(body->carries >> u->operand & 1 && c->carried[u->task] >> u->operand & 1);
    assert_true(carried_flow(c, peer)->is_carried[u->root]);
    const uint32_t sends = carried_flow(c, peer)->sends[u->root];
    assert_true(sends ? sends >> peer & 1 : peer == t->peer);
}

/* Does the use touch the copy of a carried root that the peer has? */
static inline bool carried_is_on(const carried_graph *c, const carried_use *u, uint32_t peer)
{
    const uint32_t sends = carried_flow(c, peer)->sends[u->root];
    if (!carried_flow(c, peer)->is_carried[u->root])
        return false;
    if (!u->writes)
        return carried_peer(c, u->task) == peer;
    return sends ? sends >> peer & 1 : c->ir->tensors.at[u->root].peer == peer;
}

/* Count each byte of a use's box of a peer's block. */
static inline void carried_mark(const carried_graph *c, const carried_use *u, uint32_t peer,
                                int8_t *bytes)
{
    const ir_tensor *t = &c->ir->tensors.at[u->root];
    const int64_t size = ir_row_bytes(t->dtype, 1);
    for (int64_t k = ir_box_elements(&u->box, t->rank); k-- > 0;)
        for (int64_t i = 0; i < size; i++)
            bytes[(int64_t)carried_flow(c, peer)->at[u->root] +
                  carried_element(t, &u->box, k) * size + i]++;
}

/* A worker's clears: the bytes that tasks of its number have written, each once. */
static inline uint32_t carried_check_clears(const carried_graph *c, uint32_t peer, uint32_t worker)
{
    const cuda_machine *m = c->first->peers[peer];
    const rt_u32 *first = (const rt_u32 *)carried_table(m, m->layout.first_clear) +
                          c->graph * cuda_workers(m) + worker;
    const rt_clear *clears = carried_table(m, m->layout.clears);
    int8_t *bytes = calloc(m->carriers.n_bytes + 1, 1);
    for (uint32_t i = 0; i < c->n_uses; i++)
        if (c->use[i].writes && c->worker[c->use[i].task] == worker &&
            carried_is_on(c, &c->use[i], peer))
            carried_mark(c, &c->use[i], peer, bytes);
    for (uint32_t i = first[0]; i < first[1]; i++)
        for (uint32_t row = 0; row < clears[i].n_rows; row++)
            for (uint32_t k = 0; k < clears[i].n_units * clears[i].unit_bytes; k++)
                bytes[clears[i].at - m->carried_block + row * clears[i].stride_bytes + k]--;
    for (uint64_t i = 0; i < m->carriers.n_bytes; i++)
        assert_int_equal(bytes[i], 0);
    free(bytes);
    return first[1] - first[0];
}

/* With its clearing task a worker follows all that touches carried words of its GPU. */
static inline void carried_check_end(carried_graph *c, uint32_t peer, uint32_t worker)
{
    uint32_t n, n_clearing = 0;
    const rt_entry *e = carried_list(c, peer, worker, &n);
    const uint32_t n_clears = carried_check_clears(c, peer, worker);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t event = e[i].depends - c->g->first_event;
        n_clearing += e[i].clears;
        for (uint32_t k = 0; e[i].clears && k < c->n_uses; k++)
            if (carried_is_on(c, &c->use[k], peer) && !carried_done(c, event)[c->use[k].task])
                fail_msg("graph %u: task %u (operator %u) touches %s, which worker %u of GPU %u "
                         "may have cleared before it",
                         c->graph, c->use[k].task, c->tasks[c->use[k].task].op,
                         c->ir->tensors.at[c->use[k].root].name.at, worker, peer);
    }
    assert_true(n_clearing == 1 || (!n_clearing && !n_clears));
}

/* Of what other GPUs read, the tasks of each reader read all that is alive: then no word is in
 * flight when they are done. */
static inline void carried_check_sent(const carried_graph *c, ir_tensor_id id)
{
    const ir_tensor *t = &c->ir->tensors.at[id];
    const uint32_t sends = carried_flow(c, t->peer)->sends[id];
    assert_true(!sends || (c->first->source.uses[c->graph][t->producer].body->sends &&
                           c->ir->ops.at[t->producer].n_out == 1 &&
                           c->ir->ops.at[t->producer].peer == t->peer));
    for (ir_op_id op = 0; op < c->ir->ops.n && sends; op++) {
        int64_t read = 0, n_tasks = 0;
        for (uint32_t i = 0; i < c->n_uses; i++) {
            const carried_use *u = &c->use[i];
            if (u->root != id || u->writes || c->tasks[u->task].op != op)
                continue;
            bool is_new = true;
            for (uint32_t k = 0; k < i; k++)
                is_new = is_new &&
                         (c->use[k].root != id || c->use[k].writes ||
                          c->tasks[c->use[k].task].op != op || !carried_overlap(c, u, &c->use[k]));
            read += is_new ? ir_box_elements(&u->box, t->rank) : 0;
            n_tasks++;
        }
        if (n_tasks) {
            assert_int_equal(read, ir_elements(t));
            assert_int_equal(c->ir->tensors.at[c->ir->ops.at[op].out[0]].live, t->live);
        }
    }
}

static inline bool carried_is_sent(const cuda_flow *flow, ir_tensor_id id)
{
    return flow->sends[id] && !flow->is_carried[id];
}

/* Do two results lie apart in a peer's block?  Two that are sent may share bytes, if they share the
 * same ones of the temporaries. */
static inline bool carried_is_apart(const carried_graph *c, uint32_t peer, ir_tensor_id a,
                                    ir_tensor_id b)
{
    const cuda_flow *flow = carried_flow(c, peer);
    const uint64_t *at = flow->at;
    const tg_place *places = c->first->machine.image.places[c->graph];
    return a == b ||
           (carried_is_sent(flow, a) && carried_is_sent(flow, b) &&
            at[a] - at[b] == places[a].offset - places[b].offset) ||
           at[a] == CUDA_IN_AREA || at[b] == CUDA_IN_AREA ||
           at[a] + (uint64_t)ir_bytes(&c->ir->tensors.at[a]) <= at[b] ||
           at[b] + (uint64_t)ir_bytes(&c->ir->tensors.at[b]) <= at[a];
}

/* A peer's block has room for what its own tasks write; what one peer sends another has the same
 * place in all blocks. */
static inline void carried_check_place(const carried_graph *c, ir_tensor_id id)
{
    const ir_op_id by = c->ir->tensors.at[id].producer;
    for (uint32_t p = 0; p < c->first->n_peers; p++) {
        const cuda_flow *flow = carried_flow(c, p);
        const cuda_carriers *block = &c->first->peers[p]->carriers;
        if (flow->at[id] == CUDA_IN_AREA)
            continue;
        assert_int_equal(c->first->machine.image.places[c->graph][id].area, TG_TEMPS);
        if (flow->sends[id])
            assert_int_equal(flow->at[id], carried_flow(c, 0)->at[id]);
        else
            assert_true(by != IR_NONE && c->ir->ops.at[by].peer == p);
        const uint64_t end = flow->at[id] + (uint64_t)ir_bytes(&c->ir->tensors.at[id]);
        assert_true(carried_is_sent(flow, id) == (flow->at[id] < block->n_sent));
        assert_true(flow->is_carried[id] == (flow->at[id] >= block->n_sent &&
                                             flow->at[id] < block->n_sent + block->n_carried));
        assert_true(!carried_is_sent(flow, id) || end <= block->n_sent);
        assert_true(end <= block->n_bytes);
        for (ir_tensor_id other = 0; other < id; other++)
            assert_true(carried_is_apart(c, p, id, other));
    }
}

/* ---- all ---- */

static inline void carried_check_uses(carried_graph *c)
{
    for (ir_tensor_id i = 0; i < c->ir->tensors.n; i++) {
        bool is_any = false;
        for (uint32_t p = 0; p < c->first->n_peers; p++)
            is_any = is_any || carried_flow(c, p)->is_carried[i];
        if (is_any) {
            carried_check_tensor(c, i);
            carried_check_sent(c, i);
        }
        carried_check_place(c, i);
    }
    for (uint32_t i = 0; i < c->n_uses; i++) {
        if (carried_is(c, c->use[i].root))
            carried_check_use(c, &c->use[i]);
        for (uint32_t k = 0; k < c->n_uses; k++)
            carried_check_order(c, &c->use[i], &c->use[k]);
    }
}

/* Returns how many tasks are quiet. */
static inline uint32_t carried_check(const cuda_machine *first, uint32_t graph)
{
    const rt_header *h = first->machine.image.block;
    const rt_graph *g = (const rt_graph *)image_table(h, RT_GRAPHS) + graph;
    carried_graph c = {.first = first,
                       .graph = graph,
                       .ir = first->machine.image.ir[graph],
                       .g = g,
                       .tasks = (const rt_task *)image_table(h, RT_TASKS) + g->first_task,
                       .depends = calloc(g->n_tasks, sizeof(uint32_t)),
                       .worker = calloc(g->n_tasks, sizeof(uint32_t)),
                       .carried = calloc(g->n_tasks, sizeof(uint32_t)),
                       .quiet = calloc(g->n_tasks, sizeof(bool)),
                       .before = calloc(g->n_events, g->n_tasks),
                       .done = calloc(g->n_events, g->n_tasks),
                       .known = calloc(g->n_events, 1),
                       .is_done_known = calloc(g->n_events, sizeof(bool)),
                       .first_use = calloc(g->n_tasks + 1, sizeof(uint32_t)),
                       .use = calloc(g->n_tasks, RT_OPERANDS * sizeof(carried_use))};
    c.last_use = calloc(c.ir->tensors.n, sizeof(uint32_t));
    carried_read_entries(&c);
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        const ir_op *op = c.tasks[t].op == RT_NONE ? NULL : &c.ir->ops.at[c.tasks[t].op];
        for (uint32_t i = 0; op && i < op->n_in + op->n_out; i++)
            carried_add_use(&c, t, i);
        c.first_use[t + 1] = c.n_uses;
    }
    (void)carried_before(&c, TG_END);
    carried_check_uses(&c);
    for (uint32_t p = 0; p < first->n_peers; p++)
        for (uint32_t w = 0; w < cuda_workers(first); w++)
            carried_check_end(&c, p, w);
    free(c.depends);
    free(c.worker);
    free(c.carried);
    free(c.quiet);
    free(c.before);
    free(c.done);
    free(c.known);
    free(c.is_done_known);
    free(c.first_use);
    free(c.last_use);
    free(c.use);
    return c.n_quiet;
}

#endif
