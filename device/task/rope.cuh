/* rope.cuh - rotary embedding: rope_table from frequencies that the compiler has worked out, rope
 * by such a table, and rotate by tables from elsewhere.
 *
 * Entries k and k + half of a head are a pair, which is rotated by the angle position *
 * frequency[k]; entries from 2 half on stay as they are:
 *
 *    (x1, x2)  ->  (x1 cos - x2 sin, x2 cos + x1 sin)
 *
 *   rope_table   positions [T] -> table f32[T, 2, half], cosines and then sines, once a step
 *   rope         x [T, H, K] by that table: an angle for each pair of a token, all heads alike
 *   rotate       x of any rank by tables of cosines and sines with an angle for each entry
 *
 * A thread does an entry of the result (of rope_table a pair; of rotate eight neighbours where rows
 * have them, and their partners where a task has both halves); no scratch, no barriers.  heads.cuh
 * and latent_rope.cuh rotate heads by the same functions.  These are the generic bodies;
 * rope_tile.cuh rotates heads of bf16 for many tokens.  src/gen/body_rope.c prints the calls.
 * Cost: memory.
 *
 * The two formulas round differently: rope once, when it stores; rotate after each product, too, as
 * the single operators would that it stands for (src/op/rotate.h).
 */
#ifndef TASK_ROPE_CUH
#define TASK_ROPE_CUH

#include "task/eights.cuh"
#include "tile/view.cuh"

/* cos and sin of a position times the amplitude.  frequency: radians a position;
 * amplitude: 1, but for scaling rules such as YaRN's.  The angle is an fp32 number, as in
 * src/op/rope.h, and its functions are taken in double: an angle may be some 100,000 radians, where
 * fp32 functions lose digits.  A pair of frequency 0 is not rotated: no amplitude changes it. */
MPK_FN void rope_angle(float frequency, float amplitude, rt_i64 position, float *cosine,
                       float *sine)
{
    double angle = (double)((float)position * frequency);
    amplitude = frequency == 0 ? 1.0f : amplitude;
    *cosine = (float)cos(angle) * amplitude;
    *sine = (float)sin(angle) * amplitude;
}

/* Where the partner of entry k of a head stands, and which pair they are, 0 to half - 1; false:
 * entry k is not rotated, and nothing is set.  half: pairs, which are as many as the table has. */
MPK_FN bool rope_pair(int k, int half, int *partner, int *pair, bool *is_first)
{
    if (k >= 2 * half)
        return false;
    *is_first = k < half;
    *pair = k % half;
    *partner = *is_first ? k + half : k - half;
    return true;
}

/* One entry of a pair, rotated; is_first: it is x1 of the formula above. */
MPK_FN float rope_rotate(float x, float partner, bool is_first, float cosine, float sine)
{
    return is_first ? x * cosine - partner * sine : x * cosine + partner * sine;
}

/* The body of rope_table: table[t, 0, pair] = cos, table[t, 1, pair] = sin.  A thread stores both,
 * so the box counts only entry 0 of axis 1.  frequency: of each pair, a table beside the instance,
 * in the reference's bits (gen_print_frequencies).  Once a step, for all layers: few pairs, each
 * with two functions in double. */
MPK_FN void rope_table_run(const mpk_task &t, const mpk_view &positions, const mpk_view &table,
                           const float *frequency, float amplitude)
{
    const char *g_positions = mpk_data(t, positions);
    char *g_table = mpk_data(t, table);
    mpk_box box = mpk_box_of(t, 3);
    box.lo[1] = 0;
    box.hi[1] = 1;
    rt_u64 n = mpk_count(box, 3); /* pairs */
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        float cosine, sine;
        mpk_place(box, 3, i, at);
        rope_angle(frequency[at[2]], amplitude,
                   mpk_get_int(positions, g_positions, at[0] * positions.stride[0]), &cosine,
                   &sine);
        rt_i64 to = mpk_offset(table, at);
        mpk_put(table, g_table, to, cosine);
        mpk_put(table, g_table, to + table.stride[1], sine);
    }
}

/* The body of rope.  A thread an entry: both entries of a pair load each other, which costs a
 * load from the cache and needs no second loop for those that are not rotated. */
