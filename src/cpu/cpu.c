/* cpu.c - the in-kernel runtime on threads (paper §5): worker i and scheduler i are thread i.  Of a
 * program that serves no requests the thread that runs a graph is worker 0.
 *
 * Input: an image and the weights' addresses.  Starting allocates the four areas (weights,
 * tensors that live across steps, step inputs and outputs, temporaries), binds every operator of
 * every graph once (op_call) and chooses its code: the best fast body that accepts it, else the
 * record's reference.  Scratch of a task is pages of its worker.
 *
 * The steps of a start, in this order (prepare):
 *
 *   cpu_ranks_map     with a process for each peer: the memory that they share
 *   open_tables       the image's tables as the runtime sees them; a copy of the operators' records
 *   make_workers      counters, epochs, workers and schedulers
 *   make_queues       of the length that rt_queue.h proves to be enough
 *   allocate_areas    zeroed memory; weights have their own (cpu_weights.c)
 *   bind_graphs       each operator: addresses, strides, the body that runs it
 *   plan_scratch      what the bodies need; a worker gets room for the largest
 *   find_constants    the weights that each task will read, to be prefetched
 *   prepare_requests  slots, pages and rings, if the program serves requests
 *   start_threads     the last step, after which nothing of the above changes
 *
 * Memory belongs to the machine's arena, except areas, scratch and prompts, which `stop` frees
 * one by one.
 *
 * Relies on src/rt for the loops of workers and schedulers, and on src/host for what all targets
 * share.  Called by cpu_target.c and by tests.
 */
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/large_pages.h"
#include "base/nodes.h"
#include "cpu/cpu_machine.h"
#include "op/rules.h"
#include "rt/rt_worker.h"

/* PAGE_BYTES: a page of scratch.  SPIN_POLLS, YIELD_POLLS, STEAL_POLLS: how often a waiting
 * worker polls before it yields its processor, sleeps, or takes another worker's task; see
 * rt_limits. */
enum { PAGE_BYTES = 4096, SPIN_POLLS = 2000, YIELD_POLLS = 20, STEAL_POLLS = 16 };
/* What a task waits for other processes: it yields its processor, then sleeps between polls. */
enum { AWAIT_YIELD_NS = 200000, AWAIT_SLEEP_NS = 50000 };
/* What is prefetched: of each of the next tasks at most this many bytes, in pieces so small that a
 * ready event does not wait long. */
enum { PRELOAD_TASKS = 3, PRELOAD_BYTES = 65536, PRELOAD_PIECE_BYTES = 1024 };

/* ---- bodies ---- */

/* The box of its operator's first output that a task computes. */
static ir_box box_of(const rt_task *task)
{
    ir_box box;
    for (int i = 0; i < RT_MAX_RANK; i++) {
        box.lo[i] = task->lo[i];
        box.hi[i] = task->hi[i];
    }
    return box;
}

/* Wait until other processes have written what a task reads; false: the machine ends.  Polls, then
 * sleeps, for the others may be late by what they compile.  No other worker waits for what this
 * task has not done while it is here: that is a promise of the program (op/posted.h). */
static bool await_others(cpu_machine *m, const rt_worker *w, const cpu_call *c, const ir_box *box)
{
    const op_def *def = c->call.op->def;
    uint64_t begin_ns = 0;
    for (uint32_t polls = 0; !def->arrived(&c->call, box); polls++) {
        if (polls < m->rt.limits.spin_polls) {
            rt_pause();
            continue;
        }
        if (rt_load_acquire_device(&m->control->abort) != RT_RUNNING)
            return false;
        begin_ns = begin_ns ? begin_ns : clock_ns();
        const uint64_t waited_ns = clock_ns() - begin_ns;
        if (waited_ns > m->rt.limits.body_ns) {
            rt_u32 task = rt_load_relaxed_device(&w->task);
            rt_raise(&m->rt, w->index, RT_STALL, task,
                     m->rt.tasks[m->rt.graphs[w->graph].first_task + task].depends);
            return false;
        }
        const long ns = waited_ns < AWAIT_YIELD_NS ? 0 : AWAIT_SLEEP_NS;
        if (ns)
            nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
        else
            rt_yield();
    }
    return true;
}

/* Run one task: the box from its descriptor, with the code that was chosen at start.  Called by
 * the worker's loop (rt_worker.h).  hi0: the box's end in axis 0, clipped to the tokens or rows
 * that are alive in this step; page: the first page of scratch that the worker gives this task. */
