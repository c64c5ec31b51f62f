/* group_split.cuh - group norms whose groups are shared by tasks: moments of parts of the places
 * (group_moments), then the places normalised by them, with an activation (group_scale).
 *
 * Input: x [N, .., C] of floats; moments f32 [N, parts, groups, 2], a mean and the squares of the
 * distances from it for each part and group (src/op/moments.h, which numbers places and cuts them
 * into parts as this file does).  The moments are the only thing that tasks tell each other: a task
 * of group_scale joins those of all parts for itself.
 *
 * Where rows of channels are eights (eights.cuh) and places lie evenly, a thread keeps one eight of
 * channels for all its places, so that what it needs of their groups stays in registers; C / 8
 * threads have a place:
 *
 *   thread    0        1           C/8 - 1    C/8
 *   place     0        0      ...  0          1     ...   then all some places further
 *   channels  0-7      8-15        .. C - 1   0-7
 *
 * With C 320 these are 40 threads a place, 6 places together, and 16 of 256 threads without work.
 *
 * Sums of channels meet in scratch, first over the threads of a channel, then over the channels of
 * a group: in fp32 and in an order that follows from the shape alone.  What this does not take goes
 * entry by entry. Barriers: mpk_sync, which all threads reach, those without channels too.  Cost: x
 * once for the moments, and once to normalise it.
 */
#ifndef TASK_GROUP_SPLIT_CUH
#define TASK_GROUP_SPLIT_CUH

#include "task/activate.cuh"
#include "task/eights.cuh"

enum { GROUP_SPLIT_LOADS = 4 }; /* of a thread at a time */

/* The image: places of an entry, and those of a part.  by_eights: this use goes by eights, if the
 * box does. For [2, 64, 64, 320] in 64 parts: 320 channels, 4,096 places, 64 of a part, 320 entries
 * from a place to the next. */
struct group_split_image {
    rt_u32 channels, places, each; /* each: of a part */
    rt_i64 step;                   /* from a place to the next, if they lie evenly */
    bool by_eights;
};

/* Constants of the instance, but for the alignment of the address.  parts: of the moments.  Places
 * lie evenly if each outer axis of them begins where the inner one ends: then place i is at i *
 * step, without a division.  Axes are looked at from the inside out: the first with places gives
 * the step.  Axis 0 is the entries, which lie as they like. */
MPK_FN group_split_image group_split_of(const mpk_view &x, const char *g_x, rt_i64 parts)
{
    group_split_image m = {1, 1, 0, 1, eight_fits(x) && ((rt_u64)g_x & 15) == 0};
#pragma unroll
    for (int i = RT_MAX_RANK - 1; i >= 0; i--)
        if (i == x.rank - 1) {
            m.channels = (rt_u32)x.dims[i];
        } else if (i < x.rank && i > 0) {
            if (m.places == 1)
                m.step = x.stride[i];
            else
                m.by_eights = m.by_eights && (x.dims[i] == 1 || x.stride[i] == m.places * m.step);
            m.places *= (rt_u32)x.dims[i];
        }
    /* As moments_parts_of: the last parts may have fewer places than this, or none. */
    m.each = (m.places + (rt_u32)parts - 1) / (rt_u32)parts;
    /* More channels than 8 MPK_THREADS would leave eights without a thread. */
    m.by_eights = m.by_eights && m.channels / EIGHT <= MPK_THREADS;
    return m;
}

/* Where place number `place` of an entry begins, in elements, however places lie.  A division for
 * each axis: only the way entry by entry asks. */
MPK_FN rt_i64 group_split_place(const mpk_view &x, rt_i64 entry, rt_u32 place)
{
    rt_i64 from = entry * x.stride[0];
#pragma unroll
    for (int i = RT_MAX_RANK - 1; i > 0; i--)
        if (i < x.rank - 1) {
            const rt_u32 rest = place / (rt_u32)x.dims[i];
            from += (place - rest * (rt_u32)x.dims[i]) * x.stride[i];
            place = rest;
        }
    return from;
}

/* The thread's place among those that are made together, and its first channel; `active`: it has
 * one.  The threads after the last whole row of them have none, but come to every barrier. */
