/* codebook_kernels.h - blocks of the IQ and TQ formats, in vectors of 256 bits.
 *
 * A block of a code book is opened first: its indices, signs and small integers become arrays of
 * bytes and words, by operations on whole vectors.  Then 32 weights at a time are looked up.  TQ
 * and IQ4_XS need no opening.  ir/codebooks.c has the layouts; its codebook_take gives the same
 * weights one by one.
 *
 * For a group of eight (IQ1, IQ2) or four (IQ3) weights the format stores an index into a table
 * of 64-bit or 32-bit entries, which hold a byte for each weight; besides, it stores signs and,
 * for 16 or 32 weights, a small integer.  A weight is
 *
 *   d * small * (sign) entry[k]
 *
 * and opening a block means: all 32 or 64 indices as 16-bit numbers in `index`, all 256 signs as
 * bits in `signs`, all small integers as bytes in `small`.
 *
 * Used by block_kernels.h and int8_formats.h.
 */
#ifndef CPU_CODEBOOK_KERNELS_H
#define CPU_CODEBOOK_KERNELS_H

#include "ir/codebooks.h"

/* 32 weights: bytes w, none above 127, and their signs in the bytes `sign`, if the format has
 * signs (book_has_signs).  Magnitudes and signs stay apart because some products of bytes need
 * one unsigned factor: the signs are then applied to x (x_for in int8_rows.h). */
typedef struct book_quants {
    __m256i w, sign;
} book_quants;

/* A block of a code book, IQ1_S to IQ3_S, with every part at a fixed place; on the stack while
 * the block is used. */
typedef struct opened_book {
    _Alignas(32) uint16_t index[CODEBOOK_WEIGHTS / 4];
    uint8_t signs[CODEBOOK_WEIGHTS / 8]; /* a bit for each weight */
    int8_t more[CODEBOOK_WEIGHTS / 8];   /* IQ1: added to eight weights each */
    int8_t small[CODEBOOK_WEIGHTS / 16]; /* for 16 weights each */
    float d;                             /* the block's scale, with the format's constant divisor */
} opened_book;

/* Does the format need open_book? */
V_INLINE bool book_is_opened(ir_dtype dtype)
{
    return codebook_has(dtype) && dtype != IR_IQ4_XS && dtype != IR_TQ1_0 && dtype != IR_TQ2_0;
}

/* What is to be subtracted from weights without signs.  IQ1's entries are -1, 0 or 1 plus or
 * minus an eighth: eight times that, plus 16, fits an unsigned byte. */
V_INLINE int book_below(ir_dtype dtype)
{
    if (dtype == IR_IQ1_S || dtype == IR_IQ1_M)
        return 16;
    return dtype == IR_TQ1_0 || dtype == IR_TQ2_0 ? 1 : 0;
}

/* Formats whose weights come as magnitude and sign; TQ and IQ1 come as a number and book_below. */
V_INLINE bool book_has_signs(ir_dtype dtype)
{
    return codebook_has(dtype) && book_below(dtype) == 0;
}

/* ---- bits and bytes ---- */

/* Loads from any address. */
V_INLINE uint32_t word_at(const void *p)
{
    uint32_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

V_INLINE float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _cvtsh_ss(h);
}

V_INLINE __m256i bytes_at(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

V_INLINE __m128i half_bytes_at(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

V_INLINE void bytes_put(void *to, __m256i v)
{
    _mm256_storeu_si256((__m256i *)to, v);
}

/* 16 values by their indices, the low four bits of each byte. */
V_INLINE __m256i look_up(const int8_t values[16], __m256i indices)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(half_bytes_at(values)), indices);
}

/* 16 bytes as 32 four-bit numbers: the low nibbles in the low lane, the high nibbles in the high
 * lane. */
V_INLINE __m256i nibbles_at(const uint8_t *p)
{
    __m128i b = half_bytes_at(p);
    __m256i q = _mm256_inserti128_si256(_mm256_castsi128_si256(b), _mm_srli_epi16(b, 4), 1);
    return _mm256_and_si256(q, _mm256_set1_epi8(15));
}

