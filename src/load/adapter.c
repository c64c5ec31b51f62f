/* adapter.c - adapters merged into the weights of a model when it is opened.
 *
 * Input: paths and scales, and a model whose tensors have the names and the layout of its file.
 * Output: its list of tensors, those that adapters change replaced by merged ones in the model's
 * arena.  All others stay in their mappings.
 *
 * Adapters name weights as the checkpoint does that they were trained on.  Names of both sides are
 * brought into one spelling (spell), so that adapters of Hugging Face models apply to GGUF files
 * and to models that are held by others, and GGUF adapters to folders.  Rows of q and k, whose
 * order differs between files, are put in that of the model (order_rows).
 *
 * A model whose head is its embedding is untied if an adapter changes either: in training the
 * update was of one of the two alone.
 *
 * Whatever an adapter holds either becomes a change of a weight, or is refused by name.
 */
#include "load/adapter.h"

#include <math.h>

#include "base/free_memory.h"
#include "load/gguf_write.h"

static const char embedding[] = "model.embed_tokens.weight", head[] = "lm_head.weight";

/* The changes of a tensor, in the order of adapters. */
typedef struct change_list {
    adapter_change *first, *last;
} change_list;

/* One call of load_merge_adapters. */
typedef struct merging {
    load_model *m;
    bool from_folder;
    const model_def *def, *written; /* written: of GGUF files of the model; NULL: it has none */
    arena arena;                    /* until the end of the call */
    map names;                      /* one spelling of a tensor's name -> its index */
    change_list *lists;             /* of each tensor */
    adapter *adapters;
} merging;

/* ---- opening ---- */

static mpk_status open_folder(mpk_context *cx, const char *path, adapter *a)
{
    const char *weights, *pickled;
    str config;
    TRY(load_read_member(cx, &a->files, path, "adapter_config.json", &config));
    CHECK(cx, config.at, MPK_EIO,
          "%s has no adapter_config.json: an adapter is a folder of PEFT or a GGUF file", path);
    TRY(file_join(cx, &a->files.arena, path, "adapter_model.safetensors", &weights));
    TRY(file_join(cx, &a->files.arena, path, "adapter_model.bin", &pickled));
    CHECK(cx, file_exists(weights) || !file_exists(pickled), MPK_EUNSUPPORTED,
          "%s is pickled; save the adapter as safetensors (PEFT's save_pretrained does)", pickled);
    PUSH(cx, &a->files.arena, &a->files.members, weights);
    TRY(load_safetensors(cx, weights, &a->files));
    return adapter_read_peft(cx, config, a);
}

static mpk_status open_file(mpk_context *cx, const char *path, adapter *a)
{
    file_map file = {0};
    PUSH(cx, &a->files.arena, &a->files.members, path);
    TRY(load_map(cx, path, &a->files, &file));
    NOTE(cx, adapter_read_gguf(cx, file.bytes, file.n_bytes, a),
         "reading it as a GGUF file (an adapter is one, or a folder of PEFT)");
    return MPK_OK;
}

mpk_status adapter_check_update(mpk_context *cx, const adapter_change *c)
{
    const load_tensor *both[] = {&c->left, &c->right};
    for (int i = 0; i < 2; i++)
        CHECK(cx,
              both[i]->rank == 2 && !both[i]->is_f8 &&
                  (both[i]->dtype == IR_F32 || both[i]->dtype == IR_F16 ||
                   both[i]->dtype == IR_BF16 || ir_dtype_table[both[i]->dtype].block_elements > 1),
              MPK_EUNSUPPORTED, "tensor %.*s of the adapter is not a matrix of numbers",
              LOAD_NAME(both[i]->name));
    CHECK(cx, adapter_rank(c) == c->right.dims[c->right_turned], MPK_ESHAPE,
          "tensors %.*s and %.*s of the adapter differ in rank: %lld and %lld",
          LOAD_NAME(c->left.name), LOAD_NAME(c->right.name), (long long)adapter_rank(c),
          (long long)c->right.dims[c->right_turned]);
    return MPK_OK;
}

/* ---- names ---- */

/* The one spelling of a tensor's name. */
static mpk_status spell(mpk_context *cx, merging *g, str *name)
{
    TRY(load_rename_held(cx, &g->arena, name)); /* of a GGUF file nothing says that it was held */
    if (g->def->expert_bias)
        TRY(load_rename_plain(cx, &g->arena, name));
    return load_rename_expert(cx, &g->arena, name);
}