struct group_split_share {
    rt_u32 place, channel, together;
    bool active;
};
MPK_FN group_split_share group_split_share_of(const group_split_image &m)
{
    const rt_u32 row = m.channels / EIGHT, thread = (rt_u32)mpk_thread(); /* threads of a place */
    group_split_share s = {thread / row, thread % row * EIGHT, MPK_THREADS / row, false};
    s.active = s.place < s.together;
    return s;
}

/* ---- moments ---- */

/* Sums of a thread's channels, over its places: of distances from a number that their group has,
 * and of their squares. */
struct group_split_sums {
    float r_first[EIGHT], r_second[EIGHT];
};

/* Where the thread's channels of place `item` are, from those of place 0 of the entry at g.
 * Unsigned, so that the product is one of 32 bits by 64 without a sign. */
MPK_FN const char *group_split_at(const mpk_view &x, const char *g, rt_i64 step, int item)
{
    return g + (rt_i64)(rt_u32)item * (step * mpk_dtype_bytes(x.dtype));
}

/* Add places lo to hi - 1 to the sums; g: the entry; r_from: what distances are from.  A thread
 * takes every s.together-th place from its own on, in rising order, GROUP_SPLIT_LOADS of them under
 * way at a time. */
MPK_FN void group_split_add(const mpk_view &x, const char *g, const group_split_image &m,
                            const group_split_share &s, rt_u32 lo, rt_u32 hi,
                            const float (&r_from)[EIGHT], group_split_sums &sums)
{
    eight of[GROUP_SPLIT_LOADS];
    if (!s.active)
        return;
    g = mpk_global_kept(g + (lo * m.step + s.channel) * mpk_dtype_bytes(x.dtype));
    eight_rounds<GROUP_SPLIT_LOADS>(
        (int)s.place, (int)s.together, (int)(hi - lo),
        [&](int k, int place)
            MPK_INLINED { of[k] = eight_load_once(x, group_split_at(x, g, m.step, place), 0); },
        [&](int k, int) MPK_INLINED {
            float r[EIGHT];
            eight_floats(x.dtype, of[k], r);
#pragma unroll
            for (int i = 0; i < EIGHT; i++) {
                const float away = r[i] - r_from[i];
                sums.r_first[i] += away;
                sums.r_second[i] += away * away;
            }
        });
}

/* Sums of channels become sums of groups, s_group[groups].  s_sums: [places that are made together]
 * [channels].  Both rounds add in rising order.  The first barrier: s_sums has been read by the
 * call before, and the second of any use of what that left; the last one shows s_group to all. */
MPK_FN void group_split_gather(const group_split_image &m, const group_split_share &s,
                               rt_u32 groups, const float (&r_sum)[EIGHT], float *s_sums,
                               float *s_group)
{
    const rt_u32 channels = m.channels / groups; /* of a group */
    mpk_sync();
#pragma unroll
    for (int i = 0; i < EIGHT; i++)
        if (s.active)
            s_sums[s.place * m.channels + s.channel + i] = r_sum[i];
    mpk_sync();
    /* A channel's sums of all threads that have it, onto the first: the thread that reads column c
     * is the only one that writes there. */
    for (rt_u32 c = (rt_u32)mpk_thread(); c < m.channels; c += MPK_THREADS) {
        float sum = 0;
        for (rt_u32 k = 0; k < s.together; k++)
            sum += s_sums[k * m.channels + c];
        s_sums[c] = sum;
    }
    mpk_sync();
    /* A group's channels are neighbours. */
    for (rt_u32 g = (rt_u32)mpk_thread(); g < groups; g += MPK_THREADS) {
        float sum = 0;
        for (rt_u32 k = 0; k < channels; k++)
            sum += s_sums[g * channels + k];
        s_group[g] = sum;
    }
    mpk_sync();
}

/* A part by eights, which reads x once from memory, and its first places twice: distances are from
 * the mean of these, a sample.  A sum of squares about 0 less the square of the mean would cancel
 * where the mean is large beside the deviation.  If the sample is 1 / k of the part, the square of
 * its mean's distance from the mean of all is at most k times the variance, so little of 24 bits
 * cancels.  Scratch: three sums of each group, then s_sums, 8 floats a thread (scratch_of_moments
 * in src/gen/body_group_split.c). */
