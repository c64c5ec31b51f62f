/* linear_panel.cuh - products of more than 64 tokens without warpgroups' products: linear_tile.cuh
 * hands them on.
 *
 * A lot is 128 tokens, 64 for each warpgroup, a pass up to 128 rows of w, a step 64 columns: a
 * page of w, 16 groups of 1 KB (tile_plan.broad), and a stage of x, of which all but one are on
 * their way.  A warp multiplies 32 tokens with 64 rows: were it 16 with 128, shared memory would be
 * read 1.5 times as often, and that is what limits mma.sync.  Fragments of 16 columns are read
 * while those before are multiplied.  Squares for an rms_norm are summed in the first pass and stay
 * in scratch for those after it, unless there are more than TILE_KEPT lots.  Columns are added in
 * the same order whatever the number of tokens alive.
 * Cost of a step: 64 products of 16 x 8 x 16 and 24 ldmatrix a warp; 16 KB of x and 16 KB of w from
 * L2.
 */
#ifndef TASK_LINEAR_PANEL_CUH
#define TASK_LINEAR_PANEL_CUH

#include "ptx/matrix.cuh"
#include "task/tile_copy.cuh"

#if !MPK_WGMMA

/* What a warp reads of 16 columns: x, two blocks of 16 tokens as `a`; w, four pairs of groups as
 * `b` (w[n][0], w[n][1] of the first group, [2], [3] of the second). */
struct panel_part {
    rt_u32 x[2][4], w[4][4];
};

/* Part k (16 columns) of a stage; x, w: where this lane's rows of it begin (panel_in_x,
 * panel_in_w). Unit u of row r stands at u ^ r / 2: eight rows of a matrix lie in eight
 * different banks. */
MPK_FN void panel_read(const char *x, const char *w, int k, panel_part *p)
{
    const int row = mpk_thread() % 8, matrix = mpk_thread() % 32 / 8; /* whose address it gives */
    x += k / 2 * TILE_HALF + ((k % 2 * 2 + matrix / 2) ^ row / 2) * 16;
    w += k / 2 * 512 + ((k % 2 * 2 + matrix % 2) ^ row / 2) * 16;
#pragma unroll
    for (int b = 0; b < 2; b++)
        ptx_load_matrices(p->x[b], x + b * 1024);
#pragma unroll
    for (int n = 0; n < 4; n++)
        ptx_load_matrices(p->w[n], w + n * 2 * TILE_BOX_BYTES);
}

/* Bytes from a stage, and from a page, to the rows of this lane.  Warps of a warpgroup are two
 * by two: warp / 2 chooses 32 of its 64 tokens, warp % 2 64 of the 128 rows of w.  For ldmatrix
 * lane l gives the address of row l % 8 of matrix l / 8. */
MPK_FN int panel_in_x(void)
{
    const int warp = mpk_thread() / 32 % 4, lane = mpk_thread() % 32;
    return (warp / 2 * 4 + lane / 8 % 2) * 512 + lane % 8 * 64;
}
MPK_FN int panel_in_w(void)
{
    const int warp = mpk_thread() / 32 % 4, lane = mpk_thread() % 32;
    return (warp % 2 * 8 + lane / 16) * TILE_BOX_BYTES + lane % 8 * 64;
}

/* sum[32 b + 4 n ...]: tokens of block b, group n of the warp's. */
MPK_FN void panel_multiply(const panel_part &p, float *sum)
{
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const rt_u32 *x = p.x[b], *w = p.w[n]; /* operands a and b */
            halves_multiply(sum + 32 * b + 8 * n, x[0], x[1], x[2], x[3], w[0], w[1]);
            halves_multiply(sum + 32 * b + 8 * n + 4, x[0], x[1], x[2], x[3], w[2], w[3]);
        }
}

