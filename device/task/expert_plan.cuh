/* expert_plan.cuh - which tiles of a product of many tokens with experts a task has: the plan that
 * expert_tile.cuh and expert_unpack.cuh share, and what their loaders are told of it.
 *
 * Input: the ids of the task's pairs of a token and one of its experts.  Output, in scratch: tiles,
 * and the pairs of each.
 *
 * Which experts have how many pairs is known at run time alone, so a task's box says how much of
 * the work is its own, and not which (OP_SHARES).  All tasks that have the same tokens cut the work
 * alike:
 *   - the pairs of an expert, in their order, are chunks of as many pairs each, at most 128;
 *   - a tile is a chunk and a pass of some groups of the expert's packed rows (GROUPS); tiles are
 *     numbered by expert, chunk and pass;
 *   - tile i is dealt to column (i mod W) rows / W of y, W the number of workers, and belongs to
 *     the task that has this column.
 * So each of W equal tasks has every W-th tile, and those that run at a time are neighbours: the
 * chunks of an expert read its weights from memory once, and from L2 after that.
 *
 * A task counts the pairs of all experts, and gathers those of its own tiles (expert_tile_plan),
 * twelve tiles at a time.  Its loader cannot know which weights it needs: the body writes the tiles
 * to scratch and tells by mpk_w.plans how many there are.  Invariant: that word is 0 when the body
 * has nothing to tell; the body waits for 0 and stores 1 + 2 tiles + (1 if more come); the loader
 * takes it and stores 0.  It has read the tiles before it requests the last one's last page,
 * without which the body does not write the next ones.
 */
#ifndef TASK_EXPERT_PLAN_CUH
#define TASK_EXPERT_PLAN_CUH

#include "task/linear_tile.cuh"
#include "tile/prefix.cuh"

#if MPK_WGMMA

/* A use of the body: operands, and what surrounds the product; gen/body_expert_tile.c prints it. */
struct expert_tile_shape {
    int columns, blocks; /* of x; blocks of 32 columns in a packed group */
    int rows;            /* columns of y */
    int groups;          /* packed, of an expert */
    int norm;            /* 1: rms_norm of x */
    float eps;
    int activation; /* ACTIVATE_*: not NONE: groups hold pairs of rows */
    int ids, y;     /* operands; x is operand 0 */
    int experts, of_token;
    int split; /* 1: x has a row for each pair */
};

/* The same of experts with biases, or a gate with a limit: code of its own (ENDS). */
struct expert_tile_ends_shape {
    expert_tile_shape s;
    int bias[2], type[2]; /* operands [experts, rows] of w0 and w1, -1: absent; 1: f32, 0: bf16 */
    float limit;          /* of ACTIVATE_SWIGLU_OAI; else 0 */
};

enum {
    EXPERT_TILE_PAIRS = 128,        /* of a chunk, at most */
    EXPERT_TILE_PLANNED = 12,       /* tiles, together */
    EXPERT_TILE_MOST = 256,         /* experts: a thread each */
    EXPERT_TILE_AHEAD = 8,          /* ids that a lane requests together */
    EXPERT_TILE_FETCHED = 6 * 1024, /* of a group, brought to L2 ahead of the ids */
    /* Scratch while a plan is made, where stages lie later: u32[warp][expert] pairs, then how many
     * are in the warps before; expert_tile_place[expert]; u32[2][warp] sums */
    EXPERT_TILE_COUNTS = 0,
    EXPERT_TILE_PLACES = EXPERT_TILE_COUNTS + MPK_WARPS * EXPERT_TILE_MOST * 4,
    EXPERT_TILE_SUMS = EXPERT_TILE_PLACES + EXPERT_TILE_MOST * 8,
    /* and after the stages: float[2][64] factors, tiles, u32[tile][128] pairs */
    EXPERT_TILE_SCALES = TILE_SCALES,
    EXPERT_TILE_PLAN = EXPERT_TILE_SCALES + 2 * TILE_TOKENS * 4,
    EXPERT_TILE_LIST = EXPERT_TILE_PLAN + EXPERT_TILE_PLANNED * 16,
    EXPERT_TILE_SCRATCH = EXPERT_TILE_LIST + EXPERT_TILE_PLANNED * EXPERT_TILE_PAIRS * 4
};
static_assert((int)EXPERT_TILE_MOST == MPK_THREADS, "a thread takes an expert");

