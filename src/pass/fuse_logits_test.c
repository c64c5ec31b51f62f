/* fuse_logits_test.c - which ends of a step become `logits`, and with which numbers. */
#include "check.h"
#include "pass/pass.h"

static mpk_context cx;

/* A step that ends by `product` of %x and `ends`, which makes %l of it, with all rules. */
static void fuse(const char *before, const char *product, const char *ends, text *out)
{
    char program[2048];
    pass_options options = {.n_workers = 2};
    snprintf(program, sizeof program,
             "input %%x : bf16[2, 32] live=rows\nconst %%w : bf16[80, 32]\nconst %%n : "
             "bf16[32]\nconst %%b : bf16[80]\ninput %%r : bf16[2, 80] live=rows\n"
             "input %%s : f32[2, 4] live=rows\ninput %%e : i64[2] live=rows\ninput %%d : "
             "i32[2] live=rows\ninput %%a : i32[2, 7] live=rows\ninput %%u : i32[2, 64]\n"
             "input %%h : i32[60]\nstate %%c : f32[2, 80]\ninput %%o : f32[2, 80] live=rows\n"
             "%s%%y = %s\n%s%%t, %%k, %%p = sample(%%l, %%s, %%e, %%d, %%a, %%u, %%h, %%c)\n"
             "output %%t\n",
             before, product, ends);
    check_ok(&cx, pass_run_text(&cx, &options, STR("fuse_ops:relaxed=1:logits=1"),
                                str_from(program), out));
    text_add(out, "", 1);
}

#define CAST "%l = cast(%y) {dtype = \"f32\"}\n"

/* The product of the sampler's logits becomes `logits` if it has nothing that `logits` has not: a
 * bias, a residual, a gate. */
static void logits_are_plain_products(void **state)
{
    (void)state;
    const struct {
        const char *product;
        bool fused;
    } rows[] = {
        {"linear(%x, %w)", true},
        {"linear(%x, %w, _, _, _, _, _, %n)", true},
        {"linear(%x, %w) {factor = 0.5}", false},
        {"linear(%x, %w, _, _, %b)", false},
        {"linear(%x, %w, _, _, _, _, _, _, %r)", false},
        {"linear(%x, %w, %w) {glu = \"silu\"}", false},
        {"linear(%z, %w, _, _, _, _, _, %n)", true}, /* one norm of two */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *z = strstr(rows[i].product, "%z") ? "%z = rms_norm(%x, %n) {eps = 0.5}\n" : "";
        text out = {0};
        fuse(z, rows[i].product, CAST, &out);
        if ((strstr(out.at, "= logits(") != NULL) != rows[i].fused)
            fail_msg("%s:\n%s", rows[i].product, out.at);
        assert_int_equal(strstr(out.at, "= rms_norm(") != NULL, *z != 0);
        text_free(&out);
    }
}

/* A factor and then a cap, each a map of its own, become attributes; other maps, and those whose
 * operand something else reads, stay.  attributes: NULL, there is no `logits`. */
