/* linear_box.cuh - products of many tokens whose operands have tensor maps: linear_tile.cuh hands
 * them on.
 *
 * One copy brings 64 columns of 64 tokens of x, or of 128 rows of w, which is a page.  A lot is
 * 128 tokens, 64 for each warpgroup, a pass up to 256 rows of w, a step 64 columns.  Each
 * warpgroup has MPK_BOXES stages of x.  It requests those of a lot's first steps itself, once the
 * event has come; the loader requests all others, each when the step that had its stage has
 * released its pages, and all pages.  So warps of a warpgroup meet at the ends of a lot alone.
 * linear_box_ask.cuh is the loader's part.
 * A joint lot has at most 64 tokens, and both warpgroups have these, each with x in stages of its
 * own: the first multiplies the first half of a pass's rows of w, the second the others.  So
 * neither adds the other's sums, and each has half as many.
 *
 * What a norm needs (row_sums) was summed where x was made (row_squares.cuh), or is summed from the
 * stages of x while products read them too; in the first pass alone: the passes after it find
 * the factors in scratch, unless there are more than TILE_KEPT lots.  Columns are added in the
 * same order whatever the number of tokens alive.
 *
 *   warpgroup        x: 64 tokens x 64 columns, 128-byte swizzle         8 KB, 4 stages
 *   both             w: 128 or 256 rows x 64 columns, 64-byte swizzle    1 or 2 pages
 *                    (in the 128-byte swizzle of x, if w is not packed)
 *   step i           look for w and x of step i + 1; give the products of step i; wait for those
 *                    of step i - 1; release their pages; wait for w and x, mostly seen
 *
 * Cost of a step of 128 tokens, 256 rows: 8 wgmma of 64 x 256 x 16; 16 KB of x and 32 KB of w
 * from L2.
 *
 * Stages: box_full[half][fill % MPK_BOXES] completes when the boxes have arrived; `fill` counts
 * stages over all tasks of the worker (box_fills), so that phases go on; it is the same for both
 * warpgroups.
 */
#ifndef TASK_LINEAR_BOX_CUH
#define TASK_LINEAR_BOX_CUH

#include "ptx/matrix.cuh"
#include "task/box_put.cuh"
#include "task/linear_box_ask.cuh"
#include "task/linear_parts.cuh"

#if MPK_WGMMA

/* ---- products ---- */

/* What a warpgroup's thread needs to know of a lot; few words, since they live through the
 * products. */
struct box_lot {
    rt_u32 fill; /* of the first step */
    int steps;
    bool sums;    /* of x are to be made */
    bool of_rows; /* w is not packed */
};

/* The stage of fill `fill`: 64 tokens in rows of 128 bytes. */
MPK_FN char *box_stage(rt_u32 fill)
{
    return box_scratch() + fill % MPK_BOXES * TILE_STAGE;
}
/* The barriers of this warpgroup's stages. */
MPK_FN rt_u64 *box_full(void)
{
    return mpk_w.box_full[mpk_thread() / 128];
}

/* One thread of the warpgroup: request the box of x of step `step` of the lot, which is number `at`
 * of the task's, from token `row` on.  Its stage is free: see box_begin. */
MPK_FN void box_ask(const mpk_task &t, const tile_shape &s, const box_lot &b, int step, int at,
                    int row)
{
    const rt_u32 fill = b.fill + (rt_u32)step; /* names the stage and its phase */
    rt_u64 *full = box_full() + fill % MPK_BOXES;
    ptx_barrier_expect(full, TILE_STAGE);
    const rt_u32 to = ptx_shared(box_stage(fill));
    if (TILE_IS_IMAGE(s))
        image_ask(to, (const rt_map *)t.e->maps, s, row, at, full);
    else
        ptx_copy_box(to, (const rt_map *)t.e->maps, at * TILE_BOX_COLUMNS, row, full);
}

