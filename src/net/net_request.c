/* net_request.c - JSON of a completion or a chat -> a checked request.
 *
 * Input: the parsed body and what the model's makers suggest for sampling; output: net_request,
 * whose texts lie in the arena or in the body.  A parameter of the wrong type or out of range is
 * refused with 400 by name; which parameters there are stands in net_parameters.c, forms and rules
 * for tokens are read by net_form.c and net_rules.c.  Called by the handlers.  Cost: one pass over
 * the document. */
#include <math.h>
#include <stdio.h>

#include "net/net_parameters.h"
#include "net/net_request.h"

#include "net/net_form.h"
#include "net/net_rules.h"

typedef struct reader {
    mpk_context *cx;
    arena *a;
    const json_value *body;
    net_request *out;
    net_refusal *why;
} reader;

#define REFUSE(r, field, ...) return net_refuse((r)->cx, (r)->why, 400, (field), NULL, __VA_ARGS__)

/* An upper bound from the punctuation alone, so that a body of a million values is refused before
 * its tree is built. */
mpk_status net_request_count_values(mpk_context *cx, str body, size_t *n_values, net_refusal *why)
{
    size_t n = 1;
    bool quoted = false;
    for (size_t i = 0; i < body.n; i++) {
        char c = body.at[i];
        if (quoted && c == '\\')
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted)
            n += c == ',' || c == ':' || c == '[' || c == '{';
    }
    if (n > NET_MAX_VALUES)
        return net_refuse(cx, why, 413, NULL, NULL,
                          "the body has %zu JSON values, at most %d are taken", n, NET_MAX_VALUES);
    *n_values = n;
    return MPK_OK;
}

/* ---- members of a known type; absent ones leave *to as it is ---- */

static mpk_status read_flag(reader *r, const char *key, bool *to)
{
    const json_value *v = json_get(r->body, key);
    if (v && v->kind != JSON_KIND_BOOL)
        REFUSE(r, key, "'%s' is neither true nor false", key);
    if (v)
        *to = v->boolean;
    return MPK_OK;
}

/* The value of an integer; some clients write 16.0 for 16. */
static bool as_whole(const json_value *v, int64_t *to)
{
    const double x = v->number;
    if (v->kind != JSON_KIND_NUMBER)
        return false;
    if (v->is_integer) {
        *to = v->integer;
        return true;
    }
    if (fabs(x) >= 0x1p53 || x != floor(x))
        return false;
    *to = (int64_t)x;
    return true;
}

static mpk_status read_whole(reader *r, const char *key, int64_t least, int64_t most, int64_t *to)
{
    const json_value *v = json_get(r->body, key);
    int64_t value;
    if (!v)
        return MPK_OK;
    if (!as_whole(v, &value) || value < least || value > most)
        REFUSE(r, key, "'%s' is not a whole number from %lld to %lld", key, (long long)least,
               (long long)most);
    *to = value;
    return MPK_OK;
}

static mpk_status read_real(reader *r, const char *key, double least, double most, float *to)
{
    const json_value *v = json_get(r->body, key);
    if (v && (v->kind != JSON_KIND_NUMBER || !(v->number >= least && v->number <= most)))
        REFUSE(r, key, "'%s' is not a number from %g to %g", key, least, most);
    if (v)
        *to = (float)v->number;
    return MPK_OK;
}

/* NUL-terminated in the arena; *to is NULL if it is absent. */
static mpk_status read_words(reader *r, const char *key, const char **to)
{
    const json_value *v = json_get(r->body, key);
    *to = NULL;
    if (!v)
        return MPK_OK;
    if (v->kind != JSON_KIND_STRING || (v->text.n && memchr(v->text.at, 0, v->text.n)))
        REFUSE(r, key, "'%s' is not a text, or holds a NUL", key);
    *to = arena_copy(r->a, v->text.at, v->text.n);
    CHECK(r->cx, *to, MPK_ENOMEM, "out of memory for '%s'", key);
    return MPK_OK;
}

