/* fuse_delta_test.c - where linear attention may be taken by chunks, and that nothing else of the
 * operator changes. */
#include "check.h"
#include "pass/pass.h"

static mpk_context cx;

/* Does delta_rule of this dtype and these attributes, under these pass options, end with `expected`
 * as its attributes? */
static void expect(const char *dtype, const char *attributes, const char *options,
                   const char *expected)
{
    char program[1024], pass[128];
    text out = {0};
    const pass_options none = {.n_workers = 2};
    snprintf(program, sizeof program,
             "input %%q : %s[4, 16] live=tokens\ninput %%k : %s[4, 16] live=tokens\n"
             "input %%v : %s[4, 16] live=tokens\ninput %%a : %s[4, 2] live=tokens\n"
             "input %%b : %s[4, 2] live=tokens\nconst %%l : f32[2]\nconst %%d : f32[2]\n"
             "input %%p : i32[4] live=tokens\ninput %%s : i32[4] live=tokens\n"
             "state %%S : f32[3, 16, 8]\n"
             "%%y, %%after = delta_rule(%%q, %%k, %%v, %%a, %%b, %%l, %%d, %%p, %%s, %%S)%s\n"
             "output %%y\n",
             dtype, dtype, dtype, dtype, dtype, attributes);
    snprintf(pass, sizeof pass, "fuse_ops%s", options);
    check_ok(&cx, pass_run_text(&cx, &none, str_from(pass), str_from(program), &out));
    text_add(&out, "", 1);
    if (!strstr(out.at, expected))
        fail_msg("%s%s with \"%s\": no \"%s\" in\n%s", dtype, attributes, options, expected,
                 out.at);
    text_free(&out);
}

static void chunks_need_leave(void **state)
{
    (void)state;
    static const char plain[] = "%d, %p, %s, %S) : ",
                      tiled[] = "%d, %p, %s, %S) {eps = 0.5, tiled = 1} : ";
    expect("bf16", "", ":relaxed=1", "%d, %p, %s, %S) {chunks = 1} : ");
    expect("bf16", " {eps = 0.5, tiled = 1}", ":relaxed=1",
           "%d, %p, %s, %S) {eps = 0.5, tiled = 1, chunks = 1} : ");
    expect("bf16", "", ":relaxed=0", plain);
    expect("bf16", " {eps = 0.5, tiled = 1}", ":relaxed=1:own_units=2", tiled);
    expect("f32", " {eps = 0.5, tiled = 1}", ":relaxed=1", tiled);
    expect("f16", "", ":relaxed=1", plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chunks_need_leave)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
