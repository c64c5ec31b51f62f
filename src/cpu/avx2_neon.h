/* avx2_neon.h - a small part of AVX2's intrinsics, implemented with NEON's.
 *
 * The kernels of block formats are written once, in that part of AVX2.  On arm64 this file gives
 * it its meaning: a vector of 256 bits is a pair of NEON registers, its low lane of 128 bits in
 * `a` and its high lane in `b`.  AVX2 works within lanes of 128 bits almost everywhere, so most
 * names are one NEON instruction for each half:
 *
 *   _mm256_add_epi8(x, y)   ->   { x.a + y.a, x.b + y.b }
 *
 * Results are AVX2's bit for bit, except conversions to integers out of range.  An immediate is
 * part of a function's name here: one that no kernel uses yet does not compile.
 *
 * Included by vec_neon.h alone.
 */
#ifndef CPU_AVX2_NEON_H
#define CPU_AVX2_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "cpu/inline.h"

/* The names of AVX2's vectors.  AVX2 has one type for integers of all widths, NEON one for each:
 * bytes stand for all here, and a cast to another NEON type keeps the bits.
 */
typedef int8x16_t __m128i;
typedef float32x4_t __m128;
typedef float64x2_t __m128d;
typedef struct __m256i {
    __m128i a, b;
} __m256i;
typedef struct __m256 {
    __m128 a, b;
} __m256;
typedef struct __m256d {
    __m128d a, b;
} __m256d;

#define _MM_HINT_T1 2 /* into the second cache */
#define _mm_prefetch(p, level) __builtin_prefetch(p, 0, level)

/* Defines _mm_NAME and _mm256_NAME: `result` is an expression of x and y, which are NEON vectors
 * of type `lanes`. */
