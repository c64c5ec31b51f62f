/* ring.cuh - pages of shared memory between a loader and the warps that run bodies (paper §5.3,
 * paged shared memory).
 *
 * A ring is filled in order by one loader warp and read in order by all body warps.  The
 * loader's side is called by the load phases of bodies (mpk_dispatch_load), from role/loader.cuh
 * and role/clerk.cuh; the bodies' side by bodies.  Page i goes round:
 *
 *            loader: load_page, load_expect, load_copy
 *   empty ----------------------------------------------> filling
 *     ^                                                     |  full[i] completes: 1 arrival and
 *     |  empty[i] completes: MPK_WARPS arrivals             v  all announced bytes
 *   read <----------------------------------------------- full
 *            bodies: ring_take ... ring_release
 *
 * Invariants:
 *   - Pages are taken in the order in which they were requested, and each body warp takes and
 *     releases every page exactly once, also those that it does not need.  So the sides agree on
 *     index and parity without telling each other.
 *   - A reader waits for full[i] (acquire), which covers the copied bytes and the note.  The
 *     loader waits for empty[i] (acquire) before it requests the next copy, and each warp
 *     arrives there (release) after its last read: a page is never overwritten while it is read.
 *   - AOT and JIT tasks have rings of their own, so a JIT task never waits for pages that hold
 *     the constants of AOT tasks.  Each ring is filled in the order in which its tasks run, so
 *     the page that a running task waits for is never after one that waits for that task: no
 *     deadlock.
 *
 * The loader keeps few copies in flight though it runs far ahead: a full ring of requests would
 * delay every poll of an event and every load of an activation (docs/performance.md).
 */
#ifndef TILE_RING_CUH
#define TILE_RING_CUH

#include "tile/worker.cuh"

/* One side's view of a ring: the body warps' and the loader's each move on by themselves. */
struct mpk_ring {
    rt_u32 first, n;   /* pages of the worker that belong to it */
    rt_u32 at, parity; /* the next page, counted from `first`, and its phase */
};

#if MPK_RING

/* Step over one page; the parity flips when the index wraps. */
MPK_FN void ring_next(mpk_ring *r)
{
    if (++r->at == r->n) {
        r->at = 0;
        r->parity ^= 1;
    }
}

/* ---- the bodies' side; called by whole warps ---- */

/* Wait for the next page to be full and step over it; returns its first byte, 1024-byte aligned.
 * *page: its number, for ring_release.  Every thread of the warp waits by itself, so each has
 * acquired the bytes. */
MPK_FN const char *ring_take(mpk_ring *r, rt_u32 *page)
{
    *page = r->first + r->at;
    mpk_barrier_wait(&mpk_w.full[*page], r->parity);
    ring_next(r);
    return mpk_s + *page * MPK_PAGE_BYTES;
}
/* This warp has read the page and all that it noted.  The lanes meet first, so that lane 0's
 * arrival (release) comes after the last read of each. */
MPK_FN void ring_release(rt_u32 page)
{
    __syncwarp();
    if (mpk_thread() % 32 == 0)
        ptx_barrier_arrive(&mpk_w.empty[page]);
}

/* Take and release n pages that nobody reads: they were loaded ahead of the step, for tokens that
 * turned out not to be alive. */
MPK_FN void ring_drop(mpk_ring *r, int n)
{
    for (int i = 0; i < n; i++) {
        rt_u32 page;
        ring_take(r, &page);
        ring_release(page);
    }
}
/* Step over two pages that begin at an even place, in a ring of an even number of pages. */
MPK_FN void ring_skip_pair(mpk_ring *r)
{
    r->at += 2;
    if (r->at == r->n) {
        r->at = 0;
        r->parity ^= 1;
    }
}
/* Step over n pages that other warps take and release for this one. */
MPK_FN void ring_skip(mpk_ring *r, int n)
{
    for (r->at += (rt_u32)n; r->at >= r->n; r->at -= r->n)
        r->parity ^= 1;
}

/* ---- the loader's side; called by the whole warp, all lanes alike ---- */

/* What the loader knows of the ring that it fills and of the step that it fills it for.  All
 * lanes of the warp hold the same values.  Pages from tail to ring are those whose copies may be
 * in flight.
 *
 *   released ... | tail: requested, not known to have arrived | ring.at: next to be requested
 *                  <------------- flying ------------------->
 */
