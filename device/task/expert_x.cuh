/* expert_x.cuh - x of the chunks of pairs that expert_stream.cuh multiplies: progress through them,
 * and pieces of x in registers, requested ahead.
 *
 * In: the chunks of expert_pairs.cuh, and x, which may be carried.  Out: pieces, a page's columns
 * of a chunk's rows, as they are loaded (stream_x.cuh).  A lane looks up where the rows of the next
 * piece lie when it requests this one, so that no load waits for shared memory.
 */
#ifndef TASK_EXPERT_X_CUH
#define TASK_EXPERT_X_CUH

#include "task/expert_pairs.cuh"

/* Progress through a range of tokens.  In registers; the same in all threads except for `from`. */
template <int WIDE> struct expert_work {
    rt_u32 first;           /* token */
    int tokens, chunks;     /* of the range; of the round */
    int group, n;           /* the block's first strip, and how many; of blocks groups */
    stream_from<WIDE> from; /* rows of the piece that is requested next */
    int chunk, page;        /* the piece of x that is requested next; from.at: where its rows lie */
    int round;              /* has chunks round, round + s.rounds, ... */
};

/* A piece of x, a page's columns of a chunk's rows, whose loads have been issued; `at` tells where,
 * in case they have to be repeated.  Two of them, even and odd, are under way, taken in turn. */
template <int WIDE> struct expert_ahead {
    stream_x<1, WIDE> x; /* as loaded; words may still be empty */
    rt_u32 at[1 + WIDE]; /* rows, STREAM_NONE: none */
};

/* Chunk i of the present round, as expert_sort has left it.  Chunks are dealt to rounds in turn, so
 * that each has about as many. */
template <int WIDE>
MPK_FN rt_u32 expert_chunk_in(const mpk_task &t, const expert_shape &s, const expert_work<WIDE> &w,
                              int i)
{
    return expert_chunk(t, s, i * s.rounds + w.round);
}

/* Groups of the block, of 8 columns of y (gated: 4) each; the first of them in the operator.  w
 * counts strips, of one group or two. */
template <int WIDE> MPK_FN int expert_groups_in(const expert_shape &s, const expert_work<WIDE> &w)
{
    return expert_has_sides(s) ? 2 * w.n : w.n;
}
template <int WIDE> MPK_FN int expert_first_group(const expert_shape &s, const expert_work<WIDE> &w)
{
    return expert_has_sides(s) ? 2 * w.group : w.group;
}
/* The thread among those that have all columns of a group: all, or those of one side.  Warps 0 to 3
 * are the side of a strip's first group. */
MPK_FN int expert_thread(const expert_shape &s)
{
    return expert_has_sides(s) ? mpk_thread() % (MPK_THREADS / 2) : mpk_thread();
}

/* Where the row of token `first` begins in x, in bytes. */
template <int KIND> MPK_FN rt_u64 expert_bytes_before(const expert_shape &s, rt_u32 first)
{
    if (KIND == EXPERT_KIND_ROWS)
        return (rt_u64)first * ((const expert_rows_shape &)s).token * 2;
    return (rt_u64)first * (s.split ? s.of_token : 1) * s.of.columns * 2;
}

/* Where this lane's row of x of a chunk lies by the list, as in from.at.  rows: the list from the
 * lane's row of the first chunk on; mine: bytes of the lane's first columns.  Four lanes have a
 * row, 8 of each 32 columns. */
MPK_FN rt_u32 expert_listed(rt_u32 row, rt_u32 mine)
{
    return row == STREAM_NONE ? STREAM_NONE : row + mine;
}
MPK_FN const rt_u32 *expert_lane_rows(const mpk_task &t, const expert_shape &s)
{
    return expert_rows(t, s) + mpk_thread() % 32 / 4;
}
MPK_FN rt_u32 expert_lane_bytes(int side)
{
    return (rt_u32)(side / 32 * 128 + side % 4 * 8) * 2;
}

/* Set w->from.at to where this lane's rows of chunk w->chunk begin; STREAM_NONE: no such row, of
 * which loads bring zeros.  Past the last chunk there is none. */
template <int WIDE, int KIND>
MPK_FN void expert_find(const mpk_task &t, const expert_shape &s, expert_work<WIDE> *w)
{
    const int thread = expert_thread(s), warp = thread / 32, g = thread % 32 / 4, c = thread % 4;
    const rt_u32 chunk = w->chunk < w->chunks ? expert_chunk_in(t, s, *w, w->chunk) : 0,
                 first = chunk & 0xffff;
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        const rt_u32 row = g + 8 * m, pair = row < chunk >> 16 ? expert_pair(t, s, first + row) : 0;
        const rt_u32 at = expert_row_at<KIND>(s, pair) + warp * 128 + c * 8;
        w->from.at[m] = row < chunk >> 16 ? at * 2 : STREAM_NONE;
    }
}

/* Issue the loads of the next piece of x, if there is one.  All of a->x is defined in any case
 * (stream_clear_x). Then look up the rows of the piece after it, so that its loads need not wait
 * for shared memory. */
template <int WIDE, int KIND>
MPK_FN void expert_ask(const mpk_task &t, const expert_shape &s, expert_work<WIDE> *w,
                       expert_ahead<WIDE> *a)
{
#pragma unroll
    for (int m = 0; m <= WIDE; m++)
        a->at[m] = w->from.at[m];
    stream_clear_x<1, WIDE>(a->x);
    stream_ask_page<WIDE, false, false>(w->from, w->page, w->page + 1 == s.of.pages, a->x.at[0]);
    if (++w->page == s.of.pages) {
        w->page = 0;
        w->chunk++;
        expert_find<WIDE, KIND>(t, s, w);
    }
}

/* Wait for a piece of x whose loads have been issued; only carried words can be missing.  By all
 * lanes of the warp, which load again together. */
template <int WIDE>
MPK_FN void expert_await(const mpk_task &t, const expert_shape &s, const expert_work<WIDE> &w,
                         int page, expert_ahead<WIDE> *a)
{
    if (!mpk_carries(t, s.of.x)) /* it was there before the event */
        return;
    stream_from<WIDE> from = w.from; /* with the rows of the piece that is awaited */
#pragma unroll
    for (int m = 0; m <= WIDE; m++)
        from.at[m] = a->at[m];
    stream_await_x<1, WIDE>(from, page, 1, s.of.pages, false, a->x);
}

#endif
