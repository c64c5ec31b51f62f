/* net_request_test.c - bodies of completions and chats: what they become, and what is refused, by
 * name. */
#include "check.h"
#include "net/net_request.h"

typedef struct bed {
    mpk_context cx;
    arena a;
    net_request q;
    net_refusal why;
} bed;

/* Read a body over the defaults that a model suggests, which a field that is given overrides. */
static mpk_status read_body(bed *b, bool chat, const char *source)
{
    const mpk_request_options suggested = {
        .size = sizeof suggested, .temperature = 0.6f, .top_k = 20, .top_p = 0.95f};
    const json_value *body = NULL;
    b->why = (net_refusal){0};
    check_ok(&b->cx, json_parse(&b->cx, &b->a, str_from(source), &body));
    return chat ? net_request_read_chat(&b->cx, &b->a, body, &suggested, &b->q, &b->why)
                : net_request_read_completion(&b->cx, &b->a, body, &suggested, &b->q, &b->why);
}

/* A body with nothing but a prompt: every other field has its default, null counts as absent,
 * and an unknown field is ignored. */
static void test_completion(void **state)
{
    (void)state;
    bed b = {0};
    check_ok(&b.cx,
             read_body(&b, false, "{\"prompt\": \"a\", \"n\": null, \"unknown\": {\"x\": []}}"));
    assert_true(b.q.sampling.max_tokens == 16 && b.q.n_answers == 1 && !b.q.has_seed &&
                !b.q.stream && !b.q.echo);
    assert_true(b.q.sampling.temperature == 0.6f && b.q.sampling.top_k == 20 &&
                b.q.sampling.top_p == 0.95f);
    assert_true(b.q.n_prompts == 1 && str_is(b.q.prompts[0].text, "a"));
    check_ok(&b.cx, read_body(&b, false,
                              "{\"prompt\": [\"a\", [1, 2], \"\"], \"max_tokens\": 3.0, "
                              "\"temperature\": 0, \"top_k\": -1, "
                              "\"top_p\": 1, \"min_p\": 0.1, \"seed\": -1, \"n\": 2, \"stop\": "
                              "[\"x\", \"yy\"], \"stream\": "
                              "true, \"stream_options\": {\"include_usage\": true}, \"echo\": "
                              "true, \"ignore_eos\": true, "
                              "\"logprobs\": null, \"logit_bias\": {}, \"presence_penalty\": 0, "
                              "\"best_of\": 2, \"suffix\": \"\", "
                              "\"user\": \"u\", \"repetition_penalty\": 1.0, \"response_format\": "
                              "{\"type\": \"text\"}}"));
    assert_true(b.q.sampling.max_tokens == 3 && b.q.sampling.temperature == 0 &&
                b.q.sampling.top_k == 0);
    assert_true(b.q.sampling.top_p == 1 && b.q.sampling.min_p == 0.1f &&
                b.q.sampling.seed == UINT64_MAX && b.q.has_seed);
    assert_true(b.q.n_answers == 2 && b.q.stream && b.q.include_usage && b.q.echo &&
                b.q.sampling.ignore_eos);
    assert_true(b.q.sampling.n_stop == 2 && strcmp(b.q.sampling.stop[1], "yy") == 0);
    assert_true(b.q.n_prompts == 3 && !b.q.prompts[1].text.at && b.q.prompts[1].n_ids == 2 &&
                b.q.prompts[1].ids[1] == 2);
    assert_true(b.q.prompts[2].text.at && b.q.prompts[2].text.n == 0);
    check_ok(&b.cx, read_body(&b, false, "{\"prompt\": [5, 6, 7], \"top_p\": 0, \"stop\": \"\"}"));
    assert_true(b.q.n_prompts == 1 && b.q.prompts[0].n_ids == 3 && b.q.sampling.temperature == 0);
    assert_int_equal(b.q.sampling.n_stop, 0);
    arena_free(&b.a);
}

/* Messages in the forms that clients send: texts in parts, calls with their arguments as text,
 * results of tools; and what they become for the template. */
