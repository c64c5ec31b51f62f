/* blocks_pack.c - floats become the blocks of GGUF (see blocks.h); the inverse of blocks.c.
 *
 * Input: f32, and the importance of each element.  Output: bytes of consecutive blocks.  Called
 * by `mpk quantize` through load/quantize.c, and by tests.  The old formats (blocks of 32)
 * without importances follow the format's definition, which fixes every bit: scale and minimum
 * from the extremes, then the nearest integers.  Everything else searches (blocks_fit.c).  One
 * function writes each layout; blocks.c tells the layouts.
 */
#include <math.h>
#include <string.h>

#include "ir/blocks.h"
#include "ir/blocks_fit.h"

/* Store an f16, little-endian, as everything in GGUF and on the machines that mpk runs on. */
static void put_half(uint8_t *to, float x)
{
    f16 h = num_to_f16(x);
    memcpy(to, &h, sizeof h);
}

/* ---- blocks of 32 ---- */

/* Elements of a block of the old formats. */
enum { SMALL = 32 };

/* d, m and integers from 0 on of a block: x = d q + m, or x = d (q - middle) where m is not
 * stored. */
typedef struct small_block {
    float d, m;
    uint8_t q[SMALL];
} small_block;

/* The integer 0 ... most of one element, by truncation as the definitions do it; `half` is the
 * zero point plus a half, so that truncation rounds. */
static uint8_t level_of(float x, float inverse, float half, int most)
{
    float level = truncf(x * inverse + half);
    level = level > 0 ? level : 0;
    return (uint8_t)(level < (float)most ? level : (float)most);
}

/* 1 / d; 0 for a scale that is 0 or so small that its inverse overflows: the block's integers
 * are then those of zeros. */
static float invert(float d)
{
    float inverse = d != 0 ? 1 / d : 0;
    return isfinite(inverse) ? inverse : 0;
}

/* The element of largest magnitude, the first of equals, becomes integer 0: the integers reach one
 * further below zero than above, and the sign of d makes the extreme negative. */
static void take_extreme(const float *x, int middle, small_block *b)
{
    float extreme = x[0];
    for (int i = 1; i < SMALL; i++)
        extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
    b->d = extreme / (float)-middle;
    float inverse = invert(b->d);
    for (int i = 0; i < SMALL; i++)
        b->q[i] = level_of(x[i], inverse, (float)middle + 0.5f, 2 * middle - 1);
}