RT_FN void rt_run_body(rt_machine *rt, rt_worker *w, const rt_task *task, rt_u32 op, rt_u32 hi0,
                       rt_u32 page)
{
    cpu_machine *m = rt->target;
    const cpu_call *c = &m->calls[op];
    ir_box box = box_of(task);
    box.hi[0] = hi0;
    if (c->call.op->def->arrived && !await_others(m, w, c, &box))
        return;
    if (c->subject)
        m->watcher->see(c->subject, &c->call, &box);
    uint64_t begin_ns = cpu_profile_begin(m);
    c->run(&c->call, &box,
           m->scratch + w->index * m->scratch_bytes + (uint64_t)page * m->page_bytes);
    cpu_profile_end(m, w, task, begin_ns);
}

/* Prefetch one piece of what a coming task reads of weights.  Called by an idle worker, piece by
 * piece, so that a ready event does not wait; returns 0 if the task has no further piece.  Into
 * the second cache, as the bodies do: the first one is too small. */
RT_FN int rt_preload(rt_machine *rt, rt_worker *w, rt_u32 task, rt_u32 piece)
{
    (void)w;
    const cpu_constant *c = &((const cpu_machine *)rt->target)->constants[task];
    uint32_t first = piece * PRELOAD_PIECE_BYTES;
    if (first >= c->n_bytes)
        return 0;
    for (uint32_t i = first; i < first + PRELOAD_PIECE_BYTES && i < c->n_bytes; i += 64)
        __builtin_prefetch(c->at + i, 0, 2);
    return 1;
}

/* The most scratch that a task may need, in bytes: its box may be clipped to fewer live entries,
 * which never need more. */
static size_t scratch_of(const ir_graph *g, const cpu_call *c, const rt_task *task)
{
    const op_call *call = &c->call;
    const ir_box box = box_of(task);
    if (c->body)
        return c->body->scratch_bytes ? c->body->scratch_bytes(call, &box) : 0;
    return call->op->def->scratch_bytes ? call->op->def->scratch_bytes(g, call->op, &box) : 0;
}

/* Pages of scratch for each operator, and from the largest the scratch of a worker.  MPK_ELIMIT
 * if a task needs more than 2^31 pages. */
static mpk_status plan_scratch(mpk_context *cx, cpu_machine *m)
{
    uint64_t most = 1;
    m->page_bytes = PAGE_BYTES;
    for (uint32_t i = 0; i < m->rt.n_graphs; i++) {
        const rt_graph *g = &m->rt.graphs[i];
        for (uint32_t t = 0; t < g->n_tasks; t++) {
            const rt_task *task = &m->rt.tasks[g->first_task + t];
            if (task->op == RT_NONE || !m->calls[g->first_op + task->op].run)
                continue;
            rt_op *op = &m->ops[g->first_op + task->op];
            uint64_t pages =
                (scratch_of(m->base.image.ir[i], &m->calls[g->first_op + task->op], task) +
                 PAGE_BYTES - 1) /
                PAGE_BYTES;
            CHECK(cx, pages <= INT32_MAX, MPK_ELIMIT,
                  "a task of operator %.*s asks for %llu pages of scratch",
                  STR_ARG(m->base.image.ir[i]->ops.at[task->op].name), (unsigned long long)pages);
            op->pages = pages > op->pages ? (rt_u32)pages : op->pages;
            most = op->pages > most ? op->pages : most;
        }
    }
    m->scratch_bytes = most * PAGE_BYTES;
    for (uint32_t i = 0; i < m->rt.n_workers; i++)
        if (cpu_ranks_runs(m, i))
            m->rt.workers[i].pages.n = (rt_u32)most;
    return MPK_OK;
}

/* ---- prefetch ---- */

/* The weights to prefetch for a task: the rows that it reads of the first matrix of which its
 * box, not data, decides the rows; nothing if it reads a whole large matrix. */
static cpu_constant constant_of(const ir_graph *g, const cpu_call *c, const rt_task *task)
{
    const ir_op *op = c->call.op;
    ir_box box = box_of(task);
    for (uint32_t i = 0; i < op->n_in; i++) {
        if (op->in[i] == IR_NONE || g->tensors.at[op->in[i]].kind != IR_CONST ||
            g->tensors.at[op->in[i]].rank != 2)
            continue;
        const ir_tensor *t = &g->tensors.at[op->in[i]];
        ir_box read = {0};
        op->def->reads(g, op, i, &box, &read);
        int64_t rows = read.hi[0] - read.lo[0], row_bytes = ir_row_bytes(t->dtype, t->dims[1]);
        if (rows <= 0 || (rows == t->dims[0] && rows * row_bytes > PRELOAD_BYTES))
            continue;
        int64_t bytes = rows * row_bytes < PRELOAD_BYTES ? rows * row_bytes : PRELOAD_BYTES;
        return (cpu_constant){(const char *)c->call.in[i].data + read.lo[0] * row_bytes,
                              (uint32_t)bytes};
    }
    return (cpu_constant){0};
}

