/* net_tools.c - tools for a model whose chat template does not know them: they are described in
 * the system message, and calls and results are written into the messages, in the format that
 * net_parts.c reads.
 *
 * Input: messages and tools as JSON.  Output: messages of the roles system, user and assistant
 * only, without calls:
 *
 *   {"role":"tool","content":"4"}
 *   -> {"role":"user","content":"<tool_response>\n4\n</tool_response>"}
 */
#include "net/net_exchange.h"

/* The description, with one tool on a line between the two texts. */
static const char
    before[] =
        "You may call functions. Here they are, each as a JSON object on a line of its own:\n"
        "<tools>",
    after[] = "\n</tools>\nTo call one, answer with an object of its name and its arguments:\n"
              "<tool_call>\n{\"name\": NAME, \"arguments\": {...}}\n</tool_call>";

static void add_words(const json_value *v, text *to)
{
    if (json_is(v, JSON_KIND_STRING))
        text_add(to, v->text.at, v->text.n);
}

/* For templates that know no tools: their descriptions become text of the system message, one JSON
 * object a line. */
static void add_description(const json_value *tools, text *to)
{
    text_print(to, "%s", before);
    for (size_t i = 0; i < tools->n; i++) {
        text_add(to, "\n", 1);
        json_write(to, &tools->items[i], 0);
    }
    text_print(to, "%s", after);
}

/* Calls of an assistant's message, as the model is asked to write them. */
static void add_calls(const json_value *calls, text *to)
{
    for (size_t i = 0; calls && i < calls->n; i++) {
        const json_value *f = json_get(&calls->items[i], "function"), *name = json_get(f, "name");
        const json_value *arguments = json_get(f, "arguments");
        text_print(to, "%s<tool_call>\n{\"name\": ", to->n ? "\n" : "");
        json_write_str(to, json_is(name, JSON_KIND_STRING) ? name->text : STR(""));
        text_print(to, ", \"arguments\": ");
        if (arguments)
            json_write(to, arguments, 0);
        else
            text_print(to, "{}");
        text_print(to, "}\n</tool_call>");
    }
}

/* to->n > 1: the list "[" has an item already. */
static void write_message(const char *role, const text *content, text *to)
{
    text_print(to, "%s{\"role\":\"%s\",\"content\":", to->n > 1 ? "," : "", role);
    json_write_str(to, (str){content->at ? content->at : "", content->n});
    text_print(to, "}");
    to->failed |= content->failed;
}

/* The result of a call, as a message of the user. */
static void write_result(const text *content, text *to)
{
    text words = {0};
    text_print(&words, "<tool_response>\n");
    text_add(&words, content->at, content->n);
    text_print(&words, "\n</tool_response>");
    words.failed |= content->failed;
    write_message("user", &words, to);
    text_free(&words);
}

/* One message of the conversation.  tools: what a system message shall describe; NULL: nothing.
 * Roles that such a template may refuse (developer, tool) become those that all know. */
static void rewrite(const json_value *message, const json_value *tools, text *to)
{
    const str role = json_get(message, "role")->text;
    const bool is_system = str_is(role, "system") || str_is(role, "developer");
    text content = {0};
    add_words(json_get(message, "content"), &content);
    if (is_system && tools) {
        text_print(&content, "\n\n");
        add_description(tools, &content);
    }
    add_calls(json_get(message, "tool_calls"), &content);
    if (str_is(role, "tool"))
        write_result(&content, to);
    else if (is_system)
        write_message("system", &content, to);
    else
        write_message(str_is(role, "assistant") ? "assistant" : "user", &content, to);
    text_free(&content);
}

/* A conversation without a system message gets one. */
mpk_status net_tools_tell(mpk_context *cx, arena *a, str messages, const json_value *tools,
                          str *out)
{
    const json_value *given;
    text t = {0}, description = {0};
    TRY(json_parse(cx, a, messages, &given));
    const str first = json_get(&given->items[0], "role")->text;
    const bool has_system = str_is(first, "system") || str_is(first, "developer");
    text_add(&t, "[", 1);
    if (!has_system) {
        add_description(tools, &description);
        write_message("system", &description, &t);
        text_free(&description);
    }
    for (size_t i = 0; i < given->n; i++)
        rewrite(&given->items[i], i == 0 ? tools : NULL, &t);
    text_add(&t, "]", 1);
    char *copy = t.failed ? NULL : arena_copy(a, t.at, t.n);
    *out = (str){copy, t.n};
    text_free(&t);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory for the messages");
    return MPK_OK;
}
