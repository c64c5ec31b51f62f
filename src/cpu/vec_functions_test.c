/* vec_functions_test.c - the functions of maps against the exact value, in units of the last place,
 * over all floats: random bits, values near 1 and of some size, and what is rare; by the bodies of
 * every instruction set that this machine has, whose bits agree. */
#include <math.h>

#include "body_bed.h"

enum { VALUES = 5000, ROUNDS = 24 };

/* A function by its text; exact: in doubles.  units: the bound.  of_larger: a unit is one of the
 * larger argument, or of 1/2 if both are small: the result is a sum, which may be near 0. */
typedef struct function {
    const char *text;
    double (*one)(double a);
    double (*two)(double a, double b);
    double units;
    bool of_larger;
} function;

static double ldexp_of_half(double a)
{
    return 1.5 * exp2(a);
}
static double log_sum(double a, double b, double ln)
{
    if (isinf(a) && a == b)
        return a;
    return isnan(a) || isnan(b) ? NAN : fmax(a, b) + log1p(exp(-fabs(a - b) * ln)) / ln;
}
static double logaddexp(double a, double b)
{
    return log_sum(a, b, 1);
}
static double logaddexp2(double a, double b)
{
    return log_sum(a, b, log(2));
}
static double xlogy(double a, double b)
{
    if (isnan(b))
        return b;
    return a == 0 ? 0 : a * log(b);
}

static const function functions[] = {
    {"exp(x0)", exp, NULL, 1.1, false},
    {"exp2(x0)", exp2, NULL, 1.1, false},
    {"expm1(x0)", expm1, NULL, 1.1, false},
    {"log(x0)", log, NULL, 1.1, false},
    {"log2(x0)", log2, NULL, 1.1, false},
    {"log10(x0)", log10, NULL, 1.1, false},
    {"log1p(x0)", log1p, NULL, 1.1, false},
    {"sin(x0)", sin, NULL, 0.6, false},
    {"cos(x0)", cos, NULL, 0.6, false},
    {"tan(x0)", tan, NULL, 2, false},
    {"asin(x0)", asin, NULL, 1.5, false},
    {"acos(x0)", acos, NULL, 1.5, false},
    {"atan(x0)", atan, NULL, 1.5, false},
    {"sinh(x0)", sinh, NULL, 2, false},
    {"cosh(x0)", cosh, NULL, 2, false},
    {"atanh(x0)", atanh, NULL, 1.5, false},
    {"tanh(x0)", tanh, NULL, 2, false},
    {"ldexp(1.5, x0)", ldexp_of_half, NULL, 2.5, false},
    {"pow(x0, x1)", NULL, pow, 1.1, false},
    {"atan2(x0, x1)", NULL, atan2, 2, false},
    {"xlogy(x0, x1)", NULL, xlogy, 2, false},
    {"logaddexp(x0, x1)", NULL, logaddexp, 2, true},
    {"logaddexp2(x0, x1)", NULL, logaddexp2, 3, true},
    /* those of the reference code, bit by bit */
    {"floor(x0)", NULL, NULL, 0, false},
    {"ceil(x0)", NULL, NULL, 0, false},
    {"trunc(x0)", NULL, NULL, 0, false},
    {"round(x0)", NULL, NULL, 0, false},
    {"sign(x0)", NULL, NULL, 0, false},
    {"truncdiv(x0, x1)", NULL, NULL, 0, false},
    {"fmod(x0, x1)", NULL, NULL, 0, false},
    {"remainder(x0, x1)", NULL, NULL, 0, false},
    {"floordiv(x0, x1)", NULL, NULL, 0, false},
    {"copysign(x0, x1)", NULL, NULL, 0, false},
    {"fmin(x0, x1)", NULL, NULL, 0, false},
    {"fmax(x0, x1)", NULL, NULL, 0, false},
    {"hypot(x0, x1)", NULL, NULL, 0, false},
    {"lerp(x0, x1, x2)", NULL, NULL, 0, false},
    {NULL, NULL, NULL, 0, false},
};

/* ---- arguments ---- */

static uint64_t drawn;

/* A NaN becomes a quiet one: the C library tells a signalling one apart. */
static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return isnan(x) ? NAN : x;
}

/* A float of any kind. */
static float any_float(void)
{
    static const float rare[] = {
        NAN,       INFINITY,   -INFINITY,  0,         -0.0f,      0x1p-149f,      -0x1p-149f,
        0x1p-126f, -0x1p-126f, 1,          -1,        0.5f,       -0.5f,          0x1.fffffep127f,
        2,         3,          -2,         -3,        16777216,   16777218,       -16777215,
        0x1p20f,   -0x1p20f,   1048575.9f, 1.5707964, 88.722839f, -103.972076852, 0x1.fffffep-1f};
    const uint64_t random = rng_u64(seed, drawn++);
    const uint32_t bits = (uint32_t)random;
    const float unit = (float)(bits >> 8) * 0x1p-24f;
    switch (random >> 61) {
    case 0:
        return rare[(random >> 32) % (sizeof rare / sizeof *rare)];
    case 1:
        return 2 * unit - 1;
    case 2:
        return 1 + (unit - 0.5f) * 0x1p-6f;
    case 3:
        return 200 * unit - 100;
    case 4:
        return (float)((int32_t)(bits % 81) - 40);
    case 5:
        return (float)(bits % 40000) * 1.57079633f - 30000;
    default:
        return of_bits(bits);
    }
}

