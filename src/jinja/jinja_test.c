/* jinja_test.c - templates of a few words: white space, scopes, errors and where they are, limits,
 * memory that runs out.
 *
 * That values behave as Python's is tested against the real Jinja2 by tests/test_jinja.py.
 */
#include "check.h"

#include <stdlib.h>

#include "jinja/jinja.h"

/* ---- allocations that fail ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifndef SANITIZED
void *__libc_memalign(size_t alignment, size_t n);
void *__libc_realloc(void *p, size_t n);

static long made, fail_at; /* the allocation of this number fails; 0: none */

/* Every allocation of the room goes through these two: number fail_at fails, so each path of an
 * error is tried in turn. */
void *aligned_alloc(size_t alignment, size_t n)
{
    return ++made == fail_at ? NULL : __libc_memalign(alignment, n);
}

void *realloc(void *p, size_t n)
{
    return ++made == fail_at ? NULL : __libc_realloc(p, n);
}
#endif

/* ---- rendering ---- */

/* Parse and run a template at a fixed time, one year after 1970. */
static mpk_status render(mpk_context *cx, const char *source, const char *variables, text *out)
{
    arena a = {0};
    const jinja_template *t = NULL;
    const json_value *given = NULL;
    mpk_status status = jinja_parse(cx, &a, str_from(source), &t);
    if (status == MPK_OK && variables)
        status = json_parse(cx, &a, str_from(variables), &given);
    if (status == MPK_OK)
        status = jinja_render(cx, t, given, 86400 * 365, out);
    arena_free(&a);
    return status;
}

static void check_text(const char *source, const char *variables, const char *expected)
{
    mpk_context cx = {0};
    text out = {0};
    check_ok(&cx, render(&cx, source, variables, &out));
    assert_string_equal(out.at ? out.at : "", expected);
    text_free(&out);
}

static void check_refusal(mpk_status code, const char *words, const char *source)
{
    mpk_context cx = {0};
    text out = {0};
    check_fails(&cx, code, words,
                render(&cx, source, "{\"l\": [1, 2, 3], \"big\": 12345678901234567890123}", &out));
    text_free(&out);
}

/* Jinja2 with trim_blocks and lstrip_blocks, as Transformers sets it; `-` and `+` override both. */
static void test_white_space(void **state)
{
    (void)state;
    check_text("a\n", NULL, "a"); /* one newline at the end goes */
    check_text("a\n\n", NULL, "a\n");
    check_text("a\r\nb\rc", NULL, "a\nb\nc");
    /* lines of tags alone vanish */
    check_text("  {% if 1 %}\n a\n  {% endif %}\nb", NULL, " a\nb");
    check_text("  {%+ if 1 %}a{% endif +%}\nb", NULL, "  a\nb");
    check_text("x  {% if 1 %} a {% endif %} y", NULL, "x   a  y");
    check_text("x \n {%- if 1 -%} \n a \n {%- endif -%} \n y", NULL, "xay");
    check_text(" {{- 1 -}} \n{{ 2 }}\n{# c #}\n 3", NULL, "12\n 3");
    check_text("  {% raw -%}  {{ x }} {%- endraw %}  |", NULL, "{{ x }}  |");
}

/* A name that is set inside a loop or macro is gone after it; only a namespace carries a value
 * out. `if` opens no scope. */
static void test_scopes(void **state)
{
    (void)state;
    const char *l = "{\"l\": [1, 2, 3], \"given\": \"g\"}";
    check_text("{% set x = 0 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}", l,
               "1230");
    check_text(
        "{% set n = namespace(x=0) %}{% for i in l %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}",
        l, "6");
    check_text("{% if 1 %}{% set x = 5 %}{% endif %}{{ x }}", l, "5");
    check_text("{% macro f(a, b=a) %}{{ a }}{{ b }}{{ l[0] }}{% set l = 1 %}{% endmacro %}{{ f(7) "
               "}}{{ l }}",
               l, "771[1, 2, 3]");
    /* hidden until set */
    check_text("{% for i in l %}{{ given }}{% endfor %}{% set given = 1 %}{{ given }}", l, "1");
    check_text("{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", l,
               "123");
    check_text("{% macro f() %}<{{ caller(2) }}>{% endmacro %}{% call(x) f() %}{{ x }}{{ l[x] }}{% "
               "endcall %}",
               l, "<23>");
    check_text("{% with l = 1 %}{{ l }}{% endwith %}{{ l|length }}", l, "13");
}

/* loop counts what the filter left, `else` runs if nothing did, and a recursive loop calls
 * itself. */
static void test_loops(void **state)
{
    (void)state;
    const char *l = "{\"l\": [1, 2, 3]}";
    check_text(
        "{% for i in l if i != 2 %}{{ loop.index }}{{ i }}{{ ',' if not loop.last }}{% endfor %}",
        l, "11,23");
    check_text("{% for i in l %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", l,
               "13");
    check_text(
        "{% for i in l %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% else %}e{% endfor %}", l,
        "1");
    check_text("{% for i in [] %}{% else %}e{% endfor %}", l, "e");
    check_text(
        "{% for a in [[1, [2]], 3] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}",
        l, "123");
}

