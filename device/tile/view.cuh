/* view.cuh - operands as generic bodies see them: any dtype, shape and strides; boxes;
 * reductions in a fixed order.
 *
 * Used by the bodies of rank 0 (gen/device_body.h), on the GPU and, emulated, on the host.  A
 * view is a constant of the instance, so after inlining nothing of its switches and loops is
 * left.  Sums add the same numbers in the same order in every run, whatever the box: first each
 * thread on its own, entries thread, thread + group, ... of the axis, then the threads of a
 * group in rising order.
 *
 *   views       mpk_view, mpk_data, mpk_live
 *   numbers     conversions, mpk_get..., mpk_put...
 *   boxes       mpk_box_of, mpk_number, mpk_place, mpk_offset, mpk_spread, mpk_row,
 *               mpk_has_pieces
 *   groups      mpk_group, mpk_sum, mpk_max, mpk_largest
 */
#ifndef TILE_VIEW_CUH
#define TILE_VIEW_CUH

#include "tile/task.cuh"
#ifdef __CUDA_ARCH__
#include "ptx/half.cuh"
#endif

/* The numbers of ir_dtype; between bool and u8 are block formats, which no body reads. */
enum {
    MPK_F32,
    MPK_F16,
    MPK_BF16,
    MPK_F64,
    MPK_I32,
    MPK_I64,
    MPK_BOOL,
    MPK_U8 = 17,
    MPK_I8,
    MPK_I16
};

/* An operand as the graph has it: what is the same for all tasks.  Its address is the task's. */
struct mpk_view {
    /* operand: index into rt_entry.at, -1 if absent.  dtype: MPK_F32 ...  live: RT_ALL,
     * RT_TOKENS or RT_ROWS, what axis 0 counts. */
    int operand, dtype, live, rank;
    /* strides in elements: 0 for an axis that is broadcast, negative for one that is flipped */
    rt_i64 dims[RT_MAX_RANK], stride[RT_MAX_RANK];
};

/* A number for each axis: an attribute. */
struct mpk_numbers {
    rt_i64 at[RT_MAX_RANK]; /* by axis */
};

/* The part of output 0 that is computed: lo <= i < hi on each axis. */
struct mpk_box {
    rt_u32 lo[RT_MAX_RANK], hi[RT_MAX_RANK]; /* axis 0 clipped to what is alive */
};

#define MPK_INFINITY __uint_as_float(0x7f800000u)
#define MPK_NAN __uint_as_float(0x7fc00000u)

MPK_FN bool mpk_is_there(const mpk_view &v)
{
    return v.operand >= 0;
}
/* NULL for an operand that is absent. */
MPK_FN char *mpk_data(const mpk_task &t, const mpk_view &v)
{
    return v.operand < 0 ? (char *)0 : mpk_at<char>(t, v.operand);
}
/* Entries of axis 0 that are alive. */
MPK_FN rt_i64 mpk_live(const mpk_task &t, const mpk_view &v)
{
    rt_i64 n = v.live == RT_ALL ? v.dims[0] : (rt_i64)t.live[v.live]; /* may exceed the tensor */
    return n < v.dims[0] ? n : v.dims[0];
}

/* ---- numbers: rounding to nearest, ties to even, as src/base/num.h but for the bits of NaN
 * ---- */

