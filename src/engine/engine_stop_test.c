/* engine_stop_test.c - stop texts: however the text is cut into pieces, the same is shown, and
 * never a part of a stop.
 */
#include <string.h>

#include "base/rng.h"
#include "check.h"
#include "engine/engine.h"

/* What is shown of a text in pieces of random length; checks at every piece that only what is sure
 * is shown. */
static void check_cut(const char *source, const str *stops, uint32_t n_stops, bool keeps,
                      const char *expected, uint64_t seed)
{
    engine_stream s = {.stops = stops, .n_stops = n_stops, .keeps_stop = keeps};
    size_t n = strlen(source);
    for (size_t at = 0, i = 0; at < n; i++) {
        size_t piece = 1 + rng_u64(seed, i) % 4;
        piece = piece < n - at ? piece : n - at;
        assert_true(engine_stream_put(&s, (str){source + at, piece}));
        at += piece;
        assert_true(s.n_shown <= strlen(expected));
        assert_memory_equal(s.text.at, expected, s.n_shown);
    }
    engine_stream_end(&s);
    assert_int_equal(s.n_shown, strlen(expected));
    assert_string_equal(s.text.at, expected);
    assert_int_equal(s.stopped, strcmp(source, expected) != 0);
    text_free(&s.text);
}

/* A text cut into random pieces ends before the first stop text, wherever the cuts fall; with
 * include_stop after it. What is only the beginning of one is shown at the end. */
static void test_cuts(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    const str stops[] = {STR("END"), STR("\n\n"), STR("ab ab c")};
    const str shorter[] = {STR("END of"), STR("END")};
    for (uint64_t i = 0; i < 200; i++) {
        check_cut("one two EN three\n four END five", stops, 3, false, "one two EN three\n four ",
                  seed + i);
        check_cut("x\n\nEND", stops, 3, false, "x", seed + i);
        check_cut("ab ab ab ab c d", stops, 3, false, "ab ab ", seed + i);
        check_cut("nothing of it, EN", stops, 3, false, "nothing of it, EN", seed + i);
        check_cut("no stops at all", NULL, 0, false, "no stops at all", seed + i);
        check_cut("one two EN three\n four END five", stops, 3, true, "one two EN three\n four END",
                  seed + i);
        check_cut("ab ab ab ab c d", stops, 3, true, "ab ab ab ab c", seed + i);
        check_cut("ENEN, END of it", shorter, 2, true, "ENEN, END", seed + i);
    }
}

/* n_shown is how far the text may be shown: not into what could still become a stop text. After
 * a stop nothing is added. */
static void test_holds_back(void **state)
{
    (void)state;
    const str stops[] = {STR("STOP")};
    engine_stream s = {.stops = stops, .n_stops = 1};
    assert_true(engine_stream_put(&s, STR("abST")));
    assert_int_equal(s.n_shown, 2);
    assert_true(engine_stream_put(&s, STR("OX")));
    assert_int_equal(s.n_shown, 6);
    assert_true(engine_stream_put(&s, STR("STOP tail")));
    assert_true(s.stopped);
    assert_true(engine_stream_put(&s, STR("more")));
    assert_string_equal(s.text.at, "abSTOX");
    text_free(&s.text);
}

/* Of two stop texts that begin at the same place and are both there, the shorter one counts, in
 * whatever order they are listed; of two places the first. */
static void test_which_counts(void **state)
{
    (void)state;
    static const struct {
        str stops[2];
        const char *source, *expected;
        uint32_t counts;
    } cases[] = {{{STR("END"), STR("END of")}, "an END of it", "an END", 0},
                 {{STR("END of"), STR("END")}, "an END of it", "an END", 1},
                 {{STR("of"), STR("END")}, "an END of it", "an END", 1},
                 {{STR("END"), STR("of")}, "an END of it", "an END", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        engine_stream s = {.stops = cases[i].stops, .n_stops = 2, .keeps_stop = true};
        assert_true(engine_stream_put(&s, str_from(cases[i].source)));
        engine_stream_end(&s);
        assert_true(s.stopped);
        assert_int_equal(s.stop, cases[i].counts);
        assert_string_equal(s.text.at, cases[i].expected);
        text_free(&s.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuts),
                                       cmocka_unit_test(test_which_counts),
                                       cmocka_unit_test(test_holds_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
