/* blocks.cuh - products with weights in GGUF block formats, as integers.
 *
 * Input: a warp's pieces of two slabs in shared memory (rt/rt_blocks.h): 128 columns of 16 rows; x
 * in registers, as loaded.  Output: the pieces' products with x.  Called by linear_stream.cuh.
 *
 * Idea: the integers of a block are exact in bf16, so the tensor cores multiply these, and what
 * belongs to all 32 columns of a block is applied to their sum:
 *
 *   sum of w x = s sum(q x) + m sum(x)         d (sum of a sum(q x)) - e (sum of b sum(x)), K
 *
 * The weights are the 16 rows of a product's first operand, 8 tokens the columns of the second: so
 * a lane scales sums of two rows alone.  A nibble in the lowest place of the bf16 128 is 128 + q,
 * by one LOP3 for two of them; one addition takes off 128 and the format's zero.  The sums of x of
 * 32 columns are computed once for all weights, and the terms with m and b are one product more of
 * the four blocks of a piece.
 *
 * MXFP4 (RT_BLOCKS_MX4) has floats of 4 bits and powers of two as scales.  Weights times their
 * scales are exact in bf16, so all columns of a piece have one sum, and nothing is added to it: no
 * sums of x are needed.
 *
 * What a lane 4 g + c has: row g of both pieces (the rows g and g + 8 of the operand); of x,
 * columns 8 c ...
 */
#ifndef TASK_BLOCKS_CUH
#define TASK_BLOCKS_CUH

#include "rt/rt_blocks.h"
#include "task/stream_x.cuh"
#include "tile/products.cuh"

/* Each constant is the same bf16 twice.  In the bf16 128 the lowest bit of the fraction is worth 1,
 * so an integer below 128 that is put there is added. */
enum {
    BLOCKS_ONE = 0x3f803f80u,
    BLOCKS_HALF = 0x3f003f00u,
    BLOCKS_128 = 0x43004300u,
    BLOCKS_LESS_128 = 0xc300c300u, /* -128 */
    BLOCKS_LESS_64 = 0xc280c280u,
    BLOCKS_16384 = 0x46804680u,
    BLOCKS_MX4 = 0x81c081c0u /* the bits that a number of MXFP4 has as a bf16 */
};

/* Constants of one task in registers, because an instruction has room for one immediate operand.
 * zero: twice -(128 + the format's zero), for one addition to two integers. */
struct blocks_numbers {
    rt_u32 of_128, zero, exponent;
};
MPK_FN blocks_numbers blocks_constants(float zero)
{
    /* in the float 2^23 the lowest bit is worth 1 */
    return {ptx_own(BLOCKS_128), ptx_pack_bf16(-zero, -zero), ptx_own(0x4b000000u)};
}

/* Word j of four; j is known at compile time, so v stays in registers. */
MPK_FN rt_u32 blocks_word(const mpk_words &v, int j)
{
    if (j < 2)
        return j ? v.y : v.x;
    return j == 2 ? v.z : v.w;
}

/* The same number twice: one factor for both words of a pair. */
MPK_FN rt_u32 blocks_twice(float v)
{
    return ptx_pack_bf16(v, v);
}

/* ---- x ---- */

/* A sum of 32 columns of x as three bf16: the nearest one and that nearest to what it leaves
 * (`first`), and a third (`rest`).  Three times 8 bits are the 24 of the float, so no digit of the
 * sum is lost though the tensor core multiplies bf16. */
struct blocks_sum {
    rt_u32 first, rest;
};
/* The sums of block c of each page, of token g and, with WIDE, g + 8: lane (g, c) holds them, which
 * is the place in which the last product of a piece wants them. */
template <int AT_ONCE, int WIDE> struct blocks_sums {
    blocks_sum at[AT_ONCE][1 + WIDE];
};

