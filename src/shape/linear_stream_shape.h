/* linear_stream_shape.h - streamed products of up to 64 tokens, as host and device see them
 * (gen/body_linear_stream.c, device/task/linear_stream.cuh; gen/body_linear_team.c,
 * device/task/linear_team.cuh). */
#ifndef SHAPE_LINEAR_STREAM_SHAPE_H
#define SHAPE_LINEAR_STREAM_SHAPE_H

#include "shape/fields.h"

/* Limits. */
enum {
    STREAM_MOST_TOKENS = 16,
    STREAM_NARROW_TOKENS = 8, /* up to here a row of the operand is half a token's columns */
    STREAM_NARROW_PAGES = 4,  /* of x in registers, up to STREAM_NARROW_TOKENS */
    STREAM_WIDE_PAGES = 2,    /* and above */
    /* terms that x is the sum of; the operand of the second one, from which on the others follow */
    STREAM_MOST_TERMS = 3,
    STREAM_FIRST_TERM = 8,
    TEAM_MOST_TOKENS = 64,
    TEAM_TWO_TOKENS = 32, /* up to here two teams of warps, above four; a team has 16 tokens */
    /* Columns or rows of the weights' shorter side up to which teams beat warpgroups from
     * TEAM_TWO_TOKENS on (docs/attempts.md): where every worker has little to multiply, its start
     * and its end decide. */
    TEAM_MOST_SIDE = 1024,
};

/* Scratch: offsets in bytes. */
enum {
    /* groups of 8 rows whose partial sums meet at once: 64 rows, which have one peak of logits */
    STREAM_TILE = 8,
    STREAM_SQUARES = 0,                                  /* float[64 tokens][8 warps] */
    STREAM_END = STREAM_SQUARES + TEAM_MOST_TOKENS * 32, /* stream_end */
    STREAM_BEND = STREAM_END + 48,                       /* float2: cap and rate of logits */
    /* float[2][STREAM_TILE][16 tokens][2] */
    STREAM_PEAKS = STREAM_END + 64,
    /* float[STREAM_TILE][8 warps][32 lanes][4] */
    STREAM_PARTS = STREAM_PEAKS + 2 * STREAM_TILE * 16 * 8,
    STREAM_SCRATCH = STREAM_PARTS + STREAM_TILE * 8 * 32 * 16,
    TEAM_PARTS = STREAM_PEAKS, /* of teams: float[groups][8 warps][32 lanes][4] */
};
/* Groups of teams: two times as many where the ring keeps its pages beside them, as on GPUs with
 * bulk copies; and the peaks of a tile after their sums, float[groups][64 tokens][2]. */
#define TEAM_TILE_OF(bulk) ((bulk) ? 16 : STREAM_TILE)
#define TEAM_PEAKS_OF(tile) (TEAM_PARTS + (tile)*8 * 32 * 16)
#define TEAM_SCRATCH_OF(tile) (TEAM_PEAKS_OF(tile) + (tile)*TEAM_MOST_TOKENS * 8)

/* A page of the packed weight: up to STREAM_PAGE_UNITS blocks of 32 columns for each of 8 warps, 8
 * rows each.  So a group of 8 rows is pieces of STREAM_UNIT_COLUMNS columns, one after the
 * other. */
enum {
    STREAM_UNIT_COLUMNS = 256,
    STREAM_PAGE_UNITS = 4,
    STREAM_COLUMNS = STREAM_PAGE_UNITS * STREAM_UNIT_COLUMNS, /* of a page */
    TEAM_PIECE_BYTES = 8 * STREAM_UNIT_COLUMNS * 2
};

/* Does the body of few tokens add terms of x?  It keeps all pages, and has room for a page of a row
 * in each group of a tile; three pages take the room of four. */
static inline int stream_adds_terms(long long rows, long long columns)
{
    const long long pages = (columns + STREAM_COLUMNS - 1) / STREAM_COLUMNS;
    return pages <= STREAM_NARROW_PAGES && rows * (pages + (pages == 3)) <= STREAM_TILE;
}

/* The first column of a sum of x (op/sum_linear.c) that belongs to a task whose box of y begins at
 * `column`: it stands to all of `width` as `column` to all `columns` of y, rounded down to a piece
 * of eight, or at the end.  In the type of its operands, 64 bits on the host. */
#define SUM_COLUMN_AT(column, columns, width) ((column) * (((width) + 7) / 8) / (columns)*8)
#define SUM_COLUMN(column, columns, width)                                                   \
    (SUM_COLUMN_AT(column, columns, width) < (width) ? SUM_COLUMN_AT(column, columns, width) \
                                                     : (width))

enum { GLU_NONE, GLU_SILU, GLU_GELU, GLU_GELU_TANH, GLU_SWIGLU_OAI };
enum { TO_HALVES, TO_LOGITS };

/* Where the operands stand in rt_entry.at, and what surrounds the product.  In constant memory: one
 * body runs all shapes, because code that is used by all operators of a layer stays in the
 * instruction cache.
 *
 *   columns, columns_inverse   of x; 1 / columns
 *   pages, last                of a group; blocks a warp in the last page: 1 .. STREAM_PAGE_UNITS
 *   at_once                    pages of x in registers: STREAM_NARROW_PAGES or STREAM_WIDE_PAGES,
 *                              as the routine; teams do not read it
 *   rows                       of w: columns of y
 *   norm, eps                  1: rms_norm of x with eps; 0: eps is a factor of the sums
 *   norm_in, norm_type         with w in blocks, into which it is not folded: operand of the norm's
 *                              weight, 0 as x or 1 f32
 *   zero                       of such weights: 128 and what is taken off their integers
 *   glu                        GLU_*; not NONE: groups hold pairs of rows
 *   after                      GLU_* of each column, where none are pairs
 *   x, y, residual             operands; -1: absent
 *   terms                      of x after x itself, from operand STREAM_FIRST_TERM on; their sum is
 *                              the operand after y; 0: x is whole
 *   bias, bias_rows, bias_type of up to three weights: operand or -1, rows of that weight, 0 bf16
 *   or 1 f32
 *   gathered, tokens           operand rows i32[R]: row r of the product is token rows[r], if that
 *                              is below `tokens` and alive; -1: row r is token r
 *   output, peaks              TO_*; operand of the peaks, or -1
 *   cap, rate                  of logits (task/peaks.cuh) */
/* clang-format off */
#define STREAM_SHAPE_FIELDS(INT, FLOAT, INTS)                                       \
    INT(columns) FLOAT(columns_inverse) INT(pages) INT(last) INT(at_once) INT(rows) \
    INT(norm) FLOAT(eps) INT(norm_in) INT(norm_type) FLOAT(zero) INT(glu)           \
    INT(after)                                                                      \
    INT(x) INT(y) INT(residual) INT(terms) INTS(bias, 3)                            \
    INTS(bias_rows, 3) INTS(bias_type, 3) INT(gathered) INT(tokens) INT(output)     \
    INT(peaks) FLOAT(cap) FLOAT(rate)
/* clang-format on */

typedef struct stream_shape {
    STREAM_SHAPE_FIELDS(FIELD_INT, FIELD_FLOAT, FIELD_INTS)
} stream_shape;
SHAPE_ASSERT(stream_shape_has_no_padding, sizeof(stream_shape) == (23 + 3 * 3) * 4);

#endif
