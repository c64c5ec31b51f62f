/* delta_chunk.cuh - delta_rule of many tokens: chunks of 32 tokens of a slot by tensor cores (the
 * chunkwise form of Yang et al., "Parallelizing Linear Transformers with the Delta Rule over
 * Sequence Length" and "Gated Delta Networks", 2024).
 *
 * Within a chunk, with S the state before it, G the logarithm of what has faded from its first
 * token up to a token, f the factors that give keys and queries their length, b how far a token
 * moves the state, row i is token i:
 *
 *   A[i][j] = b[i] 2^(G[i] - G[j]) f(k[i]) f(k[j]) k[i] k[j]    j < i, else 0
 *   P[i][j] =      2^(G[i] - G[j]) f(q[i]) f(k[j]) q[i] k[j]    j <= i, else 0
 *   R[i]    = b[i] (v[i] - 2^G[i] f(k[i]) S k[i])
 *   U       = (1 + A)^-1 R                      what each token adds to the state
 *   y[i]    = 2^G[i] f(q[i]) S q[i] + sum of P[i][j] U[j]
 *   S'      = 2^G[last] S + sum of 2^(G[last] - G[j]) f(k[j]) U[j] k[j]^T
 *
 * A and P depend on no state.  So six warps (preparers) make those of chunks ahead while two
 * (makers) apply this one, and later ones are loaded; all meet once a chunk:
 *
 *   round i   makers: chunk i   preparers: A, P of i + 2, 1 / (1 + A) of i + 1
 *             copies: q, k of i + 3, v of i + 1
 *
 * A maker has 16 columns of y and their rows of S, as sums of products in registers.  All that it
 * multiplies has these columns as rows of the first operand (U^T, R^T, S), so that the results of
 * one product are the operand of the next without leaving registers.  The chunk is two blocks of 16
 * tokens, of which preparers invert 1 + A each by itself, T[0] and T[1]:
 *
 *   U[0] = T[0] R[0]      U[1] = T[1] (R[1] - A[1][0] U[0])
 *
 * Rounding: q and k enter products as they are, their factors are applied to sums in fp32.  All
 * else on the way to S' is two bf16 each, the second holding what the first has lost, so the state
 * keeps some 16 bits; P, and U and S where only y depends on them, are one bf16.  How a text is cut
 * into steps and chunks changes last bits, which the program must allow (`chunks`, delta_rule.c).
 *
 * Runs of few tokens, as of requests that decode beside a prompt, go token by token
 * (delta_warp.cuh), as many neighbours of them as there are at once.
 *
 * Cost of a chunk and maker, K = 128: 194 products of 16 x 8 x 16 and 65 loads of matrices.
 * Scratch: shape/delta_shape.h.  Printed by src/gen/body_delta.c.
 */
#ifndef TASK_DELTA_CHUNK_CUH
#define TASK_DELTA_CHUNK_CUH

#include "ptx/matrix.cuh"
#include "task/delta_warp.cuh"

/* Warps that make columns; a run of fewer tokens goes token by token. */
enum { CHUNK_MAKERS = DELTA_WIDTH / 16, CHUNK_WORTH = 12, CHUNK_BLOCK = DELTA_CHUNK / 2 };

/* Neighbouring tokens of one slot and up to DELTA_WIDTH columns of one head: the same in all
 * threads. */
struct chunk_run {
    int first, n; /* tokens */
    int lo, hi;   /* columns */
    recurrent_place place;
};

/* Numbers of the tokens of a chunk in scratch: how far each moves the state, G, the factors. */
struct chunk_factors {
    float reach[DELTA_CHUNK], fade[DELTA_CHUNK], of_k[DELTA_CHUNK], of_q[DELTA_CHUNK];
};

/* S of the warp's 16 columns, as a product's sums: lane 4 g + c has keys 8 n + 2c, + 1 of columns g
 * and g + 8. */
template <int KEYS> struct chunk_state {
    float at[KEYS / 8][4];
};

/* ---- scratch ---- */

/* What a round hands to the next ones, of a chunk: T on the diagonal, below it -A[1][0], above it
 * what rounding took from T[0]; P, above its diagonal what rounding took from T[1]; what it took
 * from -A[1][0], in rows of 32 bytes; numbers. */
