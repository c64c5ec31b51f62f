/* route.c - the experts that each token goes to, and the weight of each.
 *
 * logits [T, E], bias [E] -> ids i32[T, N], weights f32[T, N].  Each expert has a share, its part
 * of softmax(logits) over all E, or with sigmoid 1 / (1 + exp(-logit)), and the N largest shares
 * plus bias are chosen, in falling order, of equal ones the lower id first.  A weight is the share
 * without the bias; normalize: divided by the sum of the chosen ones; times factor; round: then
 * rounded to the dtype of the logits, as some models do.
 *
 *   logits 1, 3, 3, 0 with N = 2: ids 1, 2; weights 0.44, 0.44, with normalize 0.5, 0.5
 *
 * With groups > 1 the experts are so many groups of neighbours, and only those of the `kept` best
 * groups are chosen from: a group counts as much as its `best` best experts together, 1 or 2.
 *
 *   shares 0.9, 0.1 | 0.6, 0.5 with groups = 2, kept = 1, N = 1: with best = 1 id 0, with 2 id 2
 *
 * Idea: an exponential keeps the order, so without bias and sums experts are chosen by their
 * logits: which ones a token gets depends on no target's exp.  What is compared becomes integers
 * that compare as it does (NaN below all), with the id in the low bits; then the next expert is the
 * largest below the last.  Exponentials are summed in fp64.  Cost: N E comparisons, E exponentials.
 *
 * The ids are read by the expert operators (experts.h).
 */
#include <math.h>

#include "op/experts.h"
#include "op/shape.h"

/* Input, outputs and attributes, by index. */
enum { LOGITS, BIAS };
enum { IDS, WEIGHTS };
enum { EXPERTS, NORMALIZE, ROUND, SIGMOID, GROUPS, KEPT, BEST, FACTOR };

/* Groups are of equal size, and those that are kept have enough experts; bodies keep a bit for each
 * group. */
static mpk_status check_groups(mpk_context *cx, const ir_op *op, int64_t n_experts)
{
    const ir_attribute *a = op->attributes;
    int64_t groups = a[GROUPS].i, kept = a[KEPT].i, best = a[BEST].i;
    CHECK(cx, groups >= 1 && groups <= EXPERTS_MOST_GROUPS && n_experts % groups == 0, MPK_ESHAPE,
          "route: %lld experts are not %lld equal groups of 1 to %d", (long long)n_experts,
          (long long)groups, EXPERTS_MOST_GROUPS);
    CHECK(cx, kept >= 1 && kept <= groups && a[EXPERTS].i <= kept * (n_experts / groups),
          MPK_ESHAPE, "route: %lld of %lld groups are kept, which must have %lld experts",
          (long long)kept, (long long)groups, (long long)a[EXPERTS].i);
    CHECK(cx, best >= 1 && best <= 2 && best <= n_experts / groups, MPK_EARG,
          "route: best is %lld, expected 1 or 2, and no more than a group of %lld has",
          (long long)best, (long long)(n_experts / groups));
    CHECK(cx, a[FACTOR].f > 0 && a[FACTOR].f < 1e30, MPK_EARG,
          "route: factor is %g, expected more than 0", a[FACTOR].f);
    return MPK_OK;
}

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
    TRY(shape_expect(cx, g, op, BIAS, SHAPE_FLOAT, 1, &logits->dims[1]));
    TRY(check_groups(cx, op, logits->dims[1]));
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

/* All logits of the box's tokens, and all biases. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == BIAS)
        return;
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

/* What a token's experts are chosen from.  choices [n]: what is compared; bit i of `open`: group i,
 * of `size` neighbours, may be chosen from. */
typedef struct route_row {
    const float *choices;
    uint32_t n, size;
    uint64_t open;
} route_row;

/* The largest key below `limit` in the open groups; 0 if there is none. */
static uint64_t next_rank(const route_row *r, uint64_t limit)
{
    uint64_t best = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        uint64_t rank = rank_of(r->choices[i], i);
        if (rank < limit && rank > best && r->open >> i / r->size & 1)
            best = rank;
    }
    return best;
}

/* What a group counts: its largest choice, or the sum of its two largest. */
static float rate_group(const route_row *r, uint32_t group, int64_t best)
{
    route_row one = *r;
    one.open = (uint64_t)1 << group;
    uint64_t first = next_rank(&one, UINT64_MAX);
    float sum = r->choices[(uint32_t)~first];
    return best == 1 ? sum : sum + r->choices[(uint32_t)~next_rank(&one, first)];
}

/* Close all groups but the best: those that fewer than `kept` exceed. */
static void keep_groups(route_row *r, uint32_t n_groups, int64_t kept, int64_t best)
{
    uint64_t ranks[EXPERTS_MOST_GROUPS], open = 0;
    for (uint32_t i = 0; i < n_groups; i++)
        ranks[i] = rank_of(rate_group(r, i, best), i);
    for (uint32_t i = 0; i < n_groups; i++) {
        int64_t above = 0;
        for (uint32_t other = 0; other < n_groups; other++)
            above += ranks[other] > ranks[i];
        open |= (uint64_t)(above < kept) << i;
    }
    r->open = open;
}

/* An expert's share, by its logit; largest and sum are those of the softmax. */
static float share_of(const op_call *call, float logit, float largest, double sum)
{
    return call->attributes[SIGMOID].i ? 1 / (1 + expf(-logit))
                                       : expf(logit - largest) / (float)sum;
}

/* Write what experts are chosen by: the logits, or, where more than their order counts, shares and
 * biases. */
