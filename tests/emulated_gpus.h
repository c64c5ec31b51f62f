/* emulated_gpus.h - the kernels of GPUs that share a program, on the host: what they do with their
 * tables.
 *
 * Input: the arguments of launches on the stand-in for the driver (fake_cuda.h).  The launch on GPU
 * 0, the last, runs all of them in this thread until there is nothing to do.  At each turn a worker
 * of any GPU, chosen at random, does the next entry of its list if the entry's counter allows it,
 * by the operator's reference code at the addresses in the entry.
 *
 * What the emulation watches:
 *   - a GPU touches its own memory and that of GPUs which it has asked to reach; only tasks of
 *     operators that gather read another's;
 *   - what a worker stores in another GPU's memory arrives only when that worker counts at system
 *     scope, and of several such stores nothing says which comes first;
 *   - another GPU sees what a worker has stored in its own only after that worker has counted, and
 *     then some worker of that GPU at system scope; before, it reads NaN;
 *   - a counter is never added to by one GPU at device scope and by another at all;
 *   - carried words (src/cuda/carriers.c) arrive one by one, in any order and late, on every GPU
 *     that polls them; a task that polls runs when all words that it reads are there; when a step
 *     has ended every carried word of every GPU is empty and none is on its way.
 * The step task and its pushes are the runtime's own code.
 */
#ifndef TESTS_EMULATED_GPUS_H
#define TESTS_EMULATED_GPUS_H

#include "gen/body_print.h"
#include "ir/op.h"
#include "rt/rt_peers.h"
#include "rt/rt_step.h"
#include "serve_bed.h"

enum { MAX_GPUS = 8, MAX_LATE = 64, MAX_LISTS = 64, MAX_HIDDEN = 4096, MAX_WORDS = 1 << 20 };

/* A carried word on its way. */
typedef struct late_word {
    rt_u32 *to, value;
} late_word;

/* A result on its way to another GPU. */
typedef struct late_store {
    op_call call;
    ir_box box;
    void *source; /* as it was when it was sent */
} late_store;

/* A box of a result that other GPUs do not see yet. */
typedef struct hidden_store {
    op_view view;
    ir_tensor_id tensor;
    ir_box box;
    uint32_t peer, sends; /* whose it is, and for whom it is stored too (rt_entry.sends) */
} hidden_store;

typedef struct emulated_worker {
    rt_u64 step;
    rt_u32 next, last;
    late_store late[MAX_LATE];
    uint32_t n_late;
    hidden_store made[IR_MAX_OUTPUTS]; /* by the task that is not counted yet */
    uint32_t n_made;
} emulated_worker;

/* What the workers of a GPU have counted, and none has at system scope since. */
typedef struct hidden_stores {
    hidden_store at[MAX_HIDDEN];
    uint32_t n;
} hidden_stores;

typedef struct gpus {
    const program_image *image;
    const fake_cuda_face *fake;
    uint64_t seed, turns;
    rt_kernel *kernels[MAX_GPUS];
    emulated_worker (*workers)[MAX_LISTS]; /* [n][workers of each] */
    hidden_stores *hidden;                 /* [n] */
    /* [tensors] of roots, what other GPUs see of them; NULL: nothing yet */
    char **shown;
    const cuda_machine *machine; /* NULL: nothing is carried */
    void *const *weights;        /* [weights of the image] for operators that have packed copies */
    late_word *words;            /* [MAX_WORDS] */
    uint32_t n_words;
    uint32_t n, launches, steps, late_stores, remote_reads, quiet, sent, boxes_sent;
    int dies;  /* this GPU's kernel ends without a word; -1: none does */
    int hangs; /* the tasks of this GPU's worker 0 do not end; -1: of none */
} gpus;

static inline uint32_t gpus_below(gpus *s, uint32_t n)
{
    return (uint32_t)(rng_u64(s->seed, s->turns++) % n);
}

/* The remote stores of a worker arrive, in any order. */
static inline void gpus_deliver(gpus *s, emulated_worker *w)
{
    while (w->n_late) {
        late_store *l = &w->late[gpus_below(s, w->n_late)];
        l->call.op->def->ref(&l->call, &l->box, NULL);
        free(l->source);
        *l = w->late[--w->n_late];
    }
}

/* ---- what others see of a GPU's own results ---- */

