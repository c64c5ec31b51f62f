/* linear_blocks.cuh - products of more than 16 tokens with weights that stay in GGUF blocks, on
 * warpgroups: linear, and logits.
 *
 * y[t, n] = epilogue(sum over k of x[t, k] w[n, k]), x bf16, w in blocks (rt/rt_blocks.h), sums
 * f32.
 *
 * Idea: the page ring brings weights as they are packed.  The second warpgroup unpacks them to bf16
 * in shared memory (blocks_buffer.cuh), and the first one multiplies: it asks for x, issues wgmma
 * and ends tiles.  Neither waits for the other but at the buffers between them, so integer units
 * and tensor cores work at the same time.  (With both in all warps, each step was a chain of 1,800
 * cycles, whatever its products.)  x and pages come as boxes of tensor maps: copies of a group's
 * bytes, 1.2 KB, cost the loader more time than the unpackers take, and copies that threads issue
 * are waited for by each fence of theirs.
 *
 *   task    for each pass, of N rows of w: 64, 96 or 128
 *             for each lot, of T tokens: 64 or 128
 *               for each step, of 128 columns: a piece of each group
 *
 *   page    up to 8 groups of 8 rows, 128 columns in bytes or 256 in nibbles, or of up to 4 groups
 *           twice as many; a pass of more groups has two pages a load
 *   stage   of x, in the 128-byte swizzle: 128 tokens x 64 columns, or 64 x 128, as two boxes; four
 *
 * Cost of a step with N = 128 and T = 128: 16 products of 64 x 128 x 16, 1,024 cycles of the tensor
 * cores; 128 weights an unpacking lane, some 560 instructions of each of four warps; from L2 32 KB
 * of x and 9.7 KB of w in nibbles, 18.4 in bytes.
 *
 * Called by the generated switch over bodies for many tokens; the worker waits for the task's event
 * and counts it.
 */
#ifndef TASK_LINEAR_BLOCKS_CUH
#define TASK_LINEAR_BLOCKS_CUH

#include "task/blocks_buffer.cuh"

#if MPK_WGMMA

/* A use of the body: a product of many tokens, and what weights in blocks add to it.  In constant
 * memory; src/gen/body_linear_blocks.c prints it. */
struct blocks_shape {
    tile_shape tile;
    int form;   /* RT_BLOCKS_* */
    float zero; /* 128 and what the format takes off its integers */
};

/* Scratch, in bytes: stages of x and what follows.  A warp's sums of 16 tokens, [token][TILE_ROW
 * floats], take the place of stages. */
enum {
    BLOCKS_FACTORS = MPK_BOXES * BLOCKS_STAGE, /* float[tokens] */
    BLOCKS_SCRATCH = BLOCKS_FACTORS + TILE_BLOCKS_TOKENS * 4
};
static_assert(BLOCKS_SCRATCH == TILE_BLOCKS_SCRATCH,
              "the record asks for as much scratch as the body has");

/* How a task is cut, the same for the loader and both warpgroups: passes over its groups of 8
 * packed rows, in each lots over its tokens.  It follows from the entry alone, but for how many
 * lots have a token that is alive. */
struct blocks_plan {
    int first, groups; /* the task's */
    int per_pass;      /* groups */
    int lots, tokens;  /* of each pass; of a lot */
};
MPK_FN blocks_plan blocks_plan_of(const rt_entry *e, const tile_shape &s)
{
    const int shift = s.activation != ACTIVATE_NONE ? 2 : 3, tokens = (int)(e->hi[0] - e->lo[0]);
    blocks_plan p;
    p.first = (int)(e->lo[1] >> shift);
    p.groups = (int)((e->hi[1] + (1u << shift) - 1) >> shift) - p.first;
    p.per_pass = tile_groups_of_blocks(p.groups, s.peaks >= 0);
    p.tokens = tile_tokens_of_blocks(tokens);
    p.lots = (tokens + p.tokens - 1) / p.tokens;
    return p;
}
/* Lots with a token that is alive. */
MPK_FN int blocks_alive(const mpk_task &t, const blocks_plan &p)
{
    const int tokens = (int)t.hi0 - (int)t.e->lo[0];
    return tokens > 0 ? mpk_smaller((tokens + p.tokens - 1) / p.tokens, p.lots) : 0;
}

