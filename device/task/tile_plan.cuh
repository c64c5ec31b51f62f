/* tile_plan.cuh - how a task of a product of many tokens is cut in passes, lots and steps, the
 * same for loader and body, and the pages of a step.
 *
 *   task   for each pass (some groups of 8 packed rows of w)
 *            for each lot (64 or 128 of the task's tokens)
 *              for each step (64, 128 or 256 columns): its pages of w
 *
 * The loader goes through this before the step has begun, so the plan follows from the entry and
 * the shape alone, never from what is alive.  The pages of a step lie together, so that one
 * product reads them all: where too few are left before the end of the ring, these are left out:
 * loaded with nothing, taken and released.  linear_tile.cuh, linear_panel.cuh and linear_box.cuh
 * build on it.
 */
#ifndef TASK_TILE_PLAN_CUH
#define TASK_TILE_PLAN_CUH

#include "task/tile_end.cuh"
#include "tile/ring.cuh"

enum {
    TILE_STAGES = TILE_STAGES_OF(MPK_ROOM), /* of a warpgroup: being read and in flight */
    TILE_HALF = 64 * 64,                    /* bytes: 64 tokens x 32 columns */
    TILE_STAGE = 2 * TILE_HALF,
    TILE_X = TILE_X_OF(MPK_ROOM),
    TILE_SCALES = 2 * TILE_X, /* float[TILE_KEPT][2][64]: the factor of each token */
    TILE_SCRATCH = TILE_SCRATCH_OF(MPK_ROOM),
    TILE_BLOCKS = 4, /* of a step, of each group */
    TILE_PIECE = TILE_BLOCKS * 512,
};

#define TILE_NO_PAGE 0xffffffffu /* stands for the number of no page of the ring */

struct tile_plan {
    int first, groups; /* of 8 packed rows */
    int per_pass;      /* a multiple of 8 */
    int wide, lots;    /* 1: 128 tokens at a time; how often */
    int boxed;         /* 1: x and w come by boxes (linear_box.cuh) */
    int joint;         /* 1: boxed, not wide: both warpgroups have the task's tokens */
    /* 1: a page holds 64 columns of 128 rows: those of boxes, or of panels (linear_panel.cuh) */
    int broad;
    int piece; /* thin: blocks of a page for each group; 0: not thin */
    /* tasks that have a part of the columns each, and which this is (linear_parts.cuh): groups are
     * then those of all; 1: it has all columns */
    int parts, part;
};

/* Blocks of 32 columns of each group in a page of a thin task: as many as there is room for, 128
 * to 1,024 columns.  groups <= 8, so groups * piece <= 32 blocks of 512 bytes. */
MPK_FN int tile_piece_of(int groups)
{
    return groups > 4 ? 4 : groups > 2 ? 8 : groups > 1 ? 16 : 32;
}

/* Does the task come by boxes?  Then a group of packed rows is 8 columns of y, or 4 with an
 * activation, that lie together as aligned words.  Logits begin with a whole block of those that
 * have a peak. */
MPK_FN int tile_is_boxed(const rt_entry *e, const tile_shape &s)
{
#if MPK_MAPS
    const rt_u32 whole = s.activation != ACTIVATE_NONE ? 3 : 7;
    const rt_u64 last = s.residual >= 0 ? e->at[s.residual] : 0;
    const bool has_bias = (s.bias[0] & s.bias[1] & s.bias[2]) >= 0 || s.norm == TILE_NORM_LAYER;
    return e->maps && (TILE_HAS(TILE_FORM_BOX_ENDS) || s.after == ACTIVATE_NONE) &&
           s.gathered < 0 && (s.peaks < 0 || e->lo[1] % 64 == 0) &&
           (TILE_HAS(TILE_FORM_BOX_ENDS) || !has_bias) &&
           ((e->lo[1] | e->hi[1] | (rt_u32)s.rows) & whole) == 0 && ((e->at[s.y] | last) & 15) == 0;
#else
    (void)e, (void)s;
    return 0;
#endif
}

/* Is w a matrix of rows that the step makes, and not packed?  Then it comes by boxes alone, once
 * the task's event has come. */
MPK_FN bool tile_is_of_rows(const rt_entry *e)
{
    return MPK_OF_ROWS && !e->at[RT_PACKED];
}

/* The plan of a task.  With a gate, 8 packed rows are 4 columns of the result, hence the shift.
 * Of a task that shares its tile, `first` and `groups` become those of all its partners. */
