/* net_parts_fuzz.c - any text as an answer of a chat: however it is cut, the parts are the same.
 *
 * Input: a byte that says where it is cut and whether there are tools, then the answer.
 */
#include <stdlib.h>

#include "net/net_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* Feed an answer in pieces of `step` bytes. */
static void take(net_parts *p, const json_value *tools, str prompt, str answer, size_t step)
{
    mpk_context cx = {0};
    net_parts_open(p, tools, prompt);
    for (size_t at = 0; at < answer.n; at += step)
        must(net_parts_put(&cx, p,
                           (str){answer.at + at, answer.n - at < step ? answer.n - at : step}) ==
             MPK_OK);
    must(net_parts_end(&cx, p) == MPK_OK);
}

static bool same(const text *a, const text *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->at, b->at, a->n) == 0);
}

/* Any answer, whole and in pieces of a few bytes, is split into the same thought, text and
 * calls. Bits of the first byte choose tools and a prompt that opens a thought. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char list[] =
        "[{\"function\": {\"name\": \"f\"}}, {\"function\": {\"name\": \"g\"}}]";
    mpk_context cx = {0};
    arena a = {0};
    net_parts whole = {0}, cut = {0};
    const json_value *tools = NULL;
    if (!size)
        return 0;
    must(json_parse(&cx, &a, STR(list), &tools) == MPK_OK);
    if (data[0] & 1)
        tools = NULL;
    const str prompt = data[0] & 2 ? STR("x<think>\n") : STR("x"),
              answer = {(const char *)data + 1, size - 1};
    take(&whole, tools, prompt, answer, size);
    take(&cut, tools, prompt, answer, 1 + data[0] / 4 % 16);
    must(same(&whole.reasoning, &cut.reasoning) && same(&whole.content, &cut.content));
    must(whole.calls.n == cut.calls.n && (tools || !whole.calls.n));
    for (size_t i = 0; i < cut.calls.n; i++)
        must(str_equal(whole.calls.at[i].name, cut.calls.at[i].name) &&
             str_equal(whole.calls.at[i].arguments, cut.calls.at[i].arguments));
    net_parts_close(&whole);
    net_parts_close(&cut);
    arena_free(&a);
    return 0;
}
