/* expert_stream_load.cuh - the loader's part of expert_stream.cuh: which experts are hit, and their
 * pages in the order in which the body takes them.
 *
 * The loader finds by itself how many pairs each expert has, from the ids, and so how many chunks:
 * the body sorts pairs in the same order.  It does not wait for x.  Before the ids are there it has
 * the first experts brought to L2 (expert_fetch).
 */
#ifndef TASK_EXPERT_STREAM_LOAD_CUH
#define TASK_EXPERT_STREAM_LOAD_CUH

#include "shape/expert_stream_shape.h"
#include "rt/rt_blocks.h"
#include "shape/linear_tile_shape.h"
#include "tile/ring.cuh"

enum {
    EXPERT_NOBODY = 0xffff,     /* a pair without an expert */
    EXPERT_FETCHED = 192 * 1024 /* bytes that a worker has brought to L2 ahead of the ids */
};

/* Groups of chunks that end together, and pieces of x in flight: what registers and scratch have
 * room for. */
template <int WIDE> struct expert_sizes {
    enum {
        SLOTS = WIDE ? EXPERT_MANY_SLOTS : EXPERT_FEW_SLOTS,
        PARTS = WIDE ? EXPERT_MANY_PARTS : EXPERT_FEW_PARTS,
        DEPTH = WIDE ? 1 : 2,
        ROWS = WIDE ? EXPERT_MANY_ROWS : EXPERT_FEW_ROWS
    };
};

/* What 32 lanes show of the ids of 32 pairs, by ballots: bit b of shown.bit[b] of lane l is bit
 * b of its id; the last one says who has no expert.  From that each lane finds, without another
 * exchange, which pairs have any id e (expert_with).  All lanes call expert_show. */
enum { EXPERT_BITS = 8 };
static_assert(1 << EXPERT_BITS == MPK_THREADS && (int)EXPERT_MOST == MPK_THREADS,
              "a thread takes an expert");
struct expert_shown {
    rt_u32 bit[EXPERT_BITS + 1]; /* ballots, by bit of the id */
};
/* The ids of 32 pairs, one a lane, bit by bit: with these any lane counts or finds pairs of an
 * expert without reading memory. */
MPK_FN expert_shown expert_show(rt_u32 id)
{
    expert_shown shown; /* the same in all lanes */
#pragma unroll
    for (int b = 0; b <= EXPERT_BITS; b++)
        shown.bit[b] = __ballot_sync(0xffffffffu, id >> b & 1);
    return shown;
}
/* Bit l: lane l's pair goes to expert e. */
MPK_FN rt_u32 expert_with(const expert_shown &shown, rt_u32 e)
{
    rt_u32 lanes = ~shown.bit[EXPERT_BITS]; /* those that have an expert */
#pragma unroll
    for (int b = 0; b < EXPERT_BITS; b++)
        lanes &= e >> b & 1 ? shown.bit[b] : ~shown.bit[b];
    return lanes;
}

/* Pairs of each expert; lane l: of experts l, l + 32 ..., 16 bits each. */
struct expert_counts {
    rt_u64 low, high; /* experts lane + 0, 32, 64, 96; lane + 128 ... */
};

/* Pairs of expert lane + 32 slot. */
MPK_FN rt_u32 expert_count(const expert_counts &counts, int slot)
{
    return (rt_u32)((slot < 4 ? counts.low : counts.high) >> slot % 4 * 16) & 0xffff;
}

/* All lanes of the loader: in a step, until ids may be read; 0: there is nothing to load for any
 * more. Carried ids say so themselves, and of a quiet task they were there before. */
MPK_FN int expert_load_waits(mpk_load &l, const expert_shape &s)
{
    if (mpk_w.mode != RT_SERVE || l.e->quiet || l.e->carried >> s.ids & 1)
        return 1;
    const rt_word *counter = mpk_w.counters + l.e->depends; /* of the ids */
    const rt_u32 wanted = l.e->needed * mpk_w.epoch;        /* as mpk_poll */
    bool came = (rt_i32)(mpk_load_counter(counter) - wanted) >= 0;
    while (!came && !load_is_over(&l))
        came = (rt_i32)(mpk_load_counter(counter) - wanted) >= 0;
    if (!__all_sync(0xffffffffu, came))
        l.cancelled = 1;
    return !l.cancelled;
}

/* The ids of 32 pairs, a lane each; EXPERT_NOBODY after the first n, and for numbers of no
 * expert. */
