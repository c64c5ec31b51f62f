/* body_expert_stream.c - products with the weights of experts that stream: expert_linear
 * (device/task/expert_stream.cuh).
 *
 * For steps of any size with bf16 weights, where no warpgroup body (body_expert_tile.c) accepts,
 * and with weights that stay in GGUF blocks.  A task is columns of all experts.  The body sorts the
 * pairs (token, expert) of a range of tokens by expert and reads the rows of each expert that was
 * chosen once for the range.  Weights are packed as body_linear_stream.c packs them, one expert
 * after the other; in blocks a row ends with its last piece of 128 columns (rt/rt_blocks.h).
 */
#include "gen/body_experts.h"
#include "gen/packed_form.h"
#include "op/experts.h"
#include "shape/expert_stream_shape.h"
#include "shape/linear_tile_shape.h"

/* Steps of few tokens have chunks of EXPERT_FEW_ROWS pairs, longer ones of EXPERT_MANY_ROWS: two
 * instances of the routine. */
static bool is_few(const gen_call *c)
{
    return gen_output(c, 0)->dims[0] <= EXPERT_FEW_TOKENS;
}

/* The form of weights that stay in blocks, and what is taken off their integers. */
static uint32_t form_of(const gen_call *c, int *zero)
{
    return gen_form_of_weights(c, W0, 2, zero);
}

static bool has_blocks(const gen_call *c)
{
    int zero;
    return form_of(c, &zero) != RT_BLOCKS_NONE;
}

/* Weights of bf16, or in blocks; then the norm's weight is read as it is, 16 bytes at a time. */
static bool takes_weights(const gen_call *c)
{
    const ir_tensor *w = gen_input(c, W0), *up = gen_input(c, W1), *norm = gen_input(c, NORM);
    if (!has_blocks(c))
        return gen_is_streamed(w, IR_BF16) && gen_is_streamed(up, IR_BF16);
    return gen_is_streamed(w, w->dtype) && (!up || gen_is_streamed(up, up->dtype)) &&
           (!norm || gen_is_dense(norm, norm->dtype));
}

/* A gated product with a row for each pair, or a sum of pairs: the two halves of a mixture's layer.
 * A norm is folded in only where x has a row for each token. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X), *w = gen_input(c, W0), *y = gen_output(c, 0);
    bool gated = c->op->attributes[GLU].s.n, sums = gen_input(c, SCALE); /* one of the two */
    return gated != sums && takes_weights(c) && gen_is_dense(x, IR_BF16) &&
           gen_is_dense(gen_input(c, IDS), IR_I32) && gen_is_dense(gen_input(c, SCALE), IR_F32) &&
           gen_is_dense(gen_input(c, RESIDUAL), IR_BF16) && gen_is_dense(y, IR_BF16) &&
           gen_is_vector(gen_input(c, NORM), IR_BF16) && !(gen_input(c, NORM) && x->rank != 2) &&
           takes_bias(c, B0) && takes_bias(c, B1) && w->dims[0] <= EXPERT_MOST &&
           w->dims[1] % 8 == 0 && w->dims[2] % 8 == 0;
}

/* Tokens whose pairs are sorted together: as many as EXPERT_MOST_PAIRS pairs come from. */
static int64_t range_of(const gen_call *c)
{
    const int64_t n = gen_input(c, IDS)->dims[1], tokens = gen_output(c, 0)->dims[0],
                  most = EXPERT_MOST_PAIRS / n < EXPERT_MOST_RANGE ? EXPERT_MOST_PAIRS / n
                                                                   : EXPERT_MOST_RANGE,
                  few = tokens > EXPERT_LEAST_RANGE ? tokens : EXPERT_LEAST_RANGE;
    return is_few(c) && few < most ? few : most;
}

/* Rows of pairs, in any places where loads of 16 bytes may begin. */
static bool is_rows(const ir_tensor *x)
{
    return x->rank == 3 && x->dtype == IR_BF16 && x->offset % 8 == 0 && x->stride[1] % 8 == 0 &&
           (x->dims[2] == 1 || x->stride[2] == 1) && (x->dims[0] == 1 || x->stride[0] % 8 == 0);
}

_Static_assert((int)EXPERTS_MOST_PLAIN <= (int)EXPERT_MOST_PAIRS, "the pairs of a token fit");

