/* rope_table.c - cos and sin of every rotation of a step, once for all layers.  positions i32[T]
 * -> f32[T, 2, P].
 *
 * P is size/2 + plain.  Row t holds P cosines, then P sines, of positions[t] times each frequency
 * (rope.h).  Any position gives its angles, also a negative one: no memory is looked up by it.
 * Cost: one power a column, a sine and a cosine an element.
 */
#include "op/rope.h"
#include "op/fill.h"
#include "op/walk.h"

/* Row t has all cosines, then all sines. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    TRY(shape_expect(cx, g, op, 0, SHAPE_I32, 1, (int64_t[]){SHAPE_FREE}));
    TRY(rope_check(cx, op));
    const ir_tensor *positions = shape_input(g, op, 0);
    out->dtype = IR_F32;
    out->live = positions->live;
    out->rank = 3;
    out->dims[0] = positions->dims[0];
    out->dims[1] = 2;
    out->dims[2] = rope_pairs(op->attributes);
    return MPK_OK;
}

/* Tokens and pairs may be cut; cos and sin of an angle are made together. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g, (void)op;
    axes[0].grain = axes[2].grain = 1;
}

/* Up to AT_ONCE pairs are a few rounds of a GPU's threads, which the first product of a step hides;
 * more would make the first attention wait, so they are shared out. */
static int64_t effort(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    enum { AT_ONCE = 1024, PAIR_BYTES = 128 };
    const int64_t pairs = (box->hi[0] - box->lo[0]) * (box->hi[2] - box->lo[2]);
    (void)g, (void)op;
    return pairs > AT_ONCE ? (pairs - AT_ONCE) * PAIR_BYTES : 0;
}

/* The positions of the box's tokens. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    (void)g, (void)op, (void)input;
    *read = (ir_box){.lo = {box->lo[0]}, .hi = {box->hi[0]}};
}

/* Column by column, so that a frequency is computed once for all tokens. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    (void)scratch;
    const op_view *positions = &call->in[0], *out = &call->out[0];
    float amplitude = rope_amplitude(call->attributes);
    for (int64_t pair = box->lo[2]; pair < box->hi[2]; pair++) {
        float frequency = rope_frequency(call->attributes, pair), cosine, sine;
        for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
            int64_t at = t * out->stride[0] + pair * out->stride[2];
            rope_angle(frequency, amplitude, walk_load_int(positions, t * positions->stride[0]),
                       &cosine, &sine);
            op_store(out, at, cosine);
            op_store(out, at + out->stride[1], sine);
        }
    }
}

/* Positions up to a million: large angles are where rounding differs. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    fill_indices(shape_input(g, op, input), 1000000, seed, data);
}

static const op_operand in[] = {{"positions", 0}}, out[] = {{"table", 0}};
static const op_attribute attributes[] = {ROPE_ATTRIBUTE_ROWS};

#define CASE(tokens, rest)                                                         \
    {                                                                              \
        "input %p : i32[" tokens "] live=tokens\n%t = rope_table(%p) {" rest "}\n" \
    }
static const op_case cases[] = {
    CASE("1", "size = 64, theta = 100000.0"),
    CASE("7", "size = 48"),
    CASE("7", "size = 128, theta = 500000.0, scaling = \"llama3\", factor = 32.0, "
              "original_positions = 8192"),
    CASE("7",
         "size = 64, theta = 500000.0, scaling = \"llama3\", factor = 16.0, high_freq_factor = "
         "1.0, original_positions = 64"),
    CASE("7", "size = 16, scaling = \"linear\", factor = 4.0"),
    CASE("7", "size = 80, theta = 1000000.0, scaling = \"yarn\", factor = 4.0, original_positions "
              "= 32768"),
    CASE("3", "size = 64, scaling = \"yarn\", factor = 40.0, mscale = 0.7, mscale_all_dim = 1.0, "
              "original_positions = 4096, "
              "truncate = 0"),
    CASE("4", "size = 12, scaling = \"none\""),
    CASE("4", "size = 12, plain = 10"),
    CASE("5",
         "size = 8, scaling = \"longrope\", factor = 32.0, original_positions = 4096, divisors "
         "= \"1.0 1.25 20.5 39.75\", plain = 4"),
};

const op_def op_rope_table = {
    .name = "rope_table",
    .summary = "cos and sin of the rotary embedding at each position",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .effort = effort,
    .reads = reads,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
