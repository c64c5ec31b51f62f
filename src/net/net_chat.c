/* net_chat.c - /v1/chat/completions: messages -> a prompt by the model's chat template -> an
 * answer in parts; and llama-server's /apply-template, which shows the prompt.
 *
 * The second half also serves Anthropic's and the Responses API, whose bodies are rewritten as
 * chats and whose answers differ (net_dialect).  A prompt is rendered up to three times: with
 * tools, without them (to learn whether the template knows tools), and with the tools told in
 * words.  Called by net_route.c's table, net_messages.c and net_responses.c.
 */
#include "net/net_calls.h"
#include "net/net_exchange.h"

/* The template: that of the request, else the server's, else the model's own.  A conversation
 * that the template refuses is the client's fault: 400. */
mpk_status net_chat_render(net_exchange *x, const net_request *q, str messages, const char *tools,
                           text *to)
{
    const char *own = x->server->options.chat_template;
    const mpk_chat_options options = {
        .size = sizeof options,
        .chat_template = q->chat_template ? q->chat_template : own,
        .tools = tools,
        .variables = q->variables,
        .no_answer = q->no_answer,
    };
    const mpk_tokenizer *tokenizer = mpk_engine_tokenizer(x->server->engine);
    char *prompt;
    size_t n;
    mpk_status status =
        mpk_chat_prompt(x->cx, tokenizer, messages.at, messages.n, &options, &prompt, &n);
    if (status != MPK_OK && status != MPK_ENOMEM)
        return net_refuse(x->cx, &x->refusal, 400, "messages", NULL, "%s",
                          mpk_error_message(x->cx));
    TRY(status);
    to->n = 0;
    text_add(to, prompt, n);
    text_add(to, "", 0); /* an empty prompt is a text, too, not NULL */
    mpk_free(prompt);
    CHECK(x->cx, !to->failed, MPK_ENOMEM, "out of memory for a prompt");
    return MPK_OK;
}

/* If the template does not know tools, render again with the tools told in the system message.
 * It knows them if it renders another text with them than without. */
static mpk_status tell_tools(net_exchange *x, const net_request *q, text *prompt, bool *told)
{
    text without = {0};
    str messages;
    mpk_status status = net_chat_render(x, q, q->messages, NULL, &without);
    const bool same = status == MPK_OK && without.n == prompt->n &&
                      memcmp(without.at, prompt->at, prompt->n) == 0;
    text_free(&without);
    if (!same) /* a template that refuses the conversation without its tools knows them */
        return status == MPK_ENOMEM ? status : MPK_OK;
    TRY(net_tools_tell(x->cx, &x->arena, q->messages, q->tool_list, &messages));
    *told = true;
    return net_chat_render(x, q, messages, NULL, prompt);
}

/* The last message of a conversation that is to be continued ends with a mark; cut the prompt at
 * the last one, so that what the template puts after the message is gone. */
static mpk_status cut_at_mark(net_exchange *x, text *prompt)
{
    static const str mark = {NET_CONTINUED, sizeof NET_CONTINUED - 1};
    for (size_t at = prompt->n < mark.n ? 0 : prompt->n - mark.n + 1; at > 0; at--)
        if (memcmp(prompt->at + at - 1, mark.at, mark.n) == 0) {
            prompt->n = at - 1;
            prompt->at[prompt->n] = 0;
            return MPK_OK;
        }
    return net_refuse(
        x->cx, &x->refusal, 400, "continue_final_message", NULL,
        "the chat template leaves out the last message, which the answer was to continue");
}

/* The whole prompt of a chat.  *told: the tools are told in the system message, since the
 * template does not know any. */
static mpk_status make_prompt(net_exchange *x, const net_request *q, text *prompt, bool *told)
{
    *told = false;
    TRY(net_chat_render(x, q, q->messages, q->tools, prompt));
    if (q->tools)
        TRY(tell_tools(x, q, prompt, told));
    return q->continues ? cut_at_mark(x, prompt) : MPK_OK;
}

/* Parse the tools again into the arena of the work, which outlives the body. */
static mpk_status keep_tools(net_exchange *x, const net_request *q, const json_value **out)
{
    arena *a = &x->work.arena;
    *out = NULL;
    if (!q->tools)
        return MPK_OK;
    const size_t n = strlen(q->tools);
    char *copy = arena_copy(a, q->tools, n);
    CHECK(x->cx, copy, MPK_ENOMEM, "out of memory for the tools");
    return json_parse(x->cx, a, (str){copy, n}, out);
}

