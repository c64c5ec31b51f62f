/* experts.cuh - mixtures of experts, for any shape: route, and expert_linear.
 *
 * route: a team of threads for each token; the next expert is the largest logit below the last.
 *
 * expert_linear: the pairs of some tokens (a token and one of its experts) are sorted by expert
 * in shared memory, so that a row of a weight is read once for up to TOKENS pairs.  A team takes
 * ROWS rows of an expert; x comes through shared memory, a tile of columns at a time, normalised
 * on the way; lane l of the team adds columns l, l + team, ...  in rising order, then the lanes
 * are added in rising order: the bits of a pair depend on its rows alone.  Pairs that are summed
 * by scale are kept in shared memory and added in the order of a token's experts.
 *
 * Input: views of any plain dtype and strides; ids are data and believed only in range.  Output:
 * the task's box.  These are the bodies of rank 0; route_warp, expert_stream and expert_tile are
 * compared with them.
 */
#ifndef TASK_EXPERTS_CUH
#define TASK_EXPERTS_CUH

#include "task/activate.cuh"
#include "tile/view.cuh"

/* Pairs that are sorted together (no token has more experts), columns of x in a tile, pairs that
 * share a read of a weight, and rows of a team, both at most. */
enum { EXPERT_PAIRS = 256, EXPERT_TILE = 256, EXPERT_TOKENS = 8, EXPERT_ROWS = 4 };
/* Scratch: the expert of each pair, or EXPERT_NONE; pairs by expert; two results of a group; a
 * tile, or partial sums; kept pairs; factors of the norm.  The reductions that give the factors use
 * the first part before the rest does. */
enum {
    /* int[EXPERT_PAIRS]: the expert of each pair, or EXPERT_NONE */
    EXPERT_IDS = 0,
    /* u16[EXPERT_PAIRS]: pairs by expert */
    EXPERT_ORDER = EXPERT_IDS + EXPERT_PAIRS * 4,
    /* float[rows of all teams][tokens]: results of a group by the first weight, then by the
     * second */
    EXPERT_RESULTS = EXPERT_ORDER + EXPERT_PAIRS * 2,
    EXPERT_SECOND = EXPERT_RESULTS + EXPERT_ROWS * 8 * EXPERT_TOKENS * 4,
    /* float[EXPERT_TOKENS][EXPERT_TILE]: x; after the products the lanes' partial sums */
    EXPERT_BUFFER = EXPERT_SECOND + EXPERT_ROWS * 8 * EXPERT_TOKENS * 4,
    /* float[EXPERT_PAIRS][rows of all teams]: pairs that are summed by scale */
    EXPERT_KEPT = EXPERT_BUFFER + EXPERT_TOKENS * EXPERT_TILE * 4,
    EXPERT_FACTORS = EXPERT_KEPT + EXPERT_PAIRS * 8 * 4,
    EXPERT_NONE = 0x7fffffff
};

/* ---- route ---- */

/* A rank that is larger for a larger logit, of equal ones for a lower id; that of NaN is below all.
 * No two experts have the same rank, so "the largest below the last" walks through all experts
 * without a note of which have been chosen.  The id is the low half, turned over. */
MPK_FN rt_u64 route_rank(float x, rt_u32 id)
{
    return (rt_u64)mpk_key(x) << 32 | (rt_u32)~id;
}

/* Operands and attributes of route, as the generated instance fills them in.  normalize: weights
 * are divided by their sum; round: to the logits' dtype; sigmoid: shares are sigmoids, else a
 * softmax; groups, kept, best: of so many groups of experts so many may be chosen from, by the sum
 * of their `best` largest choices, 1 or 2; factor: of all weights. */
struct route_use {
    mpk_view logits, bias, ids, weights;
    bool normalize, round, sigmoid;
    int groups, kept, best;
    float factor;
};

/* A token's row of logits, and what its softmax needs.  Bit i of `open`: experts of group i may be
 * chosen; of groups there are 64 at most.  The same in all threads of a team. */
struct route_state {
    rt_i64 at; /* of its first logit */
    bool mine; /* false: the team has no row, and only meets the others at barriers */
    float largest;
    double sum;
    rt_u64 open;
};

MPK_FN float route_logit_at(const mpk_task &t, const route_use &u, const route_state &r, rt_i64 id)
{
    return mpk_get(u.logits, mpk_data(t, u.logits), r.at + id * u.logits.stride[1]);
}

