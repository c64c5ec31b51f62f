/* model_check_test.c - the very source of the runtime (src/rt) under an explorer of interleavings.
 *
 * Each scenario is 2 to 4 threads (coroutines).  The explorer runs it again and again: first every
 * schedule with at most a few preemptions, in depth-first order, then random schedules.  Memory is
 * sequentially consistent here; the weaker orders are argued in docs/runtime.md and watched by
 * ThreadSanitizer in stress_test.c.
 *
 * Checked: a task runs once a step and never before its event; queue entries are taken once and in
 * order; pages are never held twice; no wake is lost (threads that all sleep are a deadlock); a
 * step ends; counters may wrap.
 */
#define RT_ATOMIC_HEADER "rt_atomic_model.h"
#include <stdbool.h>
#include <string.h>
#include <ucontext.h>

#include "base/rng.h"
#include "base/thread.h"
#include "check.h"
#include "rt/rt_worker.h"

/* ---- the explorer ---- */

enum { MAX_THREADS = 4, MAX_POINTS = 4000, STACK_BYTES = 64 * 1024 };

typedef struct scenario {
    const char *name;
    int n_threads;
    void (*reset)(void);
    void (*run)(int thread);
    void (*check)(void); /* after all have ended */
} scenario;

typedef enum thread_state { READY, ASLEEP, ENDED } thread_state;

static struct explorer {
    const scenario *s;
    ucontext_t main, contexts[MAX_THREADS];
    char stacks[MAX_THREADS][STACK_BYTES];
    thread_state state[MAX_THREADS];
    const rt_word *word[MAX_THREADS];
    int current;
    /* The schedule: at point i the thread choice[i] of those in `left` went on. */
    unsigned char choice[MAX_POINTS], left[MAX_POINTS]; /* left: bit set of threads not tried yet */
    int n_points, n_replayed, preemptions, bound;
    bool random, failed;
    uint64_t seed, draws;
    const char *why;
} x;

static void fail_run(const char *why)
{
    if (!x.failed)
        x.why = why;
    x.failed = true;
}

static unsigned ready_threads(void)
{
    unsigned set = 0;
    for (int i = 0; i < x.s->n_threads; i++)
        set |= x.state[i] == READY ? 1u << i : 0;
    return set;
}

static int lowest(unsigned set)
{
    return __builtin_ctz(set);
}

/* Who goes on, among the ready. */
static int choose(unsigned ready)
{
    bool can_stay = ready >> x.current & 1;
    if (x.random) {
        if (can_stay && rng_u64(x.seed, x.draws++) % 4)
            return x.current;
        int skip = (int)(rng_u64(x.seed, x.draws++) % (uint64_t)__builtin_popcount(ready));
        while (skip--)
            ready &= ready - 1;
        return lowest(ready);
    }
    int next = can_stay ? x.current : lowest(ready);
    if (x.n_points >= MAX_POINTS) {
        fail_run("the run does not end");
        return next;
    }
    if (x.n_points < x.n_replayed) {
        next = x.choice[x.n_points];
    } else {
        x.choice[x.n_points] = (unsigned char)next;
        x.left[x.n_points] =
            (unsigned char)(can_stay && x.preemptions >= x.bound ? 0 : ready & ~(1u << next));
    }
    x.preemptions += can_stay && next != x.current;
    x.n_points++;
    return next;
}

/* Let the chosen thread run; returns when this one is chosen again. */
static void go_on(void)
{
    int self = x.current;
    unsigned ready = ready_threads();
    if (!ready) {
        for (int i = 0; i < x.s->n_threads; i++)
            if (x.state[i] == ASLEEP)
                fail_run("all threads sleep: a wake was lost");
    }
    if (!ready || x.failed)
        swapcontext(&x.contexts[self], &x.main);
    int next = choose(ready);
    if (next == self)
        return;
    x.current = next;
    swapcontext(&x.contexts[self], &x.contexts[next]);
}

void model_point(void)
{
    if (x.s)
        go_on();
}

void model_sleep(const rt_word *word, rt_u32 value)
{
    model_point();
    if (word->value != value)
        return;
    x.state[x.current] = ASLEEP;
    x.word[x.current] = word;
    go_on();
}

void model_wake(const rt_word *word)
{
    model_point();
    for (int i = 0; i < x.s->n_threads; i++)
        if (x.state[i] == ASLEEP && x.word[i] == word)
            x.state[i] = READY;
}

static void thread_main(int i)
{
    x.s->run(i);
    x.state[i] = ENDED;
    go_on();
}

