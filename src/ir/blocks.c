/* blocks.c - unpack the block formats of GGUF (see blocks.h).
 *
 * Input: bytes of consecutive blocks.  Output: f32.  One function for each format, one loop over
 * its blocks; a table by dtype.  Called by op_load_row for every body that has no faster way, by
 * the upload of weights to a GPU, and by `mpk quantize`.  Cost: a few operations an element, no
 * allocation.
 *
 * In the layouts below d and m are f16 scales and minima, q the integers; "in two halves" means
 * that byte i of n/2 holds element i in its low and element i + n/2 in its high four bits:
 *
 *   q4_0, 18 bytes for 32 elements       byte 2 = q[0] | q[16] << 4, byte 3 = q[1] | q[17] << 4 ...
 *   byte  0 1 | 2 3 4 ... 17              x[i] = d (q[i] - 8)
 *          d  |  q in two halves
 *
 * The formulas are evaluated in fp32 in the order in which they are written, which other readers
 * of GGUF share.
 */
#include "ir/blocks.h"

#include <string.h>

#include "base/num.h"
#include "base/rng.h"
#include "ir/codebooks.h"

/* An f16, little-endian, at any address: blocks have no alignment in a file, hence memcpy. */
static float half_at(const uint8_t *p)
{
    f16 h;
    memcpy(&h, p, sizeof h);
    return num_from_f16(h);
}

/* d; 16 bytes of q in two halves: x = d (q - 8) */
static void unpack_q4_0(const uint8_t *b, float *to)
{
    float d = half_at(b);
    for (int i = 0; i < 16; i++) {
        to[i] = d * (float)((b[2 + i] & 15) - 8);
        to[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

/* d; m; 16 bytes of q in two halves: x = d q + m */
static void unpack_q4_1(const uint8_t *b, float *to)
{
    float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 16; i++) {
        to[i] = d * (float)(b[4 + i] & 15) + m;
        to[i + 16] = d * (float)(b[4 + i] >> 4) + m;
    }
}

/* Bit i of the 32 bits at p, moved to bit 4: the fifth bit of element i. */
static int fifth_bit(const uint8_t *p, int i)
{
    return (p[i / 8] >> (i % 8) & 1) << 4;
}

/* d; 32 fifth bits; 16 bytes of q in two halves: x = d (q - 16) */
static void unpack_q5_0(const uint8_t *b, float *to)
{
    float d = half_at(b);
    for (int i = 0; i < 16; i++) {
        to[i] = d * (float)(((b[6 + i] & 15) | fifth_bit(b + 2, i)) - 16);
        to[i + 16] = d * (float)(((b[6 + i] >> 4) | fifth_bit(b + 2, i + 16)) - 16);
    }
}

/* d; m; 32 fifth bits; 16 bytes of q in two halves: x = d q + m */
static void unpack_q5_1(const uint8_t *b, float *to)
{
    float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 16; i++) {
        to[i] = d * (float)((b[8 + i] & 15) | fifth_bit(b + 4, i)) + m;
        to[i + 16] = d * (float)((b[8 + i] >> 4) | fifth_bit(b + 4, i + 16)) + m;
    }
}

/* d; 32 signed bytes q: x = d q */
static void unpack_q8_0(const uint8_t *b, float *to)
{
    float d = half_at(b);
    for (int i = 0; i < 32; i++)
        to[i] = (float)(int8_t)b[2 + i] * d;
}

/* 16 bytes of (scale, minimum) of four bits each, one for each 16 elements; 64 bytes of two-bit
 * q, where byte i of each 32 holds elements i, i + 32, i + 64, i + 96 of its 128; d; dmin: x = d
 * scale q - dmin minimum */
static void unpack_q2_k(const uint8_t *b, float *to)
{
    float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int i = 0; i < 256; i++) {
        uint8_t scale = b[i / 16];
        int q = b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        to[i] = d * (float)(scale & 15) * (float)q - dmin * (float)(scale >> 4);
    }
}

/* The 6-bit scale of 16 elements number i of a q3_k block: the low four bits in eight bytes in
 * two halves, the high two bits in the four bytes after them, two bits apart.  Stored with 32
 * added. */
static int q3_k_scale(const uint8_t *scales, int i)
{
    int low = scales[i % 8] >> (i / 8 * 4) & 15;
    return (low | (scales[8 + i % 4] >> (i / 4 * 2) & 3) << 4) - 32;
}

/* 32 bytes of third bits, byte j holding in bit k that of element 32 k + j; two-bit q as in
 * q2_k; 12 bytes of scales; d: x = d scale (q - 4 if the third bit is clear, else q) */
