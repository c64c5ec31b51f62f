/* source_test.c - what JIT tasks take from the page ring: pages of their own only if one of their bodies loads. */
#include "check.h"

#include "gen/source.h"

enum { GRAPHS = 2 };

static const char *const graphs[GRAPHS] = {
    "input %x : bf16[4, 1024] live=tokens\nconst %w : bf16[1024, 1024]\n%y = linear(%x, %w)\n", /* it loads w */
    "input %x : f32[4, 300] live=tokens\n%y = softmax(%x)\n",                                   /* it loads nothing */
};

/* Do the constants of a program for sm_90a in which these graphs have JIT tasks say so, and whether these load? */
static void check_constants(mpk_context *cx, bool first, bool second, bool loads)
{
    const bool jit[GRAPHS] = {first, second};
    const gen_arch *arch = gen_arch_find("sm_90a");
    arena a = {0};
    gen_graph made[GRAPHS];
    gen_source source;
    char words[64];
    for (int i = 0; i < GRAPHS; i++) {
        ir_graph *g;
        check_ok(cx, ir_parse(cx, &a, str_from(graphs[i]), &g));
        assert_int_equal(g->ops.n, 1);
        made[i] = (gen_graph){.ir = g, .n_tokens = 4, .jit = jit[i] ? &jit[i] : NULL};
    }
    check_ok(cx, gen_source_make(cx, &a, GRAPHS, made, arch->n_sms, arch, GEN_KERNEL, &source));
    snprintf(words, sizeof words, "#define MPK_JIT_PAGES %u ", loads ? source.rooms[0].n_pages / 2 : 0);
    assert_non_null(strstr(source.text.at, words));
    snprintf(words, sizeof words, "#define MPK_HYBRID %d ", first || second);
    assert_non_null(strstr(source.text.at, words));
    arena_free(&a);
}

static void test_pages_of_jit_tasks(void **state)
{
    (void)state;
    mpk_context cx = {0};
    check_constants(&cx, false, false, false);
    check_constants(&cx, false, true, false);
    check_constants(&cx, true, false, true);
    check_constants(&cx, true, true, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pages_of_jit_tasks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
