/* int8_tiles.h - products with 8-bit activations by instructions that multiply tiles of bytes
 * (AMX): sixteen rows of weights at a time, unpacked once for all tokens into a panel that stays in
 * the first cache.  Included by isa_int8amx.c after
 *
 *   TILE_SHAPE, TILE_ZERO, TILE_LOAD, TILE_STORE, TILE_END    as in tile_kernels.h
 *   TILE_DOT_BYTES(c, a, b)    tile c += tile a times tile b, both of signed bytes
 *   TILE_DOT_LOW(c, a, b)      the same, with unsigned bytes in b
 *
 * A tile of x is sixteen rows as they lie; one of weights holds in row j the elements 4 j to
 * 4 j + 3 of sixteen rows, which are two vectors of int8_fill.h side by side; one of sums is
 * [token][row].  The sums are exact, so their bits are those of the other instruction sets.
 *
 *   blocks of 32    each block has its own scale: a dot product of 32 elements is a tile of sums
 *   blocks of 256   the weights are multiplied by their small integers in the panel, to at most 14
 *                   bits: a low byte without sign and a high one with sign, if one byte is too few.
 *                   A block is then one dot product of 256 elements, or two:
 *                   i = low + 256 high
 *
 * While tiles are multiplied, the vector units turn the tiles of sums before them into floats.  So
 * the work is cut into waves; a wave's products are begun, then the wave before is finished, and
 * then the sums of the new one are stored.
 */
#ifndef CPU_INT8_TILES_H
#define CPU_INT8_TILES_H

#include "cpu/int8_fill.h"
#include "cpu/tile_fast.h"

enum {
    TILES_GROUPS = TILE_COLUMNS / TILE_ROWS, /* most groups of sixteen rows in a panel */
    TILES_CHUNK = 256,                       /* elements of K in a panel */
    TILES_SUMS = 4,                          /* tiles of sums of a wave */
    TILES_BYTES = TILE_ROWS * 64
};

/* A panel is an array of these, one for each group of sixteen rows. */
typedef struct tiles_32 {
    uint8_t w[8][TILES_BYTES / 2]; /* of each block half a tile: eight rows */
    __m512 d[8], m[8];             /* scale and minimum of each row's block */
} tiles_32;
typedef struct tiles_256 {
    uint8_t w[2][4][TILES_BYTES]; /* low or only bytes, high bytes; of 64 elements each */
    __m512i factors[8];           /* of the minimum, for two sums of 16 of x each, in 16 bits */
    __m512 d, m;
} tiles_256;
enum { TILES_PANEL_BYTES = TILES_GROUPS * sizeof(tiles_256) };

/* ---- panels ---- */

/* Do all weights times their small integers fit signed bytes? */
V_INLINE bool is_one_byte(ir_dtype dtype)
{
    return is_even(dtype) || dtype == IR_Q2_K; /* 3 x 15 */
}

/* A vector of a panel as signed weights. */
V_INLINE __m256i less_below(ir_dtype dtype, __m256i bytes)
{
    return _mm256_sub_epi8(bytes, _mm256_set1_epi8((char)panel_below(dtype)));
}

/* 32 signed bytes times `scale`, 16 bits each: the low bytes of the products, and the high ones. */
V_INLINE __m256i multiply_bytes(__m256i bytes, __m256i scale, __m256i *high)
{
    const __m256i low = _mm256_set1_epi16(255);
    const __m256i even =
                      _mm256_mullo_epi16(_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), scale),
                  odd = _mm256_mullo_epi16(_mm256_srai_epi16(bytes, 8), scale);
    *high = _mm256_or_si256(_mm256_srli_epi16(even, 8), _mm256_andnot_si256(low, odd));
    return _mm256_or_si256(_mm256_and_si256(even, low), _mm256_slli_epi16(odd, 8));
}

/* Put a block of eight rows of 256 weights to the half of a group's tiles. */
V_INLINE void put_tiles_256(ir_dtype dtype, const panel_256 *p, int half, tiles_256 *to)
{
    const __m256i *w = p->w[0];
#pragma GCC unroll 4
    for (int v = 0; v < 64; v++) {
        const int at = v % 16 * 64 + 32 * half;
        __m256i low = less_below(dtype, w[v]), high;
        if (!is_even(dtype))
            low = multiply_bytes(low, p->scale[v / (is_wide(dtype) ? 8 : 4)], &high);
        bytes_put(to->w[0][v / 16] + at, low);
        if (!is_one_byte(dtype))
            bytes_put(to->w[1][v / 16] + at, high);
    }
    for (int g = 0; g < 8 && has_minimum(dtype); g++)
        bytes_put((char *)&to->factors[g] + 32 * half, p->factors[g]);
    _mm256_store_ps((float *)&to->d + 8 * half, p->d);
    _mm256_store_ps((float *)&to->m + 8 * half, p->m);
}

