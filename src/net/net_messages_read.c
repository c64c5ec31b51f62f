/* net_messages_read.c - the body of /v1/messages -> the body of a chat.
 *
 * Blocks of a content become what chats have for them: text; tool_use, a call in the assistant's
 * message; tool_result, a message of the role tool; thinking, the message's reasoning.  A last
 * message of the assistant is one to be continued.
 *
 *   {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"4"}]}
 *   -> {"role":"tool","tool_call_id":"t1","content":"4"}
 *
 * Called by net_messages.c; the rewritten body is read by net_request.c (net_rewrite.h).
 */
#include "net/net_messages.h"
#include "net/net_rewrite.h"

/* The text of a member; empty if it is absent or not a text. */
static str word(const json_value *v, const char *key)
{
    const json_value *found = json_get(v, key);
    return json_is(found, JSON_KIND_STRING) ? found->text : (str){0};
}

/* 400 for images, documents and the like; of the type only as much is shown as fits a message. */
static mpk_status refuse_block(net_exchange *x, const char *field, str type)
{
    return net_refuse(
        x->cx, &x->refusal, 400, field, NULL,
        "'%s' holds a block of the type '%.*s', which is not supported: the model reads only text",
        field, STR_SHOWN(type, 64));
}

/* A text, or a list of text blocks, appended as one text with newlines between the blocks. Images
 * and other blocks are refused by their type: dropping one would change what was asked. */
static mpk_status join(net_exchange *x, const char *field, const json_value *v, text *to)
{
    if (!v)
        return MPK_OK;
    if (v->kind == JSON_KIND_STRING)
        text_add(to, v->text.at, v->text.n);
    else if (v->kind != JSON_KIND_LIST)
        return net_refuse(x->cx, &x->refusal, 400, field, NULL,
                          "'%s' is neither a text nor a list of blocks", field);
    for (size_t i = 0; v->kind == JSON_KIND_LIST && i < v->n; i++) {
        const json_value *words = json_get(&v->items[i], "text");
        if (!json_is(words, JSON_KIND_STRING))
            return refuse_block(x, field, word(&v->items[i], "type"));
        text_add(to, "\n", i > 0);
        text_add(to, words->text.at, words->text.n);
    }
    CHECK(x->cx, !to->failed, MPK_ENOMEM, "out of memory for a part of the request");
    return MPK_OK;
}

/* The result of a call as a message of the role tool; that of a failed call begins with "Error:
 * ". */
static mpk_status write_result(net_exchange *x, const json_value *block, net_rewrite *to)
{
    const json_value *failed = json_get(block, "is_error");
    text words = {0};
    if (json_is(failed, JSON_KIND_BOOL) && failed->boolean)
        text_print(&words, "Error: ");
    mpk_status status = join(x, "messages", json_get(block, "content"), &words);
    if (status == MPK_OK)
        net_rewrite_result(to, word(block, "tool_use_id"), text_str(&words));
    text_free(&words);
    return status;
}

/* One block of the message under construction.  Results were written before the message;
 * redacted reasoning is skipped, since this model cannot read it. */
static mpk_status write_block(net_exchange *x, const json_value *block, net_rewrite *to)
{
    const str type = word(block, "type");
    if (str_is(type, "text"))
        net_rewrite_text(to, word(block, "text"));
    else if (str_is(type, "thinking"))
        net_rewrite_reasoning(to, word(block, "thinking"));
    else if (str_is(type, "tool_use"))
        net_rewrite_call(to, word(block, "id"), word(block, "name"), json_get(block, "input"));
    else if (!str_is(type, "redacted_thinking") && !str_is(type, "tool_result"))
        return refuse_block(x, "messages", type);
    return MPK_OK;
}

/* One message.  The results in it come first, as messages of their own, then what the user says
 * about them. Anthropic puts results of tools into a user's message; chat templates want messages
 * of the role "tool". {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", ..},
 * {"type": "text", ..}]} becomes a message of the tool for call a, then one of the user. */
