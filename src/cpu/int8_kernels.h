/* int8_kernels.h - the inner loops of int8_fast.h in vectors of 256 bits.
 *
 * Included by one .c file for each instruction set.  INT8_DOT is defined where one instruction adds four products of
 * bytes to a lane: dot(acc, unsigned, signed); then
 * INT8_DOT_PAIRS adds two products of 16 bits.  Without it bytes are multiplied to pairs in 16 bits (maddubs), as many
 * of which are added as fit.  Two loops do the products, for eight rows of weights:
 *   direct: few tokens; a row's weights are bytes in the order of K; lanes are added up at the end of a block;
 *   panel: many tokens; rows are unpacked once, interleaved by four elements, so that a lane is a row.
 */
#ifndef CPU_INT8_KERNELS_H
#define CPU_INT8_KERNELS_H

#include <math.h>

#include "cpu/block_kernels.h"
#include "cpu/int8_fast.h"
#include "op/narrow.h"

#ifdef INT8_DOT
enum { HAS_DOT = 1 };
#else
enum { HAS_DOT = 0 };
#define INT8_DOT(acc, u, s) ((void)(u), (void)(s), (acc))
#define INT8_DOT_PAIRS(acc, a, b) _mm256_add_epi32(acc, _mm256_madd_epi16(a, b))
#endif

/* ---- formats; dtype is a constant wherever these are used ---- */

/* What is to be subtracted from q as take_quants gives it. */
V_INLINE int quants_below(ir_dtype dtype)
{
    switch (dtype) {
    case IR_Q4_0:
        return 8;
    case IR_Q5_0:
        return 16;
    case IR_Q8_0:
    case IR_IQ4_NL:
        return HAS_DOT ? 128 : 0;
    case IR_MXFP4:
        return HAS_DOT ? 16 : 0;
    case IR_Q3_K:
        return 4;
    case IR_Q6_K:
        return 32;
    default:
        return 0;
    }
}

/* The largest |q| as take_quants gives it. */
V_INLINE int quants_most(ir_dtype dtype)
{
    switch (dtype) {
    case IR_TQ1_0:
    case IR_TQ2_0:
        return 1;
    case IR_IQ1_S:
    case IR_IQ1_M:
        return 9;
    case IR_IQ2_XXS:
    case IR_IQ2_XS:
    case IR_IQ2_S:
        return 43;
    case IR_IQ3_XXS:
        return 62;
    case IR_IQ4_XS:
        return 127;
    case IR_MXFP4:
        return 28;
    case IR_Q2_K:
        return 3;
    case IR_Q3_K:
        return 7;
    case IR_Q5_0:
    case IR_Q5_1:
    case IR_Q5_K:
        return 31;
    case IR_Q6_K:
        return 63;
    case IR_Q8_0:
    case IR_IQ4_NL:
        return 255;
    default:
        return 15;
    }
}

/* Does take_quants give q with a sign?  Blocks of 32 have none where INT8_DOT multiplies bytes without a sign. */
V_INLINE bool is_signed(ir_dtype dtype)
{
    return codebook_has(dtype) || (!HAS_DOT && (dtype == IR_Q8_0 || dtype == IR_IQ4_NL || dtype == IR_MXFP4));
}

V_INLINE bool has_minimum(ir_dtype dtype)
{
    return dtype == IR_Q4_1 || dtype == IR_Q5_1 || has_offset(dtype);
}

/* Blocks of 256: has a small integer 32 neighbours, not 16? */
V_INLINE bool is_wide(ir_dtype dtype)
{
    return dtype == IR_Q4_K || dtype == IR_Q5_K;
}

/* Where d lies in a block; m follows it. */
V_INLINE int scale_at(ir_dtype dtype)
{
    return dtype == IR_Q2_K ? 80 : dtype == IR_Q3_K ? 108 : dtype == IR_Q6_K ? 208 : 0;
}

/* 32 bits, each as bit 4 of a byte. */
V_INLINE __m256i fifth_bits_at(const uint8_t *p)
{
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i from = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3,
                                          3, 3, 3, 3, 3, 3);
    __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)word_at(p)), from), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(bits, bit), _mm256_set1_epi8(16));
}

/* A block in the form that the functions below read: of a code book it is taken apart into *opened. */
V_INLINE const uint8_t *open_block(ir_dtype dtype, const uint8_t *block, codebook_block *opened)
{
    if (!codebook_has(dtype))
        return block;
    open_codebook(dtype, block, opened);
    return (const uint8_t *)opened;
}

