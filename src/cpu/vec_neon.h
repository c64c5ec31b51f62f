/* vec_neon.h - sixteen floats at a time in four NEON registers: the same names, and the same
 * bits, as vec_avx512.h and vec_avx2.h.  vec_avx512.h says what each name means; a __m256 is a
 * pair of NEON registers (avx2_neon.h).
 */
#ifndef CPU_VEC_NEON_H
#define CPU_VEC_NEON_H

#include "base/num.h"
#include "cpu/avx2_neon.h"
#include "cpu/vec_halves.h"
#include "ir/ir.h"

/* Register blocks for 32 registers of 128 bits, which hold as much as 16 of 256 bits: so those
 * of vec_avx2.h. */
enum {
    V_PANEL_TOKENS = 3,
    V_PANEL_ROWS = 4,
    V_DIRECT_ROWS_1 = 4,
    V_DIRECT_ROWS_2 = 2,
    V_DIRECT_ROWS_4 = 1
};
/* Four queries with one key, or with one vector of values, are 16 registers of sums: a vf is four.
 */
enum { V_QUERIES = 4, V_POSITIONS = 1, V_VALUES = 1, V_FEW_QUERIES = 4 };
enum { V_TILE_ROWS = 6, V_TILE_VECTORS = 1 };

typedef struct vf {
    __m256 a, b; /* lanes 0 to 7, 8 to 15 */
} vf;
typedef struct vi {
    __m256i a, b;
} vi;

V_INLINE vf v_set(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
V_INLINE vf v_zero(void)
{
    return v_set(0);
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

/* Defines `name` on whole vectors from the name of AVX2 for half of one. */
#define NEON_OF_TWO_VECTORS(type, name, half)          \
    V_INLINE type name(type x, type y)                 \
    {                                                  \
        return (type){half(x.a, y.a), half(x.b, y.b)}; \
    }
NEON_OF_TWO_VECTORS(vf, v_add, _mm256_add_ps)
NEON_OF_TWO_VECTORS(vf, v_sub, _mm256_sub_ps)
NEON_OF_TWO_VECTORS(vf, v_mul, _mm256_mul_ps)
NEON_OF_TWO_VECTORS(vf, v_div, _mm256_div_ps)
NEON_OF_TWO_VECTORS(vf, v_max, _mm256_max_ps)
NEON_OF_TWO_VECTORS(vf, v_min, _mm256_min_ps)
NEON_OF_TWO_VECTORS(vi, vi_and, _mm256_and_si256)
NEON_OF_TWO_VECTORS(vi, vi_or, _mm256_or_si256)
NEON_OF_TWO_VECTORS(vi, vi_sub, _mm256_sub_epi32)

V_INLINE vf v_fma(vf x, vf y, vf z)
{
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
V_INLINE vf v_sqrt(vf x)
{
    return (vf){{vsqrtq_f32(x.a.a), vsqrtq_f32(x.a.b)}, {vsqrtq_f32(x.b.a), vsqrtq_f32(x.b.b)}};
}
/* FRINTN: to the nearest, ties to even, whatever the rounding mode says. */
V_INLINE vf v_round(vf x)
{
    return (vf){{vrndnq_f32(x.a.a), vrndnq_f32(x.a.b)}, {vrndnq_f32(x.b.a), vrndnq_f32(x.b.b)}};
}
V_INLINE __m256 v_select_less8(__m256 x, __m256 bound, __m256 yes, __m256 no)
{
    return (__m256){vbslq_f32(vcltq_f32(x.a, bound.a), yes.a, no.a),
                    vbslq_f32(vcltq_f32(x.b, bound.b), yes.b, no.b)};
}
V_INLINE vf v_select_less(vf x, vf bound, vf yes, vf no)
{
    return (vf){v_select_less8(x.a, bound.a, yes.a, no.a),
                v_select_less8(x.b, bound.b, yes.b, no.b)};
}
/* n 2^23 is added to the bits of x: its exponent field grows by n.  n is a whole number already, so
 * converting it to integers is exact.
 */
V_INLINE __m256 v_scale8(__m256 x, __m256 n)
{
    __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), e));
}
V_INLINE vf v_scale(vf x, vf n)
{
    return (vf){v_scale8(x.a, n.a), v_scale8(x.b, n.b)};
}

