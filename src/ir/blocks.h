/* blocks.h - the block formats of GGUF weights, unpacked to f32 and packed from it.
 *
 * A block holds 32 or 256 neighbours of a row: small integers, and scales that turn them into
 * floats.  The layouts are those of the GGUF files, byte for byte; the arithmetic is fp32 in the
 * order of the format's definition, so any other reader of GGUF gets the same bits.  blocks.c
 * unpacks, blocks_pack.c packs, blocks_fit.c searches for the scales.
 */
#ifndef IR_BLOCKS_H
#define IR_BLOCKS_H

#include "ir/ir.h"

/* Unpack n elements (a multiple of the dtype's block) from consecutive blocks.  dtype: a block
 * dtype; no alignment is asked of `from`.  False (and nothing is written) if the dtype has no
 * blocks. */
bool blocks_unpack_row(ir_dtype dtype, const void *from, int64_t n, float *to);

/* Is there a way from f32 into this dtype's blocks?  Q4_0 to Q8_0, Q2_K to Q6_K. */
bool blocks_can_pack(ir_dtype dtype);

/* Pack n finite elements (a multiple of the block) into consecutive blocks of a dtype that can be
 * packed.  importance: NULL, or for each element what its squared error counts, at least 0.
 * Without importances, blocks of 32 have the bits of the format's definition; everything else is a
 * search for the least squared error.  False: a scale is beyond f16, which ends at 65,504. */
bool blocks_pack_row(ir_dtype dtype, const float *from, const float *importance, int64_t n,
                     void *to);

/* Fill n elements (a multiple of the block) with random blocks whose scales are near 1 over the
 * format's largest integer, for tests.  False if the dtype has no blocks. */
bool blocks_fill_random(ir_dtype dtype, int64_t n, uint64_t seed, void *to);

#endif
