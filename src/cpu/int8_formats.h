/* int8_formats.h - what the loops of int8_direct.h and int8_panel.h see of the block formats:
 * integers as bytes, small integers, scales; in vectors of 256 bits.  Included by
 * int8_kernels.h.
 *
 * A function's dtype is a constant wherever it is called, so its switch disappears.  A format is
 * described by the answers to questions, each a function of the dtype below:
 *
 *   piece_bytes, pieces, piece_at   how its bits lie
 *   quants_below, quants_most       what its bytes w mean, and how large they are
 *   is_signed                       w is a magnitude beside a sign, or a signed byte
 *   has_minimum, needs_sums         whether sums of x are needed
 *   is_wide, is_even, is_crossed    its small integers, and its order of weights
 *   scale_at                        where d lies
 *
 * so that a new format of a known kind is one case in each of them.  Products of bytes come in
 * three kinds, which HAS_DOT and BOTH_SIGNED distinguish:
 *
 *   AVX2              unsigned w, signed x; pairs are added in 16 bits (maddubs)
 *   VNNI              unsigned w, signed x; four are added to 32 bits
 *   NEON              both signed; with dot products four are added to 32 bits, without them pairs
 */
#ifndef CPU_INT8_FORMATS_H
#define CPU_INT8_FORMATS_H

#include "cpu/block_kernels.h"
#include "cpu/int8_fast.h"

#ifdef INT8_DOT
enum { HAS_DOT = 1 };
#else
enum { HAS_DOT = 0 };
#define INT8_DOT(acc, w, x) ((void)(w), (void)(x), (acc))
#endif
#ifdef INT8_MATRIX
enum { HAS_MATRIX = 1 };
#else
enum { HAS_MATRIX = 0 };
#define INT8_MATRIX(acc, w, x) ((void)(w), (void)(x), (acc))
#endif
#ifndef INT8_DOT_PAIRS
#define INT8_DOT_PAIRS(acc, a, b) _mm256_add_epi32(acc, _mm256_madd_epi16(a, b))
#endif

/* May both bytes of a product have signs? */
#ifdef INT8_SIGNED
enum { BOTH_SIGNED = 1 };
#else
enum { BOTH_SIGNED = 0 };
#define INT8_PAIRS(w, x) _mm256_maddubs_epi16(w, x)
#endif
#ifndef INT8_PAIRS /* INT8_DOT does it all */
#define INT8_PAIRS(w, x) ((void)(x), (w))
#endif

/* Do signed weights get an excess, so that INT8_DOT can multiply them?  w + 128 is unsigned; 128
 * times the sum of x is subtracted afterwards, from sums that the row of x holds anyway. */
enum { HAS_EXCESS = HAS_DOT && !BOTH_SIGNED };

/* ---- what the compiler must not do; vec_avx2.h and vec_neon.h have in_order ---- */

/* A barrier for the compiler alone: it must not move loads out of the loop over rows, where it
 * would have to spill them, or turn them into shuffles. */
V_INLINE void memory_as_it_is(void)
{
    __asm__ volatile("" ::: "memory");
}

/* ---- formats ---- */

/* What is to be subtracted from w as take_quants gives it: quants are unsigned, weights are not. */
V_INLINE int quants_below(ir_dtype dtype)
{
    switch (dtype) {
    case IR_IQ4_XS:
        return HAS_EXCESS ? 128 : 0;
    case IR_Q4_0:
        return 8;
    case IR_Q5_0:
        return 16;
    case IR_Q8_0:
    case IR_IQ4_NL:
        return HAS_EXCESS ? 128 : 0;
    case IR_MXFP4:
        return HAS_EXCESS ? 16 : 0;
    case IR_Q3_K:
        return 4;
    case IR_Q6_K:
        return 32;
    default:
        return codebook_has(dtype) ? book_below(dtype) : 0;
    }
}

/* The largest w that take_quants gives.  It bounds how many pairs may be added in 16 bits before
 * they overflow (add_products). */
