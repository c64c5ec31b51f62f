/* blocks_unpack.cuh - weights in GGUF block formats or MXFP4 become bf16 in shared memory, in the
 * layout that a warpgroup's products read.
 *
 * Input: pieces of 128 columns of 8 rows in shared memory (rt/rt_blocks.h).  Output: of each 32
 * columns of a group of 8 rows 512 bytes in the 64-byte swizzle, as bf16 weights have in a page.
 * Called by blocks_buffer.cuh.
 *
 * A weight is scale q + add, computed for two weights at a time in bf16: q - c, which is exact,
 * times scale, plus add + c scale, rounded once.  c is the integer that stands for the weight
 * nearest to 0, so the addend is at most half of scale, and rounding scale and addend to bf16 costs
 * 2^-9 of the weight or less, as rounding the result does.  (With c = 0 both would be large, and
 * the error of their difference that of all of a block's weights together.)  What a block's weights
 * share is computed in f32, by a lane for each block of a row, and handed on.
 *
 * MXFP4 needs one product for two weights, which is exact: times a power of two, 2^-64 of which is
 * left to the sums (RT_MX4_SHIFT).  All four scales of a row's piece are one word, which each of
 * the row's lanes reads.
 *
 * Cost: with nibbles four instructions for two weights, some 30 for what 32 blocks of 32 columns
 * share, and five to hand on that of one.
 */
#ifndef TASK_BLOCKS_UNPACK_CUH
#define TASK_BLOCKS_UNPACK_CUH

#include "task/blocks.cuh"

/* ---- scales ---- */

/* What weights that have one scale share: those of 32 columns of a row, or of RT_BLOCKS_8K of 16.
 * less: what is taken off an integer as it is packed, so that q - c is left. */
struct blocks_line {
    float scale, add, less;
};
/* Those of a block of a row, as pairs of bf16: scale and add; -less, twice.  Of RT_BLOCKS_8K the
 * scales of the first 16 columns and the last, their addends, what is taken off each.  Of
 * RT_BLOCKS_MX4 the row's word of all four scales, twice. */
template <int FORM> struct blocks_factors {
    rt_u32 at[FORM == RT_BLOCKS_8K ? 3 : 2];
};

/* The line of weights scale q + add; zero: what is taken off a packed integer to have q.  c keeps
 * what is taken off below 256, so that it is exact in bf16. */
MPK_FN blocks_line blocks_line_of(float scale, float add, float zero)
{
    /* of a scale of 0 it is infinity or NaN, and c a bound: no weight has q times such a scale */
    const float c = fminf(fmaxf(rintf(__fdividef(-add, scale)), -63), 63);
    return {scale, fmaf(c, scale, add), zero + c};
}

/* A byte of a word as a float, less `less`: it is put into the lowest byte of 2^23, where a float
 * counts 1, and 2^23 is taken off with `less` in one subtraction.  exponent: the bits of 2^23, in a
 * register (blocks_constants). */
MPK_FN float blocks_number(rt_u32 word, rt_u32 byte, rt_u32 exponent, float less)
{
    return __uint_as_float(__byte_perm(word, exponent, 0x7440u + byte)) - (8388608.0f + less);
}

/* Of block j of a piece, row `row`; zero: see blocks_line_of.  Without K two blocks share a word,
 * scales in the first two words, what is added in the next two.  Of K all four blocks have a byte
 * of each word, and d and e are those of the row's piece. */
template <int FORM>
MPK_FN void blocks_find_factors(const char *s_piece, rt_u32 j, int row, const blocks_numbers &n,
                                float zero, blocks_factors<FORM> *to)
{
    constexpr int LAST = RT_HEADER_WORDS(FORM) - 1; /* the word that has the integers b */
    const rt_u32 *head = (const rt_u32 *)(s_piece + RT_QUANTS_BYTES(FORM)) + row;
    float scale, add;
    if (FORM == RT_BLOCKS_MX4) {
        to->at[0] = to->at[1] = head[0];
        return;
    }
    if (!RT_IS_K(FORM)) {
        const rt_u32 shift = j % 2 * 16;
        scale = ptx_low_f16(head[8 * (j / 2)] >> shift);
        add = ptx_low_f16(head[8 * (2 + j / 2)] >> shift);
    } else {
        scale = ptx_low_f16(head[0]) * blocks_number(head[8], j, n.exponent, 128);
        add = -ptx_high_f16(head[0]) * blocks_number(head[8 * LAST], j, n.exponent, 0);
    }
    const blocks_line first = blocks_line_of(scale, add, zero);
    if (FORM == RT_BLOCKS_8K) {
        scale = ptx_low_f16(head[0]) * blocks_number(head[16], j, n.exponent, 128);
        const blocks_line second = blocks_line_of(scale, add, zero);
        to->at[0] = ptx_pack_bf16(first.scale, second.scale);
        to->at[1] = ptx_pack_bf16(first.add, second.add);
        to->at[FORM == RT_BLOCKS_8K ? 2 : 0] = ptx_pack_bf16(-first.less, -second.less);
    } else {
        to->at[0] = ptx_pack_bf16(first.scale, first.add);
        to->at[1] = ptx_pack_bf16(-first.less, -first.less);
    }
}

