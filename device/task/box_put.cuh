/* box_put.cuh - the end of a tile of a product by boxes: sums in registers become columns of y,
 * pairs of rows become gated columns, or logits with their peaks.
 *
 * Input: sums as wgmma leaves them, factors of tokens in scratch.  A warp has 16 tokens; its sums
 * go through scratch, 64 columns (a unit) at a time, so that eight lanes store 128 bytes of a row.
 * Output: the task's columns of y, and where a later norm wants them the squares of each token.
 * Stages of x give way to what lies in scratch here: the caller has a meeting of the warpgroup
 * before and after.  No warp waits for another in between.  Called by linear_box.cuh and
 * expert_tile.cuh.
 */
#ifndef TASK_BOX_PUT_CUH
#define TASK_BOX_PUT_CUH

#include "task/box_end.cuh"
#include "task/row_squares.cuh"
#include "task/tile_plan.cuh"

#if MPK_WGMMA

/* This warpgroup's part of the scratch.  Written with mpk_s instead of t.s_scratch, so that the
 * compiler knows it as shared memory and keeps no 64-bit address. */
MPK_FN char *box_scratch(void)
{
    return mpk_s + MPK_PAGES * MPK_PAGE_BYTES + mpk_thread() / 128 * TILE_X;
}

/* Where a warp's 16 tokens and the pass's groups go. */
struct box_end {
    rt_u64 y, residual; /* addresses of the first token's first column; residual 0: none */
    rt_u64 squares;     /* of the first token's sum (row_squares.cuh); 0: none is stored */
    rt_u32 row_bytes;   /* of both */
    int tokens, groups; /* alive; that there are */
    int staged;         /* place of the first column's bias in scratch */
    rt_u32 sends;       /* rt_entry.sends */
};

/* Where the first token's sum of squares of the pass that begins at group `group` goes; 0: nowhere.
 * A task with a tile of its own leaves one for each pass (src/cuda/squares.c counts alike). */
MPK_FN rt_u64 squares_of_pass(const mpk_task &t, const tile_shape &s, int row, int group)
{
    const rt_u64 at = t.e->at[RT_SQUARES_OF_Y];
    if (!TILE_HAS(TILE_FORM_PARTS) || !at)
        return 0;
    const tile_plan p = tile_plan_of(t.e, s); /* worked out again, as in linear_tile */
    const rt_u32 pass = (rt_u32)((group - p.first) / p.per_pass);
    return at + (rt_u64)(rt_u32)row * RT_SQUARES_ROW + pass * SQUARES_BYTES;
}

/* Computed after the products: during them it would hold registers. */
MPK_FN box_end box_end_of(const mpk_task &t, const tile_shape &s, int row, int group, int groups,
                          int skip)
{
    const int column = group << (s.activation != ACTIVATE_NONE ? 2 : 3); /* of y */
    const rt_u32 bytes = s.peaks >= 0 ? 4 : 2;                           /* of a column of y */
    const rt_u64 at = ((rt_u64)(rt_u32)row * (rt_u32)s.rows + (rt_u32)column) * bytes;
    box_end e; /* addresses of the warp's own tokens */
    e.y = t.e->at[s.y] + at;
    e.residual = s.residual >= 0 ? t.e->at[s.residual] + at : 0;
    e.row_bytes = (rt_u32)s.rows * bytes;
    e.squares = squares_of_pass(t, s, row, group);
    e.tokens = (int)t.hi0 - row;
    e.groups = groups;
    e.staged = skip * 8;
    e.sends = t.e->sends;
    return e;
}

/* Eight sums of a token from scratch, scaled. */
MPK_FN tile_eight box_get(const float *s_sum, const float *s_scale)
{
    const float scale = *s_scale; /* of the token's norm */
    tile_eight v = box_eight(s_sum);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v.at[i] *= scale;
    return v;
}

/* Unit u, 64 rows of w: scratch to y.  Lane l has group l % 8 of tokens l / 8, l / 8 + 4, ...,
 * four in all: eight lanes store 128 bytes of a row.  Two tokens at a time, so that loads
 * overlap.  sums: those of what is stored are added, a token's each. */
