/* net_route.c - path and method -> handler, and what is refused before a handler sees it. */
#include <strings.h>

#include "net/net_exchange.h"

enum { METHOD_GET = 1, METHOD_POST = 2 };

typedef struct route {
    const char *path;
    unsigned methods;
    bool is_prefix; /* what follows the path belongs to it */
    bool is_open;   /* without the key */
    bool is_always; /* also while the server stops */
    mpk_status (*run)(net_exchange *x, const char *path);
} route;

static const route routes[] = {
    {"/v1/completions", METHOD_POST, false, false, false, net_completion_run},
    {"/v1/chat/completions", METHOD_POST, false, false, false, net_chat_run},
    {"/v1/models", METHOD_GET, false, false, false, net_facts_models},
    {"/v1/models/", METHOD_GET, true, false, false, net_facts_models},
    {"/health", METHOD_GET, false, true, true, net_facts_health},
    {"/version", METHOD_GET, false, false, false, net_facts_version},
    {"/metrics", METHOD_GET, false, false, true, net_facts_metrics},
    {"/tokenize", METHOD_POST, false, false, false, net_tokens_encode},
    {"/detokenize", METHOD_POST, false, false, false, net_tokens_decode},
    {NULL, 0, false, false, false, NULL},
};
enum { N_ROUTES = sizeof routes / sizeof *routes };
_Static_assert((int)N_ROUTES == (int)NET_ENDPOINTS, "each route has its counters");

const char *const net_route_names[] = {
    "/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{id}", "/health", "/version", "/metrics",
    "/tokenize",       "/detokenize",          "other"};
_Static_assert(sizeof net_route_names / sizeof *net_route_names == N_ROUTES, "each route has its name");

unsigned net_route_count(void)
{
    return N_ROUTES;
}

unsigned net_route_find(const char *path)
{
    unsigned i = 0;
    for (; routes[i].path; i++) {
        size_t n = strlen(routes[i].path);
        if (strncmp(path, routes[i].path, n) == 0 && (routes[i].is_prefix ? path[n] != 0 : path[n] == 0))
            break;
    }
    return i;
}

const char *net_route_allows(unsigned at)
{
    return routes[at].methods == METHOD_GET ? "GET" : "POST";
}

static unsigned method_of(const char *name)
{
    return strcmp(name, "GET") == 0 || strcmp(name, "HEAD") == 0 ? METHOD_GET
           : strcmp(name, "POST") == 0                           ? METHOD_POST
                                                                 : 0;
}

/* Takes as long for a key that is nearly right as for one that is not. */
static bool is_key(const char *given, const char *key)
{
    const size_t n = strlen(key);
    volatile unsigned difference = strlen(given) != n;
    for (size_t i = 0, at = 0; i < n; i++) {
        difference |= (unsigned char)given[at] ^ (unsigned char)key[i];
        at += given[at] != 0;
    }
    return difference == 0;
}

static mpk_status check_key(net_exchange *x)
{
    const char *key = x->server->options.api_key;
    if (!key || routes[x->route].is_open)
        return MPK_OK;
    const char *given = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Authorization");
    if (given && strncasecmp(given, "Bearer ", 7) == 0 && is_key(given + 7, key))
        return MPK_OK;
    return net_refuse(x->cx, &x->refusal, 401, NULL, "invalid_api_key",
                      "%s: send the header \"Authorization: Bearer KEY\"",
                      given ? "the API key is wrong" : "an API key is needed");
}

static bool is_preflight(const net_exchange *x)
{
    return x->server->options.cors_origin && strcmp(x->method, "OPTIONS") == 0;
}

mpk_status net_route_check(net_exchange *x)
{
    const route *r = &routes[x->route];
    if (is_preflight(x))
        return MPK_OK;
    TRY(check_key(x));
    if (!r->path)
        return net_refuse(x->cx, &x->refusal, 404, NULL, NULL, "there is nothing at %s %s", x->method, x->path);
    if (!(method_of(x->method) & r->methods))
        return net_refuse(x->cx, &x->refusal, 405, NULL, "method_not_allowed", "%s takes %s, not %s", x->path,
                          net_route_allows(x->route), x->method);
    if (x->server->stopping && !r->is_always)
        return net_refuse(x->cx, &x->refusal, 503, NULL, "stopping", "the server is stopping");
    return MPK_OK;
}

mpk_status net_route_run(net_exchange *x, const char *path)
{
    text nothing = {0};
    return is_preflight(x) ? net_reply_text(x, 204, NULL, &nothing) : routes[x->route].run(x, path);
}

void net_route_write_error(const net_exchange *x, text *to)
{
    net_reply_write_error(x, to);
}