static void factors_and_caps_become_attributes(void **state)
{
    (void)state;
#define FIRST "%f = cast(%y) {dtype = \"f32\"}\n"
#define MAP(to, from, expr) to " = map(" from ") {expr = \"" expr "\"}\n"
    static const struct {
        const char *ends, *attributes;
    } rows[] = {
        {CAST, ") : f32"},
        {FIRST MAP("%l", "%f", "x0 * 0.0625"), ") {factor = 0.0625} : f32"},
        {FIRST MAP("%l", "%f", "x0 * -0.0625"), NULL},
        {FIRST MAP("%l", "%f", "x0 * 0"), NULL},
        {FIRST MAP("%l", "%f", "x0 * 1e30"), NULL},
        {FIRST MAP("%l", "%f", "x0 * x0"), NULL},
        {FIRST MAP("%l", "%f", "x0 + 2"), NULL},
        {FIRST MAP("%l", "%f", "tanh(x0 / 30) * 30"), ") {cap = 3e+01} : f32"},
        {FIRST MAP("%l", "%f", "tanh(x0 / 30) * 31"), NULL},
        {FIRST MAP("%l", "%f", "tanh(x0 / 30) * 300"), NULL},
        {FIRST MAP("%l", "%f", "tanh(x0 / -3) * -3"), NULL},
        {FIRST MAP("%l", "%f", "tanh(x0 * 30) * 30"), NULL},
        {FIRST MAP("%l", "%f", "tanh(x0 / 30) / 30"), NULL},
        {FIRST MAP("%l", "%f", "tanh(x0 / x0) * x0"), NULL},
        {FIRST MAP("%l", "%f", "tanh(x0)"), NULL},
        {FIRST MAP("%g", "%f", "x0 * 2.5") MAP("%l", "%g", "tanh(x0 / 30) * 30"),
         ") {factor = 2.5, cap = 3e+01} : f32"},
        {FIRST MAP("%g", "%f", "tanh(x0 / 30) * 30") MAP("%l", "%g", "x0 * 2.5"), NULL},
        {FIRST MAP("%g", "%f", "x0 * 2.5") MAP("%l", "%g", "x0 * 2.5"), NULL},
        /* read by others, and of two operands */
        {FIRST MAP("%l", "%f", "x0 * 0.5") "output %f\n", NULL},
        {FIRST MAP("%l", "%f", "x0 * 0.5") MAP("%z", "%f", "x0 + 1") "output %z\n", NULL},
        {FIRST MAP("%l", "%f, %o", "x0 * 0.5 + x1"), NULL},
        {FIRST MAP("%l", "%f", "x0 * 0.5") "output %l\n", ") {factor = 0.5} : f32"},
        /* no f32 between product and map: what it rounds would be skipped twice */
        {"%l = map(%y) {expr = \"x0 * 0.5\", dtype = \"f32\"}\n", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        text out = {0};
        fuse("", "linear(%x, %w)", rows[i].ends, &out);
        const char *at = strstr(out.at, "= logits(");
        const char *end = at ? strchr(at, ')') : NULL;
        if ((at != NULL) != (rows[i].attributes != NULL) ||
            (end && strncmp(end, rows[i].attributes, strlen(rows[i].attributes)) != 0))
            fail_msg("row %zu:\n%s", i, out.at);
        assert_int_equal(strstr(out.at, "= map(") != NULL,
                         rows[i].attributes == NULL || strstr(rows[i].ends, "%z") != NULL);
        text_free(&out);
    }
}

/* Parts of rows that several peers have made take factor and cap along. */
static void parts_take_factors(void **state)
{
    (void)state;
    static const struct {
        const char *expr;
        bool fused;
    } rows[] = {{"x0 * 0.5", true}, {"x0 + 0.5", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char ends[1024];
        text out = {0};
        snprintf(ends, sizeof ends,
                 "%%y0 = cast(%%y) {dtype = \"f32\"}\n%%m0 = map(%%y0) {expr = \"%s\"}\n"
                 "%%z = linear(%%x1, %%v)\n%%z0 = cast(%%z) {dtype = \"f32\"}\n"
                 "%%m1 = map(%%z0) {expr = \"%s\"}\n%%l = concat(%%m0, %%m1) {axis = 1}\n",
                 rows[i].expr, rows[i].expr);
        fuse(
            "input %x1 : bf16[2, 32] live=rows\nconst %v : bf16[16, 32]\nconst %q : bf16[64, 32]\n",
            "linear(%x, %q)", ends, &out);
        if ((strstr(out.at, "= join_peaks(") != NULL) != rows[i].fused ||
            (strstr(out.at, "factor = 0.5") != NULL) != rows[i].fused)
            fail_msg("row %zu:\n%s", i, out.at);
        text_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_plain_products),
        cmocka_unit_test(factors_and_caps_become_attributes),
        cmocka_unit_test(parts_take_factors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