struct chunk_made {
    char solution[DELTA_MATRIX_BYTES], scores[DELTA_MATRIX_BYTES], lost[DELTA_BLOCK_BYTES];
    chunk_factors of;
};

template <int KEYS> MPK_FN char *chunk_keys(const mpk_task &t, int chunk)
{
    return t.s_scratch + chunk % 4 * 2 * DELTA_KEY_BYTES(KEYS);
}
template <int KEYS> MPK_FN char *chunk_queries(const mpk_task &t, int chunk)
{
    return chunk_keys<KEYS>(t, chunk) + DELTA_KEY_BYTES(KEYS);
}
/* Rows of v; the maker's y in their place when it has read them. */
template <int KEYS> MPK_FN char *chunk_values(const mpk_task &t, int chunk)
{
    return t.s_scratch + 8 * DELTA_KEY_BYTES(KEYS) + chunk % 2 * DELTA_VALUE_BYTES;
}
/* The blocks of -A on the diagonal: [2][16][16]. */
template <int KEYS> MPK_FN float *chunk_raw(const mpk_task &t, int chunk)
{
    return (float *)(t.s_scratch + 8 * DELTA_KEY_BYTES(KEYS) + 2 * DELTA_VALUE_BYTES +
                     chunk % 2 * DELTA_RAW_BYTES);
}
template <int KEYS> MPK_FN chunk_made *chunk_made_of(const mpk_task &t, int chunk)
{
    static_assert(sizeof(chunk_made) ==
                      2 * DELTA_MATRIX_BYTES + DELTA_BLOCK_BYTES + DELTA_FACTOR_BYTES,
                  "the host counts the same bytes");
    return (chunk_made *)(t.s_scratch + DELTA_SCRATCH_BYTES(KEYS)) - 3 + chunk % 3;
}

/* The 16 bytes of number `unit` in a row: of rows of keys, of 64 and of 32 bytes, in the
 * swizzles of ptx/matrix.cuh. */
template <int KEYS> MPK_FN char *chunk_long(char *s_rows, int row, int unit)
{
    return s_rows + row * KEYS * 2 + (unit ^ row % 8) * 16;
}
MPK_FN char *chunk_short(char *s_rows, int row, int unit)
{
    return s_rows + row * 64 + (unit ^ row / 2 % 4) * 16;
}
MPK_FN char *chunk_least(char *s_rows, int row, int unit)
{
    return s_rows + row * 32 + (unit ^ row / 4 % 2) * 16;
}
/* An entry of 16 bits of a row of 64 bytes. */
MPK_FN rt_u16 *chunk_entry(char *s_rows, int row, int column)
{
    return (rt_u16 *)chunk_short(s_rows, row, column / 8) + column % 8;
}

/* ---- copies ---- */

/* All threads: request a head of a chunk's rows of x; tokens beyond the run become zeros. */
template <int KEYS>
MPK_FN void chunk_copy_keys(const mpk_task &t, int operand, int row_elements, int head,
                            const chunk_run &r, int chunk, char *s_to)
{
    enum { UNITS = KEYS / 8 };
    const char *g =
        mpk_at<const char>(t, operand) + ((rt_i64)r.first * row_elements + head * KEYS) * 2;
#pragma unroll
    for (int i = 0; i < DELTA_CHUNK * UNITS; i += MPK_THREADS) {
        const int row = (i + mpk_thread()) / UNITS, unit = (i + mpk_thread()) % UNITS,
                  token = chunk * DELTA_CHUNK + row;
        const bool there = token < r.n;
        ptx_copy_async(chunk_long<KEYS>(s_to, row, unit),
                       g + (there ? (rt_i64)token * row_elements * 2 + unit * 16 : 0), there);
    }
}
/* The same of the columns of v. */
MPK_FN void chunk_copy_values(const mpk_task &t, const delta_shape &s, const chunk_run &r,
                              int chunk, char *s_to)
{
    const int row = mpk_thread() / 4, unit = mpk_thread() % 4, token = chunk * DELTA_CHUNK + row;
    const bool there = token < r.n && r.lo + unit * 8 < r.hi;
    if (row < DELTA_CHUNK)
        ptx_copy_async(chunk_short(s_to, row, unit),
                       mpk_at<const char>(t, DELTA_V) +
                           (there ? (rt_i64)(r.first + token) * s.v_row + r.lo + unit * 8 : 0) * 2,
                       there);
}
template <int KEYS>
MPK_FN void chunk_copy(const mpk_task &t, const delta_shape &s, const delta_head &h,
                       const chunk_run &r, int chunk)
{
    chunk_copy_keys<KEYS>(t, DELTA_K, s.k_row, h.group, r, chunk, chunk_keys<KEYS>(t, chunk));
    chunk_copy_keys<KEYS>(t, DELTA_Q, s.q_row, h.group, r, chunk, chunk_queries<KEYS>(t, chunk));
}

