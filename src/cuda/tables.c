/* tables.c - the runtime's tables on the GPU: everything that rt_machine and rt_kernel point to, in
 * one block.
 *
 * Input: the image, the code of its operators, the addresses of areas and weights.  Output: the
 * bytes of the block, made on the host and copied in one piece.  Each task becomes an entry with
 * everything its code needs (rt_lane.h): the AOT lists of all workers first, then the JIT tasks.
 * Cost: 256 bytes a task.
 *
 * Entries of two graphs on two workers, and how they are found:
 *
 *   entries      [g0 w0][g0 w1][g1 w0][g1 w1][jit of g0][jit of g1]
 *   first_entry  graph * n_workers + worker -> index of its first entry; one more at the end
 *   jit_entry    task of the image -> index of its entry, for tasks that a scheduler hands out
 *
 * cuda_plan_tables decides where each table lies, cuda_fill_tables writes it; both go through the
 * tables in the same order.  Called by memory.c and cuda.c. */
#include "cuda/cuda_machine.h"
#include "rt/rt_draft.h"
#include "rt/rt_queue.h"

/* Schedulers of a GPU at most; its workers' JIT queues are filled by all of them. */
enum { SCHEDULERS = 8 };

/* ---- sizes ---- */

/* Append a table of `items` of `bytes` each to a block that has *n bytes so far; its offset, a
 * multiple of RT_LINE, so that no two tables share a cache line. */
static uint64_t place(uint64_t *n, uint64_t items, uint64_t bytes)
{
    uint64_t at = (*n + RT_LINE - 1) / RT_LINE * RT_LINE;
    *n = at + items * bytes;
    return at;
}