/* The same of 32 weights, the i-th block of the panel. */
V_INLINE void put_tiles_32(ir_dtype dtype, const panel_32 *p, int half, int64_t i, tiles_32 *to)
{
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++)
        bytes_put(to->w[i] + 64 * v + 32 * half, less_below(dtype, p->w[0][v]));
    _mm256_store_ps((float *)&to->d[i] + 8 * half, p->d);
    _mm256_store_ps((float *)&to->m[i] + 8 * half, p->m);
}

/* Rows of weights. */
typedef struct tiles_rows {
    const uint8_t *at;
    int64_t bytes, n; /* from row to row; rows, at most TILE_COLUMNS */
} tiles_rows;

/* Fill a panel with the blocks [b0, b1) of all rows; past the end the last row is repeated. */
V_INLINE void fill_tiles(ir_dtype dtype, tiles_rows w, int64_t b0, int64_t b1, void *panel)
{
    const uint8_t *row[INT8_ROWS], *block[INT8_ROWS];
    const int64_t end = (w.n + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    for (int64_t r = 0; r < end; r += INT8_ROWS) {
        const int half = (int)(r / INT8_ROWS % 2);
        find_rows(w.at, w.bytes, r, w.n, row);
        for (int64_t b = b0; b < b1; b++) {
            for (int i = 0; i < INT8_ROWS; i++)
                block[i] = row[i] + b * ir_dtype_table[dtype].block_bytes;
            if (has_parts(dtype)) {
                panel_256 p;
                fill_block_256(dtype, block, &p);
                put_tiles_256(dtype, &p, half, (tiles_256 *)panel + r / TILE_ROWS);
            } else {
                panel_32 p;
                fill_block_32(dtype, block, &p);
                put_tiles_32(dtype, &p, half, b - b0, (tiles_32 *)panel + r / TILE_ROWS);
            }
        }
    }
}

/* ---- waves ---- */

/* What a wave multiplies: `tokens` rows of x from t on by a group of sixteen rows of weights; of
 * blocks of 256 one block and up to 32 tokens, of blocks of 32 as many blocks as TILES_SUMS and up
 * to 16 tokens.  The blocks are b to b + blocks - 1 of K; `first` is b's place in the panel. */
typedef struct tiles_wave {
    int64_t t, tokens, group, b, blocks, first;
} tiles_wave;

/* Tiles of sums, as they come. */
typedef struct tiles_sums {
    _Alignas(64) int32_t at[TILES_SUMS][TILE_ROWS][TILE_ROWS];
} tiles_sums;

/* One call. */
typedef struct tiles_task {
    const int8_rows *x;
    int64_t x_bytes; /* from row to row */
    const void *panel;
    float *sums;
    int64_t ld;
} tiles_task;

V_INLINE int64_t wave_tokens(ir_dtype dtype)
{
    return has_parts(dtype) ? 2 * TILE_ROWS : TILE_ROWS;
}

/* Set the shapes for waves of so many tokens: sums in tiles 0 to 3, x in 4 and 5, weights in 6 and
 * 7.  Of blocks of 256, the odd tiles of sums and of x are those of the second sixteen tokens. */
V_INLINE void shape_wave(ir_dtype dtype, int64_t tokens)
{
    tile_shapes s = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const bool is_w = i > 5, is_second = has_parts(dtype) && i % 2;
        const int64_t left = is_second && tokens > TILE_ROWS ? tokens - TILE_ROWS : tokens;
        s.rows[i] = (uint8_t)(left < TILE_ROWS ? left : TILE_ROWS);
        s.row_bytes[i] = 64;
        if (is_w)
            s.rows[i] = has_parts(dtype) ? 16 : 8;
        else if (i > 3 && !has_parts(dtype))
            s.row_bytes[i] = 32;
    }
    TILE_SHAPE(&s);
}

/* Multiply x by a tile of weights: low or only bytes, or high ones. */
#define TILES_DOT(dtype, c, a, b)    \
    do {                             \
        if (is_one_byte(dtype))      \
            TILE_DOT_BYTES(c, a, b); \
        else                         \
            TILE_DOT_LOW(c, a, b);   \
    } while (0)