MPK_FN void box_finish(const mpk_task &t, const tile_shape &s, const box_end &e, int u,
                       const float *s_sum, const float *s_scale, row_sums *sums)
{
    const int lane = mpk_thread() % 32, first = lane / 8, group = u * TILE_GROUPS + lane % 8;
    const rt_u64 at = (rt_u64)((rt_u32)first * e.row_bytes + (rt_u32)group * 16);
    const rt_u32 further = 4 * e.row_bytes; /* to the lane's next token */
    const int tokens = group < e.groups ? e.tokens - first : 0;
    mpk_words residual[4] = {}; /* all in flight before the sums are read */
    if (e.residual)
#pragma unroll
        for (int i = 0; i < 4; i++)
            ptx_load_words_if((const void *)(e.residual + at + (rt_u32)i * further), 4 * i < tokens,
                              &residual[i]);
    const bool relu = TILE_HAS_RELU(s);
    const int after = s.after;
    const float *s_bias = box_biases() + e.staged + group * 8;
    s_sum += first * TILE_ROW + lane % 8 * 8;
    s_scale += first;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        tile_eight a = box_get(s_sum + 4 * i * TILE_ROW, s_scale + 4 * i),
                   b = box_get(s_sum + (4 * i + 4) * TILE_ROW, s_scale + 4 * i + 4);
        box_finish_sums(s, after, s_bias, &a);
        box_finish_sums(s, after, s_bias, &b);
        mpk_words y[2] = {}; /* what is stored */
        if (4 * i < tokens)
            y[0] = box_store(e.sends, e.y + at + (rt_u32)i * further, a, residual[i], relu);
        if (4 * i + 4 < tokens)
            y[1] =
                box_store(e.sends, e.y + at + (rt_u32)(i + 1) * further, b, residual[i + 1], relu);
        if (e.squares) {
            sums[i] = row_sums_add(y[0], sums[i]);
            sums[i + 1] = row_sums_add(y[1], sums[i + 1]);
        }
    }
}

/* Sums of the warp's tokens, over the eight lanes that have a token: one each. */
MPK_FN void box_put_squares(const box_end &e, const row_sums *sums)
{
    const int lane = mpk_thread() % 32, first = lane / 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const row_sums all = row_sums_of_lanes(sums[i], 1, 8);
        if (lane % 8 == 0 && first + 4 * i < e.tokens)
            squares_store((char *)e.squares + (first + 4 * i) * RT_SQUARES_ROW, all);
    }
}

/* All units, one after the other; unrolled, so that sums give their registers back. */
template <int N>
MPK_FN void box_put(const mpk_task &t, const tile_shape &s, const box_end &e, const float *sum,
                    float *s_sum, const float *s_scale)
{
    row_sums sums[4] = {};
#pragma unroll
    for (int u = 0; u < N / 64; u++)
        if (u * TILE_GROUPS < e.groups) {
            /* The warp's own part of the scratch: __syncwarp is enough. */
            tile_put(sum + 32 * u, s_sum);
            __syncwarp();
            box_finish(t, s, e, u, s_sum, s_scale, sums);
            __syncwarp();
        }
    if (e.squares)
        box_put_squares(e, sums);
}

/* ---- the same in a call ----
 *
 * It runs the ends of many operators once each, and what runs once comes from L2, 3.5 us for 1,000
 * instructions.  So all units and tokens share their code, and what is in registers moves to where
 * that of the first one was.  (The emulator runs both.) */
#ifndef BOX_IS_SHORT
#define BOX_IS_SHORT MPK_CALLS
#endif

/* Where a warp keeps the residual of a unit, 16 tokens x 64 columns, after the sums of all warps of
 * the warpgroup: each lane reads what it has copied itself. */
enum { BOX_RESIDUAL = 4 * 16 * TILE_ROW * 4 };
static_assert(BOX_RESIDUAL + 4 * 16 * 128 <= TILE_X, "residuals have no room");
MPK_FN char *box_residual(void)
{
    return box_scratch() + BOX_RESIDUAL + mpk_thread() % 128 / 32 * 16 * 128 +
           mpk_thread() % 32 * 16;
}

/* Unit u as box_finish makes it, one token after the other; sum: those of the unit. */
MPK_FN void box_finish_short(const mpk_task &t, const tile_shape &s, const box_end &e, int u,
                             const float *sum, float *s_sum, const float *s_scale, row_sums *sums)
{
    const int lane = mpk_thread() % 32, first = lane / 8, group = u * TILE_GROUPS + lane % 8;
    const rt_u64 at = (rt_u64)((rt_u32)first * e.row_bytes + (rt_u32)group * 16);
    const rt_u32 further = 4 * e.row_bytes; /* to the lane's next token */
    const int tokens = group < e.groups ? e.tokens - first : 0;
    /* in flight, as the bias, while sums go through scratch */
    char *s_residual = box_residual();
    if (e.residual) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (4 * i < tokens)
                ptx_copy_async(s_residual + 512 * i,
                               (const void *)(e.residual + at + (rt_u32)i * further), true);
        ptx_copy_async_commit();
    }
    const bool relu = TILE_HAS_RELU(s);
    /* kept, or found again for each token */
    const int after = (int)ptx_keep((rt_u32)s.after);
    const float *s_bias = box_biases() + e.staged + group * 8;
    tile_put(sum, s_sum); /* the warp's own part of the scratch: __syncwarp is enough */
    ptx_copy_async_wait<0>();
    __syncwarp();
    s_sum += first * TILE_ROW + lane % 8 * 8;
    s_scale += first;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        tile_eight v = box_get(s_sum + 4 * i * TILE_ROW, s_scale + 4 * i);
        box_finish_sums(s, after, s_bias, &v);
        mpk_words y = {}, residual = {}; /* what is stored */
        if (e.residual)
            residual = ptx_load_shared_words(s_residual + 512 * i);
        if (4 * i < tokens)
            y = box_store(e.sends, e.y + at + (rt_u32)i * further, v, residual, relu);
        const row_sums added = e.squares ? row_sums_add(y, sums[0]) : row_sums{};