MPK_FN void rope_run(const mpk_task &t, const mpk_view &x, const mpk_view &table, const mpk_view &y)
{
    const char *g_x = mpk_data(t, x), *g_table = mpk_data(t, table);
    char *g_y = mpk_data(t, y);
    mpk_box box = mpk_box_of(t, 3);
    rt_u64 n = mpk_count(box, 3);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        int partner, pair;
        bool is_first; /* of the pair */
        mpk_place(box, 3, i, at);
        rt_i64 head = at[0] * x.stride[0] + at[1] * x.stride[1];
        float value = mpk_get(x, g_x, head + at[2] * x.stride[2]);
        if (rope_pair((int)at[2], (int)table.dims[2], &partner, &pair, &is_first)) {
            /* all heads of a token have its angles */
            rt_i64 angle = at[0] * table.stride[0] + pair * table.stride[2]; /* of the cosine */
            value = rope_rotate(value, mpk_get(x, g_x, head + partner * x.stride[2]), is_first,
                                mpk_get(table, g_table, angle),
                                mpk_get(table, g_table, angle + table.stride[1]));
        }
        mpk_put(y, g_y, mpk_offset(y, at), value);
    }
}

/* One entry of rotate, whose partner is `other`: both products and the sum are rounded, as in
 * src/op/rotate.h; the sum when it is stored.  cosine and sine: of this entry, which need not be
 * its partner's.  A first entry takes its partner negated. */
MPK_FN float rotate_entry(int dtype, float value, float other, bool is_first, float cosine,
                          float sine)
{
    return mpk_round(dtype, value * cosine) + mpk_round(dtype, (is_first ? -other : other) * sine);
}

/* Both halves of rows by eights: entries e and half + e are each other's partners, so a thread
 * loads both once, and the angles of both.  box: its last axis counts eights of the first half.
 * AT_ONCE items of a thread are in flight together, each six eights; past the end the item at hand
 * is loaded again and not stored. */
template <int AT_ONCE>
MPK_FN void rotate_pairs(const mpk_task &t, const mpk_view &x, const mpk_view &cosine,
                         const mpk_view &sine, const mpk_view &y, const mpk_box &box, rt_i64 half)
{
    const char *g_x = mpk_data(t, x), *g_cosine = mpk_data(t, cosine), *g_sine = mpk_data(t, sine);
    char *g_y = mpk_data(t, y);
    const rt_u64 n = mpk_count(box, x.rank);
#pragma unroll 1
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += AT_ONCE * MPK_THREADS) {
        /* All loads of a round come before the first product.  Where a result goes is kept beside
         * them: to find it again takes divisions. */
        eight value[AT_ONCE][2], c[AT_ONCE][2], s[AT_ONCE][2]; /* of both halves */
        rt_i64 to[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            rt_i64 at[RT_MAX_RANK];
            const rt_u64 item = i + (rt_u64)(j * MPK_THREADS);
            mpk_place(box, x.rank, mpk_number(x, item < n ? item : i), at);
            eight_entry(at, x.rank - 1);
            to[j] = mpk_offset(y, at);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                value[j][h] = eight_load(x, g_x, mpk_offset(x, at) + h * half);
                c[j][h] = eight_load(cosine, g_cosine, mpk_spread(cosine, x.rank, at) + h * half);
                s[j][h] = eight_load(sine, g_sine, mpk_spread(sine, x.rank, at) + h * half);
            }
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float r[EIGHT];
#pragma unroll
                for (int k = 0; k < EIGHT; k++)
                    /* the partner of an entry stands at the same place of the other half */
                    r[k] = rotate_entry(x.dtype, eight_get(x.dtype, value[j][h], k),
                                        eight_get(x.dtype, value[j][1 - h], k), h == 0,
                                        eight_get(cosine.dtype, c[j][h], k),
                                        eight_get(sine.dtype, s[j][h], k));
                if (i + (rt_u64)(j * MPK_THREADS) < n)
                    eight_store(y, g_y, to[j] + h * half, eight_of(y.dtype, r));
            }
    }
}

/* rotate_run where rows are read by eights, none of which has entries of both halves; false: they
 * are not in this box, and nothing was done.  A box of whole rows, all of which turn, goes by
 * pairs, which read x once; any other reads each partner beside its entry, so x twice. */
