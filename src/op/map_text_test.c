/* map_text_test.c - texts of the operator map mean what its grammar says: random texts, worked out
 * while they are written down; and texts that break off, or nest too deeply, are refused. */
#include "numbers_bed.h"

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/str.h"
#include "op/map_program.h"

/* As map_program.h has them: of two values that meet, both become the higher. */
typedef enum type { TRUTH, WHOLE, SHORT, LONG } type;

/* A number has no type before it meets a value; is_whole: no point, no exponent, and it fits. */
typedef struct value {
    type type;
    bool is_number, is_whole;
    int64_t whole; /* of truths and whole numbers */
    double real;   /* of the others, and of any number */
} value;

enum { TEMPS = 4, MOST_NODES = 20 };

typedef struct writer {
    uint64_t seed, used;
    text out;
    int nodes; /* values written so far: few enough for the limits of steps */
    value inputs[4], temps[TEMPS];
    int n_temps;
} writer;

static uint32_t draw(writer *w, uint32_t n)
{
    return (uint32_t)(rng_u64(w->seed, w->used++) % n);
}

/* A word, between spaces or none. */
static void put(writer *w, const char *word)
{
    static const char *const spaces[] = {"", "", "", " ", "  "};
    const char *before = spaces[draw(w, 5)], *after = spaces[draw(w, 5)];
    text_print(&w->out, "%s%s%s", before, word, after);
}

/* ---- what values become ---- */

static type type_of(const value *v)
{
    if (v->is_number)
        return v->is_whole ? WHOLE : SHORT;
    return v->type;
}

static type higher(type a, type b)
{
    return a > b ? a : b;
}

/* As a value of this type, which is no lower than its own unless it is a truth. */
static value as(type t, value v)
{
    const bool from_whole = v.is_number ? v.is_whole && t == WHOLE : v.type <= WHOLE;
    const double real = from_whole && !v.is_number ? (double)v.whole : v.real;
    value y = {.type = t};
    if (t == TRUTH)
        y.whole = from_whole ? v.whole != 0 : v.real != 0;
    else if (t == WHOLE)
        y.whole = v.whole;
    else if (t == SHORT)
        y.real = from_whole && !v.is_number ? (double)(float)v.whole : (double)(float)real;
    else
        y.real = real;
    return y;
}

static value negative(value v)
{
    if (!v.is_number) {
        const type t = higher(v.type, WHOLE);
        v = as(t, v);
    }
    v.whole = (int64_t)(0 - (uint64_t)v.whole);
    v.real = -v.real;
    return v;
}

static double rounded(type t, double x)
{
    return t == SHORT ? (double)(float)x : x;
}

/* A sum, difference, product or quotient.  What doubles give of two floats, rounded once more, is
 * what floats give. */
static value combined(char sign, value a, value b)
{
    const type t = higher(higher(type_of(&a), type_of(&b)), sign == '/' ? SHORT : WHOLE);
    a = as(t, a), b = as(t, b);
    const uint64_t i = (uint64_t)a.whole, k = (uint64_t)b.whole;
    value y = {.type = t};
    switch (sign) {
    case '+':
        y.whole = (int64_t)(i + k), y.real = rounded(t, a.real + b.real);
        break;
    case '-':
        y.whole = (int64_t)(i - k), y.real = rounded(t, a.real - b.real);
        break;
    case '*':
        y.whole = (int64_t)(i * k), y.real = rounded(t, a.real * b.real);
        break;
    default:
        y.real = rounded(t, a.real / b.real);
    }
    return y;
}

static value compared(const char *how, value a, value b)
{
    const type t = higher(higher(type_of(&a), type_of(&b)), WHOLE);
    a = as(t, a), b = as(t, b);
    bool is_less = a.real<b.real, is_equal = a.real == b.real, is_more = a.real> b.real;
    if (t == WHOLE) {
        is_less = a.whole < b.whole;
        is_equal = a.whole == b.whole;
        is_more = a.whole > b.whole;
    }
    bool holds = (how[0] == '<' && is_less) || (how[0] == '>' && is_more) ||
                 (how[0] == '!' && !is_equal) || (how[0] != '!' && how[1] && is_equal);
    return (value){.type = TRUTH, .whole = holds};
}

