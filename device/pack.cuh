/* pack.cuh - loading: weights into the layout that bodies stream, and random weights.
 *
 * Input: a part of a weight as it lies in the model's file, in device memory (rt_pack), or the
 * numbers of a random stream (rt_fill).  Output: the packed weight of an operator
 * (gen/device_body.h), or a plain one.  src/cuda/upload.c launches both kernels;
 * src/cuda/calls.c the first, for weights of its caller.
 *
 * A module of its own, the same for all programs: it is ready, and weights are in flight,
 * long before a mega-kernel is compiled.  A thread makes 8 neighbours of a row, which is one
 * 16-byte unit of the packed layout.  Padding is zero because the host clears the memory first.
 * Cost: the bytes read and written, at the speed of the memory.
 */
#ifndef PACK_CUH
#define PACK_CUH

#include "ptx/half.cuh"
#include "rt/rt_blocks.h"
#include "rt/rt_centre.h"
#include "rt/rt_pack.h"

/* Exact. */
RT_FN float pack_from_bf16(rt_u16 bits)
{
    return __uint_as_float((rt_u32)bits << 16);
}
/* Nearest, ties to even, as on the host: half of the last kept place less one is added, and one
 * more if that place is odd.  A NaN stays one: a bit of its payload is set, since all that it
 * had may be in the half that is cut off. */