/* The next one from n on.  n is bounded by the number of tasks, which cuda_plan_tables checks. */
static uint32_t power_of_two(uint64_t n)
{
    uint32_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

/* Worker 0 has the step task in the place of a scheduler. */
static uint32_t n_schedulers(const cuda_machine *m)
{
    uint32_t n = cuda_workers(m) > 1 ? cuda_workers(m) - 1 : 1;
    return n < SCHEDULERS ? n : SCHEDULERS;
}

/* A graph of the image as the runtime sees it; its operators, tasks and events are ranges of the
 * image's tables. */
static const rt_graph *graph_of(const cuda_machine *m, uint32_t graph)
{
    return (const rt_graph *)image_table(m->machine.image.block, RT_GRAPHS) + graph;
}

/* Queues as long as one step can fill them (rt_queue.h): so they never overflow.  The longest of
 * all graphs counts, rounded up to a power of two for the mask. */
static void size_queues(cuda_machine *m)
{
    const rt_event *events = image_table(m->machine.image.block, RT_EVENTS);
    /* at least two slots: in a queue of one, "taken" and "free again" are the same turn number */
    uint64_t jit = 2, event = 2;
    for (uint32_t i = 0; i < m->machine.image.n_graphs; i++) {
        uint64_t j = rt_jit_bound(graph_of(m, i), events, cuda_workers(m)),
                 e = rt_event_bound(graph_of(m, i), events);
        jit = j > jit ? j : jit;
        event = e > event ? e : event;
    }
    m->layout.jit_capacity = power_of_two(jit);
    m->layout.event_capacity = power_of_two(event);
}

/* The image's tables are copied whole, those of other peers too, so that indices mean the same on
 * every GPU. */
static void place_image(cuda_machine *m, uint64_t *n)
{
    const rt_header *h = m->machine.image.block;
    cuda_layout *l = &m->layout;
    l->graphs = place(n, image_count(h, RT_GRAPHS), sizeof(rt_graph));
    l->tasks = place(n, image_count(h, RT_TASKS), sizeof(rt_task));
    l->events = place(n, image_count(h, RT_EVENTS), sizeof(rt_event));
    l->ops = place(n, image_count(h, RT_OPS), sizeof(rt_op));
    l->ranges = place(n, image_count(h, RT_RANGES), sizeof(rt_range));
    l->lists = place(n, image_count(h, RT_LISTS), sizeof(rt_u32));
}

/* What the kernel changes.  Its rings exist beside the host's: the courier moves entries between
 * them, so that the step task never waits for the bus. */
static void place_state(cuda_machine *m, uint64_t *n)
{
    cuda_layout *l = &m->layout;
    uint64_t workers = cuda_workers(m), schedulers = n_schedulers(m),
             graphs = m->machine.image.n_graphs;
    l->control = place(n, 1, sizeof(rt_control));
    l->counters = place(n, image_count(m->machine.image.block, RT_EVENTS), sizeof(rt_word));
    l->epochs = place(n, graphs, sizeof(rt_u32));
    l->workers = place(n, workers, sizeof(rt_worker));
    l->schedulers = place(n, schedulers, sizeof(rt_scheduler));
    /* a queue is a head and its slots: of workers for JIT tasks, of schedulers for events */
    l->jit = place(n, workers, sizeof(rt_queue));
    l->jit_slots = place(n, workers * l->jit_capacity, sizeof(rt_slot_word));
    l->event = place(n, schedulers, sizeof(rt_queue));
    l->event_slots = place(n, schedulers * l->event_capacity, sizeof(rt_slot_word));
    /* what the step task knows of requests, one for each slot, and of KV pages */
    l->serving = place(n, 1, sizeof(rt_serving));
    l->slots = place(n, m->serving.n_slots, sizeof(rt_slot));
    l->running = place(n, m->serving.n_slots, sizeof(rt_request));
    l->free_pages = place(n, m->serving.n_pages, sizeof(rt_u32));
    l->kv_pages = place(n, m->serving.n_pages, sizeof(rt_kv_page));
    l->buckets = place(n, (uint64_t)m->serving.bucket_mask + 1, sizeof(rt_u32));
    l->chains = place(n, m->serving.n_slots, sizeof(rt_chain));
    if (m->serving.draft_tokens || m->has_draft_model) {
        l->drafters = place(n, 1, rt_drafters_bytes(&m->serving, m->has_draft_model));
        if (m->serving.gram_tokens)
            l->grams = place(n, m->serving.n_slots * rt_gram_words(&m->serving), sizeof(rt_u32));
    }
    /* rings: heads here, entries below where requests are served */
    l->request_ring = place(n, 1, sizeof(rt_ring));
    l->command_ring = place(n, 1, sizeof(rt_ring));
    l->token_ring = place(n, 1, sizeof(rt_ring));
    if (m->serving.ready) {
        l->requests = place(n, (uint64_t)m->rings.request_mask + 1, sizeof(rt_request));
        l->commands = place(n, (uint64_t)m->rings.command_mask + 1, sizeof(rt_command));
        l->tokens = place(n, (uint64_t)m->rings.token_mask + 1, sizeof(rt_token));
    }
}

/* Does the machine run as a CUDA graph of operators (baseline.c)? */
bool cuda_has_op_kernels(const cuda_machine *m)
{
    return m->options.mode == CUDA_GRAPH || m->options.mode == CUDA_GRAPH_PDL;
}

/* Tasks that get an entry on this GPU: those in its workers' lists, and all JIT tasks. */
static uint64_t count_tasks(const cuda_machine *m)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < m->machine.image.n_graphs; i++) {
        const rt_range *ranges = cuda_ranges(m, graph_of(m, i));
        n += graph_of(m, i)->n_jit;
        for (uint32_t w = 0; w < cuda_workers(m); w++)
            n += ranges[w].last - ranges[w].first;
    }
    return n;
}

/* The number of tasks is bounded so that an index of a 64-bit word of an entry (rt_use.word) fits
 * 32 bits. */