/* One schedule, from the beginning. */
static void run_once(const scenario *s)
{
    x.s = NULL; /* no points while the scenario is set up */
    s->reset();
    x.n_points = x.preemptions = 0;
    x.current = 0;
    for (int i = 0; i < s->n_threads; i++) {
        x.state[i] = READY;
        getcontext(&x.contexts[i]);
        x.contexts[i].uc_stack = (stack_t){.ss_sp = x.stacks[i], .ss_size = STACK_BYTES};
        makecontext(&x.contexts[i], (void (*)(void))thread_main, 1, i);
    }
    x.s = s;
    swapcontext(&x.main, &x.contexts[0]);
    x.s = NULL;
    if (!x.failed)
        s->check();
    if (x.failed)
        fail_msg("%s: %s (%s, %d points)", s->name, x.why, x.random ? "random" : "depth first",
                 x.n_points);
}

/* Take the deepest point that has another choice; false: all were tried. */
static bool next_schedule(void)
{
    int i = x.n_points - 1;
    while (i >= 0 && !x.left[i])
        i--;
    if (i < 0)
        return false;
    x.choice[i] = (unsigned char)lowest(x.left[i]);
    x.left[i] &= (unsigned char)(x.left[i] - 1);
    x.n_replayed = i + 1;
    return true;
}

static void explore(const scenario *s, int bound, uint64_t budget_ns, uint64_t seed)
{
    uint64_t n = 0, m = 0, end = clock_ns() + budget_ns / 2;
    bool all = false;
    memset(&x, 0, offsetof(struct explorer, stacks));
    x.failed = x.random = false;
    x.bound = bound;
    x.n_replayed = 0;
    do {
        run_once(s);
        n++;
        all = !next_schedule();
    } while (!all && clock_ns() < end);
    x.random = true;
    for (end = clock_ns() + budget_ns / 2; m < 100 || clock_ns() < end; m++) {
        x.seed = seed + m;
        x.draws = 0;
        run_once(s);
    }
    print_message("%s: %llu schedules with at most %d preemptions%s, %llu random ones\n", s->name,
                  (unsigned long long)n, bound, all ? " (all)" : "", (unsigned long long)m);
}

static void expect(bool condition, const char *why)
{
    if (!condition)
        fail_run(why);
}

/* ---- scenario: two writers, two readers of one queue whose tickets wrap ---- */

static rt_queue queue;
static rt_slot_word queue_slots[4];
static rt_u32 taken_items[8], n_taken, reader_items[2][8], n_reader[2];

static void queue_reset(void)
{
    rt_queue_reset(&queue, queue_slots, 3);
    queue.written.value = queue.read.value = 0xfffffffeu;
    for (rt_u32 i = 0; i < 4; i++)
        queue_slots[(0xfffffffeu + i) & 3].turn.value = 0xfffffffeu + i;
    n_taken = n_reader[0] = n_reader[1] = 0;
}

static void queue_run(int thread)
{
    rt_u32 item;
    if (thread < 2) {
        for (rt_u32 i = 0; i < 2; i++)
            expect(rt_queue_push(&queue, queue_slots, 3, (rt_u32)thread * 10 + i),
                   "the queue was full");
        return;
    }
    for (int tries = 0; tries < 4; tries++)
        if (rt_queue_pop(&queue, queue_slots, 3, &item)) {
            taken_items[n_taken++] = item;
            reader_items[thread - 2][n_reader[thread - 2]++] = item;
        }
}

static void queue_check(void)
{
    rt_u32 item, seen = 0;
    while (rt_queue_pop(&queue, queue_slots, 3, &item))
        taken_items[n_taken++] = item;
    expect(n_taken == 4, "entries were lost or doubled");
    for (rt_u32 i = 0; i < n_taken && i < 4; i++)
        seen |= 1u << (taken_items[i] / 10 * 2 + taken_items[i] % 10);
    expect(seen == 15, "an entry was taken twice");
    for (int r = 0; r < 2; r++) /* a reader sees the entries of one writer in their order */
        for (rt_u32 i = 1; i < n_reader[r]; i++)
            expect(reader_items[r][i - 1] / 10 != reader_items[r][i] / 10 ||
                       reader_items[r][i - 1] < reader_items[r][i],
                   "entries were taken out of order");
}

static const scenario queue_scenario = {"queue", 4, queue_reset, queue_run, queue_check};

/* ---- scenario: one side acquires pages, the other releases them ---- */

static rt_pages pages;
enum { PAGE_TASKS = 9 };
static rt_hold holds[PAGE_TASKS];
static rt_word n_held;
static int page_owner[5];
static const rt_u32 page_needs[PAGE_TASKS] = {2, 2, 2, 1, 3, 2, 3, 2, 5};

static void pages_reset(void)
{
    pages = (rt_pages){.n = 5};
    pages.acquired.value = pages.released.value = 0xfffffffau;
    n_held.value = 0;
    memset(page_owner, 0, sizeof page_owner);
}

