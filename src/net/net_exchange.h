/* net_exchange.h - one HTTP request and its reply, and what the files of this room share about
 * it and the server. net_server.h describes the life of an exchange.
 *
 * Handlers return MPK_OK once a reply is queued or a stream has begun; otherwise the status of
 * the failure, with x->refusal filled by net_refuse if HTTP has a better status than 500.
 *
 * Threads: an exchange belongs to the thread of its connection; the server's fields are constant
 * while it runs, except the atomics, the metrics (atomics as well) and the keys (their mutex).
 */
#ifndef NET_EXCHANGE_H
#define NET_EXCHANGE_H

#include <microhttpd.h>
#include <stdatomic.h>

#include "base/json.h"
#include "mpk/mpk.h"
#include "net/net_keys.h"
#include "net/net_metrics.h"
#include "net/net_parts.h"
#include "net/net_request.h"
#include "net/net_server.h"

enum {
    /* how long a thread waits for tokens before it looks whether its client has gone */
    NET_LOOK_MS = 200,
    /* the same, if other answers of the exchange may have tokens */
    NET_SHARED_LOOK_MS = 20,
    /* limits of held_bytes: this many of the largest bodies, but at least this many bytes */
    NET_HELD_BODIES = 8,
    NET_HELD_BYTES = 1 << 30,
    /* the status in the log of a client that went before its reply was complete */
    NET_CLIENT_GONE = 499,
    NET_ID_BYTES = 128,
};

/* The server; made by net_server.c. */
struct net_server {
    net_options options; /* as given, texts borrowed */
    mpk_engine *engine;
    mpk_engine_facts facts; /* what the engine said at the start */
    struct MHD_Daemon *daemon;
    int socket;      /* bound, and listening once the daemon runs */
    bool started;    /* the daemon runs, and has the socket */
    int64_t created; /* seconds since 1970 */
    /* bytes of a prompt: longer ones cannot fit the context, whatever their tokens are */
    uint64_t most_text_bytes;
    char url[320];        /* where it can be reached */
    char fingerprint[32]; /* of program and model, for "system_fingerprint" */
    net_metrics metrics;
    net_keys keys;
    arena arena;                       /* of what TLS needs */
    const char *certificate, *private; /* PEM; NULL: without TLS */
    /* exchanges whose request is complete and whose reply is not */
    _Atomic uint32_t exchanges;
    _Atomic uint32_t answers;    /* answers submitted to the engine and not ended */
    _Atomic uint32_t running;    /* answers of these whose first token has come */
    _Atomic uint64_t held_bytes; /* bytes of bodies and of what was made of them */
    /* stopping: no new requests; cancelling: running ones end; failed: the engine has */
    _Atomic bool stopping, cancelling, failed;
};

typedef struct net_exchange net_exchange;
typedef struct net_answer net_answer;

/* How an API writes answers: as one document, or as events of a stream.  Constant records, one
 * for each API. */
typedef struct net_dialect {
    const char *id_prefix; /* of the id in the reply */
    bool is_chat;          /* answers are in parts */
    /* log probabilities are a list of entries, as in a chat, that also have the tokens' ids */
    bool names_ids;
    void (*write_document)(net_exchange *x, text *to);
    /* write what is new in answer `index`, if anything is */
    void (*write_news)(net_exchange *x, net_answer *a, uint32_t index, text *to);
    void (*write_end)(net_exchange *x, text *to); /* after the last answer has ended */
    /* write what x->refusal and the context say, as the last event */
    void (*write_failure)(net_exchange *x, text *to);
    const char *ping; /* an event without content */
} net_dialect;

/* Log probabilities that have not been written yet, as JSON without brackets.  A chat and
 * llama-server's completions use only `tokens`. */
typedef struct net_probs {
    text tokens, values, tops, offsets;
    size_t offset; /* characters of the tokens so far */
    text prompt;   /* vLLM's prompt_logprobs, with its brackets */
} net_probs;

/* One answer that the engine computes; one for each prompt and each of n. */
struct net_answer {
    mpk_request *request; /* NULL: it has ended */
    text content;         /* of a completion: text that was not written yet */
    /* ids, as text with commas, that were not written yet, if they are asked for */
    text ids, prompt_ids;
    net_parts parts; /* of a chat: reasoning, content and calls, as parsed */
    mpk_finish finish;
    bool leads;            /* the first of its prompt: its figures of the prefix cache count */
    bool is_running;       /* counted in the server's `running` */
    bool begun;            /* its role was sent */
    bool told;             /* its end was sent */
    uint32_t n_calls_sent; /* calls already written to the stream */
    /* n_prompt: of its prompt; n_cached: of these, from the prefix cache */
    size_t n_tokens, n_prompt, n_cached;
    /* of an answer that has ended: time until its first token, and from that to its last */
    uint64_t prompt_ns, decode_ns;
    double score; /* with best_of: mean log probability of its tokens */
    net_probs probs;
    const char *stopped_by; /* the stop text that ended it; NULL: none */
    int32_t stop_token;     /* the stop token that did, if `stopped_by` is NULL; -1: none */
    int32_t first_token;    /* of its prompt */
    bool marked;            /* which the tokenizer put before the text */
    /* of dialects that have items (net_items.h): an array of net_item, the bytes that are in
     * items already, and the number of events so far */
    text items;
    size_t n_reasoning_taken, n_content_taken;
    uint32_t n_events;
};