/* A pass of the task, from its group `at` on. */
MPK_FN blocks_pass blocks_pass_of(const blocks_plan &p, const blocks_shape &s, int at)
{
    blocks_pass q;
    q.groups = mpk_smaller(p.groups - at, p.per_pass);
    q.pages = q.groups > TILE_GROUPS ? 2 : 1;
    q.shift = !RT_IS_BYTES(s.form) + (q.groups <= TILE_GROUPS / 2);
    q.loads = (s.tile.columns + (RT_PIECE_COLUMNS << q.shift) - 1) / RT_PIECE_COLUMNS >> q.shift;
    return q;
}

static_assert(TILE_GROUPS * RT_PIECE_BYTES(RT_BLOCKS_8) <= MPK_PAGE_BYTES &&
                  TILE_GROUPS * 2 * RT_PIECE_BYTES(RT_BLOCKS_4) <= MPK_PAGE_BYTES,
              "a page holds the boxes of 8 groups");

/* ---- the loader's part ---- */

/* The leading thread: a page of `groups` groups from `group` on, pieces from `piece` on; with times
 * = 2, of up to four groups, the next pieces, too, half a page on.  Whole boxes have 8 groups,
 * others two (rt_entry.maps).  false: there is nothing to load for any more. */
MPK_FN bool blocks_load_page(mpk_load &l, const blocks_shape &s, int groups, int group, int piece,
                             int times)
{
    const int together = TILE_BLOCKS_TOGETHER(s.form), words = RT_PIECE_BYTES(s.form) / 8,
              boxes = (groups + 1) / 2;
    const bool whole = groups > TILE_GROUPS - 2;
    const rt_u32 box = (rt_u32)(2 * together * RT_PIECE_BYTES(s.form)), /* bytes, of two groups */
        page = blocks_next_page(l, (rt_u32)(whole ? TILE_GROUPS / 2 : times * boxes) * box);
    const rt_map *maps = (const rt_map *)l.e->maps;
    if (page == LOAD_OVER)
        return false;
    const rt_u32 to = l.s_pages + page * MPK_PAGE_BYTES;
    if (whole)
        ptx_copy_box(to, &maps[1], piece * words, group, &mpk_w.full[page]);
    for (int i = 0; i < times * boxes && !whole; i++) {
        const int k = i >= boxes; /* the next pieces */
        ptx_copy_box(to + (rt_u32)(i - k * boxes + k * (TILE_GROUPS / 4)) * box, &maps[2],
                     (piece + k * together) * words, group + (i - k * boxes) * 2,
                     &mpk_w.full[page]);
    }
    return true;
}

/* The leading thread: the pages of each pass, once for each lot, since they are unpacked anew for
 * each. */
MPK_FN void blocks_load_all(mpk_load &l, const blocks_shape &s)
{
    const blocks_plan p = blocks_plan_of(l.e, s.tile); /* the body makes the same */
#pragma unroll 1
    for (int at = 0; at < p.groups; at += p.per_pass) {
        const blocks_pass q = blocks_pass_of(p, s, at);
        const int group = p.first + at, end = q.loads << q.shift,
                  times = (1 << q.shift) / TILE_BLOCKS_TOGETHER(s.form);
#pragma unroll 1
        for (int lot = 0; lot < p.lots; lot++)
#pragma unroll 1
            for (int piece = 0; piece < end; piece += 1 << q.shift) {
                if (!blocks_load_page(l, s, mpk_smaller(q.groups, (int)TILE_GROUPS), group, piece,
                                      times))
                    return;
                if (q.pages > 1 &&
                    !blocks_load_page(l, s, q.groups - TILE_GROUPS, group + TILE_GROUPS, piece, 1))
                    return;
            }
    }
    blocks_open_rest(l);
}
/* The loader.  The whole ring may be in flight meanwhile (load_settle sets the number back), as in
 * linear_tile_load. */
MPK_FN void linear_blocks_load(mpk_load &l, const blocks_shape &s)
{
    const rt_u32 in_flight = l.in_flight;
    l.in_flight = l.ring.n;
    if (load_leads()) {
        blocks_load_all(l, s);
        load_tell(&l);
    }
    load_follow(&l);
    load_settle(l, in_flight);
}

/* ---- the unpackers ---- */

