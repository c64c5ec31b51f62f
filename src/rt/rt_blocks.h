/* rt_blocks.h - weights in GGUF block formats, packed for streamed products without being unpacked:
 * the layout, and how a row's blocks get there.
 *
 * The host plans with it (gen/body_linear_stream.c), the loading kernel packs with it
 * (device/pack.cuh), the emulator's tests too, and device/task/blocks.cuh reads what they write.
 * Packing moves integers and copies the bits of scales, so nothing is rounded: a weight keeps the
 * value that its file gives it.
 *
 * A form is how many bits an integer q has and what a row's scales look like:
 *
 *   RT_BLOCKS_4    4 bits, an f16 scale s and an f16 m for 32 columns: w = s (q - zero) + m
 *   RT_BLOCKS_4K   4 bits, f16 d and e for 128 columns, integers a and b for 32 of them:
 *                  w = d a q - e b
 *   RT_BLOCKS_8    as RT_BLOCKS_4, but bytes q + 128, q signed
 *   RT_BLOCKS_8K   as RT_BLOCKS_4K, but bytes q + 64, q signed, and an a for 16 columns
 *   RT_BLOCKS_MX4  4 bits, a float of a sign, two bits of exponent and one of fraction (E2M1), and
 *                  a byte s for 32 columns (E8M0): w = 2^(s - 127) float; of experts alone
 *
 * 8 and 8K hold every format of their kind, so that weights of several formats can be one
 * product's.
 *
 * Layout: groups of 8 rows; a group is slabs of 1,024 columns, one after the other; a slab is 8
 * pieces, one a warp, of 128 columns of the 8 rows:
 *
 *   piece    quants: 512 bytes, or 1,024 | headers: 3 or 4 words of each row, u32[words][8 rows]
 *   quants   lane (g, c), row g, has 16 bytes at 16 (4 g + c): word j is of columns
 *            32 j + 8 c ... + 7, nibble n of its low half has column 2 n, of its high half 2 n + 1.
 *            Of bytes there are two such rows of lanes: words 2 j, 2 j + 1 of the lane's eight have
 *            four columns each, from 32 j + rt_blocks_column on.
 *            Of MX4 word j has four pairs of bf16 that have few bits, each turned out of the way of
 *            the others (rt_turn_pair).
 *   header   scales s of 32 columns each, f16[4] | m, f16[4]
 *            4K: d, e, f16 | a + 128, u8[4] | b, u8[4]
 *            8K: d, e, f16 | a + 128 of columns 0-15 of each 32, u8[4] | of 16-31 | b, u8[4]
 *            MX4: s + 126 - RT_MX4_SHIFT, u8[4], at most 254: s as the exponent of a bf16 that
 *            makes 2^-126 times a number the number times 2^(s - 127) / 2^RT_MX4_SHIFT.  So scales
 *            up to 2^65 are exact, and down to 2^-61
 */
#ifndef RT_BLOCKS_H
#define RT_BLOCKS_H

#include "rt/rt_port.h"

enum {
    RT_BLOCKS_NONE,
    RT_BLOCKS_4,
    RT_BLOCKS_4K,
    RT_BLOCKS_8,
    RT_BLOCKS_8K,
    RT_BLOCKS_MX4,
    RT_BLOCKS_FORMS
};

/* Formats of a file that can be packed. */
enum {
    RT_FORMAT_Q4_0,
    RT_FORMAT_Q4_1,
    RT_FORMAT_Q5_0,
    RT_FORMAT_Q5_1,
    RT_FORMAT_Q8_0,
    RT_FORMAT_Q4_K,
    RT_FORMAT_Q5_K,
    RT_FORMAT_Q6_K,
    RT_FORMAT_MXFP4,
    RT_FORMATS
};

enum {
    RT_SLAB_COLUMNS = 1024,
    RT_PIECE_COLUMNS = 128,
    RT_PIECES = RT_SLAB_COLUMNS / RT_PIECE_COLUMNS /* of a slab */
};

#define RT_IS_BYTES(form) ((form) == RT_BLOCKS_8 || (form) == RT_BLOCKS_8K)
#define RT_IS_K(form) ((form) == RT_BLOCKS_4K || (form) == RT_BLOCKS_8K)
#define RT_QUANTS_BYTES(form) (RT_IS_BYTES(form) ? 1024 : 512)
#define RT_HEADER_WORDS(form) /* of a row */ \
    ((form) == RT_BLOCKS_4K ? 3 : 4 - 3 * ((form) == RT_BLOCKS_MX4))
#define RT_PIECE_BYTES(form) (RT_QUANTS_BYTES(form) + RT_HEADER_WORDS(form) * 32)
#define RT_SLAB_BYTES(form) (RT_PIECES * RT_PIECE_BYTES(form))
/* Groups whose slabs share a page of 16 KB. */
#define RT_GROUPS_OF_PAGE(form) (RT_IS_BYTES(form) ? 1 : 2)
/* What is taken off bytes: with 7 bits a product's integers cost less than with 8, which Q8_0
 * needs. */