/* A planned tile, as it lies in scratch: the body writes it, the loader reads `group`. */
struct __align__(16) expert_tile_tile
{
    rt_u32 group;        /* the first packed one */
    rt_u32 pass;         /* of its expert */
    rt_u32 first, pairs; /* of its expert's pairs */
};

/* Which of the planned tiles belong to an expert: n from `first` on. */
struct __align__(8) expert_tile_place
{
    rt_u32 first, n;
};

/* The word by which body and loader talk: AOT and JIT tasks have loaders, and words, of their
 * own. */
MPK_FN rt_u32 *expert_tile_mail(bool aot)
{
    return &mpk_w.plans[aot ? 0 : 1];
}

/* ---- the loader's part ---- */

/* All lanes of the loader: wait until the body has planned tiles, take what it tells and free
 * the word for its next message; 0: there is nothing to load for any more.  The acquire makes
 * the tiles in scratch visible. */
MPK_FN rt_u32 expert_tile_listen(mpk_load &l)
{
    rt_u32 *mail = expert_tile_mail(l.aot), told = ptx_load_flag(mail); /* 0: nothing yet */
    while (!told && !load_is_over(&l))
        told = ptx_load_flag(mail);
    if (!__all_sync(0xffffffffu, told != 0)) {
        l.cancelled = 1;
        return 0;
    }
    ptx_acquire_flag(mail); /* partner: expert_tile_tell */
    __syncwarp();
    /* The word is free again, but the body may write new tiles only after it has had the last
     * page. */
    if (mpk_thread() % 32 == 0)
        ptx_store_flag(mail, 0);
    __syncwarp();
    return told;
}

/* All lanes: bring the first columns of the task's first tile to L2 before the ids are known, as
 * if each expert had one chunk: where pairs are many that is likely, and what another task needs
 * does not come in vain.  A layer's last product (split) knows its tiles before it is due, and
 * fetches nothing.  BYTES: of a packed group. */
template <int GROUPS, rt_u32 (*BYTES)(const expert_tile_shape &s)>
MPK_FN void expert_tile_fetch(const mpk_load &l, const expert_tile_shape &s)
{
    const rt_u32 of = mpk_w.k->machine.n_workers, rows = (rt_u32)s.rows,
                 passes = ((rt_u32)s.groups + GROUPS - 1) / GROUPS,
                 tile = (l.e->lo[2] * of + rows - 1) / rows, expert = tile / passes,
                 lane = (rt_u32)mpk_thread() % 32, group = tile % passes * GROUPS + lane,
                 piece = BYTES(s), end = mpk_smaller(l.e->hi[0], mpk_w.live[l.e->live]);
    if (!s.split && (GROUPS >= 32 || lane < GROUPS) && end * s.of_token >= 2 * s.experts &&
        expert < (rt_u32)s.experts && group < (rt_u32)s.groups)
        ptx_fetch_bulk((const char *)l.e->at[RT_PACKED] +
                           ((rt_u64)expert * (rt_u32)s.groups + group) * piece,
                       mpk_smaller(piece, EXPERT_TILE_FETCHED));
    __syncwarp();
}

/* The loader's part of a task: message after message, until one says that no more tiles come.
 * LOAD requests the pages of the tile of `shape` that begins with a packed group. */
template <int GROUPS, typename shape, rt_u32 (*BYTES)(const expert_tile_shape &s),
          void (*LOAD)(mpk_load &l, const shape &s, rt_u32 group)>
MPK_FN void expert_tile_load_all(mpk_load &l, const expert_tile_shape &s, const shape &whole)
{
    const expert_tile_tile *tiles =
        (const expert_tile_tile *)(mpk_s + MPK_PAGES * MPK_PAGE_BYTES + EXPERT_TILE_PLAN);
    const rt_u32 in_flight = l.in_flight; /* the tuned number, set again at the end */
    if (!load_needs_step(&l))
        return;
    expert_tile_fetch<GROUPS, BYTES>(l, s);
    /* bytes, not latency, decide here; there is nothing that long queues would delay */
    l.in_flight = l.ring.n;
    for (rt_u32 told = 1; told & 1 && !l.cancelled;) {
        told = expert_tile_listen(l) - 1;
        for (rt_u32 k = 0; k < told / 2 && !l.cancelled; k++)
            LOAD(l, whole, tiles[k].group);
    }
    load_settle(l, in_flight);
}