mpk_status cuda_plan_tables(mpk_context *cx, cuda_machine *m)
{
    const rt_header *h = m->machine.image.block;
    cuda_layout *l = &m->layout;
    uint64_t n = 0, workers = cuda_workers(m), graphs = m->machine.image.n_graphs;
    CHECK(cx, workers && workers <= RT_MAX_WORKERS, MPK_EARG, "the image is for %llu workers",
          (unsigned long long)workers);
    size_queues(m);
    l->n_tasks = count_tasks(m);
    l->n_ops = image_count(h, RT_OPS);
    l->kernel = place(&n, 1, sizeof(rt_kernel));
    place_image(m, &n);
    place_state(m, &n);
    l->entries = place(&n, l->n_tasks, sizeof(rt_entry));
    /* indices into entries: by graph and worker, and by task */
    l->first_entry = place(&n, graphs * workers + 1, sizeof(rt_u32));
    l->jit_entry = place(&n, image_count(h, RT_TASKS), sizeof(rt_u32));
    l->clears = place(&n, m->carriers.clears.n, sizeof(rt_clear));
    l->first_clear = place(&n, graphs * workers + 1, sizeof(rt_u32));
    l->pushes = place(&n, cuda_list_pushes(m, NULL, NULL), sizeof(rt_push));
    l->first_push = place(&n, graphs + 1, sizeof(rt_u32));
    l->regimes = place(&n, graphs, sizeof(rt_u32));
    const bool maps = m->source.x_maps[GEN_STREAMS] || m->source.x_maps[GEN_PROMPTS];
    l->maps = place(&n, maps ? RT_MAPS * l->n_ops : 0, sizeof(rt_map));
    l->meetings = place(&n, m->n_meetings, sizeof(rt_meeting));
    l->rooms = place(&n, m->n_meetings ? workers : 0, sizeof(rt_room));
    /* the baseline: an argument for each operator, and one for the step task */
    if (cuda_has_op_kernels(m)) {
        l->op_kernels = place(&n, l->n_ops + 1, sizeof(rt_kernel));
        l->op_entries = place(&n, l->n_tasks, sizeof(rt_entry));
        l->op_first = place(&n, l->n_ops * workers, sizeof(rt_range));
    }
    if (m->options.profile) {
        l->times = place(&n, l->n_tasks, sizeof(rt_times));
        l->delays = place(&n, 1, sizeof(rt_delays));
        l->steps = place(&n, 1, sizeof(rt_step_notes));
    }
    l->n_bytes = n;
    CHECK(cx, l->n_tasks < RT_NONE / (sizeof(rt_entry) / sizeof(rt_u64)), MPK_ELIMIT,
          "the image has too many tasks");
    return MPK_OK;
}

/* ---- entries ---- */

/* Where a tensor lies, in this order: memory of its own if it is carried (carriers.c), the window
 * of its area that this GPU has, the caller's memory for a weight of a call, the plain copy of a
 * weight. A weight that has only packed copies has no address: 0.  A view lies inside its root; of
 * another peer's tensor it is that GPU's address, which kernels here can reach. */
cuda_address cuda_tensor_address(const cuda_machine *of, uint32_t graph, ir_tensor_id tensor)
{
    const cuda_machine *m = cuda_owner(of, graph, tensor);
    const ir_graph *g = m->machine.image.ir[graph];
    const tg_place *p = &m->machine.image.places[graph][tensor];
    int64_t stride[IR_MAX_RANK], offset;
    ir_strides(g, tensor, stride, &offset);
    uint64_t bytes = (uint64_t)ir_row_bytes(g->tensors.at[tensor].dtype, offset);
    const ir_tensor_id root = tg_root(g, tensor);
    const cuda_flow *flow = &of->carriers.flows[graph];
    const uint64_t own = m->carriers.flows[graph].at[root];
    if (flow->is_carried[root] || flow->sends[root]) /* another peer's: the copy that it has here */
        return of->carried_block + flow->at[root] + bytes;
    if (own != CUDA_IN_AREA)
        return m->carried_block + own + bytes;
    if (p->area != TG_WEIGHTS)
        return m->areas[p->area] + (p->offset - m->windows[p->area].first) + bytes;
    if (m->calls)
        return cuda_call_weight(m, (uint32_t)p->offset) + bytes;
    const cuda_resident *r = &m->weights.weights[p->offset];
    return r->plain ? m->weight_block + r->offset + bytes : 0;
}

/* Addresses of all operands, in the order of gen_operand_of_input and _of_output; an absent one has
 * 0. Of an operator with packed weights the last place, RT_PACKED, is the packed block's, so it has
 * one operand less. */
static mpk_status fill_operands(mpk_context *cx, const cuda_machine *m, uint32_t graph, uint32_t at,
                                rt_entry *e)
{
    const ir_op *op = &m->machine.image.ir[graph]->ops.at[at];
    uint32_t packed = m->weights.packed_of[graph][at],
             most = packed == RT_NONE ? RT_OPERANDS : RT_PACKED;
    CHECK(cx, gen_operand_of_output(op, op->n_out) <= most, MPK_EUNSUPPORTED,
          "operator %s (%%%.*s) has %u operands, the GPU's tasks hold %u", op->def->name,
          STR_ARG(op->name), op->n_in + op->n_out, most);
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] != IR_NONE)
            TRY(cuda_check_reach(cx, m, graph, op->in[i]));
    for (uint32_t i = 0; i < op->n_in; i++)
        e->at[gen_operand_of_input(op, i)] =
            op->in[i] == IR_NONE ? 0 : cuda_tensor_address(m, graph, op->in[i]);
    for (uint32_t i = 0; i < op->n_out; i++)
        e->at[gen_operand_of_output(op, i)] = cuda_tensor_address(m, graph, op->out[i]);
    if (packed != RT_NONE)
        e->at[RT_PACKED] = m->weight_block + m->weights.packed.at[packed].offset;
    return MPK_OK;
}

