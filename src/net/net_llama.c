/* net_llama.c - llama-server's own /completion, and its format of an answer, which /infill has
 * too.
 *
 * Clients of llama.cpp (editors, chat programs, grammars) use this rather than OpenAI's API.  A
 * prompt may be a text, token ids, or a list of both; members of the reply have llama-server's
 * names:
 *
 *   {"index":0,"content":"..","tokens":[],"id_slot":0,"stop":true,"tokens_predicted":5,..,
 *    "timings":{..}}
 *
 * The parameters are read by net_request.c; otherwise an answer lives like that of every
 * completion (net_completion.c).
 */
#include <stdio.h>

#include "net/net_exchange.h"

/* ---- the answer ---- */

/* How an answer ended: "limit", "word" (a stop text) or "eos". */
static const char *stop_type(const net_answer *a)
{
    if (a->finish == MPK_FINISH_LENGTH)
        return "limit";
    return a->stopped_by ? "word" : "eos";
}

static void write_number(const char *name, double value, text *to)
{
    text_print(to, ",\"%s\":", name);
    text_add_double(to, value);
}

/* NAME_n, NAME_ms and the two rates of a phase; n_timed: the tokens that its time was spent on. */
static void write_phase(const char *name, size_t n, size_t n_timed, uint64_t ns, text *to)
{
    const double ms = (double)ns / 1e6, timed = (double)n_timed;
    char member[64];
    text_print(to, "\"%s_n\":%zu,\"%s_ms\":", name, n, name);
    text_add_double(to, ms);
    snprintf(member, sizeof member, "%s_per_token_ms", name);
    write_number(member, n_timed ? ms / timed : 0, to);
    snprintf(member, sizeof member, "%s_per_second", name);
    write_number(member, ns ? timed * 1e3 / ms : 0, to);
}

/* The first token of an answer comes with its prompt, so decoding is timed by the others. */
static void write_timings(const net_answer *a, text *to)
{
    const size_t n_fed = a->n_prompt - a->n_cached;
    text_print(to, ",\"timings\":{\"cache_n\":%zu,", a->n_cached);
    write_phase("prompt", n_fed, n_fed, a->prompt_ns, to);
    text_print(to, ",");
    write_phase("predicted", a->n_tokens, a->n_tokens ? a->n_tokens - 1 : 0, a->decode_ns, to);
    text_print(to, "}");
}

/* Members that llama-server's final event has and the others lack. */
static void write_end_members(const net_exchange *x, const net_answer *a, text *to)
{
    text_print(to, ",\"model\":");
    json_write_str(to, str_from(x->server->options.model_name));
    text_print(to, ",\"stop_type\":\"%s\",\"stopping_word\":", stop_type(a));
    json_write_str(to, str_from(a->stopped_by ? a->stopped_by : ""));
    text_print(to, ",\"tokens_cached\":%zu,\"truncated\":false", a->n_cached);
    write_timings(a, to);
}

/* One answer or event: what is new in it, and at its end how it ended; empties the content, the ids
 * and the probabilities. Tokens are always a list here, empty unless return_tokens asked for it. */
static void move_members(const net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    text_print(to, "{\"index\":%u,\"content\":", index);
    json_write_str(to, text_str(&a->content));
    a->content.n = 0;
    text_print(to, ",\"tokens\":[");
    text_add(to, a->ids.at, a->ids.n);
    a->ids.n = 0;
    text_print(to, "],\"id_slot\":%u,\"stop\":%s,\"tokens_predicted\":%zu,\"tokens_evaluated\":%zu",
               index, str_bool(!a->request), a->n_tokens, a->n_prompt);
    if (x->work.logprobs) {
        text_print(to, ",\"completion_probabilities\":[");
        text_add(to, a->probs.tokens.at, a->probs.tokens.n);
        text_add(to, "]", 1);
        a->probs.tokens.n = 0;
    }
    if (!a->request)
        write_end_members(x, a, to);
    text_print(to, "}");
}

/* One object, or a list of them if there are several answers. */
static void write_document(net_exchange *x, text *to)
{
    const bool many = x->work.n > 1;
    text_print(to, many ? "[" : "");
    for (uint32_t i = 0; i < x->work.n; i++) {
        text_print(to, i ? "," : "");
        move_members(x, &x->work.answers[i], i, to);
    }
    text_print(to, many ? "]" : "");
}

/* The end is told once, also if nothing is new with it; an answer in progress without new text is
 * silent. */
