/* thin_end.cuh - the end of a thin task of a product (linear_tile.cuh): at most 64 tokens, at most
 * 8 groups of 8 rows of w, often one or two.
 *
 * Both warpgroups have sums of the same tokens, each over its part of the columns of x.  They
 * exchange half of them, so that each has all of one half of the tokens, and store from registers:
 *
 *   warpgroup h, warp w, lane (g, c)   token 16 w + g + 8 h, of group n columns 8 n + 2 c, + 1
 *
 * Four lanes store 16 bytes of a row.  Biases and residual are requested before the products,
 * while x is on its way, so nothing is waited for at the end.
 *
 *   thin_ask      biases to scratch, residual to registers
 *   thin_join     the sums of both warpgroups, and the factor of the lane's token
 *   thin_finish   columns of y
 *
 * Relies on: sums as ptx_group_multiply leaves them, those of x in scratch (tile_put_sums), a
 * barrier between thin_ask and thin_finish.  A thin task has one pass and one lot, so what it
 * leaves in scratch is not overwritten.  Called by linear_tile.cuh in all body threads; logits and
 * pairs of rows end as those of other tiles (tile_end.cuh).
 */
#ifndef TASK_THIN_END_CUH
#define TASK_THIN_END_CUH

#include "task/tile_copy.cuh"

enum { THIN_BIASES = TILE_SCALES + 4 * TILE_TOKENS * 4 }; /* in scratch, after the sums of x */
static_assert(THIN_BIASES + 8 * TILE_GROUPS * 4 <= TILE_SCRATCH, "biases have no room");

/* The lane's token among the task's 64, and its first column of a group. */
MPK_FN int thin_token(void)
{
    const int thread = mpk_thread();
    return thread % 128 / 32 * 16 + thread % 32 / 4 + thread / 128 * 8;
}
MPK_FN int thin_column(void)
{
    return mpk_thread() % 4 * 2;
}

/* Are both columns of a pair the task's, or neither, and is each pair an aligned word? */
MPK_FN bool thin_is_whole(const tile_end &e)
{
    return ((e.lo | e.hi | e.rows) & 1) == 0;
}

/* The lane's residual, a pair of columns of each group. */
struct thin_residual {
    rt_u32 at[TILE_GROUPS];
};

/* row: of y, of the task's first token; first: group of the operator. */
MPK_FN thin_residual thin_ask(const mpk_task &t, const tile_shape &s, int groups, int first,
                              int row)
{
    const tile_end e = tile_end_of(t, s);
    thin_residual r = {};
    const int thread = mpk_thread(), column = 8 * first + thin_column();
    row += thin_token();
    if (e.residual && thin_is_whole(e) && row < e.tokens) {
        const rt_u16 *from = e.residual + (rt_u64)row * e.rows + column;
#pragma unroll
        for (int n = 0; n < TILE_GROUPS; n++)
            if (n < groups && column + 8 * n >= e.lo && column + 8 * n < e.hi)
                r.at[n] = ptx_load_word(from + 8 * n);
    }
    if (TILE_HAS(TILE_FORM_BIAS) && thread < 8 * groups)
        ((float *)(t.s_scratch + THIN_BIASES))[thread] = tile_bias_of(t, s, 8 * first + thread);
    return r;
}

/* from: this warpgroup's sums; sum: those of the lane's token, of both.  Returns its factor.
 * Barriers: before, so that no product still reads stages; between, so that the other's sums are
 * there. */
MPK_FN float thin_join(const mpk_task &t, const tile_shape &s, int groups, const float *from,
                       float *sum)
{
    const int i = mpk_thread() % 128, half = mpk_thread() / 128;
    float *s_given = (float *)(t.s_scratch + half * TILE_X) + i,
          *s_taken = (float *)(t.s_scratch + (half ^ 1) * TILE_X) + i;
    mpk_sync(); /* stages of x give way to sums */
#pragma unroll
    for (int k = 0; k < 2 * TILE_GROUPS; k++)
        if (k / 2 < groups) {
            const int low = 4 * (k / 2) + k % 2; /* of token g; that of token g + 8 is 2 on */
            s_given[k * 128] = half ? from[low] : from[low + 2];
            sum[k] = half ? from[low + 2] : from[low];
        }
    mpk_sync();
#pragma unroll
    for (int k = 0; k < 2 * TILE_GROUPS; k++)
        if (k / 2 < groups)
            sum[k] += s_taken[k * 128];
    return tile_joint_factor(t, s, thin_token());
}

/* row, first: as those of thin_ask; sum and r are used up. */
MPK_FN void thin_finish(const mpk_task &t, const tile_shape &s, int groups, int first, int row,
                        thin_residual &r, float *sum, float scale)
{
    const tile_end e = tile_end_of(t, s);
    const float *s_bias = (const float *)(t.s_scratch + THIN_BIASES) + thin_column();
    const bool whole = thin_is_whole(e);
    int column = 8 * first + thin_column();
    row += thin_token();
    if (row >= e.tokens)
        return;
        /* four groups are eight values, whose code stands once: what is in registers moves there */
#pragma unroll 1
    for (; groups > 0; groups -= 4, column += 32, s_bias += 32) {
        tile_eight v;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const bool has = TILE_HAS(TILE_FORM_BIAS) && i / 2 < groups;
            v.at[i] = sum[i] * scale + (has ? s_bias[i / 2 * 8 + i % 2] : 0);
            sum[i] = sum[i + 8];
        }
        if (TILE_HAS(TILE_FORM_AFTER) && e.after != ACTIVATE_NONE)
            tile_activate_eight(e.after, &v);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i < groups) {
                const rt_u32 residual =
                    whole || !e.residual ? r.at[i] : tile_residual(e, row, column + 8 * i);
                tile_store(e, row, column + 8 * i, v.at[2 * i] + halves_low(residual),
                           v.at[2 * i + 1] + halves_high(residual));
            }
            r.at[i] = r.at[i + 4];
        }
    }
}

#endif
