/* body_attention_tile.c - attention of many tokens over bf16 pages
 * (device/task/attention_tile.cuh).
 *
 * For prompts on any architecture of the table; body_attention_group.c takes long steps where there
 * are products of warpgroups.  It uses no ring.  An instance is a row of a table of shapes:
 *
 *   {32, 8, 0, 0, 0.127517432f}     heads, KV heads, number of the cache, window, scale */
#include "gen/body_print.h"
#include "op/attend.h"
#include "rt/rt_lane.h"

enum { Q, K_CACHE, V_CACHE, POSITIONS, SLOTS, PAGES, SINKS };
enum { SCALE, WINDOW, CAP };
enum { PAGE_TOKENS = 64, MOST_GROUP = 64 };

/* Everything dense, pages of 64 tokens, heads of 64, 96, 128 or 256 entries; the group of query
 * heads of a KV head makes up the rows of a product. Fewer than 2^24 pages a slot keep positions in
 * 32 bits. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *q = gen_input(c, Q), *cache = gen_input(c, K_CACHE);
    int64_t size = q->dims[2];
    return gen_is_dense(q, IR_BF16) && gen_is_dense(cache, IR_BF16) && gen_input(c, V_CACHE) &&
           gen_is_dense(gen_input(c, V_CACHE), IR_BF16) &&
           gen_is_dense(gen_output(c, 0), IR_BF16) &&
           gen_is_dense(gen_input(c, POSITIONS), IR_I32) &&
           gen_is_dense(gen_input(c, SLOTS), IR_I32) && gen_is_dense(gen_input(c, PAGES), IR_I32) &&
           cache->dims[2] == PAGE_TOKENS &&
           (size == 64 || size == 96 || size == 128 || size == 256) &&
           q->dims[1] / cache->dims[1] <= MOST_GROUP && c->op->attributes[WINDOW].i < INT32_MAX &&
           gen_is_vector(gen_input(c, SINKS), IR_BF16) && gen_input(c, PAGES)->dims[1] < (1 << 24);
}

/* The shape of the call, a row of a constant table (attend_shape): heads, KV heads, cache, window,
 * and the scale for powers of 2. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const ir_tensor *q = gen_input(c, Q);
    uint32_t cache;
    (void)n;
    TRY(gen_number_cache(cx, c, PAGES, K_CACHE, &cache));
    const ir_tensor *sinks = gen_input(c, SINKS);
    const double cap = c->op->attributes[CAP].f;
    const bool more = cap != 0 || sinks; /* attend_more, of which this is the first part */
    text_print(out, "%s{%lld, %lld, %u, %lld, ", more ? "{" : "", (long long)q->dims[1],
               (long long)gen_input(c, K_CACHE)->dims[1], cache,
               (long long)c->op->attributes[WINDOW].i);
    /* powers of 2 */
    gen_print_float(attend_scale(c->op->attributes[SCALE].f, q->dims[2]) * 1.44269504f, out);
    text_print(out, "}");
    if (more) {
        text_print(out, ", ");
        gen_print_float(cap * 1.4426950408889634, out);
        text_print(out, ", ");
        gen_print_float(cap != 0 ? 2 / cap : 0, out);
        text_print(out, ", %d}", sinks && sinks->dtype == IR_F32);
    }
    return MPK_OK;
}

/* One for each head size that accepts() lets in, and for what scores have besides; without a load,
 * since pages come by the body itself. */
static const gen_routine *routine(const gen_call *c)
{
#define HOWS(size)                                                                        \
    {                                                                                     \
        {"attend_shape", "attention_tile<" #size ">", NULL},                              \
            {"attend_more", "attention_tile<" #size ", ATTEND_CAP>", NULL},               \
            {"attend_more", "attention_tile<" #size ", ATTEND_SINK>", NULL},              \
            {"attend_more", "attention_tile<" #size ", ATTEND_CAP | ATTEND_SINK>", NULL}, \
    }
    static const gen_routine routines[][4] = {HOWS(64), HOWS(96), HOWS(128), HOWS(256)};
    const int64_t size = gen_input(c, Q)->dims[2];
    const int how = (c->op->attributes[CAP].f != 0) + 2 * (gen_input(c, SINKS) != NULL);
    uint32_t i = (uint32_t)size / 128 + 1; /* 64 and 96 before these */
    if (size < 128)
        i = size == 96;
    return &routines[i][how];
}

/* Two stages of keys and values, where warps share rows with their scores; in their place later
 * half the warps' results, which are fewer bytes. Of tokens that stand alone 15 parts of 8 rows
 * (lone_part).  Without room one stage, or these results, of 64 rows, and no token stands alone. */
static uint32_t scratch_bytes(const gen_call *c)
{
    const bool room = c->needs & GEN_ROOM;
    const uint32_t size = (uint32_t)gen_input(c, Q)->dims[2], areas = size > 128 ? 2 : 1;
    const uint32_t stage = 2 * PAGE_TOKENS * size * 2 / areas, shared = (areas - 1) * 8 * 2048;
    const uint32_t parts =
        room && areas == 1 ? 15 * (8 * (size + 4) + 16) * 4 : 4 * (size / areas / 2 + 4) * 32 * 4;
    const uint32_t pages = (room ? 2 * stage : stage) + shared;
    return pages > parts ? pages : parts;
}

const gen_body gen_body_attention_tile = {.op = "attention",
                                          .name = "attention_tile",
                                          .needs = 0,
                                          .rank = 10,
                                          .many = GEN_MANY_ROWS,
                                          .accepts = accepts,
                                          .print = print,
                                          .routine = routine,
                                          .scratch_bytes = scratch_bytes};