/* Where a warpgroup stands among its stages of x, as mpk_ring among pages. */
struct box_place {
    rt_u64 *full; /* barriers of the warpgroup's stages */
    rt_u32 at, parity;
};
MPK_FN box_place box_place_of(rt_u32 fill)
{
    /* kept, or the compiler would make it again of the thread's number in each step */
    return {mpk_w.box_full[ptx_keep(mpk_thread() / 128)], fill % MPK_BOXES, fill / MPK_BOXES & 1};
}
MPK_FN void box_pass(box_place *x)
{
    if (++x->at == MPK_BOXES) {
        x->at = 0;
        x->parity ^= 1;
    }
}

/* Is what a step reads there, pages of w that lie together and a stage of x?  Does not wait. */
template <int PAGES> MPK_FN bool box_look(const mpk_ring &ring, const box_place &x)
{
    const rt_u32 of_w =
                     ptx_barrier_look(&mpk_w.full[ring.first + ring.at + PAGES - 1], ring.parity),
                 of_x = ptx_barrier_look(x.full + x.at, x.parity);
    return (of_w & of_x) != 0;
}
/* All warps: until they are. */
template <int PAGES> MPK_FN void box_wait(const mpk_ring &ring, const box_place &x)
{
    mpk_barrier_wait(&mpk_w.full[ring.first + ring.at + PAGES - 1], ring.parity);
    mpk_barrier_wait(x.full + x.at, x.parity);
}
/* All warps: step over the PAGES pages of a step, which lie together. */
template <int PAGES> MPK_FN void box_next(mpk_ring *ring)
{
    ring->at += PAGES - 1;
    ring_next(ring);
}

/* All warps, before the first step of a pass: step over the page that is left out, if one is. */
template <int PAGES> MPK_FN void box_skip(mpk_ring *ring)
{
    if (!box_is_odd<PAGES>(*ring))
        return;
    rt_u32 page;
    ring_take(ring, &page);
    ring_release(page);
}

/* One lane: its warp has read the pages of a step, from number `page` on: the warp's arrival of
 * eight at each. */
template <int PAGES> MPK_FN void box_arrive(rt_u32 page)
{
    ptx_barrier_arrive(&mpk_w.empty[page]);
    if (PAGES == 2)
        ptx_barrier_arrive(&mpk_w.empty[page + 1]);
}

/* Descriptors of a step's operands: the low words, which say where they begin. */
struct box_operands {
    rt_u32 x, w;
};

/* Those of x in stage `stage` and of w from page `page` on; first: of stage 0 and of page 0. */
MPK_FN box_operands box_operands_at(const box_operands &first, rt_u32 page, rt_u32 stage)
{
    return {first.x + stage * (TILE_STAGE / 16), first.w + page * (MPK_PAGE_BYTES / 16)};
}

/* The products of a step: four of 16 columns each, whose operands follow each other within the
 * swizzled rows.  high: the high words of the descriptors; half: as in tile_in_w. */
template <int N>
MPK_FN void box_give(const box_operands &o, const box_operands &high, float *sum,
                     rt_u32 half = TILE_HALF_OF_W)
{
#pragma unroll
    for (int k = 0; k < TILE_BOX_COLUMNS / 16; k++)
        halves_group_multiply<N>(sum, (rt_u64)high.x << 32 | (o.x + 2 * (rt_u32)k),
                                 (rt_u64)high.w << 32 | (o.w + tile_in_w(k, half)));
}

/* A stage of x in rows of 64 columns; STRIDE bytes from a group of w to the next. */
template <int N, int STRIDE> MPK_FN void box_multiply(const char *s_x, const char *s_w, float *sum)
{
    const rt_u64 x = ptx_matrix_of_rows(s_x), w = ptx_matrix(s_w, STRIDE);
    box_give<N>({(rt_u32)x, (rt_u32)w}, {(rt_u32)(x >> 32), (rt_u32)(w >> 32)}, sum);
}

