/* net_parts_test.c - reasoning, content and calls of answers, whole and cut at random places. */
#include "check.h"
#include "base/rng.h"
#include "net/net_parts.h"

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\"}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"look_up\"}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"edit\",\"parameters\":{\"properties\":{"
    "\"path\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"on\":{\"type\":\"boolean\"},"
    "\"note\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
    "\"mode\":{\"enum\":[\"1\",2]},\"at\":{\"$ref\":\"#/$defs/spot\"},"
    "\"by\":{\"$ref\":\"#/$defs/name\"}},"
    "\"$defs\":{\"spot\":{\"type\":\"object\"},\"name\":{\"type\":[\"string\",\"null\"]}}}}}]";

typedef struct draws {
    uint64_t seed, n;
} draws;

static uint64_t draw(draws *r)
{
    return rng_u64(r->seed, r->n++);
}

typedef struct example {
    const char *prompt, *answer;
    bool tools;
    const char *reasoning, *content, *calls; /* calls: name and arguments, each followed by ; */
} example;

static const example examples[] = {
    {"", "Hello", false, "", "Hello", ""},
    {"", " \n Hello \n", false, "", " \n Hello \n", ""},
    {"", " \n Hello \n", true, "", " \n Hello \n", ""},
    {"", "", true, "", "", ""},
    {"", "\n\n", true, "", "\n\n", ""},
    {"", "a < b <tool", true, "", "a < b <tool", ""},
    {"", "<thin", false, "", "<thin", ""},
    {"", "<think>", false, "", "", ""},
    {"", "<think></think>", false, "", "", ""},
    {"", "<thinly>", false, "", "<thinly>", ""},
    {"", "say <think>no</think>", false, "", "say <think>no</think>", ""},
    {"", "<think>\nhm, 1 < 2\n</think>\n\nYes.\n", false, "hm, 1 < 2", "Yes.\n", ""},
    {"", "\n<think>a\n\nb", false, "a\n\nb", "", ""},
    {"", "<think>a</thin", false, "a</thin", "", ""},
    {"", "<think></think>\n\nYes", false, "", "Yes", ""},
    {"user: x\n<think>\n", "so\n</think>\n\nYes", false, "so", "Yes", ""},
    {"user: x\n<think>", "so", false, "so", "", ""},
    {"", "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}\n</tool_call>",
     true, "", "", "add{\"a\":1,\"b\":[2]};"},
    {"",
     "Let me "
     "see.\n<tool_call>{\"name\":\"add\",\"arguments\":\"{}\"}</"
     "tool_call>\n<tool_call>{\"name\":\"other\"}"
     "</tool_call>\n",
     true, "", "Let me see.\n", "add{};other{};"},
    {"",
     "<think>\nwhich?\n</think>\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": "
     "{}}\n</tool_call>",
     true, "which?", "", "add{};"},
    {"", "<tool_call>{\"name\":\"add\",\"arguments\":{}}", true, "", "", "add{};"},
    {"", "<tool_call>{\"name\":\"add\",\"argum", true, "", "<tool_call>{\"name\":\"add\",\"argum",
     ""},
    /* an object alone is a call only where it is the first thing */
    {"", "<tool_call>{\"name\":\"add\"}</tool_call>{\"name\":\"look_up\",\"parameters\":{}}", true,
     "", "{\"name\":\"look_up\",\"parameters\":{}}", "add{};"},
    {"", "<tool_call>no</tool_call> then", true, "", "<tool_call>no</tool_call>then", ""},
    {"", "<tool_call>{\"name\":\"add\"}</tool_call>", false, "",
     "<tool_call>{\"name\":\"add\"}</tool_call>", ""},
    {"", "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":\"\\\"</tool_call>\"}}</tool_call>",
     true, "", "", "add{\"a\":\"\\\"</tool_call>\"};"},
    {"",
     "Now:\n<tool_call>\n<function=edit>\n<parameter=path>\na \"b</tool_cal\n</parameter>\n"
     "<parameter=n>\n12\n</parameter>\n<parameter=on>\nTrue\n</parameter>\n"
     "<parameter=note>\nnull\n</parameter>\n</function>\n</tool_call>",
     true, "", "Now:\n",
     "edit{\"path\":\"a \\\"b</tool_cal\",\"n\":12,\"on\":true,\"note\":null};"},
    {"",
     "<tool_call>\n<function=edit>\n<parameter=note>\n\n  12\n\n</parameter>\n<parameter=mode>\n1\n"
     "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=edit>\n<parameter=mode>2"
     "</parameter><parameter=at>{\"x\": [1]}</parameter><parameter=by>{}</parameter>"
     "</function></tool_call>",
     true, "", "",
     "edit{\"note\":\"\\n  12\\n\",\"mode\":\"1\"};"
     "edit{\"mode\":2,\"at\":{\"x\":[1]},\"by\":\"{}\"};"},
    /* an end forgotten; a tool and a parameter not declared; a value that is no JSON */
    {"",
     "<seed:tool_call><function=edit><parameter=path>a\n<parameter=n>five</function>"
     "<function=other><parameter=x>{\"k\": 1}</parameter><parameter=y>so so</parameter></function>"
     "</seed:tool_call>",
     true, "", "", "edit{\"path\":\"a\",\"n\":\"five\"};other{\"x\":{\"k\":1},\"y\":\"so so\"};"},
    /* a value that is ended may hold what begins another one */
    {"",
     "<tool_call><function=edit><parameter=path>a\n<parameter=n>5</parameter></function></"
     "tool_call>",
     true, "", "", "edit{\"path\":\"a\\n<parameter=n>5\"};"},
    {"", "<tool_call><function=add></function></tool_call>", true, "", "", "add{};"},
    {"",
     "[THINK]hm[/THINK]So [TOOL_CALLS]add[ARGS]{\"a\": "
     "\"[TOOL_CALLS]\"}[TOOL_CALLS]look_up[CALL_ID]"
     "abcdefghi[ARGS] {}",
     true, "hm", "So ", "add{\"a\": \"[TOOL_CALLS]\"};look_up{};"},
    {"[THINK]\n", "hm\n[/THINK]\nYes", true, "hm", "Yes", ""},
    {"", "<seed:think>hm</think></seed:think>Yes", false, "hm</think>", "Yes", ""},
    {"", "[TOOL_CALLS]add[AR", true, "", "[TOOL_CALLS]add[AR", ""},
    {"", "[TOOL_CALLS]add[ARGS]", true, "", "", "add{};"},
    {"", "[TOOL_CALLS]add[ARGS]{}", false, "", "[TOOL_CALLS]add[ARGS]{}", ""},
    {"", "<tool_call><function=add", true, "", "<tool_call><function=add", ""},
    {"",
     "So:" NET_CALLS_BEGIN NET_CALL_BEGIN "function" NET_CALL_SEP
     "add\n```json\n{\"a\": 1}\n```" NET_CALL_END "\n" NET_CALL_BEGIN "look_up" NET_CALL_SEP
     "{}" NET_CALL_END NET_CALLS_END,
     true, "", "So:", "add{\"a\": 1};look_up{};"},
    {"",
     "<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>" NET_CALLS_BEGIN NET_CALL_BEGIN
     "function" NET_CALL_SEP "look_up\n```json\n{}\n```" NET_CALL_END NET_CALLS_END,
     true, "", "", "add{};look_up{};"},
    /* of two marks in a text the first one counts */
    {"",
     "So:<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>" NET_CALLS_BEGIN NET_CALL_BEGIN
     "function" NET_CALL_SEP "look_up\n```json\n{}\n```" NET_CALL_END NET_CALLS_END,
     true, "", "So:", "add{};look_up{};"},
    {"", NET_CALLS_BEGIN "add" NET_CALLS_END, true, "", NET_CALLS_BEGIN "add" NET_CALLS_END, ""},
    {"", "{\"name\": \"add\", \"parameters\": {\"a\": \"<tool_call>\"}}", true, "", "",
     "add{\"a\":\"<tool_call>\"};"},
    {"",
     " [{\"name\": \"add\", \"arguments\": {}}, {\"name\": \"look_up\", \"arguments\": {\"x\": "
     "null}}]",
     true, "", "", "add{};look_up{\"x\":null};"},
    {"", "{\"name\": \"nobody\", \"parameters\": {}}", true, "",
     "{\"name\": \"nobody\", \"parameters\": {}}", ""},
    {"", "{\"name\": \"add\"}", true, "", "{\"name\": \"add\"}", ""},
    {"", "[]", true, "", "[]", ""},
    {"", "{ is a brace", true, "", "{ is a brace", ""},
    {"<|start|>assistant",
     "<|channel|>analysis<|message|>a < b<|end|><|start|>assistant<|channel|>final<|message|>Yes "
     "<|",
     true, "a < b", "Yes <|", ""},
    {"<|start|>assistant",
     "<|channel|>analysis<|message|>Which?<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.add <|constrain|>json<|message|>{\"a\": 1}",
     true, "Which?", "", "add{\"a\": 1};"},
    {"<|start|>assistant", " to=functions.add<|channel|>commentary json<|message|>{\"a\": 1}", true,
     "", " to=functions.add<|channel|>commentary json<|message|>{\"a\": 1}", ""},
    {"",
     "<|channel|>commentary<|message|>First:<|end|><|start|>assistant to=functions.add<|channel|>"
     "commentary json<|message|> <|end|><|start|>assistant<|channel|>final<|message|>Done",
     true, "", "First:Done", "add{};"},
    {"", "<|channel|>commentary to=functions.add<|message|>{}", false, "", "{}", ""},
    {"", "<|channel|>final<|message|>a<|channel|>final", false, "", "a", ""},
    {"", "<|channel", false, "", "<|channel", ""},
    {"", "<|message|>", false, "", "<|message|>", ""},
};
enum { N_EXAMPLES = sizeof examples / sizeof *examples };