MPK_FN bool rotate_by_eights(const mpk_task &t, const mpk_view &x, const mpk_view &cosine,
                             const mpk_view &sine, const mpk_view &y)
{
    const char *g_x = mpk_data(t, x), *g_cosine = mpk_data(t, cosine), *g_sine = mpk_data(t, sine);
    char *g_y = mpk_data(t, y);
    const int last = x.rank - 1;
    const rt_i64 width = mpk_row(cosine), half = width / 2;
    mpk_box box = mpk_box_of(t, x.rank);
    if (!eight_counts(box, last, (rt_u64)g_x | (rt_u64)g_cosine | (rt_u64)g_sine | (rt_u64)g_y))
        return false;
    /* From here on box counts eights along the last axis. */
    bool pairs = width == mpk_row(x); /* of whole rows */
#pragma unroll
    for (int i = 0; i < RT_MAX_RANK; i++)
        if (i == last) {
            /* the box has both partners of each pair */
            pairs = pairs && box.lo[i] == 0 && box.hi[i] == (rt_u32)(width / EIGHT);
            box.hi[i] = pairs ? (rt_u32)(half / EIGHT) : box.hi[i];
        }
    if (pairs) {
        if (mpk_dtype_bytes(x.dtype) == 2) /* of 32 bits an eight takes twice the registers */
            rotate_pairs<2>(t, x, cosine, sine, y, box, half);
        else
            rotate_pairs<1>(t, x, cosine, sine, y, box, half);
        return true;
    }
    rt_u64 n = mpk_count(box, x.rank);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(box, x.rank, i, at);
        /* entry of the row; at[last] is it from here on */
        const rt_i64 e = eight_entry(at, last);
        const rt_i64 from = mpk_offset(x, at);
        eight value = eight_load(x, g_x, from);
        if (e < width) {
            const eight other = eight_load(x, g_x, from + (e < half ? half : -half)),
                        c = eight_load(cosine, g_cosine, mpk_spread(cosine, x.rank, at)),
                        s = eight_load(sine, g_sine, mpk_spread(sine, x.rank, at));
            float r[EIGHT];
#pragma unroll
            for (int k = 0; k < EIGHT; k++)
                r[k] = rotate_entry(x.dtype, eight_get(x.dtype, value, k),
                                    eight_get(x.dtype, other, k), e < half,
                                    eight_get(cosine.dtype, c, k), eight_get(sine.dtype, s, k));
            value = eight_of(x.dtype, r);
        }
        eight_store(y, g_y, mpk_offset(y, at), value);
    }
    return true;
}

/* The body of rotate: y = x cos + (-x2, x1) sin.  Here the tables have an angle for each entry, not
 * for each pair, and are broadcast to x; the first `width` entries are rotated.  By eights where
 * strides and the task's box allow it: all but the addresses and the box are constants, so an
 * instance has the code of one way, or of both. */
MPK_FN void rotate_run(const mpk_task &t, const mpk_view &x, const mpk_view &cosine,
                       const mpk_view &sine, const mpk_view &y)
{
    const char *g_x = mpk_data(t, x), *g_cosine = mpk_data(t, cosine), *g_sine = mpk_data(t, sine);
    char *g_y = mpk_data(t, y);
    const int last = x.rank - 1;
    const rt_i64 width = cosine.dims[cosine.rank - 1],
                 half = width / 2; /* entries that are rotated */
    if (eight_fits(x) && eight_fits(y) && eight_fits(cosine) && eight_fits(sine) &&
        half % EIGHT == 0 && rotate_by_eights(t, x, cosine, sine, y))
        return;
    mpk_box box = mpk_box_of(t, x.rank);
    rt_u64 n = mpk_count(box, x.rank);
    for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
        rt_i64 at[RT_MAX_RANK];
        mpk_place(box, x.rank, i, at);
        /* Entries from `width` on are copied. */
        const rt_i64 e = at[last], from = mpk_offset(x, at);
        float value = mpk_get(x, g_x, from);
        if (e < width) {
            float other = mpk_get(x, g_x, from + (e < half ? half : -half) * x.stride[last]);
            value = rotate_entry(x.dtype, value, other, e < half,
                                 mpk_get(cosine, g_cosine, mpk_spread(cosine, x.rank, at)),
                                 mpk_get(sine, g_sine, mpk_spread(sine, x.rank, at)));
        }
        mpk_put(y, g_y, mpk_offset(y, at), value);
    }
}

#endif