#define RT_BYTES_ZERO(form) ((form) == RT_BLOCKS_8K ? 64 : 128)
/* Weights of MXFP4 are multiplied as 2^-64 times what they are: 2^126 times their scale alone would
 * be no bf16. */
#define RT_MX4_SHIFT 64

/* ---- what a block says ---- */

RT_FN int rt_format_is_k(rt_u32 format)
{
    return format >= RT_FORMAT_Q4_K && format <= RT_FORMAT_Q6_K;
}

/* Elements of a block, and its bytes. */
RT_FN rt_u32 rt_format_elements(rt_u32 format)
{
    return rt_format_is_k(format) ? 256 : 32;
}
RT_FN rt_u32 rt_format_bytes(rt_u32 format)
{
    const rt_u64 bytes = 18ull | 20ull << 8 | 22ull << 16 | 24ull << 24 | 34ull << 32 |
                         144ull << 40 | 176ull << 48 | 210ull << 56;
    return format == RT_FORMAT_MXFP4 ? 17 : (rt_u32)(bytes >> 8 * format & 255);
}

RT_FN rt_u32 rt_block_u16(const unsigned char *at)
{
    return (rt_u32)at[0] | (rt_u32)at[1] << 8;
}

/* Integer i of a block, without the sign that its format takes off: as it is stored. */
RT_FN int rt_block_stored(rt_u32 format, const unsigned char *b, rt_u32 i)
{
    const rt_u32 half = i / 16 * 4, group = i / 32;
    switch (format) {
    case RT_FORMAT_Q4_0:
        return b[2 + i % 16] >> half & 15;
    case RT_FORMAT_MXFP4: /* its bits: sign, exponent, fraction */
        return b[1 + i % 16] >> half & 15;
    case RT_FORMAT_Q4_1:
        return b[4 + i % 16] >> half & 15;
    case RT_FORMAT_Q5_0:
        return (b[6 + i % 16] >> half & 15) | (b[2 + i / 8] >> i % 8 & 1) << 4;
    case RT_FORMAT_Q5_1:
        return (b[8 + i % 16] >> half & 15) | (b[4 + i / 8] >> i % 8 & 1) << 4;
    case RT_FORMAT_Q8_0:
        return b[2 + i] ^ 128;
    case RT_FORMAT_Q4_K:
        return b[16 + group / 2 * 32 + i % 32] >> group % 2 * 4 & 15;
    case RT_FORMAT_Q5_K:
        return (b[48 + group / 2 * 32 + i % 32] >> group % 2 * 4 & 15) |
               (b[16 + i % 32] >> group & 1) << 4;
    default: /* Q6_K */
        return (b[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15) |
               (b[128 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) << 4;
    }
}
/* What the format takes off the integer that is stored. */
RT_FN int rt_format_zero(rt_u32 format)
{
    switch (format) {
    case RT_FORMAT_Q4_0:
        return 8;
    case RT_FORMAT_Q5_0:
        return 16;
    case RT_FORMAT_Q8_0:
        return 128;
    case RT_FORMAT_Q6_K:
        return 32;
    default:
        return 0;
    }
}

/* Of a K block: the integer scale of 16 columns number i, the minimum of 32 columns number k. */
RT_FN int rt_block_scale(rt_u32 format, const unsigned char *b, rt_u32 i)
{
    const unsigned char *p = b + 4;
    const rt_u32 k = i / 2; /* 32 columns */
    if (format == RT_FORMAT_Q6_K)
        return (b[192 + i] ^ 128) - 128;
    return k < 4 ? p[k] & 63 : (p[k + 4] & 15) | p[k - 4] >> 6 << 4;
}
RT_FN int rt_block_minimum(rt_u32 format, const unsigned char *b, rt_u32 k)
{
    const unsigned char *p = b + 4;
    if (format == RT_FORMAT_Q6_K)
        return 0;
    return k < 4 ? p[k + 4] & 63 : p[k + 4] >> 4 | p[k] >> 6 << 4;
}

/* ---- packing ---- */

/* Of 32 columns, the first of four that lane c has for product h.  A product of RT_BLOCKS_8K has
 * the columns of one a. */
RT_FN rt_u32 rt_blocks_column(rt_u32 form, rt_u32 c, rt_u32 h)
{
    return form == RT_BLOCKS_8K ? 16 * h + c % 2 * 8 + c / 2 * 4 : 8 * c + 4 * h;
}

/* Two E2M1 numbers as two bf16 of 2^-126 times their values: the sign in bit 15, the other three
 * bits in bits 8 to 6, where the exponent and the fraction meet.  That holds for 0.5 too, which has
 * the exponent 0, as numbers below 2^-126 have.  So are pairs 0 to 3 of a word unlike each other:
 * turned to the right by 2, 6 and 12 bits, and of the last one the bits 6 and 22 by 8.  These
 * together are all bits of the word, each once. */
RT_FN rt_u32 rt_turned(rt_u32 word, rt_u32 left)
{
    return word << left | word >> (32 - left);
}
RT_FN rt_u32 rt_turn_pair(rt_u32 pair, rt_u32 low, rt_u32 high)
{
    const rt_u32 both = (low & 8) << 12 | (low & 7) << 6 | (high & 8) << 28 | (high & 7) << 22;
    if (pair == 3)
        return rt_turned(both & 0x00400040u, 24) | (both & 0x81808180u);
    return rt_turned(both, 32 - (pair == 0 ? 2 : 6 * pair));
}

/* The header of a row of a piece, whose words lie 8 apart: `columns` of it are there, from `first`
 * of the row on, whose blocks begin at b.  What is not there keeps scales of 0: the caller has
 * zeroed them. */
RT_FN void rt_pack_header(rt_u32 format, rt_u32 form, const unsigned char *b, rt_u64 first,
                          rt_u32 columns, rt_u32 *to)
{
    const rt_u32 elements = rt_format_elements(format), bytes = rt_format_bytes(format);
    rt_u32 head[4] = {0, 0, 0, 0};
    if (format == RT_FORMAT_MXFP4) {
        for (rt_u32 j = 0; j < columns / 32; j++) {
            const rt_u32 s = b[(first / 32 + j) * bytes] + 126u - RT_MX4_SHIFT;
            head[0] |= (s < 254 ? s : 254) << 8 * j;
        }
    } else if (!rt_format_is_k(format)) {
        for (rt_u32 j = 0; j < columns / 32; j++) {
            const unsigned char *at = b + (first / 32 + j) * bytes;
            head[j / 2] |= rt_block_u16(at) << j % 2 * 16;
            if (format == RT_FORMAT_Q4_1 || format == RT_FORMAT_Q5_1)
                head[2 + j / 2] |= rt_block_u16(at + 2) << j % 2 * 16;
        }
    } else {
        b += first / elements * bytes;
        head[0] = format == RT_FORMAT_Q6_K ? rt_block_u16(b + 208)
                                           : rt_block_u16(b) | rt_block_u16(b + 2) << 16;
        for (rt_u32 j = 0; j < 4; j++) {
            const rt_u32 k = (rt_u32)(first % elements) / 32 + j;
            head[1] |= (rt_u32)(rt_block_scale(format, b, 2 * k) + 128) << 8 * j;
            head[2] |= (rt_u32)(rt_block_scale(format, b, 2 * k + 1) + 128) << 8 * j;
            head[3] |= (rt_u32)rt_block_minimum(format, b, k) << 8 * j;
        }
        if (form == RT_BLOCKS_4K) /* one scale for 32 columns */
            head[2] = head[3];
    }
    for (int i = 0; i < RT_HEADER_WORDS(form); i++)
        to[8 * i] = head[i];
}

/* Row g of a piece; the row's blocks begin at b, the piece's columns with `first` of them; of
 * `all`.  Columns after the last one are not written: the caller has zeroed them. */
RT_FN void rt_pack_piece(rt_u32 format, rt_u32 form, const unsigned char *b, rt_u64 first,
                         rt_u64 all, rt_u32 g, rt_u32 *piece)
{
    const rt_u32 columns = all - first < RT_PIECE_COLUMNS ? (rt_u32)(all - first)
                                                          : (rt_u32)RT_PIECE_COLUMNS,
                 elements = rt_format_elements(format), bytes = rt_format_bytes(format),
                 more = (rt_u32)(RT_BYTES_ZERO(form) - rt_format_zero(format));
    rt_pack_header(format, form, b, first, columns, piece + RT_QUANTS_BYTES(form) / 4 + g);
    for (rt_u32 j = 0; j < columns / 32; j++)
        for (rt_u32 c = 0; c < 4; c++) {
            rt_u32 nibbles = 0, *to = piece + (4 * g + c) * 4;
            for (rt_u32 h = 0; h < 2; h++) {
                const rt_u64 column = first + j * 32 + rt_blocks_column(form, c, h);
                const unsigned char *at = b + column / elements * bytes;
                rt_u32 word = 0;
                for (rt_u32 k = 0; k < 4; k++) {
                    const rt_u32 q =
                        (rt_u32)rt_block_stored(format, at, (rt_u32)(column % elements) + k);
                    word |= (q + more) << 8 * k;
                    nibbles |= (q & 15) << (8 * h + k / 2 * 4 + k % 2 * 16);
                }
                if (RT_IS_BYTES(form))
                    to[j / 2 * 128 + j % 2 * 2 + h] = word;
            }
            if (form == RT_BLOCKS_MX4)
                for (rt_u32 i = 0; i < 4; i++)
                    to[j] |= rt_turn_pair(i, nibbles >> 4 * i & 15, nibbles >> (16 + 4 * i) & 15);
            else if (!RT_IS_BYTES(form))
                to[j] = nibbles;
        }
}

#endif
