/* stress_test.c - the runtime under random task graphs: shapes, fan-in, fan-out, JIT mixes, 1 to
 * 200 workers, with and without delays inside the protocol; queues that are too short and events
 * that never come end in a fault, not a hang.
 */
#include <sys/resource.h>

#include "base/thread.h"
#include "stress_graph.h"

/* Random programs until the time is over; at least a few. */
static void run_random(uint64_t seed, uint64_t budget_ns, bool delays, uint32_t max_workers)
{
    uint64_t end = clock_ns() + budget_ns;
    uint32_t n = 0;
    for (; n < 10 || clock_ns() < end; n++) {
        mpk_context cx = {0};
        stress_program s;
        stress_random r = {.seed = seed + n};
        machine *m;
        uint32_t workers = 1 + stress_below(&r, stress_below(&r, 4) ? 8 : max_workers),
                 graphs = 1 + stress_below(&r, STRESS_GRAPHS);
        stress_make(&cx, &s, &r, workers, graphs, stress_below(&r, 2) ? 60 : 600);
        stress_work = stress_below(&r, 3) * 50;
        check_ok(&cx, cpu_start(&cx, &s.image, NULL,
                                &(cpu_options){.delay_seed = delays ? seed + n : 0}, &m));
        for (uint32_t i = 0; i < 8; i++)
            stress_step(&cx, m, stress_below(&r, graphs), (int64_t)(seed + i));
        machine_stop(m);
        arena_free(&s.arena);
    }
    print_message("%u random programs, 8 steps each\n", n);
}

static void test_random_graphs(void **state)
{
    (void)state;
    run_random(check_seed(), 3000000000u, false, 200);
}

static void test_random_graphs_with_delays(void **state)
{
    (void)state;
    run_random(check_seed(), 2000000000u, true, 50);
}

/* One machine, many steps: counters, epochs and rings go round. */
static void test_many_steps(void **state)
{
    (void)state;
    mpk_context cx = {0};
    stress_program s;
    stress_random r = {.seed = check_seed()};
    machine *m;
    stress_make(&cx, &s, &r, 3, STRESS_GRAPHS, 100);
    check_ok(&cx, cpu_start(&cx, &s.image, NULL, NULL, &m));
    stress_work = 0;
    for (uint32_t i = 0; i < 2000; i++)
        stress_step(&cx, m, stress_below(&r, STRESS_GRAPHS), i);
    machine_facts facts;
    machine_describe(m, &facts);
    assert_int_equal(facts.n_steps, 2000);
    machine_stop(m);
    arena_free(&s.arena);
}

/* An event that needs one trigger more than will ever come. */
static void test_stall_is_a_fault(void **state)
{
    (void)state;
    mpk_context cx = {0};
    stress_program s;
    stress_random r = {.seed = 7};
    machine *m;
    stress_make(&cx, &s, &r, 4, 1, 200);
    rt_event *events = (rt_event *)image_table(s.image.block, RT_EVENTS);
    events[3].needed++;
    check_ok(&cx, cpu_start(&cx, &s.image, NULL, &(cpu_options){.stall_ns = 1000000000u}, &m));
    check_fails(&cx, MPK_ESTALLED, "waits for event 3",
                machine_run_graph(&cx, m, 0, UINT32_MAX, UINT32_MAX));
    check_fails(&cx, MPK_ESTALLED, "waits for event 3",
                machine_run_graph(&cx, m, 0, UINT32_MAX, UINT32_MAX));
    machine_stop(m);
    arena_free(&s.arena);
}

/* Queues shorter than the bound are noticed, not overwritten. */
static void test_overflow_is_a_fault(void **state)
{
    (void)state;
    mpk_context cx = {0};
    stress_program s = {0};
    stress_random r = {.seed = 1};
    machine *m;
    do { /* a graph whose start launches several JIT tasks */
        arena_free(&s.arena);
        r.seed++;
        stress_make(&cx, &s, &r, 1, 1, 200);
    } while (s.graphs[0].tg->events[TG_START].n_out < 4 ||
             s.graphs[0].tg->tasks[0].launch != TG_JIT);
    check_ok(&cx, cpu_start(&cx, &s.image, NULL, &(cpu_options){.queue_entries = 2}, &m));
    check_fails(&cx, MPK_EDEVICE, "overflowed",
                machine_run_graph(&cx, m, 0, UINT32_MAX, UINT32_MAX));
    machine_stop(m);
    arena_free(&s.arena);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* After work, and without any, the machine sleeps.  One thread that polls would take the whole half
 * second; a sanitizer's own thread takes hundredths. */
static void test_idle_sleeps(void **state)
{
    (void)state;
    mpk_context cx = {0};
    stress_program s;
    stress_random r = {.seed = 3};
    machine *m;
    stress_make(&cx, &s, &r, 20, 1, 200);
    check_ok(&cx, cpu_start(&cx, &s.image, NULL, NULL, &m));
    stress_step(&cx, m, 0, 1);
    nanosleep(&(struct timespec){0, 250000000}, NULL);
    double before = cpu_seconds();
    nanosleep(&(struct timespec){0, 500000000}, NULL);
    double used = cpu_seconds() - before;
    print_message("idle for 0.5 s: %.6f s of processor time\n", used);
    assert_true(used < 0.1);
    stress_step(&cx, m, 0, 2);
    machine_stop(m);
    arena_free(&s.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_random_graphs_with_delays),
        cmocka_unit_test(test_many_steps),
        cmocka_unit_test(test_stall_is_a_fault),
        cmocka_unit_test(test_overflow_is_a_fault),
        cmocka_unit_test(test_idle_sleeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