#pragma unroll
        for (int k = 0; k < 3; k++)
            sums[k] = sums[k + 1];
        sums[3] = added;
    }
    __syncwarp();
}

template <int N>
MPK_FN void box_put_short(const mpk_task &t, const tile_shape &s, const box_end &e, float *sum,
                          float *s_sum, const float *s_scale)
{
    row_sums sums[4] = {};
#pragma unroll 1
    for (int u = 0; u * TILE_GROUPS < e.groups; u++) {
        box_finish_short(t, s, e, u, sum, s_sum, s_scale, sums);
#pragma unroll
        for (int i = 0; i < N / 2 - 32; i++)
            sum[i] = sum[i + 32];
    }
    if (e.squares)
        box_put_squares(e, sums);
}

enum { BOX_GATED = 8 }; /* values that a lane makes at a time: of four groups */

/* Rows of w are pairs: the sums of a gate and of what it lets through become one value.  from:
 * the sums of four groups; to: of group n column lane % 4 of token lane / 4 (to[2 n]) and of the
 * token 8 on (to[2 n + 1]).  to may be from, or before it, since to[i] is made from from[2 i] and
 * from[2 i + 1].
 *
 * One value is a chain of 90 cycles.  So each step of it is made for all eight before the next: in
 * the place of their sums, or ptxas, short of registers, makes one value after the other. */
MPK_FN void box_gate(int activation, const float *scale, float *from, float *to)
{
    if (TILE_HAS(TILE_FORM_ACTIVATION + ACTIVATE_GELU) && activation == ACTIVATE_GELU) {
        tile_eight v;
#pragma unroll
        for (int i = 0; i < BOX_GATED; i++)
            v.at[i] = from[2 * i] * scale[i % 2];
        tile_gelu_eight(&v);
#pragma unroll
        for (int i = 0; i < BOX_GATED; i++)
            to[i] = v.at[i] * (from[2 * i + 1] * scale[i % 2]);
        return;
    }
#pragma unroll
    for (int i = 0; i < BOX_GATED; i++) {
        const float gate = from[2 * i] * scale[i % 2];
        from[2 * i + 1] *= scale[i % 2] * gate;
        from[2 * i] = ptx_exp2(tile_exponent(activation, gate));
    }
#pragma unroll
    for (int i = 0; i < BOX_GATED; i++)
        from[2 * i] = ptx_rcp(1 + from[2 * i]);
#pragma unroll
    for (int i = 0; i < BOX_GATED; i++)
        to[i] = from[2 * i] * from[2 * i + 1];
}

/* Two neighbouring columns as a word.  Lanes c and c + 1 (c even) have one column each of two
 * groups; they exchange, so that the even lane gets both columns of the first group and the odd
 * lane both of the second. */
MPK_FN rt_u32 box_pair(float first, float second)
{
    const bool odd = mpk_thread() % 2; /* of two lanes that share four columns */
    const float other = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
    return odd ? halves_pack(other, second) : halves_pack(first, other);
}

enum { BOX_ROW = 272 }; /* bytes from a token to the next of gated columns in scratch */

/* The end where rows of w are pairs: columns of y go through scratch as 16 bits, four a group;
 * then a lane stores the four of its group for one token after the other, so a warp stores a
 * row.  Groups that the task does not have are left out, four at a time: each is some hundred
 * instructions that no cache holds, since a task runs them once. */