/* A row for each pair, neither gated nor summed, nothing added. */
static bool accepts_rows(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X), *w = gen_input(c, W0), *y = gen_output(c, 0);
    return !c->op->attributes[GLU].s.n && !gen_input(c, W1) && !gen_input(c, SCALE) &&
           !gen_input(c, RESIDUAL) && !gen_input(c, NORM) && !has_ends(c) && y->rank == 3 &&
           is_rows(x) && gen_is_streamed(w, IR_BF16) && gen_is_dense(gen_input(c, IDS), IR_I32) &&
           gen_is_dense(y, IR_BF16) && w->dims[0] <= EXPERT_MOST && w->dims[1] % 8 == 0 &&
           w->dims[2] % 8 == 0 &&
           range_of(c) * (x->stride[0] + x->dims[1] * x->stride[1]) * 2 < INT32_MAX;
}

/* Which kind of shape and code: accepts_rows has refused what else a kind would need. */
static int kind_of(const gen_call *c)
{
    if (has_ends(c))
        return EXPERT_KIND_ENDS;
    return gen_input(c, W1) || gen_input(c, SCALE) ? EXPERT_KIND_PLAIN : EXPERT_KIND_ROWS;
}

/* Groups in a strip, side by side in a page.  Weights in blocks have two in another way: each has
 * slabs of its own (expert_blocks.cuh). */
static int sides_of(const gen_call *c)
{
    const int64_t *w = gen_input(c, W0)->dims;
    return gen_input(c, W1) || has_blocks(c) ? 1 : experts_sides(w[1], w[2]);
}

/* Rounds of chunks.  A slot of a gated product in blocks is two groups, 8 columns of y, not one; so
 * it takes twice the rounds to make as many slots, where tokens have as many experts. */
static int rounds_of(const gen_call *c)
{
    const int64_t of_token = gen_input(c, IDS)->dims[1];
    if (!gen_input(c, W1))
        return 1;
    if (has_blocks(c))
        return of_token % 4 == 0 ? 4 : of_token % 2 == 0 ? 2 : 1;
    return experts_rounds(of_token, gen_input(c, W0)->dims[1]);
}

/* The experts' rows one after the other: an expert is a whole number of strips. */
static void pack(const gen_call *c, gen_pack *out)
{
    const ir_tensor *w = gen_input(c, W0);
    bool gated = gen_input(c, W1); /* gate and up share groups of 8 rows */
    int zero;
    *out = (gen_pack){.n_weights = 1,
                      .dtype = IR_BF16,
                      .w = {c->op->in[W0], IR_NONE},
                      .scale = c->op->in[NORM],
                      .shift = IR_NONE,
                      .order = GEN_ROWS,
                      .form = form_of(c, &zero),
                      .columns = w->dims[2]};
    if (out->form)
        out->scale = IR_NONE;
    if (gated) {
        out->n_weights = 2;
        out->w[1] = c->op->in[W1];
        out->order = GEN_PAIRED;
    }
    out->rows = out->n_weights * w->dims[0] * w->dims[1];
    gen_pad_pack(out, 8, out->form ? RT_PIECE_COLUMNS : STREAM_UNIT_COLUMNS / sides_of(c));
}

/* Strips of columns at once: their groups are ended by a warp each. */
static int64_t block_of(const gen_call *c)
{
    const int groups = has_blocks(c) && gen_input(c, W1) ? 2 : sides_of(c); /* of a strip */
    if (is_few(c))
        return EXPERT_FEW_SLOTS / groups;
    return (gen_input(c, SCALE) ? EXPERT_SUMMED_BLOCK : EXPERT_MANY_SLOTS) / groups;
}

/* Where each list begins in scratch; the widths are those of the device's types.  Chunks: each
 * expert has at most one that is not full.  Returns the end of the scratch. */