MPK_FN float mpk_from_bf16(rt_u16 h)
{
    return __uint_as_float((rt_u32)h << 16);
}
#ifdef __CUDA_ARCH__
MPK_FN float mpk_from_f16(rt_u16 h)
{
    return ptx_from_f16(h);
}
MPK_FN rt_u16 mpk_to_f16(float x)
{
    return ptx_to_f16(x);
}
MPK_FN rt_u16 mpk_to_bf16(float x)
{
    return ptx_to_bf16(x);
}
#else /* emulated */
/* NaN keeps its payload; subnormals are an integer times 2^-24, which is exact. */
MPK_FN float mpk_from_f16(rt_u16 h)
{
    rt_u32 sign = (rt_u32)(h & 0x8000) << 16, rest = h & 0x7fffu; /* exponent and fraction */
    if (rest >= 0x7c00)                                           /* infinity or NaN */
        return __uint_as_float(sign | 0x7f800000u | rest << 13);
    if (rest >= 0x0400) /* a normal number */
        /* 112 = 127 - 15, the difference of the exponents' biases */
        return __uint_as_float(sign | ((rest << 13) + (112u << 23)));
    /* 2^-24 */
    return __uint_as_float(sign | __float_as_uint((float)rest * 5.9604644775390625e-8f));
}
/* Below the smallest normal, adding 0.5 lets the unit round: the low bits of the sum are the
 * result.  Above, half of the last kept place less one is added, and one more if that place is
 * odd. */
