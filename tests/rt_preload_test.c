/* rt_preload_test.c - a worker that waits prefetches for the next tasks of its own list, and for no
 * others (rt_worker.h).
 *
 * The machine below has lists alone: prefetching is to note the task.
 */
#include "check.h"
#include "rt/rt_worker.h"

enum { FIRST_TASK = 10, PIECES = 2, MOST_NOTED = 32, NONE = -1 };

static rt_u32 noted[MOST_NOTED], n_noted;

static inline void rt_run_body(rt_machine *m, rt_worker *w, const rt_task *task, rt_u32 op,
                               rt_u32 hi0, rt_u32 page)
{
    (void)m, (void)w, (void)task, (void)op, (void)hi0, (void)page;
}

/* A task has two pieces. */
static inline int rt_preload(rt_machine *m, rt_worker *w, rt_u32 task, rt_u32 piece)
{
    (void)m, (void)w;
    assert_true(n_noted < MOST_NOTED && piece < PIECES);
    noted[n_noted++] = PIECES * task + piece;
    return piece + 1 < PIECES;
}

/* Look ahead more often than there is anything to find: the tasks of `wanted`, up to NONE, are
 * asked for, piece by piece and once. */
static void look(rt_machine *m, rt_worker *w, const int *wanted)
{
    n_noted = 0;
    for (int i = 0; i < MOST_NOTED; i++)
        rt_preload_ahead(m, w);
    rt_u32 n = 0;
    for (; wanted[n] != NONE; n++)
        for (rt_u32 piece = 0; piece < PIECES; piece++)
            assert_int_equal(noted[PIECES * n + piece], PIECES * (FIRST_TASK + wanted[n]) + piece);
    assert_int_equal(n_noted, PIECES * n);
}

/* From the cursor on if it is of this step and within the list, else from the list's first task:
 * as many as the limit says, and none of the next worker or behind all lists. */
static void test_own_tasks(void **state)
{
    (void)state;
    enum { EPOCH = 7 };
    static const rt_u32 lists[] = {2, 0, 3, 1, 4};
    static const rt_range ranges[] = {{0, 3}, {3, 5}};
    static const rt_graph graph = {.first_task = FIRST_TASK};
    static const struct {
        rt_u32 worker, limit, epoch, cursor;
        int wanted[4];
    } rows[] = {{0, 5, 0, 0, {2, 0, 3, NONE}},     {0, 3, 0, 0, {2, 0, 3, NONE}},
                {0, 2, 0, 0, {2, 0, NONE}},        {0, 0, 0, 0, {NONE}},
                {0, 5, EPOCH, 1, {0, 3, NONE}},    {0, 1, EPOCH, 2, {3, NONE}},
                {0, 5, EPOCH, 3, {2, 0, 3, NONE}}, {0, 5, EPOCH - 1, 1, {2, 0, 3, NONE}},
                {1, 5, 0, 0, {1, 4, NONE}},        {1, 5, EPOCH, 4, {4, NONE}},
                {1, 5, EPOCH, 5, {1, 4, NONE}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rt_machine m = {.graphs = &graph,
                        .ranges = ranges,
                        .lists = lists,
                        .limits = {.preload_tasks = rows[i].limit}};
        rt_worker w = {.index = rows[i].worker, .epoch = EPOCH, .ahead = RT_NONE};
        w.cursor.value = (rt_u64)rows[i].epoch << 32 | rows[i].cursor;
        look(&m, &w, rows[i].wanted);
        n_noted = 0;
        w.step = RT_NO_STEP;
        rt_preload_ahead(&m, &w);
        assert_int_equal(n_noted, 0);
    }
}

/* When tasks have been taken meanwhile, it begins anew at the cursor. */
static void test_taken_tasks(void **state)
{
    (void)state;
    static const rt_u32 lists[] = {2, 0, 3};
    static const rt_range range = {0, 3};
    static const rt_graph graph = {.first_task = FIRST_TASK};
    rt_machine m = {
        .graphs = &graph, .ranges = &range, .lists = lists, .limits = {.preload_tasks = 1}};
    rt_worker w = {.epoch = 1, .ahead = RT_NONE};
    for (rt_u32 at = 0; at < 3; at++) {
        w.cursor.value = (rt_u64)1 << 32 | at;
        look(&m, &w, (int[]){(int)lists[at], NONE});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own_tasks),
                                       cmocka_unit_test(test_taken_tasks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
