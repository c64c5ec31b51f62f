/* attention_split_work.cuh - how attention_split_stream.cuh divides its work among splits and
 * tasks, and what its loader brings; for that file alone.
 *
 * The contexts of all tokens of a step, one after the other, are one row of units of s.unit
 * positions each, and split i of n has units i * all / n up to (i + 1) * all / n of it: equal work
 * whatever the lengths are.  Two tokens with 3 and 5 units and four splits:
 *
 *   token   0 0 0 1 1 1 1 1
 *   unit    0 1 2 0 1 2 3 4
 *   split   0 0 1 1 2 2 3 3
 *
 * With `own` each token's context is cut by its own length instead (op/split_own.h).  It is then
 * all that comes before the token; what the step itself contributes to it is taken from qkv.
 *
 * Loader and body call the same functions on the same data of the step, so both arrive at the same
 * pages in the same order; nothing is passed between them.
 */
#ifndef TASK_ATTENTION_SPLIT_WORK_CUH
#define TASK_ATTENTION_SPLIT_WORK_CUH

#include "shape/attention_split_shape.h"
#include "tile/cap.cuh"
#include "tile/kv.cuh"
#include "tile/prefix.cuh"
#include "tile/ring.cuh"
#include "tile/split.cuh"

/* ---- scratch ---- */

/* Scratch of a team: offsets in bytes (shape/attention_split_shape.h).  Rows are 16 bytes longer
 * than K entries, so that the eight rows of a fragment lie apart in banks. */
template <int K, int GROUP, int TOKENS, int TEAM> struct attention_scratch {
    enum {
        ROW = ATTENTION_SCRATCH_ROW(K),
        QUERY = ATTENTION_SCRATCH_QUERY(K),
        MOST = ATTENTION_SCRATCH_MOST(K),
        SUM = ATTENTION_SCRATCH_SUM(K, TEAM),
        OUT = ATTENTION_SCRATCH_OUT(K, TEAM),
        KEY = ATTENTION_SCRATCH_KEY(K, GROUP, TEAM),
        VALUE = ATTENTION_SCRATCH_VALUE(K, GROUP, TOKENS, TEAM),
        ROWS = ATTENTION_SCRATCH_ROWS(TOKENS, TEAM), /* keys and values of the step */
        BYTES = ATTENTION_SCRATCH_TEAM(K, GROUP, TOKENS, TEAM),
    };
};

/* ---- teams: the warps that do a piece together ---- */

template <int TEAM> struct attention_teams {
    enum { N = MPK_WARPS / TEAM };
};
/* This thread's team, and its place and its warp's in it. */
template <int TEAM> MPK_FN int attention_team(void)
{
    return TEAM == MPK_WARPS ? 0 : mpk_thread() / (32 * TEAM);
}
template <int TEAM> MPK_FN int attention_thread(void)
{
    return TEAM == MPK_WARPS ? mpk_thread() : mpk_thread() % (32 * TEAM);
}
template <int TEAM> MPK_FN int attention_warp(void)
{
    return attention_thread<TEAM>() / 32;
}
/* All threads of the team meet. */
template <int TEAM> MPK_FN void attention_meet(void)
{
    if (TEAM == MPK_WARPS)
        mpk_sync();
    else
        ptx_meet(2 + attention_team<TEAM>(), 32 * TEAM);
}
/* The team's scratch. */
template <int K, int GROUP, int TOKENS, int TEAM>
MPK_FN char *attention_scratch_of(const mpk_task &t)
{
    return t.s_scratch + attention_team<TEAM>() * attention_scratch<K, GROUP, TOKENS, TEAM>::BYTES;
}

/* ---- who does what: the same in every lane of every warp that asks ---- */

/* Of a lot of 32 tokens: lane t holds what belongs to token lot + t.
 *
 *   position, slot   of the token; slot -1: it is not alive
 *   cached           positions that are in the cache before the step, the same for all tokens of a
 *                    slot; with `own` all positions before the token's own
 *   units            into which these are cut; at least one, since its own step's keys are work
 *                    that one split must do
 *   first            the first token of its slot in the step
 *   before           units of earlier tokens, or with `own` their splits
 *   all              units of all tokens, the same in each lane
 */
struct attention_plan {
    /* first to all: as above */
    int position, slot, first, cached, units, before, all;
    /* behind: units of all tokens to the end of the lot */
    int lot, behind;
};

