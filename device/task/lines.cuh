/* lines.cuh - operators on lines along an axis: extreme, scan, scan_extreme, search_sorted.
 *
 * A short line is one thread's.  A longer one is shared by a group of threads, by its length
 * alone: for extreme they take turns, by pieces of 16 bytes if the line is long and its entries
 * are neighbours; for the running ones each has a part, goes through it, learns what the parts
 * before it come to, and goes through it again:
 *
 *   thread         0          1          2
 *   first pass     sum of part 0, of part 1, of part 2   -> scratch
 *   second pass    begins at 0, at part 0's sum, at that of parts 0 and 1
 *
 * The generic bodies: any plain dtype and strides.  Input: x; output: values, and 64-bit indices
 * of entries along the axis.  A round has a line for each group, as in rows.cuh; a group without
 * a line goes through it all the same, because of the barriers. Scratch: one or two 8-byte
 * numbers for each thread, from its start; the reductions are not used beside them. Cost: one
 * pass over x, or two.
 */
#ifndef TASK_LINES_CUH
#define TASK_LINES_CUH

#include "task/index.cuh"
#include "task/order.cuh"
#include "task/rows.cuh"

/* How many threads share a line of n entries; 1: it has the line alone, without barriers.  By the
 * length alone, so that a sum has the same order however the operator is cut. */
MPK_FN int lines_group(rt_i64 n)
{
    return n <= 64 ? 1 : mpk_group(n);
}

/* How good an element is as the largest, or smallest: NaN is better than all.  In falling order NaN
 * has rank 0, which no other float has; an integer of rank 0 is just the worst. */
MPK_FN rt_u64 lines_merit(const mpk_view &x, const char *g_x, rt_i64 at, bool largest)
{
    rt_u64 rank = order_rank(x, g_x, at, !largest); /* rising with how good it is */
    return rank == 0 && !largest && !mpk_is_exact(x.dtype) ? order_last(x.dtype) : rank;
}

/* Logits are such lines.  Comparing integers that rank each entry costs several instructions an
 * entry; so finite numbers are compared as floats, and only pieces that hold others are ranked.
 * Both give the same entry: the first of the best, or the first NaN. */

enum { LINES_AHEAD = 8 }; /* pieces that a thread requests at once */

/* 16 bytes of a line, as loaded: 4 entries of f32, 8 of f16 or bf16. */
struct alignas(16) lines_piece {
    rt_u32 word[4]; /* 16 bytes as loaded */
};

/* Floats of at most 32 bits, whose entries compare alike as fp32. */
MPK_FN bool lines_is_short_float(int dtype)
{
    return dtype == MPK_F32 || dtype == MPK_F16 || dtype == MPK_BF16;
}

/* Entry i of a piece, as float. */
MPK_FN float lines_entry(int dtype, const lines_piece &p, int i)
{
    if (dtype == MPK_F32)
        return __uint_as_float(p.word[i]);
    const rt_u16 half = (rt_u16)(p.word[i / 2] >> (i % 2 ? 16 : 0));
    return dtype == MPK_BF16 ? mpk_from_bf16(half) : mpk_from_f16(half);
}

/* How good a number is, never 0: NaN is better than all.  0 is left for "nothing found".  -0 and 0
 * are equally good, so the first of them counts. */
MPK_FN rt_u32 lines_worth(float x, bool largest)
{
    return x == x ? mpk_key(largest ? x : -x) : 0xffffffffu;
}

/* The best entry of a piece of finite numbers.  *probe stays 0 as long as there are no others: 0
 * times an infinity or NaN is NaN, and stays so.  A caller that finds it changed ranks the
 * pieces instead. */
MPK_FN float lines_best(int dtype, const lines_piece &p, bool largest, float *probe)
{
    float best = lines_entry(dtype, p, 0); /* of the piece so far */
#pragma unroll
    for (int i = 0; i < (dtype == MPK_F32 ? 4 : 8); i++) {
        const float x = lines_entry(dtype, p, i);
        best = largest ? fmaxf(best, x) : fminf(best, x);
        *probe = fmaf(x, 0, *probe);
    }
    return best;
}

/* What a thread has found: how good the best entry so far is, and in which piece it was first. */
struct lines_found {
    rt_u32 worth; /* 0: nothing */
    rt_i64 piece;
};

