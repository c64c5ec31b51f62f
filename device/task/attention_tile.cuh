/* attention_tile.cuh - attention of many tokens over the paged bf16 cache (paper §6.1), keys and values read once for
 * as many queries as possible.
 *
 * The operator attention.  Tokens of a task that are neighbours and of one slot are taken together; the rows of the
 * tensor-core operand are their query heads that share a KV head, up to 128 rows, 16 for each warp.  All warps walk
 * along the positions that any of the rows sees, 32 at a time, which come by cp.async while the 32 before are worked
 * on. Up to 64 rows, pairs of warps share rows: one takes the first 16 of 32 positions, the other the rest, and they
 * are put together at the end in that order.  So a token that stands alone (one of a decoding slot) works as well.
 *
 * Keys and values lie in fragment order (tile/kv.cuh): operands are single shared loads, and the scores of q k^T are
 * already the operand of p v.  Softmax is online in f32, in powers of 2.
 * Cost of 16 rows and 16 positions: 4 K / 16 products, 64 K bytes of shared memory read.
 */
#ifndef TASK_ATTENTION_TILE_CUH
#define TASK_ATTENTION_TILE_CUH

#include "ptx/matrix.cuh"
#include "tile/kv.cuh"
#include "tile/worker.cuh"

enum { ATTEND_PAGE = 64, ATTEND_STEP = 32, ATTEND_ROWS = 128 };

struct attend_shape {
    int heads, kv_heads;
    int slots, slot_pages, n_pages, window;
    float scale; /* with log2(e) */
};

/* Operands in rt_entry.at. */
enum { ATTEND_Q, ATTEND_K, ATTEND_V, ATTEND_POSITIONS, ATTEND_SLOTS, ATTEND_PAGES, ATTEND_Y };

/* Tokens first .. last - 1 of one slot, query heads head .. head + n_heads - 1 of one KV head. */
struct attend_chunk {
    int slot, first, last, head, n_heads, kv_head;
    int step, n_steps; /* of 32 positions each: those that any row sees */
    int row_warps;     /* 1, 2, 4, 8: warps that have rows of their own */
};

/* What a lane has of its two rows, 16 warp + g and + 8. */
template <int K> struct attend_rows {
    int position[2], from[2];   /* the positions that they see; -1: none */
    rt_u32 query[K / 32][2][4]; /* dims 32 d + 8 c ... of each */
    float most[2], sum[2];
    float out[K / 8][4]; /* dims 8 n + 2c, + 1 of each */
};

MPK_FN int attend_from(const attend_shape &s, int position)
{
    return s.window > 0 && position >= s.window ? position - s.window + 1 : 0;
}

/* How many tokens from `first` on are of the same slot; the same in all threads. */
MPK_FN int attend_run(const mpk_task &t, int first, int end)
{
    const int *slots = mpk_at<const int>(t, ATTEND_SLOTS), slot = slots[first], lane = (int)threadIdx.x % 32;
    int n = 0;
    for (;;) {
        const int i = first + n + lane;
        const rt_u32 other = __ballot_sync(0xffffffffu, i >= end || slots[i] != slot);
        if (other)
            return n + __ffs((int)other) - 1;
        n += 32;
    }
}

/* Which positions the chunk's rows see: the same in all threads. */
MPK_FN void attend_find(const mpk_task &t, const attend_shape &s, attend_chunk *c)
{
    const int *positions = mpk_at<const int>(t, ATTEND_POSITIONS), room = s.slot_pages * ATTEND_PAGE;
    int least = room, most = -1;
    for (int i = c->first + (int)threadIdx.x % 32; i < c->last; i += 32) {
        const int position = positions[i], from = attend_from(s, position);
        if (position < 0)
            continue;
        least = from < least ? from : least;
        most = position > most ? position : most;
    }
#pragma unroll
    for (int d = 16; d; d /= 2) {
        const int a = __shfl_xor_sync(0xffffffffu, least, d), b = __shfl_xor_sync(0xffffffffu, most, d);
        least = a < least ? a : least;
        most = b > most ? b : most;
    }
    most = most < room ? most : room - 1;
    const int last = (rt_u32)c->slot < (rt_u32)s.slots ? most / ATTEND_STEP + 1 : 0;
    c->step = least / ATTEND_STEP;
    c->n_steps = most >= 0 && last > c->step ? last - c->step : 0;
    const int rows = (c->last - c->first) * c->n_heads;
    c->row_warps = rows <= 16 ? 1 : rows <= 32 ? 2 : rows <= 64 ? 4 : 8;
}

