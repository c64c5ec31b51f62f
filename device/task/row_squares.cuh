/* row_squares.cuh - sums of a row's squares, made by the product that makes the row, for the norms
 * of products that read it.  Otherwise each worker would square all of x again in every such
 * product.
 *
 * Input and output: rows of RT_SQUARES_ROW bytes, one for each token (rt_entry.at[RT_SQUARES_...]).
 * A float of it is the sum of the squares, as stored, of what one task of the making product has
 * stored of the row, or one pass of a task.  If the program has a layer_norm that is folded so, a
 * float with the sum of these entries follows each.
 *
 * Products with experts (expert_tile.cuh) read the rows of the tokens of a tile, two lanes a token.
 *
 * Tasks of a product that share tiles (linear_parts.cuh) store a sum each; tasks that have theirs
 * alone (linear_box.cuh) store one for each pass.  A product with a norm (linear_box.cuh) adds the
 * sums of a token while its first boxes are in flight.  All workers read the same rows at the same
 * time, so they are read in whole lines: eight lanes have a token, each every eighth piece of four
 * sums, in rising order; then lanes are added, neighbours first.
 * Cost: n_sums * 4 bytes a token from L2.
 *
 * Order: the sums are stored before the task is counted and loaded after the event that x waits
 * for, like x itself.  They stay until the next step, since each operator has rows of its own.
 */
#ifndef TASK_ROW_SQUARES_CUH
#define TASK_ROW_SQUARES_CUH

#include "task/tile_end.cuh"

#if MPK_WGMMA

/* Bytes of a sum. */
#define SQUARES_BYTES (MPK_CENTRED ? 8 : 4)

/* Has the product that made x left the sums of its rows (src/cuda/squares.c)?  Else this one makes
 * them from its stages of x. */
MPK_FN bool squares_are_summed(const mpk_task &t)
{
    return TILE_HAS(TILE_FORM_SQUARES) && t.e->at[RT_SQUARES_OF_X];
}

enum {
    SQUARES_LANES = 8, /* lanes that share a token: a warp's load brings 128 bytes of four tokens */
    SQUARES_ROUNDS = 4,                    /* loads of a token that are in flight together */
    SQUARES_SETS = 16 * SQUARES_LANES / 32 /* sets of four tokens in the 16 tokens of a warp */
};
static_assert(SQUARES_LANES == 8 && SQUARES_SETS == 4, "row_sums_of_four");

/* Add four floats of a row: sums of squares, or with a layer_norm in the program two of these, each
 * with a sum of entries. */
MPK_FN void squares_add(const mpk_words &v, row_sums *sums)
{
    const float x = __uint_as_float(v.x), y = __uint_as_float(v.y), z = __uint_as_float(v.z),
                w = __uint_as_float(v.w);
    const bool pairs = MPK_CENTRED;
    sums->square += pairs ? x + z : (x + y) + (z + w);
    sums->entry += pairs ? y + w : 0;
}

/* This lane's part of the sums of tokens 0, 4, 8, 12 from `from` on, of which `alive` are alive;
 * `pieces` of four sums a token.  All loads of 32 pieces are in flight together. */
MPK_FN void squares_gather(const char *from, int pieces, int alive, row_sums *sums)
{
#pragma unroll 1
    for (int first = 0; first < pieces; first += SQUARES_LANES * SQUARES_ROUNDS) {
        mpk_words v[SQUARES_SETS][SQUARES_ROUNDS] = {};
#pragma unroll
        for (int g = 0; g < SQUARES_SETS; g++)
#pragma unroll
            for (int i = 0; i < SQUARES_ROUNDS; i++) {
                const int piece = first + i * SQUARES_LANES;
                ptx_load_words_if(from + g * (32 / SQUARES_LANES) * RT_SQUARES_ROW + piece * 16,
                                  piece < pieces && g * (32 / SQUARES_LANES) < alive, &v[g][i]);
            }
#pragma unroll
        for (int g = 0; g < SQUARES_SETS; g++)
#pragma unroll
            for (int i = 0; i < SQUARES_ROUNDS; i++)
                squares_add(v[g][i], &sums[g]);
    }
}

/* A warpgroup: the factors of a norm for its 64 tokens from `row` on. */
MPK_FN void squares_put_scales(const mpk_task &t, const tile_shape &s, int row, float *s_scale)
{
    const int lane = mpk_thread() % 32, own = mpk_thread() % 128 / 32 * 16 + lane / SQUARES_LANES,
              piece = lane % SQUARES_LANES;
    const char *from = (const char *)t.e->at[RT_SQUARES_OF_X] +
                       (rt_u64)((rt_u32)(row + own) * (rt_u32)RT_SQUARES_ROW) + piece * 16;
    row_sums sums[SQUARES_SETS] = {};
    squares_gather(from, (int)t.e->at[RT_SQUARES_N] / 4 - piece, (int)t.hi0 - row - own, sums);
    const row_sums all = row_sums_of_four(sums);
    if (piece < 4)
        s_scale[own + row_sums_token() * (32 / SQUARES_LANES)] =
            tile_factor(s.norm, all, s.columns, s.eps);
}

/* The factor of a norm for one token of the operator, in both of two neighbouring lanes, which read
 * every second piece of its row; there: else 0, and nothing is read.  By whole warps. */
MPK_FN float squares_factor(const mpk_task &t, int norm, int columns, float eps, rt_u32 token,
                            bool there)
{
    const int second = mpk_thread() % 2, pieces = (int)t.e->at[RT_SQUARES_N] / 4;
    const char *from = (const char *)t.e->at[RT_SQUARES_OF_X] + (rt_u64)token * RT_SQUARES_ROW;
    row_sums sums = {};
#pragma unroll 1
    for (int first = second; first < pieces; first += 2 * SQUARES_ROUNDS) {
        mpk_words v[SQUARES_ROUNDS] = {}; /* in flight together */
#pragma unroll
        for (int i = 0; i < SQUARES_ROUNDS; i++)
            ptx_load_words_if(from + (first + 2 * i) * 16, there && first + 2 * i < pieces, &v[i]);
#pragma unroll
        for (int i = 0; i < SQUARES_ROUNDS; i++)
            squares_add(v[i], &sums);
    }
    __syncwarp();
    sums.square += __shfl_xor_sync(0xffffffffu, sums.square, 1);
    sums.entry += __shfl_xor_sync(0xffffffffu, sums.entry, 1);
    return tile_factor(norm, sums, columns, eps);
}

/* A sum, to its place in a token's row. */
MPK_FN void squares_store(char *to, const row_sums &sums)
{
    if (MPK_CENTRED)
        ptx_store_two_words(to, __float_as_uint(sums.square), __float_as_uint(sums.entry));
    else
        ptx_store_word(to, __float_as_uint(sums.square));
}

#endif

#endif
