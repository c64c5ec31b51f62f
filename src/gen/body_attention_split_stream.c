/* body_attention_split_stream.c - attention of few tokens over streamed bf16 pages
 * (device/task/attention_split_stream.cuh). */
#include <math.h>

#include "gen/body_print.h"
#include "rt/rt_lane.h"

enum { QKV, TABLE, POSITIONS, SLOTS, PAGES, K_CACHE, V_CACHE, Q_NORM, K_NORM };
enum { HEADS, KV_HEADS, HEAD_SIZE, EPS, SCALE, WINDOW, SPLITS, UNIT, OWN };
enum { PAGE_TOKENS = 64, MOST_TOKENS = 16, MOST_GROUP = 8, PARTIALS = 9 };

static int64_t attribute(const gen_call *c, int i)
{
    return c->op->attributes[i].i;
}

static int64_t group_of(const gen_call *c)
{
    return attribute(c, HEADS) / attribute(c, KV_HEADS);
}

static bool accepts(const gen_call *c)
{
    const ir_tensor *qkv = gen_input(c, QKV), *cache = gen_input(c, K_CACHE), *q = gen_input(c, Q_NORM),
                    *k = gen_input(c, K_NORM);
    int64_t size = attribute(c, HEAD_SIZE);
    return qkv->dims[0] <= MOST_TOKENS && gen_is_dense(qkv, IR_BF16) && gen_is_dense(cache, IR_BF16) &&
           gen_is_dense(gen_input(c, V_CACHE), IR_BF16) && cache->dims[2] == PAGE_TOKENS &&
           (size == 64 || size == 128) && group_of(c) <= MOST_GROUP && 2 * gen_input(c, TABLE)->dims[2] == size &&
           attribute(c, UNIT) % PAGE_TOKENS == 0 && gen_is_vector(q) && gen_is_vector(k) && !q == !k &&
           (!q || q->dtype == k->dtype) && gen_is_dense(gen_input(c, TABLE), IR_F32) &&
           gen_is_dense(gen_input(c, PAGES), IR_I32) && gen_is_dense(gen_output(c, 0), IR_BF16) &&
           c->op->n_in + c->op->n_out <= RT_PACKED;
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const ir_tensor *norm = gen_input(c, Q_NORM);
    uint32_t cache;
    TRY(gen_number_cache(cx, c, PAGES, K_CACHE, &cache));
    int64_t size = attribute(c, HEAD_SIZE);
    double scale = c->op->attributes[SCALE].f;
    if (scale == 0)
        scale = 1 / sqrt((double)size);
    text_print(out,
               "#define ATTENTION_SHAPE_%u {%lld, %lld, %lld, %lld, %lld, %lld, %lld, %lld, mpk_caches[%u].slots, "
               "mpk_caches[%u].slot_pages, mpk_caches[%u].n_pages, %d, ",
               n, (long long)attribute(c, HEADS), (long long)attribute(c, KV_HEADS), (long long)size,
               (long long)group_of(c), (long long)attribute(c, SPLITS), (long long)attribute(c, UNIT),
               (long long)attribute(c, OWN), (long long)attribute(c, WINDOW), cache, cache, cache,
               norm ? norm->dtype == IR_F32 : -1);
    gen_print_float((float)c->op->attributes[EPS].f, out);
    text_print(out, ", ");
    gen_print_float((float)(scale * 1.4426950408889634), out); /* scores in powers of 2 */
    text_print(out, ", %u}\n", gen_operand_of_output(c->op, 0));
    text_print(out,
               "MPK_FN void body_%u(const mpk_task &t)\n{\n    const attention_shape shape = "
               "ATTENTION_SHAPE_%u;\n    attention_split_stream<%lld, %lld>(t, shape);\n}\n"
               "MPK_FN void load_%u(mpk_load &l)\n{\n    const attention_shape shape = "
               "ATTENTION_SHAPE_%u;\n    attention_split_load<%lld>(l, shape);\n}\n",
               n, n, (long long)size, (long long)group_of(c), n, n, (long long)size);
    return MPK_OK;
}

/* attention_scratch::BYTES */
static uint32_t scratch_bytes(const gen_call *c)
{
    uint32_t size = (uint32_t)attribute(c, HEAD_SIZE), group = (uint32_t)group_of(c);
    return (MOST_GROUP + 2 * MOST_TOKENS) * (size * 2 + 16) + 2 * PARTIALS * 32 + PARTIALS * group * size * 4;
}

const gen_body gen_body_attention_split_stream = {.op = "attention_split",
                                                  .name = "attention_split_stream",
                                                  .needs = GEN_BULK,
                                                  .rank = 10,
                                                  .loads = true,
                                                  .waits = true,
                                                  .carries = 1 << QKV,
                                                  .accepts = accepts,
                                                  .print = print,
                                                  .scratch_bytes = scratch_bytes};