static mpk_status write_message(net_exchange *x, const json_value *message, net_rewrite *to)
{
    const json_value *content = json_get(message, "content");
    const str role = word(message, "role");
    if (!str_is(role, "user") && !str_is(role, "assistant") && !str_is(role, "system"))
        return net_refuse(
            x->cx, &x->refusal, 400, "messages", NULL,
            "'messages' holds a message whose role is neither 'user' nor 'assistant'");
    if (!json_is(content, JSON_KIND_LIST)) {
        if (!json_is(content, JSON_KIND_STRING))
            return net_refuse(
                x->cx, &x->refusal, 400, "messages", NULL,
                "'messages' holds a content that is neither a text nor a list of blocks");
        net_rewrite_begin(to, role);
        net_rewrite_text(to, content->text);
        net_rewrite_end(to);
        return MPK_OK;
    }
    size_t n_results = 0;
    for (size_t i = 0; i < content->n; i++)
        if (str_is(word(&content->items[i], "type"), "tool_result")) {
            TRY(write_result(x, &content->items[i], to));
            n_results++;
        }
    /* nothing but results: an empty message after them would be a turn of its own */
    if (n_results == content->n && n_results)
        return MPK_OK;
    net_rewrite_begin(to, role);
    for (size_t i = 0; i < content->n; i++)
        TRY(write_block(x, &content->items[i], to));
    net_rewrite_end(to);
    return MPK_OK;
}

/* All messages.  The system prompt, which Anthropic has beside the messages, becomes the first
 * of them. */
static mpk_status write_messages(net_exchange *x, const json_value *body, net_rewrite *to)
{
    const json_value *messages = json_get(body, "messages"), *system = json_get(body, "system");
    text words = {0};
    if (!json_is(messages, JSON_KIND_LIST) || !messages->n)
        return net_refuse(x->cx, &x->refusal, 400, "messages", NULL,
                          "'messages' must be a list of at least one message");
    mpk_status status = join(x, "system", system, &words);
    if (status == MPK_OK && words.n) {
        net_rewrite_begin(to, STR("system"));
        net_rewrite_text(to, text_str(&words));
        net_rewrite_end(to);
    }
    text_free(&words);
    TRY(status);
    for (size_t i = 0; i < messages->n; i++)
        TRY(write_message(x, &messages->items[i], to));
    return MPK_OK;
}

/* The client's tools.  Anthropic's own (types such as web_search) run on its servers and are
 * refused. */
static mpk_status write_tools(net_exchange *x, const json_value *body, net_rewrite *to)
{
    const json_value *tools = json_get(body, "tools");
    if (tools && tools->kind != JSON_KIND_LIST)
        return net_refuse(x->cx, &x->refusal, 400, "tools", NULL, "'tools' must be a list");
    for (size_t i = 0; tools && i < tools->n; i++) {
        const json_value *tool = &tools->items[i];
        const str type = word(tool, "type");
        if (!word(tool, "name").n || (type.n && !str_is(type, "custom")))
            return net_refuse(x->cx, &x->refusal, 400, "tools", NULL,
                              "'tools': item %zu is not a tool of the client's own, with 'name' "
                              "and 'input_schema'",
                              i);
        net_rewrite_tool(to, word(tool, "name"), tool, json_get(tool, "input_schema"));
    }
    return MPK_OK;
}

/* tool_choice: "auto" and "none" are the same words in chats; "any" is "required" there. */
static void write_choice(const json_value *body, net_rewrite *to)
{
    const json_value *choice = json_get(body, "tool_choice"),
                     *alone = json_get(choice, "disable_parallel_tool_use");
    const str type = word(choice, "type");
    if (!choice)
        return;
    if (str_is(type, "tool"))
        net_rewrite_choice(to, word(choice, "name"));
    else
        net_rewrite_word(to, "tool_choice", str_is(type, "any") ? STR("required") : type);
    if (json_is(alone, JSON_KIND_BOOL) && alone->boolean)
        net_rewrite_raw(to, "parallel_tool_calls", "false");
}