/* What all tasks of an operator share: an entry without event and box, which fill_entry copies.  An
 * operator without code (a view, or one of no task) gets no operands. */
static mpk_status fill_pattern(mpk_context *cx, const cuda_machine *m, uint32_t graph, uint32_t at,
                               rt_entry *e)
{
    const rt_op *op = (const rt_op *)image_table(m->machine.image.block, RT_OPS) +
                      graph_of(m, graph)->first_op + at;
    *e = (rt_entry){.body = m->source.uses[graph][at].instance,
                    .op = graph_of(m, graph)->first_op + at,
                    .live = op->live,
                    .rank = op->rank};
    cuda_carry_pattern(m, graph, at, e);
    return e->body == RT_NONE ? MPK_OK : fill_operands(cx, m, graph, at, e);
}

/* Where the entries of a block lie, and how far they are filled: all pointers are into the block
 * but the last two. */
typedef struct filling {
    char *block;
    rt_entry *entries;
    rt_u32 *first, *of_task; /* first_entry, jit_entry */
    uint32_t n, n_first;     /* of entries and of first, so far */
    rt_entry *patterns;      /* of the operators of the graph at hand */
    rt_u32 *kinds;           /* [events] of its triggers */
} filling;

/* An entry from its operator's pattern; numbers of events become those of the whole image.  An
 * empty task, which only joins events, has neither body nor operator. */
static void fill_entry(const cuda_machine *m, uint32_t graph, uint32_t task, const filling *f,
                       rt_entry *e)
{
    const rt_graph *g = graph_of(m, graph);
    const rt_task *t =
        (const rt_task *)image_table(m->machine.image.block, RT_TASKS) + g->first_task + task;
    const rt_event *events =
        (const rt_event *)image_table(m->machine.image.block, RT_EVENTS) + g->first_event;
    *e = t->op == RT_NONE ? (rt_entry){.body = RT_NONE, .op = RT_NONE} : f->patterns[t->op];
    e->depends = g->first_event + t->depends;
    e->needed = events[t->depends].needed;
    e->triggers = g->first_event + t->triggers;
    e->trigger_kind = f->kinds[t->triggers];
    e->task = task;
    memcpy(e->lo, t->lo, sizeof e->lo);
    memcpy(e->hi, t->hi, sizeof e->hi);
    cuda_fill_parts(m, t, f->block, e);
    cuda_fill_squares(m, graph, t, f->patterns, e);
}

/* The workers' lists of a graph, in the order in which they run.  Carriers are settled for a list
 * as a whole, when its entries are there: the first quiet task waits for the gate, the last ones
 * clear. */
static void fill_aot(const cuda_machine *m, uint32_t graph, filling *f)
{
    const rt_graph *g = graph_of(m, graph);
    const rt_range *ranges = cuda_ranges(m, g);
    const rt_u32 *lists = image_table(m->machine.image.block, RT_LISTS);
    for (uint32_t w = 0; w < cuda_workers(m); w++) {
        f->first[f->n_first++] = f->n;
        for (uint32_t k = ranges[w].first; k < ranges[w].last; k++, f->n++) {
            f->of_task[g->first_task + lists[k]] = f->n;
            fill_entry(m, graph, lists[k], f, &f->entries[f->n]);
            f->entries[f->n].is_last = k + 1 == ranges[w].last;
        }
        uint32_t n = ranges[w].last - ranges[w].first;
        cuda_carry_list(m, graph, &f->entries[f->n - n], n);
    }
}

/* JIT tasks by number: a worker finds the entry of a task that it was handed by jit_entry. */
static void fill_jit(const cuda_machine *m, uint32_t graph, filling *f)
{
    const rt_graph *g = graph_of(m, graph);
    const rt_task *tasks =
        (const rt_task *)image_table(m->machine.image.block, RT_TASKS) + g->first_task;
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        if (tasks[t].worker != RT_NONE)
            continue;
        f->of_task[g->first_task + t] = f->n;
        fill_entry(m, graph, t, f, &f->entries[f->n]);
        /* no later task of a list triggers for it, so it triggers when all of it is done */
        f->entries[f->n++].is_last = 1;
    }
}

