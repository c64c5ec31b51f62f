/* tg_reach_test.c - which tasks come before which, against the closure of all edges; and what
 * follows from that: the last of several tasks, the name of a cycle, whose bytes may be taken.
 *
 * Random graphs: tasks in a random order, events between those below a point of the order and
 * those above it, some of them barriers.  The closure is a table of n x n, made task by task. */
#include "check.h"

#include "base/rng.h"
#include "ir/op.h"
#include "tgraph/program.h"

enum { MOST_TASKS = 200, MOST_EVENTS = 64, MOST_LISTS = MOST_EVENTS * MOST_TASKS, MOST_OPS = 24 };

typedef struct world {
    mpk_context cx;
    arena a;
    uint64_t seed, used;
    tg_graph g;
    tg_task tasks[MOST_TASKS];
    tg_event events[MOST_EVENTS];
    tg_task_id in_tasks[MOST_LISTS], out_tasks[MOST_LISTS];
    uint32_t rank[MOST_TASKS];           /* of each task in the order that events follow */
    tg_task_id at[MOST_TASKS];           /* the task of a rank */
    bool before[MOST_TASKS][MOST_TASKS]; /* [t][u]: u ends before t begins */
    tg_links links;
    tg_reach reach;
} world;

static uint32_t pick(world *w, uint32_t n)
{
    return (uint32_t)(rng_u64(w->seed, w->used++) % n);
}

/* ---- random graphs ---- */

/* Each task with first <= rank < end, or one in `sparse` of them, by rising number. */
static uint32_t list(world *w, tg_task_id *to, uint32_t first, uint32_t end, uint32_t sparse)
{
    uint32_t n = 0;
    for (tg_task_id t = 0; t < w->g.n_tasks; t++)
        if (w->rank[t] >= first && w->rank[t] < end && pick(w, sparse) == 0)
            to[n++] = t;
    return n;
}

/* An event whose in-tasks are drawn from first .. middle - 1 and out-tasks from middle .. end -
 * 1, so that the graph has no cycle. sparse: of how many tasks one is taken. */
static void add_event(world *w, uint32_t first, uint32_t middle, uint32_t end, uint32_t sparse)
{
    tg_graph *g = &w->g;
    tg_event *e = &g->events[g->n_events++];
    *e = (tg_event){.first_in = g->n_in_tasks, .first_out = g->n_out_tasks};
    g->n_in_tasks += e->n_in = list(w, g->in_tasks + e->first_in, first, middle, sparse);
    g->n_out_tasks += e->n_out = list(w, g->out_tasks + e->first_out, middle, end, sparse);
}

/* The order is that of the numbers, or another. */
static void order_tasks(world *w)
{
    bool rise = pick(w, 2);
    for (uint32_t i = 0; i < w->g.n_tasks; i++)
        w->at[i] = i;
    for (uint32_t i = w->g.n_tasks; !rise && i > 1; i--) {
        uint32_t k = pick(w, i);
        tg_task_id swapped = w->at[i - 1];
        w->at[i - 1] = w->at[k];
        w->at[k] = swapped;
    }
    for (uint32_t i = 0; i < w->g.n_tasks; i++)
        w->rank[w->at[i]] = i;
}

/* Multiples of 64 are ends of words, which sets are made of. */
static void make_graph(world *w)
{
    uint32_t n = pick(w, 3) ? 1 + pick(w, MOST_TASKS) : 64 * (1 + pick(w, MOST_TASKS / 64));
    w->g = (tg_graph){.arena = &w->a,
                      .level = TG_FUSED,
                      .tasks = w->tasks,
                      .events = w->events,
                      .in_tasks = w->in_tasks,
                      .out_tasks = w->out_tasks,
                      .n_tasks = n,
                      .n_events = 2,
                      .n_workers = 1};
    memset(w->events, 0, sizeof w->events);
    for (tg_task_id t = 0; t < n; t++)
        w->tasks[t] = (tg_task){.op = IR_NONE};
    order_tasks(w);
    for (uint32_t k = pick(w, MOST_EVENTS - 3); k; k--) {
        uint32_t middle = pick(w, n), reach = 1 + pick(w, pick(w, 3) ? 12 : n);
        add_event(w, middle > reach ? middle - reach : 0, middle, middle + reach, 1 + pick(w, 4));
    }
}

