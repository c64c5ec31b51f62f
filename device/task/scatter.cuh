/* scatter.cuh - operators whose values go where index tensors say: index_put and scatter.
 *
 * Of several values for one entry the order counts: the last stays, or all are combined one
 * after the other, as the reference does.  A task goes through all positions of the indices in
 * order and gathers those that fall into its box in a list in scratch: the rank is the entry
 * that is named, the number is the position.  When the list is full it is sorted; then a thread
 * has all values of an entry beside each other, in order, and entries are done at once.
 *
 *   chunk of positions --(those of the box)--> list --(full)--> sort --> apply, entry by entry
 *
 *   indices 7 2 7: a list of (7, 0) (2, 1) (7, 2), in any order, is sorted to (2, 1) (7, 0) (7, 2);
 *   entry 2 gets value 1; entry 7 gets value 0, and then value 2
 *
 * Numbers in index tensors are data and believed only in range.  Generic bodies, any plain dtype
 * and strides; all threads call every function but scatter_add, and branches on the list's
 * length are the same in all. Cost: a pass over the indices for each task (scatter: for each
 * SCATTER_SLOTS entries of a task), a sort of SCATTER_LIST entries in scratch for each
 * SCATTER_LIST values, and memory.
 */
#ifndef TASK_SCATTER_CUH
#define TASK_SCATTER_CUH

#include "task/index.cuh"
#include "task/order.cuh"

/* The list holds SCATTER_LIST entries.  Indices are read in chunks of SCATTER_CHUNK, a chunk adds
 * at most one entry for each, and it begins only while SCATTER_CHUNK places are free: so the list
 * cannot overflow.  SCATTER_SLOTS: entries of the result whose sums scatter keeps in scratch, 12
 * bytes each. */
enum { SCATTER_LIST = 512, SCATTER_CHUNK = 256, SCATTER_SLOTS = 1024 };
/* Scratch: the list and its length; of scatter also the values in the list, and what the entries
 * have so far. */
enum {
    SCATTER_ENTRIES,
    SCATTER_WORD = SCATTER_ENTRIES + SCATTER_LIST * ORDER_ENTRY_BYTES,
    SCATTER_VALUES = SCATTER_WORD + 8,
    SCATTER_SUMS = SCATTER_VALUES + SCATTER_LIST * 8,
    SCATTER_COUNTS = SCATTER_SUMS + SCATTER_SLOTS * 8
};

/* A list that is being gathered, and its length, which all threads raise by atomicAdd. */
struct scatter_list {
    order_list entries;
    rt_u32 *s_n;
};

/* An empty list.  The barrier: after it all threads may add, before it none still reads the
 * length. */
MPK_FN scatter_list scatter_begin(const mpk_task &t)
{
    scatter_list l = {order_list_at(t, SCATTER_ENTRIES, SCATTER_LIST),
                      (rt_u32 *)(t.s_scratch + SCATTER_WORD)};
    if (mpk_thread() == 0)
        *l.s_n = 0;
    mpk_sync();
    return l;
}
/* One thread adds an entry.  Where it comes to stand depends on the race, but not where it stands
 * after the sort: the number, a position, tells equal ranks apart. */
MPK_FN void scatter_add(const scatter_list &l, rt_u64 rank, rt_u64 number)
{
    order_put(l.entries, (rt_i64)atomicAdd(l.s_n, 1u), rank, (rt_u32)number);
}
/* After each chunk, by all threads: how many entries the list has, now sorted, if it has no room
 * for one more chunk or nothing follows; 0: go on.  What is done with them ends with
 * scatter_begin. */
MPK_FN rt_u32 scatter_full(const mpk_task &t, const scatter_list &l, bool is_last)
{
    mpk_sync();
    rt_u32 n = *l.s_n; /* the same in all threads, between two barriers */
    mpk_sync();
    /* the next chunk fits even if all of it falls into the box */
    if (!is_last && n <= SCATTER_LIST - SCATTER_CHUNK)
        return 0;
    order_sort(t, l.entries, (rt_i64)n, SCATTER_LIST);
    return n;
}

/* ---- index_put ---- */

/* The number of the entry of the box's leading axes that a position names; -1: none of them, or an
 * index that is out of range.  Axes without an index are not counted: such an entry stands for all
 * of theirs. */
