/* body_rope_tile.c - heads of many tokens turned and put into bf16 pages (device/task/rope_tile.cuh). */
#include "gen/body_print.h"
#include "rt/rt_lane.h"

enum { QKV, TABLE, POSITIONS, SLOTS, PAGES, K_CACHE, V_CACHE, Q_NORM, K_NORM };
enum { HEADS, KV_HEADS, HEAD_SIZE, EPS };
enum { PAGE_TOKENS = 64, SCRATCH_BYTES = (1 << 18) / 8 + 16 /* TURN_SCRATCH */ };

/* Places are numbered in 32 bits; how many tokens the step has is told by what is alive. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *cache = gen_input(c, K_CACHE);
    int64_t size = c->op->attributes[HEAD_SIZE].i;
    return gen_is_dense(gen_input(c, QKV), IR_BF16) && gen_input(c, QKV)->live == IR_TOKENS &&
           gen_is_dense(gen_input(c, TABLE), IR_F32) && 2 * gen_input(c, TABLE)->dims[2] == size &&
           gen_is_dense(gen_input(c, POSITIONS), IR_I32) && gen_is_dense(gen_input(c, SLOTS), IR_I32) &&
           gen_is_dense(gen_input(c, PAGES), IR_I32) && gen_is_dense(cache, IR_BF16) &&
           gen_is_dense(gen_input(c, V_CACHE), IR_BF16) && gen_is_dense(gen_output(c, 0), IR_BF16) &&
           cache->dims[2] == PAGE_TOKENS && cache->dims[0] < INT32_MAX / PAGE_TOKENS && (size == 64 || size == 128) &&
           gen_is_vector(gen_input(c, Q_NORM)) && gen_is_vector(gen_input(c, K_NORM)) &&
           c->op->n_in + c->op->n_out <= RT_PACKED;
}

static int type_of(const ir_tensor *norm)
{
    return norm ? norm->dtype == IR_F32 : -1;
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const ir_attribute *a = c->op->attributes;
    uint32_t cache;
    (void)n;
    TRY(gen_number_cache(cx, c, PAGES, K_CACHE, &cache));
    text_print(out, "{%lld, %lld, %lld, %u, %d, %d, ", (long long)gen_input(c, QKV)->dims[0], (long long)a[HEADS].i,
               (long long)a[KV_HEADS].i, cache, type_of(gen_input(c, Q_NORM)), type_of(gen_input(c, K_NORM)));
    gen_print_float((float)a[EPS].f, out);
    text_print(out, ", %u}", gen_operand_of_output(c->op, 0));
    return MPK_OK;
}

static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine small = {"turn_shape", "rope_tile<64>", NULL},
                             large = {"turn_shape", "rope_tile<128>", NULL};
    return c->op->attributes[HEAD_SIZE].i == 64 ? &small : &large;
}

static uint32_t scratch_bytes(const gen_call *c)
{
    (void)c;
    return SCRATCH_BYTES;
}

const gen_body gen_body_rope_tile = {.op = "rope_kv",
                                     .name = "rope_tile",
                                     .needs = 0,
                                     .rank = 10,
                                     .many = true,
                                     .accepts = accepts,
                                     .print = print,
                                     .routine = routine,
                                     .scratch_bytes = scratch_bytes};
