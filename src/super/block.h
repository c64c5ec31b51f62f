/* block.h - block programs: what the threads of a worker do for one task (paper §4.2), below the
 * operators.
 *
 * A program runs over a box of axes (m, n, k ...).  Operands lie in global memory, a stride for
 * each axis; tiles lie in shared memory or in the threads' registers (fragments), each over at most
 * two axes.  A step does one thing to whole tiles.  A *region* is such a program without tiles of
 * its own: every axis whole, everything a fragment, one step for each thing that the operator's
 * definition says.  It defines what is to be computed; a *candidate* is what the search (super.h)
 * proposes, and runs only after both gave the same over finite fields.
 *
 *   loop     AXIS       its tiles, from the box's start.  ahead > 0: loads in it are issued so many
 *                       turns before
 *   end                 of the innermost loop
 *   sync                all threads meet: what they have read may be written over
 *   wait     PENDING    all but the last so many groups of loads have arrived and are seen by all;
 *                       also a sync.  A turn's loads are one group
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
 *   store    X <- T     what lies inside the box
 *
 * What relies on it: super (search and proof), gen (which prints it as CUDA C).
 */
#ifndef SUPER_BLOCK_H
#define SUPER_BLOCK_H

#include "base/str.h"
#include "ir/ir.h"
#include "shape/block_shape.h"

enum {
    BLOCK_NONE = -1,
    BLOCK_MOST_AXES = 4,
    BLOCK_MOST_OPERANDS = 14,
    BLOCK_MOST_TILES = 24,
    BLOCK_MOST_STAGES = 16,
    BLOCK_MOST_STEPS = 48,
    BLOCK_MOST_SOURCES = 12
};

typedef struct block_axis {
    const char *name;
    /* entries of the whole axis, of which a task's box has lo <= i < hi */
    int64_t extent;
    /* entries of a tile, at least 1; the last tile of an axis may reach beyond its end */
    int32_t tile;
    bool is_cut; /* a task has a part of it, else all */
} block_axis;

typedef struct block_operand {
    const char *name; /* of its constants in an instance: "x" for in_x, g_x */
    ir_dtype dtype;
    int64_t stride[BLOCK_MOST_AXES]; /* in entries; 0: the same for all entries of the axis */
    /* or NULL.  Else its places and entries are the axes that have a stride, of which that of the
     * places is 1 and says nothing more */
    const block_window *window;
} block_operand;

typedef enum block_space { BLOCK_SHARED, BLOCK_FRAGMENT } block_space;

typedef struct block_tile {
    const char *name;
    block_space space;
    ir_dtype dtype;
    int8_t axis[2]; /* of its rows and columns; BLOCK_NONE: it has one of these */
    uint8_t layout; /* shared: BLOCK_PLAIN ... */
    uint8_t stages; /* shared: copies, one for each turn of the loop that is under way */
    /* fragment: partial sums, each of other entries of the axis that is summed over */
    uint8_t parts;
    /* fragment: its columns are what another product sums over, each warp along that sum has 16 of
     * them in turn */
    bool is_shared_out;
} block_tile;

typedef enum block_bound { BLOCK_END_OF_AXIS, BLOCK_CAUSAL, BLOCK_WINDOW } block_bound;

typedef enum block_verb {
    BLOCK_LOOP,
    BLOCK_END,
    BLOCK_SYNC,
    BLOCK_WAIT,
    BLOCK_LOAD,
    BLOCK_FILL,
    BLOCK_MULTIPLY,
    BLOCK_ADD,
    BLOCK_BOUND,
    BLOCK_MAP,
    BLOCK_LARGEST,
    BLOCK_TOTAL,
    BLOCK_STORE
} block_verb;

