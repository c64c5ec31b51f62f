/* net_exchange.c - the life of one HTTP request: headers, body, handler, end.
 *
 * libmicrohttpd calls net_exchange_handle once after the headers, then for each part of the body, then once more for
 * the reply; and net_exchange_complete at the end, however it came.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/thread.h"
#include "net/net_exchange.h"

/* How much of a body that will not be read we let pass, so that its sender comes to read why. */
enum { DRAINED_BODIES = 4, BODY_TIMEOUTS = 10 };

/* ---- beginning and end ---- */

static void copy_printable(char *to, size_t n_bytes, const char *from)
{
    size_t n = 0;
    for (; from[n] && n + 1 < n_bytes; n++)
        to[n] = from[n] > ' ' && from[n] < 127 ? from[n] : '?';
    to[n] = 0;
}

static net_exchange *begin(net_server *s, struct MHD_Connection *connection, const char *url, const char *method)
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
    x->route = net_route_find(url);
    copy_printable(x->path, sizeof x->path, url);
    copy_printable(x->method, sizeof x->method, method);
    s->exchanges++;
    return x;
}

static void log_line_of(const net_exchange *x, int status, uint64_t ns)
{
    char line[320], tokens[64] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < x->work.n; i++)
        n += x->work.answers[i].n_tokens;
    if (x->work.n_prompt_tokens)
        snprintf(tokens, sizeof tokens, " %zu+%zu tokens", x->work.n_prompt_tokens, n);
    snprintf(line, sizeof line, "%s %s %d%s %.0f ms", x->method, x->path, status, tokens, (double)ns * 1e-6);
    x->server->options.log(x->server->options.log_user, line);
}

static void end(net_exchange *x, bool sent)
{
    net_server *s = x->server;
    const uint64_t ns = clock_ns() - x->begun_ns;
    const int status = sent && x->status ? x->status : NET_CLIENT_GONE;
    net_work_close(x);
    net_metrics_count_reply(&s->metrics, x->route, status);
    if (x->work.n)
        net_metrics_count_request(&s->metrics, ns);
    if (s->options.log)
        log_line_of(x, status, ns);
    net_exchange_drop_body(x);
    arena_free(&x->work.arena);
    text_free(&x->out);
    mpk_context_free(x->cx);
    free(x);
    s->exchanges--;
}

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

bool net_exchange_is_gone(net_exchange *x)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pollfd look = {.fd = info ? info->connect_fd : -1, .events = POLLRDHUP};
    if (poll(&look, 1, 0) > 0 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR)))
        x->gone = true;
    return x->gone;
}

void net_exchange_stop_clock(net_exchange *x, bool stop)
{
    /* Coming from 0 it also forgets how long nothing has been sent. */
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              stop ? 0u : (unsigned)x->server->options.timeout_s);
}

/* ---- the body ---- */

mpk_status net_exchange_hold(net_exchange *x, uint64_t bytes)
{
    net_server *s = x->server;
    const uint64_t bodies = (uint64_t)NET_HELD_BODIES * s->options.body_bytes;
    const uint64_t most = bodies > NET_HELD_BYTES ? bodies : NET_HELD_BYTES;
    if (atomic_fetch_add(&s->held_bytes, bytes) + bytes > most) {
        s->held_bytes -= bytes;
        return net_refuse(x->cx, &x->refusal, 503, NULL, "overloaded",
                          "the server holds too many large requests; try again later");
    }
    x->held_bytes += bytes;
    return MPK_OK;
}

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

static mpk_status keep(net_exchange *x, const char *data, size_t n)
{
    if (x->body.n + n > x->server->options.body_bytes)
        return refuse_size(x);
    TRY(net_exchange_hold(x, n));
    text_add(&x->body, data, n);
    CHECK(x->cx, !x->body.failed, MPK_ENOMEM, "out of memory for the body");
    return MPK_OK;
}

/* False: it is too much, or takes too long; the connection is closed. */
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
           clock_ns() - x->begun_ns < (uint64_t)BODY_TIMEOUTS * o->timeout_s * 1000000000 && !x->server->cancelling;
}

/* ---- headers and reply ---- */

static const char *header(net_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

static void check_headers(net_exchange *x)
{
    const char *length = header(x, "Content-Length");
    mpk_status status = net_route_check(x);
    if (status == MPK_OK && length && strtoull(length, NULL, 10) > x->server->options.body_bytes)
        status = refuse_size(x);
    if (status != MPK_OK)
        net_refuse_status(&x->refusal, status);
}

/* Who asks before he sends the body, or would send more than we let pass, is answered at once. */
static bool answers_at_headers(net_exchange *x)
{
    const char *length = header(x, "Content-Length");
    return x->refusal.http &&
           (header(x, "Expect") ||
            (length && strtoull(length, NULL, 10) > (uint64_t)DRAINED_BODIES * x->server->options.body_bytes));
}

static enum MHD_Result reply(net_exchange *x, const char *url)
{
    mpk_status status = x->refusal.http ? MPK_EARG : net_route_run(x, url);
    if (status != MPK_OK && !x->gone) {
        net_refuse_status(&x->refusal, status);
        status = net_reply_refusal(x);
    }
    return status == MPK_OK ? MHD_YES : MHD_NO;
}

enum MHD_Result net_exchange_handle(void *user, struct MHD_Connection *connection, const char *url, const char *method,
                                    const char *version, const char *data, size_t *n_data, void **exchange)
{
    (void)version;
    net_exchange *x = *exchange;
    if (!x) {
        x = *exchange = begin(user, connection, url, method);
        if (!x)
            return MHD_NO;
        check_headers(x);
        return answers_at_headers(x) ? reply(x, url) : MHD_YES;
    }
    if (!*n_data)
        return reply(x, url);
    bool more = take_body(x, data, *n_data);
    *n_data = 0;
    return more ? MHD_YES : MHD_NO;
}
