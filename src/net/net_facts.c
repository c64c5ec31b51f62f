/* net_facts.c - what the server says about itself: models, health, version, metrics; and /props
 * and /slots in llama-server's format.
 *
 * Handlers of net_route.c's table.  Nothing here waits for the engine's answers, so a probe of
 * /health is answered while the server is full or stopping.
 */
#include "net/net_exchange.h"

/* One entry of the list of models. */
static void write_model(const net_server *s, text *to)
{
    text_print(to, "{\"id\":");
    json_write_str(to, str_from(s->options.model_name));
    text_print(to,
               ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"mpk\",\"max_model_len\":%u}",
               (long long)s->created, s->facts.context_tokens);
}

/* GET /v1/models, and GET /v1/models/NAME. */
mpk_status net_facts_models(net_exchange *x, const char *path)
{
    static const char prefix[] = "/v1/models/";
    const net_server *s = x->server;
    const bool one = strncmp(path, prefix, sizeof prefix - 1) == 0;
    text body = {0};
    if (one && strcmp(path + sizeof prefix - 1, s->options.model_name) != 0)
        return net_refuse(x->cx, &x->refusal, 404, "model", "model_not_found",
                          "there is no model '%.200s', this server has '%.200s'",
                          path + sizeof prefix - 1, s->options.model_name);
    if (!one)
        text_print(&body, "{\"object\":\"list\",\"data\":[");
    write_model(s, &body);
    if (!one)
        text_print(&body, "]}");
    return net_reply_json(x, &body);
}

/* GET /health.  503 while stopping, so that a load balancer sends nothing more. */
mpk_status net_facts_health(net_exchange *x, const char *path)
{
    const net_server *s = x->server;
    const char *word = "ok";
    text body = {0};
    (void)path;
    if (s->stopping)
        word = "stopping";
    if (s->failed)
        word = "failed";
    text_print(&body, "{\"status\":\"%s\"}", word);
    return net_reply_text(x, s->failed || s->stopping ? 503 : 200, "application/json", &body);
}

/* GET /version, as vLLM answers it. */
mpk_status net_facts_version(net_exchange *x, const char *path)
{
    text body = {0};
    (void)path;
    text_print(&body, "{\"version\":\"%s\"}", mpk_version());
    return net_reply_json(x, &body);
}

/* The figures for the metrics.  Counters are read one after the other while requests run, so
 * `waiting` is bounded by 0. */
static net_load load_of(const net_server *s)
{
    const uint32_t answers = s->answers, running = s->running;
    mpk_engine_facts f = {.size = sizeof f};
    mpk_engine_describe(s->engine, &f);
    return (net_load){.running = running,
                      .waiting = answers > running ? answers - running : 0,
                      .kv_used = f.kv_tokens - f.kv_free_tokens,
                      .kv_tokens = f.kv_tokens,
                      .asked = f.prefix_asked_tokens,
                      .found = f.prefix_found_tokens,
                      .drafted = f.drafted_tokens,
                      .accepted = f.accepted_tokens,
                      .put_back = f.put_back,
                      .model = s->options.model_name};
}

/* GET /metrics, in Prometheus' text format. */
mpk_status net_facts_metrics(net_exchange *x, const char *path)
{
    const net_server *s = x->server;
    const net_load now = load_of(s);
    text body = {0};
    (void)path;
    net_metrics_print(&s->metrics, net_route_name, net_route_count(), &now, s->options.vllm_metrics,
                      &body);
    return net_reply_text(x, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

/* ---- in llama-server's format ---- */

static void write_number(const char *name, double value, text *to)
{
    text_print(to, ",\"%s\":", name);
    text_add_double(to, value);
}

/* GET /props: defaults of sampling, context and number of slots. */
mpk_status net_facts_props(net_exchange *x, const char *path)
{
    const net_server *s = x->server;
    const mpk_request_options o = net_completion_suggested(x);
    text body = {0};
    (void)path;
    text_print(&body, "{\"default_generation_settings\":{\"n_ctx\":%u,\"params\":{\"n_predict\":-1",
               s->facts.context_tokens);
    write_number("temperature", o.temperature > 0 ? o.temperature : 1, &body);
    write_number("top_k", o.top_k, &body);
    write_number("top_p", o.top_p > 0 ? o.top_p : 1, &body);
    write_number("min_p", o.min_p, &body);
    text_print(&body, "}},\"total_slots\":%u,\"model_alias\":", s->facts.max_batch);
    json_write_str(&body, str_from(s->options.model_name));
    text_print(&body, ",\"build_info\":\"%s\",\"modalities\":{\"vision\":false,\"audio\":false}}",
               s->fingerprint);
    return net_reply_json(x, &body);
}

/* GET /slots.  The engine's slots have no fixed numbers, so the first ones of the list are shown
 * as busy, as many as answers run. */
mpk_status net_facts_slots(net_exchange *x, const char *path)
{
    const net_server *s = x->server;
    const uint32_t running = s->running;
    text body = {0};
    (void)path;
    for (uint32_t i = 0; i < s->facts.max_batch; i++)
        text_print(&body, "%s{\"id\":%u,\"n_ctx\":%u,\"is_processing\":%s}", i ? "," : "[", i,
                   s->facts.context_tokens, str_bool(i < running));
    text_print(&body, "]");
    return net_reply_json(x, &body);
}