/* Whether the model reasons, as a variable of the template; a budget of tokens for it is
 * ignored. */
static void write_thinking(const json_value *body, net_rewrite *to)
{
    const json_value *given = json_get(body, "chat_template_kwargs");
    const str type = word(json_get(body, "thinking"), "type");
    if (given)
        net_rewrite_value(to, "chat_template_kwargs", given);
    else if (type.n)
        net_rewrite_raw(to, "chat_template_kwargs",
                        str_is(type, "disabled") ? "{\"enable_thinking\":false}"
                                                 : "{\"enable_thinking\":true}");
}

/* Has the assistant begun its answer?  Its message is the last one, and holds no call. */
static bool is_begun(const json_value *body)
{
    const json_value *messages = json_get(body, "messages");
    const json_value *end =
        json_is(messages, JSON_KIND_LIST) && messages->n ? &messages->items[messages->n - 1] : NULL;
    const json_value *content = json_get(end, "content");
    if (!str_is(word(end, "role"), "assistant"))
        return false;
    for (size_t i = 0; json_is(content, JSON_KIND_LIST) && i < content->n; i++)
        if (str_is(word(&content->items[i], "type"), "tool_use"))
            return false;
    return true;
}

/* What the template shows of earlier thinking is its affair; results of tools are never cleared. */
static mpk_status check_context(net_exchange *x, const json_value *body)
{
    static const char thinking[] = "clear_thinking";
    const size_t n = sizeof thinking - 1;
    const json_value *edits = json_get(json_get(body, "context_management"), "edits");
    for (size_t i = 0; json_is(edits, JSON_KIND_LIST) && i < edits->n; i++) {
        const str type = word(&edits->items[i], "type");
        if (type.n < n || memcmp(type.at, thinking, n) != 0)
            return net_refuse(x->cx, &x->refusal, 400, "context_management", NULL,
                              "'context_management' other than of thinking is not supported: the "
                              "model gets the whole conversation");
    }
    return MPK_OK;
}

/* Rewrite the whole body.  Parameters of the same meaning keep their names; renamed ones are noted,
 * so that a refusal shows the name that the client sent. output_format is the older name of
 * output_config.format and counts only without it. */
static mpk_status rewrite(net_exchange *x, const json_value *body, net_rewrite *to)
{
    const json_value *format = json_get(json_get(body, "output_config"), "format"),
                     *old_format = json_get(body, "output_format");
    TRY(check_context(x, body));
    TRY(write_messages(x, body, to));
    TRY(write_tools(x, body, to));
    net_rewrite_lists(to);
    net_rewrite_same(to, body);
    net_rewrite_value(to, "max_tokens", json_get(body, "max_tokens"));
    net_rewrite_renamed(to, "stop", "stop_sequences", json_get(body, "stop_sequences"));
    if (format)
        net_rewrite_renamed(to, "response_format", "output_config", format);
    else
        net_rewrite_renamed(to, "response_format", "output_format", old_format);
    write_choice(body, to);
    write_thinking(body, to);
    if (is_begun(body))
        net_rewrite_raw(to, "continue_final_message", "true");
    return MPK_OK;
}

/* The body becomes one of chat completions and is read as such, so everything that a chat can do
 * works here alike, and is checked in one place. */
mpk_status net_messages_read(net_exchange *x, net_request *out)
{
    const json_value *body;
    net_rewrite to = {0};
    TRY(net_completion_open(x, &body));
    TRY(net_rewrite_check(x, body, NET_FOR_MESSAGES));
    mpk_status status = rewrite(x, body, &to);
    if (status == MPK_OK)
        status = net_rewrite_read(x, &to, out);
    net_rewrite_free(&to);
    return status;
}
