/* cuda_calls_test.c - runs in the caller's memory: what the kernel is told, the order of launches,
 * wrong calls. */
#include "cuda_bed.h"
#include "shape/linear_tile_shape.h"

/* The tensors of `products` that lie in the caller's memory: input, state, a packed weight, a plain
 * one, output. */
enum { SLOTS = 5 };
static const char *const slot_names[SLOTS] = {"x", "s", "w", "b", "r"};

/* What the stand-in for the kernel checks each run against, and what it counts. */
typedef struct call_bed {
    bed *b;
    const uint64_t *data; /* [SLOTS] of the call */
    ir_tensor_id roots[SLOTS];
    unsigned runs, packs;
    bool faults;
} call_bed;

/* What the workers do at the beginning of a call: addresses into their entries. */
static void move_list(const rt_kernel *k, uint32_t list)
{
    const rt_call *c = &k->call;
    for (uint32_t i = c->first_use[list]; i < c->first_use[list + 1]; i++) {
        const rt_use *u = &c->uses[i];
        ((rt_u64 *)(uintptr_t)k->entries)[u->word] =
            c->addresses[1 + (u->slot & ~RT_USE_MAP)] + u->offset;
    }
}

/* What the kernel does at the start of a call: if the table of addresses has another number than
 * the one a worker holds, its list's entries are written again. Worker 0 also has the tasks of no
 * list. */
static void move_addresses(const rt_kernel *k)
{
    const rt_call *c = &k->call;
    for (uint32_t w = 0; w < k->machine.n_workers; w++) {
        if (c->held[w] == c->addresses[0])
            continue;
        move_list(k, w);
        if (w == 0)
            move_list(k, k->machine.n_workers);
        c->held[w] = c->addresses[0];
    }
}

/* Where a tensor must lie in this call: in its slot, else in the machine's temporaries. */
static uint64_t called_address(const call_bed *c, ir_tensor_id t)
{
    const ir_graph *g = c->b->image.ir[0];
    const tg_place *p = &c->b->image.places[0][t];
    int64_t stride[IR_MAX_RANK], offset;
    ir_strides(g, t, stride, &offset);
    for (int i = 0; i < SLOTS; i++)
        if (tg_root(g, t) == c->roots[i])
            return c->data[i] + (uint64_t)ir_row_bytes(g->tensors.at[t].dtype, offset);
    return cuda_of(c->b->m)->areas[p->area] + p->offset;
}

/* Every operand of every entry has the address that this call gave; packed weights alone keep
 * theirs. */
static void check_called(const call_bed *c, const rt_kernel *k)
{
    const bed *b = c->b;
    for (uint64_t i = 0; i < cuda_of(b->m)->layout.n_tasks; i++) {
        const rt_entry *e = &k->entries[i];
        if (e->body == RT_NONE)
            continue;
        const ir_op *op = &b->image.ir[0]->ops.at[e->op];
        uint32_t packed = cuda_of(b->m)->weights.packed_of[0][e->op];
        for (uint32_t o = 0; o < op->n_in; o++)
            if (op->in[o] != IR_NONE && !(packed != RT_NONE && op->in[o] == c->roots[2]))
                assert_int_equal(e->at[o], called_address(c, op->in[o]));
        for (uint32_t o = 0; o < op->n_out; o++)
            assert_int_equal(e->at[op->n_in + o], called_address(c, op->out[o]));
    }
}

/* What a launch does: a packing is counted, a run moves addresses as workers do and is checked. */
static void run_call(void *user, const fake_launch *l)
{
    call_bed *c = user;
    if (strcmp(l->function, "mpk_pack") == 0) {
        assert_int_equal(l->argument, c->data[2]); /* its first member: from where */
        c->packs++;
        return;
    }
    const rt_kernel *k = (const rt_kernel *)(uintptr_t)l->argument;
    assert_true(l->cooperative && l->from_graph && k->call.addresses && l->n_blocks == 6);
    move_addresses(k);
    check_called(c, k);
    c->runs++;
    if (c->faults) {
        *k->host_fault = (rt_fault){
            .kind = RT_STALL, .worker = 3, .task = 1, .event = 2, .seen = 4, .needed = 5};
        rt_store_release_system(k->host_state, RT_FAULTED);
    }
}

