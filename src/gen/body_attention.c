/* body_attention.c - generic bodies of attention and of what fills the paged cache
 * (device/task/heads.cuh, attention.cuh, attention_parts.cuh).
 *
 * They take any plain dtype, heads of up to 1,024 entries and pages of any size, and run wherever
 * no faster record accepts, on any architecture: their rank is 0.  All seven operators share how a
 * token's place in the cache is found, so the table below says once where each has these
 * operands.  An instance of kv_write, after its head:
 *
 *   static constexpr heads_place place = {in_positions, in_slots, in_pages, in_k_cache, ...};
 *   kv_write_run(t, in_k, in_v, place); */
#include "op/attend.h"
#include "op/rope.h"

#include "gen/body_rope.h"

/* Numbers of inputs that all of these operators have: positions, after which slots and pages
 * follow, and the cache of keys, after which that of values follows; those of latents
 * have none. */
typedef struct inputs {
    const char *op;
    uint32_t positions, k_cache;
} inputs;

static const inputs inputs_table[] = {
    {"kv_write", 2, 5},      {"rope_kv", 2, 5},         {"attention", 3, 1},
    {"attention_qkv", 1, 4}, {"attention_split", 2, 5}, {"attention_parts", 3, 1},
    {"latent_write", 1, 4},  {"latent_rope", 6, 9},
};

/* Each operator that has a body here has a row in the table. */
static const inputs *find_inputs(const gen_call *c)
{
    for (size_t i = 0; i < sizeof inputs_table / sizeof *inputs_table; i++)
        if (str_is(str_from(c->op->def->name), inputs_table[i].op))
            return &inputs_table[i];
    return NULL;
}

/* Only pages must be dense; positions, slots and page tables may be of any plain dtype and
 * stride. */
static bool accepts(const gen_call *c)
{
    const inputs *at = find_inputs(c);
    const uint32_t caches = c->op->def->n_in == at->k_cache + 1 ? 1 : 2;
    return gen_accepts_caches(c, at->k_cache, caches);
}

/* Scratch of attention of heads of this size: angles, a chunk, query, values; as in
 * attention.cuh. */
static uint32_t scratch_of_heads(int64_t size)
{
    return (uint32_t)(GEN_REDUCE_BYTES + 2 * 256 * 4 + 3 * size * 4);
}

/* Entries of a head, which is the last axis of the cache. */
static int64_t head_size(const gen_call *c)
{
    return gen_input(c, find_inputs(c)->k_cache)->dims[3];
}

/* For all seven operators, those that only fill the cache among them: the largest need is taken for
 * all. */
static uint32_t scratch_bytes(const gen_call *c)
{
    return scratch_of_heads(head_size(c));
}

/* Heads so large that they do not fit the scratch are refused. */
static bool accepts_heads(const gen_call *c)
{
    return head_size(c) <= 1024 && accepts(c);
}

/* Where a token's keys and values lie, by the operands that say so. */
static void print_place(text *out)
{
    text_print(out, "    static constexpr heads_place place = {in_positions, in_slots, in_pages, "
                    "in_k_cache, in_v_cache};\n");
}

/* One tensor, one cache: where values lie, nothing is said. */
static mpk_status print_latent_write(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    text_print(out, "    static constexpr heads_place place = {in_positions, in_slots, in_pages, "
                    "in_k_cache, {-1}};\n    kv_write_run(t, in_k, {-1}, place);\n}\n");
    return MPK_OK;
}

/* The parts of latents stand for themselves: of a source their angles are needed. */
static mpk_status print_latent_rope(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    enum { TABLE = 4 };
    (void)cx;
    gen_print_head(c, n, out);
    text_print(out,
               "    static constexpr heads_place place = {in_positions, in_slots, in_pages, "
               "in_k_cache, {-1}};\n    static constexpr heads_source source = {in_q, in_table, 0, "
               "0, 0, %lld, ",
               (long long)gen_input(c, TABLE)->dims[2]);
    gen_print_double(c->op->attributes[0].f, out);
    text_print(out, "};\n    latent_rope_run(t, source, place, in_plain, in_q, in_latent, in_key, "
                    "in_norm, out_query);\n}\n");
    return MPK_OK;
}

/* `table`: the operand with the angles, or "{-1}"; half: pairs that are rotated; norm_last: the
 * norm follows the rotation. */
static void print_source(const char *table, int64_t heads, int64_t kv_heads, int64_t size,
                         int64_t half, double eps, bool norm_last, text *out)
{
    text_print(out,
               "    static constexpr heads_source source = {in_qkv, %s, %lld, %lld, %lld, %lld, ",
               table, (long long)heads, (long long)kv_heads, (long long)size, (long long)half);
    gen_print_double(eps, out);
    text_print(out, "%s};\n", norm_last ? ", true" : "");
}

/* The scale is worked out here as the reference does it, 1 / sqrt(size) where the attribute is
 * 0.  A cap is printed if there is one. */
static void print_how(double scale, int64_t size, int64_t window, double cap, text *out)
{
    text_print(out, "    constexpr attend_how how = {");
    gen_print_float(attend_scale(scale, size), out);
    text_print(out, ", %lld", (long long)window);
    if (cap > 0) {
        text_print(out, ", ");
        gen_print_float((float)cap, out);
    }
    text_print(out, "};\n");
}

/* Keys and values come as tensors of their own, so nothing but their places is known here. */
static mpk_status print_kv_write(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    print_place(out);
    text_print(out, "    kv_write_run(t, in_k, in_v, place);\n}\n");
    return MPK_OK;
}

