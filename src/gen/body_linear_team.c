/* body_linear_team.c - products of 17 to 64 tokens with streamed weights: linear and logits
 * (device/task/linear_team.cuh).  Packing and shapes are those of body_linear_stream.c, so graphs
 * for few and for some tokens share one copy of a weight.  Its shapes stand in the same table of
 * the source as linear_stream's (stream_shape_of), since there is one table for each kind. */
#include "gen/body_product.h"

extern const gen_body gen_body_linear_stream;

/* Team bodies stand above linear_stream (rank 20 over 10) where is_for_teams holds; the two ranges
 * of tokens do not overlap otherwise. */
static bool accepts(const gen_call *c)
{
    return is_for_teams(c) && is_streamed_product(c);
}

/* What follows is linear_stream's but for the routine and the scratch: a second body for the
 * same weights must read the same copy. */
static void pack(const gen_call *c, gen_pack *out)
{
    gen_body_linear_stream.pack(c, out);
}

/* Same shape, same arguments: only the routine differs. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    return gen_body_linear_stream.print(cx, c, n, out);
}

static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine all = {"stream_shape", "linear_team", "linear_team_load"};
    (void)c;
    return &all;
}

static uint64_t forms(const gen_call *c, const ir_box *box, gen_maps maps)
{
    return gen_body_linear_stream.forms(c, box, maps);
}

static uint32_t scratch_bytes(const gen_call *c)
{
    return TEAM_SCRATCH_OF(TEAM_TILE_OF(c->needs & GEN_BULK));
}

const gen_body gen_body_linear_team = {.op = "linear",
                                       .name = "linear_team",
                                       .needs = GEN_RING,
                                       .rank = 20,
                                       .loads = true,
                                       .waits = true,
                                       .some = true,
                                       .carries = 1 << X | 1 << RESIDUAL,
                                       .sends = true,
                                       .accepts = accepts,
                                       .print = print,
                                       .routine = routine,
                                       .pack = pack,
                                       .scratch_bytes = scratch_bytes,
                                       .forms = forms};
const gen_body gen_body_logits_team = {.op = "logits",
                                       .name = "linear_team",
                                       .needs = GEN_RING,
                                       .rank = 20,
                                       .loads = true,
                                       .waits = true,
                                       .some = true,
                                       .accepts = accepts,
                                       .print = print,
                                       .routine = routine,
                                       .pack = pack,
                                       .scratch_bytes = scratch_bytes,
                                       .forms = forms};