/* Weights get addresses that are no memory: nothing on the host may read them. */
static bed *start_calls(const char *source)
{
    bed *b = set_up(source);
    for (uint32_t i = 0; i < b->image.n_weights; i++)
        b->weights[i].at = (const void *)(uintptr_t)(0x100000 * (i + 1));
    check_ok(&b->cx, start_as(b, CUDA_CALLS));
    return b;
}

static void set_up_calls(call_bed *c, machine_slots **slots)
{
    c->b = start_calls(products);
    for (int i = 0; i < SLOTS; i++) {
        c->roots[i] = ir_find(c->b->image.ir[0], slot_names[i]);
        assert_int_not_equal(c->roots[i], IR_NONE);
    }
    check_ok(&c->b->cx,
             machine_make_slots(&c->b->cx, c->b->m, &c->b->a, 0, SLOTS, c->roots, slots));
    c->b->fake->kernel(run_call, c);
}

/* Launch with these addresses; c->data is what run_call compares with. */
static mpk_status call_with(call_bed *c, machine *after, machine_slots *slots, void *stream,
                            const uint64_t *data)
{
    void *addresses[SLOTS];
    c->data = data;
    for (int i = 0; i < SLOTS; i++)
        addresses[i] = (void *)(uintptr_t)data[i];
    return machine_launch_slots(&c->b->cx, c->b->m, after, slots, stream, addresses);
}

/* Only what changed is sent and packed, and nothing waits for the GPU. */
static void test_calls(void **state)
{
    (void)state;
    call_bed c = {0};
    machine_slots *slots;
    uint64_t data[2][SLOTS] = {{0x10000, 0x20000, 0x30000, 0x40000, 0x50000},
                               {0x11000, 0x20000, 0x31000, 0x40000, 0x52000}};
    set_up_calls(&c, &slots);
    const fake_cuda_face *fake = c.b->fake;
    assert_int_equal(cuda_of(c.b->m)->weights.packed.n, 1);
    unsigned waits = fake->calls("cuStreamSynchronize") + fake->calls("cuEventSynchronize");
    check_ok(&c.b->cx, call_with(&c, NULL, slots, NULL, data[0]));
    assert_true(c.runs == 1 && c.packs == 1);
    unsigned copies = fake->calls("cuMemcpyHtoDAsync");
    /* nothing has changed: one launch, and no more */
    check_ok(&c.b->cx, call_with(&c, NULL, slots, NULL, data[0]));
    assert_true(c.runs == 2 && c.packs == 1);
    assert_int_equal(fake->calls("cuMemcpyHtoDAsync"), copies);
    check_ok(&c.b->cx, call_with(&c, NULL, slots, NULL, data[1])); /* the weight has moved */
    assert_true(c.runs == 3 && c.packs == 2);
    assert_int_equal(fake->calls("cuMemcpyHtoDAsync"), copies + 1);
    check_ok(&c.b->cx, machine_touch_slot(&c.b->cx, c.b->m, slots, 3)); /* used where it is */
    check_ok(&c.b->cx, call_with(&c, NULL, slots, NULL, data[1]));
    check_ok(&c.b->cx, machine_touch_slot(&c.b->cx, c.b->m, slots, 2));
    check_ok(&c.b->cx, call_with(&c, NULL, slots, NULL, data[1]));
    assert_true(c.runs == 5 && c.packs == 3);
    assert_int_equal(fake->calls("cuStreamSynchronize") + fake->calls("cuEventSynchronize"), waits);
    check_ok(&c.b->cx, machine_wait_launch(&c.b->cx, c.b->m));
    for (uint32_t i = 0; i < c.b->image.n_weights; i++)
        assert_int_equal(machine_keeps_copy(c.b->m, i), str_is(c.b->image.weights[i].name, "w"));
    tear_down(c.b);
}

