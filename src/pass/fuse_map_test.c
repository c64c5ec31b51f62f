/* fuse_map_test.c - fused maps have the bits of the single operators, on examples and on random
 * programs. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/str.h"
#include "ir/op.h"
#include "pass/pass.h"
#include "same_outputs.h"

static mpk_context cx;
static uint64_t base_seed;

static ir_graph *parse(arena *a, const char *source)
{
    ir_graph *g;
    check_ok(&cx, ir_parse(&cx, a, str_from(source), &g));
    return g;
}

/* The pass alone, and a proof that its result is a valid program. relaxed: roundings between
 * fused operators may be dropped. */
static ir_graph *fuse_as(arena *a, ir_graph *g, pass_fusion fusion, bool relaxed)
{
    arena scratch = {0};
    pass_options options = {.n_workers = 2, .fusion = fusion, .relaxed = relaxed};
    pass_state s = {&cx, a, &scratch, &options};
    check_ok(&cx, pass_fuse_map(&s, &g));
    arena_free(&scratch);
    check_ok(&cx, ir_verify(&cx, g));
    return g;
}

static ir_graph *fuse(arena *a, ir_graph *g, pass_fusion fusion)
{
    return fuse_as(a, g, fusion, false);
}

static void check_same(const ir_graph *one, const ir_graph *two, uint64_t seed)
{
    check_same_outputs(&cx, one, two, seed, 3);
}

/* The program becomes n operators, and the last one's expression is this. */
static void check_fused(const char *source, size_t n, const char *expression)
{
    arena a = {0};
    ir_graph *plain = parse(&a, source), *fused = fuse(&a, plain, PASS_FUSE_FULL);
    assert_int_equal(fused->ops.n, n);
    str found = fused->ops.at[n - 1].attributes[0].s;
    if (expression && !str_is(found, expression))
        fail_msg("found \"%.*s\", expected \"%s\"", STR_ARG(found), expression);
    check_same(plain, fused, base_seed);
    assert_int_equal(fuse(&a, plain, PASS_FUSE_NONE)->ops.n, plain->ops.n);
    arena_free(&a);
}

/* Fused expressions, literally: which roundings to a narrow dtype stay, how constants print, and
 * where casts go. */
static void examples(void **state)
{
    (void)state;
    check_fused("input %a : bf16[3, 70]\ninput %b : bf16[70]\n%s = add(%a, %b)\n%y = mul(%s, "
                "%s)\noutput %y\n",
                1, "t0 = bf16(x0 + x1); bf16(t0 * t0)");
    /* t9 of the second map is another temporary than t9, the result of the first */
    check_fused("input %a : f32[3, 7]\n%b = map(%a) {expr = \"t8 = x0 * 3; t8 + 1\", dtype = "
                "\"f32\"}\n%c = map(%a) {expr = \"t9 = x0 - 2; t9 * t9\", dtype = \"f32\"}\n%y = "
                "mul(%b, %c)\noutput %y\n",
                1, NULL);
    check_fused("input %a : f32[3, 7]\n%c = cast(%a) {dtype = \"i32\"}\n%m = map(%c, %a) {expr = "
                "\"t0 = x0 * 2; where(x1 "
                "> 1e-1, t0, x0)\", dtype = \"i64\"}\n%s = cast(%m) {dtype = \"f32\"}\n%y = "
                "gelu(%s)\noutput %y\n",
                1, NULL);
    /* read twice, in the map alone: computed once */
    check_fused(
        "input %a : f32[3, 7]\n%s = silu(%a)\n%t = gelu(%s) {tanh = 1}\n%y = add(%s, "
        "%t)\noutput %y\n",
        1,
        "t0 = f32(x0 / (1 + exp(-x0))); t1 = f32(t0 / (1 + exp(-1.59576912160573072 * (t0 + "
        "0.044715 * t0 * t0 * t0)))); f32(t0 + t1)");
    /* by three, of which the last joins by way of another */
    check_fused(
        "input %a : bf16[3, 7]\n%c = cast(%a) {dtype = \"f32\"}\n%e = map(%c) {expr = "
        "\"exp(x0)\"}\n%l = map(%e) {expr = \"log1p(x0)\"}\n%b = map(%c) {expr = \"x0 > "
        "20\", dtype = \"bool\"}\n%w = map(%b, %c, %l) {expr = \"where(x0, x1, x2)\", dtype "
        "= \"f32\"}\n%y = cast(%w) {dtype = \"bf16\"}\noutput %y\n",
        1, NULL);
    /* also read elsewhere, an output, or of another shape: stays */
    check_fused("input %a : f32[3, 7]\n%s = silu(%a)\n%t = gelu(%s) {tanh = 1}\n%z = add(%s, "
                "%t)\n%y = softmax(%s) {axis = 1}\noutput %z\noutput %y\n",
                3, NULL);
    check_fused("input %a : f32[3, 7]\n%s = silu(%a)\n%y = silu(%s)\noutput %s\noutput %y\n", 2,
                NULL);
    check_fused("input %a : f32[7]\ninput %b : f32[3, 7]\n%s = silu(%a)\n%y = silu_mul(%s, "
                "%b)\noutput %y\n",
                2, NULL);
}

