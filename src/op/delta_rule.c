/* delta_rule.c - linear attention by the gated delta rule (Yang et al., "Gated Delta Networks",
 * 2024), as Qwen3-Next and Qwen3.5 have it: each head keeps a matrix S [V, K] in place of a cache
 * of keys and values.
 *
 * q, k [T, G K], v [T, H V], a, b [T, H], a_log, dt_bias [H], positions, slots i32[T],
 * state f32[B, H V, K] -> y [T, H V], the state.  H is a multiple of G: neighbouring heads of v
 * share one of q and k; tiled: head h of v takes head h % G.  For each token, in each head:
 *
 *   q' = q / (|q| root(K))   k' = k / |k|              lengths: root(sum of squares + eps)
 *   g  = exp(-exp(a_log) softplus(a + dt_bias))        what stays of S
 *   S  = g S + (sigmoid(b) (v - g S k')) k'^T          S k' moves towards v
 *   y  = S q'
 *
 * A row of S, of K entries, makes one column of y and depends on no other.  So a task has some
 * columns of y and their rows of the state, of all slots.  Tokens are not cut, since each finds
 * what those before it left (recurrent.h).  chunks: a target may take neighbouring tokens of a slot
 * together, where last bits then follow from how a text is cut into steps; all that computes here
 * goes token by token.
 *
 * All in fp32.  Cost: 4 K multiplications for each element of y, and for each slot of a step a read
 * and a write of its state.
 */
#include <math.h>

#include "op/recurrent.h"

/* Inputs by index, and the attribute. */
enum { Q, KEYS, VALUES, A, B, A_LOG, DT_BIAS, POSITIONS, SLOTS, STATE };
enum { EPS, TILED };
enum { MOST_KEY = 256, LANES = 8 };

/* Sizes of a call, as in the comment above. */
typedef struct sizes {
    int64_t H, G, K, V;
    bool tiled;
} sizes;

static sizes find_sizes(const ir_attribute *how, const int64_t *q, const int64_t *v,
                        const int64_t *a, const int64_t *state)
{
    return (sizes){.H = a[1],
                   .G = q[1] / state[2],
                   .K = state[2],
                   .V = v[1] / a[1],
                   .tiled = how[TILED].i != 0};
}