/* An unpacking warp: all steps of the task. */
template <int FORM>
MPK_FN void blocks_unpack_all(const mpk_task &t, const blocks_shape &s, const blocks_plan &p,
                              mpk_ring *ring)
{
    const int alive = blocks_alive(t, p);
    char *s_buffers = blocks_buffers(*ring);
    const blocks_numbers n = blocks_constants(s.zero);
    /* bytes of RT_BLOCKS_8 have theirs off by n.zero */
    const float zero = FORM == RT_BLOCKS_8 ? 0 : s.zero;
    int step = 0; /* of the task */
#pragma unroll 1
    for (int at = 0; at < p.groups; at += p.per_pass) {
        const blocks_pass q = blocks_pass_of(p, s, at);
#pragma unroll 1
        for (int i = 0; i < p.lots * q.loads; i++) {
            blocks_loaded l;
            blocks_take_load(q, ring, &l);
            /* pages of lots that are not alive have been loaded all the same */
            const int pieces = i < alive * q.loads ? 1 << q.shift : 0;
#pragma unroll 1
            for (int piece = 0; piece < pieces; piece++, step++) {
                const int buffer = step % BLOCKS_BUFFERS;
                blocks_unpack<FORM, TILE_BLOCKS_TOGETHER(FORM)>(
                    q, l, piece, false, s_buffers + buffer * BLOCKS_BUFFER, step >= BLOCKS_BUFFERS,
                    buffer, n, zero);
                ptx_fence_shared(); /* products read through the other proxy */
                ptx_arrive(BLOCKS_FULL + buffer, MPK_THREADS);
            }
            blocks_give_back(q, l);
        }
    }
}

/* ---- those that multiply ---- */

/* Stages of x: `fill` counts those of the worker's tasks before (mpk_w.box_fills), so that phases
 * go on.  Two boxes make a stage, and one barrier tells of both; the other warpgroup's, which other
 * bodies use, keeps in step. */
struct blocks_x {
    rt_u32 fill; /* of the lot's first */
    int stages, row;
    rt_u32 s_x;
};

/* One thread: request stage `stage`, which is free. */
template <int T> MPK_FN void blocks_ask(const mpk_task &t, const blocks_x &x, int stage)
{
    const rt_u32 at = (x.fill + (rt_u32)stage) % MPK_BOXES, to = x.s_x + at * BLOCKS_STAGE;
    const rt_map *map = (const rt_map *)t.e->maps;
    const int column = stage * (BLOCKS_STAGE / (T * 2)); /* 64, or 128 of 64 tokens */
    rt_u64 *full = &mpk_w.box_full[0][at];
    ptx_barrier_arrive(&mpk_w.box_full[1][at]);
    ptx_barrier_expect(full, BLOCKS_STAGE);
    ptx_copy_box(to, map, column, x.row, full);
    ptx_copy_box(to + BLOCKS_STAGE / 2, map, T == 64 ? column + TILE_BOX_COLUMNS : column,
                 T == 64 ? x.row : x.row + TILE_BOX_TOKENS, full);
}
/* Is stage `stage` there?  Does not wait. */
MPK_FN bool blocks_look(const blocks_x &x, int stage)
{
    const rt_u32 fill = x.fill + (rt_u32)stage;
    return ptx_barrier_look(&mpk_w.box_full[0][fill % MPK_BOXES], fill / MPK_BOXES & 1);
}
/* All: until it is.  The lanes vote on what they have seen, or ptxas would wait after each
 * product. */
MPK_FN void blocks_await(const blocks_x &x, int stage, bool seen)
{
    const rt_u32 fill = x.fill + (rt_u32)stage;
    if (!__all_sync(0xffffffffu, seen))
        mpk_barrier_wait(&mpk_w.box_full[0][fill % MPK_BOXES], fill / MPK_BOXES & 1);
    __syncwarp(); /* products take whole warps */
}

/* The operands of columns 64 i ... of a lot. */
struct blocks_operands {
    rt_u64 x, w;
};
template <int T>
MPK_FN blocks_operands blocks_find(const blocks_x &x, rt_u64 first_x, rt_u64 first_w, int step,
                                   int i)
{
    const int stage = T == 64 ? i / 2 : i, half = i % 2,
              place = (int)((x.fill + (rt_u32)stage) % MPK_BOXES);
    return {
        tile_uniform(first_x,
                     (rt_u32)(place * BLOCKS_STAGE + (T == 64 ? half * (BLOCKS_STAGE / 2) : 0)) /
                         16),
        tile_uniform(first_w,
                     (rt_u32)((step + i / 2) % BLOCKS_BUFFERS * BLOCKS_BUFFER + half * 1024) / 16)};
}