/* Events and waits are counted: runs of one stream need none, others exactly one. */
static void test_order_of_calls(void **state)
{
    (void)state;
    call_bed c = {0}, other = {0};
    machine_slots *slots, *other_slots;
    uint64_t data[SLOTS] = {0x10000, 0x20000, 0x30000, 0x40000, 0x50000};
    set_up_calls(&other, &other_slots);
    set_up_calls(&c, &slots);
    cuda_machine *m = cuda_of(c.b->m);
    cuda_stream stream;
    other.data = data;
    c.b->fake->kernel(NULL, NULL);
    check_ok(&c.b->cx, cuda_gpu_use(&c.b->cx, m->gpu));
    check_ok(&c.b->cx, cuda_stream_create(&c.b->cx, m->gpu, &stream));
    unsigned waits = c.b->fake->calls("cuStreamWaitEvent"),
             records = c.b->fake->calls("cuEventRecord");
    check_ok(&c.b->cx, call_with(&c, NULL, slots, stream, data));
    /* which was never launched */
    check_ok(&c.b->cx, call_with(&c, other.b->m, slots, stream, data));
    assert_int_equal(c.b->fake->calls("cuStreamWaitEvent"), waits);
    /* after each run on a stream that may go */
    assert_int_equal(c.b->fake->calls("cuEventRecord"), records + 2);
    check_ok(&other.b->cx, call_with(&other, c.b->m, other_slots, NULL, data));
    assert_int_equal(c.b->fake->calls("cuStreamWaitEvent"), waits + 1);
    /* its own last run was on another stream */
    check_ok(&c.b->cx, call_with(&c, NULL, slots, NULL, data));
    assert_int_equal(c.b->fake->calls("cuStreamWaitEvent"), waits + 2);
    check_ok(&c.b->cx, call_with(&c, other.b->m, slots, NULL, data));
    /* the default stream has none... */
    assert_int_equal(c.b->fake->calls("cuEventRecord"), records + 2);
    check_ok(&c.b->cx, call_with(&c, other.b->m, slots, stream, data));
    assert_int_equal(c.b->fake->calls("cuStreamWaitEvent"), waits + 4);
    /* ...until another follows, or somebody waits */
    assert_int_equal(c.b->fake->calls("cuEventRecord"), records + 5);
    check_ok(&other.b->cx, machine_wait_launch(&other.b->cx, other.b->m));
    assert_int_equal(c.b->fake->calls("cuEventRecord"), records + 6);
    check_ok(&c.b->cx, cuda_graph_begin(&c.b->cx, m->gpu, stream));
    check_fails(&c.b->cx, MPK_EUNSUPPORTED, "captured", call_with(&c, NULL, slots, stream, data));
    cuda_graph graph;
    check_ok(&c.b->cx, cuda_graph_end(&c.b->cx, m->gpu, stream, MPK_OK, &graph));
    cuda_graph_release(m->gpu, graph);
    cuda_stream_release(m->gpu, stream);
    machine_stop(other.b->m);
    other.b->m = NULL;
    machine_stop(c.b->m);
    c.b->m = NULL;
    tear_down(other.b);
    tear_down(c.b);
}

/* What a machine of calls refuses, and how a fault of an earlier run is told. */
static void test_wrong_calls(void **state)
{
    (void)state;
    call_bed c = {0};
    machine_slots *slots;
    char bytes[4 * 256 * 2] = {0};
    void *there[SLOTS] = {bytes, bytes, bytes, bytes, bytes};
    uint64_t data[SLOTS] = {0x10000, 0x20000, 0x30000, 0x40000, 0x50000};
    set_up_calls(&c, &slots);
    mpk_context *cx = &c.b->cx;
    check_fails(cx, MPK_EUNSUPPORTED, "mpk_program_launch",
                machine_write_tensor(cx, c.b->m, 0, c.roots[0], bytes));
    check_fails(cx, MPK_EUNSUPPORTED, "mpk_program_launch", machine_run_graph(cx, c.b->m, 0, 4, 4));
    check_fails(cx, MPK_EUNSUPPORTED, "mpk_program_launch",
                machine_run_slots(cx, c.b->m, slots, there));
    machine_slots *few;
    check_fails(cx, MPK_EARG, "tensor r has no slot",
                machine_make_slots(cx, c.b->m, &c.b->a, 0, 4, c.roots, &few));
    c.faults = true;
    check_ok(cx, call_with(&c, NULL, slots, NULL, data)); /* no thread has waited for it */
    check_fails(cx, MPK_ESTALLED, "triggered 4 of 5 times", call_with(&c, NULL, slots, NULL, data));
    check_fails(cx, MPK_ESTALLED, "worker 3", machine_wait_launch(cx, c.b->m));
    machine_stop(c.b->m);
    c.b->fake->kernel(NULL, NULL);
    for (uint32_t i = 0; i < c.b->image.n_weights; i++)
        c.b->weights[i].at = NULL;
    check_ok(cx, start(c.b)); /* of another mode */
    check_fails(cx, MPK_EUNSUPPORTED, "MPK_MODE_CALLS", machine_wait_launch(cx, c.b->m));
    tear_down(c.b);
}