/* NEON has no masked loads: a copy keeps the read inside the n floats.  n is 1 or more. */
V_INLINE vf v_load_n(const float *p, int64_t n)
{
    float lanes[16] = {0};
    if (n >= 16)
        return v_load(p);
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return v_load(lanes);
}
V_INLINE vf v_load_part(const float *p, int64_t first, int64_t end)
{
    float lanes[16] = {0};
    memcpy(lanes + first, p + first, (size_t)(end - first) * sizeof *p);
    return v_load(lanes);
}
V_INLINE void v_store_n(float *p, int64_t n, vf x)
{
    float lanes[16];
    if (n >= 16) {
        v_store(p, x);
        return;
    }
    v_store(lanes, x);
    memcpy(p, lanes, (size_t)n * sizeof *p);
}
/* Of the lanes l0 to l0 + 3, those of x from `first` on and below `end`, the others of `other`. */
V_INLINE __m128 v_keep4(__m128 x, int64_t first, int64_t end, __m128 other, int l0)
{
    const int32x4_t lane = (int32x4_t){0, 1, 2, 3} + l0;
    const uint32x4_t kept = vcgeq_s32(lane, vdupq_n_s32(first > 16 ? 16 : (int)first)) &
                            vcltq_s32(lane, vdupq_n_s32(end > 16 ? 16 : (int)end));
    return vbslq_f32(kept, x, other);
}
V_INLINE vf v_keep(vf x, int64_t first, int64_t end, vf other)
{
    return (vf){
        {v_keep4(x.a.a, first, end, other.a.a, 0), v_keep4(x.a.b, first, end, other.a.b, 4)},
        {v_keep4(x.b.a, first, end, other.b.a, 8), v_keep4(x.b.b, first, end, other.b.b, 12)}};
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
V_INLINE vf v_load_f16(const void *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128(p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const char *)p + 16))};
}

/* Store sixteen elements, each rounded by a function of num.h; it is inlined, and the compiler
 * turns the loop into vectors. */
V_INLINE void v_store_rounded(void *p, vf a, uint16_t (*round)(float x))
{
    float lanes[16];
    uint16_t half[16];
    v_store(lanes, a);
    for (int l = 0; l < 16; l++)
        half[l] = round(lanes[l]);
    memcpy(p, half, sizeof half);
}
V_INLINE void v_store_bf16(void *p, vf a)
{
    v_store_rounded(p, a, num_to_bf16);
}
V_INLINE void v_store_f16(void *p, vf a)
{
    v_store_rounded(p, a, num_to_f16);
}

V_INLINE vi vi_load_u8(const void *p)
{
    return (vi){_mm256_cvtepu8_epi32(_mm_loadl_epi64(p)),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const char *)p + 8))};
}
V_INLINE vi vi_load_i8(const void *p)
{
    return (vi){_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64((const char *)p + 8))};
}
V_INLINE vi vi_set(int32_t x)
{
    return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
V_INLINE vi vi_shr(vi x, int n)
{
    return (vi){_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)};
}
V_INLINE vi vi_shl(vi x, int n)
{
    return (vi){_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)};
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

/* Levels are computed, with the same rounding as those of a table. */
typedef struct v_levels {
    __m256 scale, bias;
} v_levels;
/* Eight lanes are enough, since all lanes of scale and bias are the same. */
V_INLINE v_levels v_make_levels(vf scale, vf bias)
{
    return (v_levels){scale.a, bias.a};
}
V_INLINE vf v_level(v_levels levels, vi q)
{
    return v_fma(vi_float(vi_and(q, vi_set(15))), (vf){levels.scale, levels.scale},
                 (vf){levels.bias, levels.bias});
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
    return vgetq_lane_f32(x.a.a, 0);
}
V_INLINE __m256 v_half_max(vf x)
{
    return _mm256_max_ps(x.a, x.b);
}
/* NEON has no movemask: each equal lane leaves its own bit, and the sum over lanes collects
 * them. */
V_INLINE uint32_t v_equal(vf x, vf y)
{
    const uint32x4_t bit = {1, 2, 4, 8};
    return vaddvq_u32((vceqq_f32(x.a.a, y.a.a) & bit) | (vceqq_f32(x.a.b, y.a.b) & bit << 4) |
                      (vceqq_f32(x.b.a, y.b.a) & bit << 8) | (vceqq_f32(x.b.b, y.b.b) & bit << 12));
}

/* out[j][i] = in[i][j] for a 4 x 4 part.  trn takes the even, or the odd, elements of two rows by
 * turns:
 *
 *   low01:   in[0][0] in[1][0] in[0][2] in[1][2]
 *   high01:  in[0][1] in[1][1] in[0][3] in[1][3]
 *
 * and the halves of 64 bits are then put together with those of rows 2 and 3.
 */
V_INLINE void v_transpose4(const __m128 in[4], __m128 out[4])
{
    const float32x4_t low01 = vtrn1q_f32(in[0], in[1]), high01 = vtrn2q_f32(in[0], in[1]),
                      low23 = vtrn1q_f32(in[2], in[3]), high23 = vtrn2q_f32(in[2], in[3]);
    out[0] = neon_shuffle_half_0x44(low01, low23);
    out[1] = neon_shuffle_half_0x44(high01, high23);
    out[2] = neon_shuffle_half_0xee(low01, low23);
    out[3] = neon_shuffle_half_0xee(high01, high23);
}

