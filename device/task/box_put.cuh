/* box_put.cuh - the end of a tile of a product by boxes: sums in registers become columns of y,
 * pairs of rows become gated columns, or logits with their peaks.
 *
 * Input: sums as wgmma leaves them, factors of tokens in scratch.  A warp has 16 tokens; its sums
 * or columns go through scratch, so that eight lanes store 128 bytes of a row.
 * Output: the task's columns of y, and where a later norm wants them the sums of each token
 * (row_squares.cuh).  Stages of x give way to what lies in scratch here: the caller has a meeting
 * of the warpgroup before and after.  No warp waits for another in between.  Called by
 * linear_box.cuh and expert_tile.cuh.
 */
#ifndef TASK_BOX_PUT_CUH
#define TASK_BOX_PUT_CUH

#include "task/box_end.cuh"
#include "task/row_squares.cuh"
#include "task/tile_plan.cuh"

#if MPK_WGMMA

/* This warpgroup's part of the scratch, where its stages of x were.  Written with mpk_s instead of
 * t.s_scratch, so that the compiler knows it as shared memory and keeps no 64-bit address. */
MPK_FN char *box_scratch(void)
{
    return mpk_s + MPK_PAGES * MPK_PAGE_BYTES + mpk_thread() / 128 * TILE_X;
}

/* A warp's 16 tokens and the groups of the pass that it has, all of them or a half.  Addresses are
 * formed where they are needed: registers are few beside the sums. */
struct box_end {
    int row, tokens;   /* of the first token; how many are alive from it on, perhaps more than 16 */
    int group, groups; /* the first group, of the operator; how many */
    int skip;          /* groups of the pass before these: their biases in scratch */
};

/* Where the first token's sum (row_squares.cuh) of the pass that begins at group `group` goes; 0:
 * nowhere, which RT_SQUARES_OF_Y says where no reader wants them.  A task with a tile of its own
 * leaves one for each pass (src/cuda/squares.c counts alike). */
MPK_FN rt_u64 squares_of_pass(const mpk_task &t, const tile_shape &s, int row, int group)
{
    const rt_u64 at = t.e->at[RT_SQUARES_OF_Y];
    if (!TILE_HAS(TILE_FORM_SQUARES) || !at)
        return 0;
    /* as tile_plan_of, of columns of y by boxes */
    const int first = (int)(t.e->lo[1] >> 3), groups = (int)((t.e->hi[1] + 7) >> 3) - first;
    rt_u32 pass = 0;
    if (group != first)
        pass = (rt_u32)((group - first) / tile_groups_of_pass(1, groups, 1, 0));
    return at + (rt_u64)(rt_u32)row * RT_SQUARES_ROW + pass * SQUARES_BYTES;
}

/* Columns of y of a group are 2^box_shift: 8, or with a gate 4, of 8 packed rows; bytes of a
 * column: logits, which have peaks, are f32. */
MPK_FN int box_shift(const tile_shape &s)
{
    return s.activation != ACTIVATE_NONE ? 2 : 3;
}
MPK_FN rt_u32 box_bytes(const tile_shape &s)
{
    return s.peaks >= 0 ? 4 : 2;
}

/* Bytes from the first entry of y to a group's columns of token `row`. */
MPK_FN rt_u64 box_at(const tile_shape &s, int row, int group)
{
    return ((rt_u64)(rt_u32)row * (rt_u32)s.rows + ((rt_u32)group << box_shift(s))) * box_bytes(s);
}

/* Eight sums of a token from scratch, scaled: for the ends of expert_tile.cuh, which go by groups
 * of a token. */
MPK_FN tile_eight box_get(const float *s_sum, const float *s_scale)
{
    const float scale = *s_scale; /* of the token's norm */
    tile_eight v = box_eight(s_sum);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v.at[i] *= scale;
    return v;
}

/* ---- columns of y ----
 *
 * Sums become values where they are, in registers: scaled, with biases, activated, with the
 * residual.  Then they are rounded to 16 bits and go to scratch as rows of 64 columns (a unit) for
 * the warp's 16 tokens, all units one after the other, and the warp stores the rows, 16 bytes a
 * lane.  A lane has columns 2 c and 2 c + 1 (c = lane % 4) of each group, of tokens lane / 4 and
 * lane / 4 + 8, as ldmatrix and stmatrix have them.
 *
 * Two warps of a scheduler have nothing but each other to hide latency, so instructions stand one
 * beside the other for many values.  An activation alone would be 500 instructions for each unit;
 * code that runs once for a task comes from L2, 3.5 us for 1,000 instructions.  So it is a loop:
 * half of the sums wait in scratch meanwhile, which leaves it registers for eight values. */

