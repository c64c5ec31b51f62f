/* body_attention_group.c - attention of a prompt's many tokens by products of warpgroups
 * (device/task/attention_group.cuh).  It takes what attention_tile takes, in long steps. */
#include "gen/body_print.h"

enum { FEWEST_TOKENS = 129, Q = 0 };

extern const gen_body gen_body_attention_tile;

/* Shorter steps have too few rows for warpgroups to multiply, and stay with attention_tile, one
 * rank below. */
static bool accepts(const gen_call *c)
{
    return gen_input(c, Q)->dims[0] >= FEWEST_TOKENS && gen_body_attention_tile.accepts(c);
}

/* The shape is attention_tile's: the routine alone differs. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    return gen_body_attention_tile.print(cx, c, n, out);
}

/* One for each head size that attention_tile accepts. */
static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine small = {"attend_shape", "attention_group<64>",
                                      "attention_group_load<64>"},
                             large = {"attend_shape", "attention_group<128>",
                                      "attention_group_load<128>"};
    return gen_input(c, Q)->dims[2] == 64 ? &small : &large;
}

/* Tokens that stand alone take attention_tile's way. */
static uint32_t scratch_bytes(const gen_call *c)
{
    return gen_body_attention_tile.scratch_bytes(c);
}

const gen_body gen_body_attention_group = {.op = "attention",
                                           .name = "attention_group",
                                           .needs = GEN_BULK | GEN_WGMMA,
                                           .rank = 11,
                                           .many = GEN_MANY_ROWS,
                                           .loads = true,
                                           .accepts = accepts,
                                           .print = print,
                                           .routine = routine,
                                           .scratch_bytes = scratch_bytes};