MPK_FN blocks_sum blocks_split(float v)
{
    const float left = v - ptx_low_bf16(ptx_pack_bf16(v, 0));
    const rt_u32 first = ptx_pack_bf16(v, left);
    return {first, ptx_pack_bf16(left - ptx_high_bf16(first), 0)};
}

/* Column n of the second operand has ones for block n / 2 alone, so that lane (g, c), whose results
 * are of columns 2 c and 2 c + 1, holds the sum of block c.  Tokens are rows here, as in
 * stream_operand.  Words 0, 1 and 2, 3 have sums of their own: the same bits with WIDE or
 * without.  All pages are added up, also those that this pass has not got, so that the compiler
 * issues the products of four pages side by side: those of one wait for each other. */
template <int AT_ONCE, int WIDE>
MPK_FN void blocks_add_up(const stream_x<AT_ONCE, WIDE> &x, int thread,
                          blocks_sums<AT_ONCE, WIDE> &sums)
{
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        float low[4] = {}, high[4] = {};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const rt_u32 ones = thread % 32 / 8 == j ? BLOCKS_ONE : 0;
            mpk_words a, b;
            stream_operand<WIDE, false>(x.at[i][j], &a, &b);
            ptx_multiply_bf16(low, a.x, a.y, a.z, a.w, ones, ones);
            if (WIDE)
                ptx_multiply_bf16(high, b.x, b.y, b.z, b.w, ones, ones);
        }
        sums.at[i][0] = blocks_split(low[0] + (WIDE ? high[0] : low[2]));
        if (WIDE)
            sums.at[i][WIDE] = blocks_split(low[2] + high[2]);
    }
}

/* Lanes c and c ^ 2 exchange half of their columns, so that a product has 16 neighbouring ones, as
 * rt_blocks_column says: RT_BLOCKS_8K has a scale for 16 columns, and a product is scaled as a
 * whole. */
template <int AT_ONCE, int WIDE>
MPK_FN void blocks_exchange(int n, int thread, stream_x<AT_ONCE, WIDE> &x)
{
    const bool upper = thread & 2;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        if (i >= n)
            break;
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int m = 0; m <= WIDE; m++) {
                const mpk_words v = x.at[i][j][m];
                const rt_u32 a = __shfl_xor_sync(0xffffffffu, upper ? v.x : v.z, 2),
                             b = __shfl_xor_sync(0xffffffffu, upper ? v.y : v.w, 2);
                if (upper)
                    x.at[i][j][m] = {a, b, v.z, v.w};
                else
                    x.at[i][j][m] = {v.x, v.y, a, b};
            }
    }
}

/* ---- weights ---- */

/* A lane's part of a piece: its quants and its row's header, as they lie in memory. */
template <int FORM> struct blocks_piece {
    mpk_words quants[RT_IS_BYTES(FORM) ? 2 : 1];
    rt_u32 head[RT_HEADER_WORDS(FORM)];
};
template <int FORM> MPK_FN void blocks_load(const char *s_piece, int lane, blocks_piece<FORM> *to)
{
    /* Quants: 16 bytes a lane in a row, without bank conflicts; header words of the eight rows are
     * neighbours. */
    const rt_u32 *head = (const rt_u32 *)(s_piece + RT_QUANTS_BYTES(FORM)) + lane / 4;
#pragma unroll
    for (int i = 0; i < (RT_IS_BYTES(FORM) ? 2 : 1); i++)
        to->quants[i] = ((const mpk_words *)s_piece)[32 * i + lane];
#pragma unroll
    for (int i = 0; i < RT_HEADER_WORDS(FORM); i++)
        to->head[i] = head[8 * i];
}

/* Two integers as bf16: of columns 2 i and 2 i + 1 of the lane's eight of block j.  Of RT_BLOCKS_4K
 * they are 128 too large, which blocks_excess takes off.  A byte has 8 bits and the fraction 7, so
 * the byte's highest bit falls into the exponent and 128 + b becomes 2 b.  In both cases the
 * integer is the smaller of v - 256 and v / 2 - 128, by three instructions for two integers; of 8K,
 * whose bytes have 7 bits, one suffices. */
