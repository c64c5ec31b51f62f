/* net_rules.c - penalties, biases, allowed, bad and stop tokens of a body, as options of a
 * request.
 *
 * Each parameter is read by its name in the other server's API; a wrong type or range is a 400
 * by that name.  Called by net_request.c.
 */
#include <math.h>

#include "net/net_request.h"
#include "net/net_rules.h"

/* A body while it is read. */
typedef struct reader {
    mpk_context *cx;
    arena *a;
    const json_value *body;
    mpk_request_options *to;
    net_refusal *why;
} reader;

/* A number; null or absent: *to keeps its value. */
static mpk_status read_number(const reader *r, const char *key, double least, double most,
                              float *to)
{
    const json_value *v = json_get(r->body, key);
    if (!v)
        return MPK_OK;
    if (v->kind != JSON_KIND_NUMBER || !(v->number >= least && v->number <= most))
        return net_refuse(r->cx, r->why, 400, key, NULL, "'%s' must be a number from %g to %g", key,
                          least, most);
    *to = (float)v->number;
    return MPK_OK;
}

/* A list or an object that is not empty; NULL: there is none. */
static mpk_status find_items(const reader *r, const char *key, json_kind kind,
                             const json_value **to)
{
    const json_value *v = json_get(r->body, key);
    *to = NULL;
    if (!v)
        return MPK_OK;
    if (v->kind != kind)
        return net_refuse(r->cx, r->why, 400, key, NULL, "'%s' is not %s", key,
                          kind == JSON_KIND_LIST ? "a list" : "an object");
    *to = v->n ? v : NULL;
    return MPK_OK;
}

/* A text of digits as a token id; -1: it is none. */
static int64_t id_of(str word)
{
    int64_t id = word.n && word.n < 11 ? 0 : -1;
    for (size_t i = 0; i < word.n && id >= 0; i++)
        id = word.at[i] >= '0' && word.at[i] <= '9' ? 10 * id + (word.at[i] - '0') : -1;
    return id <= INT32_MAX ? id : -1;
}

/* A bias: a number, or llama-server's false, which bans the token. */
static bool read_bias(const json_value *v, int64_t id, mpk_token_bias *to)
{
    bool bans = v->kind == JSON_KIND_BOOL && !v->boolean;
    *to = (mpk_token_bias){(int32_t)id, bans ? -INFINITY : (float)v->number};
    return id >= 0 && id <= INT32_MAX &&
           (bans || (v->kind == JSON_KIND_NUMBER && v->number >= -100 && v->number <= 100));
}

/* An item of llama-server's list: [token id, bias]. */
static bool read_pair(const json_value *pair, mpk_token_bias *to)
{
    return pair->kind == JSON_KIND_LIST && pair->n == 2 && pair->items[0].is_integer &&
           read_bias(&pair->items[1], pair->items[0].integer, to);
}

/* OpenAI's object, token id to bias; or llama-server's list of pairs. {"15043": -100} or [[15043,
 * false]], which bans the token: false is llama-server's for -infinity. */
static mpk_status read_biases(const reader *r)
{
    const json_value *v = json_get(r->body, "logit_bias");
    mpk_token_bias *biases;
    if (!json_is(v, JSON_KIND_LIST))
        TRY(find_items(r, "logit_bias", JSON_KIND_OBJECT, &v));
    if (!v)
        return MPK_OK;
    NEW(r->cx, r->a, biases, v->n);
    for (size_t i = 0; i < v->n; i++) {
        const json_value *item = &v->items[i];
        bool good = v->kind == JSON_KIND_LIST ? read_pair(item, &biases[i])
                                              : read_bias(item, id_of(item->key), &biases[i]);
        if (!good)
            return net_refuse(r->cx, r->why, 400, "logit_bias", NULL,
                              "'logit_bias': item %zu (\"%.*s\") is not a token id with a number "
                              "from -100 to 100 or false",
                              i, STR_ARG(item->key));
    }
    r->to->biases = biases;
    r->to->n_biases = (uint32_t)v->n;
    return MPK_OK;
}