/* ---- the grammar ---- */

static value write_compare(writer *w, int depth);

/* Whole numbers up to 2^63 - 1 and beyond, and numbers with a point, an exponent or both. */
static value write_number(writer *w)
{
    char word[64];
    const uint64_t bits = rng_u64(w->seed, w->used++);
    const unsigned tens = draw(w, 20), point = draw(w, 1000);
    static const char *const exponents[] = {"e", "E", "e+", "E-", "e-", "e0"};
    switch (draw(w, 5)) {
    case 0:
        snprintf(word, sizeof word, "%llu", (unsigned long long)(bits % 10));
        break;
    case 1:
        snprintf(word, sizeof word, "%llu", (unsigned long long)(bits >> draw(w, 60)));
        break;
    case 2:
        snprintf(word, sizeof word, "%u.%u", tens, point);
        break;
    case 3:
        snprintf(word, sizeof word, "%u%s%u", tens, exponents[draw(w, 6)], draw(w, 9));
        break;
    default:
        snprintf(word, sizeof word, "%u.%03u%s%u", tens, point, exponents[draw(w, 6)], draw(w, 9));
    }
    put(w, word);
    value v = {.is_number = true, .real = strtod(word, NULL)};
    v.is_whole = strspn(word, "0123456789") == strlen(word) && v.real < 0x1p63;
    v.whole = v.is_whole ? strtoll(word, NULL, 10) : 0;
    return v;
}

/* where(c, a, b): the condition has no part in the type. */
static value write_where(writer *w, int depth)
{
    put(w, "where");
    put(w, "(");
    const value c = as(TRUTH, write_compare(w, depth - 1));
    put(w, ",");
    const value a = write_compare(w, depth - 1);
    put(w, ",");
    const value b = write_compare(w, depth - 1);
    put(w, ")");
    return as(higher(type_of(&a), type_of(&b)), c.whole ? a : b);
}

/* As the value comes back from a tensor of a dtype; whole numbers alone go into narrow ones. */
static value write_round(writer *w, int depth)
{
    static const char *const names[] = {"f64", "f32", "bf16", "f16", "bool",
                                        "i64", "i32", "i16",  "i8",  "u8"};
    const uint32_t which = draw(w, 10);
    text inner = w->out;
    w->out = (text){0};
    const value v = write_compare(w, depth - 1);
    const bool is_whole = type_of(&v) <= WHOLE;
    const uint32_t to = which < 5 || is_whole ? which : which - 5;
    text rest = w->out;
    w->out = inner;
    put(w, names[to]);
    put(w, "(");
    text_add(&w->out, rest.at, rest.n);
    put(w, ")");
    text_free(&rest);
    value y = as(to == 0 ? LONG : SHORT, v);
    if (to == 2)
        y.real = (double)num_from_bf16(num_to_bf16((float)y.real));
    else if (to == 3)
        y.real = (double)num_from_f16(num_to_f16((float)y.real));
    else if (to == 4)
        y = as(TRUTH, v);
    else if (to >= 5)
        y = as(WHOLE, v);
    if (to == 6)
        y.whole = (int32_t)(uint32_t)y.whole;
    else if (to == 7)
        y.whole = (int16_t)(uint16_t)y.whole;
    else if (to == 8)
        y.whole = (int8_t)(uint8_t)y.whole;
    else if (to == 9)
        y.whole = (uint8_t)y.whole;
    return y;
}

static value write_unary(writer *w, int depth)
{
    char word[8];
    uint32_t kind = draw(w, 11);
    if (++w->nodes > MOST_NODES || depth <= 0)
        kind = 4 + kind % 6;
    if (kind == 10)
        return write_round(w, depth);
    if (kind == 0) {
        put(w, "-");
        return negative(write_unary(w, depth - 1));
    }
    if (kind <= 2) {
        put(w, "(");
        const value v = write_compare(w, depth - 1);
        put(w, ")");
        return v;
    }
    if (kind == 3)
        return write_where(w, depth);
    if (kind == 4 && w->n_temps) {
        const uint32_t i = draw(w, (uint32_t)w->n_temps);
        snprintf(word, sizeof word, "t%u", i * 9); /* of one digit and of two */
        put(w, word);
        return w->temps[i];
    }
    if (kind >= 7)
        return write_number(w);
    const uint32_t i = draw(w, 4);
    snprintf(word, sizeof word, "x%u", i);
    put(w, word);
    return w->inputs[i];
}

