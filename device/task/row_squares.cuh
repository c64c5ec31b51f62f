/* row_squares.cuh - squares of a row summed where the row is made, for the norms of products that
 * read it: otherwise each worker squares all of x again, under every such product.
 *
 * Input and output: rows of RT_SQUARES_ROW bytes, one for each token; float number i is the sum of
 * the squares that task i of the product that makes the row has stored of it, as they are stored
 * (rt_entry.at[RT_SQUARES_...]).
 *
 * A product whose tiles several tasks share (linear_parts.cuh) stores the sums.  A product with a
 * norm (linear_box.cuh) adds those of a token while its first boxes are on their way: two threads
 * have a token, each every other piece of four sums, in rising order.  Cost: n_sums * 4 bytes a
 * token from L2.
 *
 * Order: the sums are stored before the task counts and loaded after the event that x waits for, as
 * x itself.  They stay until the next step, since each operator has rows of its own.
 */
#ifndef TASK_ROW_SQUARES_CUH
#define TASK_ROW_SQUARES_CUH

#include "task/tile_end.cuh"

/* `square` and the squares of eight entries. */
MPK_FN float squares_add(const mpk_words &v, float square)
{
    const rt_u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float a = halves_low(words[e]), b = halves_high(words[e]);
        square = fmaf(b, b, fmaf(a, a, square));
    }
    return square;
}

#if MPK_WGMMA

/* Are there sums of x's rows? */
MPK_FN bool squares_are_summed(const mpk_task &t)
{
    return TILE_HAS(TILE_FORM_PARTS) && t.e->at[RT_SQUARES_OF_X];
}

/* n pieces of four sums, every other one of a row; eight are on their way together. */
MPK_FN float squares_gather(const char *from, int n)
{
    float square = 0;
#pragma unroll 1
    for (int first = 0; first < n; first += 8) {
        mpk_words v[8] = {};
#pragma unroll
        for (int i = 0; i < 8; i++)
            ptx_load_words_if(from + (first + i) * 32, first + i < n, &v[i]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            square += (__uint_as_float(v[i].x) + __uint_as_float(v[i].y)) +
                      (__uint_as_float(v[i].z) + __uint_as_float(v[i].w));
    }
    return square;
}

/* A warpgroup: the factors of an rms_norm for its 64 tokens from `row` on. */
MPK_FN void squares_put_scales(const mpk_task &t, const tile_shape &s, int row, float *s_scale)
{
    const int i = mpk_thread() % 128, odd = i % 2, token = row + i / 2,
              pieces = (int)t.e->at[RT_SQUARES_N] / 4;
    const char *from = (const char *)t.e->at[RT_SQUARES_OF_X] +
                       (rt_u64)((rt_u32)token * (rt_u32)RT_SQUARES_ROW) + odd * 16;
    float square = squares_gather(from, token < (int)t.hi0 ? (pieces + 1 - odd) / 2 : 0);
    square += __shfl_xor_sync(0xffffffffu, square, 1);
    if (!odd)
        s_scale[i / 2] = tile_scale_of(square, s.columns, s.eps);
}

/* This task's sum for a token. */
MPK_FN void squares_store(const mpk_task &t, int token, float square)
{
    ptx_store_word((char *)t.e->at[RT_SQUARES_OF_Y] +
                       (rt_u64)((rt_u32)token * (rt_u32)RT_SQUARES_ROW),
                   __float_as_uint(square));
}

#endif

#endif