MPK_FN tile_plan tile_plan_of(const rt_entry *e, const tile_shape &s)
{
    const int shift = s.activation != ACTIVATE_NONE ? 2 : 3, tokens = (int)(e->hi[0] - e->lo[0]);
    tile_plan p;
    p.first = (int)(e->lo[1] >> shift);
    p.groups = (int)((e->hi[1] + (1u << shift) - 1) >> shift) - p.first;
    p.wide = !TILE_ALL_SHORT && (s.wide || tokens > TILE_TOKENS);
    p.lots = p.wide ? (tokens + 2 * TILE_TOKENS - 1) / (2 * TILE_TOKENS) : 1;
    p.joint = TILE_SOME_JOINT &&
              tile_is_joint(p.wide, e->parts > 1 ? p.groups * (int)e->parts : p.groups) &&
              tile_is_boxed(e, s);
    p.boxed = p.joint || TILE_IS_IMAGE(s) || (p.wide && tile_is_boxed(e, s));
    p.broad = MPK_WGMMA ? p.boxed : p.wide;
    p.parts = p.boxed && e->parts ? (int)e->parts : 1;
    p.part = p.parts > 1 ? (int)e->part : 0;
    p.first -= p.part * p.groups;
    p.groups *= p.parts;
    p.per_pass = tile_groups_of_pass(MPK_WGMMA, p.groups, p.boxed, MPK_ONE_WIDE && !p.wide);
    p.piece = !p.joint && tile_is_thin(MPK_ROOM, p.wide, p.groups) ? tile_piece_of(p.groups) : 0;
    return p;
}

/* One pass, the same in each of its lots.  A step is what arrives together: its pages lie side by
 * side in the ring. */
struct tile_pass {
    int groups; /* of it */
    int pages;  /* of a step */
    int steps;  /* of 128 columns, or boxes of 64 */
    int begin;  /* the first: 0, or where the task's part of the columns begins */
};

/* k of n = 2^k: a shift takes the place of a division by a number that is known at run time alone,
 * which is 40 instructions. */
MPK_FN int tile_shift_of(int n)
{
    return __ffs(n) - 1;
}

/* The pass that begins at group `at` of the task: groups done by the passes before.  Steps of a
 * part: part i of n has steps i k / n to (i + 1) k / n - 1 of k. */
MPK_FN tile_pass tile_pass_at(const tile_plan &p, const tile_shape &s, int at)
{
    tile_pass q;
    q.groups = p.groups - at < p.per_pass ? p.groups - at : p.per_pass;
    /* Powers of two.  The shifts are chosen: of two divisions the compiler would make one again. */
    const int shift = tile_shift_of(p.parts),
              per_page = p.broad ? tile_shift_of(TILE_BOX_GROUPS) : tile_shift_of(TILE_GROUPS),
              columns = p.broad ? tile_shift_of(TILE_BOX_COLUMNS) : tile_shift_of(TILE_BLOCKS * 32);
    q.pages = (q.groups + (1 << per_page) - 1) >> per_page;
    q.steps = (s.columns + (1 << columns) - 1) >> columns;
    q.begin = q.steps * p.part >> shift;
    q.steps = (q.steps * (p.part + 1) >> shift) - q.begin;
    return q;
}

/* Pages to leave out, so that the next n lie together. */
MPK_FN int tile_gap(const mpk_ring &r, int n)
{
    return r.at + n > r.n ? (int)(r.n - r.at) : 0;
}

/* ---- the body's side ---- */

/* The 128 threads of this warpgroup meet, at barrier 2 or 3. */
MPK_FN void tile_meet(void)
{
    ptx_meet(2 + mpk_thread() / 128, 128);
}

/* All warps: take the pages of the next step, which lie together; returns the number of the
 * first. Pages that were left out are released at once. */
MPK_FN rt_u32 tile_take(const tile_pass &q, mpk_ring *ring)
{
    rt_u32 page;
    for (int gap = tile_gap(*ring, q.pages); gap > 0; gap--) {
        ring_take(ring, &page);
        ring_release(page);
    }
    const rt_u32 first = ring->first + ring->at;
    for (int i = 0; i < q.pages; i++)
        ring_take(ring, &page);
    __syncwarp(); /* barriers and products take whole warps */
    return first;
}

/* All pages of a step, by one lane of each warp: a page's barrier counts warps. */
MPK_FN void tile_release(const tile_pass &q, rt_u32 first)
{
    __syncwarp();
    if (mpk_thread() % 32 == 0)
        for (int i = 0; i < q.pages; i++)
            ptx_barrier_arrive(&mpk_w.empty[first + i]);
}

/* A matrix n units on: the address stands in the low bits and does not overflow. */
MPK_FN rt_u64 tile_further(rt_u64 matrix, rt_u32 n)
{
    return (matrix & 0xffffffff00000000u) | ((rt_u32)matrix + n);
}

/* The same, of a matrix that all lanes have alike: the shuffle tells the compiler so, which then
 * computes descriptors once for the warp (docs/gpu.md: 90 instructions a page of keys fewer). */
MPK_FN rt_u64 tile_uniform(rt_u64 matrix, rt_u32 n)
{
    const rt_u64 further = tile_further(matrix, n);
    return (further & 0xffffffff00000000u) | __shfl_sync(0xffffffffu, (rt_u32)further, 0);
}

/* The offset of columns 16 k to 16 k + 15 of a step within a group of w, in the units of a matrix
 * descriptor's address: 16 bytes.  half: from columns 0 to columns 32. */
enum { TILE_HALF_OF_W = 512 / 16, TILE_HALF_OF_ROWS = 64 / 16 };
MPK_FN rt_u32 tile_in_w(int k, rt_u32 half = TILE_HALF_OF_W)
{
    return (rt_u32)(k / 2) * half + (rt_u32)(k % 2 * 2);
}

#endif
