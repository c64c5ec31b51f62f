/* block_run.c - a block program run over finite fields (block.h, field.h), which proves that two
 * compute the same.
 *
 * Input: a program that block_verify has accepted, a box and seeds.  Output: what it stores, or
 * the race that it has.  Called by prove.c, for the region and for the candidate.
 *
 * Shared tiles are memory: a copy of a tile is addressed as the device does it; it is in flight
 * from its load until a wait has let its group arrive, and may be written again only after a
 * sync that follows its last read.  Threads do not exist here: what any thread may do between
 * two syncs counts as done by all, so an interval number for each copy is enough to find a race.
 * Fragments in parts are kept apart until `add`.  Cost: that of the program, about 3 ns for each
 * product of two numbers.
 *
 *   before the loop: load into copy 0, group 0
 *   iteration 0: wait 0: group 0 has arrived, interval 4.  Load into copy 1, group 1.  The multiply
 *           reads copy 0: read_in = 4
 *   iteration 1: wait 0: interval 6.  Load into copy 0: allowed, because read_in is below 5
 */
#include "super/block.h"

#include <stdlib.h>

#include "op/map_program.h"
#include "super/field.h"

/* Where the operand's number begins in block_stored.at. */
enum { OPERAND_SHIFT = 56 };

/* One copy of a shared tile, as the protocol of loads, waits and syncs sees it. */
typedef struct copy_state {
    bool is_loaded;
    uint32_t group;   /* that its load belongs to */
    uint32_t read_in; /* interval in which it was read last; 0: never */
} copy_state;

/* The entries of a tile. */
typedef struct tile_state {
    /* all copies or parts, one after the other */
    field *at;
    uint32_t pitch, step; /* shared: of a copy, in entries; fragment: of a part */
    copy_state copies[BLOCK_MOST_STAGES];
} tile_state;

/* A block program while it is interpreted. */
typedef struct runner {
    mpk_context *cx;
    arena *arena;
    const block_program *p;
    block_run_of *run;
    tile_state tiles[BLOCK_MOST_TILES];
    int64_t base[BLOCK_MOST_AXES]; /* of the tiles at hand */
    int64_t iteration;             /* of the innermost loop that is ahead */
    /* groups of loads issued and arrived so far, and of an iteration of the loop at hand; the
     * interval: a turn begins one, a sync two, from 2 on; the square that
     * exponentials are powers of; the step at hand, for messages and for `maps` */
    uint32_t groups, arrived, per_iteration, interval, root, step;
    uint64_t n_grown; /* times that `grown` was met */
    /* of the map steps, compiled when they first run */
    map_program *maps[BLOCK_MOST_STEPS];
} runner;

/* MPK_EVERIFY, with the step at hand and the program's name. */
static mpk_status fault(const runner *r, const char *what)
{
    FAIL(r->cx, MPK_EVERIFY, "step %u of block %s: %s", r->step, r->p->name, what);
}

static uint32_t entry_bytes(const block_tile *t)
{
    return ir_dtype_table[t->dtype].block_bytes;
}

/* Entry (row, column) of part or copy number `which`, at the address that the device uses. */
static field *entry(const runner *r, int8_t tile, uint32_t which, uint32_t row, uint32_t column)
{
    const block_tile *t = &r->p->tiles[tile];
    const tile_state *s = &r->tiles[tile];
    if (t->space == BLOCK_FRAGMENT)
        return &s->at[which * s->step + row * s->pitch + column];
    const uint32_t row_bytes = block_row_bytes(r->p, tile), bytes = entry_bytes(t);
    return &s->at[which * s->step + BLOCK_AT(row_bytes, t->layout, row, column * bytes) / bytes];
}

/* The entry of `tile` that belongs to a place (row, column) of another tile: axes are matched by
 * name, and an axis that `tile` lacks counts as 0. */
static field *spread(const runner *r, int8_t tile, uint32_t which, const block_tile *of,
                     uint32_t row, uint32_t column)
{
    const block_tile *t = &r->p->tiles[tile];
    uint32_t at[2] = {0, 0};
    for (int side = 0; side < 2; side++)
        if (t->axis[side] != BLOCK_NONE)
            at[side] = t->axis[side] == of->axis[0] ? row : column;
    return entry(r, tile, which, at[0], at[1]);
}

