/* expert_tile.cuh - products of many tokens with the weights of their experts, on warpgroups: a row
 * of y for each pair of a token and one of its experts.
 *
 * The operator expert_linear without a sum, gated or not.  expert_plan.cuh says which tiles a task
 * has: a tile is up to 128 pairs of an expert and a pass of 32 groups of its packed rows.
 *
 * A tile of more than 64 pairs gives each warpgroup 64 of them and all 256 rows of w, as in
 * linear_box.cuh; one of fewer gives both the same pairs and 128 rows each.  w comes through the
 * ring; a thread gathers pieces of rows of x by cp.async, three steps ahead.  Columns are added in
 * the same order in either case, so the bits of a pair depend on its row of x alone.
 */
#ifndef TASK_EXPERT_TILE_CUH
#define TASK_EXPERT_TILE_CUH

#include "task/expert_end.cuh"

#if MPK_WGMMA

enum {
    EXPERT_TILE_GROUPS = 2 * TILE_BOX_GROUPS, /* of a pass */
    /* of a page: half the groups of linear_box.cuh, twice the columns, since memory gives pieces of
     * 2 KB at a higher rate; a step is two stages of x */
    EXPERT_TILE_BOX_GROUPS = TILE_BOX_GROUPS / 2,
    EXPERT_TILE_PIECE = 2 * TILE_BOX_BYTES,
    EXPERT_TILE_PAGES = EXPERT_TILE_GROUPS / EXPERT_TILE_BOX_GROUPS, /* gen_body.pages */
    EXPERT_TILE_BYTES = EXPERT_TILE_GROUPS / 2 * EXPERT_TILE_PIECE, /* of a step, half its groups */
    EXPERT_TILE_STAGES = TILE_STAGES - 1,                           /* of x in flight */
    /* after the plan, with ENDS: float[warpgroup][256] biases of its packed rows of a pass */
    EXPERT_TILE_BIAS = EXPERT_TILE_SCRATCH
};
static_assert((int)EXPERT_TILE_PAGES <= MPK_LEAST_PAGES, "a ring holds the pages of a step");

/* ---- the loader's part ---- */

/* A pass, the same for every tile: 32 groups, in steps of 128 columns, four pages a step.  An
 * expert's last pass may have fewer groups: what the others bring is multiplied and not stored. */
MPK_FN tile_pass expert_tile_pass(const expert_tile_shape &s)
{
    return {EXPERT_TILE_GROUPS, EXPERT_TILE_PAGES,
            (s.columns + 2 * TILE_BOX_COLUMNS - 1) / (2 * TILE_BOX_COLUMNS)};
}

/* All lanes: the pages of a pass without a tensor map: 2 KB of each group, a lane each; groups
 * after the last expert's are not there, and their pages carry less. */
MPK_FN void expert_tile_load_pass(mpk_load &l, const expert_tile_shape &s, const tile_pass &q,
                                  int group)
{
    const int lane = mpk_thread() % 32, all = s.experts * s.groups; /* groups in all */
    const char *from = (const char *)l.e->at[RT_PACKED] + (rt_u64)(group + lane) * s.blocks * 512;
    for (int step = 0; step < q.steps && !l.cancelled; step++) {
        for (int gap = tile_gap(l.ring, q.pages); gap > 0; gap--)
            load_open(&l, 0);
        for (int i = 0; i < q.pages; i++) {
            const int first = i * EXPERT_TILE_BOX_GROUPS, left = all - group - first,
                      most = left < EXPERT_TILE_BOX_GROUPS ? left : (int)EXPERT_TILE_BOX_GROUPS,
                      n = most < 0 ? 0 : most;
            const rt_u32 page = l.ring.first + l.ring.at;
            if (load_open(&l, (rt_u32)n * EXPERT_TILE_PIECE) && lane < n)
                ptx_copy_bulk(mpk_s + page * MPK_PAGE_BYTES + lane * EXPERT_TILE_PIECE,
                              from + (rt_u64)first * s.blocks * 512 + step * EXPERT_TILE_PIECE,
                              EXPERT_TILE_PIECE, &mpk_w.full[page]);
            __syncwarp();
        }
    }
}

