/* reduce_across.cuh - reduce along axes whose entries are not neighbours, where those of an axis
 * that stays are: the mean of an image with channels last.
 *
 * Input: x of 16-bit floats, whose lines lie eight side by side in 16 bytes; output: the task's
 * box, of any dtype of floats.  A line is what one entry of y is made of, a piece eight lines side
 * by side.  A thread has a piece and adds up every SHARES-th entry of it, in doubles; the sums of
 * the threads that share the piece are added in the order of the threads:
 *
 *    thread = share * LOTS + lot        lot: which piece of the round; share: which entries of it
 *
 * So the threads of a warp load neighbouring pieces of one entry where SHARES is at most 8, and a
 * round of LOTS pieces takes two barriers.  SHARES follows from the whole operator (across_shares
 * in shape/reduce_across_shape.h), so neither the box nor the round changes a bit of a sum.
 *
 * Relies on ACROSS_BYTES of scratch, from its beginning.  src/gen/body_reduce.c chooses this body
 * and prints `how`; the generic one is reduce_run.  Cost: x once, in loads of 16 bytes, several of
 * them under way in each thread.
 */
#ifndef TASK_REDUCE_ACROSS_CUH
#define TASK_REDUCE_ACROSS_CUH

#include "shape/reduce_across_shape.h"
#include "task/pieces.cuh"
#include "task/reduce.cuh"

/* How x becomes y, a constant of the instance.  set: the axes that go, a bit each; keep: they stay
 * in y with one entry; to: the axis of y along which x has neighbours.  That axis stays, so x and y
 * have as many entries along it, a multiple of ACROSS_PIECE. */
struct across_how {
    int kind, set;
    bool keep;
    int to;
    rt_i64 n; /* entries of a line */
};

/* Where the lines of a place of y begin in x, in elements.  Axes are walked in x's order; o is
 * where axis i of x stands in y, behind i by the axes that have gone. */
MPK_FN rt_i64 across_line(const mpk_view &x, const across_how &h, const rt_i64 *at)
{
    rt_i64 from = 0;
    int o = 0; /* axis of y */
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++) {
        const bool reduced = h.set >> i & 1;
        if (i < x.rank && !reduced)
            from += at[o] * x.stride[i];
        o += i < x.rank && (!reduced || h.keep);
    }
    return from;
}
/* Entry k of a line, in elements from its first.  k counts the places of the axes that go, the last
 * one fastest.  Extents are constants, so the divisions are multiplications. */
MPK_FN rt_i64 across_entry(const mpk_view &x, const across_how &h, rt_u32 k)
{
    rt_i64 from = 0;
#pragma unroll
    for (int i = RT_MAX_RANK - 1; i >= 0; i--)
        if (i < x.rank && h.set >> i & 1) {
            const rt_u32 n = (rt_u32)x.dims[i];
            from += k % n * x.stride[i];
            k /= n;
        }
    return from;
}

/* The entries share, share + SHARES, ... of eight lines, which begin at g, in the order in which
 * they are added: line e of the piece is r_sum[e].  r_sum begins as the caller has it. */
template <int SHARES>
MPK_FN void across_add(const mpk_view &x, const across_how &h, const char *g, rt_u32 share,
                       double (&r_sum)[ACROSS_PIECE])
{
    enum { TOGETHER = 4 }; /* loads under way: 16 registers */
    const rt_u32 n = (rt_u32)h.n;
#pragma unroll 1
    for (rt_u32 k = share; k < n; k += SHARES * TOGETHER) {
        /* All loads of the round come before the first addition, which waits for one of them. */
        uint4 r_x[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            r_x[j] = make_uint4(0, 0, 0, 0); /* else the array would lie in memory */
            if (k + j * SHARES < n)
                r_x[j] = *(const uint4 *)(g + across_entry(x, h, k + j * SHARES) * 2);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            /* Line 2i is the low half of word i, line 2i + 1 the high half.  A zero that stands for
             * no entry may not be combined: it would win as a maximum of negative numbers. */
            const rt_u32 words[ACROSS_PIECE / 2] = {r_x[j].x, r_x[j].y, r_x[j].z, r_x[j].w};
            if (k + j * SHARES < n)
#pragma unroll
                for (int e = 0; e < ACROSS_PIECE; e += 2) {
                    float r_pair[2];
                    rows_unpack(x.dtype, words[e / 2], r_pair);
                    r_sum[e] = reduce_pair(h.kind, r_sum[e], (double)r_pair[0]);
                    r_sum[e + 1] = reduce_pair(h.kind, r_sum[e + 1], (double)r_pair[1]);
                }
        }
    }
}