static inline const ir_graph *gpus_graph(const gpus *s)
{
    return s->image->ir[rt_word_graph(s->kernels[0]->machine.serving->step)];
}

/* What other GPUs see of a tensor: NaN at first. */
static inline char *gpus_shown(gpus *s, ir_tensor_id tensor)
{
    const ir_graph *ir = gpus_graph(s);
    const ir_tensor_id root = tg_root(ir, tensor);
    const size_t n = (size_t)ir_bytes(&ir->tensors.at[root]);
    if (!s->shown[root])
        s->shown[root] = memset(malloc(n), 0xff, n);
    return s->shown[root] +
           ir_row_bytes(ir->tensors.at[tensor].dtype, ir->tensors.at[tensor].offset);
}

static inline void gpus_copy(const hidden_store *h, void *data)
{
    op_view to = h->view;
    op_call call = {.op = NULL, .n_in = 1, .n_out = 1, .in = {h->view}};
    to.data = data;
    call.out[0] = to;
    op_find(STR("copy"))->ref(&call, &h->box, NULL);
}

/* Into the memory of the GPUs that it is sent to. */
static inline void gpus_send_box(const gpus *s, const hidden_store *h)
{
    for (uint32_t q = 0; q < s->n; q++)
        if (h->sends >> q & 1) {
            const rt_u64 there =
                (rt_u64)(uintptr_t)h->view.data + s->kernels[h->peer]->peers[q].away;
            assert_true(q != h->peer && s->fake->device_of(there) == (int)q &&
                        s->fake->may_touch((int)h->peer, there, 1));
            gpus_copy(h, (void *)(uintptr_t)there);
        }
}

static inline void gpus_show(gpus *s, const hidden_store *h)
{
    gpus_copy(h, gpus_shown(s, h->tensor));
    gpus_send_box(s, h);
    s->boxes_sent += h->sends != 0;
}

/* The worker counts its task, at system scope or not. */
static inline void gpus_publish(gpus *s, uint32_t p, emulated_worker *w, bool for_all)
{
    hidden_stores *h = &s->hidden[p];
    for (; w->n_made; h->n++) {
        assert_true(h->n < MAX_HIDDEN);
        h->at[h->n] = w->made[--w->n_made];
    }
    while (for_all && h->n)
        gpus_show(s, &h->at[--h->n]);
}

/* A step begins: nothing of it has been seen. */
static inline void gpus_hide(gpus *s)
{
    for (uint32_t p = 0; p < s->n; p++)
        s->hidden[p].n = 0;
    for (uint32_t i = 0; i < MAX_HIDDEN; i++) {
        free(s->shown[i]);
        s->shown[i] = NULL;
    }
}

static inline void gpus_count(gpus *s, uint32_t p, emulated_worker *w, const rt_entry *e)
{
    gpus_publish(s, p, w, e->trigger_kind != RT_TRIGGER_COUNT);
    if (e->trigger_kind == RT_TRIGGER_COUNT) {
        rt_add_acq_rel_device(&s->kernels[p]->machine.counters[e->triggers], 1);
        return;
    }
    assert_true(e->trigger_kind & RT_TRIGGER_PEERS);
    gpus_deliver(s, w);
    for (uint32_t i = 0; i < s->n; i++)
        assert_true(i == p || !(e->trigger_kind & RT_TRIGGER_PEER << i) ||
                    s->fake->may_touch(
                        (int)p, (uintptr_t)&s->kernels[p]->peers[i].counters[e->triggers], 4));
    for (uint32_t i = 0; i < s->n; i++)
        rt_peers_count(s->kernels[p], i, e->triggers, e->trigger_kind);
}

/* ---- carried words ---- */

static inline const cuda_flow *gpus_flow(const gpus *s, uint32_t p, rt_u32 graph)
{
    return s->machine ? &s->machine->peers[p]->carriers.flows[graph] : NULL;
}

static inline bool gpus_carries(const gpus *s, uint32_t p, rt_u32 graph, ir_tensor_id t)
{
    const cuda_flow *flow = gpus_flow(s, p, graph);
    return flow && flow->end != RT_NONE && flow->is_carried[t];
}

/* The words of a box of a carried tensor that are alive: their places, in words from its first one.
 * Returns how many; to: NULL, or as many. */
