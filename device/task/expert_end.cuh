/* expert_end.cuh - the end of a tile of a product of many tokens with experts: sums become rows of
 * y, one for each pair of a token and one of its experts.
 *
 * Input: sums of a warp's 16 pairs and 64 packed rows in scratch (tile_end.cuh), a factor for each
 * pair, the list of pairs.  Output: columns of y, with biases of the expert and gated as the shape
 * says.  Called by expert_tile.cuh and expert_unpack.cuh.
 */
#ifndef TASK_EXPERT_END_CUH
#define TASK_EXPERT_END_CUH

#include "task/expert_plan.cuh"

#if MPK_WGMMA

/* The bias of packed row `row` of an expert; 0 where there is none, and after the last row. */
MPK_FN float expert_tile_bias(const mpk_task &t, const expert_tile_ends_shape &e, int expert,
                              int row)
{
    const int paired = e.s.activation != ACTIVATE_NONE, i = row & paired, column = row >> paired;
    if (e.bias[i] < 0 || column >= e.s.rows)
        return 0;
    const rt_u32 at = (rt_u32)expert * (rt_u32)e.s.rows + (rt_u32)column;
    return e.type[i] ? mpk_at<const float>(t, e.bias[i])[at]
                     : ptx_low_bf16(mpk_at<const rt_u16>(t, e.bias[i])[at]);
}

/* Biases of this thread's rows of its warpgroup's, every 128th: requested before the products, put
 * down after them.  tile: the first packed group, of all experts'; row: the warpgroup's first of
 * the tile. */
template <int N>
MPK_FN void expert_tile_ask_biases(const mpk_task &t, const expert_tile_ends_shape &e, rt_u32 tile,
                                   int row, float *bias)
{
    const int expert = (int)tile / e.s.groups, first = (int)tile % e.s.groups * 8 + row;
#pragma unroll
    for (int i = 0; i < N / 128; i++)
        bias[i] = expert_tile_bias(t, e, expert, first + 128 * i + mpk_thread() % 128);
}

/* Four columns of y from eight sums: a gate's and what it lets through in turn.  limit: with ENDS;
 * sends: rt_entry.sends.  Stored as one piece of 8 bytes. */
template <int ENDS>
MPK_FN void expert_tile_store_pairs(rt_u32 sends, rt_u16 *y, const tile_eight &v, int activation,
                                    float limit)
{
    float a[4]; /* columns of y */
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = ENDS && activation == ACTIVATE_SWIGLU_OAI
                   ? activate_limited(v.at[2 * i], v.at[2 * i + 1], limit)
                   : tile_activate(activation, v.at[2 * i]) * v.at[2 * i + 1];
    const rt_u32 low = ptx_pack_bf16(a[0], a[1]), high = ptx_pack_bf16(a[2], a[3]);
    ptx_store_two_words(y, low, high);
    mpk_send_two_words(sends, y, low, high);
}

/* Scratch to y: a warp's 16 rows and 8 groups from `group` of the expert on; s_list: pairs of
 * these rows, n of them.  A lane has one group of every fourth row.  With ENDS s is that of an
 * expert_tile_ends_shape, and s_bias has the biases of the 8 groups. */
template <int ENDS>
MPK_FN void expert_tile_finish(const mpk_task &t, const expert_tile_shape &s, const rt_u32 *s_list,
                               int n, int group, const float *s_sum, const float *s_scale,
                               const float *s_bias)
{
    const int lane = mpk_thread() % 32, row = lane / 8, activation = s.activation;
    const int column = (group + lane % 8) << (activation != ACTIVATE_NONE ? 2 : 3);
    if (column >= s.rows)
        return;
    rt_u16 *y = mpk_at<rt_u16>(t, s.y) +
                (rt_u64)mpk_lo(t, 0) * (rt_u32)s.of_token * (rt_u32)s.rows + column;
    s_sum += row * TILE_ROW + lane % 8 * 8;
    const float limit = ENDS ? ((const expert_tile_ends_shape &)s).limit : 0;
    const rt_u32 sends = t.e->sends;
#pragma unroll 1
    for (int i = row; i < 16 && i < n; i += 4, s_sum += 4 * TILE_ROW) {
        tile_eight v = box_get(s_sum, s_scale + i);
        if (ENDS)
#pragma unroll
            for (int k = 0; k < 8; k++)
                v.at[k] += s_bias[lane % 8 * 8 + k];
        rt_u16 *to = y + (rt_u64)s_list[i] * (rt_u32)s.rows;
        if (activation != ACTIVATE_NONE)
            expert_tile_store_pairs<ENDS>(sends, to, v, activation, limit);
        else
            box_store(sends, (rt_u64)to, v, {0, 0, 0, 0}, false);
    }
}

#endif

#endif
