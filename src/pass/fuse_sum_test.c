/* fuse_sum_test.c - the rules for sums over peers: what they make of a program, which programs they
 * leave alone, and that no bit changes. */
#include "fuse_bed.h"
#include "same_outputs.h"

/* The end of a product on two peers and what reads it: the second peer's part of everything is left
 * out, so that one peer's programs can be written by hand.  `more` stands before the product. */
#define PROGRAM(dtype, tokens, width, more, product, outputs)                               \
    "input %a : " dtype "[" tokens ", " width "] live=tokens\ninput %b : " dtype "[" tokens \
    ", " width "] live=tokens\ninput %r : " dtype "[" tokens ", " width                     \
    "] live=tokens\nconst %w : " dtype "[520, " width "]\nconst %v : " dtype "[520, " width \
    "]\nconst %f : f32[520, " width "]\nconst %n : " dtype "[" width "]\nconst %m : " dtype \
    "[" width "]\n%s = add_parts(%a, %b, %r)\n" more product outputs
#define Y "output %y\noutput %s\n"
#define PLAIN "%y = linear(%s, %w)\n"

static ir_graph *parse(arena *a, const char *source)
{
    ir_graph *g;
    check_ok(&cx, ir_parse(&cx, a, str_from(source), &g));
    return g;
}

static pass_options options_of(bool sum_terms)
{
    return (pass_options){.n_workers = 1,
                          .fusion = PASS_FUSE_FULL,
                          .norm_elements = 1 << 24,
                          .relaxed = true,
                          .sum_terms = sum_terms};
}

/* How many products of a program add the terms; their outputs are those of the program as it is. */
static size_t count_adding(const char *source)
{
    arena a = {0};
    const pass_options with = options_of(true), without = options_of(false);
    const ir_graph *g = parse(&a, source), *h = fuse_as(&a, g, &with);
    assert_int_equal(count_of(fuse_as(&a, g, &without), "sum_linear"), 0);
    const size_t n = count_of(h, "sum_linear");
    assert_int_equal(count_of(h, "add_parts"), 1 - n);
    check_same_outputs(&cx, fuse_as(&a, g, &without), h, check_seed(), 1);
    arena_free(&a);
    return n;
}

/* The first product that reads a sum adds it, and gives it to all other readers. */
static void test_products_that_add(void **state)
{
    static const char *const sources[] = {
        PROGRAM("bf16", "1", "4096", "", PLAIN, Y),
        PROGRAM("bf16", "8", "1024", "", PLAIN, Y),
        PROGRAM("f16", "2", "2056", "", "%t = rms_norm(%s, %n)\n%y = linear(%t, %w)\n", Y),
        PROGRAM("bf16", "2", "72", "",
                "%t = rms_norm(%s, %n) {eps = 1e-05}\n%g = linear(%t, %w)\n"
                "%u = linear(%t, %v)\n%h = silu(%g)\n%y = mul(%h, %u)\n",
                Y),
        PROGRAM("bf16", "2", "72", "", PLAIN "%o = rms_norm(%s, %n)\n%z = add(%o, %s)\n",
                Y "output %z\n"),
    };
    (void)state;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        assert_int_equal(count_adding(sources[i]), 1);
}

