/* cuda_test.c - the machine on a GPU against a stand-in for the driver (tests/fake_cuda.h): everything but the kernel.
 *
 * Memory is planned and refused, each call of the driver fails once and nothing leaks, entries say what the image says,
 * tensors come back as they were written, a kernel that rests, faults or dies is noticed, and a program in its caller's
 * memory is launched once for each call with the addresses that the call says.
 */
#include "check.h"

#include "base/rng.h"
#include "cuda/cuda_machine.h"
#include "fake_cuda.h"
#include "pass/pass.h"

static const char settings[] = "capability:90,sms:6,memory:67108864";
static const char program[] = "input %x : f32[4, 64] live=tokens\n"
                              "const %w : bf16[96, 64]\n"
                              "const %v : bf16[64, 96]\n"
                              "%h = linear(%x, %w)\n"
                              "%g = silu(%h)\n"
                              "%y = linear(%g, %v)\n"
                              "%z = add(%y, %x)\n"
                              "output %z\n";
static const char products[] = "input %x : bf16[4, 256]\n"
                               "state %s : bf16[4, 96]\n"
                               "const %w : bf16[96, 256]\n"
                               "const %b : bf16[96]\n"
                               "%y = linear(%x, %w, _, _, %b)\n"
                               "%z = mul(%y, %s)\n"
                               "%u = slice_scatter(%s, %z) {starts = [0, 0], stops = [4, 96], in_place = 1}\n"
                               "%r = copy(%z)\n"
                               "output %r\n";
static const char caches[] = "input %q : bf16[2, 2, 64] live=tokens\n"
                             "state %k : bf16[3, 2, 16, 64]\n"
                             "state %v : bf16[3, 2, 16, 64]\n"
                             "input %p : i32[2] live=tokens\n"
                             "input %s : i32[2] live=tokens\n"
                             "input %t : i32[2, 3]\n"
                             "%y = attention(%q, %k, %v, %p, %s, %t)\n"
                             "output %y\n";

/* The same with pages that the body for many tokens takes. */
static const char long_pages[] = "input %q : bf16[2, 2, 64] live=tokens\n"
                                 "state %k : bf16[5, 2, 64, 64]\n"
                                 "state %v : bf16[5, 2, 64, 64]\n"
                                 "input %p : i32[2] live=tokens\n"
                                 "input %s : i32[2] live=tokens\n"
                                 "input %t : i32[2, 3]\n"
                                 "%y = attention(%q, %k, %v, %p, %s, %t)\n"
                                 "output %y\n";

/* Products one behind the other, as a model's layers; what the first reads is made by an operator that does not carry.
 */
static const char chain[] = "input %t : bf16[4, 256] live=tokens\n"
                            "const %a : bf16[512, 256]\n"
                            "const %b : bf16[256, 512]\n"
                            "const %c : bf16[512, 256]\n"
                            "const %d : bf16[512, 256]\n"
                            "%x = silu(%t)\n"
                            "%h = linear(%x, %a)\n"
                            "%i = linear(%h, %b, _, _, _, _, _, _, %x)\n"
                            "%j = linear(%i, %c, %d) {glu = \"silu\"}\n"
                            "%k = linear(%j, %b, _, _, _, _, _, _, %i)\n"
                            "%y = linear(%k, %a)\n"
                            "output %y\n";

/* Experts behind products, as in a layer of a mixture: ids and weights come from logits.  And a product behind them. */
#define EXPERTS                             \
    "input %t : bf16[4, 256] live=tokens\n" \
    "const %a : bf16[256, 256]\n"           \
    "const %r : bf16[48, 256]\n"            \
    "const %g : bf16[48, 96, 256]\n"        \
    "const %u : bf16[48, 96, 256]\n"        \
    "%x = silu(%t)\n"                       \
    "%h = linear(%x, %a)\n"                 \
    "%l = linear(%h, %r)\n"                 \
    "%e, %w = route(%l) {experts = 4}\n"    \
    "%i = expert_linear(%x, %e, %g, %u) {glu = \"silu\"}\n"