static value write_product(writer *w, int depth)
{
    value v = write_unary(w, depth);
    while (draw(w, 3) == 0 && w->nodes < MOST_NODES) {
        const char sign = draw(w, 3) ? '*' : '/';
        put(w, sign == '*' ? "*" : "/");
        v = combined(sign, v, write_unary(w, depth));
    }
    return v;
}

static value write_sum(writer *w, int depth)
{
    value v = write_product(w, depth);
    while (draw(w, 2) == 0 && w->nodes < MOST_NODES) {
        const char sign = draw(w, 2) ? '+' : '-';
        put(w, sign == '+' ? "+" : "-");
        v = combined(sign, v, write_product(w, depth));
    }
    return v;
}

static value write_compare(writer *w, int depth)
{
    static const char *const signs[] = {"<", "<=", ">", ">=", "==", "!="};
    const value v = write_sum(w, depth);
    if (draw(w, 5) || w->nodes >= MOST_NODES)
        return v;
    const char *sign = signs[draw(w, 6)];
    put(w, sign);
    return compared(sign, v, write_sum(w, depth));
}

/* Temporaries first, then the result. */
static value write_program(writer *w)
{
    const int n = (int)draw(w, TEMPS + 1);
    for (int i = 0; i < n; i++) {
        char word[8];
        snprintf(word, sizeof word, "t%d", i * 9);
        put(w, word);
        put(w, "=");
        w->temps[i] = write_compare(w, 2);
        put(w, ";");
        w->n_temps = i + 1;
        w->nodes = 0;
    }
    return write_compare(w, 4);
}

/* Inputs: a whole number, a double, a float and a truth. */
static void set_inputs(writer *w)
{
    w->inputs[0] = (value){.type = WHOLE, .whole = (int64_t)draw(w, 21) - 10};
    w->inputs[1] = (value){.type = LONG, .real = rng_normal(w->seed, w->used++)};
    w->inputs[2] = (value){.type = SHORT, .real = (double)(float)rng_normal(w->seed, w->used++)};
    w->inputs[3] = (value){.type = TRUTH, .whole = draw(w, 2)};
}

static void print_graph(text *out, const char *expression)
{
    text_print(out,
               "input %%a : i64[]\ninput %%b : f64[]\ninput %%c : f32[]\ninput %%d : bool[]\n"
               "%%y = map(%%a, %%b, %%c, %%d) {expr = \"%s\", dtype = \"f64\"}\n",
               expression);
}

static void check_value(const writer *w, value expected)
{
    bed b;
    text graph = {0};
    print_graph(&graph, w->out.at);
    set_up(&b, graph.at);
    *(int64_t *)data_of(&b, "a") = w->inputs[0].whole;
    *(double *)data_of(&b, "b") = w->inputs[1].real;
    *(float *)data_of(&b, "c") = (float)w->inputs[2].real;
    *(uint8_t *)data_of(&b, "d") = (uint8_t)w->inputs[3].whole;
    eval(&b);
    const double y = at(&b, "y", 0), x = as(LONG, as(type_of(&expected), expected)).real;
    if (!(isnan(x) && isnan(y)) && x != y)
        fail_msg("\"%s\" of %lld, %a, %a, %lld: found %a, expected %a", w->out.at,
                 (long long)w->inputs[0].whole, w->inputs[1].real, w->inputs[2].real,
                 (long long)w->inputs[3].whole, y, x);
    tear_down(&b);
    text_free(&graph);
}

static mpk_status parse(mpk_context *cx, const char *expression)
{
    arena a = {0};
    text graph = {0};
    ir_graph *g;
    print_graph(&graph, expression);
    const mpk_status status = ir_parse(cx, &a, str_from(graph.at), &g);
    text_free(&graph);
    arena_free(&a);
    return status;
}

/* A text that stops after an operator, a parenthesis or a comma is refused, and so is one that goes
 * on after its end. */
