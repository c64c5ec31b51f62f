/* delta_shape.h - delta_rule's bodies by warps as host and device see them: operands, lanes, and
 * the scratch of chunks (gen/body_delta.c, device/task/delta_warp.cuh, delta_chunk.cuh). */
#ifndef SHAPE_DELTA_SHAPE_H
#define SHAPE_DELTA_SHAPE_H

/* Operands in rt_entry.at, as src/op/delta_rule.c has them. */
enum {
    DELTA_Q,
    DELTA_K,
    DELTA_V,
    DELTA_A,
    DELTA_B,
    DELTA_LOG,
    DELTA_BIAS,
    DELTA_POSITIONS,
    DELTA_SLOTS,
    DELTA_STATE,
    DELTA_Y
};

/* Lanes that have a row of the state. */
enum { DELTA_LANES = 8 };

/* Tokens of a chunk, columns of y that its warps make together. */
enum { DELTA_CHUNK = 32, DELTA_WIDTH = 32 };

/* Bytes: rows of q or of k of a chunk; of v; a matrix [CHUNK, CHUNK] of 16 bits; the two blocks of
 * [CHUNK / 2, CHUNK / 2] on its diagonal in fp32; a block of 16 bits; four numbers of each
 * token. */
#define DELTA_KEY_BYTES(keys) (DELTA_CHUNK * (keys)*2)
enum {
    DELTA_VALUE_BYTES = DELTA_CHUNK * DELTA_WIDTH * 2,
    DELTA_MATRIX_BYTES = DELTA_CHUNK * DELTA_CHUNK * 2,
    DELTA_RAW_BYTES = DELTA_CHUNK * DELTA_CHUNK / 2 * 4,
    DELTA_BLOCK_BYTES = DELTA_MATRIX_BYTES / 4,
    DELTA_FACTOR_BYTES = 4 * DELTA_CHUNK * 4,
};

/* Scratch: q and k of four chunks; v of two; two matrices, a block and the numbers of three; the
 * blocks in fp32 of two.  87 KB where keys have 128 entries, which leaves the ring its pages. */
#define DELTA_SCRATCH_BYTES(keys)                                            \
    (8 * DELTA_KEY_BYTES(keys) + 2 * (DELTA_VALUE_BYTES + DELTA_RAW_BYTES) + \
     3 * (2 * DELTA_MATRIX_BYTES + DELTA_BLOCK_BYTES + DELTA_FACTOR_BYTES))

#endif