/* The AOT lists of all graphs, then the JIT tasks of all.  Patterns are made only for operators of
 * this peer: others have no task in its lists.  MPK_EVERIFY: the lists do not hold as many tasks as
 * the image has, so an index would point beyond the table. */
static mpk_status fill_entries(mpk_context *cx, const cuda_machine *m, arena *scratch, char *block)
{
    filling f = {.block = block,
                 .entries = (rt_entry *)(void *)(block + m->layout.entries),
                 .first = (rt_u32 *)(void *)(block + m->layout.first_entry),
                 .of_task = (rt_u32 *)(void *)(block + m->layout.jit_entry)};
    NEW(cx, scratch, f.patterns, m->layout.n_ops);
    rt_entry *all = f.patterns;
    rt_u32 *kinds;
    for (uint32_t i = 0; i < m->machine.image.n_graphs; i++)
        /* all patterns first: fill_squares looks at those of other operators */
        for (uint32_t k = 0; k < graph_of(m, i)->n_ops; k++)
            if (m->machine.image.ir[i]->ops.at[k].peer == m->peer) {
                rt_entry *ops = &all[graph_of(m, i)->first_op];
                TRY(fill_pattern(cx, m, i, k, &ops[k]));
                TRY(cuda_fill_maps(cx, m, i, k, block, ops));
            }
    NEW(cx, scratch, kinds, image_count(m->machine.image.block, RT_EVENTS));
    for (uint32_t i = 0; i < m->machine.image.n_graphs; i++) {
        f.patterns = all + graph_of(m, i)->first_op;
        f.kinds = kinds + graph_of(m, i)->first_event;
        TRY(cuda_find_triggers(cx, scratch, m, i, f.kinds));
        fill_aot(m, i, &f);
    }
    /* the end of the last list, where the JIT tasks begin */
    f.first[f.n_first] = f.n;
    for (uint32_t i = 0; i < m->machine.image.n_graphs; i++) {
        f.patterns = all + graph_of(m, i)->first_op;
        f.kinds = kinds + graph_of(m, i)->first_event;
        fill_jit(m, i, &f);
    }
    CHECK(cx, f.n == m->layout.n_tasks, MPK_EVERIFY, "the lists of the image hold %u tasks of %llu",
          f.n, (unsigned long long)m->layout.n_tasks);
    return MPK_OK;
}

/* The words that workers clear for the next step (carriers.c): offsets in the carried block become
 * addresses; first_clear is copied as it is. */
static void fill_clears(const cuda_machine *m, char *block)
{
    const cuda_carriers *c = &m->carriers;
    rt_clear *to = (rt_clear *)(void *)(block + m->layout.clears);
    for (size_t i = 0; i < c->clears.n; i++) {
        to[i] = c->clears.at[i];
        to[i].at += m->carried_block;
    }
    memcpy(block + m->layout.first_clear, c->first_clear,
           ((size_t)m->machine.image.n_graphs * cuda_workers(m) + 1) * sizeof(rt_u32));
}

/* ---- the baseline: entries by operator ---- */

/* Every operator's tasks by worker: those of its AOT list where they were, JIT tasks in turn.  An
 * operator of one kernel has no events, so only the boxes matter.  Counting sort in two passes:
 * `ranges` is used twice: first ranges[k].last counts, then it is the place of the next entry, and
 * at the end first and last are the range.  k is operator * n_workers + worker. */
static void fill_by_operator(const cuda_machine *m, char *block)
{
    const rt_task *tasks = image_table(m->machine.image.block, RT_TASKS);
    const rt_entry *entries = (const rt_entry *)(const void *)(block + m->layout.entries);
    const rt_u32 *of_task = (const rt_u32 *)(const void *)(block + m->layout.jit_entry);
    rt_entry *out = (rt_entry *)(void *)(block + m->layout.op_entries);
    rt_range *ranges = (rt_range *)(void *)(block + m->layout.op_first);
    uint64_t workers = cuda_workers(m);
    for (int pass = 0; pass < 2; pass++) { /* count, then place */
        for (uint32_t i = 0; i < m->machine.image.n_graphs; i++) {
            const rt_graph *g = graph_of(m, i);
            uint32_t dealt = 0;
            for (uint32_t t = 0; t < g->n_tasks; t++) {
                const rt_task *task = &tasks[g->first_task + t];
                if (task->op == RT_NONE)
                    continue;
                uint32_t worker =
                    task->worker == RT_NONE ? dealt++ % (uint32_t)workers : task->worker;
                rt_range *r = &ranges[(g->first_op + task->op) * workers + worker];
                if (pass == 0) {
                    r->last++;
                    continue;
                }
                out[r->last] = entries[of_task[g->first_task + t]];
                out[r->last].is_last = 0;
                r->last++;
            }
        }
        rt_u32 sum = 0;
        for (uint64_t k = 0; pass == 0 && k < m->layout.n_ops * workers; k++) {
            rt_u32 n = ranges[k].last;
            ranges[k].first = ranges[k].last = sum;
            sum += n;
        }
    }
    for (uint64_t k = 0; k < m->layout.n_ops * workers; k++)
        if (ranges[k].last > ranges[k].first)
            out[ranges[k].last - 1].is_last = 1;
}

