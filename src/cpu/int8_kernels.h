/* int8_kernels.h - the products of int8_fast.h in vectors of 256 bits or more.  Included by one .c
 * file for each instruction set, which may define
 *
 *   INT8_DOT        one instruction that adds four products of bytes, w x, to each lane of 32 bits
 *   INT8_DOT_PAIRS  one that adds two products of 16 bits
 *   INT8_SIGNED     bytes of w are signed; not defined: they are unsigned, and those of x signed
 *   INT8_PAIRS      with INT8_SIGNED, and without INT8_DOT: two products of bytes in 16 bits
 *   INT8_MATRIX     with INT8_DOT: one that multiplies a matrix of 2 x 8 bytes by one of 8 x 2 in
 *                   each lane of 128 bits: two rows of w, two of x, four sums by rows of w
 *   INT8_WIDE       panels of sixteen rows, in vectors of 512 bits
 *
 * and must define INT8_TILE, the tokens that are multiplied together.  Without INT8_DOT bytes
 * are multiplied to pairs (maddubs), as many of which are added in 16 bits as fit.
 *
 * Two loops compute the products: direct (int8_direct.h) for few tokens, panel (int8_panel.h, or
 * int8_wide.h) for many.  int8_formats.h describes each format to both, and to int8_tiles.h.
 */
#ifndef CPU_INT8_KERNELS_H
#define CPU_INT8_KERNELS_H

#include "cpu/int8_direct.h"
#ifdef INT8_WIDE
#include "cpu/int8_wide.h"
#define INT8_PANEL_LOOP wide_rows
#else
#define INT8_PANEL_LOOP panel_rows
#endif

/* The product that int8_set.h compiles for each format. */
V_INLINE void multiply_rows(ir_dtype dtype, const int8_rows *x, const void *w, int64_t row_bytes,
                            int64_t n, void *panel, float *sums, int64_t ld)
{
    if (x->n <= INT8_DIRECT_TOKENS)
        direct_few(dtype, x, w, row_bytes, n, sums, ld);
    else
        INT8_PANEL_LOOP(dtype, x, w, row_bytes, n, panel, sums, ld);
}
#include "cpu/int8_set.h"

#endif