/* The answers of an exchange: n_each for each prompt, in the order of the prompts. */
typedef struct net_work {
    char id[48];
    int64_t created;
    const net_dialect *dialect;
    /* what the request asks to be written; see net_request */
    bool include_usage, usage_always, logprobs, prompt_logprobs, token_ids, names_are_ids;
    uint64_t ping_s;              /* of a stream: seconds without an event before a ping; 0: none */
    bool echo_logprobs;           /* `logprobs` begins with the prompt */
    uint32_t n_top, n_prompt_top; /* as in net_request */
    const char *const *stops;     /* texts that end an answer */
    uint32_t n_stops;
    const int32_t *stop_tokens;
    uint32_t n_stop_tokens;
    const char *echo; /* of a response: members that repeat the request */
    net_answer *answers;
    uint32_t n, n_running;
    uint32_t n_places; /* of the server's that are taken */
    uint32_t watched;  /* the answer whose tokens the thread waits for */
    /* answers to each prompt, and how many of them the client gets */
    uint32_t n_each, n_shown;
    size_t n_prompt_tokens, n_cached; /* of them, those that came from the prefix cache */
    /* of the answers that have ended: tokens tried ahead, and those that stood */
    size_t n_drafted, n_accepted;
    size_t n_hidden_tokens;  /* of answers that the client does not get */
    uint64_t first_token_ns; /* when the first token of any answer came; 0: none has */
    arena arena;             /* of the array, and of what outlives the body */
} net_work;

struct net_exchange {
    net_server *server;
    struct MHD_Connection *connection;
    mpk_context *cx;
    unsigned route; /* index */
    char path[160]; /* for the log line */
    char method[16];
    char client[64];                 /* its address */
    char id[NET_ID_BYTES];           /* of the request: the client's X-Request-Id, or one of ours */
    char ignored[NET_IGNORED_BYTES]; /* names of parameters that no document lists */
    /* the request's target in libmicrohttpd's memory; uri_bytes: before it was decoded */
    const char *uri; /* in libmicrohttpd's memory */
    size_t uri_bytes;
    bool hides_nul;         /* its path has %00 */
    bool checked;           /* its headers were */
    bool answering;         /* the server waits for its reply at the end */
    bool last;              /* the connection is closed after the reply */
    net_key *key;           /* that it came with; NULL: none, or one without limits */
    bool metered;           /* the key's limits were asked */
    uint32_t n_key_answers; /* of the key's that it has taken */
    uint64_t retry_s;       /* after which another try may succeed, where that is known; else 0 */
    text body;
    uint64_t n_body_bytes; /* that came, kept or not */
    uint64_t held_bytes;   /* charged to the server until the body is dropped */
    uint64_t kept_bytes;   /* the same, until the exchange ends */
    arena arena;           /* of what the body becomes */
    net_refusal refusal;
    int status; /* of the reply; 0: none yet */
    bool gone;  /* the client is */
    net_work work;
    text out; /* of a stream: what waits to be sent, from out_at on */
    size_t out_at;
    uint64_t sent_ns; /* when something was last written to it */
    bool ended;       /* nothing is added to out any more */
    uint64_t begun_ns;
};

/* ---- net_exchange.c ---- */

/* libmicrohttpd's callbacks; user is the server.  The first sees the address as it came, and
 * begins the exchange. */
void *net_exchange_begin(void *user, const char *uri, struct MHD_Connection *connection);
enum MHD_Result net_exchange_handle(void *user, struct MHD_Connection *connection, const char *url,
                                    const char *method, const char *version, const char *data,
                                    size_t *n_data, void **exchange);
void net_exchange_complete(void *user, struct MHD_Connection *connection, void **exchange,
                           enum MHD_RequestTerminationCode how);
/* Has the client closed its end?  Sets x->gone. */
bool net_exchange_is_gone(net_exchange *x);
/* Stop or restart the connection's timeout: while the thread waits for the engine, the
 * connection is not idle. */
void net_exchange_stop_clock(net_exchange *x, bool stop);
/* Charge memory to the server, until net_exchange_drop_body; 413 if it is more than ever
 * possible, 503 if all requests together hold too much. */
