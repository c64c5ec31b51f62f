/* cuda_peers_test.c - GPUs that share a program, against a stand-in for the driver (fake_cuda.h),
 * with kernels that are emulated from their tables (emulated_gpus.h): random joint programs give
 * the interpreter's bits, requests the CPU's answers; GPUs that cannot share are refused; whatever
 * fails, nothing stays.
 */
#include "check.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "carried_check.h"
#include "draw_sizes.h"
#include "load/load.h"
#include "peers_bed.h"

static mpk_status start(bed *b)
{
    cuda_options o = {
        .code = b->code.at, .code_bytes = b->code.n, .stall_ns = 1000000, .stop_ns = 1000000};
    machine_weights w = {.at = b->weights, .seed = seed};
    b->m = NULL;
    return cuda_start(&b->cx, &b->image, &w, &o, &b->m);
}

static void prepare(bed *b, uint32_t n_gpus)
{
    b->gpus =
        (gpus){.image = &b->image, .seed = b->random.seed, .n = n_gpus, .dies = -1, .hangs = -1};
    b->gpus.workers = calloc(n_gpus, sizeof *b->gpus.workers);
    b->gpus.hidden = calloc(n_gpus, sizeof *b->gpus.hidden);
    b->gpus.shown = calloc(MAX_HIDDEN, sizeof *b->gpus.shown);
    b->gpus.fake = fake_cuda_start(NULL);
    assert_non_null(b->gpus.fake);
    set_words(n_gpus, "");
    b->code = fake_code(&b->cx, &b->arena, &b->image, GEN_KERNEL);
}

/* A random program on up to six workers of each GPU. */
static void set_up(bed *b, uint64_t of, uint32_t n_gpus)
{
    random_build(&b->random, &b->cx, &b->arena, of);
    uint32_t n_tokens = (uint32_t)b->random.rows;
    pass_options o = {.n_workers = (1 + random_below(&b->random, 6)) * n_gpus,
                      .n_peers = n_gpus,
                      .page_bytes = 16384,
                      .pages_per_worker = 1024,
                      .launch = PASS_LAUNCH_AOT,
                      .verify = true};
    check_ok(&b->cx, pass_compile(&b->cx, &b->arena, &o, 1, &b->random.g, &n_tokens, &b->program));
    check_ok(&b->cx, image_make(&b->cx, &b->arena, &b->program, &b->image));
    make_weights(b);
    prepare(b, n_gpus);
}

/* What is the test's own. */
static void release(bed *b)
{
    b->gpus.fake->kernel(NULL, NULL);
    free(b->gpus.workers);
    free(b->gpus.hidden);
    free(b->gpus.shown);
    arena_free(&b->arena);
}

static void tear_down(bed *b)
{
    char words[256];
    machine_stop(b->m);
    b->gpus.fake->leaks(words, sizeof words);
    assert_string_equal(words, "");
    release(b);
}

/* The program may leave some GPUs without work: it is refused then. */
static bool starts(bed *b, uint32_t n_gpus)
{
    if (ir_count_peers(b->image.ir[0]) == n_gpus) {
        check_ok(&b->cx, start(b));
        b->gpus.fake->kernel(gpus_launched, &b->gpus);
        return true;
    }
    check_fails(&b->cx, MPK_EUNSUPPORTED, "the program keeps", start(b));
    return false;
}

static void write_inputs(bed *b, uint64_t run, ir_values *v)
{
    const ir_graph *g = b->image.ir[0];
    b->random.seed += run;
    for (ir_tensor_id t = 0; t < g->tensors.n; t++)
        if (g->tensors.at[t].kind == IR_INPUT) {
            random_fill(&b->random, &g->tensors.at[t], v->data[t]);
            check_ok(&b->cx, machine_write_tensor(&b->cx, b->m, 0, t, v->data[t]));
        }
    b->random.seed -= run;
}

static void compare_outputs(bed *b, const ir_values *v, uint32_t live)
{
    const ir_graph *g = b->image.ir[0];
    for (size_t i = 0; i < g->outputs.n; i++) {
        const ir_tensor *t = &g->tensors.at[g->outputs.at[i]];
        float *have = calloc((size_t)ir_elements(t), sizeof *have);
        float *want = calloc((size_t)ir_elements(t), sizeof *want);
        check_ok(&b->cx, machine_read_tensor(&b->cx, b->m, 0, g->outputs.at[i], have));
        machine_gather(g, g->outputs.at[i], v->data[g->outputs.at[i]], want);
        int64_t rows = t->live == IR_ALL || t->dims[0] < live ? t->dims[0] : live;
        assert_memory_equal(have, want, (size_t)(rows * t->dims[1]) * sizeof(float));
        free(have);
        free(want);
    }
}

