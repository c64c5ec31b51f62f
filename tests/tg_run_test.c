/* tg_run_test.c - a task graph runs as soon as it has events, at every level from there on, and
 * gives the bits of the program.  Without events it is refused; where a task is never ready, the
 * error says so. */
#include "check.h"

#include <string.h>

#include "pass/pass.h"

enum { LINES = 8, COLUMNS = 16 };

static const char source[] = "input %x : f32[8, 16]\nconst %w : f32[16, 16]\n"
                             "%a = linear(%x, %w)\n%y = silu(%a)\noutput %y\n";

/* Values of the program, of the same inputs each time. */
static ir_values values_of(mpk_context *cx, arena *a, const ir_graph *g)
{
    ir_values v = {.live = {UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    check_ok(cx, ir_eval_allocate(cx, a, g, &v));
    for (size_t t = 0; t < g->tensors.n; t++)
        for (int64_t i = 0; i < ir_elements(&g->tensors.at[t]); i++)
            ((float *)v.data[t])[i] = rng_normal(t, (uint64_t)i);
    return v;
}

static void every_level_runs(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    ir_graph *ir;
    tg_graph *g;
    uint64_t pairs;
    const uint64_t seed = check_seed();
    const pass_options o = {.n_workers = 3, .page_bytes = 16384, .pages_per_worker = 8};
    pass_state s = {&cx, &a, &a, &o};
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &ir));
    ir_values expected = values_of(&cx, &a, ir), found = values_of(&cx, &a, ir);
    const ir_tensor_id y = ir->outputs.at[0];
    check_ok(&cx, ir_eval(&cx, &a, ir, &expected));
    check_ok(&cx, pass_decompose(&s, ir, &g));
    check_fails(&cx, MPK_EARG, "without events cannot run", tg_run(&cx, &a, g, &found, seed));
    check_ok(&cx, pass_depend(&s, g, &pairs));
    assert_int_equal(g->level, TG_RAW);
    mpk_status (*const passes[])(pass_state *, tg_graph *) = {
        pass_drop_implied, pass_fuse_events, pass_label_launch, pass_normalize, pass_linearize};
    for (size_t i = 0; i <= sizeof passes / sizeof *passes; i++) {
        memset(found.data[y], 0, LINES * COLUMNS * sizeof(float));
        check_ok(&cx, tg_run(&cx, &a, g, &found, seed + i));
        assert_memory_equal(found.data[y], expected.data[y], LINES * COLUMNS * sizeof(float));
        if (i < sizeof passes / sizeof *passes)
            check_ok(&cx, passes[i](&s, g));
    }
    assert_int_equal(g->level, TG_LINEAR);
    g->events[TG_START].n_out--; /* a task that no event makes ready */
    check_fails(&cx, MPK_EVERIFY, "tasks ran, then none was ready",
                tg_run(&cx, &a, g, &found, seed));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_level_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
