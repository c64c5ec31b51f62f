/* opt_test.c - what `mpk opt` refuses: settings, names and orders of passes, each in words that say
 * what is wrong; and that a setting is for its pass alone.
 */
#include "check.h"

#include <string.h>

#include "pass/pass.h"

static const char source[] = "input %x : f32[64, 64]\nconst %w : f32[64, 64]\n"
                             "%a = linear(%x, %w)\n%y = silu(%a)\noutput %y\n";
#define TO_LINEAR \
    "decompose,depend,drop_implied,fuse_events,merge_forks,label_launch,normalize,linearize"

/* Run passes on a text with so many workers; what comes out, the caller's to free. */
static mpk_status run(mpk_context *cx, const char *passes, const char *text_in, uint32_t n_workers,
                      text *out)
{
    const pass_options o = {
        .n_workers = n_workers, .page_bytes = 16384, .pages_per_worker = 8, .verify = true};
    return pass_run_text(cx, &o, str_from(passes), str_from(text_in), out);
}

static void expect(const char *passes, const char *text_in, uint32_t n_workers, const char *needle)
{
    mpk_context cx = {0};
    text out = {0};
    const mpk_status status = run(&cx, passes, text_in, n_workers, &out);
    if (needle)
        check_fails(&cx, MPK_EARG, needle, status);
    else
        check_ok(&cx, status);
    text_free(&out);
}

/* Numbers up to 2^32 - 1, of digits alone, for settings that there are. */
static void test_settings(void **state)
{
    (void)state;
    static const struct {
        const char *passes, *needle;
    } rows[] = {
        {"simplify:gather_bytes=4294967295", NULL},
        {"simplify:gather_bytes=0", NULL},
        {"simplify:splits=4:relaxed=1:logits=0:whole_tiles=1:own_units=1:context_tasks=2", NULL},
        {"unpack_weights:unpack_tokens=256", NULL},
        {"simplify:norm_elements=1:share_tokens=1:sum_terms=1:split_tokens=1:own_experts=1:peers=1",
         NULL},
        {"simplify:gather_bytes=4294967296", "setting gather_bytes=4294967296: expected NAME="},
        {"simplify:gather_bytes=99999999999999999999999", "expected NAME=NUMBER"},
        {"simplify:splits", "setting splits: expected NAME=NUMBER"},
        {"simplify:splits=", "setting splits=: expected NAME=NUMBER"},
        {"simplify:", "expected NAME=NUMBER"},
        {"simplify:splits=4x", "setting splits=4x: a whole number is expected"},
        {"simplify:splits=-1", "a whole number is expected"},
        {"simplify:splits=4/", "a whole number is expected"},
        {"simplify:splits=4:", "expected NAME=NUMBER"},
        {"simplify:=4", "there is no setting "},
        {"simplify:split=4", "there is no setting split; peers, gather_bytes"},
        {"simplify:splitss=4", "there is no setting splitss"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect(rows[i].passes, source, 4, rows[i].needle);
}

/* A pass gets what it works on, or is refused by name. */
static void test_order(void **state)
{
    (void)state;
    mpk_context cx = {0};
    text tasks = {0}, events = {0};
    check_ok(&cx, run(&cx, "decompose", source, 4, &tasks));
    check_ok(&cx, run(&cx, "decompose,depend", source, 4, &events));
    expect("simplify,roll,fuse_ops," TO_LINEAR ",assign,plan_memory", source, 4, NULL);
    expect(TO_LINEAR ",plan_pages", source, 4, NULL);
    expect("verify", tasks.at, 4, NULL);
    expect("depend", tasks.at, 4, NULL);
    expect("", source, 4, "there is no pass ");
    expect("simplify,", source, 4, "there is no pass ");
    expect("simplif", source, 4, "there is no pass simplif");
    expect("depend", source, 4, "depend works on a task graph, this is a tensor program");
    expect("plan_memory", source, 4, "plan_memory works on a task graph");
    expect("simplify", tasks.at, 4, "simplify works on a tensor program, this is a task graph");
    expect("decompose", tasks.at, 4, "decompose works on a tensor program");
    expect("depend", events.at, 4, "depend works on tasks alone, this task graph is ");
    expect("plan_memory", events.at, 4, "plan_memory works on a linear task graph, this one is ");
    expect(TO_LINEAR ",plan_pages,verify", source, 4, "nothing can follow plan_memory and plan_p");
    expect(TO_LINEAR ",plan_memory,plan_memory", source, 4, "nothing can follow plan_memory");
    text_free(&tasks);
    text_free(&events);
}

/* A line that begins with "tgraph " makes a text a task graph, and no other place of the word. */
static void test_headings(void **state)
{
    (void)state;
    mpk_context cx = {0};
    text out = {0};
    check_fails(&cx, MPK_EFORMAT, "event 0, the start, or event 1, the end, is missing",
                run(&cx, "verify", "tgraph tasks workers=1\n", 1, &out));
    check_ok(&cx,
             run(&cx, "simplify",
                 "# of the tgraph here\ninput %x : f32[2]\n%y = silu(%x)\noutput %y\n", 1, &out));
    assert_non_null(strstr(out.at, "silu"));
    text_free(&out);
}

/* 1 to 65535 workers. */
static void test_workers(void **state)
{
    (void)state;
    expect("decompose", source, 1, NULL);
    expect("decompose", source, 65535, NULL);
    expect("decompose", source, 0, "0 workers: 1 to 65535 are possible");
    expect("decompose", source, 65536, "65536 workers: 1 to 65535 are possible");
}

/* A setting is for the pass that it follows: shard with two peers makes other operators than
 * without, and the next shard has one peer again. */
static void test_settings_end(void **state)
{
    (void)state;
    mpk_context cx = {0};
    text one = {0}, none = {0}, two = {0};
    check_ok(&cx, run(&cx, "shard:peers=2", source, 4, &two));
    check_ok(&cx, run(&cx, "shard:peers=1,shard", source, 4, &one));
    check_ok(&cx, run(&cx, "shard", source, 4, &none));
    assert_string_equal(one.at, none.at);
    assert_string_not_equal(two.at, none.at);
    text_free(&one);
    text_free(&none);
    text_free(&two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settings),     cmocka_unit_test(test_order),
        cmocka_unit_test(test_workers),      cmocka_unit_test(test_headings),
        cmocka_unit_test(test_settings_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
