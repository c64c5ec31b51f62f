/* net_document.c - answers as OpenAI's documents, and what its streams (net_chunk.c) share with
 * them: head, usage, calls, reasons.
 *
 *   {"id":..,"object":"chat.completion",..,"choices":[{"index":0,"message":{..},"logprobs":..,
 *    "finish_reason":"stop"}],"usage":{..}}
 *
 * Written when all answers of the exchange have ended (net_completion.c).  Functions named move
 * write what has gathered in an answer and empty it, so that a stream sends nothing twice.
 */
#include "net/net_exchange.h"

/* The members that documents and events begin with. `created` and the id are those of the exchange,
 * so all events of a stream repeat them. */
void net_document_write_head(const net_exchange *x, const char *object, text *to)
{
    text_print(to, "\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", x->work.id,
               object, (long long)x->work.created);
    json_write_str(to, str_from(x->server->options.model_name));
    text_print(to, ",\"system_fingerprint\":\"%s\"", x->server->fingerprint);
}

/* Hidden tokens are those of answers that best_of has dropped: they were computed, so they count.
 * Drafts are shown only where some were made. */
void net_document_write_usage(const net_exchange *x, text *to)
{
    size_t n = x->work.n_hidden_tokens, n_prompt = x->work.n_prompt_tokens;
    for (uint32_t i = 0; i < x->work.n; i++)
        n += x->work.answers[i].n_tokens;
    text_print(to,
               "{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%zu}",
               n_prompt, n, n_prompt + n, x->work.n_cached);
    if (x->work.n_drafted)
        text_print(to,
                   ",\"completion_tokens_details\":{\"accepted_prediction_tokens\":%zu,"
                   "\"rejected_prediction_tokens\":%zu}",
                   x->work.n_accepted, x->work.n_drafted - x->work.n_accepted);
    text_print(to, "}");
}

/* with_index: in a stream, where a client puts pieces of several calls together by it. `arguments`
 * is a text that holds JSON, not an object, in OpenAI's API. */
void net_document_write_call(const net_call *call, uint32_t index, bool with_index, text *to)
{
    text_print(to, "{");
    if (with_index)
        text_print(to, "\"index\":%u,", index);
    text_print(to, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", call->id);
    json_write_str(to, call->name);
    text_print(to, ",\"arguments\":");
    json_write_str(to, call->arguments);
    text_print(to, "}}");
}

/* ,"NAME":[1,2,3]; ids are kept as text, with commas. */
static void move_ids(const char *name, text *ids, text *to)
{
    text_print(to, ",\"%s\":[", name);
    text_add(to, ids->at, ids->n);
    text_add(to, "]", 1);
    ids->n = 0;
}

void net_document_move_ids(const net_exchange *x, net_answer *a, text *to)
{
    if (x->work.token_ids)
        move_ids("token_ids", &a->ids, to);
}

void net_document_move_prompt_ids(const net_exchange *x, net_answer *a, text *to)
{
    if (x->work.token_ids && a->prompt_ids.n)
        move_ids("prompt_token_ids", &a->prompt_ids, to);
}

const char *net_document_reason(const net_answer *a)
{
    if (a->finish == MPK_FINISH_LENGTH)
        return "length";
    return a->parts.calls.n ? "tool_calls" : "stop";
}

/* stop_reason is vLLM's: what ended the answer, a text or a token id; null at the end of the text
 * or at a limit. */
void net_document_write_reasons(const net_answer *a, text *to)
{
    text_print(to, "\"finish_reason\":\"%s\",\"stop_reason\":", net_document_reason(a));
    if (a->stopped_by)
        json_write_str(to, str_from(a->stopped_by));
    else if (a->stop_token >= 0)
        text_print(to, "%d", a->stop_token);
    else
        text_print(to, "null");
}

/* "message":{..}; content is null beside calls, if there is none.  Reasoning has two names, as in
 * the events of a stream. */
static void write_message(const net_answer *a, text *to)
{
    const net_parts *p = &a->parts;
    text_print(to, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (p->content.n || !p->calls.n)
        json_write_str(to, text_str(&p->content));
    else
        text_print(to, "null");
    for (unsigned i = 0; i < 2 && p->any_reasoning; i++) {
        text_print(to, ",\"reasoning%s\":", i ? "_content" : "");
        json_write_str(to, text_str(&p->reasoning));
    }
    for (uint32_t i = 0; i < p->calls.n; i++) {
        text_print(to, i ? "," : ",\"tool_calls\":[");
        net_document_write_call(&p->calls.at[i], i, false, to);
    }
    text_print(to, p->calls.n ? "]}" : "}");
}

/* vLLM's prompt_logprobs: in a completion each answer has those of its prompt, in a chat the
 * document has those of the one prompt. */
static void write_prompt_probs(const net_exchange *x, const net_answer *a, text *to)
{
    if (!x->work.prompt_logprobs)
        return;
    text_print(to, ",\"prompt_logprobs\":");
    text_add(to, a->probs.prompt.at, a->probs.prompt.n);
}

/* One choice. Log probabilities, ids and the prompt's are members only where they were asked for;
 * each function decides for itself. */
static void write_answer(const net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    text_print(to, "{\"index\":%u,", index);
    if (x->work.dialect->is_chat)
        write_message(a, to);
    else {
        text_print(to, "\"text\":");
        json_write_str(to, text_str(&a->content));
    }
    net_probs_move(x, a, to);
    text_print(to, ",");
    net_document_write_reasons(a, to);
    net_document_move_ids(x, a, to);
    if (!x->work.dialect->is_chat) {
        net_document_move_prompt_ids(x, a, to);
        write_prompt_probs(x, a, to);
    }
    text_print(to, "}");
}

/* In a chat the prompt is one for all choices, so its ids stand beside them and not within. */
void net_document_write(net_exchange *x, text *to)
{
    text_print(to, "{");
    net_document_write_head(x, x->work.dialect->is_chat ? "chat.completion" : "text_completion",
                            to);
    text_print(to, ",\"choices\":[");
    for (uint32_t i = 0; i < x->work.n; i++) {
        text_add(to, ",", i > 0);
        write_answer(x, &x->work.answers[i], i, to);
    }
    text_print(to, "],\"usage\":");
    net_document_write_usage(x, to);
    if (x->work.dialect->is_chat) {
        net_document_move_prompt_ids(x, &x->work.answers[0], to);
        write_prompt_probs(x, &x->work.answers[0], to);
    }
    text_print(to, "}");
}

/* A comment of a stream, which clients skip; sent so that no proxy closes an idle connection. */
static const char comment[] = ": still at work\n\n";

const net_dialect net_dialect_completion = {
    .id_prefix = "cmpl-",
    .write_document = net_document_write,
    .write_news = net_chunk_write_news,
    .write_end = net_chunk_write_end,
    .write_failure = net_chunk_write_failure,
    .ping = comment,
};
const net_dialect net_dialect_chat = {
    .id_prefix = "chatcmpl-",
    .is_chat = true,
    .write_document = net_document_write,
    .write_news = net_chunk_write_news,
    .write_end = net_chunk_write_end,
    .write_failure = net_chunk_write_failure,
    .ping = comment,
};