/* What is computed from storage before it is overwritten in place must not move after that. */
static void nothing_moves_past_a_write(void **state)
{
    (void)state;
    check_fused("state %c : f32[4, 5]\ninput %v : f32[5]\ninput %i : i32[]\n%old = silu(%c)\n"
                "%new = index_put(%c, %v, %i) {in_place = 1}\n%y = add(%old, %new)\noutput %y\n",
                3, NULL);
}

/* With relaxed the program becomes n operators, the last one a convolution with this expression;
 * else one more at least. */
static void check_behind(const char *source, size_t n, const char *expression)
{
    enum { EXPR = 6 };
    arena a = {0};
    ir_graph *plain = parse(&a, source), *fused = fuse_as(&a, plain, PASS_FUSE_FULL, true);
    assert_int_equal(fused->ops.n, n);
    const ir_op *last = &fused->ops.at[n - 1];
    assert_int_equal(strcmp(last->def->name, "conv") == 0, expression != NULL);
    if (expression && !str_is(last->attributes[EXPR].s, expression))
        fail_msg("found \"%.*s\"", STR_ARG(last->attributes[EXPR].s));
    check_same(plain, fused, base_seed);
    if (expression)
        assert_true(fuse(&a, plain, PASS_FUSE_FULL)->ops.n > n);
    arena_free(&a);
}

#define CONV                                                                                    \
    "input %x : bf16[2, 3, 5, 6]\nconst %w : bf16[4, 3, 3, 3]\nconst %b : bf16[4]\nconst %m : " \
    "f32[4, 1, 1]\ninput %r : bf16[2, 4, 5, 6]\ninput %h : bf16[6]\n%c = conv(%x, %w, %b) "     \
    "{padding = [1, 1]}\n"

/* A map joins the convolution that it reads, once or twice; not if others read it too, if an
 * operand is neither spread over the places nor whole, or if the dtype changes. */
static void behind_convolutions(void **state)
{
    (void)state;
    check_behind(CONV
                 "%n = map(%c, %m) {expr = \"x0 - x1\", dtype = \"f32\"}\n%o = cast(%n) {dtype = "
                 "\"bf16\"}\n%s = add(%r, %o)\n%y = map(%s) {expr = \"max(x0, 0)\"}\noutput %y\n",
                 1, "t0 = f32(x0 - x1); t1 = bf16(t0); t2 = bf16(x2 + t1); bf16(max(t2, 0))");
    check_behind(CONV "%y = silu_mul(%c, %c)\noutput %y\n", 1, "bf16(x0 / (1 + exp(-x0)) * x0)");
    check_behind(CONV "%y = add(%c, %r)\n%z = mul(%y, %c)\noutput %y\noutput %z\n", 3, NULL);
    check_behind(CONV "%y = add(%c, %h)\noutput %y\n", 2, NULL);
    check_behind(CONV "%y = cast(%c) {dtype = \"f32\"}\noutput %y\n", 2, NULL);
    check_behind(CONV "%d = conv(%x, %w, _) {padding = [1, 1]}\n%y = add(%c, %d)\noutput %y\n", 2,
                 "bf16(x1 + x0)");
}

/* A random program of element-wise operators over three inputs of a shape and one that is
 * broadcast. */