/* Some steps, whose inputs and live entries differ. */
static void run_steps(bed *b)
{
    const ir_graph *g = b->image.ir[0];
    for (uint64_t run = 0; run < 3; run++) {
        uint32_t live = 1 + random_below(&b->random, 12);
        ir_values v = {.live = {UINT32_MAX, live, live}};
        v.data = arena_alloc(&b->arena, g->tensors.n, sizeof(void *));
        check_ok(&b->cx, ir_eval_allocate(&b->cx, &b->arena, g, &v));
        write_inputs(b, run, &v);
        for (ir_tensor_id t = 0; t < g->tensors.n; t++)
            if (g->tensors.at[t].kind == IR_CONST)
                v.data[t] = b->plain[b->image.places[0][t].offset];
        check_ok(&b->cx, ir_eval(&b->cx, &b->arena, g, &v));
        check_ok(&b->cx, machine_run_graph(&b->cx, b->m, 0, live, live));
        compare_outputs(b, &v, live);
    }
}

static void test_random_programs(void **state)
{
    (void)state;
    const uint32_t least = check_rounds(60);
    uint32_t n_remote = 0, n_run = 0;
    bool met = false;
    for (uint32_t n = 0; n < least || (!met && n < 20 * least); n++) {
        bed b = {0};
        uint32_t n_gpus = 2 + n % 3;
        set_up(&b, seed + n, n_gpus);
        if (starts(&b, n_gpus)) {
            run_steps(&b);
            n_run++;
        }
        n_remote += b.gpus.remote_reads;
        met = n_run > 5 && n_remote > 20;
        tear_down(&b);
    }
    print_message("%u programs, %u reads of other GPUs' memory\n", n_run, n_remote);
    assert_true(met);
}

static void test_requests(void **state)
{
    (void)state;
    static answers here, there, again;
    for (uint32_t n_gpus = 2; n_gpus <= 3; n_gpus++) {
        bed b = {.random.seed = seed};
        machine *cpu;
        make_model(&b.cx, &b.arena, (serve_model){IR_F32, 8, n_gpus, false, 0}, &b.program,
                   &b.image);
        make_weights(&b);
        prepare(&b, n_gpus);
        check_ok(&b.cx, start(&b));
        b.gpus.fake->kernel(gpus_launched, &b.gpus);
        ask(&b.cx, b.m, &there);
        assert_true(b.gpus.launches >= 2 * n_gpus); /* they rested between requests */
        ask(&b.cx, b.m, &again);
        check_ok(&b.cx,
                 cpu_start(&b.cx, &b.image, b.plain, &(cpu_options){.no_fast_bodies = true}, &cpu));
        ask(&b.cx, cpu, &here);
        machine_stop(cpu);
        assert_memory_equal(&here, &there, sizeof here);
        assert_memory_equal(&here, &again, sizeof here);
        tear_down(&b);
    }
}

/* ---- carried words ---- */

/* A small model of a random family, fused as for GPUs: steps of one token, and of as many as are
 * streamed or split among teams, whose bodies carry; or of many tokens alone, which would be a
 * kernel of their own beside others: products of these send boxes.  adds: a decoder whose products
 * of a token all poll, and so add the terms of their x. */