/* Sums of a stage: a thread has pieces of 8 columns of four tokens, 16 apart (thread i reads
 * byte 16 i of each 2,048).  The swizzle moves pieces within a token's row only, and a sum of
 * squares does not ask which columns they are. */
MPK_FN void box_add_sums(const char *s_x, row_sums *of_x)
{
    s_x += mpk_thread() % 128 * 16; /* row i / 8, some piece of it */
#pragma unroll
    for (int m = 0; m < 4; m += 2) {
        const mpk_words a = ptx_load_shared_words(s_x + 2048 * m),
                        b = ptx_load_shared_words(s_x + 2048 * m + 2048);
        of_x[m] = row_sums_add(a, of_x[m]);
        of_x[m + 1] = row_sums_add(b, of_x[m + 1]);
    }
}

/* All columns, N rows of w of each step's pages, of which this warpgroup has M from group `skip`
 * on.  Before: box_begin has requested the first MPK_BOXES boxes.  After: sum[M / 2] per lane, as
 * ptx_group_multiply leaves it; all pages are released.
 *
 * The products of a step must be given before those of the step before have ended, which is 260
 * cycles for 64 rows of w and both warpgroups: so few instructions, and no long ones, may stand
 * between two steps.  What the next step needs is worked out before this one's products are given,
 * and kept (ptx_keep), or the compiler would work it out again after the wait.  Where products are
 * short it is looked for then too: a look takes 50 cycles to answer.  All values besides the sums
 * stay in registers: one that does not fit comes from L2, as the clerk's acquires empty the L1
 * cache.
 *
 * Hazards: at step i the products of step i - 1 have ended in each thread that passed the wait, and
 * it has summed x; the warp's arrival at the pages says so.  When all warps have arrived the
 * loader may request pages and stage of step i - 1 again.  A warp that has to wait for step i + 1
 * arrives for step i too, after the products of that. */
template <int N, int M>
MPK_FN void box_columns(const box_lot &b, int skip, mpk_ring *ring, float *sum, row_sums *of_x)
{
    constexpr int PAGES = N > 128 ? 2 : 1;
    constexpr bool EARLY = M < 192; /* products are over before a look after them answers */
    const char *s_w = mpk_s + skip * TILE_BOX_BYTES;
    const rt_u64 first_x = ptx_matrix_of_rows(box_scratch()),
                 first_w = b.of_rows ? ptx_matrix_of_rows(s_w) : ptx_matrix(s_w, TILE_BOX_BYTES);
    const rt_u32 half = b.of_rows ? TILE_HALF_OF_ROWS : TILE_HALF_OF_W;
    const box_operands first = {ptx_keep((rt_u32)first_x), (rt_u32)first_w},
                       high = {(rt_u32)(first_x >> 32), (rt_u32)(first_w >> 32)};
    const bool arrives =
        ptx_keep(mpk_thread() % 32 == 0) != 0; /* the lane that does for the warp */
    box_place x = box_place_of(b.fill);
    box_skip<PAGES>(ring);
    box_wait<PAGES>(*ring, x);
    __syncwarp();               /* products take whole warps */
    rt_u32 held = TILE_NO_PAGE; /* first page of the step before, not released */
    box_operands o = box_operands_at(first, ring->first + ring->at, x.at);
    for (int step = 0; step < b.steps; step++) {
        const rt_u32 page = ring->first + ring->at, stage = x.at;
        box_next<PAGES>(ring);
        box_pass(&x);
        box_operands next = box_operands_at(first, ring->first + ring->at, x.at);
        next = {ptx_keep(next.x), ptx_keep(next.w)};
        const bool goes_on = step + 1 < b.steps;
        bool seen = !goes_on || (EARLY && box_look<PAGES>(*ring, x));
        ptx_group_begin();
        box_give<M>(o, high, sum, half);
        ptx_group_commit();
        o = next;
        /* x is summed from the stage while the tensor cores read it too */
        if (b.sums) {
            box_add_sums(box_scratch() + stage * TILE_STAGE, of_x);
            __syncwarp(); /* before the warp arrives for this step */
        }
        if (!EARLY)
            seen = !goes_on || box_look<PAGES>(*ring, x);
        /* one group of products in flight is this step's; the step before has ended */
        ptx_group_wait<1>();
        if (arrives && held != TILE_NO_PAGE)
            box_arrive<PAGES>(held);
        held = page;
        /* The lanes vote, or ptxas would take a wait for products in a branch of some lanes as a
         * reason to wait after each product (C7518). */
        if (!__all_sync(0xffffffffu, seen)) {
            seen = EARLY && box_look<PAGES>(*ring, x); /* by now, perhaps */
            if (!__all_sync(0xffffffffu, seen)) {
                /* Nothing to give: this step's pages go first, so that the loader can ask for more
                 * while the warps wait. */
                ptx_group_wait<0>();
                if (arrives)
                    box_arrive<PAGES>(page);
                held = TILE_NO_PAGE;
                box_wait<PAGES>(*ring, x);
            }
            __syncwarp();
        }
    }
    ptx_group_wait<0>();
    __syncwarp();
    if (arrives)
        box_arrive<PAGES>(held);
}

