/* tagged_test.c - calls whose arguments stand in tags: the form that holds them takes the texts
 * that it should and no others, and what is read from these texts is valid by the schema. */
#include "check.h"
#include "grammar/grammar.h"
#include "net/net_tagged.h"

static const char parameters[] =
    "{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\"},"
    "\"mode\":{\"enum\":[\"add\",\"cut\",3]},\"code\":{\"type\":\"string\",\"pattern\":\"^[a-c]+$"
    "\"},"
    "\"part\":{\"type\":\"string\",\"pattern\":\"z[0-9]\"},"
    "\"short\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":3},"
    "\"note\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":4},{\"type\":\"null\"}]},"
    "\"spot\":{\"$ref\":\"#/$defs/spot\"},\"only\":{\"const\":\"it\"},"
    "\"loose\":{\"type\":\"string\",\"anyOf\":[]}},"
    "\"required\":[\"path\",\"free\"],\"$defs\":{\"spot\":{\"type\":\"object\",\"properties\":{"
    "\"x\":{"
    "\"type\":\"integer\"}},\"required\":[\"x\"],\"additionalProperties\":false}}}";

#define P(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"

/* arguments NULL: the form does not take the text. */
static const struct {
    const char *text, *arguments;
} examples[] = {
    {P("path", "a \"b\"\n<x></y") P("free", "[1, \"q\"]"),
     "{\"path\":\"a \\\"b\\\"\\n<x></y\",\"free\":[1,\"q\"]}"},
    {P("path", "") P("mode", "cut") P("code", "abc") P("free", "1"),
     "{\"path\":\"\",\"mode\":\"cut\",\"code\":\"abc\",\"free\":1}"},
    {P("path", "p") P("mode", "3") P("part", "a z5 b") P("short", "ab") P("note", "null")
         P("spot", "{\"x\": 4}") P("only", "it") P("free", "null"),
     "{\"path\":\"p\",\"mode\":3,\"part\":\"a z5 "
     "b\",\"short\":\"ab\",\"note\":null,\"spot\":{\"x\":4},"
     "\"only\":\"it\",\"free\":null}"},
    {P("path", "p") P("note", "some") P("free", "true"),
     "{\"path\":\"p\",\"note\":\"some\",\"free\":true}"},
    {P("path", "p") P("loose", "any word") P("free", "1"),
     "{\"path\":\"p\",\"loose\":\"any word\",\"free\":1}"},
    {P("free", "1"), NULL},                                       /* path is missing */
    {P("path", "p"), NULL},                                       /* free is */
    {P("path", "p") P("mode", "add to") P("free", "1"), NULL},    /* none of the three */
    {P("path", "p") P("code", "abd") P("free", "1"), NULL},       /* not the pattern */
    {P("path", "p") P("part", "z") P("free", "1"), NULL},         /* nowhere in it */
    {P("path", "p") P("short", "a") P("free", "1"), NULL},        /* too short */
    {P("path", "p") P("short", "abcd") P("free", "1"), NULL},     /* too long */
    {P("path", "p") P("note", "nobody") P("free", "1"), NULL},    /* an option's length */
    {P("path", "p") P("spot", "{\"y\":1}") P("free", "1"), NULL}, /* what $ref leads to */
    {P("path", "p") P("only", "she") P("free", "1"), NULL},
    {P("path", "p") P("free", "word"), NULL}, /* no JSON */
    {P("path", "p") P("other", "1") P("free", "1"), NULL},
};

static bool takes(mpk_context *cx, grammar *g, str s)
{
    grammar_matcher *m = NULL;
    bool fits = false, may_end = false;
    check_ok(cx, grammar_matcher_open(cx, g, NULL, &m));
    check_ok(cx, grammar_matcher_read(cx, m, s, &fits, &may_end));
    grammar_matcher_close(m);
    return fits && may_end;
}

static void check_read(mpk_context *cx, arena *a, const json_value *tools, str s,
                       const char *expect)
{
    str name;
    text arguments = {0};
    bool found = false;
    check_ok(cx, net_tagged_read(cx, a, tools, &s, &name, &arguments, &found));
    assert_true(found);
    assert_true(str_is(name, "edit"));
    assert_string_equal(arguments.at, expect);
    text_free(&arguments);
}

/* As each of the two models writes it: values on lines of their own, or right beside the tags. */
static void check_form(bool lines)
{
    mpk_context cx = {0};
    arena a = {0};
    text source = {0}, listed = {0};
    const json_value *schema, *tools;
    grammar *g = NULL;
    check_ok(&cx, json_parse(&cx, &a, str_from(parameters), &schema));
    text_print(&listed, "[{\"function\":{\"name\":\"edit\",\"parameters\":%s}}]", parameters);
    check_ok(&cx, json_parse(&cx, &a, text_str(&listed), &tools));
    assert_true(net_tagged_can_hold(schema));
    text_print(&source,
               "{\"format\":{\"type\":\"tag\",\"begin\":\"<function=edit>\\n\",\"content\":");
    net_tagged_write(schema, lines, &source);
    text_print(&source, ",\"end\":\"</function>\"}}");
    assert_false(source.failed);
    check_ok(&cx, grammar_make(&cx, GRAMMAR_TAG, text_str(&source), &g));
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        text call = {0};
        text_print(&call, "<function=edit>\n");
        for (const char *c = examples[i].text; *c; c++)
            if (lines || *c != '\n' || !(c[-1] == '>' || strncmp(c + 1, "</p", 3) == 0) ||
                strncmp(c - 10, "parameter>", 10) == 0)
                text_add(&call, c, 1);
        text_print(&call, "</function>");
        if (takes(&cx, g, text_str(&call)) != (examples[i].arguments != NULL))
            fail_msg("%s", call.at);
        if (examples[i].arguments)
            check_read(&cx, &a, tools, text_str(&call), examples[i].arguments);
        text_free(&call);
    }
    grammar_free(g);
    text_free(&source);
    text_free(&listed);
    arena_free(&a);
}

