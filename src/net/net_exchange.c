/* net_exchange.c - the life of one HTTP request: headers, body, handler, end.
 *
 * libmicrohttpd calls net_exchange_begin at the request line; net_exchange_handle once after the
 * headers, then for each part of the body, then once more for the reply; and
 * net_exchange_complete at the end, however the request ended.  All calls for one exchange come
 * from one thread, that of its connection.
 *
 *   begin -> headers checked -> body kept, part by part -> handler (net_route.c) -> reply -> end
 *                  \-> refusal -> body read and dropped ---------------------------/
 *
 * A refusal that the headers or the body cause is kept in x->refusal and sent as the reply after
 * the rest of a body of moderate size was read: a client that is cut off while it still sends
 * would see a broken connection, not the reason.
 */
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/thread.h"
#include "net/net_exchange.h"
#include "net/net_random.h"

/* Limits for a body that is only read to be dropped, in multiples of the largest body and of a
 * connection's timeout. */
enum { DRAINED_BODIES = 4, BODY_TIMEOUTS = 10 };

/* ---- begin and end ---- */

/* Copy a text of the client's for a log line: cut to the room, every byte that is not visible
 * ASCII as '?': a client cannot forge log lines. */
static void copy_printable(char *to, size_t n_bytes, const char *from)
{
    size_t n = 0;
    for (; from[n] && n + 1 < n_bytes; n++)
        to[n] = from[n] > ' ' && from[n] < 127 ? from[n] : '?';
    to[n] = 0;
}

/* The client's address as text, "-" if it is not known. */
static void write_client(const struct MHD_Connection *c, char *to, size_t n_bytes)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        (struct MHD_Connection *)(uintptr_t)c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *at = info ? info->client_addr : NULL;
    const socklen_t n =
        at && at->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (!at || getnameinfo(at, n, to, (socklen_t)n_bytes, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(to, n_bytes, "-");
}

/* NULL: out of memory; there is no exchange to answer with then, and the connection is closed. The
 * route is that of an unknown path until the request line is complete. */
static net_exchange *begin(net_server *s, struct MHD_Connection *connection)
{
    net_exchange *x = calloc(1, sizeof *x);
    mpk_context *cx = x ? mpk_context_create() : NULL;
    if (!cx) {
        free(x);
        return NULL;
    }
    x->server = s;
    x->connection = connection;
    x->cx = cx;
    x->begun_ns = clock_ns();
    x->route = net_route_find("");
    write_client(connection, x->client, sizeof x->client);
    return x;
}

/* libmicrohttpd's callback at the request line.  A request that libmicrohttpd itself refuses
 * never gets further, and is logged with its path only. */
void *net_exchange_begin(void *user, const char *uri, struct MHD_Connection *connection)
{
    net_exchange *x = begin(user, connection);
    if (!x)
        return NULL;
    copy_printable(x->path, sizeof x->path, uri);
    copy_printable(x->method, sizeof x->method, "-");
    copy_printable(x->id, sizeof x->id, "-");
    net_http_note_uri(x, uri);
    return x;
}

/* Count, log and free an exchange.  sent: the whole reply went out; otherwise the log says that
 * the client had gone. */
static void end(net_exchange *x, bool sent)
{
    net_server *s = x->server;
    const uint64_t ns = clock_ns() - x->begun_ns;
    const int status = sent && x->status ? x->status : NET_CLIENT_GONE;
    net_work_close(x);
    net_meter_end(x);
    net_metrics_count_reply(&s->metrics, x->route, status);
    if (x->work.n)
        net_metrics_count_request(&s->metrics, ns);
    net_log_exchange(x, status, ns);
    net_exchange_drop_body(x);
    arena_free(&x->work.arena);
    s->held_bytes -= x->kept_bytes;
    text_free(&x->out);
    mpk_context_free(x->cx);
    if (x->answering)
        s->exchanges--;
    free(x);
}

/* libmicrohttpd calls this exactly once for each exchange that net_exchange_begin made, whatever
 * became of it: so here is the only place that frees one. */
void net_exchange_complete(void *user, struct MHD_Connection *connection, void **exchange,
                           enum MHD_RequestTerminationCode how)
{
    (void)user;
    (void)connection;
    if (*exchange)
        end(*exchange, how == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    *exchange = NULL;
}

/* ---- the client ---- */

/* Looks at the socket itself, since libmicrohttpd reports a closed connection only when it reads
 * or writes. */
bool net_exchange_is_gone(net_exchange *x)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pollfd look = {.fd = info ? info->connect_fd : -1, .events = POLLRDHUP};
    if (poll(&look, 1, 0) > 0 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR)))
        x->gone = true;
    return x->gone;
}

void net_exchange_stop_clock(net_exchange *x, bool stop)
{
    /* a change from 0 also restarts the count of idle seconds */
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              stop ? 0u : (unsigned)x->server->options.timeout_s);
}

/* ---- the body ---- */

/* Charged atomically, and given back if it was too much: two exchanges cannot both take the last
 * bytes. */
mpk_status net_exchange_hold(net_exchange *x, uint64_t bytes)
{
    net_server *s = x->server;
    const uint64_t bodies = (uint64_t)NET_HELD_BODIES * s->options.body_bytes;
    const uint64_t most = bodies > NET_HELD_BYTES ? bodies : NET_HELD_BYTES;
    if (bytes > most)
        return net_refuse(x->cx, &x->refusal, 413, NULL, NULL,
                          "the request takes %llu MiB of memory, this server has %llu for all",
                          (unsigned long long)(bytes >> 20), (unsigned long long)(most >> 20));
    if (atomic_fetch_add(&s->held_bytes, bytes) + bytes > most) {
        s->held_bytes -= bytes;
        return net_refuse(x->cx, &x->refusal, 503, NULL, "overloaded",
                          "the server holds too many large requests; try again later");
    }
    x->held_bytes += bytes;
    return MPK_OK;
}