/* A warp's part of the scratch. */
enum {
    BOX_OWN = TILE_X_OF(1) / 4,
    BOX_ROWS = 16 * 64 * 2, /* rows of y of a unit */
    BOX_WAITING = 64        /* sums of a lane that wait in scratch together */
};
static_assert(16 * TILE_ROW * 4 <= BOX_OWN && 4 * BOX_ROWS <= BOX_OWN &&
                  BOX_WAITING * 32 * 4 <= BOX_OWN,
              "logits of a unit, rows of y of four, or sums that wait have no room");

/* This warp's part. */
MPK_FN char *box_own(void)
{
    return box_scratch() + mpk_thread() / 32 % 4 * BOX_OWN;
}

/* Where 16 bytes of a row of a unit lie: number `piece` of eight of token `token`.  Pieces are
 * turned, the 128-byte swizzle, so that lanes of eight tokens meet no bank conflict, in stmatrix
 * nor when rows are read. */
MPK_FN rt_u32 box_piece(int token, int piece)
{
    return (rt_u32)(token * 128 + ((piece ^ (token & 7)) << 4));
}

/* A lane copies 16 bytes of token lane / 8 of the unit and of every fourth from there on, four in
 * all: a store of the warp is 128 bytes of each of four rows.  Where number i is in the rows:
 * tokens 4 apart differ in bit 2 of the swizzle alone. */
MPK_FN rt_u32 box_copied(int i)
{
    const int lane = mpk_thread() % 32;
    return (box_piece(lane / 8, lane % 8) ^ (rt_u32)(i % 2 * 64)) + (rt_u32)(512 * i);
}
/* How many of the lane's tokens from its first on are there, counted in tokens, not in fours:
 * number i is there if 4 i is below it.  0: the unit has no such group. */
MPK_FN int box_tokens(const box_end &e, int u)
{
    const int lane = mpk_thread() % 32;
    return u * TILE_GROUPS + lane % 8 < e.groups ? e.tokens - lane / 8 : 0;
}

/* Bytes from the first entry of y, or the residual, to the first of these of unit 0 (box_at of
 * plain columns, of which it needs to ask less), and to the lane's next token. */
MPK_FN rt_u64 box_copied_at(const tile_shape &s, const box_end &e)
{
    const int lane = mpk_thread() % 32, column = 8 * (e.group + lane % 8);
    return ((rt_u64)(rt_u32)(e.row + lane / 8) * (rt_u32)s.rows + (rt_u32)column) * 2;
}
MPK_FN rt_u32 box_further(const tile_shape &s)
{
    return (rt_u32)s.rows * 8; /* four tokens */
}

/* Request the residual of all units, to where their rows of y will be: the thread that adds a word
 * stores the word of y in its place.  One group of copies. */
MPK_FN void box_ask_residual(const mpk_task &t, const tile_shape &s, const box_end &e)
{
    const char *from = mpk_at<const char>(t, s.residual) + box_copied_at(s, e);
    char *s_rows = box_own();
    const rt_u32 further = box_further(s);
#pragma unroll 1
    for (int u = 0; u * TILE_GROUPS < e.groups; u++) {
        const int tokens = box_tokens(e, u);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (4 * i < tokens)
                ptx_copy_async(s_rows + box_copied(i), from + (rt_u64)((rt_u32)i * further), true);
        from += 8 * TILE_GROUPS * 2;
        s_rows += BOX_ROWS;
    }
    ptx_copy_async_commit();
}

/* Groups of columns that a lane has in registers, of units that some loop makes. */
#define BOX_HAS_GROUP(n, groups) \
    (BOX_HAS_UNIT((n) / TILE_GROUPS) && (n) / TILE_GROUPS * TILE_GROUPS < (groups))

/* Sums are scaled, and have what biases add.  s_scale: of the warp's 16 tokens, 1 without a norm; a
 * lane's biases are of its two columns of each group, so the two tokens share them. */
