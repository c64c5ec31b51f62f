/* The profile of a step: sums by operator, code and columns, shares and microseconds, from cycles
 * that are known. */
#include "check.h"

#include "base/json.h"
#include "engine/engine.h"

static const char source[] = "input %x : f32[4, 8]\n"
                             "const %w : f32[8, 8]\n"
                             "const %v : f32[6, 8]\n"
                             "%a = linear(%x, %w)\n"
                             "%b = silu(%a)\n"
                             "%c = linear(%b, %w)\n"
                             "%d = linear(%c, %v)\n"
                             "%e = linear(%c, %w)\n"
                             "output %d\n";

static double number(const json_value *object, const char *key)
{
    const json_value *value = json_get(object, key);
    assert_non_null(value);
    return value->number;
}

/* One row of the report: a kind of operator, the body that runs it, the columns that it reads (8)
 * and makes (`to`), and the seven numbers in the order of `keys`. */
static void check_kind(const json_value *k, const char *kind, const char *body, double to,
                       const double wanted[7])
{
    static const char *const keys[] = {"operators", "tasks",      "sm_us",     "wait_us",
                                       "body_us",   "trigger_us", "longest_us"};
    assert_true(str_is(json_get(k, "kind")->text, kind) && str_is(json_get(k, "body")->text, body));
    assert_true(number(k, "from") == 8 && number(k, "to") == to);
    for (size_t i = 0; i < 7; i++)
        assert_float_equal(number(k, keys[i]), wanted[i], 1e-3);
}

/* Those of `codes` in test_sums. */
static void check_programs(const json_value *kind)
{
    const json_value *programs = json_get(kind, "programs");
    assert_int_equal(programs->n, 2);
    const json_value *one = &programs->items[0];
    assert_true(number(one, "listed") == 9 && number(one, "fitting") == 4);
    assert_true(number(one, "refused") == 1 && number(one, "cycles") == 700);
    assert_non_null(strstr(json_get(one, "text")->text.at, "block one"));
    assert_true(number(&programs->items[1], "listed") == 0);
}

/* Times of operators of one kind and one body are added, those of operators without tasks left
 * out, and cycles become microseconds. */
static void test_sums(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    text t = {0};
    ir_graph *ir;
    const json_value *root;
    /* 1 GHz: 1000 cycles are 1 us */
    machine_times times[5] = {
        {.n_tasks = 2, .wait = 1000, .body = 5000, .trigger = 500, .longest = 7000},
        {.n_tasks = 1, .wait = 2000, .body = 1000, .trigger = 0, .longest = 1000},
        {.n_tasks = 6, .wait = 3000, .body = 1000, .trigger = 500, .longest = 1000},
        {.n_tasks = 1, .body = 2000, .longest = 2000},
        {.n_tasks = 0}};
    const super_choice chosen[2] = {
        {.program = {.name = "one"}, .n_listed = 9, .n_fitting = 4, .n_refused = 1, .cycles = 700},
        {.program = {.name = "two"}}};
    const super_choice *const programs[2] = {&chosen[0], &chosen[1]};
    const machine_code codes[5] = {{"fast", 2, programs},
                                   {"plain", 0, NULL},
                                   {"fast", 2, programs},
                                   {"fast", 0, NULL},
                                   {"plain", 0, NULL}};
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &ir));
    assert_int_equal(ir->ops.n, 5);
    const machine_profile profile = {.times = times,
                                     .to_host = {9, 5500, 7250, 20000},
                                     .clock_khz = 1000000,
                                     .steps = {3, 8500, 1250},
                                     .between = 12000};
    engine_write_profile(ir, codes, &profile, 4, 10, &t);
    check_ok(&cx, json_parse(&cx, &a, (str){t.at, t.n}, &root));
    assert_true(number(root, "tokens") == 4 && number(root, "clock_mhz") == 1000);
    /* triggers 2 * 500 + 6 * 500; everything 2 * 6500 + 3000 + 6 * 4500 + 2000 */
    assert_float_equal(number(root, "scheduling"), 4000.0 / 45000.0, 1e-5);
    const json_value *to_host = json_get(root, "to_host"), *kinds = json_get(root, "kinds");
    assert_true(number(to_host, "bursts") == 9 && number(to_host, "median_us") == 5.5);
    assert_true(number(to_host, "p99_us") == 7.25 && number(to_host, "most_us") == 20);
    const json_value *steps = json_get(root, "steps");
    assert_true(number(steps, "n") == 3 && number(steps, "median_us") == 8.5);
    assert_true(number(steps, "between_us") == 1.25);
    assert_true(number(root, "between_tasks_us") == 1.2); /* 12,000 cycles of 10 workers */
    assert_int_equal(kinds->n, 3);                        /* what has not run is not there */
    check_kind(&kinds->items[0], "linear", "fast", 8, (double[]){2, 8, 4.0, 2.5, 2.0, 0.5, 4.0});
    check_kind(&kinds->items[1], "silu", "plain", 8, (double[]){1, 1, 0.3, 2.0, 1.0, 0.0, 1.0});
    check_kind(&kinds->items[2], "linear", "fast", 6, (double[]){1, 1, 0.2, 0.0, 2.0, 0.0, 2.0});
    check_programs(&kinds->items[0]);
    assert_int_equal(json_get(&kinds->items[1], "programs")->n, 0);
    /* (2 * 6500 + 6 * 4500) / 45000 */
    assert_float_equal(number(&kinds->items[0], "share"), 40.0 / 45, 1e-5);
    text_free(&t);
    arena_free(&a);
}