/* LINES_AHEAD pieces first, first + MPK_THREADS, ..., of which some hold infinities or NaN:
 * entry by entry, ranked as integers.  Only what is better replaces what was found, so the first
 * of equal ones stays. */
MPK_FN void lines_search_all(const mpk_view &x, const char *g_line, rt_i64 first, rt_i64 pieces,
                             int per, bool largest, lines_found *f)
{
#pragma unroll 1
    for (int k = 0; k < LINES_AHEAD * per; k++) {
        const rt_i64 piece = first + k / per * MPK_THREADS;
        const rt_u32 own =
            piece < pieces ? lines_worth(mpk_get(x, g_line, piece * per + k % per), largest) : 0;
        f->piece = own > f->worth ? piece : f->piece;
        f->worth = own > f->worth ? own : f->worth;
    }
}

/* This thread's share of a line of n neighbours that is aligned to 16 bytes: how good its first
 * best entry is, and the complement of where that is; 0: it has none.
 *
 * While pieces are read only the best number and its piece are kept; which entry of the piece it
 * was is looked up once, at the end, from the last to the first so that the first stays.  What
 * does not fill a piece comes after that, entry by entry: these are the last of the line, so they
 * have to be better, not equal.
 */
MPK_FN void lines_search(const mpk_view &x, const char *g_line, rt_i64 n, bool largest,
                         rt_u64 *most, rt_u64 *best)
{
    const lines_piece *g = (const lines_piece *)g_line; /* aligned */
    const int per = x.dtype == MPK_F32 ? 4 : 8;
    const rt_i64 pieces = n / per;
    lines_found f = {0, 0}; /* nothing yet */
#pragma unroll 1
    for (rt_i64 i = mpk_thread(); i < pieces; i += LINES_AHEAD * MPK_THREADS) {
        lines_piece p[LINES_AHEAD]; /* all in flight before the first is looked at */
        float own[LINES_AHEAD], all = 0, probe = 0;
#pragma unroll
        for (int k = 0; k < LINES_AHEAD; k++)
            p[k] = g[i + k * MPK_THREADS < pieces ? i + k * MPK_THREADS
                                                  : i]; /* the first again changes nothing */
#pragma unroll
        for (int k = 0; k < LINES_AHEAD; k++) {
            own[k] = lines_best(x.dtype, p[k], largest, &probe);
            all = !k ? own[0] : largest ? fmaxf(all, own[k]) : fminf(all, own[k]);
        }
        /* an infinity or a NaN somewhere: compare ranks */
        if (probe != 0) {
            lines_search_all(x, g_line, i, pieces, per, largest, &f);
        } else if (lines_worth(all, largest) > f.worth) {
            /* rarely: of equal pieces the first, so from the last down */
            f.worth = lines_worth(all, largest);
#pragma unroll
            for (int k = LINES_AHEAD; k-- > 0;)
                f.piece = own[k] == all ? i + k * MPK_THREADS : f.piece;
        }
    }
    /* which entry of the best piece it was */
#pragma unroll 1
    for (int i = per; f.worth && i-- > 0;)
        if (lines_worth(mpk_get(x, g_line, f.piece * per + i), largest) == f.worth)
            *best = ~(rt_u64)(f.piece * per + i);
#pragma unroll 1
    for (rt_i64 i = pieces * per + mpk_thread(); i < n; i += MPK_THREADS) {
        const rt_u32 own = lines_worth(mpk_get(x, g_line, i), largest);
        *best = own > f.worth ? ~(rt_u64)i : *best;
        f.worth = own > f.worth ? own : f.worth;
    }
    *most = f.worth;
}

/* Each thread of a group gets the best that any has found, of equal ones the first.  Called by all
 * threads.  most: how good; best: the complement of the entry's number, 0 of a thread that has
 * none.
 *
 * In each round the upper half of what is left hands its pairs to the lower half; rounds up, for a
 * group may have any number of threads.  A barrier after each round; the last one lets the next
 * line write.  Threads that are left over beyond the last whole group only come to the barriers.
 * How pairs meet does not show in the result: of equal merits the larger complement, which is the
 * lower number, wins always. */
