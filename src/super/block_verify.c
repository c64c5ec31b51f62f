/* block_verify.c - the rules of block programs that hold whatever is computed (block.h): numbers
 * name something, tiles fit their axes, spaces are those that a step can use, loads and waits
 * stand in loops that are ahead.
 *
 * Input: a program, built by any means.  Output: MPK_OK, or MPK_EVERIFY with the step.  A
 * program that keeps the rules can be run and printed as CUDA C: block_run and the printer
 * (gen/block_print.c) index arrays by its numbers without looking again.  Called for each
 * candidate of a search, most of which fail here, and once more before a proof.
 */
#include "super/block.h"

/* Warps of a worker; the most loops inside each other. */
enum { WARPS = 8, MOST_DEPTH = 4 };
/* A product of warpgroups: rows of all of them; the most columns and entries of the sum, and the
 * fewest columns. */
enum { GROUP_ROWS = 128, GROUP_MOST = 64, GROUP_LEAST = 32 };

/* The walk over the steps. */
typedef struct checker {
    mpk_context *cx;
    const block_program *p;
    /* loops that are open, and the step under examination */
    uint32_t depth, at;
    /* of the open loops, the outermost first: their steps, and what these say */
    uint32_t loop[MOST_DEPTH];
    uint8_t ahead[MOST_DEPTH];
    int8_t axis[MOST_DEPTH];
    bool grown;       /* the steps at hand stand after one */
    bool turn;        /* the steps at hand stand between a turn and its pass */
    uint32_t n_turns; /* of the loop at hand */
} checker;

/* CHECK with the step added to the message. */
#define RULE(c, condition, ...)                                                         \
    do {                                                                                \
        if (!(condition))                                                               \
            return status_note((c)->cx, status_fail((c)->cx, MPK_EVERIFY, __VA_ARGS__), \
                               "at step %u of block %s", (c)->at, (c)->p->name);        \
    } while (0)

static bool is_tile(const checker *c, int8_t tile)
{
    return tile >= 0 && tile < (int8_t)c->p->n_tiles;
}

static bool is_axis(const checker *c, int8_t axis)
{
    return axis >= 0 && axis < (int8_t)c->p->n_axes;
}

/* Has a tile this axis?  "No axis" is an axis of every tile: a line fits a tile that has its one
 * axis. */
static bool has_axis(const block_tile *t, int8_t axis)
{
    return axis == BLOCK_NONE || t->axis[0] == axis || t->axis[1] == axis;
}

/* Are all axes of `part` axes of `whole`? */
static bool is_within(const block_tile *part, const block_tile *whole)
{
    return has_axis(whole, part->axis[0]) && has_axis(whole, part->axis[1]);
}

static bool is_power_of_2(uint32_t n)
{
    return n && !(n & (n - 1));
}

/* Shared tiles hold what the unit reads: 16-bit entries for tensor cores, 32-bit ones for fma.
 * Rows are whole pieces of 16 bytes, which one copy instruction moves; swizzling needs a power
 * of two, since it permutes by exclusive or. */
static mpk_status check_shared(mpk_context *cx, const block_program *p, int8_t i)
{
    const block_tile *t = &p->tiles[i];
    const uint32_t row = block_row_bytes(p, i), bytes = ir_dtype_table[t->dtype].block_bytes;
    CHECK(cx, bytes == (p->unit == BLOCK_MMA ? 2u : 4u), MPK_EVERIFY,
          "tile %s of block %s: its entries have %u bytes", t->name, p->name, bytes);
    CHECK(cx,
          t->axis[0] != BLOCK_NONE && t->axis[1] != BLOCK_NONE && row % 16 == 0 &&
              t->layout < BLOCK_LAYOUTS && (t->layout != BLOCK_SWIZZLED || is_power_of_2(row)) &&
              t->stages >= 1 && t->stages <= BLOCK_MOST_STAGES && t->parts <= 1,
          MPK_EVERIFY,
          "tile %s of block %s cannot lie in shared memory: %u bytes a row, layout %u, %u copies",
          t->name, p->name, row, t->layout, t->stages);
    return MPK_OK;
}

/* Fragments are fp32 and divide among the warps in whole fields of the unit (BLOCK_SIDE entries
 * a side; columns of warpgroups come by eights). */