/* A reader that streams empties the texts: these hold all that came. */
typedef struct seen {
    text reasoning, content, calls;
} seen;

static void move(text *from, text *to)
{
    text_add(to, from->at, from->n);
    from->n = 0;
}

static void check_text(const char *what, const example *e, const text *t, const char *expected)
{
    if (t->n != strlen(expected) || (t->n && memcmp(t->at, expected, t->n) != 0))
        fail_msg("%s of '%s' is '%.*s', expected '%s'", what, e->answer, (int)t->n,
                 t->at ? t->at : "", expected);
}

/* The answer in pieces of at most `most` bytes. */
static void check_example(const example *e, draws *r, uint64_t most)
{
    mpk_context cx = {0};
    arena a = {0};
    net_parts p = {0};
    seen s = {0};
    const json_value *tools;
    const size_t n = strlen(e->answer);
    check_ok(&cx, json_parse(&cx, &a, str_from(tools_json), &tools));
    net_parts_open(&p, e->tools ? tools : NULL, str_from(e->prompt));
    for (size_t at = 0; at < n;) {
        size_t size = 1 + draw(r) % most;
        size = size < n - at ? size : n - at;
        check_ok(&cx, net_parts_put(&cx, &p, (str){e->answer + at, size}));
        at += size;
        move(&p.reasoning, &s.reasoning);
        move(&p.content, &s.content);
    }
    check_ok(&cx, net_parts_end(&cx, &p));
    move(&p.reasoning, &s.reasoning);
    move(&p.content, &s.content);
    for (size_t i = 0; i < p.calls.n; i++) {
        assert_int_equal(strlen(p.calls.at[i].id), 29);
        text_print(&s.calls, "%.*s%.*s;", STR_ARG(p.calls.at[i].name),
                   STR_ARG(p.calls.at[i].arguments));
    }
    check_text("reasoning", e, &s.reasoning, e->reasoning);
    check_text("content", e, &s.content, e->content);
    check_text("calls", e, &s.calls, e->calls);
    assert_int_equal(p.any_reasoning, *e->reasoning != 0);
    text_free(&s.reasoning);
    text_free(&s.content);
    text_free(&s.calls);
    net_parts_close(&p);
    arena_free(&a);
}

