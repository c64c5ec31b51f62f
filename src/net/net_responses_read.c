/* net_responses_read.c - the body of /v1/responses -> the body of a chat.
 *
 * Items become what chats have for them: messages; function_call, a call in the assistant's
 * message before it, or in a new one; function_call_output, a message of the role tool;
 * reasoning, that of the assistant's next message.  Nothing is stored: a request that names an
 * earlier response is refused.
 *
 *   {"type":"function_call","call_id":"c1","name":"f","arguments":"{}"}
 *   -> {"role":"assistant",..,"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{}"}}]}
 *
 * Called by net_responses.c; the rewritten body is read by net_request_chat.c (net_rewrite.h).
 */
#include "net/net_responses.h"
#include "net/net_rewrite.h"

/* The conversation so far.  is_open: a message of the assistant is being written and may get
 * calls. */
typedef struct conversation {
    net_exchange *x;
    net_rewrite *to;
    bool is_open;
} conversation;

/* The text of a member; empty if it is absent or not a text. */
static str word(const json_value *v, const char *key)
{
    const json_value *found = json_get(v, key);
    return json_is(found, JSON_KIND_STRING) ? found->text : (str){0};
}

#define REFUSE(x, field, ...) \
    return net_refuse((x)->cx, &(x)->refusal, 400, (field), NULL, __VA_ARGS__)

/* End the assistant's message that is being written, if there is one. */
static void close_message(conversation *c)
{
    if (c->is_open)
        net_rewrite_end(c->to);
    c->is_open = false;
}

/* Make sure that a message of the assistant is being written: reasoning, texts and calls that
 * follow each other are one message. */
static void open_assistant(conversation *c)
{
    if (!c->is_open)
        net_rewrite_begin(c->to, STR("assistant"));
    c->is_open = true;
}

/* Append a content's texts, with newlines between them. */
static mpk_status add_texts(net_exchange *x, const json_value *v, text *to)
{
    if (v && v->kind == JSON_KIND_STRING)
        text_add(to, v->text.at, v->text.n);
    else if (v && v->kind != JSON_KIND_LIST)
        REFUSE(x, "input", "'input' holds a content that is neither a text nor a list of parts");
    for (size_t i = 0; v && v->kind == JSON_KIND_LIST && i < v->n; i++) {
        const json_value *words = json_get(&v->items[i], "text");
        if (!json_is(words, JSON_KIND_STRING))
            REFUSE(x, "input", "'input' holds a part that is not text; the model reads only text");
        text_add(to, "\n", to->n > 0);
        text_add(to, words->text.at, words->text.n);
    }
    CHECK(x->cx, !to->failed, MPK_ENOMEM, "out of memory for a part of the request");
    return MPK_OK;
}

/* A text, or a list of parts with texts, as one text.  On failure *to is freed. */
static mpk_status join(net_exchange *x, const json_value *v, text *to)
{
    const mpk_status status = add_texts(x, v, to);
    if (status != MPK_OK)
        text_free(to);
    return status;
}

/* A message of any role; one of the assistant stays open for calls that follow. In this API the
 * calls of an answer are items after its message; chat templates want them inside of it. */
static mpk_status add_message(conversation *c, const json_value *item)
{
    const str role = word(item, "role");
    text words = {0};
    if (!role.n)
        REFUSE(c->x, "input", "'input' holds a message without a role");
    TRY(join(c->x, json_get(item, "content"), &words));
    if (str_is(role, "assistant"))
        open_assistant(c);
    else {
        close_message(c);
        net_rewrite_begin(c->to, role);
    }
    net_rewrite_text(c->to, text_str(&words));
    if (!str_is(role, "assistant"))
        net_rewrite_end(c->to);
    text_free(&words);
    return MPK_OK;
}

/* The result of a call ends the message with the call, since templates expect it after that. */
static mpk_status add_result(conversation *c, const json_value *item)
{
    text words = {0};
    TRY(join(c->x, json_get(item, "output"), &words));
    close_message(c);
    net_rewrite_result(c->to, word(item, "call_id"), text_str(&words));
    text_free(&words);
    return MPK_OK;
}

