/* net_reply.c - replies: the headers that all of them have, JSON, OpenAI's error object.  The
 * last step of every exchange, called by the handlers and, for a refusal, by net_exchange.c.
 *
 *   {"error":{"message":"..","type":"invalid_request_error","param":"n","code":null}}
 */
#include <stdio.h>

#include "net/net_exchange.h"

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
    /* one that libmicrohttpd refuses is left out */
    (void)MHD_add_response_header(response, name, value);
}

/* Headers by which a browser allows pages of another origin to read the reply. */
static void add_cors(net_exchange *x, struct MHD_Response *response)
{
    const char *origin = x->server->options.cors_origin;
    if (!origin)
        return;
    add_header(response, "Access-Control-Allow-Origin", origin);
    if (strcmp(origin, "*") != 0)
        add_header(response, "Vary", "Origin");
    if (strcmp(x->method, "OPTIONS") != 0)
        return;
    const char *asked = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND,
                                                    "Access-Control-Request-Headers");
    add_header(response, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    add_header(response, "Access-Control-Allow-Headers",
               asked ? asked : "Authorization, Content-Type");
    add_header(response, "Access-Control-Max-Age", "600");
}

/* Seconds after which a retry may succeed; 1 if nothing better is known. */
static void add_retry(const net_exchange *x, struct MHD_Response *response)
{
    char seconds[24];
    snprintf(seconds, sizeof seconds, "%llu", x->retry_s ? (unsigned long long)x->retry_s : 1);
    add_header(response, "Retry-After", seconds);
}

/* Vary and close, limits and ids: every reply has them; *response is released whether or not it was
 * queued. x->status is set last: as long as it is 0 nothing was sent, and the caller may still
 * answer with an error. */
mpk_status net_reply_send(net_exchange *x, int status, const char *type,
                          struct MHD_Response *response)
{
    CHECK(x->cx, response, MPK_ENOMEM, "out of memory for a reply");
    add_cors(x, response);
    if (type)
        add_header(response, "Content-Type", type);
    if (status == 401)
        add_header(response, "WWW-Authenticate", "Bearer");
    if (status == 405)
        add_header(response, "Allow", net_route_allows(x->route));
    if (status == 429 || status == 503)
        add_retry(x, response);
    net_meter_add_headers(x, response);
    if (x->id[0])
        add_header(response, "X-Request-Id", x->id);
    if (x->ignored[0])
        add_header(response, "X-Ignored-Parameters", x->ignored);
    if (x->server->stopping || x->last)
        add_header(response, "Connection", "close");
    enum MHD_Result queued = MHD_queue_response(x->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    CHECK(x->cx, queued == MHD_YES, MPK_EIO, "the reply cannot be sent");
    x->status = status;
    return MPK_OK;
}

/* The body is freed in any case. libmicrohttpd sends after the handler has returned, so it gets a
 * copy. */
mpk_status net_reply_text(net_exchange *x, int status, const char *type, text *body)
{
    const bool failed = body->failed;
    struct MHD_Response *response =
        failed ? NULL : MHD_create_response_from_buffer(body->n, body->at, MHD_RESPMEM_MUST_COPY);
    text_free(body);
    /* before the bytes are sent: a client that has the reply may ask again at once */
    net_meter_end(x);
    return net_reply_send(x, status, type, response);
}

mpk_status net_reply_json(net_exchange *x, text *body)
{
    return net_reply_text(x, 200, "application/json", body);
}

static const char *type_of(int http)
{
    if (http == 429)
        return "rate_limit_error";
    return http < 500 ? "invalid_request_error" : "server_error";
}

/* OpenAI's error object; `param` is the field that was wrong. */
void net_reply_write_error(const net_exchange *x, text *to)
{
    const net_refusal *why = &x->refusal;
    text_print(to, "{\"error\":{\"message\":");
    json_write_str(to, str_from(mpk_error_message(x->cx)));
    text_print(to, ",\"type\":\"%s\",\"param\":", type_of(why->http));
    if (why->field[0])
        json_write_str(to, str_from(why->field));
    else
        text_print(to, "null");
    text_print(to, why->code ? ",\"code\":\"%s\"}}" : ",\"code\":null}}", why->code);
}

mpk_status net_reply_refusal(net_exchange *x)
{
    text body = {0};
    net_route_write_error(x, &body);
    return net_reply_text(x, x->refusal.http, "application/json", &body);
}