static void list_choices(const op_call *call, const float *logits, float largest, double sum,
                         float *choices)
{
    const op_view *bias = &call->in[BIAS];
    bool by_share = bias->data || call->attributes[BEST].i > 1;
    for (int64_t i = 0; i < call->in[LOGITS].dims[1]; i++) {
        choices[i] = by_share ? share_of(call, logits[i], largest, sum) : logits[i];
        if (bias->data)
            choices[i] += op_load(bias, i * bias->stride[0]);
    }
}

/* Find the experts of token t one after another, each with the largest key below that of the one
 * before.  logits, choices: scratch [E]. */
static void route_token(const op_call *call, int64_t t, float *logits, float *choices)
{
    const op_view *x = &call->in[LOGITS], *ids = &call->out[IDS], *weights = &call->out[WEIGHTS];
    const ir_attribute *a = call->attributes;
    uint32_t n_experts = (uint32_t)x->dims[1], n_groups = (uint32_t)a[GROUPS].i;
    route_row row = {logits, n_experts, n_experts / n_groups, UINT64_MAX};
    float share[EXPERTS_MOST_PER_TOKEN], chosen = 0;
    double sum = 0;
    walk_load_row(x, t * x->stride[0], 0, n_experts, logits);
    float largest = logits[(uint32_t)~next_rank(&row, UINT64_MAX)];
    for (uint32_t i = 0; i < n_experts; i++)
        sum += (double)expf(logits[i] - largest);
    list_choices(call, logits, largest, sum, choices);
    row.choices = choices;
    if (n_groups > 1)
        keep_groups(&row, n_groups, a[KEPT].i, a[BEST].i);
    uint64_t rank = UINT64_MAX;
    for (int64_t j = 0; j < ids->dims[1]; j++) {
        rank = next_rank(&row, rank);
        uint32_t id = (uint32_t)~rank;
        walk_store_int(ids, t * ids->stride[0] + j * ids->stride[1], id);
        share[j] = share_of(call, logits[id], largest, sum);
        chosen += share[j];
    }
    chosen += 1e-20f; /* sigmoids may all be 0, and then so are the weights */
    for (int64_t j = 0; j < weights->dims[1]; j++) {
        float weight = (a[NORMALIZE].i ? share[j] / chosen : share[j]) * (float)a[FACTOR].f;
        op_store(weights, t * weights->stride[0] + j * weights->stride[1],
                 a[ROUND].i ? walk_round(x->dtype, weight) : weight);
    }
}

/* Scratch: a row of logits as floats, and of what is compared. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    return 2 * (size_t)shape_input(g, op, LOGITS)->dims[1] * sizeof(float);
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++)
        route_token(call, t, scratch, (float *)scratch + call->in[LOGITS].dims[1]);
}

static const op_operand in[] = {{"logits", 0}, {"bias", OP_OPTIONAL}},
                        out[] = {{"ids", 0}, {"weights", 0}};
static const op_attribute attributes[] = {SHAPE_NEEDED("experts", INT), SHAPE_INT("normalize", 1),
                                          SHAPE_INT("round", 0),        SHAPE_INT("sigmoid", 0),
                                          SHAPE_INT("groups", 1),       SHAPE_INT("kept", 1),
                                          SHAPE_INT("best", 1),         SHAPE_REAL("factor", 1)};
/* Of logits that random numbers become by what rounds nothing: they are the same on every
 * target. */
#define MAPPED(type, expression, attributes)                              \
    "input %x : " type " live=tokens\n%y = map(%x) {expr = \"" expression \
    "\"}\n%i, %w = route(%y) {" attributes "}\n"

/* With biases, which random logits and shares are of the size of. */
#define BIASED(type, experts, attributes)                      \
    "input %x : " type " live=tokens\nconst %b : f32[" experts \
    "]\n%i, %w = route(%x, %b) {" attributes "}\n"

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
    /* sigmoids, biases, groups, and all of them */
    {"input %x : f32[5, 64] live=tokens\n%i, %w = route(%x) {experts = 6, sigmoid = 1}\n"},
    {MAPPED("f32[3, 64]", "x0 * 0 - 200", "experts = 6, sigmoid = 1, factor = 2.5")},
    {BIASED("f32[9, 96]", "96", "experts = 8, factor = 2.5")},
    {BIASED("bf16[3, 130]", "130",
            "experts = 6, sigmoid = 1, normalize = 0, factor = 1.25, round "
            "= 1")},
    {BIASED("f32[17, 256]", "256",
            "experts = 8, sigmoid = 1, groups = 8, kept = 4, best = 2, "
            "factor = 2.5")},
    {BIASED("bf16[7, 64]", "64", "experts = 6, sigmoid = 1, groups = 64, kept = 6")},
    {"input %x : f32[7, 160] live=tokens\n%i, %w = route(%x) {experts = 6, normalize = 0, groups = "
     "8, kept = 3, factor = 16.0}\n"},
    {"input %x : f32[7, 24] live=tokens\n%i, %w = route(%x) {experts = 8, groups = 3, kept = 1, "
     "best = 2}\n"},
    {MAPPED("bf16[9, 132]", "trunc(x0 * 2)", "experts = 20, groups = 4, kept = 2")},
    {MAPPED("bf16[5, 48]", "sqrt(x0)", "experts = 20, groups = 3, kept = 2")},
};

const op_def op_route = {
    .name = "route",
    .summary =
        "the experts with the largest shares of each token, softmax or sigmoid, in the best groups "
        "of experts, and these shares",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .infer = infer,
    .axes = axes,
    .effort = effort,
    .reads = reads,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
};