V_INLINE int quants_most(ir_dtype dtype)
{
    switch (dtype) {
    case IR_TQ1_0:
    case IR_TQ2_0:
        return 3;
    case IR_IQ1_S:
    case IR_IQ1_M:
        return 25;
    case IR_IQ2_XXS:
    case IR_IQ2_XS:
    case IR_IQ2_S:
        return 43;
    case IR_IQ3_XXS:
        return 62;
    case IR_IQ4_XS:
        return 127;
    case IR_MXFP4:
        return 28;
    case IR_Q2_K:
        return 3;
    case IR_Q3_K:
        return 7;
    case IR_Q5_0:
    case IR_Q5_1:
    case IR_Q5_K:
        return 31;
    case IR_Q6_K:
        return 63;
    case IR_Q8_0:
    case IR_IQ4_NL:
        return 255;
    default:
        return 15;
    }
}

/* Does take_direct take 64 weights in another order?  They lie in two runs of 16 bytes: all 32
 * low nibbles come first, those of each run in a lane of 128 bits, and then the high ones. */
V_INLINE bool is_crossed(ir_dtype dtype)
{
    return dtype == IR_IQ4_XS;
}

/* Does take_quants give signs?  Not if weights get an excess, except for formats that store
 * magnitude and sign. */
V_INLINE bool is_signed(ir_dtype dtype)
{
    if (dtype == IR_Q8_0 || dtype == IR_IQ4_NL || dtype == IR_MXFP4 || dtype == IR_IQ4_XS)
        return !HAS_EXCESS;
    return book_has_signs(dtype);
}

/* Are products of bytes added up before they are multiplied by a small integer?  Two products of
 * IQ4_XS with its excess do not fit 16 bits; for signed bytes INT8_DOT is the shortest way. */
V_INLINE bool is_added_first(ir_dtype dtype)
{
    return HAS_DOT && (BOTH_SIGNED || dtype == IR_IQ4_XS);
}

/* Has the format a minimum m?  It is added, or in blocks of 256 subtracted: take_scales gives it
 * with its sign. */
V_INLINE bool has_minimum(ir_dtype dtype)
{
    return dtype == IR_Q4_1 || dtype == IR_Q5_1 || has_offset(dtype);
}

/* Blocks of 256: is there a small integer for 32 neighbours, not 16?  The formats that are
 * opened repeat theirs, and so count as 16. */
V_INLINE bool is_wide(ir_dtype dtype)
{
    return dtype == IR_Q4_K || dtype == IR_Q5_K || dtype == IR_IQ4_XS;
}

/* Blocks of 256: are all small integers 1? */
V_INLINE bool is_even(ir_dtype dtype)
{
    return dtype == IR_TQ1_0 || dtype == IR_TQ2_0;
}

/* The offset of d in a block; m, if any, follows it. */
V_INLINE int scale_at(ir_dtype dtype)
{
    switch (dtype) {
    case IR_Q2_K:
        return 80;
    case IR_Q3_K:
        return 108;
    case IR_Q6_K:
        return 208;
    case IR_TQ1_0:
        return 52;
    case IR_TQ2_0:
        return 64;
    default:
        return 0;
    }
}

/* 32 weights as bytes w; if is_signed, with the signs of the bytes `sign`, and no w above 127. */
typedef book_quants quants;

/* Signed bytes, none of them -128, as magnitude and sign. */
V_INLINE quants with_signs(__m256i q)
{
    return (quants){_mm256_abs_epi8(q), q};
}

/* Weights as signed bytes; only if is_signed. */
V_INLINE __m256i signed_bytes(ir_dtype dtype, quants q)
{
    return book_is_opened(dtype) ? _mm256_sign_epi8(q.w, q.sign) : q.sign;
}

/* Most formats pack a block's weights as bits of bytes, in pieces whose bytes are all treated
 * alike: a piece may be a row's bytes in the order of K, or the same four bytes of eight rows.
 * Returns the bytes of a piece; 0: the format is unpacked otherwise. */
V_INLINE int piece_bytes(ir_dtype dtype)
{
    if (!has_parts(dtype))
        return dtype == IR_Q8_0 ? 32 : 16;
    return codebook_has(dtype) ? 0 : 32;
}

/* How many pieces a block has: first those of its low bits, then those of the high bits. */
V_INLINE int pieces(ir_dtype dtype)
{
    switch (dtype) {
    case IR_Q2_K:
        return 2;
    case IR_Q3_K:
        return 3;
    case IR_Q4_K:
        return 4;
    case IR_Q5_K:
        return 5;
    case IR_Q6_K:
        return 6;
    default:
        return 1;
    }
}