static void unpack_q3_k(const uint8_t *b, float *to)
{
    float d = half_at(b + 108);
    for (int i = 0; i < 256; i++) {
        int q = b[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        int third = b[i % 32] >> (i / 32) & 1;
        to[i] = d * (float)q3_k_scale(b + 96, i / 16) * (float)(q - (third ? 0 : 4));
    }
}

/* The 6-bit scale and minimum of 32 elements number i of a q4_k or q5_k block, in 12 bytes:
 *
 *   bytes 0-3    scales 0-3 in the low six bits, top two bits of scales 4-7 above them
 *   bytes 4-7    minima 0-3 likewise, with the top two bits of minima 4-7
 *   bytes 8-11   of scales 4-7 the low four bits in the low half, of minima 4-7 in the high half */
static void k_scale_minimum(const uint8_t *p, int i, float *scale, float *minimum)
{
    if (i < 4) {
        *scale = (float)(p[i] & 63);
        *minimum = (float)(p[i + 4] & 63);
        return;
    }
    *scale = (float)((p[i + 4] & 15) | (p[i - 4] >> 6) << 4);
    *minimum = (float)((p[i + 4] >> 4) | (p[i] >> 6) << 4);
}

/* d; dmin; 12 bytes of scales and minima; 128 bytes of q, each 32 bytes holding 64 elements,
 * which are two groups, in two halves: x = d scale q - dmin minimum */
static void unpack_q4_k(const uint8_t *b, float *to)
{
    float d = half_at(b), dmin = half_at(b + 2);
    for (int group = 0; group < 8; group++) {
        float scale, minimum;
        k_scale_minimum(b + 4, group, &scale, &minimum);
        scale *= d, minimum *= dmin;
        const uint8_t *q = b + 16 + group / 2 * 32;
        for (int i = 0; i < 32; i++)
            to[group * 32 + i] = scale * (float)(q[i] >> (group % 2 * 4) & 15) - minimum;
    }
}

/* As q4_k with 32 bytes of fifth bits before q: bit `group` of byte i belongs to element i of the
 * group. */
static void unpack_q5_k(const uint8_t *b, float *to)
{
    float d = half_at(b), dmin = half_at(b + 2);
    for (int group = 0; group < 8; group++) {
        float scale, minimum;
        k_scale_minimum(b + 4, group, &scale, &minimum);
        scale *= d, minimum *= dmin;
        const uint8_t *q = b + 48 + group / 2 * 32;
        for (int i = 0; i < 32; i++) {
            int low = q[i] >> (group % 2 * 4) & 15, high = (b[16 + i] >> group & 1) << 4;
            to[group * 32 + i] = scale * (float)(low | high) - minimum;
        }
    }
}

/* 128 bytes of low four bits, each 64 bytes holding 128 elements in two halves; 64 bytes of high
 * two bits, packed as the q of q2_k; 16 signed scales, one for each 16 elements; d: x = d scale
 * (q - 32) */
static void unpack_q6_k(const uint8_t *b, float *to)
{
    float d = half_at(b + 208);
    for (int i = 0; i < 256; i++) {
        int low = b[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
        int high = (b[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) << 4;
        to[i] = d * (float)(int8_t)b[192 + i / 16] * (float)((low | high) - 32);
    }
}

/* d; 16 bytes of indices into codebook_iq4 in two halves: x = d value */
static void unpack_iq4_nl(const uint8_t *b, float *to)
{
    float d = half_at(b);
    for (int i = 0; i < 32; i++)
        to[i] = d * (float)codebook_iq4[b[2 + i % 16] >> (i / 16 * 4) & 15];
}

/* A byte e; 16 bytes of indices into codebook_mxfp4 in two halves: x = 2^(e - 127) value.  The
 * table holds doubled values, so the scale is halved. */
static void unpack_mxfp4(const uint8_t *b, float *to)
{
    float d = codebook_mxfp4_scale(b[0]);
    for (int i = 0; i < 32; i++)
        to[i] = d * (float)codebook_mxfp4[b[1 + i % 16] >> (i / 16 * 4) & 15];
}

/* Formats of code books are taken apart by the same code as for the CPU's kernels; both products
 * are exact, so their order does not matter. */
static void unpack_codebook(ir_dtype dtype, const uint8_t *b, float *to)
{
    codebook_block block;
    codebook_take(dtype, b, &block);
    for (int i = 0; i < CODEBOOK_WEIGHTS; i++)
        to[i] = block.d * (float)block.small[i / 16] * (float)block.q[i];
}

/* What is known of a format: how it is unpacked, where the f16 scales of a block lie, and the
 * largest factor that multiplies them, by which random blocks are scaled. */
typedef struct block_format {
    void (*unpack)(const uint8_t *block, float *to); /* NULL: a code book's, or no block format */
    int scale_at[2];                                 /* -1: there is none */
    float largest;                                   /* 0: no block format */
} block_format;

/* By dtype; a row of zeros is not a block format. */
static const block_format formats[IR_DTYPES] = {
    [IR_Q4_0] = {unpack_q4_0, {0, -1}, 8},
    [IR_Q4_1] = {unpack_q4_1, {0, 2}, 16},
    [IR_Q5_0] = {unpack_q5_0, {0, -1}, 16},
    [IR_Q5_1] = {unpack_q5_1, {0, 2}, 32},
    [IR_Q8_0] = {unpack_q8_0, {0, -1}, 128},
    [IR_Q2_K] = {unpack_q2_k, {80, 82}, 15 * 4},
    [IR_Q3_K] = {unpack_q3_k, {108, -1}, 32 * 4},
    [IR_Q4_K] = {unpack_q4_k, {0, 2}, 64 * 16},
    [IR_Q5_K] = {unpack_q5_k, {0, 2}, 64 * 32},
    [IR_Q6_K] = {unpack_q6_k, {208, -1}, 128 * 32},
    [IR_IQ4_NL] = {unpack_iq4_nl, {0, -1}, 127},
    [IR_MXFP4] = {unpack_mxfp4, {-1, -1}, 12},
    [IR_IQ1_S] = {NULL, {0, -1}, 15 * 9 / 8},
    [IR_IQ1_M] = {NULL, {-1, -1}, 15 * 9 / 8},
    [IR_IQ2_XXS] = {NULL, {0, -1}, 31 * 43 / 8},
    [IR_IQ2_XS] = {NULL, {0, -1}, 31 * 43 / 8},
    [IR_IQ2_S] = {NULL, {0, -1}, 31 * 43 / 8},
    [IR_IQ3_XXS] = {NULL, {0, -1}, 31 * 62 / 4},
    [IR_IQ3_S] = {NULL, {0, -1}, 31 * 15},
    [IR_IQ4_XS] = {NULL, {0, -1}, 32 * 127},
    [IR_TQ1_0] = {NULL, {52, -1}, 1},
    [IR_TQ2_0] = {NULL, {64, -1}, 1},
};

/* false: not a block format, nothing is written.  n is a multiple of the block. */
bool blocks_unpack_row(ir_dtype dtype, const void *from, int64_t n, float *to)
{
    const ir_dtype_info *info = &ir_dtype_table[dtype];
    const block_format *format = &formats[dtype];
    if (!format->largest)
        return false;
    const uint8_t *block = from;
    for (int64_t i = 0; i < n; i += info->block_elements, block += info->block_bytes)
        if (format->unpack)
            format->unpack(block, to + i);
        else
            unpack_codebook(dtype, block, to + i);
    return true;
}

/* Set the scale of a format that does not keep it as an f16 in one place: four bits in each of
 * four words (IQ1_M), or an exponent (MXFP4). */
static void put_odd_scale(ir_dtype dtype, float scale, uint8_t *block)
{
    f16 half = num_to_f16(scale);
    for (int i = 0; dtype == IR_IQ1_M && i < 4; i++)
        block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4);
    if (dtype == IR_MXFP4)
        block[0] = (uint8_t)(123 + block[0] % 2);
}

/* Any bytes are valid integers of a block; its scales are set so that values are moderate, as
 * those of trained weights are.  The minimum of q4_1 and q5_1 is made negative, so that values
 * lie on both sides of 0. */
bool blocks_fill_random(ir_dtype dtype, int64_t n, uint64_t seed, void *to)
{
    const ir_dtype_info *info = &ir_dtype_table[dtype];
    const block_format *format = &formats[dtype];
    if (!format->largest)
        return false;
    uint8_t *block = to;
    for (int64_t i = 0; i < n; i += info->block_elements, block += info->block_bytes) {
        for (uint32_t k = 0; k < info->block_bytes; k++)
            block[k] = (uint8_t)rng_u64(seed, (uint64_t)i * 8 + k);
        put_odd_scale(dtype, (0.5f + rng_float(seed ^ 1, (uint64_t)i)) / format->largest, block);
        for (int k = 0; k < 2 && format->scale_at[k] >= 0; k++) {
            float scale = (0.5f + rng_float(seed ^ 1, (uint64_t)(i + k))) / format->largest;
            f16 half = num_to_f16(
                k && (dtype == IR_Q4_1 || dtype == IR_Q5_1) ? -scale * format->largest / 2 : scale);
            memcpy(block + format->scale_at[k], &half, sizeof half);
        }
    }
    return true;
}
