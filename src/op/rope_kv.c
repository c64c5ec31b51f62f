/* rope_kv.c - from the packed projection to rotated queries and a filled cache: split, per-head
 * norm, rope and kv_write in one operator.
 *
 * qkv [T, (H + 2 G) K], table f32[T, 2, Kr/2], positions, slots, pages, k_cache, v_cache, q_norm
 * [K], k_norm [K] -> q [T, H, K] and the caches in place.  A row of qkv has H query heads, then
 * G key heads, then G value heads:
 *
 *   q heads  -> norm with q_norm -> rope -> q
 *   k heads  -> norm with k_norm -> rope -> k_cache at the token's place
 *   v heads  ------------------------------> v_cache at the token's place
 *
 * With norm_last the norms follow the rotation (Hunyuan).  The bits are those of the single
 * operators.  pass/ builds it from them.
 *
 * A task has some tokens of some query heads, and the KV heads whose first query head is among
 * them.  Where a token goes in the cache depends on data, so tasks of one KV head share a box of
 * the cache.  They never write the same entry: of two tokens with one place the earlier is not
 * written at all, and each task compares with the places of all later tokens.  Since k and v lie
 * after q in a row, the box of qkv that a task reads is the one around three ranges of columns.
 *
 * Cost: one pass over qkv, and the places of all tokens for each task.
 */
#include "op/rotated.h"

/* The attributes after those of rotated.h. */
enum { EPS = ROTATED_ATTRIBUTES, NORM_LAST };
enum { TILE_TOKENS = 16 }; /* a block of values in the cache of a GPU */

/* q keeps the dtype of qkv; keys and values take that of the cache. */
static mpk_status infer(mpk_context *cx, const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    heads_split n = rotated_split(op);
    TRY(rotated_expect(cx, g, op));
    shape_like(shape_input(g, op, QKV), &out[0]);
    out[0].rank = 3;
    out[0].dims[1] = n.q;
    out[0].dims[2] = n.size;
    rotated_caches(g, op, &out[1]);
    return MPK_OK;
}

/* The first KV head whose query heads begin at `head` or later: a box of query heads lo .. hi
 * has the KV heads kv_head_from(lo) .. kv_head_from(hi) - 1. */
static int64_t kv_head_from(const ir_attribute *a, int64_t head)
{
    int64_t group = a[HEADS].i / a[KV_HEADS].i;
    return (head + group - 1) / group;
}

/* Any tokens and any query heads; where tiles are whole, tokens come in blocks of the GPU's
 * cache. */
static void axes(const ir_graph *g, const ir_op *op, op_axis *axes)
{
    (void)g, (void)op;
    axes[0] = (op_axis){.grain = 1, .tile = TILE_TOKENS};
    axes[1].grain = 1;
}

/* The columns from the first query head of the task to its last value head; without a KV head,
 * the query heads alone.  A cache is written only. */
static void reads(const ir_graph *g, const ir_op *op, uint32_t input, const ir_box *box,
                  ir_box *read)
{
    int64_t lo = kv_head_from(op->attributes, box->lo[1]),
            hi = kv_head_from(op->attributes, box->hi[1]);
    heads_split n = rotated_split(op);
    *read = ir_box_whole(shape_input(g, op, input));
    if (input == QKV || input == TABLE) {
        read->lo[0] = box->lo[0];
        read->hi[0] = box->hi[0];
    }
    if (input == QKV) {
        read->lo[1] = box->lo[1] * n.size;
        read->hi[1] = (lo < hi ? n.q + n.kv + hi : box->hi[1]) * n.size;
    } else if (input == K_CACHE || input == V_CACHE)
        *read = (ir_box){0};
}

/* What is written takes as long as what is read; the columns between query heads and KV heads,
 * which `reads` names, are not read.  Less than 0 where these are more. */
