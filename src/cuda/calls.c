/* calls.c - a program in the memory of its caller on the GPU: one launch of the kernel for each
 * run, on the caller's stream.
 *
 * Input: where each weight lies; then, for each run, the addresses of inputs, states and outputs.
 * Weights that a body reads packed are packed by kernels of their own before the run that needs
 * them; all others, and every other tensor of the caller, are used where they are.  Entries
 * (rt_lane.h) hold addresses: those that the caller may change are listed once (rt_use), and the
 * kernel itself writes new ones into its entries before it looks at them.
 *
 * Nothing here waits for the GPU but cuda_call_wait and the end.  A run is after the last one,
 * whatever their streams, since they share temporaries and counters; and after that of another
 * machine, if the caller says so: two kernels that want all SMs must not get some of them each.
 * Cost of a run: one launch, recorded as a CUDA graph when the machine is made; on another stream
 * than the default one an event; and, if an address has changed, a copy of all addresses to the GPU
 * on the same stream.
 */
#include <stdlib.h>

#include "cuda/cuda_machine.h"

/* PACK_BLOCKS blocks of PACK_THREADS threads keep the memory of the largest GPU busy; more gain
 * nothing. */
enum { NO_SLOT = -1, PACK_THREADS = 256, PACK_BLOCKS = 4096 };

/* What a machine of CUDA_CALLS has besides the rest; in its arena. */
typedef struct cuda_calls {
    cuda_address *weights; /* [image.n_weights] where the caller keeps them */
    bool *stale;           /* [weights.packed.n] its copy is missing or out of date */
    bool is_stale;         /* some copy is */
    /* a launch of the kernel, recorded as a graph: it takes the driver half the time of a launch */
    cuda_graph run;
    cuda_event done;  /* the last run has ended; of one on the default stream: see mark_end */
    cuda_stream last; /* where that was */
    bool launched;
    cuda_address block; /* of the slots: addresses, sets that entries hold, uses */
} cuda_calls;

/* An operator's map of an x that lies in a slot. */
typedef struct slot_map {
    uint32_t op, slot;
    uint64_t offset;   /* bytes after the slot's address */
    cuda_address made; /* the address for which the GPU has it; 0: none */
} slot_map;

/* What machine_make_slots gives; in the caller's arena.  A machine has one that counts: making
 * another replaces the tables that its kernel reads, and the first may not be launched any more. */
typedef struct cuda_slots {
    uint32_t n;
    uint64_t *addresses; /* [1 + n] as on the GPU, or about to be: rt_call.addresses */
    cuda_address at;     /* there */
    uint32_t *weights;   /* [n] weight that lies in a slot, or IR_NONE */
    bool is_sent;        /* the GPU has these addresses; false after a copy that failed */
    slot_map *maps;
    uint32_t n_maps;
} cuda_slots;

/* ---- weights ---- */

/* Where row `row` of a weight lies in the caller's memory. */
static cuda_address weight_rows(const cuda_machine *m, uint32_t weight, uint64_t row)
{
    uint64_t elements = row * m->weights.weights[weight].columns;
    return m->calls->weights[weight] +
           (uint64_t)ir_row_bytes(m->machine.image.weights[weight].dtype, (int64_t)elements);
}

/* Enqueue the packing of part k of a copy: its rows go from the caller's memory into this GPU's
 * weight block.  A block of threads packs every n_blocks-th item (cuda_pack_blocks). */
