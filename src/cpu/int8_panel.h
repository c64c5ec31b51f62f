/* int8_panel.h - products with 8-bit activations for many tokens: eight rows of weights at a
 * time, unpacked once for all tokens into a panel that stays in the first cache.  Included by
 * int8_kernels.h.
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
#ifndef CPU_INT8_PANEL_H
#define CPU_INT8_PANEL_H

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

/* Are nt tokens multiplied two by two?  Then nt is even, and rows are interleaved by eight. */
V_INLINE bool multiplies_matrices(int nt)
{
    return HAS_MATRIX && nt > 1;
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

/* Fill a panel, an array of panel_32 or panel_256, with the blocks [b0, b1) of eight rows. */
V_INLINE void fill_panel(ir_dtype dtype, const uint8_t *const *row, int64_t row_bytes, int64_t b0,
                         int64_t b1, void *panel)
{
    const int64_t bytes = ir_dtype_table[dtype].block_bytes;
    opened_book opened[INT8_ROWS];
    const uint8_t *block[INT8_ROWS];
    for (int64_t b = b0; b < b1; b++) {
        ask_ahead(dtype, row[0], row_bytes, b);
        for (int r = 0; r < INT8_ROWS; r++) {
            block[r] = row[r] + b * bytes;
            if (book_is_opened(dtype))
                open_book(dtype, block[r], &opened[r]);
        }
        if (has_parts(dtype)) {
            panel_256 *to = (panel_256 *)panel + (b - b0);
            interleave_256(dtype, block, opened, to->w);
            if (HAS_MATRIX)
                interleave_by_eight(to->w[0], 64);
            fill_small(dtype, block, opened, to);
            take_scales(dtype, block, opened, &to->d, &to->m);
        } else {
            panel_32 *to = (panel_32 *)panel + (b - b0);
            interleave_pieces(dtype, block, to->w[0]);
            if (HAS_MATRIX)
                interleave_by_eight(to->w[0], 8);
            take_scales(dtype, block, 0, &to->d, &to->m);
        }
    }
}

/* Four bytes of x in every lane. */
V_INLINE __m256i four_of(const uint8_t *x)
{
    return _mm256_set1_epi32((int)word_at(x));
}

/* Products of a panel's bytes, two of them added in 16 bits; if w must be unsigned, its signs go
 * to x. */
V_INLINE __m256i panel_pairs(ir_dtype dtype, __m256i w, __m256i x)
{
    if (!BOTH_SIGNED && is_signed(dtype))
        return INT8_PAIRS(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return INT8_PAIRS(w, x);
}

/* Eight bytes of each of two tokens, the same in both lanes of 128 bits. */
V_INLINE __m256i eight_of_two(const uint8_t *x, const uint8_t *next)
{
    const __m128i *a = (const __m128i *)(const void *)x, *b = (const __m128i *)(const void *)next;
    return _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(_mm_loadl_epi64(a), _mm_loadl_epi64(b)));
}

/* sum[t] = the products of n vectors of weights, interleaved by eight, with token t from element k
 * on.  INT8_MATRIX leaves the sums of two rows and two tokens in a lane of 128 bits:
 *
 *   low    r0 t0   r0 t1   r1 t0   r1 t1 | the same of r4 and r5
 *   high   r2 t0   r2 t1   r3 t0   r3 t1 | of r6 and r7
 *
 * so the even words of both are token t0, with rows 0 to 3 and 4 to 7, the odd ones token t1.
 */
V_INLINE void matrix_products(int nt, const __m256i *w, int n, const uint8_t *const *x, int64_t k,
                              __m256i *sum)
{
    /* of rows 0, 1, 4 and 5; of the others */
    __m256i low[INT8_TILE / 2], high[INT8_TILE / 2];
#pragma GCC unroll 4
    for (int t = 0; t < nt; t += 2)
        low[t / 2] = high[t / 2] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int j = 0; j < n; j += 2)
#pragma GCC unroll 4
        for (int t = 0; t < nt; t += 2) {
            const __m256i both = eight_of_two(x[t] + k + 4 * j, x[t + 1] + k + 4 * j);
            low[t / 2] = INT8_MATRIX(low[t / 2], w[j], both);
            high[t / 2] = INT8_MATRIX(high[t / 2], w[j + 1], both);
        }
#pragma GCC unroll 4
    for (int t = 0; t < nt; t += 2) {
        const __m256 a = _mm256_castsi256_ps(low[t / 2]), b = _mm256_castsi256_ps(high[t / 2]);
        sum[t] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
        sum[t + 1] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
    }
}

/* Add the products of n vectors of weights, interleaved by four, with each token from element k
 * on; for INT8_DOT. */
V_INLINE void dot_products(int nt, const __m256i *w, int n, const uint8_t *const *x, int64_t k,
                           __m256i *sum)
{
#pragma GCC unroll 8
    for (int j = 0; j < n; j++)
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
            sum[t] = INT8_DOT(sum[t], w[j], four_of(x[t] + k + 4 * j));
}

/* Add the products of n vectors of weights with each token from element k on, times `scale`: in 16
 * bits (without INT8_DOT), in 32 bits, or NULL: times 1.  Without INT8_DOT, as many vectors are
 * added in 16 bits as cannot overflow: each adds two products to a sum, and a product is at most
 * 127 (x) times quants_most (w).  The 16-bit sums then meet their factor, and become 32 bits, in
 * one madd.
 */