static mpk_status check_fragment(mpk_context *cx, const block_program *p, int8_t i)
{
    const block_tile *t = &p->tiles[i];
    const uint8_t along[2] = {p->warps[0], p->warps[t->is_shared_out ? 2 : 1]};
    const int32_t fields[2] = {BLOCK_SIDE, p->by_groups ? BLOCK_MMA_COLUMNS : BLOCK_SIDE};
    CHECK(cx, t->dtype == IR_F32 && (t->is_by_lane || t->parts <= 1 || t->parts == p->warps[2]),
          MPK_EVERIFY,
          "tile %s of block %s: fragments are f32, in one part or one for each warp along the sum",
          t->name, p->name);
    CHECK(cx,
          !t->is_by_lane || (t->parts == BLOCK_ROW_LANES && t->axis[1] == BLOCK_NONE &&
                             p->unit == BLOCK_MMA && p->warps[2] == 1),
          MPK_EVERIFY, "tile %s of block %s: lanes have parts of a line of whole rows", t->name,
          p->name);
    for (int side = 0; side < 2; side++)
        CHECK(cx,
              t->axis[side] == BLOCK_NONE ||
                  block_extent(p, i, side) %
                          (fields[side] * (p->unit == BLOCK_MMA ? along[side] : 1)) ==
                      0,
              MPK_EVERIFY, "tile %s of block %s: %d entries do not divide among %u warps", t->name,
              p->name, block_extent(p, i, side), along[side]);
    return MPK_OK;
}

static mpk_status check_tiles(mpk_context *cx, const block_program *p)
{
    CHECK(cx, p->warps[0] * p->warps[1] * p->warps[2] == WARPS, MPK_EVERIFY,
          "block %s: %u x %u x %u warps are not %d", p->name, p->warps[0], p->warps[1], p->warps[2],
          WARPS);
    for (int8_t i = 0; i < (int8_t)p->n_tiles; i++) {
        CHECK(cx,
              p->tiles[i].axis[0] < (int8_t)p->n_axes && p->tiles[i].axis[1] < (int8_t)p->n_axes,
              MPK_EVERIFY, "tile %s of block %s has an axis that is not there", p->tiles[i].name,
              p->name);
        TRY((p->tiles[i].space == BLOCK_SHARED ? check_shared : check_fragment)(cx, p, i));
    }
    return MPK_OK;
}

/* Open a loop.  No loop may stand inside one that is ahead: its loads would be those of an
 * iteration whose inner loops have not begun. */
static mpk_status check_loop(checker *c, const block_step *s)
{
    RULE(c, is_axis(c, s->axis) && c->p->axes[s->axis].tile > 0 && c->depth < MOST_DEPTH,
         "no such axis");
    const block_axis *a = &c->p->axes[s->axis];
    RULE(c, !a->run || (s->ahead && !a->is_cut && a->extent % a->run == 0 && a->run % a->tile == 0),
         "axis %s has no whole tiles of runs, or is cut", a->name);
    for (uint32_t i = 0; i < c->depth; i++)
        RULE(c, c->axis[i] != s->axis && !c->ahead[i],
             "the axis is looped over already, or the loop around it is ahead");
    c->loop[c->depth] = c->at;
    c->ahead[c->depth] = s->ahead;
    c->axis[c->depth++] = s->axis;
    return MPK_OK;
}

/* Is the place of a tile along this axis known?  It is if a loop runs over the axis, or if one
 * tile is all of it. */
static bool is_looped(const checker *c, int8_t axis)
{
    bool found = axis == BLOCK_NONE || c->p->axes[axis].tile >= c->p->axes[axis].extent;
    for (uint32_t i = 0; i < c->depth; i++)
        found = found || c->axis[i] == axis;
    return found;
}

/* The load of a patch: rows are places, columns the channels of the runs that the loop around it
 * goes along.  Its copies are written again only when all iterations over the kernel have read
 * them, though the load is issued `ahead` iterations early. */
static mpk_status check_patch(checker *c, const block_step *s)
{
    const block_tile *t = &c->p->tiles[s->to];
    const block_operand *o = &c->p->operands[s->operand];
    const block_axis *a = &c->p->axes[t->axis[1]];
    const uint8_t ahead = c->depth ? c->ahead[c->depth - 1] : 0;
    RULE(c,
         s->verb == BLOCK_LOAD && t->space == BLOCK_SHARED && ahead &&
             c->axis[c->depth - 1] == t->axis[1] && o->window && o->stride[t->axis[0]] == 1 &&
             a->run == o->window->channels && t->dtype == o->dtype,
         "tile %s is no patch of operand %s", t->name, o->name);
    RULE(c,
         t->patch == block_patch_of(o->window, c->p->axes[t->axis[0]].tile) &&
             (t->stages - 1) * block_rounds(a) >= ahead,
         "tile %s has too few pixels or copies", t->name);
    return MPK_OK;
}