/* a and b of the lane's token of a chunk: requested a chunk ahead. */
struct chunk_gates {
    float a, b;
};
MPK_FN chunk_gates chunk_ask(const mpk_task &t, const delta_shape &s, const delta_head &h,
                             const chunk_run &r, int chunk)
{
    int token = chunk * DELTA_CHUNK + mpk_thread() % 32;
    token = r.first + (token < r.n ? token : r.n - 1);
    return {delta_get<MPK_BF16>(t, DELTA_A, (rt_i64)token * s.a_row + h.head),
            delta_get<MPK_BF16>(t, DELTA_B, (rt_i64)token * s.b_row + h.head)};
}

/* ---- operands of products ---- */

/* Rows 16 block .. + 15 of a matrix of keys, of 16 entries from 16 step on: the first operand. */
template <int KEYS> MPK_FN void chunk_first(char *s_rows, int block, int step, rt_u32 (&a)[4])
{
    const int lane = mpk_thread() % 32;
    ptx_load_matrices(a, chunk_long<KEYS>(s_rows, 16 * block + lane % 16, 2 * step + lane / 16));
}
/* The same rows as columns of the second operand: b[0], b[1] of the first 8, b[2], b[3]. */
template <int KEYS> MPK_FN void chunk_second(char *s_rows, int block, int step, rt_u32 (&b)[4])
{
    const int lane = mpk_thread() % 32;
    ptx_load_matrices(b, chunk_long<KEYS>(s_rows, 16 * block + lane / 16 * 8 + lane % 8,
                                          2 * step + lane / 8 % 2));
}
/* A block of a matrix [32, 32] as the second operand, its columns those that are summed. */
MPK_FN void chunk_square(char *s_rows, int block, int step, rt_u32 (&b)[4])
{
    const int lane = mpk_thread() % 32;
    ptx_load_matrices(
        b, chunk_short(s_rows, 16 * block + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
}
MPK_FN void chunk_square_lost(char *s_rows, rt_u32 (&b)[4])
{
    const int lane = mpk_thread() % 32;
    ptx_load_matrices(b, chunk_least(s_rows, lane / 16 * 8 + lane % 8, lane / 8 % 2));
}
/* Keys 16 pair .. + 15 as columns, tokens 16 block .. as what is summed. */
template <int KEYS> MPK_FN void chunk_turned(char *s_rows, int block, int pair, rt_u32 (&b)[4])
{
    const int lane = mpk_thread() % 32;
    ptx_load_matrices_transposed(
        b, chunk_long<KEYS>(s_rows, 16 * block + lane % 16, 2 * pair + lane / 16));
}

/* Two neighbouring tiles of sums as a first operand of 16 columns: as one bf16, and as two. */
MPK_FN void chunk_round(const float *x, const float *y, rt_u32 (&a)[4])
{
    a[0] = ptx_pack_bf16(x[0], x[1]);
    a[1] = ptx_pack_bf16(x[2], x[3]);
    a[2] = ptx_pack_bf16(y[0], y[1]);
    a[3] = ptx_pack_bf16(y[2], y[3]);
}
MPK_FN rt_u32 chunk_rest(rt_u32 pair, float x, float y)
{
    return ptx_pack_bf16(x - ptx_low_bf16(pair), y - ptx_high_bf16(pair));
}
MPK_FN void chunk_split(const float *x, const float *y, rt_u32 (&a)[4], rt_u32 (&rest)[4])
{
    chunk_round(x, y, a);
    rest[0] = chunk_rest(a[0], x[0], x[1]);
    rest[1] = chunk_rest(a[1], x[2], x[3]);
    rest[2] = chunk_rest(a[2], y[0], y[1]);
    rest[3] = chunk_rest(a[3], y[2], y[3]);
}

/* Two tiles of sums += a b. */
MPK_FN void chunk_multiply(float (*sum)[4], const rt_u32 (&a)[4], const rt_u32 (&b)[4])
{
    ptx_multiply_bf16(sum[0], a[0], a[1], a[2], a[3], b[0], b[1]);
    ptx_multiply_bf16(sum[1], a[0], a[1], a[2], a[3], b[2], b[3]);
}

/* ---- preparers: A, P and the numbers of a chunk ---- */

/* The barrier at which preparers meet, and which of them has the gates. */
enum { CHUNK_PREPARERS = MPK_WARPS - CHUNK_MAKERS, CHUNK_MEETING = 2, CHUNK_ASKS = 4 };

MPK_FN int chunk_preparer(void)
{
    return mpk_thread() / 32 - CHUNK_MAKERS;
}

/* A warp: how the state fades from a chunk's first token on, how far each of its n tokens moves it.
 * Tokens beyond the run leave it. */
template <int KEYS>
MPK_FN void chunk_number_gates(const mpk_task &t, const delta_head &h, int n, int chunk,
                               const chunk_gates &gates)
{
    const int lane = mpk_thread() % 32;
    chunk_factors *f = &chunk_made_of<KEYS>(t, chunk)->of;
    float fade = lane < n ? delta_fade(h, gates.a) : 0.0f;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, fade, d);
        fade += lane >= d ? before : 0.0f;
    }
    f->fade[lane] = fade;
    f->reach[lane] = lane < n ? delta_reach(gates.b) : 0.0f;
}