/* The warp along the sum that has this column of a tile that is shared out. */
static uint32_t part_of(const runner *r, uint32_t column)
{
    return column / BLOCK_MMA_DEPTH % r->p->warps[2];
}

/* A program that was built by hand may say 0 for one part. */
static uint32_t count_parts(const runner *r, int8_t tile)
{
    return r->p->tiles[tile].parts > 1 ? r->p->tiles[tile].parts : 1;
}

/* Entries of the box from the tile's first one on: what lies beyond is outside.  Negative where
 * an iteration begins after the end. */
static int64_t left(const runner *r, int8_t axis)
{
    return axis == BLOCK_NONE ? 1 : r->run->hi[axis] - r->base[axis];
}

/* The copies of a tile are used in turn, as on the device; without a loop that is ahead there is
 * only one. */
static uint32_t copy_of(const runner *r, int8_t tile, int64_t iteration)
{
    const block_tile *t = &r->p->tiles[tile];
    return (uint32_t)((t->patch ? iteration / block_rounds(&r->p->axes[t->axis[1]]) : iteration) %
                      t->stages);
}

/* ---- memory ---- */

/* The offset in an operand with windows: either rows of the tile are its places, or its columns
 * are. */
static int64_t window_offset(const runner *r, const block_operand *o, const block_tile *t,
                             uint32_t row, uint32_t column)
{
    const bool by_rows = o->stride[t->axis[0]] == 1;
    const int64_t first = r->base[t->axis[0]] + (int64_t)row,
                  second = r->base[t->axis[1]] + (int64_t)column;
    return block_window_offset(o->window, by_rows ? first : second, by_rows ? second : first);
}

/* The offset in an operand with strides, in entries. */
static uint64_t offset_of(const runner *r, const block_step *s, const block_tile *t, uint32_t row,
                          uint32_t column)
{
    const block_operand *o = &r->p->operands[s->operand];
    uint64_t offset = 0;
    for (int8_t axis = 0; axis < (int8_t)r->p->n_axes; axis++) {
        int64_t at = r->base[axis];
        if (t->axis[0] == axis)
            at += (int64_t)row;
        else if (t->axis[1] == axis)
            at += (int64_t)column;
        offset += (uint64_t)(at * o->stride[axis]);
    }
    return offset;
}

/* Begin to overwrite a copy.  The invariant of double buffering: between the last read of a copy
 * and its next write lies a sync, or two turns.  A read of the same interval, or of the turn
 * before, may be that of a slower warp. */
static mpk_status claim_copy(runner *r, int8_t tile, uint32_t which)
{
    copy_state *c = &r->tiles[tile].copies[which];
    if (c->read_in + 1 >= r->interval)
        return fault(r, "a load writes over what other warps may still read");
    c->is_loaded = true;
    c->group = r->groups;
    return MPK_OK;
}

/* Load a tile's entries, at the loops' places, into copy or part `which`.  What an operand holds at
 * an offset is a random number of the seed, the same for region and candidate, so nothing has to be
 * stored.  A mask of booleans holds 0 or 1. */
static void load_entries(runner *r, const block_step *s, uint32_t which)
{
    const block_tile *t = &r->p->tiles[s->to];
    const block_operand *o = &r->p->operands[s->operand];
    for (uint32_t row = 0; row < (uint32_t)block_extent(r->p, s->to, 0); row++)
        for (uint32_t column = 0; column < (uint32_t)block_extent(r->p, s->to, 1); column++) {
            bool inside = row < left(r, t->axis[0]) && column < left(r, t->axis[1]);
            uint64_t offset = offset_of(r, s, t, row, column);
            if (o->window) {
                const int64_t at = window_offset(r, o, t, row, column);
                inside = inside && at >= 0;
                offset = (uint64_t)at;
            }
            field *x = entry(r, s->to, which, row, column);
            *x = inside ? field_random(r->run->seed + (uint64_t)s->operand, offset) : (field){0};
            if (o->dtype == IR_BOOL)
                *x = (field){x->p & 1, x->p & 1, false};
        }
}

static mpk_status do_load(runner *r, const block_step *s, int64_t iteration)
{
    const block_tile *t = &r->p->tiles[s->to];
    const bool is_shared = t->space == BLOCK_SHARED;
    const uint32_t which = is_shared ? copy_of(r, s->to, iteration) : 0;
    if (is_shared)
        TRY(claim_copy(r, s->to, which));
    load_entries(r, s, which);
    return MPK_OK;
}