/* Reasoning: its content if there is any, otherwise its summary. */
static mpk_status add_reasoning(conversation *c, const json_value *item)
{
    const json_value *content = json_get(item, "content");
    text words = {0};
    TRY(join(c->x,
             json_is(content, JSON_KIND_LIST) && content->n ? content : json_get(item, "summary"),
             &words));
    if (words.n) {
        open_assistant(c);
        net_rewrite_reasoning(c->to, text_str(&words));
    }
    text_free(&words);
    return MPK_OK;
}

/* One item; without a type it is a message, as the API allows. */
static mpk_status add_item(conversation *c, const json_value *item)
{
    const str type = word(item, "type");
    if (!type.n || str_is(type, "message"))
        return add_message(c, item);
    if (str_is(type, "function_call")) {
        open_assistant(c);
        net_rewrite_call(c->to, word(item, "call_id"), word(item, "name"),
                         json_get(item, "arguments"));
        return MPK_OK;
    }
    if (str_is(type, "function_call_output"))
        return add_result(c, item);
    if (str_is(type, "reasoning"))
        return add_reasoning(c, item);
    REFUSE(c->x, "input", "'input' holds an item of the type '%.*s', which is not supported",
           STR_SHOWN(type, 64));
}

static void add_words(conversation *c, str role, str words)
{
    net_rewrite_begin(c->to, role);
    net_rewrite_text(c->to, words);
    net_rewrite_end(c->to);
}

/* `instructions` is a system message in front; a plain text is one message of the user. */
static mpk_status write_input(net_exchange *x, const json_value *body, net_rewrite *to)
{
    const json_value *input = json_get(body, "input"),
                     *instructions = json_get(body, "instructions");
    conversation c = {.x = x, .to = to};
    if (instructions && instructions->kind != JSON_KIND_STRING)
        REFUSE(x, "instructions", "'instructions' must be a string");
    if (instructions)
        add_words(&c, STR("system"), instructions->text);
    if (json_is(input, JSON_KIND_STRING)) {
        add_words(&c, STR("user"), input->text);
        return MPK_OK;
    }
    if (!json_is(input, JSON_KIND_LIST) || !input->n)
        REFUSE(x, "input", "'input' is missing, or is neither a text nor a list of items");
    for (size_t i = 0; i < input->n; i++)
        TRY(add_item(&c, &input->items[i]));
    close_message(&c);
    return MPK_OK;
}

/* Only functions.  Their members are in the tool itself, where chats have an object `function`. */
static mpk_status write_tools(net_exchange *x, const json_value *body, net_rewrite *to)
{
    const json_value *tools = json_get(body, "tools");
    if (tools && tools->kind != JSON_KIND_LIST)
        REFUSE(x, "tools", "'tools' must be a list");
    for (size_t i = 0; tools && i < tools->n; i++) {
        const json_value *tool = &tools->items[i];
        const str type = word(tool, "type");
        if (!str_is(type, "function") || !word(tool, "name").n)
            REFUSE(x, "tools",
                   "'tools': item %zu has the type '%.*s'; the server knows functions, with a name",
                   i, STR_SHOWN(type, 64));
        net_rewrite_tool(to, word(tool, "name"), tool, json_get(tool, "parameters"));
    }
    return MPK_OK;
}

/* Only "disabled": a conversation that is too long is refused elsewhere, never cut. */
static mpk_status check_truncation(net_exchange *x, const json_value *body)
{
    if (json_get(body, "truncation") && !str_is(word(body, "truncation"), "disabled"))
        REFUSE(x, "truncation", "'truncation' other than \"disabled\" is not supported");
    return MPK_OK;
}

