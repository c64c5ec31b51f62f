/* net_server_test.c - the server over an engine of the test's own: what an answer in parts becomes,
 * document or stream, and what clients see when the engine fails or memory runs out.
 *
 * The engine answers every request with the pieces of `script`, one token each; a piece "!" is a
 * fault of the engine.  Of several requests at a time all but the first come with nothing every
 * other time, so they end later.
 */
/* ctest: brings its own engine */
#include <math.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "base/str.h"
#include "net/net_exchange.h"

/* ---- the engine ---- */

enum { MAX_PIECES = 64, N_VECTOR = 3 };

struct mpk_engine {
    const char *script[MAX_PIECES];
    const char *prompt_end; /* what a chat's prompt ends with */
    mpk_status submit;      /* what submitting comes to */
    bool embeds;            /* it gives vectors */
    bool knows_tools;       /* a chat's prompt begins with its tools */
    _Atomic bool failed;
    _Atomic bool is_told;   /* the client has what came before the "?" of the script */
    _Atomic int n_requests; /* that are not freed */
    /* of the last request */
    mpk_form form;
    char form_source[1000];
    size_t n_tokens; /* of its prompt */
};

struct mpk_request {
    mpk_engine *engine;
    size_t n_read, n_asked;
    bool is_slow;
    mpk_finish finish;
    int32_t tokens[MAX_PIECES];
    uint64_t token_ns[MAX_PIECES];
};

const char *mpk_version(void)
{
    return "0.0.0";
}

mpk_context *mpk_context_create(void)
{
    return calloc(1, sizeof(mpk_context));
}

void mpk_context_free(mpk_context *cx)
{
    free(cx);
}

const char *mpk_error_message(const mpk_context *cx)
{
    return cx->text;
}

void mpk_free(void *p)
{
    free(p);
}

/* The engine below stands in for the library's: the server sees the public headers alone, so it
 * can be linked against these functions. */
void mpk_engine_describe(const mpk_engine *engine, mpk_engine_facts *facts)
{
    *facts = (mpk_engine_facts){.size = sizeof *facts,
                                .context_tokens = 100,
                                .max_batch = 2,
                                .embedding_size = engine->embeds ? N_VECTOR : 0};
}

const mpk_tokenizer *mpk_engine_tokenizer(const mpk_engine *engine)
{
    return (const mpk_tokenizer *)engine;
}

void mpk_engine_suggest(const mpk_engine *engine, mpk_request_options *options)
{
    (void)engine;
    (void)options;
}

/* A byte is a token. */
mpk_status mpk_tokenize(mpk_context *cx, const mpk_tokenizer *t, const char *bytes, size_t n,
                        bool special, int32_t **ids, size_t *n_ids)
{
    (void)t;
    (void)special;
    *ids = calloc(n + 1, sizeof **ids);
    CHECK(cx, *ids, MPK_ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++)
        (*ids)[i] = (unsigned char)bytes[i];
    *n_ids = n;
    return MPK_OK;
}

/* A token is a character, so that texts can be told from ids. */
mpk_status mpk_detokenize(mpk_context *cx, const mpk_tokenizer *t, const int32_t *ids, size_t n_ids,
                          char **bytes, size_t *n)
{
    (void)t;
    *bytes = calloc(n_ids + 1, 1);
    CHECK(cx, *bytes, MPK_ENOMEM, "out of memory");
    for (size_t i = 0; i < n_ids; i++)
        (*bytes)[i] = (char)ids[i];
    *n = n_ids;
    return MPK_OK;
}

/* The prompt is what the test says, whatever the messages are: only its end matters, which may
 * open a thought. */
mpk_status mpk_chat_prompt(mpk_context *cx, const mpk_tokenizer *t, const char *messages, size_t n,
                           const mpk_chat_options *options, char **prompt, size_t *n_prompt)
{
    const mpk_engine *e = (const mpk_engine *)t;
    (void)messages;
    (void)n;
    text words = {0};
    text_print(&words, "%s%s", e->knows_tools && options->tools ? options->tools : "",
               e->prompt_end);
    *prompt = words.failed ? NULL : strdup(words.at);
    text_free(&words);
    CHECK(cx, *prompt, MPK_ENOMEM, "out of memory");
    *n_prompt = strlen(*prompt);
    return MPK_OK;
}

