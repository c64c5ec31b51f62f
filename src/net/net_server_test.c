/* net_server_test.c - the server over an engine of the test's own: what an answer in parts becomes,
 * document or stream, and what clients see when the engine fails or memory runs out.
 */
/* ctest: brings its own engine */
#include <sys/resource.h>
#include <sys/wait.h>

#include "net_bed.h"

/* A call of a tool that is spread over pieces, whole and as a stream: its text comes first, and
 * no part of the markup is shown. */
static void test_calls(void **state)
{
    (void)state;
    bed b = {0};
    open_bed(&b);
    SCRIPT(&b, "Let", " me.<to", "ol_call>{\"name\": \"add\", ", "\"arguments\": {\"a\": 1}}",
           "</tool_call>");
    assert_int_equal(ask(&b, "/v1/chat/completions", "{" TOOLS "}"), 200);
    check_has(&b, "\"message\":{\"role\":\"assistant\",\"content\":\"Let "
                  "me.\",\"tool_calls\":[{\"id\":\"call_");
    check_has(
        &b,
        "\"type\":\"function\",\"function\":{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":1}\"}}]}");
    check_has(&b, "\"finish_reason\":\"tool_calls\"");
    check_has(&b, "\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":5,\"total_tokens\":15,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":7}}");
    assert_int_equal(ask(&b, "/v1/chat/completions", "{\"stream\":true," TOOLS "}"), 200);
    check_has(&b, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
    check_has(&b, "\"delta\":{\"content\":\"Let\"}");
    check_has(&b, "\"delta\":{\"content\":\" me.\"}");
    check_has(&b, "\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_");
    check_has(&b, "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"tool_calls\"");
    check_has(&b, "data: [DONE]\n\n");
    assert_null(strstr(b.reply, "<to"));
    assert_int_equal(ask(&b, "/v1/chat/completions", "{\"tool_choice\":\"none\"," TOOLS "}"), 200);
    check_has(&b, "<tool_call>");
    SCRIPT(&b, "{\"name\": \"add\",", " \"parameters\": {}}");
    assert_int_equal(ask(&b, "/v1/chat/completions", "{" TOOLS "}"), 200);
    check_has(&b, "\"content\":null,\"tool_calls\":[");
    close_bed(&b);
}

#define BLOCK_TOOLS                                                                              \
    "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"name\":\"add\",\"input_" \
    "schema\":{}}]"

/* The same answer in Anthropic's form: thought, text and call are blocks, each with its start,
 * deltas and stop. */
static void test_blocks(void **state)
{
    (void)state;
    bed b = {0};
    open_bed(&b);
    SCRIPT(&b, "<think>", "hm</think>",
           "Let me.<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>");
    assert_int_equal(ask(&b, "/v1/messages", "{" BLOCK_TOOLS "}"), 200);
    check_has(&b, "\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"},"
                  "{\"type\":\"text\",\"text\":\"Let me.\"},{\"type\":\"tool_use\",\"id\":\"call_");
    check_has(&b, "\"name\":\"add\",\"input\":{\"a\":1}}],\"stop_reason\":\"tool_use\",\"stop_"
                  "sequence\":null");
    assert_int_equal(ask(&b, "/v1/messages", "{\"stream\":true," BLOCK_TOOLS "}"), 200);
    check_has(&b, "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_"
                  "delta\",\"thinking\":"
                  "\"hm\"}}");
    check_has(&b, "{\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":"
                  "\"tool_use\",\"id\":\"call_");
    check_has(&b, "{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"a\\\":1}\"}}");
    check_has(&b, "{\"type\":\"content_block_stop\",\"index\":2}");
    check_has(&b, "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"");
    SCRIPT(&b, "<tool_call>{\"name\": \"add\", \"arguments\": \"none\"}</tool_call>", "And.");
    assert_int_equal(ask(&b, "/v1/messages", "{" BLOCK_TOOLS "}"), 200);
    check_has(&b, "\"input\":{\"arguments\":\"none\"}}");
    close_bed(&b);
}

#define ITEM_TOOLS "\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"add\"}]"

