/* recurrent.cuh - operators whose tokens leave state for those after them, in any shape: the
 * generic bodies of causal_conv and delta_rule (src/op/recurrent.h has the rules; conv_runs.cuh has
 * the convolution of 16-bit rows).
 *
 * A task has some columns, of all tokens of the step and of all slots, and takes the tokens in
 * their order.  positions and slots are the same for all threads, so branches on them are uniform
 * and barriers may stand behind them.  State is fp32, dense, and read and written by the threads
 * of one task alone.
 *
 * Threads walk the tokens, so that a step costs the latency of its longest text; loads that do not
 * depend on the state are requested some tokens ahead.
 */
#ifndef TASK_RECURRENT_CUH
#define TASK_RECURRENT_CUH

#include "task/activate.cuh"
#include "tile/view.cuh"

/* Where the state of a token lies. */
struct recurrent_place {
    int slot;    /* -1: the token has none */
    bool begins; /* its text begins with it */
};
MPK_FN recurrent_place recurrent_find(const mpk_task &t, const mpk_view &positions,
                                      const mpk_view &slots, const mpk_view &state, rt_i64 token)
{
    const rt_i64 position =
                     mpk_get_int(positions, mpk_data(t, positions), token * positions.stride[0]),
                 slot = mpk_get_int(slots, mpk_data(t, slots), token * slots.stride[0]);
    return {position >= 0 && slot >= 0 && slot < state.dims[0] ? (int)slot : -1, position == 0};
}

/* ---- causal_conv ---- */

enum { CONV_MOST = 8, CONV_AHEAD = 8 }; /* weights of a column; tokens whose x is requested */

/* The rows before the token at hand, of one column: row[0] is the oldest.  `slot`: the request
 * slot whose rows they are; -1: of none. */
struct conv_rows {
    float row[CONV_MOST - 1];
    int slot;
};

/* From the state of the slot to registers, or back. */
MPK_FN void conv_move(const mpk_task &t, const mpk_view &state, rt_i64 column, int slot, bool store,
                      conv_rows &r)
{
    float *g = (float *)mpk_data(t, state) + slot * state.stride[0] + column;
#pragma unroll
    for (int w = 0; w < CONV_MOST - 1; w++)
        if (w < (int)state.dims[1] && store)
            g[w * state.stride[1]] = r.row[w];
        else if (w < (int)state.dims[1])
            r.row[w] = g[w * state.stride[1]];
}

/* One token of a column: the sum, after which x is the newest row. */
template <int W> MPK_FN float conv_take(const float (&weight)[W], conv_rows &r, float x)
{
    float sum = 0;
#pragma unroll
    for (int w = 0; w < W - 1; w++)
        sum += weight[w] * r.row[w];
#pragma unroll
    for (int w = 0; w < W - 2; w++)
        r.row[w] = r.row[w + 1];
    r.row[W - 2] = x;
    return sum + weight[W - 1] * x;
}

/* The generic body of causal_conv: a thread has a column.  W: weights of a column. */
template <int W>
MPK_FN void causal_conv_run(const mpk_task &t, const mpk_view &x, const mpk_view &weight,
                            const mpk_view &positions, const mpk_view &slots, const mpk_view &state,
                            const mpk_view &y, bool silu)
{
    const char *g_x = mpk_data(t, x);
    char *g_y = mpk_data(t, y);
    const rt_i64 tokens = (rt_i64)mpk_hi(t, 0);
    for (rt_i64 c = (rt_i64)mpk_lo(t, 1) + mpk_thread(); c < (rt_i64)mpk_hi(t, 1);
         c += MPK_THREADS) {
        float weights[W];
        conv_rows r = {{}, -1};
#pragma unroll
        for (int w = 0; w < W; w++)
            weights[w] =
                mpk_get(weight, mpk_data(t, weight), c * weight.stride[0] + w * weight.stride[1]);
        for (rt_i64 first = 0; first < tokens; first += CONV_AHEAD) {
            float ahead[CONV_AHEAD];
#pragma unroll
            for (int k = 0; k < CONV_AHEAD; k++) {
                const rt_i64 token = first + k < tokens ? first + k : tokens - 1;
                ahead[k] = mpk_get(x, g_x, token * x.stride[0] + c * x.stride[1]);
            }
#pragma unroll
            for (int k = 0; k < CONV_AHEAD; k++) {
                const rt_i64 token = first + k;
                if (token >= tokens)
                    break;
                const recurrent_place p = recurrent_find(t, positions, slots, state, token);
                if (p.slot != r.slot && r.slot >= 0)
                    conv_move(t, state, c, r.slot, true, r);
                if (p.slot != r.slot && p.slot >= 0 && !p.begins)
                    conv_move(t, state, c, p.slot, false, r);
                if (p.begins)
                    r = {};
                r.slot = p.slot;
                float sum = p.slot < 0 ? 0.0f : conv_take<W>(weights, r, ahead[k]);
                if (silu)
                    sum = activate_silu(sum);
                mpk_put(y, g_y, token * y.stride[0] + c * y.stride[1], sum);
            }
        }
        if (r.slot >= 0)
            conv_move(t, state, c, r.slot, true, r);
    }
}

/* ---- delta_rule ---- */