static int64_t effort(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    heads_split n = rotated_split(op);
    int64_t lo = kv_head_from(op->attributes, box->lo[1]),
            hi = kv_head_from(op->attributes, box->hi[1]), queries = box->hi[1] - box->lo[1],
            heads = queries + 2 * (hi - lo), named = queries;
    if (lo < hi)
        named = n.q + n.kv + hi - box->lo[1];
    return ir_row_bytes(shape_input(g, op, QKV)->dtype,
                        (box->hi[0] - box->lo[0]) * (2 * heads - named) * n.size);
}

/* All pages of the task's KV heads: which of them is known at run time only. */
static void writes(const ir_graph *g, const ir_op *op, uint32_t output, const ir_box *box,
                   ir_box *written)
{
    *written = pages_box(&g->tensors.at[op->out[output]], kv_head_from(op->attributes, box->lo[1]),
                         kv_head_from(op->attributes, box->hi[1]));
}

/* Scratch: the places of all tokens, then a head, then a row of the table. */
static size_t scratch_bytes(const ir_graph *g, const ir_op *op, const ir_box *box)
{
    (void)box;
    const ir_tensor *table = shape_input(g, op, TABLE);
    return (size_t)table->dims[0] * sizeof(int64_t) +
           (size_t)(op->attributes[HEAD_SIZE].i + 2 * table->dims[2]) * sizeof(float);
}

/* Store the keys and values of token t, KV heads lo .. hi - 1.  row: scratch for one head,
 * followed by the token's cosines and sines. */
static void store_heads(const op_call *call, int64_t t, int64_t lo, int64_t hi, float *row)
{
    const ir_attribute *a = call->attributes;
    const op_view *in = call->in, *qkv = &in[QKV];
    heads_split n = rotated_split(call->op);
    int64_t half = in[TABLE].dims[2], slot = walk_load_int(&in[SLOTS], t * in[SLOTS].stride[0]),
            position = walk_load_int(&in[POSITIONS], t * in[POSITIONS].stride[0]);
    const float *cosine = row + n.size;
    for (int64_t head = lo; head < hi; head++) {
        heads_load(qkv, n, t, n.q + head, row);
        heads_rotate(qkv->dtype, row, n.size,
                     (heads_norm){&in[K_NORM], a[EPS].f, a[NORM_LAST].i != 0}, cosine,
                     cosine + half, half);
        pages_store(&in[PAGES], &call->out[1], slot, position, head, row);
        heads_load(qkv, n, t, n.q + n.kv + head, row);
        pages_store(&in[PAGES], &call->out[2], slot, position, head, row);
    }
}

/* Token by token: its query heads go to q, then keys and values of their KV heads to the cache,
 * unless a later token has its place. place[t] is the row of the cache for token t, less than 0 if
 * there is none to write. */
static void ref(const op_call *call, const ir_box *box, void *scratch)
{
    const ir_attribute *a = call->attributes;
    heads_split n = rotated_split(call->op);
    const op_view *in = call->in, *qkv = &in[QKV], *table = &in[TABLE], *q = &call->out[0];
    int64_t half = table->dims[2], *place = scratch;
    float *row = (float *)(void *)(place + table->dims[0]), *cosine = row + n.size,
          *sine = cosine + half;
    pages_find_tokens(&in[POSITIONS], &in[SLOTS], &in[PAGES], &call->out[1],
                      op_live_entries(call, qkv), box->lo[0], box->hi[0], place);
    for (int64_t t = box->lo[0]; t < box->hi[0]; t++) {
        walk_load_row(table, t * table->stride[0], 0, half, cosine);
        walk_load_row(table, t * table->stride[0] + table->stride[1], 0, half, sine);
        for (int64_t head = box->lo[1]; head < box->hi[1]; head++) {
            heads_load(qkv, n, t, head, row);
            heads_rotate(qkv->dtype, row, n.size,
                         (heads_norm){&in[Q_NORM], a[EPS].f, a[NORM_LAST].i != 0}, cosine, sine,
                         half);
            walk_store_row(q, t * q->stride[0] + head * q->stride[1], 0, n.size, row);
        }
        if (place[t] >= 0)
            store_heads(call, t, kv_head_from(a, box->lo[1]), kv_head_from(a, box->hi[1]), row);
    }
}

