/* body_linear_tile.c - products of many tokens with streamed weights on warpgroups: linear and
 * logits (device/task/linear_tile.cuh).  Weights are packed as for few tokens, so the graphs of a
 * program share them.
 *
 * x and the packed weights are copied by boxes where tensor maps can be made (gen_boxes_of_x,
 * gen_boxes_of_w; src/cuda/maps.c), else by rows.  Weights that the step makes (op/unpack.c) are
 * copied as they are, by boxes of their rows.  The code has many loops, of which a
 * program needs few: forms() says for each task which. */
#include "gen/body_product.h"
#include "shape/linear_tile_shape.h"

enum { FEWEST_TOKENS = 17 };

extern const gen_body gen_body_linear_stream;

/* Is w a temporary of the program, one matrix of rows that follow each other, with a gate those of
 * gate and up in turn? */
static bool is_of_rows(const gen_call *c)
{
    const ir_tensor *w = gen_input(c, W0), *up = gen_input(c, W0 + 1);
    const int64_t times = is_gated(c) ? 2 : 1, columns = w->dims[w->rank - 1];
    if (!is_linear(c) || w->kind == IR_CONST || w->dtype != c->halves || w->rank != 2 ||
        w->stride[1] != 1 || w->stride[0] != times * columns || w->offset % 8)
        return false;
    return is_gated(c) ? up->stride[1] == 1 && up->stride[0] == w->stride[0] &&
                             up->offset == w->offset + columns &&
                             tg_root(c->ir, c->op->in[W0]) == tg_root(c->ir, c->op->in[W0 + 1])
                       : !up;
}

/* x comes by tensor maps, whose rows must begin at multiples of 16 bytes: 8 columns of bf16.  The
 * logits of few rows take this body if x has many, since x is what is copied. */
static bool takes_x(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X);
    return most_tokens(c) >= FEWEST_TOKENS && x->rank == 2 && gen_is_dense(x, c->halves) &&
           x->dims[1] % 8 == 0 && c->op->n_in + c->op->n_out <= RT_PACKED;
}

static bool accepts(const gen_call *c)
{
    return takes_x(c) && takes_operands(c);
}

/* Such weights come by boxes alone, in tasks of whole lots of tokens, and in no call, whose callers
 * may move them.  What a norm multiplies into packed weights is not in them. */
static bool accepts_rows(const gen_call *c)
{
    const ir_tensor *y = gen_output(c, 0);
    op_axis axes[IR_MAX_RANK] = {0};
    c->op->def->axes(c->ir, c->op, axes);
    return !c->is_call && takes_x(c) && is_of_rows(c) && takes_others(c) && !has_norm(c) &&
           !has_bias(c) && !act_of(c).n && y->live != IR_ALL &&
           y->dims[0] % (2 * TILE_TOKENS) == 0 && y->dims[1] % 8 == 0 &&
           axes[0].tile % (2 * TILE_TOKENS) == 0 && axes[1].tile % 8 == 0;
}

/* x as a matrix of all its rows; a box is TILE_BOX_TOKENS rows of 128 bytes, swizzled as wgmma
 * reads them.  A lot begins at a row of x, whichever that is, and has two boxes. */
gen_boxes gen_boxes_of_x(const ir_tensor *x, bool further)
{
    const int64_t columns = x->dims[x->rank - 1], more = further ? 2 * TILE_BOX_TOKENS - 1 : 0;
    return (gen_boxes){.rows = (uint64_t)(ir_elements(x) / columns + more),
                       .columns = (uint64_t)columns,
                       .stride_bytes = (uint64_t)columns * 2,
                       .element_bytes = 2,
                       .box_rows = TILE_BOX_TOKENS,
                       .box_columns = TILE_BOX_COLUMNS,
                       .swizzled = true};
}

/* Weights in blocks (device/task/blocks_buffer.cuh): some pieces of 8 groups, or of two.  Rows are
 * whole slabs, and of experts end with their last piece. */
static gen_boxes boxes_of_blocks(const gen_body *b, const gen_pack *p, bool few)
{
    const uint64_t pieces = (uint64_t)p->padded_columns / RT_PIECE_COLUMNS,
                   bytes = pieces * (uint64_t)RT_PIECE_BYTES(p->form);
    const int together =
        b->long_boxes ? TILE_UNPACK_TOGETHER(p->form) : TILE_BLOCKS_TOGETHER(p->form);
    return (gen_boxes){.rows = (uint64_t)p->padded_rows / 8,
                       .columns = bytes / 8,
                       .stride_bytes = bytes,
                       .element_bytes = 8,
                       .box_rows = few ? 2 : TILE_GROUPS,
                       .box_columns = (uint32_t)(together * RT_PIECE_BYTES(p->form)) / 8};
}

