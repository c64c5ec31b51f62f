/* sample.c - draw a token from each row of logits.
 *
 * logits [R, V], sampling f32[R, 4] = (temperature, top_k, top_p, min_p), seeds i64[R], draws i32[R] -> i32[R].
 * Temperature 0 (or below, or NaN): the largest logit.  Otherwise the weights are exp((x - max) / temperature), and of
 * the tokens in falling order (equal ones: the lower id first) there are kept the first top_k (0: all), of those the
 * fewest whose share of their weight reaches top_p (1: all), and of those the ones with at least min_p times the
 * largest weight.  The draw number draws[r] of stream seeds[r] is a uniform number; the token is where the sum of kept
 * weights passes it.
 *
 * Idea: a heap of ids; only as many are taken out as are looked at, so cost is O(V + looked_at log V), not a sort.
 * NaN and -inf are never drawn.  With peaks [R, ceil(V / 64), 2] of `logits` the largest is found there: a greedy row
 * reads nothing else.
 */
#include <math.h>

#include "op/fill.h"
#include "op/peaks.h"

enum { LOGITS, SAMPLING, SEEDS, DRAWS, PEAKS };
enum { TEMPERATURE, TOP_K, TOP_P, MIN_P };

static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    const ir_tensor *x = shape_input(g, op, LOGITS);
    TRY(shape_expect(cx, g, op, LOGITS, SHAPE_FLOAT, 2, (int64_t[]){SHAPE_FREE, SHAPE_FREE}));
    CHECK(cx, x->dims[1] <= INT32_MAX, MPK_ESHAPE, "sample: %lld columns are too many for an i32",
          (long long)x->dims[1]);
    TRY(shape_expect(cx, g, op, SAMPLING, 1 << IR_F32, 2, (int64_t[]){x->dims[0], 4}));
    TRY(shape_expect(cx, g, op, SEEDS, SHAPE_I64, 1, x->dims));
    TRY(shape_expect(cx, g, op, DRAWS, SHAPE_I32, 1, x->dims));
    TRY(shape_expect(cx, g, op, PEAKS, 1 << IR_F32, 3, (int64_t[]){x->dims[0], peaks_count(x->dims[1]), 2}));
    for (uint32_t i = SAMPLING; i <= PEAKS; i++)
        TRY(shape_expect_live(cx, g, op, i, x->live));
    out->dtype = IR_I32;
    out->live = x->live;
    out->rank = 1;
    out->dims[0] = x->dims[0];
    return MPK_OK;
}

static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box, ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
    read->lo[0] = box->lo[0];
    read->hi[0] = box->hi[0];
}

/* The heap of one row: an id for each token of the vocabulary. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    return (size_t)shape_input(g, op, LOGITS)->dims[1] * sizeof(int32_t);
}

/* A row of logits and the heap of its ids; taken ids stand behind the heap, the first one last. */
typedef struct candidates {
    const op_view *x;
    int64_t offset; /* of the row */
    int32_t *ids;
    int64_t n, in_heap;
    double largest, temperature;
} candidates;

static float logit_of(const candidates *c, int32_t id)
{
    int64_t at = c->offset + id * c->x->stride[1];
    return c->x->dtype == IR_F32 ? ((const float *)c->x->data)[at] : op_load(c->x, at);
}

static double weight_of(const candidates *c, int32_t id)
{
    return exp(((double)logit_of(c, id) - c->largest) / c->temperature);
}

/* a comes before b in falling order. */
static bool is_before(const candidates *c, int32_t a, int32_t b)
{
    float x = logit_of(c, a), y = logit_of(c, b);
    return x > y || (x == y && a < b);
}

/* Let the id at a place of the heap go down to where it belongs. */
static void sink(candidates *c, int64_t at)
{
    int32_t id = c->ids[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= c->in_heap)
            break;
        if (child + 1 < c->in_heap && is_before(c, c->ids[child + 1], c->ids[child]))
            child++;
        if (is_before(c, id, c->ids[child]))
            break;
        c->ids[at] = c->ids[child];
        at = child;
    }
    c->ids[at] = id;
}

/* The ids that can be drawn at all, as a heap. */
static void build_heap(candidates *c)
{
    c->n = 0;
    for (int64_t i = 0; i < c->x->dims[1]; i++)
        if (logit_of(c, (int32_t)i) > -INFINITY)
            c->ids[c->n++] = (int32_t)i;
    c->in_heap = c->n;
    for (int64_t i = c->n / 2; i-- > 0;)
        sink(c, i);
}

/* The weight of all ids that can be drawn, in the order of ids. */
static double weigh_all(const candidates *c)
{
    double sum = 0;
    for (int64_t i = 0; i < c->x->dims[1]; i++)
        if (logit_of(c, (int32_t)i) > -INFINITY)
            sum += weight_of(c, (int32_t)i);
    return sum;
}

/* The number `rank` in falling order; call with 0, 1, 2 ... */
static int32_t take(candidates *c, int64_t rank)
{
    if (rank >= c->n - c->in_heap) {
        int32_t first = c->ids[0];
        c->ids[0] = c->ids[--c->in_heap];
        sink(c, 0);
        c->ids[c->in_heap] = first;
    }
    return c->ids[c->n - 1 - rank];
}

