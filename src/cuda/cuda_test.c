/* cuda_test.c - the machine on a GPU against a stand-in for the driver (tests/fake_cuda.h):
 * everything but the kernel.
 *
 * Memory is planned and refused, each call of the driver fails once and nothing leaks, entries say
 * what the image says, tensors come back as they were written, and a kernel that rests, faults or
 * dies is noticed.
 */
#include "cuda_bed.h"

#include "base/rng.h"

/* A weight whose entries are no neighbours on the host is one after the other on the GPU. */
static void test_weight_in_parts(void **state)
{
    (void)state;
    /* more than a piece of an upload: one ends inside an entry */
    enum { ROWS = 1000, COLUMNS = 1100 };
    bed *b = set_up("input %x : f32[3, 4, 1000]\nconst %w : f32[3, 1000, 1100]\n%y = "
                    "batch_matmul(%x, %w)\noutput %y\n");
    float *entries = malloc(sizeof(float) * 3 * ROWS * COLUMNS);
    const void *parts[3];
    assert_non_null(entries);
    for (int64_t i = 0; i < 3 * ROWS * COLUMNS; i++)
        entries[i] = (float)i;
    for (int i = 0; i < 3; i++)
        parts[i] = entries + (int64_t)(2 - i) * ROWS * COLUMNS;
    b->weights[0].parts = parts;
    check_ok(&b->cx, start(b));
    const cuda_machine *m = cuda_of(b->m);
    const float *found = (const float *)(uintptr_t)(m->weight_block + m->weights.weights[0].offset);
    assert_int_equal(m->weights.weights[0].n_rows, 3 * ROWS);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(found + (int64_t)i * ROWS * COLUMNS, parts[i],
                            sizeof(float) * ROWS * COLUMNS);
    tear_down(b);
    free(entries);
}

/* ---- refusals ---- */

static void test_starts_and_stops(void **state)
{
    (void)state;
    bed *b = set_up(program);
    machine_facts f;
    check_ok(&b->cx, start(b));
    machine_describe(b->m, &f);
    assert_int_equal(f.n_workers, 6);
    assert_string_equal(f.device, "Fake GPU 0");
    assert_non_null(machine_code_of(b->m, 0, 0).body);
    tear_down(b);
}

/* Kept code runs only with the very source that it was made from. */
static void test_code_of_another_program(void **state)
{
    (void)state;
    bed *b = set_up(program), *other = set_up(caches);
    b->code = other->code;
    check_fails(&b->cx, MPK_EUNSUPPORTED, "compile the model again", start(b));
    b->code.n = 5;
    check_fails(&b->cx, MPK_EUNSUPPORTED, "compile the model again", start(b));
    tear_down(b);
    tear_down(other);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *settings, *needle;
        mpk_status status;
    } cases[] = {
        {"capability:90,sms:6,memory:20000", "only 0.00 of 0.00 are free", MPK_ELIMIT},
        {"capability:90,sms:5,memory:67108864", "compiled for 6 workers, Fake GPU 0 has 5 SMs",
         MPK_EUNSUPPORTED},
        {"capability:75,sms:6,memory:67108864", "7.5", MPK_EUNSUPPORTED},
        {"gpus:0", "no GPU", MPK_EUNSUPPORTED},
        {"capability:90,sms:6,memory:67108864,blocks:0", "mpk_kernel", MPK_ELIMIT},
    };
    bed *b = set_up(program);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("MPK_FAKE_CUDA", cases[i].settings, 1);
        check_fails(&b->cx, cases[i].status, cases[i].needle, start(b));
        no_leaks(b);
    }
    tear_down(b);
}

/* What is planned without a GPU is what a start then allocates: a byte less is refused, and that
 * much is gone after it but for what was only in flight. */