/* Angles come from a table, whose last axis is the pairs that are rotated. */
static mpk_status print_rope_kv(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    enum { TABLE = 1 };
    enum { HEADS, KV_HEADS, HEAD_SIZE, EPS, NORM_LAST };
    (void)cx;
    const ir_attribute *a = c->op->attributes;
    gen_print_head(c, n, out);
    print_place(out);
    print_source("in_table", a[HEADS].i, a[KV_HEADS].i, a[HEAD_SIZE].i,
                 gen_input(c, TABLE)->dims[2], a[EPS].f, a[NORM_LAST].i, out);
    text_print(out, "    rope_kv_run(t, source, place, in_q_norm, in_k_norm, out_q);\n}\n");
    return MPK_OK;
}

/* Queries are ready: without a source, only where the context lies and how it counts.  run: the
 * function of the operator; results: its last arguments. */
static void print_attended(const gen_call *c, uint32_t n, const char *run, const char *results,
                           text *out)
{
    enum { SCALE, WINDOW, CAP };
    const ir_attribute *a = c->op->attributes;
    gen_print_head(c, n, out);
    print_place(out);
    print_how(a[SCALE].f, head_size(c), a[WINDOW].i, a[CAP].f, out);
    text_print(out, "    %s(t, in_q, place, how, %s);\n}\n", run, results);
}

static mpk_status print_attention(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_attended(c, n, "attention_run", "in_sinks, out_y", out);
    return MPK_OK;
}

static mpk_status print_attention_parts(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    print_attended(c, n, "attention_parts_run", "out_part, out_lse", out);
    return MPK_OK;
}

/* Angles are worked out by the body itself, from the frequencies that stand before its function. */
static mpk_status print_attention_qkv(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    enum { HEADS = ROPE_ATTRIBUTES, KV_HEADS, HEAD_SIZE, EPS, SCALE, WINDOW };
    (void)cx;
    const ir_attribute *a = c->op->attributes;
    gen_print_frequencies(c, n, out);
    gen_print_head(c, n, out);
    print_place(out);
    print_source("{-1}", a[HEADS].i, a[KV_HEADS].i, a[HEAD_SIZE].i, rope_pairs(a), a[EPS].f, false,
                 out);
    print_how(a[SCALE].f, a[HEAD_SIZE].i, a[WINDOW].i, 0, out);
    text_print(
        out,
        "    attention_qkv_run(t, source, place, how, in_q_norm, in_k_norm, out_y, frequency_%u, ",
        n);
    gen_print_amplitude(c, out);
    text_print(out, ");\n}\n");
    return MPK_OK;
}

/* As attention with a table of angles, plus how the context is shared out: the most parts, tokens
 * of a unit, and units of a part where a token is cut by its own context alone
 * (attention_split.c). */
static mpk_status print_attention_split(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    enum { TABLE = 1 };
    enum { HEADS, KV_HEADS, HEAD_SIZE, EPS, SCALE, WINDOW, SPLITS, UNIT, OWN, CAP, NORM_LAST };
    (void)cx;
    const ir_attribute *a = c->op->attributes;
    gen_print_head(c, n, out);
    print_place(out);
    print_source("in_table", a[HEADS].i, a[KV_HEADS].i, a[HEAD_SIZE].i,
                 gen_input(c, TABLE)->dims[2], a[EPS].f, a[NORM_LAST].i, out);
    print_how(a[SCALE].f, a[HEAD_SIZE].i, a[WINDOW].i, a[CAP].f, out);
    text_print(out,
               "    constexpr split_how split = {how, %lld, %lld, %lld};\n"
               "    attention_split_run(t, source, place, split, in_q_norm, in_k_norm, out_part, "
               "out_lse);\n}\n",
               (long long)a[SPLITS].i, (long long)a[UNIT].i, (long long)a[OWN].i);
    return MPK_OK;
}

const gen_body gen_body_kv_write = {.op = "kv_write",
                                    .name = "heads",
                                    .accepts = accepts,
                                    .print = print_kv_write,
                                    .scratch_bytes = scratch_bytes};
const gen_body gen_body_latent_write = {.op = "latent_write",
                                        .name = "heads",
                                        .accepts = accepts,
                                        .print = print_latent_write,
                                        .scratch_bytes = scratch_bytes};
const gen_body gen_body_latent_rope = {.op = "latent_rope",
                                       .name = "latent_rope",
                                       .accepts = accepts_heads,
                                       .print = print_latent_rope,
                                       .scratch_bytes = scratch_bytes};
const gen_body gen_body_rope_kv = {.op = "rope_kv",
                                   .name = "heads",
                                   .accepts = accepts_heads,
                                   .print = print_rope_kv,
                                   .scratch_bytes = scratch_bytes};
const gen_body gen_body_attention = {.op = "attention",
                                     .name = "attention",
                                     .accepts = accepts_heads,
                                     .print = print_attention,
                                     .scratch_bytes = scratch_bytes};
const gen_body gen_body_attention_parts = {.op = "attention_parts",
                                           .name = "attention_parts",
                                           .accepts = accepts_heads,
                                           .print = print_attention_parts,
                                           .scratch_bytes = scratch_bytes};
const gen_body gen_body_attention_qkv = {.op = "attention_qkv",
                                         .name = "attention",
                                         .accepts = accepts_heads,
                                         .print = print_attention_qkv,
                                         .scratch_bytes = scratch_bytes};
const gen_body gen_body_attention_split_any = {.op = "attention_split",
                                               .name = "attention",
                                               .accepts = accepts_heads,
                                               .print = print_attention_split,
                                               .scratch_bytes = scratch_bytes};