/* An expert's share, by its logit: what its weight is made of, whether or not a bias has helped to
 * choose it. */
MPK_FN float route_share(const route_use &u, const route_state &r, float logit)
{
    return u.sigmoid ? 1 / (1 + expf(-logit)) : expf(logit - r.largest) / (float)r.sum;
}

/* What an expert is chosen by: its logit, or, where more than its order counts, share and bias: a
 * bias is added to a share, and sums of two need shares too. */
MPK_FN float route_choice(const mpk_task &t, const route_use &u, const route_state &r, rt_i64 id)
{
    float logit = route_logit_at(t, u, r, id);
    if (!mpk_is_there(u.bias) && u.best == 1)
        return logit;
    float share = route_share(u, r, logit);
    return mpk_is_there(u.bias)
               ? share + mpk_get(u.bias, mpk_data(t, u.bias), id * u.bias.stride[0])
               : share;
}

/* The largest rank below `limit` among experts of the open groups, in each thread of the team;
 * by_logit: of the logits.  Called by all threads, since the reduction has barriers.  Each call
 * goes through all logits again: with k experts a token k + 1 passes, of few numbers and from the
 * cache. */
MPK_FN rt_u64 route_next(const mpk_task &t, const route_use &u, const route_state &r, bool by_logit,
                         rt_u64 limit)
{
    rt_u64 best = 0; /* below every rank */
    rt_i64 n = u.logits.dims[1], size = n / u.groups;
    for (rt_i64 i = mpk_thread() % MPK_TEAM; r.mine && i < n; i += MPK_TEAM) {
        if (u.groups > 1 && !(r.open >> i / size & 1))
            continue;
        float value = by_logit ? route_logit_at(t, u, r, i) : route_choice(t, u, r, i);
        rt_u64 rank = route_rank(value, (rt_u32)i);
        best = rank < limit && rank > best ? rank : best;
    }
    return mpk_max(t, MPK_TEAM, best);
}

/* The sum over a row of exp(logit - largest), in each thread of the team; called by all threads. */
MPK_FN double route_sum(const mpk_task &t, const route_use &u, const route_state &r)
{
    double sum = 0; /* this thread's entries */
    for (rt_i64 i = mpk_thread() % MPK_TEAM; r.mine && i < u.logits.dims[1]; i += MPK_TEAM)
        sum += (double)expf(route_logit_at(t, u, r, i) - r.largest);
    return mpk_sum(t, MPK_TEAM, sum);
}

/* What a group counts: its largest choice, or the sum of its two largest.  Called by all threads; a
 * team without a row counts 0. */
MPK_FN float route_rate(const mpk_task &t, const route_use &u, const route_state &r, int group)
{
    route_state one = r;
    one.open = (rt_u64)1 << group;
    rt_u64 first = route_next(t, u, one, false, ~(rt_u64)0);
    float sum = r.mine ? route_choice(t, u, r, (rt_i64)(rt_u32)~first) : 0;
    if (u.best == 1)
        return sum;
    rt_u64 second = route_next(t, u, one, false, first);
    return r.mine ? sum + route_choice(t, u, r, (rt_i64)(rt_u32)~second) : 0;
}

/* The groups that fewer than `kept` exceed, as bits.  Called by all threads.  Of equal groups the
 * first is above, as with experts. */
MPK_FN rt_u64 route_open(const mpk_task &t, const route_use &u, const route_state &r)
{
    rt_u64 ranks[64], open = 0;
    for (int i = 0; i < u.groups; i++)
        ranks[i] = route_rank(route_rate(t, u, r, i), (rt_u32)i);
    for (int i = 0; i < u.groups; i++) {
        int above = 0;
        for (int other = 0; other < u.groups; other++)
            above += ranks[other] > ranks[i];
        open |= (rt_u64)(above < u.kept) << i;
    }
    return open;
}

/* A token's experts; lane 0 of a team writes weights that are not divided yet, and then divides
 * them; `normalize`: by the sum of the chosen ones.  `round` stores them rounded to the logits'
 * dtype, as a model in bf16 does. */