V_INLINE const codebook_block *opened_at(const uint8_t *block)
{
    return (const codebook_block *)(const void *)block;
}

/* 32 weights of a block, the i-th, as bytes; see is_signed. */
V_INLINE __m256i take_quants(ir_dtype dtype, const uint8_t *b, int i)
{
    if (codebook_has(dtype))
        return bytes_at((const uint8_t *)opened_at(b)->q + 32 * i);
    switch (dtype) {
    case IR_IQ4_NL:
        return _mm256_xor_si256(look_up(codebook_iq4, nibbles_at(b + 2)), _mm256_set1_epi8(HAS_DOT ? -128 : 0));
    case IR_MXFP4:
        return _mm256_add_epi8(look_up(codebook_mxfp4, nibbles_at(b + 1)), _mm256_set1_epi8(HAS_DOT ? 16 : 0));
    case IR_Q4_0:
        return nibbles_at(b + 2);
    case IR_Q4_1:
        return nibbles_at(b + 4);
    case IR_Q5_0:
        return _mm256_or_si256(nibbles_at(b + 6), fifth_bits_at(b + 2));
    case IR_Q5_1:
        return _mm256_or_si256(nibbles_at(b + 8), fifth_bits_at(b + 4));
    case IR_Q8_0:
        return HAS_DOT ? _mm256_xor_si256(bytes_at(b + 2), _mm256_set1_epi8(-128)) : bytes_at(b + 2);
    case IR_Q2_K:
        return bits_of(bytes_at(b + 16 + i / 4 * 32), i % 4 * 2, 3, 0);
    case IR_Q3_K:
        return _mm256_or_si256(bits_of(bytes_at(b + 32 + i / 4 * 32), i % 4 * 2, 3, 0), bits_of(bytes_at(b), i, 1, 2));
    case IR_Q4_K:
        return bits_of(bytes_at(b + 16 + i / 2 * 32), i % 2 * 4, 15, 0);
    case IR_Q5_K:
        return _mm256_or_si256(bits_of(bytes_at(b + 48 + i / 2 * 32), i % 2 * 4, 15, 0),
                               bits_of(bytes_at(b + 16), i, 1, 4));
    default: /* IR_Q6_K */
        return _mm256_or_si256(bits_of(bytes_at(b + i / 4 * 64 + i % 2 * 32), i % 4 / 2 * 4, 15, 0),
                               bits_of(bytes_at(b + 128 + i / 4 * 32), i % 4 * 2, 3, 4));
    }
}

/* The small integers of a block of 256, and those of its minimum, as bytes: 8 if the format is wide, else 16. */
typedef struct small_integers {
    __m128i scale, minimum;
} small_integers;

V_INLINE small_integers take_small(ir_dtype dtype, const uint8_t *b)
{
    small_integers s = {_mm_setzero_si128(), _mm_setzero_si128()};
    if (codebook_has(dtype)) {
        s.scale = _mm_loadu_si128((const __m128i *)(const void *)opened_at(b)->small);
    } else if (dtype == IR_Q2_K) {
        __m128i both = _mm_loadu_si128((const __m128i *)(const void *)b);
        s.scale = _mm_and_si128(both, _mm_set1_epi8(15));
        s.minimum = _mm_and_si128(_mm_srli_epi16(both, 4), _mm_set1_epi8(15));
    } else if (dtype == IR_Q3_K) {
        uint32_t x = word_at(b + 96), y = word_at(b + 100), z = word_at(b + 104);
        uint32_t first = (x & BITS_4) | (z & BITS_2) << 4, second = (y & BITS_4) | (z >> 2 & BITS_2) << 4;
        uint32_t third = (x >> 4 & BITS_4) | (z >> 4 & BITS_2) << 4, last = (y >> 4 & BITS_4) | (z >> 6 & BITS_2) << 4;
        s.scale = _mm_sub_epi8(_mm_setr_epi32((int)first, (int)second, (int)third, (int)last), _mm_set1_epi8(32));
    } else if (is_wide(dtype)) {
        uint32_t x = word_at(b + 4), y = word_at(b + 8), z = word_at(b + 12);
        s.scale = _mm_cvtsi64_si128((long long)two_words(x & BITS_6, (z & BITS_4) | (x >> 2 & TOP_2)));
        s.minimum = _mm_cvtsi64_si128((long long)two_words(y & BITS_6, (z >> 4 & BITS_4) | (y >> 2 & TOP_2)));
    } else {
        s.scale = _mm_loadu_si128((const __m128i *)(const void *)(b + 192));
    }
    return s;
}