static void test_memory_plan(void **state)
{
    (void)state;
    const cuda_mode modes[] = {CUDA_PERSISTENT, CUDA_GRAPH};
    for (int i = 0; i < 2; i++) {
        bed *b = set_up(chain);
        uint64_t free_bytes, all;
        char words[96];
        cuda_memory plan;
        check_ok(&b->cx, cuda_plan_memory(&b->cx, &b->image, gen_arch_find("sm_90a"),
                                          &(cuda_options){.mode = modes[i]}, &plan));
        assert_int_equal(plan.carried_bytes != 0, modes[i] == CUDA_PERSISTENT);
        snprintf(words, sizeof words, "capability:90,sms:6,memory:%llu",
                 (unsigned long long)plan.total_bytes - 1);
        setenv("MPK_FAKE_CUDA", words, 1);
        check_fails(&b->cx, MPK_ELIMIT, "of the GPU's memory", start_as(b, modes[i]));
        setenv("MPK_FAKE_CUDA", settings, 1);
        check_ok(&b->cx, start_as(b, modes[i]));
        check_ok(&b->cx, cuda_gpu_use(&b->cx, cuda_of(b->m)->gpu));
        check_ok(&b->cx, cuda_memory_available(&b->cx, cuda_of(b->m)->gpu, &free_bytes, &all));
        /* 256: of each module */
        assert_int_equal(all - free_bytes - 2 * 256, plan.total_bytes - plan.staging_bytes);
        tear_down(b);
    }
}

/* A kernel that does not wait for the one before must not start early. */
static void test_no_early_launches(void **state)
{
    (void)state;
    bed *b = set_up(program);
    const char *const others[] = {"capability:80,sms:6,memory:67108864",
                                  "capability:120,sms:6,memory:67108864"};
    b->code.at = NULL;
    for (int i = 0; i < 2; i++) {
        setenv("MPK_FAKE_CUDA", others[i], 1);
        check_fails(&b->cx, MPK_EUNSUPPORTED, "use --mode=graph", start_as(b, CUDA_GRAPH_PDL));
        no_leaks(b);
    }
    tear_down(b);
}

/* Every call of every entry point fails once; whatever the start says then, nothing is left. */
static void fail_everything(const char *source, cuda_mode mode)
{
    bed *b = set_up(source);
    char words[256];
    check_ok(&b->cx, start_as(b, mode));
    machine_stop(b->m);
    unsigned refused = 0, number = 0;
    for (unsigned e = 0; b->fake->entry(e); e++) {
        const char *entry = b->fake->entry(e);
        for (unsigned k = 1, n = b->fake->calls(entry); k <= n; k++) {
            if (!check_takes(seed, number++, CHECK_SHARE)) /* all but with sanitizers */
                continue;
            snprintf(words, sizeof words, "%s,fail:%s:%u", settings, entry, k);
            setenv("MPK_FAKE_CUDA", words, 1);
            b->fake->reset();
            mpk_status status = start_as(b, mode);
            if (status == MPK_OK)
                machine_stop(b->m);
            else
                assert_true(b->cx.text_bytes > 0);
            refused += status != MPK_OK;
            b->fake->leaks(words, sizeof words);
            if (words[0])
                fail_msg("call %u of %s failed, and %s stayed", k, entry, words);
        }
        setenv("MPK_FAKE_CUDA", settings, 1);
        b->fake->reset();
        check_ok(&b->cx, start_as(b, mode));
        machine_stop(b->m);
    }
    b->m = NULL;
    assert_true(refused > (CHECK_SHARE == 1 ? 20 : 0));
    tear_down(b);
}

/* The persistent mode; the two below are the baseline and calls. */
static void test_every_failure(void **state)
{
    (void)state;
    fail_everything(program, CUDA_PERSISTENT);
    fail_everything(sampler, CUDA_PERSISTENT);
}

static void test_every_failure_of_the_baseline(void **state)
{
    (void)state;
    fail_everything(program, CUDA_GRAPH_PDL);
}

static void test_every_failure_of_calls(void **state)
{
    (void)state;
    fail_everything(program, CUDA_CALLS);
}

/* ---- entries ---- */

/* An entry against the image and the plan of memory, computed another way. */
static void check_entry(const bed *b, const rt_entry *e, uint32_t number)
{
    const rt_header *h = b->image.block;
    const rt_graph *g = image_table(h, RT_GRAPHS);
    const rt_task *t = (const rt_task *)image_table(h, RT_TASKS) + number;
    const rt_event *events = image_table(h, RT_EVENTS);
    assert_int_equal(e->task, number);
    assert_int_equal(e->depends, g->first_event + t->depends);
    assert_int_equal(e->triggers, g->first_event + t->triggers);
    assert_int_equal(e->needed, events[e->depends].needed);
    assert_int_equal(e->trigger_kind == RT_TRIGGER_LAUNCH, events[e->triggers].jit != 0);
    if (t->op == RT_NONE) {
        assert_int_equal(e->body, RT_NONE);
        return;
    }
    const ir_op *op = &b->image.ir[0]->ops.at[t->op];
    assert_int_equal(e->body, cuda_of(b->m)->source.uses[0][t->op].instance);
    assert_memory_equal(e->lo, t->lo, sizeof t->lo);
    assert_memory_equal(e->hi, t->hi, sizeof t->hi);
    for (uint32_t i = 0; i < op->n_in; i++)
        assert_int_equal(e->at[i], op->in[i] == IR_NONE ? 0 : address(b, op->in[i]));
    for (uint32_t i = 0; i < op->n_out; i++)
        assert_int_equal(e->at[op->n_in + i], address(b, op->out[i]));
    uint32_t packed = cuda_of(b->m)->weights.packed_of[0][t->op];
    if (packed != RT_NONE)
        assert_int_equal(e->at[RT_PACKED], cuda_of(b->m)->weight_block +
                                               cuda_of(b->m)->weights.packed.at[packed].offset);
}

