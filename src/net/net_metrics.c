/* net_metrics.c - counters and their text for Prometheus (exposition format 0.0.4), under our
 * names and under vLLM's.
 *
 *   # HELP mpk_time_to_first_token_seconds From submitting an answer to its first token.
 *   # TYPE mpk_time_to_first_token_seconds histogram
 *   mpk_time_to_first_token_seconds_bucket{le="0.001"} 0
 *   ..
 *
 * Counters are atomic and only grow, so in a text that is written while requests run some of
 * them are at worst a few events behind others.  Called by the exchanges (counting) and by
 * net_facts.c (text).
 */
#include "net/net_metrics.h"

/* Upper bounds of the buckets, in seconds or tokens; those of vLLM where it has such a
 * histogram. */
static const double first_token_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                            0.1,   0.25,  0.5,  0.75, 1,    2.5,  5,
                                            7.5,   10,    20,   40,   80},
                    per_token_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                          0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,     2.5},
                    gap_bounds[] = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.004,
                                    0.005,  0.006,  0.008,  0.01,  0.015, 0.025, 0.05,
                                    0.1,    0.2,    0.5,    1,     2.5},
                    request_bounds[] = {0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5,
                                        5,    10,   15,  20,  30,  40,  60, 120, 240, 480},
                    size_bounds[] = {1,    2,    5,   10,  20,  50,  100, 200, 500, 1000,
                                     2000, 5000, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6};

/* The bounds of a histogram's buckets, in the unit of its text (seconds or tokens), and `unit`:
 * what one counted nanosecond or token is in that unit. */
typedef struct scale {
    const double *bounds;
    size_t n;
    double unit;
} scale;
#define SCALE(bounds, unit)                                 \
    {                                                       \
        (bounds), sizeof(bounds) / sizeof *(bounds), (unit) \
    }
static const scale first_token_scale = SCALE(first_token_bounds, 1e-9),
                   per_token_scale = SCALE(per_token_bounds, 1e-9),
                   gap_scale = SCALE(gap_bounds, 1e-9), request_scale = SCALE(request_bounds, 1e-9),
                   size_scale = SCALE(size_bounds, 1);

/* Count a value in one bucket; the running sums that Prometheus expects are made when the text
 * is written. */
static void observe(net_histogram *h, const scale *s, uint64_t value)
{
    size_t i = 0;
    while (i < s->n && (double)value * s->unit > s->bounds[i])
        i++;
    h->buckets[i == s->n ? NET_MAX_BUCKETS : i]++;
    h->sum += value;
}

/* Count a reply by its endpoint and status; a status without a counter counts as 500. */
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

void net_metrics_count_loss(net_metrics *m, mpk_finish finish)
{
    m->finished[finish]++;
}

/* Times are measured from the submission.  The engine may begin with an answer and compute its
 * first token before queue_ns was read, hence the minimum. Prometheus histograms: an observation
 * adds to one bucket, the running sums are made when they are printed. */
void net_metrics_count_answer(net_metrics *m, const mpk_answer *a, uint64_t queue_ns)
{
    const uint64_t *at = a->token_ns;
    m->finished[a->finish]++;
    observe(&m->prompt_size, &size_scale, a->n_prompt_tokens);
    observe(&m->answer_size, &size_scale, a->n_tokens);
    if (!a->n_tokens)
        return;
    const uint64_t last = at[a->n_tokens - 1], begun = queue_ns < at[0] ? queue_ns : at[0];
    observe(&m->first_token, &first_token_scale, at[0]);
    observe(&m->queue, &request_scale, begun);
    observe(&m->prefill, &request_scale, at[0] - begun);
    observe(&m->decode, &request_scale, last - at[0]);
    observe(&m->inference, &request_scale, last - begun);
    if (a->n_tokens > 1)
        observe(&m->per_token, &per_token_scale, (last - at[0]) / (a->n_tokens - 1));
    for (size_t i = 1; i < a->n_tokens; i++)
        observe(&m->gap, &gap_scale, at[i] - at[i - 1]);
}

void net_metrics_count_request(net_metrics *m, uint64_t ns)
{
    observe(&m->request, &request_scale, ns);
}

/* ---- text ---- */

/* Which of the two sets of names is printed: ours, or vLLM's, which have the model as a label. */
typedef struct printer {
    text *to;
    bool vllm;
    const char *model;
} printer;

typedef struct metric {      /* vllm NULL: vLLM has no such metric, so it is left out there */
    const char *name, *vllm; /* vllm NULL: it has no such metric */
    const char *type, *help;
} metric;

static const char *name_of(const printer *p, const metric *m)
{
    return p->vllm ? m->vllm : m->name;
}

/* The value of a label: backslashes, quotes and line ends are escaped. */
static void print_value(text *to, const char *value)
{
    for (; *value; value++) {
        if (*value == '\n') {
            text_add(to, "\\n", 2);
            continue;
        }
        if (*value == '\\' || *value == '"')
            text_add(to, "\\", 1);
        text_add(to, value, 1);
    }
}