static void pages_run(int thread)
{
    for (rt_u32 i = 0; i < PAGE_TASKS; i++) {
        if (thread == 0) {
            while (!rt_pages_acquire(&pages, page_needs[i], &holds[i]))
                rt_sleep(&pages.released, pages.released.value, RT_FOREVER);
            for (rt_u32 p = 0; p < page_needs[i]; p++) {
                expect(holds[i].first + p < 5 && !page_owner[holds[i].first + p],
                       "a page is held twice");
                page_owner[holds[i].first + p] = 1;
            }
            rt_store_release_device(&n_held, i + 1);
            rt_wake(&n_held);
        } else {
            while (rt_load_acquire_device(&n_held) <= i)
                rt_sleep(&n_held, i, RT_FOREVER);
            for (rt_u32 p = 0; p < page_needs[i]; p++)
                page_owner[holds[i].first + p] = 0;
            rt_pages_release(&pages, &holds[i]);
            rt_wake(&pages.released);
        }
    }
}

static void pages_check(void)
{
    expect(pages.acquired.value == pages.released.value, "pages did not come home");
}

static const scenario pages_scenario = {"pages", 2, pages_reset, pages_run, pages_check};

/* ---- scenario: whole steps: two workers with their schedulers, and a host that asks for steps and
 * stops ---- */

enum { WORKERS = 2, TASKS = 6, EVENTS = 4, STEPS = 2 };

/* 0, 1 -> event 2 -> 2, 3 -> event 3 -> 4, and 5 -> end */
static rt_task tasks[TASKS] = {
    {.op = RT_NONE, .depends = RT_START, .triggers = 2, .worker = 0},
    {.op = RT_NONE, .depends = RT_START, .triggers = 2, .worker = 1},
    {.op = RT_NONE, .depends = 2, .triggers = 3, .worker = 0},
    {.op = RT_NONE, .depends = 2, .triggers = 3, .worker = 0},
    {.op = RT_NONE, .depends = 3, .triggers = RT_END, .worker = 1},
    {.op = RT_NONE, .depends = 3, .triggers = RT_END, .worker = 0},
};
static rt_event events[EVENTS];
static rt_op ops[TASKS];
static rt_graph graph = {.n_tasks = TASKS, .n_events = EVENTS, .n_ops = TASKS, .n_tokens = 1};
static rt_range ranges[WORKERS];
static rt_u32 lists[TASKS];
static rt_word counters[EVENTS];
static rt_u32 epochs[1];
static rt_worker workers[WORKERS];
static rt_scheduler schedulers[WORKERS];
static rt_queue jit_queues[WORKERS], event_queues[WORKERS];
static rt_slot_word jit_slots[WORKERS * 4], event_slots[WORKERS * 4];
static rt_control control;
static rt_serving serving;
static rt_machine machine;
static int ran[TASKS], ended[TASKS];
static unsigned jit_events; /* bit e: the tasks of event e are JIT */
static rt_u32 steal, n_steps = STEPS;

/* The body: the tasks before it must have ended in this step, and it must not have begun. */
static inline void rt_run_body(rt_machine *m, rt_worker *w, const rt_task *task, rt_u32 op,
                               rt_u32 hi0, rt_u32 page)
{
    (void)m;
    (void)w;
    (void)hi0;
    (void)page;
    expect(++ran[op] == 1, "a task ran twice");
    for (int t = 0; t < TASKS; t++)
        if (tasks[t].triggers == task->depends)
            expect(ended[t], "a task ran before its event");
    model_point();
    ended[op] = 1;
}

static inline int rt_preload(rt_machine *m, rt_worker *w, rt_u32 task, rt_u32 piece)
{
    (void)m, (void)w, (void)piece;
    expect(task < TASKS, "no such task to look ahead to");
    return 0;
}

/* Tables that follow from the tasks. */
static void step_tables(void)
{
    rt_u32 n = 0;
    memset(events, 0, sizeof events);
    for (rt_u32 t = 0; t < TASKS; t++) {
        tasks[t].op = t;
        tasks[t].hi[0] = 1;
        if (jit_events >> tasks[t].depends & 1)
            tasks[t].worker = RT_NONE;
        rt_event *e = &events[tasks[t].depends];
        e->first = e->last == 0 ? t : e->first;
        e->last = t + 1;
        e->jit += tasks[t].worker == RT_NONE;
        events[tasks[t].triggers].needed++;
    }
    for (rt_u32 i = 0; i < WORKERS; i++) {
        ranges[i].first = n;
        for (rt_u32 t = 0; t < TASKS; t++)
            if (tasks[t].worker == i)
                lists[n++] = t;
        ranges[i].last = n;
    }
}

