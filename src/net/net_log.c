/* net_log.c - the log: a line for each request, as words or as JSON, with time, client and
 * request id.
 *
 *   2025-01-31T12:00:00.123Z 10.0.0.7 req-1f.. POST /v1/chat/completions 200 17+42 tokens
 *   first 35 ms 512 ms                                                        (one line)
 *
 * Called by net_exchange.c at the end of an exchange, on the thread of its connection; o->log
 * may be called from several threads at once.
 */
#include <time.h>

#include "net/net_exchange.h"

/* The time now, UTC with milliseconds, as in RFC 3339. */
static void write_time(text *to)
{
    struct timespec now;
    struct tm utc;
    char seconds[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc);
    text_print(to, "%s.%03ldZ", seconds, now.tv_nsec / 1000000);
}

/* Give a line to the caller's function, and free it. */
static void hand_over(const net_options *o, text *line)
{
    if (line->at && !line->failed)
        o->log(o->log_user, line->at);
    text_free(line);
}

/* A line that belongs to no exchange: starting, stopping, reloading keys. */
void net_log_note(const net_options *o, const char *words)
{
    text line = {0};
    if (!o->log)
        return;
    text_print(&line, o->log_json ? "{\"time\":\"" : "");
    write_time(&line);
    if (o->log_json) {
        text_print(&line, "\",\"message\":");
        json_write_str(&line, str_from(words));
        text_print(&line, "}");
    } else
        text_print(&line, " mpk: %s", words);
    hand_over(o, &line);
}

/* Tokens of all answers. */
static size_t count_tokens(const net_exchange *x)
{
    size_t n = 0;
    for (uint32_t i = 0; i < x->work.n; i++)
        n += x->work.answers[i].n_tokens;
    return n;
}

/* Milliseconds until the first token; negative: none came. */
static double first_ms(const net_exchange *x)
{
    return x->work.first_token_ns ? (double)(x->work.first_token_ns - x->begun_ns) * 1e-6 : -1;
}

/* 127.0.0.1 req-1 POST /v1/chat/completions 200 12+34 tokens first 56 ms 789 ms. No part of a
 * prompt or an answer is ever logged. */
static void write_words(const net_exchange *x, int status, uint64_t ns, text *to)
{
    write_time(to);
    text_print(to, " %s %s %s %s %d", x->client, x->id, x->method, x->path, status);
    if (x->work.n_prompt_tokens)
        text_print(to, " %zu+%zu tokens", x->work.n_prompt_tokens, count_tokens(x));
    if (first_ms(x) >= 0)
        text_print(to, " first %.0f ms", first_ms(x));
    text_print(to, " %.0f ms", (double)ns * 1e-6);
    if (x->ignored[0])
        text_print(to, " ignored: %s", x->ignored);
}

static void write_member(const char *name, const char *value, text *to)
{
    text_print(to, ",\"%s\":", name);
    json_write_str(to, str_from(value));
}

/* The same facts as one JSON object a line; the text members are escaped, since path and id come
 * from the client. */
static void write_json(const net_exchange *x, int status, uint64_t ns, text *to)
{
    text_print(to, "{\"time\":\"");
    write_time(to);
    text_add(to, "\"", 1);
    write_member("client", x->client, to);
    write_member("request_id", x->id, to);
    write_member("method", x->method, to);
    write_member("path", x->path, to);
    text_print(to, ",\"status\":%d", status);
    if (x->work.n_prompt_tokens)
        text_print(to, ",\"prompt_tokens\":%zu,\"completion_tokens\":%zu", x->work.n_prompt_tokens,
                   count_tokens(x));
    if (first_ms(x) >= 0)
        text_print(to, ",\"first_token_ms\":%.3f", first_ms(x));
    text_print(to, ",\"ms\":%.3f", (double)ns * 1e-6);
    if (x->ignored[0])
        write_member("ignored", x->ignored, to);
    text_print(to, "}");
}

/* Called once, when the exchange ends: lines are in the order of ends, and `ns` is the whole
 * time. */
void net_log_exchange(const net_exchange *x, int status, uint64_t ns)
{
    const net_options *o = &x->server->options;
    text line = {0};
    if (!o->log)
        return;
    if (o->log_json)
        write_json(x, status, ns, &line);
    else
        write_words(x, status, ns, &line);
    hand_over(o, &line);
}
