/* body_expert_tile.c - products of many tokens with the weights of their experts, on warpgroups:
 * expert_linear with a row for each pair (device/task/expert_tile.cuh).  Weights are packed as for
 * few tokens, so the graphs of a program share them.
 *
 * Which rows an expert has is known only in the step: the body sorts the pairs and takes tiles of
 * one expert's rows.  For steps of FEWEST_OF_MANY tokens and more, beside the other bodies of
 * prompts.
 *
 * An instance is a row of a table of shapes.  Of 128 experts, 8 a token, with 768 rows of gate and
 * of up and 2,048 columns, and a norm:
 *
 *   {2048, 64, 768, 192, 1, 9.99999997e-07f, ACTIVATE_SILU, 1, 7, 128, 8, 0}
 *
 * With biases or a gate with a limit it is a row of a table of its own, and code of its own: after
 * these fields operands and dtypes of the biases, and the limit. */
#include "gen/body_experts.h"
#include "shape/linear_tile_shape.h"

enum {
    /* EXPERT_TILE_SCRATCH: stages of x, squares, tiles, pairs */
    SCRATCH_BYTES = 2 * 4 * 2 * 64 * 64 + 2 * 64 * 4 + 12 * 16 + 12 * 128 * 4,
    BIAS_BYTES = 2 * 256 * 4, /* after these, with biases or a limit */
};

extern const gen_body gen_body_expert_stream;

static bool accepts(const gen_call *c)
{
    return takes_many_pairs(c) && gen_is_streamed(gen_input(c, W0), IR_BF16) &&
           gen_is_streamed(gen_input(c, W1), IR_BF16) && gen_is_vector(gen_input(c, NORM), IR_BF16);
}

/* expert_stream's copy of the weights: one for prompts and decoding. */
static void pack(const gen_call *c, gen_pack *out)
{
    gen_body_expert_stream.pack(c, out);
}

/* The fields that an expert_tile_ends_shape has after those of the shape. */
static void print_ends(const gen_call *c, text *out)
{
    text_print(out, ", {%d, %d}, {%d, %d}, ", bias_of(c, B0), bias_of(c, B1), bias_type_of(c, B0),
               bias_type_of(c, B1));
    gen_print_float((float)c->op->attributes[LIMIT].f, out);
    text_print(out, "}");
}

/* The initializer of an expert_tile_shape, whose fields stand in this order in expert_tile.cuh, or
 * of an expert_tile_ends_shape, which begins with one. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx, (void)n;
    const ir_tensor *w = gen_input(c, W0);
    gen_pack p;
    pack(c, &p);
    text_print(out, "%s{%lld, %lld, %lld, %lld, %d, ", has_ends(c) ? "{" : "", (long long)p.columns,
               (long long)(p.padded_columns / 32), (long long)w->dims[1],
               (long long)(p.rows / w->dims[0] / 8), gen_input(c, NORM) ? 1 : 0);
    gen_print_float(c->op->attributes[EPS].f, out);
    text_print(out, ", ACTIVATE_%s, %d, %u, %lld, %lld, %d}",
               gen_glu_name(c->op->attributes[GLU].s), IDS, gen_operand_of_output(c->op, 0),
               (long long)w->dims[0], (long long)gen_input(c, IDS)->dims[1],
               gen_input(c, X)->rank == 3);
    if (has_ends(c))
        print_ends(c, out);
    return MPK_OK;
}

static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine plain = {"expert_tile_shape", "expert_tile", "expert_tile_load"},
                             ends = {"expert_tile_ends_shape", "expert_tile", "expert_tile_load"};
    return has_ends(c) ? &ends : &plain;
}

static uint32_t scratch_bytes(const gen_call *c)
{
    return SCRATCH_BYTES + (has_ends(c) ? BIAS_BYTES : 0);
}

/* Its loops are its own and always compiled; of the optional code it needs its activation and, with
 * a norm, sums of squares that others have left. */
static uint64_t forms(const gen_call *c, const ir_box *box, gen_maps maps)
{
    (void)box, (void)maps;
    const uint64_t squares = gen_input(c, NORM) ? UINT64_C(1) << TILE_FORM_SQUARES : 0;
    return gen_form_of_activation(c->op->attributes[GLU].s) | squares;
}

const gen_body gen_body_expert_tile = {.op = "expert_linear",
                                       .name = "expert_tile",
                                       .needs = GEN_BULK | GEN_WGMMA,
                                       .rank = 20,
                                       .many = GEN_MANY_EXPERTS,
                                       .loads = true,
                                       .waits = true,
                                       .maps = true,
                                       .long_boxes = true,
                                       .pages = 4,
                                       .norm = NORM,
                                       .shares = true,
                                       .sends = true,
                                       .accepts = accepts,
                                       .print = print,
                                       .routine = routine,
                                       .pack = pack,
                                       .scratch_bytes = scratch_bytes,
                                       .forms = forms};
