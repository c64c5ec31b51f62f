/* json_test.c - documents that are right, and each fault with its place. */
#include "check.h"
#include "base/json.h"
#include "base/rng.h"

static const json_value *parse(arena *a, const char *source)
{
    mpk_context cx = {0};
    const json_value *v = NULL;
    check_ok(&cx, json_parse(&cx, a, str_from(source), &v));
    return v;
}

static void test_values(void **state)
{
    (void)state;
    arena a = {0};
    const json_value *v = parse(
        &a, " {\"a\": [1, -2.5e1, true, false, null, \"x\"], \"b\": {}, \"c\": [], \"\": 0}\n");
    assert_int_equal(v->kind, JSON_KIND_OBJECT);
    assert_int_equal(v->n, 4);
    const json_value *list = json_get(v, "a");
    assert_true(json_is(list, JSON_KIND_LIST) && list->n == 6);
    assert_true(list->items[0].is_integer && list->items[0].integer == 1 &&
                list->items[0].number == 1);
    assert_true(!list->items[1].is_integer && list->items[1].number == -25);
    assert_true(list->items[2].boolean && !list->items[3].boolean &&
                list->items[3].kind == JSON_KIND_BOOL);
    assert_int_equal(list->items[4].kind, JSON_KIND_NULL);
    assert_true(str_is(list->items[5].text, "x"));
    assert_true(json_is(json_get(v, "b"), JSON_KIND_OBJECT) && json_get(v, "c")->n == 0 &&
                json_get(v, ""));
    assert_null(json_get(v, "d"));
    assert_null(json_get(NULL, "d"));
    assert_null(json_get(list, "d"));
    assert_null(json_get(parse(&a, "{\"n\": null}"), "n"));
    arena_free(&a);
}

/* Which numbers are integers of 64 bits, and that the others are the nearest doubles. */
static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        double number;
        bool is_integer;
    } cases[] = {{"0", 0, true},
                 {"-0", 0, true},
                 {"9223372036854775807", 0x1p63, true},
                 {"-9223372036854775808", -0x1p63, true},
                 {"9223372036854775808", 0x1p63, false},
                 {"0.1", 0.1, false},
                 {"1E+2", 100, false},
                 {"1e-05", 1e-5, false},
                 {"1e-400", 0, false},
                 {"123456789012345678901234567890", 123456789012345678901234567890.0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        arena a = {0};
        const json_value *v = parse(&a, cases[i].source);
        assert_true(v->kind == JSON_KIND_NUMBER && v->number == cases[i].number);
        assert_int_equal(v->is_integer, cases[i].is_integer);
        arena_free(&a);
    }
    arena a = {0};
    assert_true(parse(&a, "9223372036854775807")->integer == INT64_MAX);
    assert_true(parse(&a, "-9223372036854775808")->integer == INT64_MIN);
    arena_free(&a);
}

static void test_strings(void **state)
{
    (void)state;
    arena a = {0};
    const json_value *v = parse(
        &a,
        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\", \"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\", \"é€😀\", \"\"]");
    assert_true(str_is(v->items[0].text, "\"\\/\b\f\n\r\t"));
    assert_true(str_is(v->items[1].text, "Aé€😀"));
    assert_true(str_is(v->items[2].text, "é€😀"));
    assert_int_equal(v->items[3].text.n, 0);
    v = parse(&a, "\"a\\u0000b\"");
    assert_int_equal(v->text.n, 3);
    assert_memory_equal(v->text.at, "a\0b", 3);
    arena_free(&a);
}

/* Each rule of the grammar broken once: the message says where, and what was expected there. */
static void test_each_fault(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "line 1, column 1: expected a value"},
        {"{\"a\": 1,\n \"b\" 2}", "line 2, column 6: expected a colon"},
        {"[1 2]", "column 4: expected a comma or ]"},
        {"[1,]", "expected a value"},
        {"{\"a\":1,}", "expected a string"},
        {"{\"a\":1 \"b\":2}", "expected a comma or }"},
        {"{a: 1}", "expected a string"},
        {"[1", "expected a comma or ]"},
        {"[1] 2", "expected the end of the document"},
        {"01", "expected a value"},
        {"+1", "expected a value"},
        {"-", "expected a value"},
        {"1.", "expected a digit"},
        {"1e", "expected a digit"},
        {"1e999", "expected a smaller number"},
        {"NaN", "expected a value"},
        {"nul", "expected a value"},
        {"\"abc", "expected the end of the string"},
        {"\"abc\\", "expected the end of the string"},
        {"\"a\nb\"", "no control character"},
        {"\"\\x\"", "expected an escape"},
        {"\"\\u12g4\"", "four hexadecimal digits"},
        {"\"\\ud83d\"", "second half"},
        {"\"\\ud83d\\u0041\"", "second half"},
        {"\"\\ude00\"", "not half of one"},
        {"\"\xff\"", "expected UTF-8"},
        {"\"\xc0\x80\"", "expected UTF-8"},
        {"\"\xed\xa0\x80\"", "expected UTF-8"},
        {"\"\xf0\x9f\x98\"", "expected UTF-8"},
        {"{\"a\": 1, \"a\": 2}", "two members \"a\""},
        {"{\"1\":0,\"2\":0,\"3\":0,\"4\":0,\"5\":0,\"6\":0,\"7\":0,\"8\":0,\"9\":0,\"3\":0}",
         "two members \"3\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mpk_context cx = {0};
        arena a = {0};
        const json_value *v = NULL;
        check_fails(&cx, MPK_EFORMAT, cases[i][1], json_parse(&cx, &a, str_from(cases[i][0]), &v));
        assert_null(v);
        arena_free(&a);
    }
}