/* A value as JSON text in the arena. */
static mpk_status rewrite(reader *r, const json_value *value, const char **to)
{
    text t = {0};
    json_write(&t, value, 0);
    *to = t.failed ? NULL : arena_copy(r->a, t.at, t.n);
    text_free(&t);
    CHECK(r->cx, *to, MPK_ENOMEM, "out of memory for a part of the request");
    return MPK_OK;
}

/* ---- sampling ---- */

static mpk_status read_stop(reader *r, const json_value *v, uint32_t i)
{
    if (v->kind != JSON_KIND_STRING || !v->text.n || memchr(v->text.at, 0, v->text.n))
        REFUSE(r, "stop", "'stop' holds something that is not a text, is empty, or holds a NUL");
    r->out->stops[i] = arena_copy(r->a, v->text.at, v->text.n);
    CHECK(r->cx, r->out->stops[i], MPK_ENOMEM, "out of memory for a stop text");
    r->out->sampling.n_stop = i + 1;
    return MPK_OK;
}

static mpk_status read_stops(reader *r)
{
    const json_value *v = json_get(r->body, "stop");
    if (!v || (v->kind == JSON_KIND_STRING && !v->text.n))
        return MPK_OK;
    const json_value *items = v->kind == JSON_KIND_LIST ? v->items : v;
    size_t n = v->kind == JSON_KIND_LIST ? v->n : 1;
    if (n > NET_MAX_STOPS)
        REFUSE(r, "stop", "'stop' has %zu texts, at most %d are taken", n, NET_MAX_STOPS);
    for (size_t i = 0; i < n; i++)
        TRY(read_stop(r, &items[i], (uint32_t)i));
    r->out->sampling.stop = r->out->stops;
    return MPK_OK;
}

/* Does the text that ends an answer belong to it?  SGLang's name is the second. */
static mpk_status read_ends(reader *r)
{
    TRY(read_flag(r, "no_stop_trim", &r->out->sampling.include_stop));
    return read_flag(r, "include_stop_str_in_output", &r->out->sampling.include_stop);
}

/* The edges mean what they mean to other servers: top_k -1 is off, and top_p 0 leaves only the
 * most probable token, which mpk.h spells as temperature 0 (its top_p 0 is off). */
static mpk_status read_cuts(reader *r)
{
    mpk_request_options *s = &r->out->sampling;
    int64_t top_k = s->top_k;
    TRY(read_whole(r, "top_k", -1, 1 << 30, &top_k));
    TRY(read_real(r, "top_p", 0, 1, &s->top_p));
    TRY(read_real(r, "min_p", 0, 1, &s->min_p));
    s->top_k = top_k < 0 ? 0 : (uint32_t)top_k;
    const json_value *top_p = json_get(r->body, "top_p");
    if (top_p && s->top_p == 0)
        s->temperature = 0;
    return MPK_OK;
}

static mpk_status read_sampling(reader *r, const mpk_request_options *suggested)
{
    net_request *q = r->out;
    mpk_request_options *s = &q->sampling;
    int64_t seed = 0, n = 1;
    *s = *suggested;
    s->size = sizeof *s;
    if (s->temperature == 0)
        s->temperature = 1;
    TRY(read_real(r, "temperature", 0, 100, &s->temperature));
    TRY(read_cuts(r));
    TRY(read_whole(r, "seed", INT64_MIN, INT64_MAX, &seed));
    TRY(read_flag(r, "ignore_eos", &s->ignore_eos));
    TRY(read_whole(r, "n_cmpl", 1, NET_MAX_ANSWERS, &n));
    TRY(read_whole(r, "n", 1, NET_MAX_ANSWERS, &n));
    TRY(read_stops(r));
    TRY(read_ends(r));
    s->seed = (uint64_t)seed;
    q->has_seed = json_get(r->body, "seed") != NULL;
    q->n_answers = (uint32_t)n;
    return MPK_OK;
}

static mpk_status read_stream(reader *r)
{
    TRY(read_flag(r, "stream", &r->out->stream));
    TRY(read_whole(r, "sse_ping_interval", -1, INT32_MAX, &r->out->ping_s));
    r->out->has_ping = json_get(r->body, "sse_ping_interval") != NULL;
    const json_value *options = json_get(r->body, "stream_options");
    if (!options)
        return MPK_OK;
    if (options->kind != JSON_KIND_OBJECT)
        REFUSE(r, "stream_options", "'stream_options' is not an object");
    if (!r->out->stream)
        REFUSE(r, "stream_options", "'stream_options' is for requests with \"stream\": true");
    reader inner = *r;
    inner.body = options;
    TRY(read_flag(&inner, "include_usage", &r->out->include_usage));
    return read_flag(&inner, "continuous_usage_stats", &r->out->usage_always);
}

