/* body_attention_group.c - attention of a prompt's many tokens by products of warpgroups
 * (device/task/attention_group.cuh).  It takes what attention_tile takes, in long steps. */
#include "gen/body_print.h"

enum { FEWEST_TOKENS = 129, LARGE = 256, Q = 0, SINKS = 6, CAP = 2 };
enum { LARGE_ROWS = 64 };

extern const gen_body gen_body_attention_tile;

/* Shorter steps have too few rows for warpgroups to multiply, and stay with attention_tile, one
 * rank below; so do heads that are no whole blocks of 64 dims.  Those of 256 take pairs of pages,
 * for which a ring that is divided for JIT tasks may be odd: there are tensor maps where there are
 * none of these. */
static bool accepts(const gen_call *c)
{
    const int64_t size = gen_input(c, Q)->dims[2];
    return gen_input(c, Q)->dims[0] >= FEWEST_TOKENS &&
           (size == 64 || size == 128 || (size == LARGE && c->maps)) &&
           gen_body_attention_tile.accepts(c);
}

/* The shape is attention_tile's: the routine alone differs. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    return gen_body_attention_tile.print(cx, c, n, out);
}

/* One for each head size that is accepted, and for what scores have besides. */
static const gen_routine *routine(const gen_call *c)
{
#define GROUP_HOW(size, shape, how)                                                \
    {                                                                              \
        shape, "attention_group<" #size how ">", "attention_group_load<" #size ">" \
    }
#define GROUP_HOWS(size)                                                                     \
    {                                                                                        \
        GROUP_HOW(size, "attend_shape", ""), GROUP_HOW(size, "attend_more", ", ATTEND_CAP"), \
            GROUP_HOW(size, "attend_more", ", ATTEND_SINK"),                                 \
            GROUP_HOW(size, "attend_more", ", ATTEND_CAP | ATTEND_SINK"),                    \
    }
    static const gen_routine routines[][4] = {GROUP_HOWS(64), GROUP_HOWS(128), GROUP_HOWS(256)};
    const int how = (c->op->attributes[CAP].f != 0) + 2 * (gen_input(c, SINKS) != NULL);
    return &routines[gen_input(c, Q)->dims[2] / 128][how];
}

/* Tokens that stand alone take attention_tile's way, but for those of heads of 256: these leave
 * nothing in scratch but queries. */
static uint32_t scratch_bytes(const gen_call *c)
{
    if (gen_input(c, Q)->dims[2] == LARGE)
        return LARGE_ROWS * LARGE * 2;
    return gen_body_attention_tile.scratch_bytes(c);
}

const gen_body gen_body_attention_group = {.op = "attention",
                                           .name = "attention_group",
                                           .needs = GEN_BULK | GEN_WGMMA,
                                           .rank = 11,
                                           .many = GEN_MANY_ROWS,
                                           .loads = true,
                                           .pages = 4,
                                           .pairs = true,
                                           .accepts = accepts,
                                           .print = print,
                                           .routine = routine,
                                           .scratch_bytes = scratch_bytes};