MPK_FN void route_token(const mpk_task &t, const route_use &u, rt_i64 row, bool mine)
{
    char *g_ids = mpk_data(t, u.ids), *g_weights = mpk_data(t, u.weights);
    const mpk_view &weights = u.weights;
    bool writes = mine && mpk_thread() % MPK_TEAM == 0; /* one lane a token */
    route_state r = {row * u.logits.stride[0], mine, 0, 0, ~(rt_u64)0};
    rt_u64 rank = route_next(t, u, r, true, ~(rt_u64)0);
    r.largest = mine ? route_logit_at(t, u, r, (rt_i64)(rt_u32)~rank) : 0;
    r.sum = route_sum(t, u, r);
    if (u.groups > 1)
        r.open = route_open(t, u, r);
    rank = ~(rt_u64)0;
    float chosen = 0;
    for (rt_i64 j = 0; j < u.ids.dims[1]; j++) {
        rank = route_next(t, u, r, false, rank); /* the largest below the last */
        if (!writes)
            continue;
        rt_i64 id = (rt_i64)(rt_u32)~rank; /* the rank's low half */
        float share = route_share(u, r, route_logit_at(t, u, r, id));
        mpk_put_int(u.ids, g_ids, row * u.ids.stride[0] + j * u.ids.stride[1], id);
        mpk_put(weights, g_weights, row * weights.stride[0] + j * weights.stride[1], share);
        chosen += share;
    }
    chosen += 1e-20f; /* sigmoids may all be 0 */
    /* The same thread wrote these weights, so it may read them back without a barrier. */
    for (rt_i64 j = 0; writes && j < u.ids.dims[1]; j++) {
        rt_i64 to = row * weights.stride[0] + j * weights.stride[1];
        float share = mpk_get(weights, g_weights, to);
        share = (u.normalize ? share / chosen : share) * u.factor;
        mpk_put(weights, g_weights, to, u.round ? mpk_round(u.logits.dtype, share) : share);
    }
}

/* The body of route: MPK_TEAMS tokens at a time.  All threads go through all rounds, also those
 * without a row: the reductions meet at barriers. */
MPK_FN void route_run(const mpk_task &t, const route_use &u)
{
    int team = mpk_thread() / MPK_TEAM; /* a token each */
    for (rt_i64 first = mpk_lo(t, 0); first < (rt_i64)mpk_hi(t, 0); first += MPK_TEAMS) {
        bool mine = team < MPK_TEAMS && first + team < (rt_i64)mpk_hi(t, 0);
        route_token(t, u, first + team, mine);
    }
}

/* ---- expert_linear ---- */

/* Operands and attributes of expert_linear, as the generated instance fills them in.  w0, w1 [E,
 * rows, columns]; with a gate y = act(w0 x) * (w1 x).  scale present: y [T, rows] is the sum of a
 * token's pairs times theirs; absent: y [T, experts of a token, rows]. */
struct expert_use {
    mpk_view x, ids, w0, w1, scale, residual, norm, b0, b1, y;
    double eps;     /* of the norm */
    float limit;    /* of ACTIVATE_SWIGLU_OAI */
    int activation; /* ACTIVATE_NONE: no gate */
};

/* The row of x of a pair, counted from those of the first token on. x has one row a token (rank 2),
 * or, after a first product, one row a pair (rank 3). */
MPK_FN int expert_row(const expert_use &u, int pair)
{
    return u.x.rank == 3 ? pair : pair / (int)u.ids.dims[1];
}

/* Where row `row` of x begins, of those of token t0 on. */
MPK_FN rt_i64 expert_row_at(const expert_use &u, rt_i64 t0, int row)
{
    int of_token = (int)u.ids.dims[1]; /* experts */
    return u.x.rank == 3 ? (t0 + row / of_token) * u.x.stride[0] + row % of_token * u.x.stride[1]
                         : (t0 + row) * u.x.stride[0];
}

/* 1 / root mean square of n rows of x from token t0 on, one team a row, into scratch.  The first
 * barrier: the lot before has used its factors.  Read after those of expert_sort. */
MPK_FN void expert_factors(const mpk_task &t, const expert_use &u, rt_i64 t0, int n)
{
    float *s_factor = (float *)(t.s_scratch + EXPERT_FACTORS);
    const char *g_x = mpk_data(t, u.x);
    int thread = mpk_thread(), team = thread / MPK_TEAM, lane = thread % MPK_TEAM;
    rt_i64 width = u.w0.dims[2]; /* columns of x */
    mpk_sync();
    for (int first = 0; first < n; first += MPK_TEAMS) {
        bool mine = team < MPK_TEAMS && first + team < n;
        rt_i64 at = expert_row_at(u, t0, first + team);
        double sum = 0;
        for (rt_i64 k = lane; mine && k < width; k += MPK_TEAM) {
            double value = (double)mpk_get(u.x, g_x, at + k * u.x.stride[u.x.rank - 1]);
            sum += value * value;
        }
        sum = mpk_sum(t, MPK_TEAM, sum);
        if (mine && lane == 0)
            s_factor[first + team] = (float)(1.0 / sqrt(sum / (double)width + u.eps));
    }
}