static void test_chat(void **state)
{
    (void)state;
    bed b = {0};
    check_ok(&b.cx, read_body(&b, true,
                              "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
                              "\"text\", \"text\": \"a\"}, {\"text\": "
                              "\"\\u00e9\"}]}, {\"role\": \"assistant\", \"content\": null, "
                              "\"tool_calls\": [{\"id\": \"1\", "
                              "\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": [1, "
                              "2.50]}\"}}, {\"function\": "
                              "{\"arguments\": \"no\"}}, {\"function\": {\"arguments\": \"\"}}, "
                              "{\"function\": {\"arguments\": \"[3]\"}}, {\"function\": \"g\"}]}, "
                              "{\"role\": \"tool\", "
                              "\"tool_call_id\": \"1\", \"content\": \"3\"}], "
                              "\"max_completion_tokens\": 9, \"tools\": "
                              "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], "
                              "\"tool_choice\": \"auto\", "
                              "\"chat_template_kwargs\": {\"enable_thinking\": false}, "
                              "\"chat_template\": \"{{ x }}\"}"));
    assert_string_equal(b.q.messages.at, "[{\"role\":\"user\",\"content\":\"a\\n\xc3\xa9\"},{"
                                         "\"role\":\"assistant\",\"content\":\"\","
                                         "\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":"
                                         "\"f\",\"arguments\":{\"x\":[1,2.50]}}},"
                                         "{\"function\":{\"arguments\":\"no\"}},{\"function\":{"
                                         "\"arguments\":{}}},{\"function\":{\"arguments\":\"[3]\"}}"
                                         ",{\"function\":\"g\"}]},{\"role\":\"tool\","
                                         "\"tool_call_id\":\"1\",\"content\":\"3\"}]");
    assert_string_equal(b.q.tools, "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]");
    assert_string_equal(b.q.variables, "{\"enable_thinking\":false}");
    assert_string_equal(b.q.chat_template, "{{ x }}");
    assert_int_equal(b.q.sampling.max_tokens, 9);
    check_ok(
        &b.cx,
        read_body(&b, true,
                  "{\"messages\": [{\"role\": \"user\"}], \"tools\": [{\"function\": {\"name\": "
                  "\"f\"}}], \"tool_choice\": \"none\", \"logprobs\": false, "
                  "\"functions\": [], \"web_search_options\": {}}"));
    assert_true(!b.q.tools && !b.q.tool_list && b.q.sampling.max_tokens == 0);
    arena_free(&b.a);
}

/* An answer that goes on from its last message, and fields that become variables of the
 * template. */
static void test_ends_and_variables(void **state)
{
    (void)state;
    bed b = {0};
    check_ok(
        &b.cx,
        read_body(
            &b, true,
            "{\"messages\": [{\"role\": \"user\", \"content\": null}, {\"role\": \"assistant\", "
            "\"content\": \"Yes, \"}], \"continue_final_message\": true, \"reasoning_effort\": "
            "\"none\", \"chat_template_kwargs\": {\"a\": 1}, \"documents\": [{\"text\": \"d\"}], "
            "\"parallel_tool_calls\": false, \"include_reasoning\": false, \"n_predict\": 7}"));
    assert_string_equal(b.q.messages.at,
                        "[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\","
                        "\"content\":\"Yes, " NET_CONTINUED "\"}]");
    assert_string_equal(b.q.variables,
                        "{\"a\":1,\"documents\":[{\"text\":\"d\"}],\"reasoning_effort\":\"none\","
                        "\"enable_thinking\":false}");
    assert_true(b.q.no_answer && b.q.continues && b.q.one_call && b.q.hide_reasoning &&
                !b.q.special);
    assert_int_equal(b.q.sampling.max_tokens, 7);
    check_ok(
        &b.cx,
        read_body(
            &b, false,
            "{\"prompt\": \"a\", \"add_special_tokens\": false, \"truncate_prompt_tokens\": -1, "
            "\"n_predict\": -1, \"colour,\\n\": 1, \"size\": 2, \"nothing\": null}"));
    assert_true(!b.q.special && b.q.truncate == -1 && b.q.sampling.max_tokens == 0);
    assert_string_equal(b.q.ignored, "colour??, size");
    check_ok(&b.cx, read_body(&b, false, "{\"prompt\": \"a\"}"));
    assert_true(b.q.special && !b.q.ignored[0]);
    arena_free(&b.a);
}

/* What the template's variables say themselves is not said again by the members that set them. */
static void test_variables_come_once(void **state)
{
    (void)state;
    bed b = {0};
    check_ok(&b.cx, read_body(&b, true,
                              "{\"messages\": [{\"role\": \"user\"}], \"modalities\": [\"text\"], "
                              "\"reasoning_format\": \"deepseek\", "
                              "\"reasoning_effort\": \"none\", \"documents\": [], "
                              "\"chat_template_kwargs\": {\"reasoning_effort\": \"low\", "
                              "\"enable_thinking\": true, \"documents\": [1]}}"));
    assert_string_equal(
        b.q.variables, "{\"reasoning_effort\":\"low\",\"enable_thinking\":true,\"documents\":[1]}");
    arena_free(&b.a);
}

/* A parameter that the server has not is taken where its value asks for nothing. */
static void test_values_that_ask_for_nothing(void **state)
{
    (void)state;
    static const char *const values[][2] = {{"null", "1"}, {"false", "true"},
                                            {"0", "-1"},   {"\"\"", "\"low\""},
                                            {"[]", "[0]"}, {"{}", "{\"a\": 0}"}};
    bed b = {0};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        for (int asks = 0; asks < 2; asks++) {
            char body[128];
            snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\"}], \"verbosity\": %s}",
                     values[i][asks]);
            const mpk_status status = read_body(&b, true, body);
            if (asks)
                check_fails(&b.cx, MPK_EARG, "verbosity", status);
            else
                check_ok(&b.cx, status);
        }
    arena_free(&b.a);
}

