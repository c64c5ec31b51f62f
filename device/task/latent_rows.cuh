/* latent_rows.cuh - the queries of latent attention joined and rotated, its latents normalised and
 * put into the cache with their rotated keys: rows of 16 bits in pieces of eight entries.
 *
 * The operator latent_rope (src/op/latent_rope.c); latent_rope.cuh has the generic body.  A row is
 * a head of a token, L entries that are joined and R = 2 half that are rotated; a piece, 16 bytes,
 * is one load or store:
 *
 *   joined     a warp a row, ROWS rows at once, so that their loads are under way together
 *   rotated    a thread has piece i of the first half and piece i of the second, which are each
 *              other's partners, and their angles
 *   cached     a warp a token: its latent, whose squares the lanes add up, and its key
 *
 * The three begin at different warps, so that a task of few rows has them side by side.  A token is
 * cached by the task that has its head number token % H, so tasks of equal boxes take equally long.
 *
 * Of two tokens of the step at one place the later stays, and the earlier is not written.  So tasks
 * that cache tokens first put the places of all tokens of the step into scratch, an int each.
 *
 * Cost: one pass over the parts; a word of scratch for each token of the step, of which each cached
 * token looks at the later ones, 32 at a time.
 */
#ifndef TASK_LATENT_ROWS_CUH
#define TASK_LATENT_ROWS_CUH

#include "shape/latent_rows_shape.h"
#include "task/eights.cuh"
#include "tile/kv.cuh"
#include "tile/worker.cuh"

/* The task's tokens and heads, of tokens those that are alive. */
struct latent_box {
    int token, token_end, head, head_end;
};

/* Where a piece lies: entry `entry` of the row that begins so many elements from g. */
MPK_FN const char *latent_piece_at(const mpk_task &t, int operand, rt_i64 row, int entry)
{
    return mpk_at<const char>(t, operand) + (row + entry) * 2;
}
/* The same in query. */
MPK_FN char *latent_query_at(const mpk_task &t, const latent_rows_shape &s, int token, int head,
                             int entry)
{
    return mpk_at<char>(t, s.query) +
           (((rt_i64)token * s.heads + head) * (s.latent + 2 * s.half) + entry) * 2;
}

/* ---- queries ---- */

/* What is joined.  PIECES: of a lane, in a row. */
template <int PIECES>
MPK_FN void latent_join(const mpk_task &t, const latent_rows_shape &s, const latent_box &b)
{
    constexpr int ROWS = PIECES > 2 ? 2 : 4;
    const int warp = mpk_thread() / 32, lane = mpk_thread() % 32, heads = b.head_end - b.head,
              rows = (b.token_end - b.token) * heads;
#pragma unroll 1
    for (int first = warp; first < rows; first += ROWS * MPK_WARPS) {
        eight_quad piece[ROWS][PIECES];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            /* after the last row the first again: loaded, not stored */
            const int own = first + i * MPK_WARPS < rows ? first + i * MPK_WARPS : first;
            const rt_i64 row = (rt_i64)(b.token + own / heads) * s.plain_token +
                               (rt_i64)(b.head + own % heads) * s.plain_head;
#pragma unroll
            for (int p = 0; p < PIECES; p++) {
                const int entry = (p * 32 + lane) * EIGHT;
                ptx_load_once(
                    latent_piece_at(t, LATENT_ROWS_PLAIN, row, entry < s.latent ? entry : 0),
                    piece[i][p].at);
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int own = first + i * MPK_WARPS;
            char *to = latent_query_at(t, s, b.token + own / heads, b.head + own % heads, 0);
#pragma unroll
            for (int p = 0; p < PIECES; p++)
                if (own < rows && (p * 32 + lane) * EIGHT < s.latent)
                    ptx_store_quad(to + (p * 32 + lane) * EIGHT * 2, piece[i][p].at);
        }
    }
}