/* In 16 bits, one for each 16 weights. */
V_INLINE __m256i for_each_16(ir_dtype dtype, __m128i bytes)
{
    return _mm256_cvtepi8_epi16(is_wide(dtype) ? _mm_unpacklo_epi8(bytes, bytes) : bytes);
}

/* What multiplies the sums of 16 of x: small integers of the minimum, or of the scale where q has an excess. */
V_INLINE __m256i sum_factors(ir_dtype dtype, const small_integers *s)
{
    return for_each_16(dtype, has_minimum(dtype) ? s->minimum : s->scale);
}

/* d of eight blocks whose scale is no f16. */
V_INLINE __m256 take_float_scales(ir_dtype dtype, const uint8_t *const block[INT8_ROWS])
{
    float d[INT8_ROWS];
    for (int r = 0; r < INT8_ROWS; r++)
        d[r] = codebook_has(dtype) ? opened_at(block[r])->d : codebook_mxfp4_scale(block[r][0]);
    return _mm256_loadu_ps(d);
}

/* d, and m with the sign that it is added with, of a block of each of eight rows. */
V_INLINE void take_scales(ir_dtype dtype, const uint8_t *const block[INT8_ROWS], __m256 *d, __m256 *m)
{
    const int at = scale_at(dtype);
    if (codebook_has(dtype) || dtype == IR_MXFP4) {
        *d = take_float_scales(dtype, block);
        *m = _mm256_setzero_ps();
        return;
    }
    if (!has_minimum(dtype)) {
        uint16_t h[INT8_ROWS];
#pragma GCC unroll 8
        for (int r = 0; r < INT8_ROWS; r++)
            memcpy(&h[r], block[r] + at, sizeof h[r]);
        __m128i halves = _mm_setr_epi16((short)h[0], (short)h[1], (short)h[2], (short)h[3], (short)h[4], (short)h[5],
                                        (short)h[6], (short)h[7]);
        *d = _mm256_cvtph_ps(halves);
        *m = _mm256_setzero_ps();
        return;
    }
    __m256i both =
        _mm256_setr_epi32((int)word_at(block[0] + at), (int)word_at(block[1] + at), (int)word_at(block[2] + at),
                          (int)word_at(block[3] + at), (int)word_at(block[4] + at), (int)word_at(block[5] + at),
                          (int)word_at(block[6] + at), (int)word_at(block[7] + at));
    const __m256i apart = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12,
                                           13, 2, 3, 6, 7, 10, 11, 14, 15);
    both = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(both, apart), 0xd8);
    *d = _mm256_cvtph_ps(_mm256_castsi256_si128(both));
    *m = _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1));
    if (has_parts(dtype))
        *m = _mm256_xor_ps(*m, _mm256_set1_ps(-0.0f));
}

/* ---- rows of x ---- */

V_INLINE const float *x_scales(const int8_rows *x, const uint8_t *row)
{
    return (const float *)(const void *)(row + x->k);
}
V_INLINE const int32_t *x_sums_32(const int8_rows *x, const uint8_t *row)
{
    return (const int32_t *)(const void *)(row + x->k + x->k / 8);
}
V_INLINE const float *x_scaled_sums(const int8_rows *x, const uint8_t *row)
{
    return (const float *)(const void *)(row + x->k + x->k / 4);
}
V_INLINE const int16_t *x_sums_16(const int8_rows *x, const uint8_t *row)
{
    return (const int16_t *)(const void *)(row + x->k + x->k / 64);
}

V_INLINE __m256i lanes_at(const void *p)
{
    return _mm256_loadu_si256(p);
}

V_INLINE int greatest_lane(__m256i a)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

/* d of a block, and what its elements are multiplied by.  Bits of |x| rise as |x| does, and NaN is above infinity. */
V_INLINE float block_scale(const float *x, int64_t block, float *by)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_setzero_si256();
    for (int64_t i = 0; i < block; i += 8)
        most = _mm256_max_epi32(most, _mm256_and_si256(lanes_at(x + i), magnitude));
    int bits = greatest_lane(most);
    float greatest;
    memcpy(&greatest, &bits, sizeof greatest);
    *by = 0;
    if (bits >= 0x7f800000)
        return NAN;
    if (greatest < NARROW_LEAST)
        return 0;
    *by = 127 / greatest;
    return greatest / 127;
}

/* 32 elements; by 0: zeros, whatever they are. */
V_INLINE __m256i round_32(const float *x, float by)
{
    __m256i q[4];
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(by)));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    return by != 0 ? bytes : _mm256_setzero_si256();
}

