/* linear_box_ask.cuh - the loader's part of products whose operands have tensor maps
 * (linear_box.cuh): one of its lanes requests pages of w, and boxes of x.
 *
 * All 32 lanes together take longer for a page than the copy does.  So one asks, with a copy of the
 * ring of its own, and hands its place to the others at the end of a task (box_have_asked).
 * attention_group.cuh and expert_tile.cuh ask in the same way.
 *
 *   pass       an odd place is left out, if a step is two pages
 *   step i     wait until its pages are empty; w; x of step i, from step MPK_BOXES on
 *
 * x is data of the step that runs.  The loader asks for none before bodies have released pages of
 * the pass, which they do after the task's event and their proxy fence: so x is there and may be
 * copied (box_begin).
 */
#ifndef TASK_LINEAR_BOX_ASK_CUH
#define TASK_LINEAR_BOX_ASK_CUH

#include "ptx/matrix.cuh"
#include "task/box_image.cuh"
#include "task/tile_plan.cuh"

#if MPK_WGMMA

/* Where the lane that requests pages stands; its own copy of the ring, which the warp takes over
 * at the end (box_have_asked). */
struct box_asker {
    mpk_ring ring;
    rt_u32 asked; /* pages */
    bool over;    /* there is nothing to load for any more */
};

/* The asking lane: until page `at` of the ring is empty, which was asked for in the phase before
 * `parity`.  Only this lane polls; the others wait at the meeting in box_have_asked.  false: there
 * is nothing to load for any more. */
MPK_FN bool box_await(const mpk_load &l, rt_u32 at, rt_u32 parity)
{
    return load_await(&l, &mpk_w.empty[l.ring.first + at], parity ^ 1);
}

/* The asking lane: the next page, once it is empty, or LOAD_OVER: load_page for one lane.  It
 * does not look at the number of pages in flight: products of many tokens want the whole ring. */
MPK_FN rt_u32 box_ask_any(const mpk_load &l, box_asker *a)
{
    const rt_u32 page = a->ring.first + a->ring.at; /* of the worker */
    if (a->over || !box_await(l, a->ring.at, a->ring.parity)) {
        a->over = true;
        return LOAD_OVER;
    }
    ring_next(&a->ring);
    a->asked++;
    return page;
}

/* The asking lane: a page with the box of w from (column, group) on, of which `groups` are
 * wanted; of up to 8 of them half a box.  A negative column: nothing, a page that is left out. */
MPK_FN void box_ask_page(const mpk_load &l, box_asker *a, int column, int group, int groups)
{
    const bool half = groups <= TILE_BOX_GROUPS / 2; /* the map of half boxes (RT_MAPS) */
    const rt_u32 page = box_ask_any(l, a);           /* empty by now */
    if (page == LOAD_OVER)
        return;
    load_expect(page, column < 0 ? 0 : half ? MPK_PAGE_BYTES / 2 : MPK_PAGE_BYTES);
    if (column >= 0)
        ptx_copy_box(l.s_pages + page * MPK_PAGE_BYTES, (const rt_map *)l.e->maps + 1 + half,
                     column, group, &mpk_w.full[page]);
}

/* Does a page stand before the next step of PAGES pages that is left out?  Two pages of a step are
 * neighbours and begin at an even place; the ring has an even number of pages (gen/source.c), so
 * this happens at most once, before the first step of a pass. */
template <int PAGES> MPK_FN bool box_is_odd(const mpk_ring &ring)
{
    return PAGES == 2 && ring.at % 2;
}

/* The pages of w of a pass, in one lot. */
struct box_asker_w {
    const rt_map *first,
        *last;       /* maps of the step's first page and of its last, which may be half */
    rt_u32 bytes;    /* of a step */
    int column, row; /* in the map: of the first step */
    int per_step, rows_of_box; /* columns and rows of the map */
};