/* A warp: the factors of queries, a lane each. */
template <int KEYS>
MPK_FN void chunk_number_queries(const mpk_task &t, const delta_shape &s, int n, int chunk)
{
    const int lane = mpk_thread() % 32;
    char *s_rows = chunk_queries<KEYS>(t, chunk);
    float sum[2] = {};
#pragma unroll 4
    for (int unit = 0; unit < KEYS / 8; unit++) {
        const uint4 w = *(const uint4 *)chunk_long<KEYS>(s_rows, lane, unit);
        const rt_u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float low = ptx_low_bf16(words[i]), high = ptx_high_bf16(words[i]);
            sum[0] += low * low;
            sum[1] += high * high;
        }
    }
    chunk_made_of<KEYS>(t, chunk)->of.of_q[lane] =
        lane < n ? rsqrtf(sum[0] + sum[1] + s.eps) * rsqrtf((float)KEYS) : 0.0f;
}

/* A preparer's block of A or P: 16 rows and 16 columns. */
struct chunk_job {
    bool scores; /* of P */
    int row, column;
};
/* Blocks below and on the diagonal. */
MPK_FN chunk_job chunk_job_of(int preparer)
{
    return {preparer >= 3, preparer != 2 && preparer != 3, preparer == 1 || preparer == 5};
}

/* The factors of keys, which are on the diagonal of k k^T: of a block of it. */
template <int KEYS>
MPK_FN void chunk_number_keys(const mpk_task &t, const delta_shape &s, int n, int chunk, int block,
                              const float (&sum)[2][4])
{
    const int lane = mpk_thread() % 32, g = lane / 4, c = lane % 4;
    chunk_factors *f = &chunk_made_of<KEYS>(t, chunk)->of;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int row = 16 * block + g + 8 * m;
        const float squares = g % 2 ? sum[m][2 * m + 1] : sum[m][2 * m];
        if (g / 2 == c)
            f->of_k[row] = row < n ? rsqrtf(squares + s.eps) : 0.0f;
    }
}

