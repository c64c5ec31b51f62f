/* tile_copy.cuh - x of a product of many tokens from global to shared memory, by the threads that
 * read it: stages of 64 columns of 64 tokens, in the swizzle of packed weights, and the sums of
 * each token that its norm needs (row_sums).  linear_tile.cuh and linear_panel.cuh build on it.
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
 * of other threads are read; a thread's own sums need only its own wait.
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

/* sums[m] += those of the pieces that this thread has brought of its token m, which it reads back
 * from shared memory: in registers they never were. */
MPK_FN void tile_add_sums(const tile_copy &c, int buffer, row_sums *sums)
{
#pragma unroll 1
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int m = 0; m < 2; m++)
            sums[m] = row_sums_add(
                ptx_load_shared_words(c.to + buffer * TILE_STAGE + half * TILE_HALF + m * 2048),
                sums[m]);
}

/* Where warpgroup `half` of two with the same tokens leaves the sums of its columns for both:
 * squares [64], and 2 * TILE_TOKENS floats on entries [64]. */
MPK_FN float *tile_sums_at(const mpk_task &t, int half)
{
    return (float *)(t.s_scratch + TILE_SCALES) + half * TILE_TOKENS;
}

/* The four threads of a row are neighbouring lanes, and the first of them writes.  row: the first
 * of the thread's two.  A barrier has to follow. */
MPK_FN void tile_put_sums(const row_sums *sums, int row, float *s_to)
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const row_sums all = row_sums_of_lanes(sums[m], 1, 4);
        if (mpk_thread() % 4)
            continue;
        s_to[row + 32 * m] = all.square;
        if (MPK_CENTRED)
            s_to[row + 32 * m + 2 * TILE_TOKENS] = all.entry;
    }
}

/* The factor of token `token`, of which both warpgroups have put sums. */
MPK_FN float tile_joint_factor(const mpk_task &t, const tile_shape &s, int token)
{
    const float *s_sums = tile_sums_at(t, 0) + token;
    row_sums sums = {s_sums[0] + s_sums[TILE_TOKENS], 0};
    if (MPK_CENTRED)
        sums.entry = s_sums[2 * TILE_TOKENS] + s_sums[3 * TILE_TOKENS];
    return tile_factor(s.norm, sums, s.columns, s.eps);
}

/* Where the warpgroup has all columns of its tokens: their factors instead. */
MPK_FN void tile_put_scales(const tile_shape &s, const row_sums *sums, int row, float *s_scale)
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const row_sums all = row_sums_of_lanes(sums[m], 1, 4);
        if (mpk_thread() % 4 == 0)
            s_scale[row + 32 * m] = tile_factor(s.norm, all, s.columns, s.eps);
    }
}

#endif