static const char routed[] = EXPERTS "output %i\n";
static const char mixture[] = EXPERTS "const %d : bf16[48, 256, 96]\n"
                                      "const %b : bf16[512, 256]\n"
                                      "%j = expert_linear(%i, %e, %d, _, %w, %h)\n"
                                      "%y = linear(%j, %b)\n"
                                      "output %y\n";

typedef struct bed {
    mpk_context cx;
    arena a;
    const fake_cuda_face *fake;
    tg_program program;
    program_image image;
    machine_weight weights[8];
    str code, call_code;
    machine *m;
} bed;

static uint64_t seed;

/* What cuda_compile would give for an image. */
static str fake_code(mpk_context *cx, arena *a, const program_image *image, gen_whole whole)
{
    gen_source source;
    static const char elf[] = "\177ELF of the kernel";
    char *code = arena_alloc(a, 1, sizeof(cuda_code_head) + 2 * sizeof elf);
    gen_arch arch = *gen_arch_find("sm_90a");
    check_ok(cx, gen_source_of_image(cx, a, image, &arch, whole, &source));
    uint32_t shared = arch.n_pages * arch.page_bytes + source.scratch_bytes + 8192; /* the worker's own */
    if (shared > arch.shared_bytes) {                                               /* pages give way to scratch */
        arch.n_pages -= (shared - arch.shared_bytes + arch.page_bytes - 1) / arch.page_bytes;
        check_ok(cx, gen_source_of_image(cx, a, image, &arch, whole, &source));
    }
    cuda_code_head head = cuda_head_of(source.text, sizeof elf);
    memcpy(code, &head, sizeof head);
    memcpy(code + sizeof head, elf, sizeof elf);
    memcpy(code + sizeof head + sizeof elf, elf, sizeof elf);
    return (str){code, sizeof head + 2 * sizeof elf};
}

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
    check_ok(&b->cx, image_make(&b->cx, &b->a, &b->program, &b->image));
    b->code = fake_code(&b->cx, &b->a, &b->image, GEN_KERNEL);
    b->call_code = fake_code(&b->cx, &b->a, &b->image, GEN_CALL);
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

static mpk_status start_with(bed *b, cuda_options o)
{
    str code = o.mode == CUDA_CALLS ? b->call_code : b->code;
    o.code = code.at;
    o.code_bytes = code.n;
    o.stall_ns = 1000000;
    machine_weights w = {.at = b->weights, .seed = seed};
    b->m = NULL;
    return cuda_start(&b->cx, &b->image, &w, &o, &b->m);
}

static mpk_status start_as(bed *b, cuda_mode mode)
{
    return start_with(b, (cuda_options){.mode = mode});
}

static mpk_status start(bed *b)
{
    return start_as(b, CUDA_PERSISTENT);
}

/* A weight whose entries are no neighbours on the host is one behind the other on the GPU. */
static void test_weight_in_parts(void **state)
{
    (void)state;
    enum { ROWS = 1000, COLUMNS = 1100 }; /* more than a piece of an upload: one ends inside an entry */
    bed *b =
        set_up("input %x : f32[3, 4, 1000]\nconst %w : f32[3, 1000, 1100]\n%y = batch_matmul(%x, %w)\noutput %y\n");
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
        assert_memory_equal(found + (int64_t)i * ROWS * COLUMNS, parts[i], sizeof(float) * ROWS * COLUMNS);
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
    assert_non_null(machine_body_of(b->m, 0, 0));
    tear_down(b);
}

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

/* What is planned without a GPU is what a start then allocates: a byte less is refused, and that much is gone after it
 * but for what was only on its way. */
