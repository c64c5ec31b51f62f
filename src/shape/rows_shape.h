/* rows_shape.h - limits of the bodies that take a warp for a row, or all warps of a worker
 * (device/task/rows_warp.cuh, gen/body_rows_warp.c; norm_carried.cuh, body_norm_carried.c). */
#ifndef SHAPE_ROWS_SHAPE_H
#define SHAPE_ROWS_SHAPE_H

/* Entries that a lane loads at once; entries of a row at most, which a warp keeps in registers, and
 * which eight warps keep. */
enum { ROWS_PIECE = 8, ROWS_MOST = 2048, ROWS_LONG = 16384 };

/* Entries of a row, or of a part of one, that is polled: a lane of 256 has four pieces of it. */
enum { ROWS_CARRIED = 8192 };

#endif
