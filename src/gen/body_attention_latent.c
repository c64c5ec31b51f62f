/* body_attention_latent.c - attention over bf16 pages of latents, keys and values at once
 * (device/task/attention_latent.cuh).
 *
 * Without v_cache, on any architecture of the table, for any number of tokens: attention, and
 * attention_parts, in which a context is the work of several tasks.  It uses no ring.  An instance
 * is a row of a table of shapes, that of body_attention_tile.c:
 *
 *   {16, 1, 0, 0, 0.165f}     heads, KV heads, number of the cache, window, scale */
#include "gen/body_print.h"
#include "op/attend.h"
#include "shape/attention_latent_shape.h"

enum { POSITIONS = ATTEND_PAGES - 2, SLOTS, SINKS = ATTEND_PAGES + 1 };
enum { SCALE, WINDOW, CAP };
enum { PAGE_TOKENS = 64 };

extern const gen_body gen_body_attention_tile;

/* Everything dense, rows and pages of the sizes that the body is made for, neither cap nor sinks.
 * Fewer than 2^24 pages a slot keep positions in 32 bits. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *q = gen_input(c, ATTEND_Q), *cache = gen_input(c, ATTEND_K);
    return gen_is_dense(q, IR_BF16) && gen_is_dense(cache, IR_BF16) && !gen_input(c, ATTEND_V) &&
           gen_is_dense(gen_output(c, 0), IR_BF16) &&
           (c->op->def->n_out == 1 || gen_is_dense(gen_output(c, 1), IR_F32)) &&
           gen_is_dense(gen_input(c, POSITIONS), IR_I32) &&
           gen_is_dense(gen_input(c, SLOTS), IR_I32) &&
           gen_is_dense(gen_input(c, ATTEND_PAGES), IR_I32) && q->dims[2] == LATENT_SIZE &&
           cache->dims[2] == PAGE_TOKENS && c->op->attributes[WINDOW].i < INT32_MAX &&
           c->op->attributes[CAP].f == 0 && !gen_input(c, SINKS) &&
           gen_input(c, ATTEND_PAGES)->dims[1] < (1 << 24);
}

/* The shape is attention_tile's: operands and attributes of the two operators are in one order. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    return gen_body_attention_tile.print(cx, c, n, out);
}

static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine whole = {"attend_shape", "attention_latent", NULL},
                             parts = {"attend_shape", "attention_latent_parts", NULL};
    return c->op->def->n_out > 1 ? &parts : &whole;
}

static uint32_t scratch_bytes(const gen_call *c)
{
    return LATENT_SCRATCH_BYTES(c->needs & GEN_ROOM ? 2 : 1);
}

const gen_body gen_body_attention_latent = {.op = "attention",
                                            .name = "attention_latent",
                                            .rank = 10,
                                            .many = GEN_MANY_ROWS,
                                            .accepts = accepts,
                                            .print = print,
                                            .routine = routine,
                                            .scratch_bytes = scratch_bytes};
const gen_body gen_body_attention_latent_parts = {.op = "attention_parts",
                                                  .name = "attention_latent",
                                                  .rank = 10,
                                                  .accepts = accepts,
                                                  .print = print,
                                                  .routine = routine,
                                                  .scratch_bytes = scratch_bytes};
