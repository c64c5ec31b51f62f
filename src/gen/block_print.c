/* block_print.c - block programs as CUDA C (block_print.h): a step is a call of
 * device/task/block.cuh or a loop.
 *
 * Names in the printed code: x0 is where the tile at hand begins along axis x, x_lo and x_hi bound
 * the task's box, x_next is where a load that runs ahead begins; tile_NAME describes a tile in
 * shared memory, r_NAME[A][B][E] is a thread's part (fragment) of a tile in registers.  Loads of
 * fragments, maps and stores that follow each other become one loop over a thread's entries, in
 * which a tile is a constant v_NAME, so nothing but sums lies in registers for long.  Called by the
 * records in body_block*.c.
 *
 * A product y[m, n] = sum over k of a[m, k] b[n, k], whose loads run one iteration ahead, in
 * outline:
 *
 *   for (int iteration = -1; k_lo + iteration * 32 < k_hi; iteration++) {
 *       const rt_i64 k0 = k_lo + iteration * 32;
 *       const rt_i64 k_next = k_lo + (iteration + 1) * 32;
 *       if (k_next < k_hi) { block_load(tile_a, ...); block_load(tile_b, ...); }
 *       ptx_copy_async_commit();
 *       if (iteration < 0) continue;
 *       ... wait, multiply into r_y ...
 *   }
 *   ... for each entry of r_y that lies inside the box: mpk_put(out_y, ...) ... */
#include "gen/block_print.h"

#include <stdio.h>

#include "gen/block_printer.h"
#include "gen/body_print.h"
#include "gen/map_print.h"
#include "shape/rows_shape.h"
#include "super/super.h"

/* ---- declarations ---- */

/* A tile in shared memory: extents, bytes of a row, layout, dtype, where its first copy lies and
 * how far the next one is. */
static void print_tile(const block_printer *w, int8_t i)
{
    const block_tile *t = &w->p->tiles[i];
    LINE(w, "static constexpr block_tile tile_%s = {%d, %d, %u, %u, %s, %u, %u};\n", t->name,
         t->patch ? t->patch : block_extent(w->p, i, 0), block_extent(w->p, i, 1),
         block_row_bytes(w->p, i), t->layout, gen_dtype_name(t->dtype), block_offset(w->p, i),
         block_copy_bytes(w->p, i));
}

/* The window through which a convolution's factor is read (block_window). */
static void print_window(const block_printer *w, const block_operand *o)
{
    LINE(w, "static constexpr block_window window_%s = {", o->name);
#define PRINT_INT(name) gen_print_field(#name, &o->window->name, 1, w->out);
#define PRINT_INTS(name, n) gen_print_field(#name, o->window->name, n, w->out);
    BLOCK_WINDOW_FIELDS(PRINT_INT, PRINT_INTS)
#undef PRINT_INT
#undef PRINT_INTS
    text_print(w->out, "};\n");
}

/* The dimensions of a thread's fragment of a tile: squares of the unit down the rows, along the
 * columns, and the thread's entries in one. */
static void fragment_dims(const block_program *p, int8_t tile, int32_t dims[3])
{
    const bool mma = p->unit == BLOCK_MMA;
    dims[0] = block_extent(p, tile, 0) / (mma ? BLOCK_MMA_ROWS * p->warps[0] : BLOCK_SIDE);
    const uint8_t along = p->warps[p->tiles[tile].is_shared_out ? 2 : 1];
    dims[1] = block_extent(p, tile, 1) / (mma ? BLOCK_MMA_COLUMNS * along : BLOCK_SIDE);
    dims[2] = mma ? 4 : 1;
}

/* One number for each row: a sum or a maximum. */
static bool is_line(const block_printer *w, int8_t tile)
{
    return w->p->tiles[tile].axis[1] == BLOCK_NONE;
}

/* The array of a fragment: "float r_NAME[A][B][E];". */
static void print_array(const block_printer *w, int8_t tile)
{
    int32_t dims[3];
    fragment_dims(w->p, tile, dims);
    if (is_line(w, tile))
        LINE(w, "float r_%s[%d][2];\n", w->p->tiles[tile].name, dims[0]);
    else
        LINE(w, "float r_%s[%d][%d][%d];\n", w->p->tiles[tile].name, dims[0], dims[1], dims[2]);
}

/* Declare a fragment in front of the first step that has it as its result. */
static void print_fragment(const block_printer *w, const block_step *s)
{
    for (uint32_t i = 0; i < w->p->n_steps; i++) {
        const block_step *other = &w->p->steps[i];
        if (other->to == s->to && other < s)
            return;
    }
    print_array(w, s->to);
}

