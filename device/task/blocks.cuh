/* blocks.cuh - weights in GGUF block formats, unpacked in registers on their way into a product.
 *
 * Input: a warp's piece of a slab in shared memory (rt/rt_blocks.h): 128 columns of 8 rows.
 * Output: the piece's products with x.  Called by linear_stream.cuh.
 *
 * Idea: a byte in the lowest place of the f32 2^23 is the float 2^23 + byte, by one permutation.
 * What is taken off it is exact; so are the scale, whose factors have 11 and 8 bits, and the
 * product of an integer of 4 or 5 bits with it.  So a weight is rounded as its file's reader
 * rounds it, and once more to 16 bits.
 *
 * Cost of a weight: a permutation, a subtraction, a multiply-add, half a conversion; of 32 of them
 * the scales, 8 conversions or 24 instructions (K).
 */
#ifndef TASK_BLOCKS_CUH
#define TASK_BLOCKS_CUH

#include "rt/rt_blocks.h"
#include "tile/halves.cuh"

/* Byte k of a word as a float, less 2^23: what the caller takes off has that in it. */
MPK_FN float blocks_byte(rt_u32 v, int k)
{
    return __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7440u + (rt_u32)k));
}
#define BLOCKS_BASE 8388608.0f /* 2^23 */

/* Words of a header or of quants, by a constant. */
MPK_FN rt_u32 blocks_word(const mpk_words &v, int j)
{
    if (j < 2)
        return j ? v.y : v.x;
    return j == 2 ? v.z : v.w;
}

/* Scale and addend of this lane's columns of block j; odd: its columns are 16 to 31 of it. */
template <int FORM>
MPK_FN void blocks_scale(const mpk_words &head, int j, bool odd, float *scale, float *addend)
{
    if (RT_IS_K(FORM)) {
        const rt_u32 a = odd ? head.z : head.y;
        *scale = ptx_low_f16(head.x) * (blocks_byte(a, j) - (BLOCKS_BASE + 128));
        *addend = -(ptx_high_f16(head.x) * (blocks_byte(head.w, j) - BLOCKS_BASE));
    } else {
        const rt_u32 s = blocks_word(head, j / 2), m = blocks_word(head, 2 + j / 2);
        *scale = j % 2 ? ptx_high_f16(s) : ptx_low_f16(s);
        *addend = j % 2 ? ptx_high_f16(m) : ptx_low_f16(m);
    }
}

/* Two weights in a word, from bytes k and k + 1. */
MPK_FN rt_u32 blocks_pair(rt_u32 v, int k, float zero, float scale, float addend)
{
    const float a = blocks_byte(v, k) - zero, b = blocks_byte(v, k + 1) - zero;
    return halves_pack(fmaf(scale, a, addend), fmaf(scale, b, addend));
}

/* The piece by x, added to first and second, which are sums of their own as in stream_multiply.
 * zero: 2^23 and what is to be taken off an integer. */
template <int FORM, int WIDE>
MPK_FN void blocks_multiply(const char *s_piece, const mpk_words (*x)[1 + WIDE], float zero,
                            int lane, float *first, float *second)
{
    const mpk_words head = *(const mpk_words *)(s_piece + RT_QUANTS_BYTES(FORM) + lane / 4 * 16);
    const mpk_words *quants = (const mpk_words *)s_piece + lane;
    const bool odd = lane & 2; /* columns 8 c ... of 32 */
    mpk_words q = quants[0];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const mpk_words a = x[j][0], b = x[j][WIDE];
        float scale, addend;
        rt_u32 low, high; /* bytes of columns 0 to 3, 4 to 7 */
        blocks_scale<FORM>(head, j, odd, &scale, &addend);
        if (RT_IS_BYTES(FORM)) {
            if (j == 2)
                q = quants[32];
            low = blocks_word(q, j % 2 * 2);
            high = blocks_word(q, j % 2 * 2 + 1);
        } else {
            low = blocks_word(q, j) & 0x0f0f0f0fu;
            high = blocks_word(q, j) >> 4 & 0x0f0f0f0fu;
        }
        halves_multiply(first, a.x, a.y, a.z, a.w, blocks_pair(low, 0, zero, scale, addend),
                        blocks_pair(low, 2, zero, scale, addend));
        halves_multiply(second, b.x, b.y, b.z, b.w, blocks_pair(high, 0, zero, scale, addend),
                        blocks_pair(high, 2, zero, scale, addend));
    }
}

#endif