/* Weights that are not packed: as many rows as packed groups have. */
static gen_boxes boxes_of_rows(const gen_pack *p, bool few)
{
    return (gen_boxes){.rows = (uint64_t)p->rows,
                       .columns = (uint64_t)p->columns,
                       .stride_bytes = (uint64_t)p->columns * 2,
                       .element_bytes = 2,
                       .box_rows = (few ? TILE_BOX_GROUPS / 2 : TILE_BOX_GROUPS) * 8,
                       .box_columns = TILE_BOX_COLUMNS,
                       .swizzled = true};
}

uint32_t gen_operand_of_w(const gen_pack *p)
{
    return p->n_weights ? (uint32_t)RT_PACKED : (uint32_t)W0;
}

/* A row of what is packed is a group of 8 rows of weights. */
gen_boxes gen_boxes_of_w(const gen_body *b, const gen_pack *p, bool few)
{
    if (p->form)
        return boxes_of_blocks(b, p, few);
    if (!p->n_weights)
        return boxes_of_rows(p, few);
    const uint64_t columns = (uint64_t)p->padded_columns * TILE_BOX_WORDS;
    const bool is_long = b->long_boxes && !few;
    return (gen_boxes){.rows = (uint64_t)p->padded_rows / 8,
                       .columns = columns,
                       .stride_bytes = columns * 8,
                       .element_bytes = 8,
                       .box_rows = few || is_long ? TILE_BOX_GROUPS / 2 : TILE_BOX_GROUPS,
                       .box_columns = (is_long ? 2 : 1) * TILE_BOX_COLUMNS * TILE_BOX_WORDS};
}

/* linear_stream's copy, so that prompts and decoding read the same bytes. */
static void pack(const gen_call *c, gen_pack *out)
{
    gen_body_linear_stream.pack(c, out);
}

/* Nothing of a temporary; its rows and columns are those that a copy would have. */
static void pack_rows(const gen_call *c, gen_pack *out)
{
    gen_body_linear_stream.pack(c, out);
    out->n_weights = 0;
    out->n_bytes = 0;
}

/* Is it of a program that serves no requests? */
static bool is_of_call(const gen_call *c)
{
    return gen_output(c, 0)->live == IR_ALL;
}

bool gen_is_wide(const gen_call *c)
{
    const int64_t rows = c->box ? c->box->hi[0] - c->box->lo[0] : gen_output(c, 0)->dims[0];
    return c->is_call && is_of_call(c) && rows > TILE_TOKENS;
}

/* The initializer of a tile_shape: columns, columns padded in units of 32, rows of the weight,
 * whether tasks are wide, what ends the product (body_product.h), the operand for peaks; of logits
 * their cap and rate. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx, (void)n;
    gen_pack p;
    pack(c, &p);
    text_print(out, "{%lld, %lld, %lld, %d, ", (long long)p.columns,
               (long long)(p.padded_columns / 32), (long long)gen_output(c, 0)->dims[1],
               gen_is_wide(c));
    print_ends(c, out);
    if (!is_logits(c)) {
        text_print(out, ", -1}");
        return MPK_OK;
    }
    text_print(out, ", %u, ", gen_operand_of_output(c->op, 1));
    gen_print_float(cap_of(c), out);
    text_print(out, ", ");
    gen_print_float(rate_of(c), out);
    text_print(out, "}");
    return MPK_OK;
}

static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine all = {"tile_shape", "linear_tile", "linear_tile_load"};
    (void)c;
    return &all;
}

static uint32_t scratch_bytes(const gen_call *c)
{
    return TILE_SCRATCH_OF(c->needs & GEN_ROOM);
}

_Static_assert((int)TILE_FORMS <= 64, "MPK_FORMS has no bit for a form");

/* Bits of the activations, ACTIVATE_* (device/task/activate.cuh). */
uint64_t gen_form_of_activation(str name)
{
    static const char *const names[] = {"NONE", "SILU",       "GELU",      "GELU_TANH",
                                        "RELU", "SWIGLU_OAI", "QUICK_GELU"};
    for (unsigned i = 1; i < sizeof names / sizeof *names; i++)
        if (strcmp(gen_glu_name(name), names[i]) == 0)
            return UINT64_C(1) << (TILE_FORM_ACTIVATION + i);
    return 0;
}

/* Is there more at the end of a tile than a residual? */
static bool has_ends(const gen_call *c)
{
    return has_bias(c) || act_of(c).n;
}

bool gen_is_of_call(const ir_graph *g, ir_op_id op)
{
    const gen_call c = {.ir = g, .op = &g->ops.at[op]};
    return is_of_call(&c);
}

