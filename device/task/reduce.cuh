/* reduce.cuh - reduce: sums, means, extremes and others along any axes, of a tensor or of an
 * expression of the operator map, and an expression of the result.
 *
 * Input: views of any dtype and strides; output: the task's box.  An instance prints its
 * expressions as lambdas (gen/body_reduce.c), which read the operands.  A line is the part of x
 * that one entry of the result is made of.  Who adds it up:
 *
 *    16 entries or less, or 64 in many lines        a thread (reduce_threads)
 *    of these, eights along the last axis           a thread, by 16 bytes (reduce_eights)
 *    of these, the last axis alone is reduced       a thread two lines at a time (reduce_lines)
 *    up to 512 entries                              a team of 32 threads
 *    more                                           all threads
 *
 * Which of these it is follows from the whole operator, so a line has the same bits however it is
 * cut; a thread alone adds entries in one order in all three ways.  Floats are summed in double.
 * Relies on the first MPK_REDUCE_BYTES of scratch.  Tensors of 16 bits whose neighbours lie across
 * the lines take reduce_across.cuh.  Cost: a pass over what is read, two for logsumexp.
 */
#ifndef TASK_REDUCE_CUH
#define TASK_REDUCE_CUH

#include "task/map.cuh"
#include "task/rows.cuh"

/* The box of x that entry `at` of the result is made of; `set`: the axes that go, a bit each.
 * They have their whole extent, of axis 0 what is alive.  keep: reduced axes stay in the result,
 * with one entry; o is the axis of the result at which axis i of x stands. */
MPK_FN mpk_box reduce_part(const mpk_task &t, const mpk_view &x, int set, bool keep,
                           const rt_i64 *at)
{
    mpk_box part;
    int o = 0; /* axis of the result */
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++) {
        bool reduced = set >> i & 1; /* the axis goes */
        part.lo[i] = 0;
        part.hi[i] = 1;
        if (i >= x.rank)
            continue;
        if (reduced) {
            part.hi[i] = (rt_u32)(i ? x.dims[i] : mpk_live(t, x));
        } else {
            part.lo[i] = (rt_u32)at[o];
            part.hi[i] = part.lo[i] + 1;
        }
        o += !reduced || keep;
    }
    return part;
}

/* Entries lane, lane + group, ... of the part, as integers; of "any" and "all" whether they are not
 * zero, which is asked of floats as such: truncation would make 0.5 a zero.  The result begins as
 * the neutral element of its kind, which is what a thread without entries contributes. */
MPK_FN rt_i64 reduce_integers(const mpk_view &x, const char *g_x, const mpk_box &part, int kind,
                              int lane, int group)
{
    /* SUM and ANY begin at 0, PROD and ALL at 1, MAX and MIN at the ends of the range. */
    rt_i64 result = (rt_i64)(kind == REDUCE_PROD || kind == REDUCE_ALL);
    if (kind == REDUCE_MAX)
        result = -0x7fffffffffffffffll - 1;
    else if (kind == REDUCE_MIN)
        result = 0x7fffffffffffffffll;
    rt_u64 n = mpk_count(part, x.rank); /* entries of x for one of the result */
    for (rt_u64 i = (rt_u64)lane; i < n; i += (rt_u64)group) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(part, x.rank, mpk_number(x, i), at);
        /* Each entry is found by divisions by the part's extents; 32 bits suffice where x has fewer
         * entries (mpk_number). */
        rt_i64 from = mpk_offset(x, at);
        /* floats come here for ANY and ALL alone */
        rt_i64 value = mpk_is_exact(x.dtype) ? mpk_get_int(x, g_x, from)
                                             : (rt_i64)(mpk_get_double(x, g_x, from) != 0);
        result = reduce_pair(kind, result, kind >= REDUCE_ANY ? (rt_i64)(value != 0) : value);
    }
    return result;
}

/* One float more: of LOGSUMEXP its exponential, at most 1 since `base` is the largest entry. */
MPK_FN double reduce_one(int dtype, int kind, double result, double value, double base)
{
    return reduce_pair(kind, result,
                       kind == REDUCE_LOGSUMEXP ? softmax_weight(dtype, value, base) : value);
}

/* The neutral element of a kind, of floats: threads without an entry have it, and it changes no
 * result. */
MPK_FN double reduce_neutral(int kind)
{
    if (kind == REDUCE_MAX)
        return (double)-MPK_INFINITY;
    return kind == REDUCE_MIN ? (double)MPK_INFINITY : (double)(kind == REDUCE_PROD);
}