static void test_memory_plan(void **state)
{
    (void)state;
    const cuda_mode modes[] = {CUDA_PERSISTENT, CUDA_GRAPH};
    for (int i = 0; i < 2; i++) {
        bed *b = set_up(chain);
        uint64_t free_bytes, all;
        char words[96];
        cuda_memory plan;
        check_ok(&b->cx, cuda_plan_memory(&b->cx, &b->image, gen_arch_find("sm_90a"), &(cuda_options){.mode = modes[i]},
                                          &plan));
        assert_int_equal(plan.carried_bytes != 0, modes[i] == CUDA_PERSISTENT);
        snprintf(words, sizeof words, "capability:90,sms:6,memory:%llu", (unsigned long long)plan.total_bytes - 1);
        setenv("MPK_FAKE_CUDA", words, 1);
        check_fails(&b->cx, MPK_ELIMIT, "of the GPU's memory", start_as(b, modes[i]));
        setenv("MPK_FAKE_CUDA", settings, 1);
        check_ok(&b->cx, start_as(b, modes[i]));
        check_ok(&b->cx, cuda_memory_available(&b->cx, cuda_of(b->m)->gpu, &free_bytes, &all));
        assert_int_equal(all - free_bytes - 2 * 256, plan.total_bytes - plan.staging_bytes); /* 256: of each module */
        tear_down(b);
    }
}