MPK_FN void lines_agree(const mpk_task &t, int group, rt_u64 *most, rt_u64 *best)
{
    rt_u64 *s_most = (rt_u64 *)t.s_scratch, *s_best = s_most + MPK_THREADS;
    const int thread = mpk_thread(), first = thread / group * group;
    const bool is_member = first + group <= MPK_THREADS; /* of a whole group */
    s_most[thread] = *most;
    s_best[thread] = *best;
    mpk_sync();
#pragma unroll 1
    for (int n = group; n > 1; n = (n + 1) / 2) {
        const int other = thread + (n + 1) / 2;
        if (is_member && other < first + n &&
            (s_most[other] > s_most[thread] ||
             (s_most[other] == s_most[thread] && s_best[other] > s_best[thread]))) {
            s_most[thread] = s_most[other];
            s_best[thread] = s_best[other];
        }
        mpk_sync();
    }
    *most = s_most[first];
    *best = s_best[first];
    mpk_sync();
}

/* The body of extreme: the first of the best entries of each line: its value, bit for bit, and
 * its number.  The box is of the result, which lacks the axis or (keep) has one entry there. */
MPK_FN void extreme_run(const mpk_task &t, const mpk_view &x, const mpk_view &value,
                        const mpk_view &index, int axis, bool keep, bool largest)
{
    const char *g_x = mpk_data(t, x);
    char *g_value = mpk_data(t, value), *g_index = mpk_data(t, index);
    int group = lines_group(x.dims[axis]), lane = mpk_thread() % group;
    mpk_box box = mpk_box_of(t, value.rank);
    rt_u64 n = mpk_count(box, value.rank), line;
    for (rt_u64 first = 0; first < n; first += MPK_THREADS / group) {
        rt_i64 at[RT_MAX_RANK], from = 0; /* the line's place and first entry */
        int o = 0;
        bool mine = rows_line(group, first, n, &line);
        mpk_place(box, value.rank, mine ? line : 0, at);
        /* o: the axis of the result at which axis i of x stands; with `keep` the reduced one has
         * entry 0. */
#pragma unroll
        for (int i = 0; i < RT_MAX_RANK; i++) {
            if (i < x.rank && i != axis && o < RT_MAX_RANK)
                from += at[o] * x.stride[i];
            o += i != axis || keep;
        }
        /* Numbers as complements, so that the first is the largest; no entry is 0. */
        rt_u64 most = 0, best = 0;
        const char *g_line = g_x + from * mpk_dtype_bytes(x.dtype);
        /* By pieces only where all threads share the line: a team would have few of them. */
        const bool pieces = lines_is_short_float(x.dtype) && x.stride[axis] == 1 &&
                            group == MPK_THREADS && group > 1;
        if (pieces && ((rt_u64)g_line & 15) == 0) {
            if (mine)
                lines_search(x, g_line, x.dims[axis], largest, &most, &best);
        } else {
            for (rt_i64 i = lane; mine && i < x.dims[axis]; i += group) {
                rt_u64 merit = lines_merit(x, g_x, from + i * x.stride[axis], largest);
                /* the first entry counts even if its merit is 0; of equal ones the first stays */
                if (!best || merit > most) {
                    most = merit;
                    best = ~(rt_u64)i;
                }
            }
        }
        if (group > 1)
            lines_agree(t, group, &most, &best);
        if (!mine || lane)
            continue;
        copies_move(value.dtype, g_value, mpk_offset(value, at), g_x,
                    from + (rt_i64)~best * x.stride[axis]);
        ((rt_i64 *)g_index)[mpk_offset(index, at)] = (rt_i64)~best;
    }
}

/* ---- running sums and extremes ---- */

/* The part lo <= i < hi of a line of n entries that a thread of its group has: neighbours, since
 * order counts here.  Without a line it is empty.  Parts differ by at most one entry. */
struct lines_part {
    rt_i64 lo, hi; /* entries of the line */
    int first;     /* thread of the group */
};
MPK_FN lines_part lines_part_of(int group, bool mine, rt_i64 n)
{
    int lane = mpk_thread() % group;
    lines_part p = {n * lane / group, mine ? n * (lane + 1) / group : 0, mpk_thread() - lane};
    return p;
}