static mpk_status pack_part(mpk_context *cx, const cuda_machine *m, const cuda_packed *packed,
                            uint32_t k, cuda_stream s)
{
    const cuda_part *part = &packed->parts[k];
    rt_pack job = {.from = weight_rows(m, part->weight, part->first_row),
                   .to = m->weight_block + packed->offset,
                   .n_rows = part->n_rows,
                   .base_row = part->base_row,
                   .columns = packed->columns,
                   .padded_columns = packed->padded_columns,
                   .to_dtype = (rt_u32)packed->dtype,
                   .dtype = (rt_u32)m->machine.image.weights[part->weight].dtype,
                   .paired = packed->order == GEN_PAIRED,
                   .which = k};
    if (packed->scale != IR_NONE) {
        job.scale = m->calls->weights[packed->scale];
        job.scale_dtype = (rt_u32)m->machine.image.weights[packed->scale].dtype;
    }
    if (packed->shift != IR_NONE) {
        job.shift = m->calls->weights[packed->shift];
        job.shift_dtype = (rt_u32)m->machine.image.weights[packed->shift].dtype;
    }
    const uint64_t items = cuda_pack_blocks(packed, (ir_dtype)job.dtype, &job);
    uint64_t blocks = (items + PACK_THREADS - 1) / PACK_THREADS;
    void *arguments[] = {&job};
    cuda_launch l = {.function = m->pack,
                     .name = "mpk_pack",
                     .n_blocks = (uint32_t)(blocks < PACK_BLOCKS ? blocks : PACK_BLOCKS),
                     .n_threads = PACK_THREADS,
                     .arguments = arguments};
    return cuda_launch_on(cx, m->gpu, s, &l);
}

/* Enqueue the packing of all stale copies on the caller's stream, before the run that needs them.
 * A copy is no longer stale once its launches are on the stream: later runs are ordered after
 * them. */
static mpk_status pack_stale(mpk_context *cx, cuda_machine *m, cuda_stream s)
{
    cuda_calls *c = m->calls;
    for (size_t i = 0; c->is_stale && i < m->weights.packed.n; i++) {
        for (uint32_t k = 0; c->stale[i] && k < m->weights.packed.at[i].n_parts; k++)
            TRY(pack_part(cx, m, &m->weights.packed.at[i], k, s));
        c->stale[i] = false;
    }
    c->is_stale = false;
    return MPK_OK;
}

/* Is this weight a part of the copy, or multiplied into or by it? */
static bool holds(const cuda_packed *p, uint32_t weight)
{
    bool has = p->scale == weight || p->shift == weight;
    for (uint32_t k = 0; k < p->n_parts; k++)
        has |= p->parts[k].weight == weight;
    return has;
}

/* A weight has moved or changed: every copy that is made from it must be packed again. */
static void mark_stale(cuda_machine *m, uint32_t weight)
{
    for (size_t i = 0; i < m->weights.packed.n; i++)
        if (holds(&m->weights.packed.at[i], weight))
            m->calls->stale[i] = m->calls->is_stale = true;
}

/* machine_def's keeps_copy: then the caller must say (cuda_call_touch) when it has changed the
 * weight. */
bool cuda_call_keeps_copy(const machine *base, uint32_t weight)
{
    const cuda_weight_plan *plan = &((const cuda_machine *)base)->weights;
    for (size_t i = 0; i < plan->packed.n; i++)
        if (holds(&plan->packed.at[i], weight))
            return true;
    return false;
}

cuda_address cuda_call_weight(const cuda_machine *m, uint32_t weight)
{
    return m->calls->weights[weight];
}

/* ---- slots: which words of which entries are the caller's ---- */

/* One walk over all entries: it counts the addresses that are the caller's, or lists them. */
typedef struct survey {
    const cuda_machine *m;
    const int32_t *slot_of; /* [tensors] */
    rt_use *uses;           /* NULL: they are counted */
    rt_u32 n;
} survey;

/* Does the body read this operand only in its packed copy? */
static bool is_packed(const gen_pack *p, ir_tensor_id tensor)
{
    for (uint32_t k = 0; k < p->n_weights; k++)
        if (p->w[k] == tensor)
            return true;
    return false;
}

/* How many bytes after the address of its slot a tensor begins. */
static uint64_t offset_in_slot(const ir_graph *g, ir_tensor_id tensor)
{
    int64_t stride[IR_MAX_RANK], offset;
    ir_strides(g, tensor, stride, &offset);
    return (uint64_t)ir_row_bytes(g->tensors.at[tensor].dtype, offset);
}