/* ---- the plan ---- */

template <typename type> MPK_FN type *expert_tile_at(const mpk_task &t, int place)
{
    return (type *)(t.s_scratch + place);
}

/* The pairs of the task that are this warp's to look at. */
struct expert_tile_range {
    const rt_u32 *ids; /* of the task's first pair */
    rt_u32 first, last;
};

/* A warp has pairs that are neighbours, a multiple of 32 of them, so that ballots over 32 pairs
 * never cross to another warp's.
 */
MPK_FN expert_tile_range expert_tile_range_of(const mpk_task &t, const expert_tile_shape &s)
{
    const rt_u32 pairs = (t.hi0 - mpk_lo(t, 0)) * (rt_u32)s.of_token,
                 each = (pairs + MPK_THREADS - 1) / MPK_THREADS * 32,
                 first = (rt_u32)mpk_thread() / 32 * each;
    return {mpk_at<const rt_u32>(t, s.ids) + (rt_u64)mpk_lo(t, 0) * s.of_token, first,
            mpk_smaller(first + each, pairs)};
}

/* Ids of this lane's next pairs, from p + lane on, 32 apart; past the last one 0, which callers
 * leave out.  All loads are issued before one is used. */
MPK_FN void expert_tile_ids(const expert_tile_range &r, rt_u32 p, rt_u32 *id)
{
#pragma unroll
    for (int i = 0; i < EXPERT_TILE_AHEAD; i++) {
        const rt_u32 pair = p + 32 * i + (rt_u32)mpk_thread() % 32;
        id[i] = pair < r.last ? r.ids[pair] : 0;
    }
}

/* A pair without an expert is zeros: of its row each task writes the columns of its box. */
MPK_FN void expert_tile_put_zeros(const mpk_task &t, const expert_tile_shape &s, rt_u32 pair)
{
    rt_u16 *y =
        mpk_at<rt_u16>(t, s.y) + ((rt_u64)mpk_lo(t, 0) * s.of_token + pair) * (rt_u64)s.rows;
    for (rt_u32 c = mpk_lo(t, 2); c < mpk_hi(t, 2); c++)
        y[c] = 0;
}

/* Rows of zeros for pairs without an expert, among those that this thread looks at; rare. */
MPK_FN void expert_tile_put_missing(const mpk_task &t, const expert_tile_shape &s)
{
    const expert_tile_range r = expert_tile_range_of(t, s); /* of this warp */
#pragma unroll 1
    for (rt_u32 p = r.first + (rt_u32)mpk_thread() % 32; p < r.last; p += 32)
        /* the ids have been acquired with the task's event, so plain loads do */
        if (r.ids[p] >= (rt_u32)s.experts)
            expert_tile_put_zeros(t, s, p);
}

/* All threads: count the pairs of each expert in each warp's range, by additions in shared
 * memory. Returns whether some pair that this thread looks at has no expert.  The counts are
 * sums, so their order does not matter. */
MPK_FN bool expert_tile_count(const mpk_task &t, const expert_tile_shape &s)
{
    const expert_tile_range r = expert_tile_range_of(t, s);
    const rt_u32 lane = (rt_u32)mpk_thread() % 32, warp = (rt_u32)mpk_thread() / 32;
    rt_u32 *s_count = expert_tile_at<rt_u32>(t, EXPERT_TILE_COUNTS);
    bool missing = false; /* no pair without an expert so far */
    for (int w = 0; w < MPK_WARPS; w++)
        s_count[w * EXPERT_TILE_MOST + mpk_thread()] = 0;
    mpk_sync();
#pragma unroll 1
    for (rt_u32 p = r.first; p < r.last; p += 32 * EXPERT_TILE_AHEAD) {
        rt_u32 id[EXPERT_TILE_AHEAD]; /* in flight together */
        expert_tile_ids(r, p, id);
#pragma unroll
        for (int i = 0; i < EXPERT_TILE_AHEAD; i++) {
            const rt_u32 pair = p + 32 * i + lane;
            if (pair < r.last && id[i] < (rt_u32)s.experts)
                /* a row of counts for each warp: few lanes meet at one address */
                atomicAdd(&s_count[warp * EXPERT_TILE_MOST + id[i]], 1u);
            else
                missing |= pair < r.last;
        }
    }
    mpk_sync();
    return missing;
}

