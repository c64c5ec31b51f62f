/* int8_rows.h - rows of x as 8-bit blocks, in vectors of 256 bits: how they are made
 * (int8_fast.h has the layout), and what a block of x and one of weights add to a sum.  Included
 * by int8_direct.h and int8_panel.h.
 */
#ifndef CPU_INT8_ROWS_H
#define CPU_INT8_ROWS_H

#include <math.h>

#include "cpu/int8_formats.h"
#include "op/narrow.h"

/* The parts of a row of x, as int8_rows lists them: k bytes of integers, then k / 32 floats of 4
 * bytes, which is k / 8 bytes, and so on. */
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

/* The largest of eight 32-bit integers. */
V_INLINE int greatest_lane(__m256i a)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

/* The scale of a block, and *by: the factor of its elements.  Compares |x| by its bits, which
 * rise with it; NaN comes out above infinity, so one comparison finds both. */
V_INLINE float block_scale(const float *x, int64_t block, float *by)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_setzero_si256();
    for (int64_t i = 0; i < block; i += 8)
        most = _mm256_max_epi32(most, _mm256_and_si256(bytes_at(x + i), magnitude));
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

/* 32 elements times `by`, rounded to signed bytes; by = 0: zeros, whatever the elements are. */
V_INLINE __m256i round_32(const float *x, float by)
{
    __m256i q[4];
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(by)));
    __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    return by != 0 ? bytes : _mm256_setzero_si256();
}

/* Sums of the first and of the last 16 of 32 signed bytes. */
V_INLINE void sums_of_halves(__m256i q, int sums[2])
{
    __m256i excess =
        _mm256_sad_epu8(_mm256_xor_si256(q, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    __m256i both = _mm256_add_epi64(excess, _mm256_srli_si256(excess, 8));
    sums[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(both)) - 16 * 128;
    sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(both, 1)) - 16 * 128;
}

/* Narrow one row of x into `to`, of int8_row_bytes; `block` is 32 or 256, and k a multiple of
 * it.  A block with NaN or infinity gets the scale NaN, so that the results it enters become
 * NaN, as they would in fp32. */
static void narrow(const float *x, int64_t k, int64_t block, void *to)
{
    const int8_rows row = {to, k, block, 1};
    uint8_t *q = to;
    float *scale = (float *)(uintptr_t)x_scales(&row, q),
          *scaled = (float *)(uintptr_t)x_scaled_sums(&row, q);
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

/* ---- a block of x and one of weights ---- */

/* The operands of a product of bytes, where one must be unsigned: the weights' magnitudes, and x
 * with the weights' signs, which is safe because x is never -128. */
V_INLINE __m256i w_for(ir_dtype dtype, quants q)
{
    return BOTH_SIGNED && is_signed(dtype) ? signed_bytes(dtype, q) : q.w;
}
V_INLINE __m256i x_for(ir_dtype dtype, quants q, __m256i x)
{
    return !BOTH_SIGNED && is_signed(dtype) ? _mm256_sign_epi8(x, q.sign) : x;
}

/* 32 products of bytes, two and two added in 16 bits. */
V_INLINE __m256i pairs_of(ir_dtype dtype, quants q, __m256i x)
{
    return INT8_PAIRS(w_for(dtype, q), x_for(dtype, q, x));
}

/* acc plus four products of bytes in each lane; for INT8_DOT. */
V_INLINE __m256i add_dot(ir_dtype dtype, __m256i acc, quants q, __m256i x)
{
    return INT8_DOT(acc, w_for(dtype, q), x_for(dtype, q, x));
}

/* sum - below * of, lane by lane; below is 0 or a power of two. */
V_INLINE __m256i less_times(int below, __m256i sum, __m256i of)
{
    return below ? _mm256_sub_epi32(
                       sum, _mm256_slli_epi32(of, __builtin_ctz((unsigned)below | 1u << 30)))
                 : sum;
}

/* The sum without the excess of the weights: quants_below times the sum of x. */
V_INLINE __m256i less_excess(ir_dtype dtype, __m256i sum, __m256i of)
{
    return less_times(quants_below(dtype), sum, of);
}

/* Add a block to sum: i (d dx), then the minimum's part, by the formula of int8_fast.h. */
V_INLINE __m256 add_block(ir_dtype dtype, __m256 sum, __m256i i, __m256i j, __m256 d, __m256 m,
                          float dx, float dxj)
{
    __m256 by = _mm256_set1_ps(dx);
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(i), _mm256_mul_ps(d, by), sum);
    if (!has_minimum(dtype))
        return sum;
    return has_parts(dtype) ? _mm256_fmadd_ps(_mm256_cvtepi32_ps(j), _mm256_mul_ps(m, by), sum)
                            : _mm256_fmadd_ps(m, _mm256_set1_ps(dxj), sum);
}

/* The addresses of eight rows from `first` on; past the end the last row is repeated. */
V_INLINE void find_rows(const uint8_t *w, int64_t row_bytes, int64_t first, int64_t n,
                        const uint8_t **row)
{
    for (int64_t r = 0; r < INT8_ROWS; r++)
        row[r] = w + (first + r < n ? first + r : n - 1) * row_bytes;
}

/* Prefetch weights: at block b, a share of the bytes after the `rows` rows from `first` on, as
 * large as what block b multiplies.  These rows are read side by side, so all of the next group
 * must be there when they begin; short rows are prefetched still further ahead.  The rows of a box
 * follow each other in memory. */
V_INLINE void ask_ahead(ir_dtype dtype, const uint8_t *first, int rows, int64_t row_bytes,
                        int64_t b)
{
    enum { LEAST = 8192 };
    const int64_t n = (int64_t)ir_dtype_table[dtype].block_bytes * rows, group = rows * row_bytes;
    const char *at = (const char *)first + (group > LEAST ? group : LEAST) + b * n;
    for (int64_t i = 0; i < n; i += 256)
#pragma GCC unroll 4
        for (int line = 0; line < 4; line++)
            _mm_prefetch(at + i + 64 * line, _MM_HINT_T1);
}

/* The addresses of nt rows of x from `first` on; past the end the last row is repeated. */
V_INLINE void find_tokens(const int8_rows *x, int64_t first, int nt, const uint8_t **token)
{
    int64_t bytes = int8_row_bytes(x->k, x->block);
    for (int64_t t = 0; t < nt; t++)
        token[t] = x->at + (first + t < x->n ? first + t : x->n - 1) * bytes;
}

#endif
