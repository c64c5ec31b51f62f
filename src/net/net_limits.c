/* net_limits.c - buckets that fill with time, and the words in the keys' file that say how large
 * they are.
 *
 * The arithmetic is in integers and exact.  A limit of L a minute: the bucket holds L units of
 * 60e9, and gains L a nanosecond.  With L = 60, a request (60e9) is there again after 1e9 ns, a
 * second.
 */
#include <math.h>
#include <stdio.h>

#include "net/net_limits.h"

enum { MOST = 70000000 }; /* the largest limit: twice its units fit an int64_t */
#define MINUTE_NS INT64_C(60000000000)

/* ---- words ---- */

/* One word, such as tokens-per-minute=1000. 0 would lock the key out and is not taken: a key that
 * shall do nothing is removed from the file. */
static mpk_status read_word(mpk_context *cx, str word, net_limits *to)
{
    const struct {
        const char *name;
        uint32_t *to;
    } names[] = {{"requests-per-minute", &to->requests},
                 {"tokens-per-minute", &to->tokens},
                 {"concurrent", &to->concurrent}};
    const char *equals = memchr(word.at, '=', word.n);
    const str name = {word.at, equals ? (size_t)(equals - word.at) : word.n};
    for (size_t i = 0; equals && i < sizeof names / sizeof *names; i++) {
        double value;
        if (!str_is(name, names[i].name))
            continue;
        CHECK(cx, !*names[i].to, MPK_EFORMAT, "%s stands there twice", names[i].name);
        CHECK(cx,
              str_read_double((str){equals + 1, word.n - name.n - 1}, &value) && value >= 1 &&
                  value <= MOST && value == floor(value),
              MPK_EFORMAT, "%s is not a whole number from 1 to %d", names[i].name, MOST);
        *names[i].to = (uint32_t)value;
        return MPK_OK;
    }
    FAIL(cx, MPK_EFORMAT,
         "after a key only requests-per-minute=N, tokens-per-minute=N and concurrent=N may stand");
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}

/* *out is set on success only; no words at all is a key without limits. */
mpk_status net_limits_read(mpk_context *cx, str words, net_limits *out)
{
    net_limits found = {0};
    for (size_t i = 0; i < words.n;) {
        size_t n = 0;
        while (i + n < words.n && !is_space(words.at[i + n]))
            n++;
        if (n)
            TRY(read_word(cx, (str){words.at + i, n}, &found));
        i += n + 1;
    }
    *out = found;
    return MPK_OK;
}

/* ---- buckets ---- */

/* n requests or tokens in the units of a level. */
static int64_t units(uint64_t n)
{
    return (int64_t)n * MINUTE_NS;
}

/* Units until the level is `wanted`, above the present one. */
static uint64_t missing(const net_bucket *b, int64_t wanted)
{
    return (uint64_t)wanted - (uint64_t)b->level;
}

/* The bucket as it is now.  The comparison by division comes first, so that the product cannot
 * overflow. */
static net_bucket filled(net_bucket b, uint32_t limit, uint64_t now_ns)
{
    const uint64_t ns = now_ns > b.at_ns ? now_ns - b.at_ns : 0;
    if (b.level >= units(limit) || ns >= missing(&b, units(limit)) / limit)
        b.level = units(limit);
    else
        b.level += (int64_t)(ns * limit);
    b.at_ns += ns;
    return b;
}

/* Change a limit.  A bucket that had a limit keeps its level, so reading the file again does not
 * fill it; a new one begins full. */
static void set(net_bucket *b, uint32_t old, uint32_t limit, uint64_t now_ns)
{
    if (limit)
        *b = old ? filled(*b, old, now_ns) : (net_bucket){units(limit), now_ns};
}

void net_limits_set(net_account *a, const net_limits *limits, uint64_t now_ns)
{
    set(&a->requests, a->limits.requests, limits->requests, now_ns);
    set(&a->tokens, a->limits.tokens, limits->tokens, now_ns);
    a->limits = *limits;
}

/* Nanoseconds until the bucket holds n; 0 now, and without a limit. */
static uint64_t wait_ns(const net_bucket *b, uint32_t limit, uint32_t n, uint64_t now_ns)
{
    if (!limit)
        return 0;
    const net_bucket now = filled(*b, limit, now_ns);
    return now.level >= units(n) ? 0 : (missing(&now, units(n)) - 1) / limit + 1;
}

/* Take n from a bucket.  The number of tokens is known only after they were computed, so a
 * bucket may go below zero: later requests wait until that is paid. */
static void take(net_bucket *b, uint32_t limit, uint64_t n, uint64_t now_ns)
{
    if (!limit)
        return;
    *b = filled(*b, limit, now_ns);
    b->level -= units(n < MOST ? n : MOST);
    if (b->level < -units(MOST))
        b->level = -units(MOST); /* bounded, against overflow */
}

/* A request needs one token in the bucket; how many it will take is not known yet. */
uint64_t net_limits_begin(net_account *a, uint64_t now_ns, const char **what)
{
    const uint64_t requests = wait_ns(&a->requests, a->limits.requests, 1, now_ns);
    const uint64_t tokens = wait_ns(&a->tokens, a->limits.tokens, 1, now_ns);
    *what = tokens > requests ? "tokens" : "requests";
    if (requests || tokens)
        return tokens > requests ? tokens : requests;
    take(&a->requests, a->limits.requests, 1, now_ns);
    return 0;
}

void net_limits_spend(net_account *a, uint64_t n_tokens, uint64_t now_ns)
{
    take(&a->tokens, a->limits.tokens, n_tokens, now_ns);
}

/* All n or none: taking some of them could leave two requests waiting for each other's rest. The
 * keys' mutex is held. */
bool net_limits_take_answers(net_account *a, uint32_t n)
{
    if (a->limits.concurrent && (uint64_t)a->n_answers + n > a->limits.concurrent)
        return false;
    a->n_answers += n;
    return true;
}

/* ---- for headers ---- */

uint32_t net_limits_left(const net_bucket *b, uint32_t limit, uint64_t now_ns)
{
    const net_bucket now = filled(*b, limit, now_ns);
    return now.level > 0 ? (uint32_t)(now.level / MINUTE_NS) : 0;
}

uint64_t net_limits_full_ns(const net_bucket *b, uint32_t limit, uint64_t now_ns)
{
    return wait_ns(b, limit, limit, now_ns);
}

/* As OpenAI's headers have it: "1m5s", "2.5s", "300ms"; rounded up, so that a client that waits
 * this long does not come too early. */
void net_limits_write_duration(uint64_t ns, char *to, size_t n_bytes)
{
    const unsigned long long ms = (ns + 999999) / 1000000, minutes = ms / 60000;
    if (minutes)
        snprintf(to, n_bytes, "%llum%llus", minutes, ms / 1000 % 60);
    else if (ms >= 1000)
        snprintf(to, n_bytes, "%llu.%llus", ms / 1000, ms / 100 % 10);
    else
        snprintf(to, n_bytes, ms ? "%llums" : "0s", ms);
}
