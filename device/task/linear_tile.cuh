/* linear_tile.cuh - products of many tokens with streamed weights on warpgroups: linear, and
 * logits (paper §6.1).
 *
 * y[t, n] = epilogue(sum over k of x[t, k] w[n, k]), x bf16 or f16 (tile/halves.cuh), w packed
 * (gen/device_body.h), sums f32.
 *
 * Idea: tokens are the rows of wgmma and rows of w its columns, both read from shared memory.  w
 * comes through the page ring as in linear_stream.cuh, so loading runs ahead of the task's event; x
 * is data of this step, so the warpgroups bring it themselves, in stages of 64 columns of 64 tokens
 * in the same swizzle, while products of the steps before are in flight.  What a norm (whose
 * vectors are folded into w) needs of x is summed from the stages of x (row_sums); the factor is
 * applied to the sums.  Nothing of a shape is a template parameter: all operators of all graphs
 * share this code.
 *
 * Which loop a pass takes (tile_loop_of in shape/linear_tile_shape.h):
 *
 *   loop     tokens   rows of w   step         warpgroup 0 | 1
 *   thin     to 64    to 64       256 columns  half of the step's columns each; pages hold 128 to
 *                                              1,024 columns, since steps cost instructions
 *   thin box to 64    to 64       256 columns  the same; x comes by boxes, by its tensor map
 *   narrow   to 64    128, 192    128 columns  64 columns each
 *   wide     128      128, 192    128 columns  64 tokens each; they never wait for each other
 *   box      128      to 256      64 columns   64 tokens each (linear_box.cuh, with tensor maps)
 *   panel    128      128         64 columns   64 tokens each (linear_panel.cuh, without wgmma)
 *
 * Where both warpgroups have the same tokens, the sums of both are added at the end (tile_join).
 *
 * A page holds the step's 4 blocks of each of 8 groups, one group after the other: a copy of 2
 * KB for each, since copies of 1 KB reach half the bandwidth. Columns are added in the same
 * order whatever the number of tokens alive. Cost of 64 columns, 128 tokens, 192 rows: 8 wgmma
 * of 64 x 192 x 16; 16 KB of x and 24 KB of w from L2.
 *
 * Called by the generated switch over bodies for many tokens; the worker waits for the task's
 * event and counts it.
 */
#ifndef TASK_LINEAR_TILE_CUH
#define TASK_LINEAR_TILE_CUH

#include "ptx/matrix.cuh"
#include "task/linear_box.cuh"
#include "task/linear_panel.cuh"
#include "task/thin_end.cuh"
#include "task/tile_copy.cuh"

/* ---- the loader's part ---- */

#if MPK_BULK
/* All lanes: the pages of one step, a piece of PIECE bytes of each group, GROUPS groups a page, a
 * lane each; from: its first block of the pass's first group.  once: no other worker reads these
 * weights now, so L2 need not keep them.  Pages that are left out are opened for nothing, since the
 * body takes every page. */
template <int PIECE, int GROUPS>
MPK_FN void tile_load_step(mpk_load &l, const tile_pass &q, const char *from, rt_u32 group_bytes,
                           bool once)
{
    const int lane = mpk_thread() % 32;
    int groups = 0; /* for which there is a page */
    for (int gap = tile_gap(l.ring, q.pages); gap > 0; gap--)
        load_open(&l, 0);
    char *first = mpk_s + (l.ring.first + l.ring.at) * MPK_PAGE_BYTES; /* of the step's pages */
    /* All pages are made room for first, so a lane may ask for a piece of any of them; then each
     * lane asks for its group's piece. */
    while (groups < q.groups) {
        const int n = q.groups - groups < GROUPS ? q.groups - groups : GROUPS;
        if (!load_open(&l, (rt_u32)n * PIECE))
            break;
        groups += n;
    }
    if (lane < groups) {
        /* pages of a step are neighbours, and a page is exactly GROUPS pieces */
        char *to = first + lane * PIECE;
        rt_u64 *full = &mpk_w.full[(to - mpk_s) / MPK_PAGE_BYTES]; /* of the page that has it */
        if (once)
            ptx_copy_bulk_once(ptx_shared(to), from + (rt_u64)lane * group_bytes, PIECE, full,
                               l.policy);
        else /* other workers' tokens want the same */
            ptx_copy_bulk(to, from + (rt_u64)lane * group_bytes, PIECE, full);
    }
    __syncwarp();
}
#else
/* The same by the whole warp, group after group. */
template <int PIECE, int GROUPS>
MPK_FN void tile_load_step(mpk_load &l, const tile_pass &q, const char *from, rt_u32 group_bytes,
                           bool)
{
    for (int gap = tile_gap(l.ring, q.pages); gap > 0; gap--)
        load_open(&l, 0);
    for (int groups = 0; groups < q.groups; groups += GROUPS) {
        const int n = q.groups - groups < GROUPS ? q.groups - groups : GROUPS;
        const rt_u32 page = load_page(&l);
        if (page == LOAD_OVER)
            break;
        for (int i = 0; i < n; i++)
            load_copy(&l, page, (rt_u32)(i * PIECE), from + (rt_u64)(groups + i) * group_bytes,
                      PIECE);
        load_end(page);
    }
}
#endif