/* ---- what only some values of are supported ---- */

static mpk_status check_values(reader *r)
{
    const json_value *special = json_get(r->body, "skip_special_tokens");
    if (special && !(special->kind == JSON_KIND_BOOL && special->boolean))
        REFUSE(r, "skip_special_tokens",
               "'skip_special_tokens' other than true is not supported: answers are text");
    return MPK_OK;
}

/* best_of answers are computed and the n most probable ones sent.  Which these are is known only
 * when all have ended, so they cannot be streamed. */
static mpk_status read_best(reader *r, unsigned endpoint)
{
    net_request *q = r->out;
    int64_t best = q->n_shown = q->n_answers;
    if (endpoint == NET_FOR_COMPLETION)
        TRY(read_whole(r, "best_of", q->n_answers, NET_MAX_ANSWERS, &best));
    if (best > q->n_answers && q->stream)
        REFUSE(r, "best_of", "'best_of' above 'n' cannot be streamed");
    q->n_answers = (uint32_t)best;
    return MPK_OK;
}

static mpk_status read_cache(reader *r)
{
    bool keeps = true;
    TRY(read_words(r, "cache_salt", &r->out->sampling.cache_salt));
    TRY(read_flag(r, "cache_prompt", &keeps));
    r->out->sampling.no_prefix_cache = !keeps;
    return MPK_OK;
}

static mpk_status read_priority(reader *r)
{
    int64_t n = 0;
    TRY(read_whole(r, "priority", INT32_MIN, INT32_MAX, &n));
    r->out->sampling.priority = (int32_t)n;
    return MPK_OK;
}

/* Tokens to draft ahead in a step: more than the engine can is no error, and 0, which turns drafts
 * off, is -1 to the engine, whose own 0 leaves the choice to it. */
static mpk_status read_drafts(reader *r)
{
    int64_t n = -1;
    TRY(read_whole(r, "speculative.n_max", 0, INT32_MAX, &n));
    if (n > 0)
        r->out->sampling.draft_tokens = n < NET_MAX_DRAFTS ? (int32_t)n : NET_MAX_DRAFTS;
    else if (n == 0)
        r->out->sampling.draft_tokens = -1;
    return MPK_OK;
}

/* Of a chat a flag, with top_logprobs beside it; of a completion how many. */
static mpk_status read_logprobs(reader *r, unsigned endpoint)
{
    mpk_request_options *s = &r->out->sampling;
    int64_t n = 0;
    if (endpoint == NET_FOR_CHAT) {
        TRY(read_flag(r, "logprobs", &s->logprobs));
        TRY(read_whole(r, "top_logprobs", 0, NET_MAX_LOGPROBS, &n));
        if (n && !s->logprobs)
            REFUSE(r, "top_logprobs", "'top_logprobs' is for requests with \"logprobs\": true");
    } else {
        TRY(read_whole(r, "logprobs", 0, NET_MAX_LOGPROBS, &n));
        s->logprobs = json_get(r->body, "logprobs") != NULL;
    }
    s->top_logprobs = r->out->n_top = (uint32_t)n;
    return MPK_OK;
}

/* vLLM's: of each token of the prompt, beside so many of the most probable ones. */
static mpk_status read_prompt_logprobs(reader *r)
{
    net_request *q = r->out;
    int64_t n = 0;
    TRY(read_whole(r, "prompt_logprobs", 0, NET_MAX_LOGPROBS, &n));
    q->prompt_logprobs = json_get(r->body, "prompt_logprobs") != NULL;
    if (q->prompt_logprobs && q->stream)
        REFUSE(r, "prompt_logprobs", "'prompt_logprobs' cannot be streamed");
    q->n_prompt_top = (uint32_t)n;
    q->sampling.prompt_logprobs = q->prompt_logprobs;
    if (q->n_prompt_top > q->n_top)
        q->sampling.top_logprobs = q->n_prompt_top;
    return MPK_OK;
}