/* What a reduction of floats is made of, besides its axes.  Functions are lambdas of an instance;
 * they capture the task, and are inlined, so no operand is passed at run time:
 *
 *    of(at)             the entry at this place of x, a double or a float
 *    eight_of(at, v)    with EIGHTS: it and the seven after it along the last axis, as floats
 *    more(at, m)        load what `then` needs for entry `at` of the result, MORE floats
 *    then(result, m)    what is stored, a double */
template <bool EIGHTS_, int MORE_, class OF, class EIGHT_OF, class MORE_OF, class THEN>
struct reduce_parts {
    enum { EIGHTS = EIGHTS_, MORE = MORE_ };
    const OF &of;
    const EIGHT_OF &eight_of;
    const MORE_OF &more;
    const THEN &then;
};
template <bool EIGHTS, int MORE, class OF, class EIGHT_OF, class MORE_OF, class THEN>
MPK_FN reduce_parts<EIGHTS, MORE, OF, EIGHT_OF, MORE_OF, THEN>
reduce_of(const OF &of, const EIGHT_OF &eight_of, const MORE_OF &more, const THEN &then)
{
    return {of, eight_of, more, then};
}

/* Does the last axis alone go?  Not as axis 0, of which some entries may be alive. */
MPK_FN bool reduce_last_goes(const mpk_view &x, int set)
{
    return x.rank > 1 && set == 1 << (x.rank - 1);
}
/* Place of the first entry of eight number i of a part whose last axis counts eights; at[last]
 * counts entries again.  Where that axis alone goes, a constant of the instance, no division finds
 * it. */
MPK_FN void reduce_eight_at(const mpk_view &x, const mpk_box &part, bool last_goes, rt_u32 i,
                            rt_i64 *at)
{
    if (!last_goes)
        mpk_place(part, x.rank, i, at);
#pragma unroll
    for (int k = 0; k < RT_MAX_RANK; k++)
        if (last_goes)
            at[k] = k == x.rank - 1 ? (rt_i64)i * EIGHT : (rt_i64)part.lo[k];
        else
            at[k] *= k == x.rank - 1 ? EIGHT : 1;
}
/* A line by a thread alone, by eights of the last axis; in the order in which it goes by entries,
 * so both have the same bits: whether an instance may use eights depends on addresses, which are
 * not the operator's. */
template <class PARTS>
MPK_FN double reduce_eights(const PARTS &p, mpk_box part, const mpk_view &x, int set, int kind)
{
    double result = reduce_neutral(kind);
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == x.rank - 1)
            part.hi[i] /= EIGHT;
    const bool last_goes = reduce_last_goes(x, set);
    const rt_u32 n = last_goes ? (rt_u32)mpk_row(x) / EIGHT : (rt_u32)mpk_count(part, x.rank);
    enum { TOGETHER = 2 }; /* eights under way; what is past the end is read as the first */
#pragma unroll 1
    for (rt_u32 i = 0; i < n; i += TOGETHER) {
        float r_value[TOGETHER][EIGHT];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            rt_i64 at[RT_MAX_RANK];
            reduce_eight_at(x, part, last_goes, i + j < n ? i + j : i, at);
            p.eight_of(at, r_value[j]);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
#pragma unroll
            for (int k = 0; k < EIGHT; k++)
                if (i + j < n)
                    result = reduce_pair(kind, result, (double)r_value[j][k]);
    }
    return result;
}

/* Entries lane, lane + group, ... of the part as doubles, combined; of LOGSUMEXP the sum of
 * exp(entry - base).  Begins as the neutral element too. */
template <class PARTS>
MPK_FN double reduce_floats(const PARTS &p, const mpk_box &part, const mpk_view &x, int kind,
                            int lane, int group, double base)
{
    double result = reduce_neutral(kind);
    rt_u64 n = mpk_count(part, x.rank);
    /* a thread alone has several loads under way: nothing else hides their latency */
    enum { TOGETHER = 8 };
    for (rt_u64 i = 0; group == 1 && i < n; i += TOGETHER) {
        double r_value[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            rt_i64 at[RT_MAX_RANK];
            mpk_place(part, x.rank, mpk_number(x, i + j < n ? i + j : i), at);
            r_value[j] = (double)p.of(at);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            if (i + j < n)
                result = reduce_one(x.dtype, kind, result, r_value[j], base);
    }
    for (rt_u64 i = (rt_u64)lane; group > 1 && i < n; i += (rt_u64)group) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(part, x.rank, mpk_number(x, i), at);
        result = reduce_one(x.dtype, kind, result, (double)p.of(at), base);
    }
    return result;
}