/* Has an operator a map of its x, made anew where the caller moves that? */
static bool maps_x(const cuda_machine *m, uint32_t op)
{
    return cuda_takes_maps(m, 0, op) && !m->source.uses[0][op].body->images;
}

/* Counts an operand if its tensor lies in a slot, or, when there is room (uses), lists it: which
 * word of which entry, which slot, how many bytes after the slot's address, is it mapped.
 * MPK_EARG: the tensor is an input, a state or an output, for which this machine has no memory, and
 * no slot gives it any. */
static mpk_status visit_operand(mpk_context *cx, survey *s, rt_u32 entry, ir_tensor_id tensor,
                                uint32_t operand, bool mapped)
{
    const ir_graph *g = s->m->machine.image.ir[0];
    ir_tensor_id root = tg_root(g, tensor);
    tg_area area = s->m->machine.image.places[0][root].area;
    CHECK(cx, s->slot_of[root] != NO_SLOT || (area != TG_STATE && area != TG_STEP), MPK_EARG,
          "tensor %.*s has no slot: a program in its caller's memory has none for inputs, states "
          "and outputs",
          STR_ARG(g->tensors.at[root].name));
    if (s->slot_of[root] == NO_SLOT)
        return MPK_OK;
    if (s->uses) {
        uint64_t at = entry * sizeof(rt_entry) + offsetof(rt_entry, at) + operand * sizeof(rt_u64);
        s->uses[s->n] = (rt_use){.word = (rt_u32)(at / sizeof(rt_u64)),
                                 .slot = (rt_u32)s->slot_of[root] | (mapped ? RT_USE_MAP : 0),
                                 .offset = offset_in_slot(g, tensor)};
    }
    s->n++;
    return MPK_OK;
}

/* Operands that a body reads packed keep their address: packing follows the slot instead. */
static mpk_status visit_entry(mpk_context *cx, survey *s, rt_u32 entry, uint32_t task)
{
    const rt_task *t = (const rt_task *)image_table(s->m->machine.image.block, RT_TASKS) + task;
    if (t->op == RT_NONE || s->m->source.uses[0][t->op].instance == RT_NONE)
        return MPK_OK;
    const ir_op *op = &s->m->machine.image.ir[0]->ops.at[t->op];
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] != IR_NONE && !is_packed(&s->m->source.uses[0][t->op].pack, op->in[i]))
            TRY(visit_operand(cx, s, entry, op->in[i], gen_operand_of_input(op, i),
                              i == 0 && maps_x(s->m, t->op)));
    for (uint32_t i = 0; i < op->n_out; i++)
        TRY(visit_operand(cx, s, entry, op->out[i], gen_operand_of_output(op, i), false));
    return MPK_OK;
}

/* Entries in the order of tables.c: the lists of the workers, then JIT tasks.  first: [n_workers +
 * 2]. */
static mpk_status visit_entries(mpk_context *cx, survey *s, rt_u32 *first)
{
    const rt_header *h = s->m->machine.image.block;
    const rt_graph *g = image_table(h, RT_GRAPHS);
    const rt_range *ranges = (const rt_range *)image_table(h, RT_RANGES) + g->first_range;
    const rt_u32 *lists = image_table(h, RT_LISTS);
    const rt_task *tasks = image_table(h, RT_TASKS);
    rt_u32 entry = 0;
    s->n = 0;
    for (uint32_t w = 0; w < h->n_workers; w++) {
        first[w] = s->n;
        for (uint32_t k = ranges[w].first; k < ranges[w].last; k++)
            TRY(visit_entry(cx, s, entry++, lists[k]));
    }
    first[h->n_workers] = s->n;
    for (uint32_t t = 0; t < g->n_tasks; t++)
        if (tasks[t].worker == RT_NONE)
            TRY(visit_entry(cx, s, entry++, t));
    first[h->n_workers + 1] = s->n;
    return MPK_OK;
}

