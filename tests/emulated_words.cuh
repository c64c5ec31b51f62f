/* emulated_words.cuh - types and functions that CUDA's own headers declare, in plain C.
 *
 * Relies on the threads of emulated_warps.cuh, which includes it.
 */
#ifndef EMULATED_WORDS_CUH
#define EMULATED_WORDS_CUH

#include "tests/emulated_quads.cuh"

struct __align__(8) uint2
{
    rt_u32 x, y;
};
struct __align__(16) uint4
{
    rt_u32 x, y, z, w;
};
struct __align__(8) float2
{
    float x, y;
};
struct __align__(16) float4
{
    float x, y, z, w;
};
static inline uint2 make_uint2(rt_u32 x, rt_u32 y)
{
    return {x, y};
}
static inline uint4 make_uint4(rt_u32 x, rt_u32 y, rt_u32 z, rt_u32 w)
{
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline float __int_as_float(int i)
{
    return __uint_as_float((rt_u32)i);
}
/* Bytes of b, a, the lowest first, chosen by the nibbles of s. */
static inline rt_u32 __byte_perm(rt_u32 a, rt_u32 b, rt_u32 s)
{
    const rt_u64 both = (rt_u64)b << 32 | a;
    rt_u32 v = 0;
    for (int i = 0; i < 4; i++)
        v |= (rt_u32)(both >> (s >> 4 * i & 7) * 8 & 255) << 8 * i;
    return v;
}
static inline int __popc(rt_u32 x)
{
    return __builtin_popcount(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((rt_u32)x) : 32;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}
static inline float __fdividef(float x, float y)
{
    return x / y;
}
#define __expf expf
static inline rt_u32 atomicOr(rt_u32 *p, rt_u32 v)
{
    rt_u32 old = *p;
    *p |= v;
    return old;
}
static inline rt_u32 atomicAdd(rt_u32 *p, rt_u32 v)
{
    rt_u32 old = *p;
    *p += v;
    return old;
}

/* The larger of two numbers of 16 bits, of which `infinity` is the largest that is one; NaN wins,
 * and 0 is above -0. */
static inline rt_u32 emulated_larger(rt_u32 a, rt_u32 b, rt_u32 infinity)
{
    const rt_u32 key_a = a & 0x8000 ? a ^ 0xffff : a | 0x8000,
                 key_b = b & 0x8000 ? b ^ 0xffff : b | 0x8000;
    if ((a & 0x7fff) > infinity || (b & 0x7fff) > infinity)
        return 0x7fff;
    return key_a > key_b ? a : b;
}
static inline rt_u32 ptx_larger_bf16(rt_u32 a, rt_u32 b)
{
    return emulated_larger(a & 0xffff, b & 0xffff, 0x7f80) |
           emulated_larger(a >> 16, b >> 16, 0x7f80) << 16;
}
static inline rt_u32 ptx_larger_f16(rt_u32 a, rt_u32 b)
{
    return emulated_larger(a & 0xffff, b & 0xffff, 0x7c00) |
           emulated_larger(a >> 16, b >> 16, 0x7c00) << 16;
}
static inline float ptx_larger(float a, float b)
{
    if (a != a || b != b)
        return NAN;
    return a > b || (a == b && !signbit(a)) ? a : b;
}

#endif