/* Every task has one entry, in the list of its worker and in the order of the image. */
static void test_entries(void **state)
{
    (void)state;
    bed *b = set_up(program);
    check_ok(&b->cx, start(b));
    const rt_header *h = b->image.block;
    const cuda_layout *l = &cuda_of(b->m)->layout;
    const rt_entry *entries = table(b, l->entries);
    const rt_u32 *first = table(b, l->first_entry), *jit = table(b, l->jit_entry);
    const rt_range *ranges = image_table(h, RT_RANGES);
    const rt_u32 *lists = image_table(h, RT_LISTS);
    const rt_task *tasks = image_table(h, RT_TASKS);
    for (uint32_t w = 0; w < 6; w++) {
        assert_int_equal(first[w + 1] - first[w], ranges[w].last - ranges[w].first);
        for (uint32_t k = first[w]; k < first[w + 1]; k++) {
            check_entry(b, &entries[k], lists[ranges[w].first + k - first[w]]);
            assert_int_equal(entries[k].is_last, k + 1 == first[w + 1] || entries[k + 1].clears);
        }
    }
    uint32_t n = 0;
    for (uint32_t t = 0; t < image_count(h, RT_TASKS); t++, n++) {
        check_entry(b, &entries[jit[t]], t);
        assert_true(tasks[t].worker != RT_NONE || jit[t] >= first[6]);
    }
    assert_true(n > 6);
    tear_down(b);
}

/* The baseline's lists hold every task of an operator once. */
static void test_entries_by_operator(void **state)
{
    (void)state;
    bed *b = set_up(program);
    check_ok(&b->cx, start_as(b, CUDA_GRAPH));
    const cuda_layout *l = &cuda_of(b->m)->layout;
    const rt_entry *entries = table(b, l->op_entries);
    const rt_range *ranges = table(b, l->op_first);
    const rt_task *tasks = image_table(b->image.block, RT_TASKS);
    char *seen = calloc(l->n_tasks, 1);
    for (uint64_t op = 0; op < l->n_ops; op++)
        for (uint32_t w = 0; w < 6; w++)
            for (uint32_t k = ranges[op * 6 + w].first; k < ranges[op * 6 + w].last; k++) {
                assert_int_equal(tasks[entries[k].task].op, op);
                assert_int_equal(seen[entries[k].task]++, 0);
            }
    for (uint32_t t = 0; t < l->n_tasks; t++)
        assert_int_equal(seen[t], tasks[t].op != RT_NONE);
    free(seen);
    tear_down(b);
}

/* ---- tensors ---- */

/* Random bytes written and read back are the same; moves: they lie in another order on the GPU. */
static void check_round_trip(bed *b, const char *name, bool moves)
{
    ir_tensor_id t = ir_find(b->image.ir[0], name);
    size_t n = (size_t)ir_bytes(&b->image.ir[0]->tensors.at[t]);
    unsigned char *bytes = malloc(n), *back = malloc(n);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)rng_u64(seed, i);
    check_ok(&b->cx, machine_write_tensor(&b->cx, b->m, 0, t, bytes));
    check_ok(&b->cx, machine_read_tensor(&b->cx, b->m, 0, t, back));
    assert_memory_equal(bytes, back, n);
    assert_int_equal(memcmp((const void *)(uintptr_t)address(b, t), bytes, n) != 0, moves);
    free(bytes);
    free(back);
}

