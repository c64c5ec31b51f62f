/* experts.c - gather the weights of a layer's experts under one name.
 *
 * Input: the tensors of a checkpoint, which holds the weights of each expert separately
 *     model.layers.L.mlp.experts.E.{gate_proj,up_proj,down_proj}.weight            (Qwen3)
 *     model.layers.L.block_sparse_moe.experts.E.{w1,w3,w2}.weight                  (Mixtral)
 * or of all experts together, gate and up joined or apart
 *     model.layers.L.mlp.experts.{gate_up_proj [E, 2F, D], down_proj [E, D, F]}
 * Output: model.layers.L.mlp.experts.{gate_proj,up_proj,down_proj}.weight [E, rows, columns],
 * stored as one address for each expert: no weights are copied.  The router is always named
 * model.layers.L.mlp.gate.weight.
 *
 * Numbers of layers and experts come from names and are compared with the configuration before they
 * are used as indices.  Called by load.c once for each model that has experts; GGUF files have
 * their stacks whole already, and pass through unchanged. */
#include <stdio.h>

#include "load/load.h"

enum { GATE, UP, DOWN, PARTS };

/* The parts of the name of an expert's tensor. */
typedef struct expert_name {
    uint32_t layer;
    int64_t expert;   /* -1: all of them */
    int part;         /* PARTS: gate and up, joined in this order */
    size_t at, after; /* the expert's number in the name */
} expert_name;

/* The list of tensors under construction.  `tensors` and `first` grow together; addresses into
 * `tensors` hold until the next one is added. */
typedef struct stacks {
    const load_model *from;
    VEC(load_tensor) tensors; /* those of the model, stacks in place of experts */
    map names;
    /* for each of these tensors that is a stack: the name of the first expert found */
    VEC(str) first;
} stacks;

/* *at moves past the text only if it is there. */
static bool skip_text(str s, size_t *at, const char *expected)
{
    size_t n = strlen(expected);
    if (s.n - *at < n || memcmp(s.at + *at, expected, n) != 0)
        return false;
    *at += n;
    return true;
}

/* At most six digits, more than any layer or expert number has. */
static bool skip_number(str s, size_t *at, uint32_t *out)
{
    size_t from = *at;
    *out = 0;
    for (; *at < s.n && *at - from < 6 && s.at[*at] >= '0' && s.at[*at] <= '9'; ++*at)
        *out = *out * 10 + (uint32_t)(s.at[*at] - '0');
    return *at > from;
}

/* Which of gate, up and down a name's end means, of one expert (`one`) or of all; PARTS: gate and
 * up joined. */
static bool parse_part(str rest, bool one, int *part)
{
    static const char *const names[][2] = {{"gate_proj.weight", "w1.weight"},
                                           {"up_proj.weight", "w3.weight"},
                                           {"down_proj.weight", "w2.weight"}};
    static const char *const together[][2] = {{"down_proj", "down_proj.weight"},
                                              {"gate_up_proj", "gate_up_proj.weight"}};
    for (*part = GATE; one && *part < PARTS; ++*part)
        if (str_is(rest, names[*part][0]) || str_is(rest, names[*part][1]))
            return true;
    for (*part = DOWN; !one && *part <= PARTS; ++*part)
        if (str_is(rest, together[*part - DOWN][0]) || str_is(rest, together[*part - DOWN][1]))
            return true;
    return false;
}

/* False: not a weight of an expert. */
static bool parse_name(str name, expert_name *out)
{
    size_t at = 0;
    uint32_t number = 0;
    if (!skip_text(name, &at, "model.layers.") || !skip_number(name, &at, &out->layer) ||
        (!skip_text(name, &at, ".mlp.experts.") &&
         !skip_text(name, &at, ".block_sparse_moe.experts.")))
        return false;
    out->at = at;
    bool one = skip_number(name, &at, &number);
    out->after = at;
    out->expert = one ? (int64_t)number : -1;
    if (one && !skip_text(name, &at, "."))
        return false;
    return parse_part((str){name.at + at, name.n - at}, one, &out->part);
}

/* Of a tensor that is no stack, or a stack that was whole in the file, first.at is NULL. */
static mpk_status add(mpk_context *cx, arena *a, stacks *s, const load_tensor *t, str first)
{
    CHECK(cx, !map_get(&s->names, t->name, NULL), MPK_EFORMAT, "tensor %.*s is there twice",
          LOAD_NAME(t->name));
    PUSH(cx, a, &s->tensors, *t);
    PUSH(cx, a, &s->first, first);
    return map_put(cx, a, &s->names, t->name, s->tensors.n - 1);
}

/* The name that models ask for, whatever the file's spelling is; `part` is GATE, UP or DOWN. */
static mpk_status name_stack(mpk_context *cx, arena *a, uint32_t layer, int part, str *out)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    char name[96];
    int n =
        snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s.weight", layer, names[part]);
    *out = (str){arena_copy(a, name, (size_t)n), (size_t)n};
    CHECK(cx, out->at, MPK_ENOMEM, "out of memory for a tensor's name");
    return MPK_OK;
}

/* The stack that an expert's tensor belongs to.  The first tensor found creates it and gives it its
 * shape. */
static mpk_status find_stack(mpk_context *cx, arena *a, stacks *s, const load_tensor *t,
                             const expert_name *name, load_tensor **out)
{
    uint32_t n = s->from->config.n_experts;
    uint64_t index;
    load_tensor stack = {.dtype = t->dtype, .rank = 3, .dims = {n, t->dims[0], t->dims[1]}};
    TRY(name_stack(cx, a, name->layer, name->part, &stack.name));
    if (!map_get(&s->names, stack.name, &index)) {
        CHECK(cx, t->rank == 2, MPK_ESHAPE, "tensor %.*s has %u dimensions, expected 2",
              LOAD_NAME(t->name), t->rank);
        TRY(load_tensor_bytes(cx, &stack, &stack.n_bytes));
        NEW(cx, a, stack.parts, n);
        TRY(add(cx, a, s, &stack, t->name));
        index = s->tensors.n - 1;
    }
    *out = &s->tensors.at[index];
    return MPK_OK;
}

