/* body_expert_stream.c - products with the weights of experts that stream: expert_linear
 * (device/task/expert_stream.cuh). */
#include "gen/body_print.h"
#include "rt/rt_lane.h"

enum { X, IDS, W0, W1, SCALE, RESIDUAL, NORM };
enum { GLU, EPS };
enum {
    MOST_EXPERTS = 256, /* a thread of the body each */
    FEW_TOKENS = 16,    /* chunks of 8 pairs up to here, of 16 above */
    FEW_SLOTS = 8,
    MANY_SLOTS = 4,    /* expert_sizes */
    MOST_RANGE = 256,  /* tokens that are sorted together, */
    MOST_PAIRS = 2048, /* and pairs */
    SUMMED_BLOCK = 2,  /* groups at once of many tokens that are summed: their sums take room */
};

static bool is_few(const gen_call *c)
{
    return gen_output(c, 0)->dims[0] <= FEW_TOKENS;
}

/* A gated product with a row for each pair, or a sum of pairs. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X), *w = gen_input(c, W0), *y = gen_output(c, 0);
    bool gated = c->op->attributes[GLU].s.n, sums = gen_input(c, SCALE);
    return gated != sums && gen_is_streamed(w) && gen_is_streamed(gen_input(c, W1)) && gen_is_dense(x, IR_BF16) &&
           gen_is_dense(gen_input(c, IDS), IR_I32) && gen_is_dense(gen_input(c, SCALE), IR_F32) &&
           gen_is_dense(gen_input(c, RESIDUAL), IR_BF16) && gen_is_dense(y, IR_BF16) &&
           gen_is_vector(gen_input(c, NORM)) && !(gen_input(c, NORM) && x->rank != 2) && w->dims[0] <= MOST_EXPERTS &&
           w->dims[1] % 8 == 0 && w->dims[2] % 8 == 0 && c->op->n_in + c->op->n_out <= RT_PACKED;
}

/* The experts' rows one behind the other: an expert is a whole number of groups. */
static void pack(const gen_call *c, gen_pack *out)
{
    const ir_tensor *w = gen_input(c, W0);
    bool gated = gen_input(c, W1);
    *out = (gen_pack){.n_weights = gated ? 2 : 1,
                      .w = {c->op->in[W0], gated ? c->op->in[W1] : IR_NONE},
                      .scale = NORM < c->op->n_in ? c->op->in[NORM] : IR_NONE,
                      .order = gated ? GEN_PAIRED : GEN_ROWS,
                      .rows = w->dims[0] * w->dims[1] * (gated ? 2 : 1),
                      .columns = w->dims[2]};
    gen_pad_pack(out, 8);
}

/* Tokens whose pairs are sorted together. */
static int64_t range_of(const gen_call *c)
{
    int64_t n = gen_input(c, IDS)->dims[1], most = MOST_PAIRS / n < MOST_RANGE ? MOST_PAIRS / n : MOST_RANGE;
    return is_few(c) ? FEW_TOKENS : most;
}

/* Groups of columns at once. */
static int64_t block_of(const gen_call *c)
{
    return is_few(c) ? FEW_SLOTS : gen_input(c, SCALE) ? SUMMED_BLOCK : MANY_SLOTS;
}

/* Places in scratch, bytes: expert_places. */
enum { TOTALS, COUNTS, NORMS, WEIGHTS, CHUNKS, SUMS, IDS_AT, ORDER, PLACES };

/* Returns the end. */
static int64_t place_scratch(const gen_call *c, int64_t at[PLACES])
{
    enum {
        PARTS_BYTES = 2 * FEW_SLOTS * 8 * 32 * 8,
        SHAPE_BYTES = 256,
        TOTALS_BYTES = 2 * 512 * 4,
        COUNTS_BYTES = 8 * 4
    };
    int64_t range = range_of(c), pairs = range * gen_input(c, IDS)->dims[1];
    int64_t chunks = pairs / (is_few(c) ? 8 : 16) + gen_input(c, W0)->dims[0];
    at[TOTALS] = PARTS_BYTES + SHAPE_BYTES;
    at[COUNTS] = at[TOTALS] + TOTALS_BYTES;
    at[NORMS] = at[COUNTS] + COUNTS_BYTES;
    at[WEIGHTS] = at[NORMS] + range * 4;
    at[CHUNKS] = at[WEIGHTS] + pairs * 4;
    at[SUMS] = at[CHUNKS] + (chunks < pairs ? chunks : pairs) * 4;
    at[IDS_AT] = at[SUMS] + (gen_input(c, SCALE) ? range * block_of(c) * 8 * 4 : 0);
    at[ORDER] = at[IDS_AT] + pairs * 2;
    return at[ORDER] + pairs * 2;
}

/* What it has in common with a product: stream_shape. */
static void print_product(const gen_call *c, text *out)
{
    gen_pack p;
    pack(c, &p);
    text_print(out, "{");
    gen_print_columns(&p, out);
    text_print(out, ", 1, %lld, %d, ", (long long)gen_input(c, W0)->dims[1], gen_input(c, NORM) != NULL);
    gen_print_float((float)c->op->attributes[EPS].f, out);
    text_print(out, ", GLU_%s, %d, %u, %d, {-1, -1, -1}, {0, 0, 0}, {0, 0, 0}, -1, 0, TO_BF16, -1}",
               gen_glu_name(c->op->attributes[GLU].s), X, gen_operand_of_output(c->op, 0),
               gen_input(c, RESIDUAL) ? RESIDUAL : -1);
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    (void)n;
    int64_t of_token = gen_input(c, IDS)->dims[1], at[PLACES];
    place_scratch(c, at);
    text_print(out, "{");
    print_product(c, out);
    text_print(out, ", %d, %d, %lld, %lld, %lldu, %lld, %lld, %d, {", IDS, gen_input(c, SCALE) ? SCALE : -1,
               (long long)gen_input(c, W0)->dims[0], (long long)of_token,
               (long long)(((1 << 20) + of_token - 1) / of_token), (long long)range_of(c), (long long)block_of(c),
               gen_input(c, X)->rank == 3);
    for (uint32_t i = 0; i < PLACES; i++)
        text_print(out, "%s%lld", i ? ", " : "", (long long)at[i]);
    text_print(out, "}}");
    return MPK_OK;
}

static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine few = {"expert_shape", "expert_stream<0>", "expert_stream_load<0>"},
                             many = {"expert_shape", "expert_stream<1>", "expert_stream_load<1>"};
    return is_few(c) ? &few : &many;
}

static uint32_t scratch_bytes(const gen_call *c)
{
    int64_t at[PLACES];
    return (uint32_t)place_scratch(c, at);
}

const gen_body gen_body_expert_stream = {.op = "expert_linear",
                                         .name = "expert_stream",
                                         .needs = GEN_BULK,
                                         .rank = 10,
                                         .loads = true,
                                         .waits = true,
                                         .carries = 1 << X | 1 << IDS | 1 << SCALE | 1 << RESIDUAL,
                                         .accepts = accepts,
                                         .print = print,
                                         .routine = routine,
                                         .pack = pack,
                                         .scratch_bytes = scratch_bytes};