MPK_FN rt_u16 mpk_to_f16(float x)
{
    rt_u32 u = __float_as_uint(x), sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;
    if (rest > 0x7f800000) /* NaN */
        return (rt_u16)(sign | 0x7e00);
    /* 65,520 and above rounds to infinity: half a place above the largest f16, 65,504 */
    if (rest >= 0x477ff000)
        return (rt_u16)(sign | 0x7c00);
    /* below 2^-14, the smallest normal f16 */
    if (rest < 0x38800000)
        return (rt_u16)(sign | (__float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3f000000));
    rt_u32 rounded = rest + 0xfff + ((rest >> 13) & 1) - (112u << 23);
    return (rt_u16)(sign | rounded >> 13);
}
/* A NaN whose payload lies in the lost bits would become infinity: a bit is set. */
MPK_FN rt_u16 mpk_to_bf16(float x)
{
    rt_u32 u = __float_as_uint(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (rt_u16)(u >> 16 | 0x40);
    return (rt_u16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
#endif

/* Two entries of 16 bits in a word, `low` in the low half, and the entries of a word as floats.
 * Both at once take half of the instructions. */
MPK_FN rt_u32 mpk_pack(int dtype, float low, float high)
{
#ifdef __CUDA_ARCH__
    return dtype == MPK_BF16 ? ptx_pack_bf16(low, high) : ptx_pack_f16(low, high);
#else
    return dtype == MPK_BF16 ? mpk_to_bf16(low) | (rt_u32)mpk_to_bf16(high) << 16
                             : mpk_to_f16(low) | (rt_u32)mpk_to_f16(high) << 16;
#endif
}
MPK_FN float mpk_low(int dtype, rt_u32 pair)
{
    return dtype == MPK_BF16 ? mpk_from_bf16((rt_u16)pair) : mpk_from_f16((rt_u16)pair);
}
MPK_FN float mpk_high(int dtype, rt_u32 pair)
{
#ifdef __CUDA_ARCH__
    return dtype == MPK_BF16 ? ptx_high_bf16(pair) : ptx_high_f16(pair);
#else
    return mpk_low(dtype, pair >> 16);
#endif
}

/* x as it comes back after it was stored in a tensor of this float dtype. */
MPK_FN float mpk_round(int dtype, float x)
{
    if (dtype == MPK_F16)
        return mpk_from_f16(mpk_to_f16(x));
    /* the high half of a word with 0 below is the float */
    return dtype == MPK_BF16 ? __uint_as_float(mpk_pack(dtype, 0, x)) : x;
}

/* Towards zero, held at the ends of the range of 64 bits; NaN is 0.  A cast alone is undefined
 * outside the range, and GPU and host would differ there. */
MPK_FN rt_i64 mpk_truncate(double x)
{
    if (!(x == x)) /* NaN */
        return 0;
    if (x >= 9223372036854775808.0)
        return 0x7fffffffffffffffll;
    return x < -9223372036854775808.0 ? -0x7fffffffffffffffll - 1 : (rt_i64)x;
}

/* Integers and bool, which have a value without rounding; the enum has them in one run. */
MPK_FN bool mpk_is_exact(int dtype)
{
    return dtype >= MPK_I32 && dtype <= MPK_I16;
}
/* Plain dtypes only: no body of this file reads blocks. */
MPK_FN int mpk_dtype_bytes(int dtype)
{
    switch (dtype) {
    case MPK_F64:
    case MPK_I64:
        return 8;
    case MPK_F32:
    case MPK_I32:
        return 4;
    case MPK_F16:
    case MPK_BF16:
    case MPK_I16:
        return 2;
    default:
        return 1;
    }
}

/* Element `at`, an offset in elements from `data`, of an integer or bool. */
MPK_FN rt_i64 mpk_get_int(const mpk_view &v, const char *data, rt_i64 at)
{
    switch (v.dtype) {
    case MPK_I32:
        return ((const rt_i32 *)data)[at];
    case MPK_I64:
        return ((const rt_i64 *)data)[at];
    case MPK_I16:
        return ((const short *)data)[at];
    case MPK_I8:
        return ((const signed char *)data)[at];
    case MPK_U8:
        return ((const unsigned char *)data)[at];
    default:
        return data[at] != 0;
    }
}
/* Element `at` of any dtype, as float: f64 and integers are rounded. */
MPK_FN float mpk_get(const mpk_view &v, const char *data, rt_i64 at)
{
    switch (v.dtype) {
    case MPK_F32:
        return ((const float *)data)[at];
    case MPK_F16:
        return mpk_from_f16(((const rt_u16 *)data)[at]);
    case MPK_BF16:
        return mpk_from_bf16(((const rt_u16 *)data)[at]);
    case MPK_F64:
        return (float)((const double *)data)[at];
    default:
        return (float)mpk_get_int(v, data, at);
    }
}
/* Element `at` of any dtype, as double: only i64 is rounded. */
MPK_FN double mpk_get_double(const mpk_view &v, const char *data, rt_i64 at)
{
    if (v.dtype == MPK_F64)
        return ((const double *)data)[at];
    return mpk_is_exact(v.dtype) ? (double)mpk_get_int(v, data, at) : (double)mpk_get(v, data, at);
}

/* Store an integer as any dtype: rounded to a float, or its low bits as an integer; bool: is it
 * not zero. */
MPK_FN void mpk_put_int(const mpk_view &v, char *data, rt_i64 at, rt_i64 x)
{
    switch (v.dtype) {
    case MPK_I64:
        ((rt_i64 *)data)[at] = x;
        break;
    case MPK_I32:
        ((rt_u32 *)data)[at] = (rt_u32)(rt_u64)x;
        break;
    case MPK_I16:
        ((rt_u16 *)data)[at] = (rt_u16)(rt_u64)x;
        break;
    case MPK_BOOL:
        data[at] = x != 0;
        break;
    case MPK_I8:
    case MPK_U8:
        data[at] = (char)(unsigned char)(rt_u64)x;
        break;
    case MPK_F64:
        ((double *)data)[at] = (double)x;
        break;
    case MPK_F32:
        ((float *)data)[at] = (float)x;
        break;
    case MPK_F16:
        ((rt_u16 *)data)[at] = mpk_to_f16((float)x);
        break;
    default:
        ((rt_u16 *)data)[at] = mpk_to_bf16((float)x);
        break;
    }
}

/* Store a number as any dtype, rounded once; as an integer: towards zero, held at the ends of
 * its range. */
MPK_FN void mpk_put_double(const mpk_view &v, char *data, rt_i64 at, double x)
{
    rt_i64 i = mpk_truncate(x); /* unused by floats; the compiler drops it */
    switch (v.dtype) {
    case MPK_F32:
        ((float *)data)[at] = (float)x;
        break;
    case MPK_F16:
        ((rt_u16 *)data)[at] = mpk_to_f16((float)x);
        break;
    case MPK_BF16:
        ((rt_u16 *)data)[at] = mpk_to_bf16((float)x);
        break;
    case MPK_F64:
        ((double *)data)[at] = x;
        break;
    case MPK_BOOL:
        data[at] = x != 0;
        break;
    case MPK_I64:
        mpk_put_int(v, data, at, i);
        break;
    default: {
        /* numbers below `end`, from -end or, of u8, from 0 on */
        const rt_i64 end = 1ll << (8 * mpk_dtype_bytes(v.dtype) - (v.dtype != MPK_U8));
        const rt_i64 least = v.dtype == MPK_U8 ? 0 : -end; /* the first number in range */
        if (i < least)
            i = least;
        mpk_put_int(v, data, at, i < end ? i : end - 1);
        break;
    }
    }
}
/* The same of a float; f32 needs no conversion, and is what most results are. */
MPK_FN void mpk_put(const mpk_view &v, char *data, rt_i64 at, float x)
{
    /* the usual dtype without the detour over double */
    if (v.dtype == MPK_F32)
        ((float *)data)[at] = x;
    else
        mpk_put_double(v, data, at, (double)x);
}

/* ---- boxes ---- */

/* The task's box, axis 0 clipped to the live entries (mpk_hi).  Axes beyond the rank have one
 * entry, so that loops over all axes need no test. */
MPK_FN mpk_box mpk_box_of(const mpk_task &t, int rank)
{
    mpk_box b;
    /* All loops over axes run to the constant RT_MAX_RANK and test inside: unrolled, their
     * arrays stay in registers. */
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++) {
        b.lo[i] = i < rank ? mpk_lo(t, i) : 0;
        b.hi[i] = i < rank ? mpk_hi(t, i) : 1;
    }
    return b;
}

/* The box with two axes in each other's place: as the input of a transpose sees it. */
MPK_FN mpk_box mpk_swapped(mpk_box b, int one, int other)
{
    const rt_u32 lo = b.lo[one], hi = b.hi[one];
    b.lo[one] = b.lo[other];
    b.hi[one] = b.hi[other];
    b.lo[other] = lo;
    b.hi[other] = hi;
    return b;
}

/* Entries of a box; 0 if it is empty on any axis. */
MPK_FN rt_u64 mpk_count(const mpk_box &b, int rank)
{
    rt_u64 n = 1;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i < rank)
            n *= b.hi[i] > b.lo[i] ? b.hi[i] - b.lo[i] : 0;
    return n;
}

/* a / b.  A 64-bit division is some hundred instructions, a 32-bit one some twenty; nearly all
 * numbers fit 32 bits. */
MPK_FN rt_u64 mpk_divide(rt_u64 a, rt_u32 b)
{
    return a >> 32 ? a / b : (rt_u32)a / b;
}

/* Are there fewer than 2^32 entries?  A constant of the instance, so that numbers of entries which
 * are cut to 32 bits need no code for more. */
MPK_FN bool mpk_is_small(const mpk_view &v)
{
    double n = 1;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i < v.rank)
            n *= (double)v.dims[i];
    return n < 4294967296.0;
}