/* ---- the runtime's structs ---- */

/* The image's own tables as they are, but for the bodies, which are this program's instances. */
static void fill_image(const cuda_machine *m, char *block)
{
    const rt_header *h = m->machine.image.block;
    const cuda_layout *l = &m->layout;
    memcpy(block + l->graphs, image_table(h, RT_GRAPHS),
           image_count(h, RT_GRAPHS) * sizeof(rt_graph));
    memcpy(block + l->tasks, image_table(h, RT_TASKS), image_count(h, RT_TASKS) * sizeof(rt_task));
    memcpy(block + l->events, image_table(h, RT_EVENTS),
           image_count(h, RT_EVENTS) * sizeof(rt_event));
    memcpy(block + l->ops, image_table(h, RT_OPS), image_count(h, RT_OPS) * sizeof(rt_op));
    memcpy(block + l->ranges, image_table(h, RT_RANGES),
           image_count(h, RT_RANGES) * sizeof(rt_range));
    memcpy(block + l->lists, image_table(h, RT_LISTS), image_count(h, RT_LISTS) * sizeof(rt_u32));
    rt_op *ops = (rt_op *)(void *)(block + l->ops);
    for (uint32_t i = 0; i < m->machine.image.n_graphs; i++)
        for (uint32_t k = 0; k < m->machine.image.ir[i]->ops.n; k++) {
            ops[graph_of(m, i)->first_op + k].body = m->source.uses[i][k].instance;
            ops[graph_of(m, i)->first_op + k].pages = 0; /* bodies count their scratch themselves */
        }
}

/* What changes at run time, as it is before the first step: no step, empty queues, free pages.  All
 * else is zero, as the block is.  Schedulers begin to hand out tasks at different workers, so that
 * they do not crowd at the first. */
static void fill_state(const cuda_machine *m, char *block)
{
    const cuda_layout *l = &m->layout;
    rt_control *control = (rt_control *)(void *)(block + l->control);
    rt_worker *workers = (rt_worker *)(void *)(block + l->workers);
    rt_scheduler *schedulers = (rt_scheduler *)(void *)(block + l->schedulers);
    /* an axis without live entries is cut nowhere */
    control->live[RT_ALL] = UINT32_MAX;
    control->idle.value = 1;
    control->step.value = RT_NO_STEP;
    control->stats.free_pages.value = m->serving.n_free;
    for (uint32_t i = 0; i < cuda_workers(m); i++) {
        workers[i].index = i;
        rt_queue_reset((rt_queue *)(void *)(block + l->jit) + i,
                       (rt_slot_word *)(void *)(block + l->jit_slots) +
                           (uint64_t)i * l->jit_capacity,
                       l->jit_capacity - 1);
    }
    workers[0].owner = 1;
    for (uint32_t i = 0; i < n_schedulers(m); i++) {
        schedulers[i].index = schedulers[i].next_worker = i;
        rt_queue_reset((rt_queue *)(void *)(block + l->event) + i,
                       (rt_slot_word *)(void *)(block + l->event_slots) +
                           (uint64_t)i * l->event_capacity,
                       l->event_capacity - 1);
    }
    memcpy(block + l->serving, &m->serving, sizeof m->serving);
    if (m->has_draft_model)
        memcpy(block + l->drafters + m->serving.n_slots * sizeof(rt_drafter), &m->ahead,
               sizeof m->ahead);
    host_lay_pages(&m->serving, (rt_u32 *)(void *)(block + l->free_pages),
                   (rt_u32 *)(void *)(block + l->buckets));
}

