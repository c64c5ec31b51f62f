/* block_shape.h - how a tile of a block program lies in shared memory: what super/ plans and
 * task/block.cuh reads.
 *
 * A tile is rows of entries; a row has ROW_BYTES, a multiple of 16.  Matrices of 8 rows x 16 bytes
 * are read at once, so eight rows at the same place should lie in different banks:
 *   BLOCK_PLAIN     rows one after the other
 *   BLOCK_SWIZZLED  the same, but a row's pieces of 16 bytes change places with its number
 *   BLOCK_PADDED    16 bytes more between rows
 */
#ifndef SHAPE_BLOCK_SHAPE_H
#define SHAPE_BLOCK_SHAPE_H

#include "shape/fields.h"

enum { BLOCK_PLAIN, BLOCK_SWIZZLED, BLOCK_PADDED, BLOCK_LAYOUTS };

/* From a row to the next, in bytes. */
#define BLOCK_PITCH(row_bytes, layout) ((layout) == BLOCK_PADDED ? (row_bytes) + 16 : (row_bytes))
/* Rows that share 128 bytes, which are all banks; pieces of a row that change places. */
#define BLOCK_ROWS_OF_BANKS(row_bytes) ((row_bytes) < 128 ? 128 / (row_bytes) : 1)
#define BLOCK_SWIZZLE(row_bytes) ((row_bytes) < 128 ? (row_bytes) / 16 - 1 : 7)
/* Offset of byte `byte` of a row.  A swizzled row has a power of two of bytes. */
#define BLOCK_AT(row_bytes, layout, row, byte)                                                    \
    ((row)*BLOCK_PITCH(row_bytes, layout) +                                                       \
     ((layout) == BLOCK_SWIZZLED                                                                  \
          ? ((byte) ^ (((row) / BLOCK_ROWS_OF_BANKS(row_bytes) & BLOCK_SWIZZLE(row_bytes)) << 4)) \
          : (byte)))

/* Fields of an mma fragment: 16 rows, 8 columns, 4 entries a lane. */
enum { BLOCK_MMA_ROWS = 16, BLOCK_MMA_COLUMNS = 8, BLOCK_MMA_DEPTH = 16, BLOCK_SIDE = 16 };

/* Rows of a warpgroup's sums; from a row of a factor to the next in its shared memory, in bytes. */
enum { BLOCK_GROUP_ROWS = 64, BLOCK_GROUP_BYTES = 128 };

/* Where a product ends by rows (super/block.h), what lies between two rows of sums, so that those
 * of a fragment lie in different banks. */
enum { BLOCK_ROW_GAP = 8 };

/* Of an operand whose entries are windows of a tensor [channels, up to three axes]: a convolution's
 * factor.  Place p, a number in row-major order of the result's positions `out`, and entry e, in
 * that of [channels, kernel], or if `channels` is not 0 of [kernel, channels], name the entry at
 *     channel of e * channel_step + sum over axes i of at_i * step[i],
 *     at_i = position i of p * stride[i] - padding[i]
 *            + position i of e in the kernel * dilation[i];
 * 0 if an at_i is not in 0 .. in[i] - 1.  Axes that are not there have one entry.  Offsets fit into
 * an int. */
enum {
    BLOCK_WINDOW_AXES = 3,
    BLOCK_WINDOW_BATCH = 16 /* loads of a thread that are under way at once */
};
#define BLOCK_WINDOW_FIELDS(int_, ints_)                                                         \
    ints_(out, BLOCK_WINDOW_AXES) ints_(in, BLOCK_WINDOW_AXES) ints_(kernel, BLOCK_WINDOW_AXES)  \
        ints_(stride, BLOCK_WINDOW_AXES) ints_(padding, BLOCK_WINDOW_AXES)                       \
            ints_(dilation, BLOCK_WINDOW_AXES) ints_(step, BLOCK_WINDOW_AXES) int_(channel_step) \
                int_(channels)
typedef struct block_window {
    BLOCK_WINDOW_FIELDS(FIELD_INT, FIELD_INTS)
} block_window;

/* A patch: what the windows of some places need of one part of the channels, kept in shared memory
 * while the kernel goes over it.  Its rows are pixels, those of the padding too, of whole lines:
 * along the two last axes, for there the first has one entry.
 *
 *   3 x 3 over 14 x 14, padding 1, 28 places: 2 lines, so pixels of 4 lines of 16 */
#define BLOCK_SPAN(w, axis, n) \
    (((n)-1) * (w).stride[axis] + ((w).kernel[axis] - 1) * (w).dilation[axis] + 1)
#define BLOCK_PATCH_WIDTH(w) BLOCK_SPAN(w, 2, (w).out[2])

SHAPE_ASSERT(block_window_has_no_padding, sizeof(block_window) == (7 * BLOCK_WINDOW_AXES + 2) * 4);
SHAPE_ASSERT(block_layouts_are_three, BLOCK_LAYOUTS == 3);

#endif