/* The responses API: lists of items as input, and refusals that name the item. */
static void test_items(void **state)
{
    (void)state;
    bed b = {0};
    open_bed(&b);
    /* a text before what is refused is freed: the address sanitizer tells */
    assert_int_equal(ask(&b, "/v1/responses",
                         "{\"input\":[{\"role\":\"user\",\"content\":"
                         "[{\"text\":\"first\"},{\"type\":\"input_image\"}]}]}"),
                     400);
    SCRIPT(&b, "Yes.");
    assert_int_equal(ask(&b, "/v1/responses",
                         "{\"instructions\":\"Be brief.\",\"input\":[{\"type\":\"message\","
                         "\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":"
                         "\"y\"},{\"role\":\"user\"}]}"),
                     200);
    check_has(&b, "Yes.");
    assert_int_equal(ask(&b, "/v1/responses", "{\"instructions\":[],\"input\":\"x\"}"), 400);
    check_has(&b, "'instructions' must be a string");
    assert_int_equal(ask(&b, "/v1/responses",
                         "{\"input\":[{\"type\":\"song\",\"role\":\"user\","
                         "\"content\":\"x\"}]}"),
                     400);
    SCRIPT(&b, "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>", "Done.");
    assert_int_equal(ask(&b, "/v1/responses", "{" ITEM_TOOLS "}"), 200);
    check_has(&b, "\"status\":\"completed\",\"name\":\"add\",\"arguments\":\"{\\\"a\\\":1}\"}");
    check_has(&b, "\"tools\":[{\"type\":\"function\",\"name\":\"add\"}]");
    assert_int_equal(ask(&b, "/v1/responses", "{\"stream\":true," ITEM_TOOLS "}"), 200);
    check_has(&b, "event: response.function_call_arguments.delta\ndata: ");
    check_has(&b, "event: response.function_call_arguments.done\ndata: ");
    const char *part = strstr(b.reply, "event: response.content_part.done\ndata: ");
    assert_true(part &&
                part > strstr(b.reply, "\"output_index\":1,")); /* the text's, not the call's */
    /* what comes after the call */
    check_has(&b, "\"output_index\":1,\"item\":{\"type\":\"message\"");
    check_has(&b, "event: response.completed\ndata: ");
    SCRIPT(&b, "a", "!");
    assert_int_equal(ask(&b, "/v1/responses", "{\"stream\":true," ITEM_TOOLS "}"), 200);
    check_has(&b, "event: response.failed\ndata: ");
    check_has(&b,
              "\"error\":{\"code\":\"server_error\",\"message\":\"worker 7 waits for event 3\"}");
    assert_int_equal(ask(&b, "/v1/messages", "{" BLOCK_TOOLS "}"), 503);
    check_has(&b, "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":");
    close_bed(&b);
}

/* A thought is told apart from the answer, also if its marks are cut by pieces, or if the prompt
 * has already opened it. Completions of plain texts show it as it is. */
static void test_reasoning(void **state)
{
    (void)state;
    bed b = {0};
    open_bed(&b);
    SCRIPT(&b, "<think>", "\nhm", "\n</thi", "nk>\n\nYes");
    assert_int_equal(
        ask(&b, "/v1/chat/completions", "{\"n\":2,\"messages\":[{\"role\":\"user\"}]}"), 200);
    check_has(&b, "{\"index\":1,\"message\":{\"role\":\"assistant\",\"content\":\"Yes\","
                  "\"reasoning\":\"hm\",\"reasoning_content\":\"hm\"}");
    assert_int_equal(
        ask(&b, "/v1/chat/completions", "{\"stream\":true,\"messages\":[{\"role\":\"user\"}]}"),
        200);
    check_has(&b, "\"delta\":{\"reasoning\":\"hm\",\"reasoning_content\":\"hm\"}");
    check_has(&b, "\"delta\":{\"content\":\"Yes\"}");
    b.engine.prompt_end = "assistant: <think>\n";
    SCRIPT(&b, "hm</think>", "Yes");
    assert_int_equal(ask(&b, "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\"}]}"), 200);
    check_has(&b, "\"content\":\"Yes\",\"reasoning\":\"hm\",\"reasoning_content\":\"hm\"");
    assert_int_equal(ask(&b, "/v1/completions", "{\"prompt\":\"x<think>\"}"), 200);
    check_has(&b, "\"text\":\"hm</think>Yes\"");
    close_bed(&b);
}

/* If the prompt has opened a thought, a form holds what follows the thought; a prompt that ends
 * with other words, be they as long, leaves the form as it is. */
static void test_forms_after_thoughts(void **state)
{
    (void)state;
    static const struct {
        const char *end;
        bool reasons;
    } rows[] = {{"<think>\n", true},
                {"<think>", true},
                {"<tonk>", false},
                {"<think>so", false},
                {"assistant: ", false}};
    bed b = {0};
    open_bed(&b);
    SCRIPT(&b, "{}");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        b.engine.prompt_end = rows[i].end;
        assert_int_equal(ask(&b, "/v1/chat/completions",
                             "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                             "\"response_format\":{\"type\":\"json_object\"}}"),
                         200);
        assert_true((strstr(b.engine.form_source, "</think>") != NULL) == rows[i].reasons);
        assert_int_equal(b.engine.form,
                         rows[i].reasons ? MPK_FORM_STRUCTURAL_TAG : MPK_FORM_JSON_OBJECT);
    }
    close_bed(&b);
}