struct mpk_load {
    const rt_entry *e; /* the task, in shared memory */
    mpk_ring ring;
    mpk_ring tail; /* the oldest page whose copy may be in flight */
    rt_u32 flying; /* pages from tail on */
    /* Most pages in flight, at most ring.n: when a page is filled again its barrier is in
     * another phase, and a wait with the tail's parity would be answered by that one. */
    rt_u32 in_flight;
    rt_u32 step;      /* number of the step that it loads for, since the kernel began */
    rt_u32 known;     /* number + 1 of the last step whose data it has seen */
    rt_u32 pages;     /* requested since that step's first */
    rt_u32 cancelled; /* 1: the rest of the task need not be loaded */
    rt_u32 aot;       /* 1: the ring of AOT tasks: it may run into a step that does not come */
    /* shared address of the worker's first page, kept in a register: its conversion from a
     * generic address would be repeated for every page */
    rt_u32 s_pages;
    /* how L2 treats the bytes (ptx_policy_once) */
    rt_u64 policy;
};
enum { LOAD_OVER = 0x7fffffff };

/* Has the load lost its reader?  The machine aborts, or the step that is loaded ahead does not
 * come and the bodies have requested a resync. */
MPK_FN bool load_is_over(const mpk_load *l)
{
    return ptx_load_flag(&mpk_w.abort) || (l->aot && ptx_load_flag(&mpk_w.resync) == RESYNC_ASKED);
}

/* All lanes: wait for a barrier of this worker.  0, in all lanes: there is nothing to load for
 * any more.  The lanes vote, because each may have seen the end at a different look. */
MPK_FN rt_u32 load_wait(const mpk_load *l, rt_u64 *b, rt_u32 parity)
{
    bool is_there = ptx_barrier_try(b, parity);
    while (!is_there && !load_is_over(l))
        is_there = ptx_barrier_try(b, parity);
    return __all_sync(0xffffffffu, is_there);
}

/* Wait until the oldest page in flight is full.  Its bytes are not read here. */
MPK_FN void load_land(mpk_load *l)
{
    mpk_barrier_wait(&mpk_w.full[l->tail.first + l->tail.at], l->tail.parity);
    ring_next(&l->tail);
    l->flying--;
}
/* A page more is in flight, which the loader has just found empty; if there are too many, wait for
 * the oldest first.  If all pages of the ring were, the oldest is this one: the body warps have
 * released it, so its copies have arrived, and there is nothing to wait for. */
MPK_FN void load_count(mpk_load *l)
{
    if (l->flying == l->ring.n) {
        ring_next(&l->tail);
        l->flying--;
    }
    while (l->flying >= l->in_flight) /* several, if fewer may be under way than before */
        load_land(l);
    l->flying++;
    l->pages++;
    ring_next(&l->ring);
}

/* All lanes: make room for one page: its number, or LOAD_OVER when there is nothing to load for
 * any more.  Before: all earlier pages of this ring have been requested.  After: the page is
 * empty, and the caller owes it exactly one load_expect with load_copy of as many bytes and a
 * load_end.
 *
 * With bulk copies one lane (load_leads) does these; afterwards no lane looks at the page's
 * barriers any more.  Without bulk copies all lanes do, and load_end says that nothing else
 * comes.
 *
 * A loader that is slower than the memory holds up everything: this is the most frequent code of
 * the kernel, written for few instructions (docs/performance.md). */
MPK_FN rt_u32 load_page(mpk_load *l)
{
    const rt_u32 page = l->ring.first + l->ring.at;
    if (l->cancelled)
        return LOAD_OVER;
    if (!load_wait(l, &mpk_w.empty[page], l->ring.parity ^ 1)) {
        l->cancelled = 1;
        return LOAD_OVER;
    }
    load_count(l);
    return page;
}
#if MPK_BULK
/* True for the lane that requests a page's copies; the whole loader warp calls it. */
MPK_FN bool load_leads(void)
{
    return ptx_elect();
}
/* n_bytes are in flight to a page.  It is also the phase's one arrival: the barrier completes
 * when as many bytes have come, so nothing may be copied that is not announced. */
MPK_FN void load_expect(rt_u32 page, rt_u32 n_bytes)
{
    ptx_barrier_expect(&mpk_w.full[page], n_bytes);
}
/* Ask the copy engine for n_bytes (a multiple of 16) from global memory to `offset` in the page.
 * The thread does not wait; bytes that arrive are subtracted from what load_expect announced. */