/* Addresses that did not reach the GPU are sent again, though the caller gives the same ones. */
static void test_addresses_that_failed(void **state)
{
    (void)state;
    call_bed c = {0};
    machine_slots *slots;
    char words[128];
    uint64_t data[2][SLOTS] = {{0x10000, 0x20000, 0x30000, 0x40000, 0x50000},
                               {0x11000, 0x20000, 0x30000, 0x40000, 0x52000}};
    set_up_calls(&c, &slots);
    check_ok(&c.b->cx, call_with(&c, NULL, slots, NULL, data[0]));
    snprintf(words, sizeof words, "%s,fail:cuMemcpyHtoDAsync:%u", settings,
             c.b->fake->calls("cuMemcpyHtoDAsync") + 1);
    setenv("MPK_FAKE_CUDA", words, 1);
    check_fails(&c.b->cx, MPK_EDEVICE, "copy", call_with(&c, NULL, slots, NULL, data[1]));
    setenv("MPK_FAKE_CUDA", settings, 1);
    check_ok(&c.b->cx, call_with(&c, NULL, slots, NULL, data[1])); /* check_called compares them */
    assert_int_equal(c.runs, 2);
    tear_down(c.b);
}

/* Products of many rows, the first of x, which the caller may have anywhere, the second of what the
 * first made; the third of the caller's state. */
static const char tall[] = "input %x : bf16[900, 64]\n"
                           "state %s : bf16[900, 64]\n"
                           "const %w : bf16[128, 64]\n"
                           "const %v : bf16[64, 128]\n"
                           "const %b : bf16[64]\n"
                           "%y = linear(%x, %w)\n"
                           "%z = linear(%y, %v, _, _, %b) {act = \"gelu\"}\n"
                           "%u = slice_scatter(%s, %z) {starts = [0, 0], stops = [900, 64], "
                           "in_place = 1}\n"
                           "%r = linear(%u, %w)\n"
                           "output %r\n";

/* What the stand-in notes of a matrix in its map (tests/fake_cuda.c). */
typedef struct noted_map {
    uint64_t at, columns, rows, box_columns, box_rows, unused[11];
} noted_map;

/* The map of x that an operator's tasks have; all of them have the same. */
static const noted_map *map_of_x(const cuda_machine *m, const char *name)
{
    const rt_entry *entries = (const rt_entry *)(uintptr_t)(m->table_block + m->layout.entries);
    const ir_graph *g = m->machine.image.ir[0];
    rt_u64 maps = 0;
    for (uint64_t i = 0; i < m->layout.n_tasks; i++) {
        const rt_entry *e = &entries[i];
        if (e->body == RT_NONE || g->ops.at[e->op].out[0] != ir_find(g, name))
            continue;
        assert_true(e->maps && (!maps || e->maps == maps));
        maps = e->maps;
    }
    assert_true(maps != 0);
    return (const noted_map *)(uintptr_t)maps;
}

/* The map of a temporary of so many rows and columns: all boxes of a lot that begins in the last
 * row are inside, and in memory, which lasts as long after every other temporary. */
static void check_further(const bed *b, const noted_map *of, uint64_t rows, uint64_t columns)
{
    const cuda_machine *m = cuda_of(b->m);
    const uint64_t further = 2 * TILE_BOX_TOKENS - 1, row = columns * 2;
    assert_int_equal(of->rows, rows + further);
    assert_int_equal(of->columns, columns);
    assert_true(b->fake->may_touch(0, of->at, of->rows * row));
    assert_int_equal(cuda_bytes_after_temps(m), further * row);
    assert_int_equal(m->memory.temps_bytes, b->image.block->area_bytes[RT_TEMPS] + further * row);
}

static const char *const tall_slots[] = {"x", "s", "w", "v", "b", "r"};
enum { TALL_SLOTS = sizeof tall_slots / sizeof *tall_slots };

/* Maps hold addresses.  A temporary's is made with the tables, as are those of packed weights; that
 * of what the caller has is made for its first run, and anew when it lies elsewhere, and has the
 * rows of its tensor alone. */
