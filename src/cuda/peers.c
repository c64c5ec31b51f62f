/* peers.c - several GPUs of a host that share a program (docs/gpus.md): what is each one's own, and
 * what crosses.
 *
 * Input: the image of a joint program, whose operators and tensors have peers.  Output: which bytes
 * of an area a GPU holds, which counters a task adds to, which inputs the step task pushes, and
 * access from each GPU to all others.
 *
 * An event has a counter on every GPU where a task waits for it by that; the end event on GPU 0.
 * Its triggers add to each of them.  Where waits and triggers are all on one GPU, nothing is
 * different from a program of one peer; else each addition has system scope (rt/rt_peers.h).  An
 * event for which tasks wait only by the words that they poll is counted by each GPU for itself.
 *
 * Called by cuda.c (links), memory.c (windows), tables.c (triggers, pushes, addresses) and launch.c
 * (a stall).
 */
#include <stdlib.h>

#include "cuda/cuda_machine.h"

/* ---- memory ---- */

/* Does this GPU hold the tensor?  What lies everywhere is on each of them. */
static bool is_here(const cuda_machine *m, const ir_tensor *t)
{
    return t->peer == m->peer || t->peer == IR_EVERYWHERE;
}

/* Find the part of each area that this GPU needs memory for: from its first tensor to its last.
 * Inputs and outputs of a step lie at the same place on every GPU.  The plan keeps peers apart in
 * the other areas; if an image does not, a window is larger than it need be. */
void cuda_plan_windows(cuda_machine *m)
{
    const program_image *image = &m->machine.image;
    uint64_t first[RT_AREAS], end[RT_AREAS] = {0};
    memset(first, 0xff, sizeof first);
    for (uint32_t g = 0; g < image->n_graphs; g++)
        for (ir_tensor_id i = 0; i < image->ir[g]->tensors.n; i++) {
            const tg_place *p = &image->places[g][i];
            const ir_tensor *t = &image->ir[g]->tensors.at[tg_root(image->ir[g], i)];
            uint64_t last = p->offset + (uint64_t)ir_bytes(t);
            if (p->area == TG_WEIGHTS || !is_here(m, t))
                continue;
            first[p->area] = p->offset < first[p->area] ? p->offset : first[p->area];
            end[p->area] = last > end[p->area] ? last : end[p->area];
        }
    for (int i = 0; i < RT_AREAS; i++)
        m->windows[i] = end[i] ? (cuda_window){first[i], end[i] - first[i]} : (cuda_window){0};
    m->windows[RT_STEP] = (cuda_window){0, image->block->area_bytes[RT_STEP]};
    if (m->n_peers == 1)
        for (int i = RT_STATE; i < RT_AREAS; i++)
            m->windows[i] = (cuda_window){0, image->block->area_bytes[i]};
}

/* The machine whose GPU holds the tensor: what lies everywhere is read here. */
const cuda_machine *cuda_owner(const cuda_machine *m, uint32_t graph, ir_tensor_id tensor)
{
    const uint32_t peer = m->machine.image.ir[graph]->tensors.at[tensor].peer;
    return peer == IR_EVERYWHERE ? m : m->peers[peer];
}

/* Weights and state of a GPU are its process's own; no operator of the pass reads others'. */
mpk_status cuda_check_reach(mpk_context *cx, const cuda_machine *m, uint32_t graph,
                            ir_tensor_id tensor)
{
    const tg_place *p = &m->machine.image.places[graph][tensor];
    const cuda_machine *owner = cuda_owner(m, graph, tensor);
    const bool is_kept = p->area == TG_WEIGHTS || p->area == TG_STATE;
    CHECK(cx, !owner->is_elsewhere || !is_kept, MPK_EUNSUPPORTED,
          "tensor %%%.*s lies in memory that the process of rank %u keeps for itself",
          STR_ARG(m->machine.image.ir[graph]->tensors.at[tensor].name), owner->peer);
    return MPK_OK;
}

/* ---- events ---- */

/* By the worker: those of a peer follow each other.  JIT tasks have none; programs of several peers
 * have no JIT tasks, so they count as the first one's. */
static uint32_t peer_of_task(const cuda_machine *m, const rt_task *t)
{
    return t->worker == RT_NONE ? 0 : t->worker / cuda_workers(m);
}

/* Does the task wait for its event by the counter?  Quiet ones do not; that the first of a list
 * waits for the gate is the gate's. */
static bool polls_counter(const cuda_machine *m, uint32_t graph, const rt_task *t)
{
    const cuda_machine *at = m->n_peers > 1 ? m->peers[peer_of_task(m, t)] : m;
    return t->op == RT_NONE || !cuda_is_quiet(at, graph, t->op);
}

/* An event is inner if the same single GPU waits for it and adds to it: then its counter is there
 * alone, and an addition needs no system scope.  RT_END counts as waited for by GPU 0, where the
 * step task is.  For an event whose counter no task polls each GPU counts its own tasks,
 * for find_waiting. */