/* The tiles that a task has: those whose number modulo `of`, the workers, is one of first to last -
 * 1.  Empty if no worker's column is in its box. */
struct expert_tile_deal {
    rt_u32 first, last, of;
};

/* Worker columns are (i rows) / of, i from 0 to of - 1; first and last: the smallest i whose
 * column is not before the box's begin, and its end.  Boxes of tasks part y's columns, so these
 * parts are disjoint and complete. */
MPK_FN expert_tile_deal expert_tile_deal_of(const mpk_task &t, const expert_tile_shape &s)
{
    const rt_u32 of = mpk_w.k->machine.n_workers, rows = (rt_u32)s.rows;
    return {(mpk_lo(t, 2) * of + rows - 1) / rows, (mpk_hi(t, 2) * of + rows - 1) / rows, of};
}

/* The task's first tile that is not before tile i.  The deal is not empty. */
MPK_FN rt_u32 expert_tile_next(const expert_tile_deal &d, rt_u32 i)
{
    const rt_u32 at = i % d.of; /* the tile's place in its round */
    if (at < d.first)
        return i + d.first - at;
    return at < d.last ? i : i + d.of - at + d.first;
}

/* An expert's tiles: numbers first to last - 1 of all experts' tiles. */
struct expert_tile_work {
    rt_u32 pairs, of_chunk, passes;
    rt_u32 first, last;
};

/* Cut an expert's pairs into chunks of as many pairs each, a multiple of eight and at most 128;
 * first is filled in later, by a prefix sum. */
template <int GROUPS>
MPK_FN expert_tile_work expert_tile_cut(const expert_tile_shape &s, rt_u32 pairs)
{
    const rt_u32 passes = ((rt_u32)s.groups + GROUPS - 1) / GROUPS,
                 chunks = (pairs + EXPERT_TILE_PAIRS - 1) / EXPERT_TILE_PAIRS,
                 of_chunk = chunks ? ((pairs + chunks - 1) / chunks + 7) / 8 * 8 : 8;
    return {pairs, of_chunk, passes, 0, (pairs + of_chunk - 1) / of_chunk * passes};
}

/* Tile i of all, which is one of the thread's expert. */
template <int GROUPS>
MPK_FN expert_tile_tile expert_tile_at_number(const expert_tile_shape &s, const expert_tile_work &w,
                                              rt_u32 i)
{
    const rt_u32 chunk = (i - w.first) / w.passes, pass = (i - w.first) % w.passes,
                 first = chunk * w.of_chunk;
    return {(rt_u32)(mpk_thread() * s.groups) + pass * GROUPS, pass, first,
            mpk_smaller(w.pairs - first, w.of_chunk)};
}

/* How many pairs the thread's expert has.  s_count[warp][expert] becomes the pairs in the warps
 * before: where that warp's pairs begin in the expert's order. */
MPK_FN rt_u32 expert_tile_pairs(const mpk_task &t)
{
    rt_u32 *s_count = expert_tile_at<rt_u32>(t, EXPERT_TILE_COUNTS) + mpk_thread(), pairs = 0;
    for (int w = 0; w < MPK_WARPS; w++) {
        const rt_u32 n = s_count[w * EXPERT_TILE_MOST];
        s_count[w * EXPERT_TILE_MOST] = pairs;
        pairs += n;
    }
    return pairs;
}

/* All threads: the task's tiles, from number `from` of the task's on, to scratch; each thread
 * looks after one expert.  Returns how many tiles the task has.  Two prefix sums over experts:
 * of all tiles, which numbers them, and of the task's own, which places them in the plan. */