#define NEON_OF_TWO(name, lanes, result)                              \
    V_INLINE __m128i _mm_##name(__m128i p, __m128i q)                 \
    {                                                                 \
        const lanes x = (lanes)p, y = (lanes)q;                       \
        return (__m128i)(result);                                     \
    }                                                                 \
    V_INLINE __m256i _mm256_##name(__m256i p, __m256i q)              \
    {                                                                 \
        return (__m256i){_mm_##name(p.a, q.a), _mm_##name(p.b, q.b)}; \
    }
/* As NEON_OF_TWO, for an operation on lanes x by a number n, such as a shift. */
#define NEON_OF_ONE(name, lanes, result)                          \
    V_INLINE __m128i _mm_##name(__m128i p, int n)                 \
    {                                                             \
        const lanes x = (lanes)p;                                 \
        return (__m128i)(result);                                 \
    }                                                             \
    V_INLINE __m256i _mm256_##name(__m256i p, int n)              \
    {                                                             \
        return (__m256i){_mm_##name(p.a, n), _mm_##name(p.b, n)}; \
    }

/* ---- integers, lane by lane ---- */

NEON_OF_TWO(add_epi8, uint8x16_t, x + y)
NEON_OF_TWO(add_epi16, uint16x8_t, x + y)
NEON_OF_TWO(add_epi32, uint32x4_t, x + y)
NEON_OF_TWO(add_epi64, uint64x2_t, x + y)
NEON_OF_TWO(sub_epi8, uint8x16_t, x - y)
NEON_OF_TWO(sub_epi32, uint32x4_t, x - y)
NEON_OF_TWO(subs_epu8, uint8x16_t, vqsubq_u8(x, y))
NEON_OF_TWO(mullo_epi16, uint16x8_t, x *y)
NEON_OF_TWO(mullo_epi32, uint32x4_t, x *y)
NEON_OF_TWO(min_epu8, uint8x16_t, vminq_u8(x, y))
NEON_OF_TWO(max_epi32, int32x4_t, vmaxq_s32(x, y))
NEON_OF_TWO(cmpeq_epi8, int8x16_t, vceqq_s8(x, y))
NEON_OF_TWO(cmpgt_epi32, int32x4_t, vcgtq_s32(x, y))
/* NEON shifts left by a signed count, so a shift to the right is one by a negative count.  Of a
 * count NEON takes the low byte, AVX2 the whole word: counts of 32 and more, which give 0 in AVX2,
 * do not occur in the kernels.
 */
NEON_OF_TWO(sllv_epi32, int32x4_t, vshlq_s32(x, y))
NEON_OF_TWO(srlv_epi32, uint32x4_t, vshlq_u32(x, -(int32x4_t)y))
NEON_OF_ONE(slli_epi16, uint16x8_t, x << n)
NEON_OF_ONE(slli_epi32, uint32x4_t, x << n)
NEON_OF_ONE(srli_epi16, uint16x8_t, x >> n)
NEON_OF_ONE(srli_epi32, uint32x4_t, x >> n)
NEON_OF_ONE(srai_epi16, int16x8_t, x >> n)
NEON_OF_ONE(srai_epi32, int32x4_t, x >> n)

/* x, 0 or -x, as y is above, at or below 0.  NEON's comparisons give 0 or -1, so their difference
 * is 1, 0 or -1.  -x of -128 is -128, as in AVX2.
 */
NEON_OF_TWO(sign_epi8, int8x16_t,
            vmulq_s8(x, vsubq_s8((int8x16_t)vcltzq_s8(y), (int8x16_t)vcgtzq_s8(y))))

/* Operations on bits, whose names say the width of the register instead of the lanes. */
#define NEON_OF_BITS(wide, narrow, name, result)                                            \
    V_INLINE __m128i _mm_##name##_##narrow(__m128i x, __m128i y)                            \
    {                                                                                       \
        return result;                                                                      \
    }                                                                                       \
    V_INLINE __m256i _mm256_##name##_##wide(__m256i p, __m256i q)                           \
    {                                                                                       \
        return (__m256i){_mm_##name##_##narrow(p.a, q.a), _mm_##name##_##narrow(p.b, q.b)}; \
    }
NEON_OF_BITS(si256, si128, and, x &y)
NEON_OF_BITS(si256, si128, or, x | y)
NEON_OF_BITS(si256, si128, xor, x ^ y)
NEON_OF_BITS(si256, si128, andnot, ~x &y)

/* Byte by byte; -128 stays, as in AVX2. */
V_INLINE __m256i _mm256_abs_epi8(__m256i x)
{
    return (__m256i){vabsq_s8(x.a), vabsq_s8(x.b)};
}
/* Bytes of `yes` where bit 7 of the mask is set, else of `no`. */
V_INLINE __m256i _mm256_blendv_epi8(__m256i no, __m256i yes, __m256i mask)
{
    return (__m256i){vbslq_s8(vcltzq_s8(mask.a), yes.a, no.a),
                     vbslq_s8(vcltzq_s8(mask.b), yes.b, no.b)};
}

/* ---- sums of neighbours ---- */

/* madd: products of 16-bit pairs, added to 32 bits.  sad: the sums of |x - y| over eight bytes, one
 * of 64 bits for each; with y = 0 it is how the kernels add up bytes.  Three widening sums of
 * neighbours make it: 16 bytes -> 8 -> 4 -> 2 sums.
 */
NEON_OF_TWO(madd_epi16, int16x8_t,
            vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)))
NEON_OF_TWO(hadd_epi32, int32x4_t, vpaddq_s32(x, y))
NEON_OF_TWO(sad_epu8, uint8x16_t, vpaddlq_u32(vpaddlq_u16(vpaddlq_u8(vabdq_u8(x, y)))))

/* ---- order within lanes of 128 bits ---- */

/* unpacklo and unpackhi alternate the elements of the low, or the high, halves of x and y: x0 y0 x1
 * y1 ..  packs and packus narrow x into the low half and y into the high one, and put what does not
 * fit to the nearest that does.
 */
NEON_OF_TWO(unpacklo_epi8, int8x16_t, vzip1q_s8(x, y))
NEON_OF_TWO(unpackhi_epi8, int8x16_t, vzip2q_s8(x, y))
NEON_OF_TWO(unpacklo_epi16, int16x8_t, vzip1q_s16(x, y))
NEON_OF_TWO(unpackhi_epi16, int16x8_t, vzip2q_s16(x, y))
NEON_OF_TWO(unpacklo_epi32, int32x4_t, vzip1q_s32(x, y))
NEON_OF_TWO(unpackhi_epi32, int32x4_t, vzip2q_s32(x, y))
NEON_OF_TWO(unpacklo_epi64, int64x2_t, vzip1q_s64(x, y))
NEON_OF_TWO(unpackhi_epi64, int64x2_t, vzip2q_s64(x, y))
NEON_OF_TWO(packs_epi16, int16x8_t, vqmovn_high_s16(vqmovn_s16(x), y))
NEON_OF_TWO(packs_epi32, int32x4_t, vqmovn_high_s32(vqmovn_s32(x), y))
NEON_OF_TWO(packus_epi16, int16x8_t, vqmovun_high_s16(vqmovun_s16(x), y))
NEON_OF_TWO(packus_epi32, int32x4_t, vqmovun_high_s32(vqmovun_s32(x), y))
/* Bytes of x by the low four bits of the index; 0 where its bit 7 is set.  NEON gives 0 for every
 * index above 15, hence the mask: it clears bits 4 to 6 and leaves bit 7.
 */
NEON_OF_TWO(shuffle_epi8, uint8x16_t, vqtbl1q_u8(x, y & 0x8f))

#define _mm_shuffle_epi32(x, order) neon_shuffle_epi32_##order(x)
/* The immediates of _mm_shuffle_epi32: two bits for each word of the result, the lowest first.
 * 0x4e is 2 3 0 1: the halves change places.
 */
V_INLINE __m128i neon_shuffle_epi32_0x4e(__m128i x)
{
    return vextq_s8(x, x, 8);
}
/* Words 1 0 3 2: neighbours change places. */
V_INLINE __m128i neon_shuffle_epi32_0xb1(__m128i x)
{
    return (__m128i)vrev64q_s32((int32x4_t)x);
}
/* Words 1 1 2 2. */
V_INLINE __m128i neon_shuffle_epi32_0xa5(__m128i x)
{
    const int32x4_t from_1 = (int32x4_t)vextq_s8(x, x, 4);
    return (__m128i)vzip1q_s32(from_1, from_1);
}
/* Words 1 3 2 3; only the first two are wanted where it is used. */
V_INLINE __m128i neon_shuffle_epi32_0xed(__m128i x)
{
    const int32x4_t y = (int32x4_t)x;
    return (__m128i)vcombine_s32(vget_low_s32(vuzp2q_s32(y, y)), vget_high_s32(y));
}
#define _mm256_shuffle_epi32(x, order) neon_shuffle_pair_##order(x)
V_INLINE __m256i neon_shuffle_pair_0xa5(__m256i x)
{
    return (__m256i){neon_shuffle_epi32_0xa5(x.a), neon_shuffle_epi32_0xa5(x.b)};
}
V_INLINE __m256i neon_shuffle_pair_0xed(__m256i x)
{
    return (__m256i){neon_shuffle_epi32_0xed(x.a), neon_shuffle_epi32_0xed(x.b)};
}

/* n bytes to the right in each lane of 128 bits, zeros come in: 16 bytes from byte n on of x and,
 * above it, zeros.
 */
#define _mm_srli_si128(x, n) vextq_s8(x, vdupq_n_s8(0), n)
#define _mm256_srli_si256(x, n) neon_srli_pair_##n(x)
V_INLINE __m256i neon_srli_pair_8(__m256i x)
{
    return (__m256i){_mm_srli_si128(x.a, 8), _mm_srli_si128(x.b, 8)};
}

/* ---- order across lanes of 128 bits ---- */

/* The quarters of 64 bits that two bits each name, the lowest first: 0xd8 is quarters 0, 2, 1,
 * 3. */
#define _mm256_permute4x64_epi64(x, order) neon_permute4_##order(x)
V_INLINE __m256i neon_permute4_0x44(__m256i x)
{
    return (__m256i){x.a, x.a};
}
V_INLINE __m256i neon_permute4_0xee(__m256i x)
{
    return (__m256i){x.b, x.b};
}
/* Quarters 0, 2, 0, 2. */
V_INLINE __m256i neon_permute4_0x88(__m256i x)
{
    const __m128i even = _mm_unpacklo_epi64(x.a, x.b);
    return (__m256i){even, even};
}
V_INLINE __m256i neon_permute4_0xd8(__m256i x)
{
    return (__m256i){_mm_unpacklo_epi64(x.a, x.b), _mm_unpackhi_epi64(x.a, x.b)};
}

#define _mm256_permute2x128_si256(x, y, order) neon_permute2_##order(x, y)
/* High lane of x, then low lane of y. */
V_INLINE __m256i neon_permute2_0x21(__m256i x, __m256i y)
{
    return (__m256i){x.b, y.a};
}
#define _mm256_blend_epi32(x, y, from_y) neon_blend_##from_y(x, y)
/* The low lane of x, the high lane of y. */
V_INLINE __m256i neon_blend_0xf0(__m256i x, __m256i y)
{
    return (__m256i){x.a, y.b};
}

/* Eight words of 32 bits by their index, 0 to 7: each index becomes the indices of four bytes,
 * for a table of both registers. */
V_INLINE __m256i _mm256_permutevar8x32_epi32(__m256i x, __m256i index)
{
    const int8x16x2_t from = {{x.a, x.b}};
    const uint32x4_t by = vdupq_n_u32(0x04040404), byte = vdupq_n_u32(0x03020100);
    return (__m256i){vqtbl2q_s8(from, (uint8x16_t)((uint32x4_t)index.a * by + byte)),
                     vqtbl2q_s8(from, (uint8x16_t)((uint32x4_t)index.b * by + byte))};
}

#define _mm256_extracti128_si256(x, half) neon_half_##half(x)
V_INLINE __m128i neon_half_1(__m256i x)
{
    return x.b;
}
#define _mm256_inserti128_si256(x, y, half) neon_insert_##half(x, y)
V_INLINE __m256i neon_insert_1(__m256i x, __m128i y)
{
    return (__m256i){x.a, y};
}
V_INLINE __m256i _mm256_set_m128i(__m128i high, __m128i low)
{
    return (__m256i){low, high};
}
V_INLINE __m256i _mm256_broadcastsi128_si256(__m128i x)
{
    return (__m256i){x, x};
}
V_INLINE __m128i _mm256_castsi256_si128(__m256i x)
{
    return x.a;
}
/* The high lane is undefined in AVX2; here it is a copy. */
V_INLINE __m256i _mm256_castsi128_si256(__m128i x)
{
    return (__m256i){x, x};
}

/* ---- constants ---- */

/* Defines _mm_NAME and _mm256_NAME: every element is x. */
#define NEON_OF_SCALAR(name, type, set)                 \
    V_INLINE __m128i _mm_##name(type x)                 \
    {                                                   \
        return (__m128i)set(x);                         \
    }                                                   \
    V_INLINE __m256i _mm256_##name(type x)              \
    {                                                   \
        return (__m256i){_mm_##name(x), _mm_##name(x)}; \
    }
NEON_OF_SCALAR(set1_epi8, char, vdupq_n_s8)
NEON_OF_SCALAR(set1_epi16, short, vdupq_n_s16)
NEON_OF_SCALAR(set1_epi32, int, vdupq_n_s32)
NEON_OF_SCALAR(set1_epi64x, long long, vdupq_n_s64)

V_INLINE __m256i _mm256_setzero_si256(void)
{
    return _mm256_set1_epi8(0);
}

/* Constants, the first argument in the lowest element.  The 256-bit ones name the arguments of
 * their low half, and leave the rest for the high half.
 */
#define NEON_BYTES(...) ((__m128i)(int8x16_t){__VA_ARGS__})
#define NEON_WORDS(...) ((__m128i)(int32x4_t){__VA_ARGS__})
#define _mm_setr_epi8(...) NEON_BYTES(__VA_ARGS__)
#define _mm_setr_epi16(...) ((__m128i)(int16x8_t){__VA_ARGS__})
#define _mm256_setr_epi8(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ...) \
    ((__m256i){NEON_BYTES(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p), NEON_BYTES(__VA_ARGS__)})
#define _mm256_setr_epi16(a, b, c, d, e, f, g, h, ...) \
    ((__m256i){_mm_setr_epi16(a, b, c, d, e, f, g, h), _mm_setr_epi16(__VA_ARGS__)})
#define _mm256_setr_epi32(a, b, c, d, ...) \
    ((__m256i){NEON_WORDS(a, b, c, d), NEON_WORDS(__VA_ARGS__)})
#define _mm256_setr_epi64x(a, b, c, d) \
    ((__m256i){(__m128i)(int64x2_t){a, b}, (__m128i)(int64x2_t){c, d}})

/* ---- memory and scalars ---- */

V_INLINE __m128i _mm_loadu_si128(const void *p)
{
    return vld1q_s8(p);
}
V_INLINE void _mm_storeu_si128(void *p, __m128i x)
{
    vst1q_s8(p, x);
}
/* Eight bytes; the upper half becomes 0. */
V_INLINE __m128i _mm_loadl_epi64(const void *p)
{
    return vcombine_s8(vld1_s8(p), vdup_n_s8(0));
}
V_INLINE __m256i _mm256_loadu_si256(const void *p)
{
    return (__m256i){vld1q_s8(p), vld1q_s8((const int8_t *)p + 16)};
}
V_INLINE void _mm256_storeu_si256(void *p, __m256i x)
{
    vst1q_s8(p, x.a);
    vst1q_s8((int8_t *)p + 16, x.b);
}
/* AVX2's needs an aligned address; NEON has one store for both. */
V_INLINE void _mm256_store_si256(void *p, __m256i x)
{
    _mm256_storeu_si256(p, x);
}
V_INLINE int _mm_cvtsi128_si32(__m128i x)
{
    return vgetq_lane_s32((int32x4_t)x, 0);
}
V_INLINE __m128i _mm_cvtsi32_si128(int x)
{
    return (__m128i)vsetq_lane_s32(x, vdupq_n_s32(0), 0);
}
V_INLINE __m128i _mm_cvtsi64_si128(long long x)
{
    return (__m128i)vsetq_lane_s64(x, vdupq_n_s64(0), 0);
}

/* ---- wider integers ---- */

/* The 128 bits become 256: the low half of x fills the low lane, the high half the high lane.
 * epi: with sign, epu: without.
 */
V_INLINE __m256i _mm256_cvtepi8_epi16(__m128i x)
{
    return (__m256i){(__m128i)vmovl_s8(vget_low_s8(x)), (__m128i)vmovl_high_s8(x)};
}
V_INLINE __m256i _mm256_cvtepu8_epi16(__m128i x)
{
    const uint8x16_t y = (uint8x16_t)x;
    return (__m256i){(__m128i)vmovl_u8(vget_low_u8(y)), (__m128i)vmovl_high_u8(y)};
}
V_INLINE __m256i _mm256_cvtepi16_epi32(__m128i x)
{
    const int16x8_t y = (int16x8_t)x;
    return (__m256i){(__m128i)vmovl_s16(vget_low_s16(y)), (__m128i)vmovl_high_s16(y)};
}
V_INLINE __m256i _mm256_cvtepu16_epi32(__m128i x)
{
    const uint16x8_t y = (uint16x8_t)x;
    return (__m256i){(__m128i)vmovl_u16(vget_low_u16(y)), (__m128i)vmovl_high_u16(y)};
}
V_INLINE __m256i _mm256_cvtepi8_epi32(__m128i x)
{
    return _mm256_cvtepi16_epi32((__m128i)vmovl_s8(vget_low_s8(x)));
}
V_INLINE __m256i _mm256_cvtepu8_epi32(__m128i x)
{
    return _mm256_cvtepu16_epi32((__m128i)vmovl_u8(vget_low_u8((uint8x16_t)x)));
}

/* ---- floats ---- */

#define NEON_OF_FLOATS(name, result)                                 \
    V_INLINE __m128 _mm_##name(__m128 x, __m128 y)                   \
    {                                                                \
        return result;                                               \
    }                                                                \
    V_INLINE __m256 _mm256_##name(__m256 p, __m256 q)                \
    {                                                                \
        return (__m256){_mm_##name(p.a, q.a), _mm_##name(p.b, q.b)}; \
    }
NEON_OF_FLOATS(add_ps, x + y)
NEON_OF_FLOATS(sub_ps, x - y)
NEON_OF_FLOATS(mul_ps, x *y)
NEON_OF_FLOATS(div_ps, x / y)
/* the second operand if one of them is NaN, as AVX2 does */
NEON_OF_FLOATS(max_ps, vbslq_f32(vcgtq_f32(x, y), x, y))
NEON_OF_FLOATS(min_ps, vbslq_f32(vcltq_f32(x, y), x, y))
NEON_OF_FLOATS(xor_ps, (__m128)((uint32x4_t)x ^ (uint32x4_t)y))

/* One rounding: product and sum are fused. */
V_INLINE __m256 _mm256_fmadd_ps(__m256 x, __m256 y, __m256 z)
{
    return (__m256){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)};
}
V_INLINE __m128 _mm_set1_ps(float x)
{
    return vdupq_n_f32(x);
}
V_INLINE __m256 _mm256_set1_ps(float x)
{
    return (__m256){vdupq_n_f32(x), vdupq_n_f32(x)};
}
V_INLINE __m256 _mm256_setzero_ps(void)
{
    return _mm256_set1_ps(0);
}
#define _mm_setr_ps(...) ((__m128){__VA_ARGS__})
#define _mm256_setr_ps(a, b, c, d, ...) \
    ((__m256){_mm_setr_ps(a, b, c, d), _mm_setr_ps(__VA_ARGS__)})

V_INLINE void _mm_storeu_ps(float *p, __m128 x)
{
    vst1q_f32(p, x);
}
V_INLINE __m256 _mm256_loadu_ps(const float *p)
{
    return (__m256){vld1q_f32(p), vld1q_f32(p + 4)};
}
V_INLINE void _mm256_storeu_ps(float *p, __m256 x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
}
V_INLINE void _mm256_store_ps(float *p, __m256 x)
{
    _mm256_storeu_ps(p, x);
}

V_INLINE __m256i _mm256_castps_si256(__m256 x)
{
    return (__m256i){(__m128i)x.a, (__m128i)x.b};
}
V_INLINE __m256 _mm256_castsi256_ps(__m256i x)
{
    return (__m256){(__m128)x.a, (__m128)x.b};
}
V_INLINE __m256 _mm256_cvtepi32_ps(__m256i x)
{
    return (__m256){vcvtq_f32_s32((int32x4_t)x.a), vcvtq_f32_s32((int32x4_t)x.b)};
}
/* To the nearest, ties to even. */
V_INLINE __m256i _mm256_cvtps_epi32(__m256 x)
{
    return (__m256i){(__m128i)vcvtnq_s32_f32(x.a), (__m128i)vcvtnq_s32_f32(x.b)};
}
V_INLINE __m128 _mm_cvtph_ps(__m128i x)
{
    return vcvt_f32_f16((float16x4_t)vget_low_s8(x));
}
V_INLINE __m256 _mm256_cvtph_ps(__m128i x)
{
    return (__m256){_mm_cvtph_ps(x), vcvt_f32_f16((float16x4_t)vget_high_s8(x))};
}
/* One f16, as its bits. */
V_INLINE float _cvtsh_ss(unsigned short x)
{
    __fp16 half;
    memcpy(&half, &x, sizeof half);
    return half;
}

/* Two lanes of x, then two of y, which two bits each name. */
#define _mm256_shuffle_ps(x, y, order) neon_shuffle_ps_##order(x, y)
#define NEON_SHUFFLE_PS(order, result)                                                             \
    V_INLINE __m128 neon_shuffle_half_##order(__m128 x, __m128 y)                                  \
    {                                                                                              \
        return (__m128)(result);                                                                   \
    }                                                                                              \
    V_INLINE __m256 neon_shuffle_ps_##order(__m256 x, __m256 y)                                    \
    {                                                                                              \
        return (__m256){neon_shuffle_half_##order(x.a, y.a), neon_shuffle_half_##order(x.b, y.b)}; \
    }
/* 0x44: x0 x1 y0 y1; 0xee: x2 x3 y2 y3; 0x88: x0 x2 y0 y2; 0xdd: x1 x3 y1 y3. */
NEON_SHUFFLE_PS(0x44, vzip1q_f64((float64x2_t)x, (float64x2_t)y))
NEON_SHUFFLE_PS(0xee, vzip2q_f64((float64x2_t)x, (float64x2_t)y))
NEON_SHUFFLE_PS(0x88, vuzp1q_f32(x, y))
NEON_SHUFFLE_PS(0xdd, vuzp2q_f32(x, y))
NEON_OF_FLOATS(unpacklo_ps, vzip1q_f32(x, y))
NEON_OF_FLOATS(unpackhi_ps, vzip2q_f32(x, y))

#define _mm256_permute2f128_ps(x, y, order) neon_permute2_ps_##order(x, y)
/* Both low lanes, and both high ones. */
V_INLINE __m256 neon_permute2_ps_0x20(__m256 x, __m256 y)
{
    return (__m256){x.a, y.a};
}
V_INLINE __m256 neon_permute2_ps_0x31(__m256 x, __m256 y)
{
    return (__m256){x.b, y.b};
}
V_INLINE __m256 _mm256_permutevar8x32_ps(__m256 x, __m256i index)
{
    return _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(_mm256_castps_si256(x), index));
}
V_INLINE __m128 _mm256_castps256_ps128(__m256 x)
{
    return x.a;
}
#define _mm256_extractf128_ps(x, half) neon_half_ps_##half(x)
V_INLINE __m128 neon_half_ps_1(__m256 x)
{
    return x.b;
}

/* The last steps of a horizontal sum: move lanes 2 and 3 down, move lane 1 down, add lane 0
 * alone, read it. */
V_INLINE __m128 _mm_movehl_ps(__m128 x, __m128 y)
{
    return vcombine_f32(vget_high_f32(y), vget_high_f32(x));
}
V_INLINE __m128 _mm_movehdup_ps(__m128 x)
{
    return vtrn2q_f32(x, x);
}
V_INLINE __m128 _mm_add_ss(__m128 x, __m128 y)
{
    return vsetq_lane_f32(vgetq_lane_f32(x, 0) + vgetq_lane_f32(y, 0), x, 0);
}
V_INLINE __m128 _mm_max_ss(__m128 x, __m128 y)
{
    return vsetq_lane_f32(vgetq_lane_f32(_mm_max_ps(x, y), 0), x, 0);
}
V_INLINE float _mm_cvtss_f32(__m128 x)
{
    return vgetq_lane_f32(x, 0);
}

/* The same for doubles. */
V_INLINE __m128d _mm_add_pd(__m128d x, __m128d y)
{
    return x + y;
}
V_INLINE __m128d _mm_unpackhi_pd(__m128d x, __m128d y)
{
    return vzip2q_f64(x, y);
}
V_INLINE __m128d _mm_add_sd(__m128d x, __m128d y)
{
    return vsetq_lane_f64(vgetq_lane_f64(x, 0) + vgetq_lane_f64(y, 0), x, 0);
}
V_INLINE double _mm_cvtsd_f64(__m128d x)
{
    return vgetq_lane_f64(x, 0);
}
V_INLINE __m128d _mm256_castpd256_pd128(__m256d x)
{
    return x.a;
}
#define _mm256_extractf128_pd(x, half) neon_half_pd_##half(x)
V_INLINE __m128d neon_half_pd_1(__m256d x)
{
    return x.b;
}

#endif