/* ---- sums ---- */

/* Parts of a line that several warps hold become one line, which all of them have, through
 * scratch; those of a row's lanes by exchanges. */
static void print_join(const block_printer *w, const block_step *s)
{
    print_fragment(w, s);
    if (w->p->tiles[s->from[0]].is_by_lane) {
        LINE(w, "block_total_of_lanes(r_%s, r_%s);\n", w->p->tiles[s->to].name,
             w->p->tiles[s->from[0]].name);
        return;
    }
    LINE(w, "block_join(r_%s, r_%s, %s, warps, %d, t.s_scratch);\n", w->p->tiles[s->to].name,
         w->p->tiles[s->from[0]].name, str_bool(s->verb == BLOCK_ADD),
         block_extent(w->p, s->to, 0));
}

/* Sums of warps that share the depth of a product become the sum of all. */
static void print_add(const block_printer *w, const block_step *s)
{
    print_fragment(w, s);
    LINE(w, "block_add(r_%s, r_%s, warps, t.s_scratch);\n", w->p->tiles[s->to].name,
         w->p->tiles[s->from[0]].name);
}

/* A reduction along the rows of a tile: its total or its largest entry, one number for each row. */
static void print_reduction(const block_printer *w, const block_step *s)
{
    const block_tile *y = &w->p->tiles[s->to];
    const char *total = y->is_by_lane ? "total_by_lane" : "total";
    print_fragment(w, s);
    LINE(w, "block_%s(r_%s, r_%s);\n", s->verb == BLOCK_TOTAL ? total : "largest", y->name,
         w->p->tiles[s->from[0]].name);
}

/* Set all entries of a fragment to one value, with which a sum or a maximum begins. */
static void print_fill(const block_printer *w, const block_step *s)
{
    print_fragment(w, s);
    LINE(w, "block_fill(r_%s, ", w->p->tiles[s->to].name);
    gen_print_float((float)s->number, w->out);
    text_print(w->out, ");\n");
}

/* ---- loops ---- */

/* Wait until the loads of an iteration have arrived. */
static void print_wait(const block_printer *w, const block_step *s)
{
    if (!w->has_late)
        LINE(w, "if (iteration >= 0)\n%*s", BLOCK_STEP, "");
    else
        LINE(w, "%s", "");
    text_print(w->out, "block_%swait<%u>();\n", w->p->by_groups ? "group_" : "", s->pending);
}

/* The descriptors of a loop's products of warpgroups: of first factors, which no iteration loads,
 * and of the first copies of second ones. */
static void print_matrices(const block_printer *w, uint32_t first, uint32_t end)
{
    for (uint32_t i = first + 1; i < end; i++) {
        const block_step *s = &w->p->steps[i];
        const block_tile *a = &w->p->tiles[s->from[0]], *b = &w->p->tiles[s->from[1]];
        if (s->verb != BLOCK_MULTIPLY)
            continue;
        if (a->space == BLOCK_SHARED)
            LINE(w, "const rt_u64 rows_%s = block_group_rows(t.s_scratch + tile_%s.offset);\n",
                 a->name, a->name);
        LINE(w, "const rt_u64 matrix_%s = ptx_matrix_of_rows(t.s_scratch + tile_%s.offset);\n",
             b->name, b->name);
    }
}

/* Has the tile one copy, or as many as an earlier one? */
static bool is_counted(const block_program *p, int8_t tile)
{
    bool found = p->tiles[tile].stages < 2;
    for (int8_t i = 0; i < tile; i++)
        found = found || p->tiles[i].stages == p->tiles[tile].stages;
    return found;
}

/* The copies that an iteration of a loop with late steps uses are counted, not divided for:
 * "int turn_5 = 0;", and how they go on. */
static void print_counts(const block_printer *w, bool next)
{
    for (int8_t i = 0; i < (int8_t)w->p->n_tiles; i++) {
        const unsigned n = w->p->tiles[i].stages;
        if (is_counted(w->p, i))
            continue;
        if (next)
            text_print(w->out, ", turn_%u = block_copy_after(turn_%u, %u)", n, n, n);
        else
            LINE(w, "int turn_%u = 0;\n", n);
    }
}

