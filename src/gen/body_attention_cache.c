/* body_attention_cache.c - attention of a few tokens over keys and values in one piece, sdpa_split
 * and attention_cache: the generic body (device/task/attention_cache.cuh) and that of warps
 * (device/task/attention_cache_rows.cuh).
 *
 * The cache is a tensor [B, heads, length, K] of the program, no pages.  Both operators leave parts
 * of the context, which attention_fold puts together.  The constants of an instance of sdpa_split:
 *
 *   constexpr mpk_view none = {-1, MPK_I32, RT_ALL, 1, {1}, {0}};
 *   static constexpr cache_operands o = {in_q, in_k, in_v, none, in_mask, {-1}, ...};
 *   constexpr cache_how h = {32, 8, 128, 16, 0.0883883461f, 0.0}; */
#include "op/attend.h"

#include "gen/body_print.h"

enum { Q, KEYS, VALUES, INDEX };
enum { HEADS, KV_HEADS, HEAD_SIZE, EPS, SCALE };
enum { UNIT = 64, MOST_SIZE = 1024 };

/* What both operators have: entries of the batch, query heads, KV heads, tokens of the step, places
 * of the cache, entries of a head. */
typedef struct heads {
    int64_t entries, q, kv, tokens, length, size;
} heads;

/* Only attention_cache puts new keys and values into the piece. */
static bool writes_cache(const gen_call *c)
{
    return strcmp(c->op->def->name, "attention_cache") == 0;
}

/* sdpa_split has q, k and v as they are; attention_cache has them as columns of one product, so its
 * number of heads is an attribute and its tokens are those of the index. */
static heads heads_of(const gen_call *c)
{
    const ir_tensor *q = gen_input(c, Q), *k = gen_input(c, KEYS);
    heads n = {.entries = k->dims[0], .kv = k->dims[1], .length = k->dims[2], .size = k->dims[3]};
    if (writes_cache(c)) {
        n.q = c->op->attributes[HEADS].i;
        n.tokens = gen_input(c, INDEX)->dims[0];
    } else {
        n.q = q->dims[1];
        n.tokens = q->dims[2];
    }
    return n;
}

/* What is made of qkv by strides of its own must be dense. */
static bool accepts(const gen_call *c)
{
    const ir_tensor *q = gen_input(c, Q);
    heads n = heads_of(c);
    bool dense =
        !writes_cache(c) || (q->stride[1] == 1 && (q->dims[0] == 1 || q->stride[0] == q->dims[1]));
    return gen_accepts_plain(c) && dense && n.size <= MOST_SIZE;
}

/* Numbers of heads, size, splits, scale and epsilon, in the order of cache_how. */
static void print_how(const gen_call *c, const heads *n, double scale, double eps, text *out)
{
    text_print(out, "    constexpr cache_how h = {%lld, %lld, %lld, %lld, ", (long long)n->q,
               (long long)n->kv, (long long)n->size, (long long)gen_output(c, 0)->dims[1]);
    gen_print_float(attend_scale(scale, n->size), out);
    text_print(out, ", ");
    gen_print_double(eps, out);
    text_print(out, "};\n");
}

/* attention_cache reads its heads through a view of qkv as [B, heads, T, K], which no tensor of the
 * program has; sdpa_split has no index, and its positions are counted from 0. */
static void print_constants(const gen_call *c, text *out)
{
    const ir_attribute *a = c->op->attributes;
    heads n = heads_of(c);
    if (!writes_cache(c)) {
        text_print(out,
                   "    constexpr mpk_view none = {-1, MPK_I32, RT_ALL, 1, {%lld}, {0}};\n"
                   "    static constexpr cache_operands o = {in_q, in_k, in_v, none, in_mask, "
                   "{-1}, {-1}, {-1}, {-1}, "
                   "out_part, out_lse};\n",
                   (long long)n.tokens);
        print_how(c, &n, a[0].f, 0, out);
        return;
    }
    long long columns = (long long)((n.q + 2 * n.kv) * n.size);
    text_print(out,
               "    constexpr mpk_view heads = {0, %s, RT_ALL, 4, {%lld, %lld, %lld, %lld}, {%lld, "
               "%lld, %lld, 1}};\n",
               gen_dtype_name(gen_input(c, Q)->dtype), (long long)n.entries,
               (long long)(n.q + 2 * n.kv), (long long)n.tokens, (long long)n.size,
               (long long)n.tokens * columns, (long long)n.size, columns);
    text_print(out, "    static constexpr cache_operands o = {heads, in_k_cache, in_v_cache, "
                    "in_index, in_mask, in_cos, in_sin, "
                    "in_q_norm, in_k_norm, out_part, out_lse};\n");
    print_how(c, &n, a[SCALE].f, a[EPS].f, out);
}

/* The instance: the operands' views, the two structs made of them, and one call. */
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
    return (uint32_t)(GEN_REDUCE_BYTES + 2 * UNIT * 4 + 2 * heads_of(c).size * 4);
}

