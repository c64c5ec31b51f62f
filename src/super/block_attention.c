/* block_attention.c - softmax(scale q k^T + mask) v of a head: the region, candidates, cost and
 * search (super.h).
 *
 * Input: shapes, strides and dtypes of an attention.  Output: the cheapest block program that
 * was proved right.  Called by gen/choices.c for sdpa where no hand-written body fits.
 *
 * Idea of the candidates: keys come tile by tile, and the softmax is kept up to date (the
 * largest score so far, the sum of the weights, and the result rescaled when the largest grows).
 * Warps along rows hold whole rows; the others share the keys of a tile, each with a softmax of
 * its own, and these are brought together at the end.  So a task of few rows still has work for
 * eight warps, scores and weights never leave the registers, and no warp waits for another's
 * scores.
 *
 *   along_rows 2 is warps 2 x 1 x 4: two warps divide the rows of a tile; of its keys the first
 *   of four parts has 0-15, 64-79 ..., the second 16-31, 80-95 ..., and so on
 *
 * Where there are products of warpgroups, one more candidate takes heads of up to 64 entries: 128
 * rows, 64 keys an iteration.  Values are added an iteration late, so that a warp's exponentials
 * run while the tensor cores multiply the weights of the iteration before, and the warpgroups take
 * turns, so that they do so while it makes the other's scores.  What weights are relative to
 * follows the largest score loosely: most iterations look at the weights' totals, which they need
 * anyway, and neither look for the largest score nor exchange or rescale anything.
 *
 * Cost of a search: 48 recipes and that one, a proof for the best.
 */
#include "super/super.h"

/* Axes; then operands. */
enum { M, S, D, E, Q = 0, KEYS, VALUES };
/* A score below every other, and finite, so that the distance of two such is zero and not NaN. */
#define NOTHING (-1e30)
/* Of products of warpgroups: the fewest entries of a value, as sums have columns by eights; how
 * many iterations tiles are loaded ahead, of few keys and of many.  What was read in the last turn
 * may still be read, so keys have two copies more than that, and values, which are read a turn
 * later, three.  For few keys a third turn ahead would bring nothing, and its 16 KB are two pages
 * of the ring, which products have instead. */
enum { GROUP_LEAST = 32, GROUP_KEYS = 64, GROUP_FEW_TURNS = 4 };
enum { GROUP_AHEAD_OF_FEW = 2, GROUP_AHEAD_OF_MANY = 3 };
/* A lane's weights of an iteration may add up to this, so that each is a number of 16 bits. */
#define MOST_WEIGHT 32768.0

/* What a candidate's text follows from. */
typedef struct recipe {
    /* of a tile: rows of a head and keys */
    int32_t m, s;
    /* warps that divide the rows, a power of two up to 8; copies of the tiles of keys and values */
    uint8_t along_rows, stages;
    bool by_groups; /* products of warpgroups */
} recipe;

/* The width of a head with zeros to whole fields of the tensor cores (BLOCK_MMA_DEPTH). */
static int32_t rounded(int64_t n)
{
    return (int32_t)((n + BLOCK_MMA_DEPTH - 1) / BLOCK_MMA_DEPTH * BLOCK_MMA_DEPTH);
}

/* Heads of up to 128 entries: the result of a tile of rows stays in registers. */
bool super_accepts_attention(const super_attention *s)
{
    return (s->q.dtype == IR_F16 || s->q.dtype == IR_BF16) && s->k.dtype == s->q.dtype &&
           s->v.dtype == s->q.dtype && rounded(s->width) <= 128 && rounded(s->values) <= 128 &&
           s->rows > 0 && s->keys > 0;
}

/* Begin a program: axes, operands and unit, which region and candidates share.  The widths of a
 * head are never cut: q and v have all of d and e in one tile. */
static void add_frame(block_program *p, const super_attention *s, const int32_t *tiles)
{
    *p = (block_program){
        .name = "attention", .unit = BLOCK_MMA, .n_operands = 4 + s->has_mask, .warps = {1, 1, 1}};
    block_add_axis(p, "m", s->rows, tiles[M], true);
    block_add_axis(p, "s", s->keys, tiles[S], false);
    block_add_axis(p, "d", s->width, tiles[D], false);
    block_add_axis(p, "e", s->values, tiles[E], false);
    p->operands[Q] = s->q;
    p->operands[KEYS] = s->k;
    p->operands[VALUES] = s->v;
    p->operands[3] = s->y;
    p->operands[4] = s->mask;
}

