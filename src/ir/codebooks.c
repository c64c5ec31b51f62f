/* codebooks.c - take blocks of the IQ and TQ formats apart (see codebooks.h).
 *
 * Input: the bytes of a block.  Output: a codebook_block.  One function for each format.  Eight
 * elements are handled at a time as the bytes of a 64-bit word, the first in its lowest byte: an
 * entry of a code book is negated where its sign bits say so.  Called by blocks.c and by the
 * CPU's kernels.  Cost: about one operation for each weight.
 *
 * In the layouts below d is an f16, and numbers in brackets are bytes.  Unless stated otherwise,
 * small = 2 s + 1 with s of four bits (two in a byte, the low half first), which is how the
 * formats define their scales.
 */
#include "ir/codebooks.h"

#include <string.h>

#include "base/num.h"
#include "ir/codebook_tables.h"

/* The values of four bits: those of IQ4_NL and IQ4_XS, and those of MXFP4 (e2m1) doubled, so
 * that they are whole. */
const int8_t codebook_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};
const int8_t codebook_mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* ---- words of eight elements ---- */

#define EACH 0x0101010101010101u /* one in every byte */

static uint32_t u16_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t u32_at(const uint8_t *p)
{
    return u16_at(p) | u16_at(p + 2) << 16;
}

static float f16_at(const uint8_t *p)
{
    return num_from_f16((f16)u16_at(p));
}

static void put_word(int8_t *to, uint64_t word)
{
    for (int i = 0; i < 8; i++)
        to[i] = (int8_t)(uint8_t)(word >> 8 * i);
}

/* Negate the bytes whose bit of `signs` (eight bits, the first element's lowest) is set.  A
 * product copies the eight bits into every byte and a mask leaves bit i in byte i; a second step
 * turns any bit of a byte into its lowest.  A byte is negated by inverting it and adding 1;
 * every byte is 1 ... 127, so no sum carries into the next byte. */
static uint64_t negate_bytes(uint64_t word, uint32_t signs)
{
    uint64_t bits = signs * EACH & 0x8040201008040201u;
    uint64_t ones = (((bits & 127 * EACH) + 127 * EACH) | bits) >> 7 & EACH;
    return (word ^ ones * 255) + ones;
}

/* Eight sign bits from the seven stored ones: the eighth makes the number of set bits even, as
 * the formats define it. */
static uint32_t signs_of(uint32_t index)
{
    return index | (uint32_t)__builtin_parity(index) << 7;
}

/* Eight elements of IQ3: two entries of four magnitudes, and the signs of all. */
static uint64_t iq3_word(const uint32_t *book, uint32_t first, uint32_t second, uint32_t signs)
{
    return negate_bytes(book[first] | (uint64_t)book[second] << 32, signs);
}

/* Eight elements -1, 0, 1 of IQ1 with an eighth added or (less) subtracted, times 8.  Bytes are
 * added with 16 more than wanted, so that none is negative, and corrected in all bytes at once. */
static uint64_t iq1_word(uint32_t index, bool less)
{
    uint64_t above = codebook_iq1[index] + (less ? 7 : 9) * EACH; /* 16 more than wanted */
    return (above + 0x70 * EACH) ^ 0x80 * EACH;
}

/* Fill `small` from s in four bits, one for each 16 or 32 neighbours. */
static void put_odd(const uint8_t *s, int neighbours, codebook_block *to)
{
    for (int i = 0; i < 16; i++) {
        int k = 16 * i / neighbours;
        to->small[i] = (int8_t)(2 * (s[k / 2] >> 4 * (k % 2) & 15) + 1);
    }
}

/* ---- formats ---- */

