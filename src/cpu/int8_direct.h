/* int8_direct.h - products with 8-bit activations for few tokens: eight rows of weights at a
 * time, whose integers are unpacked in registers.  Included by int8_kernels.h.
 *
 * Blocks of 32 are multiplied like those of a panel (int8_panel.h), each as soon as it is
 * interleaved: a further token costs little.  Weights of blocks of 256 stay bytes in the order
 * of K, one row after the other, and the lanes are added up at the end of a block.  The results
 * are those of the panel, bit for bit, since all sums of a block are integers.
 */
#ifndef CPU_INT8_DIRECT_H
#define CPU_INT8_DIRECT_H

#include "cpu/int8_panel.h"

/* Add one block of 32 of eight rows to the sums of nt tokens; the weights are interleaved on the
 * way. */
V_INLINE void direct_32(ir_dtype dtype, int nt, const int8_rows *x, const uint8_t *const *token,
                        const uint8_t *const *row, int64_t b, __m256 *sum)
{
    const uint8_t *block[INT8_ROWS];
    panel_32 p;
#pragma GCC unroll 8
    for (int r = 0; r < INT8_ROWS; r++)
        block[r] = row[r] + b * ir_dtype_table[dtype].block_bytes;
    interleave_pieces(dtype, block, p.w[0]);
    if (multiplies_matrices(nt))
        interleave_by_eight(p.w[0], 8);
    take_scales(dtype, block, 0, &p.d, &p.m);
    panel_block_32(dtype, nt, x, token, &p, b, sum);
}

/* Sums over x of one block of 256, in 16 bits, the same in both lanes of 128 bits: over 32
 * neighbours each if the format is wide, else over 16, in `first` and `last` eight each. */
typedef struct block_sums {
    __m256i first, last;
} block_sums;

/* From the 16 sums of 16 integers that a row of x holds.  If wide, neighbours are added first; 32 x
 * 127 fits 16 bits, so that packs changes nothing.
 */
V_INLINE block_sums take_sums(ir_dtype dtype, const int16_t *sums)
{
    __m256i s = bytes_at(sums);
    if (!is_wide(dtype))
        return (block_sums){_mm256_permute4x64_epi64(s, 0x44), _mm256_permute4x64_epi64(s, 0xee)};
    s = _mm256_madd_epi16(s, _mm256_set1_epi16(1));
    s = _mm256_permute4x64_epi64(_mm256_packs_epi32(s, s), 0x88);
    return (block_sums){s, s};
}

/* j of two blocks, one in each lane of 128 bits; the caller adds up the words of a lane. */
V_INLINE __m256i multiply_sums(ir_dtype dtype, const small_integers *s, block_sums x)
{
    __m256i factors = sum_factors(dtype, s),
            j = _mm256_madd_epi16(low_words(dtype, factors), x.first);
    if (is_wide(dtype))
        return j;
    return _mm256_add_epi32(j, _mm256_madd_epi16(high_words(dtype, factors), x.last));
}

/* The small integers of two blocks, laid out as a row's loop takes them; 16 bits each, or 32 where
 * products are added before they are multiplied.  Of a wide format each is in a word that is
 * broadcast, twice if it has 16 bits; of other formats those of the 16 weights at the same place of
 * both lanes of 128 bits are together, or if they have 32 bits and the format is not crossed, in
 * `each`. */
typedef union row_scales {
    __m256i lanes[2];       /* [row] */
    uint32_t word[2][2][4]; /* [weight / 128][row][weight / 32 % 4] */
    int32_t each[2][16];    /* [row][weight / 16] */
} row_scales;

