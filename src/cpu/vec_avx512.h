/* vec_avx512.h - sixteen floats at a time, AVX-512: the vocabulary in which the fast bodies are
 * written.
 *
 * The bodies are headers of plain code over the names below; one .c file per instruction set
 * includes this file or vec_avx2.h and then the bodies.  Both files promise the same bits: a
 * vector has sixteen lanes whatever the registers are, each operation rounds once as IEEE 754
 * says, and v_sum adds lanes in one tree (l and l+8, then +4, +2, +1).
 *
 * The vocabulary; x, y and z are vectors, p an address of any alignment:
 *
 *   vf                        sixteen floats
 *   v_zero(), v_set(f)        all lanes the same
 *   v_load(p), v_store(p, x)
 *   v_load_n(p, n)            the first n lanes, at most 16, the others zero; no other memory is
 *                             touched
 *   v_load_part(p, i, j)      lanes [i, j) from p + i on, the others zero; nor is other memory
 *                             touched
 *   v_store_n(p, n, x)        the first n lanes
 *   v_load_f16, v_load_bf16   sixteen halves, widened
 *   v_add, v_sub, v_mul, v_div, v_fma(x, y, z) = x y + z, rounded once
 *   v_max(x, y), v_min(x, y)  y where a lane of either is NaN
 *   v_round(x)                nearest integer, ties to even
 *   v_scale(x, n)             x 2^n, by adding n to the exponent field: both must be normal
 *   v_select_less(x, b, y, z) y where x < b, else z
 *   v_keep(x, i, j, y)        lanes [i, j) of x, the others of y
 *   v_equal(x, y)             bit l: lanes l are equal
 *   v_half(x), v_half_max(x)  eight lanes: l and l + 8 added, or the greater
 *   v_sum8(x, sums)           sums[i]: the lanes of x[i] added up as v_sum does, for eight vectors
 *   v_first(x)                lane 0
 *   v_transpose(in, out)      sixteen vectors
 *   v_sqrt(x)                 rounded once
 *   vi                        sixteen int32: vi_load_u8, vi_load_i8 (widened bytes), vi_and, vi_or,
 *                             vi_sub, vi_shl, vi_shr, vi_set, vi_float; vi_round: of floats, the
 *                             nearest; vi_bits, v_from_bits: the bits of floats, and back
 *   v_levels                  v_level(v_make_levels(s, b), q) = s (q & 15) + b
 *   vp                        a V_PARTS-th of a vector: vp_load, vp_fma, vp_whole
 *   vd                        sixteen doubles: vd_wide, vd_narrow, vd_add, vd_sub, vd_mul, vd_fma,
 *                             vd_set; vd_quarter adds them to four: l, l + 4, l + 8, l + 12
 */
#ifndef CPU_VEC_AVX512_H
#define CPU_VEC_AVX512_H

#include <immintrin.h>

#include "cpu/inline.h"
#include "cpu/vec_halves.h"
#include "ir/ir.h"

/* Tokens and rows of a register block: its accumulators and their operands fill 32 registers. */
enum {
    V_PANEL_TOKENS = 3,
    V_PANEL_ROWS = 8,
    V_DIRECT_ROWS_1 = 8,
    V_DIRECT_ROWS_2 = 8,
    V_DIRECT_ROWS_4 = 4
};
/* For attention: queries computed together, keys of a register block of scores, vectors of one
 * of values; up to how many queries read rows in place. */
enum { V_QUERIES = 4, V_POSITIONS = 4, V_VALUES = 4, V_FEW_QUERIES = 8 };
/* rows and vectors of a product's register block */
enum { V_TILE_ROWS = 8, V_TILE_VECTORS = 3 };

typedef __m512 vf;
typedef __m512i vi;

V_INLINE vf v_zero(void)
{
    return _mm512_setzero_ps();
}
V_INLINE vf v_set(float x)
{
    return _mm512_set1_ps(x);
}
V_INLINE vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
V_INLINE void v_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}
V_INLINE vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
V_INLINE vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
V_INLINE vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
V_INLINE vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
V_INLINE vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
V_INLINE vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
V_INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
V_INLINE vf v_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}
V_INLINE vf v_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
V_INLINE vf v_select_less(vf x, vf bound, vf yes, vf no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, bound, _CMP_LT_OQ), no, yes);
}
/* a 2^n for a whole number n with a 2^n normal. */
V_INLINE vf v_scale(vf a, vf n)
{
    vi e = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), e));
}

/* A mask of the first n lanes, 0 to 16; masked loads and stores do not touch memory of the
 * others. */
V_INLINE __mmask16 v_mask(int64_t n)
{
    return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}