/* Sums of the first and of the last 16 of 32 integers. */
V_INLINE void sums_of_halves(__m256i q, int sums[2])
{
    __m256i excess = _mm256_sad_epu8(_mm256_xor_si256(q, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    __m256i both = _mm256_add_epi64(excess, _mm256_srli_si256(excess, 8));
    sums[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(both)) - 16 * 128;
    sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(both, 1)) - 16 * 128;
}

static void narrow(const float *x, int64_t k, int64_t block, void *to)
{
    const int8_rows row = {to, k, block, 1};
    uint8_t *q = to;
    float *scale = (float *)(uintptr_t)x_scales(&row, q), *scaled = (float *)(uintptr_t)x_scaled_sums(&row, q);
    int32_t *sums = (int32_t *)(uintptr_t)x_sums_32(&row, q);
    int16_t *halves = (int16_t *)(uintptr_t)x_sums_16(&row, q);
    float by = 0;
    for (int64_t i = 0; i < k; i += 32) {
        int sum[2];
        if (i % block == 0)
            scale[i / block] = block_scale(x + i, block, &by);
        __m256i bytes = round_32(x + i, by);
        _mm256_storeu_si256((__m256i *)(void *)(q + i), bytes);
        sums_of_halves(bytes, sum);
        if (block == 32) {
            sums[i / 32] = sum[0] + sum[1];
            scaled[i / 32] = scale[i / 32] * (float)sums[i / 32];
        } else {
            halves[i / 16] = (int16_t)sum[0];
            halves[i / 16 + 1] = (int16_t)sum[1];
        }
    }
}

/* ---- what both loops share ---- */

V_INLINE __m256i pairs_of(ir_dtype dtype, __m256i w, __m256i x)
{
    if (is_signed(dtype)) /* |w| times x with the sign of w: x is never -128 */
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_maddubs_epi16(w, x);
}

/* acc plus four products of bytes in each lane; for INT8_DOT. */
V_INLINE __m256i add_dot(ir_dtype dtype, __m256i acc, __m256i w, __m256i x)
{
    if (is_signed(dtype))
        return INT8_DOT(acc, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return INT8_DOT(acc, w, x);
}

/* sum - below * of, lane by lane; below is a power of two. */
V_INLINE __m256i less_excess(ir_dtype dtype, __m256i sum, __m256i of)
{
    int below = quants_below(dtype);
    return below ? _mm256_sub_epi32(sum, _mm256_slli_epi32(of, __builtin_ctz((unsigned)below | 1u << 30))) : sum;
}

/* Add i (d dx), and then the minimum's part: what the arithmetic of int8_fast.h says of a block. */
V_INLINE __m256 add_block(ir_dtype dtype, __m256 sum, __m256i i, __m256i j, __m256 d, __m256 m, float dx, float dxj)
{
    __m256 by = _mm256_set1_ps(dx);
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(i), _mm256_mul_ps(d, by), sum);
    if (!has_minimum(dtype))
        return sum;
    return has_parts(dtype) ? _mm256_fmadd_ps(_mm256_cvtepi32_ps(j), _mm256_mul_ps(m, by), sum)
                            : _mm256_fmadd_ps(m, _mm256_set1_ps(dxj), sum);
}

/* ---- direct ---- */

enum {
    INT8_AHEAD_BYTES = 8192
}; /* how far before their use weights are asked for: the rows of a box follow each other */

V_INLINE void ask_for(const uint8_t *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)at + INT8_AHEAD_BYTES + i, _MM_HINT_T1);
}

