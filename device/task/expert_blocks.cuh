/* expert_blocks.cuh - the products of expert_stream.cuh with weights that stay in GGUF blocks.
 *
 * Input: the chunks of a tile, their pieces of x (expert_x.cuh), and pages of weights in blocks
 * (rt/rt_blocks.h) as expert_stream_load.cuh brings them.  Output: the warps' sums of each chunk's
 * groups, as blocks_total reads them.
 *
 * Idea: a chunk has one expert and at most 8 pairs (WIDE: 16), which is the second operand of
 * blocks.cuh; two groups of 8 rows that follow each other are the first one.  A page of x is the
 * 128 columns that a warp has of a slab.  It is made ready once, and then multiplied with all
 * groups of the block: times the norm's weight of its columns, which cannot be folded into blocks,
 * and its sums of 32 columns, which MXFP4 does without.  The sums of a chunk's pages are added in
 * shared memory, where each lane finds its own.
 *
 * A row's last slab ends with its last piece of 128 columns; warps without a piece take the page
 * and give it back.  Where a task has an odd number of groups, the last one is multiplied as two
 * would be.
 *
 * Cost: of 16 rows and 1,024 columns what linear_stream pays; beside that x of a chunk and a page
 * some 200 instructions a warp, and 100 for a norm.
 */
#ifndef TASK_EXPERT_BLOCKS_CUH
#define TASK_EXPERT_BLOCKS_CUH

#include "task/expert_x.cuh"

/* The norm's weight in scratch, after the lists: f32[1,024 pages], zeros after the last column. */
MPK_FN float *expert_norm(const mpk_task &t, const expert_shape &s)
{
    return expert_at<float>(t, (s.at.order + s.range * s.of_token * 2 + 15) / 16 * 16);
}

/* All threads: copy it there, once a task, since every piece of x is multiplied by a part of it.
 * Read after expert_sort's barriers. */
MPK_FN void expert_keep_norm(const mpk_task &t, const expert_shape &s)
{
    float *s_norm = expert_norm(t, s);
#pragma unroll 1
    for (int i = mpk_thread() * 8; i < s.of.pages * RT_SLAB_COLUMNS; i += MPK_THREADS * 8) {
        float v[8] = {};
        if (i < s.of.columns)
            stream_norm(t, s.of, i, v);
        *(float4 *)(s_norm + i) = make_float4(v[0], v[1], v[2], v[3]);
        *(float4 *)(s_norm + i + 4) = make_float4(v[4], v[5], v[6], v[7]);
    }
}

/* As stream_apply_norm, from there. */
template <int WIDE>
MPK_FN void expert_apply_norm(const mpk_task &t, const expert_shape &s, int page,
                              stream_x<1, WIDE> &x)
{
    const int thread = mpk_thread();
    const float *s_norm = expert_norm(t, s) + page * RT_SLAB_COLUMNS +
                          thread / 32 * RT_PIECE_COLUMNS + thread % 4 * 8;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float4 a = ((const float4 *)s_norm)[8 * j], b = ((const float4 *)s_norm)[8 * j + 1];
#pragma unroll
        for (int m = 0; m <= WIDE; m++) {
            const mpk_words v = x.at[0][j][m];
            x.at[0][j][m] = {stream_scale_word(v.x, a.x, a.y), stream_scale_word(v.y, a.z, a.w),
                             stream_scale_word(v.z, b.x, b.y), stream_scale_word(v.w, b.z, b.w)};
        }
    }
}

/* x of a page of a chunk as products with blocks take it, and its sums of 32 columns.  In this
 * order: as in stream_prepare_blocks. */
template <int WIDE, int FORM>
MPK_FN void expert_prepare(const mpk_task &t, const expert_shape &s, int page, stream_x<1, WIDE> &x,
                           blocks_sums<1, WIDE> &sums)
{
    const int thread = mpk_thread();
    if (s.of.norm)
        expert_apply_norm<WIDE>(t, s, page, x);
    if (FORM != RT_BLOCKS_MX4)
        blocks_add_up<1, WIDE>(x, thread, sums);
    if (FORM == RT_BLOCKS_8K)
        blocks_exchange<1, WIDE>(1, thread, x);
}

/* Multiply a piece of x that has been requested with all groups of the block; sums from `slot` on.
 * The next piece is requested before the products begin: they take longer than its loads. */
template <int WIDE, int KIND, int FORM>
MPK_FN void expert_piece_blocks(const mpk_task &t, const expert_shape &s, expert_work<WIDE> *w,
                                mpk_ring *ring, char *s_parts, const blocks_numbers &numbers,
                                int slot, int page, expert_ahead<WIDE> *a)
{
    constexpr int GROUP_BYTES = expert_sizes<WIDE>::PARTS / expert_sizes<WIDE>::SLOTS;
    const int thread = mpk_thread();
    const bool has_piece =
        page + 1 < s.of.pages || thread / 32 < expert_last_pieces(s.of.columns, s.of.pages);
    blocks_sums<1, WIDE> sums = {};
    expert_await<WIDE>(t, s, *w, page, a);
    stream_x<1, WIDE> x = a->x; /* a copy: a takes the next piece */
    expert_ask<WIDE, KIND>(t, s, w, a);
    expert_prepare<WIDE, FORM>(t, s, page, x, sums);
    char *s_pair = s_parts + slot * GROUP_BYTES; /* parts of the two groups at hand */
#pragma unroll 1
    for (int left = w->n; left > 0; left -= 2, s_pair += 2 * GROUP_BYTES) {
        const int here = left < 2 ? 1 : 2;
        float total[1 + WIDE][4] = {}; /* of the pages so far */
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (page && k < here)
                blocks_take<WIDE>(s_pair, k, thread, total, k);
        stream_page_blocks<WIDE, FORM>(ring, x.at[0], sums.at[0], numbers, here, thread, total,
                                       has_piece);
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (k < here)
                blocks_put<WIDE>(s_pair, k, thread, total, k);
    }
}

/* Multiply all pieces of a tile of n chunks.  a: x of the next one. */
template <int WIDE, int KIND, int FORM>
MPK_FN void expert_tile_blocks(const mpk_task &t, const expert_shape &s, expert_work<WIDE> *w,
                               mpk_ring *ring, char *s_parts, int n, expert_ahead<WIDE> *a)
{
    const blocks_numbers numbers = blocks_constants(s.of.zero);
#pragma unroll 1
    for (int slot = 0; slot < n * w->n; slot += w->n)
#pragma unroll 1
        for (int p = 0; p < s.of.pages; p++)
            expert_piece_blocks<WIDE, KIND, FORM>(t, s, w, ring, s_parts, numbers, slot, p, a);
}

#endif