/* The slots as the caller gave them: slot_of[root] is a tensor's slot or NO_SLOT, weights[i] the
 * weight that lies in slot i.  addresses[0] is the number of the table, which grows with each
 * change and by which kernels know that it changed; the addresses follow. */
static mpk_status map_slots(mpk_context *cx, const cuda_machine *m, arena *a, uint32_t n,
                            const ir_tensor_id *roots, cuda_slots *to, int32_t **slot_of)
{
    const program_image *image = &m->machine.image;
    NEW(cx, a, *slot_of, image->ir[0]->tensors.n);
    NEW(cx, a, to->addresses, n + 1);
    NEW(cx, a, to->weights, n);
    to->n = n;
    for (size_t t = 0; t < image->ir[0]->tensors.n; t++)
        (*slot_of)[t] = NO_SLOT;
    for (uint32_t i = 0; i < n; i++) {
        to->weights[i] = IR_NONE;
        if (roots[i] == IR_NONE)
            continue;
        (*slot_of)[roots[i]] = (int32_t)i;
        if (image->places[0][roots[i]].area == TG_WEIGHTS)
            to->weights[i] = (uint32_t)image->places[0][roots[i]].offset;
    }
    return MPK_OK;
}

/* The maps of what lies in slots; none is made yet. */
static mpk_status list_maps(mpk_context *cx, const cuda_machine *m, arena *a,
                            const int32_t *slot_of, cuda_slots *to)
{
    const ir_graph *g = m->machine.image.ir[0];
    NEW(cx, a, to->maps, g->ops.n + 1);
    for (uint32_t op = 0; op < g->ops.n; op++) {
        if (!maps_x(m, op))
            continue;
        const ir_tensor_id x = g->ops.at[op].in[0], root = tg_root(g, x);
        if (slot_of[root] != NO_SLOT)
            to->maps[to->n_maps++] = (slot_map){
                .op = op, .slot = (uint32_t)slot_of[root], .offset = offset_in_slot(g, x)};
    }
    return MPK_OK;
}

/* Everything of the slots in one block of the GPU's memory, and the kernel told where:
 *
 *   u64 addresses[1 + n]     rt_call.addresses, rewritten by send_addresses
 *   u64 held[n_workers]      number of the table that a worker's entries hold
 *   u32 first[n_workers + 2] where each worker's uses begin; the last list is of JIT tasks
 *   rt_use uses[n_uses]      16-byte aligned
 *
 * A block of an earlier call is released: no run uses it, since the caller has waited. */
static mpk_status place_slots(mpk_context *cx, cuda_machine *m, cuda_slots *slots,
                              const rt_u32 *first, const rt_use *uses, rt_u32 n_uses)
{
    uint64_t workers = m->machine.image.block->n_workers,
             addresses = (slots->n + 1) * sizeof(rt_u64), held = workers * sizeof(rt_u64),
             lists = (workers + 2) * sizeof(rt_u32),
             at_uses = (addresses + held + lists + 15) / 16 * 16;
    cuda_address old = m->calls->block, block,
                 call = m->table_block + m->layout.kernel + offsetof(rt_kernel, call);
    TRY(cuda_memory_alloc(cx, m->gpu, "the list of slots", at_uses + n_uses * sizeof *uses,
                          &block));
    m->calls->block = block;
    cuda_memory_release(m->gpu, old);
    slots->at = block;
    TRY(cuda_fill_on(cx, m->gpu, m->copies, block, 0, at_uses));
    TRY(cuda_stream_wait(cx, m->gpu, m->copies));
    TRY(cuda_upload(cx, m->gpu, block + addresses + held, first, lists));
    TRY(cuda_upload(cx, m->gpu, block + at_uses, uses, n_uses * sizeof *uses));
    const rt_u64 words[] = {block, block + at_uses, block + addresses + held, block + addresses};
    return cuda_upload(cx, m->gpu, call + offsetof(rt_call, addresses), words, sizeof words);
}

