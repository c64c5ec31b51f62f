/* net_route.c - path and method -> handler, and what is refused before a handler runs: a wrong
 * key 401, an unknown path 404, a wrong method 405, a request while the server stops 503, one
 * beyond the key's limits 429.  In this order, so that only clients with a key learn which paths
 * exist.
 *
 * A new endpoint is one row of the table; NET_ENDPOINTS, the number of its counters, grows with
 * it.  A path that another server has for the same thing is a row of `others`.  Called by
 * net_exchange.c.
 */
#include <strings.h>

#include "net/net_embed.h"
#include "net/net_exchange.h"
#include "net/net_infill.h"
#include "net/net_messages.h"

enum { METHOD_GET = 1, METHOD_POST = 2 };

typedef struct route {
    const char *path;
    unsigned methods;
    bool is_prefix; /* the path continues, as with a model's name */
    bool is_open;   /* needs no key */
    bool is_always; /* also while the server stops */
    bool computes;  /* counts for the limits of keys */
    mpk_status (*run)(net_exchange *x, const char *path);
    void (*write_error)(const net_exchange *x, text *to); /* NULL: in OpenAI's format */
} route;

static const route routes[] = {
    {.path = "/v1/completions",
     .methods = METHOD_POST,
     .computes = true,
     .run = net_completion_run},
    {.path = "/v1/chat/completions", .methods = METHOD_POST, .computes = true, .run = net_chat_run},
    {.path = "/v1/embeddings", .methods = METHOD_POST, .computes = true, .run = net_embed_vectors},
    {.path = "/v1/score", .methods = METHOD_POST, .computes = true, .run = net_embed_score},
    {.path = "/v1/rerank", .methods = METHOD_POST, .computes = true, .run = net_embed_rerank},
    {.path = "/completion", .methods = METHOD_POST, .computes = true, .run = net_llama_run},
    {.path = "/apply-template", .methods = METHOD_POST, .run = net_chat_show_prompt},
    {.path = "/infill", .methods = METHOD_POST, .computes = true, .run = net_infill_run},
    {.path = "/v1/responses", .methods = METHOD_POST, .computes = true, .run = net_responses_run},
    {.path = "/v1/responses/input_tokens", .methods = METHOD_POST, .run = net_responses_count},
    {.path = "/v1/chat/completions/input_tokens",
     .methods = METHOD_POST,
     .run = net_chat_count_only},
    {.path = "/v1/messages",
     .methods = METHOD_POST,
     .computes = true,
     .run = net_messages_run,
     .write_error = net_messages_write_error},
    {.path = "/v1/messages/count_tokens",
     .methods = METHOD_POST,
     .run = net_messages_count,
     .write_error = net_messages_write_error},
    {.path = "/v1/models", .methods = METHOD_GET, .run = net_facts_models},
    {.path = "/v1/models/", .methods = METHOD_GET, .is_prefix = true, .run = net_facts_models},
    {.path = "/health",
     .methods = METHOD_GET,
     .is_open = true,
     .is_always = true,
     .run = net_facts_health},
    {.path = "/version", .methods = METHOD_GET, .run = net_facts_version},
    {.path = "/metrics", .methods = METHOD_GET, .is_always = true, .run = net_facts_metrics},
    {.path = "/props", .methods = METHOD_GET, .run = net_facts_props},
    {.path = "/slots", .methods = METHOD_GET, .run = net_facts_slots},
    {.path = "/", .methods = METHOD_GET, .is_open = true, .run = net_page_send},
    {.path = "/tokenize", .methods = METHOD_POST, .run = net_tokens_encode},
    {.path = "/detokenize", .methods = METHOD_POST, .run = net_tokens_decode},
    {.path = NULL},
};

/* Paths of llama-server and vLLM, and ours with the same meaning. */
static const struct {
    const char *path, *means;
} others[] = {
    {"/completions", "/completion"},
    {"/chat/completions", "/v1/chat/completions"},
    {"/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"},
    {"/models", "/v1/models"},
    {"/v1/health", "/health"},
    {"/ping", "/health"},
    {"/score", "/v1/score"},
    {"/rerank", "/v1/rerank"},
    {"/reranking", "/v1/rerank"},
    {"/v1/reranking", "/v1/rerank"},
    {"/v2/rerank", "/v1/rerank"},
};

