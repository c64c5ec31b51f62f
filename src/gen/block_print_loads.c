/* block_print_loads.c - the loads of block programs as CUDA C (block_printer.h): calls of
 * device/task/block.cuh, and what stands in front of a loop for them.
 *
 * Copies of 16 bytes in a loop are planned before it: `copies_NAME` and `spots_NAME` have what they
 * share in all iterations.  Of a tile b[n, k] in a loop over k that loads one iteration ahead:
 *
 *   block_copies<BLOCK_COPIES(tile_b)> copies_b;                        before the loop
 *   block_find_copies(copies_b, tile_b, false, g_in_b + (...) * 2, ...);
 *   ...
 *   const rt_i64 k_next = k_lo + ((rt_i64)iteration + 1) * 32;               in it
 *   if (k_next < k_hi) {
 *       block_copy(tile_b, t.s_scratch + tile_b.offset + ..., copies_b, ...);
 *   }
 *   ptx_copy_async_commit();
 *
 * Called by block_print.c, whose head tells the names in printed code. */
#include "gen/block_printer.h"

/* "m0 * 64", in entries: where a tile of an operand begins, without the axis `but`. */
static void print_begin(const block_printer *w, const block_operand *o, int8_t but)
{
    bool any = false;
    for (uint32_t i = 0; i < w->p->n_axes; i++) {
        if (!o->stride[i] || (int8_t)i == but)
            continue;
        text_print(w->out, "%s%s0 * %lldll", any ? " + " : "", w->p->axes[i].name,
                   (long long)o->stride[i]);
        any = true;
    }
    text_print(w->out, any ? "" : "0");
}

/* Is it a load of the loop at hand that copies bring, so that what its copies share in all
 * iterations is found before?  Tiles have the loop's axis. */
static bool is_found(const block_printer *w, const block_step *loop, const block_step *s)
{
    const block_tile *t = s->verb == BLOCK_LOAD ? &w->p->tiles[s->to] : NULL;
    return loop && t && t->space == BLOCK_SHARED &&
           (t->axis[0] == loop->axis || t->axis[1] == loop->axis) &&
           super_is_copied(w->p, s->to, &w->p->operands[s->operand]);
}

/* In front of a loop: the copies of a patch, and the pixels with which this lane's rows begin. */
static void print_found_patch(const block_printer *w, const block_step *s)
{
    const block_operand *o = &w->p->operands[s->operand];
    const block_tile *t = &w->p->tiles[s->to];
    const char *m = block_axis_of(w, t->axis[0]);
    const int32_t rows = block_extent(w->p, s->to, 0);
    LINE(w, "const block_rows rows_%s = {%s0, %s_hi, %d};\n", t->name, m, m, rows);
    LINE(w, "block_patch<BLOCK_COPIES(tile_%s)> patch_%s;\n", t->name, t->name);
    LINE(w, "block_find_patch(patch_%s, tile_%s, window_%s, rows_%s);\n", t->name, t->name, o->name,
         t->name);
    LINE(w, "int pixels_%s[%d];\n", t->name, rows / BLOCK_MMA_ROWS / w->p->warps[0]);
    LINE(w, "block_find_pixels(pixels_%s, warps, window_%s, rows_%s);\n", t->name, o->name,
         t->name);
}

/* In front of a loop by warpgroups, whose tiles have its axis as rows: the lane's first copies. */
static void print_found_group(const block_printer *w, const block_step *loop, const block_step *s)
{
    const block_operand *o = &w->p->operands[s->operand];
    const block_tile *t = &w->p->tiles[s->to];
    const char *x = block_axis_of(w, t->axis[1]), *rows = block_axis_of(w, loop->axis);
    LINE(w, "block_group_copies copies_%s;\n", t->name);
    LINE(w, "block_group_find(copies_%s, tile_%s, t.s_scratch + tile_%s.offset, g_%s + (", t->name,
         t->name, t->name, o->name);
    print_begin(w, o, loop->axis);
    text_print(w->out, " + %s_lo * %lldll) * %u, %lldll, %s_hi - %s_lo, %s_hi - %s0);\n", rows,
               (long long)o->stride[loop->axis], ir_dtype_table[o->dtype].block_bytes,
               (long long)o->stride[t->axis[0]], rows, rows, x, x);
}