/* Log probabilities in the forms of both endpoints. That of a probability of 0 is a number that
 * JSON can hold. */
static void test_probabilities(void **state)
{
    (void)state;
    bed b = {0};
    open_bed(&b);
    SCRIPT(&b, "a", "b");
    assert_int_equal(ask(&b, "/v1/completions", "{\"prompt\":\"x\",\"logprobs\":1}"), 200);
    check_has(
        &b,
        "\"logprobs\":{\"tokens\":[\"a\",\"b\"],\"token_logprobs\":[-0.5,-0.5],\"top_logprobs\":"
        "[{\"z\":-9999},{\"z\":-9999}],\"text_offset\":[0,1]}");
    const char *body = "{\"messages\":[{\"role\":\"user\"}],\"logprobs\":true,\"top_logprobs\":1}";
    assert_int_equal(ask(&b, "/v1/chat/completions", body), 200);
    check_has(&b, "\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-0.5,\"bytes\":[97],"
                  "\"top_logprobs\":["
                  "{\"token\":\"z\",\"logprob\":-9999,\"bytes\":[122]}]},{\"token\":\"b\",");
    assert_int_equal(
        ask(&b, "/v1/completions", "{\"prompt\":\"x\",\"logprobs\":0,\"stream\":true}"), 200);
    check_has(&b, "\"text\":\"b\",\"logprobs\":{\"tokens\":[\"b\"],");
    close_bed(&b);
}

/* How often a text stands in the reply. */
static int count(const bed *b, const char *needle)
{
    int n = 0;
    for (const char *at = strstr(b->reply, needle); at; at = strstr(at + 1, needle))
        n++;
    return n;
}

/* Of answers that end at different times each tells its end once, while others go on. */
static void test_ends_of_a_stream(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body;
    } cases[] = {
        {"/v1/completions", "{\"stream\":true,\"n\":3,\"prompt\":\"x\"}"},
        {"/v1/chat/completions", "{\"stream\":true,\"n\":3,\"messages\":[{\"role\":\"user\"}]}"}};
    bed b = {0};
    open_bed(&b);
    SCRIPT(&b, "a", "b", "c", "d", "e", "f");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ask(&b, cases[i].path, cases[i].body), 200);
        assert_int_equal(count(&b, "\"finish_reason\":\"stop\""), 3);
        assert_int_equal(count(&b, "data: [DONE]\n\n"), 1);
    }
    close_bed(&b);
}

/* A stream is sent as the answer comes: the client has the first piece before the next one is made.
 * A client that waits in vain gives up.  Only a response repeats what its request said, which
 * counts as held until its end. */
static void check_pieces(const char *path, const char *body, bool is_held)
{
    const struct timeval patience = {.tv_sec = 30};
    size_t n = 0;
    bed b = {0};
    open_bed(&b);
    SCRIPT(&b, "first", "?", "last");
    int s = send_request(&b, path, body);
    assert_int_equal(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    while (!strstr(b.reply, "\"first\"")) {
        ssize_t got = recv(s, b.reply + n, sizeof b.reply - 1 - n, 0);
        assert_true(got > 0);
        n += (size_t)got;
    }
    assert_null(strstr(b.reply, "\"last\""));
    assert_int_equal(b.server->held_bytes > 0, is_held);
    b.engine.is_told = true;
    assert_int_equal(read_reply(&b, s, n), 200);
    check_has(&b, "\"last\"");
    while (b.server->held_bytes) /* the exchange ends after the reply was sent */
        usleep(1000);
    close_bed(&b);
}

static void test_pieces_of_a_stream(void **state)
{
    (void)state;
    check_pieces("/v1/completions", "{\"stream\":true,\"prompt\":\"x\"}", false);
    check_pieces("/v1/responses", "{\"stream\":true,\"input\":\"x\"}", true);
}

/* The last tokens of a prompt are kept, as many as the client says; a shorter one stays whole. */
static void test_truncated_prompts(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        size_t n;
    } cases[] = {{"{\"prompt\":\"abc\",\"truncate_prompt_tokens\":2}", 2},
                 {"{\"prompt\":\"abc\",\"truncate_prompt_tokens\":3}", 3},
                 {"{\"prompt\":\"abc\",\"truncate_prompt_tokens\":5}", 3},
                 {"{\"prompt\":\"abc\"}", 3}};
    bed b = {0};
    open_bed(&b);
    SCRIPT(&b, "a");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(ask(&b, "/v1/completions", cases[i].body), 200);
        assert_int_equal(b.engine.n_tokens, cases[i].n);
    }
    close_bed(&b);
}

