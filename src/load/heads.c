/* heads.c - rows of q, k and v in the order of a program that rotates whole heads and has few query
 * heads for a KV head.
 *
 * A part of each head.  Rope rotates R of a head's K entries: entry i with entry i + R/2.  A
 * program rotates all of them, i with i + K/2, and the pairs beyond the first R/2 by an angle of 0
 * (op/rope.h, "plain").  So every body has one form of rotation.  Scores are sums over a head, so
 * the order of its entries does not matter as long as q and k agree.  Those of v stay.
 *
 * A head of 8 entries, 4 of them rotated (a, b: the two of a pair; p: plain):
 *
 *   entry of the checkpoint   a0 a1 b0 b1 p0 p1 p2 p3
 *   entry of the program      a0 a1 p0 p1 b0 b1 p2 p3
 *
 * Large groups.  The fast bodies of a target may take so many query heads for a KV head and no more
 * (target_def.most_group).  A program then has each KV head two to four times
 * (model_config.kv_times), for a part of its query heads each.  Such models have few KV heads.  The
 * cache grows by that factor, and no result changes.
 *
 * Input: a model as load_open gives it.  Output: for weights, the address of each row
 * (load_tensor.parts), since a row is whole blocks of any format; for biases, and norms of heads, a
 * copy in the model's arena.
 *
 * Called by the engine once it knows the target, before it builds a program; quantize.c writes rows
 * as they are loaded.
 */
#include "load/load.h"

/* The order of a tensor's rows, or of a vector's entries. */
typedef struct heads_order {
    int64_t size, rotated; /* entries of a head, and how many are rotated; all: none moves */
    int64_t times;         /* each head stands so often */
} heads_order;

/* Where the entry that becomes entry `row` of the program lies. */
static int64_t find_row(const void *of, int64_t row)
{
    const heads_order *o = of;
    const int64_t i = row % o->size, head = row / o->size / o->times, half = o->size / 2,
                  pairs = o->rotated / 2;
    int64_t from = i;
    if (i >= half + pairs)
        from = o->rotated + i - 2 * pairs;
    else if (i >= half)
        from = i - half + pairs;
    else if (i >= pairs)
        from = i + pairs;
    return head * o->size + from;
}

/* Which tensors' rows move, by the end of the name. */
static const struct row_order {
    const char *end;
    bool rotated;  /* where a part of a head is rotated */
    bool repeated; /* where a KV head stands several times */
} row_orders[] = {
    {".self_attn.q_proj.weight", true, false}, {".self_attn.q_proj.bias", true, false},
    {".self_attn.q_norm.weight", true, false}, {".self_attn.query_layernorm.weight", true, false},
    {".self_attn.k_proj.weight", true, true},  {".self_attn.k_proj.bias", true, true},
    {".self_attn.k_norm.weight", true, false}, {".self_attn.key_layernorm.weight", true, false},
    {".self_attn.v_proj.weight", false, true}, {".self_attn.v_proj.bias", false, true},
};

/* NULL: the tensor's rows stay. */
static const struct row_order *find_order(str name)
{
    for (size_t i = 0; i < sizeof row_orders / sizeof *row_orders; i++)
        if (str_ends(name, str_from(row_orders[i].end)))
            return &row_orders[i];
    return NULL;
}

/* An address for each row.  n_bytes has been checked, so each has the same number of blocks. */
static mpk_status order_weight(mpk_context *cx, arena *a, load_order o, int64_t rows,
                               load_tensor *t)
{
    const uint64_t row_bytes = t->n_bytes / (uint64_t)t->dims[0];
    const void **old = t->parts;
    NEW(cx, a, t->parts, (size_t)rows);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t from = o.find(o.of, i);
        t->parts[i] = old ? old[from] : (const char *)t->data + (uint64_t)from * row_bytes;
    }
    t->data = NULL;
    t->n_bytes = row_bytes * (uint64_t)rows;
    return MPK_OK;
}

/* A vector is a single row, so its entries move; blocks do not allow that. */
static mpk_status order_vector(mpk_context *cx, arena *a, load_order o, int64_t rows,
                               load_tensor *t)
{
    const ir_dtype_info *info = &ir_dtype_table[t->dtype];
    char *to;
    CHECK(cx, info->block_elements == 1, MPK_EUNSUPPORTED,
          "tensor %.*s is a %s of %s: it must be F32, F16 or BF16", LOAD_NAME(t->name),
          str_ends(t->name, STR(".bias")) ? "bias" : "norm", info->name);
    t->n_bytes = (uint64_t)rows * info->block_bytes;
    NEW(cx, a, to, t->n_bytes);
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + (size_t)i * info->block_bytes,
               (const char *)t->data + (size_t)o.find(o.of, i) * info->block_bytes,
               info->block_bytes);
    t->data = to;
    return MPK_OK;
}

mpk_status load_order_rows(mpk_context *cx, arena *a, load_order o, int64_t rows, load_tensor *t)
{
    TRY(t->rank == 1 ? order_vector(cx, a, o, rows, t) : order_weight(cx, a, o, rows, t));
    t->dims[0] = rows;
    return MPK_OK;
}

/* The least number of times that makes a group small enough; 1: it is, or no number up to
 * MOST_TIMES does. */
static uint32_t find_times(uint32_t group, uint32_t most)
{
    enum { MOST_TIMES = 4 };
    for (uint32_t times = 1; times <= MOST_TIMES; times++)
        if (group % times == 0 && group / times <= most)
            return times;
    return 1;
}

/* A norm over all heads of k would have to stand for all of them, too; such models have no fast
 * body for their attention anyway. */
static bool has_wide_norm(const load_model *m)
{
    const load_tensor *t = load_find(m, "model.layers.0.self_attn.k_norm.weight");
    return t && t->dims[0] != m->config.head_size;
}

static uint32_t times_of(const load_model *m, uint32_t most_group)
{
    const model_config *c = &m->config;
    if (!most_group || c->latent_size || c->n_heads % c->n_kv_heads || has_wide_norm(m))
        return 1;
    return find_times(c->n_heads / c->n_kv_heads, most_group);
}

/* A tensor that does not consist of whole heads stays; building the program refuses it by name. */
static mpk_status order_tensor(mpk_context *cx, load_model *m, load_tensor *t)
{
    const model_config *c = &m->config;
    const struct row_order *r = find_order(t->name);
    const bool rotated = r && r->rotated && model_plain_pairs(c),
               repeated = r && r->repeated && c->kv_times > 1;
    if ((!rotated && !repeated) || t->dims[0] % c->head_size)
        return MPK_OK;
    const heads_order o = {c->head_size, rotated ? c->rope_size : c->head_size,
                           repeated ? c->kv_times : 1};
    return load_order_rows(cx, &m->arena, (load_order){find_row, &o}, t->dims[0] * o.times, t);
}

mpk_status load_order_heads(mpk_context *cx, load_model *m, uint32_t most_group)
{
    if (!m->has_config)
        return MPK_OK;
    m->config.kv_times = times_of(m, most_group);
    for (size_t i = 0; i < m->tensors.n; i++)
        TRY(order_tensor(cx, m, &m->tensors.at[i]));
    return MPK_OK;
}
