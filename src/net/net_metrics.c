/* net_metrics.c - counters and their text for Prometheus (exposition format 0.0.4). */
#include "net/net_metrics.h"

static const double first_token_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
                                            0.75,  1,     2.5,  5,    7.5,  10,   20,   40,  80},
                    per_token_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                          0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,     2.5},
                    request_bounds[] = {0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5,
                                        5,    10,   15,  20,  30,  40,  60, 120, 240, 480};
#define BOUNDS(b) (b), sizeof(b) / sizeof *(b)

static void observe(net_histogram *h, const double *bounds, size_t n, uint64_t ns)
{
    size_t i = 0;
    while (i < n && (double)ns * 1e-9 > bounds[i])
        i++;
    h->buckets[i == n ? NET_MAX_BUCKETS : i]++;
    h->sum_ns += ns;
}

void net_metrics_count_reply(net_metrics *m, unsigned endpoint, int status)
{
    static const int codes[] = {
#define NET_STATUS_CODE(code) code,
        NET_STATUS_MAP(NET_STATUS_CODE)
#undef NET_STATUS_CODE
    };
    unsigned at = NET_STATUS_500;
    for (unsigned i = 0; i < NET_STATUSES; i++)
        if (codes[i] == status)
            at = i;
    m->replies[endpoint][at]++;
}

void net_metrics_count_answer(net_metrics *m, uint64_t n_tokens, uint64_t first_ns, uint64_t last_ns)
{
    m->generated_tokens += n_tokens;
    if (n_tokens)
        observe(&m->first_token, BOUNDS(first_token_bounds), first_ns);
    if (n_tokens > 1)
        observe(&m->per_token, BOUNDS(per_token_bounds), (last_ns - first_ns) / (n_tokens - 1));
}

void net_metrics_count_request(net_metrics *m, uint64_t ns)
{
    observe(&m->request, BOUNDS(request_bounds), ns);
}

/* ---- text ---- */

static void print_header(text *to, const char *name, const char *type, const char *help)
{
    text_print(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void print_one(text *to, const char *name, const char *type, const char *help, uint64_t value)
{
    print_header(to, name, type, help);
    text_print(to, "%s %llu\n", name, (unsigned long long)value);
}

static void print_histogram(text *to, const char *name, const char *help, const net_histogram *h, const double *bounds,
                            size_t n)
{
    uint64_t so_far = 0;
    print_header(to, name, "histogram", help);
    for (size_t i = 0; i < n; i++)
        text_print(to, "%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)(so_far += h->buckets[i]));
    so_far += h->buckets[NET_MAX_BUCKETS];
    text_print(to, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9f\n%s_count %llu\n", name, (unsigned long long)so_far, name,
               (double)h->sum_ns * 1e-9, name, (unsigned long long)so_far);
}

static void print_replies(text *to, const net_metrics *m, const char *(*name)(unsigned at), unsigned n_names)
{
    static const char *const codes[] = {
#define NET_STATUS_NAME(code) #code,
        NET_STATUS_MAP(NET_STATUS_NAME)
#undef NET_STATUS_NAME
    };
    print_header(to, "mpk_http_requests_total", "counter", "HTTP requests by endpoint and status of the reply.");
    for (unsigned e = 0; e < n_names; e++)
        for (unsigned i = 0; i < NET_STATUSES; i++)
            if (m->replies[e][i])
                text_print(to, "mpk_http_requests_total{endpoint=\"%s\",status=\"%s\"} %llu\n", name(e), codes[i],
                           (unsigned long long)m->replies[e][i]);
}

void net_metrics_print(const net_metrics *m, const char *(*name)(unsigned at), unsigned n_names, uint64_t running,
                       uint64_t waiting, text *to)
{
    print_replies(to, m, name, n_names);
    print_one(to, "mpk_requests_running", "gauge", "Answers whose first token has come and whose last has not.",
              running);
    print_one(to, "mpk_requests_waiting", "gauge", "Answers that wait for a place, or for their prompt to be computed.",
              waiting);
    print_one(to, "mpk_prompt_tokens_total", "counter", "Tokens of prompts.", m->prompt_tokens);
    print_one(to, "mpk_generated_tokens_total", "counter", "Tokens of answers.", m->generated_tokens);
    print_histogram(to, "mpk_time_to_first_token_seconds", "From submitting an answer to its first token.",
                    &m->first_token, BOUNDS(first_token_bounds));
    print_histogram(to, "mpk_time_per_output_token_seconds", "Mean distance of an answer's tokens after the first.",
                    &m->per_token, BOUNDS(per_token_bounds));
    print_histogram(to, "mpk_request_duration_seconds", "From the headers of a completion to the end of its reply.",
                    &m->request, BOUNDS(request_bounds));
}
