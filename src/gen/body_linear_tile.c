/* body_linear_tile.c - products of many tokens with streamed weights on warpgroups: linear and
 * logits (device/task/linear_tile.cuh).  Weights are packed as for few tokens, so the graphs of a
 * program share them.
 *
 * x and the packed weights are copied by boxes where tensor maps can be made (gen_boxes_of_x,
 * gen_boxes_of_packed; src/cuda/boxes.c), else by rows. */
#include "gen/body_product.h"
#include "shape/linear_tile_shape.h"

enum { FEWEST_TOKENS = 17 };

extern const gen_body gen_body_linear_stream;

/* x comes by tensor maps, whose rows must begin at multiples of 16 bytes: 8 columns of bf16.  The
 * logits of few rows take this body if x has many, since x is what is copied. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *x = gen_input(c, X);
    return (gen_output(c, 0)->dims[0] >= FEWEST_TOKENS || x->dims[0] >= FEWEST_TOKENS) &&
           x->rank == 2 && gen_is_dense(x, c->halves) && x->dims[1] % 8 == 0 &&
           c->op->n_in + c->op->n_out <= RT_PACKED && takes_operands(c);
}

/* x as a matrix of all its rows; a box is TILE_BOX_TOKENS rows of 128 bytes, swizzled as wgmma
 * reads them. */
gen_boxes gen_boxes_of_x(const ir_tensor *x)
{
    const int64_t columns = x->dims[x->rank - 1];
    return (gen_boxes){.rows = (uint64_t)(ir_elements(x) / columns),
                       .columns = (uint64_t)columns,
                       .stride_bytes = (uint64_t)columns * 2,
                       .element_bytes = 2,
                       .box_rows = TILE_BOX_TOKENS,
                       .box_columns = TILE_BOX_COLUMNS,
                       .swizzled = true};
}

/* A row of it is a group of 8 rows. */
gen_boxes gen_boxes_of_packed(const gen_pack *p, uint32_t groups)
{
    const uint64_t columns = (uint64_t)p->padded_columns * TILE_BOX_WORDS;
    return (gen_boxes){.rows = (uint64_t)p->padded_rows / 8,
                       .columns = columns,
                       .stride_bytes = columns * 8,
                       .element_bytes = 8,
                       .box_rows = groups,
                       .box_columns = TILE_BOX_COLUMNS * TILE_BOX_WORDS};
}

static void pack(const gen_call *c, gen_pack *out)
{
    gen_body_linear_stream.pack(c, out);
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx, (void)n;
    gen_pack p;
    pack(c, &p);
    text_print(out, "{%lld, %lld, %lld, ", (long long)p.columns, (long long)(p.padded_columns / 32),
               (long long)gen_output(c, 0)->dims[1]);
    print_ends(c, out);
    if (is_logits(c))
        text_print(out, ", %u}", gen_operand_of_output(c->op, 1));
    else
        text_print(out, ", -1}");
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

const gen_body gen_body_linear_tile = {.op = "linear",
                                       .name = "linear_tile",
                                       .needs = GEN_RING,
                                       .rank = 10,
                                       .many = true,
                                       .loads = true,
                                       .maps = true,
                                       .parts = true,
                                       .accepts = accepts,
                                       .print = print,
                                       .routine = routine,
                                       .pack = pack,
                                       .scratch_bytes = scratch_bytes};
const gen_body gen_body_logits_tile = {.op = "logits",
                                       .name = "linear_tile",
                                       .needs = GEN_RING,
                                       .rank = 10,
                                       .many = true,
                                       .loads = true,
                                       .maps = true,
                                       .accepts = accepts,
                                       .print = print,
                                       .routine = routine,
                                       .pack = pack,
                                       .scratch_bytes = scratch_bytes};
