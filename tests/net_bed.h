/* net_bed.h - an engine that stands in for the library's, whose answers a test scripts, and a
 * client of a server over it.
 *
 * The engine answers every request with the pieces of `script`, one token each; a piece "!" is a
 * fault of the engine.  Of several requests at a time all but the first come with nothing every
 * other time, so they end later.  For src/net/net_server_test.c. */
#ifndef TESTS_NET_BED_H
#define TESTS_NET_BED_H

#include <math.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
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

#endif