/* A number that no double holds is refused as a setting, and kept as it is spelt where it is passed
 * on. */
static void test_any_number(void **state)
{
    (void)state;
    static const char source[] = "{\"a\":-641.4e805}";
    mpk_context cx = {0};
    arena a = {0};
    const json_value *v = NULL;
    text t = {0};
    check_fails(&cx, MPK_EFORMAT, "a smaller number", json_parse(&cx, &a, STR(source), &v));
    check_ok(&cx, json_parse_any_number(&cx, &a, STR(source), &v));
    assert_true(v->items[0].number < -1e308);
    json_write(&t, v, 0);
    assert_string_equal(text_str(&t).at, source);
    check_fails(&cx, MPK_EFORMAT, "a value", json_parse_any_number(&cx, &a, STR("{\"a\":}"), &v));
    text_free(&t);
    arena_free(&a);
}

/* Nesting is bounded, since the parser recurses; a large document is not. */
static void test_depth_and_size(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    text t = {0};
    const json_value *v;
    for (int i = 0; i < 100000; i++)
        text_add(&t, "[", 1);
    check_fails(&cx, MPK_EFORMAT, "fewer levels", json_parse(&cx, &a, (str){t.at, t.n}, &v));
    text_free(&t);
    text_print(&t, "{");
    for (int i = 0; i < 100000; i++)
        text_print(&t, "%s\"k%d\": [%d, [%d]]", i ? "," : "", i, i, i);
    text_print(&t, "}");
    check_ok(&cx, json_parse(&cx, &a, (str){t.at, t.n}, &v));
    assert_int_equal(v->n, 100000);
    assert_int_equal(v->items[99999].items[1].items[0].integer, 99999);
    text_free(&t);
    arena_free(&a);
}

/* Objects of random names: refused if and only if two are equal, which pairs tell. */
static void test_names(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    for (uint64_t round = 0; round < 200; round++) {
        mpk_context cx = {0};
        arena a = {0};
        text t = {0};
        const json_value *v = NULL;
        char names[64][8];
        const size_t n = rng_u64(seed, 100 * round) % 64, letters = 1 + round % 20;
        bool twice = false;
        text_print(&t, "{");
        for (size_t i = 0; i < n; i++) {
            const uint64_t r = rng_u64(seed, 100 * round + 1 + i);
            size_t k = r % 8;
            for (size_t c = 0; c < k; c++)
                names[i][c] = (char)('a' + (r >> (8 + 7 * c)) % letters);
            names[i][k] = 0;
            for (size_t c = 0; c < i; c++)
                twice = twice || strcmp(names[c], names[i]) == 0;
            text_print(&t, "%s\"%s\":%zu", i ? "," : "", names[i], i);
        }
        text_print(&t, "}");
        if (twice)
            check_fails(&cx, MPK_EFORMAT, "two members", json_parse(&cx, &a, text_str(&t), &v));
        else {
            check_ok(&cx, json_parse(&cx, &a, text_str(&t), &v));
            assert_int_equal(v->n, n);
        }
        text_free(&t);
        arena_free(&a);
    }
}

/* Objects are equal whatever the order of their members. */
static void test_equality(void **state)
{
    (void)state;
    arena a = {0};
    assert_true(
        json_equals(parse(&a, "{\"a\": 1, \"b\": [2]}"), parse(&a, "{\"b\": [2], \"a\": 1}")));
    assert_false(
        json_equals(parse(&a, "{\"a\": 1, \"b\": [2]}"), parse(&a, "{\"b\": [3], \"a\": 1}")));
    assert_false(json_equals(parse(&a, "{\"a\": 1}"), parse(&a, "{\"b\": 1}")));
    assert_false(json_equals(parse(&a, "[true]"), parse(&a, "[false]")));
    arena_free(&a);
}

/* A parsed document is written as it came, numbers digit by digit; with an indent it is laid
 * out. Bytes that are no UTF-8 must not reach a reader as they are. */
static void test_writing(void **state)
{
    (void)state;
    arena a = {0};
    text t = {0};
    static const char compact[] = "{\"a\":[1,-2.50,1e-05,12345678901234567890123],\"b\\n\":{},\"\":"
                                  "[],\"c\":[null,true,false]}";
    json_write(&t, parse(&a, compact), 0);
    assert_string_equal(t.at, compact);
    text_free(&t);
    json_write(&t, parse(&a, "{\"a\":[1,{\"b\":[]}]}"), 2);
    assert_string_equal(t.at, "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ]\n}");
    text_free(&t);
    json_write_str(&t, STR("\"\\/\b\f\n\r\t\x01\x7f\0\xc3\xa4\xf0\x9f\x98\x80\xff\xc3"));
    assert_string_equal(
        t.at,
        "\"\\\"\\\\/"
        "\\b\\f\\n\\r\\t\\u0001\\u007f\\u0000\xc3\xa4\xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbd\"");
    text_free(&t);
    /* Line ends of Unicode are escaped, their neighbours are not. */
    json_write_str(&t, STR("\xc2\x84\xc2\x85\xe2\x80\xa7\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaa"));
    assert_string_equal(t.at, "\"\xc2\x84\\u0085\xe2\x80\xa7\\u2028\\u2029\xe2\x80\xaa\"");
    text_free(&t);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_number), cmocka_unit_test(test_values),
        cmocka_unit_test(test_numbers),    cmocka_unit_test(test_strings),
        cmocka_unit_test(test_each_fault), cmocka_unit_test(test_depth_and_size),
        cmocka_unit_test(test_names),      cmocka_unit_test(test_equality),
        cmocka_unit_test(test_writing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
