/* engine_chat_test.c - what the caller gives for a template, beside what it finds there and in its
 * place. */
#include "check.h"
#include "engine/engine.h"

static mpk_context cx;

/* A variable of the caller stands in the place of one by its name; all others are there, too. */
static void test_variables(void **state)
{
    const mpk_chat_options o = {
        .size = sizeof o,
        .chat_template = "{{ tools }} {{ add_generation_prompt }} {{ a }}{{ b }}{{ messages }}",
        .variables = "{\"a\": 2, \"tools\": 1, \"b\": 3, \"messages\": 4}"};
    static const char messages[] = "[{\"role\":\"user\"}]";
    char *prompt;
    size_t n;
    (void)state;
    check_ok(&cx, mpk_chat_prompt(&cx, NULL, messages, sizeof messages - 1, &o, &prompt, &n));
    assert_string_equal(prompt, "1 True 234");
    mpk_free(prompt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