MPK_FN rt_i64 put_named(const mpk_task &t, const index_views &v, const mpk_box &box,
                        const rt_i64 *position)
{
    rt_i64 number = 0; /* in row-major order of the box's leading axes */
    bool there = true; /* until an index names nothing of the box */
#pragma unroll
    for (int k = 0; k < RT_MAX_RANK; k++) {
        if (k >= v.n || k >= v.x.rank)
            continue;
        rt_i64 entry = index_named(t, v, k, position);
        there = there && entry >= (rt_i64)box.lo[k] && entry < (rt_i64)box.hi[k];
        number = number * (rt_i64)(box.hi[k] - box.lo[k]) + entry - (rt_i64)box.lo[k];
    }
    return there ? number : -1;
}

/* y += value in y's arithmetic: bool by "or", integers modulo 2^64, floats in double, rounded to
 * y's dtype after each value. */
MPK_FN void put_add(const mpk_view &y, char *g_y, rt_i64 to, const mpk_view &from,
                    const char *g_from, rt_i64 at)
{
    if (y.dtype == MPK_BOOL)
        mpk_put_int(y, g_y, to, mpk_get_int(y, g_y, to) | mpk_get_int(from, g_from, at));
    else if (mpk_is_exact(y.dtype))
        mpk_put_int(
            y, g_y, to,
            (rt_i64)((rt_u64)mpk_get_int(y, g_y, to) + (rt_u64)mpk_get_int(from, g_from, at)));
    else
        mpk_put_double(y, g_y, to, mpk_get_double(y, g_y, to) + mpk_get_double(from, g_from, at));
}

/* A sorted list of n: for each entry that is named, and each of the rest, all its values or the
 * last.  An entry named on the leading axes stands for a box of `rest` entries, so the work is n
 * n_rest items, of which those count whose place in the list is the first of their entry
 * (accumulate) or the last.  Every item of an entry goes to one thread, so nothing is written by
 * two; and lists follow each other in the order of positions, so a later list finds what an earlier
 * one has stored. */
MPK_FN void put_list(const mpk_task &t, const index_views &v, const mpk_view &values,
                     const mpk_view &y, const mpk_box &box, const mpk_box &positions,
                     const order_list &list, rt_u32 n, bool accumulate)
{
    const char *g_values = mpk_data(t, values);
    char *g_y = mpk_data(t, y);
    mpk_box lead = box, rest = box; /* axes with indices, axes without */
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++) {
        lead.lo[i] = i < v.n ? lead.lo[i] : 0;
        lead.hi[i] = i < v.n ? lead.hi[i] : 1;
        rest.lo[i] = i < v.n ? 0 : rest.lo[i];
        rest.hi[i] = i < v.n ? 1 : rest.hi[i];
    }
    rt_u64 n_rest = mpk_count(rest, y.rank); /* entries for one that is named */
    for (rt_u64 item = (rt_u64)mpk_thread(); item < n * n_rest; item += MPK_THREADS) {
        rt_i64 i = (rt_i64)mpk_divide(item, (rt_u32)n_rest), to[RT_MAX_RANK], entry[RT_MAX_RANK],
               from[RT_MAX_RANK] = {};
        /* of all values of an entry one item does the work */
        if (!(accumulate ? order_is_first(list, i) : order_is_last(list, i, n)))
            continue;
        mpk_place(lead, y.rank, list.s_rank[i], entry);
        mpk_place(rest, y.rank, item - (rt_u64)i * n_rest, to);
#pragma unroll
        for (int k = 0; k < RT_MAX_RANK; k++) {
            to[k] = k < v.n ? entry[k] : to[k];
            if (k >= v.n && k < y.rank && k - v.n + v.rank < RT_MAX_RANK)
                from[k - v.n + v.rank] = to[k];
        }
        rt_u64 named = list.s_rank[i]; /* the entry; its values follow each other */
        for (; i < n && list.s_rank[i] == named; i++) {
            rt_i64 position[RT_MAX_RANK];
            mpk_place(positions, v.rank, list.s_number[i], position);
#pragma unroll
            for (int k = 0; k < RT_MAX_RANK; k++)
                from[k] = k < v.rank ? position[k] : from[k];
            /* values are broadcast to [positions, axes without an index] */
            rt_i64 at = mpk_spread(values, v.rank + y.rank - v.n, from);
            if (accumulate)
                put_add(y, g_y, mpk_offset(y, to), values, g_values, at);
            else
                copies_move(y.dtype, g_y, mpk_offset(y, to), g_values, at);
        }
    }
}