static inline uint32_t gpus_words(const ir_tensor *t, const ir_box *box, const rt_u32 *live,
                                  uint32_t *to)
{
    const uint32_t last = t->rank - 1, each = t->dtype == IR_BF16 || t->dtype == IR_F16 ? 2 : 1;
    const int64_t alive = live[t->live == IR_TOKENS ? RT_TOKENS : RT_ALL];
    int64_t at[IR_MAX_RANK];
    uint32_t n = 0;
    memcpy(at, box->lo, sizeof at);
    for (uint32_t a = 0; a < t->rank; a++)
        if (box->lo[a] >= box->hi[a])
            return 0;
    for (bool more = true; more;) {
        int64_t place = 0;
        for (uint32_t a = 0; a < t->rank; a++)
            place += at[a] * t->stride[a];
        if (t->live == IR_ALL || at[0] < alive) {
            if (to)
                to[n] = (uint32_t)(place / each);
            n++;
        }
        more = false;
        for (uint32_t a = t->rank; a-- > 0 && !more;) {
            at[a] += a == last ? each : 1;
            more = at[a] < box->hi[a];
            if (!more)
                at[a] = box->lo[a];
        }
    }
    return n;
}

static inline void gpus_send_words(gpus *s, const ir_tensor *t, const ir_box *box,
                                   const rt_u32 *live, const rt_u32 *from, rt_u64 to)
{
    const uint32_t n = gpus_words(t, box, live, NULL);
    uint32_t *places = calloc(n + 1, sizeof *places);
    gpus_words(t, box, live, places);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(s->n_words < MAX_WORDS);
        assert_int_not_equal(from[places[i]], RT_EMPTY);
        s->words[s->n_words++] = (late_word){(rt_u32 *)(uintptr_t)to + places[i], from[places[i]]};
    }
    free(places);
}

/* Some of the words that are on their way arrive; all: all of them.  False: there are none. */
static inline bool gpus_arrive(gpus *s, bool all)
{
    const uint32_t n = s->n_words ? 1 + gpus_below(s, s->n_words) : 0;
    for (uint32_t i = all ? s->n_words : n; i > 0; i--) {
        late_word *w = &s->words[gpus_below(s, s->n_words)];
        assert_int_equal(*w->to, RT_EMPTY); /* a word is written once in a step */
        *w->to = w->value;
        *w = s->words[--s->n_words];
    }
    return n > 0;
}

/* Are all words there that a task reads of what is carried? */
static inline bool gpus_are_there(const gpus *s, uint32_t p, const rt_entry *e, const ir_graph *ir,
                                  const ir_op *op, const ir_box *own, const rt_u32 *live)
{
    bool are = true;
    for (uint32_t i = 0; i < op->n_in && are; i++) {
        if (!(e->carried >> i & 1))
            continue;
        ir_box box = {0};
        const ir_tensor *t = &ir->tensors.at[op->in[i]];
        const rt_u32 *at = (const rt_u32 *)(uintptr_t)e->at[gen_operand_of_input(op, i)];
        assert_int_equal(s->fake->device_of((rt_u64)(uintptr_t)at), p);
        op->def->reads(ir, op, i, own, &box);
        const uint32_t n = gpus_words(t, &box, live, NULL);
        uint32_t *places = calloc(n + 1, sizeof *places);
        gpus_words(t, &box, live, places);
        for (uint32_t k = 0; k < n && are; k++)
            are = at[places[k]] != RT_EMPTY;
        free(places);
    }
    return are;
}

/* As clerk_clear. */
static inline void gpus_clear(gpus *s, uint32_t p, uint32_t worker, rt_u32 graph,
                              const rt_u32 *live)
{
    const rt_kernel *k = s->kernels[p];
    const rt_u32 *first = k->first_clear + graph * k->machine.n_workers + worker;
    for (rt_u32 i = first[0]; i < first[1]; i++) {
        const rt_clear *c = &k->clears[i];
        assert_true(s->fake->may_touch((int)p, c->at, 1) && s->fake->device_of(c->at) == (int)p);
        for (rt_u32 r = 0; r < c->n_rows && c->first_row + r < live[c->live]; r++)
            memset((char *)(uintptr_t)c->at + (size_t)r * c->stride_bytes, 0xff,
                   (size_t)c->n_units * c->unit_bytes);
    }
}