mpk_status cuda_find_triggers(mpk_context *cx, arena *scratch, const cuda_machine *m,
                              uint32_t graph, rt_u32 *kinds)
{
    const rt_graph *g = (const rt_graph *)image_table(m->machine.image.block, RT_GRAPHS) + graph;
    const rt_task *tasks =
        (const rt_task *)image_table(m->machine.image.block, RT_TASKS) + g->first_task;
    const rt_event *events =
        (const rt_event *)image_table(m->machine.image.block, RT_EVENTS) + g->first_event;
    uint32_t *wait, *add; /* [events] bit p: tasks of peer p do */
    NEW(cx, scratch, wait, g->n_events);
    NEW(cx, scratch, add, g->n_events);
    wait[RT_END] = 1;
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        if (polls_counter(m, graph, &tasks[t]))
            wait[tasks[t].depends] |= 1u << peer_of_task(m, &tasks[t]);
        add[tasks[t].triggers] |= 1u << peer_of_task(m, &tasks[t]);
    }
    for (uint32_t e = 0; e < g->n_events; e++) {
        const bool is_inner =
            m->n_peers == 1 || !wait[e] || (wait[e] == add[e] && !(wait[e] & (wait[e] - 1)));
        const uint32_t peers = RT_TRIGGER_PEERS | wait[e] * RT_TRIGGER_PEER;
        kinds[e] = is_inner ? RT_TRIGGER_COUNT : peers;
        if (events[e].jit)
            kinds[e] = RT_TRIGGER_LAUNCH;
    }
    return MPK_OK;
}

/* ---- inputs ---- */

/* Does an operator of another peer than the first read it? */
static bool is_read_elsewhere(const ir_graph *ir, ir_tensor_id input)
{
    for (ir_op_id i = 0; i < ir->ops.n; i++)
        for (uint32_t k = 0; k < ir->ops.at[i].n_in; k++)
            if (ir->ops.at[i].peer && ir->ops.at[i].in[k] != IR_NONE &&
                tg_root(ir, ir->ops.at[i].in[k]) == input)
                return true;
    return false;
}

/* RT_* of the tensor's IR_*: which number of a step says how many of its rows count. */
static rt_u32 live_of(const ir_tensor *t)
{
    if (t->live == IR_TOKENS)
        return RT_TOKENS;
    return t->live == IR_ROWS ? RT_ROWS : RT_ALL;
}

/* Rows by rows where a tensor has live ones, so that only those that a step uses cross the link. */
static rt_push push_of(const ir_tensor *t, uint64_t offset)
{
    const bool has_rows = t->live != IR_ALL && t->rank && t->dims[0];
    const uint64_t rows = has_rows ? (uint64_t)t->dims[0] : 1;
    return (rt_push){.offset = offset,
                     .n_rows = (rt_u32)rows,
                     .row_bytes = (rt_u32)((uint64_t)ir_bytes(t) / rows),
                     .live = live_of(t)};
}

/* List what the step task of GPU 0 sends to the others: to == NULL counts only.  first: [n_graphs +
 * 1]. Inputs lie at the same offset of the step area on every GPU, so one offset says both from
 * where and to where. */
uint32_t cuda_list_pushes(const cuda_machine *m, rt_push *to, rt_u32 *first)
{
    const program_image *image = &m->machine.image;
    uint32_t n = 0;
    for (uint32_t g = 0; g < image->n_graphs; g++) {
        if (to)
            first[g] = n;
        for (ir_tensor_id i = 0; m->n_peers > 1 && i < image->ir[g]->tensors.n; i++) {
            const ir_tensor *t = &image->ir[g]->tensors.at[i];
            if (t->kind != IR_INPUT || t->shares != IR_NONE || !is_read_elsewhere(image->ir[g], i))
                continue;
            if (to)
                to[n] = push_of(t, image->places[g][i].offset);
            n++;
        }
    }
    if (to)
        first[image->n_graphs] = n;
    return n;
}

/* ---- links ---- */

/* The kernel is compiled for as many GPUs as the program's operators name (MPK_PEERS), and the
 * image says how many there are: they must be the same. */
static mpk_status check_use(mpk_context *cx, const cuda_machine *m)
{
    uint32_t most = 0;
    for (uint32_t g = 0; g < m->machine.image.n_graphs; g++) {
        uint32_t n = ir_count_peers(m->machine.image.ir[g]);
        most = n > most ? n : most;
    }
    CHECK(cx, most == m->n_peers, MPK_EUNSUPPORTED, "the program keeps %u GPU%s busy, not %u", most,
          most == 1 ? "" : "s", m->n_peers);
    return MPK_OK;
}

/* Check and link all GPUs; m is the first one's machine, whose GPU is current afterwards.  Access
 * is switched on for each ordered pair.  What this machine switched on, and no other code before,
 * is noted in reaches[], for cuda_unlink_peers. */