/* Bodies that are refused, and the field that the answer names. */
static const struct {
    bool chat;
    const char *body, *field;
} refusals[] = {
    {false, "[]", ""},
    {false, "{}", "prompt"},
    {false, "{\"prompt\": null}", "prompt"},
    {false, "{\"prompt\": []}", "prompt"},
    {false, "{\"prompt\": {}}", "prompt"},
    {false, "{\"prompt\": [\"a\", 1]}", "prompt"},
    {false, "{\"prompt\": [1, \"a\"]}", "prompt"},
    {false, "{\"prompt\": [[1], []]}", "prompt"},
    {false, "{\"prompt\": [-1]}", "prompt"},
    {false, "{\"prompt\": [1.5]}", "prompt"},
    {false, "{\"prompt\": [4294967296]}", "prompt"},
    {false, "{\"prompt\": [[[1]]]}", "prompt"},
    {false, "{\"prompt\": \"a\", \"max_tokens\": -1}", "max_tokens"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"max_tokens\": 0}", "max_tokens"},
    {false, "{\"prompt\": \"a\", \"max_tokens\": \"3\"}", "max_tokens"},
    {false, "{\"prompt\": \"a\", \"max_tokens\": 1e300}", "max_tokens"},
    {false, "{\"prompt\": \"a\", \"temperature\": -1}", "temperature"},
    {false, "{\"prompt\": \"a\", \"temperature\": true}", "temperature"},
    {false, "{\"prompt\": \"a\", \"top_p\": 1.5}", "top_p"},
    {false, "{\"prompt\": \"a\", \"top_k\": -2}", "top_k"},
    {false, "{\"prompt\": \"a\", \"seed\": 1.5}", "seed"},
    {false, "{\"prompt\": \"a\", \"seed\": 9223372036854775808}", "seed"},
    {false, "{\"prompt\": \"a\", \"n\": 0}", "n"},
    {false, "{\"prompt\": \"a\", \"n\": 129}", "n"},
    {false, "{\"prompt\": \"a\", \"stop\": [\"\"]}", "stop"},
    {false, "{\"prompt\": \"a\", \"stop\": [\"a\\u0000b\"]}", "stop"},
    {false, "{\"prompt\": \"a\", \"stop\": 1}", "stop"},
    {false,
     "{\"prompt\": \"a\", \"stop\": "
     "[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\","
     "\"13\",\"14\",\"15\",\"16\",\"17\"]}",
     "stop"},
    {false, "{\"prompt\": \"a\", \"stream\": 1}", "stream"},
    {false, "{\"prompt\": \"a\", \"stream_options\": {}}", "stream_options"},
    {false, "{\"prompt\": \"a\", \"stream\": true, \"stream_options\": []}", "stream_options"},
    {false, "{\"prompt\": \"a\", \"stream\": true, \"stream_options\": {\"include_usage\": 1}}",
     "include_usage"},
    {false, "{\"prompt\": \"a\", \"echo\": \"yes\"}", "echo"},
    {false, "{\"prompt\": \"a\", \"logprobs\": 21}", "logprobs"},
    {false, "{\"prompt\": \"a\", \"n\": 3, \"best_of\": 2}", "best_of"},
    {false, "{\"prompt\": \"a\", \"best_of\": 2, \"stream\": true}", "best_of"},
    {false, "{\"prompt\": \"a\", \"cache_salt\": 1}", "cache_salt"},
    {false, "{\"prompt\": \"a\", \"cache_prompt\": 1}", "cache_prompt"},
    {false, "{\"prompt\": \"a\", \"suffix\": 1}", "suffix"},
    {false, "{\"prompt\": \"a\", \"stop_token_ids\": 2}", "stop_token_ids"},
    {false, "{\"prompt\": \"a\", \"stop_token_ids\": [-2]}", "stop_token_ids"},
    {false, "{\"prompt\": \"a\", \"stop_regex\": \"b\"}", "stop_regex"},
    {false, "{\"prompt\": \"a\", \"no_stop_trim\": 1}", "no_stop_trim"},
    {false, "{\"prompt\": \"a\", \"priority\": 2147483648}", "priority"},
    {false, "{\"prompt\": \"a\", \"prompt_logprobs\": 21}", "prompt_logprobs"},
    {false, "{\"prompt\": \"a\", \"prompt_logprobs\": 0, \"stream\": true}", "prompt_logprobs"},
    {false, "{\"prompt\": \"a\", \"truncate_prompt_tokens\": 0}", "truncate_prompt_tokens"},
    {false, "{\"prompt\": \"a\", \"n_predict\": -2}", "n_predict"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"n_predict\": 0}", "n_predict"},
    {false, "{\"prompt\": \"a\", \"add_special_tokens\": 1}", "add_special_tokens"},
    {false, "{\"prompt\": \"a\", \"skip_special_tokens\": false}", "skip_special_tokens"},
    {true,
     "{\"messages\": [{\"role\": \"user\"}], \"continue_final_message\": true, "
     "\"add_generation_prompt\": true}",
     "continue_final_message"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"modalities\": [\"audio\"]}", "modalities"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"modalities\": [1]}", "modalities"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"modalities\": \"text\"}", "modalities"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"documents\": {}}", "documents"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"reasoning_effort\": 1}", "reasoning_effort"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"separate_reasoning\": false}",
     "separate_reasoning"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"reasoning_format\": \"none\"}",
     "reasoning_format"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"reasoning_format\": 1}", "reasoning_format"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"add_generation_prompt\": 1}",
     "add_generation_prompt"},
    {true, "{}", "messages"},
    {true, "{\"messages\": []}", "messages"},
    {true, "{\"messages\": \"a\"}", "messages"},
    {true, "{\"messages\": [\"a\"]}", "messages"},
    {true, "{\"messages\": [{\"content\": \"a\"}]}", "messages"},
    {true, "{\"messages\": [{\"role\": 1}]}", "messages"},
    {true, "{\"messages\": [{\"role\": \"user\", \"content\": 1}]}", "messages"},
    {true, "{\"messages\": [{\"role\": \"user\", \"content\": [1]}]}", "messages"},
    {true,
     "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"text\": "
     "\"a\"}]}]}",
     "messages"},
    {true, "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": {}}]}", "messages"},
    {true, "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [1]}]}", "messages"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"tools\": {}}", "tools"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"tools\": [{\"name\": \"f\"}]}", "tools"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"tools\": [{\"function\": {\"name\": \"\"}}]}",
     "tools"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"functions\": [1]}", "functions"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"web_search_options\": {\"a\": 1}}",
     "web_search_options"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"tool_choice\": \"required\"}", "tool_choice"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"tool_choice\": {}}", "tool_choice"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"logprobs\": 1}", "logprobs"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"top_logprobs\": 3}", "top_logprobs"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"response_format\": {\"type\": \"xml\"}}",
     "response_format"},
    {true,
     "{\"messages\": [{\"role\": \"user\"}], \"response_format\": {\"type\": \"json_schema\"}}",
     "response_format"},
    {false, "{\"prompt\": \"a\", \"regex\": \"a\", \"guided_json\": {}}", "regex"},
    {false, "{\"prompt\": \"a\", \"regex\": \"a\", \"ignore_eos\": true}", "ignore_eos"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"response_format\": 1}", "response_format"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"chat_template_kwargs\": []}",
     "chat_template_kwargs"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"chat_template\": 1}", "chat_template"},
    {true, "{\"messages\": [{\"role\": \"user\"}], \"max_completion_tokens\": -1}",
     "max_completion_tokens"},
};

