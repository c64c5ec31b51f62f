/* body_linear_stream.c - products of few tokens with streamed weights: linear, sum_linear and
 * logits (device/task/linear_stream.cuh).  body_linear_team.c, for some more tokens, has the same
 * packing and shapes.
 *
 * Weights are packed when they are loaded, into groups of 8 rows that lie page after page as the
 * ring brings them; the body is one function for all uses, and an instance is a row of its table of
 * shapes (shape/stream_shape.h).  Relies on body_product.h for what it shares with the other
 * products. */
#include "gen/body_product.h"

/* As few tokens as the registers of the body hold (shape/stream_shape.h); more are for the teams
 * and for warpgroups.  Weights in blocks have another body for more tokens on GPUs with
 * wgmma (body_linear_blocks.c): elsewhere this one takes 16 at a time. */
static bool accepts(const gen_call *c)
{
    return (most_tokens(c) <= STREAM_MOST_TOKENS && is_streamed_product(c)) || takes_blocks(c);
}

bool gen_is_of_terms(const ir_graph *g, ir_op_id op)
{
    const gen_call c = {.ir = g, .op = &g->ops.at[op]};
    return is_of_terms(&c);
}

/* Terms and their sum lie as x does, and the body has registers for so many. */
static bool accepts_terms(const gen_call *c)
{
    bool fits = stream_adds_terms(rows_of_step(c), columns_of(c)) && is_streamed_product(c) &&
                c->op->n_in - TERM < STREAM_MOST_TERMS && gen_is_dense(gen_output(c, 1), c->halves);
    for (uint32_t i = TERM; i < c->op->n_in; i++)
        fits = fits && gen_is_dense(gen_input(c, i), c->halves);
    return fits;
}

/* The norm's weight is multiplied into the columns before rounding, so the body normalises x by its
 * root mean square alone; into blocks it cannot be, so there the body multiplies x by it.  A gate
 * pairs the rows of both weights, so that a lane gets gate and up of the same column. */
static void pack(const gen_call *c, gen_pack *out)
{
    const bool logits = is_logits(c), glu = is_gated(c);
    const uint32_t norm = logits ? L_NORM : NORM;
    int zero;
    *out = (gen_pack){.dtype = c->halves,
                      .scale = IR_NONE,
                      .shift = IR_NONE,
                      .centred = is_centred(c),
                      .columns = columns_of(c)};
    out->form = form_of(c, &zero);
    out->order = glu ? GEN_PAIRED : GEN_ROWS;
    if (!out->form)
        out->scale = c->op->in[norm];
    if (out->centred)
        out->shift = c->op->in[NORM_BIAS];
    for (uint32_t i = 0; i < (logits ? 1u : 3u) && gen_input(c, W0 + i); i++) {
        out->w[out->n_weights++] = c->op->in[W0 + i];
        out->rows += gen_input(c, W0 + i)->dims[0];
    }
    gen_pad_pack(out, glu ? 16 : 8, out->form ? RT_SLAB_COLUMNS : STREAM_UNIT_COLUMNS);
}

/* Biases of the weights of a linear; bias_rows tells the body which rows of the result each of them
 * covers. */
static void fill_biases(const gen_call *c, stream_shape *s)
{
    for (uint32_t i = 0; i < 3; i++) {
        const ir_tensor *w = linear_input(c, W0 + i), *b = linear_input(c, B0 + i);
        s->bias[i] = b ? (int)(B0 + i) : -1;
        s->bias_rows[i] = w ? (int)w->dims[0] : 0;
        s->bias_type[i] = b && b->dtype == IR_F32;
    }
}

/* Pages that a worker takes from its ring together: what the tokens' x leaves of the registers
 * decides. */
static int at_once(const gen_call *c)
{
    const int64_t rows = rows_of_step(c);
    return rows <= STREAM_NARROW_TOKENS ? STREAM_NARROW_PAGES : STREAM_WIDE_PAGES;
}

/* The numbers that tell this use of the routine from others.  Operands are named by their place in
 * the task, -1: absent. */