/* Lane r: the sum of the lanes of a[r]. */
V_INLINE __m256i sum_lanes(const __m256i a[INT8_ROWS])
{
    __m256i low = _mm256_hadd_epi32(_mm256_hadd_epi32(a[0], a[1]), _mm256_hadd_epi32(a[2], a[3]));
    __m256i high = _mm256_hadd_epi32(_mm256_hadd_epi32(a[4], a[5]), _mm256_hadd_epi32(a[6], a[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
}

/* A block of 32 of eight rows. */
V_INLINE void direct_32(ir_dtype dtype, int nt, const int8_rows *x, const uint8_t *const *token,
                        const uint8_t *const *row, int64_t b, __m256 *sum)
{
    const int64_t at = b * ir_dtype_table[dtype].block_bytes;
    const uint8_t *block[INT8_ROWS];
    __m256i w[INT8_ROWS], dot[INT8_ROWS];
    __m256 d, m;
#pragma GCC unroll 8
    for (int r = 0; r < INT8_ROWS; r++) {
        block[r] = row[r] + at;
        w[r] = take_quants(dtype, block[r], 0);
    }
    take_scales(dtype, block, &d, &m);
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) {
        __m256i q = lanes_at(token[t] + 32 * b);
#pragma GCC unroll 8
        for (int r = 0; r < INT8_ROWS; r++)
            dot[r] = HAS_DOT ? add_dot(dtype, _mm256_setzero_si256(), w[r], q)
                             : _mm256_madd_epi16(pairs_of(dtype, w[r], q), _mm256_set1_epi16(1));
        __m256i j = _mm256_set1_epi32(x_sums_32(x, token[t])[b]);
        sum[t] = add_block(dtype, sum[t], less_excess(dtype, sum_lanes(dot), j), j, d, m, x_scales(x, token[t])[b],
                           x_scaled_sums(x, token[t])[b]);
    }
}

/* A block of 256 of one row: i and j as sums of eight lanes. */
V_INLINE void direct_row_256(ir_dtype dtype, int nt, const int8_rows *x, const uint8_t *const *token,
                             const uint8_t *block, int64_t b, __m256i *i_lanes, __m256i *j_lanes, int stride)
{
    const small_integers s = take_small(dtype, block);
    /* The small integers of 32 weights' halves in the same place of both lanes of 128 bits. */
    const __m128i even_odd = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i scales = is_wide(dtype) ? _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(s.scale))
                                          : _mm256_cvtepi8_epi16(_mm_shuffle_epi8(s.scale, even_odd));
    const __m256i factors = sum_factors(dtype, &s);
    __m256i sum[INT8_DIRECT_TOKENS];
    for (int t = 0; t < nt; t++)
        sum[t] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        __m256i w = take_quants(dtype, block, i);
        __m256i scale = _mm256_shuffle_epi8(scales, _mm256_set1_epi16((short)((2 * i + 1) << 8 | 2 * i)));
#pragma GCC unroll 4
        for (int t = 0; t < nt; t++) {
            __m256i pairs = pairs_of(dtype, w, lanes_at(token[t] + 256 * b + 32 * i));
            sum[t] = INT8_DOT_PAIRS(sum[t], pairs, scale);
        }
    }
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) {
        __m256i j = _mm256_madd_epi16(factors, lanes_at(x_sums_16(x, token[t]) + 16 * b));
        i_lanes[t * stride] = less_excess(dtype, sum[t], j);
        j_lanes[t * stride] = j;
    }
}

V_INLINE void direct_256(ir_dtype dtype, int nt, const int8_rows *x, const uint8_t *const *token,
                         const uint8_t *const *row, int64_t b, __m256 *sum)
{
    const int64_t at = b * ir_dtype_table[dtype].block_bytes;
    __m256i i[INT8_DIRECT_TOKENS * INT8_ROWS], j[INT8_DIRECT_TOKENS * INT8_ROWS];
    codebook_block opened[INT8_ROWS];
    const uint8_t *block[INT8_ROWS];
    __m256 d, m;
    for (int r = 0; r < INT8_ROWS; r++) {
        block[r] = open_block(dtype, row[r] + at, &opened[r]);
        direct_row_256(dtype, nt, x, token, block[r], b, i + r, j + r, INT8_ROWS);
    }
    take_scales(dtype, block, &d, &m);
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++)
        sum[t] = add_block(dtype, sum[t], sum_lanes(i + t * INT8_ROWS), sum_lanes(j + t * INT8_ROWS), d, m,
                           x_scales(x, token[t])[b], 0);
}

/* The addresses of eight rows from `first` on; past the end the last one stands in. */
V_INLINE void find_rows(const uint8_t *w, int64_t row_bytes, int64_t first, int64_t n, const uint8_t **row)
{
    for (int64_t r = 0; r < INT8_ROWS; r++)
        row[r] = w + (first + r < n ? first + r : n - 1) * row_bytes;
}

/* Those of nt rows of x. */
V_INLINE void find_tokens(const int8_rows *x, int64_t first, int nt, const uint8_t **token)
{
    int64_t bytes = int8_row_bytes(x->k, x->block);
    for (int64_t t = 0; t < nt; t++)
        token[t] = x->at + (first + t < x->n ? first + t : x->n - 1) * bytes;
}