template <int FORM>
MPK_FN rt_u32 blocks_pair(const blocks_piece<FORM> &p, int j, int i, const blocks_numbers &n)
{
    if (!RT_IS_BYTES(FORM)) {
        const rt_u32 v = ptx_choose(blocks_word(p.quants[0], j) >> 4 * i, 0x000f000fu, n.of_128);
        return FORM == RT_BLOCKS_4K ? v : ptx_fma_bf16(v, BLOCKS_ONE, n.zero);
    }
    const rt_u32 word = blocks_word(p.quants[RT_IS_BYTES(FORM) * (j / 2)], j % 2 * 2 + i / 2),
                 v = __byte_perm(word, n.of_128, i % 2 ? 0x5352 : 0x5150);
    if (FORM == RT_BLOCKS_8K)
        return ptx_fma_bf16(v, BLOCKS_ONE, n.zero);
    return ptx_smaller_bf16(ptx_fma_bf16(v, BLOCKS_ONE, n.zero),
                            ptx_fma_bf16(v, BLOCKS_HALF, BLOCKS_LESS_128));
}

/* The scale of half h of block j's columns; in a form of K it is an integer, a + 128 as a byte: put
 * into the fraction of 2^23 it is exact, by one permutation and one addition. */
template <int FORM>
MPK_FN float blocks_scale(const blocks_piece<FORM> &p, int j, int h, const blocks_numbers &n)
{
    if (!RT_IS_K(FORM))
        return j % 2 ? ptx_high_f16(p.head[j / 2]) : ptx_low_f16(p.head[j / 2]);
    const rt_u32 a = p.head[FORM == RT_BLOCKS_8K ? 1 + h : 1];
    return __uint_as_float(__byte_perm(a, n.exponent, 0x7440u + (rt_u32)j)) - (8388608.0f + 128);
}

/* Byte c of a word, twice, in the fraction of the bf16 128: 128 + its low 7 bits, and if its
 * highest is set twice that (blocks_pair); the bytes that come here have it clear, or all have it
 * set. */
MPK_FN rt_u32 blocks_byte(rt_u32 word, int c, const blocks_numbers &n)
{
    return __byte_perm(word, n.of_128, 0x5050u + (rt_u32)c * 0x0101u);
}

/* What multiplies the sum of x of block c, as two bf16 that add up to it; in a form of K it is an
 * integer. */
template <int FORM>
MPK_FN void blocks_addend(const blocks_piece<FORM> &p, int c, const blocks_numbers &n, rt_u32 *high,
                          rt_u32 *low)
{
    constexpr int LAST = RT_HEADER_WORDS(FORM) - 1;
    if (RT_IS_K(FORM)) {
        *high = ptx_fma_bf16(blocks_byte(p.head[LAST], c, n), BLOCKS_ONE, BLOCKS_LESS_128);
        *low = FORM == RT_BLOCKS_4K ? *high : 0; /* multiplies the sum's third part */
        return;
    }
    const float m = ptx_low_f16((c < 2 ? p.head[2] : p.head[LAST]) >> c % 2 * 16);
    *high = blocks_twice(m);
    *low = blocks_twice(m - ptx_low_bf16(*high));
}

/* -128 a of block c, which takes off the 128 that integers of RT_BLOCKS_4K have too much.  The
 * byte, a + 128, has its highest bit set. */
template <int FORM>
MPK_FN rt_u32 blocks_excess(const blocks_piece<FORM> &p, int c, const blocks_numbers &n)
{
    return ptx_fma_bf16(blocks_byte(p.head[1], c, n), BLOCKS_LESS_64, BLOCKS_16384);
}

