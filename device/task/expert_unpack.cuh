/* expert_unpack.cuh - products of many tokens with the weights of their experts, which stay in GGUF
 * blocks or MXFP4, on warpgroups: a row of y for each pair of a token and one of its experts.
 *
 * The operator expert_linear without a sum, gated or not; x bf16, w in blocks (rt/rt_blocks.h),
 * sums f32.  expert_plan.cuh says which tiles a task has: a tile is up to 128 pairs of an expert
 * and a pass of 16 groups of its packed rows.
 *
 * Idea: as in linear_blocks.cuh the second warpgroup unpacks 128 columns of the pass's rows at a
 * time to bf16 in shared memory (blocks_buffer.cuh), and the first one multiplies them with the
 * tile's rows of x, which it gathers by cp.async, and ends tiles.  So a weight is unpacked once for
 * up to 128 pairs.  The unpackers run ahead over the tiles of a plan: while one ends, the first
 * steps of the next are unpacked.
 *
 *   tile    for each step, of 128 columns: a piece of each group
 *   stage   of x, in the 128-byte swizzle: T = 64 pairs x 128 columns, or T = 128 pairs x 64, as
 *           two blocks of 64 x 64; four stages, of which two are requested ahead
 *
 * Tiles of at most 64 pairs have T = 64.  Columns are added in the same order in either case, so
 * the bits of a pair depend on its row of x alone.
 *
 * Pages of w come as boxes of a tensor map of all experts' weights, one instruction each: 8 groups
 * and 384 columns of nibbles, or 128 of bytes, so that the ring of four pages has as many bytes in
 * flight as it has room for.  A box may go beyond the expert's last group; such products are not
 * stored.
 *
 * Cost of a step: of each of the four unpacking warps, one a scheduler, some 550 instructions with
 * nibbles of K, 690 with bytes of K and 360 of MXFP4; beside them 8 products of 64 x 128 x 16 for
 * 64 pairs, 512 cycles of the tensor cores, or 16, and 200 instructions a stage of each multiplying
 * warp.  With both in all warps unpacking would have two warps a scheduler, but each would wait for
 * its page, its products and the fence between them one after the other (docs/attempts.md, Weights
 * in blocks).
 *
 * Called by the generated switch over bodies for many tokens that wait themselves.
 */
#ifndef TASK_EXPERT_UNPACK_CUH
#define TASK_EXPERT_UNPACK_CUH

#include "task/blocks_buffer.cuh"
#include "task/expert_end.cuh"

#if MPK_WGMMA

/* A use of the body: that of expert_tile.cuh, and what is taken off integers.  In constant memory;
 * gen/body_expert_unpack.c prints it. */
struct expert_unpack_shape {
    expert_tile_shape s;
    float zero; /* 128 and what the format takes off its integers */
};
/* The same of experts with biases, or a gate with a limit. */
struct expert_unpack_ends_shape {
    expert_tile_ends_shape e;
    float zero;
};

/* What both have, as the code for either takes it: with ENDS s is that of an
 * expert_tile_ends_shape. */
template <int FORM, int ENDS> struct expert_unpack_use {
    const expert_tile_shape &s;
    float zero;
};

/* Scratch, in bytes: four stages and the plan, as expert_plan.cuh has them, then what follows. */
enum {
    EXPERT_UNPACK_GROUPS = 2 * TILE_GROUPS, /* of a pass */
    EXPERT_UNPACK_ROWS = EXPERT_UNPACK_GROUPS * 8,
    EXPERT_UNPACK_STAGES = 4,
    EXPERT_UNPACK_AHEAD = 2,                  /* stages requested ahead */
    EXPERT_UNPACK_BIAS = EXPERT_TILE_SCRATCH, /* float[128]: of a pass's packed rows, with ENDS */
    EXPERT_UNPACK_FROM = EXPERT_UNPACK_BIAS + EXPERT_UNPACK_ROWS * 4, /* u32[128] bytes in x */
    EXPERT_UNPACK_END = EXPERT_UNPACK_FROM + EXPERT_TILE_PAIRS * 4
};
static_assert((int)EXPERT_UNPACK_STAGES * BLOCKS_STAGE <= (int)EXPERT_TILE_SCALES,
              "stages end before the factors");
static_assert((int)EXPERT_UNPACK_END <= TILE_UNPACK_SCRATCH,
              "the record asks for as much scratch as the body has");

/* The scratch.  Written with mpk_s instead of t.s_scratch, so that the compiler knows it as shared
 * memory, at a place that is a constant. */
