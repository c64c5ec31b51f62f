/* int8_fill.h - panels of weights for products with 8-bit activations: a block of eight rows,
 * unpacked and interleaved.  Included by int8_panel.h and int8_tiles.h, whose loops use panels.
 *
 * In a panel rows are interleaved by four elements, so that a lane is a row.  A panel_32,
 * w[0][j], of rows r0 .. r7; a cell is four bytes, elements 4 j to 4 j + 3 of its row:
 *
 *               lane 0    lane 1    ..    lane 7
 *   w[0][0]     r0 0-3    r1 0-3          r7 0-3
 *   w[0][1]     r0 4-7    r1 4-7          r7 4-7
 *   ..
 *   w[0][7]     r0 28-31  r1 28-31        r7 28-31
 *
 * Four elements of x, broadcast to all lanes, times w[0][j] give partial sums of all eight rows
 * at once, so lanes never have to be added up.  Where INT8_MATRIX multiplies
 * (multiplies_matrices), rows are interleaved by eight elements, so that two lanes are a row:
 * w[0][0] is r0 0-7, r1 0-7, r4 0-7, r5 0-7, w[0][1] the same of r2, r3, r6 and r7, w[0][2] r0
 * 8-15, and so on.
 */
#ifndef CPU_INT8_FILL_H
#define CPU_INT8_FILL_H

#include "cpu/int8_rows.h"

/* A block of eight rows in a panel.  w[i][j]: of the i-th 32 weights of each row those from 4 j
 * on, interleaved as above. */
typedef struct panel_32 {
    __m256i w[1][8];
    __m256 d, m; /* scale and minimum of each row's block */
} panel_32;
typedef struct panel_256 {
    __m256i w[8][8];
    /* small integers of 16 or 32 weights: with INT8_DOT in 32 bits, without it twice in 16 bits */
    __m256i scale[16];
    __m256i factors[8]; /* factors for two sums of 16 of x each, in 16 bits */
    __m256 d, m;
} panel_256;

/* Transpose 8 x 8 words: word r of to[j] is word j of from[r]. */
V_INLINE void transpose_words(const __m256i from[8], __m256i to[8])
{
    __m256 rows[8], columns[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++)
        rows[r] = _mm256_castsi256_ps(from[r]);
    v_transpose8(rows, columns);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        to[j] = _mm256_castps_si256(columns[j]);
}

/* What is to be subtracted from a panel's weights.  Where INT8_DOT needs unsigned w, signed
 * weights get an excess once here, which is cheaper than moving their signs to x for each token. */
V_INLINE int panel_below(ir_dtype dtype)
{
    return HAS_EXCESS && is_signed(dtype) ? 128 : quants_below(dtype);
}

/* Do products of a panel need sums of x? */
V_INLINE bool panel_needs_sums(ir_dtype dtype)
{
    return has_minimum(dtype) || panel_below(dtype);
}

/* Weights as the bytes that a panel holds. */
V_INLINE __m256i panel_bytes(ir_dtype dtype, quants q)
{
    if (!is_signed(dtype))
        return q.w;
    __m256i w = signed_bytes(dtype, q);
    return HAS_EXCESS ? _mm256_xor_si256(w, _mm256_set1_epi8(-128)) : w;
}

/* The i-th 32 weights of each row, for formats without pieces: unpacked first, then interleaved. */
V_INLINE void interleave_rows(ir_dtype dtype, const uint8_t *const *block,
                              const opened_book *opened, int i, __m256i to[8])
{
    __m256i rows[8];
#pragma GCC unroll 8
    for (int r = 0; r < INT8_ROWS; r++)
        rows[r] = panel_bytes(dtype, take_quants(dtype, block[r], opened + r, i));
    transpose_words(rows, to);
}

/* Transpose the 16 bytes at block[r] + at of eight rows: word r of to[j] is word j of row r. */
V_INLINE void transpose_16(const uint8_t *const *block, int at, __m256i to[4])
{
    __m256i a = lanes_of(block[0] + at, block[4] + at), b = lanes_of(block[1] + at, block[5] + at),
            c = lanes_of(block[2] + at, block[6] + at), d = lanes_of(block[3] + at, block[7] + at);
    __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    to[0] = _mm256_unpacklo_epi64(ab, cd);
    to[1] = _mm256_unpackhi_epi64(ab, cd);
    ab = _mm256_unpackhi_epi32(a, b), cd = _mm256_unpackhi_epi32(c, d);
    to[2] = _mm256_unpacklo_epi64(ab, cd);
    to[3] = _mm256_unpackhi_epi64(ab, cd);
}

/* The weights of a block of each row, for formats with pieces: the packed bytes are interleaved,
 * since they are fewer than the weights, and then unpacked.  All bytes of a piece are treated
 * alike, so unpacking does not care whose they are.  16 bytes of eight rows are four vectors: a
 * piece of 32 bytes takes two halves.  to: [groups][halves][4], in the order of K.
 */
