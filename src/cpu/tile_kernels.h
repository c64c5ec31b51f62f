/* tile_kernels.h - the loops of products by tiles; tile_fast.h defines their arithmetic.  Included
 * after vec_*.h by isa_amx.c, and by tile_test.c with tiles in memory, each of which defines
 *
 *   TILE_SHAPE(shapes)        set the shapes of all tiles, and clear them
 *   TILE_ZERO(i), TILE_LOAD(i, at, stride), TILE_STORE(i, at, stride)
 *   TILE_DOT(c, a, b)         tile c += tile a times tile b, as TDPBF16PS does
 *   TILE_END()                no tile is in use any more
 *
 * where i, c, a and b are numbers known to the compiler.  Sums are in tiles 0 to 2, weights in 3
 * to 5, a part of x in 6 or 7.
 *
 * A tile of sums is [rows of a][columns of b].  b holds pairs: its row j has, for each column, the
 * elements 2 j and 2 j + 1 of K.
 *
 *   few tokens   a: 16 rows of weights, loaded from where they lie; b: the tokens.  The weights are
 *                read once, so rearranging them would cost more than it gains.  The sums come out
 *                transposed.
 *   many tokens  a: 16 tokens; b: 16 rows of weights, whose pairs are transposed into a panel once
 *                for all tokens of the block.
 *
 * x as parts, which split_row writes; s counts steps of 32 elements, p parts:
 *
 *   few          [s][p][pair 0 .. 15][token 0 .. n - 1], a pair being 4 bytes
 *   many         [token / 16][s][p][token % 16][32 elements]: a tile is 1 KB in one piece
 */
#ifndef CPU_TILE_KERNELS_H
#define CPU_TILE_KERNELS_H

#include <string.h>

#include "cpu/tile_fast.h"

enum { TILE_BYTES = TILE_ROWS * 64, TILE_PAIRS = TILE_STEP / 2 };

/* Tiles of sums have `a_rows` rows and `columns` columns. */
V_INLINE tile_shapes shapes_of(bool few, int64_t a_rows, int64_t columns)
{
    tile_shapes s = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const bool is_sum = i < 3, is_a = !is_sum && few == (i < 6);
        s.rows[i] = (uint8_t)(is_sum || is_a ? a_rows : TILE_PAIRS);
        s.row_bytes[i] = (uint16_t)(is_a ? 64 : 4 * columns);
    }
    return s;
}

/* ---- x ---- */

/* The parts of 32 elements.  The first sixteen bits of a float are the bf16 nearest to it
 * towards zero, and what remains is exact; of infinity nothing remains. */
V_INLINE void split_step(const float *x, int parts, uint16_t part[TILE_PARTS][TILE_STEP])
{
    float left[TILE_STEP];
    memcpy(left, x, sizeof left);
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < TILE_STEP; i++) {
            uint32_t bits;
            float top;
            memcpy(&bits, &left[i], sizeof bits);
            part[p][i] = (uint16_t)(bits >> 16);
            bits &= 0xffff0000u;
            memcpy(&top, &bits, sizeof top);
            const float rest = left[i] - top;
            left[i] = left[i] == top ? 0 : rest;
        }
}

/* Put part p of step s of row t, 32 elements, where products look for it. */
V_INLINE void put_step(const uint16_t *part, int64_t t, int64_t s, int64_t p, const tile_x *to)
{
    if (to->n > TILE_FEW) {
        const int64_t tile = (t / TILE_ROWS * (to->k / TILE_STEP) + s) * to->parts + p;
        memcpy((char *)to->at + tile * TILE_BYTES + t % TILE_ROWS * 64, part, 64);
        return;
    }
    uint32_t *pair = (uint32_t *)to->at + (s * to->parts + p) * TILE_PAIRS * to->n + t;
    for (int64_t j = 0; j < TILE_PAIRS; j++)
        memcpy(pair + j * to->n, part + 2 * j, sizeof *pair);
}

/* tile_kernels.split; three parts are compiled apart, so that the loop over them is unrolled. */
static void split_row(const float *from, int64_t t, const tile_x *to)
{
    uint16_t part[TILE_PARTS][TILE_STEP];
    for (int64_t s = 0; s < to->k / TILE_STEP; s++) {
        if (to->parts == TILE_PARTS)
            split_step(from + s * TILE_STEP, TILE_PARTS, part);
        else
            split_step(from + s * TILE_STEP, to->parts, part);
        for (int64_t p = 0; p < to->parts; p++)
            put_step(part[p], t, s, p, to);
    }
}