/* The number of an entry of v, cut to 32 bits where v has no more. */
MPK_FN rt_u64 mpk_number(const mpk_view &v, rt_u64 i)
{
    return mpk_is_small(v) ? (rt_u32)i : i;
}

/* at[]: entry number i of a box that is not empty, the last axis fastest.  Threads take
 * neighbouring numbers, so they touch neighbouring elements. */
MPK_FN void mpk_place(const mpk_box &b, int rank, rt_u64 i, rt_i64 *at)
{
#pragma unroll
    for (int axis = RT_MAX_RANK - 1; axis >= 0; axis--) {
        at[axis] = 0;
        if (axis >= rank)
            continue;
        rt_u32 n = b.hi[axis] - b.lo[axis];        /* entries of the axis */
        rt_u64 rest = axis ? mpk_divide(i, n) : 0; /* of the axes before it */
        /* less than n, so its low 32 bits are all of it */
        at[axis] = (rt_i64)(b.lo[axis] + ((rt_u32)i - (rt_u32)rest * n));
        i = rest;
    }
}

/* Offset in elements of entry `at` of the operand itself. */
MPK_FN rt_i64 mpk_offset(const mpk_view &v, const rt_i64 *at)
{
    rt_i64 offset = 0;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i < v.rank)
            offset += at[i] * v.stride[i];
    return offset;
}
/* Offset in elements of what entry `at` of a result of this rank takes from v, which is
 * broadcast to it: axes are aligned at the last, and an axis of one entry gives that entry to
 * all. */
