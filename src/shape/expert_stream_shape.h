/* expert_stream_shape.h - streamed products with the weights of experts, as host and device see
 * them (gen/body_expert_stream.c, device/task/expert_stream.cuh). */
#ifndef SHAPE_EXPERT_STREAM_SHAPE_H
#define SHAPE_EXPERT_STREAM_SHAPE_H

#include "shape/linear_stream_shape.h"

/* Limits. */
enum {
    EXPERT_MOST = 256, /* experts: a thread of the body each */
    /* chunks of EXPERT_FEW_ROWS pairs up to here, of EXPERT_MANY_ROWS above */
    EXPERT_FEW_TOKENS = 64,
    EXPERT_FEW_ROWS = 8,
    EXPERT_MANY_ROWS = 16,
    EXPERT_FEW_SLOTS = 8, /* groups of chunks that end together, for few tokens and for many */
    EXPERT_MANY_SLOTS = 4,
    EXPERT_LEAST_RANGE = 16, /* tokens that are sorted together, */
    EXPERT_MOST_RANGE = 256,
    EXPERT_MOST_PAIRS = 2048, /* and pairs */
    EXPERT_AFTER = 4,         /* chunks after the last one that have rows, which are none */
    /* groups at once of many tokens that are summed: their sums take room */
    EXPERT_SUMMED_BLOCK = 2,
};

/* Scratch: offsets in bytes of what every shape has; the rest is in expert_places. */
enum {
    /* of one tile; two tiles have some at the same time */
    EXPERT_FEW_PARTS = EXPERT_FEW_SLOTS * 8 * 32 * 8,
    EXPERT_MANY_PARTS = EXPERT_MANY_SLOTS * 8 * 32 * 16,
    EXPERT_SHAPE = 2 * EXPERT_FEW_PARTS, /* expert_shape */
    EXPERT_SHAPE_BYTES = 256,
    EXPERT_TOTALS = 512, /* of a tile: all groups of all its pairs; of strips of two groups twice */
};
SHAPE_ASSERT(expert_parts_take_the_same_room, (int)EXPERT_FEW_PARTS == (int)EXPERT_MANY_PARTS);

/* Scratch after that, bytes from its beginning; P: pairs of a range.
 *
 *   totals       f32[2][EXPERT_TOTALS sides] of even and odd tiles that are summed: scaled, place
 *                by place
 *   counts       u32[8 warps] pairs, and chunks << 16
 *   norms        f32[tokens of a range] 1 / rms of x
 *   weights      f32[P] scales
 *   chunks       u32[chunks] first place, and pairs << 16
 *   sums         f32[tokens of a range][8 block]
 *   ids, order   u16[P] a pair's expert; the pairs by expert: places
 *   rows         u32[chunks + EXPERT_AFTER][EXPERT_FEW_ROWS] of strips of two groups and few tokens
 *                alone, at the next multiple of 4: see expert_rows
 *   norm         f32[1,024 pages] with weights in blocks alone, at the next multiple of 16: see
 *                expert_norm */
/* clang-format off */
#define EXPERT_PLACE_FIELDS(INT)                                                   \
    INT(totals) INT(counts) INT(norms) INT(weights) INT(chunks) INT(sums) INT(ids) \
    INT(order)
/* clang-format on */

typedef struct expert_places {
    EXPERT_PLACE_FIELDS(FIELD_INT)
} expert_places;

/*   of                  columns, pages, norm, operands: as those of a product
 *   ids, scale          operands; scale -1: a row for each pair
 *   experts, of_token   how many there are; how many a token has
 *   inverse             of of_token, times 2^20, rounded up
 *   range               tokens whose pairs are sorted together, at most
 *   block               strips of columns that are worked together, at most the slots
 *   split               1: x has a row for each pair
 *   rounds              1, 2 or 4: a task has groups of all chunks, every other or every fourth
 *   sides               groups of a strip, which stand side by side in a page: 1; or 2 of one page
 *                       each, not gated, columns of each for four of the warps */
/* clang-format off */
#define EXPERT_SHAPE_FIELDS(STREAM, INT, UNSIGNED, PLACES)                      \
    STREAM(of) INT(ids) INT(scale) INT(experts) INT(of_token) UNSIGNED(inverse) \
    INT(range) INT(block) INT(split) INT(rounds) INT(sides) PLACES(at)
/* clang-format on */

#define FIELD_STREAM(name) stream_shape name;
#define FIELD_PLACES(name) expert_places name;
typedef struct expert_shape {
    EXPERT_SHAPE_FIELDS(FIELD_STREAM, FIELD_INT, FIELD_UNSIGNED, FIELD_PLACES)
} expert_shape;
SHAPE_ASSERT(expert_places_has_no_padding, sizeof(expert_places) == 8 * 4);
SHAPE_ASSERT(expert_shape_has_no_padding,
             sizeof(expert_shape) == sizeof(stream_shape) + (10 + 8) * 4);

/* The same of experts with biases, or a gate with a limit: operands and dtypes of the biases are
 * those of `of`, bias[0] of w0 and bias[1] of w1.  A kind of its own, so that programs without
 * have the code they had. */
typedef struct expert_ends_shape {
    expert_shape s;
    float limit; /* of the gate GLU_SWIGLU_OAI; else 0 */
} expert_ends_shape;
/* A row for each pair, neither gated nor summed; entries of x from a row to the next, and from a
 * token to the next. */
typedef struct expert_rows_shape {
    expert_shape s;
    int row, token;
} expert_rows_shape;
/* The kinds of code. */
enum { EXPERT_KIND_PLAIN, EXPERT_KIND_ENDS, EXPERT_KIND_ROWS };
SHAPE_ASSERT(expert_shape_has_room, sizeof(expert_ends_shape) <= EXPERT_SHAPE_BYTES);

#endif