/* Bodies with one fault each: status 400, with the field that is at fault in the reply and in
 * the words. */
static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        bed b = {0};
        mpk_status status = read_body(&b, refusals[i].chat, refusals[i].body);
        if (status != MPK_EARG || b.why.http != 400 ||
            strcmp(b.why.field, refusals[i].field) != 0 || !strstr(b.cx.text, refusals[i].field))
            fail_msg("%s: status %d, HTTP %d, field '%s': %s", refusals[i].body, status, b.why.http,
                     b.why.field, b.cx.text);
        arena_free(&b.a);
    }
}

/* Commas are counted before anything is parsed, so that a small body cannot claim much memory.
 * Those inside a text do not count, nor does an escaped quote end a text. */
static void test_count(void **state)
{
    (void)state;
    mpk_context cx = {0};
    net_refusal why = {0};
    size_t n;
    text t = {0};
    text_print(&t, "[\"");
    for (int i = 0; i <= NET_MAX_VALUES; i++)
        text_add(&t, ",", 1);
    text_print(&t, "\\\",\"]");
    /* they stand in a text */
    check_ok(&cx, net_request_count_values(&cx, (str){t.at, t.n}, &n, &why));
    t.at[1] = ' ';
    check_fails(&cx, MPK_EARG, "1048576",
                net_request_count_values(&cx, (str){t.at, t.n}, &n, &why));
    assert_int_equal(why.http, 413);
    check_ok(&cx, net_request_count_values(&cx, STR("\"\\"), &n, &why));
    text_free(&t);
}