/* The first expert's tensor of a layer makes the stack; each other one must look like it and be the
 * only one of its number. */
static mpk_status add_expert(mpk_context *cx, arena *a, stacks *s, const load_tensor *t,
                             const expert_name *name)
{
    load_tensor *stack = NULL;
    CHECK(cx, name->expert < s->from->config.n_experts, MPK_EFORMAT,
          "tensor %.*s: the model has %u experts", LOAD_NAME(t->name), s->from->config.n_experts);
    TRY(find_stack(cx, a, s, t, name, &stack));
    CHECK(cx, stack->parts && !stack->parts[name->expert], MPK_EFORMAT,
          "tensor %.*s is there twice", LOAD_NAME(t->name));
    CHECK(cx,
          t->dtype == stack->dtype && t->rank == 2 && t->dims[0] == stack->dims[1] &&
              t->dims[1] == stack->dims[2],
          MPK_ESHAPE,
          "tensor %.*s has not the shape and dtype of the other experts' weights in its layer",
          LOAD_NAME(t->name));
    stack->parts[name->expert] = t->data;
    return MPK_OK;
}

/* Split a joined stack into gate and up: for each expert, the rows of gate and then those of up
 * follow each other, so each half is one address for each expert. */
static mpk_status split_stack(mpk_context *cx, arena *a, stacks *s, const load_tensor *t,
                              uint32_t layer)
{
    int64_t n = s->from->config.n_experts;
    CHECK(cx, t->rank == 3 && t->dims[0] == n && t->dims[1] % 2 == 0, MPK_ESHAPE,
          "tensor %.*s has not the shape [%lld experts, rows of gate and up, columns]",
          LOAD_NAME(t->name), (long long)n);
    for (int part = GATE; part <= UP; part++) {
        load_tensor half = {.dtype = t->dtype, .rank = 3, .dims = {n, t->dims[1] / 2, t->dims[2]}};
        half.n_bytes = t->n_bytes / 2;
        TRY(name_stack(cx, a, layer, part, &half.name));
        NEW(cx, a, half.parts, n);
        for (int64_t i = 0; i < n; i++)
            half.parts[i] =
                (const char *)t->data + (2 * i + part) * (int64_t)(half.n_bytes / (uint64_t)n);
        TRY(add(cx, a, s, &half, (str){0}));
    }
    return MPK_OK;
}

/* Replace the other spelling of a router's name; *name is unchanged if it is not a router. */
static mpk_status rename_router(mpk_context *cx, arena *a, str *name)
{
    char renamed[64];
    size_t at = 0;
    uint32_t layer;
    if (!skip_text(*name, &at, "model.layers.") || !skip_number(*name, &at, &layer) ||
        !skip_text(*name, &at, ".block_sparse_moe.gate.weight") || at != name->n)
        return MPK_OK;
    int n = snprintf(renamed, sizeof renamed, "model.layers.%u.mlp.gate.weight", layer);
    *name = (str){arena_copy(a, renamed, (size_t)n), (size_t)n};
    CHECK(cx, name->at, MPK_ENOMEM, "out of memory for a tensor's name");
    return MPK_OK;
}

/* One tensor of the checkpoint into the new list: an expert's into its stack, joined ones as two
 * views of them, all others as they are. */
static mpk_status sort_tensor(mpk_context *cx, arena *a, stacks *s, const load_tensor *t)
{
    expert_name name;
    load_tensor kept = *t;
    /* tensors of layers beyond the model's are left alone, and later refused by name */
    bool is_expert = parse_name(t->name, &name) && name.layer < s->from->config.n_layers;
    if (is_expert && name.expert >= 0)
        return add_expert(cx, a, s, t, &name);
    if (is_expert && name.part == PARTS)
        return split_stack(cx, a, s, t, name.layer);
    if (is_expert)
        TRY(name_stack(cx, a, name.layer, name.part, &kept.name));
    TRY(rename_router(cx, a, &kept.name));
    return add(cx, a, s, &kept, (str){0});
}

/* An error about a missing expert uses the file's own spelling. */
static mpk_status check_complete(mpk_context *cx, const load_tensor *t, str first)
{
    expert_name name;
    for (int64_t i = 0; first.at && i < t->dims[0]; i++) {
        if (t->parts[i])
            continue;
        parse_name(first, &name);
        FAIL(cx, MPK_EFORMAT, "the weight %.*s%lld%.*s is missing: the model has %lld experts",
             (int)name.at, first.at, (long long)i, (int)(first.n - name.after),
             first.at + name.after, (long long)t->dims[0]);
    }
    return MPK_OK;
}

/* Called by load.c between reading a checkpoint and looking for the model's weights.  Models
 * without experts are left alone. */
mpk_status load_stack_experts(mpk_context *cx, load_model *m)
{
    stacks s = {.from = m};
    if (!m->config.n_experts)
        return MPK_OK;
    for (size_t i = 0; i < m->tensors.n; i++)
        TRY(sort_tensor(cx, &m->arena, &s, &m->tensors.at[i]));
    for (size_t i = 0; i < s.tensors.n; i++)
        TRY(check_complete(cx, &s.tensors.at[i], s.first.at[i]));
    m->tensors.at = s.tensors.at;
    m->tensors.n = s.tensors.n;
    m->tensors.capacity = s.tensors.capacity;
    m->names = s.names;
    return MPK_OK;
}
