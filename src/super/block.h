/* block.h - block programs: what the threads of a worker do for one task (paper §4.2), below the
 * operators.
 *
 * A program runs over a box of axes (m, n, k ...).  Operands lie in global memory, a stride for
 * each axis; tiles lie in shared memory or in the threads' registers (fragments), each over at
 * most two axes.  A step does one thing to whole tiles.  A *region* is such a program without
 * tiles of its own: every axis whole, everything a fragment, one step for each thing that the
 * operator's definition says.  It defines what is to be computed; a *candidate* is what the
 * search (super.h) proposes, and is used only after a run over finite fields gave the same
 * results for both.
 *
 * An *iteration* is one run of a loop's steps.  A product, as block_print writes it
 * (docs/superoptimizer.md has it in full):
 *
 *   loop k by 64 ahead 1        two copies of a and b0: one is multiplied, the other loaded
 *     wait 0                    the copies of this iteration have arrived, in every thread's view
 *     load a from in_x          requests the tiles of the next iteration
 *     load b0 from in_w0
 *     multiply sum0 a b0        reads those of this iteration
 *   end
 *
 * The steps:
 *
 *   loop     AXIS       over the axis' tiles, from the box's start.  ahead > 0: loads in it are
 *                       issued this many iterations early
 *   end                 of the innermost loop
 *   sync                all threads meet: what they have read may be overwritten
 *   wait     PENDING    all groups of loads but the last PENDING have arrived and are seen by all
 *                       threads; also a sync.  Loads of an iteration that stand together are one
 *                       group
 *   turn     PENDING    the warpgroups in turns, each going on when the other has passed: all loads
 *                       but those of the last iteration and the last PENDING groups before have
 *                       arrived and are seen; what was read two turns ago may be overwritten
 *   pass                the other warpgroup may go on
 *   load     T <- X     a tile at the loops' places; what lies after the end of an axis is 0
 *   fill     T          with `number`
 *   multiply T, A, B    T += A B over the axis that T lacks
 *   add      T, A       the warps' partial sums (A.parts) become one
 *   bound    T, AXIS    entries after the axis' end become minus infinity; or those whose column
 *                       lies after their row (causal), or `number` columns or more before it
 *                       (window)
 *   map      T, ...     element by element, an expression of the operator map over tiles and
 *                       numbers; tiles that lack an axis are spread along it
 *   largest  T, A       over the axis that T lacks, or over the parts of A; total T, A: the sum
 *   grown    T          the steps up to its end run if an entry of the line T exceeds `number`, and
 *                       may run if none does
 *   store    X <- T     what lies inside the box
 *
 * A *late* product of a loop that is ahead is that of the iteration before: it reads a fragment as
 * that iteration left it, and that iteration's copies.  The first iteration has none, and that of
 * the last one follows the loop, after a wait for all loads.
 *
 * What relies on it: super (search and proof), gen (which prints it as CUDA C).
 */
#ifndef SUPER_BLOCK_H
#define SUPER_BLOCK_H

#include "base/str.h"
#include "ir/ir.h"
#include "shape/block_shape.h"

/* Limits of a program; its arrays have these sizes. */
enum {
    BLOCK_NONE = -1,
    BLOCK_MOST_AXES = 4,
    BLOCK_MOST_OPERANDS = 14,
    BLOCK_MOST_TILES = 24,
    BLOCK_MOST_STAGES = 16,
    BLOCK_MOST_STEPS = 48,
    BLOCK_MOST_SOURCES = 12
};

/* Lanes that share a row of a fragment; lane i has columns 2 i and 2 i + 1 of each eight. */
enum { BLOCK_ROW_LANES = 4 };

/* An axis of the box that a task computes, and how it is cut into tiles. */
typedef struct block_axis {
    const char *name;
    /* entries of the whole axis, of which a task's box has lo <= i < hi */
    int64_t extent;
    /* entries of a tile, at least 1; the last tile of an axis may reach beyond its end */
    int32_t tile;
    bool is_cut; /* a task has a part of it; else all of it */
    /* 0; or the axis counts rows of so many entries, and the iterations of a loop take a tile of
     * each row before they go on along the rows: of k = [kernel, channels] all entries of the
     * kernel for the first channels, then for the next */
    int64_t run;
} block_axis;

/* A tensor in global memory. */
typedef struct block_operand {
    const char *name; /* of its constants in an instance: "x" for in_x, g_x */
    ir_dtype dtype;
    int64_t stride[BLOCK_MOST_AXES]; /* in entries; 0: the same for all entries of the axis */
    /* NULL, or the tensor is read in windows (conv): its places and entries are the axes that
     * have a stride; that of the places is marked by the stride 1, which says nothing more */
    const block_window *window;
} block_operand;