/* Of up to 8 groups in the last page half a box is wanted. */
template <int PAGES>
MPK_FN box_asker_w box_asker_w_of(const mpk_load &l, const tile_pass &q, int group)
{
    const bool half = q.groups <= TILE_BOX_GROUPS * PAGES - TILE_BOX_GROUPS / 2;
    const rt_map *maps = (const rt_map *)l.e->maps + 1;
    /* packed, a row of the map is a group, and an element a word of it */
    const bool rows = tile_is_of_rows(l.e);
    const int of_group = rows ? 8 : 1,
              per_step = rows ? (int)TILE_BOX_COLUMNS : TILE_BOX_COLUMNS * TILE_BOX_WORDS;
    return {maps,
            maps + half,
            (rt_u32)(MPK_PAGE_BYTES * PAGES - (half ? MPK_PAGE_BYTES / 2 : 0)),
            q.begin * per_step,
            group * of_group,
            per_step,
            TILE_BOX_GROUPS * of_group};
}

/* The asking lane: w of a step, to pages that are empty, from place `at` of the ring on.  The last
 * one's barrier tells of all, and that of one before of nothing, so that a body waits once.  The
 * first one's barrier still gets its arrival: its phases must go on with the ring. */
template <int PAGES>
MPK_FN void box_ask_w(const mpk_load &l, const box_asker_w &w, int step, rt_u32 at)
{
    const rt_u32 page = l.ring.first + at, to = l.s_pages + page * MPK_PAGE_BYTES;
    const int column = w.column + step * w.per_step;
    rt_u64 *full = &mpk_w.full[page + PAGES - 1];
    if (PAGES == 2)
        load_expect(page, 0);
    ptx_barrier_expect(full, w.bytes);
    if (PAGES == 2)
        ptx_copy_box(to, w.first, column, w.row, full);
    ptx_copy_box(to + (PAGES - 1) * MPK_PAGE_BYTES, w.last, column,
                 w.row + (PAGES - 1) * w.rows_of_box, full);
}

/* What the asking lane needs for boxes of x.  fill counts the stages of the worker, as bodies count
 * them (mpk_w.box_fills). */
struct box_asker_x {
    const rt_map *map;
    int column, row; /* of the pass's first step; first token of the lot */
    int apart;       /* tokens from the first warpgroup's to the second's: 64, of a joint lot 0 */
    rt_u32 fill;     /* of the pass's first step */
};

/* Where a lot has tokens that are alive bodies wait for x.  Called once bodies are in the pass:
 * then it is known. */
MPK_FN bool box_has_x(const mpk_load &l, int row)
{
    mpk_task t = {};
    t.e = l.e;
    t.live = mpk_w.live;
    return row < (int)mpk_end(t);
}

/* The asking lane: the boxes of x of step `step`, one for each warpgroup.  image: of x that is
 * images, at that step. */
MPK_FN void box_ask_x(const mpk_load &l, const tile_shape &s, const box_asker_x &x, int step,
                      image_asker *image)
{
    const rt_u32 stage = (x.fill + (rt_u32)step) % MPK_BOXES,
                 to = l.s_pages + MPK_PAGES * MPK_PAGE_BYTES + stage * TILE_STAGE;
    const int column = x.column + step * TILE_BOX_COLUMNS;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rt_u64 *full = &mpk_w.box_full[half][stage];
        ptx_barrier_expect(full, TILE_STAGE);
        if (TILE_IS_IMAGE(s))
            image_ask_half(to + (rt_u32)(half * TILE_X), x.map, *image, half, full);
        else
            ptx_copy_box(to + (rt_u32)(half * TILE_X), x.map, column, x.row + half * x.apart, full);
    }
    if (TILE_IS_IMAGE(s))
        image_next(s, image);
}

/* The asking lane: what a pass reads in one lot, step by step: pages of w, and x of the steps
 * after the first MPK_BOXES.  group, row: its first ones; apart: as in box_asker_x.
 *
 * x goes to the stage of the step MPK_BOXES before, which is free when all warps have released that
 * step's pages.  Where a lap of the ring is longer than the stages, x lags behind w, and after the
 * last w only x is left: its time comes when the pages that follow would be empty.  So x is never
 * requested for a pass that no body has begun. */
