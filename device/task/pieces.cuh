/* pieces.cuh - eight neighbouring entries of a row, as a thread has them: 16 bytes of a 16-bit
 * dtype.
 *
 * A piece that is whole and aligned is one load or store, or two in fp32.  Any other is read and
 * written by a loop over its entries: most code of a task runs once, so that it comes from L2, and
 * what is seldom run must be short.  (A warp that reads many pieces of a row at once has a loop
 * without a branch instead, rows_warp.cuh.)  Used by rows_warp.cuh, windows_rows.cuh and block.cuh.
 * dtype is a constant of the instance wherever it is passed: MPK_F32, MPK_BF16 or MPK_F16.
 * eights.cuh is the same for generic bodies, which the host compiles.
 */
#ifndef TASK_PIECES_CUH
#define TASK_PIECES_CUH

#include "ptx/matrix.cuh"
#include "shape/rows_shape.h"
#include "tile/view.cuh"

/* The first n entries of a piece at g, `step` entries apart, one by one; the others become `rest`,
 * what changes nothing where the piece goes: 0 for a sum, -inf for a maximum.  Through an array of
 * its own: the loop, which is not unrolled, indexes `one` at run time and so puts it on the stack;
 * r is indexed by constants alone and stays in registers. */
MPK_FN void rows_read_entries(int dtype, const char *g, rt_i64 step, rt_i64 n, float rest,
                              float (&r)[ROWS_PIECE])
{
    const mpk_view v = {0, dtype};
    float one[ROWS_PIECE];
#pragma unroll 1
    for (int i = 0; i < ROWS_PIECE; i++)
        one[i] = i < n ? mpk_get(v, g, i * step) : rest;
#pragma unroll
    for (int i = 0; i < ROWS_PIECE; i++)
        r[i] = one[i];
}
/* The counterpart: the first n entries, neighbours; nothing is written after them, where another
 * task's entries may lie. */
MPK_FN void rows_write_entries(int dtype, char *g, rt_i64 n, const float (&r)[ROWS_PIECE])
{
    const mpk_view v = {0, dtype};
    float one[ROWS_PIECE];
#pragma unroll
    for (int i = 0; i < ROWS_PIECE; i++)
        one[i] = r[i];
#pragma unroll 1
    for (int i = 0; i < ROWS_PIECE && i < n; i++)
        mpk_put(v, g, i, one[i]);
}

/* The two 16-bit entries of a word, the low half first; rows_pair puts two together, rounded. */
MPK_FN void rows_unpack(int dtype, rt_u32 pair, float *r)
{
    r[0] = dtype == MPK_BF16 ? ptx_low_bf16(pair) : ptx_low_f16(pair);
    r[1] = dtype == MPK_BF16 ? ptx_high_bf16(pair) : ptx_high_f16(pair);
}
MPK_FN rt_u32 rows_pair(int dtype, float low, float high)
{
    return dtype == MPK_BF16 ? ptx_pack_bf16(low, high) : ptx_pack_f16(low, high);
}

/* A piece as it lies in memory: loads of several can be in flight before any is converted, and
 * 16-bit entries take half of the registers of floats. */
struct rows_raw {
    uint4 at[2]; /* the second of fp32 alone */
};
/* Are pieces at g, and whole multiples of `step` entries after it, aligned to 16 bytes? */
MPK_FN bool rows_aligned(int dtype, const char *g, rt_i64 step)
{
    return (((rt_u64)g | (rt_u64)(step * mpk_dtype_bytes(dtype))) & 15) == 0;
}
/* Load a piece that is whole and aligned: one load of 16 bytes for 16-bit entries, two for fp32. */
MPK_FN void rows_fetch(int dtype, const char *g, rows_raw &r)
{
    /* once for 16 bits, twice for 32 */
#pragma unroll
    for (int i = 0; i < mpk_dtype_bytes(dtype) / 2; i++)
        r.at[i] = ((const uint4 *)g)[i];
}
/* The entries of a piece that has arrived, as floats. */
MPK_FN void rows_floats(int dtype, const rows_raw &raw, float (&r)[ROWS_PIECE])
{
    const rt_u32 words[ROWS_PIECE] = {raw.at[0].x, raw.at[0].y, raw.at[0].z, raw.at[0].w,
                                      raw.at[1].x, raw.at[1].y, raw.at[1].z, raw.at[1].w};
#pragma unroll
    for (int i = 0; i < ROWS_PIECE; i += 2)
        if (dtype == MPK_F32) {
            r[i] = __uint_as_float(words[i]);
            r[i + 1] = __uint_as_float(words[i + 1]);
        } else {
            rows_unpack(dtype, words[i / 2], r + i);
        }
}

/* The counterpart of rows_fetch: g is a multiple of 16 and all eight entries are the row's. */
MPK_FN void rows_store(int dtype, char *g, const float (&r)[ROWS_PIECE])
{
    if (dtype == MPK_F32) {
        ((float4 *)g)[0] = make_float4(r[0], r[1], r[2], r[3]);
        ((float4 *)g)[1] = make_float4(r[4], r[5], r[6], r[7]);
    } else {
        *(uint4 *)g = make_uint4(rows_pair(dtype, r[0], r[1]), rows_pair(dtype, r[2], r[3]),
                                 rows_pair(dtype, r[4], r[5]), rows_pair(dtype, r[6], r[7]));
    }
}

#endif
