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

/* Two tasks of 300 tokens, of 192 and 64 columns.  wide: as those of many tokens; apart: another
 * operator's task stands between them; end: of the columns. */
static gen_sharing find_alone(bool wide, bool apart, uint32_t end)
{
    static const gen_body body = {.op = "linear", .parts = true};
    static const char source[] = "input %x : bf16[300, 512]\nconst %w : bf16[256, 512]\n"
                                 "%y = linear(%x, %w)\n%z = linear(%x, %w)\n";
    arena a = {0};
    ir_graph *g;
    bool seen[4];
    check_ok(&cx, ir_parse(&cx, &a, (str){source, sizeof source - 1}, &g));
    const rt_task tasks[] = {
        {.op = 1, .worker = 0, .hi = {300, 256}},
        {.op = 0, .worker = 1, .hi = {300, 192}},
        {.op = apart, .worker = 2, .lo = {0, 192}, .hi = {300, end}},
        {.op = 0, .worker = 3, .lo = {0, 192}, .hi = {300, end}},
    };
    const gen_graph graph = {.ir = g, .n_tasks = apart ? 4 : 3, .tasks = tasks};
    const gen_use use = {.body = &body, .wide = wide, .pack = {.rows = 256, .columns = 512}};
    const gen_sharing found = gen_find_sharing(&graph, 0, &use, false, 4, seen);
    arena_free(&a);
    return found;
}

/* Tasks of unequal columns and many tokens have their tiles alone, if they follow each other and
 * have whole groups. */
static void test_tasks_that_are_not_alike(void **state)
{
    (void)state;
    const gen_sharing s = find_alone(true, false, 256);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.n_across, 2);
    assert_int_equal(s.n_columns, 192);
    assert_int_equal(s.first, 1);
    assert_int_equal(s.n_tasks, 2);
    assert_int_equal(find_alone(false, false, 256).n, 0);
    assert_int_equal(find_alone(true, true, 256).n, 0);
    assert_int_equal(find_alone(true, false, 252).n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums_cost_more_than_x),
                                       cmocka_unit_test(test_tiles_are_whole),
                                       cmocka_unit_test(test_tasks_that_are_not_alike)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