/* All answers of the engine follow its script. Those after the first are slow, so that several
 * answers of one call do not end together. */
mpk_status mpk_submit_tokens(mpk_context *cx, mpk_engine *engine, const int32_t *tokens, size_t n,
                             const mpk_request_options *options, mpk_request **out)
{
    (void)tokens;
    engine->n_tokens = n;
    engine->form = options->form;
    snprintf(engine->form_source, sizeof engine->form_source, "%s",
             options->form_source ? options->form_source : "");
    CHECK(cx, !engine->failed, MPK_ESTALLED, "the engine has failed: worker 7 waits");
    CHECK(cx, engine->submit == MPK_OK, engine->submit, "submitting failed");
    mpk_request *r = calloc(1, sizeof *r);
    CHECK(cx, r, MPK_ENOMEM, "out of memory");
    r->engine = engine;
    r->is_slow = engine->n_requests++ > 0;
    *out = r;
    return MPK_OK;
}

/* The next piece of the script; "!" is a fault of the machine, and the end of the script that of
 * the answer. A slow request has nothing new every other time, and none has as long as "?" waits
 * for the client. */
mpk_status mpk_request_read(mpk_context *cx, mpk_request *r, int64_t timeout_ms, mpk_piece *piece)
{
    const char *words = r->engine->script[r->n_read];
    (void)cx;
    (void)timeout_ms;
    *piece = (mpk_piece){.text = ""};
    if (r->is_slow && r->n_asked++ % 2 == 0)
        return MPK_OK;
    if (words && strcmp(words, "?") == 0 && !r->engine->is_told)
        return MPK_OK;
    if (words && strcmp(words, "!") == 0) {
        r->engine->failed = true;
        r->finish = MPK_FINISH_ERROR;
    } else if (words) {
        r->token_ns[r->n_read] = r->n_read + 1;
        *piece = (mpk_piece){.text = words,
                             .n_bytes = strlen(words),
                             .tokens = r->tokens + r->n_read,
                             .n_tokens = 1};
        r->n_read++;
    } else
        r->finish = MPK_FINISH_STOP;
    piece->finish = r->finish;
    return MPK_OK;
}

/* No request speculates. */
void mpk_request_drafts(const mpk_request *r, size_t *drafted, size_t *accepted)
{
    (void)r;
    *drafted = *accepted = 0;
}

/* Half of the time to the first token. */
uint64_t mpk_request_queue_ns(const mpk_request *r)
{
    return r->token_ns[0] / 2;
}

/* As if this were known of each prompt. */
size_t mpk_request_cached_tokens(const mpk_request *r)
{
    (void)r;
    return 7;
}

int32_t mpk_request_stop(const mpk_request *r)
{
    (void)r;
    return -1;
}

uint32_t mpk_prompt_logprobs(const mpk_request *r, size_t token, mpk_logprob *out, uint32_t most)
{
    (void)r;
    (void)token;
    (void)out;
    (void)most;
    return 0;
}

/* The drawn token's own entry comes first, then one whose probability is 0. */
uint32_t mpk_request_logprobs(const mpk_request *r, size_t token, mpk_logprob *out, uint32_t most)
{
    (void)r;
    const mpk_logprob entries[2] = {{'a' + (int32_t)token, -0.5f}, {'z', -INFINITY}};
    for (uint32_t i = 0; i < 2 && i < most; i++)
        out[i] = entries[i];
    return most < 2 ? most : 2;
}

mpk_status mpk_request_wait(mpk_context *cx, mpk_request *r, mpk_answer *answer)
{
    CHECK(cx, r->finish != MPK_FINISH_ERROR, MPK_ESTALLED, "worker 7 waits for event 3");
    *answer = (mpk_answer){.text = "",
                           .tokens = r->tokens,
                           .token_ns = r->token_ns,
                           .n_tokens = r->n_read,
                           .finish = r->finish};
    return MPK_OK;
}