/* The closure, by rank: the producers of a task, and all before them. */
static void close_graph(world *w)
{
    const tg_graph *g = &w->g;
    memset(w->before, 0, sizeof w->before);
    for (uint32_t i = 0; i < g->n_tasks; i++)
        for (tg_event_id e = 0; e < g->n_events; e++) {
            const tg_event *event = &g->events[e];
            bool waits = false;
            for (uint32_t k = 0; k < event->n_out; k++)
                waits = waits || tg_out_task(g, event, k) == w->at[i];
            for (uint32_t k = 0; waits && k < event->n_in; k++) {
                tg_task_id from = g->in_tasks[event->first_in + k];
                w->before[w->at[i]][from] = true;
                for (tg_task_id u = 0; u < g->n_tasks; u++)
                    w->before[w->at[i]][u] |= w->before[from][u];
            }
        }
}

static mpk_status fill(world *w)
{
    TRY(tg_fill_links(&w->cx, &w->a, &w->g, &w->links));
    return tg_fill_reach(&w->cx, &w->a, &w->g, &w->links, &w->reach);
}

/* Run `check` on random graphs. */
static void repeat(void (*check)(world *w), uint32_t n)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->seed = check_seed();
    while (n--) {
        make_graph(w);
        close_graph(w);
        check(w);
        arena_free(&w->a);
    }
    free(w);
}

/* ---- the sets ---- */

/* For each pair of tasks the sets must say what the closure says; and no set may hold the task at
 * which its prefix ends, or the prefix would be longer. */
static void check_sets(world *w)
{
    uint32_t n = w->g.n_tasks;
    check_ok(&w->cx, fill(w));
    for (tg_task_id t = 0; t < n; t++) {
        for (tg_task_id u = 0; u < n; u++) {
            assert_int_equal(tg_comes_before(&w->reach, u, t), w->before[t][u]);
            if (w->before[t][u])
                assert_true(w->reach.position[u] < w->reach.position[t]);
        }
        assert_false(tg_set_has(w->reach.before[t], w->reach.before[t]->prefix));
    }
}

static void sets_are_the_closure(void **state)
{
    (void)state;
    repeat(check_sets, 200);
}

/* tg_keep_last keeps, in order, exactly the tasks that come before no other of the list. */
static void check_last(world *w)
{
    tg_task_id given[MOST_TASKS], kept[MOST_TASKS];
    check_ok(&w->cx, fill(w));
    for (int round = 0; round < 8; round++) {
        uint32_t n = list(w, given, 0, w->g.n_tasks, 1 + pick(w, 8)), expected = 0;
        memcpy(kept, given, n * sizeof *kept);
        uint32_t n_kept = tg_keep_last(&w->reach, kept, n);
        for (uint32_t i = 0; i < n; i++) {
            bool is_last = true;
            for (uint32_t k = 0; k < n; k++)
                is_last = is_last && !w->before[given[k]][given[i]];
            if (is_last)
                assert_int_equal(kept[expected++], given[i]);
        }
        assert_int_equal(n_kept, expected);
        for (uint32_t i = 0; i <= w->g.n_tasks / 64; i++)
            assert_int_equal(w->reach.work[i], 0);
    }
}

static void the_last_are_kept(void **state)
{
    (void)state;
    repeat(check_last, 200);
}

/* ---- cycles ---- */

/* Is t on a path from first to last that the pair closes to a cycle? */
static bool is_on_cycle(const world *w, tg_task_id t, tg_task_id first, tg_task_id last)
{
    return (t == first || w->before[t][first]) && (t == last || w->before[last][t]);
}

/* One more event from a task to one before it, or to itself.  What the message names lies on the
 * cycle, though tasks after the cycle wait as well. */
