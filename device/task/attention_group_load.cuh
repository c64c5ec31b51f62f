/* attention_group_load.cuh - what the two sides of attention_group.cuh share, and the loader's.
 *
 * How keys and values lie in the ring, how two warpgroups share a chunk, which chunks a task has in
 * which order; and the loader's part, which requests their pages by one lane.  Pages come through
 * the page ring.  The loader goes through the same chunks as the body, and waits for the task's
 * event before the first page, since the step itself writes keys and values.  The note of a page
 * says whether the table names a page of the cache.
 */
#ifndef TASK_ATTENTION_GROUP_LOAD_CUH
#define TASK_ATTENTION_GROUP_LOAD_CUH

#include "ptx/matrix.cuh"
#include "task/attention_tile.cuh"
#include "task/linear_box.cuh"

#if MPK_WGMMA

/* How keys and values of 64 positions lie in the ring: in one page of 16 KB if K is 64, in two if
 * it is 128, in four if it is 256, keys first.  Two pages of keys, or of values, are neighbours and
 * begin at an even place. */
template <int K> struct group_pages {
    enum {
        BYTES = ATTEND_PAGE * K * 2,                    /* of keys, and of values */
        EACH = BYTES > MPK_PAGE_BYTES ? 2 : 1,          /* pages for keys, and for values */
        N = 2 * BYTES <= MPK_PAGE_BYTES ? 1 : 2 * EACH, /* for both */
    };
};

/* Results of 64 rows and 256 columns do not fit the registers of a warpgroup beside scores.  Both
 * warpgroups then have the same rows, and an area of the columns each.  Both make all scores and
 * weights, so they need not meet for them: the products of a page take half as long again. */
template <int K> struct group_areas {
    enum {
        N = K > 128 ? 2 : 1,
        COLUMNS = K / N,        /* of a warpgroup */
        ROWS = ATTEND_ROWS / N, /* of a chunk */
    };
};

/* ---- chunks, the same for loader and body ---- */

/* The chunks of the task's tokens from `first` on, which are of one slot: for each KV head in
 * turn, as many tokens at a time as make 128 rows with its query heads (with 4 query heads a KV
 * head 32 tokens make a chunk), or group_areas::ROWS.  Loader and body walk in the same order,
 * which is the order of pages in the ring. */
struct group_walk {
    int first, end, heads_end, group; /* tokens; of the task; query heads of a KV head */
    attend_chunk c;
};

/* Stands before the first chunk: n_heads is 0 and first = last = end, so that group_next begins
 * with the task's first head. */
MPK_FN group_walk group_begin(const mpk_task &t, const attend_shape &s, int size, int first,
                              int end)
{
    group_walk w; /* of one run of tokens */
    w.first = first;
    w.end = first + attend_run(t, first, end);
    w.group = s.heads / s.kv_heads;
    w.heads_end = (int)t.e->hi[1] / size;
    w.c.slot = mpk_at<const int>(t, ATTEND_SLOTS)[first];
    w.c.head = (int)t.e->lo[1] / size;
    w.c.n_heads = 0;
    w.c.first = w.c.last = w.end;
    return w;
}

/* Step to the next chunk, all of it but its pages (attend_find); false: there is none.  The outer
 * loop is over KV heads, the inner one over tokens. */
template <int K> MPK_FN bool group_next(const mpk_task &t, const attend_shape &s, group_walk *w)
{
    attend_chunk *c = &w->c;
    c->first = c->last;
    if (c->first >= w->end) {
        c->head += c->n_heads;
        if (c->head >= w->heads_end)
            return false;
        c->kv_head = c->head / w->group;
        const int last = (c->kv_head + 1) * w->group;
        c->n_heads = (last < w->heads_end ? last : w->heads_end) - c->head;
        c->first = w->first;
    }
    c->last = c->first + group_areas<K>::ROWS / c->n_heads;
    c->last = c->last < w->end ? c->last : w->end;
    return true;
}

/* How many tokens of the task from `first` on stand alone; 0 if the box has parts of KV heads, or
 * query heads that are too large or too many for attention_lone.cuh.  The same in loader, which
 * skips them, and body: those tokens read the cache without the ring. */
MPK_FN int group_alone(const mpk_task &t, const attend_shape &s, int size, int first, int end)
{
    const int group = s.heads / s.kv_heads;
    const rt_u32 columns = (rt_u32)(group * size); /* of a KV head */
    const bool whole = t.e->lo[1] % columns == 0 && t.e->hi[1] % columns == 0;
    return attend_has_lone(size) && group <= LONE_ROWS && whole ? lone_count(t, first, end) : 0;
}

/* ---- the loader's part ---- */

/* The requesting lane: copy `bytes` from `from` to `offset` in page `page` of the ring; they
 * complete barrier `full`. */
MPK_FN void group_copy(rt_u32 page, rt_u32 offset, const char *from, rt_u32 bytes, rt_u32 full)
{
    ptx_copy_bulk(mpk_s + page * MPK_PAGE_BYTES + offset, from, bytes, &mpk_w.full[full]);
}

/* The asking lane: keys and values of 64 positions.  page -1: pages of the ring with nothing in
 * them, so that loader and body count alike.  Where keys and values have a page each, the second
 * one's barrier tells of both, and the first one's of nothing: a body waits once.  The note is
 * stored before load_expect arrives (release).  Nothing is requested before all pages are empty;
 * a->over: the step was withdrawn. */
