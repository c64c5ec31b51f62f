/* sum_rows.cuh - add_parts of bf16 by rows: 8 columns of all parts at a time, added in fp32 in the
 * order of the parts.
 *
 * Input: N tensors [T, columns], the parts of the peers and perhaps a residual after them; output:
 * their sum.  Parts are carried to where they are added, sent there (docs/gpus.md), or lie in other
 * GPUs' memory.  The order of a sum is that of the operands, so every GPU that adds the same parts
 * gets the same bits.  A thread requests all parts of its piece, 8 columns, before it waits for one
 * or adds any, so that a sum takes one trip to L2, or over the link.
 *
 * With many tokens parts are there when the task begins, and a thread has many pieces: it takes
 * them in batches, and requests one before it adds the one before, so that memory is never idle.
 * No scratch and no barriers but those of waiting and triggering: src/gen/body_sum_rows.c has the
 * records.  Cost: the bytes of the parts.
 */
#ifndef TASK_SUM_ROWS_CUH
#define TASK_SUM_ROWS_CUH

#include "tile/worker.cuh"

/* The sum of one word of each part, two elements: in fp32, in the order of the parts, rounded
 * once. */
template <int N> MPK_FN rt_u32 sum_word(const rt_u32 *words)
{
    float low = ptx_low_bf16(words[0]), high = ptx_high_bf16(words[0]); /* part 0's */
#pragma unroll
    for (int k = 1; k < N; k++) {
        low += ptx_low_bf16(words[k]);
        high += ptx_high_bf16(words[k]);
    }
    return ptx_pack_bf16(low, high);
}

/* The 8 columns at `at`, an offset in elements, of each part: all loads are issued, then each part
 * is loaded again until none of its words is empty.  Words of one part may arrive one by one; those
 * that have are loaded again with the rest. */
template <int N> MPK_FN void sum_bring(const mpk_task &t, rt_u64 at, mpk_words *v)
{
#pragma unroll
    for (int k = 0; k < N; k++)
        v[k] = mpk_load_terms(mpk_at<const rt_u16>(t, k) + at);
#pragma unroll
    for (int k = 0; k < N; k++)
        /* The first round has usually brought all.  Where a part is not carried mpk_wait has seen
         * to it. */
        if (mpk_carries(t, k))
            while (mpk_is_empty(v[k]) && !ptx_load_flag(&mpk_w.abort))
                v[k] = mpk_load_terms(mpk_at<const rt_u16>(t, k) + at);
}

/* Add and store 8 columns.  Words are turned into arrays by place, x of all parts and so on, so
 * that all indices are constants and the parts stay in registers. */
template <int N> MPK_FN void sum_store(const mpk_task &t, rt_u64 at, const mpk_words *v)
{
    mpk_words sum;
    rt_u32 x[N], y[N], z[N], w[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        x[k] = v[k].x;
        y[k] = v[k].y;
        z[k] = v[k].z;
        w[k] = v[k].w;
    }
    sum.x = sum_word<N>(x);
    sum.y = sum_word<N>(y);
    sum.z = sum_word<N>(z);
    sum.w = sum_word<N>(w);
    /* A NaN becomes 0x7fff in either half, so no word that readers poll is RT_EMPTY. */
    ptx_store_words(mpk_at<rt_u16>(t, N) + at, sum);
}

/* Where piece i of a task's box begins, in elements, `pieces` to a row.  Threads take neighbouring
 * pieces, and so whole lines of memory. */
MPK_FN rt_u64 sum_place(const mpk_task &t, rt_u32 columns, rt_u32 pieces, rt_u32 i)
{
    return (rt_u64)(mpk_lo(t, 0) + i / pieces) * columns + mpk_lo(t, 1) + i % pieces * 8;
}

/* Pieces of a thread, MPK_THREADS apart: as many as two batches of all parts have registers.  A
 * piece of a part takes four of them, so a batch has up to 48 for six parts, and two are held at a
 * time. */
template <int N> struct sum_batch {
    enum { PIECES = N <= 3 ? 4 : N <= 6 ? 2 : 1, STEP = PIECES * MPK_THREADS };
    mpk_words v[PIECES][N];
};

/* Request a batch from element `at` on; nothing waits for it. */
template <int N> MPK_FN void sum_ask(const mpk_task &t, rt_u64 at, sum_batch<N> *b)
{
#pragma unroll
    for (int a = 0; a < sum_batch<N>::PIECES; a++)
#pragma unroll
        for (int k = 0; k < N; k++)
            b->v[a][k] = mpk_load_terms(mpk_at<const rt_u16>(t, k) + at + a * MPK_THREADS * 8);
}