/* The operands, as the instance fills them in (src/op/delta_rule.c). */
struct delta_operands {
    mpk_view q, k, v, a, b, a_log, dt_bias, positions, slots, state, y;
    float eps;
    bool tiled; /* head h takes q and k of group h % groups; else neighbours share one */
};

/* The head of q and k that head `head` of v takes. */
MPK_FN rt_i64 delta_group(const delta_operands &o, rt_i64 head)
{
    const rt_i64 groups = o.q.dims[1] / o.state.dims[2];
    return o.tiled ? head % groups : head / (o.a.dims[1] / groups);
}

/* What stays of the state of a head after a token: exp(-exp(a_log) softplus(a + dt_bias)). */
MPK_FN float delta_decay(const mpk_task &t, const delta_operands &o, rt_i64 token, rt_i64 head)
{
    const float x = mpk_get(o.a, mpk_data(t, o.a), token * o.a.stride[0] + head * o.a.stride[1]) +
                    mpk_get(o.dt_bias, mpk_data(t, o.dt_bias), head * o.dt_bias.stride[0]);
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
    return expf(-expf(mpk_get(o.a_log, mpk_data(t, o.a_log), head * o.a_log.stride[0])) * softplus);
}
/* How far a token moves the state: sigmoid(b). */
MPK_FN float delta_step(const mpk_task &t, const delta_operands &o, rt_i64 token, rt_i64 head)
{
    return 1.0f / (1.0f + expf(-mpk_get(o.b, mpk_data(t, o.b),
                                        token * o.b.stride[0] + head * o.b.stride[1])));
}

/* Head `head` of a token's row of x to scratch, of length `length`; ends with a barrier. */
MPK_FN void delta_load(const mpk_task &t, const mpk_view &x, rt_i64 token, rt_i64 head, int n,
                       float eps, float length, float *s_to)
{
    const char *g = mpk_data(t, x);
    const rt_i64 from = token * x.stride[0] + head * n * x.stride[1];
    double squares = 0;
    for (int i = mpk_thread(); i < n; i += MPK_THREADS) {
        const double value = (double)mpk_get(x, g, from + i * x.stride[1]);
        squares += value * value;
    }
    const float factor =
        length * (float)(1.0 / sqrt(mpk_sum(t, MPK_THREADS, squares) + (double)eps));
    for (int i = mpk_thread(); i < n; i += MPK_THREADS)
        s_to[i] = mpk_get(x, g, from + i * x.stride[1]) * factor;
    mpk_sync();
}

/* One token in one row of the state; returns its entry of y. */
MPK_FN float delta_take(float *g_row, int n, const float *s_q, const float *s_k, float decay,
                        float step, float v)
{
    float known = 0, y = 0;
    for (int i = 0; i < n; i++)
        known += g_row[i] * s_k[i];
    step *= v - decay * known;
    for (int i = 0; i < n; i++) {
        const float entry = decay * g_row[i] + step * s_k[i];
        g_row[i] = entry;
        y += entry * s_q[i];
    }
    return y;
}

/* Columns lo to hi - 1, all of one head: a thread has a row of the state at a time. */
MPK_FN void delta_columns(const mpk_task &t, const delta_operands &o, rt_i64 head, rt_i64 lo,
                          rt_i64 hi)
{
    const int n = (int)o.state.dims[2];
    const rt_i64 group = delta_group(o, head);
    float *s_q = (float *)(t.s_scratch + MPK_REDUCE_BYTES), *s_k = s_q + n;
    char *g_y = mpk_data(t, o.y);
    for (rt_i64 token = 0; token < (rt_i64)mpk_hi(t, 0); token++) {
        const recurrent_place p = recurrent_find(t, o.positions, o.slots, o.state, token);
        float decay = 0, step = 0;
        if (p.slot >= 0) {
            delta_load(t, o.q, token, group, n, o.eps, 1.0f / sqrtf((float)n), s_q);
            delta_load(t, o.k, token, group, n, o.eps, 1.0f, s_k);
            decay = p.begins ? 0.0f : delta_decay(t, o, token, head);
            step = delta_step(t, o, token, head);
        }
        for (rt_i64 c = lo + mpk_thread(); c < hi; c += MPK_THREADS) {
            float y = 0;
            if (p.slot >= 0) {
                float *g_row = (float *)mpk_data(t, o.state) + p.slot * o.state.stride[0] +
                               c * o.state.stride[1];
                for (int i = 0; p.begins && i < n; i++)
                    g_row[i] = 0;
                y = delta_take(
                    g_row, n, s_q, s_k, decay, step,
                    mpk_get(o.v, mpk_data(t, o.v), token * o.v.stride[0] + c * o.v.stride[1]));
            }
            mpk_put(o.y, g_y, token * o.y.stride[0] + c * o.y.stride[1], y);
        }
        mpk_sync(); /* before the next token's q and k */
    }
}

/* The generic body of delta_rule. */
MPK_FN void delta_rule_run(const mpk_task &t, const delta_operands &o)
{
    const rt_i64 size = o.v.dims[1] / o.a.dims[1], end = (rt_i64)mpk_hi(t, 1);
    for (rt_i64 lo = (rt_i64)mpk_lo(t, 1), hi; lo < end; lo = hi) {
        hi = (lo / size + 1) * size;
        hi = hi < end ? hi : end;
        delta_columns(t, o, lo / size, lo, hi);
    }
}

#endif