MPK_FN char *expert_unpack_scratch(void)
{
    return mpk_s + MPK_PAGES * MPK_PAGE_BYTES;
}

/* Steps of 128 columns: pieces of a group. */
MPK_FN int expert_unpack_steps(const expert_tile_shape &s)
{
    return (s.columns + RT_PIECE_COLUMNS - 1) / RT_PIECE_COLUMNS;
}

/* Pass `pass` of an expert, whose last one may have fewer groups.  A load is a page of each 8
 * groups, of TILE_UNPACK_TOGETHER(FORM) pieces of each group. */
template <int FORM> MPK_FN blocks_pass expert_unpack_pass(const expert_tile_shape &s, rt_u32 pass)
{
    constexpr int TOGETHER = TILE_UNPACK_TOGETHER(FORM);
    const int groups =
        mpk_smaller(s.groups - (int)pass * EXPERT_UNPACK_GROUPS, (int)EXPERT_UNPACK_GROUPS);
    return {groups, 0, (expert_unpack_steps(s) + TOGETHER - 1) / TOGETHER,
            groups > TILE_GROUPS ? 2 : 1};
}
static_assert(TILE_GROUPS * TILE_UNPACK_TOGETHER(RT_BLOCKS_4) * RT_PIECE_BYTES(RT_BLOCKS_4) <=
                      MPK_PAGE_BYTES &&
                  TILE_GROUPS * RT_PIECE_BYTES(RT_BLOCKS_8) <= MPK_PAGE_BYTES,
              "a page holds a box");

/* ---- the loader's part ---- */

/* Bytes of a packed group. */
template <int FORM> MPK_FN rt_u32 expert_unpack_bytes(const expert_tile_shape &s)
{
    return (rt_u32)(expert_unpack_steps(s) * RT_PIECE_BYTES(FORM));
}

/* The leading thread: a page, which is a box: pieces from `piece` on of 8 groups from `group` on.
 * false: there is nothing to load for any more. */
template <int FORM> MPK_FN bool expert_unpack_load_page(mpk_load &l, int group, int piece)
{
    constexpr int BYTES = TILE_UNPACK_TOGETHER(FORM) * TILE_GROUPS * RT_PIECE_BYTES(FORM);
    const rt_u32 page = blocks_next_page(l, BYTES);
    if (page == LOAD_OVER)
        return false;
    ptx_copy_box(l.s_pages + page * MPK_PAGE_BYTES, (const rt_map *)l.e->maps + 1,
                 piece * (RT_PIECE_BYTES(FORM) / 8), group, &mpk_w.full[page]);
    return true;
}

/* The leading thread: the pages of a tile. */
template <int FORM>
MPK_FN void expert_unpack_load_pages(mpk_load &l, const blocks_pass &q, int group)
{
#pragma unroll 1
    for (int load = 0; load < q.loads; load++)
        for (int i = 0; i < q.pages; i++)
            if (!expert_unpack_load_page<FORM>(l, group + i * TILE_GROUPS,
                                               load * TILE_UNPACK_TOGETHER(FORM)))
                return;
}
/* All lanes: the pages of the tile that begins with packed group `group` of all experts. */
template <int FORM>
MPK_FN void expert_unpack_load_tile(mpk_load &l, const expert_tile_shape &s, rt_u32 group)
{
    if (l.cancelled)
        return;
    if (load_leads()) {
        expert_unpack_load_pages<FORM>(
            l, expert_unpack_pass<FORM>(s, group % (rt_u32)s.groups / EXPERT_UNPACK_GROUPS),
            (int)group);
        load_tell(&l);
    }
    load_follow(&l);
}
/* All lanes, at the end of a task. */
MPK_FN void expert_unpack_load_end(mpk_load &l)
{
    if (l.cancelled)
        return;
    if (load_leads()) {
        blocks_open_rest(l);
        load_tell(&l);
    }
    load_follow(&l);
}

/* The loader's part of a task, of experts without and with ENDS. */
template <int FORM> MPK_FN void expert_unpack_load(mpk_load &l, const expert_unpack_shape &u)
{
    expert_tile_load_all<EXPERT_UNPACK_GROUPS, expert_tile_shape, expert_unpack_bytes<FORM>,
                         expert_unpack_load_tile<FORM>>(l, u.s, u.s);
    expert_unpack_load_end(l);
}
template <int FORM> MPK_FN void expert_unpack_load(mpk_load &l, const expert_unpack_ends_shape &u)
{
    expert_tile_load_all<EXPERT_UNPACK_GROUPS, expert_tile_shape, expert_unpack_bytes<FORM>,
                         expert_unpack_load_tile<FORM>>(l, u.e.s, u.e.s);
    expert_unpack_load_end(l);
}