static void make_fast_model(bed *b, uint32_t n_gpus, bool adds)
{
    static const char *const families[] = {"llama", "qwen3", "mixtral"};
    static ir_dtype dtype = IR_BF16;
    static const uint32_t steps[][2] = {{1, 16}, {1, 32}, {80}};
    const uint32_t *n_tokens = steps[random_below(&b->random, adds ? 2 : 3)],
                   n_graphs = n_tokens[1] ? 2 : 1;
    const bool experts = !adds && random_below(&b->random, 3) == 0;
    const uint32_t kv_heads = adds ? n_gpus : 1u << random_below(&b->random, 3);
    const int head_size = adds ? 128 : 64;
    model_config c = {.family = str_from(families[experts ? 2 : random_below(&b->random, 2)]),
                      .n_layers = 1 + random_below(&b->random, 2),
                      .hidden_size = 64 * (1 + (int)random_below(&b->random, 3)),
                      .n_heads = kv_heads * (1 + random_below(&b->random, 2)),
                      .n_kv_heads = kv_heads,
                      .head_size = head_size,
                      .ffn_size = 64 * (2 + (int)random_below(&b->random, 3)),
                      .vocab_size = VOCABULARY,
                      .max_positions = 256,
                      .norm_eps = 1e-5,
                      .tied_embeddings = true,
                      .activation = STR("silu"),
                      .n_experts = experts ? 5 : 0,
                      .experts_per_token = 2 + 2 * (int)random_below(&b->random, 2),
                      .expert_ffn_size = 80 + 8 * (int)random_below(&b->random, 3),
                      .expert_every = 1,
                      .normalize_experts = true,
                      .rope_size = head_size,
                      .rope_theta = 10000,
                      .bos_token = -1};
    const model_weights w = {all_same, &dtype};
    if (!adds && !experts && random_below(&b->random, 3) == 0) {
        c.family = STR("qwen3_5_text");
        c.n_layers = 2;
        draw_delta(b->random.seed, 32, 32, &c);
    }
    const pass_options o = {.n_workers = 6 * n_gpus,
                            .n_peers = n_gpus,
                            .launch = PASS_LAUNCH_AOT,
                            .gather_bytes = 1,
                            .own_experts = random_below(&b->random, 2),
                            .splits = 3,
                            .split_tokens = 128,
                            .norm_elements = 1 << 24,
                            .relaxed = true,
                            .whole_tiles = true,
                            .logits = true,
                            .sum_terms = adds || random_below(&b->random, 2),
                            .verify = true,
                            .page_bytes = 16384,
                            .pages_per_worker = 1 << 16};
    ir_graph *g[2];
    for (uint32_t i = 0; i < n_graphs; i++) {
        const model_shape s = {.n_tokens = n_tokens[i],
                               .n_rows = n_tokens[i] < 3 ? n_tokens[i] : 3,
                               .n_slots = 3,
                               .n_pages = 9,
                               .page_tokens = 64,
                               .max_pages_per_slot = 3,
                               .kv_dtype = IR_BF16,
                               .activation_dtype = IR_BF16};
        check_ok(&b->cx, model_build(&b->cx, &b->arena, &c, &s, &w, &g[i]));
    }
    check_ok(&b->cx, pass_compile(&b->cx, &b->arena, &o, n_graphs, g, n_tokens, &b->program));
    check_ok(&b->cx, image_make(&b->cx, &b->arena, &b->program, &b->image));
    make_weights(b);
}

/* Which bytes of the blocks are carried or sent from one GPU to another: every GPU that a term is
 * sent to has it at the same place, and nothing else there. */
static void check_places(const bed *b)
{
    const cuda_machine *const *m = (const cuda_machine *const *)cuda_of(b->m)->peers;
    for (uint32_t graph = 0; graph < b->image.n_graphs; graph++)
        for (ir_tensor_id i = 0; i < b->image.ir[graph]->tensors.n; i++) {
            const cuda_flow *flow = &m[0]->carriers.flows[graph];
            const uint32_t peer = b->image.ir[graph]->tensors.at[i].peer;
            for (uint32_t p = 0; p < m[0]->n_peers; p++) {
                const cuda_flow *here = &m[p]->carriers.flows[graph];
                assert_int_equal(here->sends[i], flow->sends[i]);
                assert_true(!flow->sends[i] || here->at[i] == flow->at[i]);
                assert_true(!here->is_carried[i] || here->sends[i] || peer == p);
            }
        }
}

/* How many products that poll add terms themselves.  All that they read of others is carried, or
 * was there before their GPU's gate. */
static uint32_t count_adding(const bed *b)
{
    uint32_t n = 0;
    for (uint32_t graph = 0; graph < b->image.n_graphs; graph++)
        for (ir_op_id op = 0; op < b->image.ir[graph]->ops.n; op++) {
            const ir_op *o = &b->image.ir[graph]->ops.at[op];
            const cuda_machine *m = cuda_of(b->m)->peers[o->peer];
            const cuda_flow *flow = &m->carriers.flows[graph];
            if (strcmp(o->def->name, "sum_linear") != 0 || !cuda_is_quiet(m, graph, op))
                continue;
            n++;
            for (uint32_t i = 0; i < o->n_in; i++) {
                const ir_tensor *t =
                    o->in[i] != IR_NONE ? &b->image.ir[graph]->tensors.at[o->in[i]] : NULL;
                if (t && t->kind == IR_TEMP)
                    assert_true(flow->is_carried[o->in[i]] || t->producer <= flow->gate);
            }
        }
    return n;
}

