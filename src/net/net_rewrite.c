/* net_rewrite.c - the body of a chat, written from a request of another API (net_rewrite.h).
 *
 * Anthropic's and the Responses API are served in three steps: their body is rewritten here as
 * that of a chat, the chat is answered, and a dialect writes the answer in that API's format.
 * So the meaning of a parameter is implemented once, in net_request.c; a refusal names it as the
 * client spelled it (name_own).  Called by net_messages_read.c and net_responses_read.c.
 */
#include "net/net_rewrite.h"

#include <stdio.h>

mpk_status net_rewrite_check(net_exchange *x, const json_value *body, unsigned endpoint)
{
    if (body->kind != JSON_KIND_OBJECT)
        return net_refuse(x->cx, &x->refusal, 400, NULL, NULL, "the body is not a JSON object");
    return net_parameters_check(x->cx, body, endpoint, x->ignored, &x->refusal);
}

/* ---- messages ---- */

/* A comma, or the bracket that opens the list. */
static void begin_item(text *to)
{
    text_print(to, to->n ? "," : "[");
}

/* Begin a message.  Its parts are collected first and written by net_rewrite_end, since they may
 * come in any order. */
void net_rewrite_begin(net_rewrite *w, str role)
{
    w->content.n = w->reasoning.n = w->calls.n = 0;
    begin_item(&w->messages);
    text_print(&w->messages, "{\"role\":");
    json_write_str(&w->messages, role);
}

void net_rewrite_text(net_rewrite *w, str words)
{
    text_add(&w->content, "\n", w->content.n > 0);
    text_add(&w->content, words.at, words.n);
}

void net_rewrite_reasoning(net_rewrite *w, str words)
{
    text_add(&w->reasoning, "\n", w->reasoning.n > 0);
    text_add(&w->reasoning, words.at, words.n);
}

/* Adds a call to the message that is open; net_rewrite_end writes them as "tool_calls". arguments
 * NULL: none, "{}". */
void net_rewrite_call(net_rewrite *w, str id, str name, const json_value *arguments)
{
    begin_item(&w->calls);
    text_print(&w->calls, "{\"id\":");
    json_write_str(&w->calls, id);
    text_print(&w->calls, ",\"type\":\"function\",\"function\":{\"name\":");
    json_write_str(&w->calls, name);
    text_print(&w->calls, ",\"arguments\":");
    if (arguments)
        json_write(&w->calls, arguments, 0);
    else
        text_print(&w->calls, "{}");
    text_print(&w->calls, "}}");
}

/* Write the collected parts.  A failure of any of them becomes one of the body, which is checked
 * once. */
void net_rewrite_end(net_rewrite *w)
{
    text_print(&w->messages, ",\"content\":");
    json_write_str(&w->messages, text_str(&w->content));
    if (w->reasoning.n) {
        text_print(&w->messages, ",\"reasoning_content\":");
        json_write_str(&w->messages, text_str(&w->reasoning));
    }
    if (w->calls.n) {
        text_print(&w->messages, ",\"tool_calls\":");
        text_add(&w->messages, w->calls.at, w->calls.n);
        text_print(&w->messages, "]");
    }
    text_print(&w->messages, "}");
    w->messages.failed |= w->content.failed || w->reasoning.failed || w->calls.failed;
}

/* A message of the role "tool": what came of the call with this id. */
void net_rewrite_result(net_rewrite *w, str id, str words)
{
    begin_item(&w->messages);
    text_print(&w->messages, "{\"role\":\"tool\",\"tool_call_id\":");
    json_write_str(&w->messages, id);
    text_print(&w->messages, ",\"content\":");
    json_write_str(&w->messages, words);
    text_print(&w->messages, "}");
}

/* ,"name": v; nothing if v is absent. */
static void write_member(text *to, const char *name, const json_value *v)
{
    if (!v)
        return;
    text_print(to, ",\"%s\":", name);
    json_write(to, v, 0);
}

/* The names of members differ between APIs (input_schema, parameters); the caller hands over the
 * schema. */
void net_rewrite_tool(net_rewrite *w, str name, const json_value *tool, const json_value *schema)
{
    begin_item(&w->tools);
    text_print(&w->tools, "{\"type\":\"function\",\"function\":{\"name\":");
    json_write_str(&w->tools, name);
    write_member(&w->tools, "description", json_get(tool, "description"));
    write_member(&w->tools, "parameters", schema);
    write_member(&w->tools, "strict", json_get(tool, "strict"));
    text_print(&w->tools, "}}");
}

/* ---- the other members ---- */