/* A warp's sums become its block of A or P. */
template <int KEYS>
MPK_FN void chunk_weigh(const mpk_task &t, int chunk, const chunk_job &job,
                        const float (&sum)[2][4])
{
    const int lane = mpk_thread() % 32, g = lane / 4, c = lane % 4;
    chunk_made *made = chunk_made_of<KEYS>(t, chunk);
    const chunk_factors *f = &made->of;
    const bool diagonal = job.row == job.column;
    float *s_raw = chunk_raw<KEYS>(t, chunk) + job.row * CHUNK_BLOCK * CHUNK_BLOCK;
    float2 fades[2], of_k[2]; /* of the lane's columns: all loads before the first store */
#pragma unroll
    for (int n = 0; n < 2; n++) {
        fades[n] = *(const float2 *)&f->fade[16 * job.column + 8 * n + 2 * c];
        of_k[n] = *(const float2 *)&f->of_k[16 * job.column + 8 * n + 2 * c];
    }
    float w[2][2][2]; /* row g + 8 m, columns 8 n + 2c and + 1 of the block */
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int row = g + 8 * m, i = 16 * job.row + row;
        const float fade = f->fade[i], of = job.scores ? f->of_q[i] : -f->reach[i] * f->of_k[i];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int column = 8 * n + 2 * c + e;
                const bool there = !diagonal || column < row || (job.scores && column == row);
                w[m][n][e] = there ? ptx_exp2(fade - (e ? fades[n].y : fades[n].x)) * of *
                                         (e ? of_k[n].y : of_k[n].x) * sum[n][2 * m + e]
                                   : 0.0f;
            }
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int row = g + 8 * m, i = 16 * job.row + row, j = 16 * job.column + 8 * n + 2 * c;
            const rt_u32 pair = ptx_pack_bf16(w[m][n][0], w[m][n][1]);
            if (job.scores) {
                *(rt_u32 *)chunk_entry(made->scores, i, j) = pair;
            } else if (diagonal) {
                *(float2 *)&s_raw[row * CHUNK_BLOCK + 8 * n + 2 * c] = {w[m][n][0], w[m][n][1]};
            } else {
                *(rt_u32 *)chunk_entry(made->solution, i, j) = pair;
                *(rt_u32 *)(chunk_least(made->lost, row, n) + c * 4) =
                    chunk_rest(pair, w[m][n][0], w[m][n][1]);
            }
        }
}

/* A warp: T of both blocks, column by column from the first row down; half of the lanes have a
 * block each. */
template <int KEYS> MPK_FN void chunk_invert(const mpk_task &t, int chunk)
{
    const int block = mpk_thread() % 32 / 16, column = mpk_thread() % 16;
    const float *s_raw = chunk_raw<KEYS>(t, chunk) + block * CHUNK_BLOCK * CHUNK_BLOCK;
    chunk_made *made = chunk_made_of<KEYS>(t, chunk);
    char *s_to = made->solution, *s_lost = block ? made->scores : s_to;
    float x[CHUNK_BLOCK];
#pragma unroll
    for (int i = 0; i < CHUNK_BLOCK; i++) {
        x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            const float4 a = *(const float4 *)(s_raw + i * CHUNK_BLOCK + j);
            const float row[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (j + k < i)
                    x[i] += row[k] * x[j + k];
        }
    }
#pragma unroll
    for (int i = 0; i < CHUNK_BLOCK; i++) { /* not before: loads would not go ahead of stores */
        const rt_u32 high = ptx_pack_bf16(x[i], 0);
        *chunk_entry(s_to, 16 * block + i, 16 * block + column) = (rt_u16)high;
        *chunk_entry(s_lost, i, 16 + column) = (rt_u16)chunk_rest(high, x[i], 0);
    }
}

/* All preparers: A and P of chunk `chunk`, which has n tokens; the first one then inverts those of
 * the chunk before. */
template <int KEYS>
MPK_FN void chunk_prepare(const mpk_task &t, const delta_shape &s, const delta_head &h, int n,
                          int chunk, const chunk_gates &gates)
{
    const int preparer = chunk_preparer();
    const chunk_job job = chunk_job_of(preparer);
    char *s_keys = chunk_keys<KEYS>(t, chunk),
         *s_rows = job.scores ? chunk_queries<KEYS>(t, chunk) : s_keys;
    float sum[2][4] = {};
    if (n > 0) {
        if (preparer == CHUNK_ASKS)
            chunk_number_gates<KEYS>(t, h, n, chunk, gates);
        if (preparer == CHUNK_PREPARERS - 1)
            chunk_number_queries<KEYS>(t, s, n, chunk);
#pragma unroll 4
        for (int step = 0; step < KEYS / 16; step++) {
            rt_u32 a[4], b[4];
            chunk_first<KEYS>(s_rows, job.row, step, a);
            chunk_second<KEYS>(s_keys, job.column, step, b);
            chunk_multiply(sum, a, b);
        }
        if (!job.scores && job.row == job.column)
            chunk_number_keys<KEYS>(t, s, n, chunk, job.row, sum);
    }
    ptx_meet(CHUNK_MEETING, CHUNK_PREPARERS * 32);
    if (n > 0)
        chunk_weigh<KEYS>(t, chunk, job, sum);
    if (preparer == 0 && chunk > 0)
        chunk_invert<KEYS>(t, chunk - 1);
}