/* Multiply both pieces with x over a page's four blocks and add the results to total.  total[m] is
 * of eight tokens: [0] and [1] of row g of the first piece and tokens 2 c and 2 c + 1, [2] and [3]
 * of the second piece.
 *
 * A block is two products of 16 columns, whose sum is scaled once (8K: one each).  scaled: the
 * first terms of all four; added: those with m or b.  d and e of K are of all 128 columns, so they
 * come last. */
template <int FORM, int WIDE>
MPK_FN void blocks_multiply(const blocks_piece<FORM> (&p)[2], const mpk_words (*x)[1 + WIDE],
                            const blocks_sum *sums, const blocks_numbers &n, int lane,
                            float (*total)[4])
{
    float scaled[1 + WIDE][4] = {}, added[1 + WIDE][4] = {};
    rt_u32 high[2], low[2];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float sum[1 + WIDE][4] = {};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const rt_u32 a0 = blocks_pair<FORM>(p[0], j, 2 * h, n),
                         a1 = blocks_pair<FORM>(p[1], j, 2 * h, n),
                         a2 = blocks_pair<FORM>(p[0], j, 2 * h + 1, n),
                         a3 = blocks_pair<FORM>(p[1], j, 2 * h + 1, n);
#pragma unroll
            for (int m = 0; m <= WIDE; m++) {
                const int first = 2 * h; /* of the lane's words of x */
                ptx_multiply_bf16(sum[m], a0, a1, a2, a3, blocks_word(x[j][m], first),
                                  blocks_word(x[j][m], first + 1));
            }
            if (h == 0 && FORM != RT_BLOCKS_8K) /* one scale for both */
                continue;
            const float first = blocks_scale<FORM>(p[0], j, h, n),
                        second = blocks_scale<FORM>(p[1], j, h, n);
#pragma unroll
            for (int m = 0; m <= WIDE; m++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    scaled[m][e] = fmaf(e < 2 ? first : second, sum[m][e], scaled[m][e]);
                    sum[m][e] = 0;
                }
        }
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
        blocks_addend<FORM>(p[k], lane % 4, n, &high[k], &low[k]);
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        /* One product for four blocks: entries 2 c and 2 c + 1 are block c's high part times the
         * first two parts of its sum, 2 c + 8 and + 9 its low part times these, or, of 4K, the same
         * integer times the third. */
        const blocks_sum s = sums[m];
        const rt_u32 rest = FORM == RT_BLOCKS_4K ? s.rest : s.first;
        ptx_multiply_bf16(added[m], high[0], high[1], low[0], low[1], s.first, rest);
        if (FORM == RT_BLOCKS_4K) {
            const rt_u32 first = blocks_excess<FORM>(p[0], lane % 4, n),
                         second = blocks_excess<FORM>(p[1], lane % 4, n);
            ptx_multiply_bf16(scaled[m], first, second, first, second, s.first, rest);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const rt_u32 head = p[e / 2].head[0];
            total[m][e] += RT_IS_K(FORM) ? mpk_two_products(ptx_low_f16(head), scaled[m][e],
                                                            -ptx_high_f16(head), added[m][e])
                                         : scaled[m][e] + added[m][e];
        }
    }
}

/* ---- weights in MXFP4 ---- */

/* Pair i of a word, as rt_turn_pair has packed it, times the scale.  Without the scale it is 2^-126
 * times its values, some of which are below the smallest normal number; the product keeps these
 * (PTX ISA, fma). */
MPK_FN rt_u32 blocks_floats(rt_u32 word, int i, rt_u32 scale)
{
    const rt_u32 v = i == 3 ? ptx_choose(rt_turned(word, 8), 0x00400040u, word & 0x81808180u)
                            : rt_turned(word, i ? (rt_u32)(6 * i) : 2) & BLOCKS_MX4;
    return ptx_fma_bf16(v, scale, 0);
}

/* Block j's scale times 2^126 / 2^RT_MX4_SHIFT, twice: its byte is the exponent of a bf16. */
MPK_FN rt_u32 blocks_power(rt_u32 head, int j)
{
    return __byte_perm(head, 0, 0x4040u + (rt_u32)j * 0x0101u) << 7;
}