/* Requests on GPUs that carry words to each other get the answers of a CPU, which counts events. */
static void check_carried(uint64_t of, uint32_t n_gpus, bool adds, uint32_t *quiet, uint32_t *sent,
                          uint32_t *boxes)
{
    static answers here, there, again;
    bed b = {.random.seed = of};
    machine *cpu;
    make_fast_model(&b, n_gpus, adds);
    prepare(&b, n_gpus);
    check_ok(&b.cx, start(&b));
    check_places(&b);
    for (uint32_t graph = 0; graph < b.image.n_graphs && check_takes(of, 0, 4); graph++)
        carried_check(cuda_of(b.m), graph);
    b.gpus.machine = cuda_of(b.m);
    b.gpus.weights = b.plain;
    b.gpus.words = calloc(MAX_WORDS, sizeof *b.gpus.words);
    b.gpus.fake->kernel(gpus_launched, &b.gpus);
    ask(&b.cx, b.m, &there);
    ask(&b.cx, b.m, &again);
    check_ok(&b.cx,
             cpu_start(&b.cx, &b.image, b.plain, &(cpu_options){.no_fast_bodies = true}, &cpu));
    ask(&b.cx, cpu, &here);
    machine_stop(cpu);
    assert_memory_equal(&here, &there, sizeof here);
    assert_memory_equal(&here, &again, sizeof here);
    *quiet += b.gpus.quiet;
    *sent += b.gpus.sent;
    *boxes += b.gpus.boxes_sent;
    assert_true(count_adding(&b) > 0 || !adds);
    free(b.gpus.words);
    tear_down(&b);
}

static void test_carried(void **state)
{
    (void)state;
    const uint32_t least = check_thorough() || CHECK_SHARE == 1 ? 8 : 3;
    uint32_t quiet = 0, sent = 0, boxes = 0;
    /* every second model or so has no task that polls, one in four sends no word */
    for (uint32_t n = 0; n < least || ((!quiet || sent <= 1000 || !boxes) && n < 60); n++)
        check_carried(seed + n, 2 + n % 3, false, &quiet, &sent, &boxes);
    print_message("%u tasks that poll, %u results sent word by word, %u boxes\n", quiet, sent,
                  boxes);
    assert_true(quiet > 0 && sent > 1000 && boxes > 0);
}

/* Products that add the terms of two GPUs as they arrive, and read a residual that others of them
 * have made. */
static void test_products_add_terms(void **state)
{
    (void)state;
    uint32_t quiet = 0, sent = 0, boxes = 0;
    for (uint32_t n = 0; n < 4; n++)
        check_carried(seed + n, 2, true, &quiet, &sent, &boxes);
    assert_true(quiet > 0 && sent > 0);
}

/* ---- memory ---- */

/* Each GPU holds its part of weights and caches, and all parts together are the whole. */
static void test_memory(void **state)
{
    (void)state;
    bed b = {.random.seed = seed};
    make_model(&b.cx, &b.arena, (serve_model){IR_F32, 8, 2, false, 0}, &b.program, &b.image);
    make_weights(&b);
    prepare(&b, 2);
    check_ok(&b.cx, start(&b));
    const rt_u64 *area = b.image.block->area_bytes;
    const cuda_machine *first = cuda_of(b.m), *second = first->peers[1];
    cuda_memory plan;
    check_ok(&b.cx,
             cuda_plan_memory(&b.cx, &b.image, gen_arch_find("sm_90a"), &(cuda_options){0}, &plan));
    assert_true(first->windows[RT_STATE].n_bytes + second->windows[RT_STATE].n_bytes <=
                area[RT_STATE]);
    assert_true(first->windows[RT_TEMPS].n_bytes + second->windows[RT_TEMPS].n_bytes <=
                area[RT_TEMPS]);
    assert_int_equal(first->memory.total_bytes + second->memory.total_bytes, plan.total_bytes);
    assert_true(second->weights.n_bytes < 0.7 * (double)area[RT_WEIGHTS]);
    for (uint32_t i = 0; i < 2; i++)
        for (int k = RT_STATE; k < RT_AREAS; k++)
            assert_int_equal(b.gpus.fake->device_of(first->peers[i]->areas[k]), i);
    tear_down(&b);
}

