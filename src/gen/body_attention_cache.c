/* body_attention_cache.c - attention over a cache in one piece: the generic body (device/task/attention_cache.cuh) and
 * that of warps (device/task/attention_cache_rows.cuh). */
#include "op/attend.h"

#include "gen/body_print.h"

enum { QKV, K_CACHE, V_CACHE, INDEX, MASK, COSINE, SINE, Q_NORM, K_NORM };
enum { HEADS, KV_HEADS, HEAD_SIZE, EPS, SCALE, SPLITS };
enum { UNIT = 64, MOST_SIZE = 1024 };

static int64_t attribute(const gen_call *c, int i)
{
    return c->op->attributes[i].i;
}

static bool accepts(const gen_call *c)
{
    return gen_accepts_plain(c) && attribute(c, HEAD_SIZE) <= MOST_SIZE;
}

/* "    constexpr cache_operands o = ...;\n    constexpr cache_how h = ...;" */
static void print_constants(const gen_call *c, text *out)
{
    const ir_attribute *a = c->op->attributes;
    text_print(out,
               "    constexpr cache_operands o = {in_qkv, in_k_cache, in_v_cache, in_index, in_mask, in_cos, in_sin, "
               "in_q_norm, in_k_norm, out_part, out_lse};\n    constexpr cache_how h = {%lld, %lld, %lld, %lld, ",
               (long long)a[HEADS].i, (long long)a[KV_HEADS].i, (long long)a[HEAD_SIZE].i, (long long)a[SPLITS].i);
    gen_print_float(attend_scale(a[SCALE].f, a[HEAD_SIZE].i), out);
    text_print(out, ", ");
    gen_print_double(a[EPS].f, out);
    text_print(out, "};\n");
}

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    print_constants(c, out);
    text_print(out, "    attention_cache_run(t, o, h);\n}\n");
    return MPK_OK;
}

/* Weights and tokens of a block, query, values. */
static uint32_t scratch_bytes(const gen_call *c)
{
    return (uint32_t)(GEN_REDUCE_BYTES + 2 * UNIT * 4 + 2 * attribute(c, HEAD_SIZE) * 4);
}

const gen_body gen_body_attention_cache = {.op = "attention_cache",
                                           .name = "attention_cache",
                                           .accepts = accepts,
                                           .print = print,
                                           .scratch_bytes = scratch_bytes};

/* ---- the body of warps ---- */

/* Lanes that share a position, 8 entries each. */
static int64_t lanes_of(const gen_call *c)
{
    int64_t lanes = 4;
    while (lanes * 8 < attribute(c, HEAD_SIZE))
        lanes *= 2;
    return lanes;
}

static int64_t words_of(const gen_call *c)
{
    return gen_input(c, K_CACHE)->dtype == IR_F32 ? 8 : 4;
}

/* Rows that are in registers at once: as many as there are, or as fit. */
static int64_t rows_at_once(const gen_call *c)
{
    int64_t rows = attribute(c, HEADS) / attribute(c, KV_HEADS) * gen_input(c, INDEX)->dims[0];
    int64_t most = lanes_of(c) == 32 ? 1 : words_of(c) == 8 ? 2 : 4;
    return rows < 3 ? (rows < most ? rows : most) : most;
}

/* rows_scratch of the device code, and the new keys and values behind it. */
static uint32_t scratch_of_rows(const gen_call *c)
{
    enum { WARPS = GEN_BODY_THREADS / 32 };
    int64_t size = attribute(c, HEAD_SIZE), rows = rows_at_once(c);
    int64_t fresh = 2 * gen_input(c, INDEX)->dims[0] * size * words_of(c) / 2;
    return (uint32_t)((1 + WARPS) * rows * size * 4 + WARPS * rows * 8 + fresh);
}

static bool accepts_rows(const gen_call *c)
{
    enum { MOST_SCRATCH_BYTES = 48 << 10 };
    int64_t entry = gen_input(c, K_CACHE)->dims[2] * attribute(c, HEAD_SIZE); /* its bytes are counted in 32 bits */
    return accepts(c) && attribute(c, HEAD_SIZE) % 8 == 0 && words_of(c) * lanes_of(c) <= 128 &&
           entry < INT32_MAX / 8 && gen_input(c, INDEX)->dims[0] <= 64 && scratch_of_rows(c) <= MOST_SCRATCH_BYTES;
}

static mpk_status print_rows(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    print_constants(c, out);
    text_print(out, "    attention_cache_rows<%lld, %lld, %lld>(t, o, h);\n}\n", (long long)rows_at_once(c),
               (long long)lanes_of(c), (long long)words_of(c));
    return MPK_OK;
}

const gen_body gen_body_attention_cache_rows = {.op = "attention_cache",
                                                .name = "attention_cache_rows",
                                                .rank = 10,
                                                .accepts = accepts_rows,
                                                .print = print_rows,
                                                .scratch_bytes = scratch_of_rows};
