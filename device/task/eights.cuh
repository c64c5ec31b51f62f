/* eights.cuh - eight neighbouring entries of a row, as generic bodies load and store them: 16 bytes
 * of a 16-bit dtype, twice 16 of fp32.
 *
 * Several loads can be in flight before an entry is converted.  Bodies that keep such pieces in
 * registers as floats have pieces.cuh, which needs a GPU's instructions; this file does not.  Used
 * by elementwise.cuh, map.cuh, group_split.cuh, reduce.cuh, rope.cuh and, for their rounds,
 * copies.cuh.
 */
#ifndef TASK_EIGHTS_CUH
#define TASK_EIGHTS_CUH

#include "tile/view.cuh"

enum { EIGHT = 8 };
/* What one instruction loads or stores: 16 bytes, aligned. */
struct alignas(16) eight_quad {
    rt_u32 at[4];
};
/* As it lies in memory; the second quad of fp32 alone.  Not converted, so that a load that is under
 * way holds no more registers than its bytes, and none waits for it. */
struct eight {
    eight_quad at[2];
};

/* Can rows of v be taken by eights: floats of 16 or 32 bits, neighbours along the last axis, whole
 * eights in each row, and rows that begin at multiples of one?  A constant of the instance, which
 * knows nothing of addresses: eight_counts looks at these. */
MPK_FN bool eight_fits(const mpk_view &v)
{
    return (v.dtype == MPK_F32 || v.dtype == MPK_F16 || v.dtype == MPK_BF16) &&
           mpk_has_pieces(v, EIGHT);
}
/* Does a box consist of whole eights along axis `last`, of which an int counts all, and is `start`,
 * the addresses of all operands together, aligned to 16 bytes?  Then the axis counts eights from
 * here on. */
MPK_FN bool eight_counts(mpk_box &box, int last, rt_u64 start)
{
    /* `start` is the or of addresses: one with a low bit set shows in it. */
    bool whole = (start & 15) == 0 && mpk_count(box, last + 1) >> 32 == 0;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == last)
            whole = whole && (box.lo[i] | box.hi[i]) % EIGHT == 0;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == last && whole) {
            box.lo[i] /= EIGHT;
            box.hi[i] /= EIGHT;
        }
    return whole;
}
/* The first entry of an eight: at[last], which counts eights, becomes its number and is returned.
 * A loop, since an array with an index at run time lies on the stack. */
MPK_FN rt_i64 eight_entry(rt_i64 *at, int last)
{
    rt_i64 entry = 0;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == last)
            entry = at[i] *= EIGHT;
    return entry;
}

/* The eight whose first entry is at offset `from` of v, in elements, a multiple of 8; g: v's
 * data. */
MPK_FN eight eight_load(const mpk_view &v, const char *g, rt_i64 from)
{
    const eight_quad *at = (const eight_quad *)(g + from * mpk_dtype_bytes(v.dtype));
    eight e = {};
    e.at[0] = at[0];
    if (v.dtype == MPK_F32)
        e.at[1] = at[1];
    return e;
}
/* The same of what no thread reads again, past L1.  In fp32 the lanes of a warp have every other
 * quad of a line at a time, so that L1 has to keep it for the second load. */
MPK_FN eight eight_load_once(const mpk_view &v, const char *g, rt_i64 from)
{
    eight e = {};
    if (v.dtype == MPK_F32)
        return eight_load(v, g, from);
    ptx_load_once(g + from * mpk_dtype_bytes(v.dtype), e.at[0].at);
    return e;
}
MPK_FN void eight_store(const mpk_view &v, char *g, rt_i64 to, const eight &e)
{
    char *at = g + to * mpk_dtype_bytes(v.dtype);
    ptx_store_quad(at, e.at[0].at);
    if (v.dtype == MPK_F32)
        ptx_store_quad(at + sizeof(eight_quad), e.at[1].at);
}

/* Its entries as floats; and floats, rounded to nearest, as an eight.  Entries of 16 bits are made
 * by twos, an instruction for each word (mpk_pack). */