static void write_news(net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    if (a->told || (a->request && !a->content.n))
        return;
    text_print(to, "data: ");
    move_members(x, a, index, to);
    text_print(to, "\n\n");
    a->told = !a->request;
}

/* Nothing: the last event of each answer says that it has ended. */
static void write_end(net_exchange *x, text *to)
{
    (void)x;
    (void)to;
}

static void write_failure(net_exchange *x, text *to)
{
    text_print(to, "error: ");
    net_reply_write_error(x, to);
    text_print(to, "\n\n");
}

const net_dialect net_dialect_llama = {
    .id_prefix = "llama-",
    .names_ids = true,
    .write_document = write_document,
    .write_news = write_news,
    .write_end = write_end,
    .write_failure = write_failure,
    .ping = ": still at work\n\n",
};

/* ---- prompts ---- */

static mpk_status refuse_prompt(net_exchange *x)
{
    return net_refuse(x->cx, &x->refusal, 400, "prompt", NULL,
                      "'prompt' must be a string, a list of token ids, a list of both, "
                      "{\"prompt_string\": ...} or a list of such prompts");
}

/* A prompt that is a list of ids and texts.  Only a text at its beginning gets the tokens around
 * it that the tokenizer adds. */
static mpk_status read_mixed(net_exchange *x, const json_value *list, bool special, net_prompt *to)
{
    net_ids ids = {0};
    for (size_t i = 0; i < list->n; i++) {
        const json_value *v = &list->items[i];
        if (v->kind == JSON_KIND_STRING)
            TRY(net_ids_add_text(x, &ids, v->text, special && i == 0));
        else if (v->is_integer && v->integer >= 0 && v->integer <= INT32_MAX)
            TRY(net_ids_add(x, &ids, (int32_t)v->integer));
        else
            return refuse_prompt(x);
    }
    *to = (net_prompt){.ids = ids.at, .n_ids = ids.n};
    return ids.n ? MPK_OK : refuse_prompt(x);
}

/* One prompt in any of its forms. */
static mpk_status read_prompt(net_exchange *x, const json_value *v, bool special, net_prompt *to)
{
    if (v->kind == JSON_KIND_OBJECT && json_get(v, "multimodal_data"))
        return net_refuse(x->cx, &x->refusal, 400, "prompt", NULL, "the model reads only text");
    const json_value *words = v->kind == JSON_KIND_OBJECT ? json_get(v, "prompt_string") : v;
    if (json_is(words, JSON_KIND_LIST) && words == v)
        return read_mixed(x, words, special, to);
    if (!json_is(words, JSON_KIND_STRING))
        return refuse_prompt(x);
    *to = (net_prompt){.text = words->text.at ? words->text : STR("")};
    return MPK_OK;
}

/* A list with a number in it is one prompt; any other list is a list of prompts. */
static bool is_many(const json_value *v)
{
    bool many = v->kind == JSON_KIND_LIST && v->n;
    for (size_t i = 0; many && i < v->n; i++)
        many = v->items[i].kind != JSON_KIND_NUMBER;
    return many;
}

/* llama-server takes one prompt or a list of them; a list of numbers is one prompt of ids
 * (is_many). */
static mpk_status read_prompts(net_exchange *x, const json_value *body, net_request *q)
{
    const json_value *v = json_get(body, "prompt");
    net_prompt *prompts;
    if (!v)
        return net_refuse(x->cx, &x->refusal, 400, "prompt", NULL,
                          "'prompt' is missing: give a string or a list of token ids");
    const bool many = is_many(v);
    const size_t n = many ? v->n : 1;
    NEW(x->cx, &x->arena, prompts, n);
    for (size_t i = 0; i < n; i++)
        TRY(read_prompt(x, many ? &v->items[i] : v, q->special, &prompts[i]));
    q->prompts = prompts;
    q->n_prompts = n;
    return MPK_OK;
}

/* POST /completion. */
mpk_status net_llama_run(net_exchange *x, const char *path)
{
    const mpk_request_options suggested = net_completion_suggested(x);
    const json_value *body;
    net_request q;
    (void)path;
    TRY(net_completion_open(x, &body));
    TRY(net_request_read_llama(x->cx, &x->arena, body, NET_FOR_LLAMA, &suggested, &q, &x->refusal));
    TRY(read_prompts(x, body, &q));
    TRY(net_work_open(x, &q, &net_dialect_llama, q.n_prompts));
    for (size_t i = 0; i < q.n_prompts; i++)
        TRY(net_work_submit(x, &q, i, &q.prompts[i]));
    return net_completion_answer(x, &q);
}
