/* linear_box.cuh - products of more than 64 tokens whose operands have tensor maps: linear_tile.cuh
 * hands them on.
 *
 * One copy brings 64 columns of 64 tokens of x, or of 128 rows of w, which is a page.  A turn is
 * 128 tokens, 64 for each warpgroup, a pass up to 256 rows of w, a step 64 columns.  Each warpgroup
 * has MPK_BOXES stages of x; one of its threads asks for them, all but one ahead, and the products
 * of a step are given while those of the step before are under way. One lane of the loader asks for
 * the pages: all 32 together take longer for a page than the copy does.  Squares for an rms_norm
 * are summed from the stages of x while products read them too, in the first pass alone: the passes
 * behind it find the sums of the first TILE_KEPT turns in scratch. Columns are added in the same
 * order whatever the number of tokens alive. Cost of a step of 128 tokens, 256 rows: 8 wgmma of 64
 * x 256 x 16; 16 KB of x and 32 KB of w from L2.
 *
 * Stages: box_full[half][turn % MPK_BOXES] completes when the boxes have arrived; `turn` counts
 * stages over all tasks of the worker (box_turn), so that phases go on.  A stage is asked for anew
 * when all warps of the warpgroup have met behind the products, and the squares, that read it.
 */
#ifndef TASK_LINEAR_BOX_CUH
#define TASK_LINEAR_BOX_CUH

#include "ptx/matrix.cuh"
#include "task/tile_plan.cuh"

#if MPK_WGMMA

/* ---- the loader's part ---- */

/* Where the lane that asks stands. */
struct box_asker {
    mpk_ring ring;
    rt_u32 asked; /* pages */
    bool over;    /* there is nothing to load for any more */
};

/* A page with boxes of w from (column, group) on; nothing if column is negative. */
MPK_FN void box_ask_page(const mpk_load &l, box_asker *a, int column, int group)
{
    const rt_u32 page = a->ring.first + a->ring.at;
    while (!a->over && !ptx_barrier_try(&mpk_w.empty[page], a->ring.parity ^ 1))
        a->over = load_is_over(&l);
    if (a->over)
        return;
    load_expect(page, column >= 0 ? MPK_PAGE_BYTES : 0);
    if (column >= 0)
        ptx_copy_box(l.s_pages + page * MPK_PAGE_BYTES, (const rt_map *)l.e->maps + 1, column,
                     group, &mpk_w.full[page]);
    ring_next(&a->ring);
    a->asked++;
}

MPK_FN void box_ask_pass(const mpk_load &l, const tile_pass &q, int group, box_asker *a)
{
    for (int step = 0; step < q.steps && !a->over; step++) {
        for (int gap = tile_gap(a->ring, q.pages); gap > 0; gap--)
            box_ask_page(l, a, -1, 0);
        for (int i = 0; i < q.pages; i++)
            box_ask_page(l, a, step * (TILE_BOX_COLUMNS * TILE_BOX_WORDS),
                         group + i * TILE_BOX_GROUPS);
    }
}

/* The lane that asked tells the others.  A page that was asked for anew had arrived before, so at
 * most a ring of them is under way. */
MPK_FN void box_have_asked(mpk_load &l, const box_asker &a, bool asks)
{
    __syncwarp();
    const int lane = __ffs((int)__ballot_sync(0xffffffffu, asks)) - 1;
    const rt_u32 asked = __shfl_sync(0xffffffffu, a.asked, lane);
    l.cancelled = __shfl_sync(0xffffffffu, (rt_u32)a.over, lane);
    l.ring.at = __shfl_sync(0xffffffffu, a.ring.at, lane);
    l.ring.parity = __shfl_sync(0xffffffffu, a.ring.parity, lane);
    l.pages += asked;
    l.flying += asked;
    for (; l.flying > l.ring.n; l.flying--)
        ring_next(&l.tail);
}

/* All pages of a task. */
MPK_FN void box_load(mpk_load &l, const tile_plan &p, const tile_shape &s)
{
    box_asker a = {l.ring, 0, l.cancelled != 0};
    const bool asks = ptx_elect();
    if (asks)
        for (int at = 0; at < p.groups && !a.over; at += p.per_pass) {
            const tile_pass q = tile_pass_at(p, s, at);
            for (int turn = 0; turn < p.turns && !a.over; turn++)
                box_ask_pass(l, q, p.first + at, &a);
        }
    box_have_asked(l, a, asks);
}

/* ---- products ---- */

/* What a warpgroup's thread needs to know of a turn. */
struct box_turn {
    const rt_map *x; /* its map */
    char *s_x;       /* stages */
    rt_u64 *full;    /* [MPK_BOXES] their barriers */
    int row;         /* first token */
    rt_u32 turn;     /* of the first step */
};

