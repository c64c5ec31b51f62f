/* net_metrics.h - what the server counts, and its text for Prometheus.  Every counter is atomic:
 * any thread adds. */
#ifndef NET_METRICS_H
#define NET_METRICS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/str.h"
#include "mpk/mpk.h"

enum { NET_MAX_BUCKETS = 20, NET_ENDPOINTS = 22, NET_FINISHES = MPK_FINISH_ERROR + 1 };

typedef struct net_histogram {
    /* each alone, not added up; the last: above every bound */
    _Atomic uint64_t buckets[NET_MAX_BUCKETS + 1];
    _Atomic uint64_t sum; /* of nanoseconds, or of tokens */
} net_histogram;

/* Which status codes a reply may have; 499: the client went away before the reply was whole. */
#define NET_STATUS_MAP(X) \
    X(200) X(204) X(400) X(401) X(404) X(405) X(413) X(429) X(499) X(500) X(503)
enum {
#define NET_STATUS_ENUM(code) NET_STATUS_##code,
    NET_STATUS_MAP(NET_STATUS_ENUM)
#undef NET_STATUS_ENUM
        NET_STATUSES
};

typedef struct net_metrics {
    _Atomic uint64_t replies[NET_ENDPOINTS][NET_STATUSES];
    _Atomic uint64_t prompt_tokens, generated_tokens;
    /* answers, by mpk_finish */
    _Atomic uint64_t finished[NET_FINISHES];
    /* times */
    net_histogram first_token, per_token, gap, queue, prefill, decode, inference, request;
    /* tokens */
    net_histogram prompt_size, answer_size;
} net_metrics;

/* What the server is doing now. */
typedef struct net_load {
    uint64_t running, waiting; /* answers */
    /* positions of the KV cache: in pages that running answers hold, and all */
    uint64_t kv_used, kv_tokens;
    /* tokens of prompts that were looked for in the prefix cache, and found, so far */
    uint64_t asked, found;
    uint64_t drafted, accepted; /* tokens that were tried ahead, and those that stood, so far */
    uint64_t put_back;          /* answers that waited in their midst for KV memory, so far */
    const char *model;
} net_load;

/* endpoint: index of the route (net_route_name).  A status that is not in the map counts as 500. */
void net_metrics_count_reply(net_metrics *m, unsigned endpoint, int status);
/* An answer of the engine has ended; queue_ns: how long after it was submitted the engine began
 * with it. */
void net_metrics_count_answer(net_metrics *m, const mpk_answer *a, uint64_t queue_ns);
/* One has ended before its time. */
void net_metrics_count_loss(net_metrics *m, mpk_finish finish);
void net_metrics_count_request(net_metrics *m, uint64_t ns);
/* name: of an endpoint, of which there are n_names.  with_vllm: once more under the names and
 * labels of vLLM. */
void net_metrics_print(const net_metrics *m, const char *(*name)(unsigned at), unsigned n_names,
                       const net_load *now, bool with_vllm, text *to);

#endif
