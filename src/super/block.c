/* block.c - building block programs, facts that follow from their tiles, and the text form
 * (block.h).
 *
 * Input: calls that add axes, tiles and steps; a program.  Output: the program; sizes, offsets
 * and bank conflicts; text.  The facts are computed here once for all that need them: the search
 * (do candidates fit?), the run over finite fields and the printer of CUDA C (where does a tile
 * lie?), so that these cannot disagree.
 */
#include "super/block.h"

#include "shape/rows_shape.h"

int8_t block_add_axis(block_program *p, const char *name, int64_t extent, int32_t tile, bool is_cut)
{
    p->axes[p->n_axes] = (block_axis){name, extent, tile, is_cut, 0};
    return (int8_t)p->n_axes++;
}

int8_t block_add_tile(block_program *p, block_tile t)
{
    p->tiles[p->n_tiles] = t;
    return (int8_t)p->n_tiles++;
}

int8_t block_add_fragment(block_program *p, const char *name, int8_t rows, int8_t columns)
{
    return block_add_tile(p, (block_tile){.name = name,
                                          .space = BLOCK_FRAGMENT,
                                          .dtype = IR_F32,
                                          .axis = {rows, columns},
                                          .parts = 1});
}

block_step *block_add_step(block_program *p, block_verb verb, int8_t to)
{
    block_step *s = &p->steps[p->n_steps++];
    *s = (block_step){.verb = verb, .to = to, .axis = BLOCK_NONE, .operand = BLOCK_NONE};
    return s;
}

/* The offset of one entry of a window (see block.h).  Place and entry are numbers in mixed
 * radix, the last axis first: a place is one output position, an entry one element of its window
 * with all channels.
 *
 *   in 5 x 5, kernel 3 x 3, stride 2, padding 1: place 1 of row 0 begins at column 1 * 2 - 1 = 1;
 *   entry 4 is row 1, column 1 of the kernel: input (-1 + 1, 1 + 1) = (0, 2) */
int64_t block_window_offset(const block_window *w, int64_t place, int64_t entry)
{
    int64_t offset = 0, channel = 0;
    if (w->channels) {
        channel = entry % w->channels;
        entry /= w->channels;
    }
    for (int i = BLOCK_WINDOW_AXES - 1; i >= 0; i--) {
        const int64_t at = place % w->out[i] * w->stride[i] - w->padding[i] +
                           entry % w->kernel[i] * w->dilation[i];
        if (at < 0 || at >= w->in[i])
            return -1;
        offset += at * w->step[i];
        place /= w->out[i];
        entry /= w->kernel[i];
    }
    return offset + (w->channels ? channel : entry) * w->channel_step;
}

/* Lines begin where tasks do, so a tile of whole lines has no part of another one. */
int32_t block_patch_of(const block_window *w, int32_t places)
{
    const int32_t width = w->out[2];
    int32_t entries = 1, lines = places / width;
    for (int i = 0; i < BLOCK_WINDOW_AXES; i++)
        entries *= w->kernel[i];
    if (w->in[0] != 1 || w->out[0] != 1 || w->kernel[0] != 1 || w->padding[0] || !w->channels ||
        entries == 1)
        return 0;
    if (places % width)
        lines = (places + width - 2) / width + 1;
    lines = lines < w->out[1] ? lines : w->out[1];
    return BLOCK_SPAN(*w, 1, lines) * BLOCK_PATCH_WIDTH(*w);
}

int64_t block_rounds(const block_axis *a)
{
    return a->run ? a->extent / a->run : 1;
}

int64_t block_iteration_begin(const block_axis *a, int64_t iteration)
{
    const int64_t rounds = block_rounds(a);
    return iteration % rounds * a->run + iteration / rounds * a->tile;
}

/* ---- facts ---- */

int32_t block_extent(const block_program *p, int8_t tile, int side)
{
    int8_t axis = p->tiles[tile].axis[side];
    return axis == BLOCK_NONE ? 1 : p->axes[axis].tile;
}

uint32_t block_row_bytes(const block_program *p, int8_t tile)
{
    if (p->by_groups)
        return BLOCK_GROUP_BYTES;
    return (uint32_t)block_extent(p, tile, 1) * ir_dtype_table[p->tiles[tile].dtype].block_bytes;
}

uint32_t block_copy_bytes(const block_program *p, int8_t tile)
{
    const int32_t patch = p->tiles[tile].patch;
    return (uint32_t)(patch ? patch : block_extent(p, tile, 0)) *
           BLOCK_PITCH(block_row_bytes(p, tile), p->tiles[tile].layout);
}

/* Shared tiles lie one after the other, each with all its copies, from multiples of 128 bytes
 * on, because swizzling permutes pieces of 16 bytes within 128. */