MPK_FN void box_scale(const tile_shape &s, const box_end &e, const float *s_scale, float *sum)
{
    const int lane = mpk_thread() % 32;
    const float scale[2] = {s_scale[lane / 4], s_scale[lane / 4 + 8]}; /* of both tokens */
    const float *s_bias = box_biases() + e.skip * 8 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < BOX_SUMS / 4; n++) {
        if (!BOX_HAS_GROUP(n, e.groups))
            break;
        float2 bias = {0, 0}, factor = {1, 1};
        if (BOX_HAS_ENDS)
            bias = *(const float2 *)(s_bias + 8 * n);
        if (TILE_IS_IMAGE(s))
            factor = *(const float2 *)(s_bias + BOX_FACTORS + 8 * n);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            sum[4 * n + 2 * k] = sum[4 * n + 2 * k] * (scale[k] * factor.x) + bias.x;
            sum[4 * n + 2 * k + 1] = sum[4 * n + 2 * k + 1] * (scale[k] * factor.y) + bias.y;
        }
    }
}

/* Values are activated, eight at a time; half of them wait in scratch, each lane's own, so no
 * barrier is needed.  Quads of the 32 lanes lie side by side: a store of the warp is 512 bytes in a
 * row. */
MPK_FN void box_activate(int after, int groups, float *sum)
{
    float4 *s_waiting = (float4 *)box_own() + mpk_thread() % 32;
    /* Once or twice; unrolled, since sum[] is indexed by constants alone. */
#pragma unroll
    for (int first = 0; first < BOX_SUMS / 4; first += BOX_WAITING / 4) {
        if (!BOX_HAS_GROUP(first, groups))
            break;
        float *waits = sum + 4 * first;
#pragma unroll
        for (int i = 0; i < BOX_WAITING / 4; i++)
            s_waiting[32 * i] = {waits[4 * i], waits[4 * i + 1], waits[4 * i + 2],
                                 waits[4 * i + 3]};
#pragma unroll 1
        for (int i = 0; i < BOX_WAITING / 4 && first + i < groups; i += 2) {
            float4 *s_v = s_waiting + 32 * i;
            const float4 a = s_v[0], b = s_v[32];
            tile_eight v = {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
            tile_activate_eight(after, &v);
            s_v[0] = {v.at[0], v.at[1], v.at[2], v.at[3]};
            s_v[32] = {v.at[4], v.at[5], v.at[6], v.at[7]};
        }
#pragma unroll
        for (int i = 0; i < BOX_WAITING / 4; i++) {
            const float4 v = s_waiting[32 * i];
            waits[4 * i] = v.x, waits[4 * i + 1] = v.y;
            waits[4 * i + 2] = v.z, waits[4 * i + 3] = v.w;
        }
    }
}

/* Where the row lies whose address a lane gives for the four matrices of groups 2 i and 2 i + 1 of
 * a unit: tokens 0 to 7 and 8 to 15 of the first group, then of the second.  So matrix k is sums 4
 * n + 2 k and + 1 of the lane, from group n = 2 i on. */
MPK_FN rt_u32 box_matrices(int i)
{
    const int lane = mpk_thread() % 32;
    return box_piece(lane % 16, lane / 16) ^ (rt_u32)(32 * i);
}

/* Values have the residual added: read by ldmatrix, a lane gets the words of its own sums. */
MPK_FN void box_add_residual(const box_end &e, float *sum)
{
    const char *s_rows = box_own();
#pragma unroll
    for (int n = 0; n < BOX_SUMS / 4; n += 2) {
        if (!BOX_HAS_GROUP(n, e.groups))
            break;
        rt_u32 r[4];
        ptx_load_matrices(r, s_rows + n / TILE_GROUPS * BOX_ROWS + box_matrices(n / 2 % 4));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            sum[4 * n + 2 * k] += halves_low(r[k]);
            sum[4 * n + 2 * k + 1] += halves_high(r[k]);
        }
    }
}

/* Values to the rows, as 16 bits.  A warp overwrites only words of the residual that the same lane
 * has read. */