/* d; eight groups of 32: [4] indices, then 4 x 7 bits of signs and 4 bits of s. */
static void take_iq2_xxs(const uint8_t *b, codebook_block *to)
{
    to->d = f16_at(b) / 8;
    for (int g = 0; g < 8; g++) {
        const uint8_t *index = b + 2 + 8 * g;
        uint32_t rest = u32_at(index + 4);
        for (int i = 0; i < 4; i++)
            put_word(to->q + 32 * g + 8 * i,
                     negate_bytes(codebook_iq2_xxs[index[i]], signs_of(rest >> 7 * i & 127)));
        to->small[2 * g] = to->small[2 * g + 1] = (int8_t)(2 * (rest >> 28) + 1);
    }
}

/* d; 32 words of 9 bits of index and 7 of signs; [8] s for each 16. */
static void take_iq2_xs(const uint8_t *b, codebook_block *to)
{
    to->d = f16_at(b) / 8;
    for (int i = 0; i < 32; i++) {
        uint32_t word = u16_at(b + 2 + 2 * i);
        put_word(to->q + 8 * i, negate_bytes(codebook_iq2_xs[word & 511], signs_of(word >> 9)));
    }
    put_odd(b + 66, 16, to);
}

/* d; [32] low bits of indices; [32] signs; [8] two high bits of four indices each; [8] s for each
 * 16. */
static void take_iq2_s(const uint8_t *b, codebook_block *to)
{
    to->d = f16_at(b) / 8;
    for (int i = 0; i < 32; i++) {
        uint32_t high = b[66 + i / 4] >> 2 * (i % 4) & 3u;
        put_word(to->q + 8 * i, negate_bytes(codebook_iq2_s[b[2 + i] | high << 8], b[34 + i]));
    }
    put_odd(b + 74, 16, to);
}

/* d; [64] indices; eight words of 4 x 7 bits of signs and 4 bits of s, one for each 32. */
static void take_iq3_xxs(const uint8_t *b, codebook_block *to)
{
    to->d = f16_at(b) / 4;
    for (int g = 0; g < 8; g++) {
        uint32_t rest = u32_at(b + 66 + 4 * g);
        for (int i = 0; i < 4; i++) {
            const uint8_t *index = b + 2 + 8 * g + 2 * i;
            put_word(to->q + 32 * g + 8 * i,
                     iq3_word(codebook_iq3_xxs, index[0], index[1], signs_of(rest >> 7 * i & 127)));
        }
        to->small[2 * g] = to->small[2 * g + 1] = (int8_t)(2 * (rest >> 28) + 1);
    }
}

/* d; [64] low bits of indices; [8] a high bit of eight indices each; [32] signs; [4] s for each
 * 32. */
static void take_iq3_s(const uint8_t *b, codebook_block *to)
{
    to->d = f16_at(b);
    for (int i = 0; i < 32; i++) {
        uint32_t high = b[66 + i / 4] >> 2 * (i % 4);
        put_word(to->q + 8 * i, iq3_word(codebook_iq3_s, b[2 + 2 * i] | (high & 1) << 8,
                                         b[3 + 2 * i] | (high >> 1 & 1) << 8, b[74 + i]));
    }
    put_odd(b + 106, 32, to);
}

/* d; [32] low bits of indices; eight words of 4 x 3 high bits, 3 bits of s, and a bit that
 * subtracts the eighth. */
static void take_iq1_s(const uint8_t *b, codebook_block *to)
{
    to->d = f16_at(b) / 8;
    for (int g = 0; g < 8; g++) {
        uint32_t rest = u16_at(b + 34 + 2 * g);
        for (int i = 0; i < 4; i++)
            put_word(to->q + 32 * g + 8 * i,
                     iq1_word(b[2 + 4 * g + i] | (rest >> 3 * i & 7) << 8, rest >> 15));
        to->small[2 * g] = to->small[2 * g + 1] = (int8_t)(2 * (rest >> 12 & 7) + 1);
    }
}

/* [32] low bits of indices; [16] in each half three high bits and one that subtracts the eighth;
 * four words of 4 x 3 bits of s, one for each 16, whose top four bits together are d. */