static mpk_status index_names(mpk_context *cx, merging *g)
{
    for (size_t i = 0; i < g->m->tensors.n; i++) {
        str name = g->m->tensors.at[i].name;
        TRY(spell(cx, g, &name));
        TRY(map_put(cx, &g->arena, &g->names, name, i));
    }
    return MPK_OK;
}

/* Set c->tensor and c->entry. */
static mpk_status find_tensor(mpk_context *cx, merging *g, adapter_change *c)
{
    str stack = {0};
    uint64_t index = 0;
    c->entry = -1;
    bool found = map_get(&g->names, c->name, &index);
    if (!found) {
        TRY(load_find_stack(cx, &g->arena, c->name, &stack, &c->entry));
        found = c->entry >= 0 && map_get(&g->names, stack, &index);
    }
    CHECK(cx, found, MPK_EUNSUPPORTED,
          "tensor %.*s of the adapter is for a weight %.*s, which this model's files do not have: "
          "it is of another model, or of one whose files are laid out differently (take the folder "
          "from Hugging Face then)",
          LOAD_NAME(c->found), LOAD_NAME(c->name));
    c->tensor = (size_t)index;
    return MPK_OK;
}

/* ---- one change ---- */

/* Rows of q and k, if the adapter's are in the order for rope over neighbours and the model's are
 * not (the reverse does not occur). */
static mpk_status order_rows(mpk_context *cx, const merging *g, adapter *a, adapter_change *c)
{
    const bool pairs = a->is_gguf ? g->written->gguf_neighbours : g->def->neighbours;
    load_tensor *const parts[] = {&c->left, &c->magnitude, &c->whole};
    if (!pairs || (g->from_folder && g->def->neighbours))
        return MPK_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const str name = parts[i]->name;
        if (!parts[i]->rank || (i == 0 && c->left_turned))
            continue;
        parts[i]->name = c->name;
        TRY(gguf_order_rope_tensor(cx, &a->files.arena, &g->m->config, parts[i]));
        parts[i]->name = name;
    }
    return MPK_OK;
}

static bool is_plain(const load_tensor *t)
{
    return (t->dtype == IR_F32 || t->dtype == IR_F16 || t->dtype == IR_BF16) && !t->is_f8;
}

static mpk_status check_update(mpk_context *cx, const adapter_change *c, const load_tensor *t)
{
    const bool fits = t->rank == (c->entry < 0 ? 2 : 3) && c->entry < t->dims[0],
               stacked = c->entry >= 0;
    CHECK(cx,
          fits && adapter_rows(c) == t->dims[stacked] && adapter_columns(c) == t->dims[stacked + 1],
          MPK_ESHAPE,
          "the adapter changes %.*s as a matrix [%lld, %lld], and the model has it in another "
          "shape: the adapter is of another model",
          LOAD_NAME(c->name), (long long)adapter_rows(c), (long long)adapter_columns(c));
    CHECK(cx,
          !c->magnitude.rank || (c->magnitude.rank == 1 && is_plain(&c->magnitude) && !stacked &&
                                 c->magnitude.dims[0] == t->dims[0]),
          MPK_ESHAPE, "tensor %.*s of the adapter is not a number for each row of %.*s",
          LOAD_NAME(c->magnitude.name), LOAD_NAME(c->name));
    return MPK_OK;
}

/* Norms of families that multiply by 1 + weight lie in GGUF files as 1 + weight. */
static mpk_status check_whole(mpk_context *cx, const merging *g, const adapter_change *c,
                              const load_tensor *t)
{
    CHECK(cx,
          c->entry < 0 && is_plain(&c->whole) && c->whole.rank == t->rank && t->rank &&
              memcmp(c->whole.dims, t->dims, t->rank * sizeof *t->dims) == 0,
          MPK_ESHAPE,
          "tensor %.*s of the adapter is to take the place of %.*s, and has another shape or a "
          "dtype other than f32, f16 and bf16",
          LOAD_NAME(c->found), LOAD_NAME(c->name));
    CHECK(cx, g->from_folder || !g->def->unit_norms || !str_ends(c->name, STR("norm.weight")),
          MPK_EUNSUPPORTED,
          "tensor %.*s of the adapter is a norm of a checkpoint, which GGUF files of this family "
          "hold as 1 + weight: take the model's folder from Hugging Face",
          LOAD_NAME(c->found));
    return MPK_OK;
}

