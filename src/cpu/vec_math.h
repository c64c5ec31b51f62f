/* vec_math.h - sums, rows of any float dtype, and elementary functions over the sixteen-lane
 * vectors of the vec_*.h that was included first.  Included by the *_kernels.h files.
 *
 * Two rules keep bits equal on every processor: a function here is written once, with the
 * operations that each vec_*.h defines (v_fma is one rounding everywhere), and a sum over lanes
 * is always this tree.  Of sixteen lanes l:
 *
 *   step 1  l + (l + 8)   eight sums      v_half
 *   step 2  l + (l + 4)   four
 *   step 3  l + (l + 2)   two
 *   step 4  l + (l + 1)   one
 *
 * Eight vectors can be summed at once (v_sum8; v_sum_halves after the first step) by transposing
 * them while they are added: the same tree for each, at the cost of about two.
 */
#ifndef CPU_VEC_MATH_H
#define CPU_VEC_MATH_H

#include <math.h>

#include "base/num.h"
#include "ir/ir.h"

/* ---- sums: always the tree (l, l+8), (l, l+4), (l, l+2), (l, l+1) ---- */

V_INLINE float v_sum(vf a)
{
    __m256 eight = v_half(a);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The same tree over doubles. */
V_INLINE double vd_sum(vd a)
{
    __m256d four = vd_quarter(a);
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/* The largest lane; unspecified if a lane is NaN. */
V_INLINE float v_greatest(vf a)
{
    __m256 eight = v_half_max(a);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* ---- rows of f32, f16 or bf16 ---- */

/* One f16 at any address. */
V_INLINE float v_f16(const void *p)
{
    unsigned short bits;
    memcpy(&bits, p, sizeof bits);
    return _cvtsh_ss(bits);
}

/* The address of element i of a row of f32, f16 or bf16. */
V_INLINE const void *row_at(const void *row, ir_dtype dtype, int64_t i)
{
    return (const char *)row + i * (dtype == IR_F32 ? 4 : 2);
}

/* Sixteen elements of a row from element i on, or the n that are left (the other lanes are
 * zero).  Memory after the row is never read: it may end there. */
V_INLINE vf row_load(const void *row, ir_dtype dtype, int64_t i, int64_t n)
{
    uint16_t part[16];
    const void *at = row_at(row, dtype, i);
    if (dtype == IR_F32)
        return n >= 16 ? v_load(at) : v_load_n(at, n);
    if (n < 16) {
        memset(part, 0, sizeof part);
        memcpy(part, at, 2 * (size_t)n);
        at = part;
    }
    return dtype == IR_F16 ? v_load_f16(at) : v_load_bf16(at);
}

/* Store the first n (at most 16) lanes to a row from element i on, rounded to nearest even if
 * the row is not f32. */
V_INLINE void row_store(void *row, ir_dtype dtype, int64_t i, int64_t n, vf x)
{
    uint16_t part[16], *at = (uint16_t *)row + i;
    if (dtype == IR_F32) {
        v_store_n((float *)row + i, n > 16 ? 16 : n, x);
        return;
    }
    if (dtype == IR_F16)
        v_store_f16(n < 16 ? part : at, x);
    else
        v_store_bf16(n < 16 ? part : at, x);
    if (n < 16)
        memcpy(at, part, 2 * (size_t)n);
}

/* One element, for tails and for values that are read once. */
static inline float row_element(const void *row, ir_dtype dtype, int64_t i)
{
    if (dtype == IR_F32)
        return ((const float *)row)[i];
    uint16_t bits = ((const uint16_t *)row)[i];
    return dtype == IR_F16 ? num_from_f16(bits) : num_from_bf16(bits);
}

/* The dtypes that row_load and row_store take. */
static inline bool row_is_float(ir_dtype dtype)
{
    return dtype == IR_F32 || dtype == IR_F16 || dtype == IR_BF16;
}

/* ---- functions ---- */

/* e^x / 2^n.  x = n ln 2 + r, |r| <= ln 2 / 2; e^r by its Taylor polynomial; ln 2 as two
 * constants, so that r is nearly exact.  The result lies in [0.7, 1.42]; the caller multiplies
 * by 2^n, because n may exceed the exponent field. */
V_INLINE vf v_exp_part(vf x, vf n)
{
    vf r = v_fma(n, v_set(-0.693145752f), x);
    r = v_fma(n, v_set(-1.42860677e-6f), r);
    vf p = v_fma(r, v_set(1.0f / 5040), v_set(1.0f / 720));
    p = v_fma(r, p, v_set(1.0f / 120));
    p = v_fma(r, p, v_set(1.0f / 24));
    p = v_fma(r, p, v_set(1.0f / 6));
    p = v_fma(r, p, v_set(0.5f));
    p = v_fma(r, p, v_set(1.0f));
    return v_fma(r, p, v_set(1.0f));
}

/* e^x within 2 units of the last place; 0 below -87.3 (no subnormals), infinity above 88.3, NaN
 * for NaN. */
V_INLINE vf v_exp(vf x)
{
    vf n = v_round(v_mul(x, v_set(1.44269504f)));
    vf y = v_scale(v_exp_part(x, n), n);
    y = v_select_less(x, v_set(-87.3f), v_zero(), y);
    return v_select_less(v_set(88.3f), x, v_set(INFINITY), y);
}

/* y 2^n, in two steps: for an n that exceeds the exponent field, and results that are subnormal or
 * infinite.  y is normal, n a whole number within 250 of 0. */
V_INLINE vf v_scale_wide(vf y, vf n)
{
    vf half = v_round(v_mul(n, v_set(0.5f)));
    y = v_mul(y, v_scale(v_set(1), half));
    return v_mul(y, v_scale(v_set(1), v_sub(n, half)));
}

/* The same over all of fp32: subnormals below, infinity only where e^x is.  It costs two more
 * products than v_exp.  map uses it, since a user's exp may need subnormals; softmax and silu do
 * not. */
V_INLINE vf v_exp_wide(vf x)
{
    x = v_select_less(x, v_set(-105), v_set(-105), x);
    x = v_select_less(v_set(89.5f), x, v_set(89.5f), x);
    vf n = v_round(v_mul(x, v_set(1.44269504f)));
    return v_scale_wide(v_exp_part(x, n), n);
}

/* x / (1 + e^-x).  Below -88.3 e^-x is infinite and the result -0; the exact one is nearer to it
 * than 4e-37. */
V_INLINE vf v_silu(vf x)
{
    return v_div(x, v_add(v_set(1), v_exp(v_sub(v_zero(), x))));
}

/* 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3)  The second form has
 * one exponential and no cancellation near u = -3, where 1 + tanh(u) loses digits. */
V_INLINE vf v_gelu_tanh(vf x)
{
    vf cube = v_mul(v_mul(x, x), x);
    vf u = v_mul(v_set(0.797884561f), v_fma(v_set(0.044715f), cube, x));
    return v_div(x, v_add(v_set(1), v_exp(v_mul(v_set(-2), u))));
}

/* A polynomial in x; the coefficient of the highest power first. */
V_INLINE vf v_polynomial(vf x, const float *coefficients, int n)
{
    vf y = v_set(coefficients[0]);
#pragma GCC unroll 16
    for (int i = 1; i < n; i++)
        y = v_fma(y, x, v_set(coefficients[i]));
    return y;
}

/* All but the sign bit; NaN stays. */
V_INLINE vf v_abs(vf x)
{
    return v_from_bits(vi_and(vi_bits(x), vi_set(INT32_MAX)));
}

/* y, which is not below 0, with the sign of x. */
V_INLINE vf v_with_sign(vf y, vf x)
{
    return v_from_bits(vi_or(vi_bits(y), vi_and(vi_bits(x), vi_set(INT32_MIN))));
}

/* erf within 3.5e-7, relative too: x P(x^2) / Q(x^2) up to 3.9, beyond which it is 1 to nearly
 * all digits of fp32.  Coefficients are a minimax fit. */
V_INLINE vf v_erf(vf x)
{
    static const float above[] = {2.06649202e-06f, 0.000285058049f, 0.00373819238f,
                                  0.0526676103f,   0.189663351f,    1.12837911f};
    static const float below[] = {3.82699945e-05f, 0.00115733745f, 0.0149139715f,
                                  0.113817513f,    0.501417577f,   1.0f};
    vf square = v_min(v_mul(x, x), v_set(3.9f * 3.9f)),
       one = v_select_less(x, v_zero(), v_set(-1), v_set(1));
    vf y = v_div(v_mul(x, v_polynomial(square, above, 6)), v_polynomial(square, below, 6));
    return v_select_less(v_set(3.9f), v_abs(x), one, y);
}

/* tanh within 2e-7, relative too.  Below 0.625 a polynomial; above, 1 - 2 / (e^2x + 1). */
V_INLINE vf v_tanh(vf x)
{
    static const float near[] = {0.00229950668f, -0.00835061353f, 0.0217712317f,
                                 -0.0539595895f, 0.133333057f,    -0.333333343f};
    vf a = v_abs(x), square = v_mul(x, x);
    vf low = v_fma(v_mul(a, square), v_polynomial(square, near, 6), a);
    vf high = v_sub(v_set(1), v_div(v_set(2), v_add(v_exp(v_add(a, a)), v_set(1))));
    return v_with_sign(v_select_less(a, v_set(0.625f), low, high), x);
}

/* 1 - erf(x), relative to itself within 5e-7 + 1e-7 x^2, also where it is small; 0 from 9.35 on,
 * where it is below 1e-38.  Of |x|: e^(-x^2) P(x) / Q(x), a minimax fit of erfc(x) e^(x^2). */
V_INLINE vf v_erfc(vf x)
{
    static const float above[] = {0.0322525904f, 0.226621043f, 0.726145883f, 1.23318845f, 1.0f};
    static const float below[] = {0.057165435f, 0.401704399f, 1.31518069f,
                                  2.39088174f,  2.36156813f,  1.0f};
    vf a = v_min(v_set(10), v_abs(x)), power = v_mul(a, v_sub(v_zero(), a));
    vf n = v_round(v_mul(power, v_set(1.44269504f)));
    vf e = v_scale(v_exp_part(power, n), n);
    e = v_select_less(power, v_set(-87.3f), v_zero(), e);
    vf y = v_div(v_mul(e, v_polynomial(a, above, 5)), v_polynomial(a, below, 6));
    return v_select_less(x, v_zero(), v_sub(v_set(2), y), y);
}

/* 0.5 x erfc(-x / sqrt 2): 1 + erf would cancel below 0. */
V_INLINE vf v_gelu(vf x)
{
    return v_mul(v_mul(v_set(0.5f), x), v_erfc(v_mul(x, v_set(-0.707106781f))));
}

#endif