/* All lanes: all columns of a thin task, of each group `piece` blocks a page, which lie together,
 * so that a lane's copy is 2 to 16 KB.  Packed groups are padded to 256 columns, so no copy reads
 * beyond one. */
MPK_FN void tile_load_thin(mpk_load &l, const tile_plan &p, const tile_shape &s, const char *from,
                           rt_u32 group_bytes)
{
    const int blocks = (s.columns + 255) / 256 * 8;
#if MPK_BULK
    const int lane = mpk_thread() % 32;
#endif
    /* a page after the other until all columns are there */
    for (int first = 0; first < blocks; first += p.piece) {
        const int n = blocks - first < p.piece ? blocks - first : p.piece;
        const rt_u32 page = l.ring.first + l.ring.at;
        if (!load_open(&l, (rt_u32)(p.groups * n) * 512))
            break;
#if MPK_BULK
        if (lane < p.groups)
            load_copy(&l, page, (rt_u32)(lane * p.piece) * 512,
                      from + (rt_u64)lane * group_bytes + first * 512, (rt_u32)n * 512);
#else
        for (int i = 0; i < p.groups; i++)
            load_copy(&l, page, (rt_u32)(i * p.piece) * 512,
                      from + (rt_u64)i * group_bytes + first * 512, (rt_u32)n * 512);
        load_end(page);
#endif
        __syncwarp();
    }
}

/* The loader's part of a task, as the plan has it: pass, lot, step, as the body takes them; each
 * further lot brings the pass's weights again, from L2.  Small copies want more pages in flight
 * than the tuned number, and there are no polls that they could delay; load_settle sets the number
 * back.  Weights that the step makes are there once the event has come. */
MPK_FN void linear_tile_load(mpk_load &l, const tile_shape &s)
{
    const tile_plan p = tile_plan_of(l.e, s); /* the body makes the same */
    const rt_u32 group_bytes = (rt_u32)s.blocks * 512, in_flight = l.in_flight;
    if (tile_is_of_rows(l.e) && !load_needs_event(&l))
        return;
    l.in_flight = l.ring.n;
#if MPK_MAPS
    if (p.boxed) {
        box_load(l, p, s);
        load_settle(l, in_flight);
        return;
    }
#endif
    if (p.piece)
        tile_load_thin(l, p, s, (const char *)l.e->at[RT_PACKED] + (rt_u64)p.first * group_bytes,
                       group_bytes);
    for (int at = 0; at < p.groups && !p.piece; at += p.per_pass) {
        const tile_pass q = tile_pass_at(p, s, at);
        const char *base = (const char *)l.e->at[RT_PACKED] + (rt_u64)(p.first + at) * group_bytes;
        for (int lot = 0; lot < p.lots; lot++)
            for (int step = 0; step < q.steps && !l.cancelled; step++)
#if !MPK_WGMMA
                if (p.broad)
                    tile_load_step<TILE_BOX_BYTES, TILE_BOX_GROUPS>(
                        l, q, base + step * TILE_BOX_BYTES, group_bytes, false);
                else
#endif
                    tile_load_step<TILE_PIECE, TILE_GROUPS>(l, q, base + step * TILE_PIECE,
                                                            group_bytes, !p.wide);
    }
    load_settle(l, in_flight);
}

/* ---- products ---- */

#if MPK_WGMMA
/* Where columns 16 k ... of a stage begin, in units of a matrix's address, which are 16 bytes. */
MPK_FN rt_u32 tile_in_x(int k)
{
    return (rt_u32)(k / 2 * (TILE_HALF / 16) + k % 2 * 2);
}
/* One stage, 64 columns, as four products of 16: s_x, s_w its first bytes, `stride` those from a
 * group of w to the next.  Called between tile_begin_products and tile_end_products. */
template <int N> MPK_FN void tile_multiply(const char *s_x, const char *s_w, int stride, float *sum)
{
    const rt_u64 x = ptx_matrix(s_x, 512), w = ptx_matrix(s_w, stride); /* descriptors */
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const rt_u64 a = tile_further(x, tile_in_x(k)), b = tile_further(w, tile_in_w(k));
        halves_group_multiply<N>(sum, a, b);
    }
}

MPK_FN void tile_begin_products(void)
{
    ptx_group_begin();
}
/* The products that were begun run asynchronously: until tile_wait_products no thread may touch
 * their registers of sums, or overwrite the stage and pages that they read. */