/* Each example byte by byte, then in random pieces of up to 40 bytes, then mostly whole: the parts
 * must be the same. */
static void test_whole(void **state)
{
    (void)state;
    draws r = {check_seed(), 0};
    for (int i = 0; i < N_EXAMPLES; i++)
        check_example(&examples[i], &r, 1);
    for (int i = 0; i < N_EXAMPLES; i++)
        for (int round = 0; round < 50; round++)
            check_example(&examples[i], &r, 1 + draw(&r) % (round % 5 ? 40 : 4000));
}

/* The marks of other styles than the model's own are text. */
static void test_styles(void **state)
{
    (void)state;
    static const char block[] = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>",
                      begin[] = "a" NET_CALLS_BEGIN "b",
                      fenced[] = NET_CALLS_BEGIN NET_CALL_BEGIN
                      "function" NET_CALL_SEP "add\n```json\n{}\n```" NET_CALL_END NET_CALLS_END,
                      list[] = "[{\"name\": \"add\", \"arguments\": {}}]",
                      huge[] = "[{\"name\": \"add\", \"arguments\": {\"a\": 641.4e805}}]",
                      marked[] = NET_CALLS_BEGIN NET_CALL_BEGIN "add" NET_CALL_SEP
                                                                "{}" NET_CALL_END NET_CALLS_END;
    static const struct {
        net_call_style style;
        const char *answer;
        bool is_text;
    } rows[] = {
        {NET_CALLS_ANY, block, false},     {NET_CALLS_BLOCKS, block, false},
        {NET_CALLS_FENCED, block, true},   {NET_CALLS_MARKED, block, true},
        {NET_CALLS_BLOCKS, begin, true},   {NET_CALLS_OBJECT, begin, true},
        {NET_CALLS_FENCED, fenced, false}, {NET_CALLS_MARKED, marked, false},
        {NET_CALLS_BLOCKS, fenced, true},  {NET_CALLS_LIST, marked, true},
        {NET_CALLS_BLOCKS, list, true},    {NET_CALLS_LIST, list, false},
        {NET_CALLS_OBJECT, list, false},   {NET_CALLS_ANY, list, false},
        {NET_CALLS_ANY, huge, false},
    };
    mpk_context cx = {0};
    arena a = {0};
    const json_value *tools;
    check_ok(&cx, json_parse(&cx, &a, str_from(tools_json), &tools));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        net_parts p = {0};
        net_parts_open(&p, tools, STR(""));
        p.style = rows[i].style;
        check_ok(&cx, net_parts_put(&cx, &p, str_from(rows[i].answer)));
        check_ok(&cx, net_parts_end(&cx, &p));
        assert_int_equal(p.calls.n, !rows[i].is_text);
        if (rows[i].is_text)
            assert_memory_equal(p.content.at, rows[i].answer, strlen(rows[i].answer));
        net_parts_close(&p);
    }
    arena_free(&a);
}