/* A step has ended: nothing of what it carried is left. */
static inline void gpus_check_empty(const gpus *s)
{
    assert_int_equal(s->n_words, 0);
    for (uint32_t p = 0; p < s->n && s->machine; p++) {
        const cuda_machine *m = s->machine->peers[p];
        const rt_u32 *at = (const rt_u32 *)(uintptr_t)(m->carried_block + m->carriers.n_sent);
        for (uint64_t i = 0; i < m->carriers.n_carried / sizeof *at; i++)
            assert_int_equal(at[i], RT_EMPTY);
    }
}

/* What a task has made of a carried result, in memory of its own, goes where it is polled. */
static inline void gpus_send_result(gpus *s, uint32_t p, const rt_entry *e, const ir_graph *ir,
                                    ir_tensor_id id, rt_u64 at, const op_call *call,
                                    uint32_t output, const ir_box *box)
{
    const rt_u32 to = e->sends ? e->sends : 1u << p;
    for (uint32_t q = 0; q < s->n; q++)
        if (to >> q & 1) {
            const rt_u64 there = at + s->kernels[p]->peers[q].away;
            assert_true(s->fake->device_of(there) == (int)q &&
                        s->fake->may_touch((int)p, there, 1));
            gpus_send_words(s, &ir->tensors.at[id], box, call->live,
                            (const rt_u32 *)call->out[output].data, there);
            s->sent += q != p;
        }
}

/* The operator bound to the addresses of the entry; carried results to memory of their own. */
static inline void gpus_bind(gpus *s, uint32_t p, rt_u32 graph, const rt_entry *e,
                             const ir_graph *ir, const ir_op *op, const rt_u32 *live, op_call *call)
{
    void **data = calloc(ir->tensors.n, sizeof *data);
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] != IR_NONE) {
            const rt_u64 at = e->at[gen_operand_of_input(op, i)];
            if (!at) { /* a weight of which there are packed copies alone */
                assert_int_equal(ir->tensors.at[op->in[i]].kind, IR_CONST);
                data[op->in[i]] = s->weights[s->image->places[graph][op->in[i]].offset];
                continue;
            }
            const bool is_own = s->fake->device_of(at) == (int)p;
            assert_true(is_own ||
                        (op->def->flags & OP_GATHERS && s->fake->may_touch((int)p, at, 1)));
            data[op->in[i]] = is_own ? (void *)(uintptr_t)at : gpus_shown(s, op->in[i]);
            s->remote_reads += !is_own;
        }
    for (uint32_t i = 0; i < op->n_out; i++) {
        data[op->out[i]] = (void *)(uintptr_t)e->at[gen_operand_of_output(op, i)];
        assert_true(s->fake->may_touch((int)p, e->at[gen_operand_of_output(op, i)], 1));
        if (gpus_carries(s, p, graph, op->out[i]))
            data[op->out[i]] = malloc((size_t)ir_bytes(&ir->tensors.at[op->out[i]]));
    }
    op_bind(ir, op, data, live, call);
    free(data);
}

static inline void gpus_send(gpus *s, emulated_worker *w, const op_call *call, const ir_box *box)
{
    const ir_graph *ir = s->image->ir[rt_word_graph(w->step)];
    const ir_tensor *x = &ir->tensors.at[call->op->in[0]];
    const ir_tensor *root = &ir->tensors.at[tg_root(ir, call->op->in[0])];
    assert_true(w->n_late < MAX_LATE);
    late_store *l = &w->late[w->n_late++];
    *l = (late_store){.call = *call, .box = *box, .source = malloc((size_t)ir_bytes(root))};
    int64_t offset = ir_row_bytes(x->dtype, x->offset);
    memcpy(l->source, (const char *)call->in[0].data - offset, (size_t)ir_bytes(root));
    l->call.in[0].data = (char *)l->source + offset;
    s->late_stores++;
}