/* tile_kernels.copy */
static void copy_row(const uint16_t *from, int64_t t, const tile_x *to)
{
    for (int64_t s = 0; s < to->k / TILE_STEP; s++)
        put_step(from + s * TILE_STEP, t, s, 0, to);
}

/* Rows of weights. */
typedef struct tile_rows {
    const char *at;
    int64_t bytes, n; /* from row to row; rows */
} tile_rows;

/* ---- few tokens ---- */

/* Ask for a step of the rows that come AHEAD rows later, which follow these in memory. */
V_INLINE void ask_rows(const char *at, int64_t row_bytes)
{
    enum { AHEAD = 4 * TILE_ROWS };
    for (int r = AHEAD; r < AHEAD + TILE_ROWS; r++)
        __builtin_prefetch(at + r * row_bytes, 0, 2);
}

/* All steps of one tile of weights, which begins at `at`. */
V_INLINE void few_steps(const char *at, int64_t row_bytes, const tile_x *x)
{
    const int64_t n = x->n, part = TILE_PAIRS * 4 * n;
    const char *from = x->at;
    TILE_ZERO(0);
    for (int64_t s = 0; s < x->k / TILE_STEP; s++, at += 64, from += x->parts * part) {
        ask_rows(at, row_bytes);
        TILE_LOAD(3, at, row_bytes);
        if (x->parts > 2) {
            TILE_LOAD(6, from + 2 * part, 4 * n);
            TILE_DOT(0, 3, 6);
        }
        if (x->parts > 1) {
            TILE_LOAD(7, from + part, 4 * n);
            TILE_DOT(0, 3, 7);
        }
        TILE_LOAD(6, from, 4 * n);
        TILE_DOT(0, 3, 6);
    }
}

/* A product of few tokens, sixteen rows of weights at a time: more rows side by side come more
 * slowly from memory.  The last tile of weights begins so early that it ends with the last row;
 * sums that two tiles compute are equal. */
V_INLINE void few_product(const tile_x *x, tile_rows w, float *sums, int64_t ld)
{
    _Alignas(64) float out[TILE_ROWS * TILE_FEW];
    const int64_t n = x->n, rows = w.n < TILE_ROWS ? w.n : TILE_ROWS;
    const tile_shapes shapes = shapes_of(true, rows, n);
    TILE_SHAPE(&shapes);
    for (int64_t r = 0; r < w.n; r += TILE_ROWS) {
        const int64_t first = r + rows > w.n ? w.n - rows : r;
        few_steps(w.at + first * w.bytes, w.bytes, x);
        TILE_STORE(0, out, 4 * n);
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < rows; i++)
                sums[t * ld + first + i] = out[i * n + t];
    }
    TILE_END();
}

/* ---- many tokens ---- */

/* Transpose the pairs of `steps` steps of weights into the panel, [step][tile][pair][row]; past the
 * last row it is repeated, and its sums are not read. */
V_INLINE void fill_panel(int tiles, tile_rows w, int64_t steps, char *panel)
{
    for (int i = 0; i < tiles; i++)
        for (int64_t s = 0; s < steps; s++) {
            vf in[TILE_ROWS], out[TILE_ROWS];
            for (int r = 0; r < TILE_ROWS; r++) {
                const int64_t row = TILE_ROWS * i + r < w.n ? TILE_ROWS * i + r : w.n - 1;
                in[r] = v_load((const float *)(const void *)(w.at + row * w.bytes + 64 * s));
            }
            v_transpose(in, out);
            for (int j = 0; j < TILE_PAIRS; j++)
                v_store((float *)(void *)(panel + (s * tiles + i) * TILE_BYTES + 64 * j), out[j]);
        }
}

/* Ask for part `part` of `parts` of a panel's bytes of each row, which the next panel will hold:
 * all at once would fill the queue of loads. */
V_INLINE void ask_panel(tile_rows next, int64_t part, int64_t parts)
{
    enum { LINES = TILE_CHUNK * 2 / 64 };
    const int64_t lines = next.n * LINES, end = lines * (part + 1) / parts;
    for (int64_t i = lines * part / parts; i < end; i++)
        __builtin_prefetch(next.at + i / LINES * next.bytes + i % LINES * 64, 0, 2);
}