mpk_status net_exchange_hold(net_exchange *x, uint64_t bytes);
/* The same for what answers keep of the body: until the exchange ends. */
mpk_status net_exchange_keep(net_exchange *x, uint64_t bytes);
/* Free the body and what was made of it, and give its memory back. */
void net_exchange_drop_body(net_exchange *x);

/* ---- net_http.c ---- */

/* Refuse what HTTP forbids and libmicrohttpd lets pass: 400, and the connection is closed. */
mpk_status net_http_check(net_exchange *x, const char *version);
/* Note the request's target for net_http_check, before libmicrohttpd decodes it in place. */
void net_http_note_uri(net_exchange *x, const char *uri);

/* ---- net_log.c ---- */

/* Write the log line of an exchange that has ended; ns: its duration. */
void net_log_exchange(const net_exchange *x, int status, uint64_t ns);

/* ---- net_meter.c: the limits of the exchange's key ---- */

/* Count a request; 429 if the key may not make one now. */
mpk_status net_meter_begin(net_exchange *x);
/* Take n answers of the key's limit, until net_meter_end; 429, or 400 if n is more than the key
 * may ever have. */
mpk_status net_meter_take_answers(net_exchange *x, uint32_t n);
/* Count tokens that were computed; never refuses. */
void net_meter_spend(net_exchange *x, uint64_t n_tokens);
/* Give back the key's answers.  Called before the last bytes are sent, and again when the
 * exchange ends, which changes nothing. */
void net_meter_end(net_exchange *x);
/* x-ratelimit-.. headers as OpenAI's API has them. */
void net_meter_add_headers(net_exchange *x, struct MHD_Response *response);

/* ---- net_reply.c ---- */

/* Queue a reply with this body, which is taken over and freed; type: of the content. */
mpk_status net_reply_text(net_exchange *x, int status, const char *type, text *body);
mpk_status net_reply_json(net_exchange *x, text *body);
/* Queue what x->refusal and the context say, in the error format of the path's API. */
mpk_status net_reply_refusal(net_exchange *x);
/* {"error":{..}} */
void net_reply_write_error(const net_exchange *x, text *to);
/* Add the headers that every reply has, and queue it.  *response is released in any case. */
mpk_status net_reply_send(net_exchange *x, int status, const char *type,
                          struct MHD_Response *response);

/* ---- net_route.c ---- */

/* The route of a path; the last route stands for unknown paths. */
unsigned net_route_find(const char *path);
/* Refuse what the headers show: no such path, another method, a wrong key, a server that is
 * stopping. */
mpk_status net_route_check(net_exchange *x);
/* The method that a route accepts. */
const char *net_route_allows(unsigned route);
mpk_status net_route_run(net_exchange *x, const char *path);
/* The error of a reply, in the format of the API that the path belongs to. */
void net_route_write_error(const net_exchange *x, text *to);

/* ---- net_tokens.c ---- */

/* Token ids; grows in the arena of the exchange. */
typedef VEC(int32_t) net_ids;
mpk_status net_ids_add(net_exchange *x, net_ids *to, int32_t id);
/* Append the tokens of a text; special: with those around it that the tokenizer adds. */
mpk_status net_ids_add_text(net_exchange *x, net_ids *to, str words, bool special);

/* ---- the handlers ---- */

mpk_status net_facts_models(net_exchange *x, const char *path);
mpk_status net_facts_health(net_exchange *x, const char *path);
mpk_status net_facts_version(net_exchange *x, const char *path);
mpk_status net_facts_metrics(net_exchange *x, const char *path);
mpk_status net_facts_props(net_exchange *x, const char *path);
mpk_status net_facts_slots(net_exchange *x, const char *path);
mpk_status net_page_send(net_exchange *x, const char *path);
mpk_status net_tokens_encode(net_exchange *x, const char *path);
mpk_status net_tokens_decode(net_exchange *x, const char *path);
mpk_status net_completion_run(net_exchange *x, const char *path);
mpk_status net_chat_run(net_exchange *x, const char *path);
mpk_status net_chat_show_prompt(net_exchange *x, const char *path);
mpk_status net_chat_prompt(net_exchange *x, const json_value *body, text *prompt, bool *special);
mpk_status net_llama_run(net_exchange *x, const char *path);
mpk_status net_messages_run(net_exchange *x, const char *path);
mpk_status net_messages_count(net_exchange *x, const char *path);
mpk_status net_responses_run(net_exchange *x, const char *path);
mpk_status net_responses_count(net_exchange *x, const char *path);
mpk_status net_chat_count_only(net_exchange *x, const char *path);
/* Names of the routes, for the metrics. */
const char *net_route_name(unsigned at);
unsigned net_route_count(void);