/* The labels of a line: {model_name="..",label="value"}; label NULL: none. */
static void print_labels(const printer *p, const char *label, const char *value)
{
    if (!p->vllm && !label)
        return;
    text_print(p->to, "{");
    if (p->vllm) {
        text_print(p->to, "model_name=\"");
        print_value(p->to, p->model);
        text_print(p->to, label ? "\"," : "\"");
    }
    if (label)
        text_print(p->to, "%s=\"%s\"", label, value);
    text_print(p->to, "}");
}

/* The HELP and TYPE lines.  False: the metric does not belong to the set that is printed. */
static bool print_header(const printer *p, const metric *m)
{
    const char *name = name_of(p, m);
    if (name)
        text_print(p->to, "# HELP %s %s\n# TYPE %s %s\n", name, m->help, name, m->type);
    return name != NULL;
}

/* A metric that is a single number. */
static void print_one(const printer *p, const metric *m, double value)
{
    if (!print_header(p, m))
        return;
    text_print(p->to, "%s", name_of(p, m));
    print_labels(p, NULL, NULL);
    text_add(p->to, " ", 1);
    text_add_double(p->to, value);
    text_add(p->to, "\n", 1);
}

/* One line: name and suffix, labels, number. */
static void print_count(const printer *p, const metric *m, const char *suffix, const char *label,
                        const char *value, uint64_t n)
{
    text_print(p->to, "%s%s", name_of(p, m), suffix);
    print_labels(p, label, value);
    text_print(p->to, " %llu\n", (unsigned long long)n);
}

/* Buckets as running sums, then the sum and the count. */
static void print_histogram(const printer *p, const metric *m, const net_histogram *h,
                            const scale *s)
{
    uint64_t so_far = 0;
    if (!print_header(p, m))
        return;
    for (size_t i = 0; i < s->n; i++) {
        text bound = {0};
        text_add_double(&bound, s->bounds[i]);
        so_far += h->buckets[i];
        print_count(p, m, "_bucket", "le", text_str(&bound).at, so_far);
        text_free(&bound);
    }
    so_far += h->buckets[NET_MAX_BUCKETS];
    print_count(p, m, "_bucket", "le", "+Inf", so_far);
    text_print(p->to, "%s_sum", name_of(p, m));
    print_labels(p, NULL, NULL);
    text_print(p->to, s->unit < 1 ? " %.9f\n" : " %.0f\n", (double)h->sum * s->unit);
    print_count(p, m, "_count", NULL, NULL, so_far);
}

/* Only ours: replies by endpoint and status, those that are not 0. */
static void print_replies(text *to, const net_metrics *m, const char *(*name)(unsigned at),
                          unsigned n_names)
{
    static const metric replies = {"mpk_http_requests_total", NULL, "counter",
                                   "HTTP requests by endpoint and status of the reply."};
    static const char *const codes[] = {
#define NET_STATUS_NAME(code) #code,
        NET_STATUS_MAP(NET_STATUS_NAME)
#undef NET_STATUS_NAME
    };
    const printer p = {.to = to};
    print_header(&p, &replies);
    for (unsigned e = 0; e < n_names; e++)
        for (unsigned i = 0; i < NET_STATUSES; i++)
            if (m->replies[e][i])
                text_print(to, "mpk_http_requests_total{endpoint=\"%s\",status=\"%s\"} %llu\n",
                           name(e), codes[i], (unsigned long long)m->replies[e][i]);
}

/* Ended answers by reason. */
static void print_finished(const printer *p, const net_metrics *m)
{
    static const metric finished = {"mpk_answers_total", "vllm:request_success_total", "counter",
                                    "Answers that have ended, by reason."};
    static const char *const reasons[NET_FINISHES] = {[MPK_FINISH_STOP] = "stop",
                                                      [MPK_FINISH_LENGTH] = "length",
                                                      [MPK_FINISH_CANCELLED] = "abort",
                                                      [MPK_FINISH_ERROR] = "error"};
    print_header(p, &finished);
    for (int i = MPK_FINISH_STOP; i < NET_FINISHES; i++)
        print_count(p, &finished, "", p->vllm ? "finished_reason" : "reason", reasons[i],
                    m->finished[i]);
}

/* What the server is doing now, as gauges. */
static void print_now(const printer *p, const net_load *now)
{
    static const metric running = {"mpk_requests_running", "vllm:num_requests_running", "gauge",
                                   "Answers whose first token has come and whose last has not."},
                        waiting =
                            {"mpk_requests_waiting", "vllm:num_requests_waiting", "gauge",
                             "Answers that wait for a place, or for their prompt to be computed."},
                        used = {"mpk_kv_tokens_used", NULL, "gauge",
                                "Positions of the KV cache in pages that answers hold."},
                        all = {"mpk_kv_tokens", NULL, "gauge", "Positions of the KV cache."},
                        share = {"mpk_kv_usage_ratio", "vllm:kv_cache_usage_perc", "gauge",
                                 "Share of the KV cache that answers hold, 0 to 1."};
    print_one(p, &running, (double)now->running);
    print_one(p, &waiting, (double)now->waiting);
    print_one(p, &used, (double)now->kv_used);
    print_one(p, &all, (double)now->kv_tokens);
    print_one(p, &share, now->kv_tokens ? (double)now->kv_used / (double)now->kv_tokens : 0);
}

