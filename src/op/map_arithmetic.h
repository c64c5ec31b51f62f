/* map_arithmetic.h - the arithmetic of the operator map (see map_program.h), once for the host
 * and for GPUs.
 *
 * Semantics are PyTorch's: NaN wins min and max, remainder has the sign of the divisor, division
 * of integers by zero gives 0 (PyTorch raises), shifts by more than the width give 0 or the
 * sign.  Functions that the C library lacks are computed in double by map_special.h and rounded
 * once.
 *
 * A file that includes this one defines log_gamma_f and log_gamma_d; code for a GPU
 * (device/task/map.cuh) also SPECIAL_FN, the words before a function.  The tables give each
 * function its expressions of a, b, c for the types that it takes.
 */
#ifndef OP_MAP_ARITHMETIC_H
#define OP_MAP_ARITHMETIC_H

#include "op/map_special.h"

/* ---- integers: no operation may trap ---- */

/* -a.  INT64_MIN stays itself, as in two's complement, and does not trap. */
SPECIAL_FN int64_t whole_negate(int64_t a)
{
    return (int64_t)(0 - (uint64_t)a);
}

/* The quotient towards zero, 0 for b = 0; b = -1 is apart because INT64_MIN / -1 traps. */
SPECIAL_FN int64_t whole_divide(int64_t a, int64_t b)
{
    if (b == -1)
        return whole_negate(a);
    return b == 0 ? 0 : a / b;
}

/* The remainder of division towards zero, with the sign of a; 0 for b = 0. */
SPECIAL_FN int64_t whole_modulo(int64_t a, int64_t b)
{
    return b == 0 || b == -1 ? 0 : a % b;
}

/* The quotient towards minus infinity: one less where the signs differ and something is left
 * over. */
SPECIAL_FN int64_t whole_floor_divide(int64_t a, int64_t b)
{
    return whole_divide(a, b) - (whole_modulo(a, b) != 0 && (a < 0) != (b < 0));
}

/* The remainder with the sign of b, as Python's %. */
SPECIAL_FN int64_t whole_remainder(int64_t a, int64_t b)
{
    int64_t r = whole_modulo(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

/* a^b by squaring, modulo 2^64; negative powers are 0, except those of 1 and -1. */
SPECIAL_FN int64_t whole_power(int64_t a, int64_t b)
{
    uint64_t result = 1, base = (uint64_t)a;
    if (b < 0 && a == -1)
        return b % 2 ? -1 : 1;
    if (b < 0)
        return a == 1;
    for (uint64_t left = (uint64_t)b; left; left >>= 1, base *= base)
        result *= left & 1 ? base : 1;
    return (int64_t)result;
}

/* The greatest common divisor by Euclid's algorithm; negative for INT64_MIN only. */
SPECIAL_FN int64_t whole_gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = whole_modulo(a, b);
        a = b;
        b = r;
    }
    return a < 0 ? whole_negate(a) : a;
}

/* The least common multiple; 0 if either is 0, since division by a gcd of 0 gives 0. */
SPECIAL_FN int64_t whole_lcm(int64_t a, int64_t b)
{
    int64_t g = whole_gcd(a, b), l = (int64_t)((uint64_t)whole_divide(a, g) * (uint64_t)b);
    return l < 0 ? whole_negate(l) : l;
}

/* Shifts by less than 0 or more than 63 leave no bit. */
SPECIAL_FN int64_t whole_shift_left(int64_t a, int64_t b)
{
    return b < 0 || b > 63 ? 0 : (int64_t)((uint64_t)a << b);
}

/* Arithmetic shift; out of range only the sign is left. */
SPECIAL_FN int64_t whole_shift_right(int64_t a, int64_t b)
{
    return a >> (b < 0 || b > 63 ? 63 : b);
}

/* ---- floats ---- */

/* For each float type: remainder with the sign of b, division rounded down (as Python's //), the
 * larger with NaN winning, log(e^a + e^b) to the base e^(1 / ln), and a log b with 0 log 0 = 0. */