/* Every server's name for a form comes to one form and one source. */
static void test_forms(void **state)
{
    static const struct {
        const char *body, *source;
        mpk_form form;
    } cases[] = {
        {"\"response_format\": {\"type\": \"json_object\"}", "", MPK_FORM_JSON_OBJECT},
        {"\"response_format\": {\"type\": \"text\"}, \"regex\": \"\", \"guided_choice\": []", NULL,
         MPK_FORM_ANY},
        {"\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"a\", "
         "\"schema\": {\"type\": "
         "\"null\"}}}",
         "{\"type\":\"null\"}", MPK_FORM_JSON_SCHEMA},
        {"\"response_format\": {\"type\": \"json_object\", \"schema\": {}}", "{}",
         MPK_FORM_JSON_SCHEMA},
        {"\"guided_json\": \"true\"", "true", MPK_FORM_JSON_SCHEMA},
        {"\"json_schema\": {\"minimum\": 1}", "{\"minimum\":1}", MPK_FORM_JSON_SCHEMA},
        {"\"regex\": \"a+\"", "a+", MPK_FORM_REGEX},
        {"\"guided_regex\": \"b\"", "b", MPK_FORM_REGEX},
        {"\"guided_choice\": [\"x\", \"y\"]", "[\"x\",\"y\"]", MPK_FORM_CHOICE},
        {"\"grammar\": \"root ::= x\"", "root ::= x", MPK_FORM_GRAMMAR},
        {"\"ebnf\": \"a\"", "a", MPK_FORM_GRAMMAR},
        {"\"structured_outputs\": {\"grammar\": \"b\"}", "b", MPK_FORM_GRAMMAR},
        {"\"structured_outputs\": {\"choice\": [\"x\"]}", "[\"x\"]", MPK_FORM_CHOICE},
        {"\"structured_outputs\": {\"json_object\": true}", "", MPK_FORM_JSON_OBJECT},
        {"\"structured_outputs\": {\"structural_tag\": \"{}\"}", "{}", MPK_FORM_STRUCTURAL_TAG},
        {"\"structural_tag\": {\"a\": 1}", "{\"a\":1}", MPK_FORM_STRUCTURAL_TAG},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bed b = {0};
        text body = {0};
        text_print(&body, "{\"prompt\": \"a\", %s}", cases[i].body);
        check_ok(&b.cx, read_body(&b, false, body.at));
        assert_int_equal(b.q.sampling.form, cases[i].form);
        if (cases[i].source)
            assert_string_equal(b.q.sampling.form_source, cases[i].source);
        text_free(&body);
        arena_free(&b.a);
    }
}