/* One more than the loop at hand is ahead. */
static uint32_t copies_of(const checker *c)
{
    return c->depth ? c->ahead[c->depth - 1] + 1u : 1;
}

/* A load or store: the tile and the operand must have the same axes, with loops to say where; a
 * shared tile must have one copy more than its loop is ahead, or beside late products more. */
static mpk_status check_move(checker *c, const block_step *s)
{
    RULE(c, is_tile(c, s->to) && s->operand >= 0 && s->operand < (int8_t)c->p->n_operands,
         "no such tile or operand");
    const block_tile *t = &c->p->tiles[s->to];
    RULE(c, is_looped(c, t->axis[0]) && is_looped(c, t->axis[1]), "no loop says where tile %s lies",
         t->name);
    for (int8_t axis = 0; axis < (int8_t)c->p->n_axes; axis++)
        RULE(c, !c->p->operands[s->operand].stride[axis] || has_axis(t, axis) || is_looped(c, axis),
             "tile %s lacks axis %s of operand %s", t->name, c->p->axes[axis].name,
             c->p->operands[s->operand].name);
    const block_operand *o = &c->p->operands[s->operand];
    RULE(c,
         !o->window ||
             (s->verb == BLOCK_LOAD && t->axis[0] != BLOCK_NONE && t->axis[1] != BLOCK_NONE &&
              (o->stride[t->axis[0]] == 1) != (o->stride[t->axis[1]] == 1)),
         "windows of operand %s do not lie along rows and columns of tile %s", o->name, t->name);
    if (t->patch)
        return check_patch(c, s);
    if (s->verb == BLOCK_STORE)
        RULE(c, t->space == BLOCK_FRAGMENT && t->parts <= 1 && !t->is_shared_out,
             "tile %s is not a fragment in one part", t->name);
    else if (t->space == BLOCK_SHARED)
        RULE(c,
             t->stages == copies_of(c) ||
                 (c->p->by_groups && c->depth && t->stages > copies_of(c) && copies_of(c) > 1),
             "tile %s has %u copies, which is not one more than its loop is ahead", t->name,
             t->stages);
    return MPK_OK;
}

/* A product of warpgroups: 64 rows for each of the two, 64 rows of the second factor, 32 to 64
 * columns of sums.  A shared factor lies in the order that the tensor cores know, up to 64 entries
 * in a row.  Beside a first factor in shared memory rows of the second are columns of the sums,
 * beside one in registers they are entries of the sum. */
static mpk_status check_groups(checker *c, const block_step *s)
{
    const block_program *p = c->p;
    const block_tile *a = &p->tiles[s->from[0]], *y = &p->tiles[s->to];
    const int32_t columns = block_extent(p, s->to, 1);
    RULE(c, p->unit == BLOCK_MMA && p->warps[0] == WARPS, "a warpgroup's warps share rows alone");
    RULE(c,
         block_extent(p, s->to, 0) == GROUP_ROWS && block_extent(p, s->from[1], 0) == GROUP_MOST &&
             columns >= GROUP_LEAST && columns <= GROUP_MOST,
         "warpgroups do not multiply %d x %d by %d x %d", block_extent(p, s->to, 0),
         block_extent(p, s->from[0], 1), block_extent(p, s->from[1], 0), columns);
    RULE(c,
         a->space == BLOCK_FRAGMENT
             ? p->tiles[s->from[1]].axis[1] == y->axis[1]
             : a->axis[0] == y->axis[0] && p->tiles[s->from[1]].axis[0] == y->axis[1],
         "the factors do not lie as warpgroups read them");
    for (uint32_t i = 0; i < 2; i++) {
        const block_tile *t = &p->tiles[s->from[i]];
        RULE(c,
             t->space == BLOCK_FRAGMENT ||
                 (t->layout == BLOCK_SWIZZLED && block_extent(p, s->from[i], 1) <= GROUP_MOST),
             "tile %s does not lie as warpgroups read it", t->name);
    }
    return MPK_OK;
}

