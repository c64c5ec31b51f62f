/* emulated_quads.cuh - what generic bodies have of device/ptx/thread.cuh besides threads, in C:
 * loads and stores of 16 bytes, and two approximations.  For both files that stand before bodies on
 * the host. */
#ifndef EMULATED_QUADS_CUH
#define EMULATED_QUADS_CUH

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/emulated_bits.cuh"

/* The GPU faults on an address that is not a multiple of 16; so do these. */
static inline void ptx_load_once(const void *p, unsigned (&v)[4])
{
    if ((uintptr_t)p % sizeof v)
        abort();
    memcpy(v, p, sizeof v);
}
static inline void ptx_store_quad(void *p, const unsigned (&v)[4])
{
    if ((uintptr_t)p % sizeof v)
        abort();
    memcpy(p, v, sizeof v);
}
static inline float ptx_exp2(float x)
{
    return exp2f(x);
}
static inline float ptx_rcp(float x)
{
    return 1 / x;
}

#endif