static void test_forms(void **state)
{
    (void)state;
    check_form(true);
    check_form(false);
}

/* A parameter whose options are the parameter itself, eight times: 8^16 ways through 16 levels, of
 * which few are looked at. */
static void test_options_of_themselves(void **state)
{
    mpk_context cx = {0};
    arena a = {0};
    text own = {0}, listed = {0}, source = {0};
    const json_value *tools, *schema;
    (void)state;
    text_print(&own, "{\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"string\"}");
    for (int i = 0; i < 8; i++)
        text_print(&own, ",{\"$ref\":\"#/properties/a\"}");
    text_print(&own, "]},\"b\":{\"anyOf\":[");
    for (int i = 0; i < 8; i++)
        text_print(&own, "%s{\"$ref\":\"#/properties/b\"}", i ? "," : "");
    text_print(&own, "]}}}");
    text_print(&listed, "[{\"function\":{\"name\":\"edit\",\"parameters\":%s}}]", own.at);
    check_ok(&cx, json_parse(&cx, &a, text_str(&own), &schema));
    check_ok(&cx, json_parse(&cx, &a, text_str(&listed), &tools));
    check_read(&cx, &a, tools,
               STR("<function=edit><parameter=a>1</parameter><parameter=b>2</parameter>"
                   "</function>"),
               "{\"a\":\"1\",\"b\":2}");
    net_tagged_write(schema, false, &source);
    assert_false(source.failed);
    assert_true(source.n < 4 << 20);
    text_free(&own);
    text_free(&listed);
    text_free(&source);
    arena_free(&a);
}

/* Each parameter is looked for among those that must be there: too many are not held. */
static void test_many_parameters(void **state)
{
    mpk_context cx = {0};
    arena a = {0};
    text own = {0};
    const json_value *schema;
    (void)state;
    text_print(&own, "{\"properties\":{\"p0\":true");
    for (int i = 1; i < 4000; i++)
        text_print(&own, ",\"p%d\":true", i);
    text_print(&own, "},\"required\":[\"p0\"");
    for (int i = 1; i < 4000; i++)
        text_print(&own, ",\"p%d\"", i);
    text_print(&own, "]}");
    check_ok(&cx, json_parse(&cx, &a, text_str(&own), &schema));
    assert_false(net_tagged_can_hold(schema));
    text_free(&own);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms),
                                       cmocka_unit_test(test_options_of_themselves),
                                       cmocka_unit_test(test_many_parameters)};
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