/* The offset of piece p in a block. */
V_INLINE int piece_at(ir_dtype dtype, int p)
{
    switch (dtype) {
    case IR_MXFP4:
        return 1;
    case IR_Q4_1:
        return 4;
    case IR_Q5_0:
        return 6;
    case IR_Q5_1:
        return 8;
    case IR_Q2_K:
    case IR_Q4_K:
        return 16 + 32 * p;
    case IR_Q3_K:
        return p < 2 ? 32 + 32 * p : 0;
    case IR_Q5_K:
        return p < 4 ? 48 + 32 * p : 16;
    case IR_Q6_K:
        return 32 * p;
    default: /* IR_Q4_0, IR_Q8_0, IR_IQ4_NL */
        return 2;
    }
}

/* The i-th run of weights of a block, as many as a piece has bytes, from its pieces; signed if
 * is_signed.  Of Q5_0 and Q5_1 the low four bits only. */
V_INLINE __m256i bytes_from(ir_dtype dtype, const __m256i *piece, int i)
{
    switch (dtype) {
    case IR_IQ4_NL:
        return _mm256_xor_si256(look_up(codebook_iq4, bits_of(piece[0], 4 * i, 15, 0)),
                                _mm256_set1_epi8(HAS_EXCESS ? -128 : 0));
    case IR_MXFP4:
        return _mm256_add_epi8(look_up(codebook_mxfp4, bits_of(piece[0], 4 * i, 15, 0)),
                               _mm256_set1_epi8(HAS_EXCESS ? 16 : 0));
    case IR_Q8_0:
        return HAS_EXCESS ? _mm256_xor_si256(piece[0], _mm256_set1_epi8(-128)) : piece[0];
    case IR_Q2_K:
        return bits_of(piece[i / 4], i % 4 * 2, 3, 0);
    case IR_Q3_K:
        return _mm256_or_si256(bits_of(piece[i / 4], i % 4 * 2, 3, 0), bits_of(piece[2], i, 1, 2));
    case IR_Q4_K:
        return bits_of(piece[i / 2], i % 2 * 4, 15, 0);
    case IR_Q5_K:
        return _mm256_or_si256(bits_of(piece[i / 2], i % 2 * 4, 15, 0), bits_of(piece[4], i, 1, 4));
    case IR_Q6_K:
        return _mm256_or_si256(bits_of(piece[i / 4 * 2 + i % 2], i % 4 / 2 * 4, 15, 0),
                               bits_of(piece[4 + i / 4], i % 4 * 2, 3, 4));
    default: /* IR_Q4_0, IR_Q4_1, IR_Q5_0, IR_Q5_1 */
        return bits_of(piece[0], 4 * i, 15, 0);
    }
}

/* Where Q5_0 and Q5_1 keep the fifth bits of a block's 32 weights; 0: any other format. */
V_INLINE int fifth_at(ir_dtype dtype)
{
    return dtype == IR_Q5_0 ? 2 : dtype == IR_Q5_1 ? 4 : 0;
}

/* Bits 4 j to 4 j + 3 of each word, each as bit 4 of a byte of its own. */
V_INLINE __m256i fifth_bits(__m256i words, int j)
{
    const __m256i from = _mm256_add_epi8(_mm256_set1_epi8((char)(j / 2)),
                                         _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                             0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12)));
    const __m256i bit = _mm256_set1_epi32(j % 2 ? (int)0x80402010 : 0x08040201);
    __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(words, from), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(bits, bit), _mm256_set1_epi8(16));
}

/* The i-th 32 weights of a block of 256.  opened: the block as opened, if its format is. */
V_INLINE quants take_quants(ir_dtype dtype, const uint8_t *b, const opened_book *opened, int i)
{
    if (HAS_EXCESS && dtype == IR_IQ4_XS) {
        __m256i w = _mm256_xor_si256(look_up(codebook_iq4, nibbles_at(b + 8 + 16 * i)),
                                     _mm256_set1_epi8(-128));
        return (quants){w, w};
    }
    if (codebook_has(dtype))
        return take_book(dtype, b, opened, i);
    __m256i piece[6];
    for (int p = 0; p < pieces(dtype); p++)
        piece[p] = bytes_at(b + piece_at(dtype, p));
    __m256i bytes = bytes_from(dtype, piece, i);
    return is_signed(dtype) ? with_signs(bytes) : (quants){bytes, bytes};
}

