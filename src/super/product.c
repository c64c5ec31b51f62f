/* product.c - products with what follows them: the region, candidates, their cost, and the
 * search (super.h).
 *
 * Input: shapes, strides and dtypes of a product, and the expression after it.  Output: the
 * cheapest block program that was proved right.  Called by gen/choices.c for products and
 * convolutions without a hand-written body.
 *
 * Idea of the candidates: a task's box is covered tile by tile; for each tile, parts of both
 * factors come into shared memory `stages` - 1 iterations ahead of the products, eight warps divide
 * the tile (and, where it is small, the depth), and what follows the sums is applied to
 * fragments before they are stored.  So a candidate has a tile of m x n x k, a division of the
 * warps and a number of stages; layouts follow from the fewest bank conflicts.
 *
 * The cost is a model and nothing is measured here, so that a choice is the same on every
 * machine; its constants are those of an H100.
 */
#include "super/super.h"

const super_target super_target_usual = {.scratch_bytes = 48 << 10, .registers = 64};

/* What a candidate's text follows from. */
typedef struct recipe {
    /* of a tile, in entries */
    int32_t m, n, k;
    uint8_t warps[3], stages;
    bool patches; /* the first factor, which has windows, is kept as patches */
} recipe;

/* The dtypes that tensor cores multiply. */
static bool is_half(ir_dtype dtype)
{
    return dtype == IR_F16 || dtype == IR_BF16;
}

