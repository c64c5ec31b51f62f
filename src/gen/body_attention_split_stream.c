/* body_attention_split_stream.c - attention of few tokens over streamed bf16 pages
 * (device/task/attention_split_stream.cuh).
 *
 * A task is a KV head and a part of the contexts of all tokens; the loader brings its pages of keys
 * and values through the ring.  Its function is a template: an instance for each head size, group
 * and number of tokens that occurs.  In outline:
 *
 *   #define ATTENTION_SHAPE_3 {...}
 *   MPK_FN void body_3(const mpk_task &t)
 *   {
 *       const attention_shape shape = ATTENTION_SHAPE_3;
 *       attention_split_stream<128, 4, 16, 8>(t, shape);     head size, group, tokens, team
 *   }
 *   MPK_FN void load_3(mpk_load &l)
 *   {
 *       const attention_shape shape = ATTENTION_SHAPE_3;
 *       attention_split_load<128, 16>(l, shape);
 *   } */
#include <math.h>

#include "gen/body_print.h"
#include "rt/rt_lane.h"
#include "shape/attention_split_shape.h"

enum { HEADS, KV_HEADS, HEAD_SIZE, EPS, SCALE, WINDOW, SPLITS, UNIT, OWN, CAP, NORM_LAST };

static int64_t attribute(const gen_call *c, int i)
{
    return c->op->attributes[i].i;
}

/* Query heads that share a KV head. */
static int64_t group_of(const gen_call *c)
{
    return attribute(c, HEADS) / attribute(c, KV_HEADS);
}

/* Tokens that the body is made for: it is compiled three times, since registers and scratch grow
 * with them. */
static int64_t most_tokens(const gen_call *c)
{
    const int64_t n = gen_input(c, AT_QKV)->dims[0];
    if (n > ATTENTION_STEP_ROWS)
        return ATTENTION_TOKENS;
    return n > ATTENTION_FEW_TOKENS ? ATTENTION_STEP_ROWS : ATTENTION_FEW_TOKENS;
}

/* Warps that do a piece together.  Of more than few tokens most pieces are short, and two teams do
 * one each at a time.  With `own` all instances sum in one order, that of one team. */
static int64_t team_of(const gen_call *c)
{
    return attribute(c, OWN) || most_tokens(c) == ATTENTION_FEW_TOKENS ? ATTENTION_WHOLE_TEAM
                                                                       : ATTENTION_HALF_TEAM;
}

/* What the body is instantiated for: heads of 64, 96, 128 or 256 entries, pages of ATTENTION_PAGE
 * tokens, up to ATTENTION_ROWS query heads a KV head.  The rotation must be of all of a head;
 * either both norms are there or neither, in one dtype. */
static bool accepts_any(const gen_call *c)
{
    const ir_tensor *qkv = gen_input(c, AT_QKV), *cache = gen_input(c, AT_K_CACHE),
                    *q = gen_input(c, AT_Q_NORM), *k = gen_input(c, AT_K_NORM);
    int64_t size = attribute(c, HEAD_SIZE);
    return gen_is_dense(qkv, IR_BF16) && gen_is_dense(cache, IR_BF16) &&
           gen_is_dense(gen_input(c, AT_V_CACHE), IR_BF16) && cache->dims[2] == ATTENTION_PAGE &&
           (size == 64 || size == 96 || size == 128 || size == 256) &&
           group_of(c) <= ATTENTION_ROWS && 2 * gen_input(c, AT_TABLE)->dims[2] == size &&
           attribute(c, UNIT) % ATTENTION_PAGE == 0 && gen_is_vector(q, IR_BF16) &&
           gen_is_vector(k, IR_BF16) && !q == !k && (!q || q->dtype == k->dtype) &&
           gen_is_dense(gen_input(c, AT_TABLE), IR_F32) &&
           gen_is_dense(gen_input(c, AT_PAGES), IR_I32) && gen_is_dense(gen_output(c, 0), IR_BF16);
}

/* For few tokens, in the unit of the kernel itself. */
static bool accepts(const gen_call *c)
{
    return gen_input(c, AT_QKV)->dims[0] <= ATTENTION_FEW_TOKENS && accepts_any(c);
}

/* The form for more than few tokens: the same code with more lots, which is another instance.  If
 * contexts are cut by themselves, what each token sees of the step must fit scratch
 * (attention_patch). */
static bool accepts_more(const gen_call *c)
{
    const int64_t most = attribute(c, OWN) ? ATTENTION_STEP_ROWS : ATTENTION_TOKENS;
    return gen_input(c, AT_QKV)->dims[0] > ATTENTION_FEW_TOKENS &&
           gen_input(c, AT_QKV)->dims[0] <= most && accepts_any(c);
}

/* For more than few tokens, in a graph whose products are not those of many. */
static bool accepts_some(const gen_call *c)
{
    return accepts_more(c) && !gen_follows_many(c);
}

