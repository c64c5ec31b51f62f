/* adapter_gguf.c - an adapter as a GGUF file, as llama.cpp's converter writes it.
 *
 *   general.type "adapter", adapter.type "lora", general.architecture: of the model
 *   adapter.lora.alpha            the update's factor is alpha / rank; absent or 0: it is 1
 *   NAME.lora_a [r, K], NAME.lora_b [N, r]    NAME: of a weight of the model's GGUF file
 *   token_embd.weight.lora_a [V, r], ...lora_b [D, r]
 *   blk.L.ffn_gate_exps.weight.lora_a [E, r, K], ...lora_b [E, N, r]: a pair for each expert
 *
 * Rows of lora_b are in the order of the model's file (gguf_rope.c); adapter.c puts them in that of
 * the model.  Pairs of experts become a change for each expert, by the name that most checkpoints
 * have for it.
 */
#include <stdio.h>

#include "load/adapter.h"

/* What a file says besides its tensors. */
typedef struct gguf_adapter {
    adapter *a;
    const char *const (*own)[2]; /* the family's own names */
    double alpha;
} gguf_adapter;

static mpk_status check_kind(mpk_context *cx, const gguf *f, gguf_adapter *g)
{
    str type = {0}, method = {0};
    TRY(gguf_get_str(cx, f, "general.type", &type));
    TRY(gguf_get_str(cx, f, "adapter.type", &method));
    TRY(gguf_get_str(cx, f, "general.architecture", &g->a->architecture));
    CHECK(cx, str_is(type, "adapter"), MPK_EFORMAT,
          "this GGUF file is no adapter: its general.type is \"%.*s\"", LOAD_NAME(type));
    CHECK(cx, str_is(method, "lora"), MPK_EUNSUPPORTED,
          "the adapter is of the type \"%.*s\" (adapter.type); lora is supported",
          LOAD_NAME(method));
    CHECK(cx, !gguf_find(f, "adapter.alora.invocation_tokens"), MPK_EUNSUPPORTED,
          "the adapter begins at certain tokens (adapter.alora.invocation_tokens), which cannot be "
          "merged into weights");
    CHECK(cx, g->a->architecture.n, MPK_EFORMAT, "general.architecture is missing");
    return gguf_get_double(cx, f, "adapter.lora.alpha", &g->alpha);
}

/* Matrix number i of a stack, or the tensor itself. */
static load_tensor entry_of(const load_tensor *t, int64_t i)
{
    load_tensor entry = *t;
    if (t->rank < 3)
        return entry;
    entry.rank = 2;
    entry.dims[0] = t->dims[1];
    entry.dims[1] = t->dims[2];
    entry.n_bytes = t->n_bytes / (uint64_t)t->dims[0];
    entry.data = (const char *)t->data + (uint64_t)i * entry.n_bytes;
    return entry;
}

/* The name of expert i, from that of the stack: a number after "experts.". */
static mpk_status name_expert(mpk_context *cx, arena *a, str stack, int64_t i, str *out)
{
    const str mark = STR(".experts.");
    char end[128];
    size_t at = 0;
    while (at < stack.n && !str_begins((str){stack.at + at, stack.n - at}, mark))
        at++;
    CHECK(cx, at < stack.n, MPK_ESHAPE,
          "the adapter has a stack of matrices for %.*s, which has no experts", LOAD_NAME(stack));
    at += mark.n;
    snprintf(end, sizeof end, "%lld.%.*s", (long long)i,
             STR_SHOWN(((str){stack.at + at, stack.n - at}), 96));
    return load_make_name(cx, a, (str){stack.at, at}, end, out);
}

/* The changes that lora_a and lora_b of a weight are. */
static mpk_status add_pair(mpk_context *cx, const gguf_adapter *g, str name, const load_tensor *a,
                           const load_tensor *b)
{
    arena *memory = &g->a->files.arena;
    const bool embeds = str_is(name, "model.embed_tokens.weight"), stacked = a->rank == 3;
    CHECK(cx, a->rank == b->rank && (a->rank == 2 || (stacked && a->dims[0] == b->dims[0])),
          MPK_ESHAPE, "tensors %.*s and %.*s are not a pair of matrices", LOAD_NAME(a->name),
          LOAD_NAME(b->name));
    for (int64_t i = 0; i < (stacked ? a->dims[0] : 1); i++) {
        adapter_change c = {.name = name, .found = a->name, .entry = -1};
        c.left = entry_of(embeds ? a : b, i);
        c.right = entry_of(embeds ? b : a, i);
        c.right_turned = embeds;
        if (stacked)
            TRY(name_expert(cx, memory, name, i, &c.name));
        TRY(adapter_check_update(cx, &c));
        c.factor = g->alpha != 0 ? g->alpha / (double)adapter_rank(&c) : 1;
        PUSH(cx, memory, &g->a->changes, c);
    }
    return MPK_OK;
}

/* The other one of lora_a and lora_b of the same weight. */
static mpk_status find_other(mpk_context *cx, const adapter *a, str stem, const char *end,
                             const load_tensor **out)
{
    char name[256];
    const int n = snprintf(name, sizeof name, "%.*s%s", STR_ARG(stem), end);
    *out = n > 0 && (size_t)n < sizeof name ? load_find(&a->files, name) : NULL;
    CHECK(cx, *out, MPK_EFORMAT, "the adapter has no tensor %.*s%s", LOAD_NAME(stem), end);
    return MPK_OK;
}

/* A tensor: with lora_a the pair is added, with lora_b it is only looked for. */
static mpk_status take_tensor(mpk_context *cx, const gguf_adapter *g, const load_tensor *t)
{
    const str ends[] = {STR(".lora_a"), STR(".lora_b")};
    const bool first = str_ends(t->name, ends[0]);
    const load_tensor *other = t;
    bool known = false;
    CHECK(cx, first || str_ends(t->name, ends[1]), MPK_EUNSUPPORTED,
          "tensor %.*s of the adapter is neither lora_a nor lora_b of a weight",
          LOAD_NAME(t->name));
    str name = {t->name.at, t->name.n - ends[0].n};
    TRY(find_other(cx, g->a, name, ends[first].at, &other));
    if (!first)
        return MPK_OK;
    TRY(gguf_rename_tensor(cx, &g->a->files.arena, g->own, &name, &known));
    CHECK(cx, known, MPK_EUNSUPPORTED,
          "tensor %.*s of the adapter: no weight of this name is known", LOAD_NAME(t->name));
    return add_pair(cx, g, name, t, other);
}

mpk_status adapter_read_gguf(mpk_context *cx, const unsigned char *bytes, size_t n, adapter *a)
{
    gguf_adapter g = {.a = a};
    gguf f;
    TRY(gguf_read_file(cx, bytes, n, &a->files, &f));
    TRY(check_kind(cx, &f, &g));
    a->is_gguf = true;
    g.own = model_gguf_names(a->architecture);
    for (size_t i = 0; i < a->files.tensors.n; i++)
        TRY(take_tensor(cx, &g, &a->files.tensors.at[i]));
    CHECK(cx, a->changes.n, MPK_EFORMAT, "the adapter has no tensors");
    return MPK_OK;
}
