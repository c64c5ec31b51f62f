/* prove.c - equivalence of a candidate with its region over finite fields (super.h).
 *
 * Input: two programs over the same axes and operands.  Output: MPK_OK if they store the same,
 * else MPK_EVERIFY.
 *
 * Sizes enter a program as ends of loops alone, and every iteration is the same text, so a box need
 * not be as large as the task's: it has a whole tile and a tail along each axis that the task's
 * box cuts, and along the others as many tiles as bring every copy of a shared tile back, and a
 * tail if the region has one.
 *
 *   product 4096 x 4096 x 4096, candidate 128 x 64 x 32 with 3 stages
 *     box of the proof: 128 + 5 rows, 64 + 2 columns from a random place, k 0 .. 4 * 32
 *
 * Called by the searches (product.c, block_attention.c) for what they would choose, and by the
 * tests for programs with planted faults.
 */
#include "super/super.h"

#include "base/rng.h"

/* The longest tail; the farthest place of a box, near the beginning because a causal bound cuts
 * there. */
enum { MOST_TAIL = 8, FARTHEST = 200 };

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The most copies that a tile over this axis has: after that many iterations the first copy is
 * written again. */
static int64_t copies_along(const block_program *p, int8_t axis)
{
    int64_t most = 1;
    for (uint32_t i = 0; i < p->n_tiles; i++)
        if ((p->tiles[i].axis[0] == axis || p->tiles[i].axis[1] == axis) &&
            p->tiles[i].stages > most)
            most = p->tiles[i].stages;
    return most;
}

/* Choose the box.  Its place is random, because a program that reads its place wrongly may be
 * right at the origin. */
static void choose_box(const block_program *region, const block_program *candidate, uint64_t seed,
                       block_run_of *run)
{
    for (int8_t i = 0; i < (int8_t)region->n_axes; i++) {
        const int64_t extent = region->axes[i].extent, tile = candidate->axes[i].tile;
        int64_t rest = extent % tile;
        run->lo[i] = 0;
        if (!region->axes[i].is_cut) {
            run->hi[i] = smaller(extent, (copies_along(candidate, i) + 1) * tile + rest);
            if (candidate->axes[i].run) /* the last iteration has the end of every run */
                run->hi[i] = extent;
            continue;
        }
        rest = 1 + (int64_t)(rng_u64(seed, (uint64_t)i) % MOST_TAIL);
        const int64_t size = smaller(extent, tile + rest);
        run->lo[i] = (int64_t)(rng_u64(seed, 64 + (uint64_t)i) %
                               (uint64_t)smaller(extent - size + 1, FARTHEST));
        run->hi[i] = run->lo[i] + size;
    }
}

static bool has_verb(const block_program *p, block_verb verb)
{
    for (uint32_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].verb == verb)
            return true;
    return false;
}

/* MPK_EVERIFY: the candidate's run does not store what its region's run stored. */
static mpk_status compare(mpk_context *cx, const char *name, const block_run_of *whole,
                          const block_run_of *tiled)
{
    CHECK(cx, whole->stored.n == tiled->stored.n, MPK_EVERIFY,
          "block %s stores %zu entries, its region %zu", name, tiled->stored.n, whole->stored.n);
    for (size_t i = 0; i < whole->stored.n; i++)
        CHECK(cx,
              whole->stored.at[i].at == tiled->stored.at[i].at &&
                  whole->stored.at[i].value == tiled->stored.at[i].value,
              MPK_EVERIFY, "block %s computes something else than its region (entry %zu of %zu)",
              name, i, whole->stored.n);
    return MPK_OK;
}

/* Run both and compare what they store.  The definition runs with one tile that is the whole
 * box.  The shift is the same in both runs unless a softmax is present: then the largest of some
 * values is another random number in each, and the results agree only if they do not depend on
 * it.  Elsewhere max is one unknown function, the same in both programs.  A candidate with `grown`
 * runs twice, the second time with every decision inverted: each iteration is seen with the steps
 * and without. */
static mpk_status run_once(mpk_context *cx, arena *a, const block_program *region,
                           const block_program *candidate, uint64_t seed)
{
    block_run_of whole = {.seed = rng_u64(seed, 1), .shift = rng_u64(seed, 2)}, tiled;
    block_program definition = *region;
    choose_box(region, candidate, seed, &whole);
    tiled = whole;
    tiled.shift = rng_u64(
        seed, has_verb(region, BLOCK_LARGEST) || has_verb(candidate, BLOCK_LARGEST) ? 3 : 2);
    for (uint32_t i = 0; i < region->n_axes; i++)
        definition.axes[i].tile = (int32_t)(whole.hi[i] - whole.lo[i]);
    TRY(block_run(cx, a, &definition, &whole));
    TRY(block_run(cx, a, candidate, &tiled));
    TRY(compare(cx, candidate->name, &whole, &tiled));
    if (!has_verb(candidate, BLOCK_GROWN))
        return MPK_OK;
    tiled.is_inverted = true;
    TRY(block_run(cx, a, candidate, &tiled));
    return compare(cx, candidate->name, &whole, &tiled);
}

/* A program's windows with fewer channels; w: room for one. */
static void shorten_window(block_program *p, int64_t channels, block_window *w)
{
    for (uint32_t i = 0; i < p->n_operands; i++) {
        if (!p->operands[i].window)
            continue;
        *w = *p->operands[i].window;
        w->channels = (int)channels;
        p->operands[i].window = w;
    }
}

/* Shorten the runs of both programs' axis to as many tiles as bring every copy of a patch back:
 * they are channels, which enter a program as sizes. */
static void shorten_runs(block_program *region, block_program *candidate, block_window w[2])
{
    for (int8_t i = 0; i < (int8_t)candidate->n_axes; i++) {
        block_axis *a = &candidate->axes[i];
        const int64_t rounds = block_rounds(a),
                      run = smaller(a->run, (copies_along(candidate, i) + 1) * a->tile);
        if (!a->run)
            continue;
        region->axes[i].extent = a->extent = rounds * run;
        a->run = run;
        shorten_window(region, run, &w[0]);
        shorten_window(candidate, run, &w[1]);
    }
}

mpk_status super_prove(mpk_context *cx, const block_program *region, const block_program *candidate,
                       uint64_t seed)
{
    arena scratch = {0};
    TRY(block_verify(cx, candidate));
    block_program definition = *region, shorter = *candidate;
    block_window w[2];
    shorten_runs(&definition, &shorter, w);
    mpk_status status = run_once(cx, &scratch, &definition, &shorter, seed);
    arena_free(&scratch);
    return status;
}