/* ---- the unpackers ---- */

/* A planned tile, as body_expert_unpack's warps read it. */
MPK_FN const expert_tile_tile &expert_unpack_tile(const mpk_task &t, rt_u32 k)
{
    return expert_tile_at<const expert_tile_tile>(t, EXPERT_TILE_PLAN)[k];
}

/* An unpacking warp: all steps of the n planned tiles. */
template <int FORM>
MPK_FN void expert_unpack_all(const mpk_task &t, const expert_tile_shape &s, float zero, rt_u32 n,
                              mpk_ring *ring)
{
    constexpr int TOGETHER = TILE_UNPACK_TOGETHER(FORM);
    char *s_buffers = blocks_buffers(*ring);
    const blocks_numbers numbers = blocks_constants(zero);
    /* bytes of RT_BLOCKS_8 have theirs off by numbers.zero */
    const float less = FORM == RT_BLOCKS_8 ? 0 : zero;
    const int steps = expert_unpack_steps(s);
    int step = 0; /* of the plan */
#pragma unroll 1
    for (rt_u32 k = 0; k < n; k++) {
        const blocks_pass q = expert_unpack_pass<FORM>(s, expert_unpack_tile(t, k).pass);
#pragma unroll 1
        for (int left = steps; left > 0; left -= TOGETHER) {
            blocks_loaded l;
            blocks_take_load(q, ring, &l);
            const int pieces = mpk_smaller(left, TOGETHER);
#pragma unroll 1
            for (int piece = 0; piece < pieces; piece++, step++) {
                const int buffer = step % BLOCKS_BUFFERS;
                blocks_unpack<FORM, TOGETHER>(q, l, piece, piece + 1 == pieces,
                                              s_buffers + buffer * BLOCKS_BUFFER,
                                              step >= BLOCKS_BUFFERS, buffer, numbers, less);
                ptx_fence_shared(); /* products read through the other proxy */
                ptx_arrive(BLOCKS_FULL + buffer, MPK_THREADS);
            }
        }
    }
}

/* ---- those that multiply ---- */

/* What a thread brings of each stage: 8 columns of rows that are 16 apart; thread i fills unit i %
 * 8 of row i / 8, which is piece (i ^ row) % 8, of both blocks. */
struct expert_unpack_copy {
    const char *x; /* this thread's piece of the first columns, of row 0 */
    int columns;   /* from that piece to the end of a row */
};

/* The warpgroup: where the n rows of a tile begin in x, and what this thread copies. */
MPK_FN expert_unpack_copy expert_unpack_begin(const mpk_task &t, const expert_tile_shape &s,
                                              const rt_u32 *s_list, int n)
{
    const int i = mpk_thread(), piece = (i ^ i / 8) % 8;
    rt_u32 from = TILE_NONE; /* bytes from x; TILE_NONE: there is no such row */
    if (i < n) {
        const rt_u32 pair = s_list[i];
        from = (s.split ? pair : pair / (rt_u32)s.of_token) * (rt_u32)s.columns * 2;
    }
    ((rt_u32 *)(expert_unpack_scratch() + EXPERT_UNPACK_FROM))[i] = from;
    tile_meet();
    return {mpk_at<const char>(t, 0) + piece * 16 +
                (rt_u64)mpk_lo(t, 0) * (rt_u32)(s.split ? s.of_token : 1) * (rt_u32)s.columns * 2,
            s.columns - piece * 8};
}

/* Request stage `stage` of n, as one group of copies; an empty group after the last one, so that
 * waits count alike.  Rows and columns that are not there become zeros. */
template <int T> MPK_FN void expert_unpack_ask(const expert_unpack_copy &c, int stage, int n)
{
    char *to =
        expert_unpack_scratch() + mpk_thread() * 16 + stage % EXPERT_UNPACK_STAGES * BLOCKS_STAGE;
    const rt_u32 *s_from =
        (const rt_u32 *)(expert_unpack_scratch() + EXPERT_UNPACK_FROM) + mpk_thread() / 8;
#pragma unroll
    for (int i = 0; i < 8 && stage < n; i++) {
        const int block = i / 4, further = block * 64, row = i % 4 * 16 + (T == 128) * further,
                  column = stage * (BLOCKS_STAGE / (T * 2)) + (T == 64) * further;
        const rt_u32 from = s_from[row];
        const bool there = from != TILE_NONE && column < c.columns;
        ptx_copy_async(to + block * (BLOCKS_STAGE / 2) + i % 4 * 2048,
                       c.x + (there ? from + (rt_u32)column * 2 : 0), there);
    }
    ptx_copy_async_commit();
}

