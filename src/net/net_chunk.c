/* net_chunk.c - answers as the events of OpenAI's streams: a chunk for the text since the last
 * one, the usage, [DONE].
 *
 *   data: {"id":"chatcmpl-..","object":"chat.completion.chunk",..,
 *          "choices":[{"index":0,"delta":{..}}]}
 *
 *   data: [DONE]
 *
 * Called through net_dialect by net_stream.c.  Each function empties what it has written, so
 * nothing is sent twice.
 */
#include "net/net_exchange.h"

/* The members that every event begins with. */
static void begin_event(const net_exchange *x, text *to)
{
    text_print(to, "data: {");
    net_document_write_head(
        x, x->work.dialect->is_chat ? "chat.completion.chunk" : "text_completion", to);
}

/* End an event; with the usage so far if that is asked for in every event, and null if it comes
 * at the end only. */
static void end_event(const net_exchange *x, text *to)
{
    if (x->work.usage_always) {
        text_print(to, ",\"usage\":");
        net_document_write_usage(x, to);
    } else if (x->work.include_usage)
        text_print(to, ",\"usage\":null");
    text_print(to, "}\n\n");
}

/* Write a member of a delta unless its text is empty, and empty the text. */
static void move_member(const char *name, text *from, unsigned *n_members, text *to)
{
    if (!from->n)
        return;
    text_print(to, "%s\"%s\":", (*n_members)++ ? "," : "", name);
    json_write_str(to, (str){from->at, from->n});
    from->n = 0;
}

/* "delta":{..} with what is new in reasoning, content and calls.  Reasoning has two names: vLLM's
 * and that of DeepSeek's API, SGLang and llama-server. */
static void write_delta(net_answer *a, text *to)
{
    net_parts *p = &a->parts;
    unsigned n_members = 0;
    text_print(to, "\"delta\":{");
    if (p->reasoning.n) {
        text_print(to, "\"reasoning\":");
        json_write_str(to, text_str(&p->reasoning));
        n_members++;
    }
    move_member("reasoning_content", &p->reasoning, &n_members, to);
    move_member("content", &p->content, &n_members, to);
    if (a->n_calls_sent < p->calls.n) {
        text_print(to, "%s\"tool_calls\":[", n_members ? "," : "");
        for (uint32_t first = a->n_calls_sent; a->n_calls_sent < p->calls.n; a->n_calls_sent++) {
            text_add(to, ",", a->n_calls_sent > first);
            net_document_write_call(&p->calls.at[a->n_calls_sent], a->n_calls_sent, true, to);
        }
        text_print(to, "]");
    }
    text_print(to, "}");
}

/* The first event of a chat's answer: its role, without text. */
static void write_role(const net_exchange *x, uint32_t index, text *to)
{
    begin_event(x, to);
    text_print(to,
               ",\"choices\":[{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
               "\"logprobs\":null,"
               "\"finish_reason\":null}]",
               index);
    if (index == 0)
        net_document_move_prompt_ids(x, &x->work.answers[0], to);
    end_event(x, to);
}

/* An event with what is new in one answer; the last one says why it ended. Members are taken out of
 * the answer as they are written (move_*), so the next event begins with nothing. `finish_reason`
 * stays null until the engine has ended the request: a->request is NULL from then on. */
static void write_event(net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    unsigned n_members = 0;
    begin_event(x, to);
    text_print(to, ",\"choices\":[{\"index\":%u,", index);
    if (x->work.dialect->is_chat)
        write_delta(a, to);
    else if (a->content.n)
        move_member("text", &a->content, &n_members, to);
    else
        text_print(to, "\"text\":\"\"");
    net_probs_move(x, a, to);
    text_print(to, ",");
    if (a->request)
        text_print(to, "\"finish_reason\":null");
    else
        net_document_write_reasons(a, to);
    net_document_move_ids(x, a, to);
    if (!x->work.dialect->is_chat)
        net_document_move_prompt_ids(x, a, to);
    text_print(to, "}]");
    end_event(x, to);
}

/* Write what is new in one answer.  The role is sent with the first token, not before: clients
 * measure the time to the first token by it. */
void net_chunk_write_news(net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    const bool news = a->content.n || a->parts.content.n || a->parts.reasoning.n ||
                      a->n_calls_sent < a->parts.calls.n;
    if (x->work.dialect->is_chat && !a->begun && a->n_tokens) {
        write_role(x, index, to);
        a->begun = true;
    }
    if (!a->told && (news || !a->request))
        write_event(x, a, index, to);
    a->told |= !a->request;
}

/* After the last answer. OpenAI's clients end at "[DONE]", not at the end of the connection. */
void net_chunk_write_end(net_exchange *x, text *to)
{
    if (x->work.include_usage) {
        begin_event(x, to);
        text_print(to, ",\"choices\":[],\"usage\":");
        net_document_write_usage(x, to);
        text_print(to, "}\n\n");
    }
    text_print(to, "data: [DONE]\n\n");
}

void net_chunk_write_failure(net_exchange *x, text *to)
{
    text_print(to, "data: ");
    net_reply_write_error(x, to);
    text_print(to, "\n\ndata: [DONE]\n\n");
}