/* The entries are visited twice, to count and to list.  The last run must have ended before tables
 * are replaced. */
static mpk_status make_slots(mpk_context *cx, cuda_machine *m, arena *a, arena *scratch, uint32_t n,
                             const ir_tensor_id *roots, cuda_slots **out)
{
    int32_t *slot_of;
    rt_u32 *first;
    cuda_slots *slots;
    survey s = {.m = m};
    NEW(cx, a, slots, 1);
    TRY(map_slots(cx, m, a, n, roots, slots, &slot_of));
    TRY(list_maps(cx, m, a, slot_of, slots));
    s.slot_of = slot_of;
    NEW(cx, scratch, first, m->machine.image.block->n_workers + 2);
    TRY(visit_entries(cx, &s, first));
    NEW(cx, scratch, s.uses, s.n + 1);
    TRY(visit_entries(cx, &s, first));
    TRY(cuda_call_wait(cx, &m->machine));
    TRY(place_slots(cx, m, slots, first, s.uses, s.n));
    *out = slots;
    return MPK_OK;
}

/* The caller's CUDA context is current before and after. */
mpk_status cuda_call_make_slots(mpk_context *cx, machine *base, arena *a, uint32_t graph,
                                uint32_t n, const ir_tensor_id *roots, void **out)
{
    cuda_machine *m = cuda_of(base);
    cuda_slots *slots = NULL;
    arena scratch = {0};
    cuda_context before;
    (void)graph; /* there is one */
    TRY(cuda_gpu_enter(cx, m->gpu, &before));
    mpk_status status = make_slots(cx, m, a, &scratch, n, roots, &slots);
    cuda_gpu_leave(m->gpu, before);
    arena_free(&scratch);
    TRY(status);
    *out = slots;
    return MPK_OK;
}

/* ---- runs ---- */

/* The kernel writes the mailbox over the bus, so a fault may be seen some time after it
 * happened. */
static mpk_status check_fault(mpk_context *cx, const cuda_machine *m)
{
    if (rt_load_acquire_system(&m->mailbox->state) == RT_FAULTED)
        return machine_say_fault(cx, &m->machine, &m->mailbox->fault);
    return MPK_OK;
}

/* Any thread: the mailbox alone is looked at. */
mpk_status cuda_call_check(mpk_context *cx, machine *base)
{
    return check_fault(cx, cuda_of(base));
}

/* Let m->calls->done come when the last run has ended.  Another stream may be gone when this is
 * called, so there the event is recorded after each run; the default one stays, and most runs there
 * are followed by runs there: only now, after all that was put there since. */
static mpk_status mark_end(mpk_context *cx, const cuda_machine *m)
{
    return m->calls->last ? MPK_OK : cuda_event_record(cx, m->gpu, m->calls->done, NULL);
}

/* The stream goes on when the last run of a machine has ended; nothing to do if it was put on the
 * same one. */
static mpk_status follow(mpk_context *cx, const cuda_machine *m, const cuda_machine *last,
                         cuda_stream s)
{
    if (!last || !last->calls->launched || last->calls->last == s)
        return MPK_OK;
    TRY(mark_end(cx, last));
    return cuda_stream_after(cx, m->gpu, s, last->calls->done);
}

/* Maps of what has moved, made anew for the addresses that are about to be sent. */
static mpk_status send_maps(mpk_context *cx, cuda_machine *m, cuda_slots *slots, cuda_stream s)
{
    for (uint32_t i = 0; i < slots->n_maps; i++) {
        slot_map *of = &slots->maps[i];
        const cuda_address x = slots->addresses[1 + of->slot] + of->offset;
        rt_map made;
        if (x == of->made)
            continue;
        of->made = 0; /* until it is there */
        CHECK(cx, cuda_map_x(m, 0, of->op, x, &made), MPK_EUNSUPPORTED,
              "this driver makes no tensor map of the operand of %%%.*s: update the driver",
              STR_ARG(m->machine.image.ir[0]->ops.at[of->op].name));
        TRY(cuda_upload_on(cx, m->gpu, s, cuda_maps_at(m, of->op), &made, sizeof made));
        of->made = x;
    }
    return MPK_OK;
}