MPK_FN void tile_end_products(void)
{
    ptx_group_commit();
}
/* All products have ended: the sums may be read, and what they read be overwritten. */
MPK_FN void tile_wait_products(void)
{
    ptx_group_wait<0>();
}
#else
/* Without warpgroups' products: the same sums in the same registers by those of warps, 16 tokens
 * each.  a: of the warp's tokens, columns 16 k ... of a block; s_w: that block of the first
 * group. One ldmatrix brings two groups, 16 rows of w: matrices 0, 1 are columns 0-7 and 8-15 of
 * the first, 2, 3 of the second. */
template <int N>
MPK_FN void tile_multiply_by_warps(const rt_u32 *a, const char *s_w, int stride, int k, float *sum)
{
    const int lane = mpk_thread() % 32, row = lane % 8, matrix = lane / 8;
    s_w += matrix / 2 * stride + row * 64 + ((2 * k + matrix % 2) ^ row / 2) * 16;
#pragma unroll
    for (int n = 0; n < N / 8; n += 2) {
        rt_u32 b[4]; /* two groups of w */
        ptx_load_matrices(b, s_w + n * stride);
        halves_multiply(sum + 4 * n, a[0], a[1], a[2], a[3], b[0], b[1]);
        halves_multiply(sum + 4 * n + 4, a[0], a[1], a[2], a[3], b[2], b[3]);
    }
}

/* One stage: ldmatrix brings 16 tokens x 16 columns as the four words of `a`: matrices 0, 1 are
 * tokens 0-7 and 8-15 of columns 0-7, 2, 3 those of columns 8-15.  Each is read once for all N rows
 * of w.  The swizzle keeps the eight rows of a matrix in different banks, here and of w. */
template <int N> MPK_FN void tile_multiply(const char *s_x, const char *s_w, int stride, float *sum)
{
    const int thread = mpk_thread(), warp = thread / 32 % 4, lane = thread % 32, row = lane % 8,
              matrix = lane / 8;
    s_x += (2 * warp + matrix % 2) * 512 + row * 64; /* tokens 16 warp + 8 (matrix % 2) + row */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int block = i / 2, k = i % 2; /* of 32 columns; 16 of these */
        rt_u32 a[4];
        ptx_load_matrices(a, s_x + block * TILE_HALF + ((2 * k + matrix / 2) ^ row / 2) * 16);
        tile_multiply_by_warps<N>(a, s_w + block * 512, stride, k, sum);
    }
}

MPK_FN void tile_begin_products(void) {}
MPK_FN void tile_end_products(void) {}
MPK_FN void tile_wait_products(void) {}
#endif

#if MPK_WGMMA
/* All columns of a pass for this warpgroup's 64 tokens, N rows of w: both stages of each step.
 * sum[N / 2] per lane, as ptx_group_multiply leaves it.  Four stages: two are read by products
 * while the other two are filled.  While the products of a step are in flight, x of the next step
 * is asked for and squares are added; the other warpgroup keeps the tensor cores busy while this
 * one waits.  The two meet nowhere here: each copies its own x, and a page is filled again when
 * both have released it. */
template <int N>
MPK_FN void tile_columns_wide(const tile_shape &s, const tile_pass &q, const tile_copy &c,
                              const char *s_x, mpk_ring *ring, float *sum, row_sums *of_x)
{
    constexpr int STAGES = 2; /* of a step */
    const int columns = s.columns, norm = s.norm;
#pragma unroll
    for (int i = 0; i < STAGES; i++)
        tile_copy_stage(c, columns, i, i);
    for (int step = 0; step < q.steps; step++) {
        const int buffer = step % 2 * 2; /* the other two stages are filled */
        const rt_u32 page = tile_take(q, ring);
        const char *s_w = mpk_s + page * MPK_PAGE_BYTES; /* all pages of the step */
        ptx_copy_async_wait<0>();
        ptx_fence_shared(); /* products read through the other proxy */
        tile_meet();        /* the step is there, and all warps have read the one before */
        tile_begin_products();
#pragma unroll
        for (int i = 0; i < STAGES; i++)
            tile_multiply<N>(s_x + (buffer + i) * TILE_STAGE, s_w + i * 1024, TILE_PIECE, sum);
        tile_end_products();
        /* into the two stages that the step before has left */
        if (step + 1 < q.steps)
#pragma unroll
            for (int i = 0; i < STAGES; i++)
                tile_copy_stage(c, columns, 2 * step + 2 + i, (buffer ^ 2) + i);
        for (int i = 0; i < STAGES && norm; i++)
            tile_add_sums(c, buffer + i, of_x);
        tile_wait_products();
        tile_release(q, page);
    }
}

#endif

/* All columns of a pass, this warpgroup's stage `which` (0 or 1) of each step, for tokens that both
 * have; the other's columns are added by tile_join.  With few tokens a step is short, so x of AHEAD
 * steps is in flight: a stage is refilled when its products have been waited for and all warps of
 * the warpgroup have met after that. */