MPK_FN rt_u32 expert_load_ids(mpk_load &l, const expert_shape &s, const rt_u32 *from, int n)
{
    const int lane = mpk_thread() % 32;                                /* a pair a lane */
    const bool carried = l.e->carried >> s.ids & 1;                    /* then RT_EMPTY is polled */
    rt_u32 id = lane < n ? ptx_load_word(from + lane) : EXPERT_NOBODY; /* perhaps not there */
    while (carried && lane < n && id == RT_EMPTY && !load_is_over(&l))
        id = ptx_load_word(from + lane);
    return id < (rt_u32)s.experts ? id : EXPERT_NOBODY;
}

/* Pairs of each expert among `tokens` tokens from `first` on. */
MPK_FN void expert_load_counts(mpk_load &l, const expert_shape &s, rt_u32 first, rt_u32 tokens,
                               expert_counts *counts)
{
    const int lane = mpk_thread() % 32, pairs = (int)tokens * s.of_token; /* of the range */
    const rt_u32 *from = (const rt_u32 *)l.e->at[s.ids] + first * s.of_token;
    counts->low = counts->high = 0; /* 4 counts of 16 bits each */
#pragma unroll 1
    for (int p = 0; p < pairs; p += 32) {
        /* Each lane counts eight experts, 32 apart, from what all lanes have shown. */
        const expert_shown shown = expert_show(expert_load_ids(l, s, from + p, pairs - p));
#pragma unroll
        for (int slot = 0; slot < 8; slot++) {
            const rt_u64 n = __popc(expert_with(shown, (rt_u32)(slot * 32 + lane)));
            counts->low += slot < 4 ? n << slot % 4 * 16 : 0;
            counts->high += slot < 4 ? 0 : n << slot % 4 * 16;
        }
    }
}

/* Has a strip two groups (expert_shape.sides)?  Where no product of the kernel has such, their code
 * is left out. */
MPK_FN bool expert_has_sides(const expert_shape &s)
{
    return MPK_FORMS >> TILE_FORM_SIDES & 1 && s.sides == 2;
}

/* What a task has: n slots from `first` on.  Slot i is strip i of the chunks 0, rounds ..., slot
 * of_expert + i is strip i of the chunks 1, rounds + 1 ...; without rounds a slot is a strip. */
struct expert_groups {
    rt_u32 first, n, of_expert, bytes, last_bytes; /* last_bytes: of a group's last page */
};

/* Of weights in blocks (FORM; rt/rt_blocks.h).  They are multiplied by 16 rows, so with a gate a
 * strip is two groups, which then are 8 columns of y, as one group is without. */
template <int FORM> MPK_FN int expert_strip_groups(const expert_shape &s)
{
    return FORM && s.of.glu != GLU_NONE ? 2 : 1;
}
/* Pieces of 128 columns in the last slab of a row; those before it have RT_PIECES. */
MPK_FN int expert_last_pieces(int columns, int pages)
{
    return (columns + RT_PIECE_COLUMNS - 1) / RT_PIECE_COLUMNS - (pages - 1) * RT_PIECES;
}

/* A strip is one or two groups of 8 rows of packed weights: 8 columns of y each, or with a gate 4,
 * which have rows of both.  Its pages are 16 KB but the last, which has s.last blocks of 4 KB; with
 * weights in blocks (FORM) each group has slabs of its own in them, whole ones but the last.
 * Gated, a slot belongs to the task that has its first column of y, if columns are dealt evenly to
 * slots: boxes may end anywhere.  Sums have a residual, of which a task may read its box alone. */
template <int FORM> MPK_FN expert_groups expert_groups_of(const rt_entry *e, const expert_shape &s)
{
    const bool gated = s.of.glu != GLU_NONE;
    const rt_u32 axis = e->rank - 1, of_group = gated && !FORM ? 2 : 3,  /* columns, as a shift */
        shift = expert_has_sides(s) ? of_group + 1 : of_group,           /* columns of a strip */
        width = gated ? (FORM ? 8 : 4) / (rt_u32)s.rounds : 1u << shift; /* columns of a slot */
    expert_groups g;                                                     /* of the box */
    g.first = (e->lo[axis] + (gated ? width - 1 : 0)) / width;
    g.n = (e->hi[axis] + width - 1) / width - g.first;
    g.of_expert = (rt_u32)s.of.rows >> shift; /* strips of an expert */
    if (FORM) {
        const rt_u32 last = (rt_u32)expert_last_pieces(s.of.columns, s.of.pages);
        g.last_bytes = last * RT_PIECE_BYTES(FORM);
        g.bytes = (rt_u32)expert_strip_groups<FORM>(s) *
                  ((s.of.pages - 1) * RT_SLAB_BYTES(FORM) + g.last_bytes);
        return g;
    }
    g.last_bytes = s.of.last * 4096;
    g.bytes = (s.of.pages - 1) * 16384 + g.last_bytes;
    return g;
}

