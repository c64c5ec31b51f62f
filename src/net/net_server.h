/* net_server.h - an OpenAI-compatible HTTP server over an open engine: start it, read where it
 * listens, stop it.
 *
 * Input: HTTP requests of clients; output: answers of the model as JSON or as a stream of
 * events.
 *
 * Ownership:
 *
 *   net_server    of the caller: the listening socket, libmicrohttpd's daemon, counters.  The
 *                 engine is borrowed.
 *   net_exchange  one HTTP request and its reply, from the end of its headers until the reply is
 *                 sent or the client has gone.  Made at libmicrohttpd's first call for the request,
 *                 freed at its last, which comes in every case; in between it owns everything: the
 *                 body, the parsed request, the engine's requests.
 *   net_request   what the body asks for, checked; lies in the exchange's arena, freed when the
 *                 engine has it.
 *   net_work      the engine's requests of an exchange, one for each answer; outlives the body.
 *
 * Threads: libmicrohttpd has one thread that accepts, and one for each connection, at most
 * max_connections.  All of an exchange happens in its connection's thread, with a context of its
 * own; exchanges share only the engine, whose calls are thread-safe, and the server's atomic
 * counters.
 *
 * Life of an exchange: request line -> headers -> body, collected as it arrives -> the handler
 * of its path (net_route.c) -> reply -> log line, freed.  A fault is noted where it is found
 * (net_refuse) and becomes the reply.  After a fault that is known at the headers the body is
 * dropped unread, so that a client without the key cannot make us hold it.  A completion is
 * submitted to the engine; its thread then waits in mpk_request_read, at most NET_LOOK_MS at a
 * time, and in between looks at its client, at the server's flags, and takes what has come.
 * Without streaming that happens in the handler; with it, in the callback by which libmicrohttpd
 * asks for more bytes.
 *
 * What ends it early:
 *
 *   the client goes away   its socket shows it (half-closed counts too, as with other servers), or
 *                          a write fails; the engine's requests are freed, which cancels them.
 *   the client is slow     libmicrohttpd drops a connection that neither sends nor receives a byte
 *                          for timeout_s; while we compute, that clock is stopped.
 *   shutdown               net_server_stop: the socket stops listening, running exchanges have
 *                          their grace, new ones on open connections get 503; then `cancelling`
 *                          is set, running ones answer 503 (in a stream: an error event),
 *                          connections are closed, threads joined.
 *   an engine fault        running requests get 500, later ones 503, and /health says 503 from
 *                          then on.
 *
 * What is bounded: connections, engine requests running and waiting (max_waiting), a body
 * (body_bytes), the JSON values in it, and the memory of all bodies and what is made of them
 * (NET_HELD_BYTES); and for a key with limits, its requests and tokens a minute and its answers
 * at a time (net_limits.h).
 */
#ifndef NET_SERVER_H
#define NET_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mpk/mpk.h"

typedef struct net_server net_server;

/* Texts are borrowed until net_server_stop. */
typedef struct net_options {
    const char *host;       /* a name or an address, IPv4 or IPv6 */
    uint16_t port;          /* 0: any free one */
    const char *model_name; /* as clients name the model */
    const char *api_key;    /* NULL: no key is needed, unless there is a file */
    /* keys and their limits, one on a line (net_keys.h); NULL: none */
    const char *key_file;
    const char *tls_certificate, *tls_key; /* PEM files; NULL: no TLS */
    /* origin whose pages may make requests, "*": any; NULL: none */
    const char *cors_origin;
    const char *chat_template; /* Jinja, instead of the model's own; NULL: the model's */
    uint32_t max_waiting;      /* requests that may wait for a place in the engine */
    uint32_t max_connections, timeout_s;
    /* seconds without an event after which a stream gets a ping; 0: never */
    uint32_t ping_s;
    size_t body_bytes;   /* largest body of a request */
    bool any_model_name; /* answer requests for any model name */
    mpk_pooling pooling; /* for a server of embeddings */
    bool log_json, vllm_metrics;
    /* gets each line of the log; called by any thread; NULL: none */
    void (*log)(void *log_user, const char *line);
    void *log_user;
} net_options;

/* Bind the address, before the model is loaded: connections are refused until net_server_start.
 * Texts are borrowed.  MPK_EIO: the address cannot be used. */
mpk_status net_server_open(mpk_context *cx, const net_options *options, net_server **out);
/* Listen and answer until net_server_stop, which must be called after a failure, too. */
mpk_status net_server_start(mpk_context *cx, net_server *server, mpk_engine *engine);
/* Read the file of keys again; if that fails, the old keys stay. */
mpk_status net_server_reload(mpk_context *cx, net_server *server);
/* Where the server can be reached, such as "http://127.0.0.1:8000"; valid as long as the server. */
const char *net_server_url(const net_server *server);
/* Take no more connections, let running exchanges finish within the grace time, cancel the rest,
 * free everything.  A request whose body has not come is not waited for.  NULL is allowed. */
void net_server_stop(net_server *server, uint32_t grace_s);
/* Write a line to the log that does not belong to a request. */
void net_log_note(const net_options *options, const char *words);

#endif