static sizes sizes_of(const ir_graph *g, const ir_op *op)
{
    return find_sizes(op->attributes, shape_input(g, op, Q)->dims, shape_input(g, op, VALUES)->dims,
                      shape_input(g, op, A)->dims, shape_input(g, op, STATE)->dims);
}

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *q = shape_input(g, op, Q), *v = shape_input(g, op, VALUES),
                    *a = shape_input(g, op, A), *state = shape_input(g, op, STATE);
    TRY(shape_expect(cx, g, op, Q, SHAPE_FLOAT, 2, (int64_t[]){SHAPE_FREE, SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, KEYS, SHAPE_FLOAT, 2, q->dims));
    TRY(shape_expect(cx, g, op, VALUES, SHAPE_FLOAT, 2, (int64_t[]){q->dims[0], SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, A, SHAPE_FLOAT, 2, (int64_t[]){q->dims[0], SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, B, SHAPE_FLOAT, 2, a->dims));
    for (uint32_t i = A_LOG; i <= DT_BIAS; i++)
        TRY(shape_expect(cx, g, op, i, SHAPE_FLOAT, 1, &a->dims[1]));
    for (uint32_t i = KEYS; i <= B; i++)
        TRY(shape_expect_live(cx, g, op, i, q->live));
    TRY(recurrent_expect(cx, g, op, POSITIONS, q));
    TRY(shape_expect(cx, g, op, STATE, 1u << IR_F32, 3,
                     (int64_t[]){SHAPE_FREE, v->dims[1], SHAPE_FREE}));
    const sizes s = sizes_of(g, op);
    CHECK(cx, s.G && q->dims[1] == s.G * s.K && s.H % s.G == 0 && v->dims[1] == s.H * s.V,
          MPK_ESHAPE,
          "delta_rule: %lld columns of q and %lld of v are no heads of %lld that %lld heads share",
          (long long)q->dims[1], (long long)v->dims[1], (long long)s.K, (long long)s.H);
    CHECK(cx, s.K <= MOST_KEY, MPK_EUNSUPPORTED, "delta_rule: keys of %lld entries, at most %d",
          (long long)s.K, MOST_KEY);
    shape_like(v, &out[0]);
    shape_like(state, &out[1]);
    out[1].shares = op->in[STATE];
    return MPK_OK;
}

/* Columns, of one head each where there are enough of them: as many as divide a head evenly. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    enum { MOST = 32 };
    const int64_t V = sizes_of(g, op).V;
    axes[1].grain = MOST;
    while (V % axes[1].grain)
        axes[1].grain /= 2;
}

/* Of an axis with `size` entries for each `columns` columns of y: those of the box. */
static void read_parts(const ir_box *box, int64_t columns, int64_t size, ir_box *read,
                       uint32_t axis)
{
    read->lo[axis] = box->lo[1] / columns * size;
    read->hi[axis] = (box->hi[1] + columns - 1) / columns * size;
}

/* Of each operand what belongs to the box's heads, of v and the state to its columns. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const sizes s = sizes_of(g, op);
    *read = ir_box_whole(shape_input(g, op, input));
    if ((input == Q || input == KEYS) && !s.tiled)
        read_parts(box, s.H / s.G * s.V, s.K, read, 1);
    else if (input == VALUES || input == STATE)
        read_parts(box, 1, 1, read, 1);
    else if (input == A || input == B)
        read_parts(box, s.V, 1, read, 1);
    else if (input == A_LOG || input == DT_BIAS)
        read_parts(box, s.V, 1, read, 0);
}

static void writes(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written)
{
    (void)output;
    reads(g, op, STATE, box, written);
}

/* Heads: each peer keeps the state of its own.  Tiled heads are not cut: which of q and k the first
 * one of a part takes would follow from the part. */
static bool split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    const sizes s = sizes_of(g, op);
    for (uint32_t i = Q; i <= B; i++)
        out->in[i] = 1;
    out->in[A_LOG] = out->in[DT_BIAS] = 0;
    out->in[POSITIONS] = out->in[SLOTS] = OP_WHOLE;
    out->in[STATE] = out->out[0] = out->out[1] = 1;
    out->groups = s.G;
    out->covers = 1u << Q | 1u << KEYS;
    return way == 0 && !s.tiled;
}

/* Scratch: a head of q, of k and of v, which becomes y. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    const sizes s = sizes_of(g, op);
    (void)box;
    return (size_t)(2 * s.K + s.V) * sizeof(float);
}

/* The sum of x[i] y[i], by LANES sums of every LANES-th entry, which a compiler adds at once. */
static float dot(const float *x, const float *y, int64_t n)
{
    float sums[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] += x[i + lane] * y[i + lane];
    for (; i < n; i++)
        sum += x[i] * y[i];
    for (int lane = 0; lane < LANES; lane++)
        sum += sums[lane];
    return sum;
}

/* Load a head of token t, of length `length`. */
static void load_head(const op_view *x, int64_t t, int64_t head, int64_t n, float eps, float length,
                      float *to)
{
    walk_load_row(x, t * x->stride[0], head * n, n, to);
    const float factor = length / sqrtf(dot(to, to, n) + eps);
    for (int64_t i = 0; i < n; i++)
        to[i] *= factor;
}

/* How much of S stays. */
static float find_decay(const op_view *in, int64_t t, int64_t head)
{
    const float x = op_load(&in[A], t * in[A].stride[0] + head * in[A].stride[1]) +
                    op_load(&in[DT_BIAS], head * in[DT_BIAS].stride[0]);
    const float softplus = x > 20 ? x : log1pf(expf(x));
    return expf(-expf(op_load(&in[A_LOG], head * in[A_LOG].stride[0])) * softplus);
}

/* One token in n rows of the state, [n, K]: y holds v before. */
static void take_token(int64_t K, int64_t n, float *state, float decay, float beta, const float *q,
                       const float *k, float *y)
{
    for (int64_t j = 0; j < n; j++) {
        float *row = state + j * K;
        const float step = beta * (y[j] - decay * dot(row, k, K));
        for (int64_t i = 0; i < K; i++)
            row[i] = decay * row[i] + step * k[i];
        y[j] = dot(row, q, K);
    }
}

/* Columns first .. first + n - 1, all of one head, of all tokens. */
static void run_columns(const op_call *call, const sizes *s, int64_t first, int64_t n,
                        int64_t tokens, float *scratch)
{
    const op_view *in = call->in, *y = &call->out[0], *state = &call->out[1];
    const int64_t head = first / s->V, group = s->tiled ? head % s->G : head / (s->H / s->G);
    const float eps = (float)call->attributes[EPS].f, length = 1 / sqrtf((float)s->K);
    float *q = scratch, *k = q + s->K, *row = k + s->K;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t slot;
        bool begins;
        memset(row, 0, (size_t)n * sizeof *row);
        if (recurrent_find(call, POSITIONS, t, state->dims[0], &slot, &begins)) {
            float *at = (float *)state->data + slot * state->stride[0] + first * state->stride[1];
            if (begins)
                memset(at, 0, (size_t)(n * s->K) * sizeof *at);
            load_head(&in[Q], t, group, s->K, eps, length, q);
            load_head(&in[KEYS], t, group, s->K, eps, 1, k);
            walk_load_row(&in[VALUES], t * in[VALUES].stride[0], first, n, row);
            const float b = op_load(&in[B], t * in[B].stride[0] + head * in[B].stride[1]);
            take_token(s->K, n, at, find_decay(in, t, head), 1 / (1 + expf(-b)), q, k, row);
        }
        walk_store_row(y, t * y->stride[0], first, n, row);
    }
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *in = call->in;
    const sizes s =
        find_sizes(call->attributes, in[Q].dims, in[VALUES].dims, in[A].dims, in[STATE].dims);
    for (int64_t at = box->lo[1], end; at < box->hi[1]; at = end) {
        end = (at / s.V + 1) * s.V;
        end = end < box->hi[1] ? end : box->hi[1];
        run_columns(call, &s, at, end - at, box->hi[0], scratch);
    }
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    recurrent_fill(g, op, POSITIONS, shape_input(g, op, STATE)->dims[0], input, seed, data);
}