/* A load; the loops around it say which part of the operand it brings. */
static void add_load(block_program *p, int8_t tile, int8_t operand)
{
    block_add_step(p, BLOCK_LOAD, tile)->operand = operand;
}

/* Add a step of up to three sources; BLOCK_NONE ends them. */
static void add_of(block_program *p, block_verb verb, const char *expression, int8_t to, int8_t a,
                   int8_t b, int8_t c)
{
    block_step *s = block_add_step(p, verb, to);
    const int8_t from[] = {a, b, c};
    s->expression = expression;
    for (uint32_t i = 0; i < 3 && from[i] != BLOCK_NONE; i++)
        s->from[s->n_from++] = from[i];
}

/* Mask scores along the keys, by one of the three rules of `bound`. */
static void add_bound(block_program *p, int8_t scores, block_bound bound, int64_t number)
{
    block_step *s = block_add_step(p, BLOCK_BOUND, scores);
    s->axis = S;
    s->bound = bound;
    s->number = (double)number;
}

/* Scores from products: scaled unless `raw`, masked, bounded.  The end of the keys is a bound only
 * if the last tile reaches beyond it: a load gives zeros there, and a score of zero would get a
 * weight. */
static void add_mask(block_program *p, const super_attention *s, bool raw, int8_t scores)
{
    if (s->has_mask) {
        const int8_t mask = block_add_fragment(p, "mask", s->mask.stride[M] ? M : BLOCK_NONE,
                                               s->mask.stride[S] ? S : BLOCK_NONE);
        p->tiles[mask].is_shared_out = p->tiles[scores].is_shared_out && s->mask.stride[S];
        add_load(p, mask, 4);
        add_of(p, BLOCK_MAP, s->scores, scores, scores, mask, BLOCK_NONE);
    } else if (!raw) {
        add_of(p, BLOCK_MAP, s->scores, scores, scores, BLOCK_NONE, BLOCK_NONE);
    }
    if (s->keys % p->axes[S].tile)
        add_bound(p, scores, BLOCK_END_OF_AXIS, 0);
    if (s->causal)
        add_bound(p, scores, BLOCK_CAUSAL, 0);
    if (s->window)
        add_bound(p, scores, BLOCK_WINDOW, s->window);
}

/* The scores of a tile of keys. */
static void add_scores(block_program *p, const super_attention *s, bool raw, int8_t scores,
                       int8_t q, int8_t k)
{
    block_add_step(p, BLOCK_FILL, scores);
    add_of(p, BLOCK_MULTIPLY, NULL, scores, q, k, BLOCK_NONE);
    add_mask(p, s, raw, scores);
}

/* The end of the definition: a row that sees no key has a total of zero and becomes zeros. */
static void add_quotient(block_program *p, int8_t sums, int8_t total)
{
    const int8_t y = block_add_fragment(p, "y", M, E);
    add_of(p, BLOCK_MAP, "where(x1 == 0, 0.0, x0 / x1)", y, sums, total, BLOCK_NONE);
    block_add_step(p, BLOCK_STORE, y)->operand = 3;
}

/* The definition: scores, their largest, weights, their total, the weighted values; all in one
 * tile. */
void super_region_of_attention(const super_attention *s, block_program *p)
{
    const int32_t whole[] = {(int32_t)s->rows, (int32_t)s->keys, (int32_t)s->width,
                             (int32_t)s->values};
    add_frame(p, s, whole);
    const int8_t q = block_add_fragment(p, "q", M, D), k = block_add_fragment(p, "k", S, D);
    const int8_t v = block_add_fragment(p, "v", S, E),
                 scores = block_add_fragment(p, "scores", M, S);
    const int8_t largest = block_add_fragment(p, "largest", M, BLOCK_NONE);
    const int8_t total = block_add_fragment(p, "total", M, BLOCK_NONE),
                 sums = block_add_fragment(p, "sums", M, E);
    add_load(p, q, Q);
    add_load(p, k, KEYS);
    add_load(p, v, VALUES);
    add_scores(p, s, false, scores, q, k);
    add_of(p, BLOCK_LARGEST, NULL, largest, scores, BLOCK_NONE, BLOCK_NONE);
    add_of(p, BLOCK_MAP, "exp(x0 - x1)", scores, scores, largest, BLOCK_NONE);
    add_of(p, BLOCK_TOTAL, NULL, total, scores, BLOCK_NONE, BLOCK_NONE);
    block_add_step(p, BLOCK_FILL, sums);
    add_of(p, BLOCK_MULTIPLY, NULL, sums, scores, v, BLOCK_NONE);
    add_quotient(p, sums, total);
}