V_INLINE void begin_256(ir_dtype dtype, const tiles_task *task, const tiles_wave *v)
{
    const tiles_256 *w = (const tiles_256 *)task->panel + v->group;
    const uint8_t *x = task->x->at + v->t * task->x_bytes + 256 * v->b,
                  *more = x + TILE_ROWS * task->x_bytes;
    const bool two = v->tokens > TILE_ROWS;
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
#pragma GCC unroll 4
    for (int s = 0; s < 4; s++) {
        TILE_LOAD(4, x + 64 * s, task->x_bytes);
        TILE_LOAD(6, w->w[0][s], 64);
        TILES_DOT(dtype, 0, 4, 6);
        if (two) {
            TILE_LOAD(5, more + 64 * s, task->x_bytes);
            TILES_DOT(dtype, 1, 5, 6);
        }
        if (is_one_byte(dtype))
            continue;
        TILE_LOAD(7, w->w[1][s], 64);
        TILE_DOT_BYTES(2, 4, 7);
        if (two)
            TILE_DOT_BYTES(3, 5, 7);
    }
}

/* A block of 32 whose sums go to tile c, and which uses the tiles a and b. */
#define TILES_BLOCK(c, a, b)                           \
    do {                                               \
        TILE_ZERO(c);                                  \
        if (v->blocks > (c)) {                         \
            TILE_LOAD(a, x + 32 * (c), task->x_bytes); \
            TILE_LOAD(b, w->w[v->first + (c)], 64);    \
            TILE_DOT_BYTES(c, a, b);                   \
        }                                              \
    } while (0)

V_INLINE void begin_32(const tiles_task *task, const tiles_wave *v)
{
    const tiles_32 *w = (const tiles_32 *)task->panel + v->group;
    const uint8_t *x = task->x->at + v->t * task->x_bytes + 32 * v->b;
    TILES_BLOCK(0, 4, 6);
    TILES_BLOCK(1, 5, 7);
    TILES_BLOCK(2, 4, 6);
    TILES_BLOCK(3, 5, 7);
}

V_INLINE void store_wave(tiles_sums *to)
{
    TILE_STORE(0, to->at[0], 64);
    TILE_STORE(1, to->at[1], 64);
    TILE_STORE(2, to->at[2], 64);
    TILE_STORE(3, to->at[3], 64);
}

/* int8_rows.h's add_block for sixteen rows of weights. */
V_INLINE __m512 add_i(__m512 sum, __m512i i, __m512 d, float dx)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(i), _mm512_mul_ps(d, _mm512_set1_ps(dx)), sum);
}

V_INLINE __m512 finish_token_256(ir_dtype dtype, const tiles_wave *v, const tiles_sums *from,
                                 const tiles_256 *w, const int8_rows *x, const uint8_t *row,
                                 int64_t t, __m512 sum)
{
    const float dx = x_scales(x, row)[v->b];
    __m512i i = _mm512_load_si512(from->at[t / TILE_ROWS][t % TILE_ROWS]);
    if (!is_one_byte(dtype)) {
        const __m512i high = _mm512_load_si512(from->at[2 + t / TILE_ROWS][t % TILE_ROWS]);
        i = _mm512_add_epi32(i, _mm512_slli_epi32(high, 8));
    }
    sum = add_i(sum, i, w->d, dx);
    if (!has_minimum(dtype))
        return sum;
    const uint8_t *of = (const uint8_t *)(x_sums_16(x, row) + 16 * v->b);
    __m512i j[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++)
        j[g % 2] = _mm512_dpwssd_epi32(j[g % 2], w->factors[g],
                                       _mm512_set1_epi32((int)word_at(of + 4 * g)));
    return add_i(sum, _mm512_add_epi32(j[0], j[1]), w->m, dx);
}

/* One token of a wave of `blocks` blocks of 32, whose scales and minima are in d and m. */
V_INLINE __m512 finish_token_32(ir_dtype dtype, int blocks, const tiles_sums *from, const __m512 *d,
                                const __m512 *m, const float *dx, const float *dxj, int64_t t,
                                __m512 sum)
{
#pragma GCC unroll 4
    for (int k = 0; k < blocks; k++) {
        sum = add_i(sum, _mm512_load_si512(from->at[k][t]), d[k], dx[k]);
        if (has_minimum(dtype))
            sum = _mm512_fmadd_ps(m[k], _mm512_set1_ps(dxj[k]), sum);
    }
    return sum;
}

