/* block_print_products.c - the products of block programs as CUDA C (block_printer.h): calls of
 * device/task/block.cuh, block_patch.cuh and block_group.cuh.
 *
 * Which function multiplies depends on the unit, on where the left factor lies, and on whether the
 * loop's reads of shared memory are planned.  Called by block_print.c, whose head tells the names
 * in printed code. */
#include "gen/block_printer.h"

void block_print_copy_of(const block_printer *w, const block_tile *t, uint32_t after)
{
    if (!w->counts_copies)
        text_print(w->out, "(iteration + %u) %% %u", after, t->stages);
    else if (after)
        text_print(w->out, "block_group_copy_of(turn_%u + %u, %u)", t->stages, after, t->stages);
    else
        text_print(w->out, "turn_%u", t->stages);
}

/* A tile in shared memory as arguments: its description, and the copy of it that this iteration
 * reads, where the lane's reads begin if they are planned. */
static void print_copy(const block_printer *w, const block_step *s, int8_t tile)
{
    const block_tile *t = &w->p->tiles[tile];
    if (t->patch) {
        text_print(w->out, "tile_%s, reads_%s + iteration / %lld %% %u * tile_%s.copy_bytes, ",
                   t->name, t->name, (long long)block_rounds(&w->p->axes[t->axis[1]]), t->stages,
                   t->name);
        return;
    }
    if (w->plans_reads && w->ahead) {
        text_print(w->out, "tile_%s, reads_%s + block_copy_after(next, %u) * tile_%s.copy_bytes",
                   t->name, t->name, t->stages, t->name);
        return;
    }
    if (w->p->by_groups) { /* a late product's is that of the iteration before */
        text_print(w->out, "tile_%s, block_group_at(matrix_%s, ", t->name, t->name);
        block_print_copy_of(w, t, s->is_late ? t->stages - 1u : 0);
        text_print(w->out, " * (tile_%s.copy_bytes / 16))", t->name);
        return;
    }
    text_print(w->out, "tile_%s, t.s_scratch + tile_%s.offset", t->name, t->name);
    if (t->stages > 1)
        text_print(w->out, " + iteration %% %u * tile_%s.copy_bytes", t->stages, t->name);
}

/* Products of warpgroups: "block_group_multiply(r_scores, tile_q, rows_q, tile_k, ...)" of two
 * shared factors, "block_group_add(r_sums, p_weights, tile_v, ..., iteration != 1)" of one that
 * registers have kept: the first iteration had none to keep, and what its product gave does not
 * count. */
static void print_group_multiply(block_printer *w, const block_step *s)
{
    const bool shared = w->p->tiles[s->from[0]].space == BLOCK_SHARED;
    const char *first = w->p->tiles[s->from[0]].name;
    LINE(w, "block_group_%s(r_%s, ", shared ? "multiply" : "add", w->p->tiles[s->to].name);
    if (shared)
        text_print(w->out, "tile_%s, rows_%s", first, first);
    else
        text_print(w->out, "p_%s", first);
    text_print(w->out, ", ");
    print_copy(w, s, s->from[1]);
    text_print(w->out, shared ? ");\n" : ", iteration != 1);\n");
    w->flying[w->n_flying++] = s->to;
}

static bool touches(const block_step *s, int8_t tile)
{
    bool found = s->to == tile;
    for (uint32_t i = 0; i < s->n_from; i++)
        found = found || s->from[i] == tile;
    return found;
}

/* The first n products that are in flight have ended: groups end in the order of their issue. */
static void print_arrivals(block_printer *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        LINE(w, "block_group_arrive<%u>(r_%s);\n", w->n_flying - n, w->p->tiles[w->flying[i]].name);
    w->n_flying -= n;
    memmove(w->flying, w->flying + n, w->n_flying);
}

void block_print_arrivals(block_printer *w, uint32_t i)
{
    const block_step *steps = w->p->steps;
    const uint32_t last = steps[i].verb == BLOCK_GROWN ? block_end_of(w->p, i) : i;
    uint32_t n = 0;
    for (uint32_t f = 0; f < w->n_flying; f++)
        for (uint32_t k = i; k <= last; k++)
            if (touches(&steps[k], w->flying[f]))
                n = f + 1;
    print_arrivals(w, n);
}

