/* net_request_chat.c - the JSON of a chat -> a checked request: messages and tools, rewritten as
 * chat templates expect them, and the template's variables.  What a chat shares with a
 * completion is read by net_request.c.
 *
 *   {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}
 *   -> {"role":"user","content":"a\nb"}
 *
 * Called by net_chat.c, and for requests of other APIs by net_rewrite.c, which has written them
 * as chats.
 */
#include "net/net_reader.h"

/* Content that is a list of parts becomes one text, as templates of models that read only text
 * expect. [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}] -> "a\nb". */
static mpk_status write_parts(net_reader *r, const json_value *parts, text *to)
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

/* OpenAI has a call's arguments as JSON within a text; chat templates expect the object. */
static void write_arguments(net_reader *r, const json_value *v, text *to)
{
    const json_value *object;
    if (v->kind != JSON_KIND_STRING)
        json_write(to, v, 0);
    else if (!v->text.n)
        text_print(to, "{}");
    else if (json_parse_any_number(r->cx, r->a, v->text, &object) == MPK_OK &&
             object->kind == JSON_KIND_OBJECT)
        json_write(to, object, 0);
    else
        json_write_str(to, v->text);
}

/* Comma, name and colon of member i of an object. */
static void write_member_name(const json_value *member, size_t i, text *to)
{
    text_add(to, ",", i > 0);
    json_write_str(to, member->key);
    text_add(to, ":", 1);
}

/* A call's function: its members as they are, except the arguments. */
static void write_function(net_reader *r, const json_value *f, text *to)
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

/* A call: its members as they are, except the function. */
static void write_call(net_reader *r, const json_value *call, text *to)
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

/* The calls of an assistant's message, as templates take them: `arguments` as an object. */
static mpk_status write_calls(net_reader *r, const json_value *calls, text *to)
{
    if (calls->kind != JSON_KIND_LIST)
        REFUSE(r, "messages", "'messages': 'tool_calls' must be a list");
    text_add(to, "[", 1);
    for (size_t i = 0; i < calls->n; i++) {
        if (calls->items[i].kind != JSON_KIND_OBJECT)
            REFUSE(r, "messages", "'messages': 'tool_calls' must hold objects");
        text_add(to, ",", i > 0);
        write_call(r, &calls->items[i], to);
    }
    text_add(to, "]", 1);
    return MPK_OK;
}

/* Content as one text.  In a message that the answer is to continue, a mark stands at its end,
 * inside the quotes; net_chat.c cuts the prompt there. */
static mpk_status write_content(net_reader *r, const json_value *v, bool is_continued, text *to)
{
    /* it is null in a message that only calls tools; templates concatenate the content, so it
     * becomes "" */
    if (!v || v->kind == JSON_KIND_NULL)
        text_print(to, "\"\"");
    else if (v->kind == JSON_KIND_LIST)
        TRY(write_parts(r, v, to));
    else
        json_write(to, v, 0);
    if (is_continued && !to->failed) {
        to->n--; /* the closing quote */
        text_print(to, "%s\"", NET_CONTINUED);
    }
    return MPK_OK;
}

/* Add `reasoning`, vLLM's name and that of our replies, as `reasoning_content`, the name that
 * templates know. */
static void add_reasoning(const json_value *message, text *to)
{
    const json_value *reasoning = json_get(message, "reasoning");
    if (!json_is(reasoning, JSON_KIND_STRING) || json_get(message, "reasoning_content"))
        return;
    text_print(to, ",\"reasoning_content\":");
    json_write(to, reasoning, 0);
}

/* A message for the template.  It always has `content`, since templates concatenate it without
 * checking. */