#define REMAINDERS(type, suffix)                                                  \
    SPECIAL_FN type remainder_##suffix(type a, type b)                            \
    {                                                                             \
        type r = fmod##suffix(a, b);                                              \
        return r != 0 && (b < 0) != (r < 0) ? r + b : r;                          \
    }                                                                             \
    SPECIAL_FN type floor_divide_##suffix(type a, type b)                         \
    {                                                                             \
        if (b == 0)                                                               \
            return a / b;                                                         \
        type r = fmod##suffix(a, b), q = (a - r) / b;                             \
        q -= r != 0 && (b < 0) != (r < 0);                                        \
        if (q == 0)                                                               \
            return copysign##suffix((type)0, a / b);                              \
        type whole = floor##suffix(q);                                            \
        return q - whole > (type)0.5 ? whole + 1 : whole;                         \
    }                                                                             \
    SPECIAL_FN type larger_##suffix(type a, type b)                               \
    {                                                                             \
        return a > b || a != a ? a : b;                                           \
    }                                                                             \
    SPECIAL_FN type log_add_##suffix(type a, type b, type ln)                     \
    {                                                                             \
        type most = larger_##suffix(a, b);                                        \
        if (isinf(a) && a == b)                                                   \
            return a;                                                             \
        return most + log1p##suffix(exp##suffix(-fabs##suffix(a - b) * ln)) / ln; \
    }                                                                             \
    SPECIAL_FN type x_log_y_##suffix(type a, type b)                              \
    {                                                                             \
        if (isnan(b))                                                             \
            return b;                                                             \
        return a == 0 ? 0 : a * log##suffix(b);                                   \
    }
#define fmodd fmod
#define copysignd copysign
#define floord floor
#define log1pd log1p
#define expd exp
#define fabsd fabs
#define logd log
REMAINDERS(float, f)
REMAINDERS(double, d)

/* Polynomials of degree n, rounded down, by their recurrences from degrees 0 and 1; below degree
 * 0 they are 0.  Those of Chebyshev (first to fourth kind) have a closed form within -1 .. 1.  A
 * degree too high to loop over gives NaN, as do Hermite's where they overflow. */
enum { FIRST_KIND, SECOND_KIND, THIRD_KIND, FOURTH_KIND, HERMITE, HERMITE_E, LAGUERRE, LEGENDRE };
#define POLYNOMIALS(type, suffix, hermite_limit)                                        \
    SPECIAL_FN type chebyshev_##suffix(int kind, type x, type n)                        \
    {                                                                                   \
        type t = acos##suffix(x), half = t / 2;                                         \
        if (kind == FIRST_KIND)                                                         \
            return cos##suffix(n * t);                                                  \
        if (kind == SECOND_KIND)                                                        \
            return sin##suffix((n + 1) * t) / sin##suffix(t);                           \
        type between = (n + (type)0.5) * t;                                             \
        return kind == THIRD_KIND ? cos##suffix(between) / cos##suffix(half)            \
                                  : sin##suffix(between) / sin##suffix(half);           \
    }                                                                                   \
    SPECIAL_FN type polynomial_##suffix(int kind, type x, type degree)                  \
    {                                                                                   \
        int hermite = kind == HERMITE || kind == HERMITE_E;                             \
        if (!(degree > -1))                                                             \
            return 0;                                                                   \
        type n = floor##suffix(degree < 0 ? 0 : degree), p = 1, twice = x + x;          \
        if (n == 0)                                                                     \
            return 1;                                                                   \
        if (kind <= FOURTH_KIND && n > (kind == FIRST_KIND ? 6 : 8) && x > -1 && x < 1) \
            return chebyshev_##suffix(kind, x, n);                                      \
        if (n > (hermite ? hermite_limit : 1 << 20))                                    \
            return NAN;                                                                 \
        type q = x;                                                                     \
        if (kind == SECOND_KIND || kind == HERMITE)                                     \
            q = twice;                                                                  \
        else if (kind == THIRD_KIND)                                                    \
            q = twice - 1;                                                              \
        else if (kind == FOURTH_KIND)                                                   \
            q = twice + 1;                                                              \
        else if (kind == LAGUERRE)                                                      \
            q = 1 - x;                                                                  \
        for (type k = 1; k < n && !isnan(q); k++) {                                     \
            type next = kind <= FOURTH_KIND ? twice * q - p                             \
                        : kind == HERMITE   ? twice * q - 2 * k * p                     \
                        : kind == HERMITE_E ? x * q - k * p                             \
                        : kind == LAGUERRE  ? ((k + k + (1 - x)) * q - k * p) / (k + 1) \
                                            : ((k + k + 1) * x * q - k * p) / (k + 1);   \
            p = q;                                                                      \
            q = next;                                                                   \
        }                                                                               \
        return q;                                                                       \
    }