/* All columns of a tile, a stage at a time.  step: of the plan, the tile's first; left: steps from
 * that one to the plan's end.
 *
 * At the meeting at the begin of stage i the products of stage i - 2 have ended in all warps: stage
 * i + 2 takes its place.  The fence waits for this thread's copies in flight, those of stage i + 1,
 * which were requested a stage ago. */
template <int T>
MPK_FN void expert_unpack_columns(const expert_unpack_copy &c, const char *s_buffers, int steps,
                                  int step, int left, float (*sum)[EXPERT_UNPACK_ROWS / 2])
{
    constexpr int OF_STEP = T / 64;                             /* stages */
    const int stages = (int)ptx_own((rt_u32)(steps * OF_STEP)); /* not the spilled number */
    const rt_u64 first_x = ptx_matrix_of_rows(expert_unpack_scratch()),
                 first_w = ptx_matrix(s_buffers, BLOCKS_GROUP);
#pragma unroll
    for (int i = 0; i < EXPERT_UNPACK_AHEAD; i++)
        expert_unpack_ask<T>(c, i, stages);
#pragma unroll 1
    for (int i = 0; i < stages; i++) {
        const int half = i % OF_STEP, buffer = (step + i / OF_STEP) % BLOCKS_BUFFERS;
        ptx_copy_async_wait<EXPERT_UNPACK_AHEAD - 1>();
        ptx_fence_shared();
        if (half == 0)
            ptx_meet(BLOCKS_FULL + buffer, MPK_THREADS);
        else
            tile_meet();
        expert_unpack_ask<T>(c, i + EXPERT_UNPACK_AHEAD, stages);
        const rt_u64 x = tile_uniform(first_x,
                                      (rt_u32)(i % EXPERT_UNPACK_STAGES * BLOCKS_STAGE) / 16),
                     w = tile_uniform(first_w, (rt_u32)(buffer * BLOCKS_BUFFER + half * 1024) / 16);
        blocks_multiply<T, EXPERT_UNPACK_ROWS>(x, w, 0, sum);
        blocks_multiply<T, EXPERT_UNPACK_ROWS>(x, w, 2, sum);
        if (T == 64) { /* the other 64 columns of the step */
            const rt_u64 x_next = tile_further(x, BLOCKS_STAGE / 2 / 16),
                         w_next = tile_further(w, 1024 / 16);
            blocks_multiply<T, EXPERT_UNPACK_ROWS>(x_next, w_next, 0, sum);
            blocks_multiply<T, EXPERT_UNPACK_ROWS>(x_next, w_next, 2, sum);
        }
        ptx_group_wait<T == 64 ? 4 : 2>(); /* those of the stage before */
        /* the unpackers wait for a buffer that they fill again */
        if (half == 0 && i && i / OF_STEP - 1 + BLOCKS_BUFFERS < left)
            ptx_arrive(BLOCKS_EMPTY + (buffer ^ 1), MPK_THREADS);
    }
    tile_wait_products();
    if (steps - 1 + BLOCKS_BUFFERS < left)
        ptx_arrive(BLOCKS_EMPTY + (step + steps - 1) % BLOCKS_BUFFERS, MPK_THREADS);
}
static_assert(BLOCKS_BUFFERS == 2, "the buffer of the step before is the other one");
static_assert((int)EXPERT_UNPACK_STAGES == 2 * EXPERT_UNPACK_AHEAD, "a stage is filled in time");