/* Two runs of 16 bytes, that at `low` in the low lane of 128 bits. */
V_INLINE __m256i lanes_of(const void *low, const void *high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(half_bytes_at(low)), half_bytes_at(high),
                                   1);
}

/* 32 bits as 32 bytes: -1 where the bit is set, 1 where not, so that a product with it, or
 * sign_epi8, changes the sign.  Byte k of the result looks at bit k % 8 of byte k / 8: the bytes
 * are spread by a shuffle, and each is compared with its own bit. */
V_INLINE __m256i signs_of_bits(const uint8_t *p)
{
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i from = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                          2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    __m256i bits =
        _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)word_at(p)), from), bit);
    return _mm256_or_si256(_mm256_cmpeq_epi8(bits, bit), _mm256_set1_epi8(1));
}

/* Bytes of seven bits get an eighth that makes the number of set bits even: these formats store
 * seven signs of eight, since the number of negative weights is even.  The parity of a byte is
 * looked up nibble by nibble in `odd`, and becomes bit 7. */
V_INLINE __m256i make_even(__m256i seven)
{
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i odd =
        _mm256_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0, 0,
                         -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0);
    __m256i first = _mm256_shuffle_epi8(odd, _mm256_and_si256(seven, low));
    __m256i last = _mm256_shuffle_epi8(odd, _mm256_and_si256(_mm256_srli_epi16(seven, 4), low));
    return _mm256_or_si256(seven, _mm256_xor_si256(first, last));
}

/* Words of four fields of seven bits, below a nibble that is ignored: each field moves to a byte
 * of its own, and gets its eighth bit. */
V_INLINE __m256i spread_signs(__m256i words)
{
    __m256i a = _mm256_and_si256(words, _mm256_set1_epi32(0x7f));
    __m256i b = _mm256_and_si256(_mm256_slli_epi32(words, 1), _mm256_set1_epi32(0x7f00));
    __m256i c = _mm256_and_si256(_mm256_slli_epi32(words, 2), _mm256_set1_epi32(0x7f0000));
    __m256i d = _mm256_and_si256(_mm256_slli_epi32(words, 3), _mm256_set1_epi32(0x7f000000));
    return make_even(_mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d)));
}

/* 16 nibbles in order from eight bytes, each its low nibble first; only the first eight bytes
 * count. */
V_INLINE __m128i nibbles_in_order(__m128i bytes)
{
    const __m128i low = _mm_set1_epi8(15);
    return _mm_unpacklo_epi8(_mm_and_si128(bytes, low),
                             _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
}

/* 16 words, each the byte at[i / each]; each is 8 or 4. */
V_INLINE __m256i repeat_bytes(const uint8_t *at, int each)
{
    const __m256i eights = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1,
                                            1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
    const __m256i fours = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1,
                                           2, -1, 2, -1, 2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1);
    return _mm256_shuffle_epi8(_mm256_set1_epi32((int)word_at(at)), each == 8 ? eights : fours);
}
/* Four 16-bit words, each four times. */
V_INLINE __m256i repeat_words(const uint8_t *at)
{
    const __m256i fours = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 4, 5, 4,
                                           5, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7);
    uint64_t words;
    memcpy(&words, at, sizeof words);
    return _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)words), fours);
}
/* In each group of four lanes, lane i holds a word with four fields of three bits, and its field
 * i is moved to bits 9 to 11.  Multiplication by 2^9, 2^6, 2^3, 2^0 shifts each lane by its own
 * amount, for which AVX2 has no shift of 16-bit lanes. */
V_INLINE __m256i third_bits(__m256i words)
{
    return _mm256_mullo_epi16(words, _mm256_set1_epi64x(0x0001000800400200));
}