typedef enum block_space { BLOCK_SHARED, BLOCK_FRAGMENT } block_space;

/* A tile: up to two axes, in shared memory or in registers. */
typedef struct block_tile {
    const char *name;
    block_space space;
    ir_dtype dtype;
    int8_t axis[2]; /* axes of its rows and columns; BLOCK_NONE: it has only one */
    uint8_t layout; /* shared: one of BLOCK_PLAIN, BLOCK_SWIZZLED, BLOCK_PADDED */
    uint8_t stages; /* shared: copies, one for each iteration of its loop that is in flight */
    /* shared, of windows: 0, or the tile is a patch of so many pixels (shape/block_shape.h), which
     * is loaded once for each tile of channels and read in all iterations over the kernel */
    int32_t patch;
    /* fragment: partial sums, each over other entries of the axis that is summed over; 0, 1: one */
    uint8_t parts;
    /* a line in BLOCK_ROW_LANES parts: of the columns that each lane of a row has, not each warp */
    bool is_by_lane;
    /* fragment: its columns are what another product sums over; the warps along that sum have 16
     * columns each in turn */
    bool is_shared_out;
} block_tile;

typedef enum block_bound { BLOCK_END_OF_AXIS, BLOCK_CAUSAL, BLOCK_WINDOW } block_bound;

/* In the order of the table above; block.c has their names in the same order. */
typedef enum block_verb {
    BLOCK_LOOP,
    BLOCK_END,
    BLOCK_SYNC,
    BLOCK_WAIT,
    BLOCK_TURN,
    BLOCK_PASS,
    BLOCK_LOAD,
    BLOCK_FILL,
    BLOCK_MULTIPLY,
    BLOCK_ADD,
    BLOCK_BOUND,
    BLOCK_MAP,
    BLOCK_LARGEST,
    BLOCK_TOTAL,
    BLOCK_GROWN,
    BLOCK_STORE
} block_verb;

/* One step; the fields that its verb does not use keep what block_add_step gave them. */
typedef struct block_step {
    block_verb verb;
    /* the tile that is written; of a store the one that is read; BLOCK_NONE: none */
    int8_t to;
    int8_t from[BLOCK_MOST_SOURCES]; /* [n_from] tiles */
    uint8_t n_from;
    int8_t axis; /* loop, bound: the axis */
    /* load, store: index of the program's operand */
    int8_t operand;
    /* loop: iterations that its loads are issued early, 0 to stages - 1; wait, turn: groups
     * that may still be in flight */
    uint8_t ahead, pending;
    bool is_late; /* multiply: of the iteration before */
    block_bound bound;
    double number;          /* fill, bound, grown */
    const char *expression; /* map: of x0 ..., in the order of `from` */
} block_step;

/* What multiplies: tensor cores on 16-bit entries (mma), or each thread its own entries in fp32
 * (fma). */
typedef enum block_unit { BLOCK_MMA, BLOCK_FMA } block_unit;

/* The arrays have fixed sizes, so a program is copied by assignment; nothing in it is owned.  Names
 * and expressions must live as long as it does. */
typedef struct block_program {
    const char *name;
    uint32_t n_axes, n_operands, n_tiles, n_steps;
    block_axis axes[BLOCK_MOST_AXES];
    block_operand operands[BLOCK_MOST_OPERANDS];
    block_tile tiles[BLOCK_MOST_TILES];
    block_step steps[BLOCK_MOST_STEPS];
    block_unit unit;
    /* mma: four warps multiply together (wgmma), 64 rows of sums each four, which run in the
     * background up to the next wait; tiles lie as the tensor cores read them from shared memory */
    bool by_groups;
    /* warps along rows, along columns and along the axis that is summed over; their product is
     * the worker's eight warps */
    uint8_t warps[3];
    /* bytes of scratch that it may take: what tiles leave is for operands of an end by rows */
    uint32_t room;
} block_program;

/* ---- building: each returns the index of what it added, or takes the program's side ---- */

/* Building never fails: code that builds programs stays below the BLOCK_MOST_ limits, and
 * block_verify checks what was built. */
int8_t block_add_axis(block_program *p, const char *name, int64_t extent, int32_t tile,
                      bool is_cut);
int8_t block_add_tile(block_program *p, block_tile t);
/* Add a fragment of fp32, in one part. */
int8_t block_add_fragment(block_program *p, const char *name, int8_t rows, int8_t columns);
/* The offset of an entry of an operand with windows, in entries; -1: it lies in the padding, and
 * is 0. */
int64_t block_window_offset(const block_window *w, int64_t place, int64_t entry);
/* The pixels of the patch that `places` places need, wherever a task begins that has whole lines or
 * a part of one; 0: the window is of no form that patches have, or its kernel has one entry. */