template <int GROUPS>
MPK_FN rt_u32 expert_tile_find(const mpk_task &t, const expert_tile_shape &s, rt_u32 from)
{
    rt_u32 *s_sums = expert_tile_at<rt_u32>(t, EXPERT_TILE_SUMS), all, n = 0; /* n: of this task */
    const expert_tile_deal d = expert_tile_deal_of(t, s); /* which tiles are this task's */
    expert_tile_work w = expert_tile_cut<GROUPS>(s, expert_tile_pairs(t));
    w.first = mpk_prefix_threads(w.last, s_sums, &all);
    w.last += w.first;
    const rt_u32 begin = d.first < d.last ? expert_tile_next(d, w.first) : w.last;
    /* how many of the expert's tiles are this task's */
#pragma unroll 1
    for (rt_u32 i = begin; i < w.last; i = expert_tile_next(d, i + 1))
        n++;
    const rt_u32 at = mpk_prefix_threads(n, s_sums + MPK_WARPS, &all);
    expert_tile_place place = {0, 0}; /* the expert's tiles of this plan */
    n = at;
#pragma unroll 1
    for (rt_u32 i = begin; i < w.last; i = expert_tile_next(d, i + 1), n++)
        /* as unsigned numbers: those before `from` do not pass either */
        if (n - from < EXPERT_TILE_PLANNED) {
            expert_tile_at<expert_tile_tile>(t, EXPERT_TILE_PLAN)[n - from] =
                expert_tile_at_number<GROUPS>(s, w, i);
            place.first = place.n++ ? place.first : n - from;
        }
    expert_tile_at<expert_tile_place>(t, EXPERT_TILE_PLACES)[mpk_thread()] = place;
    mpk_sync();
    return all;
}

/* Pair `pair`, number `rank` of its expert's, into the lists of the planned tiles that have it:
 * all passes of its chunk. */
MPK_FN void expert_tile_list(const mpk_task &t, const expert_tile_place &place, rt_u32 rank,
                             rt_u32 pair)
{
    const expert_tile_tile *s_tiles = expert_tile_at<const expert_tile_tile>(t, EXPERT_TILE_PLAN);
#pragma unroll 1
    for (rt_u32 k = place.first; k < place.first + place.n; k++) {
        const rt_u32 at = rank - s_tiles[k].first; /* the pair's row of the tile, if it has it */
        if (at < s_tiles[k].pairs)
            expert_tile_at<rt_u32>(t, EXPERT_TILE_LIST)[k * EXPERT_TILE_PAIRS + at] = pair;
    }
}

/* All threads: fill the lists of the planned tiles.  A warp goes through its range in order;
 * lanes with the same expert are ranked by lane, and the lowest of them moves the count on for
 * the next 32 pairs.  The first __syncwarp stands between reads and that write, the second
 * between it and the next reads. */
MPK_FN void expert_tile_gather(const mpk_task &t, const expert_tile_shape &s)
{
    const expert_tile_range r = expert_tile_range_of(t, s);
    const rt_u32 lane = (rt_u32)mpk_thread() % 32, warp = (rt_u32)mpk_thread() / 32;
    rt_u32 *s_before = expert_tile_at<rt_u32>(t, EXPERT_TILE_COUNTS) + warp * EXPERT_TILE_MOST;
    const expert_tile_place *s_place =
        expert_tile_at<const expert_tile_place>(t, EXPERT_TILE_PLACES);
#pragma unroll 1
    for (rt_u32 p = r.first; p < r.last; p += 32 * EXPERT_TILE_AHEAD) {
        rt_u32 id[EXPERT_TILE_AHEAD];
        expert_tile_ids(r, p, id);
#pragma unroll
        for (int i = 0; i < EXPERT_TILE_AHEAD; i++) {
            const rt_u32 pair = p + 32 * i + lane;
            expert_tile_place place = {0, 0};
            if (pair < r.last && id[i] < (rt_u32)s.experts)
                place = s_place[id[i]];
            /* none of these 32 pairs belongs to a planned tile */
            if (!__any_sync(0xffffffffu, place.n))
                continue;
            const rt_u32 same = __match_any_sync(0xffffffffu, place.n ? id[i] : ~lane),
                         below = (rt_u32)__popc(same & ((1u << lane) - 1)),
                         before = place.n ? s_before[id[i]] : 0;
            __syncwarp();
            if (place.n && !below)
                s_before[id[i]] = before + (rt_u32)__popc(same);
            expert_tile_list(t, place, before + below, pair);
            __syncwarp();
        }
    }
    mpk_sync();
}