/* Store 16 indices: the bytes at `low`, with the bits of `mask` from `high` above them. */
V_INLINE void put_indices(uint16_t *to, const uint8_t *low, __m256i high, int mask)
{
    __m256i bits = _mm256_and_si256(high, _mm256_set1_epi16((short)mask));
    bytes_put(to, _mm256_or_si256(_mm256_cvtepu8_epi16(half_bytes_at(low)), bits));
}

/* ---- small integers ---- */

/* Store 16 small integers: the format holds s for 2 s + 1. */
V_INLINE void put_small_odd(opened_book *to, __m128i s)
{
    _mm_storeu_si128((__m128i *)(void *)to->small,
                     _mm_or_si128(_mm_add_epi8(s, s), _mm_set1_epi8(1)));
}

/* The same from eight words, one for 32 weights each. */
V_INLINE void put_small_of_words(opened_book *to, __m256i s)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(s, s), 0xd8);
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_castsi256_si128(words));
    put_small_odd(to, _mm_unpacklo_epi8(bytes, bytes));
}

/* ---- opening ---- */

/* IQ2_XXS: for each 32 weights two 32-bit words: four indices of a byte; four times seven signs,
 * and the small integer in the top nibble.  shuffle_ps separates even from odd words,
 * permute4x64 restores their order. */
V_INLINE void open_iq2_xxs(const uint8_t *b, opened_book *to)
{
    __m256 first = _mm256_castsi256_ps(bytes_at(b + 2)),
           last = _mm256_castsi256_ps(bytes_at(b + 34));
    __m256i indices =
        _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(first, last, 0x88)), 0xd8);
    __m256i rest =
        _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(first, last, 0xdd)), 0xd8);
    bytes_put(to->index, _mm256_cvtepu8_epi16(_mm256_castsi256_si128(indices)));
    bytes_put(to->index + 16, _mm256_cvtepu8_epi16(_mm256_extracti128_si256(indices, 1)));
    bytes_put(to->signs, spread_signs(rest));
    put_small_of_words(to, _mm256_srli_epi32(rest, 28));
    to->d = half_at(b) / 8;
}

/* IQ2_XS: a 16-bit word for eight weights: nine bits of index, seven of signs; then the small
 * integers. */
V_INLINE void open_iq2_xs(const uint8_t *b, opened_book *to)
{
    __m256i first = bytes_at(b + 2), last = bytes_at(b + 34);
    __m256i seven = _mm256_packus_epi16(_mm256_srli_epi16(first, 9), _mm256_srli_epi16(last, 9));
    bytes_put(to->index, _mm256_and_si256(first, _mm256_set1_epi16(511)));
    bytes_put(to->index + 16, _mm256_and_si256(last, _mm256_set1_epi16(511)));
    bytes_put(to->signs, make_even(_mm256_permute4x64_epi64(seven, 0xd8)));
    put_small_odd(to, nibbles_in_order(_mm_loadl_epi64((const __m128i *)(const void *)(b + 66))));
    to->d = half_at(b) / 8;
}

/* IQ2_S: eight bits of each index, then all signs, then two more bits of each index, four to a
 * byte, then the small integers. */
V_INLINE void open_iq2_s(const uint8_t *b, opened_book *to)
{
    const __m256i by = _mm256_set1_epi64x(0x0004001000400100);
    for (int i = 0; i < 2; i++)
        put_indices(to->index + 16 * i, b + 2 + 16 * i,
                    _mm256_mullo_epi16(repeat_bytes(b + 66 + 4 * i, 4), by), 0x300);
    bytes_put(to->signs, bytes_at(b + 34));
    put_small_odd(to, nibbles_in_order(_mm_loadl_epi64((const __m128i *)(const void *)(b + 74))));
    to->d = half_at(b) / 8;
}

/* IQ3_XXS: 64 indices of a byte, then for each 32 weights a word like the second of IQ2_XXS. */
V_INLINE void open_iq3_xxs(const uint8_t *b, opened_book *to)
{
    __m256i rest = bytes_at(b + 66);
    for (int i = 0; i < 4; i++)
        put_indices(to->index + 16 * i, b + 2 + 16 * i, _mm256_setzero_si256(), 0);
    bytes_put(to->signs, spread_signs(rest));
    put_small_of_words(to, _mm256_srli_epi32(rest, 28));
    to->d = half_at(b) / 4;
}