/* A device address as the pointer that the kernel sees; the host never follows it. */
#define AT(address) ((void *)(uintptr_t)(address))

/* What runtime functions see (rt_machine): the same struct as on the CPU, with addresses of this
 * GPU. A table that this program has not got has an address all the same, at which nothing is
 * read. */
static void fill_machine(const cuda_machine *m, rt_machine *rt)
{
    const cuda_layout *l = &m->layout;
    const cuda_options *o = &m->options;
    cuda_address base = m->table_block;
    *rt = (rt_machine){
        .graphs = AT(base + l->graphs),
        .tasks = AT(base + l->tasks),
        .events = AT(base + l->events),
        .ops = AT(base + l->ops),
        .ranges = AT(base + l->ranges),
        .lists = AT(base + l->lists),
        .n_graphs = m->machine.image.n_graphs,
        .n_workers = cuda_workers(m),
        .n_schedulers = n_schedulers(m),
        .jit_mask = l->jit_capacity - 1,
        .event_mask = l->event_capacity - 1,
        .control = AT(base + l->control),
        .counters = AT(base + l->counters),
        .epochs = AT(base + l->epochs),
        .workers = AT(base + l->workers),
        .schedulers = AT(base + l->schedulers),
        .jit = AT(base + l->jit),
        .jit_slots = AT(base + l->jit_slots),
        .event = AT(base + l->event),
        .event_slots = AT(base + l->event_slots),
        .limits = {.stall_ns = o->stall_ns, .processors = cuda_workers(m)},
        .serving = AT(base + l->serving),
        .slots = AT(base + l->slots),
        .running = AT(base + l->running),
        .free_pages = AT(base + l->free_pages),
        .kv_pages = AT(base + l->kv_pages),
        .buckets = AT(base + l->buckets),
        .chains = AT(base + l->chains),
        .drafters = AT(base + l->drafters),
        .has_draft_model = m->has_draft_model,
        .grams = AT(base + l->grams),
        .step_area = AT(m->areas[RT_STEP]),
        .request_ring = AT(base + l->request_ring),
        .command_ring = AT(base + l->command_ring),
        .token_ring = AT(base + l->token_ring),
        .requests = AT(base + l->requests),
        .commands = AT(base + l->commands),
        .tokens = AT(base + l->tokens),
        .token_arena = AT(m->arena_at),
        .n_arena = m->rings.n_arena,
        .request_mask = m->rings.request_mask,
        .command_mask = m->rings.command_mask,
        .token_mask = m->rings.token_mask,
    };
}

/* Where each GPU's kernel finds the counters, the control block, the step inputs and the stop word
 * of the others; of the first one its own, too. */
static void fill_peers(const cuda_machine *m, rt_kernel *k)
{
    k->peer = m->peer;
    k->n_peers = m->n_peers;
    for (uint32_t i = 0; i < m->n_peers; i++) {
        const cuda_address base = m->peers[i]->table_block;
        const cuda_layout *l = &m->peers[i]->layout;
        k->peers[i] = (rt_peer){.counters = AT(base + l->counters),
                                .control = AT(base + l->control),
                                .step_area = AT(m->peers[i]->areas[RT_STEP]),
                                .stop = AT(base + l->kernel + offsetof(rt_kernel, stop)),
                                .away = m->peers[i]->carried_block - m->carried_block};
    }
}

/* The kernel's one argument: the machine, the entries, and where the host's ends of rings and
 * mailbox lie as the GPU sees them.  What is not named here is zero.  idle_ns is cut to 32 bits,
 * about 4 s: longer waits only keep SMs busy. */