/* Two pieces that are each other's partners; before and after they are rotated. */
struct latent_pair {
    eight low, high;
};
/* Pieces number `piece` of both halves of a row of q or key, and the token's angles. */
template <int DTYPE>
MPK_FN latent_pair latent_rotate(const mpk_task &t, const latent_rows_shape &s, int operand,
                                 rt_i64 row, int token, int piece)
{
    constexpr mpk_view v = {0, DTYPE}, angles = {0, MPK_F32};
    const char *g_table = mpk_at<const char>(t, LATENT_ROWS_TABLE);
    const rt_i64 angle = (rt_i64)token * 2 * s.half + piece * EIGHT;
    const eight low = eight_load(v, latent_piece_at(t, operand, row, piece * EIGHT), 0),
                high = eight_load(v, latent_piece_at(t, operand, row, s.half + piece * EIGHT), 0),
                cosines = eight_load(angles, g_table, angle),
                sines = eight_load(angles, g_table, angle + s.half);
    float a[EIGHT], b[EIGHT], cosine[EIGHT], sine[EIGHT];
    eight_floats(DTYPE, low, a);
    eight_floats(DTYPE, high, b);
    eight_floats(MPK_F32, cosines, cosine);
    eight_floats(MPK_F32, sines, sine);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        const float x = a[i];
        a[i] = x * cosine[i] - b[i] * sine[i];
        b[i] = b[i] * cosine[i] + x * sine[i];
    }
    return {eight_of(DTYPE, a), eight_of(DTYPE, b)};
}

/* What is rotated, from the middle warp on. */
template <int DTYPE>
MPK_FN void latent_turn(const mpk_task &t, const latent_rows_shape &s, const latent_box &b)
{
    constexpr mpk_view v = {0, DTYPE};
    const int heads = b.head_end - b.head, pieces = s.half / EIGHT,
              all = (b.token_end - b.token) * heads * pieces;
#pragma unroll 2
    for (int i = (mpk_thread() + MPK_THREADS / 2) % MPK_THREADS; i < all; i += MPK_THREADS) {
        const int row = i / pieces, piece = i % pieces, token = b.token + row / heads,
                  head = b.head + row % heads;
        const latent_pair p = latent_rotate<DTYPE>(
            t, s, LATENT_ROWS_Q, (rt_i64)token * s.q_token + (rt_i64)head * s.q_head, token, piece);
        char *to = latent_query_at(t, s, token, head, s.latent + piece * EIGHT);
        eight_store(v, to, 0, p.low);
        eight_store(v, to, s.half, p.high);
    }
}

/* ---- the cache ---- */

/* The place of a token: page * positions of a page + place in it; -1: it has none.  What the step
 * says of it is data and counts only in range. */
MPK_FN int latent_place(const mpk_task &t, const latent_rows_shape &s, int token)
{
    const mpk_cache &c = mpk_caches[s.cache];
    const int position = mpk_at<const int>(t, LATENT_ROWS_POSITIONS)[token],
              slot = mpk_at<const int>(t, LATENT_ROWS_SLOTS)[token];
    const bool there =
        position >= 0 && position / s.page < c.slot_pages && (rt_u32)slot < (rt_u32)c.slots;
    const int page = mpk_at<const int>(
        t, LATENT_ROWS_PAGES)[there ? slot * c.slot_pages + position / s.page : 0];
    return there && (rt_u32)page < (rt_u32)c.n_pages ? page * s.page + position % s.page : -1;
}

/* A warp: a token's latent and key into the cache, at its place.  All loads come before the lanes
 * add up their squares, so that they are under way together.  PIECES: of a lane, of the latent; a
 * lane has one pair of pieces of the key. */
template <int DTYPE, int PIECES>
MPK_FN void latent_cache(const mpk_task &t, const latent_rows_shape &s, int token, int place)
{
    constexpr mpk_view v = {0, DTYPE};
    const mpk_view of_norm = {0, s.norm_type ? MPK_F32 : DTYPE};
    const int lane = mpk_thread() % 32, size = s.latent + 2 * s.half, at = place % s.page;
    char *g_page = mpk_at<char>(t, LATENT_ROWS_CACHE) +
                   (rt_i64)(place / s.page) * s.page * size * 2; /* the token's */
    eight x[PIECES], weight[PIECES];
    latent_pair key = {};
    float square = 0;
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int entry = (p * 32 + lane) * EIGHT;
        x[p] = weight[p] = {};
        if (entry < s.latent) {
            x[p] = eight_load(
                v, latent_piece_at(t, LATENT_ROWS_LATENT, (rt_i64)token * s.latent_token, entry),
                0);
            weight[p] = eight_load(of_norm, mpk_at<const char>(t, LATENT_ROWS_NORM), entry);
        }
    }
    if (lane < s.half / EIGHT)
        key = latent_rotate<DTYPE>(t, s, LATENT_ROWS_KEY, (rt_i64)token * s.key_token, token, lane);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        float value[EIGHT];
        eight_floats(DTYPE, x[p], value);
