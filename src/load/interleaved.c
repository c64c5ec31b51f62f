/* interleaved.c - the experts of checkpoints that hold them by columns, in the form that programs
 * ask for.
 *
 * Input: the tensors of a folder of the family (model_def.expert_layout).  Rows of gate and up
 * alternate in gpt-oss, in other families gate comes first; gpt-oss also has them as 4-bit numbers
 * with a scale for 32 of a row:
 *
 *   model.layers.L.mlp.experts.gate_up_proj [E, D, 2F]    down_proj [E, F, D]
 *   ...gate_up_proj_blocks u8[E, 2F, D/32, 16], ...gate_up_proj_scales u8[E, 2F, D/32]
 *   ...down_proj_blocks, ...down_proj_scales              likewise, [E, D, F/32 ..]
 *   ...gate_up_proj_bias [E, 2F]                          down_proj_bias [E, D]
 *
 * Output: ...experts.{gate_proj,up_proj,down_proj}.{weight,bias}, by rows, copied into the model's
 * arena; 4-bit numbers as GGUF's MXFP4, whose byte j of 16 holds the numbers j and j + 16 of a
 * block where here it holds 2 j and 2 j + 1.  Both stand for the same values.  Other names change
 * to those of other families: mlp.router -> mlp.gate, self_attn.sinks -> self_attn.sinks.weight.
 *
 * Called by hf_weights.c; GGUF files hold the output's form.
 */
#include <stdio.h>

#include "load/load.h"

enum { BLOCK = 32, BLOCK_BYTES = 17, PACKED = 16 };

/* Which rows of a tensor become one of the results: each step-th, from number `part` on, or with
 * halves one after the other the `part`-th of `step` equal ranges. */
typedef struct rows {
    const char *name; /* of the result, after the stem */
    int64_t part, step;
    bool ranges;
} rows;

/* The row of a tensor of n rows that becomes row i of the result. */
static int64_t find_row(const rows *r, int64_t n, int64_t i)
{
    return r->ranges ? r->part * (n / r->step) + i : r->part + r->step * i;
}

/* The products of an expert as checkpoints name them, and their results. */
static const struct product {
    const char *name;
    rows results[2];
    int n_results;
} products[] = {
    {"gate_up_proj", {{"gate_proj", 0, 2, false}, {"up_proj", 1, 2, false}}, 2},
    {"down_proj", {{"down_proj", 0, 1, false}}, 1},
};

/* The name of a tensor of a layer's experts: stem, name of the product, end. */
typedef struct expert_name {
    str stem; /* to the dot after "mlp.experts" */
    const struct product *product;
    str end;
} expert_name;

/* False: it is not the name of such a tensor. */
static bool cut_name(str name, expert_name *out)
{
    static const char middle[] = ".mlp.experts.";
    const size_t n = sizeof middle - 1;
    for (size_t i = 0; i + n < name.n; i++) {
        if (memcmp(name.at + i, middle, n) != 0)
            continue;
        const str part = {name.at + i + n, name.n - i - n};
        for (size_t p = 0; p < sizeof products / sizeof *products; p++) {
            const str start = str_from(products[p].name);
            if (str_begins(part, start)) {
                *out = (expert_name){
                    {name.at, i + n}, &products[p], {part.at + start.n, part.n - start.n}};
                return true;
            }
        }
    }
    return false;
}

/* An empty result of a tensor; its bytes are in the arena. */
static mpk_status begin(mpk_context *cx, load_model *m, const expert_name *from, const rows *r,
                        const char *end, load_tensor *t, char **bytes)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s", r->name, end);
    TRY(load_make_name(cx, &m->arena, from->stem, name, &t->name));
    TRY(load_tensor_bytes(cx, t, &t->n_bytes));
    NEW(cx, &m->arena, *bytes, (size_t)t->n_bytes);
    t->data = *bytes;
    return MPK_OK;
}