/* Lay them out for scale_of. */
V_INLINE void spread_scales(ir_dtype dtype, const small_integers *s, row_scales *to)
{
    if (is_wide(dtype) && !is_crossed(dtype)) {
        __m256i words = low_words(dtype, s->scale);
        __m256i high = is_added_first(dtype) ? _mm256_srai_epi16(words, 15) : words;
        to->lanes[0] = _mm256_unpacklo_epi16(words, high);
        to->lanes[1] = _mm256_unpackhi_epi16(words, high);
        return;
    }
    if (is_added_first(dtype) && !is_crossed(dtype)) {
        __m256i low = low_words(dtype, s->scale), high = high_words(dtype, s->scale);
        bytes_put(to->each[0], _mm256_cvtepi16_epi32(_mm256_castsi256_si128(low)));
        bytes_put(to->each[0] + 8, _mm256_cvtepi16_epi32(_mm256_castsi256_si128(high)));
        bytes_put(to->each[1], _mm256_cvtepi16_epi32(_mm256_extracti128_si256(low, 1)));
        bytes_put(to->each[1] + 8, _mm256_cvtepi16_epi32(_mm256_extracti128_si256(high, 1)));
        return;
    }
    const __m256i even_odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    __m256i bytes = _mm256_shuffle_epi8(s->scale, even_odd);
    to->lanes[0] = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes));
    to->lanes[1] = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(bytes, 1));
    for (int r = 0; r < 2 && is_added_twice(dtype); r++)
        to->lanes[r] = _mm256_unpacklo_epi16(to->lanes[r], _mm256_srai_epi16(to->lanes[r], 15));
}

/* The small integers of the i-th 32 weights of a row, as factors for add_scaled or add_first. */
V_INLINE __m256i scale_of(ir_dtype dtype, const row_scales *s, int row, int i)
{
    if (is_added_twice(dtype))
        return _mm256_shuffle_epi8(s->lanes[row],
                                   _mm256_set1_epi32(0x03020100 + 0x04040404 * (i / 2)));
    if (is_wide(dtype) && !is_crossed(dtype))
        return _mm256_set1_epi32((int)s->word[i / 4][row][i % 4]);
    if (is_added_first(dtype))
        return _mm256_set_m128i(_mm_set1_epi32(s->each[row][2 * i + 1]),
                                _mm_set1_epi32(s->each[row][2 * i]));
    const int place = is_crossed(dtype) ? i / 2 : i;
    return _mm256_shuffle_epi8(s->lanes[row],
                               _mm256_set1_epi16((short)((2 * place + 1) << 8 | 2 * place)));
}

/* Copy 256 integers of x in the order of a crossed format's weights: of each 64 the runs of 16 from
 * 0, 32, 16 and 48 on, so that the low nibbles of a byte and the high ones meet their own x.
 */
V_INLINE void cross_token(const uint8_t *x, uint8_t *to)
{
    for (int k = 0; k < 256; k += 64) {
        bytes_put(to + k, lanes_of(x + k, x + k + 32));
        bytes_put(to + k + 32, lanes_of(x + k + 16, x + k + 48));
    }
}

/* sum plus the products of 32 weights times their small integers. */
V_INLINE __m256i add_scaled(ir_dtype dtype, __m256i sum, quants q, __m256i x, __m256i scale)
{
    __m256i pairs = pairs_of(dtype, q, x);
    if (is_even(dtype)) /* 8 x 2 x 3 x 127 fits 16 bits */
        return _mm256_add_epi16(sum, pairs);
    return INT8_DOT_PAIRS(sum, pairs, scale);
}

/* sum plus the products of 32 or 64 weights, added up before they are multiplied. */
V_INLINE __m256i add_first(ir_dtype dtype, __m256i sum, const quants q[2], const uint8_t *x,
                           __m256i scale)
{
    __m256i products =
        add_dot(dtype, is_even(dtype) ? sum : _mm256_setzero_si256(), q[0], bytes_at(x));
    if (is_even(dtype))
        return products;
    if (is_added_twice(dtype))
        products = add_dot(dtype, products, q[1], bytes_at(x + 32));
    return _mm256_add_epi32(sum, _mm256_mullo_epi32(products, scale));
}

