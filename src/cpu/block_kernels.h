/* block_kernels.h - blocks of 256 weights (Q2_K .. Q6_K, code books) as bytes and scales.
 *
 * The formats differ in how they pack bits and scales (ir/blocks.c has the layouts); in all of
 * them a weight is scale * q + offset, with one scale and offset for 16 or 32 neighbours.  So a
 * block is unpacked first, 32 weights at a time by operations on bytes, into q as bytes and
 * scales as floats; then one loop serves every format, and what it reads lies in the first
 * cache.  q, scales and their product are exact in fp32: a weight is rounded once, as the
 * reference does.  Cost: about 1/3 of an operation a weight.
 *
 * How the bits lie, of 256 weights in eight groups g of 32 (w: weight within the group, byte w
 * of the run that is named):
 *
 *   two bits   (Q2_K, Q3_K)  byte g / 4 * 32 + w of 64, bits 2 (g % 4) and up
 *   four bits  (Q4_K, Q5_K)  byte g / 2 * 32 + w of 128, the low nibble if g is even
 *   one bit more             byte w of 32, bit g
 *   six bits   (Q6_K)        four low and two high bits, each as above, except that the low
 *                            nibbles of groups g and g + 2 share a byte
 *
 * so each group is one load of 32 bytes, a shift and a mask.
 *
 * Used by linear_kernels.h (direct_parts, unpack_parts) and int8_formats.h, which takes the
 * integers but not the scales.
 */
#ifndef CPU_BLOCK_KERNELS_H
#define CPU_BLOCK_KERNELS_H

#include "cpu/codebook_kernels.h"

/* Weights of a block, of every format here. */
enum { BLOCK_WEIGHTS = 256 };

/* An unpacked block: weight 16 i + k is scale[i] * q[16 i + k] + offset[i].  Formats with scales
 * for 32 neighbours write each of them twice, so that one loop serves all. */
typedef struct __attribute__((aligned(64))) block_parts {
    int8_t q[BLOCK_WEIGHTS];
    float scale[16], offset[16]; /* of 16 weights each; offset: of formats that have one */
} block_parts;

/* ---- bytes ---- */

/* Of each byte the bits of `mask` that begin at bit `from`, moved to bit `to`.  There are no
 * shifts of bytes: 16-bit lanes are shifted, and the mask removes the bits that come from the
 * neighbour byte. */
V_INLINE __m256i bits_of(__m256i x, int from, int mask, int to)
{
    __m256i moved = from > to ? _mm256_srli_epi16(x, from - to) : _mm256_slli_epi16(x, to - from);
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)(mask << to)));
}

/* Store 32 weights to `to`, aligned: low and high bits joined, minus `below`, which makes them
 * signed. */
V_INLINE void put_bytes(int8_t *to, __m256i low, __m256i high, int below)
{
    __m256i q = _mm256_or_si256(low, high);
    _mm256_store_si256((__m256i *)(void *)to, _mm256_sub_epi8(q, _mm256_set1_epi8((char)below)));
}

/* Unpack 64 bytes, each 32 of which hold 128 two-bit weights.  third, or NULL: 32 bytes, of
 * which bit g adds 4 to the weights of group g. */
V_INLINE void take_two_bits(const uint8_t *q, const uint8_t *third, int8_t *to)
{
    const __m256i none = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        put_bytes(to + 32 * i, bits_of(bytes_at(q + i / 4 * 32), i % 4 * 2, 3, 0),
                  third ? bits_of(bytes_at(third), i, 1, 2) : none, third ? 4 : 0);
}

/* Unpack 128 bytes, each 32 of which hold 64 weights as nibbles.  fifth, or NULL: 32 bytes, of
 * which bit g adds 16 to the weights of group g. */
V_INLINE void take_four_bits(const uint8_t *q, const uint8_t *fifth, int8_t *to)
{
    const __m256i none = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        put_bytes(to + 32 * i, bits_of(bytes_at(q + i / 2 * 32), i % 2 * 4, 15, 0),
                  fifth ? bits_of(bytes_at(fifth), i, 1, 4) : none, 0);
}