/* Boxes of x of a step, by one thread. */
MPK_FN void box_ask(const box_turn &b, int step)
{
    const rt_u32 stage = (b.turn + (rt_u32)step) % MPK_BOXES;
    ptx_barrier_expect(&b.full[stage], TILE_STAGE);
    ptx_copy_box(ptx_shared(b.s_x + stage * TILE_STAGE), b.x, step * TILE_BOX_COLUMNS, b.row,
                 &b.full[stage]);
}

/* A stage: x in rows of 64 columns, 1 KB from a group of w to the next. */
template <int N> MPK_FN void box_multiply(const char *s_x, const char *s_w, float *sum)
{
    const rt_u64 x = ptx_matrix_of_rows(s_x), w = ptx_matrix(s_w, TILE_BOX_BYTES);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const rt_u64 a = tile_further(x, (rt_u32)(2 * k)), b = tile_further(w, tile_in_w(k));
        if (N == 256)
            ptx_group_multiply_256(sum, a, b);
        else if (N == 192)
            ptx_group_multiply_192(sum, a, b);
        else
            ptx_group_multiply_128(sum, a, b);
    }
}

/* A thread has pieces of 8 columns of four tokens, 16 apart; the swizzle moves pieces within a
 * token's row. */
MPK_FN void box_add_squares(const char *s_x, float *square)
{
    const int i = mpk_thread() % 128;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        const mpk_words v = ptx_load_shared_words(s_x + (i + 128 * m) * 16);
        const rt_u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float a = ptx_low_bf16(words[e]), b = ptx_high_bf16(words[e]);
            square[m] = fmaf(b, b, fmaf(a, a, square[m]));
        }
    }
}

MPK_FN void box_put_squares(float *square, float *s_square)
{
    const int i = mpk_thread() % 128;
#pragma unroll
    for (int m = 0; m < 4; m++) {
#pragma unroll
        for (int d = 1; d < 8; d *= 2)
            square[m] += __shfl_xor_sync(0xffffffffu, square[m], d);
        if (i % 8 == 0)
            s_square[i / 8 + 16 * m] = square[m];
    }
}

/* All columns, N rows of w; sum[N / 2] per lane, as ptx_group_multiply leaves it. */
template <int N>
MPK_FN void box_columns(const box_turn &b, const tile_pass &q, bool squares, mpk_ring *ring,
                        float *sum, float *square)
{
    const bool asks = mpk_thread() % 128 == 0;
    const int steps = q.steps;
    rt_u32 before = 0;
    for (int i = 0; i < MPK_BOXES - 1 && i < steps && asks; i++)
        box_ask(b, i);
    for (int step = 0; step < steps; step++) {
        const rt_u32 page = tile_take(q, ring), turn = b.turn + (rt_u32)step;
        const char *s_x = b.s_x + turn % MPK_BOXES * TILE_STAGE;
        mpk_barrier_wait(&b.full[turn % MPK_BOXES], turn / MPK_BOXES & 1);
        __syncwarp();
        ptx_group_begin();
        box_multiply<N>(s_x, mpk_s + page * MPK_PAGE_BYTES, sum);
        ptx_group_commit();
        if (squares)
            box_add_squares(s_x, square);
        if (step) {
            ptx_group_wait<1>();
            tile_release(q, before);
        }
        before = page;
        tile_meet();
        if (asks && step + MPK_BOXES - 1 < steps)
            box_ask(b, step + MPK_BOXES - 1);
    }
    ptx_group_wait<0>();
    tile_release(q, before);
}

/* ---- the end of a tile ---- */

/* Eight sums of a row. */
struct box_sums {
    float at[8];
};

MPK_FN box_sums box_get(const float *s_sum, float scale)
{
    const mpk_words a = ptx_load_shared_words(s_sum), b = ptx_load_shared_words(s_sum + 4);
    const rt_u32 words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    box_sums v;
#pragma unroll
    for (int i = 0; i < 8; i++)
        v.at[i] = __uint_as_float(words[i]) * scale;
    return v;
}

MPK_FN void box_store(rt_u16 *y, const box_sums &v, const mpk_words &residual)
{
    const rt_u32 r[4] = {residual.x, residual.y, residual.z, residual.w};
    rt_u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] =
            ptx_pack_bf16(v.at[2 * i] + ptx_low_bf16(r[i]), v.at[2 * i + 1] + ptx_high_bf16(r[i]));
    ptx_store_words(y, {words[0], words[1], words[2], words[3]});
}

