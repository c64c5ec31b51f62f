/* body_linear_stream.c - products of few tokens with streamed weights: linear and logits
 * (device/task/linear_stream.cuh). */
#include "gen/body_product.h"
#include "rt/rt_lane.h"

enum {
    MOST_TOKENS = 16,
    NARROW_PAGES = 4, /* of x in registers, for up to 8 tokens, and for up to 16: what is in the routines' names */
    WIDE_PAGES = 2,
    SCRATCH_BYTES = 8 * 8 * 32 * 16 + 512 + 2 * 8 * 16 * 8 + 32, /* STREAM_SCRATCH */
};

/* Rows of the result that a step may have. */
static int64_t rows_of_step(const gen_call *c)
{
    return gen_output(c, 0)->dims[0];
}

static int64_t columns_of(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X);
    return x->dims[x->rank - 1];
}

static bool accepts(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X);
    return rows_of_step(c) <= MOST_TOKENS && x->dims[0] <= MOST_TOKENS && gen_is_dense(x, IR_BF16) &&
           columns_of(c) % 8 == 0 && c->op->n_in + c->op->n_out <= RT_PACKED && takes_operands(c);
}

static void pack(const gen_call *c, gen_pack *out)
{
    bool logits = is_logits(c), glu = is_gated(c);
    uint32_t norm = logits ? L_NORM : NORM;
    *out = (gen_pack){.scale = norm < c->op->n_in ? c->op->in[norm] : IR_NONE,
                      .order = glu ? GEN_PAIRED : GEN_ROWS,
                      .columns = columns_of(c)};
    for (uint32_t i = 0; i < (logits ? 1u : 3u) && gen_input(c, W0 + i); i++) {
        out->w[out->n_weights++] = c->op->in[W0 + i];
        out->rows += gen_input(c, W0 + i)->dims[0];
    }
    gen_pad_pack(out, glu ? 16 : 8);
}

/* What the sums become. */
static void print_output(const gen_call *c, text *out)
{
    if (is_logits(c))
        text_print(out, ", TO_LOGITS, %u", gen_operand_of_output(c->op, 1));
    else
        text_print(out, ", TO_BF16, -1");
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    (void)n;
    gen_pack p;
    pack(c, &p);
    text_print(out, "{");
    gen_print_columns(&p, out);
    text_print(out, ", %d, %lld, ", rows_of_step(c) <= 8 ? NARROW_PAGES : WIDE_PAGES,
               (long long)gen_output(c, 0)->dims[1]);
    print_ends(c, "GLU", out);
    print_output(c, out);
    text_print(out, "}");
    return MPK_OK;
}

/* Up to 8 tokens; up to 16, whose x takes twice the registers. */
static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine narrow = {"stream_shape", "linear_stream<4, 0>", "linear_stream_load"},
                             wide = {"stream_shape", "linear_stream<2, 1>", "linear_stream_load"};
    return rows_of_step(c) <= 8 ? &narrow : &wide;
}

static uint32_t scratch_bytes(const gen_call *c)
{
    (void)c;
    return SCRATCH_BYTES;
}

const gen_body gen_body_linear_stream = {.op = "linear",
                                         .name = "linear_stream",
                                         .needs = GEN_BULK,
                                         .rank = 10,
                                         .loads = true,
                                         .waits = true,
                                         .carries = 1 << X | 1 << RESIDUAL,
                                         .accepts = accepts,
                                         .print = print,
                                         .routine = routine,
                                         .pack = pack,
                                         .scratch_bytes = scratch_bytes};
const gen_body gen_body_logits_stream = {.op = "logits",
                                         .name = "linear_stream",
                                         .needs = GEN_BULK,
                                         .rank = 10,
                                         .loads = true,
                                         .waits = true,
                                         .accepts = accepts,
                                         .print = print,
                                         .routine = routine,
                                         .pack = pack,
                                         .scratch_bytes = scratch_bytes};