/* The same for few tokens: a crossed format's weights in its own order, which is cheaper to
 * unpack. */
V_INLINE quants take_direct(ir_dtype dtype, const uint8_t *b, const opened_book *opened, int i)
{
    if (!is_crossed(dtype))
        return take_quants(dtype, b, opened, i);
    __m256i w = look_up(codebook_iq4, bits_of(bytes_at(b + 8 + i / 2 * 32), i % 2 * 4, 15, 0));
    return HAS_EXCESS ? (quants){_mm256_xor_si256(w, _mm256_set1_epi8(-128)), w} : with_signs(w);
}

/* Are the products of 64 weights added up before they are multiplied, instead of those of 32? */
V_INLINE bool is_added_twice(ir_dtype dtype)
{
    return is_added_first(dtype) && is_crossed(dtype);
}

/* ---- small integers: of two blocks of 256 at once, one in each lane of 128 bits ---- */

/* As bytes: eight in each lane if the format is wide, else 16; the same for the minimum, if it
 * has one. */
typedef struct small_integers {
    __m256i scale, minimum;
} small_integers;

/* Q4_K, Q5_K: twelve bytes of six-bit pairs, which follow the two f16; scales in the low half of
 * a lane, minima in the high half. */
V_INLINE __m256i small_pairs(__m256i b)
{
    const __m256i mask =
        _mm256_setr_epi32(BITS_6, BITS_4, BITS_6, BITS_4, BITS_6, BITS_4, BITS_6, BITS_4);
    const __m256i top = _mm256_setr_epi32(0, TOP_2, 0, TOP_2, 0, TOP_2, 0, TOP_2);
    const __m256i down = _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4);
    __m256i low = _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi32(b, 0xed), down), mask);
    __m256i high = _mm256_and_si256(_mm256_srli_epi32(_mm256_shuffle_epi32(b, 0xa5), 2), top);
    return _mm256_or_si256(low, high);
}

/* Q3_K: twelve bytes with sixteen integers of six bits, minus 32. */
V_INLINE __m256i small_sixes(const uint8_t *low, const uint8_t *high)
{
    const __m256i down = _mm256_setr_epi32(0, 0, 4, 4, 0, 0, 4, 4),
                  more = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    /* loaded from two bytes earlier, so that nothing after the block is read */
    const __m256i words =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9));
    const __m256i last = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13));
    __m256i b = lanes_of(low + 94, high + 94);
    __m256i four = _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(b, words), down),
                                    _mm256_set1_epi8(15));
    __m256i two = _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(b, last), more),
                                   _mm256_set1_epi8(3));
    return _mm256_sub_epi8(_mm256_or_si256(four, _mm256_slli_epi32(two, 4)), _mm256_set1_epi8(32));
}

/* The small integers of two blocks of one format: block[0] in the low lane, block[1] in the high
 * lane.  opened: the blocks as opened, if the format is. */