/* All threads: n pairs from token t0 on: their experts, and their order by expert.  A pair's place
 * is the number of those before it.  Quadratic, but n is at most 256 and each thread has one pair.
 * An id outside of 0 to E - 1 sorts last and adds nothing.  Barriers: before, since the lot before
 * may still be read; between, for the ids; after, for the order.
 *
 *   ids    2 0 2 1      pairs 0 and 1 are token 0's
 *   order  1 3 0 2 */
MPK_FN void expert_sort(const mpk_task &t, const expert_use &u, rt_i64 t0, int n)
{
    int *s_ids = (int *)(t.s_scratch + EXPERT_IDS), of_token = (int)u.ids.dims[1];
    rt_u16 *s_order = (rt_u16 *)(t.s_scratch + EXPERT_ORDER);
    const char *g_ids = mpk_data(t, u.ids);
    mpk_sync();
    for (int p = mpk_thread(); p < n; p += MPK_THREADS) {
        rt_i64 at = (t0 + p / of_token) * u.ids.stride[0] + p % of_token * u.ids.stride[1];
        rt_i64 id = mpk_get_int(u.ids, g_ids, at);
        s_ids[p] = id >= 0 && id < u.w0.dims[0] ? (int)id : EXPERT_NONE;
    }
    mpk_sync();
    for (int p = mpk_thread(); p < n; p += MPK_THREADS) {
        int id = s_ids[p], place = 0; /* pairs that come before */
        for (int q = 0; q < n; q++)
            /* equal experts keep the order of pairs, so the order is one whatever the threads do */
            place += s_ids[q] < id || (s_ids[q] == id && q < p);
        s_order[place] = (rt_u16)p;
    }
    mpk_sync();
}

/* All threads: columns k0 ... of the rows of x of n sorted pairs into s_x[pair][EXPERT_TILE],
 * normalised; zeros after the last column.  The caller has barriers before and after.  In f32, so
 * that a norm's result is not rounded before it is multiplied. */
MPK_FN void expert_stage(const mpk_task &t, const expert_use &u, rt_i64 t0, int first, int n,
                         rt_i64 k0)
{
    float *s_x = (float *)(t.s_scratch + EXPERT_BUFFER);
    const rt_u16 *s_order = (const rt_u16 *)(t.s_scratch + EXPERT_ORDER);
    const float *s_factor = (const float *)(t.s_scratch + EXPERT_FACTORS);
    const char *g_x = mpk_data(t, u.x), *g_norm = mpk_data(t, u.norm);
    for (int i = mpk_thread(); i < n * EXPERT_TILE; i += MPK_THREADS) {
        int row = expert_row(u, s_order[first + i / EXPERT_TILE]);
        rt_i64 k = k0 + i % EXPERT_TILE;
        float value = 0; /* after the last column */
        if (k < u.w0.dims[2]) {
            value = mpk_get(u.x, g_x, expert_row_at(u, t0, row) + k * u.x.stride[u.x.rank - 1]);
            if (mpk_is_there(u.norm))
                value = value * s_factor[row] * mpk_get(u.norm, g_norm, k * u.norm.stride[0]);
        }
        s_x[i] = value;
    }
}

/* s_result[i][j] = w[expert, row + i] . x of sorted pair first + j, for the ROWS * MPK_TEAMS rows
 * from `row` on that are below `end`, and n <= TOKENS pairs.  The rows are dealt to the teams in
 * round, row + c MPK_TEAMS + team: neighbouring teams read neighbouring rows.  Cost: the rows of w
 * once, x once for each round of rows. */
