/* num.h - number formats and their exact conversion: bf16, f16, f32.
 *
 * To a narrower format: round to nearest, ties to even; NaN stays NaN (quiet), overflow becomes
 * infinity.
 */
#ifndef BASE_NUM_H
#define BASE_NUM_H

#include <stdint.h>
#include <string.h>

typedef uint16_t bf16; /* 1 sign, 8 exponent, 7 fraction bits */
typedef uint16_t f16;  /* 1 sign, 5 exponent, 10 fraction bits */

static inline uint32_t num_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float num_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float num_from_bf16(bf16 h)
{
    return num_float((uint32_t)h << 16);
}

/* Adding half of what is cut off, less one, plus the last bit that stays rounds halves to even.  A
 * NaN is only truncated, with a bit set: its payload may lie in the bits that are cut off, and it
 * would become infinity. */
static inline bf16 num_to_bf16(float x)
{
    uint32_t u = num_bits(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (bf16)(u >> 16 | 0x40);
    return (bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* 112 is the difference of the exponents' biases, 127 and 15. */
static inline float num_from_f16(f16 h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00) /* infinity, NaN */
        return num_float(sign | 0x7f800000 | rest << 13);
    if (rest >= 0x0400) /* normal */
        return num_float(sign | ((rest << 13) + (112u << 23)));
    float magnitude = (float)rest * 0x1p-24f; /* zero, subnormal: exact */
    return num_float(sign | num_bits(magnitude));
}

/* 0x477ff000 is 65520, halfway from the largest f16, 65504, to 2^16. */
static inline f16 num_to_f16(float x)
{
    uint32_t u = num_bits(x), sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;
    if (rest > 0x7f800000)
        return (f16)(sign | 0x7e00);
    if (rest >= 0x477ff000) /* rounds to 2^16 or more */
        return (f16)(sign | 0x7c00);
    if (rest < 0x38800000) { /* below 2^-14: adding 0.5 aligns the fraction to units of 2^-24 */
        float shifted = num_float(rest) + 0.5f;
        return (f16)(sign | (num_bits(shifted) - 0x3f000000));
    }
    uint32_t rounded = rest + 0xfff + ((rest >> 13) & 1) - (112u << 23);
    return (f16)(sign | rounded >> 13);
}

#endif
