/* sort.cuh - lines of a tensor in order: sort and topk.
 *
 * Lines of at most SORT_TILE entries are sorted in scratch, as many at once as fit.  Longer ones
 * are sorted where the results lie: tile by tile in scratch, then by rounds over the whole line,
 * whose last rounds are those of a tile again. Of a long line of which only k entries are wanted
 * the k-th is found first, by counting the digits of its rank and then of its number, and only what
 * stands before it is sorted.
 *
 *   a line of          entries wanted   way
 *   up to SORT_TILE    any              in scratch, several lines at once (sort_short)
 *   more               all              copied to the results, sorted there (sort_long)
 *   more               k                those before a bound copied (sort_select), then sort_long
 *
 * Cost: log^2 n / 2 rounds a line, of which those with a step of less than SORT_TILE are in
 * scratch; to select k of n, at most a pass over the line for each byte of a rank and of a number,
 * mostly three or four. All three ways order by (rank, number), so the result is that of a stable
 * sort, whichever is taken.
 */
#ifndef TASK_SORT_CUH
#define TASK_SORT_CUH

#include "task/index.cuh"
#include "task/order.cuh"

enum { SORT_TILE = 1024, SORT_DIGITS = 256 };
/* Scratch: the list of a tile, or while a bound is sought the counts of its digits (never both); a
 * counter. */
enum { SORT_LIST, SORT_COUNTS = SORT_LIST, SORT_WORD = SORT_LIST + SORT_TILE * ORDER_ENTRY_BYTES };

/* A line of x that is sorted, and where its first k entries in order go.  from, to, to_index:
 * offsets of the line's first entry in x, values and indices, in elements; the steps lead to the
 * next entry.  Entries are known by their number in x from the beginning on: values are always
 * copied from there. */
struct sort_line {
    const mpk_view &x, &values;
    const char *g_x;
    char *g_values;
    rt_i64 *g_indices;
    rt_i64 n, from, from_step, to, to_step, to_index, index_step;
    bool falling; /* else rising */
};

/* The rank of entry i of the line, which rises in the order that is requested. */
MPK_FN rt_u64 sort_rank(const sort_line &l, rt_i64 i)
{
    return order_rank(l.x, l.g_x, l.from + i * l.from_step, l.falling);
}
/* Entry i of the results is entry `number` of the line. */
MPK_FN void sort_store(const sort_line &l, rt_i64 i, rt_i64 number)
{
    copies_move(l.values.dtype, l.g_values, l.to + i * l.to_step, l.g_x,
                l.from + number * l.from_step);
    l.g_indices[l.to_index + i * l.index_step] = number;
}

/* How the network (order.cuh) settles entries a and b of the results in memory, values and numbers
 * together: a swap takes the value again from x, by number, so that values need no conversion. Each
 * pair is one thread's in a round, and a barrier follows the round. */
MPK_FN void order_settle(const sort_line &l, rt_i64 a, rt_i64 b)
{
    rt_i64 number_a = l.g_indices[l.to_index + a * l.index_step],
           number_b = l.g_indices[l.to_index + b * l.index_step];
    rt_u64 rank_a = order_rank(l.values, l.g_values, l.to + a * l.to_step, l.falling);
    rt_u64 rank_b = order_rank(l.values, l.g_values, l.to + b * l.to_step, l.falling);
    if (rank_b < rank_a || (rank_b == rank_a && number_b < number_a)) {
        sort_store(l, a, number_b);
        sort_store(l, b, number_a);
    }
}

/* All threads: sort the tiles of the first k entries of the results in scratch; steps of more
 * than `step` are settled already (0: none are). */
MPK_FN void sort_tiles(const mpk_task &t, const sort_line &l, rt_i64 k, rt_i64 step)
{
    order_list list = order_list_at(t, SORT_LIST, SORT_TILE); /* of a tile, in scratch */
    for (rt_i64 first = 0; first < k; first += SORT_TILE) {
        rt_i64 n = k - first < SORT_TILE ? k - first : SORT_TILE; /* of this tile */
        for (rt_i64 i = mpk_thread(); i < n; i += MPK_THREADS)
            order_put(list, i,
                      order_rank(l.values, l.g_values, l.to + (first + i) * l.to_step, l.falling),
                      (rt_u32)l.g_indices[l.to_index + (first + i) * l.index_step]);
        mpk_sync();
        if (step)
            order_finish(t, list, n, step);
        else
            order_sort(t, list, n, SORT_TILE);
        for (rt_i64 i = mpk_thread(); i < n; i += MPK_THREADS)
            sort_store(l, first + i, (rt_i64)list.s_number[i]);
        mpk_sync();
    }
}