/* All lanes: plan tokens lot to lot + 31 of the `live` ones.  earlier: units of the tokens before
 * the lot.  How many positions are cached follows from the first token of a slot: its own position.
 * Tokens of one slot are neighbours in the step, so a request is a run of equal slots, which may
 * have begun in an earlier lot. */
MPK_FN void attention_plan_lot(const rt_entry *e, int live, const attention_shape &s, int lot,
                               int earlier, attention_plan *p)
{
    const int *positions = (const int *)e->at[AT_POSITIONS], *slots = (const int *)e->at[AT_SLOTS];
    const int lane = mpk_thread() % 32, token = lot + lane;
    const bool alive = token < live;
    p->lot = lot;
    p->position = alive ? positions[token] : 0;
    p->slot = alive ? slots[token] : -1;
    int left = __shfl_up_sync(0xffffffffu, p->slot, 1);
    rt_u32 starts = __ballot_sync(0xffffffffu, lane == 0 || left != p->slot);
    const int start = 31 - __clz((int)(starts & (0xffffffffu >> (31 - lane))));
    int cached = __shfl_sync(0xffffffffu, p->position, start), room = s.slot_pages * ATTENTION_PAGE;
    if (s.own)
        cached = p->position;
    p->first = lot + start;
    /* The lot may begin within a run: look back, 32 tokens at a time, for where it begins. */
    int from = lot;
    for (int before = lot - 32; before >= 0 && from == before + 32; before -= 32) {
        const int other = slots[before + lane], further = __shfl_up_sync(0xffffffffu, other, 1);
        if (__shfl_sync(0xffffffffu, other, 31) != __shfl_sync(0xffffffffu, p->slot, 0))
            break;
        starts = __ballot_sync(0xffffffffu, lane == 0 || further != other);
        from = before + 31 - __clz((int)starts);
    }
    if (start == 0 && from < lot) {
        p->first = from;
        cached = s.own ? cached : positions[from];
    }
    p->cached = cached < 0 ? 0 : cached < room ? cached : room;
    p->units = !alive ? 0 : p->cached > s.unit ? (p->cached + s.unit - 1) / s.unit : 1;
    const int count = alive && s.own ? split_own_parts(p->units, s.splits, s.own) : p->units;
    const int sum = mpk_prefix_lanes(count, lane);
    p->before = earlier + sum - count;
    p->behind = earlier + __shfl_sync(0xffffffffu, sum, 31);
}

/* All lanes: plan the first lot, with `all` of the whole step.  To know `all`, all lots are
 * planned, from the last to the first.  TOKENS: of a graph, at most; up to 32 are one lot. */
template <int TOKENS>
MPK_FN void attention_plan_step(const rt_entry *e, int live, const attention_shape &s,
                                attention_plan *p)
{
    int all = 0;
#pragma unroll 1
    for (int lot = TOKENS > 32 && live > 32 ? (live - 1) / 32 * 32 : 0; lot >= 0; lot -= 32) {
        attention_plan_lot(e, live, s, lot, 0, p);
        all += p->behind;
    }
    p->all = all;
}

/* Plan the next lot of 32 tokens; false: no token of it is alive. */
template <int TOKENS>
MPK_FN bool attention_next_lot(const rt_entry *e, int live, const attention_shape &s,
                               attention_plan *p)
{
    if (TOKENS <= 32 || p->lot + 32 >= live)
        return false;
    attention_plan_lot(e, live, s, p->lot + 32, p->behind, p);
    return true;
}

/* A split's part of one token's context: units, pages of the slot's table (64 positions each), and
 * tokens of the step.  The piece with hi == units also has the step's own tokens of its slot.  With
 * `own` that piece has the token itself, and each piece has the step's tokens whose positions it
 * covers.  The same in all lanes. */
struct attention_piece {
    int slot, position, cached, first;
    int lo, hi, units;         /* units lo <= u < hi of this token */
    int first_page, last_page; /* first <= p < last */
    int from;                  /* positions below are outside the window */
};

/* Find a split's part of each token of a lot: lane t gets units *lo <= u < *hi of token lot + t.
 * Returns a bit for each token of which the split has any. */
MPK_FN rt_u32 attention_share(const attention_plan *p, const attention_shape &s, int split, int *lo,
                              int *hi)
{
    /* The split's share of the row of all units, counted from this token's first unit on. */
    const int from = (int)((long long)split * p->all / s.splits) - p->before,
              to = (int)((long long)(split + 1) * p->all / s.splits) - p->before;
    *lo = from < 0 ? 0 : from < p->units ? from : p->units;
    *hi = to < 0 ? 0 : to < p->units ? to : p->units;
    if (s.own)
        split_own_units(split, s.splits, s.own, p->before, p->units, lo, hi);
    return __ballot_sync(0xffffffffu, *lo < *hi);
}