MPK_FN void box_store_pairs(rt_u16 *y, const box_sums &v, int activation)
{
    float a[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = tile_activate(activation, v.at[2 * i]) * v.at[2 * i + 1];
    ptx_store_two_words(y, ptx_pack_bf16(a[0], a[1]), ptx_pack_bf16(a[2], a[3]));
}

/* A warp's 16 tokens from `row` on and 8 groups from `group` on; s_sum f32[16][TILE_ROW].  A lane
 * has one group of every fourth token. */
MPK_FN void box_finish(const mpk_task &t, const tile_shape &s, int row, int group,
                       const float *s_sum, const float *s_square)
{
    const int lane = mpk_thread() % 32, activation = s.activation, rows = s.rows;
    const int column = (group + lane % 8) << (activation != ACTIVATE_NONE ? 2 : 3);
    row += lane / 8;
    if (column >= (int)t.e->hi[1])
        return;
    const rt_u64 at = (rt_u64)row * rows + column;
    rt_u16 *y = mpk_at<rt_u16>(t, s.y) + at;
    s_sum += lane / 8 * TILE_ROW + lane % 8 * 8;
    s_square += lane / 8;
    const int tokens = (int)t.hi0 - row;
    if (activation != ACTIVATE_NONE) {
#pragma unroll 1
        for (int i = 0; i < 16 && i < tokens; i += 4)
            box_store_pairs(y + (rt_u64)i * rows,
                            box_get(s_sum + i * TILE_ROW,
                                    s.norm ? tile_scale_of(s_square[i], s.columns, s.eps) : 1),
                            activation);
        return;
    }
    mpk_words residual[4] = {};
    if (s.residual >= 0)
#pragma unroll
        for (int i = 0; i < 4; i++)
            ptx_load_words_if(mpk_at<const rt_u16>(t, s.residual) + at + (rt_u64)(4 * i) * rows,
                              4 * i < tokens, &residual[i]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (4 * i < tokens)
            box_store(y + (rt_u64)(4 * i) * rows,
                      box_get(s_sum + 4 * i * TILE_ROW,
                              s.norm ? tile_scale_of(s_square[4 * i], s.columns, s.eps) : 1),
                      residual[i]);
}

/* ---- a turn of a pass ---- */

/* first: number of its first group; row: of this warpgroup's first token; s_square: place of its
 * tokens' sums of squares, which are there unless they are to be summed. */
template <int N>
MPK_FN void box_run_as(const mpk_task &t, const tile_shape &s, const tile_pass &q, int first,
                       int row, bool squares, float *s_square, mpk_ring *ring)
{
    const int thread = mpk_thread(), half = thread / 128, warp = thread / 32 % 4;
    char *s_x = t.s_scratch + half * TILE_X;
    float *s_sum = (float *)s_x + warp * 16 * TILE_ROW, sum[N / 2], square[4] = {0, 0, 0, 0};
    const box_turn b = {(const rt_map *)t.e->maps, s_x, mpk_w.box_full[half], row,
                        mpk_w.box_turn[half]};
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sum[i] = 0;
    ptx_fence_shared(); /* stages were sums, or another task's */
    ptx_fence_bulk();   /* and x was written by ordinary stores */
    tile_meet();
    box_columns<N>(b, q, squares, ring, sum, square);
    if (squares)
        box_put_squares(square, s_square);
    tile_meet(); /* stages of x give way to sums */
    if (thread % 128 == 0)
        mpk_w.box_turn[half] = b.turn + (rt_u32)q.steps;
#pragma unroll 1
    for (int u = 0; u < N / 64 && TILE_GROUPS * u < q.groups; u++) {
        tile_put_unit<N>(sum, u, s_sum);
        __syncwarp();
        box_finish(t, s, row + 16 * warp, first + TILE_GROUPS * u, s_sum, s_square + 16 * warp);
        __syncwarp();
    }
    tile_meet(); /* and sums to stages */
}

/* Turn number `turn` of the pass that begins at group `at` of the task; row: of its first token. */
MPK_FN void box_run(const mpk_task &t, const tile_shape &s, const tile_plan &p, const tile_pass &q,
                    int at, int turn, int row, mpk_ring *ring)
{
    const int half = mpk_thread() / 128;
    const bool squares = s.norm && (at == 0 || turn >= TILE_KEPT);
    float *s_square =
        (float *)(t.s_scratch + TILE_SCALES) + (turn % TILE_KEPT * 2 + half) * TILE_TOKENS;
    row += half * TILE_TOKENS;
    if (q.pages == 1)
        box_run_as<128>(t, s, q, p.first + at, row, squares, s_square, ring);
    else if (q.groups <= TILE_MOST)
        box_run_as<192>(t, s, q, p.first + at, row, squares, s_square, ring);
    else
        box_run_as<256>(t, s, q, p.first + at, row, squares, s_square, ring);
}

#endif

#endif