/* Add the sums of a wave, which are stored, to those of its tokens. */
V_INLINE void finish_256(ir_dtype dtype, const tiles_task *task, const tiles_wave *v,
                         const tiles_sums *from)
{
    const uint8_t *row = task->x->at + v->t * task->x_bytes;
    float *at = task->sums + v->t * task->ld + v->group * TILE_ROWS;
#pragma GCC unroll 2
    for (int64_t t = 0; t < v->tokens; t++, row += task->x_bytes, at += task->ld) {
        const __m512 sum = v->b ? _mm512_loadu_ps(at) : _mm512_setzero_ps();
        _mm512_storeu_ps(at,
                         finish_token_256(dtype, v, from, (const tiles_256 *)task->panel + v->group,
                                          task->x, row, t, sum));
    }
}

V_INLINE void finish_32(ir_dtype dtype, int blocks, const tiles_task *task, const tiles_wave *v,
                        const tiles_sums *from)
{
    const tiles_32 *w = (const tiles_32 *)task->panel + v->group;
    const uint8_t *row = task->x->at + v->t * task->x_bytes;
    float *at = task->sums + v->t * task->ld + v->group * TILE_ROWS;
    __m512 d[TILES_SUMS], m[TILES_SUMS];
    for (int k = 0; k < blocks; k++) {
        d[k] = w->d[v->first + k];
        m[k] = w->m[v->first + k];
    }
#pragma GCC unroll 4
    for (int64_t t = 0; t < v->tokens; t++, row += task->x_bytes, at += task->ld) {
        const __m512 sum = v->b ? _mm512_loadu_ps(at) : _mm512_setzero_ps();
        _mm512_storeu_ps(at,
                         finish_token_32(dtype, blocks, from, d, m, x_scales(task->x, row) + v->b,
                                         x_scaled_sums(task->x, row) + v->b, t, sum));
    }
}

V_INLINE void finish_wave(ir_dtype dtype, const tiles_task *task, const tiles_wave *v,
                          const tiles_sums *from)
{
    if (has_parts(dtype))
        finish_256(dtype, task, v, from);
    else if (v->blocks == TILES_SUMS)
        finish_32(dtype, TILES_SUMS, task, v, from);
    else
        finish_32(dtype, (int)v->blocks, task, v, from);
}

/* Multiply all tokens by a panel of the blocks [b0, b1) of `groups` times sixteen rows. */
V_INLINE void use_tiles(ir_dtype dtype, const tiles_task *task, int64_t groups, int64_t b0,
                        int64_t b1)
{
    const int64_t at_once = has_parts(dtype) ? 1 : TILES_SUMS, n = task->x->n;
    tiles_sums sums;
    tiles_wave last = {0};
    for (int64_t t = 0, some; t < n; t += some) {
        const int64_t left = n - t;
        some = left < wave_tokens(dtype) ? left : wave_tokens(dtype);
        if (!t || some < wave_tokens(dtype))
            shape_wave(dtype, some);
        for (int64_t i = 0; i < groups; i++)
            for (int64_t b = b0; b < b1; b += at_once) {
                const tiles_wave now = {t, some, i, b, b1 - b < at_once ? b1 - b : at_once, b - b0};
#ifndef NO_BEGIN
                if (has_parts(dtype))
                    begin_256(dtype, task, &now);
                else
                    begin_32(task, &now);
#endif
#ifndef NO_FINISH
                finish_wave(dtype, task, &last, &sums);
#endif
#ifndef NO_STORE
                store_wave(&sums);
#endif
                last = now;
            }
    }
    finish_wave(dtype, task, &last, &sums);
}

/* All rows, a panel at a time, chunk by chunk of K. */
V_INLINE void tile_rows_of(ir_dtype dtype, const int8_rows *x, const uint8_t *w, int64_t row_bytes,
                           int64_t n, void *panel, float *sums, int64_t ld)
{
    const int64_t elements = ir_dtype_table[dtype].block_elements, blocks = x->k / elements,
                  step = TILES_CHUNK / elements;
    for (int64_t r = 0; r < n; r += TILE_COLUMNS) {
        const tiles_rows rows = {w + r * row_bytes, row_bytes,
                                 n - r < TILE_COLUMNS ? n - r : TILE_COLUMNS};
        const tiles_task task = {x, int8_row_bytes(x->k, x->block), panel, sums + r, ld};
        for (int64_t b0 = 0, b1; b0 < blocks; b0 = b1) {
            b1 = b0 + step < blocks ? b0 + step : blocks;
#ifndef NO_FILL
            fill_tiles(dtype, rows, b0, b1, panel);
#endif
            use_tiles(dtype, &task, (rows.n + TILE_ROWS - 1) / TILE_ROWS, b0, b1);
        }
    }
    TILE_END();
}

#endif