/* KV pages lie in fragment order: as device/tile/kv.cuh says of two elements of page 1, head 1. */
static void check_places(bed *b)
{
    uint16_t *bytes = calloc(3 * 2 * 16 * 64, 2);
    int64_t page = (1 * 2 + 1) * 16 * 64;
    bytes[page + 11 * 64 + 45] = 7; /* token 11, dim 45 */
    for (int i = 0; i < 2; i++) {
        ir_tensor_id t = ir_find(b->image.ir[0], i ? "v" : "k");
        check_ok(&b->cx, machine_write_tensor(&b->cx, b->m, 0, t, bytes));
        const uint16_t *there = (const uint16_t *)(uintptr_t)address(b, t);
        int64_t key = (1 * 2 + 1) * 256 + 3 * 32 + ((13 / 8) ^ 1) * 8 + 5,
                value = 5 * 128 + 5 * 16 + 0 * 4 + 2 + 1; /* piece 1: place 2, 0 by the swizzle */
        assert_int_equal(there[page + (i ? value : key)], 7);
    }
    free(bytes);
}

static void test_tensors(void **state)
{
    (void)state;
    bed *b = set_up(caches);
    check_ok(&b->cx, start(b));
    check_round_trip(b, "q", false);
    check_round_trip(b, "k", true);
    check_round_trip(b, "v", true);
    check_places(b);
    check_ok(&b->cx, machine_clear_state(&b->cx, b->m));
    ir_tensor_id k = ir_find(b->image.ir[0], "k");
    char *back = malloc((size_t)ir_bytes(&b->image.ir[0]->tensors.at[k]));
    check_ok(&b->cx, machine_read_tensor(&b->cx, b->m, 0, k, back));
    assert_int_equal(back[0] | back[4000], 0);
    free(back);
    tear_down(b);
}

/* A weight that is streamed is packed by a launch of its own: once for all at the start, and again
 * when it is written. */
static void test_written_weight(void **state)
{
    (void)state;
    bed *b = set_up(products);
    const ir_tensor_id w = ir_find(b->image.ir[0], "w");
    char *bytes = calloc(1, (size_t)ir_bytes(&b->image.ir[0]->tensors.at[w]));
    check_ok(&b->cx, start(b));
    assert_int_equal(cuda_of(b->m)->weights.packed.n, 1);
    const unsigned before = b->fake->launches();
    check_ok(&b->cx, machine_write_tensor(&b->cx, b->m, 0, w, bytes));
    assert_int_equal(b->fake->launches(), before + 1);
    free(bytes);
    tear_down(b);
}

/* ---- the kernel's life ---- */

typedef enum life { RESTS, DIES, STALLS } life;

typedef struct emulation {
    life life;
    unsigned launches;
    uint32_t n_tasks;
} emulation;

/* What the kernel tells the host in one life; it runs to its end at once. */
static void run_kernel(void *user, const fake_launch *l)
{
    emulation *e = user;
    if (strcmp(l->function, "mpk_kernel") != 0)
        return;
    rt_kernel *k = (rt_kernel *)(uintptr_t)l->argument;
    e->launches++;
    assert_int_equal(l->n_blocks, 6);
    assert_int_equal(rt_load_acquire_system(&k->machine.control->abort), RT_RUNNING);
    assert_int_equal(rt_load_acquire_system(k->host_state), RT_RUNNING);
    if (e->life == DIES)
        return;
    if (e->life == STALLS) {
        *k->host_fault = (rt_fault){
            .kind = RT_STALL, .worker = 3, .task = 1, .event = 2, .seen = 4, .needed = 5};
        rt_store_release_system(k->host_state, RT_FAULTED);
        return;
    }
    rt_store_release_system(k->host_once_done, rt_load_acquire_system(k->host_once_wanted));
    rt_store_release_system(&k->machine.control->abort, RT_STOPPING);
    rt_store_release_system(k->host_state, RT_STOPPING);
}

/* Work starts the kernel, rest ends it, work starts it again; a fault is told for good. */
static void test_life(void **state)
{
    (void)state;
    for (life how = RESTS; how <= STALLS; how++) {
        bed *b = set_up(program);
        emulation e = {.life = how};
        check_ok(&b->cx, start(b));
        b->fake->kernel(run_kernel, &e);
        assert_int_equal(e.launches, 0); /* not before there is work */
        if (how == RESTS) {
            for (unsigned i = 1; i <= 3; i++) {
                check_ok(&b->cx, machine_run_graph(&b->cx, b->m, 0, 4, 4));
                assert_int_equal(e.launches, i); /* each time from its rest */
            }
        } else if (how == DIES) {
            check_fails(&b->cx, MPK_EDEVICE, "without saying why",
                        machine_run_graph(&b->cx, b->m, 0, 4, 4));
            check_fails(&b->cx, MPK_EDEVICE, "without saying why",
                        machine_run_graph(&b->cx, b->m, 0, 4, 4));
        } else {
            check_fails(&b->cx, MPK_ESTALLED, "worker 3", machine_run_graph(&b->cx, b->m, 0, 4, 4));
            check_fails(&b->cx, MPK_ESTALLED, "triggered 4 of 5 times",
                        machine_check(&b->cx, b->m));
        }
        b->fake->kernel(NULL, NULL);
        tear_down(b);
    }
}