/* Submit the answers.  Each has its own parser for its text, which gets the tools and the
 * prompt's words: reasoning may have begun in them. */
static mpk_status submit(net_exchange *x, const net_request *q, const net_dialect *dialect,
                         net_call_style style, str words)
{
    const net_prompt prompt = {.text = words};
    const json_value *tools;
    TRY(net_work_open(x, q, dialect, 1));
    TRY(keep_tools(x, q, &tools));
    for (uint32_t i = 0; i < q->n_answers; i++) {
        net_parts *p = &x->work.answers[i].parts;
        net_parts_open(p, tools, words);
        p->style = style;
        p->one_call = q->one_call;
        p->hide_reasoning = q->hide_reasoning;
    }
    return net_work_submit(x, q, 0, &prompt);
}

/* `held` is the request with the form that holds the calls; the reply follows what the client
 * asked for, hence *q at the end. */
mpk_status net_chat_answer(net_exchange *x, const net_request *q, const net_dialect *dialect)
{
    net_request held = *q;
    text prompt = {0};
    net_call_style style;
    bool told;
    mpk_status status = make_prompt(x, q, &prompt, &told);
    if (status == MPK_OK)
        status = net_calls_hold(x, &held, told, &prompt, &style);
    if (status == MPK_OK)
        status = submit(x, &held, dialect, style, text_str(&prompt));
    text_free(&prompt);
    TRY(status);
    return net_completion_answer(x, q);
}

/* Render the prompt as an answer would, and count its tokens; nothing is computed. */
mpk_status net_chat_count(net_exchange *x, const net_request *q, size_t *n_tokens)
{
    text prompt = {0};
    int32_t *ids = NULL;
    bool told;
    mpk_status status = make_prompt(x, q, &prompt, &told);
    if (status == MPK_OK)
        status = mpk_tokenize(x->cx, mpk_engine_tokenizer(x->server->engine),
                              prompt.at ? prompt.at : "", prompt.n, q->special, &ids, n_tokens);
    mpk_free(ids);
    text_free(&prompt);
    return status;
}

/* The prompt of a chat, tools and all: the same reading and the same template as for an answer.
 * special: are tokens of the tokenizer put around it?  *prompt is to be freed, also on failure. */
mpk_status net_chat_prompt(net_exchange *x, const json_value *body, text *prompt, bool *special)
{
    const mpk_request_options suggested = net_completion_suggested(x);
    net_request q;
    bool told;
    TRY(net_request_read_chat(x->cx, &x->arena, body, &suggested, &q, &x->refusal));
    *special = q.special;
    return make_prompt(x, &q, prompt, &told);
}

/* POST /apply-template: {"prompt": ..}, what the model would get. */
mpk_status net_chat_show_prompt(net_exchange *x, const char *path)
{
    const json_value *body;
    text prompt = {0}, reply = {0};
    bool special;
    (void)path;
    TRY(net_completion_open(x, &body));
    mpk_status status = net_chat_prompt(x, body, &prompt, &special);
    text_print(&reply, "{\"prompt\":");
    json_write_str(&reply, text_str(&prompt));
    text_print(&reply, "}");
    text_free(&prompt);
    if (status != MPK_OK)
        text_free(&reply);
    TRY(status);
    return net_reply_json(x, &reply);
}

/* POST /v1/chat/completions. */
mpk_status net_chat_run(net_exchange *x, const char *path)
{
    const mpk_request_options suggested = net_completion_suggested(x);
    const json_value *body;
    net_request q;
    (void)path;
    TRY(net_completion_open(x, &body));
    TRY(net_request_read_chat(x->cx, &x->arena, body, &suggested, &q, &x->refusal));
    return net_chat_answer(x, &q, &net_dialect_chat);
}

/* POST /v1/chat/completions/input_tokens, as llama-server: {"input_tokens": N}. */
mpk_status net_chat_count_only(net_exchange *x, const char *path)
{
    const mpk_request_options suggested = net_completion_suggested(x);
    const json_value *body;
    net_request q;
    size_t n;
    text reply = {0};
    (void)path;
    TRY(net_completion_open(x, &body));
    TRY(net_request_read_chat(x->cx, &x->arena, body, &suggested, &q, &x->refusal));
    TRY(net_chat_count(x, &q, &n));
    text_print(&reply, "{\"input_tokens\":%zu}", n);
    return net_reply_json(x, &reply);
}