/* ---- makers ---- */

/* The warp's columns: from the slot to registers, or back. */
template <int KEYS>
MPK_FN void chunk_move(const mpk_task &t, const delta_shape &s, const chunk_run &r, bool store,
                       chunk_state<KEYS> &state)
{
    const int lane = mpk_thread() % 32, column = r.lo + mpk_thread() / 32 * 16 + lane / 4;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        float2 *g = (float2 *)delta_state(t, s, r.place.slot, column + 8 * m) + lane % 4;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            if (store) {
                g[4 * n] = {state.at[n][2 * m], state.at[n][2 * m + 1]};
            } else {
                const float2 v = r.place.begins ? float2{0, 0} : g[4 * n];
                state.at[n][2 * m] = v.x;
                state.at[n][2 * m + 1] = v.y;
            }
    }
}

/* S k and S q of all tokens of the chunk: lane 4 g + c has tokens 8 n + 2c, + 1 of columns g and
 * g + 8. */
template <int KEYS>
MPK_FN void chunk_recall(const mpk_task &t, int chunk, const chunk_state<KEYS> &state,
                         float (&known)[4][4], float (&y)[4][4])
{
    char *s_keys = chunk_keys<KEYS>(t, chunk), *s_queries = chunk_queries<KEYS>(t, chunk);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            known[n][e] = y[n][e] = 0;
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        rt_u32 a[4], rest[4];
        chunk_split(state.at[2 * step], state.at[2 * step + 1], a, rest);
#pragma unroll
        for (int block = 0; block < 2; block++) {
            rt_u32 b[4];
            chunk_second<KEYS>(s_keys, block, step, b);
            chunk_multiply(known + 2 * block, a, b);
            chunk_multiply(known + 2 * block, rest, b);
            chunk_second<KEYS>(s_queries, block, step, b);
            chunk_multiply(y + 2 * block, a, b);
        }
    }
}

/* `known` becomes R, y what queries find in S. */
template <int KEYS>
MPK_FN void chunk_correct(const mpk_task &t, int chunk, float (&known)[4][4], float (&y)[4][4])
{
    const int lane = mpk_thread() % 32, g = lane / 4, c = lane % 4;
    const chunk_factors *f = &chunk_made_of<KEYS>(t, chunk)->of;
    char *s_values = chunk_values<KEYS>(t, chunk);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int token = 8 * n + 2 * c + e;
            const float stays = ptx_exp2(f->fade[token]), of_k = stays * f->of_k[token],
                        of_q = stays * f->of_q[token], reach = f->reach[token];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const float v =
                    ptx_low_bf16(*chunk_entry(s_values, token, mpk_thread() / 32 * 16 + g + 8 * m));
                known[n][2 * m + e] = reach * (v - of_k * known[n][2 * m + e]);
                y[n][2 * m + e] *= of_q;
            }
        }
}

/* Two tiles of sums += a b, both with what their rounding took. */
MPK_FN void chunk_multiply_all(float (*sum)[4], const rt_u32 (&a)[4], const rt_u32 (&a_rest)[4],
                               const rt_u32 (&b)[4], const rt_u32 (&b_rest)[4])
{
    chunk_multiply(sum, a, b);
    chunk_multiply(sum, a_rest, b);
    chunk_multiply(sum, a, b_rest);
}