/* Sort the first k entries of the results. A merge of bitonic kind: tiles are sorted, then blocks
 * of twice the width until one holds all k. Steps below SORT_TILE of each merge are done tile by
 * tile in scratch, since a round in memory costs a pass over the line. */
MPK_FN void sort_long(const mpk_task &t, const sort_line &l, rt_i64 k)
{
    sort_tiles(t, l, k, 0);
    for (rt_i64 width = 2 * SORT_TILE; width < 2 * k; width *= 2) {
        order_round(t, l, k, width / 2, true);
        for (rt_i64 step = width / 4; step >= SORT_TILE; step /= 2)
            order_round(t, l, k, step, false);
        sort_tiles(t, l, k, SORT_TILE / 2);
    }
}

/* ---- selection ---- */

/* What is known of the last entry that is wanted: its bits above those that are still to be
 * found. */
struct sort_bound {
    rt_u64 rank; /* bits below those found are 0 */
    rt_u32 number;
};

/* All threads: one digit of eight bits of the bound, of its rank or, once that is known, of its
 * number: count the entries that agree with the bound above this digit.
 *
 * *left says which of these the bound is, in order; afterwards, which of those that agree here
 * too. It is a copy in each thread, and all compute the same.  Returns whether the bound is the
 * last of those, so that all bits below may be ones. */
MPK_FN bool sort_digit(const mpk_task &t, const sort_line &l, sort_bound *bound, bool by_number,
                       int shift, rt_u32 *left)
{
    rt_u32 *s_count = (rt_u32 *)(t.s_scratch + SORT_COUNTS), digit = 0;
    for (int i = mpk_thread(); i < SORT_DIGITS; i += MPK_THREADS)
        s_count[i] = 0;
    mpk_sync();
    for (rt_i64 i = mpk_thread(); i < l.n; i += MPK_THREADS) {
        rt_u64 rank = sort_rank(l, i), bits = by_number ? (rt_u64)i : rank;
        rt_u64 known = by_number ? (rt_u64)bound->number : bound->rank;
        if ((!by_number || rank == bound->rank) && (bits ^ known) >> shift >> 8 == 0)
            atomicAdd(&s_count[bits >> shift & 255], 1u);
    }
    mpk_sync();
    while (digit < SORT_DIGITS - 1 && s_count[digit] < *left)
        *left -= s_count[digit++];
    bool is_last = s_count[digit] == *left; /* nothing that agrees comes after it */
    mpk_sync();
    rt_u64 found = (rt_u64)digit << shift | (is_last ? ((rt_u64)1 << shift) - 1 : 0);
    if (by_number)
        bound->number |= (rt_u32)found;
    else
        bound->rank |= found;
    return is_last;
}

/* All threads: the last of the first k entries in order, by its rank and number. */
MPK_FN sort_bound sort_find(const mpk_task &t, const sort_line &l, rt_i64 k)
{
    sort_bound bound = {0, 0}; /* no digit is known */
    rt_u32 left = (rt_u32)k;   /* the bound is the k-th */
    bool found = false;
    for (int shift = order_bits(l.x.dtype) - 8; shift >= 0 && !found; shift -= 8)
        found = sort_digit(t, l, &bound, false, shift, &left);
    /* all entries of that rank are wanted, whatever their numbers */
    if (found)
        bound.number = ~0u;
    for (int shift = 24; shift >= 0 && !found; shift -= 8)
        found = sort_digit(t, l, &bound, true, shift, &left);
    return bound;
}

/* The first k entries of the line in order, in any order, to the results.  Exactly k entries pass,
 * since numbers make all entries differ; atomicAdd gives them places as they come, and sort_long
 * orders them afterwards, so that the race does not show. */
