/* recognise_window_test.c - the sum of a window that has moved by one entry, times weights, becomes
 * one map of single entries, which does not wait for the copy of the window.  Products are of bf16
 * and rounded as before; the sum is fp32, in which check_near compares. */
#include "recognise_bed.h"

static const char window[] =
    "input %old : bf16[3, 5, 4]\ninput %new : bf16[3, 5]\nconst %w : bf16[5, 4]\n"
    "%s = slice(%old) {starts = [0, 0, 1], stops = [3, 5, 4]}\n"
    "%n = reshape(%new) {shape = [3, 5, 1]}\n%c = concat(%s, %n) {axis = 2}\n"
    "%m = mul(%c, %w)\n%y = reduce(%m) {axes = [2], dtype = \"f32\"}\noutput %y\noutput %c\n";

/* As for a GPU: with relaxed, few workers. */
static ir_graph *recognise_for_gpu(arena *a, ir_graph *g)
{
    arena scratch = {0};
    const pass_options options = {.n_workers = 4, .relaxed = true};
    check_ok(&cx, pass_recognise(&(pass_state){&cx, a, &scratch, &options}, &g));
    check_ok(&cx, ir_verify(&cx, g));
    arena_free(&scratch);
    return g;
}

static void sums_of_moved_windows_are_maps(void **state)
{
    (void)state;
    static const char *const same[][2] = {{"mul(%c, %w)", "mul(%w, %c)"},
                                          {"concat(%s, %n)", "concat(%n, %s)"},
                                          {"const %w : bf16[5, 4]", "const %w : bf16[1, 4]"},
                                          {"const %w : bf16[5, 4]", "input %w : bf16[3, 5, 4]"}};
    arena a = {0};
    ir_graph *g = parse(&a, window), *after = recognise_for_gpu(&a, g);
    assert_int_equal(count_of(after, "reduce") + count_of(after, "mul"), 0);
    assert_int_equal(count_of(after, "map"), 1);
    assert_int_equal(count_of(after, "concat"), 1);
    check_near(&a, g, after);
    assert_int_equal(count_of(recognise(&a, g, false), "reduce"), 1); /* not relaxed */
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        g = parse_with(&a, window, same[i][0], same[i][1]);
        after = recognise_for_gpu(&a, g);
        assert_int_equal(count_of(after, "reduce"), 0);
        check_near(&a, g, after);
    }
    arena_free(&a);
}

/* Other reductions, axes and weights, and longer windows. */
static void other_sums_stay(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        {"{axes = [2], dtype", "{axes = [2], kind = \"max\", dtype"},
        {"{axes = [2], dtype", "{axes = [2], keep = 1, dtype"},
        {"{axes = [2], dtype", "{axes = [1], dtype"},
        {"{axes = [2], dtype", "{axes = [1, 2], dtype"},
        {"bf16[5, 4]", "bf16[5, 1]"},
        {"mul(%c, %w)", "add(%c, %w)"},
        {"reduce(%m) {", "reduce(%m, %new) {then = \"x0 + x1\", inputs = 1, "},
        {"reduce(%m) {", "reduce(%m) {expr = \"x0 * x0\", inputs = 1, "},
    };
    static const char longer[] =
        "input %old : f32[3, 4]\ninput %new : f32[3, 1]\nconst %w : f32[5]\n"
        "%c = concat(%old, %new) {axis = 1}\n%m = mul(%c, %w)\n%y = reduce(%m) {axes = [1]}\n"
        "output %y\n";
    arena a = {0};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        ir_graph *g = parse_with(&a, window, changes[i][0], changes[i][1]);
        assert_int_equal(count_of(recognise_for_gpu(&a, g), "reduce"), 1);
    }
    assert_int_equal(count_of(recognise_for_gpu(&a, parse(&a, longer)), "reduce"), 1);
    arena_free(&a);
}

int main(void)
{
    base_seed = check_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_of_moved_windows_are_maps),
                                       cmocka_unit_test(other_sums_stay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