#define MANY_DOTS(tiles, x)    \
    do {                       \
        TILE_DOT(0, x, 3);     \
        if ((tiles) > 1)       \
            TILE_DOT(1, x, 4); \
        if ((tiles) > 2)       \
            TILE_DOT(2, x, 5); \
    } while (0)

/* Multiply up to sixteen tokens by a panel; add: to the sums of earlier panels. */
V_INLINE void many_steps(int tiles, int parts, const char *x, const char *panel, int64_t steps,
                         bool add, float *sums, int64_t ld)
{
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    if (add) {
        TILE_LOAD(0, sums, 4 * ld);
        if (tiles > 1)
            TILE_LOAD(1, sums + TILE_ROWS, 4 * ld);
        if (tiles > 2)
            TILE_LOAD(2, sums + 2 * TILE_ROWS, 4 * ld);
    }
    for (int64_t s = 0; s < steps; s++, x += parts * TILE_BYTES, panel += tiles * TILE_BYTES) {
        TILE_LOAD(3, panel, 64);
        if (tiles > 1)
            TILE_LOAD(4, panel + TILE_BYTES, 64);
        if (tiles > 2)
            TILE_LOAD(5, panel + 2 * TILE_BYTES, 64);
        if (parts > 2) {
            TILE_LOAD(6, x + 2 * TILE_BYTES, 64);
            MANY_DOTS(tiles, 6);
        }
        if (parts > 1) {
            TILE_LOAD(7, x + TILE_BYTES, 64);
            MANY_DOTS(tiles, 7);
        }
        TILE_LOAD(6, x, 64);
        MANY_DOTS(tiles, 6);
    }
    TILE_STORE(0, sums, 4 * ld);
    if (tiles > 1)
        TILE_STORE(1, sums + TILE_ROWS, 4 * ld);
    if (tiles > 2)
        TILE_STORE(2, sums + 2 * TILE_ROWS, 4 * ld);
}

/* Multiply all tokens by one panel, which has `steps` steps of K from k0 on: sixteen tokens at a
 * time, then those that are left; next: what the next panel will hold. */
V_INLINE void use_tiles(int tiles, int parts, const tile_x *x, int64_t k0, const char *panel,
                        int64_t steps, tile_rows next, float *sums, int64_t ld)
{
    const int64_t blocks = (x->n + TILE_ROWS - 1) / TILE_ROWS,
                  step_bytes = (int64_t)parts * TILE_BYTES,
                  block_bytes = x->k / TILE_STEP * step_bytes;
    const char *from = (const char *)x->at + k0 / TILE_STEP * step_bytes;
    for (int64_t i = 0; i < blocks; i++, from += block_bytes) {
        const int64_t left = x->n - i * TILE_ROWS, some = left < TILE_ROWS ? left : TILE_ROWS;
        if (i == 0 || some < TILE_ROWS) {
            const tile_shapes shapes = shapes_of(false, some, TILE_ROWS);
            TILE_SHAPE(&shapes);
        }
        ask_panel(next, i, blocks);
        many_steps(tiles, parts, from, panel, steps, k0 > 0, sums + i * TILE_ROWS * ld, ld);
    }
    TILE_END();
}

/* A product of many tokens, panel by panel. */
V_INLINE void many_product(int tiles, int parts, const tile_x *x, tile_rows w, char *panel,
                           float *sums, int64_t ld)
{
    const int64_t k = x->k;
    for (int64_t k0 = 0; k0 < k; k0 += TILE_CHUNK) {
        const int64_t steps = (k - k0 < TILE_CHUNK ? k - k0 : TILE_CHUNK) / TILE_STEP;
        const tile_rows part = {w.at + 2 * k0, w.bytes, w.n},
                        next = {k0 + TILE_CHUNK < k ? part.at + 2 * TILE_CHUNK
                                                    : w.at + w.n * w.bytes,
                                w.bytes, w.n};
        fill_panel(tiles, part, steps, panel);
        use_tiles(tiles, parts, x, k0, panel, steps, next, sums, ld);
    }
}

