/* vec_avx2.h - sixteen floats at a time in two AVX2 registers: the same names, and the same
 * bits, as vec_avx512.h, which says what each name means.
 *
 * A vector of sixteen lanes is two registers, so a register block has half the accumulators;
 * where a kernel would need more than sixteen registers it works on parts (vp).
 */
#ifndef CPU_VEC_AVX2_H
#define CPU_VEC_AVX2_H

#include <immintrin.h>

#include "cpu/inline.h"
#include "cpu/vec_halves.h"
#include "ir/ir.h"

/* Register blocks for 16 registers.  A vector takes two of them; a panel is summed in parts of
 * one each. */
enum {
    V_PANEL_TOKENS = 3, /* x V_PANEL_ROWS: 12 accumulators, 4 registers for operands */
    V_PANEL_ROWS = 4,
    V_DIRECT_ROWS_1 = 4,
    V_DIRECT_ROWS_2 = 2,
    V_DIRECT_ROWS_4 = 1
};
enum { V_QUERIES = 4, V_POSITIONS = 1, V_VALUES = 1, V_FEW_QUERIES = 4 };
enum { V_TILE_ROWS = 6, V_TILE_VECTORS = 1 };

typedef struct vf {
    __m256 a, b; /* lanes 0 to 7, 8 to 15 */
} vf;
typedef struct vi {
    __m256i a, b;
} vi;

