/* codebooks.h - blocks of 256 weights whose elements are looked up: the IQ and TQ formats of GGUF.
 *
 * Every such block becomes the same thing: signed bytes q, a small integer for each 16 neighbours,
 * and a scale d.  A weight is d * small * q, which is exact in fp32, so that any order of the two
 * products gives the same bits.  Used by the reference (blocks.c) and by the CPU's kernels
 * (src/cpu/block_kernels.h), which multiply q as it is.
 */
#ifndef IR_CODEBOOKS_H
#define IR_CODEBOOKS_H

#include "ir/ir.h"

enum { CODEBOOK_WEIGHTS = 256 };

/* A block taken apart: weight i is d * small[i / 16] * q[i]. */
typedef struct codebook_block {
    _Alignas(32) int8_t q[CODEBOOK_WEIGHTS]; /* -127 ... 127 */
    int8_t small[CODEBOOK_WEIGHTS / 16];     /* -32 ... 31; weight i has small[i / 16] */
    float d;
} codebook_block;

/* The formats of the enum from IQ1_S to TQ2_0 are those with 256 looked-up weights.  (IQ4_NL and
 * MXFP4 have 32.) */
static inline bool codebook_has(ir_dtype dtype)
{
    return dtype >= IR_IQ1_S && dtype <= IR_TQ2_0;
}

/* Take one block apart.  dtype: codebook_has is true; `block` needs no alignment. */
void codebook_take(ir_dtype dtype, const uint8_t *block, codebook_block *to);

/* Magnitudes by index, a byte for each element, the first in the lowest: 8, 25 and 43 in IQ2, 4,
 * 12, 20 ... 52 and 62 in IQ3_XXS, 1, 3, 5 ... 15 in IQ3_S; and of IQ1 8 (e + 1) for an element e
 * of -1, 0 and 1. */
extern const uint64_t codebook_iq1[2048], codebook_iq2_xxs[256], codebook_iq2_xs[512],
    codebook_iq2_s[1024];
extern const uint32_t codebook_iq3_xxs[256], codebook_iq3_s[512];

/* The values of four bits in IQ4_NL and IQ4_XS, and twice those in MXFP4. */
extern const int8_t codebook_iq4[16], codebook_mxfp4[16];
/* The scale of an MXFP4 block, halved because codebook_mxfp4 is doubled: 2^(byte - 128). */
float codebook_mxfp4_scale(uint8_t byte);

#endif
