/* split_own.h - which units of a token's context a split of attention_split has, if the token's
 * own context alone decides how it is cut (attribute own); the same text for the host and for
 * GPUs.
 *
 * A token of u units is cut into parts of `own` units, or, if that gives more than S parts, of
 * ceil(u / S) units; the last may be shorter.  The parts of the tokens of a step are dealt out
 * to the S splits one after the other: a token begins at the split after the last one of the
 * token before it, split 0 following split S - 1.  Of the splits that a token has, the lowest
 * takes its first part, so that splits in rising order are parts in rising order.  S = 4, own =
 * 2:
 *
 *   split           0      1     2      3
 *   token A, u = 3  0-1    2                    2 parts, from split 0
 *   token B, u = 5  0-1          2-3    4       3 parts, from split 2: splits 2, 3, 0
 *
 * So the tokens of a step share the splits evenly, but what is added up, and in which order,
 * depends on u alone: the bits of a token do not depend on the batch.  In generated code S and
 * own are constants, so no division is by a variable.
 *
 * Code for a GPU defines SPLIT_FN, the words before a function, before it includes this file.
 */
#ifndef OP_SPLIT_OWN_H
#define OP_SPLIT_OWN_H

#ifndef SPLIT_FN
#define SPLIT_FN static inline
#endif

/* How many splits a token of `units` units takes. */
SPLIT_FN int split_own_parts(int units, int splits, int own)
{
    return units > own * splits ? splits : (units + own - 1) / own;
}

/* The units *lo <= i < *hi of a token that split `split` has; none if *lo = *hi.  before: how
 * many splits the tokens before it in the step take together, or that number modulo `splits`. */
SPLIT_FN void split_own_units(int split, int splits, int own, int before, int units, int *lo,
                              int *hi)
{
    const int parts = split_own_parts(units, splits, own),
              length = parts < splits ? own : (units + splits - 1) / splits;
    const int first = before % splits, around = first + parts > splits ? first + parts - splits : 0;
    int part = parts; /* none */
    if (split < around)
        part = split;
    else if (split >= first)
        part = split - first + around;
    const int from = part < parts ? part * length : units;
    *lo = from < units ? from : units;
    *hi = *lo + length < units ? *lo + length : units;
}

#endif