#pragma unroll
        for (int i = 0; i < EIGHT; i++)
            square += value[i] * value[i];
    }
#pragma unroll
    for (int d = 1; d < 32; d *= 2)
        square += __shfl_xor_sync(0xffffffffu, square, d);
    const float factor = rsqrtf(square / (float)s.latent + s.eps);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int entry = (p * 32 + lane) * EIGHT;
        float value[EIGHT], by[EIGHT];
        eight_floats(DTYPE, x[p], value);
        eight_floats(of_norm.dtype, weight[p], by);
#pragma unroll
        for (int i = 0; i < EIGHT; i++)
            value[i] = value[i] * factor * by[i];
        if (entry < s.latent)
            eight_store(v, g_page, kv_key_at(at, entry, s.page, size, 2), eight_of(DTYPE, value));
    }
    if (lane < s.half / EIGHT) {
        const int entry = s.latent + lane * EIGHT;
        eight_store(v, g_page, kv_key_at(at, entry, s.page, size, 2), key.low);
        eight_store(v, g_page, kv_key_at(at, entry + s.half, s.page, size, 2), key.high);
    }
}

/* A warp: has a later token of the step the place of this one? */
MPK_FN bool latent_is_lost(const int *s_places, int token, int all, int place)
{
    bool lost = false;
#pragma unroll 4
    for (int i = token + 1 + mpk_thread() % 32; i < all; i += 32)
        lost = lost || s_places[i] == place;
    return __any_sync(0xffffffffu, lost);
}

/* The task's share of the tokens into the cache, a warp each, from the last warp on.  Those whose
 * head, token % H, is the task's: of every H tokens as many as it has heads. */
template <int DTYPE, int PIECES>
MPK_FN void latent_fill(const mpk_task &t, const latent_rows_shape &s, const latent_box &b, int all)
{
    const int *s_places = (const int *)t.s_scratch;
    const int heads = b.head_end - b.head, begin = b.token - b.token % s.heads,
              n = (b.token_end - begin + s.heads - 1) / s.heads * heads;
#pragma unroll 1
    for (int i = MPK_WARPS - 1 - mpk_thread() / 32; i < n; i += MPK_WARPS) {
        const int token = begin + i / heads * s.heads + b.head + i % heads;
        if (token < b.token || token >= b.token_end)
            continue;
        const int place = s_places[token];
        if (place >= 0 && !latent_is_lost(s_places, token, all, place))
            latent_cache<DTYPE, PIECES>(t, s, token, place);
    }
}

/* The body.  DTYPE: of all but the table and perhaps the norm's weight, MPK_BF16 or MPK_F16;
 * PIECES: of 8 entries that a lane has of a latent. */
template <int DTYPE, int PIECES>
MPK_FN void latent_rows(const mpk_task &t, const latent_rows_shape &s)
{
    const latent_box b = {(int)mpk_lo(t, 0), (int)mpk_hi(t, 0), (int)mpk_lo(t, 1),
                          (int)mpk_hi(t, 1)};
    const int all = (int)mpk_smaller(t.live[t.e->live], (rt_u32)s.tokens);
    /* from the last warp on, which has no row of few */
#pragma unroll 2
    for (int i = MPK_THREADS - 1 - mpk_thread(); i < all; i += MPK_THREADS)
        ((int *)t.s_scratch)[i] = latent_place(t, s, i);
    latent_join<PIECES>(t, s, b);
    latent_turn<DTYPE>(t, s, b);
    mpk_sync(); /* places are there */
    latent_fill<DTYPE, PIECES>(t, s, b, all);
}

#endif
