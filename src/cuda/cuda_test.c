/* cuda_test.c - the machine on a GPU against a stand-in for the driver (tests/fake_cuda.h): everything but the kernel.
 *
 * Memory is planned and refused, each call of the driver fails once and nothing leaks, entries say what the image says,
 * tensors come back as they were written, and a kernel that rests, faults or dies is noticed.
 */
#include "check.h"

#include "base/rng.h"
#include "cpu/cpu.h"
#include "cuda/cuda_machine.h"
#include "fake_cuda.h"
#include "ir/op.h"
#include "load/load.h"
#include "model/model.h"
#include "pass/pass.h"
#include "rt/rt_step.h"

static const char settings[] = "capability:90,sms:6,memory:67108864";
static const char program[] = "input %x : f32[4, 64] live=tokens\n"
                              "const %w : bf16[96, 64]\n"
                              "const %v : bf16[64, 96]\n"
                              "%h = linear(%x, %w)\n"
                              "%g = silu(%h)\n"
                              "%y = linear(%g, %v)\n"
                              "%z = add(%y, %x)\n"
                              "output %z\n";
static const char caches[] = "input %q : bf16[2, 2, 64] live=tokens\n"
                             "state %k : bf16[3, 2, 16, 64]\n"
                             "state %v : bf16[3, 2, 16, 64]\n"
                             "input %p : i32[2] live=tokens\n"
                             "input %s : i32[2] live=tokens\n"
                             "input %t : i32[2, 3]\n"
                             "%y = attention(%q, %k, %v, %p, %s, %t)\n"
                             "output %y\n";

typedef struct bed {
    mpk_context cx;
    arena a;
    const fake_cuda_face *fake;
    tg_program program;
    gen_image image;
    cuda_weight weights[8];
    machine *m;
} bed;

static uint64_t seed;

static bed *set_up(const char *source)
{
    bed *b = calloc(1, sizeof *b);
    ir_graph *g;
    uint32_t n_tokens = 4;
    pass_options o = {.n_workers = 6, .page_bytes = 16384, .pages_per_worker = 1024, .verify = true};
    b->fake = fake_cuda_start(settings);
    assert_non_null(b->fake);
    check_ok(&b->cx, ir_parse(&b->cx, &b->a, str_from(source), &g));
    check_ok(&b->cx, pass_compile(&b->cx, &b->a, &o, 1, &g, &n_tokens, &b->program));
    check_ok(&b->cx, gen_image_make(&b->cx, &b->a, &b->program, &b->image));
    assert_true(b->image.n_weights <= 8);
    for (uint32_t i = 0; i < b->image.n_weights; i++)
        b->weights[i].dtype = b->image.weights[i].dtype;
    return b;
}

static void no_leaks(bed *b)
{
    char words[256];
    b->fake->leaks(words, sizeof words);
    assert_string_equal(words, "");
}

static void tear_down(bed *b)
{
    machine_stop(b->m);
    no_leaks(b);
    arena_free(&b->a);
    free(b);
}

static mpk_status start_as(bed *b, cuda_mode mode)
{
    cuda_options o = {.code = "\177ELF of the kernel", .code_bytes = 18, .mode = mode, .stall_ns = 1000000};
    cuda_weights w = {.at = b->weights, .seed = seed};
    b->m = NULL;
    return cuda_start(&b->cx, &b->image, &w, &o, &b->m);
}