RT_FN rt_u16 pack_to_bf16(float x)
{
    rt_u32 u = __float_as_uint(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (rt_u16)(u >> 16 | 0x40);
    return (rt_u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Element i, counted from the address `from`, as a float; exact for all three dtypes. */
RT_FN float pack_load(rt_u64 from, rt_u32 dtype, rt_u64 i)
{
    if (dtype == RT_PACK_F32)
        return ((const float *)from)[i];
    rt_u16 bits = ((const rt_u16 *)from)[i];
    return dtype == RT_PACK_BF16 ? pack_from_bf16(bits) : ptx_from_f16(bits);
}

/* Row of the packed weight that holds this row of this matrix.  Matrices follow each other from
 * base_row on; but of a product with an activation (paired), gate (which 0) and up (which 1)
 * share groups of 8 rows, so that a lane of a product has both:
 *
 *   packed row of a group   0   1   2   3   4   5   6   7
 *   gate's row              0       1       2       3
 *   up's row                    0       1       2       3
 */
RT_FN rt_u64 pack_row(const rt_pack &p, rt_u64 row)
{
    return p.paired ? row / 4 * 8 + row % 4 * 2 + p.which : p.base_row + row;
}

/* Weights that stay in blocks: a thread takes a row's part of a piece. */
RT_FN void pack_blocks(const rt_pack &p)
{
    const rt_u64 pieces = (p.columns + RT_PIECE_COLUMNS - 1) / RT_PIECE_COLUMNS,
                 row_bytes = p.columns / rt_format_elements(p.dtype) * rt_format_bytes(p.dtype);
    for (rt_u64 i = blockIdx.x * (rt_u64)blockDim.x + threadIdx.x; i < p.n_rows * pieces;
         i += gridDim.x * (rt_u64)blockDim.x) {
        const rt_u64 r = i / pieces, k = i % pieces, packed = pack_row(p, p.first_row + r);
        const rt_u64 piece = packed / 8 * (p.padded_columns / RT_PIECE_COLUMNS) + k;
        rt_pack_piece(p.dtype, p.form, (const unsigned char *)p.from + r * row_bytes,
                      k * RT_PIECE_COLUMNS, p.columns, (rt_u32)(packed % 8),
                      (rt_u32 *)(p.to + piece * RT_PIECE_BYTES(p.form)));
    }
}

/* Column `column` of row r of the part, after a norm's scale, not rounded. */
RT_FN float pack_entry(const rt_pack &p, rt_u64 r, rt_u64 column)
{
    const float x = pack_load(p.from, p.dtype, r * p.columns + column);
    return p.scale ? __fmul_rn(x, pack_load(p.scale, p.scale_dtype, column)) : x;
}

RT_FN rt_u16 pack_round(const rt_pack &p, float x)
{
    return p.to_dtype == RT_PACK_F16 ? ptx_to_f16(x) : pack_to_bf16(x);
}

/* Where unit `unit`, 8 columns, of a packed row goes.  A block of 512 bytes is 8 rows x 32 columns;
 * unit u of row r stands at u ^ (r / 2), the swizzle by which eight lanes that read a column of
 * units hit different banks. */
RT_FN rt_u64 pack_unit(const rt_pack &p, rt_u64 packed, rt_u64 unit)
{
    const rt_u64 block = packed / 8 * (p.padded_columns / 32) + unit / 4;
    return p.to + block * 512 + packed % 8 * 64 + ((unit % 4) ^ (packed % 8 / 2)) * 16;
}

/* Rows that are centred, a thread each, since rounding goes along the row; and the product of the
 * row by the norm's shift. */
RT_FN void pack_centred(const rt_pack &p)
{
    for (rt_u64 r = blockIdx.x * (rt_u64)blockDim.x + threadIdx.x; r < p.n_rows;
         r += gridDim.x * (rt_u64)blockDim.x) {
        const rt_u64 packed = pack_row(p, p.first_row + r);
        double sum = 0;
        float added = 0;
        for (rt_u64 k = 0; k < p.columns; k++) {
            sum += (double)pack_entry(p, r, k);
            if (p.shift)
                added += pack_load(p.from, p.dtype, r * p.columns + k) *
                         pack_load(p.shift, p.shift_dtype, k);
        }
        ((float *)p.added)[packed] = added;
        rt_centre c = {p.to_dtype == RT_PACK_F16 ? RT_CENTRE_F16 : RT_CENTRE_BF16,
                       (float)(sum / (double)p.columns), 0, 0, 0};
        for (rt_u64 k = 0; k < p.columns; k++)
            c.largest = fmaxf(c.largest, fabsf(pack_entry(p, r, k) - c.mean));
        for (rt_u64 k = 0; k < p.columns; k++) {
            const rt_u16 half =
                pack_round(p, rt_centre_next(&c, k, p.columns, pack_entry(p, r, k)));
            rt_centre_take(&c,
                           p.to_dtype == RT_PACK_F16 ? ptx_from_f16(half) : pack_from_bf16(half));
            ((rt_u16 *)pack_unit(p, packed, k / 8))[k % 8] = half;
        }
    }
}

/* Pack the rows that p names; any grid.  A norm's scale is multiplied in before the one
 * rounding. */
extern "C" __global__ void mpk_pack(const rt_pack p)
{
    if (p.form) {
        pack_blocks(p);
        return;
    }
    if (p.added) {
        pack_centred(p);
        return;
    }
    rt_u64 units = (p.columns + 7) / 8, n = p.n_rows * units;
    for (rt_u64 i = blockIdx.x * (rt_u64)blockDim.x + threadIdx.x; i < n;
         i += gridDim.x * (rt_u64)blockDim.x) {
        rt_u64 r = i / units, unit = i % units, column = unit * 8,
               packed = pack_row(p, p.first_row + r);
        union {
            rt_u16 half[8];
            uint4 whole;
        } v;
        for (int k = 0; k < 8; k++) {
            /* columns after the last are zeros, up to the unit's end */
            v.half[k] = column + k < p.columns ? pack_round(p, pack_entry(p, r, column + k)) : 0;
        }
        *(uint4 *)pack_unit(p, packed, unit) = v.whole;
    }
}

/* rng_u64 of src/base/rng.h, bit for bit: a weight made up here is the same as one made up on the
 * host. */
RT_FN rt_u64 pack_random(rt_u64 stream, rt_u64 index)
{
    rt_u64 z = stream * 0x9e3779b97f4a7c15ull + index;
    for (int round = 0; round < 2; round++) {
        z += 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        z ^= z >> 31;
    }
    return z;
}

/* Which element of the whole weight element i of a part is: a part of a peer has `run` elements
 * of each `step`.  Numbers are drawn by the place in the whole, so that every cut has the same
 * weight. */
RT_FN rt_u64 pack_place(const rt_fill &f, rt_u64 i)
{
    return f.base + (f.step ? i / f.run * f.step + i % f.run : i);
}

/* rng_normal of src/base/rng.h: the sum of four uniform 16-bit numbers, less its mean 2 *
 * 65,535, over its deviation 65,536 / sqrt(3) = 37,837.  __fmul_rn and __fadd_rn keep the
 * compiler from contracting them, which would give other bits than the host's. */
extern "C" __global__ void mpk_fill(const rt_fill f)
{
    for (rt_u64 i = blockIdx.x * (rt_u64)blockDim.x + threadIdx.x; i < f.n;
         i += gridDim.x * (rt_u64)blockDim.x) {
        rt_u64 z = pack_random(f.stream, pack_place(f, f.first + i));
        int sum =
            (int)(z & 0xffff) + (int)(z >> 16 & 0xffff) + (int)(z >> 32 & 0xffff) + (int)(z >> 48);
        float normal = __fmul_rn((float)(sum - 131070), 1.0f / 37837.0f);
        float x = __fadd_rn(f.mean, __fmul_rn(f.deviation, normal));
        if (f.dtype == RT_PACK_F32)
            ((float *)f.to)[i] = x;
        else
            ((rt_u16 *)f.to)[i] = f.dtype == RT_PACK_BF16 ? pack_to_bf16(x) : ptx_to_f16(x);
    }
}

#endif