/* In front of a loop: what the copies of a tile have in common in all its iterations. */
static void print_found_load(const block_printer *w, const block_step *loop, const block_step *s)
{
    const block_operand *o = &w->p->operands[s->operand];
    const block_tile *t = &w->p->tiles[s->to];
    const bool by_rows = t->axis[0] == loop->axis;
    const char *x = block_axis_of(w, t->axis[by_rows ? 1 : 0]);
    const char *kind = o->window ? "spots" : "copies";
    if (t->patch) {
        print_found_patch(w, s);
        return;
    }
    if (block_has_late(w->p, (uint32_t)(loop - w->p->steps))) {
        print_found_group(w, loop, s);
        return;
    }
    LINE(w, "block_%s<BLOCK_COPIES(tile_%s)> %s_%s;\n", kind, t->name, kind, t->name);
    LINE(w, "block_find_%s(%s_%s, tile_%s, ", kind, kind, t->name, t->name);
    if (o->window) {
        text_print(w->out, "window_%s, %s0, %s_hi - %s0);\n", o->name, x, x, x);
        return;
    }
    text_print(w->out, "%s, g_%s + (", str_bool(by_rows), o->name);
    print_begin(w, o, loop->axis);
    text_print(w->out, ") * %u, %lldll, %s_hi - %s0);\n", ir_dtype_table[o->dtype].block_bytes,
               (long long)o->stride[t->axis[0]], x, x);
}
/* In front of a loop: where this lane's reads of a factor begin, in its first copy.  side: 0: it
 * is the first factor; 1: the second. */
static void print_found_reads(const block_printer *w, const block_step *s, int side)
{
    const block_tile *t = &w->p->tiles[s->from[side]], *y = &w->p->tiles[s->to];
    const int32_t fields = block_extent(w->p, s->to, side) / w->p->warps[side];
    if (t->patch) {
        LINE(w, "const rt_u32 reads_%s = ptx_shared(t.s_scratch + tile_%s.offset);\n", t->name,
             t->name);
        return;
    }
    LINE(w,
         "const rt_u32 reads_%s = block_find_%s(tile_%s, t.s_scratch + tile_%s.offset, warps, "
         "%s, %d);\n",
         t->name, side ? "columns" : "rows", t->name, t->name,
         str_bool(t->axis[1 - side] == y->axis[side]), fields);
}

/* Print all that is found in front of a loop, for each load from its beginning to its end. */
void block_print_found(const block_printer *w, const block_step *loop)
{
    const uint32_t begin = (uint32_t)(loop - w->p->steps), end = block_end_of(w->p, begin);
    for (uint32_t i = begin + 1; i < end; i++)
        if (is_found(w, loop, &w->p->steps[i]))
            print_found_load(w, loop, &w->p->steps[i]);
    const block_step *first = NULL; /* products of a loop share their first factor */
    for (uint32_t i = begin + 1; w->plans_reads && i < end; i++) {
        const block_step *s = &w->p->steps[i];
        if (s->verb != BLOCK_MULTIPLY)
            continue;
        if (!first)
            print_found_reads(w, first = s, 0);
        print_found_reads(w, s, 1);
    }
}

/* "m0 * 64 + k_next * 1", in entries; the axis of a loop that is ahead stands where its load is. */
static void print_place(const block_printer *w, const block_operand *o, const char *next)
{
    bool any = false;
    for (uint32_t i = 0; i < w->p->n_axes; i++) {
        if (!o->stride[i])
            continue;
        const bool is_ahead = w->ahead && w->ahead->axis == (int8_t)i;
        const char *end = is_ahead ? next : "0";
        text_print(w->out, any ? " + " : "");
        text_print(w->out, "%s%s * %lldll", w->p->axes[i].name, end, (long long)o->stride[i]);
        any = true;
    }
    text_print(w->out, any ? "" : "0");
}

/* What is left of the box from the tile's beginning on: ", k_hi - k_next". */
static void print_left(const block_printer *w, int8_t axis)
{
    const char *x = block_axis_of(w, axis);
    text_print(w->out, ", %s_hi - %s%s", x, x, w->ahead && w->ahead->axis == axis ? "_next" : "0");
}