/* Values print as Python prints them, slices count characters and not bytes, and a number beyond
 * 64 bits stays as it was spelled. */
static void test_values(void **state)
{
    (void)state;
    check_text("{{ [1.0, 'a', none, true, \"it's\", (1,), {'k': 2}] }}", NULL,
               "[1.0, 'a', None, True, \"it's\", (1,), {'k': 2}]");
    check_text("{{ s[1:3] }}{{ s|length }}{{ s[::-1] }}", "{\"s\": \"a\\u00e9\\u4f60b\"}",
               "é你4b你éa");
    check_text("{{ x }}{{ x|tojson }}{{ x == 1 }}{{ x is integer }}",
               "{\"x\": 12345678901234567890}",
               /* no 64-bit number: as it is spelled */
               "1234567890123456789012345678901234567890FalseTrue");
}

static void test_dates(void **state)
{
    (void)state;
    mpk_context cx = {0};
    text out = {0};
    check_ok(&cx, render(&cx, "{{ strftime_now('%Y %%') }}", NULL, &out));
    assert_true(strcmp(out.at, "1971 %") == 0 || strcmp(out.at, "1970 %") == 0); /* by time zone */
    text_free(&out);
}

/* Faults of the template name line and column; those of a run the line; what is not supported is
 * named. */
static void test_errors_say_where(void **state)
{
    (void)state;
    check_refusal(MPK_EFORMAT, "line 2, column 4: ", "\n{% nonsense %}");
    check_refusal(MPK_EFORMAT, "line 1, column 6: expected }}, found b", "{{ a b }}");
    check_refusal(MPK_EFORMAT, "the template ends, expected endif", "{% if 1 %}");
    check_refusal(MPK_EFORMAT, "line 3: 'x' is undefined", "\n\n{{ x.y }}");
    check_refusal(MPK_EFORMAT, "line 2: a string + an integer is not possible", "\n{{ 'a' + 1 }}");
    check_refusal(MPK_EFORMAT, "refuses this conversation: too short (line 1)",
                  "{{ raise_exception('too short') }}");
    check_refusal(MPK_EFORMAT, "not UTF-8", "\xff");
    check_refusal(MPK_EFORMAT, "there is no loop", "{% break %}");
    check_refusal(MPK_EUNSUPPORTED, "the statement include", "{% include 'x' %}");
    check_refusal(MPK_EUNSUPPORTED, "there is no filter nosuch", "{{ 1|nosuch }}");
    check_refusal(MPK_EUNSUPPORTED, "the filter urlize", "{{ 'a'|urlize }}");
    check_refusal(MPK_EUNSUPPORTED, "the method encode", "{{ 'a'.encode() }}");
    check_refusal(MPK_EUNSUPPORTED, "beyond 64 bits", "{{ 9223372036854775807 + 1 }}");
    check_refusal(MPK_EFORMAT, "'append' is undefined", "{{ l.append(1) }}");
}

/* What Python does with an integer beyond 64 bits, or with what looks like a number, is not done,
 * and never done wrong. */
static void test_numbers_are_refused(void **state)
{
    static const char *const sources[] = {"{{ -big }}",
                                          "{{ big|abs }}",
                                          "{{ big|round }}",
                                          "{{ l[:big] }}",
                                          "{{ range(big) }}",
                                          "{{ '{:d}'.format(big) }}",
                                          "{{ (-9223372036854775807 - 1) % -1 }}"};
    (void)state;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        check_refusal(MPK_EUNSUPPORTED, "integers beyond 64 bits", sources[i]);
    check_refusal(MPK_EUNSUPPORTED, "beyond 64 bits", "{{ big == 1.5 }}");
    check_refusal(MPK_EUNSUPPORTED, "digits beyond ASCII", "{{ '\xd9\xa3'|int }}");
    check_refusal(MPK_EUNSUPPORTED, "digits beyond ASCII", "{{ '1\xd9\xa3.5'|float }}");
    check_refusal(MPK_EUNSUPPORTED, "more than 127 characters", "{{ ('0' * 200 ~ '7')|int }}");
    check_refusal(MPK_EUNSUPPORTED, "base 16", "{{ 'a_b'|int(base=16) }}");
    check_refusal(MPK_EUNSUPPORTED, "%* is not supported", "{{ '%*d' % (5, 3) }}");
    check_refusal(MPK_EFORMAT, "unknown kind", "{{ '%y' % 5 }}");
    check_refusal(MPK_EFORMAT, "unknown kind", "{{ '%\\x00' % 5 }}");
    check_text("{{ (-9223372036854775807 - 1) % 10 }} {{ -7 % 3 }} {{ 7 % -3 }}", NULL, "2 2 -2");
}