/* A constant in the caller's memory is written again when its address has changed, and only
 * then. */
static void test_constants_that_move(void **state)
{
    (void)state;
    bed *b = set_up("input %x : f32[4, 64]\nconst %w : f32[4, 64]\n%y = add(%x, %w)\noutput %y\n");
    emulation e = {.life = RESTS};
    machine_slots *slots;
    arena a = {0};
    const ir_graph *ir = b->image.ir[0];
    ir_tensor_id w = ir_find(ir, "w"), roots[] = {ir_find(ir, "x"), w, ir->outputs.at[0]};
    size_t n = (size_t)ir_bytes(&ir->tensors.at[w]);
    char *x = calloc(1, (size_t)ir_bytes(&ir->tensors.at[roots[0]])), *y = calloc(1, 4 * 64 * 4);
    char *first = malloc(n), *second = malloc(n);
    memset(first, 1, n);
    memset(second, 2, n);
    check_ok(&b->cx, start(b));
    b->fake->kernel(run_kernel, &e);
    check_ok(&b->cx, machine_make_slots(&b->cx, b->m, &a, 0, 3, roots, &slots));
    const char *there = (const char *)(uintptr_t)address(b, w);
    check_ok(&b->cx, machine_run_slots(&b->cx, b->m, slots, (void *[]){x, first, y}));
    assert_memory_equal(there, first, n);
    memset(first, 3, n); /* at the same place: the machine may keep what it has */
    check_ok(&b->cx, machine_run_slots(&b->cx, b->m, slots, (void *[]){x, first, y}));
    assert_int_equal(there[0], 1);
    check_ok(&b->cx, machine_run_slots(&b->cx, b->m, slots, (void *[]){x, second, y}));
    assert_memory_equal(there, second, n);
    b->fake->kernel(NULL, NULL);
    tear_down(b);
    arena_free(&a);
    free(x), free(y), free(first), free(second);
}

typedef struct stepping_state {
    emulation kernel;
    unsigned char *at, *out; /* the first bytes of the state and of the output, on the GPU */
} stepping_state;

/* The kernel's part: it adds one to the first entry of the state, and gives twice that. */
static void step_state(void *user, const fake_launch *l)
{
    stepping_state *s = user;
    if (strcmp(l->function, "mpk_kernel") == 0)
        s->out[0] = (unsigned char)(2 * ++s->at[0]);
    run_kernel(&s->kernel, l);
}

/* A state in a slot goes to the GPU before each run, and what the run made of it comes back, as the
 * output does. */
static void test_states_come_back(void **state)
{
    (void)state;
    bed *b = set_up(products);
    stepping_state s = {.kernel = {.life = RESTS}};
    machine_slots *slots;
    arena a = {0};
    const ir_graph *ir = b->image.ir[0];
    const ir_tensor_id id = ir_find(ir, "s");
    ir_tensor_id roots[] = {ir_find(ir, "x"), id, ir->outputs.at[0]};
    unsigned char *data[3];
    for (int i = 0; i < 3; i++)
        data[i] = calloc(1, (size_t)ir_bytes(&ir->tensors.at[roots[i]]));
    check_ok(&b->cx, start(b));
    s.at = (unsigned char *)(uintptr_t)address(b, id);
    s.out = (unsigned char *)(uintptr_t)address(b, roots[2]);
    b->fake->kernel(step_state, &s);
    check_ok(&b->cx, machine_make_slots(&b->cx, b->m, &a, 0, 3, roots, &slots));
    data[1][0] = 7;
    for (unsigned run = 1; run <= 3; run++) {
        check_ok(&b->cx,
                 machine_run_slots(&b->cx, b->m, slots, (void *[]){data[0], data[1], data[2]}));
        assert_int_equal(data[1][0], 7 + run);
        assert_int_equal(data[2][0], 2 * (7 + run));
    }
    b->fake->kernel(NULL, NULL);
    tear_down(b);
    arena_free(&a);
    for (int i = 0; i < 3; i++)
        free(data[i]);
}

