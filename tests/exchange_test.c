/* exchange_test.c - operators among processes (op/posted.h) on the CPU target: each process is a
 * thread here with a program of its own.  They exchange small whole numbers, whose sums are exact,
 * at random speeds, and use the same few rows again and again: one that is overwritten or read too
 * early gives a wrong sum.  The thread sanitizer sees the order of their loads and stores, which it
 * could not between processes.  And what a task does whose row does not come.
 */
#include "base/rng.h"
#include "base/thread.h"
#include "check.h"
#include "cpu/cpu.h"
#include "mpk/graph.h"
#include "pass/pass.h"

enum { MOST = 4, ROWS = 6, COLUMNS = 5, FLAGS = 8, CALLS = 150, EXCHANGES = 3 };

/* One side of the memory that all share; the exchanges use the two in turn. */
typedef struct side {
    int64_t flags[MOST][FLAGS];
    float data[MOST * ROWS * COLUMNS]; /* [N, ROWS, COLUMNS] */
} side;

typedef struct group {
    uint64_t seed;
    uint32_t n;
    side sides[2];
} group;

typedef struct process {
    group *group;
    uint32_t rank;
    pthread_t thread;
    char problem[256];
} process;

/* What rank `rank` gives in call `call`. */
static float given(const group *g, uint32_t call, uint32_t rank, int64_t i)
{
    return (float)(rng_u64(g->seed + call, rank * 1000 + (uint64_t)i) % 100);
}

/* The sum of all, its own rows of the sum of that, all of those: reduce, scatter, gather. */
static void print_program(const process *p, text *t)
{
    const uint32_t n = p->group->n, rows = ROWS / n;
    text_print(t, "input %%x : f32[%d, %d]\ninput %%n : i64[]\ninput %%t : i64[]\n", ROWS, COLUMNS);
    for (int i = 0; i < EXCHANGES; i++)
        text_print(t, "input %%all%d : f32[%u, %u, %d]\ninput %%flags%d : i64[%u, %d]\n", i, n,
                   i < 2 ? ROWS : rows, COLUMNS, i, n, FLAGS);
    text_print(t,
               "%%p0, %%f0 = post(%%x, %%n) {index = 0, kind = 7}\n"
               "%%s = collect_sum(%%p0, %%all0, %%flags0, %%n, %%t) {index = 0, kind = 7, first = "
               "0, rows = %d}\n"
               "%%h = add(%%s, %%x)\n"
               "%%p1, %%f1 = post(%%h, %%n, %%s) {index = 1, kind = 8}\n"
               "%%r = collect_sum(%%p1, %%all1, %%flags1, %%n, %%t) {index = 1, kind = 8, first = "
               "%u, rows = %u}\n"
               "%%p2, %%f2 = post(%%r, %%n, %%r) {index = 2, kind = 9}\n"
               "%%g = collect(%%p2, %%all2, %%flags2, %%n, %%t) {index = 2, kind = 9}\n"
               "output %%g\n",
               ROWS, p->rank * rows, rows);
    for (int i = 0; i < EXCHANGES; i++)
        text_print(t, "output %%p%d\noutput %%f%d\n", i, i);
}

/* Where the tensors of call number `call` lie, in the order of `names`. */
static const char *const names[] = {"x",    "n",      "t",  "g",  "all0", "flags0", "p0", "f0",
                                    "all1", "flags1", "p1", "f1", "all2", "flags2", "p2", "f2"};
static void place(const process *p, int64_t number, float *x, int64_t *n, int64_t *trouble,
                  float *y, void **at)
{
    *at++ = x;
    *at++ = n;
    *at++ = trouble;
    *at++ = y;
    for (int i = 0; i < EXCHANGES; i++) {
        side *s = &p->group->sides[(number + i) % 2];
        const uint32_t rows = i < 2 ? ROWS : ROWS / p->group->n;
        *at++ = s->data;
        *at++ = s->flags;
        *at++ = s->data + p->rank * rows * COLUMNS;
        *at++ = s->flags[p->rank];
    }
}

/* (sum + x) summed: N sums and a sum. */
static bool is_right(const group *g, uint32_t call, const float *y)
{
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
        float sum = 0;
        for (uint32_t r = 0; r < g->n; r++)
            sum += given(g, call, r, i);
        if (y[i] != sum * (float)(g->n + 1))
            return false;
    }
    return true;
}

static void pause_a_while(const process *p, uint32_t call)
{
    const uint64_t r = rng_u64(p->group->seed + 77, p->rank * 100000 + call);
    if (r % 3 == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(r / 3 % 500000)}, NULL);
}

static mpk_status run_calls(mpk_context *cx, process *p, mpk_program *program)
{
    enum { N = sizeof names / sizeof *names };
    float x[ROWS * COLUMNS], y[ROWS * COLUMNS];
    int64_t number = 1, trouble = 0;
    void *at[N];
    TRY(mpk_program_name_slots(cx, program, N, names));
    for (uint32_t call = 0; call < CALLS; call++, number += EXCHANGES) {
        for (int64_t i = 0; i < ROWS * COLUMNS; i++)
            x[i] = given(p->group, call, p->rank, i);
        pause_a_while(p, call);
        place(p, number, x, &number, &trouble, y, at);
        TRY(mpk_program_call(cx, program, N, at));
        CHECK(cx, is_right(p->group, call, y), MPK_EDEVICE, "call %u of rank %u is wrong", call,
              p->rank);
    }
    return MPK_OK;
}

