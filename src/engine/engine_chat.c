/* engine_chat.c - a conversation -> the prompt that it is to a model.
 *
 * What the template sees is what Transformers shows it: messages without members that are null, and
 * with their reasoning under each of its two names; tools; the special tokens' texts; and what the
 * caller adds, which wins.  A message as it is given and as a template sees it:
 *
 *     {"role": "assistant", "content": "4", "name": null, "reasoning": "2 + 2"}
 *     {"thinking": "2 + 2", "role": "assistant", "content": "4", "reasoning": "2 + 2",
 *      "reasoning_content": "2 + 2"}
 *
 * Input: JSON from the caller, and the caller's template or the model's; output: a text on the
 * heap, which the caller frees.  Relies on base/json.h and jinja/jinja.h.  Called through mpk.h on
 * the caller's thread; all state is in one `chat`, so calls do not disturb each other.
 */
#include <stdlib.h>
#include <time.h>

#include "engine/engine.h"
#include "jinja/jinja.h"

typedef VEC(json_value) members;

/* A conversation on its way into a template; all that it is made of lies in the arena. */
typedef struct chat {
    mpk_context *cx;          /* the caller's */
    arena arena;              /* freed when the prompt has been rendered */
    mpk_chat_options options; /* checked; their texts are still the caller's */
    members variables;        /* what the template finds by name; no name twice */
} chat;

/* A copy of v under another key; what v contains is shared. */
static json_value named(json_value v, str key)
{
    v.key = key;
    return v;
}

/* Set a member, in its old place if it has one among the first n: templates list the members of an
 * object in order, and the last value given for a name wins. */
static mpk_status put_among(chat *c, members *to, size_t n, json_value v)
{
    for (size_t i = 0; i < n; i++)
        if (str_equal(to->at[i].key, v.key)) {
            to->at[i] = v;
            return MPK_OK;
        }
    PUSH(c->cx, &c->arena, to, v);
    return MPK_OK;
}

static mpk_status put(chat *c, members *to, json_value v)
{
    return put_among(c, to, to->n, v);
}

/* `source` as JSON of this kind; a list must be of objects.  `what` names it in messages. */
static mpk_status parse(chat *c, const char *what, str source, json_kind kind,
                        const json_value **out)
{
    NOTE(c->cx, json_parse(c->cx, &c->arena, source, out), "reading %s of a chat", what);
    CHECK(c->cx, (*out)->kind == kind, MPK_EFORMAT, "%s of a chat must be a JSON %s", what,
          kind == JSON_KIND_LIST ? "list" : "object");
    for (size_t i = 0; kind == JSON_KIND_LIST && i < (*out)->n; i++)
        CHECK(c->cx, (*out)->items[i].kind == JSON_KIND_OBJECT, MPK_EFORMAT,
              "%s of a chat: item %zu is not an object", what, i);
    return MPK_OK;
}

/* What the model thought before it answered, under the first of these names that the message has;
 * NULL: none. */
static const json_value *find_reasoning(const json_value *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (int i = 0; i < 3; i++)
        if (json_get(message, names[i]))
            return json_get(message, names[i]);
    return NULL;
}

/* One message as the template sees it.  Its reasoning comes first, as "thinking", and as
 * "reasoning_content" it takes the place of that member, or the last one; members that are null are
 * left out, as templates test whether a member is defined. */
static mpk_status add_message(chat *c, const json_value *from, json_value *to)
{
    members m = {0};
    const json_value *reasoning = find_reasoning(from);
    if (reasoning)
        TRY(put(c, &m, named(*reasoning, STR("thinking"))));
    for (size_t i = 0; i < from->n; i++)
        if (from->items[i].kind != JSON_KIND_NULL)
            PUSH(c->cx, &c->arena, &m, from->items[i]);
    /* the message had "thinking" too: the name stands in first place, with the message's value */
    if (reasoning) {
        for (size_t i = 1; i < m.n; i++)
            if (str_is(m.at[i].key, "thinking")) {
                m.at[0] = m.at[i];
                memmove(&m.at[i], &m.at[i + 1], (m.n - i - 1) * sizeof *m.at);
                m.n--;
            }
        TRY(put(c, &m, named(*reasoning, STR("reasoning_content"))));
    }
    *to = (json_value){.kind = JSON_KIND_OBJECT, .items = m.at, .n = m.n};
    return MPK_OK;
}

/* The variable `messages`, a list.  An empty one is refused here: templates may read the first
 * message without asking whether there is one. */
