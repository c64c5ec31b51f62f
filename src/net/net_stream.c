/* net_stream.c - answers as server-sent events, as they come.
 *
 * libmicrohttpd asks for bytes; the thread waits until an answer has news, writes them as events, and hands them over.
 * An event holds whatever has come since the last one.  A failure after the beginning is an event too: {"error":...}.
 */
#include "net/net_exchange.h"

static void begin_event(const net_exchange *x, text *to)
{
    text_print(to, "data: {");
    net_document_write_head(x, x->work.is_chat ? "chat.completion.chunk" : "text_completion", to);
}

static void end_event(const net_exchange *x, text *to)
{
    text_print(to, x->work.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

/* A member of a delta, if there is something; empties it. */
static void move_member(const char *name, text *from, unsigned *n_members, text *to)
{
    if (!from->n)
        return;
    text_print(to, "%s\"%s\":", (*n_members)++ ? "," : "", name);
    json_write_str(to, (str){from->at, from->n});
    from->n = 0;
}

static void write_delta(net_answer *a, text *to)
{
    net_parts *p = &a->parts;
    unsigned n_members = 0;
    text_print(to, "\"delta\":{");
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

static void write_role(const net_exchange *x, uint32_t index, text *to)
{
    begin_event(x, to);
    text_print(to,
               ",\"choices\":[{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
               "\"finish_reason\":null}]",
               index);
    end_event(x, to);
}

static void write_news(net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    unsigned n_members = 0;
    begin_event(x, to);
    text_print(to, ",\"choices\":[{\"index\":%u,", index);
    if (x->work.is_chat)
        write_delta(a, to);
    else if (a->content.n)
        move_member("text", &a->content, &n_members, to);
    else
        text_print(to, "\"text\":\"\"");
    text_print(to,
               a->request ? ",\"logprobs\":null,\"finish_reason\":null}]"
                          : ",\"logprobs\":null,\"finish_reason\":\"%s\"}]",
               net_document_reason(a));
    end_event(x, to);
}

/* What has come of one answer.  The role comes with the first token: who measures the time to it should. */
static void write_answer(net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    const bool news = a->content.n || a->parts.content.n || a->parts.reasoning.n || a->n_calls_sent < a->parts.calls.n;
    if (x->work.is_chat && !a->begun && a->n_tokens) {
        write_role(x, index, to);
        a->begun = true;
    }
    if (!a->told && (news || !a->request))
        write_news(x, a, index, to);
    a->told |= !a->request;
}

static void write_end(net_exchange *x, text *to)
{
    if (x->work.include_usage) {
        begin_event(x, to);
        text_print(to, ",\"choices\":[],\"usage\":");
        net_document_write_usage(x, to);
        text_print(to, "}\n\n");
    }
    text_print(to, "data: [DONE]\n\n");
    x->ended = true;
}

static void write_failure(net_exchange *x, mpk_status status, text *to)
{
    net_refuse_status(&x->refusal, status);
    text_print(to, "data: ");
    net_reply_write_error(x, to);
    text_print(to, "\n\ndata: [DONE]\n\n");
    net_work_close(x);
    x->ended = true;
}

/* Until there is something to send, the end, or nobody to send it to. */
static void fill(net_exchange *x)
{
    x->out.n = x->out_at = 0;
    net_exchange_stop_clock(x, true);
    while (!x->out.n && !x->ended && !x->gone && !x->out.failed) {
        mpk_status status = net_work_wait(x);
        if (status != MPK_OK && !x->gone)
            write_failure(x, status, &x->out);
        if (status != MPK_OK)
            break;
        for (uint32_t i = 0; i < x->work.n; i++)
            write_answer(x, &x->work.answers[i], i, &x->out);
        if (!x->work.n_running)
            write_end(x, &x->out);
    }
    net_exchange_stop_clock(x, false);
}

static ssize_t read_stream(void *user, uint64_t position, char *to, size_t most)
{
    net_exchange *x = user;
    (void)position;
    if (x->out_at == x->out.n && !x->ended)
        fill(x);
    if (x->gone || x->out.failed)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = x->out.n - x->out_at;
    if (!n)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n > most)
        n = most;
    memcpy(to, x->out.at + x->out_at, n);
    x->out_at += n;
    return (ssize_t)n;
}

mpk_status net_stream_begin(net_exchange *x)
{
    /* What is freed at the end is the exchange's, in net_exchange_complete: there is no callback here. */
    struct MHD_Response *response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, read_stream, x, NULL);
    if (response) {
        (void)MHD_add_response_header(response, "Cache-Control", "no-cache");
        (void)MHD_add_response_header(response, "X-Accel-Buffering", "no"); /* nginx, hand it on as it comes */
    }
    return net_reply_send(x, 200, "text/event-stream", response);
}
