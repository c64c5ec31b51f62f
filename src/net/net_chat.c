/* net_chat.c - /v1/chat/completions: messages -> a prompt by the model's chat template -> an answer in parts. */
#include "net/net_exchange.h"

static mpk_status render(net_exchange *x, const net_request *q, char **prompt, size_t *n)
{
    const char *own = x->server->options.chat_template;
    const mpk_chat_options options = {
        .size = sizeof options,
        .chat_template = q->chat_template ? q->chat_template : own,
        .tools = q->tools,
        .variables = q->variables,
        .no_answer = q->no_answer,
    };
    const mpk_tokenizer *tokenizer = mpk_engine_tokenizer(x->server->engine);
    mpk_status status = mpk_chat_prompt(x->cx, tokenizer, q->messages.at, q->messages.n, &options, prompt, n);
    if (status != MPK_OK && status != MPK_ENOMEM)
        return net_refuse(x->cx, &x->refusal, 400, "messages", NULL, "%s", mpk_error_message(x->cx));
    return status;
}

/* The tools once more, where they outlive the body. */
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

static mpk_status submit(net_exchange *x, const net_request *q, str words)
{
    const net_prompt prompt = {.text = words};
    const json_value *tools;
    TRY(net_work_open(x, q, true, 1));
    TRY(keep_tools(x, q, &tools));
    for (uint32_t i = 0; i < q->n_answers; i++)
        net_parts_open(&x->work.answers[i].parts, tools, words);
    return net_work_submit(x, q, 0, &prompt, false);
}

mpk_status net_chat_run(net_exchange *x, const char *path)
{
    const mpk_request_options suggested = net_completion_suggested(x);
    const json_value *body;
    net_request q;
    char *prompt;
    size_t n;
    (void)path;
    TRY(net_completion_open(x, &body));
    TRY(net_request_read_chat(x->cx, &x->arena, body, &suggested, &q, &x->refusal));
    TRY(render(x, &q, &prompt, &n));
    mpk_status status = submit(x, &q, (str){prompt, n});
    mpk_free(prompt);
    TRY(status);
    return net_completion_answer(x, &q);
}