/* Does the change leave no room for another adapter's of the same tensor, nor for a scale? */
static bool stands_alone(const adapter_change *c)
{
    return c->whole.rank || c->magnitude.rank;
}

/* Has the model what is to take the tensor's place?  PEFT saves embeddings beside their updates,
 * trained or not.  Both have been found to be of one shape. */
static mpk_status is_same(mpk_context *cx, const load_tensor *a, const load_tensor *b, bool *same)
{
    const int64_t columns = a->dims[a->rank - 1];
    int64_t rows = 1;
    arena scratch = {0};
    float *x = arena_alloc(&scratch, (size_t)columns, 2 * sizeof *x), *y = x ? x + columns : NULL;
    CHECK(cx, x, MPK_ENOMEM, "out of memory for two rows of %lld numbers", (long long)columns);
    for (uint32_t i = 0; i + 1 < a->rank; i++)
        rows *= a->dims[i];
    *same = true;
    for (int64_t i = 0; *same && i < rows; i++)
        *same = load_unpack(a->dtype, load_row_at(a, rows, i), columns, x) &&
                load_unpack(b->dtype, load_row_at(b, rows, i), columns, y) &&
                memcmp(x, y, (size_t)columns * sizeof *x) == 0;
    arena_free(&scratch);
    return MPK_OK;
}

/* Put a change into the list of its tensor. */
static mpk_status add_change(mpk_context *cx, change_list *list, adapter_change *c)
{
    for (const adapter_change *other = list->first; other; other = other->next) {
        CHECK(cx, other->of == c->of || !(stands_alone(c) || stands_alone(other)), MPK_EUNSUPPORTED,
              "tensor %.*s of the adapter and another adapter change %.*s, which one of them "
              "trained whole or with DoRA: only one can be merged",
              LOAD_NAME(c->found), LOAD_NAME(c->name));
        CHECK(cx,
              other->of != c->of || other->entry != c->entry || !other->left.rank != !c->left.rank,
              MPK_EFORMAT, "tensors %.*s and %.*s of the adapter are for the same weight",
              LOAD_NAME(other->found), LOAD_NAME(c->found));
    }
    if (list->first && !c->whole.rank) {
        list->last->next = c;
        list->last = c;
        return MPK_OK;
    }
    c->next = list->first;
    list->first = c;
    if (!list->last)
        list->last = c;
    return MPK_OK;
}

/* Find the tensor of a change, and put it into that one's list unless nothing changes. */
static mpk_status bind(mpk_context *cx, merging *g, adapter *a, double scale, adapter_change *c)
{
    TRY(spell(cx, g, &c->name));
    TRY(find_tensor(cx, g, c));
    const load_tensor *t = &g->m->tensors.at[c->tensor];
    bool same = false;
    TRY(c->whole.rank ? check_whole(cx, g, c, t) : check_update(cx, c, t));
    TRY(order_rows(cx, g, a, c));
    if (c->whole.rank)
        TRY(is_same(cx, t, &c->whole, &same));
    if (scale == 0 || same)
        return MPK_OK;
    CHECK(cx, scale == 1 || !stands_alone(c), MPK_EUNSUPPORTED,
          "tensor %.*s of the adapter is %s, which has no scale but 0 and 1, not %g",
          LOAD_NAME(c->found), c->whole.rank ? "of a weight trained whole" : "of DoRA", scale);
    c->factor *= scale;
    c->of = a;
    return add_change(cx, &g->lists[c->tensor], c);
}

/* ---- a whole adapter ---- */

/* A GGUF adapter says what it is of. */
static mpk_status check_architecture(mpk_context *cx, merging *g, const adapter *a)
{
    if (!a->is_gguf)
        return MPK_OK;
    TRY(gguf_find_written(cx, g->m, &g->written));
    CHECK(cx,
          str_is(a->architecture, g->written->gguf) ||
              (g->def->gguf && str_is(a->architecture, g->def->gguf)),
          MPK_EUNSUPPORTED, "the adapter is of the architecture %.*s, and the model is %s",
          LOAD_NAME(a->architecture), g->written->gguf);
    return MPK_OK;
}

/* What the merged weights follow from, besides the model's: for images and ranks, which compare
 * it. */
