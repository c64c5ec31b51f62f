/* engine_blocks.c - in which dtypes a graph has its weights, and which stay in the blocks of a GGUF
 * file on a target that works in bf16 (mpk_engine_options.keep_blocks).
 *
 * Kept are matrices of layers, experts and the head, which products alone read.  Products of the
 * same x become one, and one product holds weights of one kind (target_def.block_kind).  Those of
 * one x have equal columns and stand in one layer: if two matrices of a layer with equal columns
 * differ in kind, all of them are unpacked.  Apart from these are a layer's router, whose x is
 * another; gate and up of its experts, which are one product; and the experts' last product.  So
 * that each product of experts has a body, their rows come by eights and they are no more than a
 * worker's threads.  An embedding that is the head too is unpacked, since its rows are read as
 * well.
 *
 * GGUF files have routers in f32, whose products have no fast bodies on such a target.  If all
 * numbers of one are bf16 ones, as those of a model that was trained in bf16 are, it becomes bf16
 * too: nothing is rounded.  Called by engine_model.c.
 */
#include <stdio.h>

#include "engine/engine.h"
#include "load/quantize.h"

/* "model.layers.3." of a weight of layer 3; empty: it is of none. */
static str layer_of(str name)
{
    const str begin = STR("model.layers.");
    size_t n = begin.n;
    if (name.n <= n || memcmp(name.at, begin.at, n) != 0)
        return (str){0};
    while (n < name.n && name.at[n] != '.')
        n++;
    return (str){name.at, n < name.n ? n + 1 : 0};
}

/* Products of a layer whose weights are never one operator's: other matrices, a router, which reads
 * what experts read, gate and up of experts, and the product that sums them. */
typedef enum group { MATRICES, ROUTER, EXPERTS, SUMS, GROUPS } group;
static const char *const group_names[GROUPS] = {"", "router ", "experts ", "sums "};

/* GROUPS: the weight is no operand of a product that takes blocks. */
static group group_of(str layer, str name, uint32_t rank)
{
    const str part = {name.at + layer.n, name.n - layer.n};
    if (rank == 3 && str_begins(part, STR("mlp.experts.")))
        return str_ends(part, STR(".down_proj.weight")) ? SUMS : EXPERTS;
    if (rank != 2)
        return GROUPS;
    return str_is(part, "mlp.gate.weight") || str_is(part, "mlp.shared_expert_gate.weight")
               ? ROUTER
               : MATRICES;
}

/* The last parts of names, and what the rules of mixes (load/quantize.h) call them. */
static const char *const gguf_parts[][2] = {{".v_proj.weight", "attn_v"},
                                            {".k_proj.weight", "attn_k"},
                                            {".o_proj.weight", "attn_output"},
                                            {".down_proj.weight", "ffn_down"}};

/* A made-up weight of a mix: by the rules that a file of this type follows. */
static ir_dtype choose_of_mix(const engine_dtypes *d, str name, uint32_t rank, const int64_t *dims)
{
    const model_config *c = &d->model->config;
    const quantize_facts facts = {.mix = d->mix, .config = c, .tied = c->tied_embeddings};
    const str layer = layer_of(name);
    char as[64] = "token_embd.weight";
    if (str_is(name, "lm_head.weight"))
        snprintf(as, sizeof as, "output.weight");
    if (layer.n) {
        const char *part = str_ends(name, STR(".mlp.gate.weight")) ? "ffn_gate_inp" : "other";
        for (size_t i = 0; i < sizeof gguf_parts / sizeof *gguf_parts; i++)
            if (str_ends(name, str_from(gguf_parts[i][0])))
                part = gguf_parts[i][1];
        const int begin = (int)STR("model.layers.").n; /* the number, then a point */
        snprintf(as, sizeof as, "blk.%.*s%s.weight", (int)layer.n - begin, layer.at + begin, part);
    }
    return rank < 2 ? IR_F32 : quantize_choose(&facts, str_from(as), rank, dims);
}

/* A made-up weight of a model whose own is `plain`: of a mix, or of experts that stay in blocks
 * what the configuration says of a checkpoint's (gpt-oss). */
