/* tile_fast.h - products of BF16 weights with fp32 activations by instructions that multiply tiles
 * of bf16 (AMX): the interface between the loops of linear (linear_fast.c, expert_fast.c) and the
 * code of such an instruction set (tile_kernels.h).
 *
 * A tile instruction takes bf16 on both sides.  x is therefore split into three bf16 parts: the
 * first eight bits of x, the next eight of what remains, and the last eight.  The three add up to
 * x exactly, so nothing is rounded before the products.  (Two parts lose more than 1e-6 of the
 * range, docs/performance.md.)
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
    TILE_PARTS = 3,    /* bf16 parts of an element of x */
    TILE_ROWS = 16,    /* rows of a tile */
    TILE_FEW = 4,      /* up to so many tokens, tiles of weights are loaded from where they lie */
    TILE_COLUMNS = 48, /* most rows of weights in a product: three tiles */
    TILE_CHUNK = 256,  /* elements of K in a panel, which stays in the first cache */
    TILE_PANEL_BYTES = TILE_COLUMNS * TILE_CHUNK * 2
};

/* Bytes of n rows of x of k elements as parts. */
static inline int64_t tile_bytes(int64_t k, int64_t n)
{
    return (n <= TILE_FEW ? n : (n + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS) * k * TILE_PARTS * 2;
}

/* What LDTILECFG reads. */
typedef struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

/* The code of an instruction set. */
typedef struct tile_kernels {
    /* Write row t of n rows as parts; k is a multiple of TILE_STEP.  to: tile_bytes, aligned to
     * 64. */
    void (*split)(const float *x, int64_t k, int64_t t, int64_t n, void *to);
    /* sums[t * ld + r] = w_r . x_t for n rows of x that were split, and `rows` <= TILE_COLUMNS rows
     * of BF16 weights, row_bytes apart.  Sums are written up to the next multiple of TILE_ROWS.
     * panel: scratch of TILE_PANEL_BYTES, aligned to 64; not used for n <= TILE_FEW. */
    void (*product)(const void *x, int64_t k, int64_t n, const void *w, int64_t row_bytes,
                    int64_t rows, void *panel, float *sums, int64_t ld);
} tile_kernels;

extern const tile_kernels tile_amx;

#endif