/* Add and store the batch that sum_ask has requested from the same place. */
template <int N> MPK_FN void sum_put(const mpk_task &t, rt_u64 at, const sum_batch<N> &b)
{
#pragma unroll
    for (int a = 0; a < sum_batch<N>::PIECES; a++)
        sum_store<N>(t, at + a * MPK_THREADS * 8, b.v[a]);
}

/* Whole rows of parts that are all there are one range of pieces.  All whole batches of it, each
 * requested before the one before is added.  at: of the thread's first piece, whose number is i, of
 * n.  Returns the number of the first piece after them. */
template <int N> MPK_FN rt_u32 sum_batches(const mpk_task &t, rt_u64 at, rt_u32 i, rt_u32 n)
{
    const rt_u32 step = sum_batch<N>::STEP, last = step - MPK_THREADS; /* piece of a batch */
    sum_batch<N> a, b;                                                 /* in turn */
    if (i + last >= n)
        return i;
    /* Invariant of the loop: a is under way for the pieces from i on, b is free.  The two change
     * places in each round without a move, since both halves of the round are written out. */
    sum_ask<N>(t, at, &a);
#pragma unroll 1
    for (; i + step + last < n; i += 2 * step, at += 2 * step * 8) {
        sum_ask<N>(t, at + step * 8, &b);
        sum_put<N>(t, at, a);
        if (i + 2 * step + last >= n) {
            sum_put<N>(t, at + step * 8, b);
            return i + 2 * step;
        }
        sum_ask<N>(t, at + 2 * step * 8, &a);
        sum_put<N>(t, at + step * 8, b);
    }
    sum_put<N>(t, at, a);
    return i + step;
}

/* The rest of the range, less than a batch: pieces beyond the end are read as the first one, which
 * exists, so that no load has a condition and all are under way together. */
template <int N> MPK_FN void sum_rest(const mpk_task &t, rt_u64 at, rt_u32 i, rt_u32 n)
{
    mpk_words v[sum_batch<N>::PIECES][N];
#pragma unroll
    for (int a = 0; a < sum_batch<N>::PIECES; a++) {
        const rt_u32 further = i + a * MPK_THREADS < n ? a * MPK_THREADS * 8 : 0;
#pragma unroll
        for (int k = 0; k < N; k++)
            v[a][k] = mpk_load_terms(mpk_at<const rt_u16>(t, k) + at + further);
    }
#pragma unroll
    for (int a = 0; a < sum_batch<N>::PIECES; a++)
        if (i + a * MPK_THREADS < n)
            sum_store<N>(t, at + a * MPK_THREADS * 8, v[a]);
}

/* n pieces, one after the other from element `at` on.  A thread has numbers i, i + MPK_THREADS,
 * ...; some threads may have one more than others. */
template <int N> MPK_FN void sum_range(const mpk_task &t, rt_u64 at, rt_u32 n)
{
    const rt_u32 i = (rt_u32)mpk_thread(), next = sum_batches<N>(t, at + i * 8, i, n);
    if (next < n)
        sum_rest<N>(t, at + next * 8, next, n);
}

/* The body of add_parts; it waits and triggers itself.  N parts, inputs 0 to N - 1, of rows of
 * `columns`, a multiple of 8 as the bounds of all boxes; the result is operand N.  MANY: of more
 * than a few tokens, a constant, so that few tokens have no code for batches. */
template <int N, bool MANY> MPK_FN void sum_rows(const mpk_task &t, rt_u32 columns)
{
    mpk_wait(t);
    const rt_u32 pieces = (mpk_hi(t, 1) - mpk_lo(t, 1)) / 8;
    const rt_u32 n = (mpk_end(t) - mpk_lo(t, 0)) * pieces; /* pieces of the box */
    /* What is polled has no batches: a thread that waits for one piece could not store those that
     * are there.  Only whole rows follow each other without gaps. */
    if (MANY && !t.e->carried && pieces * 8 == columns)
        sum_range<N>(t, (rt_u64)mpk_lo(t, 0) * columns, n);
    else
#pragma unroll 1
        for (rt_u32 i = (rt_u32)mpk_thread(); i < n; i += MPK_THREADS) {
            const rt_u64 at = sum_place(t, columns, pieces, i);
            mpk_words v[N];
            sum_bring<N>(t, at, v);
            sum_store<N>(t, at, v);
        }
    mpk_trigger(t);
}

#endif