/* vLLM's: the last so many tokens of a prompt are kept; -1: as many as leave room for an answer. */
static mpk_status read_truncation(reader *r)
{
    int64_t n = 0;
    TRY(read_whole(r, "truncate_prompt_tokens", -1, INT32_MAX, &n));
    if (n == 0 && json_get(r->body, "truncate_prompt_tokens"))
        REFUSE(r, "truncate_prompt_tokens",
               "'truncate_prompt_tokens' is 0: a prompt has a token at least");
    r->out->truncate = (int32_t)n;
    return MPK_OK;
}

static mpk_status read_shared(reader *r, unsigned endpoint, const mpk_request_options *suggested)
{
    if (r->body->kind != JSON_KIND_OBJECT)
        REFUSE(r, NULL, "the body is not a JSON object");
    *r->out = (net_request){.special = endpoint == NET_FOR_COMPLETION};
    TRY(net_parameters_check(r->cx, r->body, endpoint, r->out->ignored, r->why));
    TRY(read_sampling(r, suggested));
    TRY(net_rules_read(r->cx, r->a, r->body, &r->out->sampling, r->why));
    TRY(read_stream(r));
    TRY(check_values(r));
    TRY(read_best(r, endpoint));
    TRY(read_cache(r));
    TRY(read_drafts(r));
    TRY(read_logprobs(r, endpoint));
    TRY(read_prompt_logprobs(r));
    TRY(read_flag(r, "return_token_ids", &r->out->token_ids));
    TRY(read_flag(r, "return_tokens_as_token_ids", &r->out->names_are_ids));
    TRY(read_priority(r));
    TRY(read_flag(r, "add_special_tokens", &r->out->special));
    TRY(read_truncation(r));
    return net_form_read(r->cx, r->a, r->body, &r->out->sampling, r->why);
}

/* llama-server's name of max_tokens; -1: until the context is full. */
static mpk_status read_n_predict(reader *r, int64_t *max_tokens)
{
    int64_t n = *max_tokens;
    TRY(read_whole(r, "n_predict", -1, 1 << 30, &n));
    *max_tokens = n < 0 ? 0 : n;
    if (n == 0 && json_get(r->body, "n_predict"))
        REFUSE(r, "n_predict", "'n_predict' is 0: an answer has a token at least");
    return MPK_OK;
}

/* ---- completions ---- */

mpk_status net_request_read_ids(mpk_context *cx, arena *a, const json_value *list, const char *name,
                                const int32_t **ids, size_t *n, net_refusal *why)
{
    int32_t *at;
    if (!json_is(list, JSON_KIND_LIST))
        return net_refuse(cx, why, 400, name, NULL, "'%s' is missing or is not a list of token ids",
                          name);
    NEW(cx, a, at, list->n);
    for (size_t i = 0; i < list->n; i++) {
        const json_value *v = &list->items[i];
        if (v->kind != JSON_KIND_NUMBER || !v->is_integer || v->integer < 0 ||
            v->integer > INT32_MAX)
            return net_refuse(cx, why, 400, name, NULL, "'%s': item %zu is not a token id", name,
                              i);
        at[i] = (int32_t)v->integer;
    }
    *ids = at;
    *n = list->n;
    return MPK_OK;
}

static mpk_status read_prompt(reader *r, const json_value *v, net_prompt *to)
{
    if (v->kind == JSON_KIND_STRING) {
        to->text = v->text.at ? v->text : STR("");
        return MPK_OK;
    }
    if (v->kind != JSON_KIND_LIST || !v->n)
        REFUSE(
            r, "prompt",
            "'prompt' is not a text, a list of texts, a list of token ids or a list of such lists");
    return net_request_read_ids(r->cx, r->a, v, "prompt", &to->ids, &to->n_ids, r->why);
}