/* The style of a template's calls: a template may have a mark of another style. */
static void test_style_of_calls(void **state)
{
    (void)state;
    bed b = {0};
    open_bed(&b);
    b.engine.knows_tools = true;
    b.engine.prompt_end = "<|channel|><tool_call>\n{\"name\": \"probe_of_calls\"}\n</tool_call>";
    SCRIPT(&b, "a");
    assert_int_equal(ask(&b, "/v1/chat/completions", "{\"tool_choice\":\"required\"," TOOLS "}"),
                     200);
    if (!strstr(b.engine.form_source, "<tool_call>"))
        fail_msg("calls do not begin with <tool_call>: %s", b.engine.form_source);
    close_bed(&b);
}

/* Where a model may call a strict tool or answer in a form, the engine's form has both. */
static void test_calls_or_form(void **state)
{
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\","
        "\"function\":{\"name\":\"add\",\"strict\":true}}],\"response_format\":{\"type\":"
        "\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"enum\":[\"so\"]}}}}";
    (void)state;
    bed b = {0};
    open_bed(&b);
    b.engine.knows_tools = true;
    b.engine.prompt_end = "<tool_call>\n{\"name\": \"probe_of_calls\"}\n</tool_call>";
    SCRIPT(&b, "a");
    assert_int_equal(ask(&b, "/v1/chat/completions", body), 200);
    if (!strstr(b.engine.form_source, "<tool_call>") || !strstr(b.engine.form_source, "\"so\""))
        fail_msg("calls or the form are missing: %s", b.engine.form_source);
    close_bed(&b);
}

/* A request that the server has no memory for takes none of it: smaller ones are answered. */
static void test_large_requests(void **state)
{
    (void)state;
    enum { LEFT_BYTES = 16 << 10 };
    bed b = {0};
    text large = {0};
    open_bed(&b);
    SCRIPT(&b, "a");
    text_print(&large, "{\"prompt\":\"%0*d\"}", 2 * LEFT_BYTES, 1);
    b.server->held_bytes = NET_HELD_BYTES - LEFT_BYTES;
    for (int i = 0; i < 3; i++)
        assert_int_equal(ask(&b, "/v1/completions", large.at), 503);
    check_has(&b, "the server holds too many large requests");
    large.n = 0;
    text_print(&large, "{\"prompt\":\"%0*d\"}", LEFT_BYTES / 2, 1); /* held, but not its tokens */
    assert_int_equal(ask(&b, "/tokenize", large.at), 503);
    assert_int_equal(ask(&b, "/v1/completions", "{\"prompt\":\"x\"}"), 200);
    text_free(&large);
    close_bed(&b);
}

/* The machine fails during an answer: the client gets an error, as an event if a stream has
 * begun, and from then on the server says at every door that it is down. */
static void test_fault(void **state)
{
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        bed b = {0};
        open_bed(&b);
        SCRIPT(&b, "a", "!");
        const char *body =
            stream ? "{\"stream\":true,\"n\":3,\"prompt\":\"x\"}" : "{\"prompt\":\"x\"}";
        assert_int_equal(ask(&b, "/health", ""), 200);
        assert_int_equal(ask(&b, "/v1/completions", body), stream ? 200 : 500);
        check_has(&b, "{\"error\":{\"message\":\"worker 7 waits for event "
                      "3\",\"type\":\"server_error\",\"param\":null,"
                      "\"code\":\"engine_failed\"}}");
        if (stream)
            check_has(&b, "data: [DONE]\n\n");
        assert_int_equal(ask(&b, "/health", ""), 503);
        check_has(&b, "{\"status\":\"failed\"}");
        assert_int_equal(ask(&b, "/v1/completions", "{\"prompt\":\"x\"}"), 503);
        check_has(&b, "the engine has failed: worker 7 waits");
        assert_int_equal(ask(&b, "/metrics", ""), 200);
        check_has(&b, "\nmpk_requests_running 0\n");
        close_bed(&b);
    }
}