#define GENERIC(operator)                                                              \
    {                                                                                  \
        .op = operator, .name = "attention_cache", .accepts = accepts, .print = print, \
        .scratch_bytes = scratch_bytes                                                 \
    }
const gen_body gen_body_attention_cache = GENERIC("attention_cache");
const gen_body gen_body_sdpa_split = GENERIC("sdpa_split");

/* ---- the body of warps ---- */

/* Lanes that share a position, 8 entries each: a power of two from 4 on, so that a warp holds whole
 * positions and sums by shuffles. */
static int64_t lanes_of(const gen_call *c)
{
    int64_t lanes = 4;
    while (lanes * 8 < heads_of(c).size)
        lanes *= 2;
    return lanes;
}

/* Words of 4 bytes that a lane's 8 entries take. */
static int64_t words_of(const gen_call *c)
{
    return gen_input(c, KEYS)->dtype == IR_F32 ? 8 : 4;
}

/* Rows that are done at once: as many as there are, or as fit into registers. */
static int64_t rows_at_once(const gen_call *c)
{
    const heads n = heads_of(c);
    const int64_t rows = n.q / n.kv * n.tokens;
    int64_t most = words_of(c) == 8 ? 2 : 4;
    if (lanes_of(c) == 32)
        most = 1;
    return rows < 3 && rows < most ? rows : most;
}

/* rows_scratch of the device code, and the new keys and values after it. */
static uint32_t scratch_of_rows(const gen_call *c)
{
    enum { WARPS = GEN_BODY_THREADS / 32 };
    heads n = heads_of(c);
    int64_t rows = rows_at_once(c),
            fresh = writes_cache(c) ? 2 * n.tokens * n.size * words_of(c) / 2 : 0;
    return (uint32_t)((1 + WARPS) * rows * n.size * 4 + WARPS * rows * 8 + fresh);
}

/* Rows of whole words of 16 bytes, which begin at such, in a piece whose bytes are counted in 32
 * bits. */
static bool is_piece(const gen_call *c, uint32_t operand, int64_t words)
{
    const ir_tensor *t = gen_input(c, operand);
    const int64_t unit = words == 8 ? 4 : 8;
    int64_t stride[IR_MAX_RANK], offset;
    ir_strides(c->ir, c->op->in[operand], stride, &offset);
    for (int i = 0; i < 3; i++)
        if (t->dims[i] > 1 && t->stride[i] % unit)
            return false;
    return gen_is_short_float(t) && t->stride[3] == 1 && offset % unit == 0 &&
           t->dims[2] * t->stride[2] < INT32_MAX / 8;
}

/* The results are stored row by row. */
static bool is_dense_rows(const ir_tensor *t)
{
    return t->stride[2] == 1;
}

/* Limits of the body of warps: registers (words of a lane), shared memory, 32-bit offsets, rows of
 * whole 16-byte words, and one dtype of keys and values. */
static bool accepts_rows(const gen_call *c)
{
    enum { MOST_SCRATCH_BYTES = 48 << 10, MOST_TOKENS = 64, MOST_WORDS = 128 };
    const ir_tensor *k = gen_input(c, KEYS), *v = gen_input(c, VALUES);
    heads n = heads_of(c);
    return accepts(c) && n.size % 8 == 0 && words_of(c) * lanes_of(c) <= MOST_WORDS &&
           n.tokens <= MOST_TOKENS && n.entries * gen_input(c, Q)->stride[0] < INT32_MAX / 8 &&
           ir_elements(gen_input(c, Q)) < INT32_MAX / 8 && is_piece(c, KEYS, words_of(c)) &&
           is_piece(c, VALUES, words_of(c)) && v->dtype == k->dtype &&
           is_dense_rows(gen_output(c, 0)) && is_dense_rows(gen_output(c, 1)) &&
           scratch_of_rows(c) <= MOST_SCRATCH_BYTES;
}

/* The generic body's constants; rows at once, lanes of a position and words of a lane are arguments
 * of the template, since arrays in registers have these lengths. */
static mpk_status print_rows(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head(c, n, out);
    print_constants(c, out);
    text_print(out, "    attention_cache_rows<%lld, %lld, %lld>(t, o, h);\n}\n",
               (long long)rows_at_once(c), (long long)lanes_of(c), (long long)words_of(c));
    return MPK_OK;
}

/* bits: inputs that may be carried.  Both wait for their event themselves. */
#define BY_ROWS(operator, bits)                                                    \
    {                                                                              \
        .op = operator, .name = "attention_cache_rows", .rank = 10, .waits = true, \
        .carries = bits, .accepts = accepts_rows, .print = print_rows,             \
        .scratch_bytes = scratch_of_rows                                           \
    }
const gen_body gen_body_attention_cache_rows = BY_ROWS("attention_cache", 1 << Q);
const gen_body gen_body_sdpa_split_rows = BY_ROWS("sdpa_split", 0);
