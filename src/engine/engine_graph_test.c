/* engine_graph_test.c - what tensors of a program may be bound to: bytes that are there, whether or
 * not the compiler has found a use for the tensor.
 */
#include <string.h>

#include "check.h"
#include "mpk/graph.h"

/* A binding without bytes is refused, by the name of its tensor. */
static void test_bindings_without_bytes(void **state)
{
    static const char source[] = "input %x : f32[4]\nconst %w : f32[4]\n%y = add(%x, %w)\n"
                                 "output %y\n";
    _Alignas(16) float x[4] = {1, 2, 3, 4}, y[4];
    mpk_context *cx = mpk_context_create();
    mpk_graph *g = NULL;
    mpk_program *p = NULL;
    mpk_binding w = {"w", NULL, sizeof x}, bindings[] = {{"x", NULL, sizeof x}, {"y", y, sizeof y}};
    (void)state;
    assert_non_null(cx);
    check_ok(cx, mpk_graph_parse(cx, source, sizeof source - 1, &g));
    check_fails(cx, MPK_EARG, "w is bound to 0 bytes, but has 16",
                mpk_program_compile(cx, g, 1, &w, NULL, &p));
    w.data = x;
    check_ok(cx, mpk_program_compile(cx, g, 1, &w, NULL, &p));
    check_fails(cx, MPK_EARG, "x is bound to 0 bytes, but has 16",
                mpk_program_run(cx, p, 2, bindings));
    bindings[0].data = x;
    check_ok(cx, mpk_program_run(cx, p, 2, bindings));
    for (int i = 0; i < 4; i++)
        assert_true(y[i] == 2 * x[i]);
    mpk_program_close(p);
    mpk_graph_free(g);
    mpk_context_free(cx);
}

/* An input and a state that nothing reads may be bound like others, and stay as they are. */
static void test_unused_tensors(void **state)
{
    static const char source[] = "input %x : f32[4]\ninput %u : f32[2]\nstate %s : f32[2]\n"
                                 "%y = silu(%x)\noutput %y\n";
    _Alignas(16) float x[4] = {0}, u[2] = {5, 6}, s[2] = {7, 8}, y[4] = {1, 1, 1, 1};
    mpk_context *cx = mpk_context_create();
    mpk_graph *g = NULL;
    mpk_program *p = NULL;
    const mpk_binding bindings[] = {
        {"x", x, sizeof x}, {"u", u, sizeof u}, {"s", s, sizeof s}, {"y", y, sizeof y}};
    (void)state;
    assert_non_null(cx);
    check_ok(cx, mpk_graph_parse(cx, source, sizeof source - 1, &g));
    check_ok(cx, mpk_program_compile(cx, g, 0, NULL, NULL, &p));
    check_ok(cx, mpk_program_run(cx, p, 4, bindings));
    for (int i = 0; i < 4; i++)
        assert_true(y[i] == 0);
    assert_true(u[0] == 5 && u[1] == 6);
    mpk_program_close(p);
    mpk_graph_free(g);
    mpk_context_free(cx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bindings_without_bytes),
                                       cmocka_unit_test(test_unused_tensors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
