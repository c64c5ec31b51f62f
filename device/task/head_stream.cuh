/* head_stream.cuh - products of heads with a weight each, of few tokens: weights stream through the
 * page ring, x comes straight to registers.
 *
 * head_linear: y[t, h] = w[h] x[t, h], x bf16 or f16 (tile/halves.cuh) at any distance between
 * heads and tokens, w packed (gen/device_body.h), the heads' rows one after the other, sums f32, y
 * dense. Which weight a token needs is known when the task is cut, so there are no ids, and a task
 * is any heads and rows of any tokens.
 *
 * A unit is 8 rows of w times a chunk of 128 columns, 2 KB in a run; a group of 8 rows is `chunks`
 * units in a run.  A page has as many whole groups of a head as it has room for:
 *
 *    512 rows of 128 columns    page: 8 groups of one unit
 *    128 rows of 512 columns    page: 2 groups of four units
 *
 * Warp i takes unit i of a page into registers, gives the page back, and multiplies the unit with
 * 16 tokens at a time; x of the next 16 is under way meanwhile.  As in linear_stream.cuh the 16
 * bytes that a lane has of w and of x are fed as the words of two products, so no lane needs
 * another's.  Sums of chunks are added in the order of columns, whichever warp has made them:
 * through scratch, for 64 tokens at a time, unless a group is one unit.  So a token's bits depend
 * on its row alone.
 *
 * Cost of a page and 16 tokens for a warp: 4 loads of w from shared memory, 8 of x, 8 products; x
 * comes from L1 but for the first warp that wants it.
 */
#ifndef TASK_HEAD_STREAM_CUH
#define TASK_HEAD_STREAM_CUH

#include "shape/head_shape.h"
#include "tile/halves.cuh"
#include "tile/ring.cuh"

/* The groups of 8 rows that the task touches in each of its heads, also in part. */
struct head_groups {
    int first, end;
};
MPK_FN head_groups head_groups_of(const rt_entry *e)
{
    return {(int)(e->lo[2] / 8), (int)((e->hi[2] + 7) / 8)};
}
/* Groups of a page; its units are of one head. */
MPK_FN int head_of_page(const head_shape &s)
{
    return HEAD_UNITS / s.chunks;
}
/* The first unit of a group, in the packed weights. */
MPK_FN const char *head_unit_at(const rt_entry *e, const head_shape &s, int head, int group)
{
    return (const char *)e->at[RT_PACKED] + ((rt_u64)head * (rt_u32)(s.rows / 8) + (rt_u32)group) *
                                                (rt_u32)s.chunks * HEAD_UNIT_BYTES;
}

/* The leading thread: head by head, group by group. */
MPK_FN void head_load_all(mpk_load &l, const head_shape &s)
{
    const head_groups g = head_groups_of(l.e);
    const int at_once = head_of_page(s);
#pragma unroll 1
    for (int head = (int)l.e->lo[1]; head < (int)l.e->hi[1]; head++)
#pragma unroll 1
        for (int group = g.first; group < g.end; group += at_once) {
            const int n = g.end - group < at_once ? g.end - group : at_once;
            if (!load_from(&l, head_unit_at(l.e, s, head, group),
                           (rt_u32)(n * s.chunks) * HEAD_UNIT_BYTES))
                return;
        }
}
MPK_FN void head_stream_load(mpk_load &l, const head_shape &s)
{
    if (load_leads()) {
        head_load_all(l, s);
        load_tell(&l);
    }
    load_follow(&l);
}

/* ---- what both bodies of heads end with ---- */

/* Where a column of a row of y lies. */
MPK_FN char *head_y(const mpk_task &t, const head_shape &s, int token, int head, int column)
{
    const rt_u64 row = (rt_u64)(rt_u32)token * (rt_u32)s.heads + (rt_u32)head;
    return mpk_at<char>(t, s.y) + (row * (rt_u32)s.rows + (rt_u32)column) * 2;
}
/* Two neighbouring columns of a row of y, those of which are stored that the task has. */
MPK_FN void head_store_two(const mpk_task &t, const head_shape &s, int token, int head, int column,
                           rt_u32 both)
{
    char *to = head_y(t, s, token, head, column);
    const int lo = (int)t.e->lo[2], hi = (int)t.e->hi[2];
    if (column >= lo && column + 1 < hi) {
        *(rt_u32 *)to = both;
        return;
    }
    if (column >= lo && column < hi)
        *(rt_u16 *)to = (rt_u16)both;
    if (column + 1 >= lo && column + 1 < hi)
        *(rt_u16 *)(to + 2) = (rt_u16)(both >> 16);
}

/* ---- products ---- */

/* x of 16 tokens and a chunk, as this lane multiplies it: of tokens g and g + 8, for each block of
 * 32 columns the eight from 8 c on (g = lane / 4, c = lane % 4). */
struct head_x {
    mpk_words at[4][2];
};
/* Ask for it.  tokens: of the 16, those that are there; the others are zeros, and so are columns
 * after the last one. */
MPK_FN void head_ask(const mpk_task &t, const head_shape &s, int first, int tokens, int head,
                     int chunk, head_x *x)
{
    const int lane = mpk_thread() % 32, g = lane / 4,
              column = chunk * HEAD_CHUNK + lane % 4 * 8; /* of the first block */
    const char *from = mpk_at<const char>(t, HEAD_X) +
                       ((rt_i64)(first + g) * s.x_token + (rt_i64)head * s.x_head + column) * 2;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x->at[j][m] = {0, 0, 0, 0};
            if (g + 8 * m < tokens && column + 32 * j < s.columns)
                x->at[j][m] = *(const mpk_words *)(from + (rt_i64)m * 8 * s.x_token * 2 + j * 64);
        }
}

