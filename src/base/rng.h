/* rng.h - random numbers by counter: number i of stream s is a function of (s, i) alone.
 *
 * So the same seed gives the same values whatever the order or the thread that asks, and any
 * element of a random tensor can be made on its own.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

/* 64 random bits: the SplitMix64 finaliser over a mix of stream and index, applied twice. */
static inline uint64_t rng_u64(uint64_t stream, uint64_t index)
{
    uint64_t z = stream * UINT64_C(0x9e3779b97f4a7c15) + index;
    for (int round = 0; round < 2; round++) {
        z += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        z ^= z >> 31;
    }
    return z;
}

/* Uniform in [0, 1), a multiple of 2^-24. */
static inline float rng_float(uint64_t stream, uint64_t index)
{
    return (float)(rng_u64(stream, index) >> 40) * 0x1p-24f;
}

/* Mean 0, variance 1, nearly normal: the sum of four uniform 16-bit parts (bounded by +-3.47). */
static inline float rng_normal(uint64_t stream, uint64_t index)
{
    uint64_t z = rng_u64(stream, index);
    int32_t sum = (int32_t)(z & 0xffff) + (int32_t)(z >> 16 & 0xffff) +
                  (int32_t)(z >> 32 & 0xffff) + (int32_t)(z >> 48);
    return (float)(sum - 131070) * (1.0f / 37837.0f); /* 65536 / sqrt(3) */
}

#endif
