/* net_responses.c - /v1/responses: OpenAI's API of items.
 *
 * A request is rewritten as a chat (net_responses_read.c) and answered as one; the answer is
 * written as output items, in a document or in the events of a stream:
 *
 *   response.created, response.in_progress, then for each item response.output_item.added, deltas,
 *   response.output_item.done, then response.completed or response.incomplete
 */
#include "net/net_items.h"
#include "net/net_responses.h"

/* ---- items ---- */

/* The id of item `index`: a prefix by its kind, the response's own digits, and the index. */
static void write_id(const net_exchange *x, net_item_kind kind, uint32_t index, text *to)
{
    static const char *const prefixes[] = {
        [NET_ITEM_REASONING] = "rs", [NET_ITEM_TEXT] = "msg", [NET_ITEM_CALL] = "fc"};
    text_print(to, "\"%s%s_%u\"", prefixes[kind], strchr(x->work.id, '_'), index);
}

/* The content of an item: one part with all of its text. */
static void write_part(net_item_kind kind, str words, text *to)
{
    text_print(to, kind == NET_ITEM_REASONING
                       ? "{\"type\":\"reasoning_text\",\"text\":"
                       : "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
    json_write_str(to, words);
    text_print(to, "}");
}

/* A call has two ids: call_id, which its result refers to, and that of the item. */
static void write_call(const net_exchange *x, const net_answer *a, uint32_t index, bool done,
                       text *to)
{
    const net_call *call = &a->parts.calls.at[net_items_at(a, index)->call];
    text_print(to, "{\"type\":\"function_call\",\"id\":");
    write_id(x, NET_ITEM_CALL, index, to);
    text_print(to, ",\"call_id\":\"%s\",\"status\":\"%s\",\"name\":", call->id,
               done ? "completed" : "in_progress");
    json_write_str(to, call->name);
    text_print(to, ",\"arguments\":");
    json_write_str(to, done ? call->arguments : STR(""));
    text_print(to, "}");
}

/* An item; if it is not done, it is announced empty. */
static void write_item(const net_exchange *x, const net_answer *a, uint32_t index, bool done,
                       text *to)
{
    const net_item *item = net_items_at(a, index);
    if (item->kind == NET_ITEM_CALL) {
        write_call(x, a, index, done, to);
        return;
    }
    const bool cut = a->finish == MPK_FINISH_LENGTH && index + 1 == net_items_count(a);
    const char *status = cut ? "incomplete" : "completed";
    text_print(to, item->kind == NET_ITEM_REASONING
                       ? "{\"type\":\"reasoning\",\"summary\":[],\"id\":"
                       : "{\"type\":\"message\",\"role\":\"assistant\",\"id\":");
    write_id(x, item->kind, index, to);
    text_print(to, ",\"status\":\"%s\",\"content\":[", done ? status : "in_progress");
    if (done)
        write_part(item->kind, net_items_text(a, item), to);
    text_print(to, "]}");
}

/* ---- the response ---- */

/* An answer that was cut off by the token limit is incomplete. */
static const char *status_of(const net_answer *a)
{
    if (a->request)
        return "in_progress";
    return a->finish == MPK_FINISH_LENGTH ? "incomplete" : "completed";
}

/* reasoning_tokens is 0: tokens are not counted by parts of the answer. */
static void write_usage(const net_exchange *x, const net_answer *a, text *to)
{
    text_print(to,
               "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%zu},\"output_"
               "tokens\":%zu,"
               "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%zu}",
               x->work.n_prompt_tokens, x->work.n_cached, a->n_tokens,
               x->work.n_prompt_tokens + a->n_tokens);
}

/* The response object.  error: an object as JSON, or "null".  Its output is filled after the end
 * only. It is in three events (created, in_progress, and the end) and is the document. What the
 * request said is repeated in it, from x->work.echo. */
static void write_response(const net_exchange *x, const char *status, const char *error, text *to)
{
    const net_answer *a = &x->work.answers[0];
    /* the first events come before the end, though it may be known already */
    const bool over = !a->request && strcmp(status, "in_progress") != 0,
               cut = over && a->finish == MPK_FINISH_LENGTH;
    text_print(
        to,
        "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"error\":%s",
        x->work.id, (long long)x->work.created, status, error);
    text_print(to, ",\"incomplete_details\":%s,\"model\":",
               cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    json_write_str(to, str_from(x->server->options.model_name));
    text_print(to, ",\"output\":[");
    /* a running answer shows no items: its events carry them */
    for (uint32_t i = 0; over && i < net_items_count(a); i++) {
        text_add(to, ",", i > 0);
        write_item(x, a, i, true, to);
    }
    text_print(to,
               "],\"previous_response_id\":null,\"store\":false,\"background\":false,"
               "\"truncation\":\"disabled\"%s",
               x->work.echo);
    text_print(to, ",\"usage\":");
    if (over)
        write_usage(x, a, to);
    else
        text_print(to, "null");
    text_print(to, "}");
}

static void write_document(net_exchange *x, text *to)
{
    net_answer *a = &x->work.answers[0];
    net_items_take(x, a, NULL, to);
    write_response(x, status_of(a), "null", to);
}

/* ---- a stream ---- */

/* Begin an event; events are numbered within the response, from 0. */
static void begin_event(net_answer *a, const char *type, text *to)
{
    text_print(to, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%u", type, type,
               a->n_events++);
}

static void end_event(text *to)
{
    text_print(to, "}\n\n");
}

/* Begin an event about an item, up to its own members. */
static void begin_item_event(net_exchange *x, net_answer *a, const char *type, uint32_t index,
                             text *to)
{
    begin_event(a, type, to);
    text_print(to, ",\"output_index\":%u,\"item_id\":", index);
    write_id(x, net_items_at(a, index)->kind, index, to);
    if (net_items_at(a, index)->kind != NET_ITEM_CALL)
        text_print(to, ",\"content_index\":0");
}

/* An event with a whole item, at its begin or its end. */
static void write_item_event(net_exchange *x, net_answer *a, const char *type, uint32_t index,
                             bool done, text *to)
{
    begin_event(a, type, to);
    text_print(to, ",\"output_index\":%u,\"item\":", index);
    write_item(x, a, index, done, to);
    end_event(to);
}

/* An event with the part of a text item. */
static void write_part_event(net_exchange *x, net_answer *a, const char *type, uint32_t index,
                             str words, text *to)
{
    begin_item_event(x, a, type, index, to);
    text_print(to, ",\"part\":");
    write_part(net_items_at(a, index)->kind, words, to);
    end_event(to);
}

/* The begin of an item: announced empty, and a text with an empty part. */
static void begin_item(net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    write_item_event(x, a, "response.output_item.added", index, false, to);
    if (net_items_at(a, index)->kind != NET_ITEM_CALL)
        write_part_event(x, a, "response.content_part.added", index, STR(""), to);
}

/* One event for each piece of an item; its type tells the kind. */
static void add_to_item(net_exchange *x, net_answer *a, uint32_t index, str piece, text *to)
{
    static const char *const types[] = {[NET_ITEM_REASONING] = "response.reasoning_text.delta",
                                        [NET_ITEM_TEXT] = "response.output_text.delta",
                                        [NET_ITEM_CALL] = "response.function_call_arguments.delta"};
    const net_item_kind kind = net_items_at(a, index)->kind;
    begin_item_event(x, a, types[kind], index, to);
    text_print(to, kind == NET_ITEM_TEXT ? ",\"logprobs\":[],\"delta\":" : ",\"delta\":");
    json_write_str(to, piece);
    end_event(to);
}

/* The end of an item: the whole text again, then the part, then the item, since clients may rely
 * on any of them. */
static void end_item(net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    static const char *const types[] = {[NET_ITEM_REASONING] = "response.reasoning_text.done",
                                        [NET_ITEM_TEXT] = "response.output_text.done",
                                        [NET_ITEM_CALL] = "response.function_call_arguments.done"};
    const net_item *item = net_items_at(a, index);
    const str words = net_items_text(a, item);
    begin_item_event(x, a, types[item->kind], index, to);
    if (item->kind == NET_ITEM_CALL) {
        text_print(to, ",\"name\":");
        json_write_str(to, a->parts.calls.at[item->call].name);
        text_print(to, ",\"arguments\":");
    } else
        text_print(to, item->kind == NET_ITEM_TEXT ? ",\"logprobs\":[],\"text\":" : ",\"text\":");
    json_write_str(to, words);
    end_event(to);
    if (item->kind != NET_ITEM_CALL)
        write_part_event(x, a, "response.content_part.done", index, words, to);
    write_item_event(x, a, "response.output_item.done", index, true, to);
}

static const net_item_events events = {begin_item, add_to_item, end_item};

/* status: "in_progress", "completed", "incomplete" or "failed". */
static void write_response_event(net_exchange *x, const char *type, const char *status,
                                 const char *error, text *to)
{
    begin_event(&x->work.answers[0], type, to);
    text_print(to, ",\"response\":");
    write_response(x, status, error, to);
    end_event(to);
}

/* The two events that precede the first item are sent at the first call. */
static void write_news(net_exchange *x, net_answer *a, uint32_t index, text *to)
{
    (void)index;
    if (!a->begun) {
        write_response_event(x, "response.created", "in_progress", "null", to);
        write_response_event(x, "response.in_progress", "in_progress", "null", to);
        a->begun = true;
    }
    net_items_take(x, a, &events, to);
}

/* An answer that reached its limit is "incomplete", which clients treat as a result. */
static void write_end(net_exchange *x, text *to)
{
    const net_answer *a = &x->work.answers[0];
    const bool cut = a->finish == MPK_FINISH_LENGTH;
    write_response_event(x, cut ? "response.incomplete" : "response.completed", status_of(a),
                         "null", to);
}

/* A stream has begun with 200, so a failure can only be an event. */
static void write_failure(net_exchange *x, text *to)
{
    text error = {0};
    text_print(&error, "{\"code\":\"server_error\",\"message\":");
    json_write_str(&error, str_from(mpk_error_message(x->cx)));
    text_print(&error, "}");
    to->failed |= error.failed;
    if (!error.failed)
        write_response_event(x, "response.failed", "failed", error.at, to);
    text_free(&error);
}

static const net_dialect dialect = {
    .id_prefix = "resp_",
    .is_chat = true,
    .write_document = write_document,
    .write_news = write_news,
    .write_end = write_end,
    .write_failure = write_failure,
    .ping = ": still at work\n\n",
};

/* POST /v1/responses. */
mpk_status net_responses_run(net_exchange *x, const char *path)
{
    net_request q;
    (void)path;
    TRY(net_responses_read(x, &q));
    return net_chat_answer(x, &q, &dialect);
}

/* POST /v1/responses/input_tokens: the tokens of such a request's prompt. */
mpk_status net_responses_count(net_exchange *x, const char *path)
{
    net_request q;
    size_t n;
    text reply = {0};
    (void)path;
    TRY(net_responses_read(x, &q));
    TRY(net_chat_count(x, &q, &n));
    text_print(&reply, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}", n);
    return net_reply_json(x, &reply);
}