V_INLINE void direct_rows(ir_dtype dtype, int nt, const int8_rows *x, const uint8_t *w, int64_t row_bytes, int64_t n,
                          float *sums, int64_t ld)
{
    const uint8_t *token[INT8_DIRECT_TOKENS], *row[INT8_ROWS];
    const int64_t blocks = x->k / ir_dtype_table[dtype].block_elements,
                  ahead = (int64_t)ir_dtype_table[dtype].block_bytes * INT8_ROWS;
    find_tokens(x, 0, nt, token);
    for (int64_t r = 0; r < n; r += INT8_ROWS) {
        __m256 sum[INT8_DIRECT_TOKENS];
        for (int t = 0; t < nt; t++)
            sum[t] = _mm256_setzero_ps();
        find_rows(w, row_bytes, r, n, row);
        for (int64_t b = 0; b < blocks; b++) {
            ask_for(row[0] + b * ahead, ahead);
            if (has_parts(dtype))
                direct_256(dtype, nt, x, token, row, b, sum);
            else
                direct_32(dtype, nt, x, token, row, b, sum);
        }
        for (int64_t t = 0; t < nt && t < x->n; t++)
            _mm256_storeu_ps(sums + t * ld + r, sum[t]);
    }
}

/* ---- panel ---- */

/* Blocks of eight rows.  w[i][j]: of the i-th 32 weights of each row those from 4 j on. */
typedef struct panel_32 {
    __m256i w[1][8];
    __m256 d, m;
} panel_32;
typedef struct panel_256 {
    __m256i w[8][8];
    __m256i scale[16];  /* small integers of 16 or 32 weights: without INT8_DOT twice, in 16 bits */
    __m256i factors[8]; /* for two sums of 16 of x each, in 16 bits */
    __m256 d, m;
} panel_256;

/* 32 weights of each row. */
V_INLINE void interleave(ir_dtype dtype, const uint8_t *const *block, int i, __m256i to[8])
{
    __m256 rows[8], columns[8];
#pragma GCC unroll 8
    for (int r = 0; r < INT8_ROWS; r++)
        rows[r] = _mm256_castsi256_ps(take_quants(dtype, block[r], i));
    v_transpose8(rows, columns);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        to[j] = _mm256_castps_si256(columns[j]);
}

/* The small integers of row r of a block. */
V_INLINE void put_small(ir_dtype dtype, const uint8_t *block, int r, panel_256 *to)
{
    small_integers s = take_small(dtype, block);
    int8_t scale[16];
    uint32_t factors[8];
    _mm_storeu_si128((__m128i *)(void *)scale, s.scale);
    _mm256_storeu_si256((__m256i *)(void *)factors, sum_factors(dtype, &s));
    for (int i = 0; i < (is_wide(dtype) ? 8 : 16); i++)
        ((uint32_t *)&to->scale[i])[r] = HAS_DOT ? (uint32_t)scale[i] : (uint16_t)scale[i] * 0x10001u;
    for (int i = 0; i < 8; i++)
        ((uint32_t *)&to->factors[i])[r] = factors[i];
}

V_INLINE void fill_panel(ir_dtype dtype, const uint8_t *const *row, int64_t b0, int64_t b1, void *panel)
{
    const int64_t bytes = ir_dtype_table[dtype].block_bytes;
    codebook_block opened[INT8_ROWS];
    const uint8_t *block[INT8_ROWS];
    for (int64_t b = b0; b < b1; b++) {
        for (int r = 0; r < INT8_ROWS; r++)
            block[r] = open_block(dtype, row[r] + b * bytes, &opened[r]);
        if (has_parts(dtype)) {
            panel_256 *to = (panel_256 *)panel + (b - b0);
            for (int i = 0; i < 8; i++)
                interleave(dtype, block, i, to->w[i]);
            for (int r = 0; r < INT8_ROWS; r++)
                put_small(dtype, block[r], r, to);
            take_scales(dtype, block, &to->d, &to->m);
        } else {
            panel_32 *to = (panel_32 *)panel + (b - b0);
            interleave(dtype, block, 0, to->w[0]);
            take_scales(dtype, block, &to->d, &to->m);
        }
    }
}

V_INLINE __m256i four_of(const uint8_t *x)
{
    return _mm256_set1_epi32((int)word_at(x));
}

/* Add to each token's lanes the products of n vectors of weights with four elements of x each, times `scale`: in
 * 16 bits (without INT8_DOT), in 32 bits, or none (all ones). */