/* The result of a whole part, over all lanes of a group; a group of one needs no barrier. */
template <class PARTS>
MPK_FN double reduce_all_floats(const mpk_task &t, const PARTS &p, const mpk_box &part,
                                const mpk_view &x, int kind, int lane, int group, double base)
{
    const double own = reduce_floats(p, part, x, kind, lane, group, base); /* this lane's */
    return group > 1 ? reduce_group(t, kind, group, own) : own;
}

/* Are the lines neighbours in memory, and their entries not?  Then threads that have a line each
 * read neighbours, where those of one line would not. */
MPK_FN bool reduce_is_across(const mpk_view &x, int set)
{
    bool across = false;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i < x.rank && x.dims[i] > 1 && x.stride[i] == 1)
            across = !(set >> i & 1);
    return across;
}

/* How many threads share a line of n entries of x: 1, a team or all.  Short lines have a thread
 * each where there are enough of them, or where neighbouring threads then read neighbours.  The
 * whole result y is counted, not the box: the order of sums must not depend on how the operator is
 * cut. */
MPK_FN int reduce_threads(const mpk_view &x, const mpk_view &y, int set, rt_i64 n)
{
    /* Entries of a line that one thread does anyway; those that it does if there are many lines;
     * and how many lines are many, about as many as a GPU's workers have threads. */
    enum { SHORTEST = 16, SHORT = 64, MANY = 1 << 15 };
    rt_i64 lines = 1;
    for (int i = 0; i < y.rank; i++)
        lines *= y.dims[i];
    const bool alone = n <= SHORTEST || (n <= SHORT && (lines > MANY || reduce_is_across(x, set)));
    return alone ? 1 : mpk_group(n);
}

/* What is stored of a sum or another reduction of a part; more: what p.more has loaded for it. */
template <class PARTS>
MPK_FN double reduce_end(const PARTS &p, const mpk_box &part, const mpk_view &x, int kind,
                         double result, const float *more)
{
    /* divided by what is alive, not by the extent */
    return p.then(kind == REDUCE_MEAN ? result / (double)mpk_count(part, x.rank) : result, more);
}

/* Lines along the last axis by a thread each, by eights, several of them at a time: their loads are
 * under way together, and their sums no chain.  walk: the entries of the result in the box, one an
 * item; IN_ORDER: they follow each other in y, so that places come from divisions by constants. */