V_INLINE vf v_zero(void)
{
    return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
V_INLINE vf v_set(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
V_INLINE vf v_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
V_INLINE void v_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
V_INLINE vf v_add(vf x, vf y)
{
    return (vf){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
V_INLINE vf v_sub(vf x, vf y)
{
    return (vf){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
V_INLINE vf v_mul(vf x, vf y)
{
    return (vf){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
V_INLINE vf v_div(vf x, vf y)
{
    return (vf){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
V_INLINE vf v_max(vf x, vf y)
{
    return (vf){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
V_INLINE vf v_min(vf x, vf y)
{
    return (vf){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
V_INLINE vf v_fma(vf x, vf y, vf z)
{
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
V_INLINE vf v_sqrt(vf x)
{
    return (vf){_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)};
}
V_INLINE vf v_round(vf x)
{
    return (vf){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
/* A comparison with a NaN is false: then `no`. */
V_INLINE vf v_select_less(vf x, vf bound, vf yes, vf no)
{
    return (vf){_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, bound.a, _CMP_LT_OQ)),
                _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, bound.b, _CMP_LT_OQ))};
}
/* x 2^n: n is a whole number, and its bits are added to the exponent field. */
V_INLINE __m256 v_scale8(__m256 x, __m256 n)
{
    __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), e));
}
V_INLINE vf v_scale(vf x, vf n)
{
    return (vf){v_scale8(x.a, n.a), v_scale8(x.b, n.b)};
}

/* All ones in the lanes l0 to l0 + 7 that are below n. */
V_INLINE __m256i v_mask8(int64_t n, int l0)
{
    __m256i lane =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(l0));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n > 16 ? 16 : (int)n), lane);
}
V_INLINE vf v_load_n(const float *p, int64_t n)
{
    return (vf){_mm256_maskload_ps(p, v_mask8(n, 0)), _mm256_maskload_ps(p + 8, v_mask8(n, 8))};
}
V_INLINE vf v_load_part(const float *p, int64_t first, int64_t end)
{
    return (vf){_mm256_maskload_ps(p, _mm256_andnot_si256(v_mask8(first, 0), v_mask8(end, 0))),
                _mm256_maskload_ps(p + 8, _mm256_andnot_si256(v_mask8(first, 8), v_mask8(end, 8)))};
}
/* A masked store takes some 20 cycles on AMD's processors, so whole vectors and the rows of a
 * panel avoid it. */
V_INLINE void v_store_n(float *p, int64_t n, vf x)
{
    if (n >= 16) {
        v_store(p, x);
        return;
    }
    if (n == 4) {
        _mm_storeu_ps(p, _mm256_castps256_ps128(x.a));
        return;
    }
    _mm256_maskstore_ps(p, v_mask8(n, 0), x.a);
    _mm256_maskstore_ps(p + 8, v_mask8(n, 8), x.b);
}
/* Lanes below `end` that are not below `first` are kept. */
V_INLINE vf v_keep(vf x, int64_t first, int64_t end, vf other)
{
    __m256i a = _mm256_andnot_si256(v_mask8(first, 0), v_mask8(end, 0));
    __m256i b = _mm256_andnot_si256(v_mask8(first, 8), v_mask8(end, 8));
    return (vf){_mm256_blendv_ps(other.a, x.a, _mm256_castsi256_ps(a)),
                _mm256_blendv_ps(other.b, x.b, _mm256_castsi256_ps(b))};
}

/* bf16 is the upper half of an f32. */
V_INLINE __m256 v_load_bf16_8(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
V_INLINE vf v_load_bf16(const void *p)
{
    return (vf){v_load_bf16_8(p), v_load_bf16_8((const char *)p + 16)};
}
/* F16C converts eight at a time, exactly. */
V_INLINE vf v_load_f16(const void *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128(p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))};
}

/* Store sixteen elements rounded as num.h does. */
V_INLINE __m256i v_round_bf16_8(__m256 a)
{
    __m256i bits = _mm256_castps_si256(a),
            odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1)),
            sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd),
            quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 is_nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    return _mm256_srli_epi32(_mm256_castps_si256(_mm256_blendv_ps(
                                 _mm256_castsi256_ps(sum), _mm256_castsi256_ps(quiet), is_nan)),
                             16);
}
V_INLINE void v_store_bf16(void *p, vf a)
{
    __m256i both = _mm256_packus_epi32(v_round_bf16_8(a.a), v_round_bf16_8(a.b));
    _mm256_storeu_si256(p, _mm256_permute4x64_epi64(both, 0xd8));
}
/* The payload of a NaN is dropped first. */
V_INLINE __m128i v_round_f16_8(__m256 a)
{
    __m256 quiet = _mm256_or_ps(_mm256_and_ps(a, _mm256_set1_ps(-0.0f)),
                                _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));
    a = _mm256_blendv_ps(a, quiet, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
}
V_INLINE void v_store_f16(void *p, vf a)
{
    _mm_storeu_si128(p, v_round_f16_8(a.a));
    _mm_storeu_si128((__m128i *)p + 1, v_round_f16_8(a.b));
}

/* 16 bytes, of which each register takes eight. */
V_INLINE vi vi_load_u8(const void *p)
{
    return (vi){_mm256_cvtepu8_epi32(_mm_loadl_epi64(p)),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)((const char *)p + 8)))};
}
V_INLINE vi vi_load_i8(const void *p)
{
    return (vi){_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)((const char *)p + 8)))};
}
V_INLINE vi vi_set(int32_t x)
{
    return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
V_INLINE vi vi_and(vi x, vi y)
{
    return (vi){_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
V_INLINE vi vi_or(vi x, vi y)
{
    return (vi){_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
}
V_INLINE vi vi_sub(vi x, vi y)
{
    return (vi){_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
V_INLINE vi vi_shr(vi x, int n)
{
    return (vi){_mm256_srl_epi32(x.a, _mm_cvtsi32_si128(n)),
                _mm256_srl_epi32(x.b, _mm_cvtsi32_si128(n))};
}
V_INLINE vi vi_shl(vi x, int n)
{
    return (vi){_mm256_sll_epi32(x.a, _mm_cvtsi32_si128(n)),
                _mm256_sll_epi32(x.b, _mm_cvtsi32_si128(n))};
}
V_INLINE vf vi_float(vi x)
{
    return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
V_INLINE vi vi_round(vf x)
{
    return (vi){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)};
}
V_INLINE vi vi_bits(vf x)
{
    return (vi){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}
V_INLINE vf v_from_bits(vi x)
{
    return (vf){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}

/* AVX2 has no permutation of sixteen floats: levels are computed instead, with the same
 * rounding. */
typedef struct v_levels {
    __m256 scale, bias;
} v_levels;
V_INLINE v_levels v_make_levels(vf scale, vf bias)
{
    return (v_levels){scale.a, bias.a};
}
V_INLINE vf v_level(v_levels levels, vi q)
{
    vf f = vi_float(vi_and(q, vi_set(15)));
    return (vf){_mm256_fmadd_ps(f.a, levels.scale, levels.bias),
                _mm256_fmadd_ps(f.b, levels.scale, levels.bias)};
}

V_INLINE __m256 v_half(vf x)
{
    return _mm256_add_ps(x.a, x.b);
}
V_INLINE void v_sum8(const vf x[8], float sums[8])
{
    __m256 eight[8];
    for (int i = 0; i < 8; i++)
        eight[i] = v_half(x[i]);
    v_sum_halves(eight, sums);
}

/* A part of a vector, which one pass over a panel sums up. */
enum { V_PARTS = 2 };
typedef __m256 vp;
V_INLINE vp vp_zero(void)
{
    return _mm256_setzero_ps();
}
V_INLINE vp vp_load(const float *p, int part)
{
    return _mm256_loadu_ps(p + 8 * part);
}
V_INLINE vp vp_fma(vp x, vp y, vp z)
{
    return _mm256_fmadd_ps(x, y, z);
}
V_INLINE vf vp_whole(const vp parts[V_PARTS])
{
    return (vf){parts[0], parts[1]};
}

V_INLINE float v_first(vf x)
{
    return _mm256_cvtss_f32(x.a);
}
V_INLINE __m256 v_half_max(vf x)
{
    return _mm256_max_ps(x.a, x.b);
}
V_INLINE uint32_t v_equal(vf x, vf y)
{
    int a = _mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ));
    int b = _mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ));
    return (uint32_t)a | (uint32_t)b << 8;
}

/* Transpose 8 x 8 floats: out[j][i] = in[i][j]. */
V_INLINE void v_transpose8(const __m256 in[8], __m256 out[8])
{
    __m256 a[8], b[8];
    /* pairs of rows, then pairs of pairs, then the two halves of a register */
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(in[i], in[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(in[i], in[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            b[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
            b[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0xee);
        }
    for (int j = 0; j < 4; j++) {
        out[j] = _mm256_permute2f128_ps(b[j], b[4 + j], 0x20);
        out[4 + j] = _mm256_permute2f128_ps(b[j], b[4 + j], 0x31);
    }
}

/* Four transpositions of 8 x 8; the two parts off the diagonal exchange their places. */
V_INLINE void v_transpose(const vf in[16], vf out[16])
{
    __m256 from[8], to[8];
    for (int half = 0; half < 4; half++) { /* rows of bit 0, columns of bit 1 */
        int row = (half & 1) * 8, column = (half >> 1) * 8;
        for (int i = 0; i < 8; i++)
            from[i] = column ? in[row + i].b : in[row + i].a;
        v_transpose8(from, to);
        for (int i = 0; i < 8; i++)
            *(row ? &out[column + i].b : &out[column + i].a) = to[i];
    }
}

/* Sixteen doubles: what sums that must not lose digits are kept in. */
typedef struct vd {
    __m256d a, b, c, d; /* four lanes each */
} vd;
V_INLINE vd vd_set(double x)
{
    return (vd){_mm256_set1_pd(x), _mm256_set1_pd(x), _mm256_set1_pd(x), _mm256_set1_pd(x)};
}
/* Exact. */
V_INLINE vd vd_wide(vf x)
{
    return (vd){_mm256_cvtps_pd(_mm256_castps256_ps128(x.a)),
                _mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1)),
                _mm256_cvtps_pd(_mm256_castps256_ps128(x.b)),
                _mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1))};
}
V_INLINE vf vd_narrow(vd x)
{
    return (vf){_mm256_set_m128(_mm256_cvtpd_ps(x.b), _mm256_cvtpd_ps(x.a)),
                _mm256_set_m128(_mm256_cvtpd_ps(x.d), _mm256_cvtpd_ps(x.c))};
}
V_INLINE vd vd_add(vd x, vd y)
{
    return (vd){_mm256_add_pd(x.a, y.a), _mm256_add_pd(x.b, y.b), _mm256_add_pd(x.c, y.c),
                _mm256_add_pd(x.d, y.d)};
}
V_INLINE vd vd_sub(vd x, vd y)
{
    return (vd){_mm256_sub_pd(x.a, y.a), _mm256_sub_pd(x.b, y.b), _mm256_sub_pd(x.c, y.c),
                _mm256_sub_pd(x.d, y.d)};
}
V_INLINE vd vd_mul(vd x, vd y)
{
    return (vd){_mm256_mul_pd(x.a, y.a), _mm256_mul_pd(x.b, y.b), _mm256_mul_pd(x.c, y.c),
                _mm256_mul_pd(x.d, y.d)};
}
V_INLINE vd vd_fma(vd x, vd y, vd z)
{
    return (vd){_mm256_fmadd_pd(x.a, y.a, z.a), _mm256_fmadd_pd(x.b, y.b, z.b),
                _mm256_fmadd_pd(x.c, y.c, z.c), _mm256_fmadd_pd(x.d, y.d, z.d)};
}
/* The first two steps of vd_sum's tree: l + (l + 8), then + 4. */
V_INLINE __m256d vd_quarter(vd x)
{
    return _mm256_add_pd(_mm256_add_pd(x.a, x.c), _mm256_add_pd(x.b, x.d));
}

/* Keeps the compiler from reordering a chain of sums: it would keep all terms, for which there
 * are not enough registers. */
V_INLINE __m256i in_order(__m256i sum)
{
    __asm__("" : "+x"(sum));
    return sum;
}

#endif