/* Do the sums of nt tokens leave registers free?  Then each token has two chains of sums, and
 * rows overlap, which hides the latency of products. */
V_INLINE bool has_room(int nt)
{
    return nt <= (INT8_TILE > 4 ? 2 : 1);
}

/* i of a block of one row, as eight lanes that are still to be added.  x: for each token the
 * first byte of its block. */
V_INLINE void direct_row(ir_dtype dtype, int nt, const uint8_t *const *x, const uint8_t *block,
                         const opened_book *opened, const row_scales *scales, int row, __m256i *sum)
{
    const int step = is_added_twice(dtype) ? 2 : 1;
    __m256i chain[2][INT8_TILE];
    for (int t = 0; t < nt; t++)
        chain[0][t] = chain[1][t] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += step) {
        quants q[2] = {take_direct(dtype, block, opened, i)};
        if (is_added_twice(dtype))
            q[1] = take_direct(dtype, block, opened, i + 1);
        const __m256i scale = scale_of(dtype, scales, row, i);
        __m256i *to = chain[i / step % (has_room(nt) ? 2 : 1)];
#pragma GCC unroll 4
        for (int t = 0; t < nt; t++) {
            const uint8_t *at = x[t] + 32 * i;
            to[t] = in_order(is_added_first(dtype)
                                 ? add_first(dtype, to[t], q, at, scale)
                                 : add_scaled(dtype, to[t], q[0], bytes_at(at), scale));
        }
    }
    for (int t = 0; t < nt; t++) {
        if (is_even(dtype) && !is_added_first(dtype))
            sum[t] =
                _mm256_madd_epi16(_mm256_add_epi16(chain[0][t], chain[1][t]), _mm256_set1_epi16(1));
        else
            sum[t] = _mm256_add_epi32(chain[0][t], chain[1][t]);
    }
}

/* i and j of a block of two rows, each as words of a lane of 128 bits that are still to be
 * added; row 0 in the low lane. */
V_INLINE void direct_two(ir_dtype dtype, int nt, const uint8_t *const *x, const block_sums *x_sums,
                         const uint8_t *const block[2], opened_book *const *opened, __m256i *i,
                         __m256i *j, int stride)
{
    __m256i low[INT8_TILE], high[INT8_TILE];
    row_scales scales;
    for (int r = 0; r < 2 && book_is_opened(dtype); r++)
        open_book(dtype, block[r], opened[r]);
    const small_integers s =
        take_small(dtype, block, (const opened_book *const[2]){opened[0], opened[1]});
    spread_scales(dtype, &s, &scales);
    memory_as_it_is();
    direct_row(dtype, nt, x, block[0], opened[0], &scales, 0, low);
    direct_row(dtype, nt, x, block[1], opened[1], &scales, 1, high);
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) {
        __m256i crossed = _mm256_permute2x128_si256(low[t], high[t], 0x21);
        __m256i sum = _mm256_add_epi32(_mm256_blend_epi32(low[t], high[t], 0xf0), crossed);
        j[t * stride] = needs_sums(dtype) ? multiply_sums(dtype, &s, x_sums[t]) : sum;
        i[t * stride] = less_excess(dtype, sum, j[t * stride]);
    }
}

/* Four pairs of rows to eight sums: word r is the sum of the low lane of a[r], word 4 + r that of
 * its high lane.  That is why row r is paired with row 4 + r: the sums come out in the order of
 * rows.
 */
V_INLINE __m256i sum_halves(const __m256i a[4])
{
    return _mm256_hadd_epi32(_mm256_hadd_epi32(a[0], a[1]), _mm256_hadd_epi32(a[2], a[3]));
}