/* R becomes U, block by block; y gets what earlier tokens of the chunk have added. */
template <int KEYS>
MPK_FN void chunk_solve(const mpk_task &t, int chunk, float (&u)[4][4], float (&y)[4][4])
{
    chunk_made *made = chunk_made_of<KEYS>(t, chunk);
    char *s_solution = made->solution, *s_scores = made->scores;
#pragma unroll
    for (int block = 0; block < 2; block++) {
        rt_u32 a[4], rest[4], b[4], b_rest[4];
        chunk_split(u[2 * block], u[2 * block + 1], a, rest);
#pragma unroll
        for (int e = 0; e < 4; e++)
            u[2 * block][e] = u[2 * block + 1][e] = 0;
        chunk_square(s_solution, block, block, b);
        chunk_square(block ? s_scores : s_solution, 0, 1, b_rest);
        chunk_multiply_all(u + 2 * block, a, rest, b, b_rest);
        chunk_split(u[2 * block], u[2 * block + 1], a, rest);
        if (block == 0) {
            chunk_square(s_solution, 1, 0, b);
            chunk_square_lost(made->lost, b_rest);
            chunk_multiply_all(u + 2, a, rest, b, b_rest);
            chunk_square(s_scores, 1, 0, b);
            chunk_multiply(y + 2, a, b);
        }
        chunk_square(s_scores, block, block, b);
        chunk_multiply(y + 2 * block, a, b);
    }
}

/* S fades, and U is added to it. */
template <int KEYS>
MPK_FN void chunk_learn(const mpk_task &t, int chunk, float (&u)[4][4], chunk_state<KEYS> &state)
{
    const int c = mpk_thread() % 4;
    const chunk_factors *f = &chunk_made_of<KEYS>(t, chunk)->of;
    const float last = f->fade[DELTA_CHUNK - 1], stays = ptx_exp2(last);
    char *s_keys = chunk_keys<KEYS>(t, chunk);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int token = 8 * n + 2 * c + e;
            const float of = ptx_exp2(last - f->fade[token]) * f->of_k[token];
            u[n][e] *= of;
            u[n][2 + e] *= of;
        }
    rt_u32 a[2][4], rest[2][4];
    chunk_split(u[0], u[1], a[0], rest[0]);
    chunk_split(u[2], u[3], a[1], rest[1]);
#pragma unroll
    for (int pair = 0; pair < KEYS / 16; pair++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            state.at[2 * pair][e] *= stays;
            state.at[2 * pair + 1][e] *= stays;
        }
#pragma unroll
        for (int block = 0; block < 2; block++) {
            rt_u32 b[4];
            chunk_turned<KEYS>(s_keys, block, pair, b);
            chunk_multiply(state.at + 2 * pair, a[block], b);
            chunk_multiply(state.at + 2 * pair, rest[block], b);
        }
    }
}

/* The warp's columns of y, through the place of its columns of v, by 16 bytes. */
template <int KEYS>
MPK_FN void chunk_store(const mpk_task &t, const delta_shape &s, const chunk_run &r, int chunk,
                        const float (&y)[4][4])
{
    const int warp = mpk_thread() / 32, lane = mpk_thread() % 32, g = lane / 4, c = lane % 4,
              token = chunk * DELTA_CHUNK + lane;
    char *s_y = chunk_values<KEYS>(t, chunk);
    __syncwarp(); /* all lanes have read v */
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            *chunk_entry(s_y, 8 * n + 2 * c + e % 2, warp * 16 + g + e / 2 * 8) =
                (rt_u16)ptx_pack_bf16(y[n][e], 0);
    __syncwarp();
    char *g_y =
        mpk_at<char>(t, DELTA_Y) + ((rt_i64)(r.first + token) * s.y_row + r.lo + warp * 16) * 2;
    if (token < r.n) {
        *(uint4 *)g_y = *(const uint4 *)chunk_short(s_y, lane, 2 * warp);
        *(uint4 *)(g_y + 16) = *(const uint4 *)chunk_short(s_y, lane, 2 * warp + 1);
    }
}

template <int KEYS>
MPK_FN void chunk_make(const mpk_task &t, const delta_shape &s, const chunk_run &r, int chunk,
                       chunk_state<KEYS> &state)
{
    float u[4][4], y[4][4];
    chunk_recall<KEYS>(t, chunk, state, u, y);
    chunk_correct<KEYS>(t, chunk, u, y);
    chunk_solve<KEYS>(t, chunk, u, y);
    chunk_learn<KEYS>(t, chunk, u, state);
    chunk_store<KEYS>(t, s, r, chunk, y);
}