enum { SCAN_SUM, SCAN_PROD, SCAN_LOGSUMEXP };

/* Two numbers come to one; of LOGSUMEXP log(exp(a) + exp(b)), from the larger one so that
 * nothing overflows.  NaN stays; equal infinities are their own log-sum, where the formula would
 * give NaN. Of integers (below) modulo 2^64. */
MPK_FN double scan_pair(int kind, double a, double b)
{
    if (kind == SCAN_PROD)
        return a * b;
    if (kind == SCAN_SUM)
        return a + b;
    double most = a > b || a != a ? a : b; /* a NaN stays */
    return a == b && fabs(a) == (double)MPK_INFINITY ? a : most + log1p(exp(-fabs(a - b)));
}
MPK_FN rt_i64 scan_pair(int kind, rt_i64 a, rt_i64 b)
{
    return (rt_i64)(kind == SCAN_PROD ? (rt_u64)a * (rt_u64)b : (rt_u64)a + (rt_u64)b);
}

/* Running sums of lines in the arithmetic of `number` (double, or rt_i64 for integers); none: what
 * nothing comes to.  Where a line is shared, each thread sums its part, adds up the parts before
 * its own, then goes through its part again from there.  The number of threads follows from the
 * length of the line, so the order of sums does too.  Barriers: after the first all sums of parts
 * are there; after the second all have been read, so the next line may write its own. */
template <typename number>
MPK_FN void scan_lines(const mpk_task &t, const mpk_view &x, const mpk_view &y, int axis, int kind,
                       number none)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    number *s_sum = (number *)t.s_scratch;
    int group = lines_group(x.dims[axis]);
    mpk_box lines = index_lines(t, y.rank, axis); /* an entry of it is a line */
    rt_u64 n = mpk_count(lines, y.rank), line;
    for (rt_u64 first = 0; first < n; first += MPK_THREADS / group) {
        rt_i64 at[RT_MAX_RANK];
        bool mine = rows_line(group, first, n, &line);
        lines_part part = lines_part_of(group, mine, x.dims[axis]); /* this thread's */
        mpk_place(lines, y.rank, mine ? line : 0, at);
        rt_i64 from = mpk_offset(x, at), to = mpk_offset(y, at);
        number sum = none, value; /* running */
        if (group > 1) {
            for (rt_i64 i = part.lo; i < part.hi; i++) {
                index_get(x, g_x, from + i * x.stride[axis], &value);
                sum = scan_pair(kind, sum, value);
            }
            s_sum[mpk_thread()] = sum;
            mpk_sync();
            /* now what the parts before this thread's come to */
            sum = none;
            for (int i = part.first; i < mpk_thread(); i++)
                sum = scan_pair(kind, sum, s_sum[i]);
            mpk_sync();
        }
        for (rt_i64 i = part.lo; i < part.hi; i++) {
            index_get(x, g_x, from + i * x.stride[axis], &value);
            sum = scan_pair(kind, sum, value);
            index_set(y, g_y, to + i * y.stride[axis], sum);
        }
    }
}

/* The body of scan.  `none` is what changes nothing: 0, 1 of a product, -inf of a log-sum. */
MPK_FN void scan_run(const mpk_task &t, const mpk_view &x, const mpk_view &y, int axis, int kind)
{
    if (mpk_is_exact(x.dtype) && mpk_is_exact(y.dtype))
        scan_lines(t, x, y, axis, kind, (rt_i64)(kind == SCAN_PROD));
    else
        scan_lines(t, x, y, axis, kind,
                   kind == SCAN_LOGSUMEXP ? (double)-MPK_INFINITY : (double)(kind == SCAN_PROD));
}

/* The number of the best entry so far: entry i, or `best` (-1: none).  *most: its merit; of equal
 * entries the last, as the reference has it.  Called in rising order of i. */
MPK_FN rt_i64 scan_better(rt_u64 merit, rt_i64 i, rt_i64 best, rt_u64 *most)
{
    if (best >= 0 && merit < *most)
        return best;
    *most = merit;
    return i;
}

/* The body of scan_extreme: running extremes, and where they are.  As scan_lines, with the index of
 * the best so far in place of a sum; -1 means no entry.  Its merit is found again from x, so that a
 * thread leaves one number in scratch.  Values are copied from x, bit for bit. */