/* Of what may be included, log probabilities are the part that an answer here could have. */
static mpk_status check_include(net_exchange *x, const json_value *body)
{
    const json_value *include = json_get(body, "include");
    for (size_t i = 0; json_is(include, JSON_KIND_LIST) && i < include->n; i++)
        if (json_is(&include->items[i], JSON_KIND_STRING) &&
            str_is(include->items[i].text, "message.output_text.logprobs"))
            REFUSE(x, "include",
                   "'include' of log probabilities is not supported: chats and completions have "
                   "them");
    return MPK_OK;
}

/* Parameters of the same meaning keep their names; renamed ones are noted for refusals. */
static mpk_status rewrite(net_exchange *x, const json_value *body, net_rewrite *to)
{
    static const char *const also[] = {"stop", "parallel_tool_calls", "chat_template_kwargs"};
    const json_value *choice = json_get(body, "tool_choice");
    TRY(check_truncation(x, body));
    TRY(check_include(x, body));
    TRY(write_input(x, body, to));
    TRY(write_tools(x, body, to));
    net_rewrite_lists(to);
    net_rewrite_same(to, body);
    for (size_t i = 0; i < sizeof also / sizeof *also; i++)
        net_rewrite_value(to, also[i], json_get(body, also[i]));
    const json_value *most = json_get(body, "max_output_tokens");
    net_rewrite_renamed(to, "max_tokens", "max_output_tokens", most);
    net_rewrite_renamed(to, "response_format", "text", json_get(json_get(body, "text"), "format"));
    net_rewrite_renamed(to, "reasoning_effort", "reasoning",
                        json_get(json_get(body, "reasoning"), "effort"));
    if (json_is(choice, JSON_KIND_OBJECT))
        net_rewrite_choice(to, word(choice, "name"));
    else
        net_rewrite_value(to, "tool_choice", choice);
    return MPK_OK;
}

/* ---- members that the reply repeats ---- */

/* A member that the reply repeats: as it came, or the API's default. */
static void echo(const json_value *body, const char *name, const char *otherwise, text *to)
{
    const json_value *v = json_get(body, name);
    text_print(to, ",\"%s\":", name);
    if (v)
        json_write(to, v, 0);
    else
        text_print(to, "%s", otherwise);
}

/* Keep all of them as text in the work, which outlives the body.  Temperature and top_p are those
 * used: the model's makers may suggest others than 1. The body is freed before the end of the
 * answer writes them (net_exchange_drop_body). Each member has the value that stands for "not
 * given" in OpenAI's API. */
static mpk_status keep_echo(net_exchange *x, const json_value *body, const net_request *q)
{
    static const char *const members[][2] = {
        {"instructions", "null"},
        {"max_output_tokens", "null"},
        {"metadata", "{}"},
        {"tool_choice", "\"auto\""},
        {"tools", "[]"},
        {"parallel_tool_calls", "true"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"},
        {"user", "null"},
        {"text", "{\"format\":{\"type\":\"text\"}}"},
        {"service_tier", "\"default\""},
    };
    text t = {0};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        echo(body, members[i][0], members[i][1], &t);
    text_print(&t, ",\"temperature\":");
    text_add_double(&t, q->sampling.temperature);
    text_print(&t, ",\"top_p\":");
    text_add_double(&t, q->sampling.top_p > 0 ? q->sampling.top_p : 1);
    const mpk_status status = net_exchange_keep(x, t.n);
    if (status == MPK_OK && !t.failed)
        x->work.echo = arena_copy(&x->work.arena, t.at, t.n);
    text_free(&t);
    TRY(status);
    CHECK(x->cx, x->work.echo, MPK_ENOMEM, "out of memory for a response");
    return MPK_OK;
}

/* As net_messages_read: rewritten to a body of chat completions, and read as one. */
mpk_status net_responses_read(net_exchange *x, net_request *out)
{
    const json_value *body;
    net_rewrite to = {0};
    TRY(net_completion_open(x, &body));
    TRY(net_rewrite_check(x, body, NET_FOR_RESPONSES));
    mpk_status status = rewrite(x, body, &to);
    if (status == MPK_OK)
        status = net_rewrite_read(x, &to, out);
    net_rewrite_free(&to);
    return status == MPK_OK ? keep_echo(x, body, out) : status;
}