MPK_FN void load_copy(const mpk_load *l, rt_u32 page, rt_u32 offset, const void *from,
                      rt_u32 n_bytes)
{
    ptx_copy_bulk_once(l->s_pages + page * MPK_PAGE_BYTES + offset, from, n_bytes,
                       &mpk_w.full[page], l->policy);
}
/* All copies of the page have been requested. */
MPK_FN void load_end(rt_u32) {}
#else
/* All lanes request a page's copies, 16 bytes each at a time. */
MPK_FN bool load_leads(void)
{
    return true;
}
/* The barrier does not count bytes: load_end makes it wait for the copies in flight. */
MPK_FN void load_expect(rt_u32, rt_u32) {}
/* All lanes: n_bytes, a multiple of 16, from global memory to `offset` in the page.  A warp's
 * copies are many instructions, so eight at a time have addresses that differ by constants: 8 x
 * 32 lanes x 16 bytes = 4096. */
MPK_FN void load_copy(const mpk_load *l, rt_u32 page, rt_u32 offset, const void *from,
                      rt_u32 n_bytes)
{
    const rt_u32 mine = threadIdx.x % 32 * 16;
    rt_u32 to = l->s_pages + page * MPK_PAGE_BYTES + offset + mine, left = n_bytes;
    const char *at = (const char *)from + mine;
#pragma unroll 1
    for (; left >= 4096; left -= 4096) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            ptx_copy_piece_once(to + i * 512, at + i * 512, l->policy);
        to += 4096;
        at += 4096;
    }
#pragma unroll 1
    for (rt_u32 i = 0; mine + i < left; i += 512)
        ptx_copy_piece_once(to + i, at + i, l->policy);
}
/* All copies of the barrier's page have been requested.  Each lane adds an arrival that comes
 * when its own copies have ended.  The arrival that the barrier was initialised with is lane
 * 0's, after the meeting: it comes after all additions, so the phase cannot complete too early,
 * and it releases the page's note. */
MPK_FN void load_end_at(rt_u64 *full)
{
    ptx_barrier_await_copies(full);
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        ptx_barrier_arrive(full);
}
MPK_FN void load_end(rt_u32 page)
{
    load_end_at(&mpk_w.full[page]);
}
#endif

/* Load phases whose pages need nothing but a copy or two are run by one thread, since votes and
 * meetings of the lanes would take longer than all else that a page needs.
 *
 *   if (load_leads()) {
 *       for all pages: load_alone, load_expect, load_copy, load_end
 *       load_tell(&l);
 *   }
 *   load_follow(&l);
 *
 * Without bulk copies load_leads is true in all lanes, and all of them do this together. */
#if MPK_BULK
/* The leading thread: wait for a barrier of this worker; false: there is nothing to load for any
 * more.  The first look stands before the loop, as in mpk_barrier_wait. */
MPK_FN bool load_await(const mpk_load *l, rt_u64 *b, rt_u32 parity)
{
    if (ptx_barrier_try(b, parity))
        return true;
    do
        if (load_is_over(l))
            return false;
    while (!ptx_barrier_try(b, parity));
    return true;
}
/* The leading thread: as load_page.  After LOAD_OVER it asks for no page any more. */
MPK_FN rt_u32 load_alone(mpk_load *l)
{
    const rt_u32 page = l->ring.first + l->ring.at;
    if (!load_await(l, &mpk_w.empty[page], l->ring.parity ^ 1)) {
        l->cancelled = 1;
        return LOAD_OVER;
    }
    load_count(l);
    return page;
}
/* The leading thread, once it has requested its pages; and all lanes, which take over what it has
 * done. */
MPK_FN void load_tell(const mpk_load *l)
{
    mpk_w.led[l->aot ? 0 : 1] = {l->ring.at | l->tail.at << 8 | l->flying << 16 |
                                     l->ring.parity << 24 | l->tail.parity << 25 |
                                     l->cancelled << 26,
                                 l->pages};
}
MPK_FN void load_follow(mpk_load *l)
{
    __syncwarp();
    const mpk_led led = mpk_w.led[l->aot ? 0 : 1];
    l->ring.at = led.place & 255, l->ring.parity = led.place >> 24 & 1;
    l->tail.at = led.place >> 8 & 255, l->tail.parity = led.place >> 25 & 1;
    l->flying = led.place >> 16 & 255, l->cancelled = led.place >> 26;
    l->pages = led.pages;
    __syncwarp(); /* the words may be written again */
}
static_assert(MPK_PAGES < 256, "a place in the ring has 8 bits");
#else
MPK_FN rt_u32 load_alone(mpk_load *l)
{
    return load_page(l);
}
MPK_FN void load_tell(const mpk_load *) {}
MPK_FN void load_follow(mpk_load *) {}
#endif