/* One constant for each task of the image, in the order of its table.  Addresses are valid as
 * long as the machine: weights do not move. */
static mpk_status find_constants(mpk_context *cx, cpu_machine *m)
{
    NEW(cx, &m->arena, m->constants, image_count(m->base.image.block, RT_TASKS));
    for (uint32_t i = 0; i < m->rt.n_graphs; i++) {
        const rt_graph *g = &m->rt.graphs[i];
        for (uint32_t t = 0; t < g->n_tasks; t++) {
            const rt_task *task = &m->rt.tasks[g->first_task + t];
            if (task->op != RT_NONE && m->calls[g->first_op + task->op].run)
                m->constants[g->first_task + t] =
                    constant_of(m->base.image.ir[i], &m->calls[g->first_op + task->op], task);
        }
    }
    return MPK_OK;
}

/* ---- memory ---- */

/* n zeroed bytes at a multiple of 64 in *at; *block is the address to free.  calloc, not the
 * arena: large zeroed blocks come from the system untouched, so pages that are never used take
 * no memory. */
static mpk_status allocate(mpk_context *cx, uint64_t n, const char *what, void **block, void **at)
{
    *block = n < SIZE_MAX - 128 ? calloc(1, (size_t)n + 128) : NULL;
    CHECK(cx, *block, MPK_ENOMEM, "out of memory for %llu bytes of %s", (unsigned long long)n,
          what);
    *at = (void *)(((uintptr_t)*block + 63) / 64 * 64);
    pages_make_large(*at, (size_t)n); /* reading the KV cache is then 1.6 times as fast */
    if (n >= LARGE_PAGE)
        nodes_spread(*at, (size_t)n);
    return MPK_OK;
}

/* The areas other than the weights', sized by the image's header. */
static mpk_status allocate_areas(mpk_context *cx, cpu_machine *m)
{
    static const char *const names[RT_AREAS] = {"weights", "state (KV cache)",
                                                "step inputs and outputs", "temporaries"};
    for (int i = RT_STATE; i < RT_AREAS; i++)
        if (m->ranks)
            m->areas[i] = cpu_ranks_take(m, m->base.image.block->area_bytes[i]);
        else
            TRY(allocate(cx, m->base.image.block->area_bytes[i], names[i], &m->blocks[i],
                         &m->areas[i]));
    m->rt.step_area = m->areas[RT_STEP];
    return MPK_OK;
}

/* Find where every tensor of a graph begins: m->data[graph][tensor]; for a view, its first
 * element. */
static mpk_status place_tensors(mpk_context *cx, cpu_machine *m, uint32_t graph,
                                void *const *weights)
{
    const ir_graph *g = m->base.image.ir[graph];
    NEW(cx, &m->arena, m->data[graph], g->tensors.n);
    for (uint32_t t = 0; t < g->tensors.n; t++) {
        const tg_place *p = &m->base.image.places[graph][t];
        int64_t stride[IR_MAX_RANK], offset;
        ir_strides(g, t, stride, &offset);
        char *base =
            p->area == TG_WEIGHTS ? weights[p->offset] : (char *)m->areas[p->area] + p->offset;
        m->data[graph][t] = base + ir_row_bytes(g->tensors.at[t].dtype, offset);
    }
    return MPK_OK;
}

/* Put strides and addresses into each op_call, once: a task then only adds its box.  Operators that
 * another process runs have no code here.  fast = false: reference code everywhere, for comparison
 * in tests. */
static mpk_status bind_graphs(mpk_context *cx, cpu_machine *m, void *const *weights, bool fast)
{
    uint32_t features = cpu_features();
    NEW(cx, &m->arena, m->data, m->rt.n_graphs);
    for (uint32_t i = 0; i < m->rt.n_graphs; i++) {
        const ir_graph *g = m->base.image.ir[i];
        TRY(place_tensors(cx, m, i, weights));
        for (uint32_t k = 0; k < g->ops.n; k++) {
            cpu_call *c = &m->calls[m->rt.graphs[i].first_op + k];
            if (!cpu_ranks_has(m->ranks, g->ops.at[k].peer))
                continue;
            op_bind(g, &g->ops.at[k], m->data[i], m->control->live, &c->call);
            c->body = fast ? cpu_body_choose(&c->call, features) : NULL;
            c->run = c->body ? c->body->run : g->ops.at[k].def->ref;
            if (m->watcher)
                c->subject = m->watcher->find(m->watcher->user, g, &g->ops.at[k]);
        }
    }
    return MPK_OK;
}