enum { N_ROUTES = sizeof routes / sizeof *routes };
_Static_assert((int)N_ROUTES == (int)NET_ENDPOINTS, "each route has its counters");

const char *net_route_name(unsigned at)
{
    if (!routes[at].path)
        return "other";
    return routes[at].is_prefix ? "/v1/models/{id}" : routes[at].path;
}

unsigned net_route_count(void)
{
    return N_ROUTES;
}

/* The last row, which has no path, if no route has this path. */
unsigned net_route_find(const char *path)
{
    unsigned i = 0;
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        if (strcmp(path, others[k].path) == 0)
            path = others[k].means;
    for (; routes[i].path; i++) {
        size_t n = strlen(routes[i].path);
        if (strncmp(path, routes[i].path, n) == 0 &&
            (routes[i].is_prefix ? path[n] != 0 : path[n] == 0))
            break;
    }
    return i;
}

const char *net_route_allows(unsigned at)
{
    return routes[at].methods == METHOD_GET ? "GET" : "POST";
}

/* HEAD is a GET whose body is dropped; 0: a method that no route accepts. */
static unsigned method_of(const char *name)
{
    if (strcmp(name, "GET") == 0 || strcmp(name, "HEAD") == 0)
        return METHOD_GET;
    return strcmp(name, "POST") == 0 ? METHOD_POST : 0;
}

/* The key may come in two headers, of OpenAI's and of Anthropic's clients.  The message
 * distinguishes a missing key from a wrong one, and shows nothing about right ones. */
static mpk_status check_key(net_exchange *x)
{
    net_keys *keys = &x->server->keys;
    if (!net_keys_needed(keys) || routes[x->route].is_open)
        return MPK_OK;
    const char *given =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Authorization");
    /* Anthropic's header */
    const char *plain = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "X-Api-Key");
    if (given && strncasecmp(given, "Bearer ", 7) == 0 && net_keys_find(keys, given + 7, &x->key))
        return MPK_OK;
    if (plain && net_keys_find(keys, plain, &x->key))
        return MPK_OK;
    return net_refuse(x->cx, &x->refusal, 401, NULL, "invalid_api_key",
                      "%s: send the header \"Authorization: Bearer KEY\"",
                      given || plain ? "the API key is wrong" : "an API key is needed");
}

/* A browser's question whether a page of another origin may make requests; it comes without a
 * key. */
static bool is_preflight(const net_exchange *x)
{
    return x->server->options.cors_origin && strcmp(x->method, "OPTIONS") == 0;
}

/* In this order: a key is asked for before a path is looked at, so that a stranger learns nothing
 * of what is there; a browser's preflight brings no key and is let through. */
mpk_status net_route_check(net_exchange *x)
{
    const route *r = &routes[x->route];
    if (is_preflight(x))
        return MPK_OK;
    TRY(check_key(x));
    if (!r->path)
        return net_refuse(x->cx, &x->refusal, 404, NULL, NULL, "there is nothing at %s %s",
                          x->method, x->path);
    if (!(method_of(x->method) & r->methods))
        return net_refuse(x->cx, &x->refusal, 405, NULL, "method_not_allowed",
                          "%s takes %s, not %s", x->path, net_route_allows(x->route), x->method);
    if (x->server->stopping && !r->is_always)
        return net_refuse(x->cx, &x->refusal, 503, NULL, "stopping",
                          "the server is stopping and takes no new requests");
    return r->computes ? net_meter_begin(x) : MPK_OK;
}

mpk_status net_route_run(net_exchange *x, const char *path)
{
    text nothing = {0};
    return is_preflight(x) ? net_reply_text(x, 204, NULL, &nothing) : routes[x->route].run(x, path);
}

/* Each API has its own error object; unknown paths get OpenAI's. */
void net_route_write_error(const net_exchange *x, text *to)
{
    if (routes[x->route].write_error)
        routes[x->route].write_error(x, to);
    else
        net_reply_write_error(x, to);
}