static void fill_shape(const gen_call *c, stream_shape *s)
{
    const bool logits = is_logits(c);
    const uint32_t norm_in = logits ? L_NORM : NORM;
    const ir_tensor *norm = gen_input(c, norm_in);
    int zero;
    gen_pack p;
    pack(c, &p);
    const uint32_t form = form_of(c, &zero);
    *s = (stream_shape){
        .at_once = at_once(c),
        .rows = (int)gen_output(c, 0)->dims[1],
        .norm = has_norm(c),
        .eps = eps_or_factor(c),
        .norm_in = form && norm ? (int)norm_in : -1,
        .norm_type = form && norm && norm->dtype == IR_F32,
        .zero = form ? (float)(128 + zero) : 0,
        .glu = gen_shape_glu(glu_of(c)),
        .after = gen_shape_glu(act_of(c)),
        .x = X,
        .terms = is_of_terms(c) ? (int)(c->op->n_in - TERM) : 0,
        .y = (int)gen_operand_of_output(c->op, 0),
        .residual = linear_input(c, RESIDUAL) ? RESIDUAL : -1,
        .gathered = gathered_rows(c),
        .output = TO_HALVES,
        .peaks = -1,
        .cap = cap_of(c),
        .rate = rate_of(c),
    };
    if (logits) {
        s->tokens = (int)gen_input(c, L_X)->dims[0];
        s->output = TO_LOGITS;
        s->peaks = (int)gen_operand_of_output(c->op, 1);
    }
    gen_shape_columns(&p, s, 1);
    fill_biases(c, s);
}

/* The routine is one function for all uses; an instance is the initializer of its shape. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    (void)n;
    stream_shape s;
    fill_shape(c, &s);
    gen_print_stream_shape(&s, out);
    return MPK_OK;
}

/* By the form of the weights: the routine for up to 8 tokens, or that for up to 16, whose x takes
 * twice the registers, so that it takes fewer pages at once. */
static const gen_routine *routine(const gen_call *c)
{
#define BLOCKS(at_once, wide, form)                                                 \
    {                                                                               \
        "stream_shape", "linear_stream<" at_once ", " wide ", RT_BLOCKS_" form ">", \
            "linear_stream_load_blocks<RT_BLOCKS_" form ">"                         \
    }
    static const gen_routine narrow[] = {
        {"stream_shape", "linear_stream<4, 0>", "linear_stream_load"},
        BLOCKS("4", "0", "4"),
        BLOCKS("4", "0", "4K"),
        BLOCKS("4", "0", "8"),
        BLOCKS("4", "0", "8K")};
    static const gen_routine wide[] = {
        {"stream_shape", "linear_stream<2, 1>", "linear_stream_load"},
        BLOCKS("2", "1", "4"),
        BLOCKS("2", "1", "4K"),
        BLOCKS("2", "1", "8"),
        BLOCKS("2", "1", "8K")};
#undef BLOCKS
    int zero;
    const uint32_t form = form_of(c, &zero);
    return rows_of_step(c) <= STREAM_NARROW_TOKENS ? &narrow[form] : &wide[form];
}

/* What of the code a task needs that is left out where none does. */
static uint64_t forms(const gen_call *c, const ir_box *box, gen_maps maps)
{
    (void)box, (void)maps;
    return (act_of(c).n ? UINT64_C(1) << TILE_FORM_STREAM_AFTER : 0) | form_of_bend(c);
}

/* For the largest tile that any shape has. */
static uint32_t scratch_bytes(const gen_call *c)
{
    (void)c;
    return STREAM_SCRATCH;
}

const gen_body gen_body_linear_stream = {.op = "linear",
                                         .name = "linear_stream",
                                         .needs = GEN_RING,
                                         .rank = 10,
                                         .loads = true,
                                         .waits = true,
                                         .carries = 1 << X | 1 << RESIDUAL,
                                         .sends = true,
                                         .accepts = accepts,
                                         .print = print,
                                         .routine = routine,
                                         .pack = pack,
                                         .scratch_bytes = scratch_bytes,
                                         .forms = forms};
const gen_body gen_body_sum_linear_stream = {
    .op = "sum_linear",
    .name = "linear_stream",
    .needs = GEN_RING,
    .rank = 10,
    .loads = true,
    .waits = true,
    .carries = 1 << X | ((1 << (STREAM_MOST_TERMS - 1)) - 1) << TERM,
    .accepts = accepts_terms,
    .print = print,
    .routine = routine,
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .forms = forms};
const gen_body gen_body_logits_stream = {.op = "logits",
                                         .name = "linear_stream",
                                         .needs = GEN_RING,
                                         .rank = 10,
                                         .loads = true,
                                         .waits = true,
                                         .accepts = accepts,
                                         .print = print,
                                         .routine = routine,
                                         .pack = pack,
                                         .scratch_bytes = scratch_bytes,
                                         .forms = forms};
