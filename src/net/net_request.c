/* net_request.c - the JSON of a completion -> a checked request; and what chats share with it.
 *
 * Input: the parsed body and the sampling that the model's makers suggest.  Output: a
 * net_request, whose texts lie in the arena or in the body.  A parameter of the wrong type or
 * out of range is refused with 400 by its name; the parameters are listed in net_parameters.c,
 * forms and rules for tokens are read by net_form.c and net_rules.c.
 *
 * Called by the handlers, and by net_request_chat.c for what is shared.  Cost: one pass over the
 * document.
 */
#include "net/net_form.h"
#include "net/net_parameters.h"
#include "net/net_reader.h"
#include "net/net_rules.h"

/* Counts punctuation outside of strings, an upper bound of the values; so a body of a million
 * values is refused before its tree is built. */
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

/* ---- sampling ---- */

/* One stop text.  An empty one would stop every answer at once, and mpk.h takes texts that end
 * with a NUL. */
static mpk_status read_stop(net_reader *r, const json_value *v, uint32_t i)
{
    if (v->kind != JSON_KIND_STRING || !v->text.n || memchr(v->text.at, 0, v->text.n))
        REFUSE(r, "stop", "'stop' must hold strings that are not empty and hold no NUL");
    r->out->stops[i] = arena_copy(r->a, v->text.at, v->text.n);
    CHECK(r->cx, r->out->stops[i], MPK_ENOMEM, "out of memory for a stop text");
    r->out->sampling.n_stop = i + 1;
    return MPK_OK;
}

/* "stop": one text or a list of them. */
static mpk_status read_stops(net_reader *r)
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

/* Does the text that ends an answer belong to it?  no_stop_trim is SGLang's name. */
static mpk_status read_ends(net_reader *r)
{
    TRY(net_read_flag(r, "no_stop_trim", &r->out->sampling.include_stop));
    return net_read_flag(r, "include_stop_str_in_output", &r->out->sampling.include_stop);
}

/* top_k, top_p, min_p.  Edge values mean what they mean to other servers: top_k -1 is off, and
 * top_p 0 leaves only the most probable token, which mpk.h expresses as temperature 0 (its top_p
 * 0 is off). */
static mpk_status read_cuts(net_reader *r)
{
    mpk_request_options *s = &r->out->sampling;
    int64_t top_k = s->top_k;
    TRY(net_read_whole(r, "top_k", -1, 1 << 30, &top_k));
    TRY(net_read_real(r, "top_p", 0, 1, &s->top_p));
    TRY(net_read_real(r, "min_p", 0, 1, &s->min_p));
    s->top_k = top_k < 0 ? 0 : (uint32_t)top_k;
    const json_value *top_p = json_get(r->body, "top_p");
    if (top_p && s->top_p == 0)
        s->temperature = 0;
    return MPK_OK;
}

/* Begins with what the model's makers suggest, so absent parameters have those values; a suggested
 * temperature of 0 means none, and OpenAI's default of 1 applies. n_cmpl is llama-server's name of
 * n; the one that is read last counts. */
static mpk_status read_sampling(net_reader *r, const mpk_request_options *suggested)
{
    net_request *q = r->out;
    mpk_request_options *s = &q->sampling;
    int64_t seed = 0, n = 1;
    *s = *suggested;
    s->size = sizeof *s;
    if (s->temperature == 0)
        s->temperature = 1;
    TRY(net_read_real(r, "temperature", 0, 100, &s->temperature));
    TRY(read_cuts(r));
    TRY(net_read_whole(r, "seed", INT64_MIN, INT64_MAX, &seed));
    TRY(net_read_flag(r, "ignore_eos", &s->ignore_eos));
    TRY(net_read_whole(r, "n_cmpl", 1, NET_MAX_ANSWERS, &n));
    TRY(net_read_whole(r, "n", 1, NET_MAX_ANSWERS, &n));
    TRY(read_stops(r));
    TRY(read_ends(r));
    s->seed = (uint64_t)seed;
    q->has_seed = json_get(r->body, "seed") != NULL;
    q->n_answers = (uint32_t)n;
    return MPK_OK;
}

/* Options of a stream are refused without one, since the client has forgotten "stream". */
static mpk_status read_stream(net_reader *r)
{
    TRY(net_read_flag(r, "stream", &r->out->stream));
    TRY(net_read_whole(r, "sse_ping_interval", -1, INT32_MAX, &r->out->ping_s));
    r->out->has_ping = json_get(r->body, "sse_ping_interval") != NULL;
    const json_value *options = json_get(r->body, "stream_options");
    if (!options)
        return MPK_OK;
    if (options->kind != JSON_KIND_OBJECT)
        REFUSE(r, "stream_options", "'stream_options' must be an object");
    if (!r->out->stream)
        REFUSE(r, "stream_options", "'stream_options' is for requests with \"stream\": true");
    net_reader inner = *r;
    inner.body = options;
    TRY(net_read_flag(&inner, "include_usage", &r->out->include_usage));
    return net_read_flag(&inner, "continuous_usage_stats", &r->out->usage_always);
}