static mpk_status read_prompts(reader *r)
{
    const json_value *v = json_get(r->body, "prompt");
    if (!v)
        REFUSE(r, "prompt", "'prompt' is missing");
    bool many = v->kind == JSON_KIND_LIST && v->n && v->items[0].kind != JSON_KIND_NUMBER;
    size_t n = many ? v->n : 1;
    net_prompt *prompts;
    NEW(r->cx, r->a, prompts, n);
    for (size_t i = 0; i < n; i++)
        TRY(read_prompt(r, many ? &v->items[i] : v, &prompts[i]));
    r->out->prompts = prompts;
    r->out->n_prompts = n;
    return MPK_OK;
}

/* A text after a prompt that is a text: the answer fills the gap. */
static mpk_status read_suffix(reader *r)
{
    const net_request *q = r->out;
    const json_value *v = json_get(r->body, "suffix");
    if (!v)
        return MPK_OK;
    if (v->kind != JSON_KIND_STRING)
        REFUSE(r, "suffix", "'suffix' is not a text");
    if (!v->text.n)
        return MPK_OK;
    for (size_t i = 0; i < q->n_prompts; i++)
        if (!q->prompts[i].text.at)
            REFUSE(r, "suffix", "'suffix' is for prompts that are texts");
    if (q->echo)
        REFUSE(r, "echo", "'echo' with 'suffix' is not supported: give one of them");
    r->out->suffix = v->text;
    return MPK_OK;
}

mpk_status net_request_read_infill(mpk_context *cx, arena *a, const json_value *body,
                                   const mpk_request_options *suggested, net_request *out,
                                   net_refusal *why)
{
    reader r = {cx, a, body, out, why};
    int64_t max_tokens = 0;
    TRY(read_shared(&r, NET_FOR_INFILL, suggested));
    TRY(read_n_predict(&r, &max_tokens));
    TRY(read_whole(&r, "max_tokens", 1, 1 << 30, &max_tokens));
    out->sampling.max_tokens = (uint32_t)max_tokens;
    return MPK_OK;
}

mpk_status net_request_read_completion(mpk_context *cx, arena *a, const json_value *body,
                                       const mpk_request_options *suggested, net_request *out,
                                       net_refusal *why)
{
    reader r = {cx, a, body, out, why};
    int64_t max_tokens = 16; /* as OpenAI has it */
    TRY(read_shared(&r, NET_FOR_COMPLETION, suggested));
    TRY(read_n_predict(&r, &max_tokens));
    TRY(read_whole(&r, "max_tokens", 1, 1 << 30, &max_tokens));
    TRY(read_flag(&r, "echo", &out->echo));
    out->sampling.prompt_logprobs |= out->echo && out->sampling.logprobs;
    out->sampling.max_tokens = (uint32_t)max_tokens;
    TRY(read_prompts(&r));
    return read_suffix(&r);
}

/* ---- chats ---- */

/* Content that is a list of parts becomes one text: templates of models that read only text ask for
 * that. */
static mpk_status write_parts(reader *r, const json_value *parts, text *to)
{
    text joined = {0};
    for (size_t i = 0; i < parts->n; i++) {
        const json_value *part = &parts->items[i], *type = json_get(part, "type"),
                         *words = json_get(part, "text");
        if (!json_is(words, JSON_KIND_STRING) ||
            (type && !(type->kind == JSON_KIND_STRING && str_is(type->text, "text")))) {
            text_free(&joined);
            REFUSE(r, "messages",
                   "'messages': a content holds a part that is not {\"type\": \"text\", \"text\": "
                   "...}; "
                   "the model reads only text");
        }
        text_add(&joined, "\n", i > 0);
        text_add(&joined, words->text.at, words->text.n);
    }
    json_write_str(to, (str){joined.at, joined.n});
    to->failed |= joined.failed;
    text_free(&joined);
    return MPK_OK;
}

/* OpenAI has a call's arguments as JSON inside a text; chat templates ask for the object itself. */
static void write_arguments(reader *r, const json_value *v, text *to)
{
    const json_value *object;
    if (v->kind != JSON_KIND_STRING)
        json_write(to, v, 0);
    else if (!v->text.n)
        text_print(to, "{}");
    else if (json_parse(r->cx, r->a, v->text, &object) == MPK_OK &&
             object->kind == JSON_KIND_OBJECT)
        json_write(to, object, 0);
    else
        json_write_str(to, v->text);
}