/* Running out of memory ends one request, not the server; too many answers at once are refused. */
static void test_no_memory(void **state)
{
    (void)state;
    bed b = {0};
    open_bed(&b);
    SCRIPT(&b, "a");
    b.engine.submit = MPK_EUNSUPPORTED; /* and the request has no form */
    ask(&b, "/v1/completions", "{\"prompt\":\"x\"}");
    check_has(&b, "\"param\":\"prompt\"");
    b.engine.submit = MPK_ENOMEM;
    assert_int_equal(ask(&b, "/v1/completions", "{\"prompt\":\"x\"}"), 500);
    check_has(&b, "\"type\":\"server_error\"");
    assert_int_equal(ask(&b, "/health", ""), 200);
    b.engine.submit = MPK_OK;
    assert_int_equal(ask(&b, "/v1/completions", "{\"prompt\":[\"x\",\"y\"],\"n\":3}"), 200);
    assert_int_equal(ask(&b, "/v1/completions", "{\"prompt\":\"x\",\"n\":7}"), 400);
    close_bed(&b);
}

/* In a process of its own, whose limit on descriptors leaves none for the daemon's threads to wake
 * each other with. */
static int start_without_descriptors(void)
{
    mpk_context cx = {0};
    bed b = {.server = NULL};
    const net_options o = {.host = "127.0.0.1", .max_connections = 8, .timeout_s = 60};
    if (net_server_open(&cx, &o, &b.server) != MPK_OK)
        return 1;
    const rlim_t next = (rlim_t)check_next_descriptor();
    const struct rlimit few = {next, next};
    return setrlimit(RLIMIT_NOFILE, &few) != 0 ||
           net_server_start(&cx, b.server, &b.engine) != MPK_ELIMIT ||
           !strstr(cx.text, "cannot start its threads: ");
}

static void test_no_descriptors(void **state)
{
    (void)state;
    int status;
    const pid_t child = fork();
    if (child == 0)
        _exit(start_without_descriptors());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Vectors, scores and rankings from the stand-in's vectors, which are the first tokens
 * themselves. */
static void test_vectors(void **state)
{
    (void)state;
    bed b = {.engine.embeds = true};
    open_bed(&b);
    assert_int_equal(ask(&b, "/v1/embeddings", "{\"input\":[[1,2],[2,0,1,5]]}"), 200);
    check_has(&b, "{\"object\":\"list\",\"data\":[{\"object\":\"embedding\",\"index\":0,"
                  "\"embedding\":[1,2,0]},{\"object\":\"embedding\",\"index\":1,"
                  "\"embedding\":[2,0,1]}],\"model\":\"m\",\"usage\":{\"prompt_tokens\":6,"
                  "\"total_tokens\":6}}");
    assert_int_equal(ask(&b, "/v1/embeddings",
                         "{\"input\":[1],\"dimensions\":2,\"encoding_format\":\"base64\"}"),
                     200);
    check_has(&b, "\"embedding\":\"AACAPwAAAAA=\"");
    assert_int_equal(ask(&b, "/v1/score", "{\"text_1\":[1,2],\"text_2\":[[1],[0,3]]}"), 200);
    check_has(&b, "\"data\":[{\"index\":0,\"object\":\"score\",\"score\":1},"
                  "{\"index\":1,\"object\":\"score\",\"score\":6}]");
    assert_int_equal(
        ask(&b, "/v1/rerank", "{\"query\":[1],\"documents\":[[2],[7],[4]],\"top_n\":2}"), 200);
    check_has(&b, "\"results\":[{\"index\":1,\"relevance_score\":7},"
                  "{\"index\":2,\"relevance_score\":4}]");
    b.engine.submit = MPK_ENOMEM;
    assert_int_equal(ask(&b, "/v1/embeddings", "{\"input\":\"x\"}"), 500);
    assert_int_equal(ask(&b, "/health", ""), 200);
    b.engine.submit = MPK_ESTALLED;
    assert_int_equal(ask(&b, "/v1/embeddings", "{\"input\":\"x\"}"), 503);
    check_has(&b, "\"code\":\"engine_failed\"");
    assert_int_equal(ask(&b, "/health", ""), 503);
    close_bed(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_items),
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_forms_after_thoughts),
        cmocka_unit_test(test_probabilities),
        cmocka_unit_test(test_fault),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_no_descriptors),
        cmocka_unit_test(test_ends_of_a_stream),
        cmocka_unit_test(test_pieces_of_a_stream),
        cmocka_unit_test(test_truncated_prompts),
        cmocka_unit_test(test_style_of_calls),
        cmocka_unit_test(test_calls_or_form),
        cmocka_unit_test(test_large_requests),
        cmocka_unit_test(test_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
