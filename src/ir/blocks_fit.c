/* blocks_fit.c - the search of blocks_fit.h.
 *
 * Input: floats, and the importance of each.  Output: scales, minima and integers.  Called by
 * blocks_pack.c for `mpk quantize`.
 *
 * Integers and scales are found in turn: for a given s and m the best integers are the nearest
 * ones; for given integers the best s and m solve two linear equations, those of a weighted
 * regression of x on q.  Each step lowers the error, so the alternation ends in a local optimum,
 * and the start decides in which; a group is therefore begun from several slightly stretched
 * ranges.  A block then rounds the groups' s and m to multiples of d and dmin, trying the
 * neighbours of each, and solves for d and dmin again.  Cost: about 40 passes over each element.
 *
 * Sums run in LANES lanes of fixed order, so that every machine and compiler gives the same
 * bits.
 */
#include "ir/blocks_fit.h"

#include <float.h>
#include <math.h>

/* LANES of a sum; starts on either side of the plain range; most rounds of refining a block. */
enum { LANES = 8, STRETCHES = 3, ROUNDS = 4 };

/* The importances where the caller gives none. */
static const float equal_weights[FIT_BLOCK] = {
#define EIGHT 1, 1, 1, 1, 1, 1, 1, 1
#define SIXTY_FOUR EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT
    SIXTY_FOUR, SIXTY_FOUR, SIXTY_FOUR, SIXTY_FOUR};

/* The nearest integer, halves to even, of a number of magnitude below 2^22: adding 1.5 * 2^23
 * leaves no bits for a fraction. */
static inline float nearest(float x)
{
    return x + 12582912.0f - 12582912.0f;
}