void block_print_all_arrivals(block_printer *w)
{
    print_arrivals(w, w->n_flying);
}

/* The late product from step i of a loop on; NULL: there is no other. */
static const block_step *find_late(const block_printer *w, const block_step *loop,
                                   const block_step *from)
{
    const block_step *end = &w->p->steps[block_end_of(w->p, (uint32_t)(loop - w->p->steps))];
    for (const block_step *s = from; s < end; s++)
        if (s->is_late)
            return s;
    return NULL;
}

void block_print_kept(const block_printer *w, const block_step *loop)
{
    for (const block_step *s = loop; (s = find_late(w, loop, s)); s++) {
        LINE(w, "rt_u32 p_%s[4][4];\n", w->p->tiles[s->from[0]].name);
        LINE(w, "block_group_keep_none(p_%s);\n", w->p->tiles[s->from[0]].name);
    }
}

void block_print_keep(const block_printer *w, const block_step *loop)
{
    for (const block_step *s = loop; (s = find_late(w, loop, s)); s++)
        LINE(w, "block_group_keep(p_%s, tile_%s.dtype, r_%s);\n", w->p->tiles[s->from[0]].name,
             w->p->tiles[s->from[1]].name, w->p->tiles[s->from[0]].name);
}

void block_print_last(block_printer *w, const block_step *loop)
{
    bool turns = false;
    for (const block_step *s = loop; s < &w->p->steps[w->p->n_steps]; s++)
        turns = turns || s->verb == BLOCK_TURN;
    LINE(w, "block_%s();\n", turns ? "turns_end" : "group_wait<0>");
    for (const block_step *s = loop; (s = find_late(w, loop, s)); s++)
        print_group_multiply(w, s);
    block_print_all_arrivals(w);
}

/* The end of the name of block_multiply_*: by CUDA cores; by tensor cores with the left factor in
 * shared memory, as a patch, in a loop with planned reads, or not; the same with that factor kept
 * in registers by an earlier product. */
static const char *multiply_name(const block_printer *w, const block_tile *left)
{
    if (w->p->unit != BLOCK_MMA)
        return "fma";
    if (left->patch)
        return "patch";
    if (w->plans_reads && w->ahead)
        return "planned";
    return left->space == BLOCK_SHARED ? "mma" : "kept";
}

/* Of a patch: the lane's pixels, and how far this iteration's are from them. */
static void print_shift(const block_printer *w, const block_tile *a)
{
    const char *window = "";
    for (uint32_t i = 0; i < w->p->n_operands; i++)
        window = w->p->operands[i].window ? w->p->operands[i].name : window;
    text_print(w->out, "pixels_%s, block_shift(window_%s, iteration %% %lld)", a->name, window,
               (long long)block_rounds(&w->p->axes[a->axis[1]]));
}

/* Sums are added to a fragment; which function does it depends on the unit and on where the left
 * factor lies.  The flags say whether a factor is stored with its axes exchanged. */
void block_print_multiply(block_printer *w, const block_step *s)
{
    const block_tile *y = &w->p->tiles[s->to], *a = &w->p->tiles[s->from[0]],
                     *b = &w->p->tiles[s->from[1]];
    const bool mma = w->p->unit == BLOCK_MMA;
    const bool planned = w->plans_reads && w->ahead;
    if (w->p->by_groups) {
        print_group_multiply(w, s);
        return;
    }
    LINE(w, "block_multiply_%s(r_%s, ", multiply_name(w, a), y->name);
    text_print(w->out, mma ? "warps, " : "");
    if (mma && !planned && a->space == BLOCK_SHARED)
        text_print(w->out, "%s, ", str_bool(y->is_shared_out));
    if (a->space == BLOCK_SHARED)
        print_copy(w, s, s->from[0]);
    else
        text_print(w->out, "r_%s", a->name);
    if (a->patch)
        print_shift(w, a);
    else if (mma && a->space == BLOCK_SHARED)
        text_print(w->out, ", %s", str_bool(a->axis[1] == y->axis[0]));
    text_print(w->out, ", ");
    print_copy(w, s, s->from[1]);
    if (mma)
        text_print(w->out, ", %s", str_bool(b->axis[0] == y->axis[1]));
    text_print(w->out, ");\n");
}