/* ---- candidates ---- */

/* Add a tile of shared memory: swizzled where rows are a power of two, else padded, which costs
 * 16 bytes a row. */
static int8_t add_shared(block_program *p, const char *name, ir_dtype dtype, int8_t rows,
                         int8_t columns, uint8_t stages)
{
    const int8_t tile = block_add_tile(p, (block_tile){.name = name,
                                                       .space = BLOCK_SHARED,
                                                       .dtype = dtype,
                                                       .axis = {rows, columns},
                                                       .layout = BLOCK_PADDED,
                                                       .stages = stages});
    const uint32_t row = block_row_bytes(p, tile);
    if (!(row & (row - 1)))
        p->tiles[tile].layout = BLOCK_SWIZZLED;
    return tile;
}

/* Add one number for each row of the tile, in as many parts as the sums. */
static int8_t add_line(block_program *p, const char *name, uint8_t parts)
{
    const int8_t line = block_add_fragment(p, name, M, BLOCK_NONE);
    p->tiles[line].parts = parts;
    return line;
}

/* Add a total for each row of the tile: of a warp that has whole rows each lane adds up its own
 * columns, and lanes exchange nothing before the end. */
static int8_t add_total(block_program *p, const char *name, uint8_t parts)
{
    const int8_t line = add_line(p, name, parts);
    if (parts == 1) {
        p->tiles[line].parts = BLOCK_ROW_LANES;
        p->tiles[line].is_by_lane = true;
    }
    return line;
}

/* What is kept of the keys so far, for each row: sums of weighted values, the total of the
 * weights, the largest score.  Invariant: sums and total are relative to exp(largest), that is,
 * they hold sum of exp(score - largest) times values. */
typedef struct kept {
    int8_t sums, total, largest;
} kept;

/* Begin a row with nothing kept: zeros, and a largest that every score exceeds. */
static void fill_kept(block_program *p, kept *t, uint8_t parts)
{
    *t = (kept){block_add_fragment(p, "sums", M, E), add_total(p, "total", parts),
                add_line(p, "largest", parts)};
    p->tiles[t->sums].parts = parts;
    block_add_step(p, BLOCK_FILL, t->sums);
    block_add_step(p, BLOCK_FILL, t->total);
    block_add_step(p, BLOCK_FILL, t->largest)->number = NOTHING;
}

/* exp of the distance between two scores, as they are kept. */
static const char *distance_of(const super_attention *s)
{
    return s->apart ? s->apart : "exp(x0 - x1)";
}

/* One iteration of the online softmax: scores become weights, and what is kept takes them in.
 * `rescale` is exp(old largest - new largest), 1 where the largest did not grow.  The first
 * iteration rescales zeros by exp(NOTHING - x) = 0.  Sums are rescaled before there are weights:
 * the code that does it is passed over where no largest grew (gen/block_print.c), and so
 * exponentials and the second product, which overlap, stand in one piece. */