/* Every eighth x0 is a multiple of x1, or next to one: there quotients round to whole numbers. */
static void put_any(const op_call *call)
{
    float *x[3];
    for (uint32_t i = 0; i < call->n_in; i++) {
        x[i] = (float *)call->in[i].data;
        for (int64_t k = 0; k < VALUES; k++)
            x[i][k] = any_float();
    }
    for (int64_t k = 0; k < VALUES; k += 8) {
        x[0][k] = x[1][k] * (float)(rng_u64(seed, drawn++) % 99999);
        if (k % 16)
            x[0][k] = nextafterf(x[0][k], 0);
    }
}

/* ---- comparisons ---- */

/* The distance of a float from an exact value, in units of the last place of `of`. */
static double units_between(float y, double exact, double of)
{
    int exponent;
    if (isnan(exact) || isnan(y))
        return isnan(exact) && isnan(y) ? 0 : INFINITY;
    if (isinf((float)exact) || isinf(y)) /* within a unit of where floats end */
        return (y > 0) == (exact > 0) && fabsf(y) > 3.40282e38f && fabs(exact) > 3.40282e38
                   ? 0
                   : INFINITY;
    if (of == 0)
        return y == 0 && signbit(y) == signbit((float)exact) ? 0 : INFINITY;
    frexp(of, &exponent);
    return fabs((double)y - exact) / ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}

static float value_at(const instance *t, int64_t i)
{
    return ((float *)t->call.out[0].data)[i];
}

/* The same bits, or both NaN: which one is for the compiler to say, as the order of a sum is. */
static bool are_same(float y, float z)
{
    return isnan(y) ? isnan(z) : memcmp(&y, &z, sizeof y) == 0;
}

static void check_same(const function *f, float y, float z, const char *body)
{
    if (!are_same(y, z))
        fail_msg("%s: %s is %a, %a by another instruction set", body, f->text, (double)y,
                 (double)z);
}

static void check_value(const function *f, const instance *t, const instance *ref, int64_t i,
                        const char *body)
{
    float x[3], y = value_at(t, i), z = value_at(ref, i);
    for (uint32_t k = 0; k < 3; k++)
        x[k] = ((float *)t->call.in[k].data)[i];
    double a = (double)x[0], b = (double)x[1], exact = (double)z, of;
    if (f->one || f->two)
        exact = f->one ? f->one(a) : f->two(a, b);
    of = f->of_larger ? fmax(0.5, fmax(fabs(a), fabs(b))) : exact;
    if (f->units == 0 ? !are_same(y, z) : !(units_between(y, exact, of) <= f->units))
        fail_msg("%s: %s of %a, %a, %a is %a, not %a", body, f->text, (double)x[0], (double)x[1],
                 (double)x[2], (double)y, exact);
}

/* One function over VALUES random arguments, by every body. */
static void check_function(const function *f, uint64_t fill)
{
    arena a = {0};
    ir_graph *g;
    text t = {0};
    instance ref, first = {0};
    uint64_t from = drawn, state = fill;
    for (int i = 0; i < 3; i++)
        text_print(&t, "input %%x%d : f32[%d]\n", i, VALUES);
    text_print(&t, "%%y = map(%%x0, %%x1, %%x2) {expr = \"%s\"}\n", f->text);
    check_ok(&cx, ir_parse(&cx, &a, (str){t.at, t.n}, &g));
    make(&a, g, fill, UINT32_MAX, put_any, &ref);
    run(&ref, NULL, NULL);
    for (const cpu_body *const *b = cpu_body_table; *b; b++) {
        instance with;
        if (!str_is(str_from((*b)->op), "map") || (*b)->needs & ~cpu_features())
            continue;
        drawn = from;
        make(&a, g, fill, UINT32_MAX, put_any, &with);
        assert_true((*b)->accepts(&with.call));
        run(&with, *b, &state);
        for (int64_t i = 0; i < VALUES; i++)
            check_value(f, &with, &ref, i, (*b)->name);
        first = first.g ? first : with;
        for (int64_t i = 0; i < VALUES; i++)
            check_same(f, value_at(&with, i), value_at(&first, i), (*b)->name);
    }
    text_free(&t);
    arena_free(&a);
}

static void test_functions(void **unused)
{
    (void)unused;
    for (int i = 0; i < (int)check_rounds(ROUNDS); i++)
        for (const function *f = functions; f->text; f++)
            check_function(f, rng_u64(seed, drawn++));
}

int main(void)
{
    seed = check_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_functions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
