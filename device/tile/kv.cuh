/* kv.cuh - how a KV page lies in memory: the one place that knows.
 *
 * The caches are [n_pages, G, P, K].  Inside the P x K elements of one page and head the order is
 * the bodies' own: with 16-bit elements, K a multiple of 32 and P a multiple of 16 it is that of
 * tensor-core fragments, so that each lane's operand is one conflict-free 16-byte (keys) or 8-byte
 * (values) read from shared memory, otherwise it is plain.
 *
 *   keys    blocks of 8 tokens x 32 dims, 512 bytes: block (token / 8) * (K / 32) + dim / 32; in
 *           it, token r, dim c at element r * 32 + ((c / 8) ^ (r / 2 % 4)) * 8 + c % 8, as in
 *           packed weights (gen/device_body.h)
 *   values  blocks of 8 dims x 16 tokens, 256 bytes: block (token / 16) * (K / 8) + dim / 8; in it,
 *           a dim has four pieces of 8 bytes, tokens 2c, 2c + 1, 2c + 8 and 2c + 9, which are a
 *           lane's two words of a 16 x 8 product; piece c stands at place c % 2 * 2 + c / 2, in the
 *           32-byte swizzle that wgmma reads
 */
#ifndef TILE_KV_CUH
#define TILE_KV_CUH

#include "tile/task.cuh"

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
/* Element of piece c of a dim from the start of its block. */
MPK_FN int kv_piece_at(int dim, int c)
{
    return dim % 8 * 16 + (c % 2 * 2 + c / 2 ^ dim % 8 / 4 * 2) * 4;
}
/* Bytes from the start of a block of values to the two words of a lane of a 16 x 8 product. */
MPK_FN int kv_values_of_lane(int lane)
{
    return kv_piece_at(lane / 4, lane % 4) * 2;
}
MPK_FN int kv_value_at(int token, int dim, int page_tokens, int head_size, int element_bytes)
{
    if (!kv_is_blocked(page_tokens, head_size, element_bytes))
        return token * head_size + dim;
    int block = token / 16 * (head_size / 8) + dim / 8, t = token % 16;
    return block * 128 + kv_piece_at(dim, t % 8 / 2) + t / 8 * 2 + t % 2;
}

#endif
