/* route.c - the experts that each token goes to, and the weight of each.
 *
 * logits [T, E] -> ids i32[T, N], weights f32[T, N]: the N largest of softmax(logits) over all
 * E, in falling order, of equal ones the lower id first.  normalize: divided by their sum;
 * round: then rounded to the dtype of the logits, as some models do.
 *
 *   logits 1, 3, 3, 0 with N = 2: ids 1, 2; weights 0.44, 0.44, with normalize 0.5, 0.5
 *
 * Idea: an exponential keeps the order, so experts are chosen by their logits: which ones a
 * token gets depends on no target's exp.  Logits become integers that compare as they do (NaN
 * below all), with the id in the low bits; then the next expert is the largest below the last.
 * Exponentials are summed in fp64.  Cost: N E comparisons, E exponentials.
 *
 * The ids are read by the expert operators (experts.h).
 */
#include <math.h>

#include "op/experts.h"
#include "op/shape.h"

/* Input, outputs and attributes, by index. */
enum { LOGITS };
enum { IDS, WEIGHTS };
enum { EXPERTS, NORMALIZE, ROUND };

/* EXPERTS_MOST_PER_TOKEN bounds N because all bodies keep a token's experts in an array of that
 * size. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *logits = shape_input(g, op, LOGITS);
    int64_t n = op->attributes[EXPERTS].i;
    TRY(shape_expect(cx, g, op, LOGITS, SHAPE_FLOAT, 2, (int64_t[]){SHAPE_FREE, SHAPE_FREE}));
    CHECK(cx, n >= 1 && n <= logits->dims[1] && n <= EXPERTS_MOST_PER_TOKEN, MPK_ESHAPE,
          "route: %lld experts a token of %lld, expected 1 to %d and no more than there are",
          (long long)n, (long long)logits->dims[1], EXPERTS_MOST_PER_TOKEN);
    CHECK(cx, logits->dims[1] <= INT32_MAX, MPK_ESHAPE, "route: %lld experts cannot be numbered",
          (long long)logits->dims[1]);
    for (uint32_t i = IDS; i <= WEIGHTS; i++) {
        out[i].dtype = i == IDS ? IR_I32 : IR_F32;
        out[i].live = logits->live;
        out[i].rank = 2;
        out[i].dims[0] = logits->dims[0];
        out[i].dims[1] = n;
    }
    return MPK_OK;
}

/* Any tokens; the experts of one token are found together. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g, (void)op;
    axes[0] = (op_axis){.grain = 1};
}

/* A fast body takes eight tokens at a time, in the time in which 16 KB are read. */
static int64_t effort(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)g, (void)op;
    return (box->hi[0] - box->lo[0] + 7) / 8 * 16384;
}

/* All logits of the box's tokens. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    read->lo[0] = box->lo[0];
    read->hi[0] = box->hi[0];
}

/* The key of an expert: larger for a larger logit, of equal logits for a lower id; no two
 * experts have the same.  A float's bits compare as the float does once the sign bit is flipped
 * (positive) or all bits are (negative). */
static uint64_t rank_of(float x, uint32_t id)
{
    uint32_t u = 0;
    x = x == 0 ? 0.0f : x; /* zeros are equal, whatever their sign */
    memcpy(&u, &x, sizeof u);
    u = u >> 31 ? ~u : u | 0x80000000u; /* rises with x, of either sign */
    if (isnan(x))
        u = 0;
    return (uint64_t)u << 32 | (uint32_t)~id;
}

/* The largest key below `limit`; 0 if there is none. */
static uint64_t next_rank(const float *logits, uint32_t n, uint64_t limit)
{
    uint64_t best = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t rank = rank_of(logits[i], i);
        best = rank < limit && rank > best ? rank : best;
    }
    return best;
}

/* Find the experts of token t one after another, each with the largest key below that of the one
 * before.  logits: scratch [E]. */
