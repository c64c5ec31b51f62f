/* experts.h - what the operators of mixtures of experts agree on: limits, and what an id outside
 * the range means.  Used by route, expert_linear and sum_pairs. */
#ifndef OP_EXPERTS_H
#define OP_EXPERTS_H

#include "op/walk.h"

/* More than any model has: bodies keep a list of a token's experts of this size, and a bit for each
 * group of experts.  Products that are neither gated nor summed may have more pairs a token: to
 * them the heads of latent attention are experts (model_decoder.c). */
enum { EXPERTS_MOST_PER_TOKEN = 64, EXPERTS_MOST_GROUPS = 64, EXPERTS_MOST_PLAIN = 128 };

/* Gated products of pairs, where a body deals out chunks of pairs (OP_SHARES): the 8 packed rows
 * that are 4 columns of y are so many slots, one for each chunk in turn, and a task's box is its
 * slots.  Tokens have a multiple of so many experts, so that the chunks of one token alone are as
 * many for each slot.  Four where columns are few: 384 of them, a half of Qwen3-30B-A3B's, are 192
 * slots of every other chunk, one or two for each of 132 workers, but 384 of every fourth, two or
 * three. */
static inline int experts_rounds(int64_t of_token, int64_t columns)
{
    const int64_t few = 512;
    if (of_token % 4 == 0 && columns < few)
        return 4;
    return of_token % 2 ? 1 : 2;
}

/* Groups of 8 rows of a weight [E, rows, columns] without a gate that a body takes side by side,
 * half of its warps each, where a group's columns leave half of them idle or waiting.  Not of few
 * rows, which have too few pairs of groups for all workers. */
static inline int experts_sides(int64_t rows, int64_t columns)
{
    const int64_t most_columns = 512, fewest_rows = 2048;
    return columns <= most_columns && rows >= fewest_rows && rows % 16 == 0 ? 2 : 1;
}

/* The expert of pair (token t, number j); -1 if there is none of that number: such a pair counts
 * as zeros. */
static inline int64_t experts_of_pair(const op_view *ids, int64_t t, int64_t j, int64_t n_experts)
{
    int64_t id = walk_load_int(ids, t * ids->stride[0] + j * ids->stride[1]);
    return id >= 0 && id < n_experts ? id : -1;
}

#endif