/* All columns of a lot, 64 at a time: half a step.  step: of the task, the lot's first; end: of the
 * task's last.
 *
 * A warp is held while it issues products until those before them have nearly run.  So half of the
 * products of 64 columns are issued, and while they run all else is done: what the 64 before have
 * read is given back, a stage is asked for, and what the next 64 read is looked for.  Then the
 * other half is issued.  At the meeting the products of the 64 before have ended in all warps. */
template <int T, int N>
MPK_FN void blocks_sum_lot(const mpk_task &t, const blocks_x &x, const char *s_x, int steps,
                           int step, int end, float (*sum)[N / 2])
{
    const rt_u64 first_x = ptx_matrix_of_rows(s_x),
                 first_w = ptx_matrix(blocks_buffers(*t.ring), BLOCKS_GROUP);
    const bool asks = mpk_thread() < 32;
    blocks_operands at = blocks_find<T>(x, first_x, first_w, step, 0);
    bool seen = false;
#pragma unroll 1
    for (int i = 0; i < 2 * steps; i++) {
        const int half = i % 2, stage = T == 64 ? i / 2 : i, now = step + i / 2,
                  buffer = now % BLOCKS_BUFFERS;
        const blocks_operands own = at;
        if (T > 64 || half == 0)
            blocks_await(x, stage, seen);
        if (half == 0)
            ptx_meet(BLOCKS_FULL + buffer, MPK_THREADS);
        blocks_multiply<T, N>(own.x, own.w, 0, sum);
        ptx_group_wait<1>(); /* the 64 before */
        /* the unpackers wait for a buffer that they fill again */
        if (half == 0 && i && now - 1 + BLOCKS_BUFFERS < end)
            ptx_arrive(BLOCKS_EMPTY + (buffer ^ 1), MPK_THREADS);
        tile_meet();
        if (asks && (T > 64 || half == 0) && stage && stage - 1 + MPK_BOXES < x.stages &&
            ptx_elect())
            blocks_ask<T>(t, x, stage - 1 + MPK_BOXES);
        __syncwarp();
        at = blocks_find<T>(x, first_x, first_w, step, i + 1);
        seen = blocks_look(x, T == 64 ? (i + 1) / 2 : i + 1);
        blocks_multiply<T, N>(own.x, own.w, 2, sum);
    }
    tile_wait_products();
    if (step + steps - 1 + BLOCKS_BUFFERS < end)
        ptx_arrive(BLOCKS_EMPTY + (step + steps - 1) % BLOCKS_BUFFERS, MPK_THREADS);
}
static_assert(BLOCKS_BUFFERS == 2, "the buffer of the step before is the other one");

/* The end of a lot (tile_end.cuh): a warp has 16 of each 64 tokens.  group: the pass's first. */
template <int LOOP, int T, int N>
MPK_FN void blocks_end(const mpk_task &t, const blocks_shape &s, const blocks_pass &q, int group,
                       int row, char *s_x, const float (*sum)[N / 2])
{
    const int warp = mpk_thread() / 32;
    float *s_sum = (float *)s_x + warp * 16 * TILE_ROW;
    const float *s_factors = (const float *)(t.s_scratch + BLOCKS_FACTORS);
#pragma unroll
    for (int m = 0; m < T / 64; m++) {
        const int first = m * 64 + warp * 16; /* token of the lot */
#pragma unroll 1
        for (int u = 0; u * TILE_GROUPS < q.groups; u++) {
            tile_put_unit<N>(sum[m], u, s_sum);
            __syncwarp();
            tile_finish_unit<LOOP, true>(t, s.tile, row + first, group + u * TILE_GROUPS, s_sum,
                                         s_factors + first);
            __syncwarp();
        }
    }
}