MPK_FN rt_i64 mpk_spread(const mpk_view &v, int rank, const rt_i64 *at)
{
    rt_i64 offset = 0;
    /* two loops, so that no array has an index at run time, which would put it on the stack */
#pragma unroll
    for (int axis = 0; axis < RT_MAX_RANK; axis++)
#pragma unroll
        for (int i = axis; i < RT_MAX_RANK; i++)
            if (i < rank && i - axis == rank - v.rank && v.dims[axis] != 1)
                offset += at[i] * v.stride[axis];
    return offset;
}

/* Entries of the last axis. */
MPK_FN rt_i64 mpk_row(const mpk_view &v)
{
    rt_i64 n = 1;
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == v.rank - 1)
            n = v.dims[i];
    return n;
}

/* Do rows of the last axis consist of whole pieces of `unit` neighbouring entries, at multiples
 * of such a piece from the tensor's start?  All other strides have to be multiples too, or the
 * rows after the first would not be aligned; but that of an axis of one entry may be any number. */
MPK_FN bool mpk_has_pieces(const mpk_view &v, int unit)
{
    bool whole = v.rank > 0; /* until an axis is not */
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == v.rank - 1)
            whole = whole && v.stride[i] == 1 && v.dims[i] % unit == 0;
        else if (i < v.rank)
            whole = whole && (v.dims[i] == 1 || v.stride[i] % unit == 0);
    return whole;
}

/* ---- groups of threads, and reductions over a group ---- */

/* A group is a team of 32 threads (of all, if there are fewer), or all threads.  Threads that are
 * left over belong to no team: their team number is MPK_TEAMS. */
#define MPK_TEAM (MPK_THREADS < 32 ? MPK_THREADS : 32)
#define MPK_TEAMS (MPK_THREADS / MPK_TEAM)
/* Scratch that the reductions use, from its start; bodies keep their own after it. */
#define MPK_REDUCE_BYTES 2048

/* How many threads shall share an axis of n entries.  It follows from the axis alone, so that
 * the order of a sum does; above 512, a team of 32 would have more than 16 entries a thread. */
MPK_FN int mpk_group(rt_i64 n)
{
    return n > 512 ? MPK_THREADS : MPK_TEAM;
}

/* What MPK_REDUCTION combines by: sums in double, so that only the result is rounded to the
 * dtype. */
MPK_FN double mpk_add_pair(double a, double b)
{
    return a + b;
}
MPK_FN rt_u64 mpk_max_pair(rt_u64 a, rt_u64 b)
{
    return a > b ? a : b;
}

/* Each thread of a group gets the combination of x over the group, in the same order in all.
 * Called by all threads, with a group of MPK_TEAM or of MPK_THREADS; scratch up to
 * MPK_REDUCE_BYTES is overwritten.
 *
 *   a team        each thread combines s[first], s[first + 1], ... in rising order
 *   all threads   thread i of the first 16 combines s[i], s[i + 16], ...; then as a team of 16
 *
 * Barriers: after the stores; of many threads, after the 16 have read all and again after they
 * have stored; and at the end, so that the next reduction does not overwrite what is still read.
 * Threads of no team keep their x. */