V_INLINE vf v_load_n(const float *p, int64_t n)
{
    return n == 8 ? _mm512_zextps256_ps512(_mm256_loadu_ps(p))
                  : _mm512_maskz_loadu_ps(v_mask(n), p);
}
V_INLINE vf v_load_part(const float *p, int64_t first, int64_t end)
{
    return _mm512_maskz_loadu_ps((__mmask16)(v_mask(end) & ~v_mask(first)), p);
}
V_INLINE void v_store_n(float *p, int64_t n, vf a)
{
    if (n >= 16)
        v_store(p, a);
    else if (n == 8)
        _mm256_storeu_ps(p, _mm512_castps512_ps256(a));
    else
        _mm512_mask_storeu_ps(p, v_mask(n), a);
}
V_INLINE vf v_keep(vf a, int64_t first, int64_t end, vf other)
{
    return _mm512_mask_blend_ps((__mmask16)(v_mask(end) & ~v_mask(first)), other, a);
}

V_INLINE vf v_load_bf16(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
V_INLINE vf v_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

/* Store sixteen elements rounded as num.h does. */
V_INLINE void v_store_bf16(void *p, vf a)
{
    vi bits = _mm512_castps_si512(a),
       odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1)),
       sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    sum = _mm512_mask_or_epi32(sum, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), bits,
                               _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)));
}
/* The payload of a NaN is dropped first. */
V_INLINE void v_store_f16(void *p, vf a)
{
    vi bits = _mm512_castps_si512(a),
       quiet = _mm512_or_si512(_mm512_and_si512(bits, _mm512_set1_epi32(INT32_MIN)),
                               _mm512_set1_epi32(0x7fc00000));
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(p, _mm512_cvtps_ph(_mm512_castsi512_ps(bits), _MM_FROUND_TO_NEAREST_INT));
}

/* For tiles of bf16 (tile_kernels.h): 32 elements of 16 bits, or the n that are left (the others
 * are zero), and their storing. */
V_INLINE __mmask32 v_mask_halves(int64_t n)
{
    return n >= 32 ? 0xffffffffu : (1u << n) - 1;
}
V_INLINE vf v_load_halves(const void *p, int64_t n)
{
    return _mm512_castsi512_ps(n >= 32 ? _mm512_loadu_si512(p)
                                       : _mm512_maskz_loadu_epi16(v_mask_halves(n), p));
}
V_INLINE void v_store_halves(void *p, int64_t n, vf a)
{
    _mm512_mask_storeu_epi16(p, v_mask_halves(n), _mm512_castps_si512(a));
}
/* n elements of 16 bits, at most 32: every second one from p on. */
V_INLINE vf v_load_every_second(const uint16_t *p, int64_t n)
{
    const vi even = _mm512_set1_epi32(0xffff);
    const int64_t all = 2 * (n > 32 ? 32 : n) - 1; /* nothing after the last one is read */
    vi low = _mm512_maskz_loadu_epi16(v_mask_halves(all), p),
       high = _mm512_maskz_loadu_epi16(all > 32 ? v_mask_halves(all - 32) : 0, p + 32);
    return _mm512_castsi512_ps(_mm512_inserti64x4(
        _mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_and_si512(low, even))),
        _mm512_cvtepi32_epi16(_mm512_and_si512(high, even)), 1));
}
/* Pairs: lane l holds element p[l], and in its upper half p[l + step], for n lanes; the others are
 * zero, and so are both elements if none is `left`, the second one if one is. */
V_INLINE vf v_load_pairs(const uint16_t *p, int64_t step, int64_t left, int64_t n)
{
    const __mmask16 lanes = v_mask(n);
    vi low = _mm512_setzero_si512(), high = low;
    if (left > 0)
        low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p));
    if (left > 1)
        high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p + step));
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}
/* The bf16 nearest towards zero, as a float. */
V_INLINE vf v_top_bf16(vf a)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int32_t)0xffff0000)));
}

/* Integers in 32-bit lanes. */
V_INLINE vi vi_load_u8(const void *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(p));
}
V_INLINE vi vi_load_i8(const void *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(p));
}
V_INLINE vi vi_set(int32_t x)
{
    return _mm512_set1_epi32(x);
}
V_INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
V_INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
V_INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
V_INLINE vi vi_shr(vi a, int n)
{
    return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n));
}
V_INLINE vi vi_shl(vi a, int n)
{
    return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n));
}
V_INLINE vf vi_float(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
V_INLINE vi vi_round(vf a)
{
    return _mm512_cvtps_epi32(a);
}
V_INLINE vi vi_bits(vf a)
{
    return _mm512_castps_si512(a);
}
V_INLINE vf v_from_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}

/* The sixteen levels q * scale + bias, q = 0 to 15, of a block of 4-bit weights: one permutation
 * then unpacks sixteen weights. */
typedef __m512 v_levels;
V_INLINE v_levels v_make_levels(vf scale, vf bias)
{
    vf q = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return v_fma(q, scale, bias);
}
/* Lane l: the level of the low four bits of q[l]. */
V_INLINE vf v_level(v_levels levels, vi q)
{
    return _mm512_permutexvar_ps(q, levels);
}