/* The same by boxes, by one lane.  Boxes beyond the matrix are zeros. */
MPK_FN void expert_tile_ask_pass(const mpk_load &l, const tile_pass &q, int group, box_asker *a)
{
    for (int step = 0; step < q.steps && !a->over; step++) {
        for (int gap = tile_gap(a->ring, q.pages); gap > 0; gap--)
            box_ask_page(l, a, -1, 0, 0);
        for (int i = 0; i < q.pages; i++)
            box_ask_page(l, a, step * (2 * TILE_BOX_COLUMNS * TILE_BOX_WORDS),
                         group + i * EXPERT_TILE_BOX_GROUPS, TILE_BOX_GROUPS);
    }
}

/* All lanes: the pages of one tile, which begins with packed group `group`. */
MPK_FN void expert_tile_load_tile(mpk_load &l, const expert_tile_shape &s, rt_u32 group)
{
    const tile_pass q = expert_tile_pass(s); /* the same for every tile */
#if MPK_MAPS
    if (l.e->maps) {
        box_asker a = {l.ring, 0, l.cancelled != 0};
        const bool asks = ptx_elect();
        if (asks && !a.over)
            expert_tile_ask_pass(l, q, (int)group, &a);
        box_have_asked(l, a, asks);
        return;
    }
#endif
    expert_tile_load_pass(l, s, q, (int)group);
}

/* Bytes of a packed group. */
MPK_FN rt_u32 expert_tile_bytes(const expert_tile_shape &s)
{
    return (rt_u32)s.blocks * 512;
}

/* The loader's part of a task. */
MPK_FN void expert_tile_load(mpk_load &l, const expert_tile_shape &s)
{
    expert_tile_load_all<EXPERT_TILE_GROUPS, expert_tile_shape, expert_tile_bytes,
                         expert_tile_load_tile>(l, s, s);
}
/* Biases and limits are the body's. */
MPK_FN void expert_tile_load(mpk_load &l, const expert_tile_ends_shape &e)
{
    expert_tile_load(l, e.s);
}

/* ---- x into shared memory ---- */

/* What a thread brings of a stage: 8 columns of four rows, 16 apart, in the 128-byte swizzle:
 * thread i fills unit i % 8 of row i / 8, which is piece (i ^ row) % 8. */
struct expert_tile_copy {
    const char *x;
    rt_u32 from[4]; /* bytes from x; TILE_NONE: there is no such row */
    char *to;       /* of the first row, in stage 0; the others are 2048 bytes on */
    int column;     /* of stage 0 */
};

/* s_list: pairs of the warpgroup's rows, n of them; rows after these are zeros. */
MPK_FN void expert_tile_copy_begin(const mpk_task &t, const expert_tile_shape &s,
                                   const rt_u32 *s_list, int n, char *s_x, expert_tile_copy *c)
{
    const int i = mpk_thread() % 128, row = i / 8, piece = (i ^ row) % 8;
    c->x = mpk_at<const char>(t, 0) +
           (rt_u64)mpk_lo(t, 0) * (rt_u32)(s.split ? s.of_token : 1) * (rt_u32)s.columns * 2;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        const rt_u32 pair = row + 16 * m < n ? s_list[row + 16 * m] : 0,
                     from = s.split ? pair : pair / (rt_u32)s.of_token;
        c->from[m] =
            row + 16 * m < n ? (from * (rt_u32)s.columns + (rt_u32)piece * 8) * 2 : TILE_NONE;
    }
    c->column = piece * 8;
    c->to = s_x + i * 16;
}

/* Request a stage of x, as one group of copies; an empty group after the last stage, so that
 * waits count alike. */