MPK_FN void box_round(const box_end &e, bool relu, const float *sum)
{
    char *s_rows = box_own();
#pragma unroll
    for (int n = 0; n < BOX_SUMS / 4; n += 2) {
        if (!BOX_HAS_GROUP(n, e.groups))
            break;
        rt_u32 y[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            y[k] = halves_pack(box_last(relu, sum[4 * n + 2 * k]),
                               box_last(relu, sum[4 * n + 2 * k + 1]));
        ptx_store_matrices(s_rows + n / TILE_GROUPS * BOX_ROWS + box_matrices(n / 2 % 4), y);
    }
}

/* Store the rows of all units.  sums: of the lane's four tokens, which are made if `summed`, of
 * what is stored, rounded, as a reader of y will see it. */
MPK_FN void box_store_rows(const mpk_task &t, const tile_shape &s, const box_end &e, bool summed,
                           row_sums *sums)
{
    char *to = mpk_at<char>(t, s.y) + box_copied_at(s, e);
    const char *s_rows = box_own();
    const rt_u32 further = box_further(s), sends = t.e->sends; /* read before the stores */
#pragma unroll 1
    for (int u = 0; u * TILE_GROUPS < e.groups; u++) {
        const int tokens = box_tokens(e, u);
        mpk_words v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = *(const mpk_words *)(s_rows + box_copied(i));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            mpk_words *y = (mpk_words *)(to + (rt_u64)((rt_u32)i * further));
            if (4 * i >= tokens)
                continue;
            ptx_store_words(y, v[i]);
            mpk_send(sends, y, v[i]);
            if (summed)
                sums[i] = row_sums_add(v[i], sums[i]);
        }
        to += 8 * TILE_GROUPS * 2;
        s_rows += BOX_ROWS;
    }
}

/* Sums of the lane's tokens, over the eight lanes that have columns of them: row_sums_of_four
 * leaves those of four tokens in four of the eight lanes, which store one each. */
MPK_FN void box_put_squares(const box_end &e, rt_u64 to, const row_sums *sums)
{
    const int lane = mpk_thread() % 32, token = lane / 8 + 4 * row_sums_token();
    const row_sums all = row_sums_of_four(sums);
    if (lane % 8 < 4 && token < e.tokens)
        squares_store((char *)to + token * RT_SQUARES_ROW, all);
}

/* The columns of the warp's tokens.  The values take the place of the sums.  Warps do all this side
 * by side: only __syncwarp stands between the steps, since a warp reads nothing that another has
 * put down. */