/* Where a client wants no parallel calls the first one stays. */
static void test_one_call(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    net_parts p = {0};
    const json_value *tools;
    check_ok(&cx, json_parse(&cx, &a, str_from(tools_json), &tools));
    net_parts_open(&p, tools, STR(""));
    p.one_call = true;
    check_ok(&cx, net_parts_put(&cx, &p,
                                STR("<tool_call>{\"name\":\"add\"}</tool_call>"
                                    "<tool_call>{\"name\":\"look_up\"}</tool_call>")));
    check_ok(&cx, net_parts_end(&cx, &p));
    assert_int_equal(p.calls.n, 1);
    assert_true(str_is(p.calls.at[0].name, "add"));
    net_parts_close(&p);
    arena_free(&a);
}

/* The beginning of a mark that would be text is not held back. */
static void test_held_back(void **state)
{
    (void)state;
    static const char *const begun[] = {"<tool_call", "[TOOL_CALLS"};
    for (int i = 0; i < 4; i++) {
        mpk_context cx = {0};
        arena a = {0};
        net_parts p = {0};
        const json_value *tools;
        check_ok(&cx, json_parse(&cx, &a, str_from(tools_json), &tools));
        net_parts_open(&p, i / 2 ? tools : NULL, STR(""));
        check_ok(&cx, net_parts_put(&cx, &p, str_from(begun[i % 2])));
        assert_int_equal(p.content.n, i / 2 ? 0 : strlen(begun[i % 2]));
        net_parts_close(&p);
        arena_free(&a);
    }
}

/* A message of a channel is passed on as it comes, but for what may be the beginning of a mark. */
static void test_channels_stream(void **state)
{
    (void)state;
    static const char *const channels[] = {"<|channel|>final<|message|>",
                                           "<|channel|>analysis<|message|>"};
    for (int i = 0; i < 2; i++) {
        mpk_context cx = {0};
        net_parts p = {0};
        const text *to = i ? &p.reasoning : &p.content;
        net_parts_open(&p, NULL, STR(""));
        check_ok(&cx, net_parts_put(&cx, &p, str_from(channels[i])));
        check_ok(&cx, net_parts_put(&cx, &p, STR("Hello <|")));
        assert_true(str_is(text_str(to), "Hello "));
        check_ok(&cx, net_parts_put(&cx, &p, STR("x")));
        assert_true(str_is(text_str(to), "Hello <|x"));
        net_parts_close(&p);
    }
}

/* Any text of marks and braces, at once and byte by byte: the same parts, and no letter is lost. */
static void take_parts(const char *prompt, const json_value *tools, const text *answer,
                       bool bytewise, net_parts *p)
{
    mpk_context cx = {0};
    net_parts_open(p, tools, str_from(prompt));
    for (size_t i = 0; bytewise && i < answer->n; i++)
        check_ok(&cx, net_parts_put(&cx, p, (str){answer->at + i, 1}));
    if (!bytewise)
        check_ok(&cx, net_parts_put(&cx, p, (str){answer->at, answer->n}));
    check_ok(&cx, net_parts_end(&cx, p));
}