static void take_iq1_m(const uint8_t *b, codebook_block *to)
{
    uint32_t d = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t rest = b[32 + i / 2] >> 4 * (i % 2) & 15u;
        put_word(to->q + 8 * i, iq1_word(b[i] | (rest & 7) << 8, rest >> 3));
    }
    for (int g = 0; g < 4; g++) {
        uint32_t word = u16_at(b + 48 + 2 * g);
        d |= word >> 12 << 4 * g;
        for (int i = 0; i < 4; i++)
            to->small[4 * g + i] = (int8_t)(2 * (word >> 3 * i & 7) + 1);
    }
    to->d = num_from_f16((f16)d) / 8;
}

/* d; a word of two high bits and [4] of four low bits of small + 32, for each 32; [128] elements,
 * each 16 bytes holding 32 in two halves. */
static void take_iq4_xs(const uint8_t *b, codebook_block *to)
{
    uint32_t high = u16_at(b + 2);
    to->d = f16_at(b);
    for (int i = 0; i < 256; i++)
        to->q[i] = codebook_iq4[b[8 + i / 32 * 16 + i % 16] >> i % 32 / 16 * 4 & 15];
    for (int g = 0; g < 8; g++) {
        uint32_t low = b[4 + g / 2] >> 4 * (g % 2) & 15u;
        to->small[2 * g] = to->small[2 * g + 1] =
            (int8_t)((int)(low | (high >> 2 * g & 3) << 4) - 32);
    }
}

/* Digit `place` of a byte of five digits to the base 3, the first of which is the highest, minus
 * 1.  The byte is a fraction of 256: multiplied by 3^place modulo 256 it loses the digits
 * before, and times 3 the next one comes out on top. */
static int8_t third_digit(uint8_t byte, int place)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    return (int8_t)(((uint8_t)(byte * power[place]) * 3 >> 8) - 1);
}

/* [32] and [16] bytes of five digits, [4] of four: digit p of byte i of the n bytes of its part
 * is element n p + i of that part; d. */
static void take_tq1_0(const uint8_t *b, codebook_block *to)
{
    for (int i = 0; i < 160; i++)
        to->q[i] = third_digit(b[i % 32], i / 32);
    for (int i = 0; i < 80; i++)
        to->q[160 + i] = third_digit(b[32 + i % 16], i / 16);
    for (int i = 0; i < 16; i++)
        to->q[240 + i] = third_digit(b[48 + i % 4], i / 4);
    to->d = f16_at(b + 52);
    memset(to->small, 1, sizeof to->small);
}

/* [64] elements + 1 in two bits, byte i of 32 holding elements i, i + 32, i + 64, i + 96; d. */
static void take_tq2_0(const uint8_t *b, codebook_block *to)
{
    for (int i = 0; i < 256; i++)
        to->q[i] = (int8_t)((b[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) - 1);
    to->d = f16_at(b + 64);
    memset(to->small, 1, sizeof to->small);
}

/* Only for dtypes for which codebook_has is true; others have no row. */
void codebook_take(ir_dtype dtype, const uint8_t *block, codebook_block *to)
{
    static void (*const take[IR_DTYPES])(const uint8_t *, codebook_block *) = {
        [IR_IQ1_S] = take_iq1_s,   [IR_IQ1_M] = take_iq1_m,   [IR_IQ2_XXS] = take_iq2_xxs,
        [IR_IQ2_XS] = take_iq2_xs, [IR_IQ2_S] = take_iq2_s,   [IR_IQ3_XXS] = take_iq3_xxs,
        [IR_IQ3_S] = take_iq3_s,   [IR_IQ4_XS] = take_iq4_xs, [IR_TQ1_0] = take_tq1_0,
        [IR_TQ2_0] = take_tq2_0,
    };
    take[dtype](block, to);
}

/* The bits of the float are made directly.  2^(byte - 128) is below the smallest normal number
 * for bytes 0 and 1, which give subnormal numbers; all others give a power of two. */
float codebook_mxfp4_scale(uint8_t byte)
{
    uint32_t bits = byte < 2 ? 0x00200000u << byte : (uint32_t)(byte - 1) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}
