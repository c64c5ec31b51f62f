/* machine.c - calls on a machine, through the definition of its target. */
#include <stdio.h>

#include "host/machine.h"
#include "rt/rt_step.h"

/* ---- for targets ---- */

mpk_status machine_begin(mpk_context *cx, machine *m, const machine_def *def,
                         const program_image *image, const rt_serving *s, const host_rings *rings)
{
    m->def = def;
    m->image = *image;
    return host_books_open(cx, s, rings, &m->books);
}

void machine_end(machine *m)
{
    host_books_close(&m->books);
}

/* Release, so that a woken thread sees what was written before. No bell: a target without
 * threads that sleep. */
void machine_ring_host(machine *m)
{
    if (!m->books.rings.bell)
        return;
    rt_add_acq_rel_system(m->books.rings.bell, 1);
    rt_wake(m->books.rings.bell);
}

/* Axis by axis; stride in elements. */
static char *gather_axis(const char *from, const ir_tensor *t, const int64_t *stride, uint32_t axis,
                         size_t bytes, char *to)
{
    if (axis >= t->rank || axis >= IR_MAX_RANK) {
        memcpy(to, from, bytes);
        return to + bytes;
    }
    for (int64_t i = 0; i < t->dims[axis]; i++)
        to = gather_axis(from + i * stride[axis] * (int64_t)bytes, t, stride, axis + 1, bytes, to);
    return to;
}

/* A view's elements in row-major order, as callers see tensors. */
void machine_gather(const ir_graph *g, ir_tensor_id tensor, const void *first, void *to)
{
    const ir_tensor *t = &g->tensors.at[tensor];
    int64_t stride[IR_MAX_RANK], offset;
    if (t->shares == IR_NONE) {
        memcpy(to, first, (size_t)ir_bytes(t));
        return;
    }
    ir_strides(g, tensor, stride, &offset);
    gather_axis(first, t, stride, 0, ir_dtype_table[t->dtype].block_bytes, to);
}

/* "task 17 (linear_3)", in words for the message. */
static const char *name_of(const machine *m, const rt_graph *g, const rt_fault *f, char words[128])
{
    if (f->task >= g->n_tasks)
        return "nothing in particular";
    const rt_task *tasks = image_table(m->image.block, RT_TASKS);
    rt_u32 op = tasks[g->first_task + f->task].op;
    str name = op == RT_NONE ? STR("an empty task") : m->image.ir[f->graph]->ops.at[op].name;
    snprintf(words, 128, "task %u (%.*s)", f->task, STR_ARG(name));
    return words;
}

/* The peer whose worker holds a task of the fault's graph; RT_NONE: of no peer in particular. */
static uint32_t peer_of(const machine *m, const rt_graph *g, uint32_t task)
{
    const rt_header *h = m->image.block;
    const rt_task *tasks = image_table(h, RT_TASKS);
    rt_u32 worker = tasks[g->first_task + task].worker;
    return worker < h->n_workers ? worker / (h->n_workers / h->n_peers) : RT_NONE;
}

/* Of several peers also which one waits: the one whose worker holds the task. */
static const char *name_peer(const machine *m, const rt_graph *g, const rt_fault *f, char words[32])
{
    uint32_t peer =
        m->image.block->n_peers > 1 && f->task < g->n_tasks ? peer_of(m, g, f->task) : RT_NONE;
    words[0] = 0;
    if (peer != RT_NONE)
        snprintf(words, 32, " on peer %u", peer);
    return words;
}