/* IQ3_S: 64 indices of a byte, a ninth bit of each, all signs, small integers for 32 weights. */
V_INLINE void open_iq3_s(const uint8_t *b, opened_book *to)
{
    const __m256i by =
        _mm256_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2, 256, 128, 64, 32, 16, 8, 4, 2);
    for (int i = 0; i < 4; i++)
        put_indices(to->index + 16 * i, b + 2 + 16 * i,
                    _mm256_mullo_epi16(repeat_bytes(b + 66 + 2 * i, 8), by), 0x100);
    bytes_put(to->signs, bytes_at(b + 74));
    __m128i s = nibbles_in_order(_mm_cvtsi32_si128((int)word_at(b + 106)));
    put_small_odd(to, _mm_unpacklo_epi8(s, s));
    to->d = half_at(b);
}

/* IQ1_S: 32 indices of a byte; then for 32 weights a word: three more bits of each of four
 * indices, the small integer, and in the top bit whether an eighth is added or subtracted. */
V_INLINE void open_iq1_s(const uint8_t *b, opened_book *to)
{
    const __m128i words = half_bytes_at(b + 34);
    for (int i = 0; i < 2; i++)
        put_indices(to->index + 16 * i, b + 2 + 16 * i,
                    _mm256_srli_epi16(third_bits(repeat_words(b + 34 + 8 * i)), 1), 0x700);
    /* 9, or 7 where an eighth is subtracted; each word four times */
    __m128i less = _mm_srai_epi16(words, 15);
    __m128i more = _mm_add_epi8(_mm_set1_epi8(9), _mm_add_epi8(less, less));
    bytes_put(to->more,
              _mm256_set_m128i(_mm_unpackhi_epi16(more, more), _mm_unpacklo_epi16(more, more)));
    put_small_of_words(
        to, _mm256_cvtepu16_epi32(_mm_and_si128(_mm_srli_epi16(words, 12), _mm_set1_epi16(7))));
    to->d = half_at(b) / 8;
}

/* IQ1_M: 32 indices of a byte; then a nibble for each: three more bits, and whether an eighth is
 * subtracted; then four words whose top nibbles together are the f16 scale, and whose low 12
 * bits are four small integers each. */
V_INLINE void open_iq1_m(const uint8_t *b, opened_book *to)
{
    __m128i bytes = half_bytes_at(b + 32),
            rest[2] = {nibbles_in_order(bytes), nibbles_in_order(_mm_srli_si128(bytes, 8))};
    uint64_t words;
    for (int i = 0; i < 2; i++) {
        put_indices(to->index + 16 * i, b + 16 * i,
                    _mm256_slli_epi16(_mm256_cvtepu8_epi16(rest[i]), 8), 0x700);
        __m128i less = _mm_and_si128(_mm_srli_epi16(rest[i], 2), _mm_set1_epi8(2));
        _mm_storeu_si128((__m128i *)(void *)(to->more + 16 * i),
                         _mm_sub_epi8(_mm_set1_epi8(9), less));
    }
    __m256i s = _mm256_and_si256(_mm256_srli_epi16(third_bits(repeat_words(b + 48)), 9),
                                 _mm256_set1_epi16(7));
    put_small_odd(to, _mm_packus_epi16(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1)));
    memcpy(&words, b + 48, sizeof words);
    uint64_t d =
        (words >> 12 & 0xf) | (words >> 24 & 0xf0) | (words >> 36 & 0xf00) | (words >> 48 & 0xf000);
    to->d = _cvtsh_ss((uint16_t)d) / 8;
}

