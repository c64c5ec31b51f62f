/* body_linear_stream.c - products of few tokens with streamed weights: linear and logits
 * (device/task/linear_stream.cuh). */
#include "gen/body_product.h"
#include "rt/rt_lane.h"

enum {
    MOST_TOKENS = 16,
    PAGE_COLUMNS = 1024,
    UNIT_COLUMNS = 256,
    AT_ONCE = 4, /* pages of x in registers */
    MOST_SPLITS = 32,
    SCRATCH_BYTES = 8 * 8 * 32 * 16 + 512 + 2 * 8 * 16 * 8 + 8 * 128 * 16, /* STREAM_SCRATCH */
};

/* Rows of the result that a step may have. */
static int64_t rows_of_step(const gen_call *c)
{
    return gen_output(c, 0)->dims[0];
}

/* Folding keeps the weights of all splits in shared memory, where the partial sums come later. */
static bool fits_fold(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X), *lse = gen_input(c, LSE);
    if (!lse)
        return true;
    int64_t tokens = rows_of_step(c), columns = x->dims[2], heads = lse->dims[2];
    int64_t bytes = tokens * lse->dims[1] * heads * 4;
    return lse->dims[1] <= MOST_SPLITS && columns % heads == 0 && columns / heads % 8 == 0 &&
           columns <= AT_ONCE * PAGE_COLUMNS && bytes <= 32768 && is_dense(lse, IR_F32);
}

static int64_t columns_of(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X);
    return x->dims[x->rank - 1];
}

static bool accepts(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X);
    if (rows_of_step(c) > MOST_TOKENS || x->dims[0] > MOST_TOKENS || !is_dense(x, IR_BF16) || columns_of(c) % 8 ||
        c->op->n_in + c->op->n_out > RT_PACKED || !takes_operands(c))
        return false;
    return is_logits(c) || (!(gen_input(c, NORM) && gen_input(c, LSE)) && fits_fold(c));
}

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
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
    out->padded_rows = round_up(out->rows, glu ? 16 : 8);
    out->padded_columns = round_up(out->columns, UNIT_COLUMNS);
    out->n_bytes = (uint64_t)out->padded_rows * (uint64_t)out->padded_columns * 2;
}

static bool has_lse(const gen_call *c)
{
    return !is_logits(c) && gen_input(c, LSE);
}

/* As in the routine's name. */
static int at_once(const gen_call *c)
{
    return rows_of_step(c) <= 8 || has_lse(c) ? AT_ONCE : AT_ONCE / 2;
}

/* For stream_divide. */
static long long inverse_of(int64_t n)
{
    return ((1 << 20) + n - 1) / n;
}

/* Folding, and what the sums become. */
static void print_fold(const gen_call *c, text *out)
{
    const ir_tensor *lse = has_lse(c) ? gen_input(c, LSE) : NULL;
    text_print(out, ", %d, %lld, %lld, %lld, %lld, ", lse ? LSE : -1, lse ? (long long)lse->dims[1] : 0ll,
               lse ? (long long)lse->dims[2] : 0ll, lse ? inverse_of(lse->dims[2]) : 0ll,
               lse ? inverse_of(columns_of(c) / lse->dims[2]) : 0ll);
    if (is_logits(c))
        text_print(out, "TO_LOGITS, %u", gen_operand_of_output(c->op, 1));
    else
        text_print(out, "TO_BF16, -1");
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    (void)n;
    gen_pack p;
    pack(c, &p);
    int64_t units = p.padded_columns / UNIT_COLUMNS, pages = (units + 3) / 4, last = units - 4 * (pages - 1);
    text_print(out, "{%lld, ", (long long)p.columns);
    gen_print_float(1 / (float)p.columns, out);
    text_print(out, ", %lld, %lld, %d, %lld, ", (long long)pages, (long long)last, at_once(c),
               (long long)gen_output(c, 0)->dims[1]);
    print_ends(c, "GLU", out);
    print_fold(c, out);
    text_print(out, "}");
    return MPK_OK;
}

/* Up to 8 tokens; up to 16, whose x takes twice the registers: fewer pages at once, unless it has to be folded. */
static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine narrow = {"stream_shape", "linear_stream<4, 0, 2>", "linear_stream_load"},
                             wide = {"stream_shape", "linear_stream<2, 1, 0>", "linear_stream_load"},
                             folds = {"stream_shape", "linear_stream<4, 1, 1>", "linear_stream_load"};
    return rows_of_step(c) <= 8 ? &narrow : has_lse(c) ? &folds : &wide;
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
