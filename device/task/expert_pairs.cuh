/* expert_pairs.cuh - the pairs of a range of tokens, sorted by expert and cut into chunks, for the
 * bodies of expert_stream.cuh: lists in scratch (expert_places); and the norms of its tokens.
 *
 * In: ids and weights, as operands.  Out: each pair's expert and weight, the pairs by expert, the
 * chunks, and of strips of two groups where the rows of x lie; 1 / rms of tokens.  Cost: a ballot
 * for each bit of an expert's number and 32 pairs, twice.
 */
#ifndef TASK_EXPERT_PAIRS_CUH
#define TASK_EXPERT_PAIRS_CUH

#include "task/expert_stream_load.cuh"
#include "task/linear_stream.cuh"
#include "tile/prefix.cuh"

/* ---- pairs ---- */

template <typename type> MPK_FN type *expert_at(const mpk_task &t, int place)
{
    return (type *)(t.s_scratch + place);
}
/* In scratch, apart for even and odd tiles: the warps' sums of a tile (parts), and the sums times
 * their pairs' weights (totals).  So a warp may begin a tile while others end the one before. */
template <int WIDE> MPK_FN char *expert_parts(const mpk_task &t, int tile)
{
    return t.s_scratch + tile % 2 * expert_sizes<WIDE>::PARTS;
}
MPK_FN float *expert_totals(const mpk_task &t, const expert_shape &s, int tile)
{
    return expert_at<float>(t, s.at.totals) +
           tile % 2 * (expert_has_sides(s) ? 2 * EXPERT_TOTALS : EXPERT_TOTALS);
}
/* The pair at place i of the pairs sorted by expert; chunk i: its first place, and in the upper
 * half how many pairs it has.  Both written by expert_sort, before its last barrier. */
MPK_FN rt_u32 expert_pair(const mpk_task &t, const expert_shape &s, rt_u32 i)
{
    return expert_at<const rt_u16>(t, s.at.order)[i];
}
MPK_FN rt_u32 expert_chunk(const mpk_task &t, const expert_shape &s, int i)
{
    return expert_at<const rt_u32>(t, s.at.chunks)[i];
}

/* The token of a pair, counted from the range's first: pair / of_token as a multiplication, exact
 * for the 2,048 pairs of a range (expert_shape.inverse). */
MPK_FN rt_u32 expert_token(const expert_shape &s, rt_u32 pair)
{
    return pair * s.inverse >> 20;
}

/* A word of an operand, of which v has been loaded.  If the operand is carried, the word is polled
 * until it has been written.  at: words from the operand's first. */
MPK_FN rt_u32 expert_word(const mpk_task &t, int operand, rt_u64 at, rt_u32 v)
{
    return mpk_carries(t, operand) ? mpk_carried_word(mpk_at<const rt_u32>(t, operand) + at, v) : v;
}

/* Store zeros in the row of a pair whose expert does not exist: its columns of the task's box.  No
 * chunk has such a pair, and a row that no task writes would keep an older step's. */
MPK_FN void expert_put_zeros(const mpk_task &t, const expert_shape &s, rt_u64 pair)
{
    rt_u16 *y = mpk_at<rt_u16>(t, s.of.y) + pair * s.of.rows; /* the pair's row */
    for (rt_u32 c = t.e->lo[2]; c < t.e->hi[2]; c++)
        y[c] = 0;
}

/* All threads: copy experts and scales of a range's pairs to scratch; poll those that are carried.
 * Read by all after expert_sort's first barrier. */
MPK_FN void expert_take_pairs(const mpk_task &t, const expert_shape &s, rt_u32 first, int pairs)
{
#pragma unroll 1
    for (int p = mpk_thread(); p < pairs; p += MPK_THREADS) {
        const rt_u64 at = (rt_u64)first * s.of_token + p; /* of the step */
        /* both are requested before one is waited for */
        const rt_u32 shown = ptx_load_word(mpk_at<const rt_u32>(t, s.ids) + at),
                     weight =
                         s.scale >= 0 ? ptx_load_word(mpk_at<const rt_u32>(t, s.scale) + at) : 0;
        const rt_u32 id = expert_word(t, s.ids, at, shown);
        expert_at<rt_u16>(t, s.at.ids)[p] = id < (rt_u32)s.experts ? (rt_u16)id : EXPERT_NOBODY;
        if (s.scale >= 0)
            expert_at<float>(t, s.at.weights)[p] =
                __uint_as_float(expert_word(t, s.scale, at, weight));
        else if (id >= (rt_u32)s.experts)
            expert_put_zeros(t, s, at);
    }
}

/* Where the row of a pair begins in x, in entries from the row of the range's first token: of the
 * pair itself after a first product, else of its token, which its pairs share; of ROWS by
 * strides. */
template <int KIND> MPK_FN rt_u32 expert_row_at(const expert_shape &s, rt_u32 pair)
{
    if (KIND == EXPERT_KIND_ROWS) {
        const expert_rows_shape &r = (const expert_rows_shape &)s;
        const rt_u32 token = expert_token(s, pair);
        return token * r.token + (pair - token * s.of_token) * r.row;
    }
    return (s.split ? pair : expert_token(s, pair)) * s.of.columns;
}