#define acosd acos
#define cosd cos
#define sind sin
POLYNOMIALS(float, f, 128)
POLYNOMIALS(double, d, 512)

/* ---- tables ---- */

/* name, text, arguments, of floats, of doubles */
#define FLOATING(X)                                                                              \
    X(exp, "exp", 1, expf(a), exp(a))                                                            \
    X(exp2, "exp2", 1, exp2f(a), exp2(a))                                                        \
    X(expm1, "expm1", 1, expm1f(a), expm1(a))                                                    \
    X(log, "log", 1, logf(a), log(a))                                                            \
    X(log2, "log2", 1, log2f(a), log2(a))                                                        \
    X(log10, "log10", 1, log10f(a), log10(a))                                                    \
    X(log1p, "log1p", 1, log1pf(a), log1p(a))                                                    \
    X(sqrt, "sqrt", 1, sqrtf(a), sqrt(a))                                                        \
    X(rsqrt, "rsqrt", 1, 1.0f / sqrtf(a), 1 / sqrt(a))                                           \
    X(reciprocal, "reciprocal", 1, 1.0f / a, 1 / a)                                              \
    X(sin, "sin", 1, sinf(a), sin(a))                                                            \
    X(cos, "cos", 1, cosf(a), cos(a))                                                            \
    X(tan, "tan", 1, tanf(a), tan(a))                                                            \
    X(asin, "asin", 1, asinf(a), asin(a))                                                        \
    X(acos, "acos", 1, acosf(a), acos(a))                                                        \
    X(atan, "atan", 1, atanf(a), atan(a))                                                        \
    X(sinh, "sinh", 1, sinhf(a), sinh(a))                                                        \
    X(cosh, "cosh", 1, coshf(a), cosh(a))                                                        \
    X(tanh, "tanh", 1, tanhf(a), tanh(a))                                                        \
    X(asinh, "asinh", 1, asinhf(a), asinh(a))                                                    \
    X(acosh, "acosh", 1, acoshf(a), acosh(a))                                                    \
    X(atanh, "atanh", 1, atanhf(a), atanh(a))                                                    \
    X(sigmoid, "sigmoid", 1, 1.0f / (1.0f + expf(-a)), 1 / (1 + exp(-a)))                        \
    X(erf, "erf", 1, erff(a), erf(a))                                                            \
    X(erfc, "erfc", 1, erfcf(a), erfc(a))                                                        \
    X(erfcx, "erfcx", 1, (float)special_erfcx((double)a), special_erfcx(a))                      \
    X(erfinv, "erfinv", 1, (float)special_erfinv((double)a), special_erfinv(a))                  \
    X(ndtri, "ndtri", 1, (float)special_ndtri((double)a), special_ndtri(a))                      \
    X(log_ndtr, "log_ndtr", 1, (float)special_log_ndtr((double)a), special_log_ndtr(a))          \
    X(lgamma, "lgamma", 1, log_gamma_f(a), log_gamma_d(a))                                       \
    X(digamma, "digamma", 1, (float)special_digamma((double)a), special_digamma(a))              \
    X(j0, "j0", 1, (float)j0((double)a), j0(a))                                                  \
    X(j1, "j1", 1, (float)j1((double)a), j1(a))                                                  \
    X(y0, "y0", 1, (float)y0((double)a), y0(a))                                                  \
    X(y1, "y1", 1, (float)y1((double)a), y1(a))                                                  \
    X(i0, "i0", 1, (float)special_bessel_i((double)a, 0, 0), special_bessel_i(a, 0, 0))          \
    X(i0e, "i0e", 1, (float)special_bessel_i((double)a, 0, 1), special_bessel_i(a, 0, 1))        \
    X(i1, "i1", 1, (float)special_bessel_i((double)a, 1, 0), special_bessel_i(a, 1, 0))          \
    X(i1e, "i1e", 1, (float)special_bessel_i((double)a, 1, 1), special_bessel_i(a, 1, 1))        \
    X(k0, "k0", 1, (float)special_bessel_k((double)a, 0, 0), special_bessel_k(a, 0, 0))          \
    X(k0e, "k0e", 1, (float)special_bessel_k((double)a, 0, 1), special_bessel_k(a, 0, 1))        \
    X(k1, "k1", 1, (float)special_bessel_k((double)a, 1, 0), special_bessel_k(a, 1, 0))          \
    X(k1e, "k1e", 1, (float)special_bessel_k((double)a, 1, 1), special_bessel_k(a, 1, 1))        \
    X(chebyshev_t, "chebyshev_t", 2, polynomial_f(FIRST_KIND, a, b),                             \
      polynomial_d(FIRST_KIND, a, b))                                                            \
    X(chebyshev_u, "chebyshev_u", 2, polynomial_f(SECOND_KIND, a, b),                            \
      polynomial_d(SECOND_KIND, a, b))                                                           \
    X(chebyshev_v, "chebyshev_v", 2, polynomial_f(THIRD_KIND, a, b),                             \
      polynomial_d(THIRD_KIND, a, b))                                                            \
    X(chebyshev_w, "chebyshev_w", 2, polynomial_f(FOURTH_KIND, a, b),                            \
      polynomial_d(FOURTH_KIND, a, b))                                                           \
    X(hermite_h, "hermite_h", 2, polynomial_f(HERMITE, a, b), polynomial_d(HERMITE, a, b))       \
    X(hermite_he, "hermite_he", 2, polynomial_f(HERMITE_E, a, b), polynomial_d(HERMITE_E, a, b)) \
    X(laguerre, "laguerre", 2, polynomial_f(LAGUERRE, a, b), polynomial_d(LAGUERRE, a, b))       \
    X(legendre, "legendre", 2, polynomial_f(LEGENDRE, a, b), polynomial_d(LEGENDRE, a, b))       \
    X(zeta, "zeta", 2, (float)special_zeta((double)a, (double)b), special_zeta(a, b))            \
    X(igamma, "igamma", 2,                                                                       \
      (float)special_gamma_part((double)a, (double)b, log_gamma_d((double)a), 0),                \
      special_gamma_part(a, b, log_gamma_d(a), 0))                                               \
    X(igammac, "igammac", 2,                                                                     \
      (float)special_gamma_part((double)a, (double)b, log_gamma_d((double)a), 1),                \
      special_gamma_part(a, b, log_gamma_d(a), 1))                                               \
    X(atan2, "atan2", 2, atan2f(a, b), atan2(a, b))                                              \
    X(hypot, "hypot", 2, hypotf(a, b), hypot(a, b))                                              \
    X(copysign, "copysign", 2, copysignf(a, b), copysign(a, b))                                  \
    X(nextafter, "nextafter", 2, nextafterf(a, b), nextafter(a, b))                              \
    X(ldexp, "ldexp", 2, a *exp2f(b), a *exp2(b))                                                \
    X(logaddexp, "logaddexp", 2, log_add_f(a, b, 1), log_add_d(a, b, 1))                         \
    X(logaddexp2, "logaddexp2", 2, log_add_f(a, b, 0.69314718055994530942f),                     \
      log_add_d(a, b, 0.69314718055994530942))                                                   \
    X(xlogy, "xlogy", 2, x_log_y_f(a, b), x_log_y_d(a, b))                                       \
    X(lerp, "lerp", 3, fabsf(c) < 0.5f ? a + c * (b - a) : b - (b - a) * (1 - c),                \
      fabs(c) < 0.5 ? a + c * (b - a) : b - (b - a) * (1 - c))

