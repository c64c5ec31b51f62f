/* experts.c - gather the weights of a layer's experts under one name.
 *
 * Input: the tensors of a checkpoint, which holds the weights of each expert separately
 *
 *   model.layers.L.mlp.experts.E.{gate_proj,up_proj,down_proj}.weight            (Qwen3)
 *   model.layers.L.block_sparse_moe.experts.E.{w1,w3,w2}.weight                  (Mixtral)
 *
 * or those of all experts together, gate and up joined or separate
 *
 *   model.layers.L.mlp.experts.{gate_up_proj [E, 2F, D], down_proj [E, D, F]}
 *   model.layers.L.block_sparse_moe.{input_linear.weight, output_linear.weight}   (Granite)
 *
 * Output: model.layers.L.mlp.experts.{gate_proj,up_proj,down_proj}.weight [E, rows, columns],
 * stored as one address for each expert: no weights are copied.  The router is always named
 * model.layers.L.mlp.gate.weight, and the bias of what it chooses by
 * model.layers.L.mlp.gate.e_score_correction.bias.
 *
 * Numbers of layers and experts come from names and are compared with the configuration before
 * they are used as indices.  Called by load.c once for each model that has experts; GGUF files
 * already hold stacks, which pass unchanged.
 */
#include <stdio.h>

#include "load/load.h"

/* The parts of an expert. */
enum { GATE, UP, DOWN, PARTS };

/* The name of an expert's tensor, parsed. */
typedef struct expert_name {
    uint32_t layer;
    int64_t expert;   /* -1: all of them */
    int part;         /* PARTS: gate and up, joined in this order */
    size_t at, after; /* where the expert's number lies in the name */
} expert_name;

/* The new list of tensors.  `tensors` and `first` grow together; pointers into `tensors` are
 * valid until the next one is added. */
typedef struct stacks {
    const load_model *from;
    VEC(load_tensor) tensors; /* those of the model, with stacks in the place of experts */
    map names;
    /* for each of these that is a stack: the name of the first expert found, for messages; at
     * NULL otherwise */
    VEC(str) first;
} stacks;

/* Move *at past the text, if it is there. */
static bool skip_text(str s, size_t *at, const char *expected)
{
    size_t n = strlen(expected);
    if (s.n - *at < n || memcmp(s.at + *at, expected, n) != 0)
        return false;
    *at += n;
    return true;
}

/* Parse at most six digits, more than any layer or expert number has. */
static bool skip_number(str s, size_t *at, uint32_t *out)
{
    size_t from = *at;
    *out = 0;
    for (; *at < s.n && *at - from < 6 && s.at[*at] >= '0' && s.at[*at] <= '9'; ++*at)
        *out = *out * 10 + (uint32_t)(s.at[*at] - '0');
    return *at > from;
}

/* Which of gate, up and down the end of a name means, for one expert (`one`) or for all; PARTS:
 * gate and up joined.  False: none of them. */
static bool parse_part(str rest, bool one, int *part)
{
    static const char *const names[][2] = {{"gate_proj.weight", "w1.weight"},
                                           {"up_proj.weight", "w3.weight"},
                                           {"down_proj.weight", "w2.weight"}};
    static const char *const together[][3] = {
        {"down_proj", "down_proj.weight", "output_linear.weight"},
        {"gate_up_proj", "gate_up_proj.weight", "input_linear.weight"}};
    for (*part = GATE; one && *part < PARTS; ++*part)
        if (str_is(rest, names[*part][0]) || str_is(rest, names[*part][1]))
            return true;
    for (*part = DOWN; !one && *part <= PARTS; ++*part)
        for (int i = 0; i < 3; i++)
            if (str_is(rest, together[*part - DOWN][i]))
                return true;
    return false;
}

/* Parse a name.  False: it is not a weight of an expert. */
static bool parse_name(str name, expert_name *out)
{
    size_t at = 0;
    uint32_t number = 0;
    if (!skip_text(name, &at, "model.layers.") || !skip_number(name, &at, &out->layer) ||
        (!skip_text(name, &at, ".mlp.experts.") &&
         !skip_text(name, &at, ".block_sparse_moe.experts.") &&
         !skip_text(name, &at, ".block_sparse_moe.")))
        return false;
    out->at = at;
    bool one = skip_number(name, &at, &number);
    out->after = at;
    out->expert = one ? (int64_t)number : -1;
    if (one && !skip_text(name, &at, "."))
        return false;
    return parse_part((str){name.at + at, name.n - at}, one, &out->part);
}

/* Add a tensor to the list.  first: of a stack that is gathered here; at NULL for all others. */
static mpk_status add(mpk_context *cx, arena *a, stacks *s, const load_tensor *t, str first)
{
    CHECK(cx, !map_get(&s->names, t->name, NULL), MPK_EFORMAT, "tensor %.*s is there twice",
          LOAD_NAME(t->name));
    PUSH(cx, a, &s->tensors, *t);
    PUSH(cx, a, &s->first, first);
    return map_put(cx, a, &s->names, t->name, s->tensors.n - 1);
}

/* Of GATE, UP and DOWN, as models ask for them. */
static const char *const part_names[] = {"gate_proj", "up_proj", "down_proj"};

/* The name of a stack that models ask for, whatever the file's spelling is; `part` is GATE, UP
 * or DOWN. */
static mpk_status name_stack(mpk_context *cx, arena *a, uint32_t layer, int part, str *out)
{
    char name[96];
    int n = snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s.weight", layer,
                     part_names[part]);
    *out = (str){arena_copy(a, name, (size_t)n), (size_t)n};
    CHECK(cx, out->at, MPK_ENOMEM, "out of memory for a tensor's name");
    return MPK_OK;
}