uint32_t block_offset(const block_program *p, int8_t tile)
{
    uint32_t offset = 0;
    for (int8_t i = 0; i < tile; i++)
        if (p->tiles[i].space == BLOCK_SHARED)
            offset += (p->tiles[i].stages * block_copy_bytes(p, i) + 127) / 128 * 128;
    return offset;
}

/* Is the step one of an end by rows, over these axes?  Only loads and maps are, and both write
 * a tile; the bounds of a loop do not. */
static bool is_of_end(const block_program *p, const block_step *s, const int8_t axis[2])
{
    if (s->verb != BLOCK_LOAD && s->verb != BLOCK_MAP)
        return false;
    const block_tile *t = &p->tiles[s->to];
    if (s->verb == BLOCK_LOAD)
        return t->space == BLOCK_FRAGMENT;
    return t->axis[0] == axis[0] && t->axis[1] == axis[1];
}

/* Does a step of the end, e->first to e->last - 1, make the tile? */
static bool is_made_in(const block_program *p, const block_end *e, int8_t tile)
{
    for (uint32_t i = e->first; i < e->last; i++)
        if (p->steps[i].to == tile)
            return true;
    return false;
}

/* A source of a step at the end: made there, or a sum, of which there may be two. */
static bool take_source(const block_program *p, block_end *e, int8_t tile, const int8_t axis[2])
{
    const block_tile *t = &p->tiles[tile];
    bool known = is_made_in(p, e, tile);
    for (uint32_t i = 0; i < e->n_sums; i++)
        known = known || e->sums[i] == tile;
    if (known)
        return true;
    if (e->n_sums == 2 || t->is_shared_out || t->axis[0] != axis[0] || t->axis[1] != axis[1])
        return false;
    e->sums[e->n_sums++] = tile;
    return true;
}

/* The end are the steps right before the store that work on tiles of the result's axes alone.  It
 * is found backwards from the store, and counts only if every tile that it reads is made in it,
 * or is one of at most two sums.  Only for tensor cores, and where rows of the result are whole
 * pieces.
 */
bool block_find_end(const block_program *p, block_end *out)
{
    block_end e = {0};
    while (e.last < p->n_steps && p->steps[e.last].verb != BLOCK_STORE)
        e.last++;
    if (p->unit != BLOCK_MMA || e.last == p->n_steps)
        return false;
    const block_step *store = &p->steps[e.last];
    const int8_t *axis = p->tiles[store->to].axis;
    if (axis[1] == BLOCK_NONE || p->operands[store->operand].stride[axis[1]] != 1 ||
        block_extent(p, store->to, 1) % ROWS_PIECE)
        return false;
    for (e.first = e.last; e.first && is_of_end(p, &p->steps[e.first - 1], axis);)
        e.first--;
    bool whole = take_source(p, &e, store->to, axis);
    for (uint32_t i = e.first; i < e.last; i++)
        for (uint32_t k = 0; k < p->steps[i].n_from; k++)
            whole = whole && take_source(p, &e, p->steps[i].from[k], axis);
    *out = e;
    return whole;
}

/* Does the step open what an `end` closes? */
static bool is_opening(const block_step *s)
{
    return s->verb == BLOCK_LOOP || s->verb == BLOCK_GROWN;
}

uint32_t block_end_of(const block_program *p, uint32_t step)
{
    uint32_t depth = 1, i = step;
    while (depth && ++i < p->n_steps) {
        depth += is_opening(&p->steps[i]);
        depth -= p->steps[i].verb == BLOCK_END;
    }
    return i;
}

bool block_has_late(const block_program *p, uint32_t loop)
{
    const uint32_t end = block_end_of(p, loop);
    bool any = false;
    for (uint32_t i = loop + 1; i < end && p->steps[loop].ahead; i++)
        any = any || p->steps[i].is_late;
    return any;
}

bool block_is_copy(const block_program *p, const block_step *s)
{
    return s->verb == BLOCK_LOAD && p->tiles[s->to].space == BLOCK_SHARED;
}

uint32_t block_groups_of(const block_program *p, uint32_t loop)
{
    const uint32_t end = block_end_of(p, loop);
    uint32_t n = 0;
    for (uint32_t i = loop + 1; i < end; i++)
        n += block_is_copy(p, &p->steps[i]) && !block_is_copy(p, &p->steps[i - 1]);
    return n;
}

int8_t block_parts_of(const block_program *p, int8_t tile)
{
    for (uint32_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].verb == BLOCK_ADD && p->steps[i].to == tile)
            return p->steps[i].from[0];
    return tile;
}