/* The iterations before 0 of a loop with late steps, which only load. */
static void print_iterations_before(block_printer *w, const block_step *loop)
{
    const uint32_t first = (uint32_t)(loop - w->p->steps), end = block_end_of(w->p, first);
    const char *x = block_axis_of(w, loop->axis);
    const int tile = w->p->axes[loop->axis].tile;
    w->ahead = loop;
    w->has_late = true;
    w->counts_copies = false;
    block_print_kept(w, loop);
    print_matrices(w, first, end);
    LINE(w, "#pragma unroll 1\n");
    LINE(w, "for (int iteration = -%u; iteration < 0; iteration++) {\n", loop->ahead);
    w->indent += BLOCK_STEP;
    for (uint32_t i = first + 1; i < end; i++)
        if (block_is_copy(w->p, &w->p->steps[i]))
            i = block_print_loads(w, i);
    w->indent -= BLOCK_STEP;
    LINE(w, "}\n");
    for (uint32_t i = first + 1; i < end; i++)
        if (w->p->steps[i].verb == BLOCK_TURN)
            LINE(w, "block_turns_begin<%u>();\n",
                 w->p->steps[i].pending + block_groups_of(w->p, first));
    LINE(w, "const int iterations = (int)((%s_hi - %s_lo + %d) / %d);\n", x, x, tile - 1, tile);
    LINE(w, "int iteration = 0;\n");
    print_counts(w, false);
    w->counts_copies = true;
}

/* A loop whose loads run ahead begins `ahead` iterations early: iterations before 0 only load.
 * Where it has late steps they stand in front of it. */
static void print_loop(block_printer *w, const block_step *s)
{
    const char *x = block_axis_of(w, s->axis);
    const int tile = w->p->axes[s->axis].tile;
    const bool has_late = block_has_late(w->p, (uint32_t)(s - w->p->steps));
    if (s->ahead)
        block_print_found(w, s);
    if (has_late)
        print_iterations_before(w, s);
    if (s->ahead && w->plans_reads)
        LINE(w, "int next = 0; /* the copy that loads fill */\n");
    LINE(w, "#pragma unroll 1\n");
    if (s->ahead) {
        LINE(w, "for (");
        if (has_late) {
            text_print(w->out, "; iteration < iterations; iteration++");
            print_counts(w, true);
        } else {
            text_print(w->out, "int iteration = -%u; %s_lo + (rt_i64)iteration * %d < %s_hi; ",
                       s->ahead, x, tile, x);
            text_print(w->out, "iteration++");
        }
        if (w->plans_reads)
            text_print(w->out, ", next = block_copy_after(next, %u)", s->ahead + 1);
        text_print(w->out, ") {\n");
        w->ahead = s;
    } else {
        LINE(w, "for (rt_i64 %s0 = %s_lo; %s0 < %s_hi; %s0 += %d) {\n", x, x, x, x, x, tile);
    }
    w->indent += BLOCK_STEP;
    if (s->ahead)
        LINE(w, "const rt_i64 %s0 = %s_lo + (rt_i64)iteration * %d;\n", x, x, tile);
}

/* Close the braces of a loop, or of what follows BLOCK_GROWN.  Loads after a loop do not run ahead;
 * products of warpgroups end with their iteration. */
static void print_end(block_printer *w)
{
    const block_step *loop = w->grown ? NULL : w->ahead;
    if (loop && w->has_late) {
        block_print_all_arrivals(w);
        block_print_keep(w, loop);
    }
    w->indent -= BLOCK_STEP;
    LINE(w, "}\n");
    if (w->grown) {
        w->grown = false;
        w->told_growth = true;
        return;
    }
    w->told_growth = false;
    if (loop && w->has_late)
        block_print_last(w, loop);
    w->ahead = NULL;
    w->has_late = false;
}

/* A comparison of a warp's entries, on which all its lanes agree. */
static void print_grown(block_printer *w, const block_step *s)
{
    LINE(w, "const bool grown = block_exceeds(r_%s, ", w->p->tiles[s->to].name);
    gen_print_float((float)s->number, w->out);
    text_print(w->out, ");\n");
    LINE(w, "if (grown) {\n");
    w->indent += BLOCK_STEP;
    w->grown = true;
}

/* ---- entries of fragments ---- */

/* Steps `first` .. `last`, in one loop; `at` is printed.  is_rows: of an end by rows, where each
 * tile is an array v_NAME of the thread's entries at hand. */
typedef struct run {
    block_printer *w;
    uint32_t first, at, last;
    bool is_rows;
} run;

/* Does the step do the same for each entry of a fragment, on its own? */
static bool is_of_entries(const block_printer *w, const block_step *s)
{
    return s->verb == BLOCK_MAP || s->verb == BLOCK_STORE ||
           (s->verb == BLOCK_LOAD && !block_is_copy(w->p, s));
}

