/* body_linear_blocks.c - products of more than 64 tokens with weights that stay in GGUF blocks, on
 * warpgroups: linear and logits (device/task/linear_blocks.cuh).  Weights are packed as for few
 * tokens (body_linear_stream.c), so the graphs of a program share them; what surrounds a product is
 * printed as for weights of 16 bits (body_linear_tile.c). */
#include "gen/body_product.h"
#include "shape/linear_tile_shape.h"

extern const gen_body gen_body_linear_stream, gen_body_linear_tile;

/* More tokens than one warpgroup has.  Of fewer, linear_stream takes 16 at a time. */
static bool accepts(const gen_call *c)
{
    return rows_of_step(c) > TILE_TOKENS && takes_blocks(c);
}

static void pack(const gen_call *c, gen_pack *out)
{
    gen_body_linear_stream.pack(c, out);
}

/* The initializer of a blocks_shape: a tile_shape, then the norm's weight and the zero. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const uint32_t norm_in = is_logits(c) ? L_NORM : NORM;
    const ir_tensor *norm = gen_input(c, norm_in);
    int zero;
    form_of(c, &zero);
    text_print(out, "{");
    TRY(gen_body_linear_tile.print(cx, c, n, out));
    text_print(out, ", %d, %d, ", norm ? (int)norm_in : -1, norm && norm->dtype == IR_F32);
    gen_print_float((float)(128 + zero), out);
    text_print(out, "}");
    return MPK_OK;
}

static const gen_routine *routine(const gen_call *c)
{
#define BLOCKS(form)                                         \
    {                                                        \
        "blocks_shape", "linear_blocks<RT_BLOCKS_" form ">", \
            "linear_blocks_load<RT_BLOCKS_" form ">"         \
    }
    static const gen_routine all[] = {{0}, BLOCKS("4"), BLOCKS("4K"), BLOCKS("8"), BLOCKS("8K")};
#undef BLOCKS
    int zero;
    return &all[form_of(c, &zero)];
}

static uint32_t scratch_bytes(const gen_call *c)
{
    return TILE_BLOCKS_SCRATCH_OF(c->needs & GEN_ROOM);
}

/* The loops of all passes over a task's groups of rows, with the end of the operator and what it
 * needs there. */
static uint64_t forms(const gen_call *c, const ir_box *box, gen_maps maps)
{
    (void)maps;
    const int shift = is_gated(c) ? 2 : 3, end = end_of(c),
              groups = (int)((box->hi[1] + (1 << shift) - 1) >> shift) - (int)(box->lo[1] >> shift),
              per_pass = tile_groups_of_pass(1, groups, 0, 0);
    uint64_t bits = has_bias(c) ? UINT64_C(1) << TILE_FORM_BIAS : 0;
    if (act_of(c).n)
        bits |= UINT64_C(1) << TILE_FORM_AFTER;
    for (int at = 0; at < groups; at += per_pass) {
        const int n = groups - at < per_pass ? groups - at : per_pass;
        bits |= UINT64_C(1) << (tile_loop_of_blocks(has_norm(c), n) * TILE_ENDS + end);
    }
    return bits | form_of_bend(c) | gen_form_of_activation(glu_of(c)) |
           gen_form_of_activation(act_of(c));
}

const gen_body gen_body_linear_blocks = {.op = "linear",
                                         .name = "linear_blocks",
                                         .needs = GEN_RING | GEN_BULK | GEN_WGMMA | GEN_ROOM,
                                         .rank = 11,
                                         .many = GEN_MANY_PRODUCTS,
                                         .loads = true,
                                         .accepts = accepts,
                                         .print = print,
                                         .routine = routine,
                                         .pack = pack,
                                         .scratch_bytes = scratch_bytes,
                                         .forms = forms};
const gen_body gen_body_logits_blocks = {.op = "logits",
                                         .name = "linear_blocks",
                                         .needs = GEN_RING | GEN_BULK | GEN_WGMMA | GEN_ROOM,
                                         .rank = 11,
                                         .many = GEN_MANY_PRODUCTS,
                                         .loads = true,
                                         .accepts = accepts,
                                         .print = print,
                                         .routine = routine,
                                         .pack = pack,
                                         .scratch_bytes = scratch_bytes,
                                         .forms = forms};