/* The smallest element becomes integer 0, the largest the last. */
static void take_range(const float *x, int most, small_block *b)
{
    float low = x[0], high = x[0];
    for (int i = 1; i < SMALL; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    b->d = (high - low) / (float)most;
    b->m = low;
    float inverse = invert(b->d);
    for (int i = 0; i < SMALL; i++)
        b->q[i] = level_of(x[i] - low, inverse, 0.5f, most);
}

/* Fill the block by search; most is the largest integer, middle the zero point (0: the format
 * has a minimum instead).  Integers are assigned for the scale as f16 stores it. */
static void search_small(const float *x, const float *w, int most, int middle, small_block *b)
{
    fit_form form = {.group = SMALL, .q_least = -middle, .q_most = most - middle};
    float q[SMALL];
    form.minimum = middle ? FIT_NO_MINIMUM : FIT_MINIMUM;
    fit_group(&form, x, w, &b->d, &b->m);
    b->m = -b->m;
    fit_assign(&form, x, w, num_from_f16(num_to_f16(b->d)), -num_from_f16(num_to_f16(b->m)), q);
    for (int i = 0; i < SMALL; i++)
        b->q[i] = (uint8_t)((int)q[i] + middle);
}

/* Write the integers in two halves: 16 bytes of low bits, and where `fifth` is given their fifth
 * bits in 4 bytes. */
static void put_halves(const small_block *b, uint8_t *low, uint8_t *fifth)
{
    for (int i = 0; i < 16; i++)
        low[i] = (uint8_t)((b->q[i] & 15) | (b->q[i + 16] & 15) << 4);
    for (int i = 0; fifth && i < 4; i++) {
        fifth[i] = 0;
        for (int k = 0; k < 8; k++)
            fifth[i] |= (uint8_t)(b->q[8 * i + k] >> 4 << k);
    }
}

/* The four old formats: without importances the definition fixes every bit, with them a search
 * finds a smaller error.  The two numbers of search_small are the largest integer and the zero
 * point. */
static void pack_q4_0(const float *x, const float *w, uint8_t *to)
{
    small_block b = {0};
    if (w)
        search_small(x, w, 15, 8, &b);
    else
        take_extreme(x, 8, &b);
    put_half(to, b.d);
    put_halves(&b, to + 2, NULL);
}

static void pack_q4_1(const float *x, const float *w, uint8_t *to)
{
    small_block b = {0};
    if (w)
        search_small(x, w, 15, 0, &b);
    else
        take_range(x, 15, &b);
    put_half(to, b.d);
    put_half(to + 2, b.m);
    put_halves(&b, to + 4, NULL);
}

static void pack_q5_0(const float *x, const float *w, uint8_t *to)
{
    small_block b = {0};
    if (w)
        search_small(x, w, 31, 16, &b);
    else
        take_extreme(x, 16, &b);
    put_half(to, b.d);
    put_halves(&b, to + 6, to + 2);
}

static void pack_q5_1(const float *x, const float *w, uint8_t *to)
{
    small_block b = {0};
    if (w)
        search_small(x, w, 31, 0, &b);
    else
        take_range(x, 31, &b);
    put_half(to, b.d);
    put_half(to + 2, b.m);
    put_halves(&b, to + 8, to + 4);
}

/* Importances are ignored: with 8 bits the rounding error is too small for a search to matter. */
static void pack_q8_0(const float *x, const float *w, uint8_t *to)
{
    (void)w;
    float most = 0;
    for (int i = 0; i < SMALL; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    float d = most / 127, inverse = invert(d);
    put_half(to, d);
    for (int i = 0; i < SMALL; i++)
        to[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
}

/* ---- blocks of 256 ---- */

/* Write two bits of each integer, those from bit `shift` of q + middle on, into 64 bytes:
 * element i goes to byte i / 128 * 32 + i % 32. */
static void put_pairs(const fit_block *b, int middle, int shift, uint8_t *to)
{
    memset(to, 0, 64);
    for (int i = 0; i < FIT_BLOCK; i++)
        to[i / 128 * 32 + i % 32] |=
            (uint8_t)((((int)b->q[i] + middle) >> shift & 3) << (i % 128 / 32 * 2));
}

/* Forms are: elements of a group, range of q, range of the integer scale, which minimum. */
static void pack_q2_k(const float *x, const float *w, uint8_t *to)
{
    static const fit_form form = {16, 0, 3, 0, 15, FIT_MINIMUM_BELOW_ZERO};
    fit_block b;
    fit_whole(&form, x, w, &b);
    for (int i = 0; i < 16; i++)
        to[i] = (uint8_t)(b.scale[i] | b.minimum[i] << 4);
    put_pairs(&b, 0, 0, to + 16);
    memcpy(to + 80, &b.d, 2);
    memcpy(to + 82, &b.dmin, 2);
}

/* Scales of six signed bits: the low four in eight bytes, the high two in four bytes after them. */
static void pack_q3_k(const float *x, const float *w, uint8_t *to)
{
    static const fit_form form = {16, -4, 3, -32, 31, FIT_NO_MINIMUM};
    fit_block b;
    fit_whole(&form, x, w, &b);
    memset(to, 0, 110);
    for (int i = 0; i < FIT_BLOCK; i++)
        to[i % 32] |= (uint8_t)(((int)b.q[i] + 4) >> 2 << (i / 32));
    put_pairs(&b, 4, 0, to + 32);
    for (int i = 0; i < 16; i++) {
        int scale = b.scale[i] + 32;
        to[96 + i % 8] |= (uint8_t)((scale & 15) << (i / 8 * 4));
        to[104 + i % 4] |= (uint8_t)(scale >> 4 << (i / 4 * 2));
    }
    memcpy(to + 108, &b.d, 2);
}

/* The 12 bytes of 6-bit scales and minima of q4_k and q5_k. */
static void put_scales_minima(const fit_block *b, uint8_t *to)
{
    for (int i = 0; i < 4; i++) {
        to[i] = (uint8_t)(b->scale[i] | b->scale[i + 4] >> 4 << 6);
        to[i + 4] = (uint8_t)(b->minimum[i] | b->minimum[i + 4] >> 4 << 6);
        to[i + 8] = (uint8_t)((b->scale[i + 4] & 15) | (b->minimum[i + 4] & 15) << 4);
    }
}

/* Low four bits, each 32 bytes holding two groups of 32 in two halves. */
static void put_low_bits(const fit_block *b, uint8_t *to)
{
    for (int i = 0; i < FIT_BLOCK / 2; i++) {
        int at = i / 32 * 64 + i % 32;
        to[i] = (uint8_t)(((int)b->q[at] & 15) | ((int)b->q[at + 32] & 15) << 4);
    }
}

/* Eight groups of 32; scales and minima of 6 bits each are packed crosswise into 12 bytes. */
static void pack_q4_k(const float *x, const float *w, uint8_t *to)
{
    static const fit_form form = {32, 0, 15, 0, 63, FIT_MINIMUM_BELOW_ZERO};
    fit_block b;
    fit_whole(&form, x, w, &b);
    memcpy(to, &b.d, 2);
    memcpy(to + 2, &b.dmin, 2);
    put_scales_minima(&b, to + 4);
    put_low_bits(&b, to + 16);
}

/* As q4_k, with the fifth bits in 32 bytes of their own between scales and low bits. */
static void pack_q5_k(const float *x, const float *w, uint8_t *to)
{
    static const fit_form form = {32, 0, 31, 0, 63, FIT_MINIMUM_BELOW_ZERO};
    fit_block b;
    fit_whole(&form, x, w, &b);
    memcpy(to, &b.d, 2);
    memcpy(to + 2, &b.dmin, 2);
    put_scales_minima(&b, to + 4);
    memset(to + 16, 0, 32);
    for (int i = 0; i < FIT_BLOCK; i++)
        to[16 + i % 32] |= (uint8_t)((int)b.q[i] >> 4 << (i / 32));
    put_low_bits(&b, to + 48);
}

/* Low four bits of two elements 64 apart share a byte, high two bits of four elements 32 apart
 * do. */
static void pack_q6_k(const float *x, const float *w, uint8_t *to)
{
    static const fit_form form = {16, -32, 31, -128, 127, FIT_NO_MINIMUM};
    fit_block b;
    fit_whole(&form, x, w, &b);
    for (int i = 0; i < FIT_BLOCK / 2; i++) {
        int at = i / 64 * 128 + i % 64;
        to[i] = (uint8_t)((((int)b.q[at] + 32) & 15) | (((int)b.q[at + 64] + 32) & 15) << 4);
    }
    put_pairs(&b, 32, 4, to + 128);
    for (int i = 0; i < 16; i++)
        to[192 + i] = (uint8_t)(int8_t)b.scale[i];
    memcpy(to + 208, &b.d, 2);
}

/* ---- the formats ---- */

/* How a format is packed; scale_at as in blocks.c: where the f16 scales are, -1: there is no
 * other. */
static const struct packer {
    void (*pack)(const float *x, const float *w, uint8_t *to);
    int16_t scale_at[2];
} packers[IR_DTYPES] = {
    [IR_Q4_0] = {pack_q4_0, {0, -1}},   [IR_Q4_1] = {pack_q4_1, {0, 2}},
    [IR_Q5_0] = {pack_q5_0, {0, -1}},   [IR_Q5_1] = {pack_q5_1, {0, 2}},
    [IR_Q8_0] = {pack_q8_0, {0, -1}},   [IR_Q2_K] = {pack_q2_k, {80, 82}},
    [IR_Q3_K] = {pack_q3_k, {108, -1}}, [IR_Q4_K] = {pack_q4_k, {0, 2}},
    [IR_Q5_K] = {pack_q5_k, {0, 2}},    [IR_Q6_K] = {pack_q6_k, {208, -1}},
};

bool blocks_can_pack(ir_dtype dtype)
{
    return packers[dtype].pack != NULL;
}

/* Infinities and NaN have all exponent bits set. */
static bool has_finite_scales(const struct packer *p, const uint8_t *block)
{
    for (int k = 0; k < 2 && p->scale_at[k] >= 0; k++)
        if ((block[p->scale_at[k] + 1] & 0x7c) == 0x7c)
            return false;
    return true;
}

/* Stops at the first block with a scale beyond f16's range; what is in `to` is then worthless. */
bool blocks_pack_row(ir_dtype dtype, const float *from, const float *importance, int64_t n,
                     void *to)
{
    const ir_dtype_info *info = &ir_dtype_table[dtype];
    const struct packer *p = &packers[dtype];
    uint8_t *block = to;
    for (int64_t i = 0; i < n; i += info->block_elements, block += info->block_bytes) {
        p->pack(from + i, importance ? importance + i : NULL, block);
        if (!has_finite_scales(p, block))
            return false;
    }
    return true;
}