/* The body of index_put.  named: shape of the broadcast indices; accumulate: values are added, else
 * the last stays; in_place: y is x's storage.  All threads go through all chunks, with barriers
 * between them: a chunk may hold nothing for this box. */
MPK_FN void index_put_run(const mpk_task &t, const index_views &v, const mpk_view &values,
                          const mpk_view &y, const mpk_numbers &named, bool accumulate,
                          bool in_place)
{
    mpk_box box = mpk_box_of(t, y.rank), positions = {};
    /* First all of x: each thread copies what it may overwrite later only after the barrier in
     * scatter_begin. */
    if (!in_place)
        copy_run(t, v.x, y);
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        positions.hi[i] = i < v.rank ? (rt_u32)named.at[i] : 1;
    rt_u64 n = mpk_count(positions, v.rank); /* of the indices */
    scatter_list list = scatter_begin(t);
    for (rt_u64 first = 0; first < n; first += SCATTER_CHUNK) {
        rt_u64 end = first + SCATTER_CHUNK < n ? first + SCATTER_CHUNK : n;
        for (rt_u64 p = first + (rt_u64)mpk_thread(); p < end; p += MPK_THREADS) {
            rt_i64 position[RT_MAX_RANK];
            mpk_place(positions, v.rank, p, position);
            rt_i64 entry = put_named(t, v, box, position);
            if (entry >= 0)
                scatter_add(list, (rt_u64)entry, p);
        }
        rt_u32 n_list = scatter_full(t, list, end == n);
        if (n_list) {
            put_list(t, v, values, y, box, positions, list.entries, n_list, accumulate);
            /* All have used the list, which is gathered anew. */
            mpk_sync();
            list = scatter_begin(t);
        }
    }
}

/* ---- scatter ---- */

enum { SCATTER_SET, SCATTER_SUM, SCATTER_PROD, SCATTER_MEAN, SCATTER_MAX, SCATTER_MIN };

/* The operands of scatter: x is what the result begins as, index names places along `axis`, src has
 * the values; kind: SCATTER_*. in_place: y is x's storage, so what is not named need not be
 * copied. */
struct scatter_views {
    const mpk_view &x, &index, &src, &y;
    int axis, kind; /* along which index names places; SCATTER_* */
    bool include_self, in_place;
};

/* Entries of the result that are done together, at most SCATTER_SLOTS: of n_lines lines from `line`
 * on the entries lo to lo + width - 1 along the axis.  A slot of scratch for each, line after line;
 * no other part has these entries. */
struct scatter_part {
    mpk_box lines;
    rt_u64 line, n_lines; /* counted from the box's first */
    rt_i64 lo, width;     /* along the axis; n_lines * width slots */
};

/* One value on top of another; NaN wins, whichever comes first. Integers wrap around, as unsigned
 * arithmetic does. */
MPK_FN double scatter_pair(int kind, double a, double b)
{
    /* a NaN that is there stays: no comparison with it is true */
    if (kind == SCATTER_MAX)
        return a == a && (b > a || b != b) ? b : a;
    if (kind == SCATTER_MIN)
        return b < a || b != b ? b : a;
    return kind == SCATTER_PROD ? a * b : a + b;
}
/* Overflow of signed numbers would be undefined, hence the unsigned ones. */
MPK_FN rt_i64 scatter_pair(int kind, rt_i64 a, rt_i64 b)
{
    if (kind == SCATTER_MAX)
        return b > a ? b : a;
    if (kind == SCATTER_MIN)
        return b < a ? b : a;
    return (rt_i64)(kind == SCATTER_PROD ? (rt_u64)a * (rt_u64)b : (rt_u64)a + (rt_u64)b);
}

/* The mean of n values; integers are rounded down, as the reference rounds: C's division rounds
 * towards zero, hence the correction. */
MPK_FN double scatter_mean(double sum, rt_u32 n)
{
    return sum / (double)n;
}
MPK_FN rt_i64 scatter_mean(rt_i64 sum, rt_u32 n)
{
    return sum / (rt_i64)n - (sum % (rt_i64)n < 0);
}

/* The place of entry `entry` along the axis of a line of the part. */
MPK_FN void scatter_place(const scatter_views &v, const scatter_part &p, rt_u64 line, rt_i64 entry,
                          rt_i64 *at)
{
    mpk_place(p.lines, v.y.rank, p.line + line, at);
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        at[i] = i == v.axis ? entry : at[i];
}

