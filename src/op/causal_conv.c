/* causal_conv.c - a short convolution of each column over the last tokens of its text, such as
 * linear attention has before its keys, queries and values.
 *
 * x [T, C], weight [C, W], positions, slots i32[T], state f32[B, W - 1, C] -> y [T, C], the state.
 *
 *   y[t, c] = sum over w of weight[c, w] * x[t - (W - 1 - w), c]
 *
 * where x[t - 1] is the token before t in its text, be it of this step or of an earlier one, and
 * zero before the first.  The state holds a slot's last W - 1 rows, the oldest first.  activation
 * "silu": y = silu(sum).
 *
 * Tokens are not cut, since each finds what those before it left (recurrent.h: the tokens of a slot
 * are neighbours); columns never meet.  Sums in fp32, from the oldest token on.  Cost: W
 * multiplications an element.
 */
#include "op/activate.h"
#include "op/recurrent.h"

/* Inputs by index, and the attribute. */
enum { X, WEIGHT, POSITIONS, SLOTS, STATE };
enum { ACTIVATION };

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, X), *w = shape_input(g, op, WEIGHT);
    const str activation = op->attributes[ACTIVATION].s;
    TRY(shape_expect(cx, g, op, X, SHAPE_FLOAT, 2, (int64_t[]){SHAPE_FREE, SHAPE_FREE}));
    TRY(shape_expect(cx, g, op, WEIGHT, SHAPE_FLOAT, 2, (int64_t[]){x->dims[1], SHAPE_FREE}));
    TRY(recurrent_expect(cx, g, op, POSITIONS, x));
    CHECK(cx, w->dims[1] >= 2 && w->dims[1] <= 8, MPK_EUNSUPPORTED,
          "causal_conv: %lld weights a column, expected 2 to 8", (long long)w->dims[1]);
    TRY(shape_expect(cx, g, op, STATE, 1u << IR_F32, 3,
                     (int64_t[]){SHAPE_FREE, w->dims[1] - 1, x->dims[1]}));
    CHECK(cx, str_is(activation, "none") || str_is(activation, "silu"), MPK_EUNSUPPORTED,
          "causal_conv: activation \"%.*s\" is not one of none, silu", STR_ARG(activation));
    shape_like(x, &out[0]);
    shape_like(shape_input(g, op, STATE), &out[1]);
    out[1].shares = op->in[STATE];
    return MPK_OK;
}

/* Columns; by eights where there are, so that no two tasks store into the same 16 bytes. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    axes[1].grain = shape_input(g, op, X)->dims[1] % 8 ? 1 : 8;
}

/* The box's columns of everything that has columns, and all integers. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    const uint32_t columns = input == STATE ? 2 : input == X;
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == POSITIONS || input == SLOTS)
        return;
    read->lo[columns] = box->lo[1];
    read->hi[columns] = box->hi[1];
}

/* Of the state: the same columns, of all slots. */
static void writes(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written)
{
    (void)output;
    reads(g, op, STATE, box, written);
}

/* Columns: each peer keeps the state of its own. */
static bool split(const ir_graph *g, const ir_op *op, uint32_t way, op_split *out)
{
    (void)g, (void)op;
    out->in[X] = 1;
    out->in[WEIGHT] = 0;
    out->in[STATE] = 2;
    out->in[POSITIONS] = out->in[SLOTS] = OP_WHOLE;
    out->out[0] = 1;
    out->out[1] = 2;
    return way == 0;
}

/* Scratch: the weights, those of a token after each other; the row of a token; its sums. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    const size_t n = (size_t)(box->hi[1] - box->lo[1]);
    return ((size_t)shape_input(g, op, WEIGHT)->dims[1] + 2) * n * sizeof(float);
}

/* Load the weights of n columns as rows [W, n]. */
static void load_weights(const op_view *weight, int64_t first, int64_t n, float *to)
{
    for (int64_t c = 0; c < n; c++)
        for (int64_t w = 0; w < weight->dims[1]; w++)
            to[w * n + c] =
                op_load(weight, (first + c) * weight->stride[0] + w * weight->stride[1]);
}

/* sum = the oldest row of the state times its weight, and so on; then the state moves on by the
 * row x. */
static void take_row(const op_view *view, float *state, int64_t n, const float *weights,
                     const float *x, float *sum)
{
    const int64_t before = view->dims[1], stride = view->stride[1];
    for (int64_t w = 0; w < before; w++)
        for (int64_t c = 0; c < n; c++)
            sum[c] += weights[w * n + c] * state[w * stride + c];
    for (int64_t c = 0; c < n; c++)
        sum[c] += weights[before * n + c] * x[c];
    for (int64_t w = 0; w < before; w++)
        memcpy(state + w * stride, w + 1 < before ? state + (w + 1) * stride : x,
               (size_t)n * sizeof *state);
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *x = &call->in[X], *y = &call->out[0], *state = &call->out[1];
    const int64_t lo = box->lo[1], n = box->hi[1] - lo;
    const bool silu = str_is(call->attributes[ACTIVATION].s, "silu");
    float *weights = scratch, *row = weights + call->in[WEIGHT].dims[1] * n, *sum = row + n;
    load_weights(&call->in[WEIGHT], lo, n, weights);
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
        int64_t slot;
        bool begins;
        memset(sum, 0, (size_t)n * sizeof *sum);
        if (recurrent_find(call, POSITIONS, t, state->dims[0], &slot, &begins)) {
            float *of_slot = (float *)state->data + slot * state->stride[0] + lo;
            for (int64_t w = 0; begins && w < state->dims[1]; w++)
                memset(of_slot + w * state->stride[1], 0, (size_t)n * sizeof *of_slot);
            walk_load_row(x, t * x->stride[0], lo, n, row);
            take_row(state, of_slot, n, weights, row, sum);
        }
        for (int64_t c = 0; silu && c < n; c++)
            sum[c] = activate_silu(sum[c]);
        walk_store_row(y, t * y->stride[0], lo, n, sum);
    }
}

static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    recurrent_fill(g, op, POSITIONS, shape_input(g, op, STATE)->dims[0], input, seed, data);
}

static const op_operand in[] = {
    {"x", 0}, {"weight", 0}, {"positions", 0}, {"slots", 0}, {"state", 0}};
static const op_operand out[] = {{"y", 0}, {"state", 0}};
static const op_attribute attributes[] = {SHAPE_WORD("activation", "none")};

/* tokens, x, weight, state, attributes. */
#define CASE(tokens, x, weight, state, attributes)                                    \
    {                                                                                 \
        "input %x : " x " live=tokens\nconst %w : " weight "\ninput %p : i32[" tokens \
        "] live=tokens\ninput %s : i32[" tokens "] live=tokens\nstate %c : " state    \
        "\n%y, %after = causal_conv(%x, %w, %p, %s, %c)" attributes "\n"              \
    }
static const op_case cases[] = {
    CASE("1", "f32[1, 96]", "f32[96, 4]", "f32[2, 3, 96]", " {activation = \"silu\"}"),
    CASE("9", "bf16[9, 256]", "bf16[256, 4]", "f32[3, 3, 256]", " {activation = \"silu\"}"),
    CASE("7", "f16[7, 33]", "f32[33, 3]", "f32[4, 2, 33]", ""),
};

const op_def op_causal_conv = {
    .name = "causal_conv",
    .summary = "convolve each column over the last tokens of its text, with state for each slot",
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