static void print_random(text *out, uint64_t seed, int n)
{
    static const char *const dtypes[] = {"f32", "bf16", "f16", "f64", "i32", "i64"};
    static const char *const maps[] = {
        "x0 * sigmoid(x0) - x1 / 3", "t0 = max(x0, x1); t1 = t0 * t0; t1 - 1e-2 * x0",
        "where(x0 < x1, -x0, floordiv(x1, 2))", "exp(min(x0, 3)) + 0.1", "x0 - x1"};
    uint64_t used = 0;
    text_print(out, "input %%v0 : f32[4, 70]\ninput %%v1 : bf16[4, 70]\ninput %%v2 : i32[4, "
                    "70]\ninput %%v3 : f64[70]\n");
    for (int i = 4; i < 4 + n; i++) {
        uint64_t kind = rng_u64(seed, used++) % 3, recent = rng_u64(seed, used++) % 2;
        uint64_t a = recent && i > 4 ? (uint64_t)i - 1 : rng_u64(seed, used++) % (uint64_t)i;
        uint64_t b = rng_u64(seed, used++) % (uint64_t)i, pick = rng_u64(seed, used++);
        if (kind == 0)
            text_print(out, "%%v%d = cast(%%v%u) {dtype = \"%s\"}\n", i, (unsigned)a,
                       dtypes[pick % 6]);
        else
            text_print(out, "%%v%d = map(%%v%u, %%v%u) {expr = \"%s\", dtype = \"%s\"}\n", i,
                       (unsigned)a, (unsigned)b, maps[pick % 5], dtypes[pick / 5 % 6]);
    }
    for (int i = 4; i < 3 + n; i += 9)
        text_print(out, "output %%v%d\n", i);
    text_print(out, "output %%v%d\n", 3 + n);
}

/* Random element-wise programs, fused and not, give the same bits, and the pass does reduce
 * their number. */
static void random_programs(void **state)
{
    size_t before = 0, after = 0;
    (void)state;
    for (uint64_t round = 0; round < 100; round++) {
        arena a = {0};
        text source = {0};
        print_random(&source, base_seed + round, 3 + (int)(round % 60));
        ir_graph *plain = parse(&a, source.at), *fused = fuse(&a, plain, PASS_FUSE_FULL);
        before += plain->ops.n;
        after += fused->ops.n;
        check_same(plain, fused, base_seed + round);
        text_free(&source);
        arena_free(&a);
    }
    assert_true(after < before / 2);
}

/* A chain of n maps, each of `more` additions beside its first and of `temps` temporaries. */
static char *chain_of(uint32_t n, uint32_t more, uint32_t temps)
{
    text out = {0};
    text_print(&out, "input %%v0 : f32[3, 7]\n");
    for (uint32_t i = 0; i < n; i++) {
        text_print(&out, "%%v%u = map(%%v%u) {expr = \"", i + 1, i);
        for (uint32_t k = 0; k < temps; k++)
            text_print(&out, "t%u = x0 * 0.5; ", k);
        text_print(&out, temps ? "t%u" : "x0", temps - 1);
        for (uint32_t k = 0; k < more; k++)
            text_print(&out, " + x0");
        text_print(&out, "\", dtype = \"f32\"}\n");
    }
    text_print(&out, "output %%v%u\n", n);
    text_add(&out, "", 1);
    return out.at;
}

/* A sum of n tensors, one after the other. */
static char *sum_of(uint32_t n)
{
    text out = {0};
    for (uint32_t i = 0; i < n; i++)
        text_print(&out, "input %%a%u : f32[3, 7]\n", i);
    for (uint32_t i = 1; i < n; i++)
        text_print(&out, "%%s%u = add(%%%s%u, %%a%u)\n", i, i > 1 ? "s" : "a", i - 1, i);
    text_print(&out, "output %%s%u\n", n - 1);
    text_add(&out, "", 1);
    return out.at;
}

/* Add a long number so many times; with the sign it has 65 bytes. */
static void print_long(text *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        text_print(out, " + 0.%060d", 1);
}

/* A chain of n maps whose texts have 520 bytes and some more each. */
static char *long_chain_of(uint32_t n)
{
    text out = {0};
    text_print(&out, "input %%v0 : f32[3, 7]\n");
    for (uint32_t i = 0; i < n; i++) {
        text_print(&out, "%%v%u = map(%%v%u) {expr = \"x0", i + 1, i);
        print_long(&out, 8);
        text_print(&out, "\"}\n");
    }
    text_print(&out, "output %%v%u\n", n);
    text_add(&out, "", 1);
    return out.at;
}