static void add_iteration(block_program *p, const super_attention *s, const kept *t, int8_t scores,
                          int8_t v)
{
    const uint8_t parts = p->tiles[t->sums].parts;
    const int8_t most = add_line(p, "most", parts), next = add_line(p, "next", parts);
    const int8_t scale = add_line(p, "rescale", parts), more = add_total(p, "more", parts);
    int8_t base = next; /* what weights are relative to */
    add_of(p, BLOCK_LARGEST, NULL, most, scores, BLOCK_NONE, BLOCK_NONE);
    add_of(p, BLOCK_MAP, "max(x0, x1)", next, t->largest, most, BLOCK_NONE);
    add_of(p, BLOCK_MAP, distance_of(s), scale, t->largest, next, BLOCK_NONE);
    add_of(p, BLOCK_MAP, "x0", t->largest, next, BLOCK_NONE, BLOCK_NONE);
    add_of(p, BLOCK_MAP, "x0 * x1", t->sums, t->sums, scale, BLOCK_NONE);
    if (s->weights) {
        base = add_line(p, "base", parts);
        add_of(p, BLOCK_MAP, s->scaled, base, next, BLOCK_NONE, BLOCK_NONE);
    }
    add_of(p, BLOCK_MAP, s->weights ? s->weights : "exp(x0 - x1)", scores, scores, base,
           BLOCK_NONE);
    add_of(p, BLOCK_TOTAL, NULL, more, scores, BLOCK_NONE, BLOCK_NONE);
    add_of(p, BLOCK_MAP, "x0 * x1 + x2", t->total, t->total, scale, more);
    add_of(p, BLOCK_MULTIPLY, NULL, t->sums, scores, v, BLOCK_NONE);
}

/* Bring the parts of the warps together: each is rescaled to the largest of all, then they are
 * added. */
static void add_parts(block_program *p, const super_attention *s, kept *t)
{
    const int8_t top = add_line(p, "top", 1), scale = add_line(p, "share", p->tiles[t->sums].parts);
    const kept all = {block_add_fragment(p, "all_sums", M, E), add_line(p, "all_total", 1), top};
    add_of(p, BLOCK_LARGEST, NULL, top, t->largest, BLOCK_NONE, BLOCK_NONE);
    add_of(p, BLOCK_MAP, distance_of(s), scale, t->largest, top, BLOCK_NONE);
    add_of(p, BLOCK_MAP, "x0 * x1", t->total, t->total, scale, BLOCK_NONE);
    add_of(p, BLOCK_MAP, "x0 * x1", t->sums, t->sums, scale, BLOCK_NONE);
    add_of(p, BLOCK_ADD, NULL, all.total, t->total, BLOCK_NONE, BLOCK_NONE);
    add_of(p, BLOCK_ADD, NULL, all.sums, t->sums, BLOCK_NONE, BLOCK_NONE);
    *t = all;
}

/* Bring the lanes' totals together. */
static void add_lanes(block_program *p, kept *t)
{
    const int8_t all = add_line(p, "all_total", 1);
    add_of(p, BLOCK_TOTAL, NULL, all, t->total, BLOCK_NONE, BLOCK_NONE);
    t->total = all;
}

/* The end of a candidate: one division for each row, then a product for each entry.  A division
 * takes some 35 instructions, which run once a task and so come from L2: one for each of a thread's
 * 64 entries was most of a task's time where keys are few. */
static void add_result(block_program *p, int8_t sums, int8_t total)
{
    const int8_t inverse = add_line(p, "inverse", 1), y = block_add_fragment(p, "y", M, E);
    add_of(p, BLOCK_MAP, "where(x0 == 0, 0.0, 1.0 / x0)", inverse, total, BLOCK_NONE, BLOCK_NONE);
    add_of(p, BLOCK_MAP, "x0 * x1", y, sums, inverse, BLOCK_NONE);
    block_add_step(p, BLOCK_STORE, y)->operand = 3;
}

/* Begin a loop whose loads are issued `ahead` iterations early. */
static void add_loop(block_program *p, int8_t axis, uint8_t ahead)
{
    block_step *s = block_add_step(p, BLOCK_LOOP, BLOCK_NONE);
    s->axis = axis;
    s->ahead = ahead;
}

/* Weights from scores, and each lane's total of them.  base: what they are relative to. */
static void add_weights(block_program *p, const super_attention *s, int8_t weights, int8_t more,
                        int8_t scores, int8_t base)
{
    add_of(p, BLOCK_MAP, s->weights ? s->weights : "exp(x0 - x1)", weights, scores, base,
           BLOCK_NONE);
    add_of(p, BLOCK_TOTAL, NULL, more, weights, BLOCK_NONE, BLOCK_NONE);
}

/* The line that weights are relative to: the largest score that was found so far, scaled where
 * weights take scores as products gave them. */