/* Floats of at most 32 bits.  Integers, f64 and block formats have bodies of their own. */
bool super_accepts_product(const super_product *s)
{
    bool floats = true;
    const block_operand *all[] = {&s->a, &s->b[0], &s->b[s->n_b - 1], &s->y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        floats = floats && (is_half(all[i]->dtype) || all[i]->dtype == IR_F32);
    return floats && s->rows > 0 && s->columns > 0 && s->depth > 0;
}

/* Tensor cores need both factors in the same 16-bit dtype; anything else is converted to fp32 and
 * multiplied by threads. */
static block_unit unit_of(const super_product *s)
{
    bool same =
        is_half(s->a.dtype) && s->a.dtype == s->b[0].dtype && s->a.dtype == s->b[s->n_b - 1].dtype;
    return same ? BLOCK_MMA : BLOCK_FMA;
}

/* ---- what region and candidate have in common ---- */

/* Begin a program: axes, operands (a, b, more, y) and unit, which region and candidate share. */
static void add_frame(block_program *p, const super_product *s, int32_t m, int32_t n, int32_t k)
{
    *p = (block_program){.name = "product",
                         .unit = unit_of(s),
                         .n_operands = 2 + s->n_b + s->n_more,
                         .warps = {1, 1, 1}};
    block_add_axis(p, "m", s->rows, m, true);
    block_add_axis(p, "n", s->columns, n, true);
    block_add_axis(p, "k", s->depth, k, false);
    p->operands[0] = s->a;
    memcpy(p->operands + 1, s->b, s->n_b * sizeof *s->b);
    memcpy(p->operands + 1 + s->n_b, s->more, s->n_more * sizeof *s->more);
    p->operands[1 + s->n_b + s->n_more] = s->y;
}

/* A load; the loops around it say which part of the operand it brings. */
static void add_load(block_program *p, int8_t tile, uint32_t operand)
{
    block_add_step(p, BLOCK_LOAD, tile)->operand = (int8_t)operand;
}

/* Add a step of one or two sources (b BLOCK_NONE: one). */
static void add_two(block_program *p, block_verb verb, int8_t to, int8_t a, int8_t b)
{
    block_step *s = block_add_step(p, verb, to);
    s->from[s->n_from++] = a;
    if (b != BLOCK_NONE)
        s->from[s->n_from++] = b;
}

/* Add y[m, n] = expression over the n sources; returns its tile. */
static int8_t add_map(block_program *p, const char *name, const char *expression,
                      const int8_t *from, uint32_t n)
{
    const int8_t y = block_add_fragment(p, name, SUPER_M, SUPER_N);
    block_step *end = block_add_step(p, BLOCK_MAP, y);
    end->expression = expression;
    end->n_from = (uint8_t)n;
    memcpy(end->from, from, n);
    return y;
}

/* Add what follows the sums: y = expression(sums, more), stored.  With `made`, an expression of
 * the sums and of the first n_made of `more` comes first, and its value takes their place. */
static void add_end(block_program *p, const super_product *s, const int8_t *sums)
{
    static const char *const names[SUPER_MOST_MORE] = {"more0", "more1", "more2", "more3", "more4",
                                                       "more5", "more6", "more7", "more8", "more9"};
    int8_t from[BLOCK_MOST_SOURCES] = {sums[0], s->n_b > 1 ? sums[1] : BLOCK_NONE}, y = sums[0];
    uint32_t n = s->n_b + s->n_more;
    for (uint32_t i = 0; i < s->n_more; i++) {
        const int64_t *stride = s->more[i].stride;
        from[s->n_b + i] = block_add_fragment(p, names[i], stride[SUPER_M] ? SUPER_M : BLOCK_NONE,
                                              stride[SUPER_N] ? SUPER_N : BLOCK_NONE);
        add_load(p, from[s->n_b + i], 1 + s->n_b + i);
    }
    if (s->made) {
        const uint32_t taken = s->n_b + s->n_made;
        from[taken - 1] = add_map(p, "made", s->made, from, taken);
        n -= taken - 1;
        memmove(from, from + taken - 1, n);
    }
    if (s->expression)
        y = add_map(p, "y", s->expression, from, n);
    block_add_step(p, BLOCK_STORE, y)->operand = (int8_t)(1 + s->n_b + s->n_more);
}

/* The definition: both factors whole, one multiply for each b, the end. */
void super_region_of_product(const super_product *s, block_program *p)
{
    int8_t sums[2], b[2];
    add_frame(p, s, (int32_t)s->rows, (int32_t)s->columns, (int32_t)s->depth);
    int8_t a = block_add_fragment(p, "a", SUPER_M, SUPER_K);
    add_load(p, a, 0);
    for (uint32_t i = 0; i < s->n_b; i++) {
        b[i] = block_add_fragment(p, i ? "b1" : "b0", SUPER_K, SUPER_N);
        sums[i] = block_add_fragment(p, i ? "sum1" : "sum0", SUPER_M, SUPER_N);
        add_load(p, b[i], 1 + i);
        block_add_step(p, BLOCK_FILL, sums[i]);
        add_two(p, BLOCK_MULTIPLY, sums[i], a, b[i]);
    }
    add_end(p, s, sums);
}

/* ---- candidates ---- */

/* Add the tile of a factor.  Its columns are the axis whose entries are neighbours in memory,
 * where the unit can read that (tensor cores read either way round); its layout is the one with
 * the fewest conflicts, of equals the first. */
static int8_t add_factor(block_program *p, const block_operand *o, const char *name, int8_t outer,
                         uint8_t stages)
{
    const bool transposed = p->unit == BLOCK_MMA && o->stride[SUPER_K] != 1 &&
                            o->stride[outer] == 1 && !(o->window && o->window->channels);
    const int8_t tile = block_add_tile(
        p, (block_tile){.name = name,
                        .space = BLOCK_SHARED,
                        .dtype = p->unit == BLOCK_MMA ? o->dtype : IR_F32,
                        .axis = {transposed ? SUPER_K : outer, transposed ? outer : SUPER_K},
                        .stages = stages});
    uint32_t best = UINT32_MAX;
    for (uint8_t layout = 0; layout < BLOCK_LAYOUTS; layout++) {
        const uint8_t kept = p->tiles[tile].layout;
        p->tiles[tile].layout = layout;
        const uint32_t conflicts = block_conflicts(p, tile);
        if (conflicts >= best)
            p->tiles[tile].layout = kept;
        best = conflicts < best ? conflicts : best;
    }
    return tile;
}

/* A loop whose loads are issued `ahead` iterations early; block_verify wants tiles with one copy
 * more than that. */
static void add_loop(block_program *p, int8_t axis, uint8_t ahead)
{
    block_step *s = block_add_step(p, BLOCK_LOOP, BLOCK_NONE);
    s->axis = axis;
    s->ahead = ahead;
}

/* Add the sum of the warps' parts, as a fragment of its own. */
static int8_t add_whole(block_program *p, const char *name, int8_t sum)
{
    const int8_t whole = block_add_fragment(p, name, SUPER_M, SUPER_N);
    add_two(p, BLOCK_ADD, whole, sum, BLOCK_NONE);
    return whole;
}

/* The text of a candidate.  The sync before the inner loop keeps the first loads of a tile from
 * overwriting what slower warps still read of the last one. */
static void make_candidate(const super_product *s, const super_target *t, const recipe *c,
                           block_program *p)
{
    const uint8_t parts = unit_of(s) == BLOCK_MMA ? c->warps[2] : 1;
    int8_t b[2], sums[2];
    add_frame(p, s, c->m, c->n, c->k);
    memcpy(p->warps, c->warps, sizeof p->warps);
    p->room = t->scratch_bytes;
    const int8_t a = add_factor(p, &s->a, "a", SUPER_M, c->stages);
    if (c->patches) {
        p->axes[SUPER_K].run = s->a.window->channels;
        p->tiles[a].patch = block_patch_of(s->a.window, c->m);
        const int64_t rounds = block_rounds(&p->axes[SUPER_K]);
        p->tiles[a].stages = (uint8_t)(1 + (c->stages - 2 + rounds) / rounds);
    }
    for (uint32_t i = 0; i < s->n_b; i++)
        b[i] = add_factor(p, &s->b[i], i ? "b1" : "b0", SUPER_N, c->stages);
    add_loop(p, SUPER_M, 0);
    add_loop(p, SUPER_N, 0);
    for (uint32_t i = 0; i < s->n_b; i++) {
        sums[i] = block_add_fragment(p, i ? "sum1" : "sum0", SUPER_M, SUPER_N);
        p->tiles[sums[i]].parts = parts;
        block_add_step(p, BLOCK_FILL, sums[i]);
    }
    block_add_step(p, BLOCK_SYNC, BLOCK_NONE);
    add_loop(p, SUPER_K, (uint8_t)(c->stages - 1));
    block_add_step(p, BLOCK_WAIT, BLOCK_NONE)->pending = (uint8_t)(c->stages - 2);
    add_load(p, a, 0);
    for (uint32_t i = 0; i < s->n_b; i++)
        add_load(p, b[i], 1 + i);
    for (uint32_t i = 0; i < s->n_b; i++)
        add_two(p, BLOCK_MULTIPLY, sums[i], a, b[i]);
    block_add_step(p, BLOCK_END, BLOCK_NONE);
    for (uint32_t i = 0; i < s->n_b && parts > 1; i++)
        sums[i] = add_whole(p, i ? "whole1" : "whole0", sums[i]);
    add_end(p, s, sums);
    block_add_step(p, BLOCK_END, BLOCK_NONE);
    block_add_step(p, BLOCK_END, BLOCK_NONE);
}

/* ---- cost ---- */

/* Cycles of an SM of an H100; see docs/performance.md for how such figures are measured. */
#define BYTES_A_CYCLE 24.0     /* from L2, all SMs at once */
#define MMA_CYCLES 1.6         /* 16 x 8 x 16, four tensor cores together */
#define MMA_LATENCY 33.0       /* of one that needs the one before */
#define SHARED_BYTES 128.0     /* read a cycle */
#define FMA_A_CYCLE 100.0      /* of 128: the rest is addresses and loads */
#define LATENCY 700.0          /* of a load from L2 or memory */
#define ITERATION_CYCLES 150.0 /* barrier, addresses */
#define ENTRY_CYCLES 16.0      /* a thread loads an entry by itself, converts and stores it */
#define WINDOW_CYCLES 36.0     /* the same of an entry of a window: its place is worked out first */
#define PLACE_CYCLES 40.0      /* a thread finds the place of a copy of a window */
#define READ_CYCLES 6.0        /* a warp gives out a read of shared memory */
#define PATCH_ITERATION \
    350.0 /* ITERATION_CYCLES and READ_CYCLES with patches: places of iterations and rows */
#define PATCH_READ 20.0
#define TILE_CYCLES 300.0 /* begin and end of a tile */
#define STORE_CYCLES 20.0 /* of an entry of the result, for a thread */
enum { THREADS = 256 };

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Tiles along an extent, the last of which may be cut short. */
static double count_tiles(int64_t extent, int32_t tile)
{
    return (double)((extent + tile - 1) / tile);
}

/* Can a window be brought by copies of 16 bytes?  Its channels must be neighbours, and each copy
 * within one place. */
static bool is_window_copied(const block_window *w, int64_t bytes)
{
    bool whole = w->channel_step == 1 && w->channels && w->channels * bytes % 16 == 0;
    for (uint32_t i = 0; i < BLOCK_WINDOW_AXES; i++)
        whole = whole && w->step[i] * bytes % 16 == 0;
    return whole;
}

bool super_is_copied(const block_program *p, int8_t tile, const block_operand *o)
{
    const block_tile *t = &p->tiles[tile];
    const int64_t bytes = (int64_t)ir_dtype_table[t->dtype].block_bytes;
    if (o->window)
        return is_window_copied(o->window, bytes) && o->dtype == t->dtype &&
               o->stride[t->axis[0]] == 1;
    return o->dtype == t->dtype && o->stride[t->axis[1]] == 1 &&
           o->stride[t->axis[0]] * bytes % 16 == 0;
}

/* Add the cost of bringing an iteration's part of a factor: to *bytes what copies move in the
 * background, to *busy the cycles in which threads do nothing else. */
static void add_load_cost(const block_program *p, int8_t tile, const block_operand *o,
                          double *bytes, double *busy)
{
    const double rows = p->tiles[tile].patch
                            ? (double)p->tiles[tile].patch / block_rounds(&p->axes[SUPER_K])
                            : block_extent(p, tile, 0);
    const double entries = rows * block_extent(p, tile, 1);
    *bytes += entries * (double)ir_dtype_table[o->dtype].block_bytes;
    const bool copied = super_is_copied(p, tile, o);
    if (!copied)
        *busy += entries / THREADS * (o->window ? WINDOW_CYCLES : ENTRY_CYCLES);
    if (o->window && copied)
        *busy += entries / THREADS / 8 * PLACE_CYCLES;
    if (o->window && !copied)
        *busy += count_tiles((int64_t)entries, THREADS * BLOCK_WINDOW_BATCH) * LATENCY;
}

/* The cycles of an iteration's products: the slower of arithmetic and of reading shared memory,
 * each with its bank conflicts; few products for each warp wait for their latency instead. */
static double multiply_cycles(const block_program *p, const recipe *c, uint32_t n_b)
{
    const double entries = (double)c->m * c->n * c->k * n_b;
    if (p->unit == BLOCK_FMA) {
        const double reads =
            (double)c->k / 4 * (c->m / 16 + 2.0 * c->n / 16 * block_conflicts(p, 1) * n_b) * 8;
        return larger(entries / FMA_A_CYCLE, reads);
    }
    const double own = (double)c->m / 16 / c->warps[0] * c->n / 8 / c->warps[1] * n_b,
                 steps = c->k / 16.0 / c->warps[2];
    /* pixels of a patch that are a stride apart */
    const int across = c->patches ? p->operands[0].window->stride[2] : 1;
    const double read = 2.0 * c->k *
                        ((double)c->m * c->warps[1] * block_conflicts(p, 0) * across +
                         (double)c->n * n_b * c->warps[0] * block_conflicts(p, 1)) /
                        SHARED_BYTES;
    return larger(read, larger(entries / 2048 * MMA_CYCLES,
                               steps * larger(MMA_LATENCY, own * MMA_CYCLES * 8)));
}

/* The cycles of the longest task: for each tile a start, the iterations, the sum over the warps'
 * parts and the stores.  An iteration takes the longer of its products and its loads; loads that
 * threads make by themselves are added, since nothing else runs meanwhile. */
static double cost_of(const super_product *s, const recipe *c, const block_program *p)
{
    double bytes = 0, busy = 0;
    for (uint32_t i = 0; i < 1 + s->n_b; i++)
        add_load_cost(p, (int8_t)i, &p->operands[i], &bytes, &busy);
    const double iterations = count_tiles(s->depth, c->k),
                 tiles = count_tiles(s->box_rows, c->m) * count_tiles(s->box_columns, c->n) *
                         (double)s->boxes;
    const double fields =
        (double)c->m / 16 / c->warps[0] + (double)c->n / 16 / c->warps[1] * s->n_b;
    if (p->unit == BLOCK_MMA)
        busy += c->k / 16.0 / c->warps[2] * fields * (c->patches ? PATCH_READ : READ_CYCLES);
    const double iteration =
        busy + (c->patches ? PATCH_ITERATION : ITERATION_CYCLES) +
        larger(multiply_cycles(p, c, s->n_b),
               larger(bytes / BYTES_A_CYCLE, (LATENCY + bytes / BYTES_A_CYCLE) / (c->stages - 1)));
    const double entries = (double)c->m * c->n * s->n_b,
                 add = c->warps[2] > 1 ? 2 * entries * c->warps[2] / 32 : 0;
    return tiles * (TILE_CYCLES + LATENCY + iterations * iteration + add +
                    entries / THREADS * c->warps[2] * STORE_CYCLES);
}

/* ---- search ---- */

/* A candidate that fits, with its cost; -1 once it was refused. */
typedef struct ranked {
    recipe how;
    double cycles;
} ranked;

enum { MOST_RANKED = 4096 };
/* The candidates that fit, and how many were listed. */
typedef struct list {
    ranked at[MOST_RANKED];
    uint32_t n, n_listed;
} list;

/* Keep a candidate if it fits the target and keeps the rules.  A candidate that breaks them is no
 * error: recipes are listed without regard to divisibility. */
static void consider(list *l, const super_product *s, const super_target *t, const recipe *c)
{
    block_program p;
    mpk_context quiet = {0};
    l->n_listed++;
    make_candidate(s, t, c, &p);
    if (l->n == MOST_RANKED || block_scratch_bytes(&p) > t->scratch_bytes ||
        block_registers(&p) > t->registers || block_verify(&quiet, &p) != MPK_OK)
        return;
    l->at[l->n++] = (ranked){*c, cost_of(s, c, &p)};
}

/* List the ways to share a tile among the eight warps, each with two to four stages; an iteration
 * brings little where patches are kept, so with up to six there. */
static void consider_warps(list *l, const super_product *s, const super_target *t, recipe c)
{
    const bool mma = unit_of(s) == BLOCK_MMA;
    for (c.warps[0] = 1; c.warps[0] <= 8; c.warps[0] *= 2)
        for (c.warps[1] = 1; c.warps[0] * c.warps[1] <= 8; c.warps[1] *= 2) {
            c.warps[2] = (uint8_t)(8 / (c.warps[0] * c.warps[1]));
            const bool divides = c.m % (16 * c.warps[0]) == 0 && c.n % (16 * c.warps[1]) == 0 &&
                                 c.k % (16 * c.warps[2]) == 0;
            /* fma: threads take entries as they lie, however warps are named */
            if (mma ? divides : c.warps[0] == 8)
                for (c.stages = 2; c.stages <= (c.patches ? 6 : 4); c.stages++)
                    consider(l, s, t, &c);
        }
}

/* List all recipes of powers of two within reason: 4 x 4 x 5 tiles, up to ten divisions of the
 * warps, three numbers of stages. */
static void list_candidates(list *l, const super_product *s, const super_target *t)
{
    const int32_t least = unit_of(s) == BLOCK_MMA ? 16 : 8;
    for (int32_t m = 16; m <= 128; m *= 2)
        for (int32_t n = 16; n <= 128; n *= 2)
            for (int32_t k = least; k <= 16 * least; k *= 2)
                consider_warps(l, s, t, (recipe){.m = m, .n = n, .k = k});
}

/* Can the windows of the first factor be kept as patches?  They must be copied, and their rows be
 * places. */
static bool has_patches(const super_product *s)
{
    const block_window *w = s->a.window;
    return w && unit_of(s) == BLOCK_MMA && s->n_b == 1 && s->a.stride[SUPER_M] == 1 &&
           block_patch_of(w, 16) && is_window_copied(w, 2);
}

/* The same with patches: 16 to 256 rows, of whole lines or powers of two, and tiles of channels
 * that divide them. */
static void list_patches(list *l, const super_product *s, const super_target *t)
{
    for (int32_t m = 16; m <= 256; m += 16)
        for (int32_t n = 16; n <= 128; n *= 2)
            for (int32_t k = 32; k <= 128; k *= 2)
                if (((m & (m - 1)) == 0 || m % s->a.window->out[2] == 0) &&
                    s->a.window->channels % k == 0)
                    consider_warps(l, s, t, (recipe){.m = m, .n = n, .k = k, .patches = true});
}

/* The cheapest candidate that is left; of equals the first listed.  NULL: none is. */
static ranked *take_best(list *l)
{
    ranked *best = NULL;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->at[i].cycles >= 0 && (!best || l->at[i].cycles < best->cycles))
            best = &l->at[i];
    return best;
}