/* ---- weights ---- */

/* Rows that a GPU was asked to pack, as they were then. */
typedef struct packing {
    rt_pack job;
    int device;
    void *rows;
} packing;

enum { MOST_PACKINGS = 512 };
typedef struct loading {
    pthread_mutex_t lock; /* weights come by several threads */
    packing at[MOST_PACKINGS];
    uint32_t n;
} loading;

/* As mpk_fill of device/pack.cuh. */
static void fill_elements(const rt_fill *f)
{
    const op_view to = {.data = (void *)(uintptr_t)f->to, .dtype = (ir_dtype)f->dtype};
    for (uint64_t k = 0; k < f->n; k++) {
        const uint64_t i = f->first + k,
                       place = f->base + (f->step ? i / f->run * f->step + i % f->run : i);
        op_store(&to, (int64_t)k, f->mean + f->deviation * rng_normal(f->stream, place));
    }
}

static void load_launched(void *user, const fake_launch *l)
{
    loading *all = user;
    rt_pack job;
    if (strcmp(l->function, "mpk_fill") == 0)
        fill_elements(l->argument_at);
    if (strcmp(l->function, "mpk_pack") != 0)
        return;
    memcpy(&job, l->argument_at, sizeof job);
    const size_t n = (size_t)ir_row_bytes((ir_dtype)job.dtype, (int64_t)(job.n_rows * job.columns));
    void *rows = malloc(n);
    memcpy(rows, (const void *)(uintptr_t)job.from, n);
    pthread_mutex_lock(&all->lock);
    if (all->n < MOST_PACKINGS)
        all->at[all->n] = (packing){job, l->device, rows};
    all->n++;
    pthread_mutex_unlock(&all->lock);
}

/* What a GPU should have of weight i, of the program's dtype. */
static void *expected_of(bed *b, uint32_t i, bool made_up)
{
    const ir_tensor whole = whole_of(b, i);
    const int64_t n = elements_of(b, i);
    op_view from = {.data = (void *)(uintptr_t)b->weights[i].at, .dtype = IR_F32}, to;
    if (made_up) {
        from.dtype = whole.dtype;
        from.data = arena_alloc(&b->arena, (size_t)ir_bytes(&whole), 1);
        load_random_fill(seed, whole.name, whole.dtype, 0, ir_elements(&whole), from.data);
    }
    to = (op_view){.data = arena_alloc(&b->arena, (size_t)n, sizeof(float)), .dtype = whole.dtype};
    for (int64_t k = 0; k < n; k++)
        op_store(&to, k, op_load(&from, place_in_whole(b, i, k)));
    return to.data;
}

/* Every row that a GPU packs is that of its own part; returns how many elements were packed. */
static uint64_t check_packed(const bed *b, const packing *p, void *const *expected)
{
    const cuda_machine *m = cuda_of(b->m)->peers[p->device];
    uint32_t c = 0;
    while (c < m->weights.packed.n && m->weight_block + m->weights.packed.at[c].offset != p->job.to)
        c++;
    assert_true(c < m->weights.packed.n);
    const cuda_part *part = &m->weights.packed.at[c].parts[p->job.which];
    const ir_dtype dtype = b->image.weights[part->weight].dtype;
    const int64_t n = (int64_t)(p->job.n_rows * p->job.columns),
                  first = (int64_t)((part->first_row + p->job.first_row) * p->job.columns);
    assert_int_equal(p->job.dtype, dtype);
    assert_memory_equal(p->rows, (char *)expected[part->weight] + ir_row_bytes(dtype, first),
                        (size_t)ir_row_bytes(dtype, n));
    return (uint64_t)n;
}

/* Every GPU has its parts of the whole weights, plain and packed. */
static void check_weights(const bed *b, const loading *l, void *const *expected)
{
    uint64_t packed = 0, wanted = 0;
    for (uint32_t p = 0; p < cuda_of(b->m)->n_peers; p++) {
        const cuda_machine *m = cuda_of(b->m)->peers[p];
        for (uint32_t i = 0; i < b->image.n_weights; i++)
            if (m->weights.weights[i].plain)
                assert_memory_equal(
                    (void *)(uintptr_t)(m->weight_block + m->weights.weights[i].offset),
                    expected[i],
                    (size_t)ir_row_bytes(b->image.weights[i].dtype, elements_of(b, i)));
        for (size_t c = 0; c < m->weights.packed.n; c++)
            for (uint32_t k = 0; k < m->weights.packed.at[c].n_parts; k++)
                wanted += m->weights.packed.at[c].parts[k].n_rows * m->weights.packed.at[c].columns;
    }
    assert_true(l->n <= MOST_PACKINGS);
    for (uint32_t i = 0; i < l->n; i++)
        packed += check_packed(b, &l->at[i], expected);
    assert_int_equal(packed, wanted);
}