MPK_FN void eight_floats(int dtype, const eight &e, float (&r)[EIGHT])
{
    /* In fp32 entries 0 to 3 are the first quad, 4 to 7 the second; in 16 bits word k / 2 of the
     * first has two. */
#pragma unroll
    for (int k = 0; k < EIGHT; k += 2) {
        const rt_u32 pair = e.at[0].at[k / 2]; /* of 16 bits each */
        r[k] = dtype == MPK_F32 ? __uint_as_float(e.at[k / 4].at[k % 4]) : mpk_low(dtype, pair);
        if (dtype == MPK_F32)
            r[k + 1] = __uint_as_float(e.at[k / 4].at[k % 4 + 1]);
        else
            r[k + 1] = mpk_high(dtype, pair);
    }
}
MPK_FN eight eight_of(int dtype, const float (&r)[EIGHT])
{
    eight e = {};
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        if (dtype == MPK_F32)
            e.at[k / 4].at[k % 4] = __float_as_uint(r[k]);
        else if (k % 2)
            e.at[0].at[k / 2] = mpk_pack(dtype, r[k - 1], r[k]);
    return e;
}

/* ---- a box of y, eight after eight ---- */

/* Is v row-major without gaps, of y's shape?  Then an entry of y is in v at its number, and no
 * place has to be found by divisions.  The stride of an axis of one entry may be any.  A constant
 * of the instance. */
MPK_FN bool eight_is_dense(const mpk_view &v, const mpk_view &y)
{
    bool dense = v.rank == y.rank;
    rt_i64 step = 1;
#pragma unroll
    for (int i = RT_MAX_RANK - 1; i >= 0; i--)
        if (i < y.rank) {
            dense = dense && v.dims[i] == y.dims[i] && (y.dims[i] == 1 || v.stride[i] == step);
            step *= y.dims[i];
        }
    return dense;
}

/* The eights of a box of y, whose last axis counts eights (eight_counts). */
struct eight_walk {
    mpk_box box;
    int n;         /* eights */
    bool in_order; /* their numbers in y follow each other: axes after the first that the box cuts
                      have their whole extent */
    rt_i64 first;  /* in order: the number of the first entry, in y's row-major order */
};
/* The walk of a box of y, whose last axis counts `unit` entries each: EIGHT, or as many as callers
 * have another word for (copies_lots).  It is in order if the box is a run of y's entries in
 * row-major order: from the last axis on whole axes, then one that is cut, before it single
 * entries. */
MPK_FN eight_walk eight_walk_of(const mpk_view &y, const mpk_box &box, int unit = EIGHT)
{
    eight_walk w = {box, (int)mpk_count(box, y.rank), true, 0};
    bool whole = true; /* all axes after this one */
    rt_i64 step = 1;   /* entries of them */
#pragma unroll
    for (int i = RT_MAX_RANK - 1; i >= 0; i--)
        if (i < y.rank) {
            const rt_i64 each = i == y.rank - 1 ? unit : 1, n = (box.hi[i] - box.lo[i]) * each;
            w.in_order = w.in_order && (whole || n == 1);
            whole = whole && n == y.dims[i];
            w.first += box.lo[i] * each * step;
            step *= y.dims[i];
        }
    return w;
}

/* The place in y of the first entry of item number `item` of a walk.  In order it follows from the
 * number by divisions by y's extents, which are constants. */
template <bool IN_ORDER>
MPK_FN void eight_at(const eight_walk &w, const mpk_view &y, rt_u64 item, int unit, rt_i64 *at)
{
    mpk_box all = w.box;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (IN_ORDER && i < y.rank) {
            all.lo[i] = 0;
            all.hi[i] = (rt_u32)y.dims[i];
        }
    mpk_place(all, y.rank, mpk_number(y, IN_ORDER ? w.first + item * unit : item), at);
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (!IN_ORDER && i == y.rank - 1)
            at[i] *= unit;
}
/* Where an eight of a walk lies: its place, which is not computed where all is dense, since nothing
 * needs it and the compiler drops it, and its number in the walk. */
template <bool IN_ORDER> struct eight_place {
    rt_i64 at[RT_MAX_RANK];
    int item;
};
/* Bytes of so many eights of v.  Unsigned, or the sign would be carried to 64 bits. */
MPK_FN rt_u64 eight_bytes(const mpk_view &v, int n)
{
    return (rt_u64)(rt_u32)n * (rt_u32)(EIGHT * mpk_dtype_bytes(v.dtype));
}
/* Where eights of v are counted from in a walk of y: those that follow each other as y's do from
 * the walk's first, else places from v's own first entry; g: v's data.  Kept (mpk_global_kept), so
 * that an address is this and one product of 32 bits, and not all of the walk's arithmetic for each
 * load. */
template <class POINTER>
MPK_FN POINTER eight_begin(const eight_walk &w, const mpk_view &v, POINTER g, const mpk_view &y)
{
    const bool is_run = w.in_order && eight_is_dense(v, y);
    return mpk_global_kept(g + (is_run ? w.first * mpk_dtype_bytes(v.dtype) : 0));
}
/* What the eight there takes from v, whose last axis is y's; along others it may be broadcast, and
 * is then read again, so L1 keeps it.  g: eight_begin's, which counts by number or by place as this
 * does. */