/* Page that holds a step of the slot, or -1. */
MPK_FN int attend_page(const mpk_task &t, const attend_shape &s, int slot, int step)
{
    const int i = step / (ATTEND_PAGE / ATTEND_STEP);
    if (i >= s.slot_pages)
        return -1;
    const int page = mpk_at<const int>(t, ATTEND_PAGES)[slot * s.slot_pages + i];
    return (rt_u32)page < (rt_u32)s.n_pages ? page : -1;
}

/* Ask for keys and values of a step: all threads.  to: keys, then values. */
template <int K>
MPK_FN void attend_copy(const mpk_task &t, const attend_shape &s, const attend_chunk &c, int step, int page, char *to)
{
    constexpr int BYTES = ATTEND_STEP * K * 2;
    if (page >= 0) {
        const rt_u64 at =
            ((rt_u64)page * s.kv_heads + c.kv_head) * ATTEND_PAGE * K * 2 + step % (ATTEND_PAGE / ATTEND_STEP) * BYTES;
        const char *keys = mpk_at<const char>(t, ATTEND_K) + at, *values = mpk_at<const char>(t, ATTEND_V) + at;
        for (int i = (int)threadIdx.x * 16; i < BYTES; i += MPK_THREADS * 16) {
            ptx_copy_async(to + i, keys + i, true);
            ptx_copy_async(to + BYTES + i, values + i, true);
        }
    }
    ptx_copy_async_commit();
}

/* The token and head of a row; false: there is none. */
MPK_FN bool attend_row(const attend_chunk &c, int row, int *token, int *head)
{
    *token = c.first + row / c.n_heads;
    *head = c.head + row % c.n_heads;
    return *token < c.last;
}

template <int K>
MPK_FN void attend_begin_rows(const mpk_task &t, const attend_shape &s, const attend_chunk &c, int first_row,
                              attend_rows<K> *r)
{
    const int lane = threadIdx.x % 32, g = lane / 4, dim = lane % 4 * 8;
    const mpk_words none = {0, 0, 0, 0};
#pragma unroll
    for (int m = 0; m < 2; m++) {
        int token, head;
        const bool there = attend_row(c, first_row + g + 8 * m, &token, &head);
        r->position[m] = there ? mpk_at<const int>(t, ATTEND_POSITIONS)[token] : -1;
        r->from[m] = attend_from(s, r->position[m]);
        r->most[m] = -__int_as_float(0x7f800000);
        r->sum[m] = 0;
        const char *from = mpk_at<const char>(t, ATTEND_Q) + (((rt_u64)token * s.heads + head) * K + dim) * 2;
#pragma unroll
        for (int d = 0; d < K / 32; d++) {
            const mpk_words w = there ? ptx_load_words(from + d * 64) : none;
            r->query[d][m][0] = w.x;
            r->query[d][m][1] = w.y;
            r->query[d][m][2] = w.z;
            r->query[d][m][3] = w.w;
        }
    }
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            r->out[n][e] = 0;
}