static mpk_status run_process(mpk_context *cx, process *p)
{
    mpk_graph *g;
    mpk_program *program;
    text t = {0};
    print_program(p, &t);
    mpk_status status = mpk_graph_parse(cx, t.at, t.n, &g);
    text_free(&t);
    TRY(status);
    const mpk_engine_options options = {.size = sizeof options,
                                        .threads = 1 + (uint32_t)(p->group->seed + p->rank) % 3};
    status = mpk_program_compile(cx, g, 0, NULL, &options, &program);
    mpk_graph_free(g);
    TRY(status);
    status = run_calls(cx, p, program);
    mpk_program_close(program);
    return status;
}

static void *live(void *argument)
{
    process *p = argument;
    mpk_context *cx = mpk_context_create();
    if (!cx || run_process(cx, p) != MPK_OK)
        snprintf(p->problem, sizeof p->problem, "%s", cx ? mpk_error_message(cx) : "no memory");
    mpk_context_free(cx);
    return NULL;
}

static void test_exchanges(void **state)
{
    (void)state;
    mpk_context cx = {0};
    for (uint32_t n = 2; n <= 3; n++) {
        process processes[MOST];
        group *g = calloc(1, sizeof *g);
        assert_non_null(g);
        *g = (group){.seed = check_seed() + n, .n = n};
        for (uint32_t r = 0; r < n; r++) {
            processes[r] = (process){.group = g, .rank = r};
            check_ok(&cx, thread_start(&cx, &processes[r].thread, live, &processes[r]));
        }
        for (uint32_t r = 0; r < n; r++)
            pthread_join(processes[r].thread, NULL);
        for (uint32_t r = 0; r < n; r++)
            if (*processes[r].problem)
                fail_msg("%s", processes[r].problem);
        free(g);
    }
}

/* ---- what does not come ---- */

static const char alone[] =
    "input %x : f32[4, 3]\ninput %n : i64[]\ninput %t : i64[]\ninput %all : f32[2, 4, 3]\n"
    "input %flags : i64[2, 4]\n%p, %f = post(%x, %n) {index = 0, kind = 7}\n"
    "%y = collect_sum(%p, %all, %flags, %n, %t) {index = 0, kind = 7, first = 0, rows = 4}\n"
    "output %p\noutput %f\noutput %y\n";

static void start_alone(mpk_context *cx, arena *a, const cpu_options *options, machine **m)
{
    ir_graph *g;
    tg_program program;
    program_image *image = arena_alloc(a, 1, sizeof *image);
    uint32_t n_tokens = 1;
    const pass_options o = {
        .n_workers = 2, .page_bytes = 32768, .pages_per_worker = 7, .verify = true};
    check_ok(cx, ir_parse(cx, a, str_from(alone), &g));
    check_ok(cx, pass_compile(cx, a, &o, 1, &g, &n_tokens, &program));
    check_ok(cx, image_make(cx, a, &program, image));
    check_ok(cx, cpu_start(cx, image, NULL, options, m));
}

/* One error, within the limit, that names the task. */
static void test_rows_that_do_not_come(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    machine *m;
    const cpu_options options = {.stall_ns = 50000000u, .body_ns = 200000000u};
    start_alone(&cx, &a, &options, &m);
    check_fails(&cx, MPK_ESTALLED, "(y) waits for other processes",
                machine_run_graph(&cx, m, 0, UINT32_MAX, UINT32_MAX));
    print_message("%s\n", cx.text);
    machine_stop(m);
    arena_free(&a);
}

/* What a stalled task is said to wait for: other processes, if its event has been triggered and its
 * operator takes what they write; else its event. */
static void test_what_is_waited_for(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    machine *m;
    uint32_t n_others = 0;
    start_alone(&cx, &a, &(cpu_options){0}, &m);
    const rt_graph *g = image_table(m->image.block, RT_GRAPHS);
    const rt_task *tasks = image_table(m->image.block, RT_TASKS);
    for (rt_u32 task = 0; task <= g->n_tasks; task++) {
        const rt_u32 op = task < g->n_tasks ? tasks[g->first_task + task].op : RT_NONE;
        const bool takes = op != RT_NONE && m->image.ir[0]->ops.at[op].def->arrived;
        rt_fault f = {.kind = RT_STALL, .task = task, .seen = 2, .needed = 2};
        check_fails(&cx, MPK_ESTALLED,
                    takes ? "waits for other processes" : "which was triggered 2 of 2 times",
                    machine_say_fault(&cx, m, &f));
        f.seen = 1;
        check_fails(&cx, MPK_ESTALLED, "which was triggered 1 of 2 times",
                    machine_say_fault(&cx, m, &f));
        n_others += takes;
    }
    assert_true(n_others > 0);
    machine_stop(m);
    arena_free(&a);
}

/* Told to wait no longer, the run ends, and the next one does, too. */
static void test_trouble(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    machine *m;
    const int64_t trouble = 1;
    start_alone(&cx, &a, &(cpu_options){0}, &m);
    check_ok(&cx, machine_write_tensor(&cx, m, 0, ir_find(m->image.ir[0], "t"), &trouble));
    for (int i = 0; i < 2; i++)
        check_ok(&cx, machine_run_graph(&cx, m, 0, UINT32_MAX, UINT32_MAX));
    machine_stop(m);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchanges),
        cmocka_unit_test(test_rows_that_do_not_come),
        cmocka_unit_test(test_what_is_waited_for),
        cmocka_unit_test(test_trouble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