/* Two sums over peers wait 3,000 and 1,000 cycles for each of their tasks, of 20,000 in all; what
 * reads its own peer's memory waits for no other's. */
static void test_waiting_for_peers(void **state)
{
    (void)state;
    static const char joint[] = "peer all\ninput %x : f32[4, 8]\n"
                                "peer 0\n%a = silu(%x)\npeer 1\n%b = silu(%x)\n"
                                "peer 0\n%c = add_parts(%a, %b)\n"
                                "peer 1\n%d = add_parts(%a, %b)\n%e = silu(%d)\n"
                                "peer 0\noutput %c\n";
    mpk_context cx = {0};
    arena a = {0};
    text t = {0};
    ir_graph *ir;
    const json_value *root;
    machine_times times[5] = {{.n_tasks = 1, .wait = 2000, .body = 1000},
                              {.n_tasks = 1, .wait = 500, .body = 500},
                              {.n_tasks = 2, .wait = 3000, .body = 500},
                              {.n_tasks = 2, .wait = 1000, .body = 500},
                              {.n_tasks = 1, .wait = 4000, .body = 2000}};
    check_ok(&cx, ir_parse(&cx, &a, str_from(joint), &ir));
    assert_int_equal(ir->ops.n, 5);
    machine_code codes[5];
    for (uint32_t i = 0; i < 5; i++)
        codes[i] = (machine_code){.body = "plain"};
    engine_write_profile(ir, codes, &(machine_profile){.times = times, .clock_khz = 1000}, 1, 2,
                         &t);
    check_ok(&cx, json_parse(&cx, &a, (str){t.at, t.n}, &root));
    assert_float_equal(number(root, "waiting_for_peers"), 8000.0 / 20000.0, 1e-5);
    text_free(&t);
    arena_free(&a);
}

/* Products that read as many columns by the same code and make different numbers of them are
 * entries of their own. */
static void test_columns(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    text t = {0};
    ir_graph *ir;
    const json_value *root;
    machine_times times[5] = {{0}, {0}, {0}, {.n_tasks = 1, .body = 1}, {.n_tasks = 1, .body = 1}};
    machine_code codes[5];
    for (uint32_t i = 0; i < 5; i++)
        codes[i] = (machine_code){.body = "plain"};
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &ir));
    engine_write_profile(ir, codes, &(machine_profile){.times = times, .clock_khz = 1000}, 1, 1,
                         &t);
    check_ok(&cx, json_parse(&cx, &a, (str){t.at, t.n}, &root));
    const json_value *kinds = json_get(root, "kinds");
    assert_int_equal(kinds->n, 2);
    assert_true(number(&kinds->items[0], "to") != number(&kinds->items[1], "to"));
    text_free(&t);
    arena_free(&a);
}

