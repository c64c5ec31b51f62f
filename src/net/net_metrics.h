/* net_metrics.h - what the server counts, and its text for Prometheus.  All counters are atomic:
 * any thread may add. */
#ifndef NET_METRICS_H
#define NET_METRICS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/str.h"
#include "mpk/mpk.h"

/* NET_ENDPOINTS: rows of net_route.c's table. */
enum { NET_MAX_BUCKETS = 20, NET_ENDPOINTS = 24, NET_FINISHES = MPK_FINISH_ERROR + 1 };

typedef struct net_histogram {
    /* values of each bucket alone, not running sums; the last bucket is above every bound */
    _Atomic uint64_t buckets[NET_MAX_BUCKETS + 1];
    _Atomic uint64_t sum; /* of nanoseconds, or of tokens */
} net_histogram;

/* The statuses that a reply may have; 499: the client went away before the reply was complete. */
#define NET_STATUS_MAP(X) \
    X(200) X(204) X(400) X(401) X(404) X(405) X(413) X(429) X(499) X(500) X(503)
enum {
#define NET_STATUS_ENUM(code) NET_STATUS_##code,
    NET_STATUS_MAP(NET_STATUS_ENUM)
#undef NET_STATUS_ENUM
        NET_STATUSES
};

/* Zero-initialise. */
typedef struct net_metrics {
    _Atomic uint64_t replies[NET_ENDPOINTS][NET_STATUSES];
    _Atomic uint64_t prompt_tokens, generated_tokens;
    /* answers, by mpk_finish */
    _Atomic uint64_t finished[NET_FINISHES];
    /* times, in nanoseconds */
    net_histogram first_token, per_token, gap, queue, prefill, decode, inference, request;
    /* sizes, in tokens */
    net_histogram prompt_size, answer_size;
} net_metrics;

/* What the server is doing now, and the engine's counters so far; read by net_facts.c for each
 * text. */
typedef struct net_load {
    uint64_t running, waiting; /* answers */
    /* positions of the KV cache: in pages that running answers hold; all */
    uint64_t kv_used, kv_tokens;
    /* tokens of prompts looked up in the prefix cache, and those found */
    uint64_t asked, found;
    uint64_t drafted, accepted; /* draft tokens that were verified, and those accepted */
    /* preemptions: answers that had to wait for KV memory after they had begun */
    uint64_t put_back;
    const char *model;
} net_load;

/* Count a reply; endpoint: index of the route (net_route_name). */
void net_metrics_count_reply(net_metrics *m, unsigned endpoint, int status);
/* Count an answer of the engine that has ended; queue_ns: from its submission until the engine
 * began with it. */
void net_metrics_count_answer(net_metrics *m, const mpk_answer *a, uint64_t queue_ns);
/* Count an answer that ended early: cancelled or failed. */
void net_metrics_count_loss(net_metrics *m, mpk_finish finish);
void net_metrics_count_request(net_metrics *m, uint64_t ns);
/* Write all metrics.  name: of an endpoint, of which there are n_names.  with_vllm: then the
 * same under vLLM's names and labels. */
void net_metrics_print(const net_metrics *m, const char *(*name)(unsigned at), unsigned n_names,
                       const net_load *now, bool with_vllm, text *to);

#endif