/* Plain weights [E, columns, rows] -> [E, rows / step, columns]. */
static mpk_status add_transposed(mpk_context *cx, load_model *m, const load_tensor *t,
                                 const expert_name *from, const rows *r)
{
    CHECK(cx,
          t->rank == 3 && t->dims[0] == m->config.n_experts && t->dims[2] % r->step == 0 &&
              ir_dtype_table[t->dtype].block_elements == 1,
          MPK_ESHAPE, "tensor %.*s does not have the shape [%u experts, columns, rows]",
          LOAD_NAME(t->name), m->config.n_experts);
    const int64_t E = t->dims[0], K = t->dims[1], N = t->dims[2] / r->step;
    const size_t size = ir_dtype_table[t->dtype].block_bytes;
    load_tensor out = {.dtype = t->dtype, .rank = 3, .dims = {E, N, K}};
    char *bytes;
    TRY(begin(cx, m, from, r, ".weight", &out, &bytes));
    for (int64_t e = 0; e < E; e++)
        for (int64_t n = 0; n < N; n++)
            for (int64_t k = 0; k < K; k++, bytes += size)
                memcpy(bytes,
                       (const char *)t->data +
                           (size_t)((e * K + k) * t->dims[2] + find_row(r, t->dims[2], n)) * size,
                       size);
    return load_add_tensor(cx, m, &out);
}

/* Biases [E, rows] -> [E, rows / step]. */
static mpk_status add_biases(mpk_context *cx, load_model *m, const load_tensor *t,
                             const expert_name *from, const rows *r)
{
    CHECK(cx,
          t->rank == 2 && t->dims[0] == m->config.n_experts && t->dims[1] % r->step == 0 &&
              ir_dtype_table[t->dtype].block_elements == 1,
          MPK_ESHAPE, "tensor %.*s does not have the shape [%u experts, rows]", LOAD_NAME(t->name),
          m->config.n_experts);
    const int64_t N = t->dims[1] / r->step;
    const size_t size = ir_dtype_table[t->dtype].block_bytes;
    load_tensor out = {.dtype = t->dtype, .rank = 2, .dims = {t->dims[0], N}};
    char *bytes;
    TRY(begin(cx, m, from, r, ".bias", &out, &bytes));
    for (int64_t i = 0; i < t->dims[0] * N; i++, bytes += size)
        memcpy(bytes,
               (const char *)t->data +
                   (size_t)(i / N * t->dims[1] + find_row(r, t->dims[1], i % N)) * size,
               size);
    return load_add_tensor(cx, m, &out);
}

/* The scales that belong to blocks: another tensor of the checkpoint. */
static mpk_status find_scales(mpk_context *cx, const load_model *old, const load_tensor *blocks,
                              const load_tensor **out)
{
    static const char end[] = "_blocks";
    char name[192];
    snprintf(name, sizeof name, "%.*s_scales", (int)(blocks->name.n - (sizeof end - 1)),
             blocks->name.at);
    *out = load_find(old, name);
    CHECK(cx, *out, MPK_EFORMAT, "tensor %s is missing", name);
    CHECK(cx,
          (*out)->dtype == IR_U8 && (*out)->rank == 3 &&
              memcmp((*out)->dims, blocks->dims, 3 * sizeof *blocks->dims) == 0,
          MPK_ESHAPE, "tensor %s does not have a scale for each block of %.*s", name,
          LOAD_NAME(blocks->name));
    return MPK_OK;
}

/* One block: its scale, then its numbers in GGUF's order. */
static void put_block(const unsigned char *numbers, unsigned char scale, unsigned char *to)
{
    to[0] = scale;
    for (int i = 0; i < PACKED; i++) {
        const int low = i, high = i + PACKED; /* of 32 numbers, two a byte here, even ones low */
        to[1 + i] = (unsigned char)((numbers[low / 2] >> low % 2 * 4 & 15) |
                                    (numbers[high / 2] >> high % 2 * 4 & 15) << 4);
    }
}

