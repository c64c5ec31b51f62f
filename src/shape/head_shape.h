/* head_shape.h - products of heads with a weight each, as host and device see them
 * (gen/body_head_linear.c, device/task/head_stream.cuh and head_tile.cuh). */
#ifndef SHAPE_HEAD_SHAPE_H
#define SHAPE_HEAD_SHAPE_H

#include "shape/fields.h"

enum {
    HEAD_X = 0,              /* operand in rt_entry.at */
    HEAD_FEW_TOKENS = 256,   /* of graphs that head_stream takes; longer ones have head_tile */
    HEAD_FEW_COLUMNS = 1024, /* of x, the most that head_stream takes */
    HEAD_CHUNK = 128,        /* columns that are packed, and summed, together */
    /* 8 rows of a chunk: 4 blocks of 8 rows x 32 columns (gen/device_body.h) */
    HEAD_UNIT_BYTES = 8 * HEAD_CHUNK * 2,
    HEAD_UNITS = 8, /* of a page */
};

/* head_stream: sums of four lots of 16 tokens, of the units of a page, for 32 lanes; twice. */
enum {
    HEAD_LOTS = 4,
    HEAD_LOT_BYTES = HEAD_UNITS * 32 * 16,
    HEAD_FEW_SCRATCH = 2 * HEAD_LOTS * HEAD_LOT_BYTES,
};

/* head_tile: stages of x, 128 tokens x 64 columns. */
enum {
    HEAD_STAGES = 3,
    HEAD_TOKENS = 128,
    HEAD_STAGE_BYTES = HEAD_TOKENS * 64 * 2,
    HEAD_TILE_SCRATCH = HEAD_STAGES * HEAD_STAGE_BYTES,
};

/*   columns     of x; they are `chunks` chunks, the last filled up with zeros
 *   rows        of a head's weight
 *   heads       of y, which is dense
 *   y           its operand
 *   x_head      elements from a head of x to the next
 *   x_token     from a token to the next */
/* clang-format off */
#define HEAD_SHAPE_FIELDS(INT)                   \
    INT(columns) INT(chunks) INT(rows) INT(heads) \
    INT(y) INT(x_head) INT(x_token)
/* clang-format on */

typedef struct head_shape {
    HEAD_SHAPE_FIELDS(FIELD_INT)
} head_shape;
SHAPE_ASSERT(head_shape_has_no_padding, sizeof(head_shape) == 7 * 4);

#endif