static ir_dtype make_up(const engine_dtypes *d, str name, uint32_t rank, const int64_t *dims,
                        ir_dtype plain)
{
    const str layer = layer_of(name);
    if (d->mix)
        return choose_of_mix(d, name, rank, dims);
    if (d->keeps && d->model->scheme.method == LOAD_MXFP4 && rank == 3 && layer.n &&
        group_of(layer, name, rank) != GROUPS)
        return IR_MXFP4;
    return plain;
}

/* Of the file, or made up. */
static mpk_status own_dtype(mpk_context *cx, const engine_dtypes *d, const char *name,
                            uint32_t rank, const int64_t *dims, ir_dtype *dtype)
{
    const model_weights file = load_weights(d->model);
    TRY(file.dtype(cx, file.self, name, rank, dims, dtype));
    if (!d->model->tensors.n)
        *dtype = make_up(d, str_from(name), rank, dims, *dtype);
    return MPK_OK;
}

/* ---- what is kept ---- */

static uint32_t kind_of(const engine_dtypes *d, ir_dtype dtype, uint32_t rank)
{
    return d->target->block_kind ? d->target->block_kind(dtype, rank == 3) : 0;
}

/* Key of a layer's matrices of a group and so many columns.  A layer's name that is longer than any
 * shares its key with others, whose matrices are then unpacked unless all are of one kind. */
enum { KEY_BYTES = 96 };
static str key_of(str layer, group of, int64_t columns, char *key)
{
    const int n = snprintf(key, KEY_BYTES, "%s%lld %.*s", group_names[of], (long long)columns,
                           STR_ARG(layer));
    return (str){key, n < KEY_BYTES ? (size_t)n : KEY_BYTES - 1};
}

/* The kind of all matrices of the file that could be multiplied together, for each layer, group and
 * number of columns; 0: they differ, or have none. */
static mpk_status gather_kinds(mpk_context *cx, arena *a, engine_dtypes *d)
{
    for (size_t i = 0; d->keeps && i < d->model->tensors.n; i++) {
        const load_tensor *t = &d->model->tensors.at[i];
        const str layer = layer_of(t->name);
        char key[KEY_BYTES];
        const group of = layer.n ? group_of(layer, t->name, t->rank) : GROUPS;
        if (of == GROUPS)
            continue;
        str k = key_of(layer, of, t->dims[t->rank - 1], key);
        uint64_t kind = kind_of(d, t->dtype, t->rank), before;
        const bool known = map_get(&d->kinds, k, &before);
        if (known && before == kind)
            continue;
        k.at = arena_copy(a, key, k.n);
        CHECK(cx, k.at, MPK_ENOMEM, "out of memory for the layers of a file");
        TRY(map_put(cx, a, &d->kinds, k, known ? 0 : kind));
    }
    return MPK_OK;
}

static bool agree_in_file(const engine_dtypes *d, str layer, group of, int64_t columns,
                          uint32_t kind)
{
    char key[KEY_BYTES];
    uint64_t found;
    return map_get(&d->kinds, key_of(layer, of, columns, key), &found) && found == kind;
}

/* The same of a mix: only projections of keys and values differ from others of their columns. */
static bool agree_in_mix(const engine_dtypes *d, str layer, group of, const int64_t *dims,
                         uint32_t kind)
{
    for (size_t i = 0; of == MATRICES && i < sizeof gguf_parts / sizeof *gguf_parts; i++) {
        char name[96];
        snprintf(name, sizeof name, "%.*sany%s", STR_ARG(layer), gguf_parts[i][0]);
        if (kind_of(d, choose_of_mix(d, str_from(name), 2, dims), 2) != kind)
            return false;
    }
    return true;
}

/* What bodies for experts in blocks take (gen/body_expert_stream.c). */
enum { EXPERT_ROWS = 8, MOST_EXPERTS = 256 };

/* Does a matrix of this name and shape, or a stack of experts', stay in its blocks? */
static bool is_kept_as(const engine_dtypes *d, str name, uint32_t rank, const int64_t *dims,
                       ir_dtype dtype)
{
    const uint32_t kind = kind_of(d, dtype, rank);
    const str layer = layer_of(name);
    if (!d->keeps || !kind)
        return false;
    if (str_is(name, "lm_head.weight"))
        return !d->model->config.tied_embeddings;
    const group of = layer.n ? group_of(layer, name, rank) : GROUPS;
    if (of == GROUPS || !str_ends(name, STR(".weight")) ||
        (rank == 3 && (dims[1] % EXPERT_ROWS || dims[0] > MOST_EXPERTS)))
        return false;
    return d->model->tensors.n ? agree_in_file(d, layer, of, dims[rank - 1], kind)
                               : agree_in_mix(d, layer, of, dims, kind);
}