static void test_maps_of_calls(void **state)
{
    (void)state;
    bed *b = start_calls(tall);
    const cuda_machine *m = cuda_of(b->m);
    assert_true(m->source.maps[GEN_STREAMS] && m->source.rooms[GEN_STREAMS].n_pages % 2 == 0);
    const noted_map *of_x = map_of_x(m, "y"), *of_y = map_of_x(m, "z"), *of_u = map_of_x(m, "r");
    assert_true(of_x->at == 0 && of_u->at == 0 && of_y->at != 0);
    assert_true(of_y->box_rows == TILE_BOX_TOKENS && of_y->box_columns == 64);
    check_further(b, of_y, 900, 128);
    const noted_map *const all[] = {of_x, of_y, of_u};
    for (int i = 0; i < 3; i++) {
        const noted_map *maps = all[i];
        assert_true(maps[1].at != 0 && maps[1].at == maps[2].at);
        assert_true(maps[1].rows == (i == 1 ? 8 : 16) && maps[1].box_rows == 2 * maps[2].box_rows);
    }
    ir_tensor_id roots[TALL_SLOTS];
    void *there[TALL_SLOTS];
    machine_slots *slots;
    for (int i = 0; i < TALL_SLOTS; i++) {
        roots[i] = ir_find(b->image.ir[0], tall_slots[i]);
        there[i] = (void *)(uintptr_t)((i + 1) * 0x100000);
    }
    check_ok(&b->cx, machine_make_slots(&b->cx, b->m, &b->a, 0, TALL_SLOTS, roots, &slots));
    b->fake->kernel(NULL, NULL);
    check_ok(&b->cx, machine_launch_slots(&b->cx, b->m, NULL, slots, NULL, there));
    assert_true(of_x->at == 0x100000 && of_u->at == 0x200000);
    assert_true(of_x->rows == 900 && of_x->columns == 64 && of_x->box_rows == TILE_BOX_TOKENS);
    assert_int_equal(of_u->rows, 900);
    there[0] = (void *)(uintptr_t)0x900000;
    const unsigned copies = b->fake->calls("cuMemcpyHtoDAsync");
    check_ok(&b->cx, machine_launch_slots(&b->cx, b->m, NULL, slots, NULL, there));
    assert_true(of_x->at == 0x900000 && of_u->at == 0x200000);
    assert_int_equal(b->fake->calls("cuMemcpyHtoDAsync"), copies + 2); /* a map; all addresses */
    check_ok(&b->cx, machine_wait_launch(&b->cx, b->m));
    tear_down(b);
}

/* Tasks of 64 tokens and few rows: x alone comes by boxes. */
static const char thin[] = "input %x : bf16[384, 64]\n"
                           "const %w : bf16[64, 64]\n"
                           "const %v : bf16[8, 64]\n"
                           "%y = linear(%x, %w)\n"
                           "%z = linear(%y, %v)\n"
                           "%u = linear(%y, %v)\n"
                           "output %z\n"
                           "output %u\n";

/* Where x alone comes by boxes two products of the same x share its map, and the ring keeps all its
 * pages. */
static void test_maps_of_x(void **state)
{
    (void)state;
    bed *b = start_calls(thin);
    const cuda_machine *m = cuda_of(b->m);
    assert_true(m->source.x_maps[GEN_STREAMS] && !m->source.maps[GEN_STREAMS]);
    const rt_entry *entries = (const rt_entry *)(uintptr_t)(m->table_block + m->layout.entries);
    const ir_graph *g = b->image.ir[0];
    rt_u64 shared = 0;
    uint32_t seen[3] = {0};
    for (uint64_t i = 0; i < m->layout.n_tasks; i++) {
        const rt_entry *e = &entries[i];
        if (e->body == RT_NONE)
            continue;
        const ir_tensor_id y = g->ops.at[e->op].out[0];
        const uint32_t which = (uint32_t)(y == ir_find(g, "z")) + 2 * (y == ir_find(g, "u"));
        seen[which]++;
        assert_true(e->maps != 0);
        assert_true(!shared ||
                    (e->maps == shared) == (which != 0)); /* the caller's x has its own */
        shared = which ? e->maps : shared;
    }
    const noted_map *of_x = (const noted_map *)(uintptr_t)shared;
    assert_true(seen[0] && seen[1] && seen[2]);
    assert_int_equal(of_x->box_rows, TILE_BOX_TOKENS);
    check_further(b, of_x, 384, 64);
    tear_down(b);
}