/* Workers note times modulo 2^32; means are over the tasks of an operator that have run. */
static void note_times(void *user, const fake_launch *l)
{
    rt_kernel *k = (rt_kernel *)(uintptr_t)l->argument;
    emulation *e = user;
    run_kernel(user, l);
    if (strcmp(l->function, "mpk_kernel") != 0)
        return;
    for (rt_u32 i = 0; i < RT_DELAYS + 2; i++) /* more than there is room for: 0 and 1 are lost */
        k->delays->ns[k->delays->n++ % RT_DELAYS] = i < 2 ? 1000000 : 4 * i;
    for (uint32_t i = 0; i < e->n_tasks; i++)
        k->times[i] = (rt_times){0xfffffff0u, 10, 110, 115}; /* 26, 100, 5 */
    /* steps of 1 to 5 us at 1.5 GHz, and one of another graph */
    for (rt_u32 i = 1; i <= 5; i++)
        k->steps->of[k->steps->n++] = (rt_step_note){0, 1000 * i, 1500 * i, 10 * i};
    k->steps->of[k->steps->n++] = (rt_step_note){1, 90000, 1, 90000};
}

/* Tasks of graph 0 that another one precedes in a worker's list. */
static uint32_t n_tasks_after(machine *m)
{
    const cuda_machine *c = cuda_of(m);
    const rt_u32 *first = (const rt_u32 *)(uintptr_t)(c->table_block + c->layout.first_entry);
    uint32_t n = 0;
    for (uint32_t w = 0; w < cuda_workers(c); w++)
        n += first[w + 1] > first[w] ? first[w + 1] - first[w] - 1 : 0;
    return n;
}

/* Means of what note_times wrote, by operator; tasks that never ran do not count. */
static void test_profile(void **state)
{
    (void)state;
    bed *b = set_up(program);
    machine_times times[8];
    machine_profile profile = {.times = times};
    check_ok(&b->cx, start(b));
    check_fails(&b->cx, MPK_EARG, "with a profile",
                machine_read_profile(&b->cx, b->m, 0, &profile));
    machine_stop(b->m);
    cuda_options o = {.code = b->code.at, .code_bytes = b->code.n, .profile = true};
    machine_weights w = {.at = b->weights, .seed = seed};
    check_ok(&b->cx, cuda_start(&b->cx, &b->image, &w, &o, &b->m));
    emulation e = {.life = RESTS, .n_tasks = (uint32_t)image_count(b->image.block, RT_TASKS)};
    b->fake->kernel(note_times, &e);
    check_ok(&b->cx, machine_run_graph(&b->cx, b->m, 0, 4, 4));
    b->fake->kernel(NULL, NULL);
    check_ok(&b->cx, machine_read_profile(&b->cx, b->m, 0, &profile));
    uint32_t n = 0;
    assert_true(b->image.ir[0]->ops.n <= 8);
    for (uint32_t k = 0; k < b->image.ir[0]->ops.n; k++, n += times[k - 1].n_tasks)
        assert_true(times[k].n_tasks && times[k].wait == 26 && times[k].body == 100 &&
                    times[k].longest == 100 && times[k].trigger == 5);
    assert_true(n > 0 && n <= e.n_tasks);
    assert_int_equal(profile.to_host.n, RT_DELAYS);
    assert_int_equal(profile.to_host.median_ns, 4 * (2 + RT_DELAYS / 2));
    assert_int_equal(profile.to_host.most_ns, 4 * (RT_DELAYS + 1));
    assert_int_equal(profile.steps.n, 5);
    assert_int_equal(profile.steps.ns, 3000);
    assert_int_equal(profile.steps.between_ns, 30);
    assert_int_equal(profile.clock_khz, 1500000);
    /* from each task's results (110) to the next one's begin of the same list (0xfffffff0) */
    assert_true(profile.between == (double)(n_tasks_after(b->m)) * (0xfffffff0u - 110u));
    check_fails(&b->cx, MPK_EARG, "graph 1 of 1", machine_read_profile(&b->cx, b->m, 1, &profile));
    tear_down(b);
}