static void write_member_name(const json_value *member, size_t i, text *to)
{
    text_add(to, ",", i > 0);
    json_write_str(to, member->key);
    text_add(to, ":", 1);
}

static void write_function(reader *r, const json_value *f, text *to)
{
    text_add(to, "{", 1);
    for (size_t i = 0; i < f->n; i++) {
        write_member_name(&f->items[i], i, to);
        if (str_is(f->items[i].key, "arguments"))
            write_arguments(r, &f->items[i], to);
        else
            json_write(to, &f->items[i], 0);
    }
    text_add(to, "}", 1);
}

static void write_call(reader *r, const json_value *call, text *to)
{
    text_add(to, "{", 1);
    for (size_t i = 0; i < call->n; i++) {
        write_member_name(&call->items[i], i, to);
        if (str_is(call->items[i].key, "function") && call->items[i].kind == JSON_KIND_OBJECT)
            write_function(r, &call->items[i], to);
        else
            json_write(to, &call->items[i], 0);
    }
    text_add(to, "}", 1);
}

static mpk_status write_calls(reader *r, const json_value *calls, text *to)
{
    if (calls->kind != JSON_KIND_LIST)
        REFUSE(r, "messages", "'messages': 'tool_calls' is not a list");
    text_add(to, "[", 1);
    for (size_t i = 0; i < calls->n; i++) {
        if (calls->items[i].kind != JSON_KIND_OBJECT)
            REFUSE(r, "messages", "'messages': 'tool_calls' holds something that is not an object");
        text_add(to, ",", i > 0);
        write_call(r, &calls->items[i], to);
    }
    text_add(to, "]", 1);
    return MPK_OK;
}

static mpk_status write_content(reader *r, const json_value *v, bool is_continued, text *to)
{
    /* of a message that only calls tools; templates add to it as to a text */
    if (!v || v->kind == JSON_KIND_NULL)
        text_print(to, "\"\"");
    else if (v->kind == JSON_KIND_LIST)
        TRY(write_parts(r, v, to));
    else
        json_write(to, v, 0);
    if (is_continued && !to->failed) {
        to->n--; /* the quote */
        text_print(to, "%s\"", NET_CONTINUED);
    }
    return MPK_OK;
}

static mpk_status write_message(reader *r, const json_value *message, bool is_continued, text *to)
{
    bool has_content = false;
    text_add(to, "{", 1);
    for (size_t i = 0; i < message->n; i++) {
        const json_value *v = &message->items[i];
        write_member_name(v, i, to);
        /* OpenAI's newer name; templates know the older */
        if (str_is(v->key, "role") && str_is(v->text, "developer"))
            text_print(to, "\"system\"");
        else if (str_is(v->key, "content")) {
            TRY(write_content(r, v, is_continued, to));
            has_content = true;
        } else if (str_is(v->key, "tool_calls") && v->kind != JSON_KIND_NULL)
            TRY(write_calls(r, v, to));
        else
            json_write(to, v, 0);
    }
    if (!has_content) {
        text_print(to, ",\"content\":");
        TRY(write_content(r, NULL, is_continued, to));
    }
    text_add(to, "}", 1);
    return MPK_OK;
}

static mpk_status check_message(reader *r, const json_value *message, size_t i)
{
    const json_value *role = json_get(message, "role"), *content = json_get(message, "content");
    if (!json_is(role, JSON_KIND_STRING))
        REFUSE(r, "messages", "'messages': item %zu is not an object with a 'role' that is a text",
               i);
    if (content && content->kind != JSON_KIND_STRING && content->kind != JSON_KIND_LIST)
        REFUSE(r, "messages",
               "'messages': the content of item %zu is neither a text nor a list of parts", i);
    return MPK_OK;
}

static mpk_status write_messages(reader *r, const json_value *messages, text *to)
{
    text_add(to, "[", 1);
    for (size_t i = 0; i < messages->n; i++) {
        TRY(check_message(r, &messages->items[i], i));
        text_add(to, ",", i > 0);
        TRY(write_message(r, &messages->items[i], r->out->continues && i + 1 == messages->n, to));
    }
    text_add(to, "]", 1);
    return MPK_OK;
}