/* ---- parameters of which only some values are supported ---- */

/* Parameters of which a single value is supported; other values would change the answer. */
static mpk_status check_values(net_reader *r)
{
    const json_value *special = json_get(r->body, "skip_special_tokens");
    if (special && !(special->kind == JSON_KIND_BOOL && special->boolean))
        REFUSE(r, "skip_special_tokens",
               "'skip_special_tokens' other than true is not supported: answers are text");
    return MPK_OK;
}

/* best_of answers are computed, and the n most probable ones sent.  Which these are is known
 * only after all have ended, so they cannot be streamed. */
static mpk_status read_best(net_reader *r, unsigned endpoint)
{
    net_request *q = r->out;
    int64_t best = q->n_shown = q->n_answers;
    if (endpoint == NET_FOR_COMPLETION)
        TRY(net_read_whole(r, "best_of", q->n_answers, NET_MAX_ANSWERS, &best));
    if (best > q->n_answers && q->stream)
        REFUSE(r, "best_of", "'best_of' above 'n' cannot be streamed");
    q->n_answers = (uint32_t)best;
    return MPK_OK;
}

/* cache_prompt false: the prompt is neither looked up in the prefix cache nor left in it. */
static mpk_status read_cache(net_reader *r)
{
    bool keeps = true;
    TRY(net_read_words(r, "cache_salt", &r->out->sampling.cache_salt));
    TRY(net_read_flag(r, "cache_prompt", &keeps));
    r->out->sampling.no_prefix_cache = !keeps;
    return MPK_OK;
}

/* A smaller number is computed earlier, as in vLLM. */
static mpk_status read_priority(net_reader *r)
{
    int64_t n = 0;
    TRY(net_read_whole(r, "priority", INT32_MIN, INT32_MAX, &n));
    r->out->sampling.priority = (int32_t)n;
    return MPK_OK;
}

/* Draft tokens of a step.  More than the engine can is no error; 0, which turns drafts off, is
 * -1 for the engine, whose own 0 means its default. */
static mpk_status read_drafts(net_reader *r)
{
    int64_t n = -1;
    TRY(net_read_whole(r, "speculative.n_max", 0, INT32_MAX, &n));
    if (n > 0)
        r->out->sampling.draft_tokens = n < NET_MAX_DRAFTS ? (int32_t)n : NET_MAX_DRAFTS;
    else if (n == 0)
        r->out->sampling.draft_tokens = -1;
    return MPK_OK;
}

/* In a chat a flag, with top_logprobs beside it; in a completion a number, which llama-server calls
 * n_probs. {"logprobs": true, "top_logprobs": 2} in a chat is {"logprobs": 2} in a completion and
 * {"n_probs": 2} in llama-server's. */
static mpk_status read_logprobs(net_reader *r, unsigned endpoint)
{
    mpk_request_options *s = &r->out->sampling;
    int64_t n = 0;
    if (endpoint == NET_FOR_CHAT) {
        TRY(net_read_flag(r, "logprobs", &s->logprobs));
        TRY(net_read_whole(r, "top_logprobs", 0, NET_MAX_LOGPROBS, &n));
        if (n && !s->logprobs)
            REFUSE(r, "top_logprobs", "'top_logprobs' is for requests with \"logprobs\": true");
    } else if (endpoint == NET_FOR_COMPLETION) {
        TRY(net_read_whole(r, "logprobs", 0, NET_MAX_LOGPROBS, &n));
        s->logprobs = json_get(r->body, "logprobs") != NULL;
    } else {
        TRY(net_read_whole(r, "n_probs", 0, NET_MAX_LOGPROBS, &n));
        s->logprobs = n > 0;
    }
    s->top_logprobs = r->out->n_top = (uint32_t)n;
    return MPK_OK;
}

/* vLLM's: for each token of the prompt its log probability, and those of this many of the most
 * probable tokens. */
static mpk_status read_prompt_logprobs(net_reader *r)
{
    net_request *q = r->out;
    int64_t n = 0;
    TRY(net_read_whole(r, "prompt_logprobs", 0, NET_MAX_LOGPROBS, &n));
    q->prompt_logprobs = json_get(r->body, "prompt_logprobs") != NULL;
    if (q->prompt_logprobs && q->stream)
        REFUSE(r, "prompt_logprobs", "'prompt_logprobs' cannot be streamed");
    q->n_prompt_top = (uint32_t)n;
    q->sampling.prompt_logprobs = q->prompt_logprobs;
    if (q->n_prompt_top > q->n_top)
        q->sampling.top_logprobs = q->n_prompt_top;
    return MPK_OK;
}

/* vLLM's: a prompt is cut to its last n tokens; -1: to as many as leave room for an answer. */
static mpk_status read_truncation(net_reader *r)
{
    int64_t n = 0;
    TRY(net_read_whole(r, "truncate_prompt_tokens", -1, INT32_MAX, &n));
    if (n == 0 && json_get(r->body, "truncate_prompt_tokens"))
        REFUSE(r, "truncate_prompt_tokens",
               "'truncate_prompt_tokens' is 0: a prompt has a token at least");
    r->out->truncate = (int32_t)n;
    return MPK_OK;
}

