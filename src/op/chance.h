/* chance.h - the weight of a logit among those of its row, as an integer; the same text for the
 * host and for GPUs.
 *
 * The weight is 2^39 exp((x - largest) / temperature), rounded down, so that of the largest logit
 * is 2^39; it is 0 from 2^-40 of that on, and for NaN and -inf.  It takes single multiplications
 * and additions in f32, each rounded by itself, so that every processor gets the same integer; it
 * is within 2e-6 of the exact one.  Sums of integers do not depend on their order: rows may be cut
 * among threads in any way, and equal logits, filters and random numbers pick the same token
 * everywhere.  PEAKS_MOST_COLUMNS of the largest weights fit 64 bits.
 *
 * A row of weights is passed through in lanes: first the ids i with (i / 4) % 256 = 0 in rising
 * order, then those with 1, and so on, so that each of 256 threads has one lane and loads four
 * neighbours at once.
 *
 * Code for a GPU defines CHANCE_FN, how a function begins, and CHANCE_MUL and CHANCE_ADD, which the
 * compiler must not contract, before it includes this file.
 */
#ifndef OP_CHANCE_H
#define OP_CHANCE_H

#ifndef CHANCE_FN
#define CHANCE_FN static inline
#define CHANCE_MUL(a, b) ((a) * (b))
#define CHANCE_ADD(a, b) ((a) + (b))
#endif

typedef unsigned long long chance;

enum { CHANCE_LANES = 256, CHANCE_NEIGHBOURS = 4, CHANCE_BITS = 39 };

/* Binary logarithms for each unit of a logit; finite, so that the largest logit has weight 1 at any
 * temperature. */
CHANCE_FN float chance_scale(float temperature)
{
    const double scale = 1.4426950408889634 / (double)temperature, most = 3e38;
    return (float)(scale < most ? scale : most);
}

/* The binary logarithm of a weight relative to the largest. */
CHANCE_FN float chance_log(float x, float largest, float scale)
{
    return CHANCE_MUL(CHANCE_ADD(x, -largest), scale);
}

/* The weight of a logit whose chance_log is t.  A t above 0 counts as 0; it arises if `largest` is
 * not the peak of this row.  t is rounded to a whole number by adding 1.5 * 2^23; 2^whole is exact
 * and 2^part is a polynomial, |part| <= 1/2. There is no branch, so that a thread may compute
 * several at a time. */
CHANCE_FN chance chance_of_log(float t)
{
    const float round = 12582912.0f;
    const int counts = t > -CHANCE_BITS - 1;
    t = counts && t < 0 ? t : 0;
    const float whole = CHANCE_ADD(CHANCE_ADD(t, round), -round), part = CHANCE_ADD(t, -whole);
    float p = 1.326472708012373e-3f;
    p = CHANCE_ADD(CHANCE_MUL(p, part), 9.671512862187637e-3f);
    p = CHANCE_ADD(CHANCE_MUL(p, part), 5.550733745645717e-2f);
    p = CHANCE_ADD(CHANCE_MUL(p, part), 0.2402224208184316f);
    p = CHANCE_ADD(CHANCE_MUL(p, part), 0.6931469775965888f);
    p = CHANCE_ADD(CHANCE_MUL(p, part), 1.0f);
    const chance weight =
        (chance)(unsigned)CHANCE_MUL(p, 1073741824.0f) << (CHANCE_BITS - 30) >> (int)-whole;
    return counts ? weight : 0;
}

CHANCE_FN chance chance_of(float x, float largest, float scale)
{
    return chance_of_log(chance_log(x, largest, scale));
}

/* A share of a sum, rounded up; at least 1, so that something reaches it. */
CHANCE_FN chance chance_share(float share, chance sum)
{
    const double part = (double)share * (double)sum;
    const chance down = part > 0 ? (chance)part : 0;
    return down + (down == 0 || (double)down < part);
}

/* The least weight that is kept by min_p, which is off at 0 and NaN. */
CHANCE_FN chance chance_least(float min_p)
{
    const float most = (float)(1ull << CHANCE_BITS);
    return min_p > 0 ? chance_share(min_p < 1 ? min_p : 1, (chance)most) : 0;
}

#endif