static mpk_status read_messages(reader *r)
{
    const json_value *messages = json_get(r->body, "messages");
    if (!json_is(messages, JSON_KIND_LIST) || !messages->n)
        REFUSE(r, "messages", "'messages' is missing, is not a list, or is empty");
    text t = {0};
    mpk_status status = write_messages(r, messages, &t);
    char *copy = t.failed ? NULL : arena_copy(r->a, t.at, t.n);
    r->out->messages = (str){copy, t.n};
    text_free(&t);
    TRY(status);
    CHECK(r->cx, copy, MPK_ENOMEM, "out of memory for the messages");
    return MPK_OK;
}

static const json_value *function_name(const json_value *tool)
{
    return json_get(json_get(tool, "function"), "name");
}

/* The tool of that name must be called. */
static mpk_status read_named(reader *r, const json_value *name, const json_value *tools)
{
    if (!json_is(name, JSON_KIND_STRING))
        REFUSE(r, "tool_choice",
               "'tool_choice' is none of \"none\", \"auto\", \"required\" and "
               "{\"type\": \"function\", \"function\": {\"name\": ...}}");
    for (size_t i = 0; tools && i < tools->n && !r->out->only_tool; i++)
        if (str_equal(function_name(&tools->items[i])->text, name->text))
            r->out->only_tool = &tools->items[i];
    if (!r->out->only_tool)
        REFUSE(r, "tool_choice", "'tool_choice' names a function that is not in 'tools'");
    r->out->must_call = true;
    return MPK_OK;
}

/* False: the tools are left out. */
static mpk_status read_choice(reader *r, const json_value *tools, bool *wanted)
{
    const json_value *v = json_get(r->body, "tool_choice");
    const str word = json_is(v, JSON_KIND_STRING) ? v->text : STR("");
    *wanted = !str_is(word, "none");
    if (!v || !*wanted || str_is(word, "auto"))
        return MPK_OK;
    if (!str_is(word, "required"))
        return read_named(r, function_name(v), tools);
    if (!tools || !tools->n)
        REFUSE(r, "tool_choice", "'tool_choice' is \"required\", but there are no 'tools'");
    r->out->must_call = true;
    return MPK_OK;
}

static mpk_status check_tools(reader *r, const json_value *tools)
{
    if (tools->kind != JSON_KIND_LIST)
        REFUSE(r, "tools", "'tools' is not a list");
    for (size_t i = 0; i < tools->n; i++) {
        const json_value *name = function_name(&tools->items[i]);
        if (!json_is(name, JSON_KIND_STRING) || !name->text.n)
            REFUSE(
                r, "tools",
                "'tools': item %zu is not {\"type\": \"function\", \"function\": {\"name\": ...}}",
                i);
    }
    return MPK_OK;
}

static mpk_status read_tools(reader *r)
{
    const json_value *tools = json_get(r->body, "tools");
    bool wanted;
    if (tools)
        TRY(check_tools(r, tools));
    TRY(read_choice(r, tools, &wanted));
    if (!tools || !wanted || !tools->n)
        return MPK_OK;
    if (r->out->must_call && r->out->sampling.ignore_eos)
        REFUSE(r, "ignore_eos",
               "'ignore_eos' is not possible with calls that must come: the answer ends with them");
    r->out->tool_list = tools;
    return rewrite(r, tools, &r->out->tools);
}

/* A variable for the template, unless chat_template_kwargs has it. */
static void add_variable(const json_value *given, const char *name, const json_value *v, text *to)
{
    if (!v || json_get(given, name))
        return;
    text_print(to, "%s\"%s\":", to->n > 1 ? "," : "", name);
    json_write(to, v, 0);
}

static void write_variables(reader *r, const json_value *given, const json_value *effort, text *to)
{
    static const json_value no = {.kind = JSON_KIND_BOOL};
    text_add(to, "{", 1);
    for (size_t i = 0; given && i < given->n; i++) {
        write_member_name(&given->items[i], i, to);
        json_write(to, &given->items[i], 0);
    }
    add_variable(given, "documents", json_get(r->body, "documents"), to);
    add_variable(given, "reasoning_effort", effort, to);
    if (effort && str_is(effort->text, "none"))
        add_variable(given, "enable_thinking", &no, to);
    text_add(to, "}", 1);
}