/* The loads of an iteration's patch: in the first iteration over the kernel all that the iterations
 * read, each by itself, as if it were a tile of its own; in the others none. */
static mpk_status do_load_patch(runner *r, const block_step *s, int64_t iteration)
{
    const int8_t axis = r->p->tiles[s->to].axis[1];
    const int64_t rounds = block_rounds(&r->p->axes[axis]), kept = r->base[axis];
    const uint32_t which = copy_of(r, s->to, iteration);
    if (iteration % rounds)
        return MPK_OK;
    TRY(claim_copy(r, s->to, which));
    for (int64_t i = 0; i < rounds; i++) {
        r->base[axis] = r->run->lo[axis] + block_iteration_begin(&r->p->axes[axis], iteration + i);
        load_entries(r, s, which * (uint32_t)rounds + (uint32_t)i);
    }
    r->base[axis] = kept;
    return MPK_OK;
}
/* Store a tile.  Entries outside the box are cut off here, as they are on the device, so a
 * program may compute anything for them. */
static mpk_status do_store(runner *r, const block_step *s)
{
    const block_tile *t = &r->p->tiles[s->to];
    for (uint32_t row = 0; row < (uint32_t)block_extent(r->p, s->to, 0); row++)
        for (uint32_t column = 0; column < (uint32_t)block_extent(r->p, s->to, 1); column++)
            if (row < left(r, t->axis[0]) && column < left(r, t->axis[1])) {
                uint64_t at =
                    (uint64_t)s->operand << OPERAND_SHIFT | offset_of(r, s, t, row, column);
                block_stored stored = {at, entry(r, s->to, 0, row, column)->p};
                PUSH(r->cx, r->arena, &r->run->stored, stored);
            }
    return MPK_OK;
}

/* ---- arithmetic ---- */

/* Note that this iteration's copy of a shared tile is read in this interval (*which: its number),
 * and fault if it has not arrived.  Fragments are always there. */
static mpk_status touch(runner *r, int8_t tile, uint32_t *which)
{
    *which = 0;
    if (r->p->tiles[tile].space == BLOCK_FRAGMENT)
        return MPK_OK;
    *which = copy_of(r, tile, r->iteration - r->p->steps[r->step].is_late);
    copy_state *c = &r->tiles[tile].copies[*which];
    if (!c->is_loaded || c->group >= r->arrived)
        return fault(r, "it reads a tile whose load has not arrived");
    c->read_in = r->interval;
    if (r->p->tiles[tile].patch) { /* this iteration's part of it */
        const int64_t rounds = block_rounds(&r->p->axes[r->p->tiles[tile].axis[1]]);
        *which = *which * (uint32_t)rounds + (uint32_t)(r->iteration % rounds);
    }
    return MPK_OK;
}

/* sum[..] += x * factors[..]; each of the two fields takes one remainder for each number. */
static void add_products(field *sum, field x, const field *factors, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        sum[i].p = (uint32_t)((sum[i].p + (uint64_t)x.p * factors[i].p) % FIELD_P);
        sum[i].q = (uint32_t)((sum[i].q + (uint64_t)x.q * factors[i].q) % FIELD_Q);
    }
}

/* Multiply over the axis that the result lacks.  Partial sum number i takes every i-th field of
 * BLOCK_MMA_DEPTH entries along it, as the warps on the device do. */
static mpk_status do_multiply(runner *r, const block_step *s)
{
    const block_tile *y = &r->p->tiles[s->to], *a = &r->p->tiles[s->from[0]];
    const int inner = a->axis[0] == y->axis[0];
    const uint32_t rows = (uint32_t)block_extent(r->p, s->to, 0),
                   columns = (uint32_t)block_extent(r->p, s->to, 1);
    const uint32_t depth = (uint32_t)block_extent(r->p, s->from[0], inner),
                   parts = y->parts > 1 ? y->parts : 1;
    const block_tile of_a = {.axis = {y->axis[0], a->axis[inner]}},
                     of_b = {.axis = {a->axis[inner], y->axis[1]}};
    uint32_t copy_a, copy_b;
    arena_mark mark = arena_get_mark(r->arena);
    field *factors;
    TRY(touch(r, s->from[0], &copy_a));
    TRY(touch(r, s->from[1], &copy_b));
    NEW(r->cx, r->arena, factors, columns);
    for (uint32_t k = 0; k < depth; k++) {
        for (uint32_t column = 0; column < columns; column++)
            factors[column] = *spread(r, s->from[1], copy_b, &of_b, k, column);
        for (uint32_t row = 0; row < rows; row++)
            add_products(entry(r, s->to, k / BLOCK_MMA_DEPTH % parts, row, 0),
                         *spread(r, s->from[0], copy_a, &of_a, row, k), factors, columns);
    }
    arena_reset(r->arena, mark);
    return MPK_OK;
}