/* The vector of a text: its first tokens. */
mpk_status mpk_embed(mpk_context *cx, mpk_engine *engine, const mpk_tokens *texts, size_t n,
                     const mpk_embed_options *options, float *out)
{
    const uint32_t size = options->dimensions ? options->dimensions : N_VECTOR;
    CHECK(cx, engine->submit == MPK_OK, engine->submit, "submitting failed");
    for (size_t i = 0; i < n * size; i++)
        out[i] = i % size < texts[i / size].n ? (float)texts[i / size].at[i % size] : 0;
    return MPK_OK;
}

void mpk_request_free(mpk_request *r)
{
    if (r)
        r->engine->n_requests--;
    free(r);
}

/* ---- a client ---- */

typedef struct bed {
    mpk_engine engine;
    net_server *server;
    uint16_t port;
    int descriptor; /* the lowest that was free before */
    char reply[1 << 16];
} bed;

/* Open a server on a free port of this machine, with room for few connections.  It passes requests
 * to the engine above. */
static void open_bed(bed *b)
{
    mpk_context cx = {0};
    const net_options o = {.host = "127.0.0.1",
                           .model_name = "m",
                           .max_waiting = 4,
                           .max_connections = 8,
                           .timeout_s = 60,
                           .body_bytes = 1 << 20};
    b->engine.prompt_end = "assistant:";
    b->descriptor = check_next_descriptor();
    check_ok(&cx, net_server_open(&cx, &o, &b->server));
    check_ok(&cx, net_server_start(&cx, b->server, &b->engine));
    b->port = (uint16_t)strtoul(strrchr(net_server_url(b->server), ':') + 1, NULL, 10);
}

/* Nothing is left open, and every request was freed: the engine counts those that were not. */
static void close_bed(bed *b)
{
    net_server_stop(b->server, 10);
    assert_int_equal(check_next_descriptor(), b->descriptor);
    assert_int_equal(b->engine.n_requests, 0);
}

/* Send one request on a connection of its own. */
static int send_request(const bed *b, const char *path, const char *body)
{
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons(b->port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    text t = {0};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(s, (const struct sockaddr *)&to, sizeof to), 0);
    text_print(&t, "%s %s HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s", *body ? "POST" : "GET", path,
               strlen(body), body);
    assert_int_equal(send(s, t.at, t.n, MSG_NOSIGNAL), t.n);
    text_free(&t);
    return s;
}

/* The rest of a reply, of which n bytes have come; returns the status, the whole reply is in
 * b->reply. */
static int read_reply(bed *b, int s, size_t n)
{
    for (ssize_t got = 1; got > 0 && n + 1 < sizeof b->reply; n += got > 0 ? (size_t)got : 0)
        got = recv(s, b->reply + n, sizeof b->reply - 1 - n, 0);
    b->reply[n] = 0;
    close(s);
    return (int)strtol(b->reply + strlen("HTTP/1.1 "), NULL, 10);
}

static int ask(bed *b, const char *path, const char *body)
{
    return read_reply(b, send_request(b, path, body), 0);
}

static void check_has(const bed *b, const char *needle)
{
    if (!strstr(b->reply, needle))
        fail_msg("there is no\n%s\nin\n%s", needle, b->reply);
}

static void set_script(bed *b, size_t n, const char *const *pieces)
{
    for (size_t i = 0; i < MAX_PIECES; i++)
        b->engine.script[i] = i < n ? pieces[i] : NULL;
}
#define SCRIPT(b, ...)                                                      \
    set_script((b), sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), \
               (const char *[]){__VA_ARGS__})

#define TOOLS                                                                                 \
    "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\"," \
    "\"function\":{\"name\":"                                                                 \
    "\"add\"}}]"

/* ---- tests ---- */

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
        cmocka_unit_test(test_large_requests),
        cmocka_unit_test(test_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