/* 16 positions from `base` on: s_keys, s_values their first bytes. */
template <int K>
MPK_FN void attend_unit(const char *s_keys, const char *s_values, int base, float scale, attend_rows<K> *r)
{
    const int lane = threadIdx.x % 32, c = lane % 4, g = lane / 4, lane_at = g * 64 + (c ^ g / 2) * 16;
    const float none = -__int_as_float(0x7f800000);
    float score[2][4], most[2] = {none, none};
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            score[i][e] = 0;
#pragma unroll
        for (int d = 0; d < K / 32; d++) {
            const mpk_words w = *(const mpk_words *)(s_keys + (i * (K / 32) + d) * 512 + lane_at);
            const rt_u32(*q)[4] = r->query[d];
            ptx_multiply_bf16(score[i], q[0][0], q[1][0], q[0][1], q[1][1], w.x, w.y);
            ptx_multiply_bf16(score[i], q[0][2], q[1][2], q[0][3], q[1][3], w.z, w.w);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int position = base + 8 * i + 2 * c + e % 2, m = e / 2;
            const bool seen = position <= r->position[m] && position >= r->from[m];
            score[i][e] = seen ? score[i][e] * scale : none;
            most[m] = fmaxf(most[m], score[i][e]);
        }
    float kept[2], zero[2];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        most[m] = fmaxf(most[m], __shfl_xor_sync(0xffffffffu, most[m], 1));
        most[m] = fmaxf(most[m], __shfl_xor_sync(0xffffffffu, most[m], 2));
        most[m] = fmaxf(r->most[m], most[m]);
        zero[m] = most[m] == none ? 0 : most[m];
        kept[m] = ptx_exp2(r->most[m] - zero[m]);
        r->most[m] = most[m];
        r->sum[m] *= kept[m];
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            score[i][e] = ptx_exp2(score[i][e] - zero[e / 2]);
            r->sum[e / 2] += score[i][e];
        }
    if (__any_sync(0xffffffffu, kept[0] != 1 || kept[1] != 1))
#pragma unroll
        for (int n = 0; n < K / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                r->out[n][e] *= kept[e / 2];
    const rt_u32 a0 = ptx_pack_bf16(score[0][0], score[0][1]), a1 = ptx_pack_bf16(score[0][2], score[0][3]),
                 a2 = ptx_pack_bf16(score[1][0], score[1][1]), a3 = ptx_pack_bf16(score[1][2], score[1][3]);
#pragma unroll
    for (int n = 0; n < K / 8; n++) {
        const uint2 w = *(const uint2 *)(s_values + n * 256 + lane * 8);
        ptx_multiply_bf16(r->out[n], a0, a1, a2, a3, w.x, w.y);
    }
}

/* Warps of the second half of each step hand their results to those of the first. */
template <int K> MPK_FN void attend_put(attend_rows<K> *r, float *s_part)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s_part[(4 * n + e) * 32 + lane] = r->out[n][e];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        s_part[(K / 2 + m) * 32 + lane] = r->most[m];
        s_part[(K / 2 + 2 + m) * 32 + lane] = r->sum[m];
    }
}
template <int K> MPK_FN void attend_add(attend_rows<K> *r, const float *s_part)
{
    const int lane = threadIdx.x % 32;
    float mine[2], other[2];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const float second = s_part[(K / 2 + m) * 32 + lane], most = fmaxf(r->most[m], second);
        const float zero = most == -__int_as_float(0x7f800000) ? 0 : most;
        mine[m] = ptx_exp2(r->most[m] - zero);
        other[m] = ptx_exp2(second - zero);
        r->sum[m] = r->sum[m] * mine[m] + s_part[(K / 2 + 2 + m) * 32 + lane] * other[m];
    }
#pragma unroll
    for (int n = 0; n < K / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            r->out[n][e] = r->out[n][e] * mine[e / 2] + s_part[(4 * n + e) * 32 + lane] * other[e / 2];
}

template <int K>
MPK_FN void attend_store(const mpk_task &t, const attend_shape &s, const attend_chunk &c, int first_row,
                         attend_rows<K> *r)
{
    const int lane = threadIdx.x % 32, g = lane / 4, dim = lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        int token, head;
        const bool there = attend_row(c, first_row + g + 8 * m, &token, &head);
        float sum = r->sum[m];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (!there)
            continue;
        const float scale = sum > 0 ? 1 / sum : 0;
        char *y = mpk_at<char>(t, ATTEND_Y) + (((rt_u64)token * s.heads + head) * K + dim) * 2;
#pragma unroll
        for (int n = 0; n < K / 8; n++)
            ptx_store_word(y + n * 16, ptx_pack_bf16(r->out[n][2 * m] * scale, r->out[n][2 * m + 1] * scale));
    }
}