/* What has changed since the last run goes to the GPU, on the stream, and weights that moved are
 * noted as stale.  The copy is of memory that is not pinned, so the driver has taken the bytes when
 * it returns.  After a failure the same addresses are sent again by the next run, under a new
 * number, since an unknown part of them may have arrived. */
static mpk_status send_addresses(mpk_context *cx, cuda_machine *m, cuda_slots *slots, cuda_stream s,
                                 void *const *data)
{
    uint64_t *held = slots->addresses;
    if (slots->is_sent && memcmp(held + 1, data, slots->n * sizeof *held) == 0)
        return MPK_OK;
    for (uint32_t i = 0; i < slots->n; i++) {
        uint32_t weight = slots->weights[i];
        held[1 + i] = (uintptr_t)data[i];
        if (weight != IR_NONE && m->calls->weights[weight] != held[1 + i]) {
            m->calls->weights[weight] = held[1 + i];
            mark_stale(m, weight);
        }
    }
    held[0]++;
    slots->is_sent = false;
    TRY(send_maps(cx, m, slots, s));
    TRY(cuda_upload_on(cx, m->gpu, s, slots->at, held, (slots->n + 1) * sizeof *held));
    slots->is_sent = true;
    return MPK_OK;
}

/* One run on the caller's stream.  What is put there, in this order, and when:
 *
 *   wait for the last run             if that was on another stream
 *   wait for `after`'s last run       if there is one, and on another stream
 *   copies of maps, of all addresses  if an address has changed since the last run
 *   packing kernels                   if a weight moved, or was written (cuda_call_touch)
 *   the program                       always: one graph launch
 *   an event                          unless it is the default stream (mark_end)
 *
 * A stream that is being captured is refused: the addresses of the capture would be those of every
 * replay. */
static mpk_status launch(mpk_context *cx, cuda_machine *m, const cuda_machine *after,
                         cuda_slots *slots, cuda_stream s, void *const *data)
{
    bool captured;
    TRY(cuda_stream_is_captured(cx, m->gpu, s, &captured));
    CHECK(cx, !captured, MPK_EUNSUPPORTED,
          "the stream is being captured into a CUDA graph: a program of mpk is one launch already, "
          "run it outside");
    TRY(follow(cx, m, m, s));
    TRY(follow(cx, m, after, s));
    TRY(send_addresses(cx, m, slots, s, data));
    TRY(pack_stale(cx, m, s));
    TRY(cuda_graph_launch(cx, m->gpu, m->calls->run, s));
    m->calls->last = s;
    m->calls->launched = true;
    return s ? cuda_event_record(cx, m->gpu, m->calls->done, s) : MPK_OK;
}

/* A fault of an earlier run is told here, since nothing waits for a run. */
mpk_status cuda_call_launch(mpk_context *cx, machine *base, machine *after, void *slots,
                            void *stream, void *const *data)
{
    cuda_machine *m = cuda_of(base);
    cuda_context before;
    TRY(check_fault(cx, m));
    TRY(cuda_gpu_enter(cx, m->gpu, &before));
    mpk_status status = launch(cx, m, after ? cuda_of(after) : NULL, slots, stream, data);
    cuda_gpu_leave(m->gpu, before);
    return status;
}

/* Blocks until the last run has ended; it was launched at least once. */
static mpk_status await_last(mpk_context *cx, const cuda_machine *m)
{
    TRY(mark_end(cx, m));
    return cuda_event_wait(cx, m->gpu, m->calls->done);
}

/* machine_def's wait_launch: the host may wait here; a machine that was never launched has nothing
 * to wait for. */
