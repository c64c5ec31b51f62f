/* half.cuh - f16 and bf16 to f32 and back, without cuda_fp16.h, which NVRTC would need files
 * for: for the loading kernels (pack.cuh) and for views (tile/view.cuh).
 */
#ifndef PTX_HALF_CUH
#define PTX_HALF_CUH

#include "rt/rt_port.h"

/* Exact: every f16, subnormals and infinities included, is an f32. */
RT_FN float ptx_from_f16(rt_u16 bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
/* Nearest, ties to even. */
RT_FN rt_u16 ptx_to_f16(float x)
{
    rt_u32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(0.0f), "f"(x));
    return (rt_u16)bits;
}
/* Nearest, ties to even; needs sm_80, unlike the conversion in pack.cuh, which is integer
 * arithmetic. */
RT_FN rt_u16 ptx_to_bf16(float x)
{
    rt_u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(0.0f), "f"(x));
    return (rt_u16)bits;
}

/* Two floats in a word, rounded to nearest, ties to even: `low` in the low half. */
RT_FN rt_u32 ptx_pack_f16(float low, float high)
{
    rt_u32 v;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
RT_FN rt_u32 ptx_pack_bf16(float low, float high)
{
    rt_u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
/* The halves of a word.  Exact: a bf16 is the high half of a float. */
RT_FN float ptx_low_f16(rt_u32 v)
{
    return ptx_from_f16((rt_u16)v);
}
RT_FN float ptx_high_f16(rt_u32 v)
{
    float x;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high;}" : "=f"(x) : "r"(v));
    return x;
}
RT_FN float ptx_low_bf16(rt_u32 v)
{
    return __uint_as_float(v << 16);
}
RT_FN float ptx_high_bf16(rt_u32 v)
{
    return __uint_as_float(v & 0xffff0000u);
}

#endif
