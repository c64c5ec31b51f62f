/* cuda_serve_test.c - requests on the GPU's machine, against a stand-in for the driver
 * (tests/fake_cuda.h), with the kernel's work done by the runtime's step task and the operators'
 * reference code: the same answers as the CPU's, bit for bit, through the books, the mailbox,
 * pinned logits, masks, drafts, a kernel that rests and is started again, and kernels of two
 * regimes that hand over to each other. */
#include "check.h"

#include "ir/op.h"
#include "load/load.h"
#include "rt/rt_step.h"
#include "serve_bed.h"

typedef struct server {
    arena *a;
    const program_image *image;
    void **data[SERVE_GRAPHS]; /* [graph][tensor] */
    void *weights[64];
    machine *on;
    _Atomic unsigned launches, steps, handed_over;
    bool may_overlap;  /* CUDA_GRAPH_PDL */
    unsigned in_graph; /* the baseline's kernels so far of the graph that runs */
    unsigned wrong;    /* that were launched early and should not, or the other way round */
} server;

static void run_op(server *s, const rt_machine *m, uint32_t g, uint32_t k)
{
    const ir_graph *ir = s->image->ir[g];
    const ir_op *op = &ir->ops.at[k];
    if (op->def->flags & OP_VIEW && ir->tensors.at[op->out[0]].shares != IR_NONE)
        return;
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

static void run_step(server *s, const rt_machine *m)
{
    rt_u32 g = rt_word_graph(m->control->step.value);
    for (uint32_t k = 0; k < s->image->ir[g]->ops.n; k++)
        run_op(s, m, g, k);
    s->steps++;
}

/* The baseline's kernels: one operator, or the step task.  All but the first of a graph may start
 * early. */
static void run_alone(server *s, rt_kernel *k, const cuda_machine *on, bool early)
{
    s->wrong += early != (s->may_overlap && s->in_graph > 0);
    s->in_graph = k->mode == RT_ONE_OP ? s->in_graph + 1 : 0;
    const rt_graph *graphs = image_table(s->image->block, RT_GRAPHS);
    uint64_t op = ((uint64_t)(uintptr_t)k - on->table_block - on->layout.op_kernels) / sizeof *k;
    if (k->mode == RT_ONE_OP) {
        run_op(s, &k->machine, k->graph, (uint32_t)(op - graphs[k->graph].first_op));
        return;
    }
    k->machine.workers[0].owner = 1;
    s->steps += rt_step_poll(&k->machine, &k->machine.workers[0]) != 0;
}

/* Run the step that was published, if this kernel's regime is its graph's; false: it hands over
 * (role/regime.cuh). */
static bool run_own_step(server *s, rt_kernel *k, rt_u32 regime)
{
    const rt_u64 step = k->machine.control->step.value;
    if (k->regimes[rt_word_graph(step)] != regime) {
        rt_store_release_system(k->host_regime, k->regimes[rt_word_graph(step)]);
        rt_store_release_system(k->host_left, rt_load_acquire_system(k->host_left) + 1);
        s->handed_over++;
        return false;
    }
    run_step(s, &k->machine);
    k->start_step = step;
    return true;
}

/* A life of the kernel: until there is nothing to do, or only for the other. */
static void run_server(void *user, const fake_launch *l)
{
    server *s = user;
    rt_kernel *k = (rt_kernel *)(uintptr_t)l->argument;
    if (strcmp(l->function, "mpk_kernel") != 0)
        return;
    rt_machine *m = &k->machine;
    s->launches++;
    if (k->mode != RT_SERVE) {
        run_alone(s, k, cuda_of(s->on), l->early);
        return;
    }
    /* the host counts a kernel when it is on the stream: this one runs before */
    const rt_u32 regime =
        (cuda_of(s->on)->first_regime + cuda_of(s->on)->queued) % cuda_of(s->on)->source.n_regimes;
    if (rt_load_acquire_system(&m->control->abort) != RT_RUNNING)
        return; /* it had waited behind one that has come to rest */
    if (m->control->step.value != k->start_step && !run_own_step(s, k, regime))
        s->wrong++; /* the one before has handed over to it */
    for (;;) {
        carry_asks(k);
        m->workers[0].owner = 1;
        int published = rt_step_poll(m, &m->workers[0]);
        carry_tokens(k);
        if (!published)
            break;
        if (!run_own_step(s, k, regime))
            return;
    }
    rt_store_release_system(k->host_regime, regime);
    rt_store_release_system(&m->control->abort, RT_STOPPING);
    rt_store_release_system(k->host_state, RT_STOPPING);
}

static void bind_server(server *s, machine *on)
{
    const cuda_machine *m = cuda_of(on);
    s->on = on;
    assert_true(s->image->n_weights <= 64);
    for (uint32_t i = 0; i < s->image->n_weights; i++) {
        const tg_weight *w = &s->image->weights[i];
        int64_t n = 1;
        for (uint32_t d = 0; d < w->rank; d++)
            n *= w->dims[d];
        s->weights[i] = arena_alloc(s->a, (size_t)n, 4);
        load_random_fill(seed, w->name, w->dtype, 0, n, s->weights[i]);
    }
    for (uint32_t g = 0; g < s->image->n_graphs; g++) {
        const ir_graph *ir = s->image->ir[g];
        s->data[g] = arena_alloc(s->a, ir->tensors.n, sizeof(void *));
        for (ir_tensor_id t = 0; t < ir->tensors.n; t++) {
            const tg_place *p = &s->image->places[g][t];
            char *root = p->area == TG_WEIGHTS ? s->weights[p->offset]
                                               : (char *)(uintptr_t)(m->areas[p->area] + p->offset);
            s->data[g][t] = root + ir_row_bytes(ir->tensors.at[t].dtype, ir->tensors.at[t].offset);
        }
    }
}

/* A request alone that may say one token only, which is its prompt too: its drafts stand. */
static void say_again(mpk_context *cx, machine *m)
{
    static const int32_t record[] = {[RULES_REPETITION] = 0x3f800000,
                                     [RULES_TYPICAL] = 0x3f800000,
                                     [RULES_ALLOWED] = 1,
                                     [RULES_LISTS] = 7};
    const int32_t prompt[3] = {7, 7, 7};
    const machine_request q = {.tokens = prompt,
                               .n_tokens = 3,
                               .max_tokens = TOKENS,
                               .top_p = 1,
                               .rules = record,
                               .n_rules = RULES_LISTS + 1,
                               .drafts = 4};
    rt_token t = {.reason = RT_GOING};
    uint64_t id;
    uint32_t n;
    check_ok(cx, machine_submit(cx, m, &q, &id));
    for (uint32_t i = 0; t.reason == RT_GOING; i++) {
        check_ok(cx, machine_drain(cx, m, &t, 1, 5000000000u, &n));
        assert_true(n == 1 && t.id == id && t.token == 7 && t.index == i);
    }
}

/* draft_tokens: of a step with drafts; 0: none is tried. */
static void serve_as(cuda_mode mode, serve_model of, uint32_t draft_tokens)
{
    static answers here, there, again;
    mpk_context cx = {0};
    arena a = {0};
    tg_program program;
    program_image image;
    server s = {.a = &a, .image = &image, .may_overlap = mode == CUDA_GRAPH_PDL};
    machine *gpu, *cpu;
    char words[256];
    const fake_cuda_face *fake = fake_cuda_start("capability:90,sms:6,memory:67108864");
    assert_non_null(fake);
    make_model(&cx, &a, of, &program, &image);
    machine_weight *made_up = arena_alloc(&a, image.n_weights, sizeof *made_up);
    for (uint32_t i = 0; i < image.n_weights; i++)
        made_up[i].dtype = image.weights[i].dtype;
    str code = fake_code(&cx, &a, &image, GEN_KERNEL);
    cuda_options o = {.code = code.at,
                      .code_bytes = code.n,
                      .mode = mode,
                      .draft_tokens = draft_tokens,
                      .gram_tokens = !of.has_draft,
                      .drafts_freely = rng_u64(seed, 5) % 2};
    machine_facts facts;
    machine_weights w = {.at = made_up, .seed = seed};
    check_ok(&cx, cuda_start(&cx, &image, &w, &o, &gpu));
    bind_server(&s, gpu);
    fake->kernel(run_server, &s);
    ask(&cx, gpu, &there);
    assert_true(s.launches > 1 && s.steps > TOKENS); /* it rested between requests */
    assert_int_equal(s.handed_over != 0,
                     cuda_of(gpu)->source.n_regimes > 1 && mode == CUDA_PERSISTENT);
    ask(&cx, gpu, &again);
    say_again(&cx, gpu);
    machine_describe(gpu, &facts);
    assert_true(facts.accepted <= facts.drafted && (facts.accepted != 0) == (draft_tokens != 0));
    assert_int_equal(facts.ahead_drafted, of.has_draft ? facts.drafted : 0);
    assert_int_equal(facts.ahead_accepted, of.has_draft ? facts.accepted : 0);
    assert_true((facts.ahead_steps != 0) == (of.has_draft && draft_tokens));
    fake->kernel(NULL, NULL);
    check_ok(&cx, cpu_start(&cx, &image, s.weights, &(cpu_options){.no_fast_bodies = true}, &cpu));
    ask(&cx, cpu, &here);
    machine_stop(cpu);
    machine_stop(gpu);
    assert_int_equal(s.wrong, 0);
    for (uint32_t r = 1; r < REQUESTS; r += 2)
        for (uint32_t i = 0; i < TOKENS; i++)
            assert_true(there.tokens[r][i] == 0 || may_come(r, i, there.tokens[r][i]));
    assert_memory_equal(&here, &there, sizeof here);
    assert_memory_equal(&here, &again, sizeof here);
    fake->leaks(words, sizeof words);
    assert_string_equal(words, "");
    arena_free(&a);
}

static void test_requests(void **state)
{
    (void)state;
    serve_as(CUDA_PERSISTENT, (serve_model){IR_F32, 8, 1, false, 0}, 0);
}

/* Steps of 1 and of 256 tokens: the second graph is for prompts, and so it has a kernel of its
 * own. */
static void test_requests_of_two_regimes(void **state)
{
    (void)state;
    serve_as(CUDA_PERSISTENT, (serve_model){IR_BF16, 256, 1, false, 0}, 0);
    serve_as(CUDA_GRAPH, (serve_model){IR_BF16, 256, 1, false, 0}, 0);
}

static void test_requests_of_the_baseline(void **state)
{
    (void)state;
    serve_as(CUDA_GRAPH, (serve_model){IR_F32, 8, 1, false, 0}, 0);
    serve_as(CUDA_GRAPH_PDL, (serve_model){IR_F32, 8, 1, false, 0}, 0);
}

/* Drafts change no token. */
static void test_requests_with_drafts(void **state)
{
    (void)state;
    serve_as(CUDA_PERSISTENT, (serve_model){IR_F32, 8, 1, false, 0}, 8);
    serve_as(CUDA_PERSISTENT, (serve_model){IR_F32, 8, 1, false, 0}, 2);
    serve_as(CUDA_GRAPH, (serve_model){IR_F32, 8, 1, false, 0}, 3);
}

/* Nor do those of a draft model, whose steps are of other graphs, and of 256 tokens on another
 * kernel. */
static void test_requests_with_a_draft_model(void **state)
{
    (void)state;
    serve_as(CUDA_PERSISTENT, (serve_model){IR_F32, 8, 1, true, 0}, 8);
    serve_as(CUDA_PERSISTENT, (serve_model){IR_BF16, 256, 1, true, 0}, 3);
    serve_as(CUDA_PERSISTENT, (serve_model){IR_BF16, 256, 1, true, 0}, 0);
    serve_as(CUDA_PERSISTENT, (serve_model){IR_F32, 8, 1, true, 0}, 0);
    serve_as(CUDA_GRAPH, (serve_model){IR_F32, 8, 1, true, 0}, 3);
}

/* Masks of drafts come while the step runs, late, or not at all: no token changes. */
static void test_masked_drafts(void **state)
{
    (void)state;
    serve_as(CUDA_PERSISTENT, (serve_model){IR_F32, 8, 1, false, 3}, 8);
    serve_as(CUDA_PERSISTENT, (serve_model){IR_F32, 8, 1, true, 4}, 8);
    serve_as(CUDA_GRAPH, (serve_model){IR_F32, 8, 1, true, 1}, 3);
}

/* If the baseline cannot launch a step, each request that waits for an answer gets the error. */
static void test_lost_baseline(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    tg_program program;
    program_image image;
    machine *gpu;
    char words[256];
    /* said before the machine's thread is there, which reads it */
    const fake_cuda_face *fake =
        fake_cuda_start("capability:90,sms:6,memory:67108864,fail:cuGraphLaunch:1:700");
    make_model(&cx, &a, (serve_model){IR_F32, 8, 1, false, 0}, &program, &image);
    machine_weight *made_up = arena_alloc(&a, image.n_weights, sizeof *made_up);
    for (uint32_t i = 0; i < image.n_weights; i++)
        made_up[i].dtype = image.weights[i].dtype;
    str code = fake_code(&cx, &a, &image, GEN_KERNEL);
    cuda_options o = {.code = code.at, .code_bytes = code.n, .mode = CUDA_GRAPH};
    machine_weights w = {.at = made_up, .seed = seed};
    check_ok(&cx, cuda_start(&cx, &image, &w, &o, &gpu));
    const int32_t prompt[] = {1, 2, 3};
    machine_request q = {.tokens = prompt, .n_tokens = 3, .max_tokens = TOKENS, .top_p = 1};
    rt_token got[8];
    uint64_t id;
    uint32_t n;
    check_ok(&cx, machine_submit(&cx, gpu, &q, &id));
    check_fails(&cx, MPK_EDEVICE, "cuGraphLaunch",
                machine_drain(&cx, gpu, got, 8, 5000000000u, &n));
    check_fails(&cx, MPK_EDEVICE, "cuGraphLaunch", machine_check(&cx, gpu));
    machine_stop(gpu);
    fake->leaks(words, sizeof words);
    assert_string_equal(words, "");
    arena_free(&a);
}

int main(void)
{
    seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_requests_of_two_regimes),
        cmocka_unit_test(test_requests_of_the_baseline),
        cmocka_unit_test(test_requests_with_drafts),
        cmocka_unit_test(test_requests_with_a_draft_model),
        cmocka_unit_test(test_masked_drafts),
        cmocka_unit_test(test_lost_baseline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