template <int TOKENS, int ROWS>
MPK_FN void expert_group(const mpk_task &t, const expert_use &u, const mpk_view &w, int expert,
                         rt_i64 row, rt_i64 end, rt_i64 t0, int first, int n, float *s_result)
{
    const float *s_x = (const float *)(t.s_scratch + EXPERT_BUFFER);
    const char *g_w = mpk_data(t, w);
    int thread = mpk_thread(), team = thread / MPK_TEAM, lane = thread % MPK_TEAM;
    float r_sum[ROWS][TOKENS] = {}; /* of this lane's columns */
    for (rt_i64 k0 = 0; k0 < w.dims[2]; k0 += EXPERT_TILE) {
        mpk_sync();
        expert_stage(t, u, t0, first, n, k0);
        mpk_sync();
        /* x is zero after the last column, but the weight must not be read there */
        int columns = (int)(w.dims[2] - k0 < EXPERT_TILE ? w.dims[2] - k0 : EXPERT_TILE);
        for (int k = lane; team < MPK_TEAMS && k < columns; k += MPK_TEAM) {
            float r_w[ROWS]; /* read once for all pairs */
#pragma unroll
            for (int c = 0; c < ROWS; c++) {
                rt_i64 at = row + c * MPK_TEAMS + team;
                r_w[c] =
                    at < end
                        ? mpk_get(w, g_w,
                                  expert * w.stride[0] + at * w.stride[1] + (k0 + k) * w.stride[2])
                        : 0;
            }
#pragma unroll
            for (int j = 0; j < TOKENS; j++) {
                float x = j < n ? s_x[j * EXPERT_TILE + k] : 0;
#pragma unroll
                for (int c = 0; c < ROWS; c++)
                    r_sum[c][j] += r_w[c] * x;
            }
        }
    }
    mpk_add_lanes<TOKENS, ROWS>(r_sum, (float *)(t.s_scratch + EXPERT_BUFFER), s_result);
}

/* A bias of the expert's row, [E, rows]; 0: there is none. */
MPK_FN float expert_bias(const mpk_task &t, const mpk_view &b, int expert, rt_i64 row)
{
    return mpk_is_there(b) ? mpk_get(b, mpk_data(t, b), expert * b.stride[0] + row * b.stride[1])
                           : 0;
}

/* A finished group into the result, or among the kept pairs; EXPERT_NONE: the pairs have no expert,
 * and are zeros.  A kept pair lies at its own number, not its sorted place, so that a token's pairs
 * are neighbours when they are added. */
template <int TOKENS, int ROWS>
MPK_FN void expert_write(const mpk_task &t, const expert_use &u, int expert, rt_i64 row, rt_i64 end,
                         rt_i64 t0, int first, int n)
{
    const float *s_result = (const float *)(t.s_scratch + EXPERT_RESULTS),
                *s_second = (const float *)(t.s_scratch + EXPERT_SECOND);
    const rt_u16 *s_order = (const rt_u16 *)(t.s_scratch + EXPERT_ORDER);
    float *s_kept = (float *)(t.s_scratch + EXPERT_KEPT);
    char *g_y = mpk_data(t, u.y);
    int rows = (int)(end - row < ROWS * MPK_TEAMS ? end - row : ROWS * MPK_TEAMS),
        of_token = (int)u.ids.dims[1];
    for (int i = mpk_thread(); i < rows * n; i += MPK_THREADS) {
        int j = i / rows, c = i % rows, pair = s_order[first + j];
        float value = 0; /* of a pair without an expert */
        if (expert != EXPERT_NONE)
            value = s_result[c * TOKENS + j] + expert_bias(t, u.b0, expert, row + c);
        if (expert != EXPERT_NONE && u.activation != ACTIVATE_NONE) {
            const float up = s_second[c * TOKENS + j] + expert_bias(t, u.b1, expert, row + c);
            value = u.activation == ACTIVATE_SWIGLU_OAI ? activate_swiglu_oai(value, up, u.limit)
                                                        : activate(u.activation, value) * up;
        }
        if (mpk_is_there(u.scale))
            s_kept[pair * (ROWS * MPK_TEAMS) + c] = value;
        else
            mpk_put(u.y, g_y,
                    (t0 + pair / of_token) * u.y.stride[0] + pair % of_token * u.y.stride[1] +
                        (row + c) * u.y.stride[2],
                    value);
    }
}

/* The kept pairs of each token, times its scales, added in the order of its experts, then the
 * residual: an order that no cut changes.  The first barrier: all pairs have been kept. */