/* Pages of a piece that has units lo to hi - 1 of a token's context: *first <= p < *last.  Returns
 * the first position that the token sees. */
MPK_FN int attention_pages_of(const attention_shape &s, int position, int cached, int lo, int hi,
                              int *first, int *last)
{
    int from = s.window ? position - s.window + 1 : 0,
        end = hi * s.unit < cached ? hi * s.unit : cached;
    from = from < 0 ? 0 : from;
    *first = lo * s.unit / ATTENTION_PAGE;
    if (from / ATTENTION_PAGE > *first)
        *first = from / ATTENTION_PAGE;
    *last = lo < hi ? (end + ATTENTION_PAGE - 1) / ATTENTION_PAGE : 0;
    return from;
}

/* Fill *k for token lot + t, of which the split has units lo to hi - 1 (in lane t). All lanes get
 * the same. */
MPK_FN void attention_find(const attention_plan *p, const attention_shape &s, int lo, int hi, int t,
                           attention_piece *k)
{
    k->units = __shfl_sync(0xffffffffu, p->units, t);
    k->slot = __shfl_sync(0xffffffffu, p->slot, t);
    k->position = __shfl_sync(0xffffffffu, p->position, t);
    k->cached = __shfl_sync(0xffffffffu, p->cached, t);
    k->first = __shfl_sync(0xffffffffu, p->first, t);
    k->lo = __shfl_sync(0xffffffffu, lo, t);
    k->hi = __shfl_sync(0xffffffffu, hi, t);
    k->from =
        attention_pages_of(s, k->position, k->cached, k->lo, k->hi, &k->first_page, &k->last_page);
}

/* How many pages a split's piece of this lane's token has, of units lo to hi - 1. */
MPK_FN int attention_count_pages(const attention_plan *p, const attention_shape &s, int lo, int hi)
{
    int first, last;
    attention_pages_of(s, p->position, p->cached, lo, hi, &first, &last);
    return last > first ? last - first : 0;
}

/* Page of the cache for positions 64 i ... of a slot, or -1: none, or a number that is no page's.
 * Slots and tables are data of the step, so bad data reads no bad address. */
MPK_FN int attention_page(const rt_entry *e, const attention_shape &s, int slot, int i)
{
    if ((rt_u32)slot >= (rt_u32)s.slots || (rt_u32)i >= (rt_u32)s.slot_pages)
        return -1;
    int page = ((const int *)e->at[AT_PAGES])[slot * s.slot_pages + i];
    return (rt_u32)page < (rt_u32)s.n_pages ? page : -1;
}

/* When are the step's keys and values written to the caches?  Of few tokens after the task's
 * results have been stored, when no task waits for this worker.  Of more tokens together with the
 * piece that holds the end of a token's context and so has the token's key and value in registers:
 * loading them again later would delay the worker's next task. */
MPK_FN constexpr bool attention_puts_as_it_goes(int tokens)
{
    return tokens > ATTENTION_FEW_TOKENS;
}

/* ---- the loader's part: pairs of pages, keys before values ---- */

/* All lanes: the next page of the ring, for bytes of a KV page; and bytes more from `second`, at
 * `place`, unless place is 0.  A KV page that does not exist (-1) takes one too, without contents,
 * because the body takes as many; the ring page's note says so. */
MPK_FN void attention_fill(mpk_load &l, int page, const char *first, rt_u32 bytes,
                           const char *second, rt_u32 place)
{
    const rt_u32 to = load_page(&l);
    if (to == LOAD_OVER || !load_leads())
        return;
    const bool there = page >= 0;
    mpk_w.note[to] = there;
    load_expect(to, there ? bytes << (place != 0) : 0);
    if (there)
        load_copy(&l, to, 0, first, bytes);
    if (there && place)
        load_copy(&l, to, place, second, bytes);
    load_end(to);
}

/* How keys and values of a page of the cache pass through the ring: in one page of the ring if both
 * fit, else in two, keys first.  Keys that do not fit one page come in N parts of 64 / N positions,
 * each followed by its part of the values. */
