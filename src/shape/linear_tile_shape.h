/* linear_tile_shape.h - products of many tokens, as host and device see them: the boxes that they
 * copy by tensor maps, and their scratch (gen/body_linear_tile.c, device/task/linear_tile.cuh). */
#ifndef SHAPE_LINEAR_TILE_SHAPE_H
#define SHAPE_LINEAR_TILE_SHAPE_H

/* A box of x is TILE_BOX_TOKENS rows of TILE_BOX_COLUMNS columns in the 128-byte swizzle, one of w
 * the same columns of TILE_BOX_GROUPS packed groups: a page. */
enum {
    TILE_BOX_COLUMNS = 64,
    TILE_BOX_TOKENS = 64,
    TILE_BOX_GROUPS = 16,
    TILE_BOX_BYTES = 2 * 512, /* of a group */
    TILE_BOX_WORDS = 2, /* of 8 bytes, the map's elements, of a group's column: 8 rows of 16 bits */
};

/* Scratch.  room: 1 where there is room (GEN_ROOM); 64 columns of 64 tokens, 8 KB, are a stage of a
 * warpgroup, and its sums of 64 rows, 72 floats a token, take the place of its stages. */
#define TILE_STAGES_OF(room) ((room) ? 4 : 2)
#define TILE_X_OF(room) ((room) ? 4 * 8192 : 64 * 72 * 4)
enum { TILE_KEPT = 4 /* turns whose squares the passes after the first find there */ };
#define TILE_SCRATCH_OF(room) (2 * TILE_X_OF(room) + TILE_KEPT * 2 * 64 * 4)

#endif