/* ---- routers ---- */

static bool is_router(str name, uint32_t rank)
{
    const str layer = layer_of(name);
    return layer.n && group_of(layer, name, rank) == ROUTER;
}

/* Are all numbers of an f32 tensor bf16 ones? */
static bool has_halves(const load_tensor *t)
{
    const char *at = t->data;
    uint32_t bits = 0;
    for (uint64_t i = 0; i < t->n_bytes && !(bits & 0xffff); i += sizeof bits)
        memcpy(&bits, at + i, sizeof bits);
    return at && !(bits & 0xffff);
}

/* The file's routers in f32 whose numbers are bf16 ones; of a file all in f32 none, since its
 * activations are f32 too. */
static mpk_status gather_routers(mpk_context *cx, arena *a, engine_dtypes *d)
{
    bool all_f32 = true;
    for (size_t i = 0; i < d->model->tensors.n; i++)
        all_f32 = all_f32 &&
                  (d->model->tensors.at[i].rank < 2 || d->model->tensors.at[i].dtype == IR_F32);
    for (size_t i = 0; !all_f32 && d->target->works_in_bf16 && i < d->model->tensors.n; i++) {
        const load_tensor *t = &d->model->tensors.at[i];
        if (t->dtype == IR_F32 && is_router(t->name, t->rank) && has_halves(t))
            TRY(map_put(cx, a, &d->routers, t->name, 1));
    }
    return MPK_OK;
}

/* Made-up ones of a mix are such. */
static bool becomes_bf16(const engine_dtypes *d, str name, uint32_t rank)
{
    uint64_t found;
    return d->model->tensors.n ? map_get(&d->routers, name, &found)
                               : d->mix && is_router(name, rank);
}

/* What a weight becomes on a target that works in bf16. */
static ir_dtype dtype_there(const engine_dtypes *d, str name, uint32_t rank, const int64_t *dims,
                            ir_dtype dtype)
{
    const bool stays =
        dtype == IR_F32 ? !becomes_bf16(d, name, rank) : is_kept_as(d, name, rank, dims, dtype);
    return stays ? dtype : IR_BF16;
}

/* model_weights.dtype */
static mpk_status dtype_of(mpk_context *cx, const void *self, const char *name, uint32_t rank,
                           const int64_t *dims, ir_dtype *dtype)
{
    const engine_dtypes *d = self;
    TRY(own_dtype(cx, d, name, rank, dims, dtype));
    if (d->target->works_in_bf16)
        *dtype = dtype_there(d, str_from(name), rank, dims, *dtype);
    return MPK_OK;
}

void engine_weight_dtypes(const engine_dtypes *d, model_weights *to)
{
    *to = (model_weights){.dtype = dtype_of, .self = d};
}

/* Do blocks stay blocks on this device?  Asked for neither way, they do where that is faster. */
static bool keeps_blocks(const engine_build *b)
{
    const mpk_engine_options *o = &b->options;
    const target_device *d = &b->device;
    if (o->keep_blocks != MPK_BLOCKS_AUTO)
        return o->keep_blocks == MPK_BLOCKS_KEEP;
    const uint32_t batch = o->max_batch ? o->max_batch : ENGINE_DEFAULT_BATCH;
    const uint32_t drafts = o->speculation || o->draft_model ? o->draft_tokens : 0;
    return o->gpus <= 1 && d->target->prefers_blocks &&
           d->target->prefers_blocks(d, batch * (1 + drafts));
}

mpk_status engine_find_dtypes(mpk_context *cx, arena *a, const engine_build *b, bool drafts,
                              engine_dtypes *out)
{
    *out = (engine_dtypes){.model = drafts ? &b->draft : &b->model,
                           .target = b->device.target,
                           .keeps = keeps_blocks(b)};
    if (b->options.random_mix)
        TRY(quantize_find_mix(cx, str_from(b->options.random_mix), &out->mix));
    TRY(gather_routers(cx, a, out));
    return gather_kinds(cx, a, out);
}