/* Add one block of 256 of eight rows to the sums of nt tokens; row r is paired with row 4 + r. */
V_INLINE void direct_256(ir_dtype dtype, int nt, const int8_rows *x, const uint8_t *const *token,
                         const uint8_t *const *row, int64_t b, __m256 *sum)
{
    enum { HALF = INT8_ROWS / 2 };
    const int64_t at = b * ir_dtype_table[dtype].block_bytes;
    __m256i i[INT8_TILE * HALF], j[INT8_TILE * HALF];
    opened_book opened[INT8_ROWS];
    block_sums x_sums[INT8_TILE];
    const uint8_t *block[INT8_ROWS], *tokens[INT8_TILE];
    _Alignas(32) uint8_t crossed[INT8_TILE][256];
    __m256 d, m;
#pragma GCC unroll 8
    for (int r = 0; r < INT8_ROWS; r++)
        block[r] = row[r] + at;
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) {
        tokens[t] = token[t] + 256 * b;
        if (is_crossed(dtype)) {
            cross_token(tokens[t], crossed[t]);
            tokens[t] = crossed[t];
        }
        x_sums[t] = take_sums(dtype, x_sums_16(x, token[t]) + 16 * b);
    }
    /* all four pairs unrolled, so that chains of several rows overlap, or one pair at a time, with
     * fewer registers
     */
    const int together = has_room(nt) && !book_is_opened(dtype) ? HALF : 1;
    for (int first = 0; first < HALF; first += together)
#pragma GCC unroll 4
        for (int r = first; r < first + together; r++) {
            const uint8_t *two[2] = {block[r], block[r + HALF]};
            opened_book *const open[2] = {&opened[r], &opened[r + HALF]};
            direct_two(dtype, nt, tokens, x_sums, two, open, i + r, j + r, HALF);
        }
    take_scales(dtype, block, opened, &d, &m);
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++)
        sum[t] = add_block(dtype, sum[t], sum_halves(i + t * HALF), sum_halves(j + t * HALF), d, m,
                           x_scales(x, token[t])[b], 0);
}

/* All n rows for nt tokens, which are x->n or a few more; the sums of tokens that do not exist
 * are not stored. */
V_INLINE void direct_rows(ir_dtype dtype, int nt, const int8_rows *x, const uint8_t *w,
                          int64_t row_bytes, int64_t n, float *sums, int64_t ld)
{
    const uint8_t *token[INT8_TILE], *row[INT8_ROWS];
    const int64_t blocks = x->k / ir_dtype_table[dtype].block_elements;
    find_tokens(x, 0, nt, token);
    for (int64_t r = 0; r < n; r += INT8_ROWS) {
        __m256 sum[INT8_TILE];
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
            sum[t] = _mm256_setzero_ps();
        find_rows(w, row_bytes, r, n, row);
        for (int64_t b = 0; b < blocks; b++) {
            ask_ahead(dtype, row[0], INT8_ROWS, row_bytes, b);
            if (has_parts(dtype))
                direct_256(dtype, nt, x, token, row, b, sum);
            else
                direct_32(dtype, nt, x, token, row, b, sum);
        }
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
            if (t < x->n)
                _mm256_storeu_ps(sums + t * ld + r, sum[t]);
    }
}

/* At most INT8_DIRECT_TOKENS tokens.  Code is compiled for 1, 2, 3 and 4; for blocks of 256, which
 * need more code, and where tokens are multiplied two by two, for 1, 2 and 4. */
V_INLINE void direct_few(ir_dtype dtype, const int8_rows *x, const uint8_t *w, int64_t row_bytes,
                         int64_t n, float *sums, int64_t ld)
{
    if (x->n == 1)
        direct_rows(dtype, 1, x, w, row_bytes, n, sums, ld);
    else if (x->n == 2)
        direct_rows(dtype, 2, x, w, row_bytes, n, sums, ld);
    else if (x->n == 3 && !has_parts(dtype) && !HAS_MATRIX)
        direct_rows(dtype, 3, x, w, row_bytes, n, sums, ld);
    else
        direct_rows(dtype, 4, x, w, row_bytes, n, sums, ld);
}

#endif