/* A step that never ran has no time and no kinds. */
static void test_nothing(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    text t = {0};
    ir_graph *ir;
    const json_value *root;
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &ir));
    engine_write_profile(ir, (const machine_code[5]){{.body = ""}},
                         &(machine_profile){.times = (machine_times[5]){{0}}, .clock_khz = 1000}, 1,
                         1, &t);
    check_ok(&cx, json_parse(&cx, &a, (str){t.at, t.n}, &root));
    assert_true(number(root, "scheduling") == 0 && number(root, "waiting_for_peers") == 0);
    assert_true(json_get(root, "kinds")->n == 0);
    text_free(&t);
    arena_free(&a);
}

/* A machine of graphs of which only those have run whose bits are set. */
static uint32_t ran;

static mpk_status fake_profile(mpk_context *c, machine *m, uint32_t graph, machine_profile *out)
{
    (void)c, (void)m;
    for (uint32_t i = 0; i < 5; i++)
        out->times[i] = (machine_times){.n_tasks = ran >> graph & 1, .body = 1};
    out->clock_khz = 1000;
    return MPK_OK;
}

static machine_code fake_code(const machine *m, uint32_t graph, ir_op_id op)
{
    (void)m, (void)graph, (void)op;
    return (machine_code){.body = "plain"};
}

/* The graph that a step of so many tokens takes, or the second of its size if only that has run;
 * a larger one, which other steps take, is never read in its place. */
static void test_graph_of_a_step(void **state)
{
    (void)state;
    enum { GRAPHS = 4 };
    static const struct {
        uint32_t tokens, ran;
        double read; /* tokens of the graph that is read; 0: none is that large */
        bool has;    /* and it has run */
    } rows[] = {{1, 1, 1, true},  {1, 14, 1, false}, {0, 1, 1, true},    {2, 2, 8, true},
                {8, 2, 8, true},  {8, 4, 8, true},   {8, 6, 8, true},    {8, 9, 8, false},
                {9, 8, 16, true}, {16, 8, 16, true}, {16, 7, 16, false}, {17, 15, 0, false}};
    static const machine_def def = {
        .name = "fake", .read_profile = fake_profile, .code_of = fake_code};
    mpk_context cx = {0};
    arena a = {0};
    ir_graph *ir;
    rt_header block = {.n_workers = 2};
    machine m = {.def = &def};
    static mpk_engine e;
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &ir));
    const ir_graph *graphs[GRAPHS] = {ir, ir, ir, ir};
    m.image.ir = graphs;
    m.image.n_graphs = GRAPHS;
    m.image.block = &block;
    pthread_mutex_init(&m.books.lock, NULL);
    e.machine = &m;
    e.build.plan = (engine_plan){.n_graphs = GRAPHS, .n_tokens = {1, 8, 8, 16}};
    char *json = NULL;
    check_fails(&cx, MPK_EARG, "not opened with a profile", mpk_engine_profile(&cx, &e, 1, &json));
    e.build.options.profile = 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const json_value *root;
        ran = rows[i].ran;
        const mpk_status status = mpk_engine_profile(&cx, &e, rows[i].tokens, &json);
        if (rows[i].read == 0) {
            check_fails(&cx, MPK_EARG, "no graph is for 17 tokens: the largest is for 16", status);
            continue;
        }
        check_ok(&cx, status);
        check_ok(&cx, json_parse(&cx, &a, str_from(json), &root));
        assert_true(number(root, "tokens") == rows[i].read);
        assert_int_equal(json_get(root, "kinds")->n > 0, rows[i].has);
        free(json);
    }
    pthread_mutex_destroy(&m.books.lock);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_waiting_for_peers),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_graph_of_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