template <bool IN_ORDER>
MPK_FN eight eight_take(const mpk_view &v, const char *g, const mpk_view &y,
                        const eight_place<IN_ORDER> &p)
{
    if (IN_ORDER && eight_is_dense(v, y))
        return eight_load_once(v, g + eight_bytes(v, p.item), 0);
    return eight_load(v, g, mpk_spread(v, y.rank, p.at));
}

/* Eights of a thread that are under way together: a load takes some 700 cycles, in which 256
 * threads with one each would bring 4 KB.  More would take registers: of two operands in fp32 four
 * slots are 64. */
enum { EIGHT_SLOTS = 4 };

/* Items first, first + step, ... below n, each in one of SLOTS slots while it is under way: first
 * ask(r, item), later put(r, item).
 *
 * A slot's next loads come after its item is put, so that they may have the registers that it has
 * left: nothing moves from register to register.  What is asked for past the end is the last item
 * again: a condition would keep what was there before.  Both lambdas are MPK_INLINED. */
template <int SLOTS, class ASK, class PUT>
MPK_FN void eight_rounds(int first, int step, int n, const ASK &ask, const PUT &put)
{
    const auto ask_at = [&](int r, int item) MPK_INLINED { ask(r, item < n - 1 ? item : n - 1); };
    int i = first;
    if (n <= 0)
        return;
#pragma unroll
    for (int r = 0; r < SLOTS; r++)
        ask_at(r, i + r * step);
#pragma unroll 1
    for (; i + (SLOTS - 1) * step < n; i += SLOTS * step) /* whole rounds */
#pragma unroll
        for (int r = 0; r < SLOTS; r++) {
            put(r, i + r * step);
            ask_at(r, i + (SLOTS + r) * step);
        }
        /* Less than a whole round is left, so the last slot has nothing. */
#pragma unroll
    for (int r = 0; r < SLOTS - 1; r++)
        if (i + r * step < n)
            put(r, i + r * step);
}

/* The thread's eights of a walk:
 *
 *   ask(r, place)    load to slot r what the eight at this eight_place needs
 *   make(r)          the eight of y that follows from it */
template <bool IN_ORDER, int SLOTS, class ASK, class MAKE>
MPK_FN void eight_slots(const eight_walk &w, const mpk_view &y, char *g_y, const ASK &ask,
                        const MAKE &make)
{
    rt_i64 to[SLOTS]; /* of what is under way, where to find it again takes divisions */
    g_y = eight_begin(w, y, g_y, y);
    eight_rounds<SLOTS>(
        mpk_thread(), MPK_THREADS, w.n,
        [&](int r, int item) MPK_INLINED {
            eight_place<IN_ORDER> place = {{}, item};
            eight_at<IN_ORDER>(w, y, (rt_u32)item, EIGHT, place.at);
            to[r] = mpk_offset(y, place.at);
            ask(r, place);
        },
        [&](int r, int item) MPK_INLINED {
            /* y against itself: are its strides row-major?  Then `to` is unused, and not kept. */
            const bool is_run = IN_ORDER && eight_is_dense(y, y);
            char *g = g_y + (is_run ? eight_bytes(y, item) : to[r] * mpk_dtype_bytes(y.dtype));
            eight_store(y, g, 0, make(r));
        });
}
template <int SLOTS, class ASK, class MAKE>
MPK_FN void eight_each(const eight_walk &w, const mpk_view &y, char *g_y, const ASK &ask,
                       const MAKE &make)
{
    constexpr int FEW = SLOTS == 1 ? 1 : 2; /* for seldom boxes: less code */
    if (w.in_order)
        eight_slots<true, SLOTS>(w, y, g_y, ask, make);
    else
        eight_slots<false, FEW>(w, y, g_y, ask, make);
}

/* Entry k, 0 to 7, a constant after the caller's loop is unrolled, as a float: for bodies that need
 * one entry of several eights at a time and have no registers for all as floats. */
MPK_FN float eight_get(int dtype, const eight &e, int k)
{
    if (dtype == MPK_F32)
        return __uint_as_float(e.at[k / 4].at[k % 4]);
    const rt_u32 pair = e.at[0].at[k / 2];
    return k % 2 ? mpk_high(dtype, pair) : mpk_low(dtype, pair);
}

#endif
