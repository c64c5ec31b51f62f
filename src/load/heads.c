/* heads.c - the rows of q and k of models that rotate a part of each head, in the order of heads
 * that are rotated whole.
 *
 * Rope rotates R of a head's K entries: entry i with entry i + R/2.  A program rotates all of them,
 * i with i + K/2, and the pairs beyond the first R/2 by an angle of 0 (op/rope.h, "plain").  So
 * every body has one form of rotation.  Scores are sums over a head, so the order of its entries
 * does not matter as long as q and k agree.  Those of v stay.
 *
 * A head of 8 entries, 4 of them rotated (a, b: the two of a pair; p: plain):
 *
 *   entry of the checkpoint   a0 a1 b0 b1 p0 p1 p2 p3
 *   entry of the program      a0 a1 p0 p1 b0 b1 p2 p3
 *
 * Input: a model as load_open gives it.  Output: for weights of q_proj and k_proj, the address of
 * each row (load_tensor.parts), since a row is whole blocks of any format; for their biases, and
 * norms of heads, a copy in the model's arena.
 *
 * Called by the engine before it builds a program; quantize.c writes rows as they are loaded.
 */
#include "load/load.h"

/* The order of a tensor's rows, or of a vector's entries. */
typedef struct heads_order {
    int64_t size, turned; /* entries of a head, and how many are rotated; 0: nothing to do */
} heads_order;

/* Where the entry that becomes entry `row` of the program lies. */
static int64_t find_row(heads_order o, int64_t row)
{
    const int64_t i = row % o.size, half = o.size / 2, pairs = o.turned / 2, plain = half - pairs;
    int64_t from = i;
    if (i >= half + pairs)
        from = o.turned + i - 2 * pairs;
    else if (i >= half)
        from = i - plain;
    else if (i >= pairs)
        from = i + pairs;
    return row - i + from;
}

/* q, k, their biases, and norms over heads of either. */
static bool is_of_heads(str name)
{
    static const char *const ends[] = {
        ".self_attn.q_proj.weight",
        ".self_attn.k_proj.weight",
        ".self_attn.q_proj.bias",
        ".self_attn.k_proj.bias",
        ".self_attn.q_norm.weight",
        ".self_attn.k_norm.weight",
        ".self_attn.query_layernorm.weight",
        ".self_attn.key_layernorm.weight",
    };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (str_ends(name, str_from(ends[i])))
            return true;
    return false;
}

static mpk_status order_rows(mpk_context *cx, arena *a, heads_order o, load_tensor *t)
{
    const uint64_t row_bytes = t->n_bytes / (uint64_t)t->dims[0];
    const void **old = t->parts;
    NEW(cx, a, t->parts, (size_t)t->dims[0]);
    for (int64_t i = 0; i < t->dims[0]; i++) {
        const int64_t from = find_row(o, i);
        t->parts[i] = old ? old[from] : (const char *)t->data + (uint64_t)from * row_bytes;
    }
    t->data = NULL;
    return MPK_OK;
}

static mpk_status order_entries(mpk_context *cx, arena *a, heads_order o, load_tensor *t)
{
    const ir_dtype_info *info = &ir_dtype_table[t->dtype];
    char *to;
    CHECK(cx, info->block_elements == 1, MPK_EUNSUPPORTED,
          "tensor %.*s is a vector of %s: it must be F32, F16 or BF16", LOAD_NAME(t->name),
          info->name);
    NEW(cx, a, to, t->n_bytes);
    for (int64_t i = 0; i < t->dims[0]; i++)
        memcpy(to + (size_t)i * info->block_bytes,
               (const char *)t->data + (size_t)find_row(o, i) * info->block_bytes,
               info->block_bytes);
    t->data = to;
    return MPK_OK;
}

/* With latent attention only whole heads are rotated: the others are columns of their own. */
mpk_status load_spread_heads(mpk_context *cx, load_model *m)
{
    const model_config *c = &m->config;
    const heads_order o = {c->head_size, c->rope_size};
    if (!m->has_config || !model_plain_pairs(c))
        return MPK_OK;
    for (size_t i = 0; i < m->tensors.n; i++) {
        load_tensor *t = &m->tensors.at[i];
        if (!is_of_heads(t->name) || t->dims[0] % o.size)
            continue;
        if (t->rank == 1)
            TRY(order_entries(cx, &m->arena, o, t));
        else
            TRY(order_rows(cx, &m->arena, o, t));
    }
    return MPK_OK;
}