MPK_FN void group_split_part(const mpk_task &t, const mpk_view &x, const char *g, const mpk_view &y,
                             char *g_y, rt_i64 to, const group_split_image &m, rt_u32 groups,
                             rt_u32 lo, rt_u32 hi)
{
    float *s_sample = (float *)t.s_scratch, *s_first = s_sample + groups,
          *s_second = s_first + groups, *s_sums = s_second + groups;
    const group_split_share s = group_split_share_of(m);
    const rt_u32 channels = m.channels / groups; /* of a group */
    const rt_u32 first = lo + s.together * GROUP_SPLIT_LOADS, end = first < hi ? first : hi;
    /* by, by_sample: one over the entries of a group in the part, and in the sample. */
    const float by = 1.0f / (float)((hi - lo) * channels),
                by_sample = 1.0f / (float)((end - lo) * channels);
    float r_from[EIGHT] = {};
    /* The sample is one round of loads, GROUP_SPLIT_LOADS places of each thread. */
    group_split_sums sample = {}, sums = {};
    group_split_add(x, g, m, s, lo, end, r_from, sample);
    group_split_gather(m, s, groups, sample.r_first, s_sums, s_sample);
#pragma unroll
    for (int i = 0; i < EIGHT; i++)
        if (s.active)
            /* An eight of channels may lie in several groups, so each of them has a number of its
             * own. */
            r_from[i] = s_sample[(s.channel + i) / channels] * by_sample;
    group_split_add(x, g, m, s, lo, hi, r_from, sums);
    group_split_gather(m, s, groups, sums.r_first, s_sums, s_first);
    group_split_gather(m, s, groups, sums.r_second, s_sums, s_second);
    for (rt_u32 k = (rt_u32)mpk_thread(); k < groups; k += MPK_THREADS) {
        const rt_i64 at = to + k * y.stride[2];
        /* away: of the part's mean from the sample's.  spread: squares about the part's mean, from
         * those about the sample's; rounding may leave it below 0. */
        const float away = s_first[k] * by, spread = s_second[k] - s_first[k] * away;
        /* The thread of group k reads what the last barrier has shown. */
        mpk_put(y, g_y, at, s_sample[k] * by_sample + away);
        mpk_put(y, g_y, at + y.stride[3], spread < 0 ? 0 : spread);
    }
    mpk_sync(); /* a part without places comes next, which uses scratch at once */
}

/* The sum of (x - mean)^POWER over a group's entries of a part, entry by entry, in double; all
 * threads get it.  POWER 1 or 2.  It runs twice for a group, for the mean and about it, as
 * group_norm does.
 */
template <int POWER>
MPK_FN double group_split_sum(const mpk_task &t, const mpk_view &x, const char *g_x, rt_i64 entry,
                              rt_u32 channel, rt_u32 channels, rt_u32 lo, rt_u32 hi, double mean)
{
    double sum = 0;
    for (rt_u32 i = (rt_u32)mpk_thread(); i < (hi - lo) * channels; i += MPK_THREADS) {
        const rt_i64 from = group_split_place(x, entry, lo + i / channels);
        const double away =
            mpk_get_double(x, g_x, from + (channel + i % channels) * x.stride[x.rank - 1]) - mean;
        sum += POWER == 2 ? away * away : away;
    }
    return mpk_sum(t, MPK_THREADS, sum);
}

/* The body of group_moments: parts of the box one after the other.  A task has all groups of a
 * part, since a row of channels is read as a whole. */
