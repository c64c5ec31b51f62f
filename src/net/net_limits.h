/* net_limits.h - how much one key may ask for: requests and tokens a minute, answers at a time.
 *
 * Each limit a minute is a bucket: it holds at most the limit, a request takes one, tokens are
 * taken as they are computed, and it fills again by a sixtieth of the limit each second.  A
 * request may begin while a token is left; what it takes beyond that is a debt that time pays.
 * So in t seconds at most limit * (1 + t / 60) requests begin, and the tokens exceed the same
 * number only by those of the requests that run.
 *
 * Relies on nothing but the times that the caller gives; called with the keys' mutex held
 * (net_meter.c).
 */
#ifndef NET_LIMITS_H
#define NET_LIMITS_H

#include <stdbool.h>

#include "base/str.h"

/* Limits of a key; 0: unlimited. */
typedef struct net_limits {
    uint32_t requests, tokens; /* a minute */
    /* answers that run or wait at a time; a request for vectors counts as one */
    uint32_t concurrent;
} net_limits;

typedef struct net_bucket {
    int64_t level; /* at at_ns, in units of 1 / 60e9; negative: a debt */
    uint64_t at_ns;
} net_bucket;

/* What one key has used.  Zero-initialise, then net_limits_set. */
typedef struct net_account {
    net_limits limits;
    net_bucket requests, tokens;
    uint32_t n_answers; /* that run or wait */
} net_account;

/* Read the limits after a key: words "requests-per-minute=N", "tokens-per-minute=N",
 * "concurrent=N", where N is 1 to 70,000,000.  MPK_EFORMAT: another word, or one twice. */
mpk_status net_limits_read(mpk_context *cx, str words, net_limits *out);
/* Change the limits.  A bucket without a limit before is full; another keeps its level. */
void net_limits_set(net_account *a, const net_limits *limits, uint64_t now_ns);

/* May a request begin?  0: yes, and it was counted; otherwise the nanoseconds until it may, and
 * *what: the limit that it waits for, "requests" or "tokens". */
uint64_t net_limits_begin(net_account *a, uint64_t now_ns, const char **what);
/* Count tokens of prompts and answers when they are computed. */
void net_limits_spend(net_account *a, uint64_t n_tokens, uint64_t now_ns);
/* Take n more answers; false: they would be too many at a time.  The caller gives them back by
 * subtracting from n_answers. */
bool net_limits_take_answers(net_account *a, uint32_t n);

/* What a bucket holds (not below 0), and nanoseconds until it is full; limit is not 0. */
uint32_t net_limits_left(const net_bucket *b, uint32_t limit, uint64_t now_ns);
uint64_t net_limits_full_ns(const net_bucket *b, uint32_t limit, uint64_t now_ns);
/* A duration as in OpenAI's headers: "0s", "30ms", "1.5s", "6m0s". */
void net_limits_write_duration(uint64_t ns, char *to, size_t n_bytes);

#endif
