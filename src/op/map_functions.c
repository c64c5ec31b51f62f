/* map_functions.c - the functions of the operator map (see map_program.h): a loop for each one
 * and each type that it takes, made from the tables of map_arithmetic.h.
 *
 * A table row X(name, text, ...) becomes loops name_in_i, name_in_f ... and a row of
 * map_functions; map_compile.c finds functions by their text in that table, so an addition to
 * map_arithmetic.h needs nothing here.
 */
#include <math.h>

#include "op/map_arithmetic.h"
#include "op/map_program.h"

/* lgamma of the C library also stores a sign in a global variable, which threads would race on. */
static float log_gamma_f(float a)
{
    int sign;
    return lgammaf_r(a, &sign);
}
static double log_gamma_d(double a)
{
    int sign;
    return lgamma_r(a, &sign);
}

/* ---- loops ---- */

/* One loop over a lane; a, b and c are its operands, of which an expression may use any.
 * Compilers vectorise it where the expression allows. */
#define LOOP(name, type, m, result, expression)                                    \
    static void name(map_lane *restrict y, const map_lane *x0, const map_lane *x1, \
                     const map_lane *x2, int64_t n)                                \
    {                                                                              \
        for (int64_t i = 0; i < n; i++) {                                          \
            type a = x0->m[i], b = x1->m[i], c = x2->m[i];                         \
            (void)a, (void)b, (void)c;                                             \
            y->result[i] = expression;                                             \
        }                                                                          \
    }

/* Which loops a row of each table has. */
#define FLOATING_LOOPS(name, text, arity, floats, doubles) \
    LOOP(name##_in_f, float, f, f, floats)                 \
    LOOP(name##_in_d, double, d, d, doubles)
#define NUMERIC_LOOPS(name, text, arity, integers, floats, doubles) \
    LOOP(name##_in_i, int64_t, i, i, integers)                      \
    FLOATING_LOOPS(name, text, arity, floats, doubles)
#define TEST_LOOPS(name, text, truth)       \
    LOOP(name##_in_i, int64_t, i, i, truth) \
    LOOP(name##_in_f, float, f, i, truth)   \
    LOOP(name##_in_d, double, d, i, truth)
#define FLOAT_TEST_LOOPS(name, text, truth)      \
    LOOP(name##_in_f, float, f, i, (truth) != 0) \
    LOOP(name##_in_d, double, d, i, (truth) != 0)
#define WHOLE_LOOPS(name, text, integers) LOOP(name##_in_i, int64_t, i, i, integers)
#define BITS_LOOPS(name, text, arity, truth, integers) \
    LOOP(name##_in_b, int64_t, i, i, truth)            \
    LOOP(name##_in_i, int64_t, i, i, integers)
#define LOGIC_LOOPS(name, text, arity, truth) LOOP(name##_in_b, int64_t, i, i, truth)

NUMERIC_LOOPS(negate, "-x", 1, whole_negate(a), -a, -a)
NUMERIC_LOOPS(add, "+", 2, (int64_t)((uint64_t)a + (uint64_t)b), a + b, a + b)
NUMERIC_LOOPS(subtract, "-", 2, (int64_t)((uint64_t)a - (uint64_t)b), a - b, a - b)
NUMERIC_LOOPS(multiply, "*", 2, (int64_t)((uint64_t)a *(uint64_t)b), a *b, a *b)
FLOATING_LOOPS(divide, "/", 2, a / b, a / b)
FLOATING(FLOATING_LOOPS)
NUMERIC(NUMERIC_LOOPS)
TEST(TEST_LOOPS)
FLOAT_TEST(FLOAT_TEST_LOOPS)
WHOLE(WHOLE_LOOPS)
BITS(BITS_LOOPS)
LOGIC(LOGIC_LOOPS)

/* where(c, a, b): both sides are computed before, so there is no branch. */
#define CHOICE(name, m)                                                          \
    static void name(map_lane *restrict y, const map_lane *c, const map_lane *a, \
                     const map_lane *b, int64_t n)                               \
    {                                                                            \
        for (int64_t i = 0; i < n; i++)                                          \
            y->m[i] = c->i[i] ? a->m[i] : b->m[i];                               \
    }
CHOICE(choose_i, i)
CHOICE(choose_f, f)
CHOICE(choose_d, d)

#define FLOATING_ROW(name, text, arity, floats, doubles) \
    {text, arity, MAP_FLOATING, {NULL, NULL, name##_in_f, name##_in_d}},
#define NUMERIC_ROW(name, text, arity, integers, floats, doubles) \
    {text, arity, MAP_NUMERIC, {NULL, name##_in_i, name##_in_f, name##_in_d}},
#define TEST_ROW(name, text, truth) \
    {text, 2, MAP_TEST, {NULL, name##_in_i, name##_in_f, name##_in_d}},
#define FLOAT_TEST_ROW(name, text, truth) \
    {text, 1, MAP_FLOAT_TEST, {NULL, NULL, name##_in_f, name##_in_d}},
#define WHOLE_ROW(name, text, integers) {text, 2, MAP_WHOLE, {NULL, name##_in_i, NULL, NULL}},
#define BITS_ROW(name, text, arity, truth, integers) \
    {text, arity, MAP_BITS, {name##_in_b, name##_in_i, NULL, NULL}},
#define LOGIC_ROW(name, text, arity, truth) \
    {text, arity, MAP_LOGIC, {name##_in_b, NULL, NULL, NULL}},

const map_function map_functions[] = {
    [MAP_NEGATE] = {"-x", 1, MAP_NUMERIC, {NULL, negate_in_i, negate_in_f, negate_in_d}},
    [MAP_ADD] = {"+", 2, MAP_NUMERIC, {NULL, add_in_i, add_in_f, add_in_d}},
    [MAP_SUBTRACT] = {"-", 2, MAP_NUMERIC, {NULL, subtract_in_i, subtract_in_f, subtract_in_d}},
    [MAP_MULTIPLY] = {"*", 2, MAP_NUMERIC, {NULL, multiply_in_i, multiply_in_f, multiply_in_d}},
    [MAP_DIVIDE] = {"/", 2, MAP_FLOATING, {NULL, NULL, divide_in_f, divide_in_d}},
    /* of the comparisons, those of two letters stand before those that they begin with */
    TEST(TEST_ROW) FLOATING(FLOATING_ROW) NUMERIC(NUMERIC_ROW) FLOAT_TEST(FLOAT_TEST_ROW)
        WHOLE(WHOLE_ROW) BITS(BITS_ROW)
            LOGIC(LOGIC_ROW){"where", 3, MAP_CHOICE, {choose_i, choose_i, choose_f, choose_d}},
    {NULL, 0, MAP_LOGIC, {NULL, NULL, NULL, NULL}},
};