/* The slot that position i of the index of a line names; -1: none of the part, or the index has no
 * such line. A slot is the number of an entry in the part: line p.width + place. */
MPK_FN rt_i64 scatter_slot(const mpk_task &t, const scatter_views &v, const scatter_part &p,
                           rt_u64 line, rt_i64 i)
{
    rt_i64 at[RT_MAX_RANK];
    bool inside = true; /* of the index, which may be smaller than y */
    scatter_place(v, p, line, i, at);
#pragma unroll
    for (int k = 0; k < RT_MAX_RANK; k++)
        inside = inside && (k >= v.y.rank || at[k] < v.index.dims[k]);
    if (!inside)
        return -1;
    rt_i64 number = mpk_get_int(v.index, mpk_data(t, v.index), mpk_offset(v.index, at)); /* data */
    rt_i64 entry = index_resolve(number, v.y.dims[v.axis]);
    return entry >= p.lo && entry < p.lo + p.width ? (rt_i64)line * p.width + entry - p.lo : -1;
}

/* What the slots have before any value comes.  With include_self, x's own value counts as the
 * first.  `number` is rt_i64 for integers and for SCATTER_SET, else double. */
template <typename number>
MPK_FN void scatter_open(const mpk_task &t, const scatter_views &v, const scatter_part &p)
{
    number *s_sum = (number *)(t.s_scratch + SCATTER_SUMS);
    rt_u32 *s_count = (rt_u32 *)(t.s_scratch + SCATTER_COUNTS);
    rt_i64 n = (rt_i64)p.n_lines * p.width, at[RT_MAX_RANK]; /* slots */
    for (rt_i64 slot = mpk_thread(); slot < n; slot += MPK_THREADS) {
        s_count[slot] = v.include_self;
        scatter_place(v, p, (rt_u64)(slot / p.width), p.lo + slot % p.width, at);
        /* else the slot has no value yet, and its sum is not read */
        if (v.include_self && v.kind != SCATTER_SET)
            index_get(v.x, mpk_data(t, v.x), mpk_offset(v.x, at), &s_sum[slot]);
    }
}

/* A sorted list of n: all values of a slot on top of what it has; of SCATTER_SET the position of
 * the last.  All threads fetch the values; then the thread of a slot's first value combines them in
 * order. count is 0 only where nothing is there yet (include_self off): then the first value stands
 * alone. */
template <typename number>
MPK_FN void scatter_combine(const mpk_task &t, const scatter_views &v, const scatter_part &p,
                            const order_list &list, rt_u32 n)
{
    number *s_sum = (number *)(t.s_scratch + SCATTER_SUMS),
           *s_value = (number *)(t.s_scratch + SCATTER_VALUES);
    rt_u32 *s_count = (rt_u32 *)(t.s_scratch + SCATTER_COUNTS);
    rt_i64 at[RT_MAX_RANK];
    for (rt_i64 i = mpk_thread(); i < n; i += MPK_THREADS) {
        scatter_place(v, p, list.s_rank[i] / (rt_u64)p.width, (rt_i64)list.s_number[i], at);
        if (v.kind == SCATTER_SET)
            s_value[i] = (number)list.s_number[i];
        else
            index_get(v.src, mpk_data(t, v.src), mpk_offset(v.src, at), &s_value[i]);
    }
    mpk_sync();
    for (rt_i64 i = mpk_thread(); i < n; i += MPK_THREADS) {
        rt_u64 slot = list.s_rank[i]; /* an entry of the part */
        if (!order_is_first(list, i))
            continue;
        number sum = s_sum[slot];
        rt_u32 count = s_count[slot]; /* values on top of each other so far */
        for (rt_i64 k = i; k < n && list.s_rank[k] == slot; k++, count++)
            sum =
                count && v.kind != SCATTER_SET ? scatter_pair(v.kind, sum, s_value[k]) : s_value[k];
        s_sum[slot] = sum;
        s_count[slot] = count;
    }
    mpk_sync();
}

/* From the slots to the result.  An entry whose count has not grown was named by nothing, and keeps
 * x's bits. Of SCATTER_SET a slot's sum is the position of its value, which is copied bit by bit
 * from src. */