/* Is the function a test?  Of an unknown test both answers must occur, so that both sides of a
 * choice are stored. */
static bool gives_truth(const map_function *f)
{
    return f->rule == MAP_TEST || f->rule == MAP_FLOAT_TEST || f->rule == MAP_LOGIC;
}

/* One function of an expression.  What has laws that programs rely on (sums, products, exp,
 * equality) is computed; all else is an unknown function: the same for equal arguments, and
 * random. */
static field call(const runner *r, const map_step *m, const field *x)
{
    const map_function *f = &map_functions[m->number];
    if (m->number == MAP_NEGATE)
        return field_negate(x[0]);
    if (m->number == MAP_ADD)
        return field_add(x[0], x[1]);
    if (m->number == MAP_SUBTRACT)
        return field_subtract(x[0], x[1]);
    if (m->number == MAP_MULTIPLY)
        return field_multiply(x[0], x[1]);
    if (m->number == MAP_DIVIDE)
        return field_multiply(x[0], field_inverse(x[1]));
    if (f->rule == MAP_CHOICE)
        return x[0].p ? x[1] : x[2];
    if (strcmp(f->name, "==") == 0 || strcmp(f->name, "!=") == 0)
        return field_of((x[0].p == x[1].p) == (f->name[0] == '='));
    if (strcmp(f->name, "exp") == 0)
        return field_exp(x[0], r->root);
    uint64_t name = hash_bytes(f->name, strlen(f->name), 0);
    const field y =
        field_unknown(strcmp(f->name, "max") == 0 ? name ^ r->run->shift : name, x, f->arity);
    return gives_truth(f) ? field_of(y.p & 1) : y;
}

/* One step of a compiled expression, x: the operands, of: the step's arguments. */
static field value_of(const runner *r, const map_step *s, const field *x, const field *of)
{
    switch (s->kind) {
    case MAP_INPUT:
        return x[s->number];
    case MAP_NUMBER:
        return field_of(s->type == MAP_F || s->type == MAP_D ? s->real : (double)s->whole);
    case MAP_CALL:
        return call(r, s, of);
    default:
        return of[0];
    }
}

/* Evaluate an expression.  Rounding and conversions between floats change nothing here: programs
 * are proved equal as if numbers were exact, and the dtypes of sums are fixed by the rules
 * instead. */
static field evaluate(const runner *r, const map_program *m, const field *x)
{
    field v[MAP_STEPS];
    for (uint32_t i = 0; i < m->n; i++) {
        const map_step *s = &m->steps[i];
        const field of[MAP_ARGUMENTS] = {v[s->arg[0]], v[s->arg[1]], v[s->arg[2]]};
        v[i] = value_of(r, s, x, of);
    }
    return v[m->result];
}

/* Map one entry; of sources in parts the part of the warp that has the entry. */
static void map_entry(runner *r, const block_step *s, const map_program *m, uint32_t part,
                      uint32_t row, uint32_t column)
{
    const block_tile *y = &r->p->tiles[s->to];
    const uint32_t own = y->is_shared_out ? part_of(r, column) : part;
    field x[BLOCK_MOST_SOURCES];
    for (uint32_t i = 0; i < s->n_from; i++)
        x[i] = *spread(r, s->from[i], count_parts(r, s->from[i]) > 1 ? own : 0, y, row, column);
    *entry(r, s->to, part, row, column) = evaluate(r, m, x);
}