static void check_loading(ir_dtype dtype, uint32_t n_gpus, bool made_up)
{
    static loading l;
    bed b = {.random.seed = seed};
    make_model(&b.cx, &b.arena, (serve_model){dtype, 8, n_gpus, false, 0}, &b.program, &b.image);
    make_weights(&b);
    prepare(&b, n_gpus);
    void **expected = arena_alloc(&b.arena, b.image.n_weights, sizeof *expected);
    for (uint32_t i = 0; i < b.image.n_weights; i++) {
        expected[i] = expected_of(&b, i, made_up);
        if (made_up)
            b.weights[i] = (machine_weight){.dtype = b.image.weights[i].dtype};
    }
    l.n = 0;
    pthread_mutex_init(&l.lock, NULL);
    b.gpus.fake->kernel(load_launched, &l);
    check_ok(&b.cx, start(&b));
    check_weights(&b, &l, expected);
    for (uint32_t i = 0; i < l.n; i++)
        free(l.at[i].rows);
    pthread_mutex_destroy(&l.lock);
    tear_down(&b);
}

static void test_weights(void **state)
{
    (void)state;
    for (uint32_t n_gpus = 1; n_gpus <= 3; n_gpus++)
        for (int made_up = 0; made_up < 2; made_up++) {
            check_loading(IR_F32, n_gpus, made_up);
            check_loading(IR_BF16, n_gpus, made_up);
        }
}

/* All peers on the only GPU: nothing has to be reached, and nothing stays. */
static void test_one_gpu(void **state)
{
    (void)state;
    bed b = {.random.seed = seed};
    make_model(&b.cx, &b.arena, (serve_model){IR_F32, 8, 2, false, 0}, &b.program, &b.image);
    make_weights(&b);
    prepare(&b, 2);
    set_words(1, "");
    cuda_options o = {.code = b.code.at, .code_bytes = b.code.n, .on_one_gpu = true};
    check_ok(&b.cx, cuda_start(&b.cx, &b.image, &(machine_weights){.at = b.weights}, &o, &b.m));
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(b.gpus.fake->device_of(cuda_of(b.m)->peers[i]->table_block), 0);
    tear_down(&b);
}

/* ---- what cannot be shared, and what fails ---- */

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_gpus;
        const char *words, *needle;
    } cases[] = {
        {2, "links:0", "GPU 0 cannot reach the memory of GPU 1: mpk doctor shows the links"},
        {3, "island:2", "GPU 0 cannot reach the memory of GPU 2"},
        {2, "atomics:0", "GPU 0 reaches GPU 1 over a link without atomic operations (PCIe)"},
        {2, "more:4096", "differ: a program is shared by GPUs of one kind"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bed b = {.random.seed = seed};
        const uint32_t n = cases[i].n_gpus;
        make_model(&b.cx, &b.arena, (serve_model){IR_F32, 8, n, false, 0}, &b.program, &b.image);
        make_weights(&b);
        prepare(&b, n);
        set_words(n, cases[i].words);
        check_fails(&b.cx, MPK_EUNSUPPORTED, cases[i].needle, start(&b));
        check_fails(&b.cx, MPK_EUNSUPPORTED, cases[i].needle, cuda_probe_peers(&b.cx, 0, n));
        set_words(n, "");
        check_ok(&b.cx, cuda_probe_peers(&b.cx, 0, n));
        set_words(n - 1, "");
        check_fails(&b.cx, MPK_EUNSUPPORTED, "there is no GPU", start(&b));
        set_words(n, "");
        cuda_options o = {.code = b.code.at, .code_bytes = b.code.n, .mode = CUDA_GRAPH};
        check_fails(&b.cx, MPK_EUNSUPPORTED, "in the persistent mode alone",
                    cuda_start(&b.cx, &b.image, &(machine_weights){.at = b.weights}, &o, &b.m));
        b.m = NULL;
        tear_down(&b);
    }
}