/* Not given back with the body. */
mpk_status net_exchange_keep(net_exchange *x, uint64_t bytes)
{
    TRY(net_exchange_hold(x, bytes));
    x->held_bytes -= bytes;
    x->kept_bytes += bytes;
    return MPK_OK;
}

/* The body and what was made of it are not needed once answers run, and a long answer would hold
 * them for minutes. Called again by `end`, hence everything is left empty. */
void net_exchange_drop_body(net_exchange *x)
{
    text_free(&x->body);
    x->body = (text){0};
    arena_free(&x->arena);
    x->server->held_bytes -= x->held_bytes;
    x->held_bytes = 0;
}

static mpk_status refuse_size(net_exchange *x)
{
    return net_refuse(x->cx, &x->refusal, 413, NULL, NULL, "the body is larger than %zu bytes",
                      x->server->options.body_bytes);
}

/* Keep a part of the body; 413 if the body is too large. */
static mpk_status keep(net_exchange *x, const char *data, size_t n)
{
    if (x->body.n + n > x->server->options.body_bytes)
        return refuse_size(x);
    TRY(net_exchange_hold(x, n));
    text_add(&x->body, data, n);
    CHECK(x->cx, !x->body.failed, MPK_ENOMEM, "out of memory for the body");
    return MPK_OK;
}

/* Take a part of the body: keep it, or drop it after a refusal.  False: it is too much or takes
 * too long, and the connection is closed. */
static bool take_body(net_exchange *x, const char *data, size_t n)
{
    const net_options *o = &x->server->options;
    x->n_body_bytes += n;
    if (!x->refusal.http) {
        mpk_status status = keep(x, data, n);
        if (status != MPK_OK) {
            net_refuse_status(&x->refusal, status);
            net_exchange_drop_body(x);
        }
    }
    return x->n_body_bytes <= (uint64_t)DRAINED_BODIES * o->body_bytes &&
           clock_ns() - x->begun_ns < (uint64_t)BODY_TIMEOUTS * o->timeout_s * 1000000000 &&
           !x->server->cancelling;
}

/* ---- headers and reply ---- */

static const char *header(net_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* What can be refused before the body is read: path, method, key, declared length. */
static mpk_status check_headers(net_exchange *x)
{
    const char *length = header(x, "Content-Length");
    TRY(net_route_check(x));
    return length && strtoull(length, NULL, 10) > x->server->options.body_bytes ? refuse_size(x)
                                                                                : MPK_OK;
}

/* Is a refusal sent at once, before the body?  Yes if the client waits for that (Expect:
 * 100-continue), if the connection is to be closed, or if the body is too large to be read and
 * dropped. */
static bool answers_at_headers(net_exchange *x)
{
    const char *length = header(x, "Content-Length");
    return x->refusal.http &&
           (x->last || header(x, "Expect") ||
            (length && strtoull(length, NULL, 10) >
                           (uint64_t)DRAINED_BODIES * x->server->options.body_bytes));
}

/* Run the handler, or send the refusal.  The server counts exchanges from here on, so that a
 * stop can wait for them. */
static enum MHD_Result reply(net_exchange *x, const char *url)
{
    x->answering = true;
    x->server->exchanges++;
    mpk_status status = x->refusal.http ? MPK_EARG : net_route_run(x, url);
    if (status != MPK_OK && !x->gone) {
        net_refuse_status(&x->refusal, status);
        status = net_reply_refusal(x);
    }
    return status == MPK_OK ? MHD_YES : MHD_NO;
}

/* The request's id: the client's X-Request-Id, or one of ours. */
static mpk_status take_id(net_exchange *x)
{
    const char *given = header(x, "X-Request-Id");
    if (!given || !*given || strlen(given) >= sizeof x->id)
        return net_random_id(x->cx, "req-", x->id, sizeof x->id);
    copy_printable(x->id, sizeof x->id, given);
    return MPK_OK;
}

/* At the first call: what the request line and the headers say. */
static void take_headers(net_exchange *x, const char *url, const char *method, const char *version)
{
    x->checked = true;
    x->route = net_route_find(url);
    copy_printable(x->path, sizeof x->path, url);
    copy_printable(x->method, sizeof x->method, method);
    mpk_status status = take_id(x);
    if (status == MPK_OK)
        status = net_http_check(x, version);
    if (status == MPK_OK)
        status = check_headers(x);
    if (status != MPK_OK)
        net_refuse_status(&x->refusal, status);
}

/* See the life above; *n_data is 0 at the first and the last call. */
enum MHD_Result net_exchange_handle(void *user, struct MHD_Connection *connection, const char *url,
                                    const char *method, const char *version, const char *data,
                                    size_t *n_data, void **exchange)
{
    net_exchange *x = *exchange;
    (void)user;
    (void)connection;
    if (!x)
        return MHD_NO; /* net_exchange_begin found no memory */
    if (!x->checked) {
        take_headers(x, url, method, version);
        return answers_at_headers(x) ? reply(x, url) : MHD_YES;
    }
    if (!*n_data)
        return reply(x, url);
    bool more = take_body(x, data, *n_data);
    *n_data = 0;
    return more ? MHD_YES : MHD_NO;
}
