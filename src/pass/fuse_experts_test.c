/* fuse_experts_test.c - what becomes of sums over a token's experts. */
#include "check.h"
#include "pass/pass.h"

static mpk_context cx;

/* Products of pairs are summed by an operator of their own for many tokens, if the body for long
 * steps takes the weights: bf16 or in blocks, by eights. */
static void pairs_are_summed_apart(void **state)
{
    (void)state;
    const struct {
        const char *tokens, *weight, *columns, *more;
        bool apart;
    } rows[] = {
        {"20", "bf16[6, 72, 40]", "40", "_, %s)", true},
        {"16", "bf16[6, 72, 40]", "40", "_, %s)", false},
        {"20", "f32[6, 72, 40]", "40", "_, %s)", false},
        {"20", "q8_0[6, 72, 64]", "64", "_, %s)", true},
        {"16", "q8_0[6, 72, 64]", "64", "_, %s)", false},
        {"20", "mxfp4[6, 72, 64]", "64", "_, %s, _, _, %b)", true},
        {"20", "bf16[6, 70, 40]", "40", "_, %s)", false},
        {"20", "bf16[6, 72, 36]", "36", "_, %s)", false},
        {"20", "bf16[6, 72, 40]", "40", "%w, %s) {glu = \"silu\"}", false},
        {"20", "bf16[6, 72, 40]", "40", "_)", false},
        {"20", "bf16[6, 72, 40]", "40", "_, %s, _, _, %b)", true},
        {"16", "bf16[6, 72, 40]", "40", "_, %s, _, _, %b)", false},
        {"20", "bf16[6, 72, 40]", "40", "_, %s, _, %n, %b)", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char program[512];
        pass_options options = {.n_workers = 2};
        text out = {0};
        snprintf(program, sizeof program,
                 "input %%x : bf16[%s, 2, %s] live=tokens\ninput %%i : i32[%s, 2] live=tokens\n"
                 "const %%w : %s\ninput %%s : f32[%s, 2] live=tokens\nconst %%b : bf16[6, 72]\n"
                 "const %%n : bf16[40]\n%%y = expert_linear(%%x, %%i, %%w, %s\noutput %%y\n",
                 rows[i].tokens, rows[i].columns, rows[i].tokens, rows[i].weight, rows[i].tokens,
                 rows[i].more);
        check_ok(&cx, pass_run_text(&cx, &options, STR("fuse_ops:relaxed=1:share_tokens=16"),
                                    str_from(program), &out));
        text_add(&out, "", 1);
        if ((strstr(out.at, "= sum_pairs(") != NULL) != rows[i].apart ||
            (strstr(out.at, "%b)") != NULL) != (strstr(rows[i].more, "%b)") != NULL))
            fail_msg("row %zu:\n%s", i, out.at);
        text_free(&out);
    }
}

/* A norm of what experts read is folded into their product, but not into one with weights in blocks
 * for many tokens, whose body leaves no room for the rings of JIT tasks.  The sum of such pairs is
 * then not apart either. */
static void norms_stay_apart(void **state)
{
    (void)state;
    static const struct {
        const char *tokens, *dtype;
        pass_launch launch;
        bool apart;
    } rows[] = {{"20", "q8_0", PASS_LAUNCH_AUTO, true},  {"20", "q8_0", PASS_LAUNCH_AOT, true},
                {"20", "q8_0", PASS_LAUNCH_JIT, false},  {"20", "q8_0", PASS_LAUNCH_PAPER, false},
                {"16", "q8_0", PASS_LAUNCH_AUTO, false}, {"20", "bf16", PASS_LAUNCH_AUTO, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char program[512];
        pass_options options = {.n_workers = 2, .launch = rows[i].launch};
        text out = {0};
        snprintf(program, sizeof program,
                 "input %%x : bf16[%s, 64] live=tokens\ninput %%i : i32[%s, 2] live=tokens\n"
                 "const %%g : %s[6, 64, 64]\nconst %%u : %s[6, 64, 64]\nconst %%n : bf16[64]\n"
                 "const %%d : %s[6, 72, 64]\ninput %%s : f32[%s, 2] live=tokens\n"
                 "%%h = rms_norm(%%x, %%n)\n%%a = expert_linear(%%h, %%i, %%g, %%u) {glu = "
                 "\"silu\"}\n%%y = expert_linear(%%a, %%i, %%d, _, %%s)\noutput %%y\n",
                 rows[i].tokens, rows[i].tokens, rows[i].dtype, rows[i].dtype, rows[i].dtype,
                 rows[i].tokens);
        check_ok(&cx, pass_run_text(&cx, &options, STR("fuse_ops:relaxed=1:share_tokens=16"),
                                    str_from(program), &out));
        text_add(&out, "", 1);
        const bool sums = rows[i].apart || strcmp(rows[i].dtype, "bf16") == 0;
        if ((strstr(out.at, "= rms_norm(") != NULL) != rows[i].apart ||
            (strstr(out.at, "= sum_pairs(") != NULL) != sums)
            fail_msg("row %zu:\n%s", i, out.at);
        text_free(&out);
    }
}

/* The factor of such a sum goes into the weights of its route, and the other term becomes its
 * residual.  left: maps; routes: of which one is left. */
static void factors_go_into_weights(void **state)
{
    (void)state;
#define SUM "expert_linear(%x, %i, %w, _, %s"
#define SCALED "%y = map(%r, %l) {expr = \"x0 + x1 * 0.5\"}\noutput %y\n"
    static const char write[] =
        "%o = slice_scatter(%x, %z) {starts = [0, 0, 0], stops = [3, 2, 4], in_place = 1}\n";
    static const struct {
        const char *route, *sum, *between, *more;
        bool relaxed, fits;
        const char *factor;
    } rows[] = {
        {"", SUM ")", "", SCALED, true, true, "factor = 0.5}"},
        {"round = 1", SUM ")", "", SCALED, true, true, "factor = 0.5}"},
        {"round = 1, factor = 3.0", SUM ")", "", SCALED, true, true, "factor = 1.5}"},
        {"", SUM ", _, _, %b)", "", SCALED, true, true, "factor = 0.5}"},
        {"", SUM ")", "", SCALED, false, false, ""},
        {"", SUM ", %r)", "", SCALED, true, false, ""},
        {"", SUM ")", write, SCALED, true, false, ""},
        {"", SUM ")", "", SCALED "output %l\n", true, false, ""},
        {"", SUM ")", "", SCALED "output %s\n", true, false, ""},
        {"", SUM ")", "", SCALED "output %i\n", true, true, "factor = 0.5}"},
        {"", SUM ")", "", "%y = map(%r, %l) {expr = \"x0 + x1\"}\noutput %y\n", true, false, ""},
        {"", SUM ")", "", "%y = map(%l, %r) {expr = \"x0 + x1 * 0.5\"}\noutput %y\n", true, false,
         ""},
        {"", SUM ")", "", "%y = map(%v, %l) {expr = \"x0 + x1 * 0.5\"}\noutput %y\n", true, false,
         ""},
        {"", "expert_linear(%x, %i, %w, _, %t)", "", SCALED, true, false, ""},
        {"", "sum_pairs(%x, %s)", "", "%y = map(%q, %l) {expr = \"x0 + x1 * 0.5\"}\noutput %y\n",
         true, false, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char program[1024];
        pass_options options = {.n_workers = 2};
        text out = {0};
        snprintf(program, sizeof program,
                 "state %%x : bf16[3, 2, 40]\ninput %%z : bf16[3, 2, 4]\ninput %%h : bf16[3, 6]\n"
                 "const %%w : bf16[6, 72, 40]\ninput %%r : bf16[3, 72]\ninput %%v : bf16[1, 72]\n"
                 "input %%q : bf16[3, 40]\ninput %%t : f32[3, 2]\nconst %%b : bf16[6, 72]\n"
                 "%%i, %%s = route(%%h) {experts = 2%s%s}\n%%l = %s\n%s%s",
                 *rows[i].route ? ", " : "", rows[i].route, rows[i].sum, rows[i].between,
                 rows[i].more);
        check_ok(&cx, pass_run_text(&cx, &options,
                                    rows[i].relaxed ? STR("fuse_ops:relaxed=1") : STR("fuse_ops"),
                                    str_from(program), &out));
        text_add(&out, "", 1);
        if ((strstr(out.at, "= map(") == NULL) != rows[i].fits ||
            (strstr(out.at, "_, _, %b)") != NULL) > rows[i].fits ||
            (rows[i].fits && (!strstr(out.at, rows[i].factor) || strstr(out.at, "round = 1") ||
                              !strstr(out.at, ", %r"))))
            fail_msg("row %zu:\n%s", i, out.at);
        text_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_summed_apart),
        cmocka_unit_test(norms_stay_apart),
        cmocka_unit_test(factors_go_into_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