/* A tensor on a peer that the program does not have, though no operator reads it. */
static void test_unknown_peers(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    ir_graph *g;
    tg_program compiled = {0};
    program_image image;
    const uint32_t n_tokens = 4, peer = 1 + (uint32_t)(seed % (IR_MAX_PEERS - 1));
    const pass_options o = {.n_workers = 2, .page_bytes = 16384, .pages_per_worker = 64};
    char source[256];
    snprintf(source, sizeof source,
             "peer %u\ninput %%lost : f32[4, 8]\npeer 0\ninput %%x : f32[4, 8]\n"
             "%%y = silu(%%x)\noutput %%y\n",
             peer);
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &g));
    check_ok(&cx, pass_compile(&cx, &a, &o, 1, &g, &n_tokens, &compiled));
    check_fails(&cx, MPK_EVERIFY, "tensor lost lies on peer",
                image_make(&cx, &a, &compiled, &image));
    arena_free(&a);
}

/* Start, run two steps, stop.  The kernels are emulated, so a launch that another one has not
 * joined does nothing. */
static mpk_status start_and_run(bed *b, const char *failing)
{
    TRY(start(b));
    b->gpus.fake->kernel(gpus_launched, &b->gpus);
    mpk_status status = machine_run_graph(&b->cx, b->m, 0, 1, 1);
    if (status == MPK_OK)
        status = machine_run_graph(&b->cx, b->m, 0, 1, 1);
    if (strcmp(failing, "cuCtxSetCurrent") == 0)
        set_words(2, ""); /* a GPU that cannot be made current cannot let go of others either */
    machine_stop(b->m);
    b->gpus.fake->kernel(NULL, NULL);
    return status;
}

/* Each call of the driver fails once, in starting, running and stopping; with sanitizers some do,
 * as the seed draws. */
static void test_every_failure(void **state)
{
    (void)state;
    bed b = {.random.seed = seed};
    char words[256];
    uint32_t refused = 0, number = 0;
    make_model(&b.cx, &b.arena, (serve_model){IR_F32, 8, 2, false, 0}, &b.program, &b.image);
    make_weights(&b);
    prepare(&b, 2);
    check_ok(&b.cx, start_and_run(&b, ""));
    for (unsigned e = 0; b.gpus.fake->entry(e); e++) {
        const char *entry = b.gpus.fake->entry(e);
        unsigned n = b.gpus.fake->calls(entry);
        for (unsigned k = 1; k <= n; k++) {
            /* what stays is told by the books of the stand-in, not by a sanitizer */
            if (!check_takes(seed, number++, CHECK_SHARE * CHECK_SHARE))
                continue;
            snprintf(words, sizeof words, "fail:%s:%u", entry, k);
            set_words(2, words);
            b.gpus.fake->reset();
            refused += start_and_run(&b, entry) != MPK_OK;
            set_words(2, "");
            b.gpus.fake->leaks(words, sizeof words);
            if (words[0])
                fail_msg("call %u of %s failed, and %s stayed", k, entry, words);
        }
        b.gpus.fake->reset();
        check_ok(&b.cx, start_and_run(&b, ""));
    }
    b.m = NULL;
    assert_true(CHECK_SHARE > 1 || refused > 40);
    tear_down(&b);
}

/* Is this a task of GPU 1 that waits for an event for which no task of GPU 0 waits? */
static bool waits_alone(const rt_graph *g, const rt_task *tasks, uint32_t t)
{
    for (uint32_t k = 0; k < g->n_tasks; k++)
        if (tasks[k].worker < 6 && tasks[k].depends == tasks[t].depends)
            return false;
    return tasks[t].worker >= 6 && tasks[t].depends != RT_START;
}

/* How an error names the GPUs whose tasks trigger an event. */
static const char *late_peers(const rt_graph *g, const rt_task *tasks, uint32_t event)
{
    static const char *const names[] = {" times\n", " by tasks on peer 0\n",
                                        " by tasks on peer 1\n", " by tasks on peers 0 and 1\n"};
    uint32_t late = 0;
    for (uint32_t k = 0; k < g->n_tasks; k++)
        if (tasks[k].triggers == event)
            late |= tasks[k].worker < 6 ? 1u : 2u;
    return names[late];
}

/* A task of GPU 1 whose event needs one trigger more than will come: one error for all, which names
 * both. */
