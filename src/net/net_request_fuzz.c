/* net_request_fuzz.c - any bytes as the body of a completion and of a chat: a request within its
 * bounds, or a refusal that says why.
 */
#include <stdlib.h>

#include "net/net_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* What the reader accepts, the engine must accept: every number is in its range. */
static void check_sampling(const net_request *q)
{
    const mpk_request_options *s = &q->sampling;
    must(q->n_answers >= 1 && q->n_answers <= NET_MAX_ANSWERS);
    must(s->temperature >= 0 && s->top_p >= 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1);
    must(s->n_stop <= NET_MAX_STOPS);
    for (uint32_t i = 0; i < s->n_stop; i++)
        must(s->stop[i][0] != 0);
}

static void check_json(arena *a, const char *words, size_t n, json_kind kind)
{
    mpk_context cx = {0};
    const json_value *v;
    must(json_parse(&cx, a, (str){words, n}, &v) == MPK_OK && v->kind == kind);
}

/* What is handed to the chat template is JSON again. */
static void check_chat(arena *a, const net_request *q)
{
    check_json(a, q->messages.at, q->messages.n, JSON_KIND_LIST);
    if (q->tools)
        check_json(a, q->tools, strlen(q->tools), JSON_KIND_LIST);
    if (q->variables)
        check_json(a, q->variables, strlen(q->variables), JSON_KIND_OBJECT);
    must(!q->tools == !q->tool_list);
}

/* At least one prompt; of those that are ids none is negative. */
static void check_completion(const net_request *q)
{
    must(q->n_prompts >= 1);
    for (size_t i = 0; i < q->n_prompts; i++)
        for (size_t k = 0; !q->prompts[i].text.at && k < q->prompts[i].n_ids; k++)
            must(q->prompts[i].ids[k] >= 0);
}

/* A body as a request to either endpoint: accepted and sound, or refused with status 400 and
 * words. */
static void read_both(arena *a, const json_value *body)
{
    const mpk_request_options suggested = {
        .size = sizeof suggested, .temperature = 0.6f, .top_p = 0.95f, .top_k = 20};
    for (int chat = 0; chat < 2; chat++) {
        mpk_context cx = {0};
        net_refusal why = {0};
        net_request q;
        mpk_status status = chat ? net_request_read_chat(&cx, a, body, &suggested, &q, &why)
                                 : net_request_read_completion(&cx, a, body, &suggested, &q, &why);
        must(status == MPK_OK || (cx.text_bytes && why.http == 400));
        if (status != MPK_OK)
            continue;
        check_sampling(&q);
        if (chat)
            check_chat(a, &q);
        else
            check_completion(&q);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mpk_context cx = {0};
    arena a = {0};
    net_refusal why = {0};
    const json_value *body;
    const str source = {size ? (const char *)data : "", size};
    size_t n;
    if (net_request_count_values(&cx, source, &n, &why) == MPK_OK &&
        json_parse(&cx, &a, source, &body) == MPK_OK)
        read_both(&a, body);
    arena_free(&a);
    return 0;
}
