/* linear_stream_load.cuh - the loader's part of linear_stream.cuh: pages of weights in the order in
 * which the body takes them.
 *
 * One thread requests all pages of a task (load_alone in tile/ring.cuh).  They do not depend on the
 * step, so they may be requested long before it begins.
 */
#ifndef TASK_LINEAR_STREAM_LOAD_CUH
#define TASK_LINEAR_STREAM_LOAD_CUH

#include "rt/rt_blocks.h"
#include "task/stream_x.cuh"
#include "tile/ring.cuh"

/* Groups of the task's box: the first one, and how many.  A group is 8 rows of w; of a gated
 * product these are 4 columns of y. */
MPK_FN rt_u32 stream_first(const rt_entry *e, const stream_shape &s)
{
    return e->lo[1] >> (s.glu != GLU_NONE ? 2 : 3);
}
/* Groups of 8 rows of w that the task touches, also in part; with a gate a group holds 4 rows of
 * each weight. */
MPK_FN rt_u32 stream_groups(const rt_entry *e, const stream_shape &s)
{
    const rt_u32 shift = s.glu != GLU_NONE ? 2 : 3;
    return ((e->hi[1] + (1u << shift) - 1) >> shift) - (e->lo[1] >> shift);
}

/* The leading thread: pages in the order of use: tile by tile, in a tile pass by pass (x in
 * registers), in a pass group by group.  The body takes exactly these pages, whatever is alive.  A
 * group of 8 rows is `pages` pages of 16 KB, the last one shorter: 4 KB for each block of a warp
 * (shape.last).  If x has one pass there is one tile of all groups here: pages then come in
 * memory's order, and the body's tiles ask for nothing else. */
MPK_FN void stream_load_all(mpk_load &l, const stream_shape &s)
{
    const rt_u32 first = stream_first(l.e, s), n = stream_groups(l.e, s); /* groups of the box */
    const rt_u32 pages = s.pages, last_bytes = s.last * 4096,
                 group_bytes = (pages - 1) * 16384 + last_bytes;
    const rt_u32 most = s.at_once, at_once = pages <= most ? pages : most; /* pages of x */
    const rt_u32 tile = pages <= most ? n : STREAM_TILE; /* one pass: no need to go tile by tile */
    const char *base = (const char *)l.e->at[RT_PACKED] + (rt_u64)first * group_bytes; /* group 0 */
#pragma unroll 1
    for (rt_u32 q = 0; q < n; q += tile)
#pragma unroll 1
        for (rt_u32 pass = 0; pass < pages; pass += at_once) {
            const rt_u32 end = mpk_smaller(pass + at_once, pages), here = mpk_smaller(n - q, tile);
            const char *group = base + (rt_u64)q * group_bytes; /* first group of the tile */
            rt_u32 p = pass;                                    /* page of the group */
#pragma unroll 1
            for (rt_u32 i = 0; i < here * (end - pass); i++) {
                if (!load_from(&l, group + p * 16384, p + 1 == pages ? last_bytes : 16384))
                    return;
                if (++p == end) {
                    p = pass;
                    group += group_bytes;
                }
            }
        }
}
MPK_FN void linear_stream_load(mpk_load &l, const stream_shape &s)
{
    if (load_leads()) {
        stream_load_all(l, s);
        load_tell(&l);
    }
    load_follow(&l);
}

/* The leading thread: a page with a slab of each of n groups, which lie group_bytes apart.  Bytes:
 * one slab fills a page; nibbles: two share one (RT_GROUPS_OF_PAGE).  false: there is nothing to
 * load for any more. */
template <int FORM>
MPK_FN bool stream_load_slabs(mpk_load &l, const char *from, rt_u32 group_bytes, rt_u32 n)
{
    const rt_u32 page = load_alone(&l);
    if (page == LOAD_OVER)
        return false;
    load_expect(page, n * RT_SLAB_BYTES(FORM));
    load_copy(&l, page, 0, from, RT_SLAB_BYTES(FORM));
    if (RT_GROUPS_OF_PAGE(FORM) > 1 && n > 1)
        load_copy(&l, page, RT_SLAB_BYTES(FORM), from + group_bytes, RT_SLAB_BYTES(FORM));
    load_end(page);
    return true;
}

/* As stream_load_all, of weights in blocks: all of it for each 16 tokens of the box.  The page of
 * group i + 1 comes right after that of group i, since the body multiplies both as the 16 rows of
 * one operand (blocks.cuh). */
template <int FORM> MPK_FN void stream_load_all_blocks(mpk_load &l, const stream_shape &s)
{
    constexpr rt_u32 TOGETHER = RT_GROUPS_OF_PAGE(FORM);
    const rt_u32 first = stream_first(l.e, s), n = stream_groups(l.e, s), pages = s.pages,
                 at_once = s.at_once, /* of x */
        group_bytes = pages * RT_SLAB_BYTES(FORM), tokens = l.e->hi[0] - l.e->lo[0];
    const char *base = (const char *)l.e->at[RT_PACKED] + (rt_u64)first * group_bytes;
#pragma unroll 1
    for (rt_u32 row = 0; row < tokens; row += STREAM_MOST_TOKENS)
#pragma unroll 1
        for (rt_u32 q = 0; q < n; q += STREAM_TILE)
#pragma unroll 1
            for (rt_u32 pass = 0; pass < pages; pass += at_once) {
                const rt_u32 end = mpk_smaller(pass + at_once, pages),
                             here = mpk_smaller(n - q, STREAM_TILE);
#pragma unroll 1
                for (rt_u32 i = 0; i < here; i += 2) { /* multiplied together */
                    const rt_u32 two = mpk_smaller(here - i, 2);
                    const char *from =
                        base + (rt_u64)(q + i) * group_bytes + pass * RT_SLAB_BYTES(FORM);
#pragma unroll 1
                    for (rt_u32 p = pass; p < end; p++, from += RT_SLAB_BYTES(FORM)) {
                        if (!stream_load_slabs<FORM>(l, from, group_bytes,
                                                     mpk_smaller(two, TOGETHER)))
                            return;
                        if (TOGETHER == 1 && two > 1 &&
                            !stream_load_slabs<FORM>(l, from + group_bytes, group_bytes, 1))
                            return;
                    }
                }
            }
}
template <int FORM> MPK_FN void linear_stream_load_blocks(mpk_load &l, const stream_shape &s)
{
    if (load_leads()) {
        stream_load_all_blocks<FORM>(l, s);
        load_tell(&l);
    }
    load_follow(&l);
}

#endif