V_INLINE void interleave_pieces(ir_dtype dtype, const uint8_t *const *block, __m256i *to)
{
    const int halves = piece_bytes(dtype) / 16, n = pieces(dtype),
              groups = has_parts(dtype) ? 8 : 2 / halves;
#pragma GCC unroll 2
    for (int half = 0; half < halves; half++) {
        __m256i words[6][4]; /* [piece][vector]; at most six pieces */
#pragma GCC unroll 6
        for (int p = 0; p < n; p++)
            transpose_16(block, piece_at(dtype, p) + 16 * half, words[p]);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m256i piece[6];
#pragma GCC unroll 6
            for (int p = 0; p < n; p++)
                piece[p] = words[p][j];
#pragma GCC unroll 8
            for (int i = 0; i < groups; i++)
                to[4 * (i * halves + half) + j] = bytes_from(dtype, piece, i);
        }
    }
    if (fifth_at(dtype)) {
        __m256i words = words_of(block, fifth_at(dtype));
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            to[j] = _mm256_or_si256(to[j], fifth_bits(words, j));
    }
}

/* Bytes of each row in 16 bits, two of a row in each word: words[g] holds those of the weights
 * from 32 g on. */
V_INLINE void interleave_small(ir_dtype dtype, const __m256i bytes[4], __m256i words[8])
{
    __m256i rows[8];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        __m256i both = is_wide(dtype) ? _mm256_unpacklo_epi8(bytes[r], bytes[r]) : bytes[r];
        rows[r] = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(both));
        rows[4 + r] = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(both, 1));
    }
    transpose_words(rows, words);
}

/* One half of each word as a factor: twice in 16 bits, for pairs of products in 16 bits, or with
 * INT8_DOT once in 32 bits, with its sign.  The index of a byte is that of its word (`lane`) plus
 * that of the half in it.
 */
V_INLINE __m256i repeat_half(__m256i words, int half)
{
    const __m256i first = _mm256_set1_epi32(0x01000100), second = _mm256_set1_epi32(0x03020302);
    const __m256i lane = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404,
                                           0x08080808, 0x0c0c0c0c);
    if (HAS_DOT)
        return _mm256_srai_epi32(half ? words : _mm256_slli_epi32(words, 16), 16);
    return _mm256_shuffle_epi8(words, _mm256_add_epi8(half ? second : first, lane));
}

/* The small integers of a block, and the factors for the sums of x. */
V_INLINE void fill_small(ir_dtype dtype, const uint8_t *const *block, const opened_book *opened,
                         panel_256 *to)
{
    __m256i scale[4], factors[4], words[8];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        const uint8_t *two[2] = {block[r], block[4 + r]};
        const opened_book *const open[2] = {opened + r, opened + 4 + r};
        small_integers s = take_small(dtype, two, open);
        scale[r] = s.scale;
        factors[r] = sum_factors(dtype, &s);
    }
    if (panel_needs_sums(dtype))
        interleave_small(dtype, factors, to->factors);
    if (is_even(dtype))
        return;
    interleave_small(dtype, scale, words);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        to->scale[is_wide(dtype) ? g : 2 * g] = repeat_half(words[g], 0);
        if (!is_wide(dtype))
            to->scale[2 * g + 1] = repeat_half(words[g], 1);
    }
}

/* All 256 weights of a block of each row, by the way that the format allows. */
V_INLINE void interleave_256(ir_dtype dtype, const uint8_t *const *block, const opened_book *opened,
                             __m256i to[8][8])
{
    if (piece_bytes(dtype)) {
        interleave_pieces(dtype, block, to[0]);
        return;
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        interleave_rows(dtype, block, opened, i, to[i]);
}

/* Turn n vectors that are interleaved by four into vectors that are interleaved by eight, in place.
 * In the low lane of 128 bits, each cell four bytes:
 *
 *   first      r0 0-3   r1 0-3   r2 0-3   r3 0-3
 *   next       r0 4-7   r1 4-7   r2 4-7   r3 4-7
 *   -> w[j]    r0 0-3   r0 4-7   r1 0-3   r1 4-7
 *      w[j+1]  r2 0-3   r2 4-7   r3 0-3   r3 4-7
 *
 * and rows 4 to 7 in the high lane.
 */
V_INLINE void interleave_by_eight(__m256i *w, int n)
{
#pragma GCC unroll 4
    for (int j = 0; j < n; j += 2) {
        const __m256i first = w[j], next = w[j + 1];
        w[j] = _mm256_unpacklo_epi32(first, next);
        w[j + 1] = _mm256_unpackhi_epi32(first, next);
    }
}

/* Fill a panel's block of eight rows, which is at block[r] of row r. */
V_INLINE void fill_block_32(ir_dtype dtype, const uint8_t *const *block, panel_32 *to)
{
    interleave_pieces(dtype, block, to->w[0]);
    if (HAS_MATRIX)
        interleave_by_eight(to->w[0], 8);
    take_scales(dtype, block, 0, &to->d, &to->m);
}
V_INLINE void fill_block_256(ir_dtype dtype, const uint8_t *const *block, panel_256 *to)
{
    opened_book opened[INT8_ROWS];
    for (int r = 0; r < INT8_ROWS && book_is_opened(dtype); r++)
        open_book(dtype, block[r], &opened[r]);
    interleave_256(dtype, block, opened, to->w);
    if (HAS_MATRIX)
        interleave_by_eight(to->w[0], 64);
    fill_small(dtype, block, opened, to);
    take_scales(dtype, block, opened, &to->d, &to->m);
}

#endif