/* A kernel that does not wait for the one before must not start early. */
static void test_no_early_launches(void **state)
{
    (void)state;
    bed *b = set_up(program);
    const char *const others[] = {"capability:80,sms:6,memory:67108864", "capability:120,sms:6,memory:67108864"};
    b->code.at = NULL;
    for (int i = 0; i < 2; i++) {
        setenv("MPK_FAKE_CUDA", others[i], 1);
        check_fails(&b->cx, MPK_EUNSUPPORTED, "use --mode=graph", start_as(b, CUDA_GRAPH_PDL));
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

static void test_every_failure_of_calls(void **state)
{
    (void)state;
    fail_everything(CUDA_CALLS);
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

/* ---- carriers ---- */

/* A quiet task reads only what is carried, what was there before the step, and what is there before the gate. */
static void check_quiet(const bed *b, const cuda_flow *flow, const rt_entry *e, uint32_t op_number)
{
    const ir_op *op = &b->image.ir[0]->ops.at[op_number];
    assert_true(op_number > flow->gate && op_number < flow->end);
    for (uint32_t i = 0; i < op->n_in; i++) {
        if (op->in[i] == IR_NONE)
            continue;
        const ir_tensor *t = &b->image.ir[0]->tensors.at[op->in[i]];
        const bool carried = flow->is_carried[op->in[i]];
        assert_int_equal(e->carried >> i & 1, carried);
        assert_true(carried || t->producer == IR_NONE || t->producer < flow->gate);
        if (carried)
            assert_int_equal(e->at[i], cuda_of(b->m)->carried_block + flow->at[op->in[i]]);
    }
}

/* One worker's list: it waits for the gate before its first quiet task, clears once and by a counter, and what reads
 * carried words before that triggers when it is through. */
static uint32_t check_worker(const bed *b, const cuda_flow *flow, const rt_entry *e, uint32_t n)
{
    const rt_graph *g = image_table(b->image.block, RT_GRAPHS);
    uint32_t n_quiet = 0, n_clears = 0;
    bool waited = false;
    for (uint32_t i = 0; i < n; i++) {
        waited = waited || (!e[i].quiet && e[i].depends == g->first_event + flow->event);
        n_clears += e[i].clears;
        n_quiet += e[i].quiet;
        assert_false(e[i].clears && e[i].quiet);
        assert_true(!e[i].clears || i == 0 || e[i - 1].is_last);
        if (e[i].quiet) {
            assert_true(waited && n_clears == 0);
            check_quiet(b, flow, &e[i], e[i].op - g->first_op);
        }
    }
    assert_int_equal(n_clears, 1);
    return n_quiet;
}

/* Of what quiet tasks write nothing lies in memory that is reused, nor in that of another tensor. */
static void check_own_memory(const cuda_machine *m, const ir_graph *ir)
{
    const cuda_flow *flow = &m->carriers.flows[0];
    for (ir_tensor_id i = 0; i < ir->tensors.n; i++) {
        const ir_tensor *t = &ir->tensors.at[i];
        if (t->producer <= flow->gate || t->producer >= flow->end || t->kind != IR_TEMP || tg_root(ir, i) != i)
            continue;
        assert_int_not_equal(flow->at[i], CUDA_IN_AREA);
        assert_true(flow->at[i] + (uint64_t)ir_bytes(t) <= m->carriers.n_bytes);
        assert_true(flow->is_carried[i] == (flow->at[i] < m->carriers.n_carried));
        for (ir_tensor_id k = 0; k < i; k++)
            assert_true(flow->at[k] == CUDA_IN_AREA ||
                        flow->at[k] + (uint64_t)ir_bytes(&ir->tensors.at[k]) <= flow->at[i]);
    }
}

/* Of the operators between the gate and the end there are at least n_quiet tasks. */
static void check_carriers(const char *source, cuda_mode mode, uint32_t least_quiet)
{
    bed *b = set_up(source);
    for (uint32_t i = 0; i < b->image.n_weights && mode == CUDA_CALLS; i++)
        b->weights[i].at = (const void *)(uintptr_t)(0x100000 * (i + 1));
    check_ok(&b->cx, start_as(b, mode));
    const cuda_machine *m = cuda_of(b->m);
    const cuda_flow *flow = &m->carriers.flows[0];
    const ir_graph *ir = b->image.ir[0];
    const rt_entry *entries = table(b, m->layout.entries);
    const rt_u32 *first = table(b, m->layout.first_entry), *first_clear = table(b, m->layout.first_clear);
    const rt_clear *clears = table(b, m->layout.clears);
    assert_int_equal(flow->end, ir->ops.n - 1);
    uint32_t n_quiet = 0;
    for (uint32_t w = 0; w < 6; w++)
        n_quiet += check_worker(b, flow, &entries[first[w]], first[w + 1] - first[w]);
    assert_true(n_quiet >= least_quiet);
    uint64_t cleared = 0, carried = 0;
    for (uint32_t i = first_clear[0]; i < first_clear[6]; i++) {
        assert_in_range(clears[i].at, m->carried_block, m->carried_block + m->carriers.n_bytes - 1);
        cleared += (uint64_t)clears[i].n_rows * clears[i].n_units * clears[i].unit_bytes;
    }
    for (ir_tensor_id i = 0; i < ir->tensors.n; i++)
        if (flow->is_carried[i])
            carried += (uint64_t)ir_bytes(&ir->tensors.at[i]);
    assert_true(carried > 0);
    assert_int_equal(cleared, carried); /* each byte once: tasks of an operator are disjoint and cover its result */
    check_own_memory(m, ir);
    tear_down(b);
}

static void test_carriers(void **state)
{
    (void)state;
    check_carriers(chain, CUDA_PERSISTENT, 12); /* two products at least, on every worker */
    check_carriers(chain, CUDA_CALLS, 12);
    check_carriers(routed, CUDA_PERSISTENT, 1);
}

static bool is_carried(const bed *b, const char *name)
{
    const ir_tensor_id id = ir_find(b->image.ir[0], name);
    assert_int_not_equal(id, IR_NONE);
    return cuda_of(b->m)->carriers.flows[0].is_carried[id];
}

/* Logits are carried to the router, and ids and weights to the experts: so is all that a layer computes. */
static void test_carried_experts(void **state)
{
    (void)state;
    static const char *const names[] = {"h", "l", "e", "w", "i"};
    bed *b = set_up(routed);
    check_ok(&b->cx, start(b));
    assert_true(is_carried(b, "h") && is_carried(b, "l"));
    assert_false(is_carried(b, "e") || is_carried(b, "i")); /* the last operator reads or writes them */
    tear_down(b);
    b = set_up(mixture);
    check_ok(&b->cx, start(b));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(is_carried(b, names[i]));
    tear_down(b);
    check_carriers(mixture, CUDA_PERSISTENT, 12);
}

/* Where nothing can be carried, where kernels end between operators, and where it is not wanted, counters do it all. */
static void test_no_carriers(void **state)
{
    (void)state;
    static const struct {
        const char *program;
        cuda_options options;
    } cases[] = {
        {program, {.mode = CUDA_PERSISTENT}},
        {chain, {.mode = CUDA_GRAPH}},
        {chain, {.mode = CUDA_PERSISTENT, .no_carriers = true}},
    };
    for (int i = 0; i < 3; i++) {
        bed *b = set_up(cases[i].program);
        cuda_memory plan;
        check_ok(&b->cx, cuda_plan_memory(&b->cx, &b->image, gen_arch_find("sm_90a"), &cases[i].options, &plan));
        assert_int_equal(plan.carried_bytes, 0);
        check_ok(&b->cx, start_with(b, cases[i].options));
        const cuda_machine *m = cuda_of(b->m);
        const rt_entry *entries = table(b, m->layout.entries);
        assert_int_equal(m->carriers.n_bytes, 0);
        for (uint64_t k = 0; k < m->layout.n_tasks; k++)
            assert_int_equal(entries[k].quiet + entries[k].carried + entries[k].clears, 0);
        tear_down(b);
    }
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
}

static void test_profile(void **state)
{
    (void)state;
    bed *b = set_up(program);
    machine_times times[8];
    machine_profile profile = {.times = times};
    check_ok(&b->cx, start(b));
    check_fails(&b->cx, MPK_EARG, "with a profile", machine_read_profile(&b->cx, b->m, 0, &profile));
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
        assert_true(times[k].n_tasks && times[k].wait == 26 && times[k].body == 100 && times[k].longest == 100 &&
                    times[k].trigger == 5);
    assert_true(n > 0 && n <= e.n_tasks);
    assert_int_equal(profile.to_host.n, RT_DELAYS);
    assert_int_equal(profile.to_host.median_ns, 4 * (2 + RT_DELAYS / 2));
    assert_int_equal(profile.to_host.most_ns, 4 * (RT_DELAYS + 1));
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

/* ---- calls ---- */

enum { SLOTS = 5 };
static const char *const slot_names[SLOTS] = {"x", "s", "w", "b", "r"};

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
        ((rt_u64 *)(uintptr_t)k->entries)[u->word] = c->addresses[1 + u->slot] + u->offset;
    }
}

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

static void run_call(void *user, const fake_launch *l)
{
    call_bed *c = user;
    if (strcmp(l->function, "mpk_pack") == 0) {
        assert_int_equal(l->argument, c->data[2]); /* its first member: from where */
        c->packs++;
        return;
    }
    const rt_kernel *k = (const rt_kernel *)(uintptr_t)l->argument;
    assert_true(l->cooperative && l->from_graph && k->call.is_one && l->n_blocks == 6);
    move_addresses(k);
    check_called(c, k);
    c->runs++;
    if (c->faults) {
        *k->host_fault = (rt_fault){.kind = RT_STALL, .worker = 3, .task = 1, .event = 2, .seen = 4, .needed = 5};
        rt_store_release_system(k->host_state, RT_FAULTED);
    }
}

static void set_up_calls(call_bed *c, machine_slots **slots)
{
    c->b = set_up(products);
    for (uint32_t i = 0; i < c->b->image.n_weights; i++)
        c->b->weights[i].at = (const void *)(uintptr_t)(0x100000 * (i + 1));
    for (int i = 0; i < SLOTS; i++) {
        c->roots[i] = ir_find(c->b->image.ir[0], slot_names[i]);
        assert_int_not_equal(c->roots[i], IR_NONE);
    }
    check_ok(&c->b->cx, start_as(c->b, CUDA_CALLS));
    check_ok(&c->b->cx, machine_make_slots(&c->b->cx, c->b->m, &c->b->a, 0, SLOTS, c->roots, slots));
    c->b->fake->kernel(run_call, c);
}

static mpk_status call_with(call_bed *c, machine *after, machine_slots *slots, void *stream, const uint64_t *data)
{
    void *addresses[SLOTS];
    c->data = data;
    for (int i = 0; i < SLOTS; i++)
        addresses[i] = (void *)(uintptr_t)data[i];
    return machine_launch_slots(&c->b->cx, c->b->m, after, slots, stream, addresses);
}

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
    check_ok(&c.b->cx, call_with(&c, NULL, slots, NULL, data[0])); /* nothing has changed: one launch, and no more */
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
    check_ok(&c.b->cx, cuda_stream_create(&c.b->cx, m->gpu, &stream));
    unsigned waits = c.b->fake->calls("cuStreamWaitEvent"), records = c.b->fake->calls("cuEventRecord");
    check_ok(&c.b->cx, call_with(&c, NULL, slots, stream, data));
    check_ok(&c.b->cx, call_with(&c, other.b->m, slots, stream, data)); /* which was never launched */
    assert_int_equal(c.b->fake->calls("cuStreamWaitEvent"), waits);
    assert_int_equal(c.b->fake->calls("cuEventRecord"), records + 2); /* behind each run on a stream that may go */
    check_ok(&other.b->cx, call_with(&other, c.b->m, other_slots, NULL, data));
    assert_int_equal(c.b->fake->calls("cuStreamWaitEvent"), waits + 1);
    check_ok(&c.b->cx, call_with(&c, NULL, slots, NULL, data)); /* its own last run was on another stream */
    assert_int_equal(c.b->fake->calls("cuStreamWaitEvent"), waits + 2);
    check_ok(&c.b->cx, call_with(&c, other.b->m, slots, NULL, data));
    assert_int_equal(c.b->fake->calls("cuEventRecord"), records + 2); /* the default stream has none... */
    check_ok(&c.b->cx, call_with(&c, other.b->m, slots, stream, data));
    assert_int_equal(c.b->fake->calls("cuStreamWaitEvent"), waits + 4);
    assert_int_equal(c.b->fake->calls("cuEventRecord"), records + 5); /* ...until another follows, or somebody waits */
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

static void test_wrong_calls(void **state)
{
    (void)state;
    call_bed c = {0};
    machine_slots *slots;
    char bytes[4 * 256 * 2] = {0};
    uint64_t data[SLOTS] = {0x10000, 0x20000, 0x30000, 0x40000, 0x50000};
    set_up_calls(&c, &slots);
    mpk_context *cx = &c.b->cx;
    check_fails(cx, MPK_EUNSUPPORTED, "mpk_program_launch", machine_write_tensor(cx, c.b->m, 0, c.roots[0], bytes));
    check_fails(cx, MPK_EUNSUPPORTED, "mpk_program_launch", machine_run_graph(cx, c.b->m, 0, 4, 4));
    machine_slots *few;
    check_fails(cx, MPK_EARG, "tensor r has no slot", machine_make_slots(cx, c.b->m, &c.b->a, 0, 4, c.roots, &few));
    c.faults = true;
    check_ok(cx, call_with(&c, NULL, slots, NULL, data)); /* nobody has waited for it */
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

/* The matrices of a decoder of `layers` layers and its LM head, in bf16; keys: columns of k and v together. */
static cuda_weight_plan decoder(cuda_packed *packed, uint64_t hidden, uint64_t ffn, uint64_t queries, uint64_t keys,
                                uint64_t layers)
{
    cuda_weight_plan plan = {.packed = {.at = packed}};
    for (uint64_t i = 0; i < layers; i++) {
        packed[plan.packed.n++].n_bytes = 2 * hidden * (queries + keys);
        packed[plan.packed.n++].n_bytes = 2 * hidden * queries;
        packed[plan.packed.n++].n_bytes = 4 * hidden * ffn;
        packed[plan.packed.n++].n_bytes = 2 * hidden * ffn;
    }
    packed[plan.packed.n++].n_bytes = 2 * hidden * 151936;
    return plan;
}

static const uint64_t H100_BYTES_S = 3352320000000;

/* What was the fastest of 1 to 5 pages on an H100 (docs/attempts.md). */
static void test_pages_in_flight_measured(void **state)
{
    static const struct {
        uint64_t hidden, ffn, queries, keys, layers;
        uint32_t pages;
    } models[] = {{1024, 3072, 2048, 2048, 28, 2},   /* Qwen3-0.6B */
                  {2048, 6144, 2048, 2048, 28, 2},   /* Qwen3-1.7B */
                  {2048, 8192, 2048, 1024, 16, 3},   /* Llama-3.2-1B */
                  {4096, 12288, 4096, 2048, 36, 3}}; /* Qwen3-8B */
    const gen_arch *arch = gen_arch_find("sm_90a");
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        cuda_packed packed[4 * 36 + 1] = {0};
        cuda_weight_plan plan =
            decoder(packed, models[m].hidden, models[m].ffn, models[m].queries, models[m].keys, models[m].layers);
        assert_int_equal(cuda_weights_in_flight(&plan, 132, H100_BYTES_S, arch), models[m].pages);
    }
}

/* Of any GPU: two pages at least, the ring at most, more with more bandwidth for a worker or smaller pages, and one more
 * where tasks are long. */
static void test_pages_in_flight_rules(void **state)
{
    (void)state;
    cuda_packed few[5] = {0}, many[5] = {0};
    cuda_weight_plan none = {0}, small = decoder(few, 64, 64, 64, 64, 1),
                     large = decoder(many, 8192, 32768, 8192, 0, 1);
    gen_arch arch = *gen_arch_find("sm_90a");
    assert_int_equal(cuda_weights_in_flight(&none, 132, 0, &arch), 2); /* a driver that does not say */
    uint32_t last = 2;
    for (uint64_t bytes_s = H100_BYTES_S; bytes_s < 64 * H100_BYTES_S; bytes_s += H100_BYTES_S / 2) {
        uint32_t pages = cuda_weights_in_flight(&small, 132, bytes_s, &arch);
        uint64_t wanted = (bytes_s / 132 * 800 / 1000000000 + arch.page_bytes - 1) / arch.page_bytes;
        assert_true(pages >= last && pages <= arch.n_pages);
        assert_int_equal(pages, wanted < 2 ? 2 : wanted < arch.n_pages ? wanted : arch.n_pages);
        assert_int_equal(cuda_weights_in_flight(&large, 132, bytes_s, &arch),
                         pages < arch.n_pages ? pages + 1 : arch.n_pages);
        last = pages;
    }
    assert_int_equal(last, arch.n_pages);
    assert_true(cuda_weights_in_flight(&small, 33, H100_BYTES_S, &arch) >
                cuda_weights_in_flight(&small, 132, H100_BYTES_S, &arch));
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
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_order_of_calls),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_entries),
        cmocka_unit_test(test_carriers),
        cmocka_unit_test(test_carried_experts),
        cmocka_unit_test(test_no_carriers),
        cmocka_unit_test(test_entries_by_operator),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_lost_gpu),
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_pages_in_flight_measured),
        cmocka_unit_test(test_pages_in_flight_rules),
        cmocka_unit_test(test_sizes_of_caches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
