/* eights.cuh - eight neighbouring entries of a row, as generic bodies load and store them: 16 bytes
 * of a 16-bit dtype, twice 16 of fp32.
 *
 * Several loads can be in flight before an entry is converted.  Bodies that keep such pieces in
 * registers as floats have pieces.cuh, which needs a GPU's instructions; this file does not.  Used
 * by elementwise.cuh, map.cuh and rope.cuh.
 */
#ifndef TASK_EIGHTS_CUH
#define TASK_EIGHTS_CUH

#include "tile/view.cuh"

enum { EIGHT = 8 };
/* What one instruction loads or stores. */
struct alignas(16) eight_quad {
    rt_u32 at[4];
};
/* As it lies in memory; the second quad of fp32 alone. */
struct eight {
    eight_quad at[2];
};

/* Can rows of v be taken by eights: floats of 16 or 32 bits, neighbours along the last axis, whole
 * eights in each row, and rows that begin at multiples of one?  A constant of the instance. */
MPK_FN bool eight_fits(const mpk_view &v)
{
    return (v.dtype == MPK_F32 || v.dtype == MPK_F16 || v.dtype == MPK_BF16) &&
           mpk_has_pieces(v, EIGHT);
}
/* Does a box consist of whole eights along axis `last`, and is `start`, the addresses of all
 * operands together, aligned to 16 bytes?  Then the axis counts eights from here on. */
MPK_FN bool eight_counts(mpk_box &box, int last, rt_u64 start)
{
    bool whole = (start & 15) == 0;
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

/* The eight whose first entry is at offset `from` of v, in elements; g: v's data. */
MPK_FN eight eight_load(const mpk_view &v, const char *g, rt_i64 from)
{
    const eight_quad *at = (const eight_quad *)(g + from * mpk_dtype_bytes(v.dtype));
    eight e = {};
    e.at[0] = at[0];
    if (v.dtype == MPK_F32)
        e.at[1] = at[1];
    return e;
}
MPK_FN void eight_store(const mpk_view &v, char *g, rt_i64 to, const eight &e)
{
    eight_quad *at = (eight_quad *)(g + to * mpk_dtype_bytes(v.dtype));
    at[0] = e.at[0];
    if (v.dtype == MPK_F32)
        at[1] = e.at[1];
}

/* ---- a box of y, eight after eight ---- */

/* Do the operand's entries lie in memory as y's?  A constant of the instance. */
MPK_FN bool eight_lies_as(const mpk_view &v, const mpk_view &y)
{
    bool same = v.rank == y.rank;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i < y.rank)
            same = same && v.dims[i] == y.dims[i] && (y.dims[i] == 1 || v.stride[i] == y.stride[i]);
    return same;
}
/* Is y row-major without gaps?  A constant of the instance. */
MPK_FN bool eight_is_dense(const mpk_view &y)
{
    bool dense = true;
    rt_i64 step = 1;
#pragma unroll
    for (int i = RT_MAX_RANK - 1; i >= 0; i--)
        if (i < y.rank) {
            dense = dense && (y.dims[i] == 1 || y.stride[i] == step);
            step *= y.dims[i];
        }
    return dense;
}

/* The eights of a box of y, whose last axis counts eights (eight_counts). */
struct eight_walk {
    mpk_box box;
    rt_u64 n;     /* eights */
    bool is_run;  /* they lie in memory one after the other */
    rt_i64 first; /* of a run: the first entry's offset */
};
MPK_FN eight_walk eight_walk_of(const mpk_view &y, const mpk_box &box)
{
    eight_walk w = {box, mpk_count(box, y.rank), eight_is_dense(y), 0};
    bool whole = true; /* all axes after this one */
#pragma unroll
    for (int i = RT_MAX_RANK - 1; i >= 0; i--)
        if (i < y.rank) {
            const rt_i64 unit = i == y.rank - 1 ? EIGHT : 1, n = (box.hi[i] - box.lo[i]) * unit;
            w.is_run = w.is_run && (whole || n == 1);
            whole = whole && n == y.dims[i];
            w.first += box.lo[i] * unit * y.stride[i];
        }
    return w;
}

/* at[]: the first entry of eight number `item`; returns its offset in y.  In a run it follows from
 * the offset by divisions by y's extents, which are constants; what is not used is not computed. */
MPK_FN rt_i64 eight_find(const eight_walk &w, const mpk_view &y, rt_u64 item, rt_i64 *at)
{
    if (!w.is_run) {
        mpk_place(w.box, y.rank, mpk_number(y, item), at);
        eight_entry(at, y.rank - 1);
        return mpk_offset(y, at);
    }
    const rt_i64 to = w.first + (rt_i64)(item * EIGHT);
    mpk_box all = {};
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i < y.rank)
            all.hi[i] = (rt_u32)y.dims[i];
    mpk_place(all, y.rank, mpk_number(y, (rt_u64)to), at);
    return to;
}
/* The offset of what that eight takes from v, which may be broadcast. */
MPK_FN rt_i64 eight_from(const eight_walk &w, const mpk_view &v, const mpk_view &y, rt_i64 to,
                         const rt_i64 *at)
{
    return w.is_run && eight_lies_as(v, y) ? to : mpk_spread(v, y.rank, at);
}

/* Eights of a thread whose loads are in flight together: a load takes some 700 cycles, in which 256
 * threads with one each would bring 4 KB. */
enum { EIGHT_ROUNDS = 4 };

/* Entry k, 0 to 7, a constant after the caller's loop is unrolled. */
MPK_FN float eight_get(int dtype, const eight &e, int k)
{
    if (dtype == MPK_F32)
        return __uint_as_float(e.at[k / 4].at[k % 4]);
    const rt_u16 bits = (rt_u16)(e.at[0].at[k / 2] >> k % 2 * 16);
    return mpk_get(mpk_view{0, dtype}, (const char *)&bits, 0);
}
/* The entry was 0 before. */
MPK_FN void eight_put(int dtype, eight &e, int k, float x)
{
    if (dtype == MPK_F32) {
        e.at[k / 4].at[k % 4] = __float_as_uint(x);
        return;
    }
    rt_u16 bits;
    mpk_put(mpk_view{0, dtype}, (char *)&bits, 0, x);
    e.at[0].at[k / 2] |= (rt_u32)bits << k % 2 * 16;
}

#endif
