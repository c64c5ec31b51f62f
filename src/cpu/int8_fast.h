/* int8_fast.h - products of weights in block formats with 8-bit activations: the interface
 * between the loops of linear (linear_fast.c, expert_fast.c) and the code of an instruction set
 * (int8_kernels.h).
 *
 * The arithmetic is the same in every kernel, for every number of tokens and on every
 * instruction set.  op/narrow.h defines how a block of x becomes integers qx and a scale dx.  A
 * block of a weight is a scale d, for some formats a minimum m, and integers q; blocks of 256
 * multiply q, and m, by small integers for each 16 or 32 neighbours.  With exact integers
 *
 *   i = the sum of (small integer) q qx,   j = the sum of (small integer) qx,
 *
 * a result is one fp32 number to which each block adds, in rising order along K and by one FMA
 * each:
 *
 *   i (d dx), and then in blocks of 32  m (dx j),  in blocks of 256  j (m dx).
 *
 * An example with one block of 32 of Q4_1 (d = 0.5, m = -1, q = 0 .. 15) and x narrowed to dx =
 * 0.01 and integers qx: i is the sum of q qx, j the sum of qx; the block adds i (0.5 * 0.01) and
 * then -1 (0.01 j).  The 32 products are exact integers; only two roundings to fp32 happen for
 * the whole block.
 */
#ifndef CPU_INT8_FAST_H
#define CPU_INT8_FAST_H

#include "ir/ir.h"

enum {
    /* most tokens for which weights are unpacked in registers; with more, once into a panel for
     * all tokens */
    INT8_DIRECT_TOKENS = 4,
    INT8_ROWS = 8,     /* rows of weights that are multiplied together */
    INT8_CHUNK = 2048, /* elements of K in a panel, which stays in the first cache */
    INT8_PANEL_BYTES = INT8_CHUNK / 256 * (256 * INT8_ROWS + (16 + 8 + 2) * INT8_ROWS * 4)
};

/* Rows of x in blocks of 32 or 256, int8_row_bytes apart: the integers; a float dx for each
 * block; then
 *
 *   blocks of 32: for each an int32 sum of its integers, then a float dx times the sum;
 *   blocks of 256: an int16 sum for each 16 integers.
 *
 * A row of 256 elements in blocks of 32:
 *
 *   bytes 0-255    integers
 *   256-287        8 floats dx
 *   288-319        8 int32 sums of 32 integers each
 *   320-351        8 floats dx * sum                       padded to 384, a multiple of 64 */
typedef struct int8_rows {
    const unsigned char *at;
    int64_t k, block, n; /* elements of a row; elements of a block; rows */
} int8_rows;

/* Bytes of a row of k elements, in whole cache lines; a body's scratch holds one row for each
 * token. */
static inline int64_t int8_row_bytes(int64_t k, int64_t block)
{
    return (k + (block == 32 ? k / 32 * 12 : k / 256 * 4 + k / 8) + 63) / 64 * 64;
}

/* sums[t * ld + r] = w_r . x_t for n rows of packed weights, row_bytes apart.  Sums are written
 * up to the next multiple of 16.  panel: scratch of panel_bytes, aligned to 64, or NULL for at most
 * INT8_DIRECT_TOKENS rows of x. */
typedef void int8_product(const int8_rows *x, const void *w, int64_t row_bytes, int64_t n,
                          void *panel, float *sums, int64_t ld);

/* The kernels of one instruction set. */
typedef struct int8_kernels {
    int8_product *product[IR_DTYPES]; /* NULL: not a block format */
    /* Narrow a row of k elements, a multiple of the block, to a row of int8_rows. */
    void (*narrow)(const float *x, int64_t k, int64_t block, void *to);
    size_t panel_bytes;
} int8_kernels;

/* For x86-64: AVX2 alone; with AVX-VNNI; with AVX-512 VNNI in vectors of 256 bits; with tiles of
 * bytes too (AMX). */
extern const int8_kernels int8_avx2, int8_avxvnni, int8_avx512vnni, int8_amx;
/* For arm64: NEON alone; with dot products of bytes; with products of matrices of bytes too. */
extern const int8_kernels int8_neon, int8_dotprod, int8_i8mm;

#endif