/* Thread 0: tell the loader, once it has taken the message before.  The barrier at the end of
 * expert_tile_find has put all tiles before this release. */
MPK_FN void expert_tile_tell(const mpk_task &t, rt_u32 tiles, bool more)
{
    if (mpk_thread() != 0)
        return;
    rt_u32 *mail = expert_tile_mail(t.ring->first == 0); /* AOT tasks' ring begins at page 0 */
    /* the loader has not taken the message before */
    while (ptx_load_flag(mail) && !ptx_load_flag(&mpk_w.abort))
        ;
    ptx_store_flag(mail, 1 + 2 * tiles + more); /* partner: expert_tile_listen */
}

/* All threads: plan up to EXPERT_TILE_PLANNED tiles, from number `from` of the task's on;
 * returns how many it has in all.  The loader is told as soon as the tiles are known: weights
 * arrive while pairs are gathered. */
template <int GROUPS>
MPK_FN rt_u32 expert_tile_plan(const mpk_task &t, const expert_tile_shape &s, rt_u32 from,
                               bool *missing)
{
    mpk_sync(); /* no warp reads the stages and the plan before any more */
    *missing = expert_tile_count(t, s);
    const rt_u32 tiles = expert_tile_find<GROUPS>(t, s, from),
                 n = mpk_smaller(tiles - from, EXPERT_TILE_PLANNED);
    expert_tile_tell(t, n, from + n < tiles);
    expert_tile_gather(t, s);
    return tiles;
}

/* ---- a task ---- */

/* Has the worker's task before this one, in the same step, waited for the ids of all these
 * tokens?  The first product of a layer has, for the last one.  Then the ids are visible: the
 * task before acquired them, and its `written` orders that before this. */
MPK_FN bool expert_tile_knows(const mpk_task &t, const expert_tile_shape &s)
{
    const mpk_routed &r = mpk_w.routed; /* of the last task that waited for ids */
    if (mpk_w.direct)
        return false;
    const rt_u32 ordinal = mpk_ordinal(mpk_thread());
    mpk_await_scratch(ordinal); /* partner: expert_tile_note */
    return r.ids == t.e->at[s.ids] && r.ordinal == ordinal - 1 && r.epoch == mpk_w.epoch &&
           r.lo <= mpk_lo(t, 0) && r.hi >= t.hi0;
}

/* Thread 0 notes for expert_tile_knows what this task has waited for, before its mpk_trigger. */
MPK_FN void expert_tile_note(const mpk_task &t, const expert_tile_shape &s)
{
    if (mpk_thread() == 0 && !mpk_w.direct)
        mpk_w.routed = {t.e->at[s.ids], mpk_ordinal(0), mpk_w.epoch, mpk_lo(t, 0), t.hi0};
}

/* All that a task does; it waits and triggers itself.  Where the ids are known, the first plan is
 * made, and the weights requested, before x is there.  WORK_OFF multiplies the n planned tiles of
 * `shape`. */
template <int GROUPS, typename shape,
          void (*WORK_OFF)(const mpk_task &t, const shape &s, rt_u32 n, mpk_ring *ring)>
MPK_FN void expert_tile_all(const mpk_task &t, const expert_tile_shape &s, const shape &whole)
{
    mpk_ring ring = *t.ring;
    const bool knows = expert_tile_knows(t, s); /* the ids are there */
    bool missing;                               /* are there pairs without an expert? */
    if (!knows)
        mpk_wait(t);
    for (rt_u32 from = 0, tiles = 1; from < tiles; from += EXPERT_TILE_PLANNED) {
        tiles = expert_tile_plan<GROUPS>(t, s, from, &missing);
        if (!from && knows)
            mpk_wait(t);
        if (!from && missing)
            expert_tile_put_missing(t, s);
        WORK_OFF(t, whole, mpk_smaller(tiles - from, EXPERT_TILE_PLANNED), &ring);
    }
    expert_tile_note(t, s);
    *t.ring = ring;
    mpk_trigger(t);
}

#endif

#endif
