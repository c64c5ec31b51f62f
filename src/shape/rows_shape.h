/* rows_shape.h - limits of the bodies that take a warp for a row, or all warps of a worker
 * (device/task/rows_warp.cuh, gen/body_rows_warp.c; norm_carried.cuh, body_norm_carried.c). */
#ifndef SHAPE_ROWS_SHAPE_H
#define SHAPE_ROWS_SHAPE_H

/* Entries that a lane loads at once; entries of a row at most, which a warp keeps in registers, and
 * which eight warps keep. */
enum { ROWS_PIECE = 8, ROWS_MOST = 2048, ROWS_LONG = 16384 };

/* Entries of a row, or of a part of one, that is polled: a lane of 256 has four pieces of it. */
enum { ROWS_CARRIED = 8192 };

/* A tile of a staged depthwise convolution in shared memory (task/windows_rows.cuh), in units of 16
 * bytes, which are pieces of channels: a row is runs of `run` columns, those from a thread's first
 * column to its neighbour's, each of all pieces and a gap, so that reads of neighbouring threads,
 * piece after piece and run after run, fall into neighbouring units modulo 8 and meet no bank
 * conflict.  From the row's first unit to the first of column `column`. */
#define CONV_RUN_UNITS(run, pieces) ((run) * (pieces) + (8 - ((run)-1) * (pieces) % 8) % 8)
#define CONV_AT(column, run, pieces) \
    ((column) / (run)*CONV_RUN_UNITS(run, pieces) + (column) % (run) * (pieces))

#endif