static mpk_status write_message(net_reader *r, const json_value *message, bool is_continued,
                                text *to)
{
    bool has_content = false;
    text_add(to, "{", 1);
    for (size_t i = 0; i < message->n; i++) {
        const json_value *v = &message->items[i];
        write_member_name(v, i, to);
        /* OpenAI's newer name for "system"; templates know the older one */
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
    add_reasoning(message, to);
    text_add(to, "}", 1);
    return MPK_OK;
}

/* What the code after this relies on: a role, and a content that is a text or a list. */
static mpk_status check_message(net_reader *r, const json_value *message, size_t i)
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

/* All messages as JSON text, the input of mpk_chat_prompt. */
static mpk_status write_messages(net_reader *r, const json_value *messages, text *to)
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

/* Messages are written again as JSON text, in the form that templates take: the template's
 * interpreter reads it, not this tree. */
static mpk_status read_messages(net_reader *r)
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

/* The name of a tool's function; NULL if any of it is missing. */
static const json_value *function_name(const json_value *tool)
{
    return json_get(json_get(tool, "function"), "name");
}

/* tool_choice with a name: the tool of that name must be called. */
static mpk_status read_named(net_reader *r, const json_value *name, const json_value *tools)
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

/* tool_choice.  *wanted false: the tools are left out. */
static mpk_status read_choice(net_reader *r, const json_value *tools, bool *wanted)
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

/* Only functions: other kinds of tools (searches, interpreters) would have to run on this
 * server. */
static mpk_status check_tools(net_reader *r, const json_value *tools)
{
    if (tools->kind != JSON_KIND_LIST)
        REFUSE(r, "tools", "'tools' must be a list");
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

/* Tools go to the template unchanged; calls that must come are held by a grammar (net_calls.c). */
static mpk_status read_tools(net_reader *r)
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
    return net_read_json(r, tools, &r->out->tools);
}

/* Add a variable for the template, unless chat_template_kwargs has it. */
static void add_variable(const json_value *given, const char *name, const json_value *v, text *to)
{
    if (!v || json_get(given, name))
        return;
    text_print(to, "%s\"%s\":", to->n > 1 ? "," : "", name);
    json_write(to, v, 0);
}

/* The template's variables: those that the client gave for it directly come first and are not
 * overridden. */
static void write_variables(net_reader *r, const json_value *given, const json_value *effort,
                            text *to)
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

/* What the template sees besides messages and tools. reasoning_effort and documents are members of
 * the request in OpenAI's and vLLM's APIs, and variables for templates. */
static mpk_status read_variables(net_reader *r)
{
    const json_value *v = json_get(r->body, "chat_template_kwargs"),
                     *effort = json_get(r->body, "reasoning_effort");
    const json_value *documents = json_get(r->body, "documents");
    if (v && v->kind != JSON_KIND_OBJECT)
        REFUSE(r, "chat_template_kwargs", "'chat_template_kwargs' must be an object");
    if (effort && effort->kind != JSON_KIND_STRING)
        REFUSE(r, "reasoning_effort", "'reasoning_effort' must be a string");
    if (documents && documents->kind != JSON_KIND_LIST)
        REFUSE(r, "documents", "'documents' must be a list");
    if (!v && !effort && !documents)
        return MPK_OK;
    text t = {0};
    write_variables(r, v, effort, &t);
    r->out->variables = t.failed ? NULL : arena_copy(r->a, t.at, t.n);
    text_free(&t);
    CHECK(r->cx, r->out->variables, MPK_ENOMEM, "out of memory for the template's variables");
    return MPK_OK;
}

/* Where the prompt ends: where the answer begins, after the last message, or within it. */
static mpk_status read_end(net_reader *r)
{
    TRY(net_read_flag(r, "continue_final_message", &r->out->continues));
    bool answer = !r->out->continues;
    TRY(net_read_flag(r, "add_generation_prompt", &answer));
    if (r->out->continues && answer)
        REFUSE(r, "continue_final_message",
               "'continue_final_message' goes on with the last message, 'add_generation_prompt' "
               "begins another: "
               "give one of them");
    r->out->no_answer = !answer;
    return MPK_OK;
}

/* Which parts of the answer the reply shows. What cannot be changed here is refused when it is
 * asked for, not ignored. */
static mpk_status read_shown(net_reader *r)
{
    const json_value *format = json_get(r->body, "reasoning_format"),
                     *kinds = json_get(r->body, "modalities");
    bool apart = true, shown = true, many = true;
    TRY(net_read_flag(r, "separate_reasoning", &apart));
    TRY(net_read_flag(r, "include_reasoning", &shown));
    TRY(net_read_flag(r, "parallel_tool_calls", &many));
    if (!apart)
        REFUSE(r, "separate_reasoning",
               "'separate_reasoning' false is not supported: reasoning stands apart");
    if (format && !(format->kind == JSON_KIND_STRING &&
                    (str_is(format->text, "auto") || str_is(format->text, "deepseek"))))
        REFUSE(r, "reasoning_format",
               "'reasoning_format' other than \"auto\" and \"deepseek\" is not supported");
    if (kinds && kinds->kind != JSON_KIND_LIST)
        REFUSE(r, "modalities", "'modalities' must be a list");
    for (size_t i = 0; kinds && i < kinds->n; i++)
        if (kinds->items[i].kind != JSON_KIND_STRING || !str_is(kinds->items[i].text, "text"))
            REFUSE(r, "modalities",
                   "'modalities' other than [\"text\"] is not supported: answers are text");
    r->out->hide_reasoning = !shown;
    r->out->one_call = !many;
    return MPK_OK;
}

/* max_completion_tokens, OpenAI's newer name of max_tokens, is read last and wins. */
mpk_status net_request_read_chat(mpk_context *cx, arena *a, const json_value *body,
                                 const mpk_request_options *suggested, net_request *out,
                                 net_refusal *why)
{
    net_reader r = {cx, a, body, out, why};
    int64_t max_tokens = 0;
    TRY(net_read_shared(&r, NET_FOR_CHAT, suggested));
    TRY(net_read_n_predict(&r, &max_tokens));
    TRY(net_read_whole(&r, "max_tokens", 1, 1 << 30, &max_tokens));
    TRY(net_read_whole(&r, "max_completion_tokens", 1, 1 << 30, &max_tokens));
    TRY(read_end(&r));
    TRY(read_shown(&r));
    TRY(read_messages(&r));
    TRY(read_tools(&r));
    TRY(read_variables(&r));
    TRY(net_read_words(&r, "chat_template", &out->chat_template));
    out->sampling.max_tokens = (uint32_t)max_tokens;
    return MPK_OK;
}
