/* body_expert_stream.c - products with the weights of experts that stream: expert_linear
 * (device/task/expert_stream.cuh). */
#include "gen/body_print.h"
#include "rt/rt_lane.h"

enum { X, IDS, W0, W1, SCALE, RESIDUAL, NORM };
enum { GLU, EPS };
enum {
    MOST_EXPERTS = 256, /* EXPERT_MOST */
    FEW_TOKENS = 16,    /* chunks of 8 pairs up to here, of 16 above */
    PAGE_COLUMNS = 1024,
    UNIT_COLUMNS = 256,
    TILE = 8, /* STREAM_TILE */
    MOST_RANGE = 256,
    MOST_PAIRS = 2048 /* that are sorted together: tokens, pairs */
};

static bool is_few(const gen_call *c)
{
    return gen_output(c, 0)->dims[0] <= FEW_TOKENS;
}

static bool is_weight(const ir_tensor *t)
{
    return !t || (t->kind == IR_CONST && gen_is_dense(t, IR_BF16));
}

/* A gated product with a row for each pair, or a sum of pairs. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X), *w = gen_input(c, W0), *y = gen_output(c, 0);
    bool gated = c->op->attributes[GLU].s.n, sums = gen_input(c, SCALE);
    return gated != sums && is_weight(w) && is_weight(gen_input(c, W1)) && gen_is_dense(x, IR_BF16) &&
           gen_is_dense(gen_input(c, IDS), IR_I32) && gen_is_dense(gen_input(c, SCALE), IR_F32) &&
           gen_is_dense(gen_input(c, RESIDUAL), IR_BF16) && gen_is_dense(y, IR_BF16) &&
           gen_is_vector(gen_input(c, NORM)) && !(gen_input(c, NORM) && x->rank != 2) && w->dims[0] <= MOST_EXPERTS &&
           w->dims[1] % 8 == 0 && w->dims[2] % 8 == 0 && c->op->n_in + c->op->n_out <= RT_PACKED;
}

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
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
    out->padded_rows = out->rows;
    out->padded_columns = round_up(out->columns, UNIT_COLUMNS);
    out->n_bytes = (uint64_t)out->padded_rows * (uint64_t)out->padded_columns * 2;
}

/* Tokens whose pairs are sorted together. */
static int64_t range_of(const gen_call *c)
{
    int64_t n = gen_input(c, IDS)->dims[1], most = MOST_PAIRS / n < MOST_RANGE ? MOST_PAIRS / n : MOST_RANGE;
    return is_few(c) ? FEW_TOKENS : most;
}

/* Groups of columns at once: of many tokens that are summed few, since their sums take room. */
static int64_t block_of(const gen_call *c)
{
    return is_few(c) || !gen_input(c, SCALE) ? TILE : 2;
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    (void)n;
    gen_pack p;
    pack(c, &p);
    str glu = c->op->attributes[GLU].s;
    int64_t units = p.padded_columns / UNIT_COLUMNS, pages = (units + 3) / 4;
    text_print(out, "{{%lld, ", (long long)p.columns);
    gen_print_float(1 / (float)p.columns, out);
    text_print(out, ", %lld, %lld, 1, %lld, %d, ", (long long)pages, (long long)(units - 4 * (pages - 1)),
               (long long)gen_input(c, W0)->dims[1], gen_input(c, NORM) != NULL);
    gen_print_float((float)c->op->attributes[EPS].f, out);
    text_print(out, ", GLU_%s, %d, %u, %d, {-1, -1, -1}, {0, 0, 0}, {0, 0, 0}, -1, 0, TO_BF16, -1}, ",
               str_is(glu, "silu")   ? "SILU"
               : str_is(glu, "gelu") ? "GELU"
               : glu.n               ? "GELU_TANH"
                                     : "NONE",
               X, gen_operand_of_output(c->op, 0), gen_input(c, RESIDUAL) ? RESIDUAL : -1);
    text_print(out, "%d, %d, %lld, %lld, %lld, %lld, %d}", IDS, gen_input(c, SCALE) ? SCALE : -1,
               (long long)gen_input(c, W0)->dims[0], (long long)gen_input(c, IDS)->dims[1], (long long)range_of(c),
               (long long)block_of(c), gen_input(c, X)->rank == 3);
    return MPK_OK;
}

static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine few = {"expert_shape", "expert_stream<0>", "expert_stream_load<0>"},
                             many = {"expert_shape", "expert_stream<1>", "expert_stream_load<1>"};
    return is_few(c) ? &few : &many;
}

/* The warps' sums; as expert_scratch of expert_stream.cuh. */
static uint32_t scratch_bytes(const gen_call *c)
{
    int64_t range = range_of(c), pairs = range * gen_input(c, IDS)->dims[1];
    int64_t sums = gen_input(c, SCALE) ? range * block_of(c) * 8 * 4 : 0;
    return (uint32_t)(TILE * 8 * 32 * (is_few(c) ? 8 : 16) + 64 + range * 4 + pairs * 8 + sums + pairs * 4);
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