static inline void gpus_compute(gpus *s, uint32_t p, rt_u32 graph, emulated_worker *w,
                                const rt_entry *e, const op_call *call, const ir_box *box)
{
    const ir_op *op = call->op;
    const ir_graph *ir = s->image->ir[graph];
    size_t n = op->def->scratch_bytes ? op->def->scratch_bytes(ir, op, box) : 0;
    void *scratch = aligned_alloc(64, (n + 64) / 64 * 64);
    ir_box own = *box; /* what the task stores of its first result */
    if (gpus_carries(s, p, graph, op->out[0]))
        gen_own_words(s->machine->source.uses[graph][op - ir->ops.at].body,
                      &ir->tensors.at[op->out[0]], &own);
    op->def->ref(call, &own, scratch);
    free(scratch);
    for (uint32_t i = 0; i < op->n_out; i++) {
        hidden_store h = {.view = call->out[i],
                          .tensor = op->out[i],
                          .box = own,
                          .peer = p,
                          .sends = gpus_carries(s, p, graph, op->out[i]) ? 0 : e->sends};
        if (i && op->def->writes)
            op->def->writes(ir, op, i, &own, &h.box);
        if (gpus_carries(s, p, graph, op->out[i]))
            gpus_send_result(s, p, e, ir, op->out[i], e->at[gen_operand_of_output(op, i)], call, i,
                             &h.box);
        else
            w->made[w->n_made++] = h;
    }
}

/* False: what it polls is not there. */
static inline bool gpus_run(gpus *s, uint32_t p, emulated_worker *w, const rt_entry *e)
{
    const rt_u32 graph = rt_word_graph(w->step),
                 live[] = {UINT32_MAX, rt_word_tokens(w->step), rt_word_rows(w->step)};
    const ir_graph *ir = s->image->ir[graph];
    const rt_graph *rows = image_table(s->image->block, RT_GRAPHS);
    const ir_op *op = &ir->ops.at[e->op - rows[graph].first_op];
    ir_box box = {0};
    for (uint32_t i = 0; i < e->rank; i++) {
        box.lo[i] = e->lo[i];
        box.hi[i] = i == 0 && e->hi[0] > live[e->live] ? live[e->live] : e->hi[i];
    }
    if (e->rank && box.lo[0] >= box.hi[0])
        return true;
    if (!gpus_are_there(s, p, e, ir, op, &box, live))
        return false;
    op_call *call = calloc(1, sizeof *call);
    gpus_bind(s, p, graph, e, ir, op, live, call);
    if (op_result_peer(op) == p)
        gpus_compute(s, p, graph, w, e, call, &box);
    else
        gpus_send(s, w, call, &box);
    for (uint32_t i = 0; i < op->n_out; i++)
        if (gpus_carries(s, p, graph, op->out[i]))
            free(call->out[i].data);
    free(call);
    s->quiet += e->quiet;
    return true;
}

/* One turn of a worker; false: it waits. */
static inline bool gpus_turn(gpus *s, uint32_t p, uint32_t worker)
{
    const rt_kernel *k = s->kernels[p];
    emulated_worker *w = &s->workers[p][worker];
    if (w->next == w->last) {
        rt_u64 step = rt_load_wide_acquire_system(&k->machine.control->step);
        if (step == w->step)
            return false;
        const rt_u32 *first = k->first_entry + rt_word_graph(step) * k->machine.n_workers + worker;
        w->step = step;
        w->next = first[0];
        w->last = first[1];
        return true;
    }
    const rt_entry *e = &k->entries[w->next];
    rt_u32 wanted = e->needed * rt_word_epoch(w->step);
    assert_false(e->quiet && !s->machine);
    if (!e->quiet &&
        (rt_i32)(rt_load_acquire_system(&k->machine.counters[e->depends]) - wanted) < 0)
        return false;
    if (e->clears)
        gpus_clear(s, p, worker, rt_word_graph(w->step),
                   (rt_u32[]){UINT32_MAX, rt_word_tokens(w->step), rt_word_rows(w->step)});
    if (e->body != RT_NONE && ((int)p == s->hangs && worker == 0))
        return false;
    if (e->body != RT_NONE && !gpus_run(s, p, w, e))
        return false;
    gpus_count(s, p, w, e);
    w->next++;
    return true;
}

