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
#include <stdio.h>

#include "load/gguf.h"

/* The row of the file that becomes row `row`. */
static int64_t find_row(const void *of, int64_t row)
{
    const gguf_rows *rows = of;
    int64_t i = row % rows->head - rows->plain, half = rows->rotated / 2;
    if (i < 0 || i >= rows->rotated)
        return row;
    return row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
}

/* Is it the weight or the bias of this projection of attention? */
static bool is_of(str name, const char *projection)
{
    static const char *const ends[] = {"weight", "bias"};
    char end[64];
    bool found = false;
    for (int i = 0; i < 2; i++) {
        snprintf(end, sizeof end, ".self_attn.%s.%s", projection, ends[i]);
        found = found || str_ends(name, str_from(end));
    }
    return found;
}

/* With latent attention the last rows of each head of the query are rotated, and of what is cached
 * those after the latent. */
static gguf_rows find_latent_rows(const model_config *c, const load_tensor *t)
{
    const int64_t R = c->rope_size, K = c->head_size, L = c->latent_size;
    const char *query = c->query_latent_size ? "q_b_proj" : "q_proj";
    if (is_of(t->name, query) && t->dims[0] == K * c->n_heads)
        return (gguf_rows){K, R, K - R};
    if (is_of(t->name, "kv_a_proj_with_mqa") && t->dims[0] == L + R)
        return (gguf_rows){L + R, R, L};
    return (gguf_rows){0};
}

/* Tensors with an unexpected shape count as in order: building the program refuses them by name. */
gguf_rows gguf_find_rows(const model_config *c, const load_tensor *t)
{
    if (c->latent_size)
        return find_latent_rows(c, t);
    bool q = is_of(t->name, "q_proj"), k = is_of(t->name, "k_proj");
    if ((!q && !k) || t->dims[0] != (int64_t)c->head_size * (q ? c->n_heads : c->n_kv_heads))
        return (gguf_rows){0};
    return (gguf_rows){c->head_size, c->rope_size, 0};
}

/* Of a head of 8 rotated rows the file's rows 0 1 2 3 4 5 6 7 are the checkpoint's 0 4 1 5 2 6 3 7:
 * halves become neighbours. Rows before and after the rotated ones stay. */
int64_t gguf_row_from(const gguf_rows *rows, int64_t row)
{
    int64_t i = rows->head ? row % rows->head - rows->plain : 0;
    if (!rows->head || i < 0 || i >= rows->rotated)
        return row;
    return row - i + i / 2 + (i % 2 ? rows->rotated / 2 : 0);
}

mpk_status gguf_order_rope_tensor(mpk_context *cx, arena *a, const model_config *c, load_tensor *t)
{
    const gguf_rows rows = gguf_find_rows(c, t);
    if (!rows.head)
        return MPK_OK;
    return load_order_rows(cx, a, (load_order){find_row, &rows}, t->dims[0], t);
}

/* Once, at loading, so that there is one form of rotation in all bodies. Rows of block formats are
 * moved whole: blocks lie within a row. */
mpk_status gguf_order_rope_rows(mpk_context *cx, load_model *m)
{
    for (size_t i = 0; i < m->tensors.n; i++)
        TRY(gguf_order_rope_tensor(cx, &m->arena, &m->config, &m->tensors.at[i]));
    return MPK_OK;
}