/* Members that mean what they do in a chat, and have its name. */
static const char *const same[] = {"temperature",
                                   "top_p",
                                   "top_k",
                                   "min_p",
                                   "seed",
                                   "stream",
                                   "ignore_eos",
                                   "min_tokens",
                                   "chat_template",
                                   "presence_penalty",
                                   "frequency_penalty",
                                   "repetition_penalty",
                                   "repeat_penalty",
                                   "logit_bias",
                                   "bad_words",
                                   "allowed_token_ids",
                                   "typical_p",
                                   "top_n_sigma",
                                   "stop_token_ids",
                                   "include_stop_str_in_output",
                                   "skip_special_tokens",
                                   "structured_outputs",
                                   "cache_salt",
                                   "cache_prompt",
                                   "priority",
                                   "truncate_prompt_tokens"};

bool net_rewrites_same(str name)
{
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (str_is(name, same[i]))
            return true;
    return false;
}

void net_rewrite_same(net_rewrite *w, const json_value *body)
{
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        net_rewrite_value(w, same[i], json_get(body, same[i]));
}

/* Write the two lists; all other members follow them. */
void net_rewrite_lists(net_rewrite *w)
{
    text_print(&w->body, "{\"messages\":");
    if (w->messages.n)
        text_add(&w->body, w->messages.at, w->messages.n);
    else
        text_print(&w->body, "[");
    text_print(&w->body, "]");
    if (w->tools.n) {
        text_print(&w->body, ",\"tools\":");
        text_add(&w->body, w->tools.at, w->tools.n);
        text_print(&w->body, "]");
    }
    w->body.failed |= w->messages.failed || w->tools.failed;
}

void net_rewrite_value(net_rewrite *w, const char *name, const json_value *value)
{
    write_member(&w->body, name, value);
}

/* If there are more renamed members than room, only a refusal shows the wrong name. */
void net_rewrite_renamed(net_rewrite *w, const char *name, const char *own, const json_value *value)
{
    if (w->n_renamed < NET_REWRITE_RENAMED) {
        w->renamed[w->n_renamed].chat = name;
        w->renamed[w->n_renamed++].own = own;
    }
    net_rewrite_value(w, name, value);
}

void net_rewrite_word(net_rewrite *w, const char *name, str value)
{
    text_print(&w->body, ",\"%s\":", name);
    json_write_str(&w->body, value);
}

void net_rewrite_raw(net_rewrite *w, const char *name, const char *json)
{
    text_print(&w->body, ",\"%s\":%s", name, json);
}

void net_rewrite_choice(net_rewrite *w, str name)
{
    text_print(&w->body, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
    json_write_str(&w->body, name);
    text_print(&w->body, "}}");
}

/* ---- reading it ---- */

/* Put one quoted name in the place of another in a message. */
static void rename_in(mpk_context *cx, const char *from, const char *to)
{
    char quoted[64], words[sizeof cx->text];
    const size_t n = (size_t)snprintf(quoted, sizeof quoted, "'%s'", from);
    const char *at = strstr(cx->text, quoted);
    if (!at)
        return;
    snprintf(words, sizeof words, "%.*s'%s'%s", (int)(at - cx->text), cx->text, to, at + n);
    memcpy(cx->text, words, strlen(words) + 1);
}

/* The name under which the client sent a parameter: `name`, unless it was renamed. */
static const char *own_name(const net_rewrite *w, const char *name)
{
    for (unsigned i = 0; i < w->n_renamed; i++)
        if (strcmp(name, w->renamed[i].chat) == 0)
            return w->renamed[i].own;
    return name;
}

/* Let a refusal name the parameter that the client sent, in its words too. */
static void name_own(net_exchange *x, const net_rewrite *w)
{
    net_refusal *why = &x->refusal;
    const char *own = own_name(w, why->field);
    if (own == why->field)
        return;
    rename_in(x->cx, why->field, own);
    snprintf(why->field, sizeof why->field, "%s", own);
}

/* Read the body.  Its text is kept as long as the exchange, because the request borrows from it. */
mpk_status net_rewrite_read(net_exchange *x, net_rewrite *w, net_request *out)
{
    const mpk_request_options suggested = net_completion_suggested(x);
    const json_value *body;
    text_print(&w->body, "}");
    CHECK(x->cx, !w->body.failed, MPK_ENOMEM, "out of memory for a request");
    TRY(net_completion_hold(x, text_str(&w->body)));
    char *copy = arena_copy(&x->arena, w->body.at, w->body.n);
    CHECK(x->cx, copy, MPK_ENOMEM, "out of memory for a request");
    TRY(json_parse(x->cx, &x->arena, (str){copy, w->body.n}, &body));
    mpk_status status = net_request_read_chat(x->cx, &x->arena, body, &suggested, out, &x->refusal);
    if (status != MPK_OK) {
        name_own(x, w);
        return status;
    }
    if (out->form_name) /* the engine may refuse the form later */
        out->form_name = own_name(w, out->form_name);
    memcpy(out->ignored, x->ignored, sizeof out->ignored);
    return MPK_OK;
}

void net_rewrite_free(net_rewrite *w)
{
    text *all[] = {&w->messages, &w->tools, &w->body, &w->content, &w->reasoning, &w->calls};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        text_free(all[i]);
}