MPK_FN void expert_tile_ask(const expert_tile_copy &c, int columns, int stage, int n)
{
    char *to = c.to + stage % TILE_STAGES * TILE_STAGE; /* of the thread's first row */
    const bool there = stage * TILE_BOX_COLUMNS + c.column < columns; /* else zeros are written */
#pragma unroll
    for (int m = 0; m < 4 && stage < n; m++)
        ptx_copy_async(to + m * 2048,
                       c.x + (there && c.from[m] != TILE_NONE
                                  ? c.from[m] + (rt_u32)(stage * TILE_BOX_COLUMNS * 2)
                                  : 0),
                       there && c.from[m] != TILE_NONE);
    ptx_copy_async_commit();
}

/* ---- products ---- */

/* All columns, N rows of w from byte `mine` of a step's pages on; sum[N / 2] per lane.  A step
 * is two stages of x, of which the first EXPERT_TILE_STAGES have been requested.  A stage is filled
 * again after the meeting that follows its products' wait: the copy for stage + EXPERT_TILE_STAGES
 * goes into the stage before this one.  Pages go back as soon as their products are done: what
 * memory brings next needs the room. */
template <int N>
MPK_FN void expert_tile_columns(const expert_tile_copy &c, const tile_pass &q, int columns,
                                const char *s_x, int mine, bool sums, mpk_ring *ring, float *sum,
                                row_sums *of_x)
{
    const int stages = 2 * q.steps; /* of x */
    for (int step = 0; step < q.steps; step++) {
        const rt_u32 page = tile_take(q, ring);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int stage = 2 * step + half; /* its columns are 64 stage ... */
            const char *s_stage = s_x + stage % TILE_STAGES * TILE_STAGE;
            ptx_copy_async_wait<EXPERT_TILE_STAGES - 1>();
            if (half) /* meanwhile the other warpgroup has products in flight */
                ptx_group_wait<0>();
            ptx_fence_shared(); /* products read through the other proxy */
            tile_meet();        /* x is there, and no warp reads the stage before any more */
            ptx_group_begin();
            box_multiply<N, EXPERT_TILE_PIECE>(
                s_stage, mpk_s + page * MPK_PAGE_BYTES + mine + half * TILE_BOX_BYTES, sum);
            ptx_group_commit();
            if (sums)
                box_add_sums(s_stage, of_x);
            expert_tile_ask(c, columns, stage + EXPERT_TILE_STAGES, stages);
        }
        ptx_group_wait<0>();
        tile_release(q, page);
    }
}

/* The norm's factor of row i / 2 of a warpgroup, for its thread i: of the token of that pair, of n
 * pairs in s_list, by the sums that x's maker has left. */
MPK_FN float expert_tile_factor(const mpk_task &t, const expert_tile_shape &s, const rt_u32 *s_list,
                                int n)
{
    const int row = mpk_thread() % 128 / 2;
    const rt_u32 pair = row < n ? s_list[row] : 0,
                 token = mpk_lo(t, 0) + pair / (rt_u32)s.of_token; /* of the step */
    return squares_factor(t, s.norm, s.columns, s.eps, token, row < n);
}

/* All threads: planned tile k, of n pairs.
 *
 *   FULL (more than 64 pairs)   warpgroup h: pairs 64 h ..., all 256 rows of w
 *   else                        both: all pairs; warpgroup h: rows 128 h ... of w
 */
