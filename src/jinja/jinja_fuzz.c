/* jinja_fuzz.c - any bytes as a chat template and its variables: a text, or an error that says
 * something.
 *
 * Input: a template, a line "----", a JSON object of variables (either may be missing).  A template
 * that was rendered gives the same text when it is rendered again.
 */
#include <stdlib.h>

#include "jinja/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static const char usual[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi \\u00e9\"}, "
                            "{\"role\": \"assistant\", \"content\": null, "
                            "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": "
                            "{\"x\": [1, 2.5, true]}}}]}], \"tools\": [], "
                            "\"add_generation_prompt\": true, \"bos_token\": \"<s>\"}";

/* Rendering twice gives the same bytes, or an error in words. */
static void render_twice(arena *a, const jinja_template *t, const json_value *variables)
{
    mpk_context cx = {0};
    text first = {0}, second = {0};
    (void)a;
    if (jinja_render(&cx, t, variables, 1700000000, &first) == MPK_OK) {
        must(jinja_render(&cx, t, variables, 1700000000, &second) == MPK_OK);
        must(first.n == second.n && (!first.n || memcmp(first.at, second.at, first.n) == 0));
    } else
        must(cx.text_bytes);
    text_free(&first);
    text_free(&second);
}

/* A template and, after a line of dashes, its variables as JSON; without that line the usual
 * ones of a chat. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mpk_context cx = {0};
    arena a = {0};
    const jinja_template *t = NULL;
    const json_value *variables = NULL;
    str source = {(const char *)data, size}, given = {usual, sizeof usual - 1};
    const char *mark = size ? memmem(data, size, "\n----\n", 6) : NULL;
    if (mark) {
        source.n = (size_t)(mark - source.at);
        given = (str){mark + 6, size - source.n - 6};
    }
    mpk_status status = jinja_parse(&cx, &a, source, &t);
    must((status == MPK_OK) == (t != NULL));
    must(status == MPK_OK || cx.text_bytes);
    if (json_parse(&cx, &a, given, &variables) != MPK_OK || variables->kind != JSON_KIND_OBJECT)
        variables = NULL;
    if (t)
        render_twice(&a, t, variables);
    arena_free(&a);
    return 0;
}
