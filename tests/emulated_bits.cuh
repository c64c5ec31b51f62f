/* emulated_bits.cuh - CUDA's functions between floats and their bits, in plain C, for all files of
 * tests/ that stand before device code on the host. */
#ifndef EMULATED_BITS_CUH
#define EMULATED_BITS_CUH

#include <string.h>

static inline unsigned __float_as_uint(float x)
{
    unsigned u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float __uint_as_float(unsigned u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#endif