/* Sixteen lanes to eight: the first step of every sum. */
V_INLINE __m256 v_half(vf a)
{
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

/* The sums of eight vectors.  Two vectors fold into one that holds both, three times; the last
 * step stays inside it.  Halving each vector first, as AVX2 does, takes half as many
 * instructions again, and the products after them would wait longer. */
V_INLINE void v_sum8(const vf x[8], float sums[8])
{
    vf eights[4], fours[2], twos, ones;
    for (int i = 0; i < 4; i++)
        eights[i] = v_add(_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x44),
                          _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xee));
    for (int i = 0; i < 2; i++)
        fours[i] = v_add(_mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0xdd));
    twos = v_add(_mm512_shuffle_ps(fours[0], fours[1], 0x44),
                 _mm512_shuffle_ps(fours[0], fours[1], 0xee));
    /* lanes are 0 . 4 . 1 . 5 . 2 . 6 . 3 . 7 . */
    ones = v_add(twos, _mm512_movehdup_ps(twos));
    const vi order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm256_storeu_ps(sums, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, ones)));
}

/* A part of a vector, here all of it, which one pass over a panel sums up. */
enum { V_PARTS = 1 };
typedef vf vp;
V_INLINE vp vp_zero(void)
{
    return v_zero();
}
V_INLINE vp vp_load(const float *p, int part)
{
    (void)part;
    vf v = v_load(p);
    __asm__("" : "+v"(v)); /* or the compiler loads it again for each product */
    return v;
}
V_INLINE vp vp_fma(vp a, vp b, vp c)
{
    return v_fma(a, b, c);
}
V_INLINE vf vp_whole(const vp parts[V_PARTS])
{
    return parts[0];
}

V_INLINE float v_first(vf a)
{
    return _mm512_cvtss_f32(a);
}
V_INLINE __m256 v_half_max(vf a)
{
    return _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}
/* Bit l: x[l] == y[l]. */
V_INLINE uint32_t v_equal(vf x, vf y)
{
    return _mm512_cmp_ps_mask(x, y, _CMP_EQ_OQ);
}

/* Transpose 16 x 16 floats: out[j][i] = in[i][j]. */
V_INLINE void v_transpose(const vf in[16], vf out[16])
{
    vf a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(in[i], in[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(in[i], in[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            __m512d low = _mm512_castps_pd(a[i + j]), high = _mm512_castps_pd(a[i + j + 2]);
            b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    /* b[4 i + j] holds, in its 4-lane part p, the column 4 p + j of rows 4 i to 4 i + 3. */
    for (int j = 0; j < 4; j++) {
        vf low0 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0x88),
           high0 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0xdd);
        vf low1 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0x88),
           high1 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0xdd);
        out[j] = _mm512_shuffle_f32x4(low0, low1, 0x88);
        out[8 + j] = _mm512_shuffle_f32x4(low0, low1, 0xdd);
        out[4 + j] = _mm512_shuffle_f32x4(high0, high1, 0x88);
        out[12 + j] = _mm512_shuffle_f32x4(high0, high1, 0xdd);
    }
}

/* Sixteen doubles, for sums that must not lose digits. */
typedef struct vd {
    __m512d a, b; /* lanes 0 to 7, 8 to 15 */
} vd;
V_INLINE vd vd_set(double x)
{
    return (vd){_mm512_set1_pd(x), _mm512_set1_pd(x)};
}
V_INLINE vd vd_wide(vf x)
{
    return (vd){_mm512_cvtps_pd(_mm512_castps512_ps256(x)),
                _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))};
}
V_INLINE vf vd_narrow(vd x)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(x.a)), _mm512_cvtpd_ps(x.b),
                              1);
}
V_INLINE vd vd_add(vd x, vd y)
{
    return (vd){_mm512_add_pd(x.a, y.a), _mm512_add_pd(x.b, y.b)};
}
V_INLINE vd vd_sub(vd x, vd y)
{
    return (vd){_mm512_sub_pd(x.a, y.a), _mm512_sub_pd(x.b, y.b)};
}
V_INLINE vd vd_mul(vd x, vd y)
{
    return (vd){_mm512_mul_pd(x.a, y.a), _mm512_mul_pd(x.b, y.b)};
}
V_INLINE vd vd_fma(vd x, vd y, vd z)
{
    return (vd){_mm512_fmadd_pd(x.a, y.a, z.a), _mm512_fmadd_pd(x.b, y.b, z.b)};
}
/* Sixteen lanes to four: the first two steps of a sum. */
V_INLINE __m256d vd_quarter(vd x)
{
    __m512d eight = _mm512_add_pd(x.a, x.b);
    return _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
}

#endif
