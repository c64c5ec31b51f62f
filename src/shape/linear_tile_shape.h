/* linear_tile_shape.h - the boxes that products of many tokens copy by tensor maps, as host and
 * device see them (gen/body_linear_tile.c, device/task/linear_tile.cuh). */
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

#endif