template <int FULL, int ENDS>
MPK_FN void expert_tile_run(const mpk_task &t, const expert_tile_shape &s, int k, int n, int pass,
                            mpk_ring *ring)
{
    constexpr int N = FULL ? 256 : 128; /* rows of w of a warpgroup */
    const int thread = mpk_thread(), half = thread / 128, warp = thread / 32 % 4,
              row = FULL ? half * TILE_TOKENS : 0;
    const rt_u32 *s_list =
        expert_tile_at<const rt_u32>(t, EXPERT_TILE_LIST) + k * EXPERT_TILE_PAIRS + row;
    char *s_x = t.s_scratch + half * TILE_X;
    float *s_scale = expert_tile_at<float>(t, EXPERT_TILE_SCALES) + half * TILE_TOKENS,
          *s_sum = (float *)s_x + warp * 16 * TILE_ROW, sum[N / 2];
    row_sums of_x[4] = {};
    const tile_pass q = expert_tile_pass(s);
    const bool summed = s.norm && squares_are_summed(t); /* by the product that made x */
    float bias[N / 128], *s_bias = expert_tile_at<float>(t, EXPERT_TILE_BIAS) + half * 256;
    if (ENDS)
        expert_tile_ask_biases<N>(t, (const expert_tile_ends_shape &)s,
                                  expert_tile_at<expert_tile_tile>(t, EXPERT_TILE_PLAN)[k].group,
                                  FULL ? 0 : half * 128, bias);
    expert_tile_copy c;
    expert_tile_copy_begin(t, s, s_list, n - row, s_x, &c);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sum[i] = 0;
#pragma unroll
    for (int i = 0; i < EXPERT_TILE_STAGES; i++)
        expert_tile_ask(c, s.columns, i, 2 * q.steps);
    const float factor = summed ? expert_tile_factor(t, s, s_list, n - row) : 1;
    expert_tile_columns<N>(c, q, s.columns, s_x, FULL ? 0 : half * EXPERT_TILE_BYTES,
                           s.norm && !summed, ring, sum, of_x);
    /* A warpgroup's threads sum what they have seen, or two have a row's factor; the meeting below
     * makes the factors visible. */
    if (!summed)
        box_put_scales(s, 1, of_x, s_scale);
    else if (thread % 2 == 0)
        s_scale[thread % 128 / 2] = factor;
    if (ENDS)
#pragma unroll
        for (int i = 0; i < N / 128; i++)
            s_bias[thread % 128 + 128 * i] = bias[i];
    tile_meet(); /* stages of x give way to sums */
#pragma unroll 1
    for (int u = 0; u < N / 64; u++) {
        tile_put_unit<N>(sum, u, s_sum);
        __syncwarp();
        expert_tile_finish<ENDS>(t, s, s_list + 16 * warp, n - row - 16 * warp,
                                 pass * EXPERT_TILE_GROUPS + (FULL ? 0 : half * TILE_BOX_GROUPS) +
                                     8 * u,
                                 s_sum, s_scale + 16 * warp, s_bias + 64 * u);
        __syncwarp();
    }
    tile_meet(); /* and sums to stages */
}

/* ---- the body ---- */

/* All threads: the n planned tiles, one after the other, each chosen by its pairs; both loops read
 * the same pages of the ring, so the loader need not know which runs. */
template <int ENDS>
MPK_FN void expert_tile_work_off(const mpk_task &t, const expert_tile_shape &s, rt_u32 n,
                                 mpk_ring *ring)
{
    for (rt_u32 k = 0; k < n; k++) {
        const expert_tile_tile &one =
            expert_tile_at<const expert_tile_tile>(t, EXPERT_TILE_PLAN)[k];
        const int pairs = (int)one.pairs, pass = (int)one.pass;
        if (pairs > TILE_TOKENS)
            expert_tile_run<1, ENDS>(t, s, (int)k, pairs, pass, ring);
        else
            expert_tile_run<0, ENDS>(t, s, (int)k, pairs, pass, ring);
    }
}

/* The bodies, of experts without and with ENDS. */
MPK_FN void expert_tile(const mpk_task &t, const expert_tile_shape &s)
{
    expert_tile_all<EXPERT_TILE_GROUPS, expert_tile_shape, expert_tile_work_off<0>>(t, s, s);
}
MPK_FN void expert_tile(const mpk_task &t, const expert_tile_ends_shape &e)
{
    expert_tile_all<EXPERT_TILE_GROUPS, expert_tile_shape, expert_tile_work_off<1>>(t, e.s, e.s);
}

#endif

#endif
