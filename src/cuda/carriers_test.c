/* carriers_test.c - what is carried: which results, in whose memory, who waits for them and who
 * clears them. */
#include "carried_check.h"
#include "carried_programs.h"
#include "carried_range.h"
#include "cuda_bed.h"

/* The plan is sound, and carries as much as it may; how many tasks are quiet. */
static uint32_t check_plan(const bed *b)
{
    carried_check_range(cuda_of(b->m), 0);
    return carried_check(cuda_of(b->m), 0);
}

/* A quiet task reads only what is carried, what was there before the step, and what is there before
 * the gate. */
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

/* One worker's list: it waits for the gate before its first quiet task, clears once and by a
 * counter, and what reads carried words before that triggers when it is through. */
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

/* Of what quiet tasks write nothing lies in memory that is reused, nor in that of another
 * tensor. */
static void check_own_memory(const cuda_machine *m, const ir_graph *ir)
{
    const cuda_flow *flow = &m->carriers.flows[0];
    for (ir_tensor_id i = 0; i < ir->tensors.n; i++) {
        const ir_tensor *t = &ir->tensors.at[i];
        if (t->producer <= flow->gate || t->producer >= flow->end || t->kind != IR_TEMP ||
            tg_root(ir, i) != i)
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
    const rt_u32 *first = table(b, m->layout.first_entry),
                 *first_clear = table(b, m->layout.first_clear);
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
    check_plan(b);
    /* each byte once: tasks of an operator are disjoint and cover its result */
    assert_int_equal(cleared, carried);
    check_own_memory(m, ir);
    tear_down(b);
}

/* A chain of products carries its results on every worker, in both modes; routed experts carry
 * too. */
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

/* Logits are carried to the router, and ids and weights to the experts: so is all that a layer
 * computes. */
static void test_carried_experts(void **state)
{
    (void)state;
    static const char *const names[] = {"h", "l", "e", "w", "i"};
    bed *b = set_up(routed);
    check_ok(&b->cx, start(b));
    assert_true(is_carried(b, "h") && is_carried(b, "l"));
    /* the last operator reads or writes them */
    assert_false(is_carried(b, "e") || is_carried(b, "i"));
    tear_down(b);
    b = set_up(mixture);
    check_ok(&b->cx, start(b));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(is_carried(b, names[i]));
    tear_down(b);
    check_carriers(mixture, CUDA_PERSISTENT, 12);
}

/* Norms behind products, of whole rows with a residual and of two parts of a row, poll what they
 * read, and what they write is polled: so all of a layer is carried. */
static void test_carried_norms(void **state)
{
    (void)state;
    static const char *const names[] = {"h", "p", "i", "n", "j", "k"};
    static const char normed[] = "input %t : bf16[4, 256] live=tokens\n"
                                 "const %a : bf16[512, 256]\n"
                                 "const %b : bf16[256, 512]\n"
                                 "const %u : bf16[256]\n"
                                 "const %v : bf16[128]\n"
                                 "%x = silu(%t)\n"
                                 "%h = linear(%x, %a)\n"
                                 "%p = rms_norm_parts(%h, %u, %v)\n"
                                 "%i = linear(%p, %b)\n"
                                 "%n = rms_norm(%i, %u, %x)\n"
                                 "%j = linear(%n, %a)\n"
                                 "%k = linear(%j, %b)\n"
                                 "%m = rms_norm(%k, %u, %n)\n"
                                 "%y = linear(%m, %a)\n"
                                 "output %y\n";
    bed *b = set_up(normed);
    check_ok(&b->cx, start(b));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(is_carried(b, names[i]));
    tear_down(b);
    check_carriers(normed, CUDA_PERSISTENT, 12);
}

/* Rows of 3 expert numbers, and of 50 logits, are no whole words of 16 bytes: they are cleared by
 * smaller ones. */
static void test_short_rows(void **state)
{
    (void)state;
    check_carriers(MIXTURE("50", "3", "96"), CUDA_PERSISTENT, 12);
}

/* Logits whose columns are cut at odd places share words between tasks, and rows of an odd number
 * share words with each other, where only the last task ends at an odd place too: they are not
 * carried. */
static void test_torn_results(void **state)
{
    (void)state;
    static const char *const torn[] = {MIXTURE("18", "4", "96"), MIXTURE("17", "4", "96"),
                                       MIXTURE("5", "4", "96"), MIXTURE("7", "1", "96")};
    for (size_t i = 0; i < sizeof torn / sizeof *torn; i++) {
        bed *b = set_up(torn[i]);
        check_ok(&b->cx, start(b));
        const ir_graph *ir = b->image.ir[0];
        const ir_tensor_id l = ir_find(ir, "l");
        const rt_graph *g = image_table(b->image.block, RT_GRAPHS);
        const rt_task *tasks =
            (const rt_task *)image_table(b->image.block, RT_TASKS) + g->first_task;
        bool is_torn = false;
        for (uint32_t t = 0; t < g->n_tasks; t++)
            is_torn = is_torn || (tasks[t].op == ir->tensors.at[l].producer &&
                                  (tasks[t].lo[1] | tasks[t].hi[1]) % 2);
        assert_true(is_torn);
        assert_false(is_carried(b, "l"));
        check_plan(b);
        tear_down(b);
    }
}

/* Columns of experts' first product in shares that begin and end within a word: bodies store whole
 * words, so all is carried, and each word is cleared once. */
static void test_shares_within_words(void **state)
{
    (void)state;
    static const char *const names[] = {"h", "l", "e", "w", "i"};
    static const char shared[] = MIXTURE("48", "4", "40");
    bed *b = set_up(shared);
    check_ok(&b->cx, start(b));
    const ir_graph *ir = b->image.ir[0];
    const rt_graph *g = image_table(b->image.block, RT_GRAPHS);
    const rt_task *tasks = (const rt_task *)image_table(b->image.block, RT_TASKS) + g->first_task;
    bool is_odd = false;
    for (uint32_t t = 0; t < g->n_tasks; t++)
        is_odd = is_odd ||
                 (tasks[t].op == ir->tensors.at[ir_find(ir, "i")].producer && tasks[t].lo[2] % 2);
    assert_true(is_odd);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(is_carried(b, names[i]));
    check_plan(b);
    tear_down(b);
    check_carriers(shared, CUDA_PERSISTENT, 12);
}

/* Only bodies that carry poll: what another body reads, too, is not carried.  Nor does the end have
 * to follow that other reader, which touches no carried word. */
static void test_readers_that_do_not_poll(void **state)
{
    (void)state;
    bed *b = set_up("input %t : bf16[4, 256] live=tokens\n"
                    "const %a : bf16[512, 256]\n"
                    "const %b : bf16[256, 512]\n"
                    "%x = silu(%t)\n"
                    "%h = linear(%x, %a)\n"
                    "%j = linear(%h, %b)\n"
                    "%s = silu(%j)\n"
                    "%k = linear(%j, %a)\n"
                    "%z = linear(%k, %b)\n"
                    "%y = linear(%z, %a)\n"
                    "output %y\n"
                    "output %s\n");
    check_ok(&b->cx, start(b));
    assert_int_equal(cuda_of(b->m)->carriers.flows[0].end, b->image.ir[0]->ops.n - 1);
    assert_true(is_carried(b, "h") && is_carried(b, "k"));
    assert_false(is_carried(b, "j"));
    tear_down(b);
}

/* Each worker that clears does so with a task of the end: an operator of fewer tasks than workers
 * is none. */
static void test_end_has_a_task_for_each_worker(void **state)
{
    (void)state;
    bed *b = set_up("input %t : bf16[4, 256] live=tokens\n"
                    "const %a : bf16[512, 256]\n"
                    "const %b : bf16[256, 512]\n"
                    "const %c : bf16[2, 512]\n"
                    "%x = silu(%t)\n"
                    "%h = linear(%x, %a)\n"
                    "%i = linear(%h, %b)\n"
                    "%y = linear(%i, %a)\n"
                    "%z = linear(%y, %c)\n"
                    "output %z\n");
    check_ok(&b->cx, start(b));
    const rt_graph *g = image_table(b->image.block, RT_GRAPHS);
    const rt_entry *entries = table(b, cuda_of(b->m)->layout.entries);
    const uint32_t end = cuda_of(b->m)->carriers.flows[0].end;
    uint32_t n_clears = 0;
    for (uint64_t k = 0; k < cuda_of(b->m)->layout.n_tasks; k++)
        n_clears += entries[k].clears;
    print_message("the end is operator %u of %zu, %u of 6 workers clear\n", end,
                  b->image.ir[0]->ops.n, n_clears);
    assert_true(g->n_tasks > 6 && end == b->image.ir[0]->ops.n - 2 && n_clears == 6);
    tear_down(b);
}

/* Only tasks between the gate and the end poll, if their body can: the gate's and those before wait
 * by counters, and from the end on nothing is carried. */
static void check_range(const bed *b)
{
    const cuda_machine *m = cuda_of(b->m);
    const cuda_flow *flow = &m->carriers.flows[0];
    const rt_graph *g = image_table(b->image.block, RT_GRAPHS);
    const rt_entry *entries = table(b, m->layout.entries);
    for (uint64_t k = 0; k < m->layout.n_tasks; k++) {
        const uint32_t op = entries[k].op - g->first_op;
        if (!entries[k].quiet)
            continue;
        assert_true(flow->end != RT_NONE && op > flow->gate && op < flow->end);
        assert_true(m->source.uses[0][op].body->carries);
    }
}

/* A result that the end and an operator after it read, %x, is told of by counters.  It keeps what
 * comes before from being polled no more than any other that is not carried. */
static void test_results_for_the_end(void **state)
{
    (void)state;
    bed *b = set_up("input %t : bf16[4, 128] live=tokens\n"
                    "const %a : bf16[64, 128]\n"
                    "const %b : bf16[64, 64]\n"
                    "const %c : bf16[128, 64]\n"
                    "%u = linear(%t, %a)\n"
                    "%v = linear(%u, %b, _, _, _, _, _, _, %u)\n"
                    "%w = linear(%v, %b)\n"
                    "%x = linear(%w, %b, _, _, _, _, _, _, %u)\n"
                    "%y = linear(%x, %c, _, _, _, _, _, _, %t)\n"
                    "%z = linear(%y, %a, _, _, _, _, _, _, %x)\n"
                    "output %y\n"
                    "output %z\n");
    check_ok(&b->cx, start(b));
    assert_true(is_carried(b, "u") && is_carried(b, "v") && is_carried(b, "w"));
    assert_false(is_carried(b, "x"));
    check_plan(b);
    tear_down(b);
}

/* The gate is a write that waits for the same event as what follows the end: then nothing is
 * carried, and the map between the two, which cannot poll, does not. */
static void test_gate_after_the_end(void **state)
{
    (void)state;
    bed *b = set_up("input %t : bf16[4, 128]\n"
                    "state %s : bf16[4, 64]\n"
                    "const %a : bf16[64, 128]\n"
                    "const %b : bf16[128, 64]\n"
                    "%u = linear(%t, %a)\n"
                    "%v = mul(%u, %s)\n"
                    "%q = slice_scatter(%s, %v) {starts = [0, 0], stops = [4, 64], in_place = 1}\n"
                    "%w = add(%u, %v)\n"
                    "%x = silu(%w)\n"
                    "%y = linear(%x, %b, _, _, _, _, _, _, %t)\n"
                    "%z = linear(%y, %a)\n"
                    "output %z\n");
    check_ok(&b->cx, start(b));
    const ir_graph *ir = b->image.ir[0];
    const cuda_flow *flow = &cuda_of(b->m)->carriers.flows[0];
    assert_int_equal(flow->gate, ir->tensors.at[ir_find(ir, "q")].producer);
    assert_int_equal(flow->end, ir->tensors.at[ir_find(ir, "y")].producer);
    check_range(b);
    check_plan(b);
    tear_down(b);
}

/* Two branches that have nothing to do with each other. */
static const char branches[] = "input %t : bf16[4, 256] live=tokens\n"
                               "input %s : bf16[4, 256] live=tokens\n"
                               "const %a : bf16[512, 256]\n"
                               "const %b : bf16[256, 512]\n"
                               "%x = silu(%t)\n"
                               "%h = linear(%x, %a)\n"
                               "%i = linear(%h, %b)\n"
                               "%z = silu(%s)\n"
                               "%p = linear(%z, %a)\n"
                               "%q = linear(%p, %b)\n"
                               "%r = linear(%q, %a)\n"
                               "output %i\n"
                               "output %r\n";

/* Carried words are cleared after an event that follows all tasks that touch them.  No operator of
 * the second branch follows any of the first, so none of them clears. */
static void test_end_follows_all(void **state)
{
    (void)state;
    bed *b = set_up(branches);
    check_ok(&b->cx, start(b));
    const ir_graph *ir = b->image.ir[0];
    const uint32_t end = cuda_of(b->m)->carriers.flows[0].end;
    assert_true(end == RT_NONE || end <= ir->tensors.at[ir_find(ir, "i")].producer);
    assert_false(is_carried(b, "p"));
    check_range(b);
    tear_down(b);
}

/* Attention over a cache that an operator before it reads, if OLD is output %o. */
#define CACHED(old)                                                                               \
    "input %t : bf16[2, 256] live=tokens\n"                                                       \
    "input %r : f32[2, 2, 64] live=tokens\n"                                                      \
    "input %p : i32[2] live=tokens\n"                                                             \
    "input %s : i32[2] live=tokens\n"                                                             \
    "input %q : i32[2, 4]\n"                                                                      \
    "state %kc : bf16[8, 1, 64, 128]\n"                                                           \
    "state %vc : bf16[8, 1, 64, 128]\n"                                                           \
    "const %a : bf16[512, 256]\n"                                                                 \
    "const %c : bf16[256, 512]\n"                                                                 \
    "%x = silu(%t)\n"                                                                             \
    "%h = linear(%x, %a)\n" old "%y, %l, %k, %v = attention_split(%h, %r, %p, %s, %q, %kc, %vc) " \
    "{heads = 2, kv_heads = 1, head_size = 128"                                                   \
    ", splits = 2, unit = 64}\n"                                                                  \
    "%f = attention_fold(%y, %l)\n"                                                               \
    "%g = linear(%f, %a)\n"                                                                       \
    "%z = linear(%g, %c)\n"                                                                       \
    "output %z\n"

/* A task that waits for no event must not write what a task before it reads. */
static void test_written_caches(void **state)
{
    (void)state;
    static const char *const sources[] = {CACHED(""), CACHED("%o = copy(%kc)\noutput %o\n")};
    for (int is_read = 0; is_read < 2; is_read++) {
        bed *b = set_up(sources[is_read]);
        check_ok(&b->cx, start(b));
        const ir_graph *ir = b->image.ir[0];
        const cuda_flow *flow = &cuda_of(b->m)->carriers.flows[0];
        const uint32_t attention = ir->tensors.at[ir_find(ir, "y")].producer;
        assert_true(flow->end != RT_NONE && flow->end > attention);
        if (is_read)
            assert_true(flow->gate >= attention);
        else
            assert_true(flow->gate < attention && is_carried(b, "h"));
        check_range(b);
        tear_down(b);
    }
}

/* Experts poll the ids of a route, %e.  Its weights, %w, are not polled where they are read at the
 * last, and words that are polled do not say that they are there by then.  So the route's tasks
 * come before the gate, unless nothing reads the weights. */
#define ROUTED(end)                               \
    EXPERTS("48", "4", "96")                      \
    "const %d : bf16[48, 256, 96]\n"              \
    "const %b : bf16[512, 256]\n"                 \
    "const %z : bf16[4, 512]\n"                   \
    "input %s : f32[4, 4] live=tokens\n"          \
    "%j = expert_linear(%i, %e, %d, _, %s, %h)\n" \
    "%y = linear(%j, %b)\n"                       \
    "%q = linear(%y, %z)\n" end

static void test_results_behind_polled_ones(void **state)
{
    (void)state;
    static const char *const sources[] = {
        ROUTED("output %q\n"), ROUTED("%c = map(%w, %q) {expr = \"x0 + x1\"}\noutput %c\n")};
    for (int is_read = 0; is_read < 2; is_read++) {
        bed *b = set_up(sources[is_read]);
        check_ok(&b->cx, start(b));
        const ir_graph *ir = b->image.ir[0];
        const cuda_flow *flow = &cuda_of(b->m)->carriers.flows[0];
        assert_true(is_carried(b, "e") && !is_carried(b, "w"));
        assert_int_equal(flow->gate > ir->tensors.at[ir_find(ir, "e")].producer, is_read);
        carried_check(cuda_of(b->m), 0);
        tear_down(b);
    }
}

/* What the host reads after the step is no longer there once carried words are cleared: an output
 * is not carried, and stays where the host reads it. */
static void test_outputs_are_not_carried(void **state)
{
    (void)state;
    char with_output[sizeof chain + 16];
    snprintf(with_output, sizeof with_output, "%soutput %%j\n", chain);
    for (int is_output = 0; is_output < 2; is_output++) {
        bed *b = set_up(is_output ? with_output : chain);
        check_ok(&b->cx, start(b));
        assert_int_equal(is_carried(b, "j"), !is_output);
        check_plan(b);
        tear_down(b);
    }
}

/* Where nothing can be carried, where kernels end between operators, and where it is not wanted,
 * counters do it all. */
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
        check_ok(&b->cx, cuda_plan_memory(&b->cx, &b->image, gen_arch_find("sm_90a"),
                                          &cases[i].options, &plan));
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

/* A worker that polls for a word cannot run the JIT task in its own queue that writes it: graphs
 * with such tasks use counters alone. */
static void test_jit_tasks_carry_nothing(void **state)
{
    (void)state;
    bed *b = set_up_launched(chain, PASS_LAUNCH_JIT);
    const rt_graph *g = image_table(b->image.block, RT_GRAPHS);
    check_ok(&b->cx, start(b));
    assert_true(g->n_jit > 0);
    assert_int_equal(cuda_of(b->m)->carriers.n_bytes, 0);
    tear_down(b);
}

/* The plan of any program is sound: no order is lost, nothing is cleared while it is in use, and no
 * gate waits for a task that waits for it. */
static void test_random_plans(void **state)
{
    (void)state;
    const uint32_t least = check_rounds(24);
    uint32_t n = 0, n_quiet = 0, n_quiet_plans = 0;
    for (; n < least || (n_quiet_plans < 4 && n < 20 * least); n++) {
        random_text *r = calloc(1, sizeof *r);
        r->number = n;
        make_text(r);
        bed *b = set_up(r->text);
        check_ok(&b->cx, start(b));
        const uint32_t quiet = check_plan(b);
        n_quiet += quiet;
        n_quiet_plans += quiet > 0;
        tear_down(b);
        free(r);
    }
    print_message("%u programs, %u of them carry, %u tasks poll\n", n, n_quiet_plans, n_quiet);
    assert_true(n_quiet_plans >= 4);
}

/* GPU 1 makes term d and GPU 0 adds it.  Operators of few tasks take turns among six workers: the
 * sum of GPU 0 and its end run on workers 1 and 2. */
#define SENT(term)                                                                      \
    "peer all\n"                                                                        \
    "input %t : bf16[4, 16] live=tokens\n"                                              \
    "const %u : bf16[128, 16]\n"                                                        \
    "const %v : bf16[16, 16]\n"                                                         \
    "peer 0\n%a = silu(%t)\n"                                                           \
    "peer 1\n%b = silu(%t)\n" term "peer 0\n%c = add_parts(%a, %d)\n"                   \
    "%q = silu(%t)\n%r = silu(%t)\n%s = silu(%t)\n%x = silu(%t)\n%y = linear(%c, %v)\n" \
    "peer 1\n%e = add_parts(%b, %d)\n%z = linear(%e, %u)\n"                             \
    "output %q\noutput %r\noutput %s\noutput %x\noutput %y\noutput %z\n"

/* What a worker of GPU 1 sends, the worker of its number on GPU 0 clears, with a task of the end:
 * where it has none there, nothing is sent, though GPU 0's own words would all be cleared. */
static void test_words_sent_to_idle_workers(void **state)
{
    (void)state;
    static const char *const sources[] = {
        SENT("%d = linear(%b, %v)\n"), /* by workers 1 and 2 */
        SENT("%f = silu(%b)\n%d = linear(%f, %v)\n") /* by workers 2 and 3 */};
    for (int is_idle = 0; is_idle < 2; is_idle++) {
        bed *b = set_up_launched(sources[is_idle], PASS_LAUNCH_AOT);
        check_ok(&b->cx, start(b));
        check_plan(b);
        assert_int_equal(is_carried(b, "d"), !is_idle);
        tear_down(b);
    }
}

/* GPUs whose operators take turns but exchange nothing: what one of them computes without polling
 * does not keep the other from it. */
static void test_gpus_that_exchange_nothing(void **state)
{
    (void)state;
    bed *b = set_up_launched("peer all\n"
                             "input %t : bf16[4, 256] live=tokens\n"
                             "const %a : bf16[512, 256]\n"
                             "const %b : bf16[256, 512]\n"
                             "peer 0\n%x = silu(%t)\n"
                             "peer 1\n%o = silu(%t)\n"
                             "peer 0\n%h = linear(%x, %a)\n"
                             "peer 1\n%p = linear(%o, %a)\n%s = silu(%p)\n"
                             "peer 0\n%i = linear(%h, %b)\n"
                             "peer 1\n%q = linear(%s, %b)\n%r = linear(%q, %a)\n"
                             "peer 0\n%y = linear(%i, %a)\n"
                             "peer 1\n%z = linear(%r, %b)\n"
                             "output %y\noutput %z\n",
                             PASS_LAUNCH_AOT);
    check_ok(&b->cx, start(b));
    check_plan(b);
    const ir_graph *ir = b->image.ir[0];
    cuda_machine **peers = cuda_of(b->m)->peers;
    for (uint32_t p = 0; p < 2; p++) {
        const cuda_flow *flow = &peers[p]->carriers.flows[0];
        assert_int_equal(flow->is_carried[ir_find(ir, "h")], p == 0);
        assert_int_equal(flow->is_carried[ir_find(ir, "q")], p == 1);
        assert_false(flow->is_carried[ir_find(ir, "p")]);
    }
    tear_down(b);
}

static void test_random_joint_plans(void **state)
{
    (void)state;
    const uint32_t least = check_rounds(60);
    uint32_t n_quiet = 0, n_sent = 0;
    for (uint32_t n = 0; n < least || (!n_sent && n < 20 * least); n++) {
        random_text *r = calloc(1, sizeof *r);
        r->number = 1000000 + n;
        make_joint_text(r);
        bed *b = set_up_launched(r->text, PASS_LAUNCH_AOT);
        check_ok(&b->cx, start(b));
        n_quiet += check_plan(b);
        for (ir_tensor_id i = 0; i < b->image.ir[0]->tensors.n; i++)
            n_sent += cuda_of(b->m)->carriers.flows[0].sends[i] != 0;
        tear_down(b);
        free(r);
    }
    print_message("%u tasks poll, %u results are sent\n", n_quiet, n_sent);
    assert_true(n_sent > 0);
}

int main(void)
{
    seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_carriers),
        cmocka_unit_test(test_carried_experts),
        cmocka_unit_test(test_carried_norms),
        cmocka_unit_test(test_short_rows),
        cmocka_unit_test(test_torn_results),
        cmocka_unit_test(test_shares_within_words),
        cmocka_unit_test(test_readers_that_do_not_poll),
        cmocka_unit_test(test_end_follows_all),
        cmocka_unit_test(test_end_has_a_task_for_each_worker),
        cmocka_unit_test(test_results_for_the_end),
        cmocka_unit_test(test_gate_after_the_end),
        cmocka_unit_test(test_written_caches),
        cmocka_unit_test(test_results_behind_polled_ones),
        cmocka_unit_test(test_outputs_are_not_carried),
        cmocka_unit_test(test_no_carriers),
        cmocka_unit_test(test_jit_tasks_carry_nothing),
        cmocka_unit_test(test_random_plans),
        cmocka_unit_test(test_words_sent_to_idle_workers),
        cmocka_unit_test(test_gpus_that_exchange_nothing),
        cmocka_unit_test(test_random_joint_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