static int8_t add_base(block_program *p, const super_attention *s, const kept *t)
{
    return s->weights ? add_line(p, "base", 1) : t->largest;
}
static void set_base(block_program *p, const super_attention *s, const kept *t, int8_t base)
{
    if (s->weights)
        add_of(p, BLOCK_MAP, s->scaled, base, t->largest, BLOCK_NONE, BLOCK_NONE);
}

/* Where weights have become too large, what they are relative to moves to the largest score, what
 * is kept follows, and weights are made once more.  Sums follow last: the product that is in flight
 * adds to them what is relative to the score before. */
static void add_growth(block_program *p, const super_attention *s, const kept *t, int8_t weights,
                       int8_t more, int8_t scores, int8_t base)
{
    const int8_t most = add_line(p, "most", 1), next = add_line(p, "next", 1),
                 scale = add_line(p, "rescale", 1);
    block_add_step(p, BLOCK_FILL, scale)->number = 1;
    block_add_step(p, BLOCK_GROWN, more)->number = MOST_WEIGHT;
    add_of(p, BLOCK_LARGEST, NULL, most, scores, BLOCK_NONE, BLOCK_NONE);
    add_of(p, BLOCK_MAP, "max(x0, x1)", next, t->largest, most, BLOCK_NONE);
    add_of(p, BLOCK_MAP, distance_of(s), scale, t->largest, next, BLOCK_NONE);
    add_of(p, BLOCK_MAP, "x0", t->largest, next, BLOCK_NONE, BLOCK_NONE);
    add_of(p, BLOCK_MAP, "x0 * x1", t->total, t->total, scale, BLOCK_NONE);
    set_base(p, s, t, base);
    add_weights(p, s, weights, more, scores, base);
    block_add_step(p, BLOCK_END, BLOCK_NONE);
    add_of(p, BLOCK_MAP, "x0 * x1", t->sums, t->sums, scale, BLOCK_NONE);
}

/* An iteration by warpgroups.  The product of the last weights runs under this iteration's
 * exponentials, so sums are looked at last.  `grown` branches, and comes after the exponentials, so
 * that ptxas does not move the wait for that product ahead of these. */
static void add_group_iteration(block_program *p, const super_attention *s, const kept *t,
                                int8_t scores, int8_t q, int8_t k, int8_t v, int8_t base)
{
    const int8_t weights = block_add_fragment(p, "weights", M, S), more = add_total(p, "more", 1);
    p->tiles[weights].is_shared_out = true;
    block_add_step(p, BLOCK_FILL, scores);
    add_of(p, BLOCK_MULTIPLY, NULL, scores, q, k, BLOCK_NONE);
    add_of(p, BLOCK_MULTIPLY, NULL, t->sums, weights, v, BLOCK_NONE);
    p->steps[p->n_steps - 1].is_late = true;
    block_add_step(p, BLOCK_PASS, BLOCK_NONE);
    add_load(p, k, KEYS);
    add_mask(p, s, s->weights != NULL, scores);
    add_weights(p, s, weights, more, scores, base);
    add_load(p, v, VALUES);
    add_growth(p, s, t, weights, more, scores, base);
    add_of(p, BLOCK_MAP, "x0 + x1", t->total, t->total, more, BLOCK_NONE);
}

/* The columns of a tile of values: what sums have for each row. */
static int32_t columns_of(const recipe *c, int64_t values)
{
    const int32_t eights = (int32_t)((values + 7) / 8 * 8);
    if (!c->by_groups)
        return rounded(values);
    return eights < GROUP_LEAST ? GROUP_LEAST : eights;
}

/* The text of a candidate.  q is loaded once and stays for all iterations; keys and values are
 * prefetched.  The sync keeps the load of q from overwriting what slower warps still read of the
 * last tile.  Of warpgroups an iteration reads its keys and the last one's values, while the tiles
 * of more are on their way, keys and values as groups of their own. */
