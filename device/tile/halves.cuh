/* halves.cuh - the 16-bit floats that this kernel's streamed products multiply: two in a word,
 * and their products with sums in f32.
 *
 * A kernel has one kind: f16 where its programs hold f16 and no bf16 (MPK_HALVES_F16, which
 * gen/source.c decides), else bf16.  So an operand of the other kind never meets this code, and
 * each of these functions is one instruction, chosen by a constant.  linear_stream.cuh,
 * linear_team.cuh, linear_tile.cuh, linear_box.cuh and linear_parts.cuh call it; attention,
 * rotation and experts know bf16 alone.
 */
#ifndef TILE_HALVES_CUH
#define TILE_HALVES_CUH

#include "ptx/matrix.cuh"

/* Rounded to nearest even: `low` in the low half. */
MPK_FN rt_u32 halves_pack(float low, float high)
{
    return MPK_HALVES_F16 ? ptx_pack_f16(low, high) : ptx_pack_bf16(low, high);
}
/* The float in the low half of a word, exactly; halves_high: in the high half. */
MPK_FN float halves_low(rt_u32 v)
{
    return MPK_HALVES_F16 ? ptx_low_f16(v) : ptx_low_bf16(v);
}
MPK_FN float halves_high(rt_u32 v)
{
    return MPK_HALVES_F16 ? ptx_high_f16(v) : ptx_high_bf16(v);
}

/* A warp's product, c[16 x 8] += a[16 x 16] b[16 x 8], as ptx_multiply_bf16 has it. */
MPK_FN void halves_multiply(float *c, rt_u32 a0, rt_u32 a1, rt_u32 a2, rt_u32 a3, rt_u32 b0,
                            rt_u32 b1)
{
    if (MPK_HALVES_F16)
        ptx_multiply_f16(c, a0, a1, a2, a3, b0, b1);
    else
        ptx_multiply_bf16(c, a0, a1, a2, a3, b0, b1);
}

#if MPK_WGMMA
/* A warpgroup's product, c[64 x N] += a[64 x 16] b[16 x N]; N: 64, 96, 128, 192 or 256.  a and
 * b: descriptors (ptx_matrix).  It runs in the background until ptx_group_wait; c's registers may
 * not be touched before.  N is a constant, so one call is left. */
template <int N> MPK_FN void halves_group_multiply(float *c, rt_u64 a, rt_u64 b)
{
    if (N == 256 && MPK_HALVES_F16)
        ptx_group_multiply_f16_256(c, a, b);
    else if (N == 256)
        ptx_group_multiply_bf16_256(c, a, b);
    else if (N == 192 && MPK_HALVES_F16)
        ptx_group_multiply_f16_192(c, a, b);
    else if (N == 192)
        ptx_group_multiply_bf16_192(c, a, b);
    else if (N == 128 && MPK_HALVES_F16)
        ptx_group_multiply_f16_128(c, a, b);
    else if (N == 128)
        ptx_group_multiply_bf16_128(c, a, b);
    else if (N == 96 && MPK_HALVES_F16)
        ptx_group_multiply_f16_96(c, a, b);
    else if (N == 96)
        ptx_group_multiply_bf16_96(c, a, b);
    else if (MPK_HALVES_F16)
        ptx_group_multiply_f16_64(c, a, b);
    else
        ptx_group_multiply_bf16_64(c, a, b);
}
#endif

#endif