/* Parse the body as JSON into the arena; 400, 413, 503. */
mpk_status net_completion_parse(net_exchange *x, const json_value **out);
/* Charge the memory that a body becomes: 413, 503. */
mpk_status net_completion_hold(net_exchange *x, str source);
/* As parse, and 404 unless the body names our model or none. */
mpk_status net_completion_open(net_exchange *x, const json_value **out);
/* The sampling options that the model's makers suggest. */
mpk_request_options net_completion_suggested(const net_exchange *x);
/* Reply to what was submitted, as one document or as a stream. */
mpk_status net_completion_answer(net_exchange *x, const net_request *q);
/* Reply to a chat; net_chat_count only counts the tokens of its prompt. */
mpk_status net_chat_answer(net_exchange *x, const net_request *q, const net_dialect *dialect);
/* Render a conversation (a JSON list) by the request's chat template into *to, which is emptied
 * before.  400 if the template refuses it. */
mpk_status net_chat_render(net_exchange *x, const net_request *q, str messages, const char *tools,
                           text *to);
mpk_status net_chat_count(net_exchange *x, const net_request *q, size_t *n_tokens);
/* Rewrite the messages of a chat whose template knows no tools, with the tools told in words;
 * *out is in the arena. */
mpk_status net_tools_tell(mpk_context *cx, arena *a, str messages, const json_value *tools,
                          str *out);

/* ---- net_work.c ---- */

/* Make room for the answers to n_prompts prompts, and take the key's and the server's limits;
 * 400, 429. */
mpk_status net_work_open(net_exchange *x, const net_request *q, const net_dialect *dialect,
                         size_t n_prompts);
/* Submit the answers of prompt `at` to the engine. */
mpk_status net_work_submit(net_exchange *x, const net_request *q, size_t at,
                           const net_prompt *prompt);
/* Wait until some answer has tokens, and take them.  Fails with the status that ends the
 * exchange early. */
mpk_status net_work_wait(net_exchange *x);
/* Note that the engine has failed; it stays so.  http: 500 for requests that it was computing,
 * 503 for later ones. */
mpk_status net_work_note_fault(net_exchange *x, mpk_status status, int http);
/* After all have ended: keep, for each prompt, the answers that the client gets (best_of). */
void net_work_choose(net_exchange *x);
void net_work_close(net_exchange *x);
/* How many tokens a prompt and its answer may have together. */
uint32_t net_work_context(const net_server *s);

/* ---- net_document.c: answers as OpenAI's documents, net_chunk.c: as its events ---- */

extern const net_dialect net_dialect_completion, net_dialect_chat;
/* llama-server's, of /completion and of /infill (net_llama.c) */
extern const net_dialect net_dialect_llama;
void net_document_write(net_exchange *x, text *to);
void net_chunk_write_news(net_exchange *x, net_answer *a, uint32_t index, text *to);
void net_chunk_write_end(net_exchange *x, text *to);
void net_chunk_write_failure(net_exchange *x, text *to);
/* "id":..,"object":OBJECT,"created":..,"model":.. of a reply, without braces. */
void net_document_write_head(const net_exchange *x, const char *object, text *to);
/* {"prompt_tokens":..} */
void net_document_write_usage(const net_exchange *x, text *to);
/* ,"token_ids":[..] of an answer, if they are asked for and some were not written yet; and
 * ,"prompt_token_ids":[..] of its prompt, once. */
void net_document_move_ids(const net_exchange *x, net_answer *a, text *to);
void net_document_move_prompt_ids(const net_exchange *x, net_answer *a, text *to);
/* {"index":..,"id":..,"type":"function","function":{..}} */
void net_document_write_call(const net_call *call, uint32_t index, bool with_index, text *to);
/* "stop", "length" or "tool_calls". */
const char *net_document_reason(const net_answer *a);
/* "finish_reason":..,"stop_reason":.. of an answer that has ended; the second, vLLM's, is the
 * stop text or token that ended it. */
void net_document_write_reasons(const net_answer *a, text *to);

/* ---- net_probs.c ---- */

/* Keep the log probabilities of tokens [from, to) of a running answer, if they are asked for;
 * with its first token also those of its prompt. */
bool net_probs_is_mark(net_exchange *x, int32_t token, str prompt);
mpk_status net_probs_take(net_exchange *x, net_answer *a, size_t from, size_t to);
/* Write ,"logprobs":.. with what net_probs_take has kept since the last call. */
void net_probs_move(const net_exchange *x, net_answer *a, text *to);
void net_probs_close(net_probs *p);

/* ---- net_stream.c: answers as server-sent events ---- */

mpk_status net_stream_begin(net_exchange *x);

#endif