/* Counters of the engine: prefix cache, drafts, preemptions. They are the engine's own, read at the
 * moment of printing: two scrapes differ by what happened between them. */
static void print_engine(const printer *p, const net_load *now)
{
    static const metric
        asked = {"mpk_prefix_cache_queries_total", "vllm:prefix_cache_queries_total", "counter",
                 "Tokens of prompts that were looked for in the prefix cache."},
        found = {"mpk_prefix_cache_hits_total", "vllm:prefix_cache_hits_total", "counter",
                 "Tokens of prompts that were found there."},
        drafted = {"mpk_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total", "counter",
                   "Tokens that were tried ahead by speculation."},
        accepted = {"mpk_accepted_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total",
                    "counter", "Tokens tried ahead that stood."},
        back = {"mpk_preemptions_total", "vllm:num_preemptions_total", "counter",
                "Answers that waited in their midst, since older ones needed the KV cache."};
    print_one(p, &asked, (double)now->asked);
    print_one(p, &found, (double)now->found);
    print_one(p, &drafted, (double)now->drafted);
    print_one(p, &accepted, (double)now->accepted);
    print_one(p, &back, (double)now->put_back);
}

/* All metrics of one set, in a fixed order, so that two texts can be compared line by line. */
static void print_all(const printer *p, const net_metrics *m, const net_load *now)
{
    static const metric
        prompt = {"mpk_prompt_tokens_total", "vllm:prompt_tokens_total", "counter",
                  "Tokens of prompts."},
        generated = {"mpk_generated_tokens_total", "vllm:generation_tokens_total", "counter",
                     "Tokens of answers."},
        first = {"mpk_time_to_first_token_seconds", "vllm:time_to_first_token_seconds", "histogram",
                 "From submitting an answer to its first token."},
        mean = {"mpk_time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds",
                "histogram", "Mean distance of an answer's tokens after the first."},
        gap = {"mpk_inter_token_seconds", "vllm:inter_token_latency_seconds", "histogram",
               "Each distance of two tokens of an answer."},
        queue = {"mpk_queue_seconds", "vllm:request_queue_time_seconds", "histogram",
                 "From submitting an answer until the engine begins with its prompt."},
        prefill = {"mpk_prefill_seconds", "vllm:request_prefill_time_seconds", "histogram",
                   "From then to its first token."},
        inference = {"mpk_inference_seconds", "vllm:request_inference_time_seconds", "histogram",
                     "From then to its last token."},
        prompt_size = {"mpk_request_prompt_tokens", "vllm:request_prompt_tokens", "histogram",
                       "Tokens of an answer's prompt."},
        answer_size = {"mpk_request_generated_tokens", "vllm:request_generation_tokens",
                       "histogram", "Tokens of an answer."},
        decode = {"mpk_decode_seconds", "vllm:request_decode_time_seconds", "histogram",
                  "From an answer's first token to its last."},
        request = {"mpk_request_duration_seconds", "vllm:e2e_request_latency_seconds", "histogram",
                   "From the headers of a completion to the end of its reply."};
    print_now(p, now);
    print_engine(p, now);
    print_finished(p, m);
    print_one(p, &prompt, (double)m->prompt_tokens);
    print_one(p, &generated, (double)m->generated_tokens);
    print_histogram(p, &queue, &m->queue, &request_scale);
    print_histogram(p, &prefill, &m->prefill, &request_scale);
    print_histogram(p, &first, &m->first_token, &first_token_scale);
    print_histogram(p, &mean, &m->per_token, &per_token_scale);
    print_histogram(p, &gap, &m->gap, &gap_scale);
    print_histogram(p, &decode, &m->decode, &request_scale);
    print_histogram(p, &inference, &m->inference, &request_scale);
    print_histogram(p, &request, &m->request, &request_scale);
    print_histogram(p, &prompt_size, &m->prompt_size, &size_scale);
    print_histogram(p, &answer_size, &m->answer_size, &size_scale);
}

/* with_vllm prints each metric a second time under vLLM's name, for dashboards made for it. */
void net_metrics_print(const net_metrics *m, const char *(*name)(unsigned at), unsigned n_names,
                       const net_load *now, bool with_vllm, text *to)
{
    const printer ours = {.to = to, .model = now->model},
                  theirs = {.to = to, .model = now->model, .vllm = true};
    print_replies(to, m, name, n_names);
    print_all(&ours, m, now);
    if (with_vllm)
        print_all(&theirs, m, now);
}