/* Some turns at random, then every worker once: whether any of them could do something. */
static inline bool gpus_work(gpus *s)
{
    const uint32_t each = s->kernels[0]->machine.n_workers;
    bool did = false;
    for (uint32_t i = 0; i < 16; i++)
        did |= gpus_turn(s, gpus_below(s, s->n), gpus_below(s, each));
    if (gpus_below(s, 4) == 0)
        did |= gpus_arrive(s, false);
    for (uint32_t p = 0; p < s->n && !did; p++)
        for (uint32_t w = 0; w < each; w++)
            did |= gpus_turn(s, p, w);
    return did || gpus_arrive(s, false);
}

static inline bool gpus_has_ended(const gpus *s)
{
    const rt_machine *m = &s->kernels[0]->machine;
    rt_u64 step = m->serving->step;
    const rt_graph *g = &m->graphs[rt_word_graph(step)];
    return (rt_i32)(rt_load_acquire_system(&m->counters[g->first_event + RT_END]) -
                    m->events[g->first_event + RT_END].needed * rt_word_epoch(step)) >= 0;
}

/* As courier and step task do it.  False: nothing was published. */
static inline bool gpus_begin(gpus *s, rt_u32 *asked)
{
    rt_kernel *k = s->kernels[0];
    rt_machine *m = &k->machine;
    rt_control *c = m->control;
    if (m->serving->ready)
        carry_asks(k);
    rt_u32 wanted = rt_load_acquire_system(k->host_once_wanted);
    if (wanted != *asked) {
        c->once_graph = k->host_once[0];
        c->once_tokens = k->host_once[1];
        c->once_rows = k->host_once[2];
        *asked = wanted;
        rt_store_release_system(&c->once_wanted, wanted);
    }
    m->workers[0].owner = 1;
    bool published = rt_step_poll(m, &m->workers[0]) != 0;
    if (m->serving->ready)
        carry_tokens(k);
    rt_store_release_system(k->host_once_done, rt_load_acquire_system(&c->once_done));
    if (published)
        rt_peers_publish(k, m->serving->step);
    return published;
}

/* A kernel's last words; one with a task that does not end has none. */
static inline void gpus_tell(gpus *s, uint32_t p, rt_u32 state)
{
    rt_kernel *k = s->kernels[p];
    if ((int)p == s->hangs && p)
        return;
    k->start_step = k->machine.control->step.value;
    *k->host_fault = k->machine.control->fault;
    rt_peers_stop(k);
    if ((int)p != s->dies)
        rt_store_release_system(k->host_state, state);
}

static inline void gpus_serve(gpus *s)
{
    rt_u32 asked = s->kernels[0]->machine.control->once_wanted.value;
    bool stalls = false;
    while (!stalls && gpus_begin(s, &asked)) {
        gpus_hide(s);
        s->steps++;
        while (!stalls && !gpus_has_ended(s))
            stalls = !gpus_work(s);
        if (!stalls)
            gpus_check_empty(s);
    }
    if (stalls)
        rt_raise(&s->kernels[0]->machine, 0, RT_STALL, RT_NONE, RT_END); /* step_raise_stall */
    for (uint32_t p = s->n; p-- > 0;) {
        for (uint32_t w = 0; w < MAX_LISTS; w++)
            gpus_deliver(s, &s->workers[p][w]); /* of a stall */
        gpus_hide(s);
        gpus_tell(s, p, stalls && p == 0 ? RT_FAULTED : RT_STOPPING);
    }
}

/* Not by an initializer of the whole: its arrays are 200 KB, of which none is used yet. */
static inline void gpus_begin_worker(emulated_worker *w, rt_u64 step)
{
    w->step = step;
    w->next = w->last = 0;
    w->n_late = w->n_made = 0;
}

/* What a launch does; of the last GPU's everything. */
static inline void gpus_launched(void *user, const fake_launch *l)
{
    gpus *s = user;
    if (strcmp(l->function, "mpk_kernel") != 0)
        return;
    s->launches++;
    s->kernels[l->device] = (rt_kernel *)(uintptr_t)l->argument;
    assert_int_equal(s->fake->device_of(l->argument), l->device);
    assert_int_equal(s->kernels[l->device]->peer, l->device);
    assert_int_equal(s->kernels[l->device]->stop.value, 0);
    if (l->device)
        return;
    for (uint32_t p = 0; p < s->n; p++)
        for (uint32_t w = 0; w < MAX_LISTS; w++)
            gpus_begin_worker(&s->workers[p][w], s->kernels[p]->start_step);
    gpus_serve(s);
}

#endif
