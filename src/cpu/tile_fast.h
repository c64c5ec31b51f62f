/* tile_fast.h - products by instructions that multiply tiles of bf16 (AMX): of BF16 weights with
 * activations, and of two BF16 operands.  The interface between the loops of operators
 * (linear_fast.c, expert_fast.c, tile_bodies.h) and the code of such an instruction set
 * (tile_kernels.h).
 *
 * A tile instruction takes bf16 on both sides.  x is therefore split into bf16 parts: the first
 * eight bits of x, the next eight of what remains, and the last eight.  The parts add up to x
 * exactly, so nothing is rounded before the products.  An x that was f32 has three parts (two lose
 * more than 1e-6 of the range, docs/performance.md), one that was F16 two, one that was BF16 one.
 *
 * The arithmetic is the same for every number of tokens and rows.  K is taken in steps of 32
 * elements.  In a step, for each part of x from the last to the first,
 *
 *   even and odd elements of K are summed apart, by FMA from 0 in rising k;
 *   the two sums are added, and the result is added to the row's sum;
 *
 * each rounded to fp32, where subnormal operands and results count as 0.  That is what Intel
 * defines for TDPBF16PS.  The bits differ from those of the other instruction sets, whose sums
 * are in another order.
 */
#ifndef CPU_TILE_FAST_H
#define CPU_TILE_FAST_H

#include "ir/ir.h"

enum {
    TILE_STEP = 32,    /* elements of K in a tile */
    TILE_PARTS = 3,    /* bf16 parts of an element of x, at most */
    TILE_ROWS = 16,    /* rows of a tile */
    TILE_FEW = 4,      /* up to so many tokens, tiles of weights are loaded from where they lie */
    TILE_COLUMNS = 48, /* most rows of weights in a product: three tiles */
    TILE_CHUNK = 256,  /* elements of K in a panel, which stays in the first cache */
    TILE_PANEL_BYTES = TILE_COLUMNS * TILE_CHUNK * 2
};

/* Rows of x as parts. */
typedef struct tile_x {
    void *at;  /* [tile_bytes], aligned to 64 */
    int64_t k; /* elements of a row, a multiple of TILE_STEP */
    int64_t n; /* rows */
    int parts; /* of an element, 1 to TILE_PARTS */
} tile_x;

/* Bytes of n rows of x of k elements as parts. */
static inline int64_t tile_bytes(int64_t k, int64_t n, int parts)
{
    return (n <= TILE_FEW ? n : (n + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS) * k * parts * 2;
}

/* Parts that hold all bits of an element of this float dtype. */
static inline int tile_parts(ir_dtype dtype)
{
    if (dtype == IR_BF16)
        return 1;
    return dtype == IR_F16 ? 2 : TILE_PARTS;
}

/* What LDTILECFG reads. */
typedef struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

/* One side of a product that is made in each call: n lines (rows of the left side, columns of the
 * right one) of k elements of BF16, which lie anywhere. */
typedef struct tile_operand {
    const uint16_t *at;
    int64_t line, step; /* strides, in elements: from line to line, along a line */
    int64_t n, k;
} tile_operand;

/* Both sides as tiles: n rows and n columns rounded up to whole tiles, `steps` steps of K, of which
 * [first_step, end_step) are multiplied.  The rows have `parts` parts.  Columns are dealt to panels
 * of up to three tiles; only panels that have one of [first_column, end_column) are multiplied. */
typedef struct tile_sides {
    const void *rows, *columns;
    int64_t n_rows, n_columns, steps;
    int64_t first_step, end_step, first_column, end_column;
    int parts;
} tile_sides;

/* Steps of K elements. */
static inline int64_t tile_steps(int64_t k)
{
    return (k + TILE_STEP - 1) / TILE_STEP;
}
/* n lines rounded up to whole tiles. */
static inline int64_t tile_lines(int64_t n)
{
    return (n + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
}
/* Bytes of n lines of k elements as tiles. */
static inline int64_t tile_side_bytes(int64_t n, int64_t k)
{
    return tile_lines(n) * tile_steps(k) * TILE_STEP * 2;
}

/* The code of an instruction set. */
typedef struct tile_kernels {
    /* Write row t of to->n: the k elements from `from` on, which to->parts parts hold exactly. */
    void (*split)(const float *from, int64_t t, const tile_x *to);
    /* The same for k elements of BF16, which are their own only part. */
    void (*copy)(const uint16_t *from, int64_t t, const tile_x *to);
    /* sums[t * ld + r] = w_r . x_t for the rows of x and `rows` <= TILE_COLUMNS rows of BF16
     * weights, row_bytes apart.  Sums are written up to the next multiple of TILE_ROWS.
     * panel: scratch of TILE_PANEL_BYTES, aligned to 64; not used for n <= TILE_FEW. */
    void (*product)(const tile_x *x, const void *w, int64_t row_bytes, int64_t rows, void *panel,
                    float *sums, int64_t ld);
    /* Write an operand as the rows or the columns of tile_sides, in tile_side_bytes aligned to 64.
     * What is past its ends is zero. */
    void (*rows)(const tile_operand *from, void *to);
    void (*columns)(const tile_operand *from, void *to);
    /* Between begin and end, which are calls of one thread: sums[row * ld + column] for whole tiles
     * of rows and columns. */
    void (*begin)(void);
    void (*multiply)(const tile_sides *p, float *sums, int64_t ld);
    void (*end)(void);
} tile_kernels;

extern const tile_kernels tile_amx;

#endif