/* Consecutive positions per slot (pages_fill); the other inputs are random. */
static void fill(const ir_graph *g, const ir_op *op, uint32_t input, uint64_t seed, void *data)
{
    pages_fill(g, op, POSITIONS, K_CACHE, input, seed, data);
}

static const op_operand out[] = {{"q", 0}, {"k_cache", 0}, {"v_cache", 0}};
static const op_attribute attributes[] = {ROTATED_ATTRIBUTE_ROWS, SHAPE_REAL("eps", 1e-6),
                                          SHAPE_INT("norm_last", 0)};

/* A single token, prefill, each norm present and absent, caches of another dtype, more tokens
 * than a tile; norms after the rotation. */
static const op_case cases[] = {
    {ROTATED_INPUTS("1", "f32[1, 960]", "32", "2, 4",
                    "f32[9, 3, 16, 64]") "%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, "
                                         "%vc) {heads = 9, kv_heads = 3, head_size = 64}\n"},
    {ROTATED_INPUTS("7", "f32[7, 336]", "24", "3, 2",
                    "bf16[7, 1, 8, 48]") "const %qn : f32[48]\nconst %kn : f32[48]\n"
                                         "%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc, "
                                         "%qn, %kn) {heads = 5, "
                                         "kv_heads = 1, head_size = 48, eps = 1e-05}\n"},
    {ROTATED_INPUTS(
        "7", "bf16[7, 640]", "32", "4, 3",
        "f16[12, 2, 4, 80]") "const %kn : bf16[80]\n"
                             "%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc, _, "
                             "%kn) {heads = 4, kv_heads "
                             "= 2, head_size = 80}\n"},
    {ROTATED_INPUTS("33", "bf16[33, 1024]", "64", "1, 3",
                    "bf16[3, 2, 64, 128]") "const %qn : bf16[128]\nconst %kn : bf16[128]\n"
                                           "%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc, "
                                           "%qn, %kn) {heads = 4, "
                                           "kv_heads = 2, head_size = 128}\n"},
    {ROTATED_INPUTS("70", "bf16[70, 640]", "32", "4, 2",
                    "bf16[8, 2, 64, 64]") "%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc) "
                                          "{heads = 6, kv_heads = 2, "
                                          "head_size = 64}\n"},
    {ROTATED_INPUTS("5", "f32[5, 336]", "16", "3, 2",
                    "f32[7, 1, 8, 48]") "const %qn : f32[48]\nconst %kn : f32[48]\n"
                                        "%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc, "
                                        "%qn, %kn) {heads = 5, kv_heads = 1, head_size = 48, eps = "
                                        "0.5, norm_last = 1}\n"},
    {ROTATED_INPUTS("35", "bf16[35, 768]", "48", "1, 3",
                    "bf16[3, 2, 64, 96]") "const %qn : bf16[96]\nconst %kn : f32[96]\n"
                                          "%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc, "
                                          "%qn, %kn) {heads = 4, kv_heads = 2, head_size = 96, "
                                          "norm_last = 1}\n"},
};

const op_def op_rope_kv = {
    .name = "rope_kv",
    .summary =
        "split packed q, k, v; normalise and rotate heads; put keys and values into the cache",
    OP_INPUTS(rotated_in),
    OP_OUTPUTS(out),
    OP_ATTRIBUTES(attributes),
    .flags = OP_WRITES_APART,
    .infer = infer,
    .axes = axes,
    .effort = effort,
    .reads = reads,
    .writes = writes,
    .scratch_bytes = scratch_bytes,
    .ref = ref,
    OP_CASES(cases),
    .fill = fill,
};