/* A recurrence of a map of n inputs, of so many additions more, the last of them of long
 * numbers. */
static char *steps_of(uint32_t n, uint32_t more, uint32_t n_long)
{
    text out = {0};
    for (uint32_t i = 0; i < n; i++)
        text_print(&out, "input %%a%u : f32[3, 7]\n", i);
    text_print(&out, "%%m = map(");
    for (uint32_t i = 0; i < n; i++)
        text_print(&out, "%s%%a%u", i ? ", " : "", i);
    text_print(&out, ") {expr = \"x0");
    for (uint32_t i = 1; i < n; i++)
        text_print(&out, " + x%u", i);
    for (uint32_t i = 0; i < more; i++)
        text_print(&out, " + x0");
    print_long(&out, n_long);
    text_print(&out, "\"}\n%%y = recur(%%m) {expr = \"x0 + 0.5 * x1\"}\noutput %%y\n");
    text_add(&out, "", 1);
    return out.at;
}

/* How many operators a program becomes, which keeps its bits, and how many operands its last one
 * has; the source is freed. */
static void check_limit(char *source, size_t n, uint32_t n_in)
{
    arena a = {0};
    const bool relaxed = strstr(source, "recur(") != NULL; /* else no recurrence takes in any */
    ir_graph *plain = parse(&a, source), *fused = fuse_as(&a, plain, PASS_FUSE_FULL, relaxed);
    assert_int_equal(fused->ops.n, n);
    assert_int_equal(fused->ops.at[n - 1].n_in, n_in);
    check_same(plain, fused, base_seed);
    arena_free(&a);
    free(source);
}

/* Behind another operand each input of a map has the next number: of 1 to 12 inputs none is taken
 * for another. */
static void numbers_of_inputs(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 12; n++) {
        text out = {0};
        text_print(&out, "input %%b : f32[3, 7]\n");
        for (uint32_t i = 0; i < n; i++)
            text_print(&out, "input %%a%u : f32[3, 7]\n", i);
        text_print(&out, "%%m = map(%%a0");
        for (uint32_t i = 1; i < n; i++)
            text_print(&out, ", %%a%u", i);
        text_print(&out, ") {expr = \"x0");
        for (uint32_t i = 1; i < n; i++)
            text_print(&out, " + %u.9 * x%u", i, i);
        text_print(&out, "\"}\n%%y = mul(%%b, %%m)\noutput %%y\n");
        check_limit(out.at, 1, n + 1);
    }
}

/* A map grows up to each of its limits, and not beyond: 24 members, 200 steps, 32 temporaries, 14
 * operands, 4,096 bytes; and so does a recurrence.  A map of k additions has k + 1 steps, one more
 * to round; its result is a temporary. */
static void limits(void **state)
{
    (void)state;
    check_limit(chain_of(24, 1, 0), 1, 1);
    check_limit(chain_of(25, 1, 0), 2, 1);
    check_limit(chain_of(20, 8, 0), 1, 1);
    check_limit(chain_of(20, 9, 0), 2, 1);
    check_limit(chain_of(4, 0, 7), 1, 1);
    check_limit(chain_of(5, 0, 7), 2, 1);
    check_limit(sum_of(14), 1, 14);
    check_limit(sum_of(15), 2, 14);
    check_limit(long_chain_of(7), 1, 1);
    check_limit(long_chain_of(8), 8, 1); /* too long as a whole, so none joins */
    check_limit(steps_of(1, 98, 0), 1, 1);
    check_limit(steps_of(1, 99, 0), 2, 1); /* of half the steps */
    check_limit(steps_of(8, 0, 0), 1, 8);
    check_limit(steps_of(9, 0, 0), 2, 1); /* which stand twice in the list that is made */
    check_limit(steps_of(1, 0, 60), 1, 1);
    check_limit(steps_of(1, 0, 64), 2, 1);
    /* what has no steps of its own: a table of blocks */
    check_fused("input %w : q8_0[3, 32]\n%c = cast(%w) {dtype = \"f32\"}\n%y = silu(%c)\n"
                "output %y\n",
                2, NULL);
}

/* With relaxed the program becomes n operators, the last one a reduction with these expressions;
 * without, one more at least. */