MPK_FN void group_moments_run(const mpk_task &t, const mpk_view &x, const mpk_view &y)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    const mpk_box box = mpk_box_of(t, 4);
    const group_split_image m = group_split_of(x, g_x, y.dims[1]);
    const rt_u32 groups = (rt_u32)y.dims[2], channels = m.channels / groups; /* of a group */
    for (rt_i64 entry = box.lo[0]; entry < box.hi[0]; entry++)
        for (rt_u32 part = box.lo[1]; part < box.hi[1]; part++) {
            const rt_u32 lo = part * m.each, end = lo + m.each,
                         hi = end < m.places ? end : m.places;
            const rt_i64 to = entry * y.stride[0] + part * y.stride[1];
            /* The same in all threads, for the sake of the barriers. */
            if (lo < hi && m.by_eights) {
                group_split_part(t, x, g_x + entry * x.stride[0] * mpk_dtype_bytes(x.dtype), y, g_y,
                                 to, m, groups, lo, hi);
                continue;
            }
            for (rt_u32 k = 0; k < groups; k++) {
                const rt_u32 last = lo < hi ? hi : lo; /* of a part without places none */
                const double n = lo < hi ? (double)((hi - lo) * channels) : 1;
                const double mean =
                    group_split_sum<1>(t, x, g_x, entry, k * channels, channels, lo, last, 0) / n;
                const double spread =
                    group_split_sum<2>(t, x, g_x, entry, k * channels, channels, lo, last, mean);
                if (mpk_thread() == 0) {
                    mpk_put_double(y, g_y, to + k * y.stride[2], mean);
                    mpk_put_double(y, g_y, to + k * y.stride[2] + y.stride[3], spread);
                }
            }
        }
}

/* ---- normalising ---- */

/* What a task knows of an entry's groups, in scratch: their means, and 1 / sqrt(variance + eps).
 * They stay there until the next entry's are joined. */
struct group_split_norms {
    float *s_mean, *s_factor;
};

/* Join the moments of all parts.  Distances are from the mean of part 0, whose square is at most
 * the variance times the number of parts: little of 24 bits cancels.  Some threads have a group,
 * each some of the parts: thread i has group i % groups and the parts i / groups, then every
 * `shares`th.  A barrier before scratch is written, since the entry before is read from there, and
 * one after.  Cost: all moments of an entry for each task, from L2. */
MPK_FN group_split_norms group_split_join(const mpk_task &t, const mpk_view &moments,
                                          const group_split_image &m, rt_i64 entry, double eps)
{
    const char *g = mpk_data(t, moments);
    const rt_u32 groups = (rt_u32)moments.dims[2], parts = (rt_u32)moments.dims[1],
                 channels = m.channels / groups,
                 shares = groups < MPK_THREADS ? MPK_THREADS / groups : 1;
    const group_split_norms norms = {(float *)t.s_scratch, (float *)t.s_scratch + groups};
    float *s_sums = norms.s_factor + groups, *s_spreads = s_sums + shares * groups;
    mpk_sync();
    /* More groups than threads: shares is 1, and a thread has several of them. */
    for (rt_u32 i = (rt_u32)mpk_thread(); i < shares * groups; i += MPK_THREADS) {
        const rt_i64 from = entry * moments.stride[0] + i % groups * moments.stride[2];
        const float first = mpk_get(moments, g, from);
        float sum = 0, spread = 0;
#pragma unroll 4
        for (rt_u32 part = i / groups; part < parts; part += shares) {
            const rt_u32 lo = part * m.each, end = lo + m.each,
                         hi = end < m.places ? end : m.places;
            const rt_i64 at = from + part * moments.stride[1];
            /* A part without places counts for nothing; its moments are 0 and 0, not undefined. */
            const float n = lo < hi ? (float)((hi - lo) * channels) : 0;
            const float away = mpk_get(moments, g, at) - first;
            sum += n * away;
            spread += mpk_get(moments, g, at + moments.stride[3]) + n * away * away;
        }
        s_sums[i] = sum;
        s_spreads[i] = spread;
    }
    mpk_sync();
    for (rt_u32 k = (rt_u32)mpk_thread(); k < groups; k += MPK_THREADS) {
        float sum = 0, spread = 0;
        /* In rising order of shares, so the bits are the same in all tasks of an entry. */
        for (rt_u32 i = 0; i < shares; i++) {
            sum += s_sums[i * groups + k];
            spread += s_spreads[i * groups + k];
        }
        const float by = 1.0f / ((float)m.places * (float)channels), away = sum * by;
        /* About the mean of all, from sums about that of part 0. */
        const float variance = spread * by - away * away;
        norms.s_mean[k] =
            mpk_get(moments, g, entry * moments.stride[0] + k * moments.stride[2]) + away;
        norms.s_factor[k] = 1.0f / sqrtf((variance > 0 ? variance : 0) + (float)eps);
    }
    mpk_sync();
    return norms;
}