/* A driver that fails while the kernel should run is said once and for all. */
static void test_lost_gpu(void **state)
{
    (void)state;
    bed *b = set_up(program);
    char words[128];
    check_ok(&b->cx, start(b));
    snprintf(words, sizeof words, "%s,fail:cuStreamQuery:%u:700", settings,
             b->fake->calls("cuStreamQuery") + 1);
    setenv("MPK_FAKE_CUDA", words, 1);
    mpk_status status = machine_run_graph(&b->cx, b->m, 0, 4, 4);
    assert_int_equal(status, MPK_EDEVICE);
    assert_int_equal(machine_check(&b->cx, b->m), MPK_EDEVICE);
    setenv("MPK_FAKE_CUDA", settings, 1);
    machine_stop(b->m);
    b->m = NULL;
    tear_down(b);
}

/* ---- masks ---- */

enum { SLOTS = 4, MASKS = 8, RULE_WORDS = 64, VOCABULARY = 96, MASK_WORDS = VOCABULARY / 32 };

/* What a row of masks must hold on the GPU. */
typedef struct row_of_mask {
    uint32_t number, bits[MASK_WORDS];
} row_of_mask;

/* All rows as the last masks left them, byte by byte. */
static void check_masks(const bed *b, const row_of_mask *expected)
{
    const rt_serving *s = &b->m->books.serving;
    const uint32_t *rules = (const uint32_t *)(uintptr_t)(cuda_of(b->m)->areas[RT_STEP] + s->rules);
    for (uint32_t i = 0; i < SLOTS * RULE_WORDS; i++)
        assert_int_equal(rules[i], 0); /* the slots' own rules */
    for (uint32_t row = 0; row < MASKS; row++) {
        const uint32_t *at = rules + (SLOTS + row) * RULE_WORDS;
        assert_memory_equal(at, &expected[row], sizeof *expected);
        for (uint32_t i = 1 + MASK_WORDS; i < RULE_WORDS; i++)
            assert_int_equal(at[i], 0);
    }
}

/* Masks of random requests arrive in their rows and nowhere else; a row's number may come without
 * bits. */
static void test_masks(void **state)
{
    (void)state;
    bed *b = set_up(sampler);
    row_of_mask expected[MASKS] = {0};
    check_ok(&b->cx, start(b));
    assert_true(machine_takes_masks(b->m));
    assert_int_equal(b->m->books.serving.n_masks, MASKS);
    check_masks(b, expected);
    for (uint64_t i = 0; i < 200; i++) {
        uint32_t row = (uint32_t)(rng_float(seed, 8 * i) * MASKS), bits[MASK_WORDS];
        bool begins = rng_float(seed, 8 * i + 1) < 0.2,
             has_bits = !begins || rng_float(seed, 8 * i + 2) < 0.5;
        for (uint32_t k = 0; k < MASK_WORDS; k++)
            bits[k] = (uint32_t)rng_u64(seed, 8 * i + 3 + k);
        expected[row].number = begins ? has_bits : expected[row].number + 1;
        if (has_bits)
            memcpy(expected[row].bits, bits, sizeof bits);
        b->m->def->put_mask(b->m, row, has_bits ? bits : NULL, MASK_WORDS, expected[row].number);
        check_masks(b, expected);
    }
    check_ok(&b->cx, machine_check(&b->cx, b->m));
    tear_down(b);
}

/* A mask that cannot be copied loses the machine: its request would wait for ever. */
static void test_lost_masks(void **state)
{
    (void)state;
    char words[128];
    for (unsigned k = 1; k <= 2; k++) {
        bed *b = set_up(sampler);
        check_ok(&b->cx, start(b));
        snprintf(words, sizeof words, "%s,fail:cuMemcpyHtoDAsync:%u", settings,
                 b->fake->calls("cuMemcpyHtoDAsync") + k);
        setenv("MPK_FAKE_CUDA", words, 1);
        b->m->def->put_mask(b->m, 3, (uint32_t[MASK_WORDS]){1, 2, 3}, MASK_WORDS, 2);
        check_fails(&b->cx, MPK_EDEVICE, "copy", machine_check(&b->cx, b->m));
        setenv("MPK_FAKE_CUDA", settings, 1);
        tear_down(b);
    }
}

/* ---- the caller's own GPU ---- */

