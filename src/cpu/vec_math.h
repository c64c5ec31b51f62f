/* vec_math.h - sums, rows of any float dtype, and elementary functions over the sixteen-lane vectors of vec_avx512.h or
 * vec_avx2.h, whichever was included first. */
#ifndef CPU_VEC_MATH_H
#define CPU_VEC_MATH_H

#include <math.h>

#include "base/num.h"
#include "ir/ir.h"

/* ---- sums: always the tree (l, l+8), (l, l+4), (l, l+2), (l, l+1) ---- */

/* sums[i]: the lanes of a[i] added up, eight vectors at once. */
V_INLINE void v_sum8(const vf a[8], float sums[8])
{
    __m256 four[4], two[2];
    for (int i = 0; i < 4; i++) {
        __m256 p = v_half(a[i]), q = v_half(a[i + 4]);
        four[i] = _mm256_add_ps(_mm256_permute2f128_ps(p, q, 0x20), _mm256_permute2f128_ps(p, q, 0x31));
    }
    for (int i = 0; i < 2; i++)
        two[i] = _mm256_add_ps(_mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                               _mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee));
    _mm256_storeu_ps(sums,
                     _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xdd)));
}

V_INLINE float v_sum(vf a)
{
    __m256 eight = v_half(a);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The largest lane; what it is if a lane is NaN is not said. */
V_INLINE float v_greatest(vf a)
{
    __m256 eight = v_half_max(a);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* ---- rows of f32, f16 or bf16 ---- */

V_INLINE const void *row_at(const void *row, ir_dtype dtype, int64_t i)
{
    return (const char *)row + i * (dtype == IR_F32 ? 4 : 2);
}

/* Sixteen elements of a row from element i, or the n that are left (the other lanes are zero). */
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

V_INLINE void row_store(void *row, ir_dtype dtype, int64_t i, int64_t n, vf x)
{
    float lanes[16];
    n = n > 16 ? 16 : n;
    if (dtype == IR_F32) {
        v_store_n((float *)row + i, n, x);
        return;
    }
    v_store(lanes, x);
    for (int64_t l = 0; l < n; l++)
        ((uint16_t *)row)[i + l] = dtype == IR_F16 ? num_to_f16(lanes[l]) : num_to_bf16(lanes[l]);
}

static inline bool row_is_float(ir_dtype dtype)
{
    return dtype == IR_F32 || dtype == IR_F16 || dtype == IR_BF16;
}

/* ---- functions ---- */

/* e^x within 2 units of the last place; 0 below -87.3 (no subnormals), infinity above 88.3, NaN for NaN.
 * x = n ln 2 + r, |r| <= ln 2 / 2; e^r by its Taylor polynomial; ln 2 in two parts so that r is nearly exact. */
V_INLINE vf v_exp(vf x)
{
    vf n = v_round(v_mul(x, v_set(1.44269504f)));
    vf r = v_fma(n, v_set(-0.693145752f), x);
    r = v_fma(n, v_set(-1.42860677e-6f), r);
    vf p = v_fma(r, v_set(1.0f / 5040), v_set(1.0f / 720));
    p = v_fma(r, p, v_set(1.0f / 120));
    p = v_fma(r, p, v_set(1.0f / 24));
    p = v_fma(r, p, v_set(1.0f / 6));
    p = v_fma(r, p, v_set(0.5f));
    p = v_fma(r, p, v_set(1.0f));
    p = v_fma(r, p, v_set(1.0f));
    vf y = v_scale(p, n);
    y = v_select_less(x, v_set(-87.3f), v_zero(), y);
    return v_select_less(v_set(88.3f), x, v_set(INFINITY), y);
}

/* x / (1 + e^-x) */
V_INLINE vf v_silu(vf x)
{
    return v_div(x, v_add(v_set(1), v_exp(v_sub(v_zero(), x))));
}

/* 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
V_INLINE vf v_gelu_tanh(vf x)
{
    vf cube = v_mul(v_mul(x, x), x);
    vf u = v_mul(v_set(0.797884561f), v_fma(v_set(0.044715f), cube, x));
    return v_div(x, v_add(v_set(1), v_exp(v_mul(v_set(-2), u))));
}

/* 0.5 x (1 + erf(x / sqrt 2)): by the C library, lane by lane; models that use it are few. */
V_INLINE vf v_gelu(vf x)
{
    float lanes[16];
    v_store(lanes, x);
    for (int i = 0; i < 16; i++)
        lanes[i] = 0.5f * lanes[i] * (1 + erff(lanes[i] * 0.707106781f));
    return v_load(lanes);
}

#endif