static int64_t place_scratch(const gen_call *c, expert_places *at)
{
    const int64_t range = range_of(c), pairs = range * gen_input(c, IDS)->dims[1];
    const int64_t most =
        pairs / (is_few(c) ? EXPERT_FEW_ROWS : EXPERT_MANY_ROWS) + gen_input(c, W0)->dims[0];
    const int64_t chunks = most < pairs ? most : pairs;
    const int64_t sums = gen_input(c, SCALE) ? range * block_of(c) * sides_of(c) * 8 : 0;
    at->totals = EXPERT_SHAPE + EXPERT_SHAPE_BYTES;
    at->counts = at->totals + 2 * EXPERT_TOTALS * 4 * sides_of(c);
    at->norms = at->counts + 8 * 4;
    at->weights = (int)(at->norms + range * 4);
    at->chunks = (int)(at->weights + pairs * 4);
    at->sums = (int)((at->chunks + chunks * 4 + 7) / 8 * 8); /* read by twos */
    at->ids = (int)(at->sums + sums * 4);
    at->order = (int)(at->ids + pairs * 2);
    const int64_t end = at->order + pairs * 2;
    if (has_blocks(c) && gen_input(c, NORM)) /* expert_norm: of whole slabs */
        return (end + 15) / 16 * 16 + (gen_input(c, W0)->dims[2] + RT_SLAB_COLUMNS - 1) /
                                          RT_SLAB_COLUMNS * RT_SLAB_COLUMNS * 4;
    if (!is_few(c) || sides_of(c) == 1)
        return end;
    /* rows of x of each chunk, and of some after the last one (expert_rows) */
    return (end + 3) / 4 * 4 + (chunks + EXPERT_AFTER) * EXPERT_FEW_ROWS * 4;
}

/* `inverse` replaces the division of a pair's number by of_token with a product and a shift of 20
 * bits, exact for the pairs of a range. */
static void fill_shape(const gen_call *c, expert_shape *s)
{
    const int64_t of_token = gen_input(c, IDS)->dims[1];
    const ir_tensor *norm = gen_input(c, NORM);
    gen_pack p; /* for the columns' padding */
    int zero;
    const bool blocks = form_of(c, &zero) != RT_BLOCKS_NONE;
    pack(c, &p);
    *s = (expert_shape){
        .of = {.at_once = 1,
               .rows = (int)gen_input(c, W0)->dims[1],
               .norm = norm != NULL,
               .eps = (float)c->op->attributes[EPS].f,
               .norm_in = blocks && norm ? NORM : -1,
               .norm_type = blocks && norm && norm->dtype == IR_F32,
               .zero = blocks ? (float)(128 + zero) : 0,
               .glu = gen_shape_glu(c->op->attributes[GLU].s),
               .x = X,
               .y = (int)gen_operand_of_output(c->op, 0),
               .residual = gen_input(c, RESIDUAL) ? RESIDUAL : -1,
               .bias = {bias_of(c, B0), bias_of(c, B1), -1},
               .bias_type = {bias_type_of(c, B0), bias_type_of(c, B1), 0},
               .gathered = -1,
               .output = TO_HALVES,
               .peaks = -1},
        .ids = IDS,
        .scale = gen_input(c, SCALE) ? SCALE : -1,
        .experts = (int)gen_input(c, W0)->dims[0],
        .of_token = (int)of_token,
        .inverse = (unsigned)(((1 << 20) + of_token - 1) / of_token),
        .range = (int)range_of(c),
        .block = (int)block_of(c),
        .split = gen_input(c, X)->rank == 3,
        .rounds = rounds_of(c),
        .sides = sides_of(c),
    };
    gen_shape_columns(&p, &s->of, s->sides);
    place_scratch(c, &s->at);
}

static void print_places(const expert_places *s, text *out)
{
#define PRINT_INT(name) gen_print_field(#name, &s->name, 1, out);
    text_print(out, "{");
    EXPERT_PLACE_FIELDS(PRINT_INT)
    text_print(out, "}");
}