/* The same after a product of many tokens: it is then compiled in the unit of rotation and
 * folding. */
static bool accepts_many(const gen_call *c)
{
    return accepts_more(c) && gen_follows_many(c);
}

/* As attention_shape has it. */
static int norm_type_of(const gen_call *c)
{
    const ir_tensor *norm = gen_input(c, AT_Q_NORM);
    if (!norm)
        return -1;
    return (norm->dtype == IR_F32 ? ATTENTION_NORM_F32 : 0) |
           (attribute(c, NORM_LAST) ? ATTENTION_NORM_LAST : 0);
}

/* The scale includes log2(e), because the body takes its exponentials in powers of 2. */
static void fill_shape(const gen_call *c, attention_shape *s)
{
    const double scale = c->op->attributes[SCALE].f, size = (double)attribute(c, HEAD_SIZE),
                 cap = c->op->attributes[CAP].f;
    *s = (attention_shape){
        .heads = (int)attribute(c, HEADS),
        .kv_heads = (int)attribute(c, KV_HEADS),
        .head_size = (int)attribute(c, HEAD_SIZE),
        .group = (int)group_of(c),
        .splits = (int)attribute(c, SPLITS),
        .unit = (int)attribute(c, UNIT),
        .own = (int)attribute(c, OWN),
        .window = (int)attribute(c, WINDOW),
        .norm_type = norm_type_of(c),
        .eps = (float)c->op->attributes[EPS].f,
        /* in powers of 2 */
        .scale = (float)((scale != 0 ? scale : 1 / sqrt(size)) * 1.4426950408889634),
        .cap = (float)(cap * 1.4426950408889634),
        .cap_rate = cap != 0 ? (float)(2 / cap) : 0,
        .part = (int)gen_operand_of_output(c->op, 0),
    };
}

/* How large the cache is goes into the shape as a read of mpk_caches, not as a number: the same
 * instance serves any number of requests. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    attention_shape whole, *s = &whole;
    uint32_t cache;
    TRY(gen_number_cache(cx, c, AT_PAGES, AT_K_CACHE, &cache));
    fill_shape(c, s);
#define PRINT_INT(name) gen_print_field(#name, &s->name, 1, out);
#define PRINT_FLOAT(name) gen_print_float_field(#name, s->name, out);
#define PRINT_CACHE(name) text_print(out, "/* %s */ mpk_caches[%u].%s, ", #name, cache, #name);
    text_print(out, "#define ATTENTION_SHAPE_%u {", n);
    ATTENTION_SHAPE_FIELDS(PRINT_INT, PRINT_CACHE, PRINT_FLOAT)
    text_print(out, "}\n");
    text_print(out,
               "MPK_FN void body_%u(const mpk_task &t)\n{\n    const attention_shape shape = "
               "ATTENTION_SHAPE_%u;\n    attention_split_stream<%d, %d, %d, %d>(t, shape);\n}\n"
               "MPK_FN void load_%u(mpk_load &l)\n{\n    const attention_shape shape = "
               "ATTENTION_SHAPE_%u;\n    attention_split_load<%d, %d>(l, shape);\n}\n",
               n, n, s->head_size, s->group, (int)most_tokens(c), (int)team_of(c), n, n,
               s->head_size, (int)most_tokens(c));
    return MPK_OK;
}

/* Shared memory by head size, group, tokens and team: what the instance of the template has. */
static uint32_t scratch_bytes(const gen_call *c)
{
    return (uint32_t)ATTENTION_SCRATCH_BYTES(attribute(c, HEAD_SIZE), group_of(c), most_tokens(c),
                                             team_of(c));
}

const gen_body gen_body_attention_split_stream = {.op = "attention_split",
                                                  .name = "attention_split_stream",
                                                  .needs = GEN_RING,
                                                  .rank = 10,
                                                  .loads = true,
                                                  .waits = true,
                                                  .carries = 1 << AT_QKV,
                                                  .accepts = accepts,
                                                  .print = print,
                                                  .scratch_bytes = scratch_bytes};
const gen_body gen_body_attention_split_some = {.op = "attention_split",
                                                .name = "attention_split_stream",
                                                .needs = GEN_RING,
                                                .rank = 10,
                                                .loads = true,
                                                .waits = true,
                                                .some = true,
                                                .carries = 1 << AT_QKV,
                                                .accepts = accepts_some,
                                                .print = print,
                                                .scratch_bytes = scratch_bytes};
const gen_body gen_body_attention_split_many = {.op = "attention_split",
                                                .name = "attention_split_stream",
                                                .needs = GEN_RING,
                                                .rank = 10,
                                                .loads = true,
                                                .waits = true,
                                                .many = GEN_MANY_HEADS,
                                                .carries = 1 << AT_QKV,
                                                .accepts = accepts_many,
                                                .print = print,
                                                .scratch_bytes = scratch_bytes};