/* The factors of the warpgroup's 64 tokens: those of a norm, or `factor`. */
template <typename shape>
MPK_FN void box_put_scales(const shape &s, float factor, row_sums *of_x, float *s_scale)
{
    const int i = mpk_thread() % 128; /* eight threads have a token */
    const row_sums all = row_sums_of_four(of_x);
    if (i % 8 < 4)
        s_scale[i / 8 + 16 * row_sums_token()] =
            tile_factor(s.norm, all, s.columns, s.norm ? s.eps : factor);
}

/* ---- a lot of a pass ---- */

/* All threads: leave the sums of others' rows, of a part of the columns, in the worker's room and
 * those of the task's own in scratch, wait for the other parts, and make y of its own rows from all
 * (linear_parts.cuh has the protocol). */
MPK_FN void box_meet(const mpk_task &t, const tile_shape &s, const float *sum, row_sums *of_x)
{
    const tile_plan p = tile_plan_of(t.e, s); /* worked out again, as in linear_tile */
    const int thread = mpk_thread(), half = thread / 128, i = thread % 128;
    const bool sums = s.norm && !squares_are_summed(t);
    if (sums) {
        float *s_sums = parts_scales() + half * TILE_TOKENS + i / 8 + 16 * row_sums_token();
        const row_sums all = row_sums_of_four(of_x);
        if (i % 8 < 4) {
            s_sums[0] = all.square;
            if (MPK_CENTRED)
                s_sums[RT_PART_TOKENS] = all.entry;
        }
    }
    /* Stages of x give way to own sums; the room is free, and noted. */
    mpk_sync();
    parts_put(sum, p);
    if (sums)
        parts_put_row_sums();
    parts_finish(t, s, p);
}

/* A lot; anew: its factors are to be found. */
MPK_FN box_lot box_lot_of(const mpk_task &t, const tile_shape &s, const tile_pass &q, bool anew)
{
    return {mpk_w.box_fills[mpk_thread() / 128], q.steps, anew && s.norm && !squares_are_summed(t),
            tile_is_of_rows(t.e)};
}

static_assert(MPK_BOXES == 4, "a warp of the warpgroup for each stage");

/* What all lots begin with: the first MPK_BOXES boxes of x are requested, by a warp each, and
 * factors of rows that are summed already go to s_scale meanwhile.  The meeting stands between the
 * last reads of the scratch, as sums or by an earlier task, and the first copy into it; the loader,
 * which requests the boxes after these, has an arrival of each warp after it.  The task waits for
 * its event in its first lot, after all that does not depend on it.  Biases stay for all lots. */