static void add_hash(load_model *m, const adapter *a)
{
    uint64_t h = m->adapters_hash;
    for (size_t i = 0; i < a->files.tensors.n; i++) {
        const load_tensor *t = &a->files.tensors.at[i];
        h = hash_bytes(t->name.at, t->name.n, h);
        h = hash_bytes(t->data, (size_t)t->n_bytes, h);
    }
    for (size_t i = 0; i < a->changes.n; i++)
        h = hash_bytes(&a->changes.at[i].factor, sizeof a->changes.at[i].factor, h);
    m->adapters_hash = h ? h : 1;
}

/* The paths of its files, so that no output is written over them (load_reads). */
static mpk_status keep_paths(mpk_context *cx, load_model *m, const adapter *a)
{
    for (size_t i = 0; i < a->files.members.n; i++) {
        const char *path = a->files.members.at[i],
                   *copy = arena_copy(&m->arena, path, strlen(path));
        CHECK(cx, copy, MPK_ENOMEM, "out of memory for the path of an adapter");
        PUSH(cx, &m->arena, &m->members, copy);
    }
    return MPK_OK;
}

static mpk_status open_adapter(mpk_context *cx, merging *g, const load_adapter *from, adapter *a)
{
    CHECK(cx, isfinite(from->scale), MPK_EARG, "the scale of an adapter is %g", from->scale);
    TRY(file_is_folder(from->path) ? open_folder(cx, from->path, a) : open_file(cx, from->path, a));
    TRY(check_architecture(cx, g, a));
    return keep_paths(cx, g->m, a);
}

/* ---- the head ---- */

static bool is_tied(const adapter_change *c)
{
    return str_is(c->name, embedding) || str_is(c->name, head);
}

/* Of a model whose head is its embedding: does an adapter name one of them? */
static mpk_status find_tied(mpk_context *cx, merging *g, uint32_t n, bool *found)
{
    *found = false;
    for (uint32_t i = 0; g->m->config.tied_embeddings && i < n; i++)
        for (size_t k = 0; k < g->adapters[i].changes.n; k++) {
            adapter_change *c = &g->adapters[i].changes.at[k];
            TRY(spell(cx, g, &c->name));
            *found |= is_tied(c);
            CHECK(cx, !is_tied(c) || !g->adapters[i].ties, MPK_EUNSUPPORTED,
                  "tensor %.*s: the adapter wants embedding and head to change together "
                  "(\"ensure_weight_tying\"), which cannot be merged",
                  LOAD_NAME(c->found));
        }
    return MPK_OK;
}

/* Give the model a head of its own, which is the embedding until something is merged into either.
 * The tensor of a head that the file has beside a tied embedding is not what the model computes
 * with. */
static mpk_status untie(mpk_context *cx, merging *g)
{
    load_model *m = g->m;
    uint64_t from = 0, to = 0;
    CHECK(cx, map_get(&g->names, str_from(embedding), &from), MPK_EFORMAT,
          "the weight %s is missing", embedding);
    load_tensor t = m->tensors.at[from];
    if (map_get(&g->names, str_from(head), &to)) {
        t.name = m->tensors.at[to].name;
        m->tensors.at[to] = t;
    } else {
        t.name = str_from(head);
        TRY(load_add_tensor(cx, m, &t));
        TRY(map_put(cx, &g->arena, &g->names, t.name, m->tensors.n - 1));
    }
    m->config.tied_embeddings = false;
    return MPK_OK;
}

/* Whether one of the two changes is known once all changes are found: scales may be 0, and tensors
 * those of the model. */
static void tie_again(merging *g)
{
    uint64_t from = 0, to = 0;
    map_get(&g->names, str_from(embedding), &from);
    map_get(&g->names, str_from(head), &to);
    g->m->config.tied_embeddings = !g->lists[from].first && !g->lists[to].first;
}

/* ---- all of them ---- */

static mpk_status bind_all(mpk_context *cx, merging *g, const load_adapter *from, adapter *a)
{
    for (size_t i = 0; i < a->changes.n; i++)
        TRY(bind(cx, g, a, from->scale, &a->changes.at[i]));
    if (from->scale != 0)
        add_hash(g->m, a);
    return MPK_OK;
}

static bool has_blocks(const load_tensor *t)
{
    return ir_dtype_table[t->dtype].block_elements > 1;
}

/* The stack of a tensor that is the weight of one expert in blocks; at NULL: it is none. */
static mpk_status find_stack_in_blocks(mpk_context *cx, merging *g, const load_tensor *t, str *out)
{
    str name = t->name;
    int64_t expert;
    *out = (str){0};
    if (!has_blocks(t))
        return MPK_OK;
    TRY(spell(cx, g, &name));
    return load_find_stack(cx, &g->arena, name, out, &expert);
}