/* Was the tile made by an earlier step of this run?  Then its entry is the constant v_NAME. */
static bool is_made(const run *r, int8_t tile)
{
    for (uint32_t i = r->first; i < r->at; i++)
        if (r->w->p->steps[i].to == tile)
            return true;
    return false;
}

/* The entry at hand in the fragment's array; of a line the number of the entry's row, of which a
 * thread has two in a square. */
static void print_array_entry(const block_printer *w, int8_t tile)
{
    text_print(w->out, is_line(w, tile) ? "r_%s[ra][re / 2]" : "r_%s[ra][rb][re]",
               w->p->tiles[tile].name);
}

/* Print a tile as an operand: the constant v_NAME or the entry of the array. */
static void print_entry(const run *r, int8_t tile)
{
    if (is_made(r, tile))
        text_print(r->w->out, "v_%s", r->w->p->tiles[tile].name);
    else
        print_array_entry(r->w, tile);
}

/* For gen_print_map: input m->number of the expression, by the tile that the step reads there. */
static void print_source(const void *of, const map_step *m, text *out)
{
    const run *r = of;
    const int8_t tile = r->w->p->steps[r->at].from[m->number];
    (void)out;
    if (r->is_rows)
        text_print(r->w->out, "v_%s[re]", r->w->p->tiles[tile].name);
    else
        print_entry(r, tile);
}

/* Does the program take the largest of scores?  Then its exponentials are a softmax's weights. */
static bool has_weights(const block_program *p)
{
    for (uint32_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].verb == BLOCK_LARGEST)
            return true;
    return false;
}

/* An expression of entries: its result is a constant if another step of the loop takes it, else an
 * entry of the fragment. */
static mpk_status print_map(const run *r, const block_step *s)
{
    static const ir_dtype dtypes[BLOCK_MOST_SOURCES] = {IR_F32};
    const block_printer *w = r->w;
    const char *name = w->p->tiles[s->to].name;
    char prefix[32];
    map_program m;
    snprintf(prefix, sizeof prefix, "%s_", name);
    TRY(map_compile(w->cx, str_from(s->expression), s->n_from, dtypes, &m));
    const gen_map g = {&m, prefix, w->indent, r, print_source, has_weights(w->p)};
    gen_print_map(&g, w->out);
    if (r->is_rows)
        LINE(w, "v_%s[re] = ", name);
    else if (r->at < r->last)
        LINE(w, "const float v_%s = ", name);
    else {
        LINE(w, "%s", "");
        print_array_entry(w, s->to);
        text_print(w->out, " = ");
    }
    text_print(w->out, "%s%u", prefix, m.result);
    text_print(w->out, ";\n");
    return MPK_OK;
}

/* The offset of the entry at hand in an operand: "m * 768ll + n * 1ll". */
static void print_offset(const block_printer *w, const block_operand *o)
{
    bool any = false;
    for (uint32_t i = 0; i < w->p->n_axes; i++) {
        if (!o->stride[i])
            continue;
        text_print(w->out, "%s%s * %lldll", any ? " + " : "", w->p->axes[i].name,
                   (long long)o->stride[i]);
        any = true;
    }
    text_print(w->out, any ? "" : "0");
}

/* One step for the entry at hand; outside of the box loads give 0 and stores do nothing. */
static mpk_status print_of_entry(const run *r)
{
    const block_printer *w = r->w;
    const block_step *s = &w->p->steps[r->at];
    if (s->verb == BLOCK_MAP)
        return print_map(r, s);
    const block_operand *o = &w->p->operands[s->operand];
    const char *name = w->p->tiles[s->to].name;
    if (s->verb == BLOCK_LOAD)
        LINE(w, "const float v_%s = block_get(%s, inside, g_%s, ", name, gen_dtype_name(o->dtype),
             o->name);
    else
        LINE(w, "if (inside)\n%*smpk_put(%s, g_%s, ", w->indent + BLOCK_STEP, "", o->name, o->name);
    print_offset(w, o);
    if (s->verb == BLOCK_STORE) {
        text_print(w->out, ", ");
        print_entry(r, s->to);
    }
    text_print(w->out, ");\n");
    return MPK_OK;
}

/* Loops over a thread's entries of a tile: ra, rb, re number them. */
static void open_entries(block_printer *w, int8_t tile)
{
    static const char names[] = "abe";
    int32_t dims[3];
    const bool line = is_line(w, tile);
    fragment_dims(w->p, tile, dims);
    for (int i = 0; i < 3; i++) {
        if (line && i == 1)
            continue;
        const int step = line && i == 2 ? 2 : 1;
        LINE(w, "#pragma unroll\n");
        LINE(w, "for (int r%c = 0; r%c < %d; r%c += %d)%s\n", names[i], names[i], dims[i], names[i],
             step, i == 2 ? " {" : "");
    }
    w->indent += BLOCK_STEP;
}