static void check_cycle(world *w)
{
    tg_graph *g = &w->g;
    tg_task_id last = pick(w, g->n_tasks), first = pick(w, g->n_tasks);
    for (uint32_t i = 0; i < g->n_tasks && !w->before[last][first]; i++)
        first = (first + 1) % g->n_tasks;
    if (!w->before[last][first] || pick(w, 4) == 0)
        first = last;
    g->in_tasks[g->n_in_tasks] = last;
    g->out_tasks[g->n_out_tasks] = first;
    g->events[g->n_events++] = (tg_event){g->n_in_tasks++, 1, g->n_out_tasks++, 1};
    unsigned task, on;
    check_fails(&w->cx, MPK_EVERIFY, "waits for itself", fill(w));
    assert_int_equal(sscanf(w->cx.text, "task empty/%u is on a cycle through event %u", &task, &on),
                     2);
    assert_true(is_on_cycle(w, task, first, last));
    const tg_event *e = &g->events[on];
    bool triggers = false, launches = false;
    for (uint32_t i = 0; i < e->n_in; i++)
        triggers = triggers || g->in_tasks[e->first_in + i] == task;
    for (uint32_t i = 0; i < e->n_out; i++)
        launches = launches || is_on_cycle(w, tg_out_task(g, e, i), first, last);
    assert_true(triggers && launches);
}

static void a_cycle_is_named(void **state)
{
    (void)state;
    repeat(check_cycle, 300);
}

/* ---- bytes ---- */

/* Sums and views of what came before. */
static const ir_graph *make_program(world *w, uint32_t n_ops)
{
    text source = {0};
    ir_graph *g;
    text_print(&source, "input %%x0 : f32[4, 4]\n");
    for (uint32_t i = 1; i <= n_ops; i++)
        if (pick(w, 4))
            text_print(&source, "%%x%u = add(%%x%u, %%x%u)\n", i, pick(w, i), pick(w, i));
        else
            text_print(&source, "%%x%u = reshape(%%x%u) {shape = [4, 4]}\n", i, pick(w, i));
    check_ok(&w->cx, ir_parse(&w->cx, &w->a, (str){source.at, source.n}, &g));
    text_free(&source);
    return g;
}

/* Does an operator with tasks read or write the storage of `root`? */
static bool touches(const ir_graph *ir, const ir_op *op, ir_tensor_id root)
{
    bool any = tg_root(ir, op->out[0]) == root;
    for (uint32_t i = 0; i < op->n_in; i++)
        any = any || tg_root(ir, op->in[i]) == root;
    return any && tg_op_has_tasks(ir, op);
}

/* Does each task that touches the root end before each of the operator begins? */
static bool may_overwrite(const world *w, ir_op_id op, ir_tensor_id root)
{
    const ir_graph *ir = w->g.ir;
    for (tg_task_id t = 0; t < w->g.n_tasks; t++)
        for (tg_task_id u = 0; w->tasks[t].op == op && u < w->g.n_tasks; u++)
            if (w->tasks[u].op != IR_NONE && touches(ir, &ir->ops.at[w->tasks[u].op], root) &&
                !w->before[t][u])
                return false;
    return true;
}

/* Tasks are those of any operator: here the events alone count. */
static void check_bytes(world *w)
{
    const ir_graph *ir = w->g.ir = make_program(w, 1 + pick(w, MOST_OPS));
    tg_alive alive;
    for (tg_task_id t = 0; t < w->g.n_tasks; t++) {
        ir_op_id op = pick(w, (uint32_t)ir->ops.n);
        w->tasks[t].op = tg_op_has_tasks(ir, &ir->ops.at[op]) ? op : IR_NONE;
    }
    check_ok(&w->cx, tg_fill_alive(&w->cx, &w->a, &w->g, &alive));
    for (ir_op_id op = 0; op < ir->ops.n; op++)
        for (ir_tensor_id t = 0; t < ir->tensors.n; t++)
            if (tg_root(ir, t) == t)
                assert_int_equal(tg_may_overwrite(&alive, op, t), may_overwrite(w, op, t));
}

static void bytes_are_taken_in_order(void **state)
{
    (void)state;
    repeat(check_bytes, 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_are_the_closure),
        cmocka_unit_test(the_last_are_kept),
        cmocka_unit_test(a_cycle_is_named),
        cmocka_unit_test(bytes_are_taken_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