/* Of several peers also those whose tasks trigger the event: one of them is late. */
static const char *name_late(const machine *m, const rt_graph *g, const rt_fault *f, char words[96])
{
    const rt_task *tasks = (const rt_task *)image_table(m->image.block, RT_TASKS) + g->first_task;
    bool late[IR_MAX_PEERS] = {0};
    int n = 0;
    for (uint32_t t = 0; t < g->n_tasks && m->image.block->n_peers > 1; t++) {
        uint32_t peer = tasks[t].triggers == f->event ? peer_of(m, g, t) : RT_NONE;
        if (peer < IR_MAX_PEERS)
            late[peer] = true;
    }
    uint32_t n_late = 0, said = 0;
    for (uint32_t p = 0; p < IR_MAX_PEERS; p++)
        n_late += late[p];
    words[0] = 0;
    for (uint32_t p = 0; p < IR_MAX_PEERS; p++) {
        if (!late[p])
            continue;
        const char *before = ", ";
        if (said == 0)
            before = n_late > 1 ? " by tasks on peers " : " by tasks on peer ";
        else if (said + 1 == n_late)
            before = " and ";
        n += snprintf(words + n, 96 - (size_t)n, "%s%u", before, p);
        said++;
    }
    return words;
}

/* Its event has been triggered, but not all that other processes write has come (op/posted.h). */
static bool waits_for_others(const machine *m, const rt_graph *g, const rt_fault *f)
{
    const rt_task *tasks = image_table(m->image.block, RT_TASKS);
    rt_u32 op = f->task < g->n_tasks ? tasks[g->first_task + f->task].op : RT_NONE;
    return op != RT_NONE && f->seen == f->needed && m->image.ir[f->graph]->ops.at[op].def->arrived;
}

/* The record comes from a machine that has failed, so its graph is checked before it is used as an
 * index. */
mpk_status machine_say_fault(mpk_context *cx, const machine *m, const rt_fault *f)
{
    char words[128], peer[32], late[96];
    CHECK(cx, f->graph < m->image.n_graphs, MPK_EDEVICE,
          "the machine failed, and its fault record is damaged");
    const rt_graph *g = (const rt_graph *)image_table(m->image.block, RT_GRAPHS) + f->graph;
    if (f->kind == RT_LEFT)
        FAIL(cx, MPK_EDEVICE, "the process of rank %u has ended: its own message says why",
             f->worker / (m->image.block->n_workers / m->image.block->n_peers));
    if (f->kind == RT_STALL && waits_for_others(m, g, f))
        FAIL(cx, MPK_ESTALLED,
             "the machine made no progress: worker %u, graph for %u tokens, run %u: %s waits for "
             "other processes",
             f->worker, g->n_tokens, f->epoch, name_of(m, g, f, words));
    if (f->kind == RT_STALL)
        FAIL(cx, MPK_ESTALLED,
             "the machine made no progress: worker %u, graph for %u tokens, run %u: %s%s waits for "
             "event %u, which was triggered %u of %u times%s",
             f->worker, g->n_tokens, f->epoch, name_of(m, g, f, words), name_peer(m, g, f, peer),
             f->event, f->seen, f->needed, name_late(m, g, f, late));
    FAIL(cx, MPK_EDEVICE, "%s: worker %u, graph for %u tokens, run %u, %s%s",
         f->kind == RT_OVERFLOW ? "a queue of the runtime overflowed"
                                : "a task was given what it cannot take",
         f->worker, g->n_tokens, f->epoch, name_of(m, g, f, words), name_peer(m, g, f, peer));
}

/* ---- the calls ---- */

void machine_stop(machine *m)
{
    if (m)
        m->def->stop(m);
}

mpk_status machine_check(mpk_context *cx, machine *m)
{
    return m->def->check(cx, m);
}

/* Numbers come from callers of the library, so they are checked in one place for all targets. */
static mpk_status check_tensor(mpk_context *cx, const machine *m, uint32_t graph,
                               ir_tensor_id tensor)
{
    CHECK(cx, graph < m->image.n_graphs, MPK_EARG, "graph %u of %u", graph, m->image.n_graphs);
    CHECK(cx, tensor < m->image.ir[graph]->tensors.n, MPK_EARG, "tensor %u of %zu", tensor,
          m->image.ir[graph]->tensors.n);
    return MPK_OK;
}