template <int N>
MPK_FN void box_put_pairs(const box_end &e, int activation, float *sum, char *s_y,
                          const float *s_scale)
{
    const bool biased = TILE_HAS(TILE_FORM_BOX_ENDS); /* zeros where there are none */
    const int lane = mpk_thread() % 32, g = lane / 4; /* the lane's tokens are g and g + 8 */
    const float scale[2] = {s_scale[g], s_scale[g + 8]}, scaled[2] = {1, 1};
    const float *s_bias = box_biases() + e.staged + lane % 4 * 2;
    char *to = s_y + g * BOX_ROW + lane % 2 * 8 + lane % 4 / 2 * 4; /* this lane's word */
#pragma unroll
    for (int n = 0; n < N / 8; n += 4) {
        if (n >= e.groups)
            continue;
        float *v = sum + 4 * n; /* the values take the place of sums */
#pragma unroll
        for (int i = 0; i < 2 * BOX_GATED && biased; i++)
            v[i] = v[i] * scale[i / 2 % 2] + s_bias[8 * (n + i / 4) + i % 2];
        box_gate(activation, biased ? scaled : scale, v, v);
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            *(rt_u32 *)(to + 8 * (n + i)) = box_pair(v[2 * i], v[2 * i + 2]);
            *(rt_u32 *)(to + 8 * BOX_ROW + 8 * (n + i)) = box_pair(v[2 * i + 1], v[2 * i + 3]);
        }
    }
    __syncwarp();
    /* a lane stores its group of four columns, token by token: the warp stores whole rows of 8 n
     * bytes */
    if (lane < e.groups)
#pragma unroll 4
        for (int i = 0; i < 16 && i < e.tokens; i++) {
            const uint2 v = *(const uint2 *)(s_y + i * BOX_ROW + lane * 8);
            void *y = (void *)(e.y + (rt_u64)((rt_u32)i * e.row_bytes) + lane * 8);
            ptx_store_two_words(y, v.x, v.y);
            mpk_send_two_words(e.sends, y, v.x, v.y);
        }
}

/* The largest of 4 neighbouring logits and its column; has: whether the columns are there. */
MPK_FN peak box_peak(const float *v, int column, bool has)
{
    const peak p = peak_of_pair(v[0], v[1], column, has, has),
               q = peak_of_pair(v[2], v[3], column + 2, has, has);
    return q.at >= 0 && (p.at < 0 || q.best > p.best) ? q : p;
}

/* Where the peaks of a warp's 16 tokens and the pass's units go. */
struct box_peaks {
    rt_u64 at; /* address of the first token's first unit */
    rt_u32 row_bytes;
    int column;      /* of y, of the first group */
    float cap, rate; /* as logits_bent takes them */
};

/* Unit u of logits.  A lane has four columns of every second token, so that one instruction stores
 * whole rows of 256 bytes; sixteen lanes find the largest of a token. */
MPK_FN void box_finish_logits(const box_end &e, const box_peaks &to, int u, const float *s_sum,
                              const float *s_scale)
{
    const int lane = mpk_thread() % 32, first = lane / 16, at = u * 64 + lane % 16 * 4;
    const bool has = at < 8 * e.groups; /* the pass may end within the unit */
    s_sum += first * TILE_ROW + lane % 16 * 4;
    s_scale += first;
#pragma unroll 4
    for (int i = 0; i < 16; i += 2) {
        const int token = first + i; /* of the warp's 16 */
        const mpk_words w = ptx_load_shared_words(s_sum + i * TILE_ROW);
        const float scale = s_scale[i],
                    v[4] = {logits_bent(__uint_as_float(w.x) * scale, to.cap, to.rate),
                            logits_bent(__uint_as_float(w.y) * scale, to.cap, to.rate),
                            logits_bent(__uint_as_float(w.z) * scale, to.cap, to.rate),
                            logits_bent(__uint_as_float(w.w) * scale, to.cap, to.rate)};
        const peak p = peak_of_lanes<16>(box_peak(v, to.column + at, has));
        if (token >= e.tokens)
            continue;
        if (has)
            ptx_store_words((void *)(e.y + (rt_u64)(rt_u32)token * e.row_bytes + (rt_u32)at * 4),
                            {__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                             __float_as_uint(v[3])});
        if (lane % 16 == 0)
            ptx_store_two_words((void *)(to.at + (rt_u64)(rt_u32)token * to.row_bytes + 8 * u),
                                __float_as_uint(p.best), __float_as_uint((float)p.at));
    }
}

/* All units of logits, for a warp's 16 tokens from `row` on; group: the pass's first. */
template <int N>
MPK_FN void box_put_logits(const mpk_task &t, const tile_shape &s, const box_end &e, int row,
                           int group, const float *sum, float *s_sum, const float *s_scale)
{
    box_peaks to; /* where the unit's peaks go */
    to.row_bytes = (rt_u32)(s.rows + 63) / 64 * 8;
    to.at = t.e->at[s.peaks] + (rt_u64)(rt_u32)row * to.row_bytes + group / TILE_GROUPS * 8;
    to.column = group * 8;
    to.cap = s.cap;
    to.rate = s.rate;
#pragma unroll
    for (int u = 0; u < N / 64; u++)
        if (u * TILE_GROUPS < e.groups) {
            tile_put(sum + 32 * u, s_sum);
            __syncwarp();
            box_finish_logits(e, to, u, s_sum, s_scale);
            __syncwarp();
        }
}

#endif

#endif
