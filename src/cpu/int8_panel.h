/* int8_panel.h - products with 8-bit activations for many tokens: eight rows of weights at a
 * time, unpacked once for all tokens into a panel that stays in the first cache (int8_fill.h).
 * Included by int8_kernels.h.
 */
#ifndef CPU_INT8_PANEL_H
#define CPU_INT8_PANEL_H

#include "cpu/int8_fill.h"

/* Are nt tokens multiplied two by two?  Then nt is even, and rows are interleaved by eight. */
V_INLINE bool multiplies_matrices(int nt)
{
    return HAS_MATRIX && nt > 1;
}

/* Fill a panel, an array of panel_32 or panel_256, with the blocks [b0, b1) of eight rows. */
V_INLINE void fill_panel(ir_dtype dtype, const uint8_t *const *row, int64_t row_bytes, int64_t b0,
                         int64_t b1, void *panel)
{
    const uint8_t *block[INT8_ROWS];
    for (int64_t b = b0; b < b1; b++) {
        ask_ahead(dtype, row[0], INT8_ROWS, row_bytes, b);
        for (int r = 0; r < INT8_ROWS; r++)
            block[r] = row[r] + b * ir_dtype_table[dtype].block_bytes;
        if (has_parts(dtype))
            fill_block_256(dtype, block, (panel_256 *)panel + (b - b0));
        else
            fill_block_32(dtype, block, (panel_32 *)panel + (b - b0));
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
