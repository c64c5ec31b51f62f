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
 *           dim d, token t at element d * 16 + (t % 8 / 2) * 4 + t / 8 * 2 + t % 2: a lane's two
 *           words are its tokens of a 16 x 8 product
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
MPK_FN int kv_value_at(int token, int dim, int page_tokens, int head_size, int element_bytes)
{
    if (!kv_is_blocked(page_tokens, head_size, element_bytes))
        return token * head_size + dim;
    int block = token / 16 * (head_size / 8) + dim / 8, t = token % 16;
    return block * 128 + dim % 8 * 16 + t % 8 / 2 * 4 + t / 8 * 2 + t % 2;
}

#endif