MPK_FN void scan_extreme_run(const mpk_task &t, const mpk_view &x, const mpk_view &value,
                             const mpk_view &index, int axis, bool largest)
{
    const char *g_x = mpk_data(t, x);
    char *g_value = mpk_data(t, value), *g_index = mpk_data(t, index);
    rt_i64 *s_best = (rt_i64 *)t.s_scratch, step = x.stride[axis]; /* of each thread's part */
    int group = lines_group(x.dims[axis]);
    mpk_box lines = index_lines(t, value.rank, axis);
    rt_u64 n = mpk_count(lines, value.rank), line;
    for (rt_u64 first = 0; first < n; first += MPK_THREADS / group) {
        rt_i64 at[RT_MAX_RANK], best = -1;
        rt_u64 most = 0;
        bool mine = rows_line(group, first, n, &line);
        lines_part part = lines_part_of(group, mine, x.dims[axis]);
        mpk_place(lines, value.rank, mine ? line : 0, at);
        rt_i64 from = mpk_offset(x, at), to = mpk_offset(value, at),
               to_index = mpk_offset(index, at);
        if (group > 1) {
            for (rt_i64 i = part.lo; i < part.hi; i++)
                best = scan_better(lines_merit(x, g_x, from + i * step, largest), i, best, &most);
            s_best[mpk_thread()] = best;
            mpk_sync();
            best = -1;
            for (int i = part.first; mine && i < mpk_thread(); i++)
                if (s_best[i] >= 0)
                    best = scan_better(lines_merit(x, g_x, from + s_best[i] * step, largest),
                                       s_best[i], best, &most);
            mpk_sync();
        }
        for (rt_i64 i = part.lo; i < part.hi; i++) {
            best = scan_better(lines_merit(x, g_x, from + i * step, largest), i, best, &most);
            copies_move(value.dtype, g_value, to + i * value.stride[axis], g_x, from + best * step);
            ((rt_i64 *)g_index)[to_index + i * index.stride[axis]] = best;
        }
    }
}

/* What search_sorted compares: integers exactly, floats as double; NaN is like nothing.  One of the
 * two is set, by the dtype of the lines and values, a constant. */
struct lines_key {
    double f;
    rt_i64 i;
};

MPK_FN lines_key lines_get(const mpk_view &x, const char *g_x, rt_i64 at)
{
    lines_key k = {0, 0};
    if (mpk_is_exact(x.dtype))
        k.i = mpk_get_int(x, g_x, at);
    else
        k.f = mpk_get_double(x, g_x, at);
    return k;
}

/* The body of search_sorted: where each value would be put into its sorted line, before (or, right,
 * after) equal entries: a binary search by a thread, of log2(n) loads that wait for each other.  As
 * the reference: comparisons with NaN are false, so NaN goes to the end.  Invariant: entries before
 * lo stand before the value, those from hi on do not. */
MPK_FN void search_sorted_run(const mpk_task &t, const mpk_view &sorted, const mpk_view &values,
                              const mpk_view &index, bool right)
{
    const char *g_sorted = mpk_data(t, sorted), *g_values = mpk_data(t, values);
    char *g_index = mpk_data(t, index);
    bool exact = mpk_is_exact(sorted.dtype);
    INDEX_LOOP(t, index)
    {
        rt_i64 line = 0, lo = 0, hi = sorted.dims[sorted.rank - 1];
#pragma unroll
        for (int i = 0; i < RT_MAX_RANK; i++)
            if (i + 1 < sorted.rank)
                line += at[i] * sorted.stride[i];
        lines_key value = lines_get(values, g_values, mpk_offset(values, at));
        while (lo < hi) {
            rt_i64 middle = lo + (hi - lo) / 2;
            lines_key k =
                lines_get(sorted, g_sorted, line + middle * sorted.stride[sorted.rank - 1]);
            bool found = exact ? (right ? k.i > value.i : k.i >= value.i)
                               : (right ? k.f > value.f : k.f >= value.f);
            lo = found ? lo : middle + 1;
            hi = found ? middle : hi;
        }
        ((rt_i64 *)g_index)[mpk_offset(index, at)] = lo;
    }
}

#endif