/* Open a block of a format for which book_is_opened is true. */
V_INLINE void open_book(ir_dtype dtype, const uint8_t *b, opened_book *to)
{
    switch (dtype) {
    case IR_IQ1_S:
        open_iq1_s(b, to);
        break;
    case IR_IQ1_M:
        open_iq1_m(b, to);
        break;
    case IR_IQ2_XXS:
        open_iq2_xxs(b, to);
        break;
    case IR_IQ2_XS:
        open_iq2_xs(b, to);
        break;
    case IR_IQ2_S:
        open_iq2_s(b, to);
        break;
    case IR_IQ3_XXS:
        open_iq3_xxs(b, to);
        break;
    default: /* IR_IQ3_S */
        open_iq3_s(b, to);
        break;
    }
}

/* ---- 32 weights ---- */

/* 32 weights of a code book with entries of eight bytes, by four loads. */
V_INLINE __m256i four_entries(const uint64_t *book, const uint16_t *index)
{
    return _mm256_setr_epi64x((long long)book[index[0]], (long long)book[index[1]],
                              (long long)book[index[2]], (long long)book[index[3]]);
}

/* 32 weights of a code book with entries of four bytes, by eight loads. */
V_INLINE __m256i eight_entries(const uint32_t *book, const uint16_t *index)
{
    return _mm256_setr_epi32((int)book[index[0]], (int)book[index[1]], (int)book[index[2]],
                             (int)book[index[3]], (int)book[index[4]], (int)book[index[5]],
                             (int)book[index[6]], (int)book[index[7]]);
}

/* The magnitudes of the i-th 32 weights of an opened block, i = 0 .. 7. */
V_INLINE __m256i book_magnitudes(ir_dtype dtype, const opened_book *b, int i)
{
    const __m256i each = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                          2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    switch (dtype) {
    case IR_IQ1_S:
    case IR_IQ1_M:
        return _mm256_add_epi8(
            four_entries(codebook_iq1, b->index + 4 * i),
            _mm256_shuffle_epi8(_mm256_set1_epi32((int)word_at(b->more + 4 * i)), each));
    case IR_IQ2_XXS:
        return four_entries(codebook_iq2_xxs, b->index + 4 * i);
    case IR_IQ2_XS:
        return four_entries(codebook_iq2_xs, b->index + 4 * i);
    case IR_IQ2_S:
        return four_entries(codebook_iq2_s, b->index + 4 * i);
    case IR_IQ3_XXS:
        return eight_entries(codebook_iq3_xxs, b->index + 8 * i);
    default: /* IR_IQ3_S */
        return eight_entries(codebook_iq3_s, b->index + 8 * i);
    }
}

/* The digit that leads in each byte of TQ1_0, which is one more than the weight.  A byte holds five
 * digits of base 3 as a fraction of 256: times a power of 3, modulo 256, the wanted digit leads,
 * and is found by comparing with 256 / 3 and 512 / 3. */
V_INLINE __m256i third_digits(__m256i x)
{
    const __m256i one = _mm256_set1_epi8(1); /* the digit is 1 from 86 on, 2 from 171 on */
    return _mm256_add_epi8(_mm256_min_epu8(_mm256_subs_epu8(x, _mm256_set1_epi8(85)), one),
                           _mm256_min_epu8(_mm256_subs_epu8(x, _mm256_set1_epi8((char)170)), one));
}

/* Bytes times powers of 3, modulo 256. */
V_INLINE __m256i times_powers(__m256i bytes, __m256i powers)
{
    const __m256i low = _mm256_set1_epi16(255);
    __m256i even = _mm256_and_si256(_mm256_mullo_epi16(bytes, _mm256_and_si256(powers, low)), low);
    __m256i odd = _mm256_mullo_epi16(_mm256_andnot_si256(low, bytes), _mm256_srli_epi16(powers, 8));
    return _mm256_or_si256(even, odd);
}

/* Bytes times 3 to the i, modulo 256.  Where a loop over i is unrolled, each is two sums more than
 * the one before. */