/* The stack to which an expert's tensor belongs.  The first tensor creates it and gives it its
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

/* Add one expert's tensor to its stack; it must have the shape and dtype of the others, and a
 * number that no other one has. */
static mpk_status add_expert(mpk_context *cx, arena *a, stacks *s, const load_tensor *t,
                             const expert_name *name)
{
    load_tensor *stack = NULL;
    CHECK(cx, name->expert < s->from->config.n_experts, MPK_EFORMAT,
          "tensor %.*s: the model has %u experts", LOAD_NAME(t->name), s->from->config.n_experts);
    TRY(find_stack(cx, a, s, t, name, &stack));
    CHECK(cx, stack->parts && !stack->parts[name->expert], MPK_EFORMAT,
          "tensor %.*s is there twice", LOAD_NAME(t->name));
    CHECK(
        cx,
        t->dtype == stack->dtype && t->rank == 2 && t->dims[0] == stack->dims[1] &&
            t->dims[1] == stack->dims[2],
        MPK_ESHAPE,
        "tensor %.*s does not have the shape and dtype of the other experts' weights in its layer",
        LOAD_NAME(t->name));
    stack->parts[name->expert] = t->data;
    return MPK_OK;
}

/* Split a joined stack into gate and up.  For each expert the rows of gate are followed by those
 * of up, so each half is one address for each expert. */
static mpk_status split_stack(mpk_context *cx, arena *a, stacks *s, const load_tensor *t,
                              uint32_t layer)
{
    int64_t n = s->from->config.n_experts;
    CHECK(cx, t->rank == 3 && t->dims[0] == n && t->dims[1] % 2 == 0, MPK_ESHAPE,
          "tensor %.*s does not have the shape [%lld experts, rows of gate and up, columns]",
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
    static const char *const ends[][2] = {
        {".block_sparse_moe.gate.weight", "weight"},
        {".block_sparse_moe.router.layer.weight", "weight"},
        {".mlp.gate.wg.weight", "weight"},
        {".mlp.gate.e_score_correction_bias", "e_score_correction.bias"},
        {".mlp.e_score_correction_bias", "e_score_correction.bias"},
        {".mlp.moe_statics.e_score_correction_bias", "e_score_correction.bias"},
        {".block_sparse_moe.e_score_correction_bias", "e_score_correction.bias"}};
    char renamed[80];
    size_t at = 0;
    uint32_t layer;
    if (!skip_text(*name, &at, "model.layers.") || !skip_number(*name, &at, &layer))
        return MPK_OK;
    const str end = {name->at + at, name->n - at};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if (!str_is(end, ends[i][0]))
            continue;
        int n = snprintf(renamed, sizeof renamed, "model.layers.%u.mlp.gate.%s", layer, ends[i][1]);
        *name = (str){arena_copy(a, renamed, (size_t)n), (size_t)n};
        CHECK(cx, name->at, MPK_ENOMEM, "out of memory for a tensor's name");
        return MPK_OK;
    }
    return MPK_OK;
}

mpk_status load_rename_expert(mpk_context *cx, arena *a, str *name)
{
    expert_name e;
    char renamed[96];
    if (!parse_name(*name, &e))
        return rename_router(cx, a, name);
    if (e.part == PARTS)
        return MPK_OK;
    if (e.expert < 0)
        return name_stack(cx, a, e.layer, e.part, name);
    int n = snprintf(renamed, sizeof renamed, "model.layers.%u.mlp.experts.%lld.%s.weight", e.layer,
                     (long long)e.expert, part_names[e.part]);
    *name = (str){arena_copy(a, renamed, (size_t)n), (size_t)n};
    CHECK(cx, name->at, MPK_ENOMEM, "out of memory for a tensor's name");
    return MPK_OK;
}

mpk_status load_find_stack(mpk_context *cx, arena *a, str name, str *stack, int64_t *expert)
{
    expert_name e;
    *expert = -1;
    if (!parse_name(name, &e) || e.expert < 0)
        return MPK_OK;
    *expert = e.expert;
    return name_stack(cx, a, e.layer, e.part, stack);
}

/* Add one tensor of the checkpoint: an expert's to its stack, a joined one as two views, any
 * other as it is. */
static mpk_status sort_tensor(mpk_context *cx, arena *a, stacks *s, const load_tensor *t)
{
    expert_name name;
    load_tensor kept = *t;
    /* tensors of layers beyond the model's are added as they are, and refused by name later */
    bool is_expert = parse_name(t->name, &name) && name.layer < s->from->config.n_layers;
    if (is_expert && name.expert >= 0)
        return add_expert(cx, a, s, t, &name);
    if (is_expert && name.part == PARTS)
        return split_stack(cx, a, s, t, name.layer);
    if (is_expert)
        TRY(name_stack(cx, a, name.layer, name.part, &kept.name));
    TRY(rename_router(cx, a, &kept.name));
    if (kept.rank == 2 && kept.dims[0] == 1 &&
        str_ends(kept.name, STR(".mlp.gate.e_score_correction.bias"))) {
        kept.rank = 1; /* ERNIE's are a matrix of one row */
        kept.dims[0] = kept.dims[1];
    }
    return add(cx, a, s, &kept, (str){0});
}

/* Refuse a stack in which an expert is missing, by the name that the file would have for it. */
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

/* Replace the model's list of tensors by one with stacks.  Called by load.c between reading a
 * checkpoint and looking for the model's weights; models without experts are left alone. */
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