V_INLINE void add_products(ir_dtype dtype, int nt, const __m256i *w, int n, const uint8_t *const *x, int64_t k,
                           const __m256i *scale, __m256i *sum)
{
    const int at_once = 32767 / (2 * 127 * quants_most(dtype)) > n ? n : 32767 / (2 * 127 * quants_most(dtype));
    __m256i part[INT8_TILE];
    if (HAS_DOT) {
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
            part[t] = scale ? _mm256_setzero_si256() : sum[t];
#pragma GCC unroll 8
        for (int j = 0; j < n; j++)
#pragma GCC unroll 8
            for (int t = 0; t < nt; t++)
                part[t] = add_dot(dtype, part[t], w[j], four_of(x[t] + k + 4 * j));
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
            sum[t] = scale ? _mm256_add_epi32(sum[t], _mm256_mullo_epi32(part[t], *scale)) : part[t];
        return;
    }
    const __m256i by = scale ? *scale : _mm256_set1_epi16(1);
    const int step = at_once > 1 ? at_once : 1;
#pragma GCC unroll 8
    for (int j = 0; j < n; j++) {
        const bool first = j % step == 0, last = (j + 1) % step == 0 || j + 1 == n;
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++) {
            __m256i pairs = pairs_of(dtype, w[j], four_of(x[t] + k + 4 * j));
            part[t] = first ? pairs : _mm256_add_epi16(part[t], pairs);
            sum[t] = last ? _mm256_add_epi32(sum[t], _mm256_madd_epi16(part[t], by)) : sum[t];
        }
    }
}

V_INLINE void panel_block_32(ir_dtype dtype, int nt, const int8_rows *x, const uint8_t *const *token, const panel_32 *p,
                             int64_t b, __m256 *sum)
{
    __m256i i[INT8_TILE];
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        i[t] = _mm256_setzero_si256();
    add_products(dtype, nt, p->w[0], 8, token, 32 * b, 0, i);
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) {
        __m256i j = _mm256_set1_epi32(x_sums_32(x, token[t])[b]);
        sum[t] = add_block(dtype, sum[t], less_excess(dtype, i[t], j), j, p->d, p->m, x_scales(x, token[t])[b],
                           x_scaled_sums(x, token[t])[b]);
    }
}

V_INLINE void panel_block_256(ir_dtype dtype, int nt, const int8_rows *x, const uint8_t *const *token,
                              const panel_256 *p, int64_t b, __m256 *sum)
{
    const int half = is_wide(dtype) ? 8 : 4; /* vectors of weights that share small integers */
    __m256i i[INT8_TILE], j[INT8_TILE];
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        i[t] = j[t] = _mm256_setzero_si256();
    for (int g = 0; g < 64 / half; g++)
        add_products(dtype, nt, &p->w[0][0] + g * half, half, token, 256 * b + 4 * half * g, &p->scale[g], i);
    for (int g = 0; g < 8 && (has_minimum(dtype) || quants_below(dtype)); g++)
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++) {
            __m256i sums = four_of((const uint8_t *)(x_sums_16(x, token[t]) + 16 * b + 2 * g));
            j[t] = INT8_DOT_PAIRS(j[t], p->factors[g], sums);
        }
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        sum[t] =
            add_block(dtype, sum[t], less_excess(dtype, i[t], j[t]), j[t], p->d, p->m, x_scales(x, token[t])[b], 0);
}

/* nt tokens from t0 on with the blocks b0 ... b1 - 1 of a panel. */
V_INLINE void panel_tile(ir_dtype dtype, int nt, const int8_rows *x, int64_t t0, const void *panel, int64_t b0,
                         int64_t b1, float *sums, int64_t ld)
{
    const uint8_t *token[INT8_TILE];
    __m256 sum[INT8_TILE];
    find_tokens(x, t0, nt, token);
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        sum[t] = b0 && t0 + t < x->n ? _mm256_loadu_ps(sums + (t0 + t) * ld) : _mm256_setzero_ps();
    for (int64_t b = b0; b < b1; b++)
        if (has_parts(dtype))
            panel_block_256(dtype, nt, x, token, (const panel_256 *)panel + (b - b0), b, sum);
        else
            panel_block_32(dtype, nt, x, token, (const panel_32 *)panel + (b - b0), b, sum);
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        if (t0 + t < x->n)
            _mm256_storeu_ps(sums + (t0 + t) * ld, sum[t]);
}