static void check_broken(const writer *w)
{
    mpk_context cx = {0};
    for (size_t n = 1; n < w->out.n; n++) {
        if (!strchr("+-*/(,;=<>", w->out.at[n - 1]))
            continue;
        char *part = strndup(w->out.at, n);
        check_fails(&cx, MPK_EFORMAT, "map: ", parse(&cx, part));
        free(part);
    }
    static const char *const more[] = {")", " x0", " 1", ";", ","};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        text longer = {0};
        text_print(&longer, "%s %s", w->out.at, more[i]);
        check_fails(&cx, MPK_EFORMAT, "map: ", parse(&cx, longer.at));
        text_free(&longer);
    }
}

static void test_random_texts(void **state)
{
    const uint64_t n = check_rounds(1500);
    (void)state;
    for (uint64_t round = 0; round < n; round++) {
        writer w = {.seed = base_seed + round};
        set_inputs(&w);
        const value expected = write_program(&w);
        check_value(&w, expected);
        if (round % 20 == 0)
            check_broken(&w);
        text_free(&w.out);
    }
}

/* Parentheses, signs and functions nest 64 deep, the innermost value counted, and no deeper. */
static void test_depth(void **state)
{
    static const struct {
        const char *open, *close;
    } kinds[] = {{"(", ")"}, {"-", ""}, {"abs(", ")"}, {"x0 + (", ")"}};
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int depth = 63; depth <= 64; depth++) {
            mpk_context cx = {0};
            text out = {0};
            for (int i = 0; i < depth; i++)
                text_print(&out, "%s", kinds[k].open);
            text_print(&out, "x1");
            for (int i = 0; i < depth; i++)
                text_print(&out, "%s", kinds[k].close);
            if (depth == 63)
                check_ok(&cx, parse(&cx, out.at));
            else
                check_fails(&cx, MPK_EFORMAT, "nested too deeply", parse(&cx, out.at));
            text_free(&out);
        }
}

/* The interpreter keeps a value in a slot from the step that makes it to its last use.  Of the 48
 * slots x1 takes one.  Each of n nested products takes one until the sum around it is made, and the
 * innermost takes two, since no step writes to a slot that it reads. */
static void test_slots(void **state)
{
    (void)state;
    for (int n = 1; n <= 47; n++) {
        mpk_context cx = {0};
        writer w = {.seed = base_seed};
        value sum = {.type = LONG};
        set_inputs(&w);
        for (int i = 1; i <= n; i++)
            text_print(&w.out, "%sx1 * %d.5", i > 1 ? " + (" : "", i);
        for (int i = 1; i < n; i++)
            text_print(&w.out, ")");
        for (int i = n; i >= 1; i--)
            sum.real = w.inputs[1].real * (i + 0.5) + (i < n ? sum.real : 0);
        if (n <= 46)
            check_value(&w, sum);
        else
            check_fails(&cx, MPK_EFORMAT, "too long", parse(&cx, w.out.at));
        text_free(&w.out);
    }
}

/* How many steps a text of an f32 becomes. */
static uint32_t count_steps(const char *source)
{
    mpk_context cx = {0};
    map_program *program = calloc(1, sizeof *program);
    const ir_dtype dtype = IR_F32;
    check_ok(&cx, map_compile(&cx, str_from(source), 1, &dtype, program));
    const uint32_t n = program->n;
    free(program);
    return n;
}

/* What a text repeats costs nothing, and neither does a rounding of what is rounded so already. */
static void test_steps(void **state)
{
    (void)state;
    assert_int_equal(count_steps("x0"), 1);
    assert_int_equal(count_steps("exp(x0)"), 2);
    assert_int_equal(count_steps("exp(x0) * exp(x0)"), 3);
    assert_int_equal(count_steps("t0 = exp(x0); t0 * exp(x0)"), 3);
    assert_int_equal(count_steps("x0 + 2 * 2"), 5);
    assert_int_equal(count_steps("bf16(x0)"), 2);
    assert_int_equal(count_steps("bf16(bf16(x0))"), 2);
    assert_int_equal(count_steps("f16(bf16(x0))"), 3);
    assert_int_equal(count_steps("bf16(f16(bf16(x0)))"), 4);
    assert_int_equal(count_steps("f32(x0)"), 1);
    assert_int_equal(count_steps("- - 2 + x0"), 3);
}

int main(void)
{
    base_seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