template <typename number>
MPK_FN void scatter_close(const mpk_task &t, const scatter_views &v, const scatter_part &p)
{
    const number *s_sum = (const number *)(t.s_scratch + SCATTER_SUMS);
    const rt_u32 *s_count = (const rt_u32 *)(t.s_scratch + SCATTER_COUNTS);
    char *g_y = mpk_data(t, v.y);
    rt_i64 n = (rt_i64)p.n_lines * p.width, at[RT_MAX_RANK];
    for (rt_i64 slot = mpk_thread(); slot < n; slot += MPK_THREADS) {
        rt_u64 line = (rt_u64)(slot / p.width); /* of the part */
        scatter_place(v, p, line, p.lo + slot % p.width, at);
        rt_i64 to = mpk_offset(v.y, at);
        /* nothing came on top */
        if (s_count[slot] == (rt_u32)v.include_self) {
            if (!v.in_place)
                copies_move(v.y.dtype, g_y, to, mpk_data(t, v.x), mpk_offset(v.x, at));
        } else if (v.kind == SCATTER_SET) {
            scatter_place(v, p, line, (rt_i64)s_sum[slot], at);
            copies_move(v.y.dtype, g_y, to, mpk_data(t, v.src), mpk_offset(v.src, at));
        } else {
            index_set(v.y, g_y, to,
                      v.kind == SCATTER_MEAN ? scatter_mean(s_sum[slot], s_count[slot])
                                             : s_sum[slot]);
        }
    }
    mpk_sync();
}

/* A part: gather, sort and combine until all indices of its lines have been read, then store.
 * Positions are counted with the lines fastest, so that each line's come in order, and neighbouring
 * threads read neighbouring lines.  In chunks, so that the list cannot overflow between two looks
 * at its length (scatter_full). */
template <typename number>
MPK_FN void scatter_do(const mpk_task &t, const scatter_views &v, const scatter_part &p)
{
    rt_u64 n = p.n_lines * (rt_u64)v.index.dims[v.axis]; /* positions */
    scatter_open<number>(t, v, p);
    scatter_list list = scatter_begin(t);
    for (rt_u64 first = 0; first < n; first += SCATTER_CHUNK) {
        rt_u64 end = first + SCATTER_CHUNK < n ? first + SCATTER_CHUNK : n;
        for (rt_u64 k = first + (rt_u64)mpk_thread(); k < end; k += MPK_THREADS) {
            rt_u64 i = mpk_divide(k, (rt_u32)p.n_lines), line = k - i * p.n_lines;
            rt_i64 slot = scatter_slot(t, v, p, line, (rt_i64)i);
            if (slot >= 0)
                scatter_add(list, (rt_u64)slot, i);
        }
        rt_u32 n_list = scatter_full(t, list, end == n);
        if (n_list) {
            scatter_combine<number>(t, v, p, list.entries, n_list);
            /* scatter_combine has ended with a barrier, so the list is free. */
            list = scatter_begin(t);
        }
    }
    scatter_close<number>(t, v, p);
}

/* The body of scatter.  As many lines at once as their entries fit the slots; a long line goes in
 * pieces, each a pass over its indices.  SCATTER_SET keeps positions in its slots, which are
 * integers whatever the dtype is. */
MPK_FN void scatter_run(const mpk_task &t, const mpk_view &x, const mpk_view &index,
                        const mpk_view &src, const mpk_view &y, int axis, int kind,
                        bool include_self, bool in_place)
{
    scatter_views v = {x, index, src, y, axis, kind, include_self, in_place};
    rt_i64 lo = mpk_lo(t, axis), hi = mpk_hi(t, axis),
           most = hi - lo < SCATTER_SLOTS ? hi - lo : SCATTER_SLOTS;
    mpk_box lines = index_lines(t, y.rank, axis);
    rt_u64 n_lines = hi > lo ? mpk_count(lines, y.rank) : 0,
           at_once = n_lines ? (rt_u64)(SCATTER_SLOTS / most) : 1;
    for (rt_u64 line = 0; line < n_lines; line += at_once)
        for (rt_i64 first = lo; first < hi; first += most) {
            scatter_part p = {lines, line, n_lines - line < at_once ? n_lines - line : at_once,
                              first, hi - first < most ? hi - first : most};
            if (mpk_is_exact(y.dtype) || kind == SCATTER_SET)
                scatter_do<rt_i64>(t, v, p);
            else
                scatter_do<double>(t, v, p);
        }
}

#endif
