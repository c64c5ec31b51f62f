/* net_messages.c - /v1/messages and /v1/messages/count_tokens: Anthropic's API.
 *
 * A request is rewritten as a chat (net_messages_read.c) and answered as one; the answer is
 * written as content blocks, in a document or in the events of a stream:
 *
 *   message_start, then for each block content_block_start, content_block_delta ..,
 *   content_block_stop, then message_delta (why it ended, usage), message_stop
 */
#include "net/net_items.h"
#include "net/net_messages.h"

/* ---- shared by documents and streams ---- */

/* Why an answer ended, in the order of what a client must act on: cut off, calls to run, a stop
 * text, an ordinary end. */
static const char *stop_reason(const net_answer *a)
{
    if (a->finish == MPK_FINISH_LENGTH)
        return "max_tokens";
    if (net_items_any_call(a))
        return "tool_use";
    return a->stopped_by ? "stop_sequence" : "end_turn";
}

/* An answer with calls of tools names no stop sequence, whatever ended it: the client is to run the
 * calls. */
static void write_stop(const net_answer *a, text *to)
{
    text_print(to, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(a));
    if (a->stopped_by && !net_items_any_call(a))
        json_write_str(to, str_from(a->stopped_by));
    else
        text_print(to, "null");
}

/* The arguments of a call as the object that clients expect; text that is not an object is wrapped
 * as {"arguments": text}. */
static void write_input(const net_exchange *x, str arguments, text *to)
{
    arena a = {0};
    const json_value *v = NULL;
    const bool good =
        json_parse_any_number(x->cx, &a, arguments, &v) == MPK_OK && v->kind == JSON_KIND_OBJECT;
    if (good)
        text_add(to, arguments.at, arguments.n);
    else {
        text_print(to, "{\"arguments\":");
        json_write_str(to, arguments);
        text_print(to, "}");
    }
    arena_free(&a);
}

/* Members that the document and the first event share. */
static void write_head(const net_exchange *x, text *to)
{
    text_print(to,
               "\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", x->work.id);
    json_write_str(to, str_from(x->server->options.model_name));
}

/* ---- a document ---- */

/* One block of the document.  The signature of reasoning is empty: only the service that signs
 * could check it. */