/* Where a tile begins along an axis: "k_next". */
static void print_first(const block_printer *w, int8_t axis)
{
    text_print(w->out, ", %s%s", block_axis_of(w, axis),
               w->ahead && w->ahead->axis == axis ? "_next" : "0");
}

/* The rest of a call of block_load_window, or of block_copy_window. */
static void print_window_load(const block_printer *w, const block_tile *t, const block_operand *o,
                              bool copied)
{
    const bool by_rows = o->stride[t->axis[0]] == 1;
    const int8_t places = t->axis[by_rows ? 0 : 1];
    const int8_t entries = t->axis[by_rows ? 1 : 0];
    if (copied)
        text_print(w->out, ", window_%s, spots_%s, g_%s", o->name, t->name, o->name);
    else
        text_print(w->out, ", window_%s, %s, %s.dtype, g_%s", o->name, str_bool(by_rows), o->name,
                   o->name);
    if (!copied)
        print_first(w, places);
    print_first(w, entries);
    if (!copied)
        print_left(w, places);
    print_left(w, entries);
    text_print(w->out, ");\n");
}

/* Does a loop have whole tiles only?  Where scores are bounded the box ends earlier than the axis,
 * and what lies after it must not be read. */
static bool has_whole_tiles(const block_program *p, const block_axis *a)
{
    bool whole = !a->is_cut && a->extent % a->tile == 0;
    for (uint32_t i = 0; i < p->n_steps; i++)
        whole = whole && p->steps[i].verb != BLOCK_BOUND;
    return whole;
}

/* The rest of a call of block_copy: an iteration's part of a tile. */
static void print_iteration_load(const block_printer *w, const block_tile *t,
                                 const block_operand *o)
{
    const int8_t axis = w->ahead->axis;
    const char *x = block_axis_of(w, axis);
    const bool whole = has_whole_tiles(w->p, &w->p->axes[axis]);
    text_print(w->out, ", copies_%s, %s, %s", t->name, str_bool(t->axis[0] == axis),
               str_bool(whole));
    text_print(w->out, ", %lldll, %s_next * %lldll, %s_hi - %s_next);\n",
               (long long)o->stride[t->axis[0]], x,
               (long long)(o->stride[axis] * ir_dtype_table[o->dtype].block_bytes), x, x);
}

/* The function of block.cuh that loads the tile. */
static const char *load_name(const block_printer *w, const block_step *s)
{
    const block_operand *o = &w->p->operands[s->operand];
    if (is_found(w, w->ahead, s))
        return o->window ? "copy_window" : "copy";
    return o->window ? "load_window" : "load";
}

/* A load into shared memory, of which a thread does its part; it arrives when the group is waited
 * for. */
static void print_load(const block_printer *w, const block_step *s)
{
    const block_tile *t = &w->p->tiles[s->to];
    const block_operand *o = &w->p->operands[s->operand];
    const bool copied = super_is_copied(w->p, s->to, o), found = is_found(w, w->ahead, s);
    if (t->patch) {
        LINE(w, "if (load_round == 0)\n");
        LINE(w,
             "    block_copy_patch(tile_%s, t.s_scratch + tile_%s.offset + load_tile %% %u * "
             "tile_%s.copy_bytes, patch_%s, window_%s, rows_%s, g_%s, load_tile * %d);\n",
             t->name, t->name, t->stages, t->name, t->name, o->name, t->name, o->name,
             block_extent(w->p, s->to, 1));
        return;
    }
    if (w->has_late) {
        LINE(w, "block_group_copy(tile_%s, ", t->name);
        block_print_copy_of(w, t, w->ahead->ahead);
        text_print(w->out, ", copies_%s, %lldll);\n", t->name, (long long)o->stride[t->axis[0]]);
        return;
    }
    LINE(w, "block_%s(tile_%s, t.s_scratch + tile_%s.offset", load_name(w, s), t->name, t->name);
    if (w->ahead && w->plans_reads)
        text_print(w->out, " + next * tile_%s.copy_bytes", t->name);
    else if (w->ahead) {
        text_print(w->out, " + ");
        block_print_copy_of(w, t, w->ahead->ahead);
        text_print(w->out, " * tile_%s.copy_bytes", t->name);
    }
    if (o->window) {
        print_window_load(w, t, o, found);
        return;
    }
    if (found) {
        print_iteration_load(w, t, o);
        return;
    }
    text_print(w->out, ", %s, %s.dtype, g_%s + (", str_bool(copied), o->name, o->name);
    print_place(w, o, "_next");
    text_print(w->out, ") * %u, %lldll, %lldll", ir_dtype_table[o->dtype].block_bytes,
               (long long)o->stride[t->axis[0]], (long long)o->stride[t->axis[1]]);
    print_left(w, t->axis[0]);
    print_left(w, t->axis[1]);
    text_print(w->out, ");\n");
}