/* The body of reduce of such an x: sum, mean, max, min and prod.  A round has LOTS pieces of lines,
 * each of SHARES threads; of a piece that the box cuts all is read, and its part is written: the
 * task beside this one reads it, too, and writes the rest.
 * false: x is not aligned to 16 bytes, and nothing was done.  All threads get the same answer, so
 * none is missing at a barrier; the instance then calls reduce_run. */
template <int SHARES>
MPK_FN bool reduce_across(const mpk_task &t, const mpk_view &x, const mpk_view &y,
                          const across_how &h)
{
    enum { LOTS = MPK_THREADS / SHARES };
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    if ((rt_u64)g_x & 15)
        return false;
    double *s_sum = (double *)t.s_scratch; /* [entries of a piece, threads] */
    const int thread = mpk_thread(), lot = thread % LOTS, share = thread / LOTS;
    const mpk_box box = mpk_box_of(t, y.rank);
    /* The box as pieces: along `to` it counts eights of lines, outwards to whole ones. */
    mpk_box pieces = box;
    rt_u32 lo = 0, hi = 0; /* lines of the box along the axis of neighbours */
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == h.to) {
            lo = box.lo[i], hi = box.hi[i];
            pieces.lo[i] = lo / ACROSS_PIECE;
            pieces.hi[i] = (hi + ACROSS_PIECE - 1) / ACROSS_PIECE;
        }
    const rt_u64 n = mpk_count(pieces, y.rank);
#pragma unroll 1
    for (rt_u64 first = 0; first < n; first += LOTS) {
        double r_sum[ACROSS_PIECE];
        rt_i64 at[RT_MAX_RANK];
#pragma unroll
        for (int e = 0; e < ACROSS_PIECE; e++)
            r_sum[e] = reduce_neutral(h.kind);
        /* In the last round some lots have no piece; their threads still come to the barriers. */
        if (first + lot < n) {
            mpk_place(pieces, y.rank, first + lot, at);
#pragma unroll
            for (int i = 0; i < RT_MAX_RANK; i++)
                /* from the number of a piece to that of its first line */
                at[i] *= i == h.to ? ACROSS_PIECE : 1;
            across_add<SHARES>(x, h, g_x + across_line(x, h, at) * 2, (rt_u32)share, r_sum);
        }
#pragma unroll
        for (int e = 0; e < ACROSS_PIECE; e++)
            /* A line at a time: the threads of a warp store neighbouring doubles. */
            s_sum[e * MPK_THREADS + thread] = r_sum[e];
        mpk_sync();
        /* Each thread now finishes whole lines.  o counts those of all pieces of the round, so that
         * neighbouring threads store neighbours of y. */
#pragma unroll 1
        for (int o = thread; o < LOTS * ACROSS_PIECE && first + o / ACROSS_PIECE < n;
             o += MPK_THREADS) {
            const double *s = s_sum + o % ACROSS_PIECE * MPK_THREADS + o / ACROSS_PIECE;
            double result = s[0];
#pragma unroll
            for (int i = 1; i < SHARES; i++)
                result = reduce_pair(h.kind, result, s[i * LOTS]);
            if (h.kind == REDUCE_MEAN)
                /* All entries of x are alive (accepts_across), so the extent is how many were
                 * added. */
                result /= (double)h.n;
            mpk_place(pieces, y.rank, first + o / ACROSS_PIECE, at);
            rt_u32 line = 0;
#pragma unroll
            for (int i = 0; i < RT_MAX_RANK; i++)
                if (i == h.to) {
                    line = (rt_u32)at[i] * ACROSS_PIECE + o % ACROSS_PIECE;
                    at[i] = line;
                }
            /* A piece at an end of the box may have lines of another task. */
            if (line >= lo && line < hi)
                mpk_put_double(y, g_y, mpk_offset(y, at), result);
        }
        /* All have read the sums that the next round overwrites. */
        mpk_sync();
    }
    return true;
}

#endif