static void route_token(const op_call *call, int64_t t, float *logits)
{
    const op_view *x = &call->in[LOGITS], *ids = &call->out[IDS], *weights = &call->out[WEIGHTS];
    uint32_t n_experts = (uint32_t)x->dims[1];
    float share[EXPERTS_MOST_PER_TOKEN], chosen = 0;
    double sum = 0;
    uint64_t rank = UINT64_MAX;
    walk_load_row(x, t * x->stride[0], 0, n_experts, logits);
    float largest = logits[(uint32_t)~next_rank(logits, n_experts, rank)];
    for (uint32_t i = 0; i < n_experts; i++)
        sum += (double)expf(logits[i] - largest);
    for (int64_t j = 0; j < ids->dims[1]; j++) {
        rank = next_rank(logits, n_experts, rank);
        uint32_t id = (uint32_t)~rank;
        walk_store_int(ids, t * ids->stride[0] + j * ids->stride[1], id);
        share[j] = expf(logits[id] - largest) / (float)sum;
        chosen += share[j];
    }
    for (int64_t j = 0; j < weights->dims[1]; j++) {
        float weight = call->attributes[NORMALIZE].i ? share[j] / chosen : share[j];
        op_store(weights, t * weights->stride[0] + j * weights->stride[1],
                 call->attributes[ROUND].i ? walk_round(x->dtype, weight) : weight);
    }
}

/* Scratch: a row of logits as floats. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++)
        route_token(call, t, scratch);
}

static const op_operand in[] = {{"logits", 0}}, out[] = {{"ids", 0}, {"weights", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("experts", INT), SHAPE_INT("normalize", 1),
                                          SHAPE_INT("round", 0)};
/* Of logits that random numbers become by what rounds nothing: they are the same on every
 * target. */
#define MAPPED(type, expression, attributes)                              \
    "input %x : " type " live=tokens\n%y = map(%x) {expr = \"" expression \
    "\"}\n%i, %w = route(%y) {" attributes "}\n"

static const op_case cases[] = {
    {"input %x : f32[1, 8] live=tokens\n%i, %w = route(%x) {experts = 2}\n"},
    {"input %x : f32[33, 128] live=tokens\n%i, %w = route(%x) {experts = 8, normalize = 0}\n"},
    {"input %x : bf16[7, 61] live=tokens\n%i, %w = route(%x) {experts = 8, round = 1}\n"},
    {"input %x : f16[7, 5] live=tokens\n%i, %w = route(%x) {experts = 5, normalize = 0, round = "
     "1}\n"},
    {"input %x : bf16[130, 300] live=tokens\n%i, %w = route(%x) {experts = 10}\n"},
    {"input %x : f32[3, 1]\n%i, %w = route(%x) {experts = 1}\n"},
    {"input %x : bf16[1, 128] live=tokens\n%i, %w = route(%x) {experts = 8}\n"},
    {"input %x : bf16[16, 128] live=tokens\n%i, %w = route(%x) {experts = 8, round = 1}\n"},
    {"input %x : bf16[11, 512] live=tokens\n%i, %w = route(%x) {experts = 64, normalize = 0}\n"},
    {"input %x : f32[4, 61] live=tokens\n%i, %w = route(%x) {experts = 40}\n"},
    {"input %x : f32[2, 512] live=tokens\n%i, %w = route(%x) {experts = 7, normalize = 0}\n"},
    /* equal ones, zeros of both signs; few numbers among NaN; infinities */
    {MAPPED("bf16[9, 130]", "trunc(x0 * 2)", "experts = 50, round = 1")},
    {MAPPED("f32[9, 70]", "trunc(x0 * 2)", "experts = 10")},
    {MAPPED("bf16[5, 48]", "sqrt(x0)", "experts = 40")},
    {MAPPED("f32[5, 48]", "sqrt(x0 - 0.5)", "experts = 48")},
    {MAPPED("bf16[3, 64]", "0 - 1 / where(x0 > 0.5, 1.0, 0.0)", "experts = 60")},
    {MAPPED("f32[3, 64]", "x0 / where(x0 > 0.5, 0.0, 1.0)", "experts = 6")},
};

const op_def op_route = {
    .name = "route",
    .summary = "the experts with the largest probabilities of each token, and these probabilities",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .effort = effort,
    .reads = reads,
    .scratch_bytes = shape_scratch_row,
    .ref = ref,
    OP_CASES(cases),
};