/* 4-bit weights [E, rows, blocks, 16] -> mxfp4[E, rows / step, 32 blocks]. */
static mpk_status add_blocks(mpk_context *cx, load_model *m, const load_model *old,
                             const load_tensor *t, const expert_name *from, const rows *r)
{
    const load_tensor *scales;
    CHECK(cx,
          t->dtype == IR_U8 && t->rank == 4 && t->dims[0] == m->config.n_experts &&
              t->dims[1] % r->step == 0 && t->dims[3] == PACKED,
          MPK_ESHAPE, "tensor %.*s does not have the shape u8[%u experts, rows, blocks, 16]",
          LOAD_NAME(t->name), m->config.n_experts);
    TRY(find_scales(cx, old, t, &scales));
    const int64_t E = t->dims[0], N = t->dims[1] / r->step, B = t->dims[2];
    load_tensor out = {.dtype = IR_MXFP4, .rank = 3, .dims = {E, N, B * BLOCK}};
    char *bytes;
    TRY(begin(cx, m, from, r, ".weight", &out, &bytes));
    for (int64_t i = 0; i < E * N; i++) {
        const int64_t row = i / N * t->dims[1] + find_row(r, t->dims[1], i % N);
        for (int64_t b = 0; b < B; b++, bytes += BLOCK_BYTES)
            put_block((const unsigned char *)t->data + (row * B + b) * PACKED,
                      ((const unsigned char *)scales->data)[row * B + b], (unsigned char *)bytes);
    }
    return load_add_tensor(cx, m, &out);
}

/* Does the tensor lie by rows after all? */
static bool lies_by_rows(const model_config *c, const load_tensor *t, const expert_name *name)
{
    int64_t n = c->hidden_size, k = c->expert_ffn_size; /* rows and columns */
    if (name->product->n_results == 2)
        n = 2 * k, k = c->hidden_size;
    return t->rank == 3 && t->dims[1] == n && t->dims[2] == k;
}

/* The results of a tensor of experts; *known false: its name has another end than those above. */
static mpk_status add_results(mpk_context *cx, load_model *m, const load_model *old,
                              const load_tensor *t, const expert_name *from, bool ranges,
                              bool *known)
{
    const str end = from->end;
    *known =
        str_is(end, "") || str_is(end, "_bias") || str_is(end, "_blocks") || str_is(end, "_scales");
    for (int i = 0; *known && i < from->product->n_results; i++) {
        rows part = from->product->results[i];
        const rows *r = &part;
        part.ranges = ranges;
        if (str_is(end, ""))
            TRY(add_transposed(cx, m, t, from, r));
        else if (str_is(end, "_bias"))
            TRY(add_biases(cx, m, t, from, r));
        else if (str_is(end, "_blocks"))
            TRY(add_blocks(cx, m, old, t, from, r));
    }
    return MPK_OK;
}

mpk_status load_rename_plain(mpk_context *cx, arena *a, str *name)
{
    static const char *const ends[][2] = {{".mlp.router.weight", ".mlp.gate.weight"},
                                          {".mlp.router.bias", ".mlp.gate.bias"},
                                          {".self_attn.sinks", ".self_attn.sinks.weight"}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (str_ends(*name, str_from(ends[i][0])))
            return load_make_name(cx, a, (str){name->at, name->n - strlen(ends[i][0])}, ends[i][1],
                                  name);
    return MPK_OK;
}

/* The list of tensors is made anew. */
mpk_status load_part_interleaved(mpk_context *cx, load_model *m)
{
    const load_model old = *m;
    const model_def *def;
    TRY(model_find(cx, m->config.family, &def));
    load_empty_list(m);
    for (size_t i = 0; i < old.tensors.n; i++) {
        load_tensor t = old.tensors.at[i];
        expert_name name;
        bool known = false;
        const bool ranges = def->expert_layout != MODEL_EXPERTS_INTERLEAVED,
                   either = def->expert_layout == MODEL_EXPERTS_EITHER;
        if (cut_name(t.name, &name) && !(either && lies_by_rows(&m->config, &t, &name)))
            TRY(add_results(cx, m, &old, &t, &name, ranges, &known));
        if (known)
            continue;
        TRY(load_rename_plain(cx, &m->arena, &t.name));
        TRY(load_add_tensor(cx, m, &t));
    }
    return MPK_OK;
}
