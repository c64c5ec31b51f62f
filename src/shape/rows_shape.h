/* rows_shape.h - limits of the bodies that take a warp for a row (device/task/rows_warp.cuh,
 * gen/body_rows_warp.c). */
#ifndef SHAPE_ROWS_SHAPE_H
#define SHAPE_ROWS_SHAPE_H

/* Entries that a lane loads at once; entries of a row at most, which a warp keeps in registers. */
enum { ROWS_PIECE = 8, ROWS_MOST = 2048 };

#endif
