/* linear_tile_shape.h - products of many tokens as host and device see them: the boxes that are
 * copied by tensor maps, their scratch, how a task is cut in passes, and which code each pass takes
 * (gen/body_linear_tile.c, device/task/linear_tile.cuh). */
#ifndef SHAPE_LINEAR_TILE_SHAPE_H
#define SHAPE_LINEAR_TILE_SHAPE_H

/* A box of x is TILE_BOX_TOKENS rows of TILE_BOX_COLUMNS columns in the 128-byte swizzle, one of w
 * the same columns of TILE_BOX_GROUPS packed groups: a page.  Of w that is not packed, a temporary
 * in rows as x, a box has as many rows in the swizzle of x. */
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
enum { TILE_KEPT = 4 /* lots whose squares the passes after the first find there */ };
/* Biases of the columns of a pass by boxes, f32, for each warpgroup (box_end.cuh); images have
 * factors too, after all else. */
enum { TILE_BIASES = 256 };
#define TILE_BIASES_OF(room) ((room) ? 2 * TILE_BIASES * 4 : 0)
#define TILE_BEFORE_BIASES_OF(room) (2 * TILE_X_OF(room) + TILE_KEPT * 2 * 64 * 4)
#define TILE_SCRATCH_OF(room) (TILE_BEFORE_BIASES_OF(room) + TILE_BIASES_OF(room))

/* With weights in blocks (linear_blocks.cuh): tokens of a lot at most; scratch: four stages of x
 * and a factor for each token; pieces of 128 columns of each group that a box has. */
enum { TILE_BLOCKS_TOKENS = 128, TILE_BLOCKS_SCRATCH = 4 * 16384 + TILE_BLOCKS_TOKENS * 4 };
#define TILE_BLOCKS_TOGETHER(form) (RT_IS_BYTES(form) ? 1 : 2)
/* The same of experts (expert_unpack.cuh), whose boxes fill a page with nibbles: four stages; a
 * plan of 12 tiles of 128 pairs (expert_plan.cuh), biases and places of rows, 8 KB. */
#define TILE_UNPACK_TOGETHER(form) (RT_IS_BYTES(form) ? 1 : 3)
enum { TILE_UNPACK_SCRATCH = 4 * 16384 + 8192 };

enum {
    TILE_TOKENS = 64, /* of a warpgroup; a task of more is wide */
    TILE_GROUPS = 8,  /* of a page, without boxes */
    /* Groups of a pass, without boxes: sums of 192 rows, or of 128 where each warp multiplies by
     * itself, without wgmma, or where the ring has an even number of pages. */
    TILE_MOST = 24,
    TILE_MOST_BY_WARPS = 16,
};

/* Passes of a task are as equal as possible, in multiples of 8 groups: groups of each but the
 * last.  even: without boxes at most two pages a step, for a ring whose number of pages is even:
 * of three some of it would always be left out.  Bodies ask between a task's event and its first
 * product, and most tasks have one pass: so a division, 40 instructions, is left to those of
 * several. */
static inline int tile_groups_of_pass(int wgmma, int groups, int boxed, int even)
{
    const int by_rows = wgmma && !even ? TILE_MOST : TILE_MOST_BY_WARPS,
              most = boxed ? 2 * TILE_BOX_GROUPS : by_rows;
    if (groups <= most)
        return groups > 0 ? (groups + 7) / 8 * 8 : 8;
    const int passes = (groups + most - 1) / most;
    return ((groups + passes - 1) / passes + 7) / 8 * 8;
}

/* A task of at most 64 tokens and 8 groups is thin, where there is room for its stages. */
static inline int tile_is_thin(int room, int wide, int groups)
{
    return room && !wide && groups > 0 && groups <= TILE_GROUPS;
}

/* The loops over columns: rows of w that one multiplies at a time, and how x and w come. */
enum {
    TILE_THIN, /* 64 rows, at most 64 tokens */
    TILE_NARROW_128,
    TILE_NARROW_192,
    TILE_WIDE_128, /* 128 tokens at a time */
    TILE_WIDE_192,
    TILE_BOX_128, /* the same, by boxes */
    TILE_BOX_192,
    TILE_BOX_256,
    TILE_PANEL, /* 128 tokens at a time, without wgmma (linear_panel.cuh) */
    /* lots of so many tokens with weights in blocks, with wgmma (linear_blocks.cuh), in passes of
     * 64 rows; and the next two in passes of 96 and 128 */
    TILE_BLOCKS_64,
    TILE_BLOCKS_128 = TILE_BLOCKS_64 + 3,
    TILE_THIN_BOX = TILE_BLOCKS_128 + 3, /* as TILE_THIN, x by boxes */
    TILE_LOOPS
};

/* With weights in blocks: tokens of a lot of a task of so many; groups of a pass, the last of which
 * may have fewer: 8, 12 or 16.  Peaks of logits are of 8 groups. */