V_INLINE small_integers take_small(ir_dtype dtype, const uint8_t *const block[2],
                                   const opened_book *const opened[2])
{
    small_integers s = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    if (dtype == IR_Q2_K) {
        __m256i both = lanes_of(block[0], block[1]);
        s.scale = _mm256_and_si256(both, _mm256_set1_epi8(15));
        s.minimum = _mm256_and_si256(_mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
    } else if (dtype == IR_Q3_K) {
        s.scale = small_sixes(block[0], block[1]);
    } else if (dtype == IR_Q4_K || dtype == IR_Q5_K) {
        s.scale = small_pairs(lanes_of(block[0], block[1]));
        s.minimum = _mm256_srli_si256(s.scale, 8);
    } else if (dtype == IR_Q6_K) {
        s.scale = lanes_of(block[0] + 192, block[1] + 192);
    } else if (dtype == IR_IQ4_XS) {
        s.scale = small_of_iq4_xs(block[0], block[1]);
    } else if (is_even(dtype)) {
        s.scale = _mm256_set1_epi8(1);
    } else {
        s.scale = lanes_of(opened[0]->small, opened[1]->small);
    }
    return s;
}

/* The first eight bytes of each lane as 16-bit words; high_words: the last eight. */
V_INLINE __m256i low_words(ir_dtype dtype, __m256i bytes)
{
    if (has_minimum(dtype)) /* none is negative */
        return _mm256_unpacklo_epi8(bytes, _mm256_setzero_si256());
    return _mm256_srai_epi16(_mm256_unpacklo_epi8(bytes, bytes), 8);
}
V_INLINE __m256i high_words(ir_dtype dtype, __m256i bytes)
{
    if (has_minimum(dtype))
        return _mm256_unpackhi_epi8(bytes, _mm256_setzero_si256());
    return _mm256_srai_epi16(_mm256_unpackhi_epi8(bytes, bytes), 8);
}

/* The factors for the sums of x: the small integers of the minimum, or those of the scale if w
 * has an excess. */
V_INLINE __m256i sum_factors(ir_dtype dtype, const small_integers *s)
{
    return has_minimum(dtype) ? s->minimum : s->scale;
}

/* Are sums of x needed, for a minimum or an excess? */
V_INLINE bool needs_sums(ir_dtype dtype)
{
    return has_minimum(dtype) || quants_below(dtype);
}

/* ---- scales ---- */

/* d of eight blocks of MXFP4, from their first bytes: powers of two, as codebook_mxfp4_scale has
 * them. */
V_INLINE __m256 take_exponents(const uint8_t *const block[INT8_ROWS])
{
    __m256i e = _mm256_setr_epi32(block[0][0], block[1][0], block[2][0], block[3][0], block[4][0],
                                  block[5][0], block[6][0], block[7][0]);
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    /* 0 and 1 give subnormal numbers */
    __m256i below = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    __m256i is_normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
    return _mm256_castsi256_ps(_mm256_blendv_epi8(below, normal, is_normal));
}

/* The eight d of opened blocks. */
V_INLINE __m256 take_opened_scales(const opened_book *opened)
{
    return _mm256_setr_ps(opened[0].d, opened[1].d, opened[2].d, opened[3].d, opened[4].d,
                          opened[5].d, opened[6].d, opened[7].d);
}

/* The words at block[r] + at, of eight rows. */
V_INLINE __m256i words_of(const uint8_t *const *block, int at)
{
    return _mm256_setr_epi32((int)word_at(block[0] + at), (int)word_at(block[1] + at),
                             (int)word_at(block[2] + at), (int)word_at(block[3] + at),
                             (int)word_at(block[4] + at), (int)word_at(block[5] + at),
                             (int)word_at(block[6] + at), (int)word_at(block[7] + at));
}

/* d, and m with the sign with which it is added, of one block of each of eight rows. */
V_INLINE void take_scales(ir_dtype dtype, const uint8_t *const block[INT8_ROWS],
                          const opened_book *opened, __m256 *d, __m256 *m)
{
    const int at = scale_at(dtype);
    if (book_is_opened(dtype) || dtype == IR_MXFP4) {
        *d = dtype == IR_MXFP4 ? take_exponents(block) : take_opened_scales(opened);
        *m = _mm256_setzero_ps();
        return;
    }
    if (!has_minimum(dtype)) {
        uint16_t h[INT8_ROWS];
#pragma GCC unroll 8
        for (int r = 0; r < INT8_ROWS; r++)
            memcpy(&h[r], block[r] + at, sizeof h[r]);
        __m128i halves = _mm_setr_epi16((short)h[0], (short)h[1], (short)h[2], (short)h[3],
                                        (short)h[4], (short)h[5], (short)h[6], (short)h[7]);
        *d = _mm256_cvtph_ps(halves);
        *m = _mm256_setzero_ps();
        return;
    }
    __m256i both = words_of(block, at);
    const __m256i apart = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0,
                                           1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    both = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(both, apart), 0xd8);
    *d = _mm256_cvtph_ps(_mm256_castsi256_si128(both));
    *m = _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1));
    if (has_parts(dtype))
        *m = _mm256_xor_ps(*m, _mm256_set1_ps(-0.0f));
}

#endif
