/* copies_turned_shape.h - tiles of copies that turn rows into columns, as host and device see them
 * (gen/body_copies.c, device/task/copies_turned.cuh). */
#ifndef SHAPE_COPIES_TURNED_SHAPE_H
#define SHAPE_COPIES_TURNED_SHAPE_H

/* Entries of a piece, and of a tile's side; tiles of a round; the scratch of two rounds. */
enum {
    TURNED_PIECE = 8,
    TURNED_SIDE = 64,
    TURNED_TILES = 2,
    TURNED_BYTES = 2 * TURNED_TILES * TURNED_SIDE * TURNED_SIDE * 2
};

#endif