/* As tile_is_boxed, where there are maps and operands are aligned.  Biases and activations of
 * columns only in calls: they spill registers at the ends of all products of a kernel for
 * prompts. */
static bool is_boxed(const gen_call *c, const ir_box *box)
{
    const int64_t whole = is_gated(c) ? 3 : 7;
    return gathered_rows(c) < 0 && (!has_ends(c) || is_of_call(c)) &&
           !(is_logits(c) && box->lo[1] % 64) &&
           ((box->lo[1] | box->hi[1] | gen_output(c, 0)->dims[1]) & whole) == 0;
}

bool gen_has_norm(const ir_graph *g, ir_op_id op)
{
    const gen_call c = {.ir = g, .op = &g->ops.at[op]};
    return has_norm(&c);
}

bool gen_is_centred(const ir_graph *g, ir_op_id op)
{
    const gen_call c = {.ir = g, .op = &g->ops.at[op]};
    return is_centred(&c);
}

/* Does the tensor begin a multiple of 16 bytes after the start of its storage?  Also true of an
 * absent one. */
static bool is_aligned(const ir_tensor *t)
{
    return !t || ir_row_bytes(t->dtype, t->offset) % 16 == 0;
}

static bool wants_maps(const gen_call *c)
{
    return strcmp(c->op->def->name, "linear") == 0 && is_aligned(gen_input(c, X)) &&
           is_aligned(gen_output(c, 0)) && is_aligned(gen_input(c, RESIDUAL));
}

bool gen_wants_maps(const ir_graph *g, ir_op_id op)
{
    const gen_call c = {.ir = g, .op = &g->ops.at[op]};
    return wants_maps(&c);
}

/* Has every task that may come by boxes maps, and aligned words? */
static bool always_by_boxes(const gen_call *c, gen_maps maps)
{
    return maps == GEN_MAPS_ALL || (c->all_maps && wants_maps(c));
}

bool gen_comes_by_boxes(const ir_graph *g, ir_op_id op)
{
    const gen_call c = {.ir = g, .op = &g->ops.at[op]};
    const ir_box whole = ir_box_whole(gen_output(&c, 0));
    return is_boxed(&c, &whole);
}

bool gen_stores_whole_groups(const ir_graph *g, ir_op_id op, uint32_t n_columns)
{
    const gen_call c = {.ir = g, .op = &g->ops.at[op]};
    const ir_box first = {.hi = {1, n_columns}};
    return !is_gated(&c) && !is_logits(&c) && is_boxed(&c, &first);
}

/* The loops (tile_loop_of) of all passes over a task's groups of rows, each with the end of the
 * operator, as bits of MPK_FORMS.  The last pass may be narrower than the others and so another
 * loop. */
static uint64_t loops_of(const gen_call *c, int groups, bool wide, bool boxed, bool one_wide,
                         int end)
{
    const bool wgmma = c->needs & GEN_WGMMA;
    const int per_pass = tile_groups_of_pass(wgmma, groups, boxed, one_wide && !wide);
    const int thin = tile_is_thin(c->needs & GEN_ROOM, wide, groups);
    const bool joint = boxed && !wide && !thin; /* both warpgroups have the task's tokens */
    uint64_t forms = 0;
    for (int at = 0; at < groups; at += per_pass) {
        const int n = groups - at < per_pass ? groups - at : per_pass;
        const int loop = joint ? tile_loop_of_joint(n, is_gated(c))
                               : tile_loop_of(wgmma, wide, boxed, thin, n, one_wide);
        forms |= UINT64_C(1) << (loop * TILE_ENDS + end);
    }
    return forms;
}

/* Does x of a thin task come by boxes, where its map can be made?  As in tile_run. */
static bool has_thin_boxes(const gen_call *c, int groups, bool wide)
{
    return c->needs & GEN_WGMMA && gathered_rows(c) < 0 &&
           tile_is_thin(c->needs & GEN_ROOM, wide, groups);
}

_Static_assert((int)RT_SHORT_TOKENS == (int)TILE_TOKENS, "tasks that are not wide are short");

/* Of tasks that may share tiles, or take or leave sums of squares.  Tiles of calls are small
 * (gen/sharing.c). */
static uint64_t forms_of_parts(const gen_call *c)
{
    return UINT64_C(1) << TILE_FORM_PARTS | UINT64_C(1) << TILE_FORM_SQUARES |
           (is_of_call(c) ? 0 : UINT64_C(1) << TILE_FORM_LARGE_PARTS);
}

/* What of the code a task of this box needs.  Code that no task needs is not compiled, so a bit too
 * few leaves a task without its loop.  Where maps may be missing the loop without boxes is there
 * too. */