/* ---- the runtime's own memory ---- */

/* The least power of two that is n or more. */
static uint32_t power_of_two(uint64_t n)
{
    uint32_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

/* Queues as long as one step can fill them (rt_queue.h), so they never overflow.  entries:
 * another length for the workers' queues, for tests; 0: the proved one. */
static mpk_status make_queues(mpk_context *cx, cpu_machine *m, uint32_t entries)
{
    rt_machine *rt = &m->rt;
    /* with one slot, the turn words for `taken` and `free again` would be equal */
    uint64_t jit = 2, event = 2;
    for (uint32_t i = 0; i < rt->n_graphs; i++) {
        uint64_t j = rt_jit_bound(&rt->graphs[i], rt->events, rt->n_workers),
                 e = rt_event_bound(&rt->graphs[i], rt->events);
        jit = j > jit ? j : jit;
        event = e > event ? e : event;
    }
    rt->jit_mask = power_of_two(entries ? entries : jit) - 1;
    rt->event_mask = power_of_two(event) - 1;
    NEW(cx, &m->arena, rt->jit, rt->n_workers);
    NEW(cx, &m->arena, rt->event, rt->n_schedulers);
    NEW(cx, &m->arena, rt->jit_slots, (size_t)rt->n_workers * (rt->jit_mask + 1));
    NEW(cx, &m->arena, rt->event_slots, (size_t)rt->n_schedulers * (rt->event_mask + 1));
    for (uint32_t i = 0; i < rt->n_workers; i++)
        rt_queue_reset(&rt->jit[i], rt->jit_slots + (size_t)i * (rt->jit_mask + 1), rt->jit_mask);
    for (uint32_t i = 0; i < rt->n_schedulers; i++)
        rt_queue_reset(&rt->event[i], rt->event_slots + (size_t)i * (rt->event_mask + 1),
                       rt->event_mask);
    return MPK_OK;
}

/* Scheduler i begins its round-robin with worker i, so that the first events of a step do not
 * all go to worker 0.  Worker 0 owns the step task. */
static mpk_status make_workers(mpk_context *cx, cpu_machine *m)
{
    rt_machine *rt = &m->rt;
    size_t n_events = image_count(m->base.image.block, RT_EVENTS);
    NEW(cx, &m->arena, rt->epochs, rt->n_graphs);
    if (m->ranks) {
        rt->counters = cpu_ranks_take(m, n_events * sizeof *rt->counters);
        rt->workers = cpu_ranks_take(m, rt->n_workers * sizeof *rt->workers);
    } else {
        NEW(cx, &m->arena, rt->counters, n_events);
        NEW(cx, &m->arena, rt->workers, rt->n_workers);
    }
    NEW(cx, &m->arena, rt->schedulers, rt->n_schedulers);
    for (uint32_t i = 0; i < rt->n_workers; i++)
        rt->workers[i].index = rt->schedulers[i].index = rt->schedulers[i].next_worker = i;
    rt->workers[0].owner = 1;
    return MPK_OK;
}

/* Waiting and stall limits from the options.  With more threads than processors, a thread that
 * spins would keep the thread it waits for from running: then none spins. */
static void set_limits(cpu_machine *m, const cpu_options *o)
{
    bool crowded = m->rt.n_workers > thread_processors();
    m->rt.limits = (rt_limits){.stall_ns = o->stall_ns ? o->stall_ns : 10000000000u,
                               .body_ns = o->body_ns ? o->body_ns : 600000000000u,
                               .spin_polls = crowded ? 0 : SPIN_POLLS,
                               .yield_polls = crowded ? 2 : YIELD_POLLS,
                               .preload_tasks = o->no_preload ? 0 : PRELOAD_TASKS,
                               .steal_polls = crowded ? 0 : STEAL_POLLS,
                               .processors = thread_processors()};
    m->rt.delay = o->delay_seed;
    m->rt.steal = m->rt.n_workers / m->base.image.block->n_peers;
    m->control->live[RT_ALL] = UINT32_MAX;
    m->control->idle.value = 1;
    m->control->step.value = RT_NO_STEP;
}

/* Point the runtime at the image's tables.  Machines may share an image, so it is not written;
 * the operators' records are copied, because their scratch pages depend on the bodies that were
 * chosen. */
static mpk_status open_tables(mpk_context *cx, cpu_machine *m)
{
    const rt_header *h = m->base.image.block;
    rt_machine *rt = &m->rt;
    rt->graphs = image_table(h, RT_GRAPHS);
    rt->tasks = image_table(h, RT_TASKS);
    rt->events = image_table(h, RT_EVENTS);
    rt->ranges = image_table(h, RT_RANGES);
    rt->lists = image_table(h, RT_LISTS);
    rt->n_graphs = m->base.image.n_graphs;
    rt->n_workers = rt->n_schedulers = h->n_workers;
    rt->control = m->control;
    rt->serving = &m->serving;
    rt->target = m;
    size_t n_ops = image_count(h, RT_OPS);
    NEW(cx, &m->arena, m->ops, n_ops);
    NEW(cx, &m->arena, m->calls, n_ops);
    for (size_t i = 0; i < n_ops; i++) {
        m->ops[i] = ((const rt_op *)image_table(h, RT_OPS))[i];
        m->ops[i].pages = 0; /* set by plan_scratch: this target's code has its own needs */
    }
    rt->ops = m->ops;
    return MPK_OK;
}

/* ---- as a machine ---- */

/* Stop all threads and free the machine.  Also after a start that failed half way: whatever was
 * not made is NULL or 0.  After a fault the threads have already left their loops and the
 * exchange of the abort word fails; joining them is right in both cases. */
static void stop(machine *base)
{
    cpu_machine *m = cpu_of(base);
    if (m->ranks)
        cpu_ranks_leave(m);
    else if (rt_replace_acq_rel_device(&m->control->abort, RT_RUNNING, RT_STOPPING) && m->n_threads)
        rt_rouse(&m->rt);
    for (uint32_t i = 0; i < m->n_threads; i++)
        pthread_join(m->threads[i], NULL);
    machine_end(base);
    cpu_ranks_unmap(m);
    free(m->token_arena);
    cpu_free_weights(&m->weights);
    for (int i = 0; i < RT_AREAS; i++)
        free(m->blocks[i]);
    free(m->scratch_block);
    arena_free(&m->arena);
    free(m);
}

/* Note on a stall which operator the first worker that is still in a task's code runs: often the
 * cause, where the fault itself names who waits.  Its task may end meanwhile; then there is no
 * note. */
static mpk_status note_busy(mpk_context *cx, const cpu_machine *m, mpk_status status)
{
    const rt_fault *f = &m->control->fault;
    const rt_graph *g = &m->rt.graphs[f->graph];
    uint32_t each = m->rt.n_workers / m->base.image.block->n_peers, i = 0;
    while (i < m->rt.n_workers && rt_load_relaxed_device(&m->rt.workers[i].at) != RT_AT_BODY)
        i++;
    rt_u32 task = i < m->rt.n_workers ? rt_load_relaxed_device(&m->rt.workers[i].task) : RT_NONE;
    if (f->kind != RT_STALL || task >= g->n_tasks ||
        m->rt.tasks[g->first_task + task].op == RT_NONE)
        return status;
    str name = m->base.image.ir[f->graph]->ops.at[m->rt.tasks[g->first_task + task].op].name;
    char peer[24] = "";
    if (each < m->rt.n_workers)
        snprintf(peer, sizeof peer, " of peer %u", i / each);
    return status_note(cx, status, "worker %u%s is in task %u (%.*s)", i, peer, task,
                       STR_ARG(name));
}

/* MPK_OK while the machine runs; after a fault, the status and message of the record that the
 * worker left. */
static mpk_status check(mpk_context *cx, machine *base)
{
    cpu_machine *m = cpu_of(base);
    if (rt_load_acquire_system(&m->control->abort) != RT_FAULTED)
        return MPK_OK;
    const rt_fault *f = &m->control->fault;
    mpk_status status = note_busy(cx, m, machine_say_fault(cx, base, f));
    return f->kind == RT_STALL ? cpu_ranks_note(cx, m, status) : status;
}

/* The host has put something in a ring, or asks for a step: wake the thread that sleeps at the
 * doorbell. */
static void ring(machine *base)
{
    cpu_machine *m = cpu_of(base);
    rt_add_acq_rel_system(&m->control->doorbell, 1);
    rt_wake(&m->control->doorbell);
}

/* Sleep until the host bell's value differs from `seen`, or for timeout_ns. */
static void wait_bell(machine *base, rt_u32 seen, uint64_t timeout_ns)
{
    rt_sleep(&cpu_of(base)->control->host_bell, seen, timeout_ns);
}

/* Publish the mask of sampling row `row`: first the bits, then the number of the draw that they
 * are for, with release; the sampler polls for that number (op/rules.h).  bits NULL: only the
 * number is written. */
static void put_mask(machine *base, uint32_t row, const uint32_t *bits, uint32_t n_words,
                     uint32_t number)
{
    cpu_machine *m = cpu_of(base);
    const rt_serving *s = &m->serving;
    rt_u32 *at = (rt_u32 *)((char *)m->areas[RT_STEP] + s->rules) +
                 (rt_u64)(s->n_slots + row) * s->rule_words;
    if (bits)
        memcpy(at + MASK_BITS, bits, n_words * sizeof *bits);
    /* acquired by op/sample.c and rt_slots_find_masks */
    rt_store_release_system((rt_word *)at, number);
}

/* ---- host-driven steps ---- */

void *cpu_tensor(machine *m, uint32_t graph, ir_tensor_id tensor)
{
    return cpu_of(m)->data[graph][tensor];
}

/* The caller's tensors are dense, and so are the inputs of a graph: one copy. */
static mpk_status write_tensor(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                               const void *from)
{
    (void)cx;
    memcpy(cpu_tensor(m, graph, tensor), from,
           (size_t)ir_bytes(&m->image.ir[graph]->tensors.at[tensor]));
    return MPK_OK;
}

/* A result may be a view, which machine_gather reads element by element. */
static mpk_status read_tensor(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                              void *to)
{
    (void)cx;
    machine_gather(m->image.ir[graph], tensor, cpu_tensor(m, graph, tensor), to);
    return MPK_OK;
}

/* Zero the KV cache, as at the start.  Between steps only. */
static mpk_status clear_state(mpk_context *cx, machine *m)
{
    (void)cx;
    memset(cpu_of(m)->areas[RT_STATE], 0, m->image.block->area_bytes[RT_STATE]);
    return MPK_OK;
}

/* Wait until the machine has run step number `wanted`, or has failed. */
static mpk_status wait_once(mpk_context *cx, cpu_machine *m, rt_u32 wanted)
{
    rt_control *c = m->control;
    for (int spins = 0;; spins++) {
        /* read before looking at once_done: a bell that rings after this ends the sleep at once */
        rt_u32 bell = rt_load_acquire_system(&c->host_bell);
        if (rt_load_acquire_system(&c->once_done) == wanted)
            return MPK_OK;
        TRY(check(cx, &m->base));
        if (spins >= 1000 || m->rt.limits.spin_polls == 0)
            rt_sleep(&c->host_bell, bell, RT_FOREVER);
        else
            rt_pause();
    }
}

/* As worker 0: run tasks until the machine has run step number `wanted`, or has failed.  The data
 * stay in the caller's caches, and no thread needs to be woken before the first task.  Tasks
 * compute as on the other workers' threads, whatever rounding the caller has set. */
static void work_once(cpu_machine *m, rt_u32 wanted)
{
    rt_machine *rt = &m->rt;
    rt_worker *w = &rt->workers[0];
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    while (rt_load_acquire_system(&m->control->abort) == RT_RUNNING) {
        if (rt_worker_round(rt, w, &rt->schedulers[0]))
            continue;
        if (rt_load_relaxed_system(&m->control->once_done) == wanted)
            break; /* before it rests: as owner it would sleep until the next call */
        rt_worker_rest(rt, w);
    }
    rt_worker_awake(rt, w);
    rt_store_relaxed_device(&m->control->idle, 1); /* the others may sleep until the next call */
    fesetenv(&callers);
}

/* One step that the host drives, with this many tokens and rows; its inputs were written before.
 * Returns when its last task has ended. */
static mpk_status run_graph(mpk_context *cx, machine *base, uint32_t graph, uint32_t n_tokens,
                            uint32_t n_rows)
{
    cpu_machine *m = cpu_of(base);
    rt_control *c = m->control;
    rt_u32 wanted = rt_load_relaxed_device(&c->once_wanted) + 1;
    c->once_graph = graph;
    c->once_tokens = n_tokens;
    c->once_rows = n_rows;
    /* publishes the inputs; acquired by rt_once_poll */
    rt_store_release_system(&c->once_wanted, wanted);
    if (m->caller_works)
        work_once(m, wanted);
    else
        ring(base);
    return wait_once(cx, m, wanted);
}

/* ---- facts ---- */

/* Written once: any thread may read a name that `describe` handed out. */
static void name_device(cpu_machine *m)
{
    uint32_t peers = m->base.image.block->n_peers, each = m->rt.n_workers / peers;
    if (peers > 1)
        snprintf(m->device, sizeof m->device, "CPU, %u x %u thread%s", peers, each,
                 each == 1 ? "" : "s");
    else
        snprintf(m->device, sizeof m->device, "CPU, %u thread%s", each, each == 1 ? "" : "s");
}

/* machine_def's describe. */
static void describe(machine *base, machine_facts *out)
{
    cpu_machine *m = cpu_of(base);
    out->device = m->device;
    machine_take_stats(out, &m->control->stats);
    out->scratch_bytes = m->scratch_bytes * m->rt.n_workers;
}

/* The name of an operator's code for `mpk inspect`: "ref" is the reference code. */
static machine_code code_of(const machine *base, uint32_t graph, ir_op_id op)
{
    const cpu_machine *m = (const cpu_machine *)base;
    const cpu_body *b = m->calls[m->rt.graphs[graph].first_op + op].body;
    return (machine_code){.body = b ? b->name : "ref"};
}

/* The functions through which src/host and src/engine use this machine. */
static const machine_def definition = {
    .name = "cpu",
    .stop = stop,
    .check = check,
    .write_tensor = write_tensor,
    .read_tensor = read_tensor,
    .run_graph = run_graph,
    .clear_state = clear_state,
    .ring = ring,
    .wait = wait_bell,
    .describe = describe,
    .code_of = code_of,
    .put_mask = put_mask,
    .read_profile = cpu_read_profile,
    .make_slots = cpu_make_slots,
    .move_slots = cpu_move_slots,
};

/* ---- starting ---- */

/* Allocate the rings between host and machine; the host's ends point to the same memory. */
static mpk_status make_rings(mpk_context *cx, cpu_machine *m, const cpu_options *o, host_rings *r)
{
    rt_machine *rt = &m->rt;
    host_size_rings(&m->serving, o->waiting_requests, o->token_entries, r);
    NEW(cx, &m->arena, r->requests, r->request_mask + 1);
    NEW(cx, &m->arena, r->commands, r->command_mask + 1);
    NEW(cx, &m->arena, r->tokens, r->token_mask + 1);
    m->token_arena = calloc(r->n_arena, sizeof *m->token_arena);
    CHECK(cx, m->token_arena, MPK_ENOMEM, "out of memory for %llu tokens of prompts",
          (unsigned long long)r->n_arena);
    r->token_arena = m->token_arena;
    rt->request_ring = r->request_ring = &m->request_ring;
    rt->command_ring = r->command_ring = &m->command_ring;
    rt->token_ring = r->token_ring = &m->token_ring;
    rt->requests = r->requests;
    rt->commands = r->commands;
    rt->tokens = r->tokens;
    rt->token_arena = r->token_arena;
    rt->request_mask = r->request_mask;
    rt->command_mask = r->command_mask;
    rt->token_mask = r->token_mask;
    rt->n_arena = r->n_arena;
    return MPK_OK;
}

/* Only if drafts are made, or could be: the drafters' state, and a table of n-grams for each slot
 * (rt_draft.h). */
static mpk_status make_indexes(mpk_context *cx, cpu_machine *m, const cpu_options *o)
{
    const rt_serving *s = &m->serving;
    rt_ahead ahead;
    rt_u32 *drafters;
    m->rt.has_draft_model = host_find_draft_model(&m->base.image, s, &ahead);
    if (!s->draft_tokens && !m->rt.has_draft_model)
        return MPK_OK;
    NEW(cx, &m->arena, drafters, rt_drafters_bytes(s, m->rt.has_draft_model) / sizeof *drafters);
    m->rt.drafters = (rt_drafter *)drafters;
    ahead.apart = o->drafts_apart;
    if (m->rt.has_draft_model)
        *rt_ahead_of(&m->rt) = ahead;
    if (s->gram_tokens)
        NEW(cx, &m->arena, m->rt.grams, s->n_slots * rt_gram_words(s));
    return MPK_OK;
}

/* What serving needs: slots, pages and rings.  A program that serves no requests (a graph of
 * torch.compile) gets none: s->ready is false, and machine_begin then makes no books. */
static mpk_status prepare_requests(mpk_context *cx, cpu_machine *m, const cpu_options *o)
{
    rt_serving *s = &m->serving;
    host_rings rings = {.bell = &m->control->host_bell};
    host_find_serving(&m->base.image, s);
    m->caller_works = !s->ready && m->base.image.block->n_peers == 1;
    m->rt.owner_stays = m->caller_works || m->ranks; /* the others have no requests */
    TRY(host_fill_apart(cx, &m->base.image, o->few_tokens, s));
    host_plan_pages(s, !o->lend_pages, !o->no_shared_pages);
    host_plan_drafts(s, o->draft_tokens, o->gram_tokens, o->drafts_freely);
    if (s->ready) {
        TRY(make_rings(cx, m, o, &rings));
        NEW(cx, &m->arena, m->rt.slots, s->n_slots);
        NEW(cx, &m->arena, m->rt.running, s->n_slots);
        NEW(cx, &m->arena, m->rt.free_pages, s->n_pages);
        NEW(cx, &m->arena, m->rt.kv_pages, s->n_pages);
        NEW(cx, &m->arena, m->rt.buckets, (size_t)s->bucket_mask + 1);
        NEW(cx, &m->arena, m->rt.chains, s->n_slots);
        TRY(make_indexes(cx, m, o));
        host_lay_pages(s, m->rt.free_pages, m->rt.buckets);
        rt_store_relaxed_device(&m->control->stats.free_pages, s->n_free);
    }
    return machine_begin(cx, &m->base, &definition, &m->base.image, s, &rings);
}

/* All that a machine needs before its threads; see the table at the top. */
static mpk_status prepare(mpk_context *cx, cpu_machine *m, void *const *weights,
                          const cpu_options *o)
{
    TRY(cpu_ranks_map(cx, m));
    TRY(open_tables(cx, m));
    TRY(make_workers(cx, m));
    TRY(make_queues(cx, m, o->queue_entries));
    TRY(allocate_areas(cx, m));
    set_limits(m, o);
    m->watcher = o->watcher;
    TRY(bind_graphs(cx, m, weights, !o->no_fast_bodies));
    TRY(plan_scratch(cx, m));
    TRY(find_constants(cx, m));
    if (o->profile)
        TRY(cpu_profile_make(cx, m));
    void *scratch = NULL;
    TRY(allocate(cx, m->scratch_bytes * m->rt.n_workers, "scratch", &m->scratch_block, &scratch));
    m->scratch = scratch;
    return prepare_requests(cx, m, o);
}

/* What a thread is told: its machine and its number. */
typedef struct start {
    cpu_machine *m;
    uint32_t index;
} start;

/* A thread of the machine: worker and scheduler number `index`.  The argument lies in the
 * machine's arena, which outlives the thread. */
static void *run_worker(void *argument)
{
    start s = *(start *)argument;
    rt_machine *rt = &s.m->rt;
    fesetenv(FE_DFL_ENV); /* not that of the thread which started this one */
    rt_worker_loop(rt, &rt->workers[s.index], &rt->schedulers[s.index]);
    return NULL;
}

/* Start one thread a worker that this process runs, but for worker 0 if that is the caller.
 * m->n_threads counts those that run, so that `stop` joins exactly these if one does not start. */
static mpk_status start_threads(mpk_context *cx, cpu_machine *m)
{
    start *starts;
    NEW(cx, &m->arena, m->threads, m->rt.n_workers);
    NEW(cx, &m->arena, starts, m->rt.n_workers);
    for (uint32_t i = 0; i < m->rt.n_workers; i++) {
        starts[i] = (start){m, i};
        if (!cpu_ranks_runs(m, i) || (i == 0 && m->caller_works))
            continue;
        NOTE(cx, thread_start(cx, &m->threads[m->n_threads], run_worker, &starts[i]),
             "starting worker %u of %u", i, m->rt.n_workers);
        m->n_threads++;
    }
    return MPK_OK;
}

/* The image must outlive the machine, the weights too; *out is set on success only. */
mpk_status cpu_start(mpk_context *cx, const program_image *image, void *const *weights,
                     const cpu_options *options, machine **out)
{
    static const cpu_options none = {0};
    cpu_machine *m = NULL;
    void *block = NULL;
    TRY(cpu_check_isa(cx));
    /* Not from the arena inside it; aligned, so that words of different writers do not share a
     * cache line with other allocations. */
    if (posix_memalign(&block, RT_LINE, sizeof *m))
        FAIL(cx, MPK_ENOMEM, "out of memory for a machine");
    m = block;
    memset(m, 0, sizeof *m);
    m->base.image = *image;
    m->control = &m->alone;
    m->ranks = options ? options->ranks : NULL;
    mpk_status status = prepare(cx, m, weights, options ? options : &none);
    if (status == MPK_OK) {
        name_device(m);
        status = cpu_ranks_begin(cx, m);
    }
    if (status == MPK_OK)
        status = start_threads(cx, m);
    if (status != MPK_OK) {
        stop(&m->base);
        return status;
    }
    *out = &m->base;
    return MPK_OK;
}