mpk_status machine_write_tensor(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                                const void *from)
{
    TRY(check_tensor(cx, m, graph, tensor));
    return m->def->write_tensor(cx, m, graph, tensor, from);
}

mpk_status machine_read_tensor(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                               void *to)
{
    TRY(check_tensor(cx, m, graph, tensor));
    return m->def->read_tensor(cx, m, graph, tensor, to);
}

/* UINT32_MAX: as many as the graph was built for. */
mpk_status machine_run_graph(mpk_context *cx, machine *m, uint32_t graph, uint32_t n_tokens,
                             uint32_t n_rows)
{
    CHECK(cx, graph < m->image.n_graphs, MPK_EARG, "graph %u of %u", graph, m->image.n_graphs);
    CHECK(cx,
          (n_tokens <= RT_MAX_TOKENS || n_tokens == UINT32_MAX) &&
              (n_rows <= RT_MAX_ROWS || n_rows == UINT32_MAX),
          MPK_ELIMIT, "a step of %u tokens with %u rows: at most %d and %d are possible", n_tokens,
          n_rows, RT_MAX_TOKENS, RT_MAX_ROWS);
    CHECK(cx, !host_books_are_busy(&m->books), MPK_EARG,
          "a graph cannot be run by hand while requests are under way");
    TRY(machine_check(cx, m));
    return m->def->run_graph(cx, m, graph, n_tokens, n_rows);
}

mpk_status machine_clear_state(mpk_context *cx, machine *m)
{
    return m->def->clear_state(cx, m);
}

/* What the image and the books know, and then the target's own.  max_context is the limit of a
 * request that asks for least: a prompt of one token.
 */
void machine_describe(machine *m, machine_facts *out)
{
    const rt_serving *s = &m->books.serving;
    const rt_u64 *area = m->image.block->area_bytes;
    *out = (machine_facts){.device = m->def->name,
                           .n_workers = m->image.block->n_workers,
                           .n_slots = s->n_slots,
                           .max_tokens = s->max_tokens,
                           .n_vocab = s->n_vocab,
                           .n_pages = s->n_pages,
                           .state_bytes = area[RT_STATE],
                           .area_bytes = area[RT_STEP] + area[RT_TEMPS]};
    if (s->ready)
        out->max_context =
            rt_request_limit(s, &(rt_request){.n_prompt = 1,
                                              .flags = s->next == RT_NOWHERE ? RT_HOST_SAMPLES : 0,
                                              .logits = 1});
    m->def->describe(m, out);
}

void machine_take_stats(machine_facts *out, const rt_stats *from)
{
    out->free_pages = rt_load_relaxed_device(&from->free_pages);
    out->put_back = rt_load_relaxed_device(&from->put_back);
    out->n_steps = rt_load_wide_acquire_device(&from->n_steps);
    out->asked = rt_load_wide_acquire_device(&from->asked);
    out->found = rt_load_wide_acquire_device(&from->found);
    out->drafted = rt_load_wide_acquire_device(&from->drafted);
    out->accepted = rt_load_wide_acquire_device(&from->accepted);
    out->ahead_drafted = rt_load_wide_acquire_device(&from->ahead_drafted);
    out->ahead_accepted = rt_load_wide_acquire_device(&from->ahead_accepted);
    out->ahead_steps = rt_load_wide_acquire_device(&from->ahead_steps);
}

machine_code machine_code_of(const machine *m, uint32_t graph, ir_op_id op)
{
    return m->def->code_of(m, graph, op);
}

mpk_status machine_read_profile(mpk_context *cx, machine *m, uint32_t graph, machine_profile *out)
{
    CHECK(cx, m->def->read_profile, MPK_EARG, "the machine was not started with a profile");
    CHECK(cx, graph < m->image.n_graphs, MPK_EARG, "graph %u of %u", graph, m->image.n_graphs);
    return m->def->read_profile(cx, m, graph, out);
}