template <bool IN_ORDER, class PARTS>
MPK_FN void reduce_lines(const mpk_task &t, const mpk_view &x, const mpk_view &y,
                         const eight_walk &walk, int kind, int set, bool keep, const PARTS &p)
{
    enum { TOGETHER = 2 }; /* lines of a thread at a time */
    char *g_y = mpk_data(t, y);
#pragma unroll 1
    for (int i = mpk_thread(); i < walk.n; i += TOGETHER * MPK_THREADS) {
        double result[TOGETHER];
        rt_i64 to[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            /* a line past the end is made again and not stored: a branch would part the loads */
            const int line = i + j * MPK_THREADS < walk.n ? i + j * MPK_THREADS : i;
            rt_i64 at[RT_MAX_RANK];
            float r_more[PARTS::MORE + 1];
            eight_at<IN_ORDER>(walk, y, (rt_u32)line, 1, at);
            /* Asked for before the line is read, used after it. */
            p.more(at, r_more);
            const mpk_box part = reduce_part(t, x, set, keep, at);
            to[j] = mpk_offset(y, at);
            result[j] = reduce_end(p, part, x, kind, reduce_eights(p, part, x, set, kind), r_more);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            if (i + j * MPK_THREADS < walk.n)
                mpk_put_double(y, g_y, to[j], result[j]);
    }
}

/* Reduce floats: each entry of the result from the part of x that lies along the axes of `set`.
 * n_reduced: entries of x for one of the result, all alive.  x: dims, live and strides of what is
 * reduced, which p reads (its operand is -1 where an expression stands for it).  aligned: eights
 * may be read.
 *
 * LOGSUMEXP is base + log(sum of exp(x - base)) with the largest entry as base; an infinite base is
 * replaced by 0, since inf - inf would be NaN.  Groups without a line still walk the part of entry
 * 0: its place is valid, and the reduction needs every thread. */
template <class PARTS>
MPK_FN void reduce_by(const mpk_task &t, const mpk_view &x, const mpk_view &y, int kind, int set,
                      bool keep, rt_i64 n_reduced, bool aligned, const PARTS &p)
{
    char *g_y = mpk_data(t, y);
    const int group = reduce_threads(x, y, set, n_reduced), lane = mpk_thread() % group;
    mpk_box box = mpk_box_of(t, y.rank);
    rt_u64 n = mpk_count(box, y.rank), line;
    /* An int counts the lines of this walk. */
    if (PARTS::EIGHTS && group == 1 && reduce_last_goes(x, set) && kind != REDUCE_LOGSUMEXP &&
        aligned && n >> 30 == 0) {
        const eight_walk walk = eight_walk_of(y, box, 1);
        if (walk.in_order)
            reduce_lines<true>(t, x, y, walk, kind, set, keep, p);
        else
            reduce_lines<false>(t, x, y, walk, kind, set, keep, p);
        return;
    }
    for (rt_u64 first = 0; first < n; first += MPK_THREADS / group) {
        rt_i64 at[RT_MAX_RANK] = {0};                  /* place of the result */
        bool mine = rows_line(group, first, n, &line); /* else only the barriers */
        float r_more[PARTS::MORE + 1];
        mpk_place(box, y.rank, mpk_number(y, mine ? line : 0), at);
        p.more(at, r_more); /* under way while the line is read */
        /* the same in all threads of the group */
        mpk_box part = reduce_part(t, x, set, keep, at);
        double base = kind == REDUCE_LOGSUMEXP
                          ? reduce_all_floats(t, p, part, x, REDUCE_MAX, lane, group, 0)
                          : 0;
        /* every thread has the same base, so all go the same way */
        if (base == (double)MPK_INFINITY || base == (double)-MPK_INFINITY)
            base = 0;
        double result;
        if (PARTS::EIGHTS && group == 1 && aligned)
            result = reduce_eights(p, part, x, set, kind);
        else
            result = reduce_all_floats(t, p, part, x, kind, lane, group, base);
        if (kind == REDUCE_LOGSUMEXP)
            /* Entries that are all -inf have a sum of 0, whose logarithm is the -inf that is
             * wanted. */
            result = base + log(result);
        if (mine && lane == 0)
            mpk_put_double(y, g_y, mpk_offset(y, at), reduce_end(p, part, x, kind, result, r_more));
    }
}

/* The body of reduce of integers to integers, and of "any" and "all" of anything.  As reduce_by,
 * without expressions: exact, so the order of sums does not matter here. */
MPK_FN void reduce_whole_run(const mpk_task &t, const mpk_view &x, const mpk_view &y, int kind,
                             int set, bool keep, rt_i64 n_reduced)
{
    const char *g_x = mpk_data(t, x);
    const int group = reduce_threads(x, y, set, n_reduced), lane = mpk_thread() % group;
    mpk_box box = mpk_box_of(t, y.rank);
    rt_u64 n = mpk_count(box, y.rank), line;
    for (rt_u64 first = 0; first < n; first += MPK_THREADS / group) {
        rt_i64 at[RT_MAX_RANK] = {0};
        bool mine = rows_line(group, first, n, &line); /* else only the barriers */
        mpk_place(box, y.rank, mpk_number(y, mine ? line : 0), at);
        mpk_box part = reduce_part(t, x, set, keep, at);
        rt_i64 result = reduce_integers(x, g_x, part, kind, lane, group);
        if (group > 1)
            result = reduce_group(t, kind, group, result);
        if (mine && lane == 0)
            mpk_put_int(y, mpk_data(t, y), mpk_offset(y, at), result);
    }
}

/* The body of reduce, of x as it is.  f64 keeps its digits: entries are read, combined and stored
 * as doubles. */
MPK_FN void reduce_run(const mpk_task &t, const mpk_view &x, const mpk_view &y, int kind, int set,
                       bool keep, rt_i64 n_reduced)
{
    if ((mpk_is_exact(x.dtype) && mpk_is_exact(y.dtype)) || kind >= REDUCE_ANY) {
        reduce_whole_run(t, x, y, kind, set, keep, n_reduced);
        return;
    }
    const char *g_x = mpk_data(t, x);
    const auto of = [&](const rt_i64 *at) { return mpk_get_double(x, g_x, mpk_offset(x, at)); };
    const auto nothing = [](const rt_i64 *, float *) {};
    const auto as_it_is = [](double result, const float *) { return result; };
    reduce_by(t, x, y, kind, set, keep, n_reduced, false,
              reduce_of<false, 0>(of, nothing, nothing, as_it_is));
}

#endif
