/* map.cuh - what instances of the operator map are made of: its functions, by the tables of
 * src/op/map_arithmetic.h.
 *
 * A function of the expression language is map_NAME_T here, T one of b, i, f, d (truth, integer,
 * float, double): the type of its last argument; all take three arguments, and use as many as they
 * have, so that an instance can print every call alike.  Truths are integers 0 and 1.  For example
 * max(x0 * x1, 0.0) of floats is printed as (src/gen/map_print.c)
 *
 *    const float v2 = map_multiply_f(v0, v1, v0);
 *    const float v3 = 0.0f;
 *    const float v4 = map_max_f(v2, v3, v2);
 *
 * There is no loop here: an instance prints its own, a variable for each step of its expression.
 * The reference compiles the same tables for the host, so both have the same arithmetic.
 */
#ifndef TASK_MAP_CUH
#define TASK_MAP_CUH

#include "task/eights.cuh"

/* What the tables expect of their compiler.  The source of a kernel includes no header, so the
 * names of <stdint.h> and <math.h> are made here; the emulator has the headers. */
#define SPECIAL_FN MPK_FN
#ifndef MPK_EMULATED
#define int64_t rt_i64
#define uint64_t rt_u64
#ifndef INFINITY
#define INFINITY MPK_INFINITY
#endif
#ifndef NAN
#define NAN MPK_NAN
#endif
#endif

/* The two functions that op/map_arithmetic.h leaves to the file that includes it: on the host
 * lgamma writes a global sign, so the host has others. */
SPECIAL_FN float log_gamma_f(float a)
{
    return lgammaf(a);
}
SPECIAL_FN double log_gamma_d(double a)
{
    return lgamma(a);
}

#include "op/map_arithmetic.h"

/* What each row of a table becomes, by the kind of table: a function for each type that the row has
 * an expression for.  NUMERICS are of integers, floats and doubles; FLOATINGS not of integers;
 * TESTS and FLOAT_TESTS give truths; WHOLES are of integers alone; BITWISE also of truths; LOGICAL
 * of truths alone. */
#define MAP_FUNCTION(name, type, result, expression) \
    MPK_FN result map_##name(type a, type b, type c) \
    {                                                \
        (void)a, (void)b, (void)c;                   \
        return expression;                           \
    }
#define MAP_FLOATINGS(name, text, arity, floats, doubles) \
    MAP_FUNCTION(name##_f, float, float, floats)          \
    MAP_FUNCTION(name##_d, double, double, doubles)
#define MAP_NUMERICS(name, text, arity, integers, floats, doubles) \
    MAP_FUNCTION(name##_i, rt_i64, rt_i64, integers)               \
    MAP_FLOATINGS(name, text, arity, floats, doubles)
#define MAP_TESTS(name, text, truth)              \
    MAP_FUNCTION(name##_i, rt_i64, rt_i64, truth) \
    MAP_FUNCTION(name##_f, float, rt_i64, truth)  \
    MAP_FUNCTION(name##_d, double, rt_i64, truth)
#define MAP_FLOAT_TESTS(name, text, truth)              \
    MAP_FUNCTION(name##_f, float, rt_i64, (truth) != 0) \
    MAP_FUNCTION(name##_d, double, rt_i64, (truth) != 0)
#define MAP_WHOLES(name, text, integers) MAP_FUNCTION(name##_i, rt_i64, rt_i64, integers)
#define MAP_BITWISE(name, text, arity, truth, integers) \
    MAP_FUNCTION(name##_b, rt_i64, rt_i64, truth)       \
    MAP_FUNCTION(name##_i, rt_i64, rt_i64, integers)
#define MAP_LOGICAL(name, text, arity, truth) MAP_FUNCTION(name##_b, rt_i64, rt_i64, truth)

/* Operators of the language come first, then the tables of named functions.  Integers wrap around,
 * as unsigned numbers do. */
MAP_NUMERICS(negate, "-x", 1, whole_negate(a), -a, -a)
MAP_NUMERICS(add, "+", 2, (rt_i64)((rt_u64)a + (rt_u64)b), a + b, a + b)
MAP_NUMERICS(subtract, "-", 2, (rt_i64)((rt_u64)a - (rt_u64)b), a - b, a - b)
MAP_NUMERICS(multiply, "*", 2, (rt_i64)((rt_u64)a *(rt_u64)b), a *b, a *b)
MAP_FLOATINGS(divide, "/", 2, a / b, a / b)
FLOATING(MAP_FLOATINGS)
NUMERIC(MAP_NUMERICS)
TEST(MAP_TESTS)
FLOAT_TEST(MAP_FLOAT_TESTS)
WHOLE(MAP_WHOLES)
BITS(MAP_BITWISE)
LOGIC(MAP_LOGICAL)

/* exp, sigmoid and a / b within 2^-17, for values that are rounded to 16 bits; of b at least 1.
 * Instances print these in place of the exact ones where the result has 16 bits (gen_map_result in
 * src/gen/map_print.h). */
MPK_FN float map_near_exp(float a)
{
    return ptx_exp2(1.44269504088896341f * a); /* log2(e) */
}
MPK_FN float map_near_sigmoid(float a)
{
    return ptx_rcp(1.0f + map_near_exp(-a));
}
MPK_FN float map_near_divide(float a, float b)
{
    return a * ptx_rcp(b);
}

/* x as it comes back from a tensor of an integer dtype: the low bits.  An instance keeps a
 * step's value so where the expression casts; map_keep_real does it for a real, held at the ends
 * of the range. */
MPK_FN rt_i64 map_keep_whole(const mpk_view &v, rt_i64 x)
{
    rt_u64 kept;
    mpk_put_int(v, (char *)&kept, 0, x);
    return mpk_get_int(v, (const char *)&kept, 0);
}
MPK_FN rt_i64 map_keep_real(const mpk_view &v, double x)
{
    rt_u64 kept;
    mpk_put_double(v, (char *)&kept, 0, x);
    return mpk_get_int(v, (const char *)&kept, 0);
}

#endif