template <int N>
MPK_FN void tile_columns_narrow(const tile_shape &s, const tile_pass &q, const tile_copy &c,
                                const char *s_x, int which, mpk_ring *ring, float *sum,
                                row_sums *of_x)
{
    constexpr int AHEAD = TILE_STAGES - 1; /* stages in flight */
    const int columns = s.columns, norm = s.norm;
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        tile_copy_stage(c, columns, 2 * i + which, i);
    for (int step = 0; step < q.steps; step++) {
        const int buffer = step % TILE_STAGES; /* the stage that is read */
        const rt_u32 page = tile_take(q, ring);
        /* This thread's copies of the stage have ended, and of all threads after the meeting.  A
         * group of copies is closed for each stage, also after the last one, so that the count
         * holds. */
        ptx_copy_async_wait<AHEAD - 1>();
        ptx_fence_shared(); /* products read through the other proxy */
        tile_meet();        /* the stage is there, and all warps have read the one before */
        tile_begin_products();
        tile_multiply<N>(s_x + buffer * TILE_STAGE, mpk_s + page * MPK_PAGE_BYTES + which * 1024,
                         TILE_PIECE, sum);
        tile_end_products();
        tile_copy_stage(c, columns, 2 * (step + AHEAD) + which, (step + AHEAD) % TILE_STAGES);
        if (norm)
            tile_add_sums(c, buffer, of_x);
        tile_wait_products();
        tile_release(q, page);
    }
    ptx_copy_async_wait<0>(); /* stages after the last one give way to sums */
}

/* All warps: where this warpgroup's 128 columns of a thin task's step `step` begin in shared
 * memory.
 *
 *   piece 4        a page has 128 columns: the step takes two, one a warpgroup, and this one lets
 *                  the other's go at once
 *   piece 8 - 32   a page has one to four steps; *page goes on unless it is TILE_NO_PAGE
 */
MPK_FN const char *tile_take_thin(int piece, int step, int half, mpk_ring *ring, rt_u32 *page)
{
    if (piece == 4) {
        rt_u32 first, second;
        ring_take(ring, &first);
        ring_take(ring, &second);
        *page = half ? second : first;
        ring_release(half ? first : second);
        return mpk_s + *page * MPK_PAGE_BYTES;
    }
    if (*page == TILE_NO_PAGE)
        ring_take(ring, page);
    __syncwarp();
    return mpk_s + *page * MPK_PAGE_BYTES + ((step * 8 & (piece - 1)) + half * 4) * 512;
}

/* All columns of a thin task: 128 of each 256 for this warpgroup, two stages of them.  Products
 * have 64 rows of w even if the task has fewer: those after the last group read other bytes (of a
 * single group its own again), and their sums are never stored. */
MPK_FN void tile_columns_thin(const tile_shape &s, int piece, int groups, const tile_copy &c,
                              const char *s_x, int half, mpk_ring *ring, float *sum, row_sums *of_x)
{
    const int columns = s.columns, norm = s.norm, steps = (columns + 255) / 256;
    const int stride = groups > 1 ? piece * 512 : 0; /* bytes from a group of w to the next */
    rt_u32 page = TILE_NO_PAGE; /* of the steps before, if they have left some */
#pragma unroll
    for (int i = 0; i < 2; i++)
        tile_copy_stage(c, columns, 2 * half + i, i);
    for (int step = 0; step < steps; step++) {
        const int buffer = step % 2 * 2;
        const char *s_w = tile_take_thin(piece, step, half, ring, &page);
        ptx_copy_async_wait<0>();
        ptx_fence_shared(); /* products read through the other proxy */
        tile_meet();        /* the stages are there, and no warp reads those before any more */
        tile_begin_products();
#pragma unroll
        for (int i = 0; i < 2; i++)
            tile_multiply<64>(s_x + (buffer + i) * TILE_STAGE, s_w + i * 1024, stride, sum);
        tile_end_products();
        if (step + 1 < steps)
#pragma unroll
            for (int i = 0; i < 2; i++)
                tile_copy_stage(c, columns, 4 * (step + 1) + 2 * half + i, (buffer ^ 2) + i);
        for (int i = 0; i < 2 && norm; i++)
            tile_add_sums(c, buffer + i, of_x);
        tile_wait_products();
        /* the step was the page's last */
        if (piece == 4 || ((step + 1) * 8 & (piece - 1)) == 0 || step + 1 == steps) {
            ring_release(page);
            page = TILE_NO_PAGE;
        }
    }
}

#if MPK_WGMMA
/* One thread of the warpgroup: request x of step `step` of a thin task, its two boxes; their stages
 * are free.  The second one's barrier tells of both, so that a step waits for one; the first one's
 * gets the arrival of its phase alone, and keeps in step.  Columns beyond x are zeros, and
 * counted. */