/* n times s between two texts. */
static void check_repeated(mpk_status code, const char *words, const char *before, const char *s,
                           int n, const char *after)
{
    text t = {0};
    text_print(&t, "%s", before);
    for (int i = 0; i < n; i++)
        text_print(&t, "%s", s);
    text_print(&t, "%s", after);
    check_refusal(code, words, t.at);
    text_free(&t);
}

/* Templates that would run, recurse or grow without end stop with an error. */
static void test_limits(void **state)
{
    (void)state;
    check_refusal(MPK_ELIMIT, "does not come to an end",
                  "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
    check_refusal(MPK_ELIMIT, "levels deep", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
    check_refusal(MPK_ELIMIT, "bytes", "{{ 'abc' * 99999999 }}");
    check_refusal(MPK_ELIMIT, "bytes",
                  "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x "
                  "%}{% endfor %}");
    check_refusal(MPK_ELIMIT, "chat template",
                  "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x "
                  "%}{% endfor %}");
    check_refusal(MPK_ELIMIT, "levels deep",
                  "{% set n = namespace(x=1) %}{% for i in range(2000) %}{% set n.x = [n.x] %}{% "
                  "endfor %}{{ n.x }}");
    check_refusal(MPK_ELIMIT, "levels deep", "{% set n = namespace() %}{% set n.n = n %}{{ n }}");
    /* as a key, too, and where a tuple holds one value 2^70 times */
    check_refusal(MPK_ELIMIT, "levels deep",
                  "{% set n = namespace(x=()) %}{% for i in range(900) %}{% for k in range(900) %}"
                  "{% set n.x = (n.x,) %}{% endfor %}{% endfor %}{{ {n.x: 1} }}");
    check_refusal(MPK_ELIMIT, "does not come to an end",
                  "{% set n = namespace(x=()) %}{% for i in range(70) %}{% set n.x = (n.x, n.x) %}"
                  "{% endfor %}{{ {}[n.x] }}");
    check_repeated(MPK_ELIMIT, "nested", "{{ 1", " + 1", 1000, " }}");
    check_repeated(MPK_ELIMIT, "brackets", "{{ ", "(", 1000, "");
    check_repeated(MPK_ELIMIT, "nested", "{{ ", "not ", 1000, "1 }}");
    check_repeated(MPK_ELIMIT, "nested", "", "{% if 1 %}", 1000, "");
}

/* Many strings side by side take memory in proportion to the source. */
static void test_strings_side_by_side(void **state)
{
    enum { STRINGS = 20000 };
    mpk_context cx = {0};
    arena a = {0};
    text source = {0}, out = {0};
    const jinja_template *t = NULL;
    (void)state;
    text_print(&source, "{{ (");
    for (int i = 0; i < STRINGS; i++)
        text_print(&source, "'%c' ", 'a' + i % 26);
    text_print(&source, ")[25:28] }}");
    check_ok(&cx, jinja_parse(&cx, &a, (str){source.at, source.n}, &t));
    assert_true(a.reserved_bytes < (size_t)32 << 20);
    check_ok(&cx, jinja_render(&cx, t, NULL, 0, &out));
    assert_string_equal(out.at, "zab");
    text_free(&out);
    text_free(&source);
    arena_free(&a);
}

/* Every allocation of a rendering fails once: the status says so, or the text is whole. */
static void test_memory_that_runs_out(void **state)
{
    (void)state;
#ifndef SANITIZED
    static const char source[] = "{% macro f(x) %}{{ x|tojson(indent=2) }}{% endmacro %}{% for i "
                                 "in range(100) %}{% set s %}{{ f(l) }}"
                                 "{{ '%s' % i }}{% endset %}{{ s ~ 'é'.upper() ~ 1.5 ~ [i] }}{% "
                                 "endfor %}{{ l|sort|map('string')|join(',') }}";
    mpk_status status = MPK_ENOMEM;
    long failures = 0;
    text expected = {0};
    mpk_context cx = {0};
    check_ok(&cx, render(&cx, source, "{\"l\": [3, 1, 2]}", &expected));
    for (long at = 1; status == MPK_ENOMEM; at++) {
        text out = {0};
        made = 0;
        fail_at = at;
        status = render(&cx, source, "{\"l\": [3, 1, 2]}", &out);
        fail_at = 0;
        assert_true(status == MPK_ENOMEM || status == MPK_OK);
        if (status == MPK_OK)
            assert_string_equal(out.at, expected.at);
        failures += status == MPK_ENOMEM;
        text_free(&out);
    }
    assert_true(failures > 100);
    text_free(&expected);
#else
    assert_true(true); /* the sanitizer's allocator cannot be taken over */
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_white_space),
        cmocka_unit_test(test_scopes),
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_dates),
        cmocka_unit_test(test_errors_say_where),
        cmocka_unit_test(test_numbers_are_refused),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_strings_side_by_side),
        cmocka_unit_test(test_memory_that_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