/* All lanes: a page for n_bytes that the caller's lanes request before load_end, or for nothing
 * (a page that is left out, for bodies that want the next ones to be neighbours).  false: there
 * is nothing to load for any more. */
MPK_FN bool load_open(mpk_load *l, rt_u32 n_bytes)
{
    const rt_u32 page = load_page(l);
    if (page != LOAD_OVER && load_leads()) {
        load_expect(page, n_bytes);
        if (!n_bytes)
            load_end(page);
    }
    __syncwarp();
    return page != LOAD_OVER;
}

/* The leading thread: one page from one place; false: there is nothing to load for any more. */
MPK_FN bool load_from(mpk_load *l, const void *from, rt_u32 n_bytes)
{
    const rt_u32 page = load_alone(l);
    if (page == LOAD_OVER)
        return false;
    load_expect(page, n_bytes);
    load_copy(l, page, 0, from, n_bytes);
    load_end(page);
    return true;
}

/* All lanes: wait until no more than n pages are in flight, and keep it so.  A load phase that
 * had the whole ring in flight calls it before the next task's. */
MPK_FN void load_settle(mpk_load &l, rt_u32 n)
{
    while (l.flying > n)
        load_land(&l);
    l.in_flight = n;
}

/* Once, before anything is loaded: this loader fills pages first to first + n - 1. */
MPK_FN void load_begin(mpk_load *l, rt_u32 first, rt_u32 n)
{
    *l = {};
    l->ring.first = l->tail.first = first;
    l->ring.n = l->tail.n = n;
    l->in_flight = n;
    l->policy = ptx_policy_once();
    l->s_pages = ptx_own(ptx_shared(mpk_s));
}

/* All lanes: what steps write (positions, page tables, the KV cache) may be read from here on.
 * Wait until the step that this task belongs to has begun, or, where an operator is a kernel,
 * until the kernel before has ended.  0: it does not come.
 *
 * Order: the step task's release of the step word, thread 0's acquire of it, its release of
 * `begun`, the acquire here; then the proxy fence, without which a bulk copy might read what lay
 * there before: copies are another proxy, which ordinary acquires do not order. */
MPK_FN int load_needs_step(mpk_load *l)
{
    if (mpk_w.mode != RT_SERVE) {
        ptx_grid_wait();
        ptx_fence_bulk();
        return 1;
    }
    bool begins = l->step < ptx_load_flag(&mpk_w.begun);
    while (!begins && !load_is_over(l))
        begins = l->step < ptx_load_flag(&mpk_w.begun);
    if (!__all_sync(0xffffffffu, begins)) {
        l->cancelled = 1;
        return 0;
    }
    if (l->known != l->step + 1) { /* once a step: partner of the release in body_loop */
        ptx_acquire_flag(&mpk_w.begun);
        ptx_fence_bulk();
        l->known = l->step + 1;
    }
    return 1;
}

/* All lanes: what the task's event waits for may be read and copied from here on.  Wait until it
 * is activated.  The task is not quiet, or its event would say nothing.  All that stands before
 * the task in the lists has been requested already, and its writers need none of the pages that
 * come after, so the wait ends.  0: the event does not come. */
MPK_FN int load_needs_event(mpk_load *l)
{
    if (!load_needs_step(l))
        return 0;
    if (mpk_w.mode != RT_SERVE)
        return 1;
    const rt_word *counter = mpk_w.counters + l->e->depends;
    /* as mpk_poll */
    const rt_u32 wanted = l->e->needed * mpk_w.epoch;
    /* one lane looks, now and then: each acquire empties the L1 cache of the bodies that are run */
    bool came = false;
    for (bool over = false; !came && !over; over = __any_sync(0xffffffffu, load_is_over(l))) {
        came = threadIdx.x % 32 == 0 && (rt_i32)(mpk_load_counter(counter) - wanted) >= 0;
        came = __any_sync(0xffffffffu, came);
        if (!came)
            __nanosleep(200);
    }
    l->cancelled = !came;
    ptx_fence_bulk();
    return !l->cancelled;
}

#endif

#endif