MPK_FN void tile_ask_thin(const mpk_task &t, const box_lot &b, int half, int step, int row)
{
    const rt_u32 fill = b.fill + 2 * (rt_u32)step;
    const rt_map *map = (const rt_map *)t.e->maps;
    rt_u64 *first = &mpk_w.box_full[half][fill % MPK_BOXES],
           *full = &mpk_w.box_full[half][(fill + 1) % MPK_BOXES];
    const rt_u32 to = ptx_shared(mpk_s + MPK_PAGES * MPK_PAGE_BYTES) + (rt_u32)half * TILE_X;
    const int column = step * 256 + half * 128;
    ptx_barrier_arrive(first);
    ptx_barrier_expect(full, 2 * TILE_STAGE);
    ptx_copy_box(to + fill % MPK_BOXES * TILE_STAGE, map, column, row, full);
    ptx_copy_box(to + (fill + 1) % MPK_BOXES * TILE_STAGE, map, column + TILE_BOX_COLUMNS, row,
                 full);
}

/* The boxes of a thin task's x: of each warpgroup two a step. */
MPK_FN box_lot tile_thin_lot(const tile_shape &s)
{
    return {mpk_w.box_fills[mpk_thread() / 128], (s.columns + 255) / 256 * 2, s.norm != 0};
}

/* All warps: what boxes of a thin task's x begin with: the task waits for its event.  Boxes of the
 * first two steps, as many as there are stages, are requested, by a warp each.  The fences and the
 * meeting stand between the last other uses of the stages and of x, and the first copy
 * (box_begin). */
MPK_FN void tile_begin_thin_box(const mpk_task &t, const box_lot &b, int row)
{
    const int warp = mpk_thread() / 32 % 4;
    mpk_take_scratch();
    ptx_fence_shared(); /* stages were sums, or another task's */
    tile_meet();
    mpk_wait(t);
    ptx_fence_bulk(); /* x was written by ordinary stores */
    if (2 * warp < b.steps && warp < MPK_BOXES / 2 && ptx_elect())
        tile_ask_thin(t, b, mpk_thread() / 128, warp, row);
    __syncwarp();
}

/* Does a thin task's step begin with pages of its own, or does it go on in the page before? */
MPK_FN bool tile_thin_is_fresh(int piece, int step)
{
    return piece == 4 || (step * 8 & (piece - 1)) == 0;
}

/* Are the pages of the next step that begins with some there?  Does not wait. */
MPK_FN bool tile_look_thin(int piece, const mpk_ring &ring)
{
    mpk_ring next = ring;
    rt_u32 seen = ptx_barrier_look(&mpk_w.full[next.first + next.at], next.parity);
    ring_next(&next);
    if (piece == 4)
        seen &= ptx_barrier_look(&mpk_w.full[next.first + next.at], next.parity);
    return seen != 0;
}
/* All warps: until they are; ring is not moved, which tile_next_thin does. */
MPK_FN void tile_wait_thin(int piece, const mpk_ring &ring)
{
    mpk_ring next = ring;
    mpk_barrier_wait(&mpk_w.full[next.first + next.at], next.parity);
    ring_next(&next);
    if (piece == 4)
        mpk_barrier_wait(&mpk_w.full[next.first + next.at], next.parity);
}
/* All warps: step over these pages, which are there; returns this warpgroup's.  The other's is let
 * go. */
MPK_FN rt_u32 tile_next_thin(int piece, int half, mpk_ring *ring)
{
    rt_u32 page = ring->first + ring->at;
    ring_next(ring);
    if (piece == 4) {
        const rt_u32 second = ring->first + ring->at;
        ring_next(ring);
        ring_release(half ? page : second);
        page = half ? second : page;
    }
    return page;
}

/* sums[m] += those of a stage's pieces that the thread would have brought of its token m without
 * boxes (tile_copy.cuh), so in the same order.  Boxes are in the 128-byte swizzle: unit u of token
 * r stands at u ^ r % 8.  Threads of neighbouring quads have tokens that are 4 apart, whose pieces
 * lie in different banks: thread i has token tile_thin_row(i), and the one 32 on. */
MPK_FN int tile_thin_row(int i)
{
    return i / 32 * 8 + i / 4 % 2 * 4 + i / 8 % 4;
}
MPK_FN void tile_add_thin_sums(const char *s_x, row_sums *sums)
{
    const int i = mpk_thread() % 128, row = tile_thin_row(i);
    const int first = row * 128 + (i % 4 ^ row % 8) * 16; /* that of the second 32 columns: ^ 64 */
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int m = 0; m < 2; m++)
            sums[m] = row_sums_add(ptx_load_shared_words(s_x + m * 32 * 128 + (first ^ half * 64)),
                                   sums[m]);
}

/* All columns of a thin task whose x comes by boxes, as tile_columns_thin and with the same sums.
 * tile_begin_thin_box has requested x of the first two steps; that of step i + 2 is requested when
 * all warps of the warpgroup have read that of step i, so no thread waits long for x, and none
 * copies.  A wait for a barrier takes 200 cycles even where it is complete, so a warp looks for
 * what the next step reads while its products run, and waits only if it has not seen it.  After:
 * all that was requested has come and was read. */
