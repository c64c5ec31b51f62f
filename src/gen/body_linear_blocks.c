/* body_linear_blocks.c - products of more than 16 tokens with weights that stay in GGUF blocks, on
 * warpgroups: linear and logits (device/task/linear_blocks.cuh).  Weights are packed as for few
 * tokens (body_linear_stream.c), so the graphs of a program share them; what surrounds a product is
 * printed as for weights of 16 bits (body_linear_tile.c). */
#include "gen/body_product.h"
#include "shape/linear_tile_shape.h"

extern const gen_body gen_body_linear_stream, gen_body_linear_tile;

/* More tokens than linear_stream has at a time.  Norms of these are operators of their own, or each
 * task would square and normalise all of x again; so is what gathers rows, since x comes by boxes
 * (keeps_apart in pass/fuse.h). */
static bool accepts(const gen_call *c)
{
    return rows_of_step(c) > STREAM_MOST_TOKENS && takes_blocks(c) && !has_norm(c) &&
           gathered_rows(c) < 0;
}

static void pack(const gen_call *c, gen_pack *out)
{
    gen_body_linear_stream.pack(c, out);
}

/* The initializer of a blocks_shape: a tile_shape, then the form and the zero. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    int zero;
    const uint32_t form = form_of(c, &zero);
    text_print(out, "{");
    TRY(gen_body_linear_tile.print(cx, c, n, out));
    text_print(out, ", %u, ", form);
    gen_print_float((float)(128 + zero), out);
    text_print(out, "}");
    return MPK_OK;
}

static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine all = {"blocks_shape", "linear_blocks", "linear_blocks_load"};
    (void)c;
    return &all;
}

static uint32_t scratch_bytes(const gen_call *c)
{
    (void)c;
    return TILE_BLOCKS_SCRATCH;
}

/* The loop of a task, with the end of the operator and what it needs there. */
static uint64_t forms(const gen_call *c, const ir_box *box, gen_maps maps)
{
    (void)maps;
    const int shift = is_gated(c) ? 2 : 3,
              groups = (int)((box->hi[1] + (1 << shift) - 1) >> shift) - (int)(box->lo[1] >> shift),
              loop = tile_loop_of_blocks((int)(box->hi[0] - box->lo[0]), groups, is_logits(c));
    uint64_t bits = UINT64_C(1) << (loop * TILE_ENDS + end_of(c));
    if (has_bias(c))
        bits |= UINT64_C(1) << TILE_FORM_BIAS;
    if (act_of(c).n)
        bits |= UINT64_C(1) << TILE_FORM_AFTER;
    return bits | form_of_bend(c) | gen_form_of_activation(glu_of(c)) |
           gen_form_of_activation(act_of(c));
}

const gen_body gen_body_linear_blocks = {.op = "linear",
                                         .name = "linear_blocks",
                                         .needs = GEN_RING | GEN_BULK | GEN_WGMMA | GEN_ROOM,
                                         .rank = 11,
                                         .many = GEN_MANY_PRODUCTS,
                                         .loads = true,
                                         .maps = true,
                                         .by_maps = true,
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
                                         .maps = true,
                                         .by_maps = true,
                                         .accepts = accepts,
                                         .print = print,
                                         .routine = routine,
                                         .pack = pack,
                                         .scratch_bytes = scratch_bytes,
                                         .forms = forms};
