/* plan_memory_test.c - what the graphs of one program share: a weight has one shape and kind in all
 * of them, while what comes and goes with a step differs with the number of tokens. */
#include "check.h"

#include "pass/pass.h"

#define PRODUCT(x, w) "input %x : " x "\n" w "%y = linear(%x, %w)\noutput %y\n"

static void test_shapes_of_shared_names(void **state)
{
    (void)state;
    static const char *const first = PRODUCT("f32[2, 8]", "const %w : f32[4, 8]\n");
    static const struct {
        const char *graph, *needle; /* NULL: both make a program */
        mpk_status status;
    } rows[] = {
        {PRODUCT("f32[5, 8]", "const %w : f32[4, 8]\n"), NULL, MPK_OK},
        {PRODUCT("f32[5, 8]", "const %w : f32[6, 8]\n"),
         "%w has another shape or dtype in another graph", MPK_ESHAPE},
        {PRODUCT("f32[5, 8]", "const %w : bf16[4, 8]\n"),
         "%w has another shape or dtype in another graph", MPK_ESHAPE},
        {PRODUCT("f32[5, 8]", "input %w : f32[4, 8]\n"), "%w is of another kind in another graph",
         MPK_EARG},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const pass_options o = {
            .n_workers = 2, .page_bytes = 16384, .pages_per_worker = 8, .verify = true};
        const uint32_t n_tokens[] = {2, 5};
        mpk_context cx = {0};
        arena a = {0};
        ir_graph *graphs[2];
        tg_program program;
        check_ok(&cx, ir_parse(&cx, &a, str_from(first), &graphs[0]));
        check_ok(&cx, ir_parse(&cx, &a, str_from(rows[i].graph), &graphs[1]));
        const mpk_status status = pass_compile(&cx, &a, &o, 2, graphs, n_tokens, &program);
        if (rows[i].needle) {
            check_fails(&cx, rows[i].status, rows[i].needle, status);
        } else {
            check_ok(&cx, status);
            assert_int_equal(program.n_weights, 1);
        }
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes_of_shared_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