MPK_FN void sort_select(const mpk_task &t, const sort_line &l, rt_i64 k)
{
    rt_u32 *s_n = (rt_u32 *)(t.s_scratch + SORT_WORD);
    if (mpk_thread() == 0)
        *s_n = 0;
    sort_bound bound = sort_find(t, l, k); /* the same in all threads */
    for (rt_i64 i = mpk_thread(); i < l.n; i += MPK_THREADS) {
        rt_u64 rank = sort_rank(l, i);
        if (rank < bound.rank || (rank == bound.rank && (rt_u32)i <= bound.number))
            sort_store(l, (rt_i64)atomicAdd(s_n, 1u), i);
    }
    mpk_sync();
}

/* ---- the operators ---- */

/* Lines that fit into scratch, several at once: each has `block` places there, a power of 2. Places
 * beyond a line's end hold the greatest rank and number, so they stay at the end of their block. */
MPK_FN void sort_short(const mpk_task &t, sort_line l, const mpk_view &indices,
                       const mpk_box &lines, rt_i64 block, rt_i64 k)
{
    order_list list = order_list_at(t, SORT_LIST, SORT_TILE);
    rt_u64 n_lines = mpk_count(lines, l.x.rank), at_once = (rt_u64)(SORT_TILE / block);
    rt_i64 at[RT_MAX_RANK];
    for (rt_u64 first = 0; first < n_lines; first += at_once) {
        rt_i64 n = (rt_i64)(n_lines - first < at_once ? n_lines - first : at_once) * block;
        for (rt_i64 i = mpk_thread(); i < n; i += MPK_THREADS) {
            rt_i64 number = i & (block - 1); /* of the line's entry */
            mpk_place(lines, l.x.rank, first + (rt_u64)(i / block), at);
            l.from = mpk_offset(l.x, at);
            order_put(list, i, number < l.n ? sort_rank(l, number) : ~(rt_u64)0,
                      number < l.n ? (rt_u32)number : ~0u);
        }
        mpk_sync();
        order_sort(t, list, n, block);
        for (rt_i64 i = mpk_thread(); i < n; i += MPK_THREADS) {
            if ((i & (block - 1)) >= k)
                continue;
            mpk_place(lines, l.x.rank, first + (rt_u64)(i / block), at);
            l.from = mpk_offset(l.x, at);
            l.to = mpk_offset(l.values, at);
            l.to_index = mpk_offset(indices, at);
            sort_store(l, i & (block - 1), (rt_i64)list.s_number[i]);
        }
        mpk_sync();
    }
}

/* The body of sort and topk: the first k entries of each line in order, and where they were.  x,
 * values and indices have the same other axes; a task has whole lines. */
MPK_FN void sort_run(const mpk_task &t, const mpk_view &x, const mpk_view &values,
                     const mpk_view &indices, int axis, bool falling, rt_i64 k)
{
    sort_line l = {x,
                   values,
                   mpk_data(t, x),
                   mpk_data(t, values),
                   (rt_i64 *)mpk_data(t, indices),
                   x.dims[axis],
                   0,
                   x.stride[axis],
                   0,
                   values.stride[axis],
                   0,
                   indices.stride[axis],
                   falling};
    mpk_box lines = index_lines(t, x.rank, axis); /* an entry of it is a line */
    rt_i64 block = 1, at[RT_MAX_RANK];            /* power of 2 that holds a line */
    while (block < l.n)
        block *= 2;
    /* a line fits into scratch */
    if (l.n <= SORT_TILE) {
        sort_short(t, l, indices, lines, block, k);
        return;
    }
    rt_u64 n_lines = mpk_count(lines, x.rank);
    for (rt_u64 line = 0; line < n_lines; line++) {
        mpk_place(lines, x.rank, line, at);
        l.from = mpk_offset(x, at);
        l.to = mpk_offset(values, at);
        l.to_index = mpk_offset(indices, at);
        /* the whole line is wanted: it is sorted where the results lie */
        for (rt_i64 i = mpk_thread(); k == l.n && i < k; i += MPK_THREADS)
            sort_store(l, i, i);
        mpk_sync();
        if (k < l.n)
            sort_select(t, l, k);
        sort_long(t, l, k);
    }
}

#endif