/* The second norm polls what the first makes, so what it makes has a place of its own. */
static const char polled[] = "input %x : bf16[70, 256]\n"
                             "const %n : bf16[256]\n"
                             "const %w : bf16[64, 256]\n"
                             "%y = rms_norm(%x, %n)\n"
                             "%z = rms_norm(%y, %n)\n"
                             "%u = linear(%z, %w)\n"
                             "output %u\n";

/* Temporaries that lie among carried words are followed by memory, too. */
static void test_maps_among_carried_words(void **state)
{
    (void)state;
    bed *b = start_calls(polled);
    const cuda_machine *m = cuda_of(b->m);
    const noted_map *of_z = map_of_x(m, "u");
    assert_in_range(of_z->at, m->carried_block, m->carried_block + m->carriers.n_bytes - 1);
    check_further(b, of_z, 70, 256);
    tear_down(b);
}

/* Two convolutions, whose images are temporaries; the second has steps of two places. */
static const char images[] = "input %x : bf16[2, 12, 10, 64]\n"
                             "const %w : bf16[64, 3, 3, 64]\n"
                             "const %v : bf16[128, 64]\n"
                             "%n = silu(%x)\n"
                             "%y = conv_flat(%n, %w) {kernel = [3, 3], padding = [1, 2], "
                             "dilation = [1, 2], relu = 1}\n"
                             "%m = reshape(%y) {shape = [2, 12, 10, 64]}\n"
                             "%z = conv_flat(%m, %v) {stride = [2, 3]}\n"
                             "output %z\n";

/* The map of x knows the image, the first and last places of windows, and their steps; weights of
 * more than two axes are packed by filters. */
static void test_maps_of_images(void **state)
{
    (void)state;
    bed *b = start_calls(images);
    const cuda_machine *m = cuda_of(b->m);
    const rt_entry *entries = (const rt_entry *)(uintptr_t)(m->table_block + m->layout.entries);
    const ir_graph *g = b->image.ir[0];
    uint32_t seen[2] = {0};
    for (uint64_t i = 0; i < m->layout.n_tasks; i++) {
        const rt_entry *e = &entries[i];
        if (e->body == RT_NONE || strcmp(g->ops.at[e->op].def->name, "conv_flat") != 0)
            continue;
        const bool is_second = g->ops.at[e->op].out[0] == ir_find(g, "z");
        const uint64_t *noted = (const uint64_t *)(uintptr_t)e->maps;
        /* address; channels, places, lines, images; what a box is; corners; steps */
        const uint64_t one[] = {e->at[0],     64,           10,           12,           2, 64, 64,
                                (uint64_t)-2, (uint64_t)-1, (uint64_t)-2, (uint64_t)-1, 1, 1},
                       two[] = {e->at[0], 64, 10, 12, 2, 64, 64, 0, 0, 0, 0, 3, 2};
        assert_non_null(noted);
        assert_memory_equal(noted, is_second ? two : one, sizeof one);
        seen[is_second]++;
    }
    assert_true(seen[0] && seen[1]);
    assert_int_equal(m->weights.packed.n, 2);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(m->weights.packed.at[i].parts[0].n_rows,
                         m->weights.packed.at[i].columns == 576 ? 64 : 128);
    tear_down(b);
}

/* A driver that makes no such maps, and images that the caller may have anywhere, are refused:
 * nothing else copies windows. */
static void test_images_without_maps(void **state)
{
    char words[512];
    (void)state;
    bed *b = set_up(images);
    snprintf(words, sizeof words, "%s,fail:cuTensorMapEncodeIm2col:2", settings);
    setenv("MPK_FAKE_CUDA", words, 1);
    check_fails(&b->cx, MPK_EUNSUPPORTED, "images", start_as(b, CUDA_CALLS));
    setenv("MPK_FAKE_CUDA", settings, 1);
    tear_down(b);
    b = set_up("input %x : bf16[2, 12, 10, 64]\nconst %w : bf16[64, 64]\n%y = conv_flat(%x, %w)\n"
               "output %y\n");
    check_fails(&b->cx, MPK_EUNSUPPORTED, "images", start_as(b, CUDA_CALLS));
    tear_down(b);
}

int main(void)
{
    seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_order_of_calls),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_addresses_that_failed),
        cmocka_unit_test(test_maps_of_calls),
        cmocka_unit_test(test_maps_of_x),
        cmocka_unit_test(test_maps_among_carried_words),
        cmocka_unit_test(test_maps_of_images),
        cmocka_unit_test(test_images_without_maps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