/* Map a tile.  An expression is compiled when its step first runs. */
static mpk_status do_map(runner *r, const block_step *s)
{
    static const ir_dtype dtypes[BLOCK_MOST_SOURCES] = {IR_F32};
    map_program **m = &r->maps[r->step];
    if (!*m) {
        NEW(r->cx, r->arena, *m, 1);
        TRY(map_compile(r->cx, str_from(s->expression), s->n_from, dtypes, *m));
    }
    for (uint32_t row = 0; row < (uint32_t)block_extent(r->p, s->to, 0); row++)
        for (uint32_t column = 0; column < (uint32_t)block_extent(r->p, s->to, 1); column++)
            for (uint32_t part = 0; part < count_parts(r, s->to); part++)
                map_entry(r, s, *m, part, row, column);
    return MPK_OK;
}

/* A row under reduction: the sum, and a hash of the values seen. */
typedef struct reduction {
    field total;
    uint64_t key;
    uint32_t n;
} reduction;

static void reduce_one(reduction *d, field x)
{
    d->total = field_add(d->total, x);
    d->key = rng_u64(d->key, (uint64_t)x.p << 32 | x.q);
    d->n++;
}

/* Does this part of a line have the column of a tile's row? */
static bool has_column(const runner *r, const block_tile *x, const block_tile *line, uint32_t part,
                       uint32_t column)
{
    if (line->is_by_lane)
        return column % BLOCK_MMA_COLUMNS / 2 == part;
    return !x->is_shared_out || part_of(r, column) == part;
}

/* Reduce row `row` for one part of the result: over the parts of a line, or over the columns
 * that this part has. */
static void reduce_row(runner *r, const block_step *s, uint32_t part, uint32_t row)
{
    const block_tile *x = &r->p->tiles[s->from[0]];
    reduction d = {.key = r->run->shift};
    if (x->axis[1] == BLOCK_NONE)
        for (uint32_t i = 0; i < count_parts(r, s->from[0]); i++)
            reduce_one(&d, *entry(r, s->from[0], i, row, 0));
    else
        for (uint32_t i = 0; i < (uint32_t)block_extent(r->p, s->from[0], 1); i++)
            if (has_column(r, x, &r->p->tiles[s->to], part, i))
                reduce_one(&d, *entry(r, s->from[0], 0, row, i));
    *entry(r, s->to, part, row, 0) = s->verb == BLOCK_TOTAL ? d.total : field_random(d.key, d.n);
}

/* Sums add up.  The largest is a random number that follows from the values, so that equal
 * values give equal ones, and from the run's shift. */
static void do_reduce(runner *r, const block_step *s)
{
    for (uint32_t part = 0; part < count_parts(r, s->to); part++)
        for (uint32_t row = 0; row < (uint32_t)block_extent(r->p, s->to, 0); row++)
            reduce_row(r, s, part, row);
}

static void do_fill(runner *r, const block_step *s)
{
    const tile_state *t = &r->tiles[s->to];
    const uint32_t parts = r->p->tiles[s->to].parts;
    for (uint32_t i = 0; i < t->step * (parts > 1 ? parts : 1); i++)
        t->at[i] = field_of(s->number);
}

/* Does a bound mask this entry? */
static bool is_out(const runner *r, const block_step *s, uint32_t row, uint32_t column)
{
    const block_tile *t = &r->p->tiles[s->to];
    if (s->bound == BLOCK_END_OF_AXIS)
        return (t->axis[0] == s->axis ? row : column) >= left(r, s->axis);
    const int64_t after = r->base[t->axis[1]] + column - (r->base[t->axis[0]] + row);
    return s->bound == BLOCK_CAUSAL ? after > 0 : after <= -(int64_t)s->number;
}

static void do_bound(runner *r, const block_step *s)
{
    for (uint32_t row = 0; row < (uint32_t)block_extent(r->p, s->to, 0); row++)
        for (uint32_t column = 0; column < (uint32_t)block_extent(r->p, s->to, 1); column++)
            if (is_out(r, s, row, column))
                *entry(r, s->to, 0, row, column) = (field){.lowest = true};
}

/* Add the warps' parts into one.  The device may add them in any fixed order, which makes no
 * difference in a field. */
static void do_add(runner *r, const block_step *s)
{
    const tile_state *y = &r->tiles[s->to], *a = &r->tiles[s->from[0]];
    for (uint32_t i = 0; i < y->step; i++) {
        y->at[i] = (field){0};
        for (uint32_t part = 0; part < r->p->tiles[s->from[0]].parts; part++)
            y->at[i] = field_add(y->at[i], a->at[part * a->step + i]);
    }
}

