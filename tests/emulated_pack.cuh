/* emulated_pack.cuh - what stands before device/pack.cuh when the host's C++ compiler compiles it:
 * CUDA's words, and conversions of f16, which the test gives.  For src/cuda/pack_test.c. */
#ifndef EMULATED_PACK_CUH
#define EMULATED_PACK_CUH

#include <math.h>
#include <stdint.h>

#include "rt/rt_port.h" /* in the source it stands within what is left out, ptx/half.cuh */
#include "tests/emulated_bits.cuh"

#define __global__
struct emulated_index {
    unsigned x;
};
static emulated_index blockIdx, threadIdx, blockDim, gridDim;
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

/* Not contracted: the test compiles with -ffp-contract=off. */
static inline float __fmul_rn(float x, float y)
{
    return x * y;
}
static inline float __fadd_rn(float x, float y)
{
    return x + y;
}

/* ptx/half.cuh is assembly. */
#define PTX_HALF_CUH
extern "C" {
float (*emulated_from_f16)(uint16_t bits);
uint16_t (*emulated_to_f16)(float x);
}
static inline float ptx_from_f16(uint16_t bits)
{
    return emulated_from_f16(bits);
}
static inline uint16_t ptx_to_f16(float x)
{
    return emulated_to_f16(x);
}

#endif