template <int ROWS>
MPK_FN void expert_add_pairs(const mpk_task &t, const expert_use &u, rt_i64 row, rt_i64 end,
                             rt_i64 t0, int tokens)
{
    const int *s_ids = (const int *)(t.s_scratch + EXPERT_IDS);
    const float *s_kept = (const float *)(t.s_scratch + EXPERT_KEPT);
    const char *g_scale = mpk_data(t, u.scale), *g_residual = mpk_data(t, u.residual);
    char *g_y = mpk_data(t, u.y);
    int rows = (int)(end - row < ROWS * MPK_TEAMS ? end - row : ROWS * MPK_TEAMS),
        of_token = (int)u.ids.dims[1];
    mpk_sync();
    for (int i = mpk_thread(); i < rows * tokens; i += MPK_THREADS) {
        int token = i / rows, c = i % rows;
        float sum = 0; /* in the order of experts */
        for (int j = 0; j < of_token; j++) {
            int pair = token * of_token + j;
            /* a pair without an expert adds nothing, whatever its scale */
            if (s_ids[pair] != EXPERT_NONE)
                sum += mpk_get(u.scale, g_scale,
                               (t0 + token) * u.scale.stride[0] + j * u.scale.stride[1]) *
                       s_kept[pair * (ROWS * MPK_TEAMS) + c];
        }
        if (mpk_is_there(u.residual))
            sum += mpk_get(u.residual, g_residual,
                           (t0 + token) * u.residual.stride[0] + (row + c) * u.residual.stride[1]);
        mpk_put(u.y, g_y, (t0 + token) * u.y.stride[0] + (row + c) * u.y.stride[1], sum);
    }
}

/* Columns `row` ... of all pairs that are sorted, in groups of up to TOKENS pairs of one expert.  n
 * follows from scratch and is the same in all threads, which expert_group's barriers want. */
template <int TOKENS, int ROWS>
MPK_FN void expert_columns(const mpk_task &t, const expert_use &u, rt_i64 row, rt_i64 end,
                           rt_i64 t0, int pairs)
{
    const int *s_ids = (const int *)(t.s_scratch + EXPERT_IDS);
    const rt_u16 *s_order = (const rt_u16 *)(t.s_scratch + EXPERT_ORDER);
    for (int first = 0, n; first < pairs; first += n) {
        int expert = s_ids[s_order[first]];
        bool there = expert != EXPERT_NONE; /* these sort last */
        for (n = 1; n < TOKENS && first + n < pairs && s_ids[s_order[first + n]] == expert;)
            n++;
        if (there)
            expert_group<TOKENS, ROWS>(t, u, u.w0, expert, row, end, t0, first, n,
                                       (float *)(t.s_scratch + EXPERT_RESULTS));
        if (there && u.activation != ACTIVATE_NONE)
            expert_group<TOKENS, ROWS>(t, u, u.w1, expert, row, end, t0, first, n,
                                       (float *)(t.s_scratch + EXPERT_SECOND));
        expert_write<TOKENS, ROWS>(t, u, expert, row, end, t0, first, n);
    }
    if (mpk_is_there(u.scale))
        expert_add_pairs<ROWS>(t, u, row, end, t0, pairs / (int)u.ids.dims[1]);
}

/* The body of expert_linear.  Where pairs are kept (a sum by scale), a team takes one row of a
 * weight instead of four, so that EXPERT_KEPT holds 256 pairs times 8 teams.  Tokens are taken
 * in lots whose pairs fit EXPERT_PAIRS; the norm's factors and the order are found for each lot. */
template <int TOKENS, int ROWS>
MPK_FN void expert_linear_run(const mpk_task &t, const expert_use &u)
{
    int axis = u.y.rank - 1, of_token = (int)u.ids.dims[1];
    rt_i64 lo = mpk_lo(t, axis), hi = mpk_hi(t, axis), step = EXPERT_PAIRS / of_token;
    for (rt_i64 t0 = mpk_lo(t, 0); t0 < (rt_i64)mpk_hi(t, 0); t0 += step) {
        rt_i64 tokens = (rt_i64)mpk_hi(t, 0) - t0 < step ? (rt_i64)mpk_hi(t, 0) - t0 : step;
        if (mpk_is_there(u.norm))
            expert_factors(t, u, t0, (int)tokens * (u.x.rank == 3 ? of_token : 1));
        expert_sort(t, u, t0, (int)tokens * of_token);
        for (rt_i64 row = lo; row < hi; row += ROWS * MPK_TEAMS)
            expert_columns<TOKENS, ROWS>(t, u, row, hi, t0, (int)tokens * of_token);
    }
}

#endif