typedef struct block_step {
    block_verb verb;
    /* the tile that is written; of a store the one that is read; BLOCK_NONE: none */
    int8_t to;
    int8_t from[BLOCK_MOST_SOURCES]; /* tiles */
    uint8_t n_from;
    int8_t axis; /* loop, bound */
    /* load, store: of the program's operands */
    int8_t operand;
    /* loop: turns that its loads are issued early, 0 to stages - 1; wait: groups that may still be
     * in flight */
    uint8_t ahead, pending;
    block_bound bound;
    double number;          /* fill, bound */
    const char *expression; /* map: of x0 ..., in the order of `from` */
} block_step;

/* What multiplies: tensor cores on 16-bit entries, or a thread its own entries in fp32. */
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
    /* along rows, columns and the axis that is summed over; their product is the worker's warps */
    uint8_t warps[3];
} block_program;

/* ---- building: each returns the index of what it added, or takes the program's side ---- */

/* Building never fails: whoever writes a recipe for programs stays below the BLOCK_MOST_ limits,
 * and block_verify checks what was built. */
int8_t block_add_axis(block_program *p, const char *name, int64_t extent, int32_t tile,
                      bool is_cut);
int8_t block_add_tile(block_program *p, block_tile t);
/* Of fp32, in one part. */
int8_t block_add_fragment(block_program *p, const char *name, int8_t rows, int8_t columns);
/* Offset of an entry of an operand with windows; -1: outside, it is 0. */
int64_t block_window_offset(const block_window *w, int64_t place, int64_t entry);
/* The step, zeroed but for its verb and tile, to be filled in. */
block_step *block_add_step(block_program *p, block_verb verb, int8_t to);

/* ---- facts ---- */

/* Entries of a tile along its rows (0) or columns (1); without that axis 1. */
int32_t block_extent(const block_program *p, int8_t tile, int side);
/* Of a shared tile: bytes of a row, of one copy, of all. */
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
/* The fragment whose parts are added up to `tile`; or tile itself. */
int8_t block_parts_of(const block_program *p, int8_t tile);

/* Where a shared tile begins in scratch, and the bytes of scratch that a program needs: its shared
 * tiles, or what `add` or an end by rows needs in their place if that is more. */
uint32_t block_offset(const block_program *p, int8_t tile);
uint32_t block_scratch_bytes(const block_program *p);
/* Registers of a thread for what products are summed up in. */
uint32_t block_registers(const block_program *p);
/* How many times as long as without conflicts a warp takes to read matrices of 8 x 16 bytes from a
 * shared tile (mma), or its pieces of 16 bytes (fma): counted from the addresses. */
uint32_t block_conflicts(const block_program *p, int8_t tile);

/* The text form, a line each. */
void block_print(const block_program *p, text *out);

/* MPK_EVERIFY, with the step that breaks a rule: shapes, spaces, bounds and layouts agree, warps
 * divide tiles, loads and waits are where they may be.  What a run would show (a read before its
 * load has arrived) is block_run's. */
mpk_status block_verify(mpk_context *cx, const block_program *p);

/* ---- running over finite fields ---- */

/* One stored entry: `at` is operand * 2^56 + offset, `value` the number modulo FIELD_P.  The part
 * of the exponent is not kept: what is stored stands outside of exponentials. */
typedef struct block_stored {
    uint64_t at;
    uint32_t value;
} block_stored;

/* One run: a box lo .. hi for each axis, inputs that follow from `seed`; what is the largest of
 * some values is a random number that follows from `shift`, for nothing may depend on it. */
typedef struct block_run_of {
    int64_t lo[BLOCK_MOST_AXES], hi[BLOCK_MOST_AXES];
    uint64_t seed, shift;
    VEC(block_stored) stored; /* sorted by `at` */
} block_run_of;

/* Everything is allocated from a.  MPK_EVERIFY: a tile is read before it is there, or written while
 * it may be read, or an entry is stored twice; the step is named. */
mpk_status block_run(mpk_context *cx, arena *a, const block_program *p, block_run_of *run);

#endif