/* Every call of a machine on this thread; its fake kernel rests after each piece of work. */
static void call_everything(bed *b, const cuda_driver *d, cuda_context own, cuda_mode mode)
{
    mpk_context *cx = &b->cx;
    const ir_tensor_id x = ir_find(b->image.ir[0], "tokens");
    uint32_t bits[MASK_WORDS] = {1};
    machine_facts f;
    machine_profile profile = {0};
    rt_u64 at;
    float logits[64], tensor[64];
    check_ok(cx, start_as(b, mode));
    assert_ptr_equal(cuda_driver_current(d), own);
#define STAYS(call)                                    \
    do {                                               \
        call;                                          \
        assert_ptr_equal(cuda_driver_current(d), own); \
    } while (0)
    STAYS(machine_describe(b->m, &f));
    STAYS(check_ok(cx, machine_check(cx, b->m)));
    STAYS(check_ok(cx, machine_write_tensor(cx, b->m, 0, x, tensor)));
    STAYS(check_ok(cx, machine_read_tensor(cx, b->m, 0, x, tensor)));
    STAYS(check_ok(cx, machine_clear_state(cx, b->m)));
    STAYS(b->m->def->ring(b->m));
    STAYS(b->m->def->wait(b->m, 0, 1000));
    STAYS(check_ok(cx, b->m->def->lend_logits(cx, b->m, logits, 64, &at)));
    STAYS(b->m->def->return_logits(b->m, at, logits, 64));
    STAYS(b->m->def->put_mask(b->m, 0, bits, MASK_WORDS, 1));
    if (mode == CUDA_PERSISTENT)
        STAYS(check_ok(cx, machine_run_graph(cx, b->m, 0, 1, 1)));
    STAYS(check_fails(cx, MPK_EARG, "profile", machine_read_profile(cx, b->m, 0, &profile)));
    STAYS(machine_stop(b->m));
#undef STAYS
    b->m = NULL;
}

/* A thread that uses another GPU itself, or none, finds it current after each call, also after a
 * start that failed and after calls on the same GPU. */
static void test_what_was_current_stays(void **state)
{
    (void)state;
    static const char two[] = "capability:90,sms:6,memory:67108864,gpus:2";
    for (int which = 0; which < 3; which++) {
        bed *b = set_up(sampler);
        emulation e = {.life = RESTS};
        cuda_driver *d;
        cuda_gpu *gpu = NULL;
        setenv("MPK_FAKE_CUDA", two, 1);
        check_ok(&b->cx, cuda_driver_open(&b->cx, &d));
        if (which < 2)
            check_ok(&b->cx, cuda_gpu_open(&b->cx, d, (uint32_t)which, &gpu));
        else
            cuda_driver_leave(d, NULL);
        const cuda_context own = cuda_driver_current(d);
        assert_int_equal(own != NULL, which < 2);
        b->fake->kernel(run_kernel, &e);
        call_everything(b, d, own, CUDA_PERSISTENT);
        b->fake->kernel(NULL, NULL);
        check_ok(&b->cx, start_as(b, CUDA_CALLS));
        assert_ptr_equal(cuda_driver_current(d), own);
        machine_stop(b->m);
        setenv("MPK_FAKE_CUDA", "capability:90,sms:6,memory:20000,gpus:2", 1);
        check_fails(&b->cx, MPK_ELIMIT, "free", start(b));
        assert_ptr_equal(cuda_driver_current(d), own);
        cuda_gpu_close(gpu);
        cuda_driver_close(d);
        setenv("MPK_FAKE_CUDA", settings, 1);
        tear_down(b);
    }
}

/* How large a KV cache is stands in no kernel: it is told when it is loaded. */
static void test_sizes_of_caches(void **state)
{
    (void)state;
    static const gen_cache expected = {.slots = 2, .slot_pages = 3, .n_pages = 5};
    bed *b = set_up(long_pages);
    check_ok(&b->cx, start(b));
    assert_memory_equal(b->fake->variables(), &expected, sizeof expected);
    tear_down(b);
}

int main(void)
{
    seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weight_in_parts),
        cmocka_unit_test(test_starts_and_stops),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_memory_plan),
        cmocka_unit_test(test_no_early_launches),
        cmocka_unit_test(test_code_of_another_program),
        cmocka_unit_test(test_every_failure),
        cmocka_unit_test(test_every_failure_of_the_baseline),
        cmocka_unit_test(test_every_failure_of_calls),
        cmocka_unit_test(test_entries),
        cmocka_unit_test(test_entries_by_operator),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_written_weight),
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_constants_that_move),
        cmocka_unit_test(test_states_come_back),
        cmocka_unit_test(test_lost_gpu),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_lost_masks),
        cmocka_unit_test(test_what_was_current_stays),
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_sizes_of_caches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