/* Experts of a stack have one dtype: where one in blocks becomes numbers, so do the others. */
static mpk_status widen_stacks(mpk_context *cx, merging *g)
{
    adapter_change *none;
    map stacks = {0};
    str stack;
    NEW(cx, &g->arena, none, 1);
    none->entry = -1;
    for (int found = 0; found < 2; found++)
        for (size_t i = 0; i < g->m->tensors.n; i++) {
            if (!g->lists[i].first == !found)
                continue;
            TRY(find_stack_in_blocks(cx, g, &g->m->tensors.at[i], &stack));
            if (stack.at && !found)
                TRY(map_put(cx, &g->arena, &stacks, stack, 0));
            else if (stack.at && map_get(&stacks, stack, NULL))
                g->lists[i].first = none;
        }
    return MPK_OK;
}

/* Merged weights must fit into memory: said now, with numbers, instead of by the system later. */
static mpk_status check_memory(mpk_context *cx, const merging *g, ir_dtype plain)
{
    const double gib = 1 << 30;
    const uint64_t available = memory_free_bytes(NULL);
    uint64_t n = 0;
    for (size_t i = 0; i < g->m->tensors.n; i++) {
        load_tensor t = g->m->tensors.at[i];
        if (!g->lists[i].first)
            continue;
        if (has_blocks(&t))
            t.dtype = plain;
        TRY(load_tensor_bytes(cx, &t, &t.n_bytes));
        n += t.n_bytes;
    }
    CHECK(cx, n <= available, MPK_ELIMIT,
          "the weights that adapters change take %.2f GiB of memory, but only %.2f are free: write "
          "the merged model to a file elsewhere (mpk quantize --lora)",
          (double)n / gib, (double)available / gib);
    return MPK_OK;
}

/* A note names the adapter, and the model that it says it was made for. */
static mpk_status note(mpk_context *cx, mpk_status status, const load_adapter *from,
                       const adapter *a)
{
    if (status == MPK_OK)
        return MPK_OK;
    if (!a->made_for.n)
        return status_note(cx, status, "merging the adapter %s", from->path);
    return status_note(cx, status, "merging the adapter %s, which was made for %.*s", from->path,
                       LOAD_NAME(a->made_for));
}

static mpk_status merge(mpk_context *cx, merging *g, const load_adapter *adapters, uint32_t n)
{
    load_model *m = g->m;
    const ir_dtype plain = g->from_folder ? m->config.weight_dtype : IR_F16;
    bool unties = false;
    TRY(model_find(cx, m->config.family, &g->def));
    for (uint32_t i = 0; i < n; i++)
        TRY(note(cx, open_adapter(cx, g, &adapters[i], &g->adapters[i]), &adapters[i],
                 &g->adapters[i]));
    TRY(index_names(cx, g));
    TRY(find_tied(cx, g, n, &unties));
    if (unties)
        TRY(untie(cx, g));
    NEW(cx, &g->arena, g->lists, m->tensors.n);
    for (uint32_t i = 0; i < n; i++)
        TRY(note(cx, bind_all(cx, g, &adapters[i], &g->adapters[i]), &adapters[i],
                 &g->adapters[i]));
    if (unties)
        tie_again(g);
    TRY(widen_stacks(cx, g));
    TRY(check_memory(cx, g, plain));
    for (size_t i = 0; i < m->tensors.n; i++)
        if (g->lists[i].first)
            NOTE(cx, adapter_merge(cx, &m->arena, g->lists[i].first, plain, &m->tensors.at[i]),
                 "merging adapters");
    return MPK_OK;
}

mpk_status load_merge_adapters(mpk_context *cx, const load_adapter *adapters, uint32_t n,
                               bool from_folder, load_model *m)
{
    merging g = {.m = m, .from_folder = from_folder};
    if (!n)
        return MPK_OK;
    CHECK(cx, m->has_config && m->tensors.n, MPK_EARG,
          "%.*s has no weights that an adapter could change", LOAD_NAME(m->path));
    g.adapters = arena_alloc(&g.arena, n, sizeof *g.adapters);
    CHECK(cx, g.adapters, MPK_ENOMEM, "out of memory for %u adapters", n);
    const mpk_status status = merge(cx, &g, adapters, n);
    for (uint32_t i = 0; i < n; i++)
        load_close(&g.adapters[i].files);
    arena_free(&g.arena);
    return status;
}