V_INLINE __m256i times_power(__m256i bytes, int i)
{
    for (int k = 0; k < i; k++)
        bytes = _mm256_add_epi8(_mm256_add_epi8(bytes, bytes), bytes);
    return bytes;
}

/* Two different powers of 3, for the two lanes. */
V_INLINE __m256i two_powers(int first, int second)
{
    return _mm256_set_m128i(_mm_set1_epi8((char)second), _mm_set1_epi8((char)first));
}

/* The i-th 32 weights of TQ1_0, each plus one.  The block has three runs of bytes, which do not
 * end at multiples of 32 weights: 32 bytes of five digits (groups 0-4), 16 bytes of five (two
 * digits of them make a group: 5 and 6, and half of 7), and four bytes of four digits (the rest
 * of 7). */
V_INLINE __m256i take_tq1_0(const uint8_t *b, int i)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    if (i < 5)
        return third_digits(times_power(bytes_at(b), i));
    __m256i twice = _mm256_broadcastsi128_si256(half_bytes_at(b + 32));
    if (i < 7)
        return third_digits(times_powers(twice, two_powers(power[2 * i - 10], power[2 * i - 9])));
    __m256i last = _mm256_blend_epi32(twice, _mm256_set1_epi32((int)word_at(b + 48)), 0xf0);
    return third_digits(
        times_powers(last, _mm256_setr_epi64x(0x5151515151515151, 0x5151515151515151,
                                              0x0303030301010101, 0x1b1b1b1b09090909)));
}

/* The i-th 32 weights of a block; `opened` must be filled if the format needs it. */
V_INLINE book_quants take_book(ir_dtype dtype, const uint8_t *b, const opened_book *opened, int i)
{
    book_quants q = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    if (dtype == IR_IQ4_XS) {
        q.sign = look_up(codebook_iq4, nibbles_at(b + 8 + 16 * i));
        q.w = _mm256_abs_epi8(q.sign);
    } else if (dtype == IR_TQ1_0) {
        q.w = take_tq1_0(b, i);
    } else if (dtype == IR_TQ2_0) {
        q.w = _mm256_and_si256(_mm256_srli_epi16(bytes_at(b + i / 4 * 32), i % 4 * 2),
                               _mm256_set1_epi8(3));
    } else {
        q.w = book_magnitudes(dtype, opened, i);
        q.sign = book_has_signs(dtype) ? signs_of_bits(opened->signs + 4 * i) : q.sign;
    }
    return q;
}

/* The eight small integers of each of two blocks of IQ4_XS, as bytes, one block in each lane of
 * 128 bits. */
V_INLINE __m256i small_of_iq4_xs(const uint8_t *low, const uint8_t *high)
{
    const __m256i fours = _mm256_set1_epi8(15);
    /* The word of high bits has two bits for each integer, four of them in a byte: they are
     * moved to bits 4 and 5. */
    const __m256i from = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(4, 4, 5, 5, 6, 6, 7, 7, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m256i moved = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 16, 32, 48, 16, 0, 0, 0, 32, 0, 0, 0, 48, 0, 0, 0));
    __m256i b = lanes_of(low, high);
    __m256i nibbles = _mm256_unpacklo_epi8(_mm256_and_si256(b, fours),
                                           _mm256_and_si256(_mm256_srli_epi16(b, 4), fours));
    __m256i top = _mm256_and_si256(_mm256_shuffle_epi8(nibbles, from), _mm256_set1_epi16(0x0c03));
    __m256i six = _mm256_or_si256(_mm256_srli_si256(nibbles, 8), _mm256_shuffle_epi8(moved, top));
    return _mm256_sub_epi8(six, _mm256_set1_epi8(32));
}

/* d of the block, as f32; the small integers come on top of it. */
V_INLINE float book_scale(ir_dtype dtype, const uint8_t *b, const opened_book *opened)
{
    if (book_is_opened(dtype))
        return opened->d;
    return half_at(b + (dtype == IR_TQ1_0 ? 52 : dtype == IR_TQ2_0 ? 64 : 0));
}

#endif