int32_t block_patch_of(const block_window *w, int32_t places);
/* Iterations of a loop over the axis before its next tile of a run: 1 without runs.  And the first
 * entry of an iteration, from the box's beginning on. */
int64_t block_rounds(const block_axis *a);
int64_t block_iteration_begin(const block_axis *a, int64_t iteration);
/* Append a step, zeroed but for its verb and tile, to be filled in; valid until the program is
 * copied. */
block_step *block_add_step(block_program *p, block_verb verb, int8_t to);

/* ---- facts ---- */

/* Entries of a tile along its rows (0) or columns (1); without that axis 1. */
int32_t block_extent(const block_program *p, int8_t tile, int side);
/* Of a shared tile: bytes of a row, which warpgroups' products find 128 bytes apart (of these the
 * tile's come first, then zeros); of one copy, of all. */
uint32_t block_row_bytes(const block_program *p, int8_t tile);
uint32_t block_copy_bytes(const block_program *p, int8_t tile);
/* How a program ends, if by rows: steps `first` to `last` load fragments, map them, and store the
 * result, all over the same rows and columns, and of it columns are neighbours in memory.  Such an
 * end goes through shared memory, where its sums are laid out, so that a thread has entries that
 * are neighbours.  sums: the fragments that it begins with.  false: it ends otherwise. */
typedef struct block_end {
    uint32_t first, last, n_sums;
    int8_t sums[2];
} block_end;
bool block_find_end(const block_program *p, block_end *out);
/* Where step i of an end by rows finds its operand's entries in scratch; 0: threads load them in
 * the end.  Operands that have an entry of 16 bits for each of the result, rows of which are whole
 * pieces apart, are copied there when the loop over the depth has no tiles left to load, as far as
 * there is room. */
uint32_t block_fetched_at(const block_program *p, const block_end *e, uint32_t i);
/* The step of the `end` that belongs to a loop or to `grown`. */
uint32_t block_end_of(const block_program *p, uint32_t step);
/* Has a loop, if it is ahead, a late step? */
bool block_has_late(const block_program *p, uint32_t loop);
/* Is the step a load into shared memory?  And how many groups an iteration of a loop has of them.
 * */
bool block_is_copy(const block_program *p, const block_step *s);
uint32_t block_groups_of(const block_program *p, uint32_t loop);
/* The fragment whose parts are added up to `tile`; or tile itself. */
int8_t block_parts_of(const block_program *p, int8_t tile);

/* Where a shared tile begins in scratch, and the bytes of scratch that a program needs: its shared
 * tiles, or what `add` or an end by rows needs in their place if that is more. */
uint32_t block_offset(const block_program *p, int8_t tile);
uint32_t block_scratch_bytes(const block_program *p);
/* Registers of a thread that hold sums. */
uint32_t block_registers(const block_program *p);
/* The time that a warp takes to read matrices of 8 x 16 bytes from a shared tile (mma), or its
 * pieces of 16 bytes (fma), as a multiple of the time without bank conflicts: counted from the
 * addresses. */
uint32_t block_conflicts(const block_program *p, int8_t tile);

/* The text form, a line each. */
void block_print(const block_program *p, text *out);

/* MPK_EVERIFY, with the step that breaks a rule: shapes, spaces, bounds and layouts agree, warps
 * divide tiles, loads and waits stand where they may.  What only a run shows (a read before its
 * load has arrived) is checked by block_run. */
mpk_status block_verify(mpk_context *cx, const block_program *p);

/* ---- running over finite fields ---- */

/* One stored entry: `at` is operand * 2^56 + offset, `value` the number modulo FIELD_P.  The
 * part for exponents is not kept: what is stored stands outside of exponentials. */
typedef struct block_stored {
    uint64_t at;
    uint32_t value;
} block_stored;

/* One run: a box lo .. hi for each axis; inputs follow from `seed`; what is the largest of some
 * values is a random number that follows from `shift`, because no result may depend on it (a
 * softmax is the same whatever is subtracted).  Nothing in a field is larger than something else:
 * whether the steps after a `grown` run follows from `shift` too, and `is_inverted` inverts each of
 * these decisions. */
typedef struct block_run_of {
    int64_t lo[BLOCK_MOST_AXES], hi[BLOCK_MOST_AXES];
    uint64_t seed, shift;
    bool is_inverted;
    VEC(block_stored) stored; /* sorted by `at` */
} block_run_of;

/* Run a program.  Everything is allocated from `a`.  MPK_EVERIFY: a tile is read before it is
 * there, or written while it may be read, or an entry is stored twice; the step is named. */
mpk_status block_run(mpk_context *cx, arena *a, const block_program *p, block_run_of *run);

#endif