/* Near misses, each with its reason. */
static void test_products_that_do_not(void **state)
{
    static const struct {
        const char *why, *source;
    } cases[] = {
        {"more pages than registers hold", PROGRAM("bf16", "1", "4104", "", PLAIN, Y)},
        {"more rows than slots", PROGRAM("bf16", "3", "3072", "", PLAIN, Y)},
        {"more rows than slots, of one page", PROGRAM("bf16", "9", "1024", "", PLAIN, Y)},
        {"columns that are no pieces", PROGRAM("bf16", "1", "1028", "", PLAIN, Y)},
        {"a router",
         PROGRAM("bf16", "1", "512", "const %o : bf16[64, 512]\n", "%y = linear(%s, %o)\n", Y)},
        {"f32", PROGRAM("f32", "1", "64", "", PLAIN, Y)},
        {"a weight of another dtype", PROGRAM("bf16", "1", "64", "", "%y = linear(%s, %f)\n", Y)},
        {"a residual", PROGRAM("bf16", "1", "64", "input %q : bf16[1, 520] live=tokens\n",
                               "%y = linear(%s, %w, _, _, _, _, _, _, %q)\n", Y)},
        {"an activation",
         PROGRAM("bf16", "1", "64", "", "%y = linear(%s, %w) {act = \"relu\"}\n", Y)},
        {"a factor", PROGRAM("bf16", "1", "64", "", "%y = linear(%s, %w) {factor = 0.5}\n", Y)},
        {"a layer_norm",
         PROGRAM("bf16", "1", "64", "",
                 "%y = linear(%s, %w, _, _, _, _, _, %n, _, %m) {centred = 1}\n", Y)},
        {"an earlier reader that only reads the sum",
         PROGRAM("bf16", "1", "64", "%o = silu(%s)\n", PLAIN, Y "output %o\n")},
        {"a product that reads the sum as its weight",
         PROGRAM("bf16", "1", "64", "input %q : bf16[1, 64] live=tokens\n", "%y = linear(%q, %s)\n",
                 Y)},
        {"four terms",
         "input %a : bf16[1, 64]\nconst %w : bf16[8, 64]\n%s = add_parts(%a, %a, %a, %a)\n"
         "%y = linear(%s, %w)\n" Y},
        {"a single term", "input %a : bf16[1, 64]\nconst %w : bf16[8, 64]\n%s = add_parts(%a)\n"
                          "%y = linear(%s, %w)\n" Y},
        {"three axes", "input %a : bf16[1, 2, 64]\ninput %q : bf16[2, 64]\nconst %w : bf16[8, 64]\n"
                       "%s = add_parts(%a, %a)\n%y = linear(%q, %w)\n" Y},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        print_message("%s\n", cases[i].why);
        assert_int_equal(count_adding(cases[i].source), 0);
    }
}

/* Of several products that read a sum only the first adds; the others read what it gives. */
static void test_first_reader(void **state)
{
    arena a = {0};
    const pass_options o = options_of(true);
    (void)state;
    const ir_graph *h =
        fuse_as(&a,
                parse(&a, PROGRAM("bf16", "1", "64", "",
                                  PLAIN "%z = linear(%s, %v) {act = \"relu\"}\n", Y "output %z\n")),
                &o);
    assert_int_equal(count_of(h, "sum_linear"), 1);
    assert_int_equal(count_of(h, "linear"), 1);
    for (size_t i = 0; i < h->ops.n; i++)
        if (strcmp(h->ops.at[i].def->name, "linear") == 0)
            assert_true(str_is(h->tensors.at[h->ops.at[i].in[0]].name, "s"));
    arena_free(&a);
}

/* The terms lie on two peers; the product, and the sum that it makes, on the second. */
static void test_other_peers(void **state)
{
    arena a = {0};
    const pass_options o = options_of(true);
    (void)state;
    const ir_graph *h = fuse_as(
        &a,
        parse(&a, "peer all\ninput %x : bf16[1, 64]\nconst %w : bf16[64, 64]\npeer 0\n%a = "
                  "linear(%x, %w)\n"
                  "peer 1\n%b = linear(%x, %w)\n%s = add_parts(%a, %b)\n%y = linear(%s, %w)\n"
                  "output %y\n"),
        &o);
    assert_int_equal(count_of(h, "sum_linear"), 1);
    for (size_t i = 0; i < h->ops.n; i++)
        if (strcmp(h->ops.at[i].def->name, "sum_linear") == 0)
            assert_int_equal(h->ops.at[i].peer, 1);
    arena_free(&a);
}

/* Below full fusion sums stay operators. */
static void test_less_fusion(void **state)
{
    arena a = {0};
    pass_options o = options_of(true);
    (void)state;
    o.fusion = PASS_FUSE_PAPER;
    const ir_graph *h = fuse_as(&a, parse(&a, PROGRAM("bf16", "1", "64", "", PLAIN, Y)), &o);
    assert_int_equal(count_of(h, "sum_linear"), 0);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_that_add), cmocka_unit_test(test_products_that_do_not),
        cmocka_unit_test(test_first_reader), cmocka_unit_test(test_other_peers),
        cmocka_unit_test(test_less_fusion)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
