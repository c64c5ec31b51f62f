/* latent.c - the weights that make keys and values of latents, each head's apart (DeepSeek's MLA).
 *
 *   model.layers.L.self_attn.kv_b_proj.weight [H (N + V), L]
 *     -> k_b_proj.weight [H, L, N], the first N rows of each head, transposed
 *        v_b_proj.weight [H, V, L], the other rows
 *
 * N: entries of a key that are not rotated; V: of a value; L: of a latent.  Newer GGUF files hold
 * the two parts, which pass unchanged; checkpoints and older files the whole.  Values are addresses
 * of rows, whatever their format.  Keys are transposed, since a latent's entries become the columns
 * (decoder_latent_attention): in the model's arena, in the file's dtype if it is a plain one, else
 * unpacked to f16, whose rounding is far finer than that of blocks.
 *
 * Called by load.c for a family with latent attention, after rows are in order.
 */
#include <stdio.h>

#include "base/num.h"
#include "ir/blocks.h"
#include "load/load.h"

static const char whole[] = ".self_attn.kv_b_proj.weight";

/* The tensor's name with another part in the place of the whole. */
static mpk_status name_part(mpk_context *cx, arena *a, str name, const char *part, str *out)
{
    char renamed[160];
    int n = snprintf(renamed, sizeof renamed, "%.*s.self_attn.%s.weight",
                     (int)(name.n - (sizeof whole - 1)), name.at, part);
    CHECK(cx, n > 0 && (size_t)n < sizeof renamed, MPK_EFORMAT, "the name %.*s is too long",
          LOAD_NAME(name));
    *out = (str){arena_copy(a, renamed, (size_t)n), (size_t)n};
    CHECK(cx, out->at, MPK_ENOMEM, "out of memory for a tensor's name");
    return MPK_OK;
}

/* Values: the rows of each head after those of its keys. */
static mpk_status add_values(mpk_context *cx, load_model *m, const load_tensor *t)
{
    const model_config *c = &m->config;
    const int64_t H = c->n_heads, V = c->value_size, N = c->head_size - c->rope_size;
    const uint64_t row_bytes = t->n_bytes / (uint64_t)t->dims[0];
    load_tensor part = {.dtype = t->dtype, .rank = 3, .dims = {H, V, c->latent_size}};
    part.n_bytes = row_bytes * (uint64_t)(H * V);
    TRY(name_part(cx, &m->arena, t->name, "v_b_proj", &part.name));
    NEW(cx, &m->arena, part.parts, (size_t)H);
    for (int64_t h = 0; h < H; h++)
        part.parts[h] = (const char *)t->data + (uint64_t)(h * (N + V) + N) * row_bytes;
    return load_add_tensor(cx, m, &part);
}

/* Keys of block formats: unpacked row by row, and put down the columns. */
static mpk_status unpack_keys(mpk_context *cx, load_model *m, const load_tensor *t, uint16_t *to)
{
    const model_config *c = &m->config;
    const int64_t H = c->n_heads, L = c->latent_size, N = c->head_size - c->rope_size;
    const uint64_t row_bytes = t->n_bytes / (uint64_t)t->dims[0];
    float *row;
    NEW(cx, &m->arena, row, (size_t)L);
    for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < N; i++) {
            const int64_t from = h * (N + c->value_size) + i;
            CHECK(cx,
                  blocks_unpack_row(t->dtype, (const char *)t->data + (uint64_t)from * row_bytes, L,
                                    row),
                  MPK_EUNSUPPORTED, "the weight %.*s cannot be unpacked", LOAD_NAME(t->name));
            for (int64_t k = 0; k < L; k++)
                to[(h * L + k) * N + i] = num_to_f16(row[k]);
        }
    return MPK_OK;
}

/* Keys, whose elements have so many bytes, transposed. */
static void transpose_keys(const model_config *c, const load_tensor *t, size_t bytes, char *to)
{
    const int64_t H = c->n_heads, L = c->latent_size, N = c->head_size - c->rope_size;
    const char *from = t->data;
    for (int64_t h = 0; h < H; h++)
        for (int64_t k = 0; k < L; k++)
            for (int64_t i = 0; i < N; i++)
                memcpy(to + (size_t)((h * L + k) * N + i) * bytes,
                       from + (size_t)((h * (N + c->value_size) + i) * L + k) * bytes, bytes);
}

static mpk_status add_keys(mpk_context *cx, load_model *m, const load_tensor *t)
{
    const model_config *c = &m->config;
    const int64_t H = c->n_heads, L = c->latent_size, N = c->head_size - c->rope_size;
    const bool is_plain = ir_dtype_table[t->dtype].block_elements == 1;
    load_tensor part = {.dtype = is_plain ? t->dtype : IR_F16, .rank = 3, .dims = {H, L, N}};
    const size_t bytes = ir_dtype_table[part.dtype].block_bytes;
    char *to;
    part.n_bytes = (uint64_t)(H * L * N) * bytes;
    TRY(name_part(cx, &m->arena, t->name, "k_b_proj", &part.name));
    NEW(cx, &m->arena, to, part.n_bytes);
    part.data = to;
    if (is_plain)
        transpose_keys(c, t, bytes, to);
    else
        TRY(unpack_keys(cx, m, t, (uint16_t *)(void *)to));
    return load_add_tensor(cx, m, &part);
}

static mpk_status split(mpk_context *cx, load_model *m, const load_tensor *t)
{
    const model_config *c = &m->config;
    const int64_t rows = (int64_t)c->n_heads * (c->head_size - c->rope_size + c->value_size);
    CHECK(cx, t->rank == 2 && t->dims[0] == rows && t->dims[1] == c->latent_size && t->data,
          MPK_ESHAPE, "the weight %.*s does not have the shape [%lld, %u]", LOAD_NAME(t->name),
          (long long)rows, c->latent_size);
    TRY(add_keys(cx, m, t));
    return add_values(cx, m, t);
}

/* The list is made anew, since parts take the place of the whole. */
mpk_status load_split_latent(mpk_context *cx, load_model *m)
{
    const load_tensor *old = m->tensors.at;
    const size_t n = m->tensors.n;
    if (!m->config.latent_size)
        return MPK_OK;
    load_empty_list(m);
    for (size_t i = 0; i < n; i++)
        TRY(str_ends(old[i].name, str_from(whole)) ? split(cx, m, &old[i])
                                                   : load_add_tensor(cx, m, &old[i]));
    return MPK_OK;
}