static void make_candidate(const super_attention *s, const recipe *c, block_program *p)
{
    const int32_t tiles[] = {c->m, c->s, rounded(s->width), columns_of(c, s->values)};
    const uint8_t parts = 8 / c->along_rows;
    kept t;
    add_frame(p, s, tiles);
    p->by_groups = c->by_groups;
    p->warps[0] = c->along_rows;
    p->warps[2] = parts;
    const int8_t q = add_shared(p, "q", s->q.dtype, M, D, 1),
                 k = add_shared(p, "k", s->k.dtype, S, D, c->stages);
    const int8_t v = add_shared(p, "v", s->v.dtype, S, E, (uint8_t)(c->stages + c->by_groups)),
                 scores = block_add_fragment(p, "scores", M, S);
    p->tiles[scores].is_shared_out = true;
    add_loop(p, M, 0);
    block_add_step(p, BLOCK_SYNC, BLOCK_NONE);
    add_load(p, q, Q);
    fill_kept(p, &t, parts);
    const uint8_t ahead = (uint8_t)(c->stages - (c->by_groups ? 2 : 1));
    int8_t base = BLOCK_NONE;
    if (c->by_groups)
        set_base(p, s, &t, base = add_base(p, s, &t));
    add_loop(p, S, ahead);
    if (c->by_groups) {
        block_add_step(p, BLOCK_TURN, BLOCK_NONE)->pending = (uint8_t)(2 * ahead - 3);
        add_group_iteration(p, s, &t, scores, q, k, v, base);
    } else {
        block_add_step(p, BLOCK_WAIT, BLOCK_NONE)->pending = (uint8_t)(c->stages - 2);
        add_load(p, k, KEYS);
        add_load(p, v, VALUES);
        add_scores(p, s, s->weights != NULL, scores, q, k);
        add_iteration(p, s, &t, scores, v);
    }
    block_add_step(p, BLOCK_END, BLOCK_NONE);
    if (parts > 1)
        add_parts(p, s, &t);
    else
        add_lanes(p, &t);
    add_result(p, t.sums, t.total);
    block_add_step(p, BLOCK_END, BLOCK_NONE);
}

/* ---- cost and search ---- */

/* Cycles of an SM of an H100, as in product.c.  WEIGHT_CYCLES: for a thread, an exponential with
 * what is around it. */
#define BYTES_A_CYCLE 24.0
#define LATENCY 700.0
#define MMA_CYCLES 1.6
#define WEIGHT_CYCLES 30.0
#define ITERATION_CYCLES 200.0 /* barrier, row reductions */
#define TILE_CYCLES 1500.0
/* Of warpgroups, which take turns: an iteration of 128 rows and 64 keys without its scores, and
 * both warpgroups' scores for each entry of a query; a tile's beginning and end, which nothing runs
 * beside.  Without turns, and with sums that nothing hid, 1,400 an iteration of heads of 64 entries
 * were measured, and a tile of one iteration takes what it took then. */
#define GROUP_ITERATION_CYCLES 640.0
#define GROUP_ENTRY_CYCLES 4.0
#define GROUP_TILE_CYCLES 2500.0

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* The cycles of the longest task of a candidate by warpgroups: a warpgroup waits for its scores,
 * and all else of one runs beside what the other does. */
static double group_cost_of(const super_attention *s, const recipe *c)
{
    const double iterations = (double)((s->keys + c->s - 1) / c->s),
                 tiles = (double)((s->box_rows + c->m - 1) / c->m) * (double)s->boxes;
    const double products = (rounded(s->width) + columns_of(c, s->values)) * GROUP_ENTRY_CYCLES;
    return tiles *
           (GROUP_TILE_CYCLES + 3 * LATENCY + iterations * (GROUP_ITERATION_CYCLES + products));
}

/* The cycles of the longest task, as in product.c.  Exponentials are added to the products,
 * since the same warps do both, one after the other. */
static double cost_of(const super_attention *s, const recipe *c)
{
    if (c->by_groups)
        return group_cost_of(s, c);
    const double widths = rounded(s->width) + rounded(s->values),
                 iterations = (double)((s->keys + c->s - 1) / c->s);
    const double tiles = (double)((s->box_rows + c->m - 1) / c->m) * (double)s->boxes,
                 parts = 8.0 / c->along_rows;
    const double products = (double)c->m * c->s * widths / 2048 * MMA_CYCLES;
    const double bytes = c->s * widths * 2 / BYTES_A_CYCLE,
                 read = c->s * widths * 2 * c->along_rows / 128;
    const double weights = (double)c->m * c->s / 256 * WEIGHT_CYCLES;
    const double iteration = ITERATION_CYCLES + larger(products + weights + read,
                                                       larger(bytes, LATENCY / (c->stages - 1)));
    const double join = parts > 1 ? parts * c->m * rounded(s->values) * 8 / 128 : 0;
    return tiles * (TILE_CYCLES + 2 * LATENCY + iterations * iteration + join);
}