MPK_FN void box_begin(const mpk_task &t, const tile_shape &s, const tile_plan &p,
                      const tile_pass &q, bool part, const box_lot &b, int at, int lot, int row,
                      bool anew, float *s_scale)
{
    const int warp = mpk_thread() / 32 % 4;
    const bool first = at == 0 && lot == 0;
    if (first)
        mpk_take_scratch();
    ptx_fence_shared(); /* stages were sums, or another task's */
    tile_meet();
    if (BOX_HAS_ENDS && lot == 0)
        box_put_biases(t, s, 8 * (p.first + (part ? parts_first(p) : at)),
                       8 * (part ? parts_own(p) : q.groups));
    if (first) {
        mpk_wait(t);
        ptx_fence_bulk(); /* x was written by ordinary stores */
    }
    if (ptx_elect() && warp < b.steps)
        box_ask(t, s, b, warp, q.begin + warp, row);
    __syncwarp();
    if (part) /* after the boxes: where the event has come already, they would wait for it */
        parts_begin(t, p);
    if (anew && squares_are_summed(t))
        squares_put_scales(t, s, row, s_scale);
}

/* The lot's sums.  All boxes that were requested have been waited for at the end, so stages and
 * barriers are as they were, and box_fills says in which phase. */
template <int N, int M>
MPK_FN void box_sum(const box_lot &b, int skip, mpk_ring *ring, float *sum, row_sums *of_x)
{
    const int thread = mpk_thread();
    box_columns<N, M>(b, skip, ring, sum, of_x);
    if (thread % 128 == 0)
        mpk_w.box_fills[thread / 128] = b.fill + (rt_u32)b.steps;
}

/* No token of the lot is alive: take and release its pages.  No x is requested for it. */
template <int PAGES> MPK_FN void box_drop_pages(const tile_pass &q, mpk_ring *ring)
{
    box_skip<PAGES>(ring);
    ring_drop(ring, PAGES * q.steps);
}
MPK_FN void box_drop(const tile_pass &q, mpk_ring *ring)
{
    if (q.pages == 2)
        box_drop_pages<2>(q, ring);
    else
        box_drop_pages<1>(q, ring);
}

/* What a lot of a pass takes: its loop, which the host computes alike for MPK_FORMS, and groups of
 * the pass that a warpgroup has at most, and the first of them. */
struct box_way {
    int loop, most, skip;
    bool half; /* at most half of a page of w */
};
/* part: the task has a part of its tile's columns; tiles that are shared take one of two loops. */
MPK_FN box_way box_way_of(const tile_shape &s, const tile_pass &q, bool joint, bool part)
{
    box_way w;
    w.loop = joint ? tile_loop_of_joint(q.groups, !part && s.activation != ACTIVATE_NONE)
                   : tile_loop_of(1, 1, 1, 0, q.groups, 0);
    if (part && w.loop == TILE_BOX_192)
        w.loop = TILE_BOX_256;
    w.most = TILE_BOX_GROUPS + TILE_GROUPS * (w.loop - TILE_BOX_128); /* loops by rows of w */
    if (joint)
        w.most = part ? q.groups / 2 : w.most / 2;
    w.skip = joint ? mpk_thread() / 128 * w.most : 0;
    w.half = q.groups <= TILE_GROUPS;
    return w;
}

/* In calls tasks of 64 rows of w and fewer leave out the other half of a page: products of 128 rows
 * would take longer than copies.  (The emulator runs both.) */
#ifndef BOX_HALVES
#define BOX_HALVES MPK_CALLS
#endif