/* ---- memory ---- */

/* Bytes of 32 elements that stay in blocks: nibbles, or bytes, and their scales. */
static uint64_t block_bytes(ir_dtype dtype)
{
    if (dtype == IR_MXFP4)
        return 17;
    return dtype == IR_Q4_0 || dtype == IR_Q4_1 || dtype == IR_Q4_K ? 20 : 36;
}

/* Elements of the weights of a layer's latent attention: what makes queries, what makes the cached
 * row, keys and values of each head, and the output. */
static uint64_t count_latent(const model_config *c)
{
    const uint64_t D = c->hidden_size, H = c->n_heads, K = c->head_size, V = c->value_size,
                   L = c->latent_size, Q = c->query_latent_size;
    return (Q ? Q * (D + H * K) : D * H * K) + D * (L + c->rope_size) +
           H * L * (K - c->rope_size + V) + H * V * D;
}

/* Bytes of a weight on a target that works in bf16: those that stay in blocks take 4.25, 5 or 9
 * bits an element (rt/rt_blocks.h), f32 ones 4 bytes, all others 2. */
static uint64_t bytes_of(const engine_dtypes *d, str name, uint32_t rank, const int64_t *dims,
                         ir_dtype dtype)
{
    uint64_t n = 1;
    for (uint32_t k = 0; k < rank; k++)
        n *= (uint64_t)dims[k];
    dtype = dtype_there(d, name, rank, dims, dtype);
    if (ir_dtype_table[dtype].block_elements > 1)
        return n / 32 * block_bytes(dtype);
    return n * (dtype == IR_F32 ? 4 : 2);
}

/* Bytes of a made-up weight of layer i, whose name ends so. */
static uint64_t made_up_bytes(const engine_dtypes *d, uint32_t i, const char *part, uint32_t rank,
                              const int64_t *dims)
{
    const ir_dtype plain = d->model->config.weight_dtype == IR_F32 ? IR_F32 : IR_BF16;
    char name[96];
    snprintf(name, sizeof name, "model.layers.%u.%s.weight", i, part);
    return bytes_of(d, str_from(name), rank, dims, make_up(d, str_from(name), rank, dims, plain));
}

/* Of a layer of a model without weights: three matrices of the feed-forward part, and all
 * projections of attention as one, in the format of queries. */
static uint64_t layer_bytes(const engine_dtypes *d, uint32_t i)
{
    const model_config *c = &d->model->config;
    const int64_t H = c->hidden_size, K = c->head_size, E = c->n_experts, F = c->expert_ffn_size;
    const bool mixture = model_has_experts(c, i);
    const int64_t ffn = mixture ? c->shared_ffn_size : c->ffn_size,
                  attention = c->latent_size ? (int64_t)count_latent(c) / H
                                             : 2 * K * (c->n_heads + (int64_t)c->n_kv_heads);
    uint64_t n = made_up_bytes(d, i, "self_attn.q_proj", 2, (int64_t[]){attention, H}) +
                 2 * made_up_bytes(d, i, "mlp.up_proj", 2, (int64_t[]){ffn, H}) +
                 made_up_bytes(d, i, "mlp.down_proj", 2, (int64_t[]){H, ffn});
    if (mixture)
        n += 2 * made_up_bytes(d, i, "mlp.experts.up_proj", 3, (int64_t[]){E, F, H}) +
             made_up_bytes(d, i, "mlp.experts.down_proj", 3, (int64_t[]){E, H, F});
    return n;
}

/* Of a model without weights by its configuration; its embedding, and its head, count as floats. */
uint64_t engine_weight_bytes(const engine_dtypes *d)
{
    const load_model *model = d->model;
    const model_config *c = &model->config;
    uint64_t n = 0;
    for (size_t i = 0; i < model->tensors.n; i++) {
        const load_tensor *t = &model->tensors.at[i];
        n += bytes_of(d, t->name, t->rank, t->dims, t->dtype);
    }
    if (model->tensors.n)
        return n;
    n = (uint64_t)c->vocab_size * c->hidden_size * (c->tied_embeddings ? 1 : 2) *
        (c->weight_dtype == IR_F32 ? 4 : 2);
    for (uint32_t i = 0; i < c->n_layers; i++)
        n += layer_bytes(d, i);
    return n;
}
