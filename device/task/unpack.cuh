/* unpack.cuh - weights in GGUF block formats become a matrix of bf16 in device memory: unpack.
 *
 * Input: the weights as they are packed for products of few tokens (rt/rt_blocks.h).  Output: rows
 * of bf16 one after the other, in the order of packed rows.  Products of many tokens copy boxes of
 * it by tensor maps (linear_box.cuh).
 *
 * A weight is scale q + add in f32, rounded once.  Scale q is exact, so that these are the bits of
 * the reference.
 *
 * A warp takes pieces of 128 columns of 8 rows, UNPACK_AHEAD at a time: loads of all of them are in
 * flight before the first is used, 18 KB of a worker.  Lane 4 g + c has columns 8 c to 8 c + 7 of
 * each 32 of row g: one store of 16 bytes, so that four lanes fill 64 bytes of a row.
 *
 * Cost: of 32 weights of a lane some 150 instructions, and 64 bytes written; the memory decides.
 */
#ifndef TASK_UNPACK_CUH
#define TASK_UNPACK_CUH

#include "task/blocks_unpack.cuh"

/* Pieces of a warp that are loaded together. */
#define UNPACK_AHEAD(form) (RT_IS_BYTES(form) ? 2 : 4)

/* Where the matrix lies, and how weights are packed. */
struct unpack_use {
    int columns;
    int pieces; /* of a group of 8 rows, with those that are padding */
    int y;      /* operand */
    float zero; /* what is taken off a packed integer */
};

/* What weights of a block of the lane's row share.  Of RT_BLOCKS_8K there is one for each 16
 * columns. */
template <int FORM>
MPK_FN void unpack_scales(const blocks_piece<FORM> &p, int j, const blocks_numbers &n,
                          float (&scale)[2], float *add)
{
    constexpr int LAST = RT_HEADER_WORDS(FORM) - 1;
    scale[0] = scale[1] = blocks_scale<FORM>(p, j, 0, n);
    if (!RT_IS_K(FORM)) {
        const rt_u32 m = j < 2 ? p.head[2] : p.head[LAST];
        *add = j % 2 ? ptx_high_f16(m) : ptx_low_f16(m);
        return;
    }
    const float d = ptx_low_f16(p.head[0]);
    if (FORM == RT_BLOCKS_8K)
        scale[1] = d * blocks_scale<FORM>(p, j, 1, n);
    scale[0] *= d;
    if (FORM != RT_BLOCKS_8K)
        scale[1] = scale[0];
    *add = -ptx_high_f16(p.head[0]) * blocks_number(p.head[LAST], (rt_u32)j, n.exponent, 0);
}

/* Integer k of the lane's eight of block j, less `zero`.  Nibbles of even and of odd pairs of
 * columns are apart first, each in a byte. */
template <int FORM>
MPK_FN float unpack_number(const blocks_piece<FORM> &p, int j, int k, const blocks_numbers &n,
                           float zero)
{
    if (RT_IS_BYTES(FORM)) {
        const rt_u32 word = blocks_word(p.quants[RT_IS_BYTES(FORM) * (j / 2)], j % 2 * 2 + k / 4);
        return blocks_number(word, (rt_u32)k % 4, n.exponent, zero);
    }
    const rt_u32 word = blocks_word(p.quants[0], j) >> (k / 2 % 2 ? 4 : 0) & 0x0f0f0f0fu;
    return blocks_number(word, (rt_u32)(k % 2 * 2 + k / 4), n.exponent, zero);
}

/* The lane's eight weights of block j, neighbours of its row. */
template <int FORM>
MPK_FN mpk_words unpack_eight(const blocks_piece<FORM> &p, int j, int lane, const blocks_numbers &n,
                              float zero)
{
    float scale[2], add, w[8];
    unpack_scales<FORM>(p, j, n, scale, &add);
#pragma unroll
    for (int k = 0; k < 8; k++)
        w[k] = fmaf(unpack_number<FORM>(p, j, k, n, zero), scale[k / 4], add);
    mpk_words out = {ptx_pack_bf16(w[0], w[1]), ptx_pack_bf16(w[2], w[3]),
                     ptx_pack_bf16(w[4], w[5]), ptx_pack_bf16(w[6], w[7])};
    if (FORM == RT_BLOCKS_8K) {
        /* it has four columns of each half (rt_blocks_column): lanes c and c ^ 2 exchange two */
        const bool upper = lane & 2;
        const rt_u32 first = upper ? out.x : out.z;
        const rt_u32 second = upper ? out.y : out.w;
        const rt_u32 a = __shfl_xor_sync(0xffffffffu, first, 2),
                     b = __shfl_xor_sync(0xffffffffu, second, 2);
        out = upper ? mpk_words{a, b, out.z, out.w} : mpk_words{out.x, out.y, a, b};
    }
    return out;
}

/* The task: pieces of its groups, in the order in which they lie. */
template <int FORM> MPK_FN void unpack_run(const mpk_task &t, const unpack_use &u)
{
    constexpr int AHEAD = UNPACK_AHEAD(FORM), WARPS = MPK_THREADS / 32;
    const int lane = mpk_thread() % 32, row = lane / 4, column = lane % 4 * 8,
              first = (int)mpk_lo(t, 0), rows = (int)mpk_hi(t, 0) - first,
              n_pieces = (rows + 7) / 8 * u.pieces;
    const blocks_numbers n = blocks_constants(0);
    const char *from = (const char *)t.e->at[RT_PACKED] +
                       (rt_u64)(first / 8) * (rt_u32)u.pieces * RT_PIECE_BYTES(FORM);
    rt_u16 *y = mpk_at<rt_u16>(t, u.y) + (rt_u64)first * (rt_u32)u.columns;
#pragma unroll 1
    for (int i = mpk_thread() / 32 * AHEAD; i < n_pieces; i += WARPS * AHEAD) {
        blocks_piece<FORM> p[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) /* after the last one it again */
            blocks_load<FORM>(from +
                                  (rt_u64)mpk_smaller(i + k, n_pieces - 1) * RT_PIECE_BYTES(FORM),
                              lane, &p[k]);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int at = mpk_smaller(i + k, n_pieces - 1), r = at / u.pieces * 8 + row,
                      begin = at % u.pieces * RT_PIECE_COLUMNS + column;
            rt_u16 *to = y + (rt_u64)r * (rt_u32)u.columns + begin;
#pragma unroll
            for (int j = 0; j < RT_PIECE_COLUMNS / 32; j++) {
                const mpk_words w = unpack_eight<FORM>(p[k], j, lane, n, u.zero);
                if (r < rows && begin + 32 * j < u.columns)
                    ptx_store_words(to + 32 * j, w);
            }
        }
    }
}

#endif