/* The parameters that all kinds of completions have.  Order matters in two places: `stream` must
 * be known before best_of and prompt_logprobs, which refuse it. */
mpk_status net_read_shared(net_reader *r, unsigned endpoint, const mpk_request_options *suggested)
{
    if (r->body->kind != JSON_KIND_OBJECT)
        REFUSE(r, NULL, "the body is not a JSON object");
    *r->out = (net_request){.special = endpoint & (NET_FOR_COMPLETION | NET_FOR_LLAMA)};
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
    TRY(net_read_flag(r, "return_token_ids", &r->out->token_ids));
    TRY(net_read_flag(r, "return_tokens_as_token_ids", &r->out->names_are_ids));
    TRY(read_priority(r));
    TRY(net_read_flag(r, "add_special_tokens", &r->out->special));
    TRY(read_truncation(r));
    return net_form_read(r->cx, r->a, r->body, &r->out->sampling, &r->out->form_name, r->why);
}

/* Of a completion: max_tokens, or llama-server's n_predict, which is read first and so loses.  -1:
 * until the context is full; 0: the prompt alone is computed. */
static mpk_status read_most(net_reader *r, int64_t most)
{
    TRY(net_read_whole(r, "n_predict", -1, 1 << 30, &most));
    TRY(net_read_whole(r, "max_tokens", 0, 1 << 30, &most));
    r->out->sampling.prompt_only = most == 0;
    r->out->sampling.max_tokens = most > 0 ? (uint32_t)most : 0;
    return MPK_OK;
}

/* Of a chat: llama-server's name of max_tokens: -1 means no limit, which is 0 here. */
mpk_status net_read_n_predict(net_reader *r, int64_t *max_tokens)
{
    int64_t n = *max_tokens;
    TRY(net_read_whole(r, "n_predict", -1, 1 << 30, &n));
    *max_tokens = n < 0 ? 0 : n;
    if (n == 0 && json_get(r->body, "n_predict"))
        REFUSE(r, "n_predict", "'n_predict' is 0: an answer has a token at least");
    return MPK_OK;
}

/* ---- completions ---- */

/* A list of token ids.  Only their form is checked; whether the vocabulary has them is checked
 * by the engine. */
mpk_status net_request_read_ids(mpk_context *cx, arena *a, const json_value *list, const char *name,
                                const int32_t **ids, size_t *n, net_refusal *why)
{
    int32_t *at;
    if (!json_is(list, JSON_KIND_LIST))
        return net_refuse(cx, why, 400, name, NULL, "'%s' must be a list of token ids", name);
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

/* One prompt: a text, or the ids of its tokens. */
static mpk_status read_prompt(net_reader *r, const json_value *v, net_prompt *to)
{
    if (v->kind == JSON_KIND_STRING) {
        to->text = v->text.at ? v->text : STR("");
        return MPK_OK;
    }
    if (v->kind != JSON_KIND_LIST || !v->n)
        REFUSE(r, "prompt",
               "'prompt' must be a string, a list of strings, a list of token ids or a list of "
               "such lists");
    return net_request_read_ids(r->cx, r->a, v, "prompt", &to->ids, &to->n_ids, r->why);
}

/* A list whose first item is a number is one prompt, any other one a list of prompts; an empty
 * list is refused as a prompt without tokens. */
static mpk_status read_prompts(net_reader *r)
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

/* "suffix": a text after the answer, which then fills the gap; for prompts that are texts. */
static mpk_status read_suffix(net_reader *r)
{
    const net_request *q = r->out;
    const json_value *v = json_get(r->body, "suffix");
    if (!v)
        return MPK_OK;
    if (v->kind != JSON_KIND_STRING)
        REFUSE(r, "suffix", "'suffix' must be a string");
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

mpk_status net_request_read_llama(mpk_context *cx, arena *a, const json_value *body,
                                  unsigned endpoint, const mpk_request_options *suggested,
                                  net_request *out, net_refusal *why)
{
    net_reader r = {cx, a, body, out, why};
    TRY(net_read_shared(&r, endpoint, suggested));
    TRY(read_most(&r, -1));
    TRY(net_read_flag(&r, "return_tokens", &out->token_ids));
    /* the events of llama-server's streams always have them */
    out->token_ids |= out->stream;
    return MPK_OK;
}

/* With "echo" the text begins with the prompt, and so do its log probabilities. */
mpk_status net_request_read_completion(mpk_context *cx, arena *a, const json_value *body,
                                       const mpk_request_options *suggested, net_request *out,
                                       net_refusal *why)
{
    net_reader r = {cx, a, body, out, why};
    TRY(net_read_shared(&r, NET_FOR_COMPLETION, suggested));
    TRY(read_most(&r, 16)); /* OpenAI's default */
    TRY(net_read_flag(&r, "echo", &out->echo));
    out->sampling.prompt_logprobs |= out->echo && out->sampling.logprobs;
    TRY(read_prompts(&r));
    return read_suffix(&r);
}