V_INLINE void add_products(ir_dtype dtype, int nt, const __m256i *w, int n, const uint8_t *const *x,
                           int64_t k, const __m256i *scale, __m256i *sum)
{
    const int at_once =
        32767 / (2 * 127 * quants_most(dtype)) > n ? n : 32767 / (2 * 127 * quants_most(dtype));
    __m256i part[INT8_TILE];
    if (HAS_DOT) {
        if (!scale && !multiplies_matrices(nt)) {
            dot_products(nt, w, n, x, k, sum);
            return;
        }
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
            part[t] = _mm256_setzero_si256();
        if (multiplies_matrices(nt))
            matrix_products(nt, w, n, x, k, part);
        else
            dot_products(nt, w, n, x, k, part);
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
            sum[t] =
                _mm256_add_epi32(sum[t], scale ? _mm256_mullo_epi32(part[t], *scale) : part[t]);
        return;
    }
    const __m256i by = scale ? *scale : _mm256_set1_epi16(1);
    const int step = at_once > 1 ? at_once : 1;
#pragma GCC unroll 8
    for (int j = 0; j < n; j++) {
        const bool first = j % step == 0, last = (j + 1) % step == 0 || j + 1 == n;
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++) {
            __m256i pairs = panel_pairs(dtype, w[j], four_of(x[t] + k + 4 * j));
            part[t] = in_order(first ? pairs : _mm256_add_epi16(part[t], pairs));
            sum[t] =
                last ? in_order(_mm256_add_epi32(sum[t], _mm256_madd_epi16(part[t], by))) : sum[t];
        }
    }
}

/* With few tokens the sums would wait for each other's latency: then each token has two chains
 * of them. */
V_INLINE bool has_two_chains(int nt)
{
    return HAS_DOT && !multiplies_matrices(nt) && nt <= INT8_TILE / 2;
}

/* One block of 32 of eight rows and nt tokens: add the block to sum[t], whose lanes are the
 * rows. */
V_INLINE void panel_block_32(ir_dtype dtype, int nt, const int8_rows *x,
                             const uint8_t *const *token, const panel_32 *p, int64_t b, __m256 *sum)
{
    enum { VECTORS = 8 };
    /* chain c takes `length` vectors from c length on, and the elements of x that belong to them */
    const int chains = has_two_chains(nt) ? 2 : 1, length = VECTORS / chains;
    __m256i part[2][INT8_TILE];
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        part[0][t] = part[1][t] = _mm256_setzero_si256();
#pragma GCC unroll 2
    for (int c = 0; c < chains; c++)
        add_products(dtype, nt, p->w[0] + c * length, length, token, 32 * b + 4 * c * length, 0,
                     part[c]);
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) {
        __m256i i = chains > 1 ? _mm256_add_epi32(part[0][t], part[1][t]) : part[0][t],
                j = _mm256_set1_epi32(x_sums_32(x, token[t])[b]);
        sum[t] = add_block(dtype, sum[t], less_times(panel_below(dtype), i, j), j, p->d, p->m,
                           x_scales(x, token[t])[b], x_scaled_sums(x, token[t])[b]);
    }
}

/* The same for a block of 256: groups of vectors that share a small integer, then the sums of x
 * with the factors of the minimum or the excess. */
V_INLINE void panel_block_256(ir_dtype dtype, int nt, const int8_rows *x,
                              const uint8_t *const *token, const panel_256 *p, int64_t b,
                              __m256 *sum)
{
    /* vectors of weights that share small integers */
    const int half = is_wide(dtype) || is_even(dtype) ? 8 : 4;
    __m256i i[INT8_TILE], j[INT8_TILE];
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        i[t] = j[t] = _mm256_setzero_si256();
    for (int g = 0; g < 64 / half; g++)
        add_products(dtype, nt, &p->w[0][0] + g * half, half, token, 256 * b + 4 * half * g,
                     is_even(dtype) ? 0 : &p->scale[g], i);
    for (int g = 0; g < 8 && panel_needs_sums(dtype); g++)
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++) {
            __m256i sums = four_of((const uint8_t *)(x_sums_16(x, token[t]) + 16 * b + 2 * g));
            j[t] = INT8_DOT_PAIRS(j[t], p->factors[g], sums);
        }
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        sum[t] = add_block(dtype, sum[t], less_times(panel_below(dtype), i[t], j[t]), j[t], p->d,
                           p->m, x_scales(x, token[t])[b], 0);
}

/* Add the blocks b0 .. b1 - 1 of a panel to the sums of nt tokens from t0 on; the first chunk of
 * K begins with zeros, later ones continue the sums. */
V_INLINE void panel_tile(ir_dtype dtype, int nt, const int8_rows *x, int64_t t0, const void *panel,
                         int64_t b0, int64_t b1, float *sums, int64_t ld)
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

/* All rows, eight at a time, and chunk by chunk of K: a panel is filled once and used by all
 * tokens, INT8_TILE of them at a time, the last few by half a tile. */
V_INLINE void panel_rows(ir_dtype dtype, const int8_rows *x, const uint8_t *w, int64_t row_bytes,
                         int64_t n, void *panel, float *sums, int64_t ld)
{
    const uint8_t *row[INT8_ROWS];
    const int64_t elements = ir_dtype_table[dtype].block_elements, blocks = x->k / elements,
                  step = INT8_CHUNK / elements;
    for (int64_t r = 0; r < n; r += INT8_ROWS)
        for (int64_t b0 = 0, b1; b0 < blocks; b0 = b1) {
            b1 = b0 + step < blocks ? b0 + step : blocks;
            find_rows(w, row_bytes, r, n, row);
            fill_panel(dtype, row, row_bytes, b0, b1, panel);
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

#endif