/* The same for an 8 x 8 part: four of 4 x 4. */
V_INLINE void v_transpose8(const __m256 in[8], __m256 out[8])
{
    for (int part = 0; part < 4; part++) { /* bit 0: which rows, bit 1: which columns */
        const int row = (part & 1) * 4, column = (part >> 1) * 4;
        __m128 from[4], to[4];
        for (int i = 0; i < 4; i++)
            from[i] = column ? in[row + i].b : in[row + i].a;
        v_transpose4(from, to);
        for (int i = 0; i < 4; i++)
            *(row ? &out[column + i].b : &out[column + i].a) = to[i];
    }
}

/* And for 16 x 16: four of 8 x 8.  A part's rows become its columns, so part (row, column) of `in`
 * lands at (column, row) of `out`.
 */
V_INLINE void v_transpose(const vf in[16], vf out[16])
{
    for (int part = 0; part < 4; part++) {
        const int row = (part & 1) * 8, column = (part >> 1) * 8;
        __m256 from[8], to[8];
        for (int i = 0; i < 8; i++)
            from[i] = column ? in[row + i].b : in[row + i].a;
        v_transpose8(from, to);
        for (int i = 0; i < 8; i++)
            *(row ? &out[column + i].b : &out[column + i].a) = to[i];
    }
}

typedef struct vd {
    __m256d a, b, c, d; /* four lanes each */
} vd;
V_INLINE __m256d vd_set4(double x)
{
    return (__m256d){vdupq_n_f64(x), vdupq_n_f64(x)};
}
V_INLINE vd vd_set(double x)
{
    return (vd){vd_set4(x), vd_set4(x), vd_set4(x), vd_set4(x)};
}
/* Four floats as doubles, which is exact; narrowing rounds to the nearest. */
V_INLINE __m256d vd_wide4(__m128 x)
{
    return (__m256d){vcvt_f64_f32(vget_low_f32(x)), vcvt_high_f64_f32(x)};
}
V_INLINE vd vd_wide(vf x)
{
    return (vd){vd_wide4(x.a.a), vd_wide4(x.a.b), vd_wide4(x.b.a), vd_wide4(x.b.b)};
}
V_INLINE __m128 vd_narrow4(__m256d x)
{
    return vcvt_high_f32_f64(vcvt_f32_f64(x.a), x.b);
}
V_INLINE vf vd_narrow(vd x)
{
    return (vf){{vd_narrow4(x.a), vd_narrow4(x.b)}, {vd_narrow4(x.c), vd_narrow4(x.d)}};
}

V_INLINE __m256d vd_add4(__m256d x, __m256d y)
{
    return (__m256d){x.a + y.a, x.b + y.b};
}
V_INLINE __m256d vd_sub4(__m256d x, __m256d y)
{
    return (__m256d){x.a - y.a, x.b - y.b};
}
V_INLINE __m256d vd_mul4(__m256d x, __m256d y)
{
    return (__m256d){x.a * y.a, x.b * y.b};
}
V_INLINE __m256d vd_fma4(__m256d x, __m256d y, __m256d z)
{
    return (__m256d){vfmaq_f64(z.a, x.a, y.a), vfmaq_f64(z.b, x.b, y.b)};
}
V_INLINE vd vd_add(vd x, vd y)
{
    return (vd){vd_add4(x.a, y.a), vd_add4(x.b, y.b), vd_add4(x.c, y.c), vd_add4(x.d, y.d)};
}
V_INLINE vd vd_sub(vd x, vd y)
{
    return (vd){vd_sub4(x.a, y.a), vd_sub4(x.b, y.b), vd_sub4(x.c, y.c), vd_sub4(x.d, y.d)};
}
V_INLINE vd vd_mul(vd x, vd y)
{
    return (vd){vd_mul4(x.a, y.a), vd_mul4(x.b, y.b), vd_mul4(x.c, y.c), vd_mul4(x.d, y.d)};
}
V_INLINE vd vd_fma(vd x, vd y, vd z)
{
    return (vd){vd_fma4(x.a, y.a, z.a), vd_fma4(x.b, y.b, z.b), vd_fma4(x.c, y.c, z.c),
                vd_fma4(x.d, y.d, z.d)};
}
/* The first two steps of vd_sum's tree: l + (l + 8), then + 4. */
V_INLINE __m256d vd_quarter(vd x)
{
    return vd_add4(vd_add4(x.a, x.c), vd_add4(x.b, x.d));
}

#ifdef __ARM_FEATURE_DOTPROD
/* sum plus four products of signed bytes in each lane of 32 bits (SDOT).  An optional feature of
 * ARMv8.2, so only files compiled for it have it.
 */
V_INLINE __m256i neon_dot(__m256i sum, __m256i w, __m256i x)
{
    return (__m256i){(__m128i)vdotq_s32((int32x4_t)sum.a, w.a, x.a),
                     (__m128i)vdotq_s32((int32x4_t)sum.b, w.b, x.b)};
}
#endif

/* Keeps the compiler from reordering a chain of sums: it would keep all terms, for which there
 * are not enough registers. */
V_INLINE __m256i in_order(__m256i sum)
{
    __asm__("" : "+w"(sum.a), "+w"(sum.b));
    return sum;
}

#endif