/* The groups of a task in the chunks of one round: *n from the one returned on. */
MPK_FN rt_u32 expert_in_round(const expert_groups &g, rt_u32 round, rt_u32 *n)
{
    const rt_u32 begin = round * g.of_expert; /* the round's first slot */
    const rt_u32 first = mpk_larger(g.first, begin),
                 end = mpk_smaller(g.first + g.n, begin + g.of_expert);
    *n = end > first ? end - first : 0;
    return first - begin;
}

/* The leading thread: the pages of one chunk: page by page, in a page group by group. */
MPK_FN void expert_load_pages(mpk_load &l, const expert_groups &g, const char *from, int pages,
                              rt_u32 n)
{
#pragma unroll 1
    for (int p = 0; p < pages; p++, from += 16384) {
        const rt_u32 bytes = p + 1 == pages ? g.last_bytes : 16384;
        const char *at = from; /* of the next group */
#pragma unroll 1
        for (rt_u32 i = 0; i < n; i++, at += g.bytes)
            if (!load_from(&l, at, bytes))
                return;
    }
}

/* The same of weights in blocks, n groups: slab by slab, in a slab two groups after each other,
 * which are multiplied together.  Of nibbles both lie in one page, of bytes in one each. */
template <int FORM>
MPK_FN void expert_load_slabs(mpk_load &l, const expert_groups &g, const char *from, int pages,
                              rt_u32 n)
{
    constexpr rt_u32 TOGETHER = RT_GROUPS_OF_PAGE(FORM);
    const rt_u32 group_bytes = (pages - 1) * RT_SLAB_BYTES(FORM) + g.last_bytes;
#pragma unroll 1
    for (int p = 0; p < pages; p++)
#pragma unroll 1
        for (rt_u32 i = 0; i < n; i += TOGETHER) {
            const char *at = from + (rt_u64)i * group_bytes + p * RT_SLAB_BYTES(FORM);
            const rt_u32 page = load_alone(&l), here = mpk_smaller(n - i, TOGETHER),
                         bytes = p + 1 == pages ? g.last_bytes : RT_SLAB_BYTES(FORM);
            if (page == LOAD_OVER)
                return;
            load_expect(page, here * bytes);
            load_copy(&l, page, 0, at, bytes);
            if (TOGETHER > 1 && here > 1)
                load_copy(&l, page, RT_SLAB_BYTES(FORM), at + group_bytes, bytes);
            load_end(page);
        }
}

/* The leading thread: the pages of one chunk. */
template <int FORM>
MPK_FN void expert_load_chunk(mpk_load &l, const expert_shape &s, const expert_groups &g,
                              const char *from, rt_u32 n)
{
    if constexpr (FORM != RT_BLOCKS_NONE)
        expert_load_slabs<FORM>(l, g, from, s.of.pages, n * expert_strip_groups<FORM>(s));
    else
        expert_load_pages(l, g, from, s.of.pages, n);
}

/* All lanes: which experts are hit is not known yet, but where pairs are many nearly all are:
 * the columns of the box of the first ones come to L2 while attention and the router leave
 * memory idle. A layer's last product knows the ids before it is due.  end: of the tokens alive. */
MPK_FN void expert_fetch(const mpk_load &l, const expert_shape &s, const expert_groups &g,
                         rt_u32 end)
{
#if MPK_BULK
    const rt_u32 e = (rt_u32)mpk_thread() % 32; /* an expert a lane, as if it had one chunk */
    rt_u32 n;                                   /* groups of it */
    const rt_u32 group = expert_in_round(g, e % s.rounds, &n), bytes = n * g.bytes;
    if (s.scale < 0 && end * s.of_token >= 2 * s.experts && e < (rt_u32)s.experts && n &&
        (e / s.rounds + 1) * bytes <= EXPERT_FETCHED)
        ptx_fetch_bulk(
            (const char *)l.e->at[RT_PACKED] + ((rt_u64)e * g.of_expert + group) * g.bytes, bytes);
    __syncwarp();
#else
    (void)l, (void)s, (void)g, (void)end;
#endif
}

/* Where the loading of a block stands: n strips of each expert's, in every rounds-th chunk; `wait`
 * chunks come before the next of these. */
struct expert_load_at {
    const char *from; /* the strips of the first of 32 experts */
    rt_u32 n, wait;
};

/* The leading thread: the chunks of one of the 32 experts. */
template <int FORM>
MPK_FN void expert_load_expert(mpk_load &l, const expert_shape &s, const expert_groups &g,
                               expert_load_at *at, rt_u32 expert, rt_u32 chunks)
{
    const char *from = at->from + (rt_u64)(expert * g.of_expert) * g.bytes;
    for (; chunks && !l.cancelled; chunks--) {
        if (at->wait == 0)
            expert_load_chunk<FORM>(l, s, g, from, at->n);
        at->wait = (at->wait - 1) & ((rt_u32)s.rounds - 1); /* a power of two */
    }
}