/* One stage, 64 columns, in four parts: while one is multiplied, the next is read. */
MPK_FN void panel_stage(const char *x, const char *w, float *sum)
{
    panel_part part[2]; /* one is multiplied while the other is read */
    panel_read(x, w, 0, &part[0]);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (k < 3)
            panel_read(x, w, k + 1, &part[(k + 1) % 2]);
        panel_multiply(part[k % 2], sum);
    }
}

/* All columns of a pass for this warpgroup's tokens.  The copy for step + AHEAD goes into the
 * stage that was read in step - 1: the meeting before it says that all warps are through with
 * that one. */
MPK_FN void panel_columns(const tile_shape &s, const tile_pass &q, const tile_copy &c,
                          const char *s_x, bool anew, mpk_ring *ring, float *sum, row_sums *of_x)
{
    constexpr int AHEAD = TILE_STAGES - 1;
    const int columns = s.columns, in_x = panel_in_x(), in_w = panel_in_w();
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        tile_copy_stage(c, columns, i, i);
#pragma unroll 1
    for (int step = 0; step < q.steps; step++) {
        const int buffer = step % TILE_STAGES;  /* the stage that is read */
        const rt_u32 page = tile_take(q, ring); /* of w, one a step */
        ptx_copy_async_wait<AHEAD - 1>();
        tile_meet(); /* the stage is there, and all warps have read the one before */
        tile_copy_stage(c, columns, step + AHEAD, (step + AHEAD) % TILE_STAGES);
        panel_stage(s_x + buffer * TILE_STAGE + in_x, mpk_s + page * MPK_PAGE_BYTES + in_w, sum);
        tile_release(q, page);
        if (anew)
            tile_add_sums(c, buffer, of_x);
    }
    ptx_copy_async_wait<0>(); /* stages after the last one give way to sums */
}

/* Sums of this warp's 32 tokens from `row` on and 64 rows of w from group `first` on become columns
 * of y, 16 tokens at a time. */
MPK_FN void panel_end(const mpk_task &t, const tile_shape &s, int row, int first, const float *sum,
                      float *s_sum, const float *s_scale)
{
#pragma unroll 1
    for (int b = 0; b < 2; b++) {
        tile_put_unit<128>(sum, b, s_sum);
        __syncwarp();
        tile_finish_unit<TILE_PANEL, true>(t, s, row + 16 * b, first, s_sum, s_scale + 16 * b);
        __syncwarp();
    }
}

/* All threads: lot number `lot` of the pass that begins at group `at` of the task; row: of its
 * first token.  anew: the factors of these tokens are to be found; else an earlier pass has
 * left them in scratch. */
MPK_FN void panel_run(const mpk_task &t, const tile_shape &s, const tile_plan &p,
                      const tile_pass &q, int at, int lot, int row, mpk_ring *ring)
{
    const int half = mpk_thread() / 128, warp = mpk_thread() / 32 % 4;
    const bool anew = at == 0 || p.lots > TILE_KEPT;
    char *s_x = t.s_scratch + half * TILE_X;
    float *s_scale =
        (float *)(t.s_scratch + TILE_SCALES) + (lot % TILE_KEPT * 2 + half) * TILE_TOKENS;
    float sum[64]; /* 32 tokens x 64 rows of the warp */
    row_sums of_x[2] = {};
    tile_copy c;
    row += half * TILE_TOKENS;
    tile_copy_begin(t, s, row, s_x, &c);
#pragma unroll
    for (int i = 0; i < 64; i++)
        sum[i] = 0;
    panel_columns(s, q, c, s_x, anew && s.norm, ring, sum, of_x);
    if (anew)
        tile_put_scales(s, of_x, mpk_thread() % 128 / 4, s_scale);
    tile_meet(); /* stages of x give way to sums */
    if (warp % 2 * 8 < q.groups)
        panel_end(t, s, row + warp / 2 * 32, p.first + at + warp % 2 * 8, sum,
                  (float *)s_x + warp * 16 * TILE_ROW, s_scale + warp / 2 * 32);
    tile_meet(); /* and sums to stages */
}

#endif

#endif