static void step_reset(void)
{
    static const rt_u32 owners[TASKS] = {0, 1, 0, 0, 1, 0};
    for (int t = 0; t < TASKS; t++) {
        tasks[t].worker = owners[t];
        ran[t] = ended[t] = 0;
    }
    step_tables();
    control = (rt_control){.live = {0xffffffffu, 0xffffffffu, 0xffffffffu}};
    control.step.value = RT_NO_STEP;
    control.idle.value = 1;
    serving = (rt_serving){0};
    epochs[0] = 0xfffffffeu; /* the second step has epoch 0, and counters wrap */
    for (rt_u32 e = 0; e < EVENTS; e++)
        counters[e].value = events[e].needed * epochs[0];
    for (rt_u32 i = 0; i < WORKERS; i++) {
        workers[i] = (rt_worker){.index = i, .owner = i == 0, .pages = {.n = 1}};
        schedulers[i] = (rt_scheduler){.index = i, .next_worker = i};
        rt_queue_reset(&jit_queues[i], jit_slots + 4 * i, 3);
        rt_queue_reset(&event_queues[i], event_slots + 4 * i, 3);
    }
    machine = (rt_machine){.graphs = &graph,
                           .tasks = tasks,
                           .events = events,
                           .ops = ops,
                           .ranges = ranges,
                           .lists = lists,
                           .n_graphs = 1,
                           .n_workers = WORKERS,
                           .n_schedulers = WORKERS,
                           .jit_mask = 3,
                           .event_mask = 3,
                           .steal = steal ? WORKERS : 0,
                           .control = &control,
                           .counters = counters,
                           .epochs = epochs,
                           .workers = workers,
                           .schedulers = schedulers,
                           .jit = jit_queues,
                           .jit_slots = jit_slots,
                           .event = event_queues,
                           .event_slots = event_slots,
                           .limits = {.stall_ns = 1000, .body_ns = 1000, .processors = WORKERS},
                           .serving = &serving};
}

static void host_run(void)
{
    for (rt_u32 i = 1; i <= n_steps; i++) {
        memset(ran, 0, sizeof ran);
        memset(ended, 0, sizeof ended);
        rt_store_release_system(&control.once_wanted, i);
        rt_add_acq_rel_system(&control.doorbell, 1);
        rt_wake(&control.doorbell);
        for (;;) {
            rt_u32 bell = rt_load_acquire_system(&control.host_bell);
            if (rt_load_acquire_system(&control.once_done) == i ||
                control.abort.value != RT_RUNNING)
                break;
            rt_sleep(&control.host_bell, bell, RT_FOREVER);
        }
        for (int t = 0; t < TASKS; t++)
            expect(ran[t] == 1 && ended[t], "the step ended before a task");
    }
    expect(rt_replace_acq_rel_device(&control.abort, RT_RUNNING, RT_STOPPING),
           "the machine raised a fault");
    rt_rouse(&machine);
}

static void step_run(int thread)
{
    if (thread == WORKERS)
        host_run();
    else
        rt_worker_loop(&machine, &workers[thread], &schedulers[thread]);
}

static void step_check(void)
{
    expect(control.sleepers.value == 0, "a worker left while it was counted as asleep");
    for (int i = 0; i < WORKERS; i++)
        expect(jit_queues[i].written.value == jit_queues[i].read.value,
               "a JIT task was left in a queue");
}

static const scenario step_scenario = {"steps", WORKERS + 1, step_reset, step_run, step_check};

/* ---- tests ---- */

static void test_queue(void **state)
{
    (void)state;
    explore(&queue_scenario, 3, 1000000000u, check_seed());
}

static void test_pages(void **state)
{
    (void)state;
    explore(&pages_scenario, 4, 500000000u, check_seed());
}

/* AOT alone, JIT alone, both; with and without taking tasks of others. */
static void test_steps(void **state)
{
    (void)state;
    static const unsigned mixes[] = {0, 1u << 2, 1u << RT_START | 1u << 3, 15};
    uint64_t seed = check_seed();
    for (unsigned i = 0; i < 8; i++) {
        jit_events = mixes[i / 2];
        steal = i % 2;
        explore(&step_scenario, 2, 700000000u, seed);
    }
}

/* The machine is stopped while it is idle, at every point of its workers' way to sleep. */
static void test_stops(void **state)
{
    (void)state;
    n_steps = 0;
    explore(&step_scenario, 3, 1000000000u, check_seed());
    n_steps = STEPS;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_queue), cmocka_unit_test(test_pages),
                                       cmocka_unit_test(test_steps), cmocka_unit_test(test_stops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