static void check_reduced(const char *source, size_t n, const char *expr, int64_t inputs,
                          const char *then)
{
    enum { EXPR = 4, INPUTS, THEN };
    arena a = {0};
    ir_graph *plain = parse(&a, source), *fused = fuse_as(&a, plain, PASS_FUSE_FULL, true);
    assert_int_equal(fused->ops.n, n);
    const ir_op *last = &fused->ops.at[n - 1];
    assert_string_equal(last->def->name, "reduce");
    const ir_attribute *found = last->attributes;
    if (!str_is(found[EXPR].s, expr) || !str_is(found[THEN].s, then) || found[INPUTS].i != inputs)
        fail_msg("found \"%.*s\" of %lld, \"%.*s\"", STR_ARG(found[EXPR].s),
                 (long long)found[INPUTS].i, STR_ARG(found[THEN].s));
    check_same(plain, fused, base_seed);
    arena_free(&a);
}

/* What is reduced, and what follows, join the reduction: in one graph, or not at all. */
static void around_reductions(void **state)
{
    static const char operands[] =
        "input %%x : bf16[2, 70, 16]\ninput %%w : bf16[2, 1, 16]\ninput %%b : f32[70]\n"
        "input %%s : bf16[2, 70]\n%s";
    static const char terms[] = "%m = mul(%x, %w)\n%r = reduce(%m) {axes = [2]}\n";
    static const struct {
        const char *steps;
        size_t n;
        const char *expr;
        int64_t inputs;
        const char *then;
    } rows[] = {
        {"%o = add(%r, %s)\n%q = map(%o, %b) {expr = \"x0 * x1\", dtype = \"f32\"}\n%y = cast(%q) "
         "{dtype = \"bf16\"}\noutput %y\n",
         1, "bf16(x0 * x1)", 2, "t0 = bf16(x0 + x1); t1 = f32(t0 * x2); bf16(t1)"},
        {"%y = mul(%r, %r)\noutput %y\n", 1, "bf16(x0 * x1)", 2, "bf16(x0 * x0)"},
        /* what others read stays */
        {"output %m\noutput %r\n", 2, "", 1, ""},
        {"%y = silu(%r)\n%z = softmax(%r) {axis = 1}\n%q = add(%y, %z)\n%e = reduce(%q) {axes = "
         "[1]}\noutput %e\n",
         3, "t0 = bf16(x0 / (1 + exp(-x0))); bf16(bf16(t0 + x1))", 2, ""},
        /* and so does what has another dtype than the sum, or is no sum */
        {"%q = cast(%r) {dtype = \"f32\"}\n%y = reduce(%q) {axes = [1], kind = \"any\"}\noutput "
         "%y\n",
         3, "", 1, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        text source = {0};
        text both = {0};
        text_print(&both, "%s%s", terms, rows[i].steps);
        text_print(&source, operands, both.at);
        check_reduced(source.at, rows[i].n, rows[i].expr, rows[i].inputs, rows[i].then);
        text_free(&source);
        text_free(&both);
    }
    /* a sum of all has fewer workers than the product: of a small tensor that does not matter */
    check_reduced("input %x : f32[300, 200]\n%m = mul(%x, %x)\n%y = reduce(%m) {axes = [0, "
                  "1]}\noutput %y\n",
                  2, "", 1, "");
    check_reduced("input %x : f32[30, 200]\n%m = mul(%x, %x)\n%y = reduce(%m) {axes = [0, "
                  "1]}\noutput %y\n",
                  1, "f32(x0 * x0)", 1, "");
    /* rows that lie apart are read better by the product */
    check_reduced("input %x : f32[30, 40]\n%t = transpose(%x) {perm = [1, 0]}\n%m = mul(%t, "
                  "%t)\n%y = reduce(%m) {axes = [1]}\noutput %y\n",
                  3, "", 1, "");
    /* what is read must not have been overwritten */
    check_reduced("state %c : f32[4, 5]\ninput %v : f32[5]\ninput %i : i32[]\n%old = mul(%c, "
                  "%c)\n%r = reduce(%old) {axes = [1]}\n%new = index_put(%c, %v, %i) {in_place = "
                  "1}\n%s = reduce(%new) {axes = [1]}\noutput %r\noutput %s\n",
                  4, "", 1, "");
}

/* What is small is computed again: by the map that spreads it, through a reshape too, and by a
 * reduction beside others that read it. */
static void small_ones_are_repeated(void **state)
{
    static const struct {
        const char *source;
        size_t n; /* operators with relaxed; reshapes count */
    } rows[] = {
        {"input %b : bf16[3, 7]\ninput %a : bf16[3, 7, 5]\n%s = silu(%b)\n%r = reshape(%s) {shape "
         "= "
         "[3, 7, 1]}\n%y = mul(%a, %r)\noutput %y\n",
         2},
        {"input %b : bf16[7]\ninput %a : bf16[3, 7]\n%s = silu(%b)\n%y = mul(%a, %s)\noutput %y\n",
         1},
        /* also read elsewhere: one map more is no gain */
        {"input %b : bf16[7]\ninput %a : bf16[3, 7]\n%s = silu(%b)\n%y = mul(%a, %s)\noutput %y\n"
         "output %s\n",
         2},
        /* large */
        {"input %b : bf16[600]\ninput %a : bf16[600, 600]\n%s = silu(%b)\n%y = mul(%a, %s)\noutput "
         "%y\n",
         2},
        /* a reshape that moves entries to other rows */
        {"input %b : bf16[3, 8]\ninput %a : bf16[24, 5]\n%s = silu(%b)\n%r = reshape(%s) {shape = "
         "[24, 1]}\n%y = mul(%a, %r)\noutput %y\n",
         3},
        {"input %a : bf16[3, 7]\ninput %b : bf16[3, 7]\ninput %c : bf16[7]\n%h = mul(%a, %b)\n%m = "
         "mul(%h, %c)\n%y = reduce(%m) {axes = [1]}\noutput %h\noutput %y\n",
         2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        arena a = {0};
        ir_graph *plain = parse(&a, rows[i].source),
                 *fused = fuse_as(&a, plain, PASS_FUSE_FULL, true);
        if (fused->ops.n != rows[i].n)
            fail_msg("row %zu became %zu operators", i, fused->ops.n);
        check_same(plain, fused, base_seed);
        arena_free(&a);
    }
    /* the reduction does not wait for what both compute */
    arena a = {0};
    const ir_graph *g = fuse_as(&a, parse(&a, rows[5].source), PASS_FUSE_FULL, true);
    for (size_t i = 0; i < g->ops.n; i++)
        for (uint32_t k = 0; k < g->ops.at[i].n_in; k++)
            assert_true(g->tensors.at[g->ops.at[i].in[k]].producer == IR_NONE);
    /* what is overwritten in between is not read later */
    check_reduced("state %c : f32[4, 5]\ninput %v : f32[5]\ninput %i : i32[]\n%old = mul(%c, "
                  "%c)\n%new = index_put(%c, %v, %i) {in_place = 1}\n%m = mul(%old, %v)\n%r = "
                  "reduce(%m) {axes = [1]}\noutput %old\noutput %new\noutput %r\n",
                  3, "f32(x0 * x1)", 2, "");
    arena_free(&a);
}

/* The next number below n. */
static size_t draw(uint64_t seed, uint64_t *used, size_t n)
{
    return rng_u64(seed, (*used)++) % n;
}
/* One of an array, by the `seed` at hand and how often it was `used`. */
#define PICK(array) array[draw(seed, &used, sizeof(array) / sizeof *(array))]

/* Random reductions of random maps, and maps of these, give the same bits. */
static void random_reductions(void **state)
{
    static const char *const kinds[] = {"sum", "mean", "max", "min", "prod", "logsumexp"};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    static const char *const terms[] = {"f32", "bf16", "f16", "f64"};
    static const char *const shapes[] = {"6, 5, 24", "1, 5, 24", "24", "6, 1, 1", "5, 1", ""};
    static const char *const axes[] = {"2", "1", "0", "0, 2", "2, 1", "1, 0, 2"};
    static const char *const of_two[] = {"x0 * x1", "exp(min(x0, 1)) - x1", "max(x0, x1)"};
    static const char *const results[] = {"6, 5, 1", "6, 1, 24", "1, 5, 24",
                                          "1, 5, 1", "6, 1, 1",  "1, 1, 1"};
    /* over which the result is spread, so that what follows is larger than it */
    static const char *const wider[] = {"6, 5, 24", "1, 5, 24", "2, 1, 1, 1", "6, 1, 24"};
    size_t before = 0, after = 0;
    (void)state;
    for (uint64_t round = 0; round < 200; round++) {
        const uint64_t seed = base_seed + round;
        uint64_t used = 0;
        arena a = {0};
        text out = {0};
        const size_t along = draw(seed, &used, 6);
        text_print(&out, "input %%a : %s[6, 5, 24]\n", PICK(dtypes));
        text_print(&out, "input %%b : %s", PICK(dtypes));
        text_print(&out, "[%s]\n", PICK(shapes));
        const bool is_wider = draw(seed, &used, 5) == 0;
        text_print(&out, "input %%c : %s[%s]\n", PICK(dtypes),
                   is_wider ? PICK(wider) : results[along]);
        text_print(&out, "%%p = map(%%a, %%b) {expr = \"%s\"", PICK(of_two));
        text_print(&out, ", dtype = \"%s\"}\n%%q = silu(%%b)\n", PICK(dtypes));
        if (draw(seed, &used, 2))
            text_print(&out, "output %%p\n");
        text_print(&out, "%%m = map(%%p, %%q) {expr = \"%s\"", PICK(of_two));
        text_print(&out, ", dtype = \"%s\"}\n%%r = reduce(%%m) {axes = [%s], keep = 1", PICK(terms),
                   axes[along]);
        text_print(&out, ", kind = \"%s\"", PICK(kinds));
        text_print(&out, ", dtype = \"%s\"}\n", PICK(dtypes));
        text_print(&out, "%%s = map(%%c, %%r) {expr = \"%s\"", PICK(of_two));
        text_print(&out, ", dtype = \"%s\"}\n%%y = silu(%%s)\noutput %%y\n", PICK(dtypes));
        ir_graph *plain = parse(&a, out.at), *fused = fuse_as(&a, plain, PASS_FUSE_FULL, true);
        before += plain->ops.n;
        after += fused->ops.n;
        check_same(plain, fused, seed);
        text_free(&out);
        arena_free(&a);
    }
    assert_true(after * 3 < before * 2);
}

/* Random recurrences of random maps give the same bits: of maps that are smaller than the result,
 * that others read, too, or of what is overwritten before. */
static void random_recurrences(void **state)
{
    static const char *const dtypes[] = {"f32", "bf16", "f16", "i32", "f64"};
    static const char *const of_two[] = {"x0 * x1", "exp(min(x0, 1)) - x1", "max(x0, x1)"};
    static const char *const shapes[] = {"6, 5", "6, 5", "6, 1", "1, 5", "5", ""};
    static const char *const starts[] = {"zero", "given", "first"};
    size_t joined = 0;
    (void)state;
    for (uint64_t round = 0; round < 200; round++) {
        const uint64_t seed = base_seed + round;
        uint64_t used = 0;
        arena a = {0};
        text out = {0};
        const size_t start = draw(seed, &used, 3), kind = draw(seed, &used, 6);
        const char *operands = draw(seed, &used, 2) ? "%m, %n" : "%n, %m";
        text_print(&out, "state %%a : f32[6, 5]\ninput %%h : f32[5]\ninput %%v : f32[1, 5]\n");
        for (int i = 0; i < 3; i++)
            text_print(&out, "input %%b%d : %s[%s]\n", i, dtypes[draw(seed, &used, 5)],
                       shapes[draw(seed, &used, 6)]);
        text_print(&out, "%%m = map(%%a, %%b0) {expr = \"%s\"", PICK(of_two));
        text_print(&out, ", dtype = \"%s\"}\n", dtypes[draw(seed, &used, 3)]);
        text_print(&out, "%%n = map(%%b1, %%b2) {expr = \"%s\"", PICK(of_two));
        text_print(&out, ", dtype = \"%s\"}\n", dtypes[draw(seed, &used, 3)]);
        if (kind == 0)
            text_print(&out, "%%u = slice_scatter(%%a, %%v) {starts = [1, 0], stops = [2, 5], "
                             "in_place = 1}\noutput %%u\n");
        text_print(&out, "%%y = recur(%s%s) {expr = \"0.5 * x2 + min(x0 - x1, 1)\"", operands,
                   start == 1 ? ", %h" : "");
        text_print(&out, ", dtype = \"%s\", start = \"%s\"}\noutput %%y\n",
                   dtypes[draw(seed, &used, 3)], starts[start]);
        if (kind == 1)
            text_print(&out, "output %%m\n");
        if (kind == 2)
            text_print(&out, "%%e = silu(%%m)\noutput %%e\n");
        ir_graph *plain = parse(&a, out.at), *fused = fuse_as(&a, plain, PASS_FUSE_FULL, true);
        joined += fused->ops.n == 1;
        check_same(plain, fused, seed);
        text_free(&out);
        arena_free(&a);
    }
    assert_true(joined > 5);
}

/* Random convolutions followed by maps: of operands of the result's shape, of one that is spread
 * over it and of larger ones; whose result others read, too; and of operands that are overwritten
 * before the maps. */
static void random_convolutions(void **state)
{
    static const char *const dtypes[] = {"f32", "bf16", "f16", "i32"};
    static const char *const of_two[] = {"x0 * x1", "max(x0, x1) - x0", "x1 - x0 * 0.5"};
    static const char *const whole[2] = {"2, 4, 5, 6", "2, 5, 6, 4"};
    static const char *const per_channel[2] = {"4, 1, 1", "4"};
    static const char *const shapes[] = {"",           "1",          "6",       "4",
                                         "1, 4, 1, 1", "2, 1, 1, 1", "5, 6",    "4, 1, 1",
                                         "4, 5, 6",    "5, 6, 4",    "5, 1, 4", "2, 1, 1, 1, 1"};
    size_t joined = 0;
    (void)state;
    for (uint64_t round = 0; round < 200; round++) {
        const uint64_t seed = base_seed + round;
        uint64_t used = 0;
        arena a = {0};
        text out = {0};
        const size_t last = draw(seed, &used, 2), kind = draw(seed, &used, 6);
        const char *dtype = dtypes[draw(seed, &used, 3)], *other = dtype, *shape = whole[last];
        const char *first = draw(seed, &used, 2) ? "r" : "c", *result = dtype;
        if (kind == 0)
            result = PICK(dtypes);
        if (kind == 0)
            other = PICK(dtypes);
        if (kind == 1)
            shape = per_channel[last];
        if (kind == 2)
            shape = PICK(shapes);
        text_print(&out, "state %%x : %s[2, 3, 5, 6]\nconst %%w : %s[4, 3, 3, 3]\n", dtype, dtype);
        text_print(&out, "input %%m : %s[%s]\ninput %%r : %s[%s]\ninput %%v : %s[1, 3, 5, 6]\n",
                   other, shape, other, whole[last], dtype);
        text_print(&out, "%%c = conv(%%x, %%w, _) {padding = [1, 1], last = %d}\n", (int)last);
        if (kind == 3)
            text_print(&out, "%%u = slice_scatter(%%x, %%v) {starts = [1, 0, 0, 0], stops = "
                             "[2, 3, 5, 6], in_place = 1}\noutput %%u\n");
        text_print(&out, "%%s = map(%%c, %%m) {expr = \"%s\"", PICK(of_two));
        text_print(&out, ", dtype = \"%s\"}\n%%y = map(%%%s, %%s) {expr = \"%s\"", result, first,
                   PICK(of_two));
        text_print(&out, ", dtype = \"%s\"}\noutput %%y\n", kind == 0 ? PICK(dtypes) : dtype);
        if (kind == 4)
            text_print(&out, "%%e = silu(%%c)\noutput %%e\n");
        if (kind == 5)
            text_print(&out, "output %%c\n");
        mpk_context refused = {0};
        ir_graph *plain;
        if (ir_parse(&refused, &a, str_from(out.at), &plain) == MPK_OK) {
            ir_graph *fused = fuse_as(&a, plain, PASS_FUSE_FULL, true);
            joined += fused->ops.n == 1;
            check_same(plain, fused, seed);
        } else {
            assert_int_equal(kind, 2); /* a shape that does not spread over the result */
        }
        text_free(&out);
        arena_free(&a);
    }
    assert_true(joined > 20);
}

int main(void)
{
    base_seed = check_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(examples),
                                       cmocka_unit_test(nothing_moves_past_a_write),
                                       cmocka_unit_test(behind_convolutions),
                                       cmocka_unit_test(around_reductions),
                                       cmocka_unit_test(small_ones_are_repeated),
                                       cmocka_unit_test(random_reductions),
                                       cmocka_unit_test(random_convolutions),
                                       cmocka_unit_test(random_recurrences),
                                       cmocka_unit_test(limits),
                                       cmocka_unit_test(numbers_of_inputs),
                                       cmocka_unit_test(random_programs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
