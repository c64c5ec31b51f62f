/* recognise_logarithm_test.c - the logarithm of a sum of exponentials, as PyTorch writes it with a
 * guard against infinite maxima, becomes one reduction; and nothing that only looks like it. */
#include "recognise_bed.h"

static const char logarithm[] =
    "input %x : f32[5, 7]\n%v = map(%x) {expr = \"x0 * 3\"}\n"
    "%l = reduce(%v) {axes = [1], keep = 1, kind = \"max\"}\n%m = map(%l) {expr = \"abs(x0)\"}\n"
    "%i = map(%m) {expr = \"x0 == inf\", dtype = \"bool\"}\n%b = map(%i, %l) {expr = \"where(x0, "
    "0.0, x1)\"}\n"
    "%c = reshape(%b) {shape = [5]}\n%d = map(%v, %b) {expr = \"x0 - x1\"}\n%e = map(%d) {expr = "
    "\"exp(x0)\"}\n"
    "%s = reduce(%e) {axes = [1]}\n%g = map(%s) {expr = \"log(x0)\"}\n%y = add(%g, %c)\noutput "
    "%y\n";

/* The group that guards against infinite maxima, and changes to it after which it is another
 * function. */
static void a_logarithm_of_a_sum_of_exponentials_is_one_operator(void **state)
{
    (void)state;
    static const char *const changes[][2] = {{"kind = \"max\"", "kind = \"min\""},
                                             {"abs(x0)", "x0 + 1"},
                                             {"where(x0, 0.0, x1)", "where(x0, 1.0, x1)"},
                                             {"map(%v, %b)", "map(%x, %b)"},
                                             {"exp(x0)", "exp2(x0)"},
                                             {"log(x0)", "log2(x0)"},
                                             {"add(%g, %c)", "add(%g, %s)"},
                                             {"add(%g, %c)", "mul(%g, %c)"},
                                             {"map(%d) {expr = \"exp", "map(%x) {expr = \"exp"},
                                             {"map(%s) {expr = \"log", "map(%c) {expr = \"log"},
                                             {"add(%g, %c)", "add(%v, %b)"}};
    arena a = {0};
    ir_graph *g = parse(&a, logarithm), *after = recognise(&a, g, false);
    assert_int_equal(after->ops.n, 2); /* what makes v, and reduce */
    check_near(&a, g, after);
    g = parse_with(
        &a, logarithm,
        "reduce(%e) {axes = [1]}\n%g = map(%s) {expr = \"log(x0)\"}\n%y = add(%g, %c)",
        "reduce(%e) {axes = [1], keep = 1}\n%g = map(%s) {expr = \"log(x0)\"}\n%y = add(%b, %g)");
    after = recognise(&a, g, false);
    assert_int_equal(after->ops.n, 2);
    check_near(&a, g, after);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        g = parse_with(&a, logarithm, changes[i][0], changes[i][1]);
        after = recognise(&a, g, false);
        assert_true(count_of(after, "map") >= 4); /* the guard is still there */
        check_near(&a, g, after);
    }
    arena_free(&a);
}

int main(void)
{
    base_seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_logarithm_of_a_sum_of_exponentials_is_one_operator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