template <int K>
MPK_FN void group_ask(const mpk_load &l, const attend_source &from, int page, box_asker *a)
{
    typedef group_pages<K> at;
    const rt_u64 offset = (rt_u64)(rt_u32)page * from.page_bytes;
    mpk_ring ring = a->ring;
    const rt_u32 keys = ring.first + ring.at;
    a->over = !box_await(l, ring.at, ring.parity);
    if (at::N == 2)
        ring_next(&ring);
    const rt_u32 values = ring.first + ring.at;
    if (a->over || (at::N == 2 && !box_await(l, ring.at, ring.parity))) {
        a->over = true;
        return;
    }
    ring_next(&ring);
    a->ring = ring;
    a->asked += at::N;
    if (at::N == 2)
        load_expect(keys, 0);
    mpk_w.note[values] = page >= 0;
    load_expect(values, page < 0 ? 0 : 2 * at::BYTES);
    if (page < 0)
        return;
    group_copy(keys, 0, from.keys + offset, at::BYTES, values);
    group_copy(values, at::N == 2 ? 0 : at::BYTES, from.values + offset, at::BYTES, values);
}

/* The same where keys have two pages, and values too.  These complete a barrier each, that of their
 * first page, and have a note each: a ring of eight pages has no room yet for the values that
 * belong to the next keys when a body wants these. */
template <int K>
MPK_FN void group_ask_pairs(const mpk_load &l, const attend_source &from, int page, box_asker *a)
{
    const rt_u64 offset = (rt_u64)(rt_u32)page * from.page_bytes;
#pragma unroll
    for (int values = 0; values < 2; values++) {
        const rt_u32 first = box_ask_any(l, a), second = box_ask_any(l, a);
        if (a->over)
            return;
        load_expect(second, 0);
        mpk_w.note[first] = page >= 0;
        load_expect(first, page < 0 ? 0 : (rt_u32)group_pages<K>::BYTES);
        if (page >= 0)
            group_copy(first, 0, (values ? from.values : from.keys) + offset, group_pages<K>::BYTES,
                       first);
    }
}

/* Called by the one lane of the loader that requests pages: request all pages of a chunk, from
 * number `page` on.  Each next number is loaded while a page is requested, and looked at (as in
 * attend_page) after that. */
template <int K>
MPK_FN void group_ask_pages(const mpk_load &l, const attend_source &from, const attend_chunk &c,
                            int page, box_asker *a)
{
    /* Pairs begin at even places, so an odd one before a chunk is left out; the ring has an even
     * number of pages. */
    if (group_pages<K>::EACH == 2 && a->ring.at % 2 && c.n_steps) {
        const rt_u32 odd = box_ask_any(l, a);
        if (odd != LOAD_OVER)
            load_expect(odd, 0);
    }
#pragma unroll 1
    for (int step = c.step + 1; step <= c.step + c.n_steps && !a->over; step++) {
        const int next = step < from.slot_pages ? from.pages[step] : -1;
        if (group_pages<K>::EACH == 2)
            group_ask_pairs<K>(l, from, page, a);
        else
            group_ask<K>(l, from, page, a);
        page = (rt_u32)next < (rt_u32)from.n_pages ? next : -1;
    }
}

/* All lanes: request the pages of a chunk.  *came: the task's event has been seen, after which
 * what the step writes (keys, values) may be copied; where the first page lies is known before. */
template <int K>
MPK_FN void group_load_chunk(mpk_load &l, const mpk_task &t, const attend_shape &s, attend_chunk *c,
                             bool *came)
{
    attend_find(t, s, c);
    const attend_source from = attend_source_of<K>(t, s, *c);
    const int page = c->n_steps ? attend_page(from, c->step) : -1;
    if (!*came && !load_needs_event(&l))
        return;
    *came = true;
    box_asker a = {l.ring, 0, false};
    const bool asks = ptx_elect();
    if (asks)
        group_ask_pages<K>(l, from, *c, page, &a);
    box_have_asked(l, a, asks);
}

/* The loader's part of the task.  Positions, slots and page tables belong to the step, so it
 * waits for the step's word first.  While it works here the whole ring may be in flight, since
 * bytes, not latency, decide; it settles to the usual number at the end. */
template <int K> MPK_FN void attention_group_load(mpk_load &l, const attend_shape &s)
{
    bool came = false; /* the event, which is waited for once */
    if (!load_needs_step(&l))
        return;
    mpk_task t = {};
    t.e = l.e;
    t.live = mpk_w.live;
    const int end = (int)mpk_end(t);
    const rt_u32 in_flight = l.in_flight;
    l.in_flight = l.ring.n;
    for (int first = (int)l.e->lo[0]; first < end && !l.cancelled;) {
        const int alone = group_alone(t, s, K, first, end);
        if (alone) {
            first += alone;
            continue;
        }
        group_walk w = group_begin(t, s, K, first, end);
        while (!l.cancelled && group_next<K>(t, s, &w))
            group_load_chunk<K>(l, t, s, &w.c, &came);
        first = w.end;
    }
    load_settle(l, in_flight);
}

#endif

#endif