static inline int tile_tokens_of_blocks(int tokens)
{
    return tokens <= 64 ? 64 : (int)TILE_BLOCKS_TOKENS;
}
static inline int tile_groups_of_blocks(int groups, int logits)
{
    enum { MOST = 16 };
    if (groups <= TILE_GROUPS)
        return TILE_GROUPS;
    const int passes = (groups + MOST - 1) / MOST, each = (groups + passes - 1) / passes;
    return logits || each > 12 ? MOST : 12;
}
static inline int tile_loop_of_blocks(int tokens, int groups, int logits)
{
    const int rows = 8 * tile_groups_of_blocks(groups, logits);
    return (tokens > 64 ? TILE_BLOCKS_128 : TILE_BLOCKS_64) + (rows > 64) + (rows > 96);
}

/* The loop of a pass of this many groups.  boxed: x comes by boxes, and of wide tasks w too.
 * one_wide: a single loop does for wide tasks without boxes, since few are. */
static inline int tile_loop_of(int wgmma, int wide, int boxed, int thin, int groups, int one_wide)
{
    if (wide && !wgmma)
        return TILE_PANEL;
    if (thin)
        return boxed ? TILE_THIN_BOX : TILE_THIN;
    if (boxed && groups > TILE_BOX_GROUPS)
        return groups <= TILE_MOST ? TILE_BOX_192 : TILE_BOX_256;
    if (boxed)
        return TILE_BOX_128;
    if (wide)
        return groups > 2 * TILE_GROUPS || one_wide ? TILE_WIDE_192 : TILE_WIDE_128;
    return groups > 2 * TILE_GROUPS ? TILE_NARROW_192 : TILE_NARROW_128;
}

/* What x is normalised by. */
enum { TILE_NORM_NONE, TILE_NORM_RMS, TILE_NORM_LAYER };

/* What becomes of the sums: columns of y; pairs of rows, an activation of one of them; logits. */
enum { TILE_END_PLAIN, TILE_END_PAIRS, TILE_END_LOGITS, TILE_ENDS };

/* Bits of MPK_FORMS, of which the generated source sets those that some task of the kernel needs:
 * a loop with an end is bit loop * TILE_ENDS + end, and there are these.  The code of others is
 * left out. */
enum {
    TILE_FORM_PARTS = TILE_LOOPS * TILE_ENDS,   /* tasks that share a tile (linear_parts) */
    TILE_FORM_ACTIVATION = TILE_FORM_PARTS,     /* + ACTIVATE_*: 6 bits from the next on */
    TILE_FORM_AFTER = TILE_FORM_ACTIVATION + 7, /* an activation of columns of y */
    TILE_FORM_BIAS = TILE_FORM_AFTER + 1,
    TILE_FORM_BOX_ENDS = TILE_FORM_BIAS + 1, /* either of these at the end of boxes */
    /* an activation of columns of y in linear_stream and linear_team */
    TILE_FORM_STREAM_AFTER = TILE_FORM_BOX_ENDS + 1,
    TILE_FORM_BEND = TILE_FORM_STREAM_AFTER + 1,   /* a factor or a cap of logits, for all bodies */
    TILE_FORM_JOINT = TILE_FORM_BEND + 1,          /* boxes of at most 64 tokens */
    TILE_FORM_SIDES = TILE_FORM_JOINT + 1,         /* two groups of experts side by side */
    TILE_FORM_LARGE_PARTS = TILE_FORM_SIDES + 1,   /* shared tiles of more than 128 rows */
    TILE_FORM_SQUARES = TILE_FORM_LARGE_PARTS + 1, /* sums of squares of rows (row_squares.cuh) */
    TILE_FORMS
};

/* In graphs of more rows products leave no sums of these: of all operators of a model they would
 * take too much memory.  Products with a norm then sum x themselves, each task all of its own. */
static inline long long tile_most_summed(int call)
{
    return call ? 1 << 16 : 1 << 12;
}

/* May a task of at most 64 tokens come by boxes?  groups: of all that share its tile.  Then both
 * warpgroups have its tokens, and half of the rows of w each (a joint lot).  Few rows are better
 * off as a thin task, whose pages hold more columns. */
static inline int tile_is_joint(int wide, int groups)
{
    return !wide && groups > TILE_GROUPS;
}

/* How many tasks of at most 64 tokens and `groups` groups of w are to share a tile, a power of two,
 * so that together they have 128 rows or more; 1: each is better alone.  Of the columns each has a
 * part, of four steps or more. */
enum { TILE_FEWEST_SHARING = 33, TILE_LEAST_COLUMNS = 256 };
static inline int tile_parts_of_short(long long tokens, int groups, long long columns)
{
    int parts = 1;
    if (tokens < TILE_FEWEST_SHARING || tokens > TILE_TOKENS || groups < 1)
        return 1;
    while (parts * groups < TILE_BOX_GROUPS)
        parts *= 2;
    return columns / parts >= TILE_LEAST_COLUMNS ? parts : 1;
}

/* The loop by boxes of a pass of a joint task.  gated: it is alone, and rows of w are pairs; others
 * take no halves of 96 rows, since columns of y and logits are stored 64 at a time, and of tasks
 * that share a tile one loop more would take long to compile. */
static inline int tile_loop_of_joint(int groups, int gated)
{
    if (groups <= TILE_BOX_GROUPS)
        return TILE_BOX_128;
    return groups <= TILE_MOST && gated ? TILE_BOX_192 : TILE_BOX_256;
}

#endif
