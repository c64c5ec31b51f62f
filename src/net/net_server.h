/* net_server.h - an OpenAI-compatible HTTP server over an open engine: start it, read where it
 * listens, stop it.
 *
 * Input: HTTP requests of strangers; output: answers of the model as JSON or as a stream of events.
 *
 * Who owns what
 *   net_server    of the caller: the listening socket, libmicrohttpd's daemon, counters.  The
 *                 engine is borrowed.
 *   net_exchange  one HTTP request and its reply, from the end of its headers until the reply is
 *                 sent or the client has gone.  Made at libmicrohttpd's first call for the request,
 *                 freed at its last, which comes in every case; between them everything hangs on
 *                 it: the body, the parsed request, the engine's requests.
 *   net_request   what the body asks for, checked; lies in the exchange's arena, given back when
 *                 the engine has it.
 *   net_work      the engine's requests of an exchange, one for each answer; outlives the body.
 *
 * Which thread does what
 *   libmicrohttpd has one thread that accepts and one for each connection, at most max_connections.
 *   All of an exchange happens in its connection's thread, with a context of its own; an exchange
 *   shares nothing with another but the engine, whose calls are made for that, and the server's
 *   atomic counters.
 *
 * Life of an exchange
 *   request line -> headers -> body, gathered as it comes -> the handler of its path (net_route.c)
 *   -> reply -> log line, freed.  A fault is noted where it is found (net_refuse) and becomes the
 *   reply.  One that is known at the headers lets the body pass unread, so that a stranger without
 *   the key cannot make us hold it.  A completion is submitted to the engine; its thread then waits
 *   in mpk_request_read, at most LOOK_MS at a time, and looks between at its client, at the
 *   server's flags, and takes what has come.  Without streaming that happens in the handler, with
 *   it in the callback that libmicrohttpd asks for more bytes.
 *
 * What ends it early
 *   the client goes away   its socket says so (a half-closed one too: nobody waits for the answer,
 *                          as others see it), or a write fails; the engine's requests are freed,
 *                          which cancels them.
 *   the client is slow     libmicrohttpd drops a connection that neither gives nor takes a byte for
 *                          timeout_s; while we compute its clock stands still.
 *   shutdown               net_server_stop: the socket stops listening, exchanges under way have
 *                          their grace, further ones on open connections get 503; then `cancelling`
 *                          is set, what runs answers 503 (in a stream: an error event), connections
 *                          are closed, threads joined.
 *   an engine fault        requests under way get 500, later ones 503, /health says 503 from then
 *                          on.
 *
 * What is bounded: connections, engine requests in work and waiting (max_waiting), a body
 * (body_bytes), the JSON values in it, and the memory of all bodies and what is made of them
 * (NET_HELD_BYTES); and for a key that has limits, its requests and tokens a minute and its answers
 * at a time (net_limits.h).
 */
#ifndef NET_SERVER_H
#define NET_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mpk/mpk.h"

typedef struct net_server net_server;

typedef struct net_options {
    const char *host;       /* a name or an address, of IPv4 or IPv6 */
    uint16_t port;          /* 0: any that is free */
    const char *model_name; /* as clients call the model */
    const char *api_key;    /* NULL: everyone is welcome, unless there is a file */
    /* of keys and their limits, one a line (net_keys.h); NULL: none */
    const char *key_file;
    const char *tls_certificate, *tls_key; /* files, PEM; NULL: without TLS */
    const char *cors_origin;               /* whose pages may ask, "*": everyone's; NULL: none */
    const char *chat_template;             /* Jinja, instead of the model's own; NULL: that one */
    uint32_t max_waiting;                  /* requests that wait for a place in the engine */
    uint32_t max_connections, timeout_s;
    uint32_t ping_s;     /* a stream on which nothing comes for so long gets a ping; 0: never */
    size_t body_bytes;   /* of a request at most */
    bool any_model_name; /* answer whatever model a request names */
    mpk_pooling pooling; /* of a server of embeddings */
    bool log_json, vllm_metrics;
    void (*log)(void *log_user, const char *line); /* NULL: none; called by any thread */
    void *log_user;
} net_options;

/* Take the address, before the model is loaded: whoever comes is turned away until
 * net_server_start.  Strings are borrowed.  MPK_EIO: the address cannot be listened on. */
mpk_status net_server_open(mpk_context *cx, const net_options *options, net_server **out);
/* Listen and answer until net_server_stop, which is due after a failure, too. */
mpk_status net_server_start(mpk_context *cx, net_server *server, mpk_engine *engine);
/* Read the file of keys again; if that fails, the old ones stay. */
mpk_status net_server_reload(mpk_context *cx, net_server *server);
/* "http://127.0.0.1:8000" */
const char *net_server_url(const net_server *server);
/* Take no more connections, let what runs finish within the grace time, cancel the rest, free
 * everything.  A request whose body has not come is not waited for.  NULL is allowed. */
void net_server_stop(net_server *server, uint32_t grace_s);
/* A line of the log that no request causes. */
void net_log_note(const net_options *options, const char *words);

#endif
