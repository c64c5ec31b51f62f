/* gguf_rope.c - the rows of q and k of a GGUF file of the Llama architecture, in the order of
 * Hugging Face checkpoints.
 *
 * Rope rotates pairs of a head's entries.  Checkpoints, and every body here, pair entry i with
 * entry i + R/2 of the R rotated entries.  Files of the Llama architecture store the rows of
 * q_proj and k_proj, and their biases, in an order in which entries 2i and 2i + 1 are a pair.
 * Scores are sums over a head, so the order of its entries does not matter as long as q and k
 * agree; the rows are put back when the file is opened, so no other code needs to know the
 * file's order.
 *
 * A head of 8 rows, all rotated:
 *
 *   row of the checkpoint   0  1  2  3  4  5  6  7
 *   row of the file         0  2  4  6  1  3  5  7
 *
 * Input: tensors in the mapping.  Output: for a weight, the address of each row
 * (load_tensor.parts), since a row is whole blocks of any format; nothing is copied.  For a
 * bias, a copy in the model's arena.
 *
 * Called by gguf.c after the hyper-parameters are filled; gguf_find_rows and gguf_row_from are
 * the inverse, for quantize.c.
 */
#include "load/gguf.h"

/* The row of the file that becomes row `row`.  A head has `size` rows, of which the first
 * `turned` are rotated. */
static int64_t find_row(int64_t row, int64_t size, int64_t turned)
{
    int64_t head = row / size * size, i = row % size, half = turned / 2;
    if (i >= turned)
        return row;
    return head + (i < half ? 2 * i : 2 * (i - half) + 1);
}

/* n_bytes has been checked, so each row has the same number of whole blocks. */
static mpk_status order_weight(mpk_context *cx, arena *a, const model_config *c, load_tensor *t)
{
    const char *bytes = t->data;
    uint64_t row_bytes = t->n_bytes / (uint64_t)t->dims[0];
    NEW(cx, a, t->parts, (size_t)t->dims[0]);
    for (int64_t i = 0; i < t->dims[0]; i++)
        t->parts[i] = bytes + (uint64_t)find_row(i, c->head_size, c->rope_size) * row_bytes;
    t->data = NULL;
    return MPK_OK;
}

/* A bias is a single row, so its elements move; blocks do not allow that. */
static mpk_status order_bias(mpk_context *cx, arena *a, const model_config *c, load_tensor *t)
{
    const ir_dtype_info *info = &ir_dtype_table[t->dtype];
    const char *from = t->data;
    char *to;
    CHECK(cx, info->block_elements == 1, MPK_EUNSUPPORTED,
          "tensor %.*s is a bias of %s: it must be F32, F16 or BF16", LOAD_NAME(t->name),
          info->name);
    NEW(cx, a, to, t->n_bytes);
    for (int64_t i = 0; i < t->dims[0]; i++)
        memcpy(to + (size_t)i * info->block_bytes,
               from + (size_t)find_row(i, c->head_size, c->rope_size) * info->block_bytes,
               info->block_bytes);
    t->data = to;
    return MPK_OK;
}

/* Tensors with an unexpected shape count as in order: building the program refuses them by name. */
gguf_rows gguf_find_rows(const model_config *c, const load_tensor *t)
{
    bool q = str_ends(t->name, STR(".self_attn.q_proj.weight")) ||
             str_ends(t->name, STR(".self_attn.q_proj.bias"));
    bool k = str_ends(t->name, STR(".self_attn.k_proj.weight")) ||
             str_ends(t->name, STR(".self_attn.k_proj.bias"));
    if ((!q && !k) || t->dims[0] != (int64_t)c->head_size * (q ? c->n_heads : c->n_kv_heads))
        return (gguf_rows){0};
    return (gguf_rows){c->head_size, c->rope_size};
}

/* Of a head of 8 turned rows the file's rows 0 1 2 3 4 5 6 7 are the checkpoint's 0 4 1 5 2 6 3 7:
 * halves become neighbours. Rows beyond `turned` stay. */
int64_t gguf_row_from(const gguf_rows *rows, int64_t row)
{
    int64_t i = rows->head ? row % rows->head : 0;
    if (!rows->head || i >= rows->turned)
        return row;
    return row - i + i / 2 + (i % 2 ? rows->turned / 2 : 0);
}

/* Once, at loading, so that there is one form of rotation in all bodies. Rows of block formats are
 * moved whole: blocks lie within a row. */
mpk_status gguf_order_rope_rows(mpk_context *cx, load_model *m)
{
    const model_config *c = &m->config;
    for (size_t i = 0; i < m->tensors.n; i++) {
        load_tensor *t = &m->tensors.at[i];
        if (!gguf_find_rows(c, t).head)
            continue;
        if (t->rank == 1)
            TRY(order_bias(cx, &m->arena, c, t));
        else
            TRY(order_weight(cx, &m->arena, c, t));
    }
    return MPK_OK;
}