/* A product of many tokens, compiled for one, two and three tiles of weights. */
V_INLINE void many_tiles(int parts, const tile_x *x, tile_rows w, char *panel, float *sums,
                         int64_t ld)
{
    if (w.n <= TILE_ROWS)
        many_product(1, parts, x, w, panel, sums, ld);
    else if (w.n <= 2 * TILE_ROWS)
        many_product(2, parts, x, w, panel, sums, ld);
    else
        many_product(3, parts, x, w, panel, sums, ld);
}

/* ---- products of two operands ---- */

/* Sixteen lines from line i on, 32 elements of each from element k on, zeros past the ends: in
 * `out` a line each, or in `out` a pair of elements of all lines each.  Whichever of the two lies
 * in memory in one piece is loaded, and the other one is its transposition.  An operand that has
 * neither is gathered element by element. */
V_INLINE void load_lines(const tile_operand *o, int64_t i, int64_t k, vf out[TILE_ROWS])
{
    const int64_t left = o->k - k;
    for (int64_t r = 0; r < TILE_ROWS; r++) {
        const uint16_t *at = o->at + (i + r < o->n ? i + r : i) * o->line + k * o->step;
        uint16_t part[TILE_STEP] = {0};
        for (int64_t j = 0; o->step != 1 && j < TILE_STEP && j < left; j++)
            part[j] = at[j * o->step];
        out[r] = v_load_halves(o->step == 1 ? at : part, i + r < o->n ? left : 0);
    }
}
V_INLINE void load_pairs(const tile_operand *o, int64_t i, int64_t k, vf out[TILE_PAIRS])
{
    const uint16_t *at = o->at + i * o->line + k * o->step;
    const int64_t step = o->step, n = o->n - i, left = o->k - k;
    if (n >= TILE_ROWS && left >= TILE_STEP) {
#pragma GCC unroll 16
        for (int j = 0; j < TILE_PAIRS; j++)
            out[j] = v_load_pairs(at + 2 * j * step, step, 2, TILE_ROWS);
        return;
    }
    for (int j = 0; j < TILE_PAIRS; j++)
        out[j] = v_load_pairs(at + 2 * j * step, step, left - 2 * j, n);
}

V_INLINE void store_tile_of(const vf in[TILE_ROWS], char *to)
{
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; r++)
        v_store((float *)(void *)(to + 64 * r), in[r]);
}

/* The tile of the left side. */
V_INLINE void make_rows(const tile_operand *o, int64_t i, int64_t k, char *to)
{
    vf in[TILE_ROWS], out[TILE_ROWS];
    if (o->line == 1 && o->step != 1) {
        load_pairs(o, i, k, in);
        v_transpose(in, out);
        store_tile_of(out, to);
    } else {
        load_lines(o, i, k, in);
        store_tile_of(in, to);
    }
}

/* The tile of the right side. */
V_INLINE void make_columns(const tile_operand *o, int64_t i, int64_t k, char *to)
{
    vf in[TILE_ROWS], out[TILE_ROWS];
    if (o->line == 1) {
        load_pairs(o, i, k, in);
        store_tile_of(in, to);
    } else {
        load_lines(o, i, k, in);
        v_transpose(in, out);
        store_tile_of(out, to);
    }
}

/* tile_kernels.rows */
static void operand_rows(const tile_operand *from, void *to)
{
    char *at = to;
    for (int64_t i = 0; i < from->n; i += TILE_ROWS)
        for (int64_t k = 0; k < from->k; k += TILE_STEP, at += TILE_BYTES)
            make_rows(from, i, k, at);
}

/* Panels of n columns, and the first tile of one of them: tiles are dealt evenly. */
V_INLINE int64_t count_panels(int64_t n)
{
    return (n + TILE_COLUMNS - 1) / TILE_COLUMNS;
}
V_INLINE int64_t first_tile(int64_t n, int64_t panel)
{
    return tile_lines(n) / TILE_ROWS * panel / (count_panels(n) ? count_panels(n) : 1);
}

/* Ask for what the columns from i on have in the next step: a line of the cache has 32 columns of
 * one k, or 32 k of one column. */
V_INLINE void ask_columns(const tile_operand *o, int64_t i, int64_t k)
{
    const uint16_t *at = o->at + i * o->line + (k + TILE_STEP) * o->step;
    for (int64_t j = 0; o->line == 1 && i % TILE_STEP == 0 && j < TILE_STEP; j++)
        __builtin_prefetch(at + j * o->step, 0, 2);
    for (int64_t j = 0; o->step == 1 && j < TILE_ROWS; j++)
        __builtin_prefetch(at + j * o->line, 0, 2);
}