/* The steps of a chunk: s_step holds two of them, one being read and one on its way. */
template <int K>
MPK_FN void attend_steps(const mpk_task &t, const attend_shape &s, const attend_chunk &c, int part, int last,
                         attend_rows<K> *r)
{
    constexpr int BYTES = 2 * ATTEND_STEP * K * 2;
    int page = c.n_steps > 0 ? attend_page(t, s, c.slot, c.step) : -1;
    attend_copy<K>(t, s, c, c.step, page, t.s_scratch);
    int next = c.n_steps > 1 ? attend_page(t, s, c.slot, c.step + 1) : -1;
    for (int i = 0; i < c.n_steps; i++) {
        ptx_copy_async_wait<0>();
        mpk_sync(); /* the step is there, and nobody reads the one before any more */
        attend_copy<K>(t, s, c, c.step + i + 1, next, t.s_scratch + (i + 1) % 2 * BYTES);
        const int after = i + 2 < c.n_steps ? attend_page(t, s, c.slot, c.step + i + 2) : -1;
        const char *s_keys = t.s_scratch + i % 2 * BYTES, *s_values = s_keys + BYTES / 2;
        const int base = (c.step + i) * ATTEND_STEP;
        if (page >= 0 && base <= last)
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (part < 0 || part == half)
                    attend_unit<K>(s_keys + half * 32 * K, s_values + half * 32 * K, base + 16 * half, s.scale, r);
        page = next;
        next = after;
    }
}

template <int K> MPK_FN void attend_run_chunk(const mpk_task &t, const attend_shape &s, const attend_chunk &c)
{
    const int warp = threadIdx.x / 32, row_warp = warp % c.row_warps, parts = c.row_warps < 8 ? 2 : 1;
    const int part = warp / c.row_warps, first_row = row_warp * 16;
    const bool works = part < parts;
    attend_rows<K> r;
    attend_begin_rows<K>(t, s, c, works ? first_row : ATTEND_ROWS * ATTEND_ROWS, &r);
    /* The last position that the warp's rows see. */
    int last = r.position[0] > r.position[1] ? r.position[0] : r.position[1];
#pragma unroll
    for (int d = 4; d < 32; d *= 2) {
        const int other = __shfl_xor_sync(0xffffffffu, last, d);
        last = other > last ? other : last;
    }
    attend_steps<K>(t, s, c, parts > 1 ? part : -1, last, &r);
    mpk_sync(); /* steps give way to parts, or to the next chunk's */
    if (parts > 1) {
        float *s_part = (float *)t.s_scratch + row_warp * (K / 2 + 4) * 32;
        if (part == 1)
            attend_put<K>(&r, s_part);
        mpk_sync();
        if (part == 0)
            attend_add<K>(&r, s_part);
        mpk_sync();
    }
    if (part == 0)
        attend_store<K>(t, s, c, first_row, &r);
}

/* ---- the body ---- */

template <int K> static __device__ __noinline__ void attention_tile(const mpk_task &t, const attend_shape &s)
{
    const int group = s.heads / s.kv_heads, end = (int)t.hi0, heads_end = (int)t.e->hi[1] / K;
    attend_chunk c;
    for (int first = (int)t.e->lo[0]; first < end;) {
        const int run_end = first + attend_run(t, first, end);
        c.slot = mpk_at<const int>(t, ATTEND_SLOTS)[first];
        for (c.head = (int)t.e->lo[1] / K; c.head < heads_end; c.head += c.n_heads) {
            c.kv_head = c.head / group;
            c.n_heads = (c.kv_head + 1) * group < heads_end ? (c.kv_head + 1) * group - c.head : heads_end - c.head;
            const int tokens = ATTEND_ROWS / c.n_heads;
            for (c.first = first; c.first < run_end; c.first += tokens) {
                c.last = c.first + tokens < run_end ? c.first + tokens : run_end;
                attend_find(t, s, &c);
                attend_run_chunk<K>(t, s, c);
            }
        }
        first = run_end;
    }
}

#endif
