/* int8_wide.h - products with 8-bit activations in vectors of 512 bits: panels of sixteen rows of
 * weights, for more tokens than int8_direct.h multiplies.  Included by int8_kernels.h.
 *
 * A vector of weights is two of int8_fill.h side by side, so that a lane is a row: an instruction
 * does twice the work of int8_panel.h's, and what a token costs beside its products, which is as
 * much as they, is paid once for sixteen rows instead of twice.  Each lane sees the same integers
 * and the same FMAs in the same order as there, so the results have the same bits.
 */
#ifndef CPU_INT8_WIDE_H
#define CPU_INT8_WIDE_H

#include "cpu/int8_direct.h"

enum {
    WIDE_ROWS = 2 * INT8_ROWS,
    WIDE_CHUNK = INT8_CHUNK / 2 /* elements of K in a panel, which stays in the first cache */
};

/* A block of sixteen rows; the fields are those of panel_32 and panel_256. */
typedef struct wide_32 {
    __m512i w[8];
    __m512 d, m;
} wide_32;
typedef struct wide_256 {
    __m512i w[64], scale[16], factors[8];
    __m512 d, m;
} wide_256;
enum { WIDE_PANEL_BYTES = WIDE_CHUNK / 256 * sizeof(wide_256) };

/* ---- panels ---- */

V_INLINE __m512i join(__m256i first, __m256i last)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), last, 1);
}
V_INLINE __m512 join_floats(__m256 first, __m256 last)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(first), last, 1);
}

V_INLINE void fill_wide_32(ir_dtype dtype, const uint8_t *const *block, wide_32 *to)
{
    panel_32 half[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
        fill_block_32(dtype, block + h * INT8_ROWS, half + h);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        to->w[j] = join(half[0].w[0][j], half[1].w[0][j]);
    to->d = join_floats(half[0].d, half[1].d);
    to->m = join_floats(half[0].m, half[1].m);
}

V_INLINE void fill_wide_256(ir_dtype dtype, const uint8_t *const *block, wide_256 *to)
{
    panel_256 half[2];
    for (int h = 0; h < 2; h++)
        fill_block_256(dtype, block + h * INT8_ROWS, half + h);
    for (int j = 0; j < 64; j++)
        to->w[j] = join(half[0].w[j / 8][j % 8], half[1].w[j / 8][j % 8]);
    for (int g = 0; g < (is_wide(dtype) ? 8 : 16) && !is_even(dtype); g++)
        to->scale[g] = join(half[0].scale[g], half[1].scale[g]);
    for (int g = 0; g < 8 && panel_needs_sums(dtype); g++)
        to->factors[g] = join(half[0].factors[g], half[1].factors[g]);
    to->d = join_floats(half[0].d, half[1].d);
    to->m = join_floats(half[0].m, half[1].m);
}

/* Fill a panel, an array of wide_32 or wide_256, with the blocks [b0, b1) of sixteen rows. */
V_INLINE void fill_wide(ir_dtype dtype, const uint8_t *const *row, int64_t row_bytes, int64_t b0,
                        int64_t b1, void *panel)
{
    const uint8_t *block[WIDE_ROWS];
    for (int64_t b = b0; b < b1; b++) {
        ask_ahead(dtype, row[0], WIDE_ROWS, row_bytes, b);
        for (int r = 0; r < WIDE_ROWS; r++)
            block[r] = row[r] + b * ir_dtype_table[dtype].block_bytes;
        if (has_parts(dtype))
            fill_wide_256(dtype, block, (wide_256 *)panel + (b - b0));
        else
            fill_wide_32(dtype, block, (wide_32 *)panel + (b - b0));
    }
}

/* ---- products ---- */

/* sum - below * of, lane by lane; below is 0 or a power of two. */
V_INLINE __m512i wide_less(int below, __m512i sum, __m512i of)
{
    return below ? _mm512_sub_epi32(sum, _mm512_slli_epi32(of, (unsigned)__builtin_ctz(
                                                                   (unsigned)below | 1u << 30)))
                 : sum;
}

/* add_block of int8_rows.h. */
V_INLINE __m512 wide_add(ir_dtype dtype, __m512 sum, __m512i i, __m512i j, __m512 d, __m512 m,
                         float dx, float dxj)
{
    const __m512 by = _mm512_set1_ps(dx);
    sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(i), _mm512_mul_ps(d, by), sum);
    if (!has_minimum(dtype))
        return sum;
    return has_parts(dtype) ? _mm512_fmadd_ps(_mm512_cvtepi32_ps(j), _mm512_mul_ps(m, by), sum)
                            : _mm512_fmadd_ps(m, _mm512_set1_ps(dxj), sum);
}

/* Four bytes of x in every lane. */
V_INLINE __m512i wide_four(const uint8_t *x)
{
    return _mm512_set1_epi32((int)word_at(x));
}

/* Add the products of n vectors of weights with each token from element k on. */
V_INLINE void wide_products(int nt, const __m512i *w, int n, const uint8_t *const *x, int64_t k,
                            __m512i *sum)
{
#pragma GCC unroll 8
    for (int j = 0; j < n; j++)
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
            sum[t] = _mm512_dpbusd_epi32(sum[t], w[j], wide_four(x[t] + k + 4 * j));
}

