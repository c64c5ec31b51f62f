/* body_rope_tile.c - heads of many tokens rotated and put into bf16 pages
 * (device/task/rope_tile.cuh).
 *
 * For steps of many tokens beside the other bodies of prompts (many).  A routine for each size of
 * heads, 64, 96, 128 and 256 entries, and another where norms follow the rotation; the shape says
 * the rest.  Of a graph for 512 tokens with 32 query heads, 8 KV heads and no norms it is {512, 32,
 * 8, 4, 268435456, 0, -1, -1, ...}, each number with its field's name as a comment before it. */
#include "gen/body_print.h"
#include "rt/rt_lane.h"
#include "shape/rope_tile_shape.h"

enum { HEADS, KV_HEADS, HEAD_SIZE, EPS, NORM_LAST };

/* Places are numbered in 32 bits; how many tokens the step has is told by what is alive. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *cache = gen_input(c, ROTATE_K_CACHE);
    int64_t size = c->op->attributes[HEAD_SIZE].i;
    return gen_is_dense(gen_input(c, ROTATE_QKV), IR_BF16) &&
           gen_input(c, ROTATE_QKV)->live == IR_TOKENS &&
           gen_is_dense(gen_input(c, ROTATE_TABLE), IR_F32) &&
           2 * gen_input(c, ROTATE_TABLE)->dims[2] == size &&
           gen_is_dense(gen_input(c, ROTATE_POSITIONS), IR_I32) &&
           gen_is_dense(gen_input(c, ROTATE_SLOTS), IR_I32) &&
           gen_is_dense(gen_input(c, ROTATE_PAGES), IR_I32) && gen_is_dense(cache, IR_BF16) &&
           gen_is_dense(gen_input(c, ROTATE_V_CACHE), IR_BF16) &&
           gen_is_dense(gen_output(c, 0), IR_BF16) && cache->dims[2] == ROTATE_PAGE &&
           cache->dims[0] < INT32_MAX / ROTATE_PAGE &&
           (size == 64 || size == 96 || size == 128 || size == 256) &&
           gen_is_vector(gen_input(c, ROTATE_Q_NORM), IR_BF16) &&
           gen_is_vector(gen_input(c, ROTATE_K_NORM), IR_BF16) &&
           c->op->n_in + c->op->n_out <= RT_PACKED;
}

/* As rotate_shape has it: -1 no norm, 0 bf16, 1 fp32. */
static int type_of(const ir_tensor *norm)
{
    return norm ? norm->dtype == IR_F32 : -1;
}

/* The initializer of a rotate_shape; how large the cache is stands in mpk_caches, by its number. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const ir_attribute *a = c->op->attributes;
    const int group = (int)(a[HEADS].i / a[KV_HEADS].i);
    uint32_t cache;
    (void)n;
    TRY(gen_number_cache(cx, c, ROTATE_PAGES, ROTATE_K_CACHE, &cache));
    const rotate_shape s = {
        .tokens = (int)gen_input(c, ROTATE_QKV)->dims[0],
        .heads = (int)a[HEADS].i,
        .kv_heads = (int)a[KV_HEADS].i,
        .group = group,
        .inverse = ((1 << ROTATE_INVERSE) + group - 1) / group,
        .cache = (int)cache,
        .q_norm_type = type_of(gen_input(c, ROTATE_Q_NORM)),
        .k_norm_type = type_of(gen_input(c, ROTATE_K_NORM)),
        .eps = (float)a[EPS].f,
        .q = (int)gen_operand_of_output(c->op, 0),
    };
#define PRINT_INT(name) gen_print_field(#name, &s.name, 1, out);
#define PRINT_FLOAT(name) gen_print_float_field(#name, s.name, out);
    text_print(out, "{");
    ROTATE_SHAPE_FIELDS(PRINT_INT, PRINT_FLOAT)
    text_print(out, "}");
    return MPK_OK;
}

/* Without a load: nothing of it comes through the ring. */
static const gen_routine *routine(const gen_call *c)
{
    static const gen_routine routines[][2] = {
        {{"rotate_shape", "rope_tile<64>", NULL}, {"rotate_shape", "rope_tile<64, true>", NULL}},
        {{"rotate_shape", "rope_tile<96>", NULL}, {"rotate_shape", "rope_tile<96, true>", NULL}},
        {{"rotate_shape", "rope_tile<128>", NULL}, {"rotate_shape", "rope_tile<128, true>", NULL}},
        {{"rotate_shape", "rope_tile<256>", NULL}, {"rotate_shape", "rope_tile<256, true>", NULL}}};
    const int64_t size = c->op->attributes[HEAD_SIZE].i;
    uint32_t i = (uint32_t)size / 128 + 1; /* 64 and 96 before these */
    if (size < 128)
        i = size == 96;
    return &routines[i][c->op->attributes[NORM_LAST].i != 0];
}

/* The same for all uses (shape/rope_tile_shape.h). */
static uint32_t scratch_bytes(const gen_call *c)
{
    (void)c;
    return ROTATE_SCRATCH;
}

const gen_body gen_body_rope_tile = {.op = "rope_kv",
                                     .name = "rope_tile",
                                     .needs = 0,
                                     .rank = 10,
                                     .many = GEN_MANY_HEADS,
                                     .accepts = accepts,
                                     .print = print,
                                     .routine = routine,
                                     .scratch_bytes = scratch_bytes};