/* ---- steps ---- */

/* One step of a program, for the whole block at once; loops, and the loads in them, are
 * do_steps'. After a wait all groups of loads have arrived but the `pending` that were begun
 * last.
 */
static mpk_status do_step(runner *r, const block_step *s)
{
    switch (s->verb) {
    case BLOCK_SYNC:
        r->interval += 2;
        return MPK_OK;
    case BLOCK_WAIT:
        r->interval += 2;
        r->arrived = r->groups - s->pending;
        return MPK_OK;
    case BLOCK_TURN: /* the other warpgroup has waited in its turn before this */
        r->interval++;
        r->arrived = r->groups - r->per_iteration - s->pending;
        return MPK_OK;
    case BLOCK_PASS:
        return MPK_OK;
    case BLOCK_STORE:
        return do_store(r, s);
    case BLOCK_MULTIPLY:
        return do_multiply(r, s);
    case BLOCK_MAP:
        return do_map(r, s);
    case BLOCK_FILL:
        do_fill(r, s);
        return MPK_OK;
    case BLOCK_BOUND:
        do_bound(r, s);
        return MPK_OK;
    case BLOCK_ADD:
        do_add(r, s);
        return MPK_OK;
    default:
        do_reduce(r, s);
        return MPK_OK;
    }
}

/* Issue those loads of an iteration of a loop that is ahead which stand together from step `first`
 * on: one group, which may be empty.  An iteration beyond the end still counts as a group, as it
 * does on the device, so that `pending` means the same in the last iterations. */
static mpk_status load_group(runner *r, const block_step *loop, uint32_t first, int64_t iteration)
{
    const block_axis *a = &r->p->axes[loop->axis];
    const int64_t kept = r->base[loop->axis], lo = r->run->lo[loop->axis];
    const bool is_there = lo + iteration * a->tile < r->run->hi[loop->axis];
    const uint32_t step = r->step;
    r->base[loop->axis] = lo + block_iteration_begin(a, iteration);
    for (r->step = first; is_there && block_is_copy(r->p, &r->p->steps[r->step]); r->step++) {
        const block_step *load = &r->p->steps[r->step];
        TRY((r->p->tiles[load->to].patch ? do_load_patch : do_load)(r, load, iteration));
    }
    r->base[loop->axis] = kept;
    r->step = step;
    r->groups++;
    return MPK_OK;
}

/* Issue all loads of an iteration, before the loop. */
static mpk_status load_iteration(runner *r, uint32_t loop, uint32_t end, int64_t iteration)
{
    const block_step *steps = r->p->steps;
    for (uint32_t i = loop + 1; i < end; i++)
        if (block_is_copy(r->p, &steps[i]) && !block_is_copy(r->p, &steps[i - 1]))
            TRY(load_group(r, &steps[loop], i, iteration));
    return MPK_OK;
}

static mpk_status do_steps(runner *r, uint32_t first, uint32_t end, const block_step *ahead);

/* After a loop: the late steps of its last iteration, when all loads have arrived. */
static mpk_status do_late(runner *r, uint32_t loop, uint32_t end, int64_t n_iterations)
{
    r->arrived = r->groups;
    r->interval += 2;
    r->iteration = n_iterations;
    for (r->step = loop + 1; r->step < end; r->step++)
        if (r->p->steps[r->step].is_late)
            TRY(do_step(r, &r->p->steps[r->step]));
    return MPK_OK;
}

/* Run a loop.  The loads of the first `ahead` iterations are issued before it; each iteration then
 * issues those of the iteration `ahead` later. */
static mpk_status do_loop(runner *r, uint32_t loop, uint32_t end)
{
    const block_step *s = &r->p->steps[loop];
    const int64_t lo = r->run->lo[s->axis], hi = r->run->hi[s->axis], kept = r->base[s->axis];
    int64_t iteration = 0;
    r->per_iteration = block_groups_of(r->p, loop);
    for (uint32_t i = 0; i < s->ahead; i++)
        TRY(load_iteration(r, loop, end, i));
    for (int64_t at = lo; at < hi; iteration++, at += r->p->axes[s->axis].tile) {
        r->base[s->axis] = lo + block_iteration_begin(&r->p->axes[s->axis], iteration);
        if (s->ahead)
            r->iteration = iteration;
        TRY(do_steps(r, loop + 1, end, s->ahead ? s : NULL));
    }
    r->base[s->axis] = kept;
    return block_has_late(r->p, loop) ? do_late(r, loop, end, iteration) : MPK_OK;
}