/* The initializer of an expert_shape: its stream_shape, its own fields, and where lists lie in
 * scratch.  An expert_ends_shape also has the limit, an expert_rows_shape the strides of x. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    (void)n;
    expert_shape whole, *s = &whole;
    fill_shape(c, s);
#define PRINT_STREAM(name) gen_print_stream_shape(&s->name, out), text_print(out, ", ");
#define PRINT_UNSIGNED(name) text_print(out, "/* %s */ %uu, ", #name, s->name);
#define PRINT_PLACES(name) print_places(&s->name, out);
    const ir_tensor *x = gen_input(c, X);
    const bool rows = kind_of(c) == EXPERT_KIND_ROWS;
    text_print(out, kind_of(c) == EXPERT_KIND_PLAIN ? "{" : "{{");
    EXPERT_SHAPE_FIELDS(PRINT_STREAM, PRINT_INT, PRINT_UNSIGNED, PRINT_PLACES)
    text_print(out, "}");
    if (kind_of(c) == EXPERT_KIND_PLAIN)
        return MPK_OK;
    text_print(out, ", ");
    if (rows)
        text_print(out, "/* row, token */ %lld, %lld", (long long)x->stride[1],
                   (long long)x->stride[0]);
    else
        gen_print_float_field("limit", (float)c->op->attributes[LIMIT].f, out);
    text_print(out, "}");
    return MPK_OK;
}

/* A routine for steps of few tokens and one for longer steps, whose chunks have more rows.  Each
 * has three kinds, which the type of the shape tells apart; weights in blocks have one for each
 * form. */
static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine all[2][3] = {
        {{"expert_shape", "expert_stream<1>", "expert_stream_load<1>"},
         {"expert_ends_shape", "expert_stream<1>", "expert_stream_load<1>"},
         {"expert_rows_shape", "expert_stream<1>", "expert_stream_load<1>"}},
        {{"expert_shape", "expert_stream<0>", "expert_stream_load<0>"},
         {"expert_ends_shape", "expert_stream<0>", "expert_stream_load<0>"},
         {"expert_rows_shape", "expert_stream<0>", "expert_stream_load<0>"}}};
#define BLOCKS(shape, wide, form)                              \
    {                                                          \
        shape, "expert_stream<" wide ", RT_BLOCKS_" form ">",  \
            "expert_stream_load<" wide ", RT_BLOCKS_" form ">" \
    }
#define FORMS(shape, wide)                                                                  \
    {                                                                                       \
        {0}, BLOCKS(shape, wide, "4"), BLOCKS(shape, wide, "4K"), BLOCKS(shape, wide, "8"), \
            BLOCKS(shape, wide, "8K"), BLOCKS(shape, wide, "MX4")                           \
    }
    static const gen_routine blocks[2][2][RT_BLOCKS_FORMS] = {
        {FORMS("expert_shape", "1"), FORMS("expert_ends_shape", "1")},
        {FORMS("expert_shape", "0"), FORMS("expert_ends_shape", "0")}};
#undef FORMS
#undef BLOCKS
    int zero;
    const uint32_t form = form_of(c, &zero);
    return form ? &blocks[is_few(c)][kind_of(c)][form] : &all[is_few(c)][kind_of(c)];
}

/* Where the last of the lists in scratch ends. */
static uint32_t scratch_bytes(const gen_call *c)
{
    expert_places at;
    return (uint32_t)place_scratch(c, &at);
}

/* The code of strips of two groups is there only where some product has them. */
static uint64_t forms(const gen_call *c, const ir_box *box, gen_maps maps)
{
    (void)box, (void)maps;
    return sides_of(c) > 1 ? UINT64_C(1) << TILE_FORM_SIDES : 0;
}

const gen_body gen_body_expert_stream = {.op = "expert_linear",
                                         .name = "expert_stream",
                                         .needs = GEN_RING,
                                         .rank = 10,
                                         .loads = true,
                                         .waits = true,
                                         .shares = true, /* rows of pairs */
                                         .carries = 1 << X | 1 << IDS | 1 << SCALE | 1 << RESIDUAL,
                                         .sends = true,
                                         .accepts = accepts,
                                         .print = print,
                                         .routine = routine,
                                         .pack = pack,
                                         .scratch_bytes = scratch_bytes,
                                         .forms = forms};

/* Neither operands nor results are carried: operands are views, and a reader of the result takes a
 * range of columns, between which there are others. */
const gen_body gen_body_expert_rows = {.op = "expert_linear",
                                       .name = "expert_stream",
                                       .needs = GEN_RING,
                                       .rank = 10,
                                       .loads = true,
                                       .waits = true,
                                       .accepts = accepts_rows,
                                       .print = print,
                                       .routine = routine,
                                       .pack = pack,
                                       .scratch_bytes = scratch_bytes,
                                       .forms = forms};