/* The warp's unit times x: columns 2c, 2c + 1 of token g, then of token g + 8.  Even and odd
 * products have sums of their own, so that none waits for the one before. */
MPK_FN void head_multiply(const mpk_words *w, const head_x &x, float *sum)
{
    float first[4] = {0, 0, 0, 0}, second[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const mpk_words a = x.at[j][0], b = x.at[j][1];
        halves_multiply(first, a.x, b.x, a.y, b.y, w[j].x, w[j].y);
        halves_multiply(second, a.z, b.z, a.w, b.w, w[j].z, w[j].w);
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        sum[e] = first[e] + second[e];
}

/* A group's columns of 16 tokens. */
MPK_FN void head_store(const mpk_task &t, const head_shape &s, int first, int tokens, int head,
                       int group, const float *sum)
{
    const int lane = mpk_thread() % 32, g = lane / 4, column = group * 8 + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < 2; m++)
        if (g + 8 * m < tokens)
            head_store_two(t, s, first + g + 8 * m, head, column,
                           halves_pack(sum[2 * m], sum[2 * m + 1]));
}

/* A page: `groups` groups from `group` on, of a head. */
struct head_page {
    int head, group, groups;
};
/* All warps: of lots 0 to lots - 1 from token `first` on, whose units' sums are in scratch, each
 * group's are added up and stored, a group of a lot a warp. */
MPK_FN void head_end(const mpk_task &t, const head_shape &s, const head_page &p, int first,
                     int tokens, int lots, const float *s_sums)
{
    const int warp = mpk_thread() / 32, lane = mpk_thread() % 32;
#pragma unroll 1
    for (int i = warp; i < lots * p.groups; i += MPK_WARPS) {
        const int lot = i / p.groups, group = i % p.groups;
        const float4 *from =
            (const float4 *)s_sums + (lot * HEAD_UNITS + group * s.chunks) * 32 + lane;
        float4 sum = *from;
#pragma unroll 1
        for (int k = 1; k < s.chunks; k++) {
            const float4 more = from[k * 32];
            sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
        }
        const float all[4] = {sum.x, sum.y, sum.z, sum.w};
        head_store(t, s, first + lot * 16, tokens - lot * 16, p.head, p.group + group, all);
    }
}

/* All threads: a page times all tokens that are alive, first to end - 1.  turn: counts the rounds
 * of HEAD_LOTS lots that have left sums in scratch; two rounds in turn have room there, so that one
 * barrier a round is enough. */
MPK_FN void head_run_page(const mpk_task &t, const head_shape &s, const head_page &p, int first,
                          int end, mpk_ring *ring, int *turn)
{
    const int warp = mpk_thread() / 32, lane = mpk_thread() % 32, g = lane / 4, c = lane % 4;
    const bool mine = warp < p.groups * s.chunks;
    const int chunk = warp % s.chunks;
    head_x x = {}, next = {};
    mpk_words w[4];
    rt_u32 number;
    if (mine)
        head_ask(t, s, first, end - first, p.head, chunk, &next);
    const char *s_w = ring_take(ring, &number) + warp * HEAD_UNIT_BYTES + g * 64 + (c ^ g / 2) * 16;
#pragma unroll
    for (int j = 0; j < 4; j++)
        w[j] = *(const mpk_words *)(s_w + j * 512); /* of a unit that is not there: not used */
    ring_release(number);
#pragma unroll 1
    for (int round = first; round < end; round += HEAD_LOTS * 16, ++*turn) {
        float *s_sums =
            (float *)(t.s_scratch + *turn % 2 * (HEAD_LOTS * HEAD_LOT_BYTES)); /* of this round */
        const int left = end - round, lots = left < HEAD_LOTS * 16 ? (left + 15) / 16 : HEAD_LOTS;
#pragma unroll 1
        for (int lot = 0; mine && lot < lots; lot++) {
            const int token = round + lot * 16;
            float sum[4];
            x = next;
            if (token + 16 < end)
                head_ask(t, s, token + 16, end - token - 16, p.head, chunk, &next);
            head_multiply(w, x, sum);
            if (s.chunks == 1)
                head_store(t, s, token, end - token, p.head, p.group + warp, sum);
            else
                ((float4 *)s_sums)[(lot * HEAD_UNITS + warp) * 32 + lane] =
                    make_float4(sum[0], sum[1], sum[2], sum[3]);
        }
        if (s.chunks == 1) /* the same in all threads */
            continue;
        mpk_sync();
        head_end(t, s, p, round, left, lots, s_sums);
    }
}

/* The body, which waits for its event and triggers its own. */
MPK_FN void head_stream(const mpk_task &t, const head_shape &s)
{
    mpk_ring ring = *t.ring;
    const head_groups g = head_groups_of(t.e);
    const int at_once = head_of_page(s);
    int turn = 0;
    mpk_wait(t);
    const int end = (int)mpk_end(t);
#pragma unroll 1
    for (int head = (int)t.e->lo[1]; head < (int)t.e->hi[1]; head++)
#pragma unroll 1
        for (int group = g.first; group < g.end; group += at_once) {
            const head_page p = {head, group, g.end - group < at_once ? g.end - group : at_once};
            head_run_page(t, s, p, (int)t.e->lo[0], end, &ring, &turn);
        }
    *t.ring = ring;
    mpk_trigger(t);
}

#endif