/* name, text, arguments, of integers, of floats, of doubles */
#define NUMERIC(X)                                                                                 \
    X(min, "min", 2, a < b ? a : b, a < b || a != a ? a : b, a < b || a != a ? a : b)              \
    X(max, "max", 2, a > b ? a : b, a > b || a != a ? a : b, a > b || a != a ? a : b)              \
    X(fmin, "fmin", 2, a < b ? a : b, a < b || b != b ? a : b, a < b || b != b ? a : b)            \
    X(fmax, "fmax", 2, a > b ? a : b, a > b || b != b ? a : b, a > b || b != b ? a : b)            \
    X(pow, "pow", 2, whole_power(a, b), powf(a, b), pow(a, b))                                     \
    X(fmod, "fmod", 2, whole_modulo(a, b), fmodf(a, b), fmod(a, b))                                \
    X(remainder, "remainder", 2, whole_remainder(a, b), remainder_f(a, b), remainder_d(a, b))      \
    X(floordiv, "floordiv", 2, whole_floor_divide(a, b), floor_divide_f(a, b),                     \
      floor_divide_d(a, b))                                                                        \
    X(truncdiv, "truncdiv", 2, whole_divide(a, b), truncf(a / b), trunc(a / b))                    \
    X(abs, "abs", 1, a < 0 ? whole_negate(a) : a, fabsf(a), fabs(a))                               \
    X(sign, "sign", 1, (a > 0) - (a < 0), (float)((a > 0) - (a < 0)), (double)((a > 0) - (a < 0))) \
    X(square, "square", 1, (int64_t)((uint64_t)a * (uint64_t)a), a *a, a *a)                       \
    X(floor, "floor", 1, a, floorf(a), floor(a))                                                   \
    X(ceil, "ceil", 1, a, ceilf(a), ceil(a))                                                       \
    X(trunc, "trunc", 1, a, truncf(a), trunc(a))                                                   \
    X(round, "round", 1, a, rintf(a), rint(a))