/* Add as a tree of fixed shape, the same as a vector's horizontal sum. */
static inline float add_lanes(const float *lane)
{
    return ((lane[0] + lane[4]) + (lane[1] + lane[5])) +
           ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

/* Fill q with the nearest integers for given s and m, and return the weighted squared error.  s
 * = 0 gives zeros. */
float fit_assign(const fit_form *form, const float *x, const float *w, float s, float m, float *q)
{
    const float least = (float)form->q_least, most = (float)form->q_most,
                inverse = s != 0 ? 1 / s : 0;
    float error[LANES] = {0};
    w = w ? w : equal_weights;
    for (int i = 0; i < form->group; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float level = (x[i + k] + m) * inverse;
            level = level < most ? level : most;
            level = nearest(level > least ? level : least);
            float off = x[i + k] - (s * level - m);
            q[i + k] = level;
            error[k] += w[i + k] * off * off;
        }
    return add_lanes(error);
}

/* Weighted sums over a group, or over a block with a = s q and b = m in place of q and 1. */
typedef struct sums {
    float w, x, q, xq, qq;
} sums;

/* The five sums of the normal equations for s and m. */
static sums add_up(int n, const float *x, const float *w, const float *q)
{
    float sw[LANES] = {0}, sx[LANES] = {0}, sq[LANES] = {0}, sxq[LANES] = {0}, sqq[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float wx = w[i + k] * x[i + k], wq = w[i + k] * q[i + k];
            sw[k] += w[i + k];
            sx[k] += wx;
            sq[k] += wq;
            sxq[k] += wx * q[i + k];
            sqq[k] += wq * q[i + k];
        }
    return (sums){add_lanes(sw), add_lanes(sx), add_lanes(sq), add_lanes(sxq), add_lanes(sqq)};
}

/* The best s and m for given integers, from the normal equations
 *   s sum(w q q) - m sum(w q) = sum(w x q)
 *   s sum(w q)   - m sum(w)   = sum(w x)
 * They stay as they are where the integers do not decide.  A form whose minimum may not be
 * negative falls back to m = 0. */
static void solve_group(const fit_form *form, const sums *t, float *s, float *m)
{
    if (!(t->qq > 0))
        return;
    float determinant = t->w * t->qq - t->q * t->q;
    if (form->minimum != FIT_NO_MINIMUM && determinant > 0) {
        float minimum = (t->q * t->xq - t->qq * t->x) / determinant;
        if (form->minimum == FIT_MINIMUM || minimum > 0) {
            *s = (t->w * t->xq - t->q * t->x) / determinant;
            *m = minimum;
            return;
        }
    }
    *s = (t->xq + (form->minimum == FIT_MINIMUM ? *m * t->q : 0)) / t->qq;
    if (form->minimum == FIT_MINIMUM_BELOW_ZERO)
        *m = 0;
}

/* The search for one group of `form`. */
typedef struct group_search {
    const fit_form *form;
    const float *x, *w;
    float s, m, error; /* the best so far */
} group_search;

/* Begin from s and m, and keep what is better than all before.  Two rounds of solving and
 * assigning nearly always reach the local optimum of a start; formats that store a minimum store
 * no negative scale, so such a result is dropped. */
static void try_start(group_search *g, float s, float m)
{
    float q[32];
    fit_assign(g->form, g->x, g->w, s, m, q);
    for (int round = 0; round < 2; round++) {
        sums t = add_up(g->form->group, g->x, g->w, q);
        solve_group(g->form, &t, &s, &m);
        float error = fit_assign(g->form, g->x, g->w, s, m, q);
        if (!(error < g->error) || (g->form->minimum != FIT_NO_MINIMUM && s < 0))
            return;
        g->s = s, g->m = m, g->error = error;
    }
}

/* The extremes of a group; x has no NaN. */
static void find_range(int n, const float *x, float *low, float *high)
{
    *low = *high = x[0];
    for (int i = 1; i < n; i++) {
        *low = x[i] < *low ? x[i] : *low;
        *high = x[i] > *high ? x[i] : *high;
    }
}

/* Starts for groups with a minimum: the range of x, stretched by small steps either way, since
 * each start leads to another local optimum.  Where the format can only subtract a minimum, an
 * all-positive group starts at 0. */
static void search_range(group_search *g, float low, float high)
{
    const fit_form *form = g->form;
    if (form->minimum == FIT_MINIMUM_BELOW_ZERO && low > 0)
        low = 0;
    g->m = -low;
    if (!(high > low))
        return;
    g->s = (high - low) / (float)form->q_most; /* of numbers whose squares overflow */
    for (int i = -STRETCHES; i <= STRETCHES; i++)
        try_start(g, (high - low) / ((float)form->q_most + 0.3f * (float)i), -low);
}

/* Starts for groups without a minimum: the element of largest magnitude near either end of the
 * integers.  The integers reach one further below zero, so both signs of s are tried. */
static void search_extreme(group_search *g, float extreme)
{
    g->s = extreme / (float)g->form->q_least;
    for (int i = -STRETCHES; i <= STRETCHES; i++)
        try_start(g, extreme / ((float)g->form->q_least + 0.3f * (float)i), 0);
    for (int i = -2; i <= 2; i++)
        try_start(g, extreme / ((float)g->form->q_most + 0.2f * (float)i), 0);
}

/* See blocks_fit.h.  *s and *m are 0 if all of the group is 0. */
void fit_group(const fit_form *form, const float *x, const float *w, float *s, float *m)
{
    group_search g = {.form = form, .x = x, .w = w ? w : equal_weights, .error = FLT_MAX};
    float low, high;
    find_range(form->group, x, &low, &high);
    if (form->minimum != FIT_NO_MINIMUM)
        search_range(&g, low, high);
    else if (low != 0 || high != 0)
        search_extreme(&g, -low > high ? low : high);
    *s = g.s;
    *m = g.m;
}

/* ---- a block of groups ---- */

/* The search for one block: what is tried now, and the best that was complete. */
typedef struct block_search {
    const fit_form *form;
    const float *x, *w;
    fit_block now, best;
} block_search;

static int clamp(int value, int least, int most)
{
    value = value > least ? value : least;
    return value < most ? value : most;
}

/* The integer k for which k d is nearest to s, within the bounds.  The ratio is bounded before
 * it is rounded, since d may be tiny beside s. */
static int multiple(float s, float d, int least, int most)
{
    float ratio = d != 0 ? s / d : 0;
    return clamp((int)lrintf(fminf(fmaxf(ratio, -1000), 1000)), least, most);
}

/* Try a group's integer scale and minimum and the neighbours of both; the best goes into `now`.
 * Returns its error. */
static float round_group(block_search *b, int group, int scale, int minimum)
{
    const fit_form *form = b->form;
    const int at = group * form->group, reach = form->minimum == FIT_NO_MINIMUM ? 0 : 1;
    const float d = num_from_f16(b->now.d), dmin = num_from_f16(b->now.dmin);
    float q[32], least = FLT_MAX;
    for (int i = -1; i <= 1; i++)
        for (int k = -reach; k <= reach; k++) {
            int s = clamp(scale + i, form->scale_least, form->scale_most),
                m = clamp(minimum + k, 0, form->scale_most);
            float error = fit_assign(form, b->x + at, b->w + at, d * (float)s, dmin * (float)m, q);
            if (!(error < least))
                continue;
            least = error;
            b->now.scale[group] = s;
            b->now.minimum[group] = m;
            for (int j = 0; j < form->group; j++)
                b->now.q[at + j] = q[j];
        }
    return least;
}

/* The best d and dmin for given integers: x = d a - dmin c with a = scale q, c = minimum; the
 * same equations as those of a group, in double, as the sums run over 256 elements. */
static void solve_block(const block_search *b, float *d, float *dmin)
{
    double xa = 0, xc = 0, aa = 0, ac = 0, cc = 0;
    for (int group = 0, n = b->form->group; group < FIT_BLOCK / n; group++) {
        sums t = add_up(n, b->x + group * n, b->w + group * n, b->now.q + group * n);
        double scale = b->now.scale[group], minimum = b->now.minimum[group];
        xa += scale * t.xq;
        aa += scale * scale * t.qq;
        xc += minimum * t.x;
        ac += minimum * scale * t.q;
        cc += minimum * minimum * t.w;
    }
    double determinant = aa * cc - ac * ac;
    if (cc > 0 && determinant > 1e-9 * aa * cc) {
        double below = (ac * xa - aa * xc) / determinant;
        *d = (float)((cc * xa - ac * xc) / determinant);
        *dmin = below > 0 ? (float)below : 0;
    } else if (aa > 0) {
        *d = (float)(xa / aa);
    }
}

/* From given d and dmin: round every group, solve for d and dmin again, as long as the error
 * falls.  d and dmin pass through f16 first, so the error is that of the stored block. */
static void refine(block_search *b, float d, float dmin, const float *s, const float *m)
{
    const fit_form *form = b->form;
    for (int round = 0; round < ROUNDS; round++) {
        float error = 0;
        b->now.d = num_to_f16(d);
        b->now.dmin = num_to_f16(dmin);
        d = num_from_f16(b->now.d), dmin = num_from_f16(b->now.dmin);
        for (int group = 0; group < FIT_BLOCK / form->group; group++)
            error +=
                round_group(b, group, multiple(s[group], d, form->scale_least, form->scale_most),
                            multiple(m[group], dmin, 0, form->scale_most));
        if (!(error < b->best.error))
            return;
        b->best = b->now;
        b->best.error = error;
        solve_block(b, &d, &dmin);
    }
}

/* A block has one d and one dmin for all its groups: the largest scale decides d, the deepest
 * minimum dmin, and refine then tries their neighbours.  A scale beyond f16 makes d infinite,
 * which the caller reports. */
void fit_whole(const fit_form *form, const float *x, const float *w, fit_block *out)
{
    block_search b = {.form = form, .x = x, .w = w ? w : equal_weights, .best.error = FLT_MAX};
    float s[FIT_GROUPS] = {0}, m[FIT_GROUPS] = {0}, largest = 0, deepest = 0;
    for (int group = 0; group < FIT_BLOCK / form->group; group++) {
        fit_group(form, x + group * form->group, b.w + group * form->group, &s[group], &m[group]);
        largest = fabsf(s[group]) > fabsf(largest) ? s[group] : largest;
        deepest = m[group] > deepest ? m[group] : deepest;
    }
    float end = (float)(form->scale_least < 0 ? form->scale_least : form->scale_most);
    refine(&b, largest / end, deepest / (float)form->scale_most, s, m);
    *out = b.best;
    if (b.best.error == FLT_MAX)
        out->d = num_to_f16(INFINITY);
}