V_INLINE void panel_rows(ir_dtype dtype, const int8_rows *x, const uint8_t *w, int64_t row_bytes, int64_t n,
                         void *panel, float *sums, int64_t ld)
{
    const uint8_t *row[INT8_ROWS];
    const int64_t elements = ir_dtype_table[dtype].block_elements, blocks = x->k / elements,
                  step = INT8_CHUNK / elements;
    for (int64_t r = 0; r < n; r += INT8_ROWS)
        for (int64_t b0 = 0, b1; b0 < blocks; b0 = b1) {
            b1 = b0 + step < blocks ? b0 + step : blocks;
            find_rows(w, row_bytes, r, n, row);
            fill_panel(dtype, row, b0, b1, panel);
            for (int64_t t = 0; t < x->n;) {
                bool few = x->n - t <= INT8_TILE / 2;
                if (few)
                    panel_tile(dtype, INT8_TILE / 2, x, t, panel, b0, b1, sums + r, ld);
                else
                    panel_tile(dtype, INT8_TILE, x, t, panel, b0, b1, sums + r, ld);
                t += few ? INT8_TILE / 2 : INT8_TILE;
            }
        }
}

/* ---- one function for each format ---- */

#define INT8_PRODUCT(name, dtype)                                                                            \
    static void product_##name(const int8_rows *x, const void *w, int64_t row_bytes, int64_t n, void *panel, \
                               float *sums, int64_t ld)                                                      \
    {                                                                                                        \
        if (x->n == 1)                                                                                       \
            direct_rows(dtype, 1, x, w, row_bytes, n, sums, ld);                                             \
        else if (x->n == 2)                                                                                  \
            direct_rows(dtype, 2, x, w, row_bytes, n, sums, ld);                                             \
        else if (x->n <= INT8_DIRECT_TOKENS)                                                                 \
            direct_rows(dtype, INT8_DIRECT_TOKENS, x, w, row_bytes, n, sums, ld);                            \
        else                                                                                                 \
            panel_rows(dtype, x, w, row_bytes, n, panel, sums, ld);                                          \
    }
INT8_PRODUCT(q4_0, IR_Q4_0)
INT8_PRODUCT(q4_1, IR_Q4_1)
INT8_PRODUCT(q5_0, IR_Q5_0)
INT8_PRODUCT(q5_1, IR_Q5_1)
INT8_PRODUCT(q8_0, IR_Q8_0)
INT8_PRODUCT(q2_k, IR_Q2_K)
INT8_PRODUCT(q3_k, IR_Q3_K)
INT8_PRODUCT(q4_k, IR_Q4_K)
INT8_PRODUCT(q5_k, IR_Q5_K)
INT8_PRODUCT(q6_k, IR_Q6_K)
INT8_PRODUCT(iq4_nl, IR_IQ4_NL)
INT8_PRODUCT(mxfp4, IR_MXFP4)
INT8_PRODUCT(iq1_s, IR_IQ1_S)
INT8_PRODUCT(iq1_m, IR_IQ1_M)
INT8_PRODUCT(iq2_xxs, IR_IQ2_XXS)
INT8_PRODUCT(iq2_xs, IR_IQ2_XS)
INT8_PRODUCT(iq2_s, IR_IQ2_S)
INT8_PRODUCT(iq3_xxs, IR_IQ3_XXS)
INT8_PRODUCT(iq3_s, IR_IQ3_S)
INT8_PRODUCT(iq4_xs, IR_IQ4_XS)
INT8_PRODUCT(tq1_0, IR_TQ1_0)
INT8_PRODUCT(tq2_0, IR_TQ2_0)

#define INT8_SET                                                                                                \
    {                                                                                                           \
        .product = {[IR_Q4_0] = product_q4_0,     [IR_Q4_1] = product_q4_1,     [IR_Q5_0] = product_q5_0,       \
                    [IR_Q5_1] = product_q5_1,     [IR_Q8_0] = product_q8_0,     [IR_Q2_K] = product_q2_k,       \
                    [IR_Q3_K] = product_q3_k,     [IR_Q4_K] = product_q4_k,     [IR_Q5_K] = product_q5_k,       \
                    [IR_Q6_K] = product_q6_k,     [IR_IQ4_NL] = product_iq4_nl, [IR_MXFP4] = product_mxfp4,     \
                    [IR_IQ1_S] = product_iq1_s,   [IR_IQ1_M] = product_iq1_m,   [IR_IQ2_XXS] = product_iq2_xxs, \
                    [IR_IQ2_XS] = product_iq2_xs, [IR_IQ2_S] = product_iq2_s,   [IR_IQ3_XXS] = product_iq3_xxs, \
                    [IR_IQ3_S] = product_iq3_s,   [IR_IQ4_XS] = product_iq4_xs, [IR_TQ1_0] = product_tq1_0,     \
                    [IR_TQ2_0] = product_tq2_0},                                                                \
        .narrow = narrow,                                                                                       \
    }

#endif