/* Print the entry's place along an axis of its tile. */
static void print_position(const block_printer *w, int8_t tile, int side)
{
    if (!side)
        text_print(w->out, "block_row(warps, %d, ra, re)", block_extent(w->p, tile, 0));
    else if (w->p->tiles[tile].is_shared_out)
        text_print(w->out, "block_own_column(warps, rb, re)");
    else
        text_print(w->out, "block_column(warps, %d, rb, re)", block_extent(w->p, tile, 1));
}

/* Print the entry's place as variables named after the axes, and whether it lies inside the box. */
static void print_places(const block_printer *w, int8_t tile)
{
    const block_tile *t = &w->p->tiles[tile];
    for (int side = 0; side < 2; side++) {
        const char *x = block_axis_of(w, t->axis[side]);
        LINE(w, "const rt_i64 %s = %s0 + ", x, x);
        print_position(w, tile, side);
        text_print(w->out, ";\n");
    }
    const char *rows = block_axis_of(w, t->axis[0]), *columns = block_axis_of(w, t->axis[1]);
    LINE(w, "const bool inside = %s < %s_hi && %s < %s_hi;\n", rows, rows, columns, columns);
}

static void close_entries(block_printer *w)
{
    w->indent -= BLOCK_STEP;
    LINE(w, "}\n");
}

/* A map whose value goes to memory. */
static bool is_stored(const block_step *s)
{
    return s[0].verb == BLOCK_MAP && s[1].verb == BLOCK_STORE && s[1].to == s[0].to;
}

/* Does the store have neighbours of a thread's fragment that are neighbours in memory?  Then it is
 * a call of its own, which writes two at a time (block_put). */
static bool is_put(const block_printer *w, const block_step *s)
{
    if (s->verb != BLOCK_STORE || w->p->unit != BLOCK_MMA)
        return false;
    const block_tile *t = &w->p->tiles[s->to];
    return !t->is_shared_out && t->axis[1] != BLOCK_NONE &&
           w->p->operands[s->operand].stride[t->axis[1]] == 1;
}

/* The steps of one loop: loads, a map of them, the store of what it makes; before this map perhaps
 * one more, whose value is its first operand and is read nowhere else. */
static run find_run(block_printer *w, uint32_t i)
{
    const block_step *steps = w->p->steps;
    run r = {.w = w, .first = i, .at = i, .last = i, .is_rows = false};
    if (steps[i].verb == BLOCK_MAP && is_put(w, &steps[i + 1]))
        return r;
    while (steps[r.last].verb == BLOCK_LOAD)
        r.last++;
    if (steps[r.last].verb == BLOCK_MAP && is_stored(&steps[r.last + 1]) &&
        steps[r.last + 1].from[0] == steps[r.last].to)
        r.last++;
    if (steps[r.last].verb == BLOCK_MAP && steps[r.last + 1].verb == BLOCK_STORE &&
        steps[r.last + 1].to == steps[r.last].to)
        r.last++;
    return r;
}

/* Does the step multiply a fragment's entries by one number for each row, which is mostly 1? */
static bool is_rescaling(const block_printer *w, const block_step *s)
{
    return s->verb == BLOCK_MAP && s->n_from == 2 && s->to == s->from[0] && !is_line(w, s->to) &&
           is_line(w, s->from[1]) && w->p->unit == BLOCK_MMA &&
           strcmp(s->expression, "x0 * x1") == 0;
}

/* Print the loop that begins with step i; *last: its last step.  Where warps share the depth of a
 * product they all have the sum, so those of one part alone store it. */
static mpk_status print_entries(block_printer *w, uint32_t i, uint32_t *last)
{
    run r = find_run(w, i);
    const block_step *end = &w->p->steps[r.last];
    const bool stores = end->verb == BLOCK_STORE;
    if (!stores)
        print_fragment(w, end);
    if (stores && w->p->warps[2] > 1 && w->p->unit == BLOCK_MMA)
        LINE(w, "if (block_part(warps) == 0)\n");
    if (r.first == r.last && is_rescaling(w, end) && w->told_growth)
        LINE(w, "if (grown)\n");
    else if (r.first == r.last && is_rescaling(w, end) && !w->grown)
        LINE(w, "if (block_has_grown(r_%s))\n", w->p->tiles[end->from[1]].name);
    open_entries(w, end->to);
    if (stores || r.last > r.first)
        print_places(w, end->to);
    for (; r.at <= r.last; r.at++)
        TRY(print_of_entry(&r));
    close_entries(w);
    *last = r.last;
    return MPK_OK;
}