/* Unpack 128 bytes of low nibbles and 64 bytes of two high bits. */
V_INLINE void take_six_bits(const uint8_t *low, const uint8_t *high, int8_t *to)
{
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        put_bytes(to + 32 * i,
                  bits_of(bytes_at(low + i / 4 * 64 + i % 2 * 32), i % 4 / 2 * 4, 15, 0),
                  bits_of(bytes_at(high + i / 4 * 32), i % 4 * 2, 3, 4), 32);
}

/* ---- scales ---- */

/* Eight bytes minus `below`, times d, as floats. */
V_INLINE __m256 eight_scales(uint64_t bytes, int below, float d)
{
    __m256i q = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(q, _mm256_set1_epi32(below))),
                         _mm256_set1_ps(d));
}

/* Store eight scales of 32 weights each as sixteen of 16 weights each: every one twice. */
V_INLINE void put_doubled(float *to, __m256 s)
{
    _mm256_store_ps(to, _mm256_permutevar8x32_ps(s, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)));
    _mm256_store_ps(to + 8, _mm256_permutevar8x32_ps(s, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)));
}

/* Sixteen scales from sixteen bytes. */
V_INLINE void put_scales(float *to, uint64_t first, uint64_t second, int below, float d)
{
    _mm256_store_ps(to, eight_scales(first, below, d));
    _mm256_store_ps(to + 8, eight_scales(second, below, d));
}

/* Eight bytes from two words of four, the low word first. */
V_INLINE uint64_t two_words(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

/* Masks for four fields in a word: the low 2, 4 or 6 bits of each byte, and bits 4 and 5. */
enum { BITS_2 = 0x03030303, BITS_4 = 0x0f0f0f0f, BITS_6 = 0x3f3f3f3f, TOP_2 = 0x30303030 };

/* Q4_K, Q5_K: f16 scale and minimum, then 12 bytes with eight pairs of six bits.  The packing
 * saves bits: bytes 0-3 and 4-7 have the low six bits of the first four scales and minima, whose
 * top two bits hold the high ones of the last four; their low four are the nibbles of bytes 8-11.
 *
 *   a = s0 s1 s2 s3  (6 bits each, bits 6-7: high bits of s4 ... s7)
 *   b = m0 m1 m2 m3  (the same of m4 ... m7)
 *   c = low nibbles s4 ... s7, high nibbles m4 ... m7 */
V_INLINE void take_pairs(const uint8_t *block, block_parts *to)
{
    uint32_t a = word_at(block + 4), b = word_at(block + 8), c = word_at(block + 12);
    uint64_t scales = two_words(a & BITS_6, (c & BITS_4) | (a >> 2 & TOP_2));
    uint64_t minima = two_words(b & BITS_6, (c >> 4 & BITS_4) | (b >> 2 & TOP_2));
    put_doubled(to->scale, eight_scales(scales, 0, half_at(block)));
    put_doubled(to->offset, eight_scales(minima, 0, -half_at(block + 2)));
}

/* Q3_K: 12 bytes with 16 scales of six bits, 32 too large.  Their low four bits are the nibbles
 * of a and b, in order s0-3, s4-7 (low), s8-11, s12-15 (high); bits 4 and 5 come from c, two
 * bits of each of its bytes. */
V_INLINE void take_q3_k_scales(const uint8_t *s, float d, block_parts *to)
{
    uint32_t a = word_at(s), b = word_at(s + 4), c = word_at(s + 8);
    uint32_t first = (a & BITS_4) | (c & BITS_2) << 4, second = (b & BITS_4) | (c >> 2 & BITS_2)
                                                                                   << 4;
    uint32_t third = (a >> 4 & BITS_4) | (c >> 4 & BITS_2) << 4,
             last = (b >> 4 & BITS_4) | (c >> 6 & BITS_2) << 4;
    put_scales(to->scale, two_words(first, second), two_words(third, last), 32, d);
}

/* Q2_K: 16 bytes, each a scale in the low and a minimum in the high nibble. */
V_INLINE void take_q2_k_scales(const uint8_t *s, float d, float minimum, block_parts *to)
{
    const uint64_t nibbles = 0x0f0f0f0f0f0f0f0fu;
    uint64_t first, second;
    memcpy(&first, s, sizeof first);
    memcpy(&second, s + 8, sizeof second);
    put_scales(to->scale, first & nibbles, second & nibbles, 0, d);
    put_scales(to->offset, first >> 4 & nibbles, second >> 4 & nibbles, 0, -minimum);
}

/* 16 signed bytes times d, as floats. */
V_INLINE void put_scaled(float *to, const void *s, float d)
{
    for (int i = 0; i < 16; i += 8) {
        __m256i q = _mm256_cvtepi8_epi32(
            _mm_loadl_epi64((const __m128i *)(const void *)((const char *)s + i)));
        _mm256_store_ps(to + i, _mm256_mul_ps(_mm256_cvtepi32_ps(q), _mm256_set1_ps(d)));
    }
}

/* ---- blocks; dtype is a constant wherever these are called, so the branches are gone ---- */

/* Formats with blocks of 256, which this file unpacks; the others have blocks of 32 or none. */
V_INLINE bool has_parts(ir_dtype dtype)
{
    return dtype == IR_Q2_K || dtype == IR_Q3_K || dtype == IR_Q4_K || dtype == IR_Q5_K ||
           dtype == IR_Q6_K || codebook_has(dtype);
}

/* Formats with a minimum: their weight takes an FMA, the others' a product. */
V_INLINE bool has_offset(ir_dtype dtype)
{
    return dtype == IR_Q2_K || dtype == IR_Q4_K || dtype == IR_Q5_K;
}

/* The small integers that multiply d, one for each 16 weights; 1 for the formats without them. */
V_INLINE __m128i small_of_book(ir_dtype dtype, const uint8_t *b, const opened_book *opened)
{
    if (book_is_opened(dtype))
        return half_bytes_at(opened->small);
    __m128i s = _mm256_castsi256_si128(small_of_iq4_xs(b, b));
    return dtype == IR_IQ4_XS ? _mm_unpacklo_epi8(s, s) : _mm_set1_epi8(1);
}

/* A block of codebook_kernels.h, which gives magnitudes and signs apart; here they are joined. */
V_INLINE void take_codebook(ir_dtype dtype, const uint8_t *block, block_parts *to)
{
    opened_book opened;
    if (book_is_opened(dtype))
        open_book(dtype, block, &opened);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        book_quants q = take_book(dtype, block, &opened, i);
        __m256i w = book_has_signs(dtype) ? _mm256_sign_epi8(q.w, q.sign) : q.w;
        bytes_put(to->q + 32 * i, _mm256_sub_epi8(w, _mm256_set1_epi8((char)book_below(dtype))));
    }
    int8_t small[16];
    _mm_storeu_si128((__m128i *)(void *)small, small_of_book(dtype, block, &opened));
    put_scaled(to->scale, small, book_scale(dtype, block, &opened));
}