/* One entry's channel as factor and term: y = (x - mean) * factor + term.  The mean is taken off
 * first and not folded into the term, where it would cancel. */
struct group_split_line {
    float factor, term;
};
MPK_FN group_split_line group_split_line_of(const mpk_task &t, const mpk_view &weight,
                                            const mpk_view &bias, const group_split_norms &norms,
                                            rt_u32 c, rt_u32 channels)
{
    group_split_line r = {norms.s_factor[c / channels], 0};
    if (mpk_is_there(weight))
        r.factor *= mpk_get(weight, mpk_data(t, weight), c * weight.stride[0]);
    if (mpk_is_there(bias))
        r.term = mpk_get(bias, mpk_data(t, bias), c * bias.stride[0]);
    return r;
}

/* Where place number `place` of a box of an entry begins, in elements: a box may cut the image
 * along any axis, so its places need not lie evenly.  A box of one column of [H, W] has places W
 * entries apart. */
MPK_FN rt_i64 group_split_in_box(const mpk_view &v, const mpk_box &box, rt_u32 place)
{
    rt_i64 from = box.lo[0] * v.stride[0];
#pragma unroll
    for (int i = RT_MAX_RANK - 1; i > 0; i--)
        if (i < v.rank - 1) {
            const rt_u32 size = (rt_u32)(box.hi[i] - box.lo[i]), rest = place / size;
            from += (box.lo[i] + (place - rest * size)) * v.stride[i];
            place = rest;
        }
    return from;
}

/* What a thread has of the groups of its channels: 24 registers, found once for all its places of
 * an entry. */
struct group_split_lines {
    float r_mean[EIGHT], r_factor[EIGHT], r_term[EIGHT];
};

/* The activation, if there is one, of a value that is rounded to y's dtype after it. */
MPK_FN float group_split_activate(const mpk_view &y, int act, float value)
{
    return act == ACTIVATE_NONE ? value : activate_as(mpk_dtype_bytes(y.dtype) == 2, act, value);
}
/* An eight of x, normalised, to y: this thread's channels of one place.  to: their first entry in
 * y. */
MPK_FN void group_split_put(const mpk_view &x, const mpk_view &y, char *g_y, rt_i64 to,
                            const eight &in, const group_split_lines &of, int act)
{
    float r[EIGHT];
    eight_floats(x.dtype, in, r);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        /* In fp32 from here to the result, which is rounded once. */
        const float value = (r[i] - of.r_mean[i]) * of.r_factor[i] + of.r_term[i];
        r[i] = group_split_activate(y, act, value);
    }
    eight_store(y, g_y, to, eight_of(y.dtype, r));
}

/* n places that lie evenly from g_x and from g_y on, m.step and y_step entries apart.  The loads of
 * the next places are in flight while those at hand are stored: in[] is what was next[] a round
 * ago. */
MPK_FN void group_split_even(const mpk_view &x, const char *g_x, const mpk_view &y, char *g_y,
                             const group_split_image &m, rt_i64 y_step, const group_split_share &s,
                             const group_split_lines &of, rt_u32 n, int act)
{
    /* Places of a round, of all threads.  A load past the end is of the thread's first place again,
     * so no condition stands between loads. */
    const rt_u32 each = s.together * GROUP_SPLIT_LOADS;
    eight in[GROUP_SPLIT_LOADS], next[GROUP_SPLIT_LOADS]; /* past the end the first again */
#pragma unroll
    for (int k = 0; k < GROUP_SPLIT_LOADS; k++) {
        const rt_u32 at = s.place + k * s.together;
        next[k] = eight_load(x, g_x, (at < n ? at : s.place) * m.step + s.channel);
    }
#pragma unroll 1
    for (rt_u32 place = s.place; place < n; place += each) {
#pragma unroll
        for (int k = 0; k < GROUP_SPLIT_LOADS; k++) {
            const rt_u32 at = place + each + k * s.together;
            in[k] = next[k];
            next[k] = eight_load(x, g_x, (at < n ? at : s.place) * m.step + s.channel);
        }
#pragma unroll
        for (int k = 0; k < GROUP_SPLIT_LOADS; k++)
            if (place + k * s.together < n)
                group_split_put(x, y, g_y, (place + k * s.together) * y_step + s.channel, in[k], of,
                                act);
    }
}

