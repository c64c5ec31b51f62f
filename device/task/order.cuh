/* order.cuh - entries put in order: ranks of values, a sorting network, and lists in scratch that
 * are sorted by it.
 *
 * An entry has a rank, which rises in the order that is requested, and a number that no other has;
 * entries of equal rank stand by their numbers, so there is one order, and it is the stable one.
 *
 * The network is a bitonic one whose pairs all settle alike, the lesser entry to the lower place:
 * the second of two blocks is met from its end, instead of being sorted the other way round.  So n
 * may be any number: a pair whose upper entry does not exist is in order.  Entries are whatever
 * order_settle knows.  Cost: n log^2 n / 4 pairs; the pairs of a round are settled at once.
 */
#ifndef TASK_ORDER_CUH
#define TASK_ORDER_CUH

#include "tile/view.cuh"

/* How many bits the ranks of a dtype have; digits of a rank are taken from the highest of these. */
MPK_FN int order_bits(int dtype)
{
    if (dtype == MPK_F64 || dtype == MPK_I64)
        return 64;
    return mpk_is_exact(dtype) ? 8 * mpk_dtype_bytes(dtype) : 32;
}
/* The highest rank of a dtype: of floats that of NaN alone. */
MPK_FN rt_u64 order_last(int dtype)
{
    return ~(rt_u64)0 >> (64 - order_bits(dtype));
}

/* The rank of an element in rising order; NaN is the largest, -0 equals 0. */
MPK_FN rt_u64 order_rising(const mpk_view &x, const char *g_x, rt_i64 at)
{
    if (x.dtype == MPK_F64) {
        rt_u64 u = ((const rt_u64 *)g_x)[at], rest = u << 1;
        if (rest > 0xffe0000000000000ull)
            return ~(rt_u64)0;
        return u >> 63 && rest ? ~u : rest >> 1 | (rt_u64)1 << 63;
    }
    if (mpk_is_exact(x.dtype)) {
        bool has_sign = x.dtype != MPK_BOOL && x.dtype != MPK_U8;
        rt_u64 least = has_sign ? (rt_u64)1 << (order_bits(x.dtype) - 1) : 0;
        return ((rt_u64)mpk_get_int(x, g_x, at) + least) & order_last(x.dtype);
    }
    rt_u32 key = mpk_key(mpk_get(x, g_x, at));
    return key ? key : 0xffffffffu;
}
/* The rank of an element in rising or falling order. */
MPK_FN rt_u64 order_rank(const mpk_view &x, const char *g_x, rt_i64 at, bool falling)
{
    rt_u64 rank = order_rising(x, g_x, at);
    return falling ? rank ^ order_last(x.dtype) : rank;
}

/* ---- the network ---- */

/* The pairs of one round: in blocks of twice `step`, entries that are `step` apart, or mirrored:
 * the first with the last, the second with the last but one ...  Called by all threads; when it
 * returns, all pairs are settled. */
template <typename entries>
MPK_FN void order_round(const mpk_task &t, const entries &e, rt_i64 n, rt_i64 step, bool mirrored)
{
    for (rt_i64 pair = mpk_thread();; pair += MPK_THREADS) {
        rt_i64 a = (pair & -step) * 2 + (pair & (step - 1)),
               b = mirrored ? a ^ (2 * step - 1) : a + step;
        if (a >= n)
            break;
        /* an upper entry that does not exist counts as greater: the pair is in order */
        if (b < n)
            order_settle(e, a, b);
    }
    mpk_sync();
}

/* The rounds of a block that are left once entries more than `step` apart are settled; step: a
 * power of 2, or 0. */
template <typename entries>
MPK_FN void order_finish(const mpk_task &t, const entries &e, rt_i64 n, rt_i64 step)
{
    for (; step > 0; step /= 2)
        order_round(t, e, n, step, false);
}

/* Sort each block of `block` entries, a power of 2, of n.  Blocks of 1, 2, 4 ... entries are in
 * order, and two of them become one by a mirrored round and then rounds of half the step each. */
template <typename entries>
MPK_FN void order_sort(const mpk_task &t, const entries &e, rt_i64 n, rt_i64 block)
{
    for (rt_i64 width = 2; width <= block && width < 2 * n; width *= 2) {
        order_round(t, e, n, width / 2, true);
        order_finish(t, e, n, width / 4);
    }
}

/* ---- lists in scratch ---- */

enum { ORDER_ENTRY_BYTES = 12 };

/* Ranks and numbers of up to `most` entries. */
struct order_list {
    rt_u64 *s_rank;   /* equal ranks stand by number */
    rt_u32 *s_number; /* no two are equal */
};

/* The list of `most` entries that begins at byte `at` of scratch, a multiple of 8. */
MPK_FN order_list order_list_at(const mpk_task &t, int at, int most)
{
    order_list l = {(rt_u64 *)(t.s_scratch + at), (rt_u32 *)(t.s_scratch + at + most * 8)};
    return l;
}
/* Entry i of a list becomes this one. */
MPK_FN void order_put(const order_list &l, rt_i64 i, rt_u64 rank, rt_u32 number)
{
    l.s_rank[i] = rank;
    l.s_number[i] = number;
}
/* The pair in order of rank, then of number; no two numbers are equal, so the order is strict. */
MPK_FN void order_settle(const order_list &l, rt_i64 a, rt_i64 b)
{
    rt_u64 rank_a = l.s_rank[a], rank_b = l.s_rank[b];
    rt_u32 number_a = l.s_number[a], number_b = l.s_number[b];
    if (rank_b < rank_a || (rank_b == rank_a && number_b < number_a)) {
        order_put(l, a, rank_b, number_b);
        order_put(l, b, rank_a, number_a);
    }
}
/* Of a sorted list: i is the first, or the last, entry of its rank. */
MPK_FN bool order_is_first(const order_list &l, rt_i64 i)
{
    return i == 0 || l.s_rank[i - 1] != l.s_rank[i];
}
MPK_FN bool order_is_last(const order_list &l, rt_i64 i, rt_i64 n)
{
    return i + 1 == n || l.s_rank[i + 1] != l.s_rank[i];
}

#endif