static void test_a_stall(void **state)
{
    (void)state;
    bed b = {.random.seed = seed};
    make_model(&b.cx, &b.arena, (serve_model){IR_F32, 8, 2, false, 0}, &b.program, &b.image);
    make_weights(&b);
    const rt_graph *g = image_table(b.image.block, RT_GRAPHS);
    const rt_task *tasks = image_table(b.image.block, RT_TASKS);
    rt_event *events = (rt_event *)(uintptr_t)image_table(b.image.block, RT_EVENTS);
    uint32_t t = 0;
    while (t < g->n_tasks && !waits_alone(g, tasks, t))
        t++;
    assert_true(t < g->n_tasks);
    events[tasks[t].depends].needed++;
    prepare(&b, 2);
    check_ok(&b.cx, start(&b));
    b.gpus.fake->kernel(gpus_launched, &b.gpus);
    check_fails(&b.cx, MPK_ESTALLED, " on peer 1 waits for event",
                machine_run_graph(&b.cx, b.m, 0, 1, 1));
    assert_non_null(strstr(b.cx.text, "told by GPU 0"));
    assert_non_null(strstr(b.cx.text, late_peers(g, tasks, tasks[t].depends)));
    tear_down(&b);
}

/* Whichever GPU it is, and however many there are. */
static void test_a_lost_gpu(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 4; n++)
        for (uint32_t lost = 0; lost < n; lost++) {
            bed b = {.random.seed = seed};
            char needle[64];
            snprintf(needle, sizeof needle, "GPU %u: the kernel ended without saying why", lost);
            make_model(&b.cx, &b.arena, (serve_model){IR_F32, 8, n, false, 0}, &b.program,
                       &b.image);
            make_weights(&b);
            prepare(&b, n);
            b.gpus.dies = (int)lost;
            check_ok(&b.cx, start(&b));
            b.gpus.fake->kernel(gpus_launched, &b.gpus);
            check_ok(&b.cx, machine_run_graph(&b.cx, b.m, 0, 1, 1));
            check_fails(&b.cx, MPK_EDEVICE, needle, machine_run_graph(&b.cx, b.m, 0, 1, 1));
            tear_down(&b);
        }
}

/* What is allocated between the two calls may be left behind: the leak sanitizer is told. */
static void leaks_are_meant(bool meant)
{
#ifdef __SANITIZE_ADDRESS__
    if (meant)
        __lsan_disable();
    else
        __lsan_enable();
#else
    (void)meant;
#endif
}

/* A task of one GPU does not end, and so neither does its kernel: one error for all, which names
 * the GPU; stopping comes back, and frees nothing that this kernel may still touch.  The last of
 * the tests, since what it leaves behind stays. */
static void test_a_task_that_does_not_end(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 3; n++) {
        bed b = {.random.seed = seed};
        const uint32_t hung = (uint32_t)(seed % n);
        uint64_t tables[MAX_GPUS];
        char words[64];
        make_model(&b.cx, &b.arena, (serve_model){IR_F32, 8, n, false, 0}, &b.program, &b.image);
        make_weights(&b);
        prepare(&b, n);
        b.gpus.hangs = (int)hung;
        leaks_are_meant(true);
        check_ok(&b.cx, start(&b));
        leaks_are_meant(false);
        for (uint32_t p = 0; p < n; p++)
            tables[p] = cuda_of(b.m)->peers[p]->table_block;
        snprintf(words, sizeof words, "busy:%u", hung);
        set_words(n, words);
        b.gpus.fake->kernel(gpus_launched, &b.gpus);
        snprintf(words, sizeof words, "GPU %u: a task on peer %u does not end", hung, hung);
        check_fails(&b.cx, MPK_ESTALLED, words, machine_run_graph(&b.cx, b.m, 0, 1, 1));
        check_fails(&b.cx, MPK_ESTALLED, words, machine_run_graph(&b.cx, b.m, 0, 1, 1));
        machine_stop(b.m);
        for (uint32_t p = 0; p < n; p++)
            assert_int_equal(b.gpus.fake->device_of(tables[p]), p);
        set_words(n, "");
        release(&b);
    }
}

int main(void)
{
    seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_programs),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_carried),
        cmocka_unit_test(test_products_add_terms),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_unknown_peers),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_every_failure),
        cmocka_unit_test(test_a_stall),
        cmocka_unit_test(test_a_lost_gpu),
        cmocka_unit_test(test_one_gpu),
        cmocka_unit_test(test_a_task_that_does_not_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