/* Prove candidates from the cheapest on until one is right.  The proof is the costly part, so
 * the others are not proved.  The seed is fixed, so that a choice is a function of the shape. */
static mpk_status search(mpk_context *cx, const super_product *s, const super_target *t, list *l,
                         super_choice *out)
{
    block_program region;
    mpk_context refusal = {0};
    super_region_of_product(s, &region);
    for (ranked *best; (best = take_best(l)); best->cycles = -1) {
        make_candidate(s, t, &best->how, &out->program);
        out->cycles = best->cycles;
        if (super_prove(&refusal, &region, &out->program, 0x5eed) == MPK_OK)
            return MPK_OK;
        out->n_refused++;
    }
    FAIL(cx, MPK_EVERIFY,
         "no block program for a product of %lld x %lld x %lld is right (all %u were refused, the "
         "last: %s)",
         (long long)s->rows, (long long)s->columns, (long long)s->depth, out->n_refused,
         refusal.text);
}

/* The list takes 100 KB or so, hence an arena for this call alone. */
mpk_status super_choose_product(mpk_context *cx, const super_product *s, const super_target *t,
                                super_choice *out)
{
    arena a = {0};
    list *l;
    NEW(cx, &a, l, 1);
    *out = (super_choice){0};
    list_candidates(l, s, t);
    if (has_patches(s))
        list_patches(l, s, t);
    out->n_listed = l->n_listed;
    out->n_fitting = l->n;
    mpk_status status = search(cx, s, t, l, out);
    arena_free(&a);
    return status;
}