MPK_FN void box_put(const mpk_task &t, const tile_shape &s, const box_end &e, float *sum,
                    const float *s_scale)
{
    const bool adds = s.residual >= 0,
               after = BOX_HAS_AFTER && !TILE_IS_IMAGE(s) && s.after != ACTIVATE_NONE;
    if (adds && !after) /* in flight while sums are scaled */
        box_ask_residual(t, s, e);
    box_scale(s, e, s_scale, sum);
    if (after) {
        box_activate(s.after, e.groups, sum);
        __syncwarp(); /* each lane has its values again: rows may come in their place */
        if (adds)
            box_ask_residual(t, s, e);
    }
    if (adds) {
        /* Each lane waits for its own copies, and reads the others' after the meeting. */
        ptx_copy_async_wait<0>();
        __syncwarp();
        box_add_residual(e, sum);
    }
    box_round(e, TILE_HAS_RELU(s), sum); /* each lane's own words of the residual */
    __syncwarp();
    const rt_u64 squares = squares_of_pass(t, s, e.row, e.group);
    row_sums sums[4] = {};
    box_store_rows(t, s, e, squares != 0, sums);
    if (squares)
        box_put_squares(e, squares, sums);
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
 * lane both of the second.  One shuffle, in which each lane gives what it does not keep. */
MPK_FN rt_u32 box_pair(float first, float second)
{
    const bool odd = mpk_thread() % 2; /* of two lanes that share four columns */
    const float other = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
    return odd ? halves_pack(other, second) : halves_pack(first, other);
}

enum { BOX_ROW = 272 }; /* bytes from a token to the next of gated columns in scratch */

/* The end where rows of w are pairs: columns of y go through scratch as 16 bits, four a group; then
 * a lane stores the four of its group for one token after the other, so a warp stores a row.
 * Groups that the task does not have are left out, four at a time: each is some hundred
 * instructions that no cache holds, since a task runs them once.
 *
 * s_y: the warp's part of scratch, rows of BOX_ROW bytes: 32 groups of 8, and 16 more, so that
 * eight tokens' words lie in different banks. */
MPK_FN void box_put_pairs(const mpk_task &t, const tile_shape &s, const box_end &e, float *sum,
                          char *s_y, const float *s_scale)
{
    const bool biased = TILE_HAS(TILE_FORM_BOX_ENDS); /* zeros where there are none */
    const int lane = mpk_thread() % 32, g = lane / 4; /* the lane's tokens are g and g + 8 */
    const float scale[2] = {s_scale[g], s_scale[g + 8]}, scaled[2] = {1, 1};
    const float *s_bias = box_biases() + e.skip * 8 + lane % 4 * 2;
    const int activation = s.activation;
    char *to = s_y + g * BOX_ROW + lane % 2 * 8 + lane % 4 / 2 * 4; /* this lane's word */
#pragma unroll
    for (int n = 0; n < BOX_SUMS / 4; n += 4) {
        if (!BOX_HAS_UNIT(n / 8) || n >= e.groups)
            break;
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
    char *y = mpk_at<char>(t, s.y) + box_at(s, e.row, e.group + lane);
    const rt_u32 row_bytes = (rt_u32)s.rows * 2, sends = t.e->sends; /* read before the stores */
    if (lane < e.groups)
#pragma unroll 4
        for (int i = 0; i < 16 && i < e.tokens; i++) {
            const uint2 v = *(const uint2 *)(s_y + i * BOX_ROW + lane * 8);
            char *at = y + (rt_u64)((rt_u32)i * row_bytes);
            ptx_store_two_words(at, v.x, v.y);
            mpk_send_two_words(sends, at, v.x, v.y);
        }
}

/* The largest of 4 neighbouring logits and its column; has: whether the columns are there.  Of
 * equal ones the first, as the sampler's reference has it: q replaces p only if it is larger. */
MPK_FN peak box_peak(const float *v, int column, bool has)
{
    const peak p = peak_of_pair(v[0], v[1], column, has, has),
               q = peak_of_pair(v[2], v[3], column + 2, has, has);
    return q.at >= 0 && (p.at < 0 || q.best > p.best) ? q : p;
}

/* Where the peaks of a warp's 16 tokens and the pass's units go.  One for a warp, found once for
 * its units. */
struct box_peaks {
    rt_u64 at, y;              /* addresses of the first token's first unit, and column */
    rt_u32 row_bytes, y_bytes; /* to the next token's */
    int column;                /* of y, of the first group */
    float cap, rate;           /* as logits_bent takes them */
};

/* Unit u of logits, after tile_put has brought its sums to scratch.  A lane has four columns of
 * every second token, so that one instruction stores whole rows of 256 bytes; sixteen lanes find
 * the largest of a token. All lanes go through peak_of_lanes, whose shuffles need them; what is not
 * there leaves after it. */
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
            ptx_store_words((void *)(to.y + (rt_u64)(rt_u32)token * to.y_bytes + (rt_u32)at * 4),
                            {__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                             __float_as_uint(v[3])});
        if (lane % 16 == 0)
            ptx_store_two_words((void *)(to.at + (rt_u64)(rt_u32)token * to.row_bytes + 8 * u),
                                __float_as_uint(p.best), __float_as_uint((float)p.at));
    }
}

/* All units of logits.  Peaks are [token][64 columns] pairs of floats, a value and its column: what
 * sample.cuh reads instead of all logits. */
MPK_FN void box_put_logits(const mpk_task &t, const tile_shape &s, const box_end &e,
                           const float *sum, float *s_sum, const float *s_scale)
{
    box_peaks to; /* where the unit's peaks go */
    to.row_bytes = (rt_u32)(s.rows + 63) / 64 * 8;
    to.at = t.e->at[s.peaks] + (rt_u64)(rt_u32)e.row * to.row_bytes + e.group / TILE_GROUPS * 8;
    to.y_bytes = (rt_u32)s.rows * 4;
    to.y = t.e->at[s.y] + box_at(s, e.row, e.group);
    to.column = e.group * 8;
    to.cap = s.cap;
    to.rate = s.rate;
#pragma unroll
    for (int u = 0; u < BOX_SUMS / 32; u++) {
        if (!BOX_HAS_UNIT(u) || u * TILE_GROUPS >= e.groups)
            break;
        tile_put(sum + 32 * u, s_sum);
        __syncwarp();
        box_finish_logits(e, to, u, s_sum, s_scale);
        __syncwarp();
    }
}

#endif

#endif