MPK_FN void tile_columns_thin_box(const mpk_task &t, int piece, int groups, const box_lot &b,
                                  int row, mpk_ring *ring, float *sum, row_sums *of_x)
{
    /* kept, or read again from the number of the thread at each step */
    const int half = (int)ptx_keep(mpk_thread() / 128), steps = b.steps / 2;
    const bool asks = ptx_keep(mpk_thread() / 32 % 4) == 0; /* the warp that requests x */
    /* wgmma takes 64 rows of w; of those beyond the task's groups the sums are not used */
    const int stride = groups > 1 ? piece * 512 : 0;
    const rt_u64 first_x = ptx_matrix_of_rows(box_scratch()), first_w = ptx_matrix(mpk_s, stride);
    const box_operands first = {ptx_keep((rt_u32)first_x), (rt_u32)first_w},
                       high = {(rt_u32)(first_x >> 32), (rt_u32)(first_w >> 32)};
    rt_u32 fill = b.fill, page = 0;
    bool fresh = true, seen = false;
    for (int step = 0; step < steps; step++) {
        /* The lanes vote, or ptxas would wait after each product (box_columns). */
        if (!__all_sync(0xffffffffu, seen)) {
            mpk_barrier_wait(&mpk_w.box_full[half][(fill + 1) % MPK_BOXES],
                             (fill + 1) / MPK_BOXES & 1);
            if (fresh)
                tile_wait_thin(piece, *ring);
        }
        if (fresh)
            page = tile_next_thin(piece, half, ring);
        const rt_u32 begins = piece == 4 ? 0 : (rt_u32)((step * 8 & (piece - 1)) + half * 4) * 512,
                     w = first.w + (page * MPK_PAGE_BYTES + begins) / 16;
        __syncwarp(); /* products take whole warps */
        ptx_group_begin();
#pragma unroll
        for (rt_u32 i = 0; i < 2; i++)
            box_give<64>(
                {first.x + (fill + i) % MPK_BOXES * (TILE_STAGE / 16), w + i * (1024 / 16)}, high,
                sum);
        ptx_group_commit();
        const bool goes_on = step + 1 < steps;
        fresh = tile_thin_is_fresh(piece, step + 1);
        /* Both looks come while the products run; they wait for nothing. */
        seen = goes_on &&
               ptx_barrier_look(&mpk_w.box_full[half][(fill + 3) % MPK_BOXES],
                                (fill + 3) / MPK_BOXES & 1) &&
               (!fresh || tile_look_thin(piece, *ring));
        for (rt_u32 i = 0; i < 2 && b.sums; i++)
            tile_add_thin_sums(box_stage(fill + i), of_x);
        ptx_group_wait<0>();
        tile_meet(); /* all warps have read both stages */
        if (asks && step + 2 < steps && ptx_elect())
            tile_ask_thin(t, b, half, step + 2, row);
        fill += 2;
        if (fresh || !goes_on)
            ring_release(page);
    }
}
#endif

/* No token of a thin task is alive: take and release all of its pages.  They were loaded ahead of
 * the step, and the ring counts them. */
MPK_FN void tile_drop_thin(const tile_shape &s, int piece, mpk_ring *ring)
{
    const int blocks = (s.columns + 255) / 256 * 8;
    for (int i = 0; i < blocks; i += piece) {
        rt_u32 page;
        ring_take(ring, &page);
        ring_release(page);
    }
}

/* No token of a lot is alive: take and release the pages of its pass. */
MPK_FN void tile_drop(const tile_pass &q, mpk_ring *ring)
{
    for (int i = 0; i < q.steps; i++)
        tile_release(q, tile_take(q, ring));
}

/* ---- the body ---- */

/* Where warpgroup `half` leaves its sums of a unit for the other: f32[32][128 threads], in its own
 * stages of x, which no product reads any more.  Neighbouring threads lie side by side: no bank
 * conflict.  It leaves every other unit, hence unit / 2. */
MPK_FN float *tile_sums_of(const mpk_task &t, int half, int unit)
{
    return (float *)(t.s_scratch + half * TILE_X) + unit / 2 * (32 * 128);
}

/* All threads: both warpgroups have sums of the same tokens, each over its columns.  Units of 64
 * rows go in turn to the first and to the second, which adds what the other one has.  The sums of
 * x become factors, where those of squares were.  Barriers: before, so that no product still reads
 * stages; between, so that the other's sums are there; after, so that no warp overwrites what is
 * read. */
template <int N> MPK_FN void tile_join(const mpk_task &t, const tile_shape &s, float *sum)
{
    const int thread = mpk_thread(), i = thread % 128, half = thread / 128;
    mpk_sync(); /* stages of x give way to sums */
#pragma unroll
    for (int u = 0; u < N / 64; u++)
        if (u % 2 != half)
#pragma unroll
            for (int e = 0; e < 32; e++)
                tile_sums_of(t, half, u)[e * 128 + i] = sum[32 * u + e];
    mpk_sync();
#pragma unroll
    for (int u = 0; u < N / 64; u++)
        if (u % 2 == half)
#pragma unroll
            for (int e = 0; e < 32; e++)
                sum[32 * u + e] += tile_sums_of(t, half ^ 1, u)[e * 128 + i];
    if (thread < TILE_TOKENS)
        tile_sums_at(t, 0)[thread] = tile_joint_factor(t, s, thread);
    mpk_sync();
}

