/* sharing_test.c - how many tasks of a call's product share a tile (sharing.h). */
#include "check.h"

#include "gen/sharing.h"
#include "rt/rt_lane.h"

enum { TOKENS = 2 * RT_PART_TOKENS, MOST_ACROSS = 8, COLUMNS = 3072 };

static mpk_context cx;

/* Tasks of so many rows and 128 tokens, each of a worker of its own; across: with the same
 * tokens. */
static gen_sharing share(uint32_t rows, uint32_t across)
{
    static const gen_body body = {.op = "linear", .parts = true};
    arena a = {0};
    ir_graph *g;
    rt_task tasks[2 * MOST_ACROSS] = {0};
    bool seen[2 * MOST_ACROSS];
    text t = {0};
    text_print(&t, "input %%x : bf16[%d, %d]\nconst %%w : bf16[%u, %d]\n%%y = linear(%%x, %%w)\n",
               TOKENS, COLUMNS, across * rows, COLUMNS);
    check_ok(&cx, ir_parse(&cx, &a, (str){t.at, t.n}, &g));
    for (uint32_t i = 0; i < 2 * across; i++) {
        const uint32_t token = i / across * RT_PART_TOKENS, row = i % across * rows;
        tasks[i] =
            (rt_task){.worker = i, .lo = {token, row}, .hi = {token + RT_PART_TOKENS, row + rows}};
    }
    const gen_graph graph = {.ir = g, .n_tasks = 2 * across, .tasks = tasks};
    const gen_use use = {.body = &body,
                         .pack = {.rows = across * rows,
                                  .columns = COLUMNS,
                                  .padded_rows = across * rows,
                                  .padded_columns = COLUMNS}};
    const gen_sharing found = gen_find_sharing(&graph, 0, &use, false, 2 * across, seen);
    text_free(&t);
    arena_free(&a);
    return found;
}

/* A task that shares a tile reads less of x, and its sums cost more: those of 64 rows more than
 * that is worth. */
static void test_sums_cost_more_than_x(void **state)
{
    (void)state;
    assert_int_equal(share(32, 8).n, 4);
    assert_int_equal(share(64, 8).n, 1);
}

/* Tiles have all tasks with the same tokens, as many each. */
static void test_tiles_are_whole(void **state)
{
    (void)state;
    assert_int_equal(share(32, 6).n, 2); /* six are no whole tiles of four */
    assert_int_equal(share(32, 7).n, 1);
    assert_int_equal(share(32, 7).n_across, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums_cost_more_than_x),
                                       cmocka_unit_test(test_tiles_are_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