/* With runs the iteration that is loaded is number load_round of a round over them, at tile
 * load_tile of each. */
void block_print_next(const block_printer *w, const block_step *loop)
{
    const block_axis *a = &w->p->axes[loop->axis];
    const char *x = block_axis_of(w, loop->axis);
    if (!a->run) {
        LINE(w, "const rt_i64 %s_next = %s_lo + ((rt_i64)iteration + %u) * %d;\n", x, x,
             loop->ahead, a->tile);
        return;
    }
    LINE(w,
         "const int load_round = (iteration + %u) %% %lld, load_tile = (iteration + %u) / %lld;\n",
         loop->ahead, (long long)block_rounds(a), loop->ahead, (long long)block_rounds(a));
    LINE(w, "const rt_i64 %s_next = %s_lo + load_round * %lldll + load_tile * %d;\n", x, x,
         (long long)a->run, a->tile);
}

/* In the first iteration that loads nothing: fetch the operands of the end by rows. */
static void print_fetches(const block_printer *w, const block_step *loop)
{
    const block_program *p = w->p;
    const char *x = block_axis_of(w, loop->axis);
    bool any = false;
    for (uint32_t i = w->end.first; w->ends_by_rows && i < w->end.last; i++) {
        const uint32_t at = block_fetched_at(p, &w->end, i);
        const block_step *s = &p->steps[i];
        if (!at)
            continue;
        if (!any)
            LINE(w, "} else if (%s_lo + ((rt_i64)iteration + %u) * %d < %s_hi) {\n", x,
                 loop->ahead - 1u, p->axes[loop->axis].tile, x);
        any = true;
        const block_tile *t = &p->tiles[s->to];
        const block_operand *o = &p->operands[s->operand];
        const char *m = block_axis_of(w, t->axis[0]), *n = block_axis_of(w, t->axis[1]);
        const long long step = (long long)o->stride[t->axis[0]];
        LINE(w,
             "    block_fetch_rows(g_%s + (%s0 * %lldll + %s0) * 2, %lldll, %d, %d, %s_hi - %s0, "
             "%s_hi - %s0, t.s_scratch + %u);\n",
             o->name, m, step, n, step, block_extent(p, s->to, 0), block_extent(p, s->to, 1), m, m,
             n, n, at);
    }
}

/* Print the loads from step i on that follow each other as one group of copies, for which a later
 * step waits.  Returns the last of them.  In iterations before 0 the loop's body ends here. */
uint32_t block_print_loads(block_printer *w, uint32_t i)
{
    const block_step *loop = w->has_late ? NULL : w->ahead; /* warpgroups' copies need no guard */
    if (loop) {
        const char *x = block_axis_of(w, loop->axis);
        const int tile = w->p->axes[loop->axis].tile;
        block_print_next(w, loop);
        if (w->p->axes[loop->axis].run)
            LINE(w, "if (%s_lo + ((rt_i64)iteration + %u) * %d < %s_hi) {\n", x, loop->ahead, tile,
                 x);
        else
            LINE(w, "if (%s_next < %s_hi) {\n", x, x);
        w->indent += BLOCK_STEP;
    }
    for (; block_is_copy(w->p, &w->p->steps[i]); i++)
        print_load(w, &w->p->steps[i]);
    if (loop) {
        w->indent -= BLOCK_STEP;
        print_fetches(w, loop);
        LINE(w, "}\n");
    }
    LINE(w, "ptx_copy_async_commit();\n");
    if (loop)
        LINE(w, "if (iteration < 0)\n%*scontinue;\n", w->indent + BLOCK_STEP, "");
    return i - 1;
}