/* All lanes: the chunks of 32 experts in rising order; each lane knows how many its own expert has.
 * Where tokens are few, nearly all have one or none.  So one thread goes through all experts up to
 * and including the first that has several, and is told that number: an exchange between lanes
 * takes longer than all that a page needs. */
template <int FORM>
MPK_FN void expert_load_some(mpk_load &l, const expert_shape &s, const expert_groups &g,
                             expert_load_at *at, rt_u32 chunks)
{
    const rt_u32 several = __ballot_sync(0xffffffffu, chunks > 1), step = (rt_u32)s.rounds - 1;
#pragma unroll 1
    for (rt_u32 left = __ballot_sync(0xffffffffu, chunks); left && !l.cancelled;) {
        const rt_u32 first = several & left & -(several & left), /* 0: none is left */
            mine = left & (first | (first - 1));                 /* up to it, or all */
        const rt_u32 of_last = __shfl_sync(0xffffffffu, chunks, 31 - __clz((int)mine));
        if (load_leads()) {
            expert_load_at now = *at;
            for (rt_u32 bits = mine; bits && !l.cancelled; bits &= bits - 1)
                expert_load_expert<FORM>(l, s, g, &now, (rt_u32)__ffs((int)bits) - 1,
                                         bits & (bits - 1) ? 1 : of_last);
            load_tell(&l);
        }
        load_follow(&l);
        at->wait = (at->wait - ((rt_u32)__popc(mine) - 1 + of_last)) & step;
        left &= ~mine;
    }
}

/* Of the chunks of a round the pages of n strips from `group` on.  Experts in rising order: those
 * of 32 lanes, then the next 32. */
template <int WIDE, int FORM>
MPK_FN void expert_load_block(mpk_load &l, const expert_shape &s, const expert_groups &g,
                              const expert_counts &counts, rt_u32 round, rt_u32 group, rt_u32 n)
{
    const rt_u32 rows = expert_sizes<WIDE>::ROWS;
    expert_load_at at = {(const char *)l.e->at[RT_PACKED] + (rt_u64)group * g.bytes, n, round};
#pragma unroll 1
    for (int slot = 0; slot * 32 < s.experts && !l.cancelled; slot++) {
        expert_load_some<FORM>(l, s, g, &at, (expert_count(counts, slot) + rows - 1) / rows);
        at.from += (rt_u64)(32 * g.of_expert) * g.bytes;
    }
}

/* The loader's part: for each range of tokens, round, block of columns, expert and chunk its pages,
 * in the order in which the body takes them. */
template <int WIDE, int FORM = RT_BLOCKS_NONE>
MPK_FN void expert_stream_load(mpk_load &l, const expert_shape &s)
{
    if (!load_needs_step(&l))
        return;
    const expert_groups g = expert_groups_of<FORM>(l.e, s);
    const rt_u32 end = mpk_smaller(l.e->hi[0], mpk_w.live[l.e->live]),
                 in_flight = l.in_flight; /* the tuned number, set again at the end */
    expert_fetch(l, s, g, end);
    if (!expert_load_waits(l, s))
        return;
    /* Pages of a last product are short, and its ids were there before: memory, which many requests
     * keep busy, has nothing else to bring. */
    if (s.scale >= 0 && FORM == RT_BLOCKS_NONE)
        l.in_flight = l.ring.n;
#pragma unroll 1
    for (rt_u32 first = l.e->lo[0]; first < end; first += s.range) {
        expert_counts counts; /* of this range of tokens */
        expert_load_counts(l, s, first, mpk_smaller(end - first, s.range), &counts);
#pragma unroll 1
        for (rt_u32 round = 0; round < (rt_u32)s.rounds; round++) {
            rt_u32 n; /* strips in the round */
            const rt_u32 group = expert_in_round(g, round, &n);
#pragma unroll 1
            for (rt_u32 q = 0; q < n; q += s.block)
                expert_load_block<WIDE, FORM>(l, s, g, counts, round, group + q,
                                              mpk_smaller(n - q, s.block));
        }
    }
    l.in_flight = in_flight;
}
/* Biases and limits are the body's. */
template <int WIDE, int FORM = RT_BLOCKS_NONE>
MPK_FN void expert_stream_load(mpk_load &l, const expert_ends_shape &e)
{
    expert_stream_load<WIDE, FORM>(l, e.s);
}
template <int WIDE> MPK_FN void expert_stream_load(mpk_load &l, const expert_rows_shape &e)
{
    expert_stream_load<WIDE>(l, e.s);
}

#endif
