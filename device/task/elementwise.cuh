/* elementwise.cuh - operators that compute each element on its own: add, mul, silu, gelu, silu_mul,
 * cast, and sums of several operands.
 *
 * Input: views of any plain dtype and strides, broadcast to the result; output: the task's box.  A
 * thread takes items thread, thread + MPK_THREADS, ... of the box in row-major order: eights
 * (eights.cuh) where all operands have them, else entries.  No scratch, no barriers.  Generic
 * bodies, which src/gen/body_elementwise.c prints; fused chains of such operators are `map`
 * (map.cuh).  Cost: memory.
 *
 * Which way a box goes is decided twice.  Dtypes, shapes and strides are constants of the instance,
 * so an operator whose rows are no eights has no code for them.  Addresses and the box are the
 * task's: a cut that divides an eight, or a view that begins at an odd place, goes by entries.
 * Both ways round alike, so a result does not depend on how the operator was cut.
 */
#ifndef TASK_ELEMENTWISE_CUH
#define TASK_ELEMENTWISE_CUH

#include "tile/view.cuh"
#include "task/activate.cuh"
#include "task/eights.cuh"

/* The functions; the first two are defined for integers and f64 too.  body_elementwise.c prints
 * them by these names. */
enum {
    ELEMENTWISE_ADD,
    ELEMENTWISE_MUL,
    ELEMENTWISE_SILU,
    ELEMENTWISE_GELU,
    ELEMENTWISE_GELU_TANH,
    ELEMENTWISE_SILU_MUL, /* silu(a) b, the gate of a feed-forward layer */
    ELEMENTWISE_SAME      /* a: cast by eights */
};

/* f(a, b) in fp32, for a result of this dtype; functions of one operand ignore b.  f is a constant
 * of the instance, so one case is left after inlining.  Of a result of 16 bits an activation is two
 * hardware instructions, whose error is below the rounding (activate_as). */
MPK_FN float elementwise_float(int f, int dtype, float a, float b)
{
    const bool is_short = mpk_dtype_bytes(dtype) == 2;
    switch (f) {
    case ELEMENTWISE_ADD:
        return a + b;
    case ELEMENTWISE_MUL:
        return a * b;
    case ELEMENTWISE_SILU_MUL:
        return activate_as(is_short, ACTIVATE_SILU, a) * b;
    case ELEMENTWISE_SILU:
        return activate_as(is_short, ACTIVATE_SILU, a);
    case ELEMENTWISE_GELU:
        return activate_as(is_short, ACTIVATE_GELU, a);
    case ELEMENTWISE_SAME:
        return a;
    default:
        return activate_as(is_short, ACTIVATE_GELU_TANH, a);
    }
}

/* May x be read by eights at places of y?  Along other axes than the last it may be broadcast, and
 * is then read once for each place that takes from it; a last axis of one entry is no eight. */
MPK_FN bool elementwise_has_eights(const mpk_view &x, const mpk_view &y)
{
    return eight_fits(x) && eight_fits(y) && mpk_row(x) == mpk_row(y);
}
/* elementwise_run where operands have eights; false: they have none in this box, and nothing has
 * been written.  The caller has asked elementwise_has_eights, or eight_fits, of all. */
MPK_FN bool elementwise_by_eights(const mpk_task &t, int f, const mpk_view &a, const mpk_view &b,
                                  const mpk_view &y)
{
    const char *g_a = mpk_data(t, a), *g_b = mpk_data(t, b);
    char *g_y = mpk_data(t, y);
    mpk_box box = mpk_box_of(t, y.rank);
    /* An operand that is absent is NULL and takes no part in the or. */
    if (!eight_counts(box, y.rank - 1, (rt_u64)g_a | (rt_u64)g_b | (rt_u64)g_y))
        return false;
    const eight_walk w = eight_walk_of(y, box);
    g_a = eight_begin(w, a, g_a, y);
    if (mpk_is_there(b))
        g_b = eight_begin(w, b, g_b, y);
    /* Slot r: what was loaded for one eight of y, as it lies in memory.  EIGHT_SLOTS of them are
     * under way together; a load that was converted at once would be waited for. */
    eight p[EIGHT_SLOTS], q[EIGHT_SLOTS];
    eight_each<EIGHT_SLOTS>(
        w, y, g_y,
        [&](int r, const auto &place) {
            p[r] = eight_take(a, g_a, y, place);
            if (mpk_is_there(b))
                q[r] = eight_take(b, g_b, y, place);
        },
        [&](int r) {
            float v[EIGHT], other[EIGHT] = {};
            eight_floats(a.dtype, p[r], v);
            if (mpk_is_there(b))
                eight_floats(b.dtype, q[r], other);
#pragma unroll
            for (int k = 0; k < EIGHT; k++)
                v[k] = elementwise_float(f, y.dtype, v[k], other[k]);
            return eight_of(y.dtype, v);
        });
    return true;
}

