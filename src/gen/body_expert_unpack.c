/* body_expert_unpack.c - products of many tokens with the weights of their experts, which stay in
 * GGUF blocks or MXFP4, on warpgroups: expert_linear with a row for each pair
 * (device/task/expert_unpack.cuh).  Weights are packed as for few tokens, so the graphs of a
 * program share them.
 *
 * For the steps for which body_expert_tile.c is with bf16 weights.  In a step of 128 tokens
 * Qwen3-30B-A3B has 8 pairs an expert, so expert_stream passes most weights once: 3.4 instructions
 * each, dealt to eight warps.  This body takes 2.7 to 5.2, and four warps have all of them: no
 * gain.  With 256 tokens half of the experts have more than the 16 pairs that expert_stream takes
 * at a time, with 512 each has twice as many.
 *
 * An instance is a row of a table of shapes: that of body_expert_tile.c, and what is taken off
 * integers.  Each form of weights has code of its own.  Norms of x are operators of their own
 * (keeps_apart in pass/fuse.h). */
#include "gen/body_experts.h"
#include "gen/packed_form.h"
#include "shape/linear_tile_shape.h"

extern const gen_body gen_body_expert_stream, gen_body_expert_tile;

static uint32_t form_of(const gen_call *c, int *zero)
{
    return gen_form_of_weights(c, W0, 2, zero);
}

static bool accepts(const gen_call *c)
{
    const ir_tensor *w = gen_input(c, W0), *up = gen_input(c, W1);
    int zero;
    return takes_many_pairs(c) && !gen_input(c, NORM) && form_of(c, &zero) != RT_BLOCKS_NONE &&
           gen_is_streamed(w, w->dtype) && (!up || gen_is_streamed(up, up->dtype));
}

/* expert_stream's copy of the weights: one for prompts and decoding. */
static void pack(const gen_call *c, gen_pack *out)
{
    gen_body_expert_stream.pack(c, out);
}

/* The initializer of an expert_unpack_shape or an expert_unpack_ends_shape. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    int zero;
    form_of(c, &zero);
    text_print(out, "{");
    TRY(gen_body_expert_tile.print(cx, c, n, out));
    text_print(out, ", ");
    gen_print_float((float)(128 + zero), out);
    text_print(out, "}");
    return MPK_OK;
}

/* For each form, of experts without biases and limits, and with. */
static const gen_routine *routine(const gen_call *c)
{
#define BLOCKS(shape, form)                                                                  \
    {                                                                                        \
        shape, "expert_unpack<RT_BLOCKS_" form ">", "expert_unpack_load<RT_BLOCKS_" form ">" \
    }
#define FORMS(shape)                                                                           \
    {                                                                                          \
        {0}, BLOCKS(shape, "4"), BLOCKS(shape, "4K"), BLOCKS(shape, "8"), BLOCKS(shape, "8K"), \
            BLOCKS(shape, "MX4")                                                               \
    }
    static const gen_routine all[2][RT_BLOCKS_FORMS] = {FORMS("expert_unpack_shape"),
                                                        FORMS("expert_unpack_ends_shape")};
#undef FORMS
#undef BLOCKS
    int zero;
    return &all[has_ends(c)][form_of(c, &zero)];
}

static uint32_t scratch_bytes(const gen_call *c)
{
    (void)c;
    return TILE_UNPACK_SCRATCH;
}

/* As of body_expert_tile.c: its activation alone is optional. */
static uint64_t forms(const gen_call *c, const ir_box *box, gen_maps maps)
{
    return gen_body_expert_tile.forms(c, box, maps);
}

const gen_body gen_body_expert_unpack = {.op = "expert_linear",
                                         .name = "expert_unpack",
                                         .needs = GEN_RING | GEN_BULK | GEN_WGMMA | GEN_ROOM,
                                         .rank = 20,
                                         .many = GEN_MANY_EXPERTS,
                                         .loads = true,
                                         .waits = true,
                                         .maps = true,
                                         .by_maps = true,
                                         .long_boxes = true,
                                         .shares = true,
                                         .sends = true,
                                         .accepts = accepts,
                                         .print = print,
                                         .routine = routine,
                                         .pack = pack,
                                         .scratch_bytes = scratch_bytes,
                                         .forms = forms};