/* Do copies of 16 bytes bring keys and values, whole?  Warpgroups have no other loads. */
static bool has_whole_pieces(const super_attention *s)
{
    return s->k.stride[D] == 1 && s->v.stride[E] == 1 && s->k.stride[S] % 8 == 0 &&
           s->v.stride[S] % 8 == 0 && s->width % 8 == 0 && s->values % 8 == 0;
}

/* Does a candidate fit the target and keep the rules?  Beside the sums there is room for 32
 * registers: the scores of a tile.  Counts what was listed and what fitted.  Nothing is listed by
 * warpgroups where there are none. */
static bool fits(const super_attention *s, const super_target *t, const recipe *c,
                 super_choice *out)
{
    block_program p;
    mpk_context quiet = {0};
    if (c->by_groups && !s->group_bytes)
        return false;
    out->n_listed++;
    make_candidate(s, c, &p);
    const uint32_t most = c->by_groups ? s->group_bytes : t->scratch_bytes;
    if (c->by_groups && !has_whole_pieces(s))
        return false;
    const bool all = block_scratch_bytes(&p) <= most && block_registers(&p) <= t->registers + 32 &&
                     block_verify(&quiet, &p) == MPK_OK;
    out->n_fitting += all;
    return all;
}

/* Take a recipe if it fits, costs more than `least` and less than the best so far. */
static void consider(const super_attention *s, const super_target *t, const recipe *c, double least,
                     super_choice *out, recipe *best)
{
    const double cost = cost_of(s, c);
    if (fits(s, t, c, out) && cost > least && (out->cycles < 0 || cost < out->cycles)) {
        out->cycles = cost;
        *best = *c;
    }
}

/* The cheapest recipe above `least` cycles; of equals the first.  False: there is none. */
static bool find_next(const super_attention *s, const super_target *t, double least,
                      super_choice *out, recipe *best)
{
    const uint8_t ahead =
        s->keys <= GROUP_KEYS * GROUP_FEW_TURNS ? GROUP_AHEAD_OF_FEW : GROUP_AHEAD_OF_MANY;
    const recipe groups = {128, GROUP_KEYS, 8, ahead + 2, true};
    out->cycles = -1;
    for (uint8_t along = 1; along <= 8; along *= 2)
        for (int32_t fields = 1; fields <= 2; fields++)
            for (int32_t keys = 1; keys <= 4; keys *= 2)
                for (uint8_t stages = 2; stages <= 3; stages++)
                    consider(s, t,
                             &(recipe){16 * along * fields, 16 * (8 / along) * keys, along, stages,
                                       false},
                             least, out, best);
    consider(s, t, &groups, least, out, best);
    return out->cycles >= 0;
}

/* Try recipes from the cheapest on until one is proved.  There are only 49, so the list is made
 * anew for each refusal and none has to be kept.  Of recipes of exactly equal cost only the
 * first is tried. */
mpk_status super_choose_attention(mpk_context *cx, const super_attention *s, const super_target *t,
                                  super_choice *out)
{
    block_program region;
    mpk_context refusal = {0};
    recipe best;
    *out = (super_choice){0};
    super_region_of_attention(s, &region);
    for (double least = 0; out->n_listed = out->n_fitting = 0, find_next(s, t, least, out, &best);
         least = out->cycles) {
        make_candidate(s, &best, &out->program);
        if (super_prove(&refusal, &region, &out->program, 0x5eed) == MPK_OK)
            return MPK_OK;
        out->n_refused++;
    }
    FAIL(cx, MPK_EVERIFY,
         "no block program for attention of %lld rows and %lld keys is right (%u were refused, the "
         "last: %s)",
         (long long)s->rows, (long long)s->keys, out->n_refused, refusal.text);
}