/* Unpack one block of any of these formats.  The offsets are those of the structures in
 * ir/blocks.c: for Q2_K scales at 0, integers at 16, f16 scale and minimum at the end; for Q6_K
 * the scale is the last. */
V_INLINE void take_block(ir_dtype dtype, const uint8_t *block, block_parts *to)
{
    if (codebook_has(dtype)) {
        take_codebook(dtype, block, to);
    } else if (dtype == IR_Q2_K) {
        take_two_bits(block + 16, 0, to->q);
        take_q2_k_scales(block, half_at(block + 80), half_at(block + 82), to);
    } else if (dtype == IR_Q3_K) {
        take_two_bits(block + 32, block, to->q);
        take_q3_k_scales(block + 96, half_at(block + 108), to);
    } else if (dtype == IR_Q4_K) {
        take_four_bits(block + 16, 0, to->q);
        take_pairs(block, to);
    } else if (dtype == IR_Q5_K) {
        take_four_bits(block + 48, block + 16, to->q);
        take_pairs(block, to);
    } else {
        take_six_bits(block, block + 128, to->q);
        put_scaled(to->scale, block + 192, half_at(block + 208));
    }
}

/* Weights 16 i .. 16 i + 15 of an unpacked block, as floats. */
V_INLINE vf block_weights(ir_dtype dtype, const block_parts *b, int i)
{
    vf q = vi_float(vi_load_i8(b->q + 16 * i));
    return has_offset(dtype) ? v_fma(q, v_set(b->scale[i]), v_set(b->offset[i]))
                             : v_mul(q, v_set(b->scale[i]));
}

#endif