mpk_status cuda_link_peers(mpk_context *cx, cuda_machine *m)
{
    TRY(check_use(cx, m));
    if (m->options.on_one_gpu)
        return cuda_gpu_use(cx, m->gpu);
    TRY(cuda_check_peers(cx, m->driver, m->options.device, m->n_peers));
    if (m->ranks) /* each block is opened by itself (cuda_ranks.c) */
        return MPK_OK;
    for (uint32_t i = 0; i < m->n_peers; i++)
        for (uint32_t k = 0; k < m->n_peers; k++) {
            if (i == k)
                continue;
            TRY(cuda_gpu_use(cx, m->peers[i]->gpu));
            TRY(cuda_gpu_reach(cx, m->peers[i]->gpu, m->peers[k]->gpu, &m->peers[i]->reaches[k]));
        }
    return cuda_gpu_use(cx, m->gpu);
}

/* After all kernels have ended and before any GPU is closed; some machines may be missing, if
 * starting failed. */
void cuda_unlink_peers(cuda_machine *m)
{
    for (uint32_t i = 0; i < m->n_peers; i++)
        for (uint32_t k = 0; k < m->n_peers; k++)
            if (m->peers[i] && m->peers[i]->reaches[k])
                cuda_gpu_unreach(m->peers[i]->gpu, m->peers[k]->gpu);
}

/* ---- a stall ---- */

/* The counters of one GPU, of all graphs, on the heap; NULL: they cannot be read.  The copy engine
 * brings them beside kernels that still run. */
static rt_word *read_counters(const cuda_machine *m, uint64_t n)
{
    mpk_context late = {0};
    rt_word *counters = calloc(n, sizeof *counters);
    bool is_there =
        counters && cuda_gpu_use(&late, m->gpu) == MPK_OK &&
        cuda_download_on(&late, m->gpu, m->copies, counters, m->table_block + m->layout.counters,
                         n * sizeof *counters) == MPK_OK &&
        cuda_stream_wait(&late, m->gpu, m->copies) == MPK_OK;
    if (is_there)
        return counters;
    free(counters);
    return NULL;
}

/* What has been added to an event's counters in the memory that a task of peer `peer` looks at;
 * where each GPU counts its own tasks, by all of them.  A GPU whose counters cannot be read counts
 * as one that waits for nothing: *known is false. */
static rt_u32 count_of(const cuda_machine *m, rt_word *const *counters, uint32_t peer, rt_u32 kind,
                       uint64_t event, bool *known)
{
    rt_u32 sum = 0;
    *known = counters[peer] != NULL;
    if (kind != RT_TRIGGER_COUNT)
        return *known ? counters[peer][event].value : 0;
    for (uint32_t p = 0; p < m->n_peers; p++) {
        *known = *known && counters[p];
        sum += counters[p] ? counters[p][event].value : 0;
    }
    return sum;
}

/* The first task whose event is not activated, in topological order: all later ones wait for it
 * directly or not. */
static void find_waiting(const cuda_machine *m, rt_word *const *counters, const rt_u32 *kinds,
                         rt_fault *f)
{
    const rt_graph *g = (const rt_graph *)image_table(m->machine.image.block, RT_GRAPHS) + f->graph;
    const rt_task *tasks =
        (const rt_task *)image_table(m->machine.image.block, RT_TASKS) + g->first_task;
    const rt_event *events =
        (const rt_event *)image_table(m->machine.image.block, RT_EVENTS) + g->first_event;
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        const rt_u32 event = tasks[t].depends, needed = events[event].needed;
        bool known;
        const rt_u32 seen = count_of(m, counters, peer_of_task(m, &tasks[t]), kinds[event],
                                     g->first_event + event, &known) -
                            needed * (f->epoch - 1);
        if (!known || (rt_i32)(seen - needed) >= 0)
            continue;
        f->task = t;
        f->event = event;
        f->seen = seen;
        f->needed = needed;
        return;
    }
}

/* Only for a stall that GPU 0's step task noticed: it knows that the step does not end, but not
 * which task holds it up. */
void cuda_find_waiting(const cuda_machine *m, rt_fault *f)
{
    const uint64_t n = image_count(m->machine.image.block, RT_EVENTS);
    rt_word *counters[IR_MAX_PEERS] = {0};
    mpk_context late = {0};
    arena scratch = {0};
    if (m->n_peers == 1 || f->kind != RT_STALL || f->task != RT_NONE ||
        f->graph >= m->machine.image.n_graphs)
        return;
    rt_u32 *kinds = arena_alloc(&scratch, n, sizeof *kinds);
    for (uint32_t p = 0; p < m->n_peers; p++)
        counters[p] = read_counters(m->peers[p], n);
    if (kinds && cuda_find_triggers(&late, &scratch, m, f->graph, kinds) == MPK_OK)
        find_waiting(m, counters, kinds, f);
    for (uint32_t p = 0; p < m->n_peers; p++)
        free(counters[p]);
    arena_free(&scratch);
}