template <int PAGES>
MPK_FN void box_ask_pass(const mpk_load &l, const tile_shape &s, const tile_pass &q, int group,
                         int row, int apart, box_asker *a)
{
    const int lap = (int)a->ring.n / PAGES, lag = lap > MPK_BOXES ? lap - MPK_BOXES : 0;
    if (box_is_odd<PAGES>(a->ring))
        box_ask_page(l, a, -1, 0, 0);
    if (a->over)
        return;
    const box_asker_w w = box_asker_w_of<PAGES>(l, q, group);
    box_asker_x x = {(const rt_map *)l.e->maps, q.begin * TILE_BOX_COLUMNS, row, apart, 0};
    image_asker image = {};
    rt_u32 at = a->ring.at, parity = a->ring.parity;
    bool has_x = false;
#pragma unroll 1
    for (int step = 0; step < q.steps + lag; step++) {
        const int behind = step - lag;
        if (step < q.steps || behind >= MPK_BOXES)
            if (!box_await(l, at, parity) || (PAGES == 2 && !box_await(l, at + 1, parity))) {
                a->over = true;
                return;
            }
        if (step < q.steps)
            box_ask_w<PAGES>(l, w, step, at);
        if (behind == MPK_BOXES) {
            has_x = box_has_x(l, row);
            x.fill = mpk_w.box_fills[0];
            if (TILE_IS_IMAGE(s))
                image = image_asker_of(s, q.begin + MPK_BOXES, row, apart);
        }
        if (has_x)
            box_ask_x(l, s, x, behind, &image);
        at += PAGES;
        if (at == a->ring.n) {
            at = 0;
            parity ^= 1;
        }
        if (step < q.steps) {
            a->ring.at = at;
            a->ring.parity = parity;
            a->asked += PAGES;
        }
    }
}

/* All lanes: copy the progress of the lane that requested to all.  A page that was requested again
 * had arrived before, so at most a ring of pages is in flight, and the tail moves on without a
 * wait. */
MPK_FN void box_have_asked(mpk_load &l, const box_asker &a, bool asks)
{
    __syncwarp();
    const int lane = __ffs((int)__ballot_sync(0xffffffffu, asks)) - 1;
    const rt_u32 asked = __shfl_sync(0xffffffffu, a.asked, lane);
    l.cancelled = __shfl_sync(0xffffffffu, (rt_u32)a.over, lane);
    l.ring.at = __shfl_sync(0xffffffffu, a.ring.at, lane);
    l.ring.parity = __shfl_sync(0xffffffffu, a.ring.parity, lane);
    l.pages += asked;
    l.flying += asked;
    /* the page at the tail has been filled again, so its first copy had arrived */
    for (; l.flying > l.ring.n; l.flying--)
        ring_next(&l.tail);
}

/* All lanes: all pages of a task, in the order in which the body takes them. */
MPK_FN void box_load(mpk_load &l, const tile_plan &p, const tile_shape &s)
{
    box_asker a = {l.ring, 0, l.cancelled != 0}; /* of all lanes, used by one */
    const int apart = p.joint ? 0 : TILE_TOKENS;
    const bool asks = ptx_elect();
    if (asks)
        ptx_fetch_map((const rt_map *)l.e->maps); /* of x, which bodies ask for first, and late */
    if (asks)
        for (int at = 0; at < p.groups && !a.over; at += p.per_pass) {
            const tile_pass q = tile_pass_at(p, s, at);
            for (int lot = 0; lot < p.lots && !a.over; lot++) {
                const int row = (int)l.e->lo[0] + 2 * TILE_TOKENS * lot;
                if (q.pages == 2)
                    box_ask_pass<2>(l, s, q, p.first + at, row, apart, &a);
                else
                    box_ask_pass<1>(l, s, q, p.first + at, row, apart, &a);
            }
        }
    box_have_asked(l, a, asks);
}

#endif

#endif