/* A fragment whose rows lie in memory as they are: "block_put(r_y, warps, 32, 64, out_y, g_out_y,
 * offset of the tile, offset from a row to the next, rows and columns of the box from here on)". */
static void print_put(const block_printer *w, const block_step *s)
{
    const block_tile *t = &w->p->tiles[s->to];
    const block_operand *o = &w->p->operands[s->operand];
    const char *m = block_axis_of(w, t->axis[0]), *n = block_axis_of(w, t->axis[1]);
    if (w->p->warps[2] > 1)
        LINE(w, "if (block_part(warps) == 0)\n%*s", BLOCK_STEP, "");
    LINE(w,
         "block_put(r_%s, warps, %d, %d, %s, g_%s, %s0 * %lldll + %s0, %lldll, %s_hi - %s0, "
         "%s_hi - %s0);\n",
         t->name, block_extent(w->p, s->to, 0), block_extent(w->p, s->to, 1), o->name, o->name, m,
         (long long)o->stride[t->axis[0]], n, (long long)o->stride[t->axis[0]], m, m, n, n);
}

/* ---- ends by rows ---- */

/* The sums at the end of a program, from registers into shared memory: "block_put_sums(r_sum0,
 * warps, 64, 32, t.s_scratch + 0)"; returns where the next may begin. */
static uint32_t print_sums(const block_printer *w, int8_t sum, uint32_t offset)
{
    const int8_t of = block_parts_of(w->p, sum);
    const int32_t rows = block_extent(w->p, sum, 0), columns = block_extent(w->p, sum, 1);
    const uint32_t parts = w->p->tiles[of].parts > 1 ? w->p->tiles[of].parts : 1;
    LINE(w, "block_put_sums(r_%s, warps, %d, %d, (float *)(t.s_scratch + %u));\n",
         w->p->tiles[of].name, rows, columns, offset);
    return offset + parts * (uint32_t)rows * (uint32_t)(columns + BLOCK_ROW_GAP) * 4;
}

/* Add up all parts of a row's sums in shared memory, into v_NAME; returns where the next sum
 * begins. */
static uint32_t print_take_sums(const block_printer *w, int8_t sum, uint32_t offset)
{
    const int8_t of = block_parts_of(w->p, sum);
    const int32_t rows = block_extent(w->p, sum, 0), columns = block_extent(w->p, sum, 1);
    const uint32_t parts = w->p->tiles[of].parts > 1 ? w->p->tiles[of].parts : 1;
    const char *name = w->p->tiles[sum].name;
    LINE(w, "float v_%s[ROWS_PIECE];\n", name);
    LINE(w, "block_take_sums<%u>(v_%s, (const float *)(t.s_scratch + %u), %d, %d, row, column);\n",
         parts, name, offset, rows, columns);
    return offset + parts * (uint32_t)rows * (uint32_t)(columns + BLOCK_ROW_GAP) * 4;
}

/* Print the arguments "operand, offset of its entries" for a row, from column n on. */
static void print_row_of(const block_printer *w, const block_operand *o)
{
    text_print(w->out, "%s, g_%s, ", o->name, o->name);
    print_offset(w, o);
}

/* Is the operand the same for all rows of the result (a row of its own, or one number)? */
static bool is_of_columns(const block_printer *w, const block_step *s)
{
    return s->verb == BLOCK_LOAD &&
           w->p->tiles[s->to].axis[0] != w->p->tiles[w->p->steps[w->end.last].to].axis[0];
}

/* A load of an end by rows: "float v_more0[ROWS_PIECE]; block_get_row<1>(in_more0, g_in_more0,
 * n * 1ll, left, v_more0);", or of what was fetched. */
static void print_row_load(const block_printer *w, const block_end *e, uint32_t i)
{
    const block_step *s = &w->p->steps[i];
    const block_operand *o = &w->p->operands[s->operand];
    const char *name = w->p->tiles[s->to].name;
    const uint32_t fetched = block_fetched_at(w->p, e, i);
    LINE(w, "float v_%s[ROWS_PIECE];\n", name);
    if (fetched)
        LINE(w, "block_take_row(t.s_scratch + %u + i * 16, ", fetched);
    else
        LINE(w, "block_get_row<%lld>(",
             (long long)o->stride[w->p->tiles[w->p->steps[e->last].to].axis[1]]);
    print_row_of(w, o);
    text_print(w->out, ", left, v_%s);\n", name);
}