template <int K> struct attention_page_parts {
    enum {
        WHOLE = ATTENTION_PAGE * K * 2, /* bytes of keys, and of values */
        N = WHOLE > MPK_PAGE_BYTES ? 2 : 1,
        BYTES = WHOLE / N,
        TOGETHER = 2 * BYTES <= MPK_PAGE_BYTES,
    };
    static_assert((int)BYTES <= (int)MPK_PAGE_BYTES, "a part fits a page of the ring");
};

/* All lanes: load keys and values of one page of the cache and one KV head: of its first n
 * positions, rounded up to the 16 that a warp works on at a time.  Both lie in the page in the
 * order of positions, 16 by 16. */
template <int K>
MPK_FN void attention_load_page(mpk_load &l, const attention_shape &s, int page, int head, int n)
{
    typedef attention_page_parts<K> parts;
    const rt_u32 whole = n < ATTENTION_PAGE ? (rt_u32)(n + 15) / 16 * (16 * K * 2) : parts::WHOLE;
    const rt_u64 at = ((rt_u64)(page < 0 ? 0 : page) * s.kv_heads + head) * parts::WHOLE;
    const char *key = (const char *)l.e->at[AT_K_CACHE] + at,
               *value = (const char *)l.e->at[AT_V_CACHE] + at;
#pragma unroll 1
    for (int i = 0; i < parts::N; i++, key += parts::BYTES, value += parts::BYTES) {
        const rt_u32 from = (rt_u32)i * parts::BYTES, left = whole > from ? whole - from : 0,
                     bytes = mpk_smaller(left, parts::BYTES);
        const int there = bytes ? page : -1; /* a part may have nothing of it */
        attention_fill(l, there, key, bytes, value, parts::TOGETHER ? parts::BYTES : 0);
        if (!parts::TOGETHER)
            attention_fill(l, there, value, bytes, NULL, 0);
    }
}

/* If a split has ATTENTION_LONG units or more, the bytes of attention determine the step's time,
 * and more pages than the tuned number may be in flight.  With fewer units they would only delay
 * the words by which workers synchronise. */
enum { ATTENTION_LONG = 8, ATTENTION_MORE_IN_FLIGHT = 2 };

/* All lanes: load the pages of a lot of tokens, in the order in which the body takes them: by KV
 * head, split, token, page. */
template <int K>
MPK_FN void attention_load_lot(mpk_load &l, const attention_shape &s, const attention_plan &plan)
{
    const int columns = s.group * K, lane = mpk_thread() % 32;
#pragma unroll 1
    for (int head = (int)l.e->lo[2] / columns; head < (int)l.e->hi[2] / columns; head++)
#pragma unroll 1
        for (int split = (int)l.e->lo[1]; split < (int)l.e->hi[1]; split++) {
            int lo, hi;
#pragma unroll 1
            for (rt_u32 tokens = attention_share(&plan, s, split, &lo, &hi); tokens;
                 tokens &= tokens - 1) {
                attention_piece k;
                attention_find(&plan, s, lo, hi, __ffs((int)tokens) - 1, &k);
#pragma unroll 1
                for (int p = k.first_page; p < k.last_page; p += 32) {
                    /* the lanes look up 32 pages at once */
                    int mine =
                        p + lane < k.last_page ? attention_page(l.e, s, k.slot, p + lane) : -1;
#pragma unroll 1
                    for (int i = 0; i < 32 && p + i < k.last_page; i++)
                        attention_load_page<K>(l, s, __shfl_sync(0xffffffffu, mine, i), head,
                                               k.cached - (p + i) * ATTENTION_PAGE);
                }
            }
        }
}

/* The loader's part of the task.  It waits for the step to begin, since a step writes positions and
 * page tables, but not for the task's event: what the step adds to contexts comes from qkv and not
 * from the cache.  If load_needs_step returns false, the expected step did not come. */
template <int K, int TOKENS> MPK_FN void attention_split_load(mpk_load &l, const attention_shape &s)
{
    attention_plan plan;
    if (!load_needs_step(&l))
        return;
    /* a task has all tokens */
    const int live = (int)mpk_smaller(mpk_w.live[RT_TOKENS], l.e->hi[0]);
    attention_plan_step<TOKENS>(l.e, live, s, &plan);
    const rt_u32 in_flight = l.in_flight;
    if (plan.all >= ATTENTION_LONG * s.splits)
        l.in_flight = mpk_smaller(in_flight + ATTENTION_MORE_IN_FLIGHT, l.ring.n);
    do
        attention_load_lot<K>(l, s, plan);
    while (attention_next_lot<TOKENS>(l.e, live, s, &plan));
    load_settle(l, in_flight);
}

#endif