#define MPK_REDUCTION(name, type, combine)                                    \
    MPK_FN type name(const mpk_task &t, int group, type x)                    \
    {                                                                         \
        type *s = (type *)t.s_scratch;                                        \
        int thread = mpk_thread(), n = group, first = thread / group * group; \
        s[thread] = x;                                                        \
        mpk_sync();                                                           \
        if (group > 32) {                                                     \
            n = 16;                                                           \
            if (thread < n)                                                   \
                for (int i = thread + n; i < group; i += n)                   \
                    x = combine(x, s[i]);                                     \
            mpk_sync();                                                       \
            if (thread < n)                                                   \
                s[thread] = x;                                                \
            mpk_sync();                                                       \
        }                                                                     \
        if (first + n <= MPK_THREADS || group > 32) {                         \
            x = s[first];                                                     \
            for (int i = 1; i < n; i++)                                       \
                x = combine(x, s[first + i]);                                 \
        }                                                                     \
        mpk_sync();                                                           \
        return x;                                                             \
    }
MPK_REDUCTION(mpk_sum, double, mpk_add_pair)
MPK_REDUCTION(mpk_max, rt_u64, mpk_max_pair)

/* Floats as integers that compare in the same order; NaN is 0, below all; -0 equals 0. */
MPK_FN rt_u32 mpk_key(float x)
{
    rt_u32 u = __float_as_uint(x == 0 ? 0.0f : x); /* -0 becomes 0 */
    if (!(x == x))                                 /* NaN */
        return 0;
    return u >> 31 ? ~u : u | 0x80000000u;
}
/* The inverse of mpk_key, but for NaN. */
MPK_FN float mpk_from_key(rt_u32 key)
{
    return __uint_as_float(key >> 31 ? key & 0x7fffffff : ~key);
}
/* A value and its index as one integer: the largest of these is the largest value, and of equal
 * values that with the lowest index.  0: a NaN, less than anything else. */
MPK_FN rt_u64 mpk_ranked(float x, rt_u32 index)
{
    rt_u32 key = mpk_key(x); /* 0: NaN */
    return key ? (rt_u64)key << 32 | (rt_u32)~index : 0;
}
/* The index of a ranked value that is not 0. */
MPK_FN rt_u32 mpk_index_of(rt_u64 ranked)
{
    return ~(rt_u32)ranked;
}

/* The largest over entries lo to hi - 1 of a line, as mpk_ranked, in each thread of a group;
 * `at` is the line's first entry and `step` the stride of its axis.  Called by all threads. */
MPK_FN rt_u64 mpk_largest(const mpk_task &t, int group, const mpk_view &v, const char *data,
                          rt_i64 at, rt_i64 step, rt_i64 lo, rt_i64 hi)
{
    rt_u64 best = 0; /* less than any number */
    for (rt_i64 i = lo + mpk_thread() % group; i < hi; i += group)
        best = mpk_max_pair(best, mpk_ranked(mpk_get(v, data, at + i * step), (rt_u32)i));
    return mpk_max(t, group, best);
}

/* All threads: add what the lanes of each team have for a row and a token, in rising order of
 * lanes, and leave the sums in s_result[row of the teams][token].  s_part: [MPK_THREADS *
 * TOKENS], used once for each of ROWS: the first barrier of a round keeps it from being
 * overwritten while it is read. */
template <int TOKENS, int ROWS>
MPK_FN void mpk_add_lanes(float (&r_sum)[ROWS][TOKENS], float *s_part, float *s_result)
{
    int thread = mpk_thread(), team = thread / MPK_TEAM, lane = thread % MPK_TEAM;
    /* one row of each team at a time, since s_part holds only TOKENS floats for each thread */
#pragma unroll
    for (int c = 0; c < ROWS; c++) {
        mpk_sync();
#pragma unroll
        for (int j = 0; j < TOKENS; j++)
            s_part[thread * TOKENS + j] = r_sum[c][j];
        mpk_sync();
        for (int j = lane; team < MPK_TEAMS && j < TOKENS; j += MPK_TEAM) {
            float sum = 0;
            for (int l = 0; l < MPK_TEAM; l++)
                sum += s_part[(team * MPK_TEAM + l) * TOKENS + j];
            s_result[(c * MPK_TEAMS + team) * TOKENS + j] = sum;
        }
    }
    mpk_sync();
}

#endif