static mpk_status read_variables(reader *r)
{
    const json_value *v = json_get(r->body, "chat_template_kwargs"),
                     *effort = json_get(r->body, "reasoning_effort");
    const json_value *documents = json_get(r->body, "documents");
    if (v && v->kind != JSON_KIND_OBJECT)
        REFUSE(r, "chat_template_kwargs", "'chat_template_kwargs' is not an object");
    if (effort && effort->kind != JSON_KIND_STRING)
        REFUSE(r, "reasoning_effort", "'reasoning_effort' is not a text");
    if (documents && documents->kind != JSON_KIND_LIST)
        REFUSE(r, "documents", "'documents' is not a list");
    if (!v && !effort && !documents)
        return MPK_OK;
    text t = {0};
    write_variables(r, v, effort, &t);
    r->out->variables = t.failed ? NULL : arena_copy(r->a, t.at, t.n);
    text_free(&t);
    CHECK(r->cx, r->out->variables, MPK_ENOMEM, "out of memory for the template's variables");
    return MPK_OK;
}

/* Where the prompt ends: where the answer begins, after the last message, or inside it. */
static mpk_status read_end(reader *r)
{
    bool answer = true;
    TRY(read_flag(r, "continue_final_message", &r->out->continues));
    if (r->out->continues && json_get(r->body, "add_generation_prompt") == NULL)
        answer = false;
    TRY(read_flag(r, "add_generation_prompt", &answer));
    if (r->out->continues && answer)
        REFUSE(r, "continue_final_message",
               "'continue_final_message' goes on with the last message, 'add_generation_prompt' "
               "begins another: "
               "give one of them");
    r->out->no_answer = !answer;
    return MPK_OK;
}

/* What the reply shows of the answer's parts. */
static mpk_status read_shown(reader *r)
{
    const json_value *format = json_get(r->body, "reasoning_format"),
                     *kinds = json_get(r->body, "modalities");
    bool apart = true, shown = true, many = true;
    TRY(read_flag(r, "separate_reasoning", &apart));
    TRY(read_flag(r, "include_reasoning", &shown));
    TRY(read_flag(r, "parallel_tool_calls", &many));
    if (!apart)
        REFUSE(r, "separate_reasoning",
               "'separate_reasoning' false is not supported: reasoning stands apart");
    if (format && !(format->kind == JSON_KIND_STRING &&
                    (str_is(format->text, "auto") || str_is(format->text, "deepseek"))))
        REFUSE(r, "reasoning_format",
               "'reasoning_format' other than \"auto\" and \"deepseek\" is not supported");
    if (kinds && kinds->kind != JSON_KIND_LIST)
        REFUSE(r, "modalities", "'modalities' is not a list");
    for (size_t i = 0; kinds && i < kinds->n; i++)
        if (kinds->items[i].kind != JSON_KIND_STRING || !str_is(kinds->items[i].text, "text"))
            REFUSE(r, "modalities",
                   "'modalities' other than [\"text\"] is not supported: answers are text");
    r->out->hide_reasoning = !shown;
    r->out->one_call = !many;
    return MPK_OK;
}

mpk_status net_request_read_chat(mpk_context *cx, arena *a, const json_value *body,
                                 const mpk_request_options *suggested, net_request *out,
                                 net_refusal *why)
{
    reader r = {cx, a, body, out, why};
    int64_t max_tokens = 0;
    TRY(read_shared(&r, NET_FOR_CHAT, suggested));
    TRY(read_n_predict(&r, &max_tokens));
    TRY(read_whole(&r, "max_tokens", 1, 1 << 30, &max_tokens));
    TRY(read_whole(&r, "max_completion_tokens", 1, 1 << 30, &max_tokens));
    TRY(read_end(&r));
    TRY(read_shown(&r));
    TRY(read_messages(&r));
    TRY(read_tools(&r));
    TRY(read_variables(&r));
    TRY(read_words(&r, "chat_template", &out->chat_template));
    out->sampling.max_tokens = (uint32_t)max_tokens;
    return MPK_OK;
}