/* How many are kept (in falling order) and, in *sum, the weight of those. */
static int64_t keep(candidates *c, const float *sampling, double *sum)
{
    int64_t kept = c->n;
    if (sampling[TOP_K] >= 1 && sampling[TOP_K] < (float)kept) {
        kept = (int64_t)sampling[TOP_K];
        *sum = 0;
        for (int64_t i = 0; i < kept; i++)
            *sum += weight_of(c, take(c, i));
    } else {
        *sum = weigh_all(c);
    }
    bool by_share = sampling[TOP_P]<1, by_weight = sampling[MIN_P]> 0;
    if (!by_share && !by_weight)
        return kept;
    double share = by_share ? (double)sampling[TOP_P] * *sum : INFINITY, before = 0;
    double least = by_weight ? (double)sampling[MIN_P] : 0;
    int64_t i = 0;
    for (; i < kept; i++) {
        double weight = weight_of(c, take(c, i));
        if (i > 0 && (before >= share || weight < least))
            break;
        before += weight;
    }
    *sum = before;
    return i;
}

/* The token of one row whose largest logit is at `best` (below 0: all are NaN). A running sum in falling order reaches
 * the target soon if the distribution is peaked. */
static int32_t draw(candidates *c, int64_t best, const float *sampling, uint64_t seed, uint64_t number)
{
    if (best < 0 || best >= c->x->dims[1])
        return 0;
    c->largest = (double)logit_of(c, (int32_t)best);
    c->temperature = (double)sampling[TEMPERATURE];
    if (!(c->temperature > 0) || !isfinite(c->largest))
        return (int32_t)best;
    build_heap(c);
    double sum;
    int64_t kept = keep(c, sampling, &sum), i = 0;
    double target = (double)rng_float(seed, number) * sum, passed = weight_of(c, take(c, 0));
    while (passed <= target && i + 1 < kept)
        passed += weight_of(c, take(c, ++i));
    return take(c, i);
}

static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const op_view *in = call->in, *out = &call->out[0];
    for (int64_t r = box->lo[0]; r < box->hi[0]; r++) {
        candidates c = {.x = &in[LOGITS], .offset = r * in[LOGITS].stride[0], .ids = scratch};
        float sampling[4];
        walk_load_row(&in[SAMPLING], r * in[SAMPLING].stride[0], 0, 4, sampling);
        uint64_t seed = (uint64_t)walk_load_int(&in[SEEDS], r * in[SEEDS].stride[0]);
        uint64_t number = (uint64_t)walk_load_int(&in[DRAWS], r * in[DRAWS].stride[0]);
        int64_t best = in[PEAKS].data ? peaks_largest(&in[PEAKS], r)
                                      : largest_in_row(&in[LOGITS], c.offset, 0, in[LOGITS].dims[1]);
        ((int32_t *)out->data)[r * out->stride[0]] = draw(&c, best, sampling, seed, number);
    }
}

/* Every mixture of filters on and off, and greedy rows among them. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    const ir_tensor *t = shape_input(g, op, input);
    for (int64_t i = 0; input != LOGITS && i < ir_elements(t); i++) {
        uint64_t bits = rng_u64(seed, (uint64_t)i);
        if (input == PEAKS) {
            ((float *)data)[i] = i % 2 ? (float)fill_choose(seed, (uint64_t)i, shape_input(g, op, LOGITS)->dims[1])
                                       : rng_normal(seed, (uint64_t)i);
        } else if (input == SAMPLING) {
            float values[4] = {(float)(bits % 4) * 0.5f, (float)(bits % 3) * 20, 1 - (float)(bits % 5) * 0.1f,
                               (float)(bits % 2) * 0.05f};
            ((float *)data)[i] = values[i % 4];
        } else {
            fill_store(t, i, (int64_t)bits, data);
        }
    }
}

static const op_operand in[] = {{"logits", 0}, {"sampling", 0}, {"seeds", 0}, {"draws", 0}, {"peaks", OP_OPTIONAL}};
static const op_operand out[] = {{"token", 0}};

#define CASE(rows, logits)                                                                                \
    {                                                                                                     \
        "input %x : " logits " live=rows\ninput %s : f32[" rows ", 4] live=rows\ninput %seed : i64[" rows \
        "] live=rows\n"                                                                                   \
        "input %draw : i32[" rows "] live=rows\n%t = sample(%x, %s, %seed, %draw)\n"                      \
    }
static const op_case cases[] = {
    CASE("1", "f32[1, 1003]"),
    CASE("7", "f32[7, 1003]"),
    CASE("16", "bf16[16, 49]"),
    {"input %x : f32[5, 300] live=rows\ninput %s : f32[5, 4] live=rows\ninput %seed : i64[5] live=rows\n"
     "input %draw : i32[5] live=rows\ninput %p : f32[5, 5, 2] live=rows\n%t = sample(%x, %s, %seed, %draw, %p)\n"}};

const op_def op_sample = {
    .name = "sample",
    .summary = "draw a token: temperature, top_k, top_p, min_p, a random number by seed and count",
    OP_INPUTS(in),
    OP_OUTPUTS(out),
    .flags = OP_DATA_DEPENDENT,
    .infer = infer,
    .axes = shape_axes_first,
    .reads = reads,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