/* A lot's sums, if LOOP is the one that it takes. */
template <int LOOP, int N, bool JOINT>
MPK_FN void box_sum_if(const box_lot &b, const box_way &w, mpk_ring *ring, float *sum,
                       row_sums *of_x)
{
    if (!BOX_HAS_LOOP(LOOP) || w.loop != LOOP)
        return;
    if (BOX_HALVES && LOOP == TILE_BOX_128 && !JOINT && w.half)
        box_sum<N, 64>(b, w.skip, ring, sum, of_x);
    else
        box_sum<N, JOINT ? N / 2 : N>(b, w.skip, ring, sum, of_x);
}
template <bool JOINT>
MPK_FN void box_sum_lot(const box_lot &b, const box_way &w, mpk_ring *ring, float *sum,
                        row_sums *of_x)
{
    box_sum_if<TILE_BOX_128, 128, JOINT>(b, w, ring, sum, of_x);
    box_sum_if<TILE_BOX_192, 192, JOINT>(b, w, ring, sum, of_x);
    box_sum_if<TILE_BOX_256, 256, JOINT>(b, w, ring, sum, of_x);
}

/* The end of a lot of a task that has its tile alone, for all loops.  first: number of the pass's
 * first group; s_scale: place of its tokens' factors, which are there unless `anew`. */
MPK_FN void box_end_lot(const mpk_task &t, const tile_shape &s, const tile_pass &q,
                        const box_way &w, int first, int row, bool anew, float *sum, row_sums *of_x,
                        float *s_scale)
{
    const int warp = mpk_thread() / 32 % 4, left = q.groups - w.skip;
    if (anew && !squares_are_summed(t))
        box_put_scales(s, s.eps, of_x, s_scale);
    tile_meet(); /* stages of x give way to sums */
    const int row_of_warp = row + 16 * warp;
    const box_end e = {row_of_warp, (int)t.hi0 - row_of_warp, first + w.skip,
                       left < w.most ? left : w.most, w.skip};
    char *s_own = box_own(); /* of the stages' room */
    s_scale += 16 * warp;
    if (BOX_HAS_END(TILE_END_LOGITS) && s.peaks >= 0)
        box_put_logits(t, s, e, sum, (float *)s_own, s_scale);
    else if (BOX_HAS_END(TILE_END_PAIRS) && s.activation != ACTIVATE_NONE)
        box_put_pairs(t, s, e, sum, s_own, s_scale);
    else if (BOX_HAS_END(TILE_END_PLAIN))
        box_put(t, s, e, sum, s_scale);
    tile_meet(); /* and sums to stages */
}

/* All body threads: lot number `lot` of the pass that begins at group `at` of the task; row:
 * of its first token.  anew: no earlier pass has left this lot's factors in scratch. */
MPK_FN void box_run(const mpk_task &t, const tile_shape &s, const tile_plan &p, const tile_pass &q,
                    int at, int lot, int row, mpk_ring *ring)
{
    const int half = mpk_thread() / 128, first = p.first + at;
    const bool anew = at == 0 || p.lots > TILE_KEPT,
               part = TILE_ALL_SHARE || (TILE_SOME_SHARE && p.parts > 1);
    float *s_scale = part ? parts_scales()
                          : (float *)(mpk_s + MPK_PAGES * MPK_PAGE_BYTES + TILE_SCALES) +
                                lot % TILE_KEPT * 2 * TILE_TOKENS;
    s_scale += half * TILE_TOKENS;
    if (!p.joint)
        row += half * TILE_TOKENS;
    const box_lot b = box_lot_of(t, s, q, anew);
    box_begin(t, s, p, q, part, b, at, lot, row, anew, s_scale);
    const bool joint = TILE_SOME_JOINT && (TILE_ALL_SHORT ? !TILE_IS_IMAGE(s) : p.joint);
    const box_way w = box_way_of(s, q, joint, part);
    float sum[BOX_SUMS]; /* of all loops, so that they share an end */
    row_sums of_x[4] = {};
#pragma unroll
    for (int i = 0; i < BOX_SUMS; i++)
        sum[i] = 0;
    if (joint)
        box_sum_lot<true>(b, w, ring, sum, of_x);
    else
        box_sum_lot<false>(b, w, ring, sum, of_x);
    if (part)
        box_meet(t, s, sum, of_x);
    else
        box_end_lot(t, s, q, w, first, row, anew, sum, of_x, s_scale);
}

#endif

#endif