static uint64_t forms(const gen_call *c, const ir_box *box, gen_maps maps)
{
    const int shift = is_gated(c) ? 2 : 3;
    const int groups = (int)((box->hi[1] + (1 << shift) - 1) >> shift) - (int)(box->lo[1] >> shift);
    const int64_t tokens = box->hi[0] - box->lo[0];
    const bool wide = tokens > TILE_TOKENS || gen_is_wide(c), one_wide = maps != GEN_MAPS_NONE,
               can_be_boxed = maps != GEN_MAPS_NONE && is_boxed(c, box),
               may_be_joint = !wide && maps == GEN_MAPS_ALL && can_be_boxed,
               joint = may_be_joint && tile_is_joint(wide, groups),
               boxed = joint || (wide && can_be_boxed),
               is_thin_box = has_thin_boxes(c, groups, wide);
    const int end = end_of(c);
    uint64_t bits = joint ? UINT64_C(1) << TILE_FORM_JOINT : 0;
    /* whether a thin task shares its tile is decided later (gen/sharing.h) */
    if (may_be_joint && !joint && !is_logits(c) &&
        tile_parts_of_short(tokens, groups, gen_input(c, X)->dims[1]) > 1)
        bits |= UINT64_C(1) << TILE_FORM_JOINT | forms_of_parts(c);
    if (!((boxed || is_thin_box) && always_by_boxes(c, maps)))
        bits |= loops_of(c, groups, wide, false, one_wide, end);
    if (boxed || is_thin_box)
        bits |= loops_of(c, groups, wide, true, one_wide, end);
    if ((boxed || may_be_joint) && has_ends(c))
        bits |= UINT64_C(1) << TILE_FORM_BOX_ENDS;
    if (boxed && !is_logits(c) && tokens <= RT_PART_TOKENS)
        bits |= forms_of_parts(c);
    if (act_of(c).n)
        bits |= UINT64_C(1) << TILE_FORM_AFTER;
    if (has_bias(c))
        bits |= UINT64_C(1) << TILE_FORM_BIAS;
    return bits | form_of_bend(c) | gen_form_of_activation(glu_of(c)) |
           gen_form_of_activation(act_of(c));
}

/* The loops by boxes, as bits of MPK_FORMS. */
static uint64_t loops_of_boxes(void)
{
    const uint64_t ends = (UINT64_C(1) << TILE_ENDS) - 1;
    return ends << TILE_BOX_128 * TILE_ENDS | ends << TILE_BOX_192 * TILE_ENDS |
           ends << TILE_BOX_256 * TILE_ENDS;
}

bool gen_wants_boxes_of_x(uint32_t features, uint64_t forms)
{
    return features & GEN_WGMMA &&
           forms >> TILE_THIN_BOX * TILE_ENDS & ((UINT64_C(1) << TILE_ENDS) - 1);
}

bool gen_wants_boxes(const gen_call *c, const gen_body *b, const ir_box *box)
{
    return b->parts && b->forms(c, box, GEN_MAPS_SOME) & loops_of_boxes();
}

const gen_body gen_body_linear_tile = {.op = "linear",
                                       .name = "linear_tile",
                                       .needs = GEN_RING,
                                       .rank = 10,
                                       .many = GEN_MANY_PRODUCTS,
                                       .waits = true,
                                       .loads = true,
                                       .maps = true,
                                       .parts = true,
                                       .sends = true,
                                       .accepts = accepts,
                                       .print = print,
                                       .routine = routine,
                                       .pack = pack,
                                       .scratch_bytes = scratch_bytes,
                                       .forms = forms};
const gen_body gen_body_linear_rows = {.op = "linear",
                                       .name = "linear_tile",
                                       .needs = GEN_RING | GEN_BULK | GEN_WGMMA,
                                       .rank = 10,
                                       .many = GEN_MANY_PRODUCTS,
                                       .waits = true,
                                       .loads = true,
                                       .maps = true,
                                       .by_maps = true,
                                       .parts = true,
                                       .of_rows = true,
                                       .sends = true,
                                       .accepts = accepts_rows,
                                       .print = print,
                                       .routine = routine,
                                       .pack = pack_rows,
                                       .scratch_bytes = scratch_bytes,
                                       .forms = forms};
const gen_body gen_body_logits_tile = {.op = "logits",
                                       .name = "linear_tile",
                                       .needs = GEN_RING,
                                       .rank = 10,
                                       .many = GEN_MANY_PRODUCTS,
                                       .waits = true,
                                       .loads = true,
                                       .maps = true,
                                       .accepts = accepts,
                                       .print = print,
                                       .routine = routine,
                                       .pack = pack,
                                       .scratch_bytes = scratch_bytes,
                                       .forms = forms};