/* A product: which spaces, parts, axes and dtypes its three tiles may have. */
static mpk_status check_multiply(checker *c, const block_step *s)
{
    RULE(c, is_tile(c, s->to) && s->n_from == 2 && is_tile(c, s->from[0]) && is_tile(c, s->from[1]),
         "no such tile");
    const block_tile *y = &c->p->tiles[s->to], *a = &c->p->tiles[s->from[0]],
                     *b = &c->p->tiles[s->from[1]];
    RULE(c, y->space == BLOCK_FRAGMENT && b->space == BLOCK_SHARED,
         "sums are fragments, the second factor is shared");
    RULE(c,
         a->space == BLOCK_SHARED ||
             (c->p->unit == BLOCK_MMA && c->p->warps[1] == 1 && a->is_shared_out &&
              a->axis[0] == y->axis[0] && !y->is_shared_out),
         "a fragment is a factor only where its columns are shared out");
    RULE(c,
         c->p->unit == BLOCK_FMA || y->is_shared_out ||
             (y->parts > 1 ? y->parts : 1) == c->p->warps[2],
         "each warp along the sum has a part of it, but tile %s has %u", y->name, y->parts);
    RULE(c,
         y->axis[0] != BLOCK_NONE && y->axis[1] != BLOCK_NONE && has_axis(a, y->axis[0]) &&
             has_axis(b, y->axis[1]) && !has_axis(a, y->axis[1]) && !has_axis(b, y->axis[0]),
         "rows of the sums are not the first factor's, or columns not the second's");
    const int8_t inner = a->axis[a->axis[0] == y->axis[0]];
    RULE(c, inner != BLOCK_NONE && has_axis(b, inner),
         "the factors have no axis in common to sum over");
    RULE(c,
         c->p->unit == BLOCK_FMA ? a->axis[1] == inner && b->axis[1] == inner
                                 : c->p->axes[inner].tile % BLOCK_MMA_DEPTH == 0,
         "axis %s does not lie as the unit reads it", c->p->axes[inner].name);
    RULE(c, a->dtype == b->dtype || a->space == BLOCK_FRAGMENT, "the factors have two dtypes");
    RULE(c, !b->patch && (!a->patch || a->axis[0] == y->axis[0]), "a patch is the first factor");
    return c->p->by_groups ? check_groups(c, s) : MPK_OK;
}

/* A program that was built by hand may say 0 for one part. */
static uint32_t parts_of(const block_tile *t)
{
    return t->parts > 1 ? t->parts : 1;
}

/* Does the warp that has an entry of y have what it needs of x? */
static bool is_at_hand(const block_tile *x, const block_tile *y)
{
    if (x->is_by_lane)
        return y->is_by_lane;
    return (parts_of(x) == 1 || parts_of(x) == parts_of(y) || y->is_shared_out) &&
           (!x->is_shared_out || y->is_shared_out);
}

/* May a row of x be reduced into y?  Either over the columns of whole rows, where each warp or
 * lane reduces those that it has, or over the parts of a line.  Only mma programs with one warp
 * along columns keep rows whole.  Lanes have totals alone. */
static bool can_reduce(const checker *c, block_verb verb, const block_tile *x, const block_tile *y)
{
    if (y->axis[0] != x->axis[0] || y->axis[1] != BLOCK_NONE || c->p->warps[1] != 1 ||
        c->p->unit != BLOCK_MMA)
        return false;
    if (x->axis[1] == BLOCK_NONE)
        return parts_of(x) > 1 && parts_of(y) == 1 && (!x->is_by_lane || verb == BLOCK_TOTAL);
    if (y->is_by_lane)
        return x->is_shared_out && verb == BLOCK_TOTAL;
    return x->is_shared_out && parts_of(y) == c->p->warps[2];
}

/* A source of a map, an add or a reduction. */
static mpk_status check_source(checker *c, const block_step *s, const block_tile *x)
{
    const block_tile *y = &c->p->tiles[s->to];
    if (s->verb == BLOCK_MAP)
        RULE(c, is_within(x, y) && is_at_hand(x, y), "tile %s has axes or parts that %s lacks",
             x->name, y->name);
    else if (s->verb == BLOCK_ADD)
        RULE(c,
             is_within(x, y) && is_within(y, x) && parts_of(x) > 1 && parts_of(y) == 1 &&
                 !x->is_by_lane,
             "tile %s is in %u parts", x->name, x->parts);
    else
        RULE(c, can_reduce(c, s->verb, x, y), "a warp does not hold whole rows of %s", x->name);
    return MPK_OK;
}

/* A step on fragments: its result and sources are fragments; sources are spread along the axes
 * that they lack. */
static mpk_status check_fragments(checker *c, const block_step *s)
{
    RULE(c, is_tile(c, s->to) && c->p->tiles[s->to].space == BLOCK_FRAGMENT,
         "the result is not a fragment");
    for (uint32_t i = 0; i < s->n_from; i++) {
        RULE(c, is_tile(c, s->from[i]) && c->p->tiles[s->from[i]].space == BLOCK_FRAGMENT,
             "source %u is not a fragment", i);
        TRY(check_source(c, s, &c->p->tiles[s->from[i]]));
    }
    RULE(c,
         (s->verb == BLOCK_MAP) == (s->expression != NULL) &&
             (s->verb != BLOCK_BOUND || is_axis(c, s->axis)),
         "an expression or an axis is missing");
    return MPK_OK;
}

