/* kv.cuh - how a KV page lies in memory: the one place that knows.
 *
 * The caches are [n_pages, G, P, K]: P positions of a page, G KV heads of K dims.  Inside the P
 * x K elements of one page and head the order is the bodies' own.  With 16-bit elements, K a
 * multiple of 32 and P a multiple of 16 it is that of tensor-core fragments, so that each lane's
 * operand is one conflict-free read from shared memory of 16 bytes (keys) or 8 bytes (values);
 * otherwise it is plain, [P, K].  rope_kv and attention write and read by kv_key_at and
 * kv_value_at; attention_tile.cuh and attention_group.cuh read the blocks as they lie.
 *
 *   keys    blocks of 8 tokens x 32 dims, 512 bytes: block (token / 8) * (K / 32) + dim / 32; in
 *           it token r has 64 bytes, four units of 8 dims, in the 64-byte swizzle, as in packed
 *           weights (gen/device_body.h):
 *
 *              r = 0, 1   unit 0 1 2 3
 *              r = 2, 3        1 0 3 2
 *              r = 4, 5        2 3 0 1
 *              r = 6, 7        3 2 1 0
 *
 *   values  blocks of 8 dims x 16 tokens, 256 bytes: block (token / 16) * (K / 8) + dim / 8; in it
 *           a dim has 32 bytes, four pieces of 4 tokens.  Piece c is what lane c of four holds of a
 *           16 x 8 product, tokens 2c, 2c + 1, 2c + 8, 2c + 9; pieces stand in the order in which
 *           wgmma's 32-byte swizzle reads them:
 *
 *              dims 0-3   tokens 0 1 8 9 | 4 5 12 13 | 2 3 10 11 | 6 7 14 15
 *              dims 4-7   tokens 2 3 10 11 | 6 7 14 15 | 0 1 8 9 | 4 5 12 13
 */
#ifndef TILE_KV_CUH
#define TILE_KV_CUH

#include "tile/task.cuh"

/* Does a page lie in blocks?  Constants of the instance, so no test is left in the code. */
MPK_FN bool kv_is_blocked(int page_tokens, int head_size, int element_bytes)
{
    return element_bytes == 2 && page_tokens % 16 == 0 && head_size % 32 == 0;
}

/* Element of (token of the page, dim) from the start of the page's part of one head. */
MPK_FN int kv_key_at(int token, int dim, int page_tokens, int head_size, int element_bytes)
{
    if (!kv_is_blocked(page_tokens, head_size, element_bytes))
        return token * head_size + dim;
    int block = token / 8 * (head_size / 32) + dim / 32, r = token % 8, c = dim % 32;
    return block * 256 + r * 32 + (c / 8 ^ r / 2) * 8 + c % 8;
}
/* Element of piece c (0 to 3) of a dim from the start of its block: 16 elements a dim, 4 a
 * piece. */
MPK_FN int kv_piece_at(int dim, int c)
{
    return dim % 8 * 16 + (c % 2 * 2 + c / 2 ^ dim % 8 / 4 * 2) * 4;
}
/* Bytes from the start of a block of values to the two words of a lane of a 16 x 8 product. */
MPK_FN int kv_values_of_lane(int lane)
{
    return kv_piece_at(lane / 4, lane % 4) * 2;
}
/* The same for values. */
MPK_FN int kv_value_at(int token, int dim, int page_tokens, int head_size, int element_bytes)
{
    if (!kv_is_blocked(page_tokens, head_size, element_bytes))
        return token * head_size + dim;
    int block = token / 16 * (head_size / 8) + dim / 8, t = token % 16;
    return block * 128 + kv_piece_at(dim, t % 8 / 2) + t / 8 * 2 + t % 2;
}

#endif