/* tile_kernels.columns; all columns of a step before the next one, since they are neighbours in
 * memory where columns are contiguous. */
static void operand_columns(const tile_operand *from, void *to)
{
    const int64_t panels = count_panels(from->n), steps = tile_steps(from->k);
    for (int64_t s = 0; s < steps; s++)
        for (int64_t p = 0; p < panels; p++) {
            const int64_t first = first_tile(from->n, p),
                          tiles = first_tile(from->n, p + 1) - first;
            char *at = (char *)to + (first * steps + s * tiles) * TILE_BYTES;
            for (int64_t i = 0; i < tiles; i++) {
                ask_columns(from, (first + i) * TILE_ROWS, s * TILE_STEP);
                make_columns(from, (first + i) * TILE_ROWS, s * TILE_STEP, at + i * TILE_BYTES);
            }
        }
}

/* All rows times one panel, which begins at tile `first`, a chunk of K after the other. */
V_INLINE void multiply_panel(const tile_sides *p, int tiles, int parts, int64_t first, float *sums,
                             int64_t ld)
{
    enum { CHUNK = TILE_CHUNK / TILE_STEP };
    const char *panel = (const char *)p->columns + first * p->steps * TILE_BYTES;
    for (int64_t s = p->first_step; s < p->end_step; s += CHUNK) {
        const int64_t steps = p->end_step - s < CHUNK ? p->end_step - s : CHUNK;
        for (int64_t i = 0; i < tile_lines(p->n_rows) / TILE_ROWS; i++)
            many_steps(tiles, parts,
                       (const char *)p->rows + (i * p->steps + s) * parts * TILE_BYTES,
                       panel + s * tiles * TILE_BYTES, steps, s > p->first_step,
                       sums + i * TILE_ROWS * ld + first * TILE_ROWS, ld);
    }
}

V_INLINE void multiply_tiles_of(const tile_sides *p, int64_t tiles, int parts, int64_t first,
                                float *sums, int64_t ld)
{
    if (tiles == 1)
        multiply_panel(p, 1, parts, first, sums, ld);
    else if (tiles == 2)
        multiply_panel(p, 2, parts, first, sums, ld);
    else
        multiply_panel(p, 3, parts, first, sums, ld);
}

/* tile_kernels.multiply */
static void multiply_sides(const tile_sides *p, float *sums, int64_t ld)
{
    for (int64_t i = 0; i < count_panels(p->n_columns); i++) {
        const int64_t first = first_tile(p->n_columns, i), end = first_tile(p->n_columns, i + 1);
        if (end * TILE_ROWS <= p->first_column || first * TILE_ROWS >= p->end_column)
            continue;
        if (p->parts == 1)
            multiply_tiles_of(p, end - first, 1, first, sums, ld);
        else
            multiply_tiles_of(p, end - first, 2, first, sums, ld);
    }
}

/* tile_kernels.begin and .end: all tiles are whole. */
static void begin_tiles(void)
{
    const tile_shapes shapes = shapes_of(false, TILE_ROWS, TILE_ROWS);
    TILE_SHAPE(&shapes);
}
static void end_tiles(void)
{
    TILE_END();
}

/* ---- all ---- */

/* tile_kernels.product; that of many tokens is compiled for each number of parts. */
static void multiply_tiles(const tile_x *x, const void *w, int64_t row_bytes, int64_t rows,
                           void *panel, float *sums, int64_t ld)
{
    const tile_rows weights = {w, row_bytes, rows};
    if (x->n <= TILE_FEW)
        few_product(x, weights, sums, ld);
    else if (x->parts == 1)
        many_tiles(1, x, weights, panel, sums, ld);
    else if (x->parts == 2)
        many_tiles(2, x, weights, panel, sums, ld);
    else
        many_tiles(3, x, weights, panel, sums, ld);
}

#define TILE_KERNELS                                                                           \
    {                                                                                          \
        .split = split_row, .copy = copy_row, .product = multiply_tiles, .rows = operand_rows, \
        .columns = operand_columns, .begin = begin_tiles, .multiply = multiply_sides,          \
        .end = end_tiles                                                                       \
    }

#endif