/* name, text, the condition: for any type */
#define TEST(X)                    \
    X(less_equal, "<=", a <= b)    \
    X(greater_equal, ">=", a >= b) \
    X(equal, "==", a == b)         \
    X(unequal, "!=", a != b)       \
    X(less, "<", a < b)            \
    X(greater, ">", a > b)

#define FLOAT_TEST(X)                    \
    X(isnan, "isnan", isnan(a))          \
    X(isinf, "isinf", isinf(a))          \
    X(isfinite, "isfinite", isfinite(a)) \
    X(signbit, "signbit", signbit(a))

#define WHOLE(X)                          \
    X(gcd, "gcd", whole_gcd(a, b))        \
    X(lcm, "lcm", whole_lcm(a, b))        \
    X(shl, "shl", whole_shift_left(a, b)) \
    X(shr, "shr", whole_shift_right(a, b))

/* name, text, arguments, of truth, of integers */
#define BITS(X)                    \
    X(and, "and", 2, a &b, a &b)   \
    X(or, "or", 2, a | b, a | b)   \
    X(xor, "xor", 2, a ^ b, a ^ b) \
    X(not, "not", 1, a ^ 1, ~a)

#define LOGIC(X)              \
    X(land, "land", 2, a &b)  \
    X(lor, "lor", 2, a | b)   \
    X(lxor, "lxor", 2, a ^ b) \
    X(lnot, "lnot", 1, a ^ 1)

#endif