/* ---- a run, and the task ---- */

/* All threads: a run by chunks. */
template <int KEYS>
MPK_FN void chunk_take(const mpk_task &t, const delta_shape &s, const chunk_run &r)
{
    const delta_head h = delta_head_of<MPK_BF16>(t, s, r.lo);
    const int chunks = (r.n + DELTA_CHUNK - 1) / DELTA_CHUNK, preparer = chunk_preparer();
    const bool makes = preparer < 0 && r.lo + mpk_thread() / 32 * 16 < r.hi;
    chunk_state<KEYS> state = {};
    chunk_copy<KEYS>(t, s, h, r, 0);
    ptx_copy_async_commit();
    if (makes)
        chunk_move<KEYS>(t, s, r, false, state);
    chunk_gates gates = chunk_ask(t, s, h, r, 0);
    ptx_copy_async_wait<0>();
    mpk_sync();
    for (int i = -2; i < chunks; i++) {
        if (i + 3 < chunks)
            chunk_copy<KEYS>(t, s, h, r, i + 3);
        if (i + 1 >= 0 && i + 1 < chunks)
            chunk_copy_values(t, s, r, i + 1, chunk_values<KEYS>(t, i + 1));
        ptx_copy_async_commit();
        chunk_gates next = {};
        if (preparer == CHUNK_ASKS)
            next = chunk_ask(t, s, h, r, i + 3);
        if (preparer >= 0 && i + 1 < chunks)
            chunk_prepare<KEYS>(t, s, h, r.n - (i + 2) * DELTA_CHUNK, i + 2, gates);
        else if (makes && i >= 0)
            chunk_make<KEYS>(t, s, r, i, state);
        gates = next;
        ptx_copy_async_wait<0>();
        mpk_sync();
    }
    if (makes)
        chunk_move<KEYS>(t, s, r, true, state);
}

/* All threads: how many tokens from `first` on have its place's slot, or none as it has none; the
 * same in all threads.  A text begins a run. */
MPK_FN int chunk_length(const mpk_task &t, const delta_shape &s, int first, int end)
{
    const int slot = delta_find(t, s, first).slot, lane = mpk_thread() % 32;
    for (int n = 1;; n += 32) {
        bool other = first + n + lane >= end;
        if (!other) {
            const recurrent_place p = delta_find(t, s, first + n + lane);
            other = p.slot != slot || p.begins;
        }
        const rt_u32 others = __ballot_sync(0xffffffffu, other);
        if (others)
            return n + __ffs((int)others) - 1;
    }
}

/* Columns lo to hi - 1 of one head. */
template <int KEYS, int PIECES>
MPK_FN void chunk_columns(const mpk_task &t, const delta_shape &s, int lo, int hi, int tokens)
{
    for (int first = 0; first < tokens;) {
        int next = first, n = 0; /* where short runs end; tokens of the long one after them */
        while (next < tokens && n == 0) {
            const int length = chunk_length(t, s, next, tokens);
            if (length >= CHUNK_WORTH && delta_find(t, s, next).slot >= 0)
                n = length;
            else
                next += length;
        }
        if (next > first)
            delta_columns<MPK_BF16, PIECES>(t, s, lo, hi, first, next);
        mpk_sync(); /* other threads go on with the states of these slots, if tokens of none part
                     * a slot's */
        if (n)
            chunk_take<KEYS>(t, s, {next, n, lo, hi, delta_find(t, s, next)});
        mpk_sync();
        first = next + n;
    }
}

/* The body: q, k, v, a, b and y are bf16. */
template <int KEYS> MPK_FN void delta_chunk(const mpk_task &t, const delta_shape &s)
{
    const int end = (int)mpk_hi(t, 1);
    for (int lo = (int)mpk_lo(t, 1), hi; lo < end; lo = hi) {
        const int head = (lo / s.values + 1) * s.values;
        hi = lo + DELTA_WIDTH < head ? lo + DELTA_WIDTH : head;
        hi = hi < end ? hi : end;
        chunk_columns<KEYS, (KEYS + 63) / 64>(t, s, lo, hi, (int)mpk_hi(t, 0));
    }
}

#endif
