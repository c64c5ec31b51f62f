/* tile_copy.cuh - x of a product of many tokens from global to shared memory, by the threads that
 * read it: stages of 64 columns of 64 tokens, in the swizzle of packed weights, and the squares of
 * each token.  linear_tile.cuh and linear_panel.cuh build on it.
 *
 * Each of the two warpgroups copies for itself; all counts of threads here are of its 128.  Thread
 * i has row i / 4 and row i / 4 + 32, and of each half of a stage 16 bytes: four threads read 64
 * bytes of a token in a row.
 *
 * A stage in shared memory, TILE_STAGE bytes: two halves of 32 columns, TILE_HALF bytes each; in
 * one, a token has 64 bytes, eight tokens 512, and piece p of token r stands at p ^ r % 8 / 2.
 * That is the 64-byte swizzle of wgmma, and lets ldmatrix read eight tokens without bank conflicts.
 *
 * A file that builds on this waits for the copies, and has a barrier of all readers before pieces
 * of other threads are read; a thread's own squares need only its own wait.
 */
#ifndef TASK_TILE_COPY_CUH
#define TASK_TILE_COPY_CUH

#include "ptx/matrix.cuh"
#include "task/tile_plan.cuh"

/* What a thread brings of a stage: 8 columns, and 8 columns 32 on, of two tokens, 32 apart. */
struct tile_copy {
    const char *x;
    rt_u32 from[2]; /* bytes from x; TILE_NONE: there is no such token */
    char *to;       /* of the first token, in stage 0; the second is 2048 bytes on */
    int column;     /* of stage 0 */
};
#define TILE_NONE 0xffffffffu

/* Tokens first ... first + 63, to the stages at s_x.  gathered: rows of x are named by a tensor of
 * numbers, which are data and count only in range.  A token that is not there is zeros. */
MPK_FN void tile_copy_begin(const mpk_task &t, const tile_shape &s, int first, char *s_x,
                            tile_copy *c)
{
    const int i = mpk_thread() % 128, row = i / 4, piece = i % 4;
    c->x = mpk_at<const char>(t, s.x);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        int token = first + row + 32 * m;
        bool there = token < (int)t.hi0;
        /* numbers of rows are data: bad ones give zeros, never a bad address */
        if (there && s.gathered >= 0) {
            rt_u32 chosen = mpk_at<const rt_u32>(t, s.gathered)[token];
            there = chosen < (rt_u32)s.tokens && chosen < t.live[RT_TOKENS];
            token = (int)chosen;
        }
        c->from[m] = there ? (rt_u32)token * (rt_u32)s.columns * 2 + (rt_u32)piece * 16 : TILE_NONE;
    }
    c->column = piece * 8;
    c->to = s_x + row / 8 * 512 + row % 8 * 64 + (piece ^ row % 8 / 2) * 16;
}

/* Request stage `stage` of x, columns 64 stage ..., into buffer `buffer`, as one group of copies.
 * A copy that is not `there` writes 16 zeros and reads nothing, so sums need no test at the end of
 * the columns. */
MPK_FN void tile_copy_stage(const tile_copy &c, int columns, int stage, int buffer)
{
    const int column = stage * 64 + c.column;
    char *to = c.to + buffer * TILE_STAGE;
    /* Halves of 32 columns lie TILE_HALF bytes apart; the thread's two tokens, 32 apart, 2,048. */
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const bool there = column + half * 32 < columns && c.from[m] != TILE_NONE;
            ptx_copy_async(to + half * TILE_HALF + m * 2048,
                           c.x + (there ? c.from[m] + (rt_u32)(stage * 128 + half * 64) : 0),
                           there);
        }
    ptx_copy_async_commit();
}

/* square[m] += the squares of the pieces that this thread has brought of its token m, which it
 * reads back from shared memory: in registers they never were. */
MPK_FN void tile_add_squares(const tile_copy &c, int buffer, float *square)
{
#pragma unroll 1
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const mpk_words v =
                ptx_load_shared_words(c.to + buffer * TILE_STAGE + half * TILE_HALF + m * 2048);
            const rt_u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float a = halves_low(words[e]), b = halves_high(words[e]);
                square[m] = fmaf(b, b, fmaf(a, a, square[m]));
            }
        }
}

/* Sum of squares of each token of the warpgroup into s_square[64]: the four threads of a row are
 * neighbouring lanes, and the first of them writes.  row: the first of the thread's two.  A barrier
 * has to follow. */
MPK_FN void tile_put_squares(float *square, int row, float *s_square)
{
    const int i = mpk_thread() % 128;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        square[m] += __shfl_xor_sync(0xffffffffu, square[m], 1);
        square[m] += __shfl_xor_sync(0xffffffffu, square[m], 2);
        if (i % 4 == 0)
            s_square[row + 32 * m] = square[m];
    }
}

#endif