/* panel_block_32 of int8_panel.h, whose two chains hide the latency of few tokens' sums. */
V_INLINE void wide_block_32(ir_dtype dtype, int nt, const int8_rows *x, const uint8_t *const *token,
                            const wide_32 *p, int64_t b, __m512 *sum)
{
    enum { VECTORS = 8 };
    const int chains = has_two_chains(nt) ? 2 : 1, length = VECTORS / chains;
    __m512i part[2][INT8_TILE];
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        part[0][t] = part[1][t] = _mm512_setzero_si512();
#pragma GCC unroll 2
    for (int c = 0; c < chains; c++)
        wide_products(nt, p->w + c * length, length, token, 32 * b + 4 * c * length, part[c]);
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) {
        const __m512i i = chains > 1 ? _mm512_add_epi32(part[0][t], part[1][t]) : part[0][t],
                      j = _mm512_set1_epi32(x_sums_32(x, token[t])[b]);
        sum[t] = wide_add(dtype, sum[t], wide_less(panel_below(dtype), i, j), j, p->d, p->m,
                          x_scales(x, token[t])[b], x_scaled_sums(x, token[t])[b]);
    }
}

/* panel_block_256 of int8_panel.h. */
V_INLINE void wide_block_256(ir_dtype dtype, int nt, const int8_rows *x,
                             const uint8_t *const *token, const wide_256 *p, int64_t b, __m512 *sum)
{
    /* vectors of weights that share small integers */
    const int half = is_wide(dtype) || is_even(dtype) ? 8 : 4;
    __m512i i[INT8_TILE], j[INT8_TILE], part[INT8_TILE];
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        i[t] = j[t] = _mm512_setzero_si512();
    for (int g = 0; g < 64 / half; g++) {
        const __m512i *w = p->w + g * half;
        const int64_t k = 256 * b + 4 * half * g;
        if (is_even(dtype)) {
            wide_products(nt, w, half, token, k, i);
            continue;
        }
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
            part[t] = _mm512_setzero_si512();
        wide_products(nt, w, half, token, k, part);
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
            i[t] = _mm512_add_epi32(i[t], _mm512_mullo_epi32(part[t], p->scale[g]));
    }
    for (int g = 0; g < 8 && panel_needs_sums(dtype); g++)
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
            j[t] = _mm512_dpwssd_epi32(
                j[t], p->factors[g],
                wide_four((const uint8_t *)(x_sums_16(x, token[t]) + 16 * b + 2 * g)));
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        sum[t] = wide_add(dtype, sum[t], wide_less(panel_below(dtype), i[t], j[t]), j[t], p->d,
                          p->m, x_scales(x, token[t])[b], 0);
}

/* Add the blocks b0 .. b1 - 1 of a panel to the sums of nt tokens from t0 on; the first chunk of
 * K begins with zeros, later ones continue the sums. */
V_INLINE void wide_tile(ir_dtype dtype, int nt, const int8_rows *x, int64_t t0, const void *panel,
                        int64_t b0, int64_t b1, float *sums, int64_t ld)
{
    const uint8_t *token[INT8_TILE];
    __m512 sum[INT8_TILE];
    find_tokens(x, t0, nt, token);
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        sum[t] = b0 && t0 + t < x->n ? _mm512_loadu_ps(sums + (t0 + t) * ld) : _mm512_setzero_ps();
    for (int64_t b = b0; b < b1; b++)
        if (has_parts(dtype))
            wide_block_256(dtype, nt, x, token, (const wide_256 *)panel + (b - b0), b, sum);
        else
            wide_block_32(dtype, nt, x, token, (const wide_32 *)panel + (b - b0), b, sum);
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        if (t0 + t < x->n)
            _mm512_storeu_ps(sums + (t0 + t) * ld, sum[t]);
}

/* The addresses of sixteen rows from `first` on; past the end the last row is repeated. */
V_INLINE void find_wide(const uint8_t *w, int64_t row_bytes, int64_t first, int64_t n,
                        const uint8_t **row)
{
    find_rows(w, row_bytes, first, n, row);
    find_rows(w, row_bytes, first + INT8_ROWS, n, row + INT8_ROWS);
}

/* panel_rows of int8_panel.h. */
V_INLINE void wide_rows(ir_dtype dtype, const int8_rows *x, const uint8_t *w, int64_t row_bytes,
                        int64_t n, void *panel, float *sums, int64_t ld)
{
    const uint8_t *row[WIDE_ROWS];
    const int64_t elements = ir_dtype_table[dtype].block_elements, blocks = x->k / elements,
                  step = WIDE_CHUNK / elements;
    for (int64_t r = 0; r < n; r += WIDE_ROWS)
        for (int64_t b0 = 0, b1; b0 < blocks; b0 = b1) {
            b1 = b0 + step < blocks ? b0 + step : blocks;
            find_wide(w, row_bytes, r, n, row);
            fill_wide(dtype, row, row_bytes, b0, b1, panel);
            for (int64_t t = 0; t < x->n; t += INT8_TILE) {
                if (x->n - t <= 4)
                    wide_tile(dtype, 4, x, t, panel, b0, b1, sums + r, ld);
                else if (x->n - t <= 6)
                    wide_tile(dtype, 6, x, t, panel, b0, b1, sums + r, ld);
                else
                    wide_tile(dtype, INT8_TILE, x, t, panel, b0, b1, sums + r, ld);
            }
        }
}

#endif
