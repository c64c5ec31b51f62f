/* blocks.h - the block formats of GGUF weights, unpacked to f32.
 *
 * A block holds 32 or 256 neighbours of a row: small integers, and scales that turn them into floats.  The layouts are
 * those of the GGUF files, byte for byte; the arithmetic is fp32 in the order of the format's definition, so the values
 * are exact in the sense that any other reader of GGUF gets the same bits.
 */
#ifndef IR_BLOCKS_H
#define IR_BLOCKS_H

#include "ir/ir.h"

/* Unpack n elements (a multiple of the dtype's block) from consecutive blocks.  dtype: a block dtype; no alignment is
 * asked of `from`.  False (and nothing is written) if the dtype has no blocks. */
bool blocks_unpack_row(ir_dtype dtype, const void *from, int64_t n, float *to);

/* Random blocks with scales near 1/8 of the format's largest integer, for tests.  n as above. */
bool blocks_fill_random(ir_dtype dtype, int64_t n, uint64_t seed, void *to);

#endif