/* As blocks_multiply.  Blocks take turns in two sums, so that one product waits for the one before
 * the last. */
template <int WIDE>
MPK_FN void blocks_multiply_floats(const blocks_piece<RT_BLOCKS_MX4> (&p)[2],
                                   const mpk_words (*x)[1 + WIDE], float (*total)[4])
{
    const float unit = __uint_as_float((127 + RT_MX4_SHIFT) << 23); /* 2^RT_MX4_SHIFT */
    float sum[2][1 + WIDE][4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const rt_u32 first = blocks_power(p[0].head[0], j), second = blocks_power(p[1].head[0], j),
                     a = blocks_word(p[0].quants[0], j), b = blocks_word(p[1].quants[0], j);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const rt_u32 a0 = blocks_floats(a, 2 * h, first), a1 = blocks_floats(b, 2 * h, second),
                         a2 = blocks_floats(a, 2 * h + 1, first),
                         a3 = blocks_floats(b, 2 * h + 1, second);
#pragma unroll
            for (int m = 0; m <= WIDE; m++)
                ptx_multiply_bf16(sum[j % 2][m], a0, a1, a2, a3, blocks_word(x[j][m], 2 * h),
                                  blocks_word(x[j][m], 2 * h + 1));
        }
    }
#pragma unroll
    for (int m = 0; m <= WIDE; m++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            total[m][e] = fmaf(sum[0][m][e] + sum[1][m][e], unit, total[m][e]);
}

/* ---- the warps' sums of a tile ---- */

/* Sums of a warp and a group in shared memory: float[8 rows][8 or 16 tokens], from row g, token 2 c
 * on.  A group is one of the two pieces' eight rows. */
template <int WIDE> MPK_FN float *blocks_parts(char *s_parts, int group, int thread)
{
    constexpr int TOKENS = 8 << WIDE;
    return (float *)s_parts + ((group * 8 + thread / 32) * 8 + thread % 32 / 4) * TOKENS +
           thread % 4 * 2;
}

/* Store this lane's sums of group k of two there, or load them, where a tile has more columns than
 * one round of pages. */
template <int WIDE>
MPK_FN void blocks_put(char *s_parts, int group, int thread, const float (*total)[4], int k)
{
    float *to = blocks_parts<WIDE>(s_parts, group, thread);
#pragma unroll
    for (int m = 0; m <= WIDE; m++)
        *(float2 *)(to + 8 * m) = make_float2(total[m][2 * k], total[m][2 * k + 1]);
}
template <int WIDE>
MPK_FN void blocks_take(char *s_parts, int group, int thread, float (*total)[4], int k)
{
    const float *from = blocks_parts<WIDE>(s_parts, group, thread);
#pragma unroll
    for (int m = 0; m <= WIDE; m++) {
        total[m][2 * k] = from[8 * m];
        total[m][2 * k + 1] = from[8 * m + 1];
    }
}

/* As stream_total: add the warps' sums of a group, in the order of warps.  The lane gets rows 2 c
 * and 2 c + 1 of token g, and of g + 8: weights are rows of the product here and columns in
 * stream_total's, and what follows wants the latter. */
template <int WIDE> MPK_FN void blocks_total(const char *s_parts, int group, int lane, float *total)
{
    constexpr int TOKENS = 8 << WIDE;
    const float *from = (const float *)s_parts + (group * 64 + lane % 4 * 2) * TOKENS + lane / 4;
#pragma unroll
    for (int e = 0; e < 4; e++)
        total[e] = 0;
#pragma unroll
    for (int w = 0; w < 8; w++)
#pragma unroll
        for (int e = 0; e < (WIDE ? 4 : 2); e++)
            total[e] += from[(w * 8 + e % 2) * TOKENS + e / 2 * 8];
}

#endif