/* Of an end by rows: all parts of its sums. */
static uint32_t end_bytes(const block_program *p)
{
    block_end e;
    uint32_t bytes = 0;
    for (uint32_t i = 0; block_find_end(p, &e) && i < e.n_sums; i++) {
        const uint32_t parts = p->tiles[block_parts_of(p, e.sums[i])].parts;
        bytes += (parts > 1 ? parts : 1) * (uint32_t)block_extent(p, e.sums[i], 0) *
                 ((uint32_t)block_extent(p, e.sums[i], 1) + BLOCK_ROW_GAP) * 4;
    }
    return bytes;
}

/* Without operands that are fetched: `add` exchanges all parts but the first through the memory of
 * the shared tiles, which are not read any more by then; so the largest of the needs is what
 * counts. */
static uint32_t bytes_of_tiles(const block_program *p)
{
    const uint32_t end = end_bytes(p), tiles = block_offset(p, (int8_t)p->n_tiles);
    uint32_t most = end > tiles ? end : tiles;
    for (int8_t i = 0; i < (int8_t)p->n_tiles; i++) {
        const block_tile *t = &p->tiles[i];
        uint32_t parts = t->parts > 1 && !t->is_by_lane ? (uint32_t)(t->parts - 1) : 0;
        uint32_t bytes =
            parts * (uint32_t)block_extent(p, i, 0) * (uint32_t)block_extent(p, i, 1) * 4;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* What step i of an end by rows needs for its operand's entries; 0: it cannot be fetched. */
static uint32_t fetched_bytes(const block_program *p, const block_end *e, uint32_t i)
{
    const block_step *s = &p->steps[i];
    if (s->verb != BLOCK_LOAD)
        return 0;
    const block_tile *t = &p->tiles[s->to], *y = &p->tiles[p->steps[e->last].to];
    const block_operand *o = &p->operands[s->operand];
    if (t->axis[0] != y->axis[0] || t->axis[1] != y->axis[1] ||
        ir_dtype_table[o->dtype].block_bytes != 2 || o->stride[t->axis[1]] != 1 ||
        o->stride[t->axis[0]] % ROWS_PIECE)
        return 0;
    return (uint32_t)block_extent(p, s->to, 0) * (uint32_t)block_extent(p, s->to, 1) * 2;
}

uint32_t block_fetched_at(const block_program *p, const block_end *e, uint32_t i)
{
    const uint32_t bytes = fetched_bytes(p, e, i);
    uint32_t at = (bytes_of_tiles(p) + 15) / 16 * 16;
    for (uint32_t before = e->first; before < i; before++)
        if (at + fetched_bytes(p, e, before) <= p->room)
            at += fetched_bytes(p, e, before);
    return bytes && at + bytes <= p->room ? at : 0;
}

uint32_t block_scratch_bytes(const block_program *p)
{
    block_end e;
    uint32_t most = bytes_of_tiles(p);
    if (!block_find_end(p, &e))
        return most;
    for (uint32_t i = e.first; i < e.last; i++)
        if (block_fetched_at(p, &e, i))
            most = block_fetched_at(p, &e, i) + fetched_bytes(p, &e, i);
    return most;
}

/* Is the tile the result of some multiply? */
static bool is_sum(const block_program *p, int8_t tile)
{
    for (uint32_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].verb == BLOCK_MULTIPLY && p->steps[i].to == tile)
            return true;
    return false;
}

/* Only sums are counted: they live through the loop over the depth, while other fragments come
 * and go.  With mma the warps along the sum have a full set of sums each, so they do not divide
 * them; with fma, or where a tile is shared out, all threads divide one set. */
uint32_t block_registers(const block_program *p)
{
    uint32_t n = 0;
    for (int8_t i = 0; i < (int8_t)p->n_tiles; i++) {
        const bool all = p->unit == BLOCK_FMA || p->tiles[i].is_shared_out;
        const uint32_t lanes = 32u * p->warps[0] * p->warps[1] * (all ? p->warps[2] : 1);
        if (is_sum(p, i))
            n += (uint32_t)block_extent(p, i, 0) * (uint32_t)block_extent(p, i, 1) / lanes;
    }
    return n;
}

/* Eight rows of 16 bytes are read at once; they conflict where their addresses fall on the same
 * 16 bytes modulo 128, the width of all banks.  Returns 1 (no conflict) to 8.  All columns
 * behave alike, so column 0 decides. */
uint32_t block_conflicts(const block_program *p, int8_t tile)
{
    const uint32_t row_bytes = block_row_bytes(p, tile);
    uint32_t uses[8] = {0}, most = 0;
    for (uint32_t row = 0; row < 8; row++) {
        uint32_t bank = BLOCK_AT(row_bytes, p->tiles[tile].layout, row, 0u) / 16 % 8;
        uses[bank]++;
        most = uses[bank] > most ? uses[bank] : most;
    }
    return most;
}

/* ---- text ---- */

/* In the order of block_verb. */
static const char *const verb_names[] = {"loop",    "end",   "sync",     "wait", "turn",  "pass",
                                         "load",    "fill",  "multiply", "add",  "bound", "map",
                                         "largest", "total", "grown",    "store"};

/* The name of an axis; "-" for the axis that a tile does not have. */
static const char *axis_name(const block_program *p, int8_t axis)
{
    return axis == BLOCK_NONE ? "-" : p->axes[axis].name;
}

/* tile NAME : SPACE DTYPE[AXIS SIZE, AXIS SIZE], then copies and layout, or parts. */
static void print_tile(const block_program *p, int8_t i, text *out)
{
    static const char *const layouts[BLOCK_LAYOUTS] = {"plain", "swizzled", "padded"};
    const block_tile *t = &p->tiles[i];
    text_print(out, "tile %s : %s %s[", t->name, t->space == BLOCK_SHARED ? "shared" : "fragment",
               ir_dtype_table[t->dtype].name);
    for (int side = 0; side < 2; side++)
        if (t->axis[side] != BLOCK_NONE)
            text_print(out, "%s%s %d", side && t->axis[0] != BLOCK_NONE ? ", " : "",
                       axis_name(p, t->axis[side]), block_extent(p, i, side));
    text_print(out, "]");
    if (t->space == BLOCK_SHARED)
        text_print(out, " x %u %s", t->stages, layouts[t->layout]);
    if (t->patch)
        text_print(out, " patch of %d", t->patch);
    if (t->is_by_lane)
        text_print(out, " by lane");
    else if (t->parts > 1)
        text_print(out, " in %u parts", t->parts);
    else if (t->is_shared_out)
        text_print(out, " shared out");
    text_print(out, "\n");
}

/* One step, indented by the loops around it: the verb, the tile written, its sources, the rest. */
static void print_step(const block_program *p, const block_step *s, int depth, text *out)
{
    text_print(out, "%*s%s", 2 * depth, "", verb_names[s->verb]);
    if (s->verb == BLOCK_LOOP)
        text_print(out, " %s by %d", axis_name(p, s->axis), p->axes[s->axis].tile);
    if (s->verb == BLOCK_LOOP && p->axes[s->axis].run)
        text_print(out, " of runs of %lld", (long long)p->axes[s->axis].run);
    if (s->verb == BLOCK_LOOP && s->ahead)
        text_print(out, " ahead %u", s->ahead);
    if (s->verb == BLOCK_WAIT || s->verb == BLOCK_TURN)
        text_print(out, " %u", s->pending);
    if (s->to != BLOCK_NONE)
        text_print(out, " %s", p->tiles[s->to].name);
    for (uint32_t i = 0; i < s->n_from; i++)
        text_print(out, " %s", p->tiles[s->from[i]].name);
    if (s->verb == BLOCK_BOUND)
        text_print(out, " %s", axis_name(p, s->axis));
    if (s->verb == BLOCK_BOUND && s->bound == BLOCK_CAUSAL)
        text_print(out, " causal");
    if (s->verb == BLOCK_BOUND && s->bound == BLOCK_WINDOW)
        text_print(out, " window");
    if (s->operand != BLOCK_NONE)
        text_print(out, " %s %s", s->verb == BLOCK_STORE ? "to" : "from",
                   p->operands[s->operand].name);
    if (s->verb == BLOCK_FILL || s->verb == BLOCK_GROWN || s->bound == BLOCK_WINDOW)
        text_print(out, " %g", s->number);
    if (s->expression)
        text_print(out, " \"%s\"", s->expression);
    if (s->is_late)
        text_print(out, " late");
    text_print(out, "\n");
}

static const char *unit_name(const block_program *p)
{
    if (p->by_groups)
        return "wgmma";
    return p->unit == BLOCK_MMA ? "mma" : "fma";
}

/* The text is for people: comments of generated kernels, messages, tests.  It is not parsed
 * again. */
void block_print(const block_program *p, text *out)
{
    int depth = 0;
    text_print(out, "block %s by %s, warps %u x %u x %u\n", p->name, unit_name(p), p->warps[0],
               p->warps[1], p->warps[2]);
    for (int8_t i = 0; i < (int8_t)p->n_tiles; i++)
        print_tile(p, i, out);
    for (uint32_t i = 0; i < p->n_steps; i++) {
        depth -= p->steps[i].verb == BLOCK_END;
        print_step(p, &p->steps[i], depth, out);
        depth += is_opening(&p->steps[i]);
    }
}