/* What an end by rows does with the entries at hand: loads, then maps entry by entry, the store.
 * All loads come first, so that their latencies overlap; the maps between them and the store need
 * none. */
static mpk_status print_row_steps(block_printer *w, const block_end *e)
{
    const block_step *steps = w->p->steps, *store = &steps[e->last];
    run r = {.w = w, .first = e->first, .at = e->first, .last = e->last, .is_rows = true};
    for (; steps[r.at].verb == BLOCK_LOAD; r.at++)
        if (!is_of_columns(w, &steps[r.at]))
            print_row_load(w, e, r.at);
    for (uint32_t i = r.at; i < e->last; i++)
        LINE(w, "float v_%s[ROWS_PIECE];\n", w->p->tiles[steps[i].to].name);
    if (r.at < e->last) {
        LINE(w, "#pragma unroll\n");
        LINE(w, "for (int re = 0; re < ROWS_PIECE; re++) {\n");
        w->indent += BLOCK_STEP;
        for (; r.at < e->last; r.at++)
            TRY(print_map(&r, &steps[r.at]));
        close_entries(w);
    }
    LINE(w, "block_put_row(");
    print_row_of(w, &w->p->operands[store->operand]);
    text_print(w->out, ", left, v_%s);\n", w->p->tiles[store->to].name);
    return MPK_OK;
}

/* The end of a program by rows.  Sums go through shared memory, in place of the tiles, so that a
 * thread has entries that are neighbours: it loads and stores 16 bytes at once, and the code, most
 * of which runs once a task and so comes from L2, is that of a few entries.  All its entries are in
 * the same columns, so what has one row for all is loaded once, while sums are on their way. */
static mpk_status print_rows(block_printer *w, const block_end *e)
{
    const int8_t y = w->p->steps[e->last].to;
    const int32_t rows = block_extent(w->p, y, 0), columns = block_extent(w->p, y, 1);
    const char *m = block_axis_of(w, w->p->tiles[y].axis[0]),
               *n = block_axis_of(w, w->p->tiles[y].axis[1]);
    LINE(w, "const int column = mpk_kept_thread() %% %d * ROWS_PIECE;\n", columns / ROWS_PIECE);
    LINE(w, "const rt_i64 %s = %s0 + column;\n", n, n);
    LINE(w, "const int left = (int)(%s_hi - %s); /* none where it is negative */\n", n, n);
    for (uint32_t i = e->first; i < e->last; i++)
        if (is_of_columns(w, &w->p->steps[i]))
            print_row_load(w, e, i);
    LINE(w, "mpk_sync();\n");
    for (uint32_t i = 0, at = 0; i < e->n_sums; i++)
        at = print_sums(w, e->sums[i], at);
    LINE(w, "ptx_copy_async_wait<0>();\n");
    LINE(w, "mpk_sync();\n");
    LINE(w, "#pragma unroll 1\n");
    LINE(w, "for (int i = mpk_kept_thread(); i < %d && left > 0; i += MPK_THREADS) {\n",
         rows * columns / ROWS_PIECE);
    w->indent += BLOCK_STEP;
    LINE(w, "const int row = i / %d;\n", columns / ROWS_PIECE);
    LINE(w, "const rt_i64 %s = %s0 + row;\n", m, m);
    LINE(w, "if (%s >= %s_hi)\n%*sbreak;\n", m, m, w->indent + BLOCK_STEP, "");
    for (uint32_t i = 0, at = 0; i < e->n_sums; i++)
        at = print_take_sums(w, e->sums[i], at);
    TRY(print_row_steps(w, e));
    close_entries(w);
    return MPK_OK;
}

/* Scores that do not count become -inf: beyond the end of the axis, after the query (causal), or
 * before its window.  Tiles that lie wholly before the end, or before all queries, are passed
 * over. */
static void print_bound(block_printer *w, const block_step *s)
{
    const block_tile *t = &w->p->tiles[s->to];
    const char *row = block_axis_of(w, t->axis[0]), *column = block_axis_of(w, t->axis[1]),
               *x = block_axis_of(w, s->axis);
    const int tile = w->p->axes[s->axis].tile;
    if (s->bound == BLOCK_END_OF_AXIS)
        LINE(w, "if (%s0 + %d > %s_hi)\n", x, tile, x);
    else if (s->bound == BLOCK_CAUSAL)
        LINE(w, "if (%s0 + %d > %s0 + 1)\n", column, block_extent(w->p, s->to, 1), row);
    open_entries(w, s->to);
    print_places(w, s->to);
    if (s->bound == BLOCK_END_OF_AXIS)
        LINE(w, "if (%s >= %s_hi)\n", x, x);
    else if (s->bound == BLOCK_CAUSAL)
        LINE(w, "if (%s > %s)\n", column, row);
    else
        LINE(w, "if (%s <= %s - %.0f)\n", column, row, s->number);
    LINE(w, "%*s", BLOCK_STEP, "");
    print_array_entry(w, s->to);
    text_print(w->out, " = -MPK_INFINITY;\n");
    close_entries(w);
}