static const op_operand in[] = {{"q", 0},     {"k", 0},     {"v", 0},       {"a", 0},
                                {"b", 0},     {"a_log", 0}, {"dt_bias", 0}, {"positions", 0},
                                {"slots", 0}, {"state", 0}};
static const op_operand out[] = {{"y", 0}, {"state", 0}};
static const op_attribute attributes[] = {SHAPE_REAL("eps", 1e-6), SHAPE_INT("tiled", 0),
                                          SHAPE_INT("chunks", 0)};

/* tokens, dtype, columns of q, columns of v, heads, state, attributes. */
#define CASE(tokens, dtype, q, v, heads, state, attributes)                                        \
    {                                                                                              \
        "input %q : " dtype "[" tokens ", " q "] live=tokens\ninput %k : " dtype "[" tokens ", " q \
        "] live=tokens\ninput %v : " dtype "[" tokens ", " v "] live=tokens\ninput %a : " dtype    \
        "[" tokens ", " heads "] live=tokens\ninput %b : " dtype "[" tokens ", " heads             \
        "] live=tokens\nconst %log : f32[" heads "]\nconst %dt : " dtype "[" heads                 \
        "]\ninput %p : i32[" tokens "] live=tokens\ninput %s : i32[" tokens                        \
        "] live=tokens\nstate %S : " state                                                         \
        "\n%y, %after = delta_rule(%q, %k, %v, %a, %b, %log, %dt, %p, %s, %S)" attributes "\n"     \
    }
static const op_case cases[] = {
    CASE("1", "f32", "128", "128", "1", "f32[2, 128, 128]", ""),
    CASE("9", "bf16", "64", "256", "4", "f32[3, 256, 32]", ""),
    CASE("7", "f32", "24", "60", "3", "f32[2, 60, 24]", ""),
    CASE("6", "f32", "24", "96", "6", "f32[3, 96, 8]", " {tiled = 1, eps = 0.5}"),
    CASE("150", "bf16", "128", "128", "2", "f32[3, 128, 128]", " {chunks = 1}"),
    CASE("301", "bf16", "128", "192", "4", "f32[2, 192, 64]", " {chunks = 1, tiled = 1}"),
};

const op_def op_delta_rule = {
    .name = "delta_rule",
    .summary = "linear attention by the gated delta rule, with a matrix for each slot and head",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_CARRIES,
    .infer = infer,
    .axes = axes,
    .reads = reads,
    .writes = writes,
    .split = split,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