static mpk_status add_messages(chat *c, str source)
{
    const json_value *given;
    json_value *items;
    TRY(parse(c, "messages", source, JSON_KIND_LIST, &given));
    CHECK(c->cx, given->n, MPK_EFORMAT, "a chat has no messages");
    NEW(c->cx, &c->arena, items, given->n);
    for (size_t i = 0; i < given->n; i++)
        TRY(add_message(c, &given->items[i], &items[i]));
    return put(c, &c->variables,
               (json_value){
                   .kind = JSON_KIND_LIST, .key = STR("messages"), .items = items, .n = given->n});
}

/* `tools` and `documents` are set even where there are none: to null, which a template tests with
 * "if tools", or "is none". */
static mpk_status add_tools(chat *c)
{
    static const json_value none = {.kind = JSON_KIND_NULL};
    const json_value *given = &none;
    if (c->options.tools)
        TRY(parse(c, "tools", str_from(c->options.tools), JSON_KIND_LIST, &given));
    TRY(put(c, &c->variables, named(*given, STR("tools"))));
    return put(c, &c->variables, named(none, STR("documents")));
}

/* In rising order of precedence, for `put` replaces: messages, tools, the special tokens by their
 * names ("bos_token"), what the caller adds.  Of the last, which may be many, no two have one name,
 * as the parser sees to it: each is compared with those before alone. */
static mpk_status add_variables(chat *c, const load_model *model, str messages)
{
    const json_value *given = NULL;
    TRY(add_messages(c, messages));
    TRY(add_tools(c));
    TRY(put(c, &c->variables,
            (json_value){.kind = JSON_KIND_BOOL,
                         .key = STR("add_generation_prompt"),
                         .boolean = !c->options.no_answer}));
    for (size_t i = 0; model && i < model->n_specials; i++)
        TRY(put(c, &c->variables,
                (json_value){.kind = JSON_KIND_STRING,
                             .key = str_from(model->specials[i].name),
                             .text = model->specials[i].token}));
    if (c->options.variables)
        TRY(parse(c, "variables", str_from(c->options.variables), JSON_KIND_OBJECT, &given));
    const size_t n_before = c->variables.n;
    for (size_t i = 0; given && i < given->n; i++)
        TRY(put_among(c, &c->variables, n_before, given->items[i]));
    return MPK_OK;
}

/* The caller's template, else the model's one for tools if there are tools and it has one, else the
 * model's.  It is borrowed from where it was found. */
static mpk_status find_template(chat *c, const load_model *model, str *out)
{
    *out = (str){0};
    if (c->options.chat_template)
        *out = str_from(c->options.chat_template);
    else if (model)
        *out = c->options.tools && model->tool_template.at ? model->tool_template
                                                           : model->chat_template;
    CHECK(c->cx, out->at, MPK_EUNSUPPORTED,
          "the model has no chat template: give one, or write the prompt yourself");
    return MPK_OK;
}

/* Parse before anything is read from the conversation: without a template that can be parsed
 * nothing else matters.  The time is for templates that print the date. */
static mpk_status render(chat *c, const load_model *model, str messages, text *out)
{
    const jinja_template *t;
    str source;
    TRY(find_template(c, model, &source));
    TRY(jinja_parse(c->cx, &c->arena, source, &t));
    TRY(add_variables(c, model, messages));
    json_value variables = {
        .kind = JSON_KIND_OBJECT, .items = c->variables.at, .n = c->variables.n};
    TRY(jinja_render(c->cx, t, &variables, (int64_t)time(NULL), out));
    text_add(out, "", 0); /* an empty prompt is a text, too */
    CHECK(c->cx, !out->failed, MPK_ENOMEM, "out of memory for a prompt");
    return MPK_OK;
}

/* `from` is NULL if the caller brings a template alone.  The text outlives the arena: jinja_render
 * writes it to the heap. */
mpk_status mpk_chat_prompt(mpk_context *cx, const mpk_tokenizer *from, const char *messages,
                           size_t n, const mpk_chat_options *options, char **prompt,
                           size_t *n_prompt)
{
    chat c = {.cx = cx};
    text made = {0};
    TRY(engine_read_chat_options(cx, options, &c.options));
    mpk_status status = render(&c, from ? from->chats : NULL, (str){messages, n}, &made);
    arena_free(&c.arena);
    if (status != MPK_OK) {
        text_free(&made);
        return status;
    }
    *prompt = made.at;
    *n_prompt = made.n;
    return MPK_OK;
}