static void fill_kernel(const cuda_machine *m, rt_kernel *k)
{
    const cuda_layout *l = &m->layout;
    const cuda_options *o = &m->options;
    cuda_address base = m->table_block, box = m->mailbox_at;
    fill_machine(m, &k->machine);
    k->entries = AT(base + l->entries);
    k->first_entry = AT(base + l->first_entry);
    k->jit_entry = AT(base + l->jit_entry);
    k->clears = AT(base + l->clears);
    k->first_clear = AT(base + l->first_clear);
    k->regimes = AT(base + l->regimes);
    k->parts = AT(m->parts_block);
    k->rooms = AT(base + l->rooms);
    /* how far the loader runs ahead */
    k->tuning = (rt_tuning){.in_flight = o->in_flight,
                            .preload = !o->no_preload,
                            .descriptor_ahead = o->no_descriptor_prefetch ? 1 : UINT32_MAX};
    k->mode = RT_SERVE;
    k->times = o->profile ? AT(base + l->times) : NULL;
    k->delays = o->profile ? AT(base + l->delays) : NULL;
    k->steps = o->profile ? AT(base + l->steps) : NULL;
    k->start_step = RT_NO_STEP;
    k->idle_ns = o->idle_ns < UINT32_MAX ? (rt_u32)o->idle_ns : UINT32_MAX;
    /* the host's ends, pinned, as this GPU sees them */
    k->host_request_ring = AT(box + offsetof(cuda_mailbox, request_ring));
    k->host_command_ring = AT(box + offsetof(cuda_mailbox, command_ring));
    k->host_token_ring = AT(box + offsetof(cuda_mailbox, token_ring));
    k->host_requests = AT(m->requests_at);
    k->host_commands = AT(m->commands_at);
    k->host_tokens = AT(m->tokens_at);
    k->host_abort = AT(box + offsetof(cuda_mailbox, abort));
    k->host_fault = AT(box + offsetof(cuda_mailbox, fault));
    k->host_state = AT(box + offsetof(cuda_mailbox, state));
    k->host_once_wanted = AT(box + offsetof(cuda_mailbox, once_wanted));
    k->host_once = AT(box + offsetof(cuda_mailbox, once));
    k->host_once_done = AT(box + offsetof(cuda_mailbox, once_done));
    k->pushes = AT(base + l->pushes);
    k->first_push = AT(base + l->first_push);
    fill_peers(m, k);
    k->host_regime = AT(box + offsetof(cuda_mailbox, regime));
    k->host_left = AT(box + offsetof(cuda_mailbox, left));
}

/* One argument for each operator, and after them one for the step task: kernels of the baseline run
 * one operator each (RT_ONE_OP), which finds its tasks by `one`.  Each is a copy of the whole
 * kernel's argument, which must be filled in before.  Nothing mirrors the rings here: the step task
 * uses the host's. */
static void fill_op_kernels(const cuda_machine *m, char *block)
{
    const cuda_layout *l = &m->layout;
    rt_kernel *whole = (rt_kernel *)(void *)(block + l->kernel),
              *k = (rt_kernel *)(void *)(block + l->op_kernels);
    rt_machine *rt = &whole->machine;
    rt->request_ring = whole->host_request_ring;
    rt->command_ring = whole->host_command_ring;
    rt->token_ring = whole->host_token_ring;
    rt->requests = AT(m->requests_at);
    rt->commands = AT(m->commands_at);
    rt->tokens = AT(m->tokens_at);
    whole->times = NULL; /* its entries stand in another order */
    for (uint32_t i = 0; i < m->machine.image.n_graphs; i++)
        for (uint32_t o = 0; o < graph_of(m, i)->n_ops; o++) {
            uint64_t op = graph_of(m, i)->first_op + o;
            k[op] = *whole;
            k[op].mode = RT_ONE_OP;
            k[op].graph = i;
            k[op].entries = AT(m->table_block + l->op_entries);
            k[op].one = AT(m->table_block + l->op_first + op * cuda_workers(m) * sizeof(rt_range));
        }
    k[l->n_ops] = *whole;
    k[l->n_ops].mode = RT_ONE_STEP;
}

/* Fill the block, m->layout.n_bytes of the host's memory, for GPU m.  It is zeroed by the caller,
 * and much of it stays so.  All addresses of all peers must be known.  Tables that do not depend on
 * each other come first, then entries, then the arguments that point to them; the baseline's are
 * copies of the others and so come last.  No GPU is touched. */
mpk_status cuda_fill_tables(mpk_context *cx, const cuda_machine *m, char *block)
{
    arena scratch = {0};
    fill_image(m, block);
    fill_state(m, block);
    fill_clears(m, block);
    cuda_list_pushes(m, (rt_push *)(void *)(block + m->layout.pushes),
                     (rt_u32 *)(void *)(block + m->layout.first_push));
    memcpy(block + m->layout.regimes, m->source.regime_of,
           m->machine.image.n_graphs * sizeof(rt_u32));
    mpk_status status = fill_entries(cx, m, &scratch, block);
    arena_free(&scratch);
    TRY(status);
    fill_kernel(m, (rt_kernel *)(void *)(block + m->layout.kernel));
    if (cuda_has_op_kernels(m)) {
        fill_by_operator(m, block);
        fill_op_kernels(m, block);
    }
    return MPK_OK;
}
