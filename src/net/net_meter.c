/* net_meter.c - the limits of the key that an exchange came with: what it uses of them, and the
 * headers that say so.
 *
 * A request to an endpoint that computes is counted at its headers, before its body is read; its
 * answers when they take their places; its tokens as they are computed.  All under the keys'
 * mutex, which is held for a few additions only.
 */
#include <stdio.h>

#include "base/thread.h"
#include "net/net_exchange.h"

#define SECOND_NS UINT64_C(1000000000)

/* 429, with the seconds after which a retry may succeed. */
static mpk_status refuse(net_exchange *x, uint64_t wait_ns, const char *words)
{
    x->retry_s = (wait_ns + SECOND_NS - 1) / SECOND_NS;
    return net_refuse(x->cx, &x->refusal, 429, NULL, "rate_limit_exceeded",
                      "%s Please try again in %llus.", words, (unsigned long long)x->retry_s);
}

/* Counts the request against the key's rate when its headers are complete, before its body is read.
 * x->metered stays set after a refusal: its reply has the rate headers, too. */
mpk_status net_meter_begin(net_exchange *x)
{
    pthread_mutex_t *mutex = &x->server->keys.mutex;
    const char *what;
    char words[128];
    if (!x->key)
        return MPK_OK;
    x->metered = true;
    pthread_mutex_lock(mutex);
    const uint64_t wait_ns = net_limits_begin(&x->key->account, clock_ns(), &what);
    const net_limits limits = x->key->account.limits;
    pthread_mutex_unlock(mutex);
    if (!wait_ns)
        return MPK_OK;
    snprintf(words, sizeof words, "Rate limit reached for this key on %s per minute: limit %u.",
             what, what[0] == 't' ? limits.tokens : limits.requests);
    return refuse(x, wait_ns, words);
}

/* Places are given back by net_meter_end. More answers than the key may ever have is a bad request
 * (400), which no waiting mends; too many now is 429. */
mpk_status net_meter_take_answers(net_exchange *x, uint32_t n)
{
    pthread_mutex_t *mutex = &x->server->keys.mutex;
    char words[128];
    if (!x->key)
        return MPK_OK;
    pthread_mutex_lock(mutex);
    const bool taken = net_limits_take_answers(&x->key->account, n);
    const uint32_t most = x->key->account.limits.concurrent;
    pthread_mutex_unlock(mutex);
    if (taken) {
        x->n_key_answers += n;
        return MPK_OK;
    }
    if (n > most)
        return net_refuse(x->cx, &x->refusal, 400, "n", NULL,
                          "the request asks for %u answers, this key may have %u at a time", n,
                          most);
    snprintf(words, sizeof words,
             "This key has as many answers as it may have at a time: limit %u.", most);
    return refuse(x, SECOND_NS, words);
}

/* Tokens are known only after they were computed, so a key's balance may go below zero; later
 * requests wait until it has recovered. */
void net_meter_spend(net_exchange *x, uint64_t n_tokens)
{
    pthread_mutex_t *mutex = &x->server->keys.mutex;
    if (!x->key)
        return;
    pthread_mutex_lock(mutex);
    net_limits_spend(&x->key->account, n_tokens, clock_ns());
    pthread_mutex_unlock(mutex);
}

/* May be called twice: the second time there is nothing left to give back. */
void net_meter_end(net_exchange *x)
{
    pthread_mutex_t *mutex = &x->server->keys.mutex;
    if (!x->key)
        return;
    pthread_mutex_lock(mutex);
    x->key->account.n_answers -= x->n_key_answers;
    pthread_mutex_unlock(mutex);
    x->n_key_answers = 0;
}

/* ---- headers ---- */

/* For example x-ratelimit-remaining-tokens: 950. */
static void add_header(struct MHD_Response *response, const char *kind, const char *what,
                       const char *value)
{
    char name[64];
    snprintf(name, sizeof name, "x-ratelimit-%s-%s", kind, what);
    /* one that libmicrohttpd refuses is left out */
    (void)MHD_add_response_header(response, name, value);
}

/* The three headers of a limit: limit, remaining, reset. */
static void add_bucket(struct MHD_Response *response, const char *what, const net_bucket *b,
                       uint32_t limit)
{
    const uint64_t now_ns = clock_ns();
    char value[32];
    if (!limit)
        return;
    snprintf(value, sizeof value, "%u", limit);
    add_header(response, "limit", what, value);
    snprintf(value, sizeof value, "%u", net_limits_left(b, limit, now_ns));
    add_header(response, "remaining", what, value);
    net_limits_write_duration(net_limits_full_ns(b, limit, now_ns), value, sizeof value);
    add_header(response, "reset", what, value);
}

/* The account is copied under the mutex, and formatted outside of it. */
void net_meter_add_headers(net_exchange *x, struct MHD_Response *response)
{
    pthread_mutex_t *mutex = &x->server->keys.mutex;
    if (!x->metered)
        return;
    pthread_mutex_lock(mutex);
    const net_account now = x->key->account;
    pthread_mutex_unlock(mutex);
    add_bucket(response, "requests", &now.requests, now.limits.requests);
    add_bucket(response, "tokens", &now.tokens, now.limits.tokens);
}