/* A multiplying warp: all lots of the task. */
template <int LOOP, int T, int N>
MPK_FN void blocks_multiply_all(const mpk_task &t, const blocks_shape &s, const blocks_plan &p,
                                char *s_x)
{
    const int alive = blocks_alive(t, p);
    /* Steps of a lot are those of whole loads, so passes may differ in how many they have. */
    int step = 0, end = 0;
#pragma unroll 1
    for (int at = 0; at < p.groups; at += p.per_pass) {
        const blocks_pass q = blocks_pass_of(p, s, at);
        end += alive * (q.loads << q.shift);
    }
    if (mpk_thread() < T) /* without a norm `eps` is a factor of the sums */
        ((float *)(t.s_scratch + BLOCKS_FACTORS))[mpk_thread()] = s.tile.eps;
    blocks_x x = {mpk_w.box_fills[0], 0, (int)t.e->lo[0], ptx_shared(s_x)};
#pragma unroll 1
    for (int at = 0; at < p.groups && alive; at += p.per_pass)
#pragma unroll 1
        for (int lot = 0; lot < alive; lot++) {
            const blocks_pass q = blocks_pass_of(p, s, at);
            const int steps = q.loads << q.shift;
            float sum[T / 64][N / 2];
#pragma unroll
            for (int m = 0; m < T / 64; m++)
#pragma unroll
                for (int e = 0; e < N / 2; e++)
                    sum[m][e] = 0;
            x.stages = steps * (T / 64);
            x.row = (int)t.e->lo[0] + lot * T;
            ptx_fence_shared(); /* stages were sums, or another task's */
            tile_meet();
            if (mpk_thread() < 32 && ptx_elect()) {
                ptx_fence_bulk(); /* x was written by ordinary stores */
                for (int i = 0; i < MPK_BOXES && i < x.stages; i++)
                    blocks_ask<T>(t, x, i);
            }
            __syncwarp();
            blocks_sum_lot<T, N>(t, x, s_x, steps, step, end, sum);
            step += steps;
            x.fill += (rt_u32)x.stages;
            tile_meet(); /* stages give way to sums */
            blocks_end<LOOP, T, N>(t, s, q, p.first + at, x.row, s_x, sum);
        }
    tile_meet(); /* all have read box_fills */
    if (mpk_thread() < 2)
        mpk_w.box_fills[mpk_thread()] = x.fill;
}

/* ---- the body ---- */

/* A task by this loop, if some task of the kernel has it and this is such a one. */
template <int LOOP, int T, int N>
MPK_FN void blocks_run_if(const mpk_task &t, const blocks_shape &s, const blocks_plan &p, char *s_x)
{
    if (TILE_HAS_LOOP(LOOP) && p.tokens == T && p.per_pass * 8 == N)
        blocks_multiply_all<LOOP, T, N>(t, s, p, s_x);
}

/* All body threads, once the task's event is activated. */
MPK_FN void linear_blocks(const mpk_task &t, const blocks_shape &s)
{
    mpk_ring ring = *t.ring;
    const blocks_plan p = blocks_plan_of(t.e, s.tile);
    /* from mpk_s on, or the compiler would not know that it is shared memory */
    char *s_x = mpk_s + (ptx_shared(t.s_scratch) - ptx_shared(mpk_s));
    if (mpk_thread() >= 128) {
        if (s.form == RT_BLOCKS_4)
            blocks_unpack_all<RT_BLOCKS_4>(t, s, p, &ring);
        if (s.form == RT_BLOCKS_4K)
            blocks_unpack_all<RT_BLOCKS_4K>(t, s, p, &ring);
        if (s.form == RT_BLOCKS_8)
            blocks_unpack_all<RT_BLOCKS_8>(t, s, p, &ring);
        if (s.form == RT_BLOCKS_8K)
            blocks_unpack_all<RT_BLOCKS_8K>(t, s, p, &ring);
    } else {
        blocks_run_if<TILE_BLOCKS_64, 64, 64>(t, s, p, s_x);
        blocks_run_if<TILE_BLOCKS_64 + 1, 64, 96>(t, s, p, s_x);
        blocks_run_if<TILE_BLOCKS_64 + 2, 64, 128>(t, s, p, s_x);
        blocks_run_if<TILE_BLOCKS_128, 128, 64>(t, s, p, s_x);
        blocks_run_if<TILE_BLOCKS_128 + 1, 128, 96>(t, s, p, s_x);
        blocks_run_if<TILE_BLOCKS_128 + 2, 128, 128>(t, s, p, s_x);
        for (int at = 0; at < p.groups; at += p.per_pass) {
            const blocks_pass q = blocks_pass_of(p, s, at);
            blocks_pass_by(&ring, p.lots * q.loads * q.pages);
        }
    }
    *t.ring = ring;
    blocks_end_task(t);
}

#endif

#endif