/* y = f(a, b); b absent: y = f(a).  f64 is computed in double, integers modulo 2^64, so that
 * they wrap around in every width, and other floats in fp32, rounded once. */
MPK_FN void elementwise_run(const mpk_task &t, int f, const mpk_view &a, const mpk_view &b,
                            const mpk_view &y)
{
    if (elementwise_has_eights(a, y) && (!mpk_is_there(b) || elementwise_has_eights(b, y)) &&
        elementwise_by_eights(t, f, a, b, y))
        return;
    const char *g_a = mpk_data(t, a), *g_b = mpk_data(t, b);
    char *g_y = mpk_data(t, y);
    mpk_box box = mpk_box_of(t, y.rank);
    rt_u64 n = mpk_count(box, y.rank);
    /* Entry by entry: the dtype's branch is a constant, and what is left of it one load, f, one
     * store. */
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(box, y.rank, i, at);
        rt_i64 from = mpk_spread(a, y.rank, at),
               other = mpk_is_there(b) ? mpk_spread(b, y.rank, at) : 0;
        rt_i64 to = mpk_offset(y, at); /* the result is not broadcast */
        /* only ADD and MUL are defined here (src/gen/body_elementwise.c accepts no others) */
        if (y.dtype == MPK_F64) {
            double p = ((const double *)g_a)[from], q = ((const double *)g_b)[other];
            ((double *)g_y)[to] = f == ELEMENTWISE_ADD ? p + q : p * q;
        } else if (mpk_is_exact(y.dtype)) {
            /* Unsigned, since a signed overflow is undefined; mpk_put_int keeps the low bits. */
            rt_u64 p = (rt_u64)mpk_get_int(a, g_a, from), q = (rt_u64)mpk_get_int(b, g_b, other);
            mpk_put_int(y, g_y, to, (rt_i64)(f == ELEMENTWISE_ADD ? p + q : p * q));
        } else {
            mpk_put(y, g_y, to,
                    elementwise_float(f, y.dtype, mpk_get(a, g_a, from),
                                      mpk_is_there(b) ? mpk_get(b, g_b, other) : 0));
        }
    }
}

/* ---- sums of several operands, which instances print: y = a + b + ... for each element ---- */

/* Element `at` of a part of a sum, which has the shape of the result: add_parts is not
 * broadcast. */
MPK_FN float add_parts_get(const mpk_task &t, const mpk_view &x, const rt_i64 *at)
{
    return mpk_get(x, mpk_data(t, x), mpk_offset(x, at));
}

/* Place `at` of the i-th element of the box of y; returns 1, so that the head of a loop can call
 * it. */
MPK_FN int add_parts_place(const mpk_task &t, const mpk_view &y, rt_u64 i, rt_i64 *at)
{
    mpk_place(mpk_box_of(t, y.rank), y.rank, i, at);
    return 1;
}

/* The statement after it runs for each of the thread's elements of the box of y, whose place is
 * `at`.  A macro, because the sum that stands there names each operand by itself: their number is
 * the instance's.  In fp32, parts in the order of the operands, rounded once (print_add_parts). */
#define ADD_PARTS_EACH(t, y)                                                              \
    rt_i64 at[RT_MAX_RANK];                                                               \
    for (rt_u64 i_ = (rt_u64)mpk_thread(), n_ = mpk_count(mpk_box_of(t, y.rank), y.rank); \
         i_ < n_ && add_parts_place(t, y, i_, at); i_ += MPK_THREADS)

/* One element to another dtype: an integer exactly, then rounded or cut; between floats by fp32,
 * except where f64 would lose digits by it. */
MPK_FN void cast_element(const mpk_view &x, const char *g_x, rt_i64 from, const mpk_view &y,
                         char *g_y, rt_i64 to)
{
    /* an i64 would lose digits by a double */
    if (mpk_is_exact(x.dtype))
        mpk_put_int(y, g_y, to, mpk_get_int(x, g_x, from));
    else if (x.dtype == MPK_F64 || y.dtype == MPK_F64)
        mpk_put_double(y, g_y, to, mpk_get_double(x, g_x, from));
    else
        mpk_put(y, g_y, to, mpk_get(x, g_x, from));
}

/* y = x, of the same shape, in another dtype: by eights between floats of 16 and 32 bits, all
 * others by cast_element. */
MPK_FN void cast_run(const mpk_task &t, const mpk_view &x, const mpk_view &y)
{
    const mpk_view nothing = {-1};
    if (eight_fits(x) && eight_fits(y) && elementwise_by_eights(t, ELEMENTWISE_SAME, x, nothing, y))
        return;
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    mpk_box box = mpk_box_of(t, y.rank);
    rt_u64 n = mpk_count(box, y.rank);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(box, y.rank, i, at);
        cast_element(x, g_x, mpk_offset(x, at), y, g_y, mpk_offset(y, at));
    }
}

#endif