mpk_status cuda_call_wait(mpk_context *cx, machine *base)
{
    cuda_machine *m = cuda_of(base);
    cuda_context before;
    if (m->calls->launched) {
        TRY(cuda_gpu_enter(cx, m->gpu, &before));
        mpk_status status = await_last(cx, m);
        cuda_gpu_leave(m->gpu, before);
        TRY(status);
    }
    return check_fault(cx, m);
}

/* The caller changed a constant in place; what is read plain is seen by the next run anyway. */
void cuda_call_touch(machine *base, void *target, uint32_t slot)
{
    const cuda_slots *slots = target;
    if (slots->weights[slot] != IR_NONE)
        mark_stale(cuda_of(base), slots->weights[slot]);
}

/* ---- calls with memory of the caller's ---- */

/* The host cannot reach the caller's tensors; functions of the machine that would are these. */
mpk_status cuda_call_refuse_write(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                                  const void *from)
{
    (void)m, (void)graph, (void)tensor, (void)from;
    FAIL(cx, MPK_EUNSUPPORTED,
         "this program runs in its caller's memory on the GPU: mpk_program_launch runs it");
}

mpk_status cuda_call_refuse_read(mpk_context *cx, machine *m, uint32_t graph, ir_tensor_id tensor,
                                 void *to)
{
    return cuda_call_refuse_write(cx, m, graph, tensor, to);
}

mpk_status cuda_call_refuse_run(mpk_context *cx, machine *m, uint32_t graph, uint32_t n_tokens,
                                uint32_t n_rows)
{
    (void)n_tokens, (void)n_rows;
    return cuda_call_refuse_write(cx, m, graph, 0, NULL);
}

mpk_status cuda_call_refuse_clear(mpk_context *cx, machine *m)
{
    return cuda_call_refuse_write(cx, m, 0, 0, NULL);
}

/* ---- start and end ---- */

/* Weights stay where the caller has them; packed copies begin as stale.  The block of copies is
 * zeroed once, for the padding that packing does not write. */
mpk_status cuda_calls_start(mpk_context *cx, cuda_machine *m, const machine_weights *weights)
{
    cuda_calls *c;
    const program_image *image = &m->machine.image;
    NEW(cx, &m->arena, c, 1);
    NEW(cx, &m->arena, c->weights, image->n_weights + 1);
    NEW(cx, &m->arena, c->stale, m->weights.packed.n + 1);
    for (uint32_t i = 0; i < image->n_weights; i++)
        c->weights[i] = (uintptr_t)weights->at[i].at;
    for (size_t i = 0; i < m->weights.packed.n; i++)
        c->stale[i] = c->is_stale = true;
    m->calls = c;
    if (m->weights.n_bytes) { /* padding */
        TRY(cuda_fill_on(cx, m->gpu, m->copies, m->weight_block, 0, m->weights.n_bytes));
        TRY(cuda_stream_wait(cx, m->gpu, m->copies));
    }
    return cuda_event_create(cx, m->gpu, false, &c->done);
}

/* The launch alone is recorded: its argument is the table block, whose contents may change, so one
 * recording serves all runs. */
mpk_status cuda_calls_record(mpk_context *cx, cuda_machine *m)
{
    TRY(cuda_graph_begin(cx, m->gpu, m->work));
    mpk_status status = cuda_launch_main(cx, m, GEN_STREAMS, m->work);
    return cuda_graph_end(cx, m->gpu, m->work, status, &m->calls->run);
}

/* Called by stop with the GPU current.  Nothing is released while a run may still use it. */
void cuda_calls_stop(cuda_machine *m)
{
    mpk_context late = {0};
    if (!m->calls)
        return;
    if (m->calls->launched)
        await_last(&late, m); /* a GPU that is lost has no kernel either */
    cuda_graph_release(m->gpu, m->calls->run);
    cuda_memory_release(m->gpu, m->calls->block);
    cuda_event_release(m->gpu, m->calls->done);
}