/* One pass for this warpgroup's tokens from `row` on, N rows of w; if it is not wide, both
 * warpgroups have the same tokens and join.  first: the pass's first group; piece: of a thin task.
 * Sums are this function's own for each shape: were they one array for all, ptxas would wait after
 * every product (C7511).
 *
 *    columns -> sums of x put down -> sums of 64 rows to scratch, by warp -> y (tile_end.cuh)
 *    thin, plain: sums joined and ended in registers instead (thin_end.cuh) */
template <int LOOP, int N>
MPK_FN void tile_run_as(const mpk_task &t, const tile_shape &s, const tile_pass &q, int first,
                        int row, int piece, mpk_ring *ring)
{
    constexpr bool WIDE = LOOP == TILE_WIDE_128 || LOOP == TILE_WIDE_192,
                   THIN = LOOP == TILE_THIN || LOOP == TILE_THIN_BOX;
    const int thread = mpk_thread(), half = thread / 128, warp = thread / 32 % 4;
    char *s_x = t.s_scratch + half * TILE_X;
    float *s_scale = tile_sums_at(t, WIDE ? half : 0), *s_sum = (float *)s_x + warp * 16 * TILE_ROW;
    float sum[N / 2];                /* as products leave them */
    row_sums of_x[2] = {};           /* of the thread's two rows */
    tile_copy c;                     /* what this thread brings of x */
    int sums_row = thread % 128 / 4; /* the first of the two */
    /* y from registers (thin_end.cuh); a constant where no task of the loop has another end */
    const bool others = TILE_HAS_END(LOOP, TILE_END_LOGITS) || TILE_HAS_END(LOOP, TILE_END_PAIRS),
               plain = !others || (s.peaks < 0 && s.activation == ACTIVATE_NONE),
               stores = THIN && TILE_HAS_END(LOOP, TILE_END_PLAIN) && plain;
    thin_residual residual = {};
    /* The residual is under way while the products run.  Where x comes by boxes the event is waited
     * for later, and the residual asked for after that. */
    if (LOOP != TILE_THIN_BOX) {
        tile_copy_begin(t, s, row, s_x, &c);
        if (stores)
            residual = thin_ask(t, s, q.groups, first, row);
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sum[i] = 0;
#if MPK_WGMMA
    if (LOOP == TILE_THIN_BOX) {
        const box_lot b = tile_thin_lot(s);
        tile_begin_thin_box(t, b, row);
        if (stores)
            residual = thin_ask(t, s, q.groups, first, row);
        tile_columns_thin_box(t, piece, q.groups, b, row, ring, sum, of_x);
        sums_row = tile_thin_row(thread % 128);
        if (thread % 128 == 0)
            mpk_w.box_fills[half] = b.fill + (rt_u32)b.steps;
    } else if (WIDE)
        tile_columns_wide<N>(s, q, c, s_x, ring, sum, of_x);
    else
#endif
        if (LOOP == TILE_THIN)
        tile_columns_thin(s, piece, q.groups, c, s_x, half, ring, sum, of_x);
    else
        tile_columns_narrow<N>(s, q, c, s_x, half, ring, sum, of_x);
    /* With all columns of its tokens a warpgroup knows their factors; with half of them it puts
     * down sums, which the other completes. */
    if (WIDE)
        tile_put_scales(s, of_x, sums_row, s_scale);
    else
        tile_put_sums(of_x, sums_row, tile_sums_at(t, half));
    if (stores) {
        float whole[2 * TILE_GROUPS] = {}; /* the sums of both warpgroups */
        const float scale = thin_join(t, s, q.groups, sum, whole);
        thin_finish(t, s, q.groups, first, row, residual, whole, scale);
        return;
    }
    if (WIDE)
        tile_meet(); /* stages of x give way to sums */
    else
        tile_join<N>(t, s, sum);
        /* Where they have joined, each warpgroup ends every other unit: those whose sums it has. */
#pragma unroll 1
    for (int u = WIDE ? 0 : half; u < N / 64 && TILE_GROUPS * u < q.groups; u += WIDE ? 1 : 2) {
        tile_put_unit<N>(sum, u, s_sum);
        __syncwarp();
        tile_finish_unit<LOOP, !THIN>(t, s, row + 16 * warp, first + TILE_GROUPS * u, s_sum,
                                      s_scale + 16 * warp);
        __syncwarp();
    }
    if (WIDE)
        tile_meet(); /* and sums to stages */
    else
        mpk_sync(); /* of both warpgroups: they share the factors */
}

/* A pass by the loop that it takes, if some task of this kernel takes it. */
template <int LOOP, int N>
MPK_FN void tile_run_if(const mpk_task &t, const tile_shape &s, const tile_pass &q, int first,
                        int row, int piece, int loop, mpk_ring *ring)
{
    if (TILE_HAS_LOOP(LOOP) && loop == LOOP)
        tile_run_as<LOOP, N>(t, s, q, first, row, piece, ring);
}

/* Does x of the thin task come by boxes?  Then its loop waits for the event.  A box is neighbouring
 * rows of x, so gathered rows have none. */
MPK_FN bool tile_has_thin_boxes(const mpk_task &t, const tile_shape &s, const tile_plan &p)
{
    return MPK_WGMMA && TILE_HAS_LOOP(TILE_THIN_BOX) && p.piece && t.e->maps && s.gathered < 0;
}

/* Called by linear_tile for a lot of a pass that comes neither by boxes nor by panels.  One of the
 * loops matches; those that no task of the kernel takes are not compiled. */
MPK_FN void tile_run(const mpk_task &t, const tile_shape &s, const tile_plan &p, const tile_pass &q,
                     int first, int row, mpk_ring *ring)
{
    const int loop = tile_loop_of(MPK_WGMMA, p.wide, tile_has_thin_boxes(t, s, p), p.piece != 0,
                                  q.groups, MPK_ONE_WIDE);
#if MPK_WGMMA
    tile_run_if<TILE_THIN_BOX, 64>(t, s, q, first, row, p.piece, loop, ring);
    tile_run_if<TILE_WIDE_128, 128>(t, s, q, first, row, 0, loop, ring);
    tile_run_if<TILE_WIDE_192, 192>(t, s, q, first, row, 0, loop, ring);
    tile_run_if<TILE_NARROW_192, 192>(t, s, q, first, row, 0, loop, ring);
#endif
    tile_run_if<TILE_THIN, 64>(t, s, q, first, row, p.piece, loop, ring);
    tile_run_if<TILE_NARROW_128, 128>(t, s, q, first, row, 0, loop, ring);
}

enum { TILE_LOTS = 1 << 14 /* more than a task has: 64 or 128 tokens each */ };
#define TILE_NO_PLACE 0xffffffffu /* after the last lot */

/* All body threads.  The task waits for its event where it first reads x, and triggers itself.
 * `place` is the group of the task at which the pass begins, times TILE_LOTS, and the lot: one
 * register.  Part of the kernel's own function or of its unit's: in one that another calls, ptxas
 * would wait after every product (C7510). */
MPK_FN void linear_tile(const mpk_task &t, const tile_shape &s)
{
    const int half = mpk_thread() / 128; /* the warpgroup */
    mpk_ring ring = *t.ring;
    if (MPK_REGIMES > 1) { /* no JIT tasks, one ring: constants take no registers */
        ring.first = 0;
        ring.n = MPK_PAGES;
    }
    for (rt_u32 place = 0; place != TILE_NO_PLACE;) {
        /* Worked out again each time: the products want the registers. */
        const tile_plan p = tile_plan_of(t.e, s);
        const int lot = (int)(place % TILE_LOTS), at = (int)(place / TILE_LOTS),
                  row = (int)t.e->lo[0] + 2 * TILE_TOKENS * lot;
        const bool is_first = place == 0, dead = row >= (int)t.hi0;
        /* The last lot is known before its products: nothing stands between it and the trigger. */
        const rt_u32 next = (rt_u32)(at + p.per_pass) * TILE_LOTS;
        if (lot + 1 < p.lots)
            place++;
        else
            place = at + p.per_pass < p.groups ? next : TILE_NO_PLACE;
        const tile_pass q = tile_pass_at(p, s, at);
        const bool boxed = TILE_ALL_SHARE || p.boxed;
        /* Loops by boxes wait themselves, once their stages of x are ready for the first box. */
        if (is_first && (dead || !(boxed || tile_has_thin_boxes(t, s, p))))
            mpk_wait(t);
        /* No token of the lot is alive, but its pages have been loaded: let them go. */
        if (dead && !boxed && p.piece && (TILE_HAS_LOOP(TILE_THIN) || TILE_HAS_LOOP(TILE_THIN_BOX)))
            tile_drop_thin(s, p.piece, &ring);
#if MPK_MAPS
        else if (dead && boxed)
            box_drop(q, &ring);
#endif
        else if (dead)
            tile_drop(q, &ring);
#if MPK_MAPS
        else if (boxed)
            box_run(t, s, p, q, at, lot, row, &ring);
#endif
#if !MPK_WGMMA
        else if (TILE_HAS_LOOP(TILE_PANEL) && p.broad)
            panel_run(t, s, p, q, at, lot, row, &ring);
#endif
        else
            tile_run(t, s, p, q, p.first + at, p.wide ? row + half * TILE_TOKENS : row, &ring);
    }
    *t.ring = ring;
    mpk_trigger(t);
}

#endif