/* The last step before `end` that writes a tile; NULL: none. */
static const block_step *find_writer(const checker *c, int8_t tile, uint32_t end)
{
    const block_step *found = NULL;
    for (uint32_t i = 0; i < end; i++)
        if (c->p->steps[i].to == tile)
            found = &c->p->steps[i];
    return found;
}

/* A late product is one of warpgroups by a fragment, which keeps its factor for an iteration.  Its
 * sums are zeros in front of the loop: the first iteration's product, which does not count, is made
 * as well, and the second's takes the place of what it gave. */
static mpk_status check_late(checker *c, const block_step *s)
{
    if (!s->is_late)
        return MPK_OK;
    const block_step *zeros = find_writer(c, s->to, c->depth ? c->loop[c->depth - 1] : 0);
    RULE(c,
         s->verb == BLOCK_MULTIPLY && c->p->by_groups && c->depth && !c->grown &&
             c->ahead[c->depth - 1] && s->n_from == 2 && is_tile(c, s->from[0]) &&
             c->p->tiles[s->from[0]].space == BLOCK_FRAGMENT,
         "it cannot be late");
    RULE(c, zeros && zeros->verb == BLOCK_FILL && zeros->number == 0,
         "its sums are not zeros in front of the loop");
    return MPK_OK;
}

/* Warpgroups take turns in a loop with late products, one in each iteration: the other's loads have
 * been waited for in its turn before this. */
static mpk_status check_turn(checker *c, const block_step *s)
{
    const uint32_t loop = c->depth ? c->loop[c->depth - 1] : 0;
    RULE(c,
         c->depth && c->p->by_groups && !c->grown && !c->n_turns && block_has_late(c->p, loop) &&
             (c->ahead[c->depth - 1] - 1u) * block_groups_of(c->p, loop) > s->pending,
         "it is no turn of warpgroups, or waits for loads that are not issued yet");
    c->turn = true;
    c->n_turns++;
    return MPK_OK;
}

/* Steps that may or may not run: of fragments alone. */
static mpk_status check_grown(checker *c, const block_step *s)
{
    RULE(c, !c->grown && c->depth, "it stands in no loop");
    TRY(check_fragments(c, s));
    RULE(c, c->p->tiles[s->to].axis[1] == BLOCK_NONE, "tile %s is not a line",
         c->p->tiles[s->to].name);
    c->grown = true;
    return MPK_OK;
}

/* Dispatch of one step; c->depth counts open loops, c->ahead the loads of each that are begun and
 * not waited for.
 */
static mpk_status check_step(checker *c, const block_step *s)
{
    TRY(check_late(c, s));
    RULE(c,
         !c->grown || s->verb == BLOCK_END || s->verb == BLOCK_MAP || s->verb == BLOCK_LARGEST ||
             s->verb == BLOCK_TOTAL,
         "it cannot stand after `grown`");
    switch (s->verb) {
    case BLOCK_LOOP:
        return check_loop(c, s);
    case BLOCK_GROWN:
        return check_grown(c, s);
    case BLOCK_END:
        if (c->grown) {
            c->grown = false;
            return MPK_OK;
        }
        RULE(c, c->depth > 0 && !c->turn, "an end without a loop, or of a turn without a pass");
        c->n_turns = 0;
        c->depth--;
        return MPK_OK;
    case BLOCK_WAIT:
        RULE(c,
             c->depth &&
                 c->ahead[c->depth - 1] * block_groups_of(c->p, c->loop[c->depth - 1]) > s->pending,
             "it waits for loads that are not issued yet");
        return MPK_OK;
    case BLOCK_TURN:
        return check_turn(c, s);
    case BLOCK_PASS:
        RULE(c, c->turn, "it passes a turn that it has not got");
        c->turn = false;
        return MPK_OK;
    case BLOCK_LOAD:
    case BLOCK_STORE:
        return check_move(c, s);
    case BLOCK_MULTIPLY:
        return check_multiply(c, s);
    case BLOCK_SYNC:
        return MPK_OK;
    default:
        return check_fragments(c, s);
    }
}

mpk_status block_verify(mpk_context *cx, const block_program *p)
{
    checker c = {.cx = cx, .p = p};
    TRY(check_tiles(cx, p));
    for (; c.at < p->n_steps; c.at++)
        TRY(check_step(&c, &p->steps[c.at]));
    RULE(&c, c.depth == 0, "a loop has no end");
    return MPK_OK;
}