/* What changes no logits as it should is refused by its name. */
static void test_rules_refused(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"logit_bias", "{\"1\": 101}"},
        {"logit_bias", "{\"x\": 1}"},
        {"logit_bias", "{\"99999999999\": 1}"},
        {"logit_bias", "[1]"},
        {"presence_penalty", "2.1"},
        {"frequency_penalty", "\"1\""},
        {"repetition_penalty", "-1"},
        {"repeat_last_n", "64"},
        {"typical_p", "1.5"},
        {"min_tokens", "1.5"},
        {"min_tokens", "-1"},
        {"allowed_token_ids", "[-1]"},
        {"bad_words", "[\"\"]"},
        {"guided_choice", "\"a\""},
        {"regex", "1"},
        {"structural_tag", "1"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bed b = {0};
        text body = {0};
        text_print(&body, "{\"prompt\": \"a\", \"%s\": %s}", wrong[i][0], wrong[i][1]);
        check_fails(&b.cx, MPK_EARG, wrong[i][0], read_body(&b, false, body.at));
        assert_string_equal(b.why.field, wrong[i][0]);
        text_free(&body);
        arena_free(&b.a);
    }
}

/* What changes logits, in the names of OpenAI, vLLM and llama-server; null and what asks for
 * nothing change nothing. */
static void test_rules(void **state)
{
    (void)state;
    bed b = {0};
    check_ok(
        &b.cx,
        read_body(
            &b, false,
            "{\"prompt\": \"a\", \"presence_penalty\": 0.5, \"frequency_penalty\": -1, "
            "\"repeat_penalty\": 1.3, \"typical_p\": 0.9, \"top_n_sigma\": -1, \"min_tokens\": 3, "
            "\"logit_bias\": {\"7\": -100, \"12\": 2.5}, \"allowed_token_ids\": [1, 2, 3], "
            "\"bad_words\": [\"x\", \"yy\"]}"));
    const mpk_request_options *o = &b.q.sampling;
    assert_true(o->presence_penalty == 0.5f && o->frequency_penalty == -1 &&
                o->repetition_penalty == 1.3f);
    assert_true(o->typical_p == 0.9f && o->top_n_sigma == 0 && o->min_tokens == 3);
    assert_true(o->n_biases == 2 && o->biases[1].token == 12 && o->biases[1].bias == 2.5f);
    assert_true(o->n_allowed == 3 && o->allowed_tokens[2] == 3);
    assert_true(o->n_bad_words == 2 && strcmp(o->bad_words[1], "yy") == 0);
    check_ok(&b.cx, read_body(&b, false,
                              "{\"prompt\": \"a\", \"presence_penalty\": null, \"logit_bias\": {}, "
                              "\"bad_words\": [], "
                              "\"min_tokens\": null, "
                              "\"allowed_token_ids\": null, \"repetition_penalty\": 1}"));
    assert_true(o->presence_penalty == 0 && !o->n_biases && !o->n_bad_words && !o->n_allowed);
    assert_true(o->repetition_penalty == 1);
    arena_free(&b.a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_completion),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_ends_and_variables),
        cmocka_unit_test(test_variables_come_once),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_count),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_rules_refused),
        cmocka_unit_test(test_values_that_ask_for_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
