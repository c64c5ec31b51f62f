/* context.h - how the context of a token is cut into parts, by its own positions alone; the same
 * text for the host and for GPUs.
 *
 * A token sees the positions first .. last of its slot.  They lie in blocks of CONTEXT_BLOCK
 * positions, counted from position 0: blocks first / 16 .. last / 16, n of them.  These are cut
 * into P parts of nearly equal length,
 *
 *   P = 1 below twice CONTEXT_LEAST blocks, else min(CONTEXT_PARTS, n / CONTEXT_LEAST),
 *
 * and part i has the blocks n i / P .. n (i + 1) / P - 1 of them.  A part is attended by itself and
 * the parts are folded in rising order, so a token's bits depend on its positions and on nothing
 * else: not on the tokens beside it, not on which tasks do the parts, not on how many threads run.
 *
 * Where parts are the work of several tasks, each has a place of CONTEXT_PARTS: part i has place
 * 16 i / P, so that few parts lie far apart and ranges of places have about as many parts each.
 * Four parts have the places 0, 4, 8, 12, three 0, 5, 10.
 *
 * Used by attend.h, attention_parts.c, the CPU's attention_kernels.h and attention_parts.cuh.  Code
 * for a GPU defines CONTEXT_FN, the words before a function, before it includes this file.
 */
#ifndef OP_CONTEXT_H
#define OP_CONTEXT_H

#ifndef CONTEXT_FN
#define CONTEXT_FN static inline
#endif

/* Positions of a block, blocks of the shortest part of several, most parts. */
enum { CONTEXT_BLOCK = 16, CONTEXT_LEAST = 16, CONTEXT_PARTS = 16 };

/* Blocks that hold the positions first .. last; 0 if there are none. */
CONTEXT_FN int context_blocks(long long first, long long last)
{
    return last < first ? 0 : (int)(last / CONTEXT_BLOCK - first / CONTEXT_BLOCK + 1);
}

/* Parts that n blocks are cut into. */
CONTEXT_FN int context_parts(int n)
{
    const int parts = n / CONTEXT_LEAST;
    if (parts < 2)
        return 1;
    return parts < CONTEXT_PARTS ? parts : CONTEXT_PARTS;
}

/* The block at which part i begins, counted from the first; of part P: n. */
CONTEXT_FN int context_begin(int n, int parts, int i)
{
    return (int)((long long)n * i / parts);
}

/* The place of part i. */
CONTEXT_FN int context_place(int parts, int i)
{
    return CONTEXT_PARTS * i / parts;
}

/* The first part whose place is `place` or later; P if there is none. */
CONTEXT_FN int context_from(int parts, int place)
{
    return (place * parts + CONTEXT_PARTS - 1) / CONTEXT_PARTS;
}

#endif