/* The warpgroup that multiplies: planned tile k, whose steps of the plan begin with `step`. */
template <int T, int ENDS>
MPK_FN void expert_unpack_run(const mpk_task &t, const expert_tile_shape &s,
                              const expert_tile_tile &tile, rt_u32 k, int step, int left)
{
    const int warp = mpk_thread() / 32, pairs = (int)tile.pairs, pass = (int)tile.pass;
    const rt_u32 *s_list =
        expert_tile_at<const rt_u32>(t, EXPERT_TILE_LIST) + k * EXPERT_TILE_PAIRS;
    const float *s_scale = expert_tile_at<const float>(t, EXPERT_TILE_SCALES);
    float *s_sum = (float *)expert_unpack_scratch() + warp * 16 * TILE_ROW,
          sum[T / 64][EXPERT_UNPACK_ROWS / 2],
          *s_bias = expert_tile_at<float>(t, EXPERT_UNPACK_BIAS), bias[1];
    if (ENDS)
        expert_tile_ask_biases<EXPERT_UNPACK_ROWS>(t, (const expert_tile_ends_shape &)s, tile.group,
                                                   0, bias);
    const expert_unpack_copy c = expert_unpack_begin(t, s, s_list, pairs);
#pragma unroll
    for (int m = 0; m < T / 64; m++)
#pragma unroll
        for (int i = 0; i < EXPERT_UNPACK_ROWS / 2; i++)
            sum[m][i] = 0;
    expert_unpack_columns<T>(c, blocks_buffers(*t.ring), expert_unpack_steps(s), step, left, sum);
    if (ENDS)
        s_bias[mpk_thread()] = bias[0];
    tile_meet(); /* stages of x give way to sums */
#pragma unroll
    for (int m = 0; m < T / 64; m++) {
        const int first = m * 64 + warp * 16; /* pair of the tile */
#pragma unroll 1
        for (int u = 0; u < EXPERT_UNPACK_ROWS / 64; u++) {
            tile_put_unit<EXPERT_UNPACK_ROWS>(sum[m], u, s_sum);
            __syncwarp();
            expert_tile_finish<ENDS>(t, s, s_list + first, pairs - first,
                                     pass * EXPERT_UNPACK_GROUPS + u * TILE_GROUPS, s_sum,
                                     s_scale + first, s_bias + 64 * u);
            __syncwarp();
        }
    }
    tile_meet(); /* and sums to stages */
}

/* The warpgroup that multiplies: all n planned tiles.  The pages are the unpackers'. */
template <int FORM, int ENDS>
MPK_FN void expert_unpack_multiply_all(const mpk_task &t, const expert_tile_shape &s, rt_u32 n,
                                       mpk_ring *ring)
{
    const int steps = expert_unpack_steps(s);
    /* of MXFP4 weights are 2^-RT_MX4_SHIFT times what they are */
    expert_tile_at<float>(t, EXPERT_TILE_SCALES)[mpk_thread()] =
        FORM == RT_BLOCKS_MX4 ? __uint_as_float((127 + RT_MX4_SHIFT) << 23) : 1.0f;
#pragma unroll 1
    for (rt_u32 k = 0; k < n; k++) {
        const expert_tile_tile tile = expert_unpack_tile(t, k);
        const blocks_pass q = expert_unpack_pass<FORM>(s, tile.pass);
        const int step = (int)k * steps, left = (int)(n - k) * steps;
        if (tile.pairs > TILE_TOKENS)
            expert_unpack_run<128, ENDS>(t, s, tile, k, step, left);
        else
            expert_unpack_run<64, ENDS>(t, s, tile, k, step, left);
        blocks_pass_by(ring, q.loads * q.pages);
    }
}

/* ---- the body ---- */

/* All threads: the n planned tiles. */
template <int FORM, int ENDS>
MPK_FN void expert_unpack_work_off(const mpk_task &t, const expert_unpack_use<FORM, ENDS> &u,
                                   rt_u32 n, mpk_ring *ring)
{
    if (mpk_thread() >= 128)
        expert_unpack_all<FORM>(t, u.s, u.zero, n, ring);
    else
        expert_unpack_multiply_all<FORM, ENDS>(t, u.s, n, ring);
}

/* The bodies, of experts without and with ENDS. */
template <int FORM> MPK_FN void expert_unpack(const mpk_task &t, const expert_unpack_shape &u)
{
    typedef expert_unpack_use<FORM, 0> use;
    expert_tile_all<EXPERT_UNPACK_GROUPS, use, expert_unpack_work_off<FORM, 0>>(t, u.s,
                                                                                {u.s, u.zero});
    blocks_end_task(t);
}
template <int FORM> MPK_FN void expert_unpack(const mpk_task &t, const expert_unpack_ends_shape &u)
{
    typedef expert_unpack_use<FORM, 1> use;
    expert_tile_all<EXPERT_UNPACK_GROUPS, use, expert_unpack_work_off<FORM, 1>>(t, u.e.s,
                                                                                {u.e.s, u.zero});
    blocks_end_task(t);
}

#endif

#endif