static mpk_status start(bed *b)
{
    return start_as(b, CUDA_PERSISTENT);
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
    assert_non_null(machine_body_of(b->m, 0, 0));
    tear_down(b);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *settings, *needle;
        mpk_status status;
    } cases[] = {
        {"capability:90,sms:6,memory:20000", "only 0.00 of 0.00 are free", MPK_ELIMIT},
        {"capability:90,sms:5,memory:67108864", "compiled for 6 workers, Fake GPU 0 has 5 SMs", MPK_EUNSUPPORTED},
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

/* Every call of every entry point fails once; whatever the start says then, nothing is left. */
static void fail_everything(cuda_mode mode)
{
    bed *b = set_up(program);
    char words[256];
    check_ok(&b->cx, start_as(b, mode));
    machine_stop(b->m);
    unsigned refused = 0;
    for (unsigned e = 0; b->fake->entry(e); e++) {
        const char *entry = b->fake->entry(e);
        unsigned n = b->fake->calls(entry);
        for (unsigned k = 1; k <= n; k++) {
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
    assert_true(refused > 20);
    tear_down(b);
}

static void test_every_failure(void **state)
{
    (void)state;
    fail_everything(CUDA_PERSISTENT);
}

static void test_every_failure_of_the_baseline(void **state)
{
    (void)state;
    fail_everything(CUDA_GRAPH_PDL);
}

/* ---- entries ---- */

static const void *table(const bed *b, uint64_t offset)
{
    return (const void *)(uintptr_t)(cuda_of(b->m)->table_block + offset);
}

/* Where a tensor must lie; weights: their plain copy, or 0. */
static uint64_t address(const bed *b, ir_tensor_id t)
{
    const cuda_machine *m = cuda_of(b->m);
    const tg_place *p = &b->image.places[0][t];
    if (p->area == TG_WEIGHTS)
        return m->weights.weights[p->offset].plain ? m->weight_block + m->weights.weights[p->offset].offset : 0;
    return m->areas[p->area] + p->offset;
}

static void check_entry(const bed *b, const rt_entry *e, uint32_t number)
{
    const rt_header *h = b->image.block;
    const rt_graph *g = gen_image_table(h, RT_GRAPHS);
    const rt_task *t = (const rt_task *)gen_image_table(h, RT_TASKS) + number;
    const rt_event *events = gen_image_table(h, RT_EVENTS);
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
        assert_int_equal(e->at[RT_PACKED],
                         cuda_of(b->m)->weight_block + cuda_of(b->m)->weights.packed.at[packed].offset);
}

static void test_entries(void **state)
{
    (void)state;
    bed *b = set_up(program);
    check_ok(&b->cx, start(b));
    const rt_header *h = b->image.block;
    const cuda_layout *l = &cuda_of(b->m)->layout;
    const rt_entry *entries = table(b, l->entries);
    const rt_u32 *first = table(b, l->first_entry), *jit = table(b, l->jit_entry);
    const rt_range *ranges = gen_image_table(h, RT_RANGES);
    const rt_u32 *lists = gen_image_table(h, RT_LISTS);
    const rt_task *tasks = gen_image_table(h, RT_TASKS);
    for (uint32_t w = 0; w < 6; w++) {
        assert_int_equal(first[w + 1] - first[w], ranges[w].last - ranges[w].first);
        for (uint32_t k = first[w]; k < first[w + 1]; k++) {
            check_entry(b, &entries[k], lists[ranges[w].first + k - first[w]]);
            assert_int_equal(entries[k].is_last, k + 1 == first[w + 1]);
        }
    }
    uint32_t n = 0;
    for (uint32_t t = 0; t < gen_image_count(h, RT_TASKS); t++, n++) {
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
    const rt_task *tasks = gen_image_table(b->image.block, RT_TASKS);
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
        int64_t key = (1 * 2 + 1) * 256 + 3 * 32 + ((13 / 8) ^ 1) * 8 + 5, value = 5 * 128 + 5 * 16 + 3 / 2 * 4 + 2 + 1;
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

/* ---- the kernel's life ---- */

typedef enum life { RESTS, DIES, STALLS } life;

typedef struct emulation {
    life life;
    unsigned launches;
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
        *k->host_fault = (rt_fault){.kind = RT_STALL, .worker = 3, .task = 1, .event = 2, .seen = 4, .needed = 5};
        rt_store_release_system(k->host_state, RT_FAULTED);
        return;
    }
    rt_store_release_system(k->host_once_done, rt_load_acquire_system(k->host_once_wanted));
    rt_store_release_system(&k->machine.control->abort, RT_STOPPING);
    rt_store_release_system(k->host_state, RT_STOPPING);
}

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
            check_fails(&b->cx, MPK_EDEVICE, "without saying why", machine_run_graph(&b->cx, b->m, 0, 4, 4));
            check_fails(&b->cx, MPK_EDEVICE, "without saying why", machine_run_graph(&b->cx, b->m, 0, 4, 4));
        } else {
            check_fails(&b->cx, MPK_ESTALLED, "worker 3", machine_run_graph(&b->cx, b->m, 0, 4, 4));
            check_fails(&b->cx, MPK_ESTALLED, "triggered 4 of 5 times", machine_check(&b->cx, b->m));
        }
        b->fake->kernel(NULL, NULL);
        tear_down(b);
    }
}

/* A driver that fails while the kernel should run is said once and for all. */
static void test_lost_gpu(void **state)
{
    (void)state;
    bed *b = set_up(program);
    char words[128];
    check_ok(&b->cx, start(b));
    snprintf(words, sizeof words, "%s,fail:cuStreamQuery:%u:700", settings, b->fake->calls("cuStreamQuery") + 1);
    setenv("MPK_FAKE_CUDA", words, 1);
    mpk_status status = machine_run_graph(&b->cx, b->m, 0, 4, 4);
    assert_int_equal(status, MPK_EDEVICE);
    assert_int_equal(machine_check(&b->cx, b->m), MPK_EDEVICE);
    setenv("MPK_FAKE_CUDA", settings, 1);
    machine_stop(b->m);
    b->m = NULL;
    tear_down(b);
}

/* ---- requests: the kernel's work done by the operators' reference code ---- */

enum { TOKENS = 12, REQUESTS = 5, VOCABULARY = 97 };

typedef struct server {
    bed *bed;
    void **data[2]; /* [graph][tensor] */
    void *weights[64];
    unsigned launches, steps;
} server;

static void move(rt_ring *from, const void *source, rt_ring *to, void *target, rt_u32 mask, size_t size)
{
    rt_u32 n = rt_ring_ready(from), space = rt_ring_space(to, mask + 1);
    for (rt_u32 i = 0; i < n && i < space; i++) {
        memcpy((char *)target + (to->written.value & mask) * size,
               (const char *)source + (from->read.value & mask) * size, size);
        rt_ring_wrote(to, 1);
        rt_ring_took(from, 1);
    }
}

static void run_step(server *s, const rt_machine *m)
{
    rt_u32 g = (rt_u32)(m->control->step.value >> 32);
    const ir_graph *ir = s->bed->image.ir[g];
    for (uint32_t k = 0; k < ir->ops.n; k++) {
        const ir_op *op = &ir->ops.at[k];
        if (op->def->flags & OP_VIEW && ir->tensors.at[op->out[0]].shares != IR_NONE)
            continue;
        op_call call;
        op_bind(ir, op, s->data[g], m->control->live, &call);
        ir_box box = ir_box_whole(&ir->tensors.at[op->out[0]]);
        if (ir->tensors.at[op->out[0]].rank)
            box.hi[0] = op_live_entries(&call, &call.out[0]);
        size_t n = op->def->scratch_bytes ? op->def->scratch_bytes(ir, op, &box) : 0;
        void *scratch = aligned_alloc(64, (n + 64) / 64 * 64);
        op->def->ref(&call, &box, scratch);
        free(scratch);
    }
    s->steps++;
}

/* A life of the kernel: until there is nothing to do. */
static void run_server(void *user, const fake_launch *l)
{
    server *s = user;
    rt_kernel *k = (rt_kernel *)(uintptr_t)l->argument;
    if (strcmp(l->function, "mpk_kernel") != 0)
        return;
    rt_machine *m = &k->machine;
    s->launches++;
    for (;;) {
        move(k->host_request_ring, k->host_requests, m->request_ring, m->requests, m->request_mask, sizeof(rt_request));
        move(k->host_command_ring, k->host_commands, m->command_ring, m->commands, m->command_mask, sizeof(rt_command));
        m->workers[0].owner = 1;
        int published = rt_step_poll(m, &m->workers[0]);
        move(m->token_ring, m->tokens, k->host_token_ring, k->host_tokens, m->token_mask, sizeof(rt_token));
        if (!published)
            break;
        run_step(s, m);
    }
    rt_store_release_system(&m->control->abort, RT_STOPPING);
    rt_store_release_system(k->host_state, RT_STOPPING);
}

static mpk_status all_f32(mpk_context *cx, const void *self, const char *name, uint32_t rank, const int64_t *dims,
                          ir_dtype *dtype)
{
    (void)cx;
    (void)self;
    (void)name;
    (void)rank;
    (void)dims;
    *dtype = IR_F32;
    return MPK_OK;
}

static void make_model(bed *b)
{
    static const uint32_t n_tokens[] = {1, 8};
    model_config c = {.family = STR("llama"),
                      .n_layers = 1,
                      .hidden_size = 32,
                      .n_heads = 2,
                      .n_kv_heads = 1,
                      .head_size = 16,
                      .ffn_size = 48,
                      .vocab_size = VOCABULARY,
                      .max_positions = 128,
                      .norm_eps = 1e-5,
                      .tied_embeddings = true,
                      .activation = STR("silu"),
                      .rope_size = 16,
                      .rope_theta = 10000,
                      .bos_token = -1};
    model_weights w = {all_f32, NULL};
    ir_graph *g[2];
    pass_options o = {.n_workers = 6, .page_bytes = 16384, .pages_per_worker = 1024};
    for (int i = 0; i < 2; i++) {
        model_shape s = {.n_tokens = n_tokens[i],
                         .n_rows = i ? 3 : 1,
                         .n_slots = 3,
                         .n_pages = 9,
                         .page_tokens = 16,
                         .max_pages_per_slot = 4,
                         .kv_dtype = IR_F32,
                         .activation_dtype = IR_F32};
        check_ok(&b->cx, model_build(&b->cx, &b->a, &c, &s, &w, &g[i]));
    }
    check_ok(&b->cx, pass_compile(&b->cx, &b->a, &o, 2, g, n_tokens, &b->program));
    check_ok(&b->cx, gen_image_make(&b->cx, &b->a, &b->program, &b->image));
}

static void bind_server(server *s)
{
    bed *b = s->bed;
    const cuda_machine *m = cuda_of(b->m);
    assert_true(b->image.n_weights <= 64);
    for (uint32_t i = 0; i < b->image.n_weights; i++) {
        const tg_weight *w = &b->image.weights[i];
        int64_t n = 1;
        for (uint32_t d = 0; d < w->rank; d++)
            n *= w->dims[d];
        s->weights[i] = arena_alloc(&b->a, (size_t)n, 4);
        load_random_fill(seed, w->name, w->dtype, 0, n, s->weights[i]);
    }
    for (uint32_t g = 0; g < 2; g++) {
        const ir_graph *ir = b->image.ir[g];
        s->data[g] = arena_alloc(&b->a, ir->tensors.n, sizeof(void *));
        for (ir_tensor_id t = 0; t < ir->tensors.n; t++) {
            const tg_place *p = &b->image.places[g][t];
            char *root =
                p->area == TG_WEIGHTS ? s->weights[p->offset] : (char *)(uintptr_t)(m->areas[p->area] + p->offset);
            s->data[g][t] = root + ir_row_bytes(ir->tensors.at[t].dtype, ir->tensors.at[t].offset);
        }
    }
}

typedef struct answers {
    int32_t tokens[REQUESTS][TOKENS];
    float logits[VOCABULARY];
} answers;

/* Requests at the same time, more than there are slots; the last one wants logits. */
static void ask(bed *b, machine *m, answers *out)
{
    uint64_t ids[REQUESTS];
    uint32_t n[REQUESTS] = {0}, open = REQUESTS;
    memset(out, 0, sizeof *out);
    for (uint32_t r = 0; r < REQUESTS; r++) {
        int32_t prompt[20];
        for (uint32_t i = 0; i < 20; i++)
            prompt[i] = (int32_t)(rng_u64(seed + r, i) % VOCABULARY);
        machine_request q = {.tokens = prompt, .n_tokens = 1 + 4 * r, .max_tokens = TOKENS, .top_p = 1};
        if (r + 1 == REQUESTS) {
            q.host_samples = true;
            q.logits = out->logits;
        }
        check_ok(&b->cx, machine_submit(&b->cx, m, &q, &ids[r]));
    }
    while (open) {
        rt_token got[8];
        uint32_t k;
        check_ok(&b->cx, machine_drain(&b->cx, m, got, 8, 5000000000u, &k));
        assert_true(k > 0);
        for (uint32_t i = 0; i < k; i++)
            for (uint32_t r = 0; r < REQUESTS; r++) {
                if (got[i].id != ids[r])
                    continue;
                if (got[i].token >= 0 && n[r] < TOKENS)
                    out->tokens[r][n[r]++] = got[i].token;
                else if (got[i].reason == RT_GOING)
                    machine_cancel(m, ids[r]); /* its logits are there */
                open -= got[i].reason != RT_GOING;
            }
    }
}

static void test_requests(void **state)
{
    (void)state;
    static answers here, there, again;
    bed *b = calloc(1, sizeof *b);
    server s = {.bed = b};
    machine *cpu;
    b->fake = fake_cuda_start(settings);
    make_model(b);
    cuda_weight *made_up = arena_alloc(&b->a, b->image.n_weights, sizeof *made_up);
    for (uint32_t i = 0; i < b->image.n_weights; i++)
        made_up[i].dtype = b->image.weights[i].dtype;
    cuda_options o = {.code = "\177ELF of the kernel", .code_bytes = 18};
    cuda_weights w = {.at = made_up, .seed = seed};
    check_ok(&b->cx, cuda_start(&b->cx, &b->image, &w, &o, &b->m));
    bind_server(&s);
    b->fake->kernel(run_server, &s);
    ask(b, b->m, &there);
    assert_true(s.launches > 1 && s.steps > TOKENS); /* it rested between requests */
    ask(b, b->m, &again);
    b->fake->kernel(NULL, NULL);
    check_ok(&b->cx, cpu_start(&b->cx, &b->image, s.weights, &(cpu_options){.no_fast_bodies = true}, &cpu));
    ask(b, cpu, &here);
    machine_stop(cpu);
    assert_memory_equal(&here, &there, sizeof here);
    assert_memory_equal(&here, &again, sizeof here);
    tear_down(b);
}

int main(void)
{
    seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_starts_and_stops), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_every_failure),    cmocka_unit_test(test_every_failure_of_the_baseline),
        cmocka_unit_test(test_entries),          cmocka_unit_test(test_entries_by_operator),
        cmocka_unit_test(test_tensors),          cmocka_unit_test(test_life),
        cmocka_unit_test(test_lost_gpu),         cmocka_unit_test(test_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