/* n places of a box of an entry by eights; m, of: the images of x and of y.  Threads without
 * channels fill their lines from channel 0 and leave, as do those whose first place is none: no
 * barrier follows before the next entry's, to which all come. */
MPK_FN void group_split_rows(const mpk_task &t, const mpk_view &x, const mpk_view &weight,
                             const mpk_view &bias, const mpk_view &y, const group_split_image &m,
                             const group_split_image &of, const group_split_norms &norms,
                             rt_u32 channels, const mpk_box &box, rt_u32 n, int act)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    const group_split_share s = group_split_share_of(m);
    /* even: the box's places lie as far apart as the image's, in x and in y. */
    group_split_lines lines;
    bool even = true; /* inner axes of places are not cut */
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        const rt_u32 c = s.active ? s.channel + i : 0;
        const group_split_line line = group_split_line_of(t, weight, bias, norms, c, channels);
        lines.r_mean[i] = norms.s_mean[c / channels];
        lines.r_factor[i] = line.factor;
        lines.r_term[i] = line.term;
    }
    if (!s.active || s.place >= n)
        return;
        /* Axis 1, the outermost of places, may be cut: its entries are as far apart as before. */
#pragma unroll
    for (int i = 2; i < RT_MAX_RANK; i++)
        if (i < x.rank - 1)
            even = even && box.hi[i] - box.lo[i] == (rt_u32)x.dims[i];
    if (even) {
        g_x += group_split_in_box(x, box, 0) * mpk_dtype_bytes(x.dtype);
        g_y += group_split_in_box(y, box, 0) * mpk_dtype_bytes(y.dtype);
        group_split_even(x, g_x, y, g_y, m, of.step, s, lines, n, act);
        return;
    }
#pragma unroll 1
    for (rt_u32 place = s.place; place < n; place += s.together)
        group_split_put(x, y, g_y, group_split_in_box(y, box, place) + s.channel,
                        eight_load(x, g_x, group_split_in_box(x, box, place) + s.channel), lines,
                        act);
}

/* The body of group_scale, whose box has whole rows of channels.  Tasks are cut along places; each
 * joins the moments of its entries again, so none waits for another but by the event of
 * group_moments. */
MPK_FN void group_scale_run(const mpk_task &t, const mpk_view &x, const mpk_view &moments,
                            const mpk_view &weight, const mpk_view &bias, const mpk_view &y,
                            double eps, int act)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    const group_split_image m = group_split_of(x, g_x, moments.dims[1]),
                            of = group_split_of(y, g_y, 1);
    const rt_u32 channels = m.channels / (rt_u32)moments.dims[2]; /* of a group */
    const mpk_box box = mpk_box_of(t, y.rank);
    mpk_box one = box; /* an entry of it */
    if (!mpk_count(box, y.rank))
        return;
    for (rt_u32 entry = box.lo[0]; entry < box.hi[0]; entry++) {
        const group_split_norms norms = group_split_join(t, moments, m, entry, eps);
        one.lo[0] = entry;
        one.hi[0] = entry + 1;
        /* Entries of y in this batch entry's part of the box; places times channels. */
        const rt_u64 n = mpk_count(one, y.rank);
        /* Both images: x and y have one shape, but strides and addresses of their own. */
        if (m.by_eights && of.by_eights) {
            group_split_rows(t, x, weight, bias, y, m, of, norms, channels, one,
                             (rt_u32)(n / m.channels), act);
            continue;
        }
        /* Entry by entry, by the same formula. */
        for (rt_u64 i = (rt_u64)mpk_thread(); i < n; i += MPK_THREADS) {
            rt_i64 at[RT_MAX_RANK];
            mpk_place(one, y.rank, i, at);
            const rt_u32 c = (rt_u32)(i % m.channels);
            const group_split_line line = group_split_line_of(t, weight, bias, norms, c, channels);
            const float value =
                (mpk_get(x, g_x, mpk_offset(x, at)) - norms.s_mean[c / channels]) * line.factor +
                line.term;
            mpk_put(y, g_y, mpk_offset(y, at), group_split_activate(y, act, value));
        }
    }
}

#endif
