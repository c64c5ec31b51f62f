/* split_own.h - which units of a token's context a split of attention_split does when a token's own
 * context alone decides how it is cut (attribute own); the same text for the host and for GPUs.
 *
 * A token of u units is cut into parts of `own` units, or if these are S or more, of ceil(u / S);
 * the last may be shorter.  They lie on neighbouring splits, of which the one after split S - 1 is
 * split 0, beginning where those of the token before it end; which part lies on which of them rises
 * with the split, so that splits in rising order are parts in rising order.  So the tokens of a
 * step share the splits, but what is added up, and in which order, follows from u alone.  Cost: no
 * division but by constants.
 *
 * Code for a GPU defines SPLIT_FN, how a function begins, before it includes this file.
 */
#ifndef OP_SPLIT_OWN_H
#define OP_SPLIT_OWN_H

#ifndef SPLIT_FN
#define SPLIT_FN static inline
#endif

/* Splits that a token takes. */
SPLIT_FN int split_own_parts(int units, int splits, int own)
{
    return units > own * splits ? splits : (units + own - 1) / own;
}

/* Units *lo <= i < *hi of a token that split `split` does, none if lo = hi.  before: splits that
 * the tokens before it in the step take, all of them or modulo `splits`. */
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