/* Of strips of two groups: where rows of x begin, in bytes, of each chunk EXPERT_FEW_ROWS, and of
 * EXPERT_AFTER chunks after the last one; STREAM_NONE: there is no such row.  Each lane of a
 * product reads its row's word two chunks ahead (expert_strips), instead of going from chunk to
 * pair to token to row. */
MPK_FN rt_u32 *expert_rows(const mpk_task &t, const expert_shape &s)
{
    return expert_at<rt_u32>(t, s.at.order + (s.range * s.of_token * 2 + 3) / 4 * 4);
}

/* All threads: thread e lists the pairs of expert e in their order, and its chunks.  Returns how
 * many chunks there are.  It is a counting sort: count, prefix sum over experts, place.  Ids are
 * looked at twice, 32 at a time by ballots, so a thread counts its expert's without an atomic
 * addition, and the order is that of pairs. */
template <int WIDE, int KIND>
MPK_FN int expert_sort(const mpk_task &t, const expert_shape &s, int pairs)
{
    const rt_u16 *s_ids = expert_at<const rt_u16>(t, s.at.ids); /* of the range's pairs */
    const rt_u32 rows = expert_sizes<WIDE>::ROWS, e = (rt_u32)mpk_thread(), lane = e % 32;
    rt_u32 n = 0, all; /* pairs of this thread's expert; of all, chunks above */
    mpk_sync();
#pragma unroll 1
    for (int p = 0; p < pairs; p += 32)
        n += __popc(
            expert_with(expert_show(p + (int)lane < pairs ? s_ids[p + lane] : EXPERT_NOBODY), e));
    /* One prefix sum for two counts of 16 bits, pairs and chunks: neither half overflows, since a
     * range has at most 2,048 pairs. */
    const rt_u32 before = mpk_prefix_threads(n | (n + rows - 1) / rows << 16,
                                             expert_at<rt_u32>(t, s.at.counts), &all);
    rt_u32 place = before & 0xffff, chunk = before >> 16; /* where this expert's begin */
    rt_u32 *row = expert_rows(t, s) + chunk * rows;       /* of strips of two groups */
    const bool lists_rows = MPK_BULK && !WIDE && expert_has_sides(s);
    for (rt_u32 i = 0; i < n; i += rows)
        expert_at<rt_u32>(t, s.at.chunks)[chunk++] = (place + i) | mpk_smaller(n - i, rows) << 16;
    if (lists_rows) {
        /* The expert's last chunk is filled up; after all chunks come EXPERT_AFTER whose rows are
         * none, since expert_strips reads ahead of itself. */
        for (rt_u32 i = n; i % rows; i++)
            row[i] = STREAM_NONE;
        if (e < EXPERT_AFTER * rows)
            expert_rows(t, s)[(all >> 16) * rows + e] = STREAM_NONE;
    }
#pragma unroll 1
    for (int p = 0; p < pairs; p += 32) {
        rt_u32 mine =
            expert_with(expert_show(p + (int)lane < pairs ? s_ids[p + lane] : EXPERT_NOBODY), e);
        for (; mine; mine &= mine - 1) {
            const rt_u32 pair = (rt_u32)(p + __ffs((int)mine) - 1);
            expert_at<rt_u16>(t, s.at.order)[place++] = (rt_u16)pair;
            if (lists_rows)
                *row++ = expert_row_at<KIND>(s, pair) * 2;
        }
        __syncwarp();
    }
    mpk_sync();
    return (int)(all >> 16);
}

/* ---- norms ---- */

/* Store 1 / rms of the rows of x of n tokens from `first` on.  A warp takes a row; a lane adds its
 * pieces of 8 columns in rising order, four of them in flight.  Read after expert_sort's
 * barriers. */
MPK_FN void expert_put_norms(const mpk_task &t, const expert_shape &s, rt_u32 first, int n)
{
    const int warp = mpk_thread() / 32, lane = mpk_thread() % 32, pieces = s.of.columns / 8;
    const bool carried = mpk_carries(t, s.of.x); /* then words are polled */
#pragma unroll 1
    for (int token = warp; token < n; token += MPK_WARPS) {
        const char *from =
            mpk_at<const char>(t, s.of.x) + (rt_u64)(first + token) * s.of.columns * 2;
        float sum = 0; /* of the lane's pieces, in their order */
#pragma unroll 1
        for (int i = lane; i < pieces; i += 128) {
            mpk_words v[4]; /* in flight together */
#pragma unroll
            for (int k = 0; k < 4; k++) {
                v[k] = {0, 0, 0, 0};
                ptx_load_words_if(from + (i + k * 32) * 16, i + k * 32 < pieces, &v[k]);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                while (carried && mpk_is_empty(v[k]) && !ptx_load_flag(&mpk_w.abort))
                    v[k] = ptx_load_words(from + (i + k * 32) * 16);
                const rt_u32 words[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    const float a = ptx_low_bf16(words[w]), b = ptx_high_bf16(words[w]);
                    sum = fmaf(b, b, fmaf(a, a, sum));
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int d = 16; d; d /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (lane == 0)
            expert_at<float>(t, s.at.norms)[token] = rsqrtf(sum * s.of.columns_inverse + s.of.eps);
    }
}

#endif