/* Do the steps after `grown` run? */
static bool has_grown(runner *r)
{
    return (rng_u64(r->run->shift, 1000 + r->n_grown++) & 1) != r->run->is_inverted;
}

/* Run steps first ... end - 1.  ahead: the loop around them, if it is ahead; its loads then stand
 * for those of a later iteration. */
static mpk_status do_steps(runner *r, uint32_t first, uint32_t end, const block_step *ahead)
{
    for (uint32_t i = first; i < end; i++) {
        const block_step *s = &r->p->steps[i];
        r->step = i;
        if (s->is_late && r->iteration == 0) {
            continue; /* there is none before */
        } else if (s->verb == BLOCK_LOOP) {
            uint32_t last = block_end_of(r->p, i);
            TRY(do_loop(r, i, last));
            i = last;
        } else if (s->verb == BLOCK_GROWN) {
            uint32_t last = block_end_of(r->p, i);
            if (has_grown(r))
                TRY(do_steps(r, i + 1, last, ahead));
            i = last;
        } else if (s->verb != BLOCK_LOAD) {
            TRY(do_step(r, s));
        } else if (!block_is_copy(r->p, s)) {
            TRY(do_load(r, s, 0));
        } else if (!ahead) {
            TRY(do_load(r, s, 0));
            r->groups++;
        } else {
            TRY(load_group(r, ahead, i, r->iteration + ahead->ahead));
            while (block_is_copy(r->p, s + 1))
                s++, i++;
        }
    }
    return MPK_OK;
}

/* Give every tile its memory.  It begins with random numbers instead of zeros, so that a program
 * which relies on cleared memory is refused. */
static mpk_status prepare(runner *r)
{
    for (int8_t i = 0; i < (int8_t)r->p->n_tiles; i++) {
        const block_tile *t = &r->p->tiles[i];
        tile_state *s = &r->tiles[i];
        const bool is_shared = t->space == BLOCK_SHARED;
        s->pitch = (uint32_t)block_extent(r->p, i, 1);
        s->step = is_shared ? block_copy_bytes(r->p, i) / entry_bytes(t)
                            : (uint32_t)block_extent(r->p, i, 0) * s->pitch;
        if (t->patch) /* what each iteration over the kernel reads, by itself */
            s->step = (uint32_t)block_extent(r->p, i, 0) *
                      BLOCK_PITCH(block_row_bytes(r->p, i), t->layout) / entry_bytes(t);
        const uint32_t rounds = t->patch ? (uint32_t)block_rounds(&r->p->axes[t->axis[1]]) : 1;
        const uint32_t parts = t->parts > 1 ? t->parts : 1,
                       n = s->step * rounds * (is_shared ? t->stages : parts);
        NEW(r->cx, r->arena, s->at, n);
        for (uint32_t k = 0; k < n; k++)
            s->at[k] = field_random(r->run->shift + 1 + (uint64_t)i, k);
    }
    memcpy(r->base, r->run->lo, sizeof r->base);
    return MPK_OK;
}

static int compare_stored(const void *a, const void *b)
{
    const block_stored *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* The root is a random square (field.h). What was stored is sorted by place, so that the caller
 * can compare two programs' entry by entry; a place that comes twice is a fault.
 */
mpk_status block_run(mpk_context *cx, arena *a, const block_program *p, block_run_of *run)
{
    runner *r;
    NEW(cx, a, r, 1);
    *r = (runner){.cx = cx, .arena = a, .p = p, .run = run, .interval = 2};
    const uint32_t square = field_random(run->seed, UINT64_MAX / 2).p;
    r->root = field_power(square, 2, FIELD_P);
    memset(&run->stored, 0, sizeof run->stored);
    TRY(prepare(r));
    TRY(do_steps(r, 0, p->n_steps, NULL));
    if (run->stored.n) /* qsort takes no NULL */
        qsort(run->stored.at, run->stored.n, sizeof *run->stored.at, compare_stored);
    for (size_t i = 1; i < run->stored.n; i++)
        if (run->stored.at[i].at == run->stored.at[i - 1].at)
            return fault(r, "it stores an entry twice");
    return MPK_OK;
}