/* A list of token ids; null or absent: *to keeps its value. */
static mpk_status read_ids(const reader *r, const char *key, const int32_t **to, uint32_t *n)
{
    const json_value *v;
    size_t n_ids;
    TRY(find_items(r, key, JSON_KIND_LIST, &v));
    if (!v)
        return MPK_OK;
    TRY(net_request_read_ids(r->cx, r->a, v, key, to, &n_ids, r->why));
    *n = (uint32_t)n_ids;
    return MPK_OK;
}

/* The engine turns each word into the token sequences that spell it; here they are only texts. */
static mpk_status read_bad_words(const reader *r)
{
    const json_value *v;
    const char **words;
    TRY(find_items(r, "bad_words", JSON_KIND_LIST, &v));
    if (!v)
        return MPK_OK;
    NEW(r->cx, r->a, words, v->n);
    for (size_t i = 0; i < v->n; i++) {
        str word = v->items[i].text;
        if (v->items[i].kind != JSON_KIND_STRING || !word.n || memchr(word.at, 0, word.n))
            return net_refuse(r->cx, r->why, 400, "bad_words", NULL,
                              "'bad_words': item %zu is not a text, is empty, or holds a NUL", i);
        words[i] = arena_copy(r->a, word.at, word.n);
        CHECK(r->cx, words[i], MPK_ENOMEM, "out of memory for a bad word");
    }
    r->to->bad_words = words;
    r->to->n_bad_words = (uint32_t)v->n;
    return MPK_OK;
}

/* Whether the answer can have as many is seen when it is submitted. */
static mpk_status read_least(const reader *r)
{
    const int most = 1 << 24;
    const json_value *v = json_get(r->body, "min_tokens");
    if (!v)
        return MPK_OK;
    if (v->kind != JSON_KIND_NUMBER || !(v->number >= 0 && v->number <= most) ||
        v->number != (double)(uint32_t)v->number)
        return net_refuse(r->cx, r->why, 400, "min_tokens", NULL,
                          "'min_tokens' must be a whole number from 0 to %d", most);
    r->to->min_tokens = (uint32_t)v->number;
    return MPK_OK;
}

/* Ranges are OpenAI's where it has the parameter, else wide enough for any use. repetition_penalty
 * (vLLM) is read after repeat_penalty (llama-server) and wins. */
mpk_status net_rules_read(mpk_context *cx, arena *a, const json_value *body,
                          mpk_request_options *to, net_refusal *why)
{
    const reader r = {cx, a, body, to, why};
    TRY(read_number(&r, "presence_penalty", -2, 2, &to->presence_penalty));
    TRY(read_number(&r, "frequency_penalty", -2, 2, &to->frequency_penalty));
    float last = -1; /* llama-server's: over how many tokens repeat_penalty counts */
    TRY(read_number(&r, "repeat_last_n", -1, 0, &last));
    if (last != 0)
        TRY(read_number(&r, "repeat_penalty", 0, 1000, &to->repetition_penalty));
    TRY(read_number(&r, "repetition_penalty", 0, 1000, &to->repetition_penalty));
    TRY(read_number(&r, "typical_p", 0, 1, &to->typical_p));
    TRY(read_number(&r, "top_n_sigma", -1, 1000, &to->top_n_sigma));
    if (to->top_n_sigma < 0)
        to->top_n_sigma = 0; /* -1 is llama-server's value for off */
    TRY(read_least(&r));
    TRY(read_biases(&r));
    TRY(read_ids(&r, "allowed_token_ids", &to->allowed_tokens, &to->n_allowed));
    TRY(read_ids(&r, "stop_token_ids", &to->stop_tokens, &to->n_stop_tokens));
    return read_bad_words(&r);
}