/* ---- the whole ---- */

/* An end by rows adds up the parts of its sums itself. */
static bool is_added_by_rows(const block_printer *w, const block_step *s)
{
    bool added = false;
    for (uint32_t i = 0; w->ends_by_rows && i < w->end.n_sums; i++)
        added = added || (s->verb == BLOCK_ADD && s->to == w->end.sums[i]);
    return added;
}

/* One step, or the several that are printed as one; *i is the last of them afterwards. */
static mpk_status print_step(block_printer *w, uint32_t *i)
{
    const block_step *s = &w->p->steps[*i];
    if (is_added_by_rows(w, s))
        return MPK_OK;
    block_print_arrivals(w, *i);
    if (w->ends_by_rows && *i == w->end.first) {
        *i = w->end.last;
        return print_rows(w, &w->end);
    }
    if (is_put(w, s))
        print_put(w, s);
    else if (is_of_entries(w, s))
        return print_entries(w, *i, i);
    else if (block_is_copy(w->p, s))
        *i = block_print_loads(w, *i);
    else if (s->verb == BLOCK_LOOP)
        print_loop(w, s);
    else if (s->verb == BLOCK_END)
        print_end(w);
    else if (s->verb == BLOCK_SYNC)
        LINE(w, "mpk_sync();\n");
    else if (s->verb == BLOCK_WAIT)
        print_wait(w, s);
    else if (s->verb == BLOCK_TURN)
        LINE(w, "block_turn<%u>();\n", s->pending);
    else if (s->verb == BLOCK_PASS)
        LINE(w, "block_turn_pass();\n");
    else if (s->verb == BLOCK_GROWN)
        print_grown(w, s);
    else if (s->verb == BLOCK_FILL)
        print_fill(w, s);
    else if (s->verb == BLOCK_MULTIPLY)
        block_print_multiply(w, s);
    else if (s->verb == BLOCK_BOUND)
        print_bound(w, s);
    else if (is_line(w, s->to) && is_line(w, s->from[0]))
        print_join(w, s);
    else if (s->verb == BLOCK_ADD)
        print_add(w, s);
    else
        print_reduction(w, s);
    return MPK_OK;
}

/* An axis without a loop is covered by one tile, which begins where the box does. */
static bool has_loop(const block_program *p, int8_t axis)
{
    for (uint32_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].verb == BLOCK_LOOP && p->steps[i].axis == axis)
            return true;
    return false;
}

/* Are both factors of all products shared tiles of tensor cores, and no columns shared out? */
static bool plans_reads(const block_program *p)
{
    bool plain = p->unit == BLOCK_MMA;
    for (uint32_t i = 0; i < p->n_tiles; i++)
        plain = plain && !p->tiles[i].is_shared_out;
    return plain;
}

/* The statements of one body, in order: how warps share tiles, shared tiles, windows, beginnings
 * of axes that no loop goes along, then the steps.  print_step may take several steps at once.
 */
mpk_status gen_print_block(mpk_context *cx, const block_program *p, text *out)
{
    block_printer w = {.cx = cx, .p = p, .out = out, .indent = BLOCK_STEP};
    w.ends_by_rows = block_find_end(p, &w.end);
    w.plans_reads = plans_reads(p);
    LINE(&w, "static constexpr block_warps warps = {{%u, %u, %u}, %s};\n", p->warps[0], p->warps[1],
         p->warps[2], str_bool(p->unit == BLOCK_MMA));
    for (int8_t i = 0; i < (int8_t)p->n_tiles; i++)
        if (p->tiles[i].space == BLOCK_SHARED)
            print_tile(&w, i);
    for (uint32_t i = 0; i < p->n_operands; i++)
        if (p->operands[i].window)
            print_window(&w, &p->operands[i]);
    for (int8_t i = 0; i < (int8_t)p->n_axes; i++)
        if (!has_loop(p, i))
            LINE(&w, "const rt_i64 %s0 = %s_lo;\n", block_axis_of(&w, i), block_axis_of(&w, i));
    for (uint32_t i = 0; i < p->n_steps; i++)
        TRY(print_step(&w, &i));
    return MPK_OK;
}