/* Nothing that is not markup may be lost: the letter q is in none. */
static size_t count_letters(const text *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        n += t->at[i] == 'q';
    return n;
}

/* An answer of random words that are markup or nearly so: pieces give what the whole gives. */
static void check_random(const json_value *tools, draws *r)
{
    static const char *const words[] = {
        "<think>",  "</think>", "<tool_call>", "</tool_call>",
        "{",        "}",        "[",           "]",
        "<",        " ",        "\n",          "q",
        "\"name\"", ":",        "\"add\"",     "</",
        "\"",       "\\",       "\\\"",        "{\"name\":\"add\"}"};
    const char *prompt = draw(r) % 4 ? "" : "<think>";
    text answer = {0};
    net_parts whole = {0}, cut = {0};
    if (draw(r) % 2)
        tools = NULL;
    for (uint64_t i = draw(r) % 30; i > 0; i--)
        text_print(&answer, "%s", words[draw(r) % (sizeof words / sizeof *words)]);
    take_parts(prompt, tools, &answer, false, &whole);
    take_parts(prompt, tools, &answer, true, &cut);
    if (whole.content.n != cut.content.n || whole.reasoning.n != cut.reasoning.n ||
        whole.calls.n != cut.calls.n ||
        count_letters(&cut.content) + count_letters(&cut.reasoning) != count_letters(&answer))
        fail_msg("'%s' has other parts when it comes byte by byte, or lost some", answer.at);
    text_free(&answer);
    net_parts_close(&whole);
    net_parts_close(&cut);
}

/* Likewise for channels, whose headers are no text of the answer. */
static void check_random_channels(const json_value *tools, draws *r)
{
    static const char *const words[] = {"<|channel|>", "analysis",    "final", "<|message|>",
                                        "<|end|>",     "<|start|>",   "q",     " to=functions.add",
                                        "<|",          "<|constrain", "{}",    " "};
    text answer = {0};
    net_parts whole = {0}, cut = {0};
    text_print(&answer, "<|channel|>%s<|message|>", draw(r) % 2 ? "analysis" : "final");
    for (uint64_t i = draw(r) % 30; i > 0; i--)
        text_print(&answer, "%s", words[draw(r) % (sizeof words / sizeof *words)]);
    take_parts("", tools, &answer, false, &whole);
    take_parts("", tools, &answer, true, &cut);
    if (!str_equal(text_str(&whole.content), text_str(&cut.content)) ||
        !str_equal(text_str(&whole.reasoning), text_str(&cut.reasoning)) ||
        whole.calls.n != cut.calls.n)
        fail_msg("'%s' has other parts when it comes byte by byte", answer.at);
    text_free(&answer);
    net_parts_close(&whole);
    net_parts_close(&cut);
}

static void test_random(void **state)
{
    (void)state;
    draws r = {check_seed(), 0};
    mpk_context cx = {0};
    arena a = {0};
    const json_value *tools;
    check_ok(&cx, json_parse(&cx, &a, str_from(tools_json), &tools));
    for (int round = 0; round < 5000; round++) {
        check_random(tools, &r);
        check_random_channels(tools, &r);
    }
    arena_free(&a);
}

/* A long string full of closing marks, one in each piece: looking at all of it again for each piece
 * and mark would take days. */
static void test_many_marks_in_a_string(void **state)
{
    (void)state;
    enum { MARKS_IN_IT = 100000 };
    static const char begin[] = "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":\"";
    mpk_context cx = {0};
    arena a = {0};
    const json_value *tools;
    net_parts p = {0};
    check_ok(&cx, json_parse(&cx, &a, str_from(tools_json), &tools));
    net_parts_open(&p, tools, STR(""));
    check_ok(&cx, net_parts_put(&cx, &p, str_from(begin)));
    for (int i = 0; i < MARKS_IN_IT; i++)
        check_ok(&cx, net_parts_put(&cx, &p, STR("</tool_call>")));
    assert_int_equal(p.calls.n, 0);
    check_ok(&cx, net_parts_put(&cx, &p, STR("\"}}</tool_call>")));
    check_ok(&cx, net_parts_end(&cx, &p));
    assert_int_equal(p.calls.n, 1);
    assert_int_equal(p.calls.at[0].arguments.n, MARKS_IN_IT * strlen("</tool_call>") + 8);
    assert_int_equal(p.content.n, 0);
    net_parts_close(&p);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),           cmocka_unit_test(test_styles),
        cmocka_unit_test(test_one_call),        cmocka_unit_test(test_held_back),
        cmocka_unit_test(test_channels_stream), cmocka_unit_test(test_many_marks_in_a_string),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