/* Of a block of this lane's row, for each 16 columns; each number twice. */
struct blocks_scales {
    rt_u32 scale[2], add[2], less[2];
};
/* from: which of the row's four lanes has it. */
template <int FORM>
MPK_FN blocks_scales blocks_scales_of(const blocks_factors<FORM> &f, int from, int lane)
{
    if (FORM == RT_BLOCKS_MX4) {
        const rt_u32 power = blocks_power(f.at[0], from);
        return {{power, power}, {0, 0}, {0, 0}};
    }
    from += lane / 4 * 4;
    const rt_u32 first = __shfl_sync(0xffffffffu, f.at[0], from),
                 second = __shfl_sync(0xffffffffu, f.at[1], from);
    blocks_scales s;
    s.scale[0] = __byte_perm(first, first, 0x1010);
    if (FORM == RT_BLOCKS_8K) {
        const rt_u32 third = __shfl_sync(0xffffffffu, f.at[FORM == RT_BLOCKS_8K ? 2 : 0], from);
        s.scale[1] = __byte_perm(first, first, 0x3232);
        s.add[0] = __byte_perm(second, second, 0x1010);
        s.add[1] = __byte_perm(second, second, 0x3232);
        s.less[0] = __byte_perm(third, third, 0x1010);
        s.less[1] = __byte_perm(third, third, 0x3232);
    } else {
        s.scale[1] = s.scale[0];
        s.add[0] = s.add[1] = __byte_perm(first, first, 0x3232);
        s.less[0] = s.less[1] = second;
    }
    return s;
}

/* ---- weights ---- */

/* Integers 2 k and 2 k + 1 of the lane's eight of a block as bf16: put into the lowest places of
 * 128, and `less` (negative) added.  first, second: its words, of nibbles one.  Of RT_BLOCKS_8 as
 * in blocks_pair: the smaller of v - 256 and v / 2 - 128, since a byte's highest bit falls into the
 * exponent. */
template <int FORM>
MPK_FN rt_u32 blocks_two(rt_u32 first, rt_u32 second, int k, rt_u32 less, const blocks_numbers &n)
{
    if (!RT_IS_BYTES(FORM)) {
        const rt_u32 two = ptx_choose(first >> 4 * k, 0x000f000fu, n.of_128);
        return ptx_fma_bf16(two, BLOCKS_ONE, less);
    }
    const rt_u32 two = __byte_perm(k / 2 ? second : first, n.of_128, k % 2 ? 0x5352 : 0x5150);
    if (FORM == RT_BLOCKS_8K)
        return ptx_fma_bf16(two, BLOCKS_ONE, less);
    const rt_u32 q = ptx_smaller_bf16(ptx_fma_bf16(two, BLOCKS_ONE, n.zero),
                                      ptx_fma_bf16(two, BLOCKS_HALF, BLOCKS_LESS_128));
    return ptx_fma_bf16(q, BLOCKS_ONE, less);
}

/* What a lane has of 64 columns of a piece: eight columns of each of two blocks, words of nibbles
 * or pairs of words of bytes. */
struct blocks_eights {
    uint2 at[2];
};
template <int FORM> MPK_FN blocks_eights blocks_read(const char *s_piece, int half, int lane)
{
    if (RT_IS_BYTES(FORM)) {
        const mpk_words all = ((const mpk_words *)s_piece)[32 * half + lane];
        return {{{all.x, all.y}, {all.z, all.w}}};
    }
    const uint2 v = ((const uint2 *)s_piece)[2 * lane + half];
    return {{{v.x, 0}, {v.y, 0}}};
}

/* A block of 8 rows becomes 512 bytes at `to`, the lane's eight weights of row g 16 of them.
 *
 * Lane (g, c) has columns 8 c ..., which are one unit of 16 bytes (rt/rt_blocks.h).  Of
 * RT_BLOCKS_8K it has four of each half of the block, because a scale is of 16 columns and few
 * tokens' products want those together: two halves of units, so lanes store 8 and 8 bytes.  A unit
 * of row g stands at its number ^ g / 2, so that the lanes of two rows fill 128 bytes: no bank
 * conflict. */
template <int FORM>
MPK_FN void blocks_put_block(uint2 eight, const blocks_scales &s, char *to, int lane,
                             const blocks_numbers &n)
{
    const int g = lane / 4, c = lane % 4;
    char *row = to + g * 64;
    rt_u32 w[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        w[k] = FORM == RT_BLOCKS_MX4
                   ? blocks_floats(eight.x, k, s.scale[0])
                   : ptx_fma_bf16(blocks_two<FORM>(eight.x, eight.y, k, s.less[k / 2], n),
                                  s.scale[k / 2], s.add[k / 2]);
    if (FORM == RT_BLOCKS_8K) {
        row += c / 2 * 8;
        *(uint2 *)(row + (c % 2 ^ g / 2) * 16) = {w[0], w[1]};
        *(uint2 *)(row + ((2 + c % 2) ^ g / 2) * 16) = {w[2], w[3]};
    } else {
        *(mpk_words *)(row + (c ^ g / 2) * 16) = {w[0], w[1], w[2], w[3]};
    }
}

#endif