static void write_block(const net_exchange *x, const net_answer *a, const net_item *item, text *to)
{
    const str words = net_items_text(a, item);
    if (item->kind == NET_ITEM_CALL) {
        const net_call *call = &a->parts.calls.at[item->call];
        text_print(to, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", call->id);
        json_write_str(to, call->name);
        text_print(to, ",\"input\":");
        write_input(x, words, to);
        text_print(to, "}");
        return;
    }
    const bool thinking = item->kind == NET_ITEM_REASONING;
    text_print(to,
               thinking ? "{\"type\":\"thinking\",\"thinking\":" : "{\"type\":\"text\",\"text\":");
    json_write_str(to, words);
    text_print(to, thinking ? ",\"signature\":\"\"}" : "}");
}

/* Anthropic's input_tokens are those that had to be computed, without those from the cache. */
static void write_usage(const net_exchange *x, size_t n_tokens, text *to)
{
    const net_work *w = &x->work;
    text_print(to,
               "\"usage\":{\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,\"cache_read_"
               "input_tokens\":%zu,"
               "\"output_tokens\":%zu}",
               w->n_prompt_tokens - w->n_cached, w->n_cached, n_tokens);
}

/* All items are taken at once here: nothing was streamed before. */
static void write_document(net_exchange *x, text *to)
{
    net_answer *a = &x->work.answers[0];
    net_items_take(x, a, NULL, to);
    text_print(to, "{");
    write_head(x, to);
    text_print(to, ",\"content\":[");
    for (uint32_t i = 0; i < net_items_count(a); i++) {
        text_add(to, ",", i > 0);
        write_block(x, a, net_items_at(a, i), to);
    }
    text_print(to, "],");
    write_stop(a, to);
    text_print(to, ",");
    write_usage(x, a->n_tokens, to);
    text_print(to, "}");
}

/* ---- a stream ---- */

static void begin_event(const char *type, text *to)
{
    text_print(to, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void end_event(text *to)
{
    text_print(to, "}\n\n");
}

/* A block is announced empty; its content follows as deltas. */
static void begin_block(net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    const net_item *item = net_items_at(a, index);
    (void)x;
    begin_event("content_block_start", to);
    text_print(to, ",\"index\":%u,\"content_block\":", index);
    if (item->kind == NET_ITEM_CALL) {
        const net_call *call = &a->parts.calls.at[item->call];
        text_print(to, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", call->id);
        json_write_str(to, call->name);
        text_print(to, ",\"input\":{}}");
    } else
        text_print(to, item->kind == NET_ITEM_REASONING
                           ? "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"
                           : "{\"type\":\"text\",\"text\":\"\"}");
    end_event(to);
}

/* A call's arguments are streamed as text of JSON, which the client joins and parses at the end. */
static void add_to_block(net_exchange *x, net_answer *a, uint32_t index, str piece, text *to)
{
    static const char *const deltas[] = {
        [NET_ITEM_REASONING] = "{\"type\":\"thinking_delta\",\"thinking\":",
        [NET_ITEM_TEXT] = "{\"type\":\"text_delta\",\"text\":",
        [NET_ITEM_CALL] = "{\"type\":\"input_json_delta\",\"partial_json\":",
    };
    const net_item *item = net_items_at(a, index);
    text input = {0};
    if (item->kind == NET_ITEM_CALL) {
        write_input(x, piece, &input);
        piece = (str){input.at ? input.at : "", input.n};
    }
    begin_event("content_block_delta", to);
    text_print(to, ",\"index\":%u,\"delta\":%s", index, deltas[item->kind]);
    json_write_str(to, piece);
    text_print(to, "}");
    end_event(to);
    text_free(&input);
}

/* The signature is that of the callbacks of net_items; a block's end needs nothing of the
 * exchange. */
static void end_block(net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    (void)x;
    (void)a;
    begin_event("content_block_stop", to);
    text_print(to, ",\"index\":%u", index);
    end_event(to);
}

static const net_item_events events = {begin_block, add_to_block, end_block};

/* The first event has the usage of the prompt; that of the answer follows at the end. */
static void write_start(const net_exchange *x, text *to)
{
    begin_event("message_start", to);
    text_print(to, ",\"message\":{");
    write_head(x, to);
    text_print(to, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    write_usage(x, 0, to);
    text_print(to, "}");
    end_event(to);
}

/* The first event waits for the first token, since it says how much of the prompt was found in
 * the cache. */
static void write_news(net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    (void)index;
    if (!a->begun && (a->n_tokens || !a->request)) {
        write_start(x, to);
        a->begun = true;
    }
    net_items_take(x, a, &events, to);
}

/* message_delta has the reason and the usage, message_stop ends the stream: clients wait for
 * both. */
static void write_end(net_exchange *x, text *to)
{
    const net_answer *a = &x->work.answers[0];
    begin_event("message_delta", to);
    text_print(to, ",\"delta\":{");
    write_stop(a, to);
    text_print(to, "},");
    write_usage(x, a->n_tokens, to);
    end_event(to);
    begin_event("message_stop", to);
    end_event(to);
}

/* ---- errors ---- */

/* Anthropic's names for the HTTP statuses of this server. */
static const char *type_of(int http)
{
    switch (http) {
    case 401:
        return "authentication_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return http < 500 ? "invalid_request_error" : "api_error";
    }
}

/* Anthropic's error object, whose type follows from the HTTP status. */
void net_messages_write_error(const net_exchange *x, text *to)
{
    text_print(to, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":",
               type_of(x->refusal.http));
    json_write_str(to, str_from(mpk_error_message(x->cx)));
    text_print(to, "},\"request_id\":");
    json_write_str(to, str_from(x->id));
    text_print(to, "}");
}

static void write_failure(net_exchange *x, text *to)
{
    text_print(to, "event: error\ndata: ");
    net_messages_write_error(x, to);
    text_print(to, "\n\n");
}

static const net_dialect dialect = {
    .id_prefix = "msg_",
    .is_chat = true,
    .write_document = write_document,
    .write_news = write_news,
    .write_end = write_end,
    .write_failure = write_failure,
    .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
};

/* ---- the handlers ---- */

/* POST /v1/messages. */
mpk_status net_messages_run(net_exchange *x, const char *path)
{
    net_request q;
    (void)path;
    TRY(net_messages_read(x, &q));
    return net_chat_answer(x, &q, &dialect);
}

/* POST /v1/messages/count_tokens: {"input_tokens": N}. */
mpk_status net_messages_count(net_exchange *x, const char *path)
{
    net_request q;
    size_t n;
    text reply = {0};
    (void)path;
    TRY(net_messages_read(x, &q));
    TRY(net_chat_count(x, &q, &n));
    text_print(&reply, "{\"input_tokens\":%zu}", n);
    return net_reply_json(x, &reply);
}
